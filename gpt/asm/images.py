"""What was assembled of a module as one image that the driver loads."""

from __future__ import annotations

from collections.abc import Sequence

from gpt.asm.assembler import Code
from gpt.errors import MalformedError
from gpt.formats.fatbinwrite import Codec, Image, pack_fatbin
from gpt.formats.ptxtext import find_target


def pack(text: bytes, codes: Sequence[Code], codec: Codec) -> bytes:
    """A fatbin with the cubins and the text. Raises MalformedError."""
    arch = find_target(text)
    if arch is None:
        raise MalformedError("PTX without .target")
    images = [Image("cubin", str(code.target), code.cubin) for code in codes]
    return pack_fatbin([*images, Image("ptx", arch, text)], codec)
