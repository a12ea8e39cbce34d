"""Weave PyTorch's kernels: count how many can be woven, and why others can't.

    gpt-extract --type cubin --arch sm_90,sm_90a --payload libtorch_cuda.so |
        python -m tests.probe.sass.torch_weave block_sched gmem_bytes --every N

Prints for each probe the kernels woven and left alone by reason, the places, and the CPU time of a kernel.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter, defaultdict

import msgpack

from gpt.formats.cubin_edit import CubinEditor
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.read.load import load_all
from gpt.probe.sass.snippets import Compiler
from gpt.probe.sass.weave import weave
from gpt.sass.tables import table_of


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="torch_weave")
    parser.add_argument("probes", nargs="+")
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    spent: defaultdict[str, list[float]] = defaultdict(list)
    compilers: dict[str, Compiler] = {}
    number = 0
    for record in msgpack.Unpacker(sys.stdin.buffer, max_buffer_size=1 << 30):
        for raw in CubinEditor(record["data"]).kernels if "data" in record else ():
            number += 1
            arch = record["arch"]
            compiler = compilers.setdefault(arch, Compiler(arch, table_of(arch)))
            for probe in options.probes if number % options.every == 0 else ():
                start = time.process_time()
                try:
                    made = weave(record["data"], raw.decode(), arch, load_all([probe]), compiler)
                except LeftAlone as error:
                    found[probe][error.reason.code] += 1
                    continue
                spent[probe].append(1000 * (time.process_time() - start))
                found[probe]["woven"] += 1
                found[probe]["places"] += sum(site.matched for site in made.sites)
                found[probe]["woven places"] += sum(site.woven for site in made.sites)
    for probe, counts in found.items():
        times = sorted(spent[probe]) or [0.0]
        print(
            f"{probe}: {dict(counts)}, {times[len(times) // 2]:.0f} ms median, {times[-1 - len(times) // 100]:.0f} p99"
        )


if __name__ == "__main__":
    main()
