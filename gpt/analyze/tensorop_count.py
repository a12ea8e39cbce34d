"""gpt-analyze tensorop_count: how much kernels compute in tensor cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib.answer import Column
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.sums import KernelSums

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpt.trace.buffers import MapLayout
    from gpt.trace.sums import BufferSums

WARP = 32  # threads


class TensoropCount(KernelSums):
    """An analysis of floating-point operations in tensor cores, and of the instructions that perform them."""

    name = "tensorop_count"
    parts = ("flops",)
    fields = ("operations",)
    optional = ("flops",)
    columns = (Column("flops", "u64", title="FLOPs"), Column("operations", "u64", title="instructions"))

    def add_up(self, layout: MapLayout, values: npt.NDArray[Any]) -> int:
        """Return the sum over warps. In Neutrino's probe, every thread of a warp counts the operations of the warp."""
        if layout.level == "thread":
            import numpy as np

            values = np.maximum.reduceat(values, range(0, values.shape[1], WARP), axis=1)
        return super().add_up(layout, values)

    def take_sums(self, layout: MapLayout, sums: BufferSums) -> dict[str, int]:
        """Return the sums of a launch for which only sums were kept."""
        found = super().take_sums(layout, sums)
        return {name: value // WARP for name, value in found.items()} if layout.level == "thread" else found

    def verdict(self, sums: Mapping[str, int]) -> Sequence[str]:
        """Return a sentence with both sums."""
        flops = f" FLOPs:{sums['flops']}" if sums["flops"] or not sums["operations"] else ""
        return [f"{self.name}:{sums['operations']}{flops}"]


ANALYSIS = Analysis("Sum up tensor core operations of kernels.", TensoropCount)
