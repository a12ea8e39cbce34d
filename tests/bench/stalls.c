// How long a thread that calls the driver is interrupted. It reads its own processor time all the time, for
// the given seconds. The kernel counts an interrupt, such as a perf event, as time of the thread that it
// interrupts, so the time jumps; time for which another thread ran instead doesn't count. Prints the
// processor time in ns and how many jumps took over 5, 20, 50 and 100 us.

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static long now(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000 + time.tv_nsec;
}

int main(int argc, char **argv) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : NULL;
    if (argc < 2 || !init || init(0))
        return 1;
    static const long limits[] = {5000, 20000, 50000, 100000};
    long end = now(CLOCK_MONOTONIC) + atol(argv[1]) * 1000000000, begin = now(CLOCK_THREAD_CPUTIME_ID);
    long last = begin, counts[4] = {0};
    for (long reads = 0; reads & 1023 || now(CLOCK_MONOTONIC) < end; reads++) {
        long time = now(CLOCK_THREAD_CPUTIME_ID);
        for (int i = 0; i < 4; i++)
            counts[i] += time - last > limits[i];
        last = time;
    }
    printf("[%ld, %ld, %ld, %ld, %ld]\n", last - begin, counts[0], counts[1], counts[2], counts[3]);
}
