"""Real libraries from PyPI: slimmed to a few kernels, checked with NVIDIA's and GNU's tools, loaded.

Skipped if they aren't available. With GPT_TEST_LARGE=1, nccl and torch are tested, too.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from tests import cuda
from tests.formats import oracle
from tests.packages import LARGE, PACKAGES, Package, fetch
from tests.patch import checks
from tests.stages.tools import MIB, extract, located, patch, run

pytestmark = pytest.mark.full
LOAD = """
import ctypes, sys
try:
    library = ctypes.CDLL(sys.argv[1])
except OSError as error:
    print(str(error).replace(sys.argv[1], "LIBRARY"))
else:
    words = (ctypes.c_int * 4)()
    status = getattr(library, sys.argv[2])(words, words, words) if sys.argv[2] else "loaded"
    print(status if sys.argv[2] == "ncclGetVersion" else "", list(words))
"""


def loaded(library: Path, package: Package) -> str:
    """Load a library, and return the result of a call to it, or the loader's message if it needs a library that's
    missing.
    """
    command = [sys.executable, "-c", LOAD, library, package.call or ""]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.returncode} {done.stderr}"
    return done.stdout


@pytest.mark.parametrize("name", [*PACKAGES, *LARGE])
def test_slimmed_to_three_kernels(name, tmp_path):
    if name in LARGE and not os.environ.get("GPT_TEST_LARGE"):
        pytest.skip("large: set GPT_TEST_LARGE=1")
    package = {**PACKAGES, **LARGE}[name]
    library = fetch(package)
    found = extract("-j2", library, measured=True)
    assert (found.status, found.err) == (0, "")  # no false warning
    elements = found.kind("element")
    largest = max(element["size"] for element in elements)  # nccl has one of 128 MiB
    assert found.memory < 300 * MIB + 2 * largest
    names = oracle.listed(library)
    assert len(names) == len(elements)

    # Three kernels: from the first, the middle and the last element for the device.
    of_arch = [e for e in elements if e["arch"] == package.arch and e["type"] == "cubin" and e["kernels"]]
    used = sorted({of_arch[n]["kernels"][0]["name"] for n in (0, len(of_arch) // 2, -1)})
    stream = located(library, "\n".join(used), arch=package.arch)
    record = patch(stream, "-o", tmp_path / "slim")
    assert record["mode"] == "compact", record
    gone = record["gpu_before"] - record["gpu_after"]
    assert record["gpu_after"] < record["gpu_before"] / 2
    assert record["size_before"] - record["size_after"] > gone * 0.95
    patched = tmp_path / "slim" / library.name

    # cuobjdump lists the elements without spans, in their order, byte for byte.
    spans = {span["start"] for span in spans_of(stream)}
    elements.sort(key=lambda element: element["section"] == "__nv_relfatbin")  # cuobjdump lists these last
    cubins, rest = sorted_names(names)
    kept = []
    for element in elements:
        its_name = (cubins if element["type"] == "cubin" else rest).pop(0)
        if element["offset"] + element["header_size"] not in spans:
            kept.append((element, its_name))
    assert kept
    for element, _ in kept:
        has = {kernel["name"] for kernel in element["kernels"]} & set(used)
        assert has or (not element["kernels"] and (element["variables"] or element["functions"]))
    for kernel in used:
        assert any(kernel in {k["name"] for k in element["kernels"]} for element, _ in kept)
    assert oracle.warnings(patched) <= oracle.warnings(library)
    compare(library, patched, [its_name for _, its_name in kept], tmp_path)
    checks.check_host(library, patched)
    assert patched.stat().st_mode == library.stat().st_mode
    assert loaded(patched, package) == loaded(library, package)

    again = patch(located(patched, "\n".join(used), arch=package.arch), "-o", tmp_path / "again")
    assert again["mode"] == "copy"
    assert (tmp_path / "again" / library.name).read_bytes() == patched.read_bytes()


@pytest.mark.parametrize("name", [*PACKAGES, *LARGE])
def test_slimmed_inside_of_elements(name, tmp_path):
    """Code of unused kernels is zero or removed; the code of the others is unchanged."""
    if name in LARGE and not os.environ.get("GPT_TEST_LARGE"):
        pytest.skip("large: set GPT_TEST_LARGE=1")
    package = {**PACKAGES, **LARGE}[name]
    library = fetch(package)
    elements = extract(library).kind("element")
    of_arch = [e for e in elements if e["arch"] == package.arch and e["type"] == "cubin" and e["kernels"]]
    used = {of_arch[n]["kernels"][0]["name"] for n in (0, len(of_arch) // 2, -1)}
    sizes, cut = {}, {}
    for way, granularity, kernels in (
        ("element", "element", "drop"),
        ("zero", "kernel", "zero"),
        ("drop", "kernel", "drop"),
    ):
        made = located(library, "\n".join(used), "--granularity", granularity, arch=package.arch)
        done = run("gpt-patch", "--kernels", kernels, "-o", tmp_path / way, data=made, timeout=300)
        assert done.status == 0, done.err
        (record,) = done.kind("patched")
        trimmed = done.kind("trimmed")
        if name == "nccl" and granularity == "kernel":  # its kernels call through a table of all their functions
            assert {t.get("reason") for t in trimmed} == {"variables hold addresses of functions"}
            return
        sizes[way] = record["gpu_after"] + record["disk_after"]  # unpacked elements get holes
        cut[way] = sum(t["kernels"] + t["functions"] for t in trimmed)
        assert oracle.warnings(tmp_path / way / library.name) <= oracle.warnings(library)
        checks.check_host(library, tmp_path / way / library.name)
        assert loaded(tmp_path / way / library.name, package) == loaded(library, package)
    assert sizes["drop"] < sizes["zero"] < sizes["element"]
    assert cut["drop"] == cut["zero"] > 0
    code = {f".text.{kernel}" for kernel in used}

    before = sections_of(tmp_path / "element" / library.name, tmp_path / "a")
    zeroed = sections_of(tmp_path / "zero" / library.name, tmp_path / "b")
    dropped = sections_of(tmp_path / "drop" / library.name, tmp_path / "c")
    assert before.keys() == zeroed.keys() == dropped.keys()
    gone, stayed = set(), set()
    for cubin, old in before.items():
        for a, b in zip(old, zeroed[cubin], strict=True):
            assert (a.name, dict(a.header)) == (b.name, dict(b.header))
            if a.data() != b.data():
                assert not any(b.data())
                gone.add(a.name)
            elif a.name.startswith(".text."):
                stayed.add(a.name)
        left = {section.name: section.data() for section in dropped[cubin]}
        kept = {section.name: section.data() for section in old if section.name in code}
        assert kept.items() <= left.items()
        assert not any(section.name in left for section in old if section.name in gone)
    assert code <= stayed - gone
    assert len(gone) <= cut["zero"]


def sections_of(library, folder):
    """Return the sections of each cubin that cuobjdump finds, by its file name."""
    found = oracle.extracted(library, folder)
    return {
        name: list(ELFFile(io.BytesIO(data)).iter_sections()) for name, data in found.items() if name.endswith(".cubin")
    }


def spans_of(data):
    import io

    from gpt.stream import wire

    return [record for record in wire.read_records(io.BytesIO(data), "located") if record["kind"] == "span"]


def sorted_names(names):
    """Return sorted names; cuobjdump numbers cubins and PTX separately."""
    return [n for n in names if n.endswith(".cubin")], [n for n in names if not n.endswith(".cubin")]


def compare(library: Path, patched: Path, kept: list[str], folder: Path) -> None:
    """Check that cuobjdump finds the same elements in the patched library as under these names in the original."""
    after = oracle.extracted(patched, folder / "after")
    before: dict[str, bytes] = {}
    for arch in {name.split(".")[-2] for name in kept}:
        before |= oracle.extracted(library, folder / arch, f".{arch}.")
    assert [after[name] for name in oracle.listed(patched)] == [before[name] for name in kept]
    assert len(after) == len(kept)


@pytest.mark.parametrize("mode", ["fill", "hole"])
def test_other_modes(mode, tmp_path):
    package = PACKAGES["bitsandbytes"]
    library = fetch(package)
    stream = located(library, "nothing", arch=package.arch)
    record = patch(stream, "-o", tmp_path / "slim", "--mode", mode)
    assert (record["mode"], record["size_after"]) == (mode, record["size_before"])
    patched = tmp_path / "slim" / library.name
    assert oracle.warnings(patched) <= oracle.warnings(library)
    checks.check_host(library, patched)
    assert loaded(patched, package) == loaded(library, package)
    assert len(oracle.listed(patched)) == len(extract(patched).kind("element")) < len(oracle.listed(library))
    if mode == "hole":
        assert record["disk_after"] < record["disk_before"] / 2


def test_assembled_for_a_gpu_that_it_has_ptx_for(tmp_path, monkeypatch):
    """Each kernel in the PTX is also in a cubin, and cuobjdump reports the same resources for both."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    library = fetch(PACKAGES["bitsandbytes"])
    found = extract("--ptx", library)
    ptxas = cuda.tool("ptxas")
    done = run("gpt-asm", "--arch", "sm_120", "--ptxas", ptxas, "--save", tmp_path, data=found.out, timeout=300)
    assert done.status == 0, done.err
    modules = {module["id"]: set(module["kernels"]) for module in done.kind("ptx")}
    assert {cubin["id"]: set(cubin["kernels"]) for cubin in done.kind("cubin")} == modules
    assert sum(map(len, modules.values())) > 100
    listed = {}
    for file in tmp_path.glob("*.cubin"):
        for name, registers, stack in re.findall(
            r"Function (\S+):\s+REG:(\d+) STACK:(\d+)", cuda.run("cuobjdump", "-res-usage", file)
        ):
            listed[file.name.split(".")[-3], name] = int(registers), int(stack)
    kernels = {(str(k["id"]), k["name"]): (k["registers"], k["stack"]) for k in done.kind("kernel")}
    assert len(kernels) == sum(map(len, modules.values()))
    assert kernels.items() <= listed.items()
