"""Find the faces of instructions in a module. Instructions that look alike except for slots are parsed and bound once
(gpt/probe/face.py).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from gpt.base.patterns import compiled
from gpt.probe.face import FIRST_SLOT, SLOTS, Face
from gpt.probe.operands import bind
from gpt.ptx import tokens
from gpt.ptx.quick import parse_instruction

_GOES = "|".join(rf"(?<=\bbra{uni}[ \t]{{{blanks}}})" for uni in ("", r"\.uni") for blanks in (1, 2))
_PARTS = compiled(  # the parts that become slots
    rf"({tokens.REGISTER}|(?<=\+)-?+\d++(?=\])|(?:{_GOES}){tokens.IDENTIFIER})", re.ASCII
)


class Shapes:
    """Maps the shapes of a module's instructions to their faces."""

    def __init__(self) -> None:
        self._found: dict[str, Face] = {}

    def find(self, text: str, types: Mapping[str, str | None]) -> tuple[Face, list[str]]:
        """Return the face of an instruction, and the values for its slots. Raises MalformedError without a location.

        Special registers and variables aren't in `types`, so they don't become slots.
        """
        parts = _PARTS.split(text)
        slots: dict[str, str] = {}
        for place in range(1, len(parts), 2):
            part = parts[place]
            slot = slots.get(part)
            if slot is None:
                type_ = types[part] if part[0] == "%" else ""
                if type_ is None or (not type_ and part[0] == "%") or len(slots) == SLOTS:
                    continue
                slot = slots[part] = f"{type_}{chr(FIRST_SLOT + len(slots))}"
            parts[place] = slot
        key = "".join(parts)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = _shape(text, parts, slots, types)
        return found, list(slots)


def _shape(text: str, parts: list[str], slots: dict[str, str], types: Mapping[str, str | None]) -> Face:
    """Make the face of an instruction. `slots` says which of its `parts` become which slot. The instruction is parsed
    with unique words and numbers in these places, and then the resulting tokens are replaced by slots.
    """
    stem = next(stem for number in itertools.count() if (stem := f"98765432{number:03}") not in text)
    words, tokens, typed = {}, {}, {}
    for number, (part, slot) in enumerate(slots.items()):
        sign = "%" if part[0] == "%" else ""
        words[slot] = word = f"{stem}{number:04}" if part[0] in "-0123456789" else f"{sign}s{stem}_{number}"
        tokens[word] = sign + slot[-1]
        if sign:
            typed[tokens[word]] = types[part]
    instruction = _with_slots(parse_instruction("".join(words.get(part, part) for part in parts)), tokens)
    return Face(instruction, bind(instruction), typed)


def _with_slots(node: Any, tokens: Mapping[str, str]) -> Any:
    """Return a node, or a part of one, with some tokens replaced."""
    match node:
        case str():
            return tokens.get(node, node)
        case tuple():
            return tuple(_with_slots(part, tokens) for part in node)
        case _ if is_dataclass(node) and not isinstance(node, type):
            return type(node)(*(_with_slots(getattr(node, field.name), tokens) for field in fields(node)))
    return node
