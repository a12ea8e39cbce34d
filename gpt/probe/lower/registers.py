"""Choose names for the registers of a probe file, so that they don't clash with the program's."""

from __future__ import annotations

import re

from gpt.probe.effects import find_own_registers
from gpt.probe.model import ProbeFile

_WORD = re.compile(r"\W", re.ASCII)


class Names:
    """The names that a probe file's registers get in the program. Registers in `zeros` are always 0."""

    def __init__(self, file: ProbeFile, prefix: str, zeros: set[str]) -> None:
        self.types = {register.name: register.type for register in file.registers}
        for map_ in file.maps:  # values of partial SAVEs are kept in these until the record is complete
            for number, field in enumerate(map_.fields):
                self.types[part_name(map_.name, number)] = f"b{max(16, field.size * 8)}"
        initial = {register.name: register.initial for register in file.registers if register.initial is not None}
        for map_ in file.maps:
            if map_.capacity is None:
                self.types |= dict(zip(room_names(map_.name), ("b64", "b32"), strict=True))
                initial |= dict.fromkeys(room_names(map_.name), "0")
        self.names: dict[str, str] = {}
        taken: set[str] = set()
        for name in self.types:
            plain = f"%{prefix}{_WORD.sub('_', name.removeprefix('%'))}"
            while plain in taken:
                plain += "_"
            taken.add(plain)
            self.names[name] = plain
        self.initial = initial
        self.own = find_own_registers(file)
        self.zeros = zeros


def part_name(map_: str, number: int) -> str:
    """Return the name of the register that holds a field of a record until the last of several SAVEs completes the
    record.
    """
    return f"{map_}[{number}]"


def room_names(map_: str) -> tuple[str, str]:
    """Return the names of the registers that hold a lane's position in a log (gpt/probe/lower/rooms.py)."""
    return f"{map_}[cursor]", f"{map_}[left]"
