// Pipelines of stages, for every program that runs them.

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "broker.h"

// As GPT_STAGE_FUNCTION does, but 2 also ends the pipeline: these command lines are right, so a shell
// couldn't fork.
#define STAGE_FUNCTION                                                                                       \
    "stage() { \"$@\"; set -- $?; case $1 in 0|1|3|4|126|127|141) ;; *) echo $1 >&2; kill 0;; esac; }\n"

#define LAST(stage) "{ " stage "; echo $? >&2; kill 0; }"

#define EXTRACT "\"$1\""
#define ASM "\"$2\""

const char *const gpt_stages[GPT_STAGES] = {"gpt-extract", "gpt-asm"};

const struct gpt_line gpt_lines[GPT_PIPELINES] = {
    [GPT_HOST] = {STAGE_FUNCTION "stage " EXTRACT " --ptx | " LAST(ASM " --arch host")},
    [GPT_PROBE] = {"GPT_ARCH=$3; export GPT_ARCH; " LAST("eval \"$4\"")},
};

void gpt_make_words(enum gpt_pipeline which, char *const paths[GPT_STAGES], const char *arch,
                    const char *probe, char *words[GPT_WORDS]) {
    char *const first[] = {"sh", "-c", (char *)gpt_lines[which].text, "gpt"};
    char *const rest[] = {(char *)arch, (char *)probe, NULL};
    memcpy(words, first, sizeof(first));
    memcpy(words + 4, paths, GPT_STAGES * sizeof(*paths));
    memcpy(words + 4 + GPT_STAGES, rest, sizeof(rest));
}

int gpt_read_errors(const char *messages, size_t size, char *line, size_t room) {
    char text[4096 + 1], *before = NULL, *last = NULL, *rest = text, *end;
    size_t shown = size < sizeof(text) - 1 ? size : sizeof(text) - 1;
    memcpy(text, messages + size - shown, shown);
    text[shown] = '\0';
    for (char *next; (next = strtok_r(rest, "\n", &rest)); last = next)
        before = last;
    long status = last ? strtol(last, &end, 10) : GPT_NO_STATUS;
    if (last && (end == last || *end))
        before = last, status = GPT_NO_STATUS;
    if (room)
        snprintf(line, room, "%s", before ? before : "");
    return (int)status;
}

char **gpt_make_environment(void) {
    static const char *const without[] = {"LD_PRELOAD=", "LD_AUDIT=", "GPT_HOOK_"};
    size_t count = 0, copied = 0;
    while (environ && environ[count])
        count++;
    char **copy = calloc(count + 1, sizeof(*copy));
    for (size_t i = 0; copy && i < count; i++) {
        bool leave = false;
        for (size_t k = 0; k < sizeof(without) / sizeof(*without); k++)
            leave |= !strncmp(environ[i], without[k], strlen(without[k]));
        if (!leave)
            copy[copied++] = environ[i];
    }
    return copy;
}

int gpt_become(const struct gpt_plan *plan) {
    sigset_t none;
    for (int number = 1; number < 65; number++)
        sigaction(number, &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    if (dup2(plan->input, 0) < 0 || dup2(plan->output, 1) < 0 || dup2(plan->errors, 2) < 0)
        _exit(127);
    close_range(3, ~0u, 0);
    // Not execve(): the hook would report this shell as a program it can't watch.
    syscall(SYS_execve, "/bin/sh", plan->words, plan->environment);
    static const char fault[] = "/bin/sh cannot be run\n127\n";
    _exit(write(2, fault, sizeof(fault) - 1) > 0 ? 127 : 126);
}
