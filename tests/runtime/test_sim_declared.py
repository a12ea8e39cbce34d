"""Initial values of PTX variables, as read by the simulated device and by gpt-asm --arch host."""

from __future__ import annotations

import struct

from gpt.asm.host.module import ModuleWriter
from tests.runtime.simulated import ask

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
DECLARED = """
.global .align 4 .u32 numbers[] = {1+2*3, ~0xF, (5>3)?1:0, WARP_SZ, (1+2)<<2, -7/2, -8>>2, 017, 0b1000U, 0xffU, 2|4&6,
    3!=3||2>=2&&1<=1, !4, (.u64)-1>>60, 7 % 4^1, 1<2?3<4?5:6:7};
.global .f32 floats[5] = {1.0, 0f40200000, 0d3fe0000000000000, 1.5e3, 1.0};
.const .align 16 .f64 doubles[3] = {1.5, 1.0e-5, 0d3ff0000000000000}, lone = 1.0;
.global .v4 .f32 vector = {1.0, 2.0, 3.0, 4.0}; .global .u16 rows[3][2] = {{1}, {2, 3}, /* ; } */ {4}}, after = 5;
.func named(.param .u64 a) { .global .s8 inner[4] = {-1, 2}; { ret; } }
.visible .global .attribute(.managed) .align 8 .b64 managed = 9; .weak .global .u32 zero; .extern .global .u32 other;
.global .align 4 .b8 large[500000000];
.global .u64 places[4] = {numbers+4*2, generic(numbers)-8, 0};
.global .u8 bytes[3] = {0xFF(numbers), 0xFF00(numbers), 1};
.visible .entry k() { .reg .u64 %a<9>;
    .const .u32 constant = 6; call named, (%a0); mov.u64 %a1, numbers; mov.u64 %a1, floats; mov.u64 %a1, doubles;
    mov.u64 %a1, vector; mov.u64 %a1, rows; mov.u64 %a1, managed; mov.u64 %a1, lone; mov.u64 %a1, after; ret; }
"""
VALUES = {
    "numbers": struct.pack("<16i", 7, -16, 1, 32, 12, -3, -2, 15, 8, 255, 6, 1, 0, 15, 2, 5),
    "doubles": struct.pack("<3d", 1.5, 1e-5, 1),
    "lone": struct.pack("<d", 1),
    "vector": struct.pack("<4f", 1, 2, 3, 4),
    "rows": struct.pack("<6H", 1, 0, 2, 3, 4, 0),
    "after": struct.pack("<H", 5),
    "managed": struct.pack("<Q", 9),
    "named.inner": bytes([255, 2, 0, 0]),
    "k.constant": struct.pack("<I", 6),
}
ASKED = """
made, module, context, place, size = c.c_void_p(), c.c_void_p(), c.c_void_p(), c.c_uint64(), c.c_size_t()
cu.cuDevicePrimaryCtxRetain(c.byref(context), 0), cu.cuCtxSetCurrent(context)
assert not cu.cuModuleLoadData(c.byref(module), TEXT)
def read(name):
    status = cu.cuModuleGetGlobal_v2(c.byref(place), c.byref(size), module, name.encode())
    if status:
        return status, 0, ""
    content = c.create_string_buffer(size.value if size.value < 1000 else 4)
    cu.cuMemcpyDtoH_v2(content, place, c.c_size_t(len(content)))
    return place.value, size.value, content.raw.hex()
for name in NAMES: answer(read(name))
"""


def test_declared_variables():
    """Declarations that both the simulated device and gpt-asm read, and addresses, which only the former has."""
    text = HEAD + DECLARED
    names = [*VALUES, "floats", "numbers", "places", "bytes", "zero", "other", "large"]
    answers, said = ask(f"TEXT, NAMES = {text.encode()!r}, {names!r}\n{ASKED}", GPT_SIM_RUN="none")
    found = {name: (size, bytes.fromhex(content)) for name, (_, size, content) in zip(names, answers, strict=True)}
    assert {name: found[name] for name in VALUES} == {name: (len(value), value) for name, value in VALUES.items()}
    code = ModuleWriter(text.encode(), "m")
    code.write()
    assert not code.faults and not said
    made = {variable.name: variable for _, variable in code._variables.values()}
    assert {name: made[name].initial for name in VALUES} == {name: one.rstrip(b"\0") for name, one in VALUES.items()}
    assert {name: made[name].size for name in VALUES} == {name: len(value) for name, value in VALUES.items()}
    assert made["floats"].initial == found["floats"][1] == struct.pack("<5f", 1, 2.5, 0.5, 1500, 1)
    at = answers[names.index("numbers")][0]
    assert found["places"][1] == struct.pack("<QQ", at + 8, at - 8) + bytes(16)
    assert found["bytes"][1] == bytes([at & 255, at >> 8 & 255, 1])
    assert (found["zero"], found["large"][0], answers[names.index("other")][0]) == ((4, bytes(4)), 500000000, 500)
