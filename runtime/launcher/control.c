// gpt-hook ctl: asks a process that runs under gpt-hook, or all of its run, over the sockets that they listen
// on
// (../common/control.h). A socket counts if the process that it is named after made it.

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "../common/control.h"
#include "../say.h"
#include "launcher.h"

enum { PATIENCE = 10 }; // seconds for an answer

static const struct {
    const char *word;
    enum gpt_command command;
} commands[] = {{"status", GPT_STATUS}, {"enable", GPT_ENABLE}, {"disable", GPT_DISABLE}};

struct asking {
    struct gpt_order order;
    bool all, json, tells;
    pid_t pid;
    char run[32]; // its number; empty: not known yet
    int asked;
    bool failed;
};

// Says that of one process of several something is wrong.
__attribute__((format(printf, 3, 4))) static void say(struct asking *asking, pid_t pid, const char *format,
                                                      ...) {
    char text[512], line[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    snprintf(line, sizeof(line), "gpt-hook: error: %d: %s", pid, text);
    gpt_write_line(line);
    asking->failed = true;
}

// What it says of itself

static void put_text(const char *text, bool json) {
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        size_t shown = gpt_shown(at);
        if (json && (*at == '"' || *at == '\\'))
            putchar('\\');
        if (!shown)
            printf(json ? "\\u00%02x" : "\\x%02x", *at++);
        while (shown--)
            putchar(*at++);
    }
}

static void show(const struct gpt_state *state, pid_t pid, bool json) {
    static const char *const units[] = {"KiB", "MiB", "GiB"};
    double size = (double)state->bytes / 1024, ago = (double)time(NULL) - (double)state->since / 1e9;
    unsigned unit = 0;
    if (json) {
        printf("{\"pid\":%d,\"recording\":%s,\"since\":%lu,\"periods\":%lu,\"launches\":%lu,\"bytes\":%lu,"
               "\"output\":\"",
               pid, state->recording ? "true" : "false", state->since, state->periods, state->launches,
               state->bytes);
        put_text(state->output, true);
        printf("\"}\n");
        return;
    }
    for (; size >= 1000 && unit < 2; unit++)
        size /= 1024;
    printf("process    %d\nrecording  %s", pid, state->recording ? "on" : "off");
    if (state->since)
        printf(", since %.0f s", ago > 0 ? ago : 0);
    printf("\nperiods    %lu\nlaunches   %lu\ntrace      ", state->periods, state->launches);
    put_text(*state->output ? state->output : "none any more", false);
    printf(*state->output ? ", %.*f %s\n" : "\n", size < 10, size, units[unit]);
}

// Asking

// Connects to a socket of this name, if it is that process's; another one's has errno ESRCH.
static int reach(pid_t pid, const char *name) {
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
    if (!getsockopt(file, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.pid == pid)
        return file;
    close(file);
    errno = ESRCH;
    return -1;
}

static void ask(struct asking *asking, pid_t pid, const char *name) {
    static struct gpt_state state;
    int file = reach(pid, name);
    if (file < 0 && errno == ESRCH)
        return; // somebody else took the name
    asking->asked++;
    ssize_t got = file < 0 ? -1 : send(file, &asking->order, sizeof(asking->order), MSG_NOSIGNAL);
    got = got < 0 ? got : recv(file, &state, sizeof(state), 0);
    if (got < 0 && errno == EAGAIN)
        say(asking, pid, "does not answer: it may be stopped");
    else if (got < 0 && errno != ECONNRESET && errno != ECONNREFUSED)
        say(asking, pid, "%s", strerror(errno));
    else if (got < (ssize_t)sizeof(state) || state.version != GPT_CONTROL_VERSION)
        say(asking, pid,
            got > 0 ? "it runs under another version of gpt-hook" : "it takes no orders of this user");
    else if (*state.fault)
        say(asking, pid, "%s", state.fault);
    else if (asking->tells)
        show(&state, pid, asking->json);
    if (file >= 0)
        close(file);
}

// Asks the processes that listen: that of the pid, or those of the run.
static void ask_each(struct asking *asking) {
    char line[512], run[32], name[108];
    FILE *sockets = fopen("/proc/net/unix", "re");
    while (sockets && fgets(line, sizeof(line), sockets)) {
        const char *at = strstr(line, " @gpt-control."); // that listens: connections have the name too
        int pid;
        if (!at || !strstr(line, " 00010000 ") || sscanf(at, " @" GPT_CONTROL_FORMAT, &pid, run) != 2)
            continue;
        snprintf(name, sizeof(name), GPT_CONTROL_NAME, pid, run);
        if (asking->all ? !strcmp(run, asking->run) : pid == asking->pid)
            ask(asking, pid, name);
    }
    if (sockets)
        fclose(sockets);
}

// A variable in the environment that a process was started with; false if it had none, or that is not known.
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

// Nobody was asked: why not.
__attribute__((noreturn)) static void explain(const struct asking *asking) {
    char where[32], path[64];
    struct stat process;
    snprintf(where, sizeof(where), "%d", asking->pid);
    snprintf(path, sizeof(path), "/proc/%d", asking->pid);
    if (stat(path, &process))
        fail(BAD, where, "no such process");
    if (geteuid() && process.st_uid != geteuid())
        fail(BAD, where, "another user's process");
    if (*asking->run)
        fail(BAD, where,
             asking->all ? "no process of its run has used the driver"
                         : "it has not used the driver; --all asks the other processes of its run");
    fail(BAD, where, "not started by 'gpt-hook run --disabled' or 'gpt-hook run --control'");
}

static void read_words(struct asking *asking, int argc, char **argv) {
    static const struct option options[] = {{"all", no_argument, NULL, 'a'},
                                            {"json", no_argument, NULL, 'j'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    for (int option; (option = getopt_long(argc, argv, ":h", options, NULL)) != -1;)
        if (option == 'a')
            asking->all = true;
        else if (option == 'j')
            asking->json = true;
        else if (option == 'h')
            help();
        else
            fail(USAGE, argv[optind - 1], "no such option; see gpt-hook --help");
    char *end = "", **words = argv + optind;
    long pid = *words ? strtol(*words, &end, 10) : 0;
    if (!*words || !words[1] || words[2])
        fail(USAGE, "ctl", "needs a process id and one of enable, disable and status");
    if (*end || pid <= 0 || pid > INT_MAX)
        fail(USAGE, *words, "not a process id");
    asking->pid = (pid_t)pid;
    for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++)
        if (!strcmp(words[1], commands[i].word)) {
            asking->order.command = commands[i].command;
            asking->tells = commands[i].command == GPT_STATUS;
            return;
        }
    fail(USAGE, words[1], "not a command: enable, disable or status");
}

int control(int argc, char **argv) {
    struct asking asking = {.order = {.version = GPT_CONTROL_VERSION}};
    read_words(&asking, argc, argv);
    bool known = find_variable(asking.pid, GPT_CONTROL, asking.run, sizeof(asking.run));
    if (!asking.all || known)
        ask_each(&asking);
    if (!asking.asked)
        explain(&asking);
    return asking.failed ? BAD : 0;
}
