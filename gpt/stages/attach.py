"""gpt-attach, which is gpt-hook attach: a trace of processes that already run, by bpftrace."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO, Annotated

import typer

from gpt import cli
from gpt.errors import GptError, UsageError

TOOL = "gpt-hook"


def main() -> int:
    """Entry point of the executable."""
    return cli.run(TOOL, attach)


def attach(
    pid: Annotated[int | None, typer.Option("--pid", "-p", metavar="PID", min=1, help="Watch this process.")] = None,
    system: Annotated[
        bool, typer.Option("--system", help="Watch all processes that use the driver, later ones too.")
    ] = False,
    kernel: Annotated[
        bool, typer.Option("--kernel", help="Watch functions of NVIDIA's kernel modules as well.")
    ] = False,
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="The trace; - is standard output.")
    ] = "trace.mp",
    force: Annotated[bool, typer.Option("--force", "-f", help="Overwrite FILE.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not say what is watched, nor what was.")] = False,
    calls: Annotated[
        str | None,
        typer.Option(
            metavar="WORD,...",
            help="Watch these functions, as gpt-hook run --calls says.",
            show_default="known arguments",
        ),
    ] = None,
    library: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="This driver, not those that processes have mapped.")
    ] = None,
    duration: Annotated[float | None, typer.Option(metavar="S", min=0.001, help="End after so many seconds.")] = None,
    show: Annotated[bool, typer.Option("--print", help="Print the bpftrace program, and do nothing.")] = False,
    read: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Make a trace of what bpftrace printed; - is standard input.")
    ] = None,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """Watch processes that already run, as root, by bpftrace."""
    from gpt.attach import command

    if (pid is not None) + system + (read is not None) != 1:
        raise UsageError("one of -p PID, --system and --read FILE is needed", "attach")
    if read is not None and (kernel or show or duration is not None or calls is not None or library):
        raise UsageError("only -o, -f and -q go with it", "--read")
    if calls == "":
        raise UsageError("names nothing", "--calls")
    asked = command.Asked(pid, library or [], calls, kernel, duration, quiet)
    if show:
        sys.stdout.write(command.write_program(asked))
        return 0
    with _open(output, force) as file:
        return command.read(read, file, output, quiet) if read else command.watch(asked, file, output)


def _open(path: str, force: bool) -> IO[bytes]:
    """The trace. Raises GptError if it is there already."""
    if path == "-":
        if os.isatty(1):
            raise UsageError("a trace does not go to a terminal", "-o")
        return open(os.dup(1), "wb")
    try:
        return open(path, "wb" if force else "xb")
    except FileExistsError:
        raise GptError("exists; -f overwrites it", path) from None
