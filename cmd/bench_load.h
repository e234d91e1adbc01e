#pragma once

/*
 * bench_load - makes the texts of agents: prompts of a given number of tokens, conversations, the
 * bodies of requests. They depend only on the seed, the session and the turn, so that two runs (or
 * two servers) get the same requests.
 */

#include <stdbool.h>

#include "base/buf.h"
#include "base/rng.h"

struct load_opts {
    const char *model;
    bool chat, stream, ignore_eos;
    double temperature;
    uint64_t seed;
    /* measured for the server's vocabulary */
    double words_per_token;
    /* tokens that all sessions begin with */
    uint32_t shared_prefix;
    /* 0: not sent, since OpenAI has no such field */
    int16_t priority;
};

/* Appends words of about @n_tokens tokens. */
int load_words(struct buf *b, const struct load_opts *o, uint32_t n_tokens, struct rng *r);

/* The conversation of a session so far, alternately questions and answers: JSON messages separated
 * by commas, or plain text for completions. */
struct session {
    struct buf said;
    struct rng rng;
    uint32_t turn;
};

/* Begins session @number with the shared prefix. */
int session_init(struct session *s, const struct load_opts *o, uint64_t number);
void session_deinit(struct session *s);
/* Adds a user message of @n_tokens tokens; @body becomes the request for up to @n_output tokens. */
int session_ask(struct session *s, const struct load_opts *o, uint32_t n_tokens, uint32_t n_output,
                struct buf *body);
/* Adds the server's answer to the conversation. */
int session_answer(struct session *s, const struct load_opts *o, const char *text, size_t len);
/* Adds words of about @n_tokens tokens instead of the answer, so that every server gets the same
 * requests. */
int session_answer_words(struct session *s, const struct load_opts *o, uint32_t n_tokens);
