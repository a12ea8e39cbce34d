"""gpt-analyze on traces recorded by gpt-hook: threads, children, and killed programs."""

import json
import subprocess
from collections import Counter

import pytest

from gpt.stream import jsonl, wire
from tests import loaded
from tests.runtime import hooked

CLIENT = r"""
#include <pthread.h>
#include <sys/wait.h>
static void *context;
static void *work(void *count) {
    int (*alloc)(uint64_t *, size_t) = dlsym(driver, "cuMemAlloc_v2");
    int (*in)(uint64_t, const void *, size_t) = dlsym(driver, "cuMemcpyHtoD_v2");
    int (*out)(void *, uint64_t, size_t) = dlsym(driver, "cuMemcpyDtoH_v2");
    uint64_t memory;
    char data[4096];
    OK(cuCtxSetCurrent(context));
    OK(alloc(&memory, 1 << 20));
    void *f = kernel("foo");
    for (long i = 0; i < (long)count; i++) {
        launch(f);
        OK(in(memory, data, sizeof(data)));
        if (i % 2)
            OK(out(data, memory, 1000));
        usleep(20);
    }
    return 0;
}
int main(int argc, char **argv) {
    long count = atol(argv[1]);
    for (int i = 0; i < (argc > 2 ? 2 : 0); i++) // before the driver is initialized: no child can use it after that
        if (!fork()) {
            begin();
            OK(cuDevicePrimaryCtxRetain(&context, 0));
            work((void *)10);
            exit(i);
        }
    begin();
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert(!pthread_create(&threads[i], 0, work, (void *)count));
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], 0);
    while (wait(0) > 0)
        ;
}
"""


def lines(*args):
    done = loaded.run(["gpt-analyze", *args], timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(line) for line in done.stdout.splitlines()]


def summed(trace):
    found = lines("summary", "--json", trace)
    rows = [row for row in found if row["kind"] == "row"]
    return rows, {row["name"]: row for row in rows if row["answer"] == "functions" and "name" in row}


def begun(trace):
    """Return whether a trace has calls. Its size alone doesn't show that, since it has a size
    before it has a header.
    """
    return subprocess.run(["gpt-analyze", "summary", trace], capture_output=True, check=False).returncode == 0


def launches(trace):
    return summed(trace)[1].get("cuLaunchKernel", {"calls": 0})["calls"]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("real")
    program = hooked.compile_c(folder / "client", CLIENT)
    done = hooked.run(folder / "t.mp", program, "2000", "children")
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "t.mp"


def test_every_call_of_every_process_counts(trace):
    found, functions = summed(trace)
    calls = 4 * 2000 + 2 * 10
    assert functions["cuLaunchKernel"]["calls"] == functions["cuMemcpyHtoD"]["calls"] == calls
    assert functions["cuMemcpyDtoH"]["calls"] == calls // 2
    assert all(row["open"] == row["failed"] == 0 for row in functions.values())
    assert all(0 <= r["p50"] <= r["p99"] <= r["slowest"] <= r["total"] for r in functions.values())
    assert {r["op"]: (r["calls"], r["bytes"]) for r in found if r["answer"] == "copies"} == {
        "HtoD": (calls, calls * 4096),
        "DtoH": (calls // 2, calls // 2 * 1000),
    }
    assert [(r["name"], r["launches"]) for r in found if r["answer"] == "kernels"] == [("foo", calls)]
    processes = [r for r in found if r["answer"] == "processes"]
    assert sorted((p["threads"], p["status"]) for p in processes) == [(1, 0), (1, 1), (5, 0)]
    assert all(p["duration"] < 60e9 for p in processes)


def test_events_are_in_order_and_those_of_the_summary(trace):
    _, functions = summed(trace)
    events = lines("events", "--json", trace)
    assert [e["ts"] for e in events] == sorted(e["ts"] for e in events)
    assert Counter(e["name"] for e in events) == {
        name: row["calls"] - row["counted"] for name, row in functions.items() if row["calls"] > row["counted"]
    }
    for name, row in functions.items():
        total = sum(e["duration_us"] for e in events if e["name"] == name)
        assert total * 1000 == pytest.approx(row["total"], rel=0.01, abs=row["calls"])
    own = {}
    for event in events:  # a thread is in one call at a time
        before = own.get((event["pid"], event["tid"]), -1.0)
        assert event["ts"] >= before - 0.002  # both are rounded
        own[event["pid"], event["tid"]] = event["ts"] + event["duration_us"]
    launch = next(e for e in events if e["name"] == "cuLaunchKernel")
    assert (launch["kernel"], launch["grid"], launch["block"], launch["shared"]) == ("foo", [1, 2, 3], [32, 4, 1], 128)


@pytest.mark.full
def test_a_trace_as_json_has_the_same_answer(trace):
    with open(trace, "rb") as file:
        text = "".join(f"{line}\n" for r in wire.read_records(file, "t") for line in jsonl.lines(r)).encode()
    command = ["gpt-analyze", "summary", "--json", "--from-json"]
    done = subprocess.run(command, input=text, capture_output=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    with open(trace, "rb") as file:
        direct = subprocess.run(command[:-1], stdin=file, capture_output=True, check=True).stdout.splitlines()
    assert [r for r in found if r["kind"] != "header"] == [r for r in map(json.loads, direct) if r["kind"] != "header"]


@pytest.mark.full
def test_program_killed(tmp_path):
    program = hooked.compile_c(tmp_path / "client", CLIENT)
    line = hooked.command("run", "-o", tmp_path / "t.mp", "--device", "sim", "--", program, 10**9)
    with subprocess.Popen(line) as process:
        hooked.wait_until(lambda: begun(tmp_path / "t.mp"))
        hooked.kill_once(process, lambda: launches(tmp_path / "t.mp") > 1000)
    trace = hooked.Trace(tmp_path / "t.mp")
    found, functions = summed(tmp_path / "t.mp")
    assert {name: row["calls"] - row["counted"] for name, row in functions.items()} == {
        **dict.fromkeys(functions, 0),
        **trace.names,
    }
    assert sum(row["open"] for row in functions.values()) <= 4  # each thread was in one call at most
    (process,) = (r for r in found if r["answer"] == "processes")
    assert "status" not in process and process["calls"] > 1000
    assert len(lines("events", "--json", tmp_path / "t.mp")) == sum(trace.names.values())


@pytest.mark.full
def test_running_program_can_be_analyzed(tmp_path):
    program = hooked.compile_c(tmp_path / "client", CLIENT)
    line = hooked.command("run", "-o", tmp_path / "t.mp", "--device", "sim", "--", program, 10**9)
    with subprocess.Popen(line) as process:
        try:
            hooked.wait_until(lambda: begun(tmp_path / "t.mp"))
            count = 0
            for _ in range(3):
                hooked.wait_until(lambda: launches(tmp_path / "t.mp") > count)  # noqa: B023 (used in this round)
                count = launches(tmp_path / "t.mp")
        finally:
            process.kill()
