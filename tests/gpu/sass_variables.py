"""Probe kernels without PTX that use the variables of their module: `python tests/gpu/sass_variables.py [PROBE ...]`.

Probed kernels are loaded from a cubin that has no variables of its own; the hook writes the addresses of the program's
variables into it. sass_variables.cu launches kernels that share `__device__`, `__constant__` and `__managed__`
variables, and prints their final values. It's compiled to machine code only, in three ways: optimized, for a debugger,
and linked on the device. Its output must be the same with each built-in probe, and each form must have launches with
block_sched.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu import accounts  # noqa: E402

SOURCE = ROOT / "tests" / "gpu" / "sass_variables.cu"
FORMS: dict[str, tuple[str, ...]] = {
    "-O3": (),
    "-O1": ("-Xptxas", "-O1"),
    "-G": ("-G",),
    "-rdc": ("-rdc=true",),
}


def run_one(form: str, program: Path, probe: str, folder: Path) -> dict[str, Any]:
    """Run the program plain and with a probe."""
    folder.mkdir()
    env = accounts.environment(folder, "real")
    plain = accounts.run([program], env, 120)
    probed = accounts.run([*accounts.hooked(folder / "t.mp", "real", "-p", probe), program], env, 120)
    found = accounts.account_all(folder)
    wrong = list(found.wrong)
    if plain.status or probed.status:
        wrong.append(f"status {plain.status} without and {probed.status} with probes: {probed.said[-300:]}")
    if plain.output != probed.output:
        wrong.append(f"{plain.output.strip()} | {probed.output.strip()}")
    return {"form": form, "probe": probe, "wrong": wrong, **found.row()}


def main() -> int:
    """Run the command."""
    names = sys.argv[1:] or sorted(path.stem for path in (ROOT / "probes").glob("*.toml"))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for form, flags in FORMS.items():
            program = Path(folder) / f"program{form}"
            arch = ("-gencode", "arch=compute_90,code=sm_90")
            subprocess.run([accounts.NVCC, *arch, *flags, SOURCE, "-o", program], check=True)
            for name in names:
                row = run_one(form, program, name, Path(folder) / f"{name}{form}")
                rows.append(row)
                state = "WRONG" if row["wrong"] else "same"
                print(f"{form:5} {name:20} {row['probed']:4} of {row['launched']:4} with probes  {state}", flush=True)
                for said in row["wrong"]:
                    print(f"      {said}")
                for reason, count in row["unprobed"].items():
                    print(f"      {count} without: {reason}")
    accounts.keep("sass_variables", rows)
    everywhere = all(row["probed"] for row in rows if row["probe"] == "block_sched")
    return int(any(row["wrong"] for row in rows) or not everywhere)


if __name__ == "__main__":
    sys.exit(main())
