/*
 * backend - opens and closes the CPU backend, loads weights, and has its table of functions.
 *
 * Weights are packed into panels when a model is loaded, by all threads, and the pages of the file
 * are released, so weights are in memory once. Their memory comes from large blocks
 * (be_alloc_weights()). If packed weights are kept (engine/keep.h), the blocks are mappings of a
 * file in memory, which is sealed after loading and which the next process maps in place of
 * packing. That process calls be_alloc_weights() with the same sizes in the same order, so every
 * matrix is at the same offset; with keep.found, cpu_load() computes addresses and writes nothing.
 *
 * Everything else is allocated at open for the largest batch and freed by be_release(). A step
 * allocates nothing.
 */

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/try.h"
#include "engine/cpu/state.h"
#include "engine/formats/quant.h"

/* Sizes in bytes: a huge page, the smallest block of weights, memory of pages that touch_kv()
 * writes to. */
enum { HUGE = 2 << 20, BLOCK = 64 << 20, KV_TOUCHED = 256 << 20 };

/* Memory that be_map() or be_alloc() has allocated. */
struct owned {
    struct owned *next;
    void *at;
    /* 0: from calloc() */
    size_t size;
};

/* Maps memory that begins at a multiple of HUGE: maps one huge page more than needed, and unmaps
 * the rest. Returns NULL if there is no memory. */
static void *map_pages(size_t size) {
    size_t whole;

    assert(HUGE % (size_t)sysconf(_SC_PAGESIZE) == 0);
    if (size_add(size, 2 * HUGE, &whole))
        return NULL;
    whole = round_up(size, HUGE) + HUGE;
    uint8_t *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    size_t skip = round_up((uintptr_t)p, HUGE) - (uintptr_t)p;
    if (skip)
        munmap(p, skip);
    if (skip < HUGE)
        munmap(p + skip + whole - HUGE, HUGE - skip);
    madvise(p + skip, whole - HUGE, MADV_HUGEPAGE); /* fails if the system has no huge pages */
    return p + skip;
}

static void unmap_pages(void *p, size_t size) {
    if (p)
        munmap(p, round_up(size, HUGE));
}

/* Frees memory of mmap(), or of malloc() if @size is 0. */
static void free_memory(void *at, size_t size) {
    if (size)
        unmap_pages(at, size);
    else
        free(at);
}

/* Adds @at, which be_release() will free, to the list of owned memory. Returns @at; or, if @at is
 * NULL or there is no memory, frees @at and returns NULL. */
static void *cpu_own(struct be *b, void *at, size_t size) {
    struct owned *o = malloc(sizeof(*o));

    if (!at || !o) {
        b->no_memory = true;
        free_memory(at, size);
        free(o);
        return NULL;
    }
    *o = (struct owned){b->owned, at, size};
    b->owned = o;
    return at;
}

void *be_map(struct be *b, size_t size) {
    return cpu_own(b, map_pages(MAX(size, 1)), MAX(size, 1));
}

float *be_rows(struct be *b, size_t width) {
    return be_map(b, b->max_rows * width * sizeof(float));
}

void *be_alloc(struct be *b, size_t n, size_t size) {
    return cpu_own(b, calloc(MAX(n, 1), size), 0);
}

/* Removes *@o from the list and frees its memory. */
static void cpu_release(struct owned **o) {
    struct owned *old = *o;

    *o = old->next;
    free_memory(old->at, old->size);
    free(old);
}

void be_release(struct be *b) {
    while (b->owned)
        cpu_release(&b->owned);
}

int be_grow(struct be *b, uint8_t **acts, size_t *have, size_t size) {
    if (size <= *have)
        return 0;
    for (struct owned **o = &b->owned; *acts && *o; o = &(*o)->next)
        if ((*o)->at == *acts) {
            cpu_release(o);
            break;
        }
    *acts = be_map(b, size);
    *have = *acts ? size : 0;
    return *acts ? 0 : -ENOMEM;
}

/* Maps block @k to the next part of the file of kept weights; if that fails, or there is no such
 * file, to private memory. */
static void map_block(struct be *b, struct block *k) {
    k->base = map_pages(k->size);
    k->offset = b->keep.mapped;
    if (!k->base || b->keep.fd <= 0)
        return;
    k->keep = keep_map(&b->keep, k->base, k->size) == 0;
    if (!k->keep) {
        unmap_pages(k->base, k->size);
        k->base = map_pages(k->size);
    }
}

/* Context for allocating the huge pages of block @k from k->backed on. */
struct back_run {
    const struct be *b;
    const struct block *k;
    _Atomic bool failed;
};

/* Implements each_fn: allocates memory for a huge page of a block. */
static void back_page(void *ctx, uint32_t i, uint32_t thread) {
    struct back_run *r = ctx;
    size_t at = r->k->backed + (size_t)i * HUGE;

    if (keep_back(&r->b->keep, r->k->base + at, r->k->offset + at) < 0)
        atomic_store(&r->failed, true);
}

/* Allocates memory for the used part of a block of the file of kept weights. Returns false if there
 * is no memory. */
static bool back_block(struct be *b, struct block *k) {
    struct back_run run = {.b = b, .k = k};

    if (!k->keep || b->keep.fd <= 0 || b->keep.found || k->used <= k->backed)
        return true;
    size_t n = (round_up(k->used, HUGE) - k->backed) / HUGE;
    pool_each(b->pool, (uint32_t)n, back_page, &run);
    k->backed += n * HUGE;
    return !run.failed;
}

static_assert((int)HUGE == (int)KEEP_PAGE, "blocks are made of the pages that are kept");

void *be_alloc_weights(struct be *b, size_t size) {
    struct block *k = b->blocks;
    bool found = b->keep.found;

    size = round_up(size, 64);
    if (!k || k->size - k->used < size) {
        k = calloc(1, sizeof(*k));
        if (!k)
            return NULL;
        *k = (struct block){.next = b->blocks, .size = round_up(MAX(size, BLOCK), HUGE)};
        map_block(b, k);
        if (!k->base || found != b->keep.found) {
            unmap_pages(k->base, k->size);
            free(k);
            return NULL;
        }
        b->blocks = k;
    }
    k->used += size;
    assert(k->used <= k->size);
    return back_block(b, k) ? k->base + k->used - size : NULL;
}

int be_vector(struct be *b, const struct tensor *t, float **out) {
    if (!t)
        return 0;
    assert(t->ne[2] * t->ne[3] == 1 && !*out);
    float *v = be_alloc_weights(b, t->ne[0] * t->ne[1] * sizeof(float));

    if (!v)
        return -ENOMEM;
    for (uint64_t i = 0; i < t->ne[1] && !b->keep.found; i++)
        quant_decode_row(t, i, v + i * t->ne[0]);
    *out = v;
    return 0;
}

/* Context for packing a matrix. */
struct pack_run {
    const struct mat *m;
    const struct tensor *t;
};

/* Implements each_fn: packs a panel of a matrix. */
static void pack_one(void *ctx, uint32_t i, uint32_t thread) {
    const struct pack_run *r = ctx;

    panel_pack(r->m, r->t, i, r->m->data + i * r->m->panel_bytes);
}

/* Context for packing one of the three matrices of all experts of an op. */
struct pack_experts {
    struct mat (*expert)[3];
    const struct tensor *t;
    uint32_t which;
    /* rows from an expert to the next */
    uint64_t stride;
};

/* Implements each_fn: packs a panel of an expert, if this backend computes it. */
static void pack_expert(void *ctx, uint32_t i, uint32_t thread) {
    const struct pack_experts *r = ctx;
    uint32_t per = r->expert[0][r->which].n_panels;
    const struct mat *m = &r->expert[i / per][r->which];
    struct tensor one = *r->t;

    tensor_skip_rows(&one, i / per * r->stride);
    if (m->data)
        panel_pack(m, &one, i % per, m->data + i % per * m->panel_bytes);
}

/* Releases the mapped pages that lie in the @n bytes at @data. */
static void cpu_forget_bytes(const uint8_t *data, size_t n) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = round_up((uintptr_t)data, page);
    uintptr_t to = ((uintptr_t)data + n) / page * page;

    if (from < to)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

/* Releases the mapped pages of a tensor that was packed, so that it is not in memory twice. The
 * system's page cache keeps them as long as there is room. */
static void cpu_forget(const struct tensor *t) {
    const uint8_t *data;
    size_t n;

    for (uint64_t i = 0; (data = tensor_range(t, i, &n)); i++)
        cpu_forget_bytes(data, n);
}

/* Makes room for the activations of the largest batch, of @n_in values, in format @kind. */
static int grow_acts(struct be *b, enum acts_kind kind, uint32_t n_in) {
    uint32_t n = (uint32_t)round_up(MAX(b->max_rows, b->max_wants), TILE_MAX);

    return be_grow(b, &b->acts[kind], &b->acts_size[kind], acts_bytes(kind, n_in, n));
}

int be_pack(struct be *b, struct mat *m, const struct tensor *t, struct err *err) {
    int r = panel_plan(m, t, err);

    if (r)
        return r;
    m->data = be_alloc_weights(b, m->n_panels * m->panel_bytes);
    if (!m->data)
        return -ENOMEM;
    if (b->keep.found)
        return 0;
    pool_each(b->pool, m->n_panels, pack_one, &(struct pack_run){m, t});
    cpu_forget(t);
    return 0;
}

/* Implements be_ops.stored_bytes: bytes of the panels of @t. */
static uint64_t cpu_stored_bytes(const struct tensor *t) {
    struct err none = {0};
    struct mat m;

    if (panel_plan(&m, t, &none) < 0)
        return t->n_bytes;
    return t->ne[2] * t->ne[3] * m.n_panels * m.panel_bytes;
}

/* Returns a matrix that was packed from @t before, or NULL. A block drafter shares the model's
 * output matrix, and uses its matrices of keys and values in both passes. */
static const struct mat *packed_of(const struct be *b, const struct tensor *t) {
    for (const struct weights *w = b->weights; w; w = w->next)
        for (uint32_t i = 0; i < w->n_mats; i++)
            if (w->of[i] == t)
                return &w->m[i];
    return NULL;
}

/* Loads matrix @i of an op, its scale and its bias, and makes room for its activations. Returns 0
 * or -errno. */
static int load_mat(struct be *b, struct weights *w, const struct model_op *op, uint32_t i,
                    struct err *err) {
    const struct mat *same = packed_of(b, op->w[i]);
    struct mat *m = &w->m[i];

    if (i > 0 && op->w[i] == op->w[i - 1]) { /* an FFN without a gate (GLU_RELU) */
        *m = m[-1];
        w->n_mats = i + 1;
        return 0;
    }
    assert(i == w->n_mats); /* matrices are loaded in their order, without gaps */
    if (same)
        *m = *same;
    else
        TRY(be_pack(b, m, op->w[i], err));
    TRY(be_vector(b, op->w[i]->scale, &w->scale[i]));
    TRY(be_vector(b, op->bias[i], &w->bias[i]));
    m->scale = w->scale[i];
    m->bias = w->bias[i];
    w->of[i] = op->w[i];
    w->n_mats = i + 1;
    return grow_acts(b, panel_infos[m->format].acts, m->n_in);
}

/* Returns true if this backend computes the expert. Beside a device (cpu_host.c) it computes
 * the experts in host memory, else all of them. */
static bool has_expert(const struct be *b, uint32_t layer, uint32_t expert) {
    return !b->shape.host_experts || expert_is_hosts(&b->shape, layer, expert);
}

/* Loads tensor @which of an EXPERTS op (0 gate, 1 up, 2 down) as a matrix for each expert. Experts
 * that a device computes get no data. Returns 0 or -errno. */
static int load_expert_mats(struct be *b, struct weights *w, const struct model_op *op,
                            uint32_t which, struct err *err) {
    const struct tensor *all = op->w[op->ffn.joined && which == 1 ? 0 : which];
    uint32_t n = b->shape.n_expert;
    struct mat plan;

    if (!all) /* experts without an up value */
        return 0;
    struct tensor t = *all;
    if (which == 1 && op->w[1] == op->w[0]) { /* experts without a gate (GLU_RELU) */
        for (uint32_t e = 0; e < n; e++)
            w->expert[e][1] = w->expert[e][0];
        return 0;
    }
    if (op->ffn.joined && which < 2) { /* a matrix has the rows of the gate, then those of the up */
        t.ne[1] /= 2;
        tensor_skip_rows(&t, which * t.ne[1]);
    }
    TRY(panel_plan(&plan, &t, err));
    TRY(be_vector(b, all->scale, &w->scale[which]));
    TRY(be_vector(b, op->bias[which], &w->bias[which]));
    size_t bytes = plan.n_panels * plan.panel_bytes;
    for (uint32_t e = 0; e < n; e++) {
        struct mat *m = &w->expert[e][which];

        *m = plan;
        m->data = has_expert(b, op->layer, e) ? be_alloc_weights(b, bytes) : NULL;
        m->scale = w->scale[which] ? w->scale[which] + e : NULL;
        m->bias = w->bias[which] ? w->bias[which] + (size_t)e * plan.n_out : NULL;
        if (!m->data && has_expert(b, op->layer, e))
            return -ENOMEM;
    }
    struct pack_experts run = {w->expert, &t, which, all->ne[1]};
    if (!b->keep.found)
        pool_each(b->pool, n * plan.n_panels, pack_expert, &run);
    if (!op->ffn.joined || which != 0)
        cpu_forget(all);
    return experts_grow(b, panel_infos[plan.format].acts, plan.n_in);
}

/* Loads the gate, up and down matrices of all experts. Returns 0 or -errno; after an error close()
 * frees what was allocated. */
static int cpu_load_experts(struct be *b, struct weights *w, const struct model_op *op,
                            struct err *err) {
    w->expert = calloc(b->shape.n_expert, sizeof(*w->expert));
    int r = w->expert ? 0 : -ENOMEM;

    for (uint32_t i = 0; i < 3 && !r; i++)
        r = load_expert_mats(b, w, op, i, err);
    return r;
}

/* Copies table @t, whose rows are decoded when they are needed, to weight memory in the format of
 * the file. The mapping of the file is not used, because the file may change while it is served. */
static int cpu_load_table(struct be *b, struct tensor *to, const struct tensor *t) {
    uint8_t *data = be_alloc_weights(b, t->n_bytes);

    if (!data)
        return -ENOMEM;
    if (!b->keep.found)
        tensor_copy_rows(t, 0, t->n_bytes / t->row_bytes, data);
    *to = *t;
    to->data = data;
    to->piece = NULL;
    to->repack = NULL;
    cpu_forget(t);
    return 0;
}

/* Loads the tables of tokens and positions, and the row of the only token type (EMBED). */
static int load_embeddings(struct be *b, struct weights *w, const struct model_op *op,
                           struct err *err) {
    TRY(cpu_load_table(b, &w->embedding, op->w[0]));
    TRY(be_vector(b, op->w[1], &w->positions));
    return be_vector(b, op->w[2], &w->token_type);
}

/* Loads a matrix and a table (LAYER_INPUT, CHAIN). */
static int load_layer_input(struct be *b, struct weights *w, const struct model_op *op,
                            struct err *err) {
    int r = load_mat(b, w, op, 0, err);

    return r ? r : cpu_load_table(b, &w->embedding, op->w[1]);
}

/* Loads a matrix and two tables (SELECT). */
static int load_select(struct be *b, struct weights *w, const struct model_op *op,
                       struct err *err) {
    int r = load_layer_input(b, w, op, err);

    return r ? r : cpu_load_table(b, &w->successor, op->w[2]);
}

/* Loads all matrices of an op. */
static int load_mats(struct be *b, struct weights *w, const struct model_op *op, struct err *err) {
    int r = 0;

    for (uint32_t i = 0; i < OP_MATRICES && op->w[i] && !r; i++)
        r = load_mat(b, w, op, i, err);
    return r;
}

/* Loads a router, with the table of the picks of each token if it has one. */
static int cpu_load_route(struct be *b, struct weights *w, const struct model_op *op,
                          struct err *err) {
    int r = load_mats(b, w, op, err);

    return r || !op->picks ? r : cpu_load_table(b, &w->embedding, op->picks);
}

static int cpu_load_ngram(struct be *b, struct weights *w, const struct model_op *op,
                          struct err *err) {
    const struct op_recurrent taps = {.conv = op->ngram.conv};
    int r = load_mats(b, w, op, err);

    return r ? r : recurrent_load_taps(b, w, &taps, b->shape.stream.n * b->shape.n_embd);
}

static int cpu_load_scan(struct be *b, struct weights *w, const struct model_op *op,
                         struct err *err) {
    int r = load_mats(b, w, op, err);

    return r ? r : scan_load(b, w, op, err);
}

#define OP(kind, name, feature, cost) [OP_##kind].run = ops_##name,

/* clang-format off */
/* Kinds without a loader have matrices only. */
static const struct op_code cpu_code[] = {
    [OP_EMBED].load = load_embeddings,
    [OP_LAYER_INPUT].load = load_layer_input,
    [OP_ROUTE].load = cpu_load_route,
    [OP_EXPERTS].load = cpu_load_experts,
    [OP_DELTA].load = recurrent_load,
    [OP_KDA].load = recurrent_load,
    [OP_CONV].load = recurrent_load,
    [OP_MAMBA].load = recurrent_load,
    [OP_SCAN].load = cpu_load_scan,
    [OP_MLA_KV].load = mla_load,
    [OP_MLA_OUT].load = mla_load,
    [OP_SELECT].load = load_select,
    [OP_CHAIN].load = load_layer_input,
    [OP_NGRAM].load = cpu_load_ngram,
#include "engine/op_list.h"
};
/* clang-format on */
#undef OP

#define OP(kind, name, feature, cost) [OP_##kind] = &cpu_code[OP_##kind],

static const struct op_code *const cpu_ops[OP_KINDS] = {
#include "engine/op_list.h"
};

#undef OP

static int cpu_load_parts(struct be *b, const struct model_op *op, struct weights *w,
                          struct err *err) {
    TRY(be_vector(b, op->norm, &w->norm));
    TRY(be_vector(b, op->norm_bias, &w->norm_bias));
    TRY(be_vector(b, op->post_norm, &w->post_norm));
    TRY(be_vector(b, op->q_norm, &w->q_norm));
    TRY(be_vector(b, op->k_norm, &w->k_norm));
    TRY(be_vector(b, op->sinks, &w->sinks));
    TRY(be_vector(b, op->weigh, &w->weigh));
    TRY(be_vector(b, op->pick_bias, &w->pick_bias));
    if (cpu_code[op->kind].load)
        return cpu_code[op->kind].load(b, w, op, err);
    return load_mats(b, w, op, err);
}

/* Implements be_ops.load. close() frees the weights, including those of an op whose loading
 * failed. */
static int cpu_load(struct be *b, const struct model_op *op, struct weights **out,
                    struct err *err) {
    assert(!op->weights);
    struct weights *w = calloc(1, sizeof(*w));
    if (!w)
        return -ENOMEM;
    w->next = b->weights; /* close() frees w from here on */
    b->weights = w;
    int r = cpu_load_parts(b, op, w, err);
    if (r == -ENOMEM)
        err_set(err, 0, NULL, "not enough memory for the weights of layer %u", op->layer);
    if (r)
        return r;
    *out = w;
    return 0;
}

/* Implements be_ops.loaded: packed weights become read-only, and may be kept for other
 * processes. */
static int loaded(struct be *b, enum engine_weights *out, struct err *err) {
    struct block *first = b->blocks;
    int r = 0;

    *out = ENGINE_WEIGHTS_OWN;
    if (b->keep.fd <= 0)
        return 0;
    if (b->keep.found) {
        assert(b->keep.mapped == b->keep.header.n_bytes);
        assert(b->blocks->used == b->keep.header.n_used);
        *out = ENGINE_WEIGHTS_KEPT;
        return 0;
    }
    while (first->next)
        first = first->next;
    keep_describe(&b->keep, first->base, b->blocks->used);
    for (struct block *k = b->blocks; k && r == 0; k = k->next)
        r = keep_protect(&b->keep, k->base, k->size, k->offset);
    if (r < 0)
        return err_set(err, 0, NULL, "cannot map the packed weights: %s", strerror(-r));
    if (keep_seal(&b->keep))
        *out = ENGINE_WEIGHTS_PACKED;
    return 0;
}

/* Sets the layout of pages. The engine has checked that heads consist of whole blocks of the
 * format. */
static void cpu_plan_pages(struct be *b, const struct engine_opts *e) {
    assert(e->page_tokens % LANES == 0);
    b->kv_type = e->kv_type;
    b->page_tokens = e->page_tokens;
    for (int i = 0; i < KV_CLASSES; i++)
        b->kv[i].page_bytes = page_size(&b->shape, (uint8_t)i, b->kv_type, e->page_tokens);
}

/* Implements each_fn: writes to every page of the system in huge page @i from @ctx on once. */
static void touch(void *ctx, uint32_t i, uint32_t thread) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    for (size_t at = 0; at < HUGE; at += page)
        *((volatile uint8_t *)ctx + (size_t)i * HUGE + at) = 0;
}

/* Writes to the first KV_TOUCHED bytes of the pages, which are used first, before there are
 * requests. The first write to a huge page takes 0.1 ms; in a virtual machine whose host has to
 * find the memory it takes 6 ms, which would delay a step by a quarter. */
static void touch_kv(struct be *b, const struct kv_memory *kv) {
    if (kv->at)
        pool_each(b->pool, (uint32_t)(round_up(MIN(kv->bytes, KV_TOUCHED), HUGE) / HUGE), touch,
                  kv->at);
}

/* Allocates activations, the keys and values of a step, logits, scratch memory and pages. Returns 0
 * or -ENOMEM. */
static int cpu_allocate(struct be *b, const struct be_opts *o) {
    const struct model_shape *m = &b->shape;
    uint32_t n_threads = pool_n_threads(b->pool);
    const size_t width[ACT_ROLES] = {
        [ACT_X] = m->n_embd,
        [ACT_Q] = m->widest.q,
        [ACT_O] = m->widest.q,
        [ACT_H] = m->n_ff,
        [ACT_D] = MAX(MAX(m->state.n_out, (size_t)m->n_head * m->mla.n_value), m->n_latent),
        [ACT_B] = m->n_embd,
        [ACT_P] = (size_t)m->n_layer * m->n_layer_input,
        [ACT_S] = (size_t)m->stream.n * m->n_embd,
    };
    size_t gated = m->state.n_layer && !m->compressed.window ? 2 * width[ACT_Q] : 0;

    for (int i = 0; i < ACT_ROLES; i++) {
        b->act_width[i] = width[i];
        b->act[i] = width[i] ? be_rows(b, width[i]) : NULL;
        b->row_width = MAX(b->row_width, round_up(width[i], LANES));
    }
    b->row_width = MAX(b->row_width, round_up(MAX(m->mla.q_rank, m->sparse.dim), LANES));
    b->row_width = MAX(b->row_width, round_up(MAX(m->stream.n_low, 2 * m->block.rank), LANES));
    b->row_width =
        MAX(b->row_width, round_up(MAX(m->compressed.q_rank, m->compressed.index_dim), LANES));
    b->gated = gated ? be_rows(b, gated) : NULL;
    b->pair = m->drafts && !m->n_taps ? be_rows(b, 2 * (size_t)m->n_embd) : NULL;
    b->up = m->sparse_gates ? be_rows(b, m->n_ff) : NULL;
    b->k = be_rows(b, m->widest.kv);
    b->v = be_rows(b, m->widest.kv);
    size_t n_rot = 1;

    for (int i = 0; i < ROPE_SETS; i++)
        n_rot += m->rope[i].n_rot;
    b->rope = be_alloc(b, b->max_rows, n_rot * sizeof(float));
    b->logits = be_map(b, (size_t)b->max_wants * m->n_vocab * sizeof(float));
    b->row = be_alloc(b, n_threads, b->row_width * sizeof(float));
    b->scratch = be_map(b, n_threads * sizeof(*b->scratch));
    b->samplers = be_alloc(b, n_threads, sizeof(*b->samplers));
    b->kv[KV_GLOBAL].n_pages = o->n_pages;
    b->kv[KV_WINDOW].n_pages = o->n_windows;
    for (int i = 0; i < KV_CLASSES; i++) {
        b->kv[i].bytes = b->kv[i].n_pages * b->kv[i].page_bytes;
        b->kv[i].at = b->kv[i].bytes ? be_map(b, b->kv[i].bytes) : NULL;
        touch_kv(b, &b->kv[i]);
    }
    for (uint32_t i = 0; i < n_threads && !b->no_memory; i++)
        b->no_memory = sampler_init(&b->samplers[i], m->n_vocab) < 0;
    return b->no_memory ? -ENOMEM : 0;
}

/* Implements be_ops.close; also accepts a backend that cpu_open_parts() left half-built. */
static struct be *close_backend(struct be *b) {
    if (!b)
        return NULL;
    for (uint32_t i = 0; b->samplers && i < pool_n_threads(b->pool); i++)
        sampler_deinit(&b->samplers[i]);
    be_release(b);
    for (struct block *k = b->blocks, *next; k; k = next) {
        next = k->next;
        unmap_pages(k->base, k->size);
        free(k);
    }
    for (struct weights *w = b->weights, *next; w; w = next) {
        next = w->next;
        free(w->expert);
        free(w->head);
        free(w);
    }
    host_step_deinit(&b->step.host);
    pool_free(b->pool);
    free(b);
    return NULL;
}

static int cpu_open_buffers(struct be *b, const struct be_opts *o) {
    TRY(host_step_init(&b->step.host, o));
    TRY(cpu_allocate(b, o));
    TRY(attend_open(b, o->engine->max_context));
    TRY(experts_open(b));
    TRY(mla_open(b));
    TRY(recurrent_open(b, o->n_states));
    TRY(streams_open(b));
    TRY(blocks_open(b));
    TRY(sparse_open(b, o->engine->max_context));
    return compressed_open(b, o->engine->max_context);
}

/* Opens all parts of a backend whose shape and sizes are known. Returns 0 or -errno with @err. */
static int cpu_open_parts(struct be *b, const struct be_opts *o, struct err *err) {
    int r;

    b->kernels = isa_find(o->engine->isa, err);
    if (!b->kernels)
        return -EINVAL;
    cpu_plan_pages(b, o->engine);
    r = pool_new(&b->pool, o->engine->n_threads);
    if (r) {
        err_set(err, 0, NULL, "cannot start %u threads", o->engine->n_threads);
        return r;
    }
    keep_open(&b->keep, o->engine->keep_fd, o->engine->file, o->engine->block, b->shape.drafts);
    if (b->keep.fd > 0 && !be_alloc_weights(b, sizeof(struct keep_header)))
        return -ENOMEM;
    r = cpu_open_buffers(b, o);
    if (r)
        err_set(err, 0, NULL, "not enough memory for %u pages and the buffers of %u rows",
                o->n_pages, b->max_rows);
    return r;
}

/* Implements be_ops.open. */
static int cpu_open_backend(struct be **out, const struct be_opts *o, struct err *err) {
    struct be *b = calloc(1, sizeof(*b));

    if (!b)
        return -ENOMEM;
    b->shape = *o->shape;
    b->file = o->engine->file;
    b->max_rows = o->engine->max_rows;
    b->max_wants = o->engine->max_wants;
    b->counts_picks = o->engine->experts_fd > 0;
    b->step.be = b;
    int r = cpu_open_parts(b, o, err);
    if (r) {
        close_backend(b);
        return r;
    }
    assert(b->kv[KV_GLOBAL].page_bytes == o->page_bytes && b->row_width >= b->shape.n_embd);
    *out = b;
    return 0;
}

static const char *cpu_isa(const struct be *b) {
    return b->kernels->name;
}

static uint32_t cpu_n_threads(const struct be *b) {
    return pool_n_threads(b->pool);
}

static int copy_page(struct be *b, const struct engine_copy *c) {
    assert(c->dir == COPY_D2D);
    memmove(be_page(b, c->cls, c->dst), be_page(b, c->cls, c->src), b->kv[c->cls].page_bytes);
    return 0;
}

static void *page_of(struct be *b, uint32_t page) {
    return be_page(b, KV_GLOBAL, page);
}

static const float *cpu_peek(const struct be *b, uint32_t want) {
    assert(want < b->max_wants);
    return b->logits + (size_t)b->step.host.logits_of[want] * b->shape.n_vocab;
}

const struct be_ops backend_cpu = {
    .abi = BACKEND_ABI,
    .name = "cpu",
    .depth = 1,
    .hidden = true,
    .open = cpu_open_backend,
    .close = close_backend,
    .isa = cpu_isa,
    .n_threads = cpu_n_threads,
    .stored_bytes = cpu_stored_bytes,
    .load = cpu_load,
    .loaded = loaded,
    .begin = ops_begin,
    .op = cpu_ops,
    .mask = ops_mask,
    .narrow = ops_narrow,
    .sample = ops_sample,
    .end = ops_end,
    .copy = copy_page,
    .copy_state = recurrent_copy,
    .host_page = page_of,
    .host_state = recurrent_slot,
    .peek = cpu_peek,
    .picks = experts_picks,
};
