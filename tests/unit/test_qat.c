/*
 * Quantisation-aware training: a trained model against its int8 twin, code by code.
 *
 * The two differ in one thing by design: the twin rounds each bias to a unit of its sums. So the
 * models are compared twice: with biases that are whole units already, where hardly a code may
 * differ, and as trained, where the rounding of biases may move some codes.
 */
#include "suites.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/exec.h"
#include "quant_fixture.h"
#include "tests/common/testutil.h"

static const qnn_quant_opts cases[] = {{0}, {.per_tensor = 1}, {.quantize_output = 1}};
enum { N_CASES = sizeof cases / sizeof *cases };

static qnn_model *train(qf_fixture *f, const qnn_quant_opts *opts)
{
    int32_t labels[QF_BATCH];
    qnn_model *fake;
    qnn_trainer *t;

    for (int i = 0; i < QF_BATCH; i++)
        labels[i] = i % QF_CLASSES;
    TU_OK(f->ctx, qnn_qat_prepare(&fake, f->ctx, f->m, opts));
    TU_OK(f->ctx, qnn_trainer_create(&t, f->ctx, fake,
                                     &(qnn_trainer_opts){.batch = QF_BATCH, .lr = 2e-3f}));
    for (int i = 0; i < 30; i++)
        TU_OK(f->ctx, qnn_trainer_step(t, f->x, labels, QF_BATCH, NULL));
    qnn_trainer_free(t);
    return fake;
}

/* Biases of fake become what the int8 model holds. */
static void round_biases(qnn_model *fake, const qnn_model *int8)
{
    for (int i = 0; i < int8->n_nodes; i++) {
        const qnn_node_data *const n = int8->node[i];
        const qnn_param *const w = &n->param[QNN_P_WEIGHT], *const b = &n->param[QNN_P_BIAS];
        float *real;

        if (b->count == 0 || b->dtype != QNN_DTYPE_I32)
            continue;
        real = fake->node[qnn_model_find(fake, n->name)]->param[QNN_P_BIAS].data;
        for (size_t c = 0; c < b->count; c++)
            real[c] = (float)((double)((const int32_t *)b->data)[c] *
                              (double)int8->node[n->in[0]]->scale *
                              (double)w->scale[w->n_scale > 1 ? c : 0]);
    }
}

typedef struct tally {
    long n_codes, n_off, worst;
} tally;

/* The node of the int8 model that holds the codes of what a fake-quant reads. */
static const qnn_node_data *twin_of(const qnn_model *int8, const char *name, qnn_node *id)
{
    char quant[QNN_NAME_MAX];

    *id = qnn_model_find(int8, name);
    ck_assert_msg(*id != QNN_NODE_NONE, "the int8 model has no \"%s\"", name);
    if (int8->node[*id]->dtype != QNN_DTYPE_U8) { /* the input: its quantize node's */
        snprintf(quant, sizeof quant, "%s.quant", name);
        *id = qnn_model_find(int8, quant);
        ck_assert_msg(*id != QNN_NODE_NONE, "the int8 model has no \"%s\"", quant);
    }
    return int8->node[*id];
}

static void open_exec(qnn_exec *x, qnn_ctx *ctx, const qnn_model *m, const void *const *src)
{
    qnn_program *p;

    TU_OK(ctx, qnn_program__compile(&p, ctx, m,
                                    &(qnn_compile_opts){.max_batch = QF_BATCH, .keep_all = 1}));
    *x = (qnn_exec){.ctx = ctx, .p = p, .k = p->k, .n = QF_BATCH, .src = src};
    x->ws = tu_alloc_aligned(qnn_program_workspace(p));
    TU_OK(ctx, qnn_exec__forward(x));
}

static void close_exec(qnn_exec *x)
{
    free(x->ws);
    qnn_program_free((qnn_program *)(uintptr_t)x->p);
}

/* Each fake-quant's values as codes against the codes of the node that it stands behind. */
static tally compare(qf_fixture *f, const qnn_model *fake, const qnn_model *int8)
{
    const void *const src[1] = {f->x};
    tally t = {0, 0, 0};
    qnn_exec ef, eq;

    open_exec(&ef, f->ctx, fake, src);
    open_exec(&eq, f->ctx, int8, src);
    for (int i = 0; i < fake->n_nodes; i++) {
        const qnn_node_data *const n = fake->node[i], *twin;
        const size_t count = QF_BATCH * (size_t)qnn_shape__count(&n->shape);
        const float *value;
        const uint8_t *codes;
        qnn_node id;

        if (n->kind != QNN_OP_FAKE_QUANT)
            continue;
        twin = twin_of(int8, fake->node[n->in[0]]->name, &id);
        value = qnn_exec__value(&ef, i);
        codes = qnn_exec__value(&eq, id);
        for (size_t k = 0; k < count; k++) {
            const long off =
                labs(lrintf(value[k] / twin->scale) + twin->zero_point - (long)codes[k]);

            t.n_off += off != 0;
            t.worst = off > t.worst ? off : t.worst;
        }
        t.n_codes += (long)count;
    }
    close_exec(&ef);
    close_exec(&eq);
    ck_assert_int_gt(t.n_codes, 10000);
    return t;
}

/* _i: network and options. */
START_TEST(int8_twin_agrees)
{
    const qnn_quant_opts *const opts = &cases[_i % N_CASES];
    qf_fixture f = qf_open(_i / N_CASES);
    qnn_model *const fake = train(&f, opts);
    qnn_model *int8;
    tally t;

    TU_OK(f.ctx, qnn_qat_convert(&int8, f.ctx, fake, opts));
    qf_check_coverage(f.ctx, int8);
    ck_assert_str_eq(qnn_model_meta(int8, "quant.method"), "qat");
    ck_assert_str_eq(qnn_model_meta(int8, "quant.raised"), "0");
    t = compare(&f, fake, int8);
    ck_assert_msg(t.worst <= 3 && t.n_off * 100 < t.n_codes,
                  "case %d as trained: %ld of %ld codes differ, by up to %ld", _i, t.n_off,
                  t.n_codes, t.worst);
    round_biases(fake, int8);
    qnn_model_free(int8);
    TU_OK(f.ctx, qnn_qat_convert(&int8, f.ctx, fake, opts));
    t = compare(&f, fake, int8);
    ck_assert_msg(t.worst <= 1 && t.n_off * 10000 < t.n_codes,
                  "case %d, whole biases: %ld of %ld codes differ, by up to %ld", _i, t.n_off,
                  t.n_codes, t.worst);
    qnn_model_free(int8);
    qnn_model_free(fake);
    qf_close(&f);
}
END_TEST

/* Evaluation freezes the observers: the same scores twice, and after other data. */
START_TEST(evaluation_freezes_observers)
{
    qf_fixture f = qf_open(0);
    qnn_model *const fake = train(&f, NULL);
    float *const x = tu_alloc(QF_BATCH * QF_ITEM * sizeof *x);
    float before[QF_BATCH * QF_CLASSES], after[QF_BATCH * QF_CLASSES];
    qnn_trainer *t;

    tu_fill_uniform(x, QF_BATCH * QF_ITEM, -50.0f, 50.0f, 3);
    TU_OK(f.ctx, qnn_trainer_create(&t, f.ctx, fake, &(qnn_trainer_opts){.batch = QF_BATCH}));
    TU_OK(f.ctx, qnn_trainer_evaluate(t, f.x, QF_BATCH, before));
    TU_OK(f.ctx, qnn_trainer_evaluate(t, x, QF_BATCH, after));
    TU_OK(f.ctx, qnn_trainer_evaluate(t, f.x, QF_BATCH, after));
    ck_assert_mem_eq(before, after, sizeof before);
    qnn_trainer_free(t);
    qnn_model_free(fake);
    free(x);
    qf_close(&f);
}
END_TEST

START_TEST(mistakes_are_named)
{
    const qnn_quant_opts unknown = {.skip = "conv9"}, known = {.skip = "conv2"};
    qf_fixture f = qf_open(0);
    qnn_model *fake, *int8;
    qnn_node_info n;
    qnn_param_info p;

    TU_OK(f.ctx, qnn_qat_prepare(&fake, f.ctx, f.m, NULL));
    ck_assert_int_eq(qnn_qat_convert(&int8, f.ctx, fake, NULL), QNN_ERR_STATE); /* not trained */
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(f.ctx), ".fq"));
    ck_assert_ptr_null(int8);
    qnn_model_free(fake);
    ck_assert_int_eq(qnn_qat_prepare(&fake, f.ctx, f.m, &unknown), QNN_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(f.ctx), "conv9"));
    ck_assert_ptr_null(fake);

    fake = train(&f, &known);
    ck_assert_int_eq(qnn_qat_convert(&int8, f.ctx, fake, &unknown), QNN_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(f.ctx), "conv9"));
    TU_OK(f.ctx, qnn_qat_convert(&int8, f.ctx, fake, &known));
    qf_check_coverage(f.ctx, int8);
    TU_OK(f.ctx, qnn_model_node_info(int8, qnn_model_find(int8, "conv2"), &n));
    ck_assert_int_eq(n.weight_dtype, QNN_DTYPE_F32);
    qnn_model_free(int8);

    TU_OK(f.ctx, qnn_model_param(fake, qnn_model_find_param(fake, "fc1.weight"), &p));
    ((float *)p.data)[3] = NAN;
    ck_assert_int_eq(qnn_qat_convert(&int8, f.ctx, fake, &known), QNN_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(f.ctx), "fc1.weight"));
    qnn_model_free(fake);
    TU_OK(f.ctx, qnn_model_param(f.m, qnn_model_find_param(f.m, "conv1.bias"), &p));
    ((float *)p.data)[0] = INFINITY;
    ck_assert_int_eq(qnn_qat_prepare(&fake, f.ctx, f.m, NULL), QNN_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(f.ctx), "conv1.bias"));
    qf_close(&f);
}
END_TEST

Suite *qat_suite(void)
{
    Suite *const s = suite_create("qat");
    TCase *const passes = tcase_create("passes");

    tcase_set_timeout(passes, 120);
    tcase_add_loop_test(passes, int8_twin_agrees, 0, QF_NETWORKS * N_CASES);
    tcase_add_test(passes, evaluation_freezes_observers);
    tcase_add_test(passes, mistakes_are_named);
    suite_add_tcase(s, passes);
    return s;
}
