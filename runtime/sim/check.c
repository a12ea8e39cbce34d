// Checks the memory accesses of device code. After an invalid access, the launch ends with one message, and
// calls return the same error as on an H200.

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "run.h"
#include "say.h"

// The error for each fault, as an H200 returns it (tests/asm/host/h200.json) if it detects the fault.
static const struct {
    CUresult status;
    const char *fact; // with the address
} faults[] = {
    [HOST_FAULT_ADDRESS] = {CUDA_ERROR_ILLEGAL_ADDRESS, "illegal address 0x%llx"},
    [HOST_FAULT_MISALIGNED] = {CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address 0x%llx"},
    [HOST_FAULT_SHARED] = {CUDA_ERROR_ILLEGAL_ADDRESS, "address 0x%llx is outside of the shared memory"},
    [HOST_FAULT_LOCAL] = {CUDA_ERROR_ILLEGAL_ADDRESS, "address 0x%llx is outside of the local memory"},
    [HOST_FAULT_STACK] = {CUDA_ERROR_ILLEGAL_ADDRESS, "calls too deep"},
    [HOST_FAULT_TRAP] = {CUDA_ERROR_LAUNCH_FAILED, "trap"},
    [HOST_FAULT_FUNCTION] = {CUDA_ERROR_ILLEGAL_INSTRUCTION, "call of 0x%llx, which is not a function"},
    [HOST_FAULT_INSTRUCTION] = {CUDA_ERROR_ILLEGAL_INSTRUCTION, "illegal operand 0x%llx"},
    [HOST_FAULT_CLUSTER] = {CUDA_ERROR_ILLEGAL_INSTRUCTION,
                            "the launch has no clusters: give it cluster dimensions"},
    [HOST_FAULT_ASSERT] = {CUDA_ERROR_ASSERT, "assertion failed"},
};

void sim_fault(struct host_thread *thread, uint32_t site, enum host_fault fault, uint64_t address) {
    struct lane *lane = lane_of(thread);
    char fact[128], near[256] = "";
    snprintf(fact, sizeof(fact), faults[fault].fact, (unsigned long long)address);
    if (fault == HOST_FAULT_ADDRESS && !sim_heap_describe(run_of(lane)->context, address, near))
        sim_describe(address, near);
    else if (fault == HOST_FAULT_SHARED || fault == HOST_FAULT_LOCAL)
        snprintf(near, sizeof(near), " of %u bytes",
                 fault == HOST_FAULT_SHARED ? thread->shared_size : thread->local_size);
    sim_fail(run_of(lane), lane, site, faults[fault].status, "%s%s", fact, near);
    sim_end_lane(lane);
}

// Memory

static bool within(uint64_t address, uint64_t size, const void *start, uint64_t room) {
    return address - (uint64_t)start <= room && size <= room - (address - (uint64_t)start);
}

// Return whether this memory belongs to the thread itself, so that the access needs no further check.
static bool is_own(const struct lane *lane, uint64_t address, uint64_t size) {
    const struct host_thread *t = &lane->thread;
    return within(address, size, t->shared, t->shared_size) || within(address, size, t->local, t->local_size);
}

static bool find(const struct lane *lane, uint64_t address, uint64_t size, struct host_place *place) {
    const struct run *run = run_of(lane);
    if (within(address, size, run->parameters, run->kernel->parameter_size)) {
        *place = (struct host_place){(uint64_t)run->parameters, run->kernel->parameter_size};
        return true;
    }
    if (run->cooperative && within(address, size, run->workspace, sizeof(run->workspace))) {
        *place = (struct host_place){(uint64_t)run->workspace, sizeof(run->workspace)};
        return true;
    }
    if (sim_find_memory(address, size, run->number, &place->start, &place->size))
        return true;
    *place = (struct host_place){0}; // look it up each time, since device code may free it
    return sim_heap_has(run->context, address, size) || sim_find_freed(address, size, run->number);
}

bool sim_may_access(const struct lane *lane, uint64_t address, uint64_t size) {
    struct host_place place;
    return is_own(lane, address, size) || find(lane, address, size, &place);
}

void sim_see(struct host_thread *thread, uint32_t site, uint64_t address, uint64_t size) {
    struct host_place place;
    if (!find(lane_of(thread), address, size, &place))
        sim_fault(thread, site, HOST_FAULT_ADDRESS, address);
    thread->places[site] = place;
}

void sim_read_text(struct lane *lane, uint32_t site, uint64_t address, char *to, size_t room) {
    size_t size = 0;
    do
        if (!sim_may_access(lane, address + size, 1))
            sim_fault(&lane->thread, site, HOST_FAULT_ADDRESS, address + size);
    while ((to[size] = ((const char *)address)[size]) && ++size < room - 1);
    to[size] = '\0';
}

// Deadlocks

static bool waits(const struct resident *block, const struct lane *lane) {
    const struct warp *warp = lane->warp;
    uint32_t own = 1u << lane->thread.laneid;
    return lane - block->lanes < block->threads && !(warp->exited & own) && !(warp->ready & own);
}

void sim_deadlock(struct resident *block) {
    const struct lane *first = NULL;
    unsigned same = 0, others = 0;
    for (unsigned i = 0; i < block->threads; i++) {
        const struct lane *lane = &block->lanes[i];
        if (!waits(block, lane))
            continue;
        first = first ? first : lane;
        *(lane->site == first->site ? &same : &others) += 1;
    }
    if (first)
        sim_fail(block->worker->run, first, first->site, CUDA_ERROR_LAUNCH_TIMEOUT,
                 "deadlock: of %u threads %u wait here, %u elsewhere, %u have exited", block->threads, same,
                 others, block->threads - block->live);
}

void sim_time_out(struct resident *block, unsigned seconds) {
    for (unsigned i = 0; i < block->threads; i++) {
        const struct lane *lane = &block->lanes[i];
        if (lane->warp->ready >> lane->thread.laneid & 1 && lane->stack) {
            sim_fail(block->worker->run, lane, lane->site, CUDA_ERROR_LAUNCH_TIMEOUT,
                     "no thread has made progress for %u seconds (GPT_SIM_TIMEOUT)", seconds);
            return;
        }
    }
}
