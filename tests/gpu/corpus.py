"""Run the kernels of tests/tally/corpus and random straight-line programs on a real GPU and the simulated device.

Each kernel's results are compared with a Python version of it, and the GPU's results with the simulated device's, bit
for bit where PTX defines the bits. Random programs are compared with exact arithmetic.

    corpus.py [FOLDER]            take the sources' PTX from FOLDER, or compile it with nvcc, which needs g++
    corpus.py --compile FOLDER    only compile it, into FOLDER

Each kernel also runs with every built-in probe, on the GPU only. `--programs N` sets the number of random programs,
`--device FOLDER` uses another libcuda.so.1 in place of the GPU's, and `--no-woven` leaves the probes out. All results
are in corpus.json in GPT_GPU_OUT.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ["PATH"] += f":{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin"

from gpt.asm.backend import Options  # noqa: E402
from gpt.asm.host.backend import Host, HostTarget  # noqa: E402
from tests.asm.host import straight  # noqa: E402
from tests.asm.host.jobs import Answer, Job, answers  # noqa: E402
from tests.tally import sources, woven  # noqa: E402
from tests.tally.launches import LAUNCHES, Launch, images  # noqa: E402

SIMULATED = ROOT / "gpt" / "_runtime" / "sim"
PROGRAMS = 400
SLICE = 16  # programs a module


def compile_source(path: Path, folder: Path) -> None:
    """Write the PTX of a source to FOLDER/NAME.ptx."""
    arch = "90a" if path.stem == "setmaxnreg" else "90"
    (folder / f"{path.stem}.ptx").write_bytes(sources.compile_source(path, arch, folder / f"{path.stem}.part"))


def compile_all(folder: Path) -> None:
    """Compile all sources whose kernels are launched."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = sorted({sources.HERE / "corpus" / f"{launch.source}.cu" for launch in LAUNCHES})
    with ProcessPoolExecutor() as pool:
        list(pool.map(compile_source, wanted, [folder] * len(wanted)))


def make(ptx: bytes) -> bytes:
    """Return the object that the simulated device runs for this PTX, or b"" without PTX."""
    if not ptx:
        return b""
    return Host(Options()).make(ptx, "corpus", HostTarget()).image


def kernels(folder: Path) -> Iterator[tuple[Launch, str, bytes]]:
    """Yield launches with their kernel and its PTX, in the order of LAUNCHES."""
    for source in dict.fromkeys(launch.source for launch in LAUNCHES):
        if (folder / f"{source}.ptx").exists():
            yield from images(source, (folder / f"{source}.ptx").read_bytes())


def compare(launch: Launch, theirs: Answer, ours: Answer) -> tuple[str, str]:
    """Compare the results of a GPU and of the simulated device; return a verdict and an explanation."""
    if launch.fault:
        return ("fault", f"GPU: {theirs}") if isinstance(ours, str) else ("WRONG", "no fault on the simulated device")
    said = []
    for where, answer in (("GPU", theirs), ("simulated", ours)):
        wrong = answer if isinstance(answer, str) else launch.judge(answer)
        if wrong and (where == "GPU" or launch.simulated):
            said.append(f"{where}: {wrong}")
    if isinstance(theirs, list) and isinstance(ours, list):
        wrong = launch.differs(launch.found(theirs), launch.found(ours))
        said += [f"GPU, simulated: {wrong}"] if wrong else []
    if said:
        return "WRONG", "; ".join(said)
    return ("near" if launch.near else "equal") if launch.simulated else "GPU only", ""


def run_kernels(folder: Path, device: Path | None, pool: ProcessPoolExecutor) -> list[dict[str, Any]]:
    """Return a row for each launch."""
    found = list(kernels(folder))
    objects = list(pool.map(make, [b"" if not one.simulated or one.linked else ptx for one, _, ptx in found]))
    ours = [(one, name, ptx if one.linked else image) for (one, name, ptx), image in zip(found, objects, strict=True)]
    simulated = iter(answers([one.job(image, name) for one, name, image in ours if one.simulated], SIMULATED))
    real = answers([one.job(ptx, name) for one, name, ptx in found], device, 60)
    rows = []
    for (launch, name, _), theirs in zip(found, real, strict=True):
        verdict, said = compare(launch, theirs, next(simulated) if launch.simulated else "not simulated")
        rows.append({"source": launch.source, "kernel": name, "verdict": verdict, "said": said, "gpu": digest(theirs)})
    return rows


def run_woven(folder: Path, device: Path | None) -> list[dict[str, Any]]:
    """Return a row for each kernel with each probe on the GPU; `make test-full` runs them on the simulated device."""
    found = [(launch, ptx, list(woven.cases(launch, name, ptx))) for launch, name, ptx in kernels(folder)]
    found = [one for one in found if one[2]]
    jobs = [job for one, ptx, all_ in found for job in woven.jobs(one, all_, ptx, [case.woven.data for case in all_])]
    replies = iter(answers(jobs, device, 120))
    rows = []
    for _, _, cases in found:
        plain = next(replies)
        for case in cases:
            said = woven.check(case, plain, answer := next(replies))
            verdict = "WRONG" if said else "equal"
            rows.append(
                {"kernel": case.kernel, "probe": case.probe, "verdict": verdict, "said": said, "gpu": digest(answer)}
            )
    return rows


def run_programs(count: int, device: Path | None, pool: ProcessPoolExecutor) -> list[dict[str, Any]]:
    """Return a row for each program."""
    parts = [range(i, min(i + SLICE, count)) for i in range(0, count, SLICE)]
    programs = [[(straight.random_steps(seed), seed) for seed in part] for part in parts]
    real: list[Job] = [job for part in programs for job in straight.jobs(part, bytes)]
    images_ = dict(zip(texts := list(dict.fromkeys(job.image for job in real)), pool.map(make, texts), strict=True))
    ours = answers([dataclasses.replace(job, image=images_[job.image]) for job in real], SIMULATED)
    theirs = answers(real, device, 120)
    rows = []
    wanted = pool.map(exact, range(count), chunksize=SLICE)
    for seed, right, one, other in zip(range(count), wanted, theirs, ours, strict=True):
        program = straight.Program(straight.random_steps(seed))
        said = []
        for where, answer in (("GPU", one), ("simulated", other)):
            if wrong := answer if isinstance(answer, str) else program.differs(answer[1], right):
                said.append(f"{where}: {wrong}")
        verdict = "WRONG" if said else "equal"
        rows.append({"program": seed, "verdict": verdict, "said": "; ".join(said), "gpu": digest(one)})
    return rows


def exact(seed: int) -> bytes:
    """Return a program's result."""
    return straight.Program(straight.random_steps(seed)).compute(straight.random_inputs(seed))


def digest(answer: Answer) -> str:
    """Return a short digest of a device's answer."""
    return answer if isinstance(answer, str) else hashlib.sha256(b"".join(answer)).hexdigest()[:16]


def main() -> int:
    """Run, compare, and print a table; return 1 if anything is wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--compile", type=Path)
    parser.add_argument("--device", type=Path)
    parser.add_argument("--programs", type=int, default=PROGRAMS)
    parser.add_argument("--no-woven", action="store_true")
    given = parser.parse_args()
    begin = time.monotonic()
    if given.compile:
        compile_all(given.compile)
        return 0
    out = Path(os.environ.get("GPT_GPU_OUT", "build/gpu"))
    folder = given.folder
    if not folder:
        compile_all(folder := out / "corpus.ptx")
    with ProcessPoolExecutor() as pool:
        rows = run_kernels(folder, given.device, pool)
        for row in rows:
            print(f"{row['source']:12} {row['kernel'][:28]:28} {row['verdict']:8} {row['said']}", flush=True)
        programs = run_programs(given.programs, given.device, pool)
        probed = [] if given.no_woven else run_woven(folder, given.device)
    for row in [*programs, *probed]:
        if row["said"]:
            print(f"program {row['program']}: {row['said']}" if "program" in row else row["said"])
    found = {"launches": rows, "programs": programs, "woven kernels": probed}
    (out / "corpus.json").write_text(json.dumps(found, indent=1))
    for what, of in found.items():
        verdicts = Counter(row["verdict"] for row in of)
        print(f"{len(of)} {what}: {', '.join(f'{count} {verdict}' for verdict, count in verdicts.items())}")
    print(f"corpus: {time.monotonic() - begin:.0f} s")
    return int(any(row["verdict"] == "WRONG" for row in [*rows, *programs, *probed]))


if __name__ == "__main__":
    sys.exit(main())
