#include "engine/check.h"

#include <assert.h>

/* Checks that source and destination of a copy exist. */
static void check_copy(const struct check *k, const struct engine_copy *c) {
    const struct engine_opts *o = k->opts;

    switch (c->dir) {
    case COPY_STATE_SAVE:
        assert(c->src < o->n_states && c->dst < o->n_snapshots);
        return;
    case COPY_STATE_LOAD:
        assert(c->src < o->n_snapshots && c->dst < o->n_states);
        return;
    case COPY_D2D:
        assert(c->src < o->n_pages && c->dst < o->n_pages);
        break;
    case COPY_D2H:
        assert(c->src < o->n_pages && c->dst < o->n_host_pages);
        break;
    case COPY_H2D:
        assert(c->src < o->n_host_pages && c->dst < o->n_pages);
        break;
    default:
        assert(false);
    }
    assert(k->ops->copy && c->cls == KV_GLOBAL);
}

/* Returns the number of positions whose pages a sequence needs. */
static uint32_t check_end_of(const struct check *k, const struct engine_batch *b,
                             const struct engine_seq *s) {
    if (b->model && k->shape->borrows)
        return s->pos0;
    return s->pos0 + s->n_rows;
}

/* Checks the pages that the rows of @s read and write in layers with a window. */
static void check_batch_windows(const struct check *k, const struct engine_batch *b, uint32_t i) {
    const uint32_t *start = b->table[KV_WINDOW].start, t = k->opts->page_tokens;
    const struct engine_seq *s = &b->seq[i];
    uint32_t first = 0, n = (check_end_of(k, b, s) + t - 1) / t;

    assert(b->n_seqs <= k->window_seqs && start[i] + n <= start[i + 1]);
    if (s->pos0 >= k->window)
        first = (s->pos0 - k->window + 1) / t;
    for (uint32_t p = first; p < n; p++)
        assert(b->table[KV_WINDOW].page[start[i] + p] < k->n_windows);
}

/* Returns true if row @r of @s belongs to a picture. */
static bool in_picture(const struct engine_seq *s, uint32_t r) {
    for (uint32_t i = 0; i < s->n_pictures; i++)
        if (s->pos0 + r - s->picture[i].at < s->picture[i].n_rows)
            return true;
    return false;
}

/* Returns true if the numbers of rows and positions of @p are those of its places. */
static bool check_picture_places(const struct engine_picture *p, enum picture_places places) {
    uint64_t grid = (uint64_t)p->n_columns * p->n_lines;

    if (places == PLACES_GRID)
        return grid == p->n_rows && p->n_positions <= p->n_rows;
    if (places == PLACES_FRAMED)
        return grid + p->n_lines + 2 == p->n_rows;
    return true;
}

/* Checks pictures: they are in order and begin before the end of the rows, and those with rows in
 * the batch have values; a two-way model needs all rows of a picture in the batch. */
static void check_batch_pictures(const struct check *k, const struct engine_seq *s) {
    uint64_t end = s->pos0 + s->n_rows, behind = 0;

    assert(!s->n_pictures || k->shape->n_picture);
    for (uint32_t i = 0; i < s->n_pictures; i++) {
        const struct engine_picture *p = &s->picture[i];
        uint64_t last = (uint64_t)p->at + p->n_rows;

        assert(p->n_rows > 0 && p->at >= behind && p->at < end && last <= k->opts->max_context);
        assert(check_picture_places(p, k->shape->rope[0].places));
        assert(last <= s->pos0 || (p->rows && p->width == k->shape->n_picture));
        assert(!k->shape->two_way || last <= s->pos0 || (p->at >= s->pos0 && last <= end));
        behind = last;
    }
}

/* Checks a sequence: rows in the batch, positions in the context, pages for all of them, tokens in
 * the vocabulary. */
static void check_batch_seq(const struct check *k, const struct engine_batch *b, uint32_t i) {
    const struct engine_seq *s = &b->seq[i];
    const uint32_t *start = b->table[KV_GLOBAL].start;
    uint32_t first = 0;

    assert(s->n_rows > 0 && s->row0 < b->n_rows && s->n_rows <= b->n_rows - s->row0);
    assert(s->pos0 < k->opts->max_context && s->n_rows <= k->opts->max_context - s->pos0);
    assert(!k->shape->encoder || (s->pos0 == 0 && s->n_rows == s->n_prompt));
    assert(start[i] <= start[i + 1]);
    assert((uint64_t)(start[i + 1] - start[i]) * k->opts->page_tokens >= check_end_of(k, b, s));
    /* Looks only at the new pages of a sequence that decodes; its earlier pages have been checked
     * before. */
    uint32_t old = 0;

    if (s->n_rows <= 1)
        old = s->pos0 / k->opts->page_tokens;
    for (uint32_t p = start[i] + old; p < start[i + 1]; p++)
        assert(b->table[KV_GLOBAL].page[p] < k->opts->n_pages);
    if (k->n_windows)
        check_batch_windows(k, b, i);
    /* move_states() checks that the sequence continues where its state is. */
    assert(s->state_slot < MAX(MAX(k->opts->n_states, k->n_slots), 1));
    assert(!b->holes || s->pos0 >= s->n_prompt);
    assert(!s->n_ahead || (b->model && k->shape->borrows));
    if (s->feed >= 0) {
        first = 1;
        assert(k->launched + 1 == b->step && (uint32_t)s->feed < k->n_wants_launched);
    }
    check_batch_pictures(k, s);
    for (uint32_t r = first; r < s->n_rows; r++)
        assert((uint32_t)b->token[s->row0 + r] < k->shape->n_vocab || in_picture(s, r));
}

/* Checks a draft pass: one row or one block for each sequence, and only samples are wanted. */
static void check_drafts(const struct check *k, const struct engine_batch *b) {
    assert(b->model <= k->shape->drafts && k->n_slots && b->n_before + b->n_after == 0);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        assert(b->seq[i].n_rows == MAX(k->shape->n_block, 1) && b->seq[i].feed < 0 &&
               !b->seq[i].begins);
        assert(b->seq[i].pos0 > 0 && b->seq[i].n_ahead < ENGINE_DRAFT_MAX);
    }
    for (uint32_t i = 0; i < b->n_wants; i++)
        assert(b->want[i].what == WANT_SAMPLE);
}

void check_batch(const struct check *k, const struct engine_batch *b) {
    uint32_t n_rows = 0;

    assert(b->step == k->launched + 1);
    if (b->model)
        check_drafts(k, b);
    assert(!b->holes || (b->model == 0 && k->n_slots && !k->shape->borrows && !k->shape->n_block));
    assert(b->n_rows <= k->opts->max_rows && b->n_seqs <= k->opts->max_seqs);
    assert(b->n_wants <= k->opts->max_wants);
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        check_batch_seq(k, b, i);
        n_rows += b->seq[i].n_rows;
    }
    assert(n_rows == b->n_rows);
    for (uint32_t i = 0; i < b->n_wants; i++) {
        assert(b->want[i].row < b->n_rows && b->want[i].param < b->n_params);
        assert(b->want[i].what <= WANT_HIDDEN);
        assert(b->want[i].what != WANT_HIDDEN || k->ops->hidden);
        assert(b->want[i].what == WANT_HIDDEN || !k->shape->encoder);
        assert(b->want[i].n_top <= ENGINE_TOP_MAX);
    }
    for (uint32_t i = 0; i < b->n_before; i++)
        check_copy(k, &b->before[i]);
    for (uint32_t i = 0; i < b->n_after; i++)
        check_copy(k, &b->after[i]);
}
