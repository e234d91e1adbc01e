#include "engine/fit.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "engine/kept.h"
#include "engine/op_table.h"

/* Returns the part of @memory that stays free for the front, tokenizers, stacks and everything that
 * is not counted. */
static uint64_t spare(uint64_t memory) {
    return memory / 16;
}

#define FIXED_BYTES (32ull << 20) /* buffers that do not depend on the model */
#define SCORED_ROWS 16            /* rows whose short blocks are scored at a time */

struct fit_text fit_text(uint64_t bytes) {
    struct fit_text t;

    if (bytes >= 1u << 30)
        snprintf(t.s, sizeof(t.s), "%.2f GiB", (double)bytes / 0x1p30);
    else if (bytes >= 1u << 20)
        snprintf(t.s, sizeof(t.s), "%.1f MiB", (double)bytes / 0x1p20);
    else
        snprintf(t.s, sizeof(t.s), "%.1f KiB", (double)bytes / 0x1p10);
    return t;
}

/* Returns the bytes of a matrix of an op as @ops store it; embeddings stay as they are. */
static uint64_t stored(const struct be_ops *ops, enum op_kind kind, const struct tensor *t) {
    if (!t)
        return 0;
    if (ops->stored_bytes && kind != OP_EMBED)
        return ops->stored_bytes(t);
    return t->n_bytes;
}

/* Returns true if an earlier op, or an earlier matrix of op @i, has the same tensor in the same
 * layout: it is in memory once. */
static bool is_stored(const struct model *m, uint32_t i, int k) {
    const struct tensor *t = m->op[i].w[k];

    for (uint32_t j = 0; j <= i && m->op[i].kind != OP_EMBED; j++)
        for (int l = 0; l < (j < i ? OP_MATRICES : k); l++)
            if (m->op[j].w[l] == t && m->op[j].kind != OP_EMBED)
                return true;
    return false;
}

uint64_t fit_weights(const struct model *m, const struct be_ops *ops) {
    uint64_t n = m->encoder_weights + head_bytes(&m->head);

    for (uint32_t i = 0; i < m->n_ops; i++)
        for (int k = 0; k < OP_MATRICES && op_weights_of(m->op, i) == i; k++)
            if (!is_stored(m, i, k))
                n += stored(ops, m->op[i].kind, m->op[i].w[k]);
    return n;
}

/* Returns the bytes of weights that a token reads in a run of ops. */
static uint64_t token_weights(const struct model *m, const struct op_run *run) {
    uint64_t n = 0;

    for (uint32_t i = run->begin; i < run->end; i++)
        n += op_measure(&m->shape, &m->op[i]).read;
    return n;
}

uint64_t fit_token_weights(const struct model *m, uint32_t pass) {
    return token_weights(m, &m->pass[pass].run[0]) + token_weights(m, &m->pass[pass].run[1]);
}

uint64_t fit_token_keys(const struct model *m, const struct engine_opts *o, uint64_t page_bytes,
                        uint64_t n) {
    const struct model_shape *s = &m->shape;
    const struct sparse_shape *p = &s->sparse;
    const struct compressed_shape *c = &s->compressed;
    uint64_t bytes = n * page_bytes / o->page_tokens;

    if (p->n_layer) {
        uint64_t seen = MIN(n, (p->n_block + 1ull) * sparse_block(p));

        bytes -= kv_bytes_both(o->kv_type, s->n_kv_values[KV_GLOBAL] * (n - seen));
    }
    if (c->n_short) {
        uint64_t n_layer = c->n_short / (s->head_dim + c->index_dim), blocks = n / BLOCK_SHORT;
        uint64_t unseen = n_layer * (blocks - MIN(blocks, c->n_block));

        bytes -= unseen * s->head_dim * compressed_value(o->kv_type);
    }
    return bytes;
}

/* Returns the bytes of the TAP buffer, or of the hidden states of a step and of the slots with the
 * inputs of DRAFT_IN. */
static uint64_t fit_hidden(const struct model *m, const struct engine_opts *o) {
    uint64_t n_slots = o->max_seqs;

    if (o->n_states)
        n_slots = o->n_states;
    if (m->shape.n_taps)
        return (uint64_t)o->max_rows * m->shape.n_taps * m->shape.n_embd * sizeof(float);
    return ((n_slots * ENGINE_KEPT + o->max_rows) * hidden_width(&m->shape) +
            o->max_rows * 2ull * m->shape.n_embd) *
           sizeof(float);
}

/* Counts for each kind of op the outputs of its widest instance, and its inputs with eight bits. */
uint64_t fit_buffers(const struct model *m, const struct engine_opts *o) {
    uint64_t width[OP_KINDS] = {0}, in = 0, values = 0, fixed = FIXED_BYTES;
    uint64_t context = MIN(m->shape.max_context, CONTEXT_LIMIT);

    for (uint32_t i = 0; i < m->n_ops; i++) {
        enum op_kind kind = m->op[i].kind;
        struct op_cost cost = op_measure(&m->shape, &m->op[i]);

        in = MAX(in, cost.in);
        width[kind] = MAX(width[kind], cost.out);
    }
    for (int k = 0; k < OP_KINDS; k++)
        values += width[k];
    values += 2ull * m->shape.stream.n * m->shape.n_embd;
    if (m->shape.compressed.window) { /* the picked blocks, and outputs of attention */
        values += m->shape.compressed.n_block + m->shape.widest.q + m->shape.state.n_out;
        fixed += SCORED_ROWS * (context / BLOCK_SHORT) * sizeof(float);
    }
    if (m->shape.sparse.n_layer) /* a bit for each position */
        values += sparse_sets(&m->shape.sparse) * (context / 32);
    return fixed + o->max_rows * (values * sizeof(float) + 2 * in) +
           (uint64_t)MIN(o->max_wants, o->max_seqs) * m->shape.n_vocab * sizeof(float) +
           (m->shape.drafts ? fit_hidden(m, o) : 0) + m->encoder_buffers;
}

/* Returns the window pages that one sequence needs: those that a row reads, and those that two
 * steps write, whose rows may begin and end inside a page. */
static uint64_t fit_pages_of_seq(const struct fit_windows *w) {
    return (w->window + w->page_tokens - 1) / w->page_tokens + 3;
}

/* Returns the window pages that the rows of two steps write, however they are divided among
 * sequences. */
static uint64_t pages_of_rows(const struct fit_windows *w) {
    return 2ull * ((w->max_rows + w->page_tokens - 1) / w->page_tokens);
}

/* Returns the window pages kept for ended sequences, as multiples of 1 / FIT_TURN of the pages. */
static uint64_t turn_part(const struct fit_windows *w) {
    uint64_t pages = (w->window + w->page_tokens - 1) / w->page_tokens + 1;

    return MIN(pages * w->page_tokens, FIT_TURN / 8);
}

uint64_t fit_n_windows(const struct fit_windows *w, uint64_t n_pages, uint64_t n_seqs) {
    return n_seqs * fit_pages_of_seq(w) + pages_of_rows(w) + n_pages * turn_part(w) / FIT_TURN;
}

/* Returns the bytes of a page with its share of the window pages for ended sequences. */
static uint64_t page_and_part(const struct fit_windows *w) {
    return w->page + (w->window_page * turn_part(w) + FIT_TURN - 1) / FIT_TURN;
}

uint64_t fit_divide(const struct fit_windows *w, uint64_t bytes, uint32_t *n_seqs) {
    assert(w->page_tokens > 0 && w->page > 0 && w->window_page > 0);
    assert(w->max_seqs > 0 && w->window > 0);
    uint64_t room = bytes / 2 / w->window_page, rows = pages_of_rows(w);

    if (room < rows + fit_pages_of_seq(w))
        return 0;
    *n_seqs = (uint32_t)MIN(w->max_seqs, (room - rows) / fit_pages_of_seq(w));
    uint64_t n =
        (bytes - (*n_seqs * fit_pages_of_seq(w) + rows) * w->window_page) / page_and_part(w);
    if (n > bytes / (w->page + w->window_page))
        return n;
    return 0;
}

/* Returns the bytes that suffice for @n pages: the window pages of all sequences count if they take
 * less than half. */
static uint64_t divided_for(const struct fit_windows *w, uint64_t n) {
    uint64_t all = (w->max_seqs * fit_pages_of_seq(w) + pages_of_rows(w)) * w->window_page;
    uint64_t one = (fit_pages_of_seq(w) + pages_of_rows(w)) * w->window_page;
    uint64_t pages = (n + 1) * page_and_part(w);

    return MIN(n * (w->page + w->window_page), MAX(pages + MIN(all, pages), 2 * one));
}

/* Returns the KV memory that has room for a sequence of @n_tokens. With recurrent states, half of
 * the memory may go to slots and a quarter to snapshots. */
static uint64_t kv_for(const struct fit *f, uint64_t n_tokens) {
    uint64_t n = (n_tokens + f->page_tokens - 1) / f->page_tokens, pages = n * f->page;

    if (f->windows)
        return divided_for(f->windows, n);
    if (!f->state)
        return pages;
    return MAX(4 * pages, 4 * f->state) + f->page;
}

/* Returns the longest context whose KV memory is at most @bytes. */
static uint64_t context_in(const struct fit *f, uint64_t bytes) {
    const struct fit_windows *w = f->windows;
    uint64_t page = f->page, n = 0;
    uint32_t n_seqs;

    if (f->state && bytes < 4 * f->state + f->page)
        return 0;
    if (f->state)
        bytes = (bytes - f->page) / 4;
    if (w) {
        page += w->window_page;
        n = fit_divide(w, bytes, &n_seqs);
    }
    return MAX(n, bytes / page) * f->page_tokens;
}

/* Returns -ENOMEM with the arithmetic in @err and what would fit: a shorter context, or fewer bits
 * per weight. */
static int fit_refuse(const struct fit *f, uint64_t least, uint64_t left, uint64_t context,
                      struct err *err) {
    uint64_t room = context_in(f, left), usable = f->memory - spare(f->memory);
    char would[120], host[60] = "";

    if (room >= FIT_LEAST) {
        snprintf(would, sizeof(would), "max-context %llu would fit", (unsigned long long)room);
    } else {
        uint64_t weights = usable - MIN(f->buffers + f->host + least, usable);
        double bits = 8 * (double)weights / (double)MAX(f->n_params, 1ull);
        double has = 8 * (double)f->weights / (double)MAX(f->n_params, 1ull);

        if (bits >= 1.5)
            snprintf(would, sizeof(would),
                     "a file of at most %.1f bits a weight would fit, this one has %.1f", bits,
                     has);
        else
            snprintf(would, sizeof(would), "no quantisation of this model would fit");
    }
    if (f->host)
        snprintf(host, sizeof(host), "host-kv-memory %s + ", fit_text(f->host).s);
    err_set(
        err, 0, NULL,
        "does not fit: weights %s + buffers %s + %skeys and values of %llu tokens %s = %s; of %s "
        "free memory %s may be used: %s",
        fit_text(f->weights).s, fit_text(f->buffers).s, host, (unsigned long long)context,
        fit_text(least).s, fit_text(f->weights + f->buffers + f->host + least).s,
        fit_text(f->memory).s, fit_text(usable).s, would);
    return -ENOMEM;
}

/* Returns the context that is asked for, else the model's, at most @most. */
static uint64_t fit_context(const struct fit *f, uint64_t most) {
    if (f->context)
        return f->context;
    return MIN(f->model_context, most);
}

int fit_kv(const struct fit *f, uint64_t *kv_bytes, struct err *err) {
    assert(f->page > 0 && f->page_tokens > 0 && f->memory > 0);
    uint64_t usable = f->memory - spare(f->memory);
    uint64_t fixed = f->weights + f->buffers + f->host;
    uint64_t left = usable - MIN(fixed, usable);
    uint64_t asked = fit_context(f, FIT_LEAST);
    uint64_t least = kv_for(f, asked), wish = f->wish;

    if (left < least)
        return fit_refuse(f, least, left, asked, err);
    if (!wish)
        wish = MAX(f->memory / 4, kv_for(f, MIN(f->model_context, FIT_CONTEXT)));
    if (f->context)
        wish = MAX(wish, least);
    *kv_bytes = MIN(left, wish);
    return 0;
}

uint64_t fit_kv_beside(const struct fit *f) {
    if (f->wish)
        return f->wish;
    return kv_for(f, fit_context(f, FIT_CONTEXT));
}

int fit_check(const struct model *m, const struct be_ops *ops, const struct fit_sizes *s,
              uint32_t n_pages, uint64_t kv, struct err *err) {
    uint64_t weights = fit_weights(m, ops), have = memory_machine();

    if (weights + kv <= have)
        return 0;
    err_set(
        err, 0, NULL,
        "does not fit: weights %s + KV memory %s (%u pages of %s%s%s) = %s, this machine has %s",
        fit_text(weights).s, fit_text(kv).s, n_pages, fit_text(s->page).s,
        s->state ? ", states of " : "", s->state ? fit_text(s->state).s : "",
        fit_text(weights + kv).s, fit_text(have).s);
    return -EINVAL; /* not -ENOMEM, which would mean that it fits once other programs have ended */
}

struct fit_windows fit_windows(const struct model *m, const struct engine_opts *o,
                               const struct fit_sizes *s) {
    return (struct fit_windows){
        .page = s->page,
        .window_page = s->window_page,
        .window = m->shape.window + ATTEND_TILE - 1,
        .page_tokens = o->page_tokens,
        .max_seqs = o->max_seqs,
        .max_rows = o->max_rows,
    };
}

struct fit fit_of(const struct model *m, const struct be_ops *ops, const struct engine_opts *o,
                  const struct fit_sizes *s, const struct fit_windows *w) {
    return (struct fit){
        .weights = fit_weights(m, ops),
        .buffers = fit_buffers(m, o),
        .page = s->page,
        .state = s->state,
        .windows = m->shape.window ? w : NULL,
        .host = o->host_kv_bytes,
        .page_tokens = o->page_tokens,
        .model_context = MIN(m->shape.max_context, CONTEXT_LIMIT),
        .context = o->max_context,
        .wish = o->kv_bytes,
        .memory = o->memory,
        .n_params = m->n_params,
    };
}
