// An executable of ours as tests run it: the server of tests/loaded.py forks a process that has imported the
// package, and that process gets our arguments, environment, folder and standard streams. Signals are passed
// on, and we end as it does. If there's no server, a stream is closed, other files are open, or the
// server says that only a new process will do, the executable in `real` runs.

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { ROOM = 1 << 17 }; // bytes of a request

extern char **environ;

static const int passed_on[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
static volatile sig_atomic_t process;
static char request[ROOM];
static size_t used;

static void pass_on(int number) { kill(process, number); }

static void run_real(char **argv) {
    static char path[PATH_MAX], real[PATH_MAX + 64];
    ssize_t size = readlink("/proc/self/exe", path, sizeof(path) - 1);
    const char *name = strrchr(argv[0], '/');
    if (size < 0)
        size = 0;
    path[size] = '\0';
    if (strrchr(path, '/'))
        *strrchr(path, '/') = '\0';
    snprintf(real, sizeof(real), "%s/real/%s", path, name ? name + 1 : argv[0]);
    execv(real, argv);
    perror(real);
    _exit(127);
}

static void add(const char *text) {
    size_t size = strlen(text) + 1;
    if (used + size <= sizeof(request))
        memcpy(request + used, text, size);
    used += size;
}

// Privileges and namespaces.
static void add_rights(void) {
    static const char *const lines[] = {"Uid:", "Gid:", "Groups:", "Cap", "NoNewPrivs:", "Seccomp:"};
    static const char *const spaces[] = {"mnt", "net", "pid", "user"};
    char text[4096] = "", line[1024];
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof(line), file))
        for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++)
            if (!strncmp(line, lines[i], strlen(lines[i])) && strlen(text) + strlen(line) < sizeof(text))
                strcat(text, line);
    if (file)
        fclose(file);
    add(text);
    for (size_t i = 0; i < sizeof(spaces) / sizeof(*spaces); i++) {
        snprintf(text, sizeof(text), "/proc/self/ns/%s", spaces[i]);
        ssize_t size = readlink(text, line, sizeof(line) - 1);
        line[size < 0 ? 0 : size] = '\0';
        add(line);
    }
}

// What a child inherits, other than the streams and the folder: ignored signals, the umask, limits, rights.
static void add_inherited(void) {
    char text[64];
    struct sigaction action;
    unsigned long long ignored = 0;
    for (int number = 1; number < 32; number++)
        if (!sigaction(number, NULL, &action) && action.sa_handler == SIG_IGN)
            ignored |= 1ull << number;
    mode_t mask = umask(0);
    umask(mask);
    snprintf(text, sizeof(text), "%llu", ignored), add(text);
    snprintf(text, sizeof(text), "%u", (unsigned)mask), add(text);
    for (int which = 0; which < (int)RLIM_NLIMITS; which++) {
        struct rlimit limit;
        getrlimit((__rlimit_resource_t)which, &limit);
        snprintf(text, sizeof(text), "%lld:%lld", (long long)limit.rlim_cur, (long long)limit.rlim_max),
            add(text);
    }
    add_rights();
}

static int send_request(const char *path, int argc, char **argv) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char folder[PATH_MAX], number[16];
    struct stat socket_file;
    int server = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), streams[] = {0, 1, 2};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(streams))];
    } control = {
        .header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(streams))}};
    if (server < 0 || strlen(path) >= sizeof(address.sun_path) || stat(path, &socket_file) ||
        socket_file.st_uid != geteuid() || !getcwd(folder, sizeof(folder)))
        return -1;
    strcpy(address.sun_path, path);
    add_inherited();
    add(folder);
    snprintf(number, sizeof(number), "%d", argc), add(number);
    for (char **word = argv; *word; word++)
        add(*word);
    for (char **variable = environ; *variable; variable++)
        add(*variable);
    memcpy(CMSG_DATA(&control.header), streams, sizeof(streams));
    struct iovec data = {request, used};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control.space)};
    if (used > sizeof(request) || connect(server, (struct sockaddr *)&address, sizeof(address)) ||
        sendmsg(server, &message, MSG_NOSIGNAL) < 0)
        return -1;
    return server;
}

// Returns false if the server has ended.
static int receive(int server, int *number) {
    char text[32] = "";
    ssize_t size;
    do
        size = recv(server, text, sizeof(text) - 1, 0);
    while (size < 0 && errno == EINTR);
    *number = atoi(text);
    return size > 0;
}

// The process gets only the streams, so a pipe such as /dev/fd/63 needs the real executable.
static bool has_other_files(void) {
    for (int file = 3; file < 256; file++) {
        int flags = fcntl(file, F_GETFD);
        if (flags >= 0 && !(flags & FD_CLOEXEC))
            return true;
    }
    return false;
}

int main(int argc, char **argv) {
    const char *path = getenv("TESTS_SERVER");
    bool open = fcntl(0, F_GETFD) >= 0 && fcntl(1, F_GETFD) >= 0 && fcntl(2, F_GETFD) >= 0;
    int number, status, server = path && open && !has_other_files() ? send_request(path, argc, argv) : -1;
    if (server < 0 || !receive(server, &number) || number <= 0)
        run_real(argv);
    process = number;
    for (size_t i = 0; i < sizeof(passed_on) / sizeof(*passed_on); i++) {
        struct sigaction action;
        if (!sigaction(passed_on[i], NULL, &action) && action.sa_handler == SIG_DFL)
            signal(passed_on[i], pass_on);
    }
    for (int stream = 0; stream < 2; stream++) // the process may close its own before it ends
        close(stream);
    if (!receive(server, &status))
        status = -SIGKILL;
    if (status >= 0)
        _exit(status);
    signal(-status, SIG_DFL);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0});
    raise(-status);
    _exit(128 - status);
}
