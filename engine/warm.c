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
};

/* Returns the largest number of rows of a step, each of a sequence of its own with a want. */
static uint32_t warm_most_seqs(const struct warming *w) {
    const struct model_shape *s = &w->m->shape;
    uint32_t most = MIN(MIN(w->opts->max_rows, w->opts->max_seqs), w->opts->max_wants);

    if (s->state.n_layer || s->drafts)
        return MIN(most, w->n_states);
    return most;
}

/* Lays out @n rows in one sequence or, with @apart, in one each. Pages are used again where there
 * are too few: what the rows compute does not matter. Returns the number of sequences. */
static uint32_t warm_lay_out(struct warming *w, uint32_t n, bool apart) {
    uint32_t tokens = w->opts->page_tokens, n_seqs = 1, each = n;
    uint32_t n_pages = (n + tokens - 1) / tokens;

    if (apart) {
        n_seqs = n_pages = n;
        each = 1;
    }
    for (uint32_t i = 0; i < n; i++)
        w->token[i] = (int32_t)((i * 7919u + 11) % w->m->shape.n_vocab);
    for (uint32_t i = 0; i < n_pages; i++) {
        w->page[i] = i % w->opts->n_pages;
        if (w->n_windows)
            w->window[i] = i % w->n_windows;
        else
            w->window[i] = w->page[i];
    }
    for (uint32_t i = 0; i < n_seqs; i++) {
        w->start[i] = i;
        w->seq[i] = (struct engine_seq){
            .row0 = i, .n_rows = each, .state_slot = i, .begins = true, .feed = -1};
        w->want[i] = (struct engine_want){.row = i + each - 1, .what = WANT_SAMPLE};
    }
    w->start[n_seqs] = n_pages;
    return n_seqs;
}

static int warm_step(struct warming *w, uint32_t n, bool apart) {
    uint32_t n_seqs = warm_lay_out(w, n, apart);
    const struct engine_param greedy = {
        .top_p = 1, .repetition = 1, .tokens = w->token, .n_prompt = n, .n_tokens = n};
    const struct engine_batch batch = {.step = ++w->step,
                                       .n_rows = n,
                                       .n_seqs = n_seqs,
                                       .n_wants = n_seqs,
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
    TRY(model_forward(w->m, w->ops, s, 0, NULL));
    TRY(w->ops->sample(s));
    return w->ops->end(s, &out);
}

/* Runs the steps, as large as the options allow; sizes that come out equal are one step. */
static int warm_run(struct warming *w) {
    uint32_t last[2] = {0},
             most[2] = {MIN(w->opts->max_rows, w->opts->max_context), warm_most_seqs(w)};
    bool apart;

    for (uint32_t i = 0, n; (n = w->ops->warm(w->be, i, &apart)) > 0; i++) {
        n = MIN(n, most[apart]);
        if (n == last[apart])
            continue;
        last[apart] = n;
        TRY(warm_step(w, n, apart));
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
