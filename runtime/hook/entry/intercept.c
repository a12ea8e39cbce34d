// How a program gets stubs instead of driver functions. A program can get the driver's functions in three
// ways:
//
//   - It's linked to libcuda.so.1. The linker finds the stubs' symbols before the driver's, and the real
//     function is looked up at the first call.
//   - dlsym: this library defines it, and returns the stub instead of a function of the driver.
//   - cuGetProcAddress, itself found in one of these ways: its stub has a handler that replaces the results.
//
// One name can stand for several functions (versions, stream variants), so each pair of a name and a real
// function has a separate stub. cuGetExportTable, which leads to private tables, is left alone.
//
// On a machine without a driver, a program must not find the stubs through dlsym and conclude that there is
// one.

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "abi/cuda.h"
#include "entry.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "say.h"
#include "stub.h"

struct answer {
    void *value;
    uint64_t given; // otherwise the stub of dlsym jumps to the real one
};

struct answer hook_dlsym(void *handle, const char *name, void *caller);

// Find the function that a directly linked stub calls: the next one among the libraries loaded at the start,
// otherwise the driver's, otherwise a function in a library loaded later, which finds the driver in its own
// way.
static void *find_real(const char *symbol) {
    void *real = hook_next_function(symbol);
    if (!real)
        real = hook_driver_function(symbol);
    for (struct linked linked = {0}; !real && hook_next_linked(&linked);)
        if (!hook_linked_at_start(&linked))
            real = hook_function_in(&linked, symbol);
    return real;
}

uint64_t hook_resolve_slot(struct slot *slot) {
    int error = errno;
    bool early = hook_setup();
    hook_describe_named(slot);
    void *real = find_real(slot->symbol), *expected = (void *)hook_resolve;
    __atomic_compare_exchange_n(&slot->real, &expected, real ? real : (void *)hook_missing, false,
                                __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    errno = error;
    return early;
}

// dlsym

// Find what RTLD_DEFAULT means for the caller, leaving out the stubs.
static void *find_default(const char *name, const void *caller) {
    void *found = hook_real_dlsym(RTLD_DEFAULT, name); // in case the program defines it itself
    if (found && hook_is_stub(found))
        found = hook_next_function(name);
    struct linked linked;
    if (!found && hook_linked_of(caller, &linked) && *linked.name) {
        void *handle = hook_real_dlopen(linked.name, RTLD_LAZY | RTLD_NOLOAD);
        if (handle) {
            found = hook_real_dlsym(handle, name);
            hook_real_dlclose(handle);
        }
    }
    return found ? found
                 : hook_real_dlsym(RTLD_NEXT, name); // symbols made global later; sets the dlerror message
}

// Return whether a library replaces the driver: it defines this function, or dlsym.
static bool is_interposer(const struct linked *linked, const char *name) {
    return hook_function_in(linked, name) || hook_function_in(linked, "dlsym");
}

struct answer hook_dlsym(void *handle, const char *name, void *caller) {
    struct answer answer = {NULL, 0};
    hook_setup();
    if (!hook_live)
        return answer;
    struct linked linked;
    bool in_library = hook_linked_of(caller, &linked) && linked.index > 1;
    // A library that asks for the next function sits between the program and the driver, so we have already
    // seen the call. If the program itself asks, the next functions are our stubs, so it gets the functions
    // after those.
    if (handle == RTLD_NEXT && in_library)
        return answer;
    const struct slot *named = hook_named_slot(name);
    if ((handle == RTLD_NEXT || handle == RTLD_DEFAULT) && !named)
        return answer;
    answer.given = 1;
    answer.value = handle == RTLD_DEFAULT ? find_default(name, caller) : hook_real_dlsym(handle, name);
    if (hook_is_stub(answer.value)) { // a stub in the program's own scope
        void *next = hook_next_function(name);
        answer.value = next ? next : hook_real_dlsym(RTLD_NEXT, name);
    }
    // The same goes for a library that asks the driver itself and passes the driver's functions on to the
    // program.
    if (!answer.value || (in_library && hook_comes_after_us(&linked) && is_interposer(&linked, name)))
        return answer;
    int error = errno;
    if (hook_in_driver(answer.value) || (named && hook_linked_of(answer.value, &linked) && linked.index > 1 &&
                                         is_interposer(&linked, name))) {
        answer.value = hook_wrap(answer.value, name);
        hook_this_thread(); // begins the trace
    }
    errno = error;
    return answer;
}

// -- Scopes ----------------------------------------------------------------
//
// Libraries that don't look for symbols in our library first.
//
// RTLD_DEEPBIND: a library finds the symbols of its dependencies before the program's, so it binds the
// driver's functions and libc's dlsym directly. We replace its pointers to these functions when something is
// looked up in it, which goes through our dlsym. So we only miss calls that its constructors make.
//
// dlmopen: a library has its own namespace, with its own libc and driver, and nothing of ours. Stubs there
// would mix handles of two drivers, so we only report that its calls aren't recorded.

bool hook_deep; // a library was opened with RTLD_DEEPBIND: set by dlopen
void hook_see_deep(void);

// Return the replacement for a function that a library is bound to, or NULL.
static void *stand_in(const char *name, void *bound) {
    struct linked linked;
    if (!strcmp(name, "dlsym") || !strcmp(name, "dlclose")) {
        bool next = bound && hook_linked_of(bound, &linked) && hook_comes_after_us(&linked);
        return !next ? NULL : name[2] == 's' ? (void *)hook_dlsym_here : (void *)dlclose;
    }
    return hook_in_driver(bound) ? hook_wrap(bound, name) : NULL;
}

struct library_seen {
    const struct linked *linked;
    void *handle;
    struct span protected; // the part that the linker made read-only
    char path[4096];
};

static void exchange(void *state, void **word, const char *name) {
    struct library_seen *library = state;
    if (strncmp(name, "cu", 2) && strncmp(name, "dl", 2))
        return;
    void *bound = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    if ((uintptr_t)bound - library->linked->address < library->linked->end - library->linked->address)
        bound = hook_real_dlsym(library->handle, name); // not bound before its first call
    void *ours = stand_in(name, bound);
    if (!ours || ours == bound)
        return;
    uintptr_t page = (uintptr_t)word & -(uintptr_t)sysconf(_SC_PAGESIZE);
    // Leave it writable: another thread may be replacing a pointer next to it.
    bool fixed =
        (uintptr_t)word - library->protected.start < library->protected.end - library->protected.start;
    if (fixed && mprotect((void *)page, sizeof(void *), PROT_READ | PROT_WRITE))
        hook_tell_unseen(library->path, "opened with RTLD_DEEPBIND, so its driver calls are not recorded");
    else
        __atomic_store_n(word, ours, __ATOMIC_RELEASE);
}

static void see_library(const struct linked *linked) {
    struct library_seen library = {.linked = linked};
    if (!hook_peek_text(linked->name, library.path, sizeof(library.path)) || !*library.path)
        return;
    library.handle = hook_real_dlopen(library.path, RTLD_LAZY | RTLD_NOLOAD); // so it stays
    struct linked whole;
    if (library.handle == linked->map && hook_linked_of((const void *)linked->dynamic, &whole)) {
        library.linked = &whole;
        library.protected = hook_protected_in(&whole);
        hook_each_reference(&whole, exchange, &library);
    }
    if (library.handle)
        hook_real_dlclose(library.handle);
}

// Called before dlsym once a library has been opened with RTLD_DEEPBIND.
void hook_see_deep(void) {
    static _Atomic uint64_t seen;
    hook_setup();
    if (!hook_live)
        return;
    int error = errno;
    uint64_t number = 0;
    for (struct linked linked = {0}; hook_next_linked(&linked) && !linked.name_space;)
        number = (number ^ linked.dynamic) * 1099511628211u;
    if (atomic_exchange(&seen, number) != number)
        for (struct linked linked = {0}; hook_next_linked(&linked) && !linked.name_space;)
            if (!hook_linked_at_start(&linked) && !hook_is_driver(&linked))
                see_library(&linked);
    errno = error;
}
