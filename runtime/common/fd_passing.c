// Sends and receives messages and files between clients and the supervisor.

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "broker.h"

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

// A hostile process may have sent these descriptors, since we learn the sender only by receiving a message.
// Closing such a file can take as long as its sender likes: a socket with SO_LINGER waits until its data has
// been sent, and a FUSE server is asked to flush its file. The number of the descriptor is free at once,
// however. So any file that isn't in memory is closed by a separate thread.

enum { MOST_SLOW = 64 };
static int slow; // threads in close_slowly

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
    // Unread messages may contain descriptors. Each message has a sender; once no sender is set, the queue is
    // empty.
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

void gpt_set_fault(struct gpt_reply *reply, struct gpt_fault fault) {
    snprintf(reply->code, sizeof(reply->code), "%s", fault.code ? fault.code : "");
    snprintf(reply->fault, sizeof(reply->fault), "%s", fault.detail);
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
