// The simulated device, on images in files: which element suits, what a module holds.

#include "../../runtime/sim/module.c"
#include "harness.h"

bool sim_initialized = true;
struct context *sim_context(void) { return NULL; }
void sim_arch(int *major, int *minor) { *major = 9, *minor = 0; }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    void *module, *functions[4];
    unsigned count;
    harness_file(data, size);
    if (cuModuleLoad(&module, harness_path))
        return 0;
    cuModuleGetFunction(functions, module, "_Z3onePf");
    cuModuleGetFunction(functions, module, "absent");
    if (!cuModuleGetFunctionCount(&count, module))
        cuModuleEnumerateFunctions(functions, count < 4 ? count : 4, module);
    cuModuleUnload(module);
    return 0;
}
