"""The name under which users' scripts import gpt.analyze.lib.answer, see gpt-analyze(1)."""

from gpt.analyze.lib.answer import *  # noqa: F403
