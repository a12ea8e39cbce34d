"""gpt-analyze: one command for each question about traces."""

from __future__ import annotations

from collections.abc import Callable

from gpt import cli
from gpt.analyze.events import events
from gpt.analyze.summary import summary

ANALYSES: dict[str, Callable[..., int]] = {"summary": summary, "events": events}


def main() -> int:
    """Entry point of the executable."""
    return cli.run("gpt-analyze", ANALYSES, "Report what programs did with the GPU, from traces of gpt-hook.")
