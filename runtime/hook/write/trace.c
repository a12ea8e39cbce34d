// Begins and ends the trace of a process.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "chunk.h"
#include "common/own.h"
#include "template.h"
#include "write.h"

static char last_path[4096]; // the last trace that this process, or the process that forked it, started
static pid_t last_pid;       // the process that started it; survives fork

static void (*survey)(bool end); // writes the other records of the start and the end

// The beginning

// Write the path of this process's trace to another trace: to the one at NAME if another process has that
// name, otherwise to the trace of the process that forked this one, or else to the trace of the command.
static void announce(bool first) {
    char path[sizeof(hook_live->path)];
    const char *command = getenv("GPT_HOOK_ROOT"), *to = path;
    if (!first)
        hook_expand_name(path, sizeof(path) - 32);
    else
        to = *last_path ? last_path : command ? command : "";
    hook_name_to(to, last_pid ? "fork" : "spawn");
}

// Begin the trace of this process. The calling thread writes the first chunk.
static bool start(void) {
    pid_t pid = getpid();
    if (!hook_template || !*hook_template) {
        atomic_store(&hook_live->state, OFF);
        return false;
    }
    static unsigned char header[96 << 10]; // its command line takes at most 64 KiB
    struct gpt_packer buffer = {header, header + sizeof(header), false};
    size_t length = hook_pack_header(&buffer, true);
    uint32_t size = hook_chunk_for(length);
    hook_bus_setup();
    hook_close_file(); // close the file of the process that forked this one
    bool first;
    int file = hook_create_file(&first);
    if (file < 0 && atomic_load(&hook_live->state) == OFF)
        return false;
    struct stat found;
    struct mapped chunk = {0};
    if (file >= 0 && !fstat(file, &found) && (chunk = hook_make_chunk(file, 0, size)).start)
        hook_live->tail = hook_map_tail(file, size);
    struct thread *thread = hook_live->tail ? hook_new_thread() : NULL;
    if (!thread) {
        hook_fail(hook_live->path, errno);
        if (file >= 0)
            close(file);
        return false;
    }
    hook_keep_file(file, &found);
    hook_use_chunk(thread, chunk);
    thread->used = (uint32_t)length;
    memcpy(chunk.start + CHUNK_HEAD, header, length);
    hook_set_used(chunk.start, thread->used);
    hook_sign(hook_live->tail, size);
    announce(first);
    last_pid = pid;
    strcpy(last_path, hook_live->path);

    thread->pid = (uint32_t)pid;
    hook_thread = thread;
    atomic_store(&hook_live->pid, (uint32_t)pid);
    atomic_store(&hook_live->state, ON);
    return true;
}

// Runs once the trace has begun.
static void begin_recording(void) {
    hook_begin_recording();
    survey(false);
}

// The end

bool hook_is_ours(void) {
    return hook_live && !hook_in_vfork && atomic_load(&hook_live->state) == ON &&
           (uint32_t)getpid() ==
               atomic_load(&hook_live->pid); // not a process that shares our memory, such as posix_spawn's
}

void hook_finish(unsigned status) {
    if (!hook_is_ours())
        return;
    int error = errno;
    survey(true);
    struct thread *thread = hook_this_thread();
    if (thread && hook_use_chunk(thread, hook_new_chunk(hook_chunk_size(0), ENDED))) {
        if (hook_has_tsc)
            HOOK_WRITE(clock, .monotonic = hook_monotonic(), .tsc = hook_now());
        HOOK_WRITE(end, .records = atomic_load(&hook_live->tail->records), .status = status);
    }
    atomic_store(&hook_live->state, OFF);
    atomic_store(&hook_live->pid, 0);
    errno = error;
}

// Allocate memory that reads as zeros in a forked child.

static struct {
    void *start;
    size_t size;
} own[2];

void *hook_process_memory(size_t size) {
    void *found =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED)
        return NULL;
    madvise(found, size, MADV_WIPEONFORK); // covers every kind of fork; the atfork handler only covers libc's
    unsigned i = own[0].start != NULL;
    own[i].start = found;
    own[i].size = size;
    return found;
}

// Runs in the child of a fork. The parent will record the end of calls that are in flight.
static void forget(void) {
    for (unsigned i = 0; i < sizeof(own) / sizeof(*own); i++)
        madvise(own[i].start, own[i].size, MADV_DONTNEED);
    hook_close_file();
    hook_thread = NULL;
}

int __register_atfork(void (*)(void), void (*)(void), void (*)(void),
                      void *) __attribute__((weak)); // pthread_atfork calls this in glibc

bool hook_trace_setup(void (*more)(bool end)) {
    hook_template = hook_keep_variable("GPT_HOOK_OUTPUT");
    hook_folder = hook_keep_variable("GPT_HOOK_FOLDER");
    if (!hook_template && getenv("GPT_HOOK_OUTPUT"))
        return false;
    survey = more;
    hook_recording_setup();
    const char *number = getenv("GPT_HOOK_RUN");
    hook_run = number ? strtoull(number, NULL, 16) : 0;
    struct live *live = hook_process_memory(sizeof(*live));
    if (!live)
        return false;
    if (__register_atfork)
        __register_atfork(NULL, NULL, forget, NULL);
    hook_threads_setup(start, begin_recording);
    hook_live = live;
    if (hook_template && *hook_template)
        hook_end_predecessor();
    return true;
}

// -- Names of files --------------------------------------------------------
//
// A process writes its trace to NAME or, if another process was there first, to a name of its own.

const char *hook_keep_variable(const char *name) {
    const char *value = getenv(name);
    return value ? strdup(value) : NULL;
}

const char *hook_template;

size_t hook_expand_name(char *path, size_t size) { return gpt_expand_name(hook_template, path, size); }

// Write the name that a process uses if NAME is taken: NAME.PID, NAME.PID.2, and so on. A process needs more
// than one if it runs several programs, one after the other, by exec.
static void name_number(char *path, size_t length, unsigned number) {
    int size = snprintf(path + length, 32, ".%d", getpid());
    if (number > 1)
        snprintf(path + length + size, 32 - (size_t)size, ".%u", number);
}

static bool is_taken(char *path, size_t length, unsigned number) {
    struct stat found;
    name_number(path, length, number);
    return !lstat(path, &found);
}

// Return how many of these names exist, without trying every number.
static unsigned count_names(char *path, size_t length) {
    unsigned low = 0, high = 1;
    for (; is_taken(path, length, high); high *= 2)
        low = high;
    while (high - low > 1) {
        unsigned middle = low + (high - low) / 2;
        *(is_taken(path, length, middle) ? &low : &high) = middle;
    }
    return low;
}

// Create NAME or, if another process was there first, one of the names that belong to this process.
static int create_one(int folder, const char *name, bool *first) {
    char *path = hook_live->path;
    size_t length = strlen(path);
    int file = gpt_create(folder, name, O_RDWR, 0600);
    bool denied = false;
    *first = file >= 0;
    if (file < 0 && errno == EEXIST && !hook_may_stay(path, &denied)) {
        hook_turn_off(
            path, denied ? "this process may not open it: it's another user's, or the process has changed "
                           "its user"
                         : "another run of gpt-hook is writing to it, or it isn't a trace");
        return -1;
    }
    if (file < 0 && errno == EEXIST) // another process may be taking them too
        for (unsigned number = count_names(path, length) + 1, tries = 0;
             file < 0 && (!tries || errno == EEXIST) && tries < 1000; number++, tries++) {
            name_number(path, length, number);
            file = gpt_create(folder, name, O_RDWR, 0600);
        }
    return file;
}

// Create the file. The folder of a live stream may be in a TMPDIR where other users can rename folders. If
// one of them puts a link in its place, we'd create files wherever that leads.
int hook_create_file(bool *first) {
    char *path = hook_live->path;
    hook_expand_name(path, sizeof(hook_live->path) - 32);
    const char *name = strrchr(path, '/');
    if (!hook_folder || !name)
        return create_one(AT_FDCWD, path, first);
    int folder = gpt_open_temporary(hook_folder);
    if (folder < 0 && errno != ENOENT)
        hook_turn_off(hook_folder, "another user has put something else there");
    if (folder < 0)
        return -1;
    int file = create_one(folder, name + 1, first), error = errno;
    close(folder);
    errno = error;
    return file;
}

// Make the name unique in the folder of a live stream. The helper removes traces of processes that have
// ended, so a name may otherwise be used a second time.
static void end_in_folder(char *path) {
    _Alignas(struct dirent64) static char entries[4096];
    char *name = strrchr(path, '/') + 1, own[64];
    size_t length = strlen(name);
    if (length >= sizeof(own))
        return;
    strcpy(own, name);
    *name = '\0';
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (long got; folder >= 0 && (got = syscall(SYS_getdents64, folder, entries, sizeof(entries))) > 0;)
        for (long at = 0; at < got;) {
            const struct dirent64 *entry = (const void *)(entries + at);
            at += entry->d_reclen;
            if (!strncmp(entry->d_name, own, length) && (entry->d_name[length] & ~'.') == 0 &&
                strlen(entry->d_name) < length + 32) {
                strcpy(name, entry->d_name);
                hook_end_earlier(path);
            }
        }
    if (folder >= 0)
        close(folder);
}

// End the last trace that a program started in this process before exec, if that program left it open.
void hook_end_predecessor(void) {
    char path[sizeof(hook_live->path)];
    size_t length = hook_expand_name(path, sizeof(path) - 64);
    if (hook_folder) {
        end_in_folder(path);
        return;
    }
    unsigned number = count_names(path, length);
    if (number)
        name_number(path, length, number);
    else
        path[length] = '\0';
    if (!hook_end_earlier(path) && number) { // an earlier process's
        path[length] = '\0';
        hook_end_earlier(path);
    }
}

// -- Recording on and off --------------------------------------------------
//
// Turns the recording of calls on and off, and writes `recording` records about that. A trace without such
// records covers the whole time.

_Atomic bool hook_recording = true;
struct periods hook_periods;

void hook_recording_setup(void) {
    atomic_store(&hook_recording, !getenv("GPT_HOOK_DISABLED"));
    hook_periods.count = atomic_load(&hook_recording);
}

void hook_begin_recording(void) {
    hook_periods = (struct periods){.count = atomic_load(&hook_recording)};
    if (!atomic_load(&hook_recording))
        HOOK_WRITE(recording, .on = false, .at = hook_now());
}

// Write the clock too, because days may pass between two of these records.
void hook_write_recording(bool on) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    hook_periods.count += on;
    hook_periods.since = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    HOOK_WRITE(recording, .on = on, .at = hook_now());
    if (hook_has_tsc)
        HOOK_WRITE(clock, .monotonic = hook_monotonic(), .tsc = hook_now());
}
