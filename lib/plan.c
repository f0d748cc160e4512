/*
 * Memory plan: every value, gradient and saved block gets an offset in one workspace; blocks whose
 * lifetimes do not meet share bytes.
 *
 * Time: step i runs forward at i and backward at 2 n - 1 - i. Blocks are placed largest first at
 * the lowest offset that is free for their whole life.
 */
#include "lib/exec.h"

#include <stdlib.h>

typedef struct block {
    size_t bytes, offset;
    int start, end; /* inclusive */
    size_t *target; /* where the offset goes */
    int order;      /* for a stable sort */
} block;

typedef struct plan {
    const qnn_program *p;
    int n, n_blocks;
    int *n_reads;  /* [n] edges that read step i's value, outputs counted */
    int *root;     /* [n] the step whose memory step i's value lies in */
    int *end;      /* [n] when the memory of root i is last needed */
    block *blocks; /* [3 n] */
} plan;

static int backward_time(const plan *pl, int step) { return 2 * pl->n - 1 - step; }

static int step_in(const plan *pl, int step, int k)
{
    return pl->p->step_of[pl->p->step[step].n->in[k]];
}

static int runs_backward(const plan *pl, int step)
{
    return pl->p->is_train && pl->p->step[step].needs_grad &&
           pl->p->step[step].op->backward != NULL;
}

static void count_reads(plan *pl)
{
    for (int i = 0; i < pl->n; i++)
        for (int k = 0; k < pl->p->step[i].n->n_in; k++)
            pl->n_reads[step_in(pl, i, k)]++;
    for (int k = 0; k < pl->p->graph->n_outputs; k++)
        pl->n_reads[pl->p->step_of[pl->p->graph->output[k]]]++;
}

/* Step i may write over its first input: nobody else reads it, and no backward pass wants it. */
static int may_share(const plan *pl, int i)
{
    const qnn_step *const s = &pl->p->step[i];
    int from;

    if ((s->flags & QNN_OP_INPLACE) == 0 || pl->p->keep_all)
        return 0;
    from = step_in(pl, i, 0);
    if (pl->p->step[from].input_index >= 0 || pl->n_reads[from] != 1 ||
        pl->p->step[from].out_bytes != s->out_bytes)
        return 0;
    if (pl->p->step[from].needs_grad != s->needs_grad)
        return 0;
    if (runs_backward(pl, from) && (pl->p->step[from].flags & QNN_OP_BWD_DST) != 0)
        return 0;
    if (runs_backward(pl, i) && (s->flags & QNN_OP_BWD_SRC) != 0)
        return 0;
    return 1;
}

static void extend(plan *pl, int step, int time)
{
    const int root = pl->root[step];

    if (time > pl->end[root])
        pl->end[root] = time;
}

static void find_lifetimes(plan *pl)
{
    const int forever = 2 * pl->n;

    for (int i = 0; i < pl->n; i++) {
        pl->root[i] = may_share(pl, i) ? pl->root[step_in(pl, i, 0)] : i;
        extend(pl, i, pl->p->keep_all ? forever : i);
        if (runs_backward(pl, i) && (pl->p->step[i].flags & QNN_OP_BWD_DST) != 0)
            extend(pl, i, backward_time(pl, i));
        for (int k = 0; k < pl->p->step[i].n->n_in; k++) {
            const int from = step_in(pl, i, k);

            extend(pl, from, i);
            if (runs_backward(pl, i) && (pl->p->step[i].flags & QNN_OP_BWD_SRC) != 0)
                extend(pl, from, backward_time(pl, i));
        }
    }
    for (int k = 0; k < pl->p->graph->n_outputs; k++)
        extend(pl, pl->p->step_of[pl->p->graph->output[k]],
               pl->n); /* read after the last step, by the loss or the caller */
}

static void add_block(plan *pl, size_t bytes, int start, int end, size_t *target)
{
    block *const b = &pl->blocks[pl->n_blocks];

    if (bytes == 0)
        return;
    b->bytes = qnn_round_up(bytes, QNN_ALIGN);
    b->start = start;
    b->end = end;
    b->target = target;
    b->order = pl->n_blocks++;
}

/* When the gradient of step i's output is first written: by the loss, or by its last reader's
 * backward. */
static int gradient_start(const plan *pl, int i)
{
    int start = backward_time(pl, i);

    for (int c = i + 1; c < pl->n; c++)
        for (int k = 0; k < pl->p->step[c].n->n_in; k++)
            if (step_in(pl, c, k) == i && backward_time(pl, c) < start)
                start = backward_time(pl, c);
    for (int k = 0; k < pl->p->graph->n_outputs; k++)
        if (pl->p->step_of[pl->p->graph->output[k]] == i)
            start = pl->n - 1;
    return start;
}

static void collect(plan *pl)
{
    for (int i = 0; i < pl->n; i++) {
        qnn_step *const s = &pl->p->step[i];

        if (s->input_index < 0 && pl->root[i] == i)
            add_block(pl, s->out_bytes, i, pl->end[i], &s->out);
        if (pl->p->is_train)
            add_block(pl, s->saved_bytes, i, backward_time(pl, i), &s->saved);
    }
    for (int i = 0; i < pl->n; i++) {
        qnn_step *const s = &pl->p->step[i];

        if (!s->needs_grad)
            continue;
        /* The gradient shares its memory along the same chains as the value: the last of the chain
         * starts it, its root ends it. */
        if (pl->root[i] == i) {
            int last = i;

            for (int c = i + 1; c < pl->n; c++)
                if (pl->root[c] == i)
                    last = c;
            add_block(pl, s->out_bytes, gradient_start(pl, last),
                      s->input_index >= 0 ? 2 * pl->n : backward_time(pl, i), &s->dout);
        }
    }
}

static int larger_first(const void *a, const void *b)
{
    const block *const x = a, *const y = b;

    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x->order < y->order ? -1 : 1;
}

/* Lowest offset at which block k meets none of the blocks placed before it. */
static size_t place(const block *blocks, int k)
{
    size_t offset = 0;
    int moved = 1;

    while (moved) {
        moved = 0;
        for (int i = 0; i < k; i++) {
            const block *const b = &blocks[i];
            const int meets_in_time = b->start <= blocks[k].end && blocks[k].start <= b->end;

            if (meets_in_time && b->offset < offset + blocks[k].bytes &&
                offset < b->offset + b->bytes) {
                offset = b->offset + b->bytes;
                moved = 1;
            }
        }
    }
    return offset;
}

static void place_all(plan *pl, size_t *total)
{
    *total = 0;
    qsort(pl->blocks, (size_t)pl->n_blocks, sizeof *pl->blocks, larger_first);
    for (int k = 0; k < pl->n_blocks; k++) {
        block *const b = &pl->blocks[k];

        b->offset = place(pl->blocks, k);
        *b->target = b->offset;
        if (b->offset + b->bytes > *total)
            *total = b->offset + b->bytes;
    }
}

static void share_offsets(plan *pl)
{
    for (int i = 0; i < pl->n; i++) {
        qnn_step *const s = &pl->p->step[i];

        if (pl->root[i] != i) {
            s->out = pl->p->step[pl->root[i]].out;
            if (s->needs_grad)
                s->dout = pl->p->step[pl->root[i]].dout;
        }
    }
}

qnn_status qnn_program__plan(qnn_program *p)
{
    const size_t n = (size_t)p->n_steps;
    plan pl = {.p = p, .n = p->n_steps};
    size_t scratch = 0;
    void *memory;
    int *ints;

    QNN_TRY(qnn_ctx__zalloc(p->ctx, &memory, n * (3 * sizeof(int) + 3 * sizeof(block)),
                            "the memory plan"));
    pl.blocks = memory;
    ints = (int *)(void *)(pl.blocks + 3 * n);
    pl.n_reads = ints;
    pl.root = ints + n;
    pl.end = ints + 2 * n;
    count_reads(&pl);
    find_lifetimes(&pl);
    collect(&pl);
    place_all(&pl, &p->workspace);
    share_offsets(&pl);
    qnn_ctx__release(p->ctx, memory);
    for (int i = 0; i < p->n_steps; i++)
        if (p->step[i].scratch_bytes > scratch)
            scratch = p->step[i].scratch_bytes;
    p->scratch = p->workspace;
    p->workspace += qnn_round_up(scratch, QNN_ALIGN);
    return QNN_OK;
}
