"""C programs that tests run under gpt-hook, each the body of a client (hooked.PRELUDE)."""

from __future__ import annotations

ARGUMENTS = r"""
#define D(name) ((int (*)())dlsym(driver, #name))
int main(void) {
    begin();
    uint64_t memory, pitch, wide;
    char host[4096] = "x";
    void *event, *stream;
    OK(D(cuMemAlloc_v2)(&memory, (size_t)4096));
    OK(D(cuMemcpyHtoD_v2)(memory, host, (size_t)1000));
    OK(D(cuStreamCreate)(&stream, 0));
    OK(D(cuMemcpyDtoHAsync_v2)(host, memory, (size_t)2000, stream));
    OK(D(cuMemcpyDtoD_v2)(memory, memory + 2048, (size_t)3));
    OK(D(cuMemsetD32_v2)(memory, 7, (size_t)10));
    OK(D(cuMemAllocPitch_v2)(&wide, &pitch, (size_t)100, (size_t)10, 4));
    struct { size_t x, y; uint32_t type; void *host; uint64_t device; void *array; size_t pitch; } copy[2] = {
        {0, 0, 1, host, 0, 0, 100}, {0, 0, 2, 0, wide, 0, pitch}};
    struct { char parts[112]; size_t width, height; } two;
    memcpy(two.parts, copy, 112), two.width = 100, two.height = 10;
    OK(D(cuMemcpy2D_v2)(&two));
    OK(D(cuEventCreate)(&event, 0));
    OK(D(cuEventRecord)(event, stream));
    OK(D(cuStreamSynchronize)(stream));
    struct { uint32_t grid[3], block[3], shared; void *stream; void *attributes; uint32_t count; } config = {
        {9, 8, 7}, {6, 5, 4}, 77, stream, 0, 0};
    struct { uint32_t id, pad, value[16]; } cluster[2] = {{4, 0, {3, 2, 1}}, {2, 0, {1}}};
    config.attributes = cluster, config.count = 2;
    OK(D(cuLaunchKernelEx)(&config, kernel("bar"), (void *)0, (void *)0));
    assert(D(cuMemcpyHtoD_v2)(memory, host, (size_t)100000) == 1);
    OK(D(cuMemFree_v2)(memory));
    printf("%lu %lu %lu %lu %lu\n", memory, (long)host, wide, (long)stream, (long)event);
}
"""


# Loads its image from the heap, so that it's in no file, in several threads and processes.
LOADS = r"""
#include <pthread.h>
#include <sys/wait.h>
static char image[100000];
static void *context;
static void *load(void *arg) {
    void *module;
    OK(cuCtxSetCurrent(context));
    char *copy = malloc(sizeof(image));
    OK(cuModuleLoadData(&module, memcpy(copy, image, sizeof(image))));
    return 0;
}
int main(int argc, char **argv) {
    pthread_t threads[8];
    memset(image, '\n', sizeof(image) - 1), memcpy(image, PTX, strlen(PTX));
    begin_trace();
    for (int i = 0; i < 3; i++)
        if (!fork()) {
            begin();
            OK(cuDevicePrimaryCtxRetain(&context, 0));
            exit(!!load(0));
        }
    begin();
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], 0, load, 0);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], 0);
    while (wait(0) > 0)
        ;
}
"""


# A program that does what NVTX's own code does: find the injection library, pass tables to it, and call through them.
PLAYED = r"""
#include <wchar.h>
#include "abi/nvtx.h"
#define F(table, name, type, ...) ((type (*)())table[NVTX_CBID_##name])(__VA_ARGS__)
static nvtx_function *core[16], *core2[16], **at[16], **at2[16];
static int get_table(int module, nvtx_function ****table, unsigned *size) {
    *table = module == NVTX_CB_MODULE_CORE ? at : at2;
    *size = 16;
    return module == NVTX_CB_MODULE_CORE || module == NVTX_CB_MODULE_CORE2;
}
static const void *get_export(uint32_t id) {
    static const NvtxExportTableCallbacks callbacks = {sizeof(callbacks), get_table};
    return id == NVTX_ETID_CALLBACKS ? &callbacks : 0;
}
int main(int argc, char **argv) {
    for (int i = 0; i < 16; i++)
        at[i] = &core[i], at2[i] = &core2[i];
    void *library = dlopen(getenv("NVTX_INJECTION64_PATH"), RTLD_LAZY);
    int (*initialize)(nvtx_get_export_table *) = dlsym(library, "InitializeInjectionNvtx2");
    assert(initialize(get_export) == 1 && initialize(0) == 0);
    MORE
}
"""


LOOP = (
    'int main(int c, char **v) { begin(); void *f = kernel("foo"); for (long i = 0; i < atol(v[1]); i++) launch(f); }'
)


THREADS = r"""
#include <pthread.h>
static void *work(void *context) {
    int version;
    OK(cuCtxSetCurrent(context));
    for (int i = 0; i < 5000; i++)
        OK(cuDriverGetVersion(&version));
    launch(kernel("bar"));
    return 0;
}
int main(void) {
    begin();
    void *context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t threads[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++)
            assert(!pthread_create(&threads[i], 0, work, context));
        for (int i = 0; i < AT_ONCE; i++)
            pthread_join(threads[i], 0);
    }
}
"""


# Children are forked before the driver is initialized, because they couldn't use it after that.
FORK = r"""
#include <sys/wait.h>
int main(int argc, char **argv) {
    begin_trace();
    for (int i = 0; i < 3; i++)
        if (!fork()) {
            if (argc > 1)
                begin(), launch(kernel("bar"));
            if (argc > 2)
                abort();
            exit(0);
        }
    begin();
    launch(kernel("foo"));
    while (wait(0) > 0)
        ;
    launch(kernel("foo"));
}
"""


# Sanitizers turn vfork() into fork(), and in a forked child the driver refuses the launch.
VFORK = r"""
#include <sys/wait.h>
int main(void) {
    begin();
    void *f = kernel("foo");
    int status, version;
    pid_t child = vfork();
    if (!child) {
        status = cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0);
        if ((status && status != 3) || cuDriverGetVersion(&version))
            _exit(1);
        _exit(5);
    }
    assert(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 5);
    launch(f);
    child = vfork();
    if (!child) {
        execl("/bin/true", "true", (char *)0);
        _exit(1);
    }
    assert(waitpid(child, &status, 0) == child && !status);
    launch(f);
}
"""


WORK = r"""
#include <pthread.h>
static int (*cuMemcpyHtoDAsync)(uint64_t, const void *, size_t, void *), (*cuMemAlloc)(uint64_t *, size_t);
static int (*cuStreamSynchronize)(void *), (*cuMemsetD8Async)(uint64_t, unsigned char, size_t, void *);
static void *work(void *kernel_) {
    void *context;
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    char text[100] = "";
    uint64_t memory;
    OK(cuMemAlloc(&memory, 100));
    for (int i = 0; i < ROUNDS; i++) {
        launch(kernel_);
        OK(cuMemcpyHtoDAsync(memory, text, 100, 0));
        OK(cuMemsetD8Async(memory, 1, 100, 0));
        cuLaunchKernel(kernel_, 0, 1, 1, 1, 1, 1, 0, 0, 0, 0); // fails
        if (i % 100 == 99 || i == ROUNDS - 1)
            OK(cuStreamSynchronize(0)); // unfinished or too much work isn't timed
    }
    return NULL;
}
int main(void) {
    begin();
    cuMemcpyHtoDAsync = dlsym(driver, "cuMemcpyHtoDAsync_v2");
    cuMemAlloc = dlsym(driver, "cuMemAlloc_v2");
    cuMemsetD8Async = dlsym(driver, "cuMemsetD8Async");
    cuStreamSynchronize = dlsym(driver, "cuStreamSynchronize");
    pthread_t threads[3];
    void *function = kernel("foo");
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, work, function);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    work(function);
}
"""

DAEMON = r"""
#include <fcntl.h>
int main(void) {
    begin_trace();
    if (fork())
        return 0;
    setsid();
    if (fork())
        _exit(0);
    for (int i = 0; i < 100; i++)
        close(i);
    while (access("GO", F_OK))
        usleep(1000);
    begin();
    launch(kernel("bar"));
}
"""
