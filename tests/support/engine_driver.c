#include "tests/support/engine_driver.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "engine/backend.h"

/* A batch and the arrays it points to. */
struct driver_batch {
    struct engine_batch b;
    int32_t *token;
    struct engine_seq *seq;
    struct engine_want *want;
    struct engine_param *param;
    uint32_t *start, *page;
    struct driver_part *part;
    /* [max_wants] */
    uint32_t *want_part;
};

static void *must(void *p) {
    if (!p)
        abort();
    return p;
}

static struct driver_batch *new_batch(const struct driver *d) {
    struct driver_batch *b = must(calloc(1, sizeof(*b)));
    const struct driver_opts *o = &d->opts;

    b->token = must(calloc(o->max_rows, sizeof(*b->token)));
    b->seq = must(calloc(o->max_seqs, sizeof(*b->seq)));
    b->want = must(calloc(o->max_wants, sizeof(*b->want)));
    b->param = must(calloc(o->max_seqs, sizeof(*b->param)));
    b->start = must(calloc(o->max_seqs + 1, sizeof(*b->start)));
    b->page = must(calloc(o->n_listed, sizeof(*b->page)));
    b->part = must(calloc(o->max_seqs, sizeof(*b->part)));
    b->want_part = must(calloc(o->max_wants, sizeof(*b->want_part)));
    return b;
}

static void free_batch(struct driver_batch *b) {
    if (!b)
        return;
    free(b->token);
    free(b->seq);
    free(b->want);
    free(b->param);
    free(b->start);
    free(b->page);
    free(b->part);
    free(b->want_part);
    free(b);
}

static void fill_pages(struct driver *d) {
    struct rng rng = {d->opts.shuffle};

    d->n_free = d->opts.n_pages;
    d->free_page = must(calloc(d->n_free, sizeof(*d->free_page)));
    for (uint32_t i = 0; i < d->n_free; i++) {
        uint32_t j = rng_below(&rng, i + 1);

        d->free_page[i] = d->free_page[j];
        d->free_page[j] = i;
    }
}

static bool has_slots(const struct driver *d) {
    return d->info->n_states > 0 || d->info->n_slots > 0;
}

static void fill_states(struct driver *d) {
    d->n_free_states = MAX(d->info->n_states, d->info->n_slots);
    d->free_state = must(calloc(d->n_free_states + 1, sizeof(*d->free_state)));
    for (uint32_t i = 0; i < d->n_free_states; i++)
        d->free_state[i] = i;
}

int driver_open(struct driver *d, const struct driver_opts *opts, struct err *err) {
    *d = (struct driver){.opts = *opts};
    struct driver_opts *o = &d->opts;
    o->backend = o->backend ? o->backend : "reference";
    o->isa = o->isa ? o->isa : "auto";
    o->n_threads = o->n_threads ? o->n_threads : 1;
    o->n_pages = o->n_pages ? o->n_pages : 64;
    o->page_tokens = o->page_tokens ? o->page_tokens : 16;
    o->max_rows = o->max_rows ? o->max_rows : 512;
    o->max_seqs = o->max_seqs ? o->max_seqs : 32;
    o->max_wants = o->max_wants ? o->max_wants : o->max_rows;
    o->n_listed = o->n_listed ? o->n_listed : o->n_pages;

    int r = gguf_open(&d->file, o->path, err);
    if (r == 0 && o->block)
        r = gguf_open(&d->block, o->block, err);
    if (r == 0 && o->projector)
        r = gguf_open(&d->projector, o->projector, err);
    if (r < 0)
        return r;
    struct engine_opts e = {
        .file = d->file,
        .block = d->block,
        .backend = o->backend,
        .isa = o->isa,
        .n_threads = o->n_threads,
        .n_pages = o->n_pages,
        .page_tokens = o->page_tokens,
        .max_rows = o->max_rows,
        .max_seqs = o->max_seqs,
        .max_wants = o->max_wants,
        .n_host_pages = o->n_host_pages,
        .n_snapshots = o->n_snapshots,
        .host_kv_bytes = o->host_kv_bytes,
        .kv_type = o->kv_type,
        .digest = true,
        .keep_fd = o->keep_fd,
        .devices = o->devices,
        .host_experts = o->host_experts,
        .device_layers = o->device_layers,
        .experts_fd = o->experts_fd,
        .keeps_place = o->keeps_place,
        .fetches_experts = o->fetches_experts,
        .drafts = o->drafts,
        .projector = d->projector,
        .picture_rows = o->picture_rows,
        .step_progress = opts->step_progress,
    };
    r = engine_new(&d->engine, &e, err);
    if (r < 0) {
        d->file = gguf_free(d->file);
        d->block = gguf_free(d->block);
        d->projector = gguf_free(d->projector);
        return r;
    }
    d->info = engine_info(d->engine);
    fill_pages(d);
    fill_states(d);
    for (int i = 0; i < 2; i++)
        d->batch[i] = new_batch(d);
    return 0;
}

void driver_close(struct driver *d) {
    engine_free(d->engine);
    gguf_free(d->file);
    gguf_free(d->block);
    gguf_free(d->projector);
    free(d->free_page);
    free(d->free_state);
    for (int i = 0; i < 2; i++)
        free_batch(d->batch[i]);
    *d = (struct driver){0};
}

struct driver_seq *driver_add(struct driver *d, const int32_t *prompt, uint32_t n_prompt,
                              uint32_t n_max, const struct engine_param *param) {
    static const struct engine_param greedy = {.top_p = 1, .repetition = 1};
    uint32_t cap = n_prompt + n_max,
             n_pages = (cap + d->opts.page_tokens - 1) / d->opts.page_tokens;

    if (n_pages > d->n_free || cap > d->info->max_context ||
        (has_slots(d) && d->n_free_states == 0))
        return NULL;
    struct driver_seq *s = must(calloc(1, sizeof(*s)));
    *s = (struct driver_seq){
        .token = must(calloc(cap + 1, sizeof(*s->token))),
        .n_prompt = n_prompt,
        .n_tokens = n_prompt,
        .cap = cap,
        .page = must(calloc(n_pages, sizeof(*s->page))),
        .n_pages = n_pages,
        .out = must(calloc(n_max + 1, sizeof(*s->out))),
        .param = param ? *param : greedy,
    };
    memcpy(s->token, prompt, n_prompt * sizeof(*prompt));
    for (uint32_t i = 0; i < n_pages; i++)
        s->page[i] = d->free_page[--d->n_free];
    if (has_slots(d))
        s->state_slot = d->free_state[--d->n_free_states];
    return s;
}

void driver_share(struct driver *d, struct driver_seq *s, const struct driver_seq *first,
                  uint32_t shared) {
    s->n_shared = shared / d->opts.page_tokens;
    memcpy(d->free_page + d->n_free, s->page, s->n_shared * sizeof(*s->page));
    d->n_free += s->n_shared;
    memcpy(s->page, first->page, s->n_shared * sizeof(*s->page));
    s->n_computed = s->launched = shared;
}

struct driver_seq *driver_drop(struct driver *d, struct driver_seq *s) {
    if (!s)
        return NULL;
    for (uint32_t i = s->n_shared; i < s->n_pages; i++)
        d->free_page[d->n_free++] = s->page[i];
    if (has_slots(d))
        d->free_state[d->n_free_states++] = s->state_slot;
    free(s->token);
    free(s->page);
    free(s->out);
    free(s);
    return NULL;
}

/* Reports that the device is lost; the message precedes the end of the process. */
static void lose(const struct driver *d) {
    printf("the device is lost: %s\n", engine_fault(d->engine));
    fflush(stdout);
    abort();
}

/* -- steps
 * --------------------------------------------------------------------------------------- */

static void add_want(struct driver *d, struct driver_batch *b, uint32_t part, uint32_t row,
                     uint32_t out_pos, enum engine_what what) {
    assert(b->b.n_wants < d->opts.max_wants);
    b->want_part[b->b.n_wants] = part;
    b->want[b->b.n_wants++] = (struct engine_want){
        .row = row,
        .param = part,
        .out_pos = out_pos,
        .what = (uint8_t)what,
        .n_top = b->part[part].seq->n_top,
        .logprob = true,
    };
}

/* Returns the index of the want of the step before that samples the last token of @s. */
static int32_t feed_of(const struct driver *d, const struct driver_seq *s) {
    const struct driver_batch *before = d->batch[d->step % 2];
    int32_t found = -1;

    for (uint32_t i = 0; i < before->b.n_wants; i++)
        if (before->part[before->want_part[i]].seq == s)
            found = (int32_t)i; /* the last of the sequence's wants */
    assert(found >= 0);
    return found;
}

/* Adds a part. @before: the step that samples the token of row 0 is still in flight. */
static void add_part(struct driver *d, struct driver_batch *b, uint32_t i, bool before) {
    struct driver_seq *s = b->part[i].seq;
    uint32_t n = b->part[i].n_rows, pos0 = s->launched, row0 = b->b.n_rows;
    bool fed = pos0 >= s->n_tokens;

    assert(!fed || (before && n == 1 && pos0 == s->n_tokens));
    assert(n > 0 && pos0 + n <= s->cap && row0 + n <= d->opts.max_rows);
    b->seq[i] = (struct engine_seq){
        .row0 = row0,
        .n_rows = n,
        .pos0 = pos0,
        .n_prompt = s->n_prompt,
        .state_slot = s->state_slot,
        .begins = pos0 == 0,
        .feed = fed ? feed_of(d, s) : -1,
        .picture = s->picture,
    };
    while (b->seq[i].n_pictures < s->n_pictures && s->picture[b->seq[i].n_pictures].at < pos0 + n)
        b->seq[i].n_pictures++;
    for (uint32_t r = 0; r < n; r++)
        b->token[row0 + r] = fed ? 0 : s->token[pos0 + r];
    b->param[i] = s->param;
    b->param[i].tokens = s->token;
    b->param[i].n_prompt = s->n_prompt;
    b->param[i].n_tokens = s->n_tokens;
    assert(b->start[i] + s->n_pages <= d->opts.n_listed);
    memcpy(b->page + b->start[i], s->page, s->n_pages * sizeof(*s->page));
    b->start[i + 1] = b->start[i] + s->n_pages;
    for (uint32_t r = 0; r < n; r++) {
        uint32_t next = pos0 + r + 1; /* position that the row's sample would have */

        if (s->vectors)
            add_want(d, b, i, row0 + r, 0, WANT_HIDDEN);
        if (next >= s->n_tokens || s->every_row)
            add_want(d, b, i, row0 + r, next >= s->n_prompt ? next - s->n_prompt : 0, WANT_SAMPLE);
    }
    b->b.n_rows += n;
    s->launched += n;
}

void driver_launch(struct driver *d, const struct driver_part *part, uint32_t n) {
    struct driver_batch *b = d->batch[(d->step + 1) % 2];

    assert(n <= d->opts.max_seqs);
    b->b = (struct engine_batch){
        .step = d->step + 1,
        .holes = d->holes,
        .n_seqs = n,
        .n_params = n,
        .token = b->token,
        .seq = b->seq,
        .want = b->want,
        .param = b->param,
        .table[KV_GLOBAL] = {b->start, b->page},
    };
    memcpy(b->part, part, n * sizeof(*part));
    b->start[0] = 0;
    for (uint32_t i = 0; i < n; i++)
        add_part(d, b, i, d->step > 0);
    if (engine_launch(d->engine, &b->b) < 0)
        lose(d);
    d->step++;
    for (uint32_t i = 0; i < b->b.n_wants; i++)
        if (b->part[b->want_part[i]].seq->mask &&
            engine_mask(d->engine, d->step, i, b->part[b->want_part[i]].seq->mask) < 0)
            lose(d);
    if (engine_seal(d->engine, d->step) < 0)
        lose(d);
}

static void take_out(struct driver *d, struct driver_batch *b, uint32_t want,
                     const struct engine_out *o) {
    struct driver_seq *s = b->part[b->want_part[want]].seq;
    const struct engine_seq *q = &b->seq[b->want_part[want]];
    uint32_t pos = q->pos0 + b->want[want].row - q->row0;

    if (d->opts.on_out)
        d->opts.on_out(d->opts.ctx, s, pos, o, o->vector ? NULL : engine_peek(d->engine, want));
    if (o->vector || pos + 1 < s->n_tokens || s->n_tokens > s->cap)
        return;
    s->out[s->n_out] = (struct driver_out){o->token, o->logprob, o->digest};
    s->token[s->n_tokens++] = s->forced ? s->forced[s->n_out] : o->token;
    s->n_out++;
}

/* Waits for the oldest step in flight, which is @step. */
static void wait_for(struct driver *d, uint64_t step) {
    struct driver_batch *b = d->batch[step % 2];
    struct engine_result r;

    if (engine_wait(d->engine, step, &r) < 0)
        lose(d);
    for (uint32_t i = 0; i < b->b.n_seqs; i++)
        b->part[i].seq->n_computed += b->part[i].n_rows;
    for (uint32_t i = 0; i < r.n_outs; i++)
        take_out(d, b, i, &r.out[i]);
    d->waited = step;
}

void driver_wait(struct driver *d) {
    wait_for(d, d->waited + 1);
}

/* Begins a step of a pass that drafts, without sequences. */
static struct driver_batch *begin_drafts(struct driver *d, uint32_t pass) {
    struct driver_batch *b = d->batch[(d->step + 1) % 2];

    assert(d->waited == d->step);
    b->b = (struct engine_batch){
        .step = ++d->step,
        .model = (uint16_t)pass,
        .token = b->token,
        .seq = b->seq,
        .want = b->want,
        .param = b->param,
        .table[KV_GLOBAL] = {b->start, b->page},
    };
    b->start[0] = 0;
    return b;
}

/* Adds @s with @n rows from the position of its newest token on; the caller sets tokens and
 * wants. */
static struct engine_seq *add_drafting(struct driver_batch *b, struct driver_seq *s, uint32_t n) {
    uint32_t i = b->b.n_seqs++;

    assert(s->n_computed + 1 == s->n_tokens);
    b->part[i].seq = s;
    b->seq[i] = (struct engine_seq){.row0 = b->b.n_rows,
                                    .n_rows = n,
                                    .pos0 = s->n_computed,
                                    .n_prompt = s->n_prompt,
                                    .state_slot = s->state_slot,
                                    .feed = -1,
                                    .n_pictures = s->n_pictures,
                                    .picture = s->picture};
    b->param[i] = s->param;
    b->param[i].tokens = s->token;
    b->param[i].n_prompt = s->n_prompt;
    b->param[i].n_tokens = s->n_tokens;
    memcpy(b->page + b->start[i], s->page, s->n_pages * sizeof(*s->page));
    b->start[i + 1] = b->start[i] + s->n_pages;
    b->b.n_rows += n;
    b->b.n_params++;
    return &b->seq[i];
}

static struct engine_result run_drafts(struct driver *d, struct driver_batch *b) {
    struct engine_result r;

    if (engine_launch(d->engine, &b->b) < 0 || engine_seal(d->engine, d->step) < 0 ||
        engine_wait(d->engine, d->step, &r) < 0)
        lose(d);
    d->waited = d->step;
    return r;
}

void driver_draft(struct driver *d, struct driver_seq *const *seq, uint32_t n_seqs,
                  uint32_t n_ahead) {
    struct driver_batch *b = begin_drafts(d, 1 + (d->info->draft_passes > 1 ? n_ahead : 0));

    assert(n_seqs <= d->opts.max_seqs && n_ahead < ENGINE_DRAFT_MAX);
    for (uint32_t i = 0; i < n_seqs; i++) {
        struct driver_seq *s = seq[i];
        struct engine_seq *q = add_drafting(b, s, 1);

        assert(s->n_tokens + n_ahead <= s->cap);
        if (d->info->borrows)
            q->n_ahead = (uint16_t)n_ahead;
        else
            q->pos0 += n_ahead;
        b->token[i] = n_ahead ? s->draft[n_ahead - 1] : s->token[s->n_computed];
        add_want(d, b, i, i, s->n_tokens - s->n_prompt + n_ahead, WANT_SAMPLE);
    }
    struct engine_result r = run_drafts(d, b);
    for (uint32_t i = 0; i < n_seqs; i++) {
        seq[i]->draft[n_ahead] = r.out[i].token;
        if (d->opts.on_out)
            d->opts.on_out(d->opts.ctx, seq[i], seq[i]->n_computed + n_ahead, &r.out[i],
                           engine_peek(d->engine, i));
    }
}

void driver_block(struct driver *d, struct driver_seq *const *seq, uint32_t n_seqs) {
    struct driver_batch *b = begin_drafts(d, 1);
    uint32_t n = d->info->n_block;

    assert(n_seqs <= d->opts.max_seqs && n > 0);
    for (uint32_t i = 0; i < n_seqs; i++) {
        struct driver_seq *s = seq[i];
        struct engine_seq *q = add_drafting(b, s, n);

        assert(s->n_computed + n <= s->cap);
        q->n_draft = (uint16_t)(n - 1);
        for (uint32_t r = 0; r < n; r++) {
            b->token[q->row0 + r] = r ? d->info->mask_token : s->token[s->n_computed];
            add_want(d, b, i, q->row0 + r, s->n_computed + r - s->n_prompt, WANT_SAMPLE);
        }
    }
    struct engine_result r = run_drafts(d, b);
    for (uint32_t i = 0; i < r.n_outs; i++) {
        struct driver_seq *s = seq[b->want_part[i]];
        uint32_t row = b->want[i].row - b->seq[b->want_part[i]].row0;

        if (row >= d->info->first_draft)
            s->draft[row - d->info->first_draft] = r.out[i].token;
        if (d->opts.on_out)
            d->opts.on_out(d->opts.ctx, s, s->n_computed + row, &r.out[i],
                           engine_peek(d->engine, i));
    }
}

void driver_step(struct driver *d, const struct driver_part *part, uint32_t n) {
    driver_launch(d, part, n);
    driver_wait(d);
}

/* Runs a step that only makes the copy. */
static void copy_state(struct driver *d, const struct engine_copy *copy) {
    struct driver_batch *b = d->batch[(d->step + 1) % 2];
    struct engine_result r;

    assert(d->waited == d->step);
    b->start[0] = 0;
    b->b = (struct engine_batch){
        .step = ++d->step, .before = copy, .n_before = 1, .table[KV_GLOBAL] = {b->start, b->page}};
    if (engine_launch(d->engine, &b->b) < 0 || engine_seal(d->engine, d->step) < 0 ||
        engine_wait(d->engine, d->step, &r) < 0)
        lose(d);
    d->waited = d->step;
}

void driver_save(struct driver *d, const struct driver_seq *s, uint32_t i) {
    const struct engine_copy copy = {.src = s->state_slot, .dst = i, .dir = COPY_STATE_SAVE};

    copy_state(d, &copy);
}

void driver_load(struct driver *d, struct driver_seq *s, uint32_t i, uint32_t n_tokens) {
    const struct engine_copy copy = {.src = i, .dst = s->state_slot, .dir = COPY_STATE_LOAD};

    assert(n_tokens <= s->n_computed);
    copy_state(d, &copy);
    s->n_computed = s->launched = n_tokens;
}

void driver_prefill(struct driver *d, struct driver_seq *s, uint32_t chunk) {
    if (!chunk || chunk > d->opts.max_rows)
        chunk = d->opts.max_rows;
    while (s->n_computed < s->n_prompt)
        driver_step(d, &(struct driver_part){s, MIN(chunk, s->n_prompt - s->n_computed)}, 1);
}

void driver_decode(struct driver *d, struct driver_seq *const *seq, uint32_t n_seqs, uint32_t n,
                   bool overlap) {
    struct driver_part *part = must(calloc(n_seqs + 1, sizeof(*part)));

    for (uint32_t i = 0; i < n_seqs; i++)
        part[i] = (struct driver_part){seq[i], 1};
    for (uint32_t i = 0; i < n; i++) {
        driver_launch(d, part, n_seqs);
        if (!overlap || i > 0)
            driver_wait(d);
    }
    if (overlap && n > 0)
        driver_wait(d);
    free(part);
}
