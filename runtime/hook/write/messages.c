// Keeps the state of the trace, writes messages, and turns the hook off after a fault.

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "say.h"
#include "write.h"

struct live *hook_live;
const char *hook_folder;

const char *(*hook_real_strerrordesc)(int);

const char *hook_describe_error(int error) {
    const char *text = hook_real_strerrordesc ? hook_real_strerrordesc(error) : strerror(error);
    return text ? text : "unknown error";
}

void hook_say(const char *where, const char *fact, const char *consequence) {
    char line[4096 + 512];
    snprintf(line, sizeof(line), "gpt-hook: error: %s: %s; %s", where, fact, consequence);
    gpt_write_line(line);
}

void hook_turn_off(const char *where, const char *fact) {
    if (atomic_exchange(&hook_live->state, OFF) == OFF)
        return;
    atomic_store(&hook_live->pid, 0);
    if (fact)
        hook_say(where, fact, "nothing more is recorded");
}

void hook_fail(const char *where, int error) {
    const char *fact = error == EDQUOT && hook_limit_reached() ? hook_limit_fault()
                       : error == ESTALE                       ? "was deleted, or another file has its name"
                                                               : hook_describe_error(error);
    bool unread = hook_folder && (error == ENOENT || error == ESTALE); // the stream has lost its reader
    hook_turn_off(where, unread ? NULL : fact);
}
