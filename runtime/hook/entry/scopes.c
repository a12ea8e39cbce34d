// Libraries whose symbols are not looked for among ours first.
//
// RTLD_DEEPBIND: a library finds what it is linked to before what the program began with: the driver's
// functions, and libc's dlsym. The words that it calls them by are exchanged. Its opener looks for something
// in it next: dlsym comes by here, so only what its constructors call is missed.
//
// dlmopen: a library is in a namespace with a libc and a driver of its own, and nothing of ours. To put stubs
// there would mix handles of two drivers; it is said that calls are not seen.

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "entry.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "say.h"

bool hook_deep; // a library was opened with RTLD_DEEPBIND: set by dlopen
void hook_dlsym_here(void);
void hook_see_deep(void);

static void tell(const char *path, const char *fact) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (!hook_this_thread() || atomic_exchange(&hook_watched->unseen, true))
        return;
    HOOK_WRITE(diag, .level = GPT_STR("warning"), .where = hook_str(path), .text = hook_str(fact));
    char line[5120];
    snprintf(line, sizeof(line), "gpt-hook: warning: %s: %s", path, fact);
    if (!atomic_flag_test_and_set(&said))
        gpt_write_line(line);
}

// What stands in for a function that a library is bound to, or NULL.
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
    struct span protected; // what the linker made read-only
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
    // It stays writable: another thread may be exchanging its neighbour.
    bool fixed =
        (uintptr_t)word - library->protected.start < library->protected.end - library->protected.start;
    if (fixed && mprotect((void *)page, sizeof(void *), PROT_READ | PROT_WRITE))
        tell(library->path, "opened with RTLD_DEEPBIND: its calls of the driver are not recorded");
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

// Before dlsym, once a library was opened with RTLD_DEEPBIND.
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

void hook_see_namespaces(void) {
    char path[4096];
    if (!hook_live || hook_in_vfork || !hook_has_namespaces())
        return;
    int error = errno;
    for (struct linked linked = {0}; hook_next_linked(&linked);)
        if (linked.name_space && hook_is_driver(&linked) && hook_peek_text(linked.name, path, sizeof(path)))
            tell(path, "loaded by dlmopen: what libraries of its namespace call is not recorded");
    errno = error;
}
