// Opens a folder that will hold code to run, or in which files are deleted.
//
// Checking the folder itself isn't enough. A user who can rename or replace any folder on its path can put a
// link in its place: then we'd run another user's code, or delete our own files, or as root everybody's. So
// we walk from the root, open each component without following links, and check the open file rather than its
// name, which may mean something else a moment later:
//
// Each folder must be root's or this user's, and nobody else may write to it, unless it has the sticky bit,
// as /tmp does. In such a folder others can add names but not replace ours, and they own what they added.
//
// A link is followed if it's root's or this user's, and is in a folder that nobody else may write to at all:
// a home that was moved, /home/x -> /data/x. The same rules apply to its target.
//
// The last two components, gpt and the folder itself, are created by us, so they must be this user's folders,
// not links.
//
// The group is treated like other users, because its members can't be known here. An access control list
// shows in the group bits. openat2(2) with RESOLVE_NO_SYMLINKS isn't enough: it doesn't check owners, and
// it fails if the path to the home directory has a link.

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker.h"
#include "private.h"

enum { OWN = 2, MOST_LINKS = 40 };

struct walk {
    int at;                  // the current folder
    struct stat status;      // its status
    int links;               // followed so far
    bool make;               // make folders that aren't there
    char text[PATH_MAX];     // where we are, for messages
    char rest[2 * PATH_MAX]; // the part of the path that is still to walk
    struct gpt_distrust *why;
};

static bool others_may_write(const struct stat *status) { return status->st_mode & (S_IWGRP | S_IWOTH); }

static bool is_trusted(uid_t owner) { return gpt_is_user(owner, 0) || gpt_is_user(owner, geteuid()); }

bool gpt_is_private(int file, mode_t type) {
    struct stat status;
    return !fstat(file, &status) && (status.st_mode & S_IFMT) == type &&
           gpt_is_user(status.st_uid, geteuid()) && !others_may_write(&status);
}

static bool distrust(struct walk *walk, const char *format, unsigned number) {
    snprintf(walk->why->where, sizeof(walk->why->where), "%s", *walk->text ? walk->text : "/");
    snprintf(walk->why->reason, sizeof(walk->why->reason), format, number);
    return false;
}

static bool judge(struct walk *walk, bool own) {
    uid_t owner = walk->status.st_uid;
    if (own ? !gpt_is_user(owner, geteuid()) : !is_trusted(owner)) {
        // In a user namespace without a mapping, every file seems to belong to this user.
        bool anybody = owner == geteuid();
        return distrust(walk, anybody ? "belongs to user %u, who may be anybody" : "belongs to user %u",
                        owner);
    }
    if (others_may_write(&walk->status) && (own || !(walk->status.st_mode & S_ISVTX)))
        return distrust(walk, "other users may write to it (mode %o)", walk->status.st_mode & 07777);
    return true;
}

// Take the next word off the path; return false at its end. A word that's too long is truncated, so it won't
// be found.
static bool next_word(struct walk *walk, char word[NAME_MAX + 2]) {
    size_t skip = strspn(walk->rest, "/"), size = strcspn(walk->rest + skip, "/");
    snprintf(word, NAME_MAX + 2, "%.*s", (int)(size > NAME_MAX ? NAME_MAX + 1 : size), walk->rest + skip);
    memmove(walk->rest, walk->rest + skip + size, strlen(walk->rest + skip + size) + 1);
    return size;
}

static bool go_to(struct walk *walk, int next, const struct stat *status) {
    close(walk->at);
    walk->at = next;
    walk->status = *status;
    return next >= 0;
}

static bool begin(struct walk *walk) {
    struct stat status;
    int top = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
    *walk->text = '\0';
    return top >= 0 && !fstat(top, &status) && go_to(walk, top, &status) && judge(walk, false);
}

static bool follow(struct walk *walk, int link, const struct stat *status) {
    char target[PATH_MAX];
    if (others_may_write(&walk->status) || !is_trusted(status->st_uid))
        return distrust(walk, "is a symbolic link that another user may have made", 0);
    ssize_t size = readlinkat(link, "", target, sizeof(target));
    size_t left = strlen(walk->rest);
    if (size <= 0 || size == sizeof(target) || (size_t)size + left + 2 > sizeof(walk->rest) ||
        ++walk->links > MOST_LINKS)
        return false;
    memmove(walk->rest + size + 1, walk->rest, left + 1);
    memcpy(walk->rest, target, (size_t)size);
    walk->rest[size] = '/';
    char *end = strrchr(walk->text, '/'); // the link itself isn't part of the current folder's name
    if (end)
        *end = '\0';
    return *target != '/' || begin(walk);
}

static int open_word(struct walk *walk, const char *word) {
    int next = openat(walk->at, word, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (next < 0 && errno == ENOENT && walk->make && (!mkdirat(walk->at, word, 0700) || errno == EEXIST))
        next = openat(walk->at, word, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    return next;
}

static bool step(struct walk *walk, const char *word, bool own) {
    struct stat status;
    size_t size = strlen(walk->text);
    int next = open_word(walk, word);
    if (next < 0)
        return false;
    if (fstat(next, &status)) {
        close(next);
        return false;
    }
    snprintf(walk->text + size, sizeof(walk->text) - size, "/%s", word);
    if (S_ISDIR(status.st_mode))
        return go_to(walk, next, &status) && judge(walk, own);
    bool good = S_ISLNK(status.st_mode) &&
                (own ? distrust(walk, "is a symbolic link", 0) : follow(walk, next, &status));
    close(next);
    return good;
}

// The last words of a path mustn't be links; earlier words may be links to any trusted folder.
static bool walk_to(struct walk *walk, const char *path) {
    char word[NAME_MAX + 2];
    const char *own = path + strlen(path);
    for (int words = 0; words < OWN && own > path; words++) {
        while (own > path && own[-1] == '/')
            own--;
        while (own > path && own[-1] != '/')
            own--;
    }
    snprintf(walk->rest, sizeof(walk->rest), "%.*s", (int)(own - path), path);
    if (!begin(walk))
        return false;
    while (next_word(walk, word))
        if (!step(walk, word, false))
            return false;
    snprintf(walk->rest, sizeof(walk->rest), "%s", own);
    while (next_word(walk, word))
        if (!step(walk, word, true))
            return false;
    return true;
}

int gpt_open_private(const char *path, bool make, struct gpt_distrust *why) {
    int folder = -1;
    *why->reason = '\0';
    if (*path != '/' || strlen(path) >= PATH_MAX)
        return -1;
    struct walk *walk = malloc(sizeof(*walk)); // too large for a small thread's stack
    if (!walk)
        return -1;
    walk->at = -1;
    walk->links = 0;
    walk->make = make;
    walk->why = why;
    if (walk_to(walk, path))
        folder = openat(walk->at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (walk->at >= 0)
        close(walk->at);
    free(walk);
    return folder;
}
