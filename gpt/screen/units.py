"""Format numbers for people: sizes, counts, shares and durations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TIMES = (("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000))


def human(size: float) -> str:
    """Format a size with three digits, in the largest binary unit of which it has at least one."""
    size = round(size)
    value, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"]
    while abs(value) >= 1023.5 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:,.0f} {units[0]}" if units[0] == "B" or 999.5 <= abs(value) < 1024 else f"{value:.3g} {units[0]}"


def human_count(number: float, sign: str = "-") -> str:
    """Format a number with thousands separators, or with three digits if it's below 1,000 or absurdly large."""
    number = round(number) if 999.5 <= abs(number) < 10**12 else number
    return f"{number:{sign},}" if isinstance(number, int) and abs(number) < 10**12 else f"{number:{sign}.3g}"


def exact_count(number: float) -> str:
    """Format a number with all digits, since clocks and addresses differ only in the last ones."""
    return f"{round(number):,}" if abs(number) >= 1000 else human_count(number)


def amount(number: int, noun: str) -> str:
    """Return `1 call`, `1,000 calls`, `2 copies`, `2 replays`, `2 launches`."""
    changes = noun[-1] == "y" and noun[-2] not in "aeiou"
    plural = f"{noun[:-1]}ies" if changes else f"{noun}es" if noun.endswith(("ch", "s", "x")) else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def percent(part: int, whole: int) -> str:
    """Format a ratio as a percentage, or `-` if the whole is 0."""
    if not whole:
        return "-"
    return human_share(100 * part / whole)


def human_share(share: float) -> str:
    """Format a percentage."""
    return f"{share:.1f} %" if abs(share) < 10**5 else f"{share:.3g} %"


def kept_share(kept: int, dropped: int, noun: str = "record", blocks: tuple[int, int] | None = None) -> str:
    """Return the percentage of records that probes kept, and from which blocks: the first and the last. 100 and 0 % are
    only used if they're exact.
    """
    share = 100 * kept / (kept + dropped) if kept + dropped else 100.0
    text = "0.0" if not kept else f"{min(share, 99.9) if dropped else share:.1f}" if share >= 0.1 else f"{share:.2g}"
    kept_ = f"{text} % of {amount(kept + dropped, noun)} {'was' if kept + dropped == 1 else 'were'} kept"
    if blocks is None:
        return kept_
    first, last = blocks
    return f"{kept_}, from block{f's {first:,} to {last:,}' if first < last else f' {first:,}'}"


def human_time(ns: float) -> str:
    """Format a duration with three digits: `12ns`, `3.14ms`, `86400s`."""
    size = abs(ns)
    unit, scale = next((u for u in TIMES if size < 999.5 * u[1]), TIMES[-1])
    value, size = ns / scale, size / scale
    digits = 0 if unit == "ns" or size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{value:.{digits}f}{unit}"


UNITS: dict[str, Callable[[Any], str]] = {  # for columns of answers
    "": human_count,
    "ns": human_time,
    "bytes": human,
    "cycles": human_count,
    "%": human_share,
    "id": str,
    "address": hex,
}
