#define XXH_INLINE_ALL
#include "tests/support/telltale_check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#define NO_SEQ UINT32_MAX

static _Noreturn void bad(const struct engine_batch *b, const char *what, const char *unit,
                          uint32_t i) {
    fprintf(stderr, "telltale: step %llu: %s (%s %u)\n", (unsigned long long)b->step, what, unit,
            i);
    abort();
}

#define NEED(cond, unit, i)                                                                        \
    do {                                                                                           \
        if (!(cond))                                                                               \
            bad(b, "must be: " #cond, unit, i);                                                    \
    } while (0)

static void check_head(const struct batch_rules *r, const struct engine_batch *b) {
    const struct engine_opts *o = r->opts;

    NEED(b->model == 0 || (b->model == 1 && r->n_slots > 0), "model", b->model);
    NEED(!b->holes || (b->model == 0 && r->n_slots > 0 && b->n_rows > 0 && !r->borrows), "model",
         b->model);
    NEED(b->n_rows + b->n_before + b->n_after > 0 && b->n_rows <= o->max_rows, "rows", b->n_rows);
    NEED(b->n_seqs >= (b->n_rows > 0) && b->n_seqs <= o->max_seqs, "sequences", b->n_seqs);
    NEED(b->n_wants <= o->max_wants, "wants", b->n_wants);
    NEED(b->token && b->seq, "rows", b->n_rows);
    NEED(b->n_wants == 0 || (b->want && b->param), "wants", b->n_wants);
    NEED(b->n_before == 0 || b->before, "copies", b->n_before);
    NEED(b->n_after == 0 || b->after, "copies", b->n_after);
    for (uint32_t cls = 0; cls < KV_CLASSES; cls++) {
        bool used = r->set->classes >> cls & 1 || (cls == KV_WINDOW && r->n_windows > 0);

        NEED((b->table[cls].start != NULL) == used, "class", cls);
    }
}

/* Checks that a fed row continues the sampled row by one position. */
static void check_feed(const struct batch_rules *r, const struct engine_batch *b, uint32_t i) {
    const struct engine_seq *s = &b->seq[i];

    NEED(r->before->step > 0 && r->before->step + 1 == b->step, "sequence", i);
    NEED((uint32_t)s->feed < r->before->n, "sequence", i);
    NEED(r->before->pos[s->feed] != NO_FEED, "sequence", i);
    NEED(r->before->pos[s->feed] + 1 == s->pos0, "sequence", i);
    for (uint32_t j = 0; j < i; j++)
        NEED(b->seq[j].feed != s->feed, "sequence", i);
}

/* Checks that pictures follow each other and begin before the sequence's end, and that their rows
 * are given exactly if the batch has rows of them. */
static void check_pictures(const struct batch_rules *r, const struct engine_batch *b, uint32_t i) {
    const struct engine_seq *s = &b->seq[i];
    uint32_t end = 0, pos1 = s->pos0 + s->n_rows;

    NEED(s->n_pictures == 0 || (r->set->picture_width > 0 && s->picture), "sequence", i);
    for (uint32_t k = 0; k < s->n_pictures; k++) {
        const struct engine_picture *p = &s->picture[k];

        NEED(p->at >= end && p->n_rows > 0 && p->at < pos1, "sequence", i);
        end = p->at + p->n_rows;
        NEED(end <= s->n_prompt, "sequence", i);
        NEED((p->rows != NULL) == (end > s->pos0), "sequence", i);
        NEED(!p->rows || p->width == r->set->picture_width, "sequence", i);
        if (p->rows && r->set->two_way)
            NEED(p->at >= s->pos0 && end <= pos1, "sequence", i);
    }
}

static void check_seqs(const struct batch_rules *r, const struct engine_batch *b) {
    uint32_t row = 0;

    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const struct engine_seq *s = &b->seq[i];

        NEED(s->row0 == row && s->n_rows > 0, "sequence", i);
        NEED(s->n_rows <= b->n_rows - row, "sequence", i);
        NEED(s->pos0 < r->opts->max_context, "sequence", i);
        NEED(s->n_rows <= r->opts->max_context - s->pos0, "sequence", i);
        NEED(s->n_draft <= s->n_rows, "sequence", i);
        NEED(s->n_ahead == 0 || (b->model && r->borrows), "sequence", i);
        NEED(s->n_ahead < r->opts->max_context - s->pos0, "sequence", i);
        NEED(s->state_slot < MAX(MAX(r->opts->n_states, r->n_slots), 1u), "sequence", i);
        NEED(s->feed >= -1, "sequence", i);
        NEED(!b->holes || s->pos0 >= s->n_prompt, "sequence", i);
        NEED(s->feed < 0 || (s->n_rows == 1 && s->n_draft == 0), "sequence", i);
        if (s->feed >= 0)
            check_feed(r, b, i);
        check_pictures(r, b, i);
        for (uint32_t j = 0; j < s->n_rows; j++) {
            int32_t token = b->token[row + j];

            if (j > 0 || s->feed < 0)
                NEED(token >= 0 && (uint32_t)token < r->set->n_vocab, "row", row + j);
        }
        row += s->n_rows;
    }
    NEED(row == b->n_rows, "rows", b->n_rows);
}

/* Checks that no two sequences have the same state slot. */
static void check_slots(const struct batch_rules *r, const struct engine_batch *b) {
    uint32_t n = MAX(r->opts->n_states, r->n_slots);

    memset(r->slot_used, 0, n);
    for (uint32_t i = 0; i < b->n_seqs && n > 0; i++)
        if (r->slot_used[b->seq[i].state_slot]++)
            bad(b, "two sequences of one state slot", "sequence", i);
}

/* Checks that the pages of a sequence cover its rows, each once, and that a page written by one
 * sequence belongs to no other. Rows whose keys are borrowed are not covered, and write no page. */
static void check_tables(const struct batch_rules *r, const struct engine_batch *b, uint32_t cls) {
    const uint32_t *start = b->table[cls].start, t = r->opts->page_tokens;
    uint32_t *reader = r->reader[cls], *writer = r->writer[cls];
    bool windows = cls == KV_WINDOW && r->n_windows > 0, borrowed = b->model && r->borrows;
    uint32_t n_pages = windows ? r->n_windows : r->opts->n_pages;

    memset(reader, 0xFF, n_pages * sizeof(*reader)); /* NO_SEQ */
    memset(writer, 0xFF, n_pages * sizeof(*writer));
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const struct engine_seq *s = &b->seq[i];
        uint32_t n = (s->pos0 + (borrowed ? 0 : s->n_rows) + t - 1) / t;

        NEED(start[i] <= start[i + 1], "sequence", i);
        NEED(start[i + 1] - start[i] >= n, "sequence", i);
        for (uint32_t j = windows ? check_first(s->pos0, r->window) / t : 0; j < n; j++) {
            uint32_t page = b->table[cls].page[start[i] + j];

            NEED(page < n_pages, "sequence", i);
            if (reader[page] == i || writer[page] == i)
                bad(b, "a page is twice in a table", "page", page);
            if (writer[page] != NO_SEQ)
                bad(b, "a page that another sequence of the batch writes", "page", page);
            if (j < s->pos0 / t || borrowed) {
                reader[page] = i;
                continue;
            }
            if (reader[page] != NO_SEQ)
                bad(b, "writes a page that another sequence of the batch reads", "page", page);
            writer[page] = i;
        }
    }
}

static void check_param(const struct batch_rules *r, const struct engine_batch *b, uint32_t i) {
    const struct engine_param *p = &b->param[i];
    int32_t n_vocab = (int32_t)r->set->n_vocab;

    NEED(isfinite(p->temperature) && p->temperature >= 0.0f, "param", i);
    NEED(p->top_p >= 0.0f && p->top_p <= 1.0f, "param", i);
    NEED(p->min_p >= 0.0f && p->min_p <= 1.0f, "param", i);
    NEED(isfinite(p->repetition) && p->repetition > 0.0f, "param", i);
    NEED(isfinite(p->presence) && isfinite(p->frequency), "param", i);
    NEED(p->n_bias == 0 || p->bias, "param", i);
    NEED(p->n_bans == 0 || p->bans, "param", i);
    NEED(p->n_tokens == 0 || p->tokens, "param", i);
    NEED(p->n_prompt <= p->n_tokens || p->n_tokens == 0, "param", i);
    for (uint32_t j = 0; j < p->n_bias; j++)
        NEED(p->bias[j].token >= 0 && p->bias[j].token < n_vocab, "param", i);
    for (uint32_t j = 0; j < p->n_bans; j++)
        NEED(p->bans[j] >= 0 && p->bans[j] < n_vocab, "param", i);
}

const struct engine_seq *check_seq_of(const struct engine_batch *b, uint32_t row) {
    uint32_t lo = 0, hi = b->n_seqs;

    while (hi - lo > 1) {
        uint32_t mid = (lo + hi) / 2;

        if (b->seq[mid].row0 <= row)
            lo = mid;
        else
            hi = mid;
    }
    return &b->seq[lo];
}

/* Checks that a sample is at a row behind the end of the prompt and is numbered from there, and
 * that penalties get exactly the tokens up to the row. */
static void check_sample(const struct engine_batch *b, uint32_t i) {
    const struct engine_want *w = &b->want[i];
    const struct engine_param *p = &b->param[w->param];
    const struct engine_seq *s = check_seq_of(b, w->row);
    uint32_t first = s->pos0 + s->n_ahead, pos = first + (w->row - s->row0);
    uint32_t last = s->row0 + s->n_rows - s->n_draft;

    NEED(w->row + 1 >= last, "want", i); /* at the last row that is not a draft, or at a draft */
    NEED(s->n_prompt > 0 && pos + 1 >= s->n_prompt, "want", i);
    NEED(w->out_pos == pos + 1 - s->n_prompt, "want", i);
    if (p->n_tokens == 0) {
        NEED(p->repetition == 1.0f && p->presence == 0.0f && p->frequency == 0.0f, "want", i);
        return;
    }
    uint32_t fed = s->feed >= 0;
    NEED(p->n_prompt == s->n_prompt, "want", i);
    NEED(p->n_tokens + fed == pos + 1, "want", i);
    for (uint32_t k = first; !fed && k <= pos; k++)
        NEED(p->tokens[k] == b->token[s->row0 + (k - first)], "want", i);
}

static void check_wants(const struct batch_rules *r, const struct engine_batch *b) {
    for (uint32_t i = 0; i < b->n_params; i++)
        check_param(r, b, i);
    for (uint32_t i = 0; i < b->n_wants; i++) {
        const struct engine_want *w = &b->want[i];

        NEED(w->row < b->n_rows, "want", i);
        NEED(w->param < b->n_params, "want", i);
        NEED(w->what <= WANT_HIDDEN, "want", i);
        NEED(w->n_top <= ENGINE_TOP_MAX, "want", i);
        if (w->what == WANT_SAMPLE)
            check_sample(b, i);
        if (w->what != WANT_PROMPT_LP)
            continue;
        const struct engine_seq *s = check_seq_of(b, w->row);
        const struct engine_param *p = &b->param[w->param];
        uint32_t next = s->pos0 + (w->row - s->row0) + 1;
        NEED(next < p->n_tokens, "want", i);
        NEED(p->tokens[next] >= 0 && (uint32_t)p->tokens[next] < r->set->n_vocab, "want", i);
    }
}

static void check_copies(const struct batch_rules *r, const struct engine_batch *b,
                         const struct engine_copy *c, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        bool from_host = c[i].dir == COPY_H2D, to_host = c[i].dir == COPY_D2H;
        bool save = c[i].dir == COPY_STATE_SAVE;

        if (save || c[i].dir == COPY_STATE_LOAD) {
            NEED(save || c == b->before, "copy of a state", i);
            NEED((save ? c[i].src : c[i].dst) < r->opts->n_states, "copy of a state", i);
            NEED((save ? c[i].dst : c[i].src) < r->opts->n_snapshots, "copy of a state", i);
            for (uint32_t j = 0; j < i; j++)
                NEED(c[j].dir != c[i].dir || c[j].dst != c[i].dst, "copy of a state", i);
            continue;
        }
        NEED(c[i].dir <= COPY_H2D, "copy", i);
        NEED(c[i].cls < KV_CLASSES && (r->set->classes >> c[i].cls & 1), "copy", i);
        NEED(c[i].src < (from_host ? r->opts->n_host_pages : r->opts->n_pages), "copy", i);
        NEED(c[i].dst < (to_host ? r->opts->n_host_pages : r->opts->n_pages), "copy", i);
        NEED(c[i].src != c[i].dst || from_host || to_host, "copy", i);
        NEED(c[i].n_tokens > 0 && c[i].n_tokens <= r->opts->page_tokens, "copy", i);
    }
}

/* Checks pass 1: a row of each sequence, with a sample as the only want. */
static void check_drafts(const struct engine_batch *b) {
    NEED(b->n_before + b->n_after == 0 && b->n_wants == b->n_seqs, "wants", b->n_wants);
    for (uint32_t i = 0; i < b->n_seqs; i++)
        NEED(b->seq[i].n_rows == 1 && b->seq[i].feed < 0 && !b->seq[i].begins, "sequence", i);
    for (uint32_t i = 0; i < b->n_wants; i++)
        NEED(b->want[i].what == WANT_SAMPLE && b->want[i].row == i, "want", i);
}

void check_batch(const struct batch_rules *r, const struct engine_batch *b) {
    check_head(r, b);
    if (b->model)
        check_drafts(b);
    check_seqs(r, b);
    check_slots(r, b);
    for (uint32_t cls = 0; cls < KV_CLASSES; cls++)
        if (b->table[cls].start)
            check_tables(r, b, cls);
    check_wants(r, b);
    check_copies(r, b, b->before, b->n_before);
    check_copies(r, b, b->after, b->n_after);
}

static uint64_t add(uint64_t h, const void *data, size_t n, size_t size) {
    return n > 0 ? XXH3_64bits_withSeed(data, n * size, h) : h;
}

uint64_t check_sum(const struct engine_batch *b) {
    uint64_t h = add(0, b, 1, sizeof(*b));

    h = add(h, b->token, b->n_rows, sizeof(*b->token));
    h = add(h, b->seq, b->n_seqs, sizeof(*b->seq));
    h = add(h, b->want, b->n_wants, sizeof(*b->want));
    h = add(h, b->param, b->n_params, sizeof(*b->param));
    h = add(h, b->before, b->n_before, sizeof(*b->before));
    h = add(h, b->after, b->n_after, sizeof(*b->after));
    for (uint32_t cls = 0; cls < KV_CLASSES; cls++) {
        const uint32_t *start = b->table[cls].start;

        if (!start)
            continue;
        h = add(h, start, b->n_seqs + 1, sizeof(*start));
        h = add(h, b->table[cls].page + start[0], start[b->n_seqs] - start[0], sizeof(*start));
    }
    for (uint32_t i = 0; i < b->n_seqs; i++)
        for (uint32_t k = 0; k < b->seq[i].n_pictures; k++) {
            const struct engine_picture *p = &b->seq[i].picture[k];

            h = add(h, p, 1, sizeof(*p));
            h = add(h, p->rows, p->rows ? p->n_rows * p->width : 0, sizeof(*p->rows));
        }
    for (uint32_t i = 0; i < b->n_params; i++) {
        const struct engine_param *p = &b->param[i];

        h = add(h, p->bias, p->n_bias, sizeof(*p->bias));
        h = add(h, p->bans, p->n_bans, sizeof(*p->bans));
        h = add(h, p->tokens, p->n_tokens, sizeof(*p->tokens));
    }
    return h;
}

uint64_t check_masks(const struct engine_batch *b, const uint32_t *const *mask, uint32_t n_vocab) {
    uint64_t h = 1;

    for (uint32_t i = 0; i < b->n_wants; i++) {
        bool any = !mask[i];

        if (mask[i])
            h = add(h ^ i, mask[i], (n_vocab + 31) / 32, sizeof(**mask));
        for (uint32_t t = 0; t < n_vocab && !any; t++)
            any = mask[i][t / 32] >> (t % 32) & 1;
        NEED(any, "mask of want", i);
    }
    return h;
}
