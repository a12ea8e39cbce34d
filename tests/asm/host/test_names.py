"""Names in PTX are harmless in C: no name ends a string, a comment or a line, and different names stay different."""

import ctypes
import os
import subprocess
import sys

import pytest

from tests.asm.host.driver import Driver
from tests.runtime import hooked

PTX = r"""# 1 "a\??/"
.version 7.0
.target sm_70
.address_size 64
# 7 "x*/ #include \"
.file 1 "a\??/*/ \", 3, 4
// comment \
.global .u32 $system[2];
.global .u32 _exit = 7;
.func %main() { ret; }
.func $Pmain() { ret; }
.func main() { ret; }
.visible .entry %k(.param .u64 out) {
    .reg .b64 %rd<3>;
    .reg .v2 .b32 a;
    .reg .b32 a_0, %a, b, $b, b__1, int, t, cc, $$, %r<6>;
    .loc 1 2 3
    mov.b32 a.x, 1; mov.b32 a_0, 2; mov.b32 %a, 3; mov.b32 b, 4; mov.b32 $b, 5; mov.b32 b__1, 6;
    mov.b32 int, 7; mov.b32 t, 8; mov.b32 cc, 9; mov.b32 $$, 10; mov.b32 %r5, 11;
leave: bra leave2;
leave2: // \
    call %main; call $Pmain; call main;
    ld.param.u64 %rd1, [out];
    cvta.to.global.u64 %rd1, %rd1;
    STORES
    ret;
}
.visible .entry $Pk() { ret; }
.visible .entry host_module() { .reg .b64 %rd<3>; mov.u64 %rd1, _exit; ret; }
"""
NAMES = ["a.x", "a_0", "%a", "b", "$b", "b__1", "int", "t", "cc", "$$", "%r5"]


def text():
    stores = [f"st.global.u32 [%rd1+{4 * number}], {name};" for number, name in enumerate(NAMES)]
    return PTX.replace("STORES", " ".join(stores))


@pytest.mark.full
def test_ptx_names_do_not_clash_with_names_in_c(tmp_path):
    env = os.environ | {
        "LD_LIBRARY_PATH": str(hooked.runtime() / "sim"),
        "GPT_SIM_RUN": "all",
        "XDG_CACHE_HOME": str(tmp_path),
    }
    line = [sys.executable, "-m", "tests.asm.host.test_names"]
    done = subprocess.run(line, cwd=hooked.ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(number) for number in range(1, len(NAMES) + 1)], done.stderr


def main():
    driver = Driver()
    module = driver.module(text())
    memory = driver.allocate(4 * len(NAMES))
    for name in ("$Pk", "host_module", "%k"):
        parameters = (ctypes.c_void_p * 1)(ctypes.addressof(place := ctypes.c_uint64(memory)))
        driver.call("cuLaunchKernel", driver.function(module, name), 1, 1, 1, 1, 1, 1, 0, None, parameters, None)
    driver.call("cuCtxSynchronize")
    data = (ctypes.c_uint32 * len(NAMES))()
    driver.call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(place.value), ctypes.c_size_t(4 * len(NAMES)))
    print(*data)


if __name__ == "__main__":
    main()
