// Descriptors of our own in a program: where the program hardly has any, and written without the signal that
// a limit of file sizes may send.

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
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

static void block_signal(sigset_t *caused, sigset_t *mask) {
    sigemptyset(caused);
    sigaddset(caused, SIGXFSZ);
    sigprocmask(SIG_BLOCK, caused, mask);
}

// Discard the signal if it came, and keep errno.
static void unblock_signal(const sigset_t *caused, const sigset_t *mask, bool came) {
    int error = errno;
    if (came && error == EFBIG)
        sigtimedwait(caused, NULL, &(struct timespec){0});
    sigprocmask(SIG_SETMASK, mask, NULL);
    errno = error;
}

ssize_t gpt_write_quietly(int file, const void *data, size_t size) {
    sigset_t caused, mask;
    block_signal(&caused, &mask);
    ssize_t written = write(file, data, size);
    unblock_signal(&caused, &mask, written < 0);
    return written;
}

bool gpt_resize_quietly(int file, size_t size) {
    sigset_t caused, mask;
    block_signal(&caused, &mask);
    bool resized = !ftruncate(file, (off_t)size);
    unblock_signal(&caused, &mask, !resized);
    return resized;
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
