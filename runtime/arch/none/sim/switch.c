// Switches between the stacks of lanes, using the C library. That's slow, because each switch makes a system
// call for the signal mask.

#include <ucontext.h>

#include "sim/run.h"

void sim_switch(void **from, void *to) {
    ucontext_t here; // on the stack being left
    *from = &here;
    swapcontext(&here, to);
}

static void *pointer(unsigned high, unsigned low) { return (void *)((uintptr_t)high << 32 | low); }

static void begin(unsigned run_high, unsigned run_low, unsigned high, unsigned low) {
    ((void (*)(struct worker *))pointer(run_high, run_low))(pointer(high, low));
}

// Prepare a stack. Its context is stored at the top of the stack itself. When a lane ends, the code that
// prepares its stack for the next lane still runs on that stack, further down, so it mustn't overwrite its
// own frames.
void *sim_prepare_stack(unsigned char *top, void (*run)(struct worker *), struct worker *worker) {
    enum {
        ROOM = (sizeof(ucontext_t) + 63) / 64 * 64,
        DEPTH = 64 << 10
    }; // makecontext only computes the top from it
    ucontext_t *context = (ucontext_t *)(top - ROOM);
    getcontext(context);
    context->uc_link = NULL;
    context->uc_stack.ss_sp = top - ROOM - DEPTH;
    context->uc_stack.ss_size = DEPTH;
    makecontext(context, (void (*)(void))begin, 4, (unsigned)((uintptr_t)run >> 32), (unsigned)(uintptr_t)run,
                (unsigned)((uintptr_t)worker >> 32), (unsigned)(uintptr_t)worker);
    return context;
}
