// Ranges of memory by address: allocated, mapped and registered ones, and the ones freed most recently.
//
// An operation may use memory if the program issued the operation before the free, no matter which of them
// happens to run first. So a program that uses freed memory gets the same error in every run. Each operation
// has a number, and a range stores the number from which on operations may not use it. Freed memory isn't
// returned to the system while older operations are pending. It's kept a while longer even then, so that a
// late access is detected and doesn't overwrite other data.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static struct range *ranges; // by start
static size_t count, room;
static uint64_t serial;
static pthread_rwlock_t change =
    PTHREAD_RWLOCK_INITIALIZER; // for the ranges: kernels read them without sim_lock

// Freed ranges, oldest first.
enum { FREED = 256, FREED_BYTES = 64 << 20 };
static struct range *freed;
static size_t freed_count, freed_room, freed_bytes;

static size_t find(uint64_t address) { // find the first range that begins above an address
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle].start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool may_use(const struct range *range, uint64_t number) {
    return !range->until || number < range->until || (number == range->until && range->frees_itself);
}

// Find the range that contains these bytes and that operation `number` may use. Adjacent mappings count as
// one range.
static const struct range *range_for(uint64_t start, uint64_t size, uint64_t number) {
    size_t at = find(start);
    const struct range *range = at ? &ranges[at - 1] : NULL;
    if (!range || start - range->start > range->size || !may_use(range, number))
        return NULL;
    uint64_t room_ = range->size - (start - range->start);
    for (; room_ < size && at < count && range->type == MAPPED && ranges[at].type == MAPPED &&
           ranges[at].start == ranges[at - 1].start + ranges[at - 1].size;
         at++)
        room_ += ranges[at].size;
    return size <= room_ ? range : NULL;
}

const struct range *sim_range(uint64_t start, uint64_t size) { return range_for(start, size, UINT64_MAX); }

bool sim_is_pinned(uint64_t start, uint64_t size) {
    const struct range *range = sim_range(start, size);
    return range && (range->type == PINNED || range->type == REGISTERED);
}

bool sim_add_range(uint64_t start, size_t size, const void *owner, enum memory type) {
    pthread_rwlock_wrlock(&change);
    if (count == room) {
        size_t more = room ? 2 * room : 64;
        struct range *larger = realloc(ranges, more * sizeof(*ranges));
        if (!larger) {
            pthread_rwlock_unlock(&change);
            return false;
        }
        ranges = larger, room = more;
    }
    size_t at = find(start);
    memmove(ranges + at + 1, ranges + at, (count++ - at) * sizeof(*ranges));
    ranges[at] =
        (struct range){.start = start, .size = size, .serial = ++serial, .owner = owner, .type = type};
    pthread_rwlock_unlock(&change);
    return true;
}

// Return the oldest freed memory to the system while more than FREED ranges or FREED_BYTES are kept.
static void trim(void) {
    size_t first = 0;
    if (freed_count <= 2 * FREED && freed_bytes <= FREED_BYTES)
        return;
    uint64_t oldest = sim_oldest_work();
    pthread_rwlock_wrlock(&change);
    for (; (freed_count - first > FREED || freed_bytes > FREED_BYTES) && freed[first].until <= oldest;
         first++) {
        freed_bytes -= freed[first].size;
        free((void *)freed[first].start);
    }
    memmove(freed, freed + first, (freed_count -= first) * sizeof(*freed));
    pthread_rwlock_unlock(&change);
}

// Add a range to the freed ones. Call it with `change` held for writing.
static void retire(struct range range) {
    struct range *larger = sim_grow(freed, freed_count, &freed_room, sizeof(*freed));
    if (!larger)
        return; // its memory stays
    freed = larger;
    range.until = range.until ? range.until : sim_next_work();
    freed[freed_count++] = range;
    freed_bytes += range.size;
}

bool sim_find_memory(uint64_t address, uint64_t size, uint64_t number, uint64_t *start, uint64_t *room_) {
    pthread_rwlock_rdlock(&change);
    const struct range *range = range_for(address, size, number);
    if (range)
        *start = range->start, *room_ = range->size;
    pthread_rwlock_unlock(&change);
    return range;
}

static const struct range *find_freed(uint64_t address) { // the newest
    size_t at = freed_count;
    while (at && address - freed[at - 1].start >= freed[at - 1].size)
        at--;
    return at ? &freed[at - 1] : NULL;
}

bool sim_find_freed(uint64_t address, uint64_t size, uint64_t number) {
    pthread_rwlock_rdlock(&change);
    const struct range *range = find_freed(address);
    bool found = range && number < range->until && size <= range->size - (address - range->start);
    pthread_rwlock_unlock(&change);
    return found;
}

bool sim_is_gone(uint64_t address) {
    size_t at = find(address);
    const struct range *range = at ? &ranges[at - 1] : NULL;
    return range && address - range->start < range->size ? range->until : find_freed(address) != NULL;
}

static void describe_freed(const struct range *range, uint64_t address, char text[256]) {
    snprintf(text, 256, ", %zu bytes into an allocation of %zu bytes that was freed",
             (size_t)(address - range->start), (size_t)range->size);
}

// Describe the memory at or near an address: ", ..." for a message.
void sim_describe(uint64_t address, char text[256]) {
    enum { NEAR = 1 << 20 };
    LOCKED;
    *text = '\0';
    size_t at = find(address);
    const struct range *below = at ? &ranges[at - 1] : NULL, *above = at < count ? &ranges[at] : NULL;
    bool is_kept = below && below->until && address - below->start < below->size;
    const struct range *gone = is_kept ? below : find_freed(address);
    size_t after = below ? address - below->start - below->size : NEAR;
    size_t before = above ? above->start - address : NEAR;
    if (gone)
        describe_freed(gone, address, text);
    else if (below && address - below->start < below->size)
        snprintf(text, 256, ", at the end of an allocation of %zu bytes", (size_t)below->size);
    else if (after < NEAR && after <= before)
        snprintf(text, 256, ", %zu bytes after an allocation of %zu bytes", after, (size_t)below->size);
    else if (before < NEAR)
        snprintf(text, 256, ", %zu bytes before an allocation of %zu bytes", before, (size_t)above->size);
}

bool sim_drop_range(uint64_t start, enum memory type) {
    size_t at = find(start);
    if (!at || ranges[at - 1].start != start || ranges[at - 1].type != type)
        return false;
    struct range range = ranges[at - 1];
    pthread_rwlock_wrlock(&change);
    memmove(ranges + at - 1, ranges + at, (count-- - at) * sizeof(*ranges));
    if (type < REGISTERED || type == OF_GRAPH)
        retire(range);
    pthread_rwlock_unlock(&change);
    trim();
    if (type == DEVICE)
        sim_give_memory(range.size);
    return true;
}

struct range *sim_range_from(uint64_t start) {
    size_t at = find(start);
    return at && ranges[at - 1].start == start ? &ranges[at - 1] : NULL;
}

bool sim_overlaps(uint64_t start, uint64_t size) {
    size_t at = find(start);
    return (at && start - ranges[at - 1].start < ranges[at - 1].size) ||
           (at < count && ranges[at].start - start < size);
}

void sim_set_until(uint64_t start, uint64_t until, bool frees_itself) {
    struct range *range = sim_range_from(start);
    pthread_rwlock_wrlock(&change);
    range->until = until;
    range->frees_itself = frees_itself;
    pthread_rwlock_unlock(&change);
}

uint64_t sim_used(const void *pool) {
    uint64_t used = 0;
    for (size_t i = 0; i < count; i++) {
        bool is = is_there(ranges[i].pool) && ranges[i].pool.object == pool && !ranges[i].until;
        used += is ? ranges[i].size : 0;
    }
    return used;
}

void sim_free_all(const void *owner) {
    for (size_t i = count; i--;)
        if (ranges[i].owner == owner && ranges[i].type != OF_GRAPH)
            sim_drop_range(ranges[i].start, ranges[i].type);
}

bool sim_wait_for_free(void) {
    for (size_t i = 0; i < count; i++)
        if (ranges[i].type == DEVICE && ranges[i].until && sim_wait_for_number(ranges[i].until))
            return true;
    return false;
}

// How much of the device's memory is in use. Managed memory isn't counted, because it may exceed the device's
// memory, and neither is pinned memory, which is the host's.

static uint64_t taken;

bool sim_take_memory(uint64_t size) {
    uint64_t total = sim_total_memory();
    bool fits = taken <= total && size <= total - taken;
    taken += fits ? size : 0;
    return fits;
}

void sim_give_memory(uint64_t size) { taken -= size; }

uint64_t sim_taken_memory(void) { return taken; }

__attribute__((constructor)) static void set_up(void) { sim_after_work = trim; }
