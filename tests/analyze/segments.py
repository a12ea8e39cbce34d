"""Random processes with calls, GPU times, ranges and contexts, for tests that compare an analysis with a plain
implementation.
"""

from __future__ import annotations

import random

from gpt.stream import records
from tests.trace import forge

APIS = (
    "cuLaunchKernel", "cuGraphLaunch", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuStreamSynchronize", "cuCtxSynchronize",
    "cuModuleLoadData", "cuCtxSetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuMemAlloc",
)  # fmt: skip
TYPES = {"cuCtxSynchronize": ("sync", "context")}
NAMES = ("step", "forward", "warmup", "", "decode")
LAYOUTS = {"cuLaunchKernel": forge.LAUNCH, "cuMemcpyHtoD": forge.MEMORY, "cuMemcpyDtoH": forge.MEMORY}
TIMES = forge.GPU_TIMES | {"probed": "u32", "device": "u32"}
ZERO, HZ = 10**6, 2_500_000_000


def make_process(dice, pid, calls, threads, streams):
    """Make a segment in which each thread has chunks of random calls, many of which begin at the same time."""
    found = [
        forge.api(number, name) | dict(zip(("type", "op"), TYPES.get(name, ()), strict=False))
        for number, name in enumerate(APIS, 1)
    ]
    uuids = [records.make("device", index=n, name="H200", arch="sm_90", uuid=f"GPU-{n}", runs="sass") for n in (0, 1)]
    found += [*uuids[: dice.choice((1, 2))], *(records.make("function", id=n, name=f"k{n}") for n in range(1, 6))]
    chunks = []
    for thread in range(1, threads + 1):
        now, told, gpu, open_ = ZERO + dice.randrange(50), [], [], []
        for number in range(calls // threads):
            name = APIS[number % 3 if dice.random() < 0.5 else dice.randrange(len(APIS))]
            took, stream, api = dice.choice((0, 1, 1, 3, 10, 400)), dice.randrange(streams), APIS.index(name) + 1
            function, result = dice.randrange(1, 6), dice.choice((0, 0, 0, 0, 1))
            layout = LAYOUTS.get(name, forge.OBJECT)
            if layout is forge.LAUNCH:
                row = (now, took, api, result, stream, function, 128, 1, 2, 3, 32, 4, 1, 0, 0, 0, 0, 0)
            elif layout is forge.MEMORY:
                row = (now, took, api, result, 1, 2, dice.choice((1, 100, 10**6)), stream)
            else:
                row = (now, took, api, result, dice.randrange(3), stream)
            told.append(forge.calls([row], layout, thread))
            if layout is forge.LAUNCH and dice.random() < 0.8:
                at = now + dice.randrange(500)
                gpu.append((at, dice.choice((1, 50, 900)), now, stream, api, function, thread, 0, 0, dice.randrange(2)))
            if dice.random() < 0.2:
                where = {"thread": thread, "name": dice.choice(NAMES), "start": now}
                where |= {"domain": "nccl"} if dice.random() < 0.2 else {}
                if dice.random() < 0.2:
                    told.append(records.make("range", type="mark", **where))
                else:
                    open_.append(thread * 100_000 + number)
                    kind = dice.choice(("push", "push", "push", "start"))
                    told.append(records.make("range", id=open_[-1], type=kind, **where))
            if open_ and dice.random() < 0.19:
                told.append(records.make("range_end", id=open_.pop(), thread=thread, end=now))
            now += dice.choice((0, 1, 7, 100, 2000))
        if gpu:
            told.append(records.make("gpu_times", **forge.rows(gpu, TIMES)))
        size = dice.choice((5, 50))
        chunks += [(at + dice.random() * size, told[at : at + size]) for at in range(0, len(told), size)]
    chunks.sort(key=lambda chunk: chunk[0])
    clock = {"tsc": 1000, "tsc_hz": HZ, "monotonic": 5000} if dice.random() < 0.5 else {}
    return forge.trace(*found, *(record for _, told in chunks for record in told), pid=pid, **clock)


def make_segments(seed, most=150):
    dice = random.Random(seed)
    return [
        make_process(dice, pid, dice.randrange(1, most), dice.randrange(1, 6), dice.choice((1, 2, 9)))
        for pid in range(10, 10 + dice.choice((1, 1, 2, 3)))
    ]
