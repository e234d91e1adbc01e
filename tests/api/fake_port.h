#pragma once

/*
 * fake_port - a worker that does what a test tells it: requests are kept as they were submitted,
 * and events are sent one by one, or by themselves (`script`: every request is accepted and gets
 * the bytes of the script as tokens, one a turn, then finishes).
 */

#include "api/api.h"

#define FAKE_MAX 256
#define FAKE_EMBD                                                                                  \
    4 /* of a vector: first and last token, number of tokens, whether a mean is wanted */

#define FAKE_PROMPT_NS 4000000 /* time of each prompt, told with its first token */
#define FAKE_TOKEN_NS 1000000  /* time of each token */

struct fake_request {
    uint64_t id;
    uint32_t n_submits, n_sent; /* n_sent: output tokens that the api was told of */
    int64_t begun_ns;           /* time of the first event */
    bool accepted, finished, cancelled;
    bool cut;        /* the api has ended the turn before the worker did */
    float logprob;   /* of each token; 0: -0.5 */
    struct submit m; /* the last one; pointers are copies */
    int32_t *tokens, *stop_ids;
    char stops[SUBMIT_STOPS_MAX][64];
    char *grammar, *triggers; /* "": none */
    int32_t *prediction;
    uint32_t n_prediction, n_allowed, n_bad;
    int32_t bad[16]; /* the beginning of submit.bad_words */
    uint32_t n_breakers;
    int32_t breakers[16]; /* likewise */
    struct submit_picture pictures[8];
};

struct fake_port {
    struct api_port port;
    struct model *model; /* whose events it sends */
    struct clock *clock;
    struct fake_request r[FAKE_MAX];
    uint32_t n, n_cancels, n_again; /* n_again: submits to be refused with -EAGAIN */
    uint8_t *pixels;                /* of the picture that was asked for last, in parts */
    uint32_t n_pixels, n_pictures, n_picture_errors; /* n_pictures: whole ones */
    char picture_error[200];                         /* the last one: status, code and text */
    uint32_t picture_again;                          /* parts to be refused with -EAGAIN */
    struct turn_end last_turn;                       /* told last, and how often one was */
    uint32_t n_turns;
    const char *script;
    bool hold;         /* the script waits */
    uint32_t n_cached; /* what events say, when not 0; else half the prompt */
    uint32_t n_predicted, n_predicted_accepted; /* what events say of drafts */
    int32_t second;                             /* of the two likely tokens; 0: 'z' */
    int refuse_with;                            /* what submit() answers, when not 0 */
};

void fake_init(struct fake_port *f, struct clock *clock);
void fake_deinit(struct fake_port *f);
struct fake_request *fake_find(struct fake_port *f, uint64_t id);

void fake_accept(struct fake_port *f, uint32_t i);
void fake_reject(struct fake_port *f, uint32_t i, int status, const char *why);
/* With all that the worker knows of it. */
void fake_refuse(struct fake_port *f, uint32_t i, const struct err *why);
/* The bytes of @text as tokens, from output position @from on. */
void fake_tokens_from(struct fake_port *f, uint32_t i, uint32_t from, const char *text);
/* With the first tokens comes what was asked of the prompt: of token i the log probability -i / 4,
 * and two best tokens: 't' and the one that is there. */
void fake_tokens(struct fake_port *f, uint32_t i, const char *text);
void fake_ids(struct fake_port *f, uint32_t i, const int32_t *ids, uint32_t n);
void fake_finish(struct fake_port *f, uint32_t i, enum finish_reason why);
void fake_fail(struct fake_port *f, uint32_t i, int status, const char *why);
/* One step of the script for every request. */
void fake_turn(struct fake_port *f);
/* The prompt as text, special tokens as |; until the next call. */
const char *fake_prompt(const struct fake_request *r);
