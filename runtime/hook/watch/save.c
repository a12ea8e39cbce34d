// --save-modules DIR: the images of modules that lie in no file, each in one named by its digest. It is
// written beside and renamed, so under its name it is whole; the second to come finds it there. What is
// killed meanwhile leaves a hidden file.

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/own.h"
#include "hook/write/write.h"
#include "watch.h"

static const char *folder;

void hook_save_setup(void) { folder = hook_keep_variable("GPT_HOOK_MODULES"); }

static bool write_all(int file, const char *data, size_t size) {
    while (size) {
        ssize_t done = write(file, data, size);
        if (done < 0 && errno != EINTR)
            return false;
        if (done > 0)
            data += done, size -= (size_t)done;
    }
    return true;
}

// Whether it is there: in a shared folder another user may have put something there, which is replaced.
static bool is_saved(const char *path) {
    struct stat status;
    return gpt_is_own(AT_FDCWD, path, &status) && !(status.st_mode & (S_IWGRP | S_IWOTH));
}

// Returns where the image is, or NULL if it is not saved.
const char *hook_save_image(const void *data, size_t size, const char *digest, const char *type,
                            char path[4096]) {
    static _Atomic bool complained;
    char part[GPT_PART_BYTES];
    if (!folder || snprintf(path, 4096, "%s/%s.%s", folder, digest, type) >= 4096 - 64)
        return NULL;
    if (is_saved(path))
        return path;
    int place = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int file = place < 0 ? -1 : gpt_create_part(place, part, 0644);
    bool good = file >= 0 && hook_may_grow(size) && write_all(file, data, size);
    good = file >= 0 && !close(file) && good && !renameat(place, part, place, strrchr(path, '/') + 1);
    int error = errno;
    if (file >= 0 && !good)
        unlinkat(place, part, 0);
    if (place >= 0)
        close(place);
    if (good)
        return path;
    const char *fact = hook_describe_error(error);
    if (!atomic_exchange(&complained, true))
        hook_say(path, fact ? fact : "unknown error", "it is not saved");
    return NULL;
}
