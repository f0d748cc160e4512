/*
 * Data sets (item i as pixels and a label) and the loader that turns them into normalised batches.
 *
 *     qnn_dataset *ds;  qnn_dataset_open_folder(&ds, ctx, "photos",
 * &(qnn_image_folder_opts){.height = 128, .width = 128}); qnn_loader *ld;   qnn_loader_create(&ld,
 * ctx, ds, indices, n, &(qnn_loader_opts){.batch = 64}); qnn_loader_begin(ld, epoch); while
 * (qnn_loader_next(ld, &x, &y, &n) == QNN_OK && n > 0) ...
 *
 * Threads: get() is called from several threads at once. A loader belongs to one thread.
 */
#ifndef QNN_DATASET_H
#define QNN_DATASET_H

#include <qnn/ctx.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qnn_dataset qnn_dataset;
typedef struct qnn_loader qnn_loader;

/** A data set of the caller's. All items have the same height, width and 3 channels. */
typedef struct qnn_dataset_ops {
    const char *description; /**< copied: "photos (12 classes)" */
    int64_t n_items;
    int n_classes;
    int height, width;
    /** Writes pixels u8 [height][width][3] and *label in 0..n_classes-1. May be called from several
     *  threads at once, so it reports its failure in err (NUL-terminated, at most err_size bytes).
     */
    qnn_status (*get)(void *user, int64_t i, uint8_t *pixels, int *label, char *err,
                      size_t err_size);
    const char *(*class_name)(void *user, int c); /**< optional (NULL: the number as text) */
    void (*free)(void *user); /**< optional; called once by qnn_dataset_free() */
} qnn_dataset_ops;

/** Wraps the caller's callbacks; user must outlive the data set unless ops->free releases it. */
QNN_API QNN_NODISCARD qnn_status qnn_dataset_create(qnn_dataset **out, qnn_ctx *ctx,
                                                    const qnn_dataset_ops *ops, void *user);
QNN_API void qnn_dataset_free(qnn_dataset *ds);

QNN_API int64_t qnn_dataset_size(const qnn_dataset *ds);
QNN_API int qnn_dataset_classes(const qnn_dataset *ds);
QNN_API int qnn_dataset_height(const qnn_dataset *ds);
QNN_API int qnn_dataset_width(const qnn_dataset *ds);
/** Borrowed; lives as long as the data set. NULL when c is out of range. */
QNN_API const char *qnn_dataset_class_name(const qnn_dataset *ds, int c);
/** One line that names the data set, e.g. "image folder /data/caltech101 (101 classes, 8677
 * images)". */
QNN_API const char *qnn_dataset_description(const qnn_dataset *ds);
/** Item i: pixels u8 [height][width][3] and its label. Message goes to ctx. */
QNN_API QNN_NODISCARD qnn_status qnn_dataset_get(qnn_dataset *ds, qnn_ctx *ctx, int64_t i,
                                                 uint8_t *pixels, int *label);

/* ---- image folder: one sub-folder per class ----------------------------------------------------
 */

typedef struct qnn_image_folder_opts {
    int height, width;   /**< every image is resized to this; 0: 128 */
    const char *exclude; /**< name of a class folder to leave out; NULL: "BACKGROUND_Google" */
} qnn_image_folder_opts;

/**
 * Classes are the sub-folders in byte order of their names; files likewise. path may also name the
 * folder above the class folders' parent when that holds exactly one such parent (or one named
 * 101_ObjectCategories). Names that begin with a dot are passed over; every other file must be an
 * image. Nothing is decoded yet: see qnn_dataset_scan().
 * @return QNN_ERR_IO   path cannot be read; QNN_ERR_FORMAT no class folder, or fewer than 2
 * classes, or no image
 */
QNN_API QNN_NODISCARD qnn_status qnn_dataset_open_folder(qnn_dataset **out, qnn_ctx *ctx,
                                                         const char *path,
                                                         const qnn_image_folder_opts *opts);

/* ---- built-in: drawn by the library from a seed -------------------------------------------------
 */

typedef struct qnn_builtin_opts {
    int64_t n_items;   /**< 0: 3000 */
    int height, width; /**< 0: 128 */
    uint64_t seed;
} qnn_builtin_opts;

/** Shapes and textures with random colour, place, size, rotation, clutter and noise; item i is a
 * pure function of (seed, i, height, width), the same on every machine. */
QNN_API QNN_NODISCARD qnn_status qnn_dataset_open_builtin(qnn_dataset **out, qnn_ctx *ctx,
                                                          const qnn_builtin_opts *opts);

/* ---- cache and scan
 * ------------------------------------------------------------------------------ */

/**
 * Wraps a data set so that pixels decoded once are kept as bytes, at most max_bytes of them (items
 * that do not fit are decoded again each time). Takes ownership of inner on success. Scan the
 * wrapped one: what a scan of inner left out stays out and is not listed again.
 */
QNN_API QNN_NODISCARD qnn_status qnn_dataset_cache(qnn_dataset **out, qnn_ctx *ctx,
                                                   qnn_dataset *inner, size_t max_bytes);

/** Returns non-zero to stop. */
typedef int qnn_scan_progress_fn(void *user, int64_t done, int64_t total);

typedef struct qnn_scan_opts {
    int n_threads; /**< 0: the context's */
    int skip_bad;  /**< 0: the first item that fails ends the scan with its error; 1: it is left out
                    */
    qnn_scan_progress_fn *progress; /**< optional; called from the calling thread */
    void *user;
} qnn_scan_opts;

/**
 * Decodes every item once (filling a cache if there is one). With skip_bad, items that fail are
 * taken out of the data set: sizes and indices change.
 * @return QNN_ERR_STOPPED when progress asked to stop; the first bad item's own status otherwise
 */
QNN_API QNN_NODISCARD qnn_status qnn_dataset_scan(qnn_dataset *ds, qnn_ctx *ctx,
                                                  const qnn_scan_opts *opts);
/** How many items scan left out, and what was said of each ("path: reason"). Borrowed. */
QNN_API int64_t qnn_dataset_n_skipped(const qnn_dataset *ds);
QNN_API const char *qnn_dataset_skipped(const qnn_dataset *ds, int64_t k);

/* ---- split and loader
 * ----------------------------------------------------------------------------- */

/**
 * Seeded, reproducible split: a permutation of 0..n_items-1 whose first floor(val_fraction * n)
 * entries are the validation set and the rest the training set. limit > 0 first keeps only limit
 * items of the permutation.
 * @param[out] indices  [n_items] the permutation; validation first
 * @param[out] n_val, n_train
 */
QNN_API QNN_NODISCARD qnn_status qnn_split(int64_t *indices, int64_t *n_val, int64_t *n_train,
                                           qnn_ctx *ctx, int64_t n_items, int64_t limit,
                                           double val_fraction, uint64_t seed);

typedef struct qnn_loader_opts {
    int batch;     /**< 0: 64 */
    int shuffle;   /**< order is a pure function of (seed, epoch) */
    int drop_last; /**< leave out a last batch that is not full */
    uint64_t seed;
    int n_workers;        /**< background decoding threads; 0: 1 */
    int n_prefetch;       /**< batches kept ready; 0: 2 */
    const float *mean;    /**< [3] copied; NULL: 0.485 0.456 0.406 */
    const float *std_dev; /**< [3] copied; NULL: 0.229 0.224 0.225 */
} qnn_loader_opts;

/** @param indices  [n] items of ds, copied. ds must outlive the loader. */
QNN_API QNN_NODISCARD qnn_status qnn_loader_create(qnn_loader **out, qnn_ctx *ctx, qnn_dataset *ds,
                                                   const int64_t *indices, int64_t n,
                                                   const qnn_loader_opts *opts);
QNN_API void qnn_loader_free(qnn_loader *ld);
QNN_API int64_t qnn_loader_batches(const qnn_loader *ld); /**< batches an epoch */
QNN_API int64_t qnn_loader_items(const qnn_loader *ld);   /**< items an epoch, drop-last counted */
QNN_API int qnn_loader_batch(const qnn_loader *ld);
QNN_API qnn_dataset *qnn_loader_dataset(const qnn_loader *ld); /**< borrowed */
/** Starts epoch number epoch (any order of epochs; may be called before the last one ended). */
QNN_API QNN_NODISCARD qnn_status qnn_loader_begin(qnn_loader *ld, int64_t epoch);
/**
 * Next batch. At the end of the epoch *n is 0 and QNN_OK is returned.
 * @param[out] x  f32 [n][height][width][3], (pixel / 255 - mean) / std; borrowed until the next
 * call
 * @param[out] y  i32 [n] labels; borrowed alike
 */
QNN_API QNN_NODISCARD qnn_status qnn_loader_next(qnn_loader *ld, const float **x, const int32_t **y,
                                                 int *n);

#ifdef __cplusplus
}
#endif
#endif
