// Whose turn it is with a graph.

#ifndef GPT_TURNS_H
#define GPT_TURNS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct turn {
    struct turn *next;
    uint64_t graph;
    pthread_t thread;
};

// Waits while another thread has the graph. False if this one has it: a signal handler of it asks.
bool hook_begin_turn(struct turn *turn, uint64_t graph);
void hook_end_turn(struct turn *turn);

#endif
