"""Weave the kernels that arrive on standard input, for tests/bench/sass.py. PYTHONPATH says which checkout's code runs.

A request is [data, architecture, kernel, probes]. The answer is [CPU seconds to cut the kernel out of its cubin, CPU
seconds to weave it, outcome]. The outcome is a digest of everything that `weave` returns, or the reason why the kernel
is left alone.
"""

from __future__ import annotations

import hashlib
import sys
import time
from functools import cache

import msgpack

from gpt.formats.callgraph import KeptWhole
from gpt.formats.cubin_drop import drop_kernels
from gpt.formats.cubin_edit import CubinEditor
from gpt.probe.model import ProbeFile
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.read.load import load_all
from gpt.probe.sass.snippets import Compiler
from gpt.probe.sass.weave import weave
from gpt.sass.tables import table_of


@cache
def compiler_of(arch: str) -> Compiler:
    """Return the architecture's compiler."""
    return Compiler(arch, table_of(arch))


@cache
def load(probes: str) -> list[ProbeFile]:
    """Load probes, whose names have a comma between them."""
    return load_all(probes.split(","))


def cut(data: bytes, kernel: str) -> bytes:
    """Return a cubin that contains only this kernel, as the stage does."""
    others = {raw.decode() for raw in CubinEditor(data).kernels} - {kernel}
    try:
        return bytes(drop_kernels(data, others)) if others else data
    except KeptWhole:
        return data


def weave_one(data: bytes, arch: str, kernel: str, probes: str) -> str:
    """Weave a kernel, and return the outcome."""
    try:
        woven = weave(data, kernel, arch, load(probes), compiler_of(arch))
    except LeftAlone as error:
        return ": ".join(map(str, error.reason))
    kept = [repr((one.map.name, one.param, one.counted, sorted(one.idle))) for one in woven.maps]
    parts = (woven.data, kept, woven.sites, woven.misfits, woven.variables, woven.needs, woven.params, woven.added)
    return hashlib.sha256(
        b"\0".join(part if isinstance(part, bytes) else repr(part).encode() for part in parts)
    ).hexdigest()


def main() -> None:
    """Answer requests until there are no more."""
    requests = open(sys.stdin.fileno(), "rb", buffering=0)  # a buffered file would wait for more than one request
    for data, arch, kernel, probes in msgpack.Unpacker(requests, max_buffer_size=1 << 30):
        compiler_of(arch)
        load(probes)
        start = time.process_time()
        alone = cut(data, kernel)
        middle = time.process_time()
        outcome = weave_one(alone, arch, kernel, probes)
        answer = [middle - start, time.process_time() - middle, outcome]
        sys.stdout.buffer.write(msgpack.packb(answer))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
