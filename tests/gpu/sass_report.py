"""Print the findings of sass_risks.py as two tables, and write them as JSON, one per line."""

from __future__ import annotations

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Constructs that separate lanes which the kernel keeps together.
UNSAFE = {
    "fork", "fork, load", "fork, COLLECTIVE", "fork, WARPSYNC mask", "BSSY, fork, WARPSYNC", "WARPSYNC.ALL",
    "YIELD", "YIELD, leader", "YIELD in BSSY", "YIELD in BSSY, fork", "NANOSLEEP",
}  # fmt: skip
STRAY = 1  # allowed number of launches that differ for no known reason; an unchanged kernel had one, too
QUEUE = ("LDG", "ATOMG", "STG, its reads", "LDS", "STS, its reads", "SHFL", "S2R")
# For each table row, the parameters with which no word may be wrong.
RIGHT: list[tuple[str, Callable[[str], bool]]] = [
    (r"overwritten: (MUFU|POPC|MATCH)", lambda _: True),
    (r"covered: (STG|ATOMG|LDG|STS|LDS|SHFL)", lambda later: later in QUEUE),
    (r"latency: (IADD3|IMAD|MOV|LOP3|SEL|FADD|VOTE)\b[^,]*$", lambda stall: int(stall) >= 5),
    (r"latency: (ISETP|ELECT) > [^,]*$", lambda stall: int(stall) >= 13),
    (r"latency: (R2UR|UMOV|VOTEU|UISETP) > (?!.*BRA of)", lambda stall: int(stall) >= 10),
    (r"latency: .*, BRA of 5$", lambda stall: int(stall) >= 3),
    (r"matrix: .MMA [ABC]", lambda delay: int(delay) >= 1),
    (r"gathered$", lambda how: how == "COLLECTIVE"),
    (r"reuse$", lambda _: True),
    (r"uniform: .*, (?!YIELD|NANOSLEEP)", lambda _: True),
]
Case = dict[str, Any]
Lines = dict[str, dict[str, Any]]


def machine(cuda: Path) -> dict[str, str]:
    """Return the GPU, its driver and the compiler."""
    line = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu, driver = subprocess.run(line, capture_output=True, text=True, check=True).stdout.splitlines()[0].split(", ")
    version = subprocess.run([cuda / "ptxas", "--version"], capture_output=True, text=True, check=True).stdout
    return {"gpu": gpu, "driver": driver, "ptxas": version.split(", V")[-1].split()[0]}


def constructs(results: list[Case]) -> Lines:
    """Return, by construct and kernel: differing launches and all launches; cases that differ, cases that fail, and all
    cases.
    """
    lines: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for r in (r for r in results if "construct" in r):
        cell = lines[r["construct"]].setdefault(r["kernel"], {"launches": [0, 0], "cases": [0, 0, 0], "unsteady": 0})
        cell["cases"][2] += 1
        if "error" in r:
            cell["cases"][1] += 1
            cell.setdefault("errors", []).append(f"{r['lanes']} lanes: {r['error']}")
            continue
        cell["launches"][0] += r["different"]
        cell["launches"][1] += r["launches"]
        cell["cases"][0] += r["different"] > 0
        cell["unsteady"] += r["unsteady"]
    return dict(lines)


def line_of(case: Case) -> tuple[str, int | str]:
    """Return the table row that a sequence belongs to, and the parameter that varies along the row."""
    what, args = case["what"], list(case["args"])
    match what:
        case "overwritten":
            return f"overwritten: {args[0]}{', busy' if args[2] else ''}", args[1]
        case "latency":
            return f"latency: {args[0]} > {args[1]}" + (f", BRA of {args[3]}" if args[3] else ""), args[2]
        case "matrix":
            return f"matrix: {args[0]} {args[1]}, behind {args[3]}", args[2]
        case "uniform":
            return f"uniform: {args[0]}, {args[1]}", case["lanes"]
        case "count":
            return f"count: {case['registers']} registers, {case['threads']} threads", args[0]
    return f"{what}: {' '.join(map(str, args[:-1]))}".rstrip(": "), args[-1]


def sequences(results: list[Case]) -> Lines:
    """Return, for each row, the number of wrong words and of all words in a small and a big grid, or the fault."""
    lines: Lines = defaultdict(dict)
    for r in (r for r in results if "construct" not in r):
        key, at = line_of(r)
        lines[key][str(at)] = r.get("error") or r["wrong"]
    for key, line in lines.items():
        if all(at.isdigit() for at in line):
            lines[key] = dict(sorted(line.items(), key=lambda item: int(item[0])))
    return dict(sorted(lines.items()))


def broken(found: Lines, words: Lines) -> list[str]:
    """Return the findings that contradict docs/sass-rules.md."""
    failed = [
        f"{construct} in {kernel}"
        for construct, cells in found.items()
        for kernel, cell in cells.items()
        if construct not in UNSAFE and (cell["launches"][0] > STRAY or cell["cases"][1])
    ]
    for key, line in words.items():
        for at, cell in line.items():
            holds = any(re.match(pattern, key) and good(at) for pattern, good in RIGHT)
            if holds and (isinstance(cell, str) or cell[0][0] or cell[1][0]):
                failed.append(f"{key}: {at}")
    return failed


def report(results: list[Case], file: Path, cuda: Path) -> list[str]:
    """Write the JSON, print the tables, and return the rules that were violated.

    In the first table, `d` counts cases that differ and `e` cases that fail. In the second, `.` is right, `o` is wrong
    in the big grid only, `x` is wrong in the small grid too, and `E` is a fault.
    """
    found, words = constructs(results), sequences(results)
    head = {"machine": machine(cuda)}
    parts = {"constructs": found, "sequences": words}
    text = [json.dumps(head)[:-1]]
    for name, lines in parts.items():
        rows = ",\n".join(f"  {json.dumps(key)}: {json.dumps(line)}" for key, line in lines.items())
        text.append(f'"{name}": {{\n{rows}\n}}')
    file.write_text(",\n".join(text) + "}\n")
    kernels = sorted({kernel for line in found.values() for kernel in line})
    print(f"{'construct':26}", *(f"{k:>10}" for k in kernels))
    for construct, cells in found.items():
        row = []
        for kernel in kernels:
            bad, errors, every = cells[kernel]["cases"] if kernel in cells else (0, 0, 0)
            row.append("-" if not every else "same" if not bad + errors else f"{bad}d{errors}e/{every}")
        print(f"{construct:26}", *(f"{cell:>10}" for cell in row))
    for key, line in words.items():
        marks = []
        for at, cell in line.items():
            fault = isinstance(cell, str)
            mark = "E" if fault else "x" if cell[0][0] else "o" if cell[1][0] else "."
            marks.append(f"{at}{mark}")
        print(f"{key:44} {' '.join(marks)}")
    return broken(found, words)
