#pragma once

/*
 * scheduler - who runs next. Owns the requests of a worker, the pager and the step loop's body:
 * plan, apply, launch, wait, advance, tell. One object, one thread, injected clock; it does not
 * know where its messages come from or go to (the worker's main loop in daemon/, a test, the
 * simulator).
 *
 * There is no prefill or decode state: a request has n_tokens and n_computed, and a step lets the
 * second chase the first (docs/design/architecture.md 4).
 */

#include <stdbool.h>
#include <stdint.h>
#include "base/clock.h"
#include "engine/engine.h"
#include "proto/crash_page.h"
#include "proto/messages.h"
#include "scheduler/constraints.h"

/* sched_step: nothing to run; sleep until a message comes or sched_wake_ns(). */
#define SCHED_NO_STEP 1

struct sched;
struct tokenizer;
struct draft_source;

/* A file that keeps prefixes over restarts; zero: none. */
struct sched_disk {
    int fd;
    uint64_t n_bytes;     /* 0: there is none */
    uint64_t daily_bytes; /* that may be written to it in a day; 0: no limit */
    uint8_t identity[32]; /* of the model's files, besides their fingerprint */
    bool waits;           /* it is not touched before sched_use_disk() */
    bool in_step;         /* tests: it is read and written by sched_step() */
    void *ctx;
    /* Tells of a fault of the file, with which the worker goes on. */
    void (*note)(void *ctx, const char *what, int error);
};

struct sched_opts {
    uint32_t max_seqs;      /* running at once */
    uint32_t max_rows;      /* of a step */
    uint32_t itl_target_ms; /* a step's time while anything decodes */
    uint32_t max_step_ms;   /* a step's time always */
    uint32_t depth;         /* steps in flight: 1 or 2, at most the engine's */
    uint32_t max_bypass;    /* how often a waiting request may be overtaken */
    bool check;             /* kv_pager_check_part() after every step (tests) */
    bool no_prefix_sharing; /* tests of identity */
    uint32_t force_chunk;   /* tests: prefill chunks of exactly this many tokens; 0: by time */
    bool no_speculation;
    bool no_pins;         /* pages of a session's last turn are not kept for its next one */
    uint32_t max_draft;   /* tokens; 0: 16, at most DRAFT_MAX */
    uint32_t no_sources;  /* bit i: nothing is drafted from source i of the table */
    uint32_t force_draft; /* tests: drafts of up to so many tokens at any cost; 0: if it pays */
    bool force_late;      /* tests: every mask is late that may be */
    const struct draft_source *const *drafts; /* tests: NULL-terminated table; NULL: the real one */
    struct engine *draft_engine; /* of a small model with the same tokens; NULL: there is none */
    bool tells_blocks;           /* sched_blocks() will be called */
    uint64_t hash_seed;
    uint32_t hash_bits;                /* tests: cut hashes of pages collide; 0: all bits */
    const struct tokenizer *tokenizer; /* token bytes for stop strings, end tokens; NULL: none */
    struct flight *flight;             /* NULL, or what is decided is written there, */
    struct flight_tape *tape;          /* and whole plans there, */
    uint32_t tape_bytes;               /* in so many bytes */
    struct crash_page *crash_page;     /* NULL, or the shared page */
    uint64_t picture_bytes;            /* of rows of pictures that are kept for others */
    struct sched_disk disk;
    const struct sched_constraints *constraints; /* NULL: requests with a grammar are refused */
};

/* Takes neither @engine nor @clock over. */
int sched_new(struct sched **out, const struct sched_opts *opts, struct engine *engine,
              struct clock *clock);
struct sched *sched_free(struct sched *s);
DEFINE_FREEP(struct sched, sched)

/* Copies what it keeps of @m. A request that can never run gets its REJECTED event (or
 * FINISH_ERROR) with the next sched_events(); the return value is 0, -ENOMEM, or -EPROTO: the id
 * is in use. */
int sched_submit(struct sched *s, const struct submit *m);
/* Unknown ids are ignored: the finish crossed it. */
void sched_cancel(struct sched *s, uint64_t id);

/* Takes what the front saw of a turn that has ended: when the next one is to be expected. */
void sched_turn_end(struct sched *s, const struct turn_end *m);

/* Takes over @c, which request @id waits for, or the reason @why for which it is refused (@c NULL).
 * Returns false if no such request waits; then @c stays the caller's. */
bool sched_constraint_ready(struct sched *s, uint64_t id, const struct constraint *c,
                            const struct err *why);

/* Returns whether pixels of a picture are to be asked for, of which *out is told; it is the same
 * one until sched_asked() says that they were. */
bool sched_need_picture(struct sched *s, struct msg_need_picture *out);
void sched_asked(struct sched *s, const struct msg_need_picture *m);
/* Takes a part of the pixels that were asked for, or the reason why there are none. */
void sched_picture(struct sched *s, const struct msg_picture *m);

/* One step. 0: a step ran (or finished: with depth 2 the one launched before). SCHED_NO_STEP.
 * -EIO: the engine is lost, the worker exits. */
int sched_step(struct sched *s);

/* Waits for the steps under way and takes their results: nothing runs then. 0; -EIO, -ENOMEM as
 * sched_step(). */
int sched_settle(struct sched *s);

/* Writes what the disk tier lacks of ended turns, until @until_ns at most: the worker ends.
 * Nothing runs any more. */
void sched_flush(struct sched *s, int64_t until_ns);
/* The file is this process's alone: it is read, and used until sched_leave_disk(). */
void sched_use_disk(struct sched *s);
/* Another process is to have the file. What it lacks is written in the steps that follow, of
 * running requests, too, until @until_ns at most; then it is not touched (sched_uses_disk()). */
void sched_leave_disk(struct sched *s, int64_t until_ns);
bool sched_uses_disk(const struct sched *s);
/* Readable when sched_step() has something to take from the disk; -1: it is not used. */
int sched_fd(const struct sched *s);

/* Appends an EVENTS payload with all that is new since the last delivery to @out: 0, 1 when there
 * is nothing new, -errno. sched_delivered() says that it was sent; without it the next call
 * carries the same tokens again and more. */
int sched_events(struct sched *s, struct buf *out);
void sched_delivered(struct sched *s);

/* Appends a BLOCKS payload with some of what changed of the published pages of the device since the
 * last call: 0, 1 when nothing did, -errno. Needs opts.tells_blocks. */
int sched_blocks(struct sched *s, struct buf *out);

/* Device time of tenants. Appends a SERVED payload with what they had here since the last call to
 * @out: 0, 1 when none had any, -errno; and takes in what they had at another worker of the same
 * device. */
int sched_served(struct sched *s, struct buf *out);
void sched_served_elsewhere(struct sched *s, const struct msg_served *m, uint32_t n);

/* Forgets all tenants, when no request runs or waits: none is one that may come back. */
void sched_forget_tenants(struct sched *s);

int64_t sched_wake_ns(const struct sched *s); /* next deadline, or INT64_MAX */
/* Gauges of now and counters since the start, of pager, host memory, disk tier and drafts too. */
void sched_stats(const struct sched *s, struct msg_stats *out);
