// A pipeline that the supervisor keeps: see worker.h.

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "worker.h"

enum { BLOCK = 64 << 10, MOST_OUTPUT = 1 << 28 }; // bytes
enum { BEAT = 500 };                              // ms from a request to the mark after its own

static void close_file(int *file) {
    if (*file >= 0)
        close(*file);
    *file = -1;
}

bool worker_start(struct worker *worker, char **words) {
    int in[2] = {-1, -1}, out[2] = {-1, -1}, errors[2] = {-1, -1};
    *worker = (struct worker){.in = -1, .out = -1, .errors = -1};
    char **environment = gpt_make_environment();
    bool good = environment && !pipe2(in, O_CLOEXEC) && !pipe2(out, O_CLOEXEC) && !pipe2(errors, O_CLOEXEC) &&
                gpt_add_header(&worker->input);
    if (good)
        worker->pid = fork();
    if (good && !worker->pid)
        gpt_become(&(struct gpt_plan){words, environment, in[0], out[1], errors[1]});
    int error = errno;
    worker->begun = good && worker->pid > 0;
    worker->until = gpt_now() + GPT_LEISURE * 1000;
    worker->in = in[1], worker->out = out[0], worker->errors = errors[0];
    close_file(&in[0]), close_file(&out[1]), close_file(&errors[1]);
    free(environment);
    if (worker->begun) {
        fcntl(worker->in, F_SETFL, O_NONBLOCK);
        fcntl(worker->out, F_SETFL, O_NONBLOCK);
        fcntl(worker->errors, F_SETFL, O_NONBLOCK);
    } else {
        worker->pid = 0;
        worker_end(worker);
    }
    errno = error;
    return worker->begun;
}

// Return whether a request contains only keys that our own requests have. If it contained a path, a file
// would be opened on behalf of a client that may not be allowed to open it.
static bool are_keys_known(struct cursor cursor) {
    static const char *const known[] = {"kind", "id",   "type",      "offset", "size", "data",
                                        "only", "arch", "registers", "want",   "of"};
    for (uint64_t left = read_value(&cursor).number; left; left--) {
        struct value name = take_value(&cursor);
        size_t i = 0, count = sizeof(known) / sizeof(*known);
        while (i < count && !is(name, known[i]))
            i++;
        if (i == count)
            return false;
        take_value(&cursor);
    }
    return true;
}

// Return whether these bytes are exactly one request. If they contained more or less, later answers would go
// to the wrong clients.
static bool is_request(const char *data, size_t size) {
    struct cursor start = {(const unsigned char *)data, (const unsigned char *)data + size, false};
    struct cursor cursor = start;
    struct gpt_record record = gpt_read_record(&cursor);
    return !cursor.bad && cursor.at == cursor.end && is(record.kind, "module") && are_keys_known(start);
}

// Return whether a client that has this file open may read it. This matters because the stages open it again,
// with the permissions of the user.
static bool is_readable(int file) {
    struct stat status;
    int flags = fcntl(file, F_GETFL);
    return flags >= 0 && !(flags & O_PATH) && (flags & O_ACCMODE) != O_WRONLY && !fstat(file, &status) &&
           S_ISREG(status.st_mode);
}

bool worker_give(struct worker *worker, const int files[GPT_FILES]) {
    struct stat status;
    char path[64];
    bool good = is_readable(files[0]) && (files[1] < 0 || is_readable(files[1])) &&
                !fstat(files[0], &status) && status.st_size <= GPT_MOST;
    errno = 0; // from here on, errno set means out of memory, or an unreadable file
    if (!good)
        return false;
    size_t before = worker->input.size, size = (size_t)status.st_size;
    char *to = gpt_make_room(&worker->input, size);
    if (!to || pread(files[0], to, size, 0) != (ssize_t)size || !is_request(to, size))
        return false;
    worker->input.size += size;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", getpid(), files[1]);
    if ((files[1] >= 0 && !gpt_add_path(&worker->input, before, path)) ||
        !gpt_add_sync(&worker->input, ++worker->syncs)) {
        worker->input.size = before;
        return false;
    }
    worker->messages_size = 0;
    worker->busy = true;
    worker->asked = worker->syncs;
    worker->pause = BEAT;
    worker->beat = gpt_now() + BEAT;
    worker->until = gpt_now() + GPT_PATIENCE * 1000;
    return true;
}

void worker_send(struct worker *worker) {
    ssize_t sent = write(worker->in, worker->input.data + worker->sent, worker->input.size - worker->sent);
    if (sent < 0 && errno != EAGAIN && errno != EINTR)
        close_file(&worker->in); // it has ended or is about to; its last messages are still to come
    worker->sent += sent > 0 ? (size_t)sent : 0;
    if (worker->in < 0 || worker->sent == worker->input.size)
        gpt_empty(&worker->input), worker->sent = 0;
}

// A stage notices that the next stage has ended only when it writes to it. Each mark makes one more stage
// before a dead one end, until the whole pipeline has ended; without marks, all of them would wait forever.
// The intervals between marks grow, because a stage may be slow at processing them.
void worker_beat(struct worker *worker) {
    if (!worker->input.size && gpt_add_sync(&worker->input, worker->syncs + 1))
        worker->syncs++;
    worker->pause += worker->pause / 2;
    worker->beat = gpt_now() + worker->pause;
}

void worker_hear(struct worker *worker) {
    char block[sizeof(worker->messages) / 2];
    ssize_t got = read(worker->errors, block, sizeof(block));
    if (!got)
        close_file(&worker->errors);
    if (got <= 0)
        return;
    size_t over = worker->messages_size + (size_t)got, most = sizeof(worker->messages);
    over = over > most ? over - most : 0;
    memmove(worker->messages, worker->messages + over, worker->messages_size -= over);
    memcpy(worker->messages + worker->messages_size, block, (size_t)got);
    worker->messages_size += (size_t)got;
}

// Return whether there are only complete `sync` records.
static bool are_marks(struct cursor cursor) {
    bool good = true;
    while (good && cursor.at < cursor.end)
        good = is(gpt_read_record(&cursor).kind, "sync") && !cursor.bad;
    return good;
}

// Look for the `sync` that ends the answer among the records received so far. Only other `sync` records may
// follow it, since anything else would become part of the next answer.
static enum worker_state find_sync(struct worker *worker) {
    const unsigned char *data = (const unsigned char *)worker->output.data;
    struct cursor cursor = {data + worker->seen, data + worker->output.size, false};
    while (cursor.at < cursor.end) {
        size_t start = (size_t)(cursor.at - data);
        if ((*cursor.at & 0xf0) != 0x80 && (*cursor.at & 0xfe) != 0xde)
            return WORKER_BROKEN; // no map: this is not a stream
        struct gpt_record record = gpt_read_record(&cursor);
        if (cursor.bad)
            return WORKER_WAITS; // wait for the rest
        worker->seen = (size_t)(cursor.at - data);
        if (is(record.kind, "sync") && record.id.type == UNSIGNED && record.id.number == worker->asked) {
            worker->output.size = start;
            return are_marks(cursor) ? WORKER_DONE : WORKER_SPENT;
        }
    }
    return WORKER_WAITS;
}

enum worker_state worker_receive(struct worker *worker) {
    char *to = gpt_make_room(&worker->output, BLOCK);
    ssize_t got = to ? read(worker->out, to, BLOCK) : 0;
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return WORKER_WAITS;
    if (got <= 0 || worker->output.size > MOST_OUTPUT)
        return WORKER_BROKEN;
    if (!worker->busy) {
        const unsigned char *data = (const unsigned char *)to;
        return are_marks((struct cursor){data, data + got, false}) ? WORKER_WAITS : WORKER_BROKEN;
    }
    worker->output.size += (size_t)got;
    return find_sync(worker);
}

void worker_rest(struct worker *worker) {
    gpt_empty(&worker->output);
    worker->seen = 0;
    worker->busy = false;
    worker->until = gpt_now() + GPT_LEISURE * 1000;
}

void worker_end(struct worker *worker) {
    if (worker->pid > 0) {
        kill(-worker->pid, SIGTERM);
        kill(-worker->pid, SIGCONT);
    }
    close_file(&worker->in), close_file(&worker->out), close_file(&worker->errors);
    gpt_empty(&worker->input), gpt_empty(&worker->output);
    *worker = (struct worker){.in = -1, .out = -1, .errors = -1};
}
