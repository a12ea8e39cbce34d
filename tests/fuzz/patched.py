"""Check gpt-patch's output for any stream: if a library is written, it's complete, and its elements
are the original's.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.fuzz.engine import Wrong
from tests.fuzz.mutate import unpack
from tests.fuzz.stages import call, check_stream, fits, stage_main


def patch(data: bytes) -> None:
    """Patch any stream. Each library must be complete or absent. Its elements must be the original's, and none may be
    missing unless the stream names it.
    """
    modes = (("compact",), ("fill",), ("hole",), ("compact", "--kernels", "zero"), ("compact", "--parents"))
    mode, *more = fits(data, *modes)
    shutil.rmtree("slim", ignore_errors=True)
    before = {path: path.read_bytes() for path in Path().glob("*.so")}
    done = call(stage_main("patch"), "gpt-patch", "-o", "slim", "--mode", mode, *more, data=data)
    for path, content in before.items():
        if path.read_bytes() != content:
            raise Wrong(f"{path} changed")
    written = {path for path in Path("slim").rglob("*") if path.is_file()}
    said = {Path(r["output"]): r for r in check_stream(done.out) if r["kind"] == "patched"} if done.out else {}
    if wrong := [path for path in written if path.name.startswith(".")]:
        raise Wrong(f"left behind: {wrong}")
    if not written <= said.keys():
        raise Wrong(f"not in the stream: {written - said.keys()}")
    for path in written:
        check_patched(Path(said[path]["library"]), path, unpack(data))


def check_patched(original: Path, patched: Path, found: list[Any]) -> None:
    """Check an output against its original, given what the stream named."""
    from gpt.extract.contents import Opener
    from gpt.formats.image import parse_image
    from gpt.formats.source import Source

    images = [parse_image(Source(str(path), path.read_bytes())) for path in (original, patched)]
    elements: list[list[tuple[str, bytes | None]]] = []
    doomed, trimmed = _named(found, str(original))
    kept: list[bool] = []
    for image in images:
        opener = Opener(image.source)
        items = [opener.open(placed, keep=True) for placed in image.iter_elements()]
        if image is images[0]:
            ends = [(item.placed.element.payload, item.placed.element.end) for item in items]
            kept = [not any(start < end and end > s and start < e for s, e in doomed) for start, end in ends]
            whole = [item.placed.element.offset not in trimmed for item in items]
        elements.append([(item.placed.element.arch, item.data) for item in items])
    after = iter(elements[1])
    for element, stays, untouched in zip(elements[0], kept, whole, strict=True):
        if stays and untouched and element not in after:
            raise Wrong(f"{patched}: an element of {element[0]} that nothing names is gone")


def _named(found: list[Any], library: str) -> tuple[list[tuple[int, int]], set[int]]:
    """Return the spans and offsets of trims of a library in a stream, including those in chunks."""
    spans, trims = [], set()
    for record in found:
        match record:
            case {"kind": "chunk", "data": bytes(data)}:
                inner, more = _named(unpack(data), library)
                spans += inner
                trims |= more
            case {"kind": "span", "library": path, "start": int(start), "end": int(end)} if path == library:
                spans.append((start, end))
            case {"kind": "trim", "library": path, "offset": int(offset)} if path == library:
                trims.add(offset)
    return spans, trims
