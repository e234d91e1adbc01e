#include <string.h>
#include "api/answer.h"

static void put_content(struct json *j, const struct answer *a, const struct piece *p,
                        bool stream) {
    (void)a;
    json_key(j, stream ? "delta" : "message");
    json_open(j, '{');
    if (p->first)
        json_put_string(j, "role", "assistant");
    if (p->first || p->len) {
        json_key(j, "content");
        json_string(j, p->text, p->len);
    }
    if (!stream)
        json_put_string(j, "refusal", NULL);
    json_close(j, '}');
}

/* {"token":..,"logprob":..,"bytes":[..]}, left open for more. */
static void open_token(struct json *j, const struct answer *a, int32_t id, double logprob) {
    size_t len;
    const char *text = answer_token(a, id, &len);

    json_open(j, '{');
    json_key(j, "token");
    json_string(j, text, len);
    json_key(j, "logprob");
    json_double(j, logprob);
    json_key(j, "bytes");
    json_open(j, '[');
    for (size_t i = 0; i < len; i++)
        json_int(j, (unsigned char)text[i]);
    json_close(j, ']');
}

static void put_logprobs(struct json *j, const struct answer *a, const struct piece *p) {
    const struct gen *g = p->choice->gen;

    json_open(j, '{');
    json_key(j, "content");
    json_open(j, '[');
    for (uint32_t i = p->from; i < p->to; i++) {
        if (!gen_is_text(g, i))
            continue;
        open_token(j, a, g->tokens[g->n_prompt + i], g->logprobs[i]);
        json_key(j, "top_logprobs");
        json_open(j, '[');
        for (uint32_t k = 0; k < g->m.n_top; k++) {
            const struct event_top *t = &g->top[i * g->m.n_top + k];

            if (t->token < 0)
                continue;
            open_token(j, a, t->token, t->logprob);
            json_close(j, '}');
        }
        json_close(j, ']');
        json_close(j, '}');
    }
    json_close(j, ']');
    json_put_string(j, "refusal", NULL);
    json_close(j, '}');
}

static const struct answer_form form = {
    .kind = REQUEST_CHAT,
    .id_prefix = "chatcmpl-",
    .object = "chat.completion",
    .chunk_object = "chat.completion.chunk",
    .has_role = true,
    .content = put_content,
    .logprobs = put_logprobs,
};

void chat_serve(struct call *c, struct http *h) {
    (void)h;
    answer_serve(c, &form);
}
