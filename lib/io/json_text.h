/* JSON over jansson: parsing that tells bad text from a lack of memory, and small checks. */
#ifndef QNN_LIB_IO_JSON_TEXT_H
#define QNN_LIB_IO_JSON_TEXT_H

#include <jansson.h>

#include "lib/internal.h"

/*
 * Duplicate keys and anything after the value are refused. *out is the caller's (json_decref).
 * QNN_ERR_FORMAT: "WHAT: what is wrong at byte N".
 */
qnn_status qnn_json__parse(qnn_ctx *ctx, json_t **out, const char *text, size_t n,
                           const char *what);
/* Compact text, floats with the nine digits that give them back exactly; *out is the context's. */
qnn_status qnn_json__dump(qnn_ctx *ctx, char **out, const json_t *json);
/* The first key of object that is not in known (ends with NULL); NULL: there is none. */
const char *qnn_json__unknown_key(json_t *object, const char *const *known);
/* What JSON and safetensors take as text. */
int qnn_json__is_utf8(const char *text);

#endif
