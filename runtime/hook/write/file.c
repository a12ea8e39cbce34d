// The trace on disk: a file of chunks, each of which is a separate msgpack record, mapped into memory.
//
// `used`, an aligned word in a chunk, is stored with release order after the record that it covers, so a
// reader finds only whole records, even after SIGKILL. Chunks are allocated by an atomic word, the ticket, in
// the unused tail of the file's first chunk. Before a chunk is mapped, its blocks are allocated, so a full
// disk is an error here and not a SIGBUS later.
//
// The file stays open, because it may be impossible to reopen later. The program may close descriptors that
// it didn't open, and get the same number for its own file. So before each use we check that the descriptor
// is still ours.

#include <dlfcn.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "chunk.h"
#include "folder.h"
#include "write.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

// Descriptors that stay open across a fork.
static struct open_file {
    _Atomic int number; // its descriptor, unless the program has replaced it
    dev_t device;
    ino_t inode;
} opened, helper; // the trace; the reader's lock

// The descriptor to use in a thread with a separate descriptor table; 0 if the thread shares the table of the
// process.
static TLS int own_number;

int hook_open_file(const char *path) {
    int file;
    do
        file = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW | O_NONBLOCK);
    while (file < 0 && errno == EINTR);
    return file;
}

static bool is_same_file(const struct open_file *open_file, int file, const struct stat *found) {
    return file >= 0 && found->st_dev == open_file->device && found->st_ino == open_file->inode;
}

static bool is_ours(int file, const struct stat *found) { return is_same_file(&opened, file, found); }

// Move a descriptor to a number above the program's own files.
static int move_up(int file) {
    struct rlimit limit;
    bool small = getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur <= 1024;
    int high = fcntl(file, F_DUPFD_CLOEXEC, small ? (int)(limit.rlim_cur / 4 * 3) : 1000);
    if (high < 0)
        return file;
    close(file);
    return high;
}

static void set_file(struct open_file *open_file, int file, const struct stat *found) {
    open_file->device = found->st_dev;
    open_file->inode = found->st_ino;
    atomic_store(&open_file->number, move_up(file));
}

void hook_keep_file(int file, const struct stat *found) {
    struct stat lock;
    char path[PATH_MAX + 16];
    set_file(&opened, file, found);
    if (!hook_folder)
        return;
    snprintf(path, sizeof(path), "%s/%s", hook_folder, FOLDER_LOCK);
    if ((file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)) < 0)
        return; // we can't open it, so we don't know whether the helper lives
    if (!fstat(file, &lock))
        set_file(&helper, file, &lock);
    else
        close(file);
}

// Return whether the helper of a live stream was killed. (A helper that ends normally removes the folder
// first.)
static bool is_left(void) {
    struct stat found;
    int file = atomic_load(&helper.number);
    return helper.inode && !fstat(file, &found) && is_same_file(&helper, file, &found) &&
           folder_is_left(file);
}

// Not inlined, because a process that ends on a small stack has no room for a path buffer.
static __attribute__((noinline)) void give_up_stream(void) {
    char path[PATH_MAX + 16];
    snprintf(path, sizeof(path), "%s/%s", hook_folder, FOLDER_LOCK);
    if (!unlink(path)) // only the first thread of the run succeeds
        hook_say(hook_folder, "the helper that passes the stream on was killed", "nothing more is recorded");
    hook_turn_off(hook_folder, NULL);
    folder_remove(hook_folder);
}

bool hook_is_unread(void) {
    int before = errno;
    bool left = is_left();
    if (left)
        give_up_stream();
    errno = before;
    return left;
}

// Return the file's descriptor, reopening it if needed; -1 with errno set if that fails.
static int find_file(void) {
    struct stat found;
    int file = own_number ? own_number : atomic_load(&opened.number);
    if (fstat(file, &found) || !is_ours(file, &found)) {
        if (hook_may_have_filter()) { // as a daemon that has closed all files before it enters its sandbox
            hook_turn_off(hook_live->path,
                          "the program closed it, and a seccomp filter may forbid opening it again");
            errno = EPERM;
            return -1;
        }
        int again = hook_open_file(hook_live->path);
        if (again < 0)
            return -1;
        if (fstat(again, &found) || !is_ours(again, &found)) {
            close(again);
            errno = ESTALE; // another file has that name now
            return -1;
        }
        again = move_up(again);
        if (own_number)
            file = own_number = again;
        else if (atomic_compare_exchange_strong(&opened.number, &file, again))
            file = again;
        else
            close(again); // another thread was here
    }
    if (found.st_nlink)
        return file;
    errno = ESTALE;
    return -1;
}

int hook_keep_apart(void) { return own_number = find_file(); }

static void close_unless_replaced(struct open_file *open_file) {
    struct stat found;
    int file = atomic_load(&open_file->number);
    if (open_file->inode && !fstat(file, &found) && is_same_file(open_file, file, &found))
        close(file);
    open_file->inode = 0;
}

void hook_close_file(void) {
    close_unless_replaced(&opened);
    close_unless_replaced(&helper);
}

// Chunks

uint32_t hook_chunk_size(unsigned step) { return step < 4 ? CHUNK_PAGE << (2 * step) : CHUNK_MAX; }

uint32_t hook_chunk_for(size_t bytes) {
    unsigned step = 0;
    while (hook_chunk_size(step) < CHUNK_MAX && hook_chunk_size(step) - CHUNK_HEAD - CHUNK_TAIL < bytes)
        step++;
    return hook_chunk_size(step);
}

uint32_t hook_chunk_after(uint32_t size) {
    unsigned step = 0;
    while (hook_chunk_size(step) <= size && hook_chunk_size(step) < CHUNK_MAX)
        step++;
    return hook_chunk_size(step);
}

bool hook_may_grow(uint64_t size) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) || size <= limit.rlim_cur)
        return true;
    errno = EFBIG;
    return false;
}

// Allocate the blocks of a chunk on disk and its pages in memory. A chunk that is written with a single call
// gets large pages, which take a quarter of the time to map (ext4). On file systems without fallocate, it's
// the write that allocates the blocks.
static bool allocate(int file, uint64_t at, uint32_t size) {
    if (!hook_may_grow(at + size))
        return false;
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
                            : pwritev(file, parts, 2, (off_t)at); // all or nothing
        if (more < 0 && errno != EINTR)
            return false;
        if (more > 0)
            done += (uint32_t)more;
    }
    return true;
}

struct mapped hook_make_chunk(int file, uint64_t at, uint32_t size) {
    if (!hook_may_write(size, true)) {
        errno = EDQUOT;
        return (struct mapped){0};
    }
    unsigned char *start = allocate(file, at, size) ? hook_map(file, size, (off_t)at) : NULL;
    if (!start)
        return (struct mapped){0};
    madvise(start, size, MADV_POPULATE_WRITE); // in one go; older kernels map page by page instead
    atomic_store_explicit((_Atomic uint32_t *)(start + CHUNK_LENGTH), htobe32(size - CHUNK_HEAD),
                          memory_order_release);
    return (struct mapped){start, size};
}

// If the disk is full, recording ends, and a message says so. A smaller chunk might still fit, but would only
// postpone that by a few calls.
struct mapped hook_new_chunk(uint32_t size, uint64_t flag) {
    HOOK_HOLD_SIGNALS;
    struct mapped chunk = {0};
    if (hook_is_unread())
        return chunk;
    uint64_t at = atomic_load(&hook_live->tail->ticket);
    do {
        if (at & ENDED)
            return chunk;
        if (!at) { // a chunk that was being added made the file long again, so no signal came (file.c)
            hook_turn_off(hook_live->path, "was truncated");
            return chunk;
        }
    } while (!atomic_compare_exchange_weak(&hook_live->tail->ticket, &at, (at + size) | flag));

    int before = errno, file = find_file();
    if (file >= 0)
        chunk = hook_make_chunk(file, at, size);
    if (!chunk.start)
        hook_fail(hook_live->path, errno);
    errno = before;
    return chunk;
}

struct tail *hook_map_tail(int file, uint32_t size) {
    unsigned char *page = hook_map(file, CHUNK_PAGE, (off_t)size - CHUNK_PAGE);
    return page ? (void *)(page + CHUNK_PAGE - CHUNK_TAIL) : NULL;
}

// -- Truncated files -------------------------------------------------------
//
// Mappings of trace files, and what happens when somebody truncates one: the next store to it would kill the
// program with SIGBUS. A handler maps memory there instead, and turns the hook off. That costs nothing per
// call, and unlike a copy in memory it loses nothing when the process is killed. The handler is installed
// with the first mapping. The program can't see it: sigaction and signal show and set the disposition that
// the program would have without us, and a signal that isn't about one of our mappings is handled
// accordingly.

static struct sigaction dispositions[2]; // the program's
static _Atomic unsigned current;
_Atomic bool hook_bus_installed;
int (*hook_real_sigaction)(int, const struct sigaction *, struct sigaction *);

// Mappings

unsigned char *hook_map(int file, size_t size, off_t at) {
    unsigned char *start = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, at);
    if (start == MAP_FAILED)
        return NULL;
    for (unsigned i = 0; i < MAX_MAPPINGS; i++) {
        unsigned char *none = NULL;
        if (!atomic_load_explicit(&hook_live->mappings[i].start, memory_order_relaxed) &&
            atomic_compare_exchange_strong(&hook_live->mappings[i].start, &none, start)) {
            atomic_store(&hook_live->mappings[i].size, size);
            break;
        }
    }
    return start;
}

void hook_unmap(unsigned char *start, size_t size) {
    for (unsigned i = 0; i < MAX_MAPPINGS; i++)
        if (atomic_load_explicit(&hook_live->mappings[i].start, memory_order_relaxed) == start) {
            atomic_store(&hook_live->mappings[i].size, 0);
            atomic_store(&hook_live->mappings[i].start, NULL);
            break;
        }
    munmap(start, size);
}

static bool replace_mapping(const void *address) {
    for (unsigned i = 0; i < MAX_MAPPINGS; i++) {
        unsigned char *start = atomic_load(&hook_live->mappings[i].start);
        size_t size = atomic_load(&hook_live->mappings[i].size);
        if (start && (uintptr_t)address - (uintptr_t)start < size)
            return mmap(start, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                        0) != MAP_FAILED;
    }
    return false;
}

// The signal

static void handle(int signal, siginfo_t *info, void *context) {
    int error = errno;
    if (info->si_code > 0 && replace_mapping(info->si_addr)) {
        hook_turn_off(hook_live->path, "was truncated");
        errno = error;
        return;
    }
    unsigned now = atomic_load(&current);
    struct sigaction theirs = dispositions[now];
    if (theirs.sa_handler == SIG_IGN && info->si_code <= 0)
        return;
    if (theirs.sa_handler == SIG_DFL || theirs.sa_handler == SIG_IGN) {
        hook_real_sigaction(SIGBUS, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
        if (info->si_code <= 0) // otherwise the fault comes again
            syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), SIGBUS, info);
        return;
    }
    if (theirs.sa_flags & (int)SA_RESETHAND)
        dispositions[now].sa_handler = SIG_DFL;
    errno = error;
    theirs.sa_sigaction(signal, info, context);
}

static bool install(const struct sigaction *theirs, struct sigaction *before) {
    struct sigaction ours = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    if (theirs && theirs->sa_handler != SIG_DFL && theirs->sa_handler != SIG_IGN) {
        ours.sa_mask = theirs->sa_mask;
        ours.sa_flags = SA_SIGINFO | (theirs->sa_flags & (SA_ONSTACK | SA_RESTART | SA_NODEFER));
    }
    return !hook_real_sigaction(SIGBUS, &ours, before);
}

// Called by the thread that begins a trace.
void hook_bus_setup(void) {
    struct sigaction theirs;
    if (atomic_load(&hook_bus_installed) || hook_real_sigaction(SIGBUS, NULL, &theirs))
        return;
    dispositions[0] = theirs;
    atomic_store(&hook_bus_installed, install(&theirs, NULL));
}

int hook_bus_exchange(const struct sigaction *action, struct sigaction *before) {
    unsigned now = atomic_load(&current);
    struct sigaction old = dispositions[now];
    if (action) {
        struct sigaction theirs = *action;
        dispositions[!now] = theirs;
        atomic_store(&current, !now);
        if (!install(&theirs, NULL))
            return -1;
    }
    if (before)
        *before = old;
    return 0;
}
