/* Images: every kind of file that is taken, damaged ones, the resize against Pillow. */
#define _POSIX_C_SOURCE 200809L
#include "suites.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <qnn.h>

#include "tests/common/testutil.h"

enum { W = 24, H = 16 }; /* of the files in tests/golden/images */

/* ---- helpers --------------------------------------------------------------------------------- */

typedef struct bytes {
    unsigned char *data;
    size_t n;
} bytes;

static void golden_path(char *path, size_t size, const char *name)
{
    const char *const folder = getenv("QNN_GOLDEN_DIR");

    snprintf(path, size, "%s/%s", folder != NULL ? folder : "tests/golden", name);
}

static void image_path(char *path, size_t size, const char *name)
{
    char below[64];

    snprintf(below, sizeof below, "images/%s", name);
    golden_path(path, size, below);
}

static bytes read_file(const char *path)
{
    FILE *const f = fopen(path, "rb");
    bytes b;

    ck_assert_msg(f != NULL, "cannot open %s: run from the root of the project", path);
    fseek(f, 0, SEEK_END);
    b.n = (size_t)ftell(f);
    rewind(f);
    b.data = tu_alloc(b.n);
    ck_assert_uint_eq(fread(b.data, 1, b.n, f), b.n);
    fclose(f);
    return b;
}

static bytes read_image(const char *name)
{
    char path[256];

    image_path(path, sizeof path, name);
    return read_file(path);
}

static void temporary(char *path, size_t size, const char *name)
{
    const char *const folder = getenv("TMPDIR");

    snprintf(path, size, "%s/qnn-image-%ld-%s", folder != NULL ? folder : "/tmp", (long)getpid(),
             name);
}

/* Bytes in a heap block of exactly their number, where the sanitizers see a read too many. */
static qnn_status decode_exact(qnn_ctx *ctx, uint8_t **rgb, int *h, int *w, const void *data,
                               size_t n)
{
    unsigned char *const block = tu_alloc(n);
    qnn_status status;

    memcpy(block, data, n);
    status = qnn_image_decode(rgb, h, w, ctx, block, n);
    free(block);
    return status;
}

static void expect_failure(qnn_ctx *ctx, const void *data, size_t n, qnn_status expected,
                           const char *text)
{
    uint8_t *rgb = (uint8_t *)&ctx;
    int h, w;

    ck_assert_int_eq(decode_exact(ctx, &rgb, &h, &w, data, n), expected);
    ck_assert_ptr_null(rgb);
    ck_assert_msg(strstr(qnn_ctx_error(ctx), text) != NULL, "\"%s\" lacks \"%s\"",
                  qnn_ctx_error(ctx), text);
}

/* ---- the pictures of tests/golden/make_images.py --------------------------------------------- */

static int colour_at(int x, int y, int c)
{
    return c == 0 ? 10 * x : c == 1 ? 15 * y : 128 + 4 * (x - y);
}
static int grey_at(int x, int y, int c)
{
    (void)c;
    return 5 * x + 8 * y;
}
static int palette_at(int x, int y, int c)
{
    const int i = (x / 6 + y / 4) % 5;

    return c == 0 ? 50 * i : c == 1 ? 255 - 40 * i : 97 * i & 255;
}
static int bit_at(int x, int y, int c)
{
    (void)c;
    return (x / 3 + y / 2) & 1 ? 255 : 0;
}

static const struct picture {
    const char *name;
    int (*at)(int x, int y, int c);
    int tolerance;
    size_t n_slack; /* bytes at the end that nothing depends on */
} pictures[] = {
    {"rgb.png", colour_at, 0, 0},
    {"grey.png", grey_at, 0, 0},
    {"grey_alpha.png", grey_at, 0, 0},
    {"rgb_alpha.png", colour_at, 0, 0},
    {"palette.png", palette_at, 0, 0},
    {"bits.png", bit_at, 0, 0},
    {"rgb16.png", colour_at, 0, 0},
    {"interlaced.png", colour_at, 0, 0},
    {"rgb.bmp", colour_at, 0, 0},
    {"downwards.bmp", colour_at, 0, 0},
    {"grey.bmp", grey_at, 0, 0},
    {"palette.bmp", palette_at, 0, 0},
    {"bits.bmp", bit_at, 0, 1}, /* a row is three bytes and one that fills it up */
    {"rgb.jpg", colour_at, 6, 0},
    {"subsampled.jpg", colour_at, 16, 0},
    {"progressive.jpg", colour_at, 16, 0},
    {"grey.jpg", grey_at, 6, 0},
    {"cmyk.jpg", colour_at, 12, 0},
};
enum { N_PICTURES = sizeof pictures / sizeof *pictures };

START_TEST(every_kind_decodes)
{
    const struct picture *const p = &pictures[_i];
    qnn_ctx *const ctx = tu_ctx(1);
    char path[256];
    uint8_t *rgb;
    int h, w, worst = 0;

    image_path(path, sizeof path, p->name);
    TU_OK(ctx, qnn_image_load(&rgb, &h, &w, ctx, path));
    ck_assert_int_eq(h, H);
    ck_assert_int_eq(w, W);
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++)
            for (int c = 0; c < 3; c++) {
                const int diff = abs(rgb[(y * W + x) * 3 + c] - p->at(x, y, c));

                worst = diff > worst ? diff : worst;
            }
    ck_assert_msg(worst <= p->tolerance, "%s: off by %d, at most %d", p->name, worst, p->tolerance);
    qnn_image_free(ctx, rgb, h, w);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(truncated_anywhere_is_refused)
{
    const struct picture *const p = &pictures[_i];
    qnn_ctx *const ctx = tu_ctx(1);
    const bytes file = read_image(p->name);

    for (size_t n = 0; n + p->n_slack < file.n; n++) {
        uint8_t *rgb;
        int h, w;
        const qnn_status status = decode_exact(ctx, &rgb, &h, &w, file.data, n);

        ck_assert_msg(status == QNN_ERR_FORMAT, "%s cut to %zu bytes: %s", p->name, n,
                      qnn_status_name(status));
        ck_assert_ptr_null(rgb);
        ck_assert_msg(strncmp(qnn_ctx_error(ctx), "image: ", 7) == 0, "%s", qnn_ctx_error(ctx));
    }
    free(file.data);
    qnn_ctx_free(ctx);
}
END_TEST

/* One bit of every byte: an image or an error, and nothing else touched. */
START_TEST(changed_bits_do_no_harm)
{
    const struct picture *const p = &pictures[_i];
    qnn_ctx *const ctx = tu_ctx(1);
    const bytes file = read_image(p->name);
    int n_refused = 0;

    for (size_t i = 0; i < file.n; i++) {
        uint8_t *rgb;
        int h, w;
        qnn_status status;

        file.data[i] ^= (unsigned char)(1u << (i * 5 % 8));
        status = decode_exact(ctx, &rgb, &h, &w, file.data, file.n);
        file.data[i] ^= (unsigned char)(1u << (i * 5 % 8));
        if (status == QNN_OK) {
            ck_assert(h >= 1 && w >= 1 && h <= QNN_IMAGE_MAX_SIDE && w <= QNN_IMAGE_MAX_SIDE);
            qnn_image_free(ctx, rgb, h, w);
            continue;
        }
        n_refused++;
        ck_assert_ptr_null(rgb);
        ck_assert_msg(status == QNN_ERR_FORMAT || status == QNN_ERR_UNSUPPORTED,
                      "%s with byte %zu changed: %s", p->name, i, qnn_status_name(status));
    }
    ck_assert_int_gt(n_refused, 0);
    free(file.data);
    qnn_ctx_free(ctx);
}
END_TEST

/* ---- what is refused, in which words --------------------------------------------------------- */

START_TEST(other_bytes_are_refused)
{
    static const char text[] = "This is a text and no image, whatever the name of its file says.";
    qnn_ctx *const ctx = tu_ctx(1);
    unsigned char noise[4096];

    expect_failure(ctx, "", 0, QNN_ERR_FORMAT, "empty");
    expect_failure(ctx, text, sizeof text, QNN_ERR_FORMAT, "not a JPEG, PNG or BMP");
    expect_failure(ctx, "GIF89a\1\0\1\0\200\0\0", 13, QNN_ERR_FORMAT, "not a JPEG, PNG or BMP");
    for (uint64_t seed = 0; seed < 50; seed++) {
        tu_fill_u8(noise, sizeof noise, seed);
        memcpy(noise, "\xff\xd8\xff", 3 * (size_t)(seed & 1));
        expect_failure(ctx, noise, sizeof noise, QNN_ERR_FORMAT, "image: ");
    }
    qnn_ctx_free(ctx);
}
END_TEST

static void set_be32(unsigned char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(v >> (24 - 8 * i));
}

static void set_le32(unsigned char *p, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        p[i] = (unsigned char)(v >> 8 * i);
}

/* Sizes at 16, 20 of a PNG, 18, 22 of a BMP. */
START_TEST(sides_are_limited)
{
    qnn_ctx *const ctx = tu_ctx(1);
    const bytes png = read_image("rgb.png"), bmp = read_image("rgb.bmp");

    set_be32(png.data + 16, 16385);
    expect_failure(ctx, png.data, png.n, QNN_ERR_UNSUPPORTED, "16385x16 pixels, at most 16384");
    set_be32(png.data + 20, 0);
    expect_failure(ctx, png.data, png.n, QNN_ERR_FORMAT, "image: ");
    set_be32(png.data + 16, 16384);
    set_be32(png.data + 20, 16384);
    expect_failure(ctx, png.data, png.n, QNN_ERR_FORMAT, "bytes cannot hold 16384x16384");
    set_le32(bmp.data + 22, 16385);
    expect_failure(ctx, bmp.data, bmp.n, QNN_ERR_UNSUPPORTED, "24x16385 pixels, at most 16384");
    set_le32(bmp.data + 22, (uint32_t)-16385);
    expect_failure(ctx, bmp.data, bmp.n, QNN_ERR_UNSUPPORTED, "24x16385 pixels, at most 16384");
    set_le32(bmp.data + 22, 16384);
    expect_failure(ctx, bmp.data, bmp.n, QNN_ERR_FORMAT, "bytes cannot hold 24x16384");
    set_le32(bmp.data + 22, 0x80000000u);
    expect_failure(ctx, bmp.data, bmp.n, QNN_ERR_FORMAT, "image: ");
    set_le32(bmp.data + 18, 0x7fffffffu);
    expect_failure(ctx, bmp.data, bmp.n, QNN_ERR_FORMAT, "image: ");
    set_le32(bmp.data + 22, 0);
    expect_failure(ctx, bmp.data, bmp.n, QNN_ERR_FORMAT, "image: ");
    free(png.data);
    free(bmp.data);
    qnn_ctx_free(ctx);
}
END_TEST

/* A JPEG whose first Huffman table has 510 symbols, where 256 is the most. */
START_TEST(huffman_tables_are_limited)
{
    enum { N_SYMBOLS = 510, TABLE = 2 + 2 + 17 + N_SYMBOLS };
    qnn_ctx *const ctx = tu_ctx(1);
    const bytes jpeg = read_image("rgb.jpg");
    unsigned char *const file = tu_alloc(jpeg.n + TABLE), *const table = file + 2;
    uint8_t *rgb;
    int h, w;

    memset(file, 0, jpeg.n + TABLE);
    memcpy(file, jpeg.data, 2);
    memcpy(table, "\xff\xc4", 2);
    table[2] = (TABLE - 2) >> 8;
    table[3] = (TABLE - 2) & 255;
    table[5 + 11] = table[5 + 12] = N_SYMBOLS / 2;
    memcpy(table + TABLE, jpeg.data + 2, jpeg.n - 2);
    expect_failure(ctx, file, jpeg.n + TABLE, QNN_ERR_FORMAT, "damaged image, or not a JPEG");
    /* as many as there may be are no reason to refuse the file */
    table[5 + 12] = 1;
    table[2] = (TABLE - 2 - 254) >> 8;
    table[3] = (TABLE - 2 - 254) & 255;
    memmove(table + TABLE - 254, table + TABLE, jpeg.n - 2);
    TU_OK(ctx, decode_exact(ctx, &rgb, &h, &w, file, jpeg.n + TABLE - 254));
    qnn_image_free(ctx, rgb, h, w);
    free(file);
    free(jpeg.data);
    qnn_ctx_free(ctx);
}
END_TEST

static void expect_load_failure(qnn_ctx *ctx, const char *path, qnn_status expected,
                                const char *text)
{
    uint8_t *rgb = (uint8_t *)&ctx;
    int h, w;

    ck_assert_int_eq(qnn_image_load(&rgb, &h, &w, ctx, path), expected);
    ck_assert_ptr_null(rgb);
    ck_assert_msg(strstr(qnn_ctx_error(ctx), path) != NULL, "\"%s\" lacks the path",
                  qnn_ctx_error(ctx));
    ck_assert_msg(strstr(qnn_ctx_error(ctx), text) != NULL, "\"%s\" lacks \"%s\"",
                  qnn_ctx_error(ctx), text);
}

START_TEST(failures_name_the_path)
{
    qnn_ctx *const ctx = tu_ctx(1);
    char path[256];
    FILE *f;

    temporary(path, sizeof path, "missing.jpg");
    expect_load_failure(ctx, path, QNN_ERR_IO, "No such file");
    temporary(path, sizeof path, "folder.jpg");
    ck_assert_int_eq(mkdir(path, 0777), 0);
    expect_load_failure(ctx, path, QNN_ERR_IO, "not a regular file");
    rmdir(path);
    temporary(path, sizeof path, "pipe.jpg");
    ck_assert_int_eq(mkfifo(path, 0666), 0);
    expect_load_failure(ctx, path, QNN_ERR_IO, "not a regular file");
    unlink(path);
    temporary(path, sizeof path, "text.jpg");
    f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fclose(f);
    expect_load_failure(ctx, path, QNN_ERR_FORMAT, "empty");
    f = fopen(path, "w");
    ck_assert_ptr_nonnull(f);
    fputs("not an image\n", f);
    fclose(f);
    expect_load_failure(ctx, path, QNN_ERR_FORMAT, "not a JPEG, PNG or BMP image");
    if (geteuid() != 0) { /* who may read everything */
        ck_assert_int_eq(chmod(path, 0), 0);
        expect_load_failure(ctx, path, QNN_ERR_IO, "Permission denied");
    }
    unlink(path);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(image_arguments_are_checked)
{
    qnn_ctx *const ctx = tu_ctx(1);
    uint8_t *rgb, pixel[3] = {1, 2, 3}, out[3];
    int h, w;

    ck_assert_int_eq(qnn_image_load(NULL, &h, &w, ctx, "x"), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_image_load(&rgb, &h, &w, ctx, NULL), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_image_load(&rgb, &h, &w, NULL, "x"), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_image_decode(&rgb, &h, &w, ctx, NULL, 5), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_image_resize(NULL, 1, 1, pixel, 1, 1, ctx), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_image_resize(out, 1, 1, NULL, 1, 1, ctx), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_image_resize(out, 0, 1, pixel, 1, 1, ctx), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_image_resize(out, 1, 1, pixel, 1, -1, ctx), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_image_resize(out, 1, QNN_IMAGE_MAX_SIDE + 1, pixel, 1, 1, ctx),
                     QNN_ERR_ARG);
    ck_assert_int_eq(qnn_image_resize(out, 1, 1, pixel, 1, 1, NULL), QNN_ERR_ARG);
    qnn_image_free(ctx, NULL, 0, 0);
    qnn_ctx_free(ctx);
}
END_TEST

/* ---- resize ---------------------------------------------------------------------------------- */

/* The source images of tests/golden/make_resize.py. */
static uint8_t *source(int w, int h)
{
    uint8_t *const rgb = tu_alloc((size_t)w * (size_t)h * 3);

    for (int y = 0; y < h; y++)
        for (int x = 0; x < w; x++)
            for (int c = 0; c < 3; c++)
                rgb[((size_t)y * (size_t)w + (size_t)x) * 3 + (size_t)c] =
                    (uint8_t)(((uint32_t)x * 73856093u ^ (uint32_t)y * 19349663u ^
                               (uint32_t)c * 83492791u) >>
                              13);
    return rgb;
}

static uint8_t *resized(qnn_ctx *ctx, int sw, int sh, int dw, int dh)
{
    uint8_t *const src = source(sw, sh), *const dst = tu_alloc((size_t)dw * (size_t)dh * 3);

    TU_OK(ctx, qnn_image_resize(dst, dh, dw, src, sh, sw, ctx));
    free(src);
    return dst;
}

static uint32_t adler32(const uint8_t *p, size_t n)
{
    uint32_t a = 1, b = 0;

    for (size_t i = 0; i < n; i++) {
        a = (a + p[i]) % 65521;
        b = (b + a) % 65521;
    }
    return b << 16 | a;
}

static uint32_t le(const unsigned char *p, int n_bytes)
{
    uint32_t v = 0;

    for (int i = 0; i < n_bytes; i++)
        v |= (uint32_t)p[i] << 8 * i;
    return v;
}

static bytes read_golden(void)
{
    char path[256];

    golden_path(path, sizeof path, "resize.bin");
    return read_file(path);
}

START_TEST(resize_is_pillows_for_every_size)
{
    qnn_ctx *const ctx = tu_ctx(1);
    const bytes golden = read_golden();

    ck_assert_uint_ge(golden.n, 1604);
    for (int s = 1; s <= 400; s++) {
        uint8_t *const rgb = resized(ctx, s, s * 7 % 400 + 1, 128, 128);

        ck_assert_msg(adler32(rgb, 128 * 128 * 3) == le(golden.data + 4 * (s - 1), 4),
                      "%dx%d to 128x128 differs", s, s * 7 % 400 + 1);
        free(rgb);
    }
    free(golden.data);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(resize_is_pillows_value_by_value)
{
    qnn_ctx *const ctx = tu_ctx(1);
    const bytes golden = read_golden();
    const unsigned char *p = golden.data + 1604;
    const uint32_t n_cases = le(golden.data + 1600, 4);

    ck_assert_uint_ge(n_cases, 20);
    for (uint32_t i = 0; i < n_cases; i++) {
        const int sw = (int)le(p, 2), sh = (int)le(p + 2, 2), dw = (int)le(p + 4, 2),
                  dh = (int)le(p + 6, 2);
        uint8_t *const rgb = resized(ctx, sw, sh, dw, dh);

        p += 8;
        ck_assert(p + dw * dh * 3 <= golden.data + golden.n);
        for (int k = 0; k < dw * dh * 3; k++)
            ck_assert_msg(rgb[k] == p[k], "%dx%d to %dx%d: value %d is %d, Pillow's is %d", sw, sh,
                          dw, dh, k, rgb[k], p[k]);
        p += dw * dh * 3;
        free(rgb);
    }
    ck_assert_ptr_eq(p, golden.data + golden.n);
    free(golden.data);
    qnn_ctx_free(ctx);
}
END_TEST

/* The largest sides in each direction; a flat image stays flat. */
START_TEST(resize_of_long_images)
{
    static const int sizes[][4] = {{QNN_IMAGE_MAX_SIDE, 2, 3, 5},
                                   {2, QNN_IMAGE_MAX_SIDE, 3, 5},
                                   {3, 5, QNN_IMAGE_MAX_SIDE, 1},
                                   {3, 5, 1, QNN_IMAGE_MAX_SIDE}};
    qnn_ctx *const ctx = tu_ctx(1);

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int sw = sizes[i][0], sh = sizes[i][1], dw = sizes[i][2], dh = sizes[i][3];
        const size_t n = (size_t)dw * (size_t)dh * 3;
        uint8_t *const src = tu_alloc((size_t)sw * (size_t)sh * 3), *const dst = tu_alloc(n);

        memset(src, 255, (size_t)sw * (size_t)sh * 3);
        TU_OK(ctx, qnn_image_resize(dst, dh, dw, src, sh, sw, ctx));
        for (size_t k = 0; k < n; k++)
            ck_assert_int_eq(dst[k], 255);
        free(src);
        free(dst);
    }
    qnn_ctx_free(ctx);
}
END_TEST

Suite *image_suite(void)
{
    Suite *const s = suite_create("image");
    TCase *t = tcase_create("decode");

    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, every_kind_decodes, 0, N_PICTURES);
    tcase_add_loop_test(t, truncated_anywhere_is_refused, 0, N_PICTURES);
    tcase_add_loop_test(t, changed_bits_do_no_harm, 0, N_PICTURES);
    tcase_add_test(t, other_bytes_are_refused);
    tcase_add_test(t, sides_are_limited);
    tcase_add_test(t, huffman_tables_are_limited);
    tcase_add_test(t, failures_name_the_path);
    tcase_add_test(t, image_arguments_are_checked);
    suite_add_tcase(s, t);
    t = tcase_create("resize");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, resize_is_pillows_for_every_size);
    tcase_add_test(t, resize_is_pillows_value_by_value);
    tcase_add_test(t, resize_of_long_images);
    suite_add_tcase(s, t);
    return s;
}
