/* The context: its creation from options, and its end. */
#define _GNU_SOURCE  /* sched_getaffinity: the processors this process may use, not all there are  \
                      */
#include "lib/internal.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *libc_alloc(void *user, size_t bytes, size_t align)
{
    void *p;

    (void)user;
    return posix_memalign(&p, align, bytes) == 0 ? p : NULL;
}

static void libc_release(void *user, void *ptr, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(ptr);
}

static int n_processors(void)
{
    long n;
#if defined(__linux__)
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set) < QNN_MAX_THREADS ? CPU_COUNT(&set) : QNN_MAX_THREADS;
#endif
    n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > QNN_MAX_THREADS ? QNN_MAX_THREADS : (int)n;
}

const char *qnn_isa_name(int i)
{
    int last = 0;

    while (qnn_isa_list[last].name != NULL)
        last++;
    return i < 0 || i >= last ? NULL : qnn_isa_list[i].name;
}

int qnn_isa_supported(int i)
{
    return qnn_isa_name(i) != NULL && (qnn_isa_list[i].bits & ~qnn_isa_detect()) == 0;
}

const char *qnn_ctx_isa(const qnn_ctx *ctx)
{
    const char *name = "ref";

    for (const qnn_isa_info *info = qnn_isa_list; info->name != NULL; info++)
        if ((info->bits & ~ctx->k.isa) == 0)
            name = info->name;
    return name;
}

int qnn_ctx_threads(const qnn_ctx *ctx) { return ctx->n_threads; }

const char *qnn_ctx_error(const qnn_ctx *ctx) { return ctx->error; }

/* ISA bits under a cap by name (NULL: all that the machine has). */
static qnn_status choose_isa(const char *cap, qnn_isa *out)
{
    const qnn_isa detected = qnn_isa_detect();

    *out = detected;
    if (cap == NULL)
        return QNN_OK;
    for (const qnn_isa_info *info = qnn_isa_list; info->name != NULL; info++) {
        if (strcmp(info->name, cap) != 0)
            continue;
        if ((info->bits & ~detected) != 0)
            return QNN_ERR_UNSUPPORTED;
        *out = info->bits;
        return QNN_OK;
    }
    return QNN_ERR_ARG;
}

qnn_status qnn_ctx_create(qnn_ctx **out, const qnn_ctx_opts *opts)
{
    const qnn_allocator libc_hooks = {libc_alloc, libc_release, NULL};
    const qnn_ctx_opts defaults = {0};
    const qnn_ctx_opts *const o = opts != NULL ? opts : &defaults;
    const qnn_allocator hooks = o->allocator.alloc != NULL ? o->allocator : libc_hooks;
    const size_t bytes = qnn_round_up(sizeof(qnn_ctx), QNN_ALIGN);
    qnn_isa isa;
    qnn_ctx *ctx;
    void *block;
    qnn_status status;

    if (out == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    if (o->n_threads < 0 || o->n_threads > QNN_MAX_THREADS)
        return QNN_ERR_ARG;
    if ((o->allocator.alloc == NULL) != (o->allocator.release == NULL))
        return QNN_ERR_ARG;
    QNN_TRY(choose_isa(o->isa, &isa));
    ctx = hooks.alloc(hooks.user, bytes, QNN_ALIGN);
    if (ctx == NULL)
        return QNN_ERR_NOMEM;
    memset(ctx, 0, sizeof *ctx);
    ctx->allocator = hooks;
    ctx->log = o->log;
    ctx->log_user = o->log_user;
    ctx->seed = o->seed;
    ctx->n_threads = o->n_threads != 0 ? o->n_threads : n_processors();
    qnn_kernels_init(&ctx->k, isa);
    status = qnn_ctx__alloc(ctx, &block, (size_t)ctx->n_threads * QNN_THREAD_SCRATCH,
                            "the threads' scratch");
    if (status == QNN_OK) {
        ctx->scratch = block;
        status = qnn_pool__create(ctx);
    }
    if (status != QNN_OK) {
        qnn_ctx_free(ctx);
        return status;
    }
    *out = ctx;
    return QNN_OK;
}

void qnn_ctx_free(qnn_ctx *ctx)
{
    if (ctx == NULL)
        return;
    qnn_pool__free(ctx);
    qnn_ctx__release(ctx, ctx->run_ws);
    qnn_ctx__release(ctx, ctx->scratch);
    ctx->allocator.release(ctx->allocator.user, ctx, qnn_round_up(sizeof(qnn_ctx), QNN_ALIGN));
}
