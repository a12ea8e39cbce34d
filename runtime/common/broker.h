// The broker asks stages for code while a program runs: the hook needs kernels with probes, and the
// simulated device needs host code.
//
// An image goes through a pipeline as a `module` record, and the results come back as records. gpt-hook
// starts a supervisor, which starts pipelines when they're first needed and keeps them. Each pipeline
// answers one request after another, as gpt-stream(5) describes for `sync`. Without gpt-hook, each request
// runs a pipeline of its own.
//
//     ask.c           the program's side: sends the request and reads the answer
//     request.c       the same for a program that doesn't wait for the answer
//     run_pipeline.c  runs a pipeline inside the program, for one request
//     pipeline.c      the kinds of pipelines, and how to start one
//     records.c       the records of requests and answers
//     descriptors.c   descriptors of our own in a program
//     fd_passing.c    messages, with descriptors, between a client and the supervisor
//     peers.c         checks which process is at the other end of a socket, and whether to trust it
//     folder.c        the private folder that contains the supervisor's socket
//     registry.c      the pipelines that add probes, each known by its digest
//     daemonize.c     starts a helper process of gpt-hook
//     supervisor.c    the supervisor: its socket, its clients, and the order in which it serves them
//     worker.c        a pipeline that the supervisor keeps running
//
// A client makes a new connection for each request. Between requests nothing stays open that a program
// could close or a child could inherit. The client sends a question and a file with records. The reply
// comes with another file, which contains the records of the answer if there is one. A large image isn't
// part of the records but in a file of its own, or in one of the program's files, which is sent along with
// the question. The supervisor keeps that file open until it answers. The stages open it through the
// supervisor's folder in /proc, so they get the same file even if it has been renamed.
//
// A client sends only data, never a command or the name of a file. It refers to a pipeline that adds probes
// by a digest. The supervisor got that pipeline earlier, when it started or from gpt-hook ctl. So a process
// in a sandbox can't make anything run outside the sandbox. A process that has another root directory, or
// is in another user, mount or network namespace, is rejected.

#ifndef GPT_BROKER_H
#define GPT_BROKER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "unpack.h"

// In seconds: how long to wait for an answer (a little longer than gpt-asm waits for a compiler), how long to
// keep an idle pipeline, and how long the supervisor may take to show that it's alive.
#ifndef GPT_PATIENCE
#define GPT_PATIENCE 660
#define GPT_LEISURE 60
#endif
#ifndef GPT_SILENCE
#define GPT_SILENCE 30
#endif

#define GPT_BROKER                                                                                           \
    "GPT_HOOK_BROKER" // the variable with the folder of the socket, which is private to its user
#define GPT_SOCKET "socket"

enum { GPT_MOST = 64 << 20 }; // bytes of a record
// Statuses: a stage lacks a tool, the supervisor rejects the question, the pipeline can't run at the moment,
// the pipeline was killed.
enum { GPT_MALFORMED = 3, GPT_MISSING = 4, GPT_REFUSED = 253, GPT_NOT_RUN = 254, GPT_NO_STATUS = 255 };

// records.c

struct gpt_bytes {
    char *data; // to be freed
    size_t size, room;
};

bool gpt_add(struct gpt_bytes *bytes, const void *data, size_t size); // false without memory
char *gpt_make_room(struct gpt_bytes *bytes, size_t size); // room for this many more; NULL if out of memory
void gpt_empty(struct gpt_bytes *bytes);

struct gpt_asked {         // a request
    const char *type;      // the image's type
    const void *image;     // NULL: the image is in a file sent with the request
    uint64_t offset, size; // where in that file; bytes of it
    const char *kernel;    // NULL: the whole image
    const char *want;      // the result: one of the following; NULL: code
    const char *arch;      // the device's architecture; NULL: not given
    unsigned registers;    // limit per thread; 0: no limit
    uint32_t module;       // its id in the trace of this process; 0: it has none
};

#define GPT_WANT_TEXT "text"       // the PTX
#define GPT_WANT_OUTLINE "outline" // that, and what it declares
#define GPT_WANT_LOAD "load"       // what it declares; and the code of its only kernel, or a check of all

// The records that a pipeline reads: a header, a request, a `sync` that the pipeline returns, and an end.
// These functions return false if a record would become too large. If the request refers to a file, the
// process that has the file open adds its path.
bool gpt_add_header(struct gpt_bytes *bytes);
bool gpt_add_end(struct gpt_bytes *bytes);
bool gpt_add_module(struct gpt_bytes *bytes, const struct gpt_asked *asked);
bool gpt_add_path(struct gpt_bytes *bytes, size_t start,
                  const char *path); // adds it to the request that begins there
bool gpt_add_sync(struct gpt_bytes *bytes, uint64_t number);

// A record of an answer. A key that is missing has type ELSE.
struct gpt_record {
    struct value kind, id, data, level, where, text;
};

struct gpt_record gpt_read_record(struct cursor *cursor); // sets `bad` if there's none, or not all of it

// pipeline.c

enum gpt_pipeline {
    GPT_HOST,  // code for this machine, and the outline of PTX
    GPT_PROBE, // a kernel with the run's probes
    GPT_PIPELINES,
};

extern const struct gpt_line {
    // The text of the shell command. $1 and so on are the paths of gpt_stages, followed by the architecture
    // and the pipeline that adds probes. When the last stage ends, or another one is killed, the shell writes
    // that stage's status to standard error and ends the other stages.
    const char *text;
} gpt_lines[GPT_PIPELINES];

// A shell function that runs a stage other than the last. A pipeline's status is the last stage's, which
// takes the end of its input for the end of the request if an earlier stage is killed. 141 is SIGPIPE: the
// next stage has ended, and its status is what counts.
#define GPT_STAGE_FUNCTION                                                                                   \
    "stage() { \"$@\"; set -- $?; [ $1 -le 128 ] || [ $1 = 141 ] || { echo $1 >&2; kill 0; }; }\n"

enum { GPT_STAGES = 2, GPT_WORDS = GPT_STAGES + 7 };
extern const char *const gpt_stages[GPT_STAGES]; // their names

// Make the words of a shell command that runs a pipeline whose stages have these paths.
void gpt_make_words(enum gpt_pipeline which, char *const paths[GPT_STAGES], const char *arch,
                    const char *probe, char *words[GPT_WORDS]);

// Read what a pipeline has written to standard error, or the end of it. Returns the status in the last line,
// or GPT_NO_STATUS, and the line before that.
int gpt_read_errors(const char *messages, size_t size, char *line, size_t room);

// Return a copy of the environment without variables that would load libraries into stages or trace them. The
// caller frees it.
char **gpt_make_environment(void);

// Everything needed to start a pipeline.
struct gpt_plan {
    char **words, **environment; // the shell's
    int input, output, errors;
};

int gpt_become(const struct gpt_plan *plan); // run by the child, in its own session; doesn't return

// ask.c

struct gpt_outcome {
    struct gpt_bytes made;    // the payload of the last `object`, or of the last `ptx` if that is wanted
    struct gpt_bytes outline; // the last `outline` record
    char fault[1024];         // why nothing was made
    char note[256];           // a message about the supervisor for the user, given once
    int status;               // exit status of a pipeline that has ended
};

// Ask GPT_HOST about an image in memory. If nothing was made, the outcome contains a fault. If the supervisor
// doesn't answer, for whatever reason, this runs a pipeline of its own.
void gpt_ask(const struct gpt_asked *asked, struct gpt_outcome *outcome);

// request.c

struct gpt_call { // a pending request
    int socket;
    uint64_t inode;
};

enum gpt_call_state { GPT_CALL_WAITS, GPT_CALL_DONE, GPT_CALL_FAILED };

struct gpt_question;
struct gpt_reply;

// The reason why a request isn't served: a code from gpt/stream/reasons.py, and a detail. Both texts stay
// valid.
struct gpt_fault {
    const char *code, *detail; // no code: it is served
};
#define GPT_FAULT(code, detail) ((struct gpt_fault){#code, detail})
#define GPT_SERVED ((struct gpt_fault){NULL, ""})

// Start a call. Returns a fault if the question can't be asked. `image` is the file that the request is
// about, or -1 if the request contains the image; closing the file is left to the caller.
struct gpt_fault gpt_begin(struct gpt_call *call, const struct gpt_question *question,
                           const struct gpt_bytes *input, int image);
void gpt_cancel(struct gpt_call *call); // nobody waits for the answer any more
// Take the answer if it has arrived. Returns WAITS if it's still pending, and FAILED if the reply has a
// fault.
enum gpt_call_state gpt_end(struct gpt_call *call, struct gpt_bytes *output, struct gpt_reply *reply);

// run_pipeline.c

// Run a pipeline with this input. The answer contains its status and, if that isn't 0, its last message.
void gpt_run_alone(enum gpt_pipeline which, const struct gpt_bytes *input, struct gpt_bytes *output,
                   struct gpt_outcome *outcome);

// descriptors.c

// Like write() and ftruncate(), except that the program doesn't get the SIGXFSZ that the kernel sends, along
// with the error, if the file would become too large.
ssize_t gpt_write_quietly(int file, const void *data, size_t size);
bool gpt_resize_quietly(int file, size_t size);
int gpt_set_aside(int file); // moves it to a number above the program's own files
int gpt_make_file(const void *data,
                  size_t size); // a file with these contents, at its start; -1 with errno set

// fd_passing.c

bool gpt_read_file(int file, struct gpt_bytes *found); // appends the file's contents; false if that fails

uint64_t gpt_now(void); // CLOCK_MONOTONIC, ms
bool gpt_wait_for(int file,
                  uint64_t until); // waits for data or the end of the file; returns false after `until`

enum { GPT_ARCH_BYTES = 16 };

enum { GPT_MOST_TEXT = 64 << 10 }; // bytes of a pipeline's text
enum { GPT_DIGEST_BYTES = 65 };

// A question, and which pipeline should answer it. GPT_REGISTER is different: it's followed by the text of a
// pipeline, which ends with a zero. The supervisor keeps that text, and later questions refer to it by its
// digest.
struct gpt_question {
    uint32_t pipeline;
    char arch[GPT_ARCH_BYTES];     // for GPT_PROBE: sm_90, or host
    char digest[GPT_DIGEST_BYTES]; // for GPT_PROBE and GPT_REGISTER
};
enum { GPT_REGISTER = GPT_PIPELINES };

// A one-byte message asks whether the supervisor is alive, and is answered by the same message.
enum { GPT_THERE = 1 };

struct gpt_reply {
    int32_t status; // 0: a file comes with the message
    char code[32];  // the reason for no answer: a code as in struct gpt_fault
    char fault[1024];
};

void gpt_set_fault(struct gpt_reply *reply, struct gpt_fault fault);

enum { GPT_FILES = 2 };

// Send a message with files; missing files are -1.
bool gpt_send(int socket, const void *data, size_t size, const int files[GPT_FILES]);
// Return the bytes, as recv. `sender`, which may be NULL, is set if the socket has SO_PASSCRED.
ssize_t gpt_receive(int socket, void *data, size_t size, int files[GPT_FILES], pid_t *sender);
void gpt_close(int files[GPT_FILES]);
void gpt_discard(int files[GPT_FILES]); // closes files of an unknown sender without ever waiting
void gpt_hang_up(int socket);           // closes a socket with SO_PASSCRED, discarding unread messages

// peers.c

// Return the folder that contains the supervisor's socket, or an empty string if there's no supervisor. The
// variable is read only once, because programs change their environment, possibly while other threads read
// it.
const char *gpt_find_broker(void);

// Return whether a user id that the kernel reported means this user. In a user namespace, all users without a
// mapping share one id, so this is false for that id.
bool gpt_is_user(uid_t user, uid_t meant);
bool gpt_owns_folder(int folder, uid_t owner); // true if the folder is this user's and closed to all others

// Connect a socket to the supervisor whose folder this is. Returns a fault if that fails, with errno set to
// EACCES if the process there isn't trusted. Answers of the supervisor are code that will run. So both the
// folder and the socket must belong to `owner`, and they mustn't have been made by a process in a sandbox.
struct gpt_fault gpt_reach(int file, const char *name, uid_t owner);
bool gpt_connect(int file, const char *name); // the same for this user's folder

enum gpt_wish {
    GPT_WISH_ANSWER,   // an answer from a pipeline that the supervisor knows
    GPT_WISH_PIPELINE, // registering another pipeline: its text will be run
    GPT_WISH_ORDER,    // gpt-hook ctl: recording on or off, which of the known pipelines
};

// Check the process that connected a socket and sent a message over it. Returns NULL if it's accepted, and
// otherwise a phrase that says why not, such as "a process of another user".
const char *gpt_refuse_peer(int socket, pid_t sender, enum gpt_wish wish);

// Check only its user, which is possible before a message has arrived.
const char *gpt_refuse_user(int socket, enum gpt_wish wish);

// folder.c

// Make the beginning of a folder's name, KIND.BOOT.; mkdtemp adds the rest.
void gpt_make_prefix(const char *kind, char prefix[64]);
// Find our folders whose names begin with `prefix`, and remove those for which is_stale says that nobody uses
// them any more.
void gpt_remove_stale(const char *parent, const char *prefix, bool (*is_stale)(int), void (*empty)(int));

// Make a private folder for the supervisor's socket, and remove folders of supervisors that were killed.
// Returns a descriptor that keeps the folder locked, or -1.
int gpt_make_folder(char path[PATH_MAX]);
int gpt_listen(int folder); // returns a socket with SO_PASSCRED, or -1
void gpt_remove_folder(int folder, const char *path);

// registry.c

const char *gpt_find_pipeline(const char *digest);                  // its text, or NULL
const char *gpt_add_pipeline(const char *digest, const char *text); // NULL, or why it's refused

// supervisor.c

// Start the supervisor and set GPT_HOOK_BROKER. If that fails, the variable stays unset. The supervisor keeps
// the paths of the stages. `probe` is the pipeline that adds probes, or NULL, and `digest` is its name in
// questions. If `controlled` is set, gpt-hook ctl may add other pipelines later.
void gpt_start_broker(char *const paths[GPT_STAGES], const char *digest, const char *probe, bool controlled);

#endif
