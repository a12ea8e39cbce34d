"""Run tests of probes in running programs on NVIDIA's driver in place of the simulated device.

    python tests/gpu/live.py [FILE ...]

This only works for tests that start their programs with `hooked.run` and don't rely on the simulated device. Needs
pytest.
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
