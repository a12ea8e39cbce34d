// --max-disk: a limit on the total number of bytes that the processes of a run write to traces and files of
// buffers.
//
// The processes add up their bytes in a small file that all of them map, and that the root process removes
// when it ends. A process that starts later counts from zero in a new file, which nobody removes. If the
// file can't be created, each process counts only its own bytes.
//
// When only an eighth of the limit is left, recording is turned off as gpt-hook ctl would do it. The last
// eighth is kept for records that must not be missing: loads, look-ups, and the ends of traces. Once that
// is used up as well, traces end as they do on a full disk.

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "chunk.h"
#include "common/broker.h"
#include "common/own.h"
#include "common/private.h"
#include "say.h"
#include "write.h"

enum { SHARE = 8, MOST_REST = 16 << 20, TRIES_TO_OPEN = 200 }; // the rest in bytes; ms
enum { SMALL = 16 << 10 };                                     // bytes of a chunk within the rest

struct written {
    _Atomic uint64_t bytes;
    _Atomic uint32_t stopped;      // processes that reached the limit
    _Atomic uint32_t announced[2]; // somebody has announced that the limit is reached, and that it's used up
};

static uint64_t most;    // the limit; 0 for none
static uint64_t enough;  // the number of bytes at which recording is turned off
static const char *path; // the file's path
static pid_t root;
static struct written *_Atomic written;
_Atomic bool hook_limit_is_reached;
static _Atomic bool unwritten; // the trace doesn't say yet that the limit was reached
static void (*stop)(void);

void hook_limit_setup(void (*stop_recording)(void)) {
    const char *value = getenv("GPT_HOOK_MAX_DISK"), *text = value ? strdup(value) : NULL;
    int at = 0;
    unsigned long long bytes;
    if (!text || sscanf(text, "%llu %d %n", &bytes, &root, &at) != 2 || text[at] != '/')
        return;
    path = text + at;
    stop = stop_recording;
    most = bytes;
    enough = most - (most / SHARE < MOST_REST ? most / SHARE : MOST_REST);
}

static struct written *map_file(int file, bool made) {
    static const char zeros[CHUNK_PAGE];
    struct stat found = {0};
    void *mapped = MAP_FAILED;
    if (made && gpt_write_quietly(file, zeros, sizeof(zeros)) != (ssize_t)sizeof(zeros))
        unlink(path);
    // another process may be about to write it
    for (int i = 0; i < TRIES_TO_OPEN && !fstat(file, &found) && found.st_size < CHUNK_PAGE && !made; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (found.st_size == CHUNK_PAGE && gpt_is_private(file, S_IFREG))
        mapped = mmap(NULL, CHUNK_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return mapped == MAP_FAILED ? NULL : mapped;
}

static int open_file(void) { return open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); }

static struct written *find_written(void) {
    struct written *found = atomic_load(&written), *none = NULL;
    if (found)
        return found;
    int file = gpt_create(AT_FDCWD, path, O_RDWR, 0600);
    bool made = file >= 0;
    if (!made && errno == EEXIST)
        file = open_file();
    if (file >= 0)
        found = map_file(file, made);
    if (!found) {
        found = mmap(NULL, CHUNK_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (found == MAP_FAILED)
            return NULL;
        gpt_write_line(
            "gpt-hook: warning: --max-disk: TMPDIR takes no file to count in, so it holds for each "
            "process alone");
    }
    // if two threads map the file at once, one of the mappings is left unused
    return atomic_compare_exchange_strong(&written, &none, found) ? found : none;
}

static void reach(struct written *all) {
    static _Atomic pid_t stopped; // the process counted last: this one or an ancestor
    pid_t own = getpid();
    if (atomic_load(&stopped) != own && atomic_exchange(&stopped, own) != own)
        atomic_fetch_add(&all->stopped, 1);
    if (atomic_exchange(&hook_limit_is_reached, true))
        return;
    stop();
    atomic_store(&unwritten, true);
    if (!atomic_exchange(&all->announced[0], 1))
        gpt_write_line(
            "gpt-hook: warning: --max-disk is reached: from now on, calls and buffers of this run aren't "
            "recorded");
}

bool hook_may_write(uint64_t size, bool needed) {
    struct written *all = most ? find_written() : NULL;
    if (!all)
        return true;
    uint64_t now = atomic_fetch_add(&all->bytes, size) + size;
    if (now > enough)
        reach(all);
    if (now <= (needed ? most : enough))
        return true;
    atomic_fetch_sub(&all->bytes, size);
    return false;
}

uint32_t hook_limit_chunk(uint32_t size) {
    struct written *all = most ? find_written() : NULL;
    if (!all || atomic_load(&all->bytes) + size <= enough)
        return size;
    reach(all);
    return size < SMALL ? size : SMALL;
}

bool hook_tell_limit(struct gpt_packer *buffer, uint64_t now) {
    struct gpt_packer records = *buffer;
    const struct gpt_recording off = {.on = false, .at = now};
    const struct gpt_dropped dropped = {
        .count = 1,
        .what = GPT_STR("process"),
        .reason = GPT_STR("--max-disk was reached; what it did after that isn't recorded")};
    if (!atomic_exchange(&unwritten, false))
        return false;
    if (!gpt_pack_recording(&records, &off) || !gpt_pack_dropped(&records, &dropped)) {
        atomic_store(&unwritten, true); // in the next chunk
        return false;
    }
    *buffer = records;
    return true;
}

const char *hook_limit_fault(void) {
    struct written *all = atomic_load(&written);
    return all && atomic_exchange(&all->announced[1], 1) ? NULL : "--max-disk is used up";
}

uint64_t hook_limit_stopped(void) {
    struct written *all = atomic_load(&written);
    int file = most && !all ? open_file() : -1;
    if (file >= 0)
        all = map_file(file, false);
    return all ? atomic_load(&all->stopped) : 0;
}

void hook_limit_end(void) {
    if (most && root == getpid())
        unlink(path);
}
