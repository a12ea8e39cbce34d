// For the rest of its scope a thread is neither cancelled (functions of the driver are not cancellation
// points, and what is opened and written here must not make them such) nor sent into a signal handler.

#ifndef GPT_CALM_H
#define GPT_CALM_H

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

struct calm {
    bool nested; // it was calm before
    int cancel;
    sigset_t signals;
};

struct calm hook_calm(void);
void hook_end_calm(const struct calm *before);

// Waits for a file (NULL: for nothing) as the program itself would: signals that come are handled, and a
// handler may leave for good. So nothing may be held, and all that is kept must be found again elsewhere.
void hook_wait_openly(struct pollfd *file, uint64_t ms);

#define HOOK_CALM __attribute__((cleanup(hook_end_calm), unused)) const struct calm calm_ = hook_calm()

#endif
