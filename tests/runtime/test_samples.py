"""gpt-hook run --sample-host: what threads did on the host, from outside."""

import ctypes
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.runtime.hooked import PROGRAMS, Trace, compile_c, run

CUDA = """
import ctypes, os, sys, threading, time
cu = ctypes.CDLL("libcuda.so.1")
def begin():
    device, context = ctypes.c_int(), ctypes.c_void_p()
    assert not cu.cuInit(0) and not cu.cuDeviceGet(ctypes.byref(device), 0)
    assert not cu.cuCtxCreate_v2(ctypes.byref(context), 0, device)
"""
NANOSLEEP, FUTEX, PROCESS_VM_READV, PERF_EVENT_OPEN = 230, 202, 310, 298
FALSE = 1 / 500  # share of stacks that never were; a walk over frames that change isn't atomic
SEEN = 0.8  # share of samples that a busy machine may leave


def find_pythons(*versions):
    """Return the interpreters of these versions on this machine, this one first."""
    homes = [Path(sys.base_prefix), *sorted(Path(sys.base_prefix).parent.glob("3.*"))]
    found = {home / "bin" / f"python{version}" for home in homes for version in versions}
    return sorted(one for one in found if one.exists())


def sampled(tmp_path, source, hz=200, options=(), python=sys.executable, **more):
    program = tmp_path / "program.py"
    program.write_text(CUDA + source)
    done = run(tmp_path / "t.mp", python, program, options=("--sample-host", str(hz), *options), **more)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return Trace(tmp_path / "t.mp")


def stacks(trace):
    """Return the Python frames of each sample as (function, line), the innermost first, with the sample."""
    frames = {record["id"]: record["frames"] for record in trace.of("stack")}
    return [
        ([(one["function"], one.get("line")) for one in frames.get(record.get("python"), [])], record)
        for record in trace.of("sample")
    ]


def line_of(text, source):
    """Return the number of the line of a program that contains a text."""
    return next(number for number, line in enumerate((CUDA + source).splitlines(), 1) if text in line)


WAITS = """
class Loader:
    def get(self):
        time.sleep(0.6)  # get
def collate(loader):
    (lambda: loader.get())()  # collate
begin()
collate(Loader())  # main
"""


@pytest.mark.parametrize("python", find_pythons("3.11", "3.12", "3.13", "3.14"), ids=lambda path: path.name)
def test_python_frames_have_the_right_lines(tmp_path, python):
    trace = sampled(tmp_path, WAITS, python=python)
    get, collate, main = (line_of(f"# {name}", WAITS) for name in ("get", "collate", "main"))
    wanted = [("Loader.get", get), ("collate.<locals>.<lambda>", collate), ("collate", collate), ("<module>", main)]
    found = [record for frames, record in stacks(trace) if frames == wanted]
    assert len(found) >= SEEN * len(trace.of("sample")) > 20
    assert Counter(record.get("syscall") for record in found).most_common(1)[0][0] == NANOSLEEP
    files = {frame["path"] for record in trace.of("stack") for frame in record["frames"] if "function" in frame}
    assert str(tmp_path / "program.py") in files
    times = [record["at"] for record in trace.of("sample")]
    assert times == sorted(times)


def test_a_running_thread_has_no_impossible_stack(tmp_path):
    """Functions are called and return all the time. Each recorded stack must be possible in this program."""
    source = """
def f(n): return g(n) + h(n)
def g(n): return h(n + 1)
def h(n): return n
begin()
end = time.monotonic() + 1.5
while time.monotonic() < end:
    f(1)
"""
    trace = sampled(tmp_path, source, hz=1000)
    chains = {("<module>",), ("f", "<module>"), ("g", "f", "<module>"), ("h", "f", "<module>"),
              ("h", "g", "f", "<module>")}  # fmt: skip
    found = Counter(tuple(function for function, _ in frames) for frames, _ in stacks(trace))
    own = {chain for chain in found if {"f", "g", "h"} & {*chain} or chain[-1:] == ("<module>",)}
    own -= {chain for chain in own if "begin" in chain}
    assert sum(found[chain] for chain in own - chains) <= FALSE * found.total(), own - chains
    assert sum(found[chain] for chain in chains) > 100
    lines = {frame for frames, _ in stacks(trace) for frame in frames if frame[0] in "fgh"}
    assert lines <= {(name, line_of(f"def {name}(", source)) for name in "fgh"}


def test_only_threads_that_call_the_driver_are_sampled(tmp_path):
    source = """
def idle(): time.sleep(0.5)
def work():
    cu.cuDriverGetVersion(ctypes.byref(ctypes.c_int()))
    cu.cuMemAlloc_v2(ctypes.byref(ctypes.c_void_p()), 16)
    time.sleep(0.5)
begin()
threads = [threading.Thread(target=one) for one in (idle, work)]
[one.start() for one in threads]
[one.join() for one in threads]
"""
    trace = sampled(tmp_path, source)
    inner = Counter(frames[0][0] for frames, _ in stacks(trace) if frames)
    assert inner["work"] > 20
    assert inner["idle"] == 0
    assert len({record["thread"] for record in trace.of("sample")}) == 2


def test_a_forked_child_is_sampled_in_its_own_trace(tmp_path):
    source = """
def child(): time.sleep(0.5)
def parent(): time.sleep(0.5)
if not (pid := os.fork()):
    begin()
    child()
    os._exit(0)
begin()
parent()
os.waitpid(pid, 0)
"""
    sampled(tmp_path, source, options=("--calls", "all"))
    traces = [Trace(path) for path in tmp_path.glob("t.mp*")]
    inner = [Counter(frames[0][0] for frames, _ in stacks(trace) if frames) for trace in traces]
    assert sorted((one["parent"] > 20, one["child"] > 20) for one in inner) == [(False, True), (True, False)]


def test_without_the_calls_that_a_filter_forbids(tmp_path):
    """A seccomp filter forbids process_vm_readv and perf_event_open, so frames are read through a pipe."""
    source = f"""
libc = ctypes.CDLL(None, use_errno=True)
def refuse(*numbers):
    rows = [(0x20, 0, 0, 0)]  # load the number
    for at, number in enumerate(numbers):
        rows.append((0x15, len(numbers) - at, 0, number))  # if equal, go to the last row
    rows += [(6, 0, 0, 0x7fff0000), (6, 0, 0, 0x50001)]  # allow; EPERM
    data = b"".join(__import__("struct").pack("HBBI", *row) for row in rows)
    class Program(ctypes.Structure):
        _fields_ = [("size", ctypes.c_ushort), ("rows", ctypes.c_char_p)]
    program = Program(len(rows), data)
    assert not libc.prctl(38, 1, 0, 0, 0) and not libc.prctl(22, 2, ctypes.byref(program), 0, 0)
refuse({PROCESS_VM_READV}, {PERF_EVENT_OPEN})
begin()
def wait(): time.sleep(0.6)
wait()
"""
    trace = sampled(tmp_path, source)
    inner = Counter(frames[0][0] for frames, _ in stacks(trace) if frames)
    assert inner["wait"] > 20
    assert [record["text"] for record in trace.of("diag")] == [
        "the system forbids perf events: where native code runs isn't known"
    ]


def test_old_python_is_reported(tmp_path):
    old = find_pythons("3.8", "3.9", "3.10")
    if not old:
        pytest.skip("no Python before 3.11 here")
    trace = sampled(tmp_path, "begin()\ntime.sleep(0.3)\n", python=old[-1])
    assert [record["text"] for record in trace.of("diag")] == ["Python before 3.11: its frames aren't read"]
    assert trace.of("sample")
    assert not any("python" in record for record in trace.of("sample"))


@pytest.mark.parametrize("version", ["030d00f0", "030e02f0"])
def test_offsets_that_python_publishes(tmp_path, version):
    """A program with made-up structures stands for versions of Python that aren't installed here."""
    program = compile_c(tmp_path / "python", PROGRAMS / "a_python_that_publishes_offsets.c", "-rdynamic")
    done = run(tmp_path / "t.mp", program, version, options=("--sample-host", "100"))
    assert (done.returncode, done.stderr) == (0, "")
    (frames,) = (one["frames"] for one in Trace(tmp_path / "t.mp").of("stack") if "function" in one["frames"][0])
    assert frames == [{"path": "abc.py", "offset": 0, "function": "run", "line": 13}]


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (("030e02f0", "1"), "a free-threaded Python: its frames aren't read"),
        (("030f00a1",), "Python later than 3.14: its frames aren't read"),
    ],
)
def test_offsets_that_it_does_not_know(tmp_path, args, text):
    program = compile_c(tmp_path / "python", PROGRAMS / "a_python_that_publishes_offsets.c", "-rdynamic")
    run(tmp_path / "t.mp", program, *args, options=("--sample-host", "100"))
    trace = Trace(tmp_path / "t.mp")
    assert [record["text"] for record in trace.of("diag")] == [text]
    assert not any("python" in record for record in trace.of("sample"))


NATIVE = r"""
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
volatile long sum;
__attribute__((noinline)) void crunch(double seconds) {
    for (double end = now() + seconds; now() < end;)
        for (int i = 0; i < 1000000; i++) sum += i;
}
int main(void) {
    struct epoll_event event;
    int epoll = epoll_create1(0), interrupted = 0;
    begin();
    for (int i = 0; i < 5; i++) {
        interrupted += poll(NULL, 0, 50) < 0;
        interrupted += epoll_wait(epoll, &event, 1, 50) < 0;
        interrupted += usleep(50000) < 0;
    }
    crunch(0.5);
    printf("%d interrupted\n", interrupted);
    return interrupted;
}
"""


@pytest.mark.full
def test_a_native_program_is_not_interrupted(tmp_path):
    """The program is sampled a thousand times a second, but none of its calls ends early. Samples say what it did."""
    program = compile_c(tmp_path / "native", NATIVE)
    done = run(tmp_path / "t.mp", program, options=("--sample-host", "1000"))
    assert (done.returncode, done.stdout) == (0, "0 interrupted\n"), done.stderr
    trace = Trace(tmp_path / "t.mp")
    waits = Counter(record.get("syscall") for record in trace.of("sample"))
    assert min(waits[number] for number in (7, 232, NANOSLEEP)) > 20  # poll, epoll_wait, clock_nanosleep
    assert waits[None] > 20
    assert not any("python" in record for record in trace.of("sample"))


def has_perf_events():
    """Return whether a process may open a perf event of itself."""
    libc = ctypes.CDLL(None)
    attributes = (ctypes.c_uint32 * 32)(1, 128, 1)  # software, size, task clock
    ctypes.cast(attributes, ctypes.POINTER(ctypes.c_uint64))[5] = 1 << 5 | 1 << 6  # not the kernel, no hypervisor
    file = libc.syscall(PERF_EVENT_OPEN, attributes, 0, -1, -1, 0)
    return file >= 0 and not os.close(file)


def test_where_native_code_runs(tmp_path):
    if not has_perf_events():
        pytest.skip("the system forbids perf events")
    from gpt.analyze.lib.host_samples import name_frame
    from gpt.trace import open as open_trace

    program = compile_c(tmp_path / "native", NATIVE)
    run(tmp_path / "t.mp", program, options=("--sample-host", "200"))
    trace = open_trace(tmp_path / "t.mp")
    (process,) = trace.processes
    rows = process.samples.table(lambda stamps: trace.times(process, stamps))
    places = Counter(name_frame(process.sites.frames(n)[0]) for n in rows["native"].tolist() if n)
    assert places["native crunch"] > 10


def test_nothing_is_sampled_while_recording_is_off(tmp_path):
    trace = sampled(tmp_path, "begin()\ntime.sleep(0.3)\n", options=("--disabled",))
    assert not trace.of("sample")


@pytest.mark.parametrize("value", ["0", "1001", "-5", "5x", "", "1e2"])
def test_wrong_rates(tmp_path, value):
    done = run(tmp_path / "t.mp", "true", options=("--sample-host", value))
    assert done.returncode == 2
    assert done.stderr == f"gpt-hook: error: --sample-host: '{value}' isn't a number from 1 to 1000\n"
