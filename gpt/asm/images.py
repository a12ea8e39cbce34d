"""Convert the code of a module to images that the driver can load, as records and as files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gpt.asm.assembler import TargetCode
from gpt.base.errors import GptError, MalformedError
from gpt.base.outputs import replacing
from gpt.formats.fatbinwrite import Codec, Payload, pack_fatbin
from gpt.formats.ptxtext import find_head
from gpt.stream import records, wire


def iter_images(
    ptx: dict[str, Any], codes: Sequence[TargetCode], originals: Sequence[bytes | None], fatbin: Codec | None
) -> Iterator[dict[str, Any]]:
    """Yield a record for each target, such as a `cubin`, or if a codec for fatbins is given, a single `fatbin`.

    If `originals` has the code without probes, the records for targets contain it, too.

    Raises MalformedError if the text can't be an element, and GptError if an image is too large for a record.
    """
    common = {"id": ptx["id"], "module": ptx["module"]}
    if fatbin:
        kernels = list(dict.fromkeys(name for code in codes for name in code.kernels))
        archs = [str(code.target) for code in codes]
        yield _small(records.make("fatbin", **common, archs=archs, kernels=kernels, data=_pack(ptx, codes, fatbin)))
        return
    for code, original in zip(codes, originals, strict=True):
        more = {"arch": str(code.target), "kernels": list(code.kernels), "data": code.image, "original": original}
        yield _small(records.make(code.kind, **common, **more))


def save(folder: Path, image: dict[str, Any]) -> Path:
    """Write an image to a file atomically, and return its path. An OSError names it, too."""
    path = folder / file_name(image)
    with replacing(path) as file:
        file.write(image["data"])
    return path


def file_name(image: dict[str, Any]) -> str:
    """Return a name like `libfoo.3.sm_90.cubin`: the library without its suffix, the number of the module, the target,
    and the kind.
    """
    path = image["module"].rpartition("#")[0] or image["module"]
    stem = re.sub(r"[^\w.+-]", "_", Path(path).stem, flags=re.ASCII)[:100] or "module"
    arch = f".{image['arch']}" if "arch" in image else ""
    return f"{stem}.{image['id']}{arch}.{image['kind']}"


def _pack(ptx: dict[str, Any], codes: Sequence[TargetCode], codec: Codec) -> bytes:
    head = find_head(ptx["data"])
    if head is None or head.target is None:
        raise MalformedError("PTX without .target", ptx["module"])
    images = [Payload("cubin", str(code.target), code.image) for code in codes]
    return pack_fatbin([*images, Payload("ptx", head.target, ptx["data"])], codec)


def _small(image: dict[str, Any]) -> dict[str, Any]:
    try:
        wire.pack(image)
    except MalformedError as error:
        raise GptError(error.fact, image["module"]) from None
    return image
