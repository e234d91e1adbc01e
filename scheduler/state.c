#include "scheduler/state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "base/util.h"
#include "scheduler/policy.h"
#include "text/tokenizer.h"

int states_init(struct states *s, const struct sched_view *view) {
    const struct engine_info *i = view->info;

    *s = (struct states){.on = i->n_states > 0, .keeps = i->n_snapshots > 0, .view = view};
    s->pages = (uint32_t)((i->state_bytes + i->page_bytes - 1) / MAX(i->page_bytes, 1u));
    s->backup = calloc(MAX(i->n_states, 1u), sizeof(*s->backup));
    return s->backup ? 0 : -ENOMEM;
}

void states_deinit(struct states *s) {
    free(s->backup);
    *s = (struct states){0};
}

/* ---- cuts ---- */

/* Returns the position where the template's tail after the last message begins: the first special
 * token of the last few tokens. */
static uint32_t states_tail(const struct states *s, const struct request *r) {
    uint32_t from = r->n_prompt - MIN(r->n_prompt, STATE_TAIL), i = from;

    if (request_is_prewarm(r))
        return r->n_prompt; /* no tail: the whole prompt is expected again */
    while (s->view->tokenizer && i < r->n_prompt &&
           !tokenizer_is_special(s->view->tokenizer, r->tokens[i]))
        i++;
    return s->view->tokenizer && i < r->n_prompt ? i : from;
}

/* Returns whether the last page's end before token @i is behind a picture, where other questions
 * about it diverge. *next: the first picture that ends after @i; of many pictures the last ones
 * count. */
static bool ends_picture(const struct request *r, uint32_t i, uint32_t *next) {
    while (*next < r->picture.n &&
           (*next + STATE_PICTURES < r->picture.n ||
            r->picture.list[*next].in.at + r->picture.list[*next].in.n_rows <= i))
        (*next)++;
    return *next < r->picture.n &&
           r->picture.list[*next].in.at + r->picture.list[*next].in.n_rows == i + 1;
}

/* Finds the cuts of a prompt, in order. */
static void find_cuts(const struct states *s, struct request *r) {
    uint32_t t = s->view->page_tokens, tail = states_tail(s, r), last = 0, n_ends = 0, next = 0;
    uint32_t far = MAX(STATE_FAR, r->n_prompt / (STATE_CUTS / 2));
    int32_t end = s->view->tokenizer && tail < r->n_prompt ? r->tokens[tail] : -1;
    struct request_cuts *c = &r->cuts;

    *c = (struct request_cuts){.known = true};
    for (uint32_t i = 0; i < tail && c->n + 1 < STATE_CUTS; i++) {
        bool is_end = r->tokens[i] == end;
        uint32_t at = (i + 1) / t * t;

        n_ends += is_end;
        if ((is_end && at >= last + (n_ends <= STATE_FIRST ? STATE_NEAR : far)) ||
            at >= last + 2 * far || (ends_picture(r, i, &next) && at >= last + STATE_NEAR))
            c->at[c->n++] = last = at;
    }
    if (tail / t * t > last)
        c->at[c->n++] = tail / t * t;
}

uint32_t states_next_cut(const struct states *s, const struct request *r, uint32_t n_computed) {
    uint32_t i = 0, cut = UINT32_MAX;

    if (!s->keeps || request_pools(r))
        return cut;
    while (i < r->cuts.n && r->cuts.at[i] <= n_computed)
        i++;
    if (i < r->cuts.n)
        cut = r->cuts.at[i];
    if (r->cuts.branch > n_computed)
        cut = MIN(cut, r->cuts.branch);
    return cut;
}

struct kv_match states_match(const struct states *s, struct request *r) {
    uint32_t n = request_shareable(r) / s->view->page_tokens * s->view->page_tokens;

    if (!r->cuts.known)
        find_cuts(s, r);
    struct kv_match m = kv_pager_match(s->view->pager, &r->share, request_keys(r), n);
    r->cuts.branch = m.n_found;
    return m;
}

bool states_follows(const struct states *s, const struct request *r, const struct request *o) {
    uint32_t t = s->view->page_tokens, n = MIN(r->n_hashes, o->n_hashes), cut = r->seen_hit, i;
    uint32_t done = request_n_stored(o);

    if (!s->keeps || request_pools(o) || o->stalled || o->tenant != r->tenant)
        return false;
    for (i = cut / t; i < n && r->hash[i] == o->hash[i]; i++)
        cut = (i + 1) * t;
    /* Finds the last cut in the common pages that @o has not passed yet. */
    for (i = o->cuts.n; i > 0 && o->cuts.at[i - 1] > cut; i--)
        ;
    cut = MAX(i > 0 ? o->cuts.at[i - 1] : 0, o->cuts.branch <= cut ? o->cuts.branch : 0);
    return cut > done && cut >= r->seen_hit + STATE_NEAR && cut <= request_shareable(r);
}

void states_describe(const struct states *s, const struct request *r, uint32_t n_computed,
                     struct plan_req *q) {
    q->n_tokens = MIN(r->n_tokens + r->n_pending, states_next_cut(s, r, n_computed));
    q->n_share = q->n_hashes = 0;
    assert(q->n_tokens > n_computed || q->last);
}

/* Returns whether a snapshot after @n tokens of @r is due: it is in the answer and far enough
 * behind the last one. */
static bool states_is_due(const struct states *s, const struct request *r, uint32_t n) {
    return s->keeps && !request_pools(r) && n > r->n_prompt && n % s->view->page_tokens == 0 &&
           n >= r->cuts.saved + STATE_NEAR / 2;
}

bool states_load(struct states *s, struct request *r) {
    uint32_t snapshot = kv_seq_snapshot(r->seq);

    if (snapshot != KV_NO_SNAPSHOT)
        kv_tier_load_state(s->view->tier, snapshot, kv_seq_state(r->seq));
    return snapshot != KV_NO_SNAPSHOT;
}

void states_begin_drafts(struct states *s) {
    s->n_may_draft = s->on ? kv_snapshot_untaken(s->view->pager) : 0;
}

bool states_may_draft(struct states *s) {
    bool may = !s->on || s->n_may_draft > 0;

    s->n_may_draft -= s->n_may_draft > 0;
    return may;
}

void states_build(struct states *s, const struct plan *p, struct request *const *planned) {
    uint32_t n = 0;

    for (uint32_t i = 0; s->on && i < p->n_running; i++) {
        if (p->req[i].n_draft == 0)
            continue;
        uint32_t snapshot = kv_snapshot_acquire(s->view->pager, NULL);

        kv_tier_save_state(s->view->tier, kv_seq_state(planned[i]->seq), snapshot);
        s->backup[n++] = snapshot;
    }
    s->n_backups = 0;
}

void states_back_up(struct states *s, struct batch *t) {
    assert(t->b.n_seqs > 0 && t->item[t->b.n_seqs - 1].n_draft > 0);
    if (s->on)
        t->item[t->b.n_seqs - 1].backup = s->backup[s->n_backups++];
}

void states_retain_backup(struct states *s, struct batch_item *it) {
    struct request *r = it->request;

    if (it->backup == KV_NO_SNAPSHOT || !r->seq || !states_is_due(s, r, it->pos0))
        return;
    kv_seq_attach_snapshot(r->seq, it->backup, true);
    r->cuts.saved = it->pos0;
    /* the copied snapshot stays until another one is saved, if the page had one */
    it->passes = true;
}

/* Returns whether the answer of @r is at the end of a page and far enough behind the last snapshot
 * that copies take a small part of its decode. */
static bool passes(const struct states *s, const struct batch *t, const struct request *r,
                   int64_t expect_ns) {
    uint32_t n = r->n_computed, n_seqs = t->b.n_seqs;
    double copy_ns = (double)cost_copies_ns(s->view->cost, s->pages) * n_seqs;

    return states_is_due(s, r, n) &&
           copy_ns <= STATE_PART * (n - r->cuts.saved) * (double)expect_ns;
}

void states_save(struct states *s, struct batch *t, struct request *r, int64_t expect_ns) {
    struct batch_item *it = &t->item[t->b.n_seqs - 1];
    bool cut = s->keeps && states_next_cut(s, r, r->n_computed - 1) == r->n_computed;
    bool drafts = it->n_draft > 0;

    if (!s->keeps || request_pools(r) || drafts || (!cut && !passes(s, t, r, expect_ns)))
        return;
    uint32_t snapshot = kv_snapshot_acquire(s->view->pager, cut ? NULL : r->seq);
    r->cuts.saved = r->n_computed;
    if (snapshot == KV_NO_SNAPSHOT)
        return;
    assert(t->b.n_after < t->max_seqs);
    t->after[t->b.n_after++] =
        (struct engine_copy){.src = kv_seq_state(r->seq), .dst = snapshot, .dir = COPY_STATE_SAVE};
    it->snapshot = snapshot;
    it->passes = !cut;
    t->shape.copies += s->pages;
}

void states_finish(struct states *s, struct batch_item *it) {
    const struct request *r = it->request;

    if (it->backup != KV_NO_SNAPSHOT) {
        /* Loaded before another state is saved in its place. */
        if (r->seq && r->draft.n_replay > 0)
            kv_tier_load_state(s->view->tier, it->backup, kv_seq_state(r->seq));
        if (!it->passes)
            kv_snapshot_free(s->view->pager, it->backup);
        it->backup = KV_NO_SNAPSHOT;
    }
    if (it->snapshot == KV_NO_SNAPSHOT)
        return;
    assert(!r->seq || request_n_stored(r) == it->pos0 + it->n_rows);
    if (r->seq)
        kv_seq_attach_snapshot(r->seq, it->snapshot, it->passes);
    else
        kv_snapshot_free(s->view->pager, it->snapshot);
    it->snapshot = KV_NO_SNAPSHOT;
}
