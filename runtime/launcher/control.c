// gpt-hook ctl: sends orders to a process under gpt-hook, or to all processes in its run, over the sockets
// that they listen on (../common/control.h). A socket is used only if the process in its name created it.

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "../common/broker.h"
#include "../common/control.h"
#include "../say.h"
#include "launcher.h"
#include "probe.h"
#include "register.h"

enum { PATIENCE = 10 }; // seconds for an answer

static const struct {
    const char *word;
    enum gpt_command command;
} commands[] = {
    {"status", GPT_STATUS}, {"enable", GPT_ENABLE}, {"disable", GPT_DISABLE}, {"probe", GPT_ORDER}};

struct asking {
    struct {
        struct gpt_order order;
        char texts[GPT_MOST_ORDER];
    } message;
    size_t size;          // bytes of the texts
    const char *pipeline; // the pipeline that the order names; NULL: none
    struct probing probing;
    bool all, json, tells;
    pid_t pid;
    char run[32]; // number of the run; empty: not known yet
    int asked;
    bool failed;
};

// Print a line about one process of several.
__attribute__((format(printf, 4, 5))) static void say(struct asking *asking, pid_t pid, bool failed,
                                                      const char *format, ...) {
    char text[512], line[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    snprintf(line, sizeof(line), "gpt-hook: %s: %d: %s", failed ? "error" : "warning", pid, text);
    gpt_write_line(line);
    asking->failed |= failed;
}

// Asking

// Connect to the socket of this name. Fails with errno ESRCH if it isn't that process's.
static int reach(pid_t pid, const char *name, uid_t *user) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t size = sizeof(peer);
    struct timeval patience = {.tv_sec = PATIENCE};
    int file = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path + 1, name, strlen(name));
    setsockopt(file, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    setsockopt(file, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    if (file < 0 || connect(file, (void *)&address, (socklen_t)(sizeof(sa_family_t) + 1 + strlen(name))))
        return -1;
    if (!getsockopt(file, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.pid == pid) {
        *user = peer.uid;
        return file;
    }
    close(file);
    errno = ESRCH;
    return -1;
}

// Return whether a process accepts orders from this user, or has ended.
static bool is_ours(pid_t pid) {
    struct stat process;
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d", pid);
    return !geteuid() || stat(path, &process) || gpt_is_user(process.st_uid, geteuid());
}

// Write a zero at the end of each text: the answer may come from a process that isn't ours.
static void end_texts(struct gpt_state *state) {
    const struct {
        char *text;
        size_t size;
    } texts[] = {{state->probes, sizeof(state->probes)}, {state->kernels, sizeof(state->kernels)},
                 {state->filter, sizeof(state->filter)}, {state->others, sizeof(state->others)},
                 {state->output, sizeof(state->output)}, {state->broker, sizeof(state->broker)},
                 {state->fault, sizeof(state->fault)}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        texts[i].text[texts[i].size - 1] = 0;
}

// Send a message to a process and read its state. Prints why and returns false if the process doesn't obey.
static bool exchange(struct asking *asking, pid_t pid, const char *name, const void *message, size_t size,
                     struct gpt_state *state, uid_t *user) {
    int file = reach(pid, name, user);
    if (file < 0 && errno == ESRCH)
        return false; // another process took the name
    asking->asked++;
    bool good = false;
    ssize_t got = file < 0 ? -1 : send(file, message, size, MSG_NOSIGNAL);
    got = got < 0 ? got : recv(file, state, sizeof(*state), 0);
    end_texts(state);
    if (got < 0 && errno == EAGAIN)
        say(asking, pid, true, "does not answer: it may be stopped");
    else if (got < 0 && errno != ECONNRESET && errno != ECONNREFUSED && errno != EPIPE)
        say(asking, pid, true, "%s", strerror(errno));
    else if (got < (ssize_t)sizeof(*state) || state->version != GPT_CONTROL_VERSION)
        say(asking, pid, true, "%s",
            got > 0        ? "it runs under another version of gpt-hook"
            : is_ours(pid) ? "it ended or replaced itself meanwhile"
                           : "it takes no commands from this user");
    else if (*state->fault)
        say(asking, pid, true, "%s", state->fault);
    else
        good = true;
    if (file >= 0)
        close(file);
    return good;
}

// Pass the pipeline of an order to the supervisor of the process. Without a supervisor, only cached results
// of earlier runs can be used.
static bool pass_pipeline(struct asking *asking, pid_t pid, const char *name) {
    static struct gpt_state state;
    const struct gpt_order status = {GPT_CONTROL_VERSION, GPT_STATUS};
    char fault[FAULT_BYTES];
    uid_t user;
    if (!exchange(asking, pid, name, &status, sizeof(status), &state, &user))
        return false;
    const char *digest = asking->message.texts; // the first of them
    if (!register_pipeline(state.broker, user, digest, asking->pipeline, fault))
        say(asking, pid, false,
            "its run has no supervisor within reach: only kernels that were woven before "
            "get these probes");
    else if (*fault)
        say(asking, pid, true, "%s", fault);
    return !*fault;
}

// Warn that the order matches no kernel that the process has looked up so far.
static void warn_of_none(const struct gpt_state *state, pid_t pid) {
    char line[2048];
    snprintf(line, sizeof(line),
             "gpt-hook: warning: %d: no kernel is chosen so far by%s%s%s%s; it looked up: %s", pid,
             *state->kernels ? " -k " : "", state->kernels, *state->filter ? " --filter " : "", state->filter,
             state->others);
    gpt_write_line(line);
}

static void ask(struct asking *asking, pid_t pid, const char *name) {
    static struct gpt_state state;
    uid_t user;
    if (asking->pipeline && !pass_pipeline(asking, pid, name))
        return;
    if (!exchange(asking, pid, name, &asking->message, sizeof(struct gpt_order) + asking->size, &state,
                  &user))
        return;
    if (asking->tells)
        show_state(&state, pid, asking->json);
    else if (asking->message.order.command == GPT_ORDER && *state.others)
        warn_of_none(&state, pid);
}

// Find the run of a process that overwrote its environment, as processes do to change their name in ps(1).
static void find_run(struct asking *asking, pid_t pid, const char *name, const char *run) {
    uid_t user;
    int file = pid == asking->pid ? reach(pid, name, &user) : -1;
    if (file < 0)
        return;
    close(file);
    snprintf(asking->run, sizeof(asking->run), "%s", run);
}

// Send the order to a listening process if its pid was given or, with --all, if it belongs to the run.
static void ask_if_meant(struct asking *asking, pid_t pid, const char *name, const char *run) {
    if (asking->all ? !strcmp(run, asking->run) : pid == asking->pid)
        ask(asking, pid, name);
}

typedef void see_socket(struct asking *asking, pid_t pid, const char *name, const char *run);

static void each_socket(struct asking *asking, see_socket *see) {
    char line[512], run[32], name[108];
    FILE *sockets = fopen("/proc/net/unix", "re");
    while (sockets && fgets(line, sizeof(line), sockets)) {
        const char *at =
            strstr(line, " @gpt-control."); // the listening socket: connections have the name too
        int pid;
        if (!at || !strstr(line, " 00010000 ") || sscanf(at, " @" GPT_CONTROL_FORMAT, &pid, run) != 2)
            continue;
        snprintf(name, sizeof(name), GPT_CONTROL_NAME, pid, run);
        see(asking, pid, name, run);
    }
    if (sockets)
        fclose(sockets);
}

// Find a variable in the environment that a process was started with. Returns false if it's not there or
// can't be read.
static bool find_variable(pid_t pid, const char *name, char *value, size_t size) {
    static char text[1 << 20];
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/environ", pid);
    FILE *file = fopen(path, "re");
    size_t got = file ? fread(text, 1, sizeof(text) - 1, file) : 0, length = strlen(name);
    if (file)
        fclose(file);
    for (const char *at = text; at < text + got; at += strlen(at) + 1)
        if (!strncmp(at, name, length) && at[length] == '=')
            return snprintf(value, size, "%s", at + length + 1) < (int)size;
    return false;
}

// If `pid` is a gpt-hook that stayed as the program's parent, returns the child that has the variable.
static pid_t find_program(pid_t pid) {
    char path[64], value[32];
    struct stat own, other;
    int child;
    pid_t found = 0;
    snprintf(path, sizeof(path), "/proc/%d/exe", pid);
    if (stat("/proc/self/exe", &own) || stat(path, &other) || own.st_dev != other.st_dev ||
        own.st_ino != other.st_ino)
        return pid;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", pid, pid);
    FILE *children = fopen(path, "re");
    while (children && !found && fscanf(children, "%d", &child) == 1)
        if (find_variable(child, GPT_CONTROL, value, sizeof(value)))
            found = child;
    if (children)
        fclose(children);
    return found ? found : pid;
}

// Give the process a second to end: an exiting process closes its socket first.
static bool ends(pid_t pid) {
    struct pollfd process = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    bool ended = process.fd >= 0 && poll(&process, 1, 1000) > 0;
    if (process.fd >= 0)
        close(process.fd);
    return ended;
}

// Explain why no process was asked, and exit.
__attribute__((noreturn)) static void explain(const struct asking *asking) {
    char where[32], path[64];
    struct stat process;
    snprintf(where, sizeof(where), "%d", asking->pid);
    snprintf(path, sizeof(path), "/proc/%d", asking->pid);
    if (stat(path, &process))
        fail(BAD, where, "no such process");
    if (geteuid() && !gpt_is_user(process.st_uid, geteuid()))
        fail(BAD, where, "another user's process");
    if (ends(asking->pid))
        fail(BAD, where, "it has ended");
    if (*asking->run)
        fail(BAD, where,
             asking->all ? "no process of its run has used the driver"
                         : "it has not used the driver; --all asks the other processes of its run");
    fail(BAD, where, "not started by 'gpt-hook run --disabled' or 'gpt-hook run --control'");
}

static void add_text(struct asking *asking, const char *text) {
    size_t size = text ? strlen(text) + 1 : 1;
    if (asking->size + size > GPT_MOST_ORDER || size > GPT_MOST_TEXT)
        fail(USAGE, "probe", "the names of the probes are too long");
    memcpy(asking->message.texts + asking->size, text ? text : "", size);
    asking->size += size;
}

// Read the probes before the order is sent to the process, so that mistakes are reported at once.
static void add_probes(struct asking *asking) {
    const struct probing *probing = &asking->probing;
    bool any = probing->probe_count || probing->jit;
    char digest[65] = "";
    if (!any && (probing->kernels || probing->filter))
        fail(USAGE, "probe", "-k or --filter without probes");
    asking->pipeline = any ? make_pipeline(probing, digest) : NULL;
    if (asking->pipeline && strlen(asking->pipeline) >= GPT_MOST_TEXT)
        fail(USAGE, "probe", "the names of the probes are too long");
    const char *texts[GPT_TEXTS] = {
        [GPT_IDENTITY] = digest,
        [GPT_NAMES] = any ? name_probes(probing) : NULL,
        [GPT_KERNELS] = probing->kernels,
        [GPT_FILTER] = probing->filter,
    };
    for (int i = 0; i < GPT_TEXTS; i++)
        add_text(asking, texts[i]);
}

static void read_options(struct asking *asking, int argc, char **argv) {
    static const struct option options[] = {
        {"all", no_argument, NULL, 'a'},
        {"json", no_argument, NULL, 'j'},
        {"kernel", required_argument, NULL, 'k'},
        {"filter", required_argument, NULL, 'x'},
        {"jit", required_argument, NULL, 'J'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    for (int option; (option = getopt_long(argc, argv, ":hk:", options, NULL)) != -1;)
        switch (option) {
        case 'a':
            asking->all = true;
            break;
        case 'j':
            asking->json = true;
            break;
        case 'k':
            asking->probing.kernels = add_parts("-k", asking->probing.kernels, optarg);
            break;
        case 'x':
            asking->probing.filter = add_parts("--filter", asking->probing.filter, optarg);
            break;
        case 'J':
            asking->probing.jit = optarg;
            break;
        case 'h':
            help();
        default:
            fail_option(option, argv);
        }
}

static void read_words(struct asking *asking, int argc, char **argv) {
    read_options(asking, argc, argv);
    char *end = "", **words = argv + optind;
    long pid = *words ? strtol(*words, &end, 10) : 0;
    if (!*words || !words[1])
        fail(USAGE, "ctl", "needs a process id and one of enable, disable, probe and status");
    if (*end || !isdigit((unsigned char)**words) || pid <= 0 ||
        pid > INT_MAX) // not even with a blank or a plus
        fail(USAGE, *words, "not a process id");
    asking->pid = find_program((pid_t)pid);
    size_t i = 0, count = sizeof(commands) / sizeof(*commands);
    while (i < count && strcmp(words[1], commands[i].word))
        i++;
    if (i == count)
        fail(USAGE, words[1], "not a command: enable, disable, probe or status");
    const struct probing *probing = &asking->probing;
    asking->message.order.command = commands[i].command;
    asking->tells = commands[i].command == GPT_STATUS;
    if (commands[i].command != GPT_ORDER && (words[2] || probing->kernels || probing->filter || probing->jit))
        fail(USAGE, words[1], "takes no probes");
    for (char **word = words + 2; *word; word++) {
        if (asking->probing.probe_count == MOST_PROBES)
            fail(USAGE, "probe", "more than %d probes", MOST_PROBES);
        asking->probing.probes[asking->probing.probe_count++] = *word;
    }
}

int control(int argc, char **argv) {
    static struct asking asking;
    asking.message.order.version = GPT_CONTROL_VERSION;
    read_words(&asking, argc, argv);
    if (asking.message.order.command == GPT_ORDER)
        add_probes(&asking);
    if (!find_variable(asking.pid, GPT_CONTROL, asking.run, sizeof(asking.run)) && asking.all)
        each_socket(&asking, find_run);
    if (!asking.all || *asking.run)
        each_socket(&asking, ask_if_meant);
    if (!asking.asked)
        explain(&asking);
    if (fflush(stdout) || ferror(stdout))
        fail(BAD, "standard output", "%s", strerror(errno));
    return asking.failed ? BAD : 0;
}
