// The table of kernels with probes: a hash table by handle, which launches read without a lock. Entries are
// never removed. If the driver reuses a handle, a new entry is added, which is found before the old one.

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "probe.h"

struct table {
    size_t size, used; // the size is a power of two
    _Atomic(struct probed *) places[];
};

static _Atomic(struct table *) the_table;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct probed *all;       // entries that have loaded something
static struct probed *functions; // kernels' functions
static _Atomic bool any_missed;

static size_t place_of(const struct table *table, uint64_t handle) {
    return handle * 0x9e3779b97f4a7c15u >> 32 & (table->size - 1);
}

static struct probed *find(uint64_t handle) {
    struct table *table = atomic_load_explicit(&the_table, memory_order_acquire);
    struct probed *found;
    for (size_t i = table ? place_of(table, handle) : 0; table; i = (i + 1) & (table->size - 1)) {
        found = atomic_load_explicit(&table->places[i], memory_order_acquire);
        if (!found)
            break;
        if (found->handle == handle)
            return hook_is_alive(found->reference) ? found : NULL;
    }
    return NULL;
}

// Kernels of an earlier order aren't launched any more. If a function belongs to a kernel, its entry only
// leads to the entry of the kernel.
struct probed *hook_find_probed(uint64_t handle) {
    struct probed *found = find(handle);
    return found && (found->kernel || atomic_load(&found->order) == hook_order()->number) ? found : NULL;
}

struct probed *hook_find_entry(uint64_t handle) {
    struct probed *found = hook_find_probed(handle);
    return found && found->kernel ? hook_find_probed(found->kernel) : found;
}

struct bound *hook_find_bound(const struct probed *probed, uint64_t context) {
    struct bound *bound = atomic_load_explicit(&probed->bounds, memory_order_acquire);
    while (bound && (bound->context != context || !hook_is_alive(bound->of_context)))
        bound = bound->next;
    return bound;
}

static void put(struct table *table, struct probed *added) {
    size_t i = place_of(table, added->handle);
    struct probed *there;
    while ((there = atomic_load(&table->places[i])) && there->handle != added->handle)
        i = (i + 1) & (table->size - 1);
    table->used += !there;
    atomic_store_explicit(&table->places[i], added, memory_order_release);
}

static bool make_room(void) {
    struct table *old = atomic_load(&the_table);
    if (old && old->used < old->size / 2)
        return true;
    size_t size = old ? 2 * old->size : 1024;
    struct table *table = calloc(1, sizeof(*table) + size * sizeof(*table->places));
    if (!table)
        return false;
    table->size = size;
    for (size_t i = 0; old && i < old->size; i++)
        if (atomic_load(&old->places[i]))
            put(table, atomic_load(&old->places[i]));
    atomic_store_explicit(&the_table, table,
                          memory_order_release); // a thread may still be reading the old one
    return true;
}

// Reuse an entry that has been replaced and no longer owns anything, for its successor. So the table has one
// entry per function, however often the user names other probes.
static bool take_in(struct probed *there, struct probed *added) {
    if (!there || there->kernel || added->kernel || there->order >= added->order ||
        atomic_load(&there->users) || there->loaded) // an unloading thread is a user too
        return false;
    const size_t from = offsetof(struct probed, function);
    if (there->woven)
        hook_free_woven((struct woven *)there->woven);
    if (there->name) { // another thread may be reading the name
        free(added->name);
        added->name = there->name;
    }
    memcpy((char *)there + from, (const char *)added + from, sizeof(*there) - from);
    atomic_store(&there->order, added->order); // others read the rest only if this is the latest order
    free(added);
    return true;
}

bool hook_add_probed(struct probed *added) {
    pthread_mutex_lock(&lock);
    struct probed *there = find(added->handle);
    bool late = there && !there->kernel && there->order > added->order,
         taken = !late && take_in(there, added), room = taken || (!late && make_room());
    added = taken ? there : added;
    if (room) {
        if (added->loaded || added->kernel) {
            struct probed **list = added->loaded ? &all : &functions;
            added->next = *list;
            *list = added;
        }
        put(atomic_load(&the_table), added);
    }
    pthread_mutex_unlock(&lock);
    return room;
}

void hook_add_fewer(struct probed *first, struct probed *added) {
    pthread_mutex_lock(&lock);
    struct probed *last = first, *next;
    while ((next = atomic_load(&last->fewer)))
        last = next;
    added->next = all;
    all = added;
    added->first = first;
    atomic_store_explicit(&last->fewer, added, memory_order_release);
    pthread_mutex_unlock(&lock);
}

// Users of an entry. A new user first counts itself and then checks the order. A thread that unloads for a
// new order first sets the order and then checks the users. So at least one of them sees the other.

static _Atomic bool any_replaced;

bool hook_hold_probed(struct probed *probed) {
    probed = probed->first ? probed->first : probed;
    atomic_fetch_add(&probed->users, 1);
    if (atomic_load(&probed->order) == hook_order()->number)
        return true;
    hook_let_probed_go(probed);
    return false;
}

void hook_hold_again(struct probed *probed) {
    atomic_fetch_add(probed->first ? &probed->first->users : &probed->users, 1);
}

void hook_let_probed_go(struct probed *probed) {
    probed = probed->first ? probed->first : probed;
    bool replaced = atomic_load(&probed->order) != hook_order()->number;
    if (atomic_fetch_sub(&probed->users, 1) == 1 && replaced)
        atomic_store(&any_replaced, true);
}

// Remove an entry and all of its variants.
static void take_off(struct probed *taken) {
    for (struct probed **at = &all; *at;)
        if (*at == taken || (*at)->first == taken)
            *at = (*at)->next;
        else
            at = &(*at)->next;
    taken->next = NULL;
}

struct probed *hook_take_replaced(uint64_t context) {
    static _Atomic unsigned seen; // the order for which all entries were checked
    unsigned order = hook_order()->number, unused = 0;
    if (atomic_exchange(&seen, order) == order && !atomic_exchange(&any_replaced, false))
        return NULL;
    pthread_mutex_lock(&lock);
    struct probed *found = all;
    bool others = false;
    for (; found; found = found->next, unused = 0) {
        if (found->first || atomic_load(&found->order) == order)
            continue;
        if (!found->is_library && found->asked.context != context && hook_is_alive(found->reference))
            others = true;
        else if (atomic_compare_exchange_strong(&found->users, &unused, 1))
            break;
    }
    if (found)
        take_off(found);
    if (found || others)
        atomic_store(&any_replaced, true);
    pthread_mutex_unlock(&lock);
    return found;
}

uint64_t hook_kernel_function(uint64_t kernel, uint64_t context) {
    uint64_t handle = 0;
    pthread_mutex_lock(&lock);
    for (struct probed **at = &functions, *found; (found = *at) && !handle;) {
        bool alive = hook_is_alive(found->reference);
        if (alive && found->kernel == kernel && found->asked.context == context)
            handle = found->handle;
        if (alive)
            at = &found->next;
        else
            *at = found->next;
    }
    pthread_mutex_unlock(&lock);
    return handle;
}

uint64_t hook_find_kernel(uint64_t function, const char *name) {
    struct table *table = atomic_load_explicit(&the_table, memory_order_acquire);
    for (size_t i = 0; table && i < table->size; i++) {
        const struct probed *found = atomic_load_explicit(&table->places[i], memory_order_acquire);
        uint64_t made = 0;
        if (!found || !found->asked.is_kernel || !found->name || strcmp(found->name, name))
            continue;
        struct reference held = hook_object_hold(found->reference);
        bool same = held.current && !hook_do.kernel_function(&made, found->handle) && made == function;
        hook_object_let_go(held);
        if (same)
            return found->handle;
    }
    return 0;
}

void hook_miss(struct probed *probed, uint64_t context) {
    atomic_store_explicit(&probed->missed, context, memory_order_relaxed);
    atomic_store_explicit(&any_missed, true, memory_order_release);
}

struct probed *hook_take_missed(uint64_t context) {
    bool others = false;
    if (!atomic_load(&any_missed) || !atomic_exchange(&any_missed, false))
        return NULL;
    pthread_mutex_lock(&lock);
    struct probed *found = all;
    for (uint64_t in; found; found = found->next) {
        in = atomic_load(&found->missed);
        if (in == context && hook_is_alive(found->reference))
            break;
        others |= in != 0;
    }
    pthread_mutex_unlock(&lock);
    if (found)
        atomic_store(&found->missed, 0);
    if (found || others)
        atomic_store(&any_missed, true);
    return found;
}

void hook_mark_unloading(uint64_t module, bool unloading) {
    pthread_mutex_lock(&lock);
    for (struct probed *probed = all; probed; probed = probed->next)
        if (hook_whole_module(probed->module) == module && hook_is_alive(probed->reference))
            probed->unloading = unloading;
    pthread_mutex_unlock(&lock);
}

struct probed *hook_next_unloaded(void) {
    pthread_mutex_lock(&lock);
    struct probed **at = &all, *found;
    while ((found = *at) && (!found->unloading || hook_is_alive(found->reference)))
        at = &found->next;
    if (found)
        *at = found->next;
    pthread_mutex_unlock(&lock);
    return found;
}

// -- Choosing a variant ----------------------------------------------------
//
// A kernel with probes takes more registers than the program's: a block may be too large for it, a
// cooperative grid may not fit on the device, or a cluster not on its part of it. Then it's assembled again
// with as few registers as such a launch allows per thread. Until that variant is there, or if it doesn't
// help, the program's kernel runs.

enum { WARP = 32, PARTITIONS = 4, UNIT = 256, MOST_REGISTERS = 255 };

static uint64_t device_attribute(int attribute) {
    CUdevice device;
    int value = 0;
    return !hook_do.get_device(&device) && !hook_do.device_attribute(&value, attribute, device) && value > 0
               ? (uint64_t)value
               : 0;
}

// A multiprocessor has partitions, each with its share of registers and warps. A warp gets registers in
// multiples of a unit. The numbers are from the CUDA occupancy calculator; the oldest devices have larger
// partitions.
unsigned hook_most_registers(uint64_t threads, uint64_t blocks) {
    uint64_t all = device_attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
    uint64_t block = blocks * device_attribute(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    uint64_t warps = (threads + WARP - 1) / WARP * blocks, in_part = (warps + PARTITIONS - 1) / PARTITIONS;
    uint64_t of_part = (block < all ? block : all) / PARTITIONS;
    uint64_t most = in_part ? of_part / in_part / UNIT * UNIT / WARP : 0;
    return most < MOST_REGISTERS ? (unsigned)most : MOST_REGISTERS;
}

static asks_for_kernel *ask_for;

void hook_kernels_setup(asks_for_kernel *asks) { ask_for = asks; }

void hook_want_fewer(struct probed *first, unsigned registers) {
    unsigned before = atomic_load(&first->limit);
    while (registers && (!before || registers < before))
        if (atomic_compare_exchange_weak(&first->limit, &before, registers)) {
            HOOK_HOLD_SIGNALS;
            struct looked_up fewer = first->asked;
            fewer.registers = registers;
            ask_for(&fewer, first->name);
            return;
        }
}

const struct reason *hook_find_obstacle(const struct probed *probed, const struct bound *bound,
                                        uint64_t threads) {
    const struct reason *unfit = atomic_load_explicit(&probed->unfit, memory_order_relaxed);
    return unfit                                    ? unfit
           : bound->refused                         ? bound->refused
           : threads > (uint64_t)bound->max_threads ? WHY(registers)
                                                    : NULL;
}

// Return how many blocks each multiprocessor must be able to hold at once. In a cooperative launch, all
// blocks run at the same time.
static uint64_t count_resident(const struct launch *launch) {
    uint64_t processors = device_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    uint64_t blocks = (uint64_t)launch->grid[0] * launch->grid[1] * launch->grid[2];
    return launch->cooperative && processors ? (blocks + processors - 1) / processors : 1;
}

// If a launch wouldn't fit without probes, either, let the driver reject it.
static void want_fewer(struct probed *first, const struct launch *launch, uint64_t threads,
                       uint64_t resident) {
    unsigned most = hook_most_registers(threads, resident), before = atomic_load(&first->limit);
    int blocks = 0;
    if ((!before || most < before) &&
        !hook_do.occupancy(&blocks, launch->function, (int)threads, launch->shared) &&
        (uint64_t)blocks >= resident)
        hook_want_fewer(first, most);
}

struct choice hook_choose(const struct launch *launch, uint64_t context) {
    struct probed *entry = hook_find_probed(launch->function);
    struct choice choice = {.reason = WHY(not_ready)};
    choice.first = entry && entry->kernel ? hook_find_probed(entry->kernel) : entry;
    if (!choice.first || !hook_hold_probed(choice.first))
        return (struct choice){.reason = choice.reason};
    uint64_t of = entry->kernel ? entry->asked.context : choice.first->asked.context;
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2], resident = 0, there;
    bool small = false;
    if ((choice.reason = choice.first->refused)) {
        hook_let_probed_go(choice.first);
        return choice;
    }
    choice.reason = WHY(not_here);
    for (struct probed *at = choice.first; at && (!of || of == context);
         at = atomic_load_explicit(&at->fewer, memory_order_acquire)) {
        struct bound *bound = hook_find_bound(at, context);
        if (!bound) {
            hook_miss(at, context);
            continue;
        }
        choice.reason = hook_find_obstacle(at, bound, threads);
        small |= threads > (uint64_t)bound->max_threads;
        if (!choice.reason && launch->cooperative) {
            int blocks = 0;
            resident = resident ? resident : count_resident(launch);
            hook_do.occupancy(&blocks, bound->function, (int)threads, launch->shared);
            there = (uint64_t)blocks;
            if (there < resident) {
                choice.reason = WHY(cooperative);
                small |= hook_most_registers(threads, resident) < at->used;
            }
        }
        if (!choice.reason) {
            choice.probed = at;
            choice.bound = bound;
            choice.handle = entry->is_library ? at->probed : bound->function;
            return choice;
        }
    }
    if (small)
        want_fewer(choice.first, launch, threads, resident ? resident : count_resident(launch));
    hook_let_probed_go(choice.first);
    return choice;
}

// The room begins at a multiple of PADDING, after the shared memory that the launch asks for. It stays below
// what any launch may have, so no attribute changes. A cluster gets no room, because all of its blocks must
// fit.
uint32_t hook_find_room(const struct choice *choice, const struct launch *launch) {
    enum { PADDING = 1024, MOST = 48 << 10, THREADS = 16, KNOWN = 1, FITS = 2 };
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    uint64_t room = choice->probed->woven->room, fixed = (uint64_t)choice->bound->static_shared;
    uint64_t padded = ((uint64_t)launch->shared + PADDING - 1) / PADDING * PADDING + room;
    if (!room || launch->cluster[0] || room > MOST || fixed > MOST || padded > MOST - fixed)
        return 0;
    uint64_t question = ((uint64_t)launch->shared << THREADS | threads) << 2 | KNOWN;
    uint64_t known = atomic_load_explicit(&choice->bound->asked_room, memory_order_relaxed);
    if ((known & ~(uint64_t)FITS) != question) {
        int before = 0, after = 0;
        uint64_t function = choice->bound->function;
        bool asked = !hook_do.occupancy(&before, function, (int)threads, launch->shared) &&
                     !hook_do.occupancy(&after, function, (int)threads, padded);
        known = question | (asked && after == before ? FITS : 0);
        atomic_store_explicit(&choice->bound->asked_room, known, memory_order_relaxed);
    }
    return known & FITS ? (uint32_t)padded : 0;
}

void hook_let_choice_go(const struct choice *choice) {
    if (choice->probed)
        hook_let_probed_go(choice->first);
}

// Remember that a launch needs more than the device has (for example, its cluster doesn't fit), so that it
// isn't tried again.
void hook_mark_unfit(struct probed *probed, const struct launch *launch, CUresult status) {
    uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    struct probed *first = hook_find_entry(launch->function);
    int blocks = 0;
    if (status != CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES && status != CUDA_ERROR_INVALID_CLUSTER_SIZE)
        return;
    atomic_store(&probed->unfit, WHY(launch_refused));
    if (first && !hook_do.occupancy(&blocks, launch->function, (int)threads, launch->shared))
        hook_want_fewer(first, hook_most_registers(threads, (uint64_t)blocks));
}

// Launches that the user leaves out

const struct reason *hook_left_out(struct probed *probed) {
    uint64_t before = atomic_fetch_add_explicit(&probed->launches, 1, memory_order_relaxed);
    return before < hook_settings.skip || (before - hook_settings.skip) % hook_settings.sample ||
                   (before - hook_settings.skip) / hook_settings.sample >= hook_settings.count
               ? WHY(left_out)
               : NULL;
}
