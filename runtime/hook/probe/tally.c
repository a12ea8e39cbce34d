// Launches without probes of a replay, by function and reason.

#include <stdlib.h>

#include "probe.h"

static void count_member(struct members *members, uint32_t function, const char *reason) {
    struct tally *all = members->tallies;
    size_t k = 0;
    while (k < members->tally_count && (all[k].function != function || all[k].reason != reason))
        k++;
    if (k == members->tally_count)
        all[members->tally_count++] = (struct tally){function, reason, 0};
    all[k].launches++;
}

// Why it runs without probes; NULL if it does not. Empty: it is not counted.
static const char *reason_of(const struct member *member, bool earlier) {
    uint64_t handle = (uint64_t)(member->own.func ? (void *)member->own.func : (void *)member->own.kern);
    const char *other = "its graph was made before these probes were named";
    return !earlier ? (member->save ? NULL : member->reason) : hook_is_meant(handle) ? other : "";
}

// How often a node in the body of a conditional node runs is not known: as with probes, it counts once. If
// other probes were named meanwhile, these are about none of the nodes, or about others.
const struct tally *hook_tally(struct members *members, unsigned order, unsigned now) {
    if (!members->tallies)
        members->tallies = calloc(members->count + 1, sizeof(*members->tallies));
    if ((members->is_tallied && members->order == now) || !members->tallies)
        return members->tallies;
    members->is_tallied = true;
    members->order = now;
    members->tally_count = members->saves = 0;
    for (size_t i = 0; i < members->count; i++) {
        const struct member *member = &members->all[i];
        members->saves += member->save != NULL;
        if (member->is_graph || member->disabled)
            continue;
        const char *reason = reason_of(member, order != now);
        if (reason && *reason)
            count_member(members, member->function, reason);
    }
    return members->tallies;
}
