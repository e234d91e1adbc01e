#pragma once

/*
 * types - data types of engine.h that backends use too: the input of a step, its results, and the
 * options of an engine.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/gguf.h"

/* classes of pages: global, and layers with a sliding window; each has its own page table */
enum { KV_GLOBAL, KV_WINDOW, KV_CLASSES };
enum engine_copy_dir { COPY_D2D, COPY_D2H, COPY_H2D, COPY_STATE_SAVE, COPY_STATE_LOAD };
enum engine_what { WANT_SAMPLE, WANT_PROMPT_LP, WANT_HIDDEN /* the final norm's output */ };

/* Rows of the formats of keys and values in pages: the end of its constant, then the members of
 * struct kv_type. A block of a coded (quantized) format holds values of one head. */
#define KV_CODED(X)                                                                                \
    X(Q8_0, "q8_0", TENSOR_Q8_0, 32, 34, 8, false)                                                 \
    X(Q4_0, "q4_0", TENSOR_Q4_0, 32, 18, 4, false)
#define KV_FORMATS(X)                                                                              \
    X(F16, "f16", TENSOR_F16, 1, 2, 16, false)                                                     \
    KV_CODED(X)                                                                                    \
    X(F32, "f32", TENSOR_F32, 1, 4, 32, true)

#define KV_CONSTANT(constant, ...) ENGINE_KV_##constant,
enum engine_kv_type { KV_FORMATS(KV_CONSTANT) };
#undef KV_CONSTANT

/* The formats of an engine's keys and of its values. */
struct kv_formats {
    enum engine_kv_type k, v;
};

struct kv_type {
    const char *name;
    /* the format of tensors with the same blocks */
    enum tensor_type tensor;
    uint32_t block, block_bytes;
    /* bits of a quantized value, without its share of the block's scale */
    uint32_t code_bits;
    /* only for the reference backend, as the judge in tests */
    bool judges;
};

/* Indexed by enum engine_kv_type. A constant index costs nothing in a kernel. */
#define KV_ROW(constant, ...) {__VA_ARGS__},
static const struct kv_type kv_types[] = {KV_FORMATS(KV_ROW)};
#undef KV_ROW

/* Names of the formats that options take: those of kv_types that are no judges, in their order. */
#define KV_OR_NAME(constant, name, ...) "|" name
#define KV_TYPE_NAMES "f16" KV_CODED(KV_OR_NAME)

/* Returns @type for both keys and values. */
static inline struct kv_formats kv_both(enum engine_kv_type type) {
    return (struct kv_formats){type, type};
}

/* Returns true if values of this format share a scale, so that one large value makes the rounding
 * of its neighbours coarser. */
static inline bool kv_shares_scale(enum engine_kv_type type) {
    return kv_types[type].block > 1;
}

/* Place of an engine's weights: in its own memory; in keep_fd, packed by this engine; in
 * keep_fd, packed by an earlier engine. */
enum engine_weights { ENGINE_WEIGHTS_OWN, ENGINE_WEIGHTS_PACKED, ENGINE_WEIGHTS_KEPT };

#define ENGINE_HOST_AUTO UINT32_MAX
#define ENGINE_DEVICES 8u
#define ENGINE_TOP_MAX 20  /* top_logprobs */
#define ENGINE_KEEP_KEY 32 /* bytes of a key of engine_keep_key() */
/* most drafted positions of a sequence after those that pass 0 has computed */
#define ENGINE_DRAFT_MAX 32

/* A copy between memories, done before or after the step, in list order. D2D: between pages on the
 * device; D2H, H2D: to or from a page of host memory, whose number is below n_host_pages.
 * STATE_SAVE: from a state slot to a snapshot, whose number is below n_snapshots; STATE_LOAD: back.
 * Copies of states use only src, dst and dir. */
struct engine_copy {
    uint32_t src, dst;
    uint16_t n_tokens;
    /* enum engine_copy_dir */
    uint8_t cls, dir;
};

/* Rotary positions of a picture's rows. TEXT: those of as many tokens. GRID (M-RoPE): of a grid of
 * n_lines x n_columns that starts at the rotary position of the first row; the token after the
 * picture continues n_positions after that start. FRAMED (XD-RoPE): the first and the last row are
 * as in text; between them are lines of n_columns rows and a break, which also have their line and
 * column, counted from 0, and the number of the picture in the sequence. */
enum picture_places { PLACES_TEXT, PLACES_GRID, PLACES_FRAMED };

/* A picture in a sequence: positions [at, at + n_rows) are its rows; the tokens at these positions
 * are ignored. */
struct engine_picture {
    uint32_t at, n_rows, n_columns, n_lines, n_positions;
    /* The values of row r are at rows + r * width; image_encoder_width() values each. NULL if the
     * batch has no row of the picture. */
    const float *rows;
    uint32_t width;
};

/* A sequence's part of the batch: rows [row0, row0 + n_rows) are its positions pos0, pos0 + 1, ...
 * The last n_draft rows are drafts: a later step starts again at the first wrong one. */
struct engine_seq {
    uint32_t row0, n_rows, pos0, n_prompt;
    /* Slot of the sequence's recurrent state, below n_states; 0 if the model has none. pos0 0
     * resets the state; otherwise the slot must hold the state after position pos0 - 1. In a model
     * that drafts, the slot (below n_slots) also holds the hidden states of the last positions.
     * @begins: the slot belonged to another sequence before, and its hidden states are dropped. */
    uint32_t state_slot;
    bool begins;
    uint16_t n_draft;
    /* Pass 1 with engine_info.borrows: drafted tokens up to and including the row's token, while
     * pos0 is the position of the last known token. Otherwise 0. */
    uint16_t n_ahead;
    /* >= 0: the token of row0 is the sample of want[feed] of step - 1, which the host need not know
     * yet; else -1 */
    int32_t feed;
    /* Pictures of the sequence that begin before pos0 + n_rows, in order. With engine_info.two_way,
     * all rows of a picture are in one step. */
    uint32_t n_pictures;
    const struct engine_picture *picture;
};

/* A result that is requested for a row. Results have the order of the wants. */
struct engine_want {
    /* row of the batch; index into engine_batch.param */
    uint32_t row, param;
    /* index of the sampled token among the output tokens; seeds its noise together with
     * engine_param */
    uint32_t out_pos;
    /* enum engine_what; how many top logprobs, 0: none */
    uint8_t what, n_top;
    /* the log probability of the sampled token */
    bool logprob;
    /* the digest (engine_opts.digest) is not needed for this want */
    bool no_digest;
};

/* A number that is added to the logit of a token (logit_bias). */
struct engine_bias {
    int32_t token;
    float bias;
};

/* Samplers that few requests ask for (engine/sampler_more.c). */
struct engine_samplers {
    /* 0: off */
    float top_n_sigma, typical_p;
    /* probability 0: off */
    float xtc_probability, xtc_threshold;
    /* multiplier 0: off */
    float dry_multiplier, dry_base;
    /* length of a repetition that is free; tokens that are searched, 0: all */
    uint32_t dry_allowed, dry_last_n;
    /* bit t % 32 of word t / 32: token t ends a repetition (sequence breaker); NULL: none */
    const uint32_t *breakers;
};

/* Sampling parameters of a sequence (docs/design/architecture.md 7). Stages, in this order: bias,
 * penalties, DRY, bans, temperature, top_n_sigma, top_k, typical_p, top_p, min_p, XTC, noise.
 * Temperature 0 takes the argmax after bias, penalties, DRY and bans. */
struct engine_param {
    /* top_p 1, min_p 0: off */
    float temperature, top_p, min_p;
    /* 1, 0, 0: off */
    float repetition, presence, frequency;
    /* 0: off */
    uint32_t top_k;
    uint64_t seed;
    uint32_t choice;
    /* bans: tokens that are never sampled (end tokens before min_tokens) */
    uint32_t n_bias, n_bans;
    const struct engine_bias *bias;
    const int32_t *bans;
    /* NULL: all off */
    const struct engine_samplers *samplers;
    /* The sequence's tokens, for penalties and DRY: [0, n_prompt) are the prompt, [n_prompt,
     * n_tokens) the output. With feed >= 0 the fed sample is not among them; the engine adds it.
     * Wants of rows with drafts have their own parameters, whose output includes the drafts up to
     * the row. */
    const int32_t *tokens;
    uint32_t n_prompt, n_tokens;
};

/* The input of a step. Plain data, owned by the caller, who must not change it before engine_wait()
 * returned for the step. */
struct engine_batch {
    /* 1, 2, 3, ... */
    uint64_t step;
    /* The pass: 0, the model itself; 1 + k, draft block k (engine_info.draft_passes), with one row
     * of each sequence, or engine_info.n_block rows. A draft pass needs the hidden state of the
     * position before each row, which an earlier pass must have left in the slot. It writes its
     * keys to the pages too; pass 0 overwrites them later, so nothing is rolled back. A draft pass
     * has no copies and no recurrent layers. With engine_info.borrows it has no keys of its own and
     * reads those that pass 0 computed before pos0. */
    uint16_t model;
    /* Pass 0 writes holes in place of the draft blocks' keys (arch/mtp.c), because nothing is
     * drafted for a while. All rows must be output tokens. */
    bool holes;
    uint32_t n_rows, n_seqs, n_wants, n_params, n_before, n_after;
    /* [n_rows] */
    const int32_t *token;
    const struct engine_seq *seq;
    /* Page tables in CSR form: the pages of seq[s] are page[start[s] .. start[s + 1]); page i holds
     * positions [i * page_tokens, (i + 1) * page_tokens). They cover pos0 + n_rows positions; pos0
     * if keys are borrowed. The table of KV_WINDOW is used if engine_info.n_windows is not 0; its
     * entries for pages that end before pos0 - window + 1 are not read. */
    struct {
        const uint32_t *start, *page;
    } table[KV_CLASSES];
    const struct engine_want *want;
    const struct engine_param *param;
    const struct engine_copy *before, *after;
};

/* One of the most probable tokens, by the softmax of the logits before all processors. */
struct engine_top {
    int32_t token;
    float logprob;
};

/* The result for a want. */
struct engine_out {
    /* the sample; WANT_PROMPT_LP: the prompt token after the row */
    int32_t token;
    /* log probability of the token, from the logits before all processors */
    float logprob;
    /* digest of the row's logits before processors; 0 without engine_opts.digest */
    uint64_t digest;
    uint32_t n_top;
    /* best first; ties by lowest id */
    const struct engine_top *top;
    /* WANT_HIDDEN: n_embd floats, valid until the next launch; other members are unset */
    const float *vector;
};

/* The results of a step, in the order of its wants. */
struct engine_result {
    uint64_t step;
    /* = n_wants */
    uint32_t n_outs;
    /* valid until the second engine_wait() from now */
    const struct engine_out *out;
};

/* Options of engine_new(), which copies them. Files stay the caller's and must stay open while the
 * engine lives. Sizes are in bytes. */
struct engine_opts {
    const struct gguf *file;
    /* "reference", "cpu", "cuda", "auto" */
    const char *backend;
    /* cpu: "auto", "generic", "avx2", "avx512", "amx" */
    const char *isa;
    /* cuda: device numbers that share the model, "0,1"; NULL: "0". Results are the same bits on any
     * number of devices. */
    char *devices;
    /* number of these devices that are used, the first ones; 0: all */
    uint32_t n_devices;
    /* cpu; 0: all cores */
    uint32_t n_threads;
    /* 0: sized from kv_bytes */
    uint32_t n_pages;
    /* 16, 32 or 64 */
    uint32_t page_tokens;
    /* used when n_pages is 0 */
    uint64_t kv_bytes;
    /* CPU backend: limit for weights, buffers and KV together; 0: no limit. With a limit, kv_bytes
     * is a wish (0: a quarter of the limit) that shrinks if the weights leave less and grows for
     * max_context. */
    uint64_t memory;
    /* n: KV gets the n-th part of the device memory that is left, instead of kv_bytes; 0: off */
    uint32_t device_share;
    /* Beside a device: number of first layers whose experts lie in host memory and are computed
     * there (n_threads, isa). ENGINE_HOST_AUTO: as few experts, the least picked first, as leave
     * the device room for kv_bytes, or without it for max_context or FIT_CONTEXT tokens. Results
     * depend on it. */
    uint32_t host_experts;
    /* The device computes these experts, too: it reads their weights from host memory and caches
     * those picked last. One device only. Results are those of a device that holds all experts. */
    bool fetches_experts;
    /* Beside a device: the dense FFNs of all layers but the first device_layers lie in host memory
     * and are computed there; 0: of no layer. ENGINE_HOST_AUTO: as few FFNs as leave room for
     * kv_bytes, or for max_context, or for 8,192 tokens. Results depend on it. */
    uint32_t device_layers;
    /* Descriptor of a file, open for reading and writing, that keeps how often each expert was
     * picked and where the experts were placed; 0: none. The content is discarded if it belongs to
     * another model. keeps_place: experts stay where the file says. */
    int experts_fd;
    bool keeps_place;
    /* pages in host memory; 0: sized from host_kv_bytes, which may be 0 */
    uint32_t n_host_pages;
    /* host memory for pages beside the device's */
    uint64_t host_kv_bytes;
    /* slots of recurrent states; 0: max_seqs, or fewer, so that states take at most half of
     * kv_bytes */
    uint32_t n_states;
    /* snapshots of states; 0: as many as fit host_kv_bytes, or a quarter of kv_bytes */
    uint32_t n_snapshots;
    /* tokens; 0: the model's own, or fewer if the pages hold fewer */
    uint32_t max_context;
    /* The caller has page tables of KV_WINDOW and obeys engine_info.window. Layers with a window
     * then have pages of their own if that takes less memory: only models without recurrent layers,
     * on the CPU, without host pages. */
    bool windows;
    /* limits of a batch */
    uint32_t max_rows, max_seqs, max_wants;
    struct kv_formats kv_type;
    /* Chooses kv_type: q8_0 if pages of f16 are too few for a sequence of max_context tokens (0:
     * FIT_CONTEXT, or the model's longest if that is less) and pages of q8_0 hold more; else
     * f16. */
    bool kv_auto;
    bool digest;
    /* CPU backend: a memfd that allows sealing and that other processes hold too, or 0. If it is
     * empty, weights are packed into it and it is sealed; if an engine of the same model file
     * filled it, its weights are used as they are. A file that cannot be used changes nothing
     * (engine_info.weights). */
    int keep_fd;
    /* use the model's blocks of multi-token prediction, if it has any */
    bool drafts;
    /* A file with only such a block, an assistant model or a block drafter (engine_is_block()),
     * used in place of the model's own blocks; NULL. Kept open like `file`. */
    const struct gguf *block;
    /* The file of the image encoder (vision/projector.h), kept open like `file`; NULL: the model
     * takes no pictures. engine_new() fails if it does not fit the model. */
    const struct gguf *projector;
    /* most rows of a picture; 0: the projector's limit */
    uint32_t picture_rows;
    void (*progress)(void *ctx, const char *what,
                     /* called while loading, with @fraction from 0 to 1; NULL: not called */
                     double fraction);
    void *progress_ctx;
    /* Counter that is incremented after each op of a step, or NULL: it tells a step that takes
     * minutes on a slow or busy machine from one that hangs. */
    uint64_t *step_progress;
};

/* Describes an open engine. Constant except n_picks and n_host_picks. */
struct engine_info {
    /* name: general.name or "" */
    const char *arch, *backend, *isa, *name;
    /* CUDA's numbers of the devices, and their PCI addresses: domain:bus:device.function, or "". */
    uint32_t n_devices, device[ENGINE_DEVICES];
    const char *address[ENGINE_DEVICES];
    /* One line for the log: what of the device or of the limits is not used and why, and what was
     * measured at open to choose between equivalent code paths; "": nothing. */
    const char *note;
    uint32_t n_vocab, n_embd, n_layer, max_context, page_tokens, n_pages, n_host_pages, n_threads;
    /* steps that may be in flight: 1 or 2 */
    uint32_t depth;
    /* WANT_HIDDEN is supported */
    bool hidden;
    /* Attention is bidirectional: a prompt is computed in one step, so max_context is at most the
     * batch's max_rows. Only WANT_HIDDEN is supported. */
    bool encoder;
    /* a reranker: engine_score() may be called */
    bool ranks;
    /* pooled vectors need engine_widen() */
    bool widens;
    /* Values of a picture's row; 0: the model takes no pictures. two_way: rows of a picture attend
     * to each other in both directions. */
    uint32_t picture_width;
    bool two_way;
    /* most rows of a picture, without line breaks */
    uint32_t picture_rows;
    uint64_t weight_bytes, page_bytes, n_params;
    /* weights, buffers, pages and states, whether touched yet or not */
    uint64_t memory_bytes;
    /* Recurrent layers: bytes of a sequence's state, 0 if the model has none, and how many
     * sequences may have one at once. Cached pages of a prefix are useless without the state at its
     * end. */
    uint64_t state_bytes;
    /* n_snapshots: copies of states from which sequences resume */
    uint32_t n_states, n_snapshots;
    /* Models that draft: slots for hidden states, as many as recurrent states if there are any. 0:
     * engine_opts.drafts was not set, or the model has no draft block. draft_bytes: bytes of
     * weights that a row of the first draft pass reads. */
    uint32_t n_slots;
    uint64_t draft_bytes;
    /* Number of draft passes. 1: pass 1 makes all drafts of a sequence, by repetition or as a
     * block. More: pass 1 + k makes draft k at the position after that of draft k - 1, and a draft
     * has at most that many tokens. */
    uint32_t draft_passes;
    /* Pass 1 has no keys of its own and reads those of pass 0: it needs no pages, leaves no holes,
     * and makes all drafts at the position of the last known token (engine_seq.n_ahead). */
    bool borrows;
    /* Pass 1 drafts a block at once: rows of each sequence, at pos0 the last known token, which
     * pass 0 has not computed yet, then rows of @mask_token. 0: one row. The samples of rows
     * @first_draft and on are the tokens of positions pos0 + 1 and on: with first_draft 1 a row's
     * sample is for its own position, with 0 for the position after it. */
    uint32_t n_block, first_draft;
    int32_t mask_token;
    /* Pages of KV_WINDOW; 0: the keys of all layers are in KV_GLOBAL. A row reads the last @window
     * keys there. The pages suffice for @window_seqs sequences with two steps in flight. */
    uint32_t n_windows, window, window_seqs;
    /* bytes of a page of KV_WINDOW */
    uint64_t window_bytes;
    /* keys are latent vectors (multi-head latent attention) */
    bool latent;
    /* Placement of experts: layers with experts, those of them with some in host memory, all
     * experts, and the number and bytes of those in host memory. */
    uint32_t n_expert_layers, n_host_layers, n_experts, n_host_experts;
    uint64_t host_expert_bytes;
    /* layers whose dense FFN is in host memory, and the bytes of these FFNs */
    uint32_t n_host_ffn;
    uint64_t host_ffn_bytes;
    /* with experts_fd: picks so far, and those of experts in host memory */
    uint64_t n_picks, n_host_picks;
    uint8_t fingerprint[16];
    /* Digest of the sources of the engine and the backend, the device's compute capability, and the
     * placement of experts: engines with different digests may compute different bits. */
    uint8_t sources[20];
    struct kv_formats kv_type;
    enum engine_weights weights;
};
