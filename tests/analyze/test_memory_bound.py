"""Analyses that keep no data per call need the same memory for a trace three times as long."""

import os
import subprocess

import pytest

from tests.trace.long import write_long

SHORT, LONG = 500_000, 1_500_000
SLACK = 40  # MB: batches that are not full, and what the allocator keeps
GROWTH = {  # MB for data that each analysis keeps according to its man page
    "summary": 150,
    "memusage": 125_000 * 500 / 1e6,  # an allocation in eight calls
}
NAMES = (
    "gaps", "idle", "timeline", "startup", "launches", "stages", "nvtx", "summary", "gmem_bytes", "roofline", "maps",
    "overhead", "exposed_latency", "memusage", "tensorop_count", "export --format sqlite -o out.sqlite",
    "export --format parquet -o out.tables",
)  # fmt: skip


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    paths = [folder / f"{calls}.mp" for calls in (SHORT, LONG)]
    for path, calls in zip(paths, (SHORT, LONG), strict=True):
        write_long(path, calls, ranges=calls // 5000, ioctls=True, probed=calls // 1000)
    yield paths
    for path in paths:
        path.unlink()


def resident(folder, command):
    """Return a command's peak memory in MB."""
    folder.mkdir()
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode in (0, 1)  # some report that there's nothing to show
    return usage.ru_maxrss * 1024 / 1e6


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_memory_does_not_grow_with_the_trace(name, traces, tmp_path):
    command = ["gpt-analyze", *name.split()]
    short, long = (resident(tmp_path / path.stem, [*command, path]) for path in traces)
    assert long - short < GROWTH.get(name, 0) + SLACK, (short, long)
    assert long < 700
