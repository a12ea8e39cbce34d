// libgptreplace.so: the dynamic linker loads files from one folder, GPT_HOOK_REPLACE, in place of the
// libraries that the program asks for. It's an auditing library (rtld-audit(7)), loaded through LD_AUDIT, and
// lives in its own namespace, so the program's symbols, errno and heap are untouched.
//
// A file replaces the library with its name, whatever version follows `.so`, and its build id; a symbolic
// link to the library may have another name. If several files in subfolders have the same name, the build id
// decides, and if that's equal too, the path that shares the longest end with the library's.
//
// The linker asks in two ways:
//
//   - For a name without a slash, it passes each path of its search to us before it tries it. It opens the
//     file that we return, but the object keeps the path that was tried. So $ORIGIN, dladdr and debuggers
//     don't notice the replacement.
//   - For a name with a slash, the path that we return becomes the object's path and sets $ORIGIN. The
//     library must still find its neighbours, so we write out $ORIGIN in its dynamic section before the
//     linker reads it, and restore the requested name in the object. The linker frees the name that it made
//     itself, so we put that one back when the object is closed.
//
// One file replaces one library: if it were loaded for two, they'd share their variables. A library that's
// already loaded unreplaced stays that way.
//
// No symbol is bound or called through this: la_objopen asks for none of that. The linker calls one function
// at a time; large buffers are static, since we run on the stack of the thread that calls dlopen, which may
// be small.

#include <limits.h>
#include <link.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "folder.h"
#include "say.h"

#define EXPORT __attribute__((visibility("default")))

struct object { // a loaded one
    struct link_map *map;
    Lmid_t namespace;
    struct object *next;
    dev_t device;
    ino_t inode;
    char *name;         // the linker's own name, if the object got another one
    const char *origin; // and in that case the meaning of $ORIGIN
};

static struct object *objects;

static void warn(const char *where, const char *format, ...) {
    static char line[3 * PATH_MAX];
    int size = snprintf(line, sizeof(line), "gpt-hook: warning: %s: ", where);
    va_list args;
    va_start(args, format);
    if (size < (int)sizeof(line))
        vsnprintf(line + size, sizeof(line) - (size_t)size, format, args);
    va_end(args);
    gpt_write_line(line);
}

// Choosing the file that replaces a library

static bool same_file(const struct identity *one, const struct identity *two) {
    return one->device == two->device && one->inode == two->inode;
}

static bool same_build(const struct identity *one, const struct identity *two) {
    return one->size && one->size == two->size && !memcmp(one->build_id, two->build_id, one->size);
}

static struct object *find_object(const struct link_map *map) {
    struct object *object = objects;
    while (object && object->map != map)
        object = object->next;
    return object;
}

// Return whether the file is loaded in the namespace of the asking object.
static bool is_loaded(const struct identity *identity, const struct link_map *asker) {
    const struct object *from = find_object(asker);
    for (const struct object *object = objects; object; object = object->next)
        if (object->inode == identity->inode && object->device == identity->device && from &&
            object->namespace == from->namespace)
            return true;
    return false;
}

// Return how many parts at the end of two paths are the same.
static int common_end(const char *one, const char *two) {
    size_t a = strlen(one), b = strlen(two);
    int parts = 0;
    for (; a && b && one[a - 1] == two[b - 1]; a--, b--)
        parts += one[a - 1] == '/';
    return parts;
}

static void warn_once(struct file *file, const char *path, const char *format, const char *value) {
    if (!file->warned)
        warn(path, format, file->path, value);
    file->warned = true;
}

static struct file *choose(const char *path, const char *name, struct identity *original) {
    size_t count;
    struct file **found = replace_find_files(name, &count), *best = NULL, *other = NULL;
    if (!count || replace_identify(path, original))
        return NULL; // leave unreadable files to the linker, which reports them
    for (size_t i = 0; i < count; i++) {
        struct file *file = found[i];
        const char *fault = file->state == UNREAD ? replace_identify(file->path, &file->identity) : NULL;
        if (file->state == UNREAD)
            file->state = fault ? BAD : GOOD;
        if (fault)
            warn_once(file, path, "not replaced: %s: %s", fault);
        if (file->state == BAD)
            continue;
        if (same_file(&file->identity, original))
            return NULL;
        if (same_build(&file->identity, original)) {
            if (file->used && same_file(&file->original, original))
                return file;
            if (!best || common_end(file->path, path) > common_end(best->path, path))
                best = file;
        } else if (!strcmp(file->name, name))
            other = file;
    }
    if (!best && other) {
        bool known = other->identity.size && original->size;
        warn_once(other, path, "not replaced: %s has %s build id", known ? "another" : "no");
    }
    return best;
}

static struct file *find_replacement(const char *path, const struct link_map *asker) {
    char target[PATH_MAX];
    struct identity original;
    struct file *file = choose(path, base_name(path), &original);
    if (!file && readlink(path, target, sizeof(target)) > 0 && realpath(path, target) &&
        strcmp(base_name(target), base_name(path)))
        file = choose(target, base_name(target), &original);
    if (!file)
        return NULL;
    if (file->used && !same_file(&file->original, &original)) {
        warn_once(file, path, "not replaced: %s stands for another file of this name%s", "");
        return NULL;
    }
    if (is_loaded(&original, asker)) // under a name that no file has
        return NULL;
    file->used = true;
    file->original = original;
    return file;
}

// Names with a slash

// Find the absolute folder of a path.
static bool folder_of(const char *path, char folder[PATH_MAX]) {
    size_t size = 0;
    if (*path != '/') {
        if (!getcwd(folder, PATH_MAX - 1))
            return false;
        size = strlen(folder);
        folder[size++] = '/';
    }
    size_t length = (size_t)(base_name(path) - path);
    if (size + length >= PATH_MAX)
        return false;
    memcpy(folder + size, path, length);
    size += length;
    folder[size > 1 ? size - 1 : size] = '\0';
    return true;
}

static bool origin_of(const struct link_map *map, char origin[PATH_MAX]) {
    const struct object *object = find_object(map);
    if (object && object->origin)
        return strcpy(origin, object->origin);
    if (*map->l_name)
        return folder_of(map->l_name, origin);
    char program[PATH_MAX];
    ssize_t size = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[size > 0 ? size : 0] = '\0';
    return size > 0 && folder_of(program, origin);
}

// Expand $ORIGIN. Returns false if the text doesn't have it, or if the result is too long.
static bool expand_origin(const char *text, const char *origin, char *into, size_t room) {
    bool found = false;
    size_t at = 0, size = strlen(origin);
    while (*text && at + size + 1 < room) {
        size_t skip = !strncmp(text, "${ORIGIN}", 9) ? 9 : !strncmp(text, "$ORIGIN", 7) ? 7 : 0;
        if (skip) {
            memcpy(into + at, origin, size);
            at += size;
            text += skip;
            found = true;
        } else
            into[at++] = *text++;
    }
    into[at] = '\0';
    return found && !*text;
}

// Expand $ORIGIN in the object's names and search paths, before the linker reads them.
static void set_origin(const struct link_map *map, const char *origin) {
    const char *strings = NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_STRTAB) // some linkers leave addresses as they are in the file
            strings = (const char *)(entry->d_un.d_ptr < map->l_addr ? entry->d_un.d_ptr + map->l_addr
                                                                     : entry->d_un.d_ptr);
    for (ElfW(Dyn) *entry = map->l_ld; strings && entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag != DT_RUNPATH && entry->d_tag != DT_RPATH && entry->d_tag != DT_NEEDED &&
            entry->d_tag != DT_AUXILIARY && entry->d_tag != DT_FILTER)
            continue;
        static char text[8 * PATH_MAX];
        char *copy;
        if (!expand_origin(strings + entry->d_un.d_val, origin, text, sizeof(text)) || !(copy = strdup(text)))
            continue;
        // the section may be in read-only memory
        uintptr_t page = (uintptr_t)entry & -4096ul, end = (uintptr_t)(entry + 1);
        if (!mprotect((void *)page, end - page, PROT_READ | PROT_WRITE))
            entry->d_un.d_val = (ElfW(Xword))((uintptr_t)copy - (uintptr_t)strings);
    }
}

// What the linker calls

EXPORT unsigned la_version(unsigned version) {
    const char *folder = getenv("GPT_HOOK_REPLACE");
    if (folder && !*folder) { // gpt-hook check
        static const char here[] = "replace: here\n";
        if (write(STDERR_FILENO, here, sizeof(here) - 1) < 0)
            return 0;
    }
    if (!folder || !*folder)
        return 0;
    if (!replace_read_folder(folder))
        return 0;   // the linker continues without this library
    return version; // la_objsearch, la_objopen and la_objclose are the same in each
}

EXPORT char *la_objsearch(const char *name, uintptr_t *cookie, unsigned flag) {
    bool whole = flag == LA_SER_ORIG; // the name that the program gave, not a path that's tried
    if (whole && !strchr(name, '/'))
        return (char *)name;
    char expanded[PATH_MAX], origin[PATH_MAX];
    const char *path = name;
    if (whole && strchr(name, '$') && origin_of((const struct link_map *)*cookie, origin) &&
        expand_origin(name, origin, expanded, sizeof(expanded)))
        path = expanded;
    struct file *file = find_replacement(path, (const struct link_map *)*cookie);
    if (file && whole && (strchr(path, ':') || !folder_of(path, origin))) {
        warn_once(file, path, "not replaced: %s: $ORIGIN cannot be %s", "kept");
        file = NULL;
    }
    if (file && whole && (!file->asked || strcmp(file->asked, path)))
        file->asked = strdup(path);
    if (file)
        return (char *)file->path;
    return path == expanded ? strdup(expanded) : (char *)name;
}

EXPORT unsigned la_objopen(struct link_map *map, Lmid_t namespace, uintptr_t *cookie) {
    (void)cookie;
    struct object *object = calloc(1, sizeof(*object));
    if (!object)
        return 0;
    object->map = map;
    object->namespace = namespace;
    object->next = objects;
    objects = object;
    size_t count = 0;
    struct file **found = *map->l_name ? replace_find_files(base_name(map->l_name), &count) : NULL;
    char origin[PATH_MAX];
    for (size_t i = 0; i < count; i++)
        if (found[i]->asked && !strcmp(found[i]->path, map->l_name) && folder_of(found[i]->asked, origin)) {
            object->name = map->l_name;
            map->l_name = (char *)found[i]->asked;
            object->origin = strdup(origin);
            set_origin(map, origin);
            return 0;
        }
    struct stat status;
    for (size_t i = 0; i < count; i++)
        if (found[i]->used && !stat(map->l_name, &status) && found[i]->original.inode == status.st_ino &&
            found[i]->original.device == status.st_dev)
            return 0; // replaced, under the path that was tried
    if (*map->l_name && !stat(map->l_name, &status)) {
        object->device = status.st_dev;
        object->inode = status.st_ino;
    }
    return 0;
}

EXPORT unsigned la_objclose(uintptr_t *cookie) {
    for (struct object **at = &objects; *at; at = &(*at)->next)
        if ((*at)->map == (const struct link_map *)*cookie) {
            struct object *object = *at;
            if (object->name)
                object->map->l_name = object->name;
            *at = object->next;
            free(object);
            break;
        }
    return 0;
}
