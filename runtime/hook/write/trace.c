// The trace on disk: a file of chunks, each a msgpack record of its own and mapped into memory.
//
// A chunk has one writing thread. `used`, an aligned word in it, is stored with release order after the
// record that it covers, so whoever reads the file, also after SIGKILL, finds whole records only. Chunks are
// as large as a thread has shown to need: its first has 4 KiB, the next four times as much. They are given
// out by an atomic word, the ticket, that lies in the unused tail of the file's first chunk: processes that
// share a NAME use it to tell of each other. Before a chunk is mapped its blocks are allocated, so that a
// full disk is an error here and no SIGBUS later. A thread that has used half of a larger chunk makes the
// next one before a call that waits for the GPU, so that no launch has to.
//
// The file stays open, for later it may not be possible to open it again. The program may close what it did
// not open, and get the number for a file of its own: so before each use it is seen whose number it is.
//
// The calls of a thread go into batches, `calls` records that are whole from the start, of rows that are zero
// until they are used.

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "bus.h"
#include "calm.h"
#include "chunk.h"
#include "clock.h"
#include "compiler.h"
#include "errors.h"
#include "file.h"
#include "layout.h"
#include "live.h"
#include "record.h"
#include "rows.h"
#include "say.h"
#include "template.h"
#include "thread.h"
#include "trace.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { FRESH, STARTING, ON, OFF };

struct live *hook_live;
TLS struct thread *hook_thread;
TLS bool hook_in_vfork;
TLS bool hook_writing;
static TLS bool busy; // this thread is in code that must not call itself

static const char *template; // of the file's name
static bool live_stream;     // the file lies in the folder of a helper that follows it
static char last_path[4096]; // of the trace that this process, or the one that forked it, began
static pid_t last_pid;       // that began a trace; survives fork
static pthread_key_t exit_key;

static void (*survey)(void); // writes what else belongs to the beginning and the end

static uint64_t run; // of gpt-hook: which processes share files; 0 without it

// The file, which outlives a fork.
static struct {
    _Atomic int number; // its descriptor, if it is that still
    dev_t device;
    ino_t inode;
} opened;

// Errors

#pragma weak strerrordesc_np // glibc 2.32

const char *hook_describe_error(int error) {
    const char *text = strerrordesc_np ? strerrordesc_np(error) : strerror(error);
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
    const char *fact = hook_describe_error(error);
    bool unread = live_stream && (error == ENOENT || error == ESTALE); // nobody reads it any more
    hook_turn_off(where, unread ? NULL : fact);
}

// The file

static int open_trace(const char *path, int flags) {
    int file;
    do
        file = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | flags, 0600);
    while (file < 0 && errno == EINTR);
    return file;
}

static bool is_ours(int file, const struct stat *found) {
    return file >= 0 && found->st_dev == opened.device && found->st_ino == opened.inode;
}

// Keeps a descriptor, under a number that the program's own files do not reach.
static int keep_open(int file) {
    struct rlimit limit;
    bool small = getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur <= 1024;
    int high = fcntl(file, F_DUPFD_CLOEXEC, small ? (int)(limit.rlim_cur / 4 * 3) : 1000);
    if (high < 0)
        return file;
    close(file);
    return high;
}

// The descriptor of the file; -1 with errno set if there is none any more.
static int find_file(void) {
    struct stat found;
    int file = atomic_load(&opened.number);
    if (fstat(file, &found) || !is_ours(file, &found)) {
        int again = open_trace(hook_live->path, 0);
        if (again < 0)
            return -1;
        if (fstat(again, &found) || !is_ours(again, &found)) {
            close(again);
            errno = ESTALE; // somebody put another file there
            return -1;
        }
        again = keep_open(again);
        if (atomic_compare_exchange_strong(&opened.number, &file, again))
            file = again;
        else
            close(again); // another thread was here
    }
    if (found.st_nlink)
        return file;
    errno = ESTALE;
    return -1;
}

static void close_file(void) {
    struct stat found;
    int file = atomic_load(&opened.number);
    if (opened.inode && !fstat(file, &found) && is_ours(file, &found))
        close(file);
    opened.inode = 0;
}

// Chunks

uint32_t hook_chunk_size(unsigned step) { return step < 4 ? CHUNK_PAGE << (2 * step) : CHUNK_MAX; }

// The smallest chunk with room for so many bytes of records, or the largest.
static uint32_t size_for(size_t bytes) {
    unsigned step = 0;
    while (hook_chunk_size(step) < CHUNK_MAX && hook_chunk_size(step) - CHUNK_HEAD - CHUNK_TAIL < bytes)
        step++;
    return hook_chunk_size(step);
}

static uint32_t next_size(uint32_t size) {
    unsigned step = 0;
    while (hook_chunk_size(step) <= size && hook_chunk_size(step) < CHUNK_MAX)
        step++;
    return hook_chunk_size(step);
}

static struct tail *tail_of(struct mapped chunk) { return (void *)(chunk.start + chunk.size - CHUNK_TAIL); }

static struct gpt_buffer room_in(struct mapped chunk, uint32_t used) {
    return (struct gpt_buffer){chunk.start + CHUNK_HEAD + used, chunk.start + chunk.size - CHUNK_TAIL, false};
}

// Gives a chunk blocks on disk, and pages in memory: written to in one go it gets large ones, which are
// mapped in a quarter of the time (ext4). File systems that cannot allocate do it by being written to.
static bool allocate(int file, uint64_t at, uint32_t size) {
    struct rlimit limit;
    if (!getrlimit(RLIMIT_FSIZE, &limit) && at + size > limit.rlim_cur) {
        errno = EFBIG; // trying brings a signal
        return false;
    }
    int status;
    do
        status = fallocate(file, 0, (off_t)at, size);
    while (status && errno == EINTR);
    if (status && errno != EOPNOTSUPP && errno != ENOSYS)
        return false;
    static char zeros[CHUNK_MAX]; // never written: one page
    struct iovec parts[] = {{(char *)CHUNK_START, CHUNK_LENGTH}, {zeros, size - CHUNK_LENGTH}};
    for (uint32_t done = 0; done < size;) {
        ssize_t more = done ? pwrite(file, zeros, size - done, (off_t)(at + done))
                            : pwritev(file, parts, 2, (off_t)at); // whole, or not at all
        if (more < 0 && errno != EINTR)
            return false;
        if (more > 0)
            done += (uint32_t)more;
    }
    return true;
}

static struct mapped map_chunk(int file, uint64_t at, uint32_t size) {
    unsigned char *start = hook_map(file, size, (off_t)at);
    if (!start)
        return (struct mapped){0};
    madvise(start, size, MADV_POPULATE_WRITE); // in one go; where the kernel does not know it, page by page
    atomic_store_explicit((_Atomic uint32_t *)(start + CHUNK_LENGTH), htobe32(size - CHUNK_HEAD),
                          memory_order_release);
    return (struct mapped){start, size};
}

void hook_set_used(unsigned char *chunk, uint32_t used) {
    atomic_store_explicit((_Atomic uint32_t *)(chunk + CHUNK_USED), htobe32(used), memory_order_release);
}

// Takes a chunk at the end of the file. `flag` is ENDED for the last one.
static struct mapped take_chunk(uint32_t size, uint64_t flag) {
    HOOK_CALM;
    struct mapped chunk = {0};
    uint64_t at = atomic_load(&hook_live->tail->ticket);
    do {
        if (at & ENDED)
            return chunk;
        if (!at) { // a chunk that was being added made the file long again, so no signal came (bus.c)
            hook_turn_off(hook_live->path, "was truncated");
            return chunk;
        }
    } while (!atomic_compare_exchange_weak(&hook_live->tail->ticket, &at, (at + size) | flag));

    int before = errno, file = find_file();
    if (file >= 0 && allocate(file, at, size))
        chunk = map_chunk(file, at, size);
    if (!chunk.start)
        hook_fail(hook_live->path, errno);
    errno = before;
    return chunk;
}

struct mapped hook_new_chunk(uint32_t size) { return take_chunk(size, 0); }

// The next chunk of a thread, of so many bytes at least.
static struct mapped next_chunk(struct thread *thread, uint32_t size) {
    struct mapped spare = thread->spare;
    if (spare.size < size)
        return take_chunk(size, 0);
    thread->spare = (struct mapped){0};
    return spare;
}

static void retire(struct thread *thread, struct mapped *chunk) {
    if (chunk->start) {
        if ((uintptr_t)thread->in_flight - (uintptr_t)chunk->start < chunk->size)
            thread->in_flight = NULL;
        atomic_store_explicit(&tail_of(*chunk)->closed, 1, memory_order_release);
        hook_unmap(chunk->start, chunk->size);
    }
    *chunk = (struct mapped){0};
}

// Smaller chunks are made as fast as they are looked for, and most threads end with them. Of earlier ones the
// last stays mapped, or all that are smaller than the largest; to give them back takes time, too.
void hook_make_spare(struct thread *thread) {
    size_t size = thread->chunk.size;
    if (size < 64 << 10 || thread->used < size / 2 || thread->spare.start)
        return;
    HOOK_CALM; // a handler that launches may take it
    thread->spare = take_chunk(next_size((uint32_t)size), 0);
    for (int i = 1; i < EARLIER && thread->earlier[0].size == CHUNK_MAX; i++)
        retire(thread, &thread->earlier[i]);
}

static bool use_chunk(struct thread *thread, struct mapped chunk) {
    if (!chunk.start)
        return false;
    retire(thread, &thread->earlier[EARLIER - 1]);
    thread->in_flight = hook_call_in_flight(thread);
    memmove(&thread->earlier[1], &thread->earlier[0], (EARLIER - 1) * sizeof(struct mapped));
    thread->earlier[0] = thread->chunk;
    thread->chunk = chunk;
    thread->used = 0;
    for (int i = 0; i < LAYOUTS; i++)
        thread->batches[i].end = thread->batches[i].next = NULL;
    return true;
}

// Records

bool hook_open(struct gpt_buffer *buffer, int try) {
    struct thread *thread = hook_this_thread();
    if (!thread)
        return false;
    if (try) {
        uint32_t size = try > 1 ? CHUNK_MAX : next_size((uint32_t)thread->chunk.size);
        if (try > 1 && thread->chunk.size == CHUNK_MAX) // the record is larger than that
            return false;
        if (!use_chunk(thread, next_chunk(thread, size)))
            return false;
        *buffer = room_in(thread->chunk, 0);
        if (hook_has_tsc && gpt_pack_clock(buffer, &(struct gpt_clock){hook_monotonic(), hook_now()}))
            hook_close(buffer);
    }
    *buffer = room_in(thread->chunk, thread->used);
    return true;
}

bool hook_close(struct gpt_buffer *buffer) {
    struct thread *thread = hook_thread;
    if (UNLIKELY(!thread)) // a child that was forked by a signal handler in between
        return false;
    thread->used = (uint32_t)(buffer->at - thread->chunk.start - CHUNK_HEAD);
    hook_set_used(thread->chunk.start, thread->used);
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
    thread->in_flight = NULL;
    if (thread->pid != atomic_load(&hook_live->pid))
        return;
    if (atomic_exchange(&hook_live->pool_lock, 1))
        return;
    thread->next = hook_live->pool;
    hook_live->pool = thread;
    atomic_store(&hook_live->pool_lock, 0);
}

static struct thread *new_thread(void) {
    struct thread *thread = NULL;
    if (!atomic_exchange(&hook_live->pool_lock, 1)) { // it is never waited for
        thread = hook_live->pool;
        if (thread)
            hook_live->pool = thread->next;
        atomic_store(&hook_live->pool_lock, 0);
    }
    if (!thread) {
        thread = mmap(NULL, sizeof(*thread), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
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
        if (thread->chunk.start || use_chunk(thread, take_chunk(hook_chunk_size(0), 0)))
            hook_thread = thread;
        else
            thread = NULL;
    }
    busy = false;
    if (started)
        survey();
    errno = error;
    return thread;
}

// The beginning

static size_t expand(char *path, size_t size) { return gpt_expand_name(template, path, size); }

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

static struct tail *map_tail(int file, uint32_t size) {
    unsigned char *page = hook_map(file, CHUNK_PAGE, (off_t)size - CHUNK_PAGE);
    return page ? (void *)(page + CHUNK_PAGE - CHUNK_TAIL) : NULL;
}

// The trace of another process, or of this one before exec.
struct other {
    int file;
    struct tail *tail;
};

static void close_other(struct other *other) {
    hook_unmap((unsigned char *)other->tail + CHUNK_TAIL - CHUNK_PAGE, CHUNK_PAGE);
    close(other->file);
}

static bool open_other(struct other *other, const char *path) {
    *other = (struct other){open_trace(path, O_NONBLOCK), NULL};
    struct stat found;
    _Alignas(8) unsigned char head[CHUNK_HEAD];
    if (other->file >= 0 && !fstat(other->file, &found) && S_ISREG(found.st_mode) &&
        pread(other->file, head, CHUNK_HEAD, 0) == CHUNK_HEAD) {
        uint32_t size = chunk_size(head);
        if (size && found.st_size >= size)
            other->tail = map_tail(other->file, size);
    }
    if (other->tail && atomic_load(&other->tail->ticket))
        return true;
    if (other->tail)
        close_other(other);
    else if (other->file >= 0)
        close(other->file);
    return false;
}

// Whether the file is a trace that processes of this run write, or an old one of a process that had our pid.
// Who has created it may still be filling in its tail.
static bool may_stay(const char *path) {
    struct other other;
    int tries = 0;
    while (!open_other(&other, path) && tries++ < 200)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (tries > 200)
        return false;
    bool ours = atomic_load(&other.tail->run) == run || atomic_load(&other.tail->pid) == (uint64_t)getpid();
    close_other(&other);
    return ours;
}

// The names of this process where NAME is taken: NAME.PID, NAME.PID.2, ... from number 1 on, one for each
// program that it was.
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

// How many of them are taken, without a look at each.
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

// Creates the file: NAME, or if this process is not the first there, one of its own names.
static int create(bool *first) {
    char *path = hook_live->path;
    size_t size = sizeof(hook_live->path) - 32, length = expand(path, size);
    int file = open_trace(path, O_CREAT | O_EXCL);
    *first = file >= 0;
    if (file < 0 && errno == EEXIST && !may_stay(path)) {
        hook_turn_off(path, "another run of gpt-hook writes to it, or it is not a trace");
        return -1;
    }
    if (file < 0 && errno == EEXIST) // another process may be taking them too
        for (unsigned number = count_names(path, length) + 1, tries = 0;
             file < 0 && (!tries || errno == EEXIST) && tries < 1000; number++, tries++) {
            name_number(path, length, number);
            file = open_trace(path, O_CREAT | O_EXCL);
        }
    return file;
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

static bool was_ours(const struct other *other) {
    return atomic_load(&other->tail->pid) == (uint64_t)getpid() &&
           atomic_load(&other->tail->born) == read_birth();
}

// Writes records to a chunk of their own in another trace, as a segment of their own where that has its end:
// who we are, and with `end` that nothing more comes.
static void write_other(struct other *other, const struct gpt_child *child, bool end) {
    hook_bus_setup();
    uint32_t size = size_for(1024 + (child ? child->path.size : 0));
    uint64_t at = atomic_fetch_add(&other->tail->ticket, size);
    bool ended = at & ENDED;
    at &= ~ENDED;
    struct mapped chunk = {0};
    if (allocate(other->file, at, size))
        chunk = map_chunk(other->file, at, size);
    if (!chunk.start)
        return;
    struct gpt_buffer buffer = room_in(chunk, 0);
    if (ended)
        pack_header(&buffer, false);
    if (child)
        gpt_pack_child(&buffer, child);
    uint64_t records = ended ? 0 : atomic_fetch_add(&other->tail->records, child != NULL);
    if (ended || end)
        gpt_pack_end(&buffer, &(struct gpt_end){.records = records + (child != NULL)});
    if (end)
        atomic_fetch_or(&other->tail->ticket, ENDED);
    hook_set_used(chunk.start, (uint32_t)(buffer.at - chunk.start - CHUNK_HEAD));
    hook_unmap(chunk.start, chunk.size);
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
    if (atomic_load(&other.tail->run) != run) {
        close_other(&other);
        return;
    }
    const char *how = was_ours(&other) ? "exec" : last_pid ? "fork" : "spawn";
    struct gpt_child child = {(uint64_t)getpid(), hook_str(how), relative(hook_live->path, to)};
    write_other(&other, &child, false);
    close_other(&other);
}

static bool end_if_ours(const char *path) {
    struct other other;
    if (!open_other(&other, path))
        return false;
    bool ours = was_ours(&other);
    if (ours && !(atomic_load(&other.tail->ticket) & ENDED))
        write_other(&other, NULL, true);
    close_other(&other);
    return ours;
}

// The folder of a live stream has the traces of processes that are there: the helper removes others, and
// their names come again.
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
                end_if_ours(path);
            }
        }
    if (folder >= 0)
        close(folder);
}

// A program that this process was before exec may have left its trace without end: the last one that it
// began.
static void end_predecessor(void) {
    char path[sizeof(hook_live->path)];
    size_t length = expand(path, sizeof(path) - 64);
    if (live_stream) {
        end_in_folder(path);
        return;
    }
    unsigned number = count_names(path, length);
    if (number)
        name_number(path, length, number);
    else
        path[length] = '\0';
    if (!end_if_ours(path) && number) { // that of an earlier process
        path[length] = '\0';
        end_if_ours(path);
    }
}

// Begins the trace of this process. The thread that does it writes the first chunk.
static bool start(void) {
    pid_t pid = getpid();
    if (!template || !*template) {
        atomic_store(&hook_live->state, OFF);
        return false;
    }
    static unsigned char header[96 << 10]; // its command line takes at most 64 KiB
    struct gpt_buffer buffer = {header, header + sizeof(header), false};
    size_t length = pack_header(&buffer, true);
    uint32_t size = size_for(length);
    hook_bus_setup();
    close_file(); // of who forked us
    bool first;
    int file = create(&first);
    if (file < 0 && atomic_load(&hook_live->state) == OFF)
        return false;
    struct stat found;
    struct mapped chunk = {0};
    if (file >= 0 && !fstat(file, &found) && allocate(file, 0, size) &&
        (chunk = map_chunk(file, 0, size)).start)
        hook_live->tail = map_tail(file, size);
    struct thread *thread = hook_live->tail ? new_thread() : NULL;
    if (!thread) {
        hook_fail(hook_live->path, errno);
        if (file >= 0)
            close(file);
        return false;
    }
    opened.device = found.st_dev;
    opened.inode = found.st_ino;
    atomic_store(&opened.number, keep_open(file));
    use_chunk(thread, chunk);
    thread->used = (uint32_t)length;
    memcpy(chunk.start + CHUNK_HEAD, header, length);
    hook_set_used(chunk.start, thread->used);
    struct tail *tail = hook_live->tail;
    atomic_store(&tail->pid, (uint64_t)pid);
    atomic_store(&tail->born, read_birth());
    atomic_store(&tail->run, run);
    atomic_store(&tail->ticket, size);

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
    survey();
    struct thread *thread = hook_this_thread();
    if (thread && use_chunk(thread, take_chunk(hook_chunk_size(0), ENDED))) {
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
    close_file();
    hook_thread = NULL;
}

int __register_atfork(void (*)(void), void (*)(void), void (*)(void),
                      void *) __attribute__((weak)); // behind pthread_atfork, in glibc

bool hook_trace_setup(void (*more)(void)) {
    template = getenv("GPT_HOOK_OUTPUT");
    live_stream = getenv("GPT_HOOK_FOLDER") != NULL;
    survey = more;
    const char *number = getenv("GPT_HOOK_RUN");
    run = number ? strtoull(number, NULL, 16) : 0;
    struct live *live = hook_process_memory(sizeof(*live));
    if (!live)
        return false;
    if (__register_atfork)
        __register_atfork(NULL, NULL, forget, NULL);
    pthread_key_create(&exit_key, leave_thread);
    hook_live = live;
    if (template && *template)
        end_predecessor();
    return true;
}
