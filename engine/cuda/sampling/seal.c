/*
 * seal - the host's side of sampling: uploads parameters, penalties (one entry per token) and
 * masks, and launches the kernels. One upload normally suffices. If there are more wants than rows
 * of logits, or lists longer than the staging area, the step runs in rounds: it computes a part of
 * the logits, samples, and goes on with the next part. A row whose logits are computed again in a
 * later round gets the same bits. The upload runs beside the kernels of the step in a stream of its
 * own: masks of 64 rows are over a megabyte, and nothing of it depends on these kernels.
 *
 * Wants with samplers that the kernels lack (engine_param.samplers) are sampled on the host, by the
 * code of the CPU backend on a copy of their logits, right after their round was launched. The
 * tokens are the same as on the CPU, but the host waits for the device. A step without such wants
 * never waits.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"
#include "engine/cuda/cuda.h"

/* Lists of one parameter set: the index of each in the staging area, in units of its elements. */
struct lists {
    /* index of the parameters */
    uint32_t param;
    uint32_t bias0, ban0, penal0, n_penals;
};

static bool has_penalties(const struct engine_param *p) {
    return p->repetition != 1 || p->presence != 0 || p->frequency != 0;
}

/* Returns the @k-th of the wants that have logits; "want @k" in this file means this one. */
static const struct engine_want *want_at(const struct step *s, uint32_t k) {
    assert(k < s->n_scored);
    return &s->batch->want[s->scored[k]];
}

/* Lists each token of prompt and output once, with its count in the output. Returns the number of
 * entries. sampling.count holds the place of a token in the list, plus 1, and is zero again at
 * return. */
static uint32_t list_penalties(struct be *b, const struct engine_param *p, struct penal *list) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->n_tokens; i++) {
        int32_t t = p->tokens[i];

        if (t < 0)
            continue;
        assert((uint32_t)t < b->shape->n_vocab);
        if (!b->sampling.count[t]) {
            list[n] = (struct penal){t, 0};
            b->sampling.count[t] = ++n;
        }
        list[b->sampling.count[t] - 1].count += i >= p->n_prompt;
    }
    for (uint32_t i = 0; i < n; i++)
        b->sampling.count[list[i].token] = 0;
    assert(n <= b->shape->n_vocab && n <= p->n_tokens);
    return n;
}

/* Returns room for @n elements of @size bytes, a divisor of 16, in the staging area, and sets
 * *first to the index of the first one; NULL if the area is full. */
static void *alloc_list(struct step *s, size_t n, uint32_t size, uint32_t *first) {
    const void *d = s->wants.device;
    void *list = staging_alloc(&s->wants, n * size, &d);

    *first = (uint32_t)((const uint8_t *)d - s->wants.device) / size;
    return list;
}

/* Writes the lists of one parameter set. Returns false if the staging area is too small. */
static bool put_lists(struct step *s, const struct engine_param *p, struct lists *l) {
    struct be *b = s->be;
    uint32_t n_penals = has_penalties(p) ? MIN(p->n_tokens, b->shape->n_vocab) : 0;
    struct bias_entry *bias = alloc_list(s, p->n_bias, sizeof(*bias), &l->bias0);
    int32_t *ban = alloc_list(s, p->n_bans, sizeof(*ban), &l->ban0);
    struct penal *penal = alloc_list(s, n_penals, sizeof(*penal), &l->penal0);

    if (!bias || !ban || !penal)
        return false;
    for (uint32_t i = 0; i < p->n_bias; i++) {
        assert((uint32_t)p->bias[i].token < b->shape->n_vocab);
        bias[i] = (struct bias_entry){p->bias[i].token, p->bias[i].bias};
    }
    for (uint32_t i = 0; i < p->n_bans; i++) {
        assert((uint32_t)p->bans[i] < b->shape->n_vocab);
        ban[i] = p->bans[i];
    }
    if (n_penals)
        l->n_penals = list_penalties(b, p, penal);
    else
        l->n_penals = 0;
    return true;
}

/* Returns the sequence that @row belongs to. Wants mostly come in the order of rows, so the search
 * starts at *@hint, which is then set to the sequence found. */
static const struct engine_seq *seq_of(const struct engine_batch *b, uint32_t row, uint32_t *hint) {
    for (uint32_t k = 0; k < b->n_seqs; k++) {
        const struct engine_seq *s = &b->seq[(*hint + k) % b->n_seqs];

        if (row - s->row0 < s->n_rows) {
            *hint = (*hint + k) % b->n_seqs;
            return s;
        }
    }
    assert(false);
    return NULL;
}

/* Returns a want in the form of the kernels. Log probabilities of a prompt need only the target,
 * the prompt's next token. */
static struct sample_want want_of(const struct step *s, const struct engine_want *w,
                                  const struct engine_seq *seq, const struct lists *l) {
    const struct engine_param *p = &s->batch->param[w->param];
    const struct step *before = &s->be->step[(s->batch->step + 1) % 2];
    struct sample_want out = {.target = -1,
                              .fed = seq->feed >= 0 ? (int32_t)before->place[seq->feed] : -1,
                              .n_top = w->n_top,
                              .logprob = w->logprob};

    if (w->what == WANT_PROMPT_LP) {
        uint32_t next = seq->pos0 + (w->row - seq->row0) + 1;

        assert(next < p->n_tokens);
        out.target = p->tokens[next];
        return out;
    }
    out.temperature = p->temperature;
    out.top_p = p->top_p;
    out.min_p = p->min_p;
    out.repetition = p->repetition;
    out.presence = p->presence;
    out.frequency = p->frequency;
    out.seed = p->seed;
    out.choice = p->choice;
    out.out_pos = w->out_pos;
    out.top_k = p->top_k;
    out.bias0 = l->bias0;
    out.n_bias = p->n_bias;
    out.ban0 = l->ban0;
    out.n_bans = p->n_bans;
    out.penal0 = l->penal0;
    out.n_penals = l->n_penals;
    return out;
}

/* Writes the parameters of wants [first, first + n) to the staging area, and the union of their
 * needs (sample_needs()) to *@needs. Returns false if the area is too small. */
static bool put_wants(struct step *s, uint32_t first, uint32_t n, struct sample_args *a,
                      uint32_t *needs) {
    const struct engine_batch *b = s->batch;
    struct lists l = {.param = UINT32_MAX};
    const void *d;
    uint32_t hint = 0;
    struct sample_want *want = staging_alloc(&s->wants, n * sizeof(*want), &d);

    if (!want)
        return false;
    a->want = d;
    a->bias = (const struct bias_entry *)s->wants.device;
    a->ban = (const int32_t *)s->wants.device;
    a->penal = (const struct penal *)s->wants.device;
    *needs = 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct engine_want *w = want_at(s, first + i);

        /* wants of a row are consecutive, so each parameter set is written once */
        if (w->what == WANT_SAMPLE && w->param != l.param) {
            l.param = w->param;
            if (!put_lists(s, &b->param[w->param], &l))
                return false;
        }
        want[i] = want_of(s, w, seq_of(b, w->row, &hint), &l);
        *needs |= sample_needs(&want[i], a->n_vocab);
    }
    return true;
}

/* Writes the masks of wants [first, first + n) consecutively, and for each want the index of its
 * mask. Returns false if the staging area is too small. */
static bool put_masks(struct step *s, uint32_t first, uint32_t n, struct sample_args *a) {
    uint32_t n_masks = 0, words = (s->be->shape->n_vocab + 31) / 32;
    const void *d[2];
    int32_t *index = staging_alloc(&s->wants, n * sizeof(*index), &d[0]);

    for (uint32_t i = 0; i < n; i++)
        n_masks += s->mask[first + i] != NULL;
    uint32_t *bits = staging_alloc(&s->wants, (size_t)n_masks * words * sizeof(*bits), &d[1]);
    if (!index || !bits)
        return false;
    n_masks = 0;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t *mask = s->mask[first + i];

        if (mask)
            index[i] = (int32_t)n_masks;
        else
            index[i] = -1;
        if (mask)
            memcpy(bits + (size_t)n_masks++ * words, mask, words * sizeof(*bits));
    }
    a->mask_index = d[0];
    a->mask = d[1];
    a->mask_words = words;
    return true;
}

int step_mask(struct step *s, uint32_t want, const uint32_t *bits) {
    assert(want < s->batch->n_wants && s->batch->want[want].what != WANT_HIDDEN);
    assert(s->place[want] < s->n_scored);
    s->mask[s->place[want]] = bits;
    if (s->be->fault.lost)
        return -EIO;
    return 0;
}

/* Uploads the parameters of as many wants of [first, first + n) as the staging area has room for.
 * If earlier rounds fill it, waits for them first. Returns the number of wants, at least 1, or
 * -EIO. */
static int upload_round(struct step *s, uint32_t first, uint32_t n, struct sample_args *a,
                        uint32_t *needs) {
    struct be *b = s->be;
    size_t from = round_up(s->wants.used, 16);

    assert(n > 0 && n <= LOGIT_ROWS && first + n <= s->n_scored);

    while (!put_wants(s, first, n, a, needs) || !put_masks(s, first, n, a)) {
        s->wants.used = from;
        if (from > 0) {
            TRY(cuda_check(b, b->api->stream_wait(b->queue.stream), "sample"));
            from = s->wants.used = 0;
        } else if (n == 1) {
            return cuda_lose(b, "internal error: bias, bans or penalties of a row are longer than "
                                "the buffer for them");
        } else {
            n /= 2;
        }
    }
    TRY(staging_send_beside(b, &s->wants, from));
    return (int)n;
}

/* Launches the sampling kernels that @needs names for @n rows. Rows share the multiprocessors
 * evenly, but a block has at least 2048 tokens, below which its fixed cost dominates. */
static int launch_sampling(struct be *b, const struct sample_args *a, uint32_t n, uint32_t needs) {
    assert(n > 0 && (needs & ~(uint32_t)(SAMPLE_WEIGH | SAMPLE_DRAW)) == 0);
    uint32_t most = MIN((a->n_vocab + 2047) / 2048, SAMPLE_BLOCKS);
    uint32_t n_blocks = MAX(MIN((uint32_t)b->about.device.n_multiprocessors / n, most), 1u);

    TRY(CUDA_LAUNCH(b, sample_scan, n_blocks, n, SAMPLE_THREADS, a));
    if (needs & SAMPLE_WEIGH)
        TRY(CUDA_LAUNCH(b, sample_weigh, n_blocks, n, SAMPLE_THREADS, a));
    if (needs & SAMPLE_DRAW)
        return CUDA_LAUNCH(b, sample_draw, n_blocks, n, SAMPLE_THREADS, a);
    return 0;
}

/* Samples want @k on the host from its logits on the device, and overwrites the token and the log
 * probability that the kernels stored. */
static int sample_here(struct step *s, uint32_t k, const float *logits) {
    struct be *b = s->be;
    const struct step *before = &b->step[(s->batch->step + 1) % 2];
    const struct engine_want *w = want_at(s, k);
    uint32_t hint = 0;
    const struct engine_seq *seq = seq_of(s->batch, w->row, &hint);
    struct engine_top top[ENGINE_TOP_MAX];
    struct engine_out out;
    int32_t fed = -1;

    if (seq->feed >= 0)
        TRY(cuda_copy(b, &fed, before->sampled + before->place[seq->feed], sizeof(fed),
                      CUDA_TO_HOST));
    TRY(cuda_copy(b, b->sampling.peeked, logits, b->shape->n_vocab * sizeof(*logits),
                  CUDA_TO_HOST));
    TRY(cuda_check(b, b->api->stream_wait(b->queue.stream), "sample on the host"));
    const struct sample_job job = {.logits = b->sampling.peeked,
                                   .want = w,
                                   .param = &s->batch->param[w->param],
                                   .mask = s->mask[k],
                                   .fed = fed,
                                   .target = -1};
    sampler_run(&b->sampling.host, &job, &out, top);
    const struct sample_top said = {out.token, out.logprob};
    static_assert(offsetof(struct sample_out, logprob) == sizeof(int32_t), "they begin with it");
    TRY(cuda_copy(b, s->sampled + k, &said.token, sizeof(said.token), CUDA_TO_DEVICE));
    TRY(cuda_copy(b, s->out_device + k, &said, w->logprob ? sizeof(said) : sizeof(said.token),
                  CUDA_TO_DEVICE));
    return cuda_check(b, b->api->stream_wait(b->queue.stream), "sample on the host");
}

/* Samples on the host those of wants [first, first + n) that need it; @logits on the device are
 * theirs. */
static int sample_rest(struct step *s, uint32_t first, uint32_t n, const float *logits) {
    for (uint32_t k = first; k < first + n; k++, logits += s->be->shape->n_vocab) {
        const struct engine_want *w = want_at(s, k);

        if (w->what == WANT_SAMPLE && s->batch->param[w->param].samplers)
            TRY(sample_here(s, k, logits));
    }
    return 0;
}

/* Samples as many wants from @first on as fit in one round. Returns their number, or -EIO. The
 * caller has computed the logits of the first round; a later round computes its own. Packed rows
 * can only be read from the start of a group of PACK_ROWS, or of all rows if the products use
 * tensor cores, so a round may compute up to @skip rows again before its own. */
static int sample_round(struct step *s, uint32_t first) {
    struct be *b = s->be;
    uint32_t skip = step_wanted_cores(s) ? first : first % PACK_ROWS;
    struct sample_args a = {
        .logits = b->sampling.logits + (size_t)skip * b->shape->n_vocab,
        .z = b->sampling.z,
        .state = b->sampling.state,
        .list_max = SAMPLE_LIST,
        .fed_from = b->step[(s->batch->step + 1) % 2].sampled,
        .sampled = s->sampled + first,
        .out = s->out_device + first,
        .n_vocab = b->shape->n_vocab,
        .digest = b->opts->digest,
    };
    uint32_t needs = 0;
    int n = upload_round(s, first, MIN(s->n_scored - first, LOGIT_ROWS - skip), &a, &needs);

    TRY(n);
    assert(n > 0 && skip + (uint32_t)n <= LOGIT_ROWS);
    if (first > 0)
        TRY(step_logit_rows(s, first - skip, (uint32_t)n + skip));
    TRY(launch_sampling(b, &a, (uint32_t)n, needs));
    TRY(sample_rest(s, first, (uint32_t)n, a.logits));
    return n;
}

/* Samples round by round. It returns once the kernels of all rounds and the copies of their results
 * are enqueued. */
int step_sample(struct step *s) {
    struct be *b = s->be;
    uint32_t n = s->n_scored;

    assert(s->batch && !s->recorded);
    s->wants.used = 0;
    graph_end(s);
    TRY(hidden_launch(s));
    for (uint32_t first = 0; first < n;) {
        int done = sample_round(s, first);

        TRY(done);
        first += (uint32_t)done;
    }
    if (n > 0)
        TRY(cuda_copy(b, s->out_host, s->out_device, n * sizeof(*s->out_host), CUDA_TO_HOST));
    TRY(experts_send_picks(s));
    return step_record(s);
}
