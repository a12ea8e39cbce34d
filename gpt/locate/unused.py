"""Which elements a set of devices never picks, or picks without using a kernel of them.

The driver chooses inside a region, for a device sm_XY: a cubin of the same major version and the highest minor
not above Y; with none, the PTX with the highest target not above the device, compiled at load. A suffix `a`
binds code to exactly that device, `f` to its family (same major version, from its minor on). A cubin of
another major version never runs. Between Tegra and other GPUs NVIDIA promises nothing, and nvlink takes no cubin of
the one for the other (sm_86 on sm_87, sm_87 on sm_89): it is kept, and so is what would be picked without it. Where
sm_90 and sm_90a tie on an sm_90, driver 580 takes sm_90a whatever their order (seen on an H200), but that is documented
nowhere: both are kept. LTO-IR and Tile IR are chosen as PTX is, Tile IR for itself where a region has both.

Relocatable code (section `__nv_relfatbin`) is what nvlink read; it wrote the linked cubin into `.nv_fatbin`. The
driver links the relocatable code again only where no linked cubin serves the device: a program built with
`-rdc=true` runs on an H200 with all of it gone (tests/gpu). So it is unused when the linked cubins that the
devices pick hold all used kernels that it holds.

A bare cubin or PTX outside of any region is loaded by code that we cannot see: it is judged by its own architecture
alone, and one that a trace saw loaded from memory, by its digest, is needed. PTX that a program holds as text is
kept: the program may measure or change it, and Rust's CString::new() fails on a NUL in it. PTX and LTO-IR in a region
outside of the fatbin sections may be handed to a linker (nvJitLink) instead of the driver, and the kernel that comes
out may have another name: all of it that fits a device is needed where anything of its library is used, or where an
image was loaded from memory that is in no library, which may be what came out: by the library itself, by one of its
family, or by any other code. A library of nothing else is there to be linked by others (libmathdx, whose user nvmath
loads the result by cuda.bindings), so that it does not matter who loaded the image.

An element that is picked is needed when one of its kernels is used, when it defines variables or device
functions but no kernel (code elsewhere may look them up or link against them), or when its module may need all
that it holds; so is Tile IR whose kernels aren't known (tileir.py). Of unknown types everything is kept.

Where nothing is known of use (`--arch` alone), all that a device picks is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from gpt.base.arch import Arch, find_arch
from gpt.base.errors import MalformedError

KEPT = "kept"
OTHER_ARCH = "other architecture"
NO_KERNEL_USED = "no kernel used"
KERNEL_UNUSED = "kernel not used"
SUPERSEDED = "a better one is there"
PTX_UNUSED = "a cubin serves"
LINKED = "linked elsewhere"
TEGRA = {(5, 3), (6, 2), (7, 2), (8, 7), (8, 8), (10, 1), (11, 0)}
BY_NAME = (NO_KERNEL_USED, LINKED)  # reasons that hold only if the names of kernels do

RELOCATABLE = "__nv_relfatbin"
OFFLOAD = ".llvm.offloading"
FOR_THE_DRIVER = (None, ".nv_fatbin", RELOCATABLE)  # sections; a file that is a fatbin has none


class Device(NamedTuple):
    """A device that the code shall run on; one that runs PTX only takes no cubin."""

    arch: Arch
    ptx_only: bool = False


@dataclass
class Candidate:
    """What is known of one element when its library is complete."""

    arch: Arch | None
    type: str
    region: int
    start: int
    end: int
    payload: int
    kernels: int
    used: set[str]  # those of its kernels that are used
    needed: bool  # some are used, or it is kept for another reason
    whole: bool  # all that its module holds may be needed
    bare: bool
    relocatable: bool
    linkable: bool  # may be linked by the library itself
    picked: bool = False
    linked: bool = False  # picked by a device, were it not for linked code that serves


def may_link(library: str, loader: str | None, candidates: list[Candidate]) -> bool:
    """Whether an image that `loader` loaded may be what the linker made of a library's code.

    Both are paths, of which names alone count: a trace may come from another machine.
    """
    if loader is None or all(c.linkable for c in candidates):
        return True
    family, others = _family(library), _family(loader)
    if others == "libcudart":  # which loads on behalf of others
        return True
    return family.startswith(others) or others.startswith(family)


def _family(path: str) -> str:
    """`libcudnn` of `libcudnn_graph.so.9`, `_linalg` of `_linalg.so`."""
    return re.split("(?<=[A-Za-z])[^A-Za-z]", os.path.basename(path), maxsplit=1)[0]


def iter_reasons(
    candidates: list[Candidate], devices: list[Device], linking: bool = False
) -> Iterator[tuple[Candidate, str]]:
    """Each element of a library with KEPT or the reason why it is unused, in order. `linking`: see above."""
    regions: dict[int, list[Candidate]] = {}
    for candidate in candidates:
        regions.setdefault(candidate.region, []).append(candidate)
    for device in devices:
        picked = [c for elements in regions.values() for c in _pick(elements, device)]
        linked = [c for c in picked if c.type == "cubin" and not c.relocatable]
        serve = set().union(*(c.used for c in linked))
        relinked = bool(linked) and all(c.used <= serve for c in picked if c.relocatable)
        for candidate in picked:
            if candidate.relocatable and relinked and not candidate.whole:
                candidate.linked = True
            else:
                candidate.picked = True
    if linking or any(c.used or c.whole for c in candidates):
        for candidate in candidates:
            if candidate.linkable and any(fits(candidate, device) for device in devices):
                candidate.picked = candidate.needed = True
    served = {c.region for c in candidates if (c.picked or c.linked) and c.type == "cubin"}
    for candidate in candidates:
        yield candidate, _reason(candidate, devices, candidate.region in served)


def _reason(candidate: Candidate, devices: list[Device], cubin_serves: bool) -> str:
    if candidate.picked or candidate.arch is None:
        return KEPT if candidate.needed else NO_KERNEL_USED
    if candidate.linked:
        return LINKED
    if not any(fits(candidate, device) for device in devices):
        return OTHER_ARCH
    return PTX_UNUSED if candidate.type != "cubin" and cubin_serves else SUPERSEDED


def _pick(elements: list[Candidate], device: Device) -> list[Candidate]:
    fitting = [c for c in elements if fits(c, device)]
    if any(c.bare for c in elements):
        return fitting
    cubins = [c for c in fitting if c.type == "cubin"]
    if cubins:
        best = _best(cubins)
        if any(surely_runs(c, device) for c in best):
            return best
        return best + _pick([c for c in elements if c.type != "cubin" or surely_runs(c, device)], device)
    tiles = [c for c in fitting if c.type == "tileir"]
    return _best(tiles) + _best([c for c in fitting if c.type != "tileir"])


def surely_runs(cubin: Candidate, device: Device) -> bool:
    """Whether NVIDIA promises that a cubin that fits runs."""
    code, card = cubin.arch and cubin.arch[:2], device.arch[:2]
    return code == card or not {code, card} & TEGRA


def _best(candidates: list[Candidate]) -> list[Candidate]:
    if not candidates:
        return []
    best = max(c.arch[:2] for c in candidates if c.arch)
    return [c for c in candidates if c.arch and c.arch[:2] == best]


def fits(candidate: Candidate, device: Device) -> bool:
    """Whether the driver could run the element on the device if nothing better were there."""
    code, card = candidate.arch, device.arch
    if code is None:
        return False
    if candidate.type == "cubin" and device.ptx_only:
        return False
    if code.suffix == "a":
        return code[:2] == card[:2]
    if candidate.type == "cubin" or code.suffix == "f":
        return code.major == card.major and code.minor <= card.minor
    return code[:2] <= card[:2]


def candidate_of(element: dict[str, Any], used: set[str], whole: bool, everything: bool = False) -> Candidate:
    """The candidate that an `element` record describes. `used` are those of its kernels that are used.

    `whole` says that it is needed even without, `everything` that all is, if a device picks it. Raises MalformedError
    on a nonsensical architecture.
    """
    known = element["type"] in ("cubin", "ptx", "ltoir", "tileir")
    arch = find_arch(element["arch"])
    if known and not arch:
        raise MalformedError(f"element of architecture '{element['arch']}'", element["library"])
    section = element.get("section")
    if section == OFFLOAD or (section and element["type"] == "ptx" and element["header_size"] == 0):
        known = False  # what a linker will take, and a constant of the program
    lookup = not element["kernels"] and bool(
        element["variables"] or element["functions"] or element["type"] == "tileir"
    )
    start = element["offset"]
    payload = start + element["header_size"]
    if payload + element["payload_size"] >= 1 << 64:
        raise MalformedError("element ends beyond any file", element["library"])
    return Candidate(
        arch=arch if known else None,
        type=element["type"],
        region=element["region"],
        start=start,
        end=payload + element["payload_size"],
        payload=payload,
        kernels=len(element["kernels"]),
        used=used,
        needed=bool(used) or whole or lookup or everything or not known,
        whole=whole,
        bare=element["header_size"] == 0,
        relocatable=element.get("section") == RELOCATABLE,
        linkable=element["type"] in ("ptx", "ltoir", "tileir") and element.get("section") not in FOR_THE_DRIVER,
    )
