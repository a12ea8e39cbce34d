"""Make maps from their descriptions in probe files, within limits that are the same for all formats."""

from __future__ import annotations

from typing import Any

from gpt.base.errors import GptError, MalformedError
from gpt.probe.model import LEADERS, LEVELS, OPS, Field, Map, Scale, layout, layout_slot
from gpt.ptx.types import SIZES
from gpt.stream.rooms import ARENAS, HEAD, MOST_RING, SECTOR

OPTIONS = (
    "leader",
    "budget",
    "type",
    "counts",
    "low",
    "high",
    "step",
    "key",
    "ring",
    *OPS,
)  # the keys that make_map accepts
MAX_BINS = 1024  # bins per histogram
MAX_SLOTS = 4096  # slots per table
MAX_KEY = 2  # fields per key of a table
MAX_TABLE = 1 << 20  # bytes of a table's slots
MAX_SIZE = 4096  # bytes per record
MAX_CAPACITY = 1 << 24  # records per thread, warp or block
MIN_BUDGET = HEAD + ARENAS * SECTOR  # bytes per log; one with a smaller capacity couldn't even grow
MAX_BUDGET = 1 << 35  # runtime/hook/probe/answer.c takes no more


def parse_number(value: Any) -> int | None:
    """Parse a nonnegative integer, which may be written as an integer or as a decimal string. Return None for anything
    else.
    """
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 20:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def parse_capacity(value: Any, what: str, where: str) -> int | None:
    """Parse a number of records. Return None for `dynamic` and `count`. Raises MalformedError."""
    if isinstance(value, str) and value.strip() in ("dynamic", "count"):
        return None
    number = parse_number(value)
    if number is None:
        raise MalformedError(f"{what}: capacity '{value}' is not a number, 'dynamic' or 'count'", where)
    return number


def parse_sample(text: Any, what: str, where: str) -> tuple[str, int] | None:
    """Parse a sample: return (`block`, 8) for `block/8`. Raises MalformedError."""
    if text is None:
        return None
    unit, _, every = text.partition("/") if isinstance(text, str) else ("", "", "")
    number = parse_number(every)
    if unit not in ("block", "warp") or not number or number >= 1 << 31:
        raise MalformedError(f"{what}: sample '{text}' is not 'block/N' or 'warp/N'", where)
    return unit, number


def default_capacity(type_: Any, is_ring: bool = False) -> int | str:
    """Return the capacity of a map that doesn't specify one."""
    if is_ring:
        return "dynamic"
    return 256 if type_ == "table" else 1


def _parse_ops(types: dict[str, str], type_: Any, given: dict[str, Any], what: str, where: str) -> dict[str, str]:
    """Return the operations of the fields that `key`, `min`, `max` and `last` name. Raises GptError."""
    found: dict[str, str] = {}
    for op, names in given.items():
        if op == "key" and type_ != "table":
            raise GptError(f"{what}: 'key' is for tables", where)
        if op != "key" and type_ != "total" and (type_ != "table" or op == "last"):
            raise GptError(f"{what}: '{op}' is for totals{' and tables' * (op != 'last')}", where)
        if not isinstance(names, list | tuple):
            raise GptError(f"{what}: '{op}' is not a list of fields", where)
        for name in names:
            if not isinstance(name, str) or name not in types:
                raise GptError(f"{what}: '{op}' names '{name}', which is not a field", where)
            if name in found:
                raise GptError(f"{what}: field '{name}' is in '{found[name]}' and in '{op}'", where)
            if op != "last" and types[name][0] == "f":
                raise GptError(f"{what}: '{op}' of field '{name}', which isn't an integer", where)
            found[name] = op
    return found


def _parse_scale(
    fields: list[tuple[str, str]], type_: Any, capacity: int | None, given: dict[str, Any], what: str, where: str
) -> Scale | None:
    """Return the scale of a histogram, or None for other maps. Raises GptError."""
    numbers = {key: parse_number(value) for key, value in given.items() if value is not None}
    if type_ != "histogram":
        if numbers:
            raise GptError(f"{what}: '{next(iter(numbers))}' is for histograms", where)
        return None
    if [kind for _, kind in fields] not in (["u32"], ["u64"]) or capacity != 1:
        raise GptError(f"{what}: a histogram has one field, of type u32 or u64", where)
    if not numbers:
        return Scale()
    low, high, step = (numbers.get(key) for key in ("low", "high", "step"))
    if low is None or high is None or not step or high <= low or (high - low) % step or high >> 63:
        raise GptError(f"{what}: needs low, high and step, which divides the range between them", where)
    if (high - low) // step > MAX_BINS:
        raise GptError(f"{what}: more than {MAX_BINS} bins", where)
    if fields[0][1] == "u32" and high >> 32:
        raise GptError(f"{what}: 'high' is beyond a u32", where)
    return Scale(low, high, step)


def _lay_out_table(
    fields: tuple[Field, ...], size: int, capacity: int | None, what: str, where: str
) -> tuple[tuple[Field, ...], int, int]:
    """Return the fields of a table, its record size, and its stride. Both are the size of a slot. Raises
    GptError.
    """
    if size != layout([(field.name, field.type) for field in fields])[1]:
        raise GptError(f"{what}: 'size' is not for tables", where)
    if any(field.size < 4 for field in fields):
        raise GptError(f"{what}: the fields of a table have 4 or 8 bytes", where)
    if not 0 < sum(field.op == "key" for field in fields) <= MAX_KEY:
        raise GptError(f"{what}: the 'key' of a table is one field or {MAX_KEY}", where)
    placed, size = layout_slot([(f.name, f.type) for f in fields], {field.name: field.op for field in fields})
    if not capacity or capacity > MAX_SLOTS or capacity * size > MAX_TABLE:
        most = min(MAX_SLOTS, MAX_TABLE // size)
        raise GptError(f"{what}: a table has from 1 to {most} slots of {size} bytes, which 'cap' says", where)
    return placed, size, size


def make_map(
    name: str,
    what: str,
    where: str,
    fields: list[tuple[str, str]],
    *,
    level: Any,
    size: int,
    capacity: int | None,
    leader: Any = None,
    budget: Any = None,
    type: Any = "array",
    counts: Any = True,
    low: Any = None,
    high: Any = None,
    step: Any = None,
    ring: Any = None,
    **ops: Any,
) -> Map:
    """Make a map with these fields. Messages begin with `what` and `where`. Raises GptError for contradictions.

    `ops` has the names of the fields for `key`, and for each key of OPS.
    """
    leader = leader or ("all" if type != "array" else "active")
    placed, taken = layout(fields, _parse_ops(dict(fields), type, ops, what, where))
    if type == "table":
        placed, size, taken = _lay_out_table(placed, size, capacity, what, where)
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
    if leader != "all" and (type in ("histogram", "table") or (type == "total" and level == "thread")):
        raise GptError(f"{what}: a leader where every thread saves", where)
    if type == "array" and leader not in ("active", "all") and level == "thread":
        raise GptError(f"{what}: a leader where every thread saves", where)
    if leader == "all" and type == "array":
        raise GptError(f"{what}: leader 'all' is for totals", where)
    if not isinstance(counts, bool) or (not counts and type != "total"):
        raise GptError(f"{what}: 'counts' is true or false, of a total", where)
    if budget is not None and not parse_number(budget):
        raise GptError(f"{what}: budget '{budget}' is not a number of bytes", where)
    if budget is not None and capacity is not None:
        raise GptError(f"{what}: both a budget and a fixed capacity", where)
    if budget is not None and not MIN_BUDGET <= (parse_number(budget) or 0) <= MAX_BUDGET:
        raise GptError(f"{what}: a budget of {budget} bytes; it may be from {MIN_BUDGET} to {MAX_BUDGET}", where)
    if ring is not None and not 0 < (parse_number(ring) or 0) <= MOST_RING:
        raise GptError(f"{what}: ring '{ring}' is not a number of records from 1 to {MOST_RING}", where)
    if ring is not None and (type != "array" or level == "thread" or capacity is not None):
        raise GptError(f"{what}: a ring is an array of level warp or block, without 'cap'", where)
    if type == "total" and (capacity != 1 or any(SIZES[type_] < 4 for _, type_ in fields)):
        raise GptError(f"{what}: a total is one record of numbers of 4 or 8 bytes", where)
    scale = _parse_scale(fields, type, capacity, {"low": low, "high": high, "step": step}, what, where)
    line = int(where.rpartition(":")[2])
    counts = counts and not scale
    return Map(
        name, level, size, capacity, placed, leader, parse_number(budget), line, type, counts, scale, parse_number(ring)
    )
