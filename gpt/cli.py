"""Re-export gpt.base.cli under the name that third-party stages import (gpt(7))."""

from gpt.base.cli import *  # noqa: F403
