// Counts launches of each kernel, and queries that aren't recorded as calls. This has to cost next to
// nothing, so each thread has its own counters, in its own table.

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "chunk.h"
#include "write.h"

#define FIELD(name, type, member) {GPT_STR(name), GPT_STR(type), offsetof(struct count, member)}
#define COUNTS(id_) FIELD("count", "u64", count), FIELD("first", "u64", first), FIELD(id_, "u32", id)
static const struct gpt_field LAUNCHES[] = {COUNTS("function"), FIELD("probed", "u32", probed)};
static const struct gpt_field QUERIES[] = {COUNTS("api")};

// Rows are numbered consecutively through a list of chunks, the first of which has 4 KiB.

static uint32_t rows_in(unsigned chunk) {
    return (uint32_t)((hook_chunk_size(chunk) - CHUNK_HEAD - CHUNK_TAIL - 256) / sizeof(struct count));
}

// Return the chunk that contains a row, and replace the row's number by its index in that chunk.
static unsigned chunk_of(uint32_t *row) {
    unsigned chunk = 0;
    for (; *row >= rows_in(chunk); chunk++)
        *row -= rows_in(chunk);
    return chunk;
}

static struct count *make_rows(bool query, unsigned number) {
    struct mapped chunk = hook_new_chunk(hook_chunk_size(number), 0);
    if (!chunk.start)
        return NULL;
    struct gpt_launches launches = {.fields = {LAUNCHES, 4}, .stride = sizeof(struct count)};
    struct gpt_counts queries = {.fields = {QUERIES, 3}, .stride = sizeof(struct count)};
    unsigned char *start = chunk.start + CHUNK_HEAD;
    struct gpt_packer buffer = {start, chunk.start + chunk.size - CHUNK_TAIL, false};
    if (query)
        gpt_pack_counts(&buffer, &queries);
    else
        gpt_pack_launches(&buffer, &launches);
    struct count *expected = NULL;
    struct count *rows =
        (struct count *)hook_grow_rows(&buffer, start, rows_in(number) * sizeof(struct count));
    // If two threads get here at once, the second one's chunk stays empty.
    if (!atomic_compare_exchange_strong(&hook_live->counts[query][number], &expected, rows))
        return expected;
    hook_set_used(chunk.start, (uint32_t)(buffer.at - start));
    atomic_fetch_add(&hook_live->tail->records, 1);
    return rows;
}

// Return an unused row.
static struct count *new_row(bool query, uint32_t id) {
    uint32_t index = atomic_fetch_add(&hook_live->count_rows[query], 1);
    unsigned number = chunk_of(&index);
    if (number >= MAX_COUNT_CHUNKS)
        return NULL;
    struct count *rows = atomic_load(&hook_live->counts[query][number]);
    if (!rows && !(rows = make_rows(query, number)))
        return NULL;
    rows[index].id = id;
    return &rows[index];
}

// The table

static uint32_t place_of(const struct thread *thread, uint64_t key) {
    return (uint32_t)(key * COUNTER_FACTOR >> COUNTER_SHIFT) & thread->counters_mask;
}

// Return the entry of a key, or the free entry in which to store it. The table is never full.
static struct counter *find(const struct thread *thread, uint64_t key) {
    uint32_t at = place_of(thread, key);
    while (thread->counters[at].key && thread->counters[at].key != key)
        at = (at + 1) & thread->counters_mask;
    return &thread->counters[at];
}

// Make room in the table: drop the counters of functions that no longer exist, or enlarge it if most of them
// still do.
static bool grow(struct thread *thread) {
    struct counter *old = thread->counters;
    uint32_t old_size = old ? thread->counters_mask + 1 : 0, size = old ? old_size : 256, alive = 0;
    for (uint32_t i = 0; i < old_size; i++)
        alive += old[i].key && hook_is_alive(old[i].reference);
    if (2 * alive >= size)
        size *= 4;
    struct counter *made =
        mmap(NULL, size * sizeof(*made), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return false;
    thread->counters = made;
    thread->counters_mask = size - 1;
    thread->counters_used = alive;
    for (uint32_t i = 0; i < old_size; i++)
        if (old[i].key && hook_is_alive(old[i].reference))
            *find(thread, old[i].key) = old[i];
    if (old)
        munmap(old, old_size * sizeof(*old));
    return true;
}

struct count *hook_find_counter(const struct thread *thread, uint64_t key) {
    const struct counter *counter = thread->counters ? find(thread, key) : NULL;
    return counter && counter->key && hook_is_alive(counter->reference) ? counter->row : NULL;
}

struct count *hook_add_counter(struct thread *thread, uint64_t key, bool query, uint32_t id,
                               struct reference reference) {
    HOOK_HOLD_SIGNALS; // a signal handler that launches must find a complete table
    int error = errno;
    struct count *row = NULL;
    if (((thread->counters && 4 * thread->counters_used < 3 * thread->counters_mask) || grow(thread)) &&
        (row = new_row(query, id))) {
        struct counter *counter = find(thread, key);
        thread->counters_used += !counter->key;
        *counter = (struct counter){key, row, reference};
    }
    errno = error;
    return row;
}

void hook_count(struct count *row, uint64_t now) {
    uint64_t count = atomic_load_explicit(&row->count, memory_order_relaxed);
    if (!count)
        atomic_store_explicit(&row->first, now, memory_order_relaxed);
    atomic_store_explicit(&row->count, count + 1, memory_order_relaxed);
}

void hook_count_probed(struct count *row) {
    uint32_t probed = atomic_load_explicit(&row->probed, memory_order_relaxed);
    atomic_store_explicit(&row->probed, probed + (probed < UINT32_MAX), memory_order_relaxed);
}

uint32_t hook_newest_launch(void) {
    uint32_t newest = 0;
    uint64_t latest = 0;
    for (unsigned number = 0; number < MAX_COUNT_CHUNKS; number++) {
        const struct count *rows = atomic_load(&hook_live->counts[0][number]);
        for (uint32_t i = 0; rows && i < rows_in(number); i++) {
            uint64_t first = atomic_load_explicit(&rows[i].first, memory_order_relaxed);
            if (first > latest) {
                latest = first;
                newest = rows[i].id;
            }
        }
    }
    return newest;
}

struct launch_counts hook_count_launches(void) {
    struct launch_counts total = {0};
    for (unsigned number = 0; number < MAX_COUNT_CHUNKS; number++) {
        const struct count *rows = atomic_load(&hook_live->counts[0][number]);
        for (uint32_t i = 0; rows && i < rows_in(number); i++) {
            total.all += atomic_load_explicit(&rows[i].count, memory_order_relaxed);
            total.probed += atomic_load_explicit(&rows[i].probed, memory_order_relaxed);
        }
    }
    return total;
}

// -- Launches without probes -----------------------------------------------
//
// All threads share a hash table with an entry for each kernel and reason. There are far fewer launches
// without probes than calls, and most kernels have a single reason, so this is fast enough.

enum { BUCKETS = 1 << 12 };

struct counted {
    struct counted *next;
    _Atomic uint64_t launches;
    uint64_t written;
    const struct reason *reason;
    uint32_t function;
};

static _Atomic(struct counted *) buckets[BUCKETS];

void hook_count_unprobed_times(uint32_t function, const struct reason *reason, uint64_t launches) {
    _Atomic(struct counted *) *bucket = &buckets[function % BUCKETS];
    struct counted *head = atomic_load(bucket), *added = NULL;
    for (;;) {
        for (struct counted *at = head; at; at = at->next)
            if (at->function == function && at->reason == reason) {
                atomic_fetch_add_explicit(&at->launches, launches, memory_order_relaxed);
                free(added);
                return;
            }
        if (!added && !(added = calloc(1, sizeof(*added))))
            return;
        *added = (struct counted){.next = head, .launches = launches, .reason = reason, .function = function};
        if (atomic_compare_exchange_strong(bucket, &head, added))
            return;
    }
}

void hook_count_unprobed(uint32_t function, const struct reason *reason) {
    hook_count_unprobed_times(function, reason, 1);
}

void hook_write_unprobed(void) {
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct counted *at = atomic_load(&buckets[i]); at; at = at->next) {
            uint64_t launches = atomic_load(&at->launches);
            if (launches > at->written &&
                HOOK_WRITE(unprobed, .function = at->function, .launches = launches - at->written,
                           .code = hook_str(at->reason->code), .detail = hook_str(at->reason->detail)))
                at->written = launches;
        }
}

uint64_t hook_unprobed_total(void) {
    uint64_t total = 0;
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct counted *at = atomic_load(&buckets[i]); at; at = at->next)
            total += atomic_load(&at->launches);
    return total;
}
