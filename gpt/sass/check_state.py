"""Follow every path through a trampoline, and find what it would do to the kernel.

For each of its instructions, the following is known (State):

- `own`: the registers that have the same values as in the original kernel at this point. At first, these are the live
  ones. When a snippet writes a register, it's removed from the set; when a moved instruction writes it, it's added.
- `defined`: registers that snippets have written in all lanes.
- `copies`: where the kernel's values are kept in the meantime. A snippet may save a live register below the stack
  pointer (STL [R1-16], R4) or in another register (MOV, P2R), use it, and load it back; then it's `own` again. Nothing
  else makes it so: saving is proven, not assumed. A uniform register that the kernel names must be in a copy before a
  snippet writes it, and be restored before the kernel's code runs, live or not, because another lane may need it.
- `kernel` and `ours`: what's in flight, by scoreboard, from the kernel and from the snippet that runs.
- `pending`: results of fixed latency that haven't arrived. `awaited`: all barriers that words have waited for.
- `meetings`: BSSYs whose BSYNC is still to come.

Wherever the kernel's own code runs, in a moved instruction or after the trampoline, every live register must be `own`,
and nothing of ours may be in flight or pending. When a snippet begins, nothing from other snippets is in flight, so
within it, ptxas's own scoreboards and stalls, which are kept, are right.

A branch that only some lanes take splits the warp. Split lanes stay apart until the kernel's next BSYNC, unless a BSSY
of ours says where they meet. So a snippet may branch conditionally only between its BSSY and its BSYNC, on a barrier
that the kernel doesn't name, and all lanes must have met at its end.
"""

from __future__ import annotations

from heapq import heappop, heappush

from gpt.sass.check_inputs import defined_under_guard, iter_missing, iter_undeclared
from gpt.sass.check_known import KERNEL, SHARED, State, Surroundings, facts_of_parts, join
from gpt.sass.check_lanes import Following, follow
from gpt.sass.check_run import Run, find_run, pass_run
from gpt.sass.check_saves import find_restored, holders, is_saving, is_slot, keep_copies, outlive
from gpt.sass.check_time import iter_hazards, iter_late_hazards, pass_time
from gpt.sass.check_word import FACTS, find_facts, find_fresh
from gpt.sass.flow import NOTHING, InFlight, issue, release
from gpt.sass.graph import is_conditional
from gpt.sass.masks import EVERY_REGISTER, STARTS, name_registers, pack, union
from gpt.sass.stalls import BRANCH_CYCLES
from gpt.sass.words import SIZE
from gpt.sass.woven import Inserted, Moved, Trampoline

STACK_POINTER = 1 << 1
_WAITS = {"BAR", "UCGABAR_ARV", "UCGABAR_WAIT", "SYNCS", "ACQBULK"}  # other lanes of the warp may run in the meantime

Fault = tuple[int, str, str]  # instruction, rule, detail


class TrampolineCheck:
    """One trampoline, whose words have already been compared."""

    def __init__(self, around: Surroundings, trampoline: Trampoline) -> None:
        self.around = around
        self.trampoline = trampoline
        self.code = around.new
        self.back = trampoline.sources[-1] + 1
        self.parts: list[int] = []  # each instruction's part
        for number, part in enumerate(trampoline.parts):
            self.parts += [number] * part.length
        self._joins = around.list_joins(trampoline)
        self._facts = facts_of_parts(around, trampoline)
        self._known = self.code.table.memo(FACTS)
        self._beyond, self._shared = ~around.usable, around.shared
        self._busy: tuple[InFlight, int, int] = NOTHING, 0, 0
        self.reads = self.saved = 0
        self.faults: list[Fault] = []
        self.persistent = pack(around.declaration.persistent)
        self._site_waits = around.original.code.controls.waits[trampoline.sources[0]]
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
        states: dict[int, State] = {self.trampoline.start: start}
        left = [self.trampoline.start]  # a heap: a word is usually visited once, after all that lead to it
        passed = set()  # only one path leads to these
        while left and len(self.faults) < 50:
            at = heappop(left)
            after = self._step(at, states[at])
            while len(after) == 1 and after[0][0] not in self._joins and len(self.faults) < 50:
                passed.add(after[0][0])
                after = self._step(*after[0])
            for index, arriving in after:
                known = states.get(index)
                joined = join(known, arriving)
                if joined is None:
                    self.faults.append((index, "lanes", "paths meet here with different BSSYs open"))
                elif joined != known:
                    states[index] = joined
                    if index not in left:
                        heappush(left, index)
        self.faults += iter_undeclared(self.trampoline, kernel.code, self.reads, self.saved)
        if not self.faults:
            passed |= states.keys()
            missed = [part.start for part in self.trampoline.parts if part.start not in passed]
            self.faults += [(index, "reach", "nothing leads to this part") for index in missed]
        return list(dict.fromkeys(self.faults))

    def _fault(self, index: int, rule: str, mask: int, text: str) -> None:
        if mask:
            self.faults.append((index, rule, f"{name_registers(mask)} {text}"))

    def _step(self, index: int, state: State) -> Following:
        place = index - self.trampoline.start
        if not 0 <= place < len(self.parts):  # the branch back
            if index != self.trampoline.end - 1:
                self.faults.append((index, "reach", "it runs out of the trampoline"))
                return ()
            self._end(index, state, release(state.ours, self.code, index), self.back)
            return ()
        number = self.parts[place]
        part = self.trampoline.parts[number]
        if state.part != number:
            if state.ours is not NOTHING:
                rest = release(state.ours, self.code, index)
                self._fault(index, "scoreboard", rest.after_waiting(0), "isn't awaited where a part ends")
                self._fault(index, "scoreboard", rest.unawaited, "is read by something that no barrier announces")
            if state.meetings:
                self.faults.append((index, "lanes", "a part ends between BSSY and BSYNC"))
            if isinstance(part, Inserted):
                self._enter(index, number, part, state)
            state = State(*state[:4], NOTHING, state.pending, (), number, state.awaited)
        if isinstance(part, Inserted):
            return self._insert(index, part, number, state)
        return self._move(index, part, state)

    def _enter(self, index: int, number: int, part: Inserted, state: State) -> None:
        """Check the values that a snippet gets."""
        if part.start != index:
            self.faults.append((index, "reach", "a jump leads into a snippet"))
        renaming = self.around.renaming(part)
        kept = renaming.given & state.own & ~state.defined
        if kept and not all(is_saving(self.code[k]) for k in range(part.start, part.start + part.length)):
            self.reads |= kept
        known = state.own | state.defined | defined_under_guard(self.trampoline, number, self.code)
        for mask, text in iter_missing(part, renaming, known, state.own):
            self._fault(index, "undefined", mask, text)

    def _insert(self, index: int, part: Inserted, number: int, state: State) -> Following:
        """Run words of a snippet up to a place where paths may meet or part. Return the states after them."""
        around, code, known = self.around, self.code, self._known
        words, end, joins = code.words, part.start + part.length, around.joins
        usable_at_site, next_live = self._facts[number]
        stop = min([end, *(join for join in self._joins if join > index)]) if self._joins else end
        run = find_run(code, index, stop)
        if run.depth <= around.declaration.stack and (passed := self._pass(run, index, part, state)):
            self.saved |= run.writes & state.own & next_live
            last = index + run.length - 1
            return self._follow(last, part, passed) if run.flows else ((last + 1, passed),)
        beyond, shared = self._beyond | STACK_POINTER, self._shared
        own, defined, copies, flight, ours, pending, meetings, _, awaited = state
        gathering = 0  # the barriers in `meetings`
        for meeting in meetings:
            gathering |= 1 << STARTS.B + meeting
        held = holders(copies)
        clock, late = 0, list(pending)  # their cycles left become the cycle in which they arrive
        late_named = union(mask for mask, _, _ in pending)
        arriving, busy = self._find_busy(flight, usable_at_site, awaited)
        started, in_use = NOTHING, 0
        while True:
            word = known.get(words[index]) or find_facts(code[index], code.table)
            _, _, _, _, read, written, named, stall, wait, fresh, keeps, restores, flows, starts = word
            if word.is_forbidden:
                self.faults.append((index, "forbidden", f"{word.name} in a snippet"))
                return ()
            if named & beyond:
                self._fault(index, "count", named & self._beyond, "is beyond the register count")
                self._fault(index, "stack", written & STACK_POINTER, "is the stack pointer")
            if written & shared:
                kept = sum(1 << number for number in {copy[2] for copy in copies}) & around.original.steady
                wrong = written & shared & ~kept
                self._fault(index, "shared", wrong, "is named by the kernel, and other lanes may need it")
            awaited |= wait
            if flight is not NOTHING:
                if wait:
                    flight = release(flight, code, index)
                    arriving, busy = self._find_busy(flight, usable_at_site, awaited)
                if read & arriving | written & busy:
                    self._fault(index, "in flight", read & arriving | written & busy, "is still being read or written")
            if late_named & named:
                late = [one for one in late if one[1] > clock]
                for rule, mask, text in iter_late_hazards(word, late, number, clock):
                    self._fault(index, rule, mask, text)
                late = [(mask & ~written, due, other) for mask, due, other in late if mask & ~written]
                late_named = union(mask for mask, _, _ in late)
            self.saved |= written & own & next_live
            if keeps or (copies and (written & held or restores or word.is_local)):
                # Where lanes are split, the others may have overwritten a uniform register already
                kept_copies = keep_copies(code[index], copies, own & ~SHARED if meetings else own)
                own = own & ~written | find_restored(code[index], copies)
                copies, held = kept_copies, holders(kept_copies)
            else:
                own &= ~written
            if word.is_local and not is_slot(code[index], around.declaration.stack):
                self.faults.append((index, "stack", "local memory that isn't the probe's"))
            if ours is not NOTHING:
                ours = release(ours, code, index) if wait else ours
                if ours is not started:
                    started, in_use = ours, ours.after_waiting(0) | ours.unawaited
                if named & in_use:
                    for rule, mask, text in iter_hazards(word, ours):
                        self._fault(index, rule, mask, text)
            if starts:
                ours = issue(ours, code, index)
            clock += stall
            for mask, left in fresh:
                late.append((mask, clock + left, number))
                late_named |= mask
            if part.guard is None and not word.guard:
                defined |= written
            if flows or written & gathering or index + 1 == end or index + 1 in joins:
                break
            index += 1
        pending = frozenset((mask, due - clock, other) for mask, due, other in late if due > clock)
        state = State(own, defined, copies, flight, ours, pending, meetings, number, awaited)
        return self._follow(index, part, state) if flows or written & gathering else ((index + 1, state),)

    def _pass(self, run: Run, index: int, part: Inserted, state: State) -> State | None:
        """Return the state after a run of words, or None if they have to be followed one by one (check_run.py)."""
        flight, awaited = state.kernel, state.awaited | run.first_wait
        if flight is not NOTHING:
            flight = release(flight, self.code, index)
            arriving, busy = self._find_busy(flight, self._facts[state.part][0], awaited)
            if run.reads & arriving or run.writes & busy:
                return None
        fixed = run.named & self._beyond | run.writes & (self._shared | STACK_POINTER)
        return None if fixed else pass_run(run, state._replace(kernel=flight), self.code, index, part.guard is not None)

    def _find_busy(self, flight: InFlight, usable_at_site: int, awaited: int) -> tuple[int, int]:
        """Return the registers that earlier instructions may still write when a snippet reads them, and all that are in
        flight. Those in `usable_at_site` have arrived once all barriers of the site were awaited.
        """
        if self._busy[0] is not flight:
            self._busy = flight, union(flight.writes), flight.after_waiting(0) | flight.unawaited
        _, arriving, busy = self._busy
        usable = 0 if self._site_waits & ~awaited else usable_at_site
        return arriving | flight.late & ~usable, busy

    def _follow(self, index: int, part: Inserted, state: State) -> Following:
        text, following = follow(self.code[index], part.start + part.length, state)
        if text:
            self.faults.append((index, "lanes", text))
        return following

    def _move(self, index: int, part: Moved, state: State) -> Following:
        """Run a moved instruction, after checking that everything it reads is there."""
        kernel = self.around.original
        source = kernel.code[part.source]
        self._fault(index, "live", self.around.needed(part.source) & ~state.own, "isn't what the kernel left there")
        read, written, *_ = source.masks
        for mask, left, other in state.pending:
            if other != KERNEL and isinstance(self.trampoline.parts[other], Inserted):
                self._fault(index, "stall", mask & (read | written), f"isn't there yet, {left} cycles too early")
        one, stall, wait = self.code[index], self.code.controls.stalls[index], self.code.controls.waits[index]
        copies = state.copies and outlive(state.copies, written, SHARED)
        if one.name == "EXIT" and not is_conditional(one):
            return ()
        state = State(
            state.own | written,
            state.defined & ~(written | (SHARED if source.name in _WAITS else 0)),
            copies,
            issue(release(state.kernel, self.code, index), self.code, index),
            state.ours,
            pass_time(state.pending, state.part, one.masks.writes, stall, find_fresh(one, stall)),
            state.meetings,
            state.part,
            state.awaited | wait,
        )
        if one.name == "BRA":
            assert one.target is not None
            self._end(index, state, state.ours, one.target // SIZE)
            if not is_conditional(one):
                return ()
        return ((index + 1, state),)

    def _end(self, index: int, state: State, ours: InFlight, to: int) -> None:
        """Check the state that the kernel finds when it continues at `to`."""
        self._fault(index, "live", self.around.needed(to) & ~state.own, "isn't what the kernel left there")
        if ours is not NOTHING:
            rest = ours.after_waiting(0) | ours.unawaited
            self._fault(index, "scoreboard", rest, "is still in flight at the branch back")
        if state.meetings:
            self.faults.append((index, "lanes", "the branch back is between BSSY and BSYNC"))
        stall = max(self.code.controls.stalls[index], BRANCH_CYCLES)
        for mask, left, other in state.pending:
            is_ours = other != KERNEL and isinstance(self.trampoline.parts[other], Inserted)
            if is_ours and left > stall:
                self._fault(index, "stall", mask & EVERY_REGISTER, "isn't there yet at the branch back")
        self.ends.append(state)
