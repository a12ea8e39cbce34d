// What a program does that asks stages: gpt-hook's supervisor where one was promised, else a pipeline of its
// own.
//
// The supervisor must be this user's: its answers are code that will run. A program that has become another
// user's runs pipelines of its own. While a client waits, it asks the supervisor from time to time whether it
// is there, as it may be stopped: how long a kernel takes says nothing about that. A client that got no
// answer to this does not ask that supervisor again.

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker.h"

// The supervisor

enum hope { REACHED, APART, LOST, GONE, LATE }; // refused, on either side; not found; ended; silent

static bool late; // it was, once

static enum hope reach(const char *name, int file) {
    // connect waits if the queue of the socket is full.
    setsockopt(file, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){.tv_sec = GPT_SILENCE},
               sizeof(struct timeval));
    if (gpt_connect(file, name))
        return REACHED;
    return errno == EACCES ? APART : errno == EAGAIN ? LATE : errno == ENOENT ? LOST : GONE;
}

static const int no_files[GPT_FILES] = {-1, -1};

static enum hope receive(int server, struct gpt_reply *reply, int files[GPT_FILES]) {
    enum { ASKED = 3 }; // times before it is given up
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
        // It closed before it read our last question, which is reported before its reply.
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

// Returns false if no supervisor answers.
static bool ask_supervisor(enum gpt_pipeline which, const struct gpt_bytes *input, struct gpt_bytes *output,
                           struct gpt_outcome *outcome) {
    static bool said;
    const char *name = gpt_find_broker();
    if (!*name || __atomic_load_n(&late, __ATOMIC_RELAXED))
        return false;
    enum hope hope = ask(name, which, input, output, outcome);
    if (hope == LATE)
        __atomic_store_n(&late, true, __ATOMIC_RELAXED);
    if (hope > APART && !__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
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

// A fault's place: in the image that was asked about, the line.
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

static void read_answer(const struct gpt_bytes *records, const char *kind, struct gpt_outcome *outcome) {
    struct cursor cursor = {(unsigned char *)records->data, (unsigned char *)records->data + records->size,
                            false};
    char where[512];
    bool told = false;
    while (cursor.at < cursor.end) {
        struct gpt_record record = gpt_read_record(&cursor);
        if (cursor.bad)
            break;
        if (is(record.kind, kind) && record.data.type == BINARY) {
            gpt_empty(&outcome->made);
            if (gpt_add(&outcome->made, record.data.data, record.data.number) &&
                gpt_add(&outcome->made, "", 1)) {
                outcome->made.size--;
                continue;
            }
            gpt_empty(&outcome->made);
            snprintf(outcome->fault, sizeof(outcome->fault), "%s", strerror(ENOMEM));
            return;
        } else if (is(record.kind, "diag") && is(record.level, "error") && !told) {
            told = true;
            outcome->status += !outcome->status;
            say_where(record.where, where, sizeof(where));
            snprintf(outcome->fault, sizeof(outcome->fault), "%s%.*s", where,
                     record.text.type == TEXT ? (int)record.text.number : 0, record.text.data);
        }
    }
    if (told || !outcome->made.data)
        gpt_empty(&outcome->made);
    else
        *outcome->fault = '\0';
    if (!outcome->made.data && !*outcome->fault)
        snprintf(outcome->fault, sizeof(outcome->fault), "gpt-extract or gpt-asm ended without an answer");
}

void gpt_ask(enum gpt_pipeline which, const void *image, size_t size, const char *type, const char *kernel,
             struct gpt_outcome *outcome) {
    struct gpt_bytes request = {0}, whole = {0}, output = {0};
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    *outcome = (struct gpt_outcome){.status = GPT_NO_STATUS};
    struct gpt_asked asked = {.type = type, .image = image, .size = size, .kernel = kernel};
    bool small = size < GPT_MOST, added = small && gpt_add_module(&request, &asked);
    if (!small || request.size > GPT_MOST) {
        outcome->status = 1;
        snprintf(outcome->fault, sizeof(outcome->fault), "an image of %zu bytes is too large: at most 64 MiB",
                 size);
    } else if (!added) {
        outcome->status = 1;
        snprintf(outcome->fault, sizeof(outcome->fault), "%s", strerror(ENOMEM));
    } else if (!ask_supervisor(which, &request, &output, outcome)) {
        if (gpt_add_header(&whole) && gpt_add(&whole, request.data, request.size) && gpt_add_end(&whole))
            gpt_run_alone(which, &whole, &output, outcome);
        else
            snprintf(outcome->fault, sizeof(outcome->fault), "%s", strerror(ENOMEM));
    }
    read_answer(&output, gpt_lines[which].makes, outcome);
    gpt_empty(&request), gpt_empty(&whole), gpt_empty(&output);
    pthread_setcancelstate(before, NULL);
}
