"""PTX modules for the tests, with everything that a kernel can need."""

from __future__ import annotations

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"

PLAIN = (
    HEAD
    + """\
.visible .entry plain(.param .u64 p) {
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [p];
    cvta.to.global.u64 %rd2, %rd1;
    st.global.u64 [%rd2], %rd1;
    ret;
}
"""
)

# Shared memory, a stack frame, and a called device function that has a stack frame, too.
RICH = (
    HEAD
    + """\
.func (.param .b32 r) deep(.param .b32 a, .param .b32 i) {
    .local .align 8 .b8 frame[96];
    .reg .b32 %r<4>;
    .reg .b64 %rd<4>;
    ld.param.b32 %r1, [a];
    ld.param.b32 %r2, [i];
    mov.u64 %rd1, frame;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd3, %rd1, %rd2;
    st.local.u32 [%rd3], %r1;
    st.local.u32 [frame+8], %r2;
    ld.local.u32 %r3, [%rd3+16];
    st.param.b32 [r], %r3;
    ret;
}
.visible .entry calls(.param .u64 p) {
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [p];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %tid.x;
    {
    .param .b32 a;
    .param .b32 i;
    .param .b32 back;
    st.param.b32 [a], %r1;
    st.param.b32 [i], %r1;
    call.uni (back), deep, (a, i);
    ld.param.b32 %r2, [back];
    }
    st.global.u32 [%rd2], %r2;
    ret;
}
.visible .entry shares(.param .u64 p, .param .align 8 .b8 more[200]) {
    .shared .align 4 .b8 tile[400];
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [p];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %tid.x;
    st.shared.u32 [tile], %r1;
    bar.sync 0;
    ld.shared.u32 %r2, [tile+4];
    st.global.u32 [%rd2], %r2;
    ret;
}
"""
)

RECURSIVE = """\
.func (.param .b32 r) depth(.param .b32 a) {
    .reg .b32 %r<4>;
    .reg .pred %p;
    ld.param.b32 %r1, [a];
    setp.lt.s32 %p, %r1, 2;
    @%p bra DONE;
    sub.s32 %r2, %r1, 1;
    {
    .param .b32 a2;
    .param .b32 r2;
    st.param.b32 [a2], %r2;
    call (r2), depth, (a2);
    ld.param.b32 %r3, [r2];
    }
    mul.lo.s32 %r1, %r1, %r3;
DONE:
    st.param.b32 [r], %r1;
    ret;
}
"""
CALLER = """\
.visible .entry {name}(.param .u64 p) {{
    .reg .b32 %r<3>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [p];
    cvta.to.global.u64 %rd2, %rd1;
    mov.u32 %r1, %tid.x;
    {{
    .param .b32 a;
    .param .b32 back;
    st.param.b32 [a], %r1;
    call (back), depth, (a);
    ld.param.b32 %r2, [back];
    }}
    st.global.u32 [%rd2], %r2;
    ret;
}}
"""


def hungry(registers: int) -> str:
    """Return a kernel that needs this many values at once."""
    loads = "".join(f"    ld.volatile.global.u32 %r{n}, [%rd2+{4 * n}];\n" for n in range(registers))
    stores = "".join(f"    st.volatile.global.u32 [%rd2+{4 * n}], %r{n};\n" for n in reversed(range(registers)))
    return HEAD + (
        ".visible .entry hungry(.param .u64 p) {\n"
        f"    .reg .b32 %r<{registers}>;\n    .reg .b64 %rd<3>;\n"
        "    ld.param.u64 %rd1, [p];\n    cvta.to.global.u64 %rd2, %rd1;\n"
        f"{loads}    bar.sync 0;\n{stores}    ret;\n}}\n"
    )


def probed(text: str) -> str:
    """Return PLAIN or another module with probe lines in its first kernel, marked as in gpt-stream(5)."""
    lines = [
        ".reg .b32 %probe; //@ probes/count.toml:3",
        "mov.u32 %probe, %smid; //@ probes/count.toml:4",
        "st.global.u32 [%rd2+8], %probe; //@ probes/count.toml:5",
    ]
    return text.replace("    ret;\n", "".join(f"    {line}\n" for line in lines) + "    ret;\n", 1)
