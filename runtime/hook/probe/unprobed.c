// One list for all threads: most kernels have one reason, and it is met first.

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "hook/write/write.h"
#include "probe.h"

enum { BUCKETS = 1 << 12 };

struct counted {
    struct counted *next;
    _Atomic uint64_t launches;
    uint64_t written;
    const char *reason;
    uint32_t function;
};

static _Atomic(struct counted *) buckets[BUCKETS];

void hook_count_unprobed_times(uint32_t function, const char *reason, uint64_t launches) {
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

void hook_count_unprobed(uint32_t function, const char *reason) {
    hook_count_unprobed_times(function, reason, 1);
}

const char *hook_keep_text(const char *text) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct kept {
        struct kept *next;
        char text[];
    } *kept;
    pthread_mutex_lock(&lock);
    struct kept *at = kept;
    while (at && strcmp(at->text, text))
        at = at->next;
    if (!at && (at = malloc(sizeof(*at) + strlen(text) + 1))) {
        strcpy(at->text, text);
        at->next = kept;
        kept = at;
    }
    pthread_mutex_unlock(&lock);
    return at ? at->text : NULL;
}

void hook_write_unprobed(void) {
    for (size_t i = 0; i < BUCKETS; i++)
        for (struct counted *at = atomic_load(&buckets[i]); at; at = at->next) {
            uint64_t launches = atomic_load(&at->launches);
            if (launches > at->written &&
                HOOK_WRITE(unprobed, .function = at->function, .launches = launches - at->written,
                           .reason = hook_str(at->reason)))
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
