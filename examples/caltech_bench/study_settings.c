/*
 * Settings: one table names, bounds and documents each; the command line, the configuration file,
 * --help and the resolved settings that a run writes beside its results all come from it.
 */
#include "study.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef enum kind { TEXT, INTEGER, REAL, FLAG } kind;

typedef struct setting {
    const char *path;    /* in the configuration file: "train.epochs" */
    const char *flag;    /* "--epochs", NULL: only in the file */
    const char *operand; /* as --help shows it */
    kind kind;
    size_t offset;
    double lo, hi;
    const char *text;    /* default */
    const char *choices; /* of TEXT, "a|b"; NULL: any */
    const char *help;
    int is_free; /* 1: a resumed run may have another value */
} setting;

#define AT(field) offsetof(study_settings, field)
#define NO_LIMIT  1e15

static const setting table[] = {
    {"data", "--data", "DIR|builtin", TEXT, AT(data), 0, 0, "", NULL,
     "image folder, or the library's own drawings (default: CALTECH101_DIR, then data/caltech101, "
     "then builtin)",
     0},
    {"out", "--out", "DIR", TEXT, AT(out), 0, 0, "results", NULL,
     "folder for everything that is written", 1},
    {"methods", "--methods", "LIST", TEXT, AT(methods), 0, 0,
     "fp32-gpu,fp32-cpu,fp16,bf16,ptq-dynamic,ptq-static,qat,int4-sim", NULL,
     "comma-separated, see --list-methods", 1},
    {"checkpoint", "--checkpoint", "FILE", TEXT, AT(checkpoint), 0, 0, "", NULL,
     "FP32 model file that the post-training methods start from", 0},
    {"train.epochs", "--epochs", "N", INTEGER, AT(epochs), 0, STUDY_MAX_EPOCHS, "0", NULL,
     "epochs of FP32 and of QAT (0: 10, or builtin.epochs with built-in data)", 0},
    {"train.batch", "--batch", "N", INTEGER, AT(batch), 1, 1024, "64", NULL,
     "batch of training, scoring and batch timing", 0},
    {"train.lr", "--lr", "X", REAL, AT(lr), 1e-8, 10, "0.001", NULL, "Adam's learning rate", 0},
    {"train.beta1", NULL, NULL, REAL, AT(beta1), 1e-6, 0.999999, "0.9", NULL,
     "Adam's average of gradients", 0},
    {"train.beta2", NULL, NULL, REAL, AT(beta2), 1e-6, 0.999999, "0.999", NULL,
     "Adam's average of their squares", 0},
    {"train.eps", NULL, NULL, REAL, AT(eps), 1e-30, 1, "1e-08", NULL, "Adam's epsilon", 0},
    {"train.weight_decay", NULL, NULL, REAL, AT(weight_decay), 0, 10, "0", NULL,
     "L2, added to the gradient", 0},
    {"train.clip_norm", NULL, NULL, REAL, AT(clip_norm), 0, 1e9, "1", NULL,
     "largest gradient norm, 0: no clipping", 0},
    {"train.plateau_factor", NULL, NULL, REAL, AT(plateau_factor), 0, 0.999, "0.1", NULL,
     "learning rate's factor when validation error stalls, 0: never", 0},
    {"train.plateau_patience", NULL, NULL, INTEGER, AT(plateau_patience), 0, 1000, "3", NULL,
     "epochs without improvement before that", 0},
    {"train.plateau_threshold", NULL, NULL, REAL, AT(plateau_threshold), 0, 1, "0.0001", NULL,
     "relative improvement that counts", 0},
    {"seed", "--seed", "N", INTEGER, AT(seed), 0, NO_LIMIT, "0", NULL,
     "of the split, the order and the initial parameters; repeat k adds k to the last two", 0},
    {"repeats", "--repeats", "N", INTEGER, AT(repeats), 1, STUDY_MAX_REPEATS, "1", NULL,
     "whole runs with other seeds; the table then has mean and standard deviation", 1},
    {"limit", "--limit", "N", INTEGER, AT(limit), 0, NO_LIMIT, "0", NULL,
     "images in all, 0: every one", 0},
    {"val_fraction", NULL, NULL, REAL, AT(val_fraction), 0.01, 0.9, "0.2", NULL,
     "share of the images that validate", 0},
    {"threads", "--threads", "N", INTEGER, AT(threads), 0, 256, "0", NULL,
     "0: the processors this process may use", 1},
    {"isa", "--isa", "NAME", TEXT, AT(isa), 0, 0, "", NULL,
     "cap on the instruction set: ref, avx2, avx512, avx512vnni", 1},
    {"quant.weights", "--weights", "KIND", TEXT, AT(weights), 0, 0, "per-channel",
     "per-channel|per-tensor", "scales of int8 weights: per-channel or per-tensor", 0},
    {"quant.calib_images", "--calib", "N", INTEGER, AT(calib_images), 1, 1e6, "200", NULL,
     "calibration images, the first of the training split", 0},
    {"quant.calib_batch", NULL, NULL, INTEGER, AT(calib_batch), 1, 1024, "32", NULL,
     "batch of calibration", 0},
    {"quant.observer", NULL, NULL, TEXT, AT(observer), 0, 0, "min-max", "min-max|moving-average",
     "ranges of PTQ-Static's activations over the calibration batches", 0},
    {"quant.dynamic_layers", NULL, NULL, TEXT, AT(dynamic_layers), 0, 0, "fc1,fc2", NULL,
     "linear layers that PTQ-Dynamic quantises", 0},
    {"quant.skip_layers", NULL, NULL, TEXT, AT(skip_layers), 0, 0, "", NULL,
     "comma-separated layers that stay float in PTQ-Dynamic, PTQ-Static and QAT", 0},
    {"model.image_size", NULL, NULL, INTEGER, AT(image_size), 16, 512, "128", NULL,
     "images are resized to this square", 0},
    {"model.channels1", NULL, NULL, INTEGER, AT(channels1), 1, 1024, "32", NULL, "filters of conv1",
     0},
    {"model.channels2", NULL, NULL, INTEGER, AT(channels2), 1, 1024, "64", NULL, "filters of conv2",
     0},
    {"model.channels3", NULL, NULL, INTEGER, AT(channels3), 1, 1024, "128", NULL,
     "filters of conv3", 0},
    {"model.hidden", NULL, NULL, INTEGER, AT(hidden), 1, 65536, "256", NULL, "units of fc1", 0},
    {"model.kernel", NULL, NULL, INTEGER, AT(kernel), 1, 15, "3", NULL,
     "side of every convolution's kernel, odd", 0},
    {"normalise.mean_r", NULL, NULL, REAL, AT(mean_r), -10, 10, "0.485", NULL,
     "(pixel / 255 - mean) / std", 0},
    {"normalise.mean_g", NULL, NULL, REAL, AT(mean_g), -10, 10, "0.456", NULL, "", 0},
    {"normalise.mean_b", NULL, NULL, REAL, AT(mean_b), -10, 10, "0.406", NULL, "", 0},
    {"normalise.std_r", NULL, NULL, REAL, AT(std_r), 1e-3, 100, "0.229", NULL, "", 0},
    {"normalise.std_g", NULL, NULL, REAL, AT(std_g), 1e-3, 100, "0.224", NULL, "", 0},
    {"normalise.std_b", NULL, NULL, REAL, AT(std_b), 1e-3, 100, "0.225", NULL, "", 0},
    {"timing.warmup", NULL, NULL, INTEGER, AT(warmup), 0, 10000, "5", NULL, "runs before timing",
     1},
    {"timing.single_runs", NULL, NULL, INTEGER, AT(single_runs), 1, 100000, "100", NULL,
     "timed runs of one image", 1},
    {"timing.batch_runs", NULL, NULL, INTEGER, AT(batch_runs), 1, 100000, "20", NULL,
     "timed runs of a batch", 1},
    {"metrics.average", NULL, NULL, TEXT, AT(average), 0, 0, "macro", "macro|weighted",
     "precision, recall and F1 of the results: classes alike, or by their images (lines and curves "
     "of epochs are macro)",
     0},
    {"data_cache_mb", NULL, NULL, INTEGER, AT(cache_mb), 0, 1e6, "512", NULL,
     "bound on decoded pixels kept in memory, 0: none are", 1},
    {"data_workers", NULL, NULL, INTEGER, AT(workers), 1, 64, "1", NULL,
     "background decoding threads", 1},
    {"skip_bad", "--skip-bad", NULL, FLAG, AT(skip_bad), 0, 1, "0", NULL,
     "leave out files that are not images, count and list them", 0},
    {"builtin.images", NULL, NULL, INTEGER, AT(builtin_images), 100, 1e6, "3000", NULL,
     "images of the built-in data set", 0},
    {"builtin.epochs", NULL, NULL, INTEGER, AT(builtin_epochs), 1, STUDY_MAX_EPOCHS, "5", NULL,
     "epochs with built-in data when --epochs is not given", 0},
    {"builtin.seed", NULL, NULL, INTEGER, AT(builtin_seed), 0, NO_LIMIT, "1", NULL,
     "of the drawings", 0},
    {"folders.models", NULL, NULL, TEXT, AT(models_dir), 0, 0, "models", NULL, "below out", 1},
    {"folders.checkpoints", NULL, NULL, TEXT, AT(checkpoints_dir), 0, 0, "checkpoints", NULL,
     "below out", 1},
    {"folders.figures", NULL, NULL, TEXT, AT(figures_dir), 0, 0, "figures", NULL, "below out", 1},
    {"figures.format", NULL, NULL, TEXT, AT(figure_format), 0, 0, "png", "png|svg|jpg",
     "png, svg or jpg", 1},
    {"figures.quality", NULL, NULL, INTEGER, AT(figure_quality), 1, 100, "90", NULL, "of jpg", 1},
    {"figures.width", NULL, NULL, INTEGER, AT(figure_width), 200, 8000, "1000", NULL, "pixels", 1},
    {"figures.height", NULL, NULL, INTEGER, AT(figure_height), 150, 8000, "560", NULL, "pixels", 1},
    {"no_figures", "--no-figures", NULL, FLAG, AT(no_figures), 0, 1, "0", NULL, "write no figures",
     1},
    {"quick", "--quick", NULL, FLAG, AT(quick), 0, 1, "0", NULL,
     "a look in a minute: 1 epoch, 300 images, 20 calibration images, short timing, where not "
     "given",
     1},
};
#define N_SETTINGS ((int)(sizeof table / sizeof *table))
_Static_assert(sizeof table / sizeof *table <= STUDY_MAX_SETTINGS,
               "STUDY_MAX_SETTINGS is too small");

/* What --quick changes unless the same setting was given. */
static const struct quick {
    const char *path, *value;
} quick_values[] = {
    {"train.epochs", "1"},        {"limit", "300"},           {"quant.calib_images", "20"},
    {"timing.single_runs", "10"}, {"timing.batch_runs", "3"}, {"timing.warmup", "1"},
};

int study_fail(const char *what, const char *value, const char *why)
{
    study_error("%s: \"%s\" %s", what, value, why);
    return 2;
}

static void *field(study_settings *set, const setting *t) { return (char *)set + t->offset; }

static const void *const_field(const study_settings *set, const setting *t)
{
    return (const char *)set + t->offset;
}

static int is_choice(const char *choices, const char *value)
{
    const size_t len = strlen(value);

    for (const char *at = choices; at != NULL;
         at = strchr(at, '|') != NULL ? strchr(at, '|') + 1 : NULL)
        if (strncmp(at, value, len) == 0 && (at[len] == '|' || at[len] == '\0'))
            return 1;
    return 0;
}

int study_setting_set(study_settings *set, int i, const char *what, const char *value)
{
    const setting *const t = &table[i];
    char why[160], *end;
    double number;

    if (t->kind == TEXT) {
        if (strlen(value) >= STUDY_TEXT_MAX)
            return study_fail(what, value, "is too long");
        if (t->choices != NULL && !is_choice(t->choices, value)) {
            (void)snprintf(why, sizeof why, "is not one of %s", t->choices);
            return study_fail(what, value, why);
        }
        (void)snprintf(field(set, t), STUDY_TEXT_MAX, "%s", value);
        return 0;
    }
    errno = 0;
    number = strtod(value, &end);
    if (end == value || *end != '\0' || errno != 0 || !isfinite(number))
        return study_fail(what, value, "is not a number");
    if (t->kind != REAL && number != floor(number))
        return study_fail(what, value, "is not a whole number");
    if (number < t->lo || number > t->hi) {
        (void)snprintf(why, sizeof why, "is outside %g..%g", t->lo, t->hi);
        return study_fail(what, value, why);
    }
    if (t->kind == REAL)
        *(double *)field(set, t) = number;
    else
        *(int64_t *)field(set, t) = (int64_t)number;
    return 0;
}

int study_setting_by_path(const char *path)
{
    for (int i = 0; i < N_SETTINGS; i++)
        if (strcmp(table[i].path, path) == 0)
            return i;
    return -1;
}

int study_setting_by_flag(const char *flag)
{
    for (int i = 0; i < N_SETTINGS; i++)
        if (table[i].flag != NULL && strcmp(table[i].flag, flag) == 0)
            return i;
    return -1;
}

int study_setting_has_operand(int i) { return table[i].kind != FLAG; }

int study_settings_default(study_settings *set)
{
    for (int i = 0, rc; i < N_SETTINGS; i++)
        if ((rc = study_setting_set(set, i, table[i].path, table[i].text)) != 0)
            return rc;
    return 0;
}

int study_settings_quick(study_settings *set, const unsigned char *given)
{
    for (size_t k = 0; k < sizeof quick_values / sizeof *quick_values; k++) {
        const int i = study_setting_by_path(quick_values[k].path);
        const int rc = given[i] ? 0 : study_setting_set(set, i, "--quick", quick_values[k].value);

        if (rc != 0)
            return rc;
    }
    return 0;
}

/* ---- configuration file ---------------------------------------------------------------------- */

static int wrong_type(const char *what, const json_t *value, const char *why)
{
    char *const text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);

    study_error("%s: %s %s", what, text != NULL ? text : "the value", why);
    free(text);
    return 2;
}

static int read_value(study_settings *set, int i, const char *what, const json_t *value)
{
    char text[64];

    switch (table[i].kind) {
    case TEXT:
        if (!json_is_string(value))
            return wrong_type(what, value, "must be text");
        return study_setting_set(set, i, what, json_string_value(value));
    case FLAG:
        if (!json_is_boolean(value))
            return wrong_type(what, value, "must be true or false");
        return study_setting_set(set, i, what, json_is_true(value) ? "1" : "0");
    case INTEGER:
    case REAL:
        break;
    }
    if (!json_is_number(value))
        return wrong_type(what, value, "must be a number");
    (void)snprintf(text, sizeof text, "%.17g", json_number_value(value));
    return study_setting_set(set, i, what, text);
}

static int is_group(const char *name)
{
    const size_t len = strlen(name);

    for (int i = 0; i < N_SETTINGS; i++)
        if (strncmp(table[i].path, name, len) == 0 && table[i].path[len] == '.')
            return 1;
    return 0;
}

static int read_object(study_settings *set, const char *file, json_t *object, const char *prefix,
                       unsigned char *given)
{
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value)
    {
        char path[256], what[STUDY_TEXT_MAX];
        int i, rc;

        (void)snprintf(path, sizeof path, "%s%s%s", prefix, prefix[0] != '\0' ? "." : "", key);
        (void)snprintf(what, sizeof what, "%s: %s", file, path);
        if (json_is_object(value) && prefix[0] == '\0' && is_group(key)) {
            if ((rc = read_object(set, file, value, path, given)) != 0)
                return rc;
            continue;
        }
        if ((i = study_setting_by_path(path)) < 0)
            return study_fail(file, path, "is not a setting; --help lists them");
        if ((rc = read_value(set, i, what, value)) != 0)
            return rc;
        given[i] = 1;
    }
    return 0;
}

int study_settings_read(study_settings *set, const char *option, const char *file,
                        unsigned char *given)
{
    json_error_t error;
    json_t *const root = json_load_file(file, JSON_REJECT_DUPLICATES, &error);
    int rc;

    if (root == NULL) {
        if (error.line > 0)
            study_error("%s: %s, line %d: %s", option, file, error.line, error.text);
        else
            study_error("%s: %s", option, error.text); /* it has the path */
        return 2;
    }
    rc = json_is_object(root) ? read_object(set, file, root, "", given)
                              : study_fail(option, file, "does not hold a JSON object");
    json_decref(root);
    return rc;
}

static json_t *value_json(const study_settings *set, const setting *t)
{
    switch (t->kind) {
    case TEXT:
        return json_string(const_field(set, t));
    case REAL:
        return json_real(*(const double *)const_field(set, t));
    case FLAG:
        return json_boolean(*(const int64_t *)const_field(set, t) != 0);
    case INTEGER:
        return json_integer(*(const int64_t *)const_field(set, t));
    }
    return NULL;
}

json_t *study_settings_json(const study_settings *set)
{
    json_t *const root = json_object();

    for (int i = 0; i < N_SETTINGS; i++) {
        const char *const dot = strchr(table[i].path, '.');
        char group[64];
        json_t *parent = root;

        if (dot != NULL) {
            (void)snprintf(group, sizeof group, "%.*s", (int)(dot - table[i].path), table[i].path);
            parent = json_object_get(root, group);
            if (parent == NULL) {
                parent = json_object();
                (void)json_object_set_new(root, group, parent);
            }
        }
        (void)json_object_set_new(parent, dot != NULL ? dot + 1 : table[i].path,
                                  value_json(set, &table[i]));
    }
    return root;
}

static const json_t *look_up(const json_t *root, const char *path)
{
    const char *const dot = strchr(path, '.');
    char group[64];

    if (dot == NULL)
        return json_object_get(root, path);
    (void)snprintf(group, sizeof group, "%.*s", (int)(dot - path), path);
    return json_object_get(json_object_get(root, group), dot + 1);
}

/* 0, or 2 with a message. A file from before a setting existed had its default. */
static int compare(const setting *t, const char *dir, const json_t *now, const json_t *then)
{
    char *a, *b;

    if (t->is_free || json_equal(now, then))
        return 0;
    a = json_dumps(now, JSON_ENCODE_ANY);
    b = json_dumps(then, JSON_ENCODE_ANY);
    study_error("--resume: %s was made with %s %s, not %s", dir, t->path, b != NULL ? b : "?",
                a != NULL ? a : "?");
    free(a);
    free(b);
    return 2;
}

int study_settings_compare(const char *dir, const json_t *mine, const json_t *theirs)
{
    study_settings usual;
    json_t *defaults;
    int rc = study_settings_default(&usual);

    defaults = study_settings_json(&usual);
    for (int i = 0; i < N_SETTINGS && rc == 0; i++) {
        const json_t *const then = look_up(theirs, table[i].path);

        rc = compare(&table[i], dir, look_up(mine, table[i].path),
                     then != NULL ? then : look_up(defaults, table[i].path));
    }
    json_decref(defaults);
    return rc;
}

/* ---- help --------------------------------------------------------------------------------------
 */

/* "[0.001; 1e-08..10]" */
static void print_bounds(const setting *t)
{
    if (t->kind == INTEGER || t->kind == REAL) {
        printf(" [%s; %g..", t->text, t->lo);
        if (t->hi < NO_LIMIT)
            printf("%g", t->hi);
        printf("]\n");
    } else if (t->kind == TEXT && t->text[0] != '\0') {
        printf(" [%s]\n", t->text);
    } else {
        printf("\n");
    }
}

void study_settings_help(void)
{
    printf("caltech_bench: eight ways of running one small network, compared on accuracy, size, "
           "latency and training time\n\n"
           "usage: caltech_bench [options]\n\n");
    for (int i = 0; i < N_SETTINGS; i++) {
        char left[80];

        if (table[i].flag == NULL)
            continue;
        (void)snprintf(left, sizeof left, "%s %s", table[i].flag,
                       table[i].operand != NULL ? table[i].operand : "");
        printf("  %-24s %s", left, table[i].help);
        print_bounds(&table[i]);
    }
    printf(
        "  --config FILE.json       settings from a file; options given on the command line win\n"
        "  --resume DIR             go on with the interrupted run in DIR\n"
        "  --list-methods           the methods and what each needs\n"
        "  --help, --version\n\n"
        "settings of the file, \"train.lr\" being {\"train\": {\"lr\": 0.001}} (the run writes all "
        "of them, resolved, to OUT/settings.json):\n");
    for (int i = 0; i < N_SETTINGS; i++) {
        printf("  %-24s %s", table[i].path, table[i].help);
        print_bounds(&table[i]);
    }
}
