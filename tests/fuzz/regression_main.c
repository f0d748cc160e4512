/*
 * main() for the fuzz targets where no fuzzer is at hand: replays a corpus and, on request, random changes to it.
 *
 * usage: fuzz_X [--mutate N] [--seed S] [--save FILE] FILE|FOLDER...
 *
 * Each input lies in a heap block of exactly its size, so that the address sanitizer sees the first byte read too
 * many. With --mutate, N changed inputs are run after the corpus, and each is written to the --save file before it
 * is run: when the program dies, that file repeats it. An input that takes longer than a minute ends the program.
 */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    MAX_BYTES = 1 << 20, /* of a changed input */
    MAX_CHANGES = 4,     /* to one input */
    SECONDS_PER_INPUT = 60
};

typedef struct input {
    uint8_t *data; /* [size], exactly */
    size_t size;
} input;

static input *corpus; /* [n_corpus] */
static size_t n_corpus;

static void die(const char *what, const char *name)
{
    fprintf(stderr, "regression: %s: %s%s%s\n", name, what, errno != 0 ? ": " : "", errno != 0 ? strerror(errno) : "");
    exit(2);
}

static void *must(void *p)
{
    if (p == NULL)
        die("out of memory", "malloc");
    return p;
}

static void run_one(const uint8_t *data, size_t size)
{
    uint8_t *const exact = must(malloc(size > 0 ? size : 1));

    if (size > 0)
        memcpy(exact, data, size);
    alarm(SECONDS_PER_INPUT);
    /* an empty input still gets a pointer: one past the end of a block of one byte */
    (void)LLVMFuzzerTestOneInput(size > 0 ? exact : exact + 1, size);
    alarm(0);
    free(exact);
}

static void replay_file(const char *path)
{
    FILE *const f = fopen(path, "rb");
    uint8_t *data = NULL;
    size_t size = 0, cap = 0, got;

    if (f == NULL)
        die("cannot open", path);
    do {
        if (size == cap) {
            cap = cap > 0 ? 2 * cap : 1 << 12;
            data = must(realloc(data, cap));
        }
        got = fread(data + size, 1, cap - size, f);
        size += got;
    } while (got > 0);
    if (ferror(f))
        die("cannot read", path);
    fclose(f);

    /* printed first: when it dies, the last line names the input */
    printf("%s\n", path);
    fflush(stdout);
    run_one(data, size);

    corpus = must(realloc(corpus, (n_corpus + 1) * sizeof *corpus));
    corpus[n_corpus++] = (input){data, size};
}

static int is_shown(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

static void replay(const char *path)
{
    struct stat st;
    struct dirent **entries;
    int n;

    errno = 0;
    if (stat(path, &st) != 0)
        die("cannot open", path);
    if (!S_ISDIR(st.st_mode)) {
        replay_file(path);
        return;
    }
    n = scandir(path, &entries, is_shown, alphasort);
    if (n < 0)
        die("cannot list", path);
    for (int i = 0; i < n; i++) {
        const size_t length = strlen(path) + strlen(entries[i]->d_name) + 2;
        char *const inner = must(malloc(length));

        snprintf(inner, length, "%s/%s", path, entries[i]->d_name);
        replay(inner);
        free(inner);
        free(entries[i]);
    }
    free(entries);
}

/* SplitMix64. */
static uint64_t draw(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t below(uint64_t *state, size_t n)
{
    return n > 0 ? (size_t)(draw(state) % n) : 0;
}

/* Makes room for n bytes at offset at; returns the new size, or the old one when there is no room. */
static size_t open_gap(uint8_t *data, size_t size, size_t at, size_t n)
{
    if (size + n > MAX_BYTES)
        return size;
    memmove(data + at + n, data + at, size - at);
    memset(data + at, 0, n);
    return size + n;
}

/* One change in place; data has room for MAX_BYTES. Returns the new size. */
static size_t change(uint8_t *data, size_t size, uint64_t *rng)
{
    static const uint64_t edges[] = {0,          1,           0x7f,       0x80,       0xff,       0x7fff,
                                     0xffff,     0x10000,     0x7fffffff, 0x80000000, 0xffffffff, 0x100000000,
                                     INT64_MAX,  UINT64_MAX,  100000000,  64};
    const size_t at = below(rng, size), n = 1 + below(rng, size - at < 64 ? size - at : 64);

    if (size == 0)
        return open_gap(data, size, 0, 1 + below(rng, 64));
    switch (below(rng, 9)) {
    case 0: /* one bit */
        data[at] ^= (uint8_t)(1u << below(rng, 8));
        return size;
    case 1: /* one byte */
        data[at] = (uint8_t)draw(rng);
        return size;
    case 2: { /* a number at an edge, 1 to 8 bytes, low byte first */
        const uint64_t edge = edges[below(rng, sizeof edges / sizeof *edges)];
        const size_t width = (size_t)1 << below(rng, 4);

        for (size_t i = 0; i < width && at + i < size; i++)
            data[at + i] = (uint8_t)(edge >> (8 * i));
        return size;
    }
    case 3: /* a shorter file */
        return at;
    case 4: /* a hole */
        memmove(data + at, data + at + n, size - at - n);
        return size - n;
    case 5: { /* a part twice */
        uint8_t part[64];
        size_t grown;

        memcpy(part, data + at, n);
        grown = open_gap(data, size, at, n);
        if (grown != size)
            memcpy(data + at, part, n);
        return grown;
    }
    case 6: { /* noise */
        const size_t grown = open_gap(data, size, at, n);

        for (size_t i = 0; i < n && grown != size; i++)
            data[at + i] = (uint8_t)draw(rng);
        return grown;
    }
    case 7: { /* a part of another input over this one */
        const input other = corpus[below(rng, n_corpus)];
        const size_t from = below(rng, other.size);

        for (size_t i = 0; i < n && from + i < other.size; i++)
            data[at + i] = other.data[from + i];
        return size;
    }
    default: /* another digit or punctuation mark where the text has one */
        for (size_t i = 0; i < size; i++) {
            uint8_t *const c = &data[(at + i) % size];

            if (*c >= '0' && *c <= '9') {
                *c = (uint8_t)('0' + below(rng, 10));
                break;
            }
            if (strchr("{}[]:,\"-", *c) != NULL && *c != '\0' && below(rng, 4) == 0) {
                *c = (uint8_t)"{}[]:,\"-"[below(rng, 8)];
                break;
            }
        }
        return size;
    }
}

static void save(const char *path, const uint8_t *data, size_t size)
{
    FILE *const f = fopen(path, "wb");

    if (f == NULL)
        die("cannot write", path);
    if (fwrite(data, 1, size, f) != size)
        die("cannot write", path);
    if (fclose(f) != 0)
        die("cannot write", path);
}

static void mutate(uint64_t n, uint64_t seed, const char *save_path)
{
    uint8_t *const data = must(malloc(MAX_BYTES));

    printf("%llu changed inputs, seed %llu\n", (unsigned long long)n, (unsigned long long)seed);
    fflush(stdout);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t rng = seed ^ (i * 0xd1342543de82ef95u);
        const input from = corpus[below(&rng, n_corpus)];
        size_t size = from.size < MAX_BYTES ? from.size : MAX_BYTES;

        if (size > 0)
            memcpy(data, from.data, size);
        for (size_t c = 1 + below(&rng, MAX_CHANGES); c > 0; c--)
            size = change(data, size, &rng);
        if (save_path != NULL)
            save(save_path, data, size);
        run_one(data, size);
    }
    if (save_path != NULL)
        remove(save_path);
    free(data);
}

int main(int argc, char **argv)
{
    uint64_t n_mutations = 0, seed = 1;
    const char *save_path = NULL;

    for (int i = 1; i < argc; i++) {
        const int has_value = i + 1 < argc;

        if (strcmp(argv[i], "--mutate") == 0 && has_value) {
            n_mutations = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--seed") == 0 && has_value) {
            seed = strtoull(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--save") == 0 && has_value) {
            save_path = argv[++i];
        } else if (argv[i][0] == '-') {
            fprintf(stderr, "usage: %s [--mutate N] [--seed S] [--save FILE] FILE|FOLDER...\n", argv[0]);
            return 2;
        } else {
            replay(argv[i]);
        }
    }
    if (n_corpus == 0) {
        fprintf(stderr, "%s: no input was run\n", argv[0]);
        return 1;
    }
    if (n_mutations > 0)
        mutate(n_mutations, seed, save_path);
    printf("%s: %zu inputs and %llu changed ones passed\n", argv[0], n_corpus, (unsigned long long)n_mutations);
    for (size_t i = 0; i < n_corpus; i++)
        free(corpus[i].data);
    free(corpus);
    return 0;
}
