"""Instructions of one shape: alike but for their registers, offsets and the labels they go to, so that the code for
one is that for all.

A kernel has hundreds of loads of a dozen shapes. Each shape is parsed, bound and lowered once, with stand-ins where
its registers, offsets and labels are; at each instruction they are replaced by what it has there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpt.probe.operands import Bound, bind
from gpt.ptx import tree
from gpt.ptx.quick import parse_instruction

_GOES = "|".join(rf"(?<=\bbra{uni}[ \t]{{{blanks}}})" for uni in ("", r"\.uni") for blanks in (1, 2))
_PARTS = re.compile(  # what has stand-ins
    rf"(%[A-Za-z_$][\w$]*+|(?<=\+)-?+\d++(?=\])|(?:{_GOES})[A-Za-z_$][\w$]*+)", re.ASCII
)


@dataclass(frozen=True, eq=False)
class Shape:
    """An instruction with stand-ins, what helpers mean at it, and the types of the stand-ins that are registers."""

    instruction: tree.Instruction
    bound: Bound
    types: dict[str, str | None]


class Shapes:
    """The shapes of a module's instructions. Neither `prefix` nor `number`, some digits, is anywhere in it."""

    def __init__(self, prefix: str, number: str) -> None:
        self._prefix, self._number = prefix, number
        self._found: dict[str, Shape] = {}

    def find(self, text: str, types: Mapping[str, str | None]) -> tuple[Shape, dict[str, str]]:
        """The shape of an instruction, and its stand-ins by what they stand for. Raises MalformedError, in words of
        the stand-ins.

        What has no type in `types` stands for itself: special registers, variables.
        """
        parts = _PARTS.split(text)
        stands: dict[str, str] = {}
        for place in range(1, len(parts), 2):
            part = parts[place]
            stand = stands.get(part)
            if stand is None:
                if part[0] in "-0123456789":
                    stand = f"{self._number}{place:04}"
                elif part[0] != "%":
                    stand = f"{self._prefix}label_{place}_"
                elif type_ := types[part]:
                    stand = f"%{self._prefix}{type_}_{place}_"
                else:
                    continue
                stands[part] = stand
            parts[place] = stand
        key = "".join(parts)
        found = self._found.get(key)
        if found is None:
            instruction = parse_instruction(key)
            typed = {stand: types[part] for part, stand in stands.items() if part[0] == "%"}
            found = self._found[key] = Shape(instruction, bind(instruction), typed)
        return found, stands
