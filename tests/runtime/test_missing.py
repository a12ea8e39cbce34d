"""GPU code that was removed although it's needed: the hook's message, and the simulated driver's error."""

import os
import shutil

import pytest

from tests import cuda
from tests.demo.build import build
from tests.runtime import hooked
from tests.runtime.hooked import Trace
from tests.runtime.slimmed import CLIENT, FILL, slim, two_kernels
from tests.tiers import first, full


@pytest.fixture
def demo(tmp_path, monkeypatch):
    monkeypatch.setenv("GPT_SIM_ARCH", "9.0")
    return build(tmp_path / "demo")


def run(demo, *options, kernel="fill", **more):
    return hooked.run(demo.parent / "t.mp", demo.parent / "main", kernel, options=["-f", *options], **more)


def told(done):
    return [line for line in done.stderr.splitlines() if line.startswith("gpt-hook: ")]


@pytest.mark.parametrize("mode", first("compact", "fill", "hole"))
def test_empty_region(demo, tmp_path, mode):
    assert told(run(demo)) == []
    library = slim(demo, tmp_path / "slim", mode=mode)
    done = run(demo, "--replace", tmp_path / "slim")
    assert "cuLibraryLoadData" in done.stderr and "CUDA_ERROR_NO_BINARY_FOR_GPU" in done.stderr
    (line,) = told(done)
    trace = Trace(demo.parent / "t.mp")
    (diag,) = trace.of("diag")
    assert diag["where"] == str(library)
    offset = diag["text"].partition(" at 0x")[2].partition(",")[0]
    assert library.read_bytes()[int(offset, 16) :][:4] == b"\x50\xed\x55\xba"
    status = "cuLibraryLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU 209"
    fact = f"no code for this device in the fatbin at 0x{offset}, which had kernel '{FILL}' ({status})"
    assert diag["text"] == fact
    advice = "to keep it, record this run with the original library and add the trace with gpt-locate --used, without"
    advice += " an --arch that leaves out this device"
    assert line == f"gpt-hook: warning: {library}: {fact}; {advice}"
    assert told(run(demo, "--replace", tmp_path / "slim", kernel="matmul")) == []  # kept kernels work


def load(folder, library, device):
    """Return gpt-hook's message when a device refuses the library's fatbin."""
    program = hooked.compile_c(folder / "load", CLIENT.replace("OK(load(", "return (load(") % library)
    env = os.environ | {"GPT_SIM_ARCH": device}
    done = hooked.run(folder / "t.mp", program, options=["-f"], env=env)
    (line,) = told(done)
    return line.partition(", which had ")[2].partition(" (cuLibraryLoadData: ")[0]


@pytest.mark.parametrize("mode", first("compact", "fill", "hole"))
def test_only_code_for_other_devices_is_left(tmp_path, mode):
    library = three_kernels(tmp_path)
    shutil.copy(slim(library, tmp_path / "slim", mode=mode, keep="^(one|two)$"), library)
    assert load(tmp_path, library, "8.0") == "kernels 'one', 'three', 'two'"


def many_kernels(folder, count, name="kernel%03d"):
    """Make a library of one region with this many kernels."""
    source = "".join(f'extern "C" __global__ void {name % i}(int *p) {{ *p = {i}; }}\n' for i in range(count))
    (folder / "two.c").write_text(
        "extern const char fatbin_wrappers[]; const void *wrapper(void) { return fatbin_wrappers; }"
    )
    fatbin = cuda.fatbin([("sm_90", "cubin", cuda.nvrtc_compile(source, "sm_90"))], "none")
    return cuda.shared_library(folder / "libmany.so", [fatbin], sources=[folder / "two.c"])


@pytest.mark.full
@pytest.mark.parametrize(
    ("count", "name", "said"),
    [
        (90, "kernel%03d", "kernels 'kernel000', 'kernel001', 'kernel002', 'kernel003', 'kernel004' and 85 more"),
        full(2, "k%d" + "x" * 300, f"kernels 'k0{'x' * 300}' and 1 more"),
        full(2, "k%d" + "x" * 700, ""),  # longer than the room there is
    ],
)
def test_a_list_of_names_is_short(tmp_path, count, name, said):
    library = many_kernels(tmp_path, count, name)
    patched = slim(library, tmp_path / "slim", keep="none")
    assert load(tmp_path, patched, "9.0") == said
    again = slim(patched, tmp_path / "again", keep="none")
    assert again.read_bytes() == patched.read_bytes()


def test_names_in_a_file_are_not_trusted(tmp_path):
    library = many_kernels(tmp_path, 2)
    patched = slim(library, tmp_path / "slim", keep="none")
    data = patched.read_bytes()
    at = data.index(b"gpt-cut\0")
    for block, said in (
        (
            b"gpt-cut\0" + b"\xff" * 8 + b"\x1b[2J\n\0",
            "kernels '\\x1b[2J\\x0a', '000', 'kernel001' and 4294967292 more",
        ),
        (b"gpt-cut\0" + b"\xff" * 8 + b"\0" * 24, ""),
        (b"gpt-cut\0" + bytes(8), ""),
    ):
        patched.write_bytes(data[:at] + block + data[at + len(block) :])
        assert load(tmp_path, patched, "9.0") == said


@pytest.mark.parametrize("mode", first("compact", "fill"))
def test_library_cut_in_place(demo, tmp_path, mode):
    patched = slim(demo, tmp_path / "slim", mode=mode)
    shutil.copy(patched, demo)
    (line,) = told(run(demo))
    assert line.startswith(f"gpt-hook: warning: {demo}: no code for this device in the fatbin at 0x")


@pytest.mark.full
def test_missing_kernel(tmp_path):
    library = two_kernels(tmp_path)
    assert cuda.run("cuobjdump", "-lelf", library).count("ELF file") == 2
    program = hooked.compile_c(tmp_path / "client", CLIENT % library)
    trace = tmp_path / "t.mp"
    done = hooked.run(trace, program, "one", "two")
    assert (done.stdout, done.stderr) == ("0 0 " * 3, "")
    patched = slim(library, tmp_path / "slim", keep="^one$")
    done = hooked.run(trace, program, "one", "two", options=["-f", "--replace", tmp_path / "slim"])
    assert done.stdout == "0 500 " * 3
    fact = "no code for kernel 'two' (cuLibraryGetKernel: CUDA_ERROR_NOT_FOUND 500)"
    assert done.stderr == (
        f"gpt-hook: warning: {patched}: {fact}; to keep it, give gpt-locate --keep 'two' or --used {trace}\n"
    )
    (diag,) = Trace(trace).of("diag")
    assert (diag["level"], diag["where"], diag["text"], diag["ref"]) == ("warning", str(patched), fact, "two")

    # The message names two ways to keep the kernel; both work.
    for more in ({"keep": "one|two"}, {"keep": None, "used": trace}):
        shutil.rmtree(tmp_path / "slim")
        slim(library, tmp_path / "slim", **more)
        done = hooked.run(tmp_path / "u.mp", program, "one", "two", options=["-f", "--replace", tmp_path / "slim"])
        assert (done.stdout, done.stderr) == ("0 0 " * 3, "")


def test_dropped_kernel(tmp_path):
    library = two_kernels(tmp_path, together=True)
    program = hooked.compile_c(tmp_path / "client", CLIENT % library)
    patched = slim(library, tmp_path / "slim", "--granularity", "kernel", keep="^one$")
    trace = tmp_path / "t.mp"
    done = hooked.run(trace, program, "one", "two", options=["--replace", tmp_path / "slim"])
    assert done.stdout == "0 500 " * 3
    fact = "no code for kernel 'two' (cuLibraryGetKernel: CUDA_ERROR_NOT_FOUND 500)"
    assert done.stderr == (
        f"gpt-hook: warning: {patched}: {fact}; to keep it, give gpt-locate --keep 'two' or --used {trace}\n"
    )


def three_kernels(folder):
    """Build code for sm_90 and sm_80 in one region; the sm_90 code lacks `three`. All kernels except `one` are pages
    long.
    """
    sizes = {"one": 1, "two": 2000, "three": 2000}
    code = {
        name: f'extern "C" __global__ void {name}(volatile int *p) {{ {"*p = 1;" * size} }}'
        for name, size in sizes.items()
    }
    elements = [("sm_90", code["one"] + code["two"]), ("sm_80", "".join(code.values()))]
    cubins = [(arch, "cubin", cuda.nvrtc_compile(source, arch)) for arch, source in elements]
    (folder / "two.c").write_text(
        "extern const char fatbin_wrappers[]; const void *wrapper(void) { return fatbin_wrappers; }"
    )
    return cuda.shared_library(folder / "libthree.so", [cuda.fatbin(cubins, "none")], sources=[folder / "two.c"])


def test_kernels_that_only_other_devices_have(tmp_path):
    library = three_kernels(tmp_path)
    program = hooked.compile_c(tmp_path / "client", CLIENT % library)
    done = hooked.run(tmp_path / "t.mp", program, "three", "one", "four")
    assert (done.stdout, done.stderr) == ("500 0 500 " * 3, "")
    trace = Trace(tmp_path / "t.mp")
    assert trace.of("diag") == [] and trace.functions == ["one"]


@pytest.mark.full
@pytest.mark.parametrize("mode", ["compact", full("fill"), full("hole")])
@pytest.mark.parametrize("kernels", [[], full(["--granularity", "kernel"])])
def test_slimmed_file_is_recognized(tmp_path, mode, kernels):
    library = three_kernels(tmp_path)
    program = hooked.compile_c(tmp_path / "client", CLIENT % library)
    patched = slim(library, tmp_path / "slim", *kernels, mode=mode, keep="^one$" if kernels else "^(one|two)$")
    if kernels:  # the code for sm_80 stays, so only the damaged cubin for sm_90 shows that something was cut
        again = slim(library, tmp_path / "again", *kernels, mode=mode, keep="^one$", arch="sm_80,sm_90")
        assert again.read_bytes() != patched.read_bytes()
        patched = again
    assert (patched.stat().st_size < library.stat().st_size - 4096) == (mode == "compact")
    shutil.copy(patched, library)
    missing = "two" if kernels else "three"
    done = hooked.run(tmp_path / "t.mp", program, "one", missing)
    assert done.stdout == "0 500 " * 3
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"gpt-hook: warning: {library}: no code for kernel '{missing}' (cuLibraryGetKernel: ")
    assert cuda.run("cuobjdump", "-lelf", library).count("ELF file") == (2 if kernels else 1)

    # The mark survives if the library is slimmed again to the same code.
    again = slim(library, tmp_path / "third", mode="compact", keep=".")
    done = hooked.run(tmp_path / "t.mp", program, "one", missing, options=["-f", "--replace", tmp_path / "third"])
    assert (done.stdout, done.stderr.count("no code for kernel")) == ("0 500 " * 3, 1)
    shutil.copy(again, library)
    assert hooked.run(tmp_path / "u.mp", program, "one", missing).stderr.count("no code for kernel") == 1


def test_no_more_than_a_few_lines(tmp_path):
    library = two_kernels(tmp_path)
    shutil.copy(slim(library, tmp_path / "slim", keep="^one$"), library)
    program = hooked.compile_c(tmp_path / "client", CLIENT % library)
    names = [f"k{i}" for i in range(20)]
    done = hooked.run(tmp_path / "t.mp", program, *names)
    lines = done.stderr.splitlines()
    assert len(lines) == 6 and all(f"'k{i}'" in lines[i] for i in range(5))
    assert lines[5] == f"gpt-hook: warning: more GPU code is missing: {tmp_path}/t.mp names it"
    trace = Trace(tmp_path / "t.mp")
    assert [r["ref"] for r in trace.of("diag")] == names
    assert [name for name in trace.functions if name in names] == names


def test_missing_candidates_are_skipped_silently(tmp_path):
    source = r"""
    int main(void) {
        begin();
        void *module, *function;
        char *copy = strdup(PTX);
        OK(cuModuleLoadData(&module, copy));
        free(copy);
        for (int i = 0; i < 10; i++)
            assert(cuModuleGetFunction(&function, module, "not there") == 500);
        assert(cuModuleLoadData(&module, "nonsense") == 200);
        static const uint64_t region[10] = {0x10000100000000ull | 0xba55ed50, 64, 64ull << 32};
        assert(cuModuleLoadData(&module, region) == 209);
        assert(cuLaunchKernel(0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) == 400);
    }
    """
    program = hooked.compile_c(tmp_path / "client", source)
    done = hooked.run(tmp_path / "t.mp", program)
    assert done.returncode == 0
    # The last one has one element, of a dead kind.
    assert done.stderr.count("\n") == 1 and "no code for this device in the fatbin" in done.stderr


def test_memory_that_is_gone_is_not_read(tmp_path):
    source = r"""
    #include <sys/mman.h>
    int main(void) {
        begin();
        void *module, *function;
        char *copy = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        strcpy(copy, PTX);
        OK(cuModuleLoadData(&module, copy));
        mprotect(copy, 4096, PROT_NONE);
        assert(cuModuleGetFunction(&function, module, "gone") == 500);
    }
    """
    done = hooked.run(tmp_path / "t.mp", hooked.compile_c(tmp_path / "client", source))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arch", "loads"),
    [("9.0", True), ("9.5", True), ("8.9", False), ("8.0", False), ("10.0", False), ("7.5", True), ("7.0", False)],
)
def test_the_simulated_driver_takes_what_a_driver_would(tmp_path, arch, loads):
    code = 'extern "C" __global__ void one(int *p) { *p = 1; }'
    elements = [(a, "cubin", cuda.nvrtc_compile(code, a)) for a in ("sm_75", "sm_90")]
    (tmp_path / "code.fatbin").write_bytes(cuda.fatbin(elements, "none"))
    (tmp_path / "code.cubin").write_bytes(elements[1][2])
    source = f"""
    int main(void) {{
        void *module;
        begin();
        int (*load)(void **, const char *) = dlsym(driver, "cuModuleLoad");
        printf("%d %d\\n", load(&module, "{tmp_path}/code.fatbin"), load(&module, "{tmp_path}/code.cubin"));
    }}
    """
    env = os.environ | {"GPT_SIM_ARCH": arch}
    done = hooked.run(tmp_path / "t.mp", hooked.compile_c(tmp_path / "client", source), env=env)
    cubin = 0 if arch.startswith("9.") else 209
    assert done.stdout == f"{0 if loads else 209} {cubin}\n"
    # PTX runs on newer devices.
    ptx = [*elements, ("compute_75", "ptx", cuda.nvrtc_compile(code, "compute_75"))]
    (tmp_path / "code.fatbin").write_bytes(cuda.fatbin(ptx, "zstd"))
    done = hooked.run(tmp_path / "u.mp", tmp_path / "client", env=env)
    assert done.stdout == f"{209 if arch == '7.0' else 0} {cubin}\n"


DRIVER = r"""
// Loads and looks up anything, and has no code when it comes to it: as lazy loading may find out.
static const char *names[] = {"one", "two"};
int cuInit(unsigned flags) { return flags; }
int cuGetErrorName(int status, const char **name) {
    *name = "CUDA_ERROR_NO_BINARY_FOR_GPU";
    return status != 209;
}
int cuLibraryLoadData(void **library, const void *image) {
    *library = (void *)image;
    return 0;
}
int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
    (void)library;
    *kernel = &names[name[0] == 't'];
    return 0;
}
int cuKernelGetName(const char **name, void *kernel) {
    *name = *(const char **)kernel;
    return 0;
}
int cuKernelGetFunction(void **function, void *kernel) {
    (void)function, (void)kernel;
    return 209;
}
int cuLaunchKernel(void *kernel) { return kernel == &names[1] ? 209 : 0; }
int cuLaunchKernelEx(void *config, void *kernel) {
    (void)config;
    return cuLaunchKernel(kernel);
}
"""


EMPTY = """
// Takes every kernel, and finds at the next call that one of them held no instruction.
static int broken;
int cuGetErrorName(int status, const char **name) {
    *name = "CUDA_ERROR_ILLEGAL_INSTRUCTION";
    return status != 715;
}
int cuLibraryLoadData(void **library, const void *image) {
    *library = (void *)image;
    return 0;
}
int cuLibraryGetKernel(const char **kernel, void *library, const char *name) {
    (void)library;
    *kernel = name;
    return broken;
}
int cuKernelGetName(const char **name, const char *kernel) {
    *name = kernel;
    return NAMELESS;
}
int cuLaunchKernel(const char *kernel) {
    int before = broken;
    broken |= kernel[0] == 't' ? 715 : 0;
    return before;
}
int cuCtxSynchronize(void) { return broken; }
"""


def run_empty(tmp_path, library, *options, nameless=0):
    """Launch one kernel, another whose code is zeros, and the first again."""
    (tmp_path / "driver").mkdir(exist_ok=True)
    (tmp_path / "driver.c").write_text(EMPTY.replace("NAMELESS", str(nameless)))
    soname = "-Wl,-soname,libcuda.so.1,-Bsymbolic"
    cuda.c_compiler("-shared", "-fPIC", tmp_path / "driver.c", "-o", tmp_path / "driver" / "libcuda.so.1", soname)
    source = f"""
    #include <assert.h>
    #include <dlfcn.h>
    #include <stdio.h>
    int main(void) {{
        void *driver = dlopen("libcuda.so.1", RTLD_NOW), *loaded, *kernels[2];
        const void *(*wrapper)(void) = dlsym(dlopen("{library}", RTLD_NOW), "wrapper");
        int (*load)() = dlsym(driver, "cuLibraryLoadData"), (*look)() = dlsym(driver, "cuLibraryGetKernel");
        int (*launch)() = dlsym(driver, "cuLaunchKernel"), (*synchronize)() = dlsym(driver, "cuCtxSynchronize");
        assert(!load(&loaded, wrapper(), 0, 0, 0, 0, 0, 0));
        assert(!look(&kernels[0], loaded, "one") && !look(&kernels[1], loaded, "two"));
        for (int i = 0; i < 2; i++)
            assert(!launch(kernels[0], 1, 1, 1, 1, 1, 1, 0, 0, 0, 0) && !synchronize());
        assert(!launch(kernels[1], 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
        for (int i = 0; i < 3; i++)
            printf("%d ", synchronize());
        printf("%d", launch(kernels[0], 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
    }}
    """
    program = hooked.compile_c(tmp_path / "client", source, prelude=False)
    env = os.environ | {"LD_LIBRARY_PATH": str(tmp_path / "driver")}
    done = hooked.run(tmp_path / "t.mp", program, env=env, device="real", options=["-f", *options])
    assert done.stdout == "715 715 715 715"
    return done.stderr


@pytest.mark.parametrize("options", [(), ("--calls", "all")])
def test_kernel_with_zeroed_code(tmp_path, options):
    library = two_kernels(tmp_path)
    assert run_empty(tmp_path, library, *options) == ""  # nothing was cut: it's the program's own fault
    library.with_name(f"{library.name}.gpt-orig").touch()
    fact = "(cuCtxSynchronize: CUDA_ERROR_ILLEGAL_INSTRUCTION 715)"
    keeps = f"to keep it, give gpt-locate --keep 'two' or --used {tmp_path}/t.mp"
    warning = f"gpt-hook: warning: {library}: no instruction in"
    assert run_empty(tmp_path, library, *options) == f"{warning} kernel 'two' {fact}; {keeps}\n"
    (diag,) = Trace(tmp_path / "t.mp").of("diag")
    assert diag["ref"] == "two"
    assert Trace(tmp_path / "t.mp").functions == ["one", "two"]
    # A driver that's asked for a kernel's name may answer with the last error, as any call does.
    (line,) = run_empty(tmp_path, library, *options, nameless=715).splitlines()
    assert line.startswith(f"{warning} a kernel of the fatbin at 0x")


@pytest.mark.parametrize("mode", first("compact", "fill", "hole"))
def test_zeroed_code_is_recognized(tmp_path, mode):
    library = two_kernels(tmp_path, together=True)
    patched = slim(library, tmp_path / "slim", "--granularity", "kernel", mode=mode, keep="^one$", kernels="zero")
    shutil.copy(patched, library)
    fact = "no instruction in kernel 'two' (cuCtxSynchronize: CUDA_ERROR_ILLEGAL_INSTRUCTION 715)"
    assert run_empty(tmp_path, library).startswith(f"gpt-hook: warning: {library}: {fact}; ")


@pytest.mark.parametrize(("calls", "cut"), first(("all", True), ("none", True), ("all", False)))
@pytest.mark.parametrize(
    ("call", "line"),
    [
        ("cuKernelGetFunction", "get(&found, kernels[1])"),
        ("cuLaunchKernel", "launch(kernels[1], 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)"),
        ("cuLaunchKernelEx", "launch_ex(config, kernels[1], 0, 0)"),
    ],
)
def test_code_that_is_found_missing_late(tmp_path, calls, cut, call, line):
    library = two_kernels(tmp_path)
    if cut:
        library.with_name(f"{library.name}.gpt-orig").touch()
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver.c").write_text(DRIVER)
    soname = "-Wl,-soname,libcuda.so.1,-Bsymbolic"
    cuda.c_compiler("-shared", "-fPIC", tmp_path / "driver.c", "-o", tmp_path / "driver" / "libcuda.so.1", soname)
    source = f"""
    #include <assert.h>
    #include <dlfcn.h>
    #include <stdio.h>
    int main(void) {{
        void *driver = dlopen("libcuda.so.1", RTLD_NOW), *loaded, *kernels[2], *found;
        const void *(*wrapper)(void) = dlsym(dlopen("{library}", RTLD_NOW), "wrapper");
        int (*load)() = dlsym(driver, "cuLibraryLoadData"), (*look)() = dlsym(driver, "cuLibraryGetKernel");
        int (*launch)() = dlsym(driver, "cuLaunchKernel"), (*launch_ex)() = dlsym(driver, "cuLaunchKernelEx");
        int (*get)() = dlsym(driver, "cuKernelGetFunction"), config[32] = {{0}};
        assert(!load(&loaded, wrapper(), 0, 0, 0, 0, 0, 0));
        assert(!look(&kernels[0], loaded, "one") && !look(&kernels[1], loaded, "two"));
        assert(!launch(kernels[0], 1, 1, 1, 1, 1, 1, 0, 0, 0, 0));
        for (int i = 0; i < 3; i++)
            printf("%d ", {line});
        (void)found, (void)config, (void)launch_ex, (void)get;
    }}
    """
    program = hooked.compile_c(tmp_path / "client", source, prelude=False)
    env = os.environ | {"LD_LIBRARY_PATH": str(tmp_path / "driver")}
    trace = tmp_path / "t.mp"
    done = hooked.run(trace, program, env=env, device="real", options=["--calls", calls])
    assert done.stdout == "209 " * 3
    if not cut:
        assert done.stderr == ""
        return
    fact = f"no code for kernel 'two' ({call}: CUDA_ERROR_NO_BINARY_FOR_GPU 209)"
    assert (
        done.stderr
        == f"gpt-hook: warning: {library}: {fact}; to keep it, give gpt-locate --keep 'two' or --used {trace}\n"
    )
    assert Trace(trace).functions == ["one", "two"]
