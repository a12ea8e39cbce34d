"""Run programs with probes on the simulated device, and read their traces."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gpt.probe.read.load import find_probe
from gpt.stream import records, wire
from gpt.stream.reasons import find_reason
from gpt.trace.parts import SideFiles, parse_part, unpack_part
from gpt.trace.probes import Probes
from tests import cuda
from tests.runtime import hooked, simulated
from tests.tiers import full

# Run a test with kernels in PTX, and again with the same kernels in machine code; twins.py explains how the latter run.
# Most runs of the latter are left to `make test-full`.
in_both_forms = pytest.mark.parametrize("code", ["ptx", full("sass")], indirect=True)
in_both_forms_at_once = pytest.mark.parametrize("code", ["ptx", "sass"], indirect=True)

PTX = Path(__file__).with_name("probing.ptx")
BLOCKS, THREADS, COUNT = 6, 70, 400  # 3 warps a block, the last one of 6 threads

# A program that launches `scale` in several forms, and checks the results.
CLIENT = r"""
static char text[1 << 16];
static void *module, *function;
static CUdeviceptr items, total, factor;
static unsigned added = 5, count = 400, want[420], times;

static void setup(const char *path) {
    begin();
    OK(D(cuMemAlloc_v2)(&items, (size_t)sizeof(want)));
    for (unsigned i = 0; i < 420; i++)
        want[i] = i;
    OK(D(cuMemcpyHtoD_v2)(items, want, sizeof(want)));
    OK(D(cuStreamSynchronize)(NULL)); // the copy may go on when it is back, and other streams wait for nothing
    FILE *file = fopen(path, "r");
    assert(file && fread(text, 1, sizeof(text) - 1, file));
    OK(cuModuleLoadData(&module, text));
    memset(text, 0, sizeof(text)); // as the driver allows
    OK(cuModuleGetFunction(&function, module, "scale"));
}

static void expect(unsigned by) {
    for (unsigned i = 0; i < count; i++)
        want[i] = by * want[i] + added;
    times++;
}

static void check(void) {
    unsigned found[420], sum;
    size_t size;
    OK(D(cuMemcpyDtoH_v2)(found, items, sizeof(found)));
    assert(!memcmp(found, want, sizeof(want)));
    OK(D(cuModuleGetGlobal_v2)(&total, &size, module, "total"));
    OK(D(cuMemcpyDtoH_v2)(&sum, total, (size_t)4));
    assert(sum == times * count);
}

static void run(void) {
    void *params[] = {&items, &added, &count};
    OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, NULL, params, NULL));
    expect(3);
}
"""


# Every form of a launch
FORMS = (
    CLIENT
    + r"""
int main(int argc, char **argv) {
    setup(argv[1]);
    void *params[] = {&items, &added, &count}, *stream;
    struct { CUdeviceptr items; unsigned added, count; } packed = {items, added, count};
    size_t size = sizeof(packed);
    void *extra[] = {(void *)1, &packed, (void *)2, &size, NULL};
    CUlaunchConfig config = {6, 1, 1, 70, 1, 1, 0, NULL, NULL, 0};
    OK(D(cuStreamCreate)(&stream, 1));
    run();
    OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, NULL, NULL, extra));
    expect(3);
    OK(D(cuLaunchKernelEx)(&config, function, params, NULL));
    expect(3);
    OK(D(cuLaunchKernelEx)(&config, function, NULL, extra));
    expect(3);
    OK(D(cuCtxSynchronize)());
    OK(D(cuLaunchCooperativeKernel)(function, 6, 1, 1, 70, 1, 1, 0, stream, params));
    expect(3);
    OK(D(cuStreamDestroy_v2)(stream));
    OK(D(cuCtxSynchronize)());
    check();
    return 0;
}
"""
)


def build(folder, source):
    return simulated.build(folder / "client", source)


@cache
def kept():
    """Return the cache of all tests except pipeline tests: a kernel is built only once for all workers and sessions.

    Each version of our code has its own cache, because tests depend on more code than the cache keys cover.
    """
    digest = hashlib.sha256()
    for file in sorted([*hooked.ROOT.glob("gpt/**/*.py"), *hooked.ROOT.glob("runtime/**/*.[chS]")]):
        digest.update(f"{file}\n".encode() + file.read_bytes())
    folder = hooked.ROOT / "build" / "probed" / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    os.utime(folder)
    for other in folder.parent.iterdir():
        with suppress(FileNotFoundError):  # another worker removed it
            if other.stat().st_mtime < time.time() - cuda.KEPT:
                shutil.rmtree(other, ignore_errors=True)
    return str(folder)


@cache
def by_warp():
    """Return a file with gmem_bytes, changed to 48-byte records per warp, for larger buffers."""
    path = Path(kept(), "gmem_bytes.toml")
    text = find_probe("gmem_bytes").read_text().replace("counts = false\n", "")
    part = path.with_suffix(f".{os.getpid()}")  # other workers read the file
    part.write_text(text.replace('level = "block"', 'level = "warp"'))
    part.rename(path)
    return str(path)


def probe_file(name, text):
    """Return a probe file with this text, whose path is the same for all tests: gpt-hook's cache key contains it."""
    path = Path(kept(), "probes", hashlib.sha256(text.encode()).hexdigest()[:16], name)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(f".{os.getpid()}")  # other workers read the file
    part.write_text(text)
    part.rename(path)
    return path


def probed(folder, program, *options, arguments=(PTX,)):
    """Return the result of a run, and its trace."""
    cache = str(folder / "cache") if "--jit" in options else kept()
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": cache}
    out = folder / "t.mp"
    done = hooked.run(out, program, *arguments, options=("-f", *options), env=env)
    return done, hooked.Trace(out) if out.exists() else None


REFUSED = re.compile(r"libcuda\.so\.1: error: kernel .\w+.: .* given, \d+ allowed\n")


def good(folder, program, *options, **more):
    done, trace = probed(folder, program, *options, **more)
    assert (done.returncode, without_refusals(done.stderr)) == (0, "")
    return trace


def without_refusals(errors):
    """Remove the simulated device's messages about launches that the program expects to fail."""
    return REFUSED.sub("", errors)


def buffers(trace, name):
    """Return a map's buffers by launch number: counts and slots of its units."""
    maps = [r for r in trace.of("map") if r["name"] == name]
    found, fields = maps[0], maps[0]["fields"]  # each loaded kernel has its own map; they're all alike
    slot = np.dtype({
        "names": [f["name"] for f in fields], "formats": [f"<{f['type'][0]}{int(f['type'][1:]) // 8}" for f in fields],
        "offsets": [f["offset"] for f in fields], "itemsize": found["stride"],
    })  # fmt: skip
    head = [("count", "<u8")] if found.get("head", 8) else []
    unit = np.dtype([*head, ("slots", slot, (found["capacity"],))])
    ids, found = {m["id"] for m in maps}, {}
    for record in (one for one in trace.of("buffer") if one["map"] in ids):
        data = unpack_part(parse_part(record), unit.itemsize, SideFiles(None))
        if "units" not in record:
            found[record["launch"]] = np.frombuffer(data, unit)
            continue
        some = np.frombuffer(data, [("number", "<u8"), ("unit", unit)])
        found[record["launch"]] = np.zeros(record["size"] // unit.itemsize, unit)
        found[record["launch"]][some["number"].astype(np.int64)] = some["unit"]
    return found


def check_bytes(trace, launches):
    """Check gmem_bytes's counts for this many launches of `scale`."""
    found = buffers(trace, "gmem_bytes")
    assert sorted(found) == sorted(r["id"] for r in trace.of("probed"))
    assert len(found) == launches
    threads = np.pad(np.arange(BLOCKS * THREADS).reshape(BLOCKS, THREADS) < COUNT, ((0, 0), (0, 96 - THREADS)))
    (level,) = {record["level"] for record in trace.of("map") if record["name"] == "gmem_bytes"}
    active = threads.sum(axis=1) if level == "block" else threads.reshape(-1, 32).sum(axis=1)
    for units in found.values():
        for name in ("read", "written"):
            assert (units["slots"][name][:, 0] == 8 * active).all()


def unprobed(trace):
    found = {}
    for record in trace.of("unprobed"):
        reason = str(find_reason(record))
        found[reason] = found.get(reason, 0) + record["launches"]
    return found


def saved(path, name):
    """Return the data that the launches of a trace saved to a map, as analyses read it, by launch number."""
    found = Probes(path.parent)
    with open(path, "rb") as file:
        for record in wire.read_records(file, str(path)):
            if record["kind"] in ("map", "kernel", "probed", "buffer"):
                assert records.check(record) is None
                found.add(record)
    answer = {buffer.launch.id: buffer.read() for buffer in found.take() if buffer.map.name == name}
    found.check_taken()
    assert not found.pending
    return answer
