"""gpt-analyze inst_latency: how many clocks loads from global memory take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpt.analyze.lib.answer import Column
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.ratios import Kernel, Ratios
from gpt.screen.units import human_count


class InstLatency(Ratios):
    """An analysis of the clocks from the issue of a load until its value arrives."""

    name = "inst_latency"
    fields = ("loads", "clocks")
    nothing = "no warp loaded from global memory"
    number, cost = "loads", "clocks"
    ratio = Column("latency", "f64", "cycles", "clocks a load")
    sums = (Column("loads", "u64", title="loads of lanes"), Column("clocks", "u64", "cycles", "clocks of lanes"))

    def say(self, kernel: Kernel, total: Counter[str], where: str) -> Iterator[str]:
        """Yield the mean, and the kernel that waits most."""
        yield f"a load takes {self.show(total)} on average ({human_count(total['loads'])} loads)"
        yield f"{where}: {self.show(kernel.sums)}, and {human_count(kernel.ratios.greatest or 0)} in its slowest warp"


ANALYSIS = Analysis("Show how long loads from global memory take.", InstLatency)
