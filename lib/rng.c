/* Random numbers: xoshiro256** (Blackman and Vigna, 2018), seeded by SplitMix64. */
#include "lib/internal.h"

#include <math.h>

static uint64_t splitmix(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t rotl(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

void qnn_rng__init(qnn_rng *r, uint64_t seed, uint64_t stream)
{
    uint64_t state = seed;
    int i;

    state =
        splitmix(&state) ^ stream; /* so that (seed, stream) and (seed + 1, stream) share nothing */
    for (i = 0; i < 4; i++)
        r->s[i] = splitmix(&state);
}

uint64_t qnn_rng__u64(qnn_rng *r)
{
    uint64_t *const s = r->s;
    const uint64_t result = rotl(s[1] * 5, 7) * 9;
    const uint64_t t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t qnn_rng__below(qnn_rng *r, uint64_t n)
{
    /* Values below 2^64 mod n would make small results likelier: draw again. */
    const uint64_t reject = (UINT64_MAX - n + 1) % n;
    uint64_t x;

    do
        x = qnn_rng__u64(r);
    while (x < reject);
    return x % n;
}

double qnn_rng__uniform(qnn_rng *r) { return (double)(qnn_rng__u64(r) >> 11) * 0x1p-53; }

double qnn_rng__normal(qnn_rng *r)
{
    const double u = 1.0 - qnn_rng__uniform(r); /* (0, 1]: the logarithm is finite */
    const double v = qnn_rng__uniform(r);

    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

uint64_t qnn_hash__text(const char *text)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (; *text != '\0'; text++)
        h = (h ^ (unsigned char)*text) * 0x100000001b3u;
    return h;
}
