// Programs that a preloaded library cannot enter.

#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "launcher.h"

// The driver is a library of glibc.
static void check_linker(int file, const char *path, const Elf64_Phdr *segment) {
    char linker[PATH_MAX] = "";
    size_t size = segment->p_filesz < sizeof(linker) - 1 ? segment->p_filesz : sizeof(linker) - 1;
    if (pread(file, linker, size, (off_t)segment->p_offset) > 0 && strstr(linker, "/ld-musl-"))
        fail(MISSING, path, "a program of musl: it cannot be watched");
}

static void check_elf(int file, const char *path) {
    Elf64_Ehdr head;
    if (pread(file, &head, sizeof(head), 0) < (ssize_t)sizeof(Elf32_Ehdr) ||
        memcmp(head.e_ident, ELFMAG, SELFMAG))
        return; // the kernel will say what it thinks of it
    if (head.e_ident[EI_CLASS] != ELFCLASS64)
        fail(MISSING, path, "a 32-bit program: it cannot be watched");
    if (head.e_machine != EM_X86_64)
        fail(MISSING, path, "a program for another machine: it cannot be watched");
    for (int i = 0; i < head.e_phnum; i++) {
        Elf64_Phdr segment;
        if (pread(file, &segment, sizeof(segment), (off_t)(head.e_phoff + (size_t)i * sizeof(segment))) !=
            sizeof(segment))
            return;
        if (segment.p_type == PT_INTERP) {
            check_linker(file, path, &segment);
            return;
        }
    }
    fail(MISSING, path, "a statically linked program: it cannot be watched");
}

void check_command(const char *path) {
    char script[PATH_MAX], line[PATH_MAX];
    for (int depth = 0; depth < 5; depth++) {
        int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        struct stat status;
        if (file < 0 || fstat(file, &status)) {
            if (file >= 0)
                close(file);
            return; // it may be executable without being readable
        }
        if (status.st_mode & S_ISUID && status.st_uid != geteuid())
            fail(MISSING, path, "a setuid program: it cannot be watched");
        if (status.st_mode & S_ISGID && status.st_mode & S_IXGRP && status.st_gid != getegid())
            fail(MISSING, path, "a setgid program: it cannot be watched");
        if (getuid() && fgetxattr(file, "security.capability", NULL, 0) > 0)
            fail(MISSING, path, "a program with capabilities: it cannot be watched");
        ssize_t size = pread(file, line, sizeof(line) - 1, 0);
        if (size < 2 || memcmp(line, "#!", 2)) {
            check_elf(file, path);
            close(file);
            return;
        }
        close(file);
        line[size] = '\0';
        char *start = line + 2 + strspn(line + 2, " \t");
        start[strcspn(start, " \t\r\n")] = '\0';
        path = strcpy(script, start);
    }
}
