"""The rules by which a device picks code, as a table, and what the stage adds to them: whole modules, --keep,
--keep-ptx.
"""

import hashlib
import os
import subprocess

import pytest

from gpt.base.arch import parse_arch
from gpt.base.errors import MalformedError, UsageError
from gpt.locate.unused import (
    KEPT,
    LINKED,
    NO_KERNEL_USED,
    OTHER_ARCH,
    PTX_UNUSED,
    SUPERSEDED,
    Device,
    candidate_of,
    fits,
    iter_reasons,
    surely_runs,
)  # fmt: skip
from gpt.stream import records, wire
from tests.cuda import tool
from tests.stages.tools import run
from tests.tiers import full

REASONS = {
    "+": KEPT,
    "arch": OTHER_ARCH,
    "none": NO_KERNEL_USED,
    "better": SUPERSEDED,
    "cubin": PTX_UNUSED,
    "linked": LINKED,
}


def element(text, offset, library="lib.so"):
    """Make an element record from `REGION TYPE ARCH [KERNEL...] [+v] [+f] [#IMAGE]`.

    A region named `r...` is relocatable code, a region `s...` is outside of the fatbin sections; `-` means no region.
    """
    region, type_, arch, *names = text.split()
    return records.make(
        "element",
        library=library,
        section={"r": "__nv_relfatbin", "s": ".ldata"}.get(region[0], ".nv_fatbin"),
        region=offset if region == "-" else 1000 * int(region.lstrip("rs")),
        index=offset // 100,
        type=type_,
        arch=arch,
        offset=offset,
        header_size=0 if region == "-" else 64,
        payload_size=36,
        size=36,
        codec="none",
        flags=0,
        kernels=[{"name": name} for name in names if name[0] not in "+#"],
        functions=[{"name": "f"}] if "+f" in names else [],
        variables=int("+v" in names),
        sha256=next((hashlib.sha256(name[1:].encode()).hexdigest() for name in names if name[0] == "#"), None),
    )


def reasons(devices, used, whole, *texts):
    given = [Device(parse_arch(name.removesuffix("!")), name.endswith("!")) for name in devices.split()]
    candidates = []
    for number, text in enumerate(texts):
        record = element(text, 100 * number)
        hits = {k["name"] for k in record["kernels"]} & set(used.split())
        candidates.append(candidate_of(record, hits, record["region"] // 1000 in whole))
    return [reason for _, reason in iter_reasons(candidates, given)]


# name -> (devices, with `!` if it only runs PTX; used kernels; regions kept whole; elements and what happens to
# them)
RULES = {
    "same major version": ("sm_80", "k", (), [
        ("1 cubin sm_70 k", "arch"), ("1 cubin sm_80 k", "+"), ("1 cubin sm_90 k", "arch"), ("1 ptx sm_80 k", "cubin"),
    ]),
    "highest minor version not above": ("sm_86", "k", (), [
        ("1 cubin sm_80 k", "better"), ("1 cubin sm_86 k", "+"), ("1 cubin sm_89 k", "arch"),
        ("1 cubin sm_87 k", "arch"),
    ]),
    "order does not matter": ("sm_86", "k", (), [
        ("1 cubin sm_89 k", "arch"), ("1 cubin sm_86 k", "+"), ("1 cubin sm_80 k", "better"),
    ]),
    "a lower minor version serves": ("sm_89", "k", (), [
        ("1 ptx sm_89 k", "cubin"), ("1 cubin sm_80 k", "+"), ("1 cubin sm_90 k", "arch"),
    ]),
    "a Tegra may run what it isn't promised to": ("sm_87", "k", (), [
        ("1 cubin sm_80 k", "better"), ("1 cubin sm_86 k", "+"), ("1 ptx sm_80 k", "+"), ("1 ptx sm_75 k", "cubin"),
    ]),
    "so may another GPU with code for one": ("sm_89", "k", (), [
        ("1 cubin sm_80 k", "better"), ("1 cubin sm_86 k", "+"), ("1 cubin sm_87 k", "+"), ("1 ptx sm_80 k", "cubin"),
    ]),
    "a Tegra has code of its own": ("sm_87", "k", (), [
        ("1 cubin sm_86 k", "better"), ("1 cubin sm_87 k", "+"), ("1 ptx sm_80 k", "cubin"),
    ]),
    "a family leaves out the Tegra between": ("sm_101", "k", (), [("1 cubin sm_100f k", "+"), ("1 ptx sm_90 k", "+")]),
    "PTX where no cubin serves": ("sm_90", "k", (), [
        ("1 cubin sm_80 k", "arch"), ("1 ptx sm_70 k", "better"), ("1 ptx sm_80 k", "+"), ("1 ptx sm_100 k", "arch"),
    ]),
    "nothing serves": ("sm_60", "k", (), [("1 cubin sm_70 k", "arch"), ("1 ptx sm_70 k", "arch")]),
    "three digits": ("sm_120", "k", (), [
        ("1 cubin sm_90 k", "arch"), ("1 cubin sm_100 k", "arch"), ("1 cubin sm_120 k", "+"),
        ("1 ptx sm_120 k", "cubin"),
    ]),
    "suffix a binds to the device": ("sm_100", "k", (), [
        ("1 cubin sm_90a k", "arch"), ("1 cubin sm_100a k", "+"), ("1 cubin sm_103a k", "arch"),
    ]),
    "suffix a is for no later device": ("sm_103", "k", (), [
        ("1 cubin sm_100a k", "arch"), ("1 cubin sm_100 k", "better"), ("1 cubin sm_103f k", "+"),
    ]),
    "suffix f is for the family": ("sm_103", "k", (), [
        ("1 cubin sm_100f k", "+"), ("1 cubin sm_110f k", "arch"), ("1 ptx sm_103 k", "cubin"),
    ]),
    "PTX with a suffix": ("sm_103", "k", (), [
        ("1 ptx sm_100a k", "arch"), ("1 ptx sm_100f k", "+"), ("1 ptx sm_90a k", "arch"), ("1 ptx sm_90 k", "better"),
    ]),
    "a device's own suffix means nothing": ("sm_90a", "k", (), [("1 cubin sm_90 k", "+"), ("1 cubin sm_90a k", "+")]),
    "ties stay": ("sm_90", "k", (), [
        ("1 cubin sm_90 k", "+"), ("1 cubin sm_90a k", "+"), ("1 cubin sm_90 k", "+"), ("1 cubin sm_90 x", "none"),
    ]),
    "a device that runs PTX": ("sm_90!", "k", (), [
        ("1 cubin sm_90 k", "arch"), ("1 ptx sm_80 k", "better"), ("1 ptx sm_90 k", "+"), ("1 ptx sm_100 k", "arch"),
    ]),
    "a fleet": ("sm_75 sm_86 sm_90", "k", (), [
        ("1 cubin sm_70 k", "better"), ("1 cubin sm_75 k", "+"), ("1 cubin sm_80 k", "+"), ("1 cubin sm_90 k", "+"),
        ("1 ptx sm_90 k", "cubin"), ("1 cubin sm_100 k", "arch"),
    ]),
    "a fleet of which one runs PTX": ("sm_90 sm_90!", "k", (), [("1 cubin sm_90 k", "+"), ("1 ptx sm_90 k", "+")]),
    "a fleet of which one needs PTX": ("sm_90 sm_100", "k", (), [
        ("1 cubin sm_90 k", "+"), ("1 ptx sm_90 k", "+"), ("1 ptx sm_80 k", "cubin"),
    ]),
    "each region picks for itself": ("sm_90", "k", (), [
        ("1 cubin sm_90 k", "+"), ("1 ptx sm_90 k", "cubin"), ("2 cubin sm_80 k", "arch"), ("2 ptx sm_80 k", "+"),
    ]),
    "no kernel used": ("sm_90", "k", (), [
        ("1 cubin sm_90 other", "none"), ("1 ptx sm_90 other", "cubin"), ("2 ptx sm_90 other", "none"),
        ("3 cubin sm_90 other k", "+"),
    ]),
    "the device's choice decides, not use elsewhere": ("sm_86", "k", (), [
        ("1 cubin sm_80 k", "better"), ("1 cubin sm_86 other", "none"),
    ]),
    "a library that is not used links nothing": ("sm_90", "k", (), [
        ("s1 ltoir sm_75", "none"), ("s2 ptx sm_75 p", "none"), ("s3 cubin sm_90 other", "none"),
    ]),
    "a library that is used may link what lies outside": ("sm_90", "k", (), [
        ("s1 ltoir sm_75", "+"), ("s2 ptx sm_75 p", "+"), ("s2 ltoir sm_100", "arch"), ("s3 ptx sm_100 p", "arch"),
        ("s4 cubin sm_90 k", "+"), ("s4 ptx sm_80 k", "+"), ("s5 cubin sm_80 k", "arch"), ("6 ltoir sm_75", "none"),
    ]),
    "variables may be looked up": ("sm_90", "", (), [
        ("1 cubin sm_90 +v", "+"), ("1 cubin sm_80 +v", "arch"), ("2 cubin sm_90 +f", "+"), ("3 cubin sm_90", "none"),
        ("4 cubin sm_90 k +v", "none"), ("5 ptx sm_80 +v", "+"),
    ]),
    "a module kept whole": ("sm_90", "", (1,), [
        ("1 cubin sm_90 k", "+"), ("1 cubin sm_80 k", "arch"), ("1 ptx sm_90 k", "cubin"), ("2 cubin sm_90 k", "none"),
    ]),
    "relocatable code was linked": ("sm_90", "k", (), [
        ("1 cubin sm_90 k", "+"), ("1 cubin sm_80 k", "arch"), ("r2 cubin sm_90 k", "linked"),
        ("r2 cubin sm_80 k", "arch"),
        ("r3 cubin sm_90 +f", "linked"), ("r3 ptx sm_90 +f", "cubin"),
    ]),
    "relocatable code of a device that no linked code serves": ("sm_90", "k", (), [
        ("1 cubin sm_80 k", "arch"), ("r2 cubin sm_90 k", "+"), ("r3 cubin sm_90 +f", "+"),
        ("r4 cubin sm_90 x", "none"),
    ]),
    "relocatable code that is not in the linked code": ("sm_90", "k", (), [
        ("1 cubin sm_90 other", "none"), ("r2 cubin sm_90 k", "+"), ("r3 cubin sm_90 +f", "+"),
    ]),
    "relocatable code, device by device": ("sm_80 sm_90", "k", (), [
        ("1 cubin sm_90 k", "+"), ("r2 cubin sm_90 k", "linked"), ("r2 cubin sm_80 k", "+"),
    ]),
    "relocatable code kept whole": ("sm_90", "k", (2,), [("1 cubin sm_90 k", "+"), ("r2 cubin sm_90 k", "+")]),
    "LTO-IR is picked as PTX is": ("sm_90", "k", (), [
        ("1 ltoir sm_80 +f", "better"), ("1 ltoir sm_90 +f", "+"), ("2 cubin sm_90 k", "+"),
        ("2 ltoir sm_90 +f", "cubin"),
    ]),
    "Tile IR is picked as PTX is, next to it": ("sm_100", "k", (), [
        ("1 tileir sm_90 k", "better"), ("1 tileir sm_100 k", "+"), ("1 tileir sm_103 k", "arch"),
        ("1 ptx sm_90 k", "+"),
        ("2 cubin sm_100 k", "+"), ("2 tileir sm_100 k", "cubin"), ("2 tileir sm_100", "cubin"),
    ]),
    "Tile IR whose kernels aren't known stays where it's picked": ("sm_100", "", (), [
        ("1 tileir sm_100", "+"), ("2 tileir sm_100 k", "none"), ("3 tileir sm_103", "arch"),
    ]),
    "bare code is judged alone": ("sm_86", "k", (), [
        ("- cubin sm_80 k", "+"), ("- cubin sm_86 k", "+"), ("- ptx sm_80 k", "+"), ("- cubin sm_90 k", "arch"),
        ("- cubin sm_86 x", "none"),
    ]),
    "unknown types stay": ("sm_90", "", (), [("1 unknown:9 sm_0", "+"), ("1 unknown:4 sm_80 k", "+")]),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_rule(name):
    devices, used, whole, elements = RULES[name]
    assert reasons(devices, used, whole, *(text for text, _ in elements)) == [REASONS[reason] for _, reason in elements]


@pytest.mark.parametrize(
    "arch", ["", "9", "sm90", "sm_", "sm_9", "sm_90b", "compute_90", "sm_90 ", "sm_" + "9" * 5000, "sm_٩٠"]
)
def test_odd_architectures(arch):
    with pytest.raises(UsageError):
        parse_arch(arch)
    with pytest.raises(MalformedError):
        candidate_of({**element("1 cubin sm_90 k", 0), "arch": arch}, set(), False)


def test_elements_beyond_any_file_are_refused():
    with pytest.raises(MalformedError):
        candidate_of({**element("1 cubin sm_90 k", 0), "offset": (1 << 64) - 80}, set(), False)


# The stage


@pytest.fixture
def locate(tmp_path):
    """Run gpt-locate on a library of elements; return the offsets that are kept, and the finished run."""

    def call(texts, *options, used="k\n", arch="sm_90", path="lib.so", build_id=None):
        elements = [element(text, 100 * number, path) for number, text in enumerate(texts)]
        made = [
            wire.header("test", []),
            records.make("library", path=path, size=1 << 20, build_id=build_id),
            *elements,
            records.make("library_end", path=path),
            records.make("end", records=len(elements) + 2, status=0),
        ]
        (tmp_path / "used").write_bytes(used if isinstance(used, bytes) else (used or "").encode())
        options = [*options, *(["--arch", arch] if arch else [])]
        named = [] if used is None else ["--used", tmp_path / "used"]
        done = run("gpt-locate", *named, *options, data=b"".join(map(wire.pack, made)), cwd=tmp_path)
        cut = {span["start"] for span in done.kind("span")} if done.status == 0 else set()
        payloads = [(e["offset"], e["offset"] + e["header_size"]) for e in elements]
        return [offset // 100 for offset, payload in payloads if payload not in cut], done

    return call


def trace(*inner):
    made = [wire.header("gpt-hook", []), *inner, records.make("end", records=len(inner), status=0)]
    return b"".join(map(wire.pack, made))


LIBRARY = [
    "1 cubin sm_90 k",
    "1 ptx sm_90 k",
    "2 cubin sm_90 other",
    "2 ptx sm_90 other",
    "3 cubin sm_80 k",
    "3 ptx sm_80 x",
]


@pytest.mark.full
def test_nvlink_takes_the_cubins_that_serve(tmp_path):
    """nvlink refuses code that the device can't run."""
    codes = [f"{sm}{a}" for sm in (90, 100, 103) for a in ("", "a")] + [f"{sm}f" for sm in (100, 103, 110, 120, 121)]
    devices = (75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121)
    for code in [*map(str, devices), *codes]:
        cubin = tmp_path / f"{code}.cubin"
        text = f".version 9.0\n.target sm_{code}\n.address_size 64\n.visible .entry k() {{ ret; }}\n"
        cubin.with_suffix(".ptx").write_text(text)
        subprocess.run([tool("ptxas"), "-c", f"-arch=sm_{code}", cubin.with_suffix(".ptx"), "-o", cubin], check=True)
        candidate = candidate_of(element(f"1 cubin sm_{code} k", 0), {"k"}, False)
        for name in devices:
            device = Device(parse_arch(f"sm_{name}"))
            nvlink = [tool("nvlink"), f"-arch=sm_{name}", cubin, "-o", tmp_path / "out"]
            takes = subprocess.run(nvlink, capture_output=True, check=False).returncode == 0
            assert takes == (fits(candidate, device) and surely_runs(candidate, device)), (code, name)


def test_library_loses_all_code(tmp_path):
    """If only some libraries have code for the device, a warning names the code that the others have."""

    def stream_of(*libraries):
        records_ = [wire.header("test", [])]
        for path, texts in libraries:
            records_.append(records.make("library", path=path, size=1 << 20))
            records_ += [element(text, 100 * number, path) for number, text in enumerate(texts)]
            records_.append(records.make("library_end", path=path))
        return b"".join(map(wire.pack, [*records_, records.make("end", records=len(records_) - 1, status=0)]))

    data = stream_of(
        ("a.so", ["1 cubin sm_90 k"]),
        ("b.so", ["1 cubin sm_80 k", "1 ptx sm_100 k"]),
        ("c.so", ["1 cubin sm_80 k", "1 ptx sm_80 k"]),
        ("d.so", []),
    )
    done = run("gpt-locate", "--arch", "sm_90,sm_90a", data=data)
    fact = "loses all of its GPU code, since none is for sm_90: there is cubin for sm_80; ptx for sm_100"
    assert (done.status, done.err) == (0, f"gpt-locate: warning: b.so: {fact}\n")
    assert [span["library"] for span in done.kind("span")] == ["b.so", "b.so", "c.so"]
    assert run("gpt-locate", "--arch", "sm_90,sm_80", data=data).err == ""
    assert run("gpt-locate", "--arch", "sm_90", "--keep-ptx", data=data).err == ""
    done = run("gpt-locate", "--arch", "sm_90", "--arch", "sm_80", data=data)
    assert [line.split(": ")[2] for line in done.err.splitlines()] == ["b.so", "a.so"]


def test_keep(locate):
    assert locate(LIBRARY)[0] == [0]
    assert locate(LIBRARY, "--keep", "^oth")[0] == [0, 2]
    assert locate(LIBRARY, "--keep", "^oth")[1].err == ""
    left, done = locate(LIBRARY, "--keep", "nothing", "--keep", "x$")
    assert (left, done.err) == ([0, 5], "gpt-locate: warning: --keep: matches no kernel: 'nothing'\n")
    assert locate(LIBRARY, "--keep", "[")[1].status == 2
    assert locate(LIBRARY, "--keep", "(?i)^OTH", "--keep", "(x)\\1|x$")[0] == [0, 2, 5]  # flags and groups of its own


# Decided by devices alone: elements, devices, elements that stay.
BY_DEVICE = {
    "same major version, minor not above": (["1 cubin sm_80 k", "1 cubin sm_86 k", "1 cubin sm_90 k"], "sm_89", [1]),
    "no cubin of another major version": (["1 cubin sm_80 k", "1 ptx sm_80 k"], "sm_90", [1]),
    "exactly that device": (["1 cubin sm_90a k", "1 cubin sm_100a k", "1 ptx sm_80 k"], "sm_90", [0]),
    "PTX where no cubin serves": (["1 cubin sm_100a k", "1 ptx sm_90 k", "1 ptx sm_80 k"], "sm_103", [1]),
    "a fleet": (["1 cubin sm_80 k", "1 cubin sm_90 k", "1 ptx sm_90 k"], "sm_80,sm_90", [0, 1]),
    "no kernels": (["1 cubin sm_90", "1 cubin sm_80", "2 ptx sm_90", "3 cubin sm_90 +v"], "sm_90", [0, 2, 3]),
    "LTO-IR and Tile IR": (["1 ltoir sm_90", "2 tileir sm_90", "3 cubin sm_90 k", "3 ltoir sm_90"], "sm_90", [0, 1, 2]),
    "linked code": (
        ["1 cubin sm_90 a b", "r2 cubin sm_90 a", "r3 cubin sm_90 +f", "r4 cubin sm_90 c"],
        "sm_90",
        [0, 1, 2, 3],
    ),
    "linked code that has it all": (["1 cubin sm_90 a b", "r2 cubin sm_90 a", "r3 cubin sm_90 +f"], "sm_90", [0]),
    "what libraries may link": (
        ["s1 ptx sm_80", "s1 ltoir sm_90 +f", "s1 ptx sm_100", "2 cubin sm_90 k"],
        "sm_90",
        [0, 1, 3],
    ),
    "unknown types": (["1 unknown:9 sm_0", "1 cubin sm_80 k"], "sm_80", [0, 1]),
}


@pytest.mark.parametrize("name", BY_DEVICE)
def test_devices_alone(locate, name):
    """Without --used every kernel counts as used."""
    elements, arch, kept = BY_DEVICE[name]
    left, done = locate(elements, used=None, arch=arch)
    assert (left, done.status, done.err) == (kept, 0, "")


def test_some_options_need_used(locate):
    for options in (["--keep", "x"], ["--granularity", "kernel"], ["--trace-json", "x.json"]):
        done = locate(LIBRARY, *options, used=None)[1]
        assert (done.status, f"{' '.join(options[:1])}" in done.err) == (2, True)
    assert "--used FILE or --arch SM is required" in locate(LIBRARY, used=None, arch="")[1].err
    done = locate(LIBRARY, used=None, arch="sm_60")[1]
    assert (done.status, "no code for sm_60" in done.err) == (1, True)
    assert locate(LIBRARY, "--keep-ptx", used=None)[0] == [0, 1, 2, 3, 5]


def test_keep_ptx(locate):
    assert locate(LIBRARY, "--keep-ptx")[0] == [0, 1]
    assert locate(LIBRARY, "--keep-ptx", "--keep", ".")[0] == [0, 1, 2, 3, 5]
    assert locate(["1 cubin sm_90 k", "1 ptx sm_100 k"], "--keep-ptx")[0] == [0, 1]  # for a future device


def test_tallies_add_up(locate):
    _, done = locate(LIBRARY)
    tallies = {tally["reason"]: (tally["elements"], tally["kernels"], tally["bytes"]) for tally in done.kind("tally")}
    assert tallies == {
        KEPT: (1, 1, 100), PTX_UNUSED: (2, 2, 200), NO_KERNEL_USED: (2, 2, 200), OTHER_ARCH: (1, 1, 100),
    }  # fmt: skip
    assert list(tallies)[-1] == KEPT


def test_devices_come_from_the_trace(locate):
    device = records.make("device", index=0, name="A", arch="sm_80", runs="sass")
    simulated = records.make("device", index=1, name="sim", arch="sm_90", runs="ptx")
    function = records.make("function", id=1, name="k")
    assert locate(LIBRARY, used=trace(device, function), arch="")[0] == [4]
    assert locate(LIBRARY, used=trace(device, simulated, function), arch="")[0] == [1, 4]
    assert locate(LIBRARY, used=trace(device, function), arch="sm_90")[0] == [0]  # --arch takes precedence
    done = locate(LIBRARY, used=trace(function), arch="")[1]
    assert done.status == 2
    assert "no trace names a device" in done.err


@pytest.mark.parametrize("by", ["path", "link", "build id", "another file"])
def test_modules_that_were_looked_into_are_kept_whole(locate, tmp_path, by):
    path = str(tmp_path / "lib.so")
    (tmp_path / "lib.so").touch()
    os.symlink("lib.so", tmp_path / "link.so")
    seen = {
        "path": path,
        "link": str(tmp_path / "link.so"),
        "build id": "/elsewhere/lib.so",
        "another file": "/other.so",
    }[by]
    build_id = "ab" * 20 if by == "build id" else None
    inner = [
        records.make("library", path=seen, size=1, build_id=build_id),
        records.make("module", id=7, type="fatbin", path=seen, offset=2000),
        records.make("lookup", module=7, what="enumerate"),
    ]
    kept, done = locate(LIBRARY, used=trace(*inner), path=path, build_id=build_id)
    assert kept == ([] if by == "another file" else [2])
    assert done.status == 0


def test_modules_in_memory_that_were_looked_into_are_a_warning(locate):
    data = b"cubin"
    module = records.make("module", id=1, type="cubin", sha256=hashlib.sha256(data).hexdigest())
    _, done = locate(LIBRARY, used=trace(module, records.make("lookup", module=1, what="variable", name="x")))
    assert "its code is kept only if --scan finds its image" in done.err


def test_image_in_no_library_may_have_been_linked(locate):
    """An image that's in no library may be a linker's output, so a linker's input is kept."""
    library = ["- cubin sm_90 x #loaded", "s1 ltoir sm_75", "s2 ptx sm_75 p", "s3 cubin sm_90 other"]
    known, strange = (
        records.make("module", id=1, type="cubin", sha256=hashlib.sha256(name).hexdigest())
        for name in (b"loaded", b"made at run time")
    )
    inert = library[1:]
    assert locate(inert, used=trace(strange, records.make("function", id=1, module=1, name="k")))[0] == [0, 1]
    assert locate(inert, used=trace(records.make("function", id=1, name="k")))[0] == []
    assert locate(library, used=trace(known, records.make("function", id=1, module=1, name="k")))[0] == [0, 1, 2]


@pytest.mark.parametrize(
    "loader, may",
    [
        full("libfft.so.12", True),
        full("libfft_parts.so", True),
        ("libfftLt.so.12", True),
        full("libf.so", True),
        ("libblas.so.12", False),
        full("_fft.so", False),
        full("other/libfft.so.12", True),
        full("other/libblas.so.12", False),
        full("other/libcudart.so.13", True),
        full("other/libcudart-d0da41ae.so.11.0", True),
        (None, True),
    ],
)
def test_loader_of_an_image_determines_its_possible_parts(locate, tmp_path, loader, may):
    strange = records.make("module", id=1, type="cubin", sha256="0" * 64, loader=loader and str(tmp_path / loader))
    used = trace(strange, records.make("function", id=1, module=1, name="k"))
    path = str(tmp_path / "libfft.so.12")
    assert locate(["s2 ptx sm_75 p", "3 cubin sm_90 other"], used=used, path=path)[0] == [0] * may
    # The library only exists to be linked.
    assert locate(["s2 ptx sm_75 p", "s3 ltoir sm_100"], used=used, path=path)[0] == [0]


def test_images_that_a_library_unpacked_are_kept_by_their_digests(locate):
    """The kernels count as used even if they weren't looked up, so that the library can load them again."""
    modules = [
        records.make("module", id=1, type="cubin", sha256=hashlib.sha256(b"loaded").hexdigest()),
        records.make("module", id=2, type="cubin", path="/other.so", sha256=hashlib.sha256(b"other").hexdigest()),
    ]
    library = ["- cubin sm_90 x #loaded", "- cubin sm_90 x #other", "- cubin sm_80 x #loaded", "- cubin sm_90 k #not"]
    assert locate(library, used=trace(*modules, records.make("function", id=1, module=1, name="k")))[0] == [0, 3]


def test_missing_names_are_reported(locate):
    _, done = locate(LIBRARY, "--allow-missing", used="k\nnowhere\nother\n", arch="sm_80")
    assert done.status == 0
    assert "used, but in no library: 'nowhere'" in done.err
    assert "used, but in no code for these devices: 'other'" in done.err
    _, done = locate(["1 cubin sm_90 k"], used=trace(
        records.make("module", id=1, type="fatbin", path="/another.so", offset=0),
        records.make("function", id=1, module=1, name="elsewhere"),
    ))  # fmt: skip
    assert "elsewhere" not in done.err  # the kernel was in a library that isn't in the stream


def test_an_element_without_payload_needs_no_span(locate):
    text = "1 cubin sm_80 k"
    empty = {**element(text, 0), "payload_size": 0}
    made = [wire.header("t", []), records.make("library", path="lib.so", size=999), empty]
    made += [records.make("library_end", path="lib.so"), records.make("end", records=3, status=0)]
    options = ("--used", os.devnull, "--arch", "sm_90", "--allow-missing")
    done = run("gpt-locate", *options, data=b"".join(map(wire.pack, made)))
    assert (done.status, done.kind("span")) == (0, [])
