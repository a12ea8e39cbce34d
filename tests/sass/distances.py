"""The shortest distances that ptxas leaves between a fixed-latency instruction and the reader of its result."""

from __future__ import annotations

from collections import defaultdict

from gpt.sass.kernels import Kernel
from gpt.sass.masks import STARTS
from gpt.sass.stalls import iter_safe

GENERAL = (1 << 255) - 1
PREDICATES = 127 << STARTS.P
OFTEN = 1000

Distances = dict[tuple[str, str, str], tuple[int, int]]  # (writer, register file, reader) -> (cycles, count)


def least_distances(kernel: Kernel, into: Distances) -> None:
    """Add the shortest distances from fixed-latency writers to readers, and count each pair."""
    code, graph = kernel.code, kernel.graph
    for block in graph.blocks:
        pending: list[tuple[int, str, int]] = []
        now = 0
        for index in range(block.start, block.end):
            entry = code.used[code.opcodes[index]].entry
            read, written, *_ = code.masks[index]
            for then, name, mask in pending:
                if used := mask & read:
                    file = "R" if used & GENERAL else "P" if used & PREDICATES else "U"
                    least, times = into.get((name, file, entry.name), (99, 0))
                    into[name, file, entry.name] = (min(least, now - then), times + 1)
            if pending:
                pending = [
                    (then, name, left) for then, name, mask in pending if now - then < 40 and (left := mask & ~written)
                ]
            if any(iter_safe(entry, written)):
                pending.append((now, entry.name, written))
            now += code.controls.stalls[index]


def longest_of_shortest(distances: Distances) -> dict[str, dict[str, int]]:
    """For pairs that occur often, return the minimum distance by register file and writer, for the reader that leaves
    the most time.
    """
    longest: dict[str, dict[str, int]] = defaultdict(dict)
    for (writer, file, _), (least, times) in distances.items():
        if times >= OFTEN:
            longest[file][writer] = max(longest[file].get(writer, 0), least)
    return {file: dict(sorted(names.items())) for file, names in longest.items()}
