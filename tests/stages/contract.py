"""What tests of all stages share: how each is called."""

from __future__ import annotations

import subprocess

STAGES = {
    "gpt-dump": [],
    "gpt-asm": ["--arch", "sm_90"],
    "gpt-ptx-probe": ["-p", "block_sched"],
    "gpt-analyze": ["summary", "--stream"],
    "gpt-extract": [],
    "gpt-locate": ["--used", "names.txt", "--keep", "matrixMul", "--arch", "sm_90"],
    "gpt-patch": ["-o", "slim"],
}


def run(command, folder, data=b"", **options):
    if "stdin" not in options:
        options["input"] = data
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    options = pipes | {"cwd": folder, "timeout": 60, "check": False} | options
    return subprocess.run(command, **options)
