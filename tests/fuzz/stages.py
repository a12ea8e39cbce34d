"""Run the executables on hostile input, in this process, and check what must always hold."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from gpt.base import cli, signals
from gpt.base.errors import GptError
from gpt.stream import wire
from tests.fuzz.engine import Wrong

CONTROL = re.compile(r"[\x00-\x08\n-\x1f\x7f-\x9f]")  # Unicode's category Cc, except tabs
DATA = (0, 1, 3, 4)  # exit statuses that data can lead to; 2 is for the command line


@dataclass(frozen=True)
class Outcome:
    """The end of a run."""

    status: int
    out: bytes
    err: str


def stage_main(name: str) -> Callable[[], int]:
    return import_module(f"gpt.stages.{name}").main  # type: ignore[no-any-return]


def fits(data: bytes, *variants: tuple[str, ...]) -> tuple[str, ...]:
    """Return one of the variants: the same one each time for the same input."""
    return variants[zlib.crc32(data) % len(variants)]


def call(main: Callable[[], int], tool: str, *args: str, data: bytes = b"") -> Outcome:
    """Run a stage's `main` with these arguments and this standard input. Raises Wrong, or the unexpected exception."""
    unexpected: list[Exception] = []
    report = cli._report

    def reported(tool: str, error: Exception, commands: list[str]) -> int:
        known = isinstance(error, GptError | OSError) or hasattr(error, "format_message")
        if not known:
            unexpected.append(error)
        return report(tool, error, commands)

    files = [os.memfd_create(name) for name in ("in", "out", "err")]
    os.write(files[0], data)
    os.lseek(files[0], 0, os.SEEK_SET)
    kept = [os.dup(number) for number in range(3)]
    argv, sys.argv = sys.argv, [tool, *args]
    cli._report = reported
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
        status = main()
    finally:
        for number, file in enumerate(kept):
            os.dup2(file, number)
            os.close(file)
        sys.argv, cli._report = argv, report
        signals._are_held = False
    out, err = (_content(file) for file in files[1:])
    os.close(files[0])
    if unexpected:
        raise Wrong(f"internal error: {unexpected[0]!r}") from unexpected[0]
    outcome = Outcome(status, out, err.decode(errors="backslashreplace"))
    check(tool, outcome, (*DATA, 2) if "no trace names a device" in outcome.err else DATA)
    return outcome


def _content(file: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    with open(file, "rb") as opened:
        return opened.read()


def check(tool: str, outcome: Outcome, statuses: tuple[int, ...]) -> None:
    """Check the messages and the output. Raises Wrong."""
    lines = outcome.err.splitlines()
    for line in lines:
        if not line.startswith((f"{tool}: error: ", f"{tool}: warning: ")) or not line.isprintable():
            raise Wrong(f"no message: {line!r}")
        if "out of memory" in line or "internal error" in line:
            raise Wrong(line)
    errors = [line for line in lines if line.startswith(f"{tool}: error: ")]
    if outcome.status not in statuses:
        raise Wrong(f"status {outcome.status}: {errors}")
    if bool(errors) != bool(outcome.status):
        raise Wrong(f"status {outcome.status} with {len(errors)} errors: {errors[:2]}")
    if outcome.out[:1] >= b"\x80":
        check_stream(outcome.out)
    elif outcome.out[:1] == b"{":
        for line in outcome.out.decode().splitlines():
            json.loads(line)
            _check_printable(line)
    else:
        for line in outcome.out.decode().split("\n"):
            _check_printable(line)


def _check_printable(line: str) -> None:
    if odd := CONTROL.search(line):
        raise Wrong(f"control character {odd[0]!r} in text")


def check_stream(data: bytes) -> list[dict[str, Any]]:
    """Return the records that a stage wrote: complete segments, each end with the right count. Raises Wrong."""
    try:
        found = list(wire.read_records(io.BytesIO(data), "output"))
    except GptError as error:
        raise Wrong(f"output: {error}") from error
    count = 0
    for record in found:
        if record["kind"] == "end" and record.get("records") != count:
            raise Wrong(f"end of {count} records says {record.get('records')}")
        count = 0 if record["kind"] == "header" else count + 1
    return found
