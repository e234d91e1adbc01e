#pragma once

/* The backend's state, shared by backend.c (open, load), ops.c (the step) and attend.c. */

#include <assert.h>
#include "engine/cpu/cpu.h"
#include "engine/host.h"
#include "engine/keep.h"

/* Memory of the weights: large blocks, in huge pages if the system provides them. Blocks of @keep
 * are at an offset of its file, and their first @backed bytes have memory. */
struct block {
    struct block *next;
    uint8_t *base;
    size_t size, used, backed;
    uint64_t offset;
    bool keep;
};

/* Weights of an op as load() made them: its matrices as panels, its vectors as floats. Either m[0
 * .. n_mats) or expert[] is set. All memory belongs to the blocks and is freed by close(). */
struct weights {
    struct weights *next;
    uint32_t n_mats;
    struct mat m[OP_MATRICES];
    const struct tensor *of[OP_MATRICES];      /* tensors from which load_mat() made m */
    float *norm, *post_norm, *q_norm, *k_norm; /* NULL: none, here and below */
    float *scale[OP_MATRICES], *bias[OP_MATRICES];
    float *sinks, *weigh, *pick_bias;
    float *conv, *conv_bias, *dt, *decay, *skip; /* weights of a recurrent op; else NULL */
    struct mat (*expert)[3];                     /* [n_expert]: gate, up, down */
    struct mat *head;                            /* [n_head] of latent attention */
    struct tensor
        embedding; /* EMBED, LAYER_INPUT, ROUTE, CHAIN: the table as in the file, a copy */
    float *norm_bias, *positions, *token_type; /* vector of NORM; of EMBED, or NULL */
    struct tensor successor; /* SELECT, like embedding, which is its predecessors' */
};

struct experts;   /* buffers of a mixture of experts: experts.c */
struct mla;       /* buffers of latent attention: mla.c */
struct streams;   /* buffers of residual streams: streams.c */
struct condensed; /* buffers of condensed keys: condensed.c */
struct blocks;    /* buffers of block drafters: blocks.c */
struct sparse;    /* buffers of sparse attention: sparse.c */
struct recurrent; /* states and buffers of recurrent layers: recurrent.c */

/* Consecutive rows of the batch for which pages are read together. */
struct attend_block {
    uint32_t row0, n_rows;
};

struct attend_scratch { /* one for each thread */
    float *q;           /* [head_dim][queries] */
    struct attn_state *total, *chunk;
};

/* The step in flight; there is one at a time. */
struct step {
    struct host_step host;
    struct be *be;
    uint32_t n_rows;
};

/*
 * Allocated at open for the largest batch; acts[] and the experts' tiles grow while weights are
 * loaded, and nothing after that. Only the thread that calls the ops changes it; the pool's
 * threads write rows of the buffers, never the same row at once.
 */
struct be {
    const struct cpu_kernels *kernels;
    struct pool *pool;
    struct model_shape shape;
    const struct gguf *file; /* has the table of n-grams, which is not loaded */
    uint32_t max_rows, max_wants;
    bool counts_picks; /* engine_opts.experts_fd */
    struct keep keep;
    struct block *blocks;
    struct weights *weights;
    struct step step;

    float *act[ACT_ROLES]; /* [max_rows][act_width] */
    size_t act_width[ACT_ROLES];
    float *k, *v;  /* [max_rows][widest.kv], before they are written to the pages */
    float *rope;   /* [max_rows][all sets' n_rot]: cosines, sines of each */
    float *logits; /* [max_wants][n_vocab] */
    float *row;    /* [threads][row_width]: a normed row */
    size_t row_width;
    uint8_t *acts[ACTS_KINDS]; /* tiles */
    size_t acts_size[ACTS_KINDS];
    struct matmul_scratch *scratch; /* [threads] */
    struct sampler *samplers;       /* [threads] */

    struct experts *experts;     /* NULL: the model has none */
    struct recurrent *recurrent; /* NULL: the model has none */
    struct mla *mla;             /* NULL: the model has none */
    struct streams *streams;     /* NULL: there are no streams */
    struct blocks *drafter;      /* NULL: no block drafter */
    struct sparse *sparse;       /* NULL: no layer is sparse */
    struct condensed *condensed; /* NULL: keys are not condensed */
    float *pair;                 /* [max_rows][2][n_embd] that DRAFT_IN multiplies; or NULL */
    float *gated;                /* [max_rows][heads][2][dim] queries and gates; or NULL */

    /* Layers are consecutive in a page, each with the keys of every kv head, then the values. */
    struct kv_memory {
        uint8_t *at;
        size_t bytes, page_bytes;
        uint32_t n_pages;
    } kv[KV_CLASSES];
    struct kv_formats kv_type;
    uint32_t page_tokens;
    struct attend_block *attend_blocks; /* [max_rows] */
    struct attend_scratch *attend;      /* [threads] */
    struct attn_state *partial;         /* [n_partial] of long contexts */
    uint32_t n_partial, max_chunks;

    struct owned *owned; /* memory of be_map() and be_alloc() */
    bool no_memory;      /* one of these allocations failed */
};

enum { ATTEND_CHUNK = 256, ATTEND_QUERIES = 32 };

/* Returns the address of page @page of class @cls. */
static inline uint8_t *be_page(const struct be *b, uint8_t cls, uint32_t page) {
    assert(page < b->kv[cls].n_pages);
    return b->kv[cls].at + page * b->kv[cls].page_bytes;
}

/* Returns the layout of a layer with heads @h in its part of a page. */
static inline struct kv_view be_view(const struct be *b, const struct heads *h) {
    size_t key = kv_bytes(b->kv_type.k, h->dim), value = kv_bytes(b->kv_type.v, h->dim);

    return (struct kv_view){
        .type = b->kv_type,
        .head_dim = h->dim,
        .page_tokens = b->page_tokens,
        .k_group = LANES * key,
        .k_head = b->page_tokens * key,
        .v_head = b->page_tokens * value,
    };
}

/* be_ops.picks. */
const uint64_t *experts_picks(const struct be *b);
/* Buffers for a mixture of experts; 0 at once when the model has none. Returns 0 or -ENOMEM. */
int experts_open(struct be *b);
/* Makes room for tiles of this kind and width. */
int experts_grow(struct be *b, enum acts_kind kind, uint32_t n_in);

/* y of the pairs of a device's rows: host_experts_ops.run. The op's norm is that of the rows. */
void experts_beside(struct step *s, const struct model_op *op, const float *x,
                    const uint32_t *expert, float *y);

/* Allocates the scratch of every thread, and room for the chunks of long contexts. 0 or -ENOMEM. */
int attend_open(struct be *b, uint32_t max_context);
/* ACT_O = attention of ACT_Q to the pages of op->kv, whose keys and values of this step are
 * written. */
void attend_run(struct step *s, const struct model_op *op);

/* Function for row @i of a step, called on any free thread. */
typedef void (*each_fn)(void *ctx, uint32_t i, uint32_t thread);
void be_each(struct be *b, uint32_t n, each_fn fn, void *ctx);

/* Buffers for latent attention; 0 at once when the model has none. Returns 0 or -ENOMEM. */
int mla_open(struct be *b);
/* Takes the matrices of all heads that @t holds. 0 or -errno. */
int mla_load(struct be *b, struct weights *w, const struct tensor *t, struct err *err);
/* Packs a matrix into panels, on all threads, and releases the file's pages. Fills in all of @m
 * except its bias. 0 or -errno. */
int be_pack(struct be *b, struct mat *m, const struct tensor *t, struct err *err);

/* Returns cosines and sines of the position of a row of the step, in a set of rotary positions. */
static inline float *be_rope_row(const struct be *b, uint32_t row, uint8_t set) {
    const struct rope_set *all = b->shape.rope;

    size_t n = 0, before = 0;

    for (uint8_t k = 0; k < ROPE_SETS; k++) {
        before += k < set ? all[k].n_rot : 0;
        n += all[k].n_rot;
    }
    return b->rope + row * n + before;
}

/* Buffers for recurrent layers and @n_states sequences' states; 0 at once when the model has none.
 * 0 or -ENOMEM. */
int recurrent_open(struct be *b, uint32_t n_states);
/* be_ops.host_state, be_ops.copy_state */
void *recurrent_slot(struct be *b, uint32_t state);
int recurrent_copy(struct be *b, uint32_t src, uint32_t dst);
/* Loads the tensors of a recurrent op, except its norm. 0 or -ENOMEM. */
int recurrent_load(struct be *b, struct weights *w, const struct model_op *op);

/* Allocates weight memory, aligned to 64, which close() frees; NULL: out of memory. With
 * b->keep.found it already contains the weights and cannot be written to. */
void *be_take(struct be *b, size_t size);
/* Copies a tensor of one or two dimensions as floats to weight memory; NULL for NULL. 0 or
 * -ENOMEM. */
int be_vector(struct be *b, const struct tensor *t, float **out);

/* Loads a tensor of taps, [channels][kernel], in the order of the kernels: [kernel][@n channels]. 0
 * or -ENOMEM. */
int recurrent_load_taps(struct be *b, struct weights *w, const struct model_op *op, uint32_t n);
/* Returns the values of state @state after those of the layers. */
float *recurrent_more(const struct be *b, uint32_t state);

/* Buffers for a block drafter; 0 at once when the model has none. Returns 0 or -ENOMEM. */
int blocks_open(struct be *b);
int ops_block_in(struct step *s, const struct model_op *op);
int ops_block_out(struct step *s, const struct model_op *op);
int ops_select(struct step *s, const struct model_op *op);
int ops_chain(struct step *s, const struct model_op *op);

/* Buffers for residual streams; 0 at once when the model has none. Returns 0 or -ENOMEM. */
int streams_open(struct be *b);

/* Buffers for sparse attention; 0 at once when the model has none. Returns 0 or -ENOMEM. */
int sparse_open(struct be *b, uint32_t max_context);
/* Returns the bits of the keys that row @row sees, by position, from the INDEX op before. */
const uint32_t *sparse_seen(const struct be *b, uint32_t row);

/* Buffers for condensed keys; 0 at once when the model has none. Returns 0 or -ENOMEM. */
int condensed_open(struct be *b, uint32_t max_context);

/* Returns @size zeroed bytes until be_release(), in huge pages where possible. Without memory this
 * function and the next two set b->no_memory and return NULL. */
void *be_map(struct be *b, size_t size);
/* Returns @width floats for each row of the largest batch, by be_map(). */
float *be_rows(struct be *b, size_t width);
/* Returns zeroed memory of malloc() for @n items of @size bytes until be_release(). */
void *be_alloc(struct be *b, size_t n, size_t size);
/* Frees all memory of these functions. */
void be_release(struct be *b);
/* Replaces *@acts, of *@have bytes, by zeroed memory of @size bytes if that is larger. 0 or
 * -ENOMEM. */
int be_grow(struct be *b, uint8_t **acts, size_t *have, size_t size);

/* Functions of be_ops for a step. None of them fails, because all memory is allocated. */
int ops_begin(struct be *b, const struct engine_batch *batch, struct step **out);
int ops_embed(struct step *s, const struct model_op *op);
int ops_deep(struct step *s, const struct model_op *op);
int ops_layer_input(struct step *s, const struct model_op *op);
/* Prepares a product of the rows of @in by matrices [first, first + n_mats) of @w, which have the
 * same n_in; mode and output are left to set. Norms the rows, if @w has a norm, and rounds them
 * into tiles. */
struct matmul ops_prepare(struct step *s, const struct weights *w, uint32_t first, uint32_t n_mats,
                          enum act_role in);
/* Prepares the first matrix for the rows whose logits are wanted. */
struct matmul ops_prepare_wanted(struct step *s, const struct weights *w);
/* Prepares like ops_prepare(), for rows at @in, @stride floats apart. */
struct matmul ops_prepare_rows(struct step *s, const struct weights *w, uint32_t first,
                               uint32_t n_mats, const float *in, size_t stride);
/* Prepares the first matrix for the one row @in. */
struct matmul ops_prepare_row(struct step *s, const struct weights *w, const float *in);
/* Writes the product of one matrix to @out, rows @stride floats apart. */
void ops_store(struct step *s, struct matmul mm, float *out, size_t stride);
int ops_norm(struct step *s, const struct model_op *op);
int ops_qkv(struct step *s, const struct model_op *op);
int ops_keys(struct step *s, const struct model_op *op);
int ops_holes(struct step *s, const struct model_op *op);
int ops_keep(struct step *s, const struct model_op *op);
int ops_draft_in(struct step *s, const struct model_op *op);
int ops_tap(struct step *s, const struct model_op *op);
int ops_fuse(struct step *s, const struct model_op *op);
int ops_attend(struct step *s, const struct model_op *op);
int ops_gate(struct step *s, const struct model_op *op);
int ops_proj(struct step *s, const struct model_op *op);
int ops_join(struct step *s, const struct model_op *op);
int ops_gate_up(struct step *s, const struct model_op *op);
int ops_gate_in(struct step *s, const struct model_op *op);
int ops_route(struct step *s, const struct model_op *op);
int ops_experts(struct step *s, const struct model_op *op);
int ops_shared(struct step *s, const struct model_op *op);
int ops_state_in(struct step *s, const struct model_op *op);
int ops_delta(struct step *s, const struct model_op *op);
int ops_conv(struct step *s, const struct model_op *op);
int ops_mamba(struct step *s, const struct model_op *op);
int ops_mla_in(struct step *s, const struct model_op *op);
int ops_mla_q(struct step *s, const struct model_op *op);
int ops_mla_kv(struct step *s, const struct model_op *op);
int ops_mla_out(struct step *s, const struct model_op *op);
int ops_spread(struct step *s, const struct model_op *op);
int ops_mix(struct step *s, const struct model_op *op);
int ops_ngram(struct step *s, const struct model_op *op);
int ops_index(struct step *s, const struct model_op *op);
int ops_blend(struct step *s, const struct model_op *op);
int ops_lean_in(struct step *s, const struct model_op *op);
int ops_lean_keys(struct step *s, const struct model_op *op);
int ops_lean_q(struct step *s, const struct model_op *op);
int ops_condense(struct step *s, const struct model_op *op);
int ops_pick(struct step *s, const struct model_op *op);
int ops_lean_attend(struct step *s, const struct model_op *op);
int ops_lean_out(struct step *s, const struct model_op *op);
int ops_logits(struct step *s, const struct model_op *op);
int ops_mask(struct step *s, uint32_t want, const uint32_t *bits);
int ops_sample(struct step *s);
int ops_end(struct step *s, struct engine_result *out);
