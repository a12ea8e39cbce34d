"""Integer arithmetic, logic and comparison."""

from __future__ import annotations

from gpt.asm.host.table import Row

INTEGERS = "u16 s16 u32 s32 u64 s64"
PLAIN = "b16 b32 b64"
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
COMPARE_UNSIGNED = {"lo": "<", "ls": "<=", "hi": ">", "hs": ">="}

ROWS = [
    Row("add.T", "d = a b", "{a} + {b}", T=INTEGERS),
    Row("add{.sat}.s32", "d:s32 = a:s32 b:s32", "saturate_s32((int64_t){a} + {b})"),
    Row("sub.T", "d = a b", "{a} - {b}", T=INTEGERS),
    Row("sub{.sat}.s32", "d:s32 = a:s32 b:s32", "saturate_s32((int64_t){a} - {b})"),
    Row("mul.lo.T", "d = a b", "({T.unsigned.wide}){a} * {b}", T="u16 s16 u32 s32"),
    Row("mul.lo.T", "d = a b", "{a} * {b}", T="u64 s64"),
    Row("mul.hi.T", "d = a b", "({T.wide}){a} * {b} >> {T.bits}", T=INTEGERS),
    Row("mul.wide.T", "d:T.wide = a b", "({T.wide}){a} * {b}", T="u16 s16 u32 s32"),
    Row("not.T", "d:T = a", "~{a}", T=PLAIN),
    Row("and.T", "d:T = a b", "{a} & {b}", T=PLAIN),
    Row("setp.C.T", "p:pred q:pred = a b", "p_ = {a} {C} {b}; q_ = !p_;", C=COMPARE, T=INTEGERS + " " + PLAIN),
    Row("mov.T", "d = a", "{a}", T="u16 s16 b16 u32 s32 b32 u64 s64 b64 f32 f64 pred"),
]
