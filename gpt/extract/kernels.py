"""Find the PTX of single kernels, for programs that ask for one after the other while they run.

We cache which element of an image has which kernels, and the text of elements. So an image in a file isn't read again
when another kernel of it is requested. The least recently used entries are dropped first. A file is identified by its
device, inode, size and modification time.

If several elements have a kernel, the driver runs the one for the newest architecture that the device supports. Only
this one is returned, reduced to what the kernel needs, or complete with GPT_KEEP (gpt-asm(1)).
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpt.asm.targets import find_target
from gpt.base.errors import GptError
from gpt.base.keep import keeping
from gpt.formats.cubin import find_ptx
from gpt.formats.fatbin import Unpacker
from gpt.formats.image import Placed, parse_image
from gpt.formats.source import Source
from gpt.ptx.names import parse_names
from gpt.ptx.prune import prune
from gpt.ptx.scan import Module, scan_module

MOST_NAMES = 1 << 20  # kernel names in the cache: some 200 MB
MOST_TEXT = 128 << 20  # characters of text in the cache, which takes four times as much memory

V = TypeVar("V")


class Recent(Generic[V]):
    """A cache of values with weights, limited by total weight. Drops the least recently used."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        """Return a value and mark it as used; None if there isn't one."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: Hashable, value: V, weight: int) -> V:
        """Add a value, unless it's over the limit by itself, and return it."""
        if weight <= self._most:
            self._values[key] = value, weight
            self._weight += weight
        while self._weight > self._most:
            self._weight -= self._values.popitem(last=False)[1][1]
        return value


@dataclass(frozen=True)
class KernelPtx:
    """The PTX of a kernel, with the index and architecture of its element."""

    index: int
    arch: str
    text: bytes


class KernelFinder:
    """Finds kernels in images, and remembers the images."""

    def __init__(self) -> None:
        self._images: Recent[dict[str, list[Placed]]] = Recent(MOST_NAMES)
        self._texts: Recent[Module] = Recent(MOST_TEXT)

    def find(self, source: Source, file: int | None, kernel: str, arch: str) -> KernelPtx:
        """Return the PTX of a kernel for a device. `file` is the descriptor of the source, None if it's in memory.

        Raises MalformedError, and GptError if none of its PTX runs on the device.
        """
        key = _identify(source, file)
        names = self._images.get(key) if key else None
        if names is None:
            names = _name_all(source)
            if key:
                self._images.put(key, names, len(names) + 1)
        placed = _choose(names.get(kernel, []), arch, source.name, kernel)
        element = placed.element
        if keeping():
            return KernelPtx(placed.index, element.arch, _read(source, placed))
        place = (key, element.offset) if key else None
        module = self._texts.get(place) if place else None
        if module is None:
            module = scan_module(_read(source, placed), f"{source.name}#{placed.index}")
            if place:
                self._texts.put(place, module, len(module.text))
        return KernelPtx(placed.index, element.arch, prune(module, [kernel]))


def _identify(source: Source, file: int | None) -> Hashable:
    """Return a cache key for a source, or None if it's in memory."""
    if file is None:
        return None
    status = os.fstat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, source.base, source.size


def _name_all(source: Source) -> dict[str, list[Placed]]:
    """Return the elements with PTX, by kernel. In cubins it's only looked for if there's no other element."""
    names: dict[str, list[Placed]] = {}
    found = list(parse_image(source).iter_elements())
    for placed in found:
        if placed.element.type == "ptx" or (placed.element.type == "cubin" and len(found) == 1):
            for kernel in parse_names(_read(source, placed)).kernels:
                names.setdefault(kernel["name"], []).append(placed)
    return names


def _read(source: Source, placed: Placed) -> bytes:
    data = Unpacker().unpack(source, placed.element)
    return bytes(data).rstrip(b"\0") if placed.element.type == "ptx" else find_ptx(data) or b""


def _choose(found: Iterable[Placed], arch: str, where: str, kernel: str) -> Placed:
    there = list(found)
    if not there:
        raise GptError(f"no PTX of kernel '{kernel}'", where)
    device = find_target(arch)
    fits = [
        (target, -placed.index, placed)
        for placed in there
        if (target := find_target(placed.element.arch)) and (device is None or device.for_source(target).runs(target))
    ]
    if not fits:
        archs = ", ".join(sorted({placed.element.arch for placed in there}))
        raise GptError(f"its PTX is for {archs}, not for {arch}", kernel)
    return max(fits)[2]
