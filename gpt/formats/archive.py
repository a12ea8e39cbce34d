"""Find the members of static archives (`ar`). GNU and BSD long names are supported; thin archives are rejected."""

from __future__ import annotations

from collections.abc import Iterator

from gpt.base.errors import MalformedError
from gpt.formats.source import Source

MAGIC = b"!<arch>\n"
THIN = b"!<thin>\n"
MAX_NAME = 4096  # bytes of a member's name
MAX_NAMES = 64 << 20  # bytes in the table of long names
HEADER = 60  # name 16, date 12, uid 6, gid 6, mode 8, size 10, end 2


def iter_members(source: Source) -> Iterator[tuple[str, Source]]:
    """Yield the name and the bytes of each member that's a file, without the tables of symbols and names."""
    names = b""
    offset = len(MAGIC)
    while offset + HEADER <= source.size:
        head = source.pread(offset, HEADER)
        if head[58:] != b"`\n" or not head[48:58].strip().isdigit():
            raise MalformedError("archive member without a header", source.at(offset))
        size = int(head[48:58])
        name, body = head[:16].rstrip(), offset + HEADER
        end = body + size
        if end > source.size:
            raise MalformedError("archive member ends beyond the file", source.at(offset))
        if name == b"//":
            names = source.pread(body, min(size, MAX_NAMES))
        elif name not in (b"/", b"/SYM64/", b"__.SYMDEF"):
            if name.startswith(b"#1/") and name[3:].isdigit() and int(name[3:]) <= min(size, MAX_NAME):
                length = int(name[3:])
                name, body = source.pread(body, length).rstrip(b"\0"), body + length
            elif name.startswith(b"/") and name[1:].isdigit():
                start = int(name[1:])
                name = names[start : names.find(b"\n", start, start + MAX_NAME)]
            yield name.rstrip(b"/").decode(errors="replace"), source.sub(body, end - body)
        offset = end + (end & 1)
    if offset < source.size:
        raise MalformedError("archive ends inside a member's header", source.at(offset))
