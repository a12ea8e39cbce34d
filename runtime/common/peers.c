// Decides whom clients and the supervisor trust: which process may be at the other end of a socket.
//
// Both ends must see the system in the same way: the same user, mount and network namespace, and the same
// root directory. A process that doesn't is in a sandbox: it mustn't decide what runs outside of it, or
// answer others, who would run its code. A shell runs the text of a pipeline, so neither the sender nor the
// answerer may be confined by a system call filter, or by anything that needs no_new_privs (Landlock), if the
// other end isn't. Root may also pass a pipeline for another user's program. An order from gpt-hook ctl has
// no such text, and a program may well be in other namespaces than ctl. So ctl is refused only if it's known
// to be in another user namespace, as a sandboxed child of the program would be.

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "broker.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 // Linux 6.5
#endif

static const struct {
    const char *name, *peer, *supervisor;
} places[] = {
    {"ns/user", "a process in another user namespace", "it is in another user namespace"},
    {"ns/mnt", "a process in another mount namespace", "it is in another mount namespace"},
    {"ns/net", "a process in another network namespace", "it is in another network namespace"},
    {"root", "a process with another root directory", "it has another root directory"},
};
enum { PLACES = sizeof(places) / sizeof(*places) };
// The index of a place that differs is returned, or one of:
enum { SAME = -1, UNSEEN = PLACES };

static int compare_place(pid_t pid, int i) {
    struct stat own, other;
    char path[64];
    snprintf(path, sizeof(path), "/proc/thread-self/%s", places[i].name);
    if (stat(path, &own))
        return i < PLACES - 1 ? SAME : UNSEEN; // the kernel lacks this kind of namespace, or there's no /proc
    snprintf(path, sizeof(path), "/proc/%d/%s", pid, places[i].name);
    if (stat(path, &other))
        return UNSEEN;
    return own.st_dev == other.st_dev && own.st_ino == other.st_ino ? SAME : i;
}

// Return the first place that differs.
static int compare_places(pid_t pid) {
    int found = SAME;
    for (int i = 0; i < PLACES && found == SAME; i++)
        found = compare_place(pid, i);
    return found;
}

// Return the number on a line of a process's /proc status, or 0 if there's no such line. The pid 0 stands for
// the calling thread.
static long read_status(pid_t pid, const char *name) {
    char path[64], line[256];
    long value = 0;
    snprintf(path, sizeof(path), pid ? "/proc/%d/status" : "/proc/thread-self/status", pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file))
        if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':')
            value = strtol(line + strlen(name) + 1, NULL, 10);
    if (file)
        fclose(file);
    return value;
}

// Return whether a process is confined and this thread isn't.
static bool is_confined(pid_t pid) {
    static const char *const names[] = {"NoNewPrivs", "Seccomp", "Seccomp_filters"};
    bool confined = false;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        confined |= read_status(pid, names[i]) > read_status(0, names[i]);
    return confined;
}

static const char *look_at(pid_t pid, bool is_root, enum gpt_wish wish) {
    // Only root can see the namespaces of root's processes.
    bool unseen = is_root || wish == GPT_WISH_ORDER;
    int place = wish == GPT_WISH_ORDER ? compare_place(pid, 0) : compare_places(pid);
    if (place == UNSEEN && !unseen)
        return "a process whose namespaces it can't see";
    if (place != SAME && place != UNSEEN)
        return places[place].peer;
    return wish == GPT_WISH_PIPELINE && is_confined(pid)
               ? "a process that is confined (no_new_privs, seccomp)"
               : NULL;
}

// Return the reason to reject a process because of its user, or NULL. Sets `is_root` if it's a process of
// root that acts for a program of another user.
static const char *refuse_user(int socket, enum gpt_wish wish, struct ucred *peer, bool *is_root) {
    socklen_t size = sizeof(*peer);
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, peer, &size))
        return "nobody known";
    *is_root = wish != GPT_WISH_ANSWER && geteuid() && gpt_is_user(peer->uid, 0);
    return *is_root || gpt_is_user(peer->uid, geteuid()) ? NULL : "a process of another user";
}

const char *gpt_refuse_user(int socket, enum gpt_wish wish) {
    struct ucred peer;
    bool is_root;
    return refuse_user(socket, wish, &peer, &is_root);
}

// The kernel reports who connected (SO_PEERCRED) and who sent the message (SCM_CREDENTIALS). Both must be the
// same process. It must also still exist after the checks, since otherwise its pid may have been reused in
// the meantime.
const char *gpt_refuse_peer(int socket, pid_t sender, enum gpt_wish wish) {
    struct ucred peer;
    bool is_root;
    const char *foreign = refuse_user(socket, wish, &peer, &is_root);
    if (foreign)
        return foreign;
    if (peer.pid <= 0 || sender != peer.pid)
        return "a process that uses another one's connection";
    int process = -1;
    socklen_t size = sizeof(process);
    if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &process, &size))
        process = (int)syscall(SYS_pidfd_open, peer.pid,
                               0); // the peer may have ended, and the pid be another process
    const char *fault = look_at(peer.pid, is_root, wish);
    if (process >= 0) {
        bool ended = poll(&(struct pollfd){process, POLLIN, 0}, 1, 0) != 0;
        close(process);
        if (ended)
            fault = "a process that has ended";
    }
    return fault;
}

// The supervisor

const char *gpt_find_broker(void) {
    static const char *found;
    const char *name = __atomic_load_n(&found, __ATOMIC_ACQUIRE), *value = name ? NULL : getenv(GPT_BROKER);
    if (name || !(name = strdup(value ? value : "")))
        return name ? name : "";
    __atomic_store_n(&found, name, __ATOMIC_RELEASE);
    return name;
}

// Open a folder by its absolute name, none of whose parts may be a link. Returns -1 with errno set.
static int open_without_links(const char *name) {
    char part[NAME_MAX + 1];
    int folder = *name == '/' ? open("/", O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
    size_t size;
    for (name += strspn(name, "/"); folder >= 0 && *name; name += size, name += strspn(name, "/")) {
        size = strcspn(name, "/");
        snprintf(part, sizeof(part), "%.*s", (int)(size < sizeof(part) ? size : 0), name);
        int next = openat(folder, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), error = errno;
        close(folder);
        folder = next;
        errno = error;
    }
    return folder;
}

bool gpt_owns_folder(int folder, uid_t owner) {
    struct stat status;
    return !fstat(folder, &status) && S_ISDIR(status.st_mode) && !(status.st_mode & (S_IRWXG | S_IRWXO)) &&
           gpt_is_user(status.st_uid, owner);
}

// Check the process that made the socket, whichever process listens there now.
static const char *refuse_supervisor(int file, uid_t owner) {
    struct ucred peer;
    socklen_t size = sizeof(peer);
    if (getsockopt(file, SOL_SOCKET, SO_PEERCRED, &peer, &size) || !gpt_is_user(peer.uid, owner))
        return "it is another user's";
    int place = peer.pid > 0 ? compare_places(peer.pid) : UNSEEN;
    if (place == UNSEEN)
        return "it is hidden from this process";
    if (place != SAME)
        return places[place].supervisor;
    return is_confined(peer.pid) ? "it is confined (no_new_privs, seccomp)" : NULL;
}

struct gpt_fault gpt_reach(int file, const char *name, uid_t owner) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int status = -1, folder = *name == '/' ? gpt_set_aside(open_without_links(name)) : -1;
    if (folder >= 0 && gpt_owns_folder(folder, owner)) {
        // Connect through the open folder and not by its name, which may be too long for an address, or refer
        // to another folder by now.
        snprintf(address.sun_path, sizeof(address.sun_path), "/proc/thread-self/fd/%d/" GPT_SOCKET, folder);
        while ((status = connect(file, (void *)&address, sizeof(address))) && errno == EINTR)
            continue;
    } else if (folder >= 0 || *name != '/')
        errno = EACCES;
    int error = errno;
    const char *fault = status ? NULL : refuse_supervisor(file, owner);
    if (folder >= 0)
        close(folder);
    errno = status ? error : EACCES;
    if (status && error != EACCES)
        return GPT_FAULT(supervisor_gone, "");
    if (status)
        fault = "it is another user's";
    return fault ? GPT_FAULT(supervisor_untrusted, fault) : GPT_SERVED;
}

bool gpt_connect(int file, const char *name) { return !gpt_reach(file, name, geteuid()).code; }
