"""Parse positions, and match them against instructions. gpt/probe/plan/function.py finds where they are in a function.

A position is `kernel`, an opcode with modifiers, `func:NAME`, `line:FILE:N` or `label:NAME`. Several positions are
joined by `:`. An opcode position matches an instruction if its first word is the opcode, and every other word is one of
the modifiers, in any order: `ld.global` matches `ld.volatile.global.v4.u32`. Names and words may be globs.

There are three special cases. A load without a state space is generic, and only the word `generic` matches its space.
`cp.async` matches only plain copies: bulk copies, and the instructions that wait for copies, must be named in full, and
so must `bar.warp.sync`, which isn't a barrier for the block. A modifier with `::` also matches the part before it:
`shared` matches `shared::cta`.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from gpt.base.errors import MalformedError
from gpt.probe.model import Position

_WORD = re.compile(r"[\w*?\[\]!$-]+(?:::[\w*?\[\]!$-]+)*", re.ASCII)
_LINE = re.compile(r"[0-9]{1,9}")
_ARGUMENTS = {"func": 1, "label": 1, "line": 2}
RESERVED = {"kernel", *_ARGUMENTS}  # these aren't opcodes
_SPACED = {"ld", "st", "atom", "red", "prefetch"}  # opcodes that may name a state space; without one, they're generic
_SPACES = ("global", "shared", "local", "const", "param")
_OTHERS = {  # modifiers that make an opcode a different instruction, so positions must name them
    "cp": {"bulk", "commit_group", "wait_group", "wait_all", "mbarrier", "prefetch"},
    "bar": {"warp"},
}


def parse_positions(text: str, where: str = "") -> tuple[Position, ...]:
    """Parse `ld.global:st.global`, `func:dot*`, `line:matmul.cu:42`, ... Raises MalformedError."""
    parts = [part.strip() for part in re.split(r"(?<!:):(?!:)", text)]
    found: list[Position] = []
    while parts:
        word, *parts = parts
        count = _ARGUMENTS.get(word, 0)
        arguments, parts = parts[:count], parts[count:]
        if not word or len(arguments) < count or not all(arguments):
            raise MalformedError(f"position '{text}' lacks a part", where)
        if count:
            if word == "line" and not _LINE.fullmatch(arguments[1]):
                raise MalformedError(f"position '{text}': '{arguments[1]}' is not a line", where)
            found.append(Position(word, tuple(arguments)))
        elif word == "kernel":
            found.append(Position("kernel"))
        else:
            words = tuple(word.lstrip(".").split("."))
            if not all(map(_WORD.fullmatch, words)):
                raise MalformedError(f"position '{word}' is not an opcode with modifiers", where)
            found.append(Position("opcode", words))
    return tuple(dict.fromkeys(found))


def matches(position: Position, head: str) -> bool:
    """Return whether an opcode position matches an opcode with its modifiers."""
    first, *wanted = position.words
    opcode, *modifiers = head.split(".")
    names = [opcode, *modifiers[:1]] if opcode == "wmma" else [opcode]  # wmma.mma is an mma
    if not any(fnmatchcase(name, first) for name in names):
        return False
    moves = opcode in _SPACED or head.startswith(("wmma.load.", "wmma.store."))
    if moves and not any(modifier.startswith(_SPACES) for modifier in modifiers):
        if "generic" not in wanted and opcode != "wmma":
            return False
        wanted = [word for word in wanted if word != "generic"]
    others = _OTHERS.get(opcode, set())
    if any(m in others and m not in wanted for m in modifiers):
        return False
    return all(
        any(fnmatchcase(modifier, word) or modifier.startswith(word + "::") for modifier in modifiers)
        for word in wanted
    )
