// User objects: data of the program that lives as long as the graphs that refer to it. When the last
// reference is dropped, a separate thread calls the program's destructor, since that may wait for anything.

#include <stdlib.h>
#include <string.h>

#include "graph.h"

struct user {
    struct object object;
    void (*destroy)(void *);
    void *data;
    uint64_t references;
};

struct held { // references that a graph, the owner, holds
    struct object object;
    struct user *user;
    unsigned count;
};

struct call {
    void (*function)(void *);
    void *data;
};

static void *run(void *given) {
    struct call call = *(struct call *)given;
    free(given);
    call.function(call.data);
    return NULL;
}

static void release(struct user *user, unsigned count) {
    if (user->references -= count)
        return;
    struct call *call = malloc(sizeof(*call));
    pthread_t thread;
    if (call) {
        *call = (struct call){user->destroy, user->data};
        int error = pthread_create(&thread, NULL, run, call);
        if (error) {
            sim_say("cannot start a thread for a user object's destructor: %s", strerror(error));
            free(call);
        } else
            pthread_detach(thread);
    }
    sim_delete(user);
}

static void end_held(struct object *object) {
    struct held *held = (struct held *)object;
    if (held->count)
        release(held->user, held->count);
}

AT_END(HELD, end_held)

static CUresult hold(struct graph *graph, struct user *user, unsigned count) {
    struct held *made = sim_new(HELD, graph);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->user = user;
    made->count = count;
    return CUDA_SUCCESS;
}

bool sim_copy_held(struct graph *to, const struct graph *from) {
    for (struct object *at = from->object.owned; at; at = at->older) {
        const struct held *held = (const struct held *)at;
        if (at->kind != HELD)
            continue;
        if (hold(to, held->user, held->count))
            return false;
        held->user->references += held->count;
    }
    return true;
}

static struct user *find(void *user, unsigned count) {
    struct user *found = count && is_kind(user, USER) ? user : NULL;
    return found && found->references >= count ? found : NULL;
}

API cuUserObjectCreate(void **object, void *data, void (*destroy)(void *), unsigned count, unsigned flags) {
    enum { NO_DESTRUCTOR_SYNC = 1 };
    LOCKED;
    if (!object || !destroy || !count || flags != NO_DESTRUCTOR_SYNC)
        return CUDA_ERROR_INVALID_VALUE;
    struct user *made = sim_new(USER, NULL);
    if (!made)
        return CUDA_ERROR_OUT_OF_MEMORY;
    made->destroy = destroy;
    made->data = data;
    made->references = count;
    *object = made;
    return CUDA_SUCCESS;
}

API cuUserObjectRetain(void *object, unsigned count) {
    LOCKED;
    if (!count || !is_kind(object, USER))
        return CUDA_ERROR_INVALID_VALUE;
    ((struct user *)object)->references += count;
    return CUDA_SUCCESS;
}

API cuUserObjectRelease(void *object, unsigned count) {
    LOCKED;
    if (!find(object, count))
        return CUDA_ERROR_INVALID_VALUE;
    release(object, count);
    return CUDA_SUCCESS;
}

API cuGraphRetainUserObject(void *graph, void *object, unsigned count, unsigned flags) {
    enum { MOVE = 1 }; // the references are the caller's
    LOCKED;
    if (!find_graph(graph) || !count || !is_kind(object, USER) || flags > MOVE ||
        (flags == MOVE && !find(object, count)))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult status = hold(graph, object, count);
    if (!status && !flags)
        ((struct user *)object)->references += count;
    return status;
}

API cuGraphReleaseUserObject(void *graph, void *object, unsigned count) {
    LOCKED;
    uint64_t all = 0;
    struct object *owned = find_graph(graph) ? ((struct object *)graph)->owned : NULL;
    for (struct object *at = owned; at; at = at->older)
        if (at->kind == HELD && ((struct held *)at)->user == object)
            all += ((struct held *)at)->count;
    if (!count || all < count)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned left = count;
    for (struct object *at = owned; at && left; at = at->older)
        if (at->kind == HELD && ((struct held *)at)->user == object) {
            struct held *held = (struct held *)at;
            unsigned part = held->count < left ? held->count : left;
            held->count -= part; // an empty one is deleted with the graph
            left -= part;
        }
    release(object, count);
    return CUDA_SUCCESS;
}
