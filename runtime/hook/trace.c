// The trace on disk: a file of chunks of one size, each a msgpack record of its own and mapped into memory.
//
// A chunk has one writing thread. `used`, an aligned word in it, is stored with release order after the
// record that it covers, so whoever reads the file, also after SIGKILL, finds whole records only. Chunks are
// numbered by an atomic counter, the ticket, that lies in the unused tail of the file's first chunk:
// processes that share a NAME use it to tell of each other. Before a chunk is mapped its blocks are
// allocated, so that a full disk is an error here and no SIGBUS later. The file is opened for each chunk and
// closed again: a descriptor that is kept could be closed by the program, and its number be given to a file
// of the program's own.
//
// The calls of a thread go into batches, `calls` records that are whole from the start, of rows that are zero
// until they are used.

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hook.h"
#include "say.h"
#include "template.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { FRESH, STARTING, ON, OFF };

#define PAGE 4096

struct live *hook_live;
TLS struct thread *hook_thread;
TLS bool hook_in_vfork;
TLS bool hook_writing;
static TLS bool busy; // this thread is in code that must not call itself

static const char *template; // of the file's name
static bool live_stream;     // the file lies in the folder of a helper that follows it
static char last_path[4096]; // of the trace that this process, or the one that forked it, began
static pid_t first_pid;      // that loaded this library
static pid_t last_pid;       // that began a trace; survives fork
static pthread_key_t exit_key;

// {kind: "chunk", used: ...., data: ....}, two texts in a longer form than they need: so `used` is aligned.
static const unsigned char HEAD[CHUNK_HEAD] = "\x83\xd9\x04kind\xd9\x05"
                                              "chunk\xa4used\xce\0\0\0\0\xa4"
                                              "data\xc6";

// Errors

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
    const char *fact = strerrordesc_np(error);
    bool unread = live_stream && error == ENOENT; // nobody reads it any more
    hook_turn_off(where, unread ? NULL : fact ? fact : "unknown error");
}

// Chunks

static int open_trace(const char *path, int flags) {
    int file;
    do
        file = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | flags, 0666);
    while (file < 0 && errno == EINTR);
    return file;
}

// Gives the chunk blocks on disk, and pages in memory: written to in one go it gets large ones, which are
// mapped in a quarter of the time (ext4). File systems that cannot allocate do it by being written to.
static bool allocate(int file, uint64_t number) {
    off_t at = (off_t)(number * CHUNK_SIZE);
    struct rlimit limit;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && (rlim_t)at + CHUNK_SIZE > limit.rlim_cur) {
        errno = EFBIG; // trying brings a signal
        return false;
    }
    int status;
    do
        status = fallocate(file, 0, at, CHUNK_SIZE);
    while (status && errno == EINTR);
    if (status && errno != EOPNOTSUPP && errno != ENOSYS)
        return false;
    static char zeros[CHUNK_SIZE]; // never written: one page
    for (unsigned done = 0; done < CHUNK_SIZE;) {
        ssize_t size = pwrite(file, zeros, CHUNK_SIZE - done, at + done);
        if (size < 0 && errno != EINTR)
            return false;
        if (size > 0)
            done += (unsigned)size;
    }
    return true;
}

static unsigned char *map_chunk(int file, uint64_t number) {
    unsigned char *chunk = hook_map(file, CHUNK_SIZE, (off_t)(number * CHUNK_SIZE));
    if (!chunk)
        return NULL;
    madvise(chunk, CHUNK_SIZE,
            MADV_POPULATE_WRITE); // in one go; where the kernel does not know it, page by page
    memcpy(chunk, HEAD, sizeof(HEAD));
    uint32_t size = htobe32(CHUNK_SIZE - CHUNK_HEAD);
    memcpy(chunk + CHUNK_HEAD - 4, &size, 4);
    return chunk;
}

void hook_set_used(unsigned char *chunk, uint32_t used) {
    atomic_store_explicit((_Atomic uint32_t *)(chunk + CHUNK_USED), htobe32(used), memory_order_release);
}

// Takes the next chunk of the file. `flag` is ENDED for the last one.
static unsigned char *take_chunk(uint64_t flag) {
    HOOK_CALM;
    uint64_t number = atomic_load(&hook_live->tail->ticket);
    do {
        if (number & ENDED)
            return NULL;
        if (!number) { // a chunk that was being added made the file long again, so no signal came (bus.c)
            hook_turn_off(hook_live->path, "was truncated");
            return NULL;
        }
    } while (!atomic_compare_exchange_weak(&hook_live->tail->ticket, &number, (number + 1) | flag));

    int file = open_trace(hook_live->path, 0);
    unsigned char *chunk = NULL;
    struct stat found;
    if (file >= 0 && !fstat(file, &found)) {
        if (found.st_dev != hook_live->device || found.st_ino != hook_live->inode)
            errno = ESTALE; // somebody put another file there
        else if (allocate(file, number))
            chunk = map_chunk(file, number);
    }
    int error = errno;
    if (file >= 0)
        close(file);
    if (!chunk)
        hook_fail(hook_live->path, error);
    return chunk;
}

unsigned char *hook_new_chunk(void) {
    int error = errno;
    unsigned char *chunk = take_chunk(0);
    errno = error;
    return chunk;
}

static bool use_chunk(struct thread *thread, unsigned char *chunk) {
    if (!chunk)
        return false;
    if (thread->previous) {
        struct tail *tail = (void *)(thread->previous + CHUNK_SIZE - CHUNK_TAIL);
        atomic_store_explicit(&tail->closed, 1, memory_order_release);
        hook_unmap(thread->previous, CHUNK_SIZE);
    }
    thread->previous = thread->chunk;
    thread->chunk = chunk;
    thread->used = 0;
    for (int i = 0; i < LAYOUTS; i++)
        thread->batches[i].end = thread->batches[i].next = NULL;
    return true;
}

// Records

static void set_buffer(const struct thread *thread, struct gpt_buffer *buffer) {
    unsigned char *chunk = thread->chunk;
    *buffer = (struct gpt_buffer){chunk + CHUNK_HEAD + thread->used, chunk + CHUNK_SIZE - CHUNK_TAIL, false};
}

bool hook_open(struct gpt_buffer *buffer, bool fresh) {
    struct thread *thread = hook_this_thread();
    if (!thread)
        return false;
    if (fresh) {
        if (!use_chunk(thread, hook_new_chunk()))
            return false;
        set_buffer(thread, buffer);
        if (hook_has_tsc && gpt_pack_clock(buffer, &(struct gpt_clock){hook_monotonic(), hook_now()}))
            hook_close(buffer);
    }
    set_buffer(thread, buffer);
    return true;
}

bool hook_close(struct gpt_buffer *buffer) {
    struct thread *thread = hook_thread;
    if (UNLIKELY(!thread)) // a child that was forked by a signal handler in between
        return false;
    thread->used = (uint32_t)(buffer->at - thread->chunk - CHUNK_HEAD);
    hook_set_used(thread->chunk, thread->used);
    atomic_fetch_add_explicit(&hook_live->tail->records, 1, memory_order_relaxed);
    return true;
}

unsigned char *hook_grow_rows(struct gpt_buffer *buffer, unsigned char *start, size_t size) {
    struct gpt_buffer head = {buffer->at - 2, buffer->end, false}; // the type of bytes, and 0
    gpt_put_head(&head, size, 0, 0, 0xc4, 0xc5);
    size_t pad = -(uintptr_t)head.at & 7;
    if (head.full || pad + size > (size_t)(head.end - head.at))
        return NULL;
    memmove(start + pad, start, (size_t)(head.at - start));
    memset(start, 0, pad); // between records
    buffer->at = head.at + pad + size;
    return head.at + pad;
}

// Threads

// A thread that ends leaves its chunk to the next that begins.
static void leave_thread(void *state) {
    struct thread *thread = state;
    hook_thread = NULL;
    if (thread->pid != atomic_load(&hook_live->pid))
        return;
    hook_keep_queries(thread);
    if (atomic_exchange(&hook_live->pool_lock, 1))
        return;
    thread->next = hook_live->pool;
    hook_live->pool = thread;
    atomic_store(&hook_live->pool_lock, 0);
}

static struct thread *new_thread(void) {
    struct thread *thread = NULL;
    hook_forget_queries();                            // of a parent
    if (!atomic_exchange(&hook_live->pool_lock, 1)) { // it is never waited for
        thread = hook_live->pool;
        if (thread)
            hook_live->pool = thread->next;
        atomic_store(&hook_live->pool_lock, 0);
    }
    if (!thread) {
        thread = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (thread == MAP_FAILED) {
            hook_fail("memory", errno);
            return NULL;
        }
    }
    for (int i = 0; i < LAYOUTS; i++)
        thread->batches[i] = (struct batch){.rows = 16};
    thread->tid = (uint32_t)syscall(SYS_gettid);
    pthread_setspecific(exit_key, thread);
    return thread;
}

static bool start(void);

struct thread *hook_begin_thread(void) {
    if (busy || hook_in_vfork || !hook_live)
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
    if (!started && state == ON && (thread = new_thread())) {
        thread->pid = atomic_load(&hook_live->pid);
        if (thread->chunk || use_chunk(thread, hook_new_chunk()))
            hook_thread = thread;
        else
            thread = NULL;
    }
    busy = false;
    if (started)
        hook_scan_libraries();
    errno = error;
    return thread;
}

// The beginning

static size_t expand(char *path, size_t size) { return gpt_expand_name(template, path, size); }

// Creates the file: NAME, or if this process is not the first there, NAME.PID, NAME.PID.2, ...
static int create(bool *first) {
    char *path = hook_live->path;
    size_t size = sizeof(hook_live->path) - 32, length = expand(path, size);
    int file = open_trace(path, O_CREAT | O_EXCL);
    *first = file >= 0;
    for (int i = 1; file < 0 && errno == EEXIST && i < 1000; i++) {
        int more = snprintf(path + length, 16, ".%d", getpid());
        if (i > 1)
            snprintf(path + length + more, 16, ".%d", i);
        file = open_trace(path, O_CREAT | O_EXCL);
    }
    return file;
}

// When this process began, in clock ticks since boot.
static uint64_t read_birth(void) {
    char text[1024] = "";
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t size = read(file, text, sizeof(text) - 1);
        text[size > 0 ? size : 0] = '\0';
        close(file);
    }
    const char *at = strrchr(text, ')'); // the name before it may hold anything
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

static struct tail *map_tail(int file) {
    unsigned char *page = hook_map(file, PAGE, CHUNK_SIZE - PAGE);
    return page ? (void *)(page + PAGE - CHUNK_TAIL) : NULL;
}

// The command line of this process, at most 64 KiB of it.
static size_t read_command(struct gpt_str *words, size_t count, char *text, size_t size) {
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, text, size - 1);
    if (file >= 0)
        close(file);
    size_t found = 0;
    for (char *at = text, *end = text + (length > 0 ? length : 0); at < end && found < count; found++) {
        *end = '\0';
        words[found] = hook_str(at);
        at += words[found].size + 1;
    }
    return found;
}

static size_t pack_header(struct gpt_buffer *buffer, bool whole) {
    static char command[64 << 10];
    static struct gpt_str words[1024];
    char host[65] = "", boot[37] = "";
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (read(file, boot, 36) != 36)
            boot[0] = '\0';
        close(file);
    }
    gethostname(host, sizeof(host) - 1);
    struct timespec real;
    clock_gettime(CLOCK_REALTIME, &real);
    struct gpt_header header = {
        .version = GPT_STR(GPT_VERSION),
        .tool = GPT_STR("gpt-hook"),
        .argv = {words, whole ? read_command(words, 1024, command, sizeof(command)) : 0},
        .host = hook_str(host),
        .pid = (uint64_t)getpid(),
        .boot_id = hook_str(boot[0] ? boot : NULL),
        .realtime = (uint64_t)real.tv_sec * 1000000000 + (uint64_t)real.tv_nsec,
        .monotonic = hook_monotonic(),
    };
    if (hook_has_tsc) {
        header.tsc = GPT_U64(hook_now());
        header.tsc_hz = GPT_U64(hook_tsc_hz());
    }
    return gpt_pack_header(buffer, &header);
}

// The trace of another process, or of this one before exec.
struct other {
    int file;
    struct tail *tail;
};

static bool open_other(struct other *other, const char *path) {
    other->tail = NULL;
    other->file = open_trace(path, O_NONBLOCK);
    struct stat found;
    unsigned char head[CHUNK_USED];
    if (other->file >= 0 && !fstat(other->file, &found) && S_ISREG(found.st_mode) &&
        found.st_size >= CHUNK_SIZE && pread(other->file, head, CHUNK_USED, 0) == CHUNK_USED &&
        !memcmp(head, HEAD, CHUNK_USED))
        other->tail = map_tail(other->file);
    if (!other->tail && other->file >= 0)
        close(other->file);
    return other->tail;
}

static void close_other(struct other *other) {
    hook_unmap((unsigned char *)other->tail + CHUNK_TAIL - PAGE, PAGE);
    close(other->file);
}

static bool was_ours(const struct other *other) {
    return atomic_load(&other->tail->pid) == (uint64_t)getpid() &&
           atomic_load(&other->tail->born) == read_birth();
}

// Writes records to a chunk of their own in another trace, as a segment of their own where that has its end:
// who we are, and with `end` that nothing more comes.
static void write_other(struct other *other, const struct gpt_child *child, bool end) {
    hook_bus_setup();
    uint64_t number = atomic_fetch_add(&other->tail->ticket, 1);
    bool ended = number & ENDED;
    number &= ~ENDED;
    unsigned char *chunk = allocate(other->file, number) ? map_chunk(other->file, number) : NULL;
    if (!chunk)
        return;
    struct gpt_buffer buffer = {chunk + CHUNK_HEAD, chunk + CHUNK_SIZE - CHUNK_TAIL, false};
    if (ended)
        pack_header(&buffer, false);
    if (child)
        gpt_pack_child(&buffer, child);
    uint64_t records = ended ? 0 : atomic_fetch_add(&other->tail->records, child != NULL);
    if (ended || end)
        gpt_pack_end(&buffer, &(struct gpt_end){.records = records + (child != NULL)});
    if (end)
        atomic_fetch_or(&other->tail->ticket, ENDED);
    hook_set_used(chunk, (uint32_t)(buffer.at - chunk - CHUNK_HEAD));
    hook_unmap(chunk, CHUNK_SIZE);
}

// The path of a trace as a record in another one has it: relative to its folder.
static struct gpt_str relative(const char *path, const char *to) {
    const char *slash = strrchr(to, '/');
    size_t folder = slash ? (size_t)(slash + 1 - to) : 0;
    return hook_str(strncmp(path, to, folder) ? path : path + folder);
}

// Tells another trace of this process: NAME where that was taken, else the trace of the process that forked
// this one, else that of the command.
static void announce(bool first) {
    char path[sizeof(hook_live->path)];
    const char *command = getenv("GPT_HOOK_ROOT"), *to = path;
    if (!first)
        expand(path, sizeof(path) - 32);
    else
        to = *last_path ? last_path : command ? command : "";
    struct other other;
    if (!*to || !strcmp(to, hook_live->path) || !open_other(&other, to))
        return;
    const char *how = was_ours(&other) ? "exec" : last_pid ? "fork" : "spawn";
    struct gpt_child child = {(uint64_t)getpid(), hook_str(how), relative(hook_live->path, to)};
    write_other(&other, &child, false);
    close_other(&other);
}

// A program that this process was before exec may have left its trace without end.
static void end_predecessor(void) {
    char path[sizeof(hook_live->path)];
    size_t length = expand(path, sizeof(path) - 32);
    struct other other;
    for (int i = 0; i < 1000; i++) {
        if (i)
            snprintf(path + length, 32, i > 1 ? ".%d.%d" : ".%d", getpid(), i);
        if (!open_other(&other, path)) {
            if (i)
                return;
            continue; // NAME may be gone, or taken by something else
        }
        if (was_ours(&other) && !(atomic_load(&other.tail->ticket) & ENDED))
            write_other(&other, NULL, true);
        close_other(&other);
    }
}

// Begins the trace of this process. The thread that does it writes the first chunk.
static bool start(void) {
    pid_t pid = getpid();
    if (!template || !*template) {
        atomic_store(&hook_live->state, OFF);
        return false;
    }
    hook_bus_setup();
    bool first;
    int file = create(&first);
    struct stat found;
    unsigned char *chunk = NULL;
    if (file >= 0 && !fstat(file, &found) && allocate(file, 0) && (chunk = map_chunk(file, 0)))
        hook_live->tail = map_tail(file);
    int error = errno;
    if (file >= 0)
        close(file);
    struct thread *thread = hook_live->tail ? new_thread() : NULL;
    if (!thread) {
        hook_fail(hook_live->path, error);
        return false;
    }
    hook_live->device = found.st_dev;
    hook_live->inode = found.st_ino;
    atomic_store(&hook_live->tail->ticket, 1);
    atomic_store(&hook_live->tail->pid, (uint64_t)pid);
    atomic_store(&hook_live->tail->born, read_birth());
    use_chunk(thread, chunk);

    struct gpt_buffer buffer = {chunk + CHUNK_HEAD, chunk + CHUNK_SIZE - CHUNK_TAIL, false};
    pack_header(&buffer, true);
    thread->used = (uint32_t)(buffer.at - chunk - CHUNK_HEAD);
    hook_set_used(chunk, thread->used);
    announce(first);
    last_pid = pid;
    strcpy(last_path, hook_live->path);

    thread->pid = (uint32_t)pid;
    hook_thread = thread;
    atomic_store(&hook_live->pid, (uint32_t)pid);
    atomic_store(&hook_live->state, ON);
    return true;
}

// The end

void hook_finish(unsigned status) {
    if (!hook_live || hook_in_vfork || atomic_load(&hook_live->state) != ON ||
        (uint32_t)getpid() != atomic_load(&hook_live->pid)) // a process in our memory, as posix_spawn makes
        return;
    int error = errno;
    hook_scan_libraries();
    struct thread *thread = hook_this_thread();
    if (thread)
        hook_keep_queries(thread);
    if (thread && use_chunk(thread, take_chunk(ENDED))) {
        if (hook_has_tsc)
            HOOK_WRITE(clock, .monotonic = hook_monotonic(), .tsc = hook_now());
        HOOK_WRITE(end, .records = atomic_load(&hook_live->tail->records), .status = status);
    }
    atomic_store(&hook_live->state, OFF);
    atomic_store(&hook_live->pid, 0);
    errno = error;
}

// In the child of fork. Its calls in flight are the parent's to finish.
static void forget(void) {
    madvise(hook_live, sizeof(*hook_live), MADV_DONTNEED);
    hook_thread = NULL;
}

bool hook_is_forked(void) { return getpid() != first_pid; }

void hook_trace_setup(void) {
    first_pid = getpid();
    template = getenv("GPT_HOOK_OUTPUT");
    live_stream = getenv("GPT_HOOK_FOLDER") != NULL;
    struct live *live =
        mmap(NULL, sizeof(*live), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (live == MAP_FAILED)
        return;
    madvise(live, sizeof(*live), MADV_WIPEONFORK); // meets every way to fork; the handler those of libc
    pthread_atfork(NULL, NULL, forget);
    pthread_key_create(&exit_key, leave_thread);
    hook_exits_setup();
    hook_live = live;
    if (template && *template)
        end_predecessor();
}
