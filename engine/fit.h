#pragma once

/*
 * fit - the arithmetic of memory, before anything is loaded: what a model's weights, buffers, pages
 * and states take, and how much of it a host backend's KV memory is to be. Private to engine/;
 * others call engine_fit().
 */

#include "engine/model.h"

/* Returned by value, for use as an argument of printf. */
struct fit_text {
    char s[24];
};

/* "1.25 GiB". */
struct fit_text fit_text(uint64_t bytes);

/* Returns the bytes of weights that @ops keep. A tensor that two ops use is stored twice. */
uint64_t fit_weights(const struct model *m, const struct be_ops *ops);
/* Returns the bytes of weights that a row of @pass reads: all but the embedding, and of the experts
 * only those that are picked. */
uint64_t fit_token_weights(const struct model *m, uint32_t pass);
/* Returns the bytes of keys and values that a row behind @n others reads, where a page has
 * @page_bytes: of layers that choose their keys the chosen ones and all that they are chosen by. */
uint64_t fit_token_keys(const struct model *m, const struct engine_opts *o, uint64_t page_bytes,
                        uint64_t n);
/* Activations of a batch and logits of its sequences: an upper estimate. */
uint64_t fit_buffers(const struct model *m, const struct engine_opts *o);

/*
 * Division of KV memory between pages and the pages of layers with a window (KV_WINDOW). A sequence
 * needs window pages for what a row reads and for what the rows of two steps under way write. More
 * are kept for ended sequences, so that their next turns find them: one window for FIT_TURN tokens
 * in pages, at most an eighth of the pages.
 */
#define FIT_TURN 4096u
struct fit_windows {
    uint64_t page, window_page; /* bytes */
    uint32_t window;            /* keys that a row reads there */
    uint32_t page_tokens, max_seqs, max_rows;
};

/* Returns the number of window pages for @n_seqs sequences beside @n_pages pages. */
uint64_t fit_n_windows(const struct fit_windows *w, uint64_t n_pages, uint64_t n_seqs);
/* Pages that so many bytes hold beside window pages for *n_seqs sequences: max_seqs, or as many as
 * fit into half of the bytes. 0: as many pages or more hold the keys of all layers. */
uint64_t fit_divide(const struct fit_windows *w, uint64_t bytes, uint32_t *n_seqs);

/* Sizes that have to fit into memory. */
struct fit {
    uint64_t weights, buffers, page, state; /* bytes; state 0: the model has none */
    uint64_t host;                          /* bytes of the configured host tier */
    const struct fit_windows *windows;      /* NULL: page is of all layers */
    uint32_t page_tokens, model_context;
    uint32_t context; /* context that is asked for; 0: any */
    uint64_t wish;    /* for KV memory; 0: any */
    uint64_t memory;  /* memory that may be taken, in bytes */
    uint64_t n_params;
};

/*
 * KV memory for it: what is wished, else a quarter of the memory or room for FIT_CONTEXT tokens if
 * that is more; more where the context that is asked for needs more; less where the weights leave
 * less. Returns 0, or -ENOMEM with the arithmetic and what would fit in @err: there is not even
 * room for the context that is asked for, or for FIT_LEAST tokens.
 */
#define FIT_CONTEXT 32768u
#define FIT_LEAST 1024u
int fit_kv(const struct fit *f, uint64_t *kv_bytes, struct err *err);
/* KV memory that the experts of a device's layers give way to: what is wished, else room for the
 * context that is asked for, or for FIT_CONTEXT tokens. */
uint64_t fit_kv_beside(const struct fit *f);
/* Returns the bytes of the memory of this machine. */
uint64_t fit_machine(void);
/* Bytes of a page of each class and of a sequence's state. */
struct fit_sizes {
    uint64_t page, window_page, state;
};
/* Host backends: what is certain to be touched, weights and @kv bytes, @n_pages pages among them,
 * must fit the machine. Returns 0 or -EINVAL with @err. */
int fit_check(const struct model *m, const struct be_ops *ops, const struct fit_sizes *s,
              uint32_t n_pages, uint64_t kv, struct err *err);
#define CONTEXT_LIMIT (1u << 26) /* mathx: positions below 2^27 */
/* Computes the sizes of a model that have to fit. */
struct fit_windows fit_windows(const struct model *m, const struct engine_opts *o,
                               const struct fit_sizes *s);
struct fit fit_of(const struct model *m, const struct be_ops *ops, const struct engine_opts *o,
                  const struct fit_sizes *s, const struct fit_windows *w);
