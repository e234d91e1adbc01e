#pragma once

/*
 * request - one generation: its parameters, its tokens so far, how far they are computed, and which
 * events the front has. It knows nothing of other requests.
 *
 *                 admit                finish
 *   WAITING ---------------> RUNNING ----------> DONE ---> freed when the front knows
 *      |  ^                     |                 ^        and no step in flight has it
 *      |  '---------------------'                 |
 *      |          preempt                         |
 *      '------------------------------------------'
 *            cancelled, too late, refused
 *
 * n_computed follows n_tokens. Both include steps in flight: n_computed counts the positions of all
 * launched steps, and n_pending (0 or 1) the sample of the last launched step, which is not in
 * tokens[] yet. Drafts are in tokens[] after n_tokens while a step computes them, and n_computed
 * counts them; those that are not accepted are subtracted with the step's results.
 */

#include <stdbool.h>

#include "base/err.h"
#include "engine/engine.h"
#include "kvpager/tier.h"
#include "proto/messages.h"
#include "scheduler/queue.h"

#define REQUEST_LIST_MAX 4096u /* bias entries, stop ids */
#define STATE_CUTS 24u         /* cuts of a prompt */

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
    /* number of its content among the tokens that the pager gets */
    int32_t number;
    /* entry in scheduler/pictures.h, with the rows or the pixels */
    struct sched_picture *held;
};

/* Parameters by which tokens are chosen, and the tokens that end the request. */
struct request_sampling {
    /* fields other than the tokens and n_bans */
    struct engine_param param;
    struct engine_samplers samplers;
    /* owned; samplers points to it */
    uint32_t *breakers;
    /* stop ids, then end tokens unless they are ignored */
    int32_t *bans;
    struct engine_bias *bias;
    /* the stop ids come first */
    uint32_t n_bans, n_stop_ids;
    struct stops *stops;
    const struct tokenizer *tokenizer;
    uint8_t n_top, n_prompt_top;
    bool ignore_eos;
};

/* Tokens that the output may have. */
struct request_grammar {
    /* NULL: all tokens */
    struct allowed *allowed;
    const struct sched_constraints *constraints;
    /* NULL: none, or still being compiled */
    const struct constraint *constraint;
    /* state of the constraint after tokens[]; NULL: no constraint */
    struct constraint_state *matcher;
    /* state in scheduler/late.h; NULL: no mask was late */
    struct late *late;
    /* bytes charged to the tenant for matcher */
    size_t charged;
    /* waits for its constraint before it is queued */
    bool compiling;
};

/* Drafted tokens. */
struct request_draft {
    /* [n_prediction] or NULL */
    int32_t *prediction;
    uint32_t n_prediction;
    /* state in scheduler/drafter.h; NULL: none yet */
    struct drafter_seq *drafter;
    /* drafts of drafter; NULL: none yet */
    const struct draft_tokens *drafted;
    /* state in scheduler/spec.h; NULL: none yet */
    struct spec_request *spec;
    uint32_t n_drafted, n_accepted;
    /* tokens behind n_computed that must be computed again after a wrong draft */
    uint32_t n_replay;
    /* drafted and accepted tokens from the request's prediction */
    uint32_t n_predicted, n_predicted_accepted;
};

struct request_pictures {
    /* [n] in the order of their places */
    struct request_picture *list;
    /* [2][n] as given to step i, in [i % 2] */
    struct engine_picture *shown;
    uint32_t n;
    /* computes the rows of a picture in one step (engine_info.two_way) */
    bool two_way;
};

/* Values beside the tokens. Arrays of outputs begin at output `base`; the front has all outputs
 * before it. */
struct request_out {
    float *logprobs;
    struct event_top *top;
    uint64_t *digests;
    float *prompt_lp;
    /* [n_prompt_top] each */
    struct event_top *prompt_top;
    uint32_t base, cap, n_prompt_lp, want_prompt_lp;
};

/* SUBMIT_POOL_*: the vectors that take the place of the output token. SUBMIT_POOL_NONE: vectors of
 * positions [0, n), one after the other. SUBMIT_POOL_MEAN: their sum in double precision, which
 * does not depend on the chunks of the prompt. */
struct request_pool {
    float *vector;
    double *sum;
    uint32_t n, n_embd, n_vector;
};

/* Times of struct event. */
struct request_times {
    int64_t first_step_ns, prompt_end_ns, computed_ns;
};

/* Reason for which the request is DONE. */
struct request_end {
    enum finish_reason finish;
    bool refused;
    struct err why;
};

struct request {
    /* in sched.waiting or sched.running */
    struct queued queued;
    /* in sched.pending: the front lacks events of it */
    struct list pending;
    /* chain in the table of ids */
    struct request *next_id;
    /* fair_share.tenant[] */
    uint16_t tenant;
    struct { /* SUBMIT_PREWARM: its tenant, and the turn that it follows */
        uint64_t turn;
        uint32_t tenant, weight_milli;
        /* the turn that it prepares has come */
        bool over;
    } prewarm;
    bool entered;
    /* time since which it waits */
    int64_t since_ns;
    /* record in the flight recorder */
    uint64_t record;
    /* a step in flight computes the end of its prompt: recorder_prompt_end() */
    bool ends_prompt;
    /* waiting: its index in the plan, UINT32_MAX: not considered */
    uint32_t plan_index;
    /* class of its tenant */
    uint8_t class;
    /* waiting: its session waits at the beginning of a turn (pin_pause()) */
    bool paused;
    enum request_state state;

    /* Parameters, as submitted. */
    uint64_t id, session;
    int64_t deadline_ns;
    uint32_t n_prompt;
    /* most tokens of prompt plus output */
    uint32_t max_tokens;
    /* fewest tokens of prompt plus output; end tokens are banned before */
    uint32_t min_tokens;
    uint16_t flags;
    bool alone;
    struct kv_isolation isolation,
        /* share: key of its pages; unique where nothing is shared */
        share;
    /* number of the tenant in the front */
    uint32_t payer;
    /* waits for pages from the disk before it is queued */
    bool loading;
    struct request_sampling sampling;
    struct request_grammar grammar;
    struct request_draft draft;
    struct request_pictures picture;

    /* Progress of the generation. */
    /* retired: the previous array, which a step in flight may still read */
    int32_t *tokens, *retired;
    /* [cap] or NULL: request_keys() */
    int32_t *keys;
    uint32_t n_tokens, cap;
    /* chained hashes of its first pages: equal hashes mean equal tokens up to that page */
    uint64_t *hash;
    uint32_t n_hashes;

    /* Sequence of the request, which has pages only while it runs. */
    struct kv_seq *seq;
    /* want: index of the pending sample in its batch */
    uint32_t n_computed, n_pending, want;
    /* steps in flight that have it */
    uint32_t n_in_flight;
    /* no step has computed @seq yet */
    bool begins;
    /* positions of @seq that were found in the cache */
    uint32_t n_found;
    uint32_t n_bypassed, n_preempted;
    /* see plan_req.n_passed */
    uint8_t n_passed;
    /* expected time of its steps that left other tenants' requests out */
    int64_t head_start_ns;
    /* tokens in host memory that are still to be copied back */
    uint32_t n_host;
    /* tokens found by the last lookup while waiting, in step seen_step */
    uint32_t seen_hit;
    uint64_t seen_step;
    struct request_cuts { /* snapshots of a hybrid model (state.h) */
        /* positions of cuts in its prompt, ascending */
        uint32_t at[STATE_CUTS], n;
        /* tokens in existing pages at the last lookup */
        uint32_t branch;
        /* tokens before the last snapshot */
        uint32_t saved;
        bool known;
    } cuts;
    bool stalled;

    /* For the front. */
    struct request_out out;
    struct request_pool pool;
    uint32_t n_cached;
    struct request_times times;
    struct request_end end;
    /* Counts that the front has. acked: acknowledged by sched_delivered(); sent: in the last event
     * batch. */
    struct request_events {
        bool accepted, prompt_lp, end;
        uint32_t n_out;
    } acked, sent;
};

/* Makes a request of @m for the scheduler of @view; @order is the number of submissions before it.
 * A request that can never run is DONE at once, with finish, refused and why set; so is one that
 * was resumed after its last token. Returns 0 or -ENOMEM. */
int request_new(struct request **out, const struct submit *m, const struct sched_view *view,
                uint64_t order);
/* Frees @r, which must have no pages, no step in flight, and none of spec, drafter and late. */
struct request *request_free(struct request *r);
DEFINE_FREEP(struct request, request)

/* Moves @r to @state; asserts that the transition is legal (the table in request.c). */
void request_set_state(struct request *r, enum request_state state);
/* Puts @r into @pending (request.pending), so that the front gets its new events. */
void request_note_pending(struct request *r, struct list *pending);
/* Moves @r, which must have no pages, to DONE for reason @why. */
void request_finish(struct request *r, enum finish_reason why);

/* Returns the tokens of @r as pagers get them: with the numbers of pictures in place of their rows
 * (kvpager/media.h). */
static inline const int32_t *request_keys(const struct request *r) {
    return r->keys ? r->keys : r->tokens;
}

/* Returns the first @n_tokens of @r as pagers find pages by them. */
static inline struct kv_keys request_prefix(const struct request *r, uint32_t n_tokens) {
    return (struct kv_keys){&r->share, request_keys(r), n_tokens};
}

/* Returns whether samples of @r may need masks. */
static inline bool request_is_masked(const struct request *r) {
    return r->grammar.matcher || r->grammar.allowed;
}

/* Returns the number of output tokens of @r so far, including those with which a resumed request
 * was submitted. */
static inline uint32_t request_n_out(const struct request *r) {
    return r->n_tokens - r->n_prompt;
}

/* Returns whether @r wants vectors and no text. */
static inline bool request_pools(const struct request *r) {
    return (r->flags & SUBMIT_POOLS) != 0;
}

/* Returns whether @r wants one vector of its whole text. */
static inline bool request_pools_one(const struct request *r) {
    return request_pools(r) && !(r->flags & SUBMIT_POOL_NONE);
}

/* Returns whether @r needs the hidden states of all positions. */
static inline bool request_pools_all(const struct request *r) {
    return (r->flags & (SUBMIT_POOL_MEAN | SUBMIT_POOL_NONE)) != 0;
}

/* Returns whether @r is a prewarm (scheduler/prewarm.h). */
static inline bool request_is_prewarm(const struct request *r) {
    return (r->flags & SUBMIT_PREWARM) != 0;
}

/* Returns whether the last token of @r is in flight, so that no row is left to launch. */
static inline bool request_is_last(const struct request *r) {
    return r->n_tokens + r->n_pending >= r->max_tokens;
}

/* Returns the tokens that @r is expected to have at its end, from its session's mean output:
 * n_tokens to max_tokens. */
static inline uint32_t request_target(const struct request *r, const struct estimate *e) {
    return r->n_prompt +
           estimate_output(e, r->session, request_n_out(r), r->max_tokens - r->n_prompt);
}

/* Return the number of tokens and of pages of its sequence; 0: it has none. */
uint32_t request_n_stored(const struct request *r);
uint32_t request_n_pages(const struct request *r);
/* Frees the sequence of @r, if it has one; its full pages stay cached. */
void request_free_pages(struct request *r);

/* Returns how many tokens of @r may come from pages of other requests. It always computes its last
 * token, and the positions whose log probabilities or vectors it returns. */
uint32_t request_shareable(const struct request *r);

/* Returns how many of the first @n_tokens tokens of @r, which are whole pages of @page_tokens, may
 * be a cached prefix: it must not end inside a picture whose rows are computed in one step. */
uint32_t request_cut(const struct request *r, uint32_t n_tokens, uint32_t page_tokens);
/* Returns kv_pager_match() of the first @n_tokens of @r, shortened by request_cut(). */
struct kv_match request_match(const struct request *r, const struct kv_pager *p, uint32_t n_tokens,
                              uint32_t page_tokens);

/* Appends sample @o. Returns FINISH_NONE, or why the request ends: FINISH_STOP, FINISH_LENGTH, or
 * FINISH_ERROR with r->why; -ENOMEM. */
int request_add(struct request *r, const struct engine_out *o);
/* Takes over constraint @c for @r and feeds it the output so far. Returns as request_add(). */
int request_constrain(struct request *r, const struct constraint *c);
/* Makes room for @n tokens behind the last one. Returns 0 or -ENOMEM. */
int request_reserve(struct request *r, uint32_t n);
/* Sets r->why to the reason for which its constraint ends @r. @e: 0, no token fits; or an error of
 * grammar/constraint.h. */
void request_blame(struct request *r, int e);
/* Takes the log probabilities of prompt token @pos + 1 from @o. */
void request_add_prompt_lp(struct request *r, uint32_t pos, const struct engine_out *o);

/* Takes hidden state @v of position @pos. */
void request_add_hidden(struct request *r, uint32_t pos, const float *v);

/* Drops outputs that the front has from the arrays. */
void request_trim(struct request *r);
