"""Faces: the PTX instructions that probes see in place of machine instructions.

A probe says where it goes in terms of PTX: `ld.global`, `bar.sync`, `mma`. So it sees `LDG.E.128` as
`ld.global.v4.b32`, with everything that positions and helpers (gpt/probe/operands.py) need: the space, the type, the
shape.

Facts that the words don't contain are left out. The type promises as little as possible, such as b32 for a float; 128
bits are four 32-bit registers. The scope and order of an access (`.STRONG.GPU`) and the cache policy aren't shown. An
atomic whose result goes to RZ is a `red`.

ptxas doesn't always compile one instruction to one: `atom.shared.add.f32` is a loop around ATOMS.CAST, which is shown
as the compare-and-swap that it is. A load with the guard `!PT`, which ptxas puts before LDGSTS, never runs and isn't a
site.

The lower nine bits of an opcode are the operation; the upper three are the kind of its operand at bit 32. These are the
bits (sm_90), each found by varying a PTX instruction, and compared with it by tests/sass/test_faces.py:

    73 -  75   memory: 0-3 u8 s8 u16 s16, 4 32 bits, 5 64, 6 128
    73 -  76   atomics: 0-3 u32 s32 u64 s64; with a float: 0 f16x2, 3 bf16x2, 9 f32, 15 f64
    87 -  90   operation of atomics; RED has 87-89
    77 -  79   BAR: 0 sync, 1 arrive, 2 red, whose operation is in 74-75
    81         LDGSTS: set unless it bypasses the first cache
    72 -  73   LDSM, STSM: number of matrices, as a power of two; 78 transposed
    75, 78     HMMA: shape; 76 accumulates in f32; 82-83 type: 0 f16, 1 bf16, 2 tf32
    75, 86     IMMA: shape; 76 and 78 A and B are signed
    76 -  77   DMMA: shape

faces_async.py has the bits of wgmma, bulk copies and mbarriers.

An instruction with any other bit set there, or another value, has no face. Other architectures encode the widths of
memory accesses in the same way, but the atomics of sm_80 and sm_100 differently, so their instructions have no faces at
all.
"""

from __future__ import annotations

from collections.abc import Callable

from gpt.sass.code import Instruction
from gpt.sass.faces_async import (
    UNTYPED,
    arrival,
    bulk,
    bulk_prefetch,
    bulk_reduction,
    group_mma,
    half_types,
    integer_types,
    quarter_types,
    tensor,
)
from gpt.sass.words import CONTROL, PT, bits

ARCH = "sm_90"
OPERATION = 0x1FF  # the bits of an opcode
RZ = 255
_WIDTHS = ("u8", "s8", "u16", "s16", "b32", "b64", "v4.b32")
_INTEGERS = ("u32", "s32", "u64", "s64")
_FLOATS = {0: "noftz.f16x2", 3: "noftz.bf16x2", 9: "f32", 15: "f64"}
_ATOMICS = ("add", "min", "max", "inc", "dec", "and", "or", "xor", "exch")
_COUNT = 11  # ATOMS.POPC.INC: add 1, which ptxas lets a warp do in one step


def _access(opcode: str) -> Callable[[int], str | None]:
    def face(word: int) -> str | None:
        width = bits(word, 73, 3)
        if width >= len(_WIDTHS):
            return None
        name = _WIDTHS[width]
        return f"{opcode}.{name.replace('s', 'u') if opcode.startswith('st') else name}"  # STL.S16 occurs

    return face


def _atomic(space: str, result: int | None = 16, floats: bool = False) -> Callable[[int], str | None]:
    """Return a function that finds an atomic's face. `result` is the bit of the old value's register, None for RED."""

    def face(word: int) -> str | None:
        operation, type_ = bits(word, 87, 3 if result is None else 4), bits(word, 73, 4)
        if operation == _COUNT and space == ".shared":
            operation = 0
        if operation >= len(_ATOMICS):
            return None
        name = _ATOMICS[operation]
        if floats:
            text = _FLOATS.get(type_) if name == "add" else None
        else:
            text = _INTEGERS[type_] if type_ < len(_INTEGERS) else None
        if text and name in UNTYPED:
            text = {"u32": "b32", "u64": "b64"}.get(text)
        opcode = "red" if (result is None or bits(word, result, 8) == RZ) and name != "exch" else "atom"
        return f"{opcode}{space}.{name}.{text}" if text else None

    return face


def _swap(space: str) -> Callable[[int], str | None]:
    def face(word: int) -> str | None:
        type_ = {0: "b32", 2: "b64"}.get(bits(word, 73, 4))
        return f"atom{space}.cas.{type_}" if type_ else None

    return face


def _barrier(word: int) -> str | None:
    match bits(word, 77, 3):
        case 0:
            return "bar.sync"
        case 1:
            return "bar.arrive"
        case 2:
            return {0: "bar.red.popc.u32", 1: "bar.red.and.pred", 2: "bar.red.or.pred"}.get(bits(word, 74, 2))
    return None


def _copy(word: int) -> str | None:
    size = {4: 4, 5: 8, 6: 16}.get(bits(word, 73, 3))
    return f"cp.async.{'ca' if bits(word, 81, 1) else 'cg'}.shared.global" if size else None


def _matrices(opcode: str) -> Callable[[int], str | None]:
    def face(word: int) -> str | None:
        number, other = bits(word, 72, 2), bits(word, 74, 4) | bits(word, 79, 1)
        if number > 2 or other:
            return None
        return f"{opcode}.sync.aligned.m8n8.x{1 << number}{'.trans' if bits(word, 78, 1) else ''}.shared.b16"

    return face


def _half_mma(word: int) -> str | None:
    type_ = {0: "f16", 1: "bf16", 2: "tf32"}.get(bits(word, 82, 2))
    depths = {(0, 0): 8, (1, 0): 4} if type_ == "tf32" else {(0, 0): 8, (0, 1): 16}
    depth = depths.get((bits(word, 78, 1), bits(word, 75, 1)))
    accumulator = "f32" if bits(word, 76, 1) else "f16" if type_ == "f16" else None
    known = 1 << 75 | 1 << 76 | 1 << 78 | 3 << 82
    if type_ is None or depth is None or accumulator is None or word >> 72 << 72 & ~(CONTROL | known):
        return None
    return f"mma.sync.aligned.m16n8k{depth}.row.col.{accumulator}.{type_}.{type_}.{accumulator}"


def _integer_mma(word: int) -> str | None:
    shape = {(1, 0): "m16n8k16", (1, 1): "m16n8k32", (0, 0): "m8n8k16"}.get((bits(word, 86, 1), bits(word, 75, 1)))
    known = 1 << 74 | 1 << 75 | 1 << 76 | 1 << 78 | 1 << 86
    if shape is None or not bits(word, 74, 1) or word >> 72 << 72 & ~(CONTROL | known):
        return None
    a, b = ("s8" if bits(word, bit, 1) else "u8" for bit in (76, 78))
    return f"mma.sync.aligned.{shape}.row.col.s32.{a}.{b}.s32"


def _double_mma(word: int) -> str | None:
    if word >> 72 << 72 & ~(CONTROL | 3 << 76):
        return None
    shape = ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16")[bits(word, 76, 2)]
    return f"mma.sync.aligned.{shape}.row.col.f64.f64.f64.f64"


def _branch(word: int) -> str | None:
    others = word & ~(CONTROL | 0xFFFF | 0xFF << 16 | (1 << 48) - 1 << 34 | 15 << 87)
    return None if others else "bra"  # neither BRA.DIV nor a branch on a uniform predicate


FACES: dict[tuple[str, int], Callable[[int], str | None] | str] = {  # by name and operation
    ("LDG", 0x181): _access("ld.global"),
    ("STG", 0x186): _access("st.global"),
    ("LD", 0x180): _access("ld"),
    ("ST", 0x185): _access("st"),
    ("LDS", 0x184): _access("ld.shared"),
    ("STS", 0x188): _access("st.shared"),
    ("LDL", 0x183): _access("ld.local"),
    ("STL", 0x187): _access("st.local"),
    ("REDG", 0x18E): _atomic(".global", None),
    ("REDG", 0x1A6): _atomic(".global", None, floats=True),
    ("ATOMG", 0x1A8): _atomic(".global"),
    ("ATOMG", 0x1A3): _atomic(".global", floats=True),
    ("ATOMG", 0x1A9): _swap(".global"),
    ("ATOM", 0x18A): _atomic(""),
    ("ATOM", 0x1A2): _atomic("", floats=True),
    ("ATOM", 0x18B): _swap(""),
    ("ATOMS", 0x18C): _atomic(".shared"),
    ("ATOMS", 0x18D): _swap(".shared"),
    ("LDGSTS", 0x1AE): _copy,
    ("LDSM", 0x03B): _matrices("ldmatrix"),
    ("STSM", 0x044): _matrices("stmatrix"),
    ("BAR", 0x11D): _barrier,
    ("UCGABAR_ARV", 0x1C7): "barrier.cluster.arrive",
    ("UCGABAR_WAIT", 0x1C7): "barrier.cluster.wait",
    ("HMMA", 0x03C): _half_mma,
    ("IMMA", 0x037): _integer_mma,
    ("DMMA", 0x03F): _double_mma,
    ("HGMMA", 0x1F0): group_mma(half_types),
    ("IGMMA", 0x1F1): group_mma(integer_types),
    ("QGMMA", 0x1F3): group_mma(quarter_types),
    ("UBLKCP", 0x1BA): bulk,
    ("UBLKRED", 0x1BB): bulk_reduction,
    ("UBLKPF", 0x1BC): bulk_prefetch,
    ("UTMALDG", 0x1B4): tensor(
        "cp.async.bulk.tensor.{}d.shared::cluster.global", "im2col", ".mbarrier::complete_tx::bytes"
    ),
    ("UTMASTG", 0x1B5): tensor("cp.async.bulk.tensor.{}d.global.shared::cta", "im2col_no_offs", ".bulk_group"),
    ("UTMAREDG", 0x1B6): tensor(
        "cp.reduce.async.bulk.tensor.{}d.global.shared::cta", "im2col_no_offs", ".bulk_group", has_operation=True
    ),
    ("UTMAPF", 0x1B8): tensor("cp.async.bulk.prefetch.tensor.{}d.L2.global", "im2col", ""),
    ("SYNCS", 0x1A7): arrival,
    ("EXIT", 0x14D): "exit",
    ("BRA", 0x147): _branch,
    ("BRX", 0x149): "brx.idx",
}
_WITHOUT = {  # no face yet, though a probe might look for them
    *("LDGMC", "STAS", "REDAS", "BMMA", "BGMMA", "TEX", "TLD", "TLD4", "SULD", "SUST", "SUATOM", "SURED", "BRXU"),
}
NAMES = {name for name, _ in FACES} | _WITHOUT
UNIFORM = {"UBLKCP", "UBLKRED", "UBLKPF", "UTMALDG", "UTMASTG", "UTMAREDG", "UTMAPF"}  # executed once per warp
OPCODES: dict[str, tuple[str, ...]] = {  # the first words of the faces that instructions of a name may have
    **dict.fromkeys(("LDG", "LD", "LDS", "LDL"), ("ld",)),
    **dict.fromkeys(("STG", "ST", "STS", "STL"), ("st",)),
    "REDG": ("red",),
    **dict.fromkeys(("ATOMG", "ATOM", "ATOMS"), ("atom", "red")),
    "LDGSTS": ("cp",),
    "LDSM": ("ldmatrix",),
    "STSM": ("stmatrix",),
    "BAR": ("bar",),
    **dict.fromkeys(("UCGABAR_ARV", "UCGABAR_WAIT"), ("barrier",)),
    **dict.fromkeys(("HMMA", "IMMA", "DMMA"), ("mma",)),
    **dict.fromkeys(("HGMMA", "IGMMA", "QGMMA"), ("wgmma",)),
    **dict.fromkeys(("UBLKCP", "UBLKRED", "UBLKPF", "UTMALDG", "UTMASTG", "UTMAREDG", "UTMAPF"), ("cp",)),
    "SYNCS": ("mbarrier",),
    "EXIT": ("exit",),
    "BRA": ("bra",),
    "BRX": ("brx",),
}


def find_face(one: Instruction) -> str | None:
    """Return the opcode and modifiers of the PTX instruction that this one is shown as.

    Return an empty string if a probe might look for the instruction but its bits aren't known, None if it isn't a site.
    """
    if one.name not in NAMES or (one.guard.predicate == PT and one.guard.negated):
        return None
    face = FACES.get((one.name, one.opcode & OPERATION), "")
    return face if isinstance(face, str) else face(one.word) or ""
