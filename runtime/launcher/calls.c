// Checks the words in --calls and --stacks. Without these checks, a run with a misspelt name would record
// nothing, and nobody would notice.

#include <stdio.h>
#include <string.h>

#include "hook/watch/suffixes.h"
#include "launcher.h"

#define NAME_SIZE 128
#define MOST_NEAR 3

static const char *const symbols[] = {
#define X(name, suffix, since, words) #name #suffix,
#include "abi/driver.h"
};

static size_t smaller(size_t one, size_t two) { return one < two ? one : two; }

// Return how many characters have to be inserted, removed or changed to turn one name into the other.
static size_t distance(const char *one, const char *two) {
    size_t row[NAME_SIZE + 1], size = smaller(strlen(two), NAME_SIZE);
    for (size_t j = 0; j <= size; j++)
        row[j] = j;
    for (size_t i = 1; *one; one++, i++) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= size; j++) {
            size_t changed = corner + (*one != two[j - 1]);
            corner = row[j];
            row[j] = smaller(changed, 1 + smaller(row[j], row[j - 1]));
        }
    }
    return row[size];
}

// Fail for a name that no function has, and suggest similar ones.
static void check_name(const char *option, const char *word) {
    char near[MOST_NEAR][NAME_SIZE] = {""}, text[MOST_NEAR * (NAME_SIZE + 2)] = "";
    size_t distances[MOST_NEAR], count = 0, most = strlen(word) / 3;
    for (size_t i = 0; i < sizeof(symbols) / sizeof(*symbols); i++) {
        char name[NAME_SIZE];
        snprintf(name, sizeof(name), "%s", symbols[i]);
        gpt_cut_suffixes(name);
        size_t far = distance(word, name), at = count;
        if (!far)
            return;
        bool known = false;
        for (size_t j = 0; j < count; j++)
            known |= !strcmp(near[j], name);
        while (at && distances[at - 1] > far)
            at--;
        if (known || far > most || at == MOST_NEAR)
            continue;
        count += count < MOST_NEAR;
        memmove(distances + at + 1, distances + at, (count - at - 1) * sizeof(*distances));
        memmove(near + at + 1, near + at, (count - at - 1) * sizeof(*near));
        distances[at] = far;
        strcpy(near[at], name);
    }
    for (size_t i = 0; i < count; i++)
        sprintf(text + strlen(text), "%s%s", i ? ", " : "", near[i]);
    fail(USAGE, option, "no function '%s'%s%s%s", word,
         count ? " (there is " : "; 'gpt-hook functions' lists them", text, count ? ")" : "");
}

// Check all words of an option. A glob isn't checked, because it may be meant for functions newer than this
// program.
void check_calls(const char *option, const char *calls) {
    static const char *const words =
        "all, none, query, context, device, event, graph, kernel, memcpy, memory, memset, "
        "module, other, stream, sync";
    char word[NAME_SIZE];
    for (const char *at = calls; *at; at += *at == ',') {
        size_t size = strcspn(at, ",");
        snprintf(word, sizeof(word), "%.*s", (int)(size - (*at == '-')), at + (*at == '-'));
        at += size;
        if (!*word || strpbrk(word, "*?["))
            continue;
        if (!strncmp(word, "cu", 2)) {
            check_name(option, word);
            continue;
        }
        size_t length = strlen(word);
        const char *found = words;
        while (found && (strncmp(found, word, length) || (found[length] && found[length] != ',')))
            found = (found = strchr(found, ' ')) ? found + 1 : NULL;
        if (!found)
            fail(USAGE, option, "'%s' is not a glob of functions (cu...) or a type (there are %s)", word,
                 words);
    }
}
