// Runs a script line by line with the kernels of random_kernels.cu, and prints each line's result: the
// driver's status, and the values found. Handles are numbers. The driver's functions are called by their
// plain symbols.

#include <stdbool.h>

enum { MOST = 64, COUNT = 4096 };

static void *contexts[MOST], *modules[MOST], *functions[MOST], *streams[MOST], *graphs[MOST], *events[MOST];
static CUdeviceptr buffers[MOST];
static char names[MOST][64], word[8][64];
static char image[1 << 20];
static int numbers[16];
static volatile int called;
static _Atomic unsigned *flag; // a flag in host memory

static unsigned items[COUNT];
static FILE *out; // for output other than what kernels print

// The parameters of a kernel, as pointers and as a block.
struct arguments {
    void *params[8];
    char block[32768];
    size_t size;
};

static void add(struct arguments *all, const void *value, size_t size, size_t align, int *count) {
    all->size = (all->size + align - 1) / align * align;
    memcpy(all->block + all->size, value, size);
    all->params[(*count)++] = all->block + all->size;
    all->size += size;
}

static void take(struct arguments *all, const char *name, CUdeviceptr buffer, unsigned count, unsigned with) {
    struct {
        char a;
        long long b;
        short c[3];
        _Alignas(16) int d[4];
        char e;
    } mixed = {3, 1ll << 40 | 17, {2, 3, 5}, {7, 11, 13, 17}, 9};
    static unsigned words[8192];
    char first = 5;
    int n = 0;
    memset(all, 0, sizeof(*all));
    for (unsigned i = 0; i < 8192; i++)
        words[i] = i * with + 1;
    if (!strcmp(name, "nothing"))
        return;
    if (!strcmp(name, "mix")) {
        add(all, &first, 1, 1, &n);
        add(all, &mixed, sizeof(mixed), 16, &n);
    }
    add(all, &buffer, 8, 8, &n);
    add(all, &count, 4, 4, &n);
    add(all, &with, 4, 4, &n);
    if (!strcmp(name, "meet")) {
        CUdeviceptr gate = buffer + COUNT * 4;
        add(all, &gate, 8, 8, &n);
    } else if (!strncmp(name, "words_", 6))
        add(all, words, atoi(name + 6), 4, &n);
}

// go FUNCTION FORM STREAM gx gy gz bx by bz SHARED BUFFER COUNT WITH
static int go(const int *a) {
    enum {
        PARAMS,
        PACKED,
        EX,
        EX_PACKED,
        COOPERATIVE,
        EX_COOPERATIVE,
        EX_MANY,
        PER_THREAD,
        BOTH,
        NEITHER,
        SHORT
    };
    static struct arguments all;
    const char *name = names[a[0]];
    void *function = functions[a[0]], *stream = streams[a[2]];
    take(&all, name, buffers[a[10]], a[11], a[12]);
    if (!strcmp(name, "meet"))
        OK(D(cuMemsetD32Async)(buffers[a[10]] + COUNT * 4, 0, (size_t)1, stream));
    size_t size = all.size - (a[1] == SHORT && all.size);
    void *extra[] = {(void *)2, &size, (void *)1, all.block, NULL}, **params = all.params;
    CUlaunchAttribute attributes[6];
    memset(attributes, 0, sizeof(attributes));
    CUlaunchConfig config = {a[3], a[4], a[5], a[6], a[7], a[8], a[9], stream, attributes, 0};
    if (a[1] == EX_COOPERATIVE || a[1] == EX_MANY) {
        attributes[0].id = 2, attributes[0].value.cooperative = a[1] == EX_COOPERATIVE;
        attributes[1].id = 4, attributes[1].value.clusterDim.x = 1; // a cluster
        attributes[1].value.clusterDim.y = attributes[1].value.clusterDim.z = 1;
        attributes[2].id = 8;                                                    // priority
        attributes[3].id = 6, attributes[3].value.cooperative = a[1] == EX_MANY; // programmatic serialization
        config.numAttrs = a[1] == EX_MANY ? 4 : 2;
    }
    switch (a[1]) {
    case PACKED:
    case SHORT:
        params = NULL;
        break;
    case EX_PACKED:
        return D(cuLaunchKernelEx)(&config, function, NULL, extra);
    case EX:
    case EX_COOPERATIVE:
    case EX_MANY:
        return D(cuLaunchKernelEx)(&config, function, params, NULL);
    case COOPERATIVE:
        return D(cuLaunchCooperativeKernel)(function, a[3], a[4], a[5], a[6], a[7], a[8], a[9], stream,
                                            params);
    case PER_THREAD:
        return D(cuLaunchKernel_ptsz)(function, a[3], a[4], a[5], a[6], a[7], a[8], a[9], stream, params,
                                      NULL);
    case NEITHER:
        params = NULL;
    }
    bool packed = a[1] == PACKED || a[1] == BOTH || a[1] == SHORT;
    return cuLaunchKernel(function, a[3], a[4], a[5], a[6], a[7], a[8], a[9], stream, params,
                          packed ? extra : NULL);
}

static unsigned digest(const void *data, size_t size) {
    unsigned hash = 2166136261u;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ ((const unsigned char *)data)[i]) * 16777619u;
    return hash;
}

static int show(int buffer) {
    int status = D(cuMemcpyDtoH_v2)(items, buffers[buffer], sizeof(items));
    fprintf(out, " %08x", status ? 0 : digest(items, sizeof(items)));
    return status;
}

static void count_call(void *with) { called += (int)(intptr_t)with; }

static size_t shared_of(int threads) { return 4 * threads; }

static int ask(int function, int threads, int shared, int how) {
    int a = -1, b = -1, status = 0;
    size_t size = 0;
    CUlaunchConfig config = {4, 1, 1, threads, 1, 1, shared, NULL, NULL, 0};
    void *f = functions[function];
    switch (how) {
    case 0:
        status = D(cuOccupancyMaxActiveBlocksPerMultiprocessor)(&a, f, threads, (size_t)shared);
        break;
    case 1:
        status = D(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(&a, f, threads, (size_t)shared, 1);
        break;
    case 2:
        status = D(cuOccupancyMaxPotentialBlockSize)(&a, &b, f, NULL, (size_t)shared, threads);
        break;
    case 3:
        status = D(cuOccupancyMaxPotentialBlockSizeWithFlags)(&a, &b, f, shared_of, (size_t)0, 0, 1);
        break;
    case 4:
        status = D(cuOccupancyAvailableDynamicSMemPerBlock)(&size, f, 2, threads);
        break;
    case 5:
        status = D(cuOccupancyMaxActiveClusters)(&a, f, &config);
        break;
    case 6:
        status = D(cuOccupancyMaxPotentialClusterSize)(&a, f, &config);
        break;
    case 7:
        status = D(cuOccupancyMaxPotentialBlockSize)(NULL, &b, f, NULL, (size_t)shared, threads);
        break;
    }
    fprintf(out, " %d %d %zu", a, b, size);
    return status;
}

static int describe(int function) {
    void *f = functions[function];
    const char *name = "";
    int status = D(cuFuncGetName)(&name, f), value;
    fprintf(out, " %s", name);
    for (int i = 0; i < 16; i++) {
        value = -1;
        int found = D(cuFuncGetAttribute)(&value, i, f);
        fprintf(out, " %d/%d", found, value);
    }
    for (size_t i = 0, offset = 0, size = 0; i < 7; i++) {
        int found = D(cuFuncGetParamInfo)(f, i, &offset, &size);
        fprintf(out, " %d/%zu/%zu", found, found ? 0 : offset, found ? 0 : size);
    }
    return status;
}

// Find the function in a module, in a library, or in the module of a library.
static int find(int module, const char *how, const char *name, CUdeviceptr *address, size_t *size) {
    void *of = modules[module];
    if (!strcmp(how, "library"))
        return D(cuLibraryGetGlobal)(address, size, of, name);
    if (!strcmp(how, "managed"))
        return D(cuLibraryGetManaged)(address, size, of, name);
    int status = strcmp(how, "inside") ? 0 : D(cuLibraryGetModule)(&of, of);
    return status ? status : D(cuModuleGetGlobal_v2)(address, size, of, name);
}

static int load(int module, bool library) {
    return library ? D(cuLibraryLoadData)(&modules[module], image, NULL, NULL, 0, NULL, NULL, 0)
                   : cuModuleLoadData(&modules[module], image);
}

static int look_up(int function, int module, const char *how, const char *name) {
    void *kernel = NULL, *of = modules[module];
    snprintf(names[function], sizeof(names[function]), "%s", name);
    if (!strcmp(how, "function"))
        return cuModuleGetFunction(&functions[function], of, name);
    if (!strcmp(how, "inside")) {
        int status = D(cuLibraryGetModule)(&of, of);
        return status ? status : cuModuleGetFunction(&functions[function], of, name);
    }
    int status = D(cuLibraryGetKernel)(&kernel, of, name);
    functions[function] = kernel;
    return status || strcmp(how, "kernel of") ? status : D(cuKernelGetFunction)(&functions[function], kernel);
}

static int set(const int *a, const char *how, const char *name) {
    CUdeviceptr address = 0;
    size_t size = 0;
    static unsigned value;
    int status = find(a[0], how, name, &address, &size);
    fprintf(out, " %zu", size);
    value = a[1];
    return status       ? status
           : a[3] < 0   ? D(cuMemcpyHtoD_v2)(address, &value, (size_t)4)
           : a[2] == -1 ? D(cuMemsetD32Async)(address, value, (size_t)1, streams[a[3]])
                        : D(cuMemcpyHtoDAsync_v2)(address, &value, (size_t)4, streams[a[3]]);
}

static int get(const int *a, const char *how, const char *name) {
    CUdeviceptr address = 0;
    size_t size = 0;
    unsigned found[64] = {0};
    int status = find(a[0], how, name, &address, &size);
    status = status ? status : D(cuMemcpyDtoH_v2)(found, address, size < 256 ? size : 256);
    if (strcmp(name, "functions"))
        fprintf(out, " %zu %08x", size, digest(found, sizeof(found)));
    return status;
}

static int make_context(int which, bool primary) {
    int status =
        primary ? cuDevicePrimaryCtxRetain(&contexts[which], 0) : D(cuCtxCreate_v2)(&contexts[which], 0, 0);
    return status || !primary ? status : cuCtxSetCurrent(contexts[which]);
}

static int make_buffer(int which) {
    int status = D(cuMemAlloc_v2)(&buffers[which], (size_t)(COUNT * 4 + 4));
    for (unsigned i = 0; i < COUNT; i++)
        items[i] = i * 2654435761u + which;
    status = status ? status : D(cuMemcpyHtoD_v2)(buffers[which], items, sizeof(items));
    return status ? status : D(cuStreamSynchronize)(NULL); // a copy may complete after its call returns
}

static int wait_for_host(int stream) { // the flag is written by the host later
    CUdeviceptr address = 0;
    if (!flag) {
        OK(D(cuMemHostAlloc)(&flag, (size_t)4096, 2));
        *flag = 0;
    }
    int status = D(cuMemHostGetDevicePointer_v2)(&address, flag, 0);
    return status ? status : D(cuStreamWaitValue32_v2)(streams[stream], address, 1, 0);
}

static int capture(int stream, int graph, bool ends) {
    void *made = NULL;
    if (!ends)
        return D(cuStreamBeginCapture_v2)(streams[stream], 2);
    int status = D(cuStreamEndCapture)(streams[stream], &made);
    status = status ? status : D(cuGraphInstantiateWithFlags)(&graphs[graph], made, 0ll);
    return made ? D(cuGraphDestroy)(made), status : status;
}

static int attribute(const int *a, const char *how) {
    return !strcmp(how, "kernel")        ? D(cuKernelSetAttribute)(a[1], a[2], functions[a[0]], a[3])
           : !strcmp(how, "cache")       ? D(cuFuncSetCacheConfig)(functions[a[0]], a[1])
           : !strcmp(how, "kernelcache") ? D(cuKernelSetCacheConfig)(functions[a[0]], a[1], a[3])
           : !strcmp(how, "shared")      ? D(cuFuncSetSharedMemConfig)(functions[a[0]], a[1])
                                         : D(cuFuncSetAttribute)(functions[a[0]], a[1], a[2]);
}

static int follow(const char *what, const int *a) {
#define FOR(name) if (!strcmp(what, #name))
    FOR(go) return go(a);
    FOR(show) return show(a[0]);
    FOR(ask) return ask(a[0], a[1], a[2], a[3]);
    FOR(describe) return describe(a[0]);
    FOR(load) return load(a[0], a[1]);
    FOR(unload) return a[1] ? D(cuLibraryUnload)(modules[a[0]]) : D(cuModuleUnload)(modules[a[0]]);
    FOR(function) return look_up(a[0], a[1], word[0], word[1]);
    FOR(kernelof) return look_up(a[0], a[1], "kernel of", word[0]);
    FOR(set) return set(a, word[0], word[1]);
    FOR(get) return get(a, word[0], word[1]);
    FOR(attribute) return attribute(a, word[0]);
    FOR(context) return make_context(a[0], a[1]);
    FOR(use) return cuCtxSetCurrent(contexts[a[0]]);
    FOR(destroy) return D(cuCtxDestroy_v2)(contexts[a[0]]);
    FOR(reset) return D(cuDevicePrimaryCtxReset_v2)(0);
    FOR(release) return D(cuDevicePrimaryCtxRelease_v2)(0);
    FOR(buffer) return make_buffer(a[0]);
    FOR(free) return D(cuMemFree_v2)(buffers[a[0]]);
    FOR(stream) return D(cuStreamCreateWithPriority)(&streams[a[0]], a[1], a[2]);
    FOR(named) return streams[a[0]] = (void *)(intptr_t)a[1], 0; // the default streams
    FOR(endstream) return D(cuStreamDestroy_v2)(streams[a[0]]);
    FOR(wait) return D(cuStreamSynchronize)(streams[a[0]]);
    FOR(query) return D(cuStreamQuery)(streams[a[0]]), 0;
    FOR(sync) return D(cuCtxSynchronize)();
    FOR(event) return D(cuEventCreate)(&events[a[0]], a[1]);
    FOR(record) return D(cuEventRecord)(events[a[0]], streams[a[1]]);
    FOR(await) return D(cuStreamWaitEvent)(streams[a[1]], events[a[0]], 0);
    FOR(host) return D(cuLaunchHostFunc)(streams[a[0]], count_call, (void *)(intptr_t)a[1]);
    FOR(called) return fprintf(out, " %d", called), 0;
    FOR(hold) return wait_for_host(a[0]);
    FOR(letgo) return *flag = 1, 0;
    FOR(holdagain) return *flag = 0, 0;
    FOR(capture) return capture(a[0], 0, false);
    FOR(captured) return capture(a[0], a[1], true);
    FOR(replay) return D(cuGraphLaunch)(graphs[a[0]], streams[a[1]]);
    FOR(endgraph) return D(cuGraphExecDestroy)(graphs[a[0]]);
    fprintf(stderr, "no such order: %s\n", what);
    abort();
}

int main(int argc, char **argv) {
    char line[512], *rest, *said;
    size_t size;
    FILE *script = fopen(argv[1], "r"), *file = fopen(argv[2], "r");
    assert(script && file && fread(image, 1, sizeof(image) - 1, file));
    out = open_memstream(&said, &size);
    begin();
    for (int number = 1; fgets(line, sizeof(line), script); number++) {
        char *what = strtok_r(line, " \n", &rest), *part;
        int words = 0, count = 0;
        if (!what)
            continue;
        memset(numbers, 0, sizeof(numbers));
        while ((part = strtok_r(NULL, " \n", &rest))) {
            char *end;
            long value = strtol(part, &end, 0);
            if (*end)
                strcpy(word[words++], part);
            else
                numbers[count++] = (int)value;
        }
        fprintf(out, "%d %s", number, what);
        fprintf(out, " = %d\n", follow(what, numbers));
    }
    fclose(out);
    fputs(said, stdout);
    return 0;
}
