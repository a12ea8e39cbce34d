// Asking the supervisor without waiting for the answer: the hook does, whose program runs on meanwhile.

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "broker.h"

bool gpt_begin(struct gpt_call *call, const struct gpt_question *question, const struct gpt_bytes *input) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    struct stat status;
    socklen_t size = sizeof(peer);
    const char *name = getenv(GPT_BROKER);
    size_t length = name ? strlen(name) : 0;
    int server = -1, file = -1;
    bool good = false;
    if (!length || length > sizeof(address.sun_path) - 1)
        return false;
    memcpy(address.sun_path + 1, name, length); // an abstract one
    server = gpt_set_aside(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (server < 0 ||
        connect(server, (void *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)) ||
        getsockopt(server, SOL_SOCKET, SO_PEERCRED, &peer, &size) || peer.uid != geteuid() ||
        fstat(server, &status))
        goto out;
    file = gpt_make_file(input->data, input->size);
    good = file >= 0 && gpt_send(server, question, sizeof(*question), file);
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

enum gpt_call_state gpt_end(struct gpt_call *call, struct gpt_bytes *output, struct gpt_reply *reply) {
    struct stat status;
    int file = -1;
    *reply = (struct gpt_reply){.status = GPT_NO_STATUS};
    if (!is_ours_still(call)) {
        snprintf(reply->fault, sizeof(reply->fault), "the program closed the connection to gpt-hook");
        return GPT_CALL_FAILED;
    }
    ssize_t got = gpt_receive(call->socket, reply, sizeof(*reply), &file);
    if (got < 0 && errno == EAGAIN)
        return GPT_CALL_WAITS;
    close(call->socket);
    bool whole = got == sizeof(*reply) && file >= 0 && !fstat(file, &status) &&
                 gpt_make_room(output, (size_t)status.st_size);
    while (whole && output->size < (size_t)status.st_size) {
        ssize_t more = pread(file, output->data + output->size, (size_t)status.st_size - output->size,
                             (off_t)output->size);
        whole = more > 0;
        output->size += more > 0 ? (size_t)more : 0;
    }
    if (file >= 0)
        close(file);
    reply->fault[sizeof(reply->fault) - 1] = '\0';
    if (!whole && (got != sizeof(*reply) || !*reply->fault))
        snprintf(reply->fault, sizeof(reply->fault), "the supervisor of gpt-hook ended");
    return whole ? GPT_CALL_DONE : GPT_CALL_FAILED;
}

void gpt_drop(struct gpt_call *call) {
    if (is_ours_still(call))
        close(call->socket);
}
