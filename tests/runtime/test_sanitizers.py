"""The library, built with sanitizers and under valgrind, with clients that use most of it."""

import os
import shutil
import subprocess
import time

import pytest

from tests.runtime import graphing, hooked, simulated
from tests.runtime.clients import ARGUMENTS, FORK, LOADS, PLAYED, THREADS, VFORK
from tests.runtime.controlling import STRESS, Server, check, check_graphs, order, status, toggle
from tests.runtime.probing import CLIENT, PTX, kept

MARKS = """
    for (int i = 0; i < 100; i++)
        F(core, CORE_RangePushA, int, "name");
    F(core, CORE_MarkW, void, L"\\u00e4"), F(core, CORE_RangeEnd, void, F(core, CORE_RangeStartA, uint64_t, "range"));
    for (int i = 0; i < 101; i++)
        F(core, CORE_RangePop, int);
    F(core2, CORE2_DomainRegisterStringA, void *, F(core2, CORE2_DomainCreateA, void *, "domain"), "text");
"""
TRUNCATED = """
int main(void) {
    begin();
    void *f = kernel("foo");
    launch(f);
    assert(!truncate(getenv("GPT_HOOK_OUTPUT"), 0));
    for (int i = 0; i < 100000; i++)
        launch(f);
}
"""

CLIENTS = {
    "threads": (THREADS.replace("5000", "500"), ["-DROUNDS=3", "-DAT_ONCE=6"]),
    "fork": (FORK, []),
    "vfork": (VFORK, []),
    "arguments": (ARGUMENTS, []),
    "modules": (LOADS, []),
    "nvtx": (PLAYED.replace("MORE", MARKS), [f"-I{hooked.ROOT}/runtime"]),
    "truncated": (TRUNCATED, []),
}


def build(folder, sanitizer):
    """Return the library built with a sanitizer, and the sanitizer's runtime library."""
    name = {"address,undefined": "asan", "thread": "tsan"}[sanitizer]
    found = subprocess.run(["gcc", f"-print-file-name=lib{name}.so"], capture_output=True, text=True, check=False)
    if not found.stdout.startswith("/"):
        pytest.skip(f"no lib{name}")
    flags = ("-O1", "-g1", f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all")
    hooked.build_hook(folder / "libgpthook.so", flags=flags, compiler="gcc")
    return f"{found.stdout.strip()} {folder}/libgpthook.so"


def memcheck(folder):
    """Return the unchanged library, for valgrind."""
    if not shutil.which("valgrind"):
        pytest.skip("no valgrind (Debian: apt-get install valgrind libc6-dbg)")
    return str(shutil.copy(hooked.runtime() / "libgpthook.so", folder))


@pytest.mark.full
@pytest.mark.parametrize("checker", ["address,undefined", "thread", "memcheck"])
def test_checker_finds_nothing(tmp_path, checker):
    preload = memcheck(tmp_path) if checker == "memcheck" else build(tmp_path, checker)
    checked = ["valgrind", "-q", "--error-exitcode=9"] if checker == "memcheck" else []
    for name, (source, flags) in CLIENTS.items():
        program = hooked.compile_c(tmp_path / name, source, *flags)
        env = os.environ | {
            "ASAN_OPTIONS": "detect_leaks=0",  # memory that clients don't free doesn't matter
            "LD_LIBRARY_PATH": str(hooked.runtime() / "sim"),
            "LD_PRELOAD": preload,
            "GPT_HOOK_OUTPUT": f"{tmp_path}/{name}.mp",
            "GPT_HOOK_MODULES": str(tmp_path),
            "GPT_HOOK_IOCTL": "1",
            "NVTX_INJECTION64_PATH": f"{tmp_path}/libgpthook.so",
        }
        done = subprocess.run(
            [*checked, program, "x"], env=env, capture_output=True, text=True, timeout=300, check=False
        )
        if "unexpected memory mapping" in done.stderr:
            pytest.skip("the kernel's address space randomization is too much for the sanitizer")
        if name == "truncated":
            assert done.returncode == 0 and done.stderr.count("\n") == 1 and "was truncated" in done.stderr
            continue
        assert (done.returncode, done.stderr) == (0, ""), name
        assert hooked.Trace(tmp_path / f"{name}.mp").records[-1]["kind"] == "end"


# Threads that load, look up, query, set, launch and unload at the same time, each in its own way, one of them in its
# own contexts.
PROBED = (
    CLIENT
    + r"""
static void *library, *shared;
static char ptx[1 << 16];

static void *work(void *number) {
    long n = (long)number;
    void *primary, *context, *stream, *f = NULL, *own = NULL, *of_own = NULL, *loaded = NULL;
    CUdeviceptr mine;
    int each;
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    for (int i = 0; i < 60; i++) {
        if (n == 3 && i % 10 == 0)
            OK(D(cuCtxCreate_v2)(&context, 0, 0));
        OK(D(cuMemAlloc_v2)(&mine, (size_t)sizeof(want)));
        OK(D(cuStreamCreate)(&stream, 1));
        if (n % 2) {
            OK(cuModuleLoadData(&loaded, ptx));
            OK(cuModuleGetFunction(&f, loaded, "scale"));
        } else if (i % 3 == 0) {
            OK(D(cuLibraryLoadData)(&own, ptx, NULL, NULL, 0, NULL, NULL, 0));
            OK(D(cuLibraryGetKernel)(&of_own, own, "scale"));
            OK(D(cuKernelGetFunction)(&f, of_own));
            OK(D(cuFuncSetAttribute)(f, 8, 1000 + i));
            OK(D(cuKernelSetAttribute)(8, 2000, of_own, 0));
        }
        void *params[] = {&mine, &added, &count};
        for (int j = 0; j < 10; j++) {
            void *one = n == 3 || n == 2 ? shared : f;
            OK(cuLaunchKernel(one, 6, 1, 1, j == 4 ? 1024 : 70, 1, 1, 0, stream, params, NULL));
            OK(D(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&each, one, 64 + 32 * j, (size_t)0));
        }
        if (i % 4 == 0)
            OK(D(cuCtxSynchronize)());
        OK(D(cuStreamDestroy_v2)(stream));
        OK(D(cuMemFree_v2)(mine));
        if (n % 2)
            OK(D(cuModuleUnload)(loaded));
        else if (i % 3 == 2) {
            OK(D(cuCtxSynchronize)());
            OK(D(cuLibraryUnload)(own));
        }
        if (n == 3 && i % 10 == 9) {
            OK(D(cuCtxDestroy_v2)(context));
            OK(cuCtxSetCurrent(primary));
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t threads[8];
    begin();
    FILE *file = fopen(argv[1], "r");
    assert(file && fread(ptx, 1, sizeof(ptx) - 1, file));
    OK(D(cuLibraryLoadData)(&library, ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(D(cuLibraryGetKernel)(&shared, library, "scale"));
    for (long i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
"""
)


@pytest.mark.full
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_sanitizer_finds_nothing_in_probing(tmp_path, sanitizer):
    """The program runs under gpt-hook with the library built with the sanitizer."""
    preload = build(tmp_path, sanitizer).replace(" ", ":")
    program = simulated.build(tmp_path / "client", PROBED)
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept(), "ASAN_OPTIONS": "detect_leaks=0"}
    line = ("sh", "-c", f"LD_PRELOAD='{preload}' exec '{program}' '{PTX}'")
    done = hooked.run(tmp_path / "t.mp", *line, options=("-p", "gmem_bytes"), env=env)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the kernel's address space randomization is too much for the sanitizer")
    assert (done.returncode, done.stderr) == (0, "")
    traces = [hooked.Trace(path) for path in tmp_path.glob("t.mp*") if path.suffix != ".buffers"]
    probed = sum(len(trace.of("probed")) for trace in traces)
    unprobed = sum(record["launches"] for trace in traces for record in trace.of("unprobed"))
    assert probed > 4000 and probed + unprobed == 8 * 60 * 10


@pytest.mark.full
@pytest.mark.parametrize(
    ("source", "wrong"), [(STRESS, check), (graphing.STRESS, check_graphs)], ids=["launches", "graphs"]
)
def test_thread_sanitizer_finds_nothing_in_switching(tmp_path, source, wrong):
    """Recording and probes are turned on and off while threads launch, including the first time. Kernels with probes
    are built for the first program; the second one finds them in the cache, before any other driver call.
    """
    preload = build(tmp_path, "thread").replace(" ", ":")
    program = simulated.build(tmp_path / "client", source)
    line = ("-c", f"LD_PRELOAD='{preload}' exec '{program}' '{PTX}'")
    environment = {
        "GPT_SIM_RUN": "all",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TSAN_OPTIONS": f"log_path={tmp_path}/found",  # standard error is a pipe that's only read at the end
    }
    for name in ("made.mp", "kept.mp"):
        server = Server(tmp_path / name, "/bin/sh", "--disabled", "-p", "gmem_bytes", arguments=line, **environment)
        order(server.pid, "enable")
        hooked.wait_until(lambda server=server: status(server.pid)["with_probes"] or [*tmp_path.glob("found.*")], 180)
        state = toggle(server, 21)
        assert [path.read_text() for path in tmp_path.glob("found.*")] == []
        assert wrong(server.end(), state) == []


# Threads that do everything for the first time at once, and continue until the program ends.
AT_ONCE = (
    CLIENT
    + r"""
enum { THREADS = 8 };
static void *context;
static char ptx[1 << 16];
static pthread_barrier_t begins;

static void *work(void *unused) {
    void *stream, *loaded, *f, *params[] = {&items, &added, &count};
    int (*synchronize)(void *) = dlsym(driver, "cuStreamSynchronize");
    int (*unload)(void *) = dlsym(driver, "cuModuleUnload");
    int (*set)(CUdeviceptr, unsigned char, size_t, void *) = dlsym(driver, "cuMemsetD8Async");
    OK(cuCtxSetCurrent(context));
    OK(D(cuStreamCreate)(&stream, 1));
    OK(cuModuleLoadData(&loaded, ptx));
    OK(cuModuleGetFunction(&f, loaded, "scale"));
    pthread_barrier_wait(&begins);
    OK(set(items, 0, 0, stream)); // it has a time on the GPU, and nothing is looked for before
    while (!cuLaunchKernel(f, 6, 1, 1, 70, 1, 1, 0, stream, params, NULL) && !synchronize(stream) && !unload(loaded) &&
           !cuModuleLoadData(&loaded, ptx) && !cuModuleGetFunction(&f, loaded, "scale"))
        continue;
    return NULL; // the driver has ended
}
int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    begin();
    OK(D(cuCtxGetCurrent)(&context));
    OK(D(cuMemAlloc_v2)(&items, (size_t)sizeof(want)));
    FILE *file = fopen(argv[1], "r");
    assert(file && fread(ptx, 1, sizeof(ptx) - 1, file));
    OK(cuModuleLoadData(&module, ptx)); // what the simulated driver does for the first time is not the point
    OK(cuModuleGetFunction(&function, module, "scale"));
    pthread_barrier_init(&begins, NULL, THREADS);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, NULL), pthread_detach(threads[i]);
    puts("ready"), fflush(stdout);
    exit(getchar() != EOF);
}
"""
)


@pytest.mark.full
def test_thread_sanitizer_finds_nothing_where_threads_begin_at_once(tmp_path):
    """Other probes are named at the same time, and the program ends while its threads launch."""
    preload = build(tmp_path, "thread").replace(" ", ":")
    program = simulated.build(tmp_path / "client", AT_ONCE)
    line = ("-c", f"LD_PRELOAD='{preload}' exec '{program}' '{PTX}'")
    environment = {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept(), "TSAN_OPTIONS": f"log_path={tmp_path}/found"}
    options = ("--control", "--gpu-time", "-p", "gmem_bytes")
    server = Server(tmp_path / "t.mp", "/bin/sh", *options, arguments=line, **environment)
    for turn in range(12):
        order(server.pid, "probe", ("block_sched", "gmem_bytes")[turn % 2])
        time.sleep(0.1)
    trace = server.end()
    assert [path.read_text() for path in tmp_path.glob("found.*")] == []
    assert trace.of("gpu_times") and trace.of("probed")
    assert {record["launch"] for record in trace.of("buffer")} == {record["id"] for record in trace.of("probed")}
