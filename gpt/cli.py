"""The name under which stages of other people import gpt.base.cli, see gpt(7)."""

from gpt.base.cli import *  # noqa: F403
