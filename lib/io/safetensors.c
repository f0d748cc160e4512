/*
 * safetensors: 8 bytes little-endian header length, JSON header, data. docs/file-format.md lists
 * what is refused. Tensors are kept in the order of their names.
 */
#include "lib/io/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "lib/io/file_io.h"
#include "lib/io/json_text.h"

#define MAX_HEADER 100000000u
#define PREFIX     8 /* bytes of the header's length */
#define DATA_ALIGN 8 /* of each tensor in memory: the largest element */
#define METADATA   "__metadata__"

static const struct dtype_info {
    const char *name;
    size_t bytes;
} dtypes[QNN_ST_COUNT] = {
    [QNN_ST_F32] = {"F32", 4}, [QNN_ST_F16] = {"F16", 2}, [QNN_ST_BF16] = {"BF16", 2},
    [QNN_ST_I32] = {"I32", 4}, [QNN_ST_I64] = {"I64", 8}, [QNN_ST_I8] = {"I8", 1},
    [QNN_ST_U8] = {"U8", 1},   [QNN_ST_F64] = {"F64", 8},
};

void qnn_st__init(qnn_st *st, qnn_ctx *ctx)
{
    memset(st, 0, sizeof *st);
    st->ctx = ctx;
}

void qnn_st__free(qnn_st *st)
{
    for (size_t i = 0; i < st->n_tensors; i++)
        qnn_ctx__release(st->ctx, st->tensor[i].name);
    for (size_t i = 0; i < st->n_meta; i++) {
        qnn_ctx__release(st->ctx, st->meta[i].key);
        qnn_ctx__release(st->ctx, st->meta[i].value);
    }
    qnn_ctx__release(st->ctx, st->tensor);
    qnn_ctx__release(st->ctx, st->meta);
    qnn_ctx__release(st->ctx, st->bytes);
    qnn_st__init(st, st->ctx);
}

/* Index of the first tensor whose name is not below name. */
static size_t lower_bound(const qnn_st *st, const char *name)
{
    size_t lo = 0, hi = st->n_tensors;

    while (lo < hi) {
        const size_t mid = lo + (hi - lo) / 2;

        if (strcmp(st->tensor[mid].name, name) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

const qnn_st_tensor *qnn_st__find(const qnn_st *st, const char *name)
{
    const size_t i = lower_bound(st, name);

    return i < st->n_tensors && strcmp(st->tensor[i].name, name) == 0 ? &st->tensor[i] : NULL;
}

const char *qnn_st__meta(const qnn_st *st, const char *key)
{
    for (size_t i = 0; i < st->n_meta; i++)
        if (strcmp(st->meta[i].key, key) == 0)
            return st->meta[i].value;
    return NULL;
}

/* Room for one more tensor at index at, its name copied, the rest zero. */
static qnn_status insert_tensor(qnn_st *st, size_t at, const char *name)
{
    void *array = st->tensor;
    char *copy;
    qnn_status status;

    QNN_TRY(qnn_ctx__strdup(st->ctx, &copy, name));
    status = qnn_ctx__grow(st->ctx, &array, &st->cap_tensors, st->n_tensors + 1, sizeof *st->tensor,
                           "tensors");
    st->tensor = array;
    if (status != QNN_OK) {
        qnn_ctx__release(st->ctx, copy);
        return status;
    }
    memmove(&st->tensor[at + 1], &st->tensor[at], (st->n_tensors - at) * sizeof *st->tensor);
    memset(&st->tensor[at], 0, sizeof *st->tensor);
    st->tensor[at].name = copy;
    st->n_tensors++;
    return QNN_OK;
}

static qnn_status append_meta(qnn_st *st, const char *key, const char *value)
{
    void *array = st->meta;
    qnn_status status =
        qnn_ctx__grow(st->ctx, &array, &st->cap_meta, st->n_meta + 1, sizeof *st->meta, "metadata");
    qnn_st_meta *m;

    st->meta = array;
    QNN_TRY(status);
    m = &st->meta[st->n_meta];
    QNN_TRY(qnn_ctx__strdup(st->ctx, &m->key, key));
    status = qnn_ctx__strdup(st->ctx, &m->value, value);
    if (status != QNN_OK) {
        qnn_ctx__release(st->ctx, m->key);
        return status;
    }
    st->n_meta++;
    return QNN_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

qnn_status qnn_st__add(qnn_st *st, const char *name, qnn_st_dtype dtype, int rank,
                       const int64_t *dim, const void *data)
{
    const size_t at = lower_bound(st, name);
    size_t bytes = dtypes[dtype].bytes;
    qnn_st_tensor *t;

    assert(rank >= 0 && rank <= QNN_ST_MAX_RANK);
    QNN_RETURN_IF(st->ctx,
                  !qnn_json__is_utf8(name) || name[0] == '\0' || strcmp(name, METADATA) == 0,
                  QNN_ERR_ARG, "\"%s\" cannot be a tensor's name", name);
    QNN_RETURN_IF(st->ctx, qnn_st__find(st, name) != NULL, QNN_ERR_ARG,
                  "two tensors are called \"%s\"", name);
    for (int i = 0; i < rank; i++)
        QNN_RETURN_IF(st->ctx, dim[i] < 0 || !qnn_mul_size(bytes, (size_t)dim[i], &bytes),
                      QNN_ERR_ARG, "tensor \"%s\": dimension %d is %lld", name, i,
                      (long long)dim[i]);
    QNN_TRY(insert_tensor(st, at, name));
    t = &st->tensor[at];
    t->dtype = dtype;
    t->rank = rank;
    for (int i = 0; i < rank; i++)
        t->dim[i] = dim[i];
    t->data = data;
    t->bytes = bytes;
    return QNN_OK;
}

qnn_status qnn_st__add_meta(qnn_st *st, const char *key, const char *value)
{
    QNN_RETURN_IF(st->ctx, !qnn_json__is_utf8(key), QNN_ERR_ARG,
                  "a metadata key is not valid UTF-8");
    QNN_RETURN_IF(st->ctx, !qnn_json__is_utf8(value), QNN_ERR_ARG,
                  "metadata \"%s\" is not valid UTF-8", key);
    QNN_RETURN_IF(st->ctx, qnn_st__meta(st, key) != NULL, QNN_ERR_ARG,
                  "two metadata entries are called \"%s\"", key);
    return append_meta(st, key, value);
}

/* Indices of the tensors, largest elements first, so that every tensor is aligned in the file. */
static void sort_for_file(const qnn_st *st, size_t *order)
{
    size_t n = 0;

    for (size_t bytes = DATA_ALIGN; bytes > 0; bytes /= 2)
        for (size_t i = 0; i < st->n_tensors; i++)
            if (dtypes[st->tensor[i].dtype].bytes == bytes)
                order[n++] = i;
    assert(n == st->n_tensors);
}

/* jansson takes over new values whether or not it could store them, so only the verdict is kept. */
static int put_tensor(json_t *header, const qnn_st_tensor *t, size_t begin)
{
    json_t *const entry = json_object(), *const shape = json_array(), *const offsets = json_array();
    int failed = 0;

    for (int i = 0; i < t->rank; i++)
        failed |= json_array_append_new(shape, json_integer((json_int_t)t->dim[i]));
    failed |= json_array_append_new(offsets, json_integer((json_int_t)begin));
    failed |= json_array_append_new(offsets, json_integer((json_int_t)(begin + t->bytes)));
    failed |= json_object_set_new(entry, "dtype", json_string(dtypes[t->dtype].name));
    failed |= json_object_set_new(entry, "shape", shape);
    failed |= json_object_set_new(entry, "data_offsets", offsets);
    failed |= json_object_set_new(header, t->name, entry);
    return failed;
}

/* NULL: out of memory. */
static json_t *make_header(const qnn_st *st, const size_t *order)
{
    json_t *const header = json_object();
    int failed = header == NULL;
    size_t begin = 0;

    if (st->n_meta > 0) {
        json_t *const meta = json_object();

        failed |= json_object_set_new(header, METADATA, meta) != 0;
        for (size_t i = 0; i < st->n_meta && !failed; i++)
            failed |=
                json_object_set_new(meta, st->meta[i].key, json_string(st->meta[i].value)) != 0;
    }
    for (size_t i = 0; i < st->n_tensors && !failed; i++) {
        failed |= put_tensor(header, &st->tensor[order[i]], begin);
        begin += st->tensor[order[i]].bytes;
    }
    if (failed) {
        json_decref(header);
        return NULL;
    }
    return header;
}

static void put_le64(unsigned char *bytes, uint64_t x)
{
    for (int i = 0; i < PREFIX; i++)
        bytes[i] = (unsigned char)(x >> (8 * i));
}

static qnn_status write_parts(const qnn_st *st, const char *path, const char *header,
                              const size_t *order, qnn_file_part *part)
{
    const size_t n = strlen(header), padded = qnn_round_up(n, PREFIX);
    unsigned char prefix[PREFIX];

    QNN_RETURN_IF(st->ctx, padded > MAX_HEADER, QNN_ERR_ARG,
                  "\"%s\": the header would have %zu bytes, over the format's limit of %u", path,
                  padded, MAX_HEADER);
    put_le64(prefix, padded);
    part[0] = (qnn_file_part){prefix, PREFIX};
    part[1] = (qnn_file_part){header, n};
    part[2] = (qnn_file_part){"        ", padded - n};
    for (size_t i = 0; i < st->n_tensors; i++)
        part[3 + i] = (qnn_file_part){st->tensor[order[i]].data, st->tensor[order[i]].bytes};
    return qnn_file__write(st->ctx, path, part, 3 + st->n_tensors);
}

qnn_status qnn_st__write(const qnn_st *st, const char *path)
{
    const size_t n = st->n_tensors;
    void *block;
    size_t *order;
    qnn_file_part *part;
    json_t *json;
    char *text = NULL;
    qnn_status status;

    QNN_TRY(qnn_ctx__alloc(st->ctx, &block, (n + 3) * sizeof *part + n * sizeof *order,
                           "a file's layout"));
    part = block;
    order = (size_t *)(void *)(part + n + 3);
    sort_for_file(st, order);
    json = make_header(st, order);
    status = json == NULL ? qnn_ctx__fail(st->ctx, QNN_ERR_NOMEM, "out of memory: a file's header")
                          : qnn_json__dump(st->ctx, &text, json);
    json_decref(json);
    if (status == QNN_OK)
        status = write_parts(st, path, text, order, part);
    qnn_ctx__release(st->ctx, text);
    qnn_ctx__release(st->ctx, block);
    return status;
}

/* ---- reading --------------------------------------------------------------------------------- */

static qnn_status read_meta(qnn_st *st, json_t *meta)
{
    const char *key;
    json_t *value;

    QNN_RETURN_IF(st->ctx, !json_is_object(meta), QNN_ERR_FORMAT, METADATA " is not an object");
    json_object_foreach(meta, key, value)
    {
        QNN_RETURN_IF(st->ctx, !json_is_string(value), QNN_ERR_FORMAT,
                      METADATA ": \"%s\" is not a string", key);
        QNN_TRY(append_meta(st, key, json_string_value(value)));
    }
    return QNN_OK;
}

static qnn_status read_shape(qnn_st *st, qnn_st_tensor *t, const json_t *shape)
{
    size_t bytes = dtypes[t->dtype].bytes;

    QNN_RETURN_IF(st->ctx, !json_is_array(shape), QNN_ERR_FORMAT,
                  "tensor \"%s\": shape is not an array", t->name);
    QNN_RETURN_IF(st->ctx, json_array_size(shape) > QNN_ST_MAX_RANK, QNN_ERR_FORMAT,
                  "tensor \"%s\": %zu dimensions, at most %d are read", t->name,
                  json_array_size(shape), QNN_ST_MAX_RANK);
    t->rank = (int)json_array_size(shape);
    for (int i = 0; i < t->rank; i++) {
        const json_t *const dim = json_array_get(shape, (size_t)i);

        t->dim[i] = json_integer_value(dim);
        QNN_RETURN_IF(st->ctx, !json_is_integer(dim) || t->dim[i] < 0, QNN_ERR_FORMAT,
                      "tensor \"%s\": dimension %d is not a count", t->name, i);
        QNN_RETURN_IF(st->ctx, !qnn_mul_size(bytes, (size_t)t->dim[i], &bytes), QNN_ERR_FORMAT,
                      "tensor \"%s\": the shape's size overflows", t->name);
    }
    t->bytes = bytes;
    return QNN_OK;
}

/* data, n: the file's data section. Leaves the tensor's place in it in t->data. */
static qnn_status read_offsets(qnn_st *st, qnn_st_tensor *t, const json_t *offsets,
                               const unsigned char *data, size_t n)
{
    const json_t *const first = json_array_get(offsets, 0), *const second =
                                                                json_array_get(offsets, 1);
    const json_int_t begin = json_integer_value(first), end = json_integer_value(second);

    QNN_RETURN_IF(st->ctx,
                  json_array_size(offsets) != 2 || !json_is_integer(first) ||
                      !json_is_integer(second),
                  QNN_ERR_FORMAT, "tensor \"%s\": data_offsets is not two integers", t->name);
    QNN_RETURN_IF(st->ctx, begin < 0 || end < begin || (uint64_t)end > n, QNN_ERR_FORMAT,
                  "tensor \"%s\": bytes %lld to %lld are not inside the %zu bytes of data", t->name,
                  (long long)begin, (long long)end, n);
    QNN_RETURN_IF(st->ctx, (uint64_t)(end - begin) != t->bytes, QNN_ERR_FORMAT,
                  "tensor \"%s\": %lld bytes of data, its type and shape need %zu", t->name,
                  (long long)(end - begin), t->bytes);
    t->data = data + begin;
    return QNN_OK;
}

static qnn_status read_tensor(qnn_st *st, const char *name, json_t *json, const unsigned char *data,
                              size_t n)
{
    static const char *const keys[] = {"dtype", "shape", "data_offsets", NULL};
    const char *dtype, *unknown;
    qnn_st_tensor *t;
    int i = 0;

    QNN_RETURN_IF(st->ctx, name[0] == '\0', QNN_ERR_FORMAT, "a tensor's name is empty");
    QNN_RETURN_IF(st->ctx, !json_is_object(json), QNN_ERR_FORMAT, "tensor \"%s\" is not an object",
                  name);
    unknown = qnn_json__unknown_key(json, keys);
    QNN_RETURN_IF(st->ctx, unknown != NULL, QNN_ERR_FORMAT, "tensor \"%s\": unknown field \"%s\"",
                  name, unknown);
    dtype = json_string_value(json_object_get(json, "dtype"));
    QNN_RETURN_IF(st->ctx, dtype == NULL, QNN_ERR_FORMAT, "tensor \"%s\": dtype is not a string",
                  name);
    while (i < QNN_ST_COUNT && strcmp(dtypes[i].name, dtype) != 0)
        i++;
    QNN_RETURN_IF(st->ctx, i == QNN_ST_COUNT, QNN_ERR_FORMAT, "tensor \"%s\": unknown dtype \"%s\"",
                  name, dtype);
    QNN_TRY(insert_tensor(st, st->n_tensors, name));
    t = &st->tensor[st->n_tensors - 1];
    t->dtype = (qnn_st_dtype)i;
    QNN_TRY(read_shape(st, t, json_object_get(json, "shape")));
    return read_offsets(st, t, json_object_get(json, "data_offsets"), data, n);
}

static int by_place(const void *a, const void *b)
{
    const qnn_st_tensor *const x = a, *const y = b;
    const uintptr_t px = (uintptr_t)x->data, py = (uintptr_t)y->data;

    if (px != py)
        return px < py ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const qnn_st_tensor *)a)->name, ((const qnn_st_tensor *)b)->name);
}

/* Neither overlaps nor holes: sorted by place, each tensor begins where the one before ended. */
static qnn_status check_cover(qnn_st *st, const unsigned char *data, size_t n)
{
    size_t end = 0;

    if (st->n_tensors > 0)
        qsort(st->tensor, st->n_tensors, sizeof *st->tensor, by_place);
    for (size_t i = 0; i < st->n_tensors; i++) {
        const qnn_st_tensor *const t = &st->tensor[i];
        const size_t begin = (size_t)((const unsigned char *)t->data - data);

        QNN_RETURN_IF(st->ctx, begin < end, QNN_ERR_FORMAT,
                      "tensor \"%s\" overlaps \"%s\" at byte %zu of the data", t->name,
                      st->tensor[i - 1].name, begin);
        QNN_RETURN_IF(st->ctx, begin > end, QNN_ERR_FORMAT,
                      "bytes %zu to %zu of the data belong to no tensor", end, begin);
        end = begin + t->bytes;
    }
    QNN_RETURN_IF(st->ctx, end != n, QNN_ERR_FORMAT,
                  "bytes %zu to %zu of the data belong to no tensor", end, n);
    return QNN_OK;
}

/* Into the object's own memory, each tensor aligned whatever its place in the file was. */
static qnn_status copy_data(qnn_st *st)
{
    size_t total = 0;
    unsigned char *to;

    for (size_t i = 0; i < st->n_tensors; i++)
        total += qnn_round_up(st->tensor[i].bytes, DATA_ALIGN);
    QNN_TRY(qnn_ctx__alloc(st->ctx, &st->bytes, total, "a file's tensors"));
    to = st->bytes;
    for (size_t i = 0; i < st->n_tensors; i++) {
        if (st->tensor[i].bytes > 0)
            memcpy(to, st->tensor[i].data, st->tensor[i].bytes);
        st->tensor[i].data = to;
        to += qnn_round_up(st->tensor[i].bytes, DATA_ALIGN);
    }
    return QNN_OK;
}

static qnn_status read_json(qnn_st *st, json_t *json, const unsigned char *data, size_t n)
{
    const char *key;
    json_t *value;

    QNN_RETURN_IF(st->ctx, !json_is_object(json), QNN_ERR_FORMAT, "header is not an object");
    json_object_foreach(json, key, value)
    {
        if (strcmp(key, METADATA) == 0)
            QNN_TRY(read_meta(st, value));
        else
            QNN_TRY(read_tensor(st, key, value, data, n));
    }
    QNN_TRY(check_cover(st, data, n));
    QNN_TRY(copy_data(st));
    if (st->n_tensors > 0)
        qsort(st->tensor, st->n_tensors, sizeof *st->tensor, by_name);
    return QNN_OK;
}

static qnn_status read_bytes(qnn_st *st, const unsigned char *bytes, size_t n)
{
    uint64_t length = 0;
    json_t *json;
    qnn_status status;

    QNN_RETURN_IF(st->ctx, n < PREFIX, QNN_ERR_FORMAT,
                  "%zu bytes are too few for a safetensors file", n);
    for (int i = 0; i < PREFIX; i++)
        length |= (uint64_t)bytes[i] << (8 * i);
    QNN_RETURN_IF(st->ctx, length > MAX_HEADER, QNN_ERR_FORMAT,
                  "header of %llu bytes, the format's limit is %u", (unsigned long long)length,
                  MAX_HEADER);
    QNN_RETURN_IF(st->ctx, length > n - PREFIX, QNN_ERR_FORMAT,
                  "header of %llu bytes, the file has %zu after its length",
                  (unsigned long long)length, n - PREFIX);
    QNN_RETURN_IF(st->ctx, length == 0 || bytes[PREFIX] != '{', QNN_ERR_FORMAT,
                  "header does not begin with {");
    QNN_TRY(
        qnn_json__parse(st->ctx, &json, (const char *)bytes + PREFIX, (size_t)length, "header"));
    status = read_json(st, json, bytes + PREFIX + length, n - PREFIX - (size_t)length);
    json_decref(json);
    return status;
}

qnn_status qnn_st__read_mem(qnn_st *st, qnn_ctx *ctx, const void *bytes, size_t n)
{
    qnn_status status;

    qnn_st__init(st, ctx);
    QNN_RETURN_IF(ctx, bytes == NULL, QNN_ERR_ARG, "the file's bytes are NULL");
    status = read_bytes(st, bytes, n);
    if (status != QNN_OK)
        qnn_st__free(st);
    return status;
}

qnn_status qnn_st__read(qnn_st *st, qnn_ctx *ctx, const char *path)
{
    void *bytes;
    size_t n;
    qnn_status status;

    qnn_st__init(st, ctx);
    QNN_TRY(qnn_file__read(ctx, path, &bytes, &n));
    status = qnn_st__read_mem(st, ctx, bytes, n);
    qnn_ctx__release(ctx, bytes);
    return status;
}
