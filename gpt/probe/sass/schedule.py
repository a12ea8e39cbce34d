"""Reorder the words of a snippet, so that slow results are requested first and awaited together.

While a warp waits for a snippet's special registers and constants, none of its other code runs. ptxas requests them one
after the other, because it compiles a snippet with few registers, and expects other code around it.

Words are ordered by list scheduling: among the words that may issue, the one with the longest way to the end goes
first. Only the words before the first jump are reordered, and only if the table knows all that they do. Accesses to
memory keep their order. A word that needs the result of another comes at least as many cycles after it as ptxas left
between them, or as stalls.py requires, if that's fewer.

At an exit of the kernel, the kernel needs no register anymore. So there, each slow result gets a register of its own,
and may be requested right after the first reading of a clock. Elsewhere, nothing is moved across such a reading.
"""

from __future__ import annotations

from typing import NamedTuple

from gpt.probe.sass.draft import LONG
from gpt.probe.sass.renaming import Renamer
from gpt.sass.check_words import LAST_PLAIN_STALL
from gpt.sass.code import Code, Instruction
from gpt.sass.stalls import iter_safe
from gpt.sass.tables import Table
from gpt.sass.words import bits, control_of, dump_words, with_control

LEAST = 3  # words that are worth it
SLOW = {  # estimated cycles until the result arrives
    **dict.fromkeys(("S2R", "S2UR"), 30),
    **dict.fromkeys(("POPC", "FLO", "BREV"), 20),
    "LDC": 35,
    "R2UR": 13,
    "REDUX": 15,
}
_KNOWN = {  # instructions that may be reordered: they only compute, or access memory that no barrier orders
    *("IADD3", "IMAD", "MOV", "LOP3", "SHF", "SEL", "LEA", "IABS", "ISETP", "PLOP3", "IMNMX", "VIADD", "VIMNMX"),
    *("PRMT", "P2R", "R2P", "HFMA2", "CS2R", "S2R", "S2UR", "LDC", "POPC", "FLO", "BREV", "R2UR", "VOTE", "VOTEU"),
    *("UIADD3", "UIMAD", "ULOP3", "USHF", "ULEA", "UMOV", "UISETP", "USEL", "UPLOP3", "ULDC", "UPOPC", "UFLO"),
    *("STG", "REDG", "REDUX"),
}
_CLOCKS = set(range(80, 88))  # special registers that are clocks
_SOURCE = 72  # the bit at which the number of a special register begins


class _Edge(NamedTuple):
    """A word that must come at least `cycles` later. `soft` is a number of cycles that only guides the order."""

    to: int
    cycles: int
    soft: int


def reorder(words: list[int], table: Table, *, at_exit: bool = False, returned: int = 0) -> list[int]:
    """Return the words in another order. Each must have the scoreboards that announce what it leaves in flight. The
    waits have to be found again afterwards (waits.py). `returned` are the general registers that are needed at the end.
    """
    code = Code(dump_words(words), table)
    count = 0
    while count < len(code) and not _is_fence(code[count]):
        count += 1
    if count < LEAST or any(code[index].name not in _KNOWN or not code[index].exact for index in range(count)):
        return words
    if at_exit and count == len(code):
        code = Code(dump_words(_spread(words, table, returned)), table)
    some = [code[index] for index in range(count)]
    edges = _find_edges(some, at_exit)
    found = _with_stalls(some, _order(edges, some, at_exit), edges)
    return words if found is None else found + words[count:]


def _is_fence(one: Instruction) -> bool:
    return one.entry.target is not None or one.name in ("BSSY", "BSYNC", "RET", "EXIT")


def reads_clock(one: Instruction) -> bool:
    """Return whether an instruction reads one of the clocks."""
    return one.name in ("CS2R", "S2R", "S2UR") and bits(one.word, _SOURCE, 8) in _CLOCKS


def _spread(words: list[int], table: Table, returned: int) -> list[int]:
    """Give each slow result and each predicate a register of its own, if that register is written again later, or not
    needed at the end.
    """
    renamer = Renamer(words, table)
    for index, word in enumerate(words):
        for field in renamer.fields[index]:
            file, is_slow = field.operand.file, table.opcode(word).name in SLOW
            if file == "P" or (file in ("R", "UR") and is_slow):
                needed = returned if file == "R" else 0
                renamer.rename(index, field, len(words), needed=bool(needed >> field.number & 1))
    return renamer.words


def _find_edges(some: list[Instruction], at_exit: bool) -> list[list[_Edge]]:
    """Return for each word the words that depend on it. The last list belongs to the end of all words."""
    at, now = [], 0
    for one in some:
        at.append(now)
        now += max(1, one.control.stall)
    at.append(now)
    edges: list[list[_Edge]] = [[] for _ in at]
    for first, one in enumerate(some):
        safe = list(iter_safe(one.entry, one.masks.writes))
        for second in range(first + 1, len(some)):
            other = some[second]
            used = one.masks.writes & (other.masks.reads | other.masks.writes)
            if not (used or one.masks.reads & other.masks.writes or _keep_order(one, other, at_exit)):
                continue
            least = max((cycles for mask, cycles in safe if mask & used), default=1)
            cycles = max(1, min(least, at[second] - at[first]))
            edges[first].append(_Edge(second, cycles, SLOW.get(one.name, 1) if used and one.variable else cycles))
        least = max((cycles for _, cycles in safe), default=1)
        edges[first].append(_Edge(len(some), max(1, min(least, at[-1] - at[first])), 1))
    return edges


def _keep_order(one: Instruction, other: Instruction, at_exit: bool) -> bool:
    """Return whether two words stay in order although they share no register."""
    fixed = [some.memory not in (None, "constant") or reads_clock(some) for some in (one, other)]
    return all(fixed) or (not at_exit and (reads_clock(one) or reads_clock(other)))


def _order(edges: list[list[_Edge]], some: list[Instruction], at_exit: bool) -> list[int]:
    """Return the words in their new order."""
    count = len(some)
    rest = [0] * (count + 1)  # cycles from a word to the end
    waiting = [0] * (count + 1)
    for first in range(count - 1, -1, -1):
        rest[first] = max(max(edge.cycles, edge.soft) + rest[edge.to] for edge in edges[first])
        for edge in edges[first]:
            waiting[edge.to] += 1
    first_clock = next((index for index, one in enumerate(some) if at_exit and reads_clock(one)), count)
    rest[first_clock] += sum(rest)
    ready = {index: 0 for index in range(count) if not waiting[index]}
    earliest = [0] * (count + 1)
    order: list[int] = []
    now = 0
    while ready:
        able = [index for index, time in ready.items() if time <= now] or [min(ready, key=lambda index: ready[index])]
        chosen = max(able, key=lambda index: (rest[index], -index))
        now = max(now, ready.pop(chosen))
        order.append(chosen)
        for edge in edges[chosen]:
            earliest[edge.to] = max(earliest[edge.to], now + max(edge.cycles, edge.soft))
            waiting[edge.to] -= 1
            if not waiting[edge.to] and edge.to < count:
                ready[edge.to] = earliest[edge.to]
        now += 1
    return order


def _with_stalls(some: list[Instruction], order: list[int], edges: list[list[_Edge]]) -> list[int] | None:
    """Return the words in their new order, each with the stall that the words after it need, and without waits. Return
    None if a stall would be too long.
    """
    due = [0] * len(edges)  # the earliest cycle for each word
    now, found = 0, []
    for place, index in enumerate(order):
        for edge in edges[index]:
            due[edge.to] = max(due[edge.to], now + edge.cycles)
        following = order[place + 1] if place + 1 < len(order) else len(order)
        stall = max(1, due[following] - now)
        if stall > LONG:
            return None
        word = some[index].word
        control = control_of(word)._replace(stall=stall, hint=stall <= LAST_PLAIN_STALL, wait=0, reuse=0)
        found.append(with_control(word, control))
        now += stall
    return found
