"""Find PTX text in a file or a program by its head, which gives the version and the target.

gpt/ptx parses the rest; a test compares the two. The patterns don't backtrack (their repetitions are possessive), so
malicious text, or C source with many comments, takes time in proportion to its size.

Programs in Rust or Julia, or with cudarc, have PTX as a constant in their data. In C, it ends with a NUL. In Rust, the
next constant follows, which is text as well. So a module extends from the comments before its head to the end of its
last complete directive (`;` or a closing brace). If there are only blanks and comments from there to a NUL or to the
end of the section, these belong to the module, too. Text that ends in the middle of a directive isn't listed as a
module, and neither is the head of a template without functions or variables.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpt.base.patterns import compiled
from gpt.formats.source import Source

_LINE = rb'#[ \t]*+(?:line\b)?+[ \t]*+\d++[ \t]++"[^"\n]*+"(?:[ \t]++\d++)*+'  # left by a preprocessor
_BLANKS = rb"(?>\s++|//[^\n]*+|/\*.*?\*/|%b)*+" % _LINE
_HEAD = compiled(
    rb"%b\.version\s++(\d{1,4})\.(\d{1,4})(?!\w)(?:%b\.target(?!\w)%b(sm_\d{1,4}[af]?))?+" % ((_BLANKS,) * 3),
    re.DOTALL,
)


class PtxTarget(NamedTuple):
    """The PTX version of a module, 8.5 as (8, 5), and the compute capability of its target, if it names one."""

    version: tuple[int, int]
    target: str | None


def find_head(text: bytes) -> PtxTarget | None:
    """Parse the head of a module, which may follow comments. Returns None if the text isn't PTX."""
    found = _HEAD.match(text)
    return PtxTarget((int(found[1]), int(found[2])), found[3].decode() if found[3] else None) if found else None


# PTX in a program

VERSION = b".version"
_START = compiled(
    rb"\.version\s++\d{1,4}\.\d{1,4}(?!\w)%b\.target(?!\w)%b(sm_\d{1,4}[af]?)(?:\s*+,\s*+\w++)*+" % ((_BLANKS,) * 2),
    re.DOTALL,
)
_SKIPPED = compiled(_BLANKS, re.DOTALL)
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f\x7f]")
_LINES = compiled(
    rb'\.(?:address_size\s++\d++|file\s++\d++\s++"[^"\n]*+"(?:\s*+,\s*+\d++){0,2}+)'
)  # text ends there, without a mark
_ITEM = compiled(
    rb"\.(?:entry|func|global|const|shared|extern|visible|weak|common|section|pragma|alias|(?:tex|sampler|surf)ref)(?!\w)"
)
_MARK = compiled(rb'//[^\n]*+|/\*(?s:.*?)\*/|"[^"\n]*+"|[{};]')
_NO_MODULE = b".section", b".pragma"  # a module needs more than these directives
FIRST, MOST = 1 << 12, 1 << 20  # bytes to read at once: few at first, because most modules are small
MAX_COMMENT = 1 << 12  # how far before a head to look for comments


class Text(NamedTuple):
    """A module of PTX in a file: where it begins and ends, and its target."""

    start: int
    end: int
    target: str


def _read_text(source: Source, offset: int, end: int) -> tuple[bytes, bool, int]:
    """Return the text from the head at `offset` on, whether another head ends it, and how many bytes were read.

    The text ends before the next head, before the first byte that can't be text, or at `end`. Raises TruncatedError.
    """
    text, block = bytearray(), FIRST
    while offset + len(text) < end:
        done = len(text)
        text += source.pread(offset + done, min(block, end - offset - done))
        other, head = _NO_TEXT.search(text, done), _find_start(text, max(1, done - block))
        if other or head:
            size = min(found.start() for found in (other, head) if found)
            return bytes(text[:size]), not other or size < other.start(), len(text)
        block = min(2 * block, MOST)
    return bytes(text), False, len(text)


def _find_start(text: bytearray, begin: int) -> re.Match[bytes] | None:
    while (begin := text.find(VERSION, begin)) >= 0:
        if found := _START.match(text, begin):
            return found
        begin += 1
    return None


def find_text(source: Source, offset: int, begin: int, end: int) -> tuple[Text | None, int]:
    """Return the module whose head is at `offset`, or None if there's no module, and how many bytes were read."""
    text, followed, read = _read_text(source, offset, end)
    head = _START.match(text)
    size = _find_end(text, head.end(), followed) if head else None
    if head is None or size is None:
        return None, read
    before = source.pread(begin := max(begin, offset - MAX_COMMENT), offset - begin)
    return Text(offset - _comments_before(before), offset + size, head[1].decode()), read


def _find_end(text: bytes, end: int, followed: bool) -> int | None:
    """Return the end of a module whose head ends at `end`. Return None if a directive is unfinished, or if none of them
    defines anything.

    Comments at the end belong to the module, unless another module follows (`followed`).
    """
    module = False
    while True:
        position = _skip(text, end)
        if line := _LINES.match(text, position):
            end = line.end()
        elif item := _ITEM.match(text, position):
            done = _find_item_end(text, position)
            if done is None:
                return None
            end, module = done, module or item[0] not in _NO_MODULE
        else:
            break
    if not module:
        return None
    return (
        position
        if position == len(text) and not followed
        else end + len(text[end:position]) - len(text[end:position].lstrip())
    )


def _find_item_end(text: bytes, position: int) -> int | None:
    depth = 0
    for mark in _MARK.finditer(text, position):
        if mark[0] == b"{":
            depth += 1
        elif mark[0] == b"}":
            depth -= 1
        if depth < 0:
            return None
        if depth == 0 and mark[0] in (b"}", b";"):
            after = _skip(text, mark.end())  # the initial value of a variable is in braces, and followed by a semicolon
            return after + 1 if mark[0] == b"}" and text[after : after + 1] == b";" else mark.end()
    return None


def _skip(text: bytes, position: int) -> int:
    found = _SKIPPED.match(text, position)
    return found.end() if found else position


def _comments_before(before: bytes) -> int:
    """Return the size of the line comments and blank lines at the end of these bytes."""
    size = 0
    for line in reversed(
        before[max((found.end() for found in _NO_TEXT.finditer(before)), default=0) :].splitlines(True)
    ):
        if line.strip() and not line.startswith(b"//"):
            break
        size += len(line)
    return size
