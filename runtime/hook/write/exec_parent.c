// Traces of other processes, and of the programs that this process ran before an exec. Processes that share a
// NAME announce themselves to each other: each writes its identity to the tail of its file's first chunk, and
// others append records in their own chunks.

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "chunk.h"
#include "write.h"

uint64_t hook_run;

// Return the start time of this process, in clock ticks since boot.
static uint64_t read_birth(void) {
    char text[1024] = "";
    int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t size = read(file, text, sizeof(text) - 1);
        text[size > 0 ? size : 0] = '\0';
        close(file);
    }
    const char *at = strrchr(text, ')'); // the name before it may contain anything
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at, NULL, 10) : 0;
}

void hook_sign(struct tail *tail, uint32_t size) {
    atomic_store(&tail->pid, (uint64_t)getpid());
    atomic_store(&tail->born, read_birth());
    atomic_store(&tail->run, hook_run);
    atomic_store(&tail->ticket, size);
}

// A trace that another process writes, or that this process wrote before exec.
struct other {
    int file;
    struct tail *tail;
};

static void close_other(struct other *other) {
    hook_unmap((unsigned char *)other->tail + CHUNK_TAIL - CHUNK_PAGE, CHUNK_PAGE);
    close(other->file);
}

static bool open_other(struct other *other, const char *path) {
    *other = (struct other){hook_open_file(path), NULL};
    struct stat found;
    _Alignas(8) unsigned char head[CHUNK_HEAD];
    if (other->file >= 0 && !fstat(other->file, &found) && S_ISREG(found.st_mode) &&
        pread(other->file, head, CHUNK_HEAD, 0) == CHUNK_HEAD) {
        uint32_t size = chunk_size(head);
        if (size && found.st_size >= size)
            other->tail = hook_map_tail(other->file, size);
    }
    if (other->tail && atomic_load(&other->tail->ticket))
        return true;
    if (other->tail)
        close_other(other);
    else if (other->file >= 0)
        close(other->file);
    return false;
}

// Return whether the file is a trace that processes of this run write, or an old one of a process that had
// our pid. The process that created it may still be filling in its tail. Sets `denied` if this process may
// not open it.
bool hook_may_stay(const char *path, bool *denied) {
    struct other other;
    int tries = 0, before = errno;
    errno = 0;
    while (!open_other(&other, path) && !(*denied = errno == EACCES) && tries++ < 200)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    errno = before;
    if (*denied || tries > 200)
        return false;
    bool ours =
        atomic_load(&other.tail->run) == hook_run || atomic_load(&other.tail->pid) == (uint64_t)getpid();
    close_other(&other);
    return ours;
}

static bool was_ours(const struct other *other) {
    return atomic_load(&other->tail->pid) == (uint64_t)getpid() &&
           atomic_load(&other->tail->born) == read_birth();
}

// Append a chunk with records to another trace. They describe this process and, if `end` is set, say that
// nothing more follows. If the other trace has already ended, they form a segment of their own.
static void write_other(struct other *other, const struct gpt_child *child, bool end) {
    hook_bus_setup();
    uint32_t size = hook_chunk_for(1024 + (child ? child->path.size : 0));
    uint64_t at = atomic_fetch_add(&other->tail->ticket, size);
    bool ended = at & ENDED;
    at &= ~ENDED;
    struct mapped chunk = hook_make_chunk(other->file, at, size);
    if (!chunk.start)
        return;
    struct gpt_packer buffer = mapped_room(chunk, 0);
    if (ended)
        hook_pack_header(&buffer, false);
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

// Return the path of a trace as it is recorded in another one, relative to the folder of the latter.
static struct gpt_str relative(const char *path, const char *to) {
    const char *slash = strrchr(to, '/');
    size_t folder = slash ? (size_t)(slash + 1 - to) : 0;
    return hook_str(strncmp(path, to, folder) ? path : path + folder);
}

void hook_name_to(const char *to, const char *how) {
    struct other other;
    if (!*to || !strcmp(to, hook_live->path) || !open_other(&other, to))
        return;
    struct gpt_child child = {(uint64_t)getpid(), hook_str(was_ours(&other) ? "exec" : how),
                              relative(hook_live->path, to)};
    if (atomic_load(&other.tail->run) == hook_run)
        write_other(&other, &child, false);
    close_other(&other);
}

bool hook_end_earlier(const char *path) {
    struct other other;
    if (!open_other(&other, path))
        return false;
    bool ours = was_ours(&other);
    if (ours && !(atomic_load(&other.tail->ticket) & ENDED))
        write_other(&other, NULL, true);
    close_other(&other);
    return ours;
}
