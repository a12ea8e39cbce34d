"""Hand-made traces with spans on threads and streams; times are in us."""

import io
import tempfile
from pathlib import Path

from gpt.analyze.timeline import ANALYSIS, TimelineFormat
from gpt.stream import records, wire
from gpt.trace.process import iter_processes
from tests.trace import forge

US, ZERO = 1000, 10**9
APIS = ["cuLaunchKernel", "cuMemAlloc", "cuStreamSynchronize", "cuMemcpyHtoD", "cuGraphLaunch"]
KERNELS = ["_Z3addPfi", 'odd"name\n\x1b[31m', "graphed"]


def draw(form, *segments):
    """Draw the timeline of complete traces, as bytes, in this process."""
    return draw_data(form, forge.pack(*segments))


def draw_data(form, data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t")
        drawing = ANALYSIS.make(None, json=False, shape=TimelineFormat(form), output=path)
        for process in iter_processes(wire.read_records(io.BytesIO(data), "in"), drawing.kinds):
            drawing.take(process)
            drawing.end(process)
        assert not list(drawing.answer([]))
        return path.read_bytes()


def segment(*inner, **header):
    told = [forge.api(number, name) for number, name in enumerate(APIS, 1)]
    told += [records.make("function", id=n, name=name) for n, name in enumerate(KERNELS, 1)]
    return forge.trace(*told, *inner, **header)


def launch(at, took, kernel, stream=0, thread=1):
    return forge.calls([forge.launch(ZERO + at * US, took * US, 1, kernel, stream)], forge.LAUNCH, thread)


def call(name, at, took, thread=1, size=0):
    row = (ZERO + at * US, took * US, APIS.index(name) + 1, 0, 0, 0, size, 0)
    return forge.calls([row], forge.MEMORY, thread)


def ran(at, took, kernel, called, api=1, stream=0, thread=1):
    row = (ZERO + at * US, took * US, ZERO + called * US, stream, api, kernel, thread, 0)
    return records.make("gpu_times", **forge.rows([row], forge.GPU_TIMES))


def pushed(id_, name, begin, end, type_="push", domain=None):
    told = records.make("range", id=id_, type=type_, thread=1, domain=domain, name=name, start=ZERO + begin * US)
    return [told, *([records.make("range_end", id=id_, thread=1, end=ZERO + end * US)] if end else [])]


def small(**header):
    return segment(
        *pushed(1, "step", 0, 100), *pushed(2, "both", 5, 60, "start", "io"), *pushed(3, "more", 50, 90, "start", "io"),
        call("cuMemcpyHtoD", 1, 9, size=4096), launch(10, 5, 1), launch(20, 5, 2, 7), call("cuGraphLaunch", 30, 10),
        call("cuStreamSynchronize", 50, 50), ran(2, 7, 0, 1, 4), ran(16, 20, 1, 10), ran(26, 4, 2, 20, stream=7),
        ran(42, 6, 3, 30, api=5), ran(45, 30, 3, 30, api=5),
        records.make("range", type="mark", thread=1, name="here", start=ZERO + 70 * US), **header,
    )  # fmt: skip
