#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher.h"
#include "options.h"

enum { LEAST_DISK = 1 << 20 }; // bytes
enum { MOST_HERTZ = 1000 };

static const char HELP[] =
    "usage: gpt-hook run [OPTION ...] [--] COMMAND [ARG ...]\n"
    "       gpt-hook ctl [--all] [--json] PID enable|disable|status\n"
    "       gpt-hook ctl [--all] [-k NAME:...] [--filter NAME:...] [--jit PIPELINE]\n"
    "                    PID probe [PROBE ...]\n"
    "       gpt-hook attach -p PID | --system [OPTION ...]\n"
    "       gpt-hook functions [--calls WORD,...]\n"
    "       gpt-hook check\n"
    "       gpt-hook --help | --version\n"
    "\n"
    "run    run COMMAND and record its use of the CUDA driver\n"
    "  -o, --output FILE      write the trace here (trace.mp); %p is the pid, %h the\n"
    "                         host, %r RANK; with a FIFO, '-' or '|COMMAND', it's\n"
    "                         streamed while the program runs\n"
    "  -f, --force            overwrite FILE\n"
    "  -q, --quiet            don't print the report at the end\n"
    "      --calls WORD,...   record calls to these driver functions: all, none,\n"
    "                         globs of names, types such as memcpy or kernel, query;\n"
    "                         -WORD excludes (all,-query; with --ioctl all)\n"
    "      --stacks WORD,...  record the call stacks of these functions (none)\n"
    "      --sample-host HZ   sample what the threads that call the driver do on the\n"
    "                         host, HZ times per second (off; 50 is a good start)\n"
    "      --max-disk SIZE    stop recording calls and buffers before the run\n"
    "                         exceeds this\n"
    "      --gpu-time         time kernels, copies and memsets on the GPU, with two\n"
    "                         events each\n"
    "      --node-times 1/N   also time each node in one of N replays of a graph\n"
    "      --ioctl            record the driver's ioctls\n"
    "      --layers           record which module of a PyTorch model launches what\n"
    "      --tensors          let Python programs import gpt.tensors from any\n"
    "                         environment\n"
    "      --save-modules DIR\n"
    "                         save modules that are loaded from memory to DIR\n"
    "      --device KIND      real, or sim: a device simulated in host memory (real)\n"
    "      --replace DIR      load the libraries in DIR instead of their originals\n"
    "  -p, --probe PROBE      weave a probe into the kernels that COMMAND launches: a\n"
    "                         file or a built-in probe; repeatable\n"
    "      --jit PIPELINE     the shell pipeline that turns modules into probed\n"
    "                         images\n"
    "  -k, --kernel NAME:...  only kernels whose name contains one of these\n"
    "      --filter NAME:...  no kernels whose name contains one of these\n"
    "      --wait S           how many seconds lookups may wait for probed kernels\n"
    "                         (30)\n"
    "      --launch-skip N    don't probe the first N launches of each kernel\n"
    "      --launch-count N   probe at most N launches of each kernel\n"
    "      --sample 1/N       probe one in N launches of each kernel\n"
    "      --detail N         keep only sums after the first N launches of a kernel\n"
    "                         and grid\n"
    "      --max-memory SIZE  device memory for buffers, such as 512M (a tenth of\n"
    "                         free memory)\n"
    "      --complete         wait for a buffer rather than run a launch without\n"
    "                         probes\n"
    "      --benchmark        also run each kernel without probes, and time both;\n"
    "                         save no buffers\n"
    "      --memusage         only add up the memory that buffers would need\n"
    "      --rerun TRACE      make logs as large as TRACE, from --memusage, says\n"
    "      --control          let gpt-hook ctl turn recording on and off\n"
    "      --disabled         like --control, but start with recording and probes off\n"
    "ctl    control a process started with --control or --disabled: start or stop\n"
    "       recording, print its status, or replace its probes\n"
    "      --all              apply to all processes of its run\n"
    "      --json             print JSON, one line per process\n"
    "attach\n"
    "       trace a running process with bpftrace, as root: gpt-hook attach --help\n"
    "functions\n"
    "       print the driver functions that gpt-hook knows\n"
    "check  report the driver, devices, runtime and kernel features found here\n";

void help(void) {
    fputs(HELP, stdout);
    exit(0);
}

void fail_option(int option, char **argv) {
    fail(USAGE, argv[optind - 1], option == ':' ? "needs a value" : "no such option; see gpt-hook --help");
}

static void parse_options(struct request *request, int argc, char **argv) {
    static const struct option options[] = {
        {"output", required_argument, NULL, 'o'},
        {"force", no_argument, NULL, 'f'},
        {"calls", required_argument, NULL, 'c'},
        {"stacks", required_argument, NULL, 't'},
        {"sample-host", required_argument, NULL, 'H'},
        {"gpu-time", no_argument, NULL, 'g'},
        {"node-times", required_argument, NULL, 'N'},
        {"ioctl", no_argument, NULL, 'i'},
        {"tensors", no_argument, NULL, 'T'},
        {"layers", no_argument, NULL, 'L'},
        {"save-modules", required_argument, NULL, 's'},
        {"device", required_argument, NULL, 'd'},
        {"replace", required_argument, NULL, 'r'},
        {"quiet", no_argument, NULL, 'q'},
        {"probe", required_argument, NULL, 'p'},
        {"kernel", required_argument, NULL, 'k'},
        {"jit", required_argument, NULL, 'j'},
        {"filter", required_argument, NULL, 'x'},
        {"wait", required_argument, NULL, 'w'},
        {"launch-skip", required_argument, NULL, 'S'},
        {"launch-count", required_argument, NULL, 'C'},
        {"sample", required_argument, NULL, 'n'},
        {"detail", required_argument, NULL, 'e'},
        {"max-memory", required_argument, NULL, 'm'},
        {"max-disk", required_argument, NULL, 'M'},
        {"complete", no_argument, NULL, 'a'},
        {"control", no_argument, NULL, 'l'},
        {"disabled", no_argument, NULL, 'D'},
        {"benchmark", no_argument, NULL, 'b'},
        {"memusage", no_argument, NULL, 'u'},
        {"rerun", required_argument, NULL, 'R'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    struct probing *probing = &request->probing;
    for (int option; (option = getopt_long(argc, argv, "+:o:fqhp:k:", options, NULL)) != -1;)
        switch (option) {
        case 'o':
            request->output = optarg;
            break;
        case 'f':
            request->force = true;
            break;
        case 'q':
            request->quiet = probing->quiet = true;
            break;
        case 'c':
            request->calls = optarg;
            break;
        case 't':
            request->stacks = optarg;
            break;
        case 'H':
            request->sample_host = optarg;
            break;
        case 'd':
            request->device = optarg;
            break;
        case 's':
            request->modules = optarg;
            break;
        case 'i':
            request->ioctls = true;
            break;
        case 'T':
            request->tensors = true;
            break;
        case 'L':
            request->layers = true;
            break;
        case 'r':
            request->replacements = optarg;
            break;
        case 'g':
            request->gpu_time = true;
            break;
        case 'N':
            request->node_times = check_sample("--node-times", optarg);
            request->gpu_time = true;
            break;
        case 'p':
            if (probing->probe_count == MOST_PROBES)
                fail(USAGE, "-p", "more than %d probes", MOST_PROBES);
            probing->probes[probing->probe_count++] = optarg;
            break;
        case 'k':
            probing->kernels = add_parts("-k", probing->kernels, optarg);
            break;
        case 'j':
            probing->jit = optarg;
            break;
        case 'x':
            probing->filter = add_parts("--filter", probing->filter, optarg);
            break;
        case 'w':
            probing->wait = optarg;
            break;
        case 'S':
            probing->skip = optarg;
            break;
        case 'C':
            probing->count = optarg;
            break;
        case 'n':
            probing->sample = optarg;
            break;
        case 'e':
            probing->detail = optarg;
            break;
        case 'm':
            probing->memory = optarg;
            break;
        case 'M':
            request->disk = check_size("--max-disk", optarg);
            break;
        case 'a':
            probing->complete = true;
            break;
        case 'D':
            request->disabled = true;
            // fall through
        case 'l':
            request->control = true;
            break;
        case 'b':
            probing->benchmark = true;
            break;
        case 'u':
            probing->memusage = true;
            break;
        case 'R':
            probing->rerun = optarg;
            break;
        case 'h':
            help();
        default:
            fail_option(option, argv);
        }
    request->command = argv + optind;
}

static void check_rate(const char *option, const char *text) {
    char *end;
    unsigned long hertz = strtoul(text, &end, 10);
    if (strspn(text, "0123456789") != strlen(text) || end == text || hertz < 1 || hertz > MOST_HERTZ)
        fail(USAGE, option, "'%s' isn't a number from 1 to %d", text, MOST_HERTZ);
}

// Reject options that make no sense, before anything is written.
static void check_request(struct request *request) {
    const char *output = request->output;
    if (!*request->command)
        fail(USAGE, "run", "no command; see gpt-hook --help");
    if (!*output || (*output != '|' && output[strlen(output) - 1] == '/') || !strcmp(output, "|"))
        fail(USAGE, "-o",
             *output == '|' ? "no command"
             : *output      ? "a folder; name a file in it: %s%%p.mp"
                            : "not a file name",
             output);
    if (!request->calls) // queries make ioctls too, and must be recorded as their parents
        request->calls = request->ioctls ? "all" : "all,-query";
    if (!*request->calls)
        fail(USAGE, "--calls", "names nothing; 'none' records no calls");
    check_calls("--calls", request->calls);
    if (request->disk && strtoull(request->disk, NULL, 10) < LEAST_DISK)
        fail(USAGE, "--max-disk", "less than 1M has no room for a trace");
    if (request->sample_host)
        check_rate("--sample-host", request->sample_host);
    if (request->node_times && (request->probing.probe_count || request->probing.jit))
        fail(USAGE, "--node-times", "not with probes: block_sched times their kernels, in graphs too");
    if (request->stacks)
        check_calls("--stacks", request->stacks);
    request->simulated = !strcmp(request->device, "sim");
    if (!request->simulated && strcmp(request->device, "real"))
        fail(USAGE, "--device", "'%s' is neither real nor sim", request->device);
}

void read_options(struct request *request, int argc, char **argv) {
    parse_options(request, argc, argv);
    check_request(request);
}

void fail_without_command(char **words) {
    static const char *const commands[] = {"run", "ctl", "attach", "functions", "check"};
    const char *first = *words, *command = "run";
    char unused[PATH_MAX];
    if (!first || !*first)
        fail(USAGE, "arguments", "none; see gpt-hook --help");
    if (!strcmp(first, "--") && words[1])
        fail(USAGE, first, "no gpt-hook command before it; to run a program: gpt-hook run -- %s", words[1]);
    if (*first == '-') {
        for (char **word = words; *word && strcmp(*word, "--"); word++)
            for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++)
                if (!strcmp(*word, commands[i])) {
                    command = commands[i];
                    goto found;
                }
    found:
        fail(USAGE, first, "options follow '%s': 'gpt-hook %s %s ...'; see gpt-hook --help", command, command,
             first);
    }
    if (is_command(first, unused))
        fail(USAGE, first, "not a gpt-hook command; to run a program: gpt-hook run -- %s", first);
    if (!access(first, X_OK)) // a file here, which isn't in PATH
        fail(USAGE, first, "not a gpt-hook command; to run a program: gpt-hook run -- ./%s", first);
    fail(USAGE, first, "no such command; see gpt-hook --help");
}
