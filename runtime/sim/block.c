// The lanes of a block take turns: the lanes of a warp in order, each until it waits, then the next warp.
// Lanes that spin take turns too, each time for a shorter slice, because they may be waiting for another
// lane.

#include "run.h"

enum { SHORTEST = 512, ENOUGH = 4096 }; // backward branches; turns

static struct lane *choose(struct warp *warp) {
    uint32_t later = warp->ready & -(2u << warp->last);
    warp->last = (unsigned)__builtin_ctz(later ? later : warp->ready);
    return &warp->lanes[warp->last];
}

struct lane *sim_choose(struct resident *block) {
    for (unsigned tried = 0; tried < block->warp_count; tried++) {
        struct warp *warp = &block->warps[block->warp];
        if (warp->ready || sim_meet_active(warp))
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

// Once all lanes have had their turn, other blocks get one. That doesn't depend on progress: lanes may meet,
// or pass barriers, just to check together whether another block has done what they wait for.
//
// If a warp's only running lanes are waiting for memory, lanes that wait for those wait forever.
void sim_turn(struct host_thread *thread, uint32_t site) {
    struct lane *lane = lane_of(thread);
    struct warp *warp = lane->warp;
    struct resident *block = warp->block;
    lane->site = site;
    thread->budget = lane->patience;
    lane->patience = lane->patience > 2 * SHORTEST ? lane->patience / 2 : SHORTEST;
    if (warp->active && ++warp->turns > ENOUGH)
        sim_meet_active(warp);
    if (!(warp->ready & -(2u << thread->laneid)))
        block->warp = block->warp + 1 == block->warp_count ? 0 : block->warp + 1;
    if (++block->turns < count_ready(block) && !__atomic_load_n(&run_of(lane)->failed, __ATOMIC_RELAXED)) {
        sim_leave(lane);
        return;
    }
    block->turns = 0;
    block->worker->turned = true;
    sim_go_home(lane);
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
    if (!barrier->come[number]) // missing lanes count as if they had arrived with it
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
        sim_leave(lane);
    return lane->result;
}

void sim_exit(struct lane *lane) {
    struct warp *warp = lane->warp;
    struct resident *block = warp->block;
    uint32_t own = 1u << lane->thread.laneid;
    warp->exited |= own;
    warp->ready &= ~own;
    block->live--;
    sim_advance(block);
    if (warp->meeting)
        sim_meet_without(warp, own);
    for (uint32_t used = block->used; used; used &= used - 1) {
        struct barrier *barrier = &block->barriers[__builtin_ctz(used)];
        uint32_t come = barrier->come[warp - block->warps];
        barrier->gone += (come & own) != 0;
        barrier->counted += come && !(come & own);
        complete(block, (uint32_t)__builtin_ctz(used));
    }
}
