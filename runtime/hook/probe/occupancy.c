// How many blocks fit at once is asked by programs that launch as many and let them wait for one another. So
// no kernel runs of which fewer fit than the program was told: a question is answered by the lower number of
// the program's kernel and the one with probes, as either may run. If that is not there yet, the question is
// kept, and a kernel with probes that would have answered less is not used: it is assembled once more.
//
// A program may also work it out from the registers of its kernel (cuFuncGetAttribute), which are told as
// they are. It is not noticed: most ask for them for other reasons.

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "choice.h"
#include "driver_calls.h"
#include "hook/watch/contexts.h"
#include "occupancy.h"
#include "settings.h"

const char UNFIT_OCCUPANCY[] = "its occupancy was asked for, and is lower with probes";

enum { MOST_ATTRIBUTES = 8 };

// What was answered for the program's kernel: of blocks, or of clusters of a launch.
struct question {
    struct question *next;
    uint64_t handle, parent; // of a function, what it is of
    struct reference reference;
    uint64_t threads, shared;
    bool clusters;
    CUlaunchConfig config;
    CUlaunchAttribute attributes[MOST_ATTRIBUTES];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct question *questions;
static bool lost; // one could not be kept

static bool is_same(const struct question *one, const struct question *other) {
    return one->handle == other->handle && one->threads == other->threads && one->shared == other->shared &&
           one->clusters == other->clusters &&
           !memcmp(one->attributes, other->attributes, sizeof(one->attributes)) &&
           hook_is_alive(one->reference);
}

static void keep(struct question *asked) {
    struct object_view view;
    struct question *at, *made = NULL;
    if (!hook_object_look(asked->handle, &view))
        return; // it was found in a way in which none gets probes
    asked->parent = view.parent;
    asked->reference = view.reference;
    pthread_mutex_lock(&lock);
    for (at = questions; at && !is_same(at, asked);)
        at = at->next;
    if (!at && (made = malloc(sizeof(*made)))) {
        *made = *asked;
        made->config.attrs = made->attributes;
        made->next = questions;
        questions = made;
    }
    lost |= !at && !made;
    pthread_mutex_unlock(&lock);
}

// The kernels' numbers

static uint64_t count_blocks(uint64_t function, const struct question *question) {
    int count = 0;
    return hook_do.occupancy(&count, function, (int)question->threads, question->shared) ? 0
                                                                                         : (uint64_t)count;
}

static uint64_t count_clusters(uint64_t function, const struct question *question) {
    int count = 0;
    return hook_do.active_clusters(&count, function, &question->config) ? 0 : (uint64_t)count;
}

static uint64_t size_clusters(uint64_t function, const struct question *question) {
    int size = 0;
    return hook_do.cluster_size(&size, function, &question->config) ? 0 : (uint64_t)size;
}

static bool is_lower(const struct question *asked, uint64_t function) {
    return count_blocks(function, asked) < count_blocks(asked->handle, asked) ||
           (asked->clusters && (count_clusters(function, asked) < count_clusters(asked->handle, asked) ||
                                size_clusters(function, asked) < size_clusters(asked->handle, asked)));
}

const char *hook_compare_occupancy(struct probed *probed, const struct bound *bound) {
    struct probed *first = probed->asked.registers ? hook_find_probed(probed->handle) : probed;
    const char *found = NULL;
    pthread_mutex_lock(&lock);
    const struct question *list = questions; // grows at its head only
    found = lost ? UNFIT_OCCUPANCY : NULL;
    pthread_mutex_unlock(&lock);
    for (const struct question *asked = list; asked; asked = asked->next) {
        if ((asked->handle != probed->handle && asked->parent != probed->handle) ||
            !hook_is_alive(asked->reference) || !is_lower(asked, bound->function))
            continue;
        found = UNFIT_OCCUPANCY;
        unsigned most = hook_most_registers(asked->threads, count_blocks(asked->handle, asked));
        if (first && most < probed->used)
            hook_want_fewer(first, most);
    }
    return found;
}

// Questions

// The kernel that would run with blocks of so many threads. NULL: the program's own.
static uint64_t find_other(uint64_t handle, uint64_t threads) {
    struct probed *at = hook_find_whole(handle);
    for (; at && !at->refused; at = atomic_load(&at->fewer)) {
        const struct bound *bound = hook_find_bound(at, hook_current_context());
        if (bound && !hook_find_obstacle(at, bound, threads))
            return bound->function;
    }
    return 0;
}

// Whether a kernel with probes may come later.
static bool may_come(uint64_t handle) {
    const struct probed *whole = hook_find_whole(handle);
    return !whole || !whole->refused;
}

static bool is_answered(const struct frame *frame) {
    return hook_probing && (CUresult)frame->rax == CUDA_SUCCESS && frame->args[0];
}

typedef CUresult general(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

// The same question of another kernel, whose answer goes elsewhere.
static CUresult ask_again(const struct frame *frame, void *answer, uint64_t function) {
    const uint64_t *a = frame->args;
    return ((general *)frame->real)((uint64_t)answer, function, a[2], a[3], a[4], a[5], 0);
}

// Answers by the lower number of both, which is one of 32 bits.
static void lower(const struct frame *frame, uint64_t threads, struct question *question) {
    int *answer = (int *)frame->args[0], found = 0;
    uint64_t other = find_other(frame->args[1], threads);
    if (!other && may_come(frame->args[1]))
        keep(question);
    else if (other && !ask_again(frame, &found, other) && found < *answer)
        *answer = found;
}

// cuOccupancyMaxActiveBlocksPerMultiprocessor(count, function, threads, shared, flags)
void hook_after_blocks(struct frame *frame) {
    const uint64_t *a = frame->args;
    if (is_answered(frame))
        lower(frame, (uint32_t)a[2],
              &(struct question){.handle = a[1], .threads = (uint32_t)a[2], .shared = a[3]});
}

// cuOccupancyAvailableDynamicSMemPerBlock(shared, function, blocks, threads)
void hook_after_shared(struct frame *frame) {
    size_t *answer = (size_t *)frame->args[0], found;
    uint64_t handle = frame->args[1], threads = (uint32_t)frame->args[3];
    uint64_t other = is_answered(frame) ? find_other(handle, threads) : 0;
    if (other && !ask_again(frame, &found, other))
        *answer = found < *answer ? found : *answer;
    else if (is_answered(frame) && may_come(handle))
        keep(&(struct question){.handle = handle, .threads = threads, .shared = *answer});
}

// cuOccupancyMaxPotentialBlockSize(grid, threads, function, shared_of, shared, limit, flags): of the kernel
// with probes the block, and the grid that both fill at most.
void hook_after_block_size(struct frame *frame) {
    int *grid = (int *)frame->args[0], *threads = (int *)frame->args[1], blocks;
    uint64_t handle = frame->args[2], other = is_answered(frame) && threads ? find_other(handle, 1) : 0;
    size_t (*shared_of)(int) = (size_t (*)(int))frame->args[3];
    const uint64_t *a = frame->args;
    int found[2];
    if (!is_answered(frame) || !threads || (!other && !may_come(handle)))
        return;
    if (other &&
        !((general *)frame->real)((uint64_t)&found[0], (uint64_t)&found[1], other, a[3], a[4], a[5],
                                  *frame->stack) &&
        found[1] > 0 && *threads > 0 && *grid > 0) {
        struct question question = {.threads = (uint64_t)found[1],
                                    .shared = shared_of ? shared_of(found[1]) : a[4]};
        // What it fills the device with comes from the driver: the number of multiprocessors is in both
        // grids.
        uint64_t with = count_blocks(other, &question), without = count_blocks(handle, &question);
        blocks = with ? (int)((uint64_t)found[0] / with * (without < with ? without : with)) : 0;
        if (blocks)
            *grid = blocks, *threads = found[1];
        return;
    }
    keep(&(struct question){
        .handle = handle, .threads = (uint64_t)*threads, .shared = shared_of ? shared_of(*threads) : a[4]});
}

// cuOccupancyMaxPotentialClusterSize(size, function, config), cuOccupancyMaxActiveClusters(count, ...)
void hook_after_clusters(struct frame *frame) {
    const CUlaunchConfig *config = (const void *)frame->args[2];
    if (!is_answered(frame) || !config)
        return;
    struct question question = {.handle = frame->args[1],
                                .threads =
                                    (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ,
                                .shared = config->sharedMemBytes,
                                .clusters = true,
                                .config = *config};
    question.config.numAttrs = config->numAttrs < MOST_ATTRIBUTES ? config->numAttrs : MOST_ATTRIBUTES;
    if (config->attrs)
        memcpy(question.attributes, config->attrs, question.config.numAttrs * sizeof(*config->attrs));
    question.config.attrs = question.attributes;
    question.config.hStream = NULL; // it may be gone then
    lower(frame, question.threads, &question);
}
