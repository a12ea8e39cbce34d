// The modules of a model that a thread is in, as pushed NVTX ranges in a domain of ours.
// gpt/layers/__init__.py and layers_python.c call these functions, from Python's interpreter: that's why
// records are written without holding signals.

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "hook/write/write.h"
#include "watch.h"

#define DOMAIN GPT_STR("gpt.layers")

static TLS unsigned depth; // may exceed LAYERS

static bool is_recording(void) { return atomic_load_explicit(&hook_recording, memory_order_relaxed); }

bool hook_records_layers(void) {
    // without a driver, a module alone doesn't begin a trace
    bool begun = hook_live && atomic_load_explicit(&hook_live->pid, memory_order_relaxed);
    return is_recording() && (begun || (hook_live && hook_has_driver()));
}

int gpt_hook_layer(const char *name) {
    uint64_t now = hook_now();
    int error = errno;
    struct thread *thread = hook_records_layers() ? hook_this_thread() : NULL;
    if (thread && depth++ < LAYERS) {
        uint64_t id = thread->layers[depth - 1] = hook_nvtx_new_id();
        struct gpt_str text = {name, strnlen(name, NVTX_NAME_MAX)};
        HOOK_WRITE_QUICKLY(range, .id = {true, id}, .type = GPT_STR("push"), .thread = thread->tid,
                           .domain = DOMAIN, .name = text, .start = now);
    }
    errno = error;
    return thread != NULL;
}

void gpt_hook_layer_end(void) {
    uint64_t now = hook_now();
    int error = errno;
    if (!depth || --depth >= LAYERS)
        return;
    struct thread *thread = is_recording() ? hook_this_thread() : NULL;
    if (thread && thread->layers[depth]) // 0: it began before a fork
        HOOK_WRITE_QUICKLY(range_end, .id = thread->layers[depth], .thread = thread->tid, .end = now);
    errno = error;
}
