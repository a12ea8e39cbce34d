// What a program does that asks stages: gpt-hook's supervisor where one was promised, else a pipeline of its
// own.
//
// The supervisor must be this user's: what it answers is code that will run. For a program that has become
// another user's it is none, and the program helps itself.

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "broker.h"

// The supervisor

// Connects to the supervisor. -1 if it is gone, -2 if it is another user's, or out of reach.
static int reach(const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t size = sizeof(peer);
    size_t length = strlen(name);
    int file = gpt_set_aside(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)), status = -1;
    if (file < 0 || length > sizeof(address.sun_path) - 1)
        goto out;
    memcpy(address.sun_path + 1, name, length); // an abstract one
    while ((status = connect(file, (void *)&address,
                             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length))) &&
           errno == EINTR)
        continue;
    const char *network = strrchr(name, '.');
    if (status && (!network || strtoul(network + 1, NULL, 10) != gpt_find_network()))
        status = -2;
    if (!status && (getsockopt(file, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.uid != geteuid()))
        status = -2;
out:
    if (status && file >= 0)
        close(file);
    return status ? status : file;
}

static void read_file(int file, struct gpt_bytes *found) {
    struct stat status;
    ssize_t got = 1;
    if (fstat(file, &status) || !gpt_make_room(found, (size_t)status.st_size))
        return;
    while (found->size < found->room && got > 0) {
        got = pread(file, found->data + found->size, found->room - found->size, (off_t)found->size);
        found->size += got > 0 ? (size_t)got : 0;
    }
}

// False if there is none that could be asked.
static bool ask_supervisor(enum gpt_pipeline which, const struct gpt_bytes *input, struct gpt_bytes *output,
                           struct gpt_outcome *outcome) {
    const char *name = getenv(GPT_BROKER);
    int server = name && *name ? reach(name) : -2;
    if (server == -2)
        return false;
    struct gpt_question question = {which};
    struct gpt_reply reply;
    int file = gpt_make_file(input->data, input->size), found = -1;
    if (file < 0) {
        outcome->status = GPT_MISSING;
        snprintf(outcome->fault, sizeof(outcome->fault), "no file in memory of %zu bytes: %s", input->size,
                 strerror(errno));
    } else if (server >= 0 && gpt_send(server, &question, sizeof(question), file) &&
               gpt_receive(server, &reply, sizeof(reply), &found) == sizeof(reply)) {
        outcome->status = reply.status;
        snprintf(outcome->fault, sizeof(outcome->fault), "%.*s", (int)sizeof(reply.fault), reply.fault);
        if (found >= 0)
            read_file(found, output);
    } else {
        outcome->status = GPT_MISSING;
        snprintf(
            outcome->fault, sizeof(outcome->fault),
            "the supervisor of gpt-hook, which makes code, cannot be reached: run the program by gpt-hook "
            "again, or without " GPT_BROKER " in its environment");
    }
    for (size_t i = 0; i < 3; i++)
        if ((int[]){server, file, found}[i] >= 0)
            close((int[]){server, file, found}[i]);
    return true;
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
            gpt_add(&outcome->made, record.data.data, record.data.number);
            gpt_add(&outcome->made, "", 1), outcome->made.size--;
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
    static const char *const kinds[] = {[GPT_HOST] = "object", [GPT_UNPACK] = "ptx"};
    struct gpt_bytes request = {0}, whole = {0}, output = {0};
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    *outcome = (struct gpt_outcome){.status = GPT_NO_STATUS};
    if (!gpt_add_module(&request, image, size, type, kernel))
        outcome->status = 1,
        snprintf(outcome->fault, sizeof(outcome->fault), "an image of %zu bytes is too large", size);
    else if (!ask_supervisor(which, &request, &output, outcome) && gpt_add_header(&whole) &&
             gpt_add(&whole, request.data, request.size) && gpt_add_end(&whole))
        gpt_run_alone(which, &whole, &output, outcome);
    read_answer(&output, kinds[which], outcome);
    gpt_empty(&request), gpt_empty(&whole), gpt_empty(&output);
    pthread_setcancelstate(before, NULL);
}
