"""Maps from what a probe file says of them, with the limits that every form of file shares."""

from __future__ import annotations

from typing import Any

from gpt.base.errors import GptError, MalformedError
from gpt.probe.model import LEADERS, LEVELS, Map, layout
from gpt.ptx.types import SIZES

MAX_SIZE = 4096  # bytes of a record
MAX_CAPACITY = 1 << 24  # records of a thread, warp or block
MAX_BUDGET = 1 << 40  # bytes of a log


def parse_number(value: Any) -> int | None:
    """Return a number that is not negative, written as one or as a text."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def parse_capacity(value: Any, what: str, where: str) -> int | None:
    """Return records, or None of `dynamic` and `count`. Raises MalformedError."""
    if isinstance(value, str) and value.strip() in ("dynamic", "count"):
        return None
    number = parse_number(value)
    if number is None:
        raise MalformedError(f"{what}: capacity '{value}' is not a number, 'dynamic' or 'count'", where)
    return number


def parse_sample(text: Any, what: str, where: str) -> tuple[str, int] | None:
    """(`block`, 8) of `block/8`. Raises MalformedError."""
    if text is None:
        return None
    unit, _, every = text.partition("/") if isinstance(text, str) else ("", "", "")
    number = parse_number(every)
    if unit not in ("block", "warp") or not number or number >= 1 << 31:
        raise MalformedError(f"{what}: sample '{text}' is not 'block/N' or 'warp/N'", where)
    return unit, number


def make_map(
    name: str,
    what: str,
    where: str,
    fields: list[tuple[str, str]],
    *,
    level: Any,
    size: int,
    capacity: int | None,
    leader: Any = "active",
    budget: Any = None,
    type: Any = "array",
) -> Map:
    """Return a map of these named types. `what` and `where` begin messages. Raises GptError for contradictions."""
    placed, taken = layout(fields)
    if level not in LEVELS:
        raise GptError(f"{what}: level '{level}' is not one of {', '.join(LEVELS)}", where)
    if size < taken:
        raise GptError(f"{what}: {taken} bytes of fields in a record of {size}", where)
    if size > MAX_SIZE:
        raise GptError(f"{what}: a record of {size} bytes; the limit is {MAX_SIZE}", where)
    if capacity is not None and not 0 < capacity <= MAX_CAPACITY:
        raise GptError(f"{what}: capacity {capacity} is not from 1 to {MAX_CAPACITY}", where)
    if leader not in LEADERS:
        raise GptError(f"{what}: leader '{leader}' is not one of {', '.join(LEADERS)}", where)
    if leader != "active" and (level == "thread" or type == "total"):
        raise GptError(f"{what}: a leader where every thread saves", where)
    if budget is not None and not parse_number(budget):
        raise GptError(f"{what}: budget '{budget}' is not a number of bytes", where)
    if (parse_number(budget) or 0) > MAX_BUDGET:
        raise GptError(f"{what}: a budget of {budget} bytes; the limit is {MAX_BUDGET}", where)
    if budget is not None and capacity is not None:
        raise GptError(f"{what}: a budget beside a fixed capacity", where)
    if type == "total" and (capacity != 1 or any(SIZES[type_] < 4 for _, type_ in fields)):
        raise GptError(f"{what}: a total is one record of numbers of 4 or 8 bytes", where)
    line = int(where.rpartition(":")[2])
    made = Map(name, level, size, capacity, placed, leader, parse_number(budget), line, type)
    if made.budget is not None and made.budget < 16 + made.stride:  # the log's count, a record and its unit
        raise GptError(f"{what}: a budget of {budget} bytes, in which no record has room", where)
    return made
