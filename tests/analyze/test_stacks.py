"""gpt-analyze stacks and idle on hand-made samples of host threads."""

import pytest

from gpt.analyze.lib.host_samples import name_frame
from gpt.stream import records
from gpt.trace.sites import CallFrame
from tests.analyze.asked import ask, run
from tests.analyze.working import US, ZERO, Made
from tests.trace import forge

FUTEX, NANOSLEEP, EPOLL_WAIT = 202, 230, 232
LIBRARY = "/usr/lib/python3.12/threading.py"
LOADER = "/app/data.py"


def python(id_, *frames):
    """Make a stack of (path, line, function), innermost first."""
    told = [{"path": path, "offset": 0, "function": function, "line": line} for path, line, function in frames]
    return records.make("stack", id=id_, frames=told)


def native(id_, path, offset):
    return records.make("stack", id=id_, frames=[{"path": path, "offset": offset}])


def sample(at, thread=1, **keys):
    return records.make("sample", thread=thread, at=ZERO + round(at * US), **keys)


STACKS = [
    python(1, (LOADER, 41, "collate"), ("/app/train.py", 7, "<module>")),
    python(2, (LIBRARY, 355, "Condition.wait"), (LOADER, 50, "Loader.get"), ("/app/train.py", 7, "<module>")),
    native(3, "/nowhere/libparse.so", 64),
]


def waits_for_data(*more):
    """Make a program whose GPU runs for 100 us of each 1000, while the host fetches data in two places."""
    made = Made()
    for number in range(4):
        at = number * 1000
        made.call("cuLaunchKernel", at, 5, at + 5, 100)
        made.found += [sample(at + 2, python=1)]  # inside the call
        made.found += [sample(at + 50, python=1)]  # the GPU still runs
        made.found += [sample(at + 200 + 10 * step, python=1) for step in range(3)]
        made.found += [sample(at + 500, python=2, native=3, syscall=FUTEX)]
    made.found[:0] = STACKS
    made.found += more
    return made.segment()


def test_idle_says_where_the_host_was():
    found = ask("idle", waits_for_data())
    assert [tuple(row.values()) for row in found.rows["places"]] == [
        ("data.py:41 collate", "train.py:7 <module>", 9, 75.0, 0.0),
        ("threading.py:355 Condition.wait", "data.py:50 Loader.get", 3, 25.0, 100.0),
    ]
    told = found.rows["verdict"][0]["told"]
    assert "between calls (at data.py:41 collate, called from train.py:7 <module>, in 75.0 % of 12 samples): " in told
    assert "would say which" not in told


@pytest.mark.parametrize(("waits", "said"), [(3, False), (4, True)])
def test_lock_that_the_host_waits_for_is_reported(waits, said):
    """At least a quarter of 16 samples must wait for it."""
    made = Made().call("cuLaunchKernel", 0, 5, 5, 100).call("cuLaunchKernel", 5000, 5, 5005, 100)
    made.found[:0] = STACKS
    made.found += [sample(1000 + at, python=1, **({"syscall": FUTEX} if at < waits else {})) for at in range(16)]
    told = ask("idle", made.segment()).rows["verdict"][0]["told"]
    assert (", 25.0 % of them waiting for a lock, such as Python's GIL): hold that lock for less time" in told) == said
    assert told.endswith("do that in another thread while the GPU works") != said


def test_samples_of_other_threads_say_nothing_about_idle_times():
    found = ask("idle", waits_for_data(*(sample(300 + at, thread=9, python=2) for at in range(100))))
    assert sum(row["samples"] for row in found.rows["places"]) == 12


def test_states_and_functions():
    found = ask("stacks", waits_for_data())
    assert [tuple(row.values())[:2] for row in found.rows["states"]] == [
        ("running Python", 16), ("in a CUDA call", 4), ("waiting in futex", 4)
    ]  # fmt: skip
    functions = {row["function"]: (row["samples"], row["own"]) for row in found.rows["functions"]}
    assert functions == {
        "<module> (train.py:7)": (24, 0),
        "collate (data.py:41)": (20, 16),
        "cuLaunchKernel": (4, 4),
        "Loader.get (data.py:50)": (4, 0),
        "Condition.wait (threading.py:355)": (4, 4),
    }
    assert found.verdicts["states"] == ["24 samples of 1 thread: 66.7 % running Python"]


def test_collapsed_stacks(tmp_path):
    (tmp_path / "t.mp").write_bytes(forge.pack(waits_for_data(sample(10, thread=2, native=3), sample(20, thread=2))))
    done = run("stacks", tmp_path / "t.mp", "--collapsed", tmp_path / "out.txt", "--plot", tmp_path / "flame.png")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.txt").read_text() == (
        "thread 1;<module> (train.py:7);Loader.get (data.py:50);Condition.wait (threading.py:355) 4\n"
        "thread 1;<module> (train.py:7);collate (data.py:41) 16\n"
        "thread 1;<module> (train.py:7);collate (data.py:41);cuLaunchKernel 4\n"
        "thread 2;(native code) 1\n"
        "thread 2;libparse.so 1\n"
    )
    assert (tmp_path / "flame.png").read_bytes().startswith(b"\x89PNG")


def test_frames_that_changed_are_mentioned():
    found = ask("stacks", waits_for_data(sample(600, python=1, changed=1)))
    assert found.verdicts["states"][1] == "1 sample without the innermost frames, which changed while they were read"


def test_hostile_names_stay_in_their_line(tmp_path):
    evil = python(1, ("/a/x;y.py", 3, "f\n;g 7"), ("/a/\udcff.py", 5, "\x1b[2J\u202e"), (LOADER, 1, "h"))
    segment = forge.trace(evil, sample(1, python=1), pid=4)
    (tmp_path / "t.mp").write_bytes(forge.pack(segment))
    done = run("stacks", tmp_path / "t.mp", "--collapsed", tmp_path / "out.txt", "--plot", tmp_path / "flame.svg")
    assert (done.returncode, done.stderr) == (0, b"")
    told = "h (data.py:1);\\x1b[2J\\u202e (\\udcff.py:5);f ,g 7 (x,y.py:3) 1\n"
    assert (tmp_path / "out.txt").read_text() == told


def test_a_trace_without_samples_says_how_to_take_them():
    done = run("stacks", "--json", data=forge.pack(Made().call("cuLaunchKernel", 0, 5, 5, 100).segment()))
    assert done.returncode == 1
    assert b"'gpt-hook run --sample-host 50' takes 50 a second" in done.stderr


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        (CallFrame("/a/b.py", 0, "f", 3, True), "b.py:3 f"),
        (CallFrame("/a/b.py", 0, "f", None, True), "b.py f"),
        (CallFrame("/a/libx.so", 9, "parse"), "libx.so parse"),
        (CallFrame("/a/libx.so", 9), "libx.so"),
        (CallFrame(None, 9), "?"),
    ],
)
def test_names_of_frames(frame, name):
    assert name_frame(frame) == name


def test_native_code_that_python_called_is_the_innermost_frame():
    """Code of the interpreter and of the system, and code in which a thread waits, gets no frame."""
    made = Made().call("cuMemAlloc", 0, 1)
    files = "/x/libz.so.1", "/x/libpython3.12.so.1.0", "/x/python3.12", "/lib/libc.so.6", "/x/libpythonic.so"
    made.found += [STACKS[0], *(native(10 + at, path, 64) for at, path in enumerate(files))]
    made.found += [sample(10 + at, python=1, native=10 + at) for at in range(len(files))]
    made.found += [sample(30, python=1), sample(31, python=1, native=10, syscall=FUTEX)]
    found = ask("stacks", made.segment())
    assert {row["state"]: row["samples"] for row in found.rows["states"]} == {
        "running native code": 2, "running Python": 4, "waiting in futex": 1,
    }  # fmt: skip
    outer = "<module> (train.py:7);collate (data.py:41)"
    stacks = {row["stack"]: row["samples"] for row in found.rows["stacks"]}
    assert stacks == {f"{outer};libz.so.1": 1, f"{outer};libpythonic.so": 1, outer: 5}


def test_incomplete_samples_are_reported():
    made = Made().call("cuMemAlloc", 0, 1)
    made.found += [python(1, *[(LOADER, 1, "down")] * 128), python(2, *[(LOADER, 1, "down")] * 127)]
    made.found += [sample(10, python=1), sample(11, python=2), sample(12, python=1)]
    assert "2 samples with only the innermost 128 Python frames" in ask("stacks", made.segment()).verdicts["states"]
    made = Made().call("cuMemAlloc", 0, 1)
    made.found += [native(1, "/x/libpython3.10.so.1.0", 64), sample(10, native=1), sample(11)]
    assert (
        "no Python frames of libpython3.10.so.1.0, in 1 process: gpt-hook reads CPython 3.11 to 3.14, except "
        "free-threaded builds"
    ) in ask("stacks", made.segment()).verdicts["states"]


def test_summary_by_stack_adds_up_samples_and_those_without_gpu_work():
    found = ask("summary", waits_for_data(), args=("--by", "stack"))
    (rows,) = found.rows.values()
    assert [(row["name"], row["samples"], row["idle"]) for row in rows] == [
        ("collate (data.py:41) < <module> (train.py:7)", 16, 9),
        ("Condition.wait (threading.py:355) < Loader.get (data.py:50) < <module> (train.py:7)", 4, 3),
        ("cuLaunchKernel < collate (data.py:41) < <module> (train.py:7)", 4, 3),
    ]
    assert [row["share"] for row in rows] == pytest.approx([200 / 3, 50 / 3, 50 / 3])
    assert [row["idle_share"] for row in rows] == [60, 20, 20]
    assert found.verdicts["samples_by_stack"][1] == "the GPU was idle in 62.5 % of them"


def test_summary_by_stack_of_samples_without_gpu_times():
    (rows,) = ask("summary", forge.trace(*STACKS, sample(1, python=1)), args=("--by", "stack")).rows.values()
    assert [row["samples"] for row in rows] == [1]
    assert "idle" not in rows[0]


def test_summary_by_stack_needs_stacks_or_samples():
    done = run("summary", "--by", "stack", data=forge.pack(Made().call("cuLaunchKernel", 0, 5, 5, 100).segment()))
    assert b"no call stacks in the trace" in done.stderr


def test_host_that_waits_for_another_thread_is_told_apart_from_a_lock():
    """It waits in Condition.wait, which takes a futex, but nobody holds a lock for too long."""
    made = Made().call("cuLaunchKernel", 0, 5, 5, 100).call("cuLaunchKernel", 5000, 5, 5005, 100)
    made.found[:0] = STACKS
    made.found += [sample(1000 + at, python=2, syscall=FUTEX) for at in range(16)]
    told = ask("idle", made.segment()).rows["verdict"][0]["told"]
    assert "waiting at threading.py:355 Condition.wait, called from data.py:50 Loader.get, in 100.0 % of 16" in told
    assert told.endswith("): the host waits for another thread or process: make that one faster, or let it work ahead")


@pytest.mark.parametrize(("inside", "file", "said"), [(4, "libparse.so", " in libparse.so"), (3, "libparse.so", ""),
                                                      (4, "libcuda.so.1", ""), (4, "libc.so.6", "")])  # fmt: skip
def test_library_that_the_host_spends_its_time_in_is_named(inside, file, said):
    made = Made().call("cuLaunchKernel", 0, 5, 5, 100).call("cuLaunchKernel", 5000, 5, 5005, 100)
    made.found[:0] = [STACKS[0], native(4, f"/nowhere/{file}", 64)]
    made.found += [sample(1000 + at, python=1, **({"native": 4} if at < inside else {})) for at in range(16)]
    told = ask("idle", made.segment()).rows["verdict"][0]["told"]
    assert f"(at data.py:41 collate{said}, called from train.py:7 <module>, in 100.0 % of 16 samples)" in told


@pytest.mark.parametrize(("syscall", "action"), [
    (EPOLL_WAIT, "the host waits for input: if that's requests, the GPU has nothing to do; otherwise, let the sender "
     "work ahead"),
    (NANOSLEEP, "the host sleeps: wait for an event instead, or sleep less"),
])  # fmt: skip
def test_host_that_waits_for_input_or_sleeps(syscall, action):
    made = Made().call("cuLaunchKernel", 0, 5, 5, 100).call("cuLaunchKernel", 5000, 5, 5005, 100)
    made.found[:0] = STACKS
    made.found += [sample(1000 + at, python=2, syscall=syscall) for at in range(16)]
    told = ask("idle", made.segment()).rows["verdict"][0]["told"]
    assert told.endswith(f": {action}")
