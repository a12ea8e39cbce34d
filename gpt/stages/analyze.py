"""gpt-analyze: one command for each question about traces."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from gpt import cli
from gpt.analyze.command import TOOL, Analysis, make_command
from gpt.analyze.script import load_script

ABOUT = "Report what programs did with the GPU, from traces of gpt-hook."
ANALYSES = (  # each is gpt/analyze/NAME.py
    "summary",
    "events",
    "block_sched",
    "gmem_bytes",
    "overhead",
    "exposed_latency",
    "roofline",
    "memusage",
    "memory",
    "gaps",
    "stages",
    "nvtx",
    "ioctl",
    "tensorop_count",
    "branch_divergence",
    "sync_wait",
    "inst_latency",
    "warp_sched",
    "warp_progress",
    "dmat",
    "bank_conflict",
    "value_range",
    "program_progress",
    "maps",
    "timeline",
    "export",
    "collectives",
    "graphs",
    "diff",
)


def main() -> int:
    """Entry point of the executable."""
    option, equals, value = sys.argv[1].partition("=") if len(sys.argv) > 1 else ("", "", "")
    if option == "--script" and (equals or len(sys.argv) > 2):
        path = value if equals else sys.argv.pop(2)
        del sys.argv[1]
        return cli.run(TOOL, make_command(load_script(Path(path))))
    asked = [option] if option in ANALYSES else ANALYSES  # to load them all takes as long as the rest of the start
    commands = {name: make_command(_load(name)) for name in asked}
    return cli.run(TOOL, commands, ABOUT, _no_command)


def _load(name: str) -> Analysis:
    found: Analysis = import_module(f"gpt.analyze.{name}").ANALYSIS
    return found


def _list(value: bool) -> None:
    if value:
        width = max(map(len, ANALYSES))
        typer.echo("\n".join(f"{name:{width}} {_load(name).about}" for name in ANALYSES))
        raise typer.Exit


def _no_command(
    list_: Annotated[bool, typer.Option("--list", callback=_list, is_eager=True, help="List the analyses.")] = False,
    script: Annotated[
        Path | None, typer.Option("--script", metavar="FILE", help="In place of a command: a function of your own.")
    ] = None,
    version: cli.Version = False,
) -> None:
    pass
