// Bursts of small launches, for toggle.py: `toggle_launches PTX`.
//
// Each input line has a number of bursts. For each burst the program prints two figures in us: the host's
// time per launch, and the time until the burst has run, divided by the number of its launches. At the end of
// its input, it prints how many launches it made, and how many the GPU has counted.

#include "client.h"
#include <time.h>

enum { BURST = 500, COUNT = 400 }; // a stream holds 1,021 launches before one blocks

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void *load(const char *path, void **module) {
    static char text[1 << 16];
    void *function;
    FILE *file = fopen(path, "r");
    assert(file && fread(text, 1, sizeof(text) - 1, file));
    fclose(file);
    OK(cuModuleLoadData(module, text));
    OK(cuModuleGetFunction(&function, *module, "scale"));
    return function;
}

#define FIND(name) int (*name)() = dlsym(driver, #name)

int main(int argc, char **argv) {
    void *module, *stream;
    uint64_t items, total;
    size_t size;
    unsigned added = 5, count = COUNT, sum;
    unsigned long launches = 0;
    char line[64];
    if (argc != 2)
        return 2;
    begin();
    FIND(cuMemAlloc_v2);
    FIND(cuStreamCreate);
    FIND(cuStreamSynchronize);
    FIND(cuModuleGetGlobal_v2);
    FIND(cuMemcpyDtoH_v2);
    void *function = load(argv[1], &module), *params[] = {&items, &added, &count};
    OK(cuMemAlloc_v2(&items, (size_t)4 * COUNT));
    OK(cuStreamCreate(&stream, 1));
    puts("ready"), fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        for (int left = atoi(line); left > 0; left--) {
            double begun = now(), host;
            for (int i = 0; i < BURST; i++)
                OK(cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, stream, params, NULL));
            host = now() - begun;
            OK(cuStreamSynchronize(stream));
            printf("%.3f %.3f ", host / BURST / 1000, (now() - begun) / BURST / 1000);
            launches += BURST;
        }
        puts(""), fflush(stdout);
    }
    OK(cuModuleGetGlobal_v2(&total, &size, module, "total"));
    OK(cuMemcpyDtoH_v2(&sum, total, (size_t)4));
    printf("%lu %u\n", launches, sum / COUNT);
    return 0;
}
