/* Decoding JPEG, PNG and BMP, by stb_image. */
#define _POSIX_C_SOURCE 200809L
#include <qnn/image.h>

#include <stdlib.h>
#include <string.h>

#include "lib/internal.h"
#include "lib/io/file_io.h"

#define MAX_FILE ((size_t)1 << 30)

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
#define STBI_ASSERT(x)      ((void)0)
#define STBI_MAX_DIMENSIONS QNN_IMAGE_MAX_SIDE
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
#include <stb/stb_image.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

/* name: what messages call the image, a path or "image". */
static qnn_status decode(uint8_t **rgb, int *h, int *w, qnn_ctx *ctx, const unsigned char *bytes,
                         size_t n_bytes, const char *name)
{
    int width, height, channels;
    stbi_uc *pixels;
    void *copy;
    qnn_status status;

    QNN_RETURN_IF(ctx, n_bytes == 0, QNN_ERR_FORMAT, "%s: empty, not a JPEG, PNG or BMP image",
                  name);
    QNN_RETURN_IF(ctx,
                  n_bytes > MAX_FILE ||
                      !stbi_info_from_memory(bytes, (int)n_bytes, &width, &height, &channels),
                  QNN_ERR_FORMAT, "%s: not a JPEG, PNG or BMP image", name);
    QNN_RETURN_IF(ctx, width < 1 || height < 1, QNN_ERR_FORMAT, "%s: an image of %dx%d pixels",
                  name, width, height);
    QNN_RETURN_IF(ctx, width > QNN_IMAGE_MAX_SIDE || height > QNN_IMAGE_MAX_SIDE,
                  QNN_ERR_UNSUPPORTED, "%s: %dx%d pixels, at most %d a side are decoded", name,
                  width, height, QNN_IMAGE_MAX_SIDE);
    pixels = stbi_load_from_memory(bytes, (int)n_bytes, &width, &height, &channels, 3);
    QNN_RETURN_IF(ctx, pixels == NULL, QNN_ERR_FORMAT, "%s: damaged image", name);
    status = qnn_ctx__alloc(ctx, &copy, (size_t)width * (size_t)height * 3, "an image's pixels");
    if (status == QNN_OK) {
        memcpy(copy, pixels, (size_t)width * (size_t)height * 3);
        *rgb = copy;
        *h = height;
        *w = width;
    }
    stbi_image_free(pixels);
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
