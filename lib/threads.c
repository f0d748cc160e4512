/*
 * Thread pool of a context: a fork-join over task numbers. Workers spin for a moment after a job,
 * since layers follow each other within microseconds, then sleep on a condition variable.
 */
#define _POSIX_C_SOURCE 200809L
#include "lib/internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#define SPIN_ROUNDS 2000 /* some tens of microseconds: longer than the gap between two layers */

typedef struct worker {
    struct qnn_pool *pool;
    pthread_t thread;
    int index;
} worker;

struct qnn_pool {
    int n_workers; /* the calling thread not counted */
    worker *workers;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    atomic_uint generation; /* one more for each job */
    atomic_int quit;
    /* the job */
    qnn_task_fn *fn;
    void *arg;
    size_t n;
    atomic_size_t next;
    atomic_int busy; /* workers that have not finished the job */
    int n_asleep;    /* under the mutex */
};

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

static void work(struct qnn_pool *p, int thread)
{
    size_t i;

    while ((i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->n)
        p->fn(p->arg, i, thread);
}

static void *worker_main(void *arg)
{
    worker *const w = arg;
    struct qnn_pool *const p = w->pool;
    unsigned seen = 0;

    for (;;) {
        int round = 0;

        while (atomic_load_explicit(&p->generation, memory_order_acquire) == seen) {
            if (++round < SPIN_ROUNDS) {
                relax();
                continue;
            }
            pthread_mutex_lock(&p->mutex);
            p->n_asleep++;
            while (atomic_load_explicit(&p->generation, memory_order_acquire) == seen)
                pthread_cond_wait(&p->wake, &p->mutex);
            p->n_asleep--;
            pthread_mutex_unlock(&p->mutex);
        }
        seen++;
        if (atomic_load_explicit(&p->quit, memory_order_relaxed))
            return NULL;
        work(p, w->index);
        atomic_fetch_sub_explicit(&p->busy, 1, memory_order_release);
    }
}

/* Starts the next generation; sleepers are woken. */
static void announce(struct qnn_pool *p)
{
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add_explicit(&p->generation, 1, memory_order_release);
    if (p->n_asleep > 0)
        pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->mutex);
}

void qnn_ctx__parallel(qnn_ctx *ctx, size_t n, qnn_task_fn *fn, void *arg)
{
    struct qnn_pool *const p = ctx->pool;
    int round = 0;

    if (n <= 1 || p == NULL || p->n_workers == 0) {
        for (size_t i = 0; i < n; i++)
            fn(arg, i, 0);
        return;
    }
    p->fn = fn;
    p->arg = arg;
    p->n = n;
    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store_explicit(&p->busy, p->n_workers, memory_order_relaxed);
    announce(p);
    work(p, 0);
    while (atomic_load_explicit(&p->busy, memory_order_acquire) != 0) {
        relax();
        /* A worker may have lost its processor to another program: let it have this one. */
        if (++round % SPIN_ROUNDS == 0)
            sched_yield();
    }
}

void *qnn_ctx__scratch(qnn_ctx *ctx, int thread)
{
    return ctx->scratch + (size_t)thread * QNN_THREAD_SCRATCH;
}

static void stop_workers(struct qnn_pool *p, int n_started)
{
    if (n_started > 0) {
        atomic_store_explicit(&p->quit, 1, memory_order_relaxed);
        announce(p);
    }
    for (int i = 0; i < n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
}

qnn_status qnn_pool__create(qnn_ctx *ctx)
{
    const int n_workers = ctx->n_threads - 1;
    struct qnn_pool *p;
    void *block;

    if (n_workers == 0)
        return QNN_OK;
    QNN_TRY(qnn_ctx__zalloc(ctx, &block, sizeof *p + (size_t)n_workers * sizeof *p->workers,
                            "the thread pool"));
    p = block;
    p->workers = (worker *)(void *)(p + 1);
    if (pthread_mutex_init(&p->mutex, NULL) != 0) {
        qnn_ctx__release(ctx, p);
        return qnn_ctx__fail(ctx, QNN_ERR_NOMEM, "out of memory: a mutex of the thread pool");
    }
    if (pthread_cond_init(&p->wake, NULL) != 0) {
        pthread_mutex_destroy(&p->mutex);
        qnn_ctx__release(ctx, p);
        return qnn_ctx__fail(ctx, QNN_ERR_NOMEM,
                             "out of memory: a condition variable of the thread pool");
    }
    p->n_workers = n_workers;
    for (int i = 0; i < n_workers; i++) {
        p->workers[i].pool = p;
        p->workers[i].index = i + 1;
        if (pthread_create(&p->workers[i].thread, NULL, worker_main, &p->workers[i]) != 0) {
            stop_workers(p, i);
            pthread_cond_destroy(&p->wake);
            pthread_mutex_destroy(&p->mutex);
            qnn_ctx__release(ctx, p);
            return qnn_ctx__fail(ctx, QNN_ERR_NOMEM, "cannot start thread %d of %d", i + 2,
                                 ctx->n_threads);
        }
    }
    ctx->pool = p;
    return QNN_OK;
}

void qnn_pool__free(qnn_ctx *ctx)
{
    struct qnn_pool *const p = ctx->pool;

    if (p == NULL)
        return;
    stop_workers(p, p->n_workers);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mutex);
    qnn_ctx__release(ctx, p);
    ctx->pool = NULL;
}
