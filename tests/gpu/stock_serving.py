"""Switch a probe on for five seconds while stock PyTorch serves requests.

    python tests/gpu/stock_serving.py [--minutes 9]

The server has two threads, each with a stream of its own. One runs forward passes of an 8-layer Llama for prompts of
eight lengths, the other replays a CUDA graph of a decode step. Each result must have the same bits as the first one for
its input. The server runs under `gpt-hook run --disabled`. At an eighth of the time, `gpt-hook ctl` sets block_sched
and turns recording on, and five seconds later off.

Once per second we read the resident memory of the server and of gpt-hook's own processes, and the GPU's free memory.
The table has requests per second and memory before, with, and after the probe. In the last two thirds of the time,
memory must not grow: the median of the last fifth of these samples may exceed the first fifth's by 1 %.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

PROBED = 5  # seconds
GROWTH = 1.01
LENGTHS = (3, 8, 17, 32, 64, 100, 128, 256)
KEYS = ("requests", "replays", "resident MB", "helpers MB", "GPU MB")


def serve(seconds: float) -> None:
    """Be the server. Print a line per second: requests and replays so far, wrong results, and the GPU's used bytes."""
    import torch
    from toggle_llama import Llama, make_inputs

    torch.manual_seed(0)
    model = Llama().cuda().bfloat16()
    prompts = [make_inputs(1, length) for length in LENGTHS]
    counts = {"requests": 0, "replays": 0, "wrong": 0}
    end = time.monotonic() + seconds

    def run(number: int) -> Any:
        with torch.inference_mode():
            return model(*prompts[number])

    def check(found: Any, first: Any) -> None:
        torch.cuda.current_stream().synchronize()
        counts["wrong"] += not torch.equal(found, first)

    def forward() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            firsts = [run(number).clone() for number in range(len(prompts))]
            while time.monotonic() < end:
                number = counts["requests"] % len(prompts)
                check(run(number), firsts[number])
                counts["requests"] += 1

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(0)

    def decode() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.replay()
            torch.cuda.current_stream().synchronize()
            first = found.clone()
            while time.monotonic() < end:
                for _ in range(8):
                    graph.replay()
                check(found, first)
                counts["replays"] += 8

    print("ready", flush=True)
    threads = [threading.Thread(target=work) for work in (forward, decode)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(1)
        free, whole = torch.cuda.mem_get_info()
        print(*counts.values(), whole - free, flush=True)


def resident(pid: int) -> int:
    """Return a process's resident bytes."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def find_helpers(pid: int) -> list[int]:
    """Return the processes that gpt-hook started: they have the server's environment, but aren't the server."""
    mine = f"{os.getpid()}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if b"GPT_SERVING=" + mine in (path / "environ").read_bytes() and int(path.name) != pid:
                found.append(int(path.name))
    return found


def watch(server: Any, seconds: float) -> tuple[list[dict[str, float]], int]:
    """Switch the probe on and off, and return a sample per second and the number of wrong results."""
    from tests.runtime import controlling

    on, off, wrong = seconds / 8, seconds / 8 + PROBED, 0
    samples: list[dict[str, float]] = []
    begin = time.monotonic()
    state = "before"
    for line in server.process.stdout:
        requests, replays, wrong, used = map(int, line.split())
        now = time.monotonic() - begin
        helpers = [resident(pid) for pid in find_helpers(server.pid)]
        sizes = (resident(server.pid) / 1e6, sum(helpers) / 1e6, used / 1e6)
        samples.append(
            {"at": now, "state": state}
            | dict(zip(KEYS, (requests, replays, *sizes), strict=True))
            | {"helpers": len(helpers)}
        )
        if state == "before" and now > on:
            controlling.order(server.pid, "probe", "block_sched")
            controlling.order(server.pid, "enable")
            state = "with block_sched"
        elif state == "with block_sched" and now > off:
            samples[-1]["probed launches"] = controlling.status(server.pid)["with_probes"]
            controlling.order(server.pid, "disable")
            state = "after"
    return samples, wrong


def rate(samples: list[dict[str, float]], key: str) -> float:
    """Return the growth of a count per second."""
    first, last = samples[0], samples[-1]
    return (last[key] - first[key]) / max(last["at"] - first["at"], 1e-9)


def main() -> int:
    """Run the command."""
    from tests.gpu import accounts
    from tests.runtime import controlling

    parser = accounts.arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=9)
    given = parser.parse_args()
    seconds = 60 * (1 if given.quick else given.minutes)
    trace = accounts.OUT / "serving" / "t.mp"
    trace.parent.mkdir(parents=True, exist_ok=True)
    arguments = (__file__, "serve", seconds)
    server = controlling.Server(
        trace,
        Path(sys.executable),
        "-q",
        "--disabled",
        arguments=arguments,
        device="real",
        GPT_SERVING=str(os.getpid()),
    )
    samples, wrong = watch(server, seconds)
    status = server.process.wait()
    said = server.process.stderr.read()
    size = sum(path.stat().st_size for path in trace.parent.glob("t.mp*"))
    accounts.keep("stock_serving", [{"samples": samples, "wrong": wrong, "status": status, "bytes": size}])
    faults = [f"{wrong} wrong results"] * bool(wrong) + [f"status {status}: {said[-500:]}"] * bool(status or said)
    print(f"{'':18}{'seconds':>9}{'requests/s':>12}{'replays/s':>12}" + "".join(f"{key:>14}" for key in KEYS[2:]))
    for state in ("before", "with block_sched", "after"):
        of_state = [sample for sample in samples if sample["state"] == state]
        if len(of_state) < 2:
            faults.append(f"no samples {state}")
            continue
        medians = [statistics.median(sample[key] for sample in of_state) for key in KEYS[2:]]
        rates = f"{rate(of_state, 'requests'):12.1f}{rate(of_state, 'replays'):12.1f}"
        print(f"{state:18}{len(of_state):9}{rates}" + "".join(f"{size:14.1f}" for size in medians))
    late = samples[len(samples) // 3 :]
    fifth = max(1, len(late) // 5)
    for key in KEYS[2:]:
        first, last = (statistics.median(s[key] for s in part) for part in (late[:fifth], late[-fifth:]))
        print(f"{key}: {first:.1f} to {last:.1f} in the last {len(late)} seconds")
        if last > first * GROWTH:
            faults.append(f"{key} grows")
    probed = max((sample.get("probed launches", 0) for sample in samples), default=0)
    found = accounts.account(trace)
    lost = f"{dict(found.lost)} lost" if found.lost else "none lost"
    print(f"{found.launched:,} launches, {probed:,.0f} with probes, {lost}; the trace has {size / 1e6:.0f} MB")
    print("serving: " + ("; ".join(faults) or "nothing wrong"))
    return bool(faults or found.lost or not probed)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    if sys.argv[1:2] == ["serve"]:
        sys.exit(serve(float(sys.argv[2])))
    sys.exit(main())
