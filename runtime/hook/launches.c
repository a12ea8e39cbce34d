// How often each kernel was launched. That is counted also where calls are not recorded, so it must cost next
// to nothing: a thread has counters of its own, and finds them in a table of its own.

#include <errno.h>
#include <sys/mman.h>

#include "hook.h"

static const struct gpt_field COUNTS[] = {
    {GPT_STR("count"), GPT_STR("u64"), offsetof(struct launches, count)},
    {GPT_STR("first"), GPT_STR("u64"), offsetof(struct launches, first)},
    {GPT_STR("function"), GPT_STR("u32"), offsetof(struct launches, function)},
};

#define ROWS_A_CHUNK 20000
_Static_assert(ROWS_A_CHUNK * sizeof(struct launches) + 1024 < CHUNK_SIZE, "they fit");

// A row that nobody has.
static struct launches *new_row(uint32_t function) {
    uint32_t index = atomic_fetch_add(&hook_live->launch_rows, 1), number = index / ROWS_A_CHUNK;
    if (number >= MAX_LAUNCH_CHUNKS)
        return NULL;
    if (!atomic_load(&hook_live->launches[number])) {
        unsigned char *chunk = hook_new_chunk();
        if (!chunk)
            return NULL;
        struct gpt_launches record = {.fields = {COUNTS, sizeof(COUNTS) / sizeof(*COUNTS)},
                                      .stride = sizeof(struct launches)};
        struct gpt_buffer buffer = {chunk + CHUNK_HEAD, chunk + CHUNK_SIZE - CHUNK_TAIL, false};
        gpt_pack_launches(&buffer, &record);
        unsigned char *expected = NULL, *rows = hook_grow_rows(&buffer, chunk + CHUNK_HEAD,
                                                               ROWS_A_CHUNK * sizeof(struct launches));
        // Where two threads meet here, the second one's chunk stays empty.
        if (atomic_compare_exchange_strong(&hook_live->launches[number], &expected, rows)) {
            hook_set_used(chunk, (uint32_t)(buffer.at - chunk - CHUNK_HEAD));
            atomic_fetch_add(&hook_live->tail->records, 1);
        }
    }
    struct launches *row =
        (struct launches *)atomic_load(&hook_live->launches[number]) + index % ROWS_A_CHUNK;
    row->function = function;
    return row;
}

// The table

static uint32_t place_of(const struct thread *thread, uint64_t handle) {
    return (uint32_t)(handle * 0x9e3779b97f4a7c15u >> 40) & (thread->counters_size - 1);
}

// The handle's place, or the one where it would be. The table is never full.
static struct counter *find(const struct thread *thread, uint64_t handle) {
    uint32_t at = place_of(thread, handle);
    while (thread->counters[at].handle && thread->counters[at].handle != handle)
        at = (at + 1) & (thread->counters_size - 1);
    return &thread->counters[at];
}

static bool grow(struct thread *thread) {
    uint32_t old_size = thread->counters_size, size = old_size ? 4 * old_size : 256;
    struct counter *old = thread->counters, *made = mmap(NULL, size * sizeof(*made), PROT_READ | PROT_WRITE,
                                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return false;
    thread->counters = made;
    thread->counters_size = size;
    for (uint32_t i = 0; i < old_size; i++)
        if (old[i].handle)
            *find(thread, old[i].handle) = old[i];
    if (old)
        munmap(old, old_size * sizeof(*old));
    return true;
}

// Forgets the counters of handles that stand for other functions now.
static void review(struct thread *thread) {
    thread->renamed = atomic_load(&hook_live->renamed);
    for (uint32_t i = 0; i < thread->counters_size; i++) {
        struct counter *counter = &thread->counters[i];
        if (counter->row && counter->row->function != hook_function_of(counter->handle))
            counter->row = NULL;
    }
}

struct launches *hook_counter(struct thread *thread, uint64_t handle) {
    if (UNLIKELY(thread->renamed != atomic_load_explicit(&hook_live->renamed, memory_order_acquire)))
        review(thread);
    struct counter *counter = thread->counters ? find(thread, handle) : NULL;
    if (LIKELY(counter && counter->row))
        return counter->row;

    int error = errno;
    uint32_t function = hook_function_of(handle);
    struct launches *row = NULL;
    if (function && (4 * thread->counters_used < 3 * thread->counters_size || grow(thread)) &&
        (row = new_row(function))) {
        counter = find(thread, handle);
        thread->counters_used += !counter->handle;
        *counter = (struct counter){handle, row};
    }
    errno = error;
    return row;
}

void hook_count(struct launches *row, uint64_t now) {
    uint64_t count = atomic_load_explicit(&row->count, memory_order_relaxed);
    if (!count)
        atomic_store_explicit(&row->first, now, memory_order_relaxed);
    atomic_store_explicit(&row->count, count + 1, memory_order_relaxed);
}

// What a stub calls for a launch that is counted and nothing else. It may use no register but rax, for the
// others hold arguments. Gives whether the launch is counted; else it is one to look at: the first of its
// function. One that fails later is counted too.
#define KEEPS_REGISTERS __attribute__((no_caller_saved_registers, target("general-regs-only")))
KEEPS_REGISTERS bool hook_count_first(uint64_t handle);
KEEPS_REGISTERS bool hook_count_second(uint64_t, uint64_t handle);

__attribute__((always_inline, target("general-regs-only"))) static inline bool count(uint64_t handle) {
    struct thread *thread = hook_thread;
    if (!thread || thread->pid != atomic_load_explicit(&hook_live->pid, memory_order_relaxed) ||
        !thread->counters ||
        thread->renamed != atomic_load_explicit(&hook_live->renamed, memory_order_relaxed))
        return false;
    const struct counter *counter = &thread->counters[place_of(thread, handle)];
    if (counter->handle != handle || !counter->row)
        return false;
    uint64_t counted = atomic_load_explicit(&counter->row->count, memory_order_relaxed);
    if (!counted)
        return false;
    atomic_store_explicit(&counter->row->count, counted + 1, memory_order_relaxed);
    return true;
}

bool hook_count_first(uint64_t handle) { return count(handle); }
bool hook_count_second(uint64_t unused, uint64_t handle) {
    (void)unused;
    return count(handle);
}
