"""Split a PTX module into items, and functions into statements, using only regular expressions.

The scanner works on a copy of the text in which comments and the contents of strings are blank, so patterns can ignore
them, and offsets stay valid. The patterns don't backtrack (possessive repetition), and stop at a depth of MAX_NESTING
braces, so any text takes linear time.

The syntax is what ptxas accepts. It isn't documented, so we found it by trial. Strings have no escapes and may extend
over several lines. `.version`, `.target`, `.address_size`, `.file` and `.loc` end without a semicolon. An instruction
may extend over several lines, and a line may have several instructions. The attributes of a function, between `)` and
`{`, may include a `.pragma` with its semicolon. A preprocessor's `# 3 "name"` and `#line 3 "name"` count as blanks
anywhere. A dot needs no blank before it, and can't be followed by one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from operator import itemgetter
from typing import NamedTuple

from gpt.base.errors import MalformedError
from gpt.base.patterns import compiled
from gpt.ptx import tokens
from gpt.ptx.types import integer

MAX_NESTING = 32  # depth of braces; compilers need only a few
MAX_ITEMS = 1 << 18  # functions, variables and directives in a module; the maximum that we've seen is 2,600

NAME = compiled(rf"(?<![\w$%.]){tokens.NAME}", re.ASCII)
_NAME, _WORD = tokens.NAME, tokens.WORD
_TORN = {'"': "string", "/*": "comment"}
_QUOTED = compiled(rf'{tokens.STRING}|{tokens.COMMENT}|{tokens.LINE}|"|/\*', re.ASCII)


def _block(inner: str) -> str:
    block = rf"\{{{inner}\}}"
    for _ in range(MAX_NESTING - 1):
        block = rf"\{{{inner}(?:{block}{inner})*+\}}"
    return block


_VALUE = r"\{[^;{}]*+(?:\{[^;{}]*+(?:\{[^;{}]*+(?:\{[^;{}]*+\}[^;{}]*+)*+\}[^;{}]*+)*+\}[^;{}]*+)*+\}"  # 4 dimensions
TO_SEMICOLON = rf"[^;{{}}]*+(?:{_VALUE}[^;{{}}]*+)*+;"
_SPECIFIER = (
    rf"(?!\.(?:entry|func|section|version|target|address_size|file|alias|pragma)\b){_WORD}{tokens.ARGUMENT}\s*+"
)

_BRACE = compiled(r"[{}]")
_VERSION = compiled(r"\.version\s+(\d{1,4})\.(\d{1,4})(?!\w)", re.ASCII)
_TARGET = compiled(r"\.target\s+sm_(\d{1,4})", re.ASCII)
_LOC = compiled(r"\.loc\s+(\w{1,9})\s+(\w{1,9})\b", re.ASCII)
_FILE = compiled(r'\.file\s+(\d{1,9})\s*"([^"]*)"', re.ASCII)
_TORN_ITEM = [f"torn{number}" for number in range(1, 6)]
_COUNT = r"(?:0[xX][\dA-Fa-f]++|\d++)"
_POSITION = rf"\s++{_COUNT}\s++{_COUNT}(?:\s++{_COUNT})?+"
_STATEMENT = compiled(
    rf"""\s*+(?:
      (?P<guard>{tokens.GUARD})?+ (?P<opcode>{tokens.OPCODE}{tokens.MODIFIERS})
        (?![\w$.]|\s*+:(?!:)) {TO_SEMICOLON}
    | (?P<label> {_NAME}) \s*+ : (?!:)(?!\s*+\.(?:callprototype|branchtargets|calltargets)\b)
    | (?P<named> {_NAME}) \s*+ : \s*+ (?P<targets>{_WORD}) [^;{{}}]*+ ;
    | (?P<loc>\.loc){_POSITION}
        (?:\s*+,\s*+function_name\s++[^\s,]++(?:\s*+\+\s*+\d++)?+\s*+,\s*+inlined_at{_POSITION})?+
    | (?P<file>\.file)\s++\d++\s*+{tokens.STRING}(?:\s*+,\s*+\w++)*+
    | (?P<dwarf>@@DWARF)[^\n]*+
    | (?P<directive>{_WORD}) {TO_SEMICOLON}
    | (?P<open>\{{)
    | (?P<close>\}})
    | (?P<bad>\S)
    | \Z)""",
    re.ASCII | re.VERBOSE,
)
_GUARD, _OPCODE = (_STATEMENT.groupindex[name] for name in ("guard", "opcode"))
_NEXT_NAME = compiled(  # in the text after a declaration's first name
    rf"(?:[^,;(){{}}\[\]]++|\((?:[^()]++|\([^()]*+\))*+\)|\[[^\]]*+\]|{_VALUE})*+,\s*+({_NAME})", re.ASCII
)
_SHOWN = compiled(r"\.?[\w$%]++|\S", re.ASCII)  # the name of an item, or text to show in a message


class Item(NamedTuple):
    """A piece of a module: text[start:end].

    `kind` is entry or func (then `body` is the offset of the opening brace, or 0 for a prototype), variable, section,
    prototype, or the name of a directive without its dot. `names` are the names that the item defines: one function, or
    one or more variables.
    """

    kind: str
    names: tuple[str, ...]
    start: int
    end: int
    body: int = 0

    @property
    def name(self) -> str:
        """The first name, or an empty string."""
        return self.names[0] if self.names else ""


class Statement(NamedTuple):
    """A statement in the body of a function: text[start:end].

    `kind` is instruction, label, directive, `{` or `}`. `head` is the opcode with its modifiers (`ld.global.v4.u32`),
    the name of the label, or the directive with its dot. `guard` is the text of the guard (`@!%p1`), or empty.
    """

    kind: str
    head: str
    guard: str
    start: int
    end: int


@cache
def _item() -> re.Pattern[str]:
    """Compile the pattern of an item. That takes a while, and only modules have items.

    Once the beginning of an alternative has matched, the others aren't tried. `torn` matches if the end is missing.
    """
    return compiled(
        rf"""\s*+(?:
          (?P<function> (?:\.(?:visible|extern|weak|common)\b\s*+){{0,9}}+ \.(?P<kind>entry|func)\b (?:
            \s*+ (?:{_SPECIFIER}){{0,12}}+ (?:{tokens.RETURNS}\s*+)?+ (?P<fname>{_NAME})
            (?:[^{{}};.]++|\.(?!pragma\b)|\.pragma\b[^{{}};]*+;)*+ (?:; | (?P<body>{_block("[^{}]*+")})) | (?P<torn1>)))
        | (?P<section> \.section\b (?:\s*+ (?P<sname>\.?[\w$.]++) \s*+ \{{[^{{}}]*+\}} | (?P<torn2>)))
        | (?P<line> \.(?:version\s++\d++(?:\.\d++)?+ | target\s++\w++(?:\s*+,\s*+\w++)*+ | address_size\s++\w++(?!\.\d)
            | file\s++\d++\s*+{tokens.STRING}(?:\s*+,\s*+\w++)*+) | {tokens.DWARF})
        | (?P<named> (?:\.(?P<alias>alias)\b\s*+ | (?={_NAME}\s*+:\s*+\.callprototype\b))
            (?:(?P<subject>{_NAME}) [^;{{}}]*+; | (?P<torn3>)))
        | (?P<pragma> \.pragma\b (?:[^;{{}}]*+; | (?P<torn4>)))
        | (?P<variable> (?:{_SPECIFIER}){{1,12}}+ (?P<vname>{_NAME}) (?:(?P<rest>{TO_SEMICOLON}) | (?P<torn5>)))
        | (?P<other> \.\w++[^\n;{{}}]*+;?+)
        | (?P<bad> \S)
        | \Z)""",
        re.ASCII | re.VERBOSE,
    )


@dataclass(frozen=True)
class Module:
    """A module that has been scanned. In messages, it's called `name`. `skeleton` is the text in which comments and
    strings are blank.

    If this is part of another module, `pieces` map offsets here to offsets there, and messages have locations in the
    other module.
    """

    name: str
    text: str
    skeleton: str
    items: tuple[Item, ...]
    whole: Module | None = None
    pieces: tuple[tuple[int, int], ...] = ()

    @property
    def version(self) -> tuple[int, int]:
        """The `.version`: 8.5 is (8, 5). It's (0, 0) if there's none. Raises MalformedError."""
        item = next((item for item in self.items if item.kind == "version"), None)
        if item is None:
            return 0, 0
        found = _VERSION.match(self.skeleton, item.start)
        if not found:
            raise self.malformed(item.start, "no version:")
        return int(found[1]), int(found[2])

    @property
    def target(self) -> int:
        """The `.target`: sm_90a is 90. It's 0 if there's none."""
        found = _TARGET.search(self.skeleton)
        return int(found[1]) if found else 0

    @property
    def entries(self) -> list[Item]:
        """The kernels with a body, in order."""
        return [item for item in self.items if item.kind == "entry" and item.body]

    @property
    def functions(self) -> list[Item]:
        """The kernels and device functions with a body, in order."""
        return [item for item in self.items if item.body]

    @cached_property
    def aliases(self) -> dict[str, str]:
        """For each name that `.alias` defines, the function that it stands for."""
        named = (NAME.findall(self.skeleton, item.start, item.end) for item in self.items if item.kind == "alias")
        return {names[0]: names[1] for names in named if len(names) > 1}

    def find(self, name: str) -> Item | None:
        """Return the function with this name if it has a body."""
        return next((item for item in self.functions if item.name == name), None)

    def source(self, part: Item | Statement) -> str:
        """Return the text of an item or statement."""
        return self.text[part.start : part.end]

    def statements(self, function: Item) -> list[Statement]:
        """Return the statements in the body of a function, without its own braces. Raises MalformedError."""
        return self.cut(function.body + 1, function.end - 1) if function.body else []

    def cut(self, start: int, end: int) -> list[Statement]:
        """Return the statements between two offsets."""
        result: list[Statement] = []
        heads: dict[str, str] = {}
        add, known, make = result.append, heads.get, tuple.__new__
        for found in _STATEMENT.finditer(self.skeleton, start, end):
            if found.lastindex == _OPCODE:  # most are: a kernel has thousands of instructions with a few dozen opcodes
                guard, text = found.group(_GUARD, _OPCODE)
                head = known(text)
                if head is None:
                    head = heads[text] = "".join(text.split())
                if guard:
                    add(Statement("instruction", head, guard.rstrip(), found.start(_GUARD), found.end()))
                else:
                    add(make(Statement, ("instruction", head, "", found.start(_OPCODE), found.end())))
                continue
            kind = found.lastgroup
            if kind == "label":
                add(Statement(kind, found[kind], "", found.start(kind), found.end()))
            elif kind == "targets":
                add(Statement("directive", found[kind], "", found.start("named"), found.end()))
            elif kind in ("open", "close"):
                add(Statement(found[kind], "", "", found.end() - 1, found.end()))
            elif kind == "bad":
                raise self.malformed(found.start(kind))
            elif kind:  # None stands for blanks at the end
                add(Statement("directive", found[kind], "", found.start(kind), found.end()))
        return result

    def where(self, offset: int) -> str:
        """Return an offset as NAME:LINE:COLUMN. Both numbers begin with 1."""
        if self.whole:
            return self.whole.where(self._in_whole(offset))
        line = self.text.count("\n", 0, offset) + 1
        return f"{self.name}:{line}:{offset - self.text.rfind(chr(10), 0, offset)}"

    def line(self, offset: int) -> int:
        """Return the line of an offset, counted from 1."""
        if self.whole:
            return self.whole.line(self._in_whole(offset))
        return bisect_right(self._lines, offset)

    def _in_whole(self, offset: int) -> int:
        here, there = self.pieces[bisect_right(self.pieces, offset, key=itemgetter(0)) - 1]
        return there + offset - here

    @cached_property
    def _lines(self) -> list[int]:
        return [0, *(found.end() for found in re.finditer("\n", self.text))]

    @cached_property
    def files(self) -> dict[int, str]:
        """The paths of the `.file` directives by their numbers."""
        found: dict[int, str] = {}
        for item in self.items:
            if item.kind == "file" and (entry := _FILE.match(self.source(item))):
                found[int(entry[1])] = entry[2]
        return found

    def loc(self, statement: Statement) -> tuple[int, int] | None:
        """Return the file number and line number in a `.loc`, or None if either has more than nine digits."""
        found = _LOC.match(self.skeleton, statement.start)
        file, line = (integer(text) for text in found.groups()) if found else (None, None)
        return None if file is None or line is None else (file, line)

    def malformed(self, offset: int, fact: str = "unexpected") -> MalformedError:
        """Return the error for text that isn't a statement or an item, or has no end."""
        word = _SHOWN.search(self.skeleton, offset)
        return self.fault(offset, f"{fact} '{word[0] if word else 'end'}'")

    def fault(self, offset: int, fact: str) -> MalformedError:
        """Return an error with its place."""
        return MalformedError(f"PTX: {fact}", self.where(offset))


def scan_module(data: bytes, name: str = "PTX") -> Module:
    """Split a module into items. Raises MalformedError with line and column if the text is invalid."""
    module = unscanned(data.rstrip(b"\0").decode("latin-1"), name)
    return replace(module, items=tuple(_items(module)))


def scan_statements(text: str, name: str = "PTX") -> tuple[Module, list[Statement]]:
    """Split text that consists of statements, as a module without items. Raises MalformedError."""
    module = unscanned(text, name)
    return module, module.cut(0, len(text))


def unscanned(text: str, name: str = "PTX") -> Module:
    """Make a module without items from a text. Raises MalformedError if a string or a comment has no end."""
    return Module(name, text, blank(text, name), ())


def find_name(skeleton: str, name: str, start: int, end: int) -> int:
    """Return the first offset of a name between two others; the name must be there."""
    return next(found.start() for found in NAME.finditer(skeleton, start, end) if found[0] == name)


def blank(text: str, name: str = "PTX") -> str:
    """Replace comments, `#line`s and the contents of strings with spaces. Raises MalformedError."""

    def spaces(found: re.Match[str]) -> str:
        whole = found[0]
        if whole in _TORN:
            raise Module(name, text, "", ()).fault(found.start(), f"{_TORN[whole]} without end")
        return '"' + " " * (len(whole) - 2) + '"' if whole[0] == '"' else " " * len(whole)

    return _QUOTED.sub(spaces, text)


def _nesting(skeleton: str, start: int) -> int:
    """Return the greatest depth of braces, from an offset to the end of the first pair."""
    depth = most = 0
    for found in _BRACE.finditer(skeleton, start):
        depth += 1 if found[0] == "{" else -1
        most = max(most, depth)
        if depth <= 0:
            break
    return most


def _items(module: Module) -> Iterator[Item]:
    skeleton = module.skeleton
    for count, found in enumerate(_item().finditer(skeleton)):
        group = next((group for group in _GROUPS if found.start(group) >= 0), None)
        if group is None:  # blanks at the end
            continue
        start, end = found.span(group)
        if count >= MAX_ITEMS:
            raise module.malformed(start, f"over {MAX_ITEMS} functions, variables and directives:")
        if group == "bad" or any(found.start(torn) >= 0 for torn in _TORN_ITEM):
            if group == "function" and _nesting(skeleton, start) > MAX_NESTING:
                raise module.fault(start, f"braces nested more than {MAX_NESTING} deep")
            raise module.malformed(start, "unexpected" if group == "bad" else "no end to")
        match group:
            case "function":
                yield Item(found["kind"], (found["fname"],), start, end, max(found.start("body"), 0))
            case "variable":
                yield Item("variable", (found["vname"], *_more_names(found["rest"])), start, end)
            case "section":
                yield Item("section", (found["sname"],), start, end)
            case "named":
                yield Item("alias" if found["alias"] else "prototype", (found["subject"],), start, end)
            case _:
                word = _SHOWN.match(skeleton, start)
                yield Item(word[0].lstrip(".") if word else "", (), start, end)


_GROUPS = ("variable", "function", "line", "section", "pragma", "named", "other", "bad")


def _more_names(rest: str) -> Iterator[str]:
    """Yield the names in a declaration after the first one."""
    if "," in rest:
        at = 0
        while found := _NEXT_NAME.match(rest, at):
            yield found[1]
            at = found.end()
