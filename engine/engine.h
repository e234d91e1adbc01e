#pragma once

/*
 * engine - tokens in, tokens out.
 *
 * Runs one flat batch of rows from many sequences per step over a model file, and samples. It knows
 * nothing of requests, tenants, text or HTTP; pages are numbers that the caller hands out. Owned by
 * one thread. Everything is allocated at engine_new(): a step does not allocate.
 *
 * Row independence (docs/design/architecture.md 6): what is computed for a row depends only on the
 * model file, the tokens of its sequence up to it, and its parameters, never on the rest of the
 * batch, on the number of threads or on the instruction set.
 */

#include "base/err.h"
#include "engine/types.h"

struct engine;
struct picture_layout; /* vision/projector.h */

/* The requests that a model can serve. */
struct engine_kind {
    bool encoder; /* vectors only */
    bool ranks;   /* engine_score() */
};

/* Checks by the file alone whether a model's architecture and tensors can be opened. 0 and *out,
 * which may be NULL, or -errno. */
int engine_check(const struct gguf *file, struct engine_kind *out, struct err *err);
/* Returns true if @file holds only a block of multi-token prediction, or is the assistant or
 * the block drafter of another model (arch/assistant.h, arch/dflash.h). */
bool engine_is_block(const struct gguf *file);
/* Returns the options of a draft model beside the model of @model. Its keys and values get
 * @kv_bytes bytes; 0: a quarter of the model's, or on a device a sixteenth of the free memory. The
 * caller sets the file. */
struct engine_opts engine_draft_opts(const struct engine_opts *model, uint64_t kv_bytes);
/* Memory that opening a model takes, and bytes that a token reads; found without loading. */
struct engine_fit {
    const char *arch, *backend;
    bool device; /* weights, buffers and KV lie there, and memory is the device's */
    uint64_t weight_bytes, buffer_bytes, page_bytes, state_bytes, n_params;
    uint64_t device_weight_bytes; /* part of weight_bytes on the device, about; 0: on the CPU */
    bool fetches;                 /* experts of the host are fetched: engine_opts.fetches_experts */
    uint64_t kv_bytes;            /* sum of all pages and states */
    uint64_t window_bytes;        /* size of a page of KV_WINDOW */
    uint32_t page_tokens, n_pages, n_states, n_snapshots, n_windows, window_seqs;
    uint32_t context, model_context; /* the longest that fits; the model's own */
    uint64_t token_bytes;            /* bytes of weights that are read for a token */
    uint64_t context_bytes; /* bytes of keys and values that one with the longest context reads */
    uint32_t n_expert_layers, n_host_layers, n_experts, n_host_experts; /* see engine_info */
    uint64_t host_expert_bytes;
    uint32_t picture_rows, picture_width; /* see engine_info; 0: no projector */
    uint64_t encoder_bytes; /* part of weight_bytes and buffer_bytes that is the encoder's */
    uint32_t n_host_ffn;
    uint64_t host_ffn_bytes;
};

/* Computes the sizes that engine_new() would choose for these options. -ENOMEM if the model does
 * not fit: @err has the arithmetic and *out the values that do not depend on the room. Other
 * errors as engine_new(). Unknown values are 0 in *out. */
int engine_fit(struct engine_fit *out, const struct engine_opts *opts, struct err *err);
/* Opens the model. Returns 0 or -errno with the reason in @err (the architecture's name, the memory
 * arithmetic). */
int engine_new(struct engine **out, const struct engine_opts *opts, struct err *err);
struct engine *engine_free(struct engine *e);
DEFINE_FREEP(struct engine, engine)
const struct engine_info *engine_info(const struct engine *e);
/* Returns after -EIO which call of the device failed first, and how; otherwise "". */
const char *engine_fault(const struct engine *e);

/* Computes the key of weights packed from @file and @block, which may be NULL: equal only for the
 * very same, unchanged files. */
void engine_keep_key(const struct gguf *file, const struct gguf *block,
                     uint8_t out[ENGINE_KEEP_KEY]);
/* Reads the key and the size of the weights in @fd, which an engine filled as engine_opts.keep_fd.
 * -EINVAL: an engine of other sources filled it, or no engine did; or another process could write
 * to it. */
int engine_keep_read(int fd, uint8_t key[ENGINE_KEEP_KEY], uint64_t *n_bytes);

/* Computes a digest of the sources of the engine and of the format of requests (proto/, text/, the
 * channel): two daemons with equal digests can continue each other's requests. */
void engine_request_sources(uint8_t out[20]);

/* Returns how well a document answers a query, as the logit of a probability. @hidden is the vector
 * that WANT_HIDDEN gave for the row at which the model was trained to answer: an encoder's first
 * row, else the last row of the prompt. Only if info->ranks. */
float engine_score(struct engine *e, const float *hidden);

/* Returns the address of page @page of host memory: page_bytes that other code may read and write
 * while no step under way copies it. NULL: the backend does not have it in one piece. */
void *engine_host_page(struct engine *e, uint32_t page);
/* Returns the address of snapshot @snapshot in host memory: state_bytes. NULL also where snapshots
 * are in a device's memory. */
void *engine_host_snapshot(struct engine *e, uint32_t snapshot);
/* Notes that the caller has written to @snapshot the state behind @n_tokens tokens, as it was
 * read from a snapshot before. */
void engine_set_snapshot(struct engine *e, uint32_t snapshot, uint32_t n_tokens);

/* Starts a step; returns at once or when a host engine has computed it. At most info->depth steps
 * may be launched and not waited for. Asserts that the batch is valid, and that the state slot of
 * each sequence holds the position before its first row. Returns 0 or -EIO. */
int engine_launch(struct engine *e, const struct engine_batch *b);

/* Sets the bit mask of allowed tokens (bit t % 32 of word t / 32) of want @want of step @step;
 * between launch and seal. @bits stays valid until engine_wait(). */
int engine_mask(struct engine *e, uint64_t step, uint32_t want, const uint32_t *bits);
int engine_seal(struct engine *e, uint64_t step); /* samples; all masks have been set */

/* Waits for the oldest launched step, which must be @step. Returns 0 or -EIO: the device is
 * lost. */
int engine_wait(struct engine *e, uint64_t step, struct engine_result *out);

/*
 * Rows of pictures, where info->picture_width is not 0: one picture at a time, in pieces between
 * steps, so that a large picture does not delay decoding requests. The values are a function of the
 * pixels and the projector file; another division into pieces gives the same bits.
 */

/* Returns the work that the rows of a picture take, in multiply-adds. */
uint64_t engine_picture_work(const struct engine *e, const struct picture_layout *l);
/* Begins a picture of l->width x l->height pixels, three bytes each, which must stay valid until
 * its end. @out has room for l->n_rows * info->picture_width values. -EINVAL with @err: more rows
 * than there is memory for. */
int engine_picture_begin(struct engine *e, const uint8_t *rgb, const struct picture_layout *l,
                         float *out, struct err *err);
/* Computes pieces of the picture under way until at least @work multiply-adds are done; one piece
 * at least. *left is the remaining work; 0: @out is complete, and another picture may begin. 0, or
 * -EIO: the device is lost. */
int engine_picture_step(struct engine *e, uint64_t work, uint64_t *left);
/* Drops the picture under way, if any. */
void engine_picture_end(struct engine *e);
