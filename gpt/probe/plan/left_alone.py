"""Reasons for leaving a kernel alone."""

from __future__ import annotations

from gpt.base.errors import GptError

NO_PLACE = "no probe applies to it"
NO_SAVE = "no probe that saves applies to it"


class LeftAlone(GptError):
    """A kernel can't be probed; the text says why."""
