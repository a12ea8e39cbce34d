"""Log overflow: the launch only counts further records; the next launch of its kernel gets a larger log."""

from __future__ import annotations

import os
import subprocess

import msgpack
import pytest

from gpt.stream.rooms import HEAD, SECTOR
from tests.runtime import hooked
from tests.runtime.graphing import GRAPHS
from tests.runtime.probing import CLIENT, COUNT, PTX, build, in_both_forms, kept, probe_file, saved, unprobed
from tests.tiers import first

ACCESSES = 3 * COUNT  # accesses of a launch of `scale`
ROOM = 128 // SECTOR  # sectors of a warp's first room
WARPS = 17  # warps of `scale` that access memory, in 6 blocks of 70 threads; each fills less than a room
FILE = """
[map.seen]
cap = "dynamic"
budget = {budget}
data = {{address = "u64", clock = "u64", sm = "u32"}}

[probe.access]
position = "ld.global:st.global:atom.global:red.global"
before = "SAVE [seen] {{ADDR, CLOCK, SMID}};"
"""
SYNCED = """
int main(int argc, char **argv) {
    (void)argc;
    setup(argv[1]);
    for (int i = 0; i < 3; i++) {
        run();
        OK(D(cuStreamSynchronize)(NULL));
    }
    check();
    return 0;
}
"""


def run_logs(folder, main, rooms, *options):
    """Return each launch's kept and dropped entries, in order, the trace, and the run's messages. The log has space for
    `rooms` of the warps' first rooms.
    """
    probe = probe_file("seen.toml", FILE.format(budget=HEAD + rooms * ROOM * SECTOR))
    out, program = folder / "t.mp", build(folder, CLIENT + main)
    line = hooked.command("run", "-fo", out, "--device", "sim", "-p", probe, *options, "--", program, PTX, quiet=False)
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept()}
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    trace = hooked.Trace(out)
    found = saved(out, "seen")
    for id_, one in found.items():
        assert len(one.slots) + one.dropped == one.counts[0]
        parts = [record for record in trace.of("buffer") if record["launch"] == id_]
        assert (parts[-1]["entries"], parts[0].get("dropped", 0)) == (len(one.slots), one.dropped)
    return [(len(one.slots), one.dropped) for _, one in sorted(found.items())], trace, done.stderr


ASYNC = SYNCED.replace("OK(D(cuStreamSynchronize)(NULL));", "")
GRIDS = """
int main(int argc, char **argv) {
    (void)argc;
    setup(argv[1]);
    void *params[] = {&items, &added, &count};
    for (int i = 0; i < 4; i++) { // 6 blocks of 70 threads, then 12 of 35
        unsigned many = 1 + i % 2;
        OK(cuLaunchKernel(function, 6 * many, 1, 1, 70 / many, 1, 1, 0, NULL, params, NULL));
        expect(3);
        OK(D(cuStreamSynchronize)(NULL));
    }
    check();
    return 0;
}
"""
GRAPHED = (
    GRAPHS.removeprefix(CLIENT)
    + """
int main(int argc, char **argv) {
    (void)argc;
    setup(argv[1]);
    OK(D(cuStreamCreate)(&streams[0], 0));
    void *graph = captured(1), *exec = instantiated(graph);
    replay(exec, 1), replay(exec, 1), launched(2);
    void *next = instantiated(graph);
    replay(next, 1), launched(1);
    CUgraphExecUpdateResultInfo info;
    OK(D(cuGraphExecUpdate_v2)(exec, graph, &info));
    replay(exec, 1), launched(1);
    check();
    return 0;
}
"""
)
LEFT = "of the records in logs were kept"


def is_partial(found):
    """Return whether a launch kept some of its accesses, and counted the others."""
    kept, dropped = found
    return kept + dropped == ACCESSES and kept > 0 and dropped > 0


@in_both_forms
@pytest.mark.parametrize("rooms", first(4, 9, WARPS - 1))
def test_second_launch_is_complete(tmp_path, rooms):
    found, trace, said = run_logs(tmp_path, SYNCED, rooms)
    assert is_partial(found[0]) and found[1:] == [(ACCESSES, 0)] * 2
    assert not unprobed(trace)
    kept_ = 2 * ACCESSES + found[0][0]
    share = 100 * kept_ / (3 * ACCESSES)
    assert f"{min(share, 99.9):.1f} % {LEFT}, {kept_} of {3 * ACCESSES}: 1 of 3 logs was" in said


def test_it_says_from_which_blocks_the_records_are(tmp_path):
    """The simulated device runs the first blocks first, and they fill the log."""
    once = SYNCED.replace("i < 3", "i < 1")
    found, trace, said = run_logs(tmp_path, once, 4)
    (record,) = [record for record in trace.of("buffer") if "blocks" in record]
    (log,) = saved(tmp_path / "t.mp", "seen").values()
    blocks = log.units // 70
    first, last = record["blocks"]
    assert is_partial(found[0]) and (first, last) == (blocks.min(), blocks.max()) and last < 5
    assert f"{found[0][0]} of {ACCESSES}, from blocks {first} to {last}: 1 of 1 log was too small" in said


@pytest.mark.full
def test_nothing_is_reported_if_everything_fits(tmp_path):
    found, _, said = run_logs(tmp_path, SYNCED, 20)
    assert found == [(ACCESSES, 0)] * 3 and LEFT not in said


@in_both_forms
def test_complete_waits_for_the_count_of_a_launch(tmp_path):
    found, trace, _ = run_logs(tmp_path, ASYNC, 4, "--complete")
    assert is_partial(found[0]) and found[1:] == [(ACCESSES, 0)] * 2
    assert not unprobed(trace)


@in_both_forms
def test_no_launch_waits_for_a_running_one(tmp_path):
    """Without --complete, a launch that follows at once gets a log of the map's own size. Its count shows what's
    missing.
    """
    found, trace, said = run_logs(tmp_path, ASYNC, 4)
    assert len(found) == 3 and all(sum(one) == ACCESSES for one in found) and is_partial(found[0])
    assert not unprobed(trace) and LEFT in said


@in_both_forms
def test_another_grid_gets_as_much_for_each_thread(tmp_path):
    found, _, _ = run_logs(tmp_path, GRIDS, 4)
    assert is_partial(found[0]) and found[1:] == [(ACCESSES, 0)] * 3


@pytest.mark.parametrize("complete", [False, True])
def test_a_log_stays_within_max_memory(tmp_path, complete):
    """The log is as large as fits, and no launch is left out for it, if the log before the last one has been copied."""
    options = ("--max-memory", "5K", *(["--complete"] if complete else []))
    main = SYNCED if complete else SYNCED.replace("(NULL));", "(NULL)); usleep(200000);")
    found, trace, said = run_logs(tmp_path, main, 4, *options)
    assert is_partial(found[0])
    assert all(is_partial(one) for one in found[1:])
    assert not unprobed(trace) and LEFT in said


def test_a_full_log_counts_what_it_would_have_needed(tmp_path):
    """A launch of 64 blocks uses 8 arenas. The fullest one decides how large the log should have been."""
    main = SYNCED.replace("run();", """void *params[] = {&items, &added, &count};
        OK(cuLaunchKernel(function, 64, 1, 1, 7, 1, 1, 0, NULL, params, NULL));
        expect(3);""")  # fmt: skip
    found, trace, _ = run_logs(tmp_path, main, 16)
    assert found[0][1] > 0 and sum(found[0]) == ACCESSES and found[1:] == [(ACCESSES, 0)] * 2
    assert not unprobed(trace)


@in_both_forms
def test_a_graph_keeps_its_logs_until_it_is_made_or_updated(tmp_path):
    found, trace, _ = run_logs(tmp_path, GRAPHED, 4)
    assert all(map(is_partial, found[:2])) and found[2:] == [(ACCESSES, 0)] * 2
    assert not unprobed(trace)


@pytest.mark.parametrize(("main", "launches"), first((SYNCED, 3), (GRIDS, 4), (GRAPHED, 4)))
def test_a_rerun_has_room_for_all_launches(tmp_path, main, launches):
    """The first run only counts: it writes no buffers. The program's own results are checked in both."""
    (tmp_path / "counted").mkdir()
    found, trace, _ = run_logs(tmp_path / "counted", main, 4, "--memusage")
    assert not found and sum(record["launches"] for record in trace.of("memusage")) == launches
    found, trace, said = run_logs(tmp_path, main, 4, "--rerun", tmp_path / "counted" / "t.mp")
    assert found == [(ACCESSES, 0)] * launches
    assert not unprobed(trace) and LEFT not in said


def rerun(trace, *options):
    """Run `true` as a rerun, and return the result."""
    line = hooked.command("run", "-fo", trace.parent / "again.mp", "--rerun", trace, *options, "--", "true")
    return subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)


def counts(*records):
    """Return a trace with these records in a chunk."""
    data = b"\0\0".join(map(msgpack.packb, records)) + b"\0"
    return msgpack.packb({"kind": "chunk", "used": len(data), "data": data + b"\xff\xff"})


HEADER, NAME = {"kind": "header"}, {"kind": "function", "id": 7, "module": 1, "name": "scale"}
NEED = {"kind": "memusage", "function": 7, "launches": 1, "bytes": 5000, "most": 5000}
ABSENT = "has no counts for --rerun: record it with --memusage and the same probes"


@pytest.mark.parametrize(
    ("data", "fact"),
    [
        (None, "does not exist"),
        (b"", ABSENT),
        (counts(HEADER, NAME), ABSENT),
        (counts(HEADER, NEED), ABSENT),
        (counts(HEADER, NAME, HEADER, NEED), ABSENT),  # another process has function 7
        (counts(HEADER, NAME, NEED | {"most": -1}), ABSENT),
        (counts(HEADER, NAME | {"name": b"scale"}, NEED), ABSENT),
        (counts(HEADER, NAME, NEED)[:-60], ABSENT),
        (counts(HEADER, {"kind": "chunk", "used": 1 << 63, "data": counts(NAME, NEED)}), ABSENT),
        (counts(HEADER, NEED, NAME), None),
        (b"\0" + counts(HEADER, NAME) + counts(NEED) + b"\xc1", None),
    ],
)
def test_a_rerun_needs_counts(tmp_path, data, fact):
    trace = tmp_path / "counted.mp"
    if data is not None:
        trace.write_bytes(data)
    done = rerun(trace, "-p", "dmat")
    assert done.returncode == (2 if fact else 0)
    assert (f"gpt-hook: error: {trace}: {fact}\n" if fact else "") == done.stderr


def test_options_that_save_nothing_have_no_rerun(tmp_path):
    (trace := tmp_path / "counted.mp").write_bytes(counts(HEADER, NAME, NEED))
    for option in "--memusage", "--benchmark":
        done = rerun(trace, "-p", "dmat", option)
        assert (done.returncode, "--rerun: cannot be combined with" in done.stderr) == (2, True)
    assert "probe options without -p or --jit" in rerun(trace).stderr


@pytest.mark.full
def test_a_rerun_stays_within_max_memory(tmp_path):
    """If the trace names an impossible need, the log is as large as fits."""
    (trace := tmp_path / "counted.mp").write_bytes(counts(HEADER, NAME, NEED | {"most": (1 << 64) - 1}))
    found, trace, said = run_logs(tmp_path, SYNCED, 4, "--rerun", trace, "--max-memory", "1M")
    assert found == [(ACCESSES, 0)] * 3 and not unprobed(trace) and LEFT not in said
