// Declarations that the files of the program gpt-hook share:
//
//   start.c   the entry point, which calls main
//   main.c    sets the environment that loads the libraries into a command, and executes the command
//   options.c the command line (options.h)
//   find.c    finds the runtime and the command
//   calls.c   the names in --calls
//   output.c  where the trace goes: to a file, or to a helper that streams it (../follow)
//   parent.c  the parent of the command, if another command reads the stream
//   probe.c   probes: -p, --jit and the options that go with them (probe.h)
//   check.c   gpt-hook check
//   control.c gpt-hook ctl
//   state.c   prints a process's state for gpt-hook ctl
//   register.c  passes a pipeline to the supervisor of that process (register.h)
//   functions.c gpt-hook functions

#ifndef GPT_LAUNCHER_H
#define GPT_LAUNCHER_H

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

enum { BAD = 1, USAGE = 2, MISSING = 4, CANNOT_RUN = 126, NOT_FOUND = 127 };

// Print the error and exit.
__attribute__((format(printf, 3, 4), noreturn)) void fail(int status, const char *where, const char *format,
                                                          ...);

// find.c
bool find_runtime(const char *name, char path[PATH_MAX]);
bool find_neighbour(const char *name, char path[PATH_MAX]);
bool is_command(const char *name, char path[PATH_MAX]);   // true if execvp would run such a file
void find_command(const char *name, char path[PATH_MAX]); // fails if it isn't found
const char *absolute(const char *path);                   // valid until the next call

// calls.c
void check_calls(const char *option, const char *calls); // fails for an unknown word

// output.c

// With `callbacks`, which are zero-terminated, the trace goes through gpt-dump, which runs only these
// callbacks.
struct gpt_bytes;
bool is_stream(const char *output); // the trace goes to a command, standard output or a named pipe
void begin_trace(const char *output, bool force, bool quiet, const struct gpt_bytes *callbacks, char **argv);

// probe.c

// Append to a shell command: text, or a word that the shell takes as it is.
__attribute__((format(printf, 2, 3))) void append(struct gpt_bytes *bytes, const char *format, ...);
void append_quoted(struct gpt_bytes *bytes, const char *word);

// parent.c

// Start the shell command that reads a stream, and return the descriptor to write to. `output` becomes the
// reader's standard output and is closed here; -1 means our own. The function returns in a child, which
// becomes the command to watch; this process waits for both and never returns. Fails if there's no such
// command. We exit with the program's status or, if `counts` is set, the reader's.
int start_reader(const char *command, int output, bool counts);
void name_folder(const char *folder); // the stream's; the command's parent removes it if nobody else is left

// options.c
__attribute__((noreturn)) void help(void);
// Fail for an option that getopt_long refused with ':' or '?'.
__attribute__((noreturn)) void fail_option(int option, char **argv);

// check.c
int check(void);

// control.c
int control(int argc, char **argv);

// state.c
struct gpt_state;
void show_state(const struct gpt_state *state, pid_t pid, bool json);

// functions.c
int functions(int argc, char **argv);

#endif
