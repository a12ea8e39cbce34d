"""Compare finished wheels as shipped, recompressed, and for one architecture: their results and load times.

Each version is installed into its own folder with `pip install --target`. The packages it needs come from a folder of
wheels if one is given, or else from this Python. The script in wheel_uses that's named after the wheel computes
something twice, in its own process; runs of the versions are interleaved.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BIN = HERE.parents[1] / "bin"
USES = HERE / "wheel_uses"
WAYS = {"recompressed": ("", "--recompress"), "arch": ("--arch", ""), "both": ("--arch", "--recompress")}
LIMIT = 300  # seconds of a process


def use_of(wheel: Path, uses: Path = USES) -> Path:
    """Find the script for a wheel, such as cupy.py for cupy_cuda12x. Exits if there's none."""
    name = wheel.name.partition("-")[0].lower().replace("-", "_")
    found = [path for path in uses.glob("*.py") if name == path.stem or name.startswith(f"{path.stem}_")]
    if not found:
        raise SystemExit(f"recompress: error: {wheel}: no script in {uses} is for '{name}'")
    return max(found, key=lambda path: len(path.stem))


def make(wheel: Path, arch: str, folder: Path) -> dict[str, Path]:
    """Write the versions of a wheel."""
    made = {"shipped": wheel}
    for way, (locate, patch) in WAYS.items():
        out = folder / way
        line = f"{BIN}/gpt-extract -r {shlex.quote(str(wheel))} "
        line += f"| {BIN}/gpt-locate --arch {arch} " if locate else ""
        line += f"| {BIN}/gpt-patch {patch} -o {shlex.quote(str(out))} >/dev/null"
        subprocess.run(["bash", "-o", "pipefail", "-c", line], check=True)
        (made[way],) = out.glob("*.whl")
    return made


def install(made: dict[str, Path], packages: Path | None, folder: Path) -> dict[str, Path]:
    """Install each version into a folder, with hard links to the packages that it needs."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--root-user-action=ignore", "--no-compile"]
    base = folder / "base"
    base.mkdir()
    if packages:
        subprocess.run([*pip, "--find-links", packages, "--target", base, made["shipped"]], check=True)
    sites = {}
    for way, wheel in made.items():
        sites[way] = folder / f"site-{way}"
        subprocess.run(["cp", "-al", base, sites[way]], check=True)
        subprocess.run([*pip, "--no-deps", "--upgrade", "--target", sites[way], wheel], check=True)
    return sites


def run(site: Path, use: Path, device: str) -> dict[str, Any]:
    """Run the script in a new process. Exits if that fails."""
    words = [sys.executable, HERE / "wheels.py", use, device]
    env = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT, cwd=site)
    if done.returncode:
        raise SystemExit(f"recompress: error: {site.name}: {use.stem}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(wheel: Path, arch: str, device: str, packages: Path | None, rounds: int, folder: Path) -> dict[str, Any]:
    """Make, install and run all versions of a wheel; return their sizes, times, and digests of their results."""
    use = use_of(wheel)
    made = make(wheel, arch, folder)
    sites = install(made, packages, folder)
    runs = [{way: run(site, use, device) for way, site in sites.items()} for _ in range(rounds)]
    found: dict[str, Any] = {"wheel": wheel.name, "arch": arch, "device": device, "versions": {}}
    for way, path in made.items():
        times = {key: [one[way][key] for one in runs] for key in ("context", "first", "second")}
        digests = sorted({digest for one in runs for digest in one[way]["digests"]})
        found["versions"][way] = {"file": path.name, "bytes": path.stat().st_size, "digests": digests, **times}
    found["same"] = len({digest for one in found["versions"].values() for digest in one["digests"]}) == 1
    return found


def lines(found: dict[str, Any]) -> list[str]:
    """Describe a comparison's findings in lines of text."""
    said = [f"{found['wheel']}: {'the same bytes' if found['same'] else 'DIFFERENT bytes'}, on {found['device']}"]
    for way, one in found["versions"].items():
        context, first, second = (1000 * statistics.median(one[key]) for key in ("context", "first", "second"))
        times = f"context {context:5.0f} ms  first call {first:6.0f} ms  second {second:6.1f} ms"
        said.append(f"  {way:13}{one['bytes']:14,} bytes  {times}  {' '.join(d[:12] for d in one['digests'])}")
    return said


def main() -> None:
    """Run the script in this process; the script and the device are arguments. Writes a line of JSON."""
    use, device = Path(sys.argv[1]), sys.argv[2]
    sys.path[:] = [
        folder for folder in sys.path if Path(folder).resolve() != HERE
    ]  # some there are named like packages
    start = time.perf_counter()
    if device == "cuda":
        import ctypes

        driver, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        for status in (driver.cuInit(0), driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)):
            assert status == 0, f"CUDA error {status}"
        assert driver.cuCtxSetCurrent(context) == 0
    spec = importlib.util.spec_from_file_location("wheel_use", use)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    times = {"context": time.perf_counter() - start}
    spec.loader.exec_module(module)
    start = time.perf_counter()  # exclude the import, which mostly loads Python code
    compute = module.prepare(device)
    digests = [hashlib.sha256(compute()).hexdigest()]
    times["first"] = time.perf_counter() - start
    start = time.perf_counter()
    digests.append(hashlib.sha256(compute()).hexdigest())
    times["second"] = time.perf_counter() - start
    print(json.dumps({"digests": digests, **times}))


if __name__ == "__main__":
    main()
