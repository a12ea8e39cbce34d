"""Logs that overflow: the launch counts all the same, and the next one of its kernel and grid gets a log that holds it."""

from __future__ import annotations

import re

import pytest

from tests.runtime.probing import CLIENT, COUNT, build, probed, saved, unprobed

ENTRY = 32  # bytes: the number of a thread, and a record
ACCESSES = 3 * COUNT  # of a launch of `scale`
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
    """What each launch kept and dropped, in the order of launches, the trace, and what the run said."""
    probe = folder / "seen.toml"
    probe.write_text(FILE.format(budget=8 + capacity * ENTRY))
    done, trace = probed(folder, build(folder, CLIENT + main), "-p", probe, *options)
    assert done.returncode == 0, done.stderr
    found = saved(folder / "t.mp", "seen")
    for id_, one in found.items():
        assert len(one.slots) + one.dropped == one.counts[0]
        (record,) = [r for r in trace.of("buffer") if r["launch"] == id_ and "at" not in r]
        assert (record["entries"], record.get("dropped", 0)) == (len(one.slots), one.dropped)
    return [(len(one.slots), one.dropped) for _, one in sorted(found.items())], trace, done.stderr


@pytest.mark.parametrize("capacity", [1, 3, 5, 7, 100, 1023, 1199])
def test_second_launch_is_complete(tmp_path, capacity):
    kept, trace, _ = run_logs(tmp_path, SYNCED, capacity)
    assert kept == [(capacity, ACCESSES - capacity), (ACCESSES, 0), (ACCESSES, 0)]
    assert not unprobed(trace)
