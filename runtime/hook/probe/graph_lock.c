// Locks for graphs that we've changed for the duration of a call that reads them. CUDA requires that only one
// thread at a time uses a graph. Still, several threads can read one at the same time without trouble, to
// make executable graphs. With probes, each of these calls waits for the one before. Calls for other graphs
// don't.

#include "graphs.h"
#include "hook/write/write.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static struct turn *turns;

static struct turn *find(uint64_t graph) {
    struct turn *turn = turns;
    while (turn && turn->graph != graph)
        turn = turn->next;
    return turn;
}

bool hook_begin_turn(struct turn *turn, uint64_t graph) {
    HOOK_HOLD_SIGNALS; // a signal handler may use other graphs
    const struct turn *other;
    pthread_mutex_lock(&lock);
    while ((other = find(graph)) && !pthread_equal(other->thread, pthread_self()))
        pthread_cond_wait(&ended, &lock);
    if (!other) {
        *turn = (struct turn){turns, graph, pthread_self()};
        turns = turn;
    }
    pthread_mutex_unlock(&lock);
    return !other;
}

void hook_end_turn(struct turn *turn) {
    HOOK_HOLD_SIGNALS;
    pthread_mutex_lock(&lock);
    struct turn **at = &turns;
    while (*at != turn)
        at = &(*at)->next;
    *at = turn->next;
    pthread_cond_broadcast(&ended);
    pthread_mutex_unlock(&lock);
}
