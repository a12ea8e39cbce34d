"""Modules in which kernels use the rest of the module in every way, mixed at random.

A feature is text for the module, and text for the kernels that use it. Each module has some features and some kernels,
and each kernel uses some of the features; the features that it doesn't use belong only to other kernels.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

HEAD = """.version 9.0
.target sm_90
.address_size 64
.file 1 "a.cu"
.file 2 "dir/b.h", 1700000000, 42
"""
REGISTERS = """
    .reg .pred %p<4>; .reg .b16 %h<4>; .reg .b32 %r<12>; .reg .b64 %d<12>; .reg .f32 %f<4>;
    ld.param.u64 %d1, [{param}]; ld.global.u32 %r1, [%d1];"""


@dataclass(frozen=True)
class Feature:
    """`declared` precedes the kernels that use it, `body` is in these kernels, and `after` at the end of the module."""

    declared: str = ""
    body: str = ""
    after: str = ""
    head: str = ""  # after the parameters of a kernel


CALL = "{ .param .b32 a; .param .b32 z; st.param.b32 [a], %r1; call (z), NAME, (a); ld.param.b32 %r1, [z]; }"
LEAF = (
    "(.param .b32 z) NAME(.param .b32 a) { .reg .b32 %r<3>; .reg .b64 %d; ld.param.b32 %r1, [a]; "
    "mov.u64 %d, leaf_data; ld.global.u32 %r2, [%d]; add.u32 %r1, %r1, %r2; st.global.u32 [%d], %r1; "
    "st.param.b32 [z], %r1; LOC ret; }\n"
)
DATA = ".global .align 4 .u32 leaf_data = 7;\n"


def leaf(name: str, before: str = ".visible .func ", loc: str = "") -> str:
    """Return a function that loads and stores."""
    return before + LEAF.replace("NAME", name).replace("leaf_data", f"data_{name}").replace("LOC", loc)


def call(name: str) -> str:
    """Return a call to it."""
    return CALL.replace("NAME", name)


def data(name: str) -> str:
    """Return the kernel's loads and stores."""
    return DATA.replace("leaf_data", f"data_{name}")


FEATURES = {
    "position": Feature(body="\n.loc 1 5 9\nadd.u32 %r1, %r1, 1;\n.loc 0x1 05 0xa\n"),
    "inlined": Feature(
        body="\n.loc 2 7 1, function_name $L__name0, inlined_at 1 5 9\nadd.u32 %r1, %r1, 2;"
        "\n.loc 2 8 1 , /* , */ function_name $L__name0+2,\n inlined_at 2 7 1 add.u32 %r1, %r1, 3;\n",
        after=".section .debug_str\n{\n$L__name0:\n.b8 102,111,111,0\n}\n",
    ),
    "inlined in a function": Feature(
        data("deep") + leaf("deep", loc="\n.loc 2 9 3, function_name .debug_str+4, inlined_at 1 5 10\n"), call("deep")
    ),
    "function": Feature(data("plain") + leaf("plain"), call("plain")),
    "opcode": Feature(data("min") + leaf("min", ".func "), call("min") + " min.u32 %r1, %r1, 5;"),
    "prototype": Feature(
        ".func (.param .b32 z) late(.param .b32 a);\n", call("late"), after=data("late") + leaf("late", ".func ")
    ),
    "weak": Feature(data("weak") + leaf("weak", ".weak .func "), call("weak")),
    "alias": Feature(
        data("first") + leaf("first") + ".visible .func (.param .b32 z) second(.param .b32 a);\n",
        call("second"),
        after=".alias second, first;\n",
    ),
    "alias and its function": Feature(
        ".visible .func (.param .b32 z) twin(.param .b32 a);\n"
        + data("same")
        + leaf("same")
        + ".alias twin , same ;\n",
        call("twin") + call("same"),
    ),
    "recursion": Feature(
        """.func (.param .b32 z) odd(.param .b32 a);
.func (.param .b32 z) even(.param .b32 a)
{ .reg .pred p; .reg .b32 r; ld.param.b32 r, [a]; setp.eq.u32 p, r, 0; st.param.b32 [z], 1; @p ret; sub.u32 r, r, 1;
{ .param .b32 b; .param .b32 y; st.param.b32 [b], r; call (y), odd, (b); ld.param.b32 r, [y]; }
st.param.b32 [z], r; ret; }
.func (.param .b32 z) odd(.param .b32 a)
{ .reg .pred p; .reg .b32 r; ld.param.b32 r, [a]; setp.eq.u32 p, r, 0; st.param.b32 [z], 0; @p ret; sub.u32 r, r, 1;
{ .param .b32 b; .param .b32 y; st.param.b32 [b], r; call (y), even, (b); ld.param.b32 r, [y]; }
st.param.b32 [z], r; ret; }
""",
        call("even"),
    ),
    "vector registers": Feature(
        ".func (.reg .v2 .u32 z) swap(.reg .v2 .u32 a) { mov.u32 z.x, a.y; mov.u32 z.y, a.x; ret; }\n",
        "{ .reg .v2 .u32 v; mov.u32 v.x, %r1; mov.u32 v.y, 1; call (v), swap, (v); mov.u32 %r1, v.y; }",
    ),
    "pointers": Feature(
        data("one")
        + leaf("one", ".func ")
        + data("two")
        + leaf("two", ".func ")
        + ".global .align 8 .u64 table[3] = {one, 0, two};\n",
        "{ .param .b32 a; .param .b32 z; ld.global.u64 %d2, [table+16]; st.param.b32 [a], %r1; "
        "P:.callprototype (.param .b32 _) _ (.param .b32 _); call (z), %d2, (a), P; ld.param.b32 %r1, [z]; }",
    ),
    "targets": Feature(
        data("four") + leaf("four", ".func "),
        "{ .param .b32 a; .param .b32 z; mov.u64 %d2, four; st.param.b32 [a], %r1; "
        "T:.calltargets four; call (z), %d2, (a), T; ld.param.b32 %r1, [z]; }",
    ),
    "branches": Feature(
        body="\nB: .branchtargets L1, L2;\nand.b32 %r2, %r1, 1; brx.idx %r2, B;\nL1:\nadd.u32 %r1, %r1, 1;\nL2:\n"
    ),
    "addresses": Feature(
        ".extern .global .align 8 .u64 forward;\n.global .align 4 .u32 words[4] = {1, 2, 3, 4};\n"
        ".global .align 8 .u64 chain[2] = {generic(words)+4, words};\n.visible .global .align 8 .u64 forward = chain;\n"
        ".global .align 1 .u8 bytes[8] = {0xff(words), 0xff00(words), 0xff0000(words), 4};\n",
        "ld.global.u64 %d2, [forward]; ld.global.u64 %d3, [%d2]; ld.u32 %r2, [%d3]; add.u32 %r1, %r1, %r2; "
        "ld.global.u8 %r3, [bytes+1]; add.u32 %r1, %r1, %r3;",
    ),
    "constants": Feature(
        ".const .align 4 .f32 scale = 0f3F800000;\n.const .align 4 .b32 lut[2][2] = {{1, 2}, {3, 4}};\n",
        "ld.const.f32 %f1, [scale]; ld.const.b32 %r2, [lut+4]; add.u32 %r1, %r1, %r2;",
    ),
    "linkage": Feature(
        ".common .global .align 4 .b32 common_one[4];\n.weak .global .align 4 .b32 weak_one = 3;\n"
        ".global .attribute(.managed) .align 4 .b32 managed_one = 5;\n",
        "ld.global.b32 %r2, [common_one+4]; ld.global.b32 %r3, [weak_one]; ld.global.b32 %r4, [managed_one]; "
        "add.u32 %r1, %r2, %r3; add.u32 %r1, %r1, %r4;",
    ),
    "shared": Feature(
        ".extern .shared .align 16 .b8 dynamic[];\n.shared .align 4 .b32 fixed[8], other[2];\n",
        "mov.u32 %r2, dynamic; st.shared.u32 [%r2], %r1; st.shared.u32 [fixed+4], %r1; ld.shared.u32 %r1, [other];",
    ),
    "several in a line": Feature(
        ".global .u32 alpha, beta = 4, gamma[2] = {5, 6};\n", "ld.global.u32 %r2, [beta]; add.u32 %r1, %r1, %r2;"
    ),
    "own variables": Feature(
        body="{ .shared .align 8 .b8 tile[16]; .local .b32 frame[2]; st.shared.u32 [tile+4], %r1; "
        "st.local.u32 [frame], %r1; ld.local.u32 %r1, [frame]; }"
    ),
    "labels in debug sections": Feature(
        ".global .u32 told;\n",
        "\nlabel_a: ld.global.u32 %r2, [told];\nlabel_b: add.u32 %r1, %r1, %r2;",
        after=".section .debug_info\n{\n.b32 label_b-label_a\n.b64 label_a\n.b64 told+4\n.b64 told\n}\n",
    ),
    "bounds": Feature(head=".maxntid 128, 1, 1 .minnctapersm 2"),
    "bounds in lines": Feature(head="\n.reqntid 32\n// .entry fake() {\n"),
    "pragmas": Feature(
        body='\nloop: .pragma "nounroll";\nadd.u32 %r2, %r1, 1; setp.gt.u32 %p1, %r2, 4000000000; @%p1 bra loop;\n'
    ),
    "comments": Feature(
        '/* .func unbalanced() { */ // "\n',
        "/* } */ // call plain;\nadd.u32 /* , */ %r1 , %r1\n,\n1 // ;\n;",
    ),
    "shadows": Feature(
        data("shadow") + leaf("shadow", ".func "),
        "{ .reg .b32 shadow; mov.b32 shadow, %r1; add.u32 %r1, shadow, 1; } " + call("shadow"),
    ),
    "labels": Feature(
        data("same_label") + leaf("same_label", ".func ").replace(" ret;", " bra done; done: ret;"), call("same_label")
    ),
    "varying": Feature(
        ".func (.param .b32 z) sum(.param .b32 n, .param .align 8 .b8 va[])\n"
        "{ .reg .b32 %r; .reg .b64 %d; mov.u64 %d, va; ld.local.u32 %r, [%d]; st.param.b32 [z], %r; ret; }\n",
        "{ .param .b32 n; .param .align 8 .b8 va[8]; .param .b32 z; st.param.b32 [n], 1; st.param.b64 [va], %d1; "
        "call (z), sum, (n, va); ld.param.b32 %r1, [z]; }",
    ),
    "printf": Feature(
        ".extern .func (.param .b32 z) vprintf(.param .b64 a, .param .b64 b);\n"
        ".global .align 1 .b8 $str[4] = {37, 100, 10, 0};\n",
        "{ .param .b64 a; .param .b64 b; .param .b32 z; mov.u64 %d2, $str; cvta.global.u64 %d2, %d2; "
        "st.param.b64 [a], %d2; st.param.b64 [b], 0; call.uni (z), vprintf, (a, b); }",
    ),
    "debug sections": Feature(
        after=""".section .debug_abbrev
{
.b8 1,17,0,0,0
}
.section .debug_info
{
.b32 11
.b8 2,0
.b32 .debug_abbrev
.b8 8,1
.b64 KERNELS
.b32 .debug_str+4
}
"""
    ),
}


def random_uses(chance: random.Random) -> dict[str, list[str]]:
    """Return kernels, with the features that each uses."""
    names = chance.sample(sorted(FEATURES), chance.randrange(4, 14))
    return {f"kernel{number}": chance.sample(names, chance.randrange(1, len(names))) for number in range(1, 4)}


def module(uses: dict[str, list[str]], chance: random.Random) -> str:
    """Return a module with these kernels, preceded by a module with the source positions of code inlined from the
    others.
    """
    uses = {"kernel0": ["position"]} | uses
    names = list(dict.fromkeys(name for used in uses.values() for name in used))
    order = [*names[1:], *list(uses)[1:]]
    chance.shuffle(order)
    text, done, waiting = HEAD, set[str](), ["position", "kernel0", *order]
    while waiting:
        one = next(one for one in waiting if one in FEATURES or done.issuperset(uses[one]))
        waiting.remove(one)
        done.add(one)
        text += FEATURES[one].declared if one in FEATURES else _kernel(one, uses[one])
    for name in dict.fromkeys([*names, "inlined"]):  # other lines refer to these functions
        text += FEATURES[name].after.replace("KERNELS", "\n.b64 ".join(chance.sample(list(uses), len(uses))))
    return text


def _kernel(name: str, uses: list[str]) -> str:
    head = next((FEATURES[one].head for one in uses if FEATURES[one].head), "")
    lines = [REGISTERS.format(param=f"{name}_out"), *(FEATURES[one].body for one in uses)]
    body = "\n    ".join([*lines, "st.global.u32 [%d1], %r1;", "ret;"])
    return f".visible .entry {name}(.param .u64 {name}_out) {head}\n{{{body}\n}}\n"
