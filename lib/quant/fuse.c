/* Fusion: conv2d or linear followed by clips becomes one node; dropout, which does nothing when not
 * training, goes. */
#include <math.h>

#include "lib/quant/rewrite.h"

static int is_compute(qnn_op_kind kind) { return kind == QNN_OP_CONV2D || kind == QNN_OP_LINEAR; }

static qnn_status fuse_nodes(qnn_model *dst, const qnn_model *m, qnn_node *map)
{
    for (int i = 0; i < m->n_nodes; i++) {
        const qnn_node_data *const n = m->node[i];
        qnn_attrs a = n->a;
        qnn_node last = i, next;

        if (map[i] != QNN_NODE_NONE)
            continue; /* a clip or dropout that its conv2d or linear took in */
        if (n->kind == QNN_OP_DROPOUT) {
            map[i] = map[n->in[0]];
            continue;
        }
        if (!is_compute(n->kind)) {
            QNN_TRY(qnn_rewrite__copy_mapped(dst, m, i, map));
            continue;
        }
        while ((next = qnn_rewrite__single_user(m, last)) != QNN_NODE_NONE &&
               (m->node[next]->kind == QNN_OP_CLIP || m->node[next]->kind == QNN_OP_DROPOUT)) {
            const int is_clip = m->node[next]->kind == QNN_OP_CLIP;
            const float lo = is_clip ? m->node[next]->a.lo : -INFINITY;
            const float hi = is_clip ? m->node[next]->a.hi : INFINITY;

            /* Clips of disjoint ranges give a constant, which [lo, hi] with lo < hi cannot say. */
            if (!((lo > a.lo ? lo : a.lo) < (hi < a.hi ? hi : a.hi)))
                break;
            a.lo = lo > a.lo ? lo : a.lo;
            a.hi = hi < a.hi ? hi : a.hi;
            last = next;
        }
        QNN_TRY(qnn_rewrite__copy(dst, m, i, &map[n->in[0]], &a, &map[i]));
        for (qnn_node k = i; k != last;) {
            k = qnn_rewrite__single_user(m, k);
            map[k] = map[i];
        }
    }
    return qnn_model__finish_rewrite(dst, m, map);
}

qnn_status qnn_fuse(qnn_model **out, qnn_ctx *ctx, const qnn_model *m)
{
    qnn_model *dst;
    qnn_node *map;
    qnn_status status;

    if (out == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_TRY(qnn_model__usable(m, ctx));
    QNN_TRY(qnn_rewrite__map(ctx, m, &map));
    status = qnn_model_create(&dst, ctx);
    if (status == QNN_OK) {
        status = fuse_nodes(dst, m, map);
        if (status != QNN_OK)
            qnn_model_free(dst);
        else
            *out = dst;
    }
    qnn_ctx__release(ctx, map);
    return status;
}
