"""Static archives (`ar`): where each member lies. GNU and BSD long names; thin archives are refused."""

from __future__ import annotations

from collections.abc import Iterator

from gpt.errors import MalformedError
from gpt.formats.source import Source

MAGIC = b"!<arch>\n"
THIN = b"!<thin>\n"
HEADER = 60  # name 16, date 12, uid 6, gid 6, mode 8, size 10, end 2


def iter_members(source: Source) -> Iterator[tuple[str, Source]]:
    """Name and bytes of each member that is a file (symbol and name tables are not)."""
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
            names = source.pread(body, size)
        elif name not in (b"/", b"/SYM64/", b"__.SYMDEF"):
            if name.startswith(b"#1/") and name[3:].isdigit() and int(name[3:]) <= size:
                length = int(name[3:])
                name, body = source.pread(body, length).rstrip(b"\0"), body + length
            elif name.startswith(b"/") and name[1:].isdigit():
                name = names[int(name[1:]) :].split(b"\n")[0]
            yield name.rstrip(b"/").decode(errors="replace"), source.sub(body, end - body)
        offset = end + (end & 1)
    if offset < source.size:
        raise MalformedError("archive ends inside a member's header", source.at(offset))
