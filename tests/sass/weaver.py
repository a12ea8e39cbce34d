"""A small weaver that makes kernels for the checker to prove. It doesn't save space: each place gets its own
trampoline.

    woven = weave(image, "reduce", [Place(12, before=[Use("leader")])], compiled_snippets())
    woven.original, woven.new, woven.declaration         what check() takes

A snippet's inputs: R4 and R5 are the address of the probe's memory, a parameter added to the kernel. R6 is a value
(Use.value): a register of the kernel, or "tick", a register that counts what each lane does. Registers that aren't free
at a place are saved below the stack pointer.
"""

from __future__ import annotations

import struct
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.kernel_edit import KernelEditor
from gpt.formats.kernel_params import add_parameter
from gpt.formats.nvinfo import PAIR, iter_attributes
from gpt.probe.sass.stack import announce_stack_pointer
from gpt.sass.check import Version
from gpt.sass.check_known import registers_named
from gpt.sass.check_words import BRANCH, NOP, make_branch
from gpt.sass.code import Code
from gpt.sass.flow import SHORTEST
from gpt.sass.graph import is_conditional, make_graph
from gpt.sass.kernels import RESERVED, STACK, Kernel, read_facts, read_kernel
from gpt.sass.live import live_before
from gpt.sass.masks import STARTS, Registers, pack, unpack
from gpt.sass.stalls import iter_safe
from gpt.sass.tables import Table, table_of
from gpt.sass.words import (
    SIZE,
    control_of,
    dump_words,
    guard_of,
    parse_words,
    target_of,
    with_bits,
    with_control,
    with_guard,
    with_target,
)
from gpt.sass.woven import Declaration, Inserted, Moved, Snippet, Trampoline
from tests import cuda

PTX = Path(__file__).with_name("snippets.ptx")
ARCH = "sm_90"
PLAIN = 1 << 105 | 7 << 110 | 7 << 113 | 7 << 12  # no guard, a stall of 1, no barriers
LDC64, STL, LDL = 0xB82 | 255 << 24 | 5 << 73, 0x387 | 1 << 24 | 4 << 73 | 1 << 84, 0x983 | 1 << 24 | 4 << 73 | 1 << 84
P2R, R2P = 0x803 | 255 << 24 | 0x7F << 32, 0x804 | 0x7F << 32
ZERO = 0x202 | 255 << 32 | 0xF << 72  # MOV R0, RZ
ADD_ONE = 0x810 | 1 << 32 | 255 << 64 | 0x7FFE0FF >> 8 << 72  # IADD3 R0, R0, 0x1, RZ
TICK = "tick"
SAVING = 4  # bytes for each saved register


@dataclass(frozen=True)
class Use:
    """A snippet at a place; `value` is what it gets in R6."""

    snippet: str
    value: int | str = 255


@dataclass(frozen=True)
class Place:
    """Instructions to move, and the snippets before and after them."""

    source: int
    before: tuple[Use, ...] = ()
    after: tuple[Use, ...] = ()
    count: int = 1


@dataclass(frozen=True)
class Woven:
    """All arguments of the checker, and the new cubin."""

    original: Version
    new: Version
    declaration: Declaration
    image: bytes


@cache
def compiled_snippets() -> dict[str, Snippet]:
    """Compile the snippets. Raises FileNotFoundError without ptxas."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snippets.cubin"
        cuda.run("ptxas", f"-arch={ARCH}", "-c", "-o", path, PTX)
        cubin = CubinEditor(path.read_bytes())
    table = table_of(ARCH)
    found = {}
    for name, section in cubin.numbers.items():
        if name.startswith(b".text."):
            words = parse_words(bytes(cubin.content(section)))
            last = max(index for index, word in enumerate(words) if table.opcode(word).name == "RET")
            found[name[6:].decode()] = Snippet(tuple(words[:last]), _inputs(words[: last + 1], table))
    found["begin"] = Snippet((ZERO | PLAIN,))
    found["tick"] = Snippet((ADD_ONE | PLAIN,), Registers(R=1))
    return found


def _inputs(words: list[int], table: Table) -> Registers:
    """Return the argument registers that a function reads. The function ends with a RET."""
    code = Code(dump_words([*words[:-1], 0x94D | 7 << 12 | 7 << 87]), table)
    return Registers(R=live_before(code, make_graph(code))[0] & 0xFFF0)


class Weaver:
    """Words and trampolines of one kernel."""

    def __init__(self, kernel: Kernel, bank_offset: int, snippets: dict[str, Snippet], tick: int | None) -> None:
        self.kernel = kernel
        self.bank_offset = bank_offset
        self.snippets = snippets
        self.tick = tick
        self.words = list(kernel.code.words)
        self.trampolines: list[Trampoline] = []
        self.named = registers_named(kernel)
        self.stack = 0
        self.is_slow = any(cycles > 7 for used in kernel.code.used.values() for _, cycles in iter_safe(used.entry, 1))

    def add(self, place: Place) -> None:
        """Make a trampoline. If this raises LookupError, nothing has changed."""
        before = len(self.words)
        try:
            self._add(place)
        except LookupError:
            del self.words[before:]
            raise

    def _add(self, place: Place) -> None:
        start = len(self.words)
        parts: list[Inserted | Moved] = []
        sources = range(place.source, place.source + place.count)
        saved = reads = 0
        if self.is_slow:  # a register to be saved may still be in flight
            for _ in range(2):
                self._glue(NOP & ~(15 << 105) | 15 << 105, parts)
        for use in place.before:
            one, two = self._use(use, sources[0], parts, is_behind=False)
            saved, reads = saved | one, reads | two
        was = self.kernel.code[sources[0]]
        is_guarded_exit = was.name == "EXIT" and place.count == 1
        for source in sources:
            word = self.kernel.code.words[source]
            opcode = self.kernel.code[source].entry
            if opcode.name == "BRA" and opcode.target:
                target = target_of(word, opcode.target, SIZE * source)
                word = with_target(word, opcode.target, SIZE * len(self.words), target)
            if is_guarded_exit:
                word = with_bits(with_bits(word, 12, 4, 7), 87, 4, 7)
            parts.append(Moved(len(self.words), source))
            self.words.append(with_control(word, control_of(word)._replace(reuse=0)))
        for use in place.after:
            one, two = self._use(use, sources[-1] + 1, parts, is_behind=True)
            saved, reads = saved | one, reads | two
        last = self.kernel.code[sources[-1]]
        if last.name != "EXIT" and (last.name != "BRA" or is_conditional(last)):
            self.words.append(make_branch(len(self.words), sources[-1] + 1, "split") | 5 << 105 | 63 << 110)
            if place.after:
                self._wait(len(self.words) - 1)
        guard = was.word if is_guarded_exit else BRANCH
        branch = make_branch(place.source, start, "split", guard)
        wait = was.control.wait if is_guarded_exit else 0  # the guard may be in flight
        self.words[place.source] = branch | max(5, was.control.stall) << 105 | 63 << 110 | wait << 116
        self.trampolines.append(Trampoline(start, len(self.words), tuple(parts), unpack(reads), unpack(saved)))

    def _wait(self, index: int) -> None:
        """Make a word wait for all barriers, long enough after the previous word."""
        self.words[index] = with_control(self.words[index], control_of(self.words[index])._replace(wait=63))
        before = control_of(self.words[index - 1])
        self.words[index - 1] = with_control(self.words[index - 1], before._replace(stall=15, hint=False))

    def _append(self, part: Inserted, parts: list[Inserted | Moved], words: list[int]) -> None:
        parts.append(part)
        self.words += words

    def _use(self, use: Use, at: int, parts: list[Inserted | Moved], is_behind: bool) -> tuple[int, int]:
        """Add a snippet and the code around it; return the registers to save, and the kernel's
        registers that it reads.
        """
        snippet = self.snippets[use.snippet]
        code = Code(dump_words(snippet.words), self.kernel.code.table)
        named = 0
        for masks in code.masks:
            named |= masks.reads | masks.writes
        flight = self.kernel.flight[at]
        assert flight is not None
        live = self.kernel.live[at]
        blocked = live | flight.unawaited | 1 << 1  # everything else is awaited
        names, saves = self._names(unpack(named), blocked, live & ~flight.unawaited, use)
        made = len(self.words)
        kept = pack(Registers(R=sum(1 << register for register in saves)))
        for k, register in enumerate(saves):
            slot = with_bits(STL | register << 32 | PLAIN, 40, 24, (1 << 24) - SAVING * (k + 1))
            self._glue(with_control(slot, control_of(slot)._replace(read_barrier=5)), parts)
        self.stack = max(self.stack, SAVING * len(saves))
        if snippet.inputs.R & 0x30:
            load = LDC64 | names["R"][4] << 16 | self.bank_offset // 4 << 40 | PLAIN
            self._glue(with_control(load, control_of(load)._replace(write_barrier=4)), parts)
        value = TICK if use.value == TICK else None
        if len(self.words) > made:
            start = len(self.words)
            self._piece(snippet, names, parts)
            self._wait(start)
        else:
            self._piece(snippet, names, parts)
        for k, register in enumerate(saves):
            slot = with_bits(LDL | register << 16 | PLAIN, 40, 24, (1 << 24) - SAVING * (k + 1))
            self._glue(with_control(slot, control_of(slot)._replace(write_barrier=3)), parts)
        self._glue(NOP & ~(15 << 105) | 15 << 105, parts)
        given = 0 if value or isinstance(use.value, str) or use.value == 255 else 1 << use.value
        return kept, given

    def _glue(self, word: int, parts: list[Inserted | Moved]) -> None:
        masks = self.kernel.code.table.decoder(word).masks(word)
        mine = unpack(masks.reads | masks.writes)
        names = {
            file: {number: number for number in range(256) if mask >> number & 1}
            for file, mask in zip(Registers._fields, mine, strict=True)
        }
        part = Inserted(len(self.words), Snippet((word,), unpack(masks.reads)), names)
        self._append(part, parts, [word])
        self._wait_now(len(self.words) - 1)

    def _wait_now(self, index: int) -> None:
        """Make a word wait for all barriers. The previous word may have set one, so that gets the necessary stall."""
        self.words[index] = with_control(self.words[index], control_of(self.words[index])._replace(wait=63))
        before = control_of(self.words[index - 1])
        if index > len(self.kernel.code) and before.stall < SHORTEST:
            self.words[index - 1] = with_control(self.words[index - 1], before._replace(stall=SHORTEST))

    def _piece(self, snippet: Snippet, names: dict[str, dict[int, int]], parts: list[Inserted | Moved]) -> None:
        start = len(self.words)
        table = self.kernel.code.table
        words = []
        for index, word in enumerate(snippet.words):
            opcode = table.opcode(word)
            if opcode.name == "YIELD":
                words.append(NOP & ~(((1 << 21) - 1) << 105) | word >> 105 << 105)
                continue
            if opcode.name == "RET":
                branch = with_guard(make_branch(start + index, start + len(snippet.words), "split"), guard_of(word))
                words.append(branch | word >> 105 << 105)
                continue
            if opcode.target:
                target = target_of(word, opcode.target, SIZE * index)
                word = with_target(word, opcode.target, SIZE * (start + index), SIZE * start + target)
            words.append(_renamed(word, names, table))
        self._append(Inserted(start, snippet, names), parts, words)
        self._wait_now(start)

    def _names(
        self, named: Registers, blocked: int, live: int, use: Use
    ) -> tuple[dict[str, dict[int, int]], list[int]]:
        """Choose registers in aligned groups of four, so that every operand keeps its alignment."""
        names: dict[str, dict[int, int]] = {}
        fixed: dict[int, int] = {}
        if use.value == TICK:
            assert self.tick is not None
            fixed = {0 if use.snippet in ("tick", "begin") else 6: self.tick}
        elif use.value != 255 and isinstance(use.value, int):
            fixed = {6: use.value}
        saves: list[int] = []
        free = unpack(~blocked)
        taken = set(fixed.values())
        names["R"] = dict(fixed)
        groups = sorted({number // 4 for number in range(255) if named.R >> number & 1 and number not in fixed})
        for group in groups:
            wanted = [4 * group + k for k in range(4) if named.R >> 4 * group + k & 1 and 4 * group + k not in fixed]
            candidates = range(0, self.kernel.kept - 3, 4)

            def cost(base: int, wanted: list[int] = wanted) -> int:
                chosen = [base + number % 4 for number in wanted]
                if taken & set(chosen) or 1 in chosen or any(number >= self.kernel.kept for number in chosen):
                    return 99
                if any(blocked >> number & 1 and not live >> number & 1 for number in chosen):
                    return 99  # in flight
                return sum(not free.R >> number & 1 for number in chosen)

            base = min(candidates, key=cost, default=0)
            if cost(base) == 99:
                raise LookupError("no registers")
            for number in wanted:
                register = base + number % 4
                names["R"][number] = register
                taken.add(register)
                if not free.R >> register & 1:
                    saves.append(register)
        for file, none, step in (("UR", 63, 2), ("P", 7, 1), ("UP", 7, 1), ("B", 16, 1)):
            mask: int = getattr(named, file)
            start: int = getattr(STARTS, file)
            bad = self.named | blocked if file != "P" else blocked
            spare = [n for n in range(0, none - step + 1, step) if not bad >> start + n & ((1 << step) - 1)]
            wanted = sorted({number // step for number in range(none) if mask >> number & 1})
            if len(spare) < len(wanted):
                raise LookupError(f"no {file}")
            names[file] = {
                step * old + k: new + k for old, new in zip(wanted, spare, strict=False) for k in range(step)
                if mask >> step * old + k & 1
            }  # fmt: skip
        return names, saves


def _renamed(word: int, names: dict[str, dict[int, int]], table: Table) -> int:
    new = word
    for operand in table.opcode(word).operands:
        count = max(operand.writes.of(word), operand.reads.of(word))
        if operand.file in ("PR", "UPR") or count <= 0:
            continue
        none = (1 << table.arch.register_bits[operand.file]) - 1
        turn = none if operand.inverted else 0
        low = operand.low or 0
        number = (word >> low & none) ^ turn
        if number != none or operand.file == "B":
            new = with_bits(new, low, none.bit_length(), names[operand.file][number] ^ turn)
    return new


def weave(image: bytes, name: str, places: list[Place], snippets: dict[str, Snippet], ticks: bool = False) -> Woven:
    """Weave snippets into a kernel. With `ticks`, a register counts per lane, from zero at the entry. Raises
    LookupError if registers run out.
    """
    cubin = CubinEditor(image)
    table = table_of(ARCH)
    original = Version(read_kernel(CubinEditor(image), name, table), read_facts(CubinEditor(image), name))
    editor = KernelEditor(cubin, name)
    parameter = add_parameter(editor)
    kernel = announce_stack_pointer(original.kernel)
    tick = kernel.registers if ticks else None
    weaver = Weaver(kernel, parameter.bank_offset, snippets, tick)
    if ticks:
        places = [Place(0, before=(Use("begin", TICK),)), *places]
    for place in places:
        weaver.add(place)
    editor.append(dump_words(weaver.words[len(kernel.code) :]))
    editor.write(0, dump_words(weaver.words[: len(kernel.code)]))
    moved = {
        SIZE * part.source: SIZE * part.start
        for trampoline in weaver.trampolines for part in trampoline.parts if isinstance(part, Moved)
    }  # fmt: skip
    editor.move(moved)
    registers = kernel.registers + RESERVED + (1 if ticks else 0)
    editor.set_registers(max(registers, original.facts.registers))
    if weaver.stack:
        _raise_stack(cubin, editor, weaver.stack)
    built = cubin.build()
    new = Version(read_kernel(CubinEditor(built), name, table), read_facts(CubinEditor(built), name))
    persistent = Registers(R=1 << tick) if tick is not None else Registers()
    count = max(registers, original.facts.registers)
    amended = frozenset({0} if kernel is not original.kernel else ())
    declaration = Declaration(tuple(weaver.trampolines), amended, persistent, count, weaver.stack)
    return Woven(original, new, declaration, built)


def _raise_stack(cubin: CubinEditor, editor: KernelEditor, size: int) -> None:
    info = cubin.editable(cubin.numbers[b".nv.info"])
    for entry in iter_attributes(bytes(info)):
        if entry.kind == STACK and PAIR.unpack(entry.payload)[0] == editor.symbol:
            (was,) = struct.unpack_from("<I", info, entry.end - 4)
            struct.pack_into("<I", info, entry.end - 4, was + size)
