"""Read JSON lines of calls, as eBPF tracers such as LittleBoy write them.

`gpt-analyze events --json` writes the same lines, so the same `jq` recipes and the same reader work for both. Code for
tracers only is in phases.py, and in `_Lines` for lines with a `phase` or an `event_id`. Only GPT writes the records
after `# ` (`events --notes`).
"""

from __future__ import annotations

from pathlib import Path

from gpt.base.errors import MalformedError
from gpt.trace.inputs import HEAD, Format, ReadText


def find_text(head: bytes) -> ReadText | None:
    """Return the reader of text that starts with these bytes, or None if it isn't JSON lines of calls."""
    from gpt.compat.tracers.lines import is_lines, read_lines

    return read_lines if is_lines(head) else None


def refuse_used(data: bytes, path: Path) -> None:
    """Reject lines as a list of used code: calls tell which kernels ran, but not everything that was looked up."""
    if b'"ts"' in data and find_text(data[:HEAD]):
        raise MalformedError(
            "JSON lines of calls don't name the kernels that were looked up: name the trace itself", str(path)
        )


FORMAT = Format("tracers", find_text=find_text, list_used=refuse_used)
