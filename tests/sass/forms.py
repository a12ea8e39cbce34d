"""PTX with one kernel for each form of an instruction, and the faces that the kernel's machine code must have.

    for form in FORMS: form.ptx, form.faces
    make_module()          the text of a module; the kernel of FORMS[3] is k3

Values are loaded from memory and stored there, so that ptxas keeps the instruction. `%a` is an address in global
memory, `%s` in shared, `%l` in local memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

HEAD = """
.visible .entry k{number}(.param .u64 p, .param .u64 q, .param .u32 c) {{
.reg .b64 %a, %q, %rd<20>; .reg .b32 %r<40>, %s, %l; .reg .b16 %h<8>;
.reg .f32 %f<40>; .reg .f64 %fd<32>; .reg .pred %p<4>;
.shared .align 128 .b8 shared{number}[1024];
.local .align 16 .b8 local{number}[256];
ld.param.u64 %a, [p]; ld.param.u64 %q, [q]; ld.param.u32 %r0, [c];
cvta.to.global.u64 %a, %a;
mov.u32 %s, shared{number}; add.u32 %s, %s, %r0; mov.u32 %l, local{number}; add.u32 %l, %l, %r0;
{loads}
{body}
ret; }}
"""
REGISTERS = {
    **dict.fromkeys(("u8", "s8", "b32", "u32", "s32", "noftz.f16x2", "noftz.bf16x2"), "%r"),
    **dict.fromkeys(("u16", "s16"), "%h"),
    **dict.fromkeys(("b64", "u64", "s64"), "%rd"),
    "f32": "%f",
    "f64": "%fd",
}
STORED = {"noftz.f16x2": "b32", "noftz.bf16x2": "b32", "s8": "u8", "s16": "u16"}
SPACES = {".global": "%a", ".shared": "%s", ".local": "%l", "": "%a"}
OPERATIONS = {
    "add": ("u32", "u64", "f32", "f64", "noftz.f16x2", "noftz.bf16x2"),
    **dict.fromkeys(("min", "max"), ("u32", "s32", "u64", "s64")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("and", "or", "xor", "exch", "cas"), ("b32", "b64")),
}
MMA = (  # shape, types of D, A, B and C, registers of A, B and C
    ("m16n8k16", "f32.f16.f16.f32", 4, 2, 4),
    ("m16n8k16", "f16.f16.f16.f16", 4, 2, 2),
    ("m16n8k8", "f32.f16.f16.f32", 2, 1, 4),
    ("m16n8k8", "f16.f16.f16.f16", 2, 1, 2),
    ("m16n8k16", "f32.bf16.bf16.f32", 4, 2, 4),
    ("m16n8k8", "f32.bf16.bf16.f32", 2, 1, 4),
    ("m16n8k4", "f32.tf32.tf32.f32", 2, 1, 4),
    ("m16n8k8", "f32.tf32.tf32.f32", 4, 2, 4),
    *((shape, f"s32.{a}.{b}.s32", *sizes) for a in ("s8", "u8") for b in ("s8", "u8") for shape, *sizes in (
        ("m16n8k16", 2, 1, 4), ("m16n8k32", 4, 2, 4), ("m8n8k16", 1, 1, 2))),
    ("m8n8k4", "f64.f64.f64.f64", 1, 1, 2),
    ("m16n8k4", "f64.f64.f64.f64", 2, 1, 4),
    ("m16n8k8", "f64.f64.f64.f64", 4, 2, 4),
    ("m16n8k16", "f64.f64.f64.f64", 8, 4, 4),
)  # fmt: skip


GROUP_MMA = (  # types and depth
    *((f"{accumulator}.f16.f16", 16) for accumulator in ("f32", "f16")),
    ("f32.bf16.bf16", 16),
    ("f32.tf32.tf32", 8),
    *((f"{accumulator}.{a}.{b}", 32) for accumulator in ("f32", "f16") for a in ("e4m3", "e5m2")
      for b in ("e4m3", "e5m2")),
    *((f"{saturates}s32.{a}.{b}", 32) for saturates in ("", "satfinite.") for a in ("s8", "u8") for b in ("s8", "u8")),
)  # fmt: skip


BULK_REDUCTIONS = (
    *("add.u32", "add.s32", "min.u64", "max.s64", "inc.u32", "dec.u32", "and.b32", "or.b64", "xor.b32"),
    *("add.noftz.f16", "min.bf16", "add.f32", "add.f64"),
)


class Form(NamedTuple):
    """An instruction, the faces that its kernel must have, and the kernel's statements."""

    ptx: str
    faces: tuple[str, ...]
    body: str


def _store(type_: str) -> str:
    return f"st.global.{STORED.get(type_, type_)} [%q+64], {REGISTERS[type_]}3;"


def _accesses() -> Iterator[Form]:
    for space, address in SPACES.items():
        load = f"ld{'' if space == '.local' else '.volatile'}{space}"
        fill = "st.local.v4.b32 [%l], {%r1,%r2,%r1,%r2};" if space == ".local" else ""
        use = "ld.local.b32 %r3, [%l+12]; st.global.b32 [%q+64], %r3;" if space == ".local" else ""
        for type_ in ("u8", "s8", "u16", "s16", "b32", "b64"):
            register = REGISTERS[type_]
            keep = f"cvt.{type_[0]}32.{type_} %r3, %h3; {_store('b32')}" if "16" in type_ else _store(type_)
            keep = _store("b32") if "8" in type_ else keep
            face = f"ld{space}.{type_}"
            if (space, type_) not in ((".local", "b32"), (".local", "b64")):  # ptxas forwards the stored value instead
                yield Form(face, (face,), f"{fill} {load}.{type_} {register}3, [{address}+8]; {keep}")
            if type_[0] != "s":
                face = f"st{space}.{type_}"
                yield Form(face, (face,), f"{face} [{address}+8], {register}1; {use}")
        face = f"ld{space}.v4.b32"
        keep = "".join(f"st.volatile.global.b32 [%q+{64 + 4 * i}], %r{3 + i};" for i in range(4))
        if space != ".local":
            yield Form(face, (face,), f"{load}.v4.b32 {{%r3,%r4,%r5,%r6}}, [{address}]; {keep}")
        face = f"st{space}.v4.b32"
        yield Form(face, (face,), f"{face} [{address}], {{%r1,%r2,%r1,%r2}}; {use}")


def _atomics() -> Iterator[Form]:
    for space in (".global", ".shared", ""):
        for operation, types in OPERATIONS.items():
            for type_ in types:
                register, address = REGISTERS[type_], SPACES[space]
                has_loop = (
                    space == ".shared" and operation not in ("exch", "cas") and type_ not in ("u32", "s32", "b32")
                )
                swapped = "atom.shared.cas." + ("b64" if "64" in type_ else "b32")
                face = f"red{space}.{operation}.{type_}"
                if operation not in ("exch", "cas"):
                    yield Form(face, (swapped if has_loop else face,), f"{face} [{address}], {register}1;")
                face = f"atom{space}.{operation}.{type_}"
                values = f"{register}1, {register}2" if operation == "cas" else f"{register}1"
                faces = (swapped if has_loop else face,)
                yield Form(face, faces, f"{face} {register}3, [{address}], {values}; {_store(type_)}")
    face = "red.shared.add.u32"  # ATOMS.POPC.INC
    yield Form(f"{face} 1", (face,), f"{face} [%s], 1;")


def _others() -> Iterator[Form]:
    for cache, size in (("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)):
        face = f"cp.async.{cache}.shared.global"
        wait = "cp.async.commit_group; cp.async.wait_group 0; bar.sync 0; ld.shared.b32 %r3, [%s];"
        yield Form(face, (face, "bar.sync"), f"{face} [%s], [%a], {size}; {wait} {_store('b32')}")
    for ptx in ("bar.sync 0", "bar.sync 1, 64", "bar.sync %r1, 64", "bar.sync %r1, %r2", "bar.arrive 1, 64"):
        yield Form(ptx, (ptx.split()[0],), f"{ptx}; st.global.b32 [%q+64], %r1;")
    test = "setp.eq.u32 %p1, %r1, 0;"
    yield Form("bar.red", ("bar.red.popc.u32",), f"{test} bar.red.popc.u32 %r3, 0, %p1; {_store('b32')}")
    for operation in ("and", "or"):
        face = f"bar.red.{operation}.pred"
        yield Form(face, (face,), f"{test} {face} %p2, 0, %p1; selp.b32 %r3, 1, 0, %p2; {_store('b32')}")
    cluster = ("barrier.cluster.arrive", "barrier.cluster.wait")
    yield Form("barrier.cluster", cluster, f"{'; '.join(cluster)}; st.global.b32 [%q+64], %r1;")
    for number in (1, 2, 4):
        regs = "{" + ",".join(f"%r{3 + i}" for i in range(number)) + "}"
        for turned in ("", ".trans"):
            face = f"ldmatrix.sync.aligned.m8n8.x{number}{turned}.shared.b16"
            keep = "".join(f"st.global.b32 [%q+{64 + 4 * i}], %r{3 + i};" for i in range(number))
            yield Form(face, (face,), f"{face} {regs}, [%s]; {keep}")
            face = face.replace("ld", "st", 1)
            values = "{" + ",".join(f"%r{1 + i % 2}" for i in range(number)) + "}"
            yield Form(face, (face,), f"{face} [%s], {values};")
    yield Form("exit", ("exit",), f"{test} @%p1 exit; st.global.b32 [%q+64], %r1;")
    loop = "L: add.u32 %r1, %r1, 1; ld.volatile.global.u32 %r3, [%a]; setp.lt.u32 %p1, %r1, %r3; @%p1 bra L;"
    yield Form("bra", ("bra", "exit"), f"{loop} st.global.b32 [%q+64], %r1;")


def _mma() -> Iterator[Form]:
    for shape, types, *sizes in MMA:
        type_ = types.partition(".")[0]
        accumulator, wide = {"f32": ("%f", "f32"), "f64": ("%fd", "f64")}.get(type_, ("%r", "b32"))
        register, size, narrow = ("%fd", 8, "f64") if type_ == "f64" else ("%r", 4, "b32")
        a, b, c = ([f"{name}{first + i}" for i in range(n)] for name, first, n in zip(
            (register, register, accumulator), (4, 4 + sizes[0], 20), sizes, strict=True))  # fmt: skip
        load = "".join(f"ld.global.{narrow} {name}, [%q+{80 + size * i}];" for i, name in enumerate([*a, *b]))
        load += "".join(f"ld.global.{wide} {name}, [%q+{256 + 8 * i}];" for i, name in enumerate(c))
        keep = "".join(f"st.global.{wide} [%q+{256 + 8 * i}], {name};" for i, name in enumerate(c))
        face = f"mma.sync.aligned.{shape}.row.col.{types}"
        operands = ", ".join("{" + ",".join(names) + "}" for names in (c, a, b, c))
        yield Form(face, (face,), f"{load} {face} {operands}; {keep}")


def _group_mma() -> Iterator[Form]:
    for number, (types, depth) in enumerate(GROUP_MMA):
        yield from _group_forms(types, depth, ((8, 24, 64, 128)[number % 4],), (False, True))


def iter_group_shapes() -> Iterator[Form]:
    """Yield wgmma with every type and every number of columns."""
    for types, depth in GROUP_MMA:
        integers = (8, 16, 24, *range(32, 257, 16))
        yield from _group_forms(types, depth, integers if "s32" in types else range(8, 257, 8), (False,))


def _group_forms(types: str, depth: int, all_columns: Iterable[int], kinds: Iterable[bool]) -> Iterator[Form]:
    integers, halves = "s32" in types, types.startswith("f16")
    for columns in all_columns:
        for takes_registers in kinds:
            count = columns // (4 if halves else 2)
            results = [f"{'%f' if types.startswith('f32') else '%x'}{60 + i}" for i in range(count)]
            kind = "f32" if types.startswith("f32") else "b32"
            a = "{%r1,%r2,%r1,%r2}" if takes_registers else "%rd1"
            more = "" if integers else ", 1, 1" + (", 0" if takes_registers else ", 0, 1") * (depth == 16)
            name, _, rest = types.rpartition("s32.") if integers else ("", "", types)
            operation, type_ = ("s32." + rest, name) if integers else (rest, "")
            face = f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{type_}{operation}"
            ptx = f"wgmma.mma_async.sync.aligned.m64n{columns}k{depth}.{operation}{'.satfinite' * bool(type_)}"
            load = "".join(f"ld.volatile.global.{kind} {one}, [%q+{256 + 4 * i}];" for i, one in enumerate(results))
            keep = "".join(f"st.volatile.global.{kind} [%q+{256 + 4 * i}], {one};" for i, one in enumerate(results))
            body = (
                f".reg .{kind} {results[0][:2]}<{60 + count}>; setp.eq.u32 %p1, %r1, 0; {load}"
                f" wgmma.fence.sync.aligned; {ptx} {{{','.join(results)}}}, {a}, %rd2, %p1{more};"
                f" wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; {keep}"
            )
            yield Form(f"{ptx}{' registers' if takes_registers else ''}", (face,), "{" + body + "}")


def _bulk() -> Iterator[Form]:
    """Yield bulk copies. `%s` is an address in shared memory, `%r1` a barrier."""
    hint = ".L2::cache_hint"
    into = "cp.async.bulk.shared::cluster.{}.mbarrier::complete_tx::bytes"
    back = "global.shared::cta.bulk_group"
    for face, operands in (
        (into.format("global"), "[%s], [%a], %r2, [%r1]"),
        (into.format("global") + hint, "[%s], [%a], %r2, [%r1], %rd1"),
        (into.format("global") + ".multicast::cluster" + hint, "[%s], [%a], %r2, [%r1], %h1, %rd1"),
        (into.format("shared::cta"), "[%r2], [%s], 64, [%r1]"),
        (f"cp.async.bulk.{back}", "[%a], [%s], %r2"),
        (f"cp.async.bulk.{back}{hint}", "[%a], [%s], 32, %rd1"),
        (f"cp.async.bulk.prefetch.L2.global{hint}", "[%a], %r2, %rd1"),
        (
            into.format("shared::cta").replace("cp.", "cp.reduce.") + ".max.s32",
            "[%r2], [%s], 64, [%r1]",
        ),
        *((f"cp.reduce.async.bulk.{back}.{operation}", "[%a], [%s], %r2") for operation in BULK_REDUCTIONS),
    ):
        yield Form(face, (face,), f"{face} {operands};")
    for number in range(1, 6):
        place = "{" + ",".join(["%r1", "%r2"][i % 2] for i in range(number)) + "}"
        tensor, ends = f"bulk.tensor.{number}d", ".mbarrier::complete_tx::bytes"
        modes = [("tile", "tile", "")] + [("im2col", "im2col_no_offs", f", {{{','.join(['%h1'] * (number - 2))}}}")] * (
            number > 2
        )
        for load, store, shift in modes:
            for face, operands in (
                (f"cp.async.{tensor}.shared::cluster.global.{load}{ends}", f"[%s], [%rd1, {place}], [%r1]{shift}"),
                (f"cp.async.{tensor}.global.shared::cta.{store}.bulk_group{hint}", f"[%rd1, {place}], [%s], %rd2"),
                (f"cp.reduce.async.{tensor}.global.shared::cta.min.{store}.bulk_group", f"[%rd1, {place}], [%s]"),
                (f"cp.async.bulk.prefetch.tensor.{number}d.L2.global.{load}", f"[%rd1, {place}]{shift}"),
            ):
                yield Form(face, (face,), f"{face} {operands};")


def _barriers() -> Iterator[Form]:
    """Yield operations on mbarriers in shared memory. `old` is the state that an arrive operation returns."""
    cluster = "relaxed.cluster.shared::cluster.b64"
    for face, operands, written in (
        ("mbarrier.arrive.expect_tx.shared.b64", "%rd3, [%s], %r1", ""),
        ("mbarrier.arrive.expect_tx.shared::cluster.b64", "_, [%s], %r1", ""),
        ("mbarrier.arrive_drop.expect_tx.shared.b64", "%rd3, [%s], 4096", ""),
        (f"mbarrier.expect_tx.{cluster}", "[%s], %r1", "relaxed.cta.shared.b64"),
        (f"mbarrier.complete_tx.{cluster}", "[%s], %r1", ""),
        ("mbarrier.arrive.shared.b64", "%rd3, [%s]", ""),
        ("mbarrier.arrive.noComplete.shared.b64", "%rd3, [%s], %r1", ""),
        ("mbarrier.arrive_drop.shared::cluster.b64", "_, [%s], %r1", ""),
    ):
        ptx = face.replace(cluster, written) if written else face
        keep = "st.global.b64 [%q+64], %rd3;" if "%rd3" in operands else ""
        yield Form(ptx, (face,), f"{ptx} {operands}; {keep}")


FORMS = (*_accesses(), *_atomics(), *_others(), *_mma(), *_group_mma(), *_bulk(), *_barriers())


def make_module(forms: Sequence[Form] = FORMS) -> str:
    """Return the text of a module with a kernel for each form."""
    offsets = {"%r1": 0, "%r2": 4, "%rd1": 8, "%rd2": 16, "%f1": 24, "%f2": 28, "%fd1": 32, "%fd2": 40, "%h1": 48}
    types = {"%r": "b32", "%rd": "b64", "%f": "f32", "%fd": "f64", "%h": "b16"}
    loads = "".join(f"ld.global.{types[name[:-1]]} {name}, [%q+{at}];" for name, at in offsets.items())
    head = ".version 8.8\n.target sm_90a\n.address_size 64\n"
    return head + "".join(HEAD.format(number=number, loads=loads, body=form.body) for number, form in enumerate(forms))
