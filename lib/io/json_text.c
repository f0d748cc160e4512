/* JSON over jansson: see the header. */
#include "lib/io/json_text.h"

#include <string.h>

/*
 * jansson's lexer ignores a failed growth of its token buffer: a character is lost without a word,
 * or an assertion ends the program. The buffer never shrinks, so it is made to grow where a loss
 * can be seen: the text becomes
 *     ["xxx...x", TEXT]
 * with a first string longer than any token of TEXT. If that string comes back whole, no later
 * token had to grow the buffer. Its length, 1.5 times a power of two, keeps its closing quote away
 * from the sizes at which the buffer (doubled from 16) grows.
 */
static size_t guard_length(size_t n)
{
    size_t length = 24;

    while (length < n + 8)
        length *= 2;
    return length;
}

static json_t *load_guarded(const char *guarded, size_t n, size_t guard, json_error_t *error)
{
    json_t *root, *inner;

    memset(error, 0, sizeof *error);
    root = json_loadb(guarded, n, JSON_REJECT_DUPLICATES, error);
    if (root == NULL)
        return NULL;
    if (json_array_size(root) != 2) { /* TEXT was not one value */
        strcpy(error->text, "not one JSON value");
        error->position = (int)(guard + 4);
        json_decref(root);
        return NULL;
    }
    inner = json_string_length(json_array_get(root, 0)) == guard ? json_array_get(root, 1) : NULL;
    json_incref(inner);
    json_decref(root);
    return inner;
}

static qnn_status parse_guarded(qnn_ctx *ctx, json_t **out, const char *guarded, size_t n,
                                size_t guard, const char *what)
{
    json_error_t error;

    *out = load_guarded(guarded, n, guard, &error);
    /* A lexer that lacks memory for a string calls it an invalid token; asked again, it succeeds or
       fails earlier, without a text. */
    if (*out == NULL && error.text[0] != '\0')
        *out = load_guarded(guarded, n, guard, &error);
    if (*out != NULL)
        return QNN_OK;
    QNN_RETURN_IF(ctx, error.text[0] == '\0', QNN_ERR_NOMEM, "out of memory: JSON of %s", what);
    return qnn_ctx__fail(ctx, QNN_ERR_FORMAT, "%s: %s at byte %ld", what, error.text,
                         (long)error.position - (long)guard - 4);
}

qnn_status qnn_json__parse(qnn_ctx *ctx, json_t **out, const char *text, size_t n, const char *what)
{
    const size_t guard = guard_length(n), total = guard + n + 5;
    void *block;
    char *p;
    qnn_status status;

    *out = NULL;
    QNN_TRY(qnn_ctx__alloc(ctx, &block, total, what));
    p = block;
    memcpy(p, "[\"", 2);
    memset(p + 2, 'x', guard);
    memcpy(p + 2 + guard, "\",", 2);
    memcpy(p + 4 + guard, text, n);
    p[4 + guard + n] = ']';
    status = parse_guarded(ctx, out, block, total, guard, what);
    qnn_ctx__release(ctx, block);
    return status;
}

qnn_status qnn_json__dump(qnn_ctx *ctx, char **out, const json_t *json)
{
    const size_t flags = JSON_COMPACT | JSON_REAL_PRECISION(9);
    const size_t n = json_dumpb(json, NULL, 0, flags);
    void *block;
    char *text;

    *out = NULL;
    QNN_RETURN_IF(ctx, n == 0, QNN_ERR_NOMEM, "out of memory: JSON text");
    QNN_TRY(qnn_ctx__alloc(ctx, &block, n + 1, "JSON text"));
    text = block;
    if (json_dumpb(json, text, n, flags) != n) {
        qnn_ctx__release(ctx, text);
        return qnn_ctx__fail(ctx, QNN_ERR_NOMEM, "out of memory: JSON text");
    }
    text[n] = '\0';
    *out = text;
    return QNN_OK;
}

const char *qnn_json__unknown_key(json_t *object, const char *const *known)
{
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value)
    {
        int i = 0;

        while (known[i] != NULL && strcmp(known[i], key) != 0)
            i++;
        if (known[i] == NULL)
            return key;
    }
    return NULL;
}

/* Bytes of the character at s, 0 when it is none (RFC 3629: no surrogates, shortest form only). */
static int character(const unsigned char *s)
{
    const int n = s[0] < 0x80                   ? 1
                  : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
                  : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                  : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                                : 0;

    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80)
            return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

int qnn_json__is_utf8(const char *text)
{
    const unsigned char *s = (const unsigned char *)text;

    while (*s != '\0') {
        const int n = character(s);

        if (n == 0)
            return 0;
        s += n;
    }
    return 1;
}
