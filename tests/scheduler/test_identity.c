/*
 * Company, speculation, chunking and preemption change no bit: a thousand random requests on the
 * cpu backend (and some on others) with a small random model, at any temperature, with penalties,
 * bias, stop strings and end tokens, half of them constrained: by random JSON Schemas, by
 * expressions, after reasoning, in tool calls. Each gets the same tokens, digests, log
 * probabilities and end as alone without drafts, and constrained output is valid: complete texts
 * for their schema, cut texts as far as they go.
 */

#include <criterion/criterion.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "grammar/constraint.h"
#include "scheduler/draft/draft.h"
#include "tests/support/few.h"
#include "tests/support/json_vocab.h"
#include "tests/support/schemas.h"
#include "tests/support/serving.h"
#include "tests/support/tiny_model.h"

/* The file is compiled a second time with another backend and fewer requests. */
#ifndef BACKEND
#define BACKEND "cpu"
#define N_REQUESTS FEWER(1000, 200)
#endif

enum { REQUESTS = N_REQUESTS, TOGETHER = 12, PROMPT = 40, OUT = HEARD_MAX, TEXT = 2048 };
enum kind { FREE, SCHEMA, REGEX, THINK, TOOLS, CHOICE, KINDS };

static struct heard alone[REQUESTS], other[REQUESTS];

static struct ask {
    enum kind kind;
    char grammar[TEXT], triggers[64];
    /* position of the schema in `grammar` */
    size_t schema_at, n_schema;
    struct constraint *constraint;
    /* least: fewest tokens of a complete output; 0: it may be cut */
    uint32_t n_refs, least;
    int32_t prediction[HEARD_MAX];
} asks[REQUESTS];

static const struct draft_source *const model_only[] = {&draft_model, NULL};
static struct gguf *model;
static struct tokenizer *tokenizer;
static struct grammar_vocab *vocab;
static struct msg_stats sum, last;

/* ---- requests */

static void put_schema(struct ask *a, const char *before, const char *after,
                       struct schema_writer *w) {
    for (;;) {
        struct grammar *g = NULL;
        int n;

        schema_write(w);
        if (w->b.len + strlen(before) + strlen(after) + 1 > sizeof(a->grammar))
            continue;
        n = snprintf(a->grammar, sizeof(a->grammar), "%s%.*s%s", before, (int)w->b.len, w->b.data,
                     after);
        if (constraint_compile(&g, vocab, a->grammar, (size_t)n, NULL, NULL) < 0)
            continue; /* the schema contradicts itself, or uses unsupported keywords */
        grammar_free(g);
        a->schema_at = strlen(before);
        a->n_schema = w->b.len;
        return;
    }
}

static void draw_ask(struct ask *a, struct schema_writer *w) {
    static const char *const regexes[] = {"[a-d]{2,30}", "(name|city|[0-9]{1,4}[.])+",
                                          R"(\\{\"[a-z]+\":[0-9]+\\})"};

    a->kind = rng_below(&w->r, 2) ? FREE : 1 + rng_below(&w->r, KINDS - 1);
    switch (a->kind) {
    case SCHEMA:
        put_schema(a, R"({"json_schema":)", rng_below(&w->r, 2) ? "}" : R"(,"compact":true})", w);
        break;
    case REGEX:
        snprintf(a->grammar, sizeof(a->grammar), R"({"regex":"%s"})", regexes[rng_below(&w->r, 3)]);
        break;
    case THINK:
        put_schema(a, R"({"json_schema":)", "}", w);
        strcpy(a->triggers, R"({"after":["</think>"],"required":true})");
        break;
    case TOOLS:
        put_schema(a,
                   R"({"sequence":[{"literal":"{\"name\":\"get_weather\",\"value\":"},)"
                   R"({"json_schema":)",
                   R"(},{"literal":"}</tool_call>"}]})", w);
        strcpy(a->triggers, R"({"after":["<tool_call>"],"repeat":true})");
        break;
    case CHOICE:
        strcpy(a->grammar, R"({"choice":["true","false","name of the city","\u00e9"]})");
        break;
    default:
        break;
    }
}

/* Draws whether a constrained request must be complete when it is cut: two in three. */
static void draw_least(struct ask *a, uint32_t i) {
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
    struct err err = {0};

    if (a->kind == FREE || i % 3 == 0)
        return;
    cr_assert_eq(constraint_new(&a->constraint, vocab, a->grammar, strlen(a->grammar), a->triggers,
                                strlen(a->triggers), NULL, &err),
                 0, "%s", err.message);
    cr_assert_eq(constraint_state_new(&s, a->constraint), 0);
    uint32_t least = MAX(constraint_distance(s), 1u);

    a->least = least <= OUT ? least : 0;
}

static void prepare(void) {
    struct schema_writer w = {.r = {77}};
    struct err err = {0};
    char path[64];

    setlocale(LC_CTYPE, "C.UTF-8");
    tiny_model_temp(
        &(struct tiny_model){
            .seed = 8, .n_layer = 1, .n_embd = 128, .n_ff = 128, .n_vocab = JSON_VOCAB},
        path);
    cr_assert_eq(gguf_open(&model, path, &err), 0, "%s", err.message);
    unlink(path);
    tokenizer = json_vocab_new();
    cr_assert_eq(grammar_vocab_of(&vocab, tokenizer), 0);
    buf_init(&w.b, 1 << 20);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        draw_ask(&asks[i], &w);
        draw_least(&asks[i], i);
    }
    buf_deinit(&w.b);
}

static int get_constraint(void *ctx, const struct submit *m, const struct constraint **out,
                          struct err *err) {
    struct ask *a = &asks[m->id - 1];
    int r = 0;

    if (!a->constraint)
        r = constraint_new(&a->constraint, vocab, m->grammar.data, m->grammar.len, m->triggers.data,
                           m->triggers.len, NULL, err);
    cr_assert_eq(r, 0, "%s: %s", a->grammar, err->message);
    a->n_refs++;
    *out = a->constraint;
    return 0;
}

static void release(void *ctx, const struct constraint *c, uint32_t tenant) {
    (*(uint32_t *)ctx)++;
    (void)c;
}

/* Draws lists of tokens: every second unconstrained request has bad words, every fourth may use
 * half of the tokens. */
static void draw_allowed(const struct ask *a, uint32_t i, struct submit *m) {
    static int32_t bad[3 * 200], allowed[JSON_VOCAB];
    struct rng r = {9000 + i};

    if (a->kind != FREE || i % 2)
        return;
    for (uint32_t k = 0; k < ARRAY_SIZE(bad); k += 3) {
        bad[k] = 2;
        bad[k + 1] = (int32_t)rng_below(&r, JSON_VOCAB);
        bad[k + 2] = (int32_t)rng_below(&r, JSON_VOCAB);
    }
    m->bad_words = (struct str){(const char *)bad, sizeof(bad)};
    for (uint32_t k = 0; k < JSON_VOCAB / 2; k++)
        allowed[k] = k ? (int32_t)rng_below(&r, JSON_VOCAB) : JSON_VOCAB_END;
    if (i % 4 == 0)
        m->allowed = (struct str){(const char *)allowed, JSON_VOCAB / 2 * sizeof(*allowed)};
}

static uint32_t n_late;

static int put(void *ctx, struct constrain_job *j) {
    j->job.run(&j->job);
    j->job.done(&j->job);
    n_late++;
    return 0;
}

static void submit(struct sched *s, uint32_t i, bool predictions) {
    static const char *const stops[] = {"e1", "name", "}}"};
    struct rng r = {100 + i}, common = {i / 6 + 1};
    struct submit_bias bias[] = {{5, 1.5F},
                                 {tokenizer_find(tokenizer, "</think>", 8), 3},
                                 {tokenizer_find(tokenizer, "<tool_call>", 11), 3},
                                 {JSON_VOCAB_END, 2}};
    const struct ask *a = &asks[i];
    int32_t tokens[PROMPT];
    struct submit m = {
        .id = i + 1,
        .seed = 50 + i,
        .n_prompt = 8 + rng_below(&r, PROMPT - 8),
        .max_new = 1 + rng_below(&r, OUT),
        .tokens = tokens,
        .flags = SUBMIT_DIGESTS | SUBMIT_LOGPROBS,
        .n_bias = a->kind == THINK || a->kind == TOOLS ? 4
                  : rng_below(&r, 3)                   ? 0
                                                       : 1,
        .bias = bias,
        .grammar = {a->grammar, (uint32_t)strlen(a->grammar)},
        .triggers = {a->triggers, (uint32_t)strlen(a->triggers)},
    };

    m.n_tokens = m.n_prompt;
    m.min_new = rng_below(&r, 4) ? 0 : rng_below(&r, m.max_new);
    for (uint32_t k = 0; k < m.n_prompt; k++) /* a repetitive prompt */
        tokens[k] =
            k > 12 && rng_below(&r, 4) ? tokens[k - 7] : (int32_t)rng_below(&common, JSON_VOCAB);
    m.flags |= a->least ? SUBMIT_COMPLETE : 0;
    m.max_new = MAX(m.max_new, a->least);
    serving_draw(&r, &m.sampling);
    m.sampling.ignore_eos = rng_below(&r, 6) == 0;
    m.n_stops = rng_below(&r, 4) ? 0 : 1 + rng_below(&r, 3);
    for (uint32_t k = 0; k < m.n_stops; k++)
        m.stops[k] = (struct str){stops[k], (uint32_t)strlen(stops[k])};
    draw_allowed(a, i, &m);
    if (predictions && rng_below(&r, 4))
        heard_predict(&alone[i], i + 5000, JSON_VOCAB, asks[i].prediction, &m);
    cr_assert_eq(sched_submit(s, &m), 0);
}

/* ---- results */

/* @pages: number of pages; if few, requests preempt each other. @drafts: the model is its own draft
 * model. */
static void serve(const struct sched_opts *opts, uint32_t pages, bool drafts, struct heard *all) {
    uint32_t n_released = 0, n_asked = 0;
    /* A draft ends where a mask would be late. */
    struct sched_constraints source = {&n_released, get_constraint, NULL,
                                       NULL,        release,        drafts ? NULL : put};
    struct serving w = {
        .model = model,
        .draft = drafts ? model : NULL,
        .backend = BACKEND,
        .max_seqs = TOGETHER,
        .n_pages = pages,
        .draft_pages = 200,
        .draft_page_tokens = 16,
        .n_requests = REQUESTS,
        .at_once = 2 * TOGETHER,
        .submit = submit,
    };
    struct sched_opts so = *opts;

    so.tokenizer = tokenizer;
    so.constraints = &source;
    serving_run(&w, &so, all, &last);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        n_asked += asks[i].n_refs;
        asks[i].n_refs = 0;
    }
    cr_expect_eq(n_asked, n_released);
    sum.n_preemptions += last.n_preemptions;
    sum.n_drafted += last.n_drafted;
    sum.n_accepted += last.n_accepted;
    sum.n_output_tokens += last.n_output_tokens;
}

/* Checks that the tokens follow the masks of a fresh state, and that a complete text is valid for
 * its schema. */
static bool check_text(uint32_t i, uint32_t *n_complete) {
    const struct heard *h = &alone[i];
    const struct ask *a = &asks[i];
    struct constraint_state *matcher;
    struct buf text;
    bool ended = h->n > 0 && h->token[h->n - 1] == JSON_VOCAB_END;
    bool complete = a->least && h->finish == FINISH_LENGTH, whole = ended || complete;

    if (a->kind == FREE)
        return false;
    cr_assert_eq(constraint_state_new(&matcher, a->constraint), 0);
    for (uint32_t k = 0; k < h->n; k++)
        cr_assert_eq(constraint_accept(matcher, h->token[k]), 0, "request %u, token %u", i, k);
    cr_assert(!complete || constraint_can_end(matcher) || constraint_is_done(matcher),
              "request %u is cut after %u tokens: %s", i, h->n, a->grammar);
    *n_complete += complete;
    constraint_state_free(matcher);
    if (a->kind != SCHEMA || !whole)
        return false;
    buf_init(&text, 1 << 20);
    for (uint32_t k = 0; k + ended < h->n; k++) {
        size_t n;
        const char *piece = tokenizer_piece(tokenizer, h->token[k], true, &n);

        buf_add(&text, piece, n);
    }
    cr_assert(schema_allows(a->grammar + a->schema_at, a->n_schema, text.data, text.len),
              "request %u: %.*s\n%s", i, (int)text.len, text.data, a->grammar);
    buf_deinit(&text);
    return true;
}

Test(identity, requests_get_what_they_would_get_alone) {
    uint32_t n_whole = 0, n_stopped = 0, n_drafted = 0, n_complete = 0;

    prepare();
    serve(
        &(struct sched_opts){
            .depth = 1, .max_seqs = 1, .no_speculation = true, .no_prefix_sharing = true},
        64, false, alone);
    cr_expect_eq(sum.n_drafted, 0);
    cr_expect_eq(sum.n_preemptions, 0);
    uint64_t n_out = sum.n_output_tokens;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        n_whole += check_text(i, &n_complete);
        n_stopped += alone[i].finish == FINISH_STOP;
    }
    serve(&(struct sched_opts){.depth = 2, .max_seqs = TOGETHER, .no_speculation = true}, 12, false,
          other);
    heard_compare(alone, other, REQUESTS);
    serve(&(struct sched_opts){.depth = 1, .max_seqs = TOGETHER, .force_draft = 8}, 40, false,
          other);
    heard_compare(alone, other, REQUESTS);
    for (uint32_t i = 0; i < REQUESTS; i++)
        n_drafted += asks[i].kind != FREE && other[i].n_accepted > 0;
    serve(&(struct sched_opts){.depth = 2, .max_seqs = TOGETHER, .force_chunk = 7}, 14, false,
          other);
    heard_compare(alone, other, REQUESTS);
    serve(&(struct sched_opts){.depth = 2, .max_seqs = TOGETHER, .force_late = true}, 14, false,
          other);
    heard_compare(alone, other, REQUESTS);
    cr_expect_gt(n_late, REQUESTS < 100 ? 0 : REQUESTS, "%u", n_late);
    /* The draft model samples with the same noise and under the same masks, so its drafts are right
     * up to a stop string. */
    serve(
        &(struct sched_opts){
            .depth = 2, .max_seqs = TOGETHER, .force_draft = 4, .drafts = model_only},
        40, true, other);
    heard_compare(alone, other, REQUESTS);
    cr_expect_gt(last.n_drafted, REQUESTS);
    cr_expect_leq(last.n_drafted - last.n_accepted, REQUESTS / 20 + 8);
    cr_expect_eq(sum.n_output_tokens, 6 * n_out);
    /* Drafts were accepted. Their number depends on the time that steps take. */
    cr_expect_gt(sum.n_accepted, REQUESTS);
    if (REQUESTS == 1000) {
        cr_expect_gt(sum.n_preemptions, 5);
        cr_expect_gt(sum.n_drafted - sum.n_accepted, 500);
        cr_expect(n_whole > 50 && n_complete > 50 && n_stopped > 200 && n_drafted > 100);
    }
    fprintf(stderr,
            "# %lu tokens, %lu of %lu drafted accepted, %lu preemptions; %u whole JSON texts, %u "
            "complete when cut, %u stopped, %u constrained with drafts\n",
            sum.n_output_tokens, sum.n_accepted, sum.n_drafted, sum.n_preemptions, n_whole,
            n_complete, n_stopped, n_drafted);
    for (uint32_t i = 0; i < REQUESTS; i++)
        constraint_free(asks[i].constraint);
    grammar_vocab_free(vocab);
    tokenizer_free(tokenizer);
    gguf_free(model);
}
