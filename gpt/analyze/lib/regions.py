"""Divide the pages that a launch accesses into named regions: tensors, or other memory that lies together.

Outside of known tensors, a region begins where a pointer argument of the launch points, and after GAP bytes without an
access: an allocation with such a hole would be almost unused. The name of such a region consists of its address, its
size up to the last accessed page, and the arguments that point to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.screen.units import human
from gpt.trace.params import ArgumentValue
from gpt.trace.tensors import NamedTensor, Tensors

Numbers = npt.NDArray[np.int64]
Addresses = npt.NDArray[np.uint64]

GAP = 2 << 20  # bytes: a page of the driver
MOST = 32  # if there are more regions than this, gaps no longer separate them


class Regions(NamedTuple):
    """The region of each row of the matrix, and the name of each region.

    `owners` has the index in `tensors` of the tensor in each row, or -1.
    """

    which: Numbers
    names: list[str]
    owners: Numbers
    tensors: list[NamedTensor]


def find_regions(
    pages: Addresses, each: int, size: int, tensors: tuple[Tensors, int], arguments: Sequence[ArgumentValue]
) -> Regions:
    """Return the regions of rows. `pages` has the first address of each row, which consists of `each` pages of `size`
    bytes.
    """
    owners, named = _find_owners(*tensors, pages, size)
    changes = owners[1:] != owners[:-1]
    free = (owners[1:] < 0) & ~changes
    pointers = _find_pointers(arguments, int(pages[0]), int(pages[-1]) + size)
    into = np.searchsorted(pages, np.array([address for _, address in pointers], np.uint64), "right") - 1
    pointed = np.zeros(len(pages), bool)
    pointed[into] = True
    borders = changes | (free & pointed[1:])
    gaps = free & (pages[1:] - pages[:-1] > np.uint64(min(GAP + each * size, 1 << 63)))
    if (borders | gaps).sum() < MOST:
        borders |= gaps
    which = np.concatenate([np.zeros(1, np.int64), np.cumsum(borders)])
    opens = np.flatnonzero(np.diff(which, prepend=-1))
    names = []
    for number, (first, end) in enumerate(zip(opens.tolist(), [*opens[1:].tolist(), len(pages)], strict=True)):
        if owners[first] >= 0:
            names.append(describe(named[owners[first]]))
            continue
        extent = int(pages[end - 1] - pages[first]) + each * size
        those = [f"argument {at}" for (at, _), row in zip(pointers, into.tolist(), strict=True) if which[row] == number]
        names.append(", ".join([f"{int(pages[first]):#x}", human(extent), *those]))
    return Regions(which, names, owners, named)


def describe(tensor: NamedTensor) -> str:
    """Return the name, the shape and the type of a tensor."""
    return f"{tensor.name or '(no name)'} {'x'.join(map(str, tensor.shape))} {tensor.dtype}".strip()


def _find_owners(known: Tensors, start: int, pages: Addresses, size: int) -> tuple[Numbers, list[NamedTensor]]:
    """Return, for each page, the index of the tensor at its start, or else at its end, or -1; and the list of these
    tensors.
    """
    if not known.tensors:
        return np.full(len(pages), -1), []
    begin, end = (known.find(addresses, start).tensors for addresses in (pages, pages + np.uint64(size - 1)))
    found = np.where(begin < 0, end, begin)
    there = np.unique(found[found >= 0])
    owners: Numbers = np.where(found < 0, -1, np.searchsorted(there, found))
    return owners, [known.tensors[at] for at in there]


def _find_pointers(arguments: Sequence[ArgumentValue], low: int, high: int) -> list[tuple[int, int]]:
    """Return the positions and values of arguments that may be pointers to addresses from `low` to `high`."""
    return [
        (number, argument.value)
        for number, argument in enumerate(arguments)
        if isinstance(argument.value, int) and argument.type[1:] == "64" and low <= argument.value < high
    ]
