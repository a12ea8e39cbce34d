"""Find the lines of tables, keys and multi-line strings in a TOML file. Messages need them, and tomllib doesn't keep
them.
"""

from __future__ import annotations

import re

from gpt.base.patterns import compiled

_PIECE = compiled(
    r"""(?P<text> \"{3}(?:[^"\\]++|\\.|"{1,2}(?!"))*+\"{3,5} | '{3}(?:[^']++|'{1,2}(?!'))*+'{3,5})
    | (?P<string> "(?:[^"\\\n]++|\\.)*+" | '[^'\n]*+')
    | (?P<comment> \#[^\n]*+)
    | (?P<header> (?<![^\n]) [ \t]*+ \[ [^\[\]\n]++ \])
    | (?P<key> (?<![^\n]) [ \t]*+ (?: [\w.-]++ | "[^"\n]*+" ) [ \t]*+ = [ \t]*+ (?P<open> (?:\"{3}|'{3})\n | ))""",
    re.VERBOSE | re.DOTALL,
)
_HEADER = compiled(r"[\[\]\s\"']")


def lines_of(source: str) -> dict[str, tuple[int, bool]]:
    """Return the line of each table (`probe.count`) and key (`probe.count.before`). For multi-line text, it's the first
    line.

    The flag says whether the value of a key is a multi-line string, whose lines are lines of the file.
    """
    found: dict[str, tuple[int, bool]] = {}
    table, line, at = "", 1, 0
    position = 0
    while piece := _PIECE.search(source, position):
        line += source.count("\n", at, piece.start())
        at = piece.start()
        position = piece.end()
        if piece["header"]:
            table = _HEADER.sub("", piece["header"])
            found.setdefault(table, (line, False))
        elif piece["key"]:
            name = piece["key"].partition("=")[0].strip().strip("\"'")
            opened = piece["open"]
            is_text = bool(opened) or source.startswith(('"' * 3, "'" * 3), position)
            found.setdefault(f"{table}.{name}" if table else name, (line + bool(opened), is_text))
            position -= len(opened)
    return found
