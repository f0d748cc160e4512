/* What --resume needs: settings.json and, after every method, state.json with the results so far.
 */
#define _POSIX_C_SOURCE 200809L
#include "study.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void study_path(const study *s, char *out, const char *folder, const char *name, const char *suffix)
{
    char repeat[16] = "";

    if (s->repeat > 0)
        (void)snprintf(repeat, sizeof repeat, "-r%d", s->repeat + 1);
    if (snprintf(out, STUDY_TEXT_MAX, "%s/%s/%s%s%s", s->set.out, folder, name, repeat, suffix) >=
        STUDY_TEXT_MAX)
        out[0] = '\0'; /* too long for a path: opening it fails with a message */
}

/* mkdir -p */
static int make_folder(const char *path)
{
    char part[2 * STUDY_TEXT_MAX + 2];

    (void)snprintf(part, sizeof part, "%s", path);
    for (char *p = part + 1;; p++) {
        const char c = *p;

        if (c != '/' && c != '\0')
            continue;
        *p = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST) {
            study_error("--out: %s: %s", part, strerror(errno));
            return 2;
        }
        if (c == '\0')
            return 0;
        *p = c;
    }
}

int study_make_folders(study *s)
{
    const char *const folders[] = {"", s->set.models_dir, s->set.checkpoints_dir,
                                   s->set.no_figures ? "" : s->set.figures_dir};
    char path[2 * STUDY_TEXT_MAX + 2];

    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        int rc;

        (void)snprintf(path, sizeof path, "%s%s%s", s->set.out, folders[i][0] != '\0' ? "/" : "",
                       folders[i]);
        if ((rc = make_folder(path)) != 0)
            return rc;
    }
    return 0;
}

void study_forget_epochs(const study *s)
{
    char path[STUDY_TEXT_MAX];

    study_path(s, path, s->set.checkpoints_dir, study_methods[s->method].key, ".ckpt");
    (void)remove(path);
}

/* What an earlier run left in the same folder must not be taken for this one's. */
void study_forget_all_epochs(study *s)
{
    for (s->repeat = 0; s->repeat < STUDY_MAX_REPEATS; s->repeat++)
        for (s->method = 0; s->method < STUDY_N_METHODS; s->method++) {
            char log[STUDY_TEXT_MAX];

            study_forget_epochs(s);
            study_path(s, log, s->set.checkpoints_dir, study_methods[s->method].key, "-epochs.csv");
            (void)remove(log);
        }
    s->repeat = 0;
    s->method = 0;
}

const char *study_result_status(const study_result *r)
{
    return r->is_done ? "done" : r->is_skipped ? "skipped" : r->is_failed ? "failed" : "not run";
}

static json_t *metrics_json(const qnn_metrics *m)
{
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f}", "n", (json_int_t)m->n, "accuracy",
                     m->accuracy, "accuracy_lo", m->accuracy_lo, "accuracy_hi", m->accuracy_hi,
                     "precision", m->precision, "recall", m->recall, "f1", m->f1);
}

static qnn_metrics read_metrics(const json_t *j)
{
    qnn_metrics m;

    m.n = (int64_t)json_integer_value(json_object_get(j, "n"));
    m.accuracy = json_number_value(json_object_get(j, "accuracy"));
    m.accuracy_lo = json_number_value(json_object_get(j, "accuracy_lo"));
    m.accuracy_hi = json_number_value(json_object_get(j, "accuracy_hi"));
    m.precision = json_number_value(json_object_get(j, "precision"));
    m.recall = json_number_value(json_object_get(j, "recall"));
    m.f1 = json_number_value(json_object_get(j, "f1"));
    return m;
}

json_t *study_result_json(const study_result *r)
{
    json_t *const curve = json_array();
    json_t *j;

    for (int i = 0; i < r->n_curve; i++) {
        const qnn_epoch *const e = &r->curve[i];

        (void)json_array_append_new(
            curve,
            json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:b}", "epoch",
                      e->epoch, "train_loss", e->train_loss, "train_accuracy", e->train_accuracy,
                      "val_loss", e->val_loss, "val_accuracy", e->val.accuracy, "val_precision",
                      e->val.precision, "val_recall", e->val.recall, "val_f1", e->val.f1, "lr",
                      (double)e->lr, "train_seconds", e->train_seconds, "val_seconds",
                      e->val_seconds, "is_best", e->is_best));
    }
    if (r->is_skipped || r->is_failed) {
        json_decref(curve);
        return json_pack("{s:s, s:s}", "status", study_result_status(r), "reason", r->reason);
    }
    j = json_pack("{s:s, s:s, s:o, s:f, s:f, s:f, s:f, s:f, s:I, s:s, s:o}", "status",
                  study_result_status(r), "note", r->note, "validation", metrics_json(&r->metrics),
                  "single_ms", r->single_ms, "single_spread_ms", r->single_spread, "batch_ms",
                  r->batch_ms, "batch_spread_ms", r->batch_spread, "train_seconds", r->train_s,
                  "bytes", (json_int_t)r->bytes, "file", r->file, "epochs", curve);
    if (j != NULL && r->is_trained) {
        (void)json_object_set_new(j, "best_epoch", json_integer(r->best_epoch));
        (void)json_object_set_new(j, "last_epoch_validation", metrics_json(&r->last));
    }
    return j;
}

static void copy_text(char *out, size_t size, const json_t *j)
{
    (void)snprintf(out, size, "%s", json_string_value(j) != NULL ? json_string_value(j) : "");
}

static void read_result(study_result *r, const json_t *j)
{
    const char *const status = json_string_value(json_object_get(j, "status"));
    const json_t *const epochs = json_object_get(j, "epochs"),
                        *best = json_object_get(j, "best_epoch");

    memset(r, 0, sizeof *r);
    r->is_skipped = status != NULL && strcmp(status, "skipped") == 0;
    r->is_done = status != NULL && strcmp(status, "done") == 0;
    copy_text(r->reason, sizeof r->reason, json_object_get(j, "reason"));
    copy_text(r->note, sizeof r->note, json_object_get(j, "note"));
    copy_text(r->file, sizeof r->file, json_object_get(j, "file"));
    r->metrics = read_metrics(json_object_get(j, "validation"));
    r->single_ms = json_number_value(json_object_get(j, "single_ms"));
    r->single_spread = json_number_value(json_object_get(j, "single_spread_ms"));
    r->batch_ms = json_number_value(json_object_get(j, "batch_ms"));
    r->batch_spread = json_number_value(json_object_get(j, "batch_spread_ms"));
    r->train_s = json_number_value(json_object_get(j, "train_seconds"));
    r->bytes = (int64_t)json_integer_value(json_object_get(j, "bytes"));
    r->is_trained = best != NULL;
    r->best_epoch = (int)json_integer_value(best);
    r->last = read_metrics(json_object_get(j, "last_epoch_validation"));
    if (json_array_size(epochs) > 0)
        r->curve = calloc(json_array_size(epochs), sizeof *r->curve);
    for (size_t i = 0; r->curve != NULL && i < json_array_size(epochs); i++) {
        const json_t *const e = json_array_get(epochs, i);
        qnn_epoch *const to = &r->curve[r->n_curve++];

        to->epoch = (int)json_integer_value(json_object_get(e, "epoch"));
        to->train_loss = json_number_value(json_object_get(e, "train_loss"));
        to->train_accuracy = json_number_value(json_object_get(e, "train_accuracy"));
        to->val_loss = json_number_value(json_object_get(e, "val_loss"));
        to->val.accuracy = json_number_value(json_object_get(e, "val_accuracy"));
        to->val.precision = json_number_value(json_object_get(e, "val_precision"));
        to->val.recall = json_number_value(json_object_get(e, "val_recall"));
        to->val.f1 = json_number_value(json_object_get(e, "val_f1"));
        to->lr = (float)json_number_value(json_object_get(e, "lr"));
        to->train_seconds = json_number_value(json_object_get(e, "train_seconds"));
        to->val_seconds = json_number_value(json_object_get(e, "val_seconds"));
        to->is_best = json_is_true(json_object_get(e, "is_best"));
    }
}

/* Through a temporary file, so that an interruption leaves the old one or the new one. */
static int dump(const json_t *j, const char *path)
{
    char temporary[STUDY_TEXT_MAX + 8];

    (void)snprintf(temporary, sizeof temporary, "%s.tmp", path);
    if (j == NULL || json_dump_file(j, temporary, JSON_INDENT(2) | JSON_REAL_PRECISION(17)) != 0 ||
        rename(temporary, path) != 0) {
        study_error("cannot write %s: %s", path, strerror(errno));
        return 1;
    }
    return 0;
}

static void top_path(const study *s, char *out, const char *name)
{
    (void)snprintf(out, STUDY_TEXT_MAX, "%.*s/%s", STUDY_TEXT_MAX - 40, s->set.out, name);
}

int study_state_save(study *s)
{
    json_t *const settings = study_settings_json(&s->set), *const repeats = json_array();
    char path[STUDY_TEXT_MAX];
    json_t *state;
    int rc;

    for (int r = 0; r < s->set.repeats; r++) {
        json_t *const one = json_object();

        for (int k = 0; k < STUDY_N_METHODS; k++)
            if (s->result[r][k].is_done)
                (void)json_object_set_new(one, study_methods[k].key,
                                          study_result_json(&s->result[r][k]));
        (void)json_array_append_new(repeats, one);
    }
    top_path(s, path, "settings.json");
    rc = dump(settings, path);
    state = json_pack("{s:O, s:o, s:s}", "settings", settings, "repeats", repeats, "data",
                      qnn_dataset_description(s->data));
    top_path(s, path, "state.json");
    rc |= dump(state, path);
    json_decref(settings);
    json_decref(state);
    return rc;
}

int study_state_load(study *s)
{
    char path[STUDY_TEXT_MAX];
    json_error_t error;
    json_t *state, *mine;
    const json_t *repeats;
    const char *data;
    int rc;

    if (s->resume[0] == '\0')
        return 0;
    top_path(s, path, "state.json");
    state = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (state == NULL) {
        study_error("--resume: %s: %s", path, error.text);
        return 2;
    }
    mine = study_settings_json(&s->set);
    rc = study_settings_compare(s->resume, mine, json_object_get(state, "settings"));
    data = json_string_value(json_object_get(state, "data"));
    if (rc == 0 && (data == NULL || strcmp(data, qnn_dataset_description(s->data)) != 0)) {
        study_error("--resume: %s was made with %s, not %s", s->resume,
                    data != NULL ? data : "no data", qnn_dataset_description(s->data));
        rc = 2;
    }
    if (rc != 0) {
        json_decref(mine);
        json_decref(state);
        return rc;
    }
    repeats = json_object_get(state, "repeats");
    for (int r = 0; r < s->set.repeats && (size_t)r < json_array_size(repeats); r++)
        for (int k = 0; k < STUDY_N_METHODS; k++) {
            const json_t *const j =
                json_object_get(json_array_get(repeats, (size_t)r), study_methods[k].key);

            if (json_is_object(j))
                read_result(&s->result[r][k], j);
        }
    json_decref(mine);
    json_decref(state);
    return 0;
}
