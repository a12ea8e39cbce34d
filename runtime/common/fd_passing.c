// Messages and files between clients and the supervisor, and whom they trust.

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "broker.h"

enum { HIGH = 700 }; // programs hardly use descriptors this high

int gpt_set_aside(int file) {
    int error = errno, high = file < 0 ? -1 : fcntl(file, F_DUPFD_CLOEXEC, HIGH);
    errno = error;
    if (high < 0)
        return file;
    close(file);
    return high;
}

ssize_t gpt_write_quietly(int file, const void *data, size_t size) {
    sigset_t caused, mask;
    sigemptyset(&caused);
    sigaddset(&caused, SIGXFSZ);
    sigprocmask(SIG_BLOCK, &caused, &mask);
    ssize_t written = write(file, data, size);
    if (written < 0 && errno == EFBIG) {
        sigtimedwait(&caused, NULL, &(struct timespec){0});
        errno = EFBIG;
    }
    sigprocmask(SIG_SETMASK, &mask, NULL);
    return written;
}

int gpt_make_file(const void *data, size_t size) {
    int file = gpt_set_aside(memfd_create("gpt", MFD_CLOEXEC));
    for (size_t done = 0; file >= 0 && done < size;) {
        ssize_t more = gpt_write_quietly(file, (const char *)data + done, size - done);
        if (more < 0 && errno == EINTR)
            continue;
        if (more <= 0) {
            int error = errno;
            close(file);
            errno = error;
            return -1;
        }
        done += (size_t)more;
    }
    if (file >= 0)
        lseek(file, 0, SEEK_SET);
    return file;
}

bool gpt_send(int socket, const void *data, size_t size, const int files[GPT_FILES]) {
    char room[CMSG_SPACE(GPT_FILES * sizeof(*files))] __attribute__((aligned(8))) = {0};
    struct iovec part = {(void *)data, size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    size_t bytes = (files[0] >= 0 ? files[1] >= 0 ? 2 : 1 : 0) * sizeof(*files);
    if (bytes) {
        message.msg_control = room, message.msg_controllen = CMSG_SPACE(bytes);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        *head = (struct cmsghdr){CMSG_LEN(bytes), SOL_SOCKET, SCM_RIGHTS};
        memcpy(CMSG_DATA(head), files, bytes);
    }
    ssize_t sent;
    while ((sent = sendmsg(socket, &message, MSG_NOSIGNAL)) < 0 && errno == EINTR)
        continue;
    return sent == (ssize_t)size;
}

// A hostile process may have sent these descriptors; we learn who the sender was only after receiving them.
// Closing one can take as long as the sender likes: a socket with SO_LINGER waits for its data to go out, and
// a FUSE server is asked to flush its file. The number is free at once, so a thread closes each that isn't a
// file in memory.

enum { MOST_SLOW = 64 };
static int slow; // threads that are closing

static void *close_slowly(void *file) {
    close((int)(intptr_t)file);
    __atomic_sub_fetch(&slow, 1, __ATOMIC_RELAXED);
    return NULL;
}

static bool closes_at_once(int file) {
    enum { IN_MEMORY = 0x01021994 }; // TMPFS_MAGIC, of a memfd too
    struct statfs system;
    struct stat status;
    return !fstat(file, &status) && S_ISREG(status.st_mode) && !fstatfs(file, &system) &&
           system.f_type == IN_MEMORY;
}

static void discard(int file) {
    sigset_t all, mask;
    pthread_t thread;
    bool counted = !closes_at_once(file), apart = false;
    if (counted && __atomic_add_fetch(&slow, 1, __ATOMIC_RELAXED) <= MOST_SLOW) {
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &mask);
        apart = !pthread_create(&thread, NULL, close_slowly, (void *)(intptr_t)file);
        pthread_sigmask(SIG_SETMASK, &mask, NULL);
    }
    if (apart) {
        pthread_detach(thread);
        return;
    }
    close(file);
    if (counted)
        __atomic_sub_fetch(&slow, 1, __ATOMIC_RELAXED);
}

void gpt_discard(int files[GPT_FILES]) {
    for (int *file = files; file < files + GPT_FILES; file++) {
        if (*file >= 0)
            discard(*file);
        *file = -1;
    }
}

void gpt_hang_up(int socket) {
    int files[GPT_FILES];
    char byte;
    pid_t sender;
    shutdown(socket, SHUT_RD);
    // What nobody has read yet has descriptors, too, and a sender: the end of it has none.
    while (sender = 0, gpt_receive(socket, &byte, sizeof(byte), files, &sender) >= 0 && sender)
        gpt_discard(files);
    close(socket);
}

ssize_t gpt_receive(int socket, void *data, size_t size, int files[GPT_FILES], pid_t *sender) {
    enum { MOST = 253 }; // SCM_MAX_FD: the kernel would close those without room
    struct ucred credentials;
    char room[CMSG_SPACE(MOST * sizeof(*files)) + CMSG_SPACE(sizeof(credentials))]
        __attribute__((aligned(8)));
    struct iovec part = {data, size};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
    ssize_t got;
    files[0] = files[1] = -1;
    while ((got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        continue;
    struct cmsghdr *head = got < 0 ? NULL : CMSG_FIRSTHDR(&message);
    for (; head; head = CMSG_NXTHDR(&message, head)) {
        size_t count = head->cmsg_type == SCM_RIGHTS ? (head->cmsg_len - CMSG_LEN(0)) / sizeof(*files) : 0;
        for (size_t i = 0; i < count; i++) {
            int file;
            memcpy(&file, CMSG_DATA(head) + i * sizeof(file), sizeof(file));
            if (i < GPT_FILES)
                files[i] = file;
            else
                discard(file); // there was room for another file, since no credentials came
        }
        if (sender && head->cmsg_type == SCM_CREDENTIALS) {
            memcpy(&credentials, CMSG_DATA(head), sizeof(credentials));
            *sender = credentials.pid;
        }
    }
    if (got < 0 || !(message.msg_flags & MSG_CTRUNC))
        return got;
    gpt_close(files);
    errno = EMFILE; // we ran out of descriptors for a file
    return -1;
}

void gpt_close(int files[GPT_FILES]) {
    for (int *file = files; file < files + GPT_FILES; file++) {
        if (*file >= 0)
            close(*file);
        *file = -1;
    }
}

uint64_t gpt_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000 + (uint64_t)time.tv_nsec / 1000000;
}

bool gpt_wait_for(int file, uint64_t until) {
    for (;;) {
        uint64_t now = gpt_now();
        int found = poll(&(struct pollfd){file, POLLIN, 0}, 1, now < until ? (int)(until - now) : 0);
        if (found > 0 || (found < 0 && errno != EINTR))
            return true; // the reader will see what's wrong
        if (now >= until)
            return false;
    }
}

const char *gpt_find_broker(void) {
    static const char *found;
    const char *name = __atomic_load_n(&found, __ATOMIC_ACQUIRE), *value = name ? NULL : getenv(GPT_BROKER);
    if (name || !(name = strdup(value ? value : "")))
        return name ? name : "";
    __atomic_store_n(&found, name, __ATOMIC_RELEASE);
    return name;
}

// Peers
//
// Both ends must see the system in the same way: the same user, mount and network namespace, the same root
// directory. A process that doesn't is in a sandbox, and has no say in what runs outside it; nor may it
// answer others, since they would run its code. A shell runs the text of a pipeline, so neither the sender
// nor the answerer may be confined by a system call filter, or by anything that needs no_new_privs
// (Landlock), if the other end isn't. Root may also pass one for another user's program. An order of gpt-hook
// ctl has no such text, and a program may well be in other namespaces than ctl. So ctl is refused only if
// it's known to be in another user namespace, as a sandboxed child of the program would be.

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 // Linux 6.5
#endif

static const struct {
    const char *name, *peer, *supervisor;
} places[] = {
    {"ns/user", "a process in another user namespace", "gpt-hook's supervisor is in another user namespace"},
    {"ns/mnt", "a process in another mount namespace", "gpt-hook's supervisor is in another mount namespace"},
    {"ns/net", "a process in another network namespace",
     "gpt-hook's supervisor is in another network namespace"},
    {"root", "a process with another root directory", "gpt-hook's supervisor has another root directory"},
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

// The first that differs.
static int compare_places(pid_t pid) {
    int found = SAME;
    for (int i = 0; i < PLACES && found == SAME; i++)
        found = compare_place(pid, i);
    return found;
}

// Return a number from the status of a process (this thread for 0), or 0 if it's not there.
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

// Sets `is_root` for a process of root's that acts for another user's program.
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

// The kernel says who connected (SO_PEERCRED) and who sent the message (SCM_CREDENTIALS). It must be the same
// process, and still exist after the checks, so that its pid can't have been reused meanwhile.
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

// Opens a folder by its absolute name, in which no part may be a link. Returns -1 with errno set.
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
        return "gpt-hook's supervisor is another user's";
    int place = peer.pid > 0 ? compare_places(peer.pid) : UNSEEN;
    if (place == UNSEEN)
        return "gpt-hook's supervisor is hidden from this process";
    if (place != SAME)
        return places[place].supervisor;
    return is_confined(peer.pid) ? "gpt-hook's supervisor is confined, so it's some other process" : NULL;
}

const char *gpt_reach(int file, const char *name, uid_t owner) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int status = -1, folder = *name == '/' ? gpt_set_aside(open_without_links(name)) : -1;
    if (folder >= 0 && gpt_owns_folder(folder, owner)) {
        // Not by name, because that may be too long for an address, or lead elsewhere by now.
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
    return !status           ? fault
           : error == EACCES ? "gpt-hook's supervisor is another user's"
                             : "gpt-hook's supervisor has ended, or this process can't reach it";
}

bool gpt_connect(int file, const char *name) { return !gpt_reach(file, name, geteuid()); }

bool gpt_read_file(int file, struct gpt_bytes *found) {
    struct stat status;
    ssize_t got = 1;
    if (fstat(file, &status))
        return false;
    if (!status.st_size)
        return true; // an answer may be empty
    if (!gpt_make_room(found, (size_t)status.st_size))
        return false;
    size_t end = found->size + (size_t)status.st_size;
    for (off_t at = 0; found->size < end && got > 0; at += got) {
        got = pread(file, found->data + found->size, end - found->size, at);
        found->size += got > 0 ? (size_t)got : 0;
    }
    return found->size == end;
}
