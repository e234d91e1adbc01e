#pragma once

/*
 * scheduler - decides which requests run. Owns the requests of a worker, the pager and the body of
 * the step loop: plan, apply, launch, wait, advance, report. It is one object on one thread with an
 * injected clock, and does not know where its messages come from or go to: the worker's main loop
 * in daemon/, a test, or the simulator.
 *
 * There is no prefill or decode state: a request has n_tokens and n_computed, and each step moves
 * the second towards the first (docs/design/architecture.md 4).
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "engine/engine.h"
#include "proto/crash_page.h"
#include "proto/messages.h"
#include "scheduler/constraints.h"

/* Result of sched_step(): nothing to run; sleep until a message comes or sched_wake_ns(). */
#define SCHED_NO_STEP 1

struct sched;
struct tokenizer;
struct draft_source;

/* File that keeps prefixes over restarts; all zero: none. */
struct sched_disk {
    int fd;
    /* size of the file; 0: no file */
    uint64_t n_bytes;
    /* bytes written per day at most; 0: no limit */
    uint64_t daily_bytes;
    /* digest of the model's files, in addition to the fingerprint */
    uint8_t identity[32];
    /* the file is not touched before sched_use_disk() */
    bool waits;
    /* tests: sched_step() reads and writes the file, without a thread */
    bool in_step;
    void *ctx;
    /* Reports a fault of the file; the worker goes on. */
    void (*note)(void *ctx, const char *what, int error);
};

struct sched_opts {
    /* most requests that run at once */
    uint32_t max_seqs;
    /* most rows of a step */
    uint32_t max_rows;
    /* target for the time of a step while anything decodes */
    uint32_t itl_target_ms;
    /* target for the time of any step */
    uint32_t max_step_ms;
    /* steps in flight: 1 or 2, at most the engine's */
    uint32_t depth;
    /* times that a waiting request may be overtaken */
    uint32_t max_bypass;
    /* kv_pager_check_part() after every step (tests) */
    bool check;
    /* tests: nothing is shared */
    bool no_prefix_sharing;
    /* tests: prefill chunks of exactly this many tokens; 0: by time */
    uint32_t force_chunk;
    bool no_speculation;
    /* pages of a session's last turn are not kept for the next one */
    bool no_pins;
    /* most tokens of a draft, up to DRAFT_MAX; 0: 16 */
    uint32_t max_draft;
    /* bit i: source i of the table drafts nothing */
    uint32_t no_sources;
    /* tests: drafts of up to this many tokens at any cost; 0: by gain */
    uint32_t force_draft;
    /* tests: every mask that may be late is late */
    bool force_late;
    /* tests: NULL-terminated table; NULL: the real one */
    const struct draft_source *const *drafts;
    /* engine of a small model with the same tokens; NULL: none */
    struct engine *draft_engine;
    /* sched_blocks() will be called */
    bool tells_blocks;
    uint64_t hash_seed;
    /* tests: cut hashes of pages collide; 0: all bits */
    uint32_t hash_bits;
    /* token bytes for stop strings, end tokens; NULL: none */
    const struct tokenizer *tokenizer;
    /* records of decisions are written here; NULL: none */
    struct flight *flight;
    /* plans are written here; NULL: none */
    struct flight_tape *tape;
    /* size of the ring of plans */
    uint32_t tape_bytes;
    /* NULL, or the shared page */
    struct crash_page *crash_page;
    /* rows of pictures that are kept for other requests */
    uint64_t picture_bytes;
    struct sched_disk disk;
    /* NULL: requests with a grammar are refused */
    const struct sched_constraints *constraints;
};

/* Makes a scheduler; @engine and @clock stay the caller's and outlive it. Returns 0, -EINVAL or a
 * negative errno. */
int sched_new(struct sched **out, const struct sched_opts *opts, struct engine *engine,
              struct clock *clock);
struct sched *sched_free(struct sched *s);
DEFINE_FREEP(struct sched, sched)

/* Submits request @m, which is copied. A request that can never run gets its REJECTED event (or
 * FINISH_ERROR) with the next sched_events(). Returns 0, -ENOMEM, or -EPROTO: the id is in use. */
int sched_submit(struct sched *s, const struct submit *m);
/* Cancels request @id; its pages are free at once. Unknown ids are ignored: the request may just
 * have ended. */
void sched_cancel(struct sched *s, uint64_t id);

/* Notes the kind of end of a turn, which determines when the next turn is expected. Ends its
 * request if that still runs. */
void sched_turn_end(struct sched *s, const struct turn_end *m);

/* Takes over constraint @c for request @id, or refuses the request for reason @why (@c NULL).
 * Returns false if no such request waits; then @c stays the caller's. */
bool sched_constraint_ready(struct sched *s, uint64_t id, const struct constraint *c,
                            const struct err *why);

/* Writes to @out the picture whose pixels are to be asked for, the same one until sched_asked() is
 * called. Returns false if there is none. */
bool sched_need_picture(struct sched *s, struct msg_need_picture *out);
void sched_asked(struct sched *s, const struct msg_need_picture *m);
/* Takes a part of the pixels that were asked for, or the reason why there are none. */
void sched_picture(struct sched *s, const struct msg_picture *m);

/* Runs one step. Returns 0 when a step ended, or was launched with room for another in flight;
 * SCHED_NO_STEP; -ENOMEM; -EIO: the engine is lost, and the worker must exit. */
int sched_step(struct sched *s);

/* Waits for the steps in flight and takes their results. Returns as sched_step(), 0 when none is in
 * flight. */
int sched_settle(struct sched *s);

/* Writes to the disk tier the ended turns that it lacks, until @until_ns at most. Called when the
 * worker ends and nothing runs. */
void sched_flush(struct sched *s, int64_t until_ns);
/* Opens the disk tier: the file belongs to this process until sched_release_disk(). */
void sched_use_disk(struct sched *s);
/* Leaves the file to another process: the following steps write the turns that it lacks, including
 * those of running requests, until @until_ns at most; after that the file is not touched
 * (sched_uses_disk()). */
void sched_release_disk(struct sched *s, int64_t until_ns);
bool sched_uses_disk(const struct sched *s);
/* Returns a descriptor that is readable when sched_step() has something to take from the disk; -1:
 * no disk tier. */
int sched_fd(const struct sched *s);

/* Appends an EVENTS payload with everything since the last delivery to @out. Returns 0, 1 when
 * there is nothing new, -errno. sched_delivered() says that the payload was sent; without it the
 * next one has the same tokens again and more. */
int sched_events(struct sched *s, struct buf *out);
void sched_delivered(struct sched *s);

/* Appends a BLOCKS payload to @out: some of the changes to the published pages of one tier that
 * were not reported yet. Returns 0, 1 when nothing changed, -errno. Needs opts.tells_blocks. */
int sched_blocks(struct sched *s, struct buf *out);

/* Exchange device time of tenants with other workers of the device: sched_served() appends a SERVED
 * payload with the use here since the last call to @out and returns 0, 1 when there is none,
 * -errno; sched_served_elsewhere() adds the use at another worker. */
int sched_served(struct sched *s, struct buf *out);
void sched_served_elsewhere(struct sched *s, const struct msg_served *m, uint32_t n);

/* Forgets all tenants, and the counts of requests and tokens: those of a worker's warm-up, which no
 * client sent. No request may run or wait. */
void sched_forget_requests(struct sched *s);

/* Returns the time at which sched_step() must be called again; INT64_MAX: only after a message. */
int64_t sched_wake_ns(const struct sched *s);
/* Writes the current gauges and the counters since the start to @out, with those of pager, host
 * memory, disk tier and drafts. */
void sched_stats(const struct sched *s, struct msg_stats *out);
