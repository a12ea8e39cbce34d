"""Decide which elements a set of devices never loads, or loads without using one of their kernels.

The driver chooses within a region. For a device sm_XY it takes the cubin of the same major version with the highest
minor version up to Y. Without one, it compiles the PTX with the highest target up to the device. Code with the suffix
`a` only runs on exactly that device, with `f` on its family (same major version, from its minor version on). A cubin of
another major version never runs. NVIDIA promises nothing between Tegra and other GPUs, and nvlink refuses such cubins
(sm_86 on sm_87, sm_87 on sm_89), so we keep them, and also what the driver would take without them. If sm_90 and sm_90a
tie on an sm_90, driver 580 takes sm_90a in whatever order they are (seen on an H200), but that isn't documented: we
keep both. LTO-IR and Tile IR are chosen like PTX, and Tile IR separately if a region has both.

Relocatable code (section `__nv_relfatbin`) is the input of nvlink, which wrote the linked cubin to `.nv_fatbin`. The
driver links relocatable code again only if there's no linked cubin for the device: a program built with `-rdc=true`
runs on an H200 after all its relocatable code was removed (tests/gpu). So it's unused if the linked cubins for the
devices have all of its used kernels.

A bare cubin or PTX outside of any region is loaded by code that we can't see. So only its own architecture counts, and
it's needed if a trace saw an image with its digest loaded from memory. PTX that a program stores as text is kept: the
program may measure or change it, and Rust's CString::new() fails on a NUL in it.

PTX and LTO-IR in a region outside of the fatbin sections may be passed to a linker (nvJitLink) instead of the driver,
and the kernel that comes out may have another name. So we keep all of it that fits a device if anything of its library
is used, or if an image that's in no library was loaded from memory: it may be the linker's output. That only counts if
the loader is the library itself, one of its family (libcudnn_graph and libcudnn), libcudart, which loads for others, or
unknown. If a library has nothing but such code, others link it (libmathdx, whose user nvmath loads the result through
cuda.bindings), so any loader counts.

An element that a device picks is needed if one of its kernels is used, if it defines variables or device functions but
no kernel (other code may look them up or link against them), or if its whole module may be needed. That also goes for
Tile IR whose kernels aren't known (tileir.py). Elements of unknown types are kept.

If nothing is known about use (`--arch` alone), everything that a device picks is needed.
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
BY_NAME = (NO_KERNEL_USED, LINKED)  # reasons that are only valid if the names of kernels are right

RELOCATABLE = "__nv_relfatbin"
OFFLOAD = ".llvm.offloading"
FOR_THE_DRIVER = (None, ".nv_fatbin", RELOCATABLE)  # sections; None stands for a file that's a fatbin


class Device(NamedTuple):
    """A device on which code must run. With `ptx_only`, it accepts no cubins."""

    arch: Arch
    ptx_only: bool = False


@dataclass
class Candidate:
    """An element of a complete library, and the facts that decide about it."""

    arch: Arch | None
    type: str
    region: int
    start: int
    end: int
    payload: int
    kernels: int
    used: set[str]  # its used kernels
    needed: bool  # it has used kernels, or is kept for another reason
    whole: bool  # everything in its module may be needed
    bare: bool
    relocatable: bool
    linkable: bool  # the library may link it itself
    picked: bool = False
    linked: bool = False  # it would be chosen if there weren't any linked code


def may_link(library: str, loader: str | None, candidates: list[Candidate]) -> bool:
    """Return whether an image that `loader` loaded may have been linked from the code of a library.

    Both are paths. Only the file names are compared, because a trace may come from another machine.
    """
    if loader is None or all(c.linkable for c in candidates):
        return True
    family, others = _family(library), _family(loader)
    if others == "libcudart":  # it loads images for others
        return True
    return family.startswith(others) or others.startswith(family)


def _family(path: str) -> str:
    """Return `libcudnn` for `libcudnn_graph.so.9`, `_linalg` for `_linalg.so`."""
    return re.split("(?<=[A-Za-z])[^A-Za-z]", os.path.basename(path), maxsplit=1)[0]


def iter_reasons(
    candidates: list[Candidate], devices: list[Device], linking: bool = False
) -> Iterator[tuple[Candidate, str]]:
    """Yield each element of a library, in order, with KEPT or the reason why it's unused.

    With `linking`, an image was loaded that may have been linked from the code of the library.
    """
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
    """Return whether NVIDIA guarantees that a cubin runs on a device, provided that it fits."""
    code, card = cubin.arch and cubin.arch[:2], device.arch[:2]
    return code == card or not {code, card} & TEGRA


def _best(candidates: list[Candidate]) -> list[Candidate]:
    if not candidates:
        return []
    best = max(c.arch[:2] for c in candidates if c.arch)
    return [c for c in candidates if c.arch and c.arch[:2] == best]


def fits(candidate: Candidate, device: Device) -> bool:
    """Return whether the driver could run an element on a device, if there were no better one."""
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
    """Make a candidate from an `element` record. `used` are its kernels that were used.

    With `whole`, it's needed even if none of its kernels was used; with `everything`, it's needed if a device chooses
    it. Raises MalformedError if the architecture is invalid.
    """
    known = element["type"] in ("cubin", "ptx", "ltoir", "tileir")
    arch = find_arch(element["arch"])
    if known and not arch:
        raise MalformedError(f"element of architecture '{element['arch']}'", element["library"])
    section = element.get("section")
    if section == OFFLOAD or (section and element["type"] == "ptx" and element["header_size"] == 0):
        known = False  # linker input, and PTX that the program stores as text
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
