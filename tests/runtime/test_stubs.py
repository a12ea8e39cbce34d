"""Stubs: calls to functions unknown to the hook, and unwinding through a stub."""

import shutil
import subprocess

import pytest

from tests.runtime import hooked
from tests.runtime.hooked import SHARED, Trace
from tests.tiers import first

# A driver with functions that the hook has never heard of.
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
// The hook knows this name, and its calls go through the short path of the stub, for a SLOT_LEAN.
int cuCtxSetCacheConfig(void (*function)(void *), void *data) { function(data); return 0; }
"""
CALLERS = pytest.mark.parametrize("caller", first("cuOddCall", "cuCtxSetCacheConfig"))

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
    """Return the folder of the odd driver, in LD_LIBRARY_PATH."""
    folder = tmp_path / "odd"
    folder.mkdir()
    hooked.compile_c(folder / "libcuda.so.1", ODD_DRIVER, *SHARED, "-Wl,-soname,libcuda.so.1", prelude=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    return folder


def test_unknown_functions(tmp_path, odd):
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
    # The calls that were left by a jump are there, marked as not having returned.
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
    # Exceptions must pass through the driver, so it's compiled with -fexceptions.
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


@pytest.mark.full
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
