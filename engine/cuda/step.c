#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/try.h"
#include "engine/cuda/cuda.h"
#include "engine/cuda/pace.h"
#include "engine/cuda/several.h"

int cuda_lose(struct be *b, const char *format, ...) {
    va_list list;

    va_start(list, format);
    if (!b->fault.lost)
        vsnprintf(b->fault.text, sizeof(b->fault.text), format, list);
    va_end(list);
    b->fault.lost = true;
    if (b->group.ranks)
        several_lose(b);
    return -EIO;
}

int cuda_check(struct be *b, int error, const char *what) {
    if (error == 0 && !b->fault.lost)
        return 0;
    return cuda_lose(b, "%s: %s", what, b->api->text(error));
}

int cuda_copy(struct be *b, void *to, const void *from, size_t n, enum cuda_direction dir) {
    return cuda_check(b, b->api->copy(to, from, n, dir, b->queue.stream), "cudaMemcpyAsync");
}

int cuda_fill(struct be *b, void *d, int byte, size_t n) {
    return cuda_check(b, b->api->fill(d, byte, n, b->queue.stream), "cudaMemset");
}

int cuda_launch(struct be *b, const struct launch *l, const void *args, size_t n) {
    assert(l->kernel && l->what && l->n_threads % 32 == 0 && l->n_threads <= 1024);
    assert(l->grid_x <= INT32_MAX && l->grid_y <= UINT16_MAX); /* limits of the device */
    assert(n > 0 && n <= 4096 && l->shared % 16 == 0);
    if (b->fault.lost || b->group.first->graphs.replaying || l->grid_x == 0 || l->grid_y == 0)
        return b->fault.lost ? -EIO : 0;
    uint32_t how = b->ways.early && !b->queue.waits ? LAUNCH_EARLY : 0;
    /* kernels read the list before they wait, so the one that made it must have ended by then */
    assert(!b->queue.listed || !(how & LAUNCH_EARLY));
    b->queue.listed = l->kernel == kernel_plan || l->kernel == kernel_list_heads;
    how |= b->ways.late ? LAUNCH_LATE : 0;
    b->queue.waits = false;
    if (b->group.first->graphs.noting)
        graph_note(b, NOTE_LAUNCH, l, how, args, n);
    return cuda_check(b,
                      b->api->launch(l->kernel, l->grid_x, l->grid_y, l->n_threads, l->shared, args,
                                     how, b->queue.stream),
                      l->what);
}

void cuda_settle(struct be *b) {
    if (!b->group.first->graphs.replaying)
        b->queue.waits = true;
}

int step_host_call(struct be *b, void (*fn)(void *ctx), void *ctx) {
    if (!fn)
        return b->api->host_join(b->queue.stream, &b->queue.side);
    return b->api->host_call(fn, ctx, b->queue.stream, &b->queue.side);
}

int cuda_call(struct be *b, void (*fn)(void *ctx), void *ctx) {
    const struct host_call c = {fn, ctx};

    if (b->fault.lost || b->graphs.replaying)
        return b->fault.lost ? -EIO : 0;
    if (b->graphs.noting)
        graph_note(b, NOTE_CALL, NULL, 0, &c, sizeof(c));
    return cuda_check(b, step_host_call(b, fn, ctx),
                      fn ? "cudaLaunchHostFunc" : "cudaStreamWaitEvent");
}

int cuda_join(struct be *b) {
    return cuda_call(b, NULL, NULL);
}

struct operand step_rows(const struct step *s) {
    const struct be *b = s->be;

    return (struct operand){.packed = b->act.packed,
                            .scale = b->act.scale,
                            .count = &b->head->n_rows,
                            .n_rows = s->grid.rows,
                            .cores = b->products.cores};
}

int step_multiply(struct step *s, const struct weights *w, bool add) {
    struct operand x = step_rows(s);

    return cuda_matmul(s->be, w, &x, add);
}

/* -- the upload -------------------------------------------------------------------------------- */

static bool has_windows(const struct be *b) {
    return b->memory.kv[KV_WINDOW].n_pages > 0;
}

/* Fills in token, position, last key, pages by class and slot of each row. A fed token is given as
 * an index into the samples of the previous step, which are on the device. */
static void fill_rows(struct step *s, int32_t *feed, uint32_t *pos, uint32_t *last, uint32_t *slot,
                      uint32_t *seq, uint32_t *const page[PAGE_CLASSES]) {
    const struct engine_batch *b = s->batch;
    uint32_t tokens = s->be->opts->page_tokens, n_classes = has_windows(s->be) ? 2 : 1;
    int32_t before = (b->step + 1) % 2 ? (int32_t)s->be->opts->max_wants
                                       : 0; /* index of the previous step's first sample */
    const uint32_t *place = s->be->step[(b->step + 1) % 2].place;

    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const struct engine_seq *q = &b->seq[i];

        for (uint32_t r = 0; r < q->n_rows; r++) {
            uint32_t p = q->pos0 + r, row = q->row0 + r;

            assert(row < b->n_rows);
            feed[row] = r == 0 && q->feed >= 0 ? before + (int32_t)place[q->feed] : -1;
            pos[row] = p;
            last[row] = b->model ? q->pos0 + q->n_rows - 1 : p;
            for (uint32_t c = 0; c < n_classes; c++)
                page[c][row] = b->table[c].page[b->table[c].start[i] + p / tokens];
            slot[row] = p % tokens;
            seq[row] = i;
        }
    }
}

/* Uploads page tables, which begin at the same places in all classes, and the sequences, from which
 * attention is planned. Returns false if the tables are too long. */
static bool fill_attention(struct step *s, struct batch_head *h) {
    const struct engine_batch *batch = s->batch;
    const uint32_t *start = batch->table[KV_GLOBAL].start;
    size_t bytes = start[batch->n_seqs] * sizeof(uint32_t);
    const void *d;
    struct plan_seq *seq = staging_alloc(&s->rows, batch->n_seqs * sizeof(*seq), &d);

    if (!seq)
        return false;
    h->n_seqs = batch->n_seqs;
    h->seq = d;
    h->item = s->be->attention.item;
    h->wide_item = s->be->attention.wide_item;
    h->merge = s->be->attention.merge;
    for (uint32_t c = 0; c < (has_windows(s->be) ? 2 : 1); c++) {
        uint32_t *pages = staging_alloc(&s->rows, bytes, &d);

        if (!pages)
            return false;
        assert(memcmp(batch->table[c].start, start, (batch->n_seqs + 1) * sizeof(*start)) == 0);
        memcpy(pages, batch->table[c].page, bytes);
        h->page_table[c] = d;
    }
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        const struct engine_seq *q = &batch->seq[i];

        seq[i] = (struct plan_seq){q->row0,  q->n_rows,     q->pos0,
                                   start[i], q->state_slot, draft_has_before(s->be, q)};
    }
    return true;
}

/* Uploads in one copy all that the device needs to know of the batch before sampling. */
static int upload_rows(struct step *s) {
    const struct engine_batch *b = s->batch;
    size_t n = b->n_rows * sizeof(uint32_t);
    const void *d[10];
    void *h[9];

    s->rows.used = 0;
    struct batch_head *head = staging_alloc(&s->rows, sizeof(*head), &d[9]);
    for (int i = 0; i < 8; i++)
        h[i] = staging_alloc(&s->rows, n, &d[i]);
    h[8] = staging_alloc(&s->rows, s->n_scored * sizeof(uint32_t), &d[8]);
    for (int i = 0; i < 9; i++)
        assert(h[i]);
    memcpy(h[0], b->token, n);
    fill_rows(s, h[1], h[2], h[7], h[3], h[4], (uint32_t *const[PAGE_CLASSES]){h[5], h[6]});
    for (uint32_t i = 0; i < s->n_scored; i++) {
        assert(b->want[s->scored[i]].row < b->n_rows);
        ((uint32_t *)h[8])[i] = b->want[s->scored[i]].row;
    }
    *head = (struct batch_head){
        .n_rows = b->n_rows,
        .n_wants = s->n_scored,
        .token = d[0],
        .feed = d[1],
        .pos = d[2],
        .row_slot = d[3],
        .row_seq = d[4],
        .row_page = {d[5], d[6]},
        .last = d[7],
        .want_row = d[8],
    };
    if (!fill_attention(s, head) || !pictures_fill(s, head, h[7]))
        return cuda_lose(s->be,
                         "internal error: the batch is larger than the buffer for its upload");
    s->grid = (struct step_grid){b->n_rows, b->n_seqs, s->n_scored};
    return staging_send(s->be, &s->rows, 0);
}

/* -- ops --------------------------------------------------------------------------------------- */

/* Returns the time of CLOCK_MONOTONIC. */
static int64_t step_now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int step_record(struct step *s) {
    int r = cuda_check(s->be, s->be->api->event_record(s->event, s->be->queue.stream),
                       "cudaEventRecord");

    s->recorded = r == 0;
    s->recorded_ns = step_now_ns();
    return r;
}

/* Uploads the batch. The previous step may still run: its reads of the same device memory precede
 * this upload in the stream. */
int step_upload(struct be *b, const struct engine_batch *batch, struct step **out) {
    struct step *s = &b->step[batch->step % 2], *other = &b->step[(batch->step + 1) % 2];

    assert(!other->batch || other->recorded || other->batch->n_wants == 0);
    /* the previous step had no wants, so its end is recorded only now */
    if (other->batch && !other->recorded && step_record(other) < 0)
        return -EIO;
    assert(!s->batch); /* at most two steps in flight */
    assert(batch->n_rows <= b->opts->max_rows && batch->n_wants <= b->opts->max_wants);
    s->batch = batch;
    s->recorded = false;
    s->logits = NULL;
    s->many_share = attend_many_share(b, batch);
    memset(s->mask, 0, batch->n_wants * sizeof(*s->mask));
    hidden_sort(s);
    if (s->rows.turn == 0)
        draft_begin(s);
    *out = s;
    if (batch->n_rows == 0)
        return b->fault.lost ? -EIO : 0;
    TRY(upload_rows(s));
    if (s->rows.turn == 0)
        draft_uploaded(s);
    return 0;
}

int step_begin(struct be *b, const struct engine_batch *batch, struct step **out) {
    int r = step_upload(b, batch, out);

    if (r < 0 || batch->n_rows == 0)
        return r;
    TRY(ngram_bring(*out));
    if (graph_begin(*out))
        return graph_launch(*out);
    return step_start(*out);
}

int step_start(struct step *s) {
    struct be *b = s->be;

    b->products.cores = wgmma_handles(b, s->grid.rows);
    struct rope_args a = {.batch = b->head,
                          .temper = b->attention.temper.slope != 0 ? b->act.factor : NULL,
                          .slope = b->attention.temper.slope,
                          .span = b->attention.temper.span,
                          .ahead = b->attention.temper.ahead};
    uint32_t n_tables = 1;
    for (uint32_t i = 0; i < ROPE_TABLES; i++) {
        const struct rope_set *set = &b->shape->rope[i];

        a.table[i].freq = b->load.freq[i];
        a.table[i].axis = b->load.axis[i];
        a.table[i].rope = b->act.rope[i];
        a.table[i].n_pairs = set->n_rot / 2;
        a.table[i].mscale = set->mscale;
        n_tables = set->n_rot ? i + 1 : n_tables;
    }
    TRY(CUDA_LAUNCH(b, rope, s->grid.rows, n_tables, CUDA_THREADS, &a));
    cuda_settle(b); /* store() reads the angles before it waits for the previous kernel */
    return 0;
}

/* Embeds from the file's rows, or from the tiles of the output matrix if it is the embedding and
 * the tiles hold it exactly. Devices that divide the matrices read the embedding and the samples of
 * the first one. */
int step_embed(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct weights *w = op->weights;
    struct embed_args a = {
        .batch = b->head,
        .table = w->raw,
        .tiles = w->m[0].tiles,
        .format = w->m[0].format,
        .n_units = w->m[0].n_units,
        .inverse = w->m[0].inverse,
        .sampled = b->group.first->sampling.sampled,
        .x = b->act.x,
        .scale = op->scale,
        .picture_width = b->shape->n_picture,
    };

    return CUDA_LAUNCH(b, embed, s->grid.rows, 1, CUDA_THREADS, &a);
}

struct pack_args step_pack_args(const struct be *b, enum pack_kind kind, const float *x,
                                const float *weight, uint32_t n) {
    /* offsets in a unit of packed rows have 32 bits in kernels */
    assert(round_up(n, 64) * WGMMA_ROWS <= UINT32_MAX);
    return (struct pack_args){
        .batch = b->head,
        .x = x,
        .up = kind == PACK_GATE ? b->act.o_gate : b->act.up,
        .weight = weight,
        .packed = b->act.packed,
        .scale = b->act.scale,
        .kind = kind,
        .n = n,
        .n_padded = (uint32_t)round_up(n, 64),
        .cores = b->products.cores,
        .eps = b->shape->rms_eps,
    };
}

uint8_t *step_pages_of(const struct be *b, const struct model_op *op) {
    const struct kv_class *c = &b->memory.kv[op->kv.cls];
    size_t before = 0;

    assert(op->kv.cls < PAGE_CLASSES);
    for (uint32_t l = 0; l < op->kv.layer; l++)
        before += c->layer_bytes[l];
    return c->pages + c->n_pages * before;
}

struct store_args step_store_args(const struct be *b, const struct model_op *op) {
    const struct model_shape *m = b->shape;
    const struct weights *w = op->weights;
    struct hadamard_runs runs = hadamard_runs(m, b->opts->kv_type, op->heads.dim);
    const struct temper *temper = op_temper(op);
    const struct op_qkv *qkv = op->kind == OP_MLA_KV ? NULL : &op->qkv;

    return (struct store_args){
        .batch = b->head,
        .q = b->act.q,
        .k = b->act.k,
        .v = op->w[2] ? b->act.v : b->act.k,
        .q_norm = w->q_norm,
        .k_norm = w->k_norm,
        .rope = b->act.rope[op->rope],
        .temper = temper && temper->slope != 0 ? b->act.factor : NULL,
        .pages = step_pages_of(b, op),
        .cls = op->kv.cls,
        .shape = cuda_page_shape(b, &op->heads),
        .n_head = op->heads.n,
        .n_value = heads_value(&op->heads),
        .n_rot = m->rope[op->rope].n_rot,
        .neox = m->rope_type == ROPE_NEOX,
        .n_kv = op->w[1] ? op->heads.n_kv : 0,
        .v_unit = qkv && qkv->v_unit,
        .norm_late = qkv && qkv->norm_late,
        .run_k = runs.k,
        .run_v = runs.v,
        .eps = m->rms_eps,
    };
}

/* -- fusion ------------------------------------------------------------------------------------ */

/*
 * Returns true for steps of few rows, in which the product of gate and up multiplies its two
 * results. Norms are computed when a row is packed. A layer is then eleven kernels:
 *
 *     pack, q k v, store, attend, merge, pack, output, pack, gate and up, pack, down
 *
 * With be.ways.prologue and one or two rows the products of q k v and of gate and up pack their
 * rows themselves; with be.attention.decode one kernel does the work of store, attend and merge.
 */
bool step_fuses(const struct step *s) {
    const struct be *b = s->be;

    return b->ways.fuse && b->products.matvec == WAY_ON &&
           s->grid.rows <= MIN(MATVEC_ROWS, b->attention.wide_rows);
}

/* Launches pack, or pack_dry, whose dry run packs any weights. */
static int step_launch_plain_pack(struct be *b, uint32_t n_rows, const struct pack_args *a) {
    struct pack_args dry;

    if (b->products.dry != WAY_ON || b->load.weights.size < a->n * sizeof(float))
        return CUDA_LAUNCH(b, pack, n_rows, 1, PACK_THREADS, a);
    dry = *a;
    dry.settled = (const float *)b->load.weights.at;
    return CUDA_LAUNCH(b, pack_dry, n_rows, 1, PACK_THREADS, &dry);
}

int step_launch_pack(struct be *b, uint32_t n_rows, const struct pack_args *a) {
    if (a->kind < PACK_RELU)
        return step_launch_plain_pack(b, n_rows, a);
    if (a->kind < PACK_SILU)
        return CUDA_LAUNCH(b, pack_activated, n_rows, 1, PACK_THREADS, a);
    return CUDA_LAUNCH(b, pack_gated, n_rows, 1, PACK_THREADS, a);
}

int step_pack(struct step *s, enum pack_kind kind, const float *x, const float *weight,
              uint32_t n) {
    struct pack_args a = step_pack_args(s->be, kind, x, weight, n);

    return step_launch_pack(s->be, s->grid.rows, &a);
}

uint32_t step_pass(const struct step *s) {
    if (s->batch->holes)
        return PASS_HOLES;
    return s->batch->model;
}

bool step_lists(const struct step *s, const struct model_op *op) {
    return op->links.first >> step_pass(s) & 1;
}

const struct weights *step_weights(const struct be *b, const struct model_op *op) {
    const struct weights *w = op->weights;

    if (w && w->rank[b->group.rank])
        return w->rank[b->group.rank];
    return w;
}

/* Returns the op whose result @op adds to x; NULL: x is complete. A DEEP before @op has completed
 * it if the step has pictures. What follows EXPERTS in a layer adds to the experts' sum. */
static const struct model_op *step_left(const struct step *s, const struct model_op *op) {
    const struct model_op *left = op->links.adds;

    if (left && left->kind == OP_DEEP)
        left = s->pictures ? NULL : left->links.adds;
    if (left && left->links.from && left->links.from->kind == OP_EXPERTS)
        left = left->links.from;
    if (left && residual_is_open(s, left))
        return left;
    return NULL;
}

/* Adds the result of @op to x; @pack: packs x for the next op, or NULL. */
static int step_add(struct step *s, const struct model_op *op, const struct pack_args *pack) {
    if (op->kind == OP_EXPERTS && s->be->group.n == 1)
        return experts_combine(s, op, s->be->act.x, pack);
    return residual_add(s, op, pack);
}

int step_complete(struct step *s, const struct model_op *op) {
    const struct model_op *left = step_left(s, op);

    if (!left)
        return 0;
    return step_add(s, left, NULL);
}

int step_finish(struct step *s, const struct model_op *op) {
    if (op->links.into || !residual_is_open(s, op))
        return 0;
    return step_add(s, op, NULL);
}

/* Computes the layer norm of all rows of x to be.act.centred. It has a launch of its own, since the
 * packs and additions of most models need neither means nor biases. */
static int step_centre(struct step *s, const struct weights *w) {
    struct be *b = s->be;
    const struct keep_args a = {
        .batch = b->head,
        .x = b->act.x,
        .weight = w->norm,
        .bias = w->norm_bias,
        .hidden = b->act.centred,
        .n = b->shape->n_embd,
        .centred = true,
        .eps = b->shape->rms_eps,
    };

    assert(b->act.centred && w->norm);
    return CUDA_LAUNCH(b, keep, s->grid.rows, 1, PACK_THREADS, &a);
}

/* Returns true if the input of @op's matrices is packed for wgmma: not that of ROUTE, as
 * step_route() says. */
static bool step_has_cores(const struct be *b, const struct model_op *op) {
    return b->products.cores && op->kind != OP_ROUTE;
}

/* Does what step_norm() does for layer norms. */
static int step_layer_norm(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_op *left = step_left(s, op);

    if (left)
        TRY(step_add(s, left, NULL));
    TRY(step_centre(s, op->weights));
    struct pack_args a = step_pack_args(b, PACK_PLAIN, b->act.centred, NULL, b->shape->n_embd);
    a.cores = step_has_cores(b, op);
    return step_launch_pack(b, s->grid.rows, &a);
}

/* Returns the argument of the pack of the input of @op's matrices. */
static struct pack_args step_norm_args(const struct be *b, const struct model_op *op) {
    const float *norm = op->weights->norm;
    struct pack_args a =
        step_pack_args(b, norm ? PACK_NORM : PACK_PLAIN, b->act.x, norm, b->shape->n_embd);

    a.cores = step_has_cores(b, op);
    a.fixed = op->weights->fixed_norm;
    return a;
}

/* Returns true if the op before @op has packed its input. */
static bool step_is_packed(const struct model_op *op) {
    return op->links.from && op->links.from->kind == OP_BLOCK_IN;
}

int step_norm(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    struct pack_args a = step_norm_args(b, op);
    const struct model_op *left = step_left(s, op);

    if (b->shape->layer_norm)
        return step_layer_norm(s, op);
    if (step_is_packed(op))
        return 0;
    if (left)
        return step_add(s, left, &a);
    return step_launch_pack(b, s->grid.rows, &a);
}

/* Does what step_norm() does, unless the product of the rows @x does it, which is then told so by
 * x.norm; @norm: room for it. */
static int step_norm_rows(struct step *s, const struct model_op *op, struct pack_args *norm,
                          struct operand *x) {
    struct be *b = s->be;

    *norm = step_norm_args(b, op);
    if (b->ways.prologue != WAY_ON || !step_fuses(s) || b->group.n > 1 || b->shape->layer_norm ||
        step_is_packed(op) || step_left(s, op) || !cuda_matvec_packs(s->grid.rows, norm))
        return step_norm(s, op);
    x->norm = norm;
    return 0;
}

/* Normalises the queries over all heads together, and the keys; @store then applies no norm. */
static int norm_all_heads(struct step *s, const struct model_op *op, struct store_args *store) {
    struct be *b = s->be;
    const struct heads *h = &op->heads;

    TRY(residual_norm_rows(s, b->act.q, store->q_norm, h->n * h->dim));
    if (store->n_kv > 0)
        TRY(residual_norm_rows(s, b->act.k, store->k_norm, h->n_kv * h->dim));
    store->q_norm = store->k_norm = NULL;
    return 0;
}

/* Normalises queries and keys head by head; @store then applies no norm. */
static int norm_each_head(struct step *s, const struct model_op *op, struct store_args *store) {
    struct be *b = s->be;
    const struct heads *h = &op->heads;

    TRY(step_norm_heads(s, b->act.q, store->q_norm, h->n, h->dim));
    if (store->n_kv > 0)
        TRY(step_norm_heads(s, b->act.k, store->k_norm, h->n_kv, h->dim));
    store->q_norm = store->k_norm = NULL;
    return 0;
}

int step_qkv(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    struct be *b = s->be;
    struct store_args store = step_store_args(b, op);
    struct operand x = step_rows(s);
    struct pack_args norm;

    assert(op->kv.layer < b->shape->n_kv_layer[op->kv.cls]);
    assert(w->n_mats > 0 && (w->n_mats == (op->w[1] ? 4 : 2)) == op->qkv.gated);
    TRY(step_norm_rows(s, op, &norm, &x));
    TRY(cuda_matmul(b, w, &x, false));
    if (op->qkv.norm_all)
        TRY(norm_all_heads(s, op, &store));
    if (op->qkv.norm_each)
        TRY(norm_each_head(s, op, &store));
    if (step_attend_stores(s, op))
        return 0;
    return CUDA_LAUNCH(b, store, s->grid.rows, (store.n_head + store.n_kv + 7) / 8, CUDA_THREADS,
                       &store);
}

/* Computes the input of a recurrent layer or of latent attention: the norm, then all matrices. */
int step_in(struct step *s, const struct model_op *op) {
    TRY(step_norm(s, op));
    return step_multiply(s, op->weights, false);
}

/* Multiplies attention's output by gates from a matrix of their own. Gates that came with the
 * queries are applied when the output is packed. The buffer of q is unused after attention. */
int step_gate(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct weights *w = op->weights;
    struct soft_gate_args a = {.batch = b->head,
                               .gate = b->act.q,
                               .o = b->act.o,
                               .n = op->heads.n * cuda_head_values(b, &op->heads),
                               .n_gate = op->w[0] ? w->m[0].n_out : 0,
                               .sigmoid = op->sigmoid};

    if (!op->w[0])
        return 0;
    TRY(step_norm(s, op));
    TRY(step_multiply(s, w, false));
    return CUDA_LAUNCH(b, soft_gate, s->grid.rows, 1, CUDA_THREADS, &a);
}

/* Returns the rows of a product of gate and up, which may combine them. */
static struct operand step_glu_rows(const struct step *s, const struct weights *w,
                                    enum pack_kind glu) {
    struct operand x = step_rows(s);

    x.glu = glu;
    x.gates = w->n_mats == 2 && !w->apart && s->be->ways.fuse;
    /* Halves are in the place of the gate's results, and their scales in that of the up's; 128 rows
     * of halves take as much room as 64 rows of results. */
    if (w->fixed_h != 0 && s->be->opts->max_rows >= MATMUL_COLUMNS) {
        x.halves = (uint16_t *)s->be->act.gate;
        x.halves_scale = s->be->act.up;
        x.fixed = w->fixed_h;
    }
    return x;
}

/* Returns true if matvec combines gate and up. */
static bool step_matvec_gates(const struct step *s, const struct weights *w) {
    return w->n_mats == 2 && !w->apart && step_fuses(s) && cuda_are_alike(&w->m[0], &w->m[1]);
}

/* Returns true if matvec packs the product of gate and up by a static scale. The halves are in the
 * place of the gate's results, and their scales in that of the up's; a group of eight rows takes as
 * much room as four rows of results. */
static bool step_matvec_packs(const struct step *s, const struct weights *w) {
    return w->fixed_h != 0 && s->be->opts->max_rows >= MATVEC_ROWS && step_matvec_gates(s, w);
}

/* Returns true if @op is a product of gate and up that packs its result. */
static bool step_glu_packs(const struct step *s, const struct model_op *op) {
    if (op->kind != OP_GATE_UP)
        return false;
    if (step_matvec_gates(s, op->weights))
        return step_matvec_packs(s, op->weights);
    const struct operand x = step_glu_rows(s, op->weights, step_glu(op));
    return product_packs(s->be, op->weights, &x);
}

/* Returns the product of a PROJ of one device: the kernel leaves split-K sums to the addition. */
static struct operand step_proj_rows(const struct step *s, const struct model_op *op) {
    struct operand x = step_rows(s);

    x.leaves = s->be->ways.fuse && !op->branch;
    return x;
}

struct left step_proj_left(const struct step *s, const struct model_op *op) {
    const struct operand x = step_proj_rows(s, op);

    return product_left(s->be, op->weights, &x);
}

/* Packs h, with the function of gate and up that GATE_UP has not applied, or that of GATE_IN. */
static int step_pack_ffn(struct step *s, const struct model_op *ffn, uint32_t n) {
    const struct be *b = s->be;
    struct pack_args a = step_pack_args(b, step_glu(ffn), b->act.gate, NULL, n);

    if (ffn->kind == OP_GATE_UP) {
        a.kind = step_glu_left(s, ffn->weights, step_glu(ffn));
        a.fixed = ffn->weights->fixed_h;
        a.xielu = ffn->ffn.xielu;
    } else {
        a.up = b->act.layer_input + (size_t)ffn->layer * b->shape->n_layer_input;
        a.up_stride = b->shape->n_layer * b->shape->n_layer_input;
    }
    return step_launch_pack(s->be, s->grid.rows, &a);
}

/* Packs the output of attention, unless attention has done so. Gates that came with the queries are
 * applied here. */
static int step_pack_heads(struct step *s, const struct model_op *op) {
    const struct model_op *from = op->links.from;
    bool attends = from && from->kind == OP_ATTEND;
    enum pack_kind kind = from && !attends ? PACK_GATE : PACK_PLAIN;
    struct pack_args a = step_pack_args(s->be, kind, s->be->act.o, NULL, op->weights->n_in);

    if (attends && step_attend_packs(s, from))
        return 0;
    a.fixed = op->weights->fixed_o;
    return step_launch_pack(s->be, s->grid.rows, &a);
}

/* Packs the input of a PROJ, unless the op that computes it has done so. */
static int step_pack_in(struct step *s, const struct model_op *op) {
    const struct be *b = s->be;
    const struct model_op *from = op->links.from;
    uint32_t n = op->weights->n_in;

    switch (op->in) {
    case ACT_H:
        assert(from);
        return step_pack_ffn(s, from, n);
    case ACT_O:
        return step_pack_heads(s, op);
    default:
        assert(op->in == ACT_D);
        if (from || op[-1].kind == OP_EXPERTS)
            return 0;
        return step_pack(s, PACK_PLAIN, b->recurrent.out, NULL, n);
    }
}

int step_proj(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    struct be *b = s->be;

    if (op_is_hosts(b->shape, op)) {
        TRY(cuda_join(b));
        return step_finish(s, op);
    }
    struct operand x = step_proj_rows(s, op);
    if (op->in == ACT_H && step_glu_packs(s, op->links.from)) {
        x.packed = (const uint16_t *)b->act.gate;
        x.scale = b->act.up;
    } else {
        TRY(step_pack_in(s, op));
    }
    TRY(cuda_matmul(b, w, &x, w->m[0].y == b->act.x));
    if (op->branch)
        return residual_branch(s, op);
    return step_finish(s, op);
}

enum pack_kind step_glu(const struct model_op *op) {
    static const enum pack_kind kinds[] = {[GLU_SILU] = PACK_SILU,
                                           [GLU_GELU] = PACK_GELU,
                                           [GLU_CLAMPED] = PACK_CLAMPED,
                                           [GLU_RELU] = PACK_RELU};

    if (op->ffn.limit > 0 && (op->ffn.glu == GLU_CUT || op->ffn.glu == GLU_SILU))
        return (enum pack_kind)(mx_bits_of(op->ffn.limit) |
                                (op->ffn.glu == GLU_SILU ? PACK_BEHIND : 0));
    if (op->kind == OP_GATE_UP && !op->w[1]) /* gate_up_lacks() refuses other functions */
        return op->ffn.glu == GLU_XIELU ? PACK_XIELU : PACK_GELU_ALONE;
    assert((size_t)op->ffn.glu < ARRAY_SIZE(kinds));
    return kinds[op->ffn.glu];
}

/* Computes the gate and up of @w from the rows @x. */
static int step_multiply_glu(struct step *s, const struct weights *w, enum pack_kind glu,
                             const struct operand *x) {
    assert((w->n_mats == 2) == (glu >= PACK_SILU));
    if (!step_matvec_gates(s, w))
        return cuda_matmul(s->be, w, x, false);
    struct matmul_args a = cuda_matmul_args(w, x, false);
    a.gated = w->m[0].n_row_tiles;
    a.glu = glu;
    if (step_matvec_packs(s, w)) {
        a.packed = (uint16_t *)s->be->act.gate;
        a.packed_scale = s->be->act.up;
        a.fixed = w->fixed_h;
    }
    return cuda_multiply_few(s->be, &a, x->norm);
}

int step_gate_and_up(struct step *s, const struct weights *w, enum pack_kind glu) {
    const struct operand x = step_glu_rows(s, w, glu);

    return step_multiply_glu(s, w, glu, &x);
}

enum pack_kind step_glu_left(const struct step *s, const struct weights *w, enum pack_kind glu) {
    const struct operand x = step_glu_rows(s, w, glu);

    if (step_matvec_gates(s, w) || product_gates(s->be, w, &x))
        return PACK_PLAIN;
    return glu;
}

static int step_thin_gates(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct thin_args a = {.batch = b->head,
                                .gate = b->act.gate,
                                .n = op->weights->m[0].n_out,
                                .sparsity = op->ffn.sparsity};

    return CUDA_LAUNCH(b, thin_gates, s->grid.rows, 1, CUDA_THREADS, &a);
}

int step_gate_up(struct step *s, const struct model_op *op) {
    if (op_is_hosts(s->be->shape, op))
        return ffn_on_host(s, op);

    struct operand x = step_glu_rows(s, op->weights, step_glu(op));
    struct pack_args norm;
    TRY(step_norm_rows(s, op, &norm, &x));
    TRY(step_multiply_glu(s, op->weights, step_glu(op), &x));
    return op->weights->apart ? step_thin_gates(s, op) : 0;
}

/* With tensor cores, 128 packed rows are one unit, and a round cannot begin inside; so they are
 * used only if one round has all wants. */
bool step_wanted_cores(const struct step *s) {
    return s->grid.wants <= MIN(LOGIT_ROWS, WGMMA_ROWS) && wgmma_handles(s->be, s->grid.wants);
}

struct operand step_wanted(const struct step *s, uint32_t first, uint32_t n) {
    const struct be *b = s->be;
    size_t row = round_up(b->shape->n_embd, 64) * b->products.planes;

    assert(first % PACK_ROWS == 0 && (first == 0 || !step_wanted_cores(s)));
    return (struct operand){.packed = b->sampling.packed + first * row,
                            .scale = b->sampling.scale + first,
                            .count = first ? NULL : &b->head->n_wants,
                            .n_rows = n,
                            .cores = step_wanted_cores(s)};
}

int step_logit_rows(struct step *s, uint32_t first, uint32_t n) {
    struct be *b = s->be;
    struct operand x = step_wanted(s, first, n);
    const struct weights *w = s->logits->weights;
    const struct cap_args cap = {x.count, b->sampling.logits, b->shape->n_vocab, w->scale, w->cap};

    assert(n <= LOGIT_ROWS);
    if (b->group.n > 1)
        TRY(ranks_logit_rows(s, first, n));
    else
        TRY(cuda_matmul(b, w, &x, false));
    if (cap.scale != 1 || cap.cap != 0)
        TRY(CUDA_LAUNCH(b, cap, (cap.n + CUDA_THREADS - 1) / CUDA_THREADS, n, CUDA_THREADS, &cap));
    if (!s->logits->links.into)
        return 0;
    return draft_select(s, first, n);
}

/* Packs the norm of the wanted rows, or their hidden states. */
int step_pack_wanted(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    struct be *b = s->be;
    struct pack_args a = step_pack_args(b, w->norm ? PACK_NORM : PACK_PLAIN,
                                        w->norm || !op->links.kept ? b->act.x : b->draft.hidden,
                                        w->norm, b->shape->n_embd);

    if (b->shape->layer_norm) {
        TRY(step_centre(s, w));
        a.kind = PACK_PLAIN;
        a.x = b->act.centred;
        a.weight = NULL;
    }
    a.wanted = true;
    a.fixed = w->fixed_norm;
    a.packed = b->sampling.packed;
    a.scale = b->sampling.scale;
    a.cores = step_wanted_cores(s);
    assert(w->n_mats == 1);
    return step_launch_pack(b, s->grid.wants, &a);
}

/* Computes the logits of the first LOGIT_ROWS wants; the others follow in rounds when they are
 * sampled (seal.c). */
int step_logits(struct step *s, const struct model_op *op) {
    s->logits = op;
    TRY(step_pack_wanted(s, op));
    return step_logit_rows(s, 0, MIN(s->grid.wants, LOGIT_ROWS));
}

int cuda_copy_pages(struct be *b, const struct copy_args *a, uint32_t n_layers) {
    size_t block = CUDA_THREADS * 16, n_blocks = (a->page_bytes + block - 1) / block;

    assert(a->page_bytes % 16 == 0);
    return CUDA_LAUNCH(b, copy_page, (uint32_t)MIN(n_blocks, 32u), n_layers, CUDA_THREADS, a);
}

/* Copies a page, by one launch for each run of layers of equal size; layers of other devices have
 * size 0. A page in host memory has its layers consecutively, each with the heads of all ranks.
 * Pinned memory has the same address on the device. */
int step_copy(struct be *b, const struct engine_copy *c) {
    const struct kv_class *kv = &b->memory.kv[KV_GLOBAL];
    uint32_t n_layers = b->shape->compressed.window
                            ? 1
                            : b->shape->n_kv_layer[KV_GLOBAL] + (b->shape->sparse.n_layer > 0);
    uint32_t n_run, n_ranks = cuda_page_ranks(b);
    bool from_host = c->dir == COPY_H2D, to_host = c->dir == COPY_D2H;
    /* offsets in a page of the device's layers, and in one of all layers */
    size_t at = 0, host_at = 0;

    assert(c->dir <= COPY_H2D && c->cls == KV_GLOBAL);
    assert(c->src < (from_host ? b->opts->n_host_pages : kv->n_pages));
    assert(c->dst < (to_host ? b->opts->n_host_pages : kv->n_pages));
    for (uint32_t l = 0; l < n_layers; l += n_run) {
        size_t page = kv->layer_bytes[l], all = kv->all_layer_bytes[l];
        uint8_t *layers = kv->pages + kv->n_pages * at;
        uint8_t *host = b->memory.host_pages + host_at + b->group.rank % n_ranks * page;
        size_t host_page = kv->all_bytes;

        for (n_run = 1; l + n_run < n_layers && kv->layer_bytes[l + n_run] == page &&
                        kv->all_layer_bytes[l + n_run] == all;)
            n_run++;
        const struct copy_args a = {
            .from = from_host ? host + c->src * host_page : layers + c->src * page,
            .to = to_host ? host + c->dst * host_page : layers + c->dst * page,
            .from_layer = from_host ? all : kv->n_pages * page,
            .to_layer = to_host ? all : kv->n_pages * page,
            .page_bytes = page,
        };

        TRY(cuda_copy_pages(b, &a, n_run));
        at += n_run * page;
        host_at += n_run * all;
    }
    return 0;
}

/* -- the end ----------------------------------------------------------------------------------- */

/* Polls without a pause for 2 ms, then every 50 us, since a step takes 1 to 200 ms. */
int cuda_wait_event(struct be *b, void *event, const char *what) {
    int64_t start = step_now_ns();
    int e = b->api->event_query(event);

    while (e == CUDA_NOT_READY) {
        int64_t waited = step_now_ns() - start;

        if (waited > b->fault.wait_ns) {
            b->fault.stuck = true;
            return cuda_lose(b, "%s: the device has not answered for %lld ms", what,
                             (long long)(b->fault.wait_ns / 1000000));
        }
        if (waited > 2000000)
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        e = b->api->event_query(event);
    }
    return cuda_check(b, e, what);
}

/* Takes the results from pinned memory; the engine may read them until the second next step
 * ends. */
static void step_fetch_results(struct step *s) {
    assert(s->recorded && s->n_scored + s->n_hidden == s->batch->n_wants);
    for (uint32_t i = 0; i < s->batch->n_wants; i++) {
        const struct sample_out *from = &s->out_host[s->place[i]];

        if (s->batch->want[i].what == WANT_HIDDEN) {
            s->out[i] = (struct engine_out){
                .token = -1, .vector = s->hidden_host + (size_t)s->place[i] * s->be->shape->n_embd};
            continue;
        }
        struct engine_top *top = s->top + (size_t)i * ENGINE_TOP_MAX;

        s->out[i] = (struct engine_out){
            .token = from->token,
            .logprob = from->logprob,
            .digest = from->digest,
            .n_top = MIN(from->n_top, ENGINE_TOP_MAX),
            .top = top,
        };
        for (uint32_t t = 0; t < s->out[i].n_top; t++)
            top[t] = (struct engine_top){from->top[t].token, from->top[t].logprob};
    }
}

/* Waits for a step whose time is about that of the last one of its size (pace.h). It began when it
 * was recorded, or when the step before it ended. */
static int step_await_paced(struct step *s) {
    struct graphs *g = &s->be->graphs;
    int64_t *took = &g->took_ns[step_pass(s)][s->graph];
    int64_t start = MAX(s->recorded_ns, g->ended_ns);
    int64_t sleep = pace_sleep(*took, start, step_now_ns());

    if (sleep > 0)
        nanosleep(&(struct timespec){.tv_nsec = sleep}, NULL);
    int64_t came = step_now_ns();
    TRY(cuda_wait_event(s->be, s->event, "step"));
    g->ended_ns = step_now_ns();
    *took = pace_took(*took, start, came, g->ended_ns, sleep > 0);
    return 0;
}

/* Waits for the step. A step without wants has not recorded its event yet. */
static int step_await(struct step *s) {
    assert(s->batch);
    if (s->be->fault.lost)
        return -EIO;
    if (!s->recorded)
        TRY(step_record(s));
    if (s->graph < GRAPHS && s->be->graphs.paced)
        return step_await_paced(s);
    return cuda_wait_event(s->be, s->event, "step");
}

int step_wait(struct step *s) {
    TRY(step_await(s));
    s->batch = NULL;
    return 0;
}

int step_end(struct step *s, struct engine_result *out) {
    struct be *b = s->be;

    TRY(step_await(s));
    step_fetch_results(s);
    *out = (struct engine_result){s->batch->step, s->batch->n_wants, s->out};
    b->sampling.last = s;
    s->ended = s->batch->step;
    b->sampling.last_wants = s->batch->n_wants;
    s->batch = NULL;
    return 0;
}
