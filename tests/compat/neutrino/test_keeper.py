"""The files that the pipeline's last stage keeps for each kernel, and their place in a trace folder."""

import hashlib

import pytest

from gpt.base.keep import kept_in
from gpt.compat.neutrino.keeper import Keeper, find_kept
from gpt.compat.neutrino.kernels import KernelFolders, Settings
from gpt.stream import records
from tests.trace import forge

IMAGE = b"the image"
QUESTION = records.make("module", id=0, type="ptx", data=IMAGE, only=["k"], arch="sm_90")
PTX = records.make("ptx", id=0, module="module:0#0", arch="sm_90", kernels=["k"], data=b"probed", original=b"pruned")
CUBIN = records.make("cubin", id=0, module="module:0#0", arch="sm_90", kernels=["k"], data=b"P", original=b"O")
LOADED = records.make("module", id=7, type="ptx", sha256=hashlib.sha256(IMAGE).hexdigest(), size=len(IMAGE))
MAP = forge.probe_map("m", n="u64")


def answer(folder, *found):
    """Keep the answers to a question. All must pass."""
    keeper = Keeper(folder)
    assert [record for given in found for record in keeper.handle(given)] == list(found)
    assert list(keeper.settle()) == []


def texts(folder, **files):
    """Return the files that the other stages keep for the kernel."""
    kept = kept_in(folder, "k", b"probed")
    kept.mkdir(parents=True)
    for name, text in files.items():
        (kept / name.replace("_", ".")).write_text(text)


def add(folder, module, kernel, reason=""):
    """Return the folder of the kernel in a trace folder, and its contents."""
    (folder / "kernel").mkdir(exist_ok=True)
    folders = KernelFolders(folder / "kernel", 4711, Settings("", "", "hook.py", {"m": 8}, folder / "kept", False))
    made = folders.add("k", module, kernel, [MAP] if kernel else [], reason)
    return {path.name: path.read_bytes() for path in made.iterdir()}, folders.missing


def test_a_kernel_with_probes(tmp_path):
    kept = tmp_path / "kept"
    texts(kept, original_ptx="whole\n")
    (kept_in(kept, "k", b"probed") / "ptxas.txt").write_text("Used 12 registers, 368 bytes cmem[0]\n")
    (kept_in(kept, "k", b"probed") / "ptxas-pruned.txt").write_text("Used 8 registers, 360 bytes cmem[0]\n")
    answer(kept, QUESTION, PTX, CUBIN)
    files, missing = add(tmp_path, LOADED, forge.kernel(5, 2, "k", 1))
    log = files.pop("process.log").decode()
    assert not missing and log.endswith(files.pop("read.py").decode())
    assert log.splitlines()[:7] == [
        "['']", "[decompile] via gpt-extract --ptx", "k",
        "[assemble] via gpt-asm pruned.ptx -o pruned.bin", "Used 8 registers, 360 bytes cmem[0]",
        "[assemble] via gpt-asm probed.ptx -o probed.bin", "Used 12 registers, 368 bytes cmem[0]",
    ]  # fmt: skip
    assert files == {
        "original.bin": IMAGE, "original.ptx": b"whole\n", "pruned.ptx": b"pruned", "probed.ptx": b"probed",
        "pruned.bin": b"O", "probed.bin": b"P", "kernel.info": b"k\n0\n1\n1,8\nhook.py\n",
    }  # fmt: skip


def test_kernel_refused_by_ptxas(tmp_path):
    kept = tmp_path / "kept"
    texts(kept, original_ptx="whole")
    (kept_in(kept, "k", b"probed") / "ptxas.txt").write_text("ptxas fatal\n")
    diag = records.make("diag", level="error", where="my.toml:7", text="Unknown symbol '%x'")
    answer(kept, QUESTION, PTX, diag)
    files, missing = add(tmp_path, LOADED, None, "the pipeline failed")
    assert not missing
    assert sorted(files) == ["original.bin", "original.ptx", "probed.ptx", "process.log", "pruned.ptx"]
    assert files["process.log"].decode().splitlines()[3:] == [
        "[assemble] via gpt-asm pruned.ptx -o pruned.bin", "[assemble] via gpt-asm probed.ptx -o probed.bin",
        "ptxas fatal", "error: my.toml:7: Unknown symbol '%x'", "[unprobed] the pipeline failed",
    ]  # fmt: skip


@pytest.mark.parametrize("size", [9, 5 << 20])
def test_an_image_in_a_file(tmp_path, size):
    """A trace has the digest of small images, and the location of all."""
    path = tmp_path / "lib.so"
    path.write_bytes(b"head" + bytes(size))
    place = {"path": str(path), "offset": 4, "size": size}
    answer(tmp_path / "kept", records.make("module", id=0, type="fatbin", only=["k"], arch="sm_90", **place))
    loaded = records.make("module", id=7, type="fatbin", **place)
    found = find_kept(tmp_path / "kept", "k", 1, loaded)
    assert (found / "original.bin").read_bytes() == bytes(size)
    other = {"path": "/elsewhere", "sha256": hashlib.sha256(bytes(size)).hexdigest()}
    by_digest = find_kept(tmp_path / "kept", "k", 1, records.make("module", id=7, type="fatbin", **other))
    assert (by_digest is not None) == (size == 9)
    assert find_kept(tmp_path / "kept", "other", 1, loaded) is None


def test_image_differs_from_the_trace(tmp_path):
    """Either the driver linked the image, or the image is in a file and the trace has no digest of it. After exec(3),
    the numbers of modules start again.
    """
    kept = tmp_path / "kept"
    for text in (b"before exec", b"linked"):
        answer(kept, QUESTION | {"of": "4711:7", "data": text}, PTX, CUBIN)
    for loaded in ({"type": "cubin", "sha256": "0" * 64}, {"type": "ptx", "path": "/lib.so", "offset": 4}):
        found = find_kept(kept, "k", 4711, records.make("module", id=7, **loaded))
        assert (found / "original.bin").read_bytes() == text
    assert find_kept(kept, "k", 4712, records.make("module", id=7, type="ptx")) is None
    assert find_kept(kept, "k", 4711, {}) is None


def test_an_image_of_many_kernels_is_kept_once(tmp_path):
    answer(tmp_path, QUESTION | {"only": ["a", "b"]})
    paths = [find_kept(tmp_path, kernel, 1, LOADED) / "original.bin" for kernel in "ab"]
    assert paths[0].samefile(paths[1])


def test_code_that_cannot_be_kept_is_missing(tmp_path):
    (tmp_path / "kept").write_text("in its place")
    answer(tmp_path / "kept", QUESTION, PTX, CUBIN)
    _, missing = add(tmp_path, LOADED, forge.kernel(5, 2, "k", 1))
    assert missing
