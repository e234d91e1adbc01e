#pragma once

/*
 * host - code shared by the backends that compute in the caller's thread: sequence and position of
 * a row, masks, results, and sampling of a want. Embedded in their `struct step`.
 */

#include "base/mathx.h"
#include "engine/backend.h"
#include "engine/kept.h"
#include "engine/picture_rows.h"
#include "engine/sampler.h"

/*
 * Life of a step: begin (sets batch) -> the ops -> mask, sample -> end (batch NULL). row_seq,
 * row_pos, row, scored and logits_of belong to the step that began last. Results are kept for one
 * more step, because the caller may read them until its second engine_wait() from now.
 */
struct host_step {
    /* between begin and end */
    const struct engine_batch *batch;
    uint32_t n_vocab, page_tokens, max_wants;
    bool digest;
    /* [max_rows] */
    uint32_t *row_seq, *row_pos;
    /* [max_rows] */
    struct picture_row *row;
    /* of rows of pictures */
    enum picture_places places;
    /* [max_wants] */
    const uint32_t **mask;
    /* Logits are computed only for some wants: scored[k] is the want of the k-th row of logits, and
     * logits_of[want] is that row. Both outlive the step. */
    /* [max_wants] */
    uint32_t n_scored, *scored, *logits_of;
    /* values of a row and of a hidden state */
    uint32_t n_embd, n_hidden;
    /* Results of this step and of the one before. */
    struct {
        /* [max_wants][n_embd] */
        float *vector;
        /* [max_wants] */
        struct engine_out *out;
        /* [max_wants][ENGINE_TOP_MAX] */
        struct engine_top *top;
    } result[2];
    /* result[current] belongs to the running step */
    unsigned current;
    /* Hidden states from which drafts continue; NULL: the model does not draft. */
    /* [max_rows][n_hidden] of this step */
    float *hidden;
    /* [n_slots][ENGINE_KEPT][n_hidden] */
    float *kept;
    struct kept kept_of;
};

/* Allocates memory for the largest batch that @o allows. Returns 0, or -ENOMEM with nothing to
 * deinit. */
int host_step_init(struct host_step *h, const struct be_opts *o);
void host_step_deinit(struct host_step *h);
/* Begins a step: fills in the members about rows and wants from @b, which must not change until the
 * step ends. */
void host_step_begin(struct host_step *h, const struct engine_batch *b);
/* Sets the mask of want @want, which is valid until the want is sampled. */
void host_step_mask(struct host_step *h, uint32_t want, const uint32_t *bits);
/* Samples want @want from @logits. Threads may sample different wants at once, each with its own
 * sampler. */
void host_step_sample(struct host_step *h, uint32_t want, const float *logits, struct sampler *s);
/* Returns the room for the vector of want @want (WANT_HIDDEN). */
float *host_step_vector(struct host_step *h, uint32_t want);
/* Returns the hidden state of the position before that of row @row; NULL: it is not kept. Hidden
 * states of this step's rows are in h->hidden. */
const float *host_step_before(const struct host_step *h, uint32_t row);
/* Ends the step when every want has been sampled or has its vector. */
void host_step_end(struct host_step *h, struct engine_result *out);

/* Returns the number of positions that the sequence of row @row has after this step. */
static inline uint32_t host_end(const struct host_step *h, uint32_t row) {
    const struct engine_seq *s = &h->batch->seq[h->row_seq[row]];

    return s->pos0 + s->n_rows;
}

/* Returns the page of class @cls that holds position @pos of the sequence of row @row. */
static inline uint32_t host_page(const struct host_step *h, uint8_t cls, uint32_t row,
                                 uint32_t pos) {
    const struct engine_batch *b = h->batch;

    return b->table[cls].page[b->table[cls].start[h->row_seq[row]] + pos / h->page_tokens];
}

/* Returns the dot product of @a and @b: sixteen partial sums, element i in sum i % 16, which are
 * then added pairwise. */
float host_dot(const float *a, const float *b, size_t n);
/* Writes @n floats as half precision. */
void host_store_halves(const float *x, size_t n, uint8_t *to);
