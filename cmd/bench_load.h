#pragma once

/*
 * bench_load - what agents say: prompts of a wanted number of tokens, conversations, the bodies of
 * requests. Everything is a function of the seed, the session and the turn, so that two runs (or
 * two servers) are asked the same.
 */

#include <stdbool.h>
#include "base/buf.h"
#include "base/rng.h"

struct load_opts {
    const char *model;
    bool chat, stream, ignore_eos;
    double temperature;
    uint64_t seed;
    double words_per_token; /* measured for the server's vocabulary */
    uint32_t shared_prefix; /* tokens that all sessions begin with */
    int16_t priority;       /* 0: not sent, it is no field of OpenAI's */
};

/* @n_tokens tokens' worth of words. */
int load_words(struct buf *b, const struct load_opts *o, uint32_t n_tokens, struct rng *r);

/* The conversation of a session so far, questions and answers in turn: JSON messages separated by
 * commas, or the plain text for completions. */
struct session {
    struct buf said;
    struct rng rng;
    uint32_t turn;
};

/* @number tells sessions apart. Begins with the shared prefix. */
int session_init(struct session *s, const struct load_opts *o, uint64_t number);
void session_deinit(struct session *s);
/* The user says @n_tokens; @body becomes the request for up to @n_output. */
int session_ask(struct session *s, const struct load_opts *o, uint32_t n_tokens, uint32_t n_output,
                struct buf *body);
/* The server's answer becomes part of the conversation. */
int session_answer(struct session *s, const struct load_opts *o, const char *text, size_t len);
/* @n_tokens tokens' worth of words take its place, so that every server is asked the same. */
int session_answer_words(struct session *s, const struct load_opts *o, uint32_t n_tokens);
