#pragma once

/*
 * flight - the flight recorder: the decisions about each request in the last steps, and the steps.
 * It lies in memory that worker and front share, so writing needs no message, reading does not
 * disturb the worker, and the records survive the death of the worker. There is one writer; a
 * reader may see a half-written entry and checks every value. Repeated decisions share one record,
 * so that records of a request stay in the ring for long.
 */

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define FLIGHT_RECORDS 8192u
#define FLIGHT_STEPS 512u
#define FLIGHT_OFFSET 65536 /* offset in the shared memory, behind struct crash_page */

/* Reasons of decisions, which docs/design/fairness.md explains. flight.c has their names and
 * sentences. */
enum why {
    /* arrived; not considered yet */
    WHY_QUEUED,
    /* got rows for its prompt; one more row would take `detail` us */
    WHY_PROMPT,
    /* got its row, and drafts */
    WHY_DECODE,
    /* a step computes its last token */
    WHY_LAST,
    /* another request computes the same pages */
    WHY_FOLLOW,
    /* the step's time was given to other requests; one more row takes `detail` us */
    WHY_TIME,
    /* the batch was full */
    WHY_ROWS,
    /* no page was free */
    WHY_PAGES,
    /* max-seqs requests run */
    WHY_SEQS,
    /* an earlier request was overtaken max_bypass times */
    WHY_TURN,
    /* a quarantined request runs */
    WHY_ALONE,
    /* a picture lacks its pixels, or others are computed first */
    WHY_PICTURE,
    /* its picture is being computed */
    WHY_ENCODE,
    /* free pages or slots are reserved for tenants below their share */
    WHY_SHARE,
    /* got a slot, with `detail` tokens from the cache */
    WHY_ADMITTED,
    /* lost `detail` exclusive pages */
    WHY_PREEMPTED,
    /* ended; `detail`: enum finish_reason */
    WHY_ENDED,
    /* The front's part of a story; no worker records these. Received, and made into tokens */
    WHY_READ,
    /* its model was being loaded */
    WHY_LOAD,
    /* max-running requests ran */
    WHY_PLACE,
    /* no worker took it: one is started or replaced */
    WHY_WORKER,
    /* its last tokens lay in the ring until the front ran again */
    WHY_FRONT,
    WHY_N,
};

/* A decision about request @id, with the number of times that it was repeated without another
 * decision in between. */
struct flight_record {
    uint64_t id;
    /* times of clock_monotonic */
    int64_t from_ns, until_ns;
    uint32_t n_steps, n_rows, detail;
    uint8_t why;
};

/* A step: its size, its expected and its actual time. */
struct flight_step {
    uint64_t step;
    int64_t at_ns;
    uint32_t took_us, expect_us, plan_us;
    uint32_t rows, seqs, drafts, running, waiting, admitted, preempted, available, pinned;
};

/* Invariant of the writer: an entry is complete before its number is in n_records or n_steps. After
 * a crash the memory may hold any bytes, so a reader checks all of them. */
struct flight {
    /* number written so far; entry n is at n % FLIGHT_RECORDS or n % FLIGHT_STEPS */
    uint64_t n_records, n_steps;
    struct flight_record record[FLIGHT_RECORDS];
    struct flight_step step[FLIGHT_STEPS];
};

/* Notes decision @why about request @id; `detail` as in enum why. *at is the place of the request's
 * last record, 0 at first: the same decision extends that record, another decision begins a new
 * one. */
void flight_note(struct flight *f, uint64_t *at, uint64_t id, enum why why, uint32_t n_rows,
                 uint32_t detail, int64_t now);
/* Ends the last record of request @id at @now, and begins one with reason WHY_DECODE and no steps,
 * which the next flight_note() gives its reason. */
void flight_note_token(struct flight *f, uint64_t *at, uint64_t id, int64_t now);
/* Appends a step; the ring keeps the last FLIGHT_STEPS. */
void flight_note_step(struct flight *f, const struct flight_step *step);

/* Copies the latest records of @id that are still in the ring to @out[max], the oldest first.
 * Returns their number. Safe beside the writer, except that the oldest may be half overwritten. */
uint32_t flight_story(const struct flight *f, uint64_t id, struct flight_record *out, uint32_t max);

/* Return the name of a reason ("pages") and its sentence ("waited for pages of the KV cache");
 * "unknown" for any other number. */
const char *flight_name(enum why why);
const char *flight_text(enum why why);
