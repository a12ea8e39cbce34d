// Variables that PTX declares, with their initial values: numbers, constant expressions of them, and
// addresses. gpt/asm/host/variables.py reads them in the same way for the code of kernels.

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "host/abi.h"
#include "image.h"

enum { MOST_BYTES = 1 << 30, MOST_DEPTH = 64, MOST_DIMENSIONS = 8 };

typedef __int128 number; // all of 64 bits, with and without sign

// A constant: a number, or an address, to which the number is added.
struct value {
    number number;
    const char *symbol; // or NULL
    uint8_t shift;      // bytes that a mask drops, as 0xff00(x)
    bool masked, generic;
};

struct reader {
    struct code *code;
    struct text *text;
    const char *function;                       // whose variable it is, or NULL
    const char *type;                           // of the elements: ".f32"
    size_t item;                                // bytes of each
    size_t counts[MOST_DIMENSIONS], dimensions; // the last one may be a vector's
    size_t values, room;                        // elements: that there are, for which there is memory
    char *bytes;                                // or NULL: none is there
    struct host_address *addresses;
    size_t address_count;
    int depth; // of parentheses and braces
};

// Constant expressions. Each reader starts at its first token and stops at the token after it.

static const struct {
    const char *text;
    int level;
} operators[] = {
    {"||", 1}, {"&&", 2}, {"==", 6}, {"!=", 6}, {"<<", 8}, {">>", 8}, {"<=", 7}, {">=", 7}, {"|", 3},
    {"^", 4},  {"&", 5},  {"<", 7},  {">", 7},  {"+", 9},  {"-", 9},  {"*", 10}, {"/", 10}, {"%", 10},
};
enum { OPERATORS = sizeof(operators) / sizeof(*operators) };

static size_t find_operator(const struct text *text) {
    size_t i = 0, left = text->size ? (size_t)(text->end - text->token) : 0;
    while (i < OPERATORS && (strlen(operators[i].text) > left ||
                             memcmp(text->token, operators[i].text, strlen(operators[i].text))))
        i++;
    return i;
}

static number operate(const char *operator, number a, number b) {
    if (operator[1] && operator[0] == operator[1])
        switch (operator[0]) {
        case '|':
            return a || b;
        case '&':
            return a && b;
        case '=':
            return a == b;
        case '<':
            return (number)((unsigned __int128)a << (b & 63));
        default:
            return a >> (b & 63);
        }
    if (operator[1])
        return *operator == '!' ? a != b : *operator == '<' ? a <= b : a >= b;
    switch (*operator) {
    case '|':
        return a | b;
    case '^':
        return a ^ b;
    case '&':
        return a & b;
    case '<':
        return a < b;
    case '>':
        return a > b;
    case '+':
        return a + b;
    case '-':
        return a - b;
    case '*':
        return (number)((unsigned __int128)a * (unsigned __int128)b);
    case '/':
        return b ? a / b : 0;
    default:
        return b ? a % b : 0;
    }
}

static struct value read_value(struct reader *reader, int level);

static bool take(struct text *text, const char *token) {
    if (!text->size || !sim_is_token(text, token))
        return false;
    sim_next_token(text);
    return true;
}

static bool is_float(const struct reader *reader) { return reader->type && reader->type[1] == 'f'; }

// The bits of a float, in the type of the elements.
static uint64_t float_bits(const struct reader *reader, double value) {
    uint64_t bits = 0;
    float narrow = (float)value;
    if (reader->item == 4)
        memcpy(&bits, &narrow, sizeof(narrow));
    else
        memcpy(&bits, &value, sizeof(value));
    return bits;
}

// A number: 0f3F800000 and 0d... are the bits of floats, 1.5 and 1e5 floats.
static number read_number(struct reader *reader) {
    struct text *text = reader->text;
    char digits[128] = "", *end;
    size_t left = (size_t)(text->end - text->token);
    memcpy(digits, text->token, left < sizeof(digits) ? left : sizeof(digits) - 1);
    char kind = digits[0] == '0' ? (char)(digits[1] | 32) : 0;
    if (kind == 'f' || kind == 'd') {
        uint64_t bits = strtoull(digits + 2, &end, 16);
        float narrow;
        double wide;
        memcpy(&narrow, &bits, sizeof(narrow));
        memcpy(&wide, &bits, sizeof(wide));
        sim_next_token(text);
        return (kind == 'f') == (reader->item < 8) ? bits : float_bits(reader, kind == 'f' ? narrow : wide);
    }
    if (is_float(reader) && kind != 'x' && kind != 'b') {
        locale_t plain = newlocale(LC_ALL_MASK, "C", NULL);
        double value = strtod_l(digits, &end, plain);
        freelocale(plain);
        text->at = text->token + (end - digits);
        sim_next_token(text);
        return float_bits(reader, value);
    }
    number value = kind == 'b' ? strtoull(digits + 2, NULL, 2) : strtoull(digits, NULL, 0);
    sim_next_token(text);
    return value;
}

static struct value read_unary(struct reader *reader) {
    struct text *text = reader->text;
    struct value made = {0};
    if (!text->size || reader->depth >= MOST_DEPTH)
        return made;
    reader->depth++;
    char first = *text->token;
    if (take(text, "-")) {
        made = read_unary(reader);
        made.number = is_float(reader) ? made.number ^ (number)1 << (8 * reader->item - 1) : -made.number;
    } else if (take(text, "+"))
        made = read_unary(reader);
    else if (take(text, "~")) {
        made = read_unary(reader);
        made.number = ~made.number;
    } else if (take(text, "!")) {
        made = read_unary(reader);
        made.number = !made.number;
    } else if (take(text, "(")) {
        bool to_signed = text->size && sim_is_token(text, ".s64"), cast = text->size && *text->token == '.';
        if (cast)
            sim_next_token(text);
        else
            made = read_value(reader, 0);
        take(text, ")");
        if (cast) {
            made = read_unary(reader);
            made.number = to_signed ? (number)(int64_t)made.number : (number)(uint64_t)made.number;
        }
    } else if (first >= '0' && first <= '9') {
        made.number = read_number(reader);
        if (take(text, "(")) { // a mask
            uint64_t mask = (uint64_t)made.number;
            made = read_value(reader, 0);
            take(text, ")");
            made.masked = true;
            made.shift = mask ? (uint8_t)(__builtin_ctzll(mask) / 8) : 0;
        }
    } else if (take(text, "WARP_SZ"))
        made.number = 32;
    else if (take(text, "generic")) {
        made = read_unary(reader);
        made.generic = true;
    } else if (sim_is_word(first) || first == '%') {
        made.symbol = sim_keep_text(reader->code, text->token, text->size);
        sim_next_token(text);
    }
    reader->depth--;
    return made;
}

// An expression of operators of this level and above; 0: also ?:.
static struct value read_value(struct reader *reader, int level) {
    struct text *text = reader->text;
    struct value made = read_unary(reader);
    for (size_t i; (i = find_operator(text)) < OPERATORS && operators[i].level >= level;) {
        text->at = text->token + strlen(operators[i].text);
        sim_next_token(text);
        struct value second = read_value(reader, operators[i].level + 1);
        if (!made.symbol)
            made.symbol = second.symbol, made.generic = second.generic;
        made.number = operate(operators[i].text, made.number, second.number);
    }
    if (level == 0 && reader->depth < MOST_DEPTH && take(text, "?")) {
        reader->depth++;
        struct value first = read_value(reader, 0);
        take(text, ":");
        struct value second = read_value(reader, 0);
        reader->depth--;
        return made.number ? first : second;
    }
    return made;
}

static size_t read_size(struct code *code, struct text *text) {
    struct reader reader = {.code = code, .text = text};
    number size = read_value(&reader, 0).number;
    return size > 0 && size <= MOST_BYTES ? (size_t)size : 0;
}

// Initial values

// Make room for this many elements.
static bool make_room(struct reader *reader, size_t values) {
    if (values <= reader->room)
        return true;
    size_t room = 2 * reader->room > values ? 2 * reader->room : values;
    char *larger = room <= MOST_BYTES / 16 ? sim_new_block(reader->code, reader->item * room) : NULL;
    if (larger && reader->bytes)
        memcpy(larger, reader->bytes, reader->item * reader->values);
    if (larger)
        reader->bytes = larger, reader->room = room;
    return larger;
}

static void add_address(struct reader *reader, struct host_address address) {
    size_t count = reader->address_count;
    if (!(count & (count - 1))) { // as many again
        struct host_address *larger =
            (void *)sim_new_block(reader->code, (count ? 2 * count : 1) * sizeof(*larger));
        if (!larger)
            return;
        if (count)
            memcpy(larger, reader->addresses, count * sizeof(*larger));
        reader->addresses = larger;
    }
    reader->addresses[reader->address_count++] = address;
}

static void read_element(struct reader *reader) {
    struct value value = read_value(reader, 0);
    size_t offset = reader->item * reader->values, size = reader->item < 8 ? reader->item : 8;
    if (!make_room(reader, reader->values + 1))
        return;
    reader->values++;
    if (value.symbol)
        add_address(reader, (struct host_address){.offset = offset,
                                                  .symbol = value.symbol,
                                                  .addend = (int64_t)value.number,
                                                  .size = value.masked ? 1 : (uint8_t)size,
                                                  .shift = value.shift,
                                                  .generic = value.generic});
    else
        memcpy(reader->bytes + offset, &value.number, size);
}

// Read a list in braces of this dimension. Inner lists may leave out trailing zeros.
static void read_list(struct reader *reader, size_t dimension) {
    struct text *text = reader->text;
    while (text->size && !sim_is_token(text, ";") && !take(text, "}")) {
        if (!sim_is_token(text, "{")) {
            const char *before = text->token;
            read_element(reader);
            if (text->token == before) // nothing that a value begins with
                sim_next_token(text);
        } else if (reader->depth < MOST_DEPTH) {
            size_t count = 1, end;
            for (size_t i = dimension + 1; i < reader->dimensions; i++)
                if (__builtin_mul_overflow(count, reader->counts[i], &count))
                    return;
            if (__builtin_add_overflow(reader->values, count, &end))
                return;
            sim_next_token(text);
            reader->depth++;
            read_list(reader, dimension + 1);
            reader->depth--;
            if (reader->values < end && make_room(reader, end))
                reader->values = end;
        } else
            sim_next_token(text);
        take(text, ",");
    }
}

// Of a variable, in all.
static size_t bytes_of(const struct reader *reader) {
    size_t size = reader->item;
    for (size_t i = 0; i < reader->dimensions; i++)
        if (__builtin_mul_overflow(size, reader->counts[i], &size))
            return 0;
    return size <= SIZE_MAX / 2 ? size : 0;
}

// The name of the variable that the token is: FUNCTION.NAME of a function's.
static const char *own_name(const struct reader *reader) {
    const struct text *text = reader->text;
    if (!reader->function)
        return sim_keep_text(reader->code, text->token, text->size);
    size_t size = strlen(reader->function) + 1;
    char *name = sim_new_block(reader->code, size + text->size);
    if (name) {
        sprintf(name, "%s.", reader->function);
        memcpy(name + size, text->token, text->size);
    }
    return name;
}

// NAME[N][N] = {...}
static void read_variable(struct reader *reader, struct variable variable, size_t vector) {
    struct text *text = reader->text;
    variable.name = own_name(reader);
    sim_next_token(text);
    bool open = false;
    while (take(text, "[")) {
        open |= text->size && sim_is_token(text, "]");
        size_t count = open ? 1 : read_size(reader->code, text);
        if (reader->dimensions < MOST_DIMENSIONS - 1)
            reader->counts[reader->dimensions++] = count;
        take(text, "]");
    }
    if (vector > 1)
        reader->counts[reader->dimensions++] = vector;
    size_t inner = bytes_of(reader) / (reader->item ? reader->item : 1);
    if (take(text, "=")) {
        make_room(reader, inner);
        if (take(text, "{"))
            read_list(reader, 0);
        else
            read_element(reader);
    }
    if (open && inner)
        reader->counts[0] = (reader->values + inner - 1) / inner;
    variable.size = bytes_of(reader);
    variable.initial = reader->values * reader->item <= variable.size ? reader->bytes : NULL;
    variable.addresses = reader->addresses;
    variable.address_count = reader->address_count;
    sim_add_variable(reader->code, variable);
}

void sim_read_variables(struct code *code, struct text *text, bool constant, const char *function) {
    struct variable variable = {.constant = constant};
    size_t vector = 1, item = 0;
    const char *type = NULL;
    while (sim_next_token(text) && !sim_is_token(text, ";")) {
        if (sim_is_token(text, ".align"))
            variable.align = sim_next_number(text);
        else if (sim_is_token(text, ".attribute"))
            sim_next_token(text);
        else if (text->size == 3 && !memcmp(text->token, ".v", 2))
            vector = (size_t)(text->token[2] - '0') & 15;
        else if (sim_type_size(text))
            type = text->token, item = sim_type_size(text);
        else if (item && (sim_is_word(*text->token) || *text->token == '%')) {
            variable.align = variable.align ? variable.align : item * vector;
            struct reader reader = {
                .code = code, .text = text, .function = function, .type = type, .item = item};
            read_variable(&reader, variable, vector);
            if (text->size && sim_is_token(text, ";"))
                return;
        }
    }
}
