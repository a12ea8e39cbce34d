"""Run programs, each slow for one known reason: gpt-analyze summary, or the command that it names, must report that
reason.

    python tests/gpu/causes.py [NAME ...]             # record them on a GPU, and ask
    python tests/gpu/causes.py --traces FOLDER        # only ask, about traces that were recorded before

Each program is small, uses PyTorch, and is recorded with --gpu-time. The first ten lines of `gpt-analyze summary`, or
of the command that its last line suggests, must match the expected cause. The script prints a table of programs with
their verdicts and whether they're right. It leaves the traces in GPT_GPU_OUT/causes, packed with xz, as NAME.mp.xz;
`late` has one for each of its two ranks, and needs two GPUs. tests/analyze/test_causes.py checks the same for the
committed traces.
"""

from __future__ import annotations

import lzma
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))
from tests.gpu import causes_more  # noqa: E402

OUT = Path(os.environ.get("GPT_GPU_OUT", ROOT / "build" / "gpu")) / "causes"
HOOK = ROOT / "gpt" / "_runtime" / "gpt-hook"
LINES = 10  # an answer must state the cause within this many lines
LIMIT = 300 << 10  # bytes of a packed trace
SECONDS = 300  # time limit of a program
PROGRAM = "--program"
SAMPLED = ("--gpu-time", "--sample-host", "50")
NO_COMMAND = "the last line of summary names no command"


class Planted(NamedTuple):
    """A test program: the function to run, a pattern for the verdict, the options of gpt-hook, and the
    number of ranks.
    """

    run: Callable[[], None]
    pattern: str
    options: tuple[str, ...] = ("--gpu-time",)
    ranks: int = 1


# Programs


def _work(torch: Any, times: int, size: int = 8192) -> Callable[[], Any]:
    """Return a function that queues about 1.5 ms of GPU work each time, which needs nothing from the host."""
    x = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)

    def work() -> Any:
        for _ in range(times):
            torch.mm(x, x, out=y)
        return y

    work()
    torch.cuda.synchronize()
    return work


def _think(rounds: int = 20_000) -> int:
    """Keep the host busy for about a millisecond."""
    return sum(number & 3 for number in range(rounds))


def item() -> None:
    """Read a value back in each step, and then compute on the host. If the GPU had other work meanwhile, the host's
    time would be hidden.
    """
    import torch

    work = _work(torch, 3)
    total = 0.0
    for _ in range(400):
        total += work()[0, 0].float().item()
        _think()


def pageable() -> None:
    """Copy each batch from pageable memory."""
    import torch

    work = _work(torch, 2)
    batch = torch.randn(32 << 20)
    for _ in range(100):
        batch.to("cuda")
        work()
    torch.cuda.synchronize()


def launches() -> None:
    """Launch kernels that run for less time than the host needs to launch one."""
    import torch

    x = torch.ones(4096, device="cuda")
    for _ in range(60):
        for _ in range(10):
            x = torch.relu(x * 1.001 - 0.001)
    torch.cuda.synchronize()


def late() -> None:
    """Make rank 1 late for each all-reduce."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank % torch.cuda.device_count()))
    x = torch.ones(1 << 20, device="cuda")
    work = _work(torch, 1)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    for _ in range(80):
        work()
        if rank == 1:
            time.sleep(0.01)
        dist.all_reduce(x)
        torch.cuda.synchronize()
    dist.destroy_process_group()


def allocation() -> None:
    """Allocate memory from the driver in each step, and free it."""
    import torch

    work = _work(torch, 1)
    for _ in range(150):
        scratch = torch.empty(4 << 30, dtype=torch.uint8, device="cuda")
        scratch[:16].zero_()
        work()
        del scratch
        torch.cuda.empty_cache()


def lazy() -> None:
    """Load the code of many kernels in the first step; later steps reuse them."""
    import torch
    from torch.nn import functional

    image = torch.randn(8, 16, 64, 64, device="cuda")
    filters = torch.randn(32, 16, 3, 3, device="cuda")
    square = torch.randn(64, 64, device="cuda") + 64 * torch.eye(64, device="cuda")
    for _ in range(20):
        x = functional.conv2d(image, filters, padding=1)
        x = functional.interpolate(functional.group_norm(functional.silu(x), 8), scale_factor=2)
        x = functional.max_pool2d(functional.gelu(x), 2) + torch.fft.irfft2(torch.fft.rfft2(x))[..., :64, :64]
        y = torch.linalg.solve(square, square @ square)
        z = torch.linalg.qr(y)[0] + torch.linalg.inv(square)
        w = torch.sort(x.flatten(), stable=True)[0].cumsum(0) + torch.topk(x.flatten(), 64)[0].sum()
        v = functional.scaled_dot_product_attention(z[None, None], y[None, None], z[None, None])
        u = functional.cross_entropy(y, torch.zeros(64, dtype=torch.long, device="cuda")) + torch.bmm(v[0], v[0]).std()
        torch.cuda.synchronize()
        del w, u


def loader() -> None:
    """Wait for a lock that a data loader's thread holds, inside an NVTX range with a telling name."""
    import threading

    import torch

    work = _work(torch, 3)
    lock, stop = threading.Lock(), threading.Event()

    def hold() -> None:
        while not stop.is_set():
            with lock:
                time.sleep(0.015)
            time.sleep(0.001)

    holder = threading.Thread(target=hold)
    holder.start()
    for _ in range(100):
        torch.cuda.nvtx.range_push("load batch")
        with lock:
            time.sleep(0.0005)
        torch.cuda.nvtx.range_pop()
        work()
        torch.cuda.synchronize()
    stop.set()
    holder.join()


def batch() -> None:
    """Normalize four long rows, one block each, on a GPU with many more SMs."""
    import torch

    x = torch.randn(4, 4 << 20, device="cuda")
    for _ in range(100):
        x = torch.softmax(x, 1) * 2
    torch.cuda.synchronize()


def graph() -> None:
    """Replay a graph of ten layers, one of which takes most of the time."""
    import torch

    x = torch.rand(16384, device="cuda")

    def layers() -> Any:
        y = x
        for _ in range(5):
            y = torch.relu(y * 1.01)
        y = torch.logcumsumexp(y.view(1, -1).repeat(1, 16), 1)[0, :16384]
        for _ in range(5):
            y = torch.relu(y * 0.99)
        return y

    layers()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        layers()
    for _ in range(40):
        captured.replay()
    torch.cuda.synchronize()


def growth() -> None:
    """Keep a tensor from each step, so that memory keeps growing."""
    import torch

    work = _work(torch, 2)
    kept = [work()[:4096].clone() for _ in range(150)]
    torch.cuda.synchronize()
    del kept


PROGRAMS = {
    "item": Planted(item, r"waits for a value \d+ times.*'\.item\(\)'"),
    "pageable": Planted(pageable, r"only copies.* copies to the device .* use pageable memory"),
    "launches": Planted(launches, r"launch-bound: kernels take .*, but are launched every .* CUDA graph would save"),
    "late": Planted(late, r"waiting, [\d.]+ % of it for rank 1", ranks=2),
    "allocation": Planted(
        allocation, r"while the host is mostly in cuMem(Alloc|Free|Create|Release|Map|Unmap).*: allocate"
    ),
    "lazy": Planted(lazy, r"loading GPU code"),
    "loader": Planted(loader, r"waits \d+ times.*while the host mostly runs its own code.*in the range 'load batch'"),
    "batch": Planted(batch, r"launches have fewer blocks than the GPU has SMs.* larger batch"),
    "graph": Planted(graph, r"DeviceScan\w*.* [5-9]\d\.\d %", ("--gpu-time", "-p", "block_sched")),
    "growth": Planted(growth, r"GPU memory keeps growing"),
    "metrics": Planted(causes_more.metrics, r"waits for the GPU \d+ times in cuMemcpyDtoHAsync"),
    "logger": Planted(causes_more.logger, r"waits for the GPU \d+ times in cuCtxSynchronize"),
    "events": Planted(causes_more.events, r"waits for the GPU \d+ times in cuEventSynchronize"),
    "gil": Planted(causes_more.gil, r"waiting for a lock, such as Python's GIL", SAMPLED),
    "child": Planted(causes_more.child, r"waiting at subprocess\.py.* waits for another thread or process", SAMPLED),
    "starved": Planted(causes_more.starved, r"at threading\.py\S* Condition\.wait.* another thread", SAMPLED),
    "selection": Planted(causes_more.selection, r"gatherKthValue.* takes [5-9]\d\.\d % of a replay, in 1 node"),
    "shapes": Planted(causes_more.shapes, r"runs its own code.* Conv2d\._conv_forward in libnvrtc", SAMPLED),
}


# Recording


def record(name: str, folder: Path) -> list[Path]:
    """Record a program, and return its traces. Raises SystemExit with the program's output if it fails."""
    planted = PROGRAMS[name]
    running = []
    for rank in range(planted.ranks):
        path = folder / f"{name}{rank if planted.ranks > 1 else ''}.mp"
        words = [
            HOOK,
            "run",
            "-f",
            "-q",
            *planted.options,
            "-o",
            path,
            "--",
            sys.executable,
            __file__,
            "--program",
            name,
        ]
        env = os.environ | {"CUDA_MODULE_LOADING": "LAZY"}
        if planted.ranks > 1:
            env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(planted.ranks)}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}
        command = [str(word) for word in words]
        running.append((path, subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)))
    try:
        for _, process in running:
            said = process.communicate(timeout=SECONDS)[0]
            if process.returncode:
                raise SystemExit(
                    f"causes: {name}: status {process.returncode}: {said.decode(errors='replace')[-2000:]}"
                )
    finally:
        for _, process in running:
            with suppress(ProcessLookupError):
                process.kill()
    if missing := [path.name for path, _ in running if not path.exists()]:
        raise SystemExit(f"causes: {name}: no {missing[0]}: the program didn't use the driver")
    return [path for path, _ in running]


def pack(path: Path) -> Path:
    """Pack a trace, or the file of probe buffers next to it. Names of folders and of the machine are removed."""
    from gpt.stream import wire

    packed, data = OUT / f"{path.name}.xz", path.read_bytes()
    if path.suffix == ".mp":
        with path.open("rb") as file:
            data = b"".join(wire.pack(_tidy(record)) for record in wire.read_records(file, str(path)))
    packed.write_bytes(lzma.compress(data, preset=9))
    return packed


def _tidy(record: dict[str, Any]) -> dict[str, Any]:
    match record["kind"]:
        case "header":
            return record | {"argv": ["python3", *map(os.path.basename, record["argv"][1:])], "host": "gpu"}
        case "library" | "module":
            paths = {key: f"/lib/{os.path.basename(record[key])}" for key in ("path", "loader") if key in record}
            return record | paths
        case "stack":
            return record | {"frames": [*map(_tidy_frame, record["frames"])]}
    return record


def _tidy_frame(frame: dict[str, Any]) -> dict[str, Any]:
    """Keep a file's name, and what says that it belongs to Python or to a package."""
    path = frame.get("path")
    if not path:
        return frame
    kept = re.search(r"/lib/python3\.\d+/.*|^<.*", path)
    return frame | {"path": kept[0] if kept else f"/app/{os.path.basename(path)}"}


def unpack(name: str, source: Path, folder: Path) -> list[Path]:
    """Unpack a program's traces from a folder, and return their paths."""
    for path in source.glob(f"{name}*.xz"):
        (folder / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    return sorted(folder.glob(f"{name}*.mp"))


# Asking


def analyze(command: str, traces: list[Path]) -> str:
    """Return gpt-analyze's output."""
    words = [sys.executable, "-c", "from gpt.stages.analyze import main; import sys; sys.exit(main())", command]
    env = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    done = subprocess.run([*map(str, words), *map(str, traces)], env=env, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def ask(name: str, traces: list[Path], analyze: Callable[[str, list[Path]], str] = analyze) -> tuple[str, str, bool]:
    """Return the command that summary suggests, the verdict, and whether it's the expected cause."""
    pattern = re.compile(PROGRAMS[name].pattern)
    summary = analyze("summary", traces).splitlines()
    named = re.match(r"gpt-analyze (\w+)", summary[-1] if summary else "")
    answers = [("summary", summary)]
    if named:
        answers.append((named[1], analyze(named[1], traces).splitlines()))
    for command, lines in answers:
        text = " ".join(line.strip() for line in lines[:LINES])
        if match := pattern.search(text):
            return command, match[0], True
    command, lines = answers[-1]
    return (command, " / ".join(line.strip() for line in lines[:LINES]), False) if named else ("-", NO_COMMAND, False)


def main(arguments: list[str]) -> int:
    """Record the programs, check the verdicts, print the table, and return the number of wrong verdicts."""
    if arguments[:1] == [PROGRAM]:
        PROGRAMS[arguments[1]].run()
        return 0
    source = None
    if arguments[:1] == ["--traces"]:
        source, arguments = Path(arguments[1]), arguments[2:]
    if not source and not find_spec("torch"):
        print("causes: error: no PyTorch: the programs need it", file=sys.stderr)
        return 4
    OUT.mkdir(parents=True, exist_ok=True)
    wrong = 0
    print(f"{'program':11} {'KiB':>5} {'command':12} planted  verdict")
    for name in arguments or PROGRAMS:
        with tempfile.TemporaryDirectory(prefix="gpt-causes-") as folder:
            try:
                traces = unpack(name, source, Path(folder)) if source else record(name, Path(folder))
            except SystemExit as error:
                wrong += 1
                print(f"{name:11} {'-':>5} {'-':12} no       {error}", flush=True)
                continue
            if not traces:
                print(f"{name:11} {'-':>5} {'-':12} -        no trace", flush=True)
                continue
            files = [*traces, *Path(folder).glob(f"{name}*.buffers*")]
            size = 0 if source else sum(pack(path).stat().st_size for path in files)
            command, said, good = ask(name, traces)
            large = " (over the limit)" if size > LIMIT * len(traces) else ""
            print(f"{name:11} {size >> 10:5} {command:12} {'yes' if good else 'no':7}  {said}{large}", flush=True)
            wrong += not good
    print(f"causes: {wrong} not stated")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
