"""Weave a library's kernels: count how many can be woven, and why others can't.

    gpt-extract --type cubin --arch sm_90,sm_90a --payload libtorch_cuda.so |
        python -m tests.probe.sass.torch_weave block_sched gmem_bytes --every N > figures.json

Takes every Nth kernel. For each probe, it prints: the numbers of woven kernels and of kernels left alone, with reasons;
the number of places, and why some were left out; how many kernels have all places woven, and how many at least nine in
ten; and the CPU time per kernel.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from typing import Any

import msgpack

from gpt.formats.cubin_edit import CubinEditor
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.read.load import load_all
from gpt.probe.sass.snippets import Compiler
from gpt.probe.sass.weave import weave
from gpt.sass.tables import table_of


class Coverage:
    """The kernels and places of one probe."""

    def __init__(self, name: str) -> None:
        self.files = load_all([name])
        self.kernels: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        self.places = self.woven = 0
        self.times: list[float] = []

    def add(self, cubin: CubinEditor, name: str, arch: str, compiler: Compiler) -> None:
        """Weave a kernel."""
        start = time.process_time()
        try:
            made = weave(cubin, name, arch, self.files, compiler)
        except LeftAlone as error:
            code, detail = error.reason
            self.kernels[code if code in ("no_place", "unproven") else f"{code}: {detail}"] += 1
            return
        finally:
            self.times.append(1000 * (time.process_time() - start))
        self.kernels["woven"] += 1
        there, woven = sum(site.matched for site in made.sites), sum(site.woven for site in made.sites)
        self.places += there
        self.woven += woven
        self.kernels["with every place"] += woven == there
        self.kernels["with nine places in ten"] += 10 * woven >= 9 * there
        self.left_out.update(re.sub(r"probe '.*' at '.*': ", "", text) for text in made.misfits)

    def report(self) -> dict[str, Any]:
        """Return it all."""
        times = sorted(self.times)
        return {
            "kernels": dict(self.kernels.most_common()),
            "places": self.places,
            "places woven": self.woven,
            "why kernels lack places": dict(self.left_out.most_common()),
            "median, ms": round(times[len(times) // 2], 1),
            "99th percentile, ms": round(times[-1 - len(times) // 100], 1),
        }


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="torch_weave")
    parser.add_argument("probes", nargs="+")
    parser.add_argument("--every", type=int, default=1)
    options = parser.parse_args()
    found = {probe: Coverage(probe) for probe in options.probes}
    compilers: dict[str, Compiler] = {}
    number = tried = 0
    for record in msgpack.Unpacker(sys.stdin.buffer, max_buffer_size=1 << 30):
        if "data" not in record:
            continue
        arch, cubin = record["arch"], CubinEditor(record["data"])
        if arch not in compilers:
            compilers[arch] = Compiler(arch, table_of(arch))
        for raw in cubin.kernels:
            number += 1
            if number % options.every == 0:
                tried += 1
                for coverage in found.values():
                    coverage.add(cubin, raw.decode(), arch, compilers[arch])
    reports = {name: one.report() for name, one in found.items()}
    json.dump({"kernels": number, "tried": tried} | reports, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
