// Lanes of a warp that meet: the last one to arrive does the work for all.

#include "run.h"

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

// If all lanes that `lane` waits for have arrived, let them meet, and return true.
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
    sim_leave(lane);
    return lane->result;
}

void sim_meet_without(struct warp *warp, uint32_t lanes) {
    for (uint32_t rest = warp->meeting; rest; rest &= rest - 1) {
        const struct lane *lane = &warp->lanes[__builtin_ctz(rest)];
        if (warp->meeting & rest & -rest && lane->mask & lanes)
            try(warp, lane);
    }
}

bool sim_meet_active(struct warp *warp) {
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
