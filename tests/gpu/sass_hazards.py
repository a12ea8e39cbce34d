"""Experiments for the kernel `lab` of sass_risks.cu: when may a register be written, and when can the new value be
read?

Each sequence replaces the kernel's load and leaves one word. The word's value is known if every instruction reads its
operands before they're overwritten, and nothing is read too early. Any other word shows a hazard that the hardware
doesn't catch. The result goes to `n.d`. `n.a` has the address of a word that only this thread uses, like the words at
FIRST and SECOND.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sass_words import PT, RZ, TID, URZ, Code, Names, Op, op

FIRST, SECOND, PAST = 0x200000, 0x400000, 0x600000
R = list(range(40, 62))  # higher than any register of the script's kernels
SHARED = 0x400  # where a block's dynamic shared memory begins
OLD, NEW, RIGHT, WRONG = 7, 105, 111, 222
DELAYS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 20, 25, 30, 45, 60, 120, 300, 900)
Case = dict[str, Any]


def pause(cycles: int) -> Code:
    """Let a number of cycles pass between two instructions. The first one's stall count provides up to 15 of them."""
    return [op("NOP", stall=min(15, cycles - passed)) for passed in range(15, cycles, 15)]


def store(register: int, offset: int, address: int, **control: int) -> Op:
    return op("STG", a=address, b=register, offset=offset, desc_store=URZ, **control)


def fetch(register: int, offset: int, address: int, **control: int) -> Op:
    return op("LDG", d=register, a=address, ub=URZ, offset=offset, **control)


def begin(n: Names) -> Code:
    """Put known values into memory and registers, and wait until nothing is in flight."""
    return [
        op("NOP", wait=63),
        op("S2R", d=R[20], special=TID, wb=0),
        op("MOVI", d=R[0], imm=RIGHT),
        op("MOVI", d=R[16], imm=333),
        op("MOVI", d=R[17], imm=444),
        op("MOV", d=R[2], b=n.a),
        op("MOV", d=R[3], b=n.a + 1),
        op("IADD", d=R[20], a=R[20], b=R[20], wait=1),
        op("IADD", d=R[20], a=R[20], b=R[20]),
        op("IADDI", d=R[4], a=R[20], imm=SHARED),
        store(R[16], FIRST, n.a, rb=0),
        store(R[17], SECOND, n.a, rb=0),
        op("STS", a=R[4], b=R[16], rb=0),
        op("STS", a=R[4], b=R[17], offset=0x200, rb=0),
        fetch(R[18], FIRST, n.a, wb=1, wait=1),
        fetch(R[19], SECOND, n.a, wb=1),
        op("NOP", wait=3),
        op("NOP"),
    ]


def finish(n: Names, register: int | None = None) -> Code:
    """Wait for everything; return the result from a register, or from memory."""
    if register is None:
        return [op("NOP", wait=63), fetch(n.d, FIRST, n.a, wb=0), op("NOP", wait=1)]
    return [*pause(120), op("NOP", wait=63), op("MOV", d=n.d, b=register)]


def pressure(n: Names, kind: str) -> Code:
    """Keep the unit busy, with the same kind of instruction or with stores."""
    if kind in ("MUFU", "POPC", "MATCH"):
        return [op(kind, d=R[19], **{"a" if kind == "MATCH" else "b": R[18]}, stall=1, switch=1) for _ in range(8)]
    return [store(R[19], PAST + 64 * k, n.a, stall=2, switch=1) for k in range(6)]


def slow(n: Names, kind: str, **control: int) -> tuple[Op, Op, Code]:
    """Return a slow instruction, the code that overwrites its operand, and the code that reads its result."""
    data, near = op("MOVI", d=R[0], imm=WRONG), op("IADDI", d=R[4], a=R[4], imm=0x200)
    far = op("IADDI", d=R[2], a=R[2], imm=SECOND - FIRST)
    result = {"wb": 5, **control}
    from_shared = [op("NOP", wait=63), op("LDS", d=R[6], a=R[4], wb=0), op("MOV", d=n.d, b=R[6], wait=1)]
    atomic = {"offset": FIRST, "desc_store": URZ, "p": PT}
    kinds: dict[str, tuple[Op, Op, Code]] = {
        "STG": (store(R[0], FIRST, n.a, **control), data, finish(n)),
        "STG address": (store(R[0], FIRST, R[2], **control), far, finish(n)),
        "ATOMG": (op("ATOMG", d=RZ, a=n.a, b=R[0], **atomic, **control), data, finish(n)),
        "LDG address": (fetch(R[6], FIRST, R[2], **result), far, finish(n, R[6])),
        "STS": (op("STS", a=R[4], b=R[0], **control), data, from_shared),
        "LDS address": (op("LDS", d=R[6], a=R[4], **result), near, finish(n, R[6])),
        "SHFL": (op("SHFL", d=R[6], a=R[0], **result), data, finish(n, R[6])),
        "MUFU": (op("MUFU", d=R[6], b=R[0], **result), data, finish(n, R[6])),
        "POPC": (op("POPC", d=R[6], b=R[0], **result), data, finish(n, R[6])),
        "MATCH": (op("MATCH", d=R[6], a=R[0], **result), data, finish(n, R[6])),
    }
    return kinds[kind]


SLOW = {
    "STG": RIGHT,
    "STG address": RIGHT,
    "ATOMG": 333 + RIGHT,
    "LDG address": 333,
    "STS": RIGHT,
    "LDS address": 333,
    "SHFL": RIGHT,
    "MUFU": None,
    "POPC": 6,
    "MATCH": None,
}
LATER: dict[str, tuple[str, dict[str, int]] | None] = {  # a later instruction that's awaited in place of this one
    "nothing": None,
    "LDG": ("LDG", {"d": R[8], "ub": URZ, "offset": SECOND, "wb": 1}),
    "ATOMG": ("ATOMG", {"d": R[8], "b": R[16], "offset": SECOND, "desc_store": URZ, "p": PT, "wb": 1}),
    "STG, its reads": ("STG", {"b": R[16], "offset": SECOND, "desc_store": URZ, "rb": 1}),
    "LDS": ("LDS", {"d": R[8], "a": R[20], "offset": SHARED, "wb": 1}),
    "STS, its reads": ("STS", {"b": R[16], "a": R[20], "offset": SHARED + 0x200, "rb": 1}),
    "SHFL": ("SHFL", {"d": R[8], "a": R[16], "wb": 1}),
    "S2R": ("S2R", {"d": R[8], "special": TID, "wb": 1}),
    "MUFU": ("MUFU", {"d": R[8], "b": R[16], "wb": 1}),
    "POPC": ("POPC", {"d": R[8], "b": R[16], "wb": 1}),
    "MATCH": ("MATCH", {"d": R[8], "a": R[16], "wb": 1}),
}


def overwritten(n: Names, kind: str, delay: int, busy: bool) -> Code:
    """After some cycles, overwrite the operand of an instruction that has no read scoreboard."""
    first, second, result = slow(n, kind, stall=min(15, delay))
    return [*begin(n), *(pressure(n, kind) if busy else []), first, *pause(delay), second, *result]


def covered(n: Names, kind: str, later: str) -> Code:
    """Overwrite an instruction's operand as soon as a later instruction's scoreboard is released."""
    first, second, result = slow(n, kind, stall=2)
    other: Code = []
    if awaited := LATER[later]:
        name, fields = awaited
        other = [op(name, **{"a": n.a, "stall": 2, **fields})] if name not in ("S2R", "MUFU", "POPC") else [
            op(name, **{"stall": 2, **fields})
        ]  # fmt: skip
    second.word |= 2 << 116
    return [*begin(n), *pressure(n, kind), first, *other, second, *result]


def dead_load(n: Names, delay: int) -> Code:
    """Write the register of a load before the load arrives."""
    first = fetch(R[0], PAST, n.a, wb=0, stall=min(15, delay))
    return [*begin(n), first, *pause(delay), op("MOVI", d=R[0], imm=RIGHT), *finish(n, R[0])]


# Instructions with fixed latency: one writes a register, and another reads it after a stall.
MAKERS: dict[str, tuple[str, Op]] = {
    "IADD3": ("r", op("IADDI", d=R[0], a=R[1], imm=5)),
    "IMAD.MOV": ("r", op("MOVI", d=R[0], imm=NEW)),
    "IMAD": ("r", op("IMADI", d=R[0], a=R[1], imm=1, c=R[5])),
    "MOV": ("r", op("MOV", d=R[0], b=R[7])),
    "LOP3": ("r", op("ANDI", d=R[0], a=R[7], imm=0xFF)),
    "SEL": ("r", op("SEL", d=R[0], a=R[7], b=R[7])),
    "FADD": ("r", op("FADD", d=R[0], a=R[7], b=RZ)),
    "IMAD.U32 UR": ("r", op("MOVUR", d=R[0], ub=41)),
    "VOTE": ("r", op("VOTE.ANY", d=R[0])),
    "ISETP": ("p", op("SETNE", p=5, a=R[1], b=RZ)),
    "ELECT": ("p", op("ELECT", p=5)),
    "R2UR": ("u", op("R2UR", ud=40, a=R[7])),
    "UMOV": ("u", op("UMOVI", ud=40, imm=NEW)),
    "VOTEU": ("u", op("VOTEU.ANY", ud=40)),
    "UISETP": ("up", op("USETNE", p=5, ua=41, ub=URZ)),
}


def takers(n: Names) -> dict[str, tuple[str, Code]]:
    """Return readers by name: the kind of register that each reads, and code that leaves NEW, or the mask, in R[9]."""
    out = R[9]
    from_memory = [fetch(out, FIRST, n.a, wb=0, wait=1), op("NOP", wait=1)]
    voted = [op("SETNE", p=4, a=R[11], b=RZ), op("MOVI", d=out, imm=NEW, guard=4)]
    taken = [op("BRA", "joined"), "taken", op("MOVI", d=out, imm=NEW), "joined", op("NOP")]
    return {
        "IADD3": ("r", [op("IADDI", d=out, a=R[0], imm=0)]),
        "IMAD": ("r", [op("IMADI", d=out, a=R[0], imm=1, c=RZ)]),
        "FADD": ("r", [op("FADD", d=out, a=R[0], b=RZ)]),
        "ISETP": ("r", [op("SETNE", p=5, a=R[0], b=R[10]), op("MOV", d=out, b=R[0], guard=5)]),
        "R2UR": ("r", [op("R2UR", ud=40, a=R[0]), op("MOVUR", d=out, ub=40)]),
        "STG": ("r", [store(R[0], FIRST, n.a, rb=0), *from_memory]),
        "SHFL": ("r", [op("SHFL", d=out, a=R[0], wb=0), op("NOP", wait=1)]),
        "guard": ("p", [op("MOVI", d=out, imm=NEW, guard=5)]),
        "guard of STG": ("p", [store(R[7], FIRST, n.a, rb=0, guard=5), *from_memory]),
        "SEL": ("p", [op("SEL", d=out, a=R[7], b=R[10], q=5)]),
        "BRA": ("p", [op("BRA", "taken", guard=5), *taken]),
        "VOTE": ("p", [op("VOTE.ANY", d=R[11], q=5), *voted]),
        "IMAD.U32": ("u", [op("MOVUR", d=out, ub=40)]),
        "USEL": ("u", [op("USEL", ud=43, ua=40, ub=40, q=PT), op("MOVUR", d=out, ub=43)]),
        "USEL, its predicate": ("up", [op("USEL", ud=43, ua=41, ub=42, q=5), op("MOVUR", d=out, ub=43)]),
    }


def latency(n: Names, maker: str, taker: str, stall: int, branch: int) -> Code:
    """Write a register, and read it `stall` cycles later, optionally with a branch in between that stalls for `branch`
    cycles.
    """
    last = MAKERS[maker][1]
    writer = Op(last.name, last.word & ~(31 << 105) | stall << 105 | (stall < 12) << 109)
    seam: Code = [op("BRA", "seam", stall=branch, switch=1), op("NOP"), op("NOP"), op("NOP"), "seam"] if branch else []
    return [
        *begin(n),
        *[op("MOVI", d=R[k], imm=v) for k, v in ((0, OLD), (1, 100), (5, 5), (7, NEW), (9, OLD), (10, OLD))],
        op("SETNE", p=5, a=RZ, b=RZ),
        *[op("R2UR", ud=u, a=r) for u, r in ((40, R[10]), (41, R[7]), (42, R[10]))],
        op("USETNE", p=5, ua=URZ, ub=URZ),
        op("NOP"),
        op("NOP"),
        writer,
        *seam,
        *takers(n)[taker][1],
        *finish(n, R[9]),
    ]


def reuse(n: Names, between: str) -> Code:
    """Write an operand that's in the reuse cache, and read it again in the same operand slot."""
    write = [op("MOVI", d=R[0], imm=NEW, stall=6)]
    branch = [op("BRA", "on", stall=5, switch=1), op("NOP"), "on"]
    codes: dict[str, Code] = {"write": write, "BRA, write": [*branch, *write], "write, BRA": [*write, *branch]}
    first = op("IADDI", d=R[8], a=R[0], imm=1, stall=1, switch=1, reuse=1)
    return [*begin(n), first, *codes[between], op("IADDI", d=R[9], a=R[0], imm=0), *finish(n, R[9])]


def iter_cases() -> Iterator[Case]:
    """Yield the experiments, with the word that each should leave, or None if the word is taken from a run with long
    delays.
    """
    for delay in DELAYS:
        yield {"what": "dead_load", "args": [delay], "right": RIGHT}
    for kind, right in SLOW.items():
        for busy in (False, True):
            for delay in DELAYS:
                yield {"what": "overwritten", "args": [kind, delay, busy], "right": right}
        for later in LATER:
            yield {"what": "covered", "args": [kind, later], "right": right}
    for between in ("write", "BRA, write", "write, BRA"):
        yield {"what": "reuse", "args": [between], "right": NEW}
    readers = {name: kind for name, (kind, _) in takers(Names([], [], [], [], 0, 0, 0)).items()}
    for maker, (made, _) in MAKERS.items():
        right = None if maker in ("VOTE", "VOTEU", "ELECT") else NEW
        for taker in (name for name, kind in readers.items() if kind == made):
            for stall, branch in [(s, 0) for s in range(1, 16)] + [(s, b) for s in range(1, 7) for b in (1, 5)]:
                yield {"what": "latency", "args": [maker, taker, stall, branch], "right": right}
