"""The three ways to the driver, and what must stay as it is without the hook."""

import shutil
import subprocess

import pytest

from tests.runtime import hooked
from tests.runtime.hooked import Trace

SHARED = ("-shared", "-fPIC")

# A driver of functions that the hook has never heard of.
ODD_DRIVER = r"""
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
struct big { char bytes[64]; };
int cuInit(unsigned flags) { return 0; }
int cuOddManyArguments(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k, long l,
                       long m, long n, long o, long p, long q, long r, long s, long t) {
    return a == 1 && b == 2 && c == 3 && d == 4 && e == 5 && f == 6 && g == 7 && h == 8 && i == 9 && j == 10 &&
           k == 11 && l == 12 && m == 13 && n == 14 && o == 15 && p == 16 && q == 17 && r == 18 && s == 19 && t == 20;
}
double cuOddDoubles(double a, int b, double c, double d, double e, double f, double g, double h, double i, double j,
                    float k, struct big l, long m, long n, long o, long p, long q, long r) {
    return a + 10 * b + c + d + e + f + g + h + i + 1000 * j + k + l.bytes[63] + m + n + o + p + q + 1e6 * r;
}
struct two { double a; long b; };
struct two cuOddTwo(double a, long b) { return (struct two){2 * a, 3 * b}; }
struct big cuOddBig(char c) { struct big b; memset(&b, c, 64); return b; }
int cuOddVariadic(const char *format, ...) {
    char text[100];
    va_list args;
    va_start(args, format);
    vsnprintf(text, 100, format, args);
    va_end(args);
    return strcmp(text, "1 2.5 x 4 5 6 7 8.5 9");
}
int cuOddErrno(int value) { errno = value; return 0; }
int cuOddCall(void (*function)(void *), void *data) { function(data); return 0; }
// Of this name all is known that a row needs: its calls have no frame of ours.
int cuCtxSetCacheConfig(void (*function)(void *), void *data) { function(data); return 0; }
"""
CALLERS = pytest.mark.parametrize("caller", ["cuOddCall", "cuCtxSetCacheConfig"])

ODD_CLIENT = r"""
struct big { char bytes[64]; };
struct two { double a; long b; };
static void *get(const char *name) { void *f = dlsym(driver, name); assert(f); return f; }
int main(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    assert(driver && !((int (*)(int))get("cuInit"))(0));
    int (*many)(long, long, long, long, long, long, long, long, long, long, long, long, long, long, long, long, long,
                long, long, long) = get("cuOddManyArguments");
    assert(many(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20));
    double (*doubles)(double, int, double, double, double, double, double, double, double, double, float, struct big,
                      long, long, long, long, long, long) = get("cuOddDoubles");
    struct big big = {{[63] = 5}};
    assert(doubles(.5, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, big, 1, 2, 3, 4, 5, 6) ==
           .5 + 10 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9000 + 10 + 5 + 1 + 2 + 3 + 4 + 5 + 6e6);
    struct two two = ((struct two (*)(double, long))get("cuOddTwo"))(1.5, 5);
    assert(two.a == 3 && two.b == 15);
    big = ((struct big (*)(char))get("cuOddBig"))('x');
    for (int i = 0; i < 64; i++) assert(big.bytes[i] == 'x');
    int (*variadic)(const char *, ...) = get("cuOddVariadic");
    assert(!variadic("%d %.1f %s %d %d %d %d %.1f %d", 1, 2.5, "x", 4, 5, 6, 7, 8.5, 9));
    int (*with_errno)(int) = get("cuOddErrno");
    errno = 17;
    with_errno(42);
    assert(errno == 42);
    return 0;
}
"""


@pytest.fixture
def odd(tmp_path, monkeypatch):
    """The folder of the odd driver, in LD_LIBRARY_PATH."""
    folder = tmp_path / "odd"
    folder.mkdir()
    hooked.compile_c(folder / "libcuda.so.1", ODD_DRIVER, *SHARED, "-Wl,-soname,libcuda.so.1", prelude=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    return folder


def test_functions_that_nobody_has_heard_of(tmp_path, odd):
    trace = hooked.traced(tmp_path, ODD_CLIENT, device="real")
    assert trace.names == dict.fromkeys(
        ["cuInit", "cuOddManyArguments", "cuOddDoubles", "cuOddTwo", "cuOddBig", "cuOddVariadic", "cuOddErrno"], 1
    )


def test_quiet_functions_work_too(tmp_path, odd):
    trace = hooked.traced(tmp_path, ODD_CLIENT, device="real", options=["--calls", "none"])
    assert not trace.calls and trace.records[-1]["kind"] == "end"


def test_call_from_the_top_of_a_stack(tmp_path, odd):
    source = r"""
    #include <sys/mman.h>
    #include <ucontext.h>
    static ucontext_t back, there;
    static int (*with_errno)(int);
    static void call(void) { for (int i = 0; i < 10; i++) with_errno(i); }
    int main(void) {
        driver = dlopen("libcuda.so.1", RTLD_NOW);
        with_errno = dlsym(driver, "cuOddErrno");
        char *stack = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(stack + (1 << 19), 1 << 19, PROT_NONE); // what lies above cannot be read
        getcontext(&there);
        there.uc_stack.ss_sp = stack;
        there.uc_stack.ss_size = 1 << 19;
        there.uc_link = &back;
        makecontext(&there, call, 0);
        swapcontext(&back, &there);
    }
    """
    assert hooked.traced(tmp_path, source, device="real").names["cuOddErrno"] == 10


@CALLERS
def test_longjmp_out_of_a_call(tmp_path, odd, caller):
    source = r"""
    #include <setjmp.h>
    static jmp_buf away;
    static void leave(void *data) { longjmp(away, 1); }
    int main(void) {
        driver = dlopen("libcuda.so.1", RTLD_NOW);
        int (*call)(void (*)(void *), void *) = dlsym(driver, "CALLER");
        int (*with_errno)(int) = dlsym(driver, "cuOddErrno");
        for (volatile int i = 0; i < 20000; i++)
            if (!setjmp(away))
                call(leave, 0);
            else
                with_errno(i);
    }
    """.replace("CALLER", caller)
    trace = hooked.traced(tmp_path, source, device="real")
    assert trace.names == {caller: 20000, "cuOddErrno": 20000}
    # The calls that were left are there, and say that they did not return.
    assert {(c["name"], bool(c["duration"])) for c in trace.calls} == {(caller, False), ("cuOddErrno", True)}


@pytest.mark.skipif(not shutil.which("g++"), reason="no g++")
@CALLERS
def test_exception_through_a_call(tmp_path, odd, caller):
    source = r"""
    #include <dlfcn.h>
    #include <stdexcept>
    static void fail(void *) { throw std::runtime_error("x"); }
    int main() {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW);
        auto call = (int (*)(void (*)(void *), void *))dlsym(driver, "CALLER");
        int caught = 0;
        for (int i = 0; i < 1000; i++)
            try { call(fail, nullptr); } catch (const std::runtime_error &) { caught++; }
        return caught != 1000;
    }
    """.replace("CALLER", caller)
    # The driver must be able to unwind: C, built so.
    hooked.compile_c(
        odd / "libcuda.so.1", ODD_DRIVER, *SHARED, "-fexceptions", "-Wl,-soname,libcuda.so.1", prelude=False
    )
    (tmp_path / "client.cc").write_text(source)
    subprocess.run(["g++", "-O1", tmp_path / "client.cc", "-o", tmp_path / "client"], check=True)
    done = hooked.run(tmp_path / "t.mp", tmp_path / "client", device="real")
    assert (done.returncode, done.stderr) == (0, "")
    assert Trace(tmp_path / "t.mp").names[caller] == 1000


@CALLERS
def test_backtrace_goes_through_a_stub(tmp_path, odd, caller):
    source = r"""
    #include <unwind.h>
    static int seen;
    static _Unwind_Reason_Code step(struct _Unwind_Context *c, void *data) {
        void *function = _Unwind_FindEnclosingFunction((void *)_Unwind_GetIP(c));
        extern int main();
        seen |= function == (void *)main;
        return _URC_NO_REASON;
    }
    static void walk(void *data) { _Unwind_Backtrace(step, 0); }
    int main(void) {
        driver = dlopen("libcuda.so.1", RTLD_NOW);
        int (*call)(void (*)(void *), void *) = dlsym(driver, "CALLER");
        call(walk, 0);
        return !seen;
    }
    """.replace("CALLER", caller)
    hooked.compile_c(
        odd / "libcuda.so.1", ODD_DRIVER, *SHARED, "-fexceptions", "-Wl,-soname,libcuda.so.1", prelude=False
    )
    assert hooked.traced(tmp_path, source, "-lgcc_s", device="real").names[caller] == 1


@pytest.mark.skipif(not shutil.which("gdb"), reason="no gdb")
@CALLERS
def test_debugger_sees_the_caller(tmp_path, odd, caller):
    source = r"""
    static void here(void *data) { raise(5); }
    int main(void) {
        driver = dlopen("libcuda.so.1", RTLD_NOW);
        int (*call)(void (*)(void *), void *) = dlsym(driver, "CALLER");
        call(here, 0);
    }
    """.replace("CALLER", caller)
    program = hooked.compile_c(tmp_path / "client", "#include <signal.h>\n" + source)
    line = [
        "gdb",
        "-batch",
        "-nx",
        "-ex",
        "set startup-with-shell off",
        "-ex",
        f"set environment LD_PRELOAD {hooked.runtime()}/libgpthook.so",
        "-ex",
        f"set environment GPT_HOOK_OUTPUT {tmp_path}/t.mp",
        "-ex",
        "run",
        "-ex",
        "backtrace",
        program,
    ]
    text = subprocess.run(line, capture_output=True, text=True, timeout=100, check=False).stdout
    if "SIGTRAP" not in text:
        pytest.skip("gdb may not trace here")
    frames = text[text.index("SIGTRAP") :]
    assert frames.index(caller) < frames.index("main ()") and "Backtrace stopped" not in frames, text


# The ways in


def test_a_program_that_is_linked_to_the_driver(tmp_path):
    source = """
    int cuInit(unsigned);
    int cuDeviceGetCount(int *);
    int main(void) { int n; return cuInit(0) || cuDeviceGetCount(&n) || n != 1; }
    """
    program = tmp_path / "client"
    hooked.compile_c(program, source, hooked.runtime() / "sim" / "libcuda.so.1", prelude=False)
    done = hooked.run(tmp_path / "t.mp", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert Trace(tmp_path / "t.mp").names == {"cuInit": 1, "cuDeviceGetCount": 1}


def test_a_library_that_is_linked_to_the_driver_and_loaded_for_itself(tmp_path):
    library = tmp_path / "libextension.so"
    source = "int cuInit(unsigned);\nint start(void) { return cuInit(0); }"
    hooked.compile_c(library, source, *SHARED, hooked.runtime() / "sim" / "libcuda.so.1", prelude=False)
    client = f"""
    int main(void) {{
        void *handle = dlopen("{library}", RTLD_NOW | RTLD_LOCAL);
        if (!handle) puts(dlerror());
        return ((int (*)(void))dlsym(handle, "start"))();
    }}
    """
    assert hooked.traced(tmp_path, client).names == {"cuInit": 1}


def test_get_proc_address(tmp_path):
    source = r"""
    int main(void) {
        begin();
        int (*get)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
        int (*again)(const char *, void **, int, uint64_t, int *), status;
        int (*create)(void **, void *, unsigned, int), (*create2)(void **, unsigned, int), (*elapsed)(void);
        int (*version)(int *), (*thread_version)(int *), number;
        void *context, *none = &context;
        OK(get("cuGetProcAddress", (void **)&again, 13000, 0, &status));
        OK(again("cuCtxCreate", (void **)&create, 13000, 0, &status));
        OK(again("cuCtxCreate", (void **)&create2, 11000, 0, &status));
        assert(create != (void *)create2);
        OK(create(&context, 0, 0, 0));
        OK(create2(&context, 0, 0));
        OK(again("cuDriverGetVersion", (void **)&version, 13000, 0, &status));
        OK(again("cuDriverGetVersion", (void **)&thread_version, 13000, 2, &status));
        OK(version(&number));
        OK(again("cuOfTomorrow", &none, 13000, 0, &status));
        assert(!none && status == 1);
        return 0;
    }
    """
    trace = hooked.traced(tmp_path, source)
    assert trace.names["cuGetProcAddress"] == 6
    made = [call["symbol"] for call in trace.calls if call["name"] == "cuCtxCreate"]
    assert made == ["cuCtxCreate_v4", "cuCtxCreate_v2"]
    assert trace.names["cuDriverGetVersion"] == 1


def test_export_tables_are_left_alone(tmp_path):
    source = r"""
    int main(void) {
        begin();
        int (*get)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2");
        void *one = dlsym(driver, "cuGetExportTable"), *two;
        OK(get("cuGetExportTable", &two, 13000, 0, 0));
        Dl_info info;
        assert(one == two && dladdr(one, &info) && strstr(info.dli_fname, "libcuda.so.1"));
    }
    """
    hooked.traced(tmp_path, source)


# Another thread holds a lock of the dynamic linker and waits for calls of the driver. The library's constructor runs
# under one, the callback of dl_iterate_phdr under another one.
HOLDER = r"""
#include <sched.h>
extern _Atomic int held, done;
#define HOLD() do { held = 1; while (!done) sched_yield(); } while (0)
__attribute__((constructor)) static void hold(void) { HOLD(); }
"""
UNDER_LOCKS = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>
#define PTX ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry foo(){ret;}\n"
_Atomic int held, done;
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuModuleLoadData(void **, const void *), cuModuleGetFunction(void **, void *, const char *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void *,
                   void *);
static int hold(struct dl_phdr_info *info, size_t size, void *data) {
    held = 1;
    while (!done) sched_yield();
    return 1;
}
static void *take(void *library) {
    if (*(char *)library) dlopen(library, RTLD_NOW);
    else dl_iterate_phdr(hold, 0);
    return 0;
}
int main(int argc, char **argv) {
    pthread_t thread;
    pthread_create(&thread, 0, take, argv[1]);
    while (!held) sched_yield();
    void *context, *module, *function;
    int bad = cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
              cuModuleLoadData(&module, PTX) || cuModuleGetFunction(&function, module, "foo") ||
              cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
    if (argc > 2) _exit(bad);
    done = 1;
    pthread_join(thread, 0);
    return bad;
}
"""


@pytest.mark.parametrize("lock", ["constructor", "dl_iterate_phdr"])
@pytest.mark.parametrize("end", [(), ("_exit",)])
def test_calls_while_another_thread_holds_a_lock_of_the_linker(tmp_path, lock, end):
    library = hooked.compile_c(tmp_path / "libholder.so", HOLDER, *SHARED, prelude=False)
    driver = hooked.runtime() / "sim" / "libcuda.so.1"
    program = hooked.compile_c(tmp_path / "client", UNDER_LOCKS, "-rdynamic", driver, prelude=False)
    args = (library if lock == "constructor" else "", *end)
    done = hooked.run(tmp_path / "t.mp", program, *args)
    assert (done.returncode, done.stderr) == (0, "")
    trace = Trace(tmp_path / "t.mp")
    assert trace.names["cuLaunchKernel"] == 1 and trace.records[-1]["kind"] == "end"
    assert any(r["path"].endswith("libcuda.so.1") for r in trace.of("library"))


# A library that shares a GPU among programs: it has a dlsym of its own, which gives out functions of its own.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void *(*real_dlsym)(void *, const char *);
static int (*init)(unsigned), (*version)(int *), (*find)(const char *, void **, int, unsigned long, void *), calls[2];
static int shim_init(unsigned flags) { calls[0]++; return init(flags); }
static int shim_version(int *number) { calls[1]++; return version(number); }
static void *replace(const char *name, void *real) {
    if (!strcmp(name, "cuInit")) { init = real; return shim_init; }
    if (!strcmp(name, "cuDriverGetVersion")) { version = real; return shim_version; }
    return 0;
}
static int shim_find(const char *name, void **function, int wanted, unsigned long flags, void *status) {
    int result = find(name, function, wanted, flags, status);
    void *ours = replace(name, *function);
    if (ours) *function = ours;
    return result;
}
__attribute__((visibility("default"))) void *dlsym(void *handle, const char *name) {
    if (!real_dlsym) real_dlsym = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    if (name[0] != 'c' || name[1] != 'u' || handle == RTLD_NEXT) return real_dlsym(handle, name);
    void *real = real_dlsym(handle, name), *ours = real ? replace(name, real) : 0;
    if (real && !strcmp(name, "cuGetProcAddress_v2")) { find = real; return shim_find; }
    return ours ? ours : real;
}
__attribute__((destructor)) static void tell(void) { printf("shim: %d %d\n", calls[0], calls[1]); }
"""
SHIMMED = r"""
int main(void) {
    begin();
    int (*find)(const char *, void **, int, uint64_t, int *) = dlsym(driver, "cuGetProcAddress_v2"), number, status;
    for (int i = 0; i < 3; i++) OK(cuDriverGetVersion(&number));
    OK(find("cuDriverGetVersion", (void **)&cuDriverGetVersion, 13000, 0, &status));
    for (int i = 0; i < 4; i++) OK(cuDriverGetVersion(&number));
    launch(kernel("foo"));
    dlclose(driver);
}
"""


@pytest.mark.parametrize("order", ["theirs after ours", "theirs before ours"])
def test_another_library_with_its_own_dlsym(tmp_path, monkeypatch, order):
    shim = hooked.compile_c(tmp_path / "libshim.so", SHIM, *SHARED, "-fvisibility=hidden", prelude=False)
    program = hooked.compile_c(tmp_path / "client", SHIMMED)
    line = [program]
    if order == "theirs after ours":
        monkeypatch.setenv("LD_PRELOAD", str(shim))
    else:
        line = ["sh", "-c", f'LD_PRELOAD="{shim}:$LD_PRELOAD" exec "{program}"']
    done = hooked.run(tmp_path / "t.mp", *line)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "shim: 1 7"
    names = Trace(tmp_path / "t.mp").names
    assert (names["cuInit"], names["cuDriverGetVersion"], names["cuLaunchKernel"]) == (1, 7, 1)


# A library that stands between without a dlsym: it defines a function, and asks the driver by its handle.
def test_an_interposer_that_asks_the_driver(tmp_path, monkeypatch):
    source = """
    #include <dlfcn.h>
    #include <stdio.h>
    static int calls;
    int cuInit(unsigned flags) {
        calls++;
        return ((int (*)(unsigned))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuInit"))(flags);
    }
    __attribute__((destructor)) static void tell(void) { printf("%d", calls); }
    """
    library = hooked.compile_c(tmp_path / "libbetween.so", source, *SHARED, prelude=False)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    client = "int cuInit(unsigned);\nint main(void) { return cuInit(0) || cuInit(0); }"
    driver = hooked.runtime() / "sim" / "libcuda.so.1"
    program = hooked.compile_c(tmp_path / "client", client, driver, prelude=False)
    done = hooked.run(tmp_path / "t.mp", program)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2", "")
    assert Trace(tmp_path / "t.mp").names == {"cuInit": 2}


# What stays as it is


def test_without_a_driver_there_is_none(tmp_path):
    source = r"""
    int main(void) {
        assert(!dlopen("libcuda.so.1", RTLD_NOW));
        assert(!dlsym(RTLD_DEFAULT, "cuInit") && dlerror());
        assert(!dlsym(dlopen(0, RTLD_NOW), "cuInit") && dlerror());
        assert(!dlsym(RTLD_NEXT, "cuOfTomorrow") && dlerror());
        assert(!dlsym(RTLD_NEXT, "cuInit") && dlerror());
        assert(dlsym(RTLD_DEFAULT, "malloc") && !dlerror());
    }
    """
    program = hooked.compile_c(tmp_path / "client", source)
    done = hooked.run(tmp_path / "t.mp", program, device="real")
    if "libcuda" in done.stderr:
        pytest.skip("there is a driver here")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_library_where_the_driver_was(tmp_path, monkeypatch):
    both = "int cuInit(unsigned flags) { return flags != 0; } int cuOther(void) { return 3; }"
    for name in ("libcuda.so.1", "libother.so"):
        hooked.compile_c(tmp_path / name, both, *SHARED, f"-Wl,-soname,{name}", prelude=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    source = r"""
    int main(void) {
        int (*init)(unsigned), (*other)(void);
        for (int i = 0; i < 3; i++) {
            driver = dlopen("libcuda.so.1", RTLD_NOW);
            assert((init = dlsym(driver, "cuInit")) && !init(0) && !dlclose(driver));
            driver = dlopen("libother.so", RTLD_NOW);
            assert((other = dlsym(driver, "cuOther")) && other() == 3 && !dlclose(driver));
        }
    }
    """
    assert hooked.traced(tmp_path, source, device="real").names == {"cuInit": 3}


def test_rtld_next_and_default_mean_what_they_mean_to_the_caller(tmp_path):
    # Two libraries of one scope, each with `which`, and one in a scope of its own. The caller is the function that
    # calls last, so no function here may end in a jump.
    which = 'const char *which(void) {{ return "{}"; }}\n'
    ask = '#include <dlfcn.h>\nconst char *ask(void) { return ((const char *(*)(void))dlsym(RTLD_NEXT, "which"))(); }\n'
    default = """
    #include <dlfcn.h>
    void *ask_default(const char *name) { void *volatile found = dlsym(RTLD_DEFAULT, name); return found; }
    """
    flags = (*SHARED, "-D_GNU_SOURCE")
    hooked.compile_c(tmp_path / "libsecond.so", which.format("second"), *flags, prelude=False)
    hooked.compile_c(tmp_path / "libfirst.so", which.format("first") + ask, *flags, "-L", tmp_path, prelude=False)
    hooked.compile_c(
        tmp_path / "liblocal.so",
        default + "int only_here;",
        *flags,
        "-Wl,--no-as-needed",
        hooked.runtime() / "sim" / "libcuda.so.1",
        prelude=False,
    )
    source = f"""
    const char *which(void), *ask(void);
    int main(void) {{
        assert(!strcmp(which(), "first") && !strcmp(ask(), "second"));
        void *(*find)(const char *) = dlsym(dlopen("{tmp_path}/liblocal.so", RTLD_NOW), "ask_default");
        assert(find("only_here") && !dlsym(RTLD_DEFAULT, "only_here"));
        int (*init)(unsigned) = find("cuInit"); // in that library's scope only
        assert(init && !dlsym(RTLD_DEFAULT, "cuInit"));
        return init(0);
    }}
    """
    links = ("-Wl,--no-as-needed", "-L", tmp_path, "-lfirst", "-lsecond", f"-Wl,-rpath,{tmp_path}")
    assert hooked.traced(tmp_path, source, *links).names == {"cuInit": 1}


def test_runpath_of_the_caller_counts(tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    hooked.compile_c(inner / "libdeep.so", "int deep = 7;", *SHARED, prelude=False)
    opener = (
        '#include <dlfcn.h>\nvoid *open_deep(void) { void *volatile p = dlopen("libdeep.so", RTLD_NOW); return p; }'
    )
    hooked.compile_c(
        tmp_path / "libopener.so", opener, *SHARED, "-Wl,--enable-new-dtags,-rpath,$ORIGIN/inner", prelude=False
    )
    source = """
    void *open_deep(void);
    int main(void) {
        assert(!dlopen("libdeep.so", RTLD_NOW));
        void *handle = open_deep();
        assert(handle && *(int *)dlsym(handle, "deep") == 7);
        return dlclose(handle);
    }
    """
    links = ("-L", tmp_path, "-lopener", f"-Wl,-rpath,{tmp_path}")
    program = hooked.compile_c(tmp_path / "client", source, *links)
    done = hooked.run(tmp_path / "t.mp", program)
    assert (done.returncode, done.stderr) == (0, "")


def test_symbols_need_no_newer_libc():
    for file in ("gpt-hook", "libgpthook.so", "sim/libcuda.so.1"):
        text = subprocess.run(["readelf", "--dyn-syms", "-W", hooked.runtime() / file], capture_output=True, text=True)
        versions = {word.split("GLIBC_")[1].strip("()") for word in text.stdout.split() if "@GLIBC_" in word}
        assert versions and max(tuple(map(int, v.split("."))) for v in versions) <= (2, 34), file


def test_the_library_defines_nothing_but_what_it_stands_in_for():
    text = subprocess.run(
        ["nm", "-D", "--defined-only", hooked.runtime() / "libgpthook.so"], capture_output=True, text=True
    )
    names = {line.split()[2] for line in text.stdout.splitlines()} - {"GLIBC_2.2.5", "GLIBC_2.34"}
    stands_in = {
        "dlsym@GLIBC_2.2.5",
        "dlsym@@GLIBC_2.34",
        "dlopen@GLIBC_2.2.5",
        "dlopen@@GLIBC_2.34",
        "dlclose",
        "vfork",
        "_exit",
        "_Exit",
        "quick_exit",
        "ioctl",
        "sigaction",
        "signal",
    }
    assert {name for name in names if not name.startswith("cu")} == stands_in | {"InitializeInjectionNvtx2"}


UNREADABLE = r"""
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
int main(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ERROR), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    assert(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &(struct sock_fprog){4, code}, 0, 0));
    begin();
    char *image = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *module, *function;
    strcpy(image, PTX);
    mprotect(image + 4096, 4096, PROT_NONE);
    OK(cuModuleLoadData(&module, image));
    OK(cuModuleGetFunction(&function, module, "foo"));
    launch(function);
}
"""


@pytest.mark.parametrize("error", ["EPERM", "ENOSYS"])
def test_where_process_vm_readv_is_not_permitted(tmp_path, error):
    trace = hooked.traced(tmp_path, UNREADABLE, f"-DERROR={error}")
    assert trace.launches == {"foo": 1} and trace.names["cuInit"] == 1
    assert any(library["path"].endswith("libcuda.so.1") for library in trace.of("library"))
    (module,) = trace.of("module")
    assert len(module["sha256"]) == 64
