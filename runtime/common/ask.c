// Asks stages for something on behalf of a program: through gpt-hook's supervisor if the environment names
// one, otherwise by running a pipeline of its own.
//
// The supervisor must belong to this user, because its answers are code that will run. A program that has
// changed its user therefore runs its own pipelines. While a client waits, it regularly checks that the
// supervisor is alive, because a late answer may only mean that a large kernel takes its time. If the
// supervisor doesn't react to such a check (somebody may have stopped it), the client never asks it again.

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker.h"

// The supervisor

enum hope {
    REACHED,
    APART,
    LOST,
    GONE,
    LATE
}; // APART: one side refused the other; LOST: not found; GONE: ended; LATE: silent

static bool late; // the supervisor was silent once

static enum hope reach(const char *name, int file) {
    // connect() blocks while the socket's queue is full
    setsockopt(file, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){.tv_sec = GPT_SILENCE},
               sizeof(struct timeval));
    if (gpt_connect(file, name))
        return REACHED;
    return errno == EACCES ? APART : errno == EAGAIN ? LATE : errno == ENOENT ? LOST : GONE;
}

static const int no_files[GPT_FILES] = {-1, -1};

static enum hope receive(int server, struct gpt_reply *reply, int files[GPT_FILES]) {
    enum { ASKED = 3 }; // attempts before we give up
    for (int asked = 0; asked < ASKED;) {
        ssize_t got;
        if (!gpt_wait_for(server, gpt_now() + GPT_SILENCE * 1000 / ASKED)) {
            asked++;
            gpt_send(server, "", GPT_THERE, no_files);
        } else if ((got = gpt_receive(server, reply, sizeof(*reply), files, NULL)) == sizeof(*reply))
            return reply->status == GPT_REFUSED ? APART : REACHED;
        else if (got == GPT_THERE)
            asked = 0;
        else if (got >= 0)
            return GONE;
        // The supervisor closed the socket before it read our last message. In that case the error is
        // reported before the reply can be read.
        else if (errno != ECONNRESET)
            return APART;
    }
    return LATE;
}

static enum hope ask(const char *name, enum gpt_pipeline which, const struct gpt_bytes *input,
                     struct gpt_bytes *output, struct gpt_outcome *outcome) {
    struct gpt_question question = {.pipeline = which};
    struct gpt_reply reply;
    int server = gpt_set_aside(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)),
        found[GPT_FILES] = {-1, -1};
    int file = gpt_make_file(input->data, input->size);
    enum hope hope = server < 0 || file < 0 ? APART : reach(name, server);
    if (hope == REACHED)
        hope = gpt_send(server, &question, sizeof(question), (int[]){file, -1})
                   ? receive(server, &reply, found)
                   : GONE;
    if (hope == REACHED) {
        outcome->status = reply.status;
        snprintf(outcome->fault, sizeof(outcome->fault), "%.*s", (int)sizeof(reply.fault), reply.fault);
        errno = ENOMEM;
        if (found[0] >= 0 && !gpt_read_file(found[0], output))
            snprintf(outcome->fault, sizeof(outcome->fault), "its answer cannot be read: %s",
                     strerror(errno));
    }
    gpt_close(found);
    gpt_close((int[]){server, file});
    return hope;
}

// Return false if no supervisor answers.
static bool ask_supervisor(enum gpt_pipeline which, const struct gpt_bytes *input, struct gpt_bytes *output,
                           struct gpt_outcome *outcome) {
    static bool warned;
    const char *name = gpt_find_broker();
    if (!*name || __atomic_load_n(&late, __ATOMIC_RELAXED))
        return false;
    enum hope hope = ask(name, which, input, output, outcome);
    if (hope == LATE)
        __atomic_store_n(&late, true, __ATOMIC_RELAXED);
    if (hope > APART && !__atomic_exchange_n(&warned, true, __ATOMIC_RELAXED))
        snprintf(outcome->note, sizeof(outcome->note),
                 "gpt-hook's supervisor, which compiles kernels, %s: each kernel gets a pipeline of its own, "
                 "which is "
                 "slow",
                 hope == LATE   ? "does not answer"
                 : hope == LOST ? "is gone or out of reach"
                                : "is gone");
    return hope == REACHED;
}

// The answer

// Append the location of the fault, which is a line of the image.
static void say_where(struct value where, char *text, size_t room) {
    const char *at = (const char *)where.data, *end = at + where.number;
    *text = '\0';
    if (where.type != TEXT || !where.number)
        return;
    if (where.number < 7 || memcmp(at, "module:", 7)) {
        snprintf(text, room, "%.*s: ", (int)where.number, at);
        return;
    }
    const char *line = memchr(at + 7, ':', where.number - 7);
    if (line)
        snprintf(text, room, "line %.*s: ", (int)(end - line - 1), line + 1);
}

// Copy bytes and append a zero. Returns false if memory runs out.
static bool copy(struct gpt_bytes *to, const void *data, size_t size) {
    gpt_empty(to);
    if (gpt_add(to, data, size) && gpt_add(to, "", 1)) {
        to->size--;
        return true;
    }
    gpt_empty(to);
    return false;
}

// Return whether an error has nothing to do with the image: the system is short of something
// (gpt/asm/processes.py).
static bool is_shortage(struct value text) {
    static const char *const shortages[] = {
        "Resource temporarily unavailable", "Cannot allocate memory",  "Too many open files",
        "Too many open files in system",    "No space left on device", "was killed"};
    for (size_t i = 0; i < sizeof(shortages) / sizeof(*shortages); i++)
        if (is(text, shortages[i]))
            return true;
    return false;
}

static void read_answer(const struct gpt_bytes *records, const char *want, struct gpt_outcome *outcome) {
    struct cursor cursor = {(unsigned char *)records->data, (unsigned char *)records->data + records->size,
                            false};
    const char *makes = want && strcmp(want, GPT_WANT_LOAD) ? "ptx" : "object";
    char where[512];
    bool has_error = false, good = true;
    while (good && cursor.at < cursor.end) {
        const unsigned char *start = cursor.at;
        struct gpt_record record = gpt_read_record(&cursor);
        if (cursor.bad)
            break;
        if (is(record.kind, makes) && record.data.type == BINARY)
            good = copy(&outcome->made, record.data.data, record.data.number);
        else if (is(record.kind, "outline"))
            good = copy(&outcome->outline, start, (size_t)(cursor.at - start));
        else if (is(record.kind, "diag") && is(record.level, "error") && !has_error) {
            has_error = true;
            outcome->status += !outcome->status;
            if (is_shortage(record.text))
                outcome->status = GPT_NOT_RUN;
            say_where(record.where, where, sizeof(where));
            snprintf(outcome->fault, sizeof(outcome->fault), "%s%.*s", where,
                     record.text.type == TEXT ? (int)record.text.number : 0, record.text.data);
        }
    }
    if (has_error || !good)
        gpt_empty(&outcome->made);
    if (!good)
        snprintf(outcome->fault, sizeof(outcome->fault), "%s", strerror(ENOMEM));
    if (!has_error && !outcome->made.data && !outcome->outline.data && outcome->status < GPT_MALFORMED)
        outcome->status = GPT_NOT_RUN;
    if (outcome->made.data)
        *outcome->fault = '\0';
    else if (!has_error && strstr(outcome->fault, "Cannot fork")) // as dash calls it
        snprintf(outcome->fault, sizeof(outcome->fault), "cannot run gpt-extract and gpt-asm: %s",
                 strerror(EAGAIN));
    else if (!*outcome->fault)
        snprintf(outcome->fault, sizeof(outcome->fault), "gpt-extract or gpt-asm ended without an answer");
}

void gpt_ask(const struct gpt_asked *asked, struct gpt_outcome *outcome) {
    struct gpt_bytes request = {0}, whole = {0}, output = {0};
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    *outcome = (struct gpt_outcome){.status = GPT_NO_STATUS};
    bool small = asked->size < GPT_MOST, added = small && gpt_add_module(&request, asked);
    if (!small || request.size > GPT_MOST) {
        outcome->status = GPT_MALFORMED;
        snprintf(outcome->fault, sizeof(outcome->fault), "an image of %zu bytes is too large: at most 64 MiB",
                 (size_t)asked->size);
    } else if (!added) {
        outcome->status = 1;
        snprintf(outcome->fault, sizeof(outcome->fault), "%s", strerror(ENOMEM));
    } else if (!ask_supervisor(GPT_HOST, &request, &output, outcome)) {
        if (gpt_add_header(&whole) && gpt_add(&whole, request.data, request.size) && gpt_add_end(&whole))
            gpt_run_alone(GPT_HOST, &whole, &output, outcome);
        else
            snprintf(outcome->fault, sizeof(outcome->fault), "%s", strerror(ENOMEM));
    }
    read_answer(&output, asked->want, outcome);
    gpt_empty(&request), gpt_empty(&whole), gpt_empty(&output);
    pthread_setcancelstate(before, NULL);
}
