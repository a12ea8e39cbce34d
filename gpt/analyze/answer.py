"""Re-exports gpt.analyze.lib.answer under the name that users' scripts import, see gpt-analyze(1)."""

from gpt.analyze.lib.answer import *  # noqa: F403
