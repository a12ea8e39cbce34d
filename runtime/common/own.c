// Files that we make and recognize: see own.h.

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "broker.h"
#include "own.h"

int gpt_create(int folder, const char *name, int access, mode_t mode) {
    int file;
    do
        file = openat(folder, name, access | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, mode);
    while (file < 0 && errno == EINTR);
    return file;
}

int gpt_create_part(int folder, char name[GPT_PART_BYTES], mode_t mode) {
    uint64_t number[2]; // process numbers come again
    if (getrandom(number, sizeof(number), 0) != sizeof(number))
        return -1;
    snprintf(name, GPT_PART_BYTES, ".gpt-%016lx%016lx.part", number[0], number[1]);
    return gpt_create(folder, name, O_WRONLY, mode);
}

bool gpt_is_part(const char *name) {
    return strlen(name) == GPT_PART_BYTES - 1 && !strncmp(name, ".gpt-", 5) &&
           strspn(name + 5, "0123456789abcdef") == 32 && !strcmp(name + 37, ".part");
}

bool gpt_is_own(int folder, const char *name, struct stat *status) {
    struct stat found;
    status = status ? status : &found;
    return !fstatat(folder, name, status, AT_SYMLINK_NOFOLLOW) && S_ISREG(status->st_mode) &&
           gpt_is_user(status->st_uid, geteuid());
}
