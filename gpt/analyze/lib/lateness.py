"""Classify what collectives spend their time on, find out why a rank is late, and tell the warm-up from the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpt.analyze.lib.ranks import Split

HOST, GPU, UNKNOWN = "launched late", "its GPU was busy", "not known"
TRANSFER, SKEW, MIXED, UNCLEAR = "transfer", "waiting", "both", "not clear"
FIRST, WARM, REST = "the first one", "warm-up", "the rest"
MOST = 2 / 3  # minimum share of the time that a class needs
FEW = 9  # with fewer collectives than this, the class isn't clear
EXACT = 0.05  # maximum share of collectives that end before another rank has begun
USUAL = 2  # a collective that takes longer than this many times the median belongs to the warm-up


def classify(part: Split, mask: npt.NDArray[np.bool_]) -> str:
    """Classify some collectives of a communicator by what they spend most of their time on."""
    waiting, transfer = float(part.waiting[:, mask].sum()), float(part.transfer[:, mask].sum())
    if int(mask.sum()) < FEW or part.early > EXACT * len(part.last) or not waiting + transfer:
        return UNCLEAR
    share = waiting / (waiting + transfer)
    return SKEW if share >= MOST else TRANSFER if share <= 1 - MOST else MIXED


def find_reasons(part: Split) -> npt.NDArray[np.object_]:
    """Return why the last rank of each collective was late. If its launch call began later than the median of the other
    ranks' calls, by at least half of the time by which its kernel did, it's HOST. Otherwise its kernel had to wait for
    earlier work on its GPU.
    """
    group, count = part.group, len(part.last)
    found = np.full(count, UNKNOWN, object)
    if group.call is None:
        return found
    each = np.arange(count)
    late, called = (_exceed(values, part.last, each) for values in (group.begin, group.call))
    found[late > 0] = GPU
    found[(late > 0) & (2 * called >= late)] = HOST
    return found


def _exceed(values: Any, last: Any, each: Any) -> npt.NDArray[np.float64]:
    """Return by how much the last rank's value exceeds the median of the others."""
    others = np.ones(values.shape, bool)
    others[last, each] = False
    rest = values.T[others.T].reshape(len(each), -1)
    found: npt.NDArray[np.float64] = values[last, each] - np.median(rest, axis=1)
    return found


def iter_phases(part: Split) -> Iterator[tuple[str, slice]]:
    """Yield the phases of a communicator and their collectives. The warm-up lasts until a collective takes at most
    USUAL times the median of the second half for its kernel.
    """
    took = (part.waiting + part.transfer).mean(axis=0)
    names, count = part.group.names, len(part.last)
    usual = np.empty(count)
    for name in set(names.tolist()):
        mask = names == name
        usual[mask] = np.median(took[mask][int(mask.sum()) // 2 :])
    steady = np.flatnonzero(took[1:] <= USUAL * usual[1:])
    warm = 1 + int(steady[0]) if len(steady) else 1
    for name, places in ((FIRST, slice(0, 1)), (WARM, slice(1, warm)), (REST, slice(warm, count))):
        if places.start < places.stop:
            yield name, places
