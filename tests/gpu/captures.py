"""Stress stream captures on a GPU: launch with probes in captures that begin while another thread waits and the hook
collects.

    python tests/gpu/captures.py [--device sim]

Run by tests/gpu/run.sh. No capture of the program may fail, and no saved data may be lost.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.runtime import graphing, hooked, probing  # noqa: E402

OUT = Path(os.environ.get("GPT_GPU_OUT", ROOT / "build" / "gpu"))
DEVICE = "sim" if "sim" in sys.argv else "real"
TURNS, MOMENT = 10000, 20  # longest random delay before a capture, in us
OPTIONS = ("-f", "-p", "gmem_bytes", "--calls", "none", "--complete")


def play(folder: Path, program: Path, stream: str) -> dict[str, Any]:
    """Return a row for launches into a stream of this kind."""
    out, env = folder / "t.mp", os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    words = (str(probing.PTX), stream, str(TURNS), str(MOMENT))
    done = hooked.run(out, program, *words, options=OPTIONS, device=DEVICE, env=env)
    wrong = [f"status {done.returncode}: {done.stderr[-300:]}"] if done.returncode or done.stderr else []
    if not wrong:
        wrong = graphing.check_captures(hooked.Trace(out), TURNS)
    return {"stream": stream, "launches": TURNS, "wrong": wrong}


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="gpt-captures-") as name:
        program = probing.build(Path(name), graphing.CAPTURES)
        rows = [play(Path(name), program, stream) for stream in graphing.CAPTURED]
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "captures.json").write_text(json.dumps({"device": DEVICE, "rows": rows}, indent=1) + "\n")
    for row in rows:
        print(
            f"captures: {row['stream']:10}{row['launches']:8,} launches: {'; '.join(row['wrong']) or 'nothing wrong'}"
        )
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
