"""Weave probes into one kernel of a cubin, and prove the result.

The plan, and the bodies of probes, are the same for all instruction sets (gpt/probe/plan, gpt/probe/lower). ptxas
compiles a body as a function (body.py, snippets.py), and a trampoline at each place contains its words (trampoline.py).
For each map, a parameter with the address of its buffer is added after the kernel's own.

Values that probes keep from one place to another are stored, in order of preference,

- in a register that doesn't occur in the kernel, if there's one below the next multiple of 8 (registers.py);
- below the stack pointer, from where they're loaded and where they're stored at each place (stack.py).

A register that has the same constant value at every place isn't kept: it's set where it's read.

The cubin is loaded a second time, but its kernel has to use the variables of the first copy (cubin_variables.py).

Either the entry and all exits of a kernel are woven, or none of them. Other places that can't be woven are left out and
counted. In the end, `gpt/sass/check.py` has to prove the kernel correct. If it can't, the kernel is left alone.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from gpt.base.collector import paused_collector
from gpt.formats.cubin import Data
from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.cubin_layout import CannotEdit
from gpt.formats.kernel_edit import KernelEditor
from gpt.formats.kernel_params import FullError, Parameter, add_parameter, has_known_stack, list_parameters, raise_stack
from gpt.formats.params import Param
from gpt.probe.lower.fetch import CannotProbe
from gpt.probe.model import ProbeFile
from gpt.probe.plan.function import PlacedSnippet
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.plan.plan import Plan
from gpt.probe.plan.woven import Woven
from gpt.probe.sass.body import make_initial
from gpt.probe.sass.function import SassFunction, find_obstacle
from gpt.probe.sass.given import Given, Kept, Piece, find_needed, give_kept, give_operand, place_kept
from gpt.probe.sass.lowering import Lowered
from gpt.probe.sass.registers import RESERVED, NothingToSpareError
from gpt.probe.sass.shared import share_variables
from gpt.probe.sass.snippets import VERSION, Compiler
from gpt.probe.sass.stack import NO_FRAME, announce_stack_pointer, find_frame
from gpt.probe.sass.sums import find_sums
from gpt.probe.sass.trampoline import Splicer
from gpt.probe.sass.values import jumps, written_by
from gpt.probe.sass.waits import announce_stores
from gpt.sass.arch import arch_of
from gpt.sass.check import Version, check
from gpt.sass.graph import UnboundedError
from gpt.sass.kernels import Kernel, read_facts, read_kernel
from gpt.sass.masks import Registers
from gpt.sass.stalls import describe_unscheduled
from gpt.sass.tables import UnknownOpcodeError, table_of
from gpt.sass.words import SIZE, dump_words
from gpt.sass.woven import Declaration, Moved

PREFIX = "gpt_"
TARGET = 90
Uses = list[tuple[PlacedSnippet, Lowered]]
ORDER = {"entry": 0, "before": 1, "leave": 2, "exit": 3, "after": 4}  # order of code at one instruction


def weave(
    cubin: Data | CubinEditor,
    kernel: str,
    arch: str,
    files: Sequence[ProbeFile],
    compiler: Compiler,
    *,
    count: bool = False,
) -> Woven:
    """Weave the probes of `files` into a kernel. Raises LeftAlone, and GptError if ptxas fails.

    The editor of the cubin isn't modified, so several kernels can share one.
    """
    if not arch_of(arch).proven:
        raise LeftAlone("not_proven", arch, kernel)
    with paused_collector():
        return _weave(cubin, kernel, arch, files, compiler, count)


def _weave(
    cubin: Data | CubinEditor, kernel: str, arch: str, files: Sequence[ProbeFile], compiler: Compiler, count: bool
) -> Woven:
    try:
        original = cubin if isinstance(cubin, CubinEditor) else CubinEditor(cubin)
        weaver = _Weaver(original, kernel, arch, files, compiler, count)
        try:
            return weaver.run()
        except LeftAlone as error:
            if error.reason.code != "no_registers" or weaver.is_final or not weaver.amend():
                raise
            return weaver.run()
    except UnknownOpcodeError as error:
        raise LeftAlone("unknown_opcode", error.fact, kernel) from None
    except UnboundedError as error:
        raise LeftAlone("unbounded", error.fact, kernel) from None
    except FullError as error:
        raise LeftAlone("too_large", error.fact, kernel) from None
    except CannotEdit as error:
        raise LeftAlone("image_unreadable", error.fact, kernel) from None


class _Weaver:
    """Weaves probes into one kernel."""

    def __init__(
        self, original: CubinEditor, name: str, arch: str, files: Sequence[ProbeFile], compiler: Compiler, count: bool
    ) -> None:
        self.old, self.name, self.files, self.compiler, self.count = original, name, files, compiler, count
        self.table = table_of(arch)
        self.original = Version(read_kernel(original, name, self.table), read_facts(original, name))
        self.plain = KernelEditor(original, name)
        self.is_final = False  # True if waiting for the kernel's stores wouldn't free any more registers either
        if self.plain.is_tile:
            raise LeftAlone("tile_kernel", "", name)
        if not self.original.kernel.has_usual_entry:
            raise LeftAlone("unknown_entry", self.original.kernel.code[0].name, name)
        if unscheduled := describe_unscheduled(self.original.kernel.code):
            raise LeftAlone("no_schedule", unscheduled, name)
        self.kernel: Kernel = announce_stack_pointer(self.original.kernel)
        self.amended = frozenset({0} if self.kernel is not self.original.kernel else ())

    def amend(self) -> bool:
        """Add a scoreboard to each store without one, so that an exit can wait for the store. Return whether there were
        any.
        """
        changed = announce_stores(self.kernel)
        self.kernel = self.kernel.with_controls(changed)
        self.amended |= changed.keys()
        return bool(changed)

    def run(self) -> Woven:
        """Weave, and prove the result."""
        self.function = SassFunction.of(self.kernel, self.files)
        self.plan = Plan(self.name, [self.function], self.files, PREFIX, self.count)
        splicer = self.plan.settle(self.lower_all)
        declaration = self.edit(splicer)
        variables = share_variables(self.original.kernel, self.editor)
        built = self.cubin.build()
        new = CubinEditor(built)
        version = Version(read_kernel(new, self.name, self.table, self.kernel.code), read_facts(new, self.name))
        if found := check(self.original, version, declaration):
            detail = f"{found[0].place * SIZE:#x}: {found[0].rule}: {found[0].detail}"
            raise LeftAlone("unproven", detail, self.name)
        return Woven(
            self.name,
            built,
            bytes(self.old.data),
            list_parameters(self.plain),
            [Param(one.offset, 8, "u64") for one in self.parameters.values()],
            self.plan.used_maps,
            self.plan.matched,
            self.plan.misfits,
            variables=variables.locate(),
            needs={
                "registers": version.facts.registers,
                "stack": version.facts.stack,
                "registers_before": self.original.facts.registers,
                "stack_before": self.original.facts.stack,
            },
        )

    # Lowering

    def lower_all(self) -> Splicer:
        """Lower each snippet that was placed, and write the trampolines."""
        plan = self.plan
        plan.check_age(VERSION, TARGET)
        self.cubin = self.old.fork()
        self.editor = KernelEditor(self.cubin, self.name)
        self.parameters: dict[str, Parameter] = {p.param: add_parameter(self.editor) for p in plan.used_maps}
        lowered: Uses = []
        self.names, found = self.compiler.lowerer.run(plan, self.function, self.files)
        for use, one in found:
            if isinstance(one, str):
                self._misfit(use, one)
            elif obstacle := find_obstacle(self.kernel, use.place.number):
                self._misfit(use, obstacle)
            else:
                lowered.append((use, one))
        known = {id(one): one for _, one in lowered}.values()
        self.compiler.compile([body.text for one in known for body in (one.body, one.bare) if body])
        return self._splice(lowered)

    def _misfit(self, use: PlacedSnippet, text: str) -> None:
        """Leave out this place, or if it's the entry or an exit, leave the whole kernel alone."""
        if use.place.kind in ("entry", "exit", "leave"):
            raise LeftAlone("no_registers", f"its entry or an exit {text}", self.name)
        self.plan.note(use, text)

    # Splicing

    def _splice(self, lowered: Uses) -> Splicer:
        often = Counter(f"{use.file}:{name}" for use, one in lowered for name in sorted(one.kept))
        kept, mask, slots = place_kept(self.kernel, often, [m for _, one in lowered for m in one.body.members])
        try:
            has_stack = has_known_stack(self.plain)
            frame = find_frame(self.kernel, has_stack) if slots else NO_FRAME
            splicer = Splicer(self.kernel, mask, slots, frame, has_stack)
        except CannotProbe as error:
            self.is_final = True
            raise LeftAlone("no_registers", f"it {error}", self.name) from None
        self.kept = mask
        places: defaultdict[int, Uses] = defaultdict(list)
        for use, one in lowered:
            places[use.place.number].append((use, one))
        if kept:
            places.setdefault(0, [])
        self.sums = find_sums(self.kernel, lowered)
        for index, uses in places.items():
            uses.sort(key=lambda pair: ORDER[pair[0].place.kind])
            here = [pair for pair in uses if not self.sums[id(pair[0])].is_woven]
            try:
                before = [self._piece(*pair, kept) for pair in here if pair[0].place.kind != "after"]
                after = [self._piece(*pair, kept) for pair in here if pair[0].place.kind == "after"]
                if index == 0:
                    before[:0] = self._begin(here, kept, find_needed(before))
                    if slots:
                        before, after = [], [*before, *after]
                before = [piece for piece in before if piece.compiled.snippet.words]
                after = [piece for piece in after if piece.compiled.snippet.words]
                if before or after:
                    splicer.add(index, before, after)
            except CannotProbe as error:
                self.is_final = isinstance(error, NothingToSpareError)
                if not uses:
                    raise LeftAlone("no_registers", f"its entry {error}", self.name) from None
                for member in [member for use, _ in here for member in self.sums[id(use)].fail()]:
                    self._misfit(member, str(error))
                continue
            for total in [self.sums[id(use)] for use, _ in here]:
                total.is_woven = True
                for member in total.members:
                    self.plan.note(member, None)
        return splicer

    def _begin(self, uses: Uses, kept: dict[str, Kept], needed: set[Kept]) -> list[Piece]:
        """Return the code that sets kept values that no snippet at the entry sets, or that these need."""
        always = [use for use, _ in uses if not use.probe.sample and not jumps(use)]
        written = {
            f"{use.file}:{name}" for use in always for line in use.snippet.lines for name in written_by(line.node)
        }
        pieces = []
        for name, place in kept.items():
            number, _, register = name.partition(":")
            names = self.names[int(number)]
            if name not in written or place in needed or register in names.initial:
                body = make_initial(names, int(number), register)
                self.compiler.compile([body.text])
                pieces.append(Piece(self.compiler.find(body.text), (give_kept(body.members[0], place),)))
        return pieces

    def _piece(self, use: PlacedSnippet, one: Lowered, kept: dict[str, Kept]) -> Piece:
        """Return what to insert at a place. Raises CannotProbe."""
        body, guard = one.body, None
        in_registers = all(kept[member.name].slot is None for member in one.body.kept)
        if one.bare and in_registers and self.compiler.find(one.bare.text).takes_guard:
            body, guard = one.bare, self.kernel.code[use.site.first].guard
        site, head = self.kernel.code[use.site.first], self.function.statements[use.site.first].head
        given, offsets = list[Given](), dict[int, int]()
        for member in body.members:
            if member.kind == "kept":
                given.append(give_kept(member, kept[member.name]))
            elif member.kind == "map":
                offsets[member.at] = self.parameters[member.name].bank_offset
            else:
                given.append(give_operand(site, head, use.when, member))
        addends = self.sums[id(use)].addends
        compiled = self.compiler.find(body.text).fill_in(self._constants_size(), offsets, addends)
        return Piece(compiled, tuple(given), guard, body.returns)

    def _constants_size(self) -> int:
        number = self.cubin.numbers.get(b".nv.constant3")
        return len(self.cubin.content(number)) if number is not None else 0

    # The file

    def edit(self, splicer: Splicer) -> Declaration:
        """Write the words into the cubin, and update what the file says about them."""
        editor, before = self.editor, len(self.kernel.code)
        editor.append(dump_words(splicer.words[before:]))
        for index in sorted({*self.amended, *(one.sources[0] for one in splicer.trampolines)}):
            editor.write(SIZE * index, dump_words([splicer.words[index]]))
        moved = {
            SIZE * part.source: SIZE * part.start
            for trampoline in splicer.trampolines for part in trampoline.parts if isinstance(part, Moved)
        }  # fmt: skip
        editor.move(moved)
        count = max(self.original.facts.registers, splicer.highest + 1 + RESERVED)
        if count > self.original.facts.registers:
            editor.set_registers(count)
        if splicer.stack:
            raise_stack(editor, splicer.stack)
        return Declaration(tuple(splicer.trampolines), self.amended, Registers(R=self.kept), count, splicer.stack)
