/* What a model is worth: accuracy over the validation set, latency of one image and of a batch,
 * size of its file. */
#define _POSIX_C_SOURCE 200809L
#include "study.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define N_TIMED_IMAGES 64 /* different images take turns, as in use */

/* A program with a workspace of its own: the context would keep the largest that it ever lent. */
typedef struct runner {
    qnn_program *p;
    void *ws;
    size_t ws_bytes;
} runner;

static qnn_status open_runner(study *s, runner *r, const qnn_model *m, int batch)
{
    const qnn_status status =
        qnn_program_compile(&r->p, s->ctx, m, &(qnn_program_opts){.max_batch = batch});

    r->ws = NULL;
    if (status != QNN_OK)
        return status;
    r->ws_bytes = (qnn_program_workspace(r->p) + 63) / 64 * 64;
    r->ws = aligned_alloc(64, r->ws_bytes);
    return r->ws == NULL ? QNN_ERR_NOMEM : QNN_OK;
}

static void close_runner(runner *r)
{
    free(r->ws);
    qnn_program_free(r->p);
}

static qnn_status run(study *s, const runner *r, const float *x, int n, float *logits)
{
    return qnn_run_in(r->p, s->ctx, &x, n, &logits, r->ws, r->ws_bytes);
}

/* Precision, recall and F1 with every class counting by its images instead of alike. */
static void weigh(qnn_metrics *m, const qnn_confusion *c)
{
    const int n_classes = qnn_confusion_classes(c);

    m->precision = m->recall = m->f1 = 0.0;
    for (int k = 0; k < n_classes && m->n > 0; k++) {
        const double hits = (double)qnn_confusion_count(c, k, k);
        double images = 0.0, predicted = 0.0;

        for (int i = 0; i < n_classes; i++) {
            images += (double)qnn_confusion_count(c, k, i);
            predicted += (double)qnn_confusion_count(c, i, k);
        }
        if (hits == 0.0)
            continue;
        m->precision += images / (double)m->n * hits / predicted;
        m->recall += hits / (double)m->n;
        m->f1 += images / (double)m->n * 2.0 * hits / (images + predicted);
    }
}

qnn_status study_score(study *s, const qnn_model *m, study_result *r)
{
    const int batch = (int)s->set.batch;
    runner p = {0};
    qnn_loader *ld = NULL;
    qnn_confusion *c = NULL;
    float *const logits = malloc((size_t)batch * (size_t)s->n_classes * sizeof *logits);
    const float *x;
    const int32_t *y;
    int n = 0, done = 0;
    qnn_status status = logits == NULL ? QNN_ERR_NOMEM : open_runner(s, &p, m, batch);

    if (status == QNN_OK)
        status = qnn_confusion_create(&c, s->ctx, s->n_classes);
    if (status == QNN_OK)
        status = study_loader(s, &ld, 0);
    if (status == QNN_OK)
        status = qnn_loader_begin(ld, 0);
    while (status == QNN_OK && (status = qnn_loader_next(ld, &x, &y, &n)) == QNN_OK && n > 0) {
        status = run(s, &p, x, n, logits);
        if (status == QNN_OK)
            status = qnn_confusion_add_logits(c, logits, y, n);
        done += n;
        study_live("%s  scoring  %d/%lld", study_methods[s->method].name, done,
                   (long long)s->n_val);
        if (study_interrupted())
            status = QNN_ERR_STOPPED;
    }
    if (status == QNN_OK) {
        r->metrics = qnn_confusion_metrics(c);
        if (strcmp(s->set.average, "weighted") == 0)
            weigh(&r->metrics, c);
    }
    qnn_loader_free(ld);
    qnn_confusion_free(c);
    close_runner(&p);
    free(logits);
    return status;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Median and half the distance between the quartiles. */
static void summarise(double *ms, int n, double *median, double *spread)
{
    qsort(ms, (size_t)n, sizeof *ms, by_value);
    *median = n % 2 == 1 ? ms[n / 2] : 0.5 * (ms[n / 2 - 1] + ms[n / 2]);
    *spread = 0.5 * (ms[(3 * n) / 4 < n ? (3 * n) / 4 : n - 1] - ms[n / 4]);
}

/* Images ready in memory: decoding is not timed. */
static qnn_status timed_images(study *s, float **out, int *n_images)
{
    const size_t item = (size_t)s->set.image_size * (size_t)s->set.image_size * 3;
    const int wanted = s->set.batch > N_TIMED_IMAGES ? (int)s->set.batch : N_TIMED_IMAGES;
    qnn_loader *ld = NULL;
    const float *x;
    const int32_t *y;
    int n = 0;
    qnn_status status;

    *n_images = 0;
    *out = calloc((size_t)wanted, item * sizeof **out);
    if (*out == NULL)
        return QNN_ERR_NOMEM;
    status = study_loader(s, &ld, 0);
    if (status == QNN_OK)
        status = qnn_loader_begin(ld, 0);
    while (status == QNN_OK && *n_images < wanted &&
           (status = qnn_loader_next(ld, &x, &y, &n)) == QNN_OK && n > 0) {
        if (n > wanted - *n_images)
            n = wanted - *n_images;
        memcpy(*out + (size_t)*n_images * item, x, (size_t)n * item * sizeof *x);
        *n_images += n;
    }
    /* A validation set smaller than a batch is repeated to fill it. */
    for (int i = *n_images; status == QNN_OK && *n_images > 0 && i < wanted; i++)
        memcpy(*out + (size_t)i * item, *out + (size_t)(i % *n_images) * item, item * sizeof **out);
    *n_images = wanted;
    qnn_loader_free(ld);
    return status;
}

static qnn_status time_batch(study *s, const qnn_model *m, const float *images, int n_images,
                             int batch, int n_runs, double *median, double *spread)
{
    const size_t item = (size_t)s->set.image_size * (size_t)s->set.image_size * 3;
    double *const ms = malloc((size_t)n_runs * sizeof *ms);
    float *const logits = malloc((size_t)batch * (size_t)s->n_classes * sizeof *logits);
    runner p = {0};
    qnn_status status = ms == NULL || logits == NULL ? QNN_ERR_NOMEM : open_runner(s, &p, m, batch);

    for (int i = -(int)s->set.warmup; status == QNN_OK && i < n_runs; i++) {
        const int first =
            batch < n_images ? (i + (int)s->set.warmup) % (n_images / batch) * batch : 0;
        const double start = study_now();

        status = run(s, &p, images + (size_t)first * item, batch, logits);
        if (i >= 0)
            ms[i] = 1e3 * (study_now() - start);
        study_live("%s  timing batches of %d  %s %d/%d", study_methods[s->method].name, batch,
                   i < 0 ? "warm-up" : "run", i < 0 ? i + 1 + (int)s->set.warmup : i + 1,
                   i < 0 ? (int)s->set.warmup : n_runs);
        if (study_interrupted())
            status = QNN_ERR_STOPPED;
    }
    if (status == QNN_OK)
        summarise(ms, n_runs, median, spread);
    close_runner(&p);
    free(logits);
    free(ms);
    return status;
}

qnn_status study_time(study *s, const qnn_model *m, study_result *r)
{
    float *images;
    int n_images;
    qnn_status status = timed_images(s, &images, &n_images);

    if (status == QNN_OK)
        status = time_batch(s, m, images, n_images, 1, (int)s->set.single_runs, &r->single_ms,
                            &r->single_spread);
    if (status == QNN_OK)
        status = time_batch(s, m, images, n_images, (int)s->set.batch, (int)s->set.batch_runs,
                            &r->batch_ms, &r->batch_spread);
    free(images);
    return status;
}

/* Everything that a program which loads the file needs to feed it. */
static qnn_status describe(study *s, qnn_model *m)
{
    json_t *const classes = json_array();
    char text[128];
    char *names;
    qnn_status status;

    for (int c = 0; c < s->n_classes; c++)
        (void)json_array_append_new(classes, json_string(qnn_dataset_class_name(s->data, c)));
    names = json_dumps(classes, JSON_COMPACT);
    json_decref(classes);
    status = names == NULL ? QNN_ERR_NOMEM : qnn_model_set_meta(m, "classes", names);
    free(names);
    (void)snprintf(text, sizeof text, "%.9g %.9g %.9g", s->set.mean_r, s->set.mean_g,
                   s->set.mean_b);
    if (status == QNN_OK)
        status = qnn_model_set_meta(m, "mean", text);
    (void)snprintf(text, sizeof text, "%.9g %.9g %.9g", s->set.std_r, s->set.std_g, s->set.std_b);
    if (status == QNN_OK)
        status = qnn_model_set_meta(m, "std", text);
    if (status == QNN_OK)
        status = qnn_model_set_meta(m, "method", study_methods[s->method].key);
    return status == QNN_OK ? qnn_model_set_meta(m, "data", qnn_dataset_description(s->data))
                            : status;
}

qnn_status study_save(study *s, qnn_model *m, study_result *r)
{
    struct stat st;
    qnn_status status = describe(s, m);

    study_path(s, r->file, s->set.models_dir, study_methods[s->method].key, ".safetensors");
    if (status == QNN_OK)
        status = qnn_model_save(m, r->file);
    if (status == QNN_OK)
        r->bytes = stat(r->file, &st) == 0 ? (int64_t)st.st_size : 0;
    return status;
}
