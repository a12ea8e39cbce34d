"""Objects and their lifetimes: when the driver reuses a handle, it's a new object."""

import subprocess

import pytest

from tests.runtime import hooked
from tests.tiers import first

# A driver that returns the lowest free handle. An image is text: names of kernels separated by blanks.
DRIVER = r"""
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#define API __attribute__((visibility("default"))) int
enum kind { FREE, CONTEXT, MODULE, FUNCTION };
static struct object { enum kind kind; struct object *parent, *context; char name[32], image[200]; } objects[4096];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread struct object *current;
static struct object *primary;
static int references;

static struct object *make(enum kind kind, struct object *parent, struct object *context, const char *text) {
    pthread_mutex_lock(&lock);
    struct object *made = objects + 1;
    while (made->kind)
        made++;
    *made = (struct object){kind, parent, context};
    snprintf(kind == MODULE ? made->image : made->name, kind == MODULE ? 200 : 32, "%s", text);
    pthread_mutex_unlock(&lock);
    return made;
}
static void end(struct object *object) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 4096; i++)
        if (objects[i].parent == object || objects[i].context == object)
            objects[i].kind = FREE;
    object->kind = FREE;
    pthread_mutex_unlock(&lock);
}
API cuInit(unsigned flags) { return 0; }
API cuDriverGetVersion(int *version) { return *version = 13000, 0; }
API cuDevicePrimaryCtxRetain(void **context, int device) {
    if (!references++)
        primary = make(CONTEXT, 0, 0, "");
    return *context = primary, 0;
}
API cuDevicePrimaryCtxRelease_v2(int device) {
    if (!--references)
        end(primary), primary = NULL;
    return 0;
}
API cuDevicePrimaryCtxReset_v2(int device) {
    struct object *at = primary;
    end(primary), primary->kind = CONTEXT;
    return 0;
}
API cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { return *active = references > 0, 0; }
API cuCtxSetCurrent(void *context) { return current = context, 0; }
API cuCtxGetCurrent(void **context) { return *context = current, 0; }
API cuCtxCreate_v2(void **context, unsigned flags, int device) {
    return current = *context = make(CONTEXT, 0, 0, ""), 0;
}
API cuCtxDestroy_v2(void *context) { return end(context), 0; }
API cuModuleLoadData(void **module, const void *image) { return *module = make(MODULE, 0, current, image), 0; }
API cuLibraryLoadData(void **library, const void *image) { return *library = make(MODULE, 0, 0, image), 0; }
API cuModuleUnload(struct object *module) {
    if (module->kind != MODULE)
        return 400;
    return end(module), 0;
}
API cuLibraryUnload(struct object *library) { return cuModuleUnload(library); }
API cuModuleGetFunction(void **function, struct object *module, const char *name) {
    for (struct object *at = objects; at < objects + 4096; at++)
        if (at->kind == FUNCTION && at->parent == module && !strcmp(at->name, name))
            return *function = at, 0;
    if (!strstr(module->image, name))
        return 500;
    return *function = make(FUNCTION, module, module->context, name), 0;
}
API cuLibraryGetKernel(void **kernel, struct object *library, const char *name) {
    return cuModuleGetFunction(kernel, library, name);
}
API cuKernelGetFunction(void **function, struct object *kernel) {
    return *function = make(FUNCTION, kernel->parent, current, kernel->name), 0;
}
API cuModuleGetFunctionCount(unsigned *count, struct object *module) {
    *count = 0;
    for (const char *at = module->image; at; at = strchr(at + 1, ' '))
        ++*count;
    return 0;
}
API cuModuleEnumerateFunctions(void **functions, unsigned count, struct object *module) {
    char text[200], *rest = strcpy(text, module->image);
    for (unsigned i = 0; i < count && rest; i++)
        cuModuleGetFunction(&functions[i], module, strsep(&rest, " "));
    return 0;
}
API cuFuncGetName(const char **name, struct object *function) {
    return function->kind == FUNCTION ? *name = function->name, 0 : 400;
}
API cuLaunchKernel(struct object *function, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned f,
                   unsigned shared, void *stream, void **params, void **extra) {
    return function->kind == FUNCTION ? 0 : 400;
}
"""

CALLS = r"""
#include <pthread.h>
#define D(name) ((int (*)())dlsym(driver, #name))
static void *load(const char *image) {
    void *module;
    OK(cuModuleLoadData(&module, image));
    return module;
}
static void *get(void *module, const char *name) {
    void *function;
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}
static void launches(void *function, int count) {
    for (int i = 0; i < count; i++)
        launch(function);
}
"""


@pytest.fixture
def driver(tmp_path, monkeypatch):
    (tmp_path / "driver").mkdir()
    library = tmp_path / "driver/libcuda.so.1"
    flags = ("-shared", "-fPIC", "-w", "-Wl,-Bsymbolic,-soname,libcuda.so.1")
    hooked.compile_c(library, DRIVER, *flags, prelude=False)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "driver"))


def run(tmp_path, source, calls="none", args=()):
    """Return the trace of a client that runs on this file's driver."""
    program = hooked.compile_c(tmp_path / "client", CALLS + source)
    done = hooked.run(tmp_path / "t.mp", program, *args, options=("--calls", calls), device="real")
    assert (done.returncode, done.stderr) == (0, "")
    trace = hooked.Trace(tmp_path / "t.mp")
    trace.output = done.stdout
    return trace


ENUMERATED = r"""
int main(void) {
    begin();
    void *module, *function, *first = NULL;
    for (int i = 0; i < 200; i++) {
        launches(get(module = load("alpha"), "alpha"), 1);
        OK(D(cuModuleUnload)(module));
    }
    first = get(module = load("alpha"), "alpha");
    OK(D(cuModuleUnload)(module));
    OK(D(cuModuleEnumerateFunctions)(&function, 1, load("gamma")));
    assert(function == first);
    launches(function, 1000);
}
"""


@pytest.mark.parametrize("calls", ["all", "none"])
def test_handle_enumerated_after_its_function_was_unloaded(tmp_path, driver, calls):
    trace = run(tmp_path, ENUMERATED, calls)
    assert trace.launches == {"alpha": 200, "gamma": 1000}
    modules = {f["id"]: f["module"] for f in trace.of("function")}
    assert len(set(modules.values())) == len(modules) == 202  # each with the module that contained it
    if calls == "all":
        names = {f["id"]: f["name"] for f in trace.of("function")}
        launched = [names[call["function"]] for call in trace.calls if call["type"] == "kernel"]
        assert launched == ["alpha"] * 200 + ["gamma"] * 1000


ENDS = {
    "cuModuleUnload": "OK(D(cuModuleUnload)(module));",
    "cuLibraryUnload": "OK(D(cuLibraryUnload)(library));",
    "cuCtxDestroy": "OK(D(cuCtxDestroy_v2)(context));",
    "cuDevicePrimaryCtxReset": "OK(D(cuDevicePrimaryCtxReset_v2)(0));",
    "cuDevicePrimaryCtxRelease": "OK(D(cuDevicePrimaryCtxRelease_v2)(0));",
}


@pytest.mark.parametrize("how", ENDS)
def test_handles_are_forgotten_with_their_owner(tmp_path, driver, how):
    """After the owner has ended, a kernel with the same name and address belongs to another module."""
    source = r"""
    int main(void) {
        begin();
        void *context, *module, *library, *before = NULL;
        for (int i = 0; i < 3; i++) {
            CONTEXT
            module = library = load("alpha");
            void *function = get(module, "alpha");
            assert(!before || before == function);
            launches(before = function, 10 + i);
            END
        }
    }
    """.replace("END", ENDS[how])
    if how == "cuLibraryUnload":
        source = source.replace('module = library = load("alpha");', 'OK(D(cuLibraryLoadData)(&library, "alpha"));')
        source = source.replace("get(module,", "get(library,")
    made = {
        "cuCtxDestroy": "OK(D(cuCtxCreate_v2)(&context, 0, 0));",
        "cuDevicePrimaryCtxRelease": "if (i) { cuDevicePrimaryCtxRetain(&context, 0); cuCtxSetCurrent(context); }",
    }
    trace = run(tmp_path, source.replace("CONTEXT", made.get(how, "")))
    functions = trace.of("function")
    assert [f["name"] for f in functions] == ["alpha"] * 3
    assert [f["module"] for f in functions] == [m["id"] for m in trace.of("module")]
    counts = {row["function"]: row["count"] for record in trace.of("launches") for row in hooked.rows(record)}
    assert counts == {functions[i]["id"]: 10 + i for i in range(3)}


def test_retained_primary_context_stays(tmp_path, driver):
    source = r"""
    int main(void) {
        begin();
        void *context, *function = get(load("alpha"), "alpha");
        OK(cuDevicePrimaryCtxRetain(&context, 0));
        launch(function);
        OK(D(cuDevicePrimaryCtxRelease_v2)(0));
        launch(function);
        assert(D(cuModuleUnload)(function) == 400); // fails: nothing is gone
        launch(function);
    }
    """
    trace = run(tmp_path, source)
    assert trace.functions == ["alpha"] and trace.launches == {"alpha": 3}


def test_functions_of_a_kernel_go_with_its_library(tmp_path, driver):
    source = r"""
    int main(void) {
        begin();
        for (int i = 0; i < 20; i++) {
            const char *name = i % 2 ? "alpha" : "gamma";
            void *library, *kernel, *function;
            OK(D(cuLibraryLoadData)(&library, name));
            OK(D(cuLibraryGetKernel)(&kernel, library, name));
            OK(D(cuKernelGetFunction)(&function, kernel));
            launches(kernel, 1), launches(function, 2);
            OK(D(cuLibraryUnload)(library));
        }
    }
    """
    assert run(tmp_path, source).launches == {"alpha": 30, "gamma": 30}


THREADS = r"""
#define ROUNDS 400
static void *context;
static void *work(void *number) {
    char name[16];
    snprintf(name, sizeof(name), "kernel%ld", (long)number);
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < ROUNDS; i++) {
        void *module = load(name), *function;
        if (i % 2)
            function = get(module, name);
        else
            OK(D(cuModuleEnumerateFunctions)(&function, 1, module));
        launches(function, 1 + i % 3);
        OK(D(cuModuleUnload)(module));
    }
    return NULL;
}
int main(void) {
    begin();
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    pthread_t threads[8];
    for (long i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
}
"""


@pytest.mark.full
@pytest.mark.parametrize("calls", first("all", "none"))
def test_threads_that_load_and_unload_at_once(tmp_path, driver, calls):
    each = sum(1 + i % 3 for i in range(400))
    assert run(tmp_path, THREADS, calls).launches == {f"kernel{i}": each for i in range(8)}


@pytest.mark.full
def test_destroyed_objects_take_no_memory(tmp_path, driver):
    """The trace itself grows and stays mapped, so only private memory is measured."""
    source = r"""
    static long private(void) {
        char line[256];
        FILE *file = fopen("/proc/self/smaps_rollup", "r");
        long size = 0, dirty;
        while (fgets(line, sizeof(line), file))
            if (sscanf(line, "Private_Dirty: %ld", &dirty) == 1 || sscanf(line, "Anonymous: %ld", &dirty) == 1)
                size = dirty;
        fclose(file);
        return size;
    }
    int main(void) {
        begin();
        long before = 0;
        for (int i = 0; i < 20000; i++) {
            if (i == 500)
                before = private();
            char text[100], name[32];
            snprintf(name, sizeof(name), "a_kernel_%d", i);
            void *module = load(name);
            launches(get(module, name), 2);
            if (i % 10)
                OK(D(cuModuleUnload)(module));
            else
                OK(D(cuDevicePrimaryCtxReset_v2)(0));
        }
        printf("%ld\n", private() - before);
    }
    """
    trace = run(tmp_path, source)
    assert sum(trace.launches.values()) == 40000
    assert int(trace.output) < 128  # KiB


@pytest.mark.soak
def test_many_functions_are_counted_to_the_last(tmp_path, driver):
    source = r"""
    int main(void) {
        begin();
        for (int i = 0; i < 1500000; i++) {
            void *module = load("one");
            launches(get(module, "one"), 2);
            OK(D(cuModuleUnload)(module));
        }
    }
    """
    program = hooked.compile_c(tmp_path / "client", CALLS + source)
    line = hooked.command("run", "-o", tmp_path / "t.mp", "--calls", "none", "--", program, quiet=False)
    assert " 3000000 launches, " in subprocess.run(line, capture_output=True, text=True, check=True).stderr


def test_objects_alone(tmp_path):
    """Probing's questions about objects are answered without a driver: images, attributes, parameters, variables,
    generations.
    """
    source = hooked.ROOT / "runtime" / "hook"
    test = hooked.ROOT / "tests" / "runtime" / "objects_alone.c"
    line = ["cc", "-std=gnu11", "-D_GNU_SOURCE", "-g", *hooked.INCLUDE, "-Wall", "-Werror"]
    files = [test, source / "watch" / "objects.c", source / "write" / "no_signals.c"]
    subprocess.run([*line, *files, "-o", tmp_path / "alone", "-lpthread"], check=True)
    done = subprocess.run([tmp_path / "alone"], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
