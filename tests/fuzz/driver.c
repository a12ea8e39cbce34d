// A replacement for libFuzzer without coverage. It runs a harness on files, or on random variations of them,
// which are the same for the same seed. It takes libFuzzer's options, so a harness is run the same way with
// both:
//
//     HARNESS -runs=N -seed=N -artifact_prefix=PATH FOLDER...   N variations of the files in the folders
//     HARNESS FILE...                                           these files
//
// An input that a sanitizer rejects, or that takes more than SECONDS of CPU time, is saved as PATHcrash.

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#define MAX_SIZE (1u << 16)
#define MAX_FILES 256
#define SECONDS 10

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void __sanitizer_set_death_callback(void (*callback)(void));

static uint8_t *inputs[MAX_FILES];
static size_t sizes[MAX_FILES], count;
static const uint8_t *current;
static size_t current_size;
static char artifact[PATH_MAX];
static uint64_t state;

static void save(void) {
    int file = open(artifact, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    for (size_t done = 0; file >= 0 && done < current_size;) {
        ssize_t wrote = write(file, current + done, current_size - done);
        if (wrote <= 0)
            break;
        done += (size_t)wrote;
    }
}

static void stop(int number) {
    const char *text = number == SIGABRT ? "ERROR: the harness says no\n" : "ERROR: timeout\n";
    if (write(2, text, strlen(text)) > 0)
        save();
    _exit(70);
}

static uint64_t draw(uint64_t limit) { // splitmix64
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return limit ? (z ^ z >> 31) % limit : 0;
}

static void run(const uint8_t *data, size_t size) {
    uint8_t *exact = malloc(size ? size : 1); // so that reading one byte too far is detected
    if (!exact)
        exit(71);
    memcpy(exact, data, size);
    current = exact;
    current_size = size;
    struct itimerval timer = {.it_value = {SECONDS, 0}};
    setitimer(ITIMER_PROF, &timer, NULL);
    LLVMFuzzerTestOneInput(exact, size);
    current_size = 0;
    free(exact);
}

static void change(uint8_t *data, size_t *size) {
    static const uint64_t numbers[] = {0,          1,
                                       2,          7,
                                       8,          16,
                                       63,         64,
                                       127,        128,
                                       255,        256,
                                       4096,       0x7fff,
                                       0xffff,     0x7fffffff,
                                       1u << 31,   UINT32_MAX,
                                       1ull << 32, INT64_MAX,
                                       1ull << 63, UINT64_MAX - 7,
                                       UINT64_MAX, 12};
    size_t at = *size ? draw(3) ? draw(*size < 128 ? *size : 128) : draw(*size) : 0;
    size_t length = 1 + draw(draw(2) ? 16 : 512);
    uint64_t number = numbers[draw(sizeof(numbers) / sizeof(*numbers))];
    unsigned width = 1u << draw(4);
    switch (draw(8)) {
    case 0:
        if (*size)
            data[at] ^= (uint8_t)(1u << draw(8));
        break;
    case 1:
        if (*size)
            data[at] = (uint8_t)draw(256);
        break;
    case 2: // take out
        length = length < *size - at ? length : *size - at;
        memmove(data + at, data + at + length, *size - at - length);
        *size -= length;
        break;
    case 3: // put in a part of another
    case 4: {
        size_t other = draw(count), from = draw(sizes[other]);
        length = length < sizes[other] - from ? length : sizes[other] - from;
        if (*size + length > MAX_SIZE)
            break;
        memmove(data + at + length, data + at, *size - at);
        memcpy(data + at, inputs[other] + from, length);
        *size += length;
        break;
    }
    case 5:
        if (!draw(4))
            *size = at;
        break;
    case 6:
        number = draw(2) ? *size + draw(9) - 4 : draw(0x10000);
        __attribute__((fallthrough));
    default:
        if (draw(4))
            at -= at % width;
        for (unsigned i = 0; i < width && at + i < *size; i++) {
            bool big = number & 1; // use msgpack's byte order or the machine's
            data[at + i] = (uint8_t)(number >> 8 * (big ? width - 1 - i : i));
        }
    }
}

// Inputs that random changes hardly ever produce: an empty one, each single byte, the first bytes of a good
// input.
static void run_small(void) {
    run((const uint8_t *)"", 0);
    for (unsigned byte = 0; byte < 256; byte++)
        run(&(uint8_t){(uint8_t)byte}, 1);
    for (size_t size = 2; size <= 64 && size < sizes[0]; size++)
        run(inputs[0], size);
}

static void load(const char *path) {
    struct stat status;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &status) || !S_ISREG(status.st_mode) || count == MAX_FILES) {
        if (file >= 0)
            close(file);
        return;
    }
    size_t size = status.st_size < MAX_SIZE ? (size_t)status.st_size : MAX_SIZE;
    inputs[count] = malloc(size + 1);
    if (inputs[count] && read(file, inputs[count], size) == (ssize_t)size)
        sizes[count++] = size;
    close(file);
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

int main(int argc, char **argv) {
    unsigned long runs = 0, seed = 0;
    const char *prefix = "./";
    __sanitizer_set_death_callback(save);
    signal(SIGPROF, stop);
    signal(SIGABRT, stop);
    for (int i = 1; i < argc; i++) {
        struct dirent **entries;
        int found;
        if (sscanf(argv[i], "-runs=%lu", &runs) == 1 || sscanf(argv[i], "-seed=%lu", &seed) == 1)
            continue;
        if (!strncmp(argv[i], "-artifact_prefix=", 17))
            prefix = argv[i] + 17;
        else if ((found = scandir(argv[i], &entries, NULL, by_name)) >= 0) {
            for (int j = 0; j < found; j++) {
                char path[PATH_MAX];
                snprintf(path, sizeof(path), "%s/%s", argv[i], entries[j]->d_name);
                load(path);
                free(entries[j]);
            }
            free(entries);
        } else if (*argv[i] != '-')
            load(argv[i]);
    }
    snprintf(artifact, sizeof(artifact), "%scrash", prefix);
    if (!count)
        return 72;
    run_small();
    for (size_t i = 0; i < count; i++)
        run(inputs[i], sizes[i]);
    static uint8_t data[MAX_SIZE];
    for (unsigned long i = 0; i < runs; i++) {
        state = (seed << 32) + i;
        size_t from = draw(count), size = sizes[from];
        memcpy(data, inputs[from], size);
        for (uint64_t times = 1 + draw(draw(2) ? 2 : 8); times; times--)
            change(data, &size);
        run(data, size);
    }
    return 0;
}
