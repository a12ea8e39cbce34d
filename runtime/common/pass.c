// What clients and the supervisor pass each other.

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "broker.h"

enum { HIGH = 700 }; // descriptors from here on hardly are the program's

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

ssize_t gpt_receive(int socket, void *data, size_t size, int files[GPT_FILES]) {
    char room[CMSG_SPACE(GPT_FILES * sizeof(*files))] __attribute__((aligned(8))) = {0};
    struct iovec part = {data, size};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof(room)};
    ssize_t got;
    files[0] = files[1] = -1;
    while ((got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR)
        continue;
    struct cmsghdr *head = got < 0 ? NULL : CMSG_FIRSTHDR(&message);
    if (head && head->cmsg_type == SCM_RIGHTS && head->cmsg_len <= CMSG_LEN(GPT_FILES * sizeof(*files)))
        memcpy(files, CMSG_DATA(head), head->cmsg_len - CMSG_LEN(0));
    if (got < 0 || !(message.msg_flags & MSG_CTRUNC))
        return got;
    gpt_close(files);
    errno = EMFILE; // no descriptor is left for a file
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
            return true; // what is wrong is seen by who reads
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

bool gpt_connect(int file, const char *name) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer;
    socklen_t size = sizeof(peer);
    size_t length = strlen(name);
    int status;
    if (length > sizeof(address.sun_path) - 1) {
        errno = EACCES;
        return false;
    }
    memcpy(address.sun_path + 1, name, length); // an abstract one
    while ((status = connect(file, (void *)&address,
                             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length))) &&
           errno == EINTR)
        continue;
    if (status)
        return false;
    errno = EACCES;
    return !getsockopt(file, SOL_SOCKET, SO_PEERCRED, &peer, &size) && peer.uid == geteuid();
}

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

unsigned long gpt_find_network(void) {
    struct stat status;
    return stat("/proc/self/ns/net", &status) ? 0 : status.st_ino;
}
