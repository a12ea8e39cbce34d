// The helper process of a live stream. The program writes its traces to files in a private folder, as it does
// for any run, so that a slow reader never makes it wait. The helper reads these files while they grow, and
// writes the stream.
//
// If there are several processes, the helper goes from one to the next and passes on new records, so their
// segments are interleaved. It ends when no process is left that could begin a trace: the command has ended,
// and so have all processes, including daemons, that have the folder in their environment. The helper isn't a
// child of the command, because the command might wait for all of its children.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../common/broker.h"
#include "../common/daemonize.h"
#include "../common/selection.h"
#include "../say.h"
#include "abi/records.h"
#include "follow.h"
#include "hook/write/folder.h"

#define TICK 50    // ms between checks of the files
#define SEARCH 100 // ms between checks of all processes

static const struct follow *self;
static int folder = -1;
static struct output output;
static uint64_t syncs;
static volatile sig_atomic_t stopped;

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

// The end

static DIR *open_entries(void) {
    int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return again >= 0 ? fdopendir(again) : NULL;
}

// If the output can't be written any more, only the helper ends: quietly if its reader went away.
static _Noreturn void leave(int error) {
    folder_empty(folder);
    rmdir(self->folder);
    if (error && error != EPIPE) {
        char line[PATH_MAX + 512];
        snprintf(line, sizeof(line), "gpt-hook: error: %s: %s; the stream ends", self->where,
                 strerror(error));
        gpt_write_line(line);
    }
    _exit(error != 0);
}

// Traces

struct trace {
    struct trace *next;
    struct segment *segment;
    uint64_t begun;   // position of its header among all headers in the stream; 0: not written yet
    uint64_t records; // records passed on so far
    char name[NAME_MAX + 1];
};

static struct trace *traces;        // in the order in which they began
static struct trace *current;       // the trace whose records came last
static uint64_t headers;            // in the stream
static uint64_t until = UINT64_MAX; // CLOCK_MONOTONIC: traces that begin later are not passed on

static struct trace *find_trace(const char *name) {
    struct trace *trace = traces;
    while (trace && strcmp(trace->name, name))
        trace = trace->next;
    return trace;
}

static void find_traces(void) {
    char path[NAME_MAX + 64];
    DIR *entries = open_entries();
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        if (entry->d_name[0] == '.' || find_trace(entry->d_name))
            continue;
        snprintf(path, sizeof(path), "/proc/self/fd/%d/%s", folder, entry->d_name);
        struct segment *segment = segment_open(path);
        bool wanted = segment && segment_began(segment) <= until;
        struct trace *trace = wanted ? malloc(sizeof(*trace)) : NULL;
        if (!trace) {
            if (segment)
                segment_close(segment);
            continue;
        }
        *trace = (struct trace){.segment = segment};
        strcpy(trace->name, entry->d_name);
        struct trace **at = &traces;
        while (*at && segment_began((*at)->segment) <= segment_began(segment))
            at = &(*at)->next;
        trace->next = *at;
        *at = trace;
    }
    if (entries)
        closedir(entries);
}

static void drop(struct trace **at) {
    struct trace *trace = *at;
    unlinkat(folder, trace->name, 0);
    segment_close(trace->segment);
    *at = trace->next;
    if (current == trace)
        current = NULL;
    free(trace);
}

static void put_sync(void) {
    unsigned char room[32];
    struct gpt_packer buffer = {room, room + sizeof(room), false};
    gpt_pack_sync(&buffer, &(struct gpt_sync){++syncs});
    output_put(&output.bytes, room, (size_t)(buffer.at - room));
    output.records++;
}

// Write a record that says whose records follow. The first time, that's the process's header.
static void put_turn(const struct trace *trace) {
    unsigned char room[32];
    struct gpt_packer buffer = {room, room + sizeof(room), false};
    gpt_pack_resume(&buffer, &(struct gpt_resume){headers - trace->begun});
    output_put(&output.bytes, room, (size_t)(buffer.at - room));
}

// Pass on a trace's new records.
static enum step follow_one(struct trace *trace, bool last) {
    bool dead = (last && self->ends_with_root) || !segment_lives(trace->segment);
    output.records = trace->records;
    if (current != trace && trace->begun)
        put_turn(trace);
    uint64_t before = output.flushed + output.bytes.size;
    enum step step = segment_step(trace->segment, &output, dead);
    if (step == STEP_FAILED)
        leave(errno);
    if (output.flushed + output.bytes.size == before && step != STEP_DONE) {
        output.bytes.size = 0; // not its turn yet
        return step;
    }
    current = trace;
    if (!trace->begun)
        trace->begun = ++headers;
    if (step != STEP_DONE && output.records != trace->records)
        put_sync(); // filters pass on everything before a `sync` at once
    trace->records = output.records;
    if (!output_flush(&output))
        leave(errno);
    return step;
}

// Pass on the new records of every process. Returns whether there were any.
static bool follow_all(bool last) {
    bool any = false;
    for (struct trace **at = &traces; *at && !stopped;) {
        enum step step = follow_one(*at, last);
        any |= step != STEP_WAIT;
        if (step == STEP_DONE)
            drop(at);
        else
            at = &(*at)->next;
    }
    return any;
}

// Write a segment without records if no process has written a trace: a stream must have at least one segment.
// It gets an `end` record only if it's `whole`.
static void put_empty_segment(pid_t pid, bool whole) {
    static unsigned char room[128 << 10];
    struct gpt_packer buffer = {room, room + sizeof(room), false};
    struct gpt_str words[256];
    size_t count = 0;
    for (; self->argv[count] && count < 256; count++)
        words[count] = (struct gpt_str){self->argv[count], strnlen(self->argv[count], 256)};
    char host[65] = "";
    gethostname(host, sizeof(host) - 1);
    struct timespec real;
    clock_gettime(CLOCK_REALTIME, &real);
    struct gpt_header header = {
        .version = GPT_STR(GPT_VERSION),
        .tool = GPT_STR("gpt-hook"),
        .argv = {words, count},
        .host = {host, strlen(host)},
        .pid = (uint64_t)pid,
        .realtime = (uint64_t)real.tv_sec * 1000000000 + (uint64_t)real.tv_nsec,
        .monotonic = now(),
    };
    gpt_pack_header(&buffer, &header);
    if (whole)
        gpt_pack_end(&buffer, &(struct gpt_end){.records = 0});
    output_put(&output.bytes, room, (size_t)(buffer.at - room));
}

// Return whether the folder has lost its name. If so, programs can neither add to their traces nor begin new
// ones.
static bool is_removed(void) {
    struct stat own, found;
    if (fstat(folder, &own))
        return false;
    if (lstat(self->folder, &found))
        return errno == ENOENT || errno == ENOTDIR; // otherwise we just can't reach it
    return own.st_dev != found.st_dev || own.st_ino != found.st_ino;
}

static void say_removed(void) {
    char line[2 * PATH_MAX];
    snprintf(line, sizeof(line), "gpt-hook: error: %s: was removed; nothing more is recorded", self->folder);
    gpt_write_line(line);
}

static bool any_lives(void) {
    struct trace *trace = traces;
    while (trace && !segment_lives(trace->segment))
        trace = trace->next;
    return trace;
}

// Warn in the same words as the report of a run that writes a file (../hook/write/report.c).
static void say_nothing(void) {
    char line[PATH_MAX + 128];
    snprintf(
        line, sizeof(line),
        "gpt-hook: warning: %s: nothing was recorded: no process that gpt-hook watched used the CUDA driver",
        self->where);
    gpt_write_line(line);
}

static _Noreturn void follow(pid_t root, int root_file) {
    uint64_t searched = 0;
    unsigned absent = 0; // scans in a row that found nobody; one scan can miss a process forked during it
    bool ended = false, nothing = true, removed = false;
    while (!stopped) {
        // Once every process has ended, all traces are complete, and removing the folder loses nothing.
        if (!removed && is_removed() && (any_lives() || !gpt_wait_for(root_file, 0))) {
            say_removed();
            removed = true;
        }
        if (ended && absent < 2 && now() - searched > SEARCH * 1000000ull) {
            absent = self->ends_with_root                                ? 2
                     : gpt_anybody_with("GPT_HOOK_FOLDER", self->folder) ? 0
                                                                         : absent + 1;
            searched = now();
        }
        bool last = absent == 2; // by now, everything that a dead process wrote is in the folder
        if (last && self->ends_with_root && until == UINT64_MAX)
            until = now();
        find_traces();
        if (traces)
            nothing = false;
        if (follow_all(last))
            continue;
        if (last && !traces)
            break;
        struct pollfd files[] = {{output.file, 0, 0}, {ended ? -1 : root_file, POLLIN, 0}};
        poll(files, 2, TICK);
        if (files[0].revents & POLLERR)
            leave(EPIPE);
        ended |= (files[1].revents & POLLIN) != 0;
    }
    if (nothing && !stopped) {
        bool late = !removed && is_removed();
        put_empty_segment(root, !removed && !late);
        if (late)
            say_removed();
        else if (!removed && !self->quiet)
            say_nothing();
    }
    int error = output_flush(&output) ? 0 : errno;
    if (!error && !stopped && !self->quiet)
        gpt_say_names();
    leave(error);
}

// The beginning

static void stop(int signal) {
    (void)signal;
    stopped = 1;
}

// If the program truncates its trace while we read it, we read zeros instead of getting a SIGBUS.
static void put_zeros(int signal, siginfo_t *info, void *context) {
    (void)context;
    uintptr_t page = (uintptr_t)info->si_addr & ~(uintptr_t)(sysconf(_SC_PAGESIZE) - 1);
    if (info->si_code <= 0 || mmap((void *)page, 1, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        sigaction(signal, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
}

static void helper(pid_t root, int root_file) {
    output.file = self->output;
    gpt_selection_setup();
    for (int signal = 1; signal < NSIG; signal++)
        if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT)
            sigaction(signal, &(struct sigaction){.sa_handler = stop}, NULL);
    signal(SIGPIPE, SIG_IGN); // so that we can clean up
    signal(SIGXFSZ, SIG_IGN);
    sigaction(SIGBUS, &(struct sigaction){.sa_sigaction = put_zeros, .sa_flags = SA_SIGINFO}, NULL);
    int files[] = {output.file, root_file, folder, self->lock};
    gpt_let_go(true, files, self->lock < 0 ? 3 : 4);
    follow(root, root_file);
}

bool follow_start(const struct follow *follow) {
    self = follow;
    folder = follow->file;
    return gpt_start_apart(helper);
}
