"""A model of programs that use GPUs: host threads make calls and run code of their own, and streams run the queued work
in order. It yields the trace that gpt-hook would record, so a test can plant a cause in ten lines.

Times are in us. Each thread has its own clock, `now`, so a test must let threads that wait for each other take turns.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from gpt.stream import records
from gpt.trace.apis import find_api
from tests.trace import forge

US, ZERO = 1000, 10**9
TIMES = forge.GPU_TIMES | {"probed": "u32", "device": "u32"}
QUEUE = 1000  # launches that a stream takes before the host has to wait
# How long a call takes, and the pause between two pieces of work in a stream.
COST, GAP = 3, 1.5
RATE = {False: 20_000, True: 6_000}  # bytes per us, from pinned and from pageable memory
PINNED = 0x7F00_0000_0000


class Gpu:
    """A GPU. `ends` is when the work queued in each stream ends."""

    def __init__(self, uuid: str = "GPU-1") -> None:
        self.uuid = uuid
        self.ends: dict[Any, float] = defaultdict(float)
        self.begins: dict[Any, deque[float]] = defaultdict(lambda: deque(maxlen=QUEUE))

    def run(self, stream: Any, called: float, took: float, after: float = 0) -> float:
        """Queue work, and return when it begins."""
        begin = max(called, self.ends[stream] + GAP, after)
        self.ends[stream] = begin + took
        self.begins[stream].append(begin)
        return begin


class Program:
    """A process. `at` is when its first call begins."""

    def __init__(self, gpu: Gpu | None = None, pid: int = 10, at: float = 0, **header: Any) -> None:
        self.gpu, self.pid, self.header = gpu or Gpu(), pid, header
        self._apis: dict[str, int] = {}
        self._functions: dict[str, int] = {}
        self._ids = self._modules = 0
        self.main = Thread(self, 1, at)
        uuid = self.gpu.uuid
        device = records.make("device", index=0, name="H200", arch="sm_90", uuid=uuid, runs="sass", sms=132)
        self._found: list[tuple[float, dict[str, Any]]] = [(-1, device)]
        self._head: list[dict[str, Any]] = []

    def thread(self, id_: int, at: float = 0) -> Thread:
        return Thread(self, id_, at)

    def add(self, at: float, record: dict[str, Any]) -> None:
        self._found.append((at, record))

    def api(self, name: str) -> int:
        if name not in self._apis:
            self._apis[name] = len(self._apis) + 1
            api = find_api(name)
            self._head.append(
                records.make("api", id=self._apis[name], symbol=name, name=name, type=api.type, op=api.op)
            )
        return self._apis[name]

    def function(self, name: str) -> int:
        if name not in self._functions:
            self._functions[name] = len(self._functions) + 1
            self._head.append(records.make("function", id=self._functions[name], name=name))
        return self._functions[name]

    def load(self, kernels: Iterable[str]) -> None:
        """Load kernels from memory: from now on, their names mean these."""
        self._modules += 1
        self._head.append(records.make("module", id=self._modules, type="cubin", sha256="ab", loader="/lib/libjit.so"))
        for name in kernels:
            id_ = self._functions[name] = 1000 + len(self._head)
            self._head.append(records.make("function", id=id_, name=name, module=self._modules))

    def number(self) -> int:
        self._ids += 1
        return self._ids

    def segment(self, **header: Any) -> list[dict[str, Any]]:
        found = [record for _, record in sorted(self._found, key=lambda one: one[0])]
        return forge.trace(*self._head, *found, pid=self.pid, **self.header, **header)


class Thread:
    def __init__(self, program: Program, id_: int, at: float) -> None:
        self.program, self.id, self.now = program, id_, at

    def own(self, us: float) -> None:
        """Run code of the program's own."""
        self.now += us

    def call(self, name: str, us: float = COST, until: float = 0, to: int = 0, size: int = 0, result: int = 0) -> int:
        """Make a call that takes `us`, or longer, `until` some time. Return when it began."""
        program, begin = self.program, ZERO + round(self.now * US)
        end = max(self.now + us, until)
        took, api = round(end * US) - round(self.now * US), program.api(name)
        kind = find_api(name).type
        if kind in ("memory", "memcpy", "memset"):
            record = forge.calls([(begin, took, api, result, to, to, size, 7)], forge.MEMORY, self.id)
        else:
            record = forge.calls([(begin, took, api, result, to, 7)], forge.OBJECT, self.id)
        program.add(self.now, record)
        self.now = end
        return begin

    def load(self, *kernels: str, us: float = 1500) -> None:
        """Load kernels that the program has just compiled."""
        self.call("cuModuleLoadData", us)
        self.program.load(kernels)

    def launch(self, kernel: str, took: float, us: float = COST, stream: int = 7, blocks: int = 132, after: float = 0,
               threads: int = 256) -> float:  # fmt: skip
        """Launch a kernel, and return when it ends."""
        program, begin, called = self.program, ZERO + round(self.now * US), self.now
        api, function = program.api("cuLaunchKernel"), program.function(kernel)
        queue = program.gpu.begins[program.pid, stream]
        us = max(us, queue[0] - called if len(queue) == QUEUE else 0)
        row = begin, round(us * US), api, 0, stream, function, 0, blocks, 1, 1, threads, 1, 1, 0, 0, 0, 0, 0
        program.add(called, forge.calls([row], forge.LAUNCH, self.id))
        self.now += us
        return self.work(begin, called + 2, took, api, function, stream, after)

    def work(self, begin: int, called: float, took: float, api: int, function: int, stream: int, after: float) -> float:
        at = self.program.gpu.run((self.program.pid, stream), called, took, after)
        row = ZERO + round(at * US), round(took * US), begin, stream, api, function, self.id, 0, 0, 0
        self.program.add(called, records.make("gpu_times", **forge.rows([row], TIMES)))
        return at + took

    def replay(self, took: float, us: float = COST, graph: int = 5) -> float:
        """Launch a graph."""
        called = self.now
        begin = self.call("cuGraphLaunch", us, to=graph)
        return self.work(begin, called + 2, took, self.program.api("cuGraphLaunch"), 0, 7, 0)

    def copy(self, way: str, size: int, pageable: bool = True, wait: bool = False, stream: int = 7) -> None:
        """Copy to or from the device (HtoD, DtoH): copies from the device, and pageable ones, wait until it's done."""
        name = f"cuMemcpy{way}" + ("" if wait else "Async")
        took, called = 1 + size / RATE[pageable], self.now
        host = pageable and way == "HtoD"
        begin = self.program.gpu.ends[self.program.pid, stream]
        waits = wait or pageable
        at = max(called + 2, begin + GAP)
        start = self.call(name, until=at + took if waits else 0, to=0x1000 if pageable else PINNED, size=size)
        self.work(start, called + 2, took, self.program.api(name), 0, stream, at if host else 0)

    def sync(self, name: str = "cuStreamSynchronize", stream: int = 7) -> None:
        """Wait for a stream, or for all of them."""
        ends = self.program.gpu.ends
        every = [end for (pid, _), end in ends.items() if pid == self.program.pid]
        until = max(every, default=0) if name == "cuCtxSynchronize" else ends[self.program.pid, stream]
        self.call(name, until=until + 2)

    def spin(self, name: str = "cuEventQuery", us: float = 0.5, pause: float = 0.2, stream: int = 7) -> None:
        """Ask until the stream has ended."""
        while self.now < self.program.gpu.ends[self.program.pid, stream]:
            self.call(name, us, result=600)
            self.own(pause)
        self.call(name, us)

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Push an NVTX range, and pop it."""
        id_, program = self.program.number(), self.program
        where = {"id": id_, "type": "push", "thread": self.id, "name": name, "start": ZERO + round(self.now * US)}
        program.add(self.now, records.make("range", **where))
        yield
        program.add(self.now, records.make("range_end", id=id_, thread=self.id, end=ZERO + round(self.now * US)))
