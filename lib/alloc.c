/* Allocation through the context's hooks, and size arithmetic that reports overflow. */
#include "lib/internal.h"

#include <stdlib.h>
#include <string.h>

/* In front of every block, so that release can tell the hook the size it was asked for. */
typedef struct block_header {
    size_t total;
} block_header;
QNN_STATIC_ASSERT(sizeof(block_header) <= QNN_ALIGN,
                  "the header must fit in front of an aligned block");

int qnn_mul_size(size_t a, size_t b, size_t *out)
{
    if (b != 0 && a > SIZE_MAX / b)
        return 0;
    *out = a * b;
    return 1;
}

int qnn_add_size(size_t a, size_t b, size_t *out)
{
    if (a > SIZE_MAX - b)
        return 0;
    *out = a + b;
    return 1;
}

size_t qnn_round_up(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

qnn_status qnn_ctx__alloc(qnn_ctx *ctx, void **out, size_t bytes, const char *what)
{
    size_t total;
    unsigned char *block;

    *out = NULL;
    QNN_RETURN_IF(ctx, !qnn_add_size(bytes, QNN_ALIGN, &total) || total > SIZE_MAX - QNN_ALIGN,
                  QNN_ERR_NOMEM, "out of memory: %zu bytes for %s", bytes, what);
    total = qnn_round_up(total, QNN_ALIGN);
    block = ctx->allocator.alloc(ctx->allocator.user, total, QNN_ALIGN);
    QNN_RETURN_IF(ctx, block == NULL, QNN_ERR_NOMEM, "out of memory: %zu bytes for %s", bytes,
                  what);
    ((block_header *)(void *)block)->total = total;
    *out = block + QNN_ALIGN;
    return QNN_OK;
}

qnn_status qnn_ctx__zalloc(qnn_ctx *ctx, void **out, size_t bytes, const char *what)
{
    QNN_TRY(qnn_ctx__alloc(ctx, out, bytes, what));
    memset(*out, 0, bytes);
    return QNN_OK;
}

qnn_status qnn_ctx__strdup(qnn_ctx *ctx, char **out, const char *text)
{
    void *copy;
    const size_t bytes = strlen(text) + 1;

    *out = NULL;
    QNN_TRY(qnn_ctx__alloc(ctx, &copy, bytes, "text"));
    memcpy(copy, text, bytes);
    *out = copy;
    return QNN_OK;
}

void qnn_ctx__release(qnn_ctx *ctx, void *ptr)
{
    unsigned char *block;

    if (ptr == NULL)
        return;
    block = (unsigned char *)ptr - QNN_ALIGN;
    ctx->allocator.release(ctx->allocator.user, block, ((block_header *)(void *)block)->total);
}

qnn_status qnn_ctx__grow(qnn_ctx *ctx, void **array, size_t *cap, size_t need, size_t size,
                         const char *what)
{
    size_t new_cap = *cap < 8 ? 8 : *cap;
    size_t bytes;
    void *bigger;

    if (need <= *cap)
        return QNN_OK;
    while (new_cap < need)
        new_cap = new_cap > SIZE_MAX / 2 ? need : new_cap * 2;
    QNN_RETURN_IF(ctx, !qnn_mul_size(new_cap, size, &bytes), QNN_ERR_NOMEM,
                  "out of memory: %zu entries for %s", need, what);
    QNN_TRY(qnn_ctx__alloc(ctx, &bigger, bytes, what));
    if (*cap != 0)
        memcpy(bigger, *array, *cap * size);
    qnn_ctx__release(ctx, *array);
    *array = bigger;
    *cap = new_cap;
    return QNN_OK;
}
