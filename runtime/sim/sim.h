// The simulated device: a libcuda.so.1 whose device memory is host memory and whose one device is the CPU.
//
// Everything is done when its call returns, so streams are always idle and events always complete. Kernels
// are looked up and launches accepted, but nothing runs them yet.

#ifndef GPT_SIM_H
#define GPT_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

#define API __attribute__((visibility("default"))) CUresult

// What a handle points to says what it is.
enum kind { CONTEXT = 0x47505431, STREAM, EVENT, MODULE, FUNCTION };

struct handle {
    enum kind kind;
};

static inline bool is_kind(const void *handle, enum kind kind) {
    return handle && ((const struct handle *)handle)->kind == kind;
}

extern bool sim_initialized;
struct context *sim_context(void); // of this thread, or NULL
void sim_arch(int *major, int *minor);

// memory.c
bool sim_is_device(uint64_t start, uint64_t size); // lies in one allocation

// table.c
struct sim_function {
    const char *name;   // as cuGetProcAddress is asked for it
    const char *symbol; // as it is exported
    int since;          // the version of CUDA that this variant begins with
    void *address;
};
extern const struct sim_function sim_functions[];

#endif
