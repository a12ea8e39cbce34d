// The `header` record of a segment: which process writes it, where and when.

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "write.h"

// Read the command line of this process, at most 64 KiB of it.
static size_t read_command(struct gpt_str *words, size_t count, char *text, size_t size) {
    int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? 0 : read(file, text, size - 1);
    if (file >= 0)
        close(file);
    size_t found = 0;
    for (char *at = text, *end = text + (length > 0 ? length : 0); at < end && found < count; found++) {
        *end = '\0';
        words[found] = hook_str(at);
        at += words[found].size + 1;
    }
    return found;
}

// Return the rank of this process in its job, from the environment.
static struct gpt_u64 read_rank(void) {
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        const char *text = getenv(names[i]);
        size_t digits = text ? strspn(text, "0123456789") : 0;
        if (digits && digits < 10 && !text[digits])
            return GPT_U64(strtoul(text, NULL, 10));
    }
    return (struct gpt_u64){0};
}

size_t hook_pack_header(struct gpt_packer *buffer, bool whole) {
    static char command[64 << 10];
    static struct gpt_str words[1024];
    char host[65] = "", boot[37] = "";
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (read(file, boot, 36) != 36)
            boot[0] = '\0';
        close(file);
    }
    gethostname(host, sizeof(host) - 1);
    struct timespec real;
    clock_gettime(CLOCK_REALTIME, &real);
    struct gpt_header header = {
        .version = GPT_STR(GPT_VERSION),
        .tool = GPT_STR("gpt-hook"),
        .argv = {words, whole ? read_command(words, 1024, command, sizeof(command)) : 0},
        .host = hook_str(host),
        .pid = (uint64_t)getpid(),
        .rank = read_rank(),
        .boot_id = hook_str(boot[0] ? boot : NULL),
        .realtime = (uint64_t)real.tv_sec * 1000000000 + (uint64_t)real.tv_nsec,
        .monotonic = hook_monotonic(),
        .captures = GPT_U64(1),
    };
    if (hook_has_tsc) {
        header.tsc = GPT_U64(hook_now());
        header.tsc_hz = GPT_U64(hook_tsc_hz());
    }
    return gpt_pack_header(buffer, &header);
}
