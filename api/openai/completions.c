#include <assert.h>
#include <errno.h>

#include "api/generation/env.h"
#include "api/generation/read_request.h"
#include "api/openai/choices.h"
#include "api/openai/openai.h"
#include "api/openai/raw_answer.h"

#define DEFAULT_TOKENS 16 /* OpenAI's default */

void choices_put_text(struct json *j, const struct writer *w, const struct piece *p, bool stream) {
    CLEANUP(buf_deinit) struct buf b = {.max = API_SEND_MAX};
    const struct echo *e = p->choice->echo;

    assert(p->echo_from <= p->echo_to && p->echo_to <= (e ? e->n : 0));
    if (p->echo_from == p->echo_to) {
        json_print(j, "text:%.*s", (int)p->len, p->text);
        return;
    }
    size_t from = p->echo_from ? e->end[p->echo_from - 1] : 0;
    size_t to = p->echo_to < e->n ? e->end[p->echo_to - 1] : e->text.len;
    if (buf_add(&b, e->text.data + from, to - from) < 0 || buf_add(&b, p->text, p->len) < 0)
        j->error = -ENOMEM;
    else
        json_print(j, "text:%.*s", (int)b.len, b.data);
}

/* A part of the lists of logprobs: tokens of the prompt when it is echoed, and tokens of the piece.
 * Every list has an entry for each token of the echo, and for each output token that became
 * text. */
struct span {
    const struct gen *g;
    const struct echo *echo;
    uint32_t echo_from, echo_to, from, to;
};

/* Writes the texts of the tokens. */
static void completions_put_tokens(struct json *j, const struct writer *w, const struct span *s) {
    json_open(j, '[');
    for (uint32_t i = s->echo_from; i < s->echo_to; i++)
        choices_put_token(j, w, s->g->tokens[i]);
    for (uint32_t i = s->from; i < s->to; i++)
        if (gen_is_text(s->g, i))
            choices_put_token(j, w, s->g->tokens[s->g->n_prompt + i]);
    json_close(j, ']');
}

/* Writes log probabilities. The first token of a prompt has none, because nothing precedes it. */
static void completions_put_values(struct json *j, const struct span *s) {
    assert(s->from == s->to || s->g->logprobs);
    json_open(j, '[');
    for (uint32_t i = s->echo_from; i < s->echo_to; i++) {
        if (i == 0 || !s->g->prompt_lp)
            json_print(j, "null");
        else
            json_double(j, (double)s->g->prompt_lp[i - 1]);
    }
    for (uint32_t i = s->from; i < s->to; i++)
        if (gen_is_text(s->g, i))
            json_double(j, (double)s->g->logprobs[i]);
    json_close(j, ']');
}

static void completions_put_entry(struct json *j, const struct writer *w, int32_t id,
                                  float logprob) {
    choices_put_token(j, w, id);
    json_colon(j);
    json_double(j, (double)logprob);
}

/* Writes the @n likely tokens @t of one place by their text, and the token that stands there, @id,
 * if it is not among them. Tokens of the same text have an entry each. */
static void put_top(struct json *j, const struct writer *w, const struct event_top *t, uint32_t n,
                    int32_t id, float logprob) {
    bool seen = false;

    json_open(j, '{');
    for (uint32_t k = 0; k < n; k++) {
        if (t[k].token >= 0)
            completions_put_entry(j, w, t[k].token, t[k].logprob);
        seen |= t[k].token == id;
    }
    if (!seen)
        completions_put_entry(j, w, id, logprob);
    json_close(j, '}');
}

/* Writes the top tokens for every token of @s, in order. */
static void put_tops(struct json *j, const struct writer *w, const struct span *s) {
    const struct submit *m = &s->g->m;

    assert(m->n_top == 0 || s->from == s->to || s->g->top);
    json_open(j, '[');
    for (uint32_t i = s->echo_from; i < s->echo_to; i++) {
        if (i % CHOICES_PAUSE == 0)
            choices_pause(j);
        if (i == 0 || !s->g->prompt_lp)
            json_print(j, "null");
        else
            put_top(j, w, m->n_top ? &s->g->prompt_top[(size_t)(i - 1) * m->n_prompt_top] : NULL,
                    m->n_top, s->g->tokens[i], s->g->prompt_lp[i - 1]);
    }
    for (uint32_t i = s->from; i < s->to; i++) {
        if (i % CHOICES_PAUSE == 0)
            choices_pause(j);
        if (gen_is_text(s->g, i))
            put_top(j, w, m->n_top ? &s->g->top[(size_t)i * m->n_top] : NULL, m->n_top,
                    s->g->tokens[s->g->n_prompt + i], s->g->logprobs[i]);
    }
    json_close(j, ']');
}

/* Writes how many characters of the text precede each token. */
static void put_offsets(struct json *j, const struct span *s, uint64_t chars) {
    const struct gen *g = s->g;
    uint64_t before =
        s->echo_from ? echo_chars(s->echo->text.data, 0, s->echo->end[s->echo_from - 1]) : 0;

    json_open(j, '[');
    for (uint32_t i = s->echo_from; i < s->echo_to; i++) {
        uint32_t at = i ? s->echo->end[i - 1] : 0;

        json_uint(j, before);
        before += echo_chars(s->echo->text.data, at, s->echo->end[i]);
    }
    for (uint32_t i = s->from; i < s->to; i++) {
        uint32_t at = i ? g->text_end[i - 1] : 0;

        if (gen_is_text(g, i))
            json_uint(j, chars);
        chars += echo_chars(g->text.data, at, g->text_end[i]);
    }
    json_close(j, ']');
}

void choices_put_text_logprobs(struct json *j, const struct writer *w, const struct piece *p) {
    struct span s = {p->choice->gen, p->choice->echo, p->echo_from, p->echo_to, p->from, p->to};

    assert(s.from <= s.to && s.to <= s.g->n_out && s.echo_from <= s.echo_to);
    assert(s.echo_from == s.echo_to || (s.echo && s.echo_to <= s.echo->n));
    json_print(j, "{tokens:");
    completions_put_tokens(j, w, &s);
    json_print(j, "token_logprobs:");
    completions_put_values(j, &s);
    json_print(j, "top_logprobs:");
    put_tops(j, w, &s);
    json_print(j, "text_offset:");
    put_offsets(j, &s, p->choice->n_chars);
    json_close(j, '}');
}

static const struct choices_form form = {
    .object = "text_completion",
    .chunk_object = "text_completion",
    .prompt_in_choice = true,
    .content = choices_put_text,
    .logprobs = choices_put_text_logprobs,
    .figures = raw_answer_put_figures,
};

int openai_read_completion(struct prompt_job *job, yyjson_doc *body, struct err *err) {
    return gen_request_read(&job->request, job->model, FIELDS_COMPLETION, body, err);
}

const struct endpoint openai_completion = {
    .translate = openai_read_completion,
    .id_prefix = "cmpl-",
    .default_tokens = DEFAULT_TOKENS,
    CHOICES_OF(form),
};
