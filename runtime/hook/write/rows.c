// Rows of a trace: their layouts, and the batches that a thread takes them from, `calls` records that are
// whole from the start, of rows that are zero until they are used.

#include <errno.h>
#include <stdatomic.h>

#include "write.h"

// Layouts of rows

#define FIELD(row, member, type_) {GPT_STR(#member), GPT_STR(type_), offsetof(struct row, member)}
#define ITEM(name_, type_, at) {GPT_STR(name_), GPT_STR(type_), at}
#define CALL                                                                                                 \
    FIELD(row, start, "u64"), FIELD(row, duration, "u64"), FIELD(row, api, "u32"), FIELD(row, result, "i32")

static const struct gpt_field PLAIN[] = {CALL};
static const struct gpt_field OBJECT[] = {
    CALL,
    FIELD(row_object, object, "u64"),
    FIELD(row_object, stream, "u64"),
};
static const struct gpt_field MEMORY[] = {
    CALL,
    FIELD(row_memory, to, "u64"),
    FIELD(row_memory, from, "u64"),
    FIELD(row_memory, bytes, "u64"),
    FIELD(row_memory, stream, "u64"),
};
static const struct gpt_field LAUNCH[] = {
    CALL,
    FIELD(row_launch, stream, "u64"),
    FIELD(row_launch, function, "u32"),
    FIELD(row_launch, shared, "u32"),
    ITEM("grid_x", "u32", offsetof(struct row_launch, grid)),
    ITEM("grid_y", "u32", offsetof(struct row_launch, grid) + 4),
    ITEM("grid_z", "u32", offsetof(struct row_launch, grid) + 8),
    ITEM("block_x", "u16", offsetof(struct row_launch, block)),
    ITEM("block_y", "u16", offsetof(struct row_launch, block) + 2),
    ITEM("block_z", "u16", offsetof(struct row_launch, block) + 4),
    ITEM("cluster_x", "u8", offsetof(struct row_launch, cluster)),
    ITEM("cluster_y", "u8", offsetof(struct row_launch, cluster) + 1),
    ITEM("cluster_z", "u8", offsetof(struct row_launch, cluster) + 2),
    ITEM("cooperative", "u8", offsetof(struct row_launch, cooperative)),
};

static const struct gpt_field GPU[] = {
    FIELD(row_gpu, begin, "u64"),  FIELD(row_gpu, duration, "u64"), FIELD(row_gpu, call, "u64"),
    FIELD(row_gpu, stream, "u64"), FIELD(row_gpu, api, "u32"),      FIELD(row_gpu, function, "u32"),
    FIELD(row_gpu, thread, "u32"), FIELD(row_gpu, probed, "u32"),   FIELD(row_gpu, device, "u32"),
};

#define FIELDS(layout) layout, sizeof(layout) / sizeof(*layout)
const struct row_layout hook_layouts[LAYOUTS] = {
    [LAYOUT_PLAIN] = {FIELDS(PLAIN), sizeof(struct row)},
    [LAYOUT_OBJECT] = {FIELDS(OBJECT), sizeof(struct row_object)},
    [LAYOUT_MEMORY] = {FIELDS(MEMORY), sizeof(struct row_memory)},
    [LAYOUT_LAUNCH] = {FIELDS(LAUNCH), sizeof(struct row_launch)},
    [LAYOUT_GPU] = {FIELDS(GPU), sizeof(struct row_gpu)},
};

#define MAX_ROWS 512

// Makes a `calls` record of unused rows in the thread's chunk.
bool hook_new_batch(struct thread *thread, enum layout layout) {
    if (hook_writing)
        return false;
    HOOK_CALM;
    int error = errno;
    hook_writing = true;
    struct batch *batch = &thread->batches[layout];
    uint32_t count = batch->rows;
    unsigned char *rows = NULL;
    struct gpt_packer buffer;
    for (int try = 0; try < TRIES && !rows && hook_open(&buffer, try); try++) {
        struct gpt_calls calls = {
            .thread = thread->tid,
            .fields = {hook_layouts[layout].items, hook_layouts[layout].count},
            .stride = hook_layouts[layout].stride,
        };
        unsigned char *start = buffer.at;
        size_t room = (size_t)(buffer.end - start), fit = room < 1024 ? 0 : (room - 1024) / calls.stride;
        if (fit < 16)
            continue; // in the next chunk
        count = fit <= count ? (uint32_t)fit - 1 : count;
        struct gpt_gpu_times times = {.fields = {hook_layouts[layout].items, hook_layouts[layout].count},
                                      .stride = calls.stride};
        if (layout == LAYOUT_GPU ? gpt_pack_gpu_times(&buffer, &times) : gpt_pack_calls(&buffer, &calls))
            rows = hook_grow_rows(&buffer, start, (count + 1) * hook_layouts[layout].stride);
    }
    if (rows && hook_close(&buffer)) {
        batch->next = rows;
        atomic_signal_fence(memory_order_seq_cst);
        batch->end = rows + count * hook_layouts[layout].stride;
        if (batch->rows < MAX_ROWS)
            batch->rows *= 2;
    }
    hook_writing = false;
    errno = error;
    return rows;
}

struct row_gpu *hook_new_gpu_row(struct thread *thread) {
    return (struct row_gpu *)hook_take_row(thread, LAYOUT_GPU);
}

// The call that began last of those that have not returned. Where one of the same layout returned within it
// since, it is not found.
const struct row *hook_call_in_flight(const struct thread *thread) {
    const struct row *found = thread->in_flight;
    if (found && atomic_load_explicit(&found->duration, memory_order_relaxed))
        found = NULL;
    for (int layout = 0; layout <= LAYOUT_LAUNCH; layout++) {
        const struct batch *batch = &thread->batches[layout];
        if (!batch->next || batch->next > batch->end)
            continue;
        const struct row *row = (void *)(batch->next - hook_layouts[layout].stride);
        uint64_t start = atomic_load_explicit(&row->start, memory_order_relaxed);
        if (!atomic_load_explicit(&row->duration, memory_order_relaxed) && (!found || start > found->start))
            found = row;
    }
    return found;
}
