// Shared objects made by `gpt-asm --arch host`. The dynamic linker loads them from memory. Their table,
// host_module, lists the kernels and variables.

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/broker.h"
#include "run.h"

// Make a path by which the linker can open a file in memory. The linker takes two files with the same path
// for one, and descriptor numbers are reused. So the path also contains a serial number, with "./" or "/" for
// each bit.
static void name_file(int file, char name[128]) {
    static uint32_t serials;
    uint32_t serial = __atomic_fetch_add(&serials, 1, __ATOMIC_RELAXED);
    char *at = stpcpy(name, "/proc/thread-self/fd/"); // the main thread may have ended
    for (; serial; serial >>= 1)
        at = stpcpy(at, serial & 1 ? "./" : "/");
    sprintf(at, "%d", file);
}

// Load an object. Call it without the lock, because the linker has its own. Reports the fault and returns
// NULL if it isn't one.
void *sim_open_object(const char *bytes, size_t size) {
    int file = gpt_make_file(bytes, size);
    if (file < 0) {
        sim_say("object for the simulated device: can't make a file in memory: %s", strerror(errno));
        return NULL;
    }
    char name[128];
    name_file(file, name);
    void *handle = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const struct host_module *module = handle ? dlsym(handle, "host_module") : NULL;
    close(file);
    if (module && module->abi == HOST_ABI)
        return handle;
    sim_say("object for the simulated device: %s",
            !handle  ? dlerror()
            : module ? "made for another version: make it again with 'gpt-asm --arch host'"
                     : "no host_module: make it with 'gpt-asm --arch host'");
    if (handle)
        dlclose(handle);
    return NULL;
}

const struct host_module *sim_module_of(void *handle) { return dlsym(handle, "host_module"); }

void sim_describe_entry(struct entry *entry) {
    const struct host_kernel *kernel = entry->kernel;
    if (kernel->max_threads && kernel->max_threads < (uint32_t)sim_attribute(1))
        entry->attributes[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK] = (int)kernel->max_threads;
    if (kernel->registers)
        sim_set_registers(entry, kernel->registers);
    sim_set_sizes(entry, kernel->shared_size, kernel->local_size);
}
