"""Kill a program with probes on the GPU at random times, and count the launches that are missing from the trace.

    python tests/gpu/killed.py [--device sim] [KILLS]

All launches that ended at least 200 ms before the kill should be in the trace. `ended` counts them, `there` counts
launches with complete buffers, and `missing` is the difference. `last` is the time between the end of the last complete
launch and the kill.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.runtime import killing, probing  # noqa: E402

OUT = Path(os.environ.get("GPT_GPU_OUT", ROOT / "build" / "gpu"))
DEVICE = "sim" if "sim" in sys.argv else "real"


def main() -> int:
    """Kill several runs of each kind, and write the figures."""
    kills = int(sys.argv[-1]) if sys.argv[-1].isdigit() else 5
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program = probing.build(Path(folder), killing.ENDLESS)
        for kind in killing.KINDS:
            for _ in range(kills):
                killed, times, trace = killing.kill_one(Path(folder), program, kind, random.uniform(0.3, 1.5), DEVICE)
                ended, there = int((times < killed - killing.LATE).sum()), len(killing.complete(trace))
                last = (killed - int(times[min(there, len(times)) - 1])) / 1e6 if there else None
                rows.append({"kind": kind, "launches": len(times), "ended": ended, "there": there,
                             "missing": max(0, ended - there), "last_ms": last})  # fmt: skip
                print("{kind:8} {launches:7} launches, {ended:7} ended 200 ms before, {there:7} there, "
                      "{missing} missing, last {last_ms} ms before".format(**rows[-1]), flush=True)  # fmt: skip
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "killed.json").write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["missing"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
