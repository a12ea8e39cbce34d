"""Parse what bpftrace prints into events, line by line: JSON (`bpftrace -f json`) or text, complete or truncated.

In JSON every line is one object, so a program can't forge lines with the names of its kernels. In text, a name may have
newlines: it goes on to the tag that `begin` announces, and a program can't know that. So nothing within a name counts,
not even `Lost 5 events`, which bpftrace prints without a tag. A recording whose first line isn't JSON has none later.
Lines that make no sense are counted, including the last one if the input ends within it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

MAX_LINE = 1 << 20  # bytes; the list of functions is the longest line
LOST = re.compile(r"Lost (\d+) events")
ENTRY = re.compile(r"@call\d+_(\w+)\[(\d+), (\d+), (\d+)\]: \((\d+(?:, -?\d+)*)\)")
KINDS = {"machine": 3, "beat": 1, "exit": 2, "end": 1}  # words of simple lines
QUIET = "Attaching "
MAX_NAME = 1 << 10  # bytes of a line with a part of a name


class Call(NamedTuple):
    """A call that returned. With `kernel` it's a function of the system's kernel, not of the driver."""

    kernel: bool
    pid: int
    tid: int
    start: int
    duration: int
    result: int
    symbol: str
    fields: dict[str, int]


class NamePart(NamedTuple):
    """A part of the name that a call looks up."""

    pid: int
    tid: int
    start: int
    part: int
    text: str


class UnderWay(NamedTuple):
    """A call that hasn't returned: the number of its `function`, and the values stored when it began."""

    pid: int
    tid: int
    function: int
    start: int
    values: tuple[int, ...]


class Note(NamedTuple):
    """The words of a line `begin`, `machine`, `argv`, `functions`, `library`, `beat`, `exit` or `end`."""

    kind: str
    words: list[str]


class Lost(NamedTuple):
    """Events that bpftrace had no room for."""

    events: int


class Strange(NamedTuple):
    """A line that makes no sense."""

    line: str


Event = Call | NamePart | UnderWay | Note | Lost | Strange


def iter_events(lines: Iterable[bytes]) -> Iterator[Event]:
    """Yield the events of lines; one without a newline was truncated, and is Strange."""
    tag: str | None = None
    is_json: bool | None = None  # not known yet
    name = ""  # the beginning of a name with newlines
    for raw in lines:
        whole, line = raw.endswith(b"\n"), name + raw.decode(errors="surrogateescape").removesuffix("\n")
        if not line.strip():
            continue
        is_json = line.startswith("{") if is_json is None else is_json
        name = f"{line}\n" if whole and not is_json and _goes_on(line, tag) else ""
        if name:
            continue
        if not whole:
            found: Iterable[Event] = [Strange(line)]
        else:
            found = _of_json(line, tag) if is_json and line.startswith("{") else _of_text(line, tag)
        for event in found:
            if tag is None and isinstance(event, Note) and event.kind == "begin":
                tag = event.words.pop()
            yield event
    if name:
        yield Strange(name)


def _goes_on(line: str, tag: str | None) -> bool:
    """Return whether a line is a name that continues in the next line."""
    return line.startswith(f"name {tag} ") and not line.endswith(f" {tag}") and len(line) < MAX_NAME


def _of_json(line: str, tag: str | None) -> Iterator[Event]:
    try:
        found = json.loads(line)
        kind, data = found["type"], found.get("data")
        if kind == "printf":
            yield from _of_line(data.removesuffix("\n"), tag)
        elif kind == "lost_events":
            yield Lost(_count(data["events"]))
        elif kind == "map":
            yield from _of_map(data)
        elif kind not in ("attached_probes", "time", "join", "syscall"):
            yield Strange(line)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        yield Strange(line)


def _of_map(data: dict[str, Any]) -> Iterator[Event]:
    for name, entries in data.items():
        if not name.startswith("@call"):
            continue
        for key, values in entries.items():
            pid, tid, function = (int(word) for word in key.split(","))
            start, *rest = values
            yield UnderWay(_id(pid), _id(tid), _count(function), _count(start), tuple(map(_word, rest)))


def _of_text(line: str, tag: str | None) -> Iterator[Event]:
    if found := LOST.fullmatch(line):
        try:
            yield Lost(_count(int(found[1])))
        except ValueError:
            yield Strange(line)
    elif (found := ENTRY.fullmatch(line)) and found[1] == tag:
        start, *values = found[5].split(", ")
        try:
            pid, tid, function, began = (_count(int(word)) for word in (*found.groups()[1:4], start))
            yield UnderWay(_id(pid), _id(tid), function, began, tuple(_word(int(word)) for word in values))
        except ValueError:
            yield Strange(line)
    elif not line.startswith(QUIET):
        yield from _of_line(line, tag)


def _of_line(line: str, tag: str | None) -> Iterator[Event]:
    try:
        yield _parse(line, tag)
    except (ValueError, IndexError):
        yield Strange(line)


def _parse(line: str, tag: str | None) -> Event:
    kind, _, rest = line.partition(" ")
    if kind == "begin" and tag is None:
        words = rest.split()
        if len(words) != 3:
            raise ValueError
        return Note(kind, words)
    said, _, rest = rest.partition(" ")
    if said != tag:
        raise ValueError
    if kind in ("call", "kernel"):
        words = rest.split()
        pid, tid, start, duration = (_count(int(word)) for word in words[:4])
        fields = {}
        for word in words[6:]:
            name, _, value = word.partition("=")
            fields[name] = _word(int(value, 16))
        return Call(kind == "kernel", _id(pid), _id(tid), start, duration, _signed(int(words[4])), words[5], fields)
    if kind == "name":
        pid_, tid_, start_, part, text = rest.split(" ", 4)
        if not text.endswith(f" {tag}"):
            raise ValueError
        return NamePart(int(pid_), int(tid_), int(start_), int(part), text.removesuffix(f" {tag}"))
    if kind in KINDS and len(words := rest.split()) == KINDS[kind]:
        return Note(kind, words)
    if kind == "argv":
        return Note(kind, rest.split(" ", 1))
    if kind in ("functions", "library"):
        return Note(kind, [rest])
    raise ValueError


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 64:
        raise ValueError
    return value


def _id(value: int) -> int:
    """Return the id of a process or thread."""
    if not 0 <= value < 1 << 31:
        raise ValueError
    return value


def _word(value: Any) -> int:
    """Return a number as unsigned 64 bits; bpftrace prints some with a sign."""
    if type(value) is not int:
        raise ValueError
    return value & (1 << 64) - 1


def _signed(value: int) -> int:
    """Return the C int in a register, whose upper half means nothing."""
    return ((value & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
