/* The eight methods, and the network they share. */
#include "study.h"

#include <stdlib.h>
#include <string.h>

/* ---- the network
 * ----------------------------------------------------------------------------------------------------------------------
 */

qnn_status study_build(study *s, qnn_model **out)
{
    const int64_t filters[3] = {s->set.channels1, s->set.channels2, s->set.channels3};
    qnn_node x;
    char name[16];
    qnn_model *m;
    qnn_status status = qnn_model_create(&m, s->ctx);

    *out = NULL;
    if (status != QNN_OK)
        return status;
    x = qnn_input(m, "image", s->set.image_size, s->set.image_size, 3);
    for (int i = 0; i < 3; i++) {
        (void)snprintf(name, sizeof name, "conv%d", i + 1);
        x = qnn_conv2d(m, x, name,
                       &(qnn_conv2d_opts){.filters = (int)filters[i],
                                          .kernel = (int)s->set.kernel,
                                          .pad = (int)s->set.kernel / 2});
        (void)snprintf(name, sizeof name, "relu%d", i + 1);
        x = qnn_relu(m, x, name);
        (void)snprintf(name, sizeof name, "pool%d", i + 1);
        x = qnn_maxpool2d(m, x, name, 2, 2);
    }
    x = qnn_relu(m, qnn_linear(m, qnn_flatten(m, x, "flat"), "fc1", s->set.hidden), "relu4");
    qnn_output(m, "logits", qnn_linear(m, x, "fc2", s->n_classes));
    status = qnn_model_check(m);
    if (status != QNN_OK)
        qnn_model_free(m);
    else
        *out = m;
    return status;
}

/* ---- training
 * --------------------------------------------------------------------------------------------------------------------------
 */

typedef struct fit_user {
    study *s;
    study_result *r;
} fit_user;

static int on_progress(void *user, const qnn_fit_progress *p)
{
    const fit_user *const u = user;
    char eta[32];

    if (p->stage == QNN_FIT_TRAIN)
        study_live("%s  epoch %d/%d  %lld/%lld  %.0f images/s  loss %.4f  ETA %s",
                   study_methods[u->s->method].name, p->epoch, p->epochs, (long long)p->done,
                   (long long)p->total, p->images_per_second, p->loss,
                   study_duration(eta, sizeof eta, p->eta_seconds));
    else
        study_live("%s  epoch %d/%d  validating %lld/%lld  ETA %s",
                   study_methods[u->s->method].name, p->epoch, p->epochs, (long long)p->done,
                   (long long)p->total, study_duration(eta, sizeof eta, p->eta_seconds));
    return study_interrupted();
}

static void keep_epoch(study_result *r, const qnn_epoch *e)
{
    qnn_epoch *const more = realloc(r->curve, (size_t)(r->n_curve + 1) * sizeof *more);

    if (more == NULL)
        return; /* a curve's point is lost, the run is not */
    r->curve = more;
    r->curve[r->n_curve++] = *e;
}

static int on_epoch(void *user, const qnn_epoch *e)
{
    const fit_user *const u = user;

    keep_epoch(u->r, e);
    study_line("  epoch %2d/%lld  loss %.4f  val loss %.4f  accuracy %.2f%%  precision %.2f%%  F1 "
               "%.2f%%  lr %g  %.1f s%s",
               e->epoch, (long long)u->s->set.epochs, e->train_loss, e->val_loss,
               100 * e->val.accuracy, 100 * e->val.precision, 100 * e->val.f1, (double)e->lr,
               e->train_seconds + e->val_seconds, e->is_best ? "  *" : "");
    return study_interrupted();
}

/* Curves of epochs that ran before an interruption are in the trainer's own log. */
static void read_curve(study_result *r, const char *csv)
{
    FILE *const f = fopen(csv, "r");
    char line[512];

    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        qnn_epoch e;

        memset(&e, 0, sizeof e);
        if (sscanf(line, "%d,%lf,%lf,%lf,%lf,%lf,%lf,%lf,%f,%lf,%lf,%d", &e.epoch, &e.train_loss,
                   &e.train_accuracy, &e.val_loss, &e.val.accuracy, &e.val.precision, &e.val.recall,
                   &e.val.f1, &e.lr, &e.train_seconds, &e.val_seconds, &e.is_best) == 12)
            keep_epoch(r, &e);
    }
    if (f != NULL)
        (void)fclose(f);
}

/* Trains m with the study's settings and leaves its best epoch's parameters in it. */
static qnn_status fit(study *s, qnn_model *m, study_result *r)
{
    char checkpoint[STUDY_TEXT_MAX], log[STUDY_TEXT_MAX];
    fit_user user = {s, r};
    qnn_fit_opts o = QNN_FIT_OPTS_INIT;
    qnn_fit_result done;
    qnn_loader *train = NULL, *val = NULL;
    qnn_trainer *t = NULL;
    qnn_status status =
        qnn_trainer_create(&t, s->ctx, m,
                           &(qnn_trainer_opts){.batch = (int)s->set.batch,
                                               .lr = (float)s->set.lr,
                                               .beta1 = (float)s->set.beta1,
                                               .beta2 = (float)s->set.beta2,
                                               .eps = (float)s->set.eps,
                                               .weight_decay = (float)s->set.weight_decay,
                                               .clip_norm = (float)s->set.clip_norm,
                                               .seed = (uint64_t)(s->set.seed + s->repeat)});

    study_path(s, checkpoint, s->set.checkpoints_dir, study_methods[s->method].key, ".ckpt");
    study_path(s, log, s->set.checkpoints_dir, study_methods[s->method].key, "-epochs.csv");
    if (status == QNN_OK)
        status = study_loader(s, &train, 1);
    if (status == QNN_OK)
        status = study_loader(s, &val, 0);
    if (status == QNN_OK) {
        o.epochs = (int)s->set.epochs;
        o.train = train;
        o.val = val;
        o.plateau.factor = (float)s->set.plateau_factor;
        o.plateau.patience = (int)s->set.plateau_patience;
        o.plateau.threshold = (float)s->set.plateau_threshold;
        o.on_progress = on_progress;
        o.on_epoch = on_epoch;
        o.user = &user;
        o.log_csv = log;
        o.checkpoint = checkpoint;
        o.resume = s->resume[0] != '\0';
        if (o.resume)
            read_curve(r, log);
        status = qnn_fit(t, &o, &done);
    }
    if (status == QNN_OK && done.stopped)
        status = QNN_ERR_STOPPED;
    if (status == QNN_OK)
        status = qnn_trainer_restore_best(t);
    if (status == QNN_OK) {
        r->is_trained = 1;
        r->train_s = done.seconds;
        r->last = done.last.val;
        r->best_epoch = done.best.epoch;
    }
    qnn_loader_free(val);
    qnn_loader_free(train);
    qnn_trainer_free(t);
    return status;
}

/* ---- methods
 * ------------------------------------------------------------------------------------------------------------------------------
 */

/* Saves, scores and times a finished model. */
static qnn_status finish(study *s, qnn_model *m, study_result *r)
{
    qnn_status status = study_save(s, m, r);

    if (status == QNN_OK)
        status = study_score(s, m, r);
    if (status == QNN_OK)
        status = study_time(s, m, r);
    r->is_done = status == QNN_OK;
    return status;
}

static qnn_status skip(study_result *r, const char *why)
{
    r->is_skipped = 1;
    (void)snprintf(r->reason, sizeof r->reason, "%s", why);
    return QNN_OK;
}

static qnn_status run_fp32_gpu(study *s, study_result *r)
{
    const char *why = "this build has no GPU backend";

    (void)s;
    for (int i = 1; qnn_device_name(i) != NULL; i++)
        if (qnn_device_available(i, &why))
            return skip(r, "this version trains on the CPU only");
    return skip(r, why);
}

static qnn_status run_fp32_cpu(study *s, study_result *r)
{
    qnn_model *m, *fused = NULL;
    qnn_status status = study_build(s, &m);

    if (status == QNN_OK)
        status = fit(s, m, r);
    if (status == QNN_OK)
        status = qnn_fuse(&fused, s->ctx, m);
    if (status == QNN_OK)
        status = finish(s, fused, r);
    qnn_model_free(fused);
    if (status == QNN_OK && s->set.checkpoint[0] == '\0') {
        qnn_model_free(s->fp32);
        s->fp32 = m;
        (void)snprintf(s->fp32_origin, sizeof s->fp32_origin, "the best epoch (%d) of FP32 (CPU)",
                       r->best_epoch);
        return QNN_OK;
    }
    qnn_model_free(m);
    return status;
}

static qnn_status run_half(study *s, study_result *r, qnn_dtype dtype)
{
    const double start = study_now();
    qnn_model *fused = NULL, *half = NULL;
    qnn_status status = qnn_fuse(&fused, s->ctx, s->fp32);

    if (status == QNN_OK)
        status = qnn_lower_half(&half, s->ctx, fused, dtype);
    r->train_s = study_now() - start;
    (void)snprintf(r->note, sizeof r->note,
                   "16-bit weights on disk; no GPU, so it runs on the CPU with f32 sums");
    if (status == QNN_OK)
        status = finish(s, half, r);
    qnn_model_free(half);
    qnn_model_free(fused);
    return status;
}

static qnn_status run_fp16(study *s, study_result *r) { return run_half(s, r, QNN_DTYPE_F16); }

static qnn_status run_bf16(study *s, study_result *r) { return run_half(s, r, QNN_DTYPE_BF16); }

static qnn_quant_opts quant_opts(const study *s)
{
    return (qnn_quant_opts){.per_tensor = strcmp(s->set.weights, "per-tensor") == 0,
                            .skip = s->set.skip_layers[0] != '\0' ? s->set.skip_layers : NULL};
}

static qnn_status run_dynamic(study *s, study_result *r)
{
    static const char *const linear[] = {"fc1", "fc2"};
    qnn_quant_opts opts = quant_opts(s);
    char skip[STUDY_TEXT_MAX + 16];
    const double start = study_now();
    qnn_model *fused = NULL, *m = NULL;
    qnn_status status = qnn_fuse(&fused, s->ctx, s->fp32);

    (void)snprintf(skip, sizeof skip, "%s", s->set.skip_layers);
    for (int i = 0; i < 2; i++)
        if (!study_in_list(s->set.dynamic_layers, linear[i]) && !study_in_list(skip, linear[i])) {
            const size_t used = strlen(skip);

            (void)snprintf(skip + used, sizeof skip - used, "%s%s", used > 0 ? "," : "", linear[i]);
        }
    opts.skip = skip[0] != '\0' ? skip : NULL;
    if (status == QNN_OK)
        status = qnn_quantize_dynamic(&m, s->ctx, fused, &opts);
    r->train_s = study_now() - start;
    if (status == QNN_OK)
        status = finish(s, m, r);
    qnn_model_free(m);
    qnn_model_free(fused);
    return status;
}

/* The first images of the training split, in order. */
static qnn_status calibrate(study *s, qnn_stats *st)
{
    const int64_t n_images = s->set.calib_images < s->n_train ? s->set.calib_images : s->n_train;
    const float mean[3] = {(float)s->set.mean_r, (float)s->set.mean_g, (float)s->set.mean_b};
    const float std_dev[3] = {(float)s->set.std_r, (float)s->set.std_g, (float)s->set.std_b};
    const float *x;
    const int32_t *y;
    int n = 0;
    qnn_loader *ld = NULL;
    qnn_status status = qnn_loader_create(
        &ld, s->ctx, s->data, s->indices + s->n_val, n_images,
        &(qnn_loader_opts){.batch = (int)s->set.calib_batch, .mean = mean, .std_dev = std_dev});

    if (status == QNN_OK)
        status = qnn_loader_begin(ld, 0);
    while (status == QNN_OK && (status = qnn_loader_next(ld, &x, &y, &n)) == QNN_OK && n > 0) {
        status = qnn_stats_observe(st, s->ctx, x, n);
        study_live("%s  calibrating  %lld/%lld", study_methods[s->method].name,
                   (long long)qnn_stats_images(st), (long long)n_images);
        if (study_interrupted())
            status = QNN_ERR_STOPPED;
    }
    qnn_loader_free(ld);
    return status;
}

static qnn_status run_static(study *s, study_result *r)
{
    const qnn_quant_opts opts = quant_opts(s);
    const double start = study_now();
    qnn_model *fused = NULL, *m = NULL;
    qnn_stats *st = NULL;
    qnn_status status = qnn_fuse(&fused, s->ctx, s->fp32);

    if (status == QNN_OK)
        status =
            qnn_stats_create(&st, s->ctx, fused,
                             &(qnn_stats_opts){.max_batch = (int)s->set.calib_batch,
                                               .observer = strcmp(s->set.observer, "min-max") == 0
                                                               ? QNN_OBSERVER_MINMAX
                                                               : QNN_OBSERVER_MOVING_AVERAGE});
    if (status == QNN_OK)
        status = calibrate(s, st);
    if (status == QNN_OK)
        status = qnn_quantize_static(&m, s->ctx, fused, st, &opts);
    (void)snprintf(r->note, sizeof r->note, "calibrated on %lld images",
                   st != NULL ? (long long)qnn_stats_images(st) : 0);
    qnn_stats_free(st);
    r->train_s = study_now() - start;
    if (status == QNN_OK)
        status = finish(s, m, r);
    qnn_model_free(m);
    qnn_model_free(fused);
    return status;
}

static qnn_status run_qat(study *s, study_result *r)
{
    const qnn_quant_opts opts = quant_opts(s);
    qnn_model *plain = NULL, *fake = NULL, *m = NULL;
    qnn_status status = study_build(s, &plain);

    if (status == QNN_OK)
        status = qnn_qat_prepare(&fake, s->ctx, plain, &opts);
    qnn_model_free(plain);
    if (status == QNN_OK)
        status = fit(s, fake, r);
    if (status == QNN_OK)
        status = qnn_qat_convert(&m, s->ctx, fake, &opts);
    (void)snprintf(r->note, sizeof r->note,
                   "trained from scratch with fake-quant, scored as the converted int8 model");
    if (status == QNN_OK)
        status = finish(s, m, r);
    qnn_model_free(m);
    qnn_model_free(fake);
    return status;
}

static qnn_status run_int4(study *s, study_result *r)
{
    const double start = study_now();
    qnn_model *fused = NULL, *m = NULL;
    qnn_status status = qnn_fuse(&fused, s->ctx, s->fp32);

    if (status == QNN_OK)
        status = qnn_quantize_int4_sim(&m, s->ctx, fused);
    r->train_s = study_now() - start;
    (void)snprintf(r->note, sizeof r->note,
                   "packed two codes a byte on disk, runs dequantised to f32");
    if (status == QNN_OK)
        status = finish(s, m, r);
    qnn_model_free(m);
    qnn_model_free(fused);
    return status;
}

const study_method study_methods[STUDY_N_METHODS] = {
    {"fp32-gpu", "FP32", "GPU", "f32", "f32", "f32", 1, 0, 0, run_fp32_gpu},
    {"fp32-cpu", "FP32 (CPU)", "CPU", "f32", "f32", "f32", 1, 0, 0, run_fp32_cpu},
    {"fp16", "FP16", "CPU", "16-bit float", "f16", "f32", 0, 0, 1, run_fp16},
    {"bf16", "BF16", "CPU", "16-bit float", "bf16", "f32", 0, 0, 1, run_bf16},
    {"ptq-dynamic", "PTQ-Dynamic", "CPU", "int8 linear", "s8", "u8 per row at run time", 0, 0, 1,
     run_dynamic},
    {"ptq-static", "PTQ-Static", "CPU", "int8", "s8", "u8 calibrated", 0, 1, 1, run_static},
    {"qat", "QAT", "CPU", "int8", "s8", "u8 learned in training", 1, 0, 0, run_qat},
    {"int4-sim", "4-bit Sim", "CPU", "4-bit weights", "s4 per tensor", "f32", 0, 0, 1, run_int4},
};

void study_methods_list(FILE *f)
{
    fprintf(f, "%-12s %-12s %-6s %-14s %-14s %-23s %-9s %s\n", "method", "shown as", "device",
            "precision", "weights", "activations", "trained", "calibrated");
    for (int k = 0; k < STUDY_N_METHODS; k++) {
        const study_method *const m = &study_methods[k];

        fprintf(f, "%-12s %-12s %-6s %-14s %-14s %-23s %-9s %s\n", m->key, m->name, m->device,
                m->precision, m->weights, m->activations, m->is_trained ? "yes" : "no",
                m->needs_calibration ? "yes" : "no");
    }
}
