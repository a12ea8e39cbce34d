"""The PTX of single kernels: which element, how much of it, and that an image is read once."""

import os

import pytest

from gpt.base.errors import GptError
from gpt.extract import kernels
from gpt.extract.kernels import KernelFinder
from gpt.formats.fatbinwrite import Payload, pack_fatbin
from gpt.formats.source import Source

HEAD = ".version 8.0\n.target {}\n.address_size 64\n.global .u32 shared;\n"
ENTRY = ".visible .entry {}() {{ .reg .u32 %r; mov.u32 %r, {}; st.global.u32 [shared], %r; ret; }}\n"


def text(target, *names):
    return (HEAD.format(target) + "".join(ENTRY.format(name, n) for n, name in enumerate(names))).encode()


def image(*parts, codec="zstd"):
    return pack_fatbin([Payload("ptx", target, text(target, *names)) for target, *names in parts], codec)


@pytest.fixture
def reads(monkeypatch):
    """The elements that are unpacked."""
    found = []
    read = kernels._read
    monkeypatch.setattr(kernels, "_read", lambda source, placed: found.append(placed.index) or read(source, placed))
    return found


def test_the_newest_that_the_device_runs():
    source = Source("x", image(("sm_70", "a"), ("sm_90", "a"), ("sm_90a", "b"), ("sm_100", "a")))
    found = {
        arch: KernelFinder().find(source, None, "a", arch).index for arch in ("sm_80", "sm_90", "sm_100", "sm_120")
    }
    assert found == {"sm_80": 0, "sm_90": 1, "sm_100": 3, "sm_120": 3}
    assert KernelFinder().find(source, None, "b", "sm_90").arch == "sm_90a"
    with pytest.raises(GptError, match="its PTX is for sm_90a, not for sm_100"):
        KernelFinder().find(source, None, "b", "sm_100")
    with pytest.raises(GptError, match="no PTX of kernel 'c'"):
        KernelFinder().find(source, None, "c", "sm_90")


def test_only_what_the_kernel_needs(monkeypatch):
    source = Source("x", image(("sm_70", "a", "b")))
    found = KernelFinder().find(source, None, "b", "sm_90").text.decode()
    assert " b()" in found and " a()" not in found and "shared;" in found
    monkeypatch.setenv("GPT_KEEP", "kept")
    assert KernelFinder().find(source, None, "b", "sm_90").text == text("sm_70", "a", "b").rstrip(b"\0")


def test_an_image_in_a_file_is_read_once(tmp_path, reads):
    path = tmp_path / "x"
    path.write_bytes(b"-" * 64 + image(("sm_70", "a", "b"), ("sm_70", "c", "d")))
    known = KernelFinder()
    with path.open("rb") as file:
        source = Source("x", file.fileno()).sub(64, path.stat().st_size - 64)
        for name in "abcd" * 3:
            assert f" {name}()" in known.find(source, file.fileno(), name, "sm_90").text.decode()
    assert reads == [0, 1, 0, 1]  # all names, then the texts
    path.write_bytes(b"-" * 64 + image(("sm_70", "d"), ("sm_70", "a")))  # another one under the same name
    os.utime(path, ns=(0, 5))
    with path.open("rb") as file:
        source = Source("x", file.fileno()).sub(64, path.stat().st_size - 64)
        assert known.find(source, file.fileno(), "a", "sm_90").index == 1


def test_what_is_kept_is_bounded(monkeypatch, tmp_path, reads):
    monkeypatch.setattr(kernels, "MOST_NAMES", 6)  # of two images
    known = KernelFinder()
    for name in ("one", "two", "three"):
        (tmp_path / name).write_bytes(image(("sm_70", "a", "b"), codec="none"))
    for name in ("one", "two", "three", "one", "three"):
        with (tmp_path / name).open("rb") as file:
            known.find(Source(name, file.fileno()), file.fileno(), "a", "sm_90")
    assert len(reads) == 4 + 3  # the texts stay, the names of the first are read again
