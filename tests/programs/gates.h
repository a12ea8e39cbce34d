// A stream that waits until it's opened, so that later work in it stays pending as long as a test needs.

#pragma once

#include "sim.h"

#include <sched.h>
#include <stdatomic.h>
static atomic_int gates[8]; // states: closed, reached, open
enum { CLOSED, REACHED, OPEN };
static void gate(void *number) {
    int closed = CLOSED;
    atomic_compare_exchange_strong(&gates[(long)number], &closed, REACHED);
    while (atomic_load(&gates[(long)number]) != OPEN)
        sched_yield();
}
static void close_stream(void *stream, long number) {
    atomic_store(&gates[number], CLOSED);
    OK(D(cuLaunchHostFunc)(stream, gate, (void *)number));
    while (atomic_load(&gates[number]) != REACHED)
        sched_yield();
}
static void open_stream(long number) { atomic_store(&gates[number], OPEN); }
