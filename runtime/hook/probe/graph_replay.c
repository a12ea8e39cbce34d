// Launches of executable graphs with probes ("replays").
//
// The kernels of a graph always write to the same buffers. So after each replay, in the same stream, we copy
// the buffers to a slab, which is drained like any other slab, and clear them for the next replay. The
// program doesn't wait for this, but the next replay does: through the order of the stream, or through an
// event if it's in another stream. The driver never runs an executable graph twice at the same time. Nothing
// is inserted between the nodes.

#include <stdlib.h>
#include <string.h>

#include "driver_calls.h"
#include "graphs.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"

// Our own driver calls are made in the graph's context, and in relaxed capture mode, so that they don't break
// a capture in another stream.

struct stay { // what to undo after them
    bool pushed;
    int mode;
};

// Return whether a stream belongs to another context than the graph's. A default stream belongs to the
// current context.
static bool is_in_other_context(const struct prepared *graph, uint64_t stream) {
    uint64_t current = hook_current_context();
    return stream <= CU_STREAM_PER_THREAD_HANDLE && current && current != graph->context;
}

static struct stay enter(const struct prepared *graph, uint64_t stream) {
    struct stay stay = {.mode = hook_relaxed_mode(CU_STREAM_CAPTURE_MODE_RELAXED)};
    stay.pushed = hook_current_context() != graph->context && !is_in_other_context(graph, stream) &&
                  !hook_push_context(graph->context);
    return stay;
}

static void leave(struct stay stay) {
    if (stay.pushed)
        hook_pop_context();
    hook_relaxed_mode(stay.mode);
}

static bool is_captured(uint64_t stream) {
    int capturing = 0;
    return !hook_do.is_capturing(stream, &capturing) && capturing;
}

// Before the launch

static bool is_other_stream(const struct prepared *graph, uint64_t stream, uint32_t thread) {
    return graph->has_run &&
           (graph->stream != stream || (stream == CU_STREAM_PER_THREAD_HANDLE && graph->thread != thread) ||
            graph->ended != atomic_load_explicit(&hook_streams_ended, memory_order_relaxed));
}

// Make the stream wait until the buffers are clear and, if the last replay was in another stream, copied.
static bool wait_for_sets(const struct prepared *graph, uint64_t stream, uint32_t thread) {
    bool good = true;
    for (int i = 0; i < MOST_SETS; i++) {
        struct slab *slab = graph->sets[i].slab;
        if (slab && !slab->known_ready && !hook_do.query(slab->cleared))
            slab->known_ready = true;
        if (slab && !slab->known_ready)
            good &= !hook_do.wait_event(stream, slab->cleared, 0);
        if (slab && is_other_stream(graph, stream, thread))
            good &= !hook_do.wait_event(stream, slab->event, 0);
    }
    return good;
}

// Return whether the graph can be launched without any call of ours before it: its buffers are clear, and its
// kernels have no copies of constants that need an update.
static bool needs_nothing(const struct prepared *graph) {
    for (int i = 0; i < MOST_SETS; i++) {
        struct slab *slab = graph->sets[i].slab;
        if (slab && ((!slab->known_ready && hook_do.query(slab->cleared)) ||
                     (graph->has_run && hook_do.query(slab->event))))
            return false;
    }
    for (size_t i = 0; i < graph->members->count; i++)
        if (graph->members->all[i].save && hook_must_copy(graph->members->all[i].choice.bound))
            return false;
    return true;
}

static bool copy_constants(const struct members *members, uint64_t stream) {
    bool good = true;
    const struct bound *last = NULL;
    for (size_t i = 0; i < members->count; i++) {
        const struct member *member = &members->all[i];
        if (member->save && member->choice.bound != last)
            good &= hook_copy_variables(last = member->choice.bound, stream);
    }
    return good;
}

static uint64_t bytes_of(const struct prepared *graph) {
    uint64_t bytes = 0;
    for (int i = 0; i < MOST_SETS; i++)
        bytes += hook_rounded(graph->sets[i].bytes);
    return bytes;
}

// Return whether this replay needs no work of ours: it isn't recorded, and the graph contains no probes.
static bool is_idle(const struct prepared *graph) {
    return graph->quiet && hook_tally(graph->members, graph->order, graph->now) && !graph->members->saves;
}

static void get_ready(struct prepared *graph, uint64_t stream, uint32_t thread) {
    if (is_in_other_context(graph, stream))
        hook_abandon_sets(graph, WHY(graph_context));
    graph->no_room = graph->lost;
    if (!wait_for_sets(graph, stream, thread) || !copy_constants(graph->members, stream))
        graph->no_room = WHY(stream_events);
}

// Claim room in a slab for a copy of the buffers. It's needed only once the graph has run, so this is
// normally called after the launch, while the graph runs. With --complete, which waits for a slab if none is
// free, it's called before: the graph may depend on something that the program does next, so waiting after
// the launch could take forever.
static void find_place(struct prepared *graph, uint64_t stream, uint32_t thread) {
    uint64_t bytes = bytes_of(graph);
    if (bytes && !graph->no_room && graph->order == graph->now && !graph->quiet)
        graph->slab = hook_claim(&(struct claim){.context = graph->context,
                                                 .stream = stream,
                                                 .thread = thread,
                                                 .copied = true,
                                                 .bytes = bytes},
                                 &graph->offset, &graph->no_room);
}

void hook_before_replay(struct frame *frame) {
    struct prepared *graph = hook_probing ? hook_lock_prepared(frame_arg(frame, 0)) : NULL;
    if (!graph)
        return;
    const struct order *order = hook_order();
    uint64_t stream = hook_stream_of(frame);
    uint32_t thread = frame->thread ? frame->thread->tid : 0;
    graph->now = order->number;
    graph->quiet = frame->off || !order->identity;
    if (is_idle(graph)) {
        hook_unlock_prepared(graph);
        return;
    }
    hook_end_burst();
    graph->slab = NULL;
    graph->captured = false;
    graph->unknown = !hook_stream_is_known(stream); // the driver may fail before it looks at the stream
    frame_leave_note(frame, NOTE_REPLAY, graph);
    struct stay stay = enter(graph, stream);
    if (graph->unknown) {
        if (!graph->lost && !needs_nothing(graph))
            hook_abandon_sets(graph, WHY(stream_unknown));
        graph->no_room = graph->lost;
    } else if (!(graph->captured = is_captured(stream))) {
        get_ready(graph, stream, thread);
        if (hook_settings.complete)
            find_place(graph, stream, thread);
    }
    leave(stay);
}

// After the launch

// Copy the buffers to the slab if the replay has room in one, and clear them.
static bool copy_sets(const struct prepared *graph, struct replay *replay, uint64_t stream) {
    bool good = true;
    uint64_t at = graph->offset;
    for (int i = 0; i < MOST_SETS; i++) {
        const struct set *set = &graph->sets[i];
        if (!set->slab)
            continue;
        if (replay)
            replay->starts[i] = at;
        good &= hook_move(graph->mover, replay ? hook_slab_address(graph->slab) + at : 0, set->slab->address,
                          set->bytes, stream);
        at += hook_rounded(set->bytes);
        good &= !hook_do.record(set->slab->event, stream);
    }
    return good;
}

static struct save *new_replay(const struct prepared *graph, const struct frame *frame, uint64_t stream) {
    struct save *save = calloc(1, sizeof(*save));
    struct replay *replay = calloc(1, sizeof(*replay));
    if (!save || !replay) {
        free(save), free(replay);
        return NULL;
    }
    *replay = (struct replay){.members = graph->members,
                              .exec = graph->exec,
                              .start = frame->start,
                              .stream = stream,
                              .thread = frame->thread ? frame->thread->tid : 0};
    hook_do.get_device(&replay->device);
    atomic_fetch_add(&graph->members->users, 1);
    save->replay = replay;
    return save;
}

static void count_lost(const struct members *members, const struct reason *reason) {
    for (size_t i = 0; i < members->count; i++)
        if (members->all[i].save && !members->all[i].disabled)
            hook_count_unprobed(members->all[i].function, reason);
}

static void collect(struct prepared *graph, const struct frame *frame, uint64_t stream) {
    uint32_t thread = frame->thread ? frame->thread->tid : 0;
    if (!hook_settings.complete || graph->unknown)
        find_place(graph, stream, thread);
    struct save *save = graph->slab ? new_replay(graph, frame, stream) : NULL;
    const struct reason *lost = graph->no_room;
    if (graph->slab && !save)
        lost = WHY(no_memory);
    if (!copy_sets(graph, save ? save->replay : NULL, stream)) {
        if (save)
            hook_end_replay(save->replay), free(save);
        save = NULL;
        lost = WHY(device_failed);
        hook_abandon_sets(graph, lost);
    }
    if (graph->slab) {
        hook_make_next(graph->slab);
        hook_issue(graph->slab, save);
    }
    if (!save && lost && !graph->quiet && graph->order == graph->now)
        count_lost(graph->members, lost);
    const struct tally *tallies = graph->quiet ? NULL : hook_tally(graph->members, graph->order, graph->now);
    for (size_t i = 0; tallies && i < graph->members->tally_count; i++)
        hook_count_unprobed_times(tallies[i].function, tallies[i].reason, tallies[i].launches);
    graph->has_run = true;
    graph->stream = stream;
    graph->thread = thread;
    graph->ended = atomic_load_explicit(&hook_streams_ended, memory_order_relaxed);
}

void hook_after_replay(struct frame *frame) {
    struct prepared *graph = frame_note(frame, NOTE_REPLAY);
    if (!graph)
        return;
    bool done = (CUresult)frame->result == CUDA_SUCCESS;
    uint64_t stream = hook_stream_of(frame);
    struct stay stay = enter(graph, stream);
    if (done && graph->unknown) // the launch succeeded, so the stream's handle is valid
        graph->captured = is_captured(stream);
    if (done && !graph->captured)
        collect(graph, frame, stream);
    else if (graph->slab)
        hook_issue(graph->slab, NULL);
    leave(stay);
    hook_unlock_prepared(graph);
}

// -- Executable graphs -----------------------------------------------------
//
// A table of the executable graphs with kernels in them, and the memory that their probes write to. A node's
// parameters are fixed, and so are the addresses of its buffers, one for each map of its probes. The buffers
// of all nodes are allocated together, as a set. If a node later gets a kernel that needs larger buffers,
// they're allocated as a set of their own.

enum { BUCKETS = 256 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct prepared *buckets[BUCKETS];

static struct prepared **bucket_of(uint64_t exec) {
    return &buckets[(exec * 0x9e3779b97f4a7c15u >> 32) % BUCKETS];
}

void hook_release_prepared(struct prepared *graph) {
    if (atomic_fetch_sub(&graph->users, 1) > 1)
        return;
    for (int i = 0; i < MOST_SETS; i++)
        if (graph->sets[i].slab &&
            hook_is_alive(graph->of_context)) // otherwise the graph was destroyed with its context
            hook_let_go(graph->sets[i].slab);
    hook_drop_members(graph->members);
    pthread_mutex_destroy(&graph->lock);
    free(graph);
}

struct prepared *hook_remove_prepared(uint64_t exec, bool destroyed) {
    pthread_mutex_lock(&lock);
    struct prepared **at = bucket_of(exec), *found;
    while (*at && ((*at)->exec != exec || (destroyed && !(*at)->destroyed)))
        at = &(*at)->next;
    if ((found = *at))
        *at = found->next;
    pthread_mutex_unlock(&lock);
    return found;
}

void hook_add_prepared(struct prepared *graph) {
    pthread_mutex_lock(&lock);
    graph->next = *bucket_of(graph->exec);
    *bucket_of(graph->exec) = graph;
    pthread_mutex_unlock(&lock);
}

struct prepared *hook_lock_prepared(uint64_t exec) {
    pthread_mutex_lock(&lock);
    struct prepared *found = *bucket_of(exec);
    while (found && found->exec != exec)
        found = found->next;
    if (found)
        found->users++;
    pthread_mutex_unlock(&lock);
    if (found)
        pthread_mutex_lock(&found->lock);
    if (!found || hook_is_alive(found->of_context))
        return found;
    hook_unlock_prepared(found);
    return NULL;
}

void hook_unlock_prepared(struct prepared *graph) {
    pthread_mutex_unlock(&graph->lock);
    hook_release_prepared(graph);
}

void hook_mark_exec_destroyed(uint64_t exec, bool destroyed) {
    pthread_mutex_lock(&lock);
    for (struct prepared *at = *bucket_of(exec); at; at = at->next)
        if (at->exec == exec)
            at->destroyed = destroyed;
    pthread_mutex_unlock(&lock);
}

struct member *hook_find_member(const struct prepared *graph, uint64_t node) {
    for (struct member *at = graph->members->all; at < graph->members->all + graph->members->count; at++)
        if (at->named == node)
            return at;
    return NULL;
}

bool hook_own_members(struct prepared *graph) {
    struct members *made = graph->members;
    if (made->users > 1 && !(made = hook_copy_members(graph->members))) {
        graph->lost = WHY(no_memory);
        return false;
    }
    if (made != graph->members)
        hook_drop_members(graph->members);
    graph->members = made;
    made->is_tallied = false;
    return true;
}

// Stop using the buffers of a graph. We can't tell when the GPU stops writing to them, so they're never freed
// or reused.
void hook_abandon_sets(struct prepared *graph, const struct reason *reason) {
    memset(graph->sets, 0, sizeof(graph->sets));
    graph->lost = reason;
}

void hook_free_set(struct set *set) {
    if (set->slab)
        hook_let_go(set->slab);
    *set = (struct set){0};
}

unsigned hook_find_place(struct prepared *graph) {
    bool used[MOST_SETS] = {false};
    if (graph->lost) // we no longer know which buffers its nodes write to
        return MOST_SETS;
    for (size_t i = 0; i < graph->members->count; i++)
        if (graph->members->all[i].save)
            used[graph->members->all[i].set] = true;
    unsigned place = MOST_SETS;
    for (unsigned i = MOST_SETS; i-- > 0;)
        if (!used[i]) {
            hook_free_set(&graph->sets[i]);
            place = i;
        }
    return place;
}

// -- Launches without probes -----------------------------------------------
//
// How many launches without probes a replay has, by function and reason. This is computed once for all
// replays, until the nodes or the user's choice of probes change.

static void count_member(struct members *members, uint32_t function, const struct reason *reason) {
    struct tally *all = members->tallies;
    size_t k = 0;
    while (k < members->tally_count && (all[k].function != function || all[k].reason != reason))
        k++;
    if (k == members->tally_count)
        all[members->tally_count++] = (struct tally){function, reason, 0};
    all[k].launches++;
}

// Return why a node runs without probes, NULL if it has probes, or UNCOUNTED if the user's choice leaves the
// kernel out. `earlier` says that the graph got its probes before the user chose other ones.
static const struct reason *reason_of(const struct member *member, bool earlier) {
    uint64_t handle = (uint64_t)(member->own.func ? (void *)member->own.func : (void *)member->own.kern);
    const struct reason *other = WHY(graph_early);
    return !earlier ? (member->save ? NULL : member->reason) : hook_is_meant(handle) ? other : UNCOUNTED;
}

// A kernel in the body of a conditional node counts as one launch, since we can't know how often it runs.
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
        const struct reason *reason = reason_of(member, order != now);
        if (reason && reason != UNCOUNTED)
            count_member(members, member->function, reason);
    }
    return members->tallies;
}
