#include "cmd/bench_load.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/try.h"

#define SAID_MAX ((size_t)48 << 20)

/* Short words that are one token each, with the space before them, in common vocabularies. */
static const char *const words[] = {
    "the",   "of",    "and", "to",   "in",   "is",    "that",  "for", "it",    "as",    "was",
    "with",  "be",    "by",  "on",   "not",  "he",    "this",  "are", "or",    "his",   "from",
    "at",    "which", "but", "have", "an",   "had",   "they",  "you", "were",  "their", "one",
    "all",   "we",    "can", "her",  "has",  "there", "been",  "if",  "more",  "when",  "will",
    "would", "who",   "so",  "no",   "she",  "other", "its",   "may", "these", "what",  "them",
    "than",  "some",  "him", "time", "into", "only",  "could", "new", "then",
};

int load_words(struct buf *b, const struct load_opts *o, uint32_t n_tokens, struct rng *r) {
    assert(o->words_per_token > 0);
    uint32_t n = (uint32_t)MAX(1.0, round(n_tokens * o->words_per_token));

    for (uint32_t i = 0; i < n; i++) {
        if (i)
            TRY(buf_add_char(b, ' '));
        TRY(buf_add_str(b, words[rng_below(r, ARRAY_SIZE(words))]));
    }
    return 0;
}

/* Appends byte @c of a JSON string. */
static int load_add_byte(struct buf *b, unsigned char c) {
    if (c < 0x20)
        return buf_printf(b, "\\u%04x", c);
    if (c == '"' || c == '\\')
        TRY(buf_add_char(b, '\\'));
    return buf_add_char(b, (char)c);
}

/* Appends @text as a JSON string with its quotes. */
static int add_json_string(struct buf *b, const char *text, size_t len) {
    TRY(buf_add_char(b, '"'));
    for (size_t i = 0; i < len; i++)
        TRY(load_add_byte(b, (unsigned char)text[i]));
    return buf_add_char(b, '"');
}

static int load_say(struct session *s, const struct load_opts *o, const char *role,
                    const char *text, size_t len) {
    if (!o->chat)
        return buf_add(&s->said, text, len);
    TRY(buf_printf(&s->said, "%s{\"role\": \"%s\", \"content\": ", s->said.len ? ", " : "", role));
    TRY(add_json_string(&s->said, text, len));
    return buf_add_char(&s->said, '}');
}

static int say_words(struct session *s, const struct load_opts *o, const char *role,
                     uint32_t n_tokens, struct rng *rng) {
    CLEANUP(buf_deinit) struct buf text = {.max = SAID_MAX};

    if (!o->chat && s->said.len)
        TRY(buf_add_char(&text, ' '));
    TRY(load_words(&text, o, n_tokens, rng));
    return load_say(s, o, role, text.data, text.len);
}

int session_init(struct session *s, const struct load_opts *o, uint64_t number) {
    struct rng shared = {o->seed ^ 0x736861726564u}, mix = {o->seed};

    *s = (struct session){.rng = {rng_next(&mix) ^ (number * 0xD1342543DE82EF95u)}};
    buf_init(&s->said, SAID_MAX);
    if (!o->shared_prefix)
        return 0;
    return say_words(s, o, "system", o->shared_prefix, &shared);
}

void session_deinit(struct session *s) {
    buf_deinit(&s->said);
}

int session_ask(struct session *s, const struct load_opts *o, uint32_t n_tokens, uint32_t n_output,
                struct buf *body) {
    assert(o->model && n_output > 0);
    s->turn++;
    TRY(say_words(s, o, "user", n_tokens, &s->rng));
    buf_clear(body);
    TRY(buf_add_str(body, "{\"model\": "));
    TRY(add_json_string(body, o->model, strlen(o->model)));
    TRY(buf_add_str(body, o->chat ? ", \"messages\": [" : ", \"prompt\": "));
    if (o->chat)
        TRY(buf_add(body, s->said.data, s->said.len));
    else
        TRY(add_json_string(body, s->said.data, s->said.len));
    TRY(buf_printf(body, "%s, \"max_tokens\": %u, \"temperature\": %g, \"seed\": %u",
                   o->chat ? "]" : "", n_output, o->temperature,
                   (unsigned)(rng_next(&s->rng) >> 33)));
    if (o->ignore_eos)
        TRY(buf_add_str(body, ", \"ignore_eos\": true"));
    if (o->priority)
        TRY(buf_printf(body, ", \"priority\": %d", o->priority));
    if (o->stream)
        TRY(buf_add_str(body, ", \"stream\": true, \"stream_options\": {\"include_usage\": true}"));
    return buf_add_char(body, '}');
}

int session_answer_words(struct session *s, const struct load_opts *o, uint32_t n_tokens) {
    assert(s->turn > 0);
    return say_words(s, o, "assistant", n_tokens, &s->rng);
}

int session_answer(struct session *s, const struct load_opts *o, const char *text, size_t len) {
    assert(s->turn > 0);
    return load_say(s, o, "assistant", text, len);
}
