// runtime/hook/probe/graph_lock.c without a driver, as test_probe_graph_uses.py builds it.

#include <assert.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

#include "hook/probe/graphs.h"

static struct turn first, second, third;
static _Atomic int state;

static void handle(int signal) { // runs in the middle of a call for the first graph
    (void)signal;
    struct turn own, other;
    assert(!hook_begin_turn(&own, 1));
    assert(hook_begin_turn(&other, 3));
    hook_end_turn(&other);
}

static void *work(void *unused) {
    assert(hook_begin_turn(&second, 2)); // another graph has its own lock
    hook_end_turn(&second);
    state = 1;
    assert(hook_begin_turn(&third, 1));
    assert(state == 2);
    hook_end_turn(&third);
    return unused;
}

int main(void) {
    pthread_t thread;
    alarm(20);
    signal(SIGUSR1, handle);
    assert(hook_begin_turn(&first, 1));
    raise(SIGUSR1);
    pthread_create(&thread, NULL, work, NULL);
    while (!state)
        usleep(1000);
    usleep(100000);
    state = 2;
    hook_end_turn(&first);
    pthread_join(thread, NULL);
    return 0;
}
