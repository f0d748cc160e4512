/* Which images, decoded once to check them all, split, and loaders over the two parts. */
#define _POSIX_C_SOURCE 200809L
#include "study.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int exists(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0;
}

/* --data, then CALTECH101_DIR, then data/caltech101, then built-in; the choice becomes the resolved
 * setting. */
static void resolve(study_settings *set)
{
    const char *const environment = getenv("CALTECH101_DIR");

    if (set->data[0] != '\0')
        return;
    if (environment != NULL && environment[0] != '\0')
        (void)snprintf(set->data, sizeof set->data, "%s", environment);
    else
        (void)snprintf(set->data, sizeof set->data, "%s",
                       exists("data/caltech101") ? "data/caltech101" : "builtin");
}

static int fail(const study *s, const char *what)
{
    study_error("%s: \"%s\": %s", what, s->set.data, qnn_ctx_error(s->ctx));
    return 2;
}

static int on_scan(void *user, int64_t done, int64_t total)
{
    const double *const started = user;
    const double seconds = study_now() - *started;
    char eta[32];

    study_live("reading images  %lld/%lld  %.0f images/s  ETA %s", (long long)done,
               (long long)total, (double)done / (seconds + 1e-9),
               study_duration(eta, sizeof eta,
                              done > 0 ? seconds / (double)done * (double)(total - done) : -1));
    return study_interrupted();
}

static int scan(study *s)
{
    double started = study_now();
    const qnn_scan_opts opts = {
        .skip_bad = (int)s->set.skip_bad, .progress = on_scan, .user = &started};
    const qnn_status status = qnn_dataset_scan(s->data, s->ctx, &opts);

    if (status == QNN_ERR_STOPPED) {
        study_line("interrupted while reading images");
        return 130;
    }
    if (status != QNN_OK) {
        (void)fail(s, "--data");
        study_error("--skip-bad leaves such files out");
        return 2;
    }
    study_line("Read %lld images in %.1f s", (long long)qnn_dataset_size(s->data),
               study_now() - started);
    if (qnn_dataset_n_skipped(s->data) > 0)
        study_line("Left out %lld files that are not images:",
                   (long long)qnn_dataset_n_skipped(s->data));
    for (int64_t i = 0; i < qnn_dataset_n_skipped(s->data); i++)
        study_line("  %s", qnn_dataset_skipped(s->data, i));
    return 0;
}

static int split(study *s)
{
    const int64_t n = qnn_dataset_size(s->data);

    s->indices = malloc((size_t)(n > 0 ? n : 1) * sizeof *s->indices);
    if (s->indices == NULL) {
        study_error("out of memory");
        return 1;
    }
    if (qnn_split(s->indices, &s->n_val, &s->n_train, s->ctx, n, s->set.limit, s->set.val_fraction,
                  (uint64_t)s->set.seed) != QNN_OK)
        return fail(s, "--data");
    if (s->n_val < 1 || s->n_train < s->set.batch) {
        study_error("--batch, --limit: %lld training and %lld validation images are too few for a "
                    "batch of %lld (limit %lld)",
                    (long long)s->n_train, (long long)s->n_val, (long long)s->set.batch,
                    (long long)s->set.limit);
        return 2;
    }
    return 0;
}

int study_data_open(study *s)
{
    const int size = (int)s->set.image_size;
    qnn_dataset *plain, *cached;
    int64_t n_drawn = s->set.builtin_images;
    qnn_status status;
    int rc;

    resolve(&s->set);
    s->is_builtin = strcmp(s->set.data, "builtin") == 0;
    if (s->set.epochs == 0)
        s->set.epochs = s->is_builtin ? s->set.builtin_epochs : 10;
    if (s->set.limit > 0 && s->set.limit < n_drawn)
        n_drawn = s->set.limit; /* no more than are used */
    if (s->is_builtin)
        status =
            qnn_dataset_open_builtin(&plain, s->ctx,
                                     &(qnn_builtin_opts){.n_items = n_drawn,
                                                         .height = size,
                                                         .width = size,
                                                         .seed = (uint64_t)s->set.builtin_seed});
    else
        status = qnn_dataset_open_folder(&plain, s->ctx, s->set.data,
                                         &(qnn_image_folder_opts){.height = size, .width = size});
    if (status != QNN_OK)
        return fail(s, "--data");
    s->data = plain;
    if (s->set.cache_mb > 0) {
        if (qnn_dataset_cache(&cached, s->ctx, plain, (size_t)s->set.cache_mb << 20) != QNN_OK)
            return fail(s, "--data");
        s->data = cached;
    }
    s->n_classes = qnn_dataset_classes(s->data);
    study_line("Data: %s", qnn_dataset_description(s->data));
    /* Drawings cannot fail: they are only made beforehand, so that the first method to train has
     * them as ready as the others do. */
    if ((!s->is_builtin || s->set.cache_mb > 0) && (rc = scan(s)) != 0)
        return rc;
    return split(s);
}

void study_data_close(study *s)
{
    free(s->indices);
    s->indices = NULL;
    qnn_dataset_free(s->data);
    s->data = NULL;
}

qnn_status study_loader(study *s, qnn_loader **out, int is_train)
{
    const float mean[3] = {(float)s->set.mean_r, (float)s->set.mean_g, (float)s->set.mean_b};
    const float std_dev[3] = {(float)s->set.std_r, (float)s->set.std_g, (float)s->set.std_b};
    const qnn_loader_opts opts = {.batch = (int)s->set.batch,
                                  .shuffle = is_train,
                                  .drop_last = is_train,
                                  .seed = (uint64_t)(s->set.seed + s->repeat),
                                  .n_workers = (int)s->set.workers,
                                  .mean = mean,
                                  .std_dev = std_dev};

    return qnn_loader_create(out, s->ctx, s->data, is_train ? s->indices + s->n_val : s->indices,
                             is_train ? s->n_train : s->n_val, &opts);
}
