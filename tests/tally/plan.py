"""Order the work so that the pieces done so far are always a sample of every kind of kernel.

Modules are divided into strata by corpus, target and size (within a factor of four). Within a stratum they're ordered
by digest, so effectively at random: first the first piece of each module, then the second pieces, and so on. A piece is
the module itself and some of its kernels, or more of its kernels. All strata get the same share of the time, which is
estimated from sizes: the next piece comes from the stratum whose total, including that piece, is lowest. Modules that
take long to parse are separate pieces at the end. The order is the same each time.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from tests.tally.sources import Module

PIECE = 4  # kernels per piece, plus one for each PER bytes of the module, because each piece scans it again
PER = 8 << 20
LONG = 4 << 20  # modules from this size on take long: parsing does half a megabyte a second
ALONE = 8  # one in ALONE kernels gets each probe alone, or every kernel in corpora of at most SMALL
SMALL = 64
LARGE = 1 << 18  # from this size on, ptxas takes longer with all probes at once than with each alone
FIXED = 3000  # fixed cost of a kernel, in bytes
GRAMMAR = 16  # parsing this many bytes of a module takes as long as the other checks for one byte of a kernel


class Piece(NamedTuple):
    """Some kernels of a module, each with a flag that says whether it gets every probe alone. `whole` includes the
    module itself.
    """

    module: Module
    whole: bool
    kernels: list[tuple[str, bool]]


def plan(modules: Iterable[Module]) -> list[Piece]:
    """Return all pieces in order."""
    strata: dict[tuple[str, str, int], list[Module]] = defaultdict(list)
    total: dict[str, int] = defaultdict(int)
    for module in modules:
        strata[module.corpus, module.target, module.size.bit_length() // 2].append(module)
        total[module.corpus] += len(module.kernels)
    small = {corpus for corpus, count in total.items() if count <= SMALL}
    ranked = []
    for key, group in sorted(strata.items()):
        group.sort(key=lambda module: module.digest)
        rows = [list(_pieces(module, key[0] in small)) for module in group]
        order = [row[turn] for turn in range(max(map(len, rows))) for row in rows if turn < len(row)]
        spent = accumulate(map(_cost, order))
        ranked += [(sum_, key, piece) for sum_, piece in zip(spent, order, strict=True)]
    ranked.sort(key=lambda entry: entry[:2])
    last = [Piece(module, True, []) for key in sorted(strata) for module in strata[key] if module.size > LONG]
    return [piece for _, _, piece in ranked] + last


def _pieces(module: Module, small: bool) -> Iterator[Piece]:
    sizes = dict(zip(module.kernels, module.sizes, strict=True))
    marked = [
        (kernel, small or _number(kernel) % ALONE == 0 or sizes[kernel] > LARGE)
        for kernel in sorted(module.kernels, key=_number)
    ]
    step = PIECE + module.size // PER
    yield Piece(module, module.size <= LONG, marked[:step])
    for at in range(step, len(marked), step):
        yield Piece(module, False, marked[at : at + step])


def _cost(piece: Piece) -> int:
    sizes = dict(zip(piece.module.kernels, piece.module.sizes, strict=True))
    return piece.whole * piece.module.size // GRAMMAR + sum(FIXED + sizes[kernel] for kernel, _ in piece.kernels)


def _number(kernel: str) -> int:
    """Return a number that doesn't depend on the kernel's contents."""
    return int.from_bytes(hashlib.sha256(kernel.encode("latin-1", "replace")).digest()[:8], "big")
