"""Parse the output of ptxas: its report about each kernel, and its messages.

A message is a line `ptxas FILE, line N; error : TEXT`, which begins with the name of the executable. Lines that a probe
has added to the code end with a comment `//@ FILE:LINE`, with escapes as in Python, which says where they're from in
the file of the probe. In messages about such a line, this location is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from gpt.asm.backend import Faults, Target

MODULE = "module.ptx"  # file name passed to ptxas
MAX_LINES = 5  # limit for the errors reported about a module
MAX_TEXT = 300  # characters per error

_LINE = re.compile(rb"^\S+ (?:(.+?), line (\d+); )?(info|warning|error|fatal) *: (.*)$", re.MULTILINE)
_ENTRY = re.compile(r"Compiling entry function '(.*)' for '")
_PROPERTIES = re.compile(r"Function properties for (.*)")
_FRAME = re.compile(rb"^ +(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", re.MULTILINE)
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"\b(\d+)(?:\+(\d+))? bytes smem")
_ORIGIN = re.compile(rb"//@ (.+):(\d+)[ \t\r]*$")
_NOTE = b"(C7"  # notes about performance, such as C7514: wgmma is serialized
_EXTERN, _ABORTED = b"Unresolved extern", b"Ptx assembly aborted"


@dataclass(frozen=True)
class Report:
    """The report of `ptxas -v` about an entry. All numbers except `registers` are bytes. `spills` is the sum of stores
    and loads.
    """

    frame: int
    spills: int
    registers: int | None = None
    shared: int | None = None


_NOTHING = Report(0, 0)


def read_reports(output: bytes, relocatable: bool = False) -> dict[str, Report]:
    """Return what `-v` reports about each entry. Lines of other forms are ignored.

    Each entry has copies of the device functions that it calls. ptxas reports about them after the entry, and their
    spills count as the entry's. In relocatable code, device functions are separate, and the reports about them come
    before those about entries.
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
    """Return the errors for which ptxas rejected a module, or None if its output has no errors."""
    found = find_messages(output, text, name, target, (b"error", b"fatal"))
    return Faults(found) if found else None


def find_messages(
    output: bytes, text: bytes, name: str, target: Target, levels: tuple[bytes, ...]
) -> list[tuple[str, str]]:
    """Return the first messages of these levels, without duplicates, each with its location in the module or in a
    probe's file.

    Messages of level `info` are part of the report, except for notes about performance. The line that says that
    assembly was aborted is left out.
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
        if number and file != MODULE.encode():  # it's from a `#line` or `.loc` in the module
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
    """Return where a line is from: a location in the file of a probe, or in the module."""
    origin = _ORIGIN.search(lines[number - 1]) if 0 < number <= len(lines) else None
    if origin:
        return f"{origin[1].decode('unicode_escape', 'replace')}:{int(origin[2])}"
    return f"{name}:{number}"


def shorten(text: bytes) -> str:
    """Return the first line of a text, cut off at MAX_TEXT characters."""
    line = text.strip().partition(b"\n")[0].decode(errors="replace").strip()
    return (line if len(line) <= MAX_TEXT else line[:MAX_TEXT] + "...") or "no message"
