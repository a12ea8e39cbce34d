// Rows: how they are described to readers, and how a thread takes one.

#ifndef GPT_ROWS_H
#define GPT_ROWS_H

#include <stdbool.h>
#include <stddef.h>

#include "compiler.h"
#include "records.h"
#include "thread.h"

static inline unsigned char *hook_take(struct batch *batch, size_t stride) {
#ifdef __x86_64__
    __asm__("xaddq %0, %1" : "+r"(stride), "+m"(batch->next) : : "cc");
    return (unsigned char *)stride;
#else
    unsigned char *row = batch->next;
    batch->next += stride;
    return row;
#endif
}

struct row_layout {
    const struct gpt_field *items;
    size_t count, stride; // fields, bytes of a row
};
extern const struct row_layout hook_layouts[LAYOUTS];
bool hook_new_batch(struct thread *thread, enum layout layout);

// A free row, or NULL.
static inline unsigned char *hook_take_row(struct thread *thread, enum layout layout) {
    struct batch *batch = &thread->batches[layout];
    unsigned char *row = hook_take(batch, hook_layouts[layout].stride);
    if (LIKELY(row < batch->end))
        return row;
    if (!hook_new_batch(thread, layout))
        return NULL;
    row = hook_take(batch, hook_layouts[layout].stride);
    return row < batch->end ? row : NULL;
}

struct row_gpu *hook_new_gpu_row(struct thread *thread);
const struct row *hook_call_in_flight(const struct thread *thread); // the innermost, or NULL

#endif
