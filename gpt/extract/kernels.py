"""Find the code of single kernels, for programs that ask for one after another while they run.

The cache remembers which elements of an image contain which kernels, and the text of elements, so an image in a file
isn't read again for another of its kernels. The least recently used entries are dropped first. A file is identified by
its device, inode, size and modification time.

If several elements contain a kernel, the driver runs the one for the newest architecture that the device supports, so
that's the one returned: its PTX, reduced to what the kernel needs, or with GPT_KEEP, all of it (gpt-asm(1)). A kernel
without PTX is refused, unless a later stage accepts cubins; then its cubin is returned.

Most images that a stock PyTorch program loads contain no PTX. The headers of their elements show that without
unpacking, and the answer is for the whole image, so nobody asks for its other kernels. NVIDIA's closed code is never
returned; gpt/formats/closed.py recognizes it.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpt.asm.targets import find_target
from gpt.base.arch import Arch, find_arch
from gpt.base.errors import GptError, MalformedError
from gpt.base.keep import keeping
from gpt.extract.contents import Opened, Opener
from gpt.extract.listing import MAX_PAYLOAD
from gpt.formats import elf
from gpt.formats.callgraph import KeptWhole
from gpt.formats.closed import REASON as CLOSED
from gpt.formats.closed import find_closed_kernel, is_closed_library
from gpt.formats.cubin import find_ptx, parse_cubin
from gpt.formats.cubin_drop import drop_kernels
from gpt.formats.fatbin import Unpacker
from gpt.formats.image import Placed, parse_image
from gpt.formats.source import Source
from gpt.ptx.names import parse_names
from gpt.ptx.prune import prune
from gpt.ptx.scan import Module, scan_module
from gpt.stream.reasons import Reason

MOST_NAMES = 1 << 20  # names of kernels in the cache, which take about 200 MB
MOST_TEXT = 128 << 20  # characters of text in the cache, which take four times as much memory

V = TypeVar("V")


class Recent(Generic[V]):
    """A cache whose values have weights, and whose total weight is limited. The least recently used values are
    dropped.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._values: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()

    def get(self, key: Hashable) -> V | None:
        """Return a value, which counts as a use, or None if it isn't there."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: Hashable, value: V, weight: int) -> V:
        """Add a value, unless it exceeds the limit by itself, and return it."""
        if weight <= self._most:
            self._values[key] = value, weight
            self._weight += weight
        while self._weight > self._most:
            self._weight -= self._values.popitem(last=False)[1][1]
        return value


class Refused(GptError):
    """Raised if the code of a kernel isn't returned. With `whole`, the reason is the same for all kernels of the
    image.
    """

    def __init__(self, code: str, detail: str = "", whole: bool = False) -> None:
        self.reason = Reason(code, detail)
        self.whole = whole
        super().__init__(str(self.reason))


@dataclass(frozen=True)
class KernelPtx:
    """A kernel's PTX, with the index and architecture of its element."""

    index: int
    arch: str
    text: bytes


@dataclass(frozen=True)
class _Image:
    """The elements of an image: those with PTX, by kernel; its cubins; and the indexes of elements with closed
    kernels.
    """

    ptx: dict[str, list[Placed]]
    cubins: list[Placed]
    closed: frozenset[int]
    in_closed_library: bool


class KernelFinder:
    """Finds kernels in images, and remembers the images. With `cubins`, it returns a cubin for kernels without PTX."""

    def __init__(self, cubins: bool = False) -> None:
        self._cubins = cubins
        self._images: Recent[_Image] = Recent(MOST_NAMES)
        self._texts: Recent[Module] = Recent(MOST_TEXT)

    def find(self, source: Source, file: int | None, kernel: str, arch: str) -> KernelPtx | Opened:
        """Return the PTX of a kernel for a device, or its cubin. `file` is the descriptor of the source, or None if
        it's in memory.

        Raises Refused if it has neither, and MalformedError if the PTX can't be parsed.
        """
        key = _identify(source, file)
        image = self._images.get(key) if key else None
        if image is None:
            try:
                image = _look_into(source, file, self._cubins)
            except MalformedError as error:
                raise Refused("image_unreadable", error.fact, whole=True) from None
            if key:
                self._images.put(key, image, len(image.ptx) + len(image.cubins) + 1)
        if not image.ptx and not self._cubins:
            raise Refused("no_ptx", whole=True)
        if image.in_closed_library:
            raise Refused(CLOSED, whole=True)
        there = image.ptx.get(kernel, [])
        placed = _choose_ptx(there, arch)
        if not placed and self._cubins:
            return _open_cubin(source, image.cubins, kernel, arch)
        if not placed:
            raise Refused("no_ptx", _describe(there, arch))
        if placed.index in image.closed:
            raise Refused(CLOSED)
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
    """Return a key for a source in the cache, or None if it's in memory."""
    if file is None:
        return None
    status = os.fstat(file)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, source.base, source.size


def _look_into(source: Source, file: int | None, wants_cubins: bool) -> _Image:
    """List an image. PTX inside cubins is considered only if there are no other elements. Raises MalformedError."""
    image = parse_image(source)
    found = list(image.iter_elements())
    names: dict[str, list[Placed]] = {}
    closed = set()
    for placed in found:
        if placed.element.type == "ptx" or (placed.element.type == "cubin" and len(found) == 1):
            kernels = [kernel["name"] for kernel in parse_names(_read(source, placed)).kernels]
            for kernel in kernels:
                names.setdefault(kernel, []).append(placed)
            if image.type != "ptx" and find_closed_kernel(kernels):  # any text may contain kernels with these names
                closed.add(placed.index)
    cubins = [placed for placed in found if placed.element.type == "cubin"]
    given = names or (cubins and wants_cubins)
    return _Image(names, cubins, frozenset(closed), bool(given and file is not None and _is_closed_file(file)))


def _is_closed_file(file: int) -> bool:
    """Return whether the file of an image is a closed library. Its path is a descriptor of the supervisor."""
    try:
        whole = Source(os.readlink(f"/proc/self/fd/{file}"), file)
        head = whole.pread(0, min(len(elf.MAGIC), whole.size))
        return is_closed_library(whole, elf.parse_elf(whole) if head == elf.MAGIC else None)
    except (OSError, MalformedError):
        return False


def _read(source: Source, placed: Placed) -> bytes:
    data = Unpacker().unpack(source, placed.element)
    return bytes(data).rstrip(b"\0") if placed.element.type == "ptx" else find_ptx(data) or b""


def _choose_ptx(there: list[Placed], arch: str) -> Placed | None:
    """Return the element that a device would compile, or None."""
    device = find_target(arch)
    fits = [
        (target, -placed.index, placed)
        for placed in there
        if (target := find_target(placed.element.arch)) and (device is None or device.for_source(target).runs(target))
    ]
    return max(fits)[2] if fits else None


def _describe(there: Iterable[Placed], arch: str) -> str:
    """Return the reason why an image has no PTX that can be used for a kernel. `there` lists the code that it has."""
    archs = ", ".join(sorted({placed.element.arch for placed in there}))
    return f"it is for {archs}, not for {arch}" if archs else "its image has PTX of other kernels only"


def _open_cubin(source: Source, cubins: Iterable[Placed], kernel: str, arch: str) -> Opened:
    """Return the cubin from which a device would run a kernel, with its bytes. Raises Refused."""
    device = find_arch(arch)
    opener = Opener(source)
    fits = [(code, -placed.index, placed) for placed in cubins if (code := find_arch(placed.element.arch))]
    for _, _, placed in sorted((fit for fit in fits if device is None or _runs(fit[0], device)), reverse=True):
        try:
            opened = opener.open(placed, keep=True)
        except MalformedError as error:
            raise Refused("image_unreadable", error.fact) from None
        names = [symbol["name"] for symbol in opened.contents.kernels]
        if find_closed_kernel(names):
            raise Refused(CLOSED)
        if kernel in names:
            return opened if len(opened.data or b"") <= MAX_PAYLOAD else _cut_to(kernel, opened)
    raise Refused("no_ptx", f"and no cubin for {arch}")


def _cut_to(kernel: str, opened: Opened) -> Opened:
    """If a cubin is too large for a record, return it without its other kernels. Raises Refused."""
    assert opened.data is not None
    data, fault = opened.data, ""
    try:
        data = drop_kernels(data, {symbol["name"] for symbol in opened.contents.kernels} - {kernel})
    except KeptWhole as error:
        fault = f"; it can't be cut to the kernel: {error}"
    if len(data) > MAX_PAYLOAD:
        raise Refused("image_too_large", f"{len(data)} bytes; the limit is {MAX_PAYLOAD}{fault}")
    return opened._replace(contents=parse_cubin(data), data=data)


def _runs(code: Arch, device: Arch) -> bool:
    """Return whether a device can run a cubin."""
    if code.suffix == "a":
        return code[:2] == device[:2]
    return code.major == device.major and code.minor <= device.minor
