/* JPEG figures: gnuplot's own JPEG has no quality setting, so a PNG is drawn and written anew. */
#include "study.h"

#include <stdlib.h>

#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wcast-qual"
#pragma GCC diagnostic ignored "-Wmissing-field-initializers"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wsign-compare"
#pragma GCC diagnostic ignored "-Wundef"
#endif
#define STB_IMAGE_WRITE_STATIC
#define STB_IMAGE_WRITE_IMPLEMENTATION
#include <stb/stb_image_write.h>
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

int study_png_to_jpeg(const study *s, const char *png, const char *jpg)
{
    uint8_t *rgb;
    int h, w, ok;

    if (qnn_image_load(&rgb, &h, &w, s->ctx, png) != QNN_OK) {
        study_error("%s", qnn_ctx_error(s->ctx));
        return 1;
    }
    ok = stbi_write_jpg(jpg, w, h, 3, rgb, (int)s->set.figure_quality);
    qnn_image_free(s->ctx, rgb, h, w);
    if (!ok)
        study_error("cannot write %s", jpg);
    (void)remove(png);
    return !ok;
}
