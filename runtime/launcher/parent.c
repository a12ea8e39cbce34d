// gpt-hook as the parent of the program, which is necessary with -o '|COMMAND': it has to wait for both. To
// the process that started it, gpt-hook behaves like the program itself.
//
// The program is in our process group, so signals from the terminal reach it directly. Signals that are sent
// to our pid are passed on. When the program stops, we stop too, so that the shell notices. The reader of the
// stream ignores the keys that interrupt or stop the program, and ends when the stream does.

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../say.h"
#include "hook/write/folder.h"
#include "launcher.h"

static bool reader_counts;
static char *shared_folder; // the stream's folder, PATH_MAX bytes; created on the command's side
static volatile sig_atomic_t program, reader; // pids; `program` is 0 once the program has ended
static volatile sig_atomic_t
    ended_reader; // the reader was ended by a signal to us, after the program had ended

static void pass_on(int signal, siginfo_t *info, void *context) {
    (void)context;
    int error = errno;
    if (!program && signal != SIGCONT && signal != SIGWINCH)
        ended_reader = !kill(reader, SIGTERM); // the stream has ended, but the reader hasn't
    else if (program && info->si_code <= 0)    // the kernel sends to the whole group
        kill(program, signal);
    errno = error;
}

// We pass on every signal that can be caught, except those raised by our own faults and children.
static void set_passed(sigset_t *passed) {
    static const int not_passed[] = {SIGKILL, SIGSTOP, SIGCHLD, SIGSEGV, SIGBUS,
                                     SIGFPE,  SIGILL,  SIGTRAP, SIGSYS};
    sigfillset(passed);
    for (size_t i = 0; i < sizeof(not_passed) / sizeof(*not_passed); i++)
        sigdelset(passed, not_passed[i]);
}

// Wait for the program, and stop while it is stopped. Returns its status as waitpid does.
static int wait_for_program(void) {
    siginfo_t info;
    for (;;) {
        if (waitid(P_PID, (id_t)program, &info, WEXITED | WSTOPPED | WNOWAIT)) {
            if (errno == EINTR)
                continue;
            return 0;
        }
        if (info.si_code != CLD_STOPPED && info.si_code != CLD_TRAPPED)
            break;
        info.si_pid = 0; // it may be running again by now
        if (!waitid(P_PID, (id_t)program, &info, WSTOPPED | WNOHANG) && info.si_pid)
            raise(SIGSTOP); // SIGCONT wakes us, and is passed on
    }
    pid_t ended = program;
    program = 0; // before its id is free
    int status = 0;
    waitpid(ended, &status, 0);
    return status;
}

void name_folder(const char *folder) {
    if (shared_folder)
        snprintf(shared_folder, PATH_MAX, "%s", folder);
}

// Remove the stream's folder, in case the helper was killed along with everybody who would have noticed.
static void tidy_folder(void) {
    char path[PATH_MAX + 16];
    if (!shared_folder || !*shared_folder)
        return;
    snprintf(path, sizeof(path), "%s/%s", shared_folder, FOLDER_LOCK);
    int lock = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (lock < 0 || !folder_is_left(lock))
        return;
    char line[2 * PATH_MAX];
    snprintf(line, sizeof(line),
             "gpt-hook: error: %s: the helper that passes the stream on was killed; its end is lost",
             shared_folder);
    gpt_write_line(line);
    folder_remove(shared_folder);
}

static _Noreturn void end_as(int status, int reader_status) {
    if (WIFSIGNALED(reader_status) && !ended_reader)
        fprintf(stderr, "gpt-hook: warning: %s was ended by signal %d: %s there\n",
                reader_counts ? "the command of -o" : "gpt-dump", WTERMSIG(reader_status),
                reader_counts ? "the stream ends" : "callbacks and the trace end");
    if (WIFSIGNALED(status)) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0}); // there is one already
        signal(WTERMSIG(status), SIG_DFL);
        raise(WTERMSIG(status));
        _exit(128 + WTERMSIG(status));
    }
    if (!WEXITSTATUS(status) && reader_counts)
        status = reader_status;
    _exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

static _Noreturn void supervise(const sigset_t *passed) {
    signal(SIGCHLD, SIG_DFL); // if it were ignored, we couldn't wait for their statuses
    struct sigaction action = {.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO | SA_RESTART};
    for (int signal = 1; signal < NSIG; signal++)
        if (sigismember(passed, signal) == 1)
            sigaction(signal, &action, NULL);
    sigprocmask(SIG_UNBLOCK, passed, NULL);
    // Our copies of pipes would keep their readers waiting after the program has closed its own.
    int null = open("/dev/null", O_RDWR);
    for (int i = 0; i < STDERR_FILENO; i++) // not standard error, which the reader has too
        dup2(null, i);
    close_range(3, ~0u, 0);
    int status = wait_for_program(), reader_status = 0;
    while (waitpid(reader, &reader_status, 0) < 0 && errno == EINTR)
        continue;
    tidy_folder();
    end_as(status, reader_status);
}

static _Noreturn void become_reader(const char *command, int stream, int output, const sigset_t *mask) {
    static const int keys[] = {SIGINT, SIGQUIT, SIGTSTP};
    for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++)
        signal(keys[i], SIG_IGN);
    sigprocmask(SIG_SETMASK, mask, NULL);
    dup2(stream, STDIN_FILENO);
    if (output >= 0)
        dup2(output, STDOUT_FILENO);
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(NOT_FOUND);
}

// If the command begins with a plain word, ask the shell whether it's a command. Anything with quotes,
// variables or lists isn't checked.
static void check_reader(const char *command) {
    char word[PATH_MAX];
    command += strspn(command, " \t\n");
    size_t size = strspn(command, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.,/+-@%:");
    if (!size || (command[size] && !strchr(" \t\n;|&<>", command[size])))
        return;
    snprintf(word, sizeof(word), "%.*s", (int)size, command);
    pid_t child = fork();
    if (!child) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        for (int i = 0; i < 3; i++)
            dup2(null, i);
        execl("/bin/sh", "sh", "-c", "command -v \"$1\"", "sh", word, (char *)NULL);
        _exit(0);
    }
    int status = 0;
    if (child > 0 && waitpid(child, &status, 0) == child && status)
        fail(NOT_FOUND, word, "command not found");
}

int start_reader(const char *command, int output, bool counts) {
    check_reader(command);
    reader_counts = counts;
    int ends[2];
    sigset_t passed, mask;
    set_passed(&passed);
    char *shared = mmap(NULL, PATH_MAX, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_folder = shared == MAP_FAILED ? NULL : shared;
    sigprocmask(SIG_BLOCK, &passed, &mask);
    if (pipe2(ends, O_CLOEXEC) || (reader = fork()) < 0)
        fail(BAD, command, "%s", strerror(errno));
    if (!reader)
        become_reader(command, ends[0], output, &mask);
    close(ends[0]);
    if (output >= 0)
        close(output);
    pid_t self = getpid();
    program = fork();
    if (program < 0)
        fail(BAD, command, "%s", strerror(errno));
    if (program)
        supervise(&passed);
    prctl(PR_SET_PDEATHSIG, SIGKILL); // the one signal that can't be passed on
    if (getppid() != self)
        raise(SIGKILL);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    return ends[1];
}
