// Lists the files of the folder by name, and reads what identifies a shared object: its build id, or its
// inode.

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "arch_elf.h"
#include "folder.h"

#define MAX_DEPTH 32      // nesting of subfolders
#define MAX_SEGMENTS 1024 // gpt-patch makes up to 1000
#define MAX_NOTES 4096    // bytes that are looked into

static struct file **files; // by stem
static size_t file_count, file_room;

static size_t stem_of(const char *name) {
    for (const char *at = name; (at = strstr(at, ".so")); at++)
        if (!at[3 + strspn(at + 3, ".0123456789")])
            return (size_t)(at + 3 - name);
    return strlen(name);
}

const char *replace_identify(const char *path, struct identity *identity) {
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0)
        return strerror(errno);
    const char *fault = "is not a shared object of this machine";
    struct stat status;
    Elf64_Ehdr head;
    static Elf64_Phdr segments[MAX_SEGMENTS];
    *identity = (struct identity){0};
    if (fstat(file, &status) || !S_ISREG(status.st_mode) ||
        pread(file, &head, sizeof(head), 0) != sizeof(head) || memcmp(head.e_ident, ELFMAG, SELFMAG) ||
        head.e_ident[EI_CLASS] != ELFCLASS64 || head.e_machine != ARCH_ELF_MACHINE || head.e_type != ET_DYN ||
        head.e_phentsize != sizeof(*segments) || head.e_phnum > MAX_SEGMENTS)
        goto done;
    ssize_t size = head.e_phnum * (ssize_t)sizeof(*segments);
    fault = "is truncated";
    if (pread(file, segments, (size_t)size, (off_t)head.e_phoff) != size)
        goto done;
    identity->device = status.st_dev;
    identity->inode = status.st_ino;
    for (int i = 0; i < head.e_phnum; i++) {
        const Elf64_Phdr *segment = &segments[i];
        if (segment->p_offset > (uint64_t)status.st_size ||
            segment->p_filesz > (uint64_t)status.st_size - segment->p_offset)
            goto done;
        if (segment->p_type != PT_NOTE || identity->size)
            continue;
        static unsigned char notes[MAX_NOTES];
        size_t room = segment->p_filesz < sizeof(notes) ? segment->p_filesz : sizeof(notes);
        if (pread(file, notes, room, (off_t)segment->p_offset) != (ssize_t)room)
            goto done;
        const unsigned char *id;
        identity->size = gpt_find_build_id(notes, room, segment->p_align, &id);
        if (identity->size)
            memcpy(identity->build_id, id, identity->size);
    }
    fault = NULL;
done:
    close(file);
    return fault;
}

static int by_stem(const void *a, const void *b) {
    const struct file *one = *(struct file *const *)a, *two = *(struct file *const *)b;
    size_t size = one->stem < two->stem ? one->stem : two->stem;
    int order = memcmp(one->name, two->name, size);
    if (!order)
        order = (one->stem > two->stem) - (one->stem < two->stem);
    return order ? order : strcmp(one->path, two->path);
}

static void add_file(const char *path) {
    if (file_count == file_room) {
        size_t room = file_room ? 2 * file_room : 64;
        struct file **more = realloc(files, room * sizeof(*files));
        if (!more)
            return;
        files = more, file_room = room;
    }
    struct file *file = calloc(1, sizeof(*file));
    if (!file || !(file->path = strdup(path)))
        return;
    file->name = base_name(file->path);
    file->stem = stem_of(file->name);
    files[file_count++] = file;
}

// `path` is one buffer of PATH_MAX for all levels, because the stack may be small.
static void add_folder(char *path, size_t size, int depth) {
    DIR *folder = depth < MAX_DEPTH ? opendir(path) : NULL;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        struct stat status;
        size_t longer = size + 1 + strlen(entry->d_name);
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..") || longer >= PATH_MAX)
            continue;
        sprintf(path + size, "/%s", entry->d_name);
        if (lstat(path, &status))
            continue;
        if (S_ISDIR(status.st_mode))
            add_folder(path, longer, depth + 1);
        else if (!stat(path, &status) && S_ISREG(status.st_mode))
            add_file(path);
    }
    path[size] = '\0';
    if (folder)
        closedir(folder);
}

size_t replace_read_folder(const char *path) {
    static char inner[PATH_MAX];
    if (strlen(path) < sizeof(inner))
        add_folder(strcpy(inner, path), strlen(path), 0);
    if (file_count)
        qsort(files, file_count, sizeof(*files), by_stem);
    return file_count;
}

struct file **replace_find_files(const char *name, size_t *count) {
    struct file key = {.path = "", .name = name, .stem = stem_of(name)};
    size_t low = 0, high = file_count;
    for (const struct file *wanted = &key; low < high;) {
        size_t middle = (low + high) / 2;
        if (by_stem(&files[middle], &wanted) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    *count = 0;
    while (low + *count < file_count && files[low + *count]->stem == key.stem &&
           !memcmp(files[low + *count]->name, name, key.stem))
        ++*count;
    return files + low;
}
