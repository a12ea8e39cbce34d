"""gpt-analyze tensorop_count: what kernels compute in tensor cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpt.analyze.answer import Column
from gpt.analyze.command import Analysis
from gpt.analyze.sums import Sums


class TensoropCount(Sums):
    """Floating-point operations, and the instructions that make them."""

    name = "tensorop_count"
    parts = ("flops",)
    fields = ("operations",)
    optional = ("flops",)
    columns = (Column("flops", "u64", title="FLOPs"), Column("operations", "u64", title="instructions"))

    def verdict(self, sums: Mapping[str, int]) -> Sequence[str]:
        """Both sums."""
        flops = f" FLOPs:{sums['flops']}" if sums["flops"] or not sums["operations"] else ""
        return [f"{self.name}:{sums['operations']}{flops}"]


ANALYSIS = Analysis("Sum up what kernels compute in tensor cores.", TensoropCount)
