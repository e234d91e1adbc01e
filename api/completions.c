#include <string.h>
#include "api/answer.h"

#define DEFAULT_TOKENS 16 /* OpenAI's */

static void put_content(struct json *j, const struct answer *a, const struct piece *p,
                        bool stream) {
    (void)a;
    (void)stream;
    json_key(j, "text");
    json_string(j, p->text, p->len);
}

static void put_tops(struct json *j, const struct answer *a, const struct piece *p) {
    const struct gen *g = p->choice->gen;

    json_open(j, '[');
    for (uint32_t i = p->from; i < p->to; i++) {
        if (!gen_is_text(g, i))
            continue;
        json_open(j, '{');
        for (uint32_t k = 0; k < g->m.n_top; k++) {
            const struct event_top *t = &g->top[i * g->m.n_top + k];
            size_t len;
            const char *text = answer_token(a, t->token, &len);

            if (t->token < 0)
                continue;
            json_string(j, text, len);
            json_colon(j);
            json_double(j, t->logprob);
        }
        json_close(j, '}');
    }
    json_close(j, ']');
}

/* Characters before each token, from the beginning of the text. */
static void put_offsets(struct json *j, const struct piece *p) {
    const struct gen *g = p->choice->gen;
    uint64_t chars = p->choice->n_chars;

    json_open(j, '[');
    for (uint32_t i = p->from; i < p->to; i++) {
        if (gen_is_text(g, i))
            json_uint(j, chars);
        for (size_t k = i ? g->text_end[i - 1] : 0; k < g->text_end[i]; k++)
            chars += ((unsigned char)g->text.data[k] & 0xC0) != 0x80;
    }
    json_close(j, ']');
}

static void put_logprobs(struct json *j, const struct answer *a, const struct piece *p) {
    const struct gen *g = p->choice->gen;

    json_open(j, '{');
    json_key(j, "tokens");
    json_open(j, '[');
    for (uint32_t i = p->from; i < p->to; i++) {
        size_t len;
        const char *text = answer_token(a, g->tokens[g->n_prompt + i], &len);

        if (gen_is_text(g, i))
            json_string(j, text, len);
    }
    json_close(j, ']');
    json_key(j, "token_logprobs");
    json_open(j, '[');
    for (uint32_t i = p->from; i < p->to; i++)
        if (gen_is_text(g, i))
            json_double(j, g->logprobs[i]);
    json_close(j, ']');
    json_key(j, "top_logprobs");
    if (g->m.n_top)
        put_tops(j, a, p);
    else
        json_null(j);
    json_key(j, "text_offset");
    put_offsets(j, p);
    json_close(j, '}');
}

static const struct answer_form form = {
    .kind = REQUEST_COMPLETION,
    .id_prefix = "cmpl-",
    .object = "text_completion",
    .chunk_object = "text_completion",
    .default_tokens = DEFAULT_TOKENS,
    .content = put_content,
    .logprobs = put_logprobs,
};

void completions_serve(struct call *c, struct http *h) {
    (void)h;
    answer_serve(c, &form);
}
