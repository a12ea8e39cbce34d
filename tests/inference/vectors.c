// A small inference program for the CUDA driver API: weights and input are copied to the device, a kernel
// runs a few times over vectors, and the output is copied back and compared with the processor's result.
//
//     cc -o vectors vectors.c -ldl && gpt-trace -- ./vectors [ROUNDS]

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define LAYERS 64
#define SIZE 1024
#define BYTES (SIZE * sizeof(float))

// layer: y = max(scale * y + shift, 0); last: y = y / 2
static const char PTX[] =
    ".version 8.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry last(.param .u64 y) {\n"
    "    .reg .b32 %r<4>; .reg .b64 %d<3>; .reg .f32 %f1;\n"
    "    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n"
    "    mad.lo.u32 %r1, %r1, %r2, %r3;\n"
    "    ld.param.u64 %d1, [y];\n"
    "    mul.wide.u32 %d2, %r1, 4; add.u64 %d1, %d1, %d2;\n"
    "    ld.global.f32 %f1, [%d1]; mul.f32 %f1, %f1, 0f3F000000; st.global.f32 [%d1], %f1;\n"
    "    ret;\n"
    "}\n"
    ".visible .entry layer(.param .u64 y, .param .u64 scale, .param .u64 shift, .param .u32 size) {\n"
    "    .reg .pred %p; .reg .b32 %r<5>; .reg .b64 %d<5>; .reg .f32 %f<4>;\n"
    "    mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n"
    "    mad.lo.u32 %r1, %r1, %r2, %r3;\n"
    "    ld.param.u32 %r4, [size];\n"
    "    setp.ge.u32 %p, %r1, %r4;\n"
    "    @%p ret;\n"
    "    ld.param.u64 %d1, [y]; ld.param.u64 %d2, [scale]; ld.param.u64 %d3, [shift];\n"
    "    mul.wide.u32 %d4, %r1, 4;\n"
    "    add.u64 %d1, %d1, %d4; add.u64 %d2, %d2, %d4; add.u64 %d3, %d3, %d4;\n"
    "    ld.global.f32 %f1, [%d1]; ld.global.f32 %f2, [%d2]; ld.global.f32 %f3, [%d3];\n"
    "    fma.rn.f32 %f1, %f1, %f2, %f3;\n"
    "    max.f32 %f1, %f1, 0f00000000;\n"
    "    st.global.f32 [%d1], %f1;\n"
    "    ret;\n"
    "}\n";

static void *driver;

// Call a function of the driver; a failing call ends the program.
#define CALL(name, ...) check(((int (*)())find(#name))(__VA_ARGS__), #name)

static void *find(const char *name) {
    void *found = dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "vectors: no %s in libcuda.so.1\n", name);
        exit(1);
    }
    return found;
}

static void check(int result, const char *name) {
    if (result) {
        fprintf(stderr, "vectors: %s: error %d\n", name, result);
        exit(1);
    }
}

static uint64_t copied(const float *from) {
    uint64_t memory;
    CALL(cuMemAlloc_v2, &memory, BYTES);
    CALL(cuMemcpyHtoD_v2, memory, from, BYTES);
    return memory;
}

int main(int argc, char **argv) {
    static float scale[LAYERS][SIZE], shift[LAYERS][SIZE], input[SIZE], output[SIZE];
    int rounds = argc > 1 ? atoi(argv[1]) : 10;
    for (int i = 0; i < SIZE; i++) {
        input[i] = (float)(i % 7) - 3;
        for (int layer = 0; layer < LAYERS; layer++)
            scale[layer][i] = 0.5f, shift[layer][i] = (float)((i + layer) % 5) - 1;
    }

    if (!(driver = dlopen("libcuda.so.1", RTLD_NOW))) {
        fprintf(stderr, "vectors: %s\n", dlerror());
        return 1;
    }
    int device;
    void *context, *module, *kernel, *last, *stream;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuStreamCreate, &stream, 0);

    uint64_t scales[LAYERS], shifts[LAYERS];
    for (int layer = 0; layer < LAYERS; layer++)
        scales[layer] = copied(scale[layer]), shifts[layer] = copied(shift[layer]);
    printf("weights: %zu bytes\n", 2 * LAYERS * BYTES);

    uint64_t vector;
    CALL(cuMemAlloc_v2, &vector, BYTES);
    CALL(cuModuleLoadData, &module, PTX);
    CALL(cuModuleGetFunction, &kernel, module, "layer");
    CALL(cuModuleGetFunction, &last, module, "last");
    unsigned size = SIZE;
    for (int round = 0; round <= rounds; round++) { // the first is the warm-up
        CALL(cuMemcpyHtoD_v2, vector, input, BYTES);
        for (int layer = 0; layer < LAYERS; layer++) {
            void *parameters[] = {&vector, &scales[layer], &shifts[layer], &size};
            CALL(cuLaunchKernel, kernel, SIZE / 128, 1, 1, 128, 1, 1, 0, stream, parameters, NULL);
        }
        void *parameters[] = {&vector};
        CALL(cuLaunchKernel, last, SIZE / 128, 1, 1, 128, 1, 1, 0, stream, parameters, NULL);
        CALL(cuStreamSynchronize, stream);
    }
    CALL(cuMemcpyDtoH_v2, output, vector, BYTES);

    int wrong = 0;
    for (int i = 0; i < SIZE; i++) {
        float wanted = input[i];
        for (int layer = 0; layer < LAYERS; layer++) {
            wanted = wanted * scale[layer][i] + shift[layer][i];
            wanted = wanted > 0 ? wanted : 0;
        }
        wrong += output[i] != wanted / 2;
    }
    CALL(cuMemFree_v2, vector);
    for (int layer = 0; layer < LAYERS; layer++) {
        CALL(cuMemFree_v2, scales[layer]);
        CALL(cuMemFree_v2, shifts[layer]);
    }
    printf("%d rounds of %d layers: %s\n", rounds, LAYERS, wrong ? "WRONG" : "right");
    return wrong != 0;
}
