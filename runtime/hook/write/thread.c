// The threads that write to the trace. Each of them has a chunk of its own, and the more it writes, the
// larger its chunks get: the first has 4 KiB, the next four times as much. A thread that has used half of a
// larger chunk prepares the next one before a call that waits for the GPU, so that no launch is delayed by
// this.

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "chunk.h"
#include "write.h"

TLS struct thread *hook_thread;
TLS const void *hook_calling;
TLS bool hook_in_vfork;
static pthread_key_t exit_key;

struct mapped hook_next_chunk(struct thread *thread, uint32_t size) {
    struct mapped spare = thread->spare;
    if (spare.size < size)
        return hook_new_chunk(size, 0);
    thread->spare = (struct mapped){0};
    return spare;
}

static void retire(struct thread *thread, struct mapped *chunk) {
    if (chunk->start) {
        if ((uintptr_t)thread->in_flight - (uintptr_t)chunk->start < chunk->size)
            thread->in_flight = NULL;
        atomic_store_explicit(&mapped_tail(*chunk)->closed, 1, memory_order_release);
        hook_unmap(chunk->start, chunk->size);
    }
    *chunk = (struct mapped){0};
}

// Prepare the next chunk. This isn't worth it for small chunks, since most threads end before they fill one.
// Once the newest of the earlier chunks has the largest size, the older ones are unmapped here as well,
// because unmapping takes time too.
void hook_make_spare(struct thread *thread) {
    size_t size = thread->chunk.size;
    if (size < 64 << 10 || thread->used < size / 2 || thread->spare.start)
        return;
    HOOK_HOLD_SIGNALS; // a signal handler that launches may take it
    uint32_t next = hook_chunk_after((uint32_t)size);
    if (hook_limit_chunk(next) == next)
        thread->spare = hook_new_chunk(next, 0);
    for (int i = 1; i < EARLIER && thread->earlier[0].size == CHUNK_MAX; i++)
        retire(thread, &thread->earlier[i]);
}

bool hook_use_chunk(struct thread *thread, struct mapped chunk) {
    if (!chunk.start)
        return false;
    retire(thread, &thread->earlier[EARLIER - 1]);
    thread->in_flight = hook_call_in_flight(thread);
    memmove(&thread->earlier[1], &thread->earlier[0], (EARLIER - 1) * sizeof(struct mapped));
    thread->earlier[0] = thread->chunk;
    thread->chunk = chunk;
    thread->used = 0;
    for (int i = 0; i < LAYOUTS; i++)
        thread->batches[i].end = thread->batches[i].next = NULL;
    return true;
}

// Starting and ending threads

// When a thread ends, leave its chunk to the next thread that begins.
static void leave_thread(void *state) {
    struct thread *thread = state;
    hook_thread = NULL;
    thread->in_flight = NULL;
    atomic_store_explicit(&thread->caller, 0, memory_order_relaxed);
    if (thread->pid != atomic_load(&hook_live->pid))
        return;
    if (atomic_exchange(&hook_live->pool_lock, 1))
        return;
    thread->next = hook_live->pool;
    hook_live->pool = thread;
    atomic_store(&hook_live->pool_lock, 0);
}

static TLS bool is_ours; // hook_start_thread started this thread

struct thread *hook_new_thread(void) {
    struct thread *thread = NULL;
    if (!atomic_exchange(&hook_live->pool_lock, 1)) { // never wait for the lock
        thread = hook_live->pool;
        if (thread)
            hook_live->pool = thread->next;
        atomic_store(&hook_live->pool_lock, 0);
    }
    if (!thread) {
        thread = mmap(NULL, sizeof(*thread), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (thread == MAP_FAILED) {
            hook_fail("memory", errno);
            return NULL;
        }
        thread->older = atomic_load(&hook_live->threads);
        while (!atomic_compare_exchange_weak(&hook_live->threads, &thread->older, thread))
            continue;
    }
    for (int i = 0; i < LAYOUTS; i++)
        thread->batches[i] = (struct batch){.rows = 16};
    thread->tid = (uint32_t)syscall(SYS_gettid);
    atomic_store_explicit(&thread->caller, is_ours ? 0 : thread->tid, memory_order_relaxed);
    pthread_setspecific(exit_key, thread);
    return thread;
}

// This thread blocks all signals as long as it runs. Mark them as held, so that HOOK_HOLD_SIGNALS costs
// nothing.
static void *begin_thread(void *work) {
    is_ours = true;
    struct held_signals all = hook_hold_signals();
    pthread_sigmask(SIG_SETMASK, &all.signals, NULL);
    return ((void *(*)(void *))(uintptr_t)work)(NULL);
}

// The new thread blocks all signals except SIGBUS, which is raised when somebody truncates a trace (file.c).
bool hook_start_thread(void *(*work)(void *)) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = !pthread_create(&thread, NULL, begin_thread, (void *)(uintptr_t)work);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(thread);
    return started;
}

enum { UNSHARE = 2 }; // CLOSE_RANGE_UNSHARE

// Used on kernels without close_range (before 5.9), or if a system call filter rejects it.
static bool close_each(int except) {
    DIR *files = syscall(SYS_unshare, CLONE_FILES) ? NULL : opendir("/proc/thread-self/fd");
    if (!files)
        return false;
    for (struct dirent *entry; (entry = readdir(files));) {
        int file = atoi(entry->d_name);
        if (*entry->d_name != '.' && file != except && file != dirfd(files))
            close(file);
    }
    closedir(files);
    return true;
}

bool hook_own_files(int except) {
    if (syscall(SYS_close_range, except + 1, ~0u, UNSHARE))
        return close_each(except);
    if (except > 0)
        syscall(SYS_close_range, 0, except - 1, 0);
    return true;
}

static bool (*start_trace)(void);
static void (*begin_recording)(void);

void hook_threads_setup(bool (*start)(void), void (*begin)(void)) {
    start_trace = start, begin_recording = begin;
    pthread_key_create(&exit_key, leave_thread);
}

static TLS bool busy; // this thread is in code that must not call itself

struct thread *hook_begin_thread(void) {
    if (busy || hook_in_vfork || !hook_live || atomic_load(&hook_live->state) == OFF)
        return NULL;
    HOOK_HOLD_SIGNALS;
    int error = errno;
    busy = true;
    uint32_t state = FRESH;
    bool started = atomic_compare_exchange_strong(&hook_live->state, &state, STARTING) && start_trace();
    // Another thread is beginning the trace. It opens a file, but neither calls the program nor waits for
    // anybody, so it's safe to wait for it.
    while (!started && (state = atomic_load(&hook_live->state)) == STARTING)
        sched_yield();
    struct thread *thread = started ? hook_thread : NULL;
    if (!started && state == ON && (thread = hook_new_thread())) {
        thread->pid = atomic_load(&hook_live->pid);
        if (thread->chunk.start || hook_use_chunk(thread, hook_new_chunk(hook_chunk_size(0), 0)))
            hook_thread = thread;
        else
            thread = NULL;
    }
    busy = false;
    if (started)
        begin_recording();
    errno = error;
    return thread;
}

// -- Records ---------------------------------------------------------------
//
// Records are packed into the chunk of the thread that writes them.

TLS bool hook_writing;

bool hook_open(struct gpt_packer *buffer, int try) {
    struct thread *thread = hook_this_thread();
    if (!thread)
        return false;
    if (try) {
        uint32_t size =
            try > 1 ? CHUNK_MAX : hook_limit_chunk(hook_chunk_after((uint32_t)thread->chunk.size));
        if (try > 1 && thread->chunk.size == CHUNK_MAX) // the record is larger than that
            return false;
        if (!hook_use_chunk(thread, hook_next_chunk(thread, size)))
            return false;
        *buffer = mapped_room(thread->chunk, 0);
        if (hook_has_tsc && gpt_pack_clock(buffer, &(struct gpt_clock){hook_monotonic(), hook_now()}))
            hook_close(buffer);
    }
    *buffer = mapped_room(thread->chunk, thread->used);
    if (UNLIKELY(hook_limit_reached()) && hook_tell_limit(buffer, hook_now()))
        hook_close(buffer);
    return true;
}

bool hook_close(struct gpt_packer *buffer) {
    struct thread *thread = hook_thread;
    if (UNLIKELY(!thread)) // a child that was forked by a signal handler in between
        return false;
    thread->used = (uint32_t)(buffer->at - thread->chunk.start - CHUNK_HEAD);
    hook_set_used(thread->chunk.start, thread->used);
    atomic_fetch_add_explicit(&hook_live->tail->records, 1, memory_order_relaxed);
    return true;
}

unsigned char *hook_grow_rows(struct gpt_packer *buffer, unsigned char *start, size_t size) {
    struct gpt_packer head = {buffer->at - 2, buffer->end, false}; // the type of bytes, and 0
    gpt_put_head(&head, size, 0, 0, 0xc4, 0xc5);
    size_t pad = -(uintptr_t)head.at & 7;
    if (head.full || pad + size > (size_t)(head.end - head.at))
        return NULL;
    memmove(start + pad, start, (size_t)(head.at - start));
    memset(start, 0, pad); // between records
    buffer->at = head.at + pad + size;
    return head.at + pad;
}

// -- Rows ------------------------------------------------------------------
//
// The rows of a trace: their layouts, and the batches in which a thread gets unused ones. A batch is a
// complete `calls` record from the start; its rows contain only zeros until they're used.

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

// Write a `calls` record with unused rows into the thread's chunk.
bool hook_new_batch(struct thread *thread, enum layout layout) {
    if (hook_writing)
        return false;
    HOOK_HOLD_SIGNALS;
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

// Return the most recent call that is still in flight. It isn't found if a nested call of the same layout
// began after it, even though that one has returned.
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

// -- Time stamps -----------------------------------------------------------
//
// Time stamps come from the processor's own clock if it has one (arch_hook.h). The header of a trace and
// its `clock` records relate that clock to CLOCK_MONOTONIC.

bool hook_has_tsc;

static struct {
    uint64_t tsc, monotonic;
} first;

uint64_t hook_monotonic(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void hook_clock_setup(void) {
    hook_has_tsc = arch_has_clock();
    first.monotonic = hook_monotonic();
    first.tsc = hook_now();
}

uint64_t hook_tsc_hz(void) {
    if (!hook_has_tsc)
        return 0;
    // Measuring the frequency takes at least 2 ms for five digits. Usually more time has passed between
    // loading the library and the first call of the driver, and we needn't wait. The `clock` records of the
    // trace give the remaining digits.
    uint64_t ns;
    do
        ns = hook_monotonic() - first.monotonic;
    while (ns < 2000000);
    uint64_t ticks = hook_now() - first.tsc;
    return (uint64_t)((double)ticks * 1e9 / (double)ns);
}
