"""Snippets that the verifier accepts, and the registers that they use."""

REGISTERS = ".reg .b64 %a, %b; .reg .b32 %x, %y; .reg .f32 %f; .reg .pred %p, %q; .reg .b16 %h;\n"
ALLOWED = [
    "add.u64 %a, %a, %b; sub.s32 %x, %y, -1; mul.lo.u32 %x, %x, 0x10; mul.wide.u32 %a, %x, %y;",
    "mad.lo.s32 %x, %x, 2, %y; fma.rn.f32 %f, %f, 0f3F800000, %f; min.u32 %x, %x, BYTES;",
    "mov.u64 %a, ADDR; mov.u64 %a, CLOCK; mov.u64 %a, TIME; mov.u32 %x, SMID; mov.u64 %b, BLOCK;",
    "mov.u32 %x, %tid.x; mov.u64 %a, %globaltimer; mov.b64 %a, {%x, %y}; mov.b64 {%x, _}, %a;",
    "setp.lt.u32 %p, %x, 3; setp.eq.u64 %p|%q, %a, 0; @%p add.u32 %x, %x, 1; @!%q mov.u32 %x, 0;",
    "selp.b32 %x, 1, 0, %p; and.pred %p, %p, PRED; not.pred %q, %p; @PRED add.u32 %x, %x, 1;",
    "cvt.u32.u64 %x, %a; cvt.rn.f32.u32 %f, %x; cvt.u64.u32 %a, BYTES; shl.b64 %a, %a, 3; shr.u64 %a, %a, %x;",
    "add.u64 %a, %a, BYTES; add.u32 %x, %x, BYTES;",
    "activemask.b32 %x; popc.b32 %x, %x; isspacep.shared %p, ADDR; lop3.b32 %x, %x, %y, 1, 0x96;",
    "bfe.u64 %a, %b, 3, 5; prmt.b32 %x, %x, %y, 0x3210; brev.b32 %x, %y; clz.b64 %x, %a; testp.number.f32 %p, %f;",
    "mov.b32 %x, IN2; mov.b64 %a, IN1; mov.u64 %a, (1+2)*3; and.pred %p, !%p, %q;",
    "setp.eq.u32 %p, %x, 0; @%p bra DONE; add.u32 %x, %x, 1; DONE: add.u32 %y, %y, 1;",
    "mov.u32 %x, 0; LOOP: add.u64 %a, %a, %b; add.u32 %x, %x, 1; setp.lt.u32 %p, %x, 10; @%p bra LOOP;",
    "mov.u32 %x, 0; LOOP: add.u32 %x, %x, 3; setp.ne.u32 %p, %x, 12; @%p bra LOOP;",
    "mov.s32 %x, 10; LOOP: add.s32 %x, %x, -2; setp.gt.s32 %p, %x, 0; @%p bra LOOP;",
]
