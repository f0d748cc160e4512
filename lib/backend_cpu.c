/* The CPU behind the backend's vtable, and the list of all backends: the one place that knows which
 * are built in. */
#include "lib/backend.h"

#include <string.h>

#include "lib/exec.h"

static int available(const char **why)
{
    (void)why;
    return 1;
}

static int supports(const qnn_node_data *n)
{
    (void)n;
    return 1;
}

static qnn_status alloc(qnn_ctx *ctx, void **out, size_t bytes)
{
    return qnn_ctx__alloc(ctx, out, bytes, "the workspace");
}

static qnn_status copy(qnn_ctx *ctx, void *dst, const void *src, size_t bytes)
{
    (void)ctx;
    memcpy(dst, src, bytes);
    return QNN_OK;
}

static qnn_status prepare(qnn_step *s)
{
    return s->op->prepare != NULL ? s->op->prepare(s) : QNN_OK;
}

static qnn_status forward(qnn_exec *x, int first, int n_steps)
{
    for (int i = first; i < first + n_steps; i++)
        if (x->p->step[i].op->forward != NULL)
            x->p->step[i].op->forward(x, &x->p->step[i]);
    return QNN_OK;
}

static qnn_status backward(qnn_exec *x, int last, int n_steps)
{
    for (int i = last; i > last - n_steps; i--)
        if (x->p->step[i].needs_grad && x->p->step[i].op->backward != NULL)
            x->p->step[i].op->backward(x, &x->p->step[i]);
    return QNN_OK;
}

const qnn_backend qnn_backend_cpu = {
    .name = "cpu",
    .available = available,
    .supports = supports,
    .alloc = alloc,
    .release = qnn_ctx__release,
    .upload = copy,
    .download = copy,
    .prepare = prepare,
    .forward = forward,
    .backward = backward,
    .sync = NULL,
};

#if QNN_WITH_CUDA
extern const qnn_backend qnn_backend_cuda;
#else
/* Stands in the list so that programs can tell people why there is no GPU. */
static int not_built(const char **why)
{
    if (why != NULL)
        *why = "this build of qnn has no CUDA backend";
    return 0;
}

static const qnn_backend qnn_backend_cuda = {.name = "cuda", .available = not_built};
#endif

const qnn_backend *const qnn_backends[] = {&qnn_backend_cpu, &qnn_backend_cuda, NULL};

static const qnn_backend *backend_at(int i)
{
    int last = 0;

    while (qnn_backends[last] != NULL)
        last++;
    return i < 0 || i >= last ? NULL : qnn_backends[i];
}

const char *qnn_device_name(int i) { return backend_at(i) != NULL ? backend_at(i)->name : NULL; }

int qnn_device_available(int i, const char **why)
{
    if (why != NULL)
        *why = "there is no such device";
    return backend_at(i) != NULL && backend_at(i)->available(why);
}
