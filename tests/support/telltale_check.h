#pragma once

/*
 * telltale_check - what every batch must fulfil, whatever is in it. Private to the tell-tale
 * engine.
 */

#include "tests/support/telltale.h"

/* Of the wants of a launched step: what a later step may feed from. */
struct fed {
    uint64_t step;
    uint32_t n, *pos; /* [max_wants]: the position of the row, NO_FEED where nothing is sampled */
    int32_t *token;   /* [max_wants]: once the step is computed */
};

#define NO_FEED UINT32_MAX

struct batch_rules {
    const struct telltale *set;
    const struct engine_opts *opts; /* n_pages, max_context filled in */
    const struct fed *before;       /* of the step before */
    uint32_t window, n_windows;     /* of pages of KV_WINDOW; 0: they are as the others */
    /* [n_pages] for each class: which sequence of this batch reads or writes a page; scratch. */
    uint32_t *reader[KV_CLASSES], *writer[KV_CLASSES];
    uint8_t *slot_used; /* [n_states]; scratch */
    uint32_t n_slots;   /* of sequences; 0: pass 1 is not there */
    bool borrows;       /* and has no keys of its own */
};

/* The first position that a row at @pos reads through a window. */
static inline uint32_t check_first(uint32_t pos, uint32_t window) {
    return pos < window ? 0 : pos - window + 1;
}

/* Aborts with a line that names what is wrong. */
void check_batch(const struct batch_rules *r, const struct engine_batch *b);
/* The sequence that a row belongs to. */
const struct engine_seq *check_seq_of(const struct engine_batch *b, uint32_t row);
/* Of all that the batch consists of. */
uint64_t check_sum(const struct engine_batch *b);
/* Of the masks of its wants. Aborts when one allows nothing. */
uint64_t check_masks(const struct engine_batch *b, const uint32_t *const *mask, uint32_t n_vocab);
