// Starts threads that launch kernels, each on its own stream, while they load and unload modules and
// libraries. It compares the results with the host's, and prints the number of launches.
//
//     probe_stress SECONDS THREADS VARIANTS LEAVE CHILDREN
//
// There are VARIANTS kernels, which differ in a constant, so that each has to be built. If LEAVE isn't 0, the
// program first allocates all but LEAVE MB of the device's memory. CHILDREN child processes do the same for a
// second each, one after the other; the last one calls exec.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define D(name) ((int (*)())dlsym(driver, #name))
#define OK(call)                                                                                             \
    do {                                                                                                     \
        int status_ = (call);                                                                                \
        if (status_) {                                                                                       \
            fprintf(stderr, "%d: %s: %d\n", __LINE__, #call, status_);                                       \
            _exit(3);                                                                                        \
        }                                                                                                    \
    } while (0)

enum { COUNT = 400, BLOCKS = 6, THREADS = 70, WORDS = BLOCKS * THREADS };

// scale: sets item i to VARIANT * i + added for i below count, and counts these items in total.
// turn: each block reverses its items, through shared memory.
static const char TEXT[] =
    ".version 7.8\n.target sm_80\n.address_size 64\n"
    ".visible .global .align 4 .u32 total;\n"
    ".visible .entry scale_%1$d(.param .u64 items, .param .u32 added, .param .u32 count)\n{\n"
    ".reg .u32 %%r<9>;\n.reg .u64 %%d<4>;\n.reg .pred %%p;\n"
    "ld.param.u64 %%d1, [items];\nld.param.u32 %%r1, [added];\nld.param.u32 %%r2, [count];\n"
    "mov.u32 %%r3, %%ctaid.x;\nmov.u32 %%r4, %%ntid.x;\nmov.u32 %%r5, %%tid.x;\n"
    "mad.lo.u32 %%r3, %%r3, %%r4, %%r5;\nsetp.ge.u32 %%p, %%r3, %%r2;\n@%%p ret;\n"
    "cvta.to.global.u64 %%d1, %%d1;\nmul.wide.u32 %%d2, %%r3, 4;\nadd.u64 %%d1, %%d1, %%d2;\n"
    "ld.global.u32 %%r6, [%%d1];\nmad.lo.u32 %%r6, %%r6, %1$d, %%r1;\nst.global.u32 [%%d1], %%r6;\n"
    "mov.u64 %%d3, total;\natom.global.add.u32 %%r8, [%%d3], 1;\nret;\n}\n"
    ".visible .entry turn_%1$d(.param .u64 items)\n{\n"
    ".reg .u32 %%r<9>;\n.reg .u64 %%d<4>;\n.shared .align 4 .b8 kept[1024];\n"
    "ld.param.u64 %%d1, [items];\ncvta.to.global.u64 %%d1, %%d1;\n"
    "mov.u32 %%r3, %%ctaid.x;\nmov.u32 %%r4, %%ntid.x;\nmov.u32 %%r5, %%tid.x;\n"
    "mad.lo.u32 %%r6, %%r3, %%r4, %%r5;\nmul.wide.u32 %%d2, %%r6, 4;\nadd.u64 %%d1, %%d1, %%d2;\n"
    "ld.global.u32 %%r6, [%%d1];\nmov.u32 %%r7, kept;\nshl.b32 %%r8, %%r5, 2;\nadd.u32 %%r8, %%r8, %%r7;\n"
    "st.shared.u32 [%%r8], %%r6;\nbar.sync 0;\n"
    "sub.u32 %%r8, %%r4, %%r5;\nsub.u32 %%r8, %%r8, 1;\nshl.b32 %%r8, %%r8, 2;\nadd.u32 %%r8, %%r8, %%r7;\n"
    "ld.shared.u32 %%r6, [%%r8];\nst.global.u32 [%%d1], %%r6;\nret;\n}\n";

static void *driver, *context;
static _Atomic long launches;
static double begun, end;
static int variants, shared_variant = 3;
static void *shared_module;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

struct code {
    void *module, *library, *scale, *turn;
    uint32_t by;
};

static char *text_of(uint32_t by) {
    char *text;
    OK(asprintf(&text, TEXT, by) < 0);
    return text;
}

static void *function_of(const struct code *code, const char *what) {
    char name[32];
    void *found;
    snprintf(name, sizeof(name), "%s_%u", what, code->by);
    if (code->library)
        OK(D(cuLibraryGetKernel)(&found, code->library, name));
    else
        OK(D(cuModuleGetFunction)(&found, code->module, name));
    return found;
}

// Load a kernel from a module, a library or a file, or use the code that all threads share.
static struct code load(unsigned *seed) {
    unsigned way = (unsigned)rand_r(seed) % 8;
    struct code code = {.by = 3 + (uint32_t)(rand_r(seed) % variants)};
    char *text = text_of(code.by);
    if (way < 3) {
        code.module = shared_module, code.by = (uint32_t)shared_variant;
    } else if (way < 5) {
        OK(D(cuModuleLoadData)(&code.module, text));
    } else if (way < 7) {
        OK(D(cuLibraryLoadData)(&code.library, text, NULL, NULL, 0, NULL, NULL, 0));
    } else {
        char name[] = "/tmp/probe_stress_XXXXXX";
        int file = mkstemp(name);
        OK(file < 0 || write(file, text, strlen(text)) < 0);
        close(file);
        OK(D(cuModuleLoad)(&code.module, name));
        unlink(name);
    }
    memset(text, 0, strlen(text)); // as the driver allows
    free(text);
    code.scale = function_of(&code, "scale"), code.turn = function_of(&code, "turn");
    return code;
}

static void unload(struct code *code) {
    if (code->library)
        OK(D(cuLibraryUnload)(code->library));
    else if (code->module != shared_module)
        OK(D(cuModuleUnload)(code->module));
}

struct config {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned count;
};

static void launch_scale(const struct code *code, uint64_t items, uint32_t added, void *stream,
                         unsigned form) {
    uint32_t count = COUNT;
    struct {
        uint64_t items;
        uint32_t added, count;
    } packed = {items, added, count};
    size_t size = sizeof(packed);
    void *params[] = {&items, &added, &count}, *extra[] = {(void *)1, &packed, (void *)2, &size, NULL};
    struct config config = {{BLOCKS, 1, 1}, {THREADS, 1, 1}, 0, stream, NULL, 0};
    switch (form % 4) {
    case 0:
        OK(D(cuLaunchKernel)(code->scale, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, params, NULL));
        break;
    case 1:
        OK(D(cuLaunchKernel)(code->scale, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, NULL, extra));
        break;
    case 2:
        OK(D(cuLaunchKernelEx)(&config, code->scale, params, NULL));
        break;
    default:
        OK(D(cuLaunchCooperativeKernel)(code->scale, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, params));
    }
    launches++;
}

static void expect_turn(uint32_t *want) {
    for (unsigned block = 0; block < BLOCKS; block++)
        for (unsigned i = 0, k = THREADS - 1; i < k; i++, k--) {
            uint32_t *at = want + block * THREADS, kept = at[i];
            at[i] = at[k], at[k] = kept;
        }
}

// Make some launches of one module, and check their results.
static void play(unsigned *seed, void *stream, uint64_t items) {
    uint32_t want[WORDS], found[WORDS];
    struct code code = load(seed);
    for (unsigned i = 0; i < WORDS; i++)
        want[i] = (uint32_t)rand_r(seed);
    OK(D(cuMemcpyHtoDAsync_v2)(items, want, sizeof(want), stream));
    OK(D(cuStreamSynchronize)(stream));
    for (int left = 1 + rand_r(seed) % 30; left; left--) {
        unsigned what = (unsigned)rand_r(seed);
        if (what % 3) {
            launch_scale(&code, items, what >> 8, stream, what >> 4);
            for (unsigned i = 0; i < COUNT; i++)
                want[i] = code.by * want[i] + (what >> 8);
        } else {
            OK(D(cuLaunchKernel)(code.turn, BLOCKS, 1, 1, THREADS, 1, 1, 0, stream, (void *[]){&items},
                                 NULL));
            launches++;
            expect_turn(want);
        }
        if (what % 11 == 0)
            OK(D(cuStreamSynchronize)(stream));
        if (what % 13 == 0) {
            uint64_t more = 0;
            int status = D(cuMemAlloc_v2)(&more, (size_t)(what % 4096 + 1) << 8);
            if (!status)
                OK(D(cuMemFree_v2)(more));
            else if (status != 2) // out of memory
                OK(status);
        }
    }
    OK(D(cuMemcpyDtoHAsync_v2)(found, items, sizeof(found), stream));
    OK(D(cuStreamSynchronize)(stream));
    if (memcmp(found, want, sizeof(want))) {
        fprintf(stderr, "wrong results\n");
        _exit(5);
    }
    unload(&code);
}

static void launch_each(uint64_t items) {
    for (uint32_t by = 3; by < 3 + (uint32_t)variants; by++) {
        struct code code = {.by = by};
        char *text = text_of(by);
        OK(D(cuModuleLoadData)(&code.module, text));
        free(text);
        code.scale = function_of(&code, "scale"), code.turn = function_of(&code, "turn");
        launch_scale(&code, items, 1, NULL, 0);
        OK(D(cuLaunchKernel)(code.turn, BLOCKS, 1, 1, THREADS, 1, 1, 0, NULL, (void *[]){&items}, NULL));
        launches++;
        OK(D(cuCtxSynchronize)());
    }
}

static void *work(void *number) {
    unsigned seed = (unsigned)(uintptr_t)number + (unsigned)getpid();
    void *stream;
    uint64_t items;
    OK(D(cuCtxSetCurrent)(context));
    OK(D(cuStreamCreate)(&stream, 1)); // non-blocking
    OK(D(cuMemAlloc_v2)(&items, (size_t)4 * WORDS));
    if (begun == end)
        launch_each(items);
    else
        do
            play(&seed, stream, items);
        while (now() < end);
    OK(D(cuStreamDestroy_v2)(stream));
    return NULL;
}

// Allocate all but `leave` bytes, in pieces, so that the rest isn't contiguous.
static void fill(size_t leave) {
    size_t free_bytes = 0, total;
    for (size_t piece = (size_t)1 << 32; piece >= (size_t)1 << 20; piece /= 4)
        for (;;) {
            uint64_t taken;
            OK(D(cuMemGetInfo_v2)(&free_bytes, &total));
            if (free_bytes < leave + piece || D(cuMemAlloc_v2)(&taken, piece))
                break;
        }
    fprintf(stderr, "left: %zu MB\n", free_bytes >> 20);
}

static int have_child(char **argv, const char *children) {
    int status = 0;
    char *line[] = {argv[0], "1", "1", argv[3], "0", (char *)children, NULL};
    pid_t child = fork();
    if (!child) {
        execv("/proc/self/exe", line);
        _exit(127);
    }
    return child < 0 || waitpid(child, &status, 0) != child ? 1 : status;
}

int main(int argc, char **argv) {
    if (argc != 6)
        return 2;
    int threads = atoi(argv[2]), children = atoi(argv[5]);
    pthread_t handles[64];
    variants = atoi(argv[3]);
    if (children < 0) { // a chain: this process is another one later, that has used the driver before
        argv[5] = "0";
        driver = dlopen("libcuda.so.1", RTLD_NOW);
        OK(!driver || D(cuInit)(0));
        execv("/proc/self/exe", argv);
        return 127;
    }
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        return 4;
    }
    OK(D(cuInit)(0));
    OK(D(cuDevicePrimaryCtxRetain)(&context, 0));
    OK(D(cuCtxSetCurrent)(context));
    char *text = text_of((uint32_t)shared_variant);
    OK(D(cuModuleLoadData)(&shared_module, text));
    free(text);
    if (atoi(argv[4]))
        fill((size_t)atoi(argv[4]) << 20);
    begun = now(), end = begun + atof(argv[1]);
    for (int i = 0; i < threads && i < 64; i++)
        OK(pthread_create(&handles[i], NULL, work, (void *)(uintptr_t)i));
    for (int i = 0; i < children; i++)
        OK(have_child(argv, i == children - 1 ? "-1" : "0"));
    for (int i = 0; i < threads && i < 64; i++)
        pthread_join(handles[i], NULL);
    printf("launches %ld\n", (long)launches);
    return 0;
}
