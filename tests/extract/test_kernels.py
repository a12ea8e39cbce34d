"""The PTX of single kernels: from which element it's taken, how much of it, and that an image is read only once."""

import os

import pytest

from gpt.extract import kernels
from gpt.extract.kernels import KernelFinder, Refused
from gpt.formats.cubin import parse_cubin
from gpt.formats.fatbinwrite import Payload, pack_fatbin
from gpt.formats.image import parse_image
from gpt.formats.source import Source
from gpt.stream.reasons import Reason
from tests import cuda
from tests.formats import forge, samples

HEAD = ".version 8.0\n.target {}\n.address_size 64\n.global .u32 shared;\n"
ENTRY = ".visible .entry {}() {{ .reg .u32 %r; mov.u32 %r, {}; st.global.u32 [shared], %r; ret; }}\n"


def text(target, *names):
    return (HEAD.format(target) + "".join(ENTRY.format(name, n) for n, name in enumerate(names))).encode()


def image(*parts, codec="zstd"):
    return pack_fatbin([Payload("ptx", target, text(target, *names)) for target, *names in parts], codec)


def refusal(source, kernel="a", arch="sm_90", file=None, cubins=False):
    """Return the reason why no code of a kernel is returned, and whether it applies to the whole image."""
    with pytest.raises(Refused) as caught:
        KernelFinder(cubins).find(source, file, kernel, arch)
    return caught.value.reason, caught.value.whole


@pytest.fixture
def reads(monkeypatch):
    """Return a list to which unpacked elements are added."""
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
    assert refusal(source, "b", "sm_100") == (Reason("no_ptx", "it is for sm_90a, not for sm_100"), False)
    assert refusal(source, "c") == (Reason("no_ptx", "its image has PTX of other kernels only"), False)


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
    assert reads == [0, 1, 0, 1]  # first all names, then the texts
    path.write_bytes(b"-" * 64 + image(("sm_70", "d"), ("sm_70", "a")))  # another image in the file of that name
    os.utime(path, ns=(0, 5))
    with path.open("rb") as file:
        source = Source("x", file.fileno()).sub(64, path.stat().st_size - 64)
        assert known.find(source, file.fileno(), "a", "sm_90").index == 1


def test_remembered_names_are_bounded(monkeypatch, tmp_path, reads):
    monkeypatch.setattr(kernels, "MOST_NAMES", 6)  # room for the names of two images
    known = KernelFinder()
    for name in ("one", "two", "three"):
        (tmp_path / name).write_bytes(image(("sm_70", "a", "b"), codec="none"))
    for name in ("one", "two", "three", "one", "three"):
        with (tmp_path / name).open("rb") as file:
            known.find(Source(name, file.fileno()), file.fileno(), "a", "sm_90")
    assert len(reads) == 4 + 3  # the texts stay in the cache, the names of the first image are read again


@pytest.fixture(scope="module")
def machine_code():
    """Return a cubin with kernels `a` and `b`."""
    return forge.compiled([b"a", b"b"], bytes(512))


def test_an_image_without_ptx_is_refused_as_a_whole(machine_code, reads):
    source = Source("x", pack_fatbin([Payload("cubin", arch, machine_code) for arch in ("sm_80", "sm_90")], "zstd"))
    assert refusal(source, "a") == refusal(source, "unknown") == (Reason("no_ptx"), True)
    assert not reads  # nothing was unpacked
    assert refusal(Source("x", machine_code)) == (Reason("no_ptx"), True)
    torn = Source("x", source.pread(0, source.size - 8))
    assert refusal(torn) == (Reason("image_unreadable", "fatbin region ends beyond its container"), True)


def test_the_cubin_that_the_device_runs(machine_code):
    other = forge.compiled([b"c"], bytes(512))
    parts = [("sm_80", machine_code), ("sm_86", machine_code), ("sm_89", other), ("sm_90", machine_code)]
    source = Source("x", pack_fatbin([Payload("cubin", *part) for part in parts], "zstd"))
    found = {arch: KernelFinder(cubins=True).find(source, None, "a", arch) for arch in ("sm_80", "sm_89", "sm_90")}
    assert {arch: opened.placed.index for arch, opened in found.items()} == {"sm_80": 0, "sm_89": 1, "sm_90": 3}
    assert all(opened.data == machine_code for opened in found.values())
    assert refusal(source, "a", "sm_100", cubins=True) == (Reason("no_ptx", "and no cubin for sm_100"), False)


CLOSED = "_Z11regular_fftILj8E3EPTILj8EEEvT_"


@pytest.mark.parametrize("cubins", [False, True])
def test_elements_with_a_closed_kernel_are_refused(cubins):
    ptx = Payload("ptx", "sm_80", text("sm_80", "a", CLOSED))
    code = Payload("cubin", "sm_80", forge.compiled([b"c", CLOSED.encode()], bytes(512)))
    source = Source("x", pack_fatbin([ptx, code], "zstd"))
    assert refusal(source, "a", cubins=cubins) == (Reason("closed_library"), False)
    if cubins:
        assert refusal(source, "c", "sm_80", cubins=True) == (Reason("closed_library"), False)
    bare = Source("x", text("sm_80", "a", CLOSED))  # any kernel may have such a name
    assert KernelFinder().find(bare, None, CLOSED, "sm_80").text


def test_a_closed_library_under_another_name(tmp_path):
    """A closed library is recognized by its soname; an image in it is rejected, wherever it's in the file."""
    names = "-Wl,-soname,libcublas.so.13"
    made = samples.link(tmp_path / "harmless.so", [image(("sm_70", "a"))], names)
    with made.open("rb") as file:
        whole = Source("x", file.fileno())
        (placed,) = parse_image(whole).iter_elements()
        part = whole.sub(placed.element.region, placed.element.end - placed.element.region)
        assert refusal(part, file=file.fileno()) == (Reason("closed_library"), True)


def test_too_large_cubin_is_cut_to_the_kernel(monkeypatch):
    body = "".join(f"x[{n}] = x[{n}] * x[{n + 1}] + {n};" for n in range(400))
    try:
        cubin = cuda.nvrtc_compile(
            f'extern "C" __global__ void a(float *x) {{ x[0] = 1; }}\n'
            f'extern "C" __global__ void b(float *x) {{ {body} }}\n',
            "sm_90",
        )
    except FileNotFoundError as error:
        pytest.skip(str(error))
    source = Source("x", pack_fatbin([Payload("cubin", "sm_90", cubin)], "zstd"))
    monkeypatch.setattr(kernels, "MAX_PAYLOAD", len(cubin) // 2)
    found = KernelFinder(cubins=True).find(source, None, "a", "sm_90")
    assert [kernel["name"] for kernel in found.contents.kernels] == ["a"]
    assert parse_cubin(found.data) == found.contents and len(found.data) < len(cubin) // 2
    reason, whole = refusal(source, "b", cubins=True)
    assert (reason.code, whole) == ("image_too_large", False)
