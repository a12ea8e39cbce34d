"""The kernels of large packed cubins are read from their first bytes, if these are conclusive."""

import random
from contextlib import suppress

import pytest

from gpt.base.errors import MalformedError
from gpt.extract.contents import Opener, check_names
from gpt.formats import cubin, cubin_prefix, fatbin
from gpt.formats.image import parse_image
from gpt.formats.source import Source
from tests.formats import forge
from tests.formats.samples import image
from tests.stages.tools import run

KERNELS = [b"_Z5alphav", b"_Z4betav", b"gamma"]
NAMES = [kernel.decode() for kernel in KERNELS]
CODE = random.Random(1).randbytes(1 << 18)
PACKERS = {"lz4": forge.lz4, "zstd": forge.zstd}
ONE = 'extern "C" __global__ void one(int *p) { *p = 1; } __device__ int number; extern "C" __global__ void two() {}'


def opened(data):
    source = Source("file", data)
    found = list(parse_image(source).iter_elements())
    opener = Opener(source, found)
    return [[kernel["name"] for kernel in opener.open(placed, keep=False).contents.kernels] for placed in found]


@pytest.fixture(params=PACKERS)
def pack(request):
    return PACKERS[request.param]


@pytest.fixture
def expanded(monkeypatch):
    """Return the list of elements that were unpacked completely."""
    done = []
    expand = fatbin.Unpacker.expand
    monkeypatch.setattr(fatbin.Unpacker, "expand", lambda *args: done.append(args[-1]) or expand(*args))
    return done


@pytest.mark.parametrize("gap", [0, 14, 36, 500])
def test_the_first_bytes_name_a_cubin(pack, gap, expanded):
    data = forge.compiled(KERNELS, CODE, gap=gap)
    assert opened(forge.region(pack(data))) == [NAMES]
    assert cubin_prefix.find_contents(data, len(data)) == cubin.parse_cubin(data)
    assert not expanded


def test_names_beyond_the_first_part_are_read_too(pack, expanded):
    kernels = [b"kernel_of_some_length_%06d" % number for number in range(2000)]
    assert opened(forge.region(pack(forge.compiled(kernels, CODE * 16)))) == [[k.decode() for k in kernels]]
    assert not expanded


@pytest.mark.parametrize("arch", ["sm_75", "sm_90", "sm_100"])
def test_cubins_of_nvcc_are_parsed(arch):
    data = image(ONE, arch)
    found = cubin_prefix.find_contents(data, len(data))
    assert found == cubin.parse_cubin(data)
    assert [kernel["name"] for kernel in found.kernels] == ["two", "one"] or found.variables == 1


@pytest.mark.parametrize("size", [0, 100])
def test_a_small_cubin_is_unpacked_whole(pack, size, expanded):
    assert opened(forge.region(pack(forge.compiled(KERNELS, CODE[:size])))) == [NAMES]
    assert len(expanded) == 1


def test_unknown_layout_is_unpacked_whole(pack, expanded):
    data = forge.cubin(3)
    shoff = int.from_bytes(data[40:48], "little")
    data = data[:40] + (shoff + len(CODE)).to_bytes(8, "little") + data[48:shoff] + CODE + data[shoff:]
    assert opened(forge.region(pack(data))) == [["a", "a", "a"]]
    assert len(expanded) == 1


def test_a_changed_byte_makes_doubt_or_no_difference():
    data = forge.compiled(KERNELS, b"", gap=30)
    rng = random.Random(3)
    taken = 0
    for _ in range(4000):
        changed = bytearray(data)
        changed[rng.randrange(64, len(data) - 9 * 64)] = rng.choice((0, 1, 0x41, 0xFF, rng.randrange(256)))
        found = cubin_prefix.find_contents(bytes(changed), len(changed))
        if found:
            taken += 1
            with suppress(MalformedError):  # if the last name doesn't end where its table does
                assert found == cubin.parse_cubin(bytes(changed))
    assert taken > 1000


def test_a_prefix_of_a_cubin_gives_its_contents_or_nothing():
    data = forge.compiled(KERNELS, bytes(100))
    whole = cubin.parse_cubin(data)
    found = [cubin_prefix.find_contents(data[:size], len(data)) for size in range(len(data))]
    assert [one for one in found if one] == [whole] * (len(data) - found.index(whole))


def test_cubin_with_wrong_size(pack):
    data = forge.compiled(KERNELS, CODE)
    assert opened(forge.region(pack(data, len(data) + 8))) == [NAMES]  # the part that was read is valid
    with pytest.raises(MalformedError, match="does not unpack to"):
        opened(forge.region(pack(data, len(data) - 64)))  # its headers would be beyond the end


def test_corrupt_data(pack):
    data = bytearray(forge.region(pack(forge.compiled(KERNELS, CODE))))
    data[80:90] = b"\xff" * 10
    with pytest.raises(MalformedError, match="does not unpack to"):
        opened(bytes(data))


def test_lz4_without_its_c_library(monkeypatch, expanded):
    monkeypatch.setattr(fatbin, "_liblz4", lambda: None)
    assert opened(forge.region(forge.lz4(forge.compiled(KERNELS, CODE)))) == [NAMES]
    assert len(expanded) == 1
    with pytest.raises(MalformedError, match="does not unpack to"):
        opened(forge.region(forge.lz4(forge.compiled(KERNELS, CODE), 1 << 18)))


def test_headers_that_name_other_kernels_are_found(pack):
    lying = pack(forge.compiled(KERNELS, CODE, real=[b"secret"]))
    data = forge.region(pack(forge.compiled(KERNELS, CODE)) + lying)
    source = Source("file", data)
    elements = [placed.element for placed in parse_image(source).iter_elements()]
    check_names(source, elements[:1], 1)
    for jobs in (1, 2):
        with pytest.raises(MalformedError, match="name different code"):
            check_names(source, elements, jobs)


def test_nothing_is_cut_by_names_that_the_headers_belie(pack, tmp_path):
    """The first bytes name other kernels than the headers do; the used kernel is only in the headers."""
    file, names = tmp_path / "file.fatbin", tmp_path / "names"
    names.write_text("secret\n_Z5alphav\n")
    other = pack(forge.compiled([b"unused", b"idle"], CODE, real=[b"secret"]))
    file.write_bytes(forge.region(pack(forge.compiled(KERNELS, CODE))) + forge.region(other))
    stream = run("gpt-extract", file).out
    located = run("gpt-locate", "--used", names, "--arch=sm_90", "--allow-missing", data=stream).out
    done = run("gpt-patch", "-o", tmp_path / "out", data=located)
    assert done.status == 3
    assert "name different code" in done.err
    assert not list((tmp_path / "out").iterdir())
