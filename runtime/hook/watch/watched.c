#include "watched.h"
#include "hook/write/trace.h"

struct watched *hook_watched;

bool hook_watched_setup(void) {
    hook_watched = hook_process_memory(sizeof(*hook_watched));
    return hook_watched;
}
