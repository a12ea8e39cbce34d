"""JSON lines of calls, as eBPF tracers such as LittleBoy write them.

`gpt-analyze events --json` writes the same lines, so that one set of `jq` recipes and one reader do for both. What only
tracers do is in phases.py, and in `_Lines` where a line has a `phase` or an `event_id`. What only GPT does are the
records after `# ` (`events --notes`).
"""

from __future__ import annotations

from pathlib import Path

from gpt.base.errors import MalformedError
from gpt.trace.inputs import HEAD, Format, ReadText


def find_text(head: bytes) -> ReadText | None:
    """Return what reads a text that begins so, or None if it's no JSON lines of calls."""
    from gpt.compat.tracers.lines import is_lines, read_lines

    return read_lines if is_lines(head) else None


def refuse_used(data: bytes, path: Path) -> None:
    """Refuse lines as a list of used code: calls say which kernels ran, not all that were looked up."""
    if b'"ts"' in data and find_text(data[:HEAD]):
        raise MalformedError("JSON lines of calls do not say what was looked up: name the trace itself", str(path))


FORMAT = Format("tracers", find_text=find_text, list_used=refuse_used)
