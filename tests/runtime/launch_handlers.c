// Handlers of launches, for a library that test_handlers.py builds with them.

#include <stdio.h>
#include <stdlib.h>

#include "abi/cuda.h"
#include "hook/watch/watch.h"

static struct {
    unsigned before, after, failed;
} calls;

// This is called in place of cuLaunchKernel. It prints its arguments, including those on the stack.
static CUresult replacement(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                            unsigned bz, unsigned shared, void *stream, void **params, void **extra) {
    printf("%p %u %u %u %u %u %u %u %p %p %p\n", function, gx, gy, gz, bx, by, bz, shared, stream,
           (void *)params, (void *)extra);
    return CUDA_SUCCESS;
}

static void show(const struct property *property, void *count) {
    unsigned long long number = property->number, value = property->value, size = property->size;
    printf("%u: %llu %llu %llu\n", property->what, number, value, size);
    ++*(int *)count;
}

void hook_before_launch(struct frame *frame) {
    const char *wanted = getenv("TEST_HANDLERS");
    calls.before++;
    frame->note = (struct note){NOTE_GENERATION, {.number = calls.before}};
    if (!strcmp(wanted, "answer"))
        frame_answer(frame, 999);
    else if (!strcmp(wanted, "ask") && calls.before == 1) {
        int seen = 0, parameters = hook_ask_parameters(frame_arg(frame, 0));
        hook_object_each(frame_arg(frame, 0), show, &seen);
        printf("%d parameters, %d properties\n", parameters, seen);
    } else if (!strcmp(wanted, "change")) {
        frame_set_arg(frame, 0, 0xf00), frame_set_arg(frame, 5, 77);
        frame_set_arg(frame, 7, 4096), frame_set_arg(frame, 9, 0xa00);
        frame->real = (void *)replacement;
    }
}

void hook_after_launch(struct frame *frame) {
    calls.after += frame->note.kind == NOTE_GENERATION && frame->note.number == calls.before;
    calls.failed += (CUresult)frame->result != CUDA_SUCCESS;
}

__attribute__((destructor)) static void tell(void) {
    printf("before %u after %u failed %u\n", calls.before, calls.after, calls.failed);
}
