/* Status names, the context's error text and its log. */
#include "lib/internal.h"

#include <stdio.h>

const char *qnn_status_name(qnn_status status)
{
    switch (status) {
    case QNN_OK:
        return "ok";
    case QNN_ERR_ARG:
        return "invalid argument";
    case QNN_ERR_SHAPE:
        return "shapes do not fit";
    case QNN_ERR_DTYPE:
        return "wrong data type";
    case QNN_ERR_UNSUPPORTED:
        return "not supported here";
    case QNN_ERR_NOMEM:
        return "out of memory";
    case QNN_ERR_IO:
        return "input/output error";
    case QNN_ERR_FORMAT:
        return "malformed file";
    case QNN_ERR_DEVICE:
        return "device error";
    case QNN_ERR_STATE:
        return "called in the wrong state";
    case QNN_ERR_STOPPED:
        return "stopped on request";
    }
    return "unknown status";
}

const char *qnn_version(void) { return "0.1.0"; }

qnn_status qnn_ctx__fail(qnn_ctx *ctx, qnn_status status, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(ctx->error, sizeof ctx->error, fmt, args);
    va_end(args);
    return status;
}

void qnn_ctx__log(qnn_ctx *ctx, const char *fmt, ...)
{
    char line[QNN_ERROR_MAX];
    va_list args;

    if (ctx->log == NULL)
        return;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    ctx->log(ctx->log_user, line);
}
