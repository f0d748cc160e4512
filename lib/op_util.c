/* What the files of lib/op/ share: see the header. */
#include "lib/op_util.h"

size_t qnn_exec__n_out(const qnn_exec *x, const qnn_step *s)
{
    return (size_t)x->n * (size_t)qnn_shape__count(&s->n->shape);
}

typedef struct pass_job {
    const qnn_vec_kernel *vec;
    const float *dout;
    float *din;
    size_t total;
    int beta;
} pass_job;

static void pass_chunk(void *arg, size_t i, int thread)
{
    const pass_job *const job = arg;
    const size_t at = i * QNN_CHUNK;

    (void)thread;
    job->vec->axpby(qnn_chunk__size(job->total, i), 1.0f, job->dout + at, job->beta, job->din + at);
}

void qnn_exec__pass_gradient(qnn_exec *x, const qnn_step *s, int i)
{
    pass_job job = {.vec = x->k->vec,
                    .dout = qnn_exec__dout(x, s),
                    .din = qnn_exec__din(x, s, i),
                    .total = qnn_exec__n_out(x, s),
                    .beta = qnn_exec__din_beta(x, s, i)};

    if (job.din == NULL || job.din == job.dout)
        return;
    qnn_ctx__parallel(x->ctx, qnn_chunk__count(job.total), pass_chunk, &job);
}

/* ---- infer ---------------------------------------------------------------------------------- */

const qnn_node_data *qnn_node__in(const qnn_model *m, const qnn_node_data *n, int i)
{
    return m->node[n->in[i]];
}

qnn_status qnn_node__infer_f32(qnn_model *m, qnn_node_data *n)
{
    for (int i = 0; i < n->n_in; i++) {
        const qnn_node_data *const in = qnn_node__in(m, n, i);

        QNN_RETURN_IF(m->ctx, in->dtype != QNN_DTYPE_F32, QNN_ERR_DTYPE,
                      "%s \"%s\": input \"%s\" is %s, it must be f32", qnn_ops[n->kind]->name,
                      n->name, in->name, qnn_dtype_name(in->dtype));
    }
    n->dtype = QNN_DTYPE_F32;
    return QNN_OK;
}

void qnn_node__infer_keep(qnn_model *m, qnn_node_data *n)
{
    const qnn_node_data *const in = qnn_node__in(m, n, 0);

    n->dtype = in->dtype;
    n->scale = in->scale;
    n->zero_point = in->zero_point;
}

qnn_status qnn_node__infer_f32_or_u8(qnn_model *m, qnn_node_data *n)
{
    for (int i = 0; i < n->n_in; i++) {
        const qnn_node_data *const in = qnn_node__in(m, n, i);

        QNN_RETURN_IF(m->ctx, n->dtype == QNN_DTYPE_U8 && in->dtype != QNN_DTYPE_U8, QNN_ERR_DTYPE,
                      "%s \"%s\": the output is u8, so every input must be u8; \"%s\" is %s",
                      qnn_ops[n->kind]->name, n->name, in->name, qnn_dtype_name(in->dtype));
        QNN_RETURN_IF(m->ctx, n->dtype == QNN_DTYPE_F32 && in->dtype != QNN_DTYPE_F32,
                      QNN_ERR_DTYPE,
                      "%s \"%s\": input \"%s\" is %s, so the output needs a scale and a zero point",
                      qnn_ops[n->kind]->name, n->name, in->name, qnn_dtype_name(in->dtype));
    }
    return QNN_OK;
}

qnn_status qnn_node__check_image(qnn_model *m, const qnn_node_data *n)
{
    const qnn_node_data *const in = qnn_node__in(m, n, 0);
    char text[96];

    QNN_RETURN_IF(m->ctx, in->shape.rank != 3, QNN_ERR_SHAPE,
                  "%s \"%s\": input \"%s\" has shape %s, it must be height x width x channels",
                  qnn_ops[n->kind]->name, n->name, in->name,
                  qnn_shape__text(&in->shape, text, sizeof text));
    return QNN_OK;
}
