"""Train with stock PyTorch on two GPUs under torchrun, with probes: `python tests/gpu/stock_ranks.py [STEPS]`.

Each rank of ranks.py prints its losses, and a digest of its weights at the end. Two plain runs and a run with each
probe must print the same. The table has the launches of each rank by reason.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpt.stream.reasons import Reason  # noqa: E402
from tests.gpu import accounts  # noqa: E402

PROBES = {"block_sched": 0.99, "gmem_bytes": 0.95}  # the share of launches outside closed libraries that need probes
CLOSED = str(Reason("closed_library"))


def main() -> int:
    """Run the command."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    program = [*torchrun, ROOT / "tests/gpu/ranks.py", *(sys.argv[1:] or ["4"]), "digest"]
    folder = accounts.OUT / "stock_ranks"
    folder.mkdir(parents=True, exist_ok=True)
    env = accounts.environment(folder, "real", CUBLAS_WORKSPACE_CONFIG=":4096:8", OMP_NUM_THREADS="4")
    plain = [accounts.run(program, env) for _ in range(2)]
    expected = sorted(plain[0].output.splitlines())
    steady = sorted(plain[1].output.splitlines()) == expected
    faults = [f"plain: status {run.status}: {run.said[-500:]}" for run in plain if run.status]
    faults += ["two plain runs differ, so probes can't be compared with them"] * (not steady)
    rows: list[dict[str, Any]] = [{"plain": [vars(run) for run in plain]}]
    print(f"plain: {plain[0].seconds:.1f} and {plain[1].seconds:.1f} s, {'same' if steady else 'DIFFERENT'} output")
    for probe, least in PROBES.items():
        into = folder / probe
        into.mkdir(exist_ok=True)
        run = accounts.run([*accounts.hooked(into / "t.mp", "real", "-p", probe), *program], env)
        same = sorted(run.output.splitlines()) == expected
        print(f"{probe}: {run.seconds:.1f} s, {'same' if same else 'DIFFERENT'} output, status {run.status}")
        faults += [f"{probe}: status {run.status}: {run.said[-500:]}"] * bool(run.status)
        faults += [f"{probe} changes the output"] * (steady and not same)
        ranks = 0
        for path in sorted(into.glob("t.mp*")):
            if ".buffers" in path.name:
                continue
            found = accounts.account(path)
            rows.append({"probe": probe, "trace": path.name} | found.row())
            faults += found.wrong + [f"lost: {dict(found.lost)}"] * bool(found.lost)
            whole = found.probed.total() + found.unprobed.total() - found.unprobed[CLOSED]
            if whole:
                ranks += 1
                share = found.probed.total() / whole
                print(f"    {path.name}: {share:.2%} of {whole:,} launches outside closed libraries", end="; ")
                print(dict(found.unprobed))
                faults += [f"{path.name}: only {share:.2%} with {probe}"] * (share < least)
        faults += [f"{probe}: launches of {ranks} ranks, not 2"] * (ranks != 2)
    accounts.keep("stock_ranks", rows)
    print("stock_ranks: " + ("; ".join(faults) or "nothing wrong"))
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
