"""Stress `gpt-hook run -p`: threads with their own streams, modules that are loaded and unloaded, and injected
failures.

    probe_stress.py [MODE ...]

probe_stress.c launches probed kernels from 8 threads on 8 streams, and checks their results. It must exit normally with
status 0 while workers and the supervisor are killed or stopped, the disk is full, or device memory is almost full. If
the trace could be written, it must account for all launches. No process of ours may remain.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpt.probe.read import load  # noqa: E402
from tests.gpu import accounts  # noqa: E402

MARK = "PROBE_STRESS"  # environment variable that marks all processes of a run
TWO = ("-p", "gmem_bytes", "-p", "block_sched")
ALL = tuple(word for path in sorted(load.BUILTIN.glob("*.toml")) for word in ("-p", path.stem))


@dataclass(frozen=True)
class Mode:
    """A mode: its options, the failure to inject, the number of kernels, and the MB of device memory to leave free."""

    options: tuple[str, ...] = TWO
    harm: str = ""
    variants: int = 2  # ten times that number on a GPU
    leave: int = 0
    children: int = 0
    output: str = "t.mp"
    disk: int = 0  # size in MB of the file system for the trace
    unprobed: bool = True  # some launches may have no probes


NO_BUFFER = "no buffer was free within --max-memory"
MODES = {
    "plain": Mode((*TWO, "--max-memory", "512M"), unprobed=False),
    "kills": Mode(harm="workers", variants=5),
    "supervisor": Mode(harm="supervisor", variants=5),
    "stopped": Mode((*TWO, "--wait", "2"), harm="stop", variants=5),
    "disk": Mode(disk=2),
    "tiny": Mode((*TWO, "--max-memory", "100K")),
    "waits": Mode((*TWO, "--max-memory", "200K", "--complete"), unprobed=False),
    "memory": Mode(leave=200),
    "children": Mode(output="%p.mp", children=4),
    "live": Mode(output="| cat >'{folder}/t.mp'", children=2),
    "fifo": Mode(output="{folder}/fifo"),
    "stdout": Mode(output="-"),
    "all probes": Mode((*ALL, "--max-memory", "2G"), variants=1),
    "late": Mode((*TWO, "--wait", "0"), variants=5),
    "timed": Mode((*TWO, "--gpu-time", "--calls", "none", "--sample", "1/3")),
}
QUICK = ("plain", "kills", "disk", "tiny")


def ours(mark: str) -> list[int]:
    """Return the processes of a run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            marked = f"{MARK}={mark}\0".encode() in (folder / "environ").read_bytes() + b"\0"
            if marked and not re.search(r"^State:\s*[ZX]", (folder / "status").read_text(), re.M):
                found.append(int(folder.name))
    return found


def is_named(pid: int, name: str) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == name
    return False


def is_supervisor(pid: int) -> bool:
    return is_named(pid, "gpt-broker")


def is_stage(pid: int) -> bool:
    """Return whether a process is a pipeline stage, or a child of one."""
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        return any(word in words for word in (b"gpt-extract", b"gpt-ptx-probe", b"gpt-asm", b"ptxas"))
    return False


class Harm(threading.Thread):
    """Kills or stops a run's processes at random, until it ends."""

    def __init__(self, kind: str, mark: str, seconds: float) -> None:
        super().__init__()
        self._kind, self._mark, self._seconds = kind, mark, seconds
        self._over = threading.Event()
        self.done = 0

    def run(self) -> None:
        dice, begun = random.Random(7), time.monotonic()
        while not self._over.wait(dice.uniform(0.1, 1)):
            all_ = ours(self._mark)
            if not any(is_named(pid, "stress") for pid in all_):
                continue  # gpt-hook runs this stage itself to read the probes, before the program starts
            if self._kind == "workers":
                self._signal([pid for pid in all_ if is_stage(pid) and not is_supervisor(pid)], signal.SIGKILL, dice)
            elif self._kind == "supervisor" and time.monotonic() > begun + self._seconds / 3:
                self._signal([pid for pid in all_ if is_supervisor(pid)], signal.SIGKILL, dice)
            elif self._kind == "stop":
                stopped = self._signal([pid for pid in all_ if is_supervisor(pid)], signal.SIGSTOP, dice)
                self._over.wait(dice.choice([0.1, 1, 4]))
                if stopped:
                    with suppress(OSError):
                        os.kill(stopped, signal.SIGCONT)

    def _signal(self, pids: list[int], number: int, dice: random.Random) -> int:
        with suppress(OSError):
            if pids:
                os.kill(pid := dice.choice(pids), number)
                self.done += 1
                return pid
        return 0

    def end(self) -> int:
        """Stop, and return the number of signals sent."""
        self._over.set()
        self.join()
        return self.done


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Any:
    """Yield a file system of that size, and True; or the folder itself, and False, if nothing can be mounted."""
    small = folder / "small"
    small.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", small]
    if not megabytes:
        yield folder, True
    elif subprocess.run(line, stderr=subprocess.DEVNULL, check=False).returncode:
        yield folder, False
    else:
        try:
            yield small, True
        finally:
            subprocess.run(["umount", small], check=False)


def build(folder: Path) -> Path:
    """Build the program."""
    flags = ["-std=gnu11", "-O1", "-g", ROOT / "tests/gpu/probe_stress.c", "-o", folder / "stress", "-ldl", "-lpthread"]
    subprocess.run(["cc", *flags], check=True)
    return folder / "stress"


@contextmanager
def reading(fifo: Path | None, into: Path) -> Any:
    """Copy the output of a FIFO to a file."""
    if not fifo:
        yield
        return
    os.mkfifo(fifo)
    with open(into, "wb") as file, subprocess.Popen(["cat", fifo], stdout=file) as cat:
        try:
            yield
        finally:
            with suppress(subprocess.TimeoutExpired):
                cat.wait(30)
            cat.kill()


def play(
    name: str, mode: Mode, program: Path, device: str, seconds: float, folder: Path, environment: dict[str, str]
) -> dict[str, Any]:
    """Return a row for one run."""
    mark = f"{os.getpid()}-{name.replace(' ', '-')}"
    env = environment | {MARK: mark}
    variants = mode.variants if device == "sim" else 10 * mode.variants
    with small_disk(folder, mode.disk) as (place, mounted):
        if not mounted:
            return {"mode": name, "wrong": [], "note": "not run: no file system can be mounted"}
        output = mode.output.format(folder=place)
        if not output.startswith(("|", "-", "/")):
            output = str(place / output)
        line: list[str | Path] = [
            accounts.HOOK,
            "run",
            "-q",
            "-f",
            "-o",
            output,
            "--device",
            device,
            *mode.options,
            "--",
        ]
        line += [program, str(seconds), "8", str(variants), str(mode.leave), str(mode.children)]
        harm = Harm(mode.harm, mark, seconds)
        harm.start()
        with reading(place / "fifo" if output.endswith("/fifo") else None, place / "t.mp"):
            done = run_line(line, env, seconds + 150, place / "t.mp" if output == "-" else None)
        done["harms"] = harm.end()
        done["wrong"] += gone(mark)
        found = accounts.Account()
        cut = bool(mode.disk)
        try:
            found = accounts.account_all(place, killed=cut)
        except Exception as error:  # any exception is a failure: the trace must be readable
            if not (cut and "empty" in str(error)):
                done["wrong"].append(f"the trace: {error!r}")
    launched = sum(map(int, re.findall(r"^launches (\d+)$", done.pop("output"), re.M)))
    if not cut and found.launched != launched:
        done["wrong"].append(f"{launched} launches were made, {found.launched} are in the traces")
    waits = "--complete" in mode.options  # without this option, threads on a fast GPU may use up all buffers
    others = {reason: count for reason, count in found.unprobed.items() if waits or reason != NO_BUFFER}
    if others and not mode.unprobed:
        done["wrong"].append(f"without probes: {others}")
    if not found.probed and not mode.harm and "--wait" not in mode.options:
        done["wrong"].append("nothing was probed")
    row = found.row()
    return {"mode": name, **row, **done, "made": launched, "wrong": [*done["wrong"], *row["wrong"]]}


def run_line(line: list[str | Path], env: dict[str, str], patience: float, into: Path | None) -> dict[str, Any]:
    """Run the program; if a live stream goes to standard output, the program's own output goes to standard error."""
    start = time.monotonic()
    if into:
        with open(into, "wb") as file, subprocess.Popen(line, env=env, stdout=file, stderr=subprocess.PIPE) as process:
            try:
                said = process.communicate(timeout=patience)[1].decode()
            except subprocess.TimeoutExpired:
                process.kill()
                said = "ran on"
        done = accounts.Ran(process.returncode, said, said, time.monotonic() - start)
        hooked_gone(into)
    else:
        done = accounts.run(line, env, patience)
    wrong = [f"status {done.status}: {done.said[-300:]}"] if done.status else []
    return {"output": done.output, "said": done.said[-500:], "seconds": done.seconds, "wrong": wrong}


def hooked_gone(trace: Path) -> None:
    """Wait until nothing more is written to a live stream."""
    size, end = -1, time.monotonic() + 20
    while trace.stat().st_size != size and time.monotonic() < end:
        size = trace.stat().st_size
        time.sleep(0.5)


def gone(mark: str, patience: float = 20) -> list[str]:
    """Report and kill the processes that a run left behind."""
    end = time.monotonic() + patience
    while (left := ours(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    said = []
    for pid in left:
        with suppress(OSError):
            said.append(f"left behind: {Path(f'/proc/{pid}/comm').read_text().strip()}")
            os.kill(pid, signal.SIGKILL)
    return said


def run_modes(
    names: list[str],
    device: str,
    seconds: float,
    folder: Path,
    say: Callable[[dict[str, Any]], None],
    patience: float,
    caches: Path | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each mode. Unprobed kernels are cached below `caches`."""
    rows, program, end = [], build(folder), time.monotonic() + patience
    env = accounts.environment(caches or folder, device)
    # The simulated device compiles kernels with the same workers, so compile them before injecting failures.
    if device == "sim":
        most = str(max(MODES[name].variants for name in names))
        library = {"LD_LIBRARY_PATH": str(accounts.SIMULATED)}
        subprocess.run([program, "0", "1", most, "0", "0"], env=env | library, check=True, stdout=subprocess.DEVNULL)
    for name in names:
        shutil.rmtree(Path(env["XDG_CACHE_HOME"], "gpt", "probed"), ignore_errors=True)
        into = folder / name.replace(" ", "-")
        into.mkdir()
        if time.monotonic() < end:
            rows.append(play(name, MODES[name], program, device, seconds, into, env))
        else:
            rows.append({"mode": name, "wrong": ["not run: no time was left"]})
        say(rows[-1])
        shutil.rmtree(into, ignore_errors=True)
    return rows


def main() -> int:
    """Run the modes, and print a table; return 1 if anything is wrong."""
    parser = accounts.arguments(__doc__)
    parser.add_argument("mode", nargs="*", choices=[*MODES, []])
    parser.add_argument("--seconds", type=float, help="of each mode: 12, or 4 with --quick")
    given = parser.parse_args()
    names = given.mode or [name for name in MODES if not given.quick or name in QUICK]
    rows: list[dict[str, Any]] = []

    def say(row: dict[str, Any]) -> None:
        rows.append(row)
        accounts.keep("probe_stress", rows)
        for said in row["wrong"]:
            print(f"{row['mode']}: {said}", flush=True)

    with tempfile.TemporaryDirectory() as name:
        run_modes(names, given.device, given.seconds or (4 if given.quick else 12), Path(name), say, given.patience)
    print(
        f"{'mode':12}{'seconds':>9}{'made':>9}{'in traces':>10}{'probed':>9}{'lost':>6}{'signals':>9}  without probes"
    )
    for row in rows:
        if "probed" not in row:
            print(f"{row['mode']:12}{row.get('note', '')}")
            continue
        counts = f"{row['seconds']:9.1f}{row['made']:9}{row['launched']:10}{row['probed']:9}"
        counts += f"{sum(row['lost'].values()):6}{row['harms']:9}"
        reasons = "; ".join(f"{count}: {reason}" for reason, count in [*row["unprobed"].items(), *row["lost"].items()])
        print(f"{row['mode']:12}{counts}  {reasons or '-'}{'  WRONG' if row['wrong'] else ''}")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
