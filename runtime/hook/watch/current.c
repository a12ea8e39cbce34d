// The current context of a thread.

#include <stdatomic.h>

#include "abi/cuda.h"
#include "hook/write/write.h"
#include "watch.h"

struct context_calls hook_context_calls;

static bool find_calls(void) {
    struct context_calls *calls = &hook_context_calls;
    calls->get = (__typeof__(calls->get))(uintptr_t)hook_driver_function("cuCtxGetCurrent");
    calls->push = (__typeof__(calls->push))(uintptr_t)hook_driver_function("cuCtxPushCurrent_v2");
    calls->pop = (__typeof__(calls->pop))(uintptr_t)hook_driver_function("cuCtxPopCurrent_v2");
    return calls->get && calls->push && calls->pop;
}

bool hook_find_context_calls(void) {
    static _Atomic int found;
    return hook_find_once(&found, find_calls);
}

// A launch with probes needs the current context, and the driver is asked for it only once: after that, a
// thread remembers it. A call that sets a thread's context makes that thread forget it, and a call that may
// end a context makes all threads forget theirs. These calls are watched, from the program's start, only if
// kernels may get probes; otherwise nothing is remembered. If a program changes contexts behind our back, by
// a function that we don't know, a launch with the wrong kernel fails and is repeated without probes.
static TLS struct {
    uint64_t context, ends;
} remembered;

static _Atomic uint64_t ends = 1;
static _Atomic bool remembers;

static void forget_current(void) { remembered.ends = 0; }

void hook_remember_contexts(bool on) {
    atomic_store(&remembers, on);
    atomic_fetch_add(&ends, 1);
}

// The query has no side effect that the program could see.
uint64_t hook_current_context(void) {
    uint64_t now = atomic_load_explicit(&ends, memory_order_acquire), context = 0;
    if (LIKELY(remembered.ends == now))
        return remembered.context;
    if (!hook_find_context_calls() || hook_context_calls.get(&context) != CUDA_SUCCESS)
        return 0;
    remembered.context = context;
    remembered.ends = context && atomic_load_explicit(&remembers, memory_order_relaxed) ? now : 0;
    return context;
}

// For our own calls in another context
CUresult hook_push_context(uint64_t context) {
    forget_current();
    return hook_find_context_calls() ? hook_context_calls.push(context) : CUDA_ERROR_NOT_FOUND;
}

void hook_pop_context(void) {
    uint64_t unused;
    hook_context_calls.pop(&unused);
    forget_current();
}

// cuCtxSetCurrent, cuCtxCreate and so on. A call that fails may have set it, too.
void hook_after_context_set(struct frame *frame) {
    (void)frame;
    forget_current();
}

// cuCtxDestroy, cuDevicePrimaryCtxReset and so on
void hook_after_context_end(struct frame *frame) {
    (void)frame;
    atomic_fetch_add(&ends, 1);
}
