// The file next to the trace, for large buffers. Only one thread writes to it.

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/broker.h"
#include "common/own.h"
#include "hook/write/write.h"
#include "probe.h"

static int side_file = -1;
static struct stat side;             // its identity, once it exists
static uint64_t side_end, side_size; // the end of its last buffer, and the start of its next
static char side_path[4200];

static bool is_side(int file, struct stat *found) {
    return !fstat(file, found) && found->st_dev == side.st_dev && found->st_ino == side.st_ino;
}

// Report once that the file can't be used. `fact` may be NULL: what errno says.
static void say_side(const char *fact) {
    static bool said;
    if (!said)
        hook_say(side_path, fact ? fact : hook_describe_error(errno), "buffers are lost");
    said = true;
}

// Never use an existing file, even if it's ours: take the next number.
static int make_side(void) {
    int file = -1, size = snprintf(side_path, sizeof(side_path) - 16, "%s.buffers", hook_live->path);
    for (int number = 2; file < 0 && number < 1000 && (number == 2 || errno == EEXIST); number++) {
        file = gpt_create(AT_FDCWD, side_path, O_WRONLY, 0600);
        if (file < 0)
            snprintf(side_path + size, 16, ".%d", number);
    }
    return file;
}

// The program may close descriptors that it didn't open, and then get the same number for a file of its own.
// So before each use, we check whose file it is.
static bool find_side(struct stat *found) {
    bool made = *side_path;
    if (made && side_file >= 0 && is_side(side_file, found))
        return true;
    if (made && !side.st_ino)
        return false; // it was tried
    side_file = gpt_set_aside(made ? open(side_path, O_WRONLY | O_CLOEXEC | O_NOFOLLOW) : make_side());
    if (!made && side_file >= 0)
        fstat(side_file, &side);
    if (side_file >= 0 && is_side(side_file, found))
        return true;
    if (side_file < 0) {
        say_side(NULL);
    } else {
        close(side_file);
        say_side("was replaced by another file");
    }
    side_file = -1;
    return false;
}

// Give the file up if somebody deleted or truncated it. If we wrote on, a truncated file would get zeros
// where earlier buffers were, which a reader may take for data.
static bool open_side(void) {
    struct stat found;
    if (!find_side(&found))
        return false;
    if (found.st_nlink && (uint64_t)found.st_size >= side_end)
        return true;
    say_side(found.st_nlink ? "was truncated" : "was deleted");
    close(side_file);
    side_file = -1;
    side.st_ino = 0;
    return false;
}

static bool write_side(uint64_t offset, const char *data, uint64_t size) {
    for (uint64_t done = 0; done < size;) {
        ssize_t more = pwrite(side_file, data + done, size - done, (off_t)(offset + done));
        if (more < 0 && errno == EINTR)
            continue;
        if (more <= 0) {
            say_side(NULL);
            return false;
        }
        done += (uint64_t)more;
    }
    return true;
}

bool hook_put_beside(const void *data, uint64_t size, uint64_t *offset) {
    if (!hook_may_write((size + 7) / 8 * 8, false) || !open_side() || !write_side(side_size, data, size))
        return false;
    *offset = side_size;
    side_end = side_size + size;
    side_size += (size + 7) / 8 * 8;
    return true;
}

const char *hook_name_beside(void) {
    const char *slash = strrchr(side_path, '/');
    return slash ? slash + 1 : side_path;
}
