"""Times of the nodes of graphs, from the replays that 'gpt-hook run --node-times' measured.

Such a replay runs a copy of the graph with a stamp between any two nodes. The time between two stamps includes the
cost of a stamp (gpt/trace/event_costs.py). `pause` is the time between two stamps without a node in between.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.base.errors import MalformedError
from gpt.stream.reasons import Reason, find_reason

Column = npt.NDArray[np.uint64]
COLUMNS = ("types", "functions", "threads", "calls", "early", "begins", "durations")
TYPES = ("kernel", "memcpy", "memset")  # by the number of a node's type


def name_type(number: int) -> str:
    """Return the name of a node's type."""
    return TYPES[number] if number < len(TYPES) else f"type {number}"


class TimedReplay(NamedTuple):
    """A replay whose nodes were timed, in time stamps: `thread` and `start` identify its call, and its first node could
    begin at `begin`. For each node: its type, its function (or 0), the thread and time stamp of the call that created
    it, whether the graph lets it begin before the node before it ends, when it could begin in this replay, and the time
    from then to its end, which includes a stamp.
    """

    thread: int
    start: int
    begin: int
    pause: int
    types: Column
    functions: Column
    threads: Column
    calls: Column
    early: Column
    begins: Column
    durations: Column


def same_nodes(replays: list[TimedReplay]) -> list[TimedReplay]:
    """Return the replays that ran the same kernels as the last one."""
    return [one for one in replays if np.array_equal(one.functions, replays[-1].functions)]


class NodeTimes:
    """The timed replays of a process, and graphs whose nodes can't be timed."""

    def __init__(self) -> None:
        self._parts: dict[int, dict[tuple[int, int], list[TimedReplay]]] = {}  # by handle, and by call
        self._reasons: dict[int, list[tuple[int, Reason]]] = {}

    def add(self, record: dict[str, Any]) -> None:
        """Add a checked `node_times` record."""
        columns = [np.array(record[name], np.uint64) for name in COLUMNS]
        if len({*map(len, columns)}) != 1:
            raise MalformedError(f"node_times: {len(columns[0])} types, {len(columns[-1])} durations")
        call = record["thread"], record["start"]
        one = TimedReplay(*call, record["begin"], record["pause"], *columns)
        self._parts.setdefault(record["exec"], {}).setdefault(call, []).append(one)

    def add_untimed(self, record: dict[str, Any]) -> None:
        """Add a checked `untimed` record."""
        reason = find_reason(record) or Reason("other")
        self._reasons.setdefault(record["exec"], []).append((record["at"], reason))

    def of(self, handle: int, since: int, until: int | None) -> list[TimedReplay]:
        """Return the timed replays of a handle that were called in a period, oldest first."""
        found = []
        for (_, start), parts in self._parts.get(handle, {}).items():
            if since <= start and (until is None or start < until):
                columns = (np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS)
                found.append(TimedReplay(*parts[0][:4], *columns))
        return sorted(found, key=lambda one: one.start)

    def reason(self, handle: int, since: int, until: int | None) -> Reason | None:
        """Return why the nodes of a handle weren't timed from some moment of a period on, or None."""
        own = [(at, reason) for at, reason in self._reasons.get(handle, ()) if until is None or at < until]
        at, reason = max(own, key=lambda one: one[0], default=(-1, None))
        return reason if at >= since else None
