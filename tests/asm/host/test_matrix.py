"""Matrix products on the simulated device: every shape and type of mma and wmma, compared with numpy.

Fragments are laid out, and read back, as the manual describes it for each shape.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest

from gpt.asm.backend import Options
from gpt.asm.host.backend import Host, HostTarget
from tests.asm.host.exact import FORMATS
from tests.runtime import hooked

Place = Callable[[int, int, int], tuple[int, int]]  # lane / 4, lane % 4 and element -> row and column
SIZES = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "e4m3": 8, "e5m2": 8}
SIZES |= {"s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1, "s32": 32}


def C(g: int, t: int, i: int) -> tuple[int, int]:
    """Return the place of element i of C and D."""
    return g + 8 * (i >= 2), 2 * t + (i & 1)


LAYOUTS: dict[tuple[int, str], tuple[Place, Place]] = {  # places of A and B, by K and type
    (8, "f16"): (lambda g, t, i: (g + 8 * (i >= 2), 2 * t + (i & 1)), lambda g, t, i: (2 * t + i, g)),
    (16, "f16"): (
        lambda g, t, i: (g if i < 2 or 4 <= i < 6 else g + 8, 2 * t + (i & 1) + 8 * (i >= 4)),
        lambda g, t, i: (2 * t + (i & 1) + 8 * (i >= 2), g),
    ),
    (4, "tf32"): (lambda g, t, i: (g + 8 * i, t), lambda g, t, i: (t, g)),
    (8, "tf32"): (lambda g, t, i: (g + 8 * (i in (1, 3)), t + 4 * (i >= 2)), lambda g, t, i: (t + 4 * i, g)),
    (4, "f64"): (lambda g, t, i: (g + 8 * i, t), lambda g, t, i: (t, g)),
    (16, "f64"): (
        lambda g, t, i: (g + 8 * (i % 2), 2 * i + t if i % 2 == 0 else 2 * i - 2 + t),
        lambda g, t, i: (t + 4 * i, g),
    ),
    (16, "s8"): (lambda g, t, i: (g + 8 * (i >= 4), 4 * t + (i & 3)), lambda g, t, i: (4 * t + i, g)),
    (32, "s8"): (
        lambda g, t, i: (g if i < 4 or 8 <= i < 12 else g + 8, 4 * t + (i & 3) + 16 * (i >= 8)),
        lambda g, t, i: (4 * t + (i & 3) + 16 * (i >= 4), g),
    ),
    (32, "s4"): (lambda g, t, i: (g + 8 * (i >= 8), 8 * t + (i & 7)), lambda g, t, i: (8 * t + i, g)),
    (64, "s4"): (
        lambda g, t, i: (g if i < 8 or 16 <= i < 24 else g + 8, 8 * t + (i & 7) + 32 * (i >= 16)),
        lambda g, t, i: (8 * t + (i & 7) + 32 * (i >= 8), g),
    ),
    (128, "b1"): (lambda g, t, i: (g + 8 * (i >= 32), 32 * t + (i & 31)), lambda g, t, i: (32 * t + i, g)),
    (256, "b1"): (
        lambda g, t, i: (g if i < 32 or 64 <= i < 96 else g + 8, 32 * t + (i & 31) + 128 * (i >= 64)),
        lambda g, t, i: (32 * t + (i & 31) + 128 * (i >= 32), g),
    ),
}
LIKE = {"bf16": "f16", "e4m3": "s8", "e5m2": "s8", "u8": "s8", "u4": "s4"}


class Product(NamedTuple):
    """An instruction, its size and types."""

    text: str
    size: tuple[int, int, int]
    a: str
    b: str
    c: str
    d: str

    def elements(self, matrix: str) -> int:
        m, n, k = self.size
        return {"a": m * k, "b": n * k}.get(matrix, m * n) // 32

    def words(self, matrix: str) -> int:
        """Make 32-bit words for each lane."""
        return self.elements(matrix) * SIZES[getattr(self, matrix)] // 32


def products() -> list[Product]:
    """Yield every mma, except m8n8k4 with f16."""
    found = []

    def add(shapes: str, pairs: list[tuple[str, str]], sums: list[tuple[str, str]], *ends: str) -> None:
        for shape, (a, b), (d, c), end in product(shapes.split(), pairs, sums, ends or ("",)):
            m, _, rest = shape[1:].partition("n")
            n, _, k = rest.partition("k")
            middle, last = (end, "") if end == ".satfinite" else ("", end)
            text = f"mma.sync.aligned.{shape}.row.col{middle}.{d}.{a}.{b}.{c}{last}"
            found.append(Product(text, (int(m), int(n), int(k)), a, b, c, d))

    add("m16n8k8 m16n8k16", [("f16", "f16")], [("f16", "f16"), ("f32", "f32")])
    add("m16n8k8 m16n8k16", [("bf16", "bf16")], [("f32", "f32")])
    add("m16n8k4 m16n8k8", [("tf32", "tf32")], [("f32", "f32")])
    add("m8n8k4 m16n8k4 m16n8k16", [("f64", "f64")], [("f64", "f64")])
    add("m16n8k32", list(product(("e4m3", "e5m2"), repeat=2)), [("f32", "f32"), ("f16", "f16")])
    add("m8n8k16 m16n8k16 m16n8k32", list(product(("s8", "u8"), repeat=2)), [("s32", "s32")], "", ".satfinite")
    add("m8n8k32 m16n8k32 m16n8k64", list(product(("s4", "u4"), repeat=2)), [("s32", "s32")], "", ".satfinite")
    add("m8n8k128 m16n8k128 m16n8k256", [("b1", "b1")], [("s32", "s32")], ".xor.popc", ".and.popc")
    return found


def draw(type_: str, shape: tuple[int, int], source: random.Random) -> np.ndarray:
    """Return a matrix of small numbers that a type can hold."""
    if type_ == "s32":  # near the limits, so that sums wrap around
        values = [source.choice((0, 1, -5, 2**31 - 3, -(2**31))) for _ in range(shape[0] * shape[1])]
        return np.array(values, np.int64).reshape(shape)
    if type_ not in FORMATS:
        least, greatest = {"s": (-(1 << SIZES[type_] - 1), (1 << SIZES[type_] - 1) - 1)}.get(
            type_[0], (0, (1 << SIZES[type_]) - 1)
        )
        return np.array([source.randint(least, greatest) for _ in range(shape[0] * shape[1])], np.int64).reshape(shape)
    return np.array([source.randint(-8, 8) / 4 for _ in range(shape[0] * shape[1])]).reshape(shape)


def encode(type_: str, value: float) -> int:
    """Return the bits of a number."""
    if type_ in FORMATS:
        form = FORMATS[type_]
        bits = form.encode(value < 0, abs(Fraction(value)))
        return bits << 13 if type_ == "tf32" else bits
    return int(value) & (1 << SIZES[type_]) - 1


def pack(values: list[int], bits: int) -> list[int]:
    """Pack elements into 32-bit words, the first in the lowest bits."""
    whole = sum(value << bits * place for place, value in enumerate(values))
    return [whole >> 32 * place & 0xFFFFFFFF for place in range(len(values) * bits // 32)]


def unpack(words: list[int], type_: str) -> list[float]:
    """Return the numbers of a fragment."""
    bits, whole = SIZES[type_], sum(word << 32 * place for place, word in enumerate(words))
    found = [whole >> bits * place & (1 << bits) - 1 for place in range(32 * len(words) // bits)]
    if type_ == "s32":
        return [value - (1 << 32) if value >> 31 else value for value in found]
    return [float(FORMATS[type_].number(value)) for value in found]


def kernel(name: str, one: Product) -> str:
    """Load a lane's fragments, which lie one after the other, and store D's."""
    counts = {matrix: one.words(matrix) for matrix in "abcd"}
    total, lines, named, at = sum(counts.values()), [], {}, 0
    for matrix in "abcd":
        double = getattr(one, matrix) == "f64"
        step, type_ = (2, "f64") if double else (1, "b32")
        names = [f"%{matrix}{place}" for place in range(counts[matrix] // step)]
        lines.append(f".reg .{type_} {', '.join(names)};")
        named[matrix] = names, at, step, type_
        at += counts[matrix]
    for matrix in "abc":
        names, start, step, type_ = named[matrix]
        lines += [f"ld.global.{type_} {one_}, [%at+{4 * (start + step * i)}];" for i, one_ in enumerate(names)]
    lines.append(f"{one.text} {', '.join('{' + ', '.join(named[matrix][0]) + '}' for matrix in 'dabc')};")
    names, start, step, type_ = named["d"]
    lines += [f"st.global.{type_} [%at+{4 * (start + step * i)}], {one_};" for i, one_ in enumerate(names)]
    return f"""
.visible .entry {name}(.param .u64 buffer) {{
    .reg .u64 %at; .reg .u32 %lane; ld.param.u64 %at, [buffer]; mov.u32 %lane, %tid.x;
    mad.wide.u32 %at, %lane, {4 * total}, %at;
    {" ".join(lines)}
    ret;
}}"""


SCRIPT = """
import json, sys
from tests.runtime.driving import *
begin()
module = load(sys.argv[1])
found = {}
for name, words in json.load(sys.stdin).items():
    memory = Memory(len(words)); memory.write(words)
    ok(launch(function(module, name), 1, 32, memory))
    found[name] = memory.read()
print(json.dumps(found))
"""


def simulate(folder, text: str, inputs: dict[str, list[int]]) -> dict[str, list[int]]:
    """Run kernels on one warp each, and return their buffers."""
    image = folder / "module.so"
    image.write_bytes(Host(Options()).make(text.encode(), "m", HostTarget()).image)
    env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim"), "GPT_SIM_RUN": "all"}
    done = subprocess.run([sys.executable, "-c", SCRIPT, image], input=json.dumps(inputs), env=env, cwd=hooked.ROOT,
                          capture_output=True, text=True, timeout=300, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def results(one: Product, words: list[int]) -> Iterator[tuple[int, int, float]]:
    """Yield lane, element and value of each result, from the words of all lanes."""
    size = sum(one.words(x) for x in "abcd")
    for lane in range(32):
        of_lane = words[lane * size : (lane + 1) * size]
        for i, value in enumerate(unpack(of_lane[-one.words("d") :], one.d)):
            yield lane, i, value


HEAD = ".version 8.7\n.target sm_90\n.address_size 64\n"


@pytest.mark.full
def test_mma(tmp_path):
    """Check each shape and each combination of types."""
    source, text, inputs, wanted = random.Random(2), [HEAD], {}, {}
    for number, one in enumerate(products()):
        (m, n, k), name = one.size, f"k{number}"
        places = dict(zip("abcd", (*layout_of(k, one.a), C, C), strict=True))
        drawn = {x: draw(getattr(one, x), s, source) for x, s in (("a", (m, k)), ("b", (k, n)), ("c", (m, n)))}
        lanes = []
        for lane in range(32):
            for x in "abc":
                at = [places[x](lane // 4, lane % 4, i) for i in range(one.elements(x))]
                type_ = getattr(one, x)
                lanes += pack([encode(type_, drawn[x][place].item()) for place in at], SIZES[type_])
            lanes += [0] * one.words("d")
        text.append(kernel(name, one))
        inputs[name] = lanes
        a, b = drawn["a"], drawn["b"]
        if one.a == "b1":
            each = (a[:, :, None] & b[None]) if ".and" in one.text else (a[:, :, None] ^ b[None])
            total = each.sum(1) + drawn["c"]
        else:
            total = a @ b + drawn["c"]
        if one.d == "s32":
            wraps = (total + 2**31) % 2**32 - 2**31
            total = np.clip(total, -(2**31), 2**31 - 1) if "satfinite" in one.text else wraps
        wanted[name] = one, total
    found = simulate(tmp_path, "".join(text), inputs)
    for name, (one, total) in wanted.items():
        for lane, i, value in results(one, found[name]):
            assert value == total[C(lane // 4, lane % 4, i)], (one.text, lane, i)


def layout_of(k: int, type_: str) -> tuple[Place, Place]:
    name = LIKE.get(type_, type_)
    return LAYOUTS[k, name]


QUARTERS = {  # lane within its quarter, 0 to 7, and element -> place, for the layouts of m8n8k4
    ("a", "row"): lambda q, i: (q, i),
    ("a", "col"): lambda q, i: (i % 4 + (q & 4), q % 4),
    ("b", "row"): lambda q, i: (q % 4, i + (q & 4)),
    ("b", "col"): lambda q, i: (i, q),
    ("c", "f16"): lambda q, i: (q, i),
    ("c", "f32"): lambda q, i: ((q & 1) + (i & 2) + (q & 4), (i & 4) + (q & 2) + (i & 1)),
}


@pytest.mark.full
def test_quarters(tmp_path):
    """mma.m8n8k4 of f16 computes four products, each in eight lanes."""
    source, text, inputs, wanted = random.Random(3), [HEAD], {}, {}
    sums = ("f16", "f16"), ("f32", "f16"), ("f32", "f32")
    for number, (rows, columns, (d, c)) in enumerate(product(("row", "col"), ("row", "col"), sums)):
        one = Quarters(f"mma.sync.aligned.m8n8k4.{rows}.{columns}.{d}.f16.f16.{c}", (8, 8, 4), "f16", "f16", c, d)
        name = f"k{number}"
        drawn = [
            {x: draw("f16", s, source) for x, s in (("a", (8, 4)), ("b", (4, 8)), ("c", (8, 8)))} for _ in range(4)
        ]
        words = []
        for lane in range(32):
            own, q = drawn[lane % 16 // 4], lane % 4 + 4 * (lane >= 16)
            for x, kind in (("a", rows), ("b", columns), ("c", c)):
                type_ = getattr(one, x)
                at = [QUARTERS[x, kind](q, i) for i in range(one.elements(x))]
                words += pack([encode(type_, own[x][place].item()) for place in at], SIZES[type_])
            words += [0] * one.words("d")
        text.append(kernel(name, one))
        inputs[name] = words
        wanted[name] = one, [own["a"] @ own["b"] + own["c"] for own in drawn]
    found = simulate(tmp_path, "".join(text), inputs)
    for name, (one, totals) in wanted.items():
        for lane, i, value in results(one, found[name]):
            place = QUARTERS["c", one.d](lane % 4 + 4 * (lane >= 16), i)
            assert value == totals[lane % 16 // 4][place], (one.text, lane, i)


class Quarters(Product):
    """A product whose lanes hold more elements, because only eight lanes compute each product."""

    def elements(self, matrix: str) -> int:
        return 4 if matrix in "ab" else 8


WMMA = [
    *(("f16", "f16", d, size) for d in ("f16", "f32") for size in ((16, 16, 16), (8, 32, 16), (32, 8, 16))),
    *(("bf16", "bf16", "f32", size) for size in ((16, 16, 16), (8, 32, 16), (32, 8, 16))),
    *((type_, type_, "s32", size) for type_ in ("s8", "u8") for size in ((16, 16, 16), (8, 32, 16), (32, 8, 16))),
    ("tf32", "tf32", "f32", (16, 16, 8)),
    ("f64", "f64", "f64", (8, 8, 4)),
    ("s4", "s4", "s32", (8, 8, 32)),
    ("b1", "b1", "s32", (8, 8, 128)),
]


@pytest.mark.full
def test_wmma(tmp_path):
    """Each matrix is loaded or stored by rows or by columns, with a larger stride or the minimum."""
    source, text, inputs, wanted = random.Random(4), [HEAD], {}, {}
    for number, (a, _, c, (m, n, k)) in enumerate(WMMA):
        for orders in [("row", "col", "row")] if SIZES[a] < 8 else [("row", "col", "row"), ("col", "row", "col")]:
            name = f"k{number}{orders[0]}"
            drawn = {x: draw(t, s, source) for x, t, s in (("a", a, (m, k)), ("b", a, (k, n)), ("c", c, (m, n)))}
            words, offsets, strides = [], {}, {}
            for x, order, type_ in zip("abc", orders, (a, a, c), strict=True):
                lines = drawn[x] if order == "row" else drawn[x].T
                more = 0 if x == "a" else 128 // SIZES[type_] or 1
                offsets[x], strides[x] = 4 * len(words), lines.shape[1] + more
                values = [[encode(type_, v) for v in line] + [0] * more for line in lines.tolist()]
                words += pack([v for line in values for v in line], SIZES[type_])
            counts = {"a": m * k, "b": n * k, "c": m * n}
            total, out = {}, 4 * len(words)
            for x, type_ in (("a", a), ("b", a), ("c", c)):
                elements = 16 if a == "f16" and x in "ab" else counts[x] // 32
                total[x] = elements * SIZES[type_] // (64 if type_ == "f64" else 32)
            names = {x: [f"%{x}{i}" for i in range(total[x])] for x in "abc"}
            regs = " ".join(
                f".reg .{t if t in ('f32', 'f64') else 'b32'} {', '.join(names[x])};"
                for x, t in (("a", a), ("b", a), ("c", c))
            )
            vector = {x: "{" + ", ".join(names[x]) + "}" for x in "abc"}
            shape = f"m{m}n{n}k{k}"
            types = f"{c}.{c}" if a == "f16" else f"{c}.{a}.{a}.{c}"
            bits = ".and.popc" if a == "b1" else ""
            loads = " ".join(
                f"wmma.load.{x}.sync.aligned.{order}.{shape}.global.{t} {vector[x]}, [%at+{offsets[x]}]"
                + (f", {strides[x]};" if x != "a" else ";")
                for x, order, t in zip("abc", orders, (a, a, c), strict=True)
            )
            text.append(f"""
.visible .entry {name}(.param .u64 buffer) {{
    .reg .u64 %at; {regs} ld.param.u64 %at, [buffer];
    {loads}
    wmma.mma{bits}.sync.aligned.{orders[0]}.{orders[1]}.{shape}.{types}
        {vector["c"]}, {vector["a"]}, {vector["b"]}, {vector["c"]};
    wmma.store.d.sync.aligned.row.{shape}.{c} [%at+{out}], {vector["c"]};
    ret;
}}""")
            inputs[name] = words + [0] * (m * n * SIZES[c] // 32)
            both = (drawn["a"][:, :, None] & drawn["b"][None]).sum(1) if a == "b1" else drawn["a"] @ drawn["b"]
            both = both + drawn["c"]
            wanted[name] = c, out // 4, (both + 2**31) % 2**32 - 2**31 if c == "s32" else both
    found = simulate(tmp_path, "".join(text), inputs)
    for name, (type_, start, total) in wanted.items():
        assert unpack(found[name][start:], type_) == total.flatten().tolist(), name


def test_addresses_of_shared_memory(tmp_path):
    """ldmatrix, stmatrix and wmma add in 32 bits. Without a state space, ldmatrix and stmatrix treat an address below 4
    GiB as shared memory, as LDSM and STSM do.
    """
    text = (
        HEAD
        + """
.visible .entry k(.param .u64 buffer) {
    .reg .u64 %at, %high, %generic; .reg .u32 %lane, %row, %low, %x, %y<12>; .shared .align 128 .b8 tile[512];
    ld.param.u64 %at, [buffer]; mov.u32 %lane, %tid.x; mad.wide.u32 %at, %lane, 32, %at;
    mov.u32 %row, tile; mad.lo.u32 %x, %lane, 4, %row; st.shared.u32 [%x], %lane;
    add.u32 %y1, %lane, 100; st.shared.u32 [%x+128], %y1; st.shared.u32 [%x+256], 0; st.shared.u32 [%x+384], 0;
    bar.warp.sync 0xffffffff;
    and.b32 %x, %lane, 7; mad.lo.u32 %row, %x, 16, %row;
    sub.u32 %low, %row, 1024; cvt.u64.u32 %high, %row; cvta.shared.u64 %generic, %high;
    add.u64 %high, %high, 0x300000000;
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%y1}, [%low+1024];
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%y2}, [%high+128];
    ldmatrix.sync.aligned.m8n8.x1.b16 {%y3}, [%row+128];
    ldmatrix.sync.aligned.m8n8.x1.b16 {%y4}, [%generic];
    stmatrix.sync.aligned.m8n8.x1.shared.b16 [%low+1280], {%y2};
    stmatrix.sync.aligned.m8n8.x1.b16 [%generic+384], {%y1};
    bar.warp.sync 0xffffffff;
    mov.u32 %x, tile; mad.lo.u32 %x, %lane, 4, %x; ld.shared.u32 %y5, [%x+256]; ld.shared.u32 %y6, [%x+384];
    st.global.v4.u32 [%at], {%y1, %y2, %y3, %y4}; st.global.v2.u32 [%at+16], {%y5, %y6};
    mov.u32 %x, tile; sub.u32 %x, %x, 4096;
    wmma.load.c.sync.aligned.row.m8n32k16.shared.s32 {%y1, %y2, %y3, %y4, %y5, %y6, %y7, %y8}, [%x+4096], 0;
    st.global.u32 [%at+24], %y1;
    ret;
}
"""
    )
    words = simulate(tmp_path, text, {"k": [0] * 256})["k"]
    for lane in range(32):
        found = words[8 * lane : 8 * lane + 6]
        assert found == [lane, lane + 100, lane + 100, lane, lane + 100, lane]
        assert words[8 * lane + 6] < 32


@pytest.mark.full
def test_loads_and_stores_of_matrices(tmp_path):
    """ldmatrix and stmatrix move 1, 2 and 4 matrices whose rows are anywhere, plain and transposed, in warps of 32, 16
    and 5 threads: a row without a thread for its address is 0, or isn't stored.
    """
    source, text, inputs, wanted = random.Random(6), [HEAD], {}, {}
    for opcode, count, transposed, threads in product(("ldmatrix", "stmatrix"), (1, 2, 4), (False, True), (32, 16, 5)):
        name, rows = f"k{len(inputs)}", source.sample(range(64), 32)
        vector = "{" + ", ".join(f"%y{i}" for i in range(count)) + "}"
        form = f"{opcode}.sync.aligned.m8n8.x{count}{'.trans' * transposed}.shared.b16"
        text.append(f"""
.visible .entry {name}(.param .u64 buffer) {{
    .reg .u64 %at, %from; .reg .u32 %lane, %row, %tile, %i, %x, %y<4>; .reg .pred %out, %more;
    .shared .align 16 .b8 tile[1024];
    ld.param.u64 %at, [buffer]; mov.u32 %lane, %tid.x; mov.u32 %tile, tile;
    setp.ge.u32 %out, %lane, {threads}; @%out ret;
    mov.u32 %i, %lane;
FILL:
    mad.wide.u32 %from, %i, 4, %at; ld.global.u32 %x, [%from];
    mad.lo.u32 %row, %i, 4, %tile; st.shared.u32 [%row], %x;
    add.u32 %i, %i, {threads}; setp.lt.u32 %more, %i, 256; @%more bra FILL;
    bar.warp.sync 0xffffffff;
    mad.wide.u32 %from, %lane, 20, %at; ld.global.u32 %row, [%from+1040]; add.u32 %row, %row, %tile;
    ld.global.u32 %y0, [%from+1024]; ld.global.u32 %y1, [%from+1028];
    ld.global.u32 %y2, [%from+1032]; ld.global.u32 %y3, [%from+1036];
    {form} {f"{vector}, [%row]" if opcode == "ldmatrix" else f"[%row], {vector}"};
    st.global.u32 [%from+1024], %y0; st.global.u32 [%from+1028], %y1;
    st.global.u32 [%from+1032], %y2; st.global.u32 [%from+1036], %y3;
    bar.warp.sync 0xffffffff;
    mov.u32 %i, %lane;
READ:
    mad.lo.u32 %row, %i, 4, %tile; ld.shared.u32 %x, [%row];
    mad.wide.u32 %from, %i, 4, %at; st.global.u32 [%from], %x;
    add.u32 %i, %i, {threads}; setp.lt.u32 %more, %i, 256; @%more bra READ;
    ret;
}}""")
        words = [source.getrandbits(32) for _ in range(256)]
        lanes = [[source.getrandbits(32) for _ in range(4)] + [16 * row] for row in rows]
        inputs[name] = words + [word for lane in lanes for word in lane]
        tile = np.array(words, np.uint32).view(np.uint16).reshape(64, 8)
        for matrix in range(count):
            named = rows[8 * matrix : 8 * matrix + 8]
            there = [row for lane, row in enumerate(named, 8 * matrix) if lane < threads]
            if opcode == "ldmatrix":
                found = np.array([tile[row] if row in there else [0] * 8 for row in named])
                pairs = (found.T if transposed else found).reshape(32, 2)
                for lane in range(threads):
                    lanes[lane][matrix] = int(pairs[lane, 0]) | int(pairs[lane, 1]) << 16
            else:
                held = np.full((32, 2), -1)
                held[:threads] = [[lane[matrix] & 0xFFFF, lane[matrix] >> 16] for lane in lanes[:threads]]
                square = held.reshape(8, 8).T if transposed else held.reshape(8, 8)
                for place, row in enumerate(named):
                    tile[row] = np.where((square[place] >= 0) & (row in there), square[place], tile[row])
        wanted[name] = form, threads, [*tile.reshape(-1).view(np.uint32).tolist(), *(w for one in lanes for w in one)]
    found = simulate(tmp_path, "".join(text), inputs)
    for name, (form, threads, right) in wanted.items():
        assert found[name] == right, (form, threads)
