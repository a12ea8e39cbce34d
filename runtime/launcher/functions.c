// gpt-hook functions: print what we know about each driver function, one per line. gpt-attach makes its
// bpftrace programs from this list.

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hook/watch/suffixes.h"
#include "launcher.h"

#define HANDLER(name) NULL
#include "hook/entry/table.h"

static const char *symbols[] = {
#define X(name, suffix, since, words) #name #suffix,
#include "abi/driver.h"
};

// How to read arguments that aren't plain values.
static const char *const specials[] = {
    [SPECIAL_LAUNCH] = "launch",       [SPECIAL_LAUNCH_COOPERATIVE] = "launch_cooperative",
    [SPECIAL_LAUNCH_EX] = "launch_ex", [SPECIAL_LAUNCH_OLD] = "launch_old",
    [SPECIAL_PITCH] = "pitch",         [SPECIAL_COPY_2D] = "copy_2d",
    [SPECIAL_COPY_3D] = "copy_3d",     [SPECIAL_TIMES_2] = "times_2",
    [SPECIAL_TIMES_4] = "times_4",     [SPECIAL_AREA_1] = "area_1",
    [SPECIAL_AREA_2] = "area_2",       [SPECIAL_AREA_4] = "area_4",
};

static const char *const columns[LAYOUTS][4] = {
    [LAYOUT_OBJECT] = {"object", "stream"},
    [LAYOUT_MEMORY] = {"to", "from", "bytes", "stream"},
};

static void print(const char *symbol, const char *calls) {
    char name[NAME_BYTES], op[NAME_BYTES];
    snprintf(name, sizeof(name), "%s", symbol);
    bool versioned = gpt_cut_suffixes(name);
    const struct driver_function *known = find_known(name);
    const char *type = known ? known->type : types[find_type(name)].type;
    if (!is_meant(calls, name, type))
        return;
    name_op(name, op);
    printf("%s %s %s %s", symbol, name, type, known ? known->op : op);
    if (known && (versioned || !known->v2)) { // otherwise it's an older one, with other arguments
        for (size_t i = 0; i < 4; i++)
            if (columns[known->layout][i] && known->values[i])
                printf(" %s=%s%d", columns[known->layout][i], known->values[i] & ARG_OUT ? "*" : "",
                       known->values[i] & ARG_MASK);
        if (known->special)
            printf(" how=%s", specials[known->special]);
    }
    putchar('\n');
}

static int compare(const void *one, const void *two) {
    return strcmp(*(const char *const *)one, *(const char *const *)two);
}

int functions(int argc, char **argv) {
    const char *calls = argc == 3 && !strcmp(argv[1], "--calls") ? argv[2] : "all,-query";
    if (argc != 1 && argc != 3)
        fail(USAGE, "functions", "takes nothing but --calls WORD,...; see gpt-hook --help");
    if (!*calls)
        fail(USAGE, "--calls", "names nothing");
    check_calls("--calls", calls);
    qsort(symbols, sizeof(symbols) / sizeof(*symbols), sizeof(*symbols), compare);
    for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++)
        print(symbols[i], calls);
    if (fflush(stdout) || ferror(stdout))
        fail(BAD, "standard output", "%s", strerror(errno));
    return 0;
}
