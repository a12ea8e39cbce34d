"""The tokens of PTX. This is the only table of what they look like. The patterns of the scanner are built from it, and
everything that reads token by token, including the grammar, uses TOKEN.

ptxas decides what a token is: `.u$32` is a single word, `>=` is always one operator, and blanks are ASCII. The patterns
are meant for re.ASCII, and possessive: they don't backtrack.
"""

from __future__ import annotations

import re

from gpt.base.patterns import compiled

LINE_COMMENT = r"//[^\n]*+"
COMMENT = rf"{LINE_COMMENT}|/\*(?s:.*?)\*/"
LINE = r'#[ \t]*+(?:line\b)?+[ \t]*+\d++[ \t]++"[^"\n]*+"(?:[ \t]++\d++)*+'  # left by preprocessors; like a comment
IDENTIFIER = r"[A-Za-z_$][\w$]*+"
REGISTER = r"%[\w$]++"
NAME = rf"(?:{IDENTIFIER}|{REGISTER})"
OPCODE = r"[A-Za-z_]\w*+(?!\$)"  # or a name
WORD = r"\.[\w$]++(?:::[\w$]++)*+"
MODIFIERS = rf"(?:\s*+{WORD})*+"
GUARD = rf"@\s*+!?+\s*+{NAME}\s*+"
NUMBER = (
    r"(?:0[fF][\dA-Fa-f]{8}|0[dD][\dA-Fa-f]{16}|0[xX][\dA-Fa-f]++U?+|0[bB][01]++U?+"
    r"|\d++(?:\.\d*+)?+(?:[eE][-+]?+\d++)?+U?+)"
)
FRACTION = r"\.\d++[eE][-+]\d++(?![\w$])"
DECIMAL = r"\.\d++(?:[eE]\d++)?+(?![\w$]|::)"  # a fraction, or a word where one is possible
STRING = r'"[^"]*+"'
ARGUMENT = r"(?:\s*+\((?:[^();{}]|\([^();{}]*+\))*+\)|\s*+\[\s*+\d*+\s*+\]|\s++\d++(?![\w.]))?+"  # a specifier's
RETURNS = r"\([^(){};]*+(?:\([^(){};]*+(?:\([^(){};]*+\)[^(){};]*+)*+\)[^(){};]*+)*+\)"  # the results of a function
DWARF = r"@@DWARF[^\n]*+"
MARK = r"<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%<>&|^?:!~=@,;(){}\[\]]"

_KINDS = {
    "OPCODE": OPCODE,
    "NAME": NAME,
    "FRACTION": FRACTION,
    "DECIMAL": DECIMAL,
    "WORD": WORD,
    "NUMBER": NUMBER,
    "STRING": STRING,
    "DWARF": DWARF,
    "MARK": MARK,
    "BAD": r"\S",
}
# Splits a skeleton, in which comments are blank, into tokens. The last group is the kind; blanks at the end have no
# group.
TOKEN = compiled(r"\s*+(?:" + "|".join(f"(?P<{kind}>{form})" for kind, form in _KINDS.items()) + r"|\Z)", re.ASCII)
TEXT = compiled("|".join(_KINDS.values()), re.ASCII)  # the same without kinds, for findall
