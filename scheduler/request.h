#pragma once

/*
 * request - one generation: what was asked, the tokens so far, how far they are computed, and
 * what the front has been told. It knows nothing of other requests.
 *
 *                 admit                finish
 *   WAITING ---------------> RUNNING ----------> DONE ---> freed when the front knows
 *      |  ^                     |                 ^        and no step has it any more
 *      |  '---------------------'                 |
 *      |          preempt                         |
 *      '------------------------------------------'
 *            cancelled, too late, refused
 *
 * n_computed runs after n_tokens. Both count what is under way: n_computed the positions of steps
 * that were launched, and n_pending (0 or 1) a sample of the last launched step, which is not in
 * tokens[] yet. Drafts stand in tokens[] behind n_tokens while a step has them, and n_computed
 * counts them; what was not accepted is taken off again with the step's results.
 */

#include <stdbool.h>
#include "base/err.h"
#include "engine/engine.h"
#include "kvpager/kvpager.h"
#include "proto/messages.h"
#include "scheduler/queue.h"

#define REQUEST_LIST_MAX 4096u /* bias entries, stop ids */
#define STATE_CUTS 24u         /* of a prompt */

enum request_state { REQUEST_WAITING, REQUEST_RUNNING, REQUEST_DONE };

struct sched_view;
struct draft_tokens;
struct drafter_seq;
struct spec_request;
struct constraint;
struct constraint_state;
struct allowed;
struct sched_picture;

/* A picture of a prompt. */
struct request_picture {
    struct submit_picture in;
    int32_t number;             /* of its content, in the tokens that the pager gets */
    struct sched_picture *held; /* scheduler/pictures.h: its rows, or what is to become them */
};

struct request {
    struct queued queued;    /* in sched.waiting or sched.running */
    struct list pending;     /* in sched.pending: the front has something to learn */
    struct request *next_id; /* in the table of ids */
    uint16_t tenant;         /* fair_share.tenant[] */
    struct {                 /* SUBMIT_PREWARM: whose it is, and after which turn it comes */
        uint64_t turn;
        uint32_t tenant, weight_milli;
        bool over; /* the one after it has come */
    } prewarm;
    bool entered;
    int64_t since_ns;    /* it waits */
    uint64_t record;     /* in the flight recorder */
    uint32_t plan_index; /* waiting: in the plan, UINT32_MAX: it was not looked at */
    uint8_t class;       /* of its tenant */
    enum request_state state;

    /* Asked. */
    uint64_t id, session;
    int64_t deadline_ns;
    uint32_t n_prompt;
    uint32_t max_tokens; /* prompt and output: max_new or the context's end */
    uint32_t min_tokens; /* likewise: end tokens are banned before */
    uint16_t flags;
    uint8_t n_top, n_prompt_top;
    bool alone, ignore_eos;
    struct kv_isolation isolation,
        share;                 /* share: of its pages, a key of its own without sharing */
    struct engine_param param; /* without tokens and the number of bans */
    struct engine_samplers samplers;
    uint32_t *breakers; /* of samplers */
    int32_t *bans;      /* end tokens unless ignored, and stop ids */
    struct engine_bias *bias;
    uint32_t n_bans, n_stop_ids; /* the stop ids come first */
    struct stops *stops;
    const struct tokenizer *tokenizer;
    struct allowed *allowed; /* NULL: all tokens */
    int32_t *prediction;     /* [n_prediction] or NULL */
    uint32_t n_prediction;
    const struct sched_constraints *constraints;
    const struct constraint *constraint; /* NULL: none, or still being compiled */
    uint32_t payer;                      /* the front's number of its tenant */
    size_t charged;                      /* to it, for matcher */
    bool compiling; /* it is not in the queue before its constraint is there, or its pages: */
    bool loading;   /* they are read from the disk, since loading_ns */
    int64_t loading_ns;

    /* So far. */
    int32_t *tokens, *retired; /* retired: an array that a step under way may still read */
    int32_t *keys;             /* [cap] or NULL: request_keys() */
    uint32_t n_tokens, cap;
    struct request_picture *pictures; /* [n_pictures] in the order of their places */
    struct engine_picture *shown;     /* [2][n_pictures]: to step n in [n % 2] */
    uint32_t n_pictures;
    bool two_way;   /* rows of a picture are computed in one step (engine_info.two_way) */
    uint64_t *hash; /* chained, of its first pages as given: equal means equal up to there */
    uint32_t n_hashes;

    /* Sequence in which it is computed; pages only while it runs. */
    struct kv_seq *seq;
    uint32_t n_computed, n_pending, want; /* want: index of the pending sample in its step */
    uint32_t n_in_flight;                 /* steps under way that have it */
    bool begins;                          /* no step has had @seq yet */
    uint32_t n_found; /* positions of @seq up to the last that was found computed */
    uint32_t n_bypassed, n_preempted;
    uint8_t n_passed;                   /* as plan_req.n_passed */
    struct drafter_seq *drafter;        /* scheduler/drafter.h; NULL: nothing yet */
    const struct draft_tokens *drafted; /* of drafter; NULL likewise */
    struct spec_request *spec;          /* scheduler/spec.h; NULL: nothing was drafted yet */
    struct constraint_state *matcher;   /* after all of tokens[]; NULL: nothing is constrained */
    struct late *late;                  /* scheduler/late.h; NULL: no mask was late */
    uint32_t n_drafted, n_accepted;
    uint32_t n_replay; /* tokens behind n_computed that have been, before a draft that was wrong */
    uint32_t n_predicted, n_predicted_accepted; /* of these, from the request's prediction */
    uint32_t n_host; /* tokens that host memory has, as far as they are still to be brought back */
    uint32_t seen_hit; /* of the last look into the pager while waiting, at seen_step */
    uint64_t seen_step;
    struct request_cuts {           /* of a hybrid model, see state.h */
        uint32_t at[STATE_CUTS], n; /* in its prompt, in order */
        uint32_t branch;            /* tokens in pages that exist, as of the last look */
        uint32_t saved;             /* tokens behind which a snapshot was made last */
        bool known;
    } cuts;
    bool stalled;

    /* For the front. Arrays of outputs begin at output out_base, which it knows to be delivered. */
    float *logprobs;
    struct event_top *top;
    uint64_t *digests;
    float *prompt_lp;
    struct event_top *prompt_top; /* [n_prompt_top] each */
    uint32_t out_base, out_cap, n_prompt_lp, want_prompt_lp;
    /* SUBMIT_POOL_*: the vector, or vectors, in place of the one token. Of all positions: those of
     * [0, n_pooled) are there, one after the other, or their sum is: the mean does not depend on
     * how the prompt was cut. */
    float *vector;
    double *sum;
    uint32_t n_pooled, n_embd, n_vector;
    uint32_t n_cached;
    int64_t first_step_ns;
    enum finish_reason finish;
    bool refused;
    struct err why;
    /* acked: what sched_delivered() confirmed; sent: what the last event batch has. */
    struct request_events {
        bool accepted, prompt_lp, end;
        uint32_t n_out;
    } acked, sent;
};

/* Makes a request of @m, for a scheduler with @view. One that can never run is DONE at once, with
 * finish, refused and why set; so is one that was resumed after its last token. 0 or -ENOMEM. */
int request_new(struct request **out, const struct submit *m, const struct sched_view *view,
                uint64_t order);
/* Frees @r, which must have no pages, no step in flight, and none of spec, drafter and late. */
struct request *request_free(struct request *r);
DEFINE_FREEP(struct request, request)

/* Moves @r to @state; asserts that the transition is legal (the table in request.c). */
void request_set_state(struct request *r, enum request_state state);
/* The front has something to learn of @r: @pending (request.pending) has it from now on. */
void request_note_pending(struct request *r, struct list *pending);
/* DONE for reason @why. Its pages are gone already. */
void request_finish(struct request *r, enum finish_reason why);

/* Returns its tokens as pagers get them: with the numbers of pictures in the place of their rows
 * (kvpager/media.h). */
static inline const int32_t *request_keys(const struct request *r) {
    return r->keys ? r->keys : r->tokens;
}

/* Returns whether its samples may need masks. */
static inline bool request_is_masked(const struct request *r) {
    return r->matcher || r->allowed;
}

/* Tokens of its output so far, those that came with a resumed request included. */
static inline uint32_t request_n_out(const struct request *r) {
    return r->n_tokens - r->n_prompt;
}

/* Returns whether vectors are wanted, and no text. */
static inline bool request_pools(const struct request *r) {
    return (r->flags & SUBMIT_POOLS) != 0;
}

/* Returns whether the hidden states of all positions are wanted. */
static inline bool request_pools_all(const struct request *r) {
    return (r->flags & (SUBMIT_POOL_MEAN | SUBMIT_POOL_NONE)) != 0;
}

/* scheduler/prewarm.h */
static inline bool request_is_prewarm(const struct request *r) {
    return (r->flags & SUBMIT_PREWARM) != 0;
}

/* Returns whether its last token is under way, so that no row is left to launch. */
static inline bool request_is_last(const struct request *r) {
    return r->n_tokens + r->n_pending >= r->max_tokens;
}

/* Tokens that it is expected to have at its end, by its session's answers: from n_tokens to
 * max_tokens. */
static inline uint32_t request_target(const struct request *r, const struct estimate *e) {
    return r->n_prompt +
           estimate_output(e, r->session, request_n_out(r), r->max_tokens - r->n_prompt);
}

/* Tokens of other requests' pages that it may take over: it must compute its last token, and
 * whatever it has to tell about its prompt. */
uint32_t request_shareable(const struct request *r);

/* Returns how many of the first @n_tokens, which are whole pages of @page_tokens, it can go on
 * behind: not in the middle of a picture whose rows are computed in one step. */
uint32_t request_cut(const struct request *r, uint32_t n_tokens, uint32_t page_tokens);
/* kv_pager_match() for the first @n_tokens of @r, cut likewise. */
struct kv_match request_match(const struct request *r, const struct kv_pager *p, uint32_t n_tokens,
                              uint32_t page_tokens);

/* Appends sample @o and finds out whether it ends the request: FINISH_NONE, FINISH_STOP,
 * FINISH_LENGTH, or FINISH_ERROR with r->why; a negative errno when there is no memory. */
int request_add(struct request *r, const struct engine_out *o);
/* Takes over constraint @c of @r: the outputs that it has are read. Returns as request_add(). */
int request_constrain(struct request *r, const struct constraint *c);
/* Room for @n drafted tokens behind the last one. 0 or -ENOMEM. */
int request_reserve(struct request *r, uint32_t n);
/* Why its constraint ends it, as r->why: 0, no token fits; or an error of grammar/constraint.h. */
void request_blame(struct request *r, int e);
/* Takes what is told of prompt token @pos + 1. */
void request_add_prompt_lp(struct request *r, uint32_t pos, const struct engine_out *o);

/* Takes the hidden state of position @pos. */
void request_add_hidden(struct request *r, uint32_t pos, const float *v);

/* Drops what the front has from the arrays of outputs. */
void request_trim(struct request *r);
