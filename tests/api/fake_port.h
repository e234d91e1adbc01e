#pragma once

/*
 * fake_port - a worker that a test controls: requests are kept as they were submitted, and events
 * are sent one by one, or by a script (`script`: every request is accepted, gets the bytes of the
 * script as tokens, one per turn, and finishes).
 */

#include "api/api.h"

#define FAKE_MAX 256
/* elements of a vector: first and last token, number of tokens, whether the mean was requested */
#define FAKE_EMBD 4

#define FAKE_PROMPT_NS 4000000 /* time of each prompt, reported with its first token */
#define FAKE_TOKEN_NS 1000000  /* time of each token */

struct fake_request {
    uint64_t id;
    /* n_sent: number of output tokens that were reported to the api */
    uint32_t n_submits, n_sent;
    /* time of the first event */
    int64_t begun_ns;
    bool accepted, finished, cancelled;
    /* the api ended the turn before the worker did */
    bool cut;
    /* log probability of each token; 0: -0.5 */
    float logprob;
    /* the last submit; pointers are to copies */
    struct submit m;
    int32_t *tokens, *stop_ids;
    char stops[SUBMIT_STOPS_MAX][64];
    /* "": none */
    char *grammar, *triggers;
    int32_t *prediction;
    uint32_t n_prediction, n_allowed, n_bad;
    /* the first elements of submit.bad_words */
    int32_t bad[16];
    uint32_t n_breakers;
    /* the first elements of submit.breakers */
    int32_t breakers[16];
    struct submit_picture pictures[8];
};

struct fake_port {
    struct api_port port;
    /* model for which it sends events */
    struct model *model;
    struct clock *clock;
    struct fake_request r[FAKE_MAX];
    /* n_again: number of submits to be refused with -EAGAIN */
    uint32_t n, n_cancels, n_again;
    /* bytes of a large submit that a call takes; 0: all */
    uint32_t part;
    /* such calls until one is refused with -EAGAIN */
    uint32_t n_parts;
    /* pixels of the picture that was requested last */
    uint8_t *pixels;
    /* n_pictures: number of complete pictures */
    uint32_t n_pixels, n_pictures, n_picture_errors;
    /* error of the last picture: status, code and text */
    char picture_error[200];
    /* number of parts to be refused with -EAGAIN */
    uint32_t picture_again;
    /* the last turn end, and the number of turn ends */
    struct turn_end last_turn;
    uint32_t n_turns;
    const char *script;
    /* Called for each request that has not ended, instead of the script, unless NULL. */
    void (*turn)(struct fake_port *f, uint32_t i);
    /* the script pauses */
    bool hold;
    /* cached tokens in events; 0: half the prompt */
    uint32_t n_cached;
    /* predicted tokens in events */
    uint32_t n_predicted, n_predicted_accepted;
    /* second most likely token; 0: 'z' */
    int32_t second;
    /* result of submit(), unless 0 */
    int refuse_with;
};

void fake_init(struct fake_port *f, struct clock *clock);
void fake_deinit(struct fake_port *f);
struct fake_request *fake_find(struct fake_port *f, uint64_t id);

void fake_accept(struct fake_port *f, uint32_t i);
void fake_reject(struct fake_port *f, uint32_t i, int status, const char *why);
/* Refuses request @i with all members of @why that a worker sends. */
void fake_refuse(struct fake_port *f, uint32_t i, const struct err *why);
/* Sends the bytes of @text as tokens, from output position @from on. */
void fake_tokens_from(struct fake_port *f, uint32_t i, uint32_t from, const char *text);
/* Sends the bytes of @text as tokens. The first tokens carry the requested values of the prompt:
 * for token i the log probability -i / 4, and as its two best tokens 't' and the token itself. */
void fake_tokens(struct fake_port *f, uint32_t i, const char *text);
void fake_ids(struct fake_port *f, uint32_t i, const int32_t *ids, uint32_t n);
void fake_finish(struct fake_port *f, uint32_t i, enum finish_reason why);
void fake_fail(struct fake_port *f, uint32_t i, int status, const char *why);
/* Performs one step of the script for every request. */
void fake_turn(struct fake_port *f);
/* Returns the prompt as text, with special tokens as |; valid until the next call. */
const char *fake_prompt(const struct fake_request *r);
