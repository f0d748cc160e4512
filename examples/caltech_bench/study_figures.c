/* Figures by gnuplot: one bar chart a measure, loss and accuracy curves. Scripts and data are kept
 * beside them for restyling. */
#define _POSIX_C_SOURCE 200809L
#include "study.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define GPU_COLOUR "#4C72B0"
#define CPU_COLOUR "#DD8452"

static FILE *open_figure(const study *s, const char *name, const char *suffix)
{
    char path[3 * STUDY_TEXT_MAX];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/%s/%s%s", s->set.out, s->set.figures_dir, name, suffix);
    f = fopen(path, "w");
    if (f == NULL)
        study_error("cannot write %s: %s", path, strerror(errno));
    return f;
}

static void terminal(const study *s, FILE *f, const char *name)
{
    const int is_svg = strcmp(s->set.figure_format, "svg") == 0;

    fprintf(f, "set terminal %s size %lld,%lld %s\n", is_svg ? "svg" : "pngcairo",
            (long long)s->set.figure_width, (long long)s->set.figure_height,
            is_svg ? "background 'white' noenhanced" : "noenhanced");
    fprintf(f, "set output '%s.%s'\n", name, is_svg ? "svg" : "png");
}

/* A gnuplot string: in single quotes nothing is substituted, a quote is written twice. */
static void put_text(FILE *f, const char *text)
{
    fputc('\'', f);
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            fputc('\'', f);
        fputc((unsigned char)*text < ' ' ? ' ' : *text, f);
    }
    fputc('\'', f);
}

/* The data set's name stands below the title. */
static void put_title(const study *s, FILE *f, const char *title)
{
    fprintf(f, "set title '%s'.\"\\n\".", title);
    put_text(f, qnn_dataset_description(s->data));
    fputc('\n', f);
}

/* For the shell, in single quotes; "" when it does not fit. */
static void quote(char *out, size_t size, const char *text)
{
    size_t n = 0;

    out[n++] = '\'';
    for (; *text != '\0' && n + 6 < size; text++) {
        if (*text == '\'') {
            memcpy(out + n, "'\\''", 4);
            n += 4;
        } else {
            out[n++] = *text;
        }
    }
    out[n++] = '\'';
    out[n] = '\0';
    if (*text != '\0')
        out[0] = '\0';
}

/* Runs the script in its folder. */
static int run_gnuplot(const study *s, const char *name)
{
    char folder[2 * STUDY_TEXT_MAX + 2], quoted[4 * STUDY_TEXT_MAX];
    char command[5 * STUDY_TEXT_MAX], png[3 * STUDY_TEXT_MAX], jpg[3 * STUDY_TEXT_MAX];
    int rc;

    (void)snprintf(folder, sizeof folder, "%s/%s", s->set.out, s->set.figures_dir);
    quote(quoted, sizeof quoted, folder);
    (void)snprintf(command, sizeof command, "cd -- %s && gnuplot %s.gp 2>>gnuplot.log", quoted,
                   name);
    rc = system(command);
    if (rc == -1 || !WIFEXITED(rc) || WEXITSTATUS(rc) != 0)
        return 1;
    if (strcmp(s->set.figure_format, "jpg") == 0) {
        (void)snprintf(png, sizeof png, "%s/%s.png", folder, name);
        (void)snprintf(jpg, sizeof jpg, "%s/%s.jpg", folder, name);
        if (study_png_to_jpeg(s, png, jpg) != 0)
            return 1;
    }
    printf("  %s/%s.%s\n", folder, name, s->set.figure_format);
    return 0;
}

/* The figure's script and data; 0 when both are open. */
static int open_pair(const study *s, const char *name, FILE **script, FILE **data)
{
    *script = NULL;
    *data = open_figure(s, name, ".dat");
    if (*data == NULL)
        return 1;
    *script = open_figure(s, name, ".gp");
    if (*script == NULL)
        (void)fclose(*data);
    return *script == NULL;
}

static int close_pair(FILE *script, FILE *data)
{
    int is_bad = ferror(script) || ferror(data);

    is_bad |= fclose(script) != 0;
    is_bad |= fclose(data) != 0;
    return is_bad;
}

static int n_wanted(const study *s)
{
    int n = 0;

    for (int k = 0; k < STUDY_N_METHODS; k++)
        n += s->is_wanted[k];
    return n;
}

/* One row a method that is done; a skipped one keeps its place on the axis and has no bar. */
static void put_bars(const study *s, const study_measure *m, FILE *script, FILE *data)
{
    int place = 0;

    fprintf(data, "# place, value, standard deviation, 0 GPU or 1 CPU, 1 post-training\n");
    fprintf(script, "set xtics (");
    for (int k = 0; k < STUDY_N_METHODS; k++) {
        double deviation = 0.0, mean;
        int n;

        if (!s->is_wanted[k])
            continue;
        mean = study_mean(s, k, m->value, &deviation, &n);
        fprintf(script, "%s'%s' %d", place > 0 ? ", " : "", study_methods[k].name, place);
        if (n > 0)
            fprintf(data, "%d %.9g %.9g %d %d\n", place, mean, deviation,
                    strcmp(study_methods[k].device, "GPU") != 0, !study_methods[k].is_trained);
        place++;
    }
    fprintf(script, ")\nset xrange [-0.6:%.1f]\n", place - 0.4);
}

static int bar_chart(const study *s, const study_measure *m)
{
    const int is_narrow = s->set.figure_width < 110 * n_wanted(s);
    char name[64], title[128];
    FILE *data, *script;

    (void)snprintf(name, sizeof name, "%s_comparison", m->key);
    if (strcmp(m->key, "precision") == 0 || strcmp(m->key, "f1") == 0)
        (void)snprintf(title, sizeof title, "%s, %.16s average", m->title, s->set.average);
    else if (strcmp(m->key, "batch_latency") == 0)
        (void)snprintf(title, sizeof title, "%s of %lld", m->title, (long long)s->set.batch);
    else
        (void)snprintf(title, sizeof title, "%s", m->title);
    if (open_pair(s, name, &script, &data) != 0)
        return 1;
    terminal(s, script, name);
    put_title(s, script, title);
    fprintf(script,
            "set ylabel '%s'\nset border 3\nset ytics nomirror\nset grid ytics lc rgb '#dddddd'\n"
            "set xtics scale 0 nomirror%s\nset boxwidth 0.7\nset style fill border lc rgb 'black'\n"
            "set yrange [0:*]\nset offsets 0,0,graph 0.12,0\n"
            "set key outside bottom center horizontal\n",
            m->unit, is_narrow ? " rotate by -25" : "");
    put_bars(s, m, script, data);
    fprintf(script, "f = '%s.dat'\nplot \\\n", name);
    for (int device = 0; device < 2; device++)
        for (int post = 0; post < 2; post++)
            fprintf(script,
                    "  f using ($4==%d && $5==%d ? $1 : NaN):2 with boxes fs %s lc rgb '%s' title "
                    "'%s, %s', \\\n",
                    device, post, post ? "pattern 4" : "solid 1.0",
                    device ? CPU_COLOUR : GPU_COLOUR, device ? "CPU" : "GPU",
                    post ? "post-training" : "trained");
    if (s->set.repeats > 1)
        fprintf(script, "  f using 1:2:3 with yerrorbars lc rgb 'black' pt 0 notitle, \\\n");
    fprintf(script, "  f using 1:($2+%s):(sprintf('%s',$2)) with labels offset 0,0.7 notitle\n",
            s->set.repeats > 1 ? "$3" : "0", m->format);
    return close_pair(script, data) != 0 ? 1 : run_gnuplot(s, name);
}

/* FP32 as in the bar charts, QAT apart from it. */
static const char *curve_colour(int method)
{
    return strcmp(study_methods[method].device, "GPU") == 0 ? GPU_COLOUR
           : method == STUDY_FP32_CPU                       ? CPU_COLOUR
                                                            : "#55A868";
}

/* Training and validation of each trained method of the first repeat. */
static int curves(const study *s, const char *name, const char *quantity, const char *unit,
                  int first_column)
{
    static const char *const labels[] = {"training", "validation"};
    char title[128];
    FILE *data, *script;
    int block = 0;

    (void)snprintf(title, sizeof title, "%s%s", quantity,
                   s->set.repeats > 1 ? ", first repeat" : "");
    if (open_pair(s, name, &script, &data) != 0)
        return 1;
    terminal(s, script, name);
    put_title(s, script, title);
    fprintf(script,
            "set xlabel 'epoch'\nset ylabel '%s'\nset grid lc rgb '#dddddd'\nset border 3\n"
            "set tics nomirror\nset xtics %d\nset xrange [0.9:%.1f]\n"
            "set key outside bottom center horizontal\nf = '%s.dat'\nplot \\\n",
            unit, (int)s->set.epochs / 20 + 1, (double)s->set.epochs + 0.1, name);
    for (int k = 0; k < STUDY_N_METHODS; k++) {
        const study_result *const r = &s->result[0][k];

        if (r->n_curve == 0)
            continue;
        for (int c = 0; c < 2; c++)
            fprintf(script,
                    "  f index %d using 1:%d with linespoints lw 2 pt %d dt %d lc rgb '%s' title "
                    "'%s, %s', \\\n",
                    block, first_column + c, c == 0 ? 7 : 6, c + 1, curve_colour(k),
                    study_methods[k].name, labels[c]);
        fprintf(data, "# %s: epoch, loss of training, of validation, accuracy alike\n",
                study_methods[k].name);
        for (int i = 0; i < r->n_curve; i++)
            fprintf(data, "%d %.9g %.9g %.9g %.9g\n", r->curve[i].epoch, r->curve[i].train_loss,
                    r->curve[i].val_loss, 100 * r->curve[i].train_accuracy,
                    100 * r->curve[i].val.accuracy);
        fprintf(data, "\n\n");
        block++;
    }
    fprintf(script, "  NaN notitle\n");
    return close_pair(script, data) != 0 ? 1 : run_gnuplot(s, name);
}

int study_figures(const study *s)
{
    char log[3 * STUDY_TEXT_MAX];
    int n_failed = 0, has_bars = 0, has_curves = 0;

    if (s->set.no_figures)
        return 0;
    for (int r = 0; r < s->set.repeats; r++)
        for (int k = 0; k < STUDY_N_METHODS; k++) {
            has_bars |= s->result[r][k].is_done;
            has_curves |= r == 0 && s->result[r][k].n_curve > 0;
        }
    if (!has_bars && !has_curves) {
        printf("No figures: no method has a result\n");
        return 0;
    }
    if (system("command -v gnuplot >/dev/null 2>&1") != 0) {
        printf("No figures: gnuplot is not installed (the tables have all figures' numbers)\n");
        return 0;
    }
    (void)snprintf(log, sizeof log, "%s/%s/gnuplot.log", s->set.out, s->set.figures_dir);
    (void)remove(log);
    for (int i = 0; has_bars && i < study_n_measures; i++)
        n_failed += bar_chart(s, &study_measures[i]);
    if (has_curves) {
        n_failed += curves(s, "loss_curves", "Cross-entropy", "loss", 2);
        n_failed += curves(s, "accuracy_curves", "Accuracy", "%", 4);
    }
    printf("  (each figure with its script, .gp, and its data, .dat)\n");
    if (n_failed > 0)
        study_error("gnuplot failed for %d figures, see %s", n_failed, log);
    return n_failed > 0;
}
