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
        fprintf(stderr, "caltech_bench: cannot write %s: %s\n", path, strerror(errno));
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

/* Runs the script in its folder. */
static int run_gnuplot(const study *s, const char *name)
{
    char command[4 * STUDY_TEXT_MAX], quoted[2 * STUDY_TEXT_MAX];
    char png[3 * STUDY_TEXT_MAX], jpg[3 * STUDY_TEXT_MAX];
    size_t n = 0;
    int rc;

    for (const char *p = s->set.out; *p != '\0' && n < sizeof quoted - 8;
         p++) { /* a quote in a folder's name ends no string */
        if (*p == '\'') {
            memcpy(quoted + n, "'\\''", 4);
            n += 4;
        } else {
            quoted[n++] = *p;
        }
    }
    quoted[n] = '\0';
    (void)snprintf(command, sizeof command, "cd '%s/%s' && gnuplot '%s.gp' 2>gnuplot.log", quoted,
                   s->set.figures_dir, name);
    rc = system(command);
    if (rc == -1 || !WIFEXITED(rc) || WEXITSTATUS(rc) != 0)
        return 1;
    if (strcmp(s->set.figure_format, "jpg") != 0)
        return 0;
    (void)snprintf(png, sizeof png, "%s/%s/%s.png", s->set.out, s->set.figures_dir, name);
    (void)snprintf(jpg, sizeof jpg, "%s/%s/%s.jpg", s->set.out, s->set.figures_dir, name);
    return study_png_to_jpeg(s, png, jpg);
}

static int bar_chart(const study *s, const study_measure *m)
{
    char name[64];
    FILE *data, *script;
    int place = 0;

    (void)snprintf(name, sizeof name, "%s_comparison", m->key);
    data = open_figure(s, name, ".dat");
    script = data == NULL ? NULL : open_figure(s, name, ".gp");
    if (script == NULL) {
        if (data != NULL)
            (void)fclose(data);
        return 1;
    }
    terminal(s, script, name);
    fprintf(script,
            "set title '%s, %s'\nset ylabel '%s'\nset style fill solid 0.9 border lc rgb "
            "'black'\nset boxwidth 0.7\nset grid ytics lc rgb '#dddddd'\n"
            "set yrange [0:*]\nset offsets 0,0,graph 0.12,0\nset xtics rotate by -20 nomirror\nset "
            "border 3\nset key outside bottom center horizontal\n",
            m->title, s->is_builtin ? "built-in shapes" : "validation images of the folder",
            m->unit);
    fprintf(script, "set xtics (");
    for (int k = 0; k < STUDY_N_METHODS; k++) {
        double deviation = 0.0, mean;
        int n;

        if (!s->is_wanted[k])
            continue;
        mean = study_mean(s, k, m->value, &deviation, &n);
        fprintf(script, "%s'%s' %d", place > 0 ? ", " : "", study_methods[k].name, place);
        /* columns: place, value, deviation, device (0 GPU, 1 CPU), 1 when post-training; a skipped
         * method is a gap */
        if (n > 0)
            fprintf(data, "%d %.9g %.9g %d %d\n", place, mean, deviation,
                    strcmp(study_methods[k].device, "GPU") != 0, !study_methods[k].is_trained);
        place++;
    }
    fprintf(script, ")\nset xrange [-0.6:%.1f]\n", place - 0.4);
    fprintf(script, "f = '%s.dat'\nplot \\\n", name);
    for (int device = 0; device < 2; device++)
        for (int post = 0; post < 2; post++)
            fprintf(script,
                    "  f using ($4==%d && $5==%d ? $1 : NaN):2 with boxes fs %s lc rgb '%s' title "
                    "'%s, %s', \\\n",
                    device, post, post ? "pattern 4" : "solid 0.9",
                    device ? CPU_COLOUR : GPU_COLOUR, device ? "CPU" : "GPU",
                    post ? "post-training" : "trained");
    if (s->set.repeats > 1)
        fprintf(script, "  f using 1:2:3 with yerrorbars lc rgb 'black' pt 0 notitle, \\\n");
    fprintf(script, "  f using 1:2:(sprintf('%s',$2)) with labels offset 0,0.7 notitle\n",
            m->format);
    if (fclose(data) != 0 || fclose(script) != 0)
        return 1;
    return run_gnuplot(s, name);
}

/* One curve for each trained method of the first repeat. */
static int curves(const study *s, const char *name, const char *title, const char *unit,
                  const int *columns, const char *const *labels, int n_columns)
{
    FILE *const data = open_figure(s, name, ".dat");
    FILE *const script = data == NULL ? NULL : open_figure(s, name, ".gp");
    int block = 0;

    if (script == NULL) {
        if (data != NULL)
            (void)fclose(data);
        return 1;
    }
    terminal(s, script, name);
    fprintf(script,
            "set title '%s'\nset xlabel 'epoch'\nset ylabel '%s'\nset grid lc rgb '#dddddd'\nset "
            "border 3\nset tics nomirror\nset xtics 1\n"
            "set key outside bottom center horizontal\nf = '%s.dat'\nplot \\\n",
            title, unit, name);
    for (int k = 0; k < STUDY_N_METHODS; k++) {
        const study_result *const r = &s->result[0][k];

        if (r->n_curve == 0)
            continue;
        for (int c = 0; c < n_columns; c++)
            fprintf(script,
                    "  f index %d using 1:%d with linespoints lw 2 dt %d title '%s, %s', \\\n",
                    block, columns[c], c + 1, study_methods[k].name, labels[c]);
        /* columns: epoch, training loss, validation loss, training accuracy, validation accuracy */
        for (int i = 0; i < r->n_curve; i++)
            fprintf(data, "%d %.9g %.9g %.9g %.9g\n", r->curve[i].epoch, r->curve[i].train_loss,
                    r->curve[i].val_loss, 100 * r->curve[i].train_accuracy,
                    100 * r->curve[i].val.accuracy);
        fprintf(data, "\n\n");
        block++;
    }
    fprintf(script, "  NaN notitle\n");
    if (fclose(data) != 0 || fclose(script) != 0)
        return 1;
    return block == 0 ? 0 : run_gnuplot(s, name);
}

int study_figures(const study *s)
{
    static const int loss_columns[] = {2, 3}, accuracy_columns[] = {4, 5};
    static const char *const labels[] = {"training", "validation"};
    int n_failed = 0, n_done = 0;

    if (s->set.no_figures)
        return 0;
    if (system("command -v gnuplot >/dev/null 2>&1") != 0) {
        printf("No figures: gnuplot is not installed (the tables have all figures' numbers)\n");
        return 0;
    }
    for (int i = 0; i < study_n_measures; i++) {
        const int rc = bar_chart(s, &study_measures[i]);

        n_failed += rc != 0;
        n_done += rc == 0;
    }
    n_failed += curves(s, "loss_curves", "Cross-entropy", "loss", loss_columns, labels, 2) != 0;
    n_failed += curves(s, "accuracy_curves", "Accuracy", "%", accuracy_columns, labels, 2) != 0;
    printf("  %s/%s: %d comparisons, loss and accuracy curves, their scripts and data\n",
           s->set.out, s->set.figures_dir, n_done);
    if (n_failed > 0)
        fprintf(stderr, "caltech_bench: gnuplot failed for %d figures, see %s/%s/gnuplot.log\n",
                n_failed, s->set.out, s->set.figures_dir);
    return n_failed > 0;
}
