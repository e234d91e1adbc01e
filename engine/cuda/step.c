#include "engine/cuda/cuda.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

int cuda_check(struct be *b, int error, const char *what) {
    if (error == 0 && !b->lost)
        return 0;
    if (!b->lost)
        snprintf(b->error, sizeof(b->error), "%s: %s", what, b->api->text(error));
    b->lost = true;
    return -EIO;
}

int cuda_launch(struct be *b, const struct launch *l, const void *args, size_t n) {
    assert(l->kernel && l->what && l->n_threads % 32 == 0 && n > 0);
    if (b->lost || b->graphs.replaying || l->grid_x == 0 || l->grid_y == 0)
        return b->lost ? -EIO : 0;
    if (b->graphs.noting)
        graph_note(b, l, args, n);
    return cuda_check(b,
                      b->api->launch(l->kernel, l->grid_x, l->grid_y, l->n_threads, l->shared, args,
                                     b->early, b->stream),
                      l->what);
}

static int launch_pack(struct be *b, uint32_t n_rows, const struct pack_args *a) {
    struct launch l = {kernel_pack, n_rows, 1, PACK_THREADS, "pack", 0};

    return cuda_launch(b, &l, a, sizeof(*a));
}

/* A kernel of one block a row. */
static int launch_rows(struct be *b, const void *kernel, uint32_t n_rows, const void *args,
                       size_t n, const char *what) {
    return cuda_launch(b, &(struct launch){kernel, n_rows, 1, CUDA_THREADS, what, 0}, args, n);
}

/* The layers' matrices: of all rows of the step. */
int step_multiply(struct step *s, const struct weights *w, bool add) {
    struct be *b = s->be;
    struct operand x = {b->packed, b->scale, b->sums, &b->head->n_rows, s->grid.rows};

    return cuda_matmul(b, w, &x, add);
}

/* -- the upload -------------------------------------------------------------------------------- */

/* What each row is: fed token, position, page, slot. A fed token is an index into the samples
 * of the step before, which are on the device. */
static void fill_rows(struct step *s, int32_t *feed, uint32_t *pos, uint32_t *page, uint32_t *slot,
                      uint32_t *seq) {
    const struct engine_batch *b = s->batch;
    uint32_t tokens = s->be->page.page_tokens;
    int32_t before = (b->step + 1) % 2 ? (int32_t)s->be->opts->max_wants : 0; /* its samples */
    const uint32_t *place = s->be->step[(b->step + 1) % 2].place;

    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const struct engine_seq *q = &b->seq[i];
        const uint32_t *pages = b->table[KV_GLOBAL].page + b->table[KV_GLOBAL].start[i];

        for (uint32_t r = 0; r < q->n_rows; r++) {
            uint32_t p = q->pos0 + r, row = q->row0 + r;

            feed[row] = r == 0 && q->feed >= 0 ? before + (int32_t)place[q->feed] : -1;
            pos[row] = p;
            page[row] = pages[p / tokens];
            slot[row] = p % tokens;
            seq[row] = i;
        }
    }
}

/* Page tables and what attention is planned from. Returns how many blocks of queries there are; 0:
 * the tables are too long. */
static uint32_t fill_attention(struct step *s, struct batch_head *h) {
    const struct engine_batch *batch = s->batch;
    const uint32_t *start = batch->table[KV_GLOBAL].start;
    uint32_t group = s->be->shape->n_head / s->be->shape->n_head_kv, n_blocks = 0;
    const void *d[2];
    struct plan_seq *seq = staging_take(&s->rows, batch->n_seqs * sizeof(*seq), &d[0]);
    uint32_t *pages = staging_take(&s->rows, start[batch->n_seqs] * sizeof(*pages), &d[1]);

    if (!pages || !seq)
        return 0;
    memcpy(pages, batch->table[KV_GLOBAL].page, start[batch->n_seqs] * sizeof(*pages));
    for (uint32_t i = 0; i < batch->n_seqs; i++) {
        const struct engine_seq *q = &batch->seq[i];

        seq[i] = (struct plan_seq){q->row0, q->n_rows, q->pos0, start[i], q->state_slot};
        n_blocks += (q->n_rows * group + ATTN_QUERIES - 1) / ATTN_QUERIES;
    }
    h->n_seqs = batch->n_seqs;
    h->seq = d[0];
    h->page_table = d[1];
    h->item = s->be->item;
    h->merge = s->be->merge;
    return n_blocks;
}

/* Everything the device must know of the batch before it is sampled, in one copy. */
static int upload_rows(struct step *s) {
    const struct engine_batch *b = s->batch;
    size_t n = b->n_rows * sizeof(uint32_t);
    const void *d[8];
    void *h[7];

    s->rows.used = 0;
    struct batch_head *head = staging_take(&s->rows, sizeof(*head), &d[7]);
    for (int i = 0; i < 6; i++)
        h[i] = staging_take(&s->rows, n, &d[i]);
    h[6] = staging_take(&s->rows, s->n_scored * sizeof(uint32_t), &d[6]);
    for (int i = 0; i < 7; i++)
        assert(h[i]);
    memcpy(h[0], b->token, n);
    fill_rows(s, h[1], h[2], h[3], h[4], h[5]);
    for (uint32_t i = 0; i < s->n_scored; i++)
        ((uint32_t *)h[6])[i] = b->want[s->scored[i]].row;
    *head = (struct batch_head){
        .n_rows = b->n_rows,
        .n_wants = s->n_scored,
        .token = d[0],
        .feed = d[1],
        .pos = d[2],
        .row_page = d[3],
        .row_slot = d[4],
        .row_seq = d[5],
        .want_row = d[6],
    };
    uint32_t n_blocks = fill_attention(s, head);
    if (n_blocks == 0) {
        snprintf(s->be->error, sizeof(s->be->error), "the batch's page tables are too long");
        s->be->lost = true;
        return -EIO;
    }
    s->grid = (struct step_grid){b->n_rows, b->n_seqs, s->n_scored,
                                 graph_attention(s->be, n_blocks), n_blocks};
    return staging_send(s->be, &s->rows, 0);
}

/* -- ops --------------------------------------------------------------------------------------- */

static int record(struct step *s) {
    int r = cuda_check(s->be, s->be->api->event_record(s->event, s->be->stream), "cudaEventRecord");

    s->recorded = r == 0;
    return r;
}

/* Whether blocks of attention have many queries: keys are then read once for 64. */
static bool is_wide(const struct step *s) {
    return s->grid.rows > s->be->wide_rows && s->be->shape->head_dim <= 128;
}

/* The work list of attention, made on the device from the batch's head. */
static int plan(struct step *s) {
    struct be *b = s->be;
    struct plan_args a = {
        .batch = b->head,
        .item = b->item,
        .merge = b->merge,
        .group = b->shape->n_head / b->shape->n_head_kv,
        .n_head_kv = b->shape->n_head_kv,
        .n_multiprocessors = (uint32_t)b->device.n_multiprocessors,
        .max_partials = b->n_partials,
        .page_tokens = b->shares ? b->page.page_tokens : 0,
        .wide = is_wide(s) ? ATTN_WIDE : ATTN_QUERIES,
    };

    return launch_rows(b, kernel_plan, 1, &a, sizeof(a), "plan");
}

/* The step before may still run: everything that it reads on the device lies before this step's
 * upload in the stream. */
int step_begin(struct be *b, const struct engine_batch *batch, struct step **out) {
    struct step *s = &b->step[batch->step % 2], *other = &b->step[(batch->step + 1) % 2];

    assert(!other->batch || other->recorded || other->batch->n_wants == 0);
    if (other->batch && !other->recorded && record(other) < 0) /* its end is here */
        return -EIO;
    assert(!s->batch); /* at most two steps in flight */
    s->batch = batch;
    s->recorded = false;
    s->head = s->held = s->summed = s->routed = s->shared = NULL;
    s->packed = s->gated = false;
    memset(s->mask, 0, batch->n_wants * sizeof(*s->mask));
    hidden_sort(s);
    *out = s;
    if (batch->n_rows == 0)
        return b->lost ? -EIO : 0;
    int r = upload_rows(s);
    if (r < 0)
        return r;
    if (graph_begin(s))
        return graph_launch(s);
    r = plan(s);
    if (r < 0)
        return r;
    struct rope_args a = {
        .batch = b->head,
        .freq = b->freq,
        .rope = b->rope,
        .n_pairs = b->shape->rope[0].n_rot / 2,
        .mscale = b->shape->rope[0].mscale,
    };
    return launch_rows(b, kernel_rope, s->grid.rows, &a, sizeof(a), "rope");
}

/* From the file's rows, or from the output's tiles where the embedding is tied and they hold it
 * exactly. */
int step_embed(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct weights *w = op->weights;
    struct embed_args a = {
        .batch = b->head,
        .table = w->raw,
        .tiles = w->m[0].tiles,
        .format = w->m[0].format,
        .n_units = w->m[0].n_units,
        .sampled = b->sampled,
        .x = b->x,
    };

    return launch_rows(b, kernel_embed, s->grid.rows, &a, sizeof(a), "embed");
}

struct pack_args step_pack_args(const struct be *b, enum pack_kind kind, const float *x,
                                const float *weight, uint32_t n) {
    return (struct pack_args){
        .batch = b->head,
        .x = x,
        .up = kind == PACK_GATE ? b->o_gate : b->up,
        .weight = weight,
        .packed = b->packed,
        .scale = b->scale,
        .sums = b->sums,
        .kind = kind,
        .n = n,
        .n_padded = (uint32_t)round_up(n, 64),
        .eps = b->shape->rms_eps,
    };
}

static struct store_args store_args_of(const struct be *b, const struct model_op *op) {
    const struct model_shape *m = b->shape;
    const struct weights *w = op->weights;

    return (struct store_args){
        .batch = b->head,
        .q = b->q,
        .k = b->k,
        .v = b->v,
        .q_norm = w->q_norm,
        .k_norm = w->k_norm,
        .rope = b->rope,
        .pages = b->pages + op->kv.layer * b->layer_bytes,
        .shape = b->page,
        .n_head = m->n_head,
        .n_rot = m->rope[0].n_rot,
        .neox = m->rope_type == ROPE_NEOX,
        .eps = m->rms_eps,
    };
}

/* -- what is fused ----------------------------------------------------------------------------- */

/*
 * A layer of a few rows is five kernels; each leaves to the next one what that one takes, by the
 * work of its last blocks:
 *
 *     q k v       heads rotated, keys and values in their pages
 *     attention   chunks merged, rows packed
 *     output      x; its norm, packed
 *     gate, up    silu(gate) up, packed
 *     down        x; its norm, packed
 *
 * A projection can do the norm only when it is known which: it is held until the op behind it
 * comes. What one block would take too long to pack is packed by a kernel of its own, with a block
 * a row.
 */
static bool fuses(const struct step *s) {
    return s->be->fuse > 0 && !s->be->no_matvec && s->grid.rows <= MATVEC_ROWS && !is_wide(s);
}

static bool packs_last(const struct step *s, uint32_t n) {
    return fuses(s) && (uint64_t)s->grid.rows * n <= s->be->fuse;
}

static struct matmul_args narrow_args(const struct step *s, const struct weights *w, bool add) {
    const struct be *b = s->be;
    struct operand x = {b->packed, b->scale, b->sums, &b->head->n_rows, s->grid.rows};
    struct matmul_args a = cuda_matmul_args(w, &x, add);

    a.arrived = b->arrived;
    return a;
}

int step_pack(struct step *s, enum pack_kind kind, const float *x, const float *weight,
              uint32_t n) {
    struct pack_args a = step_pack_args(s->be, kind, x, weight, n);
    bool done = s->packed;

    s->packed = false;
    return done ? 0 : launch_pack(s->be, s->grid.rows, &a);
}

/* Launches the projection or the sum that waits, if any; @norm: of the op that takes x next, NULL:
 * none does. */
static int release(struct step *s, const float *norm) {
    struct be *b = s->be;
    uint32_t n = b->shape->n_embd;

    if (s->summed)
        return experts_combine(s, norm);
    if (!s->held)
        return 0;
    struct matmul_args a = narrow_args(s, s->held, true);
    if (norm && packs_last(s, n)) {
        a.finish = FINISH_PACK;
        a.pack = step_pack_args(b, PACK_NORM, b->x, norm, n);
        s->packed = true;
    }
    s->held = NULL;
    return cuda_matvec(b, &a);
}

/* What is packed while nothing waits is a hidden vector, for a projection that comes later. */
int step_norm(struct step *s, const float *norm) {
    if (!s->held && !s->summed)
        s->packed = false;
    int r = release(s, norm);
    return r < 0 ? r : step_pack(s, PACK_NORM, s->be->x, norm, s->be->shape->n_embd);
}

/* Few rows: one kernel, whose last blocks rotate the heads and store keys and values; else
 * product and store. */
int step_qkv(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    struct store_args store = store_args_of(b, op);

    assert(op->kv.cls == KV_GLOBAL && op->kv.layer < m->n_kv_layer[KV_GLOBAL]);
    assert(w->n_mats == 3 || w->n_mats == 4);
    s->gated = w->n_mats == 4;
    int r = step_norm(s, w->norm);
    if (r == 0 && fuses(s) && m->head_dim % TILE_ROWS == 0) {
        struct matmul_args a = narrow_args(s, w, false);

        a.finish = FINISH_STORE;
        a.store = store;
        return cuda_matvec(b, &a);
    }
    r = r < 0 ? r : step_multiply(s, w, false);
    struct launch l = {kernel_store, s->grid.rows, (m->n_head + m->n_head_kv + 7) / 8,
                       CUDA_THREADS, "store",      0};
    return r < 0 ? r : cuda_launch(b, &l, &store, sizeof(store));
}

static struct launch attend_launch(const struct step *s) {
    uint32_t dim = s->be->shape->head_dim;
    struct launch l = {.grid_x = s->grid.items,
                       .grid_y = s->be->shape->n_head_kv,
                       .n_threads = CUDA_THREADS,
                       .what = "attend"};

    l.kernel = dim <= 64 ? kernel_attend_64 : dim <= 128 ? kernel_attend_128 : kernel_attend_256;
    if (is_wide(s)) {
        l.kernel = dim <= 64 ? kernel_attend_wide_64 : kernel_attend_wide_128;
        l.shared = dim <= 64 ? ATTEND_WIDE_SHARED(64) : ATTEND_WIDE_SHARED(128);
    }
    return l;
}

/* Split chunks are merged by the last block of a query (few rows) or by a kernel of its own. */
int step_attend(struct step *s, const struct model_op *op) {
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    uint32_t window = op->attn.window ? op->attn.window : UINT32_MAX;
    const float *sinks = op->weights ? op->weights->sinks : NULL;
    struct attend_args a = {
        .batch = b->head,
        .q = b->q,
        .o = b->o,
        .partial = b->partial,
        .pages = b->pages + op->kv.layer * b->layer_bytes,
        .shape = b->page,
        .n_head = m->n_head,
        .group = m->n_head / m->n_head_kv,
        .partial_stride = b->partial_stride,
        .scale = op->attn.scale,
        .window = window,
        .sinks = sinks,
    };
    struct merge_args c = {
        .batch = b->head,
        .partial = b->partial,
        .o = b->o,
        .n_head = m->n_head,
        .n_head_kv = m->n_head_kv,
        .group = a.group,
        .head_dim = m->head_dim,
        .partial_stride = b->partial_stride,
        .window = window,
        .sinks = sinks,
    };

    assert(op->kv.cls == KV_GLOBAL);
    struct launch attend = attend_launch(s);
    struct launch merge = {kernel_merge, s->grid.merges, m->n_head_kv, CUDA_THREADS, "merge", 0};
    if (fuses(s)) {
        a.merged = b->arrived;
        a.rows = b->arrived + b->max_merges * m->n_head_kv;
        a.pack = step_pack_args(b, s->gated ? PACK_GATE : PACK_PLAIN, b->o, NULL,
                                m->n_head * m->head_dim);
        s->packed = true;
        return cuda_launch(b, &attend, &a, sizeof(a));
    }
    int r = cuda_launch(b, &attend, &a, sizeof(a));
    return r < 0 ? r : cuda_launch(b, &merge, &c, sizeof(c));
}

/* The gates came with the queries and are multiplied when the output is packed. */
int step_gate(struct step *s, const struct model_op *op) {
    assert(s->gated && !op->w[0]);
    return 0;
}

int step_proj(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    struct be *b = s->be;
    enum pack_kind kind = op->in == ACT_O && s->gated ? PACK_GATE : PACK_PLAIN;

    assert((op->in == ACT_H || op->in == ACT_O || op->in == ACT_D) && !s->held);
    int r = release(s, NULL);
    if (op->in == ACT_H)
        r = r < 0 ? r : step_pack_ff(s, w->n_in);
    else
        r = r < 0 ? r
                  : step_pack(s, kind, op->in == ACT_D ? b->recurrent.out : b->o, NULL, w->n_in);
    if (r == 0 && fuses(s))
        s->held = w;
    return r < 0 || s->held ? r : step_multiply(s, w, true);
}

/* h is left as gate and up, for step_pack_ff() to multiply them, or where gate was. */
int step_gate_and_up(struct step *s, const struct weights *w) {
    struct be *b = s->be;
    uint32_t n_ff = w->m[0].n_out;

    if (!fuses(s))
        return step_multiply(s, w, false);
    struct matmul_args a = narrow_args(s, w, false);
    a.gated = w->m[0].n_row_tiles;
    if (packs_last(s, n_ff)) {
        a.finish = FINISH_PACK;
        a.pack = step_pack_args(b, PACK_PLAIN, b->gate, NULL, n_ff);
        s->packed = true;
    }
    return cuda_matvec(b, &a);
}

int step_pack_ff(struct step *s, uint32_t n) {
    return step_pack(s, fuses(s) ? PACK_PLAIN : PACK_SILU, s->be->gate, NULL, n);
}

int step_gate_up(struct step *s, const struct model_op *op) {
    int r = step_norm(s, op->weights->norm);

    return r < 0 ? r : step_gate_and_up(s, op->weights);
}

int step_logit_rows(struct step *s, uint32_t first, uint32_t n) {
    struct be *b = s->be;
    size_t row = round_up(b->shape->n_embd, 64);
    struct operand x = {b->head_packed + first * row, b->head_scale + first,
                        b->head_sums + first * (row / 32), first ? NULL : &b->head->n_wants, n};

    assert(first % PACK_ROWS == 0);
    return cuda_matmul(b, s->head, &x, false);
}

/* The last op: the norm of the wanted rows and the first LOGIT_ROWS of their logits; the rest
 * come round by round when they are sampled (seal.c). */
int step_logits(struct step *s, const struct model_op *op) {
    const struct weights *w = op->weights;
    struct be *b = s->be;
    const struct model_shape *m = b->shape;
    struct pack_args a = {
        .x = b->x,
        .up = b->x,
        .weight = w->norm,
        .batch = b->head,
        .wanted = true,
        .packed = b->head_packed,
        .scale = b->head_scale,
        .sums = b->head_sums,
        .kind = PACK_NORM,
        .n = m->n_embd,
        .n_padded = (uint32_t)round_up(m->n_embd, 64),
        .eps = m->rms_eps,
    };

    assert(w->norm && w->n_mats == 1 && !s->packed);
    s->head = w;
    int r = release(s, NULL);
    r = r < 0 ? r : launch_pack(b, s->grid.wants, &a);
    r = r < 0 ? r : step_logit_rows(s, 0, MIN(s->grid.wants, LOGIT_ROWS));
    if (r == 0)
        graph_end(s);
    return r;
}

/* A host page has its layers one after the other; pinned memory has the same address on the
 * device. */
int step_copy(struct be *b, const struct engine_copy *c) {
    size_t page = page_layer_bytes(&b->page), whole = page * b->shape->n_kv_layer[KV_GLOBAL];
    bool from_host = c->dir == COPY_H2D, to_host = c->dir == COPY_D2H;

    assert(c->dir <= COPY_H2D && c->cls == KV_GLOBAL);
    assert(c->src < (from_host ? b->opts->n_host_pages : b->n_pages));
    assert(c->dst < (to_host ? b->opts->n_host_pages : b->n_pages));
    struct copy_args a = {
        .from = from_host ? b->host_pages + c->src * whole : b->pages + c->src * page,
        .to = to_host ? b->host_pages + c->dst * whole : b->pages + c->dst * page,
        .from_layer = from_host ? page : b->layer_bytes,
        .to_layer = to_host ? page : b->layer_bytes,
        .page_bytes = page,
    };
    uint32_t parts =
        (uint32_t)MIN((a.page_bytes + CUDA_THREADS * 16 - 1) / (CUDA_THREADS * 16), 32u);

    struct launch l = {kernel_copy_page, parts,       b->shape->n_kv_layer[KV_GLOBAL],
                       CUDA_THREADS,     "copy_page", 0};
    return cuda_launch(b, &l, &a, sizeof(a));
}

/* -- the end ----------------------------------------------------------------------------------- */

static int64_t now_ns(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Asks without pause for 2 ms, then every 50 us: a step takes 1 to 200 ms. */
static int wait_event(struct be *b, void *event) {
    int64_t start = now_ns();
    int e = b->api->event_query(event);

    while (e == CUDA_NOT_READY) {
        int64_t waited = now_ns() - start;

        if (waited > b->wait_limit_ns) {
            snprintf(b->error, sizeof(b->error), "a step was not done in %lld s",
                     (long long)(b->wait_limit_ns / 1000000000));
            b->lost = b->stuck = true;
            return -EIO;
        }
        if (waited > 2000000)
            nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
        e = b->api->event_query(event);
    }
    return cuda_check(b, e, "step");
}

/* From pinned memory; the engine reads them until the step after next ends. */
static void take_results(struct step *s) {
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

/* A step without wants has recorded no event yet. */
int step_end(struct step *s, struct engine_result *out) {
    struct be *b = s->be;
    int r = b->lost ? -EIO : 0;

    if (r == 0 && !s->recorded) /* nothing was sampled */
        r = record(s);
    r = r < 0 ? r : wait_event(b, s->event);
    if (r < 0)
        return r;
    take_results(s);
    *out = (struct engine_result){s->batch->step, s->batch->n_wants, s->out};
    b->last = s;
    b->last_wants = s->batch->n_wants;
    s->batch = NULL;
    return 0;
}
