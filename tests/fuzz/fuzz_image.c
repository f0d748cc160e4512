/* Image files: whatever decodes is also resized. */
#include <stdint.h>
#include <stdlib.h>

#include <qnn.h>

#include "tests/common/testutil.h"

enum { SIDE = 8 };
#define MAX_PIXELS ((int64_t)1 << 22)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qnn_ctx *const ctx = tu_ctx(1);
    uint8_t *rgb, small[SIDE * SIDE * 3];
    int h, w;

    if (qnn_image_decode(&rgb, &h, &w, ctx, data, size) == QNN_OK) {
        if (h < 1 || w < 1 || h > QNN_IMAGE_MAX_SIDE || w > QNN_IMAGE_MAX_SIDE)
            abort();
        if ((int64_t)h * w <= MAX_PIXELS)
            TU_OK(ctx, qnn_image_resize(small, SIDE, SIDE, rgb, h, w, ctx));
        qnn_image_free(ctx, rgb, h, w);
    } else if (rgb != NULL || qnn_ctx_error(ctx)[0] == '\0') {
        abort();
    }
    qnn_ctx_free(ctx);
    return 0;
}
