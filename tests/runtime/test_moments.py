"""Driver functions called at odd moments: before main, from a signal handler, around a fork, and in a thread that's
being cancelled or has a small stack.
"""

import pytest

from tests.runtime import hooked
from tests.runtime.hooked import SHARED, Trace

# The hook knows everything about these functions that a row needs. Here they do what no real function does.
DRIVER = r"""
int cuInit(unsigned flags) { return 0; }
int cuCtxSetCacheConfig(int (*function)(void)) { return function ? function() : 0; }
int cuCtxSetLimit(int limit, unsigned long value) { return limit; }
int cuMemAlloc_v2(unsigned long *address, unsigned long size) { *address = size; return 0; }
"""


@pytest.fixture
def driver(tmp_path, monkeypatch):
    (tmp_path / "driver").mkdir()
    hooked.compile_c(tmp_path / "driver/libcuda.so.1", DRIVER, *SHARED, "-Wl,-soname,libcuda.so.1", prelude=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "driver"))


LINKED = r"""
extern int cuInit(unsigned), cuDriverGetVersion(int *);
__attribute__((constructor)) static void before(void) { int version; cuInit(0); cuDriverGetVersion(&version); }
int later(void) { int version; return cuDriverGetVersion(&version); }
"""

LOADED = r"""
__attribute__((constructor)) static void before(void) {
    begin();
    void *module, *function;
    int version;
    OK(cuModuleLoadData(&module, PTX));
    OK(cuModuleGetFunction(&function, module, "foo"));
    cuDriverGetVersion(&version);
}
int later(void) { int version; return cuDriverGetVersion(&version); }
"""


@pytest.mark.parametrize("how", ["linked", "loaded"])
def test_constructor_runs_before_the_hook(tmp_path, how):
    linked = how == "linked"
    flags = [hooked.ROOT / "gpt/_runtime/sim/libcuda.so.1"] if linked else []
    library = hooked.compile_c(
        tmp_path / "libearly.so", LINKED if linked else LOADED, *SHARED, *flags, prelude=not linked
    )
    source = "int later(void);\nint main(void) { return later(); }"
    links = ("-Wl,--allow-shlib-undefined", f"-Wl,-rpath,{tmp_path}", library)
    trace = hooked.traced(tmp_path, source, *links)
    assert (trace.names["cuInit"], trace.names["cuDriverGetVersion"]) == (1, 2)
    assert trace.functions == ([] if linked else ["foo"])


@pytest.mark.full
def test_signal_handler_makes_calls(tmp_path, driver):
    source = r"""
    #include <signal.h>
    #include <time.h>
    static int (*plain)(void *), (*limit)(int, unsigned long), (*allocate)(unsigned long *, unsigned long);
    static volatile int handled;
    static void handle(int number) {
        unsigned long address;
        for (unsigned i = 0; i < 10; i++)
            assert(limit(7, 0) == 7 && !allocate(&address, i + 1) && address == i + 1);
        handled++;
    }
    int main(void) {
        driver = dlopen("libcuda.so.1", RTLD_NOW);
        plain = dlsym(driver, "cuCtxSetCacheConfig");
        limit = dlsym(driver, "cuCtxSetLimit");
        allocate = dlsym(driver, "cuMemAlloc_v2");
        signal(SIGALRM, handle);
        timer_t timer;
        timer_create(CLOCK_MONOTONIC, NULL, &timer);
        for (int i = 0; i < 400000; i++) {
            if (i % 400 == 0) // at another moment each time
                timer_settime(timer, 0, &(struct itimerspec){{0, 0}, {0, 1 + i / 400 * 7}}, NULL);
            unsigned long address;
            assert(!plain(NULL) && !allocate(&address, 3) && address == 3);
        }
        assert(handled > 100);
    }
    """
    trace = hooked.traced(tmp_path, source, device="real")
    assert trace.names["cuCtxSetCacheConfig"] == 400000
    assert sum(call["name"] == "cuMemAlloc" and call["bytes"] == 3 for call in trace.calls) >= 400000
    assert trace.names["cuCtxSetLimit"] > 500
    assert {(c["result"], c["duration"] > 0) for c in trace.calls if c["name"] == "cuCtxSetLimit"} == {(7, True)}


def test_cancelled_thread_finishes_its_call(tmp_path):
    source = r"""
    #include <pthread.h>
    static void *work(void *unused) {
        pthread_cancel(pthread_self());
        int version;
        cuDriverGetVersion = dlsym(driver, "cuDriverGetVersion"); // begins the trace
        for (int i = 0; i < 50000; i++)
            cuDriverGetVersion(&version);
        dlclose(dlopen("libm.so.6", RTLD_NOW));
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
        return driver;
    }
    int main(void) {
        alarm(60);
        driver = dlopen("libcuda.so.1", RTLD_NOW);
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, work, NULL);
        pthread_join(thread, &result);
        begin();
        return result != driver;
    }
    """
    assert hooked.traced(tmp_path, source, "-pthread").names["cuDriverGetVersion"] == 50000


def test_a_thread_with_a_small_stack(tmp_path):
    source = r"""
    #include <limits.h>
    #include <pthread.h>
    static void *work(void *unused) {
        int version;
        cuDriverGetVersion(&version);
        dlclose(dlopen("libm.so.6", RTLD_NOW)); // its library is recorded before it goes
        return NULL;
    }
    int main(void) {
        begin();
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN);
        pthread_t thread;
        pthread_create(&thread, &attributes, work, NULL);
        return pthread_join(thread, NULL);
    }
    """
    trace = hooked.traced(tmp_path, source, "-pthread")
    assert any("libm.so" in library["path"] for library in trace.of("library"))


def test_fork_while_another_thread_walks_the_libraries(tmp_path):
    """A lock that the walking thread holds would stay locked in the child, so the hook must not take it."""
    source = r"""
    #include <link.h>
    #include <pthread.h>
    #include <sys/wait.h>
    static volatile int inside, done;
    static int stay(struct dl_phdr_info *info, size_t size, void *unused) {
        for (inside = 1; !done;)
            usleep(1000);
        return 0;
    }
    static void *walk(void *unused) { dl_iterate_phdr(stay, NULL); return NULL; }
    int main(void) {
        begin_trace();
        pthread_t thread;
        pthread_create(&thread, NULL, walk, NULL);
        while (!inside)
            usleep(1000);
        pid_t child = fork();
        if (!child) {
            alarm(20);
            begin();
            void *module, *function;
            OK(cuModuleLoadData(&module, PTX));
            OK(cuModuleGetFunction(&function, module, "bar"));
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        done = 1;
        return status != 0;
    }
    """
    parent = hooked.traced(tmp_path, source, "-pthread")
    (child,) = (Trace(path) for path in tmp_path.glob("t.mp.*"))
    assert child.functions == ["bar"] and child.kinds["end"]
    known = {(r["path"], r["build_id"], r["size"]) for r in parent.of("library")}
    assert known and known == {(r["path"], r["build_id"], r["size"]) for r in child.of("library")}


def test_fork_in_a_call_leaves_the_call_to_the_parent(tmp_path, driver):
    source = r"""
    #include <sys/wait.h>
    #include <time.h>
    static int ends[2];
    static int fork_here(void) { int child = fork(); if (child) waitpid(child, NULL, 0); return child ? 11 : 22; }
    static int fork_slowly(void) { // the child returns last
        char go;
        int child = fork();
        if (!child)
            assert(read(ends[0], &go, 1) == 1);
        return child ? 11 : 22;
    }
    static double now(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return t.tv_sec + t.tv_nsec / 1e9;
    }
    int main(void) {
        assert(!pipe(ends));
        driver = dlopen("libcuda.so.1", RTLD_NOW);
        int (*plain)(int (*)(void)) = dlsym(driver, "cuCtxSetCacheConfig");
        if (plain(fork_here) == 22)
            return 0;
        double before = now();
        if (plain(fork_slowly) == 22)
            return 0;
        double spent = now() - before;
        usleep(200000);
        assert(write(ends[1], "", 1) == 1 && wait(NULL) > 0);
        FILE *file = fopen("SECONDS", "w");
        fprintf(file, "%.9f", spent);
        fclose(file);
    }
    """.replace("SECONDS", str(tmp_path / "seconds"))
    trace = hooked.traced(tmp_path, source, device="real")
    assert [c["result"] for c in trace.calls] == [11, 11]
    spent = float((tmp_path / "seconds").read_text())
    assert trace.calls[1]["duration"] / trace.of("header")[0].get("tsc_hz", 10**9) < spent + 0.1


def test_a_name_at_the_end_of_a_page(tmp_path):
    source = r"""
    #include <sys/mman.h>
    int main(void) {
        begin();
        char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(page + 4096, 4096);
        return dlsym(driver, page + 4095) || dlsym(driver, strcpy(page + 4094, "c")) != NULL;
    }
    """
    hooked.traced(tmp_path, source)
