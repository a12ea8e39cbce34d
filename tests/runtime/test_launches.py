"""Counts of launches are exact, however a kernel is launched, and whether or not calls are recorded."""

from collections import Counter

import pytest

from tests.runtime import hooked

THREADS = r"""
#include <pthread.h>
#define KERNELS 700
static void *functions[KERNELS];
static void *work(void *first) {
    void *context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    for (int round = 0; round < 20; round++)
        for (long i = (long)first; i < KERNELS; i++)
            launch(functions[i]);
    return NULL;
}
int main(void) {
    begin();
    static char text[KERNELS * 64];
    int at = sprintf(text, ".version 7.0\n.target sm_70\n.address_size 64\n");
    for (int i = 0; i < KERNELS; i++)
        at += sprintf(text + at, ".visible .entry k%d(){ret;}\n", i);
    void *module;
    OK(cuModuleLoadData(&module, text));
    for (int i = 0; i < KERNELS; i++) {
        char name[16];
        sprintf(name, "k%d", i);
        OK(cuModuleGetFunction(&functions[i], module, name));
    }
    pthread_t threads[8];
    for (long i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, work, (void *)(i * 100));
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    work((void *)699); // on a thread that came before all of them
}
"""


@pytest.mark.parametrize("calls", ["all", "none", "memory"])
def test_threads_launch_the_same_kernels(tmp_path, calls):
    program = hooked.compile_c(tmp_path / "client", THREADS)
    done = hooked.run(tmp_path / "t.mp", program, options=("--calls", calls))
    assert done.returncode == 0, done.stderr
    trace = hooked.Trace(tmp_path / "t.mp")
    expected = {f"k{i}": 20 * min(8, i // 100 + 1) + (20 if i == 699 else 0) for i in range(700)}
    assert trace.launches == expected
    assert len([call for call in trace.calls if call["type"] == "kernel"]) == (
        sum(expected.values()) if calls == "all" else 0
    )
    header, end = trace.of("header")[0], trace.of("end")[0]
    assert end["records"] == len(trace.records) - 2
    firsts = [row["first"] for record in trace.of("launches") for row in hooked.rows(record)]
    assert all(first >= header["tsc"] for first in firsts) or "tsc" not in header


REUSED = r"""
int main(void) {
    begin();
    int (*unload)(void *) = dlsym(driver, "cuModuleUnload");
    for (int i = 0; i < 300; i++) {
        void *module, *function;
        OK(cuModuleLoadData(&module, PTX));
        OK(cuModuleGetFunction(&function, module, i % 3 ? "foo" : "bar"));
        launch(function), launch(function);
        OK(unload(module));
    }
}
"""


@pytest.mark.parametrize("calls", ["all", "none"])
def test_handles_that_are_used_again(tmp_path, calls):
    program = hooked.compile_c(tmp_path / "client", REUSED)
    done = hooked.run(tmp_path / "t.mp", program, options=("--calls", calls))
    assert done.returncode == 0, done.stderr
    assert hooked.Trace(tmp_path / "t.mp").launches == {"foo": 400, "bar": 200}


ENUMERATED = r"""
int main(void) {
    begin();
    int (*enumerate)(void **, unsigned, void *) = dlsym(driver, "cuModuleEnumerateFunctions");
    void *module, *functions[2];
    OK(cuModuleLoadData(&module, PTX));
    OK(enumerate(functions, 2, module));
    for (int i = 0; i < 5; i++)
        launch(functions[0]);
    cuLaunchKernel(functions[0], 0, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL); // fails: no block
}
"""


@pytest.mark.parametrize("calls", ["all", "none"])
def test_function_never_looked_up_has_a_name(tmp_path, calls):
    program = hooked.compile_c(tmp_path / "client", ENUMERATED)
    done = hooked.run(tmp_path / "t.mp", program, options=("--calls", calls))
    assert done.returncode == 0, done.stderr
    trace = hooked.Trace(tmp_path / "t.mp")
    (function,) = trace.of("function")
    assert function["name"] in ("foo", "bar") and function["module"] == trace.of("module")[0]["id"]
    assert trace.launches == {function["name"]: 5 if calls == "all" else 6}  # unwatched launches that fail are counted
    assert trace.of("lookup")[0]["what"] == "enumerate"
    launched = [call for call in trace.calls if call["type"] == "kernel"]
    assert [call["function"] for call in launched] == ([function["id"]] * 6 if calls == "all" else [])


QUERIES = r"""
#include <pthread.h>
static int (*cuCtxGetDevice)(int *), (*cuKernelGetAttribute)(int *, int, void *, int);
static void *work(void *unused) {
    int device;
    for (int i = 0; i < 1000; i++)
        cuCtxGetDevice(&device); // fails: no context
    return NULL;
}
int main(void) {
    begin();
    int number;
    cuCtxGetDevice = dlsym(driver, "cuCtxGetDevice");
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 70; i++)
        assert(!cuCtxGetDevice(&number) && !cuDriverGetVersion(&number));
    assert(number >= 12000);
}
"""


@pytest.mark.parametrize(
    ("options", "counts", "calls"),
    [
        ((), {"cuCtxGetDevice": 4070, "cuDriverGetVersion": 70}, False),
        (("--calls", "all"), {}, True),
        (("--calls", "memory"), {"cuCtxGetDevice": 4070, "cuDriverGetVersion": 70}, False),
        (("--calls", "none"), {}, False),
        (("--calls", "none,query"), {}, True),
    ],
    ids=["default", "all", "memory", "none", "query"],
)
def test_queries_are_counted_where_they_are_not_recorded(tmp_path, options, counts, calls):
    program = hooked.compile_c(tmp_path / "client", QUERIES)
    done = hooked.run(tmp_path / "t.mp", program, options=options)
    assert (done.returncode, done.stderr) == (0, "")
    trace = hooked.Trace(tmp_path / "t.mp")
    found = Counter()
    for record in trace.of("counts"):
        for row in hooked.rows(record):
            found[trace.apis[row["api"]]["name"]] += row["count"]
    asked = {name: count for name, count in found.items() if name in ("cuCtxGetDevice", "cuDriverGetVersion")}
    assert asked == counts
    assert trace.names["cuCtxGetDevice"] == (4070 if calls else 0)
