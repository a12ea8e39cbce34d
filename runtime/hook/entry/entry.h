// How the program's calls get here: setup, interception, entering and leaving a call, control, child
// processes.

#ifndef GPT_ENTRY_H
#define GPT_ENTRY_H

#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>

#include "hook/probe/probe.h"
#include "hook/watch/watch.h"

// -- control.c -------------------------------------------------------------

// Requests from gpt-hook ctl to this process.

extern handler hook_serve_control; // after cuInit: start the thread
void hook_switch(bool on);         // recording; one thread at a time

// -- decode.c --------------------------------------------------------------

// What's known about each driver function.

struct driver_function {
    const char *name; // without version and stream suffix
    const char *type, *op;
    uint8_t layout, special, values[4];
    // These run whether or not the call, or anything, is recorded.
    handler *before;    // may change the arguments and the function, or answer in place of the driver
    handler *on_return; // after a call that returned CUDA_SUCCESS
    // For probing: these run if there may be probes, now or later.
    handler *probe_before, *probe_after; // after any call
    bool first;     // run probe_after before on_return, and before everything else that looks at the call
    bool late;      // both run only once something has been probed
    bool signals;   // both run with signal handlers enabled, and block them only where necessary
    bool allocates; // if it runs out of memory while we hold some, it's called again
    bool v2;        // without the suffix, the name is an older function with other arguments
};
void hook_describe(struct slot *slot, const char *symbol); // fill in all but the real function
void hook_describe_named(struct slot *slot);               // unless somebody already did
void hook_decode_setup(handler *at_init);     // reads GPT_HOOK_CALLS; the handler runs after cuInit
void hook_announce(struct slot *slot);        // writes its `api` record
uint32_t hook_captured_id(struct slot *slot); // id of the record for captured calls
const char *hook_type(const struct slot *slot);
struct slot *hook_named_slot(const char *symbol); // the slot of a function in driver.h, or NULL
extern handler hook_on_init, hook_on_capture;

void hook_find_all_flags(void); // for all slots, after something they depend on has changed
void hook_expect_probes(const struct order *order,
                        bool recording); // once there is an order with probes and recording is on

void *hook_wrap(void *real, const char *symbol); // returns the stub that replaces a driver function
extern handler hook_on_get_proc_address;

// -- intercept.c -----------------------------------------------------------

// How the program gets stubs instead of driver functions: what the stubs call (stub.h).

// -- libc.c ----------------------------------------------------------------

// libc's versions of the functions that this library defines. They're looked up at setup, or earlier if a
// sanitizer or another library calls one first. Looking them up later could deadlock: dlsym takes a lock,
// which the program may hold while it waits for the calling thread.

extern void *(*hook_real_dlsym)(void *, const char *), *(*hook_real_dlopen)(const char *, int);
extern int (*hook_real_dlclose)(void *), (*hook_real_ioctl)(int, unsigned long, ...);
extern void (*(*hook_real_signal)(int, void (*)(int)))(int);
extern void (*hook_real_quick_exit)(int);

// Functions that start a program (processes.c). NULL if libc lacks them.
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

// Libraries that find the driver without us.

void hook_see_namespaces(void);                            // reports a driver loaded by dlmopen
void hook_tell_unseen(const char *path, const char *fact); // calls that aren't recorded; warns once

// -- setup.c ---------------------------------------------------------------

// Setup of the library, in order.

bool hook_setup(void); // returns whether this call did it
void hook_exits_setup(void);

// -- slots.c ---------------------------------------------------------------

// The slots of driver functions (stub.h has where they are).

void hook_use_flags(struct slot *slot); // sets the flags that apply now
void hook_use_all_flags(void);
void hook_stop_recording(void);
void hook_unresolve(struct span driver);

#endif
