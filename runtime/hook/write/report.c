// What the root process, which gpt-hook became, says at its end: one line about the trace and those of the
// processes that it started.
//
// The line goes to standard error only if that is still the file that gpt-hook had there, so none gets into a
// file of the program's own; and nothing is said under a seccomp filter, which may kill a process that opens
// a file.

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/selection.h"
#include "say.h"
#include "write.h"

static struct {
    int pid;                          // of the root process, 0 if nothing is to be said
    bool streams;                     // its trace is a stream: only losses are said
    unsigned long long device, inode; // of its standard error
    char error[PATH_MAX];             // the path of that, if it is a terminal or file; or empty
    char path[PATH_MAX];
} root;

// The line

struct quantity {
    double value;
    const char *unit;
};

static struct quantity quantity_of(uint64_t bytes) {
    static const char *const units[] = {"KiB", "MiB", "GiB"};
    double size = (double)bytes / 1024;
    unsigned unit = 0;
    for (; size >= 1000 && unit < 2; unit++)
        size /= 1024;
    return (struct quantity){size, units[unit]};
}

// Programs that were started without the hook.
static struct {
    enum loss kind;
    bool of_root; // which becomes such a program now: the report comes before that
    char text[1024];
} loss;

// Returns false if none was started for a reason from `least` on. `trace`: a file that wasn't written, or
// NULL.
static bool say_loss(const char *trace, enum loss least) {
    static char line[PATH_MAX + sizeof(loss.text) + 64];
    if (!loss.kind || (loss.kind < least && !loss.of_root))
        return false;
    snprintf(line, sizeof(line), "gpt-hook: warning: %s%s%s", trace ? trace : "",
             trace ? ": not written: " : "", loss.text);
    gpt_write_line(line);
    return true;
}

// What was lost of logs must be seen without asking for it.
static void say_logs(const struct trace_totals *found) {
    char line[320];
    double share = 100.0 * (double)found->entries / ((double)found->entries + (double)found->dropped);
    snprintf(
        line, sizeof(line),
        "gpt-hook: warning: %.1f %% of the records in logs were kept, %lu of %lu: %lu of %lu log%s %s too "
        "small; a later launch of the same kernel and grid gets one that fits, within --max-memory",
        share > 99.9 ? 99.9 : share, found->entries, found->entries + found->dropped, found->full,
        found->logs, found->logs == 1 ? "" : "s", found->full == 1 ? "was" : "were");
    gpt_write_line(line);
}

// This process has used the driver, and changed its root directory or its user since, or the file is gone.
static bool is_out_of_reach(const struct trace_totals *found) {
    return found->fault && (found->fault != ENOENT || (hook_live && *hook_live->path));
}

static void say_totals(const struct trace_totals *found) {
    static char line[PATH_MAX + 256];
    struct quantity size = quantity_of(found->bytes), most = quantity_of(found->most),
                    needed = quantity_of(found->needed);
    if (found->processes)
        snprintf(line, sizeof(line), "gpt-hook: %s: %lu call%s, %lu launch%s, %lu process%s, %.*f %s",
                 root.path, found->calls, found->calls == 1 ? "" : "s", found->launches,
                 found->launches == 1 ? "" : "es", found->processes, found->processes == 1 ? "" : "es",
                 size.value < 10, size.value, size.unit);
    else if (is_out_of_reach(found))
        snprintf(line, sizeof(line),
                 "gpt-hook: warning: %s: cannot be read at the end (%s): what is in it is not counted",
                 root.path, hook_describe_error(found->fault));
    else if (say_loss(root.path, LOSS_PROGRAM))
        return;
    else
        snprintf(line, sizeof(line),
                 "gpt-hook: warning: %s: not written: no process that gpt-hook watched used the CUDA driver",
                 root.path);
    gpt_write_line(line);
    if (found->processes)
        say_loss(NULL, found->calls || found->launches ? LOSS_RIGHTS : LOSS_PROGRAM);
    if (found->needing) {
        snprintf(line, sizeof(line),
                 "gpt-hook: buffers of %lu launch%s would need %.*f %s at most, %.*f %s together: "
                 "gpt-analyze memusage says which",
                 found->needing, found->needing == 1 ? "" : "es", most.value < 10, most.value, most.unit,
                 needed.value < 10, needed.value, needed.unit);
        gpt_write_line(line);
    }
    if (found->probed || found->unprobed || (found->processes && gpt_is_selecting() && !found->needing))
        hook_say_coverage(found->probed, found->unprobed, found->launches);
    if (found->dropped)
        say_logs(found);
    if (found->processes && gpt_is_selecting())
        gpt_say_selection(found->launches, found->probed + found->needing, found->unprobed,
                          hook_count_reason("it was left out"));
}

static bool is_error(const struct stat *status) {
    return status->st_dev == root.device && status->st_ino == root.inode;
}

// Whether lines go to where gpt-hook's own would. `opened`: standard error was closed, and is there again.
static bool has_error(bool *opened) {
    struct stat status;
    *opened = false;
    if (!fstat(STDERR_FILENO, &status))
        return is_error(&status);
    if (errno != EBADF || !*root.error || stat(root.error, &status) || !is_error(&status))
        return false;
    int again = open(root.error, O_WRONLY | O_APPEND | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    int file = again == STDERR_FILENO ? again : fcntl(again, F_DUPFD_CLOEXEC, STDERR_FILENO);
    if (again >= 0 && again != file)
        close(again);
    if (file == STDERR_FILENO && !fstat(file, &status) && is_error(&status))
        return *opened = true;
    if (file >= 0)
        close(file);
    return false;
}

void hook_report(void) {
    static atomic_flag said = ATOMIC_FLAG_INIT;
    int before = errno;
    bool opened;
    if (root.pid != getpid() || hook_in_vfork || prctl(PR_GET_SECCOMP) || atomic_flag_test_and_set(&said))
        return;
    HOOK_CALM;
    loss.kind = hook_take_loss(loss.text, sizeof(loss.text)); // their files go, whatever is said
    if (!has_error(&opened)) {
        errno = before;
        return;
    }
    if (root.streams) {
        say_loss(NULL, LOSS_RIGHTS);
    } else {
        say_totals(hook_reread(root.path));
    }
    if (opened)
        close(STDERR_FILENO);
    errno = before;
}

void hook_report_loss(void) {
    if (root.pid == getpid() && !hook_in_vfork) {
        loss.of_root = true;
        hook_report();
    }
}

void hook_report_setup(void) {
    const char *wanted = getenv("GPT_HOOK_REPORT");
    const char *path = getenv("GPT_HOOK_ROOT");
    int size = 0;
    root.streams = hook_folder != NULL;
    if (!wanted || !path || !hook_template || !*hook_template ||
        sscanf(wanted, "%d %llu %llu%n", &root.pid, &root.device, &root.inode, &size) != 3)
        return;
    snprintf(root.error, sizeof(root.error), "%s", wanted + size + (wanted[size] == ' '));
    hook_lost_setup(root.pid, root.device, root.inode);
    if (root.pid != getpid())
        return;
    snprintf(root.path, sizeof(root.path), "%s", path);
    gpt_selection_setup();
}
