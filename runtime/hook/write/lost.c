// Programs that the command starts without the hook: what the report says of them.
//
// Any process of the run may start one, and only the root process reports. So a note of it goes to a small
// file whose name, which holds the random id of the run, the launcher chose: one for each kind of loss, the
// first wins. The root process removes them at its end.

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/own.h"
#include "common/private.h"
#include "say.h"
#include "write.h"

enum { TEXT = 512 };

struct note {
    char by[64], program[TEXT], how[64];
};

static const char *notes; // the names of the files begin so
static pid_t root_pid;
static uint64_t device, inode; // of the standard error that the run began with

void hook_lost_setup(pid_t of_run, uint64_t error_device, uint64_t error_inode) {
    device = error_device, inode = error_inode;
    const char *path = hook_keep_variable("GPT_HOOK_NOTES");
    notes = path && *path == '/' ? path : NULL;
    root_pid = of_run;
}

// Whether the root process is another user's by now, who would not believe a note of ours.
static bool is_foreign(void) { return kill(root_pid, 0) && errno == EPERM; }

// The root process is there, so the note will be removed.
bool hook_notes_losses(void) { return notes && (!kill(root_pid, 0) || errno == EPERM); }

static void name_note(enum loss loss, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%s.%d", notes, (int)loss);
}

static const char *advice_of(enum loss loss) {
    return loss == LOSS_DROPPED  ? "; put 'gpt-hook run' right before that program"
           : loss == LOSS_RIGHTS ? " ignores LD_PRELOAD; put 'gpt-hook run' behind it"
                                 : " cannot be watched";
}

static void describe(enum loss loss, const struct note *note, char *text, size_t size) {
    snprintf(text, size, "nothing was recorded of %s, which %s started%s %s%s", note->program, note->by,
             loss == LOSS_DROPPED ? "" : ":", note->how, advice_of(loss));
}

static void say_lost(enum loss loss, const struct note *note) {
    char line[2 * TEXT] = "gpt-hook: warning: ";
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
    else if (write(file, &note, sizeof(note)) != sizeof(note))
        unlink(path);
    close(file);
}

// Read a note and remove it. Returns false if there is none.
static bool take(enum loss loss, struct note *note) {
    char path[PATH_MAX];
    if (!notes)
        return false;
    name_note(loss, path);
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0)
        return false;
    bool read_all = gpt_is_private(file, S_IFREG) && read(file, note, sizeof(*note)) == sizeof(*note);
    note->by[sizeof(note->by) - 1] = note->program[TEXT - 1] = note->how[sizeof(note->how) - 1] = '\0';
    close(file);
    unlink(path); // whosever it is, the name is ours
    return read_all;
}

enum loss hook_take_loss(char *text, size_t size) {
    enum loss found = LOSS_NONE;
    for (enum loss loss = LOSS_DROPPED; loss > LOSS_NONE; loss--) {
        struct note note;
        if (!take(loss, &note) || found)
            continue;
        found = loss;
        describe(loss, &note, text, size);
    }
    return found;
}
