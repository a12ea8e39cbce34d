// Passes a pipeline to the supervisor of a run, for gpt-hook ctl: the supervisor runs it for processes that
// name it by its digest. It refuses pipelines that come from a sandbox (../common/peers.c).

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../common/broker.h"
#include "register.h"

enum { PATIENCE = 10 }; // seconds

static bool exchange(int server, const struct gpt_bytes *message, struct gpt_reply *reply) {
    int files[GPT_FILES];
    bool good = gpt_send(server, message->data, message->size, (int[]){-1, -1}) &&
                gpt_receive(server, reply, sizeof(*reply), files, NULL) == sizeof(*reply);
    if (good)
        gpt_close(files);
    return good;
}

bool register_pipeline(const char *folder, uid_t owner, const char *digest, const char *text,
                       char fault[FAULT_BYTES]) {
    struct gpt_question question = {.pipeline = GPT_REGISTER};
    struct timeval patience = {.tv_sec = PATIENCE};
    struct gpt_bytes message = {0};
    struct gpt_reply reply = {0};
    int server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(question.digest, sizeof(question.digest), "%s", digest);
    setsockopt(server, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    bool reached = *folder && gpt_add(&message, &question, sizeof(question)) &&
                   gpt_add(&message, text, strlen(text) + 1) && !gpt_reach(server, folder, owner).code &&
                   exchange(server, &message, &reply);
    close(server);
    gpt_empty(&message);
    snprintf(fault, FAULT_BYTES, "%s%.900s", // not terminated if it isn't ours
             reply.status == GPT_REFUSED ? "gpt-hook's supervisor refuses " : "", reply.fault);
    return reached;
}
