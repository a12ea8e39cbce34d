"""Atomic operations, reductions and fences.

Blocks run in parallel on several host threads, so each operation is atomic on the host, too. All of them are
sequentially consistent. The elements of a vector are processed one after another, which PTX allows.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt.asm.host.memory import SCOPES, SPACES, VECTORS, bracketed, pointer, refuse_address
from gpt.asm.host.table import PtxType, Row
from gpt.asm.host.use import InstructionUse, convert
from gpt.ptx import tree

_HALVES = "f16 bf16 f16x2 bf16x2"
TYPES_OF = {  # the types that each operation accepts
    "and": "b32 b64",
    "or": "b32 b64",
    "xor": "b32 b64",
    "exch": "b32 b64 b128",
    "cas": "b16 b32 b64 b128",
    "add": f"u32 s32 u64 s64 f32 f64 {_HALVES}",
    "inc": "u32",
    "dec": "u32",
    "min": f"u32 s32 u64 s64 {_HALVES}",
    "max": f"u32 s32 u64 s64 {_HALVES}",
}
_SPACES = ("global", "shared", "shared::cta", "shared::cluster")
_SEMANTICS = "relaxed acquire release acq_rel"
_FENCED = "__atomic_thread_fence(__ATOMIC_SEQ_CST);"


def _fence_at(use: InstructionUse) -> str:
    refuse_address(use, bracketed(use.operands[0]))
    return _FENCED


def atomic(use: InstructionUse) -> str:
    """Write an atomic operation as calls of a function in atomics.h, whose name consists of the operation and the
    type.
    """
    type_, width = use.words["T"], int(str(use.words.get("V", "")) or 1)
    assert isinstance(type_, PtxType)
    name = str(use.words["O"]).lstrip("_")
    operands = list(use.operands)
    result = operands.pop(0) if use.instruction.opcode == "atom" else None
    address, *given = operands
    raw = type_.unsigned
    where = pointer(use, str(use.words.get("W", "global")), bracketed(address), type_.size * width)
    lines = [f"{raw} *m_ = ({raw} *){where};"]
    values = [use.vector(one, width) for one in given[: 1 + (name == "cas")]]
    results = use.vector(result, width) if result else [tree.Name("_")] * width
    locals_ = ("v_", "w_")[: len(values)]
    for name_, items in zip(locals_, values, strict=True):  # all operands are read before a result is written
        lines.append(f"{raw} {name_}[] = {{{', '.join(use.value(one, raw) for one in items)}}};")
    for number, to in enumerate(results):
        arguments = ", ".join(["t", f"m_ + {number}", *(f"{name_}[{number}]" for name_ in locals_)])
        lines.append(use.assign(to, type_, convert(f"atomic_{name}_{type_.name}({arguments})", raw, type_)))
    return " ".join(["{", *lines, "}"])


_NEEDS = (
    "S=*: !G=*; cluster shared::cluster: sm_90; f16 f16x2 bf16 bf16x2: noftz; noftz: f16 f16x2 bf16 bf16x2;"
    "V=*: f32 f16 f16x2 bf16 bf16x2; V=*: W=global !W=*; V=*: sm_90; V=*: 8.1; V=v8: f16 bf16;"
    "L2::cache_hint: W=global !W=*; L2::cache_hint: sm_80; b128: sm_90; bf16 bf16x2: sm_90; add: !s64;"
    "cas: !L2::cache_hint; S=* G=*: sm_60; f64: sm_60; b16: sm_70; b16: 6.3; f16x2: sm_60; f16: sm_70"
)
_MORE_NEEDS = {  # rules for the types of certain operations
    **dict.fromkeys(("and", "or", "xor"), "b64: sm_32"),
    **dict.fromkeys(("min", "max"), "u64 s64: sm_32; f16 f16x2 bf16 bf16x2: V=*"),
}
_OF_TENSORS = ": sm_90; : 8.3"  # fences


def _rows() -> Iterator[Row]:
    for name, types in TYPES_OF.items():
        for order in ("{.M}{.S}{.W}{.G}.O", ".O{.M}{.S}{.W}"):
            for hint, hinted in (("", "!L2::cache_hint"), (" h:u64", "L2::cache_hint")):
                for opcode, written in (("atom", "d "), ("red", "")):
                    if (name in ("exch", "cas") and opcode == "red") or (name == "cas" and hint):
                        continue
                    yield Row(
                        f"{opcode}{order}{{.noftz}}{{.L2::cache_hint}}{{.V}}.T",
                        f"{written}= a:address b{' c' if name == 'cas' else ''}{hint}",
                        atomic,
                        needs=f"{_NEEDS}; : {hinted}; {_MORE_NEEDS.get(name, '')}",
                        M=_SEMANTICS if opcode == "atom" else "relaxed release",
                        S=SCOPES,
                        G=SCOPES,
                        W={word: SPACES[word] for word in _SPACES},
                        O=name,
                        V=VECTORS,
                        T=types,
                    )


ROWS = [
    *_rows(),
    Row("membar.S", "", _FENCED, S="cta gl sys"),
    Row("fence{.M}.S", "", _FENCED, needs=": sm_70; : 6.0; cluster: sm_90", M="sc acq_rel acquire release", S=SCOPES),
    # all proxies access the same memory here
    Row("fence.proxy.P", "", _FENCED, needs="async: sm_90; async: 8.0; : 7.5", P="alias async"),
    Row("membar.proxy.alias", "", _FENCED, needs=": 7.5"),
    Row("fence.proxy.async.W", "", _FENCED, needs=": sm_90; : 8.0", W="global shared::cta shared::cluster"),
    *(
        Row(f"fence{proxy}.M.sync_restrict::{space}.cluster", "", _FENCED, needs=": sm_90; : 8.6", M=order)
        for proxy in ("", ".proxy.async::generic")
        for space, order in (("shared::cluster", "acquire"), ("shared::cta", "release"))
    ),
    Row("fence.proxy.tensormap::generic.release.S", "", _FENCED, needs=_OF_TENSORS, S=SCOPES),
    Row("fence.proxy.tensormap::generic.acquire.S", "= a:address size:128", _fence_at, needs=_OF_TENSORS, S=SCOPES),
    Row("fence.mbarrier_init.release.cluster", "", _FENCED, needs=": sm_90; : 8.0"),
]
