/*
 * cuda_check - tests attention on made-up keys in each way that steps use: for a prompt,
 * for few rows, split or not, for sequences that share pages; for models with sinks, again with
 * these and a window. The plainest way, blocks of few queries over all of their chunks, is compared
 * with a sum in double precision on the host. The other ways are turned on one after the other and
 * must give its bits; one that does not is turned off again.
 *
 * plan() chooses the blocks by the batch and the number of multiprocessors, so a batch is also run
 * as on a device with few or with many of them. Two key heads suffice for that.
 */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/try.h"
#include "engine/cuda/load.h"
#include "engine/cuda/selftest.h"
#include "engine/ops/attention/kernels_attention.h"

/* three chunks and part of a fourth; up to MOST rows begin in the last one or two */
#define KEYS SELFTEST_KEYS
#define MOST 144u /* most rows that are computed: more than a block of ATTN_WIDE queries */
#define SOME 20u  /* rows whose results are merged by row */
#define FEW 8u    /* sequences that share pages, fewer than SOME */
#define HEADS_KV 2u
#define GROUP 32u   /* most heads that share a key head */
#define WINDOW 170u /* window of the last row: its chunk, and the last tiles of the chunk before */
#define POISON ((size_t)1 << 20) /* bytes of partial results that are filled with NaN */

/* Inputs and results of attention, and the current step. */
struct scene {
    struct heads heads;
    /* [n_rows]; turned: the rotated part of latent attention's queries */
    float *q, *turned;
    /* [n_keys] */
    float *k, *v;
    /* [n_rows]: of the plainest way; of another way */
    float *right, *o;
    /* [heads.n] */
    float *sinks;
    float *sinks_on;
    /* rows: the last n_rows positions */
    uint32_t n_keys, n_rows;
    /* 0: neither a window nor sinks */
    uint32_t window;
    /* values of a head's result, and of its query in q */
    uint32_t n_value, n_query;
    /* values in a row of q, of results, of keys, of values, of turned */
    size_t n_q, n_o, n_k, n_v, n_turned;
    /* page: for up to MOST sequences */
    struct selftest_step step;
};

/* Shape of a step: the last @n rows, of one sequence, or each of a sequence of its own on the same
 * pages. */
struct batch {
    uint32_t n, n_multiprocessors;
    bool apart;
};

/* -- on the host ------------------------------------------------------------------------------- */

/* Returns value @d of the query of a row and head. */
static double query_value(const struct scene *t, uint32_t row, uint32_t head, uint32_t d) {
    size_t width = t->n_turned / t->heads.n, behind = width + t->n_query - t->heads.dim;

    if (d < t->n_query)
        return (double)t->q[row * t->n_q + (size_t)head * t->n_query + d];
    return (double)t->turned[row * t->n_turned + head * width + behind + d - t->n_query];
}

/* Computes attention of one row and head to out [n_value]. */
static void attend_on_host(const struct scene *t, uint32_t head, uint32_t row, double *out) {
    uint32_t dim = t->heads.dim, n_kv = t->heads.n_kv, pos = t->n_keys - t->n_rows + row;
    uint32_t head_kv = head * n_kv / t->heads.n;
    uint32_t first = 0;
    double sink = t->window ? (double)t->sinks[head] : -INFINITY;
    double p[KEYS], max = sink, sum;

    if (t->window && pos >= t->window)
        first = pos - t->window + 1;
    for (uint32_t i = first; i <= pos; i++) {
        p[i] = 0;
        for (uint32_t d = 0; d < dim; d++)
            p[i] += query_value(t, row, head, d) *
                    (double)t->k[((size_t)i * n_kv + head_kv) * dim + d] / sqrt(dim);
        max = fmax(max, p[i]);
    }
    sum = exp(sink - max);
    for (uint32_t i = first; i <= pos; i++)
        sum += p[i] = exp(p[i] - max);
    for (uint32_t d = 0; d < t->n_value; d++) {
        out[d] = 0;
        for (uint32_t i = first; i <= pos; i++)
            out[d] += p[i] / sum * (double)t->v[i * t->n_v + head_kv * (t->n_v / n_kv) + d];
    }
}

/* Returns |right - exact| / |exact| of the first and the last row. */
static double selftest_attention_error(const struct scene *t) {
    double exact[HEAD_VALUES], d = 0, norm = 0;

    for (uint32_t row = 0; row < t->n_rows; row += MAX(t->n_rows - 1, 1u))
        for (uint32_t h = 0; h < t->heads.n; h++) {
            const float *got = t->right + row * t->n_o + (size_t)h * t->n_value;

            attend_on_host(t, h, row, exact);
            for (uint32_t i = 0; i < t->n_value; i++) {
                d += pow(exact[i] - (double)got[i], 2);
                norm += exact[i] * exact[i];
            }
        }
    return sqrt(d / norm);
}

/* -- on the device ----------------------------------------------------------------------------- */

static uint32_t value_run(const struct be *b, const struct heads *h) {
    return hadamard_runs(b->shape, b->opts->kv_type, h->dim).v;
}

/* Returns the argument of store(). Values are multiplied by the Hadamard matrix, since attention
 * multiplies its output by it; keys are not, as the queries are not either. */
static struct store_args selftest_store_args(const struct be *b, const struct scene *t) {
    const struct heads *h = &t->heads;

    return (struct store_args){.batch = b->head,
                               .q = t->n_turned ? b->latent.q : b->act.q,
                               .k = b->act.k,
                               .v = b->act.v,
                               .rope = b->act.rope[0],
                               .pages = b->memory.kv[KV_GLOBAL].pages,
                               .shape = cuda_page_shape(b, h),
                               .n_head = h->n,
                               .n_value = t->n_value,
                               .n_kv = h->n_kv,
                               .run_v = value_run(b, h),
                               .width = latent_query_width(b->shape)};
}

/* Stores keys and values in their pages, in as few steps as possible. */
static int selftest_store_keys(struct be *b, struct scene *t) {
    const struct heads *h = &t->heads;
    struct store_args a = selftest_store_args(b, t);

    for (uint32_t at = 0, n, y = (h->n + h->n_kv + 7) / 8; at < t->n_keys; at += n) {
        struct step *s;

        n = MIN(t->n_keys - at, b->opts->max_rows);
        TRY(selftest_begin(b, &t->step, at, n, false, &s));
        TRY(selftest_send(b, t->k + at * t->n_k, b->act.k, n * t->n_k));
        if (!t->n_turned)
            TRY(selftest_send(b, t->v + at * t->n_v, b->act.v, n * t->n_v));
        TRY(t->n_turned ? CUDA_LAUNCH(b, store_latent, n, y, CUDA_THREADS, &a)
                        : CUDA_LAUNCH(b, store, n, y, CUDA_THREADS, &a));
        TRY(cuda_check(b, b->api->stream_wait(b->queue.stream), "the first kernels"));
        selftest_end(b);
    }
    return 0;
}

/* Replaces the keys and values of the step's @n rows in their pages by zeros, and sends those that
 * attend_decode is to store. */
static int selftest_replace_keys(struct be *b, struct scene *t, uint32_t n) {
    const struct store_args a = selftest_store_args(b, t);
    size_t first = t->n_keys - n;

    TRY(cuda_fill(b, b->act.k, 0, n * t->n_k * sizeof(float)));
    TRY(cuda_fill(b, b->act.v, 0, n * t->n_v * sizeof(float)));
    TRY(CUDA_LAUNCH(b, store, n, (a.n_head + a.n_kv + 7) / 8, CUDA_THREADS, &a));
    TRY(selftest_send(b, t->k + first * t->n_k, b->act.k, n * t->n_k));
    return selftest_send(b, t->v + first * t->n_v, b->act.v, n * t->n_v);
}

/* Computes the rows of @p to @o. Output and partial results are filled with NaN first, so that
 * results of another kernel cannot pass. */
static int selftest_attend(struct be *b, struct scene *t, const struct batch *p, float *o) {
    uint32_t first = t->n_rows - p->n, real = (uint32_t)b->about.device.n_multiprocessors;
    struct weights w = {.sinks = t->window ? t->sinks_on : NULL};
    const struct store_args store = selftest_store_args(b, t);
    struct model_op before = {.kind = OP_QKV}; /* sequences apart have each other's keys */
    const struct model_op op = {
        .kind = OP_ATTEND,
        .heads = t->heads,
        .attn = {.scale = (float)(1 / sqrt(t->heads.dim)), .window = t->window},
        .links = {.from = p->apart ? NULL : &before, .first = 1},
        .weights = &w};
    size_t n = p->n * t->n_o;
    struct step *s;

    assert(p->n > 0 && p->n <= MIN(t->n_rows, MOST) && p->n_multiprocessors > 0);
    TRY(cuda_fill(b, b->act.o, 0xFF, n * sizeof(*o)));
    TRY(cuda_fill(b, b->attention.partial, 0xFF, MIN(b->attention.partial_bytes, POISON)));
    TRY(selftest_begin(b, &t->step, t->n_keys - p->n, p->n, p->apart, &s));
    TRY(selftest_send(b, t->q + first * t->n_q, b->act.q, p->n * t->n_q));
    TRY(selftest_send(b, t->turned + first * t->n_turned, b->latent.q, p->n * t->n_turned));
    before.links.into = &op;
    if (step_attend_stores(s, &before))
        TRY(selftest_replace_keys(b, t, p->n));
    b->about.device.n_multiprocessors = (int)p->n_multiprocessors;
    int r = step_attend_from(s, &op, &store);
    b->about.device.n_multiprocessors = (int)real;
    TRY(r);
    TRY(selftest_fetch(b, o, b->act.o, n * sizeof(*o)));
    selftest_end(b);
    return 0;
}

/* Returns 1 if the rows of @p have the bits of the plainest way, 0 if not, or -errno. */
static int same_in(struct be *b, struct scene *t, const struct batch *p) {
    TRY(selftest_attend(b, t, p, t->o));
    return memcmp(t->o, t->right + (t->n_rows - p->n) * t->n_o, p->n * t->n_o * sizeof(float)) == 0;
}

/* -- the ways ---------------------------------------------------------------------------------- */

/* Ways; each is tested with all earlier ones turned on. */
enum way { PLAIN, BULK, WIDE, SHARED, MANY, WGMMA, DECODE, WAYS };

static const char *const way_name[] = {[BULK] = "attend_latent_bulk",
                                       [WIDE] = "attend_wide",
                                       [SHARED] = "pages shared by few queries",
                                       [MANY] = "pages shared by many queries",
                                       [WGMMA] = "attend_wgmma",
                                       [DECODE] = "attend_decode"};

/* Settings outside of the self-test. */
struct wanted {
    uint32_t wide_rows;
    bool bulk, shares, many, wgmma, decode;
};

/* Turns a way on or off. */
static void selftest_attention_use(struct be *b, const struct wanted *all, enum way way, bool use) {
    if (way == BULK)
        b->attention.bulk = use && all->bulk;
    else if (way == WIDE)
        b->attention.wide_rows = use ? all->wide_rows : UINT32_MAX;
    else if (way == SHARED)
        b->attention.shares = use && all->shares;
    else if (way == MANY)
        b->attention.many = use && all->many;
    else if (way == WGMMA)
        b->attention.wgmma = use && all->wgmma ? WAY_ON : WAY_OFF;
    else
        b->attention.decode = use && all->decode ? WAY_ON : WAY_OFF;
}

#define CROWDED 1u /* number of multiprocessors that any batch fills */
#define BATCHES 3u /* most batches of a way */

/* Sets @p to batches that use the way. Returns their number. */
static uint32_t batches_of(const struct be *b, const struct scene *t, enum way way,
                           struct batch p[BATCHES]) {
    uint32_t real = (uint32_t)b->about.device.n_multiprocessors, group = t->heads.n / t->heads.n_kv;
    uint32_t n_seqs = MIN(t->n_rows, b->opts->max_seqs), n_kv = t->heads.n_kv;
    uint32_t some = MIN(SOME, t->n_rows), few = MIN(FEW, n_seqs);
    /* number of multiprocessors that no batch fills, so that each chunk becomes an item */
    uint32_t empty = t->n_rows * t->heads.n / ATTN_QUERIES + 2 * n_kv + 1;
    /* Sequences for a block of ATTN_WIDE queries; runs have two chunks, or three if there are few
     * sequences. */
    uint32_t many = MIN(MAX(MATVEC_ROWS + 1, ATTN_WIDE / group), n_seqs);
    struct batch prompt = {t->n_rows, CROWDED, false};
    struct batch together = {many, many * group < 96 ? n_kv : 2 * n_kv, true};

    switch (way) {
    case PLAIN:
        p[0] = (struct batch){t->n_rows, empty, false};
        p[1] = (struct batch){some, CROWDED, false};
        p[2] = (struct batch){1, real, false};
        return 3;
    case WIDE:
        p[0] = prompt;
        return 1;
    case BULK:
        p[0] = prompt;
        p[1] = (struct batch){t->n_rows, empty, false};
        p[2] = (struct batch){1, real, false};
        return 3;
    case SHARED:
        p[0] = (struct batch){MIN(some, n_seqs), real, true};
        p[1] = (struct batch){few, real, true};
        return 2;
    case MANY:
        p[0] = together;
        return many > MATVEC_ROWS;
    case WGMMA:
        p[0] = prompt;
        p[1] = together;
        return 1u + (many > MATVEC_ROWS);
    case DECODE:
        p[0] = (struct batch){1, real, false};
        p[1] = (struct batch){MIN(5u, t->n_rows), empty, false};
        p[2] = (struct batch){MIN(MATVEC_ROWS, t->n_rows), CROWDED, false};
        return 3;
    default:
        assert(false);
        return 0;
    }
}

/* Returns 1 if all batches of the way have the bits of the plainest one; 0 if not; or -errno. */
static int selftest_is_right(struct be *b, struct scene *t, enum way way) {
    struct batch p[BATCHES];
    uint32_t n = batches_of(b, t, way, p);
    int r = 1;

    for (uint32_t i = 0; i < n && r == 1; i++)
        r = same_in(b, t, &p[i]);
    return r;
}

/* Returns true if steps of this model on this device would use the way. */
static bool selftest_is_wanted(const struct be *b, const struct scene *t, const struct wanted *all,
                               enum way way) {
    struct page_shape shape = cuda_page_shape(b, &t->heads);

    if (way == BULK)
        return all->bulk;
    if (way == WIDE)
        return t->n_rows > all->wide_rows && (!t->n_turned || b->attention.bulk);
    if (way == SHARED)
        return all->shares;
    if (way == DECODE)
        return all->decode && !t->n_turned;
    if (way == WGMMA)
        return all->wgmma && attend_kernel_for(&shape, true, false).leaves;
    return all->many && b->attention.shares && attend_kernel_for(&shape, true, false).leaves;
}

/* Tests the plainest way, which must be right, then turns on each other way that has its bits. */
static int selftest_try_ways(struct be *b, struct scene *t, struct err *err) {
    const struct wanted all = {b->attention.wide_rows,       b->attention.bulk,
                               b->attention.shares,          b->attention.many,
                               b->attention.wgmma == WAY_ON, b->attention.decode == WAY_ON};
    const struct batch prompt = {t->n_rows, CROWDED, false};
    const char *what = "attention";
    char why[80];

    if (t->window)
        what = "attention with a window";
    for (enum way way = PLAIN + 1; way < WAYS; way++)
        selftest_attention_use(b, &all, way, false);
    TRY(selftest_attend(b, t, &prompt, t->right));
    double error = selftest_attention_error(t);
    if (!(error <= SELFTEST_LIMIT))
        return selftest_refuse(b, err, SELFTEST_OFF, what, error, SELFTEST_LIMIT);
    int r = selftest_is_right(b, t, PLAIN);
    if (r == 0)
        return selftest_refuse(b, err, "%s of few rows alone gives other bits", what);
    for (enum way way = PLAIN + 1; way < WAYS && r >= 0; way++) {
        if (!selftest_is_wanted(b, t, &all, way))
            continue;
        selftest_attention_use(b, &all, way, true);
        r = selftest_is_right(b, t, way);
        if (r != 0)
            continue;
        selftest_attention_use(b, &all, way, false);
        snprintf(why, sizeof(why), "other bits in %s", what);
        TRY(selftest_disable(b, way_name[way], why));
        if (way == DECODE) /* it may have stored other keys */
            TRY(selftest_store_keys(b, t));
    }
    return MIN(r, 0);
}

/* Rounds numbers to those that pages of @bits store exactly: codes times a power of two. */
static void round_to_codes(float *x, size_t n, uint32_t bits) {
    float one = (float)(1u << (bits - 1)), least = bits == 8 ? -127 : -one;

    /* the first value of a block determines its scale */
    for (size_t i = 0; i < n && bits < 16; i++)
        x[i] = fminf(fmaxf(i % 32 ? rintf(x[i] * one) : least, least), one - 1) / one;
}

/* Multiplies runs of values by the Hadamard matrix, which the store undoes. */
static void turn_values(float *v, size_t n, uint32_t run) {
    for (uint32_t step = 1; step < run; step *= 2)
        for (size_t i = 0; i < n; i++) {
            float x = v[i], y = v[i | step];

            if (i & step)
                continue;
            v[i] = (x + y) * sqrtf(0.5f);
            v[i | step] = (x - y) * sqrtf(0.5f);
        }
}

/* Sets sizes and fills all numbers, in one piece of memory at t->q. */
static int make_scene(struct be *b, struct scene *t) {
    const struct model_shape *m = b->shape;
    uint32_t group = MIN(m->n_head / m->n_head_kv, GROUP), n_kv = MIN(m->n_head_kv, HEADS_KV);
    uint32_t tokens = b->opts->page_tokens;
    uint64_t room = b->memory.kv[KV_GLOBAL].n_pages * b->memory.kv[KV_GLOBAL].page_bytes;

    t->heads =
        (struct heads){.n = n_kv * group, .n_kv = n_kv, .dim = m->head_dim, .value = m->value_dim};
    struct page_shape page = cuda_page_shape(b, &t->heads);
    t->n_value = cuda_head_values(b, &t->heads);
    t->n_query = m->head_dim;
    t->n_k = (size_t)n_kv * m->head_dim;
    t->n_v = (size_t)n_kv * heads_value(&t->heads);
    t->n_turned = 0;
    if (m->mla.rank) {
        t->n_query = t->n_value;
        t->n_turned = t->heads.n * (m->mla.n_nope + m->head_dim - m->mla.rank);
    }
    t->n_q = (size_t)t->heads.n * t->n_query;
    t->n_o = (size_t)t->heads.n * t->n_value;
    room = room / page_layer_bytes(&page) * tokens;
    t->n_keys = (uint32_t)MIN(MIN(room, b->opts->max_context), KEYS);
    t->n_rows = MIN(MIN(t->n_keys, MOST), b->opts->max_rows);
    const struct {
        float **to;
        size_t n;
    } parts[] = {{&t->q, t->n_rows * t->n_q}, {&t->turned, t->n_rows * t->n_turned},
                 {&t->k, t->n_keys * t->n_k}, {&t->v, t->n_keys * t->n_v},
                 {&t->sinks, t->heads.n},     {&t->right, t->n_rows * t->n_o},
                 {&t->o, t->n_rows * t->n_o}};
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        n += parts[i].n;
    float *all = malloc(n * sizeof(*all));
    t->step.page = malloc((size_t)MOST * ((KEYS + tokens - 1) / tokens) * sizeof(*t->step.page));
    if (!all || !t->step.page) {
        free(all);
        return -ENOMEM;
    }
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++) {
        *parts[i].to = all;
        selftest_fill(all, parts[i].n, 1 + i);
        all += parts[i].n;
    }
    round_to_codes(t->k, t->n_keys * t->n_k, PAGE_BITS(page.k));
    round_to_codes(t->v, t->n_keys * t->n_v, PAGE_BITS(page.v));
    turn_values(t->v, t->n_keys * t->n_v, value_run(b, &t->heads));
    if (t->n_turned) /* keys are also the values */
        t->v = t->k;
    return 0;
}

/* Returns true if a layer of the model has sinks. */
static bool selftest_has_sinks(const struct model_shape *m) {
    for (uint32_t i = 0; i < m->n_ops; i++)
        if (m->op[i].kind == OP_ATTEND && m->op[i].sinks)
            return true;
    return false;
}

/* Tests attention without, and for models with sinks also with these and a window. */
static int try_scene(struct be *b, struct scene *t, struct err *err) {
    TRY(make_scene(b, t));
    TRY(selftest_store_keys(b, t));
    TRY(selftest_try_ways(b, t, err));
    if (!selftest_has_sinks(b->shape))
        return 0;
    t->window = WINDOW;
    TRY(selftest_send(b, t->sinks, t->sinks_on, t->heads.n));
    return selftest_try_ways(b, t, err);
}

static int check_attention(struct be *b, struct err *err) {
    struct scene t = {.sinks_on = (float *)b->load.buffer[0].device};

    if (!b->memory.kv[KV_GLOBAL].page_bytes || b->shape->compressed.window ||
        b->shape->sparse.n_layer)
        return 0; /* the model has no such attention */
    int r = try_scene(b, &t, err);

    free(t.q);
    free(t.step.page);
    return r;
}

const struct op_family attention_family = {.check = check_attention};
