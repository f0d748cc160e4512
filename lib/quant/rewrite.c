/* Copying nodes between models, and the sites of activations. */
#include "lib/quant/rewrite.h"

#include <math.h>
#include <string.h>

#include "lib/exec.h"

qnn_status qnn_rewrite__copy(qnn_model *dst, const qnn_model *src, qnn_node src_node,
                             const qnn_node *in, const qnn_attrs *a, qnn_node *out)
{
    const qnn_node_data *const n = src->node[src_node];
    const qnn_attrs *const attrs = a != NULL ? a : &n->a;

    *out = n->dtype == QNN_DTYPE_U8 ? qnn_model__add_u8(dst, n->kind, n->name, in, n->n_in, attrs,
                                                        n->scale, n->zero_point)
                                    : qnn_model__add(dst, n->kind, n->name, in, n->n_in, attrs, 0);
    if (*out == QNN_NODE_NONE)
        return dst->status;
    for (int i = 0; i < n->n_param; i++)
        if (n->param[i].count > 0)
            QNN_TRY(qnn_node__copy_param(dst, dst->node[*out], i, &n->param[i]));
    if (n->note != NULL)
        QNN_TRY(qnn_node__set_note(dst, dst->node[*out], "%s", n->note));
    return QNN_OK;
}

qnn_status qnn_rewrite__copy_mapped(qnn_model *dst, const qnn_model *src, qnn_node src_node,
                                    qnn_node *map)
{
    const qnn_node_data *const n = src->node[src_node];
    qnn_node in[QNN_MAX_INPUTS];

    assert(n->n_in <= QNN_MAX_INPUTS);
    for (int i = 0; i < n->n_in; i++)
        in[i] = map[n->in[i]];
    return qnn_rewrite__copy(dst, src, src_node, in, NULL, &map[src_node]);
}

qnn_status qnn_rewrite__map(qnn_ctx *ctx, const qnn_model *m, qnn_node **map)
{
    void *block;

    QNN_TRY(qnn_ctx__alloc(ctx, &block, (size_t)m->n_nodes * sizeof **map, "a pass's map"));
    *map = block;
    for (int i = 0; i < m->n_nodes; i++)
        (*map)[i] = QNN_NODE_NONE;
    return QNN_OK;
}

qnn_node qnn_rewrite__single_user(const qnn_model *m, qnn_node i)
{
    if (qnn_model__is_output(m, i) || qnn_model__n_users(m, i) != 1)
        return QNN_NODE_NONE;
    for (int k = i + 1; k < m->n_nodes; k++)
        for (int j = 0; j < m->node[k]->n_in; j++)
            if (m->node[k]->in[j] == i)
                return k;
    return QNN_NODE_NONE;
}

/* ---- lists of names
 * --------------------------------------------------------------------------------------------------------
 */

/* The next name of a comma-separated list at *at: its length, with *at moved to its start; 0 at the
 * end. */
static size_t next_name(const char **at)
{
    size_t len;

    *at += strspn(*at, ", ");
    len = strcspn(*at, ",");
    while (len > 0 && (*at)[len - 1] == ' ')
        len--;
    return len;
}

int qnn_rewrite__in_list(const char *list, const char *name)
{
    size_t len;

    for (const char *at = list; list != NULL && (len = next_name(&at)) > 0; at += len)
        if (len == strlen(name) && memcmp(at, name, len) == 0)
            return 1;
    return 0;
}

qnn_status qnn_rewrite__check_names(qnn_ctx *ctx, const qnn_model *m, const char *list)
{
    size_t len;

    for (const char *at = list; list != NULL && (len = next_name(&at)) > 0; at += len) {
        int is_known = 0;

        for (int i = 0; i < m->n_nodes && !is_known; i++)
            is_known = len == strlen(m->node[i]->name) && memcmp(at, m->node[i]->name, len) == 0;
        QNN_RETURN_IF(ctx, !is_known, QNN_ERR_ARG, "skip: the model has no node \"%.*s\"",
                      (int)(len < 100 ? len : 100), at);
    }
    return QNN_OK;
}

qnn_status qnn_rewrite__check_finite(qnn_ctx *ctx, const qnn_model *m)
{
    for (int i = 0; i < m->n_nodes; i++)
        for (int k = 0; k < m->node[i]->n_param; k++) {
            const qnn_param *const p = &m->node[i]->param[k];
            const float *const x = p->data;

            if (p->count == 0 || p->dtype != QNN_DTYPE_F32 || m->node[i]->kind == QNN_OP_FAKE_QUANT)
                continue;
            for (size_t j = 0; j < p->count; j++)
                QNN_RETURN_IF(ctx, !isfinite(x[j]), QNN_ERR_ARG,
                              "parameter \"%s\" has the value %g at element %zu", p->full_name,
                              (double)x[j], j);
        }
    return QNN_OK;
}

qnn_status qnn_rewrite__check_float(qnn_ctx *ctx, const qnn_model *m)
{
    for (int i = 0; i < m->n_nodes; i++)
        QNN_RETURN_IF(ctx, m->node[i]->dtype == QNN_DTYPE_U8, QNN_ERR_UNSUPPORTED,
                      "%s \"%s\" is quantised already", qnn_ops[m->node[i]->kind]->name,
                      m->node[i]->name);
    return QNN_OK;
}

/* ---- sites
 * -------------------------------------------------------------------------------------------------------------------
 */

static int keeps_q(const qnn_model *m, qnn_node i)
{
    return (qnn_ops[m->node[i]->kind]->flags & QNN_OP_KEEPS_Q) != 0;
}

static int has_weights(const qnn_model *m, qnn_node i)
{
    return m->node[i]->kind == QNN_OP_CONV2D || m->node[i]->kind == QNN_OP_LINEAR;
}

const char *qnn_sites__why_float(const qnn_model *m, const qnn_quant_opts *o, qnn_node i)
{
    const qnn_node_data *const n = m->node[i];
    const qnn_param *const w = &n->param[QNN_P_WEIGHT];

    if (qnn_rewrite__in_list(o->skip, n->name))
        return "listed in skip";
    switch (n->kind) {
    case QNN_OP_CONV2D:
    case QNN_OP_LINEAR:
        if (w->dtype != QNN_DTYPE_F32)
            return "its weights are not f32";
        return w->count / (size_t)w->dim[0] > QNN_GEMM_MAX_K ? "its sums are too long for int32"
                                                             : NULL;
    case QNN_OP_ADD:
    case QNN_OP_CONCAT:
    case QNN_OP_AVGPOOL2D:
    case QNN_OP_GLOBAL_AVGPOOL:
        return NULL;
    default:
        return "this operation has no int8 form";
    }
}

int qnn_sites__has_codes(const qnn_model *m, const qnn_quant_opts *o, qnn_node i)
{
    while (keeps_q(m, i))
        i = m->node[i]->in[0];
    return qnn_sites__why_float(m, o, i) == NULL;
}

void qnn_sites__find(const qnn_model *m, const qnn_quant_opts *o, qnn_node *site, uint8_t *needed)
{
    memset(needed, 0, (size_t)m->n_nodes);
    for (int i = 0; i < m->n_nodes; i++) {
        qnn_node next = i;

        if (keeps_q(m, i)) {
            site[i] = site[m->node[i]->in[0]];
            continue;
        }
        do {
            site[i] = next;
            next = qnn_rewrite__single_user(m, next);
        } while (next != QNN_NODE_NONE && keeps_q(m, next));
    }
    for (int k = 0; k < m->n_outputs && o->quantize_output; k++)
        if (qnn_sites__has_codes(m, o, m->output[k]))
            needed[site[m->output[k]]] = 1;
    /* Users come after what they read, so backwards each node's own users are settled. An add or
     * pool whose codes nobody reads is better left float, and so is what only it reads. */
    for (int i = m->n_nodes - 1; i >= 0; i--)
        if (qnn_sites__why_float(m, o, i) == NULL && (has_weights(m, i) || needed[site[i]]))
            for (int k = 0; k < m->node[i]->n_in; k++)
                needed[site[m->node[i]->in[k]]] = 1;
}
