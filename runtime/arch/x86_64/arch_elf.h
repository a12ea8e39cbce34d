// How ELF files name x86-64, and its relocations that store a symbol's address.

#ifndef GPT_ARCH_ELF_H
#define GPT_ARCH_ELF_H

#include <elf.h>

#define ARCH_NAME "x86_64"
#define ARCH_ELF_MACHINE EM_X86_64
#define ARCH_JUMP_SLOT R_X86_64_JUMP_SLOT
#define ARCH_GLOB_DAT R_X86_64_GLOB_DAT
#define ARCH_ABSOLUTE R_X86_64_64

#endif
