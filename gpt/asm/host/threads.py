"""Instructions for warps, and barriers.

Each of them calls the service `barrier`, or `meet` with a function of device.h, which runs once all lanes in the mask
have arrived. Instructions older than `.sync` have no mask: they run once no other lane can continue.
"""

from __future__ import annotations

from gpt.asm.host.names import Unsupported, evaluate
from gpt.asm.host.table import TYPES, Row
from gpt.asm.host.use import InstructionUse
from gpt.ptx import tree

_PRED, _U32 = TYPES["pred"], TYPES["u32"]
_UNSYNCED = ": <sm_70 <6.4"  # without a mask
_MODES = "up down bfly idx"

_SHUFFLE = (
    "struct host_shuffle x_ = {{{a}, {b}, {c}, SHUFFLE{M}, {a}, 0}}; "
    "t->services->meet({thread}, {site}, %s, host_shuffle, &x_); {d} = x_.result; {p} = x_.valid;"
)
_VOTE = (
    "struct host_ballot x_ = {{{a}, 0}}; "
    "uint32_t m_ = t->services->meet({thread}, {site}, %s, host_ballot, &x_); {p} = %s;"
)
_VOTES = {"all": "x_.result == m_", "any": "x_.result != 0", "uni": "x_.result == 0 || x_.result == m_"}
_MATCH = "struct host_match x_ = {{{a}, 0, 0}}; t->services->meet({thread}, {site}, {m}, host_match, &x_); {d} = %s;"
_REDUCE = (
    "struct host_reduce x_ = {{{a}}}; t->services->meet({thread}, {site}, {m}, host{O}_{T.name}, &x_); {d} = x_.value;"
)


def _is_barrier(number: int) -> bool:
    return 0 <= number < 16


def _is_count(threads: int) -> bool:
    return threads > 0 and threads % 32 == 0


def _barrier(kind: str, use: InstructionUse, first: int = 0) -> str:
    """Write the call of the service, with the number of the barrier, the number of threads, and the predicate to
    reduce.
    """
    operands = list(use.operands[first:])
    value = use.value(operands.pop(), _PRED) if first else "0"
    for operand, fits, said in zip(
        operands, (_is_barrier, _is_count), ("a barrier, 0 to 15", "full warps"), strict=False
    ):
        if tree.is_constant(operand) and not fits(evaluate(operand)):
            raise Unsupported(f"'{operand}' where {said} is expected")
    number = use.value(operands[0], _U32)
    threads = use.value(operands[1], _U32) if len(operands) > 1 else "0"
    return f"t->services->barrier(t, {use.site}, HOST_BARRIER_{kind}, {number} & 15, {threads}, {value})"


def _synchronize(use: InstructionUse) -> str:
    return f"{_barrier('SYNC', use)};"


def _arrive(use: InstructionUse) -> str:
    return f"{_barrier('ARRIVE', use)};"


def _reduce(use: InstructionUse) -> str:
    kind = str(use.words["O"])
    if kind == "POPC":
        return use.assign(use.operands[0], _U32, _barrier(kind, use, 1))
    return use.assign(use.operands[0], _PRED, f"{_barrier(kind, use, 1)} != 0")


def _set_registers(use: InstructionUse) -> str:
    """Write setmaxnreg. It has no effect, because the number of registers doesn't matter here."""
    if evaluate(use.operands[0]) not in range(24, 257, 8):
        raise Unsupported(f"'{use.operands[0]}' where a multiple of 8 from 24 to 256 is expected")
    return ""


def _trigger(use: InstructionUse) -> str:
    """Write pmevent. It has no effect, because there are no performance counters."""
    end = 1 << 16 if use.words["mask"] else 16
    if not 0 <= evaluate(use.operands[0]) < end:
        raise Unsupported(f"'{use.operands[0]}' is not from 0 to {end - 1}")
    return ""


def _elect(use: InstructionUse) -> str:
    results, mask = use.operands
    if not isinstance(results, tree.Expression) or len(results.operands) != 2:
        raise Unsupported("elect.sync has two results")
    leader, chosen = results.operands
    return (
        f"{{ uint32_t m_ = t->services->meet(t, {use.site}, {use.value(mask, _U32)}, host_nothing, 0); "
        f"uint32_t d_ = (uint32_t)__builtin_ctz(m_); {use.assign(leader, _U32, 'd_')} "
        f"{use.assign(chosen, _PRED, 'd_ == t->laneid')} }}"
    )


ROWS = [
    Row(
        "shfl.sync.M.b32", "d:b32 p:pred = a:b32 b:b32 c:b32 m:u32", _SHUFFLE % "{m}", needs=": sm_30; : 6.0", M=_MODES
    ),
    Row("shfl.M.b32", "d:b32 p:pred = a:b32 b:b32 c:b32", _SHUFFLE % "0", needs=f": sm_30; {_UNSYNCED}", M=_MODES),
    *(
        row
        for name, result in _VOTES.items()
        for row in (
            Row(f"vote.sync.{name}.pred", "p:pred = a:pred m:u32", _VOTE % ("{m}", result), needs=": 6.0"),
            Row(f"vote.{name}.pred", "p:pred = a:pred", _VOTE % ("0", result), needs=_UNSYNCED),
        )
    ),
    Row("vote.sync.ballot.b32", "p:b32 = a:pred m:u32", _VOTE % ("{m}", "x_.result"), needs=": 6.0"),
    Row("vote.ballot.b32", "p:b32 = a:pred", _VOTE % ("0", "x_.result"), needs=_UNSYNCED),
    Row("match.any.sync.T", "d:u32 = a:T m:u32", _MATCH % "x_.same", needs=": sm_70; : 6.0", T="b32 b64"),
    Row(
        "match.all.sync.T",
        "d:u32 p:pred = a:T m:u32",
        f"{_MATCH % 'x_.all ? x_.same : 0'} {{p}} = x_.all;",
        needs=": sm_70; : 6.0",
        T="b32 b64",
    ),
    Row("redux.sync.O.T", "d = a m:u32", _REDUCE, needs=": sm_80", O="add min max", T="u32 s32"),
    Row("redux.sync.O.T", "d:u32 = a:u32 m:u32", _REDUCE, needs=": sm_80", O="and or xor", T="b32"),
    Row(
        "redux.sync.O{.abs}{.NaN}.f32",
        "d:f32 = a:f32 m:u32",
        "struct host_extreme_f32 x_ = {{{a}, {O}, FLAG{abs} | FLAG{NaN}}}; "
        "t->services->meet({thread}, {site}, {m}, host_reduce_f32, &x_); {d} = x_.value;",
        needs=": sm_100a",
        O={"min": "0", "max": "1"},
    ),
    Row("activemask.b32", "d:b32 =", "t->services->meet({thread}, {site}, 0, host_nothing, 0)", needs=": 6.2"),
    Row("elect.sync", "d = m:u32", _elect, needs=": sm_90"),
    Row("bar.warp.sync", "= m:u32", "t->services->meet({thread}, {site}, {m}, host_nothing, 0);", needs=": 6.0"),
    *(
        row
        for name, aligned, since in (("barrier{.cta}", "{.aligned}", "; : 6.0"), ("bar{.cta}", "", ""))
        for row in (
            *(
                Row(f"{name}.sync{aligned}", signature, _synchronize, needs=f"cta: 7.8{since}")
                for signature in ("= a:u32", "= a:u32 b:u32")
            ),
            Row(f"{name}.arrive{aligned}", "= a:u32 b:u32", _arrive, needs=f"cta: 7.8{since}"),
            *(
                Row(
                    f"{name}.red.O{aligned}.{type_}",
                    signature.format(type_),
                    _reduce,
                    needs=f"cta: 7.8{since}",
                    O=kinds,
                )
                for signature in ("d:{} = a:u32 c:pred", "d:{} = a:u32 b:u32 c:pred")
                for type_, kinds in (("pred", {"and": "AND", "or": "OR"}), ("u32", {"popc": "POPC"}))
            ),
        )
    ),
    # A cluster is a single block, so the wait is a barrier for the block, and the arrival does nothing.
    Row("barrier.cluster.arrive{.S}{.aligned}", "", "", needs=": sm_90; S=*: 8.0", S="release relaxed"),
    Row(
        "barrier.cluster.wait{.acquire}{.aligned}",
        "",
        "t->services->barrier({thread}, {site}, HOST_BARRIER_SYNC, HOST_BARRIERS - 1, 0, 0);",
        needs=": sm_90; acquire: 8.0",
    ),
    Row("getctarank{.shared::cluster}.T", "d:u32 = a", "0", needs=": sm_90", T="u32 s32 u64 s64"),
    Row("mapa{.shared::cluster}.T", "d = a b:u32", "(void){b}, {a}", needs=": sm_90", T="u32 s32 u64 s64"),
    # Time
    Row("nanosleep.u32", "= a:u32", "(void){a}; t->services->turn({thread}, {site});", needs=": sm_70; : 6.2"),
    # No effect: blocks and grids start in order, and the number of registers doesn't matter.
    Row("griddepcontrol.O", "", "", needs=": sm_90", O="wait launch_dependents"),
    Row(
        "setmaxnreg.O.sync.aligned.u32",
        "= n:number",
        _set_registers,
        needs=": sm_90a sm_100a sm_110a sm_120a",
        O="inc dec",
    ),
    Row("pmevent{.mask}", "= n:number", _trigger),
]
