/* What people read while it runs and at the end, and the files that programs read. */
#define _POSIX_C_SOURCE 200809L
#include "study.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static double accuracy(const study_result *r) { return 100.0 * r->metrics.accuracy; }
static double precision(const study_result *r) { return 100.0 * r->metrics.precision; }
static double f1(const study_result *r) { return 100.0 * r->metrics.f1; }
static double single_ms(const study_result *r) { return r->single_ms; }
static double batch_ms(const study_result *r) { return r->batch_ms; }
static double size_mb(const study_result *r) { return (double)r->bytes / 1048576.0; }
static double train_s(const study_result *r) { return r->train_s; }

const study_measure study_measures[] = {
    {"accuracy", "Validation accuracy", "%", accuracy, "%.2f"},
    {"precision", "Precision", "%", precision, "%.2f"},
    {"f1", "F1", "%", f1, "%.2f"},
    {"single_latency", "Latency of one image", "ms", single_ms, "%.2f"},
    {"batch_latency", "Latency of a batch", "ms", batch_ms, "%.1f"},
    {"size", "Model file", "MiB", size_mb, "%.2f"},
    {"train_time", "Training or conversion time", "s", train_s, "%.2f"},
};
const int study_n_measures = (int)(sizeof study_measures / sizeof *study_measures);

double study_mean(const study *s, int method, study_value *value, double *deviation, int *n)
{
    double sum = 0.0, squares = 0.0;

    *n = 0;
    for (int r = 0; r < s->set.repeats; r++)
        if (s->result[r][method].is_done) {
            sum += value(&s->result[r][method]);
            ++*n;
        }
    if (*n == 0)
        return 0.0;
    sum /= *n;
    for (int r = 0; r < s->set.repeats; r++)
        if (s->result[r][method].is_done)
            squares += (value(&s->result[r][method]) - sum) * (value(&s->result[r][method]) - sum);
    *deviation = *n > 1 ? sqrt(squares / (*n - 1)) : 0.0;
    return sum;
}

/* ---- while it runs
 * ------------------------------------------------------------------------------------------------------------------------
 */

static void cpu_model(char *out, size_t size)
{
    FILE *const f = fopen("/proc/cpuinfo", "r");
    char line[256];

    (void)snprintf(out, size, "unknown processor");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char *const colon = strchr(line, ':');

        if (strncmp(line, "model name", 10) == 0 && colon != NULL) {
            line[strcspn(line, "\n")] = '\0';
            (void)snprintf(out, size, "%s", colon + 2);
            break;
        }
    }
    if (f != NULL)
        (void)fclose(f);
}

void study_print_header(const study *s)
{
    char cpu[256];

    cpu_model(cpu, sizeof cpu);
    study_line("qnn %s: one network, eight methods", qnn_version());
    study_line("Device cpu: %s, %d threads, %s kernels (f32, int8; f16, bf16 and int4 as storage)",
               cpu, qnn_ctx_threads(s->ctx), qnn_ctx_isa(s->ctx));
    for (int i = 1; qnn_device_name(i) != NULL; i++) {
        const char *why = "";

        if (qnn_device_available(i, &why))
            study_line("Device %s: available", qnn_device_name(i));
        else
            study_line("Device %s: not available, %s", qnn_device_name(i), why);
    }
}

void study_print_result(const study *s, const study_result *r)
{
    if (r->is_skipped) {
        study_line("  skipped: %s", r->reason);
        return;
    }
    study_line("  accuracy %.2f%% [%.2f, %.2f]  precision %.2f%%  F1 %.2f%%",
               100 * r->metrics.accuracy, 100 * r->metrics.accuracy_lo,
               100 * r->metrics.accuracy_hi, 100 * r->metrics.precision, 100 * r->metrics.f1);
    if (r->is_trained)
        study_line("  best epoch %d; last epoch %.2f%%, macro F1 %.2f%%", r->best_epoch,
                   100 * r->last.accuracy, 100 * r->last.f1);
    study_line("  one image %.2f ms +- %.2f  batch of %lld %.1f ms +- %.1f (%.0f images/s)  %.2f "
               "MiB  %.2f s",
               r->single_ms, r->single_spread, (long long)s->set.batch, r->batch_ms,
               r->batch_spread, 1e3 * (double)s->set.batch / r->batch_ms,
               (double)r->bytes / 1048576.0, r->train_s);
}

/* ---- the table
 * ------------------------------------------------------------------------------------------------------------------------------
 */

/* "61.79" or, over several repeats, "61.79+-0.31". */
static const char *cell(const study *s, int method, const study_measure *m, char *buf, size_t size)
{
    double deviation = 0.0;
    int n, used;
    const double mean = study_mean(s, method, m->value, &deviation, &n);

    used = snprintf(buf, size, m->format, mean);
    if (n > 1 && used > 0 && (size_t)used < size) {
        used += snprintf(buf + used, size - (size_t)used, "+-");
        if ((size_t)used < size)
            (void)snprintf(buf + used, size - (size_t)used, m->format, deviation);
    }
    return buf;
}

static const study_result *first_result(const study *s, int method)
{
    for (int r = 0; r < s->set.repeats; r++)
        if (s->result[r][method].is_done)
            return &s->result[r][method];
    return &s->result[0][method];
}

static void print_row(const study *s, int k, int width)
{
    const study_result *const r = first_result(s, k);
    char text[8][48], images[48] = "", interval[32];
    double deviation = 0.0;
    int n;

    if (!r->is_done) {
        printf("%-12s  %s\n", study_methods[k].name, r->reason[0] != '\0' ? r->reason : "not run");
        return;
    }
    for (int i = 0; i < study_n_measures; i++)
        (void)cell(s, k, &study_measures[i], text[i], sizeof text[i]);
    (void)snprintf(images, sizeof images, "%.0f",
                   1e3 * (double)s->set.batch / study_mean(s, k, batch_ms, &deviation, &n));
    (void)snprintf(interval, sizeof interval, "[%.1f, %.1f]", 100 * r->metrics.accuracy_lo,
                   100 * r->metrics.accuracy_hi);
    printf("%-12s %*s %14s %*s %*s %*s %*s %9s %*s %*s\n", study_methods[k].name, width, text[0],
           s->set.repeats > 1 ? "" : interval, width, text[1], width, text[2], width, text[3],
           width + 2, text[4], images, width, text[5], width, text[6]);
}

void study_print_table(const study *s)
{
    const int width = s->set.repeats > 1 ? 14 : 9;

    printf("\n%-12s %*s %14s %*s %*s %*s %*s %9s %*s %*s\n", "method", width, "accuracy%",
           s->set.repeats > 1 ? "" : "95% interval", width, "precis.%", width, "F1%", width,
           "single ms", width + 2, "batch ms", "images/s", width, "MiB", width, "train s");
    for (int k = 0; k < STUDY_N_METHODS; k++)
        if (s->is_wanted[k])
            print_row(s, k, width);
    printf("\nData: %s; %lld training and %lld validation images.\n",
           qnn_dataset_description(s->data), (long long)s->n_train, (long long)s->n_val);
    if (s->fp32_origin[0] != '\0')
        printf("Post-training methods start from %s.\n", s->fp32_origin);
    printf("Trained methods are scored at their best epoch, which the validation images themselves "
           "pick; the last epoch is in results.json.\n");
    if (s->is_wanted[2] || s->is_wanted[3])
        printf("FP16 and BF16 are stored in 16 bits and run on the CPU with f32 sums.\n");
    if (s->is_wanted[7])
        printf("4-bit Sim is stored packed and runs dequantised to f32.\n");
    printf("Precision and F1 are %s averages. Training time includes validation; for post-training "
           "methods it is calibration and conversion. Times are medians, without decoding.\n",
           s->set.average);
    if (s->set.repeats > 1)
        printf("Mean and standard deviation over %lld repeats.\n", (long long)s->set.repeats);
    (void)fflush(stdout);
}

/* ---- files
 * ------------------------------------------------------------------------------------------------------------------------------------
 */

static FILE *open_out(const study *s, const char *name)
{
    char path[2 * STUDY_TEXT_MAX];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/%s", s->set.out, name);
    f = fopen(path, "w");
    if (f == NULL)
        study_error("cannot write %s: %s", path, strerror(errno));
    return f;
}

/* Commas and quotes in a text would break a line of CSV. */
static void csv_text(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text != '\0'; text++) {
        if (*text == '"')
            fputc('"', f);
        fputc(*text, f);
    }
    fputc('"', f);
}

static int write_csv(const study *s)
{
    FILE *const f = open_out(s, "results.csv");

    if (f == NULL)
        return 1;
    fprintf(f, "method,name,repeat,status,accuracy,accuracy_lo,accuracy_hi,precision,recall,f1,"
               "last_accuracy,best_epoch,single_ms,single_spread_ms,"
               "batch_ms,batch_spread_ms,images_per_second,bytes,train_seconds,data,note\n");
    for (int rep = 0; rep < s->set.repeats; rep++)
        for (int k = 0; k < STUDY_N_METHODS; k++) {
            const study_result *const r = &s->result[rep][k];

            if (!s->is_wanted[k])
                continue;
            fprintf(f, "%s,%s,%d,", study_methods[k].key, study_methods[k].name, rep + 1);
            if (r->is_done)
                fprintf(f,
                        "done,%.6f,%.6f,%.6f,%.6f,%.6f,%.6f,%.6f,%d,%.4f,%.4f,%.4f,%.4f,%.1f,%lld,%"
                        ".3f,",
                        r->metrics.accuracy, r->metrics.accuracy_lo, r->metrics.accuracy_hi,
                        r->metrics.precision, r->metrics.recall, r->metrics.f1,
                        r->is_trained ? r->last.accuracy : r->metrics.accuracy, r->best_epoch,
                        r->single_ms, r->single_spread, r->batch_ms, r->batch_spread,
                        1e3 * (double)s->set.batch / r->batch_ms, (long long)r->bytes, r->train_s);
            else
                fprintf(f, "%s,,,,,,,,,,,,,,,,", study_result_status(r));
            csv_text(f, qnn_dataset_description(s->data));
            fputc(',', f);
            csv_text(f, r->is_done ? r->note : r->reason);
            fputc('\n', f);
        }
    return fclose(f) != 0;
}

static int write_curves(const study *s)
{
    FILE *const f = open_out(s, "curves.csv");

    if (f == NULL)
        return 1;
    fprintf(f, "method,repeat,epoch,train_loss,train_accuracy,val_loss,val_accuracy,val_precision,"
               "val_recall,val_f1,lr,train_seconds,val_seconds,is_best,data\n");
    for (int rep = 0; rep < s->set.repeats; rep++)
        for (int k = 0; k < STUDY_N_METHODS; k++)
            for (int i = 0; i < s->result[rep][k].n_curve; i++) {
                const qnn_epoch *const e = &s->result[rep][k].curve[i];

                fprintf(f, "%s,%d,%d,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%.3f,%.3f,%d,",
                        study_methods[k].key, rep + 1, e->epoch, e->train_loss, e->train_accuracy,
                        e->val_loss, e->val.accuracy, e->val.precision, e->val.recall, e->val.f1,
                        (double)e->lr, e->train_seconds, e->val_seconds, e->is_best);
                csv_text(f, qnn_dataset_description(s->data));
                fputc('\n', f);
            }
    return fclose(f) != 0;
}

static json_t *machine_json(const study *s)
{
    char cpu[256];

    cpu_model(cpu, sizeof cpu);
    return json_pack("{s:s, s:i, s:s, s:s, s:s}", "processor", cpu, "threads",
                     qnn_ctx_threads(s->ctx), "isa", qnn_ctx_isa(s->ctx), "compiler",
#if defined(__clang__)
                     "clang " __clang_version__,
#elif defined(__GNUC__)
                     "gcc " __VERSION__,
#else
                     "unknown",
#endif
                     "version", qnn_version());
}

/* Mean and standard deviation of every measure over the repeats that are done. */
static json_t *summary_json(const study *s)
{
    json_t *const all = json_object();

    for (int k = 0; k < STUDY_N_METHODS; k++) {
        json_t *const one = json_object();

        for (int i = 0; i < study_n_measures; i++) {
            double deviation = 0.0, mean;
            int n;

            mean = study_mean(s, k, study_measures[i].value, &deviation, &n);
            if (n > 0)
                (void)json_object_set_new(one, study_measures[i].key,
                                          json_pack("{s:f, s:f, s:i, s:s}", "mean", mean,
                                                    "standard_deviation", deviation, "repeats", n,
                                                    "unit", study_measures[i].unit));
        }
        if (json_object_size(one) > 0)
            (void)json_object_set(all, study_methods[k].key, one);
        json_decref(one);
    }
    return all;
}

static int write_json(const study *s)
{
    json_t *const repeats = json_array(), *root;
    char path[2 * STUDY_TEXT_MAX];
    int rc;

    for (int rep = 0; rep < s->set.repeats; rep++) {
        json_t *const methods = json_array();

        for (int k = 0; k < STUDY_N_METHODS; k++) {
            json_t *j;

            if (!s->is_wanted[k])
                continue;
            j = study_result_json(&s->result[rep][k]);
            (void)json_object_set_new(j, "method", json_string(study_methods[k].key));
            (void)json_object_set_new(j, "name", json_string(study_methods[k].name));
            (void)json_object_set_new(j, "device", json_string(study_methods[k].device));
            (void)json_array_append_new(methods, j);
        }
        (void)json_array_append_new(repeats, methods);
    }
    root = json_pack("{s:s, s:{s:s, s:I, s:I, s:i}, s:o, s:s, s:o, s:o, s:o}", "program",
                     "caltech_bench", "data", "description", qnn_dataset_description(s->data),
                     "training_images", (json_int_t)s->n_train, "validation_images",
                     (json_int_t)s->n_val, "classes", s->n_classes, "machine", machine_json(s),
                     "post_training_start", s->fp32_origin, "settings",
                     study_settings_json(&s->set), "repeats", repeats, "summary", summary_json(s));
    (void)snprintf(path, sizeof path, "%s/results.json", s->set.out);
    rc = root == NULL || json_dump_file(root, path, JSON_INDENT(2)) != 0;
    if (rc != 0)
        study_error("cannot write %s: %s", path, strerror(errno));
    json_decref(root);
    return rc;
}

int study_write_results(const study *s)
{
    const int rc = write_json(s) | write_csv(s) | write_curves(s);

    printf("\nWritten to %s:\n  settings.json, state.json, results.json, results.csv, curves.csv\n",
           s->set.out);
    for (int rep = 0; rep < s->set.repeats; rep++)
        for (int k = 0; k < STUDY_N_METHODS; k++)
            if (s->result[rep][k].is_done)
                printf("  %s\n", s->result[rep][k].file);
    return rc;
}
