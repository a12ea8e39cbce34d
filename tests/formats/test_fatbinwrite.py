"""Fatbins written by us equal fatbinary's, and can be read back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.base.errors import MalformedError
from gpt.formats.fatbin import Unpacker, iter_elements, iter_regions
from gpt.formats.fatbinwrite import Payload, pack_fatbin
from gpt.formats.source import Source
from tests import cuda
from tests.asm.modules import PLAIN, RICH

ARCHS = ["sm_80", "sm_90", "sm_90a", "sm_100", "sm_100f", "sm_103a", "sm_120a"]


@pytest.fixture(scope="module")
def cubins(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cubins")
    (folder / "in.ptx").write_text(RICH)
    for arch in ARCHS:
        cuda.run("ptxas", "-arch", arch, "in.ptx", "-o", arch, cwd=folder)
    return {arch: (folder / arch).read_bytes() for arch in ARCHS}


def read(data):
    source = Source("fatbin", data)
    (region,) = iter_regions(source, 0, len(data))
    unpacker = Unpacker()
    return [(element, bytes(unpacker.unpack(source, element))) for element in iter_elements(source, region)]


def test_bytes_are_those_of_fatbinary(cubins):
    text = "".join(" ".join(line.split()) + "\n" for line in PLAIN.splitlines())  # fatbinary drops redundant blanks
    images = [*(Payload("cubin", arch, data) for arch, data in cubins.items()), Payload("ptx", "sm_80", text.encode())]
    elements = [(image.arch, image.type, image.data) for image in images]
    assert pack_fatbin(images, "none") == cuda.fatbin(elements, "none")


def test_compressed_headers_are_those_of_fatbinary(cubins):
    """Only compressed sizes differ, because they depend on zstd's level."""
    images = [Payload("cubin", arch, data) for arch, data in cubins.items()]
    ours = read(pack_fatbin(images, "zstd"))
    theirs = read(cuda.fatbin([(image.arch, "cubin", image.data) for image in images], "zstd"))
    assert [data for _, data in ours] == [data for _, data in theirs] == list(cubins.values())
    for (mine, _), (yours, _) in zip(ours, theirs, strict=True):
        for key in ("type", "arch", "header_size", "size", "codec", "flags"):
            assert getattr(mine, key) == getattr(yours, key), key


@given(
    st.lists(st.tuples(st.sampled_from(["sm_80", "sm_90a", "sm_75", "sm_120f"]), st.binary(max_size=300)), max_size=4)
)
def test_fatbins_round_trip(parts):
    head = b".version 8.7\n.target sm_80\n"
    images = [Payload("ptx", arch, head + data) for arch, data in parts]
    images += [
        Payload("cubin", arch, data) for arch, data in parts if arch != "sm_120f"
    ]  # these headers need real contents
    for codec in ("none", "zstd"):
        found = read(pack_fatbin(images, codec))
        assert [(element.type, element.arch, element.codec) for element, _ in found] == [
            (image.type, image.arch, codec) for image in images
        ]
        for image, (_, data) in zip(images, found, strict=True):
            if image.type == "ptx":
                assert data.rstrip(b"\0") == image.data.rstrip(b"\0") and data.endswith(b"\0")
            else:
                assert data[: len(image.data)] == image.data and not any(data[len(image.data) :])


@pytest.mark.parametrize(
    "image",
    [
        Payload("ptx", "sm_80", b"no version"),
        Payload("ptx", "sm_80", b".version 99999.1"),
        Payload("cubin", "host", b""),
        Payload("cubin", "sm_100", b"no cubin"),
    ],
)
def test_invalid_elements_are_refused(image):
    with pytest.raises(MalformedError):
        pack_fatbin([image], "none")
