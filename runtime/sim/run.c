// Runs the blocks of a launch on workers: the stream's own thread, and helper threads that all launches
// share. Each worker simulates a multiprocessor.
//
// Blocks begin in the order of their numbers. A worker runs one block until all of the block's lanes only
// spin, and then another of its blocks. It begins a new block when it has none, or when all of its blocks
// spin, since they may be waiting for a block that hasn't begun. A single worker can hold all blocks of a
// cooperative launch, so every launch can finish even if it gets no helper.

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "run.h"

enum { LOOKS = 64 }; // checks for progress between looks at the clock

static struct worker *workers; // idle ones, by number
static unsigned worker_count, helper_count;
static struct run *runs;
static uint64_t launches;
static pthread_cond_t wanted = PTHREAD_COND_INITIALIZER, left = PTHREAD_COND_INITIALIZER;

static const struct host_services services = {
    .turn = sim_turn,
    .meet = sim_meet,
    .barrier = sim_barrier,
    .see = sim_see,
    .fault = sim_fault,
    .print = sim_print,
    .fail = sim_assert,
    .exit = sim_exit_early,
    .allocate = sim_heap_allocate,
    .release = sim_heap_release,
};

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static bool has_failed(const struct run *run) { return __atomic_load_n(&run->failed, __ATOMIC_ACQUIRE); }

static bool has_begun_all(const struct run *run) {
    return __atomic_load_n(&run->begun, __ATOMIC_RELAXED) >= run->blocks;
}

static uint32_t shared_of(const struct run *run) {
    uint32_t align = run->kernel->shared_align > 16 ? run->kernel->shared_align : 16;
    return (run->kernel->shared_size + align - 1) / align * align + run->dynamic;
}

// Blocks

// Prepare the lanes of a resident block for a launch. Per-block state is set later.
static bool prepare(struct resident *block, struct worker *worker, const struct run *run) {
    uint32_t threads = run->block[0] * run->block[1] * run->block[2], shared = shared_of(run);
    if (threads > block->lane_room) {
        free(block->lanes);
        block->lane_room = 0;
        if (!(block->lanes = malloc(threads * sizeof(*block->lanes))))
            return false;
        block->lane_room = threads;
    }
    if (shared > block->shared_room) {
        free(block->shared);
        block->shared_room = 0;
        if (!(block->shared = aligned_alloc(1024, (shared + 1023) & ~(size_t)1023)))
            return false;
        block->shared_room = (shared + 1023) & ~(size_t)1023;
        memset(block->shared, 0, block->shared_room);
    }
    block->worker = worker;
    block->threads = threads;
    block->warp_count = (threads + HOST_WARP - 1) / HOST_WARP;
    struct host_thread thread = {
        .services = &services,
        .shared = block->shared,
        .constant = (const unsigned char *)run->constant,
        .shared_size = shared,
        .constant_size = run->constant_size,
        .places = worker->places,
        .variables = run->variables,
        .clock = &worker->clock,
        .nwarpid = block->warp_count,
        .smid = worker->number % sim_processors(),
        .nsmid = sim_processors(),
        .dynamic_shared = run->dynamic,
        .gridid = run->id,
        .workspace = run->cooperative ? (uint64_t)run->workspace : 0,
        .cluster = run->cluster,
    };
    memcpy(thread.ntid, run->block, sizeof(run->block));
    memcpy(thread.nctaid, run->grid, sizeof(run->grid));
    for (uint32_t i = 0; i < threads; i++) {
        thread.tid[0] = i % run->block[0];
        thread.tid[1] = i / run->block[0] % run->block[1];
        thread.tid[2] = i / run->block[0] / run->block[1];
        thread.laneid = i % HOST_WARP;
        thread.warpid = i / HOST_WARP;
        block->lanes[i] = (struct lane){.thread = thread, .warp = &block->warps[i / HOST_WARP]};
    }
    block->prepared = run->id;
    return true;
}

static void begin(struct resident *block, const struct run *run, uint64_t number) {
    const uint32_t at[3] = {(uint32_t)(number % run->grid[0]),
                            (uint32_t)(number / run->grid[0] % run->grid[1]),
                            (uint32_t)(number / run->grid[0] / run->grid[1])};
    for (uint32_t i = 0; i < block->threads; i++) {
        struct lane *lane = &block->lanes[i];
        memcpy(lane->thread.ctaid, at, sizeof(at));
        lane->thread.budget = lane->patience = SIM_PATIENCE;
        lane->stack = NULL;
    }
    for (unsigned i = 0; i < block->warp_count; i++) {
        uint32_t rest = block->threads - i * HOST_WARP,
                 all = rest < HOST_WARP ? (1u << rest) - 1 : UINT32_MAX;
        block->warps[i] = (struct warp){.block = block,
                                        .lanes = block->lanes + i * HOST_WARP,
                                        .all = all,
                                        .ready = all,
                                        .last = HOST_WARP - 1};
    }
    memset(block->barriers, 0, sizeof(block->barriers));
    block->live = block->threads;
    block->warp = block->turns = block->used = 0;
}

// Start another block. Returns false if there are no more, or no room.
static bool admit(struct worker *worker) {
    struct run *run = worker->run;
    bool room = run->cooperative || worker->count < run->most;
    if ((worker->count && !room) || has_begun_all(run))
        return false;
    uint64_t number = __atomic_fetch_add(&run->begun, 1, __ATOMIC_RELAXED);
    if (number >= run->blocks)
        return false;
    if (worker->count == worker->made) {
        struct resident **larger =
            sim_grow(worker->residents, worker->made, &worker->room, sizeof(*worker->residents));
        if (larger) {
            worker->residents = larger;
            if ((larger[worker->made] = calloc(1, sizeof(**larger))))
                worker->made++;
        }
    }
    struct resident *block = worker->count < worker->made ? worker->residents[worker->count] : NULL;
    if (!block || (block->prepared != run->id && !prepare(block, worker, run))) {
        sim_fail(run, NULL, UINT32_MAX, CUDA_ERROR_OUT_OF_MEMORY, "no memory for another block");
        return false;
    }
    begin(block, run, number);
    worker->count++;
    return true;
}

static void retire(struct worker *worker) {
    struct resident *done = worker->residents[worker->at];
    worker->residents[worker->at] = worker->residents[--worker->count];
    worker->residents[worker->count] = done;
}

// Return whether the launch seems to hang: for GPT_SIM_TIMEOUT seconds, no lane has exited, met another or
// passed a barrier.
static bool is_late(struct worker *worker) {
    if (!sim_timeout || ++worker->looks % LOOKS)
        return false;
    uint64_t time = now();
    if (worker->advanced)
        __atomic_store_n(&worker->run->advanced, time, __ATOMIC_RELAXED);
    worker->advanced = false;
    uint64_t last = __atomic_load_n(&worker->run->advanced, __ATOMIC_RELAXED);
    return time > last && time - last > sim_timeout * 1000000000ull;
}

static void work(struct worker *worker) {
    struct run *run = worker->run;
    size_t spun = 0; // blocks that spun in a row
    while (!has_failed(run)) {
        if (spun >= worker->count) {
            if (admit(worker))
                worker->at = worker->count - 1;
            else if (worker->count)
                sched_yield();
            spun = 0;
        }
        if (!worker->count)
            break;
        worker->at %= worker->count;
        struct resident *block = worker->residents[worker->at];
        struct lane *lane = sim_choose(block);
        worker->turned = false;
        if (lane)
            sim_enter_lane(worker, lane);
        else
            sim_deadlock(block);
        if (!block->live)
            retire(worker), spun = 0;
        else if (worker->turned) {
            worker->at++, spun++;
            if (is_late(worker))
                sim_time_out(block, sim_timeout);
        }
    }
    worker->count = worker->at = 0;
    if (has_failed(run))
        sim_collect_stacks(worker);
}

// Workers

static bool ready(struct worker *worker, struct run *run) {
    worker->run = run;
    sim_size_stacks(worker, run->kernel->local_size + sim_limit(run->context, CU_LIMIT_STACK_SIZE));
    if (run->module->site_count > worker->place_room) {
        free(worker->places);
        worker->place_room = 0;
        if (!(worker->places = malloc(run->module->site_count * sizeof(*worker->places))))
            return false;
        worker->place_room = run->module->site_count;
    }
    if (run->module->site_count)
        memset(worker->places, 0, run->module->site_count * sizeof(*worker->places));
    return true;
}

// Take part in a launch. Called with the lock, which it releases while the worker runs.
static void take_part(struct run *run) {
    struct worker *worker = workers;
    if (worker)
        workers = worker->next;
    else if ((worker = calloc(1, sizeof(*worker))))
        worker->number = worker_count++;
    pthread_mutex_unlock(&sim_lock);
    if (worker && ready(worker, run))
        work(worker);
    else
        sim_fail(run, NULL, UINT32_MAX, CUDA_ERROR_OUT_OF_MEMORY, "no memory for a worker");
    pthread_mutex_lock(&sim_lock);
    if (!worker)
        return;
    struct worker **at = &workers;
    while (*at && (*at)->number < worker->number)
        at = &(*at)->next;
    worker->next = *at;
    *at = worker;
}

static void *help(void *unused) {
    (void)unused;
    pthread_mutex_lock(&sim_lock);
    for (;;) {
        struct run *run = runs;
        while (run && (run->helpers >= run->wanted || has_begun_all(run) || has_failed(run)))
            run = run->next;
        if (!run) {
            pthread_cond_wait(&wanted, &sim_lock);
            continue;
        }
        run->helpers++;
        take_part(run);
        run->helpers--;
        pthread_cond_broadcast(&left);
    }
    return NULL;
}

// Start a thread with the program's signals blocked.
static void start_helper(void) {
    pthread_t thread;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (!pthread_create(&thread, NULL, help, NULL)) {
        pthread_detach(thread);
        helper_count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

CUresult sim_run_blocks(struct run *run) {
    unsigned most = sim_processors() - 1;
    run->id = ++launches;
    run->advanced = now();
    run->wanted = run->blocks - 1 < most ? (unsigned)(run->blocks - 1) : most;
    run->next = runs;
    runs = run;
    while (helper_count < run->wanted) {
        unsigned before = helper_count;
        start_helper();
        if (helper_count == before)
            break;
    }
    if (run->wanted)
        pthread_cond_broadcast(&wanted);
    take_part(run);
    struct run **at = &runs;
    while (*at != run)
        at = &(*at)->next;
    *at = run->next;
    while (run->helpers)
        pthread_cond_wait(&left, &sim_lock);
    return run->failed;
}
