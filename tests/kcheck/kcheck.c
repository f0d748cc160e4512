/* The harness of kcheck: guarded buffers, data that hurts, signals, comparison, bookkeeping. */
#define _GNU_SOURCE
#include "tests/kcheck/kcheck.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { N_SLOTS = 16, CANARY = 128 };
#define SLOT_BYTES ((size_t)16 << 20)

typedef struct slot {
    uint8_t *base; /* SLOT_BYTES between two guard pages */
    uint8_t *data;
    size_t bytes;
} slot;

static slot slots[N_SLOTS];
static size_t n_taken, n_cases;
static uint32_t random_state = 1;
static int touches_left, is_quiet;
static char note[512];
static sigjmp_buf escape;
static volatile sig_atomic_t is_armed;

/* ---- random data --------------------------------------------------------------------------- */

uint32_t kc_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

static void seed_random(uint32_t seed)
{
    random_state = seed * 2654435761u + 0x9e3779b9u;
    if (random_state == 0)
        random_state = 1;
    for (int i = 0; i < 4; i++)
        kc_random();
}

size_t kc_random_below(size_t n)
{
    return kc_random() % n;
}

size_t kc_next_prime(size_t n)
{
    for (;; n++) {
        size_t d = 2;
        while (d * d <= n && n % d != 0)
            d++;
        if (n >= 2 && d * d > n)
            return n;
    }
}

/* Runs of bytes between low and high, the largest magnitude being extreme. */
static void fill_bytes(uint8_t *x, size_t n, int low, int high)
{
    for (size_t i = 0; i < n;) {
        const size_t run = 1 + kc_random_below(24), kind = kc_random_below(7);
        for (size_t end = i + run; i < n && i < end; i++) {
            const int any = low + (int)kc_random_below((size_t)(high - low + 1));
            const int small = (int)kc_random_below(8);
            const int value = kind == 0   ? 0
                              : kind == 1 ? high
                              : kind == 2 ? low + small
                              : kind == 3 ? high - small
                              : kind == 4 ? (i % 2 ? low : high)
                              : kind == 5 ? low
                                          : any;
            x[i] = (uint8_t)value;
        }
    }
}

void kc_fill_u8(uint8_t *x, size_t n)
{
    fill_bytes(x, n, 0, 255);
}

void kc_fill_s8(int8_t *x, size_t n)
{
    fill_bytes((uint8_t *)x, n, -128, 127);
}

static float uniform(float limit)
{
    return ((float)(kc_random() >> 8) * 0x1p-23f - 1.0f) * limit;
}

void kc_fill_f32(float *x, size_t n)
{
    for (size_t i = 0; i < n;) {
        const size_t run = 1 + kc_random_below(24), kind = kc_random_below(6);
        for (size_t end = i + run; i < n && i < end; i++)
            x[i] = kind == 0   ? 0.0f
                   : kind == 1 ? 65536.0f
                   : kind == 2 ? uniform(1e-6f)
                   : kind == 3 ? (i % 2 ? -4096.0f : 4097.0f)
                               : uniform(2.0f);
    }
}

void kc_fill_f32_any(float *x, size_t n, float limit)
{
    static const float special[] = {0.0f,        -0.0f,         INFINITY,       -INFINITY,
                                    NAN,         FLT_MAX,       -FLT_MAX,       FLT_MIN,
                                    1e-45f,      -1e-45f,       8388607.5f,     4194304.5f,
                                    -8388609.0f, 2147483648.0f, -2147483648.0f, 65504.0f};
    for (size_t i = 0; i < n;) {
        const size_t run = 1 + kc_random_below(12), kind = kc_random_below(6);
        for (size_t end = i + run; i < n && i < end; i++) {
            const float tie = rintf(uniform(limit)) + 0.5f;
            const float near_tie = nextafterf(tie, kc_random() & 1 ? INFINITY : -INFINITY);
            x[i] = kind == 0   ? special[kc_random_below(sizeof special / sizeof *special)]
                   : kind == 1 ? kc_float(kc_random())
                   : kind == 2 ? tie
                   : kind == 3 ? near_tie
                               : uniform(limit);
        }
    }
}

uint32_t kc_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

float kc_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- guarded buffers ----------------------------------------------------------------------- */

static void map_slot(slot *s)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *const all =
        mmap(NULL, SLOT_BYTES + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || mprotect(all + page, SLOT_BYTES, PROT_READ | PROT_WRITE) != 0) {
        perror("kcheck: mmap");
        exit(2);
    }
    s->base = all + page;
}

static uint8_t canary_at(const uint8_t *at)
{
    return (uint8_t)(0xa5 ^ (uintptr_t)at);
}

/* The canary zone of a slot: up to CANARY bytes before and after the data. */
static uint8_t *zone_start(const slot *s)
{
    return s->data - s->base > CANARY ? s->data - CANARY : s->base;
}

static uint8_t *zone_end(const slot *s)
{
    uint8_t *const end = s->data + s->bytes;
    return s->base + SLOT_BYTES - end > CANARY ? end + CANARY : s->base + SLOT_BYTES;
}

void *kc_take(size_t bytes, size_t align)
{
    if (n_taken == N_SLOTS || bytes > SLOT_BYTES) {
        fprintf(stderr, "kcheck: a case wants too many or too large buffers\n");
        exit(2);
    }
    slot *const s = &slots[n_taken++];
    if (s->base == NULL)
        map_slot(s);
    s->bytes = bytes;
    s->data = touches_left ? s->base : s->base + (SLOT_BYTES - bytes) / align * align;
    for (uint8_t *at = zone_start(s); at < s->data; at++)
        *at = canary_at(at);
    for (uint8_t *at = s->data + bytes; at < zone_end(s); at++)
        *at = canary_at(at);
    memset(s->data, 0xcb, bytes);
    return s->data;
}

void kc_fill_same(void *a, void *b, size_t bytes)
{
    uint8_t *const x = a;
    for (size_t i = 0; i < bytes; i++)
        x[i] = (uint8_t)kc_random();
    memcpy(b, a, bytes);
}

static int check_zone(const slot *s, const uint8_t *at, const uint8_t *end)
{
    for (; at < end; at++)
        if (*at != canary_at(at))
            return kc_note("buffer %td of %zu bytes: canary at offset %td overwritten", s - slots,
                           s->bytes, at - s->data);
    return 0;
}

static int check_canaries(void)
{
    int bad = 0;
    for (const slot *s = slots; s < slots + n_taken; s++)
        bad |= check_zone(s, zone_start(s), s->data) |
               check_zone(s, s->data + s->bytes, zone_end(s));
    return bad;
}

/* ---- running a case ------------------------------------------------------------------------ */

static void on_signal(int number)
{
    if (is_armed)
        siglongjmp(escape, number);
    signal(number, SIG_DFL);
    raise(number);
}

static void arm(void)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        sigaction(numbers[i], &action, NULL);
    is_armed = 1;
}

/* fn's result, or 1 and a note where a signal ended it. Nothing is modified between the two returns
 * of sigsetjmp that is read after the second. */
static int call_guarded(kc_case_fn *fn, const kc_case *c)
{
    const int number = sigsetjmp(escape, 1);
    if (number != 0) {
        is_armed = 0;
        return kc_note("ended by signal %d (%s)", number, strsignal(number));
    }
    arm();
    const int failed = fn(c);
    is_armed = 0;
    return failed;
}

int kc_run_case(kc_case_fn *fn, const kc_case *c)
{
    n_taken = 0;
    note[0] = '\0';
    touches_left = c->seed & 1;
    seed_random(c->seed);
    n_cases++;
    int failed = call_guarded(fn, c);
    failed |= check_canaries();
    if (failed && !is_quiet)
        printf("FAIL %s\n     repeat: kcheck %s --kernel %s%s%s --shape %zux%zux%zu --seed %u\n",
               note, c->family, c->kernel_name, c->routine ? " --routine " : "",
               c->routine ? c->routine : "", c->m, c->n, c->k, c->seed);
    return failed;
}

int kc_note(const char *format, ...)
{
    if (note[0] == '\0') {
        va_list args;
        va_start(args, format);
        vsnprintf(note, sizeof note, format, args);
        va_end(args);
    }
    return 1;
}

void kc_set_quiet(int quiet)
{
    is_quiet = quiet;
}

const char *kc_last_note(void)
{
    return note;
}

size_t kc_n_cases(void)
{
    return n_cases;
}

/* ---- comparison ---------------------------------------------------------------------------- */

int kc_same(const char *what, const void *want, const void *got, size_t bytes, size_t unit)
{
    if (memcmp(want, got, bytes) == 0)
        return 0;
    const uint8_t *const w = want, *const g = got;
    size_t at = 0;
    while (w[at] == g[at])
        at++;
    at = at / unit * unit;
    uint64_t wv = 0, gv = 0;
    memcpy(&wv, w + at, unit);
    memcpy(&gv, g + at, unit);
    return kc_note("%s differs at element %zu: want 0x%llx, got 0x%llx", what, at / unit,
                   (unsigned long long)wv, (unsigned long long)gv);
}

int kc_same_f32(const char *what, const float *want, const float *got, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (kc_bits(want[i]) != kc_bits(got[i]) && !(isnan(want[i]) && isnan(got[i])))
            return kc_note("%s differs at element %zu: want %a, got %a", what, i, (double)want[i],
                           (double)got[i]);
    return 0;
}

int kc_is_wanted(const kc_options *o, const char *family, const char *kernel, qnn_isa isa)
{
    if (o->family != NULL && strcmp(o->family, family) != 0)
        return 0;
    if (o->kernel != NULL && strcmp(o->kernel, kernel) != 0)
        return 0;
    if ((isa & ~o->host) != 0) {
        printf("%-24s skipped: this processor lacks it\n", kernel);
        return 0;
    }
    return 1;
}
