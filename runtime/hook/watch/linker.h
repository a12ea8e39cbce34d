// What the dynamic linker loaded, and its symbols.

#ifndef GPT_LINKER_H
#define GPT_LINKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAX_LINKED 8192 // libraries that are looked at: a list that changes may have no end
struct linked {
    uintptr_t address, dynamic; // what is added to addresses in the file; the dynamic section
    const char *name;           // a path, "" for the program
    const void *map, *next, *other;
    unsigned index, name_space; // from 1 on, MAX_LINKED: not known; of dlmopen
    uintptr_t end;              // set by hook_linked_of, unless it is the program
    bool in_use;                // by the program: it is not unmapped meanwhile
};
void hook_linker_setup(void);
bool hook_is_glibc(void);
bool hook_next_linked(struct linked *linked); // from {0} on
bool hook_linked_at_start(const struct linked *linked);
bool hook_comes_after_us(const struct linked *linked);
bool hook_is_driver(const struct linked *linked);                      // by its soname
bool hook_linked_of(const void *address, struct linked *linked);       // what an address is in
void *hook_function_in(const struct linked *linked, const char *name); // or NULL
void *hook_next_function(const char *name);                            // what RTLD_NEXT is to us, or NULL
void hook_each_function(const struct linked *linked,
                        void (*see)(void *state, uintptr_t address, const char *name), void *state);
struct span {
    uintptr_t start, end;
};
void hook_each_reference(const struct linked *linked, void (*see)(void *state, void **word, const char *name),
                         void *state);
struct span hook_protected_in(const struct linked *linked); // the caller keeps it open
bool hook_has_namespaces(void);                             // of dlmopen, or an auditing library's

#endif
