"""At the boundaries of their operands, instructions give the same results on the simulated device as on an H200. Where
PTX defines the bits, all bits are equal.
"""

import ctypes
import json
import lzma
import math
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from tests.asm.host import rows
from tests.asm.host.driver import Driver
from tests.runtime import hooked
from tests.tiers import full

HERE = Path(__file__).parent
ROWS = rows.rows()
SLICES = 16
# Tolerances for approximations, compared with the H200's, which has an error of its own: relative, or absolute for
# results below 1 (sin, cos, lg2).
NEAR = {"f32": 2.0**-20, "f64": 2.0**-18, "f16": 2.0**-9, "bf16": 2.0**-6, "tanh.approx.f32": 2.0**-10}


def measured():
    """Return the H200's result for each row."""
    counts = json.loads((HERE / "h200.json").read_text())["rows"]
    words = memoryview(lzma.decompress((HERE / "h200.xz").read_bytes())).cast("Q")
    found, at = {}, 0
    for text, count in counts.items():
        found[text] = words[at : at + count].tolist()
        at += count
    return found


def computed(wanted, folder):
    """Return the simulated device's results."""
    (folder / "rows.ptx").write_text(rows.program(wanted, "sm_90"))
    made = "gpt-extract --ptx rows.ptx | gpt-asm --arch host --no-cache --save ."
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{made} >/dev/null"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim"), "GPT_SIM_RUN": "all"}
    numbers = ",".join(str(ROWS.index(row)) for row in wanted)
    line = [sys.executable, "-m", "tests.asm.host.test_edges", folder / "rows.0.host.object", numbers]
    out = subprocess.run(line, cwd=hooked.ROOT, env=env, capture_output=True, check=False)
    assert out.returncode == 0, out.stderr.decode()
    words = memoryview(out.stdout).cast("Q")
    found, at = {}, 0
    for row in wanted:
        count = len(rows.inputs(row))
        found[row.text] = words[at : at + count].tolist()
        at += count
    return found


def main(image, numbers):
    """Run the rows of an object in a new process, and write their results."""
    driver = Driver()
    module = driver.load(Path(image).read_bytes())
    for at, number in enumerate(map(int, numbers.split(","))):
        operands = rows.inputs(ROWS[number])
        given, made = driver.allocate(rows.packed(operands)), driver.allocate(8 * len(operands))
        function = driver.function(module, f"r{at}")
        driver.launch(function, (len(operands) + 63) // 64, 64, given, made, ctypes.c_uint32(len(operands)))
        sys.stdout.buffer.write(driver.read(made, 8 * len(operands)))


def number(bits, t):
    """Return a float's value from its bits."""
    if t == "bf16":
        bits, t = bits << 16, "f32"
    letter, size = {"f16": ("e", 2), "f32": ("f", 4), "f64": ("d", 8)}[t]
    return struct.unpack(f"<{letter}", (bits & (1 << 8 * size) - 1).to_bytes(size, "little"))[0]


def is_near(row, ours, theirs):
    """Return whether two results of an approximation are equally good."""
    kind = row.result.removesuffix("x2")
    parts = [0, 16] if row.result.endswith("x2") else [0]
    for shift in parts:
        a, b = number(ours >> shift & (1 << 64) - 1, kind), number(theirs >> shift & (1 << 64) - 1, kind)
        if math.isnan(a) or math.isnan(b) or math.isinf(a) or math.isinf(b):
            if not (a == b or (math.isnan(a) and math.isnan(b))):
                return False
            continue
        room = NEAR.get(row.text, NEAR[kind])
        scale = max(abs(b), 1.0) if re.match("sin|cos|lg2", row.text) else max(abs(b), 2.0**-126)
        if abs(a - b) > room * scale:
            return False
    return True


def is_defined(row, operands):
    """Return whether PTX defines the result."""
    if row.text.startswith(("bfe", "bfi")):
        return max(operands[-2:]) < 256
    if row.text.startswith("fns"):
        return operands[2] != 1 << 31
    return True


def is_same(row, operands, ours, theirs):
    """Return whether a result equals the hardware's, or is equally good."""
    if not is_defined(row, operands):
        return True
    return ours == theirs if row.exact else is_near(row, ours, theirs)


@pytest.mark.parametrize("part", ["sample", *map(full, range(SLICES))])
def test_rows(part, tmp_path):
    wanted = ROWS[::25] if part == "sample" else ROWS[part::SLICES]
    expected, found = measured(), computed(wanted, tmp_path)
    wrong = []
    for row in wanted:
        for operands, ours, theirs in zip(rows.inputs(row), found[row.text], expected[row.text], strict=True):
            if not is_same(row, operands, ours, theirs):
                wrong.append(f"{row.text} {' '.join(map(hex, operands))}: {ours:#x}, on an H200 {theirs:#x}")
    kinds = len({line.split()[0] for line in wrong})
    assert not wrong, f"{len(wrong)} results of {kinds} instructions differ:\n" + "\n".join(
        wrong[:: max(1, len(wrong) // 60)]
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
