// The beginning and the end of the trace of a process.

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "chunk.h"
#include "write.h"

struct live *hook_live;
static TLS bool busy; // this thread is in code that must not call itself

static char last_path[4096]; // of the trace that this process, or the one that forked it, began
static pid_t last_pid;       // that began a trace; survives fork

static void (*survey)(void); // writes what else belongs to the beginning and the end

// The beginning

// Announces this process in another trace: NAME where that was taken, else the trace of the process that
// forked this one, else that of the command.
static void announce(bool first) {
    char path[sizeof(hook_live->path)];
    const char *command = getenv("GPT_HOOK_ROOT"), *to = path;
    if (!first)
        hook_expand_name(path, sizeof(path) - 32);
    else
        to = *last_path ? last_path : command ? command : "";
    hook_name_to(to, last_pid ? "fork" : "spawn");
}

// Begins the trace of this process. The thread that does it writes the first chunk.
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
    hook_close_file(); // of the process that forked this one
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

struct thread *hook_begin_thread(void) {
    if (busy || hook_in_vfork || !hook_live || atomic_load(&hook_live->state) == OFF)
        return NULL;
    HOOK_CALM;
    int error = errno;
    busy = true;
    uint32_t state = FRESH;
    bool started = atomic_compare_exchange_strong(&hook_live->state, &state, STARTING) && start();
    // Another thread begins the trace: it opens a file, calls nobody and waits for nobody.
    while (!started && (state = atomic_load(&hook_live->state)) == STARTING)
        sched_yield();
    struct thread *thread = started ? hook_thread : NULL;
    if (!started && state == ON && (thread = hook_new_thread())) {
        thread->pid = atomic_load(&hook_live->pid);
        if (thread->chunk.start || hook_use_chunk(thread, hook_new_chunk(hook_chunk_size(0), 0)))
            hook_thread = thread;
        else
            thread = NULL;
    }
    busy = false;
    if (started) {
        hook_begin_recording();
        survey();
    }
    errno = error;
    return thread;
}

// The end

bool hook_is_ours(void) {
    return hook_live && !hook_in_vfork && atomic_load(&hook_live->state) == ON &&
           (uint32_t)getpid() ==
               atomic_load(&hook_live->pid); // no process in our memory, as posix_spawn makes
}

void hook_finish(unsigned status) {
    if (!hook_is_ours())
        return;
    int error = errno;
    survey();
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

// Memory of this process alone.

static struct {
    void *start;
    size_t size;
} own[2];

void *hook_process_memory(size_t size) {
    void *found =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED)
        return NULL;
    madvise(found, size, MADV_WIPEONFORK); // meets every way to fork; the handler those of libc
    unsigned i = own[0].start != NULL;
    own[i].start = found;
    own[i].size = size;
    return found;
}

// In the child of fork. Its calls in flight are the parent's to finish.
static void forget(void) {
    for (unsigned i = 0; i < sizeof(own) / sizeof(*own); i++)
        madvise(own[i].start, own[i].size, MADV_DONTNEED);
    hook_close_file();
    hook_thread = NULL;
}

int __register_atfork(void (*)(void), void (*)(void), void (*)(void),
                      void *) __attribute__((weak)); // what pthread_atfork calls, in glibc

bool hook_trace_setup(void (*more)(void)) {
    hook_template = hook_keep_variable("GPT_HOOK_OUTPUT");
    hook_folder = hook_keep_variable("GPT_HOOK_FOLDER");
    survey = more;
    hook_recording_setup();
    const char *number = getenv("GPT_HOOK_RUN");
    hook_run = number ? strtoull(number, NULL, 16) : 0;
    struct live *live = hook_process_memory(sizeof(*live));
    if (!live)
        return false;
    if (__register_atfork)
        __register_atfork(NULL, NULL, forget, NULL);
    hook_threads_setup();
    hook_live = live;
    if (hook_template && *hook_template)
        hook_end_predecessor();
    return true;
}
