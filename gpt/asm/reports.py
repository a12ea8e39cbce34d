"""What ptxas says: its report on each kernel, and its messages.

Messages are lines `ptxas FILE, line N; error : TEXT`, where its own name is that of its file. A line that a probe
brought into the text ends in a comment `//@ FILE:LINE`, its place in the probe's file, escaped as Python does;
a message about it names that place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gpt.asm.backend import Faults, Target

MODULE = "module.ptx"  # as ptxas is given it
MAX_LINES = 5  # errors of a module that are reported
MAX_TEXT = 300  # characters of one

_LINE = re.compile(rb"^\S+ (?:(.+?), line (\d+); )?(info|warning|error|fatal) *: (.*)$", re.MULTILINE)
_ENTRY = re.compile(r"Compiling entry function '(.*)' for '")
_PROPERTIES = re.compile(r"Function properties for (.*)")
_FRAME = re.compile(rb"^ +(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", re.MULTILINE)
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"\b(\d+)(?:\+(\d+))? bytes smem")
_ORIGIN = re.compile(rb"//@ (.+):(\d+)[ \t\r]*$")
_NOTE = b"(C7"  # on performance, such as C7514: wgmma is serialized
_EXTERN, _ABORTED = b"Unresolved extern", b"Ptx assembly aborted"


@dataclass(frozen=True)
class Report:
    """What `ptxas -v` says of an entry: bytes of its stack frame and of spills, registers, bytes of shared memory."""

    frame: int
    spills: int
    registers: int | None = None
    shared: int | None = None


_NOTHING = Report(0, 0)


def read_reports(output: bytes, relocatable: bool = False) -> dict[str, Report]:
    """What `-v` says of each entry. What is not understood is left out.

    Each entry has its own copy of the device functions that it calls, which are reported after it: what they spill
    is counted with it. In relocatable code they stand for themselves, and before the entries.
    """
    reports: dict[str, Report] = {}
    entry = name = ""
    found = sorted([*_LINE.finditer(output), *_FRAME.finditer(output)], key=lambda match: match.start())
    for match in found:
        own = reports.get(entry, _NOTHING)
        if match.re is _FRAME:
            frame, stores, loads = map(int, match.groups())
            if name and name == entry:
                reports[entry] = replace(own, frame=frame, spills=own.spills + stores + loads)
            elif entry in reports and not relocatable:
                reports[entry] = replace(own, spills=own.spills + stores + loads)
            name = ""
            continue
        text = match[4].decode("utf-8", "surrogateescape")
        if begun := _ENTRY.match(text):
            entry = begun[1]
        elif begun := _PROPERTIES.match(text):
            name = begun[1]
        elif (used := _USED.match(text)) and entry in reports:
            shared = _SHARED.search(text)
            size = sum(int(part or 0) for part in shared.groups()) if shared else 0
            reports[entry] = replace(own, registers=int(used[1]), shared=size)
    return reports


def find_faults(output: bytes, text: bytes, name: str, target: Target) -> Faults | None:
    """Why ptxas refused a module, None if it did not."""
    found = find_messages(output, text, name, target, (b"error", b"fatal"))
    return Faults(found) if found else None


def find_messages(
    output: bytes, text: bytes, name: str, target: Target, levels: tuple[bytes, ...]
) -> list[tuple[str, str]]:
    """The first messages of these levels, each once, with their places: in a probe's file if the line is a probe's.

    An `info` counts if it is a note on performance; the others are the report. That there were errors is left out.
    """
    found: dict[tuple[str, str], None] = {}
    lines: list[bytes] | None = None
    more = 0
    for file, number, level, fact in _LINE.findall(output):
        if level not in levels or fact.startswith(_ABORTED) or (level == b"info" and not fact.startswith(_NOTE)):
            continue
        if len(found) == MAX_LINES:
            more += 1
            continue
        if number and file != MODULE.encode():  # a `#line` of the module says so
            found[f"{name}: {shorten(file)}:{number.decode()}", shorten(fact)] = None
        elif number:
            lines = text.split(b"\n") if lines is None else lines
            found[_place(lines, int(number[:18]), name), shorten(fact)] = None
        else:
            advice = " (-c makes relocatable code)" if fact.startswith(_EXTERN) and level != b"warning" else ""
            found[name, f"for {target}: {shorten(fact)}{advice}"] = None
    if more:
        found[name, f"for {target}: {more} more of these"] = None
    return list(found)


def _place(lines: list[bytes], number: int, name: str) -> str:
    """Where a line comes from: a probe's file, or the module."""
    origin = _ORIGIN.search(lines[number - 1]) if 0 < number <= len(lines) else None
    if origin:
        return f"{origin[1].decode('unicode_escape', 'replace')}:{int(origin[2])}"
    return f"{name}:{number}"


def shorten(text: bytes) -> str:
    """The first line of something, not too long."""
    line = text.strip().partition(b"\n")[0].decode(errors="replace").strip()
    return (line if len(line) <= MAX_TEXT else line[:MAX_TEXT] + "...") or "no message"
