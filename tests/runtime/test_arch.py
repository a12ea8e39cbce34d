"""Support for another processor is another folder of runtime/arch. `none`, which is plain C, is
built and tested here.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.runtime import hooked, simulated

RUNTIME = hooked.ROOT / "runtime"
X86 = re.compile(
    r"%[re]?[abcd]x\b|%rsp|rdtsc|cpuid|immintrin|x86|R_X86|\bxaddq|mxcsr|\.symver|__builtin_ia32", re.IGNORECASE
)

# Calls before cuInit, a host function that mustn't call the driver, ten arguments, barriers between lanes, a vfork
# child.
CLIENT = r"""
#include "sim.h"
#include <sys/wait.h>

static int inside;
static void call(void *sizes) { inside = D(cuMemGetInfo_v2)(sizes, sizes); }

int main(int argc, char **argv) {
    void *module, *function, *to, *params[] = {&to};
    unsigned numbers[64];
    size_t size;
    int status;
    find_driver();
    IS(CUDA_ERROR_NOT_INITIALIZED, D(cuCtxGetCurrent)(&module));
    begin();
    OK(D(cuModuleLoad)(&module, argv[1]));
    OK(cuModuleGetFunction(&function, module, "reverse"));
    OK(D(cuMemAlloc_v2)(&to, sizeof(numbers)));
    OK(cuLaunchKernel(function, 1, 1, 1, 64, 1, 1, sizeof(numbers), NULL, params, NULL));
    OK(D(cuMemcpyDtoH_v2)(numbers, to, sizeof(numbers)));
    for (unsigned i = 0; i < 64; i++)
        assert(numbers[i] == 63 - i);
    OK(D(cuLaunchHostFunc)(NULL, call, &size));
    OK(D(cuStreamSynchronize)(NULL));
    assert(inside == CUDA_ERROR_NOT_PERMITTED);
    pid_t child = vfork();
    if (!child)
        _exit(5);
    assert(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 5);
    puts("done");
}
"""
KERNELS = r"""
VARIABLES()
KERNEL(reverse) {
    ARGUMENT(uint64_t, to, 0);
    SHARED(TID) = TID;
    BARRIER();
    GLOBAL(to + 4 * TID) = SHARED(63 - TID);
}
MODULE(HAS(reverse, 1))
"""


def build(folder: Path, *more: str) -> Path:
    """Build the runtime for `none`."""
    line = [
        "make",
        "--no-print-directory",
        "-C",
        hooked.ROOT,
        "ARCH=none",
        f"RUNTIME={folder}",
        "CFLAGS=-O0 -Wno-format-truncation",
        *more,
    ]
    done = subprocess.run([*line, "runtime"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


# This test builds the whole runtime again, so `make test` only runs the one below, which finds other files that name
# the processor.
@pytest.mark.full
def test_a_program_passes_through(tmp_path):
    built = build(tmp_path / "none")
    kernels = simulated.compile_kernels(tmp_path / "kernels.so", KERNELS)
    program = simulated.build(tmp_path / "client", CLIENT)
    line = [built / "gpt-hook", "run", "-o", tmp_path / "t.mp", "--device", "sim", "--", program, kernels]
    env = os.environ | {"GPT_RUNTIME": str(built), "GPT_SIM_RUN": "all"}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=False)
    said = "built without stubs for this processor: no calls are recorded"
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert f"gpt-hook: warning: {said}\n" in done.stderr
    trace = hooked.Trace(tmp_path / "t.mp")
    assert [record["text"] for record in trace.of("diag")] == [said]
    assert trace.calls == []


@pytest.mark.full
@pytest.mark.skipif(not shutil.which("aarch64-linux-gnu-gcc"), reason="Debian: apt-get install gcc-aarch64-linux-gnu")
def test_everything_else_compiles_for_another_processor(tmp_path):
    build(tmp_path / "arm", "CC=aarch64-linux-gnu-gcc")


def test_no_other_file_names_the_processor():
    """The exception is host code with processor-specific parts, guarded by the compiler's macros for that processor."""
    named = {
        str(path.relative_to(RUNTIME))
        for path in RUNTIME.rglob("*.[chS]")
        if path.relative_to(RUNTIME).parts[0] != "arch" and X86.search(re.sub(r"//.*", "", path.read_text()))
    }
    assert named == set()
