"""Compare a trace's device record with nvidia-smi and with NVIDIA's published figures.

.venv/bin/python tests/lab/peaks.py [--device sim]      # sim only checks that there are numbers

Run once: clocks and peak rates of an H200, in docs/measured.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from gpt.analyze.lib.peaks import PUBLISHED, find_bytes, find_flops  # noqa: E402
from gpt.stream import wire  # noqa: E402

PROGRAM = """
import ctypes
driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert not driver.cuInit(0)
assert not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
assert not driver.cuCtxSetCurrent(context)
"""
NEAR = 0.15  # tolerance; published figures are for a lower clock than the maximum
MHZ = 2e6  # tolerance for clock rates, compared with nvidia-smi's


def main() -> int:
    """Print the comparison, and return how many of the numbers are wrong."""
    more = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "t.mp"
        command = [ROOT / "bin/gpt-hook", "run", "-q", "-o", trace, *more, "--", sys.executable, "-c", PROGRAM]
        subprocess.run(command, check=True)
        with open(trace, "rb") as file:
            card = next(r for r in wire.read_records(file, "t") if r["kind"] == "device")
    wrong = [name for name in ("sms", "warps", "blocks", "clock_hz", "memory_hz", "bus_bits") if not card.get(name)]
    if not more and not wrong:
        query = ["nvidia-smi", "-i", card["uuid"], "--query-gpu=clocks.max.sm,clocks.max.memory", "--format=csv"]
        told = subprocess.run(
            [*query[:-1], query[-1] + ",noheader,nounits"], capture_output=True, text=True, check=True
        )
        rates = [float(cell) * 1e6 for cell in told.stdout.split(",")]
        found = (("clock_hz", rates[0]), ("memory_hz", rates[1]))
        wrong += [name for name, rate in found if abs(card[name] - rate) > MHZ]
    peaks = find_flops(card), find_bytes(card)
    scaled = [(peak.rate or 0) / unit for peak, unit in zip(peaks, (1e12, 1e9), strict=True)]
    published = PUBLISHED.get(card["name"])
    if published:
        pairs = zip(("TFLOP/s", "GB/s"), scaled, published, strict=True)
        wrong += [name for name, rate, right in pairs if abs(rate / right - 1) > NEAR]
    print(json.dumps({**card, "peaks": scaled, "published": published, "wrong": wrong}, indent=1))
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main())
