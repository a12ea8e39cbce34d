// The thread that serves gpt-hook ctl. It exists if the run was started with control. It starts once the
// process has initialized the driver, which starts threads of its own, and sleeps until a request arrives.
//
// It has a separate descriptor table: the program neither sees its socket nor closes it, the program's
// descriptor numbers don't change, and children inherit nothing. In that table it closes all of the program's
// descriptors except the trace.

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/broker.h"
#include "common/control.h"
#include "entry.h"
#include "hook/probe/probe.h"
#include "hook/watch/watch.h"
#include "hook/write/write.h"
#include "stub.h"

enum { MOST_CLIENTS = 64 }; // silent connections before the oldest is closed

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 // Linux 6.16
#endif

static int listen_here(void) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int size = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, GPT_CONTROL_NAME, getpid(),
                        getenv(GPT_CONTROL));
    int file = gpt_set_aside(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    // Orders carry no descriptors. Closing one can take as long as its sender likes (SO_LINGER, FUSE).
    if (file >= 0)
        setsockopt(file, SOL_SOCKET, SO_PASSRIGHTS, &(int){0}, sizeof(int));
    if (file >= 0 && !setsockopt(file, SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int)) &&
        !bind(file, (void *)&address, (socklen_t)(sizeof(sa_family_t) + 1) + (socklen_t)size) &&
        !listen(file, SOMAXCONN))
        return file;
    if (file >= 0)
        close(file);
    return -1;
}

static sem_t ready; // it listens

// Orders

static void put(char *to, size_t size, const char *from) { snprintf(to, size, "%s", from ? from : ""); }

static void tell(struct gpt_state *state) {
    const struct order *order = hook_order();
    struct known_counts counts = {0};
    struct stat trace;
    hook_count_known(&counts);
    state->probed = counts.probed, state->pending = counts.pending, state->refused = counts.refused;
    struct launch_counts launches = hook_count_launches();
    state->launches = launches.all;
    state->with_probes = launches.probed + atomic_load(&hook_watched->probed_nodes);
    state->without = hook_unprobed_total();
    if (!counts.probed && !counts.pending && !counts.refused)
        put(state->others, sizeof(state->others), counts.others);
    put(state->probes, sizeof(state->probes), order->probes);
    put(state->kernels, sizeof(state->kernels), order->kernels);
    put(state->filter, sizeof(state->filter), order->filter);
    put(state->broker, sizeof(state->broker), gpt_find_broker());
    state->version = GPT_CONTROL_VERSION;
    state->recording = atomic_load(&hook_recording);
    state->since = hook_periods.since;
    state->periods = hook_periods.count;
    if (atomic_load(&hook_live->state) != ON)
        return;
    snprintf(state->output, sizeof(state->output), "%s", hook_live->path);
    state->bytes = stat(hook_live->path, &trace) ? 0 : (uint64_t)trace.st_size;
}

// Keep the texts, since they may be needed until the process ends.
static const char *use_probes(const char *texts, size_t size) {
    const char *found[GPT_TEXTS], *at = size && !texts[size - 1] ? texts : NULL;
    if (!hook_probing || !hook_is_this_process())
        return "it was forked from a process that had loaded code, or it's ending";
    if (hook_settings.benchmark || hook_settings.memusage)
        return "it runs with --benchmark or --memusage, which take no other probes";
    const char *end = at + size;
    bool stored = at != NULL;
    for (int i = 0; stored && i < GPT_TEXTS; i++, at += strlen(at) + 1) {
        if (at >= end)
            return "not a choice of probes";
        found[i] = *at ? hook_keep_text(at) : NULL;
        stored = !*at || found[i];
    }
    if (!stored)
        return "memory ran out";
    struct order made = {.identity = found[GPT_IDENTITY],
                         .probes = found[GPT_NAMES],
                         .kernels = found[GPT_KERNELS],
                         .filter = found[GPT_FILTER]};
    hook_expect_probes(&made, atomic_load(&hook_recording));
    if (!hook_make_order(&made))
        return "memory ran out";
    hook_find_all_flags();
    return "";
}

static void follow(const struct gpt_order *order, const char *texts, size_t size, struct gpt_state *state) {
    if (order->version != GPT_CONTROL_VERSION)
        snprintf(state->fault, sizeof(state->fault), "it runs under another version of gpt-hook");
    else if (order->command != GPT_STATUS && atomic_load(&hook_live->state) != ON)
        snprintf(state->fault, sizeof(state->fault), "its trace has ended");
    else if (order->command == GPT_ENABLE && hook_limit_reached())
        snprintf(state->fault, sizeof(state->fault), "its run has written what --max-disk allows");
    else if (order->command == GPT_ENABLE || order->command == GPT_DISABLE)
        hook_switch(order->command == GPT_ENABLE);
    else if (order->command == GPT_ORDER)
        put(state->fault, sizeof(state->fault), use_probes(texts, size));
    tell(state);
}

// Return whether the client has given up, for example because this process was stopped.
static bool has_gone(int client) {
    struct pollfd file = {.fd = client};
    return poll(&file, 1, 0) > 0 && file.revents & POLLHUP;
}

// Answer one order from the same user or root. Other users, and processes in a sandbox, learn nothing.
static void hear(int client) {
    static struct gpt_state state;
    static struct {
        struct gpt_order order;
        char texts[GPT_MOST_ORDER];
    } message;
    int files[GPT_FILES];
    pid_t sender = 0;
    ssize_t got = gpt_receive(client, &message, sizeof(message), files, &sender);
    gpt_discard(files);
    if (got < (ssize_t)sizeof(message.order) || gpt_refuse_peer(client, sender, GPT_WISH_ORDER) ||
        has_gone(client))
        return;
    memset(&state, 0, sizeof(state));
    follow(&message.order, message.texts, (size_t)got - sizeof(message.order), &state);
    send(client, &state, sizeof(state), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// The server, and connections that haven't sent their order yet, oldest first.
static struct pollfd polls[1 + MOST_CLIENTS];
static nfds_t poll_count;

static void drop(nfds_t i) {
    gpt_hang_up(polls[i].fd);
    memmove(&polls[i], &polls[i + 1], (--poll_count - i) * sizeof(*polls));
}

// Free a connection when the program or the system runs out of files or memory.
static void save_files(void) {
    if (poll_count > 1)
        drop(1);
    else
        poll(NULL, 0, 50);
}

// Accept a connection. Returns false if no more can come.
static bool accept_one(void) {
    int client = accept4(polls[0].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM))
        save_files();
    else if (client < 0)
        return errno == EINTR || errno == EAGAIN || errno == ECONNABORTED || errno == EPERM;
    else if (gpt_refuse_user(client, GPT_WISH_ORDER))
        gpt_hang_up(client);
    else {
        if (poll_count > MOST_CLIENTS)
            drop(1);
        polls[poll_count++] = (struct pollfd){client, POLLIN, 0};
    }
    return true;
}

static void *serve(void *unused) {
    (void)unused;
    prctl(PR_SET_NAME, "gpt-control");
    int server = hook_own_files(hook_keep_apart()) ? listen_here() : -1;
    sem_post(&ready);
    if (server < 0) {
        hook_say("control", hook_describe_error(errno), "gpt-hook ctl can't reach this process");
        return NULL;
    }
    polls[0] = (struct pollfd){server, POLLIN, 0};
    poll_count = 1;
    for (bool good = true; good;) {
        if (poll(polls, poll_count, -1) < 0) {
            if (errno != EINTR)
                save_files(); // or the limit of open files was lowered below their number
            continue;
        }
        // Any process can connect to an abstract name and send nothing, so we never block on a single
        // connection.
        for (nfds_t i = 1; i < poll_count;)
            if (polls[i].revents)
                hear(polls[i].fd), drop(i);
            else
                i++;
        good = !polls[0].revents || accept_one();
    }
    return NULL;
}

// After cuInit: start taking orders.
void hook_serve_control(struct frame *frame) {
    static _Atomic pid_t served;
    pid_t pid = getpid(), before = atomic_load(&served);
    (void)frame;
    if (!getenv(GPT_CONTROL) || before == pid || hook_in_vfork || !hook_this_thread() ||
        !atomic_compare_exchange_strong(&served, &before, pid))
        return;
    sem_init(&ready, 0, 0);
    bool started = hook_start_thread(serve);
    while (started && sem_wait(&ready) && errno == EINTR)
        continue;
    if (!started)
        hook_say("control", hook_describe_error(EAGAIN), "gpt-hook ctl can't reach this process");
}

// All recorded calls lie between the two records.
void hook_switch(bool on) {
    if (on == atomic_load(&hook_recording))
        return;
    hook_expect_probes(hook_order(), on);
    if (on)
        hook_write_recording(true);
    atomic_store(&hook_recording, on);
    hook_use_all_flags();
    if (!on)
        hook_write_recording(false);
}
