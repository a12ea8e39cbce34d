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
    names = ("hook_find_probe_calls", "hook_current_context", "hook_step")
    wraps = tuple(f"-Wl,--wrap={name}" for name in names)
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
    assert more == {}


# Threads change their contexts at random and launch one kernel in all of them. `arrays` has the kernel's memory in
# each context. Some create a context, and destroy it again.
CONTEXTS = (
    CLIENT
    + r"""
#include <pthread.h>
#include <stdbool.h>

enum { CONTEXTS = 3, STEPS = 400 };
static void *contexts[CONTEXTS], *library;
static CUdeviceptr arrays[CONTEXTS];

static int launch_with(CUdeviceptr array) {
    void *params[] = {&array, &added, &count};
    return cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, NULL, params, NULL);
}

static void launch_here(void) {
    void *context;
    OK(D(cuCtxGetCurrent)(&context));
    for (int i = 0; i < CONTEXTS; i++)
        if (context && context == contexts[i])
            OK(launch_with(arrays[i]));
    if (!context)
        IS(201, launch_with(arrays[0]));
}

static void launch_in_new(bool primary) {
    void *made, *before;
    CUdeviceptr array;
    if (primary) {
        OK(D(cuDevicePrimaryCtxRetain)(&made, 0));
        OK(D(cuCtxPushCurrent_v2)(made));
    } else
        OK(D(cuCtxCreate_v2)(&made, 0, 0));
    OK(D(cuMemAlloc_v2)(&array, (size_t)sizeof(want)));
    OK(launch_with(array));
    OK(D(cuCtxSynchronize)());
    OK(D(cuMemFree_v2)(array));
    if (primary) {
        OK(D(cuCtxPopCurrent_v2)(&before));
        OK(D(cuDevicePrimaryCtxRelease_v2)(0));
    } else
        OK(D(cuCtxDestroy_v2)(made));
    launch_here();
}

static void *work(void *state) {
    unsigned seed = (unsigned)(uintptr_t)state;
    void *popped;
    for (int i = 0; i < STEPS; i++) {
        void *context = contexts[rand_r(&seed) / 7 % CONTEXTS];
        switch (rand_r(&seed) / 7 % 8) {
        case 0:
            OK(D(cuCtxPushCurrent_v2)(context));
            break;
        case 1:
            (void)D(cuCtxPopCurrent_v2)(&popped); // there may be none
            break;
        case 2:
            OK(D(cuCtxSetCurrent)(context));
            break;
        case 3:
            if (i % 16 == 0)
                launch_in_new(false);
            break;
        case 4:
            launch_here(), launch_here();
            break;
        default:
            launch_here();
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[3];
    begin();
    FILE *file = fopen(argv[1], "r");
    assert(argc > 1 && file && fread(text, 1, sizeof(text) - 1, file));
    OK(D(cuLibraryLoadData)(&library, text, NULL, NULL, 0, NULL, NULL, 0));
    OK(D(cuLibraryGetKernel)(&function, library, "scale"));
    for (int i = 0; i < CONTEXTS; i++) {
        OK(D(cuCtxCreate_v2)(&contexts[i], 0, 0));
        OK(D(cuMemAlloc_v2)(&arrays[i], (size_t)sizeof(want)));
        OK(launch_with(arrays[i]));
        OK(D(cuCtxSynchronize)()); // now the kernel gets its probes in this context
    }
    OK(D(cuCtxSetCurrent)(NULL));
    for (uintptr_t i = 0; i < 3; i++)
        assert(!pthread_create(&threads[i], NULL, work, (void *)(i + 1)));
    work((void *)9);
    for (int i = 0; i < 3; i++)
        assert(!pthread_join(threads[i], NULL));
    OK(D(cuCtxSetCurrent)(NULL));
    launch_in_new(true);
    OK(D(cuCtxSetCurrent)(contexts[0]));
    OK(launch_with(arrays[0]));
    return 0;
}
"""
)


def test_a_remembered_context_is_the_current_one(tmp_path, counting):
    """The library that counts calls asks the driver each time, and ends the program if the answer differs."""
    program, out = build(tmp_path, CONTEXTS), tmp_path / "t.mp"
    line = [counting[0] / "gpt-hook", "run", "-f", "-q", "-o", out, "--device", "sim", "-p", "block_sched"]
    env = os.environ | {"XDG_CACHE_HOME": kept()}
    line += ["--", program, PTX]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(hooked.Trace(out).of("probed")) > 500


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
