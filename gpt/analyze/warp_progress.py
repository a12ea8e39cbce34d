"""gpt-analyze warp_progress: how fast warps compute in tensor cores, from their first operation to their last."""

from __future__ import annotations

from gpt.analyze.lib.answer import Column
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.progress import Number, ProgressFold


class WarpProgress(ProgressFold):
    """An analysis of floating-point operations in tensor cores over time."""

    name = "warp_progress"
    fields = ("clock", "flops", "sm")
    amount = Column("flops", "u64", title="FLOPs")
    rate = Column("rate", "f64", title="FLOPs a clock")


ANALYSIS = Analysis("Show how fast warps compute in tensor cores.", WarpProgress, {"launch": Number})
