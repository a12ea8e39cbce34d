"""Probes add no driver call to a launch. A slab needs one event, and one wait per stream."""

import os
import shutil
import subprocess

import pytest

from tests.runtime import hooked
from tests.runtime.probing import CLIENT, PTX, build, kept
from tests.tiers import first

# The last argument is how many streams there are, the one before it how many launches.
SOURCE = (
    CLIENT
    + r"""
int main(int argc, char **argv) {
    void *params[] = {&items, &added, &count}, *streams[4];
    int launches = atoi(argv[2]), used = atoi(argv[3]);
    setup(argv[1]);
    for (int i = 0; i < used; i++)
        OK(D(cuStreamCreate)(&streams[i], 1));
    for (int i = 0; i < launches; i++) {
        OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, streams[i % used], params, NULL));
        if (i % 100 == 99)
            OK(D(cuStreamQuery)(streams[0]) & ~600);
    }
    OK(D(cuCtxSynchronize)());
    return 0;
}
"""
)
SLAB = 64 << 10  # a quarter of --max-memory


@pytest.fixture(scope="module")
def counting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("counting")
    shutil.copytree(hooked.runtime(), folder / "runtime")
    wraps = ("-Wl,--wrap=hook_find_probe_calls", "-Wl,--wrap=hook_current_context", "-Wl,--wrap=hook_step")
    hooked.build_hook(folder / "runtime/libgpthook.so", hooked.ROOT / "tests/runtime/counted_calls.c", *wraps)
    made = folder / "runtime", build(folder, SOURCE)
    count_calls(folder, made, 1, 1, 64 << 20)  # a look-up that waits for the pipeline makes calls, too
    return made


def count_calls(folder, counting, launches, streams, memory):
    """Return the driver calls that the hook made on the launching thread, and the bytes of a launch's buffers."""
    runtime, program = counting
    line = [runtime / "gpt-hook", "run", "-f", "-q", "-o", folder / "t.mp", "--device", "sim", "-p", "block_sched"]
    line += ["--max-memory", str(memory), "--complete", "--", program, PTX, str(launches), str(streams)]
    env = os.environ | {"GPT_SIM_RUN": "none", "XDG_CACHE_HOME": kept()}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    trace = hooked.Trace(folder / "t.mp")
    assert len(trace.of("probed")) == launches
    sizes = {(r["map"], r["size"]) for r in trace.of("buffer")}
    counts = {name: int(count) for name, count in map(str.split, done.stdout.splitlines())}
    return counts, sum((size + 255) // 256 * 256 for _, size in sizes)


def count_more(folder, counting, few, many, streams, memory):
    """Return the calls that more launches cost, and the bytes of a launch's buffers."""
    base, _ = count_calls(folder, counting, few, streams, memory)
    counts, size = count_calls(folder, counting, many, streams, memory)
    return {name: counts[name] - base.get(name, 0) for name in counts if counts[name] > base.get(name, 0)}, size


def test_a_launch_makes_no_other_call(tmp_path, counting):
    more, size = count_more(tmp_path, counting, 20, 90, 1, 64 << 20)
    assert 90 * size < 4 << 20, "they fit into one slab"
    assert more == {"cuCtxGetCurrent": 70}


@pytest.mark.parametrize("streams", first(4, 1))
def test_a_slab_takes_one_event_and_one_wait(tmp_path, counting, streams):
    """There's little memory, so a stream often gets a slab that another stream used. A new slab needs one more event
    after it's zeroed.
    """
    counts, size = count_calls(tmp_path, counting, 4000, streams, 4 * SLAB)
    claims = counts["claims"]
    assert claims >= 4000 * size // SLAB > 12
    assert counts["cuEventRecord"] <= claims + counts["cuMemAllocFromPoolAsync"]
    assert counts.get("cuStreamWaitEvent", 0) <= claims
