"""Calls, captures and launches of graphs, read according to gpt-stream(5) alone, and by every analysis."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests import loaded
from tests.runtime import hooked

KERNELS, COPIES = ("one", "two", "body"), ("HtoD", "DtoH", "DtoD", "set")
SCENARIOS = ("captured", "invalidated", "legacy", "by_hand", "conditional", "memory")


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    source = Path(__file__).with_name("captured.c").read_text()
    return hooked.compile_c(tmp_path_factory.mktemp("captured") / "client", source, f"-I{hooked.ROOT}/runtime")


def record(tmp_path, program, *scenarios, calls="all", more=()):
    """Return the path of the trace, and the counts and bytes that the program reports."""
    out = tmp_path / "t.mp"
    done = hooked.run(out, program, *scenarios, options=("-f", "--calls", calls, *more))
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    return out, {what: int(n) for what, n, _ in lines if n != "0"}, {what: int(b) for what, _, b in lines if b != "0"}


def recompute(trace):
    """Return the work that ran, read according to gpt-stream(5) alone: counts and bytes by kernel and op."""
    counts, sizes = Counter(trace.launches), Counter()
    names = {r["id"]: r["name"] for r in trace.of("function")}
    for call in trace.calls:
        if call["type"] in ("memcpy", "memset") and call["result"] == 0:
            counts[call["op"]] += 1
            sizes[call["op"]] += call["bytes"]
        if call["name"] != "cuGraphLaunch" or call["type"] != "graph" or call["result"]:
            continue
        made = [r for r in trace.of("graph") if r["exec"] == call["object"] and r["at"] <= call["start"]]
        graph = max(made, key=lambda r: r["at"])
        for function, launches in zip(graph["functions"], graph["launches"], strict=True):
            counts[names[function]] += launches
        for one in graph["operations"]:
            if one["type"] in ("memcpy", "memset"):
                counts[one["op"]] += one["nodes"]
                sizes[one["op"]] += one["bytes"]
    return {what: n for what, n in counts.items() if n}, {what: n for what, n in sizes.items() if n}


def analyze(*words):
    return loaded.run(["gpt-analyze", *words], text=True).stdout


@cache
def summarize(path):
    """Return the rows and the verdicts of a summary, by answer."""
    rows, verdicts = {}, {}
    for line in analyze("summary", "--json", path).splitlines():
        one = json.loads(line)
        if one["kind"] == "row":
            rows.setdefault(one["answer"], []).append(one)
        elif one["kind"] == "answer":
            verdicts[one["name"]] = one
    return rows, verdicts


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_work_is_counted_once(tmp_path, program, scenario):
    path, counts, sizes = record(tmp_path, program, scenario)
    assert recompute(hooked.Trace(path)) == (counts, sizes)
    rows, _ = summarize(path)
    assert {r["name"]: r["launches"] for r in rows.get("kernels", []) if r["launches"]} == {
        what: n for what, n in counts.items() if what in KERNELS
    }
    found = rows.get("copies", [])
    assert {r["op"]: r["calls"] + r["in_graphs"] for r in found} == {w: n for w, n in counts.items() if w in COPIES}
    assert {r["op"]: r["bytes"] for r in found} == sizes
    database = tmp_path / "t.sqlite"
    analyze("export", "--format", "sqlite", "-o", database, path)
    with sqlite3.connect(database) as base:
        names = dict(base.execute("select id, value from StringIds"))
        launched = base.execute("select demangledName, sum(launches) from GPT_LAUNCH_COUNTS group by 1").fetchall()
        assert {names[id_]: n for id_, n in launched if n} == {w: n for w, n in counts.items() if w in KERNELS}


def test_captured_calls_are_listed_as_captured(tmp_path, program):
    path, counts, _ = record(tmp_path, program, "captured")
    trace = hooked.Trace(path)
    captured = [call for call in trace.calls if call["type"] == "capture"]
    assert all(call["result"] == 0 for call in captured)
    # The program captures three graphs that it launches and two that it doesn't. In the three, another stream joins
    # through an event.
    assert Counter(call["name"] for call in captured) == {
        "cuLaunchKernel": 5 * 3 + 3, "cuMemcpyHtoDAsync": 5, "cuMemcpyDtoDAsync": 5, "cuMemcpyDtoHAsync": 5,
        "cuMemsetD32Async": 5, "cuMemsetD2D8Async": 5, "cuEventRecord": 6, "cuStreamWaitEvent": 6,
    }  # fmt: skip
    rows, verdicts = summarize(path)
    assert {r["name"]: r["captured"] for r in rows["kernels"]} == {"one": 10, "two": 5 + 3}
    assert any(
        "captured into graphs, not run by these calls: 55 calls" in line for line in verdicts["kernels"]["verdict"]
    )
    assert "cuLaunchKernel (captured)" in analyze("timeline", "--format", "chrome", path)
    events = [json.loads(line) for line in analyze("events", "--json", path).splitlines()]
    assert sum(event["type"] == "capture" for event in events) == len(captured)
    # If one thread's calls are selected, launches are counted from its calls, and no captured call counts.
    thread = trace.calls[0]["thread"]
    narrow = [json.loads(line) for line in analyze("summary", "--json", "--tid", thread, path).splitlines()]
    found = {r["name"]: r["launches"] for r in narrow if r["kind"] == "row" and r["answer"] == "kernels"}
    assert found == {what: n for what, n in counts.items() if what in KERNELS}


def test_captured_launches_do_not_count_where_launches_are_only_counted(tmp_path, program):
    path, *_ = record(tmp_path, program, "captured", "invalidated", calls="memcpy")
    assert hooked.Trace(path).launches == {"one": 2 * 6 + 2, "two": 6 + 1}


def test_unrecorded_graph_launches_are_reported(tmp_path, program):
    path, *_ = record(tmp_path, program, "by_hand", calls="memcpy")
    said = "launches of 1 graph are not recorded: 'gpt-hook run --calls graph' records them"
    assert said in " ".join(analyze("summary", path).split())


def test_nodes_of_conditional_bodies_are_reported_as_unknown(tmp_path, program):
    path, *_ = record(tmp_path, program, "conditional")
    (graph,) = hooked.Trace(path).of("graph")
    assert (graph["unknown"], graph["operations"]) == (2, [])
    _, verdicts = summarize(path)
    said = "not counted: conditional nodes in 4 launches of graphs; how often they ran isn't recorded"
    assert said in verdicts["kernels"]["verdict"]
    assert said.replace(" ", "") in analyze("graphs", path).replace("\n", "").replace(" ", "")


def test_memory_that_graphs_allocate(tmp_path, program):
    path, *_ = record(tmp_path, program, "memory")
    (graph,) = hooked.Trace(path).of("graph")
    found = {(one["type"], one["op"]): (one["nodes"], one["bytes"]) for one in graph["operations"]}
    assert found == {("memory", "alloc"): (1, 1 << 20), ("memory", "free"): (1, 0), ("memset", "set"): (1, 1 << 20),
                     ("stream", "host"): (1, 0)}  # fmt: skip
    addresses = {one.get("address") for one in graph["operations"] if one["type"] == "memory"}
    assert len(addresses) == 1 and None not in addresses
    rows = [json.loads(line) for line in analyze("memory", "--json", path).splitlines()]
    (row,) = [row for row in rows if row["kind"] == "row" and row.get("type") == "graph"]
    assert (row["allocations"], row["freed"], row["allocated"], row["peak"]) == (3, 3, 3 << 20, 1 << 20)


def test_replayed_copies_count_in_stages_and_in_notes(tmp_path, program):
    path, counts, sizes = record(tmp_path, program, "by_hand")
    stages = [json.loads(line) for line in analyze("stages", "--json", path).splitlines()]
    copied = {row["category"]: row.get("bytes") for row in stages if row["kind"] == "row" and row["answer"] == "stages"}
    total = copied.pop("Total")
    assert total == sum(size or 0 for size in copied.values()) == sizes["HtoD"]
    lines = tmp_path / "t.jsonl"
    lines.write_text(analyze("events", "--json", "--notes", path))
    rows = [json.loads(line) for line in analyze("summary", "--json", lines).splitlines()]
    copies = [row for row in rows if row["kind"] == "row" and row["answer"] == "copies"]
    assert {row["op"]: (row["in_graphs"], row["bytes"]) for row in copies} == {
        op: (counts[op], sizes[op]) for op in ("HtoD", "set")
    }


HEADER = {"kind": "header", "version": "1.0", "tool": "hand", "argv": ["app"], "host": "h", "pid": 1,
          "realtime": 10**18, "monotonic": 0, "via": []}  # fmt: skip


def made(tmp_path, header, *records):
    path = tmp_path / "t.jsonl"
    lines = [HEADER | header, *records, {"kind": "end", "records": 0, "status": 0}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return loaded.run(["gpt-analyze", "summary", "--from-json", path], text=True)


def api(id_, name, type_, op):
    return {"kind": "api", "id": id_, "symbol": name, "name": name, "type": type_, "op": op}


def call(api, start, **more):
    return {"kind": "call", "thread": 1, "start": start, "duration": 10, "api": api, "result": 0, **more}


CALLS = (api(1, "cuStreamBeginCapture", "stream", "capture"), api(2, "cuLaunchKernel", "kernel", "launch"),
         {"kind": "function", "id": 1, "name": "k"}, call(1, 100, object=0, stream=7),
         call(2, 200, stream=7, function=1), {"kind": "launch", "count": 1, "function": 1})  # fmt: skip


def test_an_older_trace_is_read_and_says_what_it_does_not_tell(tmp_path):
    old = made(tmp_path, {}, *CALLS)
    assert "this trace doesn't mark captured calls" in old.stdout + old.stderr
    new = made(tmp_path, {"captures": 1}, *CALLS)
    assert "captured calls" not in new.stdout + new.stderr


def test_unknown_work_in_graph_launches_is_reported(tmp_path):
    graph = {"kind": "graph", "exec": 5, "at": 50, "nodes": 3, "functions": [1], "launches": [1]}
    launches = [api(3, "cuGraphLaunch", "graph", "launch"), call(3, 300, object=5, stream=7),
                call(3, 400, object=6, stream=7)]  # fmt: skip
    old = " ".join(made(tmp_path, {}, *CALLS, graph, *launches).stdout.split())
    assert "not in this trace: work other than kernels in 1 launch of graphs" in old
    assert "not in this trace: the work in 1 launch of graphs that were made before recording began" in old
    graph |= {"operations": [], "device": 1}
    new = " ".join(made(tmp_path, {"captures": 1}, *CALLS, graph, *launches[:2]).stdout.split())
    assert "not counted: launches from kernels, which can launch 1 graph" in new
    assert "what else" not in new


def test_one_number_of_calls_everywhere(tmp_path, program):
    """gpt-hook's last line, the table of processes and the questions agree, also for calls that are only counted."""
    source = r"""
int main(void) {
    begin();
    void *function = kernel("foo"), *context;
    int (*query)(void *) = (int (*)(void *))dlsym(driver, "cuCtxGetCurrent");
    launch(function);
    for (int i = 0; i < 5; i++)
        query(&context);
}
"""
    client = hooked.compile_c(tmp_path / "client", source)
    out = tmp_path / "t.mp"
    done = subprocess.run([*hooked.command("run", quiet=False), "-o", out, "--device", "sim", "--", client],
                          capture_output=True, text=True)  # fmt: skip
    trace = hooked.Trace(out)
    counted = sum(row["count"] for record in trace.of("counts") for row in hooked.rows(record))
    calls = len(trace.calls) + counted
    assert counted == 5 and f": {calls} calls, 1 launch," in done.stderr
    rows, _ = summarize(out)
    assert [row["calls"] for row in rows["processes"]] == [calls]
    assert re.search(rf"^calls of loading +\d+ of {calls} calls$", analyze("summary", out), re.M)
