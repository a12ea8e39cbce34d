// How kernels run on the simulated device.
//
//   run.c        launches: blocks over workers
//   lanes.c      threads and their stacks: which one runs next, barriers, threads of a warp that wait for
//   each other check.c      checks of memory accesses, faults print.c      printf, assert, malloc of device
//   code variables.c  variables of modules host.c       objects of `gpt-asm --arch host`
//
// A *lane* is a thread of a block. A *worker* is a host thread that runs blocks, and so plays the part of a
// multiprocessor. All lanes of a block run on the same worker, one at a time: each until it waits for others.
// A block that has begun is *resident*. A worker begins another block when the lanes of all its resident
// blocks only spin.

#ifndef GPT_RUN_H
#define GPT_RUN_H

#include "host/abi.h"
#include "sim.h"

enum {
    MOST_THREADS = 1024, // threads of a block
    MOST_WARPS = MOST_THREADS / HOST_WARP,
    SIM_PATIENCE = 4096, // backward branches until a lane first lets others run
};

struct lane {
    struct host_thread thread; // must be first: services get a pointer to it
    struct warp *warp;
    struct stack *stack; // NULL: it has not begun
    void *at;            // its stack pointer while another one runs
    int32_t patience;    // its next budget
    uint32_t site;       // where it waits, and what it waits with:
    uint32_t mask, result;
    host_combine *combine;
    void *data;
};

struct warp { // sets of lanes
    struct resident *block;
    struct lane *lanes;
    uint32_t all, exited;
    uint32_t ready;   // may run
    uint32_t meeting; // lanes that wait until all lanes in their mask have arrived
    uint32_t active;  // lanes that wait until no other lane of the warp can advance (a mask of 0)
    unsigned last;    // the lane that was chosen last
    unsigned turns;   // turns of other lanes since one became active
};

struct barrier {
    uint32_t threads;  // number of threads that it waits for; 0: all
    uint32_t arrivals; // lanes that have arrived
    uint32_t gone;     // lanes among them that have exited
    uint32_t counted;  // arrivals, plus the missing lanes of their warps
    uint32_t count;    // values that are not 0
    bool reduces;
    uint32_t come[MOST_WARPS], waiting[MOST_WARPS]; // sets of lanes
};

struct resident { // a block
    struct worker *worker;
    struct lane *lanes;
    unsigned char *shared;
    size_t lane_room, shared_room;
    uint64_t prepared; // the id of the launch that its lanes are made for
    uint32_t threads, live;
    unsigned warp_count, warp; // where to look for the next lane
    unsigned turns;            // since the block was entered
    uint32_t used;             // set of barriers
    struct warp warps[MOST_WARPS];
    struct barrier barriers[HOST_BARRIERS];
};

struct worker {
    struct worker *next; // in the list of idle workers
    unsigned number;
    uint64_t clock;
    struct run *run;
    void *home;           // the worker's stack pointer while a lane runs
    struct lane *current; // NULL: none can run
    bool turned;          // the lane that went home only took its turn
    bool advanced;        // a lane advanced since we last looked at the clock
    unsigned looks;
    struct stack *free; // stacks
    struct slab *slabs;
    size_t stack_size;
    struct resident **residents;
    size_t count, room, made, at;
    struct host_place *places;
    size_t place_room;
};

struct run {          // a launch
    struct run *next; // in the list of launches that want helpers
    struct context *context;
    const char *name;
    const struct host_module *module;
    const struct host_kernel *kernel;
    const uint64_t *variables;
    uint64_t constant;
    uint32_t constant_size;
    uint64_t number; // number of its work
    const unsigned char *parameters;
    uint32_t grid[3], block[3], dynamic;
    uint64_t id, blocks, begun, most; // most: blocks at once on a worker, unless cooperative
    bool cooperative, cluster;
    uint32_t workspace[2]; // its size in bytes, and the counter of blocks that synchronize
    unsigned helpers, wanted;
    uint64_t advanced; // ns
    CUresult failed;
};

static inline struct lane *lane_of(struct host_thread *thread) { return (struct lane *)thread; }
static inline struct run *run_of(const struct lane *lane) { return lane->warp->block->worker->run; }

// run.c
CUresult sim_run_blocks(struct run *run); // with the lock, which it releases meanwhile

// lanes.c
void sim_size_stacks(struct worker *worker, size_t local);     // while no lane has one
void sim_collect_stacks(struct worker *worker);                // abandoned lanes' stacks
void sim_enter_lane(struct worker *worker, struct lane *lane); // from home; returns when one goes there
void sim_exit_early(struct host_thread *thread) __attribute__((noreturn));

// In runtime/arch: leave a stack, storing its state in `from`, and continue on another where that was left.
void sim_switch(void **from, void *to) __attribute__((visibility("hidden")));
// Return the state to switch to so that `run`, which never returns, runs on a stack that ends at `top`.
void *sim_prepare_stack(unsigned char *top, void (*run)(struct worker *), struct worker *worker);

struct lane *sim_choose(struct resident *block); // a lane that may run, or NULL
static inline void sim_advance(struct resident *block) { block->worker->advanced = true; }
void sim_turn(struct host_thread *thread, uint32_t site);
uint32_t sim_barrier(struct host_thread *thread, uint32_t site, enum host_barrier kind, uint32_t id,
                     uint32_t threads, bool value);

uint32_t sim_meet(struct host_thread *thread, uint32_t site, uint32_t mask, host_combine *combine,
                  void *data);
void sim_end_lane(struct lane *lane) __attribute__((noreturn)); // when its launch has failed
// Report why a launch ends, unless it has failed already.
void sim_fail(struct run *run, const struct lane *lane, uint32_t site, CUresult status, const char *format,
              ...) __attribute__((format(printf, 5, 6)));

// check.c
void sim_see(struct host_thread *thread, uint32_t site, uint64_t address, uint64_t size);
bool sim_may_access(const struct lane *lane, uint64_t address, uint64_t size);
// Copy text that must lie in device memory, truncated after `room` - 1 bytes.
void sim_read_text(struct lane *lane, uint32_t site, uint64_t address, char *to, size_t room);
void sim_fault(struct host_thread *thread, uint32_t site, enum host_fault fault, uint64_t address)
    __attribute__((noreturn));
void sim_deadlock(struct resident *block);
void sim_time_out(struct resident *block, unsigned seconds);

// print.c
int sim_print(struct host_thread *thread, uint32_t site, uint64_t format, uint64_t arguments);
void sim_assert(struct host_thread *thread, uint32_t site, uint64_t message, uint64_t file, uint32_t line,
                uint64_t function) __attribute__((noreturn));
uint64_t sim_heap_allocate(struct host_thread *thread, uint32_t site, uint64_t size);
void sim_heap_release(struct host_thread *thread, uint32_t site, uint64_t address);

#endif
