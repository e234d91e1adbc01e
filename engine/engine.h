#pragma once

/*
 * engine - computes steps of a model: takes tokens, returns tokens.
 *
 * A step runs one flat batch of rows from many sequences, and samples. The engine knows nothing of
 * requests, tenants, text or HTTP; the caller assigns pages by number. One thread owns an engine.
 * All memory is allocated in engine_new(); a step allocates nothing.
 *
 * Row independence (docs/design/architecture.md 6): the result of a row depends only on the model
 * file, the tokens of its sequence up to it, and its parameters, never on the rest of the batch, on
 * the number of threads or on the instruction set.
 */

#include "base/err.h"
#include "engine/types.h"

struct buf;

struct engine;
struct picture_layout; /* vision/projector.h */

/* The kinds of requests that a model can serve. */
struct engine_kind {
    /* only vectors (embeddings) */
    bool encoder;
    /* scores of documents: engine_score() */
    bool ranks;
};

/* Checks by the file alone whether the engine supports the model's architecture and tensors.
 * Returns 0 with *out, which may be NULL, or -errno with @err. */
int engine_check(const struct gguf *file, struct engine_kind *out, struct err *err);
/* Writes to @out how weft-cuda.so is found: "cuda (PATH)", "cuda (not used: REASON)"; "": it is not
 * installed. Does not look for a device. */
void engine_describe_cuda(char *out, size_t size);
/* Checks that this machine has the instruction set opts->isa, unless opts->backend is one that does
 * not compute on the CPU. Returns 0, or -EINVAL with @err. */
int engine_check_isa(const struct engine_opts *opts, struct err *err);
/* Returns true if @file is not a whole model: a block of multi-token prediction, or the assistant
 * or block drafter of another model (arch/assistant.h, arch/dflash.h). */
bool engine_is_block(const struct gguf *file);
/* Returns the options of a draft model that runs beside the model with options @model. Its KV gets
 * @kv_bytes bytes; 0: a quarter of the model's, or on a device a sixteenth of the free memory. The
 * caller sets the file. */
struct engine_opts engine_draft_opts(const struct engine_opts *model, uint64_t kv_bytes);
/* Memory that opening a model takes, and bytes that one token reads, computed without loading. */
struct engine_fit {
    const char *arch, *backend;
    /* weights, buffers and KV are in a device's memory */
    bool device;
    uint64_t weight_bytes, buffer_bytes, page_bytes, state_bytes, n_params;
    /* part of weight_bytes on the device, approximately; 0: the CPU computes */
    uint64_t device_weight_bytes;
    /* engine_opts.fetches_experts */
    bool fetches;
    /* sum of all pages and states */
    uint64_t kv_bytes;
    /* size of a page of KV_WINDOW */
    uint64_t window_bytes;
    uint32_t page_tokens, n_pages, n_states, n_snapshots, n_windows, window_seqs;
    /* tokens: the longest context that fits; the model's own */
    uint32_t context, model_context;
    /* bytes of weights that are read for a token */
    uint64_t token_bytes;
    /* bytes of keys and values that a token at the end of the longest context reads */
    uint64_t context_bytes;
    /* see engine_info */
    uint32_t n_expert_layers, n_host_layers, n_experts, n_host_experts;
    uint64_t host_expert_bytes;
    /* see engine_info; 0: no projector */
    uint32_t picture_rows, picture_width;
    /* part of weight_bytes and buffer_bytes that belongs to the image encoder */
    uint64_t encoder_bytes;
    uint32_t n_host_ffn;
    uint64_t host_ffn_bytes;
};

/* Computes the sizes that engine_new() would choose for these options. Returns 0; -ENOMEM if the
 * model does not fit, with the arithmetic in @err and in *out the values that do not depend on the
 * free memory; other errors as engine_new(). Unknown values are 0 in *out. */
int engine_fit(struct engine_fit *out, const struct engine_opts *opts, struct err *err);
/* Writes the ops that a step of the model runs, pass by pass, and how the backend fuses them
 * (fuse.h). Needs neither weights nor a device's memory. Returns 0, or -errno with the reason. */
int engine_print_ops(struct buf *out, const struct engine_opts *opts, struct err *err);
/* Opens a model and loads its weights. Returns 0, or -errno with the reason in @err (an unsupported
 * architecture, the arithmetic of too little memory). */
int engine_new(struct engine **out, const struct engine_opts *opts, struct err *err);
struct engine *engine_free(struct engine *e);
DEFINE_FREEP(struct engine, engine)
const struct engine_info *engine_info(const struct engine *e);
/* Returns, after -EIO, the device call that failed first and its error; otherwise "". */
const char *engine_fault(const struct engine *e);

/* Computes the key of weights packed from @file and @block, which may be NULL. Keys are equal only
 * for the same, unchanged files. */
void engine_keep_key(const struct gguf *file, const struct gguf *block,
                     uint8_t out[ENGINE_KEEP_KEY]);
/* Reads the key and the size of the weights in @fd, which an engine filled as engine_opts.keep_fd.
 * Returns 0, or -EINVAL: no engine filled it, or one of other sources did, or another process can
 * still write to it. */
int engine_keep_read(int fd, uint8_t key[ENGINE_KEEP_KEY], uint64_t *n_bytes);

/* Computes a digest of the sources of the engine and of the format of requests (proto/, text/, the
 * channel): two daemons with equal digests can continue each other's requests. */
void engine_request_sources(uint8_t out[20]);

/* Returns how well a document answers a query, as the logit of a probability. @hidden is the result
 * of WANT_HIDDEN for the row at which the model was trained to answer: the first row for an
 * encoder, else the last row of the prompt. Only with engine_info.ranks. */
float engine_score(struct engine *e, const float *hidden);
/* Applies the model's matrices behind the pooling to @pooled, n_embd values made of results of
 * WANT_HIDDEN. Only with engine_info.widens. */
void engine_widen(struct engine *e, float *pooled);

/* Returns the address of page @page of host memory: page_bytes bytes that the caller may read and
 * write while no step in flight copies the page. NULL: the page is not contiguous in memory. */
void *engine_host_page(struct engine *e, uint32_t page);
/* Returns the address of snapshot @snapshot in host memory: state_bytes bytes. NULL: snapshots are
 * elsewhere, such as in a device's memory. */
void *engine_host_snapshot(struct engine *e, uint32_t snapshot);
/* Notes that the caller wrote to @snapshot the state after @n_tokens tokens, which it read from a
 * snapshot earlier. */
void engine_set_snapshot(struct engine *e, uint32_t snapshot, uint32_t n_tokens);

/* Starts a step. Returns at once, or after computing it on a host backend. At most info->depth
 * steps may be in flight. Asserts that the batch is valid, and that each sequence's state slot
 * holds the position before its first row. Returns 0 or -EIO. */
int engine_launch(struct engine *e, const struct engine_batch *b);

/* Sets the bit mask of allowed tokens (bit t % 32 of word t / 32) of want @want of step @step,
 * between launch and seal. @bits must stay valid until engine_wait(). Returns 0 or -EIO. */
int engine_mask(struct engine *e, uint64_t step, uint32_t want, const uint32_t *bits);
int engine_seal(struct engine *e, uint64_t step); /* samples, after all masks were set; 0 or -EIO */

/* Waits for the oldest step in flight, which must be @step. Returns 0, or -EIO: the device is
 * lost. */
int engine_wait(struct engine *e, uint64_t step, struct engine_result *out);

/*
 * Rows of pictures (info->picture_width is not 0). The engine computes one picture at a time, in
 * pieces between steps, so that a large picture does not delay decoding requests. The rows are a
 * function of the pixels and the projector file: the division into pieces does not change their
 * bits.
 */

/* Returns the work of computing a picture, in multiply-adds. */
uint64_t engine_picture_work(const struct engine *e, const struct picture_layout *l);
/* Begins a picture of l->width x l->height pixels, three bytes each, which must stay valid until
 * the picture ends. @out has room for l->n_rows * info->picture_width values. Returns 0, or -EINVAL
 * with @err: it has more rows than there is memory for. */
int engine_picture_begin(struct engine *e, const uint8_t *rgb, const struct picture_layout *l,
                         float *out, struct err *err);
/* Computes pieces of the current picture until at least @work multiply-adds are done, and at least
 * one piece. *left is the remaining work; 0: @out is complete, and another picture may begin.
 * Returns 0, or -EIO: the device is lost. */
int engine_picture_step(struct engine *e, uint64_t work, uint64_t *left);
/* Drops the current picture, if any. */
void engine_picture_end(struct engine *e);
