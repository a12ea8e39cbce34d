"""Follow every path through a trampoline, and find what it would do to the kernel.

For each of its instructions, the following is known (State):

- `own`: the registers that have the same values as in the original kernel at this point. At first, these are the live
  ones. When a snippet writes a register, it's removed from the set; when a moved instruction writes it, it's added.
- `defined`: registers that snippets have written.
- `copies`: where the kernel's values are kept in the meantime. A snippet may save a live register below the stack
  pointer (STL [R1-16], R4) or in another register (MOV, P2R), use it, and load it back; then it's `own` again. Nothing
  else makes it so: saving is proven, not assumed. A uniform register that the kernel names must be in a copy before a
  snippet writes it, and be restored before the kernel's code runs, live or not, because another lane may need it.
- `kernel` and `ours`: what's in flight, by scoreboard, from the kernel and from the snippet that runs.
- `pending`: results of fixed latency that haven't arrived.
- `meetings`: BSSYs whose BSYNC is still to come.

Wherever the kernel's own code runs, in a moved instruction or after the trampoline, every live register must be `own`,
and nothing of ours may be in flight or pending. When a snippet begins, nothing from other snippets is in flight, so
within it, ptxas's own scoreboards and stalls, which are kept, are right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

from gpt.sass import check_again as again
from gpt.sass.check_known import KERNEL, SHARED, State, Surroundings, join
from gpt.sass.check_lanes import Fault, follow
from gpt.sass.check_saves import find_restored, is_slot, keep_copies
from gpt.sass.check_time import iter_hazards, pass_time, union
from gpt.sass.check_word import FACTS, WordFacts, find_facts, find_fresh
from gpt.sass.check_words import rename
from gpt.sass.flow import NOTHING, InFlight, issue, wait_for
from gpt.sass.graph import is_conditional
from gpt.sass.masks import EVERY_REGISTER, STARTS, name_registers, pack
from gpt.sass.stalls import BRANCH_CYCLES
from gpt.sass.words import PT, SIZE
from gpt.sass.woven import Inserted, Moved, Trampoline

STACK_POINTER = 1 << 1
_WAITS = {"BAR", "UCGABAR_ARV", "UCGABAR_WAIT", "SYNCS", "ACQBULK"}  # other lanes of the warp may run in the meantime

MAX_FAULTS = 50
EVERYWHERE = 1 << 62  # beyond any word

Step = Callable[[int, State], Iterable[tuple[int, State]]]


class TrampolineCheck:
    """One trampoline, whose words have already been compared."""

    def __init__(self, around: Surroundings, trampoline: Trampoline) -> None:
        self.around = around
        self.trampoline = trampoline
        self.code = around.new
        self.parts: dict[int, int] = {}  # each instruction's part
        for number, part in enumerate(trampoline.parts):
            self.parts.update(dict.fromkeys(range(part.start, part.start + part.length), number))
        self._facts: dict[int, tuple[int, int]] = {}
        self._known = self.code.table.memo(FACTS)
        self._beyond, self._shared = ~around.usable, around.shared
        self._busy: tuple[InFlight, int, int] = NOTHING, 0, 0
        self.reads = self.saved = 0
        self.faults: list[Fault] = []
        self.persistent = pack(around.declaration.persistent)
        self.back = trampoline.sources[-1] + 1
        self.ends: list[State] = []

    def run(self) -> list[Fault]:
        """Return what's wrong."""
        kernel = self.around.original
        first = self.trampoline.sources[0]
        flight = self.around.flight[first]
        if flight is None:
            return [(first, "reach", "nothing leads to this place")]
        defined = 0 if first == 0 else self.persistent
        has_stack = first != 0 and kernel.has_usual_entry
        own = self.around.needed(first) | (STACK_POINTER if has_stack else 0)
        pending = frozenset((written, cycles, KERNEL) for written, cycles in kernel.find_late(first))
        start = State(own, defined, frozenset(), flight, NOTHING, pending, (), KERNEL)
        self._follow_all(self.trampoline.start, start, EVERYWHERE, self._step_or_pass)
        self._compare_sets()
        return list(dict.fromkeys(self.faults))

    def _follow_all(self, start: int, state: State, end: int, step: Step) -> dict[int, State]:
        """Follow all paths from `start` up to words at `end` or later. Return the state at each word."""
        states = {start: state}
        left = [start]  # a heap: a word is usually visited once, after all that lead to it
        while left and left[0] < end and len(self.faults) < MAX_FAULTS:
            at = heappop(left)
            for index, arriving in step(at, states[at]):
                known = states.get(index)
                joined = join(known, arriving)
                if joined is None:
                    self.faults.append((index, "lanes", "paths meet here with different BSSYs open"))
                elif joined != known:
                    states[index] = joined
                    if index not in left:
                        heappush(left, index)
        return states

    def _step_or_pass(self, index: int, state: State) -> Iterable[tuple[int, State]]:
        """Run a word, or if a long snippet begins with it, all of the snippet."""
        number = self.parts.get(index)
        part = self.trampoline.parts[number] if number is not None else None
        if number is None or not isinstance(part, Inserted) or part.start != index or part.length < again.SHORTEST:
            return self._step(index, state)
        known = self._know(part)
        mask = again.with_copies(known.mask, state)
        around = self.around
        sets = self._beyond, self._shared, around.original.steady, *self._facts_of(number)
        key = again.make_key(state, number, mask, *sets)
        result = known.results.get(key)
        end = index + part.length
        if result is None:
            faults, reads, saved = len(self.faults), self.reads, self.saved
            self.reads = self.saved = 0
            states = self._follow_all(index, state, end, self._step)
            found = again.make_result(states.get(end, state), number, self.reads, self.saved)
            self.reads, self.saved = self.reads | reads, self.saved | saved
            leaving = [(at, after) for at, after in states.items() if not index <= at < end]
            if len(self.faults) == faults and [at for at, _ in leaving] == [end]:
                known.keep(key, found)
            return leaving
        self.reads |= result.reads
        self.saved |= result.saved
        return ((end, again.apply(result, state, number, mask)),)

    def _know(self, part: Inserted) -> again.Known:
        """Return what's known about a snippet with these names."""
        words = tuple(self.code.words[part.start : part.start + part.length])
        memo = self.code.table.memo("check_again")
        names = ((file, *some.items()) for file, some in part.names.items())
        key = words, part.snippet.inputs, part.guard, self.around.declaration.stack, *names
        found: again.Known | None = memo.get(key)
        if found is None:
            if len(memo) >= again.KEPT:
                memo.clear()
            mask = rename(pack(part.snippet.inputs), part)
            if part.guard:
                mask |= 1 << STARTS.P + part.guard.predicate
            for index, word in enumerate(words, part.start):
                mask |= again.mask_of(self._word(index), word)
            found = memo[key] = again.Known(mask)
        return found

    def _compare_sets(self) -> None:
        named = 0
        for source in self.trampoline.sources:
            read, written, *_ = self.around.original.code.masks[source]
            named |= read | written
        declared = pack(self.trampoline.reads)
        for text, mask in (
            ("read, but not declared", self.reads & ~declared),
            ("declared as read, but not read", declared & ~self.reads),
            ("read, but not the moved instructions'", declared & ~named),
            ("overwritten, but not declared as saved", self.saved & ~pack(self.trampoline.saved)),
            ("declared as saved, but not overwritten", pack(self.trampoline.saved) & ~self.saved),
        ):
            if mask:
                self.faults.append((self.trampoline.start, "declared", f"{name_registers(mask)}: {text}"))

    def _fault(self, index: int, rule: str, mask: int, text: str) -> None:
        if mask:
            self.faults.append((index, rule, f"{name_registers(mask)} {text}"))

    def _step(self, index: int, state: State) -> Iterable[tuple[int, State]]:
        number = self.parts.get(index)
        if number is None:  # the branch back
            if index != self.trampoline.end - 1:
                self.faults.append((index, "reach", "it runs out of the trampoline"))
                return ()
            self._end(index, state._replace(ours=wait_for(state.ours, self.code.controls.waits[index])), self.back)
            return ()
        part = self.trampoline.parts[number]
        wait = self.code.controls.waits[index]
        if state.part != number:
            rest = wait_for(state.ours, wait)
            self._fault(index, "scoreboard", rest.after_waiting(0), "isn't awaited where a part ends")
            self._fault(index, "scoreboard", rest.unawaited, "is read by something that no barrier announces")
            if state.meetings:
                self.faults.append((index, "lanes", "a part ends between BSSY and BSYNC"))
            if isinstance(part, Inserted):
                self._enter(index, part, state)
            state = state._replace(ours=NOTHING, part=number, meetings=())
        if wait and state.kernel != NOTHING:
            state = state._replace(kernel=wait_for(state.kernel, wait))
        return self._move(index, part, state) if isinstance(part, Moved) else self._insert(index, part, number, state)

    def _word(self, index: int) -> WordFacts:
        found: WordFacts | None = self._known.get(self.code.words[index])
        return found or find_facts(self.code[index], self.code.table)

    def _enter(self, index: int, part: Inserted, state: State) -> None:
        """Check the values that a snippet gets."""
        if part.start != index:
            self.faults.append((index, "reach", "a jump leads into a snippet"))
        inputs = pack(part.snippet.inputs)
        given = rename(inputs, part)
        kept = given & state.own & ~state.defined
        words = range(part.start, part.start + part.length)
        if kept and not all(self._word(k).is_saving for k in words):
            self.reads |= kept
        self._fault(index, "undefined", given & ~state.own & ~state.defined, "is read, but nobody has written it")
        guard = 1 << STARTS.P + part.guard.predicate if part.guard and part.guard.predicate != PT else 0
        self._fault(index, "undefined", guard & ~state.own, "is the guard, but no longer what it was")
        read = written = 0
        for masks in self.code.masks[words.start : words.stop]:
            read, written = read | masks.reads, written | masks.writes
        self._fault(index, "undefined", written & guard, "is the guard, and overwritten")
        self._fault(index, "undefined", read & ~(written | given | guard), "is read, but isn't an input")
        if given.bit_count() != inputs.bit_count():
            self.faults.append((index, "undefined", "an input without a name"))

    def _insert(self, index: int, part: Inserted, number: int, state: State) -> Iterable[tuple[int, State]]:
        word = self._word(index)
        _, read, written, named, *_ = word
        around = self.around
        if word.is_forbidden:
            self.faults.append((index, "forbidden", f"{word.name} in a snippet"))
            return ()
        own, defined, copies, flight, ours, pending, meetings, _ = state
        usable_at_site, next_live = self._facts_of(number)
        if named & self._beyond or written & STACK_POINTER:
            self._fault(index, "count", named & self._beyond, "is beyond the register count")
            self._fault(index, "stack", written & STACK_POINTER, "is the stack pointer")
        if shared := written & self._shared:
            kept = sum(1 << number for number in {copy[2] for copy in copies}) & around.original.steady
            self._fault(index, "shared", shared & ~kept, "is named by the kernel, and other lanes may need it")
        if flight is not NOTHING:
            arriving, busy = self._find_busy(flight)
            if late := read & (arriving | flight.late & ~usable_at_site) | written & busy:
                self._fault(index, "in flight", late, "is still being read or written")
        for mask, _, other in pending:
            if other != number and mask & named:
                self._fault(index, "stall", mask & named, "isn't there yet")
        self.saved |= written & own & next_live
        if copies or word.keeps:
            # Where lanes are split, the others may have overwritten a uniform register already
            kept_copies = keep_copies(self.code[index], copies, own & ~SHARED if meetings else own)
            own = own & ~written | find_restored(self.code[index], copies)
            copies = kept_copies
        else:
            own &= ~written
        if word.is_local and not is_slot(self.code[index], around.declaration.stack):
            self.faults.append((index, "stack", "local memory that isn't the probe's"))
        if pending or ours is not NOTHING:
            for rule, mask, text in iter_hazards(word, ours, pending, number):
                self._fault(index, rule, mask, text)
        if word.changes_flight:
            ours = issue(ours, self.code, index)
        pending = pass_time(pending, number, written, word.stall, word.fresh)
        state = State(own, defined | written, copies, flight, ours, pending, meetings, number)
        if word.flows or meetings:
            return follow(self.code[index], part, state, self.faults)
        return ((index + 1, state),)

    def _find_busy(self, flight: InFlight) -> tuple[int, int]:
        """Return the registers that instructions with a barrier may still write, and all that are in flight."""
        if self._busy[0] is not flight:
            self._busy = flight, union(flight.writes), flight.after_waiting(0) | flight.unawaited
        return self._busy[1:]

    def _facts_of(self, number: int) -> tuple[int, int]:
        """Return two sets for a part. The first one has the registers that the first moved instruction reads and no
        moved instruction wrote, so their values have arrived. The second one has the registers that are live at the
        kernel's next instruction.
        """
        found = self._facts.get(number)
        if found is None:
            following = self._next_source(number)
            live = self.around.needed(following) if following is not None else 0
            found = self._facts[number] = self._usable_at_site(number), live
        return found

    def _usable_at_site(self, number: int) -> int:
        """Return the registers that the first moved instruction reads and no moved instruction wrote."""
        code = self.around.original.code
        found = code.masks[self.trampoline.sources[0]].reads
        for part in self.trampoline.parts[:number]:
            if isinstance(part, Moved):
                found &= ~code.masks[part.source].writes
        return found

    def _move(self, index: int, part: Moved, state: State) -> Iterator[tuple[int, State]]:
        """Run a moved instruction, after checking that everything it reads is there."""
        kernel = self.around.original
        source = kernel.code[part.source]
        self._fault(index, "live", self.around.needed(part.source) & ~state.own, "isn't what the kernel left there")
        read, written, *_ = source.masks
        for mask, left, other in state.pending:
            if other != KERNEL and isinstance(self.trampoline.parts[other], Inserted):
                self._fault(index, "stall", mask & (read | written), f"isn't there yet, {left} cycles too early")
        one, stall = self.code[index], self.code.controls.stalls[index]
        copies = frozenset(
            copy for copy in state.copies
            if not (written | SHARED) >> copy[2] & 1
            and not (written & STACK_POINTER if copy[0] == "stack" else written >> copy[1] & 1)
        )  # fmt: skip
        state = state._replace(
            own=state.own | written,
            defined=state.defined & ~(written | (SHARED if source.name in _WAITS else 0)),
            copies=copies,
            kernel=issue(state.kernel, self.code, index),
            pending=pass_time(state.pending, state.part, one.masks.writes, stall, find_fresh(one, stall)),
        )
        if one.name == "EXIT":
            if is_conditional(one):
                yield index + 1, state
            return
        if one.name == "BRA":
            assert one.target is not None
            self._end(index, state, one.target // SIZE)
            if not is_conditional(one):
                return
        yield index + 1, state

    def _end(self, index: int, state: State, to: int) -> None:
        """Check the state that the kernel finds when it continues at `to`."""
        self._fault(index, "live", self.around.needed(to) & ~state.own, "isn't what the kernel left there")
        rest = state.ours
        self._fault(
            index, "scoreboard", rest.after_waiting(0) | rest.unawaited, "is still in flight at the branch back"
        )
        if state.meetings:
            self.faults.append((index, "lanes", "the branch back is between BSSY and BSYNC"))
        stall = max(self.code.controls.stalls[index], BRANCH_CYCLES)
        for mask, left, other in state.pending:
            is_ours = other != KERNEL and isinstance(self.trampoline.parts[other], Inserted)
            if is_ours and left > stall:
                self._fault(index, "stall", mask & EVERY_REGISTER, "isn't there yet at the branch back")
        self.ends.append(state)

    def _next_source(self, number: int) -> int | None:
        """Return the kernel's instruction that follows a part, if there is one."""
        for part in self.trampoline.parts[number:]:
            if isinstance(part, Moved):
                return part.source
        return self.back if self.back < len(self.around.original.code) else None
