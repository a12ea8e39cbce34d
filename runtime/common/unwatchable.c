// Recognizes programs that can't be watched by preloading a library.

#include <fcntl.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "arch_elf.h"
#include "unwatchable.h"

enum { MOST_SCRIPTS = 5 }; // the kernel's limit: a script's interpreter may be another script

// Return whether the program uses musl's dynamic linker: the driver needs glibc.
static bool is_of_musl(int file, const Elf64_Phdr *segment) {
    char linker[256] = "";
    size_t size = segment->p_filesz < sizeof(linker) - 1 ? segment->p_filesz : sizeof(linker) - 1;
    return pread(file, linker, size, (off_t)segment->p_offset) > 0 && strstr(linker, "/ld-musl-");
}

static const char *check_elf(int file) {
    Elf64_Ehdr head;
    if (pread(file, &head, sizeof(head), 0) < (ssize_t)sizeof(Elf32_Ehdr) ||
        memcmp(head.e_ident, ELFMAG, SELFMAG))
        return NULL; // leave the error to the kernel
    if (head.e_ident[EI_CLASS] != ELFCLASS64)
        return "a 32-bit program";
    if (head.e_machine != ARCH_ELF_MACHINE)
        return "a program for another machine";
    for (int i = 0; i < head.e_phnum; i++) {
        Elf64_Phdr segment;
        if (pread(file, &segment, sizeof(segment), (off_t)(head.e_phoff + (size_t)i * sizeof(segment))) !=
            sizeof(segment))
            return NULL;
        if (segment.p_type == PT_INTERP)
            return is_of_musl(file, &segment) ? "a program linked to musl" : NULL;
    }
    return "a statically linked program";
}

// The dynamic linker ignores LD_PRELOAD if the kernel sets AT_SECURE. It does so if the effective user or
// group differs from the real one, either because of the program's file or because of its caller. It also
// does so if the program gains capabilities.
static const char *check_rights(int file, const struct stat *status) {
    struct statvfs system;
    bool gives =
        !prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) && (fstatvfs(file, &system) || !(system.f_flag & ST_NOSUID));
    bool user = gives && status->st_mode & S_ISUID;
    bool group = gives && status->st_mode & S_ISGID && status->st_mode & S_IXGRP;
    if ((user ? status->st_uid : geteuid()) != getuid())
        return user ? "a setuid program" : "a program that is started with the rights of another user";
    if ((group ? status->st_gid : getegid()) != getgid())
        return group ? "a setgid program" : "a program that is started with the rights of another group";
    if (gives && getuid() && fgetxattr(file, "security.capability", NULL, 0) > 0)
        return "a program with capabilities";
    return NULL;
}

const char *gpt_find_unwatchable(char path[PATH_MAX]) {
    char line[PATH_MAX];
    for (int depth = 0; depth < MOST_SCRIPTS; depth++) {
        int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        struct stat status;
        if (file < 0 && (file = open(path, O_PATH | O_CLOEXEC)) < 0) // executable, but not readable
            return NULL;
        const char *found = NULL;
        ssize_t size = pread(file, line, sizeof(line) - 1, 0);
        bool is_script = size >= 2 && !memcmp(line, "#!", 2); // its own rights don't count
        if (!is_script && !fstat(file, &status) && !(found = check_rights(file, &status)))
            found = check_elf(file);
        close(file);
        if (!is_script)
            return found;
        line[size] = '\0';
        char *start = line + 2 + strspn(line + 2, " \t");
        start[strcspn(start, " \t\r\n")] = '\0';
        strcpy(path, start);
    }
    return NULL;
}
