"""Small programs with one planted cause each, made with a model of host and GPU: the first ten lines of summary, or of
the command that it names, must state that cause.
"""

import os
import random
import re

import pytest

from tests.analyze.asked import answers, run
from tests.analyze.modelled import PINNED, Gpu, Program
from tests.trace import forge

MS, LINES = 1000, 10
PROGRAMS = {}


def planted(command, pattern):
    """Register a program, the command that summary must name, and what that must say."""

    def add(function):
        PROGRAMS[function.__name__] = function, command, pattern
        return function

    return add


def start(thread, imports=100, libraries=2):
    thread.own(imports * MS)
    thread.call("cuInit", 10 * MS)
    thread.call("cuDevicePrimaryCtxRetain", 20 * MS)
    for _ in range(libraries):
        thread.call("cuLibraryLoadData", 2 * MS)


def step(thread, count=5, took=300):
    for number in range(count):
        thread.launch(f"k{number}", took, 5)


def made():
    program = Program()
    start(program.main)
    return program, program.main


@planted("memory", r"GPU memory keeps growing, from .*: \d+ allocations aren't freed")
def history():
    """Many forward passes, each of which keeps memory, before as many backward passes."""
    program, thread = made()
    for number in range(200):
        step(thread, 10, 400)
        thread.call("cuMemAlloc", 150, to=(1 + number) << 30, size=64 << 20)
    for _ in range(200):
        step(thread, 15, 400)
    thread.sync()
    return [program]


@planted(
    "startup", r"start-up .* in 'host code, warm-up'.* steady work .*12 repetitions of 520 launches, .*launch-bound"
)
def optimizer():
    """12 steps of many short launches, after a first step that takes long because it compiles."""
    program, thread = made()
    for number in range(20):
        thread.own(100 * MS)
        thread.call("cuLibraryLoadData", 3 * MS)
        thread.launch(f"k{number}", 50, 800)
    for _ in range(12):
        step(thread, 20, 10)
        for _ in range(500):
            thread.launch("adam", 2, 6)
        thread.sync()
    return [program]


@planted(
    "idle", r"host code .*loads new GPU code in 7 of these, so it compiles kernels, triton_1 8 times: compile before"
)
def recompiled():
    """A compiler that runs for each new shape until it gives up, and then the same steps again and again."""
    program, thread = made()
    for _ in range(8):
        thread.own(700 * MS)
        thread.load("triton_0", "triton_1")
        thread.launch("triton_0", 200)
        thread.launch("triton_1", 200)
        thread.sync()
    for _ in range(40):
        step(thread, 7, 100)
        thread.sync()
    return [program]


@planted("idle", r"host code .*the GPU waits 59 times, 4[45]\.\dms each, all in the first 2\.\d+s, while")
def weights():
    """Weights read for 3 s, and then 7 s of tokens: only the start is slow."""
    program, thread = made()
    for _ in range(60):
        thread.own(45 * MS)
        thread.copy("HtoD", 1 << 20)
        thread.launch("cast", 100)
    for _ in range(70):
        step(thread, 10, 10 * MS)
        thread.copy("DtoH", 8)
    return [program]


@planted("startup", r"before CUDA +11\.0s +9\d\.\d %")
def script():
    """A start of 10 s, and then a single step."""
    program = Program()
    start(program.main, 10_000)
    step(program.main, 20)
    program.main.sync()
    return [program]


@planted("idle", r"in a call +cuModuleLoadData.*, so it compiles kernels, k0 10 times: compile before the loop")
def translated():
    """PTX that the driver compiles in each step."""
    program, thread = made()
    for _ in range(10):
        thread.load("k0", us=50 * MS)
        step(thread)
        thread.sync()
    return [program]


@planted("idle", r"in a call +cuLinkComplete .*load code once, before the work begins")
def linked():
    """Kernels linked in each step."""
    program, thread = made()
    for _ in range(10):
        thread.call("cuLinkComplete", 30 * MS)
        thread.call("cuModuleLoadDataEx", 3 * MS)
        step(thread)
        thread.sync()
    return [program]


@planted("idle", r"in a call +cuMemAlloc .*take it from a pool")
def allocated():
    """Memory allocated and freed in each step."""
    program, thread = made()
    for _ in range(30):
        thread.call("cuMemAlloc", 400, to=1 << 30, size=1 << 28)
        step(thread, 3)
        thread.call("cuMemFree", until=max(program.gpu.ends.values()) + 250, to=1 << 30)
    return [program]


@planted("idle", r"host waits for the GPU 199 times in cuStreamSynchronize, .*wait less often")
def synchronized():
    """A wait for each launch."""
    program, thread = made()
    for number in range(200):
        thread.launch(f"k{number % 20}", 30)
        thread.sync()
    return [program]


@planted("idle", r"only copies .*50 of 50 copies to the device .* use pageable memory")
def pageable():
    program, thread = made()
    for _ in range(50):
        thread.copy("HtoD", 4 << 20)
        thread.launch("k", 300)
    thread.sync()
    return [program]


@planted("idle", r"host code .*the GPU waits 5 times, 900ms each.*unless it is waiting for requests")
def sleeping():
    """A pause after each 20th step."""
    program, thread = made()
    for number in range(101):
        step(thread)
        thread.sync()
        if number % 20 == 19:
            thread.own(900 * MS)
    return [program]


@planted("idle", r"in a call +cuGraphInstantiate .*instantiate graphs once")
def instantiated():
    """Each replay gets a graph of its own."""
    program, thread = made()
    for _ in range(20):
        thread.call("cuStreamBeginCapture")
        thread.own(300)
        thread.call("cuStreamEndCapture", 50)
        thread.call("cuGraphInstantiate", 1500)
        thread.replay(1000)
        thread.sync()
    return [program]


@planted("idle", r"in a call +cuLibraryLoadData .*load code once, before the work begins")
def lazy():
    """Small libraries loaded in the first 30 of 50 steps."""
    program, thread = made()
    for number in range(50):
        if number < 30:
            thread.call("cuLibraryLoadData", 24 * MS)
        step(thread, 20, 100)
        if number < 30:
            thread.launch(f"new{number}", 100)
        thread.sync()
    return [program]


@planted("idle", r"polling .*the host asks [\d,]+ times in cuEventQuery .*keeps a core busy")
def polled():
    program, thread = made()
    for _ in range(20):
        step(thread)
        thread.call("cuEventRecord")
        thread.spin()
        thread.own(200)
    return [program]


@planted("idle", r"managed memory .*1 call of cuMemAllocManaged.*never calls cuMemPrefetchAsync")
def managed():
    """Kernels that wait for pages."""
    program, thread = made()
    thread.call("cuMemAllocManaged", 200, to=1 << 40, size=1 << 30)
    for _ in range(20):
        thread.launch("touch", 20 * MS)
        thread.sync()
        thread.own(8 * MS)
    return [program]


@planted("idle", r"waits of streams .*398 kernels waited for the one before, in another stream.* waits that no result")
def ordered():
    """Two streams that wait for each other, though each leaves most of the GPU free."""
    program, thread = made()
    ends = program.gpu.ends
    for _ in range(200):
        for stream, other in ((20, 21), (21, 20)):
            end = thread.launch(f"k{stream}", 200, 4, stream=stream, blocks=16)
            thread.call("cuEventRecord")
            thread.call("cuStreamWaitEvent")
            ends[10, other] = end + 1
    thread.sync(stream=21)
    return [program]


@planted("idle", r"in a call +cuMemcpyHtoDAsync .*copy more at once, since such small copies")
def small():
    """Many copies of 8 bytes."""
    program, thread = made()
    for _ in range(30):
        for _ in range(50):
            thread.copy("HtoD", 8)
        step(thread, 2, 100)
        thread.sync()
    return [program]


@planted("idle", r"in a call +cuMemHostAlloc .*before the loop")
def pinned():
    """Memory pinned for each copy."""
    program, thread = made()
    for _ in range(20):
        thread.call("cuMemHostAlloc", 6 * MS, to=PINNED, size=32 << 20)
        thread.copy("HtoD", 32 << 20, pageable=False)
        step(thread)
        thread.sync()
        thread.call("cuMemFreeHost", 2500, to=PINNED)
    return [program]


@planted("idle", r"shared GPU .*2 processes take turns on GPU 0, 58 times")
def shared():
    """Two processes on one GPU. Each leaves it idle for half of the time, but together they use it fully."""
    gpu = Gpu()
    programs = [Program(gpu, 10 + number) for number in range(2)]
    for program in programs:
        start(program.main)
    for _ in range(30):
        for program in programs:
            program.main.launch("k", 2 * MS, after=max(gpu.ends.values(), default=0) + 10)
            program.main.sync()
    return programs


@planted("idle", r"host code .*mostly in the range 'wait for a request': do that .*unless it is waiting for requests")
def serving():
    """A server that waits for requests is not at fault."""
    program, thread = made()
    dice = random.Random(1)
    for _ in range(40):
        with thread.range("wait for a request"):
            thread.own(dice.expovariate(1 / 60_000))
        step(thread, 100, 200)
        thread.copy("DtoH", 4000)
    return [program]


@planted("idle", r"in a call +cuCtxCreate .*create contexts once")
def contexts():
    """A context for each step."""
    program = Program()
    for _ in range(10):
        program.main.call("cuCtxCreate", 110 * MS)
        step(program.main)
        program.main.sync("cuCtxSynchronize")
        program.main.call("cuCtxDestroy", 30 * MS)
    return [program]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_planted_cause_is_stated(name):
    make, command, pattern = PROGRAMS[name]
    segments = [program.segment() for program in make()]
    (row,) = answers("summary", *segments).rows["next"]
    assert row["command"] == f"gpt-analyze {command}", row
    done = run(command, data=forge.pack(*segments), env={**os.environ, "COLUMNS": "100"})
    lines = done.stdout.decode().splitlines()[:LINES]
    assert re.search(pattern, " ".join(line.strip() for line in lines)), "\n".join(lines)
