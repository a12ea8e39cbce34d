"""The name under which stages of other people import gpt.base.arch, see gpt(7)."""

from gpt.base.arch import *  # noqa: F403
