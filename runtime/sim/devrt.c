// The part of CUDA's device runtime (libcudadevrt.a) that the simulated device provides: grid.sync() of
// cooperative groups.
//
// The second word of a cooperative grid's workspace counts arriving blocks. Each block adds 1, except the
// first one, which adds 2^31 minus the number of the others. So the highest bit flips exactly when all blocks
// have arrived, and every block waits for that.

#include "image.h"

const char sim_device_runtime[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".weak .func (.param .b64 z) cudaCGGetIntrinsicHandle(.param .b32 scope)\n"
    "{\n"
    "    .reg .pred %none; .reg .b32 %scope, %low, %high; .reg .b64 %workspace;\n"
    "    ld.param.b32 %scope, [scope];\n"
    "    mov.b32 %low, %envreg2;\n"
    "    mov.b32 %high, %envreg1;\n"
    "    mov.b64 %workspace, {%low, %high};\n"
    "    setp.ne.u32 %none, %scope, 1; // a grid's\n"
    "    @%none mov.b64 %workspace, 0;\n"
    "    st.param.b64 [z], %workspace;\n"
    "    ret;\n"
    "}\n"
    ".weak .func (.param .b32 z) cudaCGSynchronize(.param .b64 handle, .param .b32 flags)\n"
    "{\n"
    "    .reg .pred %other, %first, %waits; .reg .b32 %x, %y, %z, %old, %now; .reg .b64 %workspace;\n"
    "    ld.param.b64 %workspace, [handle];\n"
    "    barrier.sync 0;\n"
    "    mov.u32 %x, %tid.x; mov.u32 %y, %tid.y; mov.u32 %z, %tid.z;\n"
    "    or.b32 %x, %x, %y; or.b32 %x, %x, %z;\n"
    "    setp.ne.u32 %other, %x, 0;\n"
    "    @%other bra DONE;\n"
    "    fence.acq_rel.gpu;\n"
    "    mov.u32 %x, %ctaid.x; mov.u32 %y, %ctaid.y; mov.u32 %z, %ctaid.z;\n"
    "    or.b32 %x, %x, %y; or.b32 %x, %x, %z;\n"
    "    setp.eq.u32 %first, %x, 0;\n"
    "    mov.u32 %x, %nctaid.x; mov.u32 %y, %nctaid.y; mov.u32 %z, %nctaid.z;\n"
    "    mul.lo.u32 %x, %x, %y; mul.lo.u32 %x, %x, %z;\n"
    "    sub.u32 %x, 0x80000001, %x;\n"
    "    selp.u32 %x, %x, 1, %first;\n"
    "    atom.global.add.u32 %old, [%workspace+4], %x;\n"
    "WAIT:\n"
    "    ld.acquire.gpu.global.u32 %now, [%workspace+4];\n"
    "    xor.b32 %now, %now, %old;\n"
    "    setp.ge.s32 %waits, %now, 0;\n"
    "    @%waits bra WAIT;\n"
    "DONE:\n"
    "    barrier.sync 0;\n"
    "    st.param.b32 [z], 0;\n"
    "    ret;\n"
    "}\n";
