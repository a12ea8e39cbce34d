"""gpt-dump: runs the callbacks of probes on the launches of a live stream."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Annotated

from gpt.base import cli
from gpt.base.errors import GptError
from gpt.base.options import Argument, Option
from gpt.base.outputs import make_folder
from gpt.base.scratch import Scratch, scratch_folder
from gpt.stream.stage import DASH

TOOL = "gpt-dump"
LAUNCH = "probed", "no launch with probes in the stream: 'gpt-hook run -p' records some"


def main() -> int:
    """Run the executable."""
    return cli.run(TOOL, dump)


def dump(
    files: Annotated[list[Path] | None, Argument(metavar="[STREAM]...", help="Standard input by default.")] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Write the stream to a new file.")
    ] = None,
    dumps: Annotated[
        Path | None, Option("--dumps", metavar="DIR", help="Keep the trace of each launch, as PID-LAUNCH.mp.")
    ] = None,
    only: Annotated[
        list[str] | None, Option("--only", metavar="FILE", help="Run only callbacks that are named here; repeatable.")
    ] = None,
    limit: Annotated[
        float, Option("--limit", metavar="S", min=0.1, help="Time limit for a callback, in seconds.")
    ] = 60,
    quiet: Annotated[
        bool, Option("--quiet", "-q", help="Don't report that a stream has no launches with probes.")
    ] = False,
    table: cli.Table = False,
    json: cli.Json = False,
    from_json: cli.FromJson = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """Run the callbacks of probes on each launch."""
    from gpt.compat.dump.dumping import Dumping

    printed = _open(output) if output and output != DASH else 2
    stage = Dumping(TOOL, json=json, from_json=from_json, table=table)
    with scratch_folder("gpt-dump.") as folder, _keep(folder):
        if dumps:
            make_folder(dumps, 0o700)
        stage.follow(dumps or folder.path, folder.path, dumps is not None, limit, printed, only or None)
        return stage.run(files or [], None if quiet else LAUNCH)


def _keep(folder: Scratch) -> subprocess.Popen[bytes]:
    """Return a process that removes the folder when this one has ended, however it did.

    It runs in the folder, whose name may belong to another one by then.
    """
    command = ["/bin/sh", "-c", 'read -r end; rm -f -- ./*; exec rmdir -- "$0"', str(folder.path)]
    null = subprocess.DEVNULL
    return subprocess.Popen(
        command, cwd=folder.working, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True
    )


def _open(path: Path) -> int:
    """Redirect standard output to a file, and return a descriptor for the old one."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise GptError("exists", str(path)) from None
    printed = os.dup(1)
    os.dup2(file, 1)
    os.close(file)
    return printed
