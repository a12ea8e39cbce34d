"""A program like in Neutrino's notebooks, for the simulated device: `attn` copies memory, `distribution` fills it.

program.py [HOW ...]    fork: a child process does the same; status=N; kill; pause; TensorTrace: below it;
                        linked: the driver links the code first, as with numba-cuda
"""

from __future__ import annotations

import os
import signal
import sys
import time
from ctypes import byref, c_size_t, c_void_p
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.runtime import driving

COUNT, BLOCK = 256, 96
KERNEL = """
.visible .entry {name}(.param .u64 to, .param .u64 from)
{{
    .reg .u64 %a, %b, %at;
    .reg .u32 %n, %i, %t;
    mov.u32 %n, %ctaid.x;
    mov.u32 %i, %ntid.x;
    mov.u32 %t, %tid.x;
    mad.lo.u32 %n, %n, %i, %t;
    mul.wide.u32 %at, %n, 4;
    ld.param.u64 %a, [to];
    ld.param.u64 %b, [from];
    add.u64 %a, %a, %at;
    add.u64 %b, %b, %at;
    {load}
    st.global.u32 [%a], %n;
    ret;
}}
"""
TEXT = ".version 7.0\n.target sm_80\n.address_size 64\n" + "".join(
    KERNEL.format(name=name, load=load)
    for name, load in (("attn_fwd", "ld.global.u32 %n, [%b];"), ("distribution", ""))
)


class Tensor:
    """A minimal tensor, with the attributes that TensorTrace reads."""

    def __init__(self, memory: driving.Memory) -> None:
        self.memory, self.shape, self.dtype = memory, (COUNT,), "uint32"

    def element_size(self) -> int:
        return 4

    def data_ptr(self) -> int:
        return self.memory.value


def forward(attn, out, q):
    driving.ok(driving.launch(attn, 2, BLOCK, out.memory, q.memory))


def link(text: bytes) -> c_void_p:
    """Return the address of the image that the driver makes from PTX."""
    state, image, size = c_void_p(), c_void_p(), c_size_t()
    driving.ok(driving.cu.cuLinkCreate_v2(0, None, None, byref(state)))
    part = (state, 1, text, c_size_t(len(text)), b"part", 0, None, None)
    driving.ok(driving.cu.cuLinkAddData_v2(*part))
    driving.ok(driving.cu.cuLinkComplete(state, byref(image), byref(size)))
    return image


def main(words: list[str]) -> int:
    if "fork" in words and os.fork() == 0:
        words.remove("fork")
    driving.begin()
    text = TEXT.encode() + b"\0"
    module = driving.load(link(text) if "linked" in words else text)
    attn, fill = driving.function(module, "attn_fwd"), driving.function(module, "distribution")
    q, out = Tensor(driving.Memory(COUNT)), Tensor(driving.Memory(COUNT))
    driving.ok(driving.launch(fill, 2, BLOCK, q.memory, q.memory))
    if "TensorTrace" in words:
        from neutrino.utils.tensortrace import TensorTrace

        with TensorTrace():
            forward(attn, out, q)
    else:
        forward(attn, out, q)
    assert out.memory.read()[: 2 * BLOCK] == list(range(2 * BLOCK))
    print("max memory: 2048", flush=True)
    if "fork" in words:
        os.wait()
    if "pause" in words:
        time.sleep(60)
    if "kill" in words:
        time.sleep(1)  # saved data is read shortly after
        os.kill(os.getpid(), signal.SIGKILL)
    return next((int(word[7:]) for word in words if word.startswith("status=")), 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
