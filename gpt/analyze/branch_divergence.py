"""gpt-analyze branch_divergence: how often the lanes of a warp diverge at branches.

When a warp executes a branch, each of its active lanes counts as `reached`. A lane that jumps counts as `taken`; it
also counts as `split` if another active lane doesn't jump. So only one side of a divergent branch counts as `split`: if
half of the warp jumps, half of its lanes count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpt.analyze.lib.answer import Column
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.ratios import Kernel, Ratios
from gpt.screen.units import human_count


class BranchDivergence(Ratios):
    """The share of lanes that diverge at the branches they reach."""

    name = "branch_divergence"
    fields = ("reached", "taken", "split")
    nothing = "no warp reached a branch"
    number, cost, scale = "reached", "split", 100
    ratio = Column("divergence", "f64", "%")
    sums = (Column("reached", "u64"), Column("taken", "u64"), Column("split", "u64"))

    def say(self, kernel: Kernel, total: Counter[str], where: str) -> Iterator[str]:
        """Yield the share of lanes that diverge, and the kernel in which most of them do."""
        reached = human_count(total["reached"])
        if total["split"]:
            yield f"{self.show(total)} of {reached} lanes at branches jump while others stay"
            yield f"{where}: {self.show(kernel.sums)} there"
        else:
            yield f"no branch diverges: of {reached} lanes at branches none jumps while others stay"


ANALYSIS = Analysis("Show where lanes diverge at branches.", BranchDivergence)
