"""Run woven kernels on the interpreter: if the checker proves a kernel, it must leave the same memory as the original.

python -m tests.sass.woven_runs 200      weaves and mutates at random; exits with 1 if a proven kernel differs

The kernels come from the interpreter's own tests. The interpreter is strict: a value that's read before its stall or
scoreboard is garbage. So this gives a second opinion about the checker, which shares nothing but the tables with it.
"""

from __future__ import annotations

import random
import struct
import sys
from collections import Counter
from functools import cache

import numpy as np

from gpt.formats.cubin_edit import CubinEditor
from gpt.sass.kernels import read_kernel
from gpt.sass.tables import table_of
from tests import cuda
from tests.sass.corpus import find_places, iter_places
from tests.sass.interp.cases import CASES, KERNELS, Case, Words, differences, inputs
from tests.sass.interp.launch import Launch
from tests.sass.interp.loader import LoadedCubin, load
from tests.sass.interp.memory import GlobalMemory
from tests.sass.interp.run import interpret
from tests.sass.mutations import KINDS, Mutation, mutate
from tests.sass.weaver import ARCH, Woven, compiled_snippets, weave

PROBE_WORDS = 1100  # words of memory for the snippets
FAST = ("meeting", "nested", "choices", "calls", "votes", "shuffles", "shared", "groups", "widths", "reduction", "bits")


@cache
def image_of(file: str) -> bytes:
    """Compile one of the source files. Raises FileNotFoundError without NVRTC."""
    return cuda.nvrtc_compile((KERNELS / f"{file}.cu").read_text(), ARCH)


def with_words(cubin: LoadedCubin, kernel: str, words: list[int]) -> LoadedCubin:
    """Return a cubin in which a kernel's words were replaced."""
    section = cubin.find(f".text.{kernel}")
    changed = dict(cubin.words)
    changed |= {section.start + 16 * index: word for index, word in enumerate(words)}
    return LoadedCubin(cubin.table, cubin.sections, cubin.symbols, changed)


def run_woven(cubin: LoadedCubin, case: Case, seed: int) -> tuple[Words, int, Launch]:
    """Return a woven kernel's final `out`, and the number of lanes that its snippet `leader` counted."""
    rng = np.random.default_rng(seed)
    memory = GlobalMemory(rng, 1 << 18)
    words, out = inputs(case)
    probe = np.zeros(PROBE_WORDS, np.uint32)
    places = [memory.allocate(one.nbytes, one.tobytes()) for one in (words, out, probe)]
    launch = Launch(
        cubin,
        case.kernel,
        memory,
        grid=(case.grid, 1, 1),
        block=(case.block, 1, 1),
        parameters=struct.pack("<QQi4xQ", places[0], places[1], case.n, places[2]),
        rng=rng,
        dynamic=case.dynamic,
        strict=True,
    )
    launch.run()
    counted = np.frombuffer(memory.read(places[2], probe.nbytes), np.uint32)
    return np.frombuffer(memory.read(places[1], out.nbytes), np.uint32), int(counted[2]), launch


def weave_case(rnd: random.Random, case: Case) -> Woven | None:
    """Weave a case's kernel at a few places; return None if there's no room."""
    image = image_of(case.file)
    kernel = read_kernel(CubinEditor(image), case.kernel, table_of(ARCH))
    sources = find_places(kernel)
    ticks = rnd.random() < 0.3
    chosen = sorted(rnd.sample(sources, min(len(sources), rnd.randrange(1, 5))))
    places = [rnd.choice(list(iter_places(kernel, source, ticks))) for source in chosen]
    try:
        return weave(image, case.kernel, places, compiled_snippets(), ticks)
    except LookupError:
        return None


def run_some(count: int, seed: int = 1, names: tuple[str, ...] = FAST) -> tuple[Counter[str], list[str]]:
    """Weave and mutate until this many kernels have run; return counts, and the proven kernels that differ."""
    rnd = random.Random(seed)
    cases = [case for case in CASES if case.kernel in names]
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    while counts["woven"] + counts["mutated"] < count:
        case = rnd.choice(cases)
        woven = weave_case(rnd, case)
        if woven is None:
            continue
        plain, _ = interpret(load(image_of(case.file)), case, 1)
        loaded = load(woven.image)
        _compare(loaded, case, plain, "woven", counts, wrong)
        passed = [one for one, _ in zip(_passing(rnd, woven), range(2), strict=False)]
        for one in passed:
            _compare(with_words(loaded, case.kernel, one.words), case, plain, "mutated", counts, wrong, one.kind)
    return counts, wrong


def _passing(rnd: random.Random, woven: Woven) -> list[Mutation]:
    """Return a few word mutations that the checker accepts."""
    found = []
    for one, _ in zip(mutate(rnd, [woven], list(KINDS)), range(60), strict=False):
        if one.words != woven.new.kernel.code.words and not one.facts and not one.find():
            found.append(one)
    return found


def _compare(
    cubin: LoadedCubin, case: Case, plain: Words, kind: str, counts: Counter[str], wrong: list[str], what: str = ""
) -> None:
    counts[kind] += 1
    try:
        found, counted, launch = run_woven(cubin, case, counts.total())
    except Exception as error:  # any exception is a failure, because the unwoven kernel ran
        wrong.append(f"{case.name}: {kind} {what}: {error!r}")
        return
    counts["counted"] += counted
    if where := differences(case, found, plain):
        wrong.append(f"{case.name}: {kind} {what}: {len(where)} words differ")
    if launch.early:
        wrong.append(f"{case.name}: {kind} {what}: read too early: {launch.early[:2]}")


def main() -> int:
    """Print the counts."""
    counts, wrong = run_some(int(sys.argv[1]) if len(sys.argv) > 1 else 100, int(sys.argv[2]) if sys.argv[2:] else 1)
    print(*wrong, sep="\n")
    print(dict(counts))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
