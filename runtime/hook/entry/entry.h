// How a call of the program gets here: set-up, interception, the two ends of a call, control, processes.

#ifndef GPT_ENTRY_H
#define GPT_ENTRY_H

#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>

#include "hook/probe/probe.h"
#include "hook/watch/watch.h"

// -- control.c -------------------------------------------------------------

// What gpt-hook ctl asks of this process.

extern handler hook_on_init;

// What is done at calls while they are recorded, and while they are not.

void hook_use_flags(struct slot *slot); // those for now
void hook_find_all_flags(void);         // of all slots, after what they follow from has changed
extern handler hook_on_capture;
unsigned hook_changes(void); // how often that was called: who finds flags looks whether it was meanwhile
void hook_expect_probes(const struct order *order, bool recording); // once both hold
void hook_switch(bool on);                                          // one thread at a time

// -- decode.c --------------------------------------------------------------

// What is known of each driver function.

struct known {
    const char *name; // without version and stream suffix
    const char *type, *op;
    uint8_t layout, special, values[4];
    // They run whether or not the call is recorded, or anything is.
    handler *before;    // may change the arguments and the function, or answer in place of the driver
    handler *on_return; // after a call that returned CUDA_SUCCESS
    // The same, of what is probed: they run if something is to be, or may be named later.
    handler *probe_before, *probe_after; // after any call
    bool first;                          // the latter is: before on_return, and what else looks at the call
    bool late;                           // both run from when something has been probed
    bool allocates;                      // and is made again if it found no memory while we had some
    bool v2; // the function of this name without suffix is an older one with other arguments
};
void hook_describe(struct slot *slot, const char *symbol); // fills in all but the real function
void hook_describe_named(struct slot *slot);               // if nobody did
unsigned hook_find_flags(struct slot *slot);               // for what is probed now; gives hook_changes()
void hook_decode_setup(void);                              // reads GPT_HOOK_CALLS
void hook_announce(struct slot *slot);                     // writes its `api` record
uint32_t hook_captured_id(struct slot *slot);              // the id of the one for calls that were captured
const char *hook_type(const struct slot *slot);
struct slot *hook_named_slot(const char *symbol); // of a function in driver.h, or NULL
bool hook_is_old(const char *name);               // whether the function without suffix is an older one

// -- intercept.c -----------------------------------------------------------

// How a program comes to hold stubs.

void *hook_wrap(void *real, const char *symbol); // the stub that stands for a function of the driver
void hook_unresolve(struct span driver);
extern handler hook_on_get_proc_address;

// Libraries that find the driver before us.

void hook_see_namespaces(void); // says that a driver is in one of dlmopen

// -- libc.c ----------------------------------------------------------------

// libc's own functions for those that this library defines. All are found when it is set up, or
// before, if a sanitizer or another library calls one earlier: dlsym takes a lock, which a program may hold
// while it waits for the thread that calls.

extern void *(*hook_real_dlsym)(void *, const char *), *(*hook_real_dlopen)(const char *, int);
extern int (*hook_real_dlclose)(void *), (*hook_real_ioctl)(int, unsigned long, ...);
extern void (*(*hook_real_signal)(int, void (*)(int)))(int);
extern void (*hook_real_quick_exit)(int);

// Functions that start a program (processes.c); NULL where libc has none.
extern int (*hook_real_execve)(const char *, char *const *, char *const *);
extern int (*hook_real_execv)(const char *, char *const *), (*hook_real_execvp)(const char *, char *const *);
extern int (*hook_real_execvpe)(const char *, char *const *, char *const *);
extern int (*hook_real_fexecve)(int, char *const *, char *const *);
extern int (*hook_real_execveat)(int, const char *, char *const *, char *const *, int);
extern int (*hook_real_posix_spawn)(pid_t *, const char *, const posix_spawn_file_actions_t *,
                                    const posix_spawnattr_t *, char *const *, char *const *);
extern int (*hook_real_posix_spawnp)(pid_t *, const char *, const posix_spawn_file_actions_t *,
                                     const posix_spawnattr_t *, char *const *, char *const *);
extern int (*hook_real_system)(const char *);
extern FILE *(*hook_real_popen)(const char *, const char *);

void hook_find_real(void);

// -- setup.c ---------------------------------------------------------------

// How the library is set up, and what has to come then.

bool hook_setup(void); // gives whether that was this call
void hook_exits_setup(void);

#endif
