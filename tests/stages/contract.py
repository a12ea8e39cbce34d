"""Shared by tests of all stages: how to call each."""

from __future__ import annotations

import subprocess

from tests import loaded

STAGES = {
    "gpt-dump": [],
    "gpt-asm": ["--arch", "sm_90"],
    "gpt-ptx-probe": ["-p", "block_sched"],
    "gpt-sass-probe": ["-p", "block_sched"],
    "gpt-analyze": ["summary", "--stream"],
    "gpt-extract": [],
    "gpt-locate": ["--used", "names.txt", "--keep", "matrixMul", "--arch", "sm_90"],
    "gpt-patch": ["-o", "slim"],
}


def run(command, folder, data=b"", cold=False, **options):
    """Run a command in a folder. Unless it must start `cold`, a stage runs in a fork of a process that has already
    imported it.
    """
    options = {"cwd": folder, "timeout": 60} | options
    if command[0] in STAGES and not cold:
        return loaded.run(command, data, **options)
    options |= {} if "stdin" in options else {"input": data}
    options["env"] = loaded.cold(options.get("env"))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run(command, check=False, **pipes | options)
