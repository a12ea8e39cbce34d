"""gpt-attach, also gpt-hook attach: traces running processes with bpftrace."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path
from typing import Annotated

from gpt.base import cli
from gpt.base.errors import UsageError
from gpt.base.options import Argument, Option

TOOL = "gpt-attach"


def main() -> int:
    """Run the executable."""
    return cli.run(TOOL, attach)


def attach(
    files: Annotated[
        list[Path] | None,
        Argument(metavar="[OUTPUT]...", help="Output of bpftrace; standard input by default."),
    ] = None,
    pid: Annotated[int | None, Option("--pid", "-p", metavar="PID", min=1, help="Trace this process.")] = None,
    system: Annotated[bool, Option("--system", help="Trace all processes that use the driver, now or later.")] = False,
    kernel: Annotated[bool, Option("--kernel", help="Also trace functions in NVIDIA's kernel modules.")] = False,
    output: Annotated[
        str, Option("--output", "-o", metavar="FILE", help="The trace; - is standard output.")
    ] = "trace.mp",
    force: Annotated[bool, Option("--force", "-f", help="Overwrite FILE.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Don't print messages about the recording.")] = False,
    calls: Annotated[
        str | None,
        Option(
            metavar="WORD,...",
            help="Trace these functions, as in gpt-hook run --calls.",
            show_default="known arguments",
        ),
    ] = None,
    library: Annotated[
        list[str] | None, Option(metavar="FILE", help="Trace this driver instead of the mapped ones.")
    ] = None,
    duration: Annotated[float | None, Option(metavar="S", min=0.001, help="Stop after S seconds.")] = None,
    show: Annotated[bool, Option("--print", help="Print the bpftrace program and exit.")] = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """Trace running processes through bpftrace, as root; or read bpftrace output."""
    from gpt.attach import command

    watched = pid is not None or system
    if (pid is not None and system) or (watched and files):
        raise UsageError("-p PID, --system and OUTPUT exclude each other")
    if not watched and (kernel or show or duration is not None or calls is not None or library):
        raise UsageError("-p PID or --system is needed: name what to watch")
    if calls == "":
        raise UsageError("names nothing", "--calls")
    if duration is not None and math.isnan(duration):
        raise UsageError("not a number", "--duration")
    asked = command.AttachOptions(pid, library or [], calls, kernel, duration, quiet)
    if show:
        sys.stdout.write(command.write_program(asked)[0])
        return 0
    if not watched and not files and os.isatty(0):
        raise UsageError("-p PID or --system is needed, or output of bpftrace", "<stdin>")
    if output == "-" and os.isatty(1):
        raise UsageError("a trace can't be written to a terminal", "-o")
    trace = command.Output(output, force)
    return command.watch(asked, trace) if watched else command.read(files or [], trace, quiet)
