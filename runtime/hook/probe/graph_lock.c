// One lock per graph, held while the graph contains our kernels (see graph_nodes.c).
//
// CUDA says that only one thread at a time may use a graph. In practice, programs instantiate the same graph
// in several threads at once, which works because these calls only read it. We change the graph during the
// call, so these calls have to run one after another. Calls for different graphs still run at the same time.

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
