// Asks the supervisor without waiting for the answer, which lets the program under the hook continue in the
// meantime.

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker.h"

struct gpt_fault gpt_begin(struct gpt_call *call, const struct gpt_question *question,
                           const struct gpt_bytes *input, int image) {
    struct stat status;
    const char *name = gpt_find_broker();
    struct gpt_fault fault = GPT_FAULT(no_memory, "or descriptors, for a request");
    if (!*name)
        return GPT_FAULT(no_supervisor, "");
    int server = gpt_set_aside(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int file = gpt_make_file(input->data, input->size);
    if (server >= 0 && file >= 0 && !fstat(server, &status) &&
        !(fault = gpt_reach(server, name, geteuid())).code &&
        !gpt_send(server, question, sizeof(*question), (int[]){file, image}))
        fault = GPT_FAULT(supervisor_gone, "");
    if (file >= 0)
        close(file);
    if (fault.code && server >= 0)
        close(server);
    if (!fault.code)
        *call = (struct gpt_call){server, status.st_ino};
    return fault;
}

// Return whether the descriptor is still our socket. Programs sometimes close descriptors that they didn't
// open.
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
        gpt_set_fault(reply, GPT_FAULT(connection_closed, ""));
        return GPT_CALL_FAILED;
    }
    ssize_t got = gpt_receive(call->socket, reply, sizeof(*reply), files, NULL);
    if (got < 0 && errno == EAGAIN)
        return GPT_CALL_WAITS;
    close(call->socket);
    bool whole = got == sizeof(*reply) && files[0] >= 0 && gpt_read_file(files[0], output);
    gpt_close(files);
    reply->code[sizeof(reply->code) - 1] = reply->fault[sizeof(reply->fault) - 1] = '\0';
    if (!whole && (got != sizeof(*reply) || !*reply->code))
        gpt_set_fault(reply,
                      got > 0 ? GPT_FAULT(no_memory, "for the answer") : GPT_FAULT(supervisor_gone, ""));
    return whole ? GPT_CALL_DONE : GPT_CALL_FAILED;
}
