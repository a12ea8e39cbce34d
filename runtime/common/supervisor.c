// The supervisor, which is a helper process of gpt-hook. It sleeps until somebody asks, passes each request
// to an idle pipeline or to a new one, and returns the answer. If a pipeline is killed, its request goes to
// another one, but only once. The supervisor ends when nobody is left who could ask: the command has ended,
// and so have all processes that have the socket's folder in their environment. Orphans of pipelines become
// children of the supervisor, so no process outlives it.

#include <ctype.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemonize.h"
#include "worker.h"

enum {
    MOST_WORKERS = 8,    // per pipeline, and no more than there are processors
    MOST_CLIENTS = 1024, // beyond these, a new client replaces a silent one or waits to be accepted
    LEAST_FILES = 256,
    SEARCH = 100,       // ms between scans of all processes, at first and
    SEARCH_MOST = 1600, // later
    FAREWELL = 5000,    // ms from ending a process to killing it
};

struct client { // a request, and its image if that's in a file of its own
    int socket, files[GPT_FILES];
    enum gpt_pipeline which;
    char arch[GPT_ARCH_BYTES];
    const char *probe;     // the pipeline that weaves probes; NULL: it needs none
    uint64_t came;         // its position in the order of connections
    uint64_t turn;         // 0: it has not asked yet
    struct worker *worker; // the worker that answers; NULL: none yet
    bool again;            // its worker was killed, so this is the second try
};

static char *stages[GPT_STAGES];
static bool controlled; // gpt-hook ctl may add pipelines
static char folder_path[PATH_MAX];
static int server, folder;
static struct client clients[MOST_CLIENTS];
static struct worker workers[GPT_PIPELINES][MOST_WORKERS];
static size_t most_clients, most_workers, client_count;
static uint64_t turns;

#define EACH_WORKER(worker)                                                                                  \
    for (struct worker *worker = *workers; worker < *workers + GPT_PIPELINES * MOST_WORKERS; worker++)       \
        if (worker->begun)
#define EACH_CLIENT(client)                                                                                  \
    for (struct client *client = clients; client < clients + most_clients; client++)                         \
        if (client->socket >= 0)

// Clients

static void drop(struct client *client) {
    gpt_hang_up(client->socket);
    gpt_discard(client->files);
    *client = (struct client){.socket = -1, .files = {-1, -1}};
    client_count--;
}

static void reply(struct client *client, int status, struct gpt_fault fault, const struct gpt_bytes *found) {
    struct gpt_reply reply = {.status = status};
    char text[128];
    int file = found ? gpt_make_file(found->data, found->size) : -1;
    if (found && file < 0) {
        snprintf(text, sizeof(text), "can't make a file in memory for its answer: %s", strerror(errno));
        reply.status = GPT_MISSING;
        fault = GPT_FAULT(pipeline_failed, text);
    }
    gpt_set_fault(&reply, fault);
    gpt_send(client->socket, &reply, sizeof(reply), (int[]){file, -1});
    if (file >= 0)
        close(file);
    drop(client);
}

// Find the client that has been silent for the longest time, or NULL. It may be a process in a sandbox, which
// can connect too.
static struct client *find_silent(void) {
    struct client *found = NULL;
    EACH_CLIENT(client)
    if (!client->turn && (!found || client->came < found->came))
        found = client;
    return found;
}

static bool has_place(void) { return client_count < most_clients || find_silent(); }

static void accept_one(void) {
    static uint64_t count;
    int file = accept4(server, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (file < 0) {
        // The system has run out of file descriptors.
        poll(NULL, 0, errno == EAGAIN || errno == ECONNABORTED ? 0 : 50);
        return;
    }
    if (client_count == most_clients)
        drop(find_silent());
    struct client *client = clients;
    while (client->socket >= 0)
        client++;
    *client = (struct client){.socket = file, .files = {-1, -1}, .came = ++count};
    client_count++;
}

// Return whether this is an architecture, which pipelines may use as an unquoted word of the shell.
static bool is_arch(const char *arch) {
    while (isalnum((unsigned char)*arch) || *arch == '_')
        arch++;
    return !*arch;
}

// Accept a question, or return the reason why it can't be answered.
static struct gpt_fault accept_question(struct client *client, const struct gpt_question *question) {
    client->which = question->pipeline;
    memcpy(client->arch, question->arch, sizeof(client->arch));
    if (!is_arch(client->arch))
        return GPT_FAULT(pipeline_failed, "not an architecture");
    client->probe = client->which == GPT_PROBE ? gpt_find_pipeline(question->digest) : NULL;
    if (client->which == GPT_PROBE && !client->probe)
        return GPT_FAULT(supervisor_refuses, "a pipeline that it was not given");
    client->turn = ++turns;
    return GPT_SERVED;
}

// Handle a client that has sent its question, checks that we're alive, or has disconnected. If it
// disconnects, the result still goes to gpt-asm's cache. The sender is checked only now and not when it
// connects, because it may have entered a sandbox in between.
static void hear(struct client *client) {
    static struct {
        struct gpt_question question;
        char text[GPT_MOST_TEXT];
    } message;
    struct gpt_question *question = &message.question;
    int files[GPT_FILES];
    pid_t sender = 0;
    ssize_t size = gpt_receive(client->socket, &message, sizeof(message), files, &sender);
    if (client->turn && size == GPT_THERE && files[0] < 0) {
        gpt_send(client->socket, "", GPT_THERE, files);
        return;
    }
    ssize_t text = size - (ssize_t)sizeof(*question);
    bool registers = text > 0 && question->pipeline == GPT_REGISTER && !message.text[text - 1];
    if (client->turn || (!registers && (text || files[0] < 0 || question->pipeline >= GPT_PIPELINES))) {
        gpt_discard(files);
        drop(client);
        return;
    }
    memcpy(client->files, files, sizeof(files));
    question->arch[sizeof(question->arch) - 1] = '\0';
    question->digest[sizeof(question->digest) - 1] = '\0';
    const char *fault =
        registers && !controlled
            ? "pipelines: the run was started without --control"
            : gpt_refuse_peer(client->socket, sender, registers ? GPT_WISH_PIPELINE : GPT_WISH_ANSWER);
    if (fault)
        reply(client, GPT_REFUSED, GPT_FAULT(supervisor_refuses, fault), NULL);
    else if (registers) {
        fault = gpt_add_pipeline(question->digest, message.text);
        reply(client, fault ? GPT_MISSING : 0, (struct gpt_fault){NULL, fault ? fault : ""}, NULL);
    } else {
        struct gpt_fault refused = accept_question(client, question);
        if (refused.code)
            reply(client, GPT_MISSING, refused, NULL);
    }
}

// Workers

static struct client *find_client(const struct worker *worker) {
    EACH_CLIENT(client)
    if (client->worker == worker)
        return client;
    return NULL;
}

static void answer(struct worker *worker) {
    struct client *client = find_client(worker);
    if (client)
        reply(client, 0, GPT_SERVED, &worker->output);
    worker_rest(worker);
}

// Give up a worker that has ended, that wrote something other than a stream, or that doesn't answer.
static void give_up(struct worker *worker, bool late) {
    struct client *client = find_client(worker);
    char fault[sizeof(((struct gpt_reply *)0)->fault)] = "";
    for (int i = 0; i < 64 && worker->errors >= 0; i++) // more than a pipe holds
        worker_hear(worker);
    int status = gpt_read_errors(worker->messages, worker->messages_size, fault, sizeof(fault));
    const char *who = client && client->which == GPT_PROBE ? "it" : "gpt-extract or gpt-asm";
    if (late)
        snprintf(fault, sizeof(fault), "%s didn't answer in time", who);
    else if (status > 128 && status < GPT_REFUSED)
        snprintf(fault, sizeof(fault), "%s was ended by signal %d", who, status - 128);
    else if (!*fault)
        snprintf(fault, sizeof(fault), "%s ended without an answer", who);
    if (client && !late && status > 127 && !client->again) {
        client->again = true;
        client->worker = NULL;
    } else if (client)
        reply(client, status && !late ? status : GPT_MISSING,
              late ? GPT_FAULT(pipeline_late, fault) : GPT_FAULT(pipeline_failed, fault), NULL);
    worker_end(worker);
}

static bool is_for(const struct worker *worker, const struct client *client) {
    return !strcmp(worker->arch, client->arch) && worker->probe == client->probe;
}

// Find an idle worker for the request, or start one, in place of a worker for another pipeline if there are
// too many. Returns NULL if all are busy, or with errno set if starting one fails.
static struct worker *find_worker(const struct client *client) {
    struct worker *room = NULL, *other = NULL, *first = workers[client->which];
    for (struct worker *worker = first; worker < first + most_workers; worker++)
        if (worker->begun && !worker->busy && is_for(worker, client))
            return worker;
        else if (!worker->begun)
            room = worker;
        else if (!worker->busy)
            other = worker;
    if (!room && other)
        worker_end(room = other);
    errno = 0;
    char *words[GPT_WORDS];
    gpt_make_words(client->which, stages, client->arch, client->probe, words);
    if (!room || !worker_start(room, words))
        return NULL;
    memcpy(room->arch, client->arch, sizeof(room->arch));
    room->probe = client->probe;
    return room;
}

// Assign requests to workers, in the order in which they came.
static void serve(void) {
    bool full[GPT_PIPELINES] = {false};
    for (;;) {
        struct client *next = NULL;
        EACH_CLIENT(client)
        if (client->turn && !client->worker && !full[client->which] && (!next || client->turn < next->turn))
            next = client;
        if (!next)
            return;
        struct worker *worker = find_worker(next);
        if (!worker && !errno)
            full[next->which] = true;
        else if (!worker)
            reply(next, GPT_NOT_RUN, GPT_FAULT(pipeline_failed, strerror(errno)), NULL);
        else if (worker_give(worker, next->files))
            next->worker = worker;
        else {
            const char *detail = errno ? strerror(errno) : "not a request, or too large";
            reply(next, errno ? GPT_NOT_RUN : GPT_MISSING, GPT_FAULT(pipeline_failed, detail), NULL);
        }
    }
}

static void reap(int children) {
    struct signalfd_siginfo ignored;
    siginfo_t info;
    if (read(children, &ignored, sizeof(ignored)) < 0)
        return;
    while (info.si_pid = 0, !waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) && info.si_pid) {
        kill(-info.si_pid, SIGTERM); // end the rest of a pipeline whose shell has ended
        EACH_WORKER(worker)
        if (worker->pid == info.si_pid)
            worker->pid = 0; // the number is free now
        waitpid(info.si_pid, NULL, 0);
    }
}

// The loop

// End workers that take too long or that nobody needs. Returns the number of milliseconds until the next
// check, or -1 if none is needed.
static int look_at_clock(void) {
    uint64_t now = gpt_now(), next = UINT64_MAX;
    EACH_WORKER(worker) {
        if (worker->until <= now) {
            give_up(worker, true);
            continue;
        }
        if (worker->busy && worker->beat <= now)
            worker_beat(worker);
        uint64_t due = worker->busy && worker->beat < worker->until ? worker->beat : worker->until;
        next = due < next ? due : next;
    }
    return next == UINT64_MAX ? -1 : (int)(next - now);
}

// Kill processes that were asked to end but didn't, or that couldn't be asked because they have a session of
// their own.
static void kill_rest(void) {
    FILE *file = fopen("/proc/thread-self/children", "re");
    for (int pid; file && fscanf(file, "%d", &pid) == 1;)
        kill(pid, SIGKILL); // its children become ours
    if (file)
        fclose(file);
}

static _Noreturn void leave(int children) {
    close(server);
    gpt_remove_folder(folder, folder_path);
    EACH_WORKER(worker)
    worker_end(worker);
    uint64_t begun = gpt_now(), past;
    while (waitid(P_ALL, 0, &(siginfo_t){0}, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           (past = gpt_now() - begun) < 2 * FAREWELL) {
        if (past >= FAREWELL)
            kill_rest();
        poll(&(struct pollfd){children, POLLIN, 0}, 1, past < FAREWELL ? (int)(FAREWELL - past) : 20);
        reap(children);
    }
    _exit(0);
}

static void wait_and_do(int children, int root_file, int most) {
    enum { SERVER, CHILDREN, ROOT, FIRST, EACH = 3, SECOND = FIRST + EACH * GPT_PIPELINES * MOST_WORKERS };
    static struct pollfd polls[SECOND + MOST_CLIENTS];
    int until = look_at_clock();
    for (size_t i = 0; i < SECOND + most_clients; i++)
        polls[i] = (struct pollfd){-1, POLLIN, 0};
    polls[SERVER].fd = has_place() ? server : -1;
    polls[CHILDREN].fd = children;
    polls[ROOT].fd = root_file;
    EACH_WORKER(worker) {
        struct pollfd *of = &polls[FIRST + EACH * (worker - *workers)];
        of[0].fd = worker->out;
        of[1] = (struct pollfd){worker->input.size ? worker->in : -1, POLLOUT, 0};
        of[2].fd = worker->errors;
    }
    EACH_CLIENT(client)
    polls[SECOND + (client - clients)] = (struct pollfd){client->socket, POLLIN, 0};
    int count = poll(polls, SECOND + most_clients, until < 0 || (most >= 0 && most < until) ? most : until);
    if (count < 0 && errno != EINTR)
        leave(children);
    if (count <= 0)
        return;
    EACH_CLIENT(client)
    if (polls[SECOND + (client - clients)].revents)
        hear(client);
    EACH_WORKER(worker) {
        struct pollfd *of = &polls[FIRST + EACH * (worker - *workers)];
        if (of[1].fd >= 0 && of[1].revents)
            worker_send(worker);
        if (of[2].revents)
            worker_hear(worker);
        enum worker_state state = of[0].revents ? worker_receive(worker) : WORKER_WAITS;
        if (state == WORKER_DONE || state == WORKER_SPENT)
            answer(worker);
        if (state == WORKER_SPENT)
            worker_end(worker);
        else if (state == WORKER_BROKEN)
            give_up(worker, false);
    }
    if (polls[CHILDREN].revents)
        reap(children);
    if (polls[SERVER].revents && has_place()) // some that were silent have asked now
        accept_one();
}

static void supervise(pid_t root, int root_file) {
    (void)root;
    sigset_t of_children;
    sigemptyset(&of_children);
    sigaddset(&of_children, SIGCHLD);
    for (int number = 1; number < NSIG; number++)
        signal(number, number == SIGPIPE || number == SIGXFSZ ? SIG_IGN : SIG_DFL);
    sigprocmask(SIG_SETMASK, &of_children, NULL);
    gpt_let_go(false, (int[]){server, root_file, folder}, 3);
    listen(server,
           SOMAXCONN); // clients check the process that called listen last: it must not be the command
    prctl(PR_SET_NAME, "gpt-broker");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    int children = signalfd(-1, &of_children, SFD_CLOEXEC | SFD_NONBLOCK);
    struct rlimit files = {0, 0};
    cpu_set_t processors;
    getrlimit(RLIMIT_NOFILE, &files);
    most_clients =
        files.rlim_cur > 4 * MOST_CLIENTS ? MOST_CLIENTS : files.rlim_cur / 4; // each client has three files
    most_workers = sched_getaffinity(0, sizeof(processors), &processors) ? 1 : (size_t)CPU_COUNT(&processors);
    most_workers = most_workers < MOST_WORKERS ? most_workers : MOST_WORKERS;
    for (size_t i = 0; i < most_clients; i++)
        clients[i].socket = -1;
    bool ended = false;
    int absent = 0, wait = -1; // several scans, because one can miss a process that's forked during it
    while (absent < 2) {
        wait_and_do(children, ended ? -1 : root_file, client_count ? -1 : wait);
        serve();
        ended = ended || poll(&(struct pollfd){root_file, POLLIN, 0}, 1, 0) == 1;
        if (!ended || client_count)
            continue;
        absent = gpt_anybody_with(GPT_BROKER, folder_path) ? 0 : absent + 1;
        wait = absent || wait < 0 ? SEARCH : wait < SEARCH_MOST ? 2 * wait : wait;
    }
    leave(children);
}

void gpt_start_broker(char *const paths[GPT_STAGES], const char *digest, const char *probe, bool control) {
    struct rlimit files;
    int subreaper = 0;
    // If the command is the init process, or a subreaper, the helper would become its child. poll takes no
    // more descriptors than the limit of open files.
    if (getpid() == 1 || getrlimit(RLIMIT_NOFILE, &files) || files.rlim_max < LEAST_FILES ||
        prctl(PR_GET_CHILD_SUBREAPER, &subreaper) || subreaper || (probe && gpt_add_pipeline(digest, probe)))
        return;
    gpt_hold_standard();
    memcpy(stages, paths, sizeof(stages));
    controlled = control;
    folder = gpt_make_folder(folder_path);
    server = folder < 0 ? -1 : gpt_listen(folder);
    if (server >= 0 && gpt_start_apart(supervise)) {
        setenv(GPT_BROKER, folder_path, 1);
        close(folder); // the supervisor has it
    } else if (folder >= 0)
        gpt_remove_folder(folder, folder_path);
    if (server >= 0)
        close(server);
}
