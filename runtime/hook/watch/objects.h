// What the driver gave out and has not taken back: contexts, modules, libraries, kernels, functions, graphs.
//
// The driver names each by a handle, an address that it uses again. An object is a handle from when it was
// given out until it is gone: unloaded, destroyed, its context destroyed or reset, or given out again for
// something else, of which nothing was seen. Each has a generation that no other object of the process has,
// so whoever keeps a reference sees without a lock whether it still means what it meant.
//
// What is known goes with the object. All that is kept is in use, or free for the next one: as much as was
// alive at once.

#ifndef GPT_OBJECTS_H
#define GPT_OBJECTS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hook/write/write.h"

enum object_kind {
    OBJECT_NONE,
    OBJECT_CONTEXT,
    OBJECT_MODULE,
    OBJECT_LIBRARY,
    OBJECT_KERNEL,   // of a library; has functions
    OBJECT_FUNCTION, // of a module, or of a kernel in a context
    OBJECT_GRAPH,
    OBJECT_GRAPH_EXEC,
};

// What is known of an object that was met.
struct object_facts {
    enum object_kind kind;
    uint64_t handle;
    uint64_t parent;  // handle of what it goes with: its module, library, kernel; 0: none
    uint64_t context; // 0: it is of no context, or of that of its parent
    const char *name; // or NULL
    const void *image;
    uint64_t image_size; // bytes; 0: not known
    uint32_t id;         // of its record in the trace; 0: it has none
    bool made;           // by this very call: what had the handle before is gone
    bool asked;          // the driver was, for the name
};

// What is known of an object.
struct object_view {
    struct reference reference;
    enum object_kind kind;
    uint64_t handle, parent, context;
    const void *image; // its own, or that of what it goes with; NULL: not known
    uint64_t image_size;
    uint32_t id;     // in the trace
    uint32_t module; // id in the trace of the module or library that it is of
    bool asked;      // the driver was, for its name
};

// What a program set, or the driver said, of a function or module.
struct property {
    enum {
        PROPERTY_ATTRIBUTE,     // of a function: number is the CUfunction_attribute
        PROPERTY_CACHE_CONFIG,  // CUfunc_cache
        PROPERTY_SHARED_CONFIG, // CUsharedconfig
        PROPERTY_PARAMETER,     // number is its place; value its offset, size its bytes
        PROPERTY_VARIABLE,      // of a module or library: value is its address, size its bytes
        PROPERTY_BODY,          // of a graph: number is a conditional node, value one of its graphs
        PROPERTY_NODES,         // of an executable graph: memory, mapped, that goes with it
    } what;
    uint64_t number;
    int device; // -1: not of one device. Of a body: which it is
    uint64_t value, size;
    const char *name; // of a variable, else NULL
};

struct reference hook_object_add(const struct object_facts *facts);
struct reference hook_object_find(uint64_t handle);
bool hook_object_look(uint64_t handle, struct object_view *view); // false: there is none

// Whoever uses a handle outside of a call that the program made with it holds it: the program's unloading
// waits that long. What is held is the module or library that it goes with; none if that is gone, or about to
// go.
struct reference hook_object_hold(struct reference reference);
void hook_object_let_go(struct reference held);
bool hook_object_close(uint64_t handle); // for its unloading: nobody can hold it any more. False: it is held
void hook_object_open(uint64_t handle);  // it was not unloaded

uint64_t hook_function_with_id(uint32_t id); // a handle of it, or 0. Looks at all objects

// Gives an object that has no id the id, and its id.
uint32_t hook_object_set_id(struct reference reference, uint32_t id);

// The last generation that was given. A call that ends an object asks for it before the real one, and says
// it after: what was made in between by another thread stays, though it may have the same handle.
uint64_t hook_object_generation(void);
void hook_object_gone(uint64_t handle, uint64_t generation);          // and all that goes with it
void hook_object_context_gone(uint64_t context, uint64_t generation); // and all that is of it

// Adds a property, or exchanges the one of the same kind, number, device and name.
// Returns whether the object has it now.
bool hook_object_set(uint64_t handle, const struct property *property);
// Shows each property of an object, while nothing else can become of it: `see` must not call the driver.
void hook_object_each(uint64_t handle, void (*see)(const struct property *property, void *with), void *with);

#define OBJECT_SIZES 10 // of pieces of memory: 32 bytes to 16 KiB

// The table, in memory that is zero again in a forked child.
struct objects {
    pthread_mutex_t lock;
    _Atomic uint64_t generations;
    struct object **buckets;
    uint32_t size, count;
    struct object *spare; // memory of objects is never used for anything else
    void *spares[OBJECT_SIZES];
    char *slab;
    size_t slab_left;
};

#endif
