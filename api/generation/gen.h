#pragma once

/*
 * gen - one generation in the front: the request to the worker and the output received so far.
 *
 *      WAITING ──admitted──> PENDING ──submit──> SENT ──ACCEPTED──> RUNNING ──FINISH, stop──> DONE
 *                              ^                  │                   │
 *                              └──── worker down ─┴───────────────────┘
 *
 * The generation belongs to the front: tokens, logprobs, text and counts are kept here, so that a
 * new worker can continue where the old one died. Events are cumulative and may overlap
 * what is known: tokens are taken by their position, once. Text is made as tokens arrive; what may
 * still become a stop string or lacks the rest of a UTF-8 sequence is not `ready`.
 *
 * Invariants (set_state() asserts them): n_out <= cap_out, max_new; n_counted <= n_out; n_parsed <=
 * ready <= text.len, which is where the last token ends; n_cached <= n_prompt; a limit of reasoning
 * needs `output`; where there is a vector there is no output.
 */

#include <stdbool.h>
#include <stdint.h>

#include "api/generation/metrics.h"
#include "api/generation/output_parser.h"
#include "api/limits/tenant.h"
#include "base/buf.h"
#include "base/err.h"
#include "base/list.h"
#include "proto/messages.h"
#include "text/stops.h"

struct gen_env;
struct api_port;
struct gen_request;
struct model;
struct exchange;
struct picture_seen;

/* States of the diagram; set_state() has the table of legal transitions. */
enum gen_state { GEN_WAITING, GEN_PENDING, GEN_SENT, GEN_RUNNING, GEN_DONE };

/* Belongs to the loop's thread; the pool reads a DONE generation while its answer is written
 * there. */
struct gen {
    /* api.gens, api.buckets */
    struct list link, bucket;
    struct gen_env *env;
    /* gives the vocabulary, and the worker that generates */
    struct model *model;
    enum gen_state state;
    /* some worker has accepted it */
    bool accepted;
    /* a stop string is complete; nothing after it is text */
    bool stopped;
    /* PENDING: it waits to be submitted. It is in no queue if it has failed, has left or is
     * model.half. */
    struct pending_item pending;
    /* gens.failed: it will be ended */
    struct list failed;
    /* PENDING: its client has left, which its connection has not read yet */
    bool left;
    /* PENDING: bytes of a large submit that the worker has */
    uint32_t sent;
    void *owner;
    /* the owner's pointer; it is NULL when the client has left */
    struct exchange *const *exchange;
    /* reports news of the generation; may free @g */
    void (*changed)(struct gen *g);
    /* source of m.session, or NULL */
    const char *session_from;
    /* charge of the tenant (gen_charge()) */
    struct charge charge;
    /* exchange.key, of the client that pays */
    uint32_t key;
    /* WAITING: number of its tenant's that came before it (waits.c) */
    uint32_t n_before;
    /* m.tokens is `tokens` */
    struct submit m;
    /* prompt and output */
    int32_t *tokens;
    /* [m.n_pictures], the request's; NULL: there are none, or another front has the files: then
     * need_picture() asks it for the pixels of one. */
    struct picture_seen *const *seen;
    void (*need_picture)(struct gen *g, uint32_t index);
    /* the next three: per output token, or NULL */
    float *logprobs;
    /* [m.n_top] each */
    struct event_top *top;
    uint64_t *digests;
    /* Log probabilities of prompt tokens 1 .. n_prompt - 1, when the request asked for them:
     * [m.n_prompt_top] tops each. */
    float *prompt_lp;
    struct event_top *prompt_top;
    /* the result of an embedding: [n_vector] */
    float *vector;
    uint32_t n_vector;
    /* text.len after each output token */
    uint32_t *text_end;
    /* With logprobs and `output`: bytes of its content after each token that it has counted. */
    uint32_t *content_end;
    uint32_t n_prompt, n_out, cap_out;
    struct stops *stops;
    /* raw bytes of the output */
    struct buf text;
    /* bytes of text that may be sent */
    size_t ready;
    /* splits the text into reasoning, content and calls; NULL: the text is not parsed */
    struct output_parser *output;
    /* bytes of text that `split` has been fed */
    size_t n_parsed;
    /* tokens, whole ones */
    uint32_t n_counted;
    bool keep_special, include_stop;
    /* the output is not kept */
    bool score_only;
    /* with `stopped`: index in m.stops */
    uint32_t stop_index;
    enum finish_reason finish;
    /* FINISH_ERROR */
    struct err err;
    uint32_t retry_ms, n_cached, n_attempts;
    /* deaths of another front's workers at which it was present */
    uint32_t n_faults;
    /* submissions that ended because its reasoning was closed */
    uint32_t n_turns;
    struct gen_drafts {
        uint32_t n, accepted;
        /* drafted from the request's prediction, and accepted of them */
        uint32_t n_predicted, predicted_accepted;
    } drafts, drafts_before; /* in all submissions; in those before the current one */
    /* first output tokens, in which repetitions are not searched */
    uint32_t loop_from;
    /* tokens that are searched for a repetition; 0: none, as in a guest, whose own front searches
     */
    uint32_t loop_tokens;
    /* the last tokens are a loop */
    bool repeats;
    struct {
        bool limited;
        /* blocks of reasoning that were closed here */
        uint32_t n_closed;
        /* tokens of reasoning */
        uint32_t max;
        /* tokens that end the reasoning */
        int32_t close[16];
        uint32_t n_close;
    } thinking;
    int64_t first_step_ns, first_token_ns, last_token_ns, done_ns;
    /* measured by the worker, as in struct event */
    int64_t prompt_end_ns, computed_ns;
};

struct prompt;
struct tokens;

/* Sets the pictures of the prompt @p, which the request owns. Call it before the start. */
void gen_set_pictures(struct gen *g, const struct prompt *p);
/* Makes a generation of @prompt, which is copied, or with @take moved and left empty. The rest of
 * the submit comes from @r, whose arena must outlive the generation. Returns 0 or -ENOMEM. */
int gen_new(struct gen **out, struct model *m, const struct gen_request *r, struct tokens *prompt,
            bool take, uint32_t max_new, uint16_t choice);
/* Binds the generation to *@exchange, which outlives it or is set to NULL: its tenant, its start
 * and its time limit. */
void gen_belongs(struct gen *g, struct exchange *const *exchange, const struct gen_request *r);
/* Sets the tenant that the worker charges; gen_belongs() calls
 * it. */
void gen_set_tenant(struct gen *g, const struct tenant *t);
/* Lets its text be split into reasoning, content and calls. Call it before the start. */
int gen_parse_output(struct gen *g, const struct toolcall_opts *opts);
/* Charges @t for the prompt and @n_output tokens of output. Call it before the start. */
void gen_charge(struct gen *g, struct tenant *t, uint32_t n_output);
/* Limits its reasoning to @max tokens; UINT32_MAX: only repetitions close it. Call it after
 * gen_parse_output(). */
int gen_limit_reasoning(struct gen *g, uint32_t max);
/* Adds output tokens from another source, as if a worker had made them. Returns 0, -ENOMEM, or
 * -EPROTO: they are not tokens of the vocabulary. */
int gen_add_output(struct gen *g, const int32_t *tokens, uint32_t n);
struct gen *gen_free(struct gen *g); /* cancels a live one, silently; accepts NULL */

/* Submits the admitted generation to the worker, or waits for a worker. From now until DONE it
 * counts in model.n_running. */
void gen_start(struct gen *g);
/* Submits again the generations that the worker could not take, and ends those past their
 * deadline. */
void gen_retry(struct gen_env *env);
/* Submits pending generations of @m: the way to its worker has room again. */
void gen_room(struct model *m);
bool gen_any_pending(const struct gen_env *env);

/* Handles an event of the worker of @m. An event that does not fit the generation ends it with 500;
 * events of a generation that is not at this worker are ignored. May free any generation of the
 * api. */
void gen_on_event(struct model *m, const struct event *e);
/* Reports that the worker is gone: its generations become PENDING. */
void gen_worker_down(struct model *m);
/* Ends all its generations with 503 and model.failure; of many, some in later iterations. */
void gen_worker_failed(struct model *m);
/* Submits the generations again to a new worker, as api_worker_up(). */
void gen_worker_up(struct model *m, uint32_t (*n_faults)(struct api_port *p, uint64_t id));

/* Makes env->gens empty. */
void gens_init(struct gen_env *env);
/* Returns the generation with this id of the worker, or NULL when it has ended and was freed. */
struct gen *gen_find(const struct gen_env *env, uint64_t id);
/* The text of a request whose deadline is over. */
#define GEN_TOO_LATE                                                                               \
    "The request took longer than its time limit (option request-timeout-ms, or the client's "     \
    "header x-stainless-read-timeout)."
/* Ends the generation with an error and cancels it at the worker. Does nothing if it is DONE; may
 * free @g. */
void gen_fail(struct gen *g, int status, const char *code, const char *message);
const char *gen_finish_name(const struct gen *g); /* "stop", "length", "tool_calls", "repetition" */
/* Returns how many tokens of the prompt are computed or cached, according to the records in the
 * worker's flight recorder: a lower bound. */
uint32_t gen_prompt_done(const struct gen *g);
/* Returns the figures for the histograms; the caller sets started_ns and n_choices. */
struct metrics_gen gen_metrics(const struct gen *g);
/* Returns true if token @id ends it: a stop id, or an end token that is not ignored. */
bool gen_is_end(const struct gen *g, int32_t id);
/* Returns true if output token @i is part of the text: neither the token that ended it nor behind a
 * stop string. */
bool gen_is_text(const struct gen *g, uint32_t i);
