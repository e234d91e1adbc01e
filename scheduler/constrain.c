#include "scheduler/constrain.h"

#include <assert.h>
#include <errno.h>

#include "base/buggify.h"
#include "grammar/constraint.h"
#include "scheduler/allowed.h"
#include "scheduler/constraints.h"
#include "scheduler/late.h"
#include "text/tokenizer.h"

bool constrain_must_wait(const struct batch *t) {
    for (uint32_t i = 0; i < t->b.n_seqs; i++) {
        const struct request *r = t->item[i].request;

        if (t->item[i].samples && t->seq[i].feed >= 0 &&
            (r->grammar.matcher || allowed_depends(r->grammar.allowed)))
            return true;
    }
    return false;
}

static int64_t constrain_clear(uint32_t *bits, int64_t n, const int32_t *id, size_t n_ids) {
    for (size_t i = 0; i < n_ids; i++) {
        uint32_t *word = &bits[id[i] / 32], bit = 1u << (id[i] % 32);

        n -= (*word & bit) != 0;
        *word &= ~bit;
    }
    return n;
}

/* Returns how many tokens may come after the first @n_tokens if the output must be complete by
 * then, UINT32_MAX without such a limit. */
static uint32_t left_at(const struct request *r, uint32_t n_tokens) {
    if (!(r->flags & SUBMIT_COMPLETE))
        return GRAMMAR_NO_MAX;
    return r->max_tokens - MIN(n_tokens, r->max_tokens - 1);
}

static int64_t allowed(const struct request *r, uint32_t n_tokens, uint32_t *bits) {
    int64_t n;

    return late_mask(r, n_tokens, bits, &n)
               ? n
               : late_compute(r->grammar.matcher, left_at(r, n_tokens), bits);
}

/* Removes tokens that must not come yet from a mask with @n tokens: stop ids and end tokens before
 * min_tokens, and always ignored end tokens, since the constraint would end with them. A mask that
 * would become empty is not changed. Returns the number of tokens left. */
static int64_t ban(const struct request *r, uint32_t n_tokens, bool early, uint32_t *bits,
                   int64_t n) {
    size_t n_ends = 0;
    const int32_t *end = r->sampling.ignore_eos && r->sampling.tokenizer
                             ? tokenizer_end_ids(r->sampling.tokenizer, &n_ends)
                             : NULL;
    int64_t left = constrain_clear(bits, n, r->sampling.bans, early ? r->sampling.n_bans : 0);

    left = constrain_clear(bits, left, end, n_ends);
    return left > 0 ? left : allowed(r, n_tokens, bits);
}

static bool constrain_is_early(const struct request *r, uint32_t n_tokens) {
    return n_tokens < r->min_tokens && r->sampling.n_bans > 0;
}

/* Returns whether some token is not allowed after the first @n_tokens of @r, the position of its
 * constraint. */
static bool is_masked(const struct request *r, uint32_t n_tokens) {
    return !constraint_is_free_within(r->grammar.matcher, left_at(r, n_tokens)) ||
           constrain_is_early(r, n_tokens) || r->sampling.ignore_eos;
}

/* Computes the mask after the first @n_tokens of @r, the position of its constraint. Returns the
 * number of allowed tokens or a negative errno. */
static int64_t constrain_fill(const struct request *r, uint32_t n_tokens, uint32_t *bits) {
    int64_t n = allowed(r, n_tokens, bits);
    bool early = constrain_is_early(r, n_tokens);

    return n > 0 && (early || r->sampling.ignore_eos) ? ban(r, n_tokens, early, bits, n) : n;
}

int constrain_check(struct request *r) {
    uint32_t left = left_at(r, r->n_tokens), distance = 0;

    if (r->n_tokens == r->n_prompt && left != GRAMMAR_NO_MAX)
        distance = constraint_distance(r->grammar.matcher);
    if (distance == GRAMMAR_NO_MAX || distance <= left)
        return 0;
    CLEANUP(freep)
    uint32_t *bits = malloc(constraint_n_words(r->grammar.constraint) * sizeof(*bits));

    if (!bits)
        return -ENOMEM;
    if (constraint_mask_within(r->grammar.matcher, bits, left) != 0)
        return 0; /* a completion of more bytes takes fewer tokens than the shortest one */
    err_set_code(&r->end.why, 400, "max_tokens_too_small", "max_tokens",
                 "The shortest output of the requested form takes %u tokens, but there is room for "
                 "only %u. Raise max_tokens, or send \"complete_output\": false.",
                 distance, left);
    return 1;
}

/* Makes a mask. Returns > 0 with *bits, NULL where all tokens are allowed; 0: no token is allowed;
 * or a negative errno. */
static int make_mask(struct batch *t, const struct request *r, uint32_t n_tokens,
                     const uint32_t **bits) {
    bool masked = r->grammar.matcher && is_masked(r, n_tokens);
    int64_t n = 1;

    assert(request_is_masked(r) && n_tokens >= r->n_prompt);
    *bits = NULL;
    if (!masked && !r->grammar.allowed)
        return 1;
    uint32_t *mask = batch_mask(t);
    if (!mask)
        return -ENOMEM;
    if (masked)
        n = constrain_fill(r, n_tokens, mask);
    if (r->grammar.allowed && n > 0)
        n = allowed_mask(r->grammar.allowed, r->tokens + r->n_prompt, n_tokens - r->n_prompt,
                         masked, mask);
    t->n_masks -= n == -EAGAIN;
    *bits = mask;
    return n < 0 ? (int)n : n > 0;
}

/* Computes the grammar's part of a draft's mask. */
static int mask_draft(const struct request *r, const int32_t *draft, uint32_t n, uint32_t *bits) {
    uint32_t fits = 0;
    int64_t left = 0;

    while (fits < n && constraint_accept(r->grammar.matcher, draft[fits]) == 0)
        fits++;
    constraint_set_quick(r->grammar.matcher, r->grammar.constraints->submit);
    if (fits == n && is_masked(r, r->n_tokens + n))
        left = constrain_fill(r, r->n_tokens + n, bits);
    constraint_set_quick(r->grammar.matcher, false);
    int e = constraint_rollback(r->grammar.matcher, fits);
    assert(e == 0);
    return left == -EAGAIN ? -EAGAIN : left > 0;
}

int constrain_draft(const struct request *r, const int32_t *draft, uint32_t n, uint32_t *bits) {
    int masked = r->grammar.matcher ? mask_draft(r, draft, n, bits) : 0;

    if (!r->grammar.allowed || masked < 0)
        return masked;
    return allowed_mask(r->grammar.allowed, r->tokens + r->n_prompt, request_n_out(r) + n, masked,
                        bits) > 0;
}

/* Returns whether the mask may be late. In tests short masks are late too, but not twice at the
 * same position. */
static bool may_come_late(const struct request *r, enum constrain_late late) {
    return (late == LATE_ALL || BUGGIFY(mask_late)) && !late_has_mask(r);
}

/* Handles the mask after @n drafts, which takes long to make; a thread makes it if @n is 0. Returns
 * 0: this sample and the following ones are discarded; or the result of make_mask() if the mask
 * must be made now. */
static int come_late(struct batch *t, struct batch_item *it, uint32_t n, const uint32_t **bits) {
    struct request *r = it->request;

    constraint_set_quick(r->grammar.matcher, false);
    if (n == 0 && late_begin(r, left_at(r, r->n_tokens)) < 0)
        return make_mask(t, r, r->n_tokens, bits);
    if (n == 0)
        late_set_row(r, true);
    it->n_late = 1 + it->n_draft - n;
    return 0;
}

int constrain_item(struct batch *t, uint32_t i, struct engine *engine, enum constrain_late late) {
    struct batch_item *it = &t->item[i];
    uint32_t want = it->want0 + it->n_wants - 1 - it->n_draft, row0 = t->seq[i].row0, n = 0;
    const int32_t *draft = t->token + row0 + it->n_rows - it->n_draft;
    struct request *r = it->request;
    bool quick = r->grammar.matcher && late != LATE_NEVER && r->grammar.constraints->submit;
    int e = 0;

    assert(!r->grammar.matcher || constraint_n_words(r->grammar.constraint) <= t->n_words);
    for (; n <= it->n_draft && !(r->grammar.matcher && constraint_is_done(r->grammar.matcher));
         n++) {
        const uint32_t *bits;

        if (r->grammar.matcher)
            constraint_set_quick(r->grammar.matcher, quick);
        int left = make_mask(t, r, r->n_tokens + n, &bits);

        if (left == -EAGAIN || (quick && bits && left > 0 && may_come_late(r, late)))
            left = come_late(t, it, n, &bits);
        if (it->n_late > 0)
            break;
        if (left <= 0) {
            request_blame(r, left);
            e = 1;
            break;
        }
        if (bits && (e = engine_mask(engine, t->b.step, want + n, bits)) < 0)
            break;
        if (r->grammar.matcher && n < it->n_draft &&
            constraint_accept(r->grammar.matcher, draft[n]) < 0)
            break; /* out of memory: the following rows count as wrong drafts */
    }
    if (r->grammar.matcher)
        constraint_set_quick(r->grammar.matcher, false);
    assert(it->samples && it->n_wants > it->n_draft);
    int back =
        r->grammar.matcher ? constraint_rollback(r->grammar.matcher, MIN(n, it->n_draft)) : 0;
    assert(back == 0);
    return e;
}
