// Asking the supervisor without waiting for the answer: the hook does, whose program runs on meanwhile.

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker.h"

bool gpt_begin(struct gpt_call *call, const struct gpt_question *question, const char *pipeline,
               const struct gpt_bytes *input, int image) {
    struct stat status;
    struct gpt_bytes message = {0};
    const char *name = gpt_find_broker();
    int server = -1, file = -1;
    bool good = false;
    if (!*name)
        return false;
    server = gpt_set_aside(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (server < 0 || !gpt_connect(server, name) || fstat(server, &status))
        goto out;
    file = gpt_make_file(input->data, input->size);
    good = file >= 0 && gpt_add(&message, question, sizeof(*question)) &&
           (!pipeline || gpt_add(&message, pipeline, strlen(pipeline) + 1)) &&
           gpt_send(server, message.data, message.size, (int[]){file, image});
    gpt_empty(&message);
    *call = (struct gpt_call){server, status.st_ino};
out:
    if (file >= 0)
        close(file);
    if (!good && server >= 0)
        close(server);
    return good;
}

// Whether the number still stands for the socket: programs close numbers that they did not open.
static bool is_ours_still(const struct gpt_call *call) {
    struct stat status;
    return !fstat(call->socket, &status) && S_ISSOCK(status.st_mode) && status.st_ino == call->inode;
}

void gpt_cancel(struct gpt_call *call) {
    if (is_ours_still(call))
        close(call->socket);
}

enum gpt_call_state gpt_end(struct gpt_call *call, struct gpt_bytes *output, struct gpt_reply *reply) {
    int files[GPT_FILES];
    *reply = (struct gpt_reply){.status = GPT_NO_STATUS};
    if (!is_ours_still(call)) {
        snprintf(reply->fault, sizeof(reply->fault), "the program closed the connection to gpt-hook");
        return GPT_CALL_FAILED;
    }
    ssize_t got = gpt_receive(call->socket, reply, sizeof(*reply), files);
    if (got < 0 && errno == EAGAIN)
        return GPT_CALL_WAITS;
    close(call->socket);
    bool whole = got == sizeof(*reply) && files[0] >= 0 && gpt_read_file(files[0], output);
    gpt_close(files);
    reply->fault[sizeof(reply->fault) - 1] = '\0';
    if (!whole && (got != sizeof(*reply) || !*reply->fault))
        snprintf(reply->fault, sizeof(reply->fault), "%s",
                 got > 0 ? "there is no memory for the answer" : "the supervisor of gpt-hook ended");
    return whole ? GPT_CALL_DONE : GPT_CALL_FAILED;
}
