"""Find GPU code in a file that the driver can't find: wrappers without regions, and regions without wrappers.

A wrapper that doesn't point to a fatbin is always a fault. A region without a wrapper is a fault only if it contains
kernels, and nothing else refers to it, neither words nor symbols nor code: nvcc leaves such regions for sources without
kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt.extract.contents import Opener
from gpt.formats import archive
from gpt.formats.elf import address_of
from gpt.formats.image import Image, Placed, find_image
from gpt.formats.wrappers import SECTION, Wrapper, find_stray

NAMED = 3  # addresses to list in a message
MOST = 64  # regions to search for kernels
REASON = (
    "the driver won't find that code, and launches from it fail (cuLibraryLoadData gives 200); patchelf before 0.18 is"
    " known to do this: build or install the file again, and use patchelf 0.18"
)


def iter_unfound(image: Image, found: list[Placed]) -> Iterator[str]:
    """Yield a line for each fault of a file or archive member; `found` are the image's elements.

    Raises MalformedError.
    """
    if image.elf:
        yield from _iter_unfound(image, found)
    elif image.type == "archive":
        for name, member in archive.iter_members(image.source):
            if (inner := find_image(member)) and inner.elf:
                yield from (f"{name}: {fact}" for fact in _iter_unfound(inner, []))


def _iter_unfound(image: Image, found: list[Placed]) -> Iterator[str]:
    source, tables = image.source, image.elf
    assert tables
    stray, regions = find_stray(source, tables)
    lost = _find_lost(image, regions) if regions else []
    if not stray:
        lost = [region for region in lost[:MOST] if _has_kernels(image, found, region)]
    at = [f"{address_of(tables, region) or region:#x}" for region in lost]
    alone = f"no wrapper leads to the fatbin{'s' if len(at) > 1 else ''} at {_some(at)}"
    if stray:
        wrappers = "1 wrapper" if len(stray) == 1 else f"{len(stray)} wrappers"
        leads = f"{wrappers} in '{SECTION}' lead{'s' if len(stray) == 1 else ''} to no fatbin"
        yield f"{leads} ({_some([*map(_describe, stray)])}){f', and {alone}' if at else ''}: {REASON}"
    elif at:
        yield f"{alone}: {REASON}"


def _find_lost(image: Image, regions: set[int]) -> list[int]:
    """Return the regions that have no wrapper, and to which nothing refers."""
    from gpt.formats.pointers import NotUnderstood, find_unreferenced  # importing numpy takes long

    assert image.elf
    try:
        return find_unreferenced(image.source, image.elf, regions)
    except NotUnderstood:
        return []


def _describe(wrapper: Wrapper) -> str:
    where = f"{wrapper.where}+" if wrapper.where else ""
    return f"{wrapper.place:#x} to {where}{wrapper.value:#x}"


def _some(words: list[str]) -> str:
    more = len(words) - NAMED
    return ", ".join(words[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


def _has_kernels(image: Image, found: list[Placed], region: int) -> bool:
    opener = Opener(image.source)
    inside = (placed for placed in found if placed.element.region == region)
    return any(opener.open(placed, False).contents.kernels for placed in inside)
