// The objects behind handles. All have the same size, and their memory is never returned to the system, so we
// can always look at what a handle points to. If a program uses a stale handle, we notice that its object is
// gone, until the memory is reused. The object freed last is reused first, for an object of any kind, so such
// a bug soon shows, and at the same point in every run.

#include <stdlib.h>
#include <string.h>

#include "sim.h"

pthread_mutex_t sim_lock = PTHREAD_MUTEX_INITIALIZER;

enum { SLAB = 256 }; // objects

static char *slab; // the unused rest of it
static size_t left;
static struct object *unused; // by `older`
static uint64_t serial;

void (*sim_ends[ALLOCATION - CONTEXT + 1])(struct object *);

void *sim_new(enum kind kind, void *owner) {
    struct object *made = unused;
    if (made)
        unused = made->older;
    else {
        if (!left && (slab = aligned_alloc(OBJECT_SIZE, SLAB * OBJECT_SIZE)))
            left = SLAB;
        if (!left)
            return NULL;
        made = (struct object *)slab;
        slab += OBJECT_SIZE, left--;
    }
    memset(made, 0, OBJECT_SIZE);
    made->kind = kind;
    made->serial = ++serial;
    if (owner)
        sim_give(made, owner);
    return made;
}

void sim_give(void *object, void *owner) {
    struct object *given = object;
    given->owner = owner;
    given->older = given->owner->owned;
    if (given->older)
        given->older->newer = given;
    given->owner->owned = given;
}

void *sim_grow(void *array, size_t count, size_t *room, size_t item) {
    if (count < *room)
        return array;
    size_t more = *room ? 2 * *room : 16;
    void *larger = realloc(array, more * item);
    *room = larger ? more : *room;
    return larger;
}

// Delete an object and all that it owns, the innermost first. Graphs may be nested to any depth, so don't
// recurse.
void sim_delete(void *object) {
    struct object *top = object, *at = top, *next;
    do {
        while (at->owned)
            at = at->owned;
        next = at->owner;
        if (sim_ends[at->kind - CONTEXT])
            sim_ends[at->kind - CONTEXT](at);
        if (at->newer)
            at->newer->older = at->older;
        else if (at->owner)
            at->owner->owned = at->older;
        if (at->older)
            at->older->newer = at->newer;
        at->kind = 0;
        at->older = unused;
        unused = at;
    } while (at != top && (at = next));
}
