"""Asynchronous copies, the barriers that signal their completion, and matrix loads from shared memory.

Copies are made immediately, so waiting for one never blocks. device.h defines the format of an mbarrier.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from gpt.asm.host.atomics import TYPES_OF, atomic
from gpt.asm.host.memory import PREFETCHES, SCOPES, SPACES, VECTORS, bracketed, pointer, refuse_address, store, wrapped
from gpt.asm.host.names import Unsupported, evaluate
from gpt.asm.host.table import TYPES, PtxType, Row
from gpt.asm.host.use import InstructionUse
from gpt.ptx import tree

_U32, _U64 = TYPES["u32"], TYPES["u64"]
_BYTES = "mbarrier::complete_tx::bytes"
_STATE = "{.M}{.S}{.W}.b64"  # modifiers that follow the name of an operation on an mbarrier
_SETS: dict[str, str | Mapping[str, str]] = {
    "M": "relaxed acquire release",
    "S": "cta cluster",
    "W": dict.fromkeys(("shared", "shared::cta", "shared::cluster"), "shared"),
}


def _barrier(use: InstructionUse, operand: tree.Operand) -> str:
    if (place := use.place(bracketed(operand))) and place.space != "shared":
        raise Unsupported(f"'{operand}' is in .{place.space}, not .shared")
    return f"(uint64_t *){pointer(use, str(use.words.get('W', '')), bracketed(operand), 8)}"


def _change(code: str, use: InstructionUse) -> str:
    """Write an operation on an mbarrier that has no result. `m_` is the mbarrier; `n_` is the operand after it, or 1 if
    there's none.
    """
    address, *rest = use.operands
    count = use.value(rest[0], _U32) if rest else "1u"
    return f"{{ uint64_t *m_ = {_barrier(use, address)}; uint32_t n_ = {count}; {code} }}"


def _arrive(use: InstructionUse) -> str:
    """Write an arrival, which returns the previous state. `drop` also lowers the count that later phases expect. For
    `expect_tx`, the operand is a number of bytes instead of a count.
    """
    operands = list(use.operands)
    result = operands.pop(0) if len(operands) > 1 and not isinstance(operands[0], tree.Address) else tree.Name("_")
    name = use.instruction.modifiers[0]
    if use.words["W"] and ".shared::cluster" in use.instruction.modifiers and result != tree.Name("_"):
        raise Unsupported(f"'{result}' where '_' is expected for another block's mbarrier")
    if len(operands) > 1 and ".expect_tx" not in use.instruction.modifiers and _is_below(operands[1], 1):
        raise Unsupported(f"'{operands[1]}' where a count of 1 or more is expected")
    drop = int(use.instruction.opcode + name == "mbarrier.arrive_drop")
    number = use.value(operands[1], _U32) if len(operands) > 1 else "1u"
    count, bytes_ = ("1u", number) if ".expect_tx" in use.instruction.modifiers else (number, "0")
    call = f"host_arrive({_barrier(use, operands[0])}, {count}, {bytes_}, {drop})"
    return use.assign(result, _U64, call)


def _is_below(operand: tree.Operand, least: int) -> bool:
    """Return whether an operand is a constant less than a number."""
    return tree.is_constant(operand) and evaluate(operand) < least


def _wait(use: InstructionUse) -> str:
    """Write a test of whether a phase is complete. If it isn't, other threads run before the test returns."""
    result, address, state, *_ = use.operands
    parity = ".parity" in use.instruction.modifiers
    if result == tree.Name("_"):
        raise Unsupported("'_' where a predicate is expected")
    if parity and tree.is_constant(state) and evaluate(state) not in (0, 1):
        raise Unsupported(f"'{state}' where 0 or 1 is expected")
    asked = f"{use.value(state, _U32)} & 1" if parity else f"{use.value(state, _U64)} >> 63"
    return (
        f"{{ bool p_ = *{_barrier(use, address)} >> 63 != ({asked}); if (!p_) t->services->turn(t, {use.site}); "
        f"{use.assign(result, TYPES['pred'], 'p_')} }}"
    )


def _copy(use: InstructionUse) -> str:
    """Write cp.async: copy the first `from` of `size` bytes, and fill the rest with zeros. If the operand is a
    predicate and true, nothing is copied.
    """
    to, of, size, *rest = use.operands
    count = evaluate(size)
    if count not in ((16,) if ".cg" in use.instruction.modifiers else (4, 8, 16)):
        raise Unsupported(f"cp.async of {count} bytes")
    if use.words["L2_cache_hint"] and not rest:
        raise Unsupported("'.L2::cache_hint' without a policy")
    if use.words["L2_cache_hint"]:
        rest.pop()
    where = f"unsigned char *m_ = {pointer(use, 'shared', bracketed(to), count)};"
    if not rest:
        return f"{{ {where} memcpy(m_, {pointer(use, 'global', bracketed(of), count)}, {count}); }}"
    address = use.address_of(bracketed(of))
    return (
        f"{{ {where} uint64_t n_ = {_given(use, rest[0], count)}; "
        f"host_copy_part(t, {use.site}, m_, {address}, n_ < {count} ? n_ : {count}, {count}); }}"
    )


def _given(use: InstructionUse, operand: tree.Operand, count: int) -> str:
    """Return the number of bytes to read: the value of the operand, or 0 if it's a predicate and true."""
    name = operand.operand if isinstance(operand, tree.Prefixed) else operand
    if isinstance(name, tree.Name) and (found := use.body.find_register(name.name)) and found.type.name == "pred":
        return f"{use.value(operand, TYPES['pred'])} ? 0 : {count}"
    use.check(operand, _U32, exact=True)
    if tree.is_constant(operand) and not 0 <= evaluate(operand) <= count:
        raise Unsupported(f"'{operand}' is not from 0 to {count}")
    return use.value(operand, _U64)


def _transferred(use: InstructionUse, barrier: tree.Operand, count: str) -> str:
    """Write the arrival of `count` bytes at an mbarrier in shared memory."""
    use.address_of(bracketed(barrier), 32)
    return f"host_transfer((uint64_t *){pointer(use, 'shared', bracketed(barrier), 8)}, -(int64_t){count});"


def _remote(use: InstructionUse) -> str:
    """Write st.async or red.async, which go to the shared memory of a block in the cluster. That's always this block.

    Without clusters, it faults, because an H200 treats it as an illegal instruction.
    """
    type_ = use.words["T"]
    assert isinstance(type_, PtxType)
    use.address_of(bracketed(use.operands[0]), 32)
    does = store(use) if use.instruction.opcode == "st" else atomic(use)
    check = f"if (!t->cluster) t->services->fault(t, {use.site}, HOST_FAULT_CLUSTER, 0);"
    return (
        f"{check} {does} {_transferred(use, use.operands[2], str(type_.size * int(str(use.words.get('V', '')) or 1)))}"
    )


def _check_size(operand: tree.Operand) -> None:
    """Raise Unsupported for a constant size that a bulk copy can't have."""
    if tree.is_constant(operand) and evaluate(operand) not in range(0, 1 << 20, 16):
        raise Unsupported(f"'{operand}' is not a multiple of 16 from 0 to {(1 << 20) - 16}")


def _prefetch(use: InstructionUse) -> str:
    refuse_address(use, bracketed(use.operands[0]))
    _check_size(use.operands[1])
    return ";"


def _bulk(use: InstructionUse) -> str:
    """Write cp.async.bulk or cp.reduce.async.bulk for contiguous bytes. An mbarrier counts the bytes that have
    arrived.
    """
    to, of, size, *rest = use.operands
    _check_size(size)
    places = use.words["D"], use.words["W"]
    lines = [f"uint64_t n_ = {use.value(size, _U32)};"]
    for name, space, operand in (("d_", places[0], to), ("s_", places[1], of)):
        if (place := use.place(bracketed(operand))) and place.space != str(space):
            raise Unsupported(f"'{operand}' is in .{place.space}, not .{space}")
        address = wrapped(str(space), use.address_of(bracketed(operand)))
        lines.append(f"unsigned char *{name} = host_range_{space}(t, {use.site}, {address}, n_);")
    operation = use.words.get("O")
    if operation:
        type_ = use.words["T"]
        assert isinstance(type_, PtxType)
        raw = type_.unsigned
        lines.append(f"{raw} *to_ = ({raw} *)d_, *of_ = ({raw} *)s_;")
        one = f"atomic{operation}_{type_.name}(t, to_ + i_, of_[i_]);"
        lines.append(f"for (uint64_t i_ = 0; i_ < n_ / {raw.size}; i_++) {one}")
    else:
        lines.append("memcpy(d_, s_, n_);")
    if f".{_BYTES}" in use.instruction.modifiers:
        lines.append(_transferred(use, rest[0], "n_"))
    if ".multicast::cluster" in use.instruction.modifiers:  # copies to several blocks, but here, a cluster has only one
        return " ".join([f"if ({use.value(rest[1], TYPES['u16'])} & 1) {{", *lines, "}"])
    return " ".join(["{", *lines, "}"])


def _matrix(use: InstructionUse) -> str:
    """Write ldmatrix or stmatrix. Lanes 8i to 8i+7 have the addresses of the rows of matrix i."""
    load = use.instruction.opcode == "ldmatrix"
    registers, address = use.operands if load else reversed(use.operands)
    count = int(str(use.words["N"]))
    items = use.vector(registers, count)
    if len(items) == 1 and not isinstance(registers, tree.Vector):
        raise Unsupported(f"'{registers}' where a vector in braces is expected")
    given = ", ".join(["0"] * 4 if load else [use.value(item, _U32) for item in items])
    where = bracketed(address)
    if use.words["W"] or use.place(where):
        row = pointer(use, "shared", where, 16)
    else:  # hardware treats addresses below 4 GiB as addresses in shared memory
        row = f"host_shared(t, {use.site}, host_to_shared(t, {use.address_of(where, 32)}), 16)"
    transposed = int(bool(use.words["trans"]))
    after = [use.assign(item, _U32, f"x_.elements[{n}]") for n, item in enumerate(items)] if load else []
    return (
        f"{{ struct host_matrix x_ = {{t->laneid < {8 * count} ? (unsigned char *){row} : 0, {count}, {transposed}, "
        f"{{{given}}}}}; t->services->meet(t, {use.site}, ~0u, host_{'load' if load else 'store'}_matrix, &x_); "
        f"{' '.join(after)} }}"
    )


_ORDERED = "M=*: S=*; S=*: M=*; M=*: sm_80; M=*: 8.0; relaxed cluster: sm_90; relaxed: 8.6 complete_tx"
_LOCAL: dict[str, str | Mapping[str, str]] = {"W": dict.fromkeys(("shared", "shared::cta"), "shared")}
_LOCAL_STATE: dict[str, str | Mapping[str, str]] = _SETS | _LOCAL
_REMOTE: dict[str, str | Mapping[str, str]] = {"S": SCOPES, "W": {"shared::cluster": "shared"}, "V": VECTORS}
_RELEASED = _REMOTE | {"S": "gpu sys"}
_SENT = "u16 s16 b16 u32 s32 b32 u64 s64 b64 f32 f64"
_SUMMED = {"add": "u32 s32 u64", "min": "u32 s32", "max": "u32 s32", "and": "b32", "or": "b32", "xor": "b32"}
_SUMMED |= {"inc": "u32", "dec": "u32"}  # only red.async has these
_HINT = "{.L2::cache_hint}"
_SHARED = {"shared": "shared", "shared::cta": "shared"}
_BULK = (  # destination, source, completion mechanism and its operands
    ("shared::cta shared::cluster", "global shared::cta", _BYTES, " bar:address"),
    ("global", "shared::cta", "bulk_group", ""),
    ("shared::cluster", "global", f"{_BYTES}.multicast::cluster", " bar:address mask:u16"),
)
_REDUCED = (
    "add: !s64; noftz: add; noftz: f16 bf16; add+f16 add+bf16: noftz;"
    "shared::cluster: u32 s32 u64 b32; D=shared::cluster+u64: add"
)
_BULK_NEEDS = ": sm_90; : 8.0; D=shared::cta: W=global; D=shared::cta: 8.6"
_BULK_REDUCTIONS = (
    ("global", "shared::cta", f"bulk_group{_HINT}", ""),
    ("global", "shared::cta", f"bulk_group{_HINT}", " h:u64"),
    ("shared::cluster", "shared::cta", _BYTES, " bar:address"),
)


def _between(to: str, of: str) -> dict[str, Mapping[str, str]]:
    """Return the state spaces that are possible for `D` and `W`."""
    return {name: {word: SPACES[word] for word in words.split()} for name, words in (("D", to), ("W", of))}


ROWS = [
    Row(
        "mbarrier.init{.W}.b64",
        "= a:address n:u32",
        lambda use: _change("*m_ = host_mbarrier(n_);", use),
        needs=": sm_80",
        **_LOCAL,
    ),
    Row("mbarrier.inval{.W}.b64", "= a:address", lambda use: _change("*m_ = 0;", use), needs=": sm_80", **_LOCAL),
    *(
        Row(
            f"mbarrier.{name}{_STATE}",
            "= a:address n:u32",
            partial(_change, f"host_transfer(m_, {count});"),
            needs=f"{_ORDERED}; : sm_90; : 8.0; acquire release: !M=*",
            **_SETS,
        )
        for name, count in (("expect_tx", "n_"), ("complete_tx", "-(int64_t)n_"))
    ),
    *(
        Row(
            f"mbarrier.{name}{form}{_STATE}",
            signature,
            _arrive,
            needs=f"{_ORDERED}; : {'sm_90' if not form and 'c:u32' in signature else 'sm_80'}; acquire: !M=*{needs}",
            **_SETS,
        )
        for name in ("arrive", "arrive_drop")
        for form, needs, signatures in (
            ("", "; shared::cluster: sm_90", ("= a:u64 b:address", "= a:u64 b:address c:u32")),
            (".expect_tx", "; : sm_90; : 8.0", ("= a:u64 b:address c:u32",)),
            (".noComplete", "; relaxed cluster shared::cluster: !noComplete", ("= a:u64 b:address c:u32",)),
        )
        for signature in signatures
    ),
    *(
        Row(
            f"mbarrier.{name}{form}{_STATE}",
            f"p:pred = a:address {state}{hint}",
            _wait,
            needs=needs,
            **_LOCAL_STATE,
        )
        for name, hints, since in (("test_wait", ("",), "sm_80"), ("try_wait", ("", " hint:u32"), "sm_90"))
        for hint in hints
        for form, state, version in (("", "b:u64", ""), (".parity", "b:u32", "; : 7.1"))
        for needs in [f"{_ORDERED}; release: !M=*; : {since}{version}"]
    ),
    Row("mbarrier.pending_count.b64", "d:u32 = a:u64", "host_pending({a})", needs=": sm_80"),
    *(
        Row(
            f"cp.async.C.D.global{_HINT}{{.P}}",
            f"= a:address b:address size:number{more}",
            _copy,
            needs=f": sm_80; : 7.0; : {'' if 'hint' in more else '!'}L2::cache_hint",
            C="ca cg",
            D=_SHARED,
            P=PREFETCHES,
        )
        for more in ("", " from", " hint:u64", " from hint:u64")
    ),
    Row("cp.async.commit_group", "", "", needs=": sm_80"),
    Row("cp.async.wait_group", "= n:number", "", needs=": sm_80"),
    Row("cp.async.wait_all", "", "", needs=": sm_80"),
    Row(
        "cp.async.mbarrier.arrive{.W}.b64",
        "= a:address",
        lambda use: f"(void){_barrier(use, use.operands[0])};",
        needs=": sm_80; shared::cta: 7.8",
        **_LOCAL,
    ),
    Row("cp.async.mbarrier.arrive.noinc{.W}.b64", "= a:address", _arrive, needs=": sm_80; shared::cta: 7.8", **_LOCAL),
    *(
        Row(
            f"cp.async.bulk.D.W.{end}{_HINT}",
            f"= a:address b:address size:u32{more}{hint}",
            _bulk,
            needs=needs,
            **_between(to, of),
        )
        for to, of, end, more in _BULK
        for hint, needs in (
            ("", f"{_BULK_NEEDS}; : !L2::cache_hint"),
            (" h:u64", f"{_BULK_NEEDS}; : L2::cache_hint; shared::cta: global"),
        )
    ),
    *(
        Row(
            f"cp.reduce.async.bulk.D.W.{end}.O{{.noftz}}.T",
            f"= a:address b:address size:u32{more}",
            _bulk,
            needs=f": sm_90; : 8.0; : {'' if 'h:u64' in more else '!'}L2::cache_hint; {_REDUCED}",
            **_between(to, of),
            O=name,
            T=" ".join(type_ for type_ in types.split() if "x2" not in type_),
        )
        for name, types in TYPES_OF.items()
        if name not in ("exch", "cas")
        for to, of, end, more in _BULK_REDUCTIONS
    ),
    Row(
        f"st.async{{.weak}}{{.W}}.{_BYTES}{{.V}}.T",
        "= a:address b bar:address",
        _remote,
        needs=": sm_90; : 8.1; V=v4: !u64; V=v4: !s64; V=v4: !b64; V=v4: !f64",
        W={"shared::cluster": "shared"},
        V={"v2": "2", "v4": "4"},
        T="b32 u32 s32 b64 u64 s64 f32 f64",
    ),
    Row("st.async{.mmio}.release.S.global.T", "= a:address b", store, needs=": sm_100; : 8.7", **_RELEASED, T=_SENT),
    *(
        row
        for name, of in _SUMMED.items()
        for row in (
            Row(
                f"red.async{{.relaxed}}{{.S}}{{.W}}.{_BYTES}.O.T",
                "= a:address b bar:address",
                _remote,
                needs=": sm_90; : 8.1; : relaxed; : cluster",
                **_REMOTE,
                O=name,
                T=of,
            ),
            Row(
                "red.async{.mmio}.release.S.global.O.T",
                "= a:address b",
                atomic,
                needs=": sm_100; : 8.7",
                **_RELEASED,
                O=name,
                T=of,
            ),
        )
    ),
    Row("cp.async.bulk.commit_group", "", "", needs=": sm_90; : 8.0"),
    Row("cp.async.bulk.wait_group{.read}", "= n:number", "", needs=": sm_90; : 8.0"),
    *(
        Row(f"cp.async.bulk.prefetch.L2.global{hint}", signature, _prefetch, needs=": sm_90; : 8.0")
        for hint, signature in (("", "= a:address b:u32"), (".L2::cache_hint", "= a:address b:u32 h:u64"))
    ),
    *(
        Row(
            f"{opcode}.sync.aligned.m8n8.N{{.trans}}{{.W}}.b16",
            signature,
            _matrix,
            needs=f": {'sm_75' if opcode == 'ldmatrix' else 'sm_90'}",
            N={"x1": "1", "x2": "2", "x4": "4"},
            **_LOCAL,
        )
        for opcode, signature in (("ldmatrix", "d:b32[] = a:address"), ("stmatrix", "= a:address b:b32[]"))
    ),
    Row(
        "movmatrix.sync.aligned.m8n8.trans.b16",
        "d:b32 = a:b32",
        needs=": sm_75; : 7.8",
        code="struct host_matrix x_ = {{0, 1, 0, {{{a}}}}}; "
        "t->services->meet({thread}, {site}, ~0u, host_move_matrix, &x_); {d} = x_.elements[0];",
    ),
]
