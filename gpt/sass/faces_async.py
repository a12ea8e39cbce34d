"""Faces of asynchronous instructions: warp group matrix operations, bulk and tensor copies, arrivals at an mbarrier.

faces.py says what a face is. These are the bits (sm_90), found and tested in the same way:

    53 -  57   HGMMA, QGMMA: columns / 8 - 1; HGMMA has 58 set for tf32. 73 sparse
    53 -  58   IGMMA: three times the place of the columns in 8, 16, 24, 32, 48, 64, 80, ... 256
    75         HGMMA, QGMMA: accumulates in f32; IGMMA: saturates
    76 -  77   HGMMA: type; QGMMA: 76 A and 77 B are e5m2; IGMMA: 76 A is signed
    82         IGMMA: B is signed
    73 -  74   UBLKCP, UBLKRED: 1 to shared from global memory, 2 to global from shared, 3 to shared of another block
    75, 76     UBLKCP, UTMALDG: to several blocks; with a cache policy, which the others may have, too
    79 -  81   UTMALDG and so on: dimensions - 1; 82 im2col
    81 -  84   UBLKRED: type; 87-90 the operation, as in UTMAREDG
    84 -  86   SYNCS.ARRIVE: 0 arrives and expects bytes, 1 and 5 arrives, 3 expects bytes, 4 completes them;
               73 doesn't complete a phase, 74 has no result, 75 drops out
"""

from __future__ import annotations

from collections.abc import Callable

from gpt.sass.words import CONTROL, bits

UNTYPED = {"and", "or", "xor", "exch", "cas"}  # PTX has these for b32 and b64
_INTEGER_COLUMNS = (8, 16, 24, *range(32, 257, 16))  # columns of IGMMA
_ARRIVE = 0x9A7  # SYNCS with a register for the arrivals
_BULK_WAYS = {
    1: "shared::cluster.global.mbarrier::complete_tx::bytes",
    2: "global.shared::cta.bulk_group",
    3: "shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
}
_BULK_OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_BULK_TYPES = {0: "u32", 1: "s32", 2: "u64", 3: "s64", 4: "f16", 5: "f32", 7: "f64", 8: "bf16"}


def group_mma(types: Callable[[int], tuple[str, int] | None]) -> Callable[[int], str | None]:
    """Return the function that finds a warp group mma's face. `types` returns types and depth. Which operands are
    transposed isn't shown: PTX has numbers for that.
    """

    def face(word: int) -> str | None:
        found = None if bits(word, 73, 1) or bits(word, 59, 1) else types(word)
        if not found:
            return None
        text, depth = found
        saturates, columns = "", 8 * (bits(word, 53, 5) + 1)
        if text.startswith("s32"):
            place, rest = divmod(bits(word, 53, 6), 3)
            if rest or place >= len(_INTEGER_COLUMNS):
                return None
            saturates, columns = ".satfinite" if bits(word, 75, 1) else "", _INTEGER_COLUMNS[place]
        shape = f"m64n{columns}k{depth}"
        return f"wgmma.mma_async.sync.aligned.{shape}{saturates}.{text}"

    return face


def half_types(word: int) -> tuple[str, int] | None:
    """Return the types and the depth of an HGMMA."""
    type_ = {0: "f16", 1: "bf16", 2: "tf32"}.get(bits(word, 76, 2))
    accumulator = "f32" if bits(word, 75, 1) else "f16" if type_ == "f16" else None
    if type_ is None or accumulator is None or bits(word, 58, 1) != (type_ == "tf32"):
        return None
    return f"{accumulator}.{type_}.{type_}", 8 if type_ == "tf32" else 16


def quarter_types(word: int) -> tuple[str, int] | None:
    """Return the types and the depth of a QGMMA."""
    if bits(word, 58, 1):
        return None
    a, b = ("e5m2" if bits(word, bit, 1) else "e4m3" for bit in (76, 77))
    return f"{'f32' if bits(word, 75, 1) else 'f16'}.{a}.{b}", 32


def integer_types(word: int) -> tuple[str, int] | None:
    """Return the types and the depth of an IGMMA."""
    if bits(word, 77, 1) or bits(word, 83, 1):
        return None
    a, b = ("s8" if bits(word, bit, 1) else "u8" for bit in (76, 82))
    return f"s32.{a}.{b}", 32


def _only(word: int, known: int) -> bool:
    """Return whether no bits from 72 on are set except known ones. Bit 91 is set in all of these."""
    return not word >> 72 << 72 & ~(CONTROL | known | 1 << 91)


def bulk(word: int) -> str | None:
    """Return the face of a UBLKCP."""
    to = _BULK_WAYS.get(bits(word, 73, 2))
    if to is None or not _only(word, 15 << 73):
        return None
    return f"cp.async.bulk.{to}{'.multicast::cluster' * bits(word, 75, 1)}{_hint(word)}"


def _hint(word: int) -> str:
    return ".L2::cache_hint" * bits(word, 76, 1)


def bulk_reduction(word: int) -> str | None:
    """Return the face of a UBLKRED."""
    to, operation, type_ = _BULK_WAYS.get(bits(word, 73, 2)), bits(word, 87, 4), _BULK_TYPES.get(bits(word, 81, 4))
    known = 3 << 73 | 1 << 76 | 15 << 81 | 15 << 87
    if to is None or ".global." in to or operation >= len(_BULK_OPERATIONS) or type_ is None or not _only(word, known):
        return None
    name = _BULK_OPERATIONS[operation]
    if name in UNTYPED:
        type_ = {"u32": "b32", "u64": "b64"}.get(type_, type_)
    exact = ".noftz" * (name == "add" and type_ in ("f16", "bf16"))
    return f"cp.reduce.async.bulk.{to}{_hint(word)}.{name}{exact}.{type_}"


def bulk_prefetch(word: int) -> str | None:
    """Return the face of a UBLKPF."""
    return f"cp.async.bulk.prefetch.L2.global{_hint(word)}" if _only(word, 1 << 76) else None


def tensor(head: str, mode: str, rest: str, has_operation: bool = False) -> Callable[[int], str | None]:
    """Return the function that finds the face of a copy by tensor map; `mode` is the word for im2col."""

    def face(word: int) -> str | None:
        dimensions, operation = bits(word, 79, 3) + 1, bits(word, 87, 4)
        known = 3 << 75 | 15 << 79 | (15 << 87 if has_operation else 0)
        if dimensions > 5 or not _only(word, known) or operation >= len(_BULK_OPERATIONS):
            return None
        way = mode if bits(word, 82, 1) else "tile"
        text = head.format(dimensions) + (f".{_BULK_OPERATIONS[operation]}" if has_operation else "")
        return f"{text}.{way}{rest}{'.multicast::cluster' * bits(word, 75, 1)}{_hint(word)}"

    return face


def arrival(word: int) -> str | None:
    """Return the face of a SYNCS.ARRIVE. SYNCS.PHASECHK, which waits, has another kind of operand."""
    kind, is_silent = bits(word, 84, 3), bits(word, 74, 1)
    if word & 0xFFF != _ARRIVE or not _only(word, 7 << 73 | 7 << 84):
        return None
    name = "mbarrier.arrive_drop" if bits(word, 75, 1) else "mbarrier.arrive"
    name = {0: f"{name}.expect_tx", 1: name, 3: "mbarrier.expect_tx", 4: "mbarrier.complete_tx", 5: name}.get(kind, "")
    if not name or (bits(word, 73, 1) and kind != 5):
        return None
    scope = ".relaxed.cluster" if kind in (3, 4) else ".noComplete" * bits(word, 73, 1)
    return f"{name}{scope}.shared{'::cluster' * is_silent}.b64"
