/* Decoding JPEG, PNG and BMP, by stb_image. */
#define _POSIX_C_SOURCE 200809L
#include <qnn/image.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "lib/internal.h"
#include "lib/io/file_io.h"

#define MAX_FILE ((size_t)1 << 30)

/* The decoder's memory is cleared, so that a damaged image decodes to the same pixels every time;
 * errno, set to 0 before it starts, tells afterwards whether memory was what it lacked. */
static void *decoder_alloc(size_t bytes)
{
    void *const p = calloc(1, bytes > 0 ? bytes : 1);

    if (p == NULL)
        errno = ENOMEM;
    return p;
}

static void *decoder_realloc(void *old, size_t bytes)
{
    void *p;

    if (bytes > MAX_FILE) /* a length that no file can have */
        return NULL;
    p = realloc(old, bytes > 0 ? bytes : 1);
    if (p == NULL)
        errno = ENOMEM;
    return p;
}

/* The decoder copies no bytes from or to NULL now and then, which memcpy() does not allow. */
static void *decoder_copy(void *dst, const void *src, size_t n)
{
    return n > 0 ? memcpy(dst, src, n) : dst;
}

/* Static, without stdio, failure strings and thread-locals: the object has no writable data and
 * prints nothing. */
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_JPEG
#define STBI_ONLY_PNG
#define STBI_ONLY_BMP
#define STBI_NO_STDIO
#define STBI_NO_HDR
#define STBI_NO_LINEAR
#define STBI_NO_FAILURE_STRINGS
#define STBI_NO_THREAD_LOCALS
#define STBI_ASSERT(x)         ((void)0)
#define STBI_MALLOC(bytes)     decoder_alloc(bytes)
#define STBI_REALLOC(p, bytes) decoder_realloc((p), (bytes))
#define STBI_FREE(p)           free(p)
#if defined(__GNUC__)
/* Judged at the end of the file, so it cannot be limited to the include. */
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wcast-qual"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wundef"
#pragma GCC diagnostic ignored "-Wsign-compare"
#endif
#define memcpy(dst, src, n) decoder_copy((dst), (src), (n))
#include <stb/stb_image.h>
#undef memcpy
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

/* The bytes as a stream: unlike a block of memory it tells whether the decoder wanted more than
 * there was, which it would read as zeros: a truncated photograph with a grey lower half. */
typedef struct source {
    const unsigned char *bytes;
    size_t n, at;
    int is_short;
} source;

static int source_read(void *user, char *data, int size)
{
    source *const s = user;
    const size_t rest = s->n - s->at, count = (size_t)size < rest ? (size_t)size : rest;

    if (count > 0)
        memcpy(data, s->bytes + s->at, count);
    else if (size > 0)
        s->is_short = 1;
    s->at += count;
    return (int)count;
}

static void source_skip(void *user, int n)
{
    source *const s = user;

    s->at += (size_t)n < s->n - s->at ? (size_t)n : s->n - s->at;
}

static int source_eof(void *user)
{
    const source *const s = user;

    return s->at == s->n;
}

static const stbi_io_callbacks source_calls = {source_read, source_skip, source_eof};

/* Most pixels that a byte can stand for. BMP: 1-bit pixels. JPEG: a bit for each 8x8 block. PNG:
 * 1-bit pixels, deflated 1032 times. More is a header that lies, and costs a few bytes to write. */
static double most_pixels(unsigned char first_byte)
{
    return first_byte == 'B' ? 8.0 : first_byte == 0xff ? 512.0 : 8.0 * 1032.0;
}

/* The tables of a DHT segment: class and number, 16 counts, the symbols they add up to. */
static int huffman_tables_fit(const unsigned char *p, size_t n)
{
    while (n > 0) {
        size_t n_symbols = 0;

        if (n < 17)
            return 0;
        for (int i = 1; i <= 16; i++)
            n_symbols += p[i];
        if (n_symbols > 256 || n_symbols > n - 17)
            return 0;
        p += 17 + n_symbols;
        n -= 17 + n_symbols;
    }
    return 1;
}

/* 0 when a JPEG has a Huffman table of more than 256 symbols. The decoder writes such tables past
 * their end, so they must not reach it. It takes as a marker what this takes as one, or fails:
 * bytes other than FF are passed over, whether they are data or dirt, and FF followed by 0 or by a
 * restart number belongs to the data; every other segment is as long as it says. */
static int jpeg_tables_fit(const unsigned char *bytes, size_t n)
{
    size_t at = 0;

    while (at + 3 < n) {
        const unsigned char marker = bytes[at + 1];
        size_t length;

        if (bytes[at] != 0xff || marker == 0xff || marker == 0 ||
            (marker >= 0xd0 && marker <= 0xd8)) {
            at++;
            continue;
        }
        if (marker == 0xd9)
            return 1;
        length = (size_t)bytes[at + 2] << 8 | bytes[at + 3];
        if (length < 2 || length > n - at - 2)
            return 0;
        if (marker == 0xc4 && !huffman_tables_fit(bytes + at + 4, length - 2))
            return 0;
        at += 2 + length;
    }
    return 1;
}

static qnn_status check_header(qnn_ctx *ctx, source *s, const char *name)
{
    int width, height, channels;

    QNN_RETURN_IF(ctx, s->bytes[0] == 0xff && !jpeg_tables_fit(s->bytes, s->n), QNN_ERR_FORMAT,
                  "%s: damaged image, or not a JPEG", name);
    if (!stbi_info_from_callbacks(&source_calls, s, &width, &height, &channels))
        return qnn_ctx__fail(ctx, QNN_ERR_FORMAT, "%s: not a JPEG, PNG or BMP image", name);
    if (height < 0 && height > -INT32_MAX) /* a BMP whose rows run downwards */
        height = -height;
    QNN_RETURN_IF(ctx, width < 1 || height < 1, QNN_ERR_FORMAT, "%s: an image of %dx%d pixels",
                  name, width, height);
    QNN_RETURN_IF(ctx, width > QNN_IMAGE_MAX_SIDE || height > QNN_IMAGE_MAX_SIDE,
                  QNN_ERR_UNSUPPORTED, "%s: %dx%d pixels, at most %d a side are decoded", name,
                  width, height, QNN_IMAGE_MAX_SIDE);
    QNN_RETURN_IF(ctx, (double)width * height > most_pixels(s->bytes[0]) * (double)s->n,
                  QNN_ERR_FORMAT, "%s: damaged image, %zu bytes cannot hold %dx%d pixels", name,
                  s->n, width, height);
    return QNN_OK;
}

static qnn_status copy_pixels(uint8_t **rgb, int *h, int *w, qnn_ctx *ctx, const stbi_uc *pixels,
                              int height, int width)
{
    const size_t bytes = (size_t)width * (size_t)height * 3;
    void *copy;

    QNN_TRY(qnn_ctx__alloc(ctx, &copy, bytes, "an image's pixels"));
    memcpy(copy, pixels, bytes);
    *rgb = copy;
    *h = height;
    *w = width;
    return QNN_OK;
}

/* name: what messages call the image, a path or "image". */
static qnn_status decode(uint8_t **rgb, int *h, int *w, qnn_ctx *ctx, const unsigned char *bytes,
                         size_t n_bytes, const char *name)
{
    source s = {.bytes = bytes, .n = n_bytes};
    int width, height, channels;
    stbi_uc *pixels;
    qnn_status status;

    QNN_RETURN_IF(ctx, n_bytes == 0, QNN_ERR_FORMAT, "%s: empty, not a JPEG, PNG or BMP image",
                  name);
    QNN_RETURN_IF(ctx, n_bytes > MAX_FILE, QNN_ERR_UNSUPPORTED,
                  "%s: %zu bytes, at most %zu are decoded", name, n_bytes, MAX_FILE);
    errno = 0;
    status = check_header(ctx, &s, name);
    if (status == QNN_OK) {
        s = (source){.bytes = bytes, .n = n_bytes};
        pixels = stbi_load_from_callbacks(&source_calls, &s, &width, &height, &channels, 3);
        if (pixels == NULL)
            status = qnn_ctx__fail(ctx, QNN_ERR_FORMAT, "%s: damaged image", name);
        else if (s.is_short)
            status = qnn_ctx__fail(ctx, QNN_ERR_FORMAT, "%s: truncated image", name);
        else
            status = copy_pixels(rgb, h, w, ctx, pixels, height, width);
        free(pixels);
    }
    if (status == QNN_ERR_FORMAT && errno == ENOMEM)
        return qnn_ctx__fail(ctx, QNN_ERR_NOMEM, "out of memory: decoding %s", name);
    return status;
}

qnn_status qnn_image_decode(uint8_t **rgb, int *h, int *w, qnn_ctx *ctx, const void *bytes,
                            size_t n_bytes)
{
    if (rgb == NULL || h == NULL || w == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    *rgb = NULL;
    QNN_RETURN_IF(ctx, bytes == NULL, QNN_ERR_ARG, "the image's bytes are NULL");
    return decode(rgb, h, w, ctx, bytes, n_bytes, "image");
}

qnn_status qnn_image_load(uint8_t **rgb, int *h, int *w, qnn_ctx *ctx, const char *path)
{
    void *bytes;
    size_t n_bytes;
    qnn_status status;

    if (rgb == NULL || h == NULL || w == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    *rgb = NULL;
    QNN_RETURN_IF(ctx, path == NULL, QNN_ERR_ARG, "the image's path is NULL");
    QNN_TRY(qnn_file__read(ctx, path, &bytes, &n_bytes));
    status = decode(rgb, h, w, ctx, bytes, n_bytes, path);
    qnn_ctx__release(ctx, bytes);
    return status;
}

void qnn_image_free(qnn_ctx *ctx, uint8_t *rgb, int h, int w)
{
    (void)h;
    (void)w;
    qnn_ctx__release(ctx, rgb);
}
