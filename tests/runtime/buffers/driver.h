// A driver and a device with the features that buffers need, for the schedules.

#ifndef DRIVER_H
#define DRIVER_H

#include <stdbool.h>
#include <stdint.h>

enum { STREAMS = 48, QUEUE = 6, EVENTS = 2048, CONTEXTS = 3, UNIT = 256, UNITS = 8192, IDS = 4096 };

struct work {
    enum { LAUNCH = 1, CLEAR, BACK, RECORD, WAIT, FREE, MOVE } kind;
    uint64_t serial;
    uint64_t address, bytes, to; // for LAUNCH, `to` is its id
    uint64_t event, number;
    const bool *gate; // a kernel that ends once the host has set this
};

struct stream {
    uint64_t handle;
    int context;
    bool there, blocking, ours;
    int thread;  // the thread, for a per-thread default stream
    int capture; // a number; 0: none
    unsigned first, count;
    struct work queue[QUEUE];
};

extern uint64_t limit;            // bytes that may be allocated in a context
extern unsigned fails;            // percent of allocations that fail
extern bool breaks;               // copies may fail
extern _Atomic bool broke, gated; // broke: some allocations failed; gated: kernels waited for the host

bool work_of_device(void);
void begin_driver(void);
uint64_t add_stream(int context, bool blocking, bool ours);
struct stream *stream_of(uint64_t handle);
void enqueue(uint64_t handle, struct work operation);
void synchronize(uint64_t handle); // 0: all of the current context
void drop_stream(uint64_t handle); // its work continues
void drop_context(int context), add_context(int context);
bool is_busy(uint64_t handle);
extern int current[]; // context of each thread; 0: none

#endif
