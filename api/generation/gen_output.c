#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/gen_private.h"
#include "api/generation/model.h"
#include "base/try.h"
#include "text/repeats.h"

#define CLOSINGS_MAX 8 /* blocks of reasoning of one output that are closed here */
#define LOOP_CHECKS 16

/*
 * The output of a generation: its tokens, their text, how much of the text may be sent, and which
 * parts of it are reasoning and tool calls. All of it depends on the tokens alone and not on the
 * batches in which they arrive: each token is taken once, by its position. So reasoning always ends
 * at the same token, and a generation that continues after the death of a worker gives the output
 * that it would have given without it.
 */

bool gen_is_end(const struct gen *g, int32_t id) {
    for (uint32_t i = 0; i < g->m.n_stop_ids; i++)
        if (g->m.stop_ids[i] == id)
            return true;
    return !g->m.sampling.ignore_eos && tokenizer_is_end(g->model->info->tokenizer, id);
}

bool gen_is_text(const struct gen *g, uint32_t i) {
    size_t begin = i ? g->text_end[i - 1] : 0;

    return !(g->stopped && begin >= g->ready) && !gen_is_end(g, g->tokens[g->n_prompt + i]);
}

/* Returns true if the text that is parsed next is the beginning of output token @i, a special one.
 * */
static bool begins_special(const struct gen *g, uint32_t i) {
    return i < g->n_out && g->n_parsed == (i ? g->text_end[i - 1] : 0) &&
           tokenizer_is_special(g->model->info->tokenizer, g->tokens[g->n_prompt + i]);
}

/* Feeds the output parser the text that has become ready, one token at a time, so that each token
 * is counted where it belongs: as reasoning or not. */
int gen_feed_output(struct gen *g) {
    int r = 0;

    /* Each iteration feeds the text up to the end of a token, or to g->ready. */
    while (g->output && r == 0 && g->n_parsed < g->ready) {
        uint32_t i = g->n_counted;
        size_t end = MIN(i < g->n_out ? g->text_end[i] : g->ready, g->ready);
        bool whole = i < g->n_out && end == g->text_end[i];

        if (begins_special(g, i))
            output_parser_note_token(g->output);
        r = output_parser_feed(g->output, g->text.data + g->n_parsed, end - g->n_parsed);
        if (whole)
            output_parser_count(g->output, end - (i ? g->text_end[i - 1] : 0));
        if (whole && g->content_end)
            g->content_end[i] = (uint32_t)g->output->text[OUTPUT_CONTENT].len;
        g->n_counted += whole;
        g->n_parsed = end;
    }
    return r;
}

/* Makes room for @n output tokens in every array that this generation keeps. */
static int reserve(struct gen *g, uint32_t n) {
    uint32_t cap = MIN(MAX(MAX(n, g->cap_out * 2), 64u), MAX(g->m.max_new, n));

    assert(g->n_out <= g->cap_out);
    if (n <= g->cap_out)
        return 0;
    if (!array_resize(&g->tokens, g->n_prompt + cap, sizeof(*g->tokens)) ||
        !array_resize(&g->text_end, cap, sizeof(*g->text_end)) ||
        ((g->m.flags & SUBMIT_LOGPROBS) && g->output &&
         !array_resize(&g->content_end, cap, sizeof(*g->content_end))) ||
        ((g->m.flags & SUBMIT_LOGPROBS) &&
         !array_resize(&g->logprobs, cap, sizeof(*g->logprobs))) ||
        (g->m.n_top && !array_resize(&g->top, cap * g->m.n_top, sizeof(*g->top))) ||
        ((g->m.flags & SUBMIT_DIGESTS) && !array_resize(&g->digests, cap, sizeof(*g->digests))))
        return -ENOMEM;
    g->cap_out = cap;
    return 0;
}

/* Returns the text of a token. A control token has none, unless the client asked for special tokens
 * or the token is part of a marker that the output parser looks for. */
static const char *piece_of(const struct gen *g, int32_t id, size_t *len) {
    const struct tokenizer *t = g->model->info->tokenizer;

    *len = 0;
    if (gen_is_end(g, id))
        return "";
    const char *piece = tokenizer_piece(t, id, g->keep_special, len);
    if (*len || !g->output)
        return piece;
    piece = tokenizer_piece(t, id, true, len);
    if (!output_parser_wants(g->output, piece, *len))
        *len = 0;
    return piece;
}

/* Adds the token's text and looks for a stop string in it. */
static int gen_add_text(struct gen *g, int32_t id) {
    struct stops_match match;
    size_t len;
    const char *piece = piece_of(g, id, &len);

    if (g->stopped)
        return 0;
    if (buf_add(&g->text, piece, len) < 0)
        return -ENOMEM;
    if (!g->stops || !stops_feed(g->stops, piece, len, &match))
        return 0;
    g->stopped = true;
    g->stop_index = (uint32_t)match.index;
    g->ready = MIN(match.begin + (g->include_stop ? g->m.stops[match.index].len : 0), g->text.len);
    return 0;
}

/* Computes how many bytes of the text may be sent while more may come. The number never
 * decreases. */
static void gen_settle(struct gen *g) {
    if (g->stopped)
        return;
    size_t n = g->text.len - (g->stops ? MIN(stops_held(g->stops), g->text.len) : 0);
    n -= n ? utf8_incomplete_tail(g->text.data, n) : 0;
    assert(n <= g->text.len);
    g->ready = MAX(g->ready, n);
}

static int gen_add_token(struct gen *g, const struct event *e, uint32_t i) {
    uint32_t at = g->n_out;

    assert(at < g->cap_out);
    if (e->tokens[i] < 0 || (uint32_t)e->tokens[i] >= g->model->info->n_vocab)
        return -EPROTO;
    g->tokens[g->n_prompt + at] = e->tokens[i];
    if (g->logprobs)
        g->logprobs[at] = e->logprobs ? e->logprobs[i] : 0;
    for (uint32_t k = 0; g->top && k < g->m.n_top; k++)
        g->top[at * g->m.n_top + k] =
            e->top && k < e->n_top ? e->top[i * e->n_top + k] : (struct event_top){-1, 0};
    if (g->digests)
        g->digests[at] = e->digests ? e->digests[i] : 0;
    if (gen_add_text(g, e->tokens[i]) < 0)
        return -ENOMEM;
    g->text_end[at] = (uint32_t)g->text.len;
    g->n_out++;
    return 0;
}

int gen_add_output(struct gen *g, const int32_t *tokens, uint32_t n) {
    struct event e = {.tokens = tokens};
    int r = reserve(g, g->n_out + n);

    for (uint32_t i = 0; i < n && r == 0; i++)
        r = gen_add_token(g, &e, i);
    gen_settle(g);
    TRY(r);
    return gen_feed_output(g);
}

/* ---- reasoning and its budget ---- */

int gen_limit_reasoning(struct gen *g, uint32_t max) {
    assert(g->state == GEN_WAITING && g->output);
    const struct toolcall_opts *o = &g->output->opts;
    const char *close = o->format ? o->format->own.end : NULL;
    struct tokens t = {.max = ARRAY_SIZE(g->thinking.close)};
    char text[64];

    if (!close && o->reasoning)
        close = o->reasoning->close;
    if (!close)
        return 0;
    snprintf(text, sizeof(text), "%s%s", close, strncmp(close, "</", 2) == 0 ? "\n\n" : "");
    int r = tokenizer_encode(g->model->info->tokenizer, text, strlen(text), TOKENIZE_SPECIAL, NULL,
                             0, &t);
    if (r == 0) {
        memcpy(g->thinking.close, t.id, t.n * sizeof(*t.id));
        g->thinking.n_close = (uint32_t)t.n;
        g->thinking.limited = true;
        g->thinking.max = max;
    }
    tokens_deinit(&t);
    if (r == -ENOMEM)
        return r;
    return 0;
}

/* A model may begin to reason again when its budget is spent: each block is closed. A repetition
 * closes the reasoning once, then it ends the output. */
bool gen_closes_reasoning(const struct gen *g) {
    bool over = g->output && g->output->n_reasoning >= g->thinking.max;
    bool loops = g->repeats && g->thinking.n_closed == 0;

    return g->thinking.limited && !g->stopped && g->output->in_reasoning && (over || loops) &&
           g->thinking.n_closed < CLOSINGS_MAX && g->n_out + g->thinking.n_close < g->m.max_new;
}

int gen_end_reasoning(struct gen *g) {
    assert(g->thinking.limited && g->thinking.n_closed < CLOSINGS_MAX);
    g->thinking.n_closed++;
    g->repeats = false;
    int r = gen_add_output(g, g->thinking.close, g->thinking.n_close);
    g->loop_from = g->n_out;
    return r;
}

/* ---- loops ---- */

/* Returns true if the last loop_tokens tokens are a loop, or 4, 16, ... times as many, of longer
 * blocks. A number of tokens is searched LOOP_CHECKS times while as many arrive, which costs at
 * most 3 * LOOP_CHECKS steps a token. The places depend on the number of tokens alone, never on
 * batches. */
static bool repeats(const struct gen *g) {
    uint32_t n_seen = g->n_out - g->loop_from;
    const int32_t *end = g->tokens + g->n_prompt + g->n_out;

    if (g->loop_tokens == 0)
        return false;
    for (uint32_t n = g->loop_tokens; n <= MIN(n_seen, REPEATS_MAX); n *= REPEATS_COPIES)
        if (n_seen % MAX(n / LOOP_CHECKS, 1u) == 0 && repeats_loop(end - n, n))
            return true;
    return false;
}

/* ---- tokens from the worker ---- */

int gen_add_tokens(struct gen *g, const struct event *e) {
    uint32_t n = e->n_tokens, most = g->m.max_new;

    if (g->score_only)
        return 0;
    if (e->from > g->n_out)
        return -EPROTO;
    n = MIN(n, most - MIN(e->from, most));
    TRY(reserve(g, MAX(e->from + n, g->n_out)));
    for (uint32_t i = g->n_out - e->from; i < n && !g->stopped; i++) {
        TRY(gen_add_token(g, e, i));
        g->repeats = !g->stopped && repeats(g);
        if (g->repeats)
            break;
        if (!g->thinking.limited)
            continue;
        gen_settle(g);
        TRY(gen_feed_output(g));
        if (gen_closes_reasoning(g))
            break;
    }
    gen_settle(g);
    return gen_feed_output(g);
}
