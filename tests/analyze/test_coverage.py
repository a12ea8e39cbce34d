"""Launches without probes: each counts once, no matter how much is known about it."""

import io

from gpt.analyze.lib.coverage import NOT_KNOWN, make_coverage
from gpt.stream import records, wire
from gpt.trace.kinds import COVERED
from gpt.trace.process import iter_processes
from tests.trace import forge


def test_launch_with_nameless_reason_counts_once():
    told = [
        forge.launches({5: 3, 6: 1}),
        records.make("unprobed", function=5, launches=1, reason="late"),
        records.make("unprobed", function=0, launches=2, reason="closed"),
    ]
    (process,) = iter_processes(wire.read_records(io.BytesIO(forge.pack(forge.trace(*told))), "in"), COVERED)
    found = make_coverage(process, {5: 3, 6: 1})
    assert found.unprobed.total() == 4
    assert {str(reason) for _, reason in found.unprobed} == {"late", "closed", "no probe was asked for"}
    assert make_coverage(process, {0: 2, 5: 1}).unprobed.total() == 3


def test_process_without_end_has_no_reason():
    told = forge.pack(forge.trace(forge.launches({5: 3}), end=False))
    (process,) = iter_processes(wire.read_records(io.BytesIO(told), "in"), COVERED)
    found = make_coverage(process, {5: 3})
    assert dict(found.unprobed) == {("#5", NOT_KNOWN): 3}
    assert not found.rejects()
