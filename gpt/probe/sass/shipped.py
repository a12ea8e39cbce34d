"""The compiled bodies that the package ships, a file that gpt/packaging/snippets.py writes when the package is built.

    8 bytes   MAGIC
    4 bytes   size of the index
    index     msgpack: the offset and size of each group in the file, and {the first 16 bytes of a key: [number of its
              group, offset and size in the unpacked group]}; the cache has the same keys (snippets.py)
    groups    zstd; each has the bodies of one probe

A group is read when one of its bodies is needed. A package that was built without ptxas doesn't have the file.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import msgpack

FILE = Path(__file__).parents[2] / "_runtime" / "snippets"
MAGIC = b"GPTSNIP1"
HEAD = struct.Struct("<8sI")
DIGEST = 16  # bytes of a key that the index has


class Shipped:
    """The bodies in a file."""

    def __init__(self, path: Path = FILE) -> None:
        self._path = path
        self._groups: list[tuple[int, int]] = []
        self._places: dict[bytes, tuple[int, int, int]] | None = None
        self._unpacked: dict[int, bytes] = {}

    def keys(self) -> set[str]:
        """Return the prefixes of all keys."""
        return {key.hex() for key in self._index()}

    def get(self, key: str) -> bytes | None:
        """Return a body, as snippets.py stores it, or None."""
        place = self._index().get(bytes.fromhex(key)[:DIGEST])
        if place is None:
            return None
        group, start, size = place
        if group not in self._unpacked:
            import zstandard

            with open(self._path, "rb") as file:
                file.seek(self._groups[group][0])
                self._unpacked[group] = zstandard.decompress(file.read(self._groups[group][1]))
        return self._unpacked[group][start : start + size]

    def _index(self) -> dict[bytes, tuple[int, int, int]]:
        if self._places is None:
            self._places = {}
            try:
                file = open(self._path, "rb")
            except OSError:
                return self._places
            with file:
                magic, size = HEAD.unpack(file.read(HEAD.size))
                if magic == MAGIC:
                    groups, self._places = msgpack.unpackb(file.read(size))
                    self._groups = [(HEAD.size + size + start, length) for start, length in groups]
        return self._places


def dump(groups: Sequence[dict[str, bytes]]) -> bytes:
    """Return a file of these bodies, given by key."""
    import zstandard

    places: dict[bytes, tuple[int, int, int]] = {}
    packed: list[bytes] = []
    sizes: list[tuple[int, int]] = []
    for number, bodies in enumerate(groups):
        data = bytearray()
        for key, body in bodies.items():
            places[bytes.fromhex(key)[:DIGEST]] = number, len(data), len(body)
            data += body
        sizes.append((sum(map(len, packed)), len(done := zstandard.compress(bytes(data), 19))))
        packed.append(done)
    index = bytes(msgpack.packb([sizes, places]))
    return HEAD.pack(MAGIC, len(index)) + index + b"".join(packed)
