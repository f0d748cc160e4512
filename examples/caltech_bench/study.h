/*
 * The eight-method study: one network, eight ways of running it, compared on accuracy, size,
 * latency and training time.
 *
 * study_main.c      order of work           study_settings.c  the table of settings
 * study_options.c   command line            study_data.c      images, split, loaders
 * study_methods.c   the eight methods       study_measure.c   accuracy, latency, size
 * study_report.c    tables, JSON, CSV       study_figures.c   gnuplot
 * study_state.c     what --resume needs     study_progress.c  terminal lines, Ctrl-C
 * study_jpeg.c      figures as JPEG
 */
#ifndef QNN_STUDY_H
#define QNN_STUDY_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <jansson.h>
#include <qnn.h>

#define STUDY_TEXT_MAX     1024
#define STUDY_MAX_EPOCHS   1000
#define STUDY_N_METHODS    8
#define STUDY_FP32_CPU     1 /* its place among the methods */
#define STUDY_MAX_REPEATS  100
#define STUDY_MAX_SETTINGS 96

/* Every setting of a run; study_settings.c has the table that names, bounds and documents each. */
typedef struct study_settings {
    char data[STUDY_TEXT_MAX], out[STUDY_TEXT_MAX], methods[STUDY_TEXT_MAX],
        checkpoint[STUDY_TEXT_MAX];
    char isa[STUDY_TEXT_MAX], weights[STUDY_TEXT_MAX], skip_layers[STUDY_TEXT_MAX],
        dynamic_layers[STUDY_TEXT_MAX], observer[STUDY_TEXT_MAX], average[STUDY_TEXT_MAX];
    char models_dir[STUDY_TEXT_MAX], checkpoints_dir[STUDY_TEXT_MAX], figures_dir[STUDY_TEXT_MAX],
        figure_format[STUDY_TEXT_MAX];
    int64_t epochs, batch, seed, repeats, limit, threads, image_size, kernel, hidden, channels1,
        channels2, channels3;
    int64_t calib_images, calib_batch, warmup, single_runs, batch_runs, cache_mb, workers,
        plateau_patience, builtin_images, builtin_epochs;
    int64_t builtin_seed, figure_width, figure_height, figure_quality;
    double lr, beta1, beta2, eps, weight_decay, clip_norm, plateau_factor, plateau_threshold,
        val_fraction, mean_r, mean_g, mean_b, std_r, std_g, std_b;
    int64_t skip_bad, no_figures, quick;
} study_settings;

typedef struct study_result {
    int is_done, is_skipped, is_failed; /* none of them: not run */
    char reason[256];                   /* of skipping or failing */
    char note[256];                     /* what a reader of the row must know */
    qnn_metrics metrics;
    qnn_metrics last; /* trained methods: the last epoch, scored as it was during training */
    int is_trained, best_epoch;
    double single_ms, single_spread, batch_ms,
        batch_spread; /* medians, and half the distance between the quartiles */
    double train_s;
    int64_t bytes;
    char file[STUDY_TEXT_MAX];
    int n_curve;
    qnn_epoch *curve; /* [n_curve] */
} study_result;

typedef struct study study;

typedef struct study_method {
    const char *key, *name; /* "ptq-static", "PTQ-Static" */
    const char *device, *precision, *weights, *activations;
    int is_trained, needs_calibration, needs_fp32;
    qnn_status (*run)(study *s, study_result *r);
} study_method;
extern const study_method study_methods[STUDY_N_METHODS];

struct study {
    study_settings set;
    char resume[STUDY_TEXT_MAX];
    qnn_ctx *ctx;
    qnn_dataset *data;
    int is_builtin;
    int64_t *indices, n_val, n_train; /* the validation set comes first */
    int n_classes;
    int repeat; /* 0, 1, ... of set.repeats */
    int method; /* that runs now, for headers and progress */
    int is_wanted[STUDY_N_METHODS];
    int n_failed; /* methods that could not finish; the others go on */
    qnn_model *
        fp32; /* best-epoch FP32 model that post-training methods start from; NULL: not there yet */
    char fp32_origin[256];
    study_result result[STUDY_MAX_REPEATS][STUDY_N_METHODS];
    double started; /* seconds, monotonic */
};

/* ---- study_options.c ---- */
/* Exit status to end with, or -1 to go on. Bad options: message on stderr, 2. */
int study_options_parse(study *s, int argc, char **argv);
/* 1 when name is one of the comma-separated list. */
int study_in_list(const char *list, const char *name);

/* ---- study_settings.c: a setting is its place in the table ---- */
int study_setting_by_path(const char *path); /* "train.epochs"; -1: there is none */
int study_setting_by_flag(const char *flag); /* "--epochs"; -1: there is none */
int study_setting_has_operand(int i);
/* Sets one value from text; what names it in messages. 0, or 2 with a message; so do the next. */
int study_setting_set(study_settings *set, int i, const char *what, const char *value);
int study_settings_default(study_settings *set);
/* given: [STUDY_MAX_SETTINGS], 1 for what the user has set. */
int study_settings_quick(study_settings *set, const unsigned char *given);
int study_settings_read(study_settings *set, const char *option, const char *file,
                        unsigned char *given);
/* Names the first setting that differs and matters to results. */
int study_settings_compare(const char *dir, const json_t *mine, const json_t *theirs);
json_t *study_settings_json(const study_settings *set);
void study_settings_help(void);
/* "what: "value" why" on stderr; returns 2. */
int study_fail(const char *what, const char *value, const char *why);

/* ---- study_data.c ---- */
int study_data_open(study *s); /* 0 or the exit status, message printed */
void study_data_close(study *s);
qnn_status study_loader(study *s, qnn_loader **out, int is_train);

/* ---- study_methods.c ---- */
qnn_status study_build(study *s, qnn_model **out); /* the network they share */
void study_methods_list(FILE *f);

/* ---- study_measure.c ---- */
qnn_status study_score(study *s, const qnn_model *m,
                       study_result *r); /* accuracy over the validation set */
qnn_status study_time(study *s, const qnn_model *m, study_result *r); /* latencies */
qnn_status study_save(study *s, qnn_model *m, study_result *r); /* the model's file and its size */

/* ---- study_state.c ---- */
int study_make_folders(study *s);
void study_path(const study *s, char *out, const char *folder, const char *name,
                const char *suffix);
int study_state_save(study *s);
int study_state_load(study *s);
/* The epochs that the present method is resumed from: for it, or of every method and repeat. */
void study_forget_epochs(const study *s);
void study_forget_all_epochs(study *s);
const char *study_result_status(const study_result *r); /* "done" */
json_t *study_result_json(const study_result *r);

/* ---- study_report.c ---- */
void study_print_header(const study *s);
void study_print_result(const study *s, const study_result *r);
void study_print_table(const study *s);
int study_write_results(const study *s);
/* Mean and sample standard deviation over the repeats that are done; n counts them. */
typedef double study_value(const study_result *r);
double study_mean(const study *s, int method, study_value *value, double *deviation, int *n);
typedef struct study_measure {
    const char *key, *title, *unit;
    study_value *value;
    const char *format;
} study_measure;
extern const study_measure study_measures[];
extern const int study_n_measures;

/* ---- study_figures.c ---- */
int study_figures(const study *s);
/* ---- study_jpeg.c ---- */
int study_png_to_jpeg(const study *s, const char *png, const char *jpg);

/* ---- study_progress.c ---- */
double study_now(void);
void study_catch_interrupt(void);
int study_interrupted(void);
/* One live line on a terminal; elsewhere a plain line at most every half minute. */
void study_live(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* One line on stderr, below the program's name. */
void study_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void study_line(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
const char *study_duration(char *buf, size_t size, double seconds);

#endif
