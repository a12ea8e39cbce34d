// Built into libgpthook.so, with --wrap for the functions below: counts the driver calls that the library
// makes on the program's first thread, and how often a slab is claimed, and prints the counts at the end.

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "hook/probe/driver_calls.h"
#include "hook/probe/probe.h"

static struct probe_calls found;
static struct context_calls found_contexts;
static struct {
    unsigned get_context, push_context, pop_context;
#define CALL(member, name, ...) unsigned member;
    PROBE_CALLS(CALL)
#undef CALL
} counts;

typedef uint64_t word;
typedef CUresult general(word, word, word, word, word, word, word, word, word, word, word);

#define CALL(member, name, ...)                                                                              \
    static CUresult count_##member(word a, word b, word c, word d, word e, word f, word g, word h, word i,   \
                                   word j, word k) {                                                         \
        counts.member += gettid() == getpid();                                                               \
        return ((general *)(uintptr_t)found.member)(a, b, c, d, e, f, g, h, i, j, k);                        \
    }
PROBE_CALLS(CALL)
#undef CALL

static CUresult get_context(uint64_t *context) {
    counts.get_context += gettid() == getpid();
    return found_contexts.get(context);
}

static CUresult push_context(uint64_t context) {
    counts.push_context += gettid() == getpid();
    return found_contexts.push(context);
}

static CUresult pop_context(uint64_t *context) {
    counts.pop_context += gettid() == getpid();
    return found_contexts.pop(context);
}

bool __real_hook_find_probe_calls(void);

bool __wrap_hook_find_probe_calls(void) {
    static bool begun;
    bool good = __real_hook_find_probe_calls();
    if (!good || begun)
        return good;
    begun = true;
    found = hook_do;
    found_contexts = hook_context_calls;
    hook_context_calls = (struct context_calls){get_context, push_context, pop_context};
#define CALL(member, name, ...) hook_do.member = (__typeof__(hook_do.member))(uintptr_t)count_##member;
    PROBE_CALLS(CALL)
#undef CALL
    return true;
}

uint64_t __real_hook_current_context(void);

// It may remember the context, but must not be wrong.
uint64_t __wrap_hook_current_context(void) {
    uint64_t context = __real_hook_current_context(), now = 0;
    if (found_contexts.get && (found_contexts.get(&now) ? 0 : now) != context)
        abort();
    return context;
}

static _Atomic unsigned claims;

void __real_hook_step(struct slab *slab, enum slab_event event);

void __wrap_hook_step(struct slab *slab, enum slab_event event) {
    claims += event == SLAB_CLAIM;
    __real_hook_step(slab, event);
}

__attribute__((destructor)) static void print_counts(void) {
#define CALL(member, name, ...)                                                                              \
    if (counts.member)                                                                                       \
        printf("%s %u\n", name, counts.member);
    PROBE_CALLS(CALL)
#undef CALL
    printf("cuCtxGetCurrent %u\ncuCtxPushCurrent %u\ncuCtxPopCurrent %u\n", counts.get_context,
           counts.push_context, counts.pop_context);
    printf("claims %u\n", claims);
}
