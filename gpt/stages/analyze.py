"""gpt-analyze: one command per question about traces."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gpt.base import cli
from gpt.base.options import Option

if TYPE_CHECKING:
    from gpt.analyze.lib.command import Analysis

TOOL = "gpt-analyze"
ABOUT = """Report what programs did with the GPU, from traces of gpt-hook. Each command has a man page:
gpt-analyze-COMMAND(1)."""
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
    "idle",
    "launches",
    "gaps",
    "startup",
    "stacks",
    "stages",
    "tokens",
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
    """Run the executable."""
    option, equals, value = sys.argv[1].partition("=") if len(sys.argv) > 1 else ("", "", "")
    if option == "--script" and (equals or len(sys.argv) > 2):
        path = value if equals else sys.argv.pop(2)
        del sys.argv[1]
        from gpt.analyze.lib.script import load_script

        return cli.run(TOOL, _make_command(load_script(Path(path))))
    return cli.run(TOOL, _Commands((option,) if option in ANALYSES else ANALYSES), ABOUT, _no_command)


class _Commands(Mapping[str, Callable[..., int]]):
    """The commands by name, each loaded when it's asked for: loading all of them would double the start-up time."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def __getitem__(self, name: str) -> Callable[..., int]:
        return _make_command(_load(name))

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _make_command(analysis: Analysis) -> Callable[..., int]:
    import gpt.compat  # noqa: F401 - registers other people's traces
    from gpt.analyze.lib.command import make_command

    return make_command(analysis)


def _load(name: str) -> Analysis:
    found: Analysis = import_module(f"gpt.analyze.{name}").ANALYSIS
    return found


def _list(value: bool) -> None:
    if value:
        width = max(map(len, ANALYSES))
        cli.show("\n".join(f"{name:{width}} {_load(name).about}" for name in ANALYSES))
        raise cli.Done


def _no_command(
    list_: Annotated[bool, Option("--list", callback=_list, is_eager=True, help="List the analyses.")] = False,
    script: Annotated[
        Path | None, Option("--script", metavar="FILE", help="Instead of a command: run your own function.")
    ] = None,
    version: cli.Version = False,
) -> None:
    pass
