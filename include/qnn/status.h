/*
 * Status codes and the attributes every qnn header uses.
 *
 * Every function that can fail returns qnn_status: 0 is success, negatives are errors. One line of
 * text about the first failure waits in the context: qnn_ctx_error().
 */
#ifndef QNN_STATUS_H
#define QNN_STATUS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define QNN_API       __attribute__((visibility("default")))
#define QNN_NODISCARD __attribute__((warn_unused_result))
#else
#define QNN_API
#define QNN_NODISCARD
#endif

#ifdef __cplusplus
extern "C" {
#endif

/** Values are ABI: append only. */
typedef enum qnn_status {
    QNN_OK = 0,
    QNN_ERR_ARG = -1,         /**< an argument is out of its documented domain */
    QNN_ERR_SHAPE = -2,       /**< shapes do not fit together */
    QNN_ERR_DTYPE = -3,       /**< a type is not what the operation takes */
    QNN_ERR_UNSUPPORTED = -4, /**< valid, but this version or machine cannot do it */
    QNN_ERR_NOMEM = -5,       /**< an allocation failed */
    QNN_ERR_IO = -6,          /**< the operating system refused; the message has its words */
    QNN_ERR_FORMAT = -7,      /**< a file's bytes are not what its format says */
    QNN_ERR_DEVICE = -8,      /**< an accelerator failed */
    QNN_ERR_STATE = -9,       /**< called in the wrong order */
    QNN_ERR_STOPPED = -10     /**< a callback asked to stop; what was done so far is kept */
} qnn_status;

/** Short English name of a status, "out of memory"; never NULL. Static storage. */
QNN_API const char *qnn_status_name(qnn_status status);

/** Library version, "0.1.0". Static storage. */
QNN_API const char *qnn_version(void);

#ifdef __cplusplus
}
#endif
#endif
