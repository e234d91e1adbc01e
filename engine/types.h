#pragma once

/*
 * types - what a step is given and what it answers, and the options of an engine: the data of
 * engine.h that the backends see too.
 */

#include <stdbool.h>
#include <stdint.h>
#include "base/gguf.h"

enum { KV_GLOBAL, KV_WINDOW, KV_CLASSES }; /* each class has its own page table */
enum engine_copy_dir { COPY_D2D, COPY_D2H, COPY_H2D, COPY_STATE_SAVE, COPY_STATE_LOAD };
enum engine_what { WANT_SAMPLE, WANT_PROMPT_LP, WANT_HIDDEN /* the final norm's output */ };
/* Formats of keys and values in pages. Blocks are of values of one head. */
enum engine_kv_type { ENGINE_KV_F16, ENGINE_KV_Q8_0, ENGINE_KV_Q4_0, ENGINE_KV_F32 };

/* The formats of an engine's keys and of its values. */
struct kv_formats {
    enum engine_kv_type k, v;
};

struct kv_type {
    const char *name;
    enum tensor_type tensor; /* the format of tensors with the same blocks */
    uint32_t block, block_bytes;
    uint32_t code_bits; /* bits of a value's code, without its share of the block's scale */
    bool judges;        /* the reference backend's alone */
};

/* [enum engine_kv_type]. A constant index costs nothing in a kernel. */
static const struct kv_type kv_types[] = {
    {"f16", TENSOR_F16, 1, 2, 16, false},
    {"q8_0", TENSOR_Q8_0, 32, 34, 8, false},
    {"q4_0", TENSOR_Q4_0, 32, 18, 4, false},
    {"f32", TENSOR_F32, 1, 4, 32, true},
};

/* Returns formats that are the same for keys and values. */
static inline struct kv_formats kv_both(enum engine_kv_type type) {
    return (struct kv_formats){type, type};
}

/* Returns true if numbers of this format share a scale with others, and so are rounded more
 * coarsely beside a large one. */
static inline bool kv_shares_scale(enum engine_kv_type type) {
    return kv_types[type].block > 1;
}

/* Place of an engine's weights: memory of its own; packed into keep_fd; or in keep_fd, where an
 * earlier engine had packed them. */
enum engine_weights { ENGINE_WEIGHTS_OWN, ENGINE_WEIGHTS_PACKED, ENGINE_WEIGHTS_KEPT };

#define ENGINE_HOST_AUTO UINT32_MAX
#define ENGINE_DEVICES 8u
#define ENGINE_TOP_MAX 20   /* top_logprobs */
#define ENGINE_KEEP_KEY 32  /* bytes */
#define ENGINE_DRAFT_MAX 32 /* positions of a sequence that drafts go beyond pass 0 */

/* Done before or after the step, in their order. D2H and H2D: to and from a page of host memory,
 * whose number is below n_host_pages. STATE_SAVE: from a state slot to a snapshot, whose number is
 * below n_snapshots; STATE_LOAD: back. Only src, dst and dir are of a state. */
struct engine_copy {
    uint32_t src, dst;
    uint16_t n_tokens;
    uint8_t cls, dir; /* enum engine_copy_dir */
};

/* A picture that stands in a sequence: positions [at, at + n_rows) are its rows, whose tokens are
 * not looked at. With M-RoPE the rows have the rotary positions of a grid of n_lines x n_columns
 * from the position of the first row on, and what follows has those from n_positions behind that;
 * models without M-RoPE count rows as tokens. */
struct engine_picture {
    uint32_t at, n_rows, n_columns, n_lines, n_positions;
    /* Row r's values: rows + r * width, image_encoder_width() values. NULL where no row of the
     * batch is one of the picture. */
    const float *rows;
    uint32_t width;
};

/* A sequence's share of the batch: rows [row0, row0 + n_rows) are its positions pos0, pos0 + 1, ...
 * The last n_draft of them may be taken back: a later step begins again at a draft that was
 * wrong. */
struct engine_seq {
    uint32_t row0, n_rows, pos0, n_prompt;
    /* Slot of the sequence's recurrent state, below n_states; 0 when the model has none. At pos0 =
     * 0 the state is reset; else the slot holds the state behind pos0 - 1. Where the model drafts,
     * the slot, below n_slots, also holds the hidden states of the last positions; they belong to
     * another sequence until one @begins there. */
    uint32_t state_slot;
    bool begins;
    uint16_t n_draft,
        n_replay; /* n_replay: accepted drafts that recurrent layers replay; 0 as yet */
    /* Pass 1 of a model that drafts from pass 0's keys (engine_info.borrows): drafted tokens up to
     * the row's, which is the last of them; pos0 is that of the last token that is known. Else
     * 0. */
    uint16_t n_ahead;
    int32_t feed; /* >= 0: row0's token is the sample of want[feed] of step - 1; else -1 */
    /* Pictures of the sequence that begin before pos0 + n_rows, in order. Where rows of a
     * picture see each other in both directions (engine_info.two_way), all of them are in one
     * step. */
    uint32_t n_pictures;
    const struct engine_picture *picture;
};

/* A result that is asked for of a row. The order of wants is the order of results. */
struct engine_want {
    uint32_t row, param; /* row of the batch; index into engine_batch.param */
    uint32_t out_pos;    /* index of the sampled token among the output tokens: keys the noise */
    uint8_t what, n_top; /* enum engine_what; how many top logprobs, 0: none */
    bool logprob;        /* the log probability of the sampled token */
    bool no_digest;      /* opts.digest, but not needed for this want */
};

/* Added to the logit of a token. */
struct engine_bias {
    int32_t token;
    float bias;
};

/* Samplers that few requests ask for (engine/sampler_more.c). */
struct engine_samplers {
    float top_n_sigma, typical_p;         /* 0: off */
    float xtc_probability, xtc_threshold; /* probability 0: off */
    float dry_multiplier, dry_base;       /* multiplier 0: off */
    uint32_t dry_allowed, dry_last_n;     /* tokens that may repeat; looked at, 0: all */
    const uint32_t *breakers; /* bit t of word t / 32: token t ends a repetition; NULL: none does */
};

/* Sampling parameters of a sequence (docs/design/architecture.md 7). Order of the stages: bias,
 * penalties, DRY, bans, temperature, top_n_sigma, top_k, typical_p, top_p, min_p, XTC, noise.
 * temperature 0 is argmax after bias, penalties, DRY and bans. */
struct engine_param {
    float temperature, top_p, min_p;       /* top_p 1, min_p 0: off */
    float repetition, presence, frequency; /* 1, 0, 0: off */
    uint32_t top_k;                        /* 0: off */
    uint64_t seed;
    uint32_t choice;
    uint32_t n_bias, n_bans; /* bans: ids that cannot be sampled (stop tokens before min_tokens) */
    const struct engine_bias *bias;
    const int32_t *bans;
    const struct engine_samplers *samplers; /* NULL: all off */
    /* The sequence's tokens, for penalties and DRY: [0, n_prompt) prompt, [n_prompt, n_tokens)
     * output. With feed >= 0 the sample fed on the device is not among them; the engine adds it.
     * The wants of rows with drafts have parameters of their own: the drafts up to the row are
     * output. */
    const int32_t *tokens;
    uint32_t n_prompt, n_tokens;
};

/* One step. Plain data, owned by the caller, unchanged until engine_wait() returned for it. */
struct engine_batch {
    uint64_t step; /* 1, 2, 3, ... */
    /* The pass: 0, the model itself; 1 + k, block k of those that draft (engine_info.draft_passes),
     * with one row of each sequence, or engine_info.n_block. A row's token follows the position
     * before it in its slot, which any pass has computed. Passes that draft write their keys to the
     * pages too, and pass 0 overwrites them with its own, so nothing has to be taken back. No
     * copies, no recurrent layers. With engine_info.borrows they have no keys and read those before
     * pos0 of pass 0. */
    uint16_t model;
    /* Pass 0 leaves holes in the place of the block's keys, which its rows do not see: nothing is
     * drafted for a while. All rows are behind their prompts. */
    bool holes;
    uint32_t n_rows, n_seqs, n_wants, n_params, n_before, n_after;
    const int32_t *token; /* [n_rows] */
    const struct engine_seq *seq;
    /* Page tables, CSR: the pages of seq s are page[start[s] .. start[s + 1]), page i holding
     * positions [i * page_tokens, (i + 1) * page_tokens). They cover pos0 + n_rows positions; pos0
     * where keys are borrowed. The window's is used where engine_info.n_windows is not 0, and pages
     * all of whose positions are window or more before the row at pos0 are not looked at there. */
    struct {
        const uint32_t *start, *page;
    } table[KV_CLASSES];
    const struct engine_want *want;
    const struct engine_param *param;
    const struct engine_copy *before, *after;
};

/* One of the most probable tokens, under the softmax before all processors. */
struct engine_top {
    int32_t token;
    float logprob;
};

/* The answer to a want. */
struct engine_out {
    int32_t token;   /* the sample; WANT_PROMPT_LP: the row's next prompt token */
    float logprob;   /* logarithm of the token's softmax, by the logits before all processors */
    uint64_t digest; /* digest of the row's logits before processors, 0 unless opts.digest */
    uint32_t n_top;
    const struct engine_top *top; /* best first; ties by lowest id */
    const float *vector; /* WANT_HIDDEN: n_embd floats until the next launch, and nothing else */
};

/* The answers of a step, in the order of its wants. */
struct engine_result {
    uint64_t step;
    uint32_t n_outs;              /* = n_wants */
    const struct engine_out *out; /* valid until the engine_wait() after next */
};

/* Options of engine_open(), which copies them. The files stay the caller's and must stay open while
 * the engine lives. */
struct engine_opts {
    const struct gguf *file;
    const char *backend; /* "reference", "cpu", "cuda", "auto" */
    const char *isa;     /* cpu: "auto", "generic", "avx2", "avx512", "amx" */
    /* cuda: numbers of the devices that share the model, "0,1"; NULL: "0". The same bits on any. */
    char *devices;
    uint32_t n_devices;   /* 0, or only the first so many of them are used */
    uint32_t n_threads;   /* cpu; 0: all cores */
    uint32_t n_pages;     /* 0: sized from kv_bytes */
    uint32_t page_tokens; /* 16, 32 or 64 */
    uint64_t kv_bytes;    /* used when n_pages is 0 */
    /* Not 0: the CPU may take so much for all of it. Then kv_bytes is a wish (0: a quarter of it)
     * that is reduced for the weights and grows for max_context. */
    uint64_t memory;
    uint32_t
        device_share; /* 0, or a device takes the n-th part of what it has left, not kv_bytes */
    /* Beside a device the experts of the first so many layers lie in host memory and are computed
     * there (n_threads, isa); ENGINE_HOST_AUTO: as few experts, those that are picked least, as
     * leave the device room for kv_bytes, without device_share, or for max_context or FIT_CONTEXT
     * tokens. Results depend on it. */
    uint32_t host_experts;
    /* Instead, a device of its own computes these experts, too: it reads them where they lie, and
     * keeps those that were picked last. Results are those of a device that holds all. */
    bool fetches_experts;
    /* Beside a device the dense FFNs of all layers but the first so many lie in host memory and are
     * computed there; 0: of none; ENGINE_HOST_AUTO: of as few as leave room for kv_bytes, or for
     * max_context, or for 8,192 tokens. Results depend on it. */
    uint32_t device_layers;
    /* A file to read and write, or 0: how often experts are picked is counted in it, and where they
     * were placed. keeps_place: they stay where it says that they are. What is in it and not of
     * this model is thrown away. */
    int experts_fd;
    bool keeps_place;
    uint32_t n_host_pages;  /* 0: sized from host_kv_bytes, which may be 0 */
    uint64_t host_kv_bytes; /* host memory for pages that are not on the device */
    uint32_t n_states;      /* 0: max_seqs, fewer if they took more than half of kv_bytes */
    uint32_t n_snapshots;   /* snapshots; 0: what host_kv_bytes hold, or a fourth of kv_bytes */
    uint32_t max_context;   /* 0: the model's, or what the pages hold if that is less */
    /* The caller has page tables of KV_WINDOW and keeps to engine_info.window. Then layers with a
     * window have pages of their own where that takes less: of models without recurrent layers, on
     * the CPU, without host pages. */
    bool windows;
    uint32_t max_rows, max_seqs, max_wants; /* limits of a batch */
    struct kv_formats kv_type;
    /* kv_type is q8_0 where f16's pages hold no sequence of max_context (0: of FIT_CONTEXT, or the
     * model's longest if that is less) and q8_0's hold more, else f16. */
    bool kv_auto;
    bool digest;
    /* A file in memory (memfd, sealing allowed) that others hold too, or 0: an empty one, into
     * which the weights are packed and which cannot be changed after that, or one that an engine of
     * the same model file has filled: they are used as they are. One that cannot be used changes
     * nothing (info.weights). The CPU's only. */
    int keep_fd;
    bool drafts; /* the model's block of multi-token prediction is used, if it has one */
    /* A file with nothing but that block, or but the assistant of the model (engine_is_block()), in
     * place of the model's own; NULL. As `file` it is kept open. */
    const struct gguf *block;
    /* The file of the image encoder (vision/projector.h), kept open like `file`; NULL: the model
     * takes no pictures. One that does not fit the model is an error of engine_new(). */
    const struct gguf *projector;
    uint32_t picture_rows; /* rows of the largest computed picture; 0: the projector's limit */
    void (*progress)(void *ctx, const char *what,
                     double fraction); /* NULL, or called while loading */
    void *progress_ctx;
    /* NULL, or incremented after each op of a step: a step that takes minutes on a slow or busy
     * machine differs by it from one that hangs. */
    uint64_t *step_progress;
};

/* Describes an open engine; constant but for n_picks and n_host_picks. */
struct engine_info {
    const char *arch, *backend, *isa, *name; /* name: general.name or "" */
    /* CUDA's numbers of the devices, and where they are: domain:bus:device.function, or "". */
    uint32_t n_devices, device[ENGINE_DEVICES];
    const char *address[ENGINE_DEVICES];
    /* One line: what of the device or the limits is not used, and why; what was measured at open to
     * choose between ways that give the same; "". */
    const char *note;
    uint32_t n_vocab, n_embd, n_layer, max_context, page_tokens, n_pages, n_host_pages, n_threads;
    uint32_t depth; /* steps that may be launched before the first is waited for: 1 or 2 */
    bool hidden;    /* WANT_HIDDEN is answered; else it must not be asked */
    /* Rows see their whole sequence, whose prompt is in one step: max_context is at most the
     * batch's max_rows. Nothing but WANT_HIDDEN is answered. */
    bool encoder;
    bool ranks; /* engine_score() */
    /* The model takes rows of pictures: values of a row, 0: it does not. two_way: rows of a picture
     * see each other in both directions. */
    uint32_t picture_width;
    bool two_way;
    uint32_t picture_rows; /* rows of the largest picture that is computed, without line breaks */
    uint64_t weight_bytes, page_bytes, n_params;
    uint64_t memory_bytes; /* weights, buffers, pages and states, whether touched yet or not */
    /* Recurrent layers: the bytes of a sequence's state, 0 when the model has none, and how many
     * sequences may have one at once. A position's pages are of no use without the state there. */
    uint64_t state_bytes;
    uint32_t n_states, n_snapshots; /* snapshots: copies of states to go on from later */
    /* Passes from 1 on draft: how many slots there are for that, as many as states where there are
     * any. 0: opts.drafts was not asked for, or the model has no block of multi-token prediction.
     * @draft_bytes of weights are read for a row of the first. */
    uint32_t n_slots;
    uint64_t draft_bytes;
    /* 1: pass 1 makes all drafts behind a token. More: pass 1 + k makes draft k, one position
     * behind that of k - 1, and there are no more drafts than passes. */
    uint32_t draft_passes;
    /* Pass 1 has no keys of its own and reads those of pass 0: it needs no pages, leaves no holes,
     * and makes all drafts behind a token at that token's position (engine_seq.n_ahead). */
    bool borrows;
    /* Pass 1 drafts a block at once: it has so many rows of each sequence, at pos0 the last token
     * that is known, which pass 0 has not computed yet, then @mask_token. 0: it has one row. The
     * samples of rows @first_draft and on are the tokens of positions pos0 + 1 and on: of each
     * row's own position (1; the first row has none) or of the one behind it (0). */
    uint32_t n_block, first_draft;
    int32_t mask_token;
    /* Pages of KV_WINDOW, 0: all layers' keys are in the others. A row reads the last @window keys
     * there. They are enough for @window_seqs sequences whose rows of two steps are under way. */
    uint32_t n_windows, window, window_seqs;
    uint64_t window_bytes; /* size of one */
    bool latent;           /* keys are latent vectors (multi-head latent attention) */
    /* Placement of experts: the layers that have experts, those with some in host memory, the
     * experts, and the number and bytes of those in host memory. */
    uint32_t n_expert_layers, n_host_layers, n_experts, n_host_experts;
    uint64_t host_expert_bytes;
    uint32_t n_host_ffn; /* layers whose dense FFN is in host memory, and their bytes */
    uint64_t host_ffn_bytes;
    uint64_t n_picks, n_host_picks; /* counted so far, with experts_fd: all, and the host's */
    uint8_t fingerprint[16];
    /* Digest of the sources of the engine and the backend, of the device's compute capability, and
     * of the placement of experts: where it differs, results may differ. */
    uint8_t sources[20];
    struct kv_formats kv_type;
    enum engine_weights weights;
};
