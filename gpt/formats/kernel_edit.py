"""Edit a kernel in a cubin: its instructions, registers and parameters, and every table that describes them.

These sections describe a kernel K (we learned this from our own cubins, and compared each with what ptxas writes):

- `.text.K` is its code: 16-byte instructions, often followed by copies of device functions, which have symbols of their
  own, and by NOPs up to a multiple of 128 bytes.
- `.nv.info` of the module has its register count: the highest register + 3, because the hardware reserves two. Before
  sm_90, the count is also in the top byte of the sh_info of `.text.K`.
- `.nv.info.K` has its parameters (kernel_params.py), lists of the offsets of some instructions, and an upper limit for
  registers.
- `.rela.text.K` lists instructions to patch. `.debug_frame` has the ranges of its functions.

There are three ways to add code. They differ in what moves:

- `append` adds it at the end of the section. Nothing moves.
- `move` records that instructions are now elsewhere, for example because a branch leads from their old place to a copy
  at the end.
- `insert` adds it in the middle. Tables are updated (code_moves.py), but instructions aren't, so the caller has to
  correct branches across that place. It's refused if an offset that we can't find may be stored anywhere.

From sm_100 on, a cubin describes its code twice: `.nv.capmerc.*` and `.nv.merc.*` contain the same kernels for a
finalizer in the driver (Mercury). Like ptxas, we add parameters to both, but code and registers stay there as they
were. We haven't tried what the driver makes of the difference, so with `has_mercury`, a caller can reject such a cubin.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpt.formats import code_moves
from gpt.formats.cubin import Data
from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.cubin_layout import CannotEdit
from gpt.formats.elf import SHF_EXECINSTR
from gpt.formats.nvinfo import ENTRY, REGISTERS, iter_attributes

WORD = 16  # bytes per instruction
CODE_ALIGN = 128
NOP = bytes.fromhex("18790000000000000000000000c00f00")  # the NOP that ptxas pads with on sm_80, 90, 100 and 120
MAX_REGISTERS = 255
MAXREG_COUNT, LANGUAGE = 0x1B, 0x66  # attributes of `.nv.info.K`
TILE = b"\7\0\0\0"  # the language of CUDA Tile; the value for CUDA C++ is 3. Seen in the output of nvcc 13.5


class KernelEditor:
    """A kernel that's being edited. Raises CannotEdit if the cubin has no kernel with that name, or if the kernel has
    no code.
    """

    def __init__(self, cubin: CubinEditor, name: str) -> None:
        self.cubin = cubin
        self.name = name.encode("utf-8", "surrogateescape")
        if self.name not in cubin.kernels:
            raise CannotEdit(f"no kernel '{name}'")
        self.symbol = cubin.kernels[self.name]
        self.section = int(cubin.symbols["shndx"][self.symbol])
        sections = cubin.sections
        if self.section >= len(sections) or not sections["flags"][self.section] & SHF_EXECINSTR:
            raise CannotEdit("a kernel lies outside the code")
        if not len(self.code) or len(self.code) % WORD:
            raise CannotEdit(f"code of {len(self.code)} bytes")

    @property
    def code(self) -> Data:
        """The bytes of its section: the kernel's instructions, then functions and NOPs."""
        return self.cubin.content(self.section)

    @property
    def has_mercury(self) -> bool:
        """True if the cubin also contains the kernel as Mercury code, which isn't edited."""
        return b".nv.capmerc.text." + self.name in self.cubin.numbers

    def write(self, at: int, code: bytes) -> None:
        """Replace instructions by the same number of others. Tables aren't changed."""
        self._check(at, code, len(self.code) - len(code))
        self.cubin.editable(self.section)[at : at + len(code)] = code

    def append(self, code: bytes) -> int:
        """Append instructions and NOPs to the section, and return their offset. The existing code doesn't move."""
        end = len(self.code)
        self._add(end, code)
        return end

    def insert(self, at: int, code: bytes) -> None:
        """Insert instructions at an offset, which moves the instructions after it. The kernel still begins at offset 0.

        Raises CannotEdit if something isn't understood that may contain an offset.
        """
        code_moves.check_understood(self.cubin, self.section, self.info)
        self._add(at, code)

    def move(self, moved: Mapping[int, int]) -> None:
        """Update tables after instructions have moved. `moved` maps old offsets to new ones."""
        if any(not 0 <= offset < len(self.code) for offset in moved.values()):
            raise CannotEdit("an instruction moves beyond the code")

        def place(offset: int) -> int:
            within = offset % WORD
            return moved.get(offset - within, offset - within) + within

        code_moves.check_moves(self.info, moved)
        with self.cubin.whole_edit():
            code_moves.follow_instructions(self.cubin, self.section, self.info, place)

    @property
    def is_tile(self) -> bool:
        """True for a kernel of CUDA Tile, for which the compiler, not the launch, determines the threads in a block."""
        return any(entry.kind == LANGUAGE and bytes(entry.payload) == TILE for entry in iter_attributes(self.info))

    @property
    def registers(self) -> int:
        """Number of registers per thread, including the two that the hardware reserves."""
        count = self.cubin.find_pair(REGISTERS, self.symbol)
        if count is None:
            raise CannotEdit("a kernel without a register count")
        if count > MAX_REGISTERS:
            raise CannotEdit(f"{count} registers")
        return count

    def set_registers(self, count: int) -> None:
        """Set the register count, and raise the upper limit if it's lower."""
        if not 0 < count <= MAX_REGISTERS:
            raise CannotEdit(f"{count} registers")
        _ = self.registers  # raises CannotEdit if there's no count
        self.cubin.write_pair(REGISTERS, self.symbol, count)
        info = self.cubin.sections["info"]
        if info[self.section] >> 24:
            info[self.section] = int(info[self.section]) & 0xFFFFFF | count << 24
        for entry in iter_attributes(bytes(self.info)):
            if entry.kind == MAXREG_COUNT and entry.value < count:
                bound = min(MAX_REGISTERS, count + -count % 8)
                ENTRY.pack_into(self.info, entry.at, entry.form, entry.kind, bound)

    @property
    def info_section(self) -> int:
        """The index of the kernel's `.nv.info.K`. Raises CannotEdit if there's no such section."""
        number = self.cubin.numbers.get(b".nv.info." + self.name)
        if number is None or int(self.cubin.sections["info"][number]) != self.section:
            raise CannotEdit("a kernel without attributes")
        return number

    @property
    def info(self) -> bytearray:
        """The kernel's `.nv.info.K`, which can be changed in place."""
        return self.cubin.editable(self.info_section)

    def _check(self, at: int, code: bytes, last: int) -> None:
        if at % WORD or len(code) % WORD or not 0 <= at <= last:
            raise CannotEdit(f"{len(code)} bytes of code at {at:#x}")

    def _add(self, at: int, code: bytes) -> None:
        """Do the work of append and insert."""
        end = len(self.code)
        self._check(at, code, end)
        if not code:
            return
        padding = NOP * (-(end + len(code)) % CODE_ALIGN // WORD)
        last = end + len(code) + len(padding)

        def place(offset: int, is_entry: bool = True) -> int:
            """Return the new value of an offset. The old end of the code becomes the new end, so ranges up to it still
            end there.
            """
            if not 0 <= offset <= end:
                raise CannotEdit("something refers to a place beyond the code")
            if offset == end:
                return last
            return offset if offset < at or (is_entry and not offset) else offset + len(code)

        def place_instruction(offset: int) -> int:
            """Return the new offset of an instruction. The first one moves, too: only the entry point stays."""
            return place(offset, is_entry=False)

        with self.cubin.whole_edit():
            code_moves.resize_frames(self.cubin, self.section, place)
            if at < end:
                code_moves.follow_references(self.cubin, self.section, place)
                code_moves.follow_instructions(self.cubin, self.section, self.info, place_instruction)
            code_moves.follow_symbols(self.cubin, self.section, place)
        text = self.cubin.editable(self.section)
        text += padding
        text[at:at] = code
