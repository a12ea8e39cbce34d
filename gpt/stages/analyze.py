"""gpt-analyze: one command for each question about traces."""

from __future__ import annotations

from collections.abc import Callable

from gpt import cli
from gpt.analyze.block_sched import block_sched
from gpt.analyze.events import events
from gpt.analyze.gmem_bytes import gmem_bytes
from gpt.analyze.memusage import memusage
from gpt.analyze.overhead import overhead
from gpt.analyze.summary import summary

ANALYSES: dict[str, Callable[..., int]] = {
    "summary": summary,
    "events": events,
    "block_sched": block_sched,
    "gmem_bytes": gmem_bytes,
    "overhead": overhead,
    "memusage": memusage,
}


def main() -> int:
    """Entry point of the executable."""
    return cli.run("gpt-analyze", ANALYSES, "Report what programs did with the GPU, from traces of gpt-hook.")
