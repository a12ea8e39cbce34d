"""Run instructions at the boundaries of their operands, and faulty kernels, on a GPU, for comparison in tests/asm/host.

`python tests/lab/edges.py [LIBRARY]` runs the rows of tests/asm/host/rows.py and the kernels of faults.py. It writes
edges.json to GPT_GPU_OUT, with the rows' results as xz-compressed 64-bit words, and prints the driver's answer to each
fault. Run once: the 129,663 results of docs/measured.md, kept as tests/asm/host/h200.xz and h200.json.
"""

from __future__ import annotations

import ctypes
import json
import lzma
import os
import struct
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.asm.host import faults, rows
from tests.asm.host.driver import Driver

SLICE = 100  # rows a module


def results(driver: Driver, wanted: list[rows.Row]) -> list[list[int]]:
    """Return the results of each row for its inputs."""
    found = []
    for start in range(0, len(wanted), SLICE):
        part = wanted[start : start + SLICE]
        module = driver.module(rows.program(part, "sm_90"))
        for number, row in enumerate(part):
            operands = rows.inputs(row)
            given, made = driver.allocate(rows.packed(operands)), driver.allocate(8 * len(operands))
            function = driver.function(module, f"r{number}")
            driver.launch(function, (len(operands) + 63) // 64, 64, given, made, ctypes.c_uint32(len(operands)))
            found.append(list(struct.unpack(f"<{len(operands)}Q", driver.read(made, 8 * len(operands)))))
            driver.free(given)
            driver.free(made)
    return found


def main() -> None:
    """Write edges.json and edges.xz."""
    library = sys.argv[1:2]
    out = Path(os.environ.get("GPT_GPU_OUT", "."))
    script = Path(faults.__file__)
    answers = {}
    for case in faults.CASES:
        try:
            done = subprocess.run(
                [sys.executable, script, case, *library], capture_output=True, text=True, timeout=60, check=False
            )
            answers[case] = done.stdout.strip() or done.stderr.strip()[-200:]
        except subprocess.TimeoutExpired:
            answers[case] = "runs on"
        print(f"{case}: {answers[case]}", flush=True)
    wanted = rows.rows()
    found = results(Driver(*library), wanted)
    counts = {row.text: len(values) for row, values in zip(wanted, found, strict=True)}
    (out / "edges.json").write_text(json.dumps({"faults": answers, "rows": counts}, indent=1))
    words = [word for one in found for word in one]
    (out / "edges.xz").write_bytes(lzma.compress(struct.pack(f"<{len(words)}Q", *words), preset=9))
    print(f"{len(wanted)} rows, {len(words)} results")


if __name__ == "__main__":
    main()
