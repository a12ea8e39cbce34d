"""Instructions of one shape: alike but for their registers, offsets and the labels they go to, so that the code for
one is that for all.

A kernel may have hundreds of loads in a dozen shapes. Each shape is parsed, bound and lowered once, with slots for its
registers, offsets and labels, which are filled in for each instruction. A slot is a character outside Latin-1. Modules
are Latin-1 and code from probes is ASCII, so nothing in them can be mistaken for a slot.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from gpt.base.patterns import compiled
from gpt.probe.operands import Bound, bind
from gpt.ptx import tokens, tree
from gpt.ptx.quick import parse_instruction

_GOES = "|".join(rf"(?<=\bbra{uni}[ \t]{{{blanks}}})" for uni in ("", r"\.uni") for blanks in (1, 2))
_PARTS = compiled(  # the parts that become slots
    rf"({tokens.REGISTER}|(?<=\+)-?+\d++(?=\])|(?:{_GOES}){tokens.IDENTIFIER})", re.ASCII
)
_FIRST, _COUNT = 0xE000, 6400  # the private use area
_SLOT = re.compile(f"%?([{chr(_FIRST)}-{chr(_FIRST + _COUNT - 1)}])")


class Template:
    """A text with slots."""

    def __init__(self, text: str) -> None:
        self._parts = _SLOT.split(text)
        self._slots = [ord(slot) - _FIRST for slot in self._parts[1::2]]

    def fill(self, values: Sequence[str]) -> str:
        """Fill in the values of the slots, by number."""
        parts = self._parts.copy()
        parts[1::2] = [values[slot] for slot in self._slots]
        return "".join(parts)


@dataclass(frozen=True, eq=False)
class TemplateShape:
    """An instruction with slots, its helpers, and the types of slots that are registers."""

    instruction: tree.Instruction
    bound: Bound
    types: dict[str, str | None]


class Shapes:
    """The shapes of a module's instructions."""

    def __init__(self) -> None:
        self._found: dict[str, TemplateShape] = {}

    def find(self, text: str, types: Mapping[str, str | None]) -> tuple[TemplateShape, list[str]]:
        """Return the shape of an instruction and the values of its slots. Raises MalformedError without the location.

        Special registers and variables have no type in `types`, and so no slots.
        """
        parts = _PARTS.split(text)
        slots: dict[str, str] = {}
        for place in range(1, len(parts), 2):
            part = parts[place]
            slot = slots.get(part)
            if slot is None:
                type_ = types[part] if part[0] == "%" else ""
                if type_ is None or (not type_ and part[0] == "%") or len(slots) == _COUNT:
                    continue
                slot = slots[part] = f"{type_}{chr(_FIRST + len(slots))}"
            parts[place] = slot
        key = "".join(parts)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = _shape(text, parts, slots, types)
        return found, list(slots)


def _shape(text: str, parts: list[str], slots: dict[str, str], types: Mapping[str, str | None]) -> TemplateShape:
    """Make the shape of an instruction whose `parts` have these slots. It's parsed with unique words and numbers in
    their place, and the resulting tokens become the slots.
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
    return TemplateShape(instruction, bind(instruction), typed)


def _with_slots(node: Any, tokens: Mapping[str, str]) -> Any:
    """Return a node, or a piece of one, with some tokens replaced."""
    match node:
        case str():
            return tokens.get(node, node)
        case tuple():
            return tuple(_with_slots(part, tokens) for part in node)
        case _ if is_dataclass(node) and not isinstance(node, type):
            return type(node)(*(_with_slots(getattr(node, field.name), tokens) for field in fields(node)))
    return node
