"""The trace folder made from the records of a stream, line by line."""

import hashlib
import os
import re
import resource
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gpt.compat.neutrino.command import TOOLS
from gpt.compat.neutrino.writer import Writer
from gpt.stream import records
from tests.trace import forge

NAME = "_Z1kv"
FOLDER = f"0_{hashlib.sha1(NAME.encode()).hexdigest()}"
MODULE = records.make("module", id=3, type="fatbin", sha256="ab", path="/lib/libx.so", offset=64, size=4096)
FUNCTION = records.make("function", id=2, module=3, name=NAME)
MAP = forge.probe_map("block_sched", begin="u64", elapsed="u32", smid="u32")
DATA = b"".join(struct.pack("<QQII", 1, 10 * unit, 5, unit) for unit in range(4))
PARAMS = [{"offset": 0, "size": 8, "type": "u64"}, {"offset": 8, "size": 4, "type": "u32"}]
KERNEL = forge.kernel(5, 2, NAME, 1) | {"params": PARAMS}
LAUNCH = [MODULE, FUNCTION, MAP, KERNEL, forge.probed(1, 5, 2, 2, 64) | {"params": struct.pack("<QI", 0xABC, 7)}]


def asked(folder, **more):
    words = {"kernels": "", "filter": "", "hook": "block_sched.py", "hook_path": "", "python": sys.executable}
    places = {"parent": str(folder / "trace"), "kept": str(folder / "kept")}
    read = {"sizes": {"block_sched": 16}, "probe": str(TOOLS / "block_sched.toml")}
    return words | places | read | {"benchmark": False, "second": False} | more


def write(folder, *segments, **more):
    """Return the exit status and the folders."""
    (folder / "trace").mkdir(exist_ok=True)
    status = Writer(asked(folder, **more)).run([record for segment in segments for record in segment])
    return status, sorted((folder / "trace").iterdir())


def lines(folder, *segments, **more):
    _, (found,) = write(folder, *segments, **more)
    return (found / "event.log").read_text().splitlines()


def sync(number):
    return records.make("sync", id=number)


@pytest.mark.parametrize("mode", [0o755, 0o777])
def test_the_kept_code_is_removed_unless_others_can_rename(tmp_path, mode):
    """If other users can rename files there, nothing is removed: the name may mean another folder by then."""
    (kept := tmp_path / "temporary" / "kept").mkdir(parents=True, mode=0o700)
    (kept / "file").touch()
    kept.parent.chmod(mode)
    write(tmp_path, forge.trace(*LAUNCH), kept=str(kept))
    assert kept.exists() == (mode == 0o777)


def test_the_folder_of_a_process(tmp_path, capfd):
    more = records.make("times", launch=1, prologue=2_000_000, epilogue=500_000)
    gpu = forge.gpu_times([(1001, 4_000_000, 9, 2)])
    status, (folder,) = write(tmp_path, forge.trace(*LAUNCH, forge.buffer(1, DATA), more, gpu))
    assert re.fullmatch(r"(Sep0[89])_\d{6}_10", folder.name)  # the epoch of the forged trace, in any time zone
    assert status == 1  # no stage kept the kernel's code
    assert capfd.readouterr().err.splitlines() == [
        f"gpt-neutrino: error: {folder}: code of kernels could not be kept; not complete",
        f"[info] trace in {folder}",
    ]
    assert sorted(path.name for path in folder.iterdir()) == ["event.log", "kernel", "probe.toml", "result"]
    assert (folder / "probe.toml").read_bytes() == (TOOLS / "block_sched.toml").read_bytes()
    assert [path.name for path in (folder / "kernel").iterdir()] == [FOLDER]
    assert (folder / "kernel" / FOLDER / "kernel.info").read_text() == f"{NAME}\n2\n1\n1,16\nblock_sched.py\n"
    (result,) = (folder / "result").iterdir()
    assert result.name == "0.000001.bin"
    assert result.read_bytes() == struct.pack("<8I2Q", 2, 1, 1, 64, 1, 1, 0, 1, 16, 48) + b"".join(
        struct.pack("<QII", 10 * unit, 5, unit) for unit in range(4)
    )
    assert (folder / "event.log").read_text().splitlines() == [
        "[pid] 10",
        "[cmd] 4 app",
        "[info] init success",
        "[mod] cuModuleLoadData 0 mod 0x3 code 0x40",
        f"[mod] cuModuleGetFunction func 0x2 mod 0x3 name {NAME}",
        "[exec] funcmap-not-find 0x2",
        "[bin] type fatbin size 4096",
        f"[jit] find 0x2 name {NAME} bin 0x3 size 4096",
        f"[jit] rename {NAME} {FOLDER}",
        f"[exec] subproc gpt-extract --ptx | gpt-ptx-probe | gpt-asm {FOLDER} {NAME}",
        "[exec] funcmap-find 0x2 success",
        "[exec] 1000000000000001001 param 0xabc 0x7",
        "[exec] grid 2 1 1 block 64 1 1 shared 0",
        "[exec] grid 2 warp 2 probe 16 total 64",
        "[exec] probe-mem 96 (bytes)",
        "[exec] succeed 0",
        f"[exec] save {result} size 112",
        "[exec] prologue 2.000000 kernel 4.000000 epilogue 0.500000 ratio 1.625000",
    ]


def test_symlink_replacing_the_folder_is_not_followed(tmp_path):
    """In a group's folder, others can rename it and put a link there."""
    for name in ("trace", "other"):
        (tmp_path / name).mkdir()

    def exchanging():
        yield from forge.trace(*LAUNCH, end=False)
        (folder,) = (tmp_path / "trace").iterdir()
        folder.rename(tmp_path / "moved")
        folder.symlink_to(tmp_path / "other")
        tensor = records.make("tensor", id=1, at=2000, thread=1, name="q", address=4096, bytes=64, dtype="float16",
                              shape=[4, 8], function="forward", file="a.py", line=7)  # fmt: skip
        yield from [tensor, forge.buffer(1, DATA), *forge.trace()[-1:]]

    Writer(asked(tmp_path)).run(exchanging())
    assert not list((tmp_path / "other").iterdir())
    names = {"event.log", "kernel", "probe.toml", "result", "tensor.trace"}
    assert {path.name for path in (tmp_path / "moved").iterdir()} == names
    assert list((tmp_path / "moved" / "result").iterdir()) and list((tmp_path / "moved" / "kernel").iterdir())


def test_calls_of_a_process_in_order_of_time(tmp_path):
    """A failed load has a line, too. A function that the program looked up by name appears with the driver's symbol."""
    apis = [
        forge.api(1, "cuInit"), forge.api(2, "cuMemAlloc"), forge.api(3, "cuMemcpyHtoD", "cuMemcpyHtoD_v2"),
        records.make("api", id=4, symbol="cuMemFree_v2", name="cuMemFree", type="memory", op="free"),
        records.make("api", id=5, symbol="cuLibraryLoadData", name="cuLibraryLoadData", type="module", op="load"),
        forge.api(6, "cuMemsetD8", "cuMemsetD8_v2"), forge.api(7, "cuLaunchKernel"),
    ]  # fmt: skip
    memory = [
        (50, 1, 4, 0, 0x1000, 0, 0, 0), (20, 1, 2, 0, 0x1000, 0, 64, 0), (30, 1, 3, 0, 0x1000, 0x99, 64, 0),
        (40, 1, 2, 2, 0, 0, 1 << 40, 0), (45, 1, 6, 0, 0x1000, 0, 64, 0),
    ]  # fmt: skip
    segment = forge.trace(
        *apis,
        MODULE,
        FUNCTION,
        forge.calls(memory, forge.MEMORY),
        forge.calls([(10, 1, 1, 0)]),
        forge.calls([(60, 1, 5, 200, 0, 0)], forge.OBJECT),
        forge.calls([forge.launch(55, 1, 7, 2)], forge.LAUNCH),
    )
    assert lines(tmp_path, segment)[2:] == [
        "[info] init success",
        "[mod] cuLibraryLoadData 0 lib 0x3 code 0x40",
        f"[mod] cuModuleGetFunction func 0x2 mod 0x3 name {NAME}",
        "[mem] cuMemAlloc_v2 0 dptr 0x1000 bytesize 64",
        "[mem] cuMemcpyHtoD_v2 0 dst 0x1000 src 0x99 bytesize 64",
        f"[mem] cuMemAlloc_v2 2 dptr 0x0 bytesize {1 << 40}",
        "[mem] cuMemsetD8_v2 0 dptr 0x1000 bytesize 64",
        "[mem] cuMemFree_v2 0 dptr 0x1000",
        "[mod] cuLibraryLoadData 200",
    ]


def test_driver_is_announced_once_before_its_loads(tmp_path):
    """Rows of calls are written later, and some programs call cuInit more than once."""
    rows = [forge.calls([(start, 1, 1, 0)]) for start in (10, 70)]
    segment = forge.trace(forge.api(1, "cuInit"), MODULE, sync(1), rows[0], sync(2), rows[1])
    said = lines(tmp_path, segment)[2:]
    assert said == ["[info] init success", "[mod] cuModuleLoadData 0 mod 0x3 code 0x40"]


def test_benchmark(tmp_path):
    """In a benchmark a launch has no buffers."""
    times = records.make("times", launch=1, prologue=1_000_000, epilogue=0, kernel=6_000_000, original=4_000_000)
    found = lines(tmp_path, forge.trace(*LAUNCH, sync(1), times), benchmark=True)
    assert found[-5:] == [
        "[exec] funcmap-find 0x2 success",
        "[exec] 1000000000000001001 param 0xabc 0x7",
        "[exec] grid 2 1 1 block 64 1 1 shared 0",
        "[exec] probe-mem 96 (bytes)",
        "[benchmark] prologue 1.000000 kernel 6.000000 epilogue 0.000000 original 4.000000 impact 1.500000 0",
    ]


def test_memusage(tmp_path):
    needs = records.make("memusage", function=2, launches=3, bytes=300, most=120)
    found = lines(tmp_path, forge.trace(needs, MODULE, FUNCTION))
    assert found[-1] == "[exec] probe-mem 120 (bytes)"  # read as the notebooks do
    assert max(int(line.split(" ")[2]) for line in found if line.startswith("[exec] probe-mem")) == 120


def test_kernel_not_probed(tmp_path, capfd):
    reason = records.make("unprobed", function=2, launches=4, reason="the pipeline failed")
    status, (folder,) = write(tmp_path, forge.trace(MODULE, FUNCTION, reason), kernels="a:b", filter="copy")
    said = "gpt-neutrino: warning: -k a:b matches no kernel; the program looked up: _Z1kv\n"
    assert (status, capfd.readouterr().err) == (0, f"{said}[info] trace in {folder}\n")
    kernel = folder / "kernel" / FOLDER
    assert [path.name for path in kernel.iterdir()] == ["process.log"]
    assert (kernel / "process.log").read_text().splitlines() == [
        "['copy'] ['a', 'b']",
        "[decompile] via gpt-extract --ptx",
        NAME,
        "[code] fatbin /lib/libx.so+0x40: not taken apart",
        "[unprobed] the pipeline failed",
    ]
    assert (folder / "event.log").read_text().splitlines()[-1] == f"[exec] backup 4 the pipeline failed {NAME}"


def test_lost_records_are_reported(tmp_path):
    """The process was killed, or a kernel faulted."""
    both = [MAP, forge.probe_map("other", 2, n="u64"), forge.kernel(5, 2, NAME, 1, 2), FUNCTION]
    lost = records.make("buffer", launch=2, map=2, size=64, lost="the context is gone")
    launches = [forge.probed(1, 5, 2, 2, 64), forge.probed(2, 5, 2, 2, 64), forge.buffer(2, DATA), lost]
    found = lines(tmp_path, forge.trace(*both, *launches, end=False))
    assert "[exec] lost: what its probes saved was not read" in found
    assert "[exec] lost other: the context is gone" in found
    assert sum(line.startswith("[exec] save") for line in found) == 1


def test_log_overflow(tmp_path):
    log = forge.probe_map("block_sched", type_="log", level="thread", capacity=2, n="u64")
    data = struct.pack("<Q", 5) + struct.pack("<QQ", 0, 8) + struct.pack("<QQ", 0, 9)
    found = lines(tmp_path, forge.trace(log, KERNEL, FUNCTION, LAUNCH[-1], forge.buffer(1, data)))
    assert "[exec] dropped block_sched: 3 records that did not fit" in found
    assert "[count] size: 2" in found


def test_launches_at_one_moment_have_names_of_their_own(tmp_path):
    launches = [forge.probed(number, 5, 2, 2, 64) | {"start": 5000} for number in (1, 2, 3)]
    _, (folder,) = write(
        tmp_path, forge.trace(*LAUNCH[:-1], *launches, *(forge.buffer(number, DATA) for number in (1, 2, 3)))
    )
    assert sorted(path.name for path in (folder / "result").iterdir()) == [
        "0.000005.bin", "0.000006.bin", "0.000007.bin",
    ]  # fmt: skip


def test_a_folder_and_a_line_for_each_process_that_uses_the_driver(tmp_path, capfd):
    """A forked process that doesn't use the driver has no folder; after exec(3) a process keeps its pid."""
    first, second, third, again = (
        forge.trace(MODULE, FUNCTION, pid=10), forge.trace(records.make("child", pid=12, how="fork"), pid=11),
        forge.trace(MODULE, pid=12), forge.trace(MODULE, pid=10),
    )  # fmt: skip
    status, folders = write(tmp_path, first, second, third, again)
    names = [folder.name.split("_", 2)[2] for folder in folders]
    assert (status, sorted(names)) == (0, ["10", "10_2", "12"])
    said = capfd.readouterr().err.splitlines()
    assert [line.rsplit("_", 1)[1] for line in said] == ["10", "12", "2"]
    assert all(os.path.isdir(line.split(" ")[-1]) for line in said)


def test_segments_that_take_turns(tmp_path):
    one, two = forge.trace(*LAUNCH, pid=10), forge.trace(*LAUNCH, pid=11)
    turn = [records.make("resume", back=1)]
    mixed = [*one[:-1], *two[:-1], *turn, forge.buffer(1, DATA), one[-1], records.make("resume", back=0),
             forge.buffer(1, DATA), two[-1]]  # fmt: skip
    _, folders = write(tmp_path, mixed)
    assert len(folders) == 2
    assert all(len(list((folder / "result").iterdir())) == 1 for folder in folders)


def test_hooks_run_on_each_result(tmp_path, capfd):
    """Callbacks' output goes to the command's output. A failure is reported, and has no other effect."""
    hook = tmp_path / "hook.py"
    hook.write_text("import sys, pathlib\nprint(pathlib.Path(sys.argv[1]).stat().st_size)\nsys.exit(3)\n")
    launches = [record for n in (1, 2) for record in (forge.probed(n, 5, 2, 2, 64), forge.buffer(n, DATA))]
    _, (folder,) = write(tmp_path, forge.trace(*LAUNCH[:-1], *launches), hook_path=str(hook))
    out, err = capfd.readouterr()
    assert out == "112\n112\n"
    assert err.splitlines()[0] == f"gpt-neutrino: warning: {hook}: ended with status 3 (failed on 2 launches)"
    log = (folder / "event.log").read_text().splitlines()
    assert sum(line.startswith(f"[analyze] subproc {sys.executable} {hook} ") for line in log) == 2


def test_no_process_used_the_driver(tmp_path, capfd):
    status, folders = write(tmp_path, forge.trace())
    assert (status, folders) == (0, [])
    assert "no process used the CUDA driver" in capfd.readouterr().err


def test_torn_stream(tmp_path, capfd):
    broken = [*forge.trace(*LAUNCH, end=False), records.make("resume", back=7)]
    status, (folder,) = write(tmp_path, broken)
    assert status == 3
    assert capfd.readouterr().err.splitlines()[0] == (
        "gpt-neutrino: error: resume of a segment that is not open; trace folders are not complete"
    )
    assert (folder / "event.log").exists()


LIMITED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.compat.neutrino import test_folder as t
sys.exit(t.write(Path(sys.argv[1]), t.forge.trace(*t.LAUNCH, t.forge.buffer(1, t.DATA)))[0])
"""


@pytest.mark.full
@pytest.mark.parametrize("size", [20, 100, 3000])
def test_a_full_disk(tmp_path, size):
    """Files are either complete or absent. A line says that something is missing, and then comes the line with the
    folder's name.
    """
    done = subprocess.run(
        [sys.executable, "-B", "-c", LIMITED, tmp_path, Path(__file__).parents[3]],
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
    )  # fmt: skip
    (folder,) = (tmp_path / "trace").iterdir()
    first, last = done.stderr.splitlines()
    assert done.returncode == 1
    assert first == f"gpt-neutrino: error: {folder}: File too large; not complete" or size == 3000
    assert last == f"[info] trace in {folder}"
    for path in folder.rglob("*.bin"):
        assert path.stat().st_size == 112
    for path in folder.rglob("kernel.info"):
        assert path.read_text() == f"{NAME}\n2\n1\n1,16\nblock_sched.py\n"


def test_tensors_have_lines(tmp_path):
    tensor = records.make("tensor", id=1, at=2000, thread=1, name="q", address=4096, bytes=64, dtype="float16",
                          shape=[4, 8], function="forward", file="a.py", line=7)  # fmt: skip
    _, (folder,) = write(tmp_path, forge.trace(MODULE, tensor))
    wanted = "[call]  1000000000000002000  torch.Size([4, 8])  64  4096  q  forward  a.py:7\n"
    assert (folder / "tensor.trace").read_text() == wanted


def test_names_with_line_feeds(tmp_path):
    """Each event and each tensor has one line, whatever its name. The command's length is in bytes."""
    function = FUNCTION | {"name": "k\n[exec] probe-mem 9 (bytes)"}
    library = records.make("library", path="/a\nb/libcuda.so.1", type="elf", size=1)
    tensor = records.make("tensor", id=1, at=2000, thread=1, name="q['\n  x']", address=4096, bytes=64,
                          dtype="float16", shape=[4, 8], function="f", file="a\r  b.py", line=7)  # fmt: skip
    head, *rest = forge.trace(library, MODULE, function, tensor)
    _, (folder,) = write(tmp_path, [head | {"argv": ["python", "-c", "é = 1\nprint(é)"]}, *rest])
    found = (folder / "event.log").read_text().splitlines()
    assert len(found) == 6 and all(line.startswith("[") for line in found)
    assert found[1] == f"[cmd] {len('python -c é = 1 print(é) '.encode())} python -c é = 1\\nprint(é)"
    (line,) = (folder / "tensor.trace").read_text().splitlines()
    assert line.split("  ")[5:] == ["q['\\n x']", "f", "a\\r b.py:7"]


def test_python_probe_exists_in_both_forms(tmp_path):
    text = """
from neutrino import probe, Map
import neutrino.language as nl

@Map(level="thread", type="array", size=8, cap=1)
class m:
    n: nl.u64

@probe(pos="kernel", level="thread")
def end():
    m.save(nl.clock())
"""
    (tmp_path / "mine.py").write_text(text)
    _, (folder,) = write(tmp_path, forge.trace(MODULE), probe=str(tmp_path / "mine.py"))
    assert (folder / "probe.py").read_text() == text
    assert "[map.m]" in (folder / "probe.toml").read_text()
