"""Run tests of probes in running programs with NVIDIA's driver in the simulated device's place.

    python tests/gpu/live.py [FILE ...]

Only tests that start their programs with `hooked.run` and ask nothing of the simulated device can be run this way.
Needs pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILES = [f"tests/runtime/test_probe_{name}.py" for name in ("detail", "room", "tables", "totals")]


def main() -> int:
    """Run the command."""
    options = ("-q", "-p", "no:cacheprovider", "-m", "not full and not soak")
    command = [sys.executable, "-m", "pytest", *options, *(sys.argv[1:] or FILES)]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"GPT_TEST_DEVICE": "real"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
