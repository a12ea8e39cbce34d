"""Woven kernels for tests: the kernels of flow.cu with the snippets of snippets.ptx, at random places."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from gpt.formats.cubin_edit import CubinEditor
from gpt.sass.check_words import UNMOVABLE
from gpt.sass.faces import find_face
from gpt.sass.kernels import Kernel, read_kernel
from gpt.sass.tables import table_of
from tests import cuda
from tests.sass.weaver import ARCH, TICK, Place, Use, Woven, compiled_snippets, weave

KERNELS = Path(__file__).with_name("flow.cu")


def compile_kernels() -> bytes:
    """Compile flow.cu. Raises FileNotFoundError without NVRTC."""
    return cuda.nvrtc_compile(KERNELS.read_text(), ARCH)


def find_places(kernel: Kernel) -> list[int]:
    """Return the instructions that have a face, can be reached, and can be moved."""
    return [
        one.index
        for one in kernel.code
        if find_face(one) is not None and kernel.flight[one.index] is not None and one.name not in UNMOVABLE
    ]


def iter_places(kernel: Kernel, source: int, ticks: bool) -> Iterator[Place]:
    """Yield the ways to use a place."""
    one = kernel.code[source]
    operands = [number for number in range(2, 255) if one.reads.R >> number & 1]
    yield Place(source, (Use("leader"),))
    if operands:
        yield Place(source, (Use("slot", operands[0]),))
    if one.name not in ("EXIT", "BRA"):
        yield Place(source, after=(Use("leader"),))
        yield Place(source, (Use("leader"),), (Use("leader"),))
    if ticks:
        yield Place(source, (Use("tick", TICK), Use("count", TICK)))


def make_pool(seed: int = 1, each: int = 3) -> list[Woven]:
    """Weave each kernel a few times, at one to four places each time. Raises FileNotFoundError without the tools."""
    image, snippets = compile_kernels(), compiled_snippets()
    rnd = random.Random(seed)
    pool = []
    for raw in CubinEditor(image).kernels:
        name = raw.decode()
        kernel = read_kernel(CubinEditor(image), name, table_of(ARCH))
        sources = find_places(kernel)
        made = 0
        for _ in range(10 * each):
            ticks = rnd.random() < 0.5
            chosen = sorted(rnd.sample(sources, min(len(sources), rnd.randrange(1, 5))))
            places = [rnd.choice(list(iter_places(kernel, source, ticks))) for source in chosen]
            try:
                pool.append(weave(image, name, places, snippets, ticks))
            except LookupError:
                continue
            made += 1
            if made == each:
                break
    return pool
