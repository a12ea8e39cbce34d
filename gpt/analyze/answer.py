"""Re-export gpt.analyze.lib.answer. Users' scripts import it under this name (gpt-analyze(1), SCRIPTS)."""

from gpt.analyze.lib.answer import *  # noqa: F403
