/* Data sets: image folders, the built-in one, cache, scan, split, loader. */
#define _XOPEN_SOURCE 700
#include "suites.h"

#include <ftw.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <qnn.h>

#include "data_fixture.h"
#include "tests/common/testutil.h"

/* ---- folders of images ----------------------------------------------------------------------- */

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

typedef struct tree {
    char root[200];
} tree;

static tree make_tree(void)
{
    static int n_made;
    const char *const folder = getenv("TMPDIR");
    tree t;

    snprintf(t.root, sizeof t.root, "%s/qnn-data-%ld-%d", folder != NULL ? folder : "/tmp",
             (long)getpid(), n_made++);
    ck_assert_msg(mkdir(t.root, 0777) == 0, "cannot make %s", t.root);
    return t;
}

static void remove_tree(const tree *t)
{
    ck_assert_int_eq(nftw(t->root, remove_entry, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static void path_in(char *path, size_t size, const tree *t, const char *name)
{
    snprintf(path, size, "%s/%s", t->root, name);
}

static void add_folder(const tree *t, const char *name)
{
    char path[300];

    path_in(path, sizeof path, t, name);
    ck_assert_int_eq(mkdir(path, 0777), 0);
}

static void add_file(const tree *t, const char *name, const void *data, size_t n)
{
    char path[300];
    FILE *f;

    path_in(path, sizeof path, t, name);
    f = fopen(path, "wb");
    ck_assert_msg(f != NULL, "cannot create %s", path);
    ck_assert_uint_eq(fwrite(data, 1, n, f), n);
    ck_assert_int_eq(fclose(f), 0);
}

static void add_text(const tree *t, const char *name) { add_file(t, name, "not an image\n", 13); }

/* A 24-bit BMP of w x h noise, w a multiple of 4. */
static void add_image(const tree *t, const char *name, int w, int h, uint64_t seed)
{
    unsigned char header[54] = {'B', 'M'};
    const size_t n = (size_t)w * (size_t)h * 3;
    unsigned char *const file = tu_alloc(sizeof header + n);

    header[10] = sizeof header;
    header[14] = 40;
    header[18] = (unsigned char)w;
    header[22] = (unsigned char)h;
    header[26] = 1;
    header[28] = 24;
    memcpy(file, header, sizeof header);
    tu_fill_u8(file + sizeof header, n, seed);
    add_file(t, name, file, sizeof header + n);
    free(file);
}

/* Two classes, "a" with three images and "b" with two. */
static tree small_tree(void)
{
    const tree t = make_tree();

    add_folder(&t, "a");
    add_folder(&t, "b");
    add_image(&t, "a/1.bmp", 8, 9, 1);
    add_image(&t, "a/2.bmp", 40, 30, 2);
    add_image(&t, "a/3.bmp", 16, 16, 3);
    add_image(&t, "b/1.bmp", 4, 1, 4);
    add_image(&t, "b/2.bmp", 120, 90, 5);
    return t;
}

static const qnn_image_folder_opts side16 = {.height = 16, .width = 16};
enum { BYTES16 = 16 * 16 * 3 };

static qnn_dataset *open_tree(qnn_ctx *ctx, const tree *t)
{
    qnn_dataset *ds;

    TU_OK(ctx, qnn_dataset_open_folder(&ds, ctx, t->root, &side16));
    return ds;
}

START_TEST(classes_and_files_in_byte_order)
{
    static const char *const names[] = {"B", "a", "a-b", "b"};
    static const int labels[] = {0, 1, 1, 2, 3};
    qnn_ctx *const ctx = tu_ctx(1);
    const tree t = make_tree();
    qnn_dataset *ds;
    uint8_t pixels[BYTES16], expected[BYTES16], *rgb;
    char path[300];
    int h, w, label;

    for (int i = 3; i >= 0; i--)
        add_folder(&t, names[i]);
    add_folder(&t, "BACKGROUND_Google");
    add_folder(&t, ".hidden");
    add_text(&t, "readme.txt");
    add_image(&t, "BACKGROUND_Google/1.bmp", 8, 8, 9);
    add_image(&t, "a/10.bmp", 8, 8, 1);
    add_image(&t, "a/2.bmp", 12, 10, 2);
    add_text(&t, "a/.thumbnails");
    add_image(&t, "B/1.bmp", 8, 8, 3);
    add_image(&t, "a-b/1.bmp", 8, 8, 4);
    add_image(&t, "b/1.bmp", 8, 8, 5);
    ds = open_tree(ctx, &t);
    ck_assert_int_eq(qnn_dataset_size(ds), 5);
    ck_assert_int_eq(qnn_dataset_classes(ds), 4);
    ck_assert_int_eq(qnn_dataset_height(ds), 16);
    ck_assert_int_eq(qnn_dataset_width(ds), 16);
    for (int c = 0; c < 4; c++)
        ck_assert_str_eq(qnn_dataset_class_name(ds, c), names[c]);
    ck_assert_ptr_null(qnn_dataset_class_name(ds, 4));
    ck_assert_ptr_null(qnn_dataset_class_name(ds, -1));
    ck_assert_ptr_nonnull(strstr(qnn_dataset_description(ds), t.root));
    ck_assert_ptr_nonnull(strstr(qnn_dataset_description(ds), "(4 classes, 5 images)"));
    for (int i = 0; i < 5; i++) {
        TU_OK(ctx, qnn_dataset_get(ds, ctx, i, pixels, &label));
        ck_assert_int_eq(label, labels[i]);
    }
    /* "10.bmp" comes before "2.bmp": item 2 is the latter, decoded and resized */
    TU_OK(ctx, qnn_dataset_get(ds, ctx, 2, pixels, &label));
    path_in(path, sizeof path, &t, "a/2.bmp");
    TU_OK(ctx, qnn_image_load(&rgb, &h, &w, ctx, path));
    TU_OK(ctx, qnn_image_resize(expected, 16, 16, rgb, h, w, ctx));
    ck_assert_mem_eq(pixels, expected, BYTES16);
    qnn_image_free(ctx, rgb, h, w);
    qnn_dataset_free(ds);
    /* another class left out, and the default size */
    TU_OK(ctx, qnn_dataset_open_folder(&ds, ctx, t.root, &(qnn_image_folder_opts){.exclude = "b"}));
    ck_assert_int_eq(qnn_dataset_classes(ds), 4);
    ck_assert_str_eq(qnn_dataset_class_name(ds, 1), "BACKGROUND_Google");
    ck_assert_int_eq(qnn_dataset_height(ds), 128);
    ck_assert_int_eq(qnn_dataset_width(ds), 128);
    qnn_dataset_free(ds);
    remove_tree(&t);
    qnn_ctx_free(ctx);
}
END_TEST

static void expect_classes(qnn_ctx *ctx, const char *path, int n_classes)
{
    qnn_dataset *ds;

    TU_OK(ctx, qnn_dataset_open_folder(&ds, ctx, path, NULL));
    ck_assert_int_eq(qnn_dataset_classes(ds), n_classes);
    qnn_dataset_free(ds);
}

START_TEST(path_may_name_the_folder_above)
{
    qnn_ctx *const ctx = tu_ctx(1);
    const tree t = make_tree();
    char path[300];

    add_folder(&t, "only");
    add_folder(&t, "only/x");
    add_folder(&t, "only/y");
    add_image(&t, "only/x/1.bmp", 4, 4, 1);
    add_image(&t, "only/y/1.bmp", 4, 4, 2);
    expect_classes(ctx, t.root, 2);
    path_in(path, sizeof path, &t, "only/");
    expect_classes(ctx, path, 2);
    add_folder(&t, "101_ObjectCategories");
    for (int i = 0; i < 3; i++) {
        char name[64];

        snprintf(name, sizeof name, "101_ObjectCategories/%d", i);
        add_folder(&t, name);
        snprintf(name, sizeof name, "101_ObjectCategories/%d/1.bmp", i);
        add_image(&t, name, 4, 4, 3);
    }
    expect_classes(ctx, t.root, 3);
    remove_tree(&t);
    qnn_ctx_free(ctx);
}
END_TEST

static void expect_refusal(qnn_ctx *ctx, const char *path, qnn_status expected, const char *text)
{
    qnn_dataset *ds = (qnn_dataset *)(void *)&ctx;

    ck_assert_int_eq(qnn_dataset_open_folder(&ds, ctx, path, &side16), expected);
    ck_assert_ptr_null(ds);
    ck_assert_msg(strstr(qnn_ctx_error(ctx), text) != NULL, "\"%s\" lacks \"%s\"",
                  qnn_ctx_error(ctx), text);
}

START_TEST(folders_that_are_no_data_set)
{
    qnn_ctx *const ctx = tu_ctx(1);
    const tree t = make_tree();
    qnn_dataset *ds;
    char path[300];

    expect_refusal(ctx, NULL, QNN_ERR_ARG, "path");
    expect_refusal(ctx, "", QNN_ERR_ARG, "path");
    expect_refusal(ctx, t.root, QNN_ERR_FORMAT, "no class folder");
    expect_refusal(ctx, t.root, QNN_ERR_FORMAT, t.root);
    path_in(path, sizeof path, &t, "missing");
    expect_refusal(ctx, path, QNN_ERR_IO, "missing: No such file");
    add_text(&t, "file");
    path_in(path, sizeof path, &t, "file");
    expect_refusal(ctx, path, QNN_ERR_IO, "file: Not a directory");
    add_folder(&t, "one");
    expect_refusal(ctx, t.root, QNN_ERR_FORMAT, "one: the class folder is empty");
    add_image(&t, "one/1.bmp", 4, 4, 1);
    expect_refusal(ctx, t.root, QNN_ERR_FORMAT, "only one class folder, \"one\"");
    add_folder(&t, "two");
    expect_refusal(ctx, t.root, QNN_ERR_FORMAT, "two: the class folder is empty");
    if (geteuid() != 0) { /* who may read everything */
        path_in(path, sizeof path, &t, "two");
        ck_assert_int_eq(chmod(path, 0), 0);
        expect_refusal(ctx, t.root, QNN_ERR_IO, "two: Permission denied");
        ck_assert_int_eq(chmod(path, 0777), 0);
    }
    add_image(&t, "two/1.bmp", 4, 4, 1);
    ck_assert_int_eq(
        qnn_dataset_open_folder(&ds, ctx, t.root, &(qnn_image_folder_opts){.height = -1}),
        QNN_ERR_ARG);
    ck_assert_int_eq(qnn_dataset_open_folder(NULL, ctx, t.root, NULL), QNN_ERR_ARG);
    remove_tree(&t);
    qnn_ctx_free(ctx);
}
END_TEST

/* ---- scan ------------------------------------------------------------------------------------ */

/* Six bad items among the five good ones of small_tree(). */
static tree spoiled_tree(void)
{
    const tree t = small_tree();
    char path[300];

    add_file(&t, "a/0-empty.jpg", "", 0);
    add_text(&t, "a/2-text.jpg");
    add_folder(&t, "a/3-folder.jpg");
    add_folder(&t, "c");
    add_file(&t, "c/cut.bmp", "BM\1\2\3\4\5\6\7\10", 10);
    path_in(path, sizeof path, &t, "c/dangling.png");
    ck_assert_int_eq(symlink("nowhere", path), 0);
    add_text(&t, "c/notes.txt");
    return t;
}

static const char *const bad_items[] = {"a/0-empty.jpg", "a/2-text.jpg",   "a/3-folder.jpg",
                                        "c/cut.bmp",     "c/dangling.png", "c/notes.txt"};

START_TEST(scan_stops_at_the_first_bad_item)
{
    const int n_threads = _i;
    qnn_ctx *const ctx = tu_ctx(1);
    const tree t = spoiled_tree();
    qnn_dataset *const ds = open_tree(ctx, &t);
    char path[300];

    path_in(path, sizeof path, &t, "a/0-empty.jpg");
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(qnn_dataset_scan(ds, ctx, &(qnn_scan_opts){.n_threads = n_threads}),
                         QNN_ERR_FORMAT);
        ck_assert_msg(strstr(qnn_ctx_error(ctx), path) != NULL, "%s", qnn_ctx_error(ctx));
    }
    ck_assert_int_eq(qnn_dataset_size(ds), 11);
    ck_assert_int_eq(qnn_dataset_n_skipped(ds), 0);
    qnn_dataset_free(ds);
    remove_tree(&t);
    qnn_ctx_free(ctx);
}
END_TEST

static void expect_skipped(const qnn_dataset *ds)
{
    ck_assert_int_eq(qnn_dataset_size(ds), 5);
    ck_assert_int_eq(qnn_dataset_n_skipped(ds), 6);
    for (int i = 0; i < 6; i++) {
        const char *const text = qnn_dataset_skipped(ds, i);

        ck_assert_ptr_nonnull(text);
        ck_assert_msg(strstr(text, bad_items[i]) != NULL, "\"%s\" lacks \"%s\"", text,
                      bad_items[i]);
    }
    ck_assert_ptr_null(qnn_dataset_skipped(ds, -1));
    ck_assert_ptr_null(qnn_dataset_skipped(ds, 6));
    ck_assert_ptr_nonnull(strstr(qnn_dataset_skipped(ds, 2), "not a regular file"));
    ck_assert_ptr_nonnull(strstr(qnn_dataset_skipped(ds, 4), "No such file"));
}

/* With skip_bad the rest is what there would be without the bad files; wrapped in a cache or not.
 */
START_TEST(scan_leaves_bad_items_out)
{
    const int cached = _i & 1, n_threads = 1 + (_i >> 1) * 3;
    qnn_ctx *const ctx = tu_ctx(2);
    const tree good = small_tree(), t = spoiled_tree();
    qnn_dataset *const expected = open_tree(ctx, &good), *ds = open_tree(ctx, &t);
    const qnn_scan_opts opts = {.n_threads = n_threads, .skip_bad = 1};
    uint8_t want[BYTES16], got[BYTES16];
    int label, want_label;

    if (cached)
        TU_OK(ctx, qnn_dataset_cache(&ds, ctx, ds, 1 << 20));
    TU_OK(ctx, qnn_dataset_scan(ds, ctx, &opts));
    expect_skipped(ds);
    TU_OK(ctx, qnn_dataset_scan(ds, ctx, &opts)); /* finds nothing more */
    expect_skipped(ds);
    TU_OK(ctx, qnn_dataset_scan(ds, ctx, NULL));
    ck_assert_int_eq(qnn_dataset_classes(ds), 3); /* "c" is there, without an image */
    for (int i = 0; i < 5; i++) {
        TU_OK(ctx, qnn_dataset_get(expected, ctx, i, want, &want_label));
        TU_OK(ctx, qnn_dataset_get(ds, ctx, i, got, &label));
        ck_assert_int_eq(label, want_label);
        ck_assert_mem_eq(got, want, BYTES16);
    }
    ck_assert_int_eq(qnn_dataset_get(ds, ctx, 5, got, &label), QNN_ERR_ARG);
    qnn_dataset_free(expected);
    qnn_dataset_free(ds);
    remove_tree(&good);
    remove_tree(&t);
    qnn_ctx_free(ctx);
}
END_TEST

typedef struct progress {
    pthread_t thread;
    int64_t last, stop_at;
    int n_calls, is_wrong;
} progress;

static int on_progress(void *user, int64_t done, int64_t total)
{
    progress *const p = user;

    p->is_wrong |= !pthread_equal(p->thread, pthread_self()) || done < p->last || total != 100;
    p->last = done;
    p->n_calls++;
    return p->stop_at != 0 && done >= p->stop_at;
}

START_TEST(scan_reports_progress)
{
    qnn_ctx *const ctx = tu_ctx(1);
    dt_numbers d = {.pause_us = 1000};
    qnn_dataset *const ds = dt_open_numbers(ctx, &d, 100);
    progress p = {.thread = pthread_self()};
    qnn_scan_opts opts = {.n_threads = 2, .progress = on_progress, .user = &p};

    TU_OK(ctx, qnn_dataset_scan(ds, ctx, &opts));
    ck_assert_int_eq(p.is_wrong, 0);
    ck_assert_int_eq(p.last, 100);
    ck_assert_int_ge(p.n_calls, 2);
    ck_assert_int_eq(atomic_load(&d.n_gets), 100);
    p = (progress){.thread = pthread_self(), .stop_at = 5};
    opts.skip_bad = 1;
    ck_assert_int_eq(qnn_dataset_scan(ds, ctx, &opts), QNN_ERR_STOPPED);
    ck_assert_int_eq(p.is_wrong, 0);
    ck_assert_int_lt(atomic_load(&d.n_gets), 200);
    ck_assert_int_eq(qnn_dataset_size(ds), 100);
    opts.n_threads = -1;
    ck_assert_int_eq(qnn_dataset_scan(ds, ctx, &opts), QNN_ERR_ARG);
    qnn_dataset_free(ds);
    qnn_ctx_free(ctx);
}
END_TEST

/* ---- the caller's own data set --------------------------------------------------------------- */

START_TEST(own_data_set)
{
    qnn_ctx *const ctx = tu_ctx(1);
    dt_numbers d = {.bad = 2};
    qnn_dataset *const ds = dt_open_numbers(ctx, &d, 3);
    uint8_t pixels[DT_BYTES];
    int label;

    ck_assert_str_eq(qnn_dataset_description(ds), "numbers");
    ck_assert_str_eq(qnn_dataset_class_name(ds, 3), "3");
    TU_OK(ctx, qnn_dataset_get(ds, ctx, 1, pixels, &label));
    ck_assert_int_eq(label, 1);
    ck_assert_int_eq(pixels[DT_BYTES - 1], dt_value(1));
    ck_assert_int_eq(qnn_dataset_get(ds, ctx, 3, pixels, &label), QNN_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "item 3"));
    ck_assert_int_eq(qnn_dataset_get(ds, ctx, -1, pixels, &label), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_dataset_get(ds, ctx, 0, NULL, &label), QNN_ERR_ARG);
    d.status = QNN_ERR_DEVICE;
    d.message = "the camera is off";
    ck_assert_int_eq(qnn_dataset_get(ds, ctx, 2, pixels, &label), QNN_ERR_DEVICE);
    ck_assert_str_eq(qnn_ctx_error(ctx), "the camera is off");
    d.message = "";
    ck_assert_int_eq(qnn_dataset_get(ds, ctx, 2, pixels, &label), QNN_ERR_DEVICE);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "item 2: device error"));
    d.bad_label = 4;
    ck_assert_int_eq(qnn_dataset_get(ds, ctx, 0, pixels, &label), QNN_ERR_ARG);
    ck_assert_ptr_nonnull(strstr(qnn_ctx_error(ctx), "label 4"));
    qnn_dataset_free(ds);
    ck_assert_int_eq(atomic_load(&d.n_freed), 1);
    qnn_dataset_free(NULL);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(own_data_set_arguments)
{
    qnn_ctx *const ctx = tu_ctx(1);
    const qnn_dataset_ops good = {.description = "x",
                                  .n_items = 1,
                                  .n_classes = 2,
                                  .height = 4,
                                  .width = 4,
                                  .get = dt_numbers_get};
    qnn_dataset_ops bad[8];
    qnn_dataset *ds;

    for (int i = 0; i < 8; i++)
        bad[i] = good;
    bad[0].description = NULL;
    bad[1].get = NULL;
    bad[2].n_items = -1;
    bad[3].n_classes = 0;
    bad[4].height = 0;
    bad[5].width = -4;
    bad[6].n_items = (int64_t)1 << 40;
    bad[7].width = 1 << 20;
    for (int i = 0; i < 8; i++) {
        ds = (qnn_dataset *)(void *)&ds;
        ck_assert_msg(qnn_dataset_create(&ds, ctx, &bad[i], NULL) == QNN_ERR_ARG, "case %d", i);
        ck_assert_ptr_null(ds);
    }
    ck_assert_int_eq(qnn_dataset_create(&ds, ctx, NULL, NULL), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_dataset_create(NULL, ctx, &good, NULL), QNN_ERR_ARG);
    qnn_ctx_free(ctx);
}
END_TEST

/* ---- cache ----------------------------------------------------------------------------------- */

enum { N_CACHED = 20 };

static void get_all(qnn_ctx *ctx, qnn_dataset *ds)
{
    uint8_t pixels[DT_BYTES];

    for (int i = 0; i < N_CACHED; i++) {
        int label;

        TU_OK(ctx, qnn_dataset_get(ds, ctx, i, pixels, &label));
        ck_assert_int_eq(label, i % 4);
        for (int k = 0; k < DT_BYTES; k++)
            ck_assert_int_eq(pixels[k], dt_value(i));
    }
}

/* Whatever the bound, the same pixels; and never more memory than the bound. */
START_TEST(cache_keeps_to_its_bound)
{
    static const struct {
        size_t max_bytes;
        int least_kept, most_kept;
    } cases[] = {{0, 0, 0}, {100, 0, 0}, {8 * DT_BYTES, 1, 8}, {1 << 20, N_CACHED, N_CACHED}};
    dt_counted memory = {.fail_at = -1};
    qnn_ctx *const ctx = dt_counted_ctx(&memory, 1);
    const long before = atomic_load(&memory.n_bytes);

    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        dt_numbers d = {0};
        qnn_dataset *ds = dt_open_numbers(ctx, &d, N_CACHED);
        long empty;
        int kept;

        TU_OK(ctx, qnn_dataset_cache(&ds, ctx, ds, cases[c].max_bytes));
        empty = atomic_load(&memory.n_bytes);
        ck_assert_int_eq(qnn_dataset_size(ds), N_CACHED);
        ck_assert_str_eq(qnn_dataset_description(ds), "numbers");
        ck_assert_str_eq(qnn_dataset_class_name(ds, 2), "2");
        get_all(ctx, ds);
        ck_assert_int_eq(atomic_load(&d.n_gets), N_CACHED);
        ck_assert_int_le(atomic_load(&memory.n_bytes) - empty, (long)cases[c].max_bytes);
        get_all(ctx, ds);
        kept = 2 * N_CACHED - atomic_load(&d.n_gets);
        ck_assert_int_ge(kept, cases[c].least_kept);
        ck_assert_int_le(kept, cases[c].most_kept);
        qnn_dataset_free(ds);
        ck_assert_int_eq(atomic_load(&d.n_freed), 1);
        ck_assert_int_eq(atomic_load(&memory.n_bytes), before);
    }
    qnn_ctx_free(ctx);
    ck_assert_int_eq(atomic_load(&memory.n_bytes), 0);
}
END_TEST

typedef struct reader {
    qnn_dataset *ds;
    int is_wrong;
} reader;

static void *read_often(void *arg)
{
    reader *const r = arg;
    qnn_ctx *const ctx = tu_ctx(1);

    for (int pass = 0; pass < 20; pass++)
        for (int i = 0; i < N_CACHED; i++) {
            uint8_t pixels[DT_BYTES];
            int label;

            r->is_wrong |= qnn_dataset_get(r->ds, ctx, i, pixels, &label) != QNN_OK ||
                           label != i % 4 || pixels[0] != dt_value(i) ||
                           pixels[DT_BYTES - 1] != dt_value(i);
        }
    qnn_ctx_free(ctx);
    return NULL;
}

START_TEST(cache_is_shared_by_threads)
{
    enum { N_THREADS = 6 };
    qnn_ctx *const ctx = tu_ctx(1);
    dt_numbers d = {0};
    qnn_dataset *ds = dt_open_numbers(ctx, &d, N_CACHED);
    pthread_t threads[N_THREADS];
    reader readers[N_THREADS];

    TU_OK(ctx, qnn_dataset_cache(&ds, ctx, ds, 8 * DT_BYTES));
    for (int i = 0; i < N_THREADS; i++) {
        readers[i] = (reader){ds, 0};
        ck_assert_int_eq(pthread_create(&threads[i], NULL, read_often, &readers[i]), 0);
    }
    for (int i = 0; i < N_THREADS; i++) {
        pthread_join(threads[i], NULL);
        ck_assert_int_eq(readers[i].is_wrong, 0);
    }
    qnn_dataset_free(ds);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(cache_passes_failures_on)
{
    qnn_ctx *const ctx = tu_ctx(1);
    dt_numbers d = {.bad = 7, .status = QNN_ERR_IO, .message = "number 7 is lost"};
    qnn_dataset *ds = dt_open_numbers(ctx, &d, N_CACHED), *none;
    uint8_t pixels[DT_BYTES];
    int label;

    ck_assert_int_eq(qnn_dataset_cache(&none, ctx, NULL, 0), QNN_ERR_ARG);
    TU_OK(ctx, qnn_dataset_cache(&ds, ctx, ds, 1 << 20));
    ck_assert_int_eq(qnn_dataset_get(ds, ctx, 7, pixels, &label), QNN_ERR_IO);
    ck_assert_str_eq(qnn_ctx_error(ctx), "number 7 is lost");
    ck_assert_int_eq(qnn_dataset_scan(ds, ctx, NULL), QNN_ERR_IO);
    ck_assert_str_eq(qnn_ctx_error(ctx), "number 7 is lost");
    d.status = QNN_OK; /* a failure is not remembered */
    get_all(ctx, ds);
    qnn_dataset_free(ds);
    qnn_ctx_free(ctx);
}
END_TEST

/* ---- split ----------------------------------------------------------------------------------- */

START_TEST(split_is_a_seeded_permutation)
{
    enum { N = 8677 };
    qnn_ctx *const ctx = tu_ctx(1);
    int64_t *const a = tu_alloc(N * sizeof *a), *const b = tu_alloc(N * sizeof *b), n_val, n_train;

    TU_OK(ctx, qnn_split(a, &n_val, &n_train, ctx, N, 0, 0.2, 42));
    ck_assert_int_eq(n_val, 1735);
    ck_assert_int_eq(n_train, 6942);
    dt_expect_permutation(a, N);
    TU_OK(ctx, qnn_split(b, &n_val, &n_train, ctx, N, 0, 0.2, 42));
    ck_assert_mem_eq(a, b, N * sizeof *a);
    TU_OK(ctx, qnn_split(b, &n_val, &n_train, ctx, N, 1000, 0.25, 42)); /* the first thousand */
    ck_assert_int_eq(n_val, 250);
    ck_assert_int_eq(n_train, 750);
    ck_assert_mem_eq(a, b, 1000 * sizeof *a);
    TU_OK(ctx, qnn_split(b, &n_val, &n_train, ctx, N, 2 * N, 0.0, 43));
    ck_assert_int_eq(n_val, 0);
    ck_assert_int_eq(n_train, N);
    dt_expect_permutation(b, N);
    ck_assert_mem_ne(a, b, N * sizeof *a);
    free(a);
    free(b);
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(split_arguments)
{
    qnn_ctx *const ctx = tu_ctx(1);
    int64_t indices[4], n_val, n_train;

    ck_assert_int_eq(qnn_split(NULL, &n_val, &n_train, ctx, 4, 0, 0.2, 1), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_split(indices, &n_val, &n_train, ctx, 0, 0, 0.2, 1), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_split(indices, &n_val, &n_train, ctx, 4, -1, 0.2, 1), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_split(indices, &n_val, &n_train, ctx, 4, 0, 1.0, 1), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_split(indices, &n_val, &n_train, ctx, 4, 0, -0.1, 1), QNN_ERR_ARG);
    ck_assert_int_eq(qnn_split(indices, &n_val, &n_train, ctx, 4, 0, (double)NAN, 1), QNN_ERR_ARG);
    qnn_ctx_free(ctx);
}
END_TEST

/* ---- out of memory --------------------------------------------------------------------------- */

static qnn_status use_everything(qnn_ctx *ctx, const char *path)
{
    const qnn_scan_opts scan = {.n_threads = 1, .skip_bad = 1};
    const qnn_loader_opts opts = {.batch = 2, .shuffle = 1};
    int64_t indices[11], n_val, n_train;
    const float *x;
    const int32_t *y;
    int n = 1;
    qnn_dataset *ds, *cached;
    qnn_loader *ld;
    qnn_status status = qnn_dataset_open_folder(&ds, ctx, path, &side16);

    if (status != QNN_OK)
        return status;
    status = qnn_dataset_cache(&cached, ctx, ds, 2000);
    if (status != QNN_OK) {
        qnn_dataset_free(ds);
        return status;
    }
    status = qnn_dataset_scan(cached, ctx, &scan);
    if (status == QNN_OK)
        status = qnn_split(indices, &n_val, &n_train, ctx, qnn_dataset_size(cached), 0, 0.2, 1);
    if (status == QNN_OK)
        status = qnn_loader_create(&ld, ctx, cached, indices, n_val + n_train, &opts);
    if (status == QNN_OK) {
        status = qnn_loader_begin(ld, 0);
        while (status == QNN_OK && n > 0)
            status = qnn_loader_next(ld, &x, &y, &n);
        qnn_loader_free(ld);
    }
    qnn_dataset_free(cached);
    return status;
}

/* Every allocation fails in turn. Pixels that cannot be kept are decoded again, so one or the other
 * failure goes unnoticed; none may be taken for a bad item, and nothing may leak. */
START_TEST(data_out_of_memory)
{
    dt_counted memory = {.fail_at = -1};
    qnn_ctx *const ctx = dt_counted_ctx(&memory, 1);
    const tree t = spoiled_tree();
    const long before = atomic_load(&memory.n_bytes);
    long n_noticed = 0, n_allocations;

    atomic_store(&memory.n_calls, 0);
    TU_OK(ctx, use_everything(ctx, t.root));
    n_allocations = atomic_load(&memory.n_calls);
    for (long at = 0; at < n_allocations; at++) {
        qnn_status status;

        atomic_store(&memory.n_calls, 0);
        atomic_store(&memory.fail_at, at);
        status = use_everything(ctx, t.root);
        atomic_store(&memory.fail_at, -1);
        ck_assert_msg(status == QNN_OK || status == QNN_ERR_NOMEM, "allocation %ld of %ld: %s: %s",
                      at, n_allocations, qnn_status_name(status), qnn_ctx_error(ctx));
        ck_assert_msg(atomic_load(&memory.n_bytes) == before, "allocation %ld of %ld leaks", at,
                      n_allocations);
        n_noticed += status == QNN_ERR_NOMEM;
    }
    ck_assert_int_gt(n_noticed, n_allocations / 2);
    remove_tree(&t);
    qnn_ctx_free(ctx);
}
END_TEST

/* ---- built-in data --------------------------------------------------------------------------- */

static uint64_t fnv(uint64_t hash, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}

static uint64_t builtin_hash(qnn_ctx *ctx, const qnn_builtin_opts *opts, int64_t first, int64_t n)
{
    qnn_dataset *ds;
    uint64_t hash = 0xcbf29ce484222325u;
    uint8_t *pixels;
    size_t bytes;

    TU_OK(ctx, qnn_dataset_open_builtin(&ds, ctx, opts));
    bytes = (size_t)qnn_dataset_height(ds) * (size_t)qnn_dataset_width(ds) * 3;
    pixels = tu_alloc(bytes);
    for (int64_t i = first; i < first + n; i++) {
        int label;
        uint8_t byte;

        TU_OK(ctx, qnn_dataset_get(ds, ctx, i, pixels, &label));
        byte = (uint8_t)label;
        hash = fnv(fnv(hash, pixels, bytes), &byte, 1);
    }
    free(pixels);
    qnn_dataset_free(ds);
    return hash;
}

/* Found with gcc and clang, with and without optimisation. */
#define BUILTIN_HASH       3612769616104663380u
#define BUILTIN_HASH_SMALL 18193085696809175734u

START_TEST(builtin_is_the_same_everywhere)
{
    qnn_ctx *const ctx = tu_ctx(1);

    ck_assert_uint_eq(builtin_hash(ctx, NULL, 0, 40), BUILTIN_HASH);
    ck_assert_uint_eq(builtin_hash(ctx, NULL, 0, 40),
                      builtin_hash(ctx, &(qnn_builtin_opts){.n_items = 40, .height = 128}, 0, 40));
    ck_assert_uint_eq(
        builtin_hash(ctx, &(qnn_builtin_opts){.seed = 7, .height = 20, .width = 33}, 1000, 40),
        BUILTIN_HASH_SMALL);
    ck_assert_uint_ne(builtin_hash(ctx, &(qnn_builtin_opts){.seed = 1}, 0, 3),
                      builtin_hash(ctx, &(qnn_builtin_opts){.seed = 2}, 0, 3));
    ck_assert_uint_ne(builtin_hash(ctx, NULL, 0, 3), builtin_hash(ctx, NULL, 1, 3));
    qnn_ctx_free(ctx);
}
END_TEST

START_TEST(builtin_classes)
{
    qnn_ctx *const ctx = tu_ctx(1);
    int counts[12] = {0};
    uint8_t pixels[8 * 8 * 3];
    qnn_dataset *ds;

    TU_OK(ctx, qnn_dataset_open_builtin(
                   &ds, ctx, &(qnn_builtin_opts){.n_items = 2400, .height = 8, .width = 8}));
    ck_assert_int_eq(qnn_dataset_classes(ds), 12);
    ck_assert_ptr_nonnull(strstr(qnn_dataset_description(ds), "built-in"));
    for (int c = 0; c < 12; c++)
        for (int other = 0; other < c; other++)
            ck_assert_str_ne(qnn_dataset_class_name(ds, c), qnn_dataset_class_name(ds, other));
    for (int i = 0; i < 2400; i++) {
        int label;

        TU_OK(ctx, qnn_dataset_get(ds, ctx, i, pixels, &label));
        counts[label]++;
    }
    for (int c = 0; c < 12; c++) /* 200 each; more than five standard deviations either way */
        ck_assert_msg(counts[c] > 130 && counts[c] < 270, "class %d has %d of 2400", c, counts[c]);
    qnn_dataset_free(ds);
    TU_OK(ctx, qnn_dataset_open_builtin(&ds, ctx, NULL));
    ck_assert_int_eq(qnn_dataset_size(ds), 3000);
    ck_assert_int_eq(qnn_dataset_height(ds), 128);
    ck_assert_int_eq(qnn_dataset_width(ds), 128);
    qnn_dataset_free(ds);
    ck_assert_int_eq(
        qnn_dataset_open_builtin(&ds, ctx, &(qnn_builtin_opts){.height = 7, .width = 99}),
        QNN_ERR_ARG);
    ck_assert_int_eq(qnn_dataset_open_builtin(&ds, ctx, &(qnn_builtin_opts){.width = -8}),
                     QNN_ERR_ARG);
    ck_assert_int_eq(qnn_dataset_open_builtin(&ds, ctx, &(qnn_builtin_opts){.n_items = -1}),
                     QNN_ERR_ARG);
    qnn_ctx_free(ctx);
}
END_TEST

Suite *dataset_suite(void)
{
    Suite *const s = suite_create("dataset");
    TCase *t = tcase_create("folder");

    tcase_add_test(t, classes_and_files_in_byte_order);
    tcase_add_test(t, path_may_name_the_folder_above);
    tcase_add_test(t, folders_that_are_no_data_set);
    suite_add_tcase(s, t);
    t = tcase_create("scan");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, scan_stops_at_the_first_bad_item, 1, 5);
    tcase_add_loop_test(t, scan_leaves_bad_items_out, 0, 4);
    tcase_add_test(t, scan_reports_progress);
    suite_add_tcase(s, t);
    t = tcase_create("own");
    tcase_add_test(t, own_data_set);
    tcase_add_test(t, own_data_set_arguments);
    suite_add_tcase(s, t);
    t = tcase_create("cache");
    tcase_add_test(t, cache_keeps_to_its_bound);
    tcase_add_test(t, cache_is_shared_by_threads);
    tcase_add_test(t, cache_passes_failures_on);
    suite_add_tcase(s, t);
    t = tcase_create("split");
    tcase_add_test(t, split_is_a_seeded_permutation);
    tcase_add_test(t, split_arguments);
    suite_add_tcase(s, t);
    suite_add_tcase(s, dt_loader_case());
    t = tcase_create("memory");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, data_out_of_memory);
    suite_add_tcase(s, t);
    t = tcase_create("builtin");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, builtin_is_the_same_everywhere);
    tcase_add_test(t, builtin_classes);
    suite_add_tcase(s, t);
    return s;
}
