#include "engine/prove.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/result.h"
#include "base/try.h"
#include "engine/fuse.h"
#include "engine/sampler.h"

#define ROWS 20u   /* rows of the prompt: more than kernels for few rows take */
#define LIMIT 1e-2 /* largest relative error of logits and hidden vectors */
/* With 8-bit pages, or 8-bit inputs of experts on the host: a small difference moves some codes to
 * a neighbour. */
#define LIMIT_Q8_0 3e-2
#define LIMIT_Q4_0 1e-1
#define LIMIT_COARSE 1e-1 /* be_ops.coarse: an error of up to 1e-2 for each product */
#define VARIANTS_MAX 8u
/* Prompts that are tried for a model with experts. If a row's last pick and the next best are
 * nearly equal, another rounding picks another expert; about one prompt in a hundred differs
 * although the device is right. */
#define PROMPTS_OF_EXPERTS 3u

/* A running proof: the device with the model, and the reference backend (the judge) with the few
 * layers that are run. */
struct proof {
    const struct model *m;
    /* functions of the device */
    const struct be_ops *ops;
    struct be *be, *judge;
    /* [n_ops] ops of the model that are run */
    struct model_op *op;
    uint32_t n_ops, n_rows, n_pages,
        /* pages and states (slots, if it drafts) of the device */
        n_states;
    /* options of the judge, sized for the proof */
    struct engine_opts opts;
    struct model_shape shape;
    struct sampler sampler;
    /* [n_vocab], [n_embd] results of the judge */
    float *logits, *hidden;
    uint64_t step;
    /* results of the device for the prompt and for the row after it */
    struct engine_out seen[2];
    /* the last page was copied to a spare page after the others */
    bool moved;
    /* slot of the sequence's recurrent state */
    uint32_t state;
    double limit;
    /* the first error; "": none */
    char why[160];
};

/* Returns the kind of an op, where experts and FFNs on the host count as kinds of their own, since
 * other code computes them; a layer may have experts on both. */
static uint32_t prove_kind(const struct proof *p, const struct model_op *op) {
    if (op->kind == OP_GATE_UP && ffn_is_hosts(&p->m->shape, op->layer))
        return OP_KINDS + 2;
    uint32_t n = 0;

    if (op->kind == OP_EXPERTS)
        n = n_host_experts(&p->m->shape, op->layer);
    if (n == 0)
        return op->kind;
    if (n == p->m->shape.n_expert)
        return OP_KINDS;
    return OP_KINDS + 1;
}

/* Returns what an op's kernels depend on beside its kind, heads and pages. */
static uint32_t prove_way(const struct model_op *op) {
    switch (op->kind) {
    case OP_ROUTE:
        return op->picks != NULL;
    case OP_COMPRESS:
    case OP_CSA_INDEX:
    case OP_CSA_ATTEND:
    case OP_CSA_KEYS:
        return op->csa.block;
    default:
        return 0;
    }
}

/* Returns true if op @i is the first of its kind with such heads and pages on its device. */
static bool is_first(const struct proof *p, uint32_t i) {
    const struct model_op *op = &p->m->op[i];

    for (uint32_t k = 0; k < i; k++) {
        const struct model_op *x = &p->m->op[k];

        if (prove_kind(p, x) == prove_kind(p, op) && x->kv.cls == op->kv.cls &&
            prove_way(x) == prove_way(op) && x->heads.n == op->heads.n &&
            x->heads.n_kv == op->heads.n_kv && x->heads.dim == op->heads.dim &&
            device_of_layer(&p->m->shape, x->layer) == device_of_layer(&p->m->shape, op->layer))
            return false;
    }
    return true;
}

/* Chooses the layers that have an op which is the first of its kind. */
static void choose_ops(struct proof *p) {
    uint32_t last = UINT32_MAX;

    for (uint32_t i = 0; i < p->m->n_ops; i++) {
        const struct model_op *op = &p->m->op[i];
        bool bare = op->kind == OP_EMBED || op->kind == OP_LOGITS;

        if (!bare && op->layer != last)
            for (uint32_t k = i; k < p->m->n_ops && p->m->op[k].layer == op->layer; k++)
                if (p->m->op[k].kind != OP_LOGITS && is_first(p, k))
                    last = op->layer;
        if (bare || op->layer == last)
            p->op[p->n_ops++] = *op;
    }
    fuse_list(p->op, p->n_ops, &p->m->shape, p->ops);
}

/* Runs a step of rows [pos0, n_rows) of the only sequence, with one want for its last row. */
static int run_step(const struct proof *p, bool judge, uint32_t pos0, uint32_t end, uint8_t what,
                    const struct engine_param *param, struct engine_result *out) {
    const struct be_ops *ops = p->ops;
    struct be *be = p->be;
    uint32_t page[ROWS], window[ROWS],
        n_pages = (end + p->opts.page_tokens - 1) / p->opts.page_tokens;
    const uint32_t start[2] = {0, n_pages};
    const struct engine_seq seq = {.n_rows = end - pos0,
                                   .pos0 = pos0,
                                   .state_slot = p->state,
                                   .begins = pos0 == 0,
                                   .feed = -1};
    const struct engine_want want = {
        .row = end - pos0 - 1, .out_pos = 0, .what = what, .n_top = 3, .logprob = true};
    const struct engine_batch batch = {
        .step = p->step,
        .n_rows = end - pos0,
        .n_seqs = 1,
        .n_wants = 1,
        .n_params = 1,
        .token = param->tokens + pos0,
        .seq = &seq,
        .want = &want,
        .param = param,
        .table[KV_GLOBAL] = {start, page},
        .table[KV_WINDOW] = {start, window},
    };
    struct step *s;

    assert(n_pages > 0 && n_pages <= ROWS && p->n_ops > 0);
    for (uint32_t i = 0; i < n_pages; i++)
        page[i] = window[i] = i;
    page[n_pages - 1] += p->moved; /* window pages are never copied */
    if (judge) {
        ops = &backend_reference;
        be = p->judge;
    }
    TRY(ops->begin(be, &batch, &s));
    for (uint32_t i = 0; i < p->n_ops; i++)
        TRY(ops->op[p->op[i].kind]->run(s, &p->op[i]));
    TRY(ops->sample(s));
    return ops->end(s, out);
}

static double prove_distance(const float *x, const float *right, uint32_t n) {
    double d = 0, norm = 0;

    for (uint32_t i = 0; i < n; i++) {
        d += pow((double)x[i] - (double)right[i], 2);
        norm += pow((double)right[i], 2);
    }
    if (d == 0)
        return 0;
    return sqrt(d / norm);
}

static void prove_fail(struct proof *p, const char *what, double error) {
    if (!p->why[0])
        snprintf(p->why, sizeof(p->why), "%s are off by %.2g, at most %.2g is expected", what,
                 error, p->limit);
}

/* Checks that the device's sample equals the host's for the device's own logits. */
static void check_sample(struct proof *p, const struct engine_out *out, const float *logits,
                         const struct engine_param *param) {
    const struct engine_want want = {.what = WANT_SAMPLE, .n_top = 3, .logprob = true};
    const struct sample_job job = {
        .logits = logits, .want = &want, .param = param, .fed = -1, .target = -1};
    struct engine_top top[ENGINE_TOP_MAX];
    struct engine_out right;

    sampler_run(&p->sampler, &job, &right, top);
    bool same = out->token == right.token && out->n_top == right.n_top &&
                fabsf(out->logprob - right.logprob) <= 1e-5f;
    for (uint32_t i = 0; same && i < right.n_top; i++)
        same = out->top[i].token == top[i].token;
    if (!same && !p->why[0])
        snprintf(p->why, sizeof(p->why),
                 "token %d of log probability %.3g was sampled, it should be %d of %.3g",
                 out->token, (double)out->logprob, right.token, (double)right.logprob);
}

/* Runs a step for a sample or a hidden vector on both, and compares. Returns 0, or -EIO: the device
 * is lost; p->why says what differs. */
static int try_step(struct proof *p, uint32_t pos0, uint32_t end, uint8_t what,
                    const struct engine_param *param) {
    struct engine_result mine, right;

    p->step++;
    TRY(run_step(p, true, pos0, end, what, param, &right));
    if (what == WANT_HIDDEN)
        memcpy(p->hidden, right.out->vector, p->shape.n_embd * sizeof(float));
    else
        memcpy(p->logits, backend_reference.peek(p->judge, 0), p->shape.n_vocab * sizeof(float));
    TRY(run_step(p, false, pos0, end, what, param, &mine));
    if (what == WANT_HIDDEN) {
        double d = prove_distance(mine.out->vector, p->hidden, p->shape.n_embd);
        if (!(d <= p->limit))
            prove_fail(p, "hidden vectors", d);
        return 0;
    }
    const float *logits = p->ops->peek(p->be, 0);
    if (!logits)
        return -EIO;
    p->seen[end == p->n_rows] = *mine.out;
    double d = prove_distance(logits, p->logits, p->shape.n_vocab);
    if (d <= p->limit)
        check_sample(p, mine.out, logits, param);
    else if (end - pos0 > 1)
        prove_fail(p, "logits of a prompt", d);
    else
        prove_fail(p, "logits of a row alone", d);
    return 0;
}

/* Repeats the device's steps of a prompt, now as graphs if it records them; the bits must be the
 * same. */
static int prove_repeat(struct proof *p, const struct engine_param *greedy,
                        const struct engine_param *drawn) {
    const struct engine_param *param[2] = {greedy, drawn};
    const uint32_t bound[] = {0, p->n_rows - 1, p->n_rows};
    int r = 0;

    for (uint32_t i = 0; i < 2 && r == 0; i++) {
        const struct engine_out *was = &p->seen[i];
        struct engine_result again;

        if (bound[i] == bound[i + 1])
            continue;
        p->step++;
        r = run_step(p, false, bound[i], bound[i + 1], WANT_SAMPLE, param[i], &again);
        if (r == 0 && !p->why[0] &&
            (again.out->token != was->token || again.out->digest != was->digest ||
             memcmp(&again.out->logprob, &was->logprob, sizeof(was->logprob)) != 0))
            snprintf(p->why, sizeof(p->why), "a repeated step gives different bits");
    }
    return r;
}

/* Copies the last page to the next one, if there is one, which is read from then on. */
static int move_page(struct proof *p) {
    uint32_t last = (p->n_rows - 1) / p->opts.page_tokens;
    const struct engine_copy copy = {
        .src = last, .dst = last + 1, .n_tokens = (uint16_t)p->opts.page_tokens};

    if (!p->ops->copy || p->n_pages < last + 2)
        return 0;
    TRY(backend_reference.copy(p->judge, &copy));
    TRY(p->ops->copy(p->be, &copy));
    p->moved = true;
    return 0;
}

/* Copies the state to another one, if there is one, which is used from then on. */
static int move_state(struct proof *p) {
    if (p->n_states < 2)
        return 0;
    TRY(backend_reference.copy_state(p->judge, 0, 1));
    TRY(p->ops->copy_state(p->be, 0, 1));
    p->state = 1;
    return 0;
}

/* Runs all steps with the tokens of @prompt. Returns 1: right; 0: wrong, with p->why; or -EIO. */
static int try_prompt(struct proof *p, uint32_t prompt) {
    int32_t token[ROWS];
    struct engine_param greedy = {
        .top_p = 1, .repetition = 1, .tokens = token, .n_prompt = p->n_rows, .n_tokens = p->n_rows};
    struct engine_param drawn = greedy;
    uint32_t n = p->n_rows;

    drawn.temperature = 0.9f;
    drawn.top_p = 0.9f;
    drawn.min_p = 0.01f;
    drawn.top_k = 30;
    drawn.repetition = 1.1f;
    drawn.seed = 7;
    for (uint32_t i = 0; i < n; i++)
        token[i] = (int32_t)((i * 7919u + 11 + prompt) % p->shape.n_vocab);
    p->why[0] = 0;
    p->moved = false;
    p->state = 0;
    if (n > 1)
        TRY(try_step(p, 0, n - 1, WANT_SAMPLE, &greedy));
    TRY(move_page(p));
    TRY(move_state(p));
    TRY(try_step(p, n - 1, n, WANT_SAMPLE, &drawn));
    if (p->ops->hidden) /* the state is one row ahead, on both backends */
        TRY(try_step(p, n - 1, n, WANT_HIDDEN, &greedy));
    if (!p->why[0])
        TRY(prove_repeat(p, &greedy, &drawn));
    return p->why[0] == 0;
}

/* Tries prompts, as many as the model needs, until one is right. Returns 1: right; 0: wrong, with
 * p->why; or -EIO. */
static int prove_is_right(struct proof *p) {
    uint32_t n = 1;
    int r = 0;

    if (p->shape.n_expert)
        n = PROMPTS_OF_EXPERTS;
    for (uint32_t i = 0; i < n && r == 0; i++)
        r = try_prompt(p, i);
    return r;
}

/* Turns variants off until the results are right, then turns those on again that are not to
 * blame. */
static int find_variants(struct proof *p, char *note, size_t size, struct err *err) {
    const char *name[VARIANTS_MAX];
    char why[sizeof(p->why)];
    bool out[VARIANTS_MAX] = {false};
    uint32_t n = 0;
    int r = prove_is_right(p);

    memcpy(why, p->why, sizeof(why));
    for (; r == 0 && n < VARIANTS_MAX && p->ops->variant(p->be, n, false, &name[n]); n++) {
        out[n] = true;
        r = prove_is_right(p);
    }
    TRY(r);
    if (r == 0)
        return err_set(err, 0, NULL,
                       "the device computes wrong results: %s; use --backend cpu and report this",
                       why);
    for (uint32_t i = 0; i + 1 < n; i++) {
        p->ops->variant(p->be, i, true, &name[i]);
        r = prove_is_right(p);
        TRY(r);
        out[i] = r == 0;
        if (out[i])
            p->ops->variant(p->be, i, false, &name[i]);
    }
    for (uint32_t i = 0; i < n; i++)
        if (out[i])
            note_add(note, size, "; ", "without %s: %s", name[i], why);
    return 0;
}

static int open_judge(struct proof *p, const struct engine_opts *o, struct err *err) {
    const struct model_shape *s = &p->shape;

    p->shape.compressed.n_block = MIN(s->compressed.n_block, PROOF_BLOCKS);
    p->shape.sparse.n_block = MIN(s->sparse.n_block, MAX(PROOF_BLOCKS, s->sparse.n_local));
    p->opts = *o;
    p->opts.max_rows = p->opts.max_context = p->n_rows;
    p->opts.max_seqs = p->opts.max_wants = 1;
    p->opts.n_host_pages = 0;
    const struct be_opts be = {
        .shape = s,
        .engine = &p->opts,
        .n_pages = (p->n_rows + o->page_tokens - 1) / o->page_tokens + 1,
        .page_bytes = page_size(s, KV_GLOBAL, o->kv_type, o->page_tokens),
        .n_windows =
            s->n_kv_layer[KV_WINDOW] ? (p->n_rows + o->page_tokens - 1) / o->page_tokens : 0,
        .n_states = 2,
        .n_slots = s->drafts ? 2 : 0,
    };
    TRY(backend_reference.open(&p->judge, &be, err));
    p->op = calloc(p->m->n_ops, sizeof(*p->op));
    p->logits = calloc(s->n_vocab, sizeof(*p->logits));
    p->hidden = calloc(s->n_embd, sizeof(*p->hidden));
    return enomem_unless(p->op && p->logits && p->hidden &&
                         sampler_init(&p->sampler, s->n_vocab) == 0);
}

/* Returns the largest error of a device that is right, by the coarser of the formats of keys and
 * values. */
static double prove_limit(const struct model *m, struct kv_formats kv, bool coarse) {
    uint32_t bits = MIN(kv_types[kv.k].code_bits, kv_types[kv.v].code_bits);

    if (coarse)
        return LIMIT_COARSE;
    if (bits < 8)
        return LIMIT_Q4_0;
    if (bits == 8 || has_host_part(&m->shape))
        return LIMIT_Q8_0;
    return LIMIT;
}

int prove_device(const struct model *m, const struct be_ops *ops, struct be *be,
                 const struct engine_opts *opts, uint32_t n_states, char *note, size_t size,
                 struct err *err) {
    struct proof p = {
        .m = m,
        .ops = ops,
        .be = be,
        .shape = m->shape,
        .n_rows = MIN(MIN(ROWS, opts->max_rows), opts->max_context),
        .n_pages = opts->n_pages,
        .n_states = m->shape.drafts ? opts->n_states : n_states,
        .limit = prove_limit(m, opts->kv_type, ops->coarse && ops->coarse(be)),
    };

    note[0] = 0;
    if (!ops->proving || !ops->proving(be, true))
        return 0;
    assert(ops->device && ops->peek && ops->variant);
    int r = open_judge(&p, opts, err);
    if (r == 0) {
        choose_ops(&p);
        r = find_variants(&p, note, size, err);
    }
    ops->proving(be, false);
    backend_reference.close(p.judge);
    sampler_deinit(&p.sampler);
    free(p.op);
    free(p.logits);
    free(p.hidden);
    return r;
}
