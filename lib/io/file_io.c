/* Whole files: see the header. */
#define _POSIX_C_SOURCE 200809L
#include "lib/io/file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_CALL      ((size_t)1 << 30) /* read() and write() take no more than 2^31 bytes */
#define MAX_TEMPORARY 100               /* names tried before giving up */

static qnn_status fail(qnn_ctx *ctx, const char *what, const char *path, int error)
{
    char text[128] = "";

    if (strerror_r(error, text, sizeof text) != 0)
        snprintf(text, sizeof text, "error %d", error);
    return qnn_ctx__fail(ctx, error == ENOMEM ? QNN_ERR_NOMEM : QNN_ERR_IO, "cannot %s \"%s\": %s",
                         what, path, text);
}

static qnn_status read_all(qnn_ctx *ctx, int fd, const char *path, void **out, size_t *n)
{
    struct stat st;
    unsigned char *bytes;
    size_t done = 0;

    if (fstat(fd, &st) != 0)
        return fail(ctx, "read", path, errno);
    QNN_RETURN_IF(ctx, !S_ISREG(st.st_mode), QNN_ERR_IO, "cannot read \"%s\": not a regular file",
                  path);
    QNN_TRY(qnn_ctx__alloc(ctx, out, (size_t)st.st_size, path));
    bytes = *out;
    while (done < (size_t)st.st_size) {
        const size_t rest = (size_t)st.st_size - done;
        const ssize_t got = read(fd, bytes + done, rest < MAX_CALL ? rest : MAX_CALL);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail(ctx, "read", path, errno);
        if (got == 0) /* it became shorter: what is there decides */
            break;
        done += (size_t)got;
    }
    *n = done;
    return QNN_OK;
}

qnn_status qnn_file__read(qnn_ctx *ctx, const char *path, void **out, size_t *n)
{
    qnn_status status;
    int fd;

    *out = NULL;
    QNN_RETURN_IF(ctx, path == NULL, QNN_ERR_ARG, "the path is NULL");
    /* O_NONBLOCK: opening a pipe must not wait for its other end */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail(ctx, "open", path, errno);
    status = read_all(ctx, fd, path, out, n);
    (void)close(fd);
    if (status != QNN_OK) {
        qnn_ctx__release(ctx, *out);
        *out = NULL;
    }
    return status;
}

static int write_part(int fd, const qnn_file_part *part)
{
    const unsigned char *const bytes = part->data;
    size_t done = 0;

    while (done < part->bytes) {
        const size_t rest = part->bytes - done;
        const ssize_t put = write(fd, bytes + done, rest < MAX_CALL ? rest : MAX_CALL);

        if (put < 0 && errno != EINTR)
            return -1;
        done += put > 0 ? (size_t)put : 0;
    }
    return 0;
}

/* 0, or the system's error number. The file is closed either way. */
static int write_all(int fd, const qnn_file_part *part, size_t n_parts)
{
    int error = 0;

    for (size_t i = 0; i < n_parts && error == 0; i++)
        if (write_part(fd, &part[i]) != 0)
            error = errno;
    if (error == 0 && fsync(fd) != 0)
        error = errno;
    if (close(fd) != 0 && error == 0)
        error = errno;
    return error;
}

/* The rename itself reaches the disk when its folder does; a system that refuses is not asked
 * twice. */
static void sync_folder(char *path)
{
    char *const slash = strrchr(path, '/');
    int fd;

    if (slash != NULL)
        slash[slash == path] = '\0';
    fd = open(slash != NULL ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)fsync(fd);
    (void)close(fd);
}

/* temporary has room for path and 64 bytes more. */
static qnn_status write_temporary(qnn_ctx *ctx, const char *path, char *temporary,
                                  const qnn_file_part *part, size_t n_parts)
{
    int fd = -1, error;

    for (int i = 0; i < MAX_TEMPORARY && fd < 0; i++) {
        snprintf(temporary, strlen(path) + 64, "%s.%ld-%d.tmp", path, (long)getpid(), i);
        fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    if (fd < 0)
        return fail(ctx, "create", temporary, errno);
    error = write_all(fd, part, n_parts);
    if (error == 0 && rename(temporary, path) != 0)
        error = errno;
    if (error != 0) {
        (void)unlink(temporary);
        return fail(ctx, "write", path, error);
    }
    return QNN_OK;
}

qnn_status qnn_file__write(qnn_ctx *ctx, const char *path, const qnn_file_part *part,
                           size_t n_parts)
{
    void *temporary;
    qnn_status status;

    QNN_RETURN_IF(ctx, path == NULL || path[0] == '\0', QNN_ERR_ARG, "the path is empty");
    QNN_TRY(qnn_ctx__alloc(ctx, &temporary, strlen(path) + 64, "a file's name"));
    status = write_temporary(ctx, path, temporary, part, n_parts);
    if (status == QNN_OK)
        sync_folder(temporary);
    qnn_ctx__release(ctx, temporary);
    return status;
}

int qnn_file__exists(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0;
}
