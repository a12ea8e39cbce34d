"""gpt-analyze program_progress: how far warps are in their program, measured by the branches that they execute over
time.
"""

from __future__ import annotations

from gpt.analyze.lib.answer import Column
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.progress import Number, ProgressFold, RateTotals
from gpt.base.printable import printable, shorten
from gpt.screen.brief import brief_name
from gpt.screen.units import human_count

NAMED = 60  # width of a name in a sentence


class ProgramProgress(ProgressFold):
    """An analysis of steps, which are the branches that a warp executes."""

    name = "program_progress"
    fields = ("clock", "time", "steps", "sm")
    amount = Column("steps", "u64")
    rate = Column("rate", "f64", title="steps in 1,000 clocks")
    axis = Column("time", "u64", "ns")
    per = 1000

    def say(self, ordered: list[tuple[str, RateTotals]]) -> list[str]:
        """Return the number of steps in all kernels, and the rate of the first kernel, which shows whether its warps
        slow down.
        """
        steps, warps = (sum(getattr(kernel, name) for _, kernel in ordered) for name in ("done", "warps"))
        name, first = ordered[0]
        name = shorten(printable(brief_name(name)), NAMED, middle=False)
        _, _, _, _, rate, begin, end, _ = first.row()
        told = [f"{self.name}:steps {steps} warps {warps}", "of the blocks that are sampled"]
        if rate:
            told[1:1] = [f"{name}: {human_count(rate)} steps in 1,000 clocks of a warp"]
        if rate and begin and end:
            told[1] += f", {human_count(begin)} in the first 10th, {human_count(end)} in the last"
        return told


ANALYSIS = Analysis("Show the progress of warps over time.", ProgramProgress, {"launch": Number})
