"""Elements are only read far enough to name their kernels and functions."""

import os
import random

from gpt.extract.contents import Opener
from gpt.formats import fatbin
from gpt.formats.fatbinwrite import Payload, pack_fatbin
from gpt.formats.image import parse_image
from gpt.formats.source import Source
from gpt.stages import extract
from tests.formats import forge


class Counted(Source):
    """Bytes that count how many of them are read."""

    read = 0

    def pread(self, offset, size):
        Counted.read += size
        return super().pread(offset, size)

    def sub(self, offset, size):
        return Counted(self.name, self._data, self.base + offset, size)


def opened(data):
    source = Counted("file", data)
    found = list(parse_image(source).iter_elements())
    opener = Opener(source, found)
    Counted.read = 0
    return opener, [opener.open(placed, keep=False) for placed in found]


def test_raw_cubin_is_read_only_up_to_its_tables():
    cubin = bytearray(forge.cubin(3))
    code = os.urandom(1 << 20)
    shoff = int.from_bytes(cubin[40:48], "little")
    cubin[40:48] = (shoff + len(code)).to_bytes(8, "little")
    cubin[shoff:shoff] = code
    _, [item] = opened(forge.region(forge.element(bytes(cubin))))
    assert [symbol["name"] for symbol in item.contents.kernels] == ["a", "a", "a"]
    assert Counted.read < 1000


def test_elements_of_the_same_bytes_are_unpacked_once(monkeypatch):
    unpacked = []
    expand = fatbin.Unpacker.expand
    monkeypatch.setattr(
        fatbin.Unpacker, "expand", lambda *args: unpacked.append(args[-1].offset) or expand(*args)
    )  # fmt: skip
    names = [b"\0%c\0" % letter for letter in b"abc"]  # equally long, packed and unpacked
    elements = [forge.lz4(forge.cubin(2, name)) for name in names]
    assert len({len(element) for element in elements}) == 1
    order = [0, 1, 0, 2, 2, 1, 0]
    opener, items = opened(forge.region(b"".join(elements[number] for number in order)))
    found = [item.contents.kernels[0]["name"] for item in items]
    assert found == ["abc"[number] for number in order]
    assert len(unpacked) == 3
    assert opener.open(items[2].placed, keep=True).data == forge.cubin(2, names[0])


def test_elements_that_differ_only_inside_are_distinguished():
    """Elements of equal size and with equal ends are compared as a whole."""
    rng = random.Random(7)
    names = [b"\0" + bytes(rng.choices(b"abcdef", k=50)) + b"\0" for _ in range(50)]
    data = forge.region(b"".join(forge.element(forge.cubin(1, name)) for name in names))
    _, items = opened(data)
    assert [item.contents.kernels[0]["name"].encode() for item in items] == [name[1:-1] for name in names]


def test_remembered_contents_are_bounded(monkeypatch):
    monkeypatch.setattr("gpt.extract.contents.MAX_KNOWN", 4)
    elements = [forge.zstd(forge.cubin(2, b"\0%c\0" % letter)) for letter in b"abc"]
    opener, items = opened(forge.region(b"".join(elements * 2)))
    assert [item.contents.kernels[0]["name"] for item in items] == list("abcabc")
    assert sum(len(contents.kernels) for _, contents in opener._known.values()) <= 4


def test_a_table_takes_no_digest_of_the_file(tmp_path, monkeypatch):
    """The table doesn't show the digest, which takes as long as everything else for a large library."""
    path = tmp_path / "x.fatbin"
    text = b".version 8.0\n.target sm_90\n.entry k() { ret; }\n"
    path.write_bytes(pack_fatbin([Payload("ptx", "sm_90", text)], "none"))
    taken = []
    digest = Source.sha256
    monkeypatch.setattr(Source, "sha256", lambda source: taken.append(source.name) or digest(source))
    for option, digests in (("--table", 0), ("--names", 0), ("--json", 1)):
        taken.clear()
        monkeypatch.setattr("sys.argv", ["gpt-extract", "-j1", option, str(path)])
        assert extract.main() == 0 and len(taken) == digests
