"""gpt-analyze memory: the memory of a program over time, which code allocated it, and what's left at the end.

A piece of memory exists from the return of the call that allocates it until the call that frees it. Memory from
cuMemCreate exists until its handle has been released and it's no longer mapped. If an address is allocated again while
a piece is using it, that piece must have been freed in a way that isn't recorded. When the only context of a process
ends, its memory ends, too, and counts as left, like the memory that exists at the end of the trace. That isn't
necessarily a leak: drivers free what a program leaves behind, and many programs rely on that.

Fragmentation: the driver maps memory in pages of 2 MiB. Consider all pages that contain a part of a live piece:
fragmentation is the share of their bytes that aren't in any piece. Gaps between such pages cost nothing and don't
count. Only memory that's allocated inside the device's pages can be fragmented. That excludes memory from cuMemCreate,
whose pieces are whole pages, and host memory. Arrays aren't included, because their sizes aren't recorded.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib.answer import Answers, Column, Record, make_answer, make_array_answer, plot
from gpt.analyze.lib.command import of_model
from gpt.analyze.lib.locations import SINCE, WHO, Who, tell_apart
from gpt.trace.kinds import CALLS, GRAPHS, RANGES, SITES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gpt.analyze.lib.allocations import Pieces, Whole
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Process

SUMS = (
    Column("allocations", "u64", title="allocs"),
    Column("freed", "u64"),
    Column("failed", "u64", shown="any"),
    Column("allocated", "u64", "bytes"),
    Column("peak", "u64", "bytes"),
    Column("at_peak", "u64", "bytes", "at GPU peak"),
    Column("left", "u64", "bytes", "not freed"),
)
MEMORY = (
    Column("where", "text", title="memory"),
    Column("type", "text?", shown="under"),
    *WHO,
    *SUMS,
)
SITES_OF = (
    Column("library", "text", title="asked for by"),
    Column("function", "text?", "kernel", shown="under"),
    Column("site", "text?", shown="never"),  # library and function
    *(column for column in SUMS if column.name != "failed"),
)
LINES = (
    Column("line", "text", title="asked for at"),  # file and line
    Column("function", "text", "kernel"),
    Column("path", "text", shown="never"),
    *(column for column in SUMS if column.name != "failed"),
)
MODULES = (
    Column("module", "text", title="asked for in"),
    *(column for column in SUMS if column.name != "failed"),
)
FRAGMENTS = (
    Column("when", "text", title="GPU memory"),
    Column("time", "u64", "ns", "at"),
    Column("live", "u64", "bytes", "allocated"),
    Column("held", "u64", "bytes", "in pages"),
    Column("fragmented", "f64", "%", "unused"),
    Column("pieces", "u64", title="allocs"),
    Column("holes", "u64"),
    Column("largest", "u64", "bytes", "largest hole"),
)
LEFT = (
    Column("type", "text", title="not freed"),
    Column("site", "text?", title="asked for by", shown="any"),
    Column("address", "u64", "address"),
    Column("pid", "u64", "id", shown="never"),
    Column("thread", "u64", "id", shown="never"),
    Column("time", "u64", "ns", "since"),
    Column("bytes", "u64", "bytes"),
)
LIVE = (
    Column("time", "u64", "ns", "time"),
    Column("gpu", "u64", "bytes", "GPU memory"),
    Column("held", "u64", "bytes", "pages held"),
    Column("host", "u64", "bytes", "pinned host memory"),
)
SPANS = (
    Column("begin", "u64", "ns", "from"),
    Column("unrecorded", "u64?", "ns", "not recorded", "any"),
    Column("allocations", "u64", title="allocs"),
    Column("allocated", "u64", "bytes"),
    Column("freed", "u64"),
    Column("peak", "u64", "bytes"),
    Column("live", "u64", "bytes", "at the part's end"),
)
SEEN = 1.01  # if pages are at most this much larger than the memory in them, they don't get a line of their own
TOP, TOP_LEFT, LISTED, POINTS, PARTS = 30, 10, 1000, 2000, 10
GPU, HOST = "GPU memory", "host memory"
INTERPRETER = re.compile(r"(lib)?python\d")
PYTORCH, UNKNOWN = "libc10_cuda.", "not known"
NO_SITES = "no call sites: 'gpt-hook run --stacks memory' records where calls came from"
NONE = "no call allocates memory: 'gpt-hook run' records them, unless --calls leaves out 'memory'"


def memory(trace: TraceModel) -> Answers:
    """Yield the allocations of each process, which code made them, and the memory over time of the process with the
    highest peak.
    """
    from gpt.analyze.lib.allocations import make_pieces

    found = sorted(make_pieces(trace), key=lambda pieces: -pieces.peak(pieces.on_gpu))
    who = tell_apart(pieces.process.header for pieces in found)
    rows = [row for pieces, one in zip(found, who, strict=True) for row in _rows(pieces, one)]
    yield make_answer("memory", MEMORY, rows, [*_describe_growth(found[:1], trace), *_verdict(found)])
    if not found:
        return
    names = [_Names(pieces.process) for pieces in found]
    yield _make_spans(found[0], trace)
    yield _make_live(found[0], len(found))
    if any(pieces.stacks.any() for pieces in found):
        yield _make_sites(found, names)
        yield from _iter_lines(found)
    yield from _iter_modules(found, trace)
    if not _is_simulated(found[0]):  # the simulated device's memory is the host's, without such pages
        yield from _iter_fragments(found[0])
    yield from _iter_left(found, names)


def _rows(pieces: Pieces, who: Who) -> Iterator[tuple[Any, ...]]:
    """Yield rows of MEMORY: the sums of GPU memory and of host memory, each followed by the kinds of memory in it."""
    import numpy as np

    for where, mask in ((GPU, pieces.on_gpu), (HOST, ~pieces.on_gpu)):
        kinds = np.unique(pieces.kinds[mask]).tolist()
        failed = pieces.failed[where == GPU]
        if kinds or failed:
            yield where, None, *who, *_sums(pieces, mask, sum(failed.values()))
        for kind in [*kinds, *(kind for kind in failed if kind not in kinds)]:
            one = mask & (pieces.kinds == kind)
            yield where, pieces.name(kind), *who, *_sums(pieces, one, failed.get(kind, 0))


def _sums(pieces: Pieces, mask: npt.NDArray[np.bool_], failed: int | None) -> tuple[Any, ...]:
    """Return values for the columns SUMS, for the pieces in `mask`. With `failed` None, the number of failures is left
    out.
    """
    left = mask & pieces.left
    sizes = pieces.sizes
    counts = int(mask.sum()), int((mask & ~pieces.left).sum()), *(() if failed is None else (failed,))
    peak, now = pieces.peak(mask), pieces.live_at(pieces.peak_time)
    return *counts, _add(sizes[mask]), peak, _add(sizes[mask & now]), _add(sizes[left])


def _add(sizes: npt.NDArray[np.uint64]) -> float:
    """Add up sizes as floats, because the sums of malformed rows may not fit an integer."""
    return float(sizes.sum(dtype=float))


def _describe_growth(found: list[Pieces], trace: TraceModel) -> Iterator[str]:
    """Return a sentence if memory grows steadily."""
    from gpt.analyze.lib.growth import find_growth
    from gpt.screen.units import human, human_time

    for pieces in found:
        last = trace.last(trace.processes.index(pieces.process))
        for where, chosen in (("GPU", pieces.on_gpu), ("host", ~pieces.on_gpu)):
            if not (grown := find_growth(pieces, last, chosen)):
                continue
            yield (
                f"{where} memory keeps growing, from {human(grown.start)} to {human(grown.end)} in "
                f"{human_time(grown.time)}: {grown.pieces:,} allocations aren't freed. What does the program keep?"
            )


def _verdict(found: list[Pieces]) -> Iterator[str]:
    from gpt.analyze.lib.allocations import NEVER
    from gpt.screen.units import amount, human

    if not found:
        yield NONE
    for pieces in found[:1]:
        pid, left = pieces.process.pid, pieces.left & pieces.on_gpu
        parts = []
        ended = "its trace ended" if pieces.process.status is None else "it ended"
        told = f"process {pid} had allocated up to {human(pieces.peak(pieces.on_gpu))} of GPU memory at a time"
        for mask, said in (
            (left & (pieces.ends >= NEVER), f"not freed before {ended}, when the driver frees it"),
            (left & (pieces.ends < NEVER), "not freed before their context ended, which frees them"),
        ):
            if mask.any():
                parts.append(f"{human(_add(pieces.sizes[mask]))} in {amount(int(mask.sum()), 'allocation')} {said}")
        if not parts and pieces.on_gpu.any():
            parts.append(f"all of it was freed before {ended}")
        yield "; ".join((told, *parts))
    lost = sum(pieces.lost for pieces in found)
    if lost:
        yield f"{amount(lost, 'allocation')} at an address still in use: the free in between wasn't recorded"
    strange = sum(pieces.strange for pieces in found)
    if strange:
        yield f"{amount(strange, 'free')} of memory whose allocation wasn't recorded"
    if found and not any(pieces.stacks.any() for pieces in found):
        yield NO_SITES
    for pieces in found[:1]:
        yield from _compare_pytorch(pieces)


def _compare_pytorch(pieces: Pieces) -> Iterator[str]:
    """Return a sentence about how much of the memory at the peak belonged to PyTorch's allocator."""
    import numpy as np

    from gpt.screen.units import human

    names = _Names(pieces.process)
    owners = {stack: names.library(stack) for stack in np.unique(pieces.stacks).tolist()}
    its = [stack for stack, library in owners.items() if library.startswith(PYTORCH)]
    if its:
        now = pieces.live_at(pieces.peak_time) & pieces.on_gpu
        mine = _add(pieces.sizes[now & np.isin(pieces.stacks, its)])
        rest = _add(pieces.sizes[now]) - mine
        yield f"at the peak, PyTorch's allocator held {human(mine)}; {human(rest)} more was allocated outside of it"


# Which code allocated it


class _Names:
    """The libraries and functions on stacks. Each stack is looked up once."""

    def __init__(self, process: Process) -> None:
        self._sites = process.sites
        self._known: dict[tuple[int, int], tuple[str, str | None]] = {}

    def find(self, stack: int, python: int = 0) -> tuple[str, str | None]:
        """Return the library and the function that allocated memory. If that's the Python interpreter, return the file
        and line that it was executing instead.
        """
        if (stack, python) not in self._known:
            self._known[stack, python] = self._look_up(stack, python)
        return self._known[stack, python]

    def _look_up(self, stack: int, python: int) -> tuple[str, str | None]:
        frame = self._sites.asker(stack)
        file = os.path.basename(frame.path or "") if frame else ""
        caller = self._sites.python_caller(python) if INTERPRETER.match(file) else None
        if caller:
            line = f", line {caller.line}" if caller.line else ""
            return os.path.basename(caller.path or "") or UNKNOWN, f"{caller.function}{line}"
        return file or UNKNOWN, frame.function if frame else None

    def library(self, stack: int) -> str:
        """Return the library that allocated memory."""
        return self.find(stack)[0]


def _make_sites(found: list[Pieces], names: list[_Names]) -> Record:
    """Return libraries, most bytes at the peak first, each followed by its functions."""
    import numpy as np

    sums: dict[tuple[str, str | None], Any] = defaultdict(lambda: np.zeros(len(SITES_OF) - 3))
    for pieces, known in zip(found, names, strict=True):
        both = np.stack([pieces.stacks, pieces.pythons], axis=1)
        numbers, which = np.unique(both, axis=0, return_inverse=True)
        which = which.reshape(-1)
        places = [known.find(*pair) for pair in numbers.tolist()]
        libraries: list[tuple[str, str | None]] = [(library, None) for library, _ in places]
        for of in (libraries, [(library, function or UNKNOWN) for library, function in places]):
            at = {key: number for number, key in enumerate(dict.fromkeys(of))}
            group = np.array([at[key] for key in of])[which]
            for key, number in at.items():
                sums[key] += np.array(_sums(pieces, group == number, None))
    order = sorted(sums, key=lambda key: (*-sums[key[0], None][[4, 2]], key[0], *-sums[key][[4, 2]], key[1] or ""))
    rows = [(*key, _site(*key), *sums[key]) for key in order]
    drawn = plot("bars", "site", "at_peak", title="GPU memory at its peak, by the code that allocated it")
    lines = ["GPU and host memory together"] if not all(pieces.on_gpu.all() for pieces in found) else []
    lines += [f"'peak' and 'at GPU peak' are summed over {len(found):,} processes"] if len(found) > 1 else []
    return make_answer("sites", SITES_OF, rows, lines, top=TOP, plots=[drawn])


def _iter_lines(found: list[Pieces]) -> Answers:
    """Yield the lines of Python code that allocated memory, most bytes at the peak first. Yield nothing if none is
    known.
    """
    import numpy as np

    sums: dict[tuple[str, str, str], Any] = defaultdict(float)
    for pieces in found:
        for python in np.unique(pieces.pythons[pieces.pythons != 0]).tolist():
            if caller := pieces.process.sites.python_caller(python):
                path, function = caller.path or "", caller.function or UNKNOWN
                key = f"{os.path.basename(path) or UNKNOWN}:{caller.line or '?'}", function, path
                sums[key] = sums[key] + np.array(_sums(pieces, pieces.pythons == python, None))
    if sums:
        rows = [(*key, *sums[key]) for key in sorted(sums, key=lambda key: (*-sums[key][[4, 2]], key))]
        drawn = plot("bars", "line", "at_peak", title="GPU memory at its peak, by line of Python")
        yield make_answer("lines", LINES, rows, top=TOP, plots=[drawn])


def _iter_modules(found: list[Pieces], trace: TraceModel) -> Answers:
    """Yield the modules of a model, or NVTX ranges, in which memory was allocated, most bytes at the peak first. Yield
    nothing if there are no ranges.
    """
    import numpy as np

    from gpt.trace.modules import find_modules

    sums: dict[str, Any] = defaultdict(float)
    for pieces in found:
        number = trace.processes.index(pieces.process)
        if not trace.ranges(number).texts:
            continue
        names, which = find_modules(trace, number, pieces.begins, pieces.threads)
        for at, name in enumerate(names):
            if (which == at).any():
                sums[name] = sums[name] + np.array(_sums(pieces, which == at, None))
    if sums:
        rows = [(name, *sums[name]) for name in sorted(sums, key=lambda name: (*-sums[name][[4, 2]], name))]
        drawn = plot("bars", "module", "at_peak", title="GPU memory at its peak, by module")
        yield make_answer("modules", MODULES, rows, top=TOP, plots=[drawn])


def _site(library: str, function: str | None) -> str | None:
    """Return a name for a function of a library. For a row that sums up a whole library, return None."""
    return library if function == UNKNOWN else function and f"{library} {_readable(function)}"


def _iter_left(found: list[Pieces], names: list[_Names]) -> Answers:
    """Yield the pieces that weren't freed, largest first."""
    import numpy as np

    rows: list[tuple[Any, ...]] = []
    for pieces, known in zip(found, names, strict=True):
        left = np.flatnonzero(pieces.left)
        largest = left[np.argsort(-pieces.sizes[left].astype(float), kind="stable")]
        for at in largest[:LISTED].tolist():
            stack, python = int(pieces.stacks[at]), int(pieces.pythons[at])
            library, function = known.find(stack, python) if stack else (None, None)
            site = library and f"{library} {_readable(function)}".rstrip()
            row = pieces.name(int(pieces.kinds[at])), site, int(pieces.addresses[at]), pieces.process.pid
            rows.append((*row, int(pieces.threads[at]), max(0, int(pieces.begins[at])), int(pieces.sizes[at])))
    rows.sort(key=lambda row: -row[-1])
    if rows:
        shown = [column._replace(shown="") if column.name == "pid" and len(found) > 1 else column for column in LEFT]
        yield make_answer("left", shown, rows[:LISTED], [f"'since' {SINCE}"], top=TOP_LEFT)


def _readable(function: str | None) -> str:
    from gpt.screen.demangle import readable

    return readable([function])[0] if function else ""


# When


def _iter_fragments(pieces: Pieces) -> Answers:
    """Yield the fragmentation at the peak, at the end, and when most bytes in pages were unused."""
    import numpy as np

    from gpt.analyze.lib.allocations import PAGE

    moments, live, held = pieces.pages()
    if not len(moments):
        return
    share = np.where(held > 0, 1 - live / np.maximum(held, 1), 0)  # without pages, there's no fragmentation
    wasted = int(np.argmax(held - live))
    rows = []
    places = ("most pages", int(np.argmax(held))), ("most unused", wasted), ("last change", len(moments) - 1)
    for when, at in places:
        time = int(moments[at])
        count, holes = pieces.holes(time)
        row = when, max(0, time), live[at], held[at], 100 * max(0.0, share[at]), count
        rows.append((*row, len(holes), int(holes.max(initial=0))))
    verdict = [
        f"'at' {SINCE}",
        f"in pages: the pages of {PAGE >> 20} MiB that hold any of it, since the driver maps whole pages; unused: the"
        " part of these pages that's in no allocation; holes: the stretches of that part",
    ]
    yield make_answer("fragmentation", FRAGMENTS, rows, verdict)


def _make_spans(pieces: Pieces, trace: TraceModel) -> Record:
    """Divide the time from the start of a process to its last call into PARTS of equal length, and return what happened
    to GPU memory in each of them.
    """
    import numpy as np

    from gpt.analyze.lib.allocations import NEVER
    from gpt.screen.units import amount, human_time

    begins, ends, sizes = (one[pieces.on_gpu] for one in (pieces.begins, pieces.ends, pieces.sizes))
    moments, values = pieces.line(pieces.on_gpu)
    unrecorded = trace.unrecorded(pieces.process)
    rows: list[tuple[Any, ...]] = []
    if len(moments):
        first = min(int(moments[0]), trace.began(pieces.process))
        stop = max(int(moments[-1]), trace.last(trace.processes.index(pieces.process))) + 1
        edges = np.linspace(first, stop, min(PARTS, stop - first) + 1).astype(np.int64)
        for low, high in pairwise(edges):
            new, gone = (begins >= low) & (begins < high), (ends >= low) & (ends < high)
            before, after = np.searchsorted(moments, (low, high))
            there = values[max(0, before - 1) : after]  # the first is what's already allocated
            most, live = float(there.max(initial=0)), float(there[-1]) if after else 0
            off = unrecorded.within_one(int(low), int(high)) or None
            rows.append((max(0, int(low)), off, int(new.sum()), _add(sizes[new]), int(gone.sum()), most, live))
    told = (
        f"GPU memory of process {pieces.process.pid}, from its beginning to its last call, in {len(rows)} equal parts"
    )
    verdict = [told, f"'from' {SINCE}"]
    if over := int((pieces.left & pieces.on_gpu & (pieces.ends < NEVER)).sum()):
        verdict.append(f"freed: with {amount(over, 'allocation')} that ended with the context")
    if off := sum(row[1] or 0 for row in rows):
        verdict.append(f"recording was off for {human_time(off)}: allocations and frees in that time are missing")
    return make_answer("times", SPANS, rows, verdict)


def _make_live(pieces: Pieces, processes: int) -> Record:
    """Return the live bytes at up to POINTS times: neighboring values are merged into their maximum."""
    import numpy as np

    from gpt.screen.units import amount

    moments, pages_live, held = pieces.pages()
    times: list[Whole] = [pieces.line(pieces.on_gpu)[0], pieces.line(~pieces.on_gpu)[0], moments]
    time = np.unique(np.concatenate(times))
    columns = [
        _at(pieces.line(pieces.on_gpu), time),
        _at((moments, held), time),
        _at(pieces.line(~pieces.on_gpu), time),
    ]
    columns[1] = columns[1] + columns[0] - _at((moments, pages_live), time)  # memory outside shared pages is held, too
    chosen = _choose(columns[0])
    verdict = ["live: how much was allocated after each allocation and free, to draw over time"]
    verdict += [f"process {pieces.process.pid}, of {processes}: --pid chooses"] if processes > 1 else []
    if len(chosen) < len(time):
        all_ = amount(len(time), "moment")
        verdict.append(f"{len(chosen):,} of {all_}: the highest and the last of each group of neighbors")
    title = f"memory of process {pieces.process.pid}"
    differ = bool((columns[1] > SEEN * columns[0]).any())  # otherwise the lines would coincide
    y = ["held", "gpu"] if differ and not _is_simulated(pieces) else ["gpu"]  # the last one is drawn on top
    drawn = [plot("levels", "time", *y, title=title)] if columns[0].any() else []
    if columns[2].any():  # on an axis of its own, since it's much smaller or much larger
        drawn.append(plot("levels", "time", "host", title=f"pinned host {title}"))
    values = [np.maximum(time, 0)[chosen], *(column[chosen] for column in columns)]
    return make_array_answer("live", LIVE, values, verdict, top=0, plots=drawn)


def _is_simulated(pieces: Pieces) -> bool:
    return any(runs == "ptx" for _, runs in pieces.process.devices)


def _at(line: tuple[Whole, Any], times: Whole) -> Any:
    """Return the value of a step function at these times."""
    import numpy as np

    moments, values = line
    return np.concatenate(([0.0], values))[np.searchsorted(moments, times, side="right")]


def _choose(values: Any) -> Any:
    """Divide the values into POINTS groups, and return the indexes of the highest and the last one in each."""
    import numpy as np

    if len(values) <= POINTS:
        return np.arange(len(values))
    edges = np.linspace(0, len(values), POINTS // 2 + 1).astype(int)
    highest = [low + int(np.argmax(values[low:high])) for low, high in pairwise(edges)]
    return np.unique([*highest, *(edges[1:] - 1)])


def _find_lack(kinds: set[str]) -> str | None:
    return None if kinds & (CALLS - {"clock", "function"} | {"child"}) else NONE


ANALYSIS = of_model(
    memory,
    "Show who allocates memory, and what isn't freed.",
    CALLS | GRAPHS | RANGES | SITES | {"device"},
    _find_lack,
    types=frozenset(("memory", "context", "graph")),
    drains=True,
    sends=True,
)
