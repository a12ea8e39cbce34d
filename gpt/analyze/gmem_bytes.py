"""gpt-analyze gmem_bytes: how many bytes of global memory kernels read and write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpt.analyze.lib.answer import Column
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.sums import KernelSums

EXPECTED = "expected: bytes that barriers waited for, including bulk copies by tensor map; not in the total"


class GmemBytes(KernelSums):
    """Bytes by kind of access."""

    name = "gmem_bytes"
    parts = ("read", "written", "sync", "async", "bulk")
    fields = ("read", "written", "sync", "async", "bulk", "expected")
    partial = frozenset((name,))
    columns = (
        Column("total", "u64", "bytes"),
        Column("read", "u64", "bytes", shown="any"),
        Column("written", "u64", "bytes", shown="any"),
        Column("sync", "u64", "bytes", "read, written", "any"),  # Neutrino's probe doesn't distinguish reads and writes
        Column("async", "u64", "bytes", shown="any"),
        Column("bulk", "u64", "bytes", shown="any"),
        Column("expected", "u64", "bytes", shown="any"),
    )

    def verdict(self, sums: Mapping[str, int]) -> Sequence[str]:
        """Explain `expected` if it isn't zero."""
        return [*super().verdict(sums), *([EXPECTED] if sums["expected"] else [])]


ANALYSIS = Analysis("Sum up the bytes that kernels read and write.", GmemBytes)
