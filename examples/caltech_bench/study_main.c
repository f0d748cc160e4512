/* The study from start to end: settings, data, methods in order, table, files. */
#define _POSIX_C_SOURCE 200809L
#include "study.h"

#include <stdlib.h>
#include <string.h>

static int open_context(study *s)
{
    const qnn_ctx_opts opts = {.n_threads = (int)s->set.threads,
                               .isa = s->set.isa[0] != '\0' ? s->set.isa : NULL,
                               .seed = (uint64_t)(s->set.seed + s->repeat)};
    const qnn_status status = qnn_ctx_create(&s->ctx, &opts);

    if (status != QNN_OK)
        fprintf(stderr, "caltech_bench: cannot start: %s\n", qnn_status_name(status));
    return status == QNN_OK ? 0 : 1;
}

static int is_network(const study *s, const qnn_model *m)
{
    qnn_node_info in, out;

    if (qnn_model_n_inputs(m) != 1 || qnn_model_n_outputs(m) != 1 ||
        qnn_model_node_info(m, qnn_model_input(m, 0), &in) != QNN_OK ||
        qnn_model_node_info(m, qnn_model_output(m, 0), &out) != QNN_OK)
        return 0;
    return in.shape.rank == 3 && in.shape.dim[0] == s->set.image_size &&
           in.shape.dim[1] == s->set.image_size && in.shape.dim[2] == 3 && out.shape.rank == 1 &&
           out.shape.dim[0] == s->n_classes;
}

/* --checkpoint, or the model that a resumed run has already trained. */
static int load_fp32(study *s, const char *path, const char *what, int status_of_failure)
{
    if (qnn_model_load(&s->fp32, s->ctx, path) != QNN_OK) {
        fprintf(stderr, "caltech_bench: %s: %s\n", what, qnn_ctx_error(s->ctx));
        return status_of_failure;
    }
    if (!is_network(s, s->fp32)) {
        fprintf(stderr,
                "caltech_bench: %s: %s is not a model of %lldx%lldx3 images and %d classes\n", what,
                path, (long long)s->set.image_size, (long long)s->set.image_size, s->n_classes);
        return status_of_failure;
    }
    (void)snprintf(s->fp32_origin, sizeof s->fp32_origin, "the model file %.200s", path);
    return 0;
}

/* Runs one method; 0, or the exit status that ends the study. */
static int run_method(study *s, int k)
{
    study_result *const r = &s->result[s->repeat][k];
    int n_wanted = 0, place = 0;
    qnn_status status;

    for (int i = 0; i < STUDY_N_METHODS; i++) {
        n_wanted += s->is_wanted[i];
        place += s->is_wanted[i] && i <= k;
    }
    s->method = k;
    study_line("%s", "");
    if (s->set.repeats > 1)
        study_line("[%d/%d] %s, repeat %d of %lld", place, n_wanted, study_methods[k].name,
                   s->repeat + 1, (long long)s->set.repeats);
    else
        study_line("[%d/%d] %s", place, n_wanted, study_methods[k].name);
    if (r->is_done) {
        study_line("  done before the interruption");
        study_print_result(s, r);
        return 0;
    }
    status = study_methods[k].run(s, r);
    if (status == QNN_ERR_STOPPED) {
        study_line("  interrupted; --resume %s goes on", s->set.out);
        return 130;
    }
    if (status != QNN_OK) {
        study_line("  failed");
        fprintf(stderr, "caltech_bench: %s: %s: %s\n", study_methods[k].key,
                qnn_status_name(status), qnn_ctx_error(s->ctx));
        return 1;
    }
    study_print_result(s, r);
    return study_state_save(s);
}

static int run_repeat(study *s)
{
    const study_result *const trained = &s->result[s->repeat][1];
    int rc = 0;

    if (s->set.checkpoint[0] != '\0')
        rc = load_fp32(s, s->set.checkpoint, "--checkpoint", 2);
    else if (trained->is_done)
        rc = load_fp32(s, trained->file, "--resume", 1);
    if (rc == 0 && s->set.checkpoint[0] == '\0' && trained->is_done)
        (void)snprintf(s->fp32_origin, sizeof s->fp32_origin, "the best epoch (%d) of FP32 (CPU)",
                       trained->best_epoch);
    for (int k = 0; rc == 0 && k < STUDY_N_METHODS; k++)
        if (s->is_wanted[k])
            rc = run_method(s, k);
    qnn_model_free(s->fp32);
    s->fp32 = NULL;
    return rc;
}

/* A checkpoint that cannot be used is a wrong option: found out before anything is written. */
static int check_checkpoint(study *s)
{
    int rc = 0;

    if (s->set.checkpoint[0] != '\0')
        rc = load_fp32(s, s->set.checkpoint, "--checkpoint", 2);
    qnn_model_free(s->fp32);
    s->fp32 = NULL;
    return rc;
}

static int run_all(study *s)
{
    qnn_ctx *const first = s->ctx; /* the data set keeps it */
    int rc = study_data_open(s);

    if (rc == 0)
        rc = check_checkpoint(s);
    if (rc == 0)
        rc = study_state_load(s);
    if (rc == 0)
        rc = study_make_folders(s);
    if (rc == 0)
        rc = study_state_save(s);
    if (rc != 0)
        return rc;
    study_line("%lld training images, %lld validation images, %d classes, %lld epochs",
               (long long)s->n_train, (long long)s->n_val, s->n_classes, (long long)s->set.epochs);
    for (int r = 0; rc == 0 && r < s->set.repeats; r++) {
        s->repeat = r;
        if (r > 0 && (rc = open_context(s)) != 0) {
            s->ctx = first;
            break;
        }
        rc = run_repeat(s);
        if (s->ctx != first)
            qnn_ctx_free(s->ctx);
        s->ctx = first;
    }
    study_print_table(s);
    if (study_write_results(s) != 0 && rc == 0)
        rc = 1;
    if (study_figures(s) != 0 && rc == 0)
        rc = 1;
    return rc;
}

int main(int argc, char **argv)
{
    study *const s = calloc(1, sizeof *s);
    char duration[32];
    int rc;

    if (s == NULL) {
        fprintf(stderr, "caltech_bench: out of memory\n");
        return 1;
    }
    rc = study_options_parse(s, argc, argv);
    if (rc < 0) {
        s->started = study_now();
        study_catch_interrupt();
        rc = open_context(s);
        if (rc == 0) {
            study_print_header(s);
            rc = run_all(s);
            study_data_close(s);
            qnn_ctx_free(s->ctx);
            study_line("%s after %s", rc == 0 ? "Done" : "Ended",
                       study_duration(duration, sizeof duration, study_now() - s->started));
        }
    }
    for (int r = 0; r < STUDY_MAX_REPEATS; r++)
        for (int k = 0; k < STUDY_N_METHODS; k++)
            free(s->result[r][k].curve);
    free(s);
    return rc;
}
