#include "engine/host.h"

#include <assert.h>
#include <string.h>

#include "base/result.h"

/* Allocates the buffers of hidden states. Returns false without memory. */
static bool alloc_hidden(struct host_step *h, const struct be_opts *o) {
    size_t n = (size_t)o->n_slots * ENGINE_KEPT;

    if (!n)
        return true;
    h->hidden = calloc((size_t)o->engine->max_rows * h->n_hidden, sizeof(float));
    h->kept = calloc(n * h->n_hidden, sizeof(float));
    return kept_init(&h->kept_of, o->n_slots) == 0 && h->hidden && h->kept;
}

int host_step_init(struct host_step *h, const struct be_opts *o) {
    const struct engine_opts *e = o->engine;

    *h = (struct host_step){
        .n_vocab = o->shape->n_vocab,
        .page_tokens = e->page_tokens,
        .max_wants = e->max_wants,
        .digest = e->digest,
        .row_seq = calloc(e->max_rows, sizeof(uint32_t)),
        .row_pos = calloc(e->max_rows, sizeof(uint32_t)),
        .row = calloc(e->max_rows, sizeof(struct picture_row)),
        .places = o->shape->rope[0].places,
        .mask = calloc(e->max_wants, sizeof(uint32_t *)),
        .scored = calloc(e->max_wants, sizeof(uint32_t)),
        .logits_of = calloc(e->max_wants, sizeof(uint32_t)),
        .n_embd = o->shape->n_embd,
        .n_hidden = hidden_width(o->shape),
    };
    bool ok = h->row_seq && h->row_pos && h->row && h->mask && h->scored && h->logits_of;
    for (int i = 0; i < 2; i++) {
        h->result[i].out = calloc(e->max_wants, sizeof(struct engine_out));
        h->result[i].top = calloc((size_t)e->max_wants * ENGINE_TOP_MAX, sizeof(struct engine_top));
        h->result[i].vector = calloc((size_t)e->max_wants * h->n_embd, sizeof(float));
        ok = ok && h->result[i].out && h->result[i].top && h->result[i].vector;
    }
    ok = alloc_hidden(h, o) && ok;
    if (!ok)
        host_step_deinit(h);
    return enomem_unless(ok);
}

void host_step_deinit(struct host_step *h) {
    free(h->row_seq);
    free(h->row_pos);
    free(h->row);
    free(h->mask);
    free(h->scored);
    free(h->logits_of);
    for (int i = 0; i < 2; i++) {
        free(h->result[i].out);
        free(h->result[i].top);
        free(h->result[i].vector);
    }
    free(h->hidden);
    free(h->kept);
    kept_deinit(&h->kept_of);
    *h = (struct host_step){0};
}

/* -- hidden states ----------------------------------------------------------------------------- */

const float *host_step_before(const struct host_step *h, uint32_t row) {
    const struct engine_seq *s = &h->batch->seq[h->row_seq[row]];
    uint32_t pos = h->row_pos[row] + s->n_ahead;

    if (row > s->row0)
        return h->hidden + (size_t)(row - 1) * h->n_hidden;
    if (pos == 0 || !kept_has(&h->kept_of, s, pos - 1))
        return NULL;
    return h->kept + kept_at(s, pos - 1) * h->n_hidden;
}

/* Copies the hidden states of the last rows of @s to its slot, at the end of the step, when the
 * former ones are not read any more. */
static void host_save_hidden(struct host_step *h, const struct engine_seq *s) {
    for (uint32_t i = kept_first(s); i < s->n_rows; i++)
        memcpy(h->kept + kept_at(s, kept_pos(s, i)) * h->n_hidden,
               h->hidden + (size_t)(s->row0 + i) * h->n_hidden, h->n_hidden * sizeof(float));
    kept_end(&h->kept_of, s);
}

/* -- the step ---------------------------------------------------------------------------------- */

void host_step_begin(struct host_step *h, const struct engine_batch *b) {
    assert(!h->batch && b->n_wants <= h->max_wants); /* one step at a time */
    h->batch = b;
    h->current ^= 1;
    memset(h->mask, 0, h->max_wants * sizeof(*h->mask));
    for (uint32_t s = 0; s < b->n_seqs; s++) {
        for (uint32_t i = 0; i < b->seq[s].n_rows; i++) {
            h->row_seq[b->seq[s].row0 + i] = s;
            h->row_pos[b->seq[s].row0 + i] = b->seq[s].pos0 + i;
        }
        picture_rows(&b->seq[s], h->places, h->row + b->seq[s].row0);
    }
    for (uint32_t s = 0; s < b->n_seqs && h->kept; s++)
        kept_begin(&h->kept_of, &b->seq[s]);
    h->n_scored = 0;
    for (uint32_t i = 0; i < b->n_wants; i++) {
        h->logits_of[i] = h->n_scored;
        if (b->want[i].what != WANT_HIDDEN)
            h->scored[h->n_scored++] = i;
    }
}

void host_step_mask(struct host_step *h, uint32_t want, const uint32_t *bits) {
    assert(want < h->batch->n_wants);
    h->mask[want] = bits;
}

void host_step_sample(struct host_step *h, uint32_t want, const float *logits, struct sampler *s) {
    const struct engine_batch *b = h->batch;
    const struct engine_want *w = &b->want[want];

    assert(want < b->n_wants && w->what != WANT_HIDDEN);
    const struct engine_param *p = &b->param[w->param];
    const struct engine_seq *seq = &b->seq[h->row_seq[w->row]];
    struct sample_job job = {
        .logits = logits,
        .want = w,
        .param = p,
        .mask = h->mask[want],
        .fed = seq->feed >= 0 ? b->token[seq->row0] : -1,
        .target = -1,
        .digest = h->digest && !w->no_digest,
    };

    if (w->what == WANT_PROMPT_LP) {
        assert(h->row_pos[w->row] + 1 < p->n_tokens);
        job.target = p->tokens[h->row_pos[w->row] + 1];
    }
    sampler_run(s, &job, &h->result[h->current].out[want],
                h->result[h->current].top + (size_t)want * ENGINE_TOP_MAX);
}

float *host_step_vector(struct host_step *h, uint32_t want) {
    assert(want < h->batch->n_wants && h->batch->want[want].what == WANT_HIDDEN);
    float *v = h->result[h->current].vector + (size_t)want * h->n_embd;

    h->result[h->current].out[want] = (struct engine_out){.token = -1, .vector = v};
    return v;
}

void host_step_end(struct host_step *h, struct engine_result *out) {
    *out = (struct engine_result){
        .step = h->batch->step,
        .n_outs = h->batch->n_wants,
        .out = h->result[h->current].out,
    };
    for (uint32_t s = 0; s < h->batch->n_seqs && h->kept; s++)
        host_save_hidden(h, &h->batch->seq[s]);
    h->batch = NULL;
}

/* -- arithmetic -------------------------------------------------------------------------------- */

float host_dot(const float *a, const float *b, size_t n) {
    float lane[16] = {0};
    size_t i = 0;

    for (; i + 16 <= n; i += 16)
        for (size_t j = 0; j < 16; j++)
            lane[j] += a[i + j] * b[i + j];
    for (; i < n; i++)
        lane[i % 16] += a[i] * b[i];
    for (size_t w = 8; w > 0; w /= 2)
        for (size_t j = 0; j < w; j++)
            lane[j] += lane[j + w];
    return lane[0];
}

void host_store_halves(const float *x, size_t n, uint8_t *to) {
    for (size_t i = 0; i < n; i++) {
        uint16_t half = mx_float_to_half(x[i]);

        memcpy(to + 2 * i, &half, 2);
    }
}
