"""Measure what a probe costs a node of a CUDA graph, with its code woven into PTX and into machine code.

    nodes.py make OUT NAME=CHECKOUT...    weaves with the probes and weavers of each checkout; needs ptxas, but no GPU
    nodes.py run OUT                      runs the results on the first GPU, prints a table, and leaves all times in
                                          nodes.json; needs nothing but Python

A graph has NODES nodes in a row. They launch one kernel, or cycle through KERNELS kernels of equal length, whose code
is less likely to be in a cache. Each round replays the graphs of all versions one after the other. The result is the
time of a node, the median over the rounds; the plain kernels are loaded twice.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.gpu.light import Gpu  # noqa: E402

PROBES = ("block_sched", "gmem_bytes")
KERNELS, NODES, ROUNDS = 128, 1024, 15
SHAPES = {"1 x 128": (1, 128), "132 x 256": (132, 256), "1,056 x 256": (1056, 256)}  # blocks and threads
WEAVE = """
import pickle, sys
from gpt.base.cache import Cache
from gpt.probe.ptx.weave import weave as weave_ptx
from gpt.probe.read import load
from gpt.probe.sass.snippets import Compiler
from gpt.probe.sass.weave import weave as weave_sass
from gpt.sass.tables import table_of
probe, kernels = pickle.load(sys.stdin.buffer)
files = [load.load_probes(load.find_probe(probe))]
compiler = Compiler("sm_90", table_of("sm_90"), Cache(None))
made = [(weave_ptx(ptx, f"k{n}", files).data, weave_sass(cubin, f"k{n}", "sm_90", files, compiler).data)
        for n, (ptx, cubin) in enumerate(kernels)]
pickle.dump([(bytes(text), bytes(cubin)) for text, cubin in made], sys.stdout.buffer)
"""


class Node(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("arguments", ctypes.c_void_p),
        ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


def kernel(number: int) -> bytes:
    """Return the PTX of a kernel that adds two arrays and computes a little, with constants of its own."""
    steps = "\n".join(f"fma.rn.f32 %f3, %f3, %f1, 0f3F8{(number * 37 + k * 11) % 65536:05X};" for k in range(24))
    return f""".version 8.0
.target sm_90
.address_size 64
.visible .entry k{number}(.param .u64 a, .param .u64 b, .param .u64 c, .param .u32 n)
{{
  .reg .b32 %r<6>; .reg .b64 %d<8>; .reg .f32 %f<4>; .reg .pred %p;
  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;
  mad.lo.s32 %r4, %r1, %r2, %r3;
  ld.param.u32 %r5, [n];
  setp.ge.s32 %p, %r4, %r5;
  @%p bra done;
  ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b]; ld.param.u64 %d3, [c];
  mul.wide.s32 %d4, %r4, 4;
  add.s64 %d5, %d1, %d4; add.s64 %d6, %d2, %d4; add.s64 %d7, %d3, %d4;
  ld.global.f32 %f1, [%d5]; ld.global.f32 %f2, [%d6];
  add.f32 %f3, %f1, %f2;
  {steps}
  st.global.f32 [%d7], %f3;
done:
  ret;
}}
""".encode()


def make(out: Path, checkouts: dict[str, str]) -> None:
    """Compile the kernels, weave the probes, and save the cubins of each version."""
    from tests import cuda

    def assemble(text: bytes) -> bytes:
        (out / "k.ptx").write_bytes(text)
        cuda.run("ptxas", "-arch=sm_90", out / "k.ptx", "-o", out / "k.cubin")
        return (out / "k.cubin").read_bytes()

    texts = [kernel(number) for number in range(KERNELS)]
    plain = [assemble(text) for text in texts]
    versions = {"plain": plain, "plain again": plain}
    for probe in PROBES:
        for name, checkout in checkouts.items():
            env = os.environ | {"PYTHONPATH": checkout}  # has precedence over the installed package
            task, line = pickle.dumps((probe, list(zip(texts, plain, strict=True)))), [sys.executable, "-c", WEAVE]
            done = subprocess.run(line, input=task, stdout=subprocess.PIPE, env=env, check=True, cwd=checkout)
            made = pickle.loads(done.stdout)
            versions[f"{probe}, PTX, {name}"] = [assemble(text) for text, _ in made]
            versions[f"{probe}, machine code, {name}"] = [cubin for _, cubin in made]
    (out / "nodes.pkl").write_bytes(pickle.dumps(versions))


class Graphs:
    """The graphs of all versions."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        self._kept: list[Any] = []
        self._data = [gpu.memory(1 << 22) for _ in range(4)]
        self._stream = ctypes.c_void_p()
        gpu.call("cuStreamCreate", ctypes.byref(self._stream), 1)

    def make(self, functions: list[ctypes.c_void_p], shape: tuple[int, int], is_probed: bool) -> ctypes.c_void_p:
        """Return an executable graph whose nodes cycle through these functions."""
        blocks, threads = shape
        *arrays, buffer = self._data
        arguments = [*arrays, ctypes.c_uint32(blocks * threads), *([buffer] if is_probed else [])]
        pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        self._kept += [arguments, pointers]
        graph, before = ctypes.c_void_p(), None
        self.gpu.call("cuGraphCreate", ctypes.byref(graph), 0)
        for number in range(NODES):
            node = Node(functions[number % len(functions)], (blocks, 1, 1), (threads, 1, 1), 0,
                        ctypes.addressof(pointers))  # fmt: skip
            after = (ctypes.c_void_p * 1)(before) if before else None
            made = ctypes.c_void_p()
            self.gpu.call("cuGraphAddKernelNode_v2", ctypes.byref(made), graph, after,
                          ctypes.c_size_t(before is not None), ctypes.byref(node))  # fmt: skip
            before = made.value
        executable = ctypes.c_void_p()
        self.gpu.call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_ulonglong(0))
        return executable

    def time(self, graph: ctypes.c_void_p) -> float:
        """Return the microseconds of a node."""
        replay = partial(self.gpu.call, "cuGraphLaunch", graph, self._stream)
        return self.gpu.time(replay, 2, self._stream) / NODES


def run(out: Path) -> None:
    """Measure all versions and print a table."""
    gpu, versions = Gpu(), pickle.loads((out / "nodes.pkl").read_bytes())
    graphs, every = Graphs(gpu), dict[tuple[str, str, int], Any]()
    for name, cubins in versions.items():
        functions = [gpu.load(cubin, f"k{number}", 0) for number, cubin in enumerate(cubins)]
        for shape, size in SHAPES.items():
            for count in (1, KERNELS):
                every[name, shape, count] = graphs.make(functions[:count], size, not name.startswith("plain"))
    found: dict[tuple[str, str, int], list[float]] = {key: [] for key in every}
    for _ in range(ROUNDS):
        for key, graph in every.items():
            found[key].append(graphs.time(graph))
    columns = [(shape, count) for shape in SHAPES for count in (1, KERNELS)]
    print(f"{gpu.name}: us per node, and how much more than plain; blocks x threads, kernels")
    print(" " * 36 + "".join(f"{shape}, {count}".rjust(18) for shape, count in columns))
    for name in versions:
        row = f"{name:36}"
        for column in columns:
            own, plain = (statistics.median(found[one, *column]) for one in (name, "plain"))
            row += f"{own:10.3f} {own - plain:+7.3f}"
        print(row)
    path = Path(os.environ.get("GPT_GPU_OUT", out)) / "nodes.json"
    raw = {", ".join(map(str, key)): [round(one, 4) for one in times] for key, times in found.items()}
    path.write_text(json.dumps({"gpu": gpu.name, "us": raw}, indent=1) + "\n")


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    if sys.argv[1] == "make":
        make(folder, dict(word.split("=", 1) for word in sys.argv[3:]))
    else:
        run(folder)
