// Programs that the command starts without the hook: what the report says of them.

#ifndef GPT_LOST_H
#define GPT_LOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

// Why a program is started without the hook; the later, the likelier it is a fault.
enum loss {
    LOSS_NONE,
    LOSS_PROGRAM, // none can enter it, as a static one; what it starts has the hook again
    LOSS_RIGHTS,  // the dynamic linker ignores LD_PRELOAD, as for a setuid one
    LOSS_DROPPED, // its environment doesn't bring the hook in
};

void hook_lost_setup(pid_t root, uint64_t error_device, uint64_t error_inode); // that reports, and where
bool hook_notes_losses(void); // whether somebody will report them
void hook_note_loss(enum loss loss, const char *program, const char *how);

// Remove all notes, and write what the worst of them says. Returns what it is.
enum loss hook_take_loss(char *text, size_t size);

#endif
