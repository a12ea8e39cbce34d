// How often each kernel was launched, and each query made that is not recorded as a call. That is to cost
// next to nothing: a thread has counters of its own, and finds them in a table of its own.

#include <errno.h>
#include <sys/mman.h>

#include "hook.h"

#define COUNTS(id_)                                                                                          \
    {                                                                                                        \
        {GPT_STR("count"), GPT_STR("u64"), offsetof(struct count, count)},                                   \
        {GPT_STR("first"), GPT_STR("u64"), offsetof(struct count, first)},                                   \
        {GPT_STR(id_), GPT_STR("u32"), offsetof(struct count, id)},                                          \
    }
static const struct gpt_field LAUNCHES[3] = COUNTS("function"), QUERIES[3] = COUNTS("api");

#define ROWS_A_CHUNK 20000
_Static_assert(ROWS_A_CHUNK * sizeof(struct count) + 1024 < CHUNK_SIZE, "they fit");

static struct slot *query_of(uint64_t key) {
    return key - (uint64_t)hook_slots < sizeof(hook_slots) ? (struct slot *)key : NULL;
}

// A row that nobody has.
static struct count *new_row(uint64_t key, uint32_t id) {
    bool query = query_of(key);
    uint32_t index = atomic_fetch_add(&hook_live->count_rows[query], 1), number = index / ROWS_A_CHUNK;
    if (number >= MAX_COUNT_CHUNKS)
        return NULL;
    unsigned char *_Atomic *place = &hook_live->counts[query][number];
    if (!atomic_load(place)) {
        unsigned char *chunk = hook_new_chunk();
        if (!chunk)
            return NULL;
        struct gpt_launches launches = {.fields = {LAUNCHES, 3}, .stride = sizeof(struct count)};
        struct gpt_counts queries = {.fields = {QUERIES, 3}, .stride = sizeof(struct count)};
        struct gpt_buffer buffer = {chunk + CHUNK_HEAD, chunk + CHUNK_SIZE - CHUNK_TAIL, false};
        if (query)
            gpt_pack_counts(&buffer, &queries);
        else
            gpt_pack_launches(&buffer, &launches);
        unsigned char *expected = NULL, *rows = hook_grow_rows(&buffer, chunk + CHUNK_HEAD,
                                                               ROWS_A_CHUNK * sizeof(struct count));
        // Where two threads meet here, the second one's chunk stays empty.
        if (atomic_compare_exchange_strong(place, &expected, rows)) {
            hook_set_used(chunk, (uint32_t)(buffer.at - chunk - CHUNK_HEAD));
            atomic_fetch_add(&hook_live->tail->records, 1);
        }
    }
    struct count *row = (struct count *)atomic_load(place) + index % ROWS_A_CHUNK;
    row->id = id;
    return row;
}

// The table

__attribute__((target("general-regs-only"))) static inline uint32_t place_of(const struct thread *thread,
                                                                             uint64_t key) {
    return (uint32_t)(key * 0x9e3779b97f4a7c15u >> 40) & (thread->counters_size - 1);
}

// The key's place, or the one where it would be. The table is never full.
static struct counter *find(const struct thread *thread, uint64_t key) {
    uint32_t at = place_of(thread, key);
    while (thread->counters[at].key && thread->counters[at].key != key)
        at = (at + 1) & (thread->counters_size - 1);
    return &thread->counters[at];
}

// Makes room: without the counters of functions that are gone, and larger if most are not.
static bool grow(struct thread *thread) {
    uint32_t old_size = thread->counters_size, size = old_size ? old_size : 256, alive = 0;
    struct counter *old = thread->counters;
    for (uint32_t i = 0; i < old_size; i++)
        alive += old[i].key && hook_is_alive(old[i].reference);
    if (2 * alive >= size)
        size *= 4;
    struct counter *made =
        mmap(NULL, size * sizeof(*made), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED)
        return false;
    thread->counters = made;
    thread->counters_size = size;
    thread->counters_used = alive;
    for (uint32_t i = 0; i < old_size; i++)
        if (old[i].key && hook_is_alive(old[i].reference))
            *find(thread, old[i].key) = old[i];
    if (old)
        munmap(old, old_size * sizeof(*old));
    return true;
}

struct count *hook_counter(struct thread *thread, uint64_t key) {
    struct counter *counter = thread->counters ? find(thread, key) : NULL;
    if (LIKELY(counter && counter->key && hook_is_alive(counter->reference)))
        return counter->row;

    HOOK_CALM; // a handler that launches must find a table that is whole
    static const _Atomic uint64_t for_ever = 1;
    struct object_view view = {.reference = {&for_ever, 1}};
    int error = errno;
    uint32_t id = query_of(key) ? query_of(key)->id : hook_object_look(key, &view) ? view.id : 0;
    struct count *row = NULL;
    if (id && (4 * thread->counters_used < 3 * thread->counters_size || grow(thread)) &&
        (row = new_row(key, id))) {
        counter = find(thread, key);
        thread->counters_used += !counter->key;
        *counter = (struct counter){key, row, view.reference};
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

uint32_t hook_newest_launch(void) {
    uint32_t newest = 0, rows = atomic_load(&hook_live->count_rows[0]);
    uint64_t latest = 0;
    for (uint32_t i = 0; i < rows && i < MAX_COUNT_CHUNKS * ROWS_A_CHUNK; i++) {
        const struct count *row = (struct count *)atomic_load(&hook_live->counts[0][i / ROWS_A_CHUNK]);
        if (!row)
            continue;
        uint64_t first = atomic_load_explicit(&row[i % ROWS_A_CHUNK].first, memory_order_relaxed);
        if (first > latest) {
            latest = first;
            newest = row[i % ROWS_A_CHUNK].id;
        }
    }
    return newest;
}

// What a stub calls for a function that is counted and nothing else. It may use no register but rax, for the
// others hold arguments. Gives whether the call is counted; else it is one to look at, the first of its kind.
// A launch that fails later is counted too.
#define KEEPS_REGISTERS __attribute__((no_caller_saved_registers, target("general-regs-only")))
KEEPS_REGISTERS bool hook_count_first(uint64_t key);
KEEPS_REGISTERS bool hook_count_second(uint64_t, uint64_t key);

__attribute__((always_inline, target("general-regs-only"))) static inline bool count(uint64_t key) {
    struct thread *thread = hook_thread;
    if (!thread || thread->pid != atomic_load_explicit(&hook_live->pid, memory_order_relaxed) ||
        !thread->counters)
        return false;
    const struct counter *counter = &thread->counters[place_of(thread, key)];
    if (counter->key != key || !hook_is_alive(counter->reference))
        return false;
    uint64_t counted = atomic_load_explicit(&counter->row->count, memory_order_relaxed);
    if (!counted)
        return false;
    atomic_store_explicit(&counter->row->count, counted + 1, memory_order_relaxed);
    return true;
}

bool hook_count_first(uint64_t key) { return count(key); }
bool hook_count_second(uint64_t unused, uint64_t key) {
    (void)unused;
    return count(key);
}

// Queries

// A stub counts them here, once the first was looked at; when the thread begins a batch of calls, and when it
// ends, they go to rows.
TLS uint32_t hook_queries[MAX_QUERIES]; // the first stands for those that have no place, and stays 0

static struct slot *_Atomic query_slots[MAX_QUERIES];
static _Atomic uint32_t queries_used = 1;

void hook_count_query(struct slot *slot) {
    if (!slot->query) { // two threads may each give it a place: then one stays unused
        uint32_t number = atomic_fetch_add(&queries_used, 1);
        if (number >= MAX_QUERIES) {
            atomic_store(&queries_used, MAX_QUERIES);
            __atomic_and_fetch(&slot->flags, ~(uint32_t)(SLOT_COUNTED | SLOT_QUERY), __ATOMIC_RELAXED);
            return;
        }
        atomic_store(&query_slots[number], slot);
        __atomic_store_n(&slot->query, (uint8_t)number, __ATOMIC_RELEASE);
    }
    hook_queries[slot->query]++;
}

void hook_keep_queries(struct thread *thread) {
    for (uint32_t i = 1, used = atomic_load(&queries_used); i < used && i < MAX_QUERIES; i++) {
        struct slot *slot = atomic_load(&query_slots[i]);
        if (!hook_queries[i] || !slot)
            continue;
        struct count *row = hook_counter(thread, (uint64_t)slot);
        if (row) {
            uint64_t count = atomic_load_explicit(&row->count, memory_order_relaxed);
            if (!count)
                atomic_store_explicit(&row->first, hook_now(), memory_order_relaxed);
            atomic_store_explicit(&row->count, count + hook_queries[i], memory_order_relaxed);
        }
        hook_queries[i] = 0;
    }
}

void hook_forget_queries(void) { memset(hook_queries, 0, sizeof(hook_queries)); }
