#pragma once

/*
 * sched_sim - the scheduler with the tell-tale engine, in virtual time, and the clients that it
 * serves.
 *
 * The oracle looks at what the clients are sent, at every step: each event's tokens must be the
 * ones that the request would get alone (tests/support/telltale.h), in order, without gaps; each
 * request gets exactly one end, the right one; and at the end every page is back. After every step
 * the scheduler and the pager are looked at from inside too (sched_rules.h has all invariants). Any
 * violation prints a line and aborts, so that the same body runs in unit tests, in tests/sim and
 * under the sanitizers.
 */

#include "base/clock.h"
#include "base/rng.h"
#include "proto/flight_file.h"
#include "proto/messages.h"
#include "scheduler/scheduler_private.h"
#include "tests/support/sched_rules.h"
#include "tests/support/sim_constraint.h"
#include "tests/support/sim_pictures.h"
#include "tests/support/telltale.h"
#include "text/tokenizer.h"

#define SIM_CLIENTS 64
#define SIM_VOCAB 64
#define SIM_EMBD 8           /* of a vector */
#define SIM_PICTURE_WIDTH 3u /* values of a row of a picture */
#define SIM_END 2            /* the end token; tokens 3 to 63 are the letters of sim_piece() */
#define SIM_DEATHS 3         /* the front fails a request present at so many deaths */

/* What the drafts of the simulation are like; they come from what the clients must get. */
enum sim_drafts {
    SIM_DRAFTS_REAL, /* the table of scheduler/spec.c */
    SIM_DRAFTS_RIGHT,
    SIM_DRAFTS_WRONG,
    SIM_DRAFTS_FLAPPING, /* right for a while, then wrong for a while */
    SIM_DRAFTS_PARTLY,   /* right up to some token */
    SIM_DRAFTS_KINDS,
};

struct sim_opts {
    enum sim_drafts drafts;
    struct sched_opts sched; /* zero: 8 sequences, 64 rows, 50 ms, 200 ms, depth 1, bypass 4 */
    uint32_t n_pages, page_tokens, max_context; /* 0: 64, 16, 4096 */
    uint32_t n_host_pages;
    uint32_t n_states, n_snapshots; /* slots of a model with recurrent layers; 0: it has none */
    /* Layers with a window; 0: there are none. Of window pages there are those that sequences are
     * certain to need and so many more. Without host pages and states. */
    uint32_t window, n_spare_windows;
    uint32_t n_pictures; /* of the pool, at most SIM_PICTURES; 0: the model takes none */
    bool broken_picture; /* the front has no pixels of the last one */
    bool two_way;        /* rows of a picture belong into one step */
    int64_t pixel_ns;    /* that a pixel takes */
    uint32_t piece;      /* pixels that are computed at once; 0: 8 */
    uint32_t ends; /* one token in so many of prompts is special: where messages end; 0: none */
    /* A draft model: what it drafts is wrong so often, of 1024 tokens. No pages: there is none;
     * with
     * @block the model's own block drafts then, or with @borrows its assistant. */
    uint32_t n_draft_pages, draft_page_tokens, draft_wrong;
    int64_t draft_step_ns;
    bool block, borrows;
    uint64_t disk_bytes;             /* of a file that outlives workers; needs host pages */
    bool disk_thread;                /* which is read and written by a thread, as in the worker */
    uint32_t max_clients;            /* 0: SIM_CLIENTS */
    uint32_t end_per_1024;           /* how often the end token is drawn */
    uint64_t fail_launch, fail_wait; /* of the first worker */
    int64_t step_ns, row_ns, key_ns; /* of a step; 0: 5 ms, 0.1 ms, 0 */
    struct telltale
        machine;       /* read_ns, seq_ns, pair_ns, noise, and key_ns in addition to the above */
    bool wrong;        /* coefficients of a new worker's cost model are wrong by 30 times */
    bool unwatched;    /* only what clients are sent is checked: long simulations */
    bool recorder;     /* the flight recorder and deaths are looked at, too */
    bool short_chunks; /* a prefill may get less than there is room for */
    bool repeats; /* a plan made again is the same: nothing is left to chance, no hash is cut */
    const char
        *flight_file; /* NULL, or where the flight recorder is written when a rule is broken */
};

/* One request and what its client has seen. */
struct sim_client {
    struct submit m;
    void *memory;    /* of the arrays below */
    int32_t *tokens; /* the prompt, then what it must get */
    uint64_t *digest;
    float *logprob, *prompt_lp;
    int32_t *prediction;
    uint32_t n_expect;
    enum finish_reason expect;
    uint32_t edit_every; /* > 0: a prediction is sent: its output, one of so many tokens changed */

    struct sim_constraint *constraint; /* NULL: none */
    struct submit_picture *pictures;   /* [SUBMIT_PICTURES_MAX] or NULL: none */
    int32_t *seen;                     /* sim_seen(), or NULL likewise */
    bool broken;                       /* one of them has no pixels */

    bool submitted, accepted, cancelled, got_prompt_lp;
    bool invalid;     /* something in it is invalid: it must be refused */
    uint32_t at_live; /* index in sim.live */
    uint32_t n_given; /* output tokens that it came with to this worker */
    uint32_t n_got, n_cached, n_drafted, n_accepted, n_ends;
    enum event_kind end; /* REJECTED or FINISH */
    enum finish_reason finish;
    bool given_up;                /* its end is the front's: a worker died of it too often */
    int64_t first_ns, end_ns;     /* when the first token and the end were told */
    int64_t last_ns, worst_ns;    /* of the latest token; the longest time between two */
    int64_t prompt_ns, output_ns; /* times of the prompt and of the tokens, as it was told */
    char text[400];
    /* Of the rules; what is found by its id after this step. */
    const struct request *request;
    uint32_t n_preempted, n_in_flight, n_drafts_out, n_rowless, n_passed;
};

/* Of a pager that is only looked at when something has happened in it. */
struct sim_watch {
    uint64_t n_changes;
    uint32_t left, part;
};

enum { SIM_JOBS = 64, SIM_TENANTS = 64 };

struct sim {
    struct sim_opts opts;
    struct clock_virtual clock;
    struct clock watch; /* what the scheduler asks; looks at the crash page each time */
    struct engine *engine, *draft_engine;
    struct sched *sched;
    uint32_t n_notes; /* of the disk tier */
    const struct tokenizer *tokenizer;
    struct sched_constraints constraints;
    struct sim_grammars *grammars;       /* NULL: none was compiled yet */
    uint32_t n_constraints;              /* handed out */
    int64_t constraint_bytes;            /* charged to all tenants for places in them */
    struct constrain_job *job[SIM_JOBS]; /* given to a thread, not done */
    uint32_t n_jobs;
    struct crash_page crash_page;
    struct flight *flight;     /* of this worker; and plans, which a small ring is to hold */
    struct sim_client *client; /* [max_clients]; the id of client i is i + 1 */
    uint32_t n_clients;
    uint32_t *live, n_live; /* [max_clients] submitted and not ended: indices */
    struct buf events;
    struct sim_need need[SIM_NEEDS];
    uint32_t n_needs;
    bool deaf; /* the channel is full: nothing is delivered */
    uint64_t n_steps, n_restarts, n_turns;
    uint64_t hash;          /* of all events delivered */
    struct msg_stats stats; /* after the last step */
    struct telltale_seen seen;
    uint32_t max_rows_seen;
    double elsewhere_ns[SIM_TENANTS]; /* of tenants, that this worker was told of */
    int64_t max_step_ns;              /* the longest step so far */
    /* NULL, or told of: each end; tokens, and how long after the last ones (0: the first); each
     * step, before its events are delivered. */
    void (*ended)(struct sim *s, struct sim_client *c);
    void (*heard)(struct sim *s, struct sim_client *c, int64_t since_ns);
    void (*stepped)(struct sim *s);

    /* Of the rules: before the step, and since the worker began. */
    struct {
        struct cost cost;
        struct sim_watch device, draft, host, disk;
        int64_t begin_ns;
        uint64_t n_launched, n_progress, at_step, n_ended;
        uint64_t n_told_steps;          /* in the flight recorder, of workers before */
        uint32_t n_draft_seqs;          /* requests with pages of the draft model */
        uint64_t n_outputs, n_finished; /* of clients that know of their end */
    } was;
};

/* No client waits for it: it must get one end, and nothing else. */
static inline bool sim_is_prewarm(const struct sim_client *c) {
    return (c->m.flags & SUBMIT_PREWARM) != 0;
}

void sim_init(struct sim *s, const struct sim_opts *opts);
void sim_deinit(struct sim *s); /* also checks that all pages are back, if all have ended */

/* A new client with @n_prompt tokens that depend on @family up to @n_family, and on the client
 * after it; 0 temperature, @max_new tokens, no stops. The caller may change client->m before
 * sim_submit(), but not make it longer. */
struct sim_client *sim_client(struct sim *s, uint32_t n_prompt, uint32_t family, uint32_t n_family,
                              uint32_t max_new);
/* A new client of @session that shares nothing, submitted now. */
struct sim_client *sim_ask(struct sim *s, uint32_t n_prompt, uint32_t max_new, uint64_t session);
/* The next turn of a conversation: the prompt and the outputs so far of @before, and @n_more
 * tokens. */
struct sim_client *sim_client_after(struct sim *s, const struct sim_client *before, uint32_t n_more,
                                    uint32_t max_new);
/* What the front would have computed ahead of the turn after @before, which has ended: its prompt
 * and its first
 * @n_same outputs, and @n_more other tokens. */
struct sim_client *sim_client_prewarm(struct sim *s, const struct sim_client *before,
                                      uint32_t n_same, uint32_t n_more);
/* Submits it; with @n_out > 0 as resumed after so many of the tokens that it must get. */
void sim_submit(struct sim *s, struct sim_client *c, uint32_t n_out);
void sim_cancel(struct sim *s, struct sim_client *c);
/* Tenant @tenant (below SIM_TENANTS) has had @ns of the device at another worker. */
void sim_served_elsewhere(struct sim *s, uint32_t tenant, uint64_t ns);

/* One step and its events, checked. What sched_step() says; -EIO is passed on. */
int sim_step(struct sim *s);
/* Steps until nothing is left to do; breaks a rule after @max_steps. */
void sim_run(struct sim *s, uint32_t max_steps);
/* What the front does when a worker is lost: a new one, and every live request again with its
 * tokens so far; one that was present at SIM_DEATHS deaths fails. */
void sim_restart(struct sim *s);

/* Of the tape behind sim.flight. */
uint32_t sim_tape_bytes(const struct sim *s);
/* Writes what the flight recorder has, where that is asked for. */
void sim_write_flight(const struct sim *s);

bool sim_all_ended(const struct sim *s);
const char *sim_piece(int32_t token); /* the text of a token */
