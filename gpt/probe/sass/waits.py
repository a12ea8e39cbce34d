"""Lengthen stalls in the code that ptxas compiled for a snippet, and add the waits that a function leaves to its
caller.

ptxas knows that a caller can overwrite its arguments only after the function has returned. So it makes the RET wait
until loads have arrived, but not until stores have read their operands. In a trampoline, the code after the snippet may
overwrite these operands, so a store without a scoreboard gets one. We wait for the scoreboard of each result, even
where ptxas has concluded that it isn't necessary.

ptxas 13.0 may leave 3 cycles between an IMAD.WIDE and an IADD3 or LOP3 that reads its lower half, although 5 are needed
(docs/sass-rules.md). Usually, there's an R2UR between them, which may take longer than its stall says. Nobody has
measured that, so the stalls alone have to be sufficient.
"""

from __future__ import annotations

from gpt.probe.sass.draft import LONG, with_change
from gpt.sass.code import Code
from gpt.sass.flow import SHORTEST, in_flight_before
from gpt.sass.graph import make_graph
from gpt.sass.kernels import Kernel
from gpt.sass.stalls import iter_safe
from gpt.sass.tables import Table
from gpt.sass.words import BARRIERS, NO_BARRIER, PT, control_of, dump_words, with_control

_END = 0x94D | PT << 12 | 7 << 110 | 7 << 113 | PT << 87  # EXIT

_STORES = {"STG", "ST", "REDG", "RED"}
UNITS = dict.fromkeys(("BREV", "FLO", "POPC"), "XU")  # units shared by several instructions; the others have their own


def announce_stores(kernel: Kernel) -> dict[int, int]:
    """Return the words of a kernel's stores without a scoreboard, each with one added, by index."""
    code = kernel.code
    waits = [sum(wait >> barrier & 1 for wait in code.controls.waits) for barrier in range(BARRIERS)]
    rarely = min(range(BARRIERS), key=lambda barrier: waits[barrier])
    found = {}
    for one in map(code.__getitem__, code.find(_STORES)):
        control = one.control
        if one.variable and control.read_barrier == control.write_barrier == NO_BARRIER:
            stall = max(SHORTEST, control.stall)
            found[one.index] = with_control(one.word, control._replace(read_barrier=rarely, stall=stall))
    return found


def announce(words: list[int], table: Table) -> tuple[list[int], int]:
    """Add a scoreboard to each store without one. Return the words, and the barriers to wait for after them.

    ptxas may also leave an S2UR without a barrier if another one follows it, because their results arrive in order.
    Such an S2UR gets the barrier of the next one. The same applies to a POPC before an FLO.
    """
    words = _announce_results(words, table)
    used = 0
    for word in words:
        control = control_of(word)
        used |= 1 << control.write_barrier | 1 << control.read_barrier
    spare = next((number for number in range(6) if not used >> number & 1), 5)
    found, wait = [], 0
    for word in words:
        control, entry = control_of(word), table.opcode(word)
        reads = any(o.file in ("R", "UR") and o.reads.most > 0 for o in entry.operands)
        silent = control.read_barrier == control.write_barrier == NO_BARRIER
        if reads and silent and entry.variable:
            word = with_control(word, control._replace(read_barrier=spare))
            wait |= 1 << spare
        elif control.read_barrier < NO_BARRIER:
            wait |= 1 << control.read_barrier
        found.append(word)
    return found, wait


def _announce_results(words: list[int], table: Table) -> list[int]:
    """If a result of variable latency has no barrier, give it the barrier of the next result from the same unit."""
    found = list(words)
    following: dict[str, int] = {}
    for index in range(len(words) - 1, -1, -1):
        word, entry = words[index], table.opcode(words[index])
        control = control_of(word)
        if not entry.variable or not any(operand.writes.most for operand in entry.operands):
            continue
        unit = UNITS.get(entry.name, entry.name)
        if control.write_barrier < NO_BARRIER:
            following[unit] = control.write_barrier
        elif table.decoder(word).masks(word).writes and unit in following:
            found[index] = with_control(word, control._replace(write_barrier=following[unit]))
    return found


def await_reads(words: list[int], table: Table) -> list[int]:
    """If a word overwrites an operand of another, make it wait until the operand has been read. ptxas knows which units
    read their operands at once.
    """
    reading = [0] * 6  # by barrier; never cleared, because a jump may skip the word that waits
    found: list[int] = []
    last = 0  # operands of the previous word
    for word in words:
        control, entry, masks = control_of(word), table.opcode(word), table.decoder(word).masks(word)
        wait = sum(1 << barrier for barrier in range(6) if reading[barrier] & masks.writes)
        if last & masks.writes and control_of(found[-1]).stall < SHORTEST:
            found[-1] = with_change(found[-1], stall=SHORTEST)  # its barrier shows nothing before
        found.append(with_control(word, control._replace(wait=control.wait | wait)))
        barrier = min(control.read_barrier, control.write_barrier if control.read_barrier == NO_BARRIER else 6)
        last = masks.reads if entry.variable and barrier < 6 else 0
        if last:
            reading[barrier] |= last
    return found


def await_results(words: list[int], table: Table) -> list[int]:
    """Make each word that uses a result wait for the barrier of the result.

    ptxas doesn't wait if it has already waited for a later result from the same unit: results of POPC and FLO, for
    example, arrive in order. Nobody has measured that.
    """
    code = Code(dump_words([*words, _END]), table)
    found = list(words)
    for index, flight in enumerate(in_flight_before(code, make_graph(code))):
        if flight is None or index == len(words):
            continue
        masks, control = code.masks[index], control_of(words[index])
        used = masks.reads | masks.writes
        needed = sum(1 << barrier for barrier in range(BARRIERS) if flight.writes[barrier] & used)
        missing = needed & ~control.wait
        if missing:
            found[index] = with_control(found[index], control_of(found[index])._replace(wait=control.wait | missing))
        before = control_of(found[index - 1]) if index else control
        if before.stall < SHORTEST and (missing or needed >> before.write_barrier & 1):
            found[index - 1] = with_change(found[index - 1], stall=SHORTEST)
    return found


def find_unawaited(words: list[int], table: Table) -> int:
    """Return the barriers of results that may be in flight where the words end, after their last word or at a RET."""
    code = Code(dump_words([*words, _END]), table)
    found = 0
    for one, flight in zip(code, in_flight_before(code, make_graph(code)), strict=True):
        if flight is not None and (one.name == "RET" or one.index == len(words)):
            found |= sum(1 << barrier for barrier in range(BARRIERS) if flight.writes[barrier]) & ~one.control.wait
    return found


def space(words: list[int], table: Table) -> list[int]:
    """Lengthen stalls, which can be up to 15 cycles, until they're sufficient for results of IMAD.WIDE, and for all
    results of fixed latency that are read after an R2UR.
    """
    found: list[int] = []
    pending: list[tuple[int, int, bool]] = []  # registers, cycles until they're ready, whether the stalls may be short
    for word in words:
        masks, entry = table.decoder(word).masks(word), table.opcode(word)
        missing = max((left for mask, left, is_short in pending if is_short and mask & masks.reads), default=0)
        if missing:
            stall = control_of(found[-1]).stall
            more = min(stall + missing, LONG) - stall
            found[-1] = with_change(found[-1], stall=stall + more)
            pending = [(mask, left - more, is_short) for mask, left, is_short in pending if left > more]
        found.append(word)
        stall = control_of(word).stall
        pending = [
            (mask & ~masks.writes, left - stall, is_short or entry.name == "R2UR")
            for mask, left, is_short in pending
            if left > stall
        ]
        written = iter_safe(entry, masks.writes)
        is_wide = entry.name == "IMAD" and any(one.file == "R" and one.writes.most > 1 for one in entry.operands)
        pending += [(mask, cycles - stall, is_wide) for mask, cycles in written if cycles > stall]
    return found
