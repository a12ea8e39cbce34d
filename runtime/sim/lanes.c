// A lane gets a stack when it begins, and hands it to the next one when it exits. So a kernel whose threads
// never wait needs only one stack per worker. Stack memory is touched only as it's used.

#include <stdlib.h>
#include <sys/mman.h>

#include "run.h"

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

// Run `next`, or the worker if it's NULL. Returns when the caller is resumed.
static void go(struct worker *worker, void **from, struct lane *next) {
    struct stack *stack = worker->free;
    if (next && !next->stack && !stack && !(stack = new_slab(worker))) {
        sim_fail(worker->run, next, UINT32_MAX, CUDA_ERROR_OUT_OF_MEMORY, "no memory for another stack");
        next = NULL;
    }
    worker->current = next;
    if (!next && from == &worker->home)
        return; // the worker is at home: not even one lane has a stack
    if (!next)
        sim_switch(from, worker->home);
    else if (next->stack)
        sim_switch(from, next->at);
    else {
        worker->free = stack->next;
        start(next, stack);
        sim_switch(from, sim_prepare_stack(stack->top, worker));
    }
}

// Leave the stack for good, dropping its contents.
static __attribute__((noreturn)) void end(struct worker *worker, struct stack *stack, struct lane *next) {
    void *never;
    stack->next = worker->free;
    worker->free = stack;
    go(worker, &never, next);
    __builtin_unreachable();
}

void sim_run_lanes(struct worker *worker) {
    struct stack *stack = worker->current->stack;
    struct lane *lane = worker->current;
    for (;;) {
        worker->run->kernel->run(&lane->thread, worker->run->parameters);
        sim_exit(lane);
        lane = sim_choose(lane->warp->block);
        if (!lane || lane->stack)
            end(worker, stack, lane);
        worker->current = lane;
        start(lane, stack);
    }
}

void sim_exit_early(struct host_thread *thread) {
    struct lane *lane = lane_of(thread);
    sim_exit(lane);
    end(lane->warp->block->worker, lane->stack, sim_choose(lane->warp->block));
}

void sim_enter_lane(struct worker *worker, struct lane *lane) { go(worker, &worker->home, lane); }

void sim_leave(struct lane *lane) {
    struct lane *next = sim_choose(lane->warp->block);
    if (next != lane)
        go(lane->warp->block->worker, &lane->at, next);
}

void sim_go_home(struct lane *lane) { go(lane->warp->block->worker, &lane->at, NULL); }
