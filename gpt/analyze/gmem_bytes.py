"""gpt-analyze gmem_bytes: how many bytes of global memory kernels read and write."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from gpt.analyze.answer import Answers, Column, make_answer
from gpt.analyze.command import Analysis
from gpt.analyze.maps import LAUNCH, MapAnalysis, launch_row

if TYPE_CHECKING:
    from gpt.trace.buffers import Buffer, Saved
    from gpt.trace.process import Process

SUMMED = ("read", "written", "async", "bulk")  # what is added up to `total`
FIELDS = (*SUMMED, "expected")
BYTES = (
    Column("total", "u64", "bytes"),
    Column("read", "u64", "bytes"),
    Column("written", "u64", "bytes"),
    Column("async", "u64", "bytes", shown="any"),
    Column("bulk", "u64", "bytes", shown="any"),
    Column("expected", "u64", "bytes", shown="any"),
    Column("dropped", "u64", title="lost", shown="any"),
)
KERNELS = (
    Column("name", "text", "kernel", "kernel"),
    Column("launches", "u64"),
    Column("share", "f64", "%"),
    *BYTES,
)
LAUNCHES = (
    *LAUNCH,
    *BYTES,
)
TOP, TOP_LAUNCHES = 30, 10  # rows that tables show
MOST_LAUNCHES = 100_000  # that are listed
EXPECTED = "expected: bytes that barriers waited for, the bulk copies by tensor map too; not in the total"


class GmemBytes(MapAnalysis):
    """The sums of each kernel, and of each launch."""

    name = "gmem_bytes"
    fields = FIELDS

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        self._kernels: dict[str, Counter[str]] = {}
        self._rows: list[tuple[Any, ...]] = []  # of launches

    def add(self, process: Process, buffer: Buffer, saved: Saved) -> None:
        """Adds a launch."""
        sums = {name: int(saved.slots[name].sum()) for name in FIELDS}
        sums |= {"total": sum(sums[name] for name in SUMMED), "dropped": saved.dropped}
        self._kernels.setdefault(buffer.kernel, Counter()).update(sums, launches=1)
        self._number += 1
        if len(self._rows) < MOST_LAUNCHES:
            self._rows.append((*launch_row(self._number, process, buffer), *_bytes(sums)))

    def iter_answers(self, verdict: list[str]) -> Answers:
        """Kernels, that with the most bytes first, and launches."""
        total = sum(sums["total"] for sums in self._kernels.values())
        ordered = sorted(self._kernels.items(), key=lambda k: (-k[1]["total"], k[0]))
        rows = [(name, sums["launches"], 100 * sums["total"] / (total or 1), *_bytes(sums)) for name, sums in ordered]
        expected = [EXPECTED] if any(sums["expected"] for _, sums in ordered) else []
        yield make_answer("kernels", KERNELS, rows, [f"gmem_bytes:{total}", *expected, *verdict], top=TOP)
        more = self._number - len(self._rows)
        verdict = [f"{more:,} more launches are only in the sums"] if more else []
        yield make_answer("launches", LAUNCHES, self._rows, verdict, top=TOP_LAUNCHES)


def _bytes(sums: Counter[str] | dict[str, int]) -> tuple[int, ...]:
    """The columns BYTES."""
    return tuple(sums[column.name] for column in BYTES)


ANALYSIS = Analysis("Sum up the bytes that kernels read and write.", GmemBytes)
