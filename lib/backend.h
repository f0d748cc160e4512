/* What a device must offer. The CPU implements it in backend_cpu.c; others live in folders of their
 * own. */
#ifndef QNN_LIB_BACKEND_H
#define QNN_LIB_BACKEND_H

#include "lib/op.h"

/* Required unless marked (optional). */
typedef struct qnn_backend {
    const char *name;                        /* "cpu" */
    int (*available)(const char **why);      /* pure; *why static text when 0 */
    int (*supports)(const qnn_node_data *n); /* pure */
    qnn_status (*alloc)(qnn_ctx *ctx, void **out,
                        size_t bytes); /* device memory, 64-byte aligned */
    void (*release)(qnn_ctx *ctx, void *p);
    qnn_status (*upload)(qnn_ctx *ctx, void *dst, const void *src, size_t bytes);
    qnn_status (*download)(qnn_ctx *ctx, void *dst, const void *src, size_t bytes);
    qnn_status (*prepare)(qnn_step *s);
    qnn_status (*forward)(qnn_exec *x, int first, int n_steps); /* may be asynchronous */
    qnn_status (*backward)(qnn_exec *x, int last, int n_steps); /* steps last, last - 1, ... */
    qnn_status (*sync)(qnn_ctx *ctx);                           /* (optional) */
} qnn_backend;

/* Devices built in, "cpu" first, NULL at the end: lib/backend_cpu.c holds the one #if. */
extern const qnn_backend *const qnn_backends[];
extern const qnn_backend qnn_backend_cpu;

#endif
