// The threads ("lanes") of a block: their stacks, which one runs next, and where they wait for each other.

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "run.h"
#include "say.h"

void sim_fail(struct run *run, const struct lane *lane, uint32_t site, CUresult status, const char *format,
              ...) {
    CUresult none = CUDA_SUCCESS;
    if (!__atomic_compare_exchange_n(&run->failed, &none, status, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
        return;
    char line[2048], fact[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(fact, sizeof(fact), format, arguments);
    va_end(arguments);
    int size = snprintf(line, sizeof(line), "libcuda.so.1: error: kernel '%.512s': ", run->name);
    if (lane) {
        const struct host_thread *t = &lane->thread;
        size += snprintf(line + size, sizeof(line) - (size_t)size,
                         "block (%u,%u,%u), thread (%u,%u,%u): ", t->ctaid[0], t->ctaid[1], t->ctaid[2],
                         t->tid[0], t->tid[1], t->tid[2]);
    }
    if (site < run->module->site_count)
        size += snprintf(line + size, sizeof(line) - (size_t)size, "'%.512s': ", run->module->sites[site]);
    snprintf(line + size, sizeof(line) - (size_t)size, "%s", fact);
    gpt_write_line(line);
}

// -- Stacks ----------------------------------------------------------------
//
// A lane gets a stack when it begins, and when it exits, the next lane continues on the same stack. So if the
// threads of a kernel never wait for each other, each worker needs only one stack.

enum {
    FRAMES = 256 << 10, // bytes for functions' frames, on top of their local memory
    RESERVE = 31 << 10, // for services, below
    PAGE = 4096,
    SLAB = 16,          // stacks
    STEP = 1024 / SLAB, // so that the tops of stacks don't compete for the same cache lines
};

struct stack {
    struct stack *next;
    unsigned char *start, *top;
};

struct slab {
    struct slab *next;
    size_t size;
    struct stack stacks[SLAB];
};

static struct stack *new_slab(struct worker *worker) {
    size_t each = worker->stack_size, size = SLAB * each;
    struct slab *slab = malloc(sizeof(*slab));
    unsigned char *start = mmap(NULL, size, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (!slab || start == MAP_FAILED) {
        if (start != MAP_FAILED)
            munmap(start, size);
        free(slab);
        return NULL;
    }
    *slab = (struct slab){.next = worker->slabs, .size = size};
    worker->slabs = slab;
    for (unsigned i = SLAB; i--; worker->free = &slab->stacks[i]) {
        unsigned char *first = start + i * each;
        mprotect(first, PAGE, PROT_NONE);
        slab->stacks[i] = (struct stack){worker->free, first, first + each - i * STEP};
    }
    return worker->free;
}

void sim_collect_stacks(struct worker *worker) {
    worker->free = NULL;
    for (struct slab *slab = worker->slabs; slab; slab = slab->next)
        for (unsigned i = SLAB; i--; worker->free = &slab->stacks[i])
            slab->stacks[i].next = worker->free;
}

void sim_size_stacks(struct worker *worker, size_t local) {
    size_t size = PAGE + RESERVE + FRAMES + 1024 + ((local + PAGE - 1) & ~(size_t)(PAGE - 1));
    if (size <= worker->stack_size)
        return;
    for (struct slab *next; worker->slabs; worker->slabs = next) {
        next = worker->slabs->next;
        munmap(worker->slabs->stacks[0].start, worker->slabs->size);
        free(worker->slabs);
    }
    worker->free = NULL;
    worker->stack_size = size;
}

static void start(struct lane *lane, struct stack *stack) {
    lane->stack = stack;
    lane->thread.local = stack->start + PAGE + RESERVE;
    lane->thread.local_size = (uint32_t)(stack->top - lane->thread.local);
}

static __attribute__((noreturn)) void run_lanes(struct worker *worker);
static void exit_lane(struct lane *lane);

// Run `next`, or the worker if it's NULL. Returns when the caller is resumed.
static void go(struct worker *worker, void **from, struct lane *next) {
    struct stack *stack = worker->free;
    if (next && !next->stack && !stack && !(stack = new_slab(worker))) {
        sim_fail(worker->run, next, UINT32_MAX, CUDA_ERROR_OUT_OF_MEMORY, "no memory for another stack");
        next = NULL;
    }
    worker->current = next;
    if (!next && from == &worker->home)
        return; // the worker runs on its own stack: not even one lane got one
    if (!next)
        sim_switch(from, worker->home);
    else if (next->stack)
        sim_switch(from, next->at);
    else {
        worker->free = stack->next;
        start(next, stack);
        sim_switch(from, sim_prepare_stack(stack->top, run_lanes, worker));
    }
}

// Continue with another lane, and free this stack.
static __attribute__((noreturn)) void end(struct worker *worker, struct stack *stack, struct lane *next) {
    void *never;
    stack->next = worker->free;
    worker->free = stack;
    go(worker, &never, next);
    __builtin_unreachable();
}

// The code that runs on each stack: run one lane after another, until the next lane already has its own
// stack.
static __attribute__((noreturn)) void run_lanes(struct worker *worker) {
    struct stack *stack = worker->current->stack;
    struct lane *lane = worker->current;
    for (;;) {
        worker->run->kernel->run(&lane->thread, worker->run->parameters);
        exit_lane(lane);
        lane = sim_choose(lane->warp->block);
        if (!lane || lane->stack)
            end(worker, stack, lane);
        worker->current = lane;
        start(lane, stack);
    }
}

void sim_exit_early(struct host_thread *thread) {
    struct lane *lane = lane_of(thread);
    exit_lane(lane);
    end(lane->warp->block->worker, lane->stack, sim_choose(lane->warp->block));
}

void sim_enter_lane(struct worker *worker, struct lane *lane) { go(worker, &worker->home, lane); }

static void leave(struct lane *lane) {
    struct lane *next = sim_choose(lane->warp->block);
    if (next != lane)
        go(lane->warp->block->worker, &lane->at, next);
}

static void go_home(struct lane *lane) { go(lane->warp->block->worker, &lane->at, NULL); }

void sim_end_lane(struct lane *lane) {
    go_home(lane);
    __builtin_unreachable();
}

// -- Warps -----------------------------------------------------------------
//
// Lanes of a warp wait for each other here. The last one to arrive does the work for all of them.

static void meet(struct warp *warp, uint32_t lanes, host_combine *combine) {
    void *data[HOST_WARP] = {NULL};
    for (uint32_t rest = lanes; rest; rest &= rest - 1)
        data[__builtin_ctz(rest)] = warp->lanes[__builtin_ctz(rest)].data;
    if (combine)
        combine(data, lanes);
    for (uint32_t rest = lanes; rest; rest &= rest - 1)
        warp->lanes[__builtin_ctz(rest)].result = lanes;
    warp->ready |= lanes;
    warp->last = HOST_WARP - 1; // they continue in order
    sim_advance(warp->block);
}

// If all lanes that `lane` waits for have arrived, combine their values, let them continue, and return true.
static bool try(struct warp *warp, const struct lane *lane) {
    uint32_t lanes = lane->mask & warp->all & ~warp->exited;
    if (lanes & ~warp->meeting)
        return false;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
        const struct lane *other = &warp->lanes[__builtin_ctz(rest)];
        if (other->mask != lane->mask || other->combine != lane->combine)
            return false;
    }
    warp->meeting &= ~lanes;
    meet(warp, lanes, lane->combine);
    return true;
}

uint32_t sim_meet(struct host_thread *thread, uint32_t site, uint32_t mask, host_combine *combine,
                  void *data) {
    struct lane *lane = lane_of(thread);
    struct warp *warp = lane->warp;
    uint32_t own = 1u << thread->laneid;
    lane->site = site, lane->mask = mask, lane->combine = combine, lane->data = data;
    if (mask && !(mask & own)) {
        sim_fail(run_of(lane), lane, site, CUDA_ERROR_ILLEGAL_INSTRUCTION,
                 "mask 0x%x lacks the thread that runs it, lane %u: all that run it must be in the mask",
                 mask, thread->laneid);
        sim_end_lane(lane);
    }
    warp->ready &= ~own;
    if (mask)
        warp->meeting |= own;
    else
        warp->active |= own, warp->turns = 0;
    if (mask)
        try(warp, lane);
    leave(lane);
    return lane->result;
}

static void meet_without(struct warp *warp, uint32_t lanes) {
    for (uint32_t rest = warp->meeting; rest; rest &= rest - 1) {
        const struct lane *lane = &warp->lanes[__builtin_ctz(rest)];
        if (warp->meeting & rest & -rest && lane->mask & lanes)
            try(warp, lane);
    }
}

static bool meet_active(struct warp *warp) {
    if (!warp->active)
        return false;
    const struct lane *first = &warp->lanes[__builtin_ctz(warp->active)];
    uint32_t lanes = 0;
    for (uint32_t rest = warp->active; rest; rest &= rest - 1) {
        const struct lane *lane = &warp->lanes[__builtin_ctz(rest)];
        if (lane->site == first->site && lane->combine == first->combine)
            lanes |= rest & -rest;
    }
    warp->active &= ~lanes;
    meet(warp, lanes, first->combine);
    return true;
}

// -- Turns -----------------------------------------------------------------
//
// The lanes of a block take turns. The lanes of a warp run in order, each until it waits for others, and then
// the next warp runs. A lane that spins in a loop may be waiting for another lane's store, so after a number
// of backward branches the next lane gets a turn. That number is halved each time.

enum { SHORTEST = 512, ENOUGH = 4096 }; // backward branches; turns

static struct lane *choose(struct warp *warp) {
    uint32_t later = warp->ready & -(2u << warp->last);
    warp->last = (unsigned)__builtin_ctz(later ? later : warp->ready);
    return &warp->lanes[warp->last];
}

struct lane *sim_choose(struct resident *block) {
    for (unsigned tried = 0; tried < block->warp_count; tried++) {
        struct warp *warp = &block->warps[block->warp];
        if (warp->ready || meet_active(warp))
            return choose(warp);
        block->warp = block->warp + 1 == block->warp_count ? 0 : block->warp + 1;
    }
    return NULL;
}

static unsigned count_ready(const struct resident *block) {
    unsigned count = 0;
    for (unsigned i = 0; i < block->warp_count; i++)
        count += (unsigned)__builtin_popcount(block->warps[i].ready);
    return count;
}

// Let other lanes run, because this one has used up its turn. Once all lanes of the block have had a turn,
// other blocks of the worker get one, even if lanes of this block met or passed a barrier: they may do that
// just to check together whether another block has stored something.
//
// Lanes that wait in meet with mask 0 continue when no other lane of the warp can advance. Lanes that spin
// until memory changes would prevent that forever, so after ENOUGH turns the waiting lanes continue as well.
void sim_turn(struct host_thread *thread, uint32_t site) {
    struct lane *lane = lane_of(thread);
    struct warp *warp = lane->warp;
    struct resident *block = warp->block;
    lane->site = site;
    thread->budget = lane->patience;
    lane->patience = lane->patience > 2 * SHORTEST ? lane->patience / 2 : SHORTEST;
    if (warp->active && ++warp->turns > ENOUGH)
        meet_active(warp);
    if (!(warp->ready & -(2u << thread->laneid)))
        block->warp = block->warp + 1 == block->warp_count ? 0 : block->warp + 1;
    if (++block->turns < count_ready(block) && !__atomic_load_n(&run_of(lane)->failed, __ATOMIC_RELAXED)) {
        leave(lane);
        return;
    }
    block->turns = 0;
    block->worker->turned = true;
    go_home(lane);
}

// Barriers

static bool complete(struct resident *block, uint32_t id) {
    struct barrier *barrier = &block->barriers[id];
    uint32_t needed = barrier->threads ? barrier->threads : block->live + barrier->gone;
    if ((barrier->threads ? barrier->counted : barrier->arrivals) < needed)
        return false;
    for (unsigned i = 0; i < block->warp_count; i++) {
        struct warp *warp = &block->warps[i];
        warp->ready |= barrier->waiting[i];
        warp->last = HOST_WARP - 1; // lanes continue in order
        for (uint32_t rest = barrier->reduces ? barrier->waiting[i] : 0; rest; rest &= rest - 1) {
            struct lane *lane = &warp->lanes[__builtin_ctz(rest)];
            lane->result = lane->mask == HOST_BARRIER_POPC  ? barrier->count
                           : lane->mask == HOST_BARRIER_AND ? barrier->count == barrier->arrivals
                                                            : barrier->count > 0;
        }
    }
    block->warp = 0;
    *barrier = (struct barrier){0};
    block->used &= ~(1u << id);
    sim_advance(block);
    return true;
}

uint32_t sim_barrier(struct host_thread *thread, uint32_t site, enum host_barrier kind, uint32_t id,
                     uint32_t threads, bool value) {
    struct lane *lane = lane_of(thread);
    struct warp *warp = lane->warp;
    struct resident *block = warp->block;
    if (id >= HOST_BARRIERS || threads % HOST_WARP || threads > MOST_THREADS) {
        sim_fail(
            block->worker->run, lane, site, CUDA_ERROR_ILLEGAL_INSTRUCTION,
            "barrier %u of %u threads: there are barriers 0 to %u, of a multiple of %u threads, at most %u",
            id, threads, HOST_BARRIERS - 1, HOST_WARP, MOST_THREADS);
        sim_end_lane(lane);
    }
    struct barrier *barrier = &block->barriers[id];
    unsigned number = (unsigned)(warp - block->warps);
    uint32_t own = 1u << thread->laneid;
    if (!barrier->come[number]) // this lane counts for its warp's missing lanes
        barrier->counted += HOST_WARP - (uint32_t)__builtin_popcount(warp->all & ~warp->exited);
    barrier->come[number] |= own;
    barrier->arrivals++;
    barrier->counted++;
    barrier->count += value;
    barrier->threads = threads ? threads : barrier->threads;
    barrier->reduces |= kind > HOST_BARRIER_ARRIVE;
    block->used |= 1u << id;
    lane->site = site, lane->mask = kind;
    if (kind != HOST_BARRIER_ARRIVE) {
        barrier->waiting[number] |= own;
        warp->ready &= ~own;
    }
    complete(block, id);
    if (kind != HOST_BARRIER_ARRIVE)
        leave(lane);
    return lane->result;
}

static void exit_lane(struct lane *lane) {
    struct warp *warp = lane->warp;
    struct resident *block = warp->block;
    uint32_t own = 1u << lane->thread.laneid;
    warp->exited |= own;
    warp->ready &= ~own;
    block->live--;
    sim_advance(block);
    if (warp->meeting)
        meet_without(warp, own);
    for (uint32_t used = block->used; used; used &= used - 1) {
        struct barrier *barrier = &block->barriers[__builtin_ctz(used)];
        uint32_t come = barrier->come[warp - block->warps];
        barrier->gone += (come & own) != 0;
        barrier->counted += come && !(come & own);
        complete(block, (uint32_t)__builtin_ctz(used));
    }
}
