"""Write trampolines: the words that run the code of a probe at a place in a kernel.

    k    BRA t               t    save what the snippet overwrites and the kernel needs     (if necessary)
    k+1  (unchanged)              pass values to it: addresses of maps, copies              (if necessary)
                                  the snippet, its registers renamed
                                  restore the saved registers                               (if necessary)
                                  the instruction of k
                                  BRA k+1

The hardware checks nothing, so the transitions between these parts follow four rules (docs/sass-rules.md):

- The first word waits for the same barriers as the instruction that was moved, and at an exit, for all barriers. After
  that, operands have arrived, and the registers in `Room.free` are free.
- The word after a part waits for everything that the part has left in flight. If a part reads something that the kernel
  still has in flight, such as the result of a load, it waits for that first.
- Results of fixed latency get as many cycles as the most cautious reader requires (gpt/sass/stalls.py). The branch back
  takes 10 of them, so longer stalls are rarely necessary.
- YIELD is replaced by a NOP, and RET by a branch to the end of the snippet.
"""

from __future__ import annotations

from gpt.probe.lower.fetch import CannotProbe
from gpt.probe.sass import glue
from gpt.probe.sass.draft import Draft, with_change
from gpt.probe.sass.given import Given, Piece
from gpt.probe.sass.registers import Choice, Room, choose, usable, usable_at_cost
from gpt.probe.sass.stack import STACK_POINTER, Frame
from gpt.sass.check_known import registers_named
from gpt.sass.check_words import make_branch
from gpt.sass.flow import InFlight, issue, wait_for
from gpt.sass.graph import is_conditional
from gpt.sass.kernels import Kernel
from gpt.sass.masks import STARTS, unpack
from gpt.sass.tables import Table
from gpt.sass.words import CONTROL, NO_BARRIER
from gpt.sass.woven import Inserted, Trampoline

ALL = 63  # barriers
SLOT = 4  # bytes per saved register
STORES, LOADS = 5, 3  # barriers for our own words
RZ = 255
_R = (1 << 255) - 1


class Splicer:
    """Collects the words and trampolines of a kernel.

    `kept` are the registers that hold values of probes throughout the kernel; `slots` is the number of bytes below the
    stack pointer that hold others.
    """

    def __init__(self, kernel: Kernel, kept: int, slots: int, frame: Frame, has_stack: bool) -> None:
        self.kernel = kernel
        self.table: Table = kernel.code.table
        self.words = list(kernel.code.words)
        self.trampolines: list[Trampoline] = []
        self.highest = kernel.registers - 1
        self._kept = kept
        self._slots = slots
        self.frame, self.lowered = frame
        self.stack = slots + self.frame
        self._named = registers_named(kernel)
        self._steady, self._has_stack = kernel.steady, has_stack and kernel.has_usual_entry
        self._limits = [(1 << count) - 1 for count in sorted({usable(kernel), usable_at_cost(kernel)})]

    def add(self, index: int, before: list[Piece], after: list[Piece]) -> None:
        """Write the trampoline for a place. If this raises CannotProbe, nothing has been changed."""
        kernel = self.kernel
        one, flight = kernel.code[index], kernel.flight[index]
        assert flight is not None
        pending = [(written, cycles, False) for written, cycles in kernel.find_late(index)]
        draft = Draft(self.table, len(self.words), kernel.live[index], pending)
        wait = ALL if one.name == "EXIT" else one.control.wait
        first = wait_for(flight, wait)
        stack = self.stack
        _check_arrived(before, first.late & ~one.masks.reads)
        for piece in before:
            self._piece(draft, piece, index, first, kernel.live[index])
        is_guarded_exit = one.name == "EXIT" and is_conditional(one)
        draft.move(one, is_guarded_exit)
        if after:
            behind = issue(first, kernel.code, index)
            needed = one.masks.reads | one.masks.writes  # registers that the snippets may need
            _check_arrived(after, behind.late & ~(one.masks.reads & ~one.masks.writes))
            for piece in after:
                self._piece(draft, piece, index + 1, behind, kernel.live[index + 1], needed)
        if one.name != "EXIT" and (one.name != "BRA" or is_conditional(one)):
            draft.end(index + 1)
        draft.wait(0, wait)
        branch = make_branch(index, draft.start, self.table.arch.branch, one.word if is_guarded_exit else 0)
        wait = one.control.wait if is_guarded_exit else 0  # because the branch reads the guard
        control = max(5, one.control.stall) | NO_BARRIER << 5 | NO_BARRIER << 8 | wait << 11
        self.words[index] = branch & ~CONTROL | control << 105
        self.words += draft.words
        self._note_highest(draft)
        self.stack = max(stack, self.stack)
        parts = tuple(draft.parts)
        self.trampolines.append(Trampoline(draft.start, draft.at, parts, unpack(draft.reads), unpack(draft.saved)))

    # Parts

    def _piece(self, draft: Draft, piece: Piece, index: int, flight: InFlight, live: int, needed: int = 0) -> None:
        compiled = piece.compiled
        choice = self._choose(draft, piece, index, flight, live, needed)
        self._save(draft, choice, flight)
        self._give(draft, piece, choice, flight, index)
        names = choice.names
        draft.reads |= sum(1 << register for register in self._direct(piece, choice)) & draft.own
        draft.insert(compiled.snippet, names, flight, piece.guard)
        draft.waits |= compiled.wait
        if compiled.jumps:
            draft.pause()  # after a jump, less time may have passed
        for given in piece.given if piece.returns else ():
            if given.kind != "kept":
                continue
            for k in range(given.count):
                chosen = names["R"].get(given.at + k)
                if chosen is None or not compiled.written.R >> given.at + k & 1:
                    continue
                if given.register is not None and chosen != given.register + k:
                    draft.glue([glue.move(given.register + k, chosen)], flight)
                elif given.slot is not None:
                    word = glue.store_stack(chosen, self._slot(given.slot + SLOT * k, index))
                    draft.glue([with_change(word, read_barrier=STORES)], flight)
                    draft.waits |= 1 << STORES
        self._restore(draft, choice, flight)

    def _choose(self, draft: Draft, piece: Piece, index: int, flight: InFlight, live: int, needed: int) -> Choice:
        """Choose registers. If too few are free because results are in flight, wait for those and try again. If that
        doesn't help, raise the kernel's number of registers.
        """
        fixed, written = self._fixed(piece)
        limits = iter(self._limits)
        limit = next(limits)
        while True:
            late = 0
            for mask, _, is_ours in draft.pending:
                late |= 0 if is_ours else mask
            busy = flight.after_waiting(0) | flight.unawaited | late | self._kept | 1 << STACK_POINTER
            foreign = self._named & ~(_R | 127 << STARTS.P)
            free = ~(live | needed | busy | foreign) & (limit | ~_R)
            has_stack = index > max(0, self.lowered) and self._has_stack
            saveable = live & ~busy & (_R | 127 << STARTS.P) if has_stack else 0
            saveable |= self._steady & ~busy
            saveable &= ~_find_sources(piece)  # which are read after others have been saved and overwritten
            try:
                return choose(piece.compiled, piece.pairs, fixed, written, Room(free, saveable))
            except CannotProbe:
                if late:
                    draft.pause()
                elif (more := next(limits, None)) is not None:
                    limit = more
                else:
                    raise

    def _fixed(self, piece: Piece) -> tuple[dict[int, int], set[int]]:
        """Return the kernel's registers that hold values for which no code is needed, and which of them the snippet may
        write.
        """
        fixed: dict[int, int] = {}
        written: set[int] = set()
        named = piece.compiled.named.R
        for given in piece.given:
            if given.register is None or given.is_computed or given.kind == "guard":
                continue
            for k in range(given.count):
                if named >> given.at + k & 1:
                    fixed[given.at + k] = given.register + k
                    if given.kind == "kept":
                        written.add(given.at + k)
        return fixed, written

    def _direct(self, piece: Piece, choice: Choice) -> list[int]:
        """Return the registers of the site that the snippet reads directly."""
        inputs, names = piece.compiled.snippet.inputs.R, choice.names["R"]
        return [
            given.register + k
            for given in piece.given
            if given.kind == "operand" and given.register is not None and not given.is_computed
            for k in range(given.count)
            if inputs >> given.at + k & 1 and names[given.at + k] == given.register + k
        ]

    def _save(self, draft: Draft, choice: Choice, flight: InFlight) -> None:
        saves = choice.saves
        if saves:
            words = [
                with_change(glue.store_stack(register, self._place(k)), read_barrier=STORES)
                for k, register in enumerate(saves)
            ]
            draft.glue(words, flight)
            draft.waits |= 1 << STORES
            self.stack = max(self.stack, self._slots + SLOT * len(saves))
            draft.saved |= sum(1 << register for register in saves)
        if choice.predicates:
            draft.glue([glue.save_predicates(choice.scratch, choice.predicates)], flight)
            draft.saved |= choice.predicates << STARTS.P
        if choice.uniform:
            draft.glue([glue.save_uniform(to, uniform) for uniform, to in choice.uniform.items()], flight)
            draft.saved |= sum(1 << STARTS.UR + uniform for uniform in choice.uniform)

    def _restore(self, draft: Draft, choice: Choice, flight: InFlight) -> None:
        if choice.uniform:
            draft.glue([glue.restore_uniform(uniform, to) for uniform, to in choice.uniform.items()], flight)
            draft.own |= sum(1 << STARTS.UR + uniform for uniform in choice.uniform)
        if choice.predicates:
            draft.glue([glue.restore_predicates(choice.scratch, choice.predicates)], flight)
            draft.own |= choice.predicates << STARTS.P
        if choice.saves:
            words = [
                with_change(glue.load_stack(register, self._place(k)), write_barrier=LOADS)
                for k, register in enumerate(choice.saves)
            ]
            draft.glue(words, flight)
            draft.waits |= 1 << LOADS
            draft.own |= sum(1 << register for register in choice.saves)

    def _place(self, number: int) -> int:
        """Return the offset of a saved register from the stack pointer."""
        return -self._slots - SLOT * (number + 1)

    def _slot(self, slot: int, index: int) -> int:
        """Return the offset of a kept value from the stack pointer, as it is at an instruction."""
        return slot - self._slots - (self.frame if index <= self.lowered else 0)

    def _give(self, draft: Draft, piece: Piece, choice: Choice, flight: InFlight, index: int) -> None:
        """Write the words that move values to where the snippet expects them."""
        inputs, names = piece.compiled.snippet.inputs.R, choice.names["R"]
        moves: list[int] = []
        for given in piece.given:
            kept = piece.compiled.written.R if piece.guard and given.kind == "kept" else 0  # where the guard is false
            there = [k for k in range(given.count) if (inputs | kept) >> given.at + k & 1]
            if not there:
                continue
            if given.kind == "kept" and given.slot is not None:
                words = [
                    with_change(
                        glue.load_stack(names[given.at + k], self._slot(given.slot + SLOT * k, index)),
                        write_barrier=LOADS,
                    )
                    for k in there
                ]
                draft.glue(words, flight)
                draft.waits |= 1 << LOADS
            elif given.kind == "guard":
                assert given.guard is not None
                draft.reads |= draft.own & 1 << STARTS.P + given.guard.predicate
                draft.glue([glue.select(names[given.at], given.guard)], flight)
            elif given.kind == "zero":
                moves += [glue.move(names[given.at + k], RZ) for k in there]
            elif given.register is None:
                raise CannotProbe("has no register with what the probe reads")
            elif given.is_computed:
                self._add_offset(draft, given, names, flight)
            else:
                moves += [
                    glue.move(names[given.at + k], given.register + k) for k in there
                    if names[given.at + k] != given.register + k
                ]  # fmt: skip
        if moves:
            draft.glue(moves, flight)

    def _add_offset(self, draft: Draft, given: Given, names: dict[int, int], flight: InFlight) -> None:
        assert given.register is not None
        to = names[given.at]
        draft.reads |= draft.own & ((1 << given.count) - 1) << given.register
        if given.count == 1:
            draft.glue([glue.add(to, given.register, given.value)], flight)
            if given.uniform is not None:
                draft.reads |= draft.own & 1 << STARTS.UR + given.uniform
                draft.glue([glue.add_uniform(to, to, given.uniform)], flight)
            return
        draft.glue([glue.set_to(to, 1)], flight)
        draft.glue([glue.add_wide(to, given.register, given.value)], flight)

    def _note_highest(self, draft: Draft) -> None:
        """Keep track of the highest register in our own parts."""
        for part in draft.parts:
            if isinstance(part, Inserted):
                self.highest = max([self.highest, *part.names.get("R", {}).values()])


def _check_arrived(pieces: list[Piece], late: int) -> None:
    """Raise CannotProbe if a value is passed from a register that something may still write without announcing it."""
    if any(_find_sources(piece) & late for piece in pieces):
        raise CannotProbe("has an operand that may not have arrived, which the probe reads")


def _find_sources(piece: Piece) -> int:
    """Return the general registers from which values are passed to a snippet."""
    found = 0
    for one in piece.given:
        found |= ((1 << one.count) - 1) << (RZ if one.register is None else one.register)
    return found & _R
