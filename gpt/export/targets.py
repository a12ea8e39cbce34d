"""Export the tables about processes, GPUs and the export itself."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np

import gpt
from gpt.export import schema
from gpt.export.files import TableFile
from gpt.export.strings import Strings
from gpt.trace.machines import LIMIT, NO_END, Machines

if TYPE_CHECKING:
    from gpt.export.rows import ProcessRows
    from gpt.trace.process import Process

MOST_SECONDS = 253_402_300_799  # since the epoch: Python's dates end with the year 9999
KILO_UNITS = 2 / 8  # bytes per line of the memory bus and clock
Row = tuple[Any, ...]


class Targets:
    """The processes so far, with their machines and GPUs."""

    def __init__(self, tables: TableFile) -> None:
        self._tables = tables
        self._machines: Machines | None = None
        self._hosts: dict[str, None] = {}
        self._gpus: dict[Any, int] = {}
        self._captured: list[Row] = []
        self._first: tuple[int, int] | None = None  # time of day and clock
        self._said: list[Row] = []  # rows of DIAGNOSTICS
        self._number = 0

    def offset(self, process: Process) -> int:
        """Return the ns to add to CLOCK_MONOTONIC of a process. 0 is the earliest beginning that was known at the first
        call.
        """
        if self._machines is None:
            self._machines = process.machines
            self._machines.fix()
        header = process.header
        self._machines.add(header)
        offset = self._machines.offset(header)
        if self._first is None:
            self._first = max(0, header["realtime"] - header["monotonic"] - offset), max(0, -offset)
        return offset

    def add(self, rows: ProcessRows, strings: Strings) -> None:
        """Add a process that's over."""
        process, header, pid = rows.process, rows.process.header, rows.global_pid
        argv = header["argv"]
        self._number += 1
        start = min(max(-LIMIT, process.clock.monotonic + rows.offset), LIMIT)
        told = (pid, process.pid, shlex.join(argv), header["host"], header.get("rank"), header.get("boot_id"))
        self._write(schema.PROCESSES, [(*told, start, process.exit_status)])
        self._hosts[header["host"]] = None
        name = f"PROCESS_{self._number - 1}"
        words = [(f"{name}:COMMAND", argv[0] if argv else "")]
        words += [(f"{name}:ARGUMENT_{at}", word) for at, word in enumerate(argv[1:])]
        self._write(schema.CAPTURED, words)
        threads = np.array(sorted(process.threads), np.uint64)
        names = [strings.number(f"thread {thread}") for thread in threads.tolist()]
        self._tables.write(schema.THREADS, len(names), {"nameId": names, "globalTid": rows.global_tids(threads)})
        for ordinal, card in sorted(process.cards.items()):
            self._add_gpu(process, ordinal, card)
        if process.status is None:
            self._said.append((schema.WARNING, f"no end of process {process.pid}: {NO_END}", pid))
        self._said += [(schema.WARNING, line, pid) for line in rows.iter_lost()]
        levels = {"error": schema.ERROR}
        self._said += [
            (levels.get(one["level"], schema.WARNING), f"{one['where']}: {one['text']}", pid) for one in process.diags
        ]

    def _add_gpu(self, process: Process, ordinal: int, card: dict[str, Any]) -> None:
        key = process.gpu(ordinal)
        new = key not in self._gpus
        number = self._gpus.setdefault(key, len(self._gpus))
        uuid, sms = card.get("uuid"), card.get("sms")
        if new:
            digits = "".join(filter(str.isdigit, card["arch"]))[:6]
            major, minor = (int(digits[:-1]), int(digits[-1])) if len(digits) > 1 else (None, None)
            width, clock = card.get("bus_bits"), card.get("memory_hz")
            band = min(int(width * clock * KILO_UNITS), (1 << 64) - 1) if width and clock else None
            told = (number, card["name"], uuid, _fit(sms), major, minor, card.get("clock_hz"), band)
            self._write(schema.GPUS, [told])
        self._write(schema.DEVICES, [(number, _fit(ordinal), process.pid, uuid, _fit(sms))])

    def close(self, incomplete: list[str], strings: Strings) -> None:
        """Write the remaining rows, after everything has been read. `incomplete` has lines about missing data."""
        known = {text for _, text, _ in self._said}
        self._said += [(schema.ERROR, line, None) for line in incomplete if line not in known]
        self._write(schema.DIAGNOSTICS, self._said)
        self._write(schema.SYSTEM, [("Hostname", host) for host in self._hosts])
        if self._first:
            seconds = min(self._first[0] // 10**9, MOST_SECONDS)
            text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
            self._write(schema.SESSION, [(self._first[0], text, self._first[1])])
        told = {"EXPORT_TOOL": "gpt-analyze", "EXPORT_TOOL_VERSION": gpt.__version__}
        self._write(schema.EXPORTED, [*told.items(), ("COMPLETE", "no" if self._said else "yes")])
        for at in range(0, len(strings.texts), 1 << 14):
            texts = strings.texts[at : at + (1 << 14)]
            numbers = np.arange(at, at + len(texts))
            self._tables.write(schema.STRINGS, len(texts), {"id": numbers, "value": texts})

    def _write(self, table: schema.ExportTable, rows: list[Row]) -> None:
        columns = {field.name: [row[at] for row in rows] for at, field in enumerate(table.fields)}
        self._tables.write(table, len(rows), columns)


def _fit(number: int | None) -> int | None:
    return None if number is None else min(number, (1 << 32) - 1)
