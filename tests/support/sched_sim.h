#pragma once

/*
 * sched_sim - the scheduler with the tell-tale engine, in virtual time, and the clients that it
 * serves.
 *
 * The oracle checks the events of the clients at every step: each event's tokens must be those that
 * the request would get alone (tests/support/telltale.h), in order, without gaps; each request gets
 * exactly one end, the right one; and at the end every page is back. After every step the state of
 * the scheduler and the pager is checked as well (sched_rules.h has all invariants). Any violation
 * prints a line and aborts, so that the same body runs in unit tests, in tests/sim and under the
 * sanitizers.
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
#define SIM_EMBD 8           /* number of values of a vector */
#define SIM_PICTURE_WIDTH 3u /* values of a row of a picture */
#define SIM_END 2            /* the end token; tokens 3 to 63 have the letters of sim_piece() */
#define SIM_DEATHS 3         /* number of deaths after which the front fails a request */

/* Kinds of drafts in the simulation, made from the tokens that the clients must get. */
enum sim_drafts {
    /* the table of scheduler/spec.c */
    SIM_DRAFTS_REAL,
    SIM_DRAFTS_RIGHT,
    SIM_DRAFTS_WRONG,
    /* alternately right and wrong for a while */
    SIM_DRAFTS_FLAPPING,
    /* right up to some token */
    SIM_DRAFTS_PARTLY,
    SIM_DRAFTS_KINDS,
};

struct sim_opts {
    enum sim_drafts drafts;
    /* zeros: 8 sequences, 64 rows, 50 ms, 200 ms, depth 1, bypass 4 */
    struct sched_opts sched;
    /* 0: 64, 16, 4096 */
    uint32_t n_pages, page_tokens, max_context;
    uint32_t n_host_pages;
    /* slots of a model with recurrent layers; 0: it has none */
    uint32_t n_states, n_snapshots;
    /* Layers with a window; 0: there are none. There are as many window pages as sequences
     * certainly need, and n_spare_windows more. Not with host pages or states. */
    uint32_t window, n_spare_windows;
    /* pictures of the pool, at most SIM_PICTURES; 0: the model takes none */
    uint32_t n_pictures;
    /* the front has no pixels of the last one */
    bool broken_picture;
    /* the rows of a picture must be in one step */
    bool two_way;
    /* time of computing a pixel */
    int64_t pixel_ns;
    /* number of pixels computed at once; 0: 8 */
    uint32_t piece;
    /* one token in this many of prompts ends a message; 0: none */
    uint32_t ends;
    /* Draft model; draft_wrong: probability of a wrong token in 1/1024. n_draft_pages 0: there is
     * none; then with `block` the model's own block drafts, or with `borrows` its assistant. */
    uint32_t n_draft_pages, draft_page_tokens, draft_wrong;
    int64_t draft_step_ns;
    bool block, borrows;
    /* size of a file that outlives workers; needs host pages */
    uint64_t disk_bytes;
    /* a thread reads and writes it, as in the worker */
    bool disk_thread;
    /* 0: SIM_CLIENTS */
    uint32_t max_clients;
    /* probability of the end token in 1/1024 */
    uint32_t end_per_1024;
    /* steps of the first worker */
    uint64_t fail_launch, fail_wait;
    /* times of a step; 0: 5 ms, 0.1 ms, 0 */
    int64_t step_ns, row_ns, key_ns;
    /* read_ns, seq_ns, pair_ns and noise, and a key_ns that is added */
    struct telltale machine;
    /* coefficients of a new worker's cost model are wrong by a factor of 30 */
    bool wrong;
    /* checks only the events of clients, for long simulations */
    bool unwatched;
    /* checks the flight recorder and deaths as well */
    bool recorder;
    /* a prefill may get fewer rows than there is room for */
    bool short_chunks;
    /* a plan that is made again is the same: no random faults, no cut hashes */
    bool repeats;
    /* path of the flight recorder when a rule is broken, or NULL */
    const char *flight_file;
};

/* One request and the events that its client has got. */
struct sim_client {
    struct submit m;
    /* memory of the arrays below */
    void *memory;
    /* the prompt, then the tokens that it must get */
    int32_t *tokens;
    uint64_t *digest;
    float *logprob, *prompt_lp;
    int32_t *prediction;
    uint32_t n_expect;
    enum finish_reason expect;
    /* > 0: its output is sent as prediction, with one of this many tokens changed */
    uint32_t edit_every;

    /* NULL: none */
    struct sim_constraint *constraint;
    /* [SUBMIT_PICTURES_MAX] or NULL: none */
    struct submit_picture *pictures;
    /* sim_seen(); NULL: there are no pictures */
    int32_t *seen;
    /* one of them has no pixels */
    bool broken;

    bool submitted, accepted, cancelled, got_prompt_lp;
    /* the request is invalid and must be refused */
    bool invalid;
    /* index in sim.live */
    uint32_t at_live;
    /* output tokens with which it came to this worker */
    uint32_t n_given;
    uint32_t n_got, n_cached, n_drafted, n_accepted, n_ends;
    /* REJECTED or FINISH */
    enum event_kind end;
    enum finish_reason finish;
    /* the front ended it, because it was present at too many deaths */
    bool given_up;
    /* times of the first token and of the end */
    int64_t first_ns, end_ns;
    /* time of the latest token; longest time between two tokens */
    int64_t last_ns, worst_ns;
    /* times of the prompt and of the tokens, from its events */
    int64_t prompt_ns, output_ns;
    char text[400];
    /* State of the rules: the request that its id finds after this step. */
    const struct request *request;
    uint32_t n_preempted, n_in_flight, n_drafts_out, n_rowless, n_passed, n_cut;
    /* successive plans in which it waited for pins beyond others' shares */
    uint32_t n_behind_pins;
    /* expected time of its steps that left others out */
    int64_t head_start_ns;
};

/* State of a pager that is checked only after changes. */
struct sim_watch {
    uint64_t n_changes;
    uint32_t left, part;
};

enum { SIM_JOBS = 64, SIM_TENANTS = 64 };

struct sim {
    struct sim_opts opts;
    struct clock_virtual clock;
    /* clock of the scheduler; checks the crash page at each reading */
    struct clock watch;
    struct engine *engine, *draft_engine;
    struct sched *sched;
    /* number of notes of the disk tier */
    uint32_t n_notes;
    const struct tokenizer *tokenizer;
    struct sched_constraints constraints;
    /* NULL: none was compiled yet */
    struct sim_grammars *grammars;
    /* number of constraints handed out */
    uint32_t n_constraints;
    /* bytes charged to all tenants for the states of requests in them */
    int64_t constraint_bytes;
    /* jobs given to threads and not done */
    struct constrain_job *job[SIM_JOBS];
    uint32_t n_jobs;
    struct crash_page crash_page;
    /* flight recorder of this worker, with a small ring of plans */
    struct flight *flight;
    /* [max_clients]; the id of client i is i + 1 */
    struct sim_client *client;
    uint32_t n_clients;
    /* [max_clients] indices of clients that were submitted and have not ended */
    uint32_t *live, n_live;
    struct buf events;
    struct sim_need need[SIM_NEEDS];
    uint32_t n_needs;
    /* the channel is full, so nothing is delivered */
    bool deaf;
    uint64_t n_steps, n_restarts, n_turns;
    /* hash of all delivered events */
    uint64_t hash;
    /* statistics after the last step */
    struct msg_stats stats;
    struct telltale_seen seen;
    uint32_t max_rows_seen;
    /* use of tenants elsewhere that this worker was told of */
    double elsewhere_ns[SIM_TENANTS];
    /* longest step so far */
    int64_t max_step_ns;
    /* Callbacks, or NULL: for each end; for tokens, with the time since the last ones (0: the
     * first); for each step, before its events are delivered. */
    void (*ended)(struct sim *s, struct sim_client *c);
    void (*heard)(struct sim *s, struct sim_client *c, int64_t since_ns);
    void (*stepped)(struct sim *s);

    /* State of the rules before the step, and since the worker began. */
    struct {
        struct cost cost;
        struct sim_watch device, draft, host, disk;
        int64_t begin_ns;
        uint64_t n_launched, n_progress, at_step, n_ended;
        /* steps of earlier workers in the flight recorder */
        uint64_t n_told_steps;
        /* number of requests with pages of the draft model */
        uint32_t n_draft_seqs;
        /* of clients that have got their end */
        uint64_t n_outputs, n_finished;
        /* [tenant] it may leave the requests of others out of the step */
        bool behind[SIM_TENANTS];
        /* [tenant] its share of the pages; those of its pins, and those that it holds with them */
        double share[SIM_TENANTS], pinned[SIM_TENANTS], held[SIM_TENANTS];
        /* a tenant without requests was there in the last half second and has less than another */
        bool expects;
        /* expected time of the steps since the last one that left no request out */
        int64_t left_out_ns;
    } was;
};

/* Returns true for a prewarm, for which no client waits: it must get one end and no other event. */
static inline bool sim_is_prewarm(const struct sim_client *c) {
    return (c->m.flags & SUBMIT_PREWARM) != 0;
}

void sim_init(struct sim *s, const struct sim_opts *opts);
void sim_deinit(struct sim *s); /* also checks that all pages are back, if all have ended */

/* Makes a client with @n_prompt tokens that depend on @family up to @n_family, and on the client
 * after it; temperature 0, @max_new tokens, no stops. The caller may change client->m before
 * sim_submit(), but not make it longer. */
struct sim_client *sim_client(struct sim *s, uint32_t n_prompt, uint32_t family, uint32_t n_family,
                              uint32_t max_new);
/* Makes a client of @session with a unique prompt, and submits it. */
struct sim_client *sim_ask(struct sim *s, uint32_t n_prompt, uint32_t max_new, uint64_t session);
/* Makes the next turn of a conversation: the prompt of @before, its outputs so far, and @n_more
 * tokens. */
struct sim_client *sim_client_after(struct sim *s, const struct sim_client *before, uint32_t n_more,
                                    uint32_t max_new);
/* Makes the prewarm of the front for the turn after @before, which has ended: its prompt, its first
 * @n_same outputs, and @n_more other tokens. */
struct sim_client *sim_client_prewarm(struct sim *s, const struct sim_client *before,
                                      uint32_t n_same, uint32_t n_more);
/* Submits the client; with @n_out > 0 as resumed after this many of its right tokens. */
void sim_submit(struct sim *s, struct sim_client *c, uint32_t n_out);
void sim_cancel(struct sim *s, struct sim_client *c);
/* Charges tenant @tenant (below SIM_TENANTS) for @ns of the device at another worker. */
void sim_served_elsewhere(struct sim *s, uint32_t tenant, uint64_t ns);

/* Runs one step and checks its events. Returns the result of sched_step(); -EIO is passed on. */
int sim_step(struct sim *s);
/* Runs steps until nothing remains to do; breaks a rule after @max_steps. */
void sim_run(struct sim *s, uint32_t max_steps);
/* Replaces a lost worker as the front does: starts a new one and submits every live request again
 * with its tokens so far, except those present at SIM_DEATHS deaths, which fail. */
void sim_restart(struct sim *s);

/* Returns the size of the tape behind sim.flight. */
uint32_t sim_tape_bytes(const struct sim *s);
/* Writes the flight recorder to its file, if one was given. */
void sim_write_flight(const struct sim *s);

bool sim_all_ended(const struct sim *s);
const char *sim_piece(int32_t token); /* returns the text of a token */
