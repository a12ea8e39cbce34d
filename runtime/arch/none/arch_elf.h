// How ELF files name their processor. With this relocation type, which doesn't exist, no library's references
// are looked at.

#ifndef GPT_ARCH_ELF_H
#define GPT_ARCH_ELF_H

#include <elf.h>

#if defined(__x86_64__)
#define ARCH_NAME "x86_64"
#define ARCH_ELF_MACHINE EM_X86_64
#elif defined(__aarch64__)
#define ARCH_NAME "aarch64"
#define ARCH_ELF_MACHINE EM_AARCH64
#else
#error "what is this processor called, and which e_machine do its ELF files have?"
#endif
#define ARCH_JUMP_SLOT ~0u
#define ARCH_GLOB_DAT ~0u
#define ARCH_ABSOLUTE ~0u

#endif
