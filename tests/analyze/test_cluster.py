"""--engine dask gives the same answer as one process, and refuses analyses that can't be merged."""

import io
import os
import pickle
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

from gpt.analyze.lib import cluster as engine
from gpt.analyze.lib.cluster import _wait
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.map_analysis import MapAnalysis
from gpt.base.errors import GptError, UsageError
from gpt.stages.analyze import ANALYSES, _load
from gpt.stream import records, wire
from gpt.trace.process import iter_processes
from gpt.trace.select import Selection
from tests import loaded
from tests.trace import forge

MERGED = [name for name in ANALYSES if _load(name).merges]
MAPS = {name: _load(name).make for name in MERGED if hasattr(_load(name).make, "fields")}
KERNELS = ("_Z4gemmi", "_Z4copyi")
BLOCKS, THREADS = 3, 64


def saved(number, made, random):
    """Make a map that an analysis accepts, and a launch's data for it."""
    types = dict.fromkeys((*made.fields, *made.optional), "u64") | dict.fromkeys(made.floats, "f32")
    units, capacity = (BLOCKS * THREADS, 50) if made.log else (BLOCKS * THREADS // 32, 1)
    level = "thread" if made.log else "warp"
    map_ = forge.probe_map(made.name, number, "log" if made.log else "total", level, capacity, **types)
    formats = {"u64": "<u8", "f32": "<f4"}
    slot = [(name, formats[type_]) for name, type_ in types.items()]
    size = np.dtype(slot).itemsize
    slot += [("pad", "V", map_["stride"] - size)] if map_["stride"] > size else []
    rows = np.zeros(50 if made.log else units, [("count", "<u8"), *slot])
    rows["count"] = random.integers(0, units, len(rows)) if made.log else 1
    for name, _ in [one for one in slot if one[0] != "pad"]:
        rows[name] = random.integers(1, 1000, len(rows))
    if "end" in types:
        rows["end"] += rows["start"]
    if "least" in types:
        rows["greatest"] += rows["least"]
        rows["greatest"][0] = np.inf if random.integers(2) else 5
    return map_, (np.array([len(rows)], "<u8").tobytes() if made.log else b"") + rows.tobytes()


def rank(number, seed, launches=3, extra=(), **header):
    """Return the trace of a rank: calls, GPU times, and launches of two kernels with all probes."""
    random = np.random.default_rng(seed)
    found = [forge.api(1, "cuLaunchKernel"), forge.api(2, "cuMemAlloc"), forge.api(3, "cuMemcpyHtoD")]
    found += [records.make("function", id=at, name=name) for at, name in enumerate(KERNELS, 1)]
    found += [records.make("device", index=0, name="NVIDIA H200", arch="sm_90", uuid=f"GPU-{number}", runs="sass",
                           sms=132, warps=64, blocks=32, clock_hz=1_980_000_000)]  # fmt: skip
    maps = [saved(at, made, random)[0] for at, made in enumerate(MAPS.values(), 1)]
    found += [*maps, *(forge.kernel(at, at, name, *range(1, len(maps) + 1)) for at, name in enumerate(KERNELS, 1))]
    calls, gpu = [], []
    for launch in range(1, launches + 1):
        kernel = 1 + launch % 2
        found.append(forge.probed(launch, kernel, kernel, BLOCKS, THREADS))
        found += [forge.buffer(launch, saved(at, made, random)[1], at) for at, made in enumerate(MAPS.values(), 1)]
        times = {name: int(random.integers(100, 10_000)) for name in ("prologue", "epilogue", "kernel", "original")}
        found.append(records.make("times", launch=launch, **times))
        calls.append(forge.launch(1000 + launch, 5 + launch, 1, kernel, 7))
        gpu.append((2000 + 1000 * launch, 700 + seed, 1, kernel))
    found += [forge.calls(calls, forge.LAUNCH), forge.gpu_times(gpu)]
    sizes = [(3000, 10, 2, 0, 4096 * number, 0, 100, 7), (4000, 10 + seed, 3, 0, 64, 128, 1000 + seed, 7)]
    found.append(forge.calls(sizes, forge.MEMORY))
    found += [records.make("stack", id=1, frames=[{"path": "/app", "offset": 64 * number}])]
    found += [records.make("sample", thread=1, at=1500 + at, native=1) for at in range(seed)]
    found += [records.make("memusage", function=1, launches=2, bytes=100 * number, most=60 + seed)]
    found += [records.make("unprobed", function=2, launches=number, reason="no PTX comes with it"), *extra]
    return forge.trace(*found, pid=100 + number, rank=number, **header)


def sender(number):
    """Return the trace of a rank with ranges, a graph, collectives and memory. Each rank has its own host and clock."""
    zero, us, random = 10**9 * (3 - number), 1000, np.random.default_rng(number)
    names = "cuLaunchKernel", "cuGraphLaunch", "cuMemAlloc", "cuMemFree", "cuStreamSynchronize", "cuMemcpyHtoD"
    found = [forge.api(at, name) for at, name in enumerate(names, 1)]
    kernels = ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "gemm")
    found += [records.make("function", id=at, name=name) for at, name in enumerate(kernels, 1)]
    found.append(records.make("device", index=0, name="H200", arch="sm_90", uuid=f"GPU-{number}", runs="sass"))
    found.append(records.make("graph", exec=0x70, at=zero, nodes=3, functions=[2], launches=[2 + number]))
    launches, graphs, waits, gpu = [], [], [], []
    for step in range(6):
        at = zero + 1000 * us * (step + 1)
        late = int(random.integers(0, 50 * us))
        launches += [forge.launch(at + late, 5 * us, 1, kernel, 7) for kernel in (1, 2)]
        graphs.append((at + 100 * us, 9 * us, 2, 0, 0x70, 7))
        waits.append((at + 200 * us, 90 * us, 5, 0, 0x7, 7))
        gpu.append((at + 10 * us + late, 60 * us - late, at + late, 7, 1, 1, 1, 0))
        gpu.append((at + 110 * us, 80 * us, at + 100 * us, 7, 2, 0, 1, 0))
        found += [records.make("range", id=step, type="push", thread=1, name=f"decode {step}", start=at - us),
                  records.make("range_end", id=step, thread=1, end=at + 400 * us)]  # fmt: skip
    sizes = [(zero + us, us, 3, 0, 4096 * number, 0, 1000 * number, 7), (zero + 9 * us, us, 6, 0, 1, 2, 99, 7),
             (zero + 8000 * us, us, 4, 0, 0, 4096, 0, 7)]  # fmt: skip
    found += [forge.calls(launches, forge.LAUNCH), forge.calls(graphs, forge.OBJECT)]
    found += [forge.calls(waits, forge.OBJECT), forge.calls(sizes, forge.MEMORY)]
    found.append(records.make("gpu_times", **forge.rows(gpu, forge.GPU_TIMES)))
    header = {"host": f"h{number}", "boot_id": f"b{number}", "monotonic": zero, "realtime": 10**18 + number * us}
    return forge.trace(*found, pid=100, rank=number, **header)


SCHEDULER = """
import asyncio, distributed
async def main():
    async with distributed.Scheduler(port=0, dashboard_address=None) as one:
        print(one.address, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""
SEGMENTS = [rank(number, number) for number in range(1, 4)]
SENDERS = [sender(number) for number in (2, 1, 3)]


def segments_for(name):
    return SENDERS if _load(name).sends else SEGMENTS


def run(*args):
    """Run it as a user would: Dask has its own threads and processes."""
    command = ["gpt-analyze", *map(str, args)]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False)


def fold(name, *segments):
    made = _load(name).make()
    data = forge.pack(*segments)
    for process in iter_processes(wire.read_records(io.BytesIO(data), "in"), made.kinds, None, Selection()):
        made.take(process)
        made.end(process)
    return made


@pytest.mark.parametrize("name", MERGED)
def test_merged_parts_give_the_answers_of_the_whole(name):
    segments = segments_for(name)
    whole = list(fold(name, *segments).answer([]))
    parts = [pickle.loads(pickle.dumps(fold(name, segment))) for segment in segments]
    merged = parts[0]
    for part in parts[1:]:
        merged.merge(part)
    assert whole and list(merged.answer([])) == whole
    assert merged.find_lack(set()) == fold(name, *segments).find_lack(set())
    empty = _load(name).make()
    empty.merge(merged)
    assert list(empty.answer([])) == whole


def test_an_analysis_without_an_answer_prints_nothing(tmp_path):
    """Records of the trace are passed on; other tools print tables of them."""
    (tmp_path / "a.mp").write_bytes(forge.pack(SEGMENTS[0]))
    done = run("gmem_bytes", tmp_path / "a.mp", "--kernel", "none")
    assert (done.returncode, done.stdout) == (1, b"") and b"leaves out everything" in done.stderr


def test_analyses_that_run_on_a_cluster_are_found():
    assert all(isinstance(_load(name), Analysis) for name in MERGED)
    assert len(MAPS) >= 8 and all(issubclass(made, MapAnalysis) for made in MAPS.values())


@pytest.mark.parametrize(
    ("name", "args", "status", "said"),
    [
        ("ioctl", ["--engine", "dask", "x"], 2, "takes all of the traces at once"),
        ("summary", ["--engine", "dask"], 2, "name them"),
        ("summary", ["--engine", "dask", "-"], 2, "name them"),
        ("summary", ["--engine", "dask", "--json", "x"], 2, "not with --json"),
        ("summary", ["--scheduler", "tcp://127.0.0.1:9", "x"], 2, "--engine dask"),
        ("summary", ["--engine", "dask", "--scheduler", "nonsense://x", "x"], 4, "no Dask scheduler"),
    ],
)
@pytest.mark.full
def test_refused(name, args, status, said):
    done = run(name, *args)
    assert (done.returncode, done.stderr.count(b"\n")) == (status, 1), done.stderr
    assert said in done.stderr.decode()


@pytest.fixture(scope="module")
def cluster():
    """Return a cluster of two processes that this process started, and its address."""
    import distributed

    before = dict(os.environ)
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as made:
        for name in os.environ.keys() - before:  # with a PYTHONHASHSEED, no run can be forked (tests/loaded.py)
            del os.environ[name]
        yield made.scheduler_address


def both(name, cluster, *args):
    """Return an analysis's answers without and with a cluster."""
    more = ([], ["--engine", "dask", "--scheduler", cluster])
    plain, done = (loaded.run(["gpt-analyze", name, *args, *options], timeout=120) for options in more)
    return [(one.returncode, one.stdout.decode(), one.stderr.decode()) for one in (plain, done)]


@pytest.mark.full
@pytest.mark.parametrize("name", MERGED)
def test_cluster_gives_the_same_answer(name, cluster, tmp_path):
    paths = [tmp_path / f"{at}.mp" for at in range(3)]
    for path, segment in zip(paths, segments_for(name), strict=True):
        path.write_bytes(forge.pack(segment))
    for args in ([], ["--time", "0,1", "--format", "csv"]):
        plain, done = both(name, cluster, *paths, *args)
        assert done == plain and plain[1]
        assert plain[0] == (name == "launches")  # launches needs GPU times that name their calls


@pytest.mark.full
def test_partial_files_children_and_copies(cluster, tmp_path):
    """Read a trace that names other traces (one of which is missing), a copy of it, a truncated trace, and a missing
    file.
    """
    children = [records.make("child", pid=7, how="fork", path="child.mp"),
                records.make("child", pid=8, how="fork", path="absent.mp")]  # fmt: skip
    named = {"a.mp": rank(1, 1, extra=children), "child.mp": rank(2, 2), "b.mp": rank(3, 3), "copy.mp": rank(1, 1)}
    for name, segment in named.items():
        (tmp_path / name).write_bytes(forge.pack(segment))
    (tmp_path / "cut.mp").write_bytes(forge.pack(rank(4, 4))[:-100])
    paths = [tmp_path / name for name in ("a.mp", "cut.mp", "b.mp", "copy.mp", "none.mp", "a.mp")]
    for name in ("summary", "gmem_bytes"):
        plain, done = both(name, cluster, *paths)
        assert done == plain and plain[0] == 4
        assert "counted once" in plain[2] and "absent" in plain[2] and "incomplete" in plain[1]
    plain, done = both("gmem_bytes", cluster, *paths, "--kernel", "none")
    assert done == plain
    plain, done = both("summary", cluster, tmp_path / "none.mp")
    assert done == plain and plain[0] == 4


@pytest.mark.full
def test_a_cluster_of_this_machine_is_made(tmp_path):
    (tmp_path / "a.mp").write_bytes(forge.pack(SEGMENTS[0]))
    plain, done = run("summary", tmp_path / "a.mp"), run("summary", tmp_path / "a.mp", "--engine", "dask")
    assert (done.returncode, done.stdout, done.stderr) == (0, plain.stdout, b"")


@pytest.mark.full
def test_modules_in_dasks_temporary_folder_are_not_imported(tmp_path, monkeypatch):
    """Another user may have made that folder in /tmp. Workers would take their first import, of gpt, from there."""
    planted = tmp_path / "dask-scratch-space" / "gpt" / "__init__.py"
    planted.parent.mkdir(parents=True)
    planted.write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    (tmp_path / "a.mp").write_bytes(forge.pack(rank(0, 0)))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = run("summary", tmp_path / "a.mp", "--engine", "dask")
    assert (done.returncode, done.stderr) == (0, b"")
    assert {path.name for path in tmp_path.iterdir()} == {"dask-scratch-space", "a.mp"}


def test_settings_that_another_user_can_change_are_refused(tmp_path, monkeypatch):
    """Dask runs modules that its settings name. Root may have the user's HOME."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(0o777)
    engine._check_settings()  # no settings exist yet
    (tmp_path / "home" / ".config" / "dask").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"^\S+/home: another user can change Dask's settings in \S+/dask:"):
        engine._check_settings()
    (tmp_path / "home").chmod(0o755)
    engine._check_settings()
    if os.geteuid() == 0:
        os.chown(tmp_path / "home" / ".config" / "dask", 1, 1)
        with pytest.raises(UsageError, match=r"^\S+/dask: another user"):
            engine._check_settings()


@pytest.mark.full
def test_a_scheduler_without_workers_is_an_error(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", SCHEDULER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as scheduler:
        address = scheduler.stdout.readline().decode().strip()
        done = run("summary", tmp_path / "a.mp", "--engine", "dask", "--scheduler", address)
        scheduler.kill()
    assert (done.returncode, done.stderr.decode()) == (
        4, f"gpt-analyze: error: {address}: the scheduler has no workers\n",
    )  # fmt: skip


@pytest.mark.full
def test_other_services_are_not_accepted_as_a_scheduler(tmp_path):
    """If the user gives the dashboard's address, Dask reads the first bytes of the HTTP response as a length, which
    is exabytes.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            with server.accept()[0] as one:
                one.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                one.recv(1)

        threading.Thread(target=answer, daemon=True).start()
        address = "tcp://{}:{}".format(*server.getsockname())
        done = run("summary", tmp_path / "a.mp", "--engine", "dask", "--scheduler", address)
    assert done.returncode == 4 and done.stderr.count(b"\n") == 1
    assert done.stderr.startswith(f"gpt-analyze: error: {address}: no Dask scheduler: ".encode())


@pytest.mark.full
@pytest.mark.parametrize("text", ["raise ImportError('broken')", "__version__ = '0.0.1'"])
def test_workers_with_another_gpt_are_an_error(text, tmp_path):
    (tmp_path / "gpt").mkdir()
    (tmp_path / "gpt" / "__init__.py").write_text(text)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", SCHEDULER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as scheduler:
        address = scheduler.stdout.readline().decode().strip()
        with subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-dashboard", "--no-nanny"],
            env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as worker:  # fmt: skip
            done = run("summary", tmp_path / "a.mp", "--engine", "dask", "--scheduler", address)
            worker.kill()
        scheduler.kill()
    assert (done.returncode, done.stderr.count(b"\n")) == (4, 1), done.stderr
    assert done.stderr.startswith(f"gpt-analyze: error: {address}: workers need this version of gpt: ".encode())


@pytest.mark.full
def test_scheduler_exit_is_a_one_line_error():
    import distributed

    class Lost:
        def result(self, timeout):
            raise distributed.client.FutureCancelledError("read_part-1", "scheduler-connection-lost")

        def release(self):
            pass

    with pytest.raises(GptError, match=r"^the scheduler of the cluster is gone$"):
        _wait(distributed, None, Lost())


@pytest.mark.full
def test_cluster_without_workers_gets_a_grace_period():
    import distributed

    class Waiting:
        threads = 0

        def result(self, timeout):
            raise TimeoutError

        def done(self):
            return False

        def release(self):
            pass

        def nthreads(self):
            Waiting.threads += 1
            return {"tcp://a": 1} if Waiting.threads == 2 else {}  # one worker came and went

    with pytest.raises(GptError, match=r"^the cluster's scheduler has no workers left$"):
        _wait(distributed, Waiting(), Waiting())
    assert Waiting.threads == 2 + engine.IDLE
