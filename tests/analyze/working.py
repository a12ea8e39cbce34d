"""A process whose calls and work on the GPU are made by hand."""

from __future__ import annotations

from gpt.stream import records
from tests.trace import forge

US, ZERO = 1000, 10**9
APIS = (
    "cuLaunchKernel", "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuStreamSynchronize", "cuMemAlloc", "cuGraphLaunch",
    "cuMemHostAlloc",
)  # fmt: skip
TYPES = {"cuMemcpyHtoDAsync": ("memcpy", "HtoD"), "cuMemcpyDtoHAsync": ("memcpy", "DtoH"),
         "cuMemHostAlloc": ("memory", "alloc")}  # fmt: skip
TIMES = forge.GPU_TIMES | {"probed": "u32", "device": "u32"}


class Made:
    """A process whose calls and work are added one by one; times are in us."""

    def __init__(self, pid=10, uuid="GPU-1", sms=132):
        self.pid = pid
        self.found = [
            forge.api(number, name) | dict(zip(("type", "op"), TYPES.get(name, ()), strict=False))
            for number, name in enumerate(APIS, 1)
        ]
        self.found += [records.make("function", id=n, name=f"k{n}") for n in range(1, 9)]
        self.found.append(records.make("device", index=0, name="H200", arch="sm_90", uuid=uuid, runs="sass", sms=sms))

    def call(self, name, start, took, *work, thread=1, function=1, size=0, address=0, blocks=132, stream=7):
        """Make a call that starts `work`, given as its start and duration."""
        at, api = ZERO + round(start * US), APIS.index(name) + 1
        if name == "cuLaunchKernel":
            row = (at, round(took * US), api, 0, stream, function, 0, blocks, 1, 1, 32, 1, 1, 0, 0, 0, 0, 0)
            self.found.append(forge.calls([row], forge.LAUNCH, thread))
        elif name == "cuGraphLaunch":
            self.found.append(forge.calls([(at, round(took * US), api, 0, 5, 7)], forge.OBJECT, thread))
        else:
            row = (at, round(took * US), api, 0, address, address, size, 7)
            self.found.append(forge.calls([row], forge.MEMORY, thread))
        if work:
            self.run(
                *work,
                api=name,
                call=at,
                thread=thread,
                function=function if name == "cuLaunchKernel" else 0,
                stream=stream,
            )
        return self

    def run(self, begin, took, api="cuLaunchKernel", call=0, thread=0, function=1, stream=7):
        """Add work on the GPU."""
        row = (ZERO + round(begin * US), round(took * US), call, stream, APIS.index(api) + 1, function, thread, 0, 0, 0)
        self.found.append(records.make("gpu_times", **forge.rows([row], TIMES)))
        return self

    def range(self, name, begin, end, thread=1):
        """Push a range and pop it."""
        id_ = len(self.found)
        where = {"id": id_, "type": "push", "thread": thread, "name": name, "start": ZERO + round(begin * US)}
        self.found.append(records.make("range", **where))
        self.found.append(records.make("range_end", id=id_, thread=thread, end=ZERO + round(end * US)))
        return self

    def segment(self, **header):
        return forge.trace(*self.found, pid=self.pid, **header)


def steps(count=4):
    """Make steps of 30 us: two short kernels after slow launches, and a long kernel."""
    made = Made()
    for number in range(count):
        at = 30 * number
        made.call("cuLaunchKernel", at, 4, at + 5, 2, function=1)
        made.call("cuLaunchKernel", at + 5, 4, at + 10, 3, function=1)
        made.call("cuLaunchKernel", at + 10, 2, at + 13, 10, function=2)
    return made
