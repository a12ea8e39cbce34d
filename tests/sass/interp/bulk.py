"""Bulk copies between global and shared memory, and the mbarriers that wait for them.

A copy completes immediately, so code that forgets to wait isn't caught. The state of an mbarrier is kept outside the
simulated memory: a phase ends when all expected arrivals and bytes have arrived.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tests.sass.interp.accesses import address
from tests.sass.interp.decode import Run, Word, operation
from tests.sass.interp.integers import U32, U64, long

_COUNT, _COUNT_BITS = 1 << 20, (1 << 20) - 1  # SYNCS.EXCH stores this minus the number of arrivals, shifted by one bit
_PHASE = 31  # bit of a state's upper half with the phase's parity
_CHECKS, _ARRIVES = 0x5A7, 0x9A7
_BLOCK = 24  # first bit of the block number in a cluster address
_LOW = U64((1 << _BLOCK) - 1)


@dataclass
class Phase:
    """The state of an mbarrier: arrivals per phase, missing arrivals and bytes, and the parity."""

    count: int
    missing: int
    expected: int = 0
    parity: int = 0

    def end(self) -> None:
        """Begin the next phase if this one is complete."""
        if not self.missing and not self.expected:
            self.missing, self.parity = self.count, self.parity ^ 1


def _phase(warp, place) -> Phase:
    return warp.block.phases[int(place & _LOW)]


@operation("SYNCS")
def _synchronize(word: Word) -> Run:
    if word.entry.number in (0x3B2, 0x5B2):
        return _initialize(word)
    if word.entry.number == _CHECKS:
        return _check(word)
    if word.entry.number != _ARRIVES:
        raise word.refuse("not implemented")
    kind = word.field(84, 3)
    if kind not in (0, 1, 3, 5) or word.field(72, 7) & ~4:
        raise word.refuse("a kind of arrival")
    where, value, write = address(word), word.at(32), word.results(2)

    def run(warp, mask):
        old = np.zeros((2, 32), U32)
        for lane in np.flatnonzero(mask):
            phase = _phase(warp, where(warp)[lane])
            number = int(np.broadcast_to(value(warp), (32,))[lane])
            old[1, lane] = phase.parity << _PHASE
            phase.expected += number if kind in (0, 3) else 0
            phase.missing -= {0: 1, 1: 1, 3: 0, 5: number}[kind]
            phase.end()
        write(warp, mask, list(old))

    return run


def _initialize(word: Word) -> Run:
    """Execute SYNCS.EXCH, once per warp."""
    word.field(72, 16)
    at, low, offset = word.at(24), word.at(32), word.signed(40, 24)

    def run(warp, mask):
        if mask.any():
            count = _COUNT - (int(low(warp)[0]) >> 1 & _COUNT_BITS)
            warp.block.phases[int(at(warp)[0]) + offset & int(_LOW)] = Phase(count, count)

    return run


def _check(word: Word) -> Run:
    """Execute SYNCS.PHASECHK: test whether the phase with this parity is over."""
    word.field(72, 9)
    where, parity, write = address(word), word.at(32), word.decide(81)

    def run(warp, mask):
        done = np.zeros(32, bool)
        for lane in np.flatnonzero(mask):
            wanted = int(np.broadcast_to(parity(warp), (32,))[lane]) >> _PHASE
            done[lane] = _phase(warp, where(warp)[lane]).parity != wanted
        write(warp, mask, done)

    return run


@operation("UBLKCP")
def _copy(word: Word) -> Run:
    """Copy once per warp, whichever lanes are active."""
    way = word.field(73, 2)
    if way not in (1, 2) or word.field(75, 2):
        raise word.refuse("a kind of copy")
    units, source, to = word.at(64), word.at(24), word.at(32)
    more = word.at(24 if way == 1 else 32, 1)
    barrier = word.at(32, 1)

    def run(warp, mask):
        if not mask.any():
            return
        size = (int(units(warp)[0]) & 0xFFFF) << 4
        at = np.arange(0, size, 16).astype(U64)
        far = long((source if way == 1 else to)(warp))[0] | long(more(warp))[0] << U64(32)
        near = long((to if way == 1 else source)(warp))[0] & _LOW
        if way == 1:
            warp.block.shared.store(at + near, warp.memory.load(at + far, 16))
            phase = _phase(warp, long(barrier(warp))[0])
            phase.expected -= size
            phase.end()
        else:
            warp.memory.store(at + far, warp.block.shared.load(at + near, 16))

    return run
