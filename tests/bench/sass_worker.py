"""Weave the kernels that arrive on standard input, for tests/bench/sass.py. PYTHONPATH says which checkout's code runs.

A request is [data, architecture, kernel, probes]. The answer is [CPU seconds to read the cubin and cut the kernel out,
CPU seconds to cut it out again, CPU seconds to weave it, outcome]. The outcome is a digest of the cut cubin and of
everything that `weave` returns, or of the reason why the kernel is left alone.
"""

from __future__ import annotations

import hashlib
import sys
import time
from functools import cache

import msgpack

import gpt.executables  # noqa: F401 - sets the thresholds of the garbage collector, as in the stage
from gpt.formats.cubin_edit import CubinEditor
from gpt.probe.model import ProbeFile
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.read.load import load_all
from gpt.probe.sass.snippets import Compiler
from gpt.probe.sass.weave import weave
from gpt.probe.sass.weaving import _Cubin
from gpt.sass.tables import table_of


@cache
def compiler_of(arch: str) -> Compiler:
    """Return the architecture's compiler."""
    return Compiler(arch, table_of(arch))


@cache
def load(probes: str) -> list[ProbeFile]:
    """Load probes, whose names have a comma between them."""
    return load_all(probes.split(","))


def weave_one(cubin: bytes | CubinEditor, arch: str, kernel: str, probes: str) -> tuple[float, str]:
    """Weave a kernel. Return the CPU seconds that it took, and the outcome."""
    cut = hashlib.sha256(cubin.data if isinstance(cubin, CubinEditor) else cubin).hexdigest()[:16]
    start = time.process_time()
    try:
        woven = weave(cubin, kernel, arch, load(probes), compiler_of(arch))
    except LeftAlone as error:
        return time.process_time() - start, f"{cut} " + ": ".join(map(str, error.reason))
    seconds = time.process_time() - start
    kept = [repr((one.map.name, one.param, one.counted, sorted(one.idle))) for one in woven.maps]
    parts = (woven.data, kept, woven.sites, woven.misfits, woven.variables, woven.needs, woven.params, woven.added)
    digest = hashlib.sha256(b"\0".join(part if isinstance(part, bytes) else repr(part).encode() for part in parts))
    return seconds, f"{cut} {digest.hexdigest()}"


def main() -> None:
    """Answer requests until there are no more."""
    requests = open(sys.stdin.fileno(), "rb", buffering=0)  # a buffered file would wait for more than one request
    for data, arch, kernel, probes in msgpack.Unpacker(requests, max_buffer_size=1 << 30):
        compiler_of(arch)
        load(probes)
        start = time.process_time()
        module = _Cubin(data, arch, None)
        module.cut_to(kernel)
        middle = time.process_time()
        alone = module.cut_to(kernel)
        end = time.process_time()
        answer = [middle - start, end - middle, *weave_one(alone, arch, kernel, probes)]
        sys.stdout.buffer.write(msgpack.packb(answer))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
