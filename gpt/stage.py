"""Re-export gpt.stream.stage under the name that third-party stages import (gpt(7))."""

from gpt.stream.stage import *  # noqa: F403
