// The modules of a model that a thread is in, as NVTX ranges in our own domain. gpt/layers/__init__.py calls
// these functions.

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "hook/write/write.h"
#include "watch.h"

static const char *domain(void) {
    static _Atomic(const char *) cached;
    const char *found = atomic_load_explicit(&cached, memory_order_acquire);
    if (UNLIKELY(!found)) {
        const char *made = hook_nvtx_keep_narrow("gpt.layers");
        found = atomic_compare_exchange_strong(&cached, &found, made) ? made
                                                                      : found; // another thread may be first
    }
    return found;
}

bool hook_records_layers(void) {
    // without a driver, a module alone doesn't begin a trace
    bool begun = hook_live && atomic_load_explicit(&hook_live->pid, memory_order_relaxed);
    bool recording = atomic_load_explicit(&hook_recording, memory_order_relaxed);
    return recording && (begun || (hook_live && hook_has_driver())) && domain();
}

int gpt_hook_layer(const char *name) {
    if (!hook_records_layers())
        return 0;
    int error = errno;
    struct nvtx_name text;
    hook_nvtx_take(&text, name);
    hook_nvtx_push(domain(), NULL, text.text);
    errno = error;
    return 1;
}

void gpt_hook_layer_end(void) { hook_nvtx_pop(domain()); }
