/* Image folder: one sub-folder per class, classes and files in byte order of their names. */
#define _POSIX_C_SOURCE 200809L
#include "lib/io/dataset_impl.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <qnn/image.h>

#define CALTECH_FOLDER "101_ObjectCategories"

typedef struct names {
    size_t n, cap;
    char **text;
} names;

typedef struct folder_item {
    int label;
    char *path;
} folder_item;

typedef struct folder {
    qnn_ctx *ctx;
    int height, width;
    names classes;
    size_t n_items, cap_items;
    folder_item *item;
} folder;

static void free_names(qnn_ctx *ctx, names *list)
{
    for (size_t i = 0; i < list->n; i++)
        qnn_ctx__release(ctx, list->text[i]);
    qnn_ctx__release(ctx, list->text);
    memset(list, 0, sizeof *list);
}

static void folder_free(void *user)
{
    folder *const f = user;

    for (size_t i = 0; i < f->n_items; i++)
        qnn_ctx__release(f->ctx, f->item[i].path);
    qnn_ctx__release(f->ctx, f->item);
    free_names(f->ctx, &f->classes);
    qnn_ctx__release(f->ctx, f);
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static qnn_status join(qnn_ctx *ctx, char **out, const char *a, const char *b)
{
    const size_t size = strlen(a) + strlen(b) + 2;
    const int has_slash = a[0] != '\0' && a[strlen(a) - 1] == '/';
    void *block;

    *out = NULL;
    QNN_TRY(qnn_ctx__alloc(ctx, &block, size, "a path"));
    *out = block;
    snprintf(*out, size, "%s%s%s", a, has_slash ? "" : "/", b);
    return QNN_OK;
}

static int is_folder(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static qnn_status append(qnn_ctx *ctx, names *list, const char *text)
{
    void *array = list->text;

    QNN_TRY(qnn_ctx__grow(ctx, &array, &list->cap, list->n + 1, sizeof *list->text, "names"));
    list->text = array;
    QNN_TRY(qnn_ctx__strdup(ctx, &list->text[list->n], text));
    list->n++;
    return QNN_OK;
}

static qnn_status io_error(qnn_ctx *ctx, const char *path, int error)
{
    char text[128];

    if (strerror_r(error, text, sizeof text) != 0)
        snprintf(text, sizeof text, "error %d", error);
    return qnn_ctx__fail(ctx, QNN_ERR_IO, "%s: %s", path, text);
}

static qnn_status read_entries(qnn_ctx *ctx, names *list, const char *path, DIR *dir,
                               int folders_only)
{
    for (;;) {
        const struct dirent *entry;
        int is_wanted = 1;

        errno = 0;
        entry = readdir(dir);
        if (entry == NULL)
            return errno == 0 ? QNN_OK : io_error(ctx, path, errno);
        if (entry->d_name[0] == '.')
            continue;
        if (folders_only) {
            char *full;

            QNN_TRY(join(ctx, &full, path, entry->d_name));
            is_wanted = is_folder(full);
            qnn_ctx__release(ctx, full);
        }
        if (is_wanted)
            QNN_TRY(append(ctx, list, entry->d_name));
    }
}

/* Names in a folder that do not begin with a dot, sorted. The list is the caller's also on failure.
 */
static qnn_status list_folder(qnn_ctx *ctx, names *list, const char *path, int folders_only)
{
    DIR *const dir = opendir(path);
    qnn_status status;

    if (dir == NULL)
        return io_error(ctx, path, errno);
    status = read_entries(ctx, list, path, dir, folders_only);
    closedir(dir);
    if (status == QNN_OK && list->n > 0)
        qsort(list->text, list->n, sizeof *list->text, by_bytes);
    return status;
}

/* The folder that holds the class folders: path, its 101_ObjectCategories, or its only sub-folder
 * if that has sub-folders. */
static qnn_status find_root(qnn_ctx *ctx, char **root, const char *path)
{
    names list = {0};
    qnn_status status = join(ctx, root, path, CALTECH_FOLDER);

    if (status != QNN_OK || is_folder(*root))
        return status;
    qnn_ctx__release(ctx, *root);
    *root = NULL;
    status = list_folder(ctx, &list, path, 1);
    if (status == QNN_OK && list.n == 1) {
        names below = {0};

        status = join(ctx, root, path, list.text[0]);
        if (status == QNN_OK)
            status = list_folder(ctx, &below, *root, 1);
        if (below.n == 0) {
            qnn_ctx__release(ctx, *root);
            *root = NULL;
        }
        free_names(ctx, &below);
    }
    free_names(ctx, &list);
    if (status == QNN_OK && *root == NULL)
        status = qnn_ctx__strdup(ctx, root, path);
    if (status != QNN_OK) {
        qnn_ctx__release(ctx, *root);
        *root = NULL;
    }
    return status;
}

static qnn_status add_items(folder *f, const char *class_path, int label, const names *files)
{
    for (size_t i = 0; i < files->n; i++) {
        void *array = f->item;

        QNN_TRY(
            qnn_ctx__grow(f->ctx, &array, &f->cap_items, f->n_items + 1, sizeof *f->item, "items"));
        f->item = array;
        QNN_TRY(join(f->ctx, &f->item[f->n_items].path, class_path, files->text[i]));
        f->item[f->n_items++].label = label;
    }
    return QNN_OK;
}

static qnn_status add_class(folder *f, const char *root, const char *name)
{
    names files = {0};
    char *path;
    qnn_status status;

    QNN_TRY(append(f->ctx, &f->classes, name));
    QNN_TRY(join(f->ctx, &path, root, name));
    status = list_folder(f->ctx, &files, path, 0);
    if (status == QNN_OK && files.n == 0)
        status = qnn_ctx__fail(f->ctx, QNN_ERR_FORMAT, "%s: the class folder is empty", path);
    if (status == QNN_OK)
        status = add_items(f, path, (int)f->classes.n - 1, &files);
    free_names(f->ctx, &files);
    qnn_ctx__release(f->ctx, path);
    return status;
}

static qnn_status read_classes(folder *f, const char *root, const char *exclude)
{
    names list = {0};
    qnn_status status = list_folder(f->ctx, &list, root, 1);

    for (size_t i = 0; status == QNN_OK && i < list.n; i++)
        if (strcmp(list.text[i], exclude) != 0)
            status = add_class(f, root, list.text[i]);
    free_names(f->ctx, &list);
    QNN_TRY(status);
    QNN_RETURN_IF(f->ctx, f->classes.n == 0, QNN_ERR_FORMAT, "%s: no class folder inside", root);
    QNN_RETURN_IF(f->ctx, f->classes.n < 2, QNN_ERR_FORMAT, "%s: only one class folder, \"%s\"",
                  root, f->classes.text[0]);
    return QNN_OK;
}

static qnn_status folder_get(void *user, int64_t i, uint8_t *pixels, int *label, char *err,
                             size_t err_size)
{
    const folder *const f = user;
    qnn_ctx local = {.allocator = f->ctx->allocator}; /* this thread's own error text */
    uint8_t *rgb;
    int h, w;
    qnn_status status = qnn_image_load(&rgb, &h, &w, &local, f->item[i].path);

    if (status == QNN_OK) {
        status = qnn_image_resize(pixels, f->height, f->width, rgb, h, w, &local);
        qnn_image_free(&local, rgb, h, w);
    }
    if (status != QNN_OK)
        snprintf(err, err_size, "%s", local.error);
    *label = f->item[i].label;
    return status;
}

static const char *folder_class_name(void *user, int c)
{
    const folder *const f = user;

    return f->classes.text[c];
}

static qnn_status create(qnn_dataset **out, folder *f, const char *root)
{
    const size_t size = strlen(root) + 100;
    void *text;
    qnn_status status;

    QNN_TRY(qnn_ctx__alloc(f->ctx, &text, size, "a description"));
    snprintf(text, size, "image folder %s (%zu classes, %zu images)", root, f->classes.n,
             f->n_items);
    status = qnn_dataset_create(out, f->ctx,
                                &(qnn_dataset_ops){.description = text,
                                                   .n_items = (int64_t)f->n_items,
                                                   .n_classes = (int)f->classes.n,
                                                   .height = f->height,
                                                   .width = f->width,
                                                   .get = folder_get,
                                                   .class_name = folder_class_name,
                                                   .free = folder_free},
                                f);
    qnn_ctx__release(f->ctx, text);
    return status;
}

qnn_status qnn_dataset_open_folder(qnn_dataset **out, qnn_ctx *ctx, const char *path,
                                   const qnn_image_folder_opts *opts)
{
    const char *const exclude =
        opts != NULL && opts->exclude != NULL ? opts->exclude : "BACKGROUND_Google";
    folder *f;
    char *root;
    void *block;
    qnn_status status;

    if (out == NULL || ctx == NULL)
        return QNN_ERR_ARG;
    *out = NULL;
    QNN_RETURN_IF(ctx, path == NULL || path[0] == '\0', QNN_ERR_ARG,
                  "the image folder's path is empty");
    QNN_TRY(find_root(ctx, &root, path));
    status = qnn_ctx__zalloc(ctx, &block, sizeof *f, "an image folder");
    if (status == QNN_OK) {
        f = block;
        f->ctx = ctx;
        f->height = opts != NULL && opts->height != 0 ? opts->height : 128;
        f->width = opts != NULL && opts->width != 0 ? opts->width : 128;
        status = read_classes(f, root, exclude);
        if (status == QNN_OK)
            status = create(out, f, root);
        if (status != QNN_OK)
            folder_free(f);
    }
    qnn_ctx__release(ctx, root);
    return status;
}
