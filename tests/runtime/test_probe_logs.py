"""Log overflow: the launch only counts further records; the next launch of its kernel and grid gets a larger log."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.runtime import hooked
from tests.runtime.probing import CLIENT, COUNT, PTX, build, in_both_forms, kept, saved, unprobed

ENTRY = 32  # bytes: the number of a thread, and a record
ACCESSES = 3 * COUNT  # accesses of a launch of `scale`
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


def run_logs(folder, main, capacity, *options):
    """Return each launch's kept and dropped records, in order, the trace, and the run's messages."""
    probe = folder / "seen.toml"
    probe.write_text(FILE.format(budget=8 + capacity * ENTRY))
    out, program = folder / "t.mp", build(folder, CLIENT + main)
    line = hooked.command("run", "-fo", out, "--device", "sim", "-p", probe, *options, "--", program, PTX, quiet=False)
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept()}
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    trace = hooked.Trace(out)
    found = saved(out, "seen")
    for id_, one in found.items():
        assert len(one.slots) + one.dropped == one.counts[0]
        (record,) = [r for r in trace.of("buffer") if r["launch"] == id_ and "at" not in r]
        assert (record["entries"], record.get("dropped", 0)) == (len(one.slots), one.dropped)
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
LEFT = "of the records in logs were kept"


@in_both_forms
@pytest.mark.parametrize("capacity", [1, 7, 1199])
def test_second_launch_is_complete(tmp_path, capacity):
    found, trace, said = run_logs(tmp_path, SYNCED, capacity)
    assert found == [(capacity, ACCESSES - capacity), (ACCESSES, 0), (ACCESSES, 0)]
    assert not unprobed(trace)
    share = 100 * (2 * ACCESSES + capacity) / (3 * ACCESSES)
    assert f"{min(share, 99.9):.1f} % {LEFT}, {2 * ACCESSES + capacity} of {3 * ACCESSES}: 1 of 3 logs was" in said


def test_nothing_is_said_where_all_fits(tmp_path):
    found, _, said = run_logs(tmp_path, SYNCED, ACCESSES)
    assert found == [(ACCESSES, 0)] * 3 and LEFT not in said


@in_both_forms
def test_complete_waits_for_the_count_of_a_launch(tmp_path):
    found, trace, _ = run_logs(tmp_path, ASYNC, 7, "--complete")
    assert found == [(7, ACCESSES - 7), (ACCESSES, 0), (ACCESSES, 0)]
    assert not unprobed(trace)


@in_both_forms
def test_no_launch_waits_for_one_that_runs(tmp_path):
    """Without --complete, a launch that follows immediately has a log of its map's size, and its count shows how much
    is missing.
    """
    found, trace, said = run_logs(tmp_path, ASYNC, 7)
    assert len(found) == 3 and all(sum(one) == ACCESSES for one in found) and found[0] == (7, ACCESSES - 7)
    assert not unprobed(trace) and LEFT in said


@in_both_forms
def test_each_grid_has_its_own_count(tmp_path):
    found, _, _ = run_logs(tmp_path, GRIDS, 100)
    assert found == [(100, ACCESSES - 100)] * 2 + [(ACCESSES, 0)] * 2


@pytest.mark.parametrize("complete", [False, True])
def test_a_log_stays_within_max_memory(tmp_path, complete):
    """The log is as large as fits, and no launch is left out because of it."""
    options = ("--max-memory", "16K", *(["--complete"] if complete else []))
    found, trace, said = run_logs(tmp_path, SYNCED, 100, *options)
    assert found[0] == (100, ACCESSES - 100)
    room = (16 << 10) // ENTRY // (1 if complete else 2)  # without --complete, other launches need the rest
    for entries, dropped in found[1:]:
        assert (room * 3 // 4 if complete else 99) < entries <= room and entries + dropped == ACCESSES
    assert not unprobed(trace) and LEFT in said
