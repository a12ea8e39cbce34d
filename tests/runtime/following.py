"""Start programs with live streams, and read the streams' records."""

import io
import os
import subprocess
import time
from collections import Counter

import pytest

from gpt.stream import wire
from tests.runtime import hooked


def live(output, *args, options=("--calls", "all"), **more) -> subprocess.Popen:
    line = hooked.command("run", "-o", output, "--device", "sim", *options, "--", *args)
    return subprocess.Popen(line, **more)


@pytest.fixture(autouse=True, name="private")
def private_folder(tmp_path, monkeypatch):
    """Return the folder in which the helper makes its folders. It must be empty at the end."""
    folder = tmp_path / "private %p"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    deadline = time.monotonic() + 10
    while os.listdir(folder):
        assert time.monotonic() < deadline, list(folder.rglob("*"))
        time.sleep(0.02)


def read(data: bytes) -> list[dict]:
    return list(wire.read_records(io.BytesIO(data), "stream"))


def segments(records: list[dict]) -> list[list[dict]]:
    """Return the records of each segment, and check the count in `end`."""
    found, turns = [], wire.Segments()
    for record in records:
        number = turns.add(record)
        if record["kind"] == "header":
            found.append([])
        if record["kind"] != "resume":
            found[number].append(record)
    for segment in found:
        if segment[-1]["kind"] == "end":
            assert segment[-1]["records"] == len(segment) - 2
    return found


def launches(records: list[dict]) -> dict[str, int]:
    names = {r["id"]: r["name"] for r in records if r["kind"] == "function"}
    found = Counter()
    for record in records:
        if record["kind"] == "launches":
            for row in hooked.rows(record):
                found[names[row["function"]]] += row["count"]
    return dict(found)
