// Prints the state of a process for gpt-hook ctl: as a table, or as a line of JSON.

#include <stdio.h>
#include <time.h>

#include "../common/control.h"
#include "../say.h"
#include "launcher.h"

static void put_text(const char *text, bool json) {
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        size_t shown = gpt_shown(at);
        if (json && (*at == '"' || *at == '\\'))
            putchar('\\');
        if (!shown)
            printf(json ? "\\u00%02x" : "\\x%02x", *at++);
        while (shown--)
            putchar(*at++);
    }
}

static void show_json(const struct gpt_state *state, pid_t pid) {
    const struct {
        const char *name, *text;
    } texts[] = {{"output", state->output},
                 {"probes", state->probes},
                 {"kernels", state->kernels},
                 {"filter", state->filter}};
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {
        {"since", state->since},     {"periods", state->periods},         {"launches", state->launches},
        {"bytes", state->bytes},     {"probed", state->probed},           {"pending", state->pending},
        {"refused", state->refused}, {"with_probes", state->with_probes}, {"without_probes", state->without},
    };
    printf("{\"pid\":%d,\"recording\":%s", pid, state->recording ? "true" : "false");
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        printf(",\"%s\":%lu", numbers[i].name, numbers[i].value);
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        printf(",\"%s\":\"", texts[i].name);
        put_text(texts[i].text, true);
        putchar('"');
    }
    printf("}\n");
}

static void show_text(const char *name, const char *text) {
    printf("%-10s ", name);
    put_text(text, false);
    putchar('\n');
}

static void show_table(const struct gpt_state *state, pid_t pid) {
    static const char *const units[] = {"KiB", "MiB", "GiB"};
    double size = (double)state->bytes / 1024, ago = (double)time(NULL) - (double)state->since / 1e9;
    unsigned unit = 0;
    for (; size >= 1000 && unit < 2; unit++)
        size /= 1024;
    printf("process    %d\nrecording  %s", pid, state->recording ? "on" : "off");
    if (state->since)
        printf(", since %.0f s", ago > 0 ? ago : 0);
    printf("\nperiods    %lu\nlaunches   %lu\n", state->periods, state->launches);
    show_text("trace", *state->output ? state->output : "none any more");
    printf("size       %.*f %s\n", size < 10, size, units[unit]);
    show_text("probes", *state->probes ? state->probes : "none");
    if (*state->kernels)
        show_text("kernels", state->kernels);
    if (*state->filter)
        show_text("filter", state->filter);
    if (*state->probes)
        printf("probed     %lu kernels, %lu pending, %lu refused\n", state->probed, state->pending,
               state->refused);
    if (*state->probes || state->with_probes)
        printf("launched   %lu with probes, %lu without\n", state->with_probes, state->without);
}

void show_state(const struct gpt_state *state, pid_t pid, bool json) {
    (json ? show_json : show_table)(state, pid);
}
