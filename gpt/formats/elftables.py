"""Table entries in 64-bit ELF files (elf(5)), each declared once, for reading one entry or a whole table.

SECTION.struct.unpack_from(data, offset)        one entry, as a tuple in the order of the fields
np.frombuffer(data, SYMBOL.dtype)               a table, as a structured array
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_SIZES = {"B": "u1", "H": "<u2", "I": "<u4", "Q": "<u8"}  # numpy's names


class Table:
    """A kind of table: its fields as `name:type`, with the types of the struct module."""

    def __init__(self, fields: str) -> None:
        self._fields = [field.split(":") for field in fields.split()]
        self.struct = struct.Struct("<" + "".join(type_ for _, type_ in self._fields))

    @cached_property
    def dtype(self) -> np.dtype:
        """Return the dtype. numpy is imported only here, because that takes long."""
        import numpy as np

        return np.dtype([(name, _SIZES[type_]) for name, type_ in self._fields])


HEADER = Table(
    "ident:16s type:H machine:H version:I entry:Q phoff:Q shoff:Q flags:I ehsize:H"
    " phentsize:H phnum:H shentsize:H shnum:H shstrndx:H"
)
NOTE = Table("namesz:I descsz:I type:I")
SECTION = Table("name:I type:I flags:Q addr:Q offset:Q size:Q link:I info:I align:Q entsize:Q")
SEGMENT = Table("type:I flags:I offset:Q vaddr:Q paddr:Q filesz:Q memsz:Q align:Q")
SYMBOL = Table("name:I info:B other:B shndx:H value:Q size:Q")
REL = Table("offset:Q type:I symbol:I")
RELA = Table("offset:Q type:I symbol:I addend:Q")
