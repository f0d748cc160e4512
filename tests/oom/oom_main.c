/* LDFLAGS: -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc */
/*
 * Allocation-failure sweep: each task is run with its allocation number 0, 1, 2 ... failing, until
 * it needs no more than that many. Every failure must come back as QNN_ERR_NOMEM, leave nothing
 * allocated, and leave the objects fit for a second try.
 *
 * Two sources of memory are swept: the context's hooks, and malloc with what calls it (jansson,
 * whose allocator is set here; what is linked statically, through the flags above). Two ways to
 * fail: once, and from then on always.
 *
 * usage: oom [--full] [TASK]     --full sweeps both ways instead of only "once"; QNN_ISA caps the
 * instruction set
 */
#define _POSIX_C_SOURCE 200809L
#include <jansson.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <qnn.h>

enum { SIDE = 16, CLASSES = 5, BATCH = 2, PIXELS = SIDE * SIDE * 3, MAX_ALLOCATIONS = 100000 };

/* ---- allocators that fail on request
 * --------------------------------------------------------------------------------------- */

typedef struct faults {
    atomic_long fail_at; /* allocations before the first failure; < 0: none fails */
    atomic_long n_calls, n_failed, n_live;
    int is_forever;
} faults;

/* Longer than any buffer that JSON is read into: a character lost to a failed allocation would
 * show. */
static const char class_names[] = "accordion, airplanes, anchor, ant, barrel, bass, beaver, "
                                  "binocular, bonsai, brain, chair, crab";

static faults hooks = {.fail_at = -1}, mallocs = {.fail_at = -1};

static int fails(faults *f)
{
    const long at = atomic_load(&f->fail_at), call = atomic_fetch_add(&f->n_calls, 1);

    if (at < 0 || (f->is_forever ? call < at : call != at))
        return 0;
    atomic_fetch_add(&f->n_failed, 1);
    return 1;
}

static void arm(faults *f, long fail_at, int is_forever)
{
    f->is_forever = is_forever;
    atomic_store(&f->n_calls, 0);
    atomic_store(&f->n_failed, 0);
    atomic_store(&f->fail_at, fail_at);
}

static void disarm(faults *f) { atomic_store(&f->fail_at, -1); }

static void *hook_alloc(void *user, size_t bytes, size_t align)
{
    void *p;

    (void)user;
    if (fails(&hooks) || posix_memalign(&p, align, bytes) != 0)
        return NULL;
    atomic_fetch_add(&hooks.n_live, 1);
    return p;
}

static void hook_release(void *user, void *p, size_t bytes)
{
    (void)user;
    (void)bytes;
    atomic_fetch_sub(&hooks.n_live, 1);
    free(p);
}

/* The linker sends every malloc of what is linked statically here; without its flags these are
 * never called. */
void *__real_malloc(size_t bytes) __attribute__((weak));
void *__real_calloc(size_t n, size_t bytes) __attribute__((weak));
void *__real_realloc(void *p, size_t bytes) __attribute__((weak));
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);

void *__wrap_malloc(size_t bytes) { return fails(&mallocs) ? NULL : __real_malloc(bytes); }

void *__wrap_calloc(size_t n, size_t bytes)
{
    return fails(&mallocs) ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *p, size_t bytes)
{
    return fails(&mallocs) ? NULL : __real_realloc(p, bytes);
}

/* jansson is mostly a shared library. aligned_alloc: not wrapped, so nothing is counted twice. */
static void *json_alloc(size_t bytes)
{
    void *const p = fails(&mallocs) ? NULL : aligned_alloc(16, (bytes + 31) / 16 * 16);

    if (p != NULL)
        atomic_fetch_add(&mallocs.n_live, 1);
    return p;
}

static void json_release(void *p)
{
    if (p != NULL)
        atomic_fetch_sub(&mallocs.n_live, 1);
    free(p);
}

/* ---- tasks ----------------------------------------------------------------------------------- */

/* What a task works on: made before the sweep, with nothing failing. */
typedef struct world {
    qnn_ctx *ctx;
    qnn_model *model, *fused, *int8;
    qnn_stats *stats;
    char path[256], checkpoint[256];
    float x[BATCH * PIXELS], y[BATCH * CLASSES];
    int32_t labels[BATCH];
} world;

typedef struct task {
    const char *name;
    qnn_status (*run)(world *w); /* frees what it made, whatever happens */
    int is_slow;                 /* malloc is swept with --full only */
} task;

static qnn_ctx_opts ctx_opts(int threads)
{
    return (qnn_ctx_opts){.n_threads = threads,
                          .isa = getenv("QNN_ISA"),
                          .allocator = {hook_alloc, hook_release, NULL}};
}

/* The study's network on a small image. */
static qnn_status build(qnn_model **out, qnn_ctx *ctx)
{
    static const char *const conv[] = {"conv1", "conv2", "conv3"}, *const relu[] = {
                                                                       "relu1", "relu2", "relu3"};
    static const char *const pool[] = {"pool1", "pool2", "pool3"};
    qnn_status status = qnn_model_create(out, ctx);
    qnn_node x;

    if (status != QNN_OK)
        return status;
    x = qnn_input(*out, "image", SIDE, SIDE, 3);
    for (int i = 0; i < 3; i++) {
        x = qnn_conv2d(*out, x, conv[i],
                       &(qnn_conv2d_opts){.filters = 4 << i, .kernel = 3, .pad = 1});
        x = qnn_maxpool2d(*out, qnn_relu(*out, x, relu[i]), pool[i], 2, 2);
    }
    x = qnn_relu(*out, qnn_linear(*out, qnn_flatten(*out, x, "flat"), "fc1", 8), "relu4");
    qnn_output(*out, "logits", qnn_linear(*out, x, "fc2", CLASSES));
    status = qnn_model_check(*out);
    if (status == QNN_OK)
        status = qnn_model_set_meta(*out, "classes", class_names);
    if (status != QNN_OK) {
        qnn_model_free(*out);
        *out = NULL;
    }
    return status;
}

static qnn_status do_context(world *w)
{
    const qnn_ctx_opts opts = ctx_opts(3);
    qnn_ctx *ctx;
    const qnn_status status = qnn_ctx_create(&ctx, &opts);

    (void)w;
    if (status != QNN_OK && ctx != NULL)
        return QNN_ERR_STATE;
    qnn_ctx_free(ctx);
    return status;
}

/* Models: what makes one, and its release. */
static qnn_status and_free(qnn_model *m, qnn_status status)
{
    if (status != QNN_OK && m != NULL)
        return QNN_ERR_STATE; /* *out must be NULL on failure */
    qnn_model_free(m);
    return status;
}

static qnn_status do_build(world *w)
{
    qnn_model *m = NULL;
    const qnn_status status = build(&m, w->ctx);

    return and_free(m, status);
}

static qnn_status do_clone(world *w)
{
    qnn_model *m = NULL;
    const qnn_status status = qnn_model_clone(&m, w->ctx, w->model);

    return and_free(m, status);
}

static qnn_status do_load(world *w)
{
    qnn_model *m = NULL;
    const qnn_status status = qnn_model_load(&m, w->ctx, w->path);
    const char *const names = status == QNN_OK ? qnn_model_meta(m, "classes") : class_names;
    const int is_whole = names != NULL && strcmp(names, class_names) == 0;

    return and_free(m, is_whole ? status : QNN_ERR_FORMAT);
}

static qnn_status do_fuse(world *w)
{
    qnn_model *m = NULL;
    const qnn_status status = qnn_fuse(&m, w->ctx, w->model);

    return and_free(m, status);
}

static qnn_status do_static(world *w)
{
    qnn_model *m = NULL;
    const qnn_status status = qnn_quantize_static(&m, w->ctx, w->fused, w->stats, NULL);

    return and_free(m, status);
}

static qnn_status do_dynamic(world *w)
{
    qnn_model *m = NULL;
    const qnn_status status = qnn_quantize_dynamic(&m, w->ctx, w->model, NULL);

    return and_free(m, status);
}

static qnn_status do_int4(world *w)
{
    qnn_model *m = NULL;
    const qnn_status status = qnn_quantize_int4_sim(&m, w->ctx, w->model);

    return and_free(m, status);
}

static qnn_status do_half(world *w)
{
    qnn_model *m = NULL;
    const qnn_status status = qnn_lower_half(&m, w->ctx, w->model, QNN_DTYPE_F16);

    return and_free(m, status);
}

static qnn_status train_one_step(world *w, qnn_model *m)
{
    qnn_trainer *t;
    qnn_status status =
        qnn_trainer_create(&t, w->ctx, m, &(qnn_trainer_opts){.batch = BATCH, .clip_norm = 1.0f});

    if (status == QNN_OK)
        status = qnn_trainer_step(t, w->x, w->labels, BATCH, NULL);
    if (status == QNN_OK)
        status = qnn_trainer_evaluate(t, w->x, BATCH, w->y);
    qnn_trainer_free(t);
    return status;
}

static qnn_status do_train(world *w) { return train_one_step(w, w->model); }

static qnn_status get_item(void *user, int64_t i, uint8_t *pixels, int *label, char *err,
                           size_t err_size)
{
    (void)user;
    (void)err;
    (void)err_size;
    *label = (int)(i % CLASSES);
    memset(pixels, (int)(40 * i), PIXELS);
    return QNN_OK;
}

/* An epoch over four items, with validation, log and checkpoint, and another after resuming. */
static qnn_status fit(world *w, qnn_dataset *ds)
{
    static const int64_t index[] = {0, 1, 2, 3};
    const qnn_loader_opts opts = {.batch = BATCH, .shuffle = 1};
    qnn_fit_opts o = QNN_FIT_OPTS_INIT;
    qnn_loader *train = NULL, *val = NULL;
    qnn_trainer *t = NULL;
    char csv[300];
    qnn_status status;

    snprintf(csv, sizeof csv, "%s.csv", w->checkpoint);
    status = qnn_loader_create(&train, w->ctx, ds, index, 4, &opts);
    if (status == QNN_OK)
        status = qnn_loader_create(&val, w->ctx, ds, index, 2, &opts);
    if (status == QNN_OK)
        status = qnn_trainer_create(&t, w->ctx, w->model, &(qnn_trainer_opts){.batch = BATCH});
    o.epochs = 1;
    o.train = train;
    o.val = val;
    o.log_csv = csv;
    o.checkpoint = w->checkpoint;
    for (int part = 0; part < 2 && status == QNN_OK; part++) {
        status = qnn_fit(t, &o, NULL);
        o.epochs++;
        o.resume = 1;
    }
    if (status == QNN_OK)
        status = qnn_trainer_restore_best(t);
    qnn_trainer_free(t);
    qnn_loader_free(train);
    qnn_loader_free(val);
    unlink(w->checkpoint);
    unlink(csv);
    return status;
}

static qnn_status do_fit(world *w)
{
    const qnn_dataset_ops ops = {.description = "flat",
                                 .n_items = 4,
                                 .n_classes = CLASSES,
                                 .height = SIDE,
                                 .width = SIDE,
                                 .get = get_item};
    qnn_dataset *ds;
    qnn_status status = qnn_dataset_create(&ds, w->ctx, &ops, NULL);

    if (status == QNN_OK)
        status = fit(w, ds);
    qnn_dataset_free(ds);
    return status;
}

static qnn_status do_qat(world *w)
{
    qnn_model *m, *converted = NULL;
    qnn_status status = qnn_qat_prepare(&m, w->ctx, w->model, NULL);

    if (status != QNN_OK)
        return status;
    status = train_one_step(w, m);
    if (status == QNN_OK)
        status = qnn_qat_convert(&converted, w->ctx, m, NULL);
    qnn_model_free(m);
    qnn_model_free(converted);
    return status;
}

static qnn_status do_stats(world *w)
{
    qnn_stats *st;
    qnn_status status = qnn_stats_create(&st, w->ctx, w->fused, NULL);

    if (status == QNN_OK)
        status = qnn_stats_observe(st, w->ctx, w->x, BATCH);
    qnn_stats_free(st);
    return status;
}

static qnn_status compile_and_run(world *w, const qnn_model *m)
{
    const qnn_ctx_opts opts = ctx_opts(1);
    qnn_program *p;
    qnn_ctx *other = NULL;
    qnn_status status = qnn_program_compile(&p, w->ctx, m, &(qnn_program_opts){.max_batch = BATCH});

    if (status != QNN_OK)
        return p == NULL ? status : QNN_ERR_STATE;
    status =
        qnn_ctx_create(&other, &opts); /* a new context: its first run allocates the workspace */
    if (status == QNN_OK)
        status = qnn_run(p, other, w->x, BATCH, w->y);
    qnn_ctx_free(other);
    qnn_program_free(p);
    return status;
}

static qnn_status do_run_f32(world *w) { return compile_and_run(w, w->model); }

static qnn_status do_run_int8(world *w) { return compile_and_run(w, w->int8); }

static qnn_status do_save(world *w) { return qnn_model_save(w->int8, w->path); }

static qnn_status do_metrics(world *w)
{
    qnn_confusion *c;
    const qnn_status status = qnn_confusion_create(&c, w->ctx, CLASSES);

    qnn_confusion_free(c);
    return status;
}

/* Decoders allocate by malloc, the rest by the hooks. */
static qnn_status do_images(world *w)
{
    static const char *const names[] = {"progressive.jpg", "cmyk.jpg", "interlaced.png",
                                        "palette.png", "palette.bmp"};
    const char *const folder = getenv("QNN_GOLDEN_DIR");
    char path[256];
    uint8_t *rgb, small[PIXELS];
    int height, width;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        qnn_status status;

        snprintf(path, sizeof path, "%s/images/%s", folder != NULL ? folder : "tests/golden",
                 names[i]);
        status = qnn_image_load(&rgb, &height, &width, w->ctx, path);
        if (status != QNN_OK)
            return rgb == NULL ? status : QNN_ERR_STATE;
        status = qnn_image_resize(small, SIDE, SIDE, rgb, height, width, w->ctx);
        qnn_image_free(w->ctx, rgb, height, width);
        if (status != QNN_OK)
            return status;
    }
    return QNN_OK;
}

static const task tasks[] = {
    {"context", do_context, 0},   {"build", do_build, 0},     {"clone", do_clone, 0},
    {"run-f32", do_run_f32, 0},   {"save", do_save, 0},       {"load", do_load, 0},
    {"fuse", do_fuse, 0},         {"stats", do_stats, 0},     {"static", do_static, 0},
    {"run-int8", do_run_int8, 0}, {"dynamic", do_dynamic, 0}, {"int4", do_int4, 0},
    {"half", do_half, 0},         {"train", do_train, 0},     {"qat", do_qat, 0},
    {"metrics", do_metrics, 0},   {"images", do_images, 0},   {"fit", do_fit, 1},
};

/* ---- the sweep ------------------------------------------------------------------------------- */

static int n_failures;

static void complain(const task *t, const char *source, int is_forever, long at, const char *what)
{
    n_failures++;
    printf("FAIL %s: allocation %ld of %s failing %s: %s; repeat with: oom --full %s\n", t->name,
           at, source, is_forever ? "from then on" : "once", what, t->name);
}

/*
 * jansson cannot say that its lexer lacked memory, so the parser asks it twice: where one malloc
 * failed once, success is right too.
 */
static void sweep(world *w, const task *t, faults *f, const char *source, int is_forever)
{
    const long live_hooks = atomic_load(&hooks.n_live), live_mallocs = atomic_load(&mallocs.n_live);
    long at = 0, n_failed = 1;

    for (; n_failed > 0 && at < MAX_ALLOCATIONS; at++) {
        qnn_status status;
        int is_right;

        arm(f, at, is_forever);
        status = t->run(w);
        n_failed = atomic_load(&f->n_failed);
        disarm(f);
        is_right = n_failed == 0 ? status == QNN_OK
                                 : status == QNN_ERR_NOMEM ||
                                       (f == &mallocs && !is_forever && status == QNN_OK);
        if (!is_right)
            complain(t, source, is_forever, at, qnn_status_name(status));
        if (atomic_load(&hooks.n_live) != live_hooks ||
            atomic_load(&mallocs.n_live) != live_mallocs) {
            complain(t, source, is_forever, at, "something stays allocated");
            return;
        }
        if (n_failed > 0 && t->run(w) != QNN_OK)
            complain(t, source, is_forever, at, "a second try, with enough memory, fails");
    }
    printf("ok   %-8s %-6s %-12s %4ld allocations\n", t->name, source,
           is_forever ? "from then on" : "once", at - 1);
}

static void must(const world *w, qnn_status status, const char *what)
{
    if (status == QNN_OK)
        return;
    fprintf(stderr, "oom: %s: %s: %s\n", what, qnn_status_name(status),
            w->ctx != NULL ? qnn_ctx_error(w->ctx) : "");
    exit(1);
}

static void make_world(world *w)
{
    const qnn_ctx_opts opts = ctx_opts(2);
    const char *const folder = getenv("TMPDIR");

    memset(w, 0, sizeof *w);
    for (int i = 0; i < BATCH * PIXELS; i++)
        w->x[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
    w->labels[1] = 3;
    snprintf(w->path, sizeof w->path, "%s/qnn-oom-%ld.safetensors",
             folder != NULL ? folder : "/tmp", (long)getpid());
    snprintf(w->checkpoint, sizeof w->checkpoint, "%s/qnn-oom-%ld-checkpoint.safetensors",
             folder != NULL ? folder : "/tmp", (long)getpid());
    must(w, qnn_ctx_create(&w->ctx, &opts), "context");
    must(w, build(&w->model, w->ctx), "build");
    must(w, qnn_fuse(&w->fused, w->ctx, w->model), "fuse");
    must(w, qnn_stats_create(&w->stats, w->ctx, w->fused, NULL), "stats");
    must(w, qnn_stats_observe(w->stats, w->ctx, w->x, BATCH), "observe");
    must(w, qnn_quantize_static(&w->int8, w->ctx, w->fused, w->stats, NULL), "static");
    must(w, qnn_model_save(w->int8, w->path), "save");
}

static void free_world(world *w)
{
    unlink(w->path);
    qnn_stats_free(w->stats);
    qnn_model_free(w->int8);
    qnn_model_free(w->fused);
    qnn_model_free(w->model);
    qnn_ctx_free(w->ctx);
}

int main(int argc, char **argv)
{
    const int is_full = argc > 1 && strcmp(argv[1], "--full") == 0;
    const char *const only = argc > 1 + is_full ? argv[1 + is_full] : NULL;
    int n_run = 0;
    world w;

    json_set_alloc_funcs(json_alloc, json_release);
    make_world(&w);
    for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++) {
        if (only != NULL && strcmp(only, tasks[i].name) != 0)
            continue;
        n_run++;
        for (int is_forever = 0; is_forever <= is_full; is_forever++) {
            sweep(&w, &tasks[i], &hooks, "hooks", is_forever);
            if (is_full || !tasks[i].is_slow)
                sweep(&w, &tasks[i], &mallocs, "malloc", is_forever);
        }
    }
    free_world(&w);
    if (atomic_load(&hooks.n_live) != 0 || atomic_load(&mallocs.n_live) != 0) {
        printf("FAIL %ld blocks of hooks and %ld of malloc were never released\n",
               atomic_load(&hooks.n_live), atomic_load(&mallocs.n_live));
        n_failures++;
    }
    printf("oom: %d tasks, %d failures\n", n_run, n_failures);
    return n_failures != 0 || n_run == 0;
}
