"""Trampolines for sass_risks.py. Each adds one construct before the instruction that it replaces.

Each is tried in kernels whose lanes wait for each other at a BSYNC, because that shows which constructs release them
early.
"""

from __future__ import annotations

from collections.abc import Callable

from sass_words import CLOCK, LANEID, LTMASK, PT, RZ, URZ, Code, Names, op

AWAY = 0x30000  # offset of memory that no kernel reads
MAY_HANG = "WARPSYNC.ALL"


def split(n: Names, bit: int = 1) -> Code:
    """Set the first free predicate in the lanes whose number has a given bit."""
    r, p = n.r, n.p[0]
    return [
        op("S2R", d=r[0], special=LANEID, wb=0),
        op("ANDI", d=r[0], a=r[0], imm=bit, wait=1),
        op("SETNE", p=p, a=r[0], b=RZ),
    ]


def fork(n: Names) -> Code:
    """Let every other lane skip an instruction, without reconverging."""
    return [
        *split(n),
        op("BRA", "skip", guard=n.p[0]),
        op("MOVI", d=n.r[1], imm=1),
        "skip",
        op("MOVI", d=n.r[2], imm=2),
    ]


def region(barrier: int, inside: Code) -> Code:
    """Return a BSSY and its BSYNC around some code."""
    return [op("BSSY", "joined", barrier=barrier), *inside, op("BSYNC", barrier=barrier), "joined"]


def collective(mask: int, result: int) -> Code:
    """Write the code that ptxas emits for a vote with a mask where a warp may be divergent."""
    return [
        op("WARPSYNC.COLLECTIVE", "after", a=mask),
        op("VOTE.ANY", d=result),
        op("ENDCOLLECTIVE"),
        "after",
        op("NOP"),
    ]


def here(register: int) -> Code:
    """Return the mask of the active lanes."""
    return [op("VOTE.ANY", d=register)]


def divided(n: Names, slow: Code) -> Code:
    """Return BRA.DIV, which branches if some lanes of the mask aren't active."""
    return [
        *here(n.r[0]),
        op("R2UR", ud=n.u[0], a=n.r[0]),
        op("BRA.DIV", "slow", ua=n.u[0]),
        *here(n.r[1]),
        op("BRA", "done"),
        "slow",
        *slow,
        "done",
        op("NOP"),
    ]


def leader(n: Names) -> Code:
    """Do one atomic for all active lanes: the lowest lane does it while the others wait at a BSYNC;
    then they shuffle.
    """
    r, p = n.r, n.p[0]
    add = op("ATOMG", d=r[3], a=n.a, b=r[2], offset=AWAY, desc_store=URZ, p=PT, wb=1, wait=1)
    return [
        op("S2R", d=r[1], special=LTMASK, wb=0),
        *here(r[0]),
        op("AND", d=r[1], a=r[1], b=r[0], wait=1),
        op("SETNE", p=p, a=r[1], b=RZ),
        op("POPC", d=r[2], b=r[0], wb=0),
        *region(n.b[0], [op("BRA", "others", guard=p), add, "others"]),
        op("SHFL", d=r[4], a=r[3], wb=1, wait=3),
        op("MOV", d=r[4], b=r[4], wait=2),
    ]


def load(n: Names) -> Code:
    """Load from memory, and wait for the value."""
    return [op("LDG", d=n.r[3], a=n.a, ub=URZ, offset=AWAY, wb=0), op("MOV", d=n.r[3], b=n.r[3], wait=1)]


def saved(n: Names, barrier: int) -> Code:
    """Save a convergence register, clear it, and write it back, as ptxas does around calls."""
    return [
        op("BMOV.CLEAR", d=n.r[0], saved=barrier, wb=0),
        op("BMOV.SET", saved=barrier, b=n.r[0], wait=1, rb=0),
        op("NOP", wait=1),
    ]


def lane_loop(n: Names, times: int, per_lane: bool) -> Code:
    """Return a loop that each lane may leave after a different number of iterations."""
    r, p = n.r, n.p[0]
    return [
        op("MOVI", d=r[0], imm=0) if not per_lane else op("S2R", d=r[0], special=LANEID, wb=0),
        op("IADDI", d=r[0], a=r[0], imm=times, wait=1),
        "again",
        op("IADDI", d=r[0], a=r[0], imm=-1),
        op("SETNE", p=p, a=r[0], b=RZ),
        op("BRA", "again", guard=p),
    ]


def call(n: Names) -> Code:
    """Call a function whose return address is relative to the kernel."""
    r = n.r[4] + n.r[4] % 2
    return [
        op("MOVI", d=r, address="returned"),
        op("MOVI", d=r + 1, imm=0),
        op("CALL", "function"),
        "returned",
        op("BRA", "over"),
        "function",
        op("NOP"),
        op("RET", "kernel", a=r),
        "over",
    ]


def awaited(name: str, n: Names, **fields: int) -> Code:
    """Return an instruction, followed by a wait for its result."""
    return [op(name, **({"d": n.r[0], "a": n.r[1], "wb": 0} | fields)), op("NOP", wait=1)]


CONSTRUCTS: dict[str, Callable[[Names], Code]] = {
    "empty": lambda n: [],
    "straight": lambda n: [*split(n), op("MOVI", d=n.r[1], imm=5, guard=n.p[0]), op("MOVI", d=n.r[2], imm=6)],
    "long": lambda n: [op("CS2R", d=n.r[0], special=CLOCK), *[op("NOP") for _ in range(30)]],
    "scheduling hint": lambda n: [op("NOP", stall=2, switch=1) for _ in range(20)],
    "load": load,
    "MEMBAR": lambda n: [op("MEMBAR"), op("NOP")],
    "loop": lambda n: lane_loop(n, 3000, False),
    "CALL": call,
    "fork": fork,
    "fork, load": lambda n: [*fork(n), *load(n)],
    "BSSY": lambda n: region(n.b[0], [op("NOP")]),
    "BSSY B15, fork": lambda n: region(15, fork(n)),
    "BSSY B11, fork": lambda n: region(11, fork(n)),
    "BSSY, fork, load": lambda n: region(n.b[0], [*split(n), op("BRA", "other", guard=n.p[0]), *load(n), "other"]),
    "BSSY, load, fork": lambda n: region(n.b[0], [*load(n), *fork(n)]),
    "BSSY, lane loop": lambda n: region(n.b[0], lane_loop(n, 1, True)),
    "BSSY, CALL": lambda n: region(n.b[0], [*fork(n), *call(n)]),
    "two BSSY": lambda n: [
        op("BSSY", "outer", barrier=n.b[0]),
        *split(n, 2),
        op("BRA", "left", guard=n.p[0]),
        *region(n.b[1], fork(n)),
        "left",
        op("BSYNC", barrier=n.b[0]),
        "outer",
    ],
    "BMOV B0": lambda n: saved(n, 0),
    "BMOV free": lambda n: saved(n, n.b[0]),
    "VOTE": lambda n: here(n.r[0]),
    "VOTEU": lambda n: [op("VOTEU.ANY", ud=n.u[0])],
    "SHFL": lambda n: awaited("SHFL", n),
    "MATCH": lambda n: awaited("MATCH", n),
    "REDUX": lambda n: [op("REDUX", ud=n.u[0], a=n.r[1], wb=0), op("MOVUR", d=n.r[0], ub=n.u[0], wait=1)],
    "ELECT": lambda n: [op("ELECT", p=n.p[0]), op("MOVI", d=n.r[0], guard=n.p[0], imm=3)],
    "COLLECTIVE": lambda n: [*here(n.r[0]), *collective(n.r[0], n.r[1])],
    "fork, COLLECTIVE": lambda n: [*here(n.r[3]), *fork(n), *collective(n.r[3], n.r[1])],
    "BSSY, fork, COLLECTIVE": lambda n: [*here(n.r[3]), *region(n.b[0], [*fork(n), *collective(n.r[3], n.r[1])])],
    "BRA.DIV": lambda n: divided(n, [op("NOP")]),
    "BRA.DIV, COLLECTIVE": lambda n: divided(n, collective(n.r[0], n.r[1])),
    "leader": leader,
    "leader, BRA.DIV": lambda n: [*leader(n), *divided(n, collective(n.r[0], n.r[1]))],
    "NOP, leader": lambda n: [op("NOP"), *leader(n)],
    "BAR": lambda n: [op("BAR")],
    "WARPSYNC mask": lambda n: [*here(n.r[0]), op("WARPSYNC", a=n.r[0])],
    "fork, WARPSYNC mask": lambda n: [*here(n.r[3]), *fork(n), op("WARPSYNC", a=n.r[3])],
    "BSSY, fork, WARPSYNC": lambda n: [*here(n.r[3]), *region(n.b[0], [*fork(n), op("WARPSYNC", a=n.r[3])])],
    "YIELD, guard false": lambda n: [op("YIELD", guard=8 | PT)],
    "NANOSLEEP, guard false": lambda n: [op("NANOSLEEP", guard=8 | PT, imm=100)],
    "YIELD": lambda n: [op("YIELD")],
    "YIELD, leader": lambda n: [op("YIELD"), *leader(n)],
    "YIELD in BSSY": lambda n: region(n.b[0], [op("YIELD")]),
    "YIELD in BSSY, fork": lambda n: region(n.b[0], [*fork(n), op("YIELD")]),
    "NANOSLEEP": lambda n: [op("NANOSLEEP", imm=100)],
    MAY_HANG: lambda n: [op("WARPSYNC.ALL")],
}
