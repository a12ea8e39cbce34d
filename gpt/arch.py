"""Re-export gpt.base.arch under the name that third-party stages import (gpt(7))."""

from gpt.base.arch import *  # noqa: F403
