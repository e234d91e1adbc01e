#pragma once

/*
 * backend - the ops that a model is made of (engine/arch) and the table of the code that computes
 * them (engine/reference, engine/cpu, engine/cuda). They are fused the way a fast GPU wants them:
 * five per dense layer. Private to engine/.
 *
 * Activations are rows of f32 as far as the model is concerned; a backend keeps them in what form
 * it likes.
 */

#include "base/err.h"
#include "engine/types.h"

#define BACKEND_ABI 4u
#define MODEL_LAYERS_MAX 512
#define MODEL_EXPERTS_MAX 1024
#define OP_MATRICES 4 /* of one op, at most */

struct be;      /* a backend's state */
struct step;    /* one step in flight; embedded by the backend */
struct weights; /* what a backend made of the tensors of one op */

/* Activation buffers by role; a backend sizes them at open: [max_rows][width]. */
enum act_role {
    ACT_X, /* residual stream, n_embd */
    ACT_Q, /* queries, n_head * head_dim */
    ACT_O, /* attention output, n_head * head_dim */
    ACT_H, /* FFN hidden, n_ff; with experts a backend uses it as it likes */
    ACT_D, /* output of a delta net, n_value_head * dim */
    ACT_ROLES
};

enum rope_type { ROPE_NORM, ROPE_NEOX }; /* pairs (2i, 2i+1) or (i, i + n_rot/2) */

/*
 * Gated delta nets (Yang et al. 2024, "Gated Delta Networks"): layers whose memory of a sequence is
 * a state of fixed size instead of pages. n_layer 0: the model has none.
 */
struct delta_shape {
    uint32_t n_layer;                  /* of the model's layers */
    uint32_t n_key_head, n_value_head; /* the second a multiple of the first */
    uint32_t dim;                      /* of a head's keys and values: a multiple of 16 */
    uint32_t kernel;                   /* of the convolution: taps, 2 to 8 */
    bool tiled; /* value head h has key head h % n_key_head; else h / (values per key) */
};

/* Channels of the convolution: queries and keys of the key heads, values of the value heads. */
static inline uint32_t delta_channels(const struct delta_shape *d) {
    return d->dim * (2 * d->n_key_head + d->n_value_head);
}

/* Floats of a sequence's state in one layer: what the convolution still needs of the kernel - 1
 * tokens before, then a matrix [dim keys][dim values] for each value head, in what order a backend
 * likes. */
static inline uint64_t delta_state_floats(const struct delta_shape *d) {
    return (uint64_t)(d->kernel - 1) * delta_channels(d) +
           (uint64_t)d->n_value_head * d->dim * d->dim;
}

/* What the forward pass and the ops must know of the model. Validated by engine/arch. */
struct model_shape {
    uint32_t n_layer, n_embd, n_head, n_head_kv, head_dim, n_ff, n_vocab, max_context;
    float rms_eps, attn_scale;
    enum rope_type rope;
    /* Layers that have pages, by class: a page holds keys and values of so many. */
    uint32_t n_kv_layer[KV_CLASSES];
    /* Mixture of experts: each row picks n_expert_used FFNs of n_ff each. 0: a dense FFN. */
    uint32_t n_expert, n_expert_used;
    float expert_scale;   /* of what the experts add */
    uint32_t n_ff_shared; /* of the expert that every row has; 0: there is none */
    struct delta_shape delta;
    uint32_t n_rot;
    /* Angle of pair i at position p is p * rope_freq[i]; cos and sin are multiplied by rope_mscale.
     * Scaling (linear, yarn, factors tensor) is folded in by engine/rope.c, in double by mathx. */
    const double *rope_freq; /* [n_rot / 2] */
    float rope_mscale;
};

/* What an op does. x is the residual stream (ACT_X); a backend has one function for each kind. */
enum op_kind {
    OP_EMBED, /* x = rows of w[0] */
    /* q = rope(q_norm(w[0] y + b)), y = norm x; k and v likewise, to the pages of @kv at the rows'
     * positions. @gated: behind each head's rows of w[0] come as many that give its gate. */
    OP_QKV,
    OP_ATTEND,  /* o = attention of q to the pages of @kv, as @attn says */
    OP_GATE,    /* o *= sigmoid(gate), of the QKV op before */
    OP_PROJ,    /* x += w[0] in + b */
    OP_GATE_UP, /* h = silu(w[0] y + b) * (w[1] y + b), y = norm x */
    /* Picks experts for every row: y = norm x, p = softmax of w[0] y over all experts, the largest
     * p (ties: the lowest number), divided by their sum. */
    OP_ROUTE,
    /* Follows ROUTE: x += expert_scale * sum of p e(y) in the order of the picks, e(y) = down
     * (silu(gate y) * up y) */
    OP_EXPERTS,
    /* Follows EXPERTS: x += sigmoid(w[3] y) down (silu(gate y) * up y), y that of ROUTE, w[3] one
     * row */
    OP_SHARED,
    /* u, z and the raw beta and alpha of a delta net: w[0], w[1], w[2], w[3] times y = norm x.
     * w[3] NULL: w[2] has, for each key head, the rows of its value heads' betas, then alphas. */
    OP_DELTA_IN,
    /* Follows DELTA_IN: d = gated delta net of it, from the state of the row's sequence, which is
     * that behind the row then. Token by token:
     *   c = silu(sum over j of conv[.][j] u of token t - kernel + 1 + j); c is q, k, v of all heads
     *   q, k: of unit length by head (the norm's eps under the root); q /= sqrt(dim)
     *   g = decay softplus(alpha + dt), b = sigmoid(beta)
     *   M = e^g M; M += k (b (v - M^T k))^T; d = norm(M^T q) silu(z), per value head */
    OP_DELTA,
    OP_LOGITS, /* of the wanted rows: w[0] norm x + b; for WANT_HIDDEN it stops after the norm */
    OP_KINDS
};

struct kv_layer {   /* the pages of one layer; allocated by the backend at open */
    uint32_t layer; /* among the layers that have pages of this class */
    uint8_t cls;
};

struct attn { /* how attention weighs the keys */
    float scale;
    uint32_t window; /* the last so many keys; 0: all */
};

/*
 * One op of a pass: its kind and operands. Only what the kind reads is set; NULL: the model has
 * none. A layer is any number of them, one behind the other (engine/arch).
 */
struct model_op {
    enum op_kind kind;
    uint32_t layer;     /* of the file, for messages */
    enum act_role in;   /* PROJ: ACT_O, ACT_H or ACT_D */
    struct kv_layer kv; /* QKV, ATTEND */
    uint32_t state;     /* DELTA: its layer among those that have a state */
    bool gated, joined; /* QKV; DELTA: DELTA_IN has no w[3] */
    struct attn attn;   /* ATTEND */
    /* rms norm of the input: QKV, GATE_UP, ROUTE, DELTA_IN, LOGITS; DELTA: of a head's output */
    const struct tensor *norm;
    /* QKV: q, k, v; GATE_UP: gate, up; EXPERTS: gate, up, down, each [expert][out][in]; SHARED:
     * gate, up, down, and the gate of it all; DELTA_IN: above; else the one */
    const struct tensor *w[OP_MATRICES];
    const struct tensor *bias[OP_MATRICES];
    const struct tensor *q_norm, *k_norm;   /* QKV: rms per head, before RoPE */
    const struct tensor *conv, *dt, *decay; /* DELTA: [channels][kernel]; by value head */
    struct weights *weights;                /* what load() made of the tensors; NULL before */
};

/* What the pointers lead to stays until close(). */
struct be_opts {
    const struct model_shape *shape;
    const struct engine_opts *engine; /* n_threads, isa, max_rows, max_context (never 0), ... */
    uint32_t n_pages;
    uint64_t page_bytes;
    uint32_t n_states; /* states of recurrent layers: the slots, then the snapshots */
};

/* 0 or -errno; -EIO once a device is lost. */
struct be_ops {
    uint32_t abi;
    const char *name;
    uint8_t build_id[20]; /* must match the daemon's (cuda) */
    uint8_t
        sources[20]; /* of a library: ENGINE_SOURCES, a digest of those that it was built from */
    uint32_t depth;
    int (*open)(struct be **out, const struct be_opts *o, struct err *err);
    struct be *(*close)(struct be *b); /* accepts NULL and half-built, returns NULL */
    const char *(*isa)(const struct be *b);
    uint32_t (*n_threads)(const struct be *b);
    /* After all is loaded: "strict", or what else computes steps, and why, in one line. NULL:
     * strict. */
    const char *(*recipe)(struct be *b);

    /* Takes the tensors of an op in (repacks, uploads). Freed by close(). NULL: they serve as they
     * are. */
    int (*load)(struct be *b, const struct model_op *op, struct weights **out, struct err *err);

    /* The step. begin() .. end() are called in this order for one batch; a host backend computes
     * inside the ops, a device backend enqueues. */
    int (*begin)(struct be *b, const struct engine_batch *batch, struct step **out);
    /* By kind; NULL: the backend has none, and models that need it are refused. */
    int (*run[OP_KINDS])(struct step *s, const struct model_op *op);
    int (*mask)(struct step *s, uint32_t want, const uint32_t *bits);
    int (*sample)(struct step *s);
    int (*end)(struct step *s, struct engine_result *out); /* waits */

    /* false: the ops compute in the caller's thread, and the engine calls them inside
     * engine_wait(), with the tokens of `feed` filled in. true: they enqueue, are called inside
     * engine_launch() and engine_seal(), and resolve `feed` on the device. */
    bool device;
    bool hidden; /* answers WANT_HIDDEN */
    /* Bytes of one page over all layers; NULL: what kv_type needs, without padding. */
    uint64_t (*page_bytes)(const struct model_shape *shape, const struct engine_opts *o);
    /* Bytes that pages may take beside weights and all else, of what this device has free. NULL:
     * not a device. */
    int (*room)(const struct model_shape *shape, const struct engine_opts *o, uint64_t *bytes,
                struct err *err);
    /* Copies page src to page dst (the whole page or its first n_tokens, as is easier). Called
     * between steps. Host backends see only COPY_D2D: their host pages are pages behind the others.
     * NULL: batches with copies are refused by assert. */
    int (*copy)(struct be *b, const struct engine_copy *c);
    /* Copies state @src to state @dst. Called between steps. NULL where DELTA is. */
    int (*copy_state)(struct be *b, uint32_t src, uint32_t dst);
    /* Where page @page of host memory lies in one piece (host backends: of all pages). NULL:
     * nowhere. */
    void *(*host_page)(struct be *b, uint32_t page);
    /* The logits of a want of the last step that ended, before processors; NULL: they are no longer
     * there. For tests, and for the proof of a device that wants one. May be NULL without it. */
    const float *(*peek)(const struct be *b, uint32_t want);
    /* prove.h: what is used may be left out, with the same bits. Uses variant @i from now on, or
     * not; false: there are no more. *name says what it is. */
    bool (*variant)(struct be *b, uint32_t i, bool use, const char **name);
    /* A proof begins, or has ended. false: none is wanted. NULL: this backend needs none. */
    bool (*proving)(struct be *b, bool on);
    /* One line on what was found wrong at open and is left out, and why; "". NULL: nothing ever
     * is. */
    const char *(*note)(const struct be *b);
    /* Whether this machine can run the backend: 0 or -errno with @err. NULL: always. */
    int (*probe)(struct err *err);
};

/* weft-cuda.so exports its table under this name. */
#define BACKEND_CUDA_SYMBOL "weft_backend_cuda"

/* What be_ops.build_id of a table from a library must be: a digest of this header and those that
 * come with it (engine/build_id.py). */
void backend_build_id(uint8_t out[20]);

/* What all bits that @ops computes follow from besides the model: a digest of the sources, here and
 * there. */
void backend_sources(const struct be_ops *ops, uint8_t out[20]);

extern const struct be_ops backend_reference;
extern const struct be_ops backend_cpu;

/* The table for a configured name: linked in, or from weft-cuda.so. NULL with @err: unknown, or
 * this machine cannot run it. "auto": CUDA where there is a device, else the CPU; where the
 * library is there but finds nothing to run on, @err says why beside the CPU's table. */
const struct be_ops *backend_find(const char *name, struct err *err);

struct engine;

/* Tests: the logits of want @want of the step last waited for, or NULL. */
const float *engine_peek(const struct engine *e, uint32_t want);
