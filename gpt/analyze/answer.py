"""Re-export gpt.analyze.lib.answer under the name that users' scripts import (gpt-analyze(1), SCRIPTS)."""

from gpt.analyze.lib.answer import *  # noqa: F403
