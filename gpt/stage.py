"""The name under which stages of other people import gpt.stream.stage, see gpt(7)."""

from gpt.stream.stage import *  # noqa: F403
