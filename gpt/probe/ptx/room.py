"""Let histograms count in shared memory, if a launch leaves room for that, and add up the counts when a block ends.

The hook decides this for each launch: it adds dynamic shared memory behind the kernel's own, and sets the lowest bit in
the addresses of the maps. Without that, histograms count in global memory. The code for both is in the kernel, behind
predicates that are the same in all threads.

The room begins with the number of threads that have exited, and 32 bits that nobody reads. After that, there are 32
bits for each bin. At the entry of the kernel, before any code of the program, all threads clear the room and
synchronize once. Where threads exit, one lane adds their number. The last threads of a block see that all others have
exited, and add the bins to the copy of their SM in global memory.

A kernel has no room

- if the program could notice it, because it reads the size of its shared memory,
- if a function that it calls saves to a histogram or ends threads, because this code is only in the kernel itself,
- if it has clusters, since one might no longer fit with more shared memory,
- if the bins take more than MOST bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpt.probe.lower.emit import Condition, Emitter
from gpt.probe.lower.histogram import BIN, NOWHERE, empty_bins, find_address, find_counter, has_no_room
from gpt.probe.model import Position
from gpt.probe.plan.maps import PlacedMap, Room
from gpt.probe.plan.plan import Plan
from gpt.probe.ptx.calls import in_front
from gpt.probe.ptx.edits import DECLARE, KERNEL_EXIT, STATE_IN, Insertions, marked
from gpt.probe.ptx.function import PtxFunction
from gpt.ptx.scan import Module

HEAD = 8  # bytes before the bins: the number of threads that have exited, and the unread word
MOST = 16 << 10
SIZES = ("%dynamic_smem_size", "%total_smem_size", "%aggr_smem_size")  # special registers
CLUSTERS = (".reqnctapercluster", ".maxclusterrank", ".explicitcluster")


def find_room(module: Module, functions: Sequence[PtxFunction], plan: Plan, prefix: str) -> int:
    """Place the bins of histograms in the room, and return the size of the room in bytes, or 0 if there's none."""
    others = [function for function in functions if not function.is_kernel]
    if any(word in module.text for word in (*SIZES, *CLUSTERS)) or any(function.numbers("exit") for function in others):
        return 0
    outside = {(use.file, save.map) for function in others for use in function.uses for save in use.snippet.saves}
    used, size = plan.used_maps, HEAD
    chosen = []
    for number, maps in enumerate(plan.maps):
        for name, placed in maps.items():
            if placed.type == "histogram" and placed in used and not placed.counted and (number, name) not in outside:
                chosen.append((maps, name, size))
                size += -(-placed.bins * BIN // 8) * 8
    if not chosen or size > MOST:
        return 0
    for maps, name, offset in chosen:
        maps[name] = replace(maps[name], room=Room(f"{prefix}room", size, offset))
    return size


def add_room(
    module: Module, entry: PtxFunction, maps: Sequence[PlacedMap], prefix: str, known: Mapping[str, int], to: Insertions
) -> None:
    """Insert the code at the entry of the kernel, and at its exits, after the code of the probes."""
    inside = [placed for placed in maps if placed.room]
    if not inside or not inside[0].room:
        return
    to.add(entry.item.start, DECLARE, [f".extern .shared .align 16 .b8 {inside[0].room.symbol}[];"])
    counters = [find_counter(placed) for placed in inside]
    to.put(entry.item.body + 1, STATE_IN, marked(f".reg .u32 {', '.join([find_address(inside[0].room), *counters])};"))
    code = Emitter(f"{prefix}r_", known=known)
    to.put(entry.item.body + 1, STATE_IN, _clear(code, inside[0], counters, f"${prefix}r"))
    for site in entry.find_sites([Position("kernel")]):
        if site.kind == "entry":
            continue
        at, guard = entry.item.end - 1, None
        if site.kind == "exit":
            at = in_front(entry.statements, site.first)
            text = entry.statements[site.first].guard
            guard = Condition(text.lstrip("@!"), "!" in text) if text else None
        to.put(at, KERNEL_EXIT, _leave(Emitter(f"{prefix}r_", known=known), inside, guard, f"${prefix}r"))


def _clear(code: Emitter, placed: PlacedMap, counters: Sequence[str], label: str) -> str:
    assert placed.room
    done, again = f"{label}_done", f"{label}_again"
    for counter in counters:
        code.put(f"mov.u32 {counter}, 0")
    start = find_address(placed.room)
    code.put(f"mov.u32 {start}, {NOWHERE}")
    bit = code.make("b64", "and.b64", code.once("b64", "ld.param.u64", f"[{placed.param}]"), 1)
    code.put(f"bra.uni {done}", Condition(code.make("pred", "setp.eq.u64", bit, 0)))
    code.put(f"mov.u32 {start}, {placed.room.symbol}")
    code.put(f"add.u32 {start}, {start}, {code.special('%dynamic_smem_size')}")
    code.put(f"sub.u32 {start}, {start}, {placed.room.size}")
    at = code.make("b32", "mad.lo.u32", code.thread(), BIN, start)
    end = code.make("b32", "add.u32", start, placed.room.size)
    threads = code.threads()
    code.lines.append(f"{again}:")
    here = code.make("pred", "setp.lt.u32", at, end)
    code.put(f"st.shared.u32 [{at}], 0", Condition(here))
    code.put(f"add.u32 {at}, {at}, {code.make('b32', 'mul.lo.u32', threads, BIN)}")
    code.put(f"bra {again}", Condition(here))
    code.put("bar.sync 0")
    code.lines.append(f"{done}:")
    return _braced(code)


def _leave(code: Emitter, maps: Sequence[PlacedMap], guard: Condition | None, label: str) -> str:
    room = maps[0].room
    assert room
    done = f"{label}_done"
    code.put(f"bra.uni {done}", has_no_room(code, room))
    start = find_address(room)
    here, group = code.group(guard)
    count = code.make("b32", "popc.b32", group)
    code.put("membar.cta")  # makes their counts visible before they count as exited
    left = code.make("b32", "mov.u32", 0)
    code.put(f"atom.shared.add.u32 {left}, [{start}], {count}", code.both(code.first(group), guard))
    first = code.make("b32", "clz.b32", code.make("b32", "brev.b32", group))
    left = code.make("b32", "shfl.sync.idx.b32", left, first, 31, here)
    threads = code.once("b32", "mov.u32", code.threads())
    last = code.make("pred", "setp.eq.and.u32", code.make("b32", "add.u32", left, count), threads, code.positive(guard))
    nobody = Condition(code.make("pred", "vote.sync.any.pred", last, here), negated=True)
    code.put(f"bra.uni {done}", nobody)
    code.put("membar.cta")
    for number, placed in enumerate(maps):
        base = code.make("b64", "and.b64", code.once("b64", "ld.param.u64", f"[{placed.param}]"), -2)
        empty_bins(code, placed, base, last, group, here, f"{label}_{number}")
    code.lines.append(f"{done}:")
    return _braced(code)


def _braced(code: Emitter) -> str:
    lines = code.take()
    return "".join(map(marked, ["{", *code.declarations(), *lines, "}"]))
