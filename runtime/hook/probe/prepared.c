// The table of executable graphs with probes in them, and the memory that their probes write to: one buffer
// for each map of each kernel node, as nodes have fixed parameters. Together they are a set of the executable
// graph. A node that outgrows its place gets a set of its own.

#include <stdlib.h>
#include <string.h>

#include "probe.h"

enum { BUCKETS = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct prepared *buckets[BUCKETS];

static struct prepared **bucket_of(uint64_t exec) {
    return &buckets[(exec * 0x9e3779b97f4a7c15u >> 32) % BUCKETS];
}

void hook_release_prepared(struct prepared *graph) {
    if (atomic_fetch_sub(&graph->users, 1) > 1)
        return;
    for (int i = 0; i < MOST_SETS; i++)
        if (graph->sets[i].slab && hook_is_alive(graph->of_context)) // else it went with its context
            hook_let_go(graph->sets[i].slab);
    hook_drop_members(graph->members);
    pthread_mutex_destroy(&graph->lock);
    free(graph);
}

struct prepared *hook_take_off(uint64_t exec, bool going) {
    pthread_mutex_lock(&lock);
    struct prepared **at = bucket_of(exec), *found;
    while (*at && ((*at)->exec != exec || (going && !(*at)->going)))
        at = &(*at)->next;
    if ((found = *at))
        *at = found->next;
    pthread_mutex_unlock(&lock);
    return found;
}

void hook_put_on(struct prepared *graph) {
    pthread_mutex_lock(&lock);
    graph->next = *bucket_of(graph->exec);
    *bucket_of(graph->exec) = graph;
    pthread_mutex_unlock(&lock);
}

struct prepared *hook_take_prepared(uint64_t exec) {
    pthread_mutex_lock(&lock);
    struct prepared *found = *bucket_of(exec);
    while (found && found->exec != exec)
        found = found->next;
    if (found)
        found->users++;
    pthread_mutex_unlock(&lock);
    if (found)
        pthread_mutex_lock(&found->lock);
    if (!found || hook_is_alive(found->of_context))
        return found;
    hook_put_prepared(found);
    return NULL;
}

void hook_put_prepared(struct prepared *graph) {
    pthread_mutex_unlock(&graph->lock);
    hook_release_prepared(graph);
}

void hook_mark_exec_going(uint64_t exec, bool going) {
    pthread_mutex_lock(&lock);
    for (struct prepared *at = *bucket_of(exec); at; at = at->next)
        if (at->exec == exec)
            at->going = going;
    pthread_mutex_unlock(&lock);
}

// Its members and sets

const char hook_outgrown[] = "it was changed too often to buffers that are larger";
const char hook_changed_late[] = "a node of its graph was changed after an update";

struct member *hook_find_member(const struct prepared *graph, uint64_t node) {
    for (struct member *at = graph->members->all; at < graph->members->all + graph->members->count; at++)
        if (at->named == node)
            return at;
    return NULL;
}

bool hook_own_members(struct prepared *graph) {
    struct members *made = graph->members;
    if (made->users > 1 && !(made = hook_copy_members(graph->members))) {
        graph->lost = "memory ran out";
        return false;
    }
    if (made != graph->members)
        hook_drop_members(graph->members);
    graph->members = made;
    made->is_tallied = false;
    return true;
}

// Nobody knows when what is there is not written to any more: it stays as it is.
void hook_lose_sets(struct prepared *graph, const char *reason) {
    memset(graph->sets, 0, sizeof(graph->sets));
    graph->lost = reason;
}

void hook_let_set_go(struct set *set) {
    if (set->slab)
        hook_let_go(set->slab);
    *set = (struct set){0};
}

unsigned hook_find_place(struct prepared *graph) {
    bool used[MOST_SETS] = {false};
    if (graph->lost) // nodes may write to what is not known
        return MOST_SETS;
    for (size_t i = 0; i < graph->members->count; i++)
        if (graph->members->all[i].save)
            used[graph->members->all[i].set] = true;
    unsigned place = MOST_SETS;
    for (unsigned i = MOST_SETS; i-- > 0;)
        if (!used[i]) {
            hook_let_set_go(&graph->sets[i]);
            place = i;
        }
    return place;
}
