"""Find the module of a model, or the NVTX range, in which a thread was at given moments."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from gpt.trace.open_ranges import OpenRanges
from gpt.trace.xla import XLA, name_scope

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.open_ranges import Numbers, Path
    from gpt.trace.spill import Array

LAYERS = "gpt.layers"  # the domain of the ranges that 'gpt-hook --layers' records
IN_RANGE = " (range)"  # after the name of a range that stands for a module
UNKNOWN = "(unknown)"
SET_UP = "(set-up: "  # begins the names of what 'gpt-hook --layers' knows to be set-up: (set-up: autotuning of out)
NUMBER = re.compile(r"\d+")
MOMENT = [("time", "<i8"), ("thread", "<u8"), ("row", "<u8")]


def fold(name: str) -> str:
    """Replace the numbers in a name by N, so that the ranges of all steps or layers share a row."""
    return NUMBER.sub("N", name)


def find_layer(module: str) -> str:
    """Return the repeated block that a module is in: its path up to the first number, or to the first name that ends
    with one and contains others, or the whole path. Set-up isn't split by layer.
    """
    if module.startswith(SET_UP):
        kind, _, of = module.partition(" of ")
        return f"{kind})" if of else kind
    path, note, rest = module.partition(" (")
    words = path.split(".")
    ends = [at for at, word in enumerate(words, 1) if word.isdigit()]
    ends = ends or [at for at, word in enumerate(words[:-1], 1) if word[-1:].isdigit()]
    return ".".join(words[: ends[0]] if ends else words) + note + rest


def is_call(name: str) -> bool:
    """Return whether a range in the domain LAYERS is a call of a module: not set-up, a backward pass or a function."""
    return not name.startswith(SET_UP) and not name.endswith(("(backward)", "()"))


def name_range(text: tuple[str | None, str]) -> str:
    """Return a range's name, with its domain if it has one."""
    domain, name = text
    return f"{domain}: {name}" if domain else name


def describe_path(path: Path, texts: list[tuple[str | None, str]]) -> tuple[str | None, str | None]:
    """Return the innermost open module, and the names of the open NVTX ranges, outermost first. Either may be None."""
    found = [texts[name] for name in path]
    modules = [text for domain, text in found if domain == LAYERS]
    ranges = [name_range(text) for text in found if text[0] != LAYERS]
    return modules[-1] if modules else None, "/".join(ranges) or None


def name_module(path: Path, texts: list[tuple[str | None, str]]) -> str:
    """Return the innermost module, or scope of JAX. If neither is open, return the innermost range."""
    found = [texts[name] for name in path]
    modules = [text for domain, text in found if domain == LAYERS]
    modules = modules or [scope for domain, text in found if domain == XLA and (scope := name_scope(text))]
    if modules:
        return modules[-1]
    return f"{name_range(found[-1])}{IN_RANGE}" if found else UNKNOWN


def find_modules(trace: TraceModel, number: int, times: Array, threads: Array) -> tuple[list[str], Numbers]:
    """Return a list of names, and for each moment (in ns) and thread of a process, the index of the name of its
    module.
    """
    paths, found = find_paths(trace, number, times, threads)
    texts = trace.ranges(number).texts
    return [name_module(path, texts) for path in paths], found


def find_paths(trace: TraceModel, number: int, times: Array, threads: Array) -> tuple[list[Path], Numbers]:
    """Return combinations of open ranges, the empty one first, and the index of the combination for each moment."""
    kept = trace.ranges(number)
    ranges = OpenRanges(kept, trace.processes[number], trace.last(number), range(len(kept.texts)))
    rows = np.zeros(len(times), MOMENT)
    rows["time"], rows["thread"], rows["row"] = times, threads, np.arange(len(times))
    found = np.zeros(len(times), np.int64)
    for [(part, paths)] in ranges.iter((iter([rows[np.argsort(rows["time"], kind="stable")]]), MOMENT)):
        found[part["row"].astype(np.int64)] = paths
    return ranges.paths, found
