"""Kernels that are left alone."""

from __future__ import annotations

from gpt.base.errors import GptError
from gpt.stream.reasons import TABLE, Reason


class LeftAlone(GptError):
    """A kernel can't be probed. `code` is a reason's (gpt/stream/reasons.py); `fact` says it in full, for a message."""

    def __init__(self, code: str, fact: str, where: str) -> None:
        super().__init__(fact, where)
        self.reason = Reason(code, fact.removeprefix(TABLE[code][0]).removeprefix(": "))
