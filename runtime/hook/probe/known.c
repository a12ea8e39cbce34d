// A look-up while nothing is probed, or of a library's kernel before there is a context, leaves the function
// here, and one by an earlier order stays. As soon as they are wanted they are asked for: in the program's
// next look-up, load or wait for the GPU, which waits for none of them.

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/control.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "probe.h"

enum { BUCKETS = 1 << 12 };

struct known {
    struct known *next;
    struct looked_up function; // with the last order by which it was asked for
    char name[];
};

static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;
static struct known *buckets[BUCKETS];
static _Atomic unsigned all_asked; // the order by which all were

static struct known **bucket_of(uint64_t handle) { return &buckets[handle * 0x9e3779b97f4a7c15u >> 52]; }

static struct known *copy(const struct looked_up *function, const char *name) {
    struct known *known = malloc(sizeof(*known) + strlen(name) + 1);
    if (known) {
        known->function = *function;
        strcpy(known->name, name);
    }
    return known;
}

void hook_know(const struct looked_up *function, const char *name, bool asked) {
    static _Atomic int wanted; // 1: yes, -1: no
    int is_wanted = wanted;
    if (!is_wanted)
        wanted = is_wanted = getenv(GPT_CONTROL) ? 1 : -1;
    struct known *added = is_wanted > 0 || !asked ? copy(function, name) : NULL;
    if (!added)
        return;
    added->function.order = asked ? function->order : 0;
    pthread_mutex_lock(&known_lock);
    struct known **at = bucket_of(function->handle), *known;
    while ((known = *at) && hook_is_alive(known->function.reference) &&
           known->function.handle != function->handle)
        at = &known->next;
    if (known && hook_is_alive(known->function.reference)) {
        if (asked)
            known->function.order = function->order;
        free(added);
    } else { // in place of one that is gone
        added->next = known ? known->next : NULL;
        *at = added;
        free(known);
        if (!asked)
            all_asked = 0;
    }
    pthread_mutex_unlock(&known_lock);
}

// Takes those off that are gone, and returns copies of those that are to be asked for here.
static struct known *collect(unsigned order) {
    struct known *found = NULL, *known, *copied;
    uint64_t context = hook_current_context();
    bool rest = false;
    pthread_mutex_lock(&known_lock);
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct known **at = &buckets[i]; (known = *at);) {
            struct looked_up *function = &known->function;
            if (!hook_is_alive(function->reference)) {
                *at = known->next;
                free(known);
                continue;
            }
            at = &known->next;
            bool here = !function->context || function->context == context;
            rest |= function->order != order && !here;
            if (function->order == order || !here)
                continue;
            function->order = order;
            if ((copied = copy(function, known->name))) {
                copied->next = found;
                found = copied;
            }
        }
    if (!rest)
        all_asked = order;
    pthread_mutex_unlock(&known_lock);
    return found;
}

void hook_ask_known(void) {
    const struct order *order = hook_order();
    if (!order->identity || !atomic_load(&hook_recording) ||
        atomic_load_explicit(&all_asked, memory_order_relaxed) == order->number || !hook_current_context())
        return;
    for (struct known *known = collect(order->number), *next; known; known = next) {
        next = known->next;
        if (!hook_is_wanted(known->name, order))
            hook_refuse(&known->function, "");
        else if (!hook_find_probed(known->function.handle))
            hook_ask_later(&known->function, known->name);
        free(known);
    }
}

bool hook_is_meant(uint64_t handle) {
    const struct probed *found = hook_find_probed(handle);
    if (found && found->kernel)
        handle = found->kernel;
    pthread_mutex_lock(&known_lock);
    const struct known *known = *bucket_of(handle);
    while (known && (known->function.handle != handle || !hook_is_alive(known->function.reference)))
        known = known->next;
    bool meant = !known || hook_is_wanted(known->name, hook_order());
    pthread_mutex_unlock(&known_lock);
    return meant;
}

void hook_count_known(struct known_counts *counts) {
    const struct order *order = hook_order();
    pthread_mutex_lock(&known_lock);
    for (size_t i = 0; i < BUCKETS && order->identity; i++)
        for (const struct known *known = buckets[i]; known; known = known->next) {
            if (!hook_is_alive(known->function.reference))
                continue;
            if (!hook_is_wanted(known->name, order)) {
                size_t at = strlen(counts->others), size = sizeof(counts->others) - at;
                if (strlen(known->name) + 3 < size)
                    snprintf(counts->others + at, size, "%s%s", at ? ", " : "", known->name);
                continue;
            }
            const struct probed *probed = hook_find_probed(known->function.handle);
            *(!probed ? &counts->pending : probed->refused ? &counts->refused : &counts->probed) += 1;
        }
    pthread_mutex_unlock(&known_lock);
}
