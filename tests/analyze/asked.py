"""Run gpt-analyze from tests, and return its answers as rows."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from gpt.stream import jsonl, packed, records, wire
from tests import loaded
from tests.trace import forge


def run(name: str, *args: Any, data: bytes = b"", **options: Any) -> subprocess.CompletedProcess[bytes]:
    return loaded.run(["gpt-analyze", name, *args], data, **options)


class Answers:
    """`rows` and `verdicts` are indexed by answer name; `others` are the kinds of the other records."""

    def __init__(self, found: bytes | Iterable[dict[str, Any]]) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.verdicts: dict[str, list[str]] = {}
        self.others: list[str] = []
        for record in jsonl.read_lines(io.BytesIO(found), "out") if isinstance(found, bytes) else found:
            assert records.check(record) is None
            if record["kind"] != "answer":
                self.others.append(record["kind"])
                continue
            fields, rows = packed.unpack_rows(record)
            told = [zip((field.name for field in fields), row, strict=True) for row in rows]
            self.rows[record["name"]] = [{name: value for name, value in row if value is not None} for row in told]
            self.verdicts[record["name"]] = record["verdict"]


def ask(name: str, *segments: list[dict], args: tuple[Any, ...] = (), status: int = 0, errors: int = 0) -> Answers:
    """Return its answer about a stream."""
    done = run(name, "--json", *args, data=forge.pack(*segments))
    assert (done.returncode, len(done.stderr.splitlines())) == (status, errors), done.stderr
    return Answers(done.stdout)


def answers(name: str, *segments: list[dict], **options: Any) -> Answers:
    """Run an analysis in this process, a hundred times as fast as its executable. It must take whole traces."""
    from gpt.trace.process import iter_processes

    analysis = import_module(f"gpt.analyze.{name}").ANALYSIS.make(**options)
    found = wire.read_records(io.BytesIO(forge.pack(*segments)), "in")
    for process in iter_processes(found, analysis.kinds):
        analysis.take(process)
        analysis.end(process)
    return Answers(analysis.answer([]))
