"""The instructions that a probe may use: their modifiers in order, their number of operands, and the PTX version and
target that they need. The sources are the PTX ISA and ptxas.

A line of the table has the PTX version and the target that introduced a form, then its operands, and the form itself:
the opcodes, followed by the modifiers allowed at each place, in brackets if they're optional. A test checks every form
with ptxas.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from gpt.probe.model import Save, Snippet, names_of
from gpt.ptx import tree

_SETS = {
    "INT": ".u16|.u32|.u64|.s16|.s32|.s64",
    "WIDE": ".u16|.u32|.s16|.s32",
    "BITS": ".b16|.b32|.b64",
    "RND": ".rn|.rz|.rm|.rp",
    "ROUND": ".rni|.rzi|.rmi|.rpi",
    "HALF": ".f16|.f16x2",
    "BRAIN": ".bf16|.bf16x2",
    "BOOL": ".and|.or|.xor",
    "SAME": ".eq|.ne",
    "SIGNED": ".eq|.ne|.lt|.le|.gt|.ge",
    "UNSIGNED": ".eq|.ne|.lt|.le|.gt|.ge|.lo|.ls|.hi|.hs",
    "FLOAT": ".eq|.ne|.lt|.le|.gt|.ge|.equ|.neu|.ltu|.leu|.gtu|.geu|.num|.nan",
    "INT8": ".u8|.u16|.u32|.u64|.s8|.s16|.s32|.s64",
    "WORD": ".u32|.s32",
}
_TABLE = """
0   0   3   add|sub INT
0   0   3   add|sub .sat .s32
0   0   3   add|sub|mul [RND] [.ftz] [.sat] .f32
0   0   3   add|sub|mul [RND] .f64
4.2 53  3   add|sub|mul [.rn] [.ftz] [.sat] HALF
7.8 90  3   add|sub|mul [.rn] BRAIN
8.0 90  3   add .u16x2|.s16x2
0   0   3   mul .lo|.hi INT
0   0   3   mul .wide WIDE
0   0   3   mul24 .lo|.hi WORD
0   0   4   mad .lo|.hi INT
0   0   4   mad .wide WIDE
0   0   4   mad|mad24 .hi .sat .s32
0   0   4   mad24 .lo|.hi WORD
0   0   4   mad|fma RND [.ftz] [.sat] .f32
0   0   4   mad|fma RND .f64
4.2 53  4   fma .rn [.ftz] [.sat] HALF
7.0 80  4   fma .rn [.ftz] .relu HALF
7.0 80  4   fma .rn [.relu] BRAIN
0   0   4   sad INT
0   0   3   div|rem INT
0   0   3   div .approx|.full|RND [.ftz] .f32
0   0   3   div RND .f64
0   0   2   abs|neg .s16|.s32|.s64|.f64
0   0   2   abs|neg [.ftz] .f32
6.0 53  2   neg [.ftz] HALF
6.5 53  2   abs [.ftz] HALF
7.0 80  2   abs|neg BRAIN
0   0   3   min|max INT
0   0   3   min|max [.ftz] .f32
0   0   3   min|max .f64
7.0 80  3   min|max [.ftz] .NaN .f32
7.2 86  3   min|max [.ftz] [.NaN] .xorsign.abs .f32
8.8 100 4   min|max [.ftz] [.NaN] [.abs] .f32
7.0 80  3   min|max [.ftz] [.NaN] HALF
7.0 80  3   min|max [.NaN] BRAIN
7.2 86  3   min|max [.ftz] [.NaN] .xorsign.abs HALF
7.2 86  3   min|max [.NaN] .xorsign.abs BRAIN
8.0 90  3   min|max .u16x2|.s16x2
8.0 90  3   min|max .relu .s16x2|.s32
0   0   2   rcp|sqrt .approx|RND [.ftz] .f32
0   0   2   rcp|sqrt RND .f64
0   0   2   rcp .approx .ftz .f64
0   0   2   rsqrt|sin|cos|lg2|ex2 .approx [.ftz] .f32
0   0   2   rsqrt .approx [.ftz] .f64
7.0 75  2   ex2 .approx HALF
7.8 90  2   ex2 .approx .ftz BRAIN
7.0 75  2   tanh .approx .f32|.f16|.f16x2
7.8 90  2   tanh .approx BRAIN
0   0   2   popc|clz|brev .b32|.b64
0   0   2   bfind [.shiftamt] .u32|.u64|.s32|.s64
0   0   2   not|mov .pred
0   0   2   not|cnot|mov BITS
0   0   2   mov INT
0   0   2   mov .f32|.f64
0   0   2   testp .finite|.infinite|.number|.notanumber|.normal|.subnormal .f32|.f64
0   0   2   isspacep .global|.shared|.local|.const
7.7 70  2   isspacep .param
7.8 30  2   isspacep .shared::cta
7.8 90  2   isspacep .shared::cluster
0   0   3   and|or|xor .pred|.b16|.b32|.b64
0   0   3   shl BITS
0   0   3   shr BITS
0   0   3   shr INT
0   0   3   copysign .f32|.f64
7.6 70  3   bmsk .clamp|.wrap .b32
7.6 70  3   szext .clamp|.wrap WORD
0   0   3   setp SAME BITS
0   0   4   setp SAME BOOL BITS
0   0   3   setp SIGNED .s16|.s32|.s64
0   0   4   setp SIGNED BOOL .s16|.s32|.s64
0   0   3   setp UNSIGNED .u16|.u32|.u64
0   0   4   setp UNSIGNED BOOL .u16|.u32|.u64
0   0   3   setp FLOAT [.ftz] .f32
0   0   4   setp FLOAT BOOL [.ftz] .f32
0   0   3   setp FLOAT .f64
0   0   4   setp FLOAT BOOL .f64
4.2 53  3   setp FLOAT [.ftz] .f16
4.2 53  4   setp FLOAT BOOL [.ftz] .f16
7.8 90  3   setp FLOAT .bf16
7.8 90  4   setp FLOAT BOOL .bf16
0   0   3   set SAME .u32|.s32|.f32 BITS
0   0   4   set SAME BOOL .u32|.s32|.f32 BITS
0   0   3   set SIGNED .u32|.s32|.f32 .s16|.s32|.s64
0   0   4   set SIGNED BOOL .u32|.s32|.f32 .s16|.s32|.s64
0   0   3   set UNSIGNED .u32|.s32|.f32 .u16|.u32|.u64
0   0   4   set UNSIGNED BOOL .u32|.s32|.f32 .u16|.u32|.u64
0   0   3   set FLOAT [.ftz] .u32|.s32|.f32 .f32
0   0   4   set FLOAT BOOL [.ftz] .u32|.s32|.f32 .f32
0   0   3   set FLOAT .u32|.s32|.f32 .f64
0   0   4   set FLOAT BOOL .u32|.s32|.f32 .f64
4.2 53  3   set FLOAT [.ftz] .f16 .f16
4.2 53  4   set FLOAT BOOL [.ftz] .f16 .f16
6.5 53  3   set FLOAT [.ftz] .u16|.u32|.s16|.s32 .f16
6.5 53  4   set FLOAT BOOL [.ftz] .u16|.u32|.s16|.s32 .f16
7.8 90  3   set FLOAT .u16|.u32|.s16|.s32|.bf16 .bf16
7.8 90  4   set FLOAT BOOL .u16|.u32|.s16|.s32|.bf16 .bf16
0   0   4   selp BITS
0   0   4   selp INT
0   0   4   selp .f32|.f64
0   0   4   slct BITS .s32
0   0   4   slct INT .s32
0   0   4   slct .f32|.f64 .s32
0   0   4   slct [.ftz] BITS .f32
0   0   4   slct [.ftz] INT .f32
0   0   4   slct [.ftz] .f32|.f64 .f32
6.0 30  4   fns .b32
0   0   4   bfe .u32|.u64|.s32|.s64
0   0   5   bfi .b32|.b64
5.0 61  4   dp4a WORD WORD
5.0 61  4   dp2a .lo|.hi WORD WORD
3.2 32  4   shf .l|.r .clamp|.wrap .b32
0   0   4   prmt .b32 [.f4e|.b4e|.rc8|.ecl|.ecr|.rc16]
4.3 50  5   lop3 .b32
6.2 30  1   activemask .b32
0   0   1   bra
0   0   2   cvt INT8 INT8
0   0   2   cvt .sat .u8 .u16|.u32|.u64|.s8|.s16|.s32|.s64
0   0   2   cvt .sat .u16 .u32|.u64|.s8|.s16|.s32|.s64
0   0   2   cvt .sat .u32 .u64|.s8|.s16|.s32|.s64
0   0   2   cvt .sat .u64 .s8|.s16|.s32|.s64
0   0   2   cvt .sat .s8 .u8|.u16|.u32|.u64|.s16|.s32|.s64
0   0   2   cvt .sat .s16 .u16|.u32|.u64|.s32|.s64
0   0   2   cvt .sat .s32 .u32|.u64|.s64
0   0   2   cvt .sat .s64 .u64
0   0   2   cvt RND [.sat] .f16|.f64 INT8
0   0   2   cvt RND [.ftz] [.sat] .f32 INT8
0   0   2   cvt ROUND [.ftz] [.sat] INT8 .f32
0   0   2   cvt ROUND [.sat] INT8 .f16|.f64
0   0   2   cvt [ROUND] [.ftz] [.sat] .f32 .f32
0   0   2   cvt [ROUND] [.sat] .f64 .f64
0   0   2   cvt [ROUND] [.sat] .f16 .f16
0   0   2   cvt RND [.ftz] [.sat] .f32 .f64
0   0   2   cvt [.ftz] [.sat] .f64 .f32
0   0   2   cvt RND [.ftz] [.sat] .f16 .f32
0   0   2   cvt RND [.sat] .f16 .f64
0   0   2   cvt [.ftz] [.sat] .f32 .f16
0   0   2   cvt [.sat] .f64 .f16
7.0 80  2   cvt .rn|.rz [.relu] .f16|.bf16 .f32
7.0 80  3   cvt .rn|.rz [.relu] .f16x2|.bf16x2 .f32
7.0 80  2   cvt .rna .tf32 .f32
7.8 90  2   cvt .rn|.rz [.relu] .tf32 .f32
7.1 80  2   cvt .f32 .bf16
7.0 80  2   cvt RND .bf16 .f32
7.8 90  2   cvt RND .bf16 INT8|.f16|.f64
7.8 90  2   cvt RND .f16 .bf16
7.8 90  2   cvt .f64 .bf16
7.8 90  2   cvt ROUND INT8|.bf16 .bf16
"""


SPECIAL = {  # special registers that don't exist in all supported PTX versions and targets
    **dict.fromkeys(("%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid"), "7.8 90"),
    **dict.fromkeys(("%cluster_ctarank", "%cluster_nctarank"), "7.8 90"),
    "%aggr_smem_size": "8.1 90",
    "%current_graph_exec": "8.0 50",
    **{f"%pm{number}_64": "0 50" for number in range(8)},
}


class Since(NamedTuple):
    """The PTX version and the target (80 for sm_80) that introduced something."""

    version: tuple[int, int]
    target: int


@cache
def forms() -> dict[tuple[str, int], Since]:
    """Return all forms, by opcode with modifiers and number of operands."""
    found: dict[tuple[str, int], Since] = {}
    for line in _TABLE.strip().splitlines():
        version, target, count, *places = line.split()
        since = _since(version, target)
        for words in itertools.product(*map(_choices, places)):
            found.setdefault(("".join(words), int(count)), since)
    return found


@cache
def counts() -> dict[str, set[int]]:
    """Return the possible numbers of operands, by opcode."""
    found: dict[str, set[int]] = {}
    for name, count in forms():
        found.setdefault(name.partition(".")[0], set()).add(count)
    return found


@cache
def words() -> set[str]:
    """Return all modifiers."""
    return {word for name, _ in forms() for word in name.split(".")[1:]}


def needs(node: tree.Instruction | tree.Label | Save) -> Iterator[tuple[str, Since]]:
    """Yield the parts of a statement that need a minimum PTX version or target, each with this minimum."""
    if isinstance(node, tree.Instruction) and (since := forms().get((node.name, len(node.operands)))):
        yield f"'{node}'", since
    for name in names_of(node):
        if name in SPECIAL:
            yield f"'{name}'", _since(*SPECIAL[name].split())


def find_lack(snippet: Snippet, version: tuple[int, int], target: int) -> tuple[int, str] | None:
    """Return the first line of a snippet for which the PTX version or the target is too old, and why; None if there's
    none.
    """
    for line in snippet.lines:
        for what, since in needs(line.node):
            if version < since.version:
                return line.line, "{} needs PTX {}.{}, and it is PTX {}.{}".format(what, *since.version, *version)
            if target < since.target:
                return line.line, f"{what} needs sm_{since.target}, and it is for sm_{target}"
    return None


def _since(version: str, target: str) -> Since:
    major, _, minor = version.partition(".")
    return Since((int(major), int(minor or 0)), int(target))


def _choices(place: str) -> list[str]:
    """Return the modifiers that the table allows at a place. An empty string stands for no modifier."""
    names = place.strip("[]").split("|")
    found = [word for name in names for word in _SETS.get(name, name).split("|")]
    return ["", *found] if place[0] == "[" else found
