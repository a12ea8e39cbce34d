"""More experiments for sass_risks.py: matrix units, uniform registers in divergent code, register counts.

As in sass_hazards.py, each sequence replaces the marked instruction and leaves a known word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sass_cases
from sass_hazards import Case, R, pause
from sass_words import PT, RZ, TID, URZ, Code, Names, op

FIRST = {"A": 44, "B": 48, "C": 52, "D": 56}  # registers of each operand
OPERANDS = ("A0", "A1", "A2", "A3", "B0", "B1", "C0", "C2", "C3", "D0", "D3")
ONES = {"HMMA": 0x3C003C00, "IMMA": 0x01010101, "DMMA": 0x3FF00000}
NOT_IN_DMMA = ("A2", "A3", "C2")  # A and B have one 64-bit element each, C and D two
DELAYS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 21, 24, 27, 30, 40, 50)
JUNK = 0x42004200


def matrix(n: Names, unit: str, operand: str, delay: int, ahead: int) -> Code:
    """Overwrite the operand of a matrix instruction after some cycles, while earlier ones keep the unit busy.

    A delay of 0 is a control: the operand is overwritten before the instruction, which must show in the result.
    """
    a, b, c, d = FIRST.values()
    product = op(unit, d=d, a=a, b=b, c=c, stall=max(1, min(15, delay)), switch=int(delay < 12))
    write = op("MOVI", d=FIRST[operand[0]] + int(operand[1]), imm=JUNK)
    return [
        op("NOP", wait=63),
        *[op("MOVI", d=x, imm=ONES[unit]) for x in range(a, b + 4)],
        *[op("MOVI", d=c + x, imm=0x3F800000) for x in range(4)],
        *[op("NOP") for _ in range(4)],
        *[op(unit, d=60, a=a, b=b, c=c, stall=1, switch=1) for _ in range(ahead)],
        *([product, *pause(delay), write] if delay else [write, op("NOP"), product]),
        *pause(300),
        op("IADD", d=R[0], a=d, b=d + 1, c=d + 2),
        op("IADD", d=n.d, a=R[0], b=d + 3),
    ]


def group(n: Names, operand: str, delay: int) -> Code:
    """Write a register of matrix A some cycles after the HGMMA, before the kernel waits for the group."""
    if operand == "nothing":
        return [n.word]
    return [*pause(delay + 15), op("MOVI", d=n.a + int(operand[1]), imm=JUNK), n.word]


def skipping(n: Names, skipped: Code) -> Code:
    """Return a region in which odd lanes skip some code."""
    return sass_cases.region(n.b[1], [*sass_cases.split(n), op("BRA", "other", guard=n.p[0]), *skipped, "other"])


def atomic(n: Names) -> Code:
    fields = {"b": n.r[3], "offset": sass_cases.AWAY, "desc_store": URZ, "p": PT}
    return sass_cases.awaited("ATOMG", n, a=n.a, **fields)


BETWEEN: dict[str, Callable[[Names], Code]] = {
    "nothing": lambda n: [],
    "NOPs": lambda n: [op("NOP") for _ in range(24)],
    "NOPs, hint": lambda n: [op("NOP", stall=2, switch=1) for _ in range(24)],
    "load": sass_cases.load,
    "two loads": lambda n: [*sass_cases.load(n), *sass_cases.load(n)],
    "ATOMG": atomic,
    "S2R": lambda n: [op("S2R", d=n.r[3], special=TID, wb=0), op("NOP", wait=1)],
    "LDC": lambda n: [op("LDC", d=n.r[3], wb=0), op("NOP", wait=1)],
    "MUFU": lambda n: [op("MUFU", d=n.r[3], b=n.r[3], wb=0), op("NOP", wait=1)],
    "SHFL": sass_cases.CONSTRUCTS["SHFL"],
    "MEMBAR": sass_cases.CONSTRUCTS["MEMBAR"],
    "BRA": lambda n: [op("BRA", "on"), op("NOP"), "on", op("NOP")],
    "BRA, none taken": lambda n: [op("SETNE", p=n.p[0], a=RZ, b=RZ), op("BRA", "on", guard=n.p[0]), op("NOP"), "on"],
    "BSSY": lambda n: sass_cases.region(n.b[1], [op("NOP")]),
    "BSSY, fork": lambda n: skipping(n, [op("NOP")]),
    "BSSY, fork, load": lambda n: skipping(n, sass_cases.load(n)),
    "WARPSYNC mask": sass_cases.CONSTRUCTS["WARPSYNC mask"],
    "BRA.DIV": sass_cases.CONSTRUCTS["BRA.DIV"],
    "COLLECTIVE": sass_cases.CONSTRUCTS["COLLECTIVE"],
    "YIELD": lambda n: [op("YIELD")],
    "NANOSLEEP": lambda n: [op("NANOSLEEP", imm=100)],
}


def uniform(n: Names, kind: str, between: str, which: int) -> Code:
    """Let two divergent parts of a warp use the same uniform register, write it in one of them, and check whether the
    value survives.
    """
    mine, other, p = n.r[8], n.r[9], n.p[0]
    inside = BETWEEN[between](n)
    number = [op("MOVI", d=mine, imm=which), op("R2UR", ud=50, a=mine)]
    codes: dict[str, Code] = {
        "register": [*number, *inside, op("MOVUR", d=other, ub=50)],
        "predicate": [
            *number,
            op("USETNE", p=5, ua=50, ub=URZ),
            *inside,
            op("UMOVI", ud=51, imm=1),
            op("USEL", ud=52, ua=51, ub=URZ, q=5),
            op("MOVUR", d=other, ub=52),
        ],
        "barrier": [
            *sass_cases.here(mine),
            op("BSSY", "met", barrier=n.b[0]),
            *inside,
            op("BSYNC", barrier=n.b[0]),
            "met",
            *sass_cases.here(other),
        ],
    }
    check = [op("SETNE", p=p, a=other, b=mine), op("MOVI", d=n.d, imm=0), op("MOVI", d=n.d, imm=1, guard=p)]
    return [op("NOP", wait=63), *codes[kind], *check]


def gathered(n: Names, how: str) -> Code:
    """Make the warp divergent in a region, and check whether a masked vote still has all of its lanes."""
    mask, found = n.r[3], n.r[5]
    vote = sass_cases.collective(mask, found) if how == "COLLECTIVE" else sass_cases.here(found)
    return [*sass_cases.here(mask), *sass_cases.region(n.b[0], [*sass_cases.fork(n), *vote]), op("MOV", d=n.d, b=found)]


def count(n: Names, register: int) -> Code:
    """Keep each thread's number in one register while other warps do the same."""
    return [
        op("S2R", d=n.r[0], special=TID, wb=0),
        op("MOV", d=register, b=n.r[0], wait=1),
        *pause(600),
        op("MOV", d=n.d, b=register),
    ]


def iter_cases() -> Iterator[Case]:
    """Yield the experiments, with the word that each should leave, or None if the word is taken from a run with long
    delays.
    """
    for unit in ONES:
        for operand in OPERANDS:
            if unit == "DMMA" and operand in NOT_IN_DMMA:
                continue
            for ahead in (0, 1, 4):
                for delay in DELAYS:
                    yield {"what": "matrix", "args": [unit, operand, delay, ahead], "right": None}
    for operand in ("A0", "A1", "A2", "A3"):
        for delay in (0, 5, 15, 30, 60, 120, 300, 900):
            yield {"kernel": "group", "what": "group", "args": [operand, delay], "threads": 128, "right": None}
    for how in ("COLLECTIVE", "VOTE"):
        yield {"what": "gathered", "args": [how], "right": 0xFFFFFFFF}
    for kind in ("register", "predicate", "barrier"):
        for between in BETWEEN:
            for lanes in ("1", "7", "31", "half"):
                yield {"kernel": "both", "what": "uniform", "args": [kind, between], "lanes": lanes, "right": 0}
    for registers in (24, 32, 33, 40, 64, 65, 128, 168, 254, 255):
        for threads in (64, 256, 1024):
            for below in (3, 2, 1):
                case = {"kernel": "wide", "what": "count", "args": [registers - below], "right": None}
                yield case | {"registers": registers, "threads": threads}
