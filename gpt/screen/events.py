"""Print calls as lines, which are made from their JSON form.

The name of a kernel comes last, because it's the only part of a line that may be shortened.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

from gpt.base.printable import as_cell, printable, shorten
from gpt.screen.demangle import readable
from gpt.screen.grid import screen_width
from gpt.screen.units import human_time

FORM = "{:>11} {:>7} {:>13} {:>6} {}"
HEADER = FORM.format("seconds", "took", "pid/tid", "result", "call") + "\n"
SAID = ("ts", "duration_us", "result", "type", "op", "name", "symbol", "pid", "tid", "kernel")  # not as KEY=VALUE
LEAST = 24  # columns that a kernel's name keeps
KNOWN = 1 << 16  # limit of the name cache


CSV = ("ts", "duration_us", "result", "type", "op", "name", "symbol", "host", "pid", "rank", "tid", "size", "ptr",
       "handle", "dst", "src", "object", "stream", "kernel", "grid", "block", "cluster", "shared",
       "cooperative")  # fmt: skip


class EventCsv:
    """Converts JSON lines to CSV. Each key is a column, and the sizes of a grid are joined by x."""

    def head(self) -> str:
        """Return the line with the column names."""
        return ",".join(CSV) + "\n"

    def iter_lines(self, lines: str) -> Iterator[str]:
        """Yield a CSV line for each JSON line."""
        for line in lines.splitlines():
            event, file = json.loads(line), io.StringIO()
            cells = (event.get(key, "") for key in CSV)
            csv.writer(file, lineterminator="\n").writerow(map(_as_cell, cells))
            yield file.getvalue()


def _as_cell(value: Any) -> Any:
    if isinstance(value, list):
        return "x".join(map(str, value))
    return as_cell(value) if isinstance(value, str) else value


class EventText:
    """Converts JSON lines to text."""

    def __init__(self) -> None:
        self._width = screen_width()
        self._names: dict[str, str] = {}  # readable names of kernels

    def iter_lines(self, lines: str) -> Iterator[str]:
        """Yield a text line for each JSON line."""
        events = [json.loads(line) for line in lines.splitlines()]
        self._learn({event["kernel"] for event in events if "kernel" in event})
        for event in events:
            yield self._line(event) + "\n"

    def _learn(self, kernels: set[str]) -> None:
        if len(self._names) > KNOWN:
            self._names.clear()
        if unknown := sorted(kernels - self._names.keys()):
            self._names.update((name, printable(text)) for name, text in zip(unknown, readable(unknown), strict=True))

    def _line(self, event: dict[str, Any]) -> str:
        took = human_time(round(event["duration_us"] * 1000)) if "duration_us" in event else "-"
        call = "ioctl " + event["name"] if event["op"] == "ioctl" else event["name"]
        words = [call]
        for key, value in event.items():
            if key not in SAID:
                words.append(f"{key}={'x'.join(map(str, value)) if isinstance(value, list) else value}")
        thread = f"{event['pid']}/{event['tid']}"
        told = printable(" ".join(words))
        line = FORM.format(f"{event['ts'] / 1e6:.6f}", took, thread, event.get("result", "-"), told)
        if "kernel" not in event:
            return line
        name = self._names[event["kernel"]]
        return f"{line} {shorten(name, max(LEAST, self._width - len(line) - 1), middle=False)}"
