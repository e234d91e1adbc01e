#pragma once

/*
 * telltale_check - checks the properties that every batch must have. Private to the tell-tale
 * engine.
 */

#include "tests/support/telltale.h"

/* Wants of a launched step, from which a later step may feed. */
struct fed {
    uint64_t step;
    /* [max_wants] position of the row, NO_FEED if nothing is sampled */
    uint32_t n, *pos;
    /* [max_wants] set once the step is computed */
    int32_t *token;
};

#define NO_FEED UINT32_MAX

struct batch_rules {
    const struct telltale *set;
    /* with n_pages and max_context filled in */
    const struct engine_opts *opts;
    /* wants of the step before */
    const struct fed *before;
    /* pages of KV_WINDOW; 0: their tables are like the others */
    uint32_t window, n_windows;
    /* [n_pages] for each class: sequence of this batch that reads or writes a page; scratch. */
    uint32_t *reader[KV_CLASSES], *writer[KV_CLASSES];
    /* [n_states]; scratch */
    uint8_t *slot_used;
    /* slots of sequences; 0: there is no pass 1 */
    uint32_t n_slots;
    /* pass 1 has no keys of its own */
    bool borrows;
};

/* Returns the first position that a row at @pos reads through a window. */
static inline uint32_t check_first(uint32_t pos, uint32_t window) {
    return pos < window ? 0 : pos - window + 1;
}

/* Aborts with a line that names the error. */
void check_batch(const struct batch_rules *r, const struct engine_batch *b);
/* Returns the sequence to which a row belongs. */
const struct engine_seq *check_seq_of(const struct engine_batch *b, uint32_t row);
/* Returns a hash of the whole batch. */
uint64_t check_sum(const struct engine_batch *b);
/* Returns a hash of the masks of its wants. Aborts if one allows no token. */
uint64_t check_masks(const struct engine_batch *b, const uint32_t *const *mask, uint32_t n_vocab);
