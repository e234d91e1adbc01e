#pragma once

/*
 * fit - computes memory sizes before a model is loaded: those of weights, buffers, pages and
 * states, and the KV memory of a host backend. Private to engine/; other code calls engine_fit().
 */

#include "engine/model.h"

/* Returned by value, for use as an argument of printf. */
struct fit_text {
    char s[24];
};

/* Returns @bytes as text, like "1.25 GiB". */
struct fit_text fit_text(uint64_t bytes);

/* Returns the bytes of weights that @ops keep. A tensor that two ops use is stored twice. */
uint64_t fit_weights(const struct model *m, const struct be_ops *ops);
/* Returns the bytes of weights that a row of @pass reads: all tensors except the embedding, and
 * only the picked experts. */
uint64_t fit_token_weights(const struct model *m, uint32_t pass);
/* Returns the bytes of keys and values that a row at position @n reads, where a page has
 * @page_bytes. In layers with sparse attention these are the chosen keys and the data by which they
 * are chosen. */
uint64_t fit_token_keys(const struct model *m, const struct engine_opts *o, uint64_t page_bytes,
                        uint64_t n);
/* Returns an upper estimate of the bytes of a batch's activations and its sequences' logits. */
uint64_t fit_buffers(const struct model *m, const struct engine_opts *o);

/*
 * Division of KV memory between global pages and window pages (KV_WINDOW). A running sequence needs
 * window pages for the keys that a row reads and for those that two steps in flight write. Ended
 * sequences keep window pages too, so that their next turns find their prefix: one window for
 * FIT_TURN tokens in pages, and at most an eighth of the pages.
 */
#define FIT_TURN 4096u
struct fit_windows {
    /* bytes */
    uint64_t page, window_page;
    /* keys that a row reads in these layers */
    uint32_t window;
    uint32_t page_tokens, max_seqs, max_rows;
};

/* Returns the number of window pages for @n_seqs sequences beside @n_pages pages. */
uint64_t fit_n_windows(const struct fit_windows *w, uint64_t n_pages, uint64_t n_seqs);
/* Returns the number of global pages that fit into @bytes beside window pages for *n_seqs
 * sequences, which is set to max_seqs, or to as many as fit into half of @bytes. 0: without window
 * pages there would be room for at least as many pages. */
uint64_t fit_divide(const struct fit_windows *w, uint64_t bytes, uint32_t *n_seqs);

/* Sizes that must fit into memory. */
struct fit {
    /* bytes; state 0: the model has none */
    uint64_t weights, buffers, page, state;
    /* bytes of the configured host tier */
    uint64_t host;
    /* NULL: a page has the keys of all layers */
    const struct fit_windows *windows;
    uint32_t page_tokens, model_context;
    /* requested context; 0: any */
    uint32_t context;
    /* requested KV memory, in bytes; 0: any */
    uint64_t wish;
    /* memory that may be taken, in bytes */
    uint64_t memory;
    uint64_t n_params;
};

/*
 * Computes the KV memory: f->wish, else a quarter of the memory or room for FIT_CONTEXT tokens if
 * that is more; more if the requested context needs more; less if the weights leave less. Returns
 * 0; or -ENOMEM, with the arithmetic and a setting that would fit in @err, if there is no room for
 * the requested context or for FIT_LEAST tokens.
 */
#define FIT_CONTEXT 32768u
#define FIT_LEAST 1024u
int fit_kv(const struct fit *f, uint64_t *kv_bytes, struct err *err);
/* Returns the KV memory for which experts may be moved to the host: the requested size, else room
 * for the requested context, or for FIT_CONTEXT tokens. */
uint64_t fit_kv_beside(const struct fit *f);
/* Bytes of a page of each class and of a sequence's state. */
struct fit_sizes {
    uint64_t page, window_page, state;
};
/* Checks for a host backend that the weights and @kv bytes, which include @n_pages pages, fit the
 * machine. Returns 0 or -EINVAL with @err. */
int fit_check(const struct model *m, const struct be_ops *ops, const struct fit_sizes *s,
              uint32_t n_pages, uint64_t kv, struct err *err);
#define CONTEXT_LIMIT (1u << 26) /* mathx: positions below 2^27 */
/* Fill in the structs for a model and its options. */
struct fit_windows fit_windows(const struct model *m, const struct engine_opts *o,
                               const struct fit_sizes *s);
struct fit fit_of(const struct model *m, const struct be_ops *ops, const struct engine_opts *o,
                  const struct fit_sizes *s, const struct fit_windows *w);
