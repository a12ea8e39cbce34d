"""gpt-neutrino: runs a program with probes, as Neutrino's command line does, and leaves trace folders in its format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from gpt.base import cli
from gpt.base.errors import UsageError
from gpt.base.options import Argument, Option

TOOL = "gpt-neutrino"


def main() -> int:
    """Run the executable, also under its other name, `neutrino`."""
    return cli.run(TOOL, neutrino, words_after=True)


def _show_path(value: bool) -> None:
    if value:
        from gpt.compat.neutrino.command import PACKAGE

        cli.show(PACKAGE)
        raise cli.Done


def neutrino(
    command: Annotated[list[str] | None, Argument(metavar="COMMAND [ARG]...", help="What to run.")] = None,
    probe: Annotated[str | None, Option("--probe", "-p", metavar="PROBE", help="A tool, or a probe file.")] = None,
    tool: Annotated[str | None, Option("--tool", "-t", metavar="PROBE", help="The same.")] = None,
    tracedir: Annotated[
        str | None, Option("--tracedir", metavar="DIR", help="Create trace folders in DIR/trace.")
    ] = None,
    trace: Annotated[str | None, Option("--trace", metavar="DIR", help="Create them in DIR (./trace).")] = None,
    kernel: Annotated[
        list[str] | None,
        Option("--kernel", "-k", metavar="NAME:...", help="Only kernels whose name contains one of these."),
    ] = None,
    drop: Annotated[
        list[str] | None,
        Option("--filter", metavar="NAME:...", help="No kernels whose name contains one of these."),
    ] = None,
    callback: Annotated[str | None, Option("--callback", metavar="FILE", help="Run this on each result.")] = None,
    benchmark: Annotated[
        bool, Option("--benchmark", help="Run each kernel without probes too, and time both; save nothing.")
    ] = False,
    memusage: Annotated[bool, Option("--memusage", help="Only add up the memory that buffers would need.")] = False,
    driver: Annotated[Path | None, Option("--driver", metavar="FILE", help="Use this libcuda.so.1.")] = None,
    python: Annotated[
        str | None, Option("--python", metavar="FILE", help="Run analyze hooks with this Python.")
    ] = None,
    device: Annotated[str, Option("--device", metavar="KIND", envvar="GPT_DEVICE", help="real or sim.")] = "real",
    path: Annotated[
        bool,
        Option(
            "--path", callback=_show_path, is_eager=True, help="Print the directory to add to PYTHONPATH, and exit."
        ),
    ] = False,
    verbose: cli.Verbose = False,
    version: cli.Version = False,
) -> int:
    """Run a program with probes, and leave trace folders as Neutrino does."""
    from gpt.compat.neutrino.command import NeutrinoOptions, find_parent, start

    if probe and tool:
        raise UsageError("--tool cannot be combined with --probe: a run has one probe")
    if tracedir is not None and trace is not None:
        raise UsageError("--trace cannot be combined with --tracedir: trace folders are made in one folder")
    probe = probe or tool
    if not probe:
        raise UsageError("no probe: -p PROBE names one (see gpt-neutrino --help)")
    if not command:
        raise UsageError("no command (see gpt-neutrino --help)")
    if device not in ("real", "sim"):
        raise UsageError(f"'{device}' is neither real nor sim", "--device")
    parent = find_parent(tracedir, trace)
    kernels, dropped = (
        ":".join(cli.split_parts(option, given or ())) for option, given in (("-k", kernel), ("--filter", drop))
    )
    return start(
        NeutrinoOptions(probe, parent, kernels, dropped, callback, driver, python, device, benchmark, memusage), command
    )
