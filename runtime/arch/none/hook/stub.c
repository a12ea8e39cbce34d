// There are no stubs, so the program gets the driver's own functions: every call reaches the driver, none is
// recorded, and the trace says so (entry/setup.c). dlsym and dlopen aren't replaced.

#include <unistd.h>

#include "hook/entry/stub.h"

// Stacks are not walked.
void hook_unwind_setup(void) {}

size_t hook_unwind(uint64_t *addresses, size_t most) {
    (void)addresses, (void)most;
    return 0;
}

// A vfork child runs in its parent's memory, and plain C can't detect that. So vfork is fork here, as POSIX
// permits.
EXPORT pid_t vfork(void);
EXPORT pid_t vfork(void) { return fork(); }
