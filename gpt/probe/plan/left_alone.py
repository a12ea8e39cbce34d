"""Kernels that are left alone."""

from __future__ import annotations

from gpt.base.errors import GptError
from gpt.stream.reasons import Reason


class LeftAlone(GptError):
    """Raised for a kernel that can't be probed. `code` stands for a reason (gpt/stream/reasons.py); `detail` adds to
    its text.
    """

    def __init__(self, code: str, detail: str, where: str) -> None:
        self.reason = Reason(code, detail)
        super().__init__(str(self.reason), where)
