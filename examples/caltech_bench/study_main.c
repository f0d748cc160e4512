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
        study_error("cannot start: %s", qnn_status_name(status));
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

/* A model that quantisation or 16-bit storage has been at would be a wrong start. */
static int is_fp32(const qnn_model *m)
{
    qnn_node_info node;
    qnn_param_info param;

    for (int i = 0; i < qnn_model_n_params(m); i++)
        if (qnn_model_param(m, i, &param) != QNN_OK || param.dtype != QNN_DTYPE_F32)
            return 0;
    for (int i = 0; i < qnn_model_n_nodes(m); i++)
        if (qnn_model_node_info(m, i, &node) != QNN_OK || node.dtype != QNN_DTYPE_F32 ||
            strcmp(node.op, "fake_quant") == 0)
            return 0;
    return 1;
}

/* --checkpoint, or the model that a resumed run has already trained. */
static int load_fp32(study *s, const char *path, const char *what, int status_of_failure)
{
    char why[160] = "is not an FP32 model; its weights or activations are quantised";

    if (qnn_model_load(&s->fp32, s->ctx, path) != QNN_OK) {
        study_error("%s: \"%s\": %s", what, path, qnn_ctx_error(s->ctx));
        return status_of_failure;
    }
    if (!is_network(s, s->fp32))
        (void)snprintf(why, sizeof why, "is not a model of %lldx%lldx3 images and %d classes",
                       (long long)s->set.image_size, (long long)s->set.image_size, s->n_classes);
    else if (is_fp32(s->fp32))
        why[0] = '\0';
    if (why[0] != '\0') {
        (void)study_fail(what, path, why);
        return status_of_failure;
    }
    (void)snprintf(s->fp32_origin, sizeof s->fp32_origin, "the model file %.200s", path);
    return 0;
}

static void print_place(const study *s, int k)
{
    int n_wanted = 0, place = 0;

    for (int i = 0; i < STUDY_N_METHODS; i++) {
        n_wanted += s->is_wanted[i];
        place += s->is_wanted[i] && i <= k;
    }
    study_line("%s", "");
    if (s->set.repeats > 1)
        study_line("[%d/%d] %s, repeat %d of %lld", place, n_wanted, study_methods[k].name,
                   s->repeat + 1, (long long)s->set.repeats);
    else
        study_line("[%d/%d] %s", place, n_wanted, study_methods[k].name);
}

/* What a full disk or memory does to one method it does to the next; any other failure leaves the
 * others standing and becomes the method's row. */
static int fail_method(study *s, study_result *r, qnn_status status)
{
    const char *const key = study_methods[s->method].key;

    study_error("%s: %s: %s", key, qnn_status_name(status), qnn_ctx_error(s->ctx));
    if (status == QNN_ERR_NOMEM || status == QNN_ERR_IO || status == QNN_ERR_DEVICE)
        return 1;
    r->is_failed = 1;
    (void)snprintf(r->reason, sizeof r->reason, "failed: %.200s", qnn_ctx_error(s->ctx));
    s->n_failed++;
    return 0;
}

/* Runs one method; 0, or the exit status that ends the study. */
static int run_method(study *s, int k)
{
    study_result *const r = &s->result[s->repeat][k];
    qnn_status status;
    int rc;

    s->method = k;
    print_place(s, k);
    if (r->is_done) {
        study_line("  done before the interruption");
        study_print_result(s, r);
        return 0;
    }
    if (study_methods[k].needs_fp32 && s->fp32 == NULL) {
        r->is_skipped = 1;
        (void)snprintf(r->reason, sizeof r->reason, "starts from FP32 (CPU), which failed");
        status = QNN_OK;
    } else {
        status = study_methods[k].run(s, r);
    }
    if (status == QNN_ERR_STOPPED) {
        study_line("  interrupted; --resume %s goes on", s->set.out);
        return 130;
    }
    if (status != QNN_OK)
        return fail_method(s, r, status);
    study_print_result(s, r);
    rc = study_state_save(s);
    if (rc == 0)
        study_forget_epochs(s); /* only now: an interruption while scoring costs no training */
    return rc;
}

static int run_repeat(study *s)
{
    const study_result *const trained = &s->result[s->repeat][STUDY_FP32_CPU];
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
    if (rc == 0 && s->resume[0] == '\0')
        study_forget_all_epochs(s);
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
    return rc == 0 && s->n_failed > 0 ? 1 : rc;
}

int main(int argc, char **argv)
{
    study *const s = calloc(1, sizeof *s);
    char duration[32];
    int rc;

    if (s == NULL) {
        study_error("out of memory");
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
