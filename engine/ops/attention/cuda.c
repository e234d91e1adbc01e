/*
 * cuda - launches attention: the kernel that makes the work list (plan.cu), the kernels for few
 * and for many queries per block, and the merge of partial results; or attend_decode, which does
 * all this but the list, and the store before it.
 */

#include <assert.h>

#include "base/try.h"
#include "engine/cuda/load.h"
#include "engine/ops/attention/kernels_attention.h"

/* Returns the kernel for many queries per block. */
static struct attend_kernel attend_wide_for(const struct be *b, const struct page_shape *shape) {
    if (b->attention.wgmma == WAY_ON)
        return attend_wgmma_for(shape, b->attention.bulk);
    return attend_kernel_for(shape, true, b->attention.bulk);
}

/* Returns the kernel for items that cover all chunks. */
static struct attend_kernel kernel_for(const struct step *s, const struct heads *h) {
    struct page_shape shape = cuda_page_shape(s->be, h);

    if (s->grid.rows > s->be->attention.wide_rows)
        return attend_wide_for(s->be, &shape);
    return attend_kernel_for(&shape, false, s->be->attention.bulk);
}

bool attend_many_share(const struct be *b, const struct engine_batch *batch) {
    /* index of the last page of a chunk */
    uint32_t last = ATTN_CHUNK / b->opts->page_tokens - 1, n = 1, most = 1;

    if (!b->attention.shares || !b->attention.many || batch->n_rows <= MATVEC_ROWS)
        return false;
    for (uint32_t i = 1; i < batch->n_seqs; i++) {
        const struct engine_seq *x = &batch->seq[i - 1], *y = &batch->seq[i];
        const uint32_t *page = batch->table[KV_GLOBAL].page + last;
        const uint32_t *start = batch->table[KV_GLOBAL].start;
        bool same = x->n_rows == 1 && y->n_rows == 1 && MIN(x->pos0, y->pos0) >= ATTN_CHUNK &&
                    page[start[i - 1]] == page[start[i]];

        n = same ? n + 1 : 1;
        most = MAX(most, n);
    }
    return most * b->shape->widest.group > 3 * ATTN_QUERIES;
}

/* Returns the kernel for blocks of many queries that sequences share; it leaves other items to the
 * kernel for few queries. kernel is NULL if these heads or this step have no such kernel, or the
 * self-test turned it off. */
static struct attend_kernel sharing_kernel(const struct step *s, const struct heads *h) {
    const struct be *b = s->be;
    struct page_shape shape = cuda_page_shape(b, h);
    struct attend_kernel k = attend_wide_for(b, &shape);

    if (!b->attention.many || !k.leaves || !s->many_share)
        return (struct attend_kernel){0};
    return k;
}

/* Returns true if attend_decode computes @op. This depends only on the step, the heads and whether
 * the op before is a QKV: on what ops with the same work list have in common (fuse.c). */
static bool attend_decodes(const struct step *s, const struct model_op *op) {
    const struct be *b = s->be;
    const struct heads *h = &op->heads;
    bool alone = b->group.n == 1 && op->links.from && op->links.from->kind == OP_QKV;
    bool plain = !b->shape->mla.rank && !b->shape->two_way && !op->attn.whole && !op->attn.sparse;

    if (b->attention.decode != WAY_ON || !step_fuses(s) || !alone || !plain)
        return false;
    return h->dim <= 128 && s->grid.rows * (h->n / h->n_kv) <= DECODE_QUERIES;
}

bool step_attend_stores(const struct step *s, const struct model_op *op) {
    const struct model_op *to = op->links.into;

    return to && to->kind == OP_ATTEND && attend_decodes(s, to);
}

/* Returns plan_args.few for @op. */
static uint32_t attend_few(const struct step *s, const struct model_op *op) {
    if (!attend_decodes(s, op))
        return cuda_few(s->be);
    return (uint32_t)round_up(s->grid.rows * (op->heads.n / op->heads.n_kv), ATTN_QUERIES);
}

/* Computes the work list of attention on the device, from the uploaded batch. Later layers with the
 * same heads use it, too. @two_way is equal for all layers of a pass; @few: attend_few(). */
static int attend_plan(struct step *s, const struct heads *h, bool two_way, uint32_t few) {
    struct be *b = s->be;
    struct plan_args a = {
        .batch = b->head,
        .item = b->attention.item,
        .wide_item =
            kernel_for(s, h).leaves || sharing_kernel(s, h).kernel ? b->attention.wide_item : NULL,
        .merge = b->attention.merge,
        .group = h->n / h->n_kv,
        .n_head_kv = h->n_kv,
        .n_multiprocessors = (uint32_t)b->about.device.n_multiprocessors,
        .max_partials = cuda_partials(b, h, few),
        .page_tokens = b->attention.shares ? b->opts->page_tokens : 0,
        .few = few,
        .wide = MAX(kernel_for(s, h).queries, few),
        .part = b->attention.part,
        .long_chunks = b->attention.long_chunks,
        .wide_worth = b->attention.wide_worth,
        .two_way = two_way,
        .shared = MAX(sharing_kernel(s, h).queries, few),
    };

    assert(h->n_kv > 0 && h->n % h->n_kv == 0 && a.max_partials > 0);
    assert(h->dim <= HEAD_VALUES || b->shape->mla.rank);
    TRY(CUDA_LAUNCH(b, plan, 1, 1, CUDA_THREADS, &a));
    cuda_settle(b); /* attention reads the lists before it waits for the previous kernel */
    return 0;
}

/* Returns a launch with enough blocks to fill the device, or one for each item if nothing is split.
 * With few rows there are at most as many blocks as run at the same time, since all must have
 * started before the next kernel, launched early, occupies multiprocessors to fetch weights. */
static struct launch attend_launch(const struct step *s, const struct heads *h, uint32_t queries,
                                   const struct attend_kernel *k) {
    uint32_t multiprocessors = (uint32_t)s->be->about.device.n_multiprocessors;
    uint32_t fused = h->dim > 128 ? 1 : 2;
    uint32_t each = step_fuses(s) ? fused : 4; /* blocks on each multiprocessor */
    uint32_t busy = (each * multiprocessors + h->n_kv - 1) / h->n_kv;

    return (struct launch){.kernel = k->kernel,
                           .grid_x = MAX(busy, graph_blocks(s, h->n / h->n_kv, queries)),
                           .grid_y = h->n_kv,
                           .n_threads = CUDA_THREADS,
                           .what = "attend",
                           .shared = k->shared};
}

/* Launches items of many queries, then items of few queries, which continue from shared results.
 * Blocks that sequences share run one on each multiprocessor. */
static int attend_launch_kernel(const struct step *s, const struct heads *h,
                                const struct attend_args *a) {
    struct attend_kernel wide = kernel_for(s, h);
    struct attend_kernel few = attend_kernel_for(&a->shape, false, s->be->attention.bulk);
    bool all = wide.queries > few.queries || a->shape.latent;

    if (!all)
        wide = sharing_kernel(s, h);
    if (wide.kernel) {
        struct launch l = attend_launch(s, h, a->few, &wide);

        if (!all)
            l.grid_x = ((uint32_t)s->be->about.device.n_multiprocessors + h->n_kv - 1) / h->n_kv;
        TRY(cuda_launch(s->be, &l, a, sizeof(*a)));
    }
    if (all && !wide.leaves)
        return 0;
    const struct launch l = attend_launch(s, h, a->few, &few);
    return cuda_launch(s->be, &l, a, sizeof(*a));
}

/* Launches attend_decode, which stores @store's keys. */
static int attend_decode(struct step *s, const struct heads *h, const struct attend_args *a,
                         const struct store_args *store) {
    struct be *b = s->be;
    const struct decode_args all = {*a, *store, b->attention.arrived};
    struct attend_kernel k = attend_decode_for(&a->shape);
    const struct launch l = attend_launch(s, h, a->few, &k);

    assert(h->n_kv <= b->shape->widest.n_kv && s->grid.rows <= MATVEC_ROWS);
    return cuda_launch(b, &l, &all, sizeof(all));
}

/* Multiplies the heads of the output by the Hadamard matrix, which undoes that of the values. The
 * next product packs them. */
static int turn_back(const struct step *s, const struct heads *h, uint32_t run) {
    struct hadamard_args a = {s->be->head, s->be->act.o, h->n, heads_value(h), run};

    return CUDA_LAUNCH(s->be, hadamard, s->grid.rows, (h->n + 7) / 8, CUDA_THREADS, &a);
}

bool step_attend_packs(const struct step *s, const struct model_op *op) {
    const struct model_op *to = op->links.into;

    return to && to->weights->fixed_o != 0 && op->heads.dim <= 128 && s->be->ways.fuse;
}

int step_attend(struct step *s, const struct model_op *op) {
    struct store_args store;

    if (!attend_decodes(s, op))
        return step_attend_from(s, op, NULL);
    store = step_store_args(s->be, op->links.from);
    const struct op_qkv *qkv = &op->links.from->qkv;
    if (qkv->norm_all || qkv->norm_each) /* step_qkv() has applied them */
        store.q_norm = store.k_norm = NULL;
    return step_attend_from(s, op, &store);
}

int step_attend_from(struct step *s, const struct model_op *op, const struct store_args *store) {
    struct be *b = s->be;
    const struct heads *h = &op->heads;
    uint32_t n_value = cuda_head_values(b, h), group = h->n / h->n_kv;
    uint32_t run = hadamard_runs(b->shape, b->opts->kv_type, h->dim).v;
    struct attend_args a = {
        .batch = b->head,
        .q = b->act.q,
        .o = b->act.o,
        .partial = b->attention.partial,
        .pages = step_pages_of(b, op),
        .shape = cuda_page_shape(b, h),
        .cls = op->kv.cls,
        .n_head = h->n,
        .group = group,
        .partial_stride = n_value + 4,
        .few = attend_few(s, op),
        .n_value = n_value,
        .scale = op->attn.scale,
        .cap = op->attn.cap,
        .holes = op->attn.holes,
        .window = op->attn.window ? op->attn.window : UINT32_MAX,
        .chunked = op->attn.chunked,
        .two_way = op->attn.two_way || op->attn.whole,
        .sinks = op->weights ? op->weights->sinks : NULL,
    };
    /* offsets in PackedQuery, in halves */
    assert((uint64_t)h->n * n_value * round_up(s->grid.rows, PACK_ROWS) <= UINT32_MAX);
    if (step_attend_packs(s, op)) {
        a.packed = b->act.packed;
        a.packed_scale = b->act.scale;
        a.fixed = op->links.into->weights->fixed_o;
        a.cores = b->products.cores;
    }
    if (b->shape->mla.rank)
        latent_attend(b, &a);
    if (op->attn.sparse) {
        TRY(sparse_attend(s, op, &a));
        return run ? turn_back(s, h, run) : 0;
    }
    if (step_lists(s, op))
        TRY(attend_plan(s, h, b->shape->two_way || op->attn.whole, a.few));
    if (attend_decodes(s, op)) {
        assert(store);
        TRY(attend_decode(s, h, &a, store));
    } else {
        TRY(attend_launch_kernel(s, h, &a));
        TRY(CUDA_LAUNCH(b, merge, graph_blocks(s, group, a.few), h->n_kv, CUDA_THREADS, &a));
    }
    return run ? turn_back(s, h, run) : 0;
}

/* -- rows of the table of ops (engine/cuda/ops.c) ---------------------------------------------- */

static const char *attend_lacks(const struct model_shape *s, const struct model_op *op) {
    if (s->encoder)
        return "attention of encoders";
    if (s->mla.rank)
        return latent_lacks(s);
    const char *what = heads_lack(s, &op->heads);
    return !what && op->attn.sparse ? sparse_lacks(s, op) : what;
}

const struct op_code cuda_op_attend = {
    .run = step_attend,
    .lacks = attend_lacks,
    .takes = OP_BIT(OP_QKV), /* step_attend_stores() */
    .list = LIST_KEYS,
    .family = &attention_family,
    .division = {CUT_ROWS},
};
