/*
 * Images: decode JPEG, PNG and BMP to RGB bytes, resize as Pillow's antialiased bilinear does.
 *
 *     uint8_t *rgb; int h, w;
 *     qnn_image_load(&rgb, &h, &w, ctx, "cat.jpg");
 *     qnn_image_resize(small, 128, 128, rgb, h, w, ctx);
 *     qnn_image_free(ctx, rgb, h, w);
 */
#ifndef QNN_IMAGE_H
#define QNN_IMAGE_H

#include <qnn/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Largest side that is decoded; larger images are refused (QNN_ERR_UNSUPPORTED). */
#define QNN_IMAGE_MAX_SIDE 16384

/**
 * Decode an image file. Grey becomes RGB, alpha is dropped.
 * @param[out] rgb  u8 [h][w][3], the caller's: qnn_image_free(). NULL on failure
 * @return QNN_OK, QNN_ERR_IO (cannot read; message has path and reason), QNN_ERR_FORMAT (not a
 *         JPEG, PNG or BMP, or a damaged one; message has the path), QNN_ERR_UNSUPPORTED,
 * QNN_ERR_NOMEM
 */
QNN_API QNN_NODISCARD qnn_status qnn_image_load(uint8_t **rgb, int *h, int *w, qnn_ctx *ctx,
                                                const char *path);
/** The same from bytes in memory. */
QNN_API QNN_NODISCARD qnn_status qnn_image_decode(uint8_t **rgb, int *h, int *w, qnn_ctx *ctx,
                                                  const void *bytes, size_t n_bytes);
QNN_API void qnn_image_free(qnn_ctx *ctx, uint8_t *rgb, int h, int w);

/**
 * Antialiased bilinear (triangle filter, support scaled by the reduction), two passes with 8-bit
 * results between them: agrees with Pillow's Image.resize(BILINEAR) to within 2 levels.
 * @param[out] dst  u8 [dh][dw][3]; must not overlap src
 * @param src       u8 [sh][sw][3]
 */
QNN_API QNN_NODISCARD qnn_status qnn_image_resize(uint8_t *dst, int dh, int dw, const uint8_t *src,
                                                  int sh, int sw, qnn_ctx *ctx);

#ifdef __cplusplus
}
#endif
#endif
