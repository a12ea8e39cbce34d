// Decides where the trace goes, and checks that it can be written there.

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../common/broker.h"
#include "../common/daemonize.h"
#include "../common/own.h"
#include "../follow/follow.h"
#include "hook/write/folder.h"
#include "hook/write/template.h"
#include "launcher.h"

// Expand %p, %h and the like in a name, with the values of this process.
static void expand(const char *from, char path[PATH_MAX]) {
    for (const char *c = from; *c; c++)
        if (*c == '%' && c[1] && !strchr("phr%", *++c))
            fail(USAGE, c - 1, "only %%p, %%h, %%r and %%%% are known in a file name");
    gpt_expand_name(from, path, PATH_MAX);
}

// Expand the name that -o gives.
static void expand_output(const char *output, char path[PATH_MAX]) {
    if (strlen(output) > PATH_MAX - 512)
        fail(USAGE, output, "the name is too long");
    expand(output, path);
}

// Return whether a file is the trace of the process whose id is in its name, and not a copy that the user
// made, such as FILE.1.
static bool is_trace_of(const char *path, const char *pid) {
    struct segment *segment = segment_open(path);
    bool same = segment && segment_pid(segment) == strtoull(pid, NULL, 10);
    if (segment)
        segment_close(segment);
    return same;
}

static void refuse_written(const char *path) {
    struct segment *segment = segment_open(path);
    bool written = segment && segment_lives(segment);
    if (segment)
        segment_close(segment);
    if (written)
        fail(BAD, path, "another run writes to it; wait for its end, or choose another file");
}

// Even as root, -f doesn't remove other users' files in a shared folder.
static bool is_own(const char *path) { return gpt_is_own(AT_FDCWD, path, NULL); }

// Remove a trace and the files of its buffers, including any that earlier runs left.
static void remove_one(const char *path) {
    char beside[2 * PATH_MAX + 32];
    if (unlink(path) && errno != ENOENT)
        fail(BAD, path, "%s", strerror(errno));
    int size = snprintf(beside, sizeof(beside) - 16, "%s.buffers", path);
    for (int number = 2; is_own(beside) && !unlink(beside); number++)
        snprintf(beside + size, 16, ".%d", number);
}

// Visit the traces that an earlier run left: FILE, and FILE.PID for each of its other processes.
static void each_old(const char *path, void (*visit)(const char *path)) {
    char folder[PATH_MAX], other[2 * PATH_MAX];
    snprintf(folder, sizeof(folder), "%s", path);
    char *name = strrchr(folder, '/');
    *name++ = '\0';
    size_t size = strlen(name);
    DIR *entries = opendir(*folder ? folder : "/");
    visit(path);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        const char *rest = entry->d_name + size;
        if (strncmp(entry->d_name, name, size) || *rest != '.' || !rest[1] ||
            rest[strspn(rest, ".0123456789")])
            continue;
        snprintf(other, sizeof(other), "%s/%s", folder, entry->d_name);
        if (is_own(other) && is_trace_of(other, rest + 1))
            visit(other);
    }
    if (entries)
        closedir(entries);
}

// Return whether the output may replace `path`, which must be a regular file, or a link to one or to nothing.
// Devices and other links aren't replaced. That includes links to open files such as /dev/stdout, which root
// could otherwise remove for the whole machine.
static bool is_replaceable(const char *path, const struct stat *found) {
    struct stat target;
    char text[8] = "";
    if (!S_ISLNK(found->st_mode))
        return S_ISREG(found->st_mode);
    return readlink(path, text, sizeof(text) - 1) > 0 && strncmp(text, "/proc/", 6) &&
           (stat(path, &target) || S_ISREG(target.st_mode));
}

static void prepare_output(const char *output, bool force) {
    char path[PATH_MAX];
    expand_output(output, path);
    struct stat status;
    if (lstat(path, &status)) {
        if (errno == ENAMETOOLONG)
            fail(BAD, path, "%s", strerror(errno));
    } else {
        if (!is_replaceable(path, &status))
            fail(BAD, path, "not a regular file");
        if (!force)
            fail(BAD, path, "exists; -f overwrites it");
        each_old(path, refuse_written);
        each_old(path, remove_one);
    }
    // fail here rather than inside the command
    char *slash = strrchr(path, '/'), first = slash[1];
    slash[1] = '\0';
    if (access(path, W_OK | X_OK))
        fail(BAD, path, "%s", strerror(errno));
    slash[1] = first;
}

// Set where the trace goes. Other processes name their traces in the command's trace, if there is one.
static void set_output(const char *template) {
    char path[PATH_MAX];
    expand(template, path);
    setenv("GPT_HOOK_OUTPUT", template, 1);
    setenv("GPT_HOOK_ROOT", path, 1);
    uint64_t run = 0; // processes of one run share FILE; other runs don't touch it
    if (getrandom(&run, sizeof(run), 0) != sizeof(run))
        run = (uint64_t)getpid();
    snprintf(path, sizeof(path), "%016lx", run);
    setenv("GPT_HOOK_RUN", path, 1);
}

// Return whether others may have put a file with this owner at a path, and it isn't this user's.
static bool is_planted(const char *path, uid_t owner) {
    struct stat folder;
    char parent[PATH_MAX + 1];
    const char *name = strrchr(path, '/');
    snprintf(parent, sizeof(parent), "%.*s", name ? (int)(name - path) + 1 : 1, name ? path : ".");
    return owner != geteuid() &&
           (stat(parent, &folder) || (folder.st_mode & (S_IWGRP | S_IWOTH) && owner != folder.st_uid));
}

// Open a named pipe, and wait for its reader, as a shell does. In a folder to which others may write, another
// user could have replaced the pipe by one of theirs, to get the trace or to keep us waiting. So we check its
// owner and type before we open it.
static int open_pipe(const char *path) {
    struct stat status;
    char place[32];
    int found = open(path, O_PATH | O_CLOEXEC);
    if (found < 0)
        return -1;
    if (fstat(found, &status) || !S_ISFIFO(status.st_mode))
        fail(BAD, path, "another process renamed or replaced it meanwhile");
    if (is_planted(path, status.st_uid))
        fail(BAD, path, "is a named pipe of another user, in a folder that others may write to");
    snprintf(place, sizeof(place), "/proc/self/fd/%d", found);
    int file = open(place, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    int error = errno;
    close(found);
    errno = error;
    return file;
}

// Return whether nobody holds the lock of a live stream's folder: all its processes were killed.
// One that was made just now may be locked in a moment.
static bool is_left(int folder) {
    enum { YOUNG = 60 }; // seconds
    struct stat status;
    int lock = openat(folder, FOLDER_LOCK, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool left = lock >= 0 && !fstat(lock, &status) && S_ISREG(status.st_mode) &&
                time(NULL) - status.st_mtime > YOUNG && folder_is_left(lock);
    if (lock >= 0)
        close(lock);
    return left;
}

// Begin a live stream: processes write their traces to a private folder, and a helper merges them into one
// stream.
static void begin_stream(const char *where, const char *pipe_path, const char *reader, bool quiet,
                         char **argv) {
    struct follow follow = {
        .where = where, .output = -1, .argv = argv, .ends_with_root = reader != NULL, .quiet = quiet};
    bool standard = !strcmp(where, "-");
    if (standard && isatty(STDOUT_FILENO))
        fail(USAGE, "-o -", "standard output is a terminal");
    if (standard && !reader)
        follow.output = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
    gpt_hold_standard();
    int pipe = *pipe_path ? open_pipe(pipe_path) : -1;
    if (*pipe_path && pipe < 0)
        fail(BAD, where, "%s", strerror(errno));
    if (reader)
        follow.output = start_reader(reader, pipe, *where == '|');
    else if (!standard)
        follow.output = pipe;
    // send the program's own output to standard error, as perf does
    if (standard && follow.output >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
        fail(BAD, "standard error", "%s", strerror(errno));
    if (follow.output < 0)
        fail(BAD, where, "%s", strerror(errno));

    static char folder[PATH_MAX], traces[2 * PATH_MAX];
    const char *parent = gpt_temporary_parent();
    char prefix[64];
    gpt_make_prefix("gpt-hook", prefix);
    gpt_remove_stale(parent, prefix, is_left, folder_empty);
    follow.file = gpt_make_temporary(parent, prefix, folder);
    if (follow.file < 0)
        fail(BAD, parent, "no folder for the traces can be made: %s", strerror(errno));
    follow.folder = folder;
    follow.lock = folder_lock(follow.file);
    name_folder(folder);
    if (!follow_start(&follow))
        fail(BAD, "helper", "%s", strerror(errno));
    if (follow.lock >= 0)
        close(follow.lock);
    close(follow.file);
    size_t at = 0;
    for (const char *from = folder; *from; from++) {
        if (*from == '%')
            traces[at++] = '%';
        traces[at++] = *from;
    }
    strcpy(traces + at, "/%p");
    set_output(traces);
    setenv("GPT_HOOK_FOLDER", folder, 1);
}

// Return a gpt-dump command that runs callbacks and passes the trace on: to its standard output, to a file
// that it creates, or to the command of -o '|COMMAND'. The command line lists the callbacks that may run. The
// trace names callbacks as well, but it's written by the program, which may be in a sandbox and mustn't
// choose them.
static const char *find_dump(const char *output, const char *file, const struct gpt_bytes *callbacks) {
    static struct gpt_bytes command;
    char stage[PATH_MAX];
    append(&command, *output == '|' ? "" : "exec");
    append_quoted(&command, find_neighbour("gpt-dump", stage) ? stage : "gpt-dump");
    append(&command, " -q");
    for (size_t at = 0; at < callbacks->size; at += strlen(callbacks->data + at) + 1) {
        append(&command, " --only");
        append_quoted(&command, callbacks->data + at);
    }
    if (*output == '|') {
        append(&command, " | {\n%s\n}", output + 1);
    } else if (*file) {
        append(&command, " -o");
        append_quoted(&command, file);
    }
    append(&command, "%c", '\0');
    return command.data;
}

static bool names_stream(const char *output) { return *output == '|' || !strcmp(output, "-"); }

static bool is_pipe(const char *path) {
    struct stat status;
    return !stat(path, &status) && S_ISFIFO(status.st_mode);
}

bool is_stream(const char *output) {
    char path[PATH_MAX] = "";
    if (names_stream(output))
        return true;
    expand_output(output, path);
    return is_pipe(path);
}

// Decide where the trace goes.
void begin_trace(const char *output, bool force, bool quiet, const struct gpt_bytes *callbacks, char **argv) {
    unsetenv("GPT_HOOK_FOLDER");
    char path[PATH_MAX] = "";
    bool stream = names_stream(output);
    if (!stream)
        expand_output(output, path);
    bool is_fifo = !stream && is_pipe(path);
    if (!stream && !is_fifo) {
        output = absolute(output);
        prepare_output(output, force);
        expand(output, path);
    }
    const char *reader = callbacks->size  ? find_dump(output, is_fifo ? "" : path, callbacks)
                         : *output == '|' ? output + 1
                                          : NULL;
    if (stream || is_fifo || reader)
        begin_stream(output, is_fifo ? path : "", reader, quiet, argv);
    else
        set_output(output);
}
