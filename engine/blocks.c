#include "engine/blocks.h"

#include <assert.h>
#include <string.h>

#include "engine/formats/quant.h"

#define BEHIND 1e4F /* subtracted from logits of tokens that are no candidates */

void block_convolve(const struct host_step *h, const struct model_shape *s, uint32_t row,
                    uint32_t side, const float *in, const float *d, const float *base, float *out) {
    const struct block_shape *b = &s->block;
    uint32_t n = s->n_embd, n_groups = n / b->group;
    uint32_t before = row - h->batch->seq[h->row_seq[row]].row0;

    d += row * block_values(s) + (size_t)side * b->kernel * n_groups;
    base += (size_t)side * b->kernel * n;
    memset(out, 0, n * sizeof(*out));
    for (uint32_t t = 0; t < b->kernel && t <= before; t++) {
        const float *x = in + (size_t)(row - t) * n;

        for (uint32_t c = 0; c < n; c++)
            out[c] += (d[(size_t)t * n_groups + c / b->group] + base[(size_t)t * n + c]) * x[c];
    }
}

void block_candidates(const struct host_step *h, const struct model_shape *s, uint32_t i,
                      const float *logits, struct block_pick *out) {
    uint32_t k = s->block.top_k, n = 0;

    logits += (size_t)i * s->n_vocab;
    for (uint32_t t = 0; t < s->n_vocab; t++) {
        uint32_t at = n;

        if (n >= k)
            at = k - 1;
        if (n == k && !(logits[t] > out[at].logit))
            continue;
        for (; at > 0 && logits[t] > out[at - 1].logit; at--)
            out[at] = out[at - 1];
        out[at] = (struct block_pick){(int32_t)t, logits[t]};
        n += n < k;
    }
}

/* Adds the scores of the candidates after token @a to their logits. Returns the best candidate. */
static int32_t block_add_scores(const struct model_shape *s, const struct tensor *const table[2],
                                int32_t a, const float *g, const struct block_pick *candidate,
                                float *row, float *logits) {
    uint32_t rank = s->block.rank, best = 0;
    float *next = row + rank;

    quant_decode_row(table[0], (uint64_t)a, row);
    for (uint32_t r = 0; r < rank; r++)
        row[r] *= g[r];
    for (uint32_t t = 0; t < s->n_vocab; t++)
        logits[t] -= BEHIND;
    for (uint32_t k = 0; k < s->block.top_k; k++) {
        const struct block_pick *c = &candidate[k];
        float sum = 0;

        quant_decode_row(table[1], (uint64_t)c->token, next);
        for (uint32_t r = 0; r < rank; r++)
            sum += next[r] * row[r];
        logits[c->token] = c->logit + sum;
        if (logits[c->token] > logits[candidate[best].token])
            best = k;
    }
    return candidate[best].token;
}

void block_select(const struct host_step *h, const struct model_shape *s,
                  const struct tensor *predecessor, const struct tensor *successor, const float *g,
                  const struct block_pick *candidate, float *row, float *logits) {
    const struct engine_batch *b = h->batch;
    const struct tensor *const table[] = {predecessor, successor};
    uint32_t of = UINT32_MAX;
    int32_t a = 0;

    for (uint32_t i = 0; i < h->n_scored; i++) {
        uint32_t r = b->want[h->scored[i]].row;
        const struct engine_seq *seq = &b->seq[h->row_seq[r]];

        if (h->row_seq[r] != of)
            a = b->token[seq->row0];
        of = h->row_seq[r];
        if (r > seq->row0)
            a = block_add_scores(s, table, a, g + (size_t)i * s->block.rank,
                                 candidate + (size_t)i * s->block.top_k, row,
                                 logits + (size_t)i * s->n_vocab);
    }
}

bool block_before(const struct host_step *h, const struct model_shape *s, uint32_t i,
                  const float *logits, int32_t *token) {
    const struct engine_batch *b = h->batch;
    uint32_t row = b->want[h->scored[i]].row, seq = h->row_seq[row];
    uint32_t first = b->seq[seq].row0 + s->first_draft, best = 0;

    if (row < first)
        return false;
    if (row == first) {
        *token = b->token[b->seq[seq].row0];
        return true;
    }
    assert(i > 0 && b->want[h->scored[i - 1]].row == row - 1);
    logits += (size_t)(i - 1) * s->n_vocab;
    for (uint32_t t = 1; t < s->n_vocab; t++)
        if (logits[t] > logits[best])
            best = t;
    *token = (int32_t)best;
    return true;
}
