// Our libcudart.so.13, which programs built with `nvcc -cudart shared` load. NVIDIA's refuses the simulated
// device, because it depends on private tables of NVIDIA's driver. Ours calls only the public driver API, so
// it works with any libcuda.so.1. Handles, flags, error codes and most structures are the same in both APIs,
// and are passed through. tests/runtime/test_cudart.py compares our declarations with CUDA's headers.

#ifndef GPT_CUDART_H
#define GPT_CUDART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default"))) int

enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidPitchValue = 12,
    cudaErrorInvalidSymbol = 13,
    cudaErrorInvalidMemcpyDirection = 21,
    cudaErrorInsufficientDriver = 35,
    cudaErrorCallRequiresNewerDriver = 36,
    cudaErrorMissingConfiguration = 52,
    cudaErrorInvalidDevice = 101,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorNotSupported = 801,
};

enum {
    cudaMemcpyHostToHost,
    cudaMemcpyHostToDevice,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice,
    cudaMemcpyDefault
};

typedef struct {
    unsigned x, y, z;
} dim3;

// Calls a driver function by its symbol. Returns 36 (cudaErrorCallRequiresNewerDriver) if the driver doesn't
// have it.
#define DRIVER(name, parameters, ...)                                                                        \
    ({                                                                                                       \
        static int(*of_driver) parameters;                                                                   \
        int(*function_of_driver) parameters = (int(*) parameters)cudart_driver(#name, (void **)&of_driver);  \
        function_of_driver ? function_of_driver(__VA_ARGS__) : cudaErrorCallRequiresNewerDriver;             \
    })

// Defines a function of the runtime API. It first makes a context current if there's none, and its error is
// saved for cudaGetLastError.
#define DEFINE(name, parameters, ...)                                                                        \
    API name parameters {                                                                                    \
        int begun = cudart_begin();                                                                          \
        return cudart_end(begun ? begun : (__VA_ARGS__));                                                    \
    }

// The default stream of programs compiled with --default-stream per-thread.
#define PER_THREAD(stream) ((stream) ? (stream) : (void *)2)

// The parameters that every function adding a graph node begins with.
#define NODE void **node, void *graph, void *const *after, size_t count

// device.c
void *cudart_driver(const char *name, void **found); // caches it in *found
int cudart_begin(void);
bool cudart_is_forked(void);
int cudart_context(void **context); // the current one
int cudart_end(int status);         // returns the status
int cudart_last_error(void);
int cudart_device(void);                 // this thread's
extern void (*cudart_after_reset)(void); // set by images.c: a device that was reset has a new context

// images.c: what nvcc's code has registered, by the address that stands for it in the program.
int cudart_kernel(const void *function, void **kernel); // or finds a handle that the program was given
int cudart_give_kernel(void *kernel);                   // registers such a handle
// Returns the address with which a kernel was registered, or else the handle itself.
const void *cudart_symbol(void *kernel);
int cudart_variable(const void *symbol, uint64_t *address, size_t *size);

#endif
