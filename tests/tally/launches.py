"""The kernels of tests/tally/corpus: their launches, and what they compute, in Python.

A launch has values for the parameters: arrays become buffers, numbers and bytes are passed as they are. `does` gets
copies of them and changes the arrays as the kernel does. `open_` names the parts of a buffer that may differ between
any two devices, because threads race there, or because they hold addresses or clock values. `near` is the tolerance for
approximations.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpt.ptx.prune import prune
from gpt.ptx.scan import scan_module
from tests.asm.host.jobs import Job, Shape
from tests.tally.kernels import (
    OTHER,
    PA,
    PA_STRUCTS,
    TAB,
    Array,
    Random,
    as_,
    as_check,
    assign,
    at,
    axpy,
    bk,
    cgk,
    ch,
    dyadic,
    f16,
    f32,
    f64,
    fives,
    gemm,
    hf,
    i8,
    i8_,
    i32,
    integers,
    kc,
    lm,
    lm_values,
    mt,
    nb,
    nothing,
    pa,
    pipe,
    re_,
    rk,
    saxpy_values,
    small,
    sw,
    u16,
    u32,
    u64,
    wm,
    wp,
    wp_check,
)


@dataclass(frozen=True)
class Launch:
    """`kernel` is a regular expression that matches one kernel of the source; `counts` has the counts that built-in
    probes must show.
    """

    source: str
    kernel: str
    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    values: Callable[[Random], list[Any]]
    does: Callable[..., None]
    open_: Mapping[int, Any] = field(default_factory=dict)  # for each buffer, an index or slice
    # For each buffer, the tolerance relative to each value and to the largest.
    near: Mapping[int, float] = field(default_factory=dict)
    # For undefined results; takes the buffers before and after.
    check: Callable[[list[Array], list[Array]], bool] | None = None
    shared: int = 0
    cooperative: bool = False
    variables: Mapping[str, bytes | int] = field(default_factory=dict)
    after: tuple[bytes, ...] = ()  # expected contents of the variables that have a size
    linked: bytes = b""  # PTX to link the kernel with
    cluster: int = 1  # blocks per cluster; the grid then counts clusters
    simulated: bool = True
    fault: bool = False  # the launch must end with a fault
    counts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[Shape, Shape]:
        grid, block = (((one,) if isinstance(one, int) else one) + (1, 1) for one in (self.grid, self.block))
        return (grid[0], grid[1], grid[2]), (block[0], block[1], block[2])

    @property
    def real_grid(self) -> Shape:
        """Blocks."""
        x, y, z = self.shape[0]
        return x * self.cluster, y, z

    @property
    def blocks(self) -> int:
        return math.prod(self.real_grid)

    @property
    def threads(self) -> int:
        return math.prod(self.shape[1])

    @property
    def warps(self) -> int:
        return -(-self.threads // 32)

    def given(self) -> list[Any]:
        """Return the parameter values, which are the same each time."""
        return self.values(np.random.default_rng(15))

    def job(self, image: bytes, kernel: str, maps: list[int] | None = None) -> Job:
        """Return the launch of a device image, with buffers of these sizes appended to the parameters."""
        values: list[bytearray | bytes] = []
        for value in self.given():
            data = value if isinstance(value, bytes) else value.tobytes()
            values.append(bytearray(data) if isinstance(value, np.ndarray) else data)
        values += [bytearray(size) for size in maps or ()]
        grid, block = self.shape
        return Job(
            image, kernel, grid, block, tuple(values), self.shared, self.cooperative, self.variables, self.linked
        )

    def buffers(self) -> list[Array]:
        """Return the values that are buffers."""
        return [value for value in self.given() if isinstance(value, np.ndarray)]

    def wanted(self) -> list[Array]:
        """Return the expected final contents of the buffers."""
        values = self.given()
        with np.errstate(all="ignore"):
            self.does(*values)
        return [value for value in values if isinstance(value, np.ndarray)]

    def found(self, answer: list[bytes]) -> list[Array]:
        """Return the buffers of an answer."""
        before = self.buffers()
        return [np.frombuffer(data, one.dtype) for data, one in zip(answer, before, strict=False)]

    def differs(self, one: list[Array], other: list[Array]) -> str:
        """Return the difference between two results; empty if they're equal."""
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            a, b = a.reshape(-1).copy(), b.reshape(-1).copy()
            if number in self.open_:
                a[self.open_[number]] = b[self.open_[number]] = 0
            if number in self.near:
                room = self.near[number] * np.abs(b).max()
                wrong = ~(np.abs(a.astype(np.float64) - b) <= room)
            else:
                wrong = a.view(f"V{a.itemsize}") != b.view(f"V{b.itemsize}")
            if wrong.any():
                at = int(np.flatnonzero(wrong)[0])
                return (
                    f"buffer {number}, element {at} of {len(a)}: {a[at]!r}, not {b[at]!r} ({int(wrong.sum())} differ)"
                )
        return ""

    def judge(self, answer: list[bytes]) -> str:
        """Return what's wrong in an answer; empty if nothing."""
        found = self.found(answer)
        said = self.differs(found, self.wanted())
        if not said and self.check and not self.check(self.buffers(), found):
            said = "not one of the results that threads which race can give"
        if not said and tuple(answer[len(answer) - len(self.after) :]) != self.after:
            said = f"variables: {answer[-len(self.after) :]}, not {self.after}"
        return said


def tiles(side: int, n: int) -> dict[str, int]:
    """Return the counts for gemm: each thread loads two elements of each tile and stores one; there are two barriers
    per tile.
    """
    return {"read": 8 * n // side * n * n, "loads": 2 * n // side * n * n, "written": 4 * n * n, "waits": 2 * n // side}


def one_value(source: str, kernel: str, value: int, block: int = 32, grid: int = 1, **more: Any) -> Launch:
    return Launch(source, kernel, grid, block, lambda r: [integers(r, 4)], assign(0, 0, value), **more)


LAUNCHES: list[Launch] = [
    Launch("asmtricks", "as", 1, 64, lambda r: [r.integers(0, 1 << 32, 4).astype(u32), r.integers(0, 1 << 62,
           2).astype(u64)],
           as_, open_={0: slice(0, 2)}, check=as_check, counts={"waits": 2}),
    Launch("atomics", "at", 1, 96,
           lambda r: [np.array([7, 9, 1, 0, 5, 13, 3, 6, 4, 2], i32), np.array([(1 << 32) - 3, 1], u64), f32([5, 0]),
                      f64([0.5]), f16([3, 5]), np.array([1, 7], u16)],
           at, open_={2: 1}, check=lambda a, b: b[2][1] - 5 in range(96)),
    Launch("atomics", "ca", 1, 1, lambda r: [np.array([4], i32), np.array([0], u64)],
           fives),
    Launch("blockcub", "bk", 1, 256, lambda r: [integers(r, 2048)], bk,
           counts={"read": 36 * 256, "loads": 9 * 256, "written": 32 * 256}),
    Launch("cache", "ch", 1, 1, lambda r: [integers(r, 17, -999, 999), integers(r, 4, -999, 999), dyadic(r, 4, 30,
           f64)],
           ch),
    Launch("cdp", "child", 3, 32, lambda r: [np.array([5], i32)], assign(0, 0, 101)),
    Launch("cluster", "clPi", 2, 32, lambda r: [np.zeros(32, i32)], nothing, open_={0: slice(None)},
           check=lambda a, b: set(b[0].tolist()) <= {2, 3}, simulated=False),
    one_value("cluster", "cl2", 1),
    one_value("cluster", "cl3", 1, 128, grid=2, cluster=2, simulated=False),
    Launch("consts", "kc", 1, 1, lambda r: [np.zeros(8, f32), i32(5)], kc,
           variables={"tab": TAB.tobytes(), "nanv": struct.pack("<d", 0.25), "ctr": 4, "sctr": 4},
           after=(struct.pack("<i", 1), struct.pack("<i", 2))),
    Launch("coop", "cgk", 1, 32, lambda r: [integers(r, 32, -999, 999)], cgk, open_={0: 0}, cooperative=True,
           counts={"waits": 2}),
    Launch("coop", "cgk", 4, 64, lambda r: [integers(r, 256, -999, 999)], cgk, open_={0: slice(0, 32)},
           cooperative=True, counts={"waits": 2}),
    Launch("dynshared", "dynPi", 1, 100, lambda r: [integers(r, 100)], lambda p: p.__setitem__(slice(None),
           p[::-1].copy()),
           shared=400),
    Launch("dynshared", "dyn2", 1, 64, lambda r: [dyadic(r, 64, 40, f64)],
           lambda p: p.__setitem__(slice(None), p.reshape(-1, 2)[:, ::-1].reshape(-1)), shared=512),
    Launch("fp16", "hf", 1, 1,
           lambda r: [f16([0, 2, 7, 9]), f16([4, 2, 1000, 2000]), np.array([0x3FC0, 0], u16),
                      np.array([0x4000, 0x3FC0, 0x3F00, 0x4040], u16), np.array([0, 0], np.uint8), f32([6, 0])], hf),
    Launch("int128", "i8", 1, 1, lambda r: [r.integers(0, 1 << 64, 6, u64), r.integers(0, 1 << 64, 10, u64),
           i32(37)], i8_),
    Launch("lambda", "apIZ1gPiiEUliE_", 1, 32, lambda r: [i32(7), i32(30), integers(r, 32)],
           lambda k, n, p: p.__setitem__(slice(0, 30), 7 * np.arange(30)),
           counts={"written": 120, "reached": 32}),
    Launch("lambda", "apIZ1gPiiEUliE0_", 1, 32, lambda r: [struct.pack("<i12x", 9), i32(32), integers(r, 32)],
           lambda k, n, p: p.__setitem__(slice(None), 9 + np.arange(32))),
    *(one_value("lbounds", kernel, value)
      for kernel, value in (("l1Pi$", 1), ("l2", 2), ("l3", 3), ("l4ILi32E", 32), ("l4ILi1024E", 1024), ("l6", 5),
                            ("l7E", 9))),
    Launch("lbounds", "l5I", 1, 32, lambda r: [integers(r, 2), i32(1), f32(2.5), i8(3)], assign(0, 0, 6)),
    Launch("localmem", "lm", 1, 1, lm_values, lm, counts={"written": 4 * 64}),
    Launch("math", "mt", 1, 48, lambda r: [r.uniform(0.1, 3, 48).astype(f32), r.uniform(0.1, 3, 48)], mt,
           near={0: 1e-5, 1: 1e-12}),
    Launch("nbody", "nb", 2, 256,
           lambda r: [r.uniform(-1, 1, 2048).astype(f32), r.uniform(-1, 1, 2048).astype(f32), i32(512), f32(0.001)], nb,
           near={1: 1e-4}, counts={"written": 12 * 512, "waits": 4}),
    Launch("params", "pa", 1, 1, lambda r: [*PA, integers(r, 2), *PA_STRUCTS, integers(r, 2)], pa, open_={1: 1}),
    Launch("pipeline", "pipe", 1, 256, lambda r: [r.uniform(-9, 9, 1280).astype(f32), dyadic(r, 256), i32(5)], pipe,
           shared=2048, counts={"written": 4 * 5 * 256}),
    Launch("pipeline", "bar", 1, 256, lambda r: [integers(r, 256), integers(r, 256)],
           lambda g, o: o.__setitem__(slice(None), g[::-1]), counts={"written": 4 * 256, "waits": 1}),
    Launch("printfk", "pk", 1, 1, lambda r: [np.array([1, 2], i32), f32(0.5)], nothing, fault=True),
    Launch("rdcext", "re", 1, 1, lambda r: [np.array([0, 11, 21], i32)], re_, linked=OTHER),
    *(Launch("recurse", "rk", 1, 1, lambda r, i=i: [np.array([11, *range(20, 29)], i32), i32(i)], rk) for i in (3, 14)),
    Launch("saxpy", "saxpy", 7, 100, saxpy_values(613, 700), axpy(613),
           counts={"read": 8 * 613, "written": 4 * 613, "loads": 2 * 613, "accesses": 3 * 613, "waits": 0,
                   "reached": 700, "range": lambda made: (made[1][:613],) * 2}),
    Launch("saxpy", "daxpy", 3, 64,
           lambda r: [i32(501), f64(-2.8125), dyadic(r, 512, 26, f64), dyadic(r, 512, 40, f64)], axpy(501),
           counts={"read": 16 * 501, "written": 8 * 501, "loads": 2 * 501, "accesses": 3 * 501, "waits": 0}),
    Launch("saxpy", "vadd4", 1, 64, lambda r: [*(r.uniform(-1e9, 1e9, 256).astype(f32) for _ in range(2)),
           np.zeros(256, f32)],
           lambda a, b, c: c.__setitem__(slice(None), a + b),
           counts={"range": lambda made: (made[2].reshape(-1, 4).min(1), made[2].reshape(-1, 4).max(1))}),
    Launch("setmaxnreg", "sm", 1, 384, lambda r: [dyadic(r, 384)], lambda p: p.__iadd__(1) is None, open_={0: 0},
           check=lambda a, b: b[0][0] - a[0][0] in range(14), counts={"read": 8 * 384, "written": 8 * 384, "waits": 0}),
    Launch("shared_tile", "gemmILi16E", (3, 3), (16, 16), lambda r: [*(small(r, 48 * 48, f32) for _ in range(3)),
           i32(48)],
           gemm, counts=tiles(16, 48)),
    Launch("shared_tile", "gemmILi32E", (2, 2), (32, 32), lambda r: [*(small(r, 64 * 64, f32) for _ in range(3)),
           i32(64)],
           gemm, counts=tiles(32, 64)),
    *(Launch("switchk", "sw", 1, 1,
             lambda r, n=n: [np.concatenate([[3, -77, 1234567, -30, 5, 9], integers(r, 10)]).astype(i32), i32(n)], sw,
             open_={0: 1} if n == 0 else {}) for n in (0, 1, 2, 3, 4, 7, 9, 11)),
    Launch("warp", "wp", 1, 32, lambda r: [integers(r, 32), f32([0])], wp, open_={1: 0}, check=wp_check),
    Launch("wmma", "wmP", 1, 32, lambda r: [small(r, 256, f16), small(r, 256, f16), np.zeros(256, f32)], wm),
    Launch("wmma", "wmi", 1, 32, lambda r: [*(r.integers(-128, 128, 256).astype(i8) for _ in range(2)), np.zeros(256,
           i32)],
           wm),
]  # fmt: skip

# Kernels that aren't launched, with the reason: by source, or by a part of their name.
LEFT = {
    "cub_all": "takes structures of the library's",
    "thrust_all": "takes structures of the library's",
    "EmptyKernel": "is never launched",
    "parent": "launches a kernel itself",
    "mma_asm": "takes an address of global memory for one of shared memory",
    "tcgen": "stores what shared memory begins with",
    "tex": "reads textures and surfaces",
    "tma": "copies by tensor map",
}


def images(source: str, ptx: bytes) -> Iterator[tuple[Launch, str, bytes]]:
    """Yield the launches of a source, each with its kernel's name and PTX.

    Variables become visible: nvcc hides variables that no host code refers to.
    """
    module = scan_module(ptx, source)
    for launch in LAUNCHES:
        if launch.source == source:
            names = [one.name for one in module.entries if re.match(rf"(_ZN\w*?|_Z)?\d*{launch.kernel}", one.name)]
            (name,) = names
            text = prune(module, [name])
            if launch.variables:
                text = re.sub(rb"^\.(global|const) ", rb".visible .\1 ", text, flags=re.M)
            yield launch, name, text
