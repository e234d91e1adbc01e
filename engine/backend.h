#pragma once

/*
 * backend - the op table between a model's forward pass (engine/arch) and the code that computes it
 * (engine/reference, engine/cpu, engine/cuda). The ops are fused the way a fast GPU wants them: five
 * per dense layer. Private to engine/.
 *
 * All activations are rows of f32 as far as the caller is concerned; a backend may keep what it likes in
 * `struct act` (it allocates them at open). `in` and `out` never alias, except the residual of proj.
 */

#include "engine/engine.h"

#define BACKEND_ABI 2u
#define MODEL_LAYERS_MAX 512
#define MODEL_EXPERTS_MAX 1024

struct be;      /* a backend's state */
struct step;    /* one step in flight; embedded by the backend */
struct weights; /* what a backend made of the tensors of one op */

/* Activation buffers by role; a backend sizes them at open: [max_rows][width]. */
enum act_role {
    ACT_X, /* residual stream, n_embd */
    ACT_Q, /* queries, n_head * head_dim */
    ACT_O, /* attention output, n_head * head_dim */
    ACT_H, /* FFN hidden, n_ff; the backend's own affair where there are experts */
    ACT_ROLES
};

enum rope_type { ROPE_NORM, ROPE_NEOX }; /* pairs (2i, 2i+1) or (i, i + n_rot/2) */

/* What the forward pass and the ops must know of the model. Validated by engine/model.c. */
struct model_shape {
    uint32_t n_layer, n_embd, n_head, n_head_kv, head_dim, n_ff, n_vocab, max_context;
    float rms_eps, attn_scale;
    enum rope_type rope;
    /* Mixture of experts: each row picks n_expert_used FFNs of n_ff each. 0: a dense FFN. */
    uint32_t n_expert, n_expert_used;
    float expert_scale; /* of what the experts add */
    uint32_t n_rot;
    /* Angle of pair i at position p is p * rope_freq[i]; cos and sin are multiplied by rope_mscale. Scaling
     * (linear, yarn, factors tensor) is folded in by engine/model.c, in double by mathx. */
    const double *rope_freq; /* [n_rot / 2] */
    float rope_mscale;
};

enum op_kind { OP_EMBED, OP_QKV, OP_PROJ, OP_GATE_UP, OP_ROUTE, OP_EXPERTS, OP_LOGITS };

/* The tensors of one op, as load() gets them. NULL: the model has none. */
struct op_tensors {
    enum op_kind kind;
    uint32_t layer;
    const struct tensor *norm; /* rms norm of the input: QKV, GATE_UP, ROUTE, LOGITS */
    /* QKV: q, k, v; GATE_UP: gate, up; EXPERTS: gate, up, down, each [expert][out][in]; else the one */
    const struct tensor *w[3];
    const struct tensor *bias[3];
    const struct tensor *q_norm, *k_norm; /* rms per head, before RoPE: qwen3 */
};

struct kv_layer { /* the pages of one layer; allocated by the backend at open */
    uint32_t layer;
    uint8_t cls;
};

struct attn {             /* how attend() weighs the keys */
    float scale, softcap; /* softcap 0: none */
    uint32_t window;      /* 0: all */
    const float *sinks;   /* NULL */
};

struct act {
    enum act_role role;
};

/* What the pointers lead to stays until close(). */
struct be_opts {
    const struct model_shape *shape;
    const struct engine_opts *engine; /* n_threads, isa, max_rows, max_context (never 0), ... */
    uint32_t n_pages;
    uint64_t page_bytes;
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
    /* After all is loaded: "strict", or what else computes steps, and why, in one line. NULL: strict. */
    const char *(*recipe)(struct be *b);

    /* Takes the tensors of an op in (repacks, uploads). @rank: which GPU, 0. Freed by close(). */
    int (*load)(struct be *b, const struct op_tensors *t, int rank, struct weights **out,
                struct err *err);

    /* The step. begin() .. end() are called in this order for one batch; a host backend computes inside
     * the ops, a device backend enqueues. */
    int (*begin)(struct be *b, const struct engine_batch *batch, struct step **out);
    int (*embed)(struct step *s, struct act x, const struct weights *w);
    /* q = rope(qnorm(wq norm(x) + bq)); k, v likewise written to the pages of @kv at the rows' positions. */
    int (*qkv)(struct step *s, struct act q, struct act x, const struct weights *w,
               const struct kv_layer *kv);
    int (*attend)(struct step *s, struct act o, struct act q, const struct kv_layer *kv,
                  const struct attn *a);
    int (*proj)(struct step *s, struct act x, struct act in,
                const struct weights *w); /* x += w in + b */
    int (*gate_up)(struct step *s, struct act h, struct act x,
                   const struct weights *w); /* silu(g) * u */
    /* Mixtures of experts; NULL: the backend has none. route() picks for every row: y = norm x, p = softmax of
     * w y over all experts, the largest p (ties: the lowest number), divided by their sum. experts() follows
     * it: x += expert_scale sum of p e(y) in the order of the picks, e(y) = down (silu(gate y) * up y). */
    int (*route)(struct step *s, struct act x, const struct weights *w);
    int (*experts)(struct step *s, struct act x, const struct weights *w);
    int (*recur)(struct step *s, struct act y, struct act x, const struct weights *w, void *state);
    int (*reduce)(struct step *s, struct act x);
    /* Of the wanted rows only; for WANT_HIDDEN it stops after the norm. */
    int (*logits)(struct step *s, struct act x, const struct weights *w);
    int (*mask)(struct step *s, uint32_t want, const uint32_t *bits);
    int (*sample)(struct step *s);
    int (*end)(struct step *s, struct engine_result *out); /* waits */

    /* false: the ops compute in the caller's thread, and the engine calls them inside engine_wait(), with
     * the tokens of `feed` filled in. true: they enqueue, are called inside engine_launch() and
     * engine_seal(), and resolve `feed` on the device. */
    bool device;
    bool hidden;   /* answers WANT_HIDDEN */
    bool unproven; /* never checked on hardware: used only when asked for by name */
    /* Bytes of one page over all layers; NULL: what kv_type needs, without padding. */
    uint64_t (*page_bytes)(const struct model_shape *shape, const struct engine_opts *o);
    /* Bytes that pages may take beside weights and all else, of what this device has free. NULL: not a device. */
    int (*room)(const struct model_shape *shape, const struct engine_opts *o, uint64_t *bytes,
                struct err *err);
    /* Copies page src to page dst (the whole page or its first n_tokens, as is easier). Called between steps.
     * Host backends see only COPY_D2D: their host pages are pages behind the others. NULL: batches with copies are
     * refused by assert. */
    int (*copy)(struct be *b, const struct engine_copy *c);
    /* Where page @page of host memory lies in one piece (host backends: of all pages). NULL: nowhere. */
    void *(*host_page)(struct be *b, uint32_t page);
    /* The logits of a want of the last step that ended, before processors; tests only. May be NULL. */
    const float *(*peek)(const struct be *b, uint32_t want);
    /* Whether this machine can run the backend: 0 or -errno with @err. NULL: always. */
    int (*probe)(struct err *err);
};

/* weft-cuda.so exports its table under this name. */
#define BACKEND_CUDA_SYMBOL "weft_backend_cuda"

/* What be_ops.build_id of a table from a library must be: a digest of this header and those that come
 * with it (engine/build_id.py). */
void backend_build_id(uint8_t out[20]);

/* What all bits that @ops computes follow from besides the model: a digest of the sources, here and there. */
void backend_sources(const struct be_ops *ops, uint8_t out[20]);

extern const struct be_ops backend_reference;
extern const struct be_ops backend_cpu;

/* The table for a configured name: linked in, or from weft-cuda.so. NULL with @err: unknown, or this
 * machine cannot run it (never replaced silently). */
const struct be_ops *backend_find(const char *name, struct err *err);

/* Tests: the logits of want @want of the step last waited for, or NULL. */
const float *engine_peek(const struct engine *e, uint32_t want);
