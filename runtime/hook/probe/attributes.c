// Attributes and cache settings of functions and kernels. If the kernel with probes can't have an attribute
// that the program's kernel has, it isn't launched. For example, if it has more static shared memory, less is
// left for dynamic shared memory.

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/control.h"
#include "driver_calls.h"
#include "hook/watch/watch.h"
#include "probe.h"

static bool set(uint64_t handle, bool is_kernel, const struct property *property) {
    CUdevice device = property->device;
    int value = (int)property->value;
    CUresult (*set_shared)(uint64_t, int);
    switch ((int)property->what) {
    case PROPERTY_ATTRIBUTE:
        return (is_kernel ? hook_do.set_kernel_attribute((int)property->number, value, handle, device)
                          : hook_do.set_attribute(handle, (int)property->number, value)) == CUDA_SUCCESS;
    case PROPERTY_CACHE_CONFIG: // only a preference: may fail
        is_kernel ? hook_do.set_kernel_cache(handle, value, device) : hook_do.set_cache(handle, value);
        break;
    case PROPERTY_SHARED_CONFIG:
        if ((set_shared = hook_driver_function("cuFuncSetSharedMemConfig")))
            set_shared(handle, value);
        break;
    }
    return true;
}

enum { MOST = 64 };

struct properties {
    struct property items[MOST];
    size_t count;
};

static void keep(const struct property *property, void *with) {
    struct properties *list = with;
    if (list->count < MOST && property->what <= PROPERTY_SHARED_CONFIG)
        list->items[list->count++] = *property;
}

// Copy the attributes from the list, in which the last one set comes first.
static bool copy(uint64_t from, uint64_t to, bool is_kernel) {
    struct properties list = {.count = 0};
    bool good = true;
    hook_object_each(from, keep, &list); // the driver must not be called inside
    while (list.count--)
        good &= set(to, is_kernel, &list.items[list.count]);
    return good;
}

bool hook_copy_properties(const struct probed *probed, const struct bound *bound) {
    bool kernel = probed->is_library, good = copy(probed->handle, probed->probed, kernel);
    uint64_t function = kernel ? hook_kernel_function(probed->handle, bound->context) : 0;
    if (probed->plain)
        good &=
            copy(probed->handle, probed->plain, kernel) && (!function || copy(function, bound->plain, false));
    return good && (!function || copy(function, bound->function, false));
}

static void set_all(const struct probed *entry, const struct property *property) {
    bool kernel = entry->is_library;
    struct probed *first = hook_find_entry(entry->handle);
    if (!first || !hook_hold_probed(first))
        return;
    for (struct probed *at = first; at; at = atomic_load(&at->fewer)) {
        const struct bound *bound = entry->kernel ? hook_find_bound(at, entry->asked.context) : NULL;
        uint64_t handle = !entry->kernel ? at->probed : bound ? bound->function : 0;
        uint64_t plain = !entry->kernel ? at->plain : bound ? bound->plain : 0;
        if ((handle && !set(handle, kernel, property)) || (plain && !set(plain, kernel, property)))
            atomic_store(&at->unfit, WHY(property));
    }
    hook_let_probed_go(first);
}

// cuFuncSetAttribute(function, attribute, value), cuKernelSetAttribute(attribute, value, kernel, device);
// cuFuncSetCacheConfig and cuFuncSetSharedMemConfig(function, config),
// cuKernelSetCacheConfig(kernel, config, device)
void hook_after_attribute(struct frame *frame) {
    const char *name = frame->slot->symbol;
    bool kernel = !strncmp(name, "cuKernel", strlen("cuKernel")), attribute = strstr(name, "SetAttribute");
    unsigned first = kernel && attribute ? 2 : 0; // the handle
    const struct probed *entry = hook_probing && (CUresult)frame->result == CUDA_SUCCESS
                                     ? hook_find_probed(frame_arg(frame, first))
                                     : NULL;
    if (!entry)
        return;
    struct property property = {.what = attribute                   ? PROPERTY_ATTRIBUTE
                                        : strstr(name, "SharedMem") ? PROPERTY_SHARED_CONFIG
                                                                    : PROPERTY_CACHE_CONFIG,
                                .number = attribute ? (uint32_t)frame_arg(frame, kernel ? 0 : 1) : 0,
                                .value = (uint32_t)frame_arg(frame, attribute && !kernel ? 2 : 1),
                                .device = kernel ? (int)frame_arg(frame, attribute ? 3 : 2) : -1};
    set_all(entry, &property);
}

// -- Occupancy -------------------------------------------------------------
//
// Programs ask how many blocks fit at once, launch that many, and let them wait for each other. If fewer
// blocks of the kernel that runs fit than we told the program, it hangs. Either the program's kernel or the
// one with probes may run, so we answer with the lower of their numbers. We keep each answer: a kernel with
// probes that arrives later and fits fewer blocks isn't used, and is assembled again with fewer registers.
//
// A program can also compute the number from its kernel's registers (cuFuncGetAttribute), which we report
// unchanged. We don't detect that: most programs that ask have other reasons.

enum { MOST_ATTRIBUTES = 8, BUCKETS = 256 };

// An answer that the program got about blocks of some size, or about clusters of such blocks: how many fit,
// or how large they may be.
struct question {
    struct question *next;
    uint64_t handle, parent; // for a function, its owner
    struct reference reference;
    enum { OF_BLOCKS, OF_CLUSTERS, OF_SIZE } kind;
    uint64_t threads, shared, promised;
    CUlaunchConfig config;
    CUlaunchAttribute attributes[MOST_ATTRIBUTES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(struct question *) buckets[BUCKETS]; // lists that only grow at their heads
static _Atomic bool lost;                           // an answer couldn't be kept

static bool is_same_answer(const struct question *earlier, const struct question *asked) {
    return earlier->handle == asked->handle && earlier->kind == asked->kind &&
           earlier->threads == asked->threads && earlier->shared == asked->shared &&
           earlier->promised >= asked->promised &&
           !memcmp(earlier->attributes, asked->attributes, sizeof(earlier->attributes)) &&
           hook_is_alive(earlier->reference);
}

static void save_answer(struct question *asked, uint64_t promised) {
    struct object_view view;
    struct question *at, *made = NULL;
    _Atomic(struct question *) *bucket = &buckets[asked->handle * 0x9e3779b97f4a7c15u >> 56];
    if (!promised || !hook_object_look(asked->handle, &view))
        return; // the function was found in a way in which no kernel gets probes
    asked->promised = promised;
    asked->parent = view.parent;
    asked->reference = view.reference;
    pthread_mutex_lock(&lock);
    for (at = atomic_load(bucket); at && !is_same_answer(at, asked);)
        at = at->next;
    if (!at && (made = malloc(sizeof(*made)))) {
        *made = *asked;
        made->config.attrs = made->attributes;
        made->next = atomic_load(bucket);
        atomic_store(bucket, made);
    }
    if (!at && !made)
        lost = true;
    pthread_mutex_unlock(&lock);
}

// The kernels' numbers

static uint64_t count_blocks(uint64_t function, const struct question *question) {
    int count = 0;
    CUresult status = hook_do.occupancy(&count, function, (int)question->threads, question->shared);
    return status ? 0 : (uint64_t)count;
}

static uint64_t count_both(uint64_t function, uint64_t other, const struct question *question) {
    uint64_t count = count_blocks(function, question), with = other ? count_blocks(other, question) : count;
    return with < count ? with : count;
}

static uint64_t count(uint64_t function, const struct question *question) {
    int found = 0;
    if (question->kind == OF_BLOCKS)
        return count_blocks(function, question);
    CUresult status = question->kind == OF_SIZE
                          ? hook_do.cluster_size(&found, function, &question->config)
                          : hook_do.active_clusters(&found, function, &question->config);
    return status ? 0 : (uint64_t)found;
}

// Return whether fewer blocks fit than our answer to the program said. If the question was about another
// kernel, return false.
static bool is_lower(struct probed *probed, const struct bound *bound, const struct question *asked) {
    struct probed *first = probed->asked.registers ? hook_find_probed(probed->handle) : probed;
    if ((asked->handle != probed->handle && asked->parent != probed->handle) ||
        !hook_is_alive(asked->reference) || count(bound->function, asked) >= asked->promised)
        return false;
    uint64_t blocks = asked->kind == OF_BLOCKS ? asked->promised : count_blocks(asked->handle, asked);
    unsigned most = hook_most_registers(asked->threads, blocks);
    if (first && most < probed->used)
        hook_want_fewer(first, most);
    return true;
}

const struct reason *hook_compare_occupancy(struct probed *probed, const struct bound *bound) {
    bool lower = lost;
    for (size_t i = 0; i < BUCKETS; i++)
        for (const struct question *asked = atomic_load(&buckets[i]); asked; asked = asked->next)
            lower |= is_lower(probed, bound, asked);
    return lower ? WHY(occupancy) : NULL;
}

// Questions

struct other {
    struct probed *held;
    uint64_t function; // 0: the program's own
};

static void end_other(struct other *other) {
    if (other->held)
        hook_let_probed_go(other->held);
}
#define OTHER __attribute__((cleanup(end_other))) struct other

// Find the kernel that would run if a launch had blocks of this size.
static struct other find_other(uint64_t handle, uint64_t threads) {
    struct other other = {.held = hook_find_entry(handle)};
    if (!other.held || !hook_hold_probed(other.held))
        return (struct other){0};
    for (struct probed *at = other.held; at && !at->refused && !other.function;
         at = atomic_load(&at->fewer)) {
        const struct bound *bound = hook_find_bound(at, hook_current_context());
        if (bound && !hook_find_obstacle(at, bound, threads))
            other.function = bound->function;
    }
    return other;
}

// Return whether a kernel with probes may be loaded later, including through gpt-hook ctl.
static bool may_come(uint64_t handle) {
    const struct probed *whole = hook_find_entry(handle);
    return !whole || !whole->refused || getenv(GPT_CONTROL);
}

static bool is_answered(const struct frame *frame) {
    return hook_probing && (CUresult)frame->result == CUDA_SUCCESS && frame_arg(frame, 0);
}

typedef CUresult general(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

// Ask the same question about another kernel, and store the answer elsewhere.
static CUresult ask_again(const struct frame *frame, void *answer, uint64_t function) {
    return ((general *)frame->real)((uint64_t)answer, function, frame_arg(frame, 2), frame_arg(frame, 3),
                                    frame_arg(frame, 4), frame_arg(frame, 5), 0);
}

// Replace the 32-bit answer by the lower one of the two kernels'.
static void lower(const struct frame *frame, struct question *question) {
    int *answer = (int *)frame_arg(frame, 0), found = 0;
    OTHER other = find_other(question->handle, question->threads);
    if (other.function && !ask_again(frame, &found, other.function) && found < *answer)
        *answer = found;
    if (may_come(question->handle))
        save_answer(question, (uint64_t)*answer);
}

// cuOccupancyMaxActiveBlocksPerMultiprocessor(count, function, threads, shared, flags)
void hook_after_blocks(struct frame *frame) {
    if (is_answered(frame))
        lower(frame, &(struct question){.handle = frame_arg(frame, 1),
                                        .threads = (uint32_t)frame_arg(frame, 2),
                                        .shared = frame_arg(frame, 3)});
}

// cuOccupancyAvailableDynamicSMemPerBlock(shared, function, blocks, threads)
void hook_after_shared(struct frame *frame) {
    size_t *answer = (size_t *)frame_arg(frame, 0), found;
    struct question question = {.handle = frame_arg(frame, 1), .threads = (uint32_t)frame_arg(frame, 3)};
    OTHER other = is_answered(frame) ? find_other(question.handle, question.threads) : (struct other){0};
    if (other.function && !ask_again(frame, &found, other.function) && found < *answer)
        *answer = found;
    if (!is_answered(frame) || !may_come(question.handle))
        return;
    question.shared = *answer;
    uint64_t blocks = (uint32_t)frame_arg(frame, 2),
             fit = count_both(question.handle, other.function, &question);
    save_answer(&question, fit < blocks ? fit : blocks);
}

// cuOccupancyMaxPotentialBlockSize(grid, threads, function, shared_of, shared, limit, flags): return the
// block size for the kernel with probes, and the largest grid that fits for either kernel.
void hook_after_block_size(struct frame *frame) {
    int *grid = (int *)frame_arg(frame, 0), *threads = (int *)frame_arg(frame, 1), found[2] = {0};
    size_t (*shared_of)(int) = (size_t (*)(int))frame_arg(frame, 3);
    if (!is_answered(frame) || !threads || *threads <= 0)
        return;
    struct question question = {.handle = frame_arg(frame, 2), .threads = (uint64_t)*threads};
    OTHER other = find_other(question.handle, 1);
    if (other.function &&
        !((general *)frame->real)((uint64_t)&found[0], (uint64_t)&found[1], other.function,
                                  frame_arg(frame, 3), frame_arg(frame, 4), frame_arg(frame, 5),
                                  frame_arg(frame, 6)) &&
        found[1] > 0)
        question.threads = (uint64_t)found[1];
    question.shared = shared_of ? shared_of((int)question.threads) : frame_arg(frame, 4);
    // Both grids are multiples of the number of multiprocessors.
    uint64_t fit = count_both(question.handle, other.function, &question),
             with = found[1] > 0 ? count_blocks(other.function, &question) : 0;
    if (with && fit)
        *grid = (int)((uint64_t)found[0] / with * fit), *threads = found[1];
    if (may_come(question.handle))
        save_answer(&question, fit);
}

// cuOccupancyMaxPotentialClusterSize(size, function, config), cuOccupancyMaxActiveClusters(count, ...)
void hook_after_clusters(struct frame *frame) {
    const CUlaunchConfig *config = (const void *)frame_arg(frame, 2);
    if (!is_answered(frame) || !config)
        return;
    struct question question = {.handle = frame_arg(frame, 1),
                                .threads =
                                    (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ,
                                .shared = config->sharedMemBytes,
                                .kind = strstr(frame->slot->symbol, "Size") ? OF_SIZE : OF_CLUSTERS,
                                .config = *config};
    question.config.numAttrs = config->numAttrs < MOST_ATTRIBUTES ? config->numAttrs : MOST_ATTRIBUTES;
    if (config->attrs)
        memcpy(question.attributes, config->attrs, question.config.numAttrs * sizeof(*config->attrs));
    question.config.attrs = question.attributes;
    question.config.hStream = NULL; // the stream may be gone by then
    lower(frame, &question);
}
