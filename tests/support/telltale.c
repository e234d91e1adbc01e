#include "tests/support/telltale.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "tests/support/telltale_block.h"
#include "tests/support/telltale_check.h"
#include "tests/support/telltale_text.h"
#include "tests/support/telltale_time.h"

/* A step that was launched. */
struct flight {
    /* NULL: none */
    const struct engine_batch *batch;
    /* check_sum() at the launch */
    uint64_t sum;
    /* check_masks() at the seal */
    uint64_t mask_sum;
    /* [max_wants] */
    const uint32_t **mask;
    int64_t end_ns;
    bool sealed;
};

struct results {
    /* [max_wants] */
    struct engine_out *out;
    /* [max_wants][ENGINE_TOP_MAX] */
    struct engine_top *top;
    /* [max_wants][n_embd] */
    float *vector;
};

/* The picture that is being computed. */
struct drawn {
    /* NULL: none */
    const uint8_t *rgb;
    struct picture_layout layout;
    /* pixels */
    uint64_t left;
    float *out;
};

/* State of a recurrent layer: the hash of what was read up to a position. */
struct state {
    uint64_t read;
    uint32_t end;
};

struct engine {
    struct telltale set;
    struct engine_opts opts;
    struct engine_info info;
    struct batch_rules rules;
    /* [n_pages + n_host_pages][page_tokens] */
    struct cell *cells[KV_CLASSES];
    /* [info.n_windows][page_tokens] */
    struct cell *windows;
    /* [max_rows] hashes of the step that is computed */
    uint64_t *row_hash;
    uint32_t *row_seq;
    /* [n_states + n_snapshots] */
    struct state *state;
    /* [info.n_slots] */
    struct block_slot *block;
    /* [max_rows] scratch of sample() */
    int32_t *more;
    /* Steps: step n is in [n % 2]. */
    struct flight flight[2];
    struct results result[2];
    struct fed fed[2];
    uint64_t n_launched, n_waited;
    /* time when the last launched step ends */
    int64_t busy_ns;
    bool lost, lost_drafting;
    struct telltale_seen seen;
    struct drawn drawn;
};

static struct telltale settings;

static void fill_in(struct telltale *t, uint32_t n_vocab) {
    t->n_vocab = t->n_vocab ? t->n_vocab : n_vocab;
    t->n_embd = t->n_embd ? t->n_embd : 8;
    t->max_context = t->max_context ? t->max_context : 65536;
    t->depth = t->depth ? t->depth : 1;
    t->picture_piece = t->picture_piece ? t->picture_piece : 64;
    t->classes = t->classes ? t->classes : 1u << KV_GLOBAL;
    if (t->first == 0 && t->last == 0)
        t->last = (int32_t)t->n_vocab - 1;
    assert(t->depth <= 2 && t->classes < 1u << KV_CLASSES && t->end_per_1024 <= 1024);
    assert(t->first >= 0 && t->first <= t->last && (uint32_t)t->last < t->n_vocab);
    assert(t->end >= 0 && (uint32_t)t->end < t->n_vocab);
}

void telltale_set(const struct telltale *t) {
    settings = t ? *t : (struct telltale){0};
}

void telltale_seen(const struct engine *e, struct telltale_seen *out) {
    *out = e->seen;
}

void telltale_fail(struct engine *e, bool at_wait) {
    if (at_wait)
        e->set.fail_wait = e->n_waited + 1;
    else
        e->set.fail_launch = e->n_launched + 1;
}

void telltale_hang(struct engine *e, int64_t ns) {
    e->set.hang_step = e->n_launched + 1;
    e->set.hang_ns = ns;
}

static int alloc_flights(struct engine *e) {
    size_t n = e->opts.max_wants;
    bool ok = true;

    for (int i = 0; i < 2; i++) {
        struct results *r = &e->result[i];

        e->flight[i].mask = calloc(n, sizeof(*e->flight[i].mask));
        r->out = calloc(n, sizeof(*r->out));
        r->top = calloc(n * ENGINE_TOP_MAX, sizeof(*r->top));
        r->vector = calloc(n * e->set.n_embd, sizeof(*r->vector));
        e->fed[i].pos = calloc(n, sizeof(*e->fed[i].pos));
        e->fed[i].token = calloc(n, sizeof(*e->fed[i].token));
        ok = ok && e->flight[i].mask && r->out && r->top && r->vector && e->fed[i].pos &&
             e->fed[i].token;
    }
    return ok ? 0 : -ENOMEM;
}

static int alloc_pages(struct engine *e) {
    size_t n = e->opts.n_pages, n_cells = (n + e->opts.n_host_pages) * e->opts.page_tokens;
    struct rng r = {e->set.poison};

    for (uint32_t cls = 0; cls < KV_CLASSES; cls++) {
        if (!(e->set.classes >> cls & 1))
            continue;
        e->cells[cls] = calloc(n_cells, sizeof(*e->cells[cls]));
        e->rules.reader[cls] = calloc(n, sizeof(*e->rules.reader[cls]));
        e->rules.writer[cls] = calloc(n, sizeof(*e->rules.writer[cls]));
        if (!e->cells[cls] || !e->rules.reader[cls] || !e->rules.writer[cls])
            return -ENOMEM;
        for (size_t i = 0; i < n_cells; i++)
            e->cells[cls][i] = (struct cell){
                .context = rng_next(&r),
                .after = rng_next(&r),
                .token = (int32_t)rng_below(&r, e->set.n_vocab),
                .pos = rng_below(&r, e->set.max_context),
            };
    }
    n = e->rules.n_windows;
    e->windows = calloc(n * e->opts.page_tokens + 1, sizeof(*e->windows));
    for (size_t i = 0; e->windows && i < n * e->opts.page_tokens; i++)
        e->windows[i] = (struct cell){.context = rng_next(&r), .after = rng_next(&r)};
    if (n > 0) {
        e->rules.reader[KV_WINDOW] = calloc(n, sizeof(**e->rules.reader));
        e->rules.writer[KV_WINDOW] = calloc(n, sizeof(**e->rules.writer));
    }
    if (!e->windows || (n > 0 && (!e->rules.reader[KV_WINDOW] || !e->rules.writer[KV_WINDOW])))
        return -ENOMEM;
    e->row_hash = calloc(e->opts.max_rows, sizeof(*e->row_hash));
    e->row_seq = calloc(e->opts.max_rows, sizeof(*e->row_seq));
    e->more = calloc(e->opts.max_rows, sizeof(*e->more));
    e->state = calloc((size_t)e->opts.n_states + e->opts.n_snapshots + 1, sizeof(*e->state));
    uint32_t n_slots = e->opts.n_states ? e->opts.n_states : e->opts.max_seqs;
    e->rules.n_slots = e->opts.drafts ? n_slots : 0;
    e->rules.borrows = e->opts.drafts && e->set.borrows;
    e->block = calloc((size_t)e->rules.n_slots + 1, sizeof(*e->block));
    e->rules.slot_used = calloc((size_t)n_slots + 1, sizeof(*e->rules.slot_used));
    return e->row_hash && e->row_seq && e->more && e->state && e->block && e->rules.slot_used
               ? 0
               : -ENOMEM;
}

static void describe(struct engine *e) {
    e->info = (struct engine_info){
        .arch = "telltale",
        .backend = "telltale",
        .isa = "generic",
        .name = "telltale",
        .n_vocab = e->set.n_vocab,
        .n_embd = e->set.n_embd,
        .n_layer = 1,
        .max_context = e->opts.max_context,
        .page_tokens = e->opts.page_tokens,
        .n_pages = e->opts.n_pages,
        .n_host_pages = e->opts.n_host_pages,
        .n_states = e->opts.n_states,
        .n_snapshots = e->opts.n_snapshots,
        .n_slots = e->rules.n_slots,
        .borrows = e->rules.borrows,
        .picture_width = e->set.picture_width,
        .two_way = e->set.two_way,
        .n_windows = e->rules.n_windows,
        .window = e->rules.window,
        .window_seqs = e->opts.max_seqs,
        .state_bytes = e->opts.n_states ? sizeof(struct state) : 0,
        .n_threads = 1,
        .n_devices = e->set.device ? 1 : 0,
        .address = {""},
        .n_host_ffn = e->set.host_part ? 1 : 0,
        .hidden = true,
        .depth = e->set.depth,
        .weight_bytes = 1,
        .page_bytes = e->opts.page_tokens * sizeof(struct cell),
        .n_params = 1,
        .fingerprint = "telltale engine",
    };
    if (e->opts.file)
        gguf_fingerprint(e->opts.file, e->info.fingerprint);
}

static uint32_t vocabulary(const struct gguf *file) {
    const struct gguf_array *tokens = file ? gguf_array(file, "tokenizer.ggml.tokens") : NULL;

    return tokens ? (uint32_t)gguf_array_n(tokens) : 256;
}

int engine_new(struct engine **out, const struct engine_opts *opts, struct err *err) {
    uint32_t t = opts->page_tokens;

    if (t == 0 || t > 256 || (t & (t - 1)) != 0)
        return err_set(err, 0, NULL, "page_tokens %u is not a power of two up to 256", t);
    if (opts->max_rows == 0 || opts->max_seqs == 0 || opts->max_wants == 0)
        return err_set(err, 0, NULL, "max_rows, max_seqs and max_wants must be given");
    CLEANUP(engine_freep) struct engine *e = calloc(1, sizeof(*e));
    if (!e)
        return -ENOMEM;
    e->set = settings;
    fill_in(&e->set, vocabulary(opts->file));
    e->opts = *opts;
    e->opts.max_context =
        MIN(opts->max_context ? opts->max_context : UINT32_MAX, e->set.max_context);
    if (opts->n_pages == 0)
        e->opts.n_pages = (uint32_t)(opts->kv_bytes / (t * sizeof(struct cell)));
    if (opts->n_host_pages == 0)
        e->opts.n_host_pages = (uint32_t)(opts->host_kv_bytes / (t * sizeof(struct cell)));
    if (e->opts.n_pages == 0)
        return err_set(err, 0, NULL, "no room for a single page");
    e->rules.set = &e->set;
    e->rules.opts = &e->opts;
    if (opts->windows && e->set.window > 0) {
        assert(e->set.n_windows > 0 && !(e->set.classes >> KV_WINDOW & 1));
        e->rules.window = e->set.window;
        e->rules.n_windows = e->set.n_windows;
    }
    if (alloc_flights(e) < 0 || alloc_pages(e) < 0)
        return -ENOMEM;
    describe(e);
    if (opts->progress)
        opts->progress(opts->progress_ctx, "telltale", 1.0);
    *out = STEAL(e);
    return 0;
}

void *engine_host_page(struct engine *e, uint32_t page) {
    return &e->cells[KV_GLOBAL][(size_t)(e->opts.n_pages + page) * e->opts.page_tokens];
}

void *engine_host_snapshot(struct engine *e, uint32_t snapshot) {
    return &e->state[e->opts.n_states + snapshot];
}

void engine_set_snapshot(struct engine *e, uint32_t snapshot, uint32_t n_tokens) {
    assert(e->state[e->opts.n_states + snapshot].end == n_tokens);
}

struct engine *engine_free(struct engine *e) {
    if (!e)
        return NULL;
    for (uint32_t cls = 0; cls < KV_CLASSES; cls++) {
        free(e->cells[cls]);
        free(e->rules.reader[cls]);
        free(e->rules.writer[cls]);
    }
    for (int i = 0; i < 2; i++) {
        free(e->flight[i].mask);
        free(e->result[i].out);
        free(e->result[i].top);
        free(e->result[i].vector);
        free(e->fed[i].pos);
        free(e->fed[i].token);
    }
    free(e->windows);
    free(e->row_hash);
    free(e->row_seq);
    free(e->more);
    free(e->state);
    free(e->block);
    free(e->rules.slot_used);
    free(e);
    return NULL;
}

/* Returns the first value of the vector. */
float engine_score(struct engine *e, const float *hidden) {
    return e->info.ranks ? hidden[0] - hidden[1] : 0;
}

void engine_widen(struct engine *e, float *pooled) {
    (void)e;
    (void)pooled;
}

const char *engine_fault(const struct engine *e) {
    (void)e;
    return "what the test asked for";
}

const struct engine_info *engine_info(const struct engine *e) {
    return &e->info;
}

/* Returns the time when the step that is launched now will end: the device computes one step after
 * the other. */
static int64_t step_end(const struct engine *e, const struct engine_batch *b) {
    const struct telltale *t = &e->set;
    int64_t start = MAX(clock_now(&t->clock->clock), e->busy_ns);

    return start + (int64_t)telltale_ns(t, b, e->info.page_tokens) +
           (b->step == t->hang_step ? t->hang_ns : 0);
}

/* Records the samples that the next step may feed from. */
static void note_fed(struct fed *f, const struct engine_batch *b) {
    f->step = b->step;
    f->n = b->n_wants;
    for (uint32_t i = 0; i < b->n_wants; i++) {
        const struct engine_want *w = &b->want[i];
        const struct engine_seq *q = check_seq_of(b, w->row);

        f->pos[i] = w->what == WANT_SAMPLE ? q->pos0 + (w->row - q->row0) : NO_FEED;
    }
}

static int lose(struct engine *e, const struct engine_batch *b) {
    e->lost = true;
    e->lost_drafting = b->model == 1;
    return -EIO;
}

int engine_launch(struct engine *e, const struct engine_batch *b) {
    struct flight *f = &e->flight[b->step % 2];

    if (e->lost)
        return -EIO;
    assert(b->step == e->n_launched + 1);
    assert(e->n_launched - e->n_waited < e->set.depth);
    assert(!e->flight[e->n_launched % 2].batch || e->flight[e->n_launched % 2].sealed);
    if (b->step == e->set.fail_launch)
        return lose(e, b);
    if (e->set.launched)
        e->set.launched(e->set.of);
    e->rules.before = &e->fed[e->n_launched % 2];
    check_batch(&e->rules, b);
    e->n_launched = b->step;
    f->batch = b;
    f->sum = check_sum(b);
    f->sealed = false;
    memset(f->mask, 0, e->opts.max_wants * sizeof(*f->mask));
    note_fed(&e->fed[b->step % 2], b);
    if (e->set.clock)
        e->busy_ns = f->end_ns = step_end(e, b);
    return 0;
}

static struct flight *flight_of(struct engine *e, uint64_t step) {
    assert(step > e->n_waited && step <= e->n_launched);
    return &e->flight[step % 2];
}

int engine_mask(struct engine *e, uint64_t step, uint32_t want, const uint32_t *bits) {
    if (e->lost)
        return -EIO;
    struct flight *f = flight_of(e, step);
    assert(!f->sealed && want < f->batch->n_wants && f->batch->want[want].what == WANT_SAMPLE);
    f->mask[want] = bits;
    return 0;
}

int engine_seal(struct engine *e, uint64_t step) {
    if (e->lost)
        return -EIO;
    struct flight *f = flight_of(e, step);
    assert(!f->sealed);
    f->sealed = true;
    f->mask_sum = check_masks(f->batch, f->mask, e->set.n_vocab);
    return 0;
}

static struct cell *cell_at(struct engine *e, uint32_t cls, uint32_t page, uint32_t i) {
    return &e->cells[cls][(size_t)page * e->opts.page_tokens + i];
}

bool telltale_is_lost(const struct engine *e) {
    return e->lost;
}

bool telltale_is_lost_drafting(const struct engine *e) {
    return e->lost_drafting;
}

bool telltale_holds(const struct engine *e, bool host, uint32_t page, int64_t parent,
                    const int32_t *tokens) {
    uint32_t t = e->opts.page_tokens, from = host ? e->opts.n_pages : 0;
    const struct cell *c = e->cells[KV_GLOBAL] + (size_t)(from + page) * t;
    const struct cell *before = e->cells[KV_GLOBAL] + ((size_t)from + (size_t)parent) * t + t - 1;
    uint64_t h = parent < 0 ? text_begin() : before->after;

    for (uint32_t i = 0; i < t; h = c[i++].after)
        if ((tokens[i] < 0 ? c[i].token >= 0 : c[i].token != tokens[i]) ||
            c[i].context != text_context(h, KV_GLOBAL) || c[i].pos % t != i)
            return false;
    return true;
}

bool telltale_is_state(const struct engine *e, uint32_t snapshot, bool host, uint32_t page) {
    const struct state *s = &e->state[e->opts.n_states + snapshot];
    size_t number = page + (host ? e->opts.n_pages : 0);
    const struct cell *last = e->cells[KV_GLOBAL] + (number + 1) * e->opts.page_tokens - 1;

    return s->end == last->pos + 1 && s->read == last->after;
}

static void copy_state(struct engine *e, const struct engine_copy *c) {
    bool save = c->dir == COPY_STATE_SAVE;
    uint32_t n = e->opts.n_states;

    e->state[c->dst + (save ? n : 0)] = e->state[c->src + (save ? 0 : n)];
    e->seen.n_saves += save;
    e->seen.n_loads += !save;
}

static void copy_pages(struct engine *e, const struct engine_copy *c, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (is_of_state(&c[i])) {
            copy_state(e, &c[i]);
            continue;
        }
        uint32_t src = c[i].src + (c[i].dir == COPY_H2D ? e->opts.n_pages : 0);
        uint32_t dst = c[i].dst + (c[i].dir == COPY_D2H ? e->opts.n_pages : 0);

        memcpy(cell_at(e, c[i].cls, dst, 0), cell_at(e, c[i].cls, src, 0),
               c[i].n_tokens * sizeof(struct cell));
        e->seen.n_copies++;
    }
}

/* Returns the cell of position @pos of sequence @s. */
static struct cell *cell_of(struct engine *e, const struct engine_batch *b, uint32_t cls,
                            uint32_t s, uint32_t pos) {
    uint32_t t = e->opts.page_tokens;

    return cell_at(e, cls, b->table[cls].page[b->table[cls].start[s] + pos / t], pos % t);
}

static void note_stale(struct engine *e, const struct engine_batch *b, uint32_t cls, uint32_t s,
                       uint32_t pos, const char *what) {
    e->seen.n_stale++;
    if (!e->set.strict)
        return;
    fprintf(stderr,
            "telltale: step %llu: sequence %u reads position %u (class %u) from page %u, where "
            "%s is\n",
            (unsigned long long)b->step, s, pos, cls,
            b->table[cls].page[b->table[cls].start[s] + pos / e->opts.page_tokens], what);
    abort();
}

/* ---- pictures ---- */

uint64_t engine_picture_work(const struct engine *e, const struct picture_layout *l) {
    return (uint64_t)l->width * l->height;
}

int engine_picture_begin(struct engine *e, const uint8_t *rgb, const struct picture_layout *l,
                         float *out, struct err *err) {
    assert(!e->drawn.rgb && e->set.picture_width > 0 && e->n_launched == e->n_waited);
    if (l->n_rows > 4096)
        return err_set(err, 400, "messages", "The picture has more rows than there is memory for.");
    e->drawn = (struct drawn){rgb, *l, engine_picture_work(e, l), out};
    memset(out, 0xFF, (size_t)l->n_rows * e->set.picture_width * sizeof(*out));
    return 0;
}

int engine_picture_step(struct engine *e, uint64_t work, uint64_t *left) {
    struct drawn *d = &e->drawn;
    uint64_t piece = e->set.picture_piece,
             n = MIN((MAX(work, 1u) + piece - 1) / piece * piece, d->left);

    assert(d->rgb && e->n_launched == e->n_waited);
    if (e->lost)
        return -EIO;
    *left = d->left -= n;
    int64_t ns = e->set.pixel_ns * (int64_t)n;
    if (e->set.clock)
        e->set.clock->ns += ns;
    if (e->set.drew)
        e->set.drew(e->set.of, ns);
    if (d->left > 0)
        return 0;
    text_rows(d->out, e->set.picture_width, d->rgb, &d->layout, 0, d->layout.n_rows);
    d->rgb = NULL;
    e->seen.n_pictures++;
    return 0;
}

void engine_picture_end(struct engine *e) {
    e->drawn.rgb = NULL;
}

/* Returns the picture of which position @pos of sequence @s is a row, or NULL. */
static const struct engine_picture *picture_at(const struct engine_batch *b, uint32_t s,
                                               uint32_t pos) {
    const struct engine_seq *q = &b->seq[s];

    for (uint32_t i = 0; i < q->n_pictures; i++)
        if (pos >= q->picture[i].at && pos - q->picture[i].at < q->picture[i].n_rows)
            return &q->picture[i];
    return NULL;
}

int32_t telltale_row(const uint8_t *rgb, const struct picture_layout *l, uint32_t row) {
    float values[TEXT_WIDTH_MAX];
    struct engine_picture p = {.n_rows = l->n_rows,
                               .n_columns = l->n_columns,
                               .n_lines = l->n_lines,
                               .n_positions = l->n_positions};

    text_rows(values, settings.picture_width, rgb, l, row, 1);
    return text_row(&p, values, settings.picture_width);
}

/* ---- sequences ---- */

/* Returns the tokens of sequence @s from its wants, @n of them; NULL: it has none. */
static const int32_t *history_of(const struct engine_batch *b, uint32_t s, uint32_t *n) {
    const struct engine_seq *q = &b->seq[s];

    for (uint32_t i = 0; i < b->n_wants; i++) {
        const struct engine_param *p = &b->param[b->want[i].param];

        if (b->want[i].row >= q->row0 && b->want[i].row < q->row0 + q->n_rows) {
            *n = p->n_tokens;
            return p->tokens;
        }
    }
    *n = 0;
    return NULL;
}

/* Returns the hash after one more position, read from the pages. @token: the expected token, -1 if
 * it is not known. A refused draft is detected here, because the tokens before it are right. */
static uint64_t read_position(struct engine *e, const struct engine_batch *b, uint32_t s,
                              uint32_t pos, int32_t token, uint64_t h) {
    uint64_t before = h;

    for (uint32_t cls = 0; cls < KV_CLASSES; cls++) {
        if (!e->cells[cls])
            continue;
        const struct cell *c = cell_of(e, b, cls, s, pos);
        if (c->pos != pos || c->context != text_context(before, cls))
            note_stale(e, b, cls, s, pos, "something else");
        else if ((c->token < 0) != (picture_at(b, s, pos) != NULL))
            note_stale(e, b, cls, s, pos, c->token < 0 ? "a picture, untold" : "no picture");
        else if (token >= 0 && c->token >= 0 && c->token != token)
            note_stale(e, b, cls, s, pos, "another token");
        h = text_read(h, c);
    }
    return h;
}

/*
 * Reads positions [pos, end) of one class as long as they are right, which needs no hashing: a cell
 * has the hash that it leads to. Returns the first position that is not right, which
 * read_position() must read.
 */
static uint32_t read_right(struct engine *e, const struct engine_batch *b, uint32_t s, uint32_t pos,
                           uint32_t end, const int32_t *history, uint64_t *h) {
    const uint32_t *page = b->table[KV_GLOBAL].page + b->table[KV_GLOBAL].start[s];
    uint32_t t = e->opts.page_tokens;
    uint64_t now = *h;

    while (pos < end) {
        const struct cell *c = cell_at(e, KV_GLOBAL, page[pos / t], pos % t);
        uint32_t n = MIN(t - pos % t, end - pos), i = 0;

        for (; i < n; i++, now = c++->after)
            if (c->context != text_context(now, KV_GLOBAL) || c->pos != pos + i ||
                c->token != history[pos + i])
                break;
        pos += i;
        if (i < n)
            break;
    }
    *h = now;
    return pos;
}

static struct cell *window_cell(struct engine *e, const struct engine_batch *b, uint32_t s,
                                uint32_t pos) {
    uint32_t t = e->opts.page_tokens;
    uint32_t page = b->table[KV_WINDOW].page[b->table[KV_WINDOW].start[s] + pos / t];

    return &e->windows[(size_t)page * t + pos % t];
}

/* Reads the window for the first row of sequence @s: it must equal the other pages. */
static uint64_t read_window(struct engine *e, const struct engine_batch *b, uint32_t s,
                            uint64_t h) {
    uint32_t pos0 = b->seq[s].pos0;

    for (uint32_t pos = check_first(pos0, e->rules.window); pos < pos0; pos++) {
        const struct cell *c = window_cell(e, b, s, pos), *all = cell_of(e, b, KV_GLOBAL, s, pos);

        if (c->context == all->context && c->token == all->token && c->pos == pos)
            continue;
        note_stale(e, b, KV_WINDOW, s, pos, "something else");
        h = text_read(h, c);
    }
    return h;
}

/* Writes a position and returns the hash after it. @before: the hidden state of the previous
 * position for the block. */
static uint64_t write_position(struct engine *e, const struct engine_batch *b, uint32_t s,
                               uint32_t pos, uint64_t h, uint64_t before, int32_t token) {
    uint64_t block = b->holes ? BLOCK_HOLE : block_key(before, token);
    uint64_t after = text_next(&e->set, h, token, pos);

    for (uint32_t cls = 0; cls < KV_CLASSES; cls++)
        if (e->cells[cls])
            *cell_of(e, b, cls, s, pos) = (struct cell){.context = text_context(h, cls),
                                                        .after = after,
                                                        .token = token,
                                                        .pos = pos,
                                                        .block = block};
    if (e->rules.n_windows > 0)
        *window_cell(e, b, s, pos) = *cell_of(e, b, KV_GLOBAL, s, pos);
    return after;
}

static int32_t token_of(const struct engine *e, const struct engine_batch *b, uint32_t s,
                        uint32_t i) {
    const struct engine_seq *q = &b->seq[s];
    const struct engine_picture *p = b->model ? NULL : picture_at(b, s, q->pos0 + i);

    if (p)
        return text_row(p, p->rows + (size_t)(q->pos0 + i - p->at) * p->width, p->width);
    return i == 0 && q->feed >= 0 ? e->fed[(b->step - 1) % 2].token[q->feed]
                                  : b->token[q->row0 + i];
}

/* Checks that the slot of sequence @s has the state behind the tokens that were read, @h. The text
 * depends on it from here on. */
static uint64_t go_on_from_state(struct engine *e, const struct engine_batch *b, uint32_t s,
                                 uint64_t h) {
    const struct engine_seq *q = &b->seq[s];
    const struct state *state = &e->state[q->state_slot];

    if (e->opts.n_states == 0 || q->pos0 == 0 || (state->end == q->pos0 && state->read == h))
        return h;
    e->seen.n_stale++;
    if (e->set.strict) {
        fprintf(stderr,
                "telltale: step %llu: sequence %u goes on at position %u from slot %u, where the "
                "state behind %u positions%s is\n",
                (unsigned long long)b->step, s, q->pos0, q->state_slot, state->end,
                state->end == q->pos0 ? " of another text" : "");
        abort();
    }
    return text_mix(h, state->read);
}

/* Reads the positions before the sequence's first row. Returns the hash behind them. */
static uint64_t read_before(struct engine *e, const struct engine_batch *b, uint32_t s) {
    const struct engine_seq *q = &b->seq[s];
    uint64_t h = text_begin();
    uint32_t n, pos = 0;
    const int32_t *history = history_of(b, s, &n);

    if (e->set.classes == 1u << KV_GLOBAL && b->seq[s].n_pictures == 0)
        pos = read_right(e, b, s, 0, MIN(n, q->pos0), history, &h);
    for (; pos < q->pos0; pos++)
        h = read_position(e, b, s, pos, pos < n ? history[pos] : -1, h);
    if (!b->model)
        h = go_on_from_state(e, b, s, h);
    return e->rules.n_windows > 0 ? read_window(e, b, s, h) : h;
}

/* Reads the sequence's positions, then writes and reads its rows. Stores the hash after each
 * row. */
static void compute_seq(struct engine *e, const struct engine_batch *b, uint32_t s) {
    const struct engine_seq *q = &b->seq[s];
    uint64_t h = read_before(e, b, s);
    struct block_slot *k = e->info.n_slots > 0 ? &e->block[q->state_slot] : NULL;
    if (k && q->begins)
        *k = (struct block_slot){0};
    for (uint32_t i = 0; i < q->n_rows; i++) {
        uint32_t at = q->pos0 + i;

        h = write_position(e, b, s, at, h, k && at > 0 ? block_hidden(k, at - 1) : 0,
                           token_of(e, b, s, i));
        if (k)
            block_keep(k, at, h);
        e->row_hash[q->row0 + i] = h;
        e->row_seq[q->row0 + i] = s;
    }
    if (e->opts.n_states > 0)
        e->state[q->state_slot] = (struct state){.read = h, .end = q->pos0 + q->n_rows};
}

static void note_block(struct engine *e, const struct engine_batch *b, uint32_t s, uint32_t pos,
                       const char *what) {
    e->seen.n_stale++;
    if (!e->set.strict)
        return;
    fprintf(stderr, "telltale: step %llu: sequence %u drafts at position %u: the block's %s\n",
            (unsigned long long)b->step, s, pos, what);
    abort();
}

/* Computes a row of pass 1: the block's keys before it must exist, and the hidden state of the
 * previous position. Positions that pass 0 has not computed have only the key. */
static void compute_draft(struct engine *e, const struct engine_batch *b, uint32_t s) {
    const struct engine_seq *q = &b->seq[s];
    struct block_slot *k = &e->block[q->state_slot];
    const int32_t *token = b->param[b->want[s].param].tokens;
    bool one_class = e->set.classes == 1u << KV_GLOBAL;
    uint64_t h = text_begin();

    for (uint32_t pos = 0; pos < q->pos0; pos++) {
        const struct cell *c = cell_of(e, b, KV_GLOBAL, s, pos);
        int32_t is = picture_at(b, s, pos) && c->token < 0 ? c->token : token[pos];
        bool computed = one_class && c->context == text_context(h, KV_GLOBAL) && c->pos == pos &&
                        c->token == is;

        if (c->block == BLOCK_HOLE)
            e->seen.n_holes_near += pos + 32 >= q->pos0;
        else if (!block_is_key(c, pos > 0 ? h : 0, is))
            note_block(e, b, s, pos, "key is not that of its tokens");
        h = computed ? c->after : text_next(&e->set, h, is, pos);
    }
    if (q->pos0 > 0 && block_hidden(k, q->pos0 - 1) != h)
        note_block(e, b, s, q->pos0, "hidden state is not that of the position before");
    cell_of(e, b, KV_GLOBAL, s, q->pos0)->block = block_key(h, b->token[q->row0]);
    h = text_next(&e->set, h, b->token[q->row0], q->pos0);
    block_keep(k, q->pos0, h);
    e->row_hash[q->row0] = h;
    e->row_seq[q->row0] = s;
}

/* Computes a row of an assistant: the keys of the known tokens must exist, and the hidden state of
 * the previous position, of pass 0 behind a known token, else of a draft. */
static void compute_borrowed(struct engine *e, const struct engine_batch *b, uint32_t s) {
    const struct engine_seq *q = &b->seq[s];
    struct block_slot *k = &e->block[q->state_slot];
    const int32_t *token = b->param[b->want[s].param].tokens;
    uint32_t at = q->pos0 + q->n_ahead;
    uint64_t h = read_before(e, b, s);

    for (uint32_t pos = q->pos0; pos < at; pos++)
        h = text_next(&e->set, h, token[pos], pos);
    if (at > 0 && block_hidden(k, at - 1) != h)
        note_block(e, b, s, at, "hidden state is not that of the position before");
    h = text_next(&e->set, h, b->token[q->row0], at);
    block_keep(k, at, h);
    e->row_hash[q->row0] = h;
    e->row_seq[q->row0] = s;
}

static void compute(struct engine *e, const struct engine_batch *b, uint32_t s) {
    if (!b->model)
        compute_seq(e, b, s);
    else if (e->rules.borrows)
        compute_borrowed(e, b, s);
    else
        compute_draft(e, b, s);
}

bool telltale_errs(uint32_t wrong_per_1024, uint64_t digest) {
    return text_mix(digest, 5) % 1024 < wrong_per_1024;
}

static int32_t sample(struct engine *e, const struct engine_batch *b, uint32_t want,
                      const uint32_t *mask) {
    const struct engine_want *w = &b->want[want];
    const struct engine_param *p = &b->param[w->param];
    const struct engine_seq *q = &b->seq[e->row_seq[w->row]];
    struct history y = {
        .token = p->tokens, .more = e->more, .n_prompt = p->n_prompt, .n = p->n_tokens};

    if (q->feed >= 0)
        e->more[y.n_more++] = token_of(e, b, e->row_seq[w->row], 0);
    struct text_mask m = {.bits = mask};
    uint64_t h = e->row_hash[w->row];
    int32_t token = text_sample(&e->set, h, p, w->out_pos, &m, &y);

    return telltale_errs(b->model ? e->set.block_wrong : e->set.wrong_per_1024, text_digest(h))
               ? text_other(&e->set, h, p, &m, token)
               : token;
}

static void answer(struct engine *e, const struct engine_batch *b, uint32_t want,
                   const uint32_t *mask) {
    const struct engine_want *w = &b->want[want];
    const struct engine_param *p = &b->param[w->param];
    const struct engine_seq *q = &b->seq[e->row_seq[w->row]];
    struct results *r = &e->result[b->step % 2];
    struct engine_top *top = r->top + (size_t)want * ENGINE_TOP_MAX;
    float *vector = r->vector + (size_t)want * e->set.n_embd;
    struct engine_out *out = &r->out[want];
    uint64_t h = e->row_hash[w->row];

    *out = (struct engine_out){.token = -1};
    if (w->what != WANT_SAMPLE && w->what != WANT_PROMPT_LP) {
        for (uint32_t i = 0; i < e->set.n_embd; i++)
            vector[i] = text_value(h, w->what, i);
        out->vector = vector;
        return;
    }
    if (w->what == WANT_SAMPLE)
        out->token = e->fed[b->step % 2].token[want] = sample(e, b, want, mask);
    else
        out->token = p->tokens[q->pos0 + (w->row - q->row0) + 1];
    if (w->logprob)
        out->logprob = text_logprob(h, out->token);
    if (e->opts.digest)
        out->digest = text_digest(h);
    out->n_top = MIN(w->n_top, e->set.n_vocab);
    out->top = top;
    if (out->n_top > 0)
        text_top(&e->set, h, out->n_top, top);
}

int engine_wait(struct engine *e, uint64_t step, struct engine_result *out) {
    if (e->lost)
        return -EIO;
    assert(step == e->n_waited + 1);
    struct flight *f = flight_of(e, step);
    const struct engine_batch *b = f->batch;
    assert(f->sealed);
    if (e->set.clock && e->set.clock->ns < f->end_ns)
        e->set.clock->ns = f->end_ns;
    if (step == e->set.fail_wait)
        return lose(e, b);
    if (check_sum(b) != f->sum || check_masks(b, f->mask, e->set.n_vocab) != f->mask_sum) {
        fprintf(stderr, "telltale: step %llu: the batch was changed while it ran\n",
                (unsigned long long)step);
        abort();
    }
    copy_pages(e, b->before, b->n_before);
    for (uint32_t s = 0; s < b->n_seqs; s++)
        compute(e, b, s);
    for (uint32_t i = 0; i < b->n_wants; i++)
        answer(e, b, i, f->mask[i]);
    copy_pages(e, b->after, b->n_after);
    e->seen.n_steps++;
    e->seen.n_hole_steps += b->holes;
    e->seen.n_rows += b->n_rows;
    e->seen.n_wants += b->n_wants;
    e->n_waited = step;
    f->batch = NULL;
    *out =
        (struct engine_result){.step = step, .n_outs = b->n_wants, .out = e->result[step % 2].out};
    return 0;
}

uint32_t telltale_expect(const struct telltale_ask *ask, int32_t *tokens, uint64_t *digests,
                         float *logprobs) {
    struct telltale t = settings;
    struct engine_param p = ask->param;
    uint64_t h = text_begin();
    struct text_mask mask = {.allows = ask->allows, .ctx = ask->ctx};
    uint32_t n = 0;

    fill_in(&t, 256);
    CLEANUP(freep)
    int32_t *all = calloc((size_t)ask->n_prompt + ask->n_out, sizeof(*all));
    assert(all && ask->n_prompt > 0);
    for (uint32_t i = 0; i < ask->n_prompt; i++) {
        all[i] = ask->prompt[i];
        h = text_next(&t, h, ask->seen ? ask->seen[i] : all[i], i);
    }
    while (n < ask->n_out) {
        uint32_t pos = ask->n_prompt + n;
        struct history y = {.token = all, .n_prompt = ask->n_prompt, .n = pos};

        p.n_bans = n < ask->n_ban ? ask->param.n_bans : 0;
        if (ask->go_on && !ask->go_on(ask->ctx, tokens, n))
            break;
        tokens[n] = all[pos] = text_sample(&t, h, &p, n, &mask, &y);
        if (digests)
            digests[n] = text_digest(h);
        if (logprobs)
            logprobs[n] = text_logprob(h, tokens[n]);
        h = text_next(&t, h, tokens[n], pos);
        n++;
        if (t.end_per_1024 > 0 && tokens[n - 1] == t.end && !ask->ignore_end)
            break;
    }
    return n;
}

void telltale_expect_prompt(const int32_t *prompt, const int32_t *seen, uint32_t n_prompt,
                            float *logprobs) {
    struct telltale t = settings;
    uint64_t h = text_begin();

    fill_in(&t, 256);
    for (uint32_t i = 0; i + 1 < n_prompt; i++) {
        h = text_next(&t, h, seen ? seen[i] : prompt[i], i);
        logprobs[i] = text_logprob(h, prompt[i + 1]);
    }
}

void telltale_expect_hidden(const int32_t *tokens, uint32_t n_tokens, float *vector, uint32_t n) {
    struct telltale t = settings;
    uint64_t h = text_begin();

    fill_in(&t, 256);
    for (uint32_t i = 0; i < n_tokens; i++)
        h = text_next(&t, h, tokens[i], i);
    for (uint32_t i = 0; i < n; i++)
        vector[i] = text_value(h, WANT_HIDDEN, i);
}

void telltale_expect_top(const int32_t *tokens, uint32_t n_tokens, uint32_t n_top,
                         struct engine_top *top) {
    struct telltale t = settings;
    uint64_t h = text_begin();

    fill_in(&t, 256);
    for (uint32_t i = 0; i < n_tokens; i++)
        h = text_next(&t, h, tokens[i], i);
    text_top(&t, h, MIN(n_top, MIN(t.n_vocab, ENGINE_TOP_MAX)), top);
}
