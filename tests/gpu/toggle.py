"""Measure the cost of probes by switching them on and off within one process, including the GPU's time for each step.

    python tests/gpu/toggle.py [--device sim] [--probe NAME] [--pairs N] [--short SECONDS] [PROGRAM ...]

"Off" is recorded without probes, "on" with them (`gpt-hook ctl PID probe`). Each period with probes lies between two
without, and is compared with their mean; the difference between those two is the noise. "From" and "to" are the 95 %
confidence interval of the median over the pairs. A period has two figures: the median of its steps, and their lower
quartile, which other work on the machine disturbs less. `--short` adds SECONDS of short periods, which don't wait until
the trace is written: a host whose speed varies within seconds varies less within a pair. Results must be the same bits,
and no launch or buffer may be missing. Prints a table, and writes the raw figures to toggle.json.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu import accounts  # noqa: E402
from tests.runtime import controlling, hooked, probing  # noqa: E402

Cost = dict[str, float]
TICKS = os.sysconf("SC_CLK_TCK")
QUIET = 0.2  # seconds without a byte more
PAUSE = 0.02  # seconds before a short period


@dataclass(frozen=True)
class Kind:
    """A program's input without the number of times, and these numbers for a period, a short period and the warm-up.
    Each time runs `steps` steps.
    """

    program: str
    what: str
    times: int
    short: int = 20
    warm: int = 4
    steps: int = 1
    columns: tuple[str, ...] = ("wall",)  # times that the program prints for each step
    patience: float = 60

    def line(self, times: int) -> str:
        return f"{self.what} {times}"


KINDS = {
    "llama 1x32": Kind("llama", "1 32", 60),
    "llama 4x512": Kind("llama", "4 512", 40),
    "stock decode": Kind("stock", "decode 1 32", 60, columns=("wall", "GPU")),
    "stock train": Kind("stock", "train 4 256", 30, columns=("wall", "GPU")),
    "stock graph": Kind("stock", "graph 1 32", 100, columns=("wall", "GPU")),
    "launches": Kind("launches", "", 40, short=10, warm=2, steps=500, columns=("host", "wall")),
}


STATUS = struct.pack("2I", 2, 0)  # runtime/common/control.h has the protocol
STATE = struct.Struct("2I9Q")  # ... and strings


def record_order(*probes: str) -> bytes:
    """Return what gpt-hook ctl sends to a process to set probes, recorded by a server of our own."""
    heard: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(f"\0gpt-control.{os.getpid()}.0")
        server.listen()

        def serve() -> None:
            while len(heard) < (2 if probes else 1):  # ctl asks for the supervisor before it sets probes
                client, _ = server.accept()
                with client:
                    heard.append(client.recv(1 << 17))
                    client.send(STATE.pack(2, 1, *[0] * 9) + bytes(3 * 512 + 1024 + 2 * 4096 + 256))

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        controlling.ctl(os.getpid(), "probe", *probes)
        thread.join(10)
    return heard[-1]


class Running(controlling.Server):
    """A program under gpt-hook that answers each line of its input.

    To save time, we send orders ourselves: on some machines, it takes 0.1 s to start gpt-hook ctl.
    """

    probe: str | None = None
    unasked = since = 0  # launches made while no probe was set, up to the last change, and the count at that change

    def prepare(self, probe: str) -> None:
        """Register a probe with the supervisor of the run."""
        controlling.order(self.pid, "probe", probe)
        controlling.order(self.pid, "probe")
        self.orders = {probe: record_order(probe), None: record_order()}
        self.name = f"\0gpt-control.{self.pid}.{controlling.environment(self.pid, 'GPT_HOOK_CONTROL')}"

    def order(self, message: bytes) -> tuple[int, ...]:
        """Send a message, and return the numbers of the state."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(self.name)
            client.send(message)
            state = client.recv(1 << 16)
        if fault := state[-256:].rstrip(b"\0"):
            raise RuntimeError(fault.decode())
        return STATE.unpack_from(state)

    def ask(self, line: str) -> list[str]:
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        answer: list[str] = self.process.stdout.readline().split()
        if not answer:
            raise RuntimeError(self.process.stderr.read()[-2000:])
        return answer

    def set_probe(self, probe: str | None) -> None:
        """Set a probe, or none, and count the launches that are made without probes."""
        launches = self.count()[0]
        self.unasked += launches - self.since if self.probe is None else 0
        self.order(self.orders[probe])
        self.probe, self.since = probe, launches

    def size(self) -> int:
        """Return the total bytes of the trace and of the buffers next to it."""
        return sum(path.stat().st_size for path in self.out.parent.glob(f"{self.out.name}*"))

    def wait_until_quiet(self) -> int:
        """Wait until nothing more is written; return the number of bytes."""
        size, since = self.size(), time.monotonic()
        while time.monotonic() < since + QUIET:
            time.sleep(0.05)
            if self.size() != size:
                size, since = self.size(), time.monotonic()
        return size

    def cpu(self) -> float:
        """Return the CPU seconds used by all threads of the process."""
        words = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / TICKS

    def count(self) -> tuple[int, int]:
        """Return the number of launches so far, and of probed launches."""
        *_, launches, _, with_probes, _, _, _, _ = self.order(STATUS)
        return launches, with_probes

    def waits(self) -> bool:
        """Return whether a kernel's probes are still being built."""
        return self.order(STATUS)[-2] > 0


def start(program: str, folder: Path, device: str, caches: Path | None) -> Running:
    environment = accounts.environment(caches or folder, device)
    if program in ("llama", "stock"):
        line = (Path(sys.executable), ROOT / f"tests/gpu/toggle_{program}.py")
    else:
        line = (hooked.compile_c(folder / "launches", ROOT / "tests/gpu/toggle_launches.c"), probing.PTX)
    return Running(folder / "t.mp", line[0], "--control", arguments=line[1:], device=device, **environment)


def wait_for_probes(running: Running, kind: Kind) -> None:
    """Launch until all kernels have their probes, that is, until the number of probed launches no longer grows."""
    last, end = 0, time.monotonic() + kind.patience
    while time.monotonic() < end:
        before = running.count()[1]
        running.ask(kind.line(kind.warm))
        now = running.count()[1] - before
        if now and now == last and not running.waits():
            return
        last = now
    raise RuntimeError("no probes came in time")


def period(running: Running, kind: Kind, probe: str | None) -> dict[str, Any]:
    """Measure a period with probes or without."""
    running.set_probe(probe)
    if probe:
        wait_for_probes(running, kind)
    else:
        running.ask(kind.line(kind.warm))
    bytes_before, cpu, (launches, probed) = running.wait_until_quiet(), running.cpu(), running.count()
    begun = time.monotonic()
    found = measure_steps(running, kind, kind.times)
    seconds, after = time.monotonic() - begun, running.count()
    size = running.wait_until_quiet() - bytes_before
    return found | {"on": bool(probe), "seconds": seconds, "launches": after[0] - launches,
            "probed": after[1] - probed, "bytes": size, "cpu": running.cpu() - cpu}  # fmt: skip


def short_period(running: Running, kind: Kind, probe: str | None) -> dict[str, Any]:
    """Measure a few steps with probes or without, soon after the period before."""
    running.set_probe(probe)
    time.sleep(PAUSE)
    running.ask(kind.line(kind.warm))
    launches, probed = running.count()
    found = measure_steps(running, kind, kind.short)
    after = running.count()
    return found | {"on": bool(probe), "launches": after[0] - launches, "probed": after[1] - probed}


def run_short(running: Running, kind: Kind, probe: str, seconds: float) -> list[dict[str, Any]]:
    end, found = time.monotonic() + seconds, [short_period(running, kind, None)]
    while time.monotonic() < end:
        found += [short_period(running, kind, probe), short_period(running, kind, None)]
    return found


def measure_steps(running: Running, kind: Kind, times: int) -> dict[str, Any]:
    """Return the time of each step, and what identifies the result."""
    found = running.ask(kind.line(times))
    more = {} if kind.program == "launches" else {"digest": found.pop()}
    count = len(kind.columns)
    return {name: [float(us) for us in found[i::count]] for i, name in enumerate(kind.columns)} | more


def interval(values: list[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median: two of the values, chosen by rank."""
    ranked = sorted(values)
    low = max(0, int((len(ranked) - 1.96 * math.sqrt(len(ranked))) / 2))
    return ranked[low], ranked[-1 - low]


def quartile(times: list[float]) -> float:
    return statistics.quantiles(times, n=4)[0]


def compare(periods: list[dict[str, Any]], what: str, steps: int, figure: Callable[[list[float]], float]) -> Cost:
    """Return medians over the pairs, in us: the time of a step without and with probes, the difference per probed
    launch with its confidence interval, and the same for two steps without probes.
    """
    times = [figure(period[what]) for period in periods]
    off, on = times[::2], times[1::2]
    per_step = statistics.median(period["probed"] for period in periods[1::2]) / steps
    more = [there - (before + after) / 2 for before, there, after in zip(off, on, off[1:], strict=False)]
    noise = [abs(after - before) for before, after in itertools.pairwise(off)]
    low, high = interval(more)
    return {
        "off": statistics.median(off),
        "on": statistics.median(on),
        "per_launch": statistics.median(more) / per_step,
        "low": low / per_step,
        "high": high / per_step,
        "noise": statistics.median(noise) / per_step,
    }


def measure(name: str, running: Running, probe: str, pairs: int, short: float) -> dict[str, Any]:
    """Return a row of the table, and the raw figures."""
    kind = KINDS[name]
    running.ask(kind.line(kind.warm))  # compiles
    running.prepare(probe)
    running.set_probe(probe)
    wait_for_probes(running, kind)  # builds the kernels with probes; later they come from the cache
    periods = [period(running, kind, probe if i % 2 else None) for i in range(2 * pairs + 1)]
    briefly = run_short(running, kind, probe, short) if short else []
    on = [period for period in periods if period["on"]]
    probed = sum(period["probed"] for period in on)
    measured = {"": (periods, kind.times * kind.steps)}
    if short:
        measured["short "] = briefly, kind.short * kind.steps
    row = {
        "program": name,
        "probe": probe,
        "launches_per_step": statistics.median(period["launches"] for period in periods) / kind.times / kind.steps,
        "probed_per_step": statistics.median(period["probed"] for period in on) / kind.times / kind.steps,
        "costs": {
            f"{length}{what}, {figure.__name__}": compare(of_length, what, steps, figure)
            for length, (of_length, steps) in measured.items()
            for what in kind.columns
            for figure in (statistics.median, quartile)
        },
        "bytes_per_probed": sum(period["bytes"] for period in on) / probed,
        "cpu_per_probed": 1e6
        * (statistics.median(p["cpu"] for p in on) - statistics.median(p["cpu"] for p in periods if not p["on"]))
        / (probed / len(on)),
        "wrong": ["probes where there should be none"]
        * any(period["probed"] for period in (*periods, *briefly) if not period["on"]),
        "periods": periods,
        "short_periods": briefly,
    }
    if len({period.get("digest") for period in (*periods, *briefly)}) > 1:
        row["wrong"].append("results differ")
    return row


def run(program: str, names: list[str], given: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="gpt-toggle-") as folder:
        running = start(program, Path(folder), given.device, given.caches)
        try:
            pairs = given.pairs or (2 if given.quick else 8)
            for name in names:
                rows.append(measure(name, running, given.probe, pairs, given.short))
                say(rows[-1])
                accounts.keep("toggle", rows)
            running.set_probe(None)
            output, said = running.process.communicate(timeout=120)
            wrong = [f"status {running.process.returncode}: {said[-500:]}"] if running.process.returncode else []
        finally:
            running.process.kill()
        if program == "launches":
            made, counted = output.split()[-2:]
            wrong += [f"{made} launches were made, the GPU counted {counted}"] if made != counted else []
        found = accounts.account(running.out, unasked=running.unasked)
    rows[-1]["unprobed"] = dict(found.unprobed)
    rows[-1]["wrong"] += wrong + found.wrong + [f"lost: {dict(found.lost)}"] * bool(found.lost)
    return rows


def say(row: dict[str, Any]) -> None:
    """Print lines of the table."""
    for what, cost in row["costs"].items():
        print(f"{row['program']:13}{what:22}{row['launches_per_step']:9.1f}{row['probed_per_step']:8.1f}", end="")
        print(f"{cost['off']:9.2f}{cost['on']:9.2f}{cost['on'] / cost['off']:7.3f}", end="")
        print(f"{cost['per_launch']:9.2f}{cost['low']:9.2f}{cost['high']:9.2f}{cost['noise']:7.2f}", end="")
        print(f"{row['bytes_per_probed']:9.0f}{row['cpu_per_probed']:7.1f}", flush=True)


def main() -> int:
    parser = accounts.arguments(__doc__)
    parser.add_argument("--probe", default="block_sched")
    parser.add_argument("--caches", type=Path, help="a folder that keeps compiled kernels")
    parser.add_argument("--pairs", type=int, help="8, or 2 with --quick")
    parser.add_argument("--short", type=float, default=0, metavar="SECONDS", help="of short periods in addition")
    parser.add_argument("program", nargs="*", choices=[*KINDS, []])
    given = parser.parse_args()
    names = given.program or (["launches"] if given.device == "sim" else list(KINDS))
    heads = f"{'us':35}{'launches':>9}{'probed':>8}{'off':>9}{'on':>9}{'ratio':>7}"
    print(f"{heads}{'a probed':>9}{'from':>9}{'to':>9}{'noise':>7}{'bytes':>9}{'CPU':>7}", flush=True)
    rows: list[dict[str, Any]] = []
    for program in dict.fromkeys(KINDS[name].program for name in names):
        of_program = [name for name in names if KINDS[name].program == program]
        try:
            rows += run(program, of_program, given)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            rows.append({"program": program, "wrong": [str(error)]})
        accounts.keep("toggle", rows)
    for row in rows:
        for wrong in row["wrong"]:
            print(f"{row['program']}: {wrong}")
    return any(row["wrong"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
