// Lanes have stacks, which they are given when they begin. One that has exited hands its stack to the next: a
// kernel whose threads never wait needs one stack a worker. Memory is touched as it is used.

#include <stdlib.h>
#include <sys/mman.h>

#include "run.h"

enum {
    FRAMES = 256 << 10, // bytes for the frames of functions, beside their local memory
    RESERVE = 31 << 10, // for services, below
    PAGE = 4096,
    SLAB = 16,          // stacks
    STEP = 1024 / SLAB, // their tops do not meet in the same lines of a cache
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

// Saves what a function must keep, by the System V ABI, on the stack that it leaves, and goes on where `to`
// was left.
void sim_switch(void **from, void *to) __attribute__((visibility("hidden")));
void sim_first(void) __attribute__((visibility("hidden")));
__asm__(".text\n"
        ".type sim_switch, @function\n"
        ".hidden sim_switch\n"
        ".globl sim_switch\n"
        "sim_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    subq $8, %rsp\n"
        "    stmxcsr (%rsp)\n"
        "    fnstcw 4(%rsp)\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    fldcw 4(%rsp)\n"
        "    ldmxcsr (%rsp)\n"
        "    addq $8, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size sim_switch, . - sim_switch\n"
        ".type sim_first, @function\n"
        ".hidden sim_first\n"
        ".globl sim_first\n"
        "sim_first:\n"
        "    movq %rbx, %rdi\n"
        "    call sim_run_lanes\n"
        "    ud2\n"
        ".size sim_first, . - sim_first\n");

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

// The stack pointer of a stack on which sim_first is to run.
static void *prepare(struct worker *worker, struct stack *stack) {
    uint64_t *at = (uint64_t *)stack->top;
    *--at = (uint64_t)sim_first;
    *--at = 0;                // rbp
    *--at = (uint64_t)worker; // rbx
    for (int i = 0; i < 4; i++)
        *--at = 0;
    *--at = 0x037f00001f80; // control words as a process begins with
    return at;
}

// Run `next`, or the worker if it's NULL. Returns when the caller is resumed.
static void go(struct worker *worker, void **from, struct lane *next) {
    struct stack *stack = worker->free;
    if (next && !next->stack && !stack && !(stack = new_slab(worker))) {
        sim_fail(worker->run, next, UINT32_MAX, CUDA_ERROR_OUT_OF_MEMORY, "no memory for another stack");
        next = NULL;
    }
    worker->current = next;
    if (!next)
        sim_switch(from, worker->home);
    else if (next->stack)
        sim_switch(from, next->at);
    else {
        worker->free = stack->next;
        start(next, stack);
        sim_switch(from, prepare(worker, stack));
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

// What runs on a stack: one lane after the other, until one is next that has a stack.
__attribute__((used, noreturn, visibility("hidden"))) void sim_run_lanes(struct worker *worker) {
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
