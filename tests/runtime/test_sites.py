"""--stacks: callers, and how stacks are walked."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gpt.trace
from gpt.stream import wire
from gpt.trace.kinds import CALLS, SITES
from gpt.trace.process import iter_processes
from tests.runtime import hooked
from tests.runtime.hooked import SHARED, Trace
from tests.runtime.pythons import find_pythons


def stacks(path):
    """Return the functions on each call's stack, by the call's name."""
    with path.open("rb") as file:
        (process,) = iter_processes(wire.read_records(file, str(path)), CALLS | SITES)
    found = []
    for threads, rows in process.calls.take():
        for stack, row in zip(process.sites.find(threads, rows["start"]).tolist(), rows, strict=True):
            if stack:
                name = process.api(int(row["api"])).name
                found.append((int(row["start"]), name, [f.function for f in process.sites.frames(stack)]))
    return [(name, functions) for _, name, functions in sorted(found)]


def walked(tmp_path, source, *flags, options=("--stacks", "memory"), args=(), **more):
    hooked.traced(tmp_path, source, *flags, options=("--force", *options), args=args, **more)
    return stacks(tmp_path / "t.mp")


ALLOC = r"""
static int (*allocate)(uint64_t *, size_t);
#define DEEP __attribute__((noinline, noipa))
DEEP int inner(size_t size) { uint64_t memory; return allocate(&memory, size) + 1; }
DEEP int middle(size_t size) { volatile char room[size]; room[0] = 1; return inner(size) + room[0]; }
DEEP int aligned(size_t size) { volatile char room[64] __attribute__((aligned(64))); room[0] = 1;
                                return middle(size) + room[0]; }
DEEP int outer(size_t size) { return aligned(size) + 1; }
static void setup(void) { begin(); allocate = dlsym(driver, "cuMemAlloc_v2"); }
"""


@pytest.mark.parametrize("flags", [("-O2", "-fomit-frame-pointer"), ("-O0",), ("-O3", "-fno-omit-frame-pointer")])
def test_stacks_of_compiled_code(tmp_path, flags):
    """Some frames have no frame pointer, a variable size, or another alignment."""
    source = ALLOC + "int main(void) { setup(); for (int i = 0; i < 3; i++) assert(outer(64 * i + 64) == 4); }"
    found = walked(tmp_path, source, *flags, "-rdynamic")
    assert [name for name, _ in found] == ["cuMemAlloc"] * 3
    for _, functions in found:
        assert functions[:5] == ["inner", "middle", "aligned", "outer", "main"] and len(functions) > 6
    trace = Trace(tmp_path / "t.mp")
    assert len(trace.of("call_site")) == 3 and len(trace.of("stack")) <= 3


def test_a_stack_has_a_record_once(tmp_path):
    source = ALLOC + "int main(void) { setup(); for (int i = 0; i < 100; i++) outer(64); }"
    assert len(walked(tmp_path, source, "-O2")) == 100
    trace = Trace(tmp_path / "t.mp")
    (stack,) = trace.of("stack")
    assert {record["stack"] for record in trace.of("call_site")} == {stack["id"]}
    assert stack["frames"][0]["path"] == str(tmp_path / "client")


def test_the_model_of_a_trace_has_them(tmp_path):
    source = ALLOC + 'int main(void) { setup(); outer(64); outer(64); launch(kernel("foo")); }'
    walked(tmp_path, source, "-O2", "-rdynamic")
    model = gpt.trace.open(tmp_path / "t.mp")
    calls = model.calls("bytes", "stack")
    asked = calls[model.chosen(calls, op="alloc")]
    frame = model.processes[0].sites.asker(int(asked["stack"][0]))
    assert len(asked) == 2 and frame and frame.function == "inner" and not calls["stack"][calls["bytes"] != 64].any()


def test_functions_that_are_meant(tmp_path):
    source = ALLOC + 'int main(void) { setup(); outer(64); launch(kernel("foo")); int v; cuDriverGetVersion(&v); }'
    options = ("--stacks", "kernel,cuMemA*,cuDriverGetVersion")
    assert [name for name, _ in walked(tmp_path, source, options=options)] == ["cuMemAlloc", "cuLaunchKernel"]
    options = ("--stacks", "all,-module", "--calls", "all")
    names = [name for name, _ in walked(tmp_path, source, options=options)]
    assert {"cuMemAlloc", "cuLaunchKernel", "cuDriverGetVersion"} <= {*names} and "cuModuleLoadData" not in names
    assert walked(tmp_path, source, options=("--calls", "all")) == []
    assert walked(tmp_path, source, options=("--stacks", "memory", "--calls", "kernel")) == []


PYTHON = """
import ctypes, json
cu = ctypes.CDLL("libcuda.so.1")
memory = ctypes.c_uint64()
def load(_):
    assert not cu.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64))  # load
context = ctypes.c_void_p()
assert not cu.cuInit(0) and not cu.cuCtxCreate_v2(ctypes.byref(context), 0, 0)
load(0)  # main
json.loads("{}", object_hook=load)  # json
assert not cu.cuMemsetD8_v2(memory, 0, ctypes.c_size_t(64))
"""


@pytest.mark.parametrize("python", list(find_pythons()), ids=lambda path: Path(path).name)
def test_python_lines_that_allocate(tmp_path, python):
    """CPython 3.11 to 3.14 is supported. With an older version, a message says so, and stacks are native only."""
    if not shutil.which(python):
        pytest.skip(f"no {Path(python).name}")
    (tmp_path / "app.py").write_text(PYTHON)
    version = int(subprocess.check_output([python, "-c", "import sys; print(sys.version_info[1])"]))
    done = hooked.run(tmp_path / "t.mp", python, tmp_path / "app.py", options=("--stacks", "memory,memset"))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    trace = Trace(tmp_path / "t.mp")
    frames = {record["id"]: record["frames"] for record in trace.of("stack")}
    found = [frames[record["python"]] if "python" in record else None for record in trace.of("call_site")]
    if not 11 <= version <= 14:
        assert found == [None] * 3 and "frames aren't read" in trace.of("diag")[0]["text"]
        return
    load, main, json = (
        next(number for number, line in enumerate(PYTHON.splitlines(), 1) if line.endswith(f"# {name}"))
        for name in ("load", "main", "json")
    )
    assert found[2] is None  # not of type memory
    assert [[(one["function"], one["line"]) for one in frames] for frames in found[:1]] == [
        [("load", load), ("<module>", main)]
    ]
    assert [frames["function"] for frames in found[1]] == [
        "load",
        "JSONDecoder.raw_decode",
        "JSONDecoder.decode",
        "loads",
        "<module>",
    ]
    assert found[1][-1]["line"] == json and found[1][0]["path"] == str(tmp_path / "app.py")


ODD = (
    ALLOC
    + r"""
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
static void *context;
static void *thread(void *size) { OK(cuCtxSetCurrent(context)); outer((size_t)size); return 0; }
static ucontext_t back, there;
static void fiber(void) { outer(64); }
static void handler(int number) { outer(128); }
// No table: a function that is made at run time, with a frame pointer that means nothing.
static const unsigned char code[] = {
    0x55, 0x48, 0xc7, 0xc5, 1, 2, 3, 0, 0x48, 0x83, 0xec, 0x20, 0xff, 0xd7, 0x48, 0x83, 0xc4, 0x20, 0x5d, 0xc3};
static void from_there(void) { inner(256); }
// A table that lies: the frame would be megabytes away, in missing or misaligned memory.
#define LIES(name, where) void name(void); asm(".text\n" #name ":\n.cfi_startproc\n" where "\n" \
    "sub $8, %rsp\n call from_here\n add $8, %rsp\n ret\n.cfi_endproc\n");
void from_here(void);
LIES(far, ".cfi_def_cfa %rsp, 8000000")
LIES(back_again, ".cfi_def_cfa %rsp, -64")
LIES(odd, ".cfi_def_cfa %rsp, 13")
LIES(other, ".cfi_def_cfa %r9, 8")
LIES(nowhere, ".cfi_def_cfa %rbp, 0x7fffff")
LIES(remembers, ".rept 20\n.cfi_remember_state\n.endr")
LIES(loaded, ".cfi_escape 0x0f, 3, 0x76, 0x80, 0x01")
LIES(saved, ".cfi_def_cfa_offset 16\n.cfi_escape 0x10, 6, 2, 0x76, 0x70")
void from_here(void) { inner(512); }
int main(void) {
    setup();
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) {
        pthread_attr_t small;
        pthread_attr_init(&small), pthread_attr_setstacksize(&small, 64 << 10);
        pthread_create(&threads[i], &small, thread, (void *)(size_t)(64 * i + 64));
    }
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], 0);
    // A stack of its own, between pages that are not there.
    char *stack = mmap(0, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(stack + (64 << 10), 128 << 10, PROT_READ | PROT_WRITE);
    getcontext(&there);
    there.uc_stack.ss_sp = stack + (64 << 10), there.uc_stack.ss_size = 128 << 10, there.uc_link = &back;
    makecontext(&there, fiber, 0);
    swapcontext(&back, &there);
    signal(SIGUSR1, handler);
    raise(SIGUSR1);
    void *made = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(made, code, sizeof(code));
    ((void (*)(void (*)(void)))made)(from_there);
    far(), back_again(), odd(), other(), nowhere(), remembers(), loaded(), saved();
    puts("done");
}
"""
)


def test_odd_stacks_do_no_harm(tmp_path):
    """Stacks of threads, fibers and signal handlers, of code without unwind tables, and with wrong tables."""
    found = walked(tmp_path, ODD, "-O1", "-rdynamic", "-Wl,-z,execstack")
    functions = [functions for _, functions in found]
    assert len(functions) == 8 + 3 + 8
    for one in functions[:8]:
        assert one[:5] == ["inner", "middle", "aligned", "outer", "thread"]
    assert functions[8][:5] == ["inner", "middle", "aligned", "outer", "fiber"]
    assert functions[9][:5] == ["inner", "middle", "aligned", "outer", "handler"]
    assert functions[10][:3] == ["inner", "from_there", None] and len(functions[10]) == 3
    for one in functions[11:]:
        assert one[:2] == ["inner", "from_here"], one


def test_library_replaced_by_another(tmp_path):
    """dlclose and dlopen may put another library in the same place."""
    for name in ("one", "two"):
        code = f"int {name}(int (*f)(unsigned long)) {{ return f(64) + {len(name)}; }}"
        filler = "" if name == "one" else "int filler(int (*f)(unsigned long)) { return f(1) * 3; }\n"
        hooked.compile_c(tmp_path / f"{name}.so", filler + code, *SHARED, "-O2", prelude=False)
    source = (
        ALLOC
        + r"""
int main(int argc, char **argv) {
    setup();
    for (int i = 0; i < 6; i++) {
        void *library = dlopen(argv[1 + i % 2], RTLD_NOW);
        int (*call)(int (*)(size_t)) = dlsym(library, i % 2 ? "two" : "one");
        call(inner);
        dlclose(library);
    }
}"""
    )
    found = walked(tmp_path, source, "-O2", "-rdynamic", args=(tmp_path / "one.so", tmp_path / "two.so"))
    assert [functions[:3] for _, functions in found] == [["inner", "one", "main"], ["inner", "two", "main"]] * 3


@pytest.mark.full
def test_threads_at_once_and_forks(tmp_path):
    source = (
        ALLOC
        + r"""
#include <pthread.h>
#include <sys/wait.h>
static void *context;
static void *work(void *arg) {
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < 200; i++)
        i % 2 ? outer(64) : inner(64);
    return 0;
}
int main(void) {
    setup();
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], 0, work, 0);
    pid_t child = fork(); // while they walk stacks
    if (!child) {
        assert(outer(64) == 3 + 4 && inner(64) == 3 + 1); // the driver refuses it
        for (int i = 0; i < 198; i++)
            i % 2 ? outer(64) : inner(64);
        _exit(0);
    }
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], 0);
    int status;
    assert(waitpid(child, &status, 0) == child && !status);
}"""
    )
    found = walked(tmp_path, source, "-O2", "-rdynamic")
    assert len(found) == 1600 and all("work" in functions for _, functions in found)
    trace = Trace(tmp_path / "t.mp")
    assert len(trace.of("stack")) == 2 == len({record["id"] for record in trace.of("stack")})
    child = Trace(tmp_path / trace.of("child")[0]["path"])
    assert len(child.of("call_site")) == 200 and {r["stack"] for r in child.of("call_site")} == {
        r["id"] for r in child.of("stack")
    }


def test_python(tmp_path):
    """The interpreter's own functions are recorded, not the program's."""
    code = "from tests.runtime.driving import *\nbegin()\nMemory(5)"
    done = hooked.run(
        tmp_path / "t.mp", sys.executable, "-c", code, options=("--stacks", "cuMemAlloc"), cwd=hooked.ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
    ((_, functions),) = stacks(tmp_path / "t.mp")
    assert any(name and "PyEval" in name for name in functions) and len(functions) > 8


def test_wrong_words(tmp_path):
    done = hooked.run(tmp_path / "t.mp", "true", options=("--stacks", "memroy"))
    assert done.returncode == 2 and done.stderr.startswith("gpt-hook: error: --stacks: 'memroy' is not a glob")
