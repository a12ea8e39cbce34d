// The beginning of most C clients: the functions that they use, found by dlsym, and a context.

#pragma once

#define _GNU_SOURCE
#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OK(call)                                                                                             \
    do {                                                                                                     \
        int s_ = (call);                                                                                     \
        if (s_) {                                                                                            \
            fprintf(stderr, "%s: %d\n", #call, s_);                                                          \
            abort();                                                                                         \
        }                                                                                                    \
    } while (0)
#define PTX                                                                                                  \
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry foo(){ret;}\n.visible .entry "           \
    "bar(){ret;}\n"

static void *driver;
static int (*cuInit)(unsigned), (*cuDevicePrimaryCtxRetain)(void **, int), (*cuCtxSetCurrent)(void *);
static int (*cuDriverGetVersion)(int *), (*cuModuleLoadData)(void **, const void *);
static int (*cuModuleGetFunction)(void **, void *, const char *);
static int (*cuLaunchKernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                             void *, void **, void **);

static inline void find_driver(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        exit(4);
    }
#define GET(name) assert((name = dlsym(driver, #name)))
    GET(cuInit), GET(cuDevicePrimaryCtxRetain), GET(cuCtxSetCurrent), GET(cuDriverGetVersion);
    GET(cuModuleLoadData), GET(cuModuleGetFunction), GET(cuLaunchKernel);
}

// Starts the trace without initializing the driver, so that children that are forked now can still use it.
static inline void begin_trace(void) {
    int version;
    find_driver();
    OK(cuDriverGetVersion(&version));
}

static inline void begin(void) {
    find_driver();
    void *context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
}

static inline void *current_context(void) {
    void *context;
    OK(((int (*)(void **))dlsym(driver, "cuCtxGetCurrent"))(&context));
    return context;
}

static inline void *kernel(const char *name) {
    void *module, *function;
    OK(cuModuleLoadData(&module, PTX));
    OK(cuModuleGetFunction(&function, module, name));
    return function;
}

static inline void launch(void *function) { OK(cuLaunchKernel(function, 1, 2, 3, 32, 4, 1, 128, 0, 0, 0)); }
