"""libcudart.so.13 of the simulated device: programs compiled by nvcc, and the declarations in CUDA's headers."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests import cuda
from tests.runtime import hooked
from tests.runtime.simulated import compile_cuda, needs_cxx

SOURCES = hooked.ROOT / "runtime" / "cudart"


def of_nvidia() -> Path:
    home = cuda.tool("nvcc").parent.parent
    return next(path for name in ("lib", "lib64") if (path := home / name / "libcudart.so.13").exists())


def headers(text: str) -> str:
    """Return a C text after the preprocessor, with CUDA's headers."""
    line = ["cc", "-E", "-P", f"-I{cuda.headers()}", "-xc", "-"]
    return subprocess.run(line, input=text, capture_output=True, text=True, check=True).stdout


@pytest.mark.full
@needs_cxx
def test_a_program_of_nvcc(tmp_path):
    program = compile_cuda(tmp_path, Path(__file__).with_name("cudart.cu"))
    line = hooked.command("run", "--device", "sim", "-o", tmp_path / "t.mp", "--", program, "faults")
    done = subprocess.run(line, env=os.environ | {"GPT_SIM_RUN": "all"}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "OK\n"), done.stderr
    launches = hooked.Trace(tmp_path / "t.mp").launches
    assert launches["_Z4meetPi"] == 1 and launches["_Z9times_tenv"] == 3 and launches["_Z7reversePf"] == 3


@needs_cxx
@pytest.mark.full
def test_a_forked_child(tmp_path):
    (tmp_path / "forks.cu").write_text("""
#include <cstdio>
#include <sys/wait.h>
#include <unistd.h>
__global__ void kernel(int *to) { *to = 7; }
#define CALL(call) do { int s_ = call; if (s_ != expected) printf("%s: %d\\n", #call, s_), wrong = 1; } while (0)
static int *memory, wrong;
static int check(int expected) {
    int number; void *host; cudaStream_t stream; cudaEvent_t event; cudaFuncAttributes attributes;
    CALL(cudaGetDevice(&number)); CALL(cudaSetDevice(0)); CALL(cudaMalloc(&host, 4)); CALL(cudaMallocHost(&host, 4));
    CALL(cudaFuncGetAttributes(&attributes, kernel)); CALL(cudaStreamCreate(&stream)); CALL(cudaEventCreate(&event));
    kernel<<<1, 1>>>(memory); CALL(cudaGetLastError()); CALL(cudaDeviceSynchronize());
    CALL(cudaMemcpy(&number, memory, 4, cudaMemcpyDeviceToHost)); CALL(cudaFree(0));
    if (expected) CALL(cudaDeviceReset());
    return wrong;
}
static void in_child(int expected) {
    int status;
    if (!fork()) {
        if (!expected) cudaMalloc(&memory, 4);
        exit(check(expected));
    }
    wait(&status);
    wrong |= status;
}
int main() {
    in_child(0);
    cudaMalloc(&memory, 4);
    check(0);
    in_child(cudaErrorInitializationError);
    check(0);
    puts(wrong ? "wrong" : "OK");
}
""")
    program = compile_cuda(tmp_path, tmp_path / "forks.cu")
    env = os.environ | {"GPT_SIM_RUN": "all", "LD_LIBRARY_PATH": str(hooked.runtime() / "sim")}
    done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "OK\n", "")


@needs_cxx
@pytest.mark.full
def test_nvidias_static_runtime_is_refused_with_advice(tmp_path):
    (tmp_path / "a.cu").write_text("int main() { int n; return cudaGetDeviceCount(&n); }")
    cuda.nvcc("-arch=sm_80", tmp_path / "a.cu", "-o", tmp_path / "a")
    env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim")}
    done = subprocess.run([tmp_path / "a"], env=env, capture_output=True, text=True)
    assert done.returncode and "link the program with 'nvcc -cudart shared', see gpt-sim(7)" in done.stderr


@needs_cxx
@pytest.mark.full
def test_the_default_stream_of_the_thread(tmp_path):
    program = compile_cuda(tmp_path, Path(__file__).with_name("cudart.cu"), "-default-stream", "per-thread")
    env = os.environ | {"GPT_SIM_RUN": "all", "LD_LIBRARY_PATH": str(hooked.runtime() / "sim")}
    done = subprocess.run([program], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "OK\n"), done.stderr


# Separate compilation: one file declares what another one defines, and both have a kernel of the same name.
RELOCATABLE = (
    """
extern __device__ int table[2];
__device__ int twice(int x);
namespace { __global__ void kernel(int *x) { *x = twice(table[1]); } }
int of_other(int *x);
int main() {
    int *x, value, five = 5;
    cudaMalloc(&x, 4);
    cudaMemcpyToSymbol(table, &five, 4, 4);
    kernel<<<1, 1>>>(x);
    cudaMemcpy(&value, x, 4, cudaMemcpyDefault);
    return value + of_other(x);
}
""",
    """
__device__ int table[2] = {3, 4};
__device__ int twice(int x) { return 2 * x; }
namespace { __global__ void kernel(int *x) { *x = 20 + table[0]; } }
int of_other(int *x) {
    int value;
    kernel<<<1, 1>>>(x);
    return cudaMemcpy(&value, x, 4, cudaMemcpyDefault) ? 0 : value;
}
""",
)


@needs_cxx
@pytest.mark.full
def test_a_program_of_relocatable_code(tmp_path):
    files = [tmp_path / "one.cu", tmp_path / "two.cu"]
    for file, text in zip(files, RELOCATABLE, strict=True):
        file.write_text(text)
    program = compile_cuda(tmp_path, files[0], files[1], "-rdc=true")
    env = os.environ | {"GPT_SIM_RUN": "all", "LD_LIBRARY_PATH": str(hooked.runtime() / "sim")}
    assert subprocess.run([program], env=env).returncode == 33


def test_without_driver_each_call_fails_with_a_message(tmp_path):
    code = """
import ctypes, sys
runtime = ctypes.CDLL(sys.argv[1])
runtime.cudaGetErrorName.restype = ctypes.c_char_p
memory = ctypes.c_void_p()
print(*(runtime.cudaGetErrorName(status).decode() for status in (
    runtime.cudaGetDeviceCount(ctypes.byref(ctypes.c_int())), runtime.cudaMalloc(ctypes.byref(memory), 4),
    runtime.cudaFree(None), runtime.cudaMallocArray(), runtime.cudaGetLastError(), runtime.cudaGetLastError())))
"""
    library = tmp_path / "libcudart.so.13"
    library.symlink_to(hooked.runtime() / "sim" / library.name)
    env = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    there = subprocess.run(
        [sys.executable, "-c", 'import ctypes; ctypes.CDLL("libcuda.so.1")'], env=env, capture_output=True
    )
    if not there.returncode:
        pytest.skip("there is a driver here")
    done = subprocess.run([sys.executable, "-c", code, library], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["cudaErrorInsufficientDriver"] * 3 + ["cudaErrorNotSupported"] * 2 + ["cudaSuccess"]
    assert done.stderr.count("cudaMallocArray: not in this library") == 1


def exported(library: Path) -> dict[str, str]:
    text = subprocess.run(["nm", "-D", "--with-symbol-versions", library], capture_output=True, text=True).stdout
    return dict(re.findall(r" [TW] (\w*cuda\w+)@@(\S+)", text))


def test_every_name_that_nvidias_library_has():
    ours = exported(hooked.runtime() / "sim" / "libcudart.so.13")
    assert len(ours) > 400 and ours == exported(of_nvidia())


def test_the_man_page_lists_what_is_refused():
    page = (hooked.ROOT / "man" / "man7" / "gpt-sim.7").read_text()
    patterns = re.search(r"THE CUDA RUNTIME(.*?)\.El", page, re.DOTALL)[1]
    patterns = [word for line in re.findall(r"^\.Li (_*cuda.*\*.*|.*cuda.*)$", patterns, re.M) for word in line.split()]
    library = hooked.runtime() / "sim" / "libcudart.so.13"
    text = subprocess.run(["nm", "-D", library], capture_output=True, text=True).stdout
    kinds = {name: kind for kind, name in re.findall(r" ([TW]) (\w*cuda\w+)", text)}
    listed = {name: [one for one in patterns if fnmatchcase(name, one)] for name in kinds}
    assert [name for name, kind in kinds.items() if bool(listed[name]) != (kind == "W")] == []
    assert set(patterns) == set().union(*listed.values())


def test_names_of_errors():
    both = [ctypes.CDLL(str(path)) for path in (of_nvidia(), hooked.runtime() / "sim" / "libcudart.so.13")]
    for library in both:
        library.cudaGetErrorName.restype = library.cudaGetErrorString.restype = ctypes.c_char_p
    for error in range(1100):
        names = [library.cudaGetErrorName(error) for library in both]
        assert names[0] == names[1]
        if error < 5:
            assert len({library.cudaGetErrorString(error) for library in both}) == 1


def parameters(text: str) -> dict[str, int]:
    """Return the number of parameters of each function, by name."""
    found = {}
    for name, given in re.findall(r"\b((?:__)?cuda[A-Z]\w+)\s*\(((?:[^()]|\([^()]*\))*)\)\s*(?=[;{])", text):
        flat = re.sub(r"\([^()]*\)", "", given).strip()
        found.setdefault(name, 0 if flat in ("", "void") else flat.count(",") + 1)
    return found


def test_functions_have_the_parameters_that_the_header_declares():
    include = "#include <cuda_runtime_api.h>\n"
    declared = parameters(headers(include)) | parameters(
        headers("#define CUDA_API_PER_THREAD_DEFAULT_STREAM\n" + include)
    )
    assert len(declared) > 250
    for source in SOURCES.glob("*.c"):
        line = ["cc", "-E", "-P", "-D_GNU_SOURCE", f"-I{SOURCES.parent}", source]
        text = subprocess.run(line, capture_output=True, text=True, check=True).stdout
        if source.name != "refuse.c":
            ours = {name: count for name, count in parameters(text).items() if name in declared}
            assert ours and ours == {name: declared[name] for name in ours}, source


def test_properties_lie_where_programs_read_them(tmp_path):
    lines = re.findall(r"X\((\w+), (\w+), (\d+), (\d+)\)", (SOURCES / "properties.h").read_text())
    members = "".join(f"{type_} {name}[{count}];" for type_, name, count, _ in lines)
    checks = "".join(
        f'_Static_assert(offsetof(struct ours, {name}) == offsetof(struct cudaDeviceProp, {name}), "{name}");\n'
        for _, name, _, _ in lines
    )
    text = f"#include <stddef.h>\n#include <driver_types.h>\nstruct ours {{{members}}};\n{checks}"
    text += '_Static_assert(sizeof(struct ours) == sizeof(struct cudaDeviceProp), "size");\n'
    line = ["cc", "-fsyntax-only", f"-I{cuda.headers()}", "-xc", "-"]
    assert len(lines) > 90
    done = subprocess.run(line, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
