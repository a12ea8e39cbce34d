"""A short reader written from gpt-stream(5) alone (summary_reader.py) gets the same results as gpt-analyze."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime import hooked
from tests.stream import summary_reader
from tests.tiers import every

SOURCE = Path(__file__).with_name("traced.c")
LAUNCHED = 2 * 3 * 200  # calls that launch `one`, in two processes with three threads each
REPLAYED = 2 * 5 * 2  # launches of it by graphs
FAILED = 2 * 3  # failed launches that are counted if launches aren't recorded as calls
RECORDED = {  # options, and launches of `one`
    "all": (("--calls", "all,-query"), LAUNCHED + REPLAYED),
    "gpu": (("--calls", "all,-query", "--gpu-time"), LAUNCHED + REPLAYED),
    "few": (("--calls", "memcpy,graph,sync"), LAUNCHED + REPLAYED + FAILED),
    "none": (("--calls", "none"), LAUNCHED + FAILED),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return hooked.compile_c(tmp_path_factory.mktemp("traced") / "traced", SOURCE.read_text())


def analyze(path):
    """Return the rows of each answer of a summary, and all verdicts."""
    line = [Path(sys.executable).with_name("gpt-analyze"), "summary", "--json", path]
    answers, verdicts = {}, []
    for one in map(json.loads, subprocess.run(line, capture_output=True, text=True, check=True).stdout.splitlines()):
        if one["kind"] == "row":
            answers.setdefault(one["answer"], []).append(one)
        elif one["kind"] == "answer":
            verdicts += one["verdict"]
    return answers, verdicts


def keep(rows, key, *names):
    """Return these numbers of each row, by the row's key. A missing number counts as 0."""
    return {key(row): {name: row.get(name, 0) or 0 for name in names} for row in rows}


def test_it_imports_nothing_of_gpt():
    tree = ast.parse(Path(summary_reader.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    assert imported == {"collections", "msgpack", "pathlib", "struct"}


@pytest.mark.parametrize("how", every(2, RECORDED))
def test_it_finds_what_summary_finds(tmp_path, program, how):
    options, launches = RECORDED[how]
    done = hooked.run(tmp_path / "t.mp", program, "child", options=("-f", *options))
    assert (done.returncode, done.stderr) == (0, "")
    answers, verdicts = analyze(tmp_path / "t.mp")
    functions, copies, kernels, processes = summary_reader.summary(tmp_path / "t.mp")

    names = "threads", "calls", "duration", "status"
    told = {row["pid"]: {name: row.get(name) for name in names} for row in answers["processes"]}
    assert dict(processes) == told
    assert len(processes) == 2 and {one["status"] for one in processes.values()} == {0, 7}

    names = "calls", "counted", "failed", "total"
    rows = [row for row in answers.get("functions", []) if "name" in row]  # the other rows are sums by type
    by_name = {key: {name: sums[name] for name in names} for key, sums in functions.items()}
    assert by_name == keep(rows, lambda row: (row["type"], row["op"], row["name"]), *names)

    names = "calls", "bytes", "total", "in_graphs", "gpu_calls", "gpu_total"
    by_op = {op: {name: sums[name] for name in names} for op, sums in copies.items()}
    assert by_op == keep(answers.get("copies", []), lambda row: row["op"], *names)

    found = {row["name"]: row for row in answers["kernels"]}
    assert {name: (sums["launches"], sums["captured"], sums["gpu_calls"]) for name, sums in kernels.items()} == {
        name: (row["launches"], row["captured"], row.get("gpu_launches", 0)) for name, row in found.items()
    }
    loading = any("for loading" in line for line in verdicts)  # gpt-analyze subtracts that from the GPU time
    for name, sums in kernels.items():
        assert loading or sums["gpu_total"] == found[name].get("gpu_total", 0)

    assert kernels["one"]["launches"] == launches
