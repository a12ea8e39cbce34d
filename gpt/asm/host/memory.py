"""Loads, stores, and addresses in the state spaces.

Every access is checked at run time: its address must be a multiple of its size (for a vector, the size of all elements
together), and it must be inside an allocation. Accesses to variables at constant offsets are checked here instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpt.asm.host.names import Unsupported, evaluate, evaluate_float, float_bits
from gpt.asm.host.table import TYPES, PtxType, Row
from gpt.asm.host.use import InstructionUse, convert
from gpt.ptx import tree

ACCESSED = "u8 s8 b8 u16 s16 b16 u32 s32 b32 u64 s64 b64 b128 f32 f64"
ORDERS = {"weak": "", "volatile": "RELAXED", "relaxed": "RELAXED", "acquire": "ACQUIRE", "release": "RELEASE"}
SCOPES = "cta cluster gpu sys"
SPACES = {  # modifier of an instruction: state space
    **{space: space for space in ("global", "shared", "local", "const", "param")},
    "shared::cta": "shared",
    "shared::cluster": "shared",
    "param::entry": "param",
    "param::func": "param",
}
CACHES = "ca cg cs lu cv wb wt"
EVICTIONS = "L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate"
EVICTIONS_2 = "L2::evict_normal L2::evict_first L2::evict_last"
PREFETCHES = "L2::64B L2::128B L2::256B"
VECTORS = {f"v{width}": str(width) for width in (2, 4, 8)}
CHECKED = {"": "generic", "global": "global", "shared": "shared", "local": "local", "const": "constant"}
WINDOWS = ("shared", "local", "const", "param")  # spaces with 32-bit addresses
_STARTS = {"global": "0", "shared": "t->shared", "local": "t->local", "const": "t->constant", "param": "t->local"}
_F32 = TYPES["f32"]
_ADDRESS = TYPES["u64"]


def pointer(use: InstructionUse, space: str, address: tree.Operand, size: int) -> str:
    """Return the C pointer for an access of `size` bytes. `address` is the operand inside the brackets.

    An empty space stands for a generic address.
    """
    if place := use.place(address):
        if space != place.space and (space or place.space not in ("global", "shared", "local")):
            wanted = f"one of .{space}" if space else "a generic one"
            raise Unsupported(f"an address of .{place.space} as {wanted}")
        space, offset = place.space, _offset(address, place.element)
        if place.pointer and offset is not None and 0 <= offset <= place.size - size and offset % size == 0:
            return f"({place.pointer} + {offset})"
    found = use.body.find_register(use.base(address))
    if space not in WINDOWS and found and found.type.bits == 32:  # ptxas accepts narrower addresses and extends them
        raise Unsupported(f"'{address}' of type .{found.declared} as an address: 32 bits are for another ABI")
    return checked(use, space, use.address_of(address), size)


def checked(use: InstructionUse, space: str, address: str, size: int | str) -> str:
    """Return the C pointer for an address in C. The generated code checks the address at run time."""
    address = wrapped(space, address)
    if space != "param":
        return f"host_{CHECKED[space]}(t, {use.site}, {address}, {size})"
    if not use.body.is_kernel:  # the arguments of a function are in local memory
        return f"host_local(t, {use.site}, {address}, {size})"
    return f"host_parameter(t, {use.site}, parameters, {_parameter_size(use)}, {address}, {size})"


def wrapped(space: str, address: str) -> str:
    """Truncate an address in C to the width of its space: hardware adds in 32 bits in small spaces."""
    return f"(uint32_t)({address})" if space in WINDOWS else address


def _offset(address: tree.Operand, element: int) -> int | None:
    """Return the offset from a variable whose elements have `element` bytes, or None if it isn't a constant."""
    match address:
        case tree.Expression((_, *rest), (sign, *signs)):
            return evaluate(tree.Expression((tree.Number("0"), *rest), (sign, *signs)))
        case tree.Index(_, (tree.Address((tree.Number() | tree.Prefixed() as index,)),)) if element:
            return evaluate(index) * element
        case tree.Index():
            return None
    return 0


def bracketed(operand: tree.Operand) -> tree.Operand:
    """Return what's inside the brackets of an address. Raises Unsupported."""
    if not isinstance(operand, tree.Address) or len(operand.items) != 1 or isinstance(operand.items[0], tree.Index):
        raise Unsupported(f"address '{operand}'")
    return operand.items[0]


def _inside(address: tree.Operand) -> tree.Operand:
    """Return an address without its brackets. Elements of arrays have brackets of their own."""
    return address if isinstance(address, tree.Index) else bracketed(address)


def _access(
    use: InstructionUse, operand: tree.Operand, address: tree.Operand
) -> tuple[PtxType, tuple[tree.Operand, ...], str, str]:
    """Return the type of a load's or store's elements in memory, its registers, its pointer and its memory order."""
    type_ = use.words["T"]
    assert isinstance(type_, PtxType)
    width = int(str(use.words.get("V", "")) or 1)
    items = tuple(use.vector(operand, width))
    where = pointer(use, str(use.words.get("W", "global")), _inside(address), type_.size * width)
    return type_, items, where, str(use.words.get("O", ""))


def _load(use: InstructionUse) -> str:
    type_, items, where, order = _access(use, *use.operands[:2])
    raw = type_.unsigned
    lines = [f"const {raw} *m = (const {raw} *){where};"]
    for number, item in enumerate(items):
        value = f"m[{number}]" if not order or type_.size == 16 else f"__atomic_load_n(m + {number}, __ATOMIC_{order})"
        lines.append(use.assign(item, type_, convert(value, raw, type_)))
    return " ".join(["{", *lines, "}"])


def store(use: InstructionUse) -> str:
    """Write a store. Its operands are an address, and a value or a vector."""
    inputs = {parameter.declarator.name for parameter in use.body.head.params or ()}
    where = _inside(use.operands[0])
    if use.base(where) in inputs and (place := use.place(where)) and place.space == "param":
        raise Unsupported(f"'{where}' is a parameter of this function, which can't be written")
    type_, items, address, order = _access(use, use.operands[1], use.operands[0])
    raw = type_.unsigned
    lines = [f"{raw} *m = ({raw} *){address};"]
    for number, item in enumerate(items):
        value = use.value(item, raw)
        plain = not order or type_.size == 16
        lines.append(
            f"m[{number}] = {value};" if plain else f"__atomic_store_n(m + {number}, {value}, __ATOMIC_{order});"
        )
    return " ".join(["{", *lines, "}"])


def _fill(use: InstructionUse) -> str:
    """Write st.bulk, which fills shared memory with zeros, eight bytes at a time. Without `.shared::cta`, the address
    is generic.
    """
    where, size, _ = use.operands
    address, type_ = bracketed(where), _ADDRESS
    if isinstance(size, tree.Number | tree.Prefixed) and evaluate(size) not in range(0, (16 << 20) + 1, 8):
        raise Unsupported(f"'{size}' is not a multiple of 8 from 0 to {16 << 20}")
    if isinstance(size, tree.Name) and (found := use.body.find_register(size.name, size.parts)):
        if found.declared == "u32" and use.body.code.dialect.version < (9, 0):
            raise Unsupported(f"'{size}' is a register of .u32, which needs .version 9.0 or later")
        type_ = TYPES["u32"] if found.type.bits == 32 else _ADDRESS
    use.check(size, type_, exact=True)
    if use.words["W"] and (place := use.place(address)) and place.space != "shared":
        raise Unsupported(f"an address of .{place.space} as one of .shared")
    at = wrapped("shared", "a_ + i_") if use.words["W"] else "host_to_shared(t, a_ + i_)"
    one = f"memset(host_shared(t, {use.site}, {at}, 8), 0, 8);"
    check = f"if (n_ & 7) t->services->fault(t, {use.site}, HOST_FAULT_MISALIGNED, n_);"
    given = f"uint64_t a_ = {use.address_of(address)}, n_ = {use.value(size, _ADDRESS)};"
    return f"{{ {given} {check} for (uint64_t i_ = 0; i_ < n_; i_ += 8) {one} }}"


def _is_parameter(use: InstructionUse) -> str:
    """Write isspacep for parameters: test whether an address is in the kernel's parameters."""
    if not use.body.is_kernel:
        raise Unsupported("not supported in device functions")
    address = use.value(use.operands[1], _ADDRESS)
    return use.assign(use.operands[0], TYPES["pred"], f"{address} - (uint64_t)parameters < {_parameter_size(use)}")


def _parameter_size(use: InstructionUse) -> int:
    """Return the size of the kernel's parameters in bytes."""
    return max((one.offset + one.size for one in use.body.code.parameters(use.body.item)), default=0)


def _change_space(use: InstructionUse) -> str:
    """Write cvta, which makes an address of a space generic, or with `to`, does the reverse. Shared addresses are
    truncated to 32 bits.
    """
    if place := use.place(use.operands[1]):
        if use.words["to"]:
            raise Unsupported(f"'{use.operands[1]}' where a register is expected")
        if place.space != use.words["W"]:
            raise Unsupported(f"'{use.operands[1]}' is in .{place.space}, not .{use.words['W']}")
    space, value = str(use.words["W"]), use.value(use.operands[1], _ADDRESS)
    start = "parameters" if space == "param" and use.body.is_kernel else _STARTS[space]
    if use.words["to"]:
        value = f"{value} - (uint64_t){start}"
    else:
        value = f"(uint64_t){start} + {wrapped(space, value) if space == 'shared' else value}"
    return use.assign(use.operands[0], _ADDRESS, value)


def refuse_address(use: InstructionUse, address: tree.Operand) -> None:
    """Raise Unsupported if an address is in a different space than the instruction's, even if nothing is accessed."""
    pointer(
        use, next((space for space in ("global", "local") if f".{space}" in use.instruction.modifiers), ""), address, 1
    )


def _hint(use: InstructionUse) -> str:
    """Write a cache hint. It has no effect, but addresses that ptxas rejects are rejected here, too."""
    address = bracketed(use.operands[0])
    if use.instruction.opcode == "prefetchu" and use.place(address):
        raise Unsupported(f"'{address}' is a variable: 'cvta' its address to a register first")
    refuse_address(use, address)
    return ";"


def _policy(use: InstructionUse) -> str:
    """Write createpolicy. The policy is 0, because nothing reads it, but constants that ptxas rejects are rejected
    here, too.
    """
    given = use.operands[1:]
    if len(given) == 3:
        refuse_address(use, bracketed(given[0]))
    if len(given) == 1 and tree.is_constant(given[0]):
        text = str(given[0])
        plain = isinstance(given[0], tree.Number)
        bits = 0 if text[0] == "-" else float_bits(text, _F32) if plain else evaluate_float(given[0], _F32)
        if not 0 < bits <= float_bits("1.0", _F32):
            raise Unsupported(f"'{text}' is not over 0 and at most 1")
    if len(given) == 3 and all(map(tree.is_constant, given[1:])):
        first, whole = (evaluate(one) & 0xFFFFFFFF for one in given[1:])
        if first > whole:
            raise Unsupported(f"{first} bytes of {whole}")
    return use.assign(use.operands[0], _ADDRESS, "0")


_GENERIC = {word: space for word, space in SPACES.items() if word != "param::func"}
_SETS: dict[str, str | Mapping[str, str]] = {
    "O": ORDERS,
    "S": SCOPES,
    "W": SPACES,
    "C": CACHES,
    "E": EVICTIONS,
    "F": EVICTIONS_2,
    "P": PREFETCHES,
    "V": VECTORS,
    "T": ACCESSED,
}
_WIDE = "V=v8+b32 V=v8+u32 V=v8+s32 V=v8+f32 V=v4+b64 V=v4+u64 V=v4+s64 V=v4+f64"  # 256 bits
_NEEDS = (
    "relaxed acquire release: cta cluster gpu sys; cta cluster gpu sys: relaxed acquire release; cluster: sm_90;"
    "relaxed acquire release: W=global W=shared W=shared::cta W=shared::cluster !W=*;"
    "C=*: !volatile; C=*: !relaxed; C=*: !acquire; C=*: !release; E=*: !C=*; E=*: !volatile; E=*: !mmio;"
    "E=* F=* P=* L2::cache_hint: W=global !W=*; F=*: V=v8 V=v4; F=*: sm_100; L2::cache_hint: sm_80;"
    f"{' '.join(f'{word}+V=v4' for word in EVICTIONS_2.split())}: b64 u64 s64 f64;"
    f"{' '.join(f'{word}+V=v8' for word in EVICTIONS_2.split())}: b32 u32 s32 f32;"
    f"{_WIDE}: sm_100; {_WIDE}: 8.8; {_WIDE}: W=global !W=*;"
    "T=b128: !V=*; V=v8: !b64; V=v8: !u64; V=v8: !s64; V=v8: !f64;"
    "L2::cache_hint: !volatile; volatile: !const; volatile+local: 9.1;"
    "volatile: !param; volatile: !param::func; volatile: !param::entry;"
    "mmio: relaxed; mmio: sys; mmio: !P=*; mmio: !V=v8; nc: W=global; nc: !O=*; shared::cluster: sm_90; mmio: sm_70;"
    "b128: sm_70; L2::64B L2::128B: sm_75; L2::256B: sm_80"
)
_HINTED, _PLAIN_NEEDS = f"{_NEEDS}; : L2::cache_hint", f"{_NEEDS}; : !L2::cache_hint"
_LOAD_SETS = _SETS | {"O": {word: ORDERS[word] for word in ORDERS if word != "release"}, "C": "ca cg cs lu cv"}
_STORE_SETS = _SETS | {
    "O": {word: ORDERS[word] for word in ORDERS if word != "acquire"},
    "W": {word: SPACES[word] for word in SPACES if word not in ("const", "param::entry")},
    "C": "wb cg cs wt",
}
_UNCHANGED = "L2::evict_unchanged L2::evict_first"
_WORDS = "{.E}{.F}{.L2::cache_hint}{.P}{.V}.T"


ROWS = [
    *(
        row
        for more, needs in (("", _PLAIN_NEEDS), (" h:u64", _HINTED))
        for row in (
            Row(
                f"ld{{.mmio}}{{.O}}{{.S}}{{.W}}{{.C}}{{.nc}}{_WORDS}",
                f"d = a:address{more}",
                _load,
                needs=needs,
                **_LOAD_SETS,
            ),
            Row(
                f"st{{.mmio}}{{.O}}{{.S}}{{.W}}{{.C}}{_WORDS.replace('{.P}', '')}",
                f"= a:address b{more}",
                store,
                needs=needs,
                **_STORE_SETS,
            ),
        )
    ),
    Row("st.bulk{.weak}{.W}", "= a:address size init:0", _fill, needs=": sm_100; : 8.6", W={"shared::cta": "shared"}),
    Row(
        "ldu{.W}{.V}.T",
        "d = a:address",
        _load,
        needs="V=v4: !b64; V=v4: !u64; V=v4: !s64; V=v4: !f64; b128: !V=*",
        W={"global": "global"},
        V={"v2": "2", "v4": "4"},
        T=ACCESSED,
    ),
    *(
        Row(
            f"isspacep.{word}",
            "d:pred = a:u64",
            f"{{a}} - (uint64_t)t->{space} < t->{space}_size",
            needs="const: 3.1",
        )
        for word, space in SPACES.items() | {("const", "constant")}
        if space in ("shared", "local", "constant")
    ),
    *(Row(f"isspacep.{word}", "d:pred = a:u64", _is_parameter, needs=": 7.7") for word in ("param", "param::entry")),
    Row("isspacep.global", "d:pred = a:u64", "host_is_global({thread}, {a})"),
    # Cache hints have no effect
    Row(
        "prefetch{.W}.L",
        "= a:address",
        _hint,
        needs="L2::evict_last L2::evict_normal: !local; L2::evict_last L2::evict_normal: sm_80",
        W="global local",
        L="L1 L2 L2::evict_last L2::evict_normal",
    ),
    Row("prefetchu.L1", "= a:address", _hint),
    Row("applypriority{.global}.L2::evict_normal", "= a:address size:128", _hint, needs=": sm_80; : 7.4"),
    Row("discard{.global}.L2", "= a:address size:128", _hint, needs=": sm_80; : 7.4"),
    *(
        Row(
            "createpolicy.fractional.P{.Q}.b64",
            signature,
            _policy,
            needs=": sm_80; : 7.4",
            P=EVICTIONS_2 + " L2::evict_unchanged",
            Q=_UNCHANGED,
        )
        for signature in ("d:u64 =", "d:u64 = a:f32")
    ),
    Row(
        "createpolicy.range{.global}.P{.Q}.b64",
        "d:u64 = a:address b:u32 c:u32",
        _policy,
        needs=": sm_80; : 7.4",
        P=EVICTIONS_2 + " L2::evict_unchanged",
        Q=_UNCHANGED,
    ),
    Row("createpolicy.cvt.L2.b64", "d:u64 = a:u64", "{a}", needs=": sm_80; : 7.4"),
    Row("cvta{.to}.W.u64", "d:u64 = a:u64", _change_space, needs="param: 7.7; const: 3.1", W=_GENERIC),
]
