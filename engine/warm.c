#include "engine/warm.h"

#include <errno.h>
#include <stdlib.h>

#include "base/try.h"

/* The steps' inputs: [max_rows] each. */
struct warming {
    const struct model *m;
    const struct be_ops *ops;
    struct be *be;
    const struct engine_opts *opts;
    uint32_t n_windows, n_states;
    int32_t *token;
    struct engine_seq *seq;
    struct engine_want *want;
    /* [max_rows + 1], and entries of the page tables: at most one for each row */
    uint32_t *start, *page, *window;
    uint64_t step;
    /* sequences of the last passes that drafted */
    uint32_t n_drafting;
};

/* Returns the largest number of rows of a step, each of a sequence of its own with a want. */
static uint32_t warm_most_seqs(const struct warming *w) {
    const struct model_shape *s = &w->m->shape;
    uint32_t most = MIN(MIN(w->opts->max_rows, w->opts->max_seqs), w->opts->max_wants);

    if (s->state.n_layer || s->drafts)
        return MIN(most, w->n_states);
    return most;
}

/* Fills in the first @n entries of the page tables. Pages are used again where there are too few:
 * what the rows compute does not matter. */
static void warm_use_pages(struct warming *w, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        w->page[i] = i % w->opts->n_pages;
        if (w->n_windows)
            w->window[i] = i % w->n_windows;
        else
            w->window[i] = w->page[i];
    }
}

/* Lays out @n rows in one sequence or, with @apart, in one each. Returns the number of
 * sequences. */
static uint32_t warm_lay_out(struct warming *w, uint32_t n, bool apart) {
    uint32_t tokens = w->opts->page_tokens, n_seqs = 1, each = n;
    uint32_t n_pages = (n + tokens - 1) / tokens;

    if (apart) {
        n_seqs = n_pages = n;
        each = 1;
    }
    for (uint32_t i = 0; i < n; i++)
        w->token[i] = (int32_t)((i * 7919u + 11) % w->m->shape.n_vocab);
    warm_use_pages(w, n_pages);
    for (uint32_t i = 0; i < n_seqs; i++) {
        w->start[i] = i;
        w->seq[i] = (struct engine_seq){
            .row0 = i, .n_rows = each, .state_slot = i, .begins = true, .feed = -1};
        w->want[i] = (struct engine_want){.row = i + each - 1, .what = WANT_SAMPLE};
    }
    w->start[n_seqs] = n_pages;
    return n_seqs;
}

/* Lays out @n_seqs sequences that draft @block tokens each behind the row that warm_lay_out() gave
 * them. */
static void warm_lay_out_drafts(struct warming *w, uint32_t n_seqs, uint32_t block) {
    uint32_t tokens = w->opts->page_tokens, n_pages = (1 + block + tokens - 1) / tokens;

    for (uint32_t i = 0; i < n_seqs; i++) {
        w->seq[i] = (struct engine_seq){.row0 = i * block,
                                        .n_rows = block,
                                        .pos0 = 1,
                                        .n_prompt = 1,
                                        .state_slot = i,
                                        .n_draft = (uint16_t)(block - 1),
                                        .feed = -1};
        w->start[i] = i * n_pages;
        for (uint32_t r = 0; r < block; r++)
            w->want[i * block + r] =
                (struct engine_want){.row = i * block + r, .what = WANT_SAMPLE};
    }
    w->start[n_seqs] = n_seqs * n_pages;
    warm_use_pages(w, n_seqs * n_pages);
}

/* Runs @pass over @n rows, of which @n_wants are wanted. */
static int warm_step(struct warming *w, uint32_t pass, uint32_t n, uint32_t n_seqs,
                     uint32_t n_wants) {
    const struct engine_param greedy = {
        .top_p = 1, .repetition = 1, .tokens = w->token, .n_prompt = n, .n_tokens = n};
    const struct engine_batch batch = {.step = ++w->step,
                                       .model = (uint16_t)pass,
                                       .n_rows = n,
                                       .n_seqs = n_seqs,
                                       .n_wants = n_wants,
                                       .n_params = 1,
                                       .token = w->token,
                                       .seq = w->seq,
                                       .want = w->want,
                                       .param = &greedy,
                                       .table[KV_GLOBAL] = {w->start, w->page},
                                       .table[KV_WINDOW] = {w->start, w->window}};
    struct engine_result out;
    struct step *s;

    TRY(w->ops->begin(w->be, &batch, &s));
    TRY(model_forward(w->m, w->ops, s, pass, NULL));
    TRY(w->ops->sample(s));
    return w->ops->end(s, &out);
}

/* Runs each pass that drafts, with up to @n rows of sequences that a step before has begun. */
static int warm_drafts(struct warming *w, uint32_t n) {
    const struct model_shape *s = &w->m->shape;
    uint32_t block = MAX(s->n_block, 1u);
    uint32_t n_rows = MIN(n, MIN(w->opts->max_rows, w->opts->max_wants));
    uint32_t n_seqs = MIN(n_rows / block, warm_most_seqs(w));

    if (n_seqs == w->n_drafting || block >= w->opts->max_context)
        return 0;
    w->n_drafting = n_seqs;
    for (uint32_t i = 0; i < s->drafts; i++) {
        warm_lay_out_drafts(w, n_seqs, block);
        TRY(warm_step(w, PASS_DRAFT + i, n_seqs * block, n_seqs, n_seqs * block));
    }
    return 0;
}

/* Runs the steps, as large as the options allow; sizes that come out equal are one step. */
static int warm_run(struct warming *w) {
    uint32_t last[2] = {0},
             most[2] = {MIN(w->opts->max_rows, w->opts->max_context), warm_most_seqs(w)};
    bool apart;

    for (uint32_t i = 0, n; (n = w->ops->warm(w->be, i, &apart)) > 0; i++) {
        uint32_t n_rows = MIN(n, most[apart]);

        if (n_rows != last[apart]) {
            uint32_t n_seqs = warm_lay_out(w, n_rows, apart);

            TRY(warm_step(w, PASS_MODEL, n_rows, n_seqs, n_seqs));
        }
        last[apart] = n_rows;
        if (apart)
            TRY(warm_drafts(w, n));
    }
    return 0;
}

int warm_device(const struct model *m, const struct be_ops *ops, struct be *be,
                const struct engine_opts *opts, uint32_t n_windows, uint32_t n_states) {
    struct warming w = {
        .m = m, .ops = ops, .be = be, .opts = opts, .n_windows = n_windows, .n_states = n_states};
    size_t n = opts->max_rows;
    int r = -ENOMEM;

    if (!ops->warm)
        return 0;
    w.token = calloc(n, sizeof(*w.token));
    w.seq = calloc(n, sizeof(*w.seq));
    w.want = calloc(n, sizeof(*w.want));
    w.start = calloc(3 * n + 1, sizeof(*w.start));
    if (w.token && w.seq && w.want && w.start) {
        w.page = w.start + n + 1;
        w.window = w.page + n;
        r = warm_run(&w);
    }
    free(w.token);
    free(w.seq);
    free(w.want);
    free(w.start);
    return r;
}
