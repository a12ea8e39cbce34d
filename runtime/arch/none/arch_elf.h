// ELF constants, for processors that we don't support. No relocation has the type ~0, so none is ever
// changed.

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
#error "define ARCH_NAME and ARCH_ELF_MACHINE for this processor"
#endif
#define ARCH_JUMP_SLOT ~0u
#define ARCH_GLOB_DAT ~0u
#define ARCH_ABSOLUTE ~0u

#endif
