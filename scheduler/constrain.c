#include "scheduler/constrain.h"

#include <assert.h>
#include <errno.h>
#include "text/constraint.h"

bool constrain_must_wait(const struct batch *t) {
    for (uint32_t i = 0; i < t->b.n_seqs; i++)
        if (t->item[i].samples && t->item[i].request->place && t->seq[i].feed >= 0)
            return true;
    return false;
}

/* Takes end tokens and stop ids out of a mask with @n tokens. A grammar that leaves nothing else wins. */
static int64_t ban(const struct request *r, uint32_t *bits, int64_t n) {
    int64_t left = n;

    for (uint32_t i = 0; i < r->n_bans; i++) {
        uint32_t *word = &bits[r->bans[i] / 32], bit = 1u << (r->bans[i] % 32);

        left -= (*word & bit) != 0;
        *word &= ~bit;
    }
    return left > 0 ? left : constraint_mask(r->place, bits);
}

/* The mask where the constraint of @r is now, behind @n_tokens tokens. Positive: *bits, NULL when all tokens are
 * allowed; 0: none is; or a negative errno. */
static int make_mask(struct batch *t, const struct request *r, uint32_t n_tokens,
                     const uint32_t **bits) {
    bool bans = n_tokens < r->min_tokens && r->n_bans > 0;

    *bits = NULL;
    if (constraint_is_free(r->place) && !bans)
        return 1;
    uint32_t *mask = batch_mask(t);
    if (!mask)
        return -ENOMEM;
    int64_t n = constraint_mask(r->place, mask);
    if (n > 0 && bans)
        n = ban(r, mask, n);
    *bits = mask;
    return n < 0 ? (int)n : n > 0;
}

int constrain_item(struct batch *t, uint32_t i, struct engine *engine) {
    const struct batch_item *it = &t->item[i];
    uint32_t want = it->want0 + it->n_wants - 1 - it->n_draft, row0 = t->seq[i].row0, n = 0;
    const int32_t *draft = t->token + row0 + it->n_rows - it->n_draft;
    struct request *r = it->request;
    int e = 0;

    assert(constraint_n_words(r->constraint) <= t->n_words);
    for (; n <= it->n_draft && !constraint_is_done(r->place); n++) {
        const uint32_t *bits;
        int left = make_mask(t, r, r->n_tokens + n, &bits);

        if (left <= 0) {
            request_blame(r, left);
            e = 1;
            break;
        }
        if (bits && (e = engine_mask(engine, t->b.step, want + n, bits)) < 0)
            break;
        if (n < it->n_draft && constraint_accept(r->place, draft[n]) < 0)
            break; /* no memory: the rows behind are wrong drafts then */
    }
    int back = constraint_rollback(r->place, MIN(n, it->n_draft));
    assert(back == 0);
    (void)back;
    return e;
}
