#pragma once

/*
 * state - the state of the CPU backend, and the functions that its files share. backend.c opens it
 * and loads weights; ops.c and the files of single kinds of ops compute steps. Functions that
 * return int return 0 or -errno.
 */

#include <assert.h>

#include "engine/cpu/cpu.h"
#include "engine/host.h"
#include "engine/keep.h"
#include "engine/op_table.h"

/* A large block of memory for weights, in huge pages if the system provides them. */
struct block {
    struct block *next;
    uint8_t *base;
    /* used: bytes that be_alloc_weights() has handed out; backed: first bytes that have memory, if
     * keep */
    size_t size, used, backed;
    /* if keep: offset in the file of kept weights */
    uint64_t offset;
    /* the block is a mapping of the file of kept weights (engine/keep.h) */
    bool keep;
};

/* Weights of an op as load() stores them: matrices as panels, vectors as floats. A vector that the
 * op does not have is NULL. At most one of m[], expert[] and head[] is set. close() frees all
 * memory, which belongs to the blocks except expert[] and head[]. */
struct weights {
    struct weights *next;
    uint32_t n_mats;
    struct mat m[OP_MATRICES];
    /* tensors from which load_mat() made m */
    const struct tensor *of[OP_MATRICES];
    float *norm, *post_norm, *q_norm, *k_norm;
    float *scale[OP_MATRICES], *bias[OP_MATRICES];
    float *sinks, *weigh, *pick_bias;
    /* recurrent ops; conv: [kernel][channels] */
    float *conv, *conv_bias, *dt, *decay, *skip;
    /* SCAN: norms of t, B and C; its decays are [channels / 16][n_state][16] */
    float *part_norm[3];
    /* EXPERTS: [n_expert] gate, up, down */
    struct mat (*expert)[3];
    /* MLA_KV, MLA_OUT: [n_head] */
    struct mat *head;
    /* EMBED, LAYER_INPUT, ROUTE, CHAIN, SELECT (its predecessors): copy of a table, in the format
     * of the file */
    struct tensor embedding;
    /* NORM; EMBED, its tables or NULL */
    float *norm_bias, *positions, *token_type;
    /* SELECT: its successors, like embedding */
    struct tensor successor;
};

struct experts;    /* buffers of a mixture of experts: experts.c */
struct mla;        /* buffers of latent attention: cpu_latent.c */
struct streams;    /* buffers of residual streams: engine/ops/streams */
struct compressed; /* buffers of compressed keys: engine/ops/compressed */
struct blocks;     /* buffers of block drafters: blocks.c */
struct sparse;     /* buffers of sparse attention: engine/ops/sparse */
struct recurrent;  /* states and buffers of recurrent layers: engine/ops/recurrent */

/* Consecutive rows of the batch whose queries go through the pages together
 * (engine/ops/attention/cpu.c). */
struct attend_block {
    uint32_t row0, n_rows;
};

/* Scratch memory of one thread for attention. */
struct attend_scratch {
    /* [head_dim][queries] */
    float *q;
    /* [queries] the states of an item */
    struct attn_state *total;
    /* [queries] the states of a chunk */
    struct attn_state *chunk;
};

/* The step in flight; there is one at a time. */
struct step {
    struct host_step host;
    struct be *be;
    /* rows of the activations: those of the batch, or with @narrowed those of its wants */
    uint32_t n_rows;
    bool narrowed;
};

/*
 * State of the backend. Memory for the largest batch is allocated at open; acts[] and the buffers
 * of the experts' activations grow while weights are loaded; a step allocates nothing. Only the
 * thread that calls the ops changes the members. The threads of the pool write rows of the
 * buffers, no two of them the same row at a time.
 */
struct be {
    const struct cpu_kernels *kernels;
    struct pool *pool;
    struct model_shape shape;
    /* NGRAM reads its table from the file in every step */
    const struct gguf *file;
    uint32_t max_rows, max_wants;
    /* engine_opts.experts_fd is set */
    bool counts_picks;
    struct keep keep;
    struct block *blocks;
    struct weights *weights;
    struct step step;

    /* [max_rows][act_width] */
    float *act[ACT_ROLES];
    size_t act_width[ACT_ROLES];
    /* [max_rows][widest.kv], before they are written to the pages */
    float *k, *v;
    /* [max_rows][n_ff] up values of FFNs with sparse gates; NULL: the model has none */
    float *up;
    /* [max_rows]: for each rope set n_rot / 2 cosines, then n_rot / 2 sines */
    float *rope;
    /* [max_wants][n_vocab] */
    float *logits;
    /* [threads][row_width]: scratch memory for one row */
    float *row;
    size_t row_width;
    /* the input rows of a product in each format, in whole tiles */
    uint8_t *acts[ACTS_KINDS];
    size_t acts_size[ACTS_KINDS];
    /* [threads] */
    struct matmul_scratch *scratch;
    /* [threads] */
    struct sampler *samplers;

    /* Buffers of kinds of ops; NULL: the model does not have these ops. */
    struct experts *experts;
    struct recurrent *recurrent;
    struct mla *mla;
    struct streams *streams;
    struct blocks *drafter;
    struct sparse *sparse;
    struct compressed *compressed;
    /* DRAFT_IN: [max_rows][2][n_embd], input of its product; or NULL */
    float *pair;
    /* QKV with gates: [max_rows][heads][2][dim], queries and gates; or NULL */
    float *gated;

    /* Pages of a class. In a page layers are consecutive; each has the keys of every kv head, then
     * the values of every kv head. */
    struct kv_memory {
        uint8_t *at;
        size_t bytes, page_bytes;
        uint32_t n_pages;
    } kv[KV_CLASSES];
    struct kv_formats kv_type;
    uint32_t page_tokens;
    /* [max_rows] */
    struct attend_block *attend_blocks;
    /* [threads] */
    struct attend_scratch *attend;
    /* [n_partial] the states of chunks, if items are split */
    struct attn_state *partial;
    uint32_t n_partial;

    /* memory of be_map() and be_alloc() */
    struct owned *owned;
    /* one of these allocations failed */
    bool no_memory;
};

/* Positions of a chunk of attention; most queries of an item of attention, unless a kv head has
 * more (engine/ops/attention/cpu.c). */
enum { ATTEND_CHUNK = 256, ATTEND_QUERIES = 32 };

/* Returns the address of page @page of class @cls. */
static inline uint8_t *be_page(const struct be *b, uint8_t cls, uint32_t page) {
    assert(page < b->kv[cls].n_pages);
    return b->kv[cls].at + page * b->kv[cls].page_bytes;
}

/* Returns the address of the op's layer in the page of row @row. */
uint8_t *be_keys(const struct step *s, const struct model_op *op, uint32_t row);

/* Returns the layout of a layer with heads @h in a page. */
static inline struct kv_view be_view(const struct be *b, const struct heads *h) {
    size_t key = kv_bytes(b->kv_type.k, h->dim), value = kv_bytes(b->kv_type.v, heads_value(h));

    return (struct kv_view){
        .type = b->kv_type,
        .head_dim = h->dim,
        .value_dim = heads_value(h),
        .page_tokens = b->page_tokens,
        .k_group = LANES * key,
        .k_head = b->page_tokens * key,
        .v_head = b->page_tokens * value,
    };
}

/* Functions NAME_open() allocate the buffers of one kind of ops, for the largest batch. They return
 * 0 or -ENOMEM, and do nothing if the model does not have these ops. */
int experts_open(struct be *b);
int mla_open(struct be *b);
int streams_open(struct be *b);
int blocks_open(struct be *b);
int sparse_open(struct be *b, uint32_t max_context);
int compressed_open(struct be *b, uint32_t max_context);
/* Allocates buffers and @n_states states of sequences. */
int recurrent_open(struct be *b, uint32_t n_states);
/* Allocates the scratch memory of every thread, and room for the states of chunks. */
int attend_open(struct be *b, uint32_t max_context);

/* Implements be_ops.picks. */
const uint64_t *experts_picks(const struct be *b);
/* Makes room for the experts' activations of format @kind, of @n_in values. */
int experts_grow(struct be *b, enum acts_kind kind, uint32_t n_in);

/* Computes y of rows of a device, as host_experts_ops.run specifies. op->norm is the norm of x. */
void experts_beside(struct step *s, const struct model_op *op, const float *x,
                    const uint32_t *expert, const float *weight, float *y);

/* Computes OP_ATTEND for all rows of the step, whose keys and values are in the pages already. */
void attend_run(struct step *s, const struct model_op *op);

/* Does what pool_each() does. This thread does one or two items alone, because waking others would
 * take longer. */
void be_each(struct be *b, uint32_t n, each_fn fn, void *ctx);

/* Loads the matrices of all heads, w[0] of shape [head][out][in], into w->head. */
int mla_load(struct be *b, struct weights *w, const struct model_op *op, struct err *err);
/* Packs @t into panels on all threads, and releases the file's pages. Sets all members of @m except
 * scale and bias, which are NULL. */
int be_pack(struct be *b, struct mat *m, const struct tensor *t, struct err *err);

/* Returns the cosines and sines of row @row of the step for rope set @set. */
static inline float *be_rope_row(const struct be *b, uint32_t row, uint8_t set) {
    const struct rope_set *all = b->shape.rope;

    size_t n = 0, before = 0;

    for (uint8_t k = 0; k < ROPE_SETS; k++) {
        before += k < set ? all[k].n_rot : 0;
        n += all[k].n_rot;
    }
    return b->rope + row * n + before;
}

/* Computes n_rot / 2 cosines, then n_rot / 2 sines, of text position @pos for rope set @set,
 * multiplied by its mscale. */
void be_fill_rope(const struct rope_set *set, uint32_t pos, float *cs);

/* Implement be_ops.host_state and be_ops.copy_state. */
void *recurrent_slot(struct be *b, uint32_t state);
int recurrent_copy(struct be *b, uint32_t src, uint32_t dst);
/* Loads the tensors of a recurrent op, except its norm. */
int recurrent_load(struct be *b, struct weights *w, const struct model_op *op, struct err *err);
/* Loads the vectors of a SCAN. */
int scan_load(struct be *b, struct weights *w, const struct model_op *op, struct err *err);
/* Loads the taps of an op, [@n channels][kernel] in the file, as [kernel][@n channels]. */
int recurrent_load_taps(struct be *b, struct weights *w, const struct op_recurrent *r, uint32_t n);
/* Returns the part of state @state after those of the layers, of state_shape.n_more floats. */
float *recurrent_more(const struct be *b, uint32_t state);

/* Allocates @size bytes of weight memory, aligned to 64, which close() frees. Returns NULL if there
 * is no memory. With b->keep.found the memory contains the weights already, and is read-only. */
void *be_alloc_weights(struct be *b, size_t size);
/* Copies a tensor of one or two dimensions as floats to weight memory at *@out; does nothing if @t
 * is NULL. */
int be_vector(struct be *b, const struct tensor *t, float **out);

/* Returns r of the rows of the step (MLA_IN), without its norm. */
const float *mla_queries_low(const struct be *b);
/* Returns the keys that head @head of keys of row @row sees, as the preceding INDEX, POOL_INDEX or
 * HEAD_INDEX chose them: bit p % 32 of word p / 32 is set if it sees position p. */
const uint32_t *sparse_seen(const struct be *b, uint32_t row, uint32_t head);

/* be_map(), be_rows() and be_alloc() return zeroed memory that be_release() frees. If there is no
 * memory, they return NULL and set b->no_memory. be_map() uses huge pages where possible. */
void *be_map(struct be *b, size_t size);
/* Returns @width floats for each row of the largest batch, from be_map(). */
float *be_rows(struct be *b, size_t width);
/* Returns @n items of @size bytes. */
void *be_alloc(struct be *b, size_t n, size_t size);
void be_release(struct be *b);
/* Replaces *@acts, of *@have bytes, by zeroed memory of @size bytes if that is larger. */
int be_grow(struct be *b, uint8_t **acts, size_t *have, size_t size);

/* Functions of be_ops for a step. They return 0, because all memory is allocated at open; only
 * ops_ngram() can fail, with -EIO, when its table cannot be read or the file has changed. */
#define OP(kind, name, feature, cost) int ops_##name(struct step *s, const struct model_op *op);
#include "engine/op_list.h"
#undef OP
int ops_begin(struct be *b, const struct engine_batch *batch, struct step **out);
/* Multiplies @n values of the queries of a row at @pos by their temperature. */
void ops_temper(const struct temper *t, uint32_t pos, float *q, uint32_t n);
/* y = the norm of a row x of @n values with the norm weights of @w: an RMS norm, or a layer norm if
 * the model's shape says so. */
void ops_norm_input(const struct be *b, const struct weights *w, const float *x, float *y,
                    uint32_t n);
/* Prepares a product of the rows of @in with matrices [first, first + n_mats) of @w, which have the
 * same n_in: norms the rows if @w has a norm, and converts them to activations. The caller sets
 * mode and output. */
struct matmul ops_prepare(struct step *s, const struct weights *w, uint32_t first, uint32_t n_mats,
                          enum act_role in);
/* Does what ops_prepare() does with the first matrix, for the rows of ACT_X whose logits are
 * wanted. */
struct matmul ops_prepare_wanted(struct step *s, const struct weights *w);
/* Does what ops_prepare() does, for rows at @in, which are @stride floats apart. */
struct matmul ops_prepare_rows(struct step *s, const struct weights *w, uint32_t first,
                               uint32_t n_mats, const float *in, size_t stride);
/* Does what ops_prepare() does with the first matrix, for the single row @in. */
struct matmul ops_prepare_row(struct step *s, const struct weights *w, const float *in);
/* Computes a prepared product of one matrix to @out, whose rows are @stride floats apart. */
void ops_store(struct step *s, struct matmul mm, float *out, size_t stride);
/* Computes a prepared product of matrix i to out[i], whose rows have no gaps. */
void ops_store_each(struct step *s, struct matmul mm, float *const *out);
/* Implements be_ops.narrow, unless wants are out of order or share a row. */
void ops_narrow(struct step *s);
int ops_mask(struct step *s, uint32_t want, const uint32_t *bits);
int ops_sample(struct step *s);
int ops_end(struct step *s, struct engine_result *out);
