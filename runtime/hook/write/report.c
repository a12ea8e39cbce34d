// The final report of the root process, which gpt-hook became: one line about its trace and the traces of the
// processes that it started.
//
// The line goes to standard error only if that is still the file gpt-hook had there, so it never ends up in a
// file of the program. If the process may have installed a seccomp filter, which may kill a process that
// opens a file, there's no report.

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/broker.h"
#include "common/own.h"
#include "common/private.h"
#include "common/selection.h"
#include "say.h"
#include "write.h"

static struct {
    int pid;                          // pid of the root process; 0: no report
    bool streams;                     // the trace is a stream: only report losses
    unsigned long long device, inode; // identify its standard error
    char error[PATH_MAX];             // its path, if it's a terminal or a file; otherwise empty
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
    for (; size >= 1023.5 && unit < 2; unit++)
        size /= 1024;
    return (struct quantity){size, units[unit]};
}

// Programs that were started without the hook.
static struct {
    enum loss kind;
    bool of_root; // the root process is becoming such a program, so the report comes now
    char text[1024];
} loss;

// Report the worst loss if it's at least as bad as `least`, and return whether there was any. `trace` is a
// file that wasn't written, or NULL.
static bool say_loss(const char *trace, enum loss least) {
    static char line[PATH_MAX + sizeof(loss.text) + 64];
    if (!loss.kind || (loss.kind < least && !loss.of_root))
        return false;
    snprintf(line, sizeof(line), "gpt-hook: warning: %s%s%s", trace ? trace : "",
             trace ? ": not written: " : "", loss.text);
    gpt_write_line(line);
    return true;
}

// Report log records that were lost, however few.
static void say_logs(const struct trace_totals *found) {
    char line[400], blocks[80] = "";
    double share = 100.0 * (double)found->entries / ((double)found->entries + (double)found->dropped);
    if (found->first + 1 < found->last && found->full == found->logs)
        snprintf(blocks, sizeof(blocks), ", from blocks %lu to %lu", found->first, found->last - 1);
    else if (found->last && found->full == found->logs)
        snprintf(blocks, sizeof(blocks), ", from block %lu", found->first);
    snprintf(
        line, sizeof(line),
        "gpt-hook: warning: %.1f %% of the records in logs were kept, %lu of %lu%s: %lu of %lu log%s %s too "
        "small; later launches of the same kernel get a larger one, within --max-memory",
        share > 99.9 ? 99.9 : share, found->entries, found->entries + found->dropped, blocks, found->full,
        found->logs, found->logs == 1 ? "" : "s", found->full == 1 ? "was" : "were");
    gpt_write_line(line);
}

// Return whether this process used the driver but can't find its trace again, because it has changed its root
// directory or its user or because somebody removed the file.
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
                 "gpt-hook: warning: %s: can't be read at the end (%s), so its calls aren't counted",
                 root.path, hook_describe_error(found->fault));
    else if (say_loss(root.path, LOSS_PROGRAM))
        return;
    else
        snprintf(line, sizeof(line),
                 "gpt-hook: warning: %s: not written: no process that gpt-hook watched used the CUDA driver",
                 root.path);
    gpt_write_line(line);
    if (found->processes || is_out_of_reach(found))
        say_loss(NULL, found->processes && !found->calls && !found->launches ? LOSS_PROGRAM : LOSS_RIGHTS);
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
    if (found->lost) {
        snprintf(line, sizeof(line), "gpt-hook: warning: %lu launch%s lost what %s saved: %s", found->lost,
                 found->lost == 1 ? "" : "es", found->lost == 1 ? "it" : "they", found->why_lost);
        gpt_write_line(line);
    }
    if (found->dropped)
        say_logs(found);
    uint64_t counted = hook_limit_stopped(), stopped = counted > found->stopped ? counted : found->stopped;
    if (stopped) {
        snprintf(line, sizeof(line),
                 "gpt-hook: warning: --max-disk was reached: %lu process%s went on without being recorded",
                 stopped, stopped == 1 ? "" : "es");
        gpt_write_line(line);
    }
    if (found->quick) {
        struct quantity quick = quantity_of(found->quick);
        snprintf(
            line, sizeof(line),
            "gpt-hook: warning: %.*f %s of buffers were packed without zstd, as writing them couldn't keep "
            "up with the probes",
            quick.value < 10, quick.value, quick.unit);
        gpt_write_line(line);
    }
    if (found->processes && gpt_is_selecting())
        gpt_say_selection(found->launches, found->probed + found->needing, found->unprobed,
                          hook_count_reason(WHY(left_out)));
}

static bool is_error(const struct stat *status) {
    return status->st_dev == root.device && status->st_ino == root.inode;
}

// Return whether standard error is still the file that gpt-hook had. Sets `opened` if it was closed and has
// been opened again here.
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
    static atomic_flag reported = ATOMIC_FLAG_INIT;
    int before = errno;
    bool opened;
    if (root.pid != getpid() || hook_in_vfork || hook_may_have_filter() ||
        atomic_flag_test_and_set(&reported))
        return;
    HOOK_HOLD_SIGNALS;
    loss.kind =
        hook_take_loss(loss.text, sizeof(loss.text)); // removes the notes, whether or not we report them
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
    hook_filters_setup();
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

// -- Programs without the hook ---------------------------------------------
//
// Programs that the command starts without the hook. Any process of the run may start one, but only the root
// process reports. So the starter leaves a note in a small file, whose name the launcher chose, with the
// run's random id. There's one file for each kind of loss, and the first note wins. The root process removes
// them at its end.

enum { NOTE_TEXT = 512 };

struct note {
    char by[64], program[NOTE_TEXT], how[64];
};

static const char *notes; // prefix of the files' names
static pid_t root_pid;
static uint64_t device, inode; // identify the standard error that the run began with

void hook_lost_setup(pid_t of_run, uint64_t error_device, uint64_t error_inode) {
    device = error_device, inode = error_inode;
    const char *path = hook_keep_variable("GPT_HOOK_NOTES");
    notes = path && *path == '/' ? path : NULL;
    root_pid = of_run;
}

// Return whether the root process belongs to another user by now, in which case it wouldn't trust a note that
// we leave.
static bool is_foreign(void) { return kill(root_pid, 0) && errno == EPERM; }

// Return whether the root process exists, so that somebody will remove the note.
bool hook_notes_losses(void) { return notes && (!kill(root_pid, 0) || errno == EPERM); }

static void name_note(enum loss loss, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%s.%d", notes, (int)loss);
}

static const char *advice_of(enum loss loss) {
    return loss == LOSS_DROPPED  ? "; put 'gpt-hook run' right before that program"
           : loss == LOSS_RIGHTS ? " ignores LD_PRELOAD; put 'gpt-hook run' after it"
                                 : " cannot be watched";
}

static void describe(enum loss loss, const struct note *note, char *text, size_t size) {
    snprintf(text, size, "nothing was recorded from %s, which %s started%s %s%s", note->program, note->by,
             loss == LOSS_DROPPED ? "" : ":", note->how, advice_of(loss));
}

static void say_lost(enum loss loss, const struct note *note) {
    char line[2 * NOTE_TEXT] = "gpt-hook: warning: ";
    struct stat error;
    if (fstat(STDERR_FILENO, &error) || error.st_dev != device || error.st_ino != inode)
        return;
    size_t at = strlen(line);
    describe(loss, note, line + at, sizeof(line) - at);
    gpt_write_line(line);
}

void hook_note_loss(enum loss loss, const char *program, const char *how) {
    char path[PATH_MAX];
    struct note note = {0};
    snprintf(note.by, sizeof(note.by), "%s", program_invocation_short_name);
    snprintf(note.program, sizeof(note.program), "%s", program);
    snprintf(note.how, sizeof(note.how), "%s", how);
    name_note(loss, path);
    int file = gpt_create(AT_FDCWD, path, O_WRONLY, 0600);
    if (file < 0 && errno != EEXIST) // the folder isn't for this user, say
        say_lost(loss, &note);
    if (file < 0)
        return;
    if (is_foreign()) // the file stays, so that the next one is silent
        say_lost(loss, &note);
    else if (gpt_write_quietly(file, &note, sizeof(note)) != sizeof(note))
        unlink(path);
    close(file);
}

// Read a note and remove its file. Returns false if there was no such note.
static bool read_note(enum loss loss, struct note *note) {
    char path[PATH_MAX];
    if (!notes)
        return false;
    name_note(loss, path);
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0)
        return false;
    bool read_all = gpt_is_private(file, S_IFREG) && read(file, note, sizeof(*note)) == sizeof(*note);
    note->by[sizeof(note->by) - 1] = note->program[NOTE_TEXT - 1] = note->how[sizeof(note->how) - 1] = '\0';
    close(file);
    unlink(path); // we chose the name, so remove whatever has it
    return read_all;
}

enum loss hook_take_loss(char *text, size_t size) {
    enum loss found = LOSS_NONE;
    for (enum loss loss = LOSS_DROPPED; loss > LOSS_NONE; loss--) {
        struct note note;
        if (!read_note(loss, &note) || found)
            continue;
        found = loss;
        describe(loss, &note, text, size);
    }
    return found;
}
