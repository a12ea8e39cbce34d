"""The state that probes in device functions share with their kernel: local memory, whose address is passed in calls.

It contains the addresses of the maps' buffers, and all registers that probes in device functions use.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt.probe.lower.emit import Emitter
from gpt.probe.lower.registers import Names
from gpt.probe.plan.maps import PlacedMap
from gpt.ptx.types import SIZES


class State:
    """The layout of that memory: first the addresses of `maps`, then registers of the probe files that `names` belong
    to.
    """

    def __init__(self, prefix: str, names: list[Names], maps: list[PlacedMap]) -> None:
        self.prefix, self.names = prefix, names
        self.offsets: dict[str, int] = {placed.param: 8 * number for number, placed in enumerate(maps)}
        self.registers: dict[tuple[int, str], int] = {}
        self.size = max(8 * len(maps), 8)

    def hold(self, used: list[dict[int, set[str]]]) -> None:
        """Reserve space for the registers that each device function uses, by file number."""
        end = 8 * len(self.offsets)
        for number, name in sorted({(number, name) for one in used for number, ns in one.items() for name in ns}):
            self.registers[number, name] = end
            end += 8
        self.size = max(end, 8)

    def base(self, placed: PlacedMap, code: Emitter) -> str:
        """Return a register with the address of a map's buffer."""
        return code.once("b64", "ld.local.u64", f"[%{self.prefix}state+{self.offsets[placed.param]}]")

    def begin(self, code: Emitter) -> list[str]:
        """Return the lines that set up the state in the kernel: the addresses of maps, and the values of registers."""
        for param, offset in self.offsets.items():
            base = code.make("b64", "ld.param.u64", f"[{param}]")
            code.put(f"st.local.u64 [%{self.prefix}state+{offset}], {base}")
        for (number, name), offset in self.registers.items():
            initial = self.names[number].initial.get(name)
            if initial is not None:
                bits = max(32, SIZES[self.names[number].types[name]] * 8)
                value = code.make(f"b{bits}", f"mov.b{bits}", initial)
                code.put(f"st.local.b{bits} [%{self.prefix}state+{offset}], {value}")
        return [
            f".local .align 8 .b8 {self.prefix}memory[{self.size}];",
            f".reg .b64 %{self.prefix}state;",
            f"mov.u64 %{self.prefix}state, {self.prefix}memory;",
            *code.take(),
        ]

    def enter(self, used: dict[int, set[str]], code: Emitter) -> list[str]:
        """Return the lines at the entry of a device function that load its parameter and its registers."""
        return [
            f".reg .b64 %{self.prefix}state;",
            f"ld.param.b64 %{self.prefix}state, [{self.prefix}in];",
            *self.load(used, code),
        ]

    def initial(self, names: Names, name: str) -> str:
        """Return an instruction that sets a register to its initial value."""
        type_, value = names.types[name], names.initial[name]
        if type_ == "pred":
            return f"setp.ne.u32 {names.names[name]}, {value}, 0;"
        return f"mov.{type_} {names.names[name]}, {value};"

    def store(self, used: dict[int, set[str]], code: Emitter) -> list[str]:
        """Return the lines that store the registers of a function in the state."""
        return list(self._move(used, code, "st"))

    def load(self, used: dict[int, set[str]], code: Emitter) -> list[str]:
        """Return the lines that load the registers of a function from the state."""
        return list(self._move(used, code, "ld"))

    def _move(self, used: dict[int, set[str]], code: Emitter, opcode: str) -> Iterator[str]:
        for (number, name), offset in self.registers.items():
            if name not in used.get(number, ()):
                continue
            type_, register = self.names[number].types[name], self.names[number].names[name]
            place = f"[%{self.prefix}state+{offset}]"
            if type_ != "pred":
                bits = SIZES[type_] * 8
                yield (
                    f"st.local.b{bits} {place}, {register};"
                    if opcode == "st"
                    else f"ld.local.b{bits} {register}, {place};"
                )
                continue
            word = code.new("b32")
            if opcode == "st":
                yield f"selp.u32 {word}, 1, 0, {register};"
                yield f"st.local.u32 {place}, {word};"
            else:
                yield f"ld.local.u32 {word}, {place};"
                yield f"setp.ne.u32 {register}, {word}, 0;"
