/* What every pass shares: copying nodes of a model into a new one, and where activations are
 * quantised. */
#ifndef QNN_LIB_QUANT_REWRITE_H
#define QNN_LIB_QUANT_REWRITE_H

#include <qnn/quant.h>

#include "lib/op.h"

/*
 * Copies node src_node of src with its parameters, attributes and note, reading in[] (ids in dst)
 * instead of its old inputs. a NULL: its own attributes. *out: the new id.
 */
qnn_status qnn_rewrite__copy(qnn_model *dst, const qnn_model *src, qnn_node src_node,
                             const qnn_node *in, const qnn_attrs *a, qnn_node *out);
/* As above with the inputs mapped: map[old] = new. Sets map[src_node]. */
qnn_status qnn_rewrite__copy_mapped(qnn_model *dst, const qnn_model *src, qnn_node src_node,
                                    qnn_node *map);
/* [n_nodes] ids, all QNN_NODE_NONE; released with qnn_ctx__release. */
qnn_status qnn_rewrite__map(qnn_ctx *ctx, const qnn_model *m, qnn_node **map);
/* The only node that reads i, QNN_NODE_NONE when there are several, none, or when i is an output.
 */
qnn_node qnn_rewrite__single_user(const qnn_model *m, qnn_node i);
/* Fails, naming it, on a name in the comma-separated list that no node has. NULL list: fine. */
qnn_status qnn_rewrite__check_names(qnn_ctx *ctx, const qnn_model *m, const char *list);
int qnn_rewrite__in_list(const char *list, const char *name);
/* Fails, naming it, on a parameter or statistic that is not finite. */
qnn_status qnn_rewrite__check_finite(qnn_ctx *ctx, const qnn_model *m);

/* Fails, naming it, on a node that is quantised already. */
qnn_status qnn_rewrite__check_float(qnn_ctx *ctx, const qnn_model *m);

/*
 * Why node i does not compute with codes, whatever the ranges; NULL when it can: conv2d, linear,
 * add, concat and average pools that the options do not leave out.
 */
const char *qnn_sites__why_float(const qnn_model *m, const qnn_quant_opts *o, qnn_node i);
/* Whether what node i holds comes from such a node, through nodes that keep scale and zero point.
 */
int qnn_sites__has_codes(const qnn_model *m, const qnn_quant_opts *o, qnn_node i);
/*
 * Where the range of each node's value is taken. Activations are quantised as their consumer reads
 * them: a node's site is the last of the chain of single-user nodes after it that keep scale and
 * zero point (clip, max pool, flatten); a node of that kind has its input's site. site: [n_nodes].
 * needed: [n_nodes], 1 for sites whose codes are read: by a node that computes with codes, or as
 * outputs where the options quantise those. Calibration, conversion and training all ask here, so
 * that they agree.
 */
void qnn_sites__find(const qnn_model *m, const qnn_quant_opts *o, qnn_node *site, uint8_t *needed);

/* What an int8 conversion knows of a node's values. */
typedef struct qnn_range {
    float lo, hi;
    int known;
} qnn_range;
/* lib/quant/convert_static.c: m fused, range [n_nodes] by site. */
qnn_status qnn_convert__static(qnn_model **out, qnn_ctx *ctx, const qnn_model *m,
                               const qnn_range *range, const qnn_quant_opts *opts,
                               const char *method);

#endif
