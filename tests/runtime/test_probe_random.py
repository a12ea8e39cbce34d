"""gpt-hook -p: random programs print the same with probes and without, and each launch is accounted for.

`python -m tests.runtime.random_programs SEED` prints the script of one."""

import os
import random
from collections import Counter

import pytest

from tests import cuda
from tests.runtime import hooked, simulated
from tests.runtime.probing import kept, saved, unprobed, without_refusals
from tests.runtime.random_programs import Program

PROBES = sorted(path.stem for path in (hooked.ROOT / "probes").glob("*.toml"))
OPTIONS = [
    (), ("--launch-skip", "2"), ("--launch-count", "3"), ("--sample", "1/3"), ("--max-memory", "1M"), ("--gpu-time",),
    ("--max-memory", "2M", "--complete"), ("--wait", "0"), ("--calls", "none"), ("--calls", "all"), ("--disabled",),
    ("--memusage",),
]  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the program and its kernels."""
    folder, here = tmp_path_factory.mktemp("random"), hooked.ROOT / "tests" / "runtime"
    ptx = folder / "kernels.ptx"
    ptx.write_bytes(cuda.nvrtc_compile((here / "random_kernels.cu").read_text(), "compute_80", ["-default-device"]))
    return simulated.build(folder / "program", (here / "random_program.c").read_text()), ptx


def sort_out(text):
    """Return the program's output, and its kernels' results, which can be in any order."""
    lines = text.splitlines()
    printed = [line for line in lines if line.startswith("kernel: ")]
    return [line for line in lines if line not in printed], sorted(printed)


def check_values(trace, path, launches):
    """Return gmem_bytes's counts, by kernel and shape."""
    names = {record["id"]: record["name"] for record in trace.of("function")}
    moved = saved(path, "gmem_bytes")
    assert set(moved) == {record["id"] for record in trace.of("probed")}
    found = Counter()
    for record in trace.of("probed"):
        slots = moved[record["id"]].slots
        total = (int(slots["read"].sum()), int(slots["written"].sum()))
        found[names[record["function"]], *map(tuple, (record["grid"], record["block"])), total] += 1
    want = Counter((one.name, one.grid, one.block, one.moved) for one in launches if one.moved)
    known = {one.name for one in launches if one.moved}
    assert not Counter({one: count for one, count in found.items() if one[0] in known}) - want


def run(folder, built, program, *options):
    """Run without probes and with them."""
    script, out = folder / "script", folder / "t.mp"
    script.write_text(program.script)
    env = {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept()}
    bare = simulated.run(built[0], str(script), str(built[1]), **env)
    assert (bare.returncode, without_refusals(bare.stderr)) == (0, "")
    done = hooked.run(out, built[0], script, built[1], options=("-f", *options), env=os.environ | env)
    assert (done.returncode, without_refusals(done.stderr)) == (0, "")
    assert sort_out(done.stdout) == sort_out(bare.stdout)
    status = {int(line.split()[0]): int(line.split()[-1]) for line in bare.stdout.splitlines() if line[0].isdigit()}
    done = [one for one in program.launches if not status[one.line] and not status[one.replayed or one.line]]
    return hooked.Trace(out), done


@pytest.mark.full
@pytest.mark.parametrize(("seed", "steps"), [(3880, 4), *((seed, 60) for seed in range(12))])
def test_random_programs(tmp_path, built, seed, steps):
    program = Program(seed, steps)
    trace, launches = run(tmp_path, built, program, "-p", "gmem_bytes")
    made = [one for one in launches if not one.captured]
    assert trace.launches == Counter(one.name for one in made if not one.replayed)
    assert len(trace.of("probed")) + sum(unprobed(trace).values()) == len(made)
    check_values(trace, tmp_path / "t.mp", made)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 112))
def test_random_probes(tmp_path, built, seed):
    some = random.Random(seed)
    probes = some.choice([PROBES, some.sample(PROBES, 2), some.sample(PROBES, 1)])
    options = some.choice(OPTIONS)
    trace, launches = run(tmp_path, built, Program(seed), *(f"-p{probe}" for probe in probes), *options)
    if not {"--memusage", "--disabled"}.intersection(options):
        made = sum(not one.captured for one in launches)
        assert len(trace.of("probed")) + sum(unprobed(trace).values()) == made
