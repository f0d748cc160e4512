/* Convolution in f32: the gather behind implicit GEMM, forward, backward by data, by weights and by
 * bias. */
#include "lib/conv.h"

#include <math.h>
#include <string.h>

#include "lib/qmath.h"

#define MAX_SHARDS 16
/* Above this many elements a weight gradient is not sharded: copies of it would cost more than they
 * gain. */
#define MAX_SHARDED_WEIGHTS ((size_t)1 << 19)

/* ---- the gather ------------------------------------------------------------------------------ */

qnn_conv_view qnn_conv__view(const qnn_conv *c, const void *src, size_t size, int fill,
                             size_t group)
{
    const qnn_conv_view v = {
        .data = (const unsigned char *)src + group * qnn_conv__icg(c) * size,
        .size = size,
        .fill = fill,
        .h = c->ih,
        .w = c->iw,
        .c = c->ic,
        .cg = qnn_conv__icg(c),
        .oh = c->oh,
        .ow = c->ow,
        .kh = c->kh,
        .kw = c->kw,
        .sh = c->sh,
        .sw = c->sw,
        .dh = c->dh,
        .dw = c->dw,
        .up_h = 1,
        .up_w = 1,
        .pt = (ptrdiff_t)c->pt,
        .pl = (ptrdiff_t)c->pl,
    };

    return v;
}

int qnn_conv__is_plain(const qnn_conv *c)
{
    return c->kh == 1 && c->kw == 1 && c->sh == 1 && c->sw == 1 && c->pt == 0 && c->pl == 0 &&
           c->oh == c->ih && c->ow == c->iw;
}

/* Elements first..first+len-1 of the row of pixels that begins at image column x0 (which may lie
   outside), all channels of a pixel adjacent: one run, with padding on either side. */
static void copy_run(const qnn_conv_view *v, const unsigned char *row, ptrdiff_t x0, size_t first,
                     size_t len, unsigned char *dst)
{
    const ptrdiff_t begin = x0 * (ptrdiff_t)v->c + (ptrdiff_t)first, end = begin + (ptrdiff_t)len,
                    limit = (ptrdiff_t)(v->w * v->c);
    const ptrdiff_t from = begin < 0 ? 0 : begin, to = end > limit ? limit : end;

    if (from >= to) {
        memset(dst, v->fill, len * v->size);
        return;
    }
    if (from > begin)
        memset(dst, v->fill, (size_t)(from - begin) * v->size);
    memcpy(dst + (size_t)(from - begin) * v->size, row + (size_t)from * v->size,
           (size_t)(to - from) * v->size);
    if (end > to)
        memset(dst + (size_t)(to - begin) * v->size, v->fill, (size_t)(end - to) * v->size);
}

/* The same when pixels are apart (dilation, groups, zeros between pixels): tap by tap. */
static void copy_taps(const qnn_conv_view *v, const unsigned char *row, ptrdiff_t x0, size_t first,
                      size_t len, unsigned char *dst)
{
    while (len > 0) {
        const size_t tap = first / v->cg, ch = first % v->cg,
                     part = v->cg - ch < len ? v->cg - ch : len;
        const ptrdiff_t x = x0 + (ptrdiff_t)(tap * v->dw);

        if (x < 0 || x % (ptrdiff_t)v->up_w != 0 || x / (ptrdiff_t)v->up_w >= (ptrdiff_t)v->w)
            memset(dst, v->fill, part * v->size);
        else
            memcpy(dst, row + ((size_t)x / v->up_w * v->c + ch) * v->size, part * v->size);
        dst += part * v->size;
        first += part;
        len -= part;
    }
}

/* Short copies are most of a gather's work: without the call they cost a few instructions. */
static inline void copy_bytes(unsigned char *dst, const unsigned char *src, size_t n)
{
    if (n > 64) {
        memcpy(dst, src, n);
    } else if (n >= 16) {
        for (size_t i = 0; i + 16 < n; i += 16)
            memcpy(dst + i, src + i, 16);
        memcpy(dst + n - 16, src + n - 16, 16); /* overlaps what is there already */
    } else if (n >= 8) {
        memcpy(dst, src, 8);
        memcpy(dst + n - 8, src + n - 8, 8);
    } else {
        for (size_t i = 0; i < n; i++)
            dst[i] = src[i];
    }
}

/* One row of taps (kernel row `tap`), elements first..first+len-1 of it, for n pixels of output row
 * oy from column ox on. */
static void gather_taps(const qnn_conv_view *v, const unsigned char *img, size_t oy, size_t ox,
                        size_t n, size_t tap, size_t first, size_t len, unsigned char *dst,
                        size_t ld)
{
    const ptrdiff_t y = (ptrdiff_t)(oy * v->sh + tap * v->dh) - v->pt, up_h = (ptrdiff_t)v->up_h;
    const int is_run = v->dw == 1 && v->cg == v->c && v->up_w == 1;
    const size_t bytes = len * v->size, pixel = v->c * v->size;
    const unsigned char *row;
    ptrdiff_t x0 = (ptrdiff_t)(ox * v->sw) - v->pl;

    if (y < 0 || (up_h > 1 && y % up_h != 0) || y / up_h >= (ptrdiff_t)v->h) {
        for (size_t i = 0; i < n; i++, dst += ld)
            memset(dst, v->fill, bytes);
        return;
    }
    row = img + (size_t)(y / up_h) * v->w * pixel;
    for (size_t i = 0; i < n; i++, dst += ld, x0 += (ptrdiff_t)v->sw) {
        if (!is_run)
            copy_taps(v, row, x0, first, len, dst);
        else if (x0 >= 0 && x0 + (ptrdiff_t)v->kw <= (ptrdiff_t)v->w)
            copy_bytes(dst, row + (size_t)x0 * pixel + first * v->size, bytes);
        else
            copy_run(v, row, x0, first, len, dst);
    }
}

static void gather(const qnn_conv_view *v, size_t r0, size_t nr, size_t c0, size_t nc,
                   unsigned char *dst, size_t ld)
{
    const size_t pixels = v->oh * v->ow, image = v->h * v->w * v->c * v->size, run = v->kw * v->cg;

    while (nr > 0) { /* a piece of one output row at a time */
        const size_t ox = r0 % v->ow, oy = r0 / v->ow % v->oh,
                     n = v->ow - ox < nr ? v->ow - ox : nr;
        const unsigned char *const img = v->data + r0 / pixels * image;

        for (size_t c = c0; c < c0 + nc;) {
            const size_t first = c % run,
                         len = run - first < c0 + nc - c ? run - first : c0 + nc - c;

            gather_taps(v, img, oy, ox, n, c / run, first, len, dst + (c - c0) * v->size, ld);
            c += len;
        }
        r0 += n;
        nr -= n;
        dst += n * ld;
    }
}

void qnn_conv__gather_f32(const void *view, size_t r0, size_t nr, size_t c0, size_t nc, float *dst,
                          size_t ld)
{
    gather(view, r0, nr, c0, nc, (unsigned char *)dst, ld * sizeof *dst);
}

void qnn_conv__gather_u8(const void *view, size_t r0, size_t nr, size_t c0, size_t nc, uint8_t *dst,
                         size_t ld)
{
    gather(view, r0, nr, c0, nc, dst, ld);
}

/* ---- forward --------------------------------------------------------------------------------- */

/* An f32 inference program's constants: this, then packed weights of each pass, then the bias. */
typedef struct f32_packed {
    size_t weights, stride; /* float offsets from the block's start */
    size_t bias;            /* 0: none */
} f32_packed;

static size_t packed_floats(const qnn_step *s, size_t k, size_t n)
{
    return qnn_round_up(qnn_gemm__packed_f32(s->p->k->gemm_f32, k, n), QNN_ALIGN / sizeof(float));
}

/* A pass is one group, or a whole depthwise convolution. */
static size_t n_passes(const qnn_conv *c) { return qnn_conv__is_depthwise(c) ? 1 : c->groups; }

/* Packed weights of one pass. */
static size_t pass_floats(const qnn_step *s, const qnn_conv *c)
{
    if (qnn_conv__is_depthwise(c))
        return qnn_round_up(qnn_conv__k(c) * c->oc, QNN_ALIGN / sizeof(float));
    return packed_floats(s, qnn_conv__k(c), qnn_conv__ocg(c));
}

/* Weights of one group as B [k][ocg]. */
static qnn_mat weights_mat(const qnn_conv *c, const float *w, size_t group)
{
    const size_t k = qnn_conv__k(c);

    return (qnn_mat){.data = w + group * qnn_conv__ocg(c) * k, .rs = 1, .cs = k};
}

static void pack_pass(qnn_ctx *ctx, const qnn_gemm_f32_kernel *ker, const qnn_conv *c, size_t pass,
                      const float *w, float *packed)
{
    const qnn_mat b = weights_mat(c, w, pass);

    if (qnn_conv__is_depthwise(c))
        qnn_depthwise__pack_f32(c, w, 0, packed);
    else
        qnn_gemm__pack_f32(ctx, ker, qnn_conv__k(c), qnn_conv__ocg(c), &b, packed);
}

static void forward_pass(qnn_exec *x, const qnn_step *s, const qnn_conv *c, size_t pass,
                         const float *packed, const float *bias)
{
    const size_t ocg = qnn_conv__ocg(c);
    const float *const src = qnn_exec__in(x, s, 0);
    float *const dst = qnn_exec__out(x, s);
    const qnn_conv_view view = qnn_conv__view(c, src, sizeof *src, 0, pass);
    qnn_gemm_f32_args g = {
        .m = (size_t)x->n * c->oh * c->ow,
        .n = ocg,
        .k = qnn_conv__k(c),
        .a = {.gather = qnn_conv__gather_f32, .arg = &view},
        .b = packed,
        .c = dst + pass * ocg,
        .ldc = c->oc,
        .bias = bias != NULL ? bias + pass * ocg : NULL,
        .lo = s->n->a.lo,
        .hi = s->n->a.hi,
    };

    if (qnn_conv__is_depthwise(c)) {
        const qnn_depthwise_f32_args d = {view, (size_t)x->n, packed, dst, 0, bias, g.lo, g.hi};

        qnn_depthwise__f32(x->ctx, x->k->vec, &d);
        return;
    }
    if (qnn_conv__is_plain(c))
        g.a = (qnn_mat){.data = src + pass * qnn_conv__icg(c), .rs = c->ic, .cs = 1};
    qnn_gemm__f32(x->ctx, x->k->gemm_f32, x->k->vec, &g);
}

/* Stored weights of any dtype as f32. */
static qnn_status widen(qnn_step *s, const qnn_param *w, float *dst)
{
    const size_t per = w->count / (size_t)w->dim[0];

    switch (w->dtype) {
    case QNN_DTYPE_F32:
        memcpy(dst, w->data, w->bytes);
        return QNN_OK;
    case QNN_DTYPE_F16:
        s->p->k->vec->f16_to_f32(w->count, w->data, dst);
        return QNN_OK;
    case QNN_DTYPE_BF16:
        s->p->k->vec->bf16_to_f32(w->count, w->data, dst);
        return QNN_OK;
    case QNN_DTYPE_S4:
        for (size_t i = 0; i < w->count; i++) {
            int8_t pair[2];

            qnn_qmath__unpack_s4((const uint8_t *)w->data + i / 2, 2, pair);
            dst[i] = w->scale[w->n_scale > 1 ? i / per : 0] * (float)pair[i % 2];
        }
        return QNN_OK;
    case QNN_DTYPE_I8:
    case QNN_DTYPE_U8:
    case QNN_DTYPE_I32:
        break;
    }
    return qnn_ctx__fail(s->p->ctx, QNN_ERR_DTYPE, "%s \"%s\": %s weights need a quantised input",
                         s->op->name, s->n->name, qnn_dtype_name(w->dtype));
}

/* Weights as f32, fake-quantised where the node says so, in a block the caller releases. */
static qnn_status inference_weights(qnn_step *s, float **out)
{
    const qnn_param *const w = &s->n->param[QNN_P_WEIGHT];
    const size_t channels = (size_t)w->dim[0];
    qnn_ctx *const ctx = s->p->ctx;
    void *block;
    qnn_status status;

    QNN_TRY(
        qnn_ctx__alloc(ctx, &block, (w->count + channels) * sizeof(float), "weights being packed"));
    *out = block;
    status = widen(s, w, *out);
    if (status == QNN_OK && s->n->a.wq == QNN_WQ_FAKE)
        qnn_qmath__fake_weights(ctx, *out, channels, w->count / channels,
                                s->n->a.w_bits == 4 ? 7 : 127, s->n->a.w_per_channel,
                                *out + w->count, *out);
    if (status != QNN_OK)
        qnn_ctx__release(ctx, block);
    return status;
}

static qnn_status prepare_f32(qnn_step *s, const qnn_conv *c)
{
    const qnn_param *const bias = &s->n->param[QNN_P_BIAS];
    const size_t header = qnn_round_up(sizeof(f32_packed), QNN_ALIGN) / sizeof(float);
    const size_t stride = pass_floats(s, c), bias_at = header + n_passes(c) * stride;
    f32_packed *p;
    float *w;
    void *block;
    qnn_status status;

    QNN_TRY(inference_weights(s, &w));
    status = qnn_step__pack(s, &block, (bias_at + c->oc) * sizeof(float));
    if (status == QNN_OK) {
        float *const base = block;

        p = block;
        *p = (f32_packed){
            .weights = header, .stride = stride, .bias = bias->count > 0 ? bias_at : 0};
        for (size_t pass = 0; pass < n_passes(c); pass++)
            pack_pass(s->p->ctx, s->p->k->gemm_f32, c, pass, w, base + header + pass * stride);
        if (bias->count > 0)
            status = widen(s, bias, base + p->bias);
    }
    qnn_ctx__release(s->p->ctx, w);
    return status;
}

/* ---- training: what lies where in the scratch ------------------------------------------------ */

typedef struct train_scratch {
    size_t fake, scales, packed, partial, floats; /* float offsets; floats: the total */
} train_scratch;

static size_t weight_shards(const qnn_conv *c, size_t n)
{
    if (qnn_conv__k(c) * c->oc > MAX_SHARDED_WEIGHTS)
        return 1;
    return n < MAX_SHARDS ? n : MAX_SHARDS;
}

static int has_clip(const qnn_step *s) { return s->n->a.lo > -INFINITY || s->n->a.hi < INFINITY; }

static train_scratch train_layout(const qnn_step *s, const qnn_conv *c)
{
    const size_t k = qnn_conv__k(c), ocg = qnn_conv__ocg(c), icg = qnn_conv__icg(c),
                 n = (size_t)s->p->max_batch;
    const int is_depthwise = qnn_conv__is_depthwise(c);
    const size_t forward = pass_floats(s, c), bias_partial = MAX_SHARDS * c->oc;
    const size_t backward = is_depthwise ? forward : packed_floats(s, c->kh * c->kw * ocg, icg);
    const size_t weight_partial = is_depthwise
                                      ? weight_shards(c, n) * k * c->oc
                                      : qnn_gemm__at_b_scratch(ocg, k, weight_shards(c, n));
    const int is_fake = s->n->a.wq == QNN_WQ_FAKE;
    train_scratch t = {0};

    t.fake = 0;
    t.scales = t.fake + (is_fake ? qnn_round_up(k * c->oc, 16) : 0);
    t.packed = t.scales + (is_fake ? qnn_round_up(c->oc, 16) : 0);
    t.partial = t.packed + (forward > backward ? forward : backward);
    t.floats = t.partial + (weight_partial > bias_partial ? weight_partial : bias_partial);
    return t;
}

/* The weights that this pass multiplies by: the parameters, or their fake-quantised values in the
 * scratch. */
static const float *train_weights(qnn_exec *x, const qnn_step *s, const qnn_conv *c,
                                  const train_scratch *t)
{
    const float *const w = s->n->param[QNN_P_WEIGHT].data;
    float *const scratch = qnn_exec__scratch(x, s);

    if (s->n->a.wq != QNN_WQ_FAKE)
        return w;
    qnn_qmath__fake_weights(x->ctx, w, c->oc, qnn_conv__k(c), s->n->a.w_bits == 4 ? 7 : 127,
                            s->n->a.w_per_channel, scratch + t->scales, scratch + t->fake);
    return scratch + t->fake;
}

static void forward_train(qnn_exec *x, const qnn_step *s, const qnn_conv *c)
{
    const train_scratch t = train_layout(s, c);
    const float *const w = train_weights(x, s, c, &t);
    float *const packed = (float *)qnn_exec__scratch(x, s) + t.packed;

    for (size_t pass = 0; pass < n_passes(c); pass++) {
        pack_pass(x->ctx, x->k->gemm_f32, c, pass, w, packed);
        forward_pass(x, s, c, pass, packed, s->n->param[QNN_P_BIAS].data);
    }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* Weights of one group for backward by data: B [kh][kw][ocg] x [icg], taps flipped so that the
 * window slides forwards. */
typedef struct flipped {
    const float *w;
    const qnn_conv *c;
} flipped;

static void gather_flipped(const void *arg, size_t r0, size_t nr, size_t c0, size_t nc, float *dst,
                           size_t ld)
{
    const flipped *const f = arg;
    const size_t ocg = qnn_conv__ocg(f->c), taps = f->c->kh * f->c->kw, icg = qnn_conv__icg(f->c);

    for (size_t i = 0; i < nr; i++) {
        const size_t tap = taps - 1 - (r0 + i) / ocg, oc = (r0 + i) % ocg;

        memcpy(dst + i * ld, f->w + (oc * taps + tap) * icg + c0, nc * sizeof *dst);
    }
}

static void backward_data(qnn_exec *x, const qnn_step *s, const qnn_conv *c, const float *dout,
                          const float *w, float *packed)
{
    const size_t ocg = qnn_conv__ocg(c), icg = qnn_conv__icg(c), k = c->kh * c->kw * ocg;
    float *const din = qnn_exec__din(x, s, 0);

    for (size_t g = 0; g < n_passes(c); g++) {
        const flipped f = {w + g * ocg * qnn_conv__k(c), c};
        const qnn_mat b = {.gather = gather_flipped, .arg = &f};
        const qnn_conv_view view = {
            .data = (const unsigned char *)(dout + g * ocg),
            .size = sizeof *dout,
            .h = c->oh,
            .w = c->ow,
            .c = c->oc,
            .cg = ocg,
            .oh = c->ih,
            .ow = c->iw,
            .kh = c->kh,
            .kw = c->kw,
            .sh = 1,
            .sw = 1,
            .dh = c->dh,
            .dw = c->dw,
            .up_h = c->sh,
            .up_w = c->sw,
            .pt = (ptrdiff_t)(c->dh * (c->kh - 1)) - (ptrdiff_t)c->pt,
            .pl = (ptrdiff_t)(c->dw * (c->kw - 1)) - (ptrdiff_t)c->pl,
        };
        qnn_gemm_f32_args a = {
            .m = (size_t)x->n * c->ih * c->iw,
            .n = icg,
            .k = k,
            .a = {.gather = qnn_conv__gather_f32, .arg = &view},
            .b = packed,
            .c = din + g * icg,
            .ldc = c->ic,
            .beta = qnn_exec__din_beta(x, s, 0),
            .lo = -INFINITY,
            .hi = INFINITY,
        };

        if (qnn_conv__is_depthwise(c)) {
            const qnn_depthwise_f32_args d = {view,   (size_t)x->n, packed, din,
                                              a.beta, NULL,         a.lo,   a.hi};

            qnn_depthwise__pack_f32(c, w, 1, packed);
            qnn_depthwise__f32(x->ctx, x->k->vec, &d);
            return;
        }
        if (qnn_conv__is_plain(c))
            a.a = (qnn_mat){.data = dout + g * ocg, .rs = c->oc, .cs = 1};
        qnn_gemm__pack_f32(x->ctx, x->k->gemm_f32, k, icg, &b, packed);
        qnn_gemm__f32(x->ctx, x->k->gemm_f32, x->k->vec, &a);
    }
}

static void backward_weights(qnn_exec *x, const qnn_step *s, const qnn_conv *c, const float *dout,
                             float *dw, float *partial)
{
    const size_t ocg = qnn_conv__ocg(c), k = qnn_conv__k(c), pixels = c->oh * c->ow;
    const float *const src = qnn_exec__in(x, s, 0);

    for (size_t g = 0; g < n_passes(c); g++) {
        const qnn_conv_view view = qnn_conv__view(c, src, sizeof *src, 0, g);
        qnn_mat b = {.gather = qnn_conv__gather_f32, .arg = &view};

        if (qnn_conv__is_depthwise(c)) {
            qnn_depthwise__weights_f32(x->ctx, &view, (size_t)x->n, weight_shards(c, (size_t)x->n),
                                       dout, partial, dw);
            return;
        }
        if (qnn_conv__is_plain(c))
            b = (qnn_mat){.data = src + g * qnn_conv__icg(c), .rs = c->ic, .cs = 1};
        qnn_gemm__at_b(x->ctx, x->k->gemm_f32, ocg, k, (size_t)x->n * pixels, pixels,
                       weight_shards(c, (size_t)x->n), dout + g * ocg, c->oc, &b, dw + g * ocg * k,
                       k, partial);
    }
}

typedef struct bias_job {
    const qnn_vec_kernel *vec;
    const float *dout;
    size_t n, pixels, oc, n_shards;
    float *partial;
} bias_job;

static void bias_task(void *arg, size_t shard, int thread)
{
    const bias_job *const j = arg;
    const size_t first = shard * j->n / j->n_shards, last = (shard + 1) * j->n / j->n_shards;
    float *const sum = j->partial + shard * j->oc;

    (void)thread;
    memset(sum, 0, j->oc * sizeof *sum);
    j->vec->col_sum((last - first) * j->pixels, j->oc, j->dout + first * j->pixels * j->oc, j->oc,
                    sum);
}

static void backward_bias(qnn_exec *x, const qnn_conv *c, const float *dout, float *dbias,
                          float *partial)
{
    bias_job j = {x->k->vec,     dout,  (size_t)x->n,
                  c->oh * c->ow, c->oc, x->n < MAX_SHARDS ? (size_t)x->n : MAX_SHARDS,
                  partial};

    qnn_ctx__parallel(x->ctx, j.n_shards, bias_task, &j);
    j.vec->col_sum(j.n_shards, c->oc, partial, c->oc, dbias);
}

typedef struct clip_job {
    const qnn_vec_kernel *vec;
    const float *y;
    float lo, hi, *dy;
    size_t per;
} clip_job;

static void clip_task(void *arg, size_t i, int thread)
{
    const clip_job *const j = arg;
    float *const dy = j->dy + i * j->per;

    (void)thread;
    j->vec->clip_bwd(j->per, j->y + i * j->per, j->lo, j->hi, dy, 0, dy);
}

void qnn_conv__backward(qnn_exec *x, const qnn_step *s, const qnn_conv *c)
{
    const train_scratch t = train_layout(s, c);
    float *const scratch = qnn_exec__scratch(x, s);
    float *const dw = qnn_exec__dparam(x, s, QNN_P_WEIGHT), *const dbias =
                                                                qnn_exec__dparam(x, s, QNN_P_BIAS);
    float *const dout = qnn_exec__dout(x, s);

    if (has_clip(s)) { /* in place: nothing reads this gradient after this step */
        clip_job j = {x->k->vec, qnn_exec__out(x, s),  s->n->a.lo, s->n->a.hi,
                      dout,      c->oh * c->ow * c->oc};

        qnn_ctx__parallel(x->ctx, (size_t)x->n, clip_task, &j);
    }
    if (dbias != NULL)
        backward_bias(x, c, dout, dbias, scratch + t.partial);
    if (dw != NULL)
        backward_weights(x, s, c, dout, dw, scratch + t.partial);
    if (qnn_exec__din(x, s, 0) != NULL)
        backward_data(x, s, c, dout, train_weights(x, s, c, &t), scratch + t.packed);
}

/* ---- what the ops call ----------------------------------------------------------------------- */

qnn_status qnn_conv__declare(qnn_model *m, qnn_node_data *n, int rank, const int64_t *weight_dim)
{
    const char *const op = qnn_ops[n->kind]->name;
    const int32_t wq = n->a.wq;
    const int is_int8 = wq == QNN_WQ_STATIC || wq == QNN_WQ_DYNAMIC;
    const qnn_dtype in = m->node[n->in[0]]->dtype;

    QNN_RETURN_IF(m->ctx, wq < QNN_WQ_NONE || wq > QNN_WQ_DYNAMIC, QNN_ERR_ARG,
                  "%s \"%s\": weight quantisation %d is unknown", op, n->name, (int)wq);
    QNN_RETURN_IF(m->ctx, n->a.w_bits != 8 && n->a.w_bits != 4, QNN_ERR_ARG,
                  "%s \"%s\": %d-bit weights, expected 8 or 4", op, n->name, (int)n->a.w_bits);
    QNN_RETURN_IF(m->ctx, !(n->a.lo < n->a.hi), QNN_ERR_ARG, "%s \"%s\": clip from %g to %g", op,
                  n->name, (double)n->a.lo, (double)n->a.hi);
    QNN_RETURN_IF(m->ctx, in != (wq == QNN_WQ_STATIC ? QNN_DTYPE_U8 : QNN_DTYPE_F32), QNN_ERR_DTYPE,
                  "%s \"%s\": input is %s, expected %s", op, n->name, qnn_dtype_name(in),
                  wq == QNN_WQ_STATIC ? "u8" : "f32");
    QNN_RETURN_IF(m->ctx, n->dtype == QNN_DTYPE_U8 && wq != QNN_WQ_STATIC, QNN_ERR_DTYPE,
                  "%s \"%s\": a u8 output needs a u8 input", op, n->name);
    QNN_TRY(qnn_node__declare(m, n, QNN_P_WEIGHT, "weight", is_int8 ? QNN_DTYPE_I8 : QNN_DTYPE_F32,
                              rank, weight_dim, !is_int8));
    QNN_RETURN_IF(m->ctx,
                  is_int8 && n->param[QNN_P_WEIGHT].count / (size_t)weight_dim[0] > QNN_GEMM_MAX_K,
                  QNN_ERR_UNSUPPORTED, "%s \"%s\": int8 sums of %zu products, at most %d fit", op,
                  n->name, n->param[QNN_P_WEIGHT].count / (size_t)weight_dim[0], QNN_GEMM_MAX_K);
    if (!n->a.no_bias)
        QNN_TRY(qnn_node__declare(m, n, QNN_P_BIAS, "bias",
                                  wq == QNN_WQ_STATIC ? QNN_DTYPE_I32 : QNN_DTYPE_F32, 1,
                                  weight_dim, !is_int8));
    return QNN_OK;
}

qnn_status qnn_conv__prepare(qnn_step *s, const qnn_conv *c)
{
    const int is_int8 = s->n->a.wq == QNN_WQ_STATIC || s->n->a.wq == QNN_WQ_DYNAMIC;

    s->kernel = is_int8 ? s->p->k->gemm_u8s8->name : s->p->k->gemm_f32->name;
    if (qnn_conv__is_depthwise(c))
        s->kernel = is_int8 ? "depthwise_u8s8" : "depthwise_f32";
    if (!s->p->is_train)
        return is_int8 ? qnn_conv__prepare_int8(s, c) : prepare_f32(s, c);
    QNN_RETURN_IF(s->p->ctx, is_int8 || s->n->param[QNN_P_WEIGHT].dtype != QNN_DTYPE_F32,
                  QNN_ERR_DTYPE, "%s \"%s\": %s weights cannot be trained", s->op->name, s->n->name,
                  qnn_dtype_name(s->n->param[QNN_P_WEIGHT].dtype));
    if (!has_clip(s))
        s->flags &= ~(unsigned)QNN_OP_BWD_DST;
    s->scratch_bytes = train_layout(s, c).floats * sizeof(float);
    return QNN_OK;
}

void qnn_conv__forward(qnn_exec *x, const qnn_step *s, const qnn_conv *c)
{
    const f32_packed *const p = s->packed;

    if (s->n->a.wq == QNN_WQ_STATIC || s->n->a.wq == QNN_WQ_DYNAMIC) {
        qnn_conv__forward_int8(x, s, c);
    } else if (s->p->is_train) {
        forward_train(x, s, c);
    } else {
        const float *const base = s->packed;

        for (size_t pass = 0; pass < n_passes(c); pass++)
            forward_pass(x, s, c, pass, base + p->weights + pass * p->stride,
                         p->bias != 0 ? base + p->bias : NULL);
    }
}
