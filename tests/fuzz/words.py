"""Words for mutating text: from PTX, probe files, JSON and bpftrace's output."""

from __future__ import annotations

PTX = rb"""
    { } ( ) [ ] ; : , .entry .func .visible .extern .param .reg .b32 .b64 .pred .global .shared .const .local .align
    .section .file .loc .pragma .version .target .address_size .branchtargets .callprototype .alias @%p1 @!%p bra ret
    call ld.param.u64 st.global.u32 mov.u32 add.s32 <4> [8] = {1,2} // /* */ \ " %r<10> -0x8 0f3f800000 .maxntid exit;
    .noreturn _ setp.lt.s32 $L__BB0_1: .tex .u32 .v4.f32 bar.sync cp.async wgmma.mma_async %laneid
""".split()
PROBE = rb"""
    SAVE ADDR OUT IN1 BITS BYTES {map} = [ ] ' " [[x]] [map.x] [x] level warp thread block position before after count
    registers capacity dynamic kernel sample clock64 %clock64; mov.u64 .reg .b64 %r1, add.u64 def class lambda ( ) : os
    import return while if not ** << @probe self.x __class__ 1 0x7fffffffffffffff \u0000
""".split()
PROBE += [b"\n", b"\t", b"\xff", b"\n    ", b"'''", b'"""']
JSON = rb"""
    { } [ ] , : " null true NaN -Infinity 1e999 "end" _Z {"$int":"9"} {"$b64":"!"} {"$raw":"/w=="} {"$ext":[-1,""]}
    {"$pairs":[[{},1]]} {"$map":1} "\ud800" "\u0000"
""".split()
BPFTRACE = rb"""
    call kernel name beat begin end exit argv functions 0123456789abcdef machine library Lost events
    @call1_0123456789abcdef[7, @call0_ ]: (5 , -1 cuMemFree_v2 bytes= function=20 rows=ffffffffffffffff object=0 \xff
""".split()
BPFTRACE += [b"\n", b" "]
