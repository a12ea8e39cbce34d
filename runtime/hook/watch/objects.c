// The table of objects: handles, hashed, under one lock. The lock is held for a few hundred nanoseconds
// during which no function is called, and launches don't take it. The memory of an object is reused only for
// objects, so a reference can be checked at any time.

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include "hook/write/write.h"
#include "watch.h"

#define SLAB (64u << 10)
#define FIRST_SIZE 32u // bytes of the smallest piece

struct entry { // a property
    struct entry *next;
    struct property property;
    char name[];
};

struct object {
    _Atomic uint64_t generation; // must be first: references point to it. 0: gone
    struct object *same_bucket;
    struct object *parent, *children, *sibling;
    uint64_t handle, context;
    const void *image;
    uint64_t image_size;
    char *name;
    struct entry *properties;
    uint32_t id, holders;
    enum object_kind kind;
    bool asked, closed;
};

static void unlock(struct objects **objects) {
    if (*objects)
        pthread_mutex_unlock(&(*objects)->lock);
}

static struct objects *lock(void) {
    if (hook_watched)
        pthread_mutex_lock(&hook_watched->objects.lock);
    return hook_watched ? &hook_watched->objects : NULL;
}

#define LOCKED                                                                                               \
    HOOK_HOLD_SIGNALS;                                                                                       \
    __attribute__((cleanup(unlock))) struct objects *objects = lock()

// Memory

static void *map(size_t size) {
    void *found = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return found == MAP_FAILED ? NULL : found;
}

static void *carve(struct objects *objects, size_t size) {
    if (objects->slab_left < size) {
        char *slab = map(SLAB);
        if (!slab)
            return NULL;
        objects->slab = slab;
        objects->slab_left = SLAB;
    }
    objects->slab_left -= size;
    return objects->slab + objects->slab_left;
}

static unsigned size_class(size_t size) {
    unsigned class = 0;
    while (class < OBJECT_SIZES && (FIRST_SIZE << class) < size)
        class++;
    return class;
}

static void *allocate(struct objects *objects, size_t size) {
    unsigned class = size_class(size);
    if (class == OBJECT_SIZES)
        return map(size);
    void *piece = objects->spares[class];
    if (!piece)
        return carve(objects, FIRST_SIZE << class);
    objects->spares[class] = *(void **)piece;
    return piece;
}

static void release_piece(struct objects *objects, void *piece, size_t size) {
    unsigned class = size_class(size);
    if (!piece)
        return;
    if (class == OBJECT_SIZES) {
        munmap(piece, size);
        return;
    }
    *(void **)piece = objects->spares[class];
    objects->spares[class] = piece;
}

static char *copy_name(struct objects *objects, const char *name) {
    size_t size = name ? strlen(name) + 1 : 0;
    char *entry = name ? allocate(objects, size) : NULL;
    return entry ? memcpy(entry, name, size) : NULL;
}

// The table

static struct object **bucket_of(const struct objects *objects, uint64_t handle) {
    return &objects->buckets[handle * 0x9e3779b97f4a7c15u >> 32 & (objects->size - 1)];
}

static struct object *find(const struct objects *objects, uint64_t handle) {
    struct object *object = objects && objects->size && handle ? *bucket_of(objects, handle) : NULL;
    while (object && object->handle != handle)
        object = object->same_bucket;
    return object;
}

static bool grow(struct objects *objects) {
    uint32_t old_size = objects->size;
    struct object **old = objects->buckets;
    struct object **made = map((old_size ? 2 * old_size : 512) * sizeof(*made));
    if (!made)
        return old_size;
    objects->buckets = made;
    objects->size = old_size ? 2 * old_size : 512;
    for (uint32_t i = 0; i < old_size; i++)
        for (struct object *object = old[i], *next; object; object = next) {
            struct object **bucket = bucket_of(objects, object->handle);
            next = object->same_bucket;
            object->same_bucket = *bucket;
            *bucket = object;
        }
    if (old)
        munmap(old, old_size * sizeof(*old));
    return true;
}

static void drop_one(struct objects *objects, struct object *object) {
    atomic_store_explicit(&object->generation, 0, memory_order_release);
    struct object **at = bucket_of(objects, object->handle);
    while (*at != object)
        at = &(*at)->same_bucket;
    *at = object->same_bucket;
    if (object->parent) {
        at = &object->parent->children;
        while (*at != object)
            at = &(*at)->sibling;
        *at = object->sibling;
    }
    if (object->name)
        release_piece(objects, object->name, strlen(object->name) + 1);
    for (struct entry *entry = object->properties, *next; entry; entry = next) {
        next = entry->next;
        if (entry->property.what == PROPERTY_NODES)
            munmap((void *)entry->property.value, entry->property.size);
        release_piece(objects, entry, sizeof(*entry) + (entry->property.name ? strlen(entry->name) + 1 : 0));
    }
    object->same_bucket = objects->spare;
    objects->spare = object;
    objects->count--;
}

// Drop an object and everything it owns, depth first.
static void drop(struct objects *objects, struct object *object) {
    for (struct object *at = object, *parent; at; at = parent) {
        while (at->children)
            at = at->children;
        parent = at == object ? NULL : at->parent;
        drop_one(objects, at);
    }
}

static void drop_of_context(struct objects *objects, uint64_t context, uint64_t generation) {
    for (uint32_t i = 0; i < objects->size; i++)
        for (struct object *object = objects->buckets[i], *next; object; object = next) {
            next = object->same_bucket;
            if (object->context == context && object->generation <= generation) {
                drop(objects, object);
                next = objects->buckets[i]; // others in the bucket may have been dropped with it
            }
        }
}

static struct object *root_of(struct object *object) {
    while (object->parent)
        object = object->parent;
    return object;
}

// Return whether the object with this handle is the one described. A kernel may be looked up repeatedly, and
// its functions can be found in more than one way.
static bool is_same(struct object *object, const struct object_facts *facts, struct object *parent) {
    return object && !facts->made && object->kind == facts->kind &&
           (!facts->parent || (parent && root_of(object) == root_of(parent))) &&
           (!facts->id || !object->id || facts->id == object->id) &&
           (!facts->name || !object->name || !strcmp(facts->name, object->name));
}

static struct object *make(struct objects *objects, const struct object_facts *facts, struct object *parent) {
    if (objects->count >= objects->size && !grow(objects))
        return NULL;
    struct object *object = objects->spare;
    if (object)
        objects->spare = object->same_bucket;
    else if (!(object = carve(objects, sizeof(*object))))
        return NULL;
    struct object **bucket = bucket_of(objects, facts->handle);
    object->same_bucket = *bucket;
    object->parent = parent;
    object->sibling = parent ? parent->children : NULL;
    object->children = NULL;
    object->handle = facts->handle;
    object->context = facts->context || !parent ? facts->context : parent->context;
    object->image = facts->image;
    object->image_size = facts->image_size;
    object->name = NULL;
    object->properties = NULL;
    object->id = facts->id;
    object->kind = facts->kind;
    object->holders = 0;
    object->asked = object->closed = false;
    *bucket = object;
    if (parent)
        parent->children = object;
    objects->count++;
    atomic_store_explicit(&object->generation, atomic_fetch_add(&objects->generations, 1) + 1,
                          memory_order_release);
    return object;
}

static struct reference refer(const struct object *object) {
    return object ? (struct reference){&object->generation, object->generation} : (struct reference){NULL, 0};
}

struct reference hook_object_add(const struct object_facts *facts) {
    LOCKED;
    if (!objects || !facts->handle)
        return refer(NULL);
    struct object *object = find(objects, facts->handle);
    struct object *parent = find(objects, facts->parent);
    if (object && object == parent) // a driver may use one handle for a library and its module
        return refer(object);
    if (!is_same(object, facts, parent)) {
        if (object && object->kind == OBJECT_CONTEXT)
            drop_of_context(objects, object->handle, UINT64_MAX);
        if (object) {
            drop(objects, object);
            parent = find(objects, facts->parent);
        }
        object = make(objects, facts, parent);
    }
    if (object)
        object->asked |= facts->asked;
    if (object && !object->name) {
        bool own = facts->name || facts->kind != OBJECT_FUNCTION || !parent;
        object->name = copy_name(objects, own ? facts->name : parent->name);
    }
    return refer(object);
}

struct reference hook_object_find(uint64_t handle) {
    LOCKED;
    return refer(find(objects, handle));
}

bool hook_object_look(uint64_t handle, struct object_view *view) {
    LOCKED;
    const struct object *object = find(objects, handle);
    *view = (struct object_view){.reference = refer(object)};
    if (!object)
        return false;
    view->kind = object->kind;
    view->handle = handle;
    view->parent = object->parent ? object->parent->handle : 0;
    view->context = object->context;
    view->id = object->id;
    view->asked = object->asked;
    for (; object; object = object->parent) {
        if (!view->image) {
            view->image = object->image;
            view->image_size = object->image_size;
        }
        if (object->kind == OBJECT_MODULE || object->kind == OBJECT_LIBRARY)
            view->module = view->module ? view->module : object->id;
    }
    return true;
}

uint64_t hook_function_with_id(uint32_t id) {
    LOCKED;
    for (uint32_t i = 0; objects && id && i < objects->size; i++)
        for (const struct object *object = objects->buckets[i]; object; object = object->same_bucket)
            if (object->id == id && (object->kind == OBJECT_FUNCTION || object->kind == OBJECT_KERNEL))
                return object->handle;
    return 0;
}

uint32_t hook_object_set_id(struct reference reference, uint32_t id) {
    LOCKED;
    struct object *object = (struct object *)(uintptr_t)reference.current;
    if (!objects || !hook_is_alive(reference))
        return id;
    object->id = object->id ? object->id : id;
    return object->id;
}

struct reference hook_object_hold(struct reference reference) {
    LOCKED;
    struct object *object = (struct object *)(uintptr_t)reference.current;
    if (!objects || !hook_is_alive(reference))
        return refer(NULL);
    object = root_of(object);
    if (object->closed)
        return refer(NULL);
    object->holders++;
    return refer(object);
}

void hook_object_let_go(struct reference held) {
    LOCKED;
    struct object *object = (struct object *)(uintptr_t)held.current;
    if (objects && hook_is_alive(held))
        object->holders--;
}

bool hook_object_close(uint64_t handle) {
    LOCKED;
    struct object *object = find(objects, handle);
    if (object && root_of(object)->holders)
        return false;
    if (object)
        root_of(object)->closed = true;
    return true;
}

void hook_object_open(uint64_t handle) {
    LOCKED;
    struct object *object = find(objects, handle);
    if (object)
        root_of(object)->closed = false;
}

uint64_t hook_object_generation(void) {
    return hook_watched ? atomic_load(&hook_watched->objects.generations) : 0;
}

void hook_object_gone(uint64_t handle, uint64_t generation) {
    LOCKED;
    struct object *object = find(objects, handle);
    if (object && object->generation <= generation)
        drop(objects, object);
}

void hook_object_context_gone(uint64_t context, uint64_t generation) {
    LOCKED;
    struct object *object = find(objects, context);
    if (!objects || !context)
        return;
    drop_of_context(objects, context, generation);
    if (object && object->generation <= generation)
        drop(objects, object);
}

// Properties

static bool is_same_property(const struct property *one, const struct property *two) {
    return one->what == two->what && one->number == two->number && one->device == two->device &&
           !one->name == !two->name && (!one->name || !strcmp(one->name, two->name));
}

bool hook_object_set(uint64_t handle, const struct property *property) {
    LOCKED;
    struct object *object = find(objects, handle);
    struct entry *entry = object ? object->properties : NULL;
    while (entry && !is_same_property(&entry->property, property))
        entry = entry->next;
    if (entry) {
        entry->property.value = property->value;
        entry->property.size = property->size;
        return true;
    }
    size_t name = property->name ? strlen(property->name) + 1 : 0;
    if (!object || !(entry = allocate(objects, sizeof(*entry) + name)))
        return false;
    entry->property = *property;
    if (property->name)
        entry->property.name = memcpy(entry->name, property->name, name);
    entry->next = object->properties;
    object->properties = entry;
    return true;
}

void hook_object_each(uint64_t handle, void (*see)(const struct property *property, void *with), void *with) {
    LOCKED;
    const struct object *object = find(objects, handle);
    for (const struct entry *entry = object ? object->properties : NULL; entry; entry = entry->next)
        see(&entry->property, with);
}
