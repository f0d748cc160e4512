/*
 * The built-in data set: twelve classes of shapes and textures drawn from a seed. Colour, place,
 * size, rotation, background, clutter and noise are random; only the shape tells the class. Item i
 * is a pure function of (seed, i, size): nothing but + - * / and sqrt in double precision and
 * integers, so the pixels are the same on every machine.
 */
#include <math.h>
#include <stdio.h>

#include "lib/io/dataset_impl.h"

#define MOST_SLOPE 0.3  /* tangent of the largest turn either way */
#define MOST_SHIFT 0.08 /* of the centre, as a part of the image */

typedef struct builtin {
    qnn_ctx *ctx;
    uint64_t seed;
    int height, width;
} builtin;

typedef struct colour {
    double r, g, b;
} colour;

/* ---- shapes: 1 inside, in coordinates where the shape spans about [-1, 1]
 * -------------------------------------------------------- */

static double sq(double x) { return x * x; }

static double absolute(double x) { return x < 0.0 ? -x : x; }

/* 1 when floor(x) is odd. */
static int odd_cell(double x)
{
    return (int)((long long)(x + 1024.0) & 1); /* shifted, so that truncation is floor */
}

static int disc(double u, double v) { return sq(u) + sq(v) < 0.81; }
static int ring(double u, double v)
{
    const double d = sq(u) + sq(v);

    return d < 0.9 && d > 0.3;
}
static int square(double u, double v) { return absolute(u) < 0.78 && absolute(v) < 0.78; }
static int triangle(double u, double v)
{
    return v < 0.6 && v > -0.95 && absolute(u) < (v + 0.95) * 0.6;
}
static int cross(double u, double v)
{
    return (absolute(u) < 0.3 && absolute(v) < 0.95) || (absolute(v) < 0.3 && absolute(u) < 0.95);
}
/* Two triangles, one upside down. */
static int star(double u, double v)
{
    return (v < 0.5 && v > -1.0 && absolute(u) < (v + 1.0) * 0.58) ||
           (v > -0.5 && v < 1.0 && absolute(u) < (1.0 - v) * 0.58);
}
static int stripes(double u, double v) { return square(u, v) && odd_cell(u * 3.2); }
static int checker(double u, double v)
{
    return square(u, v) && (odd_cell(u * 2.6) ^ odd_cell(v * 2.6));
}
static int dots(double u, double v)
{
    const double a = u * 2.6 + 1024.0, b = v * 2.6 + 1024.0;

    return square(u, v) &&
           sq(a - (double)(long long)a - 0.5) + sq(b - (double)(long long)b - 0.5) < 0.11;
}
static int crescent(double u, double v)
{
    return sq(u) + sq(v) < 0.9 && sq(u - 0.45) + sq(v) > 0.55;
}
static int hourglass(double u, double v)
{
    return absolute(v) < 0.9 && absolute(u) < absolute(v) * 0.85 + 0.06;
}
static int ell(double u, double v)
{
    return (u > -0.75 && u < -0.2 && absolute(v) < 0.9) ||
           (v > 0.35 && v < 0.9 && u > -0.75 && u < 0.75);
}

static const struct shape {
    const char *name;
    int (*inside)(double u, double v);
} shapes[] = {
    {"disc", disc}, {"ring", ring},         {"square", square},       {"triangle", triangle},
    {"star", star}, {"cross", cross},       {"stripes", stripes},     {"checker", checker},
    {"dots", dots}, {"crescent", crescent}, {"hourglass", hourglass}, {"ell", ell},
};
#define N_CLASSES ((int)(sizeof shapes / sizeof *shapes))

/* ---- drawing
 * ---------------------------------------------------------------------------------------------------------------------
 */

static double between(qnn_rng *r, double lo, double hi)
{
    return lo + (hi - lo) * qnn_rng__uniform(r);
}

static colour random_colour(qnn_rng *r)
{
    colour c;

    c.r = between(r, 0.0, 255.0);
    c.g = between(r, 0.0, 255.0);
    c.b = between(r, 0.0, 255.0);
    return c;
}

static double distance(colour a, colour b)
{
    return sqrt(sq(a.r - b.r) + sq(a.g - b.g) + sq(a.b - b.b));
}

/* A colour that can be told from another. */
static colour contrasting(qnn_rng *r, colour other, double least)
{
    colour c = random_colour(r);

    while (distance(c, other) < least)
        c = random_colour(r);
    return c;
}

static uint8_t byte(double x) { return x <= 0.0 ? 0 : x >= 255.0 ? 255 : (uint8_t)x; }

static void put(uint8_t *p, colour c)
{
    p[0] = byte(c.r);
    p[1] = byte(c.g);
    p[2] = byte(c.b);
}

/* A uniformly turned unit vector, without sine or cosine. */
static void random_direction(qnn_rng *r, double *x, double *y)
{
    double d;

    do {
        *x = between(r, -1.0, 1.0);
        *y = between(r, -1.0, 1.0);
        d = sq(*x) + sq(*y);
    } while (d > 1.0 || d < 0.01);
    d = sqrt(d);
    *x /= d;
    *y /= d;
}

/* Shape k with its centre at (cx, cy), half its span in pixels, turned. */
static void draw_shape(const builtin *b, uint8_t *pixels, qnn_rng *r, int k, double cx, double cy,
                       double half, colour c)
{
    const double reach = half * 1.42;
    const int y0 = (int)(cy - reach) < 0 ? 0 : (int)(cy - reach),
              y1 = (int)(cy + reach) + 1 > b->height ? b->height : (int)(cy + reach) + 1;
    const int x0 = (int)(cx - reach) < 0 ? 0 : (int)(cx - reach),
              x1 = (int)(cx + reach) + 1 > b->width ? b->width : (int)(cx + reach) + 1;
    const double slope = between(r, -MOST_SLOPE, MOST_SLOPE),
                 cosine = 1.0 / sqrt(1.0 + slope * slope), sine = slope * cosine;

    for (int y = y0; y < y1; y++)
        for (int x = x0; x < x1; x++) {
            const double dx = (x + 0.5 - cx) / half, dy = (y + 0.5 - cy) / half;

            if (shapes[k].inside(dx * cosine + dy * sine, dy * cosine - dx * sine))
                put(pixels + ((size_t)y * (size_t)b->width + (size_t)x) * 3, c);
        }
}

/* A gradient between two colours, in a random direction. */
static colour draw_background(const builtin *b, uint8_t *pixels, qnn_rng *r)
{
    const colour from = random_colour(r);
    const double spread = between(r, 0.0, 60.0);
    colour step;
    double gx, gy;

    /* one by one: the order within an initialiser list is the compiler's choice */
    step.r = between(r, -spread, spread);
    step.g = between(r, -spread, spread);
    step.b = between(r, -spread, spread);
    random_direction(r, &gx, &gy);
    for (int y = 0; y < b->height; y++)
        for (int x = 0; x < b->width; x++) {
            const double t = gx * ((double)x / b->width - 0.5) + gy * ((double)y / b->height - 0.5);

            put(pixels + ((size_t)y * (size_t)b->width + (size_t)x) * 3,
                (colour){from.r + t * step.r, from.g + t * step.g, from.b + t * step.b});
        }
    return from;
}

/* Thin bars of any colour: edges that mean nothing. */
static void draw_clutter(const builtin *b, uint8_t *pixels, qnn_rng *r, double unit)
{
    const int n_bars = (int)qnn_rng__below(r, 5);

    for (int i = 0; i < n_bars; i++) {
        const double x0 = between(r, 0.0, b->width), y0 = between(r, 0.0, b->height),
                     length = between(r, 0.1, 0.4) * unit;
        const colour c = random_colour(r);
        double dx, dy;

        random_direction(r, &dx, &dy);
        for (double t = 0.0; t < length; t += 0.5)
            for (int thick = 0; thick < 2; thick++) {
                const int x = (int)(x0 + t * dx) + thick, y = (int)(y0 + t * dy);

                if (x >= 0 && y >= 0 && x < b->width && y < b->height)
                    put(pixels + ((size_t)y * (size_t)b->width + (size_t)x) * 3, c);
            }
    }
}

static void add_noise(uint8_t *pixels, size_t n, qnn_rng *r)
{
    const int level = (int)qnn_rng__below(r, 25);
    uint64_t bits = 0;

    for (size_t i = 0; i < n; i++) {
        int v;

        if (i % 8 == 0)
            bits = qnn_rng__u64(r);
        v = pixels[i] + (((int)(bits & 255) - 128) * level >> 7);
        pixels[i] = v < 0 ? 0 : v > 255 ? 255 : (uint8_t)v;
        bits >>= 8;
    }
}

static qnn_status builtin_get(void *user, int64_t i, uint8_t *pixels, int *label, char *err,
                              size_t err_size)
{
    const builtin *const b = user;
    const double unit = b->height < b->width ? b->height : b->width;
    qnn_rng r;
    colour background;
    double half, cx, cy;

    (void)err;
    (void)err_size;
    qnn_rng__init(&r, b->seed, qnn_hash__text("builtin") + (uint64_t)i);
    *label = (int)qnn_rng__below(&r, (uint64_t)N_CLASSES);
    background = draw_background(b, pixels, &r);
    draw_clutter(b, pixels, &r, unit);
    half = between(&r, 0.3, 0.44) * unit;
    cx = b->width * between(&r, 0.5 - MOST_SHIFT, 0.5 + MOST_SHIFT);
    cy = b->height * between(&r, 0.5 - MOST_SHIFT, 0.5 + MOST_SHIFT);
    draw_shape(b, pixels, &r, *label, cx, cy, half, contrasting(&r, background, 90.0));
    draw_clutter(b, pixels, &r, unit);
    add_noise(pixels, (size_t)b->height * (size_t)b->width * 3, &r);
    return QNN_OK;
}

static const char *builtin_class_name(void *user, int c)
{
    (void)user;
    return shapes[c].name;
}

static void builtin_free(void *user)
{
    builtin *const b = user;

    qnn_ctx__release(b->ctx, b);
}

qnn_status qnn_dataset_open_builtin(qnn_dataset **out, qnn_ctx *ctx, const qnn_builtin_opts *opts)
{
    const qnn_builtin_opts defaults = {0};
    const qnn_builtin_opts *const o = opts != NULL ? opts : &defaults;
    const int64_t n_items = o->n_items != 0 ? o->n_items : 3000;
    char text[128];
    builtin *b;
    void *block;
    qnn_status status;

    if (out == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_RETURN_IF(ctx, (o->height != 0 && o->height < 8) || (o->width != 0 && o->width < 8),
                  QNN_ERR_ARG, "built-in images of %dx%d, sides must be at least 8", o->width,
                  o->height);
    QNN_TRY(qnn_ctx__alloc(ctx, &block, sizeof *b, "the built-in data set"));
    b = block;
    *b = (builtin){ctx, o->seed, o->height != 0 ? o->height : 128, o->width != 0 ? o->width : 128};
    snprintf(text, sizeof text, "built-in shapes, seed %llu (%d classes, %lld images)",
             (unsigned long long)o->seed, N_CLASSES, (long long)n_items);
    status = qnn_dataset_create(out, ctx,
                                &(qnn_dataset_ops){.description = text,
                                                   .n_items = n_items,
                                                   .n_classes = N_CLASSES,
                                                   .height = b->height,
                                                   .width = b->width,
                                                   .get = builtin_get,
                                                   .class_name = builtin_class_name,
                                                   .free = builtin_free},
                                b);
    if (status != QNN_OK)
        builtin_free(b);
    return status;
}
