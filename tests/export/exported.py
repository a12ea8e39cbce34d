"""Hand-made traces, their exports, and queries on the exports."""

import io
import sqlite3

from gpt.analyze.export import Export, ExportFormat
from gpt.stream import records, wire
from gpt.trace.process import iter_processes
from tests.trace import forge

KERNEL = "_ZN2at6native4gemmIfLi4EEEvPT_i"
APIS = ["cuLaunchKernel", "cuMemcpyHtoD", "cuMemsetD8", "cuGraphLaunch", "cuStreamSynchronize"]
LAUNCH, COPY, SET, GRAPH, WAIT = range(1, 6)
HIGH = 0xFFFF_8000_0000_1000
NS = {"monotonic": 1000}


def small(end=True, late=False, **header):
    """Return a program that launches, copies, sets, launches a graph and waits, once each, with some NVTX records."""
    apis = [forge.api(number, name) for number, name in enumerate(APIS, 1)]
    apis += [records.make("function", id=9, name=KERNEL)]
    launches = [(2000, 100, LAUNCH, 0, 7, 9, 128, 1, 2, 3, 32, 4, 1, 2, 1, 1, 1, 0)]
    moved = [(3000, 50, COPY, 0, HIGH, 64, 4096, 7), (4000, 60, SET, 0, HIGH, 0, 512, 0)]
    others = [(5000, 70, GRAPH, 0, 0xABC, 7), (6000, 0, WAIT, 0, 0, 7)]
    gpu = [(2500, 900, 2000, 7, LAUNCH, 9, 1, 0), (3500, 800, 3000, 7, COPY, 0, 1, 0)]
    gpu += [(4500, 10, 4000, 0, SET, 0, 1, 0), (5500, 700, 5000, 7, GRAPH, 0, 1, 0)]
    rows = [
        forge.calls(launches, forge.LAUNCH),
        records.make("gpu_times", **forge.rows(gpu, forge.GPU_TIMES)),
        forge.calls(moved, forge.MEMORY),
        forge.calls(others, forge.OBJECT, thread=2),
    ]
    rows[3:] = [forge.calls(others[:1], forge.OBJECT), forge.calls(others[1:], forge.OBJECT, thread=2)]
    more = [
        records.make("device", index=0, name="H200", arch="sm_90", uuid="GPU-1", runs="sass", sms=132,
                     memory_hz=2_600_000_000, bus_bits=6144),
        records.make("range", id=1, type="push", thread=1, name="step", start=1900),
        records.make("range_end", id=2, thread=2, end=7000),
        records.make("range", id=2, type="start", thread=1, name="io", domain="torch", start=1950),
        records.make("range", type="mark", thread=1, name="now", start=1960),
        records.make("ioctl", thread=1, parent=2000, device="/dev/nvidia0", request=42, name="NV_ESC_RM_CONTROL",
                     command=8320, start=2010, duration=20, error=22),
    ]  # fmt: skip
    inside = [*rows, *apis, *more] if late else [*apis, *more, *rows]
    return forge.trace(*inside, end=end, **(NS | header))


def write(path, *segments, shape=ExportFormat.sqlite):
    """Run the analysis in this process, and return its output."""
    with Export(None, False, shape, path) as made:
        for process in iter_processes(wire.read_records(io.BytesIO(forge.pack(*segments)), "in"), made.kinds):
            process.drained = True
            made.take(process)
            made.end(process)
        list(made.answer([]))
    return path


def ask(path, query):
    with sqlite3.connect(path) as database:
        return database.execute(query).fetchall()


def tables(path):
    """Return every row of a database, by table."""
    names = [name for (name,) in ask(path, "SELECT name FROM sqlite_master")]
    return {name: ask(path, f'SELECT * FROM "{name}"') for name in names}
