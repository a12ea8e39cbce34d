// The command line of gpt-hook run.

#ifndef GPT_OPTIONS_H
#define GPT_OPTIONS_H

#include <stdbool.h>

#include "probe.h"

struct request {
    const char *output, *calls, *stacks, *device, *modules, *replacements, *sample_host;
    const char *disk;       // bytes, or NULL
    const char *node_times; // N of 1/N, or NULL
    bool force, quiet, gpu_time, ioctls, simulated, control, disabled, tensors, layers;
    struct probing probing;
    char **command; // and its arguments
};

// Fail if the options make no sense, before anything is written.
void read_options(struct request *request, int argc, char **argv);

// Fail for a command line without one of gpt-hook's commands, and suggest a likely one.
__attribute__((noreturn)) void fail_without_command(char **words);

#endif
