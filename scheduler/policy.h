#pragma once

/*
 * policy - every constant by which the scheduler decides: its unit, its meaning and its gain.
 * "Without" names the change of the published scenarios when the rule is switched off alone
 * (docs/measurements/scheduler-rules.md); p50, p90 and p99 are percentiles of the time to first
 * token. "Bound" marks a constant that no scenario shows: it limits what clients control, or tests
 * need it. Sizes of tables are with their tables; constants of the fitted models (time of steps, of
 * copies) are in cost.c, offload.c and disk.c.
 */

#include <stdint.h>

/* ---- order of waiting requests (queue.c) ---- */

/* A level of priority moves a request's virtual arrival by so much. Bound: what comes later than
 * the sum of all offsets stands behind, whatever it is. */
#define QUEUE_LEVEL_NS INT64_C(5000000000)
#define QUEUE_LEVELS 100 /* levels; priorities beyond count as this */

/* ---- expected output (queue.c) ---- without it is reserved: tools p90 12 times ---- */

#define ESTIMATE_START 256    /* tokens, before anything has ended */
#define ESTIMATE_MEMORY 0.75f /* part of a session's mean that the next output leaves */
#define ESTIMATE_MARGIN 1.25f /* reserved, of the mean */
#define ESTIMATE_AHEAD 32     /* tokens reserved beyond 5/4 of what there are, once it was passed */

/* ---- fair share of tenants (fair_share.c) ---- */

/* Virtual times this close are equal: then the older request is first. Without the order by virtual
 * time: flood, quiet tenant's p90 50 ms to 45 s. */
#define FAIR_QUANTUM_NS 50e6
/* Virtual time that a tenant which returns may be behind the others. Without: flood, quiet p99 36
 * times. */
#define FAIR_BURST_NS 1e9
/* A tenant so far behind the furthest one has FAIR_BEHIND_FACTOR times its weight in the division
 * of a step among prompts. Without: priorities, agents p90 +10 to +108 %. */
#define FAIR_BEHIND_NS 200e6
#define FAIR_BEHIND_FACTOR 16.0F
/* A tenant so far ahead of the fair virtual time, prompts under way counted, prefills only its part
 * of each step. Without: long_prompt, others between tokens p99 +98 %. */
#define FAIR_AHEAD_NS 5e8
/* Time for which a tenant that is gone counts among those who share. Bound. */
#define FAIR_LATELY_NS INT64_C(300000000000)
/* Slots that a tenant needs are averaged over so long, and so many standard deviations are left
 * beyond the mean. Without: flood, quiet p99 3 times; without the surge priorities p90 +15 %. */
#define FAIR_SLOTS_NS 10e9
#define FAIR_SURGE 2.0
#define FAIR_LEAST_TOTAL 4 /* slots from which on one is left in any case. Bound */
/* One page of so many is kept for tenants below their part. Without: pins, the quiet tenant's p90
 * 36 ms to 2.5 s and more. */
#define FAIR_RESERVE_PAGES 8
/* For what a tenant has at other workers of the device, its virtual time advances by at most so
 * many times what it has here, so that it keeps an eighth of its share as a batch class does.
 * Without: a tenant that asks two models, beside one that asks one, has 75 % of the device, not 56
 * %. */
#define FAIR_ELSEWHERE 7.0
/* Limit of what is not counted yet. Bound: it is not held against a tenant for long. */
#define FAIR_ELSEWHERE_NS 10e9
/* Half-life of the device time that Jain's index is made of. A statistic. */
#define FAIR_HALF_LIFE_NS 30e9
#define FAIR_DECODERS 16 /* an output row is priced as one of so many */

/* ---- a step (plan.c, plan_time.c, step.c) ---- */

#define PLAN_MIN_CHUNK 16u /* rows: the smallest chunk of a prefill. Bound: it ends one day */
/* A step in which nothing decodes may be as long as an efficient chunk takes
 * (cost_efficient_rows()), and at most so many times as long as one with a single row. Bound:
 * arrivals wait for its end. */
#define PLAN_ALONE_TIMES 10
/* One step in so many whose limit follows from what a step costs has no rows of prompts but one;
 * beside decode such steps are short and come more often. One in PLAN_PROBE_MORE has twice as many,
 * at least PLAN_PROBE_ROWS. Bound: what a wrong model costs. Beside decode, 8: gaps p90 2.3 times
 * (slow_chats). */
#define PLAN_PROBE_TURNS 8
#define PLAN_PROBE_BESIDE 4
#define PLAN_PROBE_MORE 16
#define PLAN_PROBE_ROWS 8u
/* The shortest prompt of a tenant has rows at the latest when steps passed it over so often. Bound:
 * it begins. 1: priorities, agents p90 +46 %; 4: +35 %; 8: +11 % (24 draws, within 16 %). */
#define PLAN_PASSED_MOST 8
/* A step is full when 31/32 of its time are given out. 32/32: tools, no host memory, p90 +37 to
 * +127 %, -6 to -10 % tokens/s (three draws). */
#define PLAN_FULL_NUM 31
#define PLAN_FULL_DEN 32
/* Prefill of tenants above their part adds one of so many of the target, or of decode's time.
 * Without: priorities, editor p90 2.9 times; flood between tokens p99 +73 %. */
#define PLAN_ADD_PART 4u
#define PLAN_ALONE_TURNS 4   /* one step in so many is for quarantined requests. Bound */
#define PLAN_DRAFT_ROWS 128u /* drafted rows of a step. Bound */
#define PLAN_PREWARM_NS INT64_C(10000000) /* longest step of a prewarm. Bound: arrivals wait */
/* No step is launched behind one that takes longer: with several tenants, without it priorities,
 * editor p50 +57 %; with one. 4 ms there, too: tools without host memory -4 to -8 % tokens/s. */
#define STEP_AHEAD_SHARED_NS 4000000
#define STEP_AHEAD_NS 12000000
/* Steps after which a waiting request's prefix is looked up again. 1: within the draws. Bound: what
 * planning takes, a hash for each page of each. */
#define STEP_LOOK_AGAIN 16

/* ---- pins (pin.c) ---- */

/* Length of nine of ten pauses of a session, ms: before one was seen, and its bounds. */
#define PIN_LONG_START_MS 15000.0
#define PIN_LONG_MIN_MS 500.0
#define PIN_LONG_MAX_MS 60000.0
#define PIN_QUANTILE 0.9
/* Speed at which that is learnt: by so much of itself, more at the first pauses of a session, of
 * all. Without the latter: pauses, quick tools' first token p90 +10 to +108 %. */
#define PIN_LEARN 0.35
#define PIN_LEARN_FIRST 1.4
#define PIN_FIRST 8 /* up to here those of all count, too. Without: tools, no host, again +17 % */
#define PIN_FIRST_ANY 24
#define PIN_SLACK 1.25 /* pinned so many times as long */
/* Pages are pinned for a session, a tenant, that returns after so much of its turns, of which so
 * many were seen. Without: priorities, agents p90 7 to 10 times. */
#define PIN_RETURNS_MIN 0.1
#define PIN_TURNS_MIN 4
#define PIN_TENANT_TURNS 64 /* turns of a tenant after which older ones count half */
/* At most 3/4 of the pages are pinned. Bound: requests that need little do not notice. */
#define PIN_MOST_NUM 3
#define PIN_MOST_DEN 4
/* An answer after which people take longer than this is given up first. Without: tools (H200, no
 * host memory) 66,000 tokens more computed again. */
#define PIN_SPARE_MS 5000.0
/* Room for this part of a turn's growth is left to each active session. Without: tools, no host
 * memory, p90 3 times. */
#define PIN_GROWTH_TURNS (1.0 / 3)
#define PIN_LEARN_GROWTH 0.1F
#define PIN_LOST_MOST 8 /* a session that lost less than one token of so many has its pages */
/* Time for which a turn whose pages are gone waits for others' pins. Without: tools, no host
 * memory, 886,000 tokens more computed again. Then pins are dropped; without: tools p90 7 times. */
#define PIN_FORCE_NS INT64_C(30000000000)
#define PIN_FORCE_PLAIN_NS                                                                         \
    INT64_C(250000000) /* PIN_FORCE_NS for requests without a session, or with most pages there */

/* ---- snapshots of recurrent states (state.c) ---- */

/* Tokens that a template puts behind the last message, at most. 0: first token p99 +11 to +256 %,
 * jobs p90 +4 to +20 % (hybrid, three draws); 64: same. */
#define STATE_TAIL 16u
/* Messages that are instructions and tools. 0: jobs p90 +11 to +20 %. */
#define STATE_FIRST 2u
/* A snapshot at their ends is so far behind the one before, in tokens; one at another message, or
 * twice as far, anywhere. STATE_NEAR 32: first token p90 +12 to +25 %, jobs p50 +12 to +30 %; 256,
 * and STATE_FAR 512 or 8192: within the draws. */
#define STATE_NEAR 64u
#define STATE_FAR 2048u
#define STATE_PICTURES 12u /* of a prompt, behind which there is one. Bound */
/* Part of the time of decoding that copies of states along answers may take. 0, which makes none:
 * first token p50 7 times, between tokens p99 2.4 times (answers, whose answers have 800 to 3000
 * tokens); hybrid, whose answers have 60 to 300: within the draws, as 0.1. */
#define STATE_PART 0.02

/* ---- pictures (pictures.c, step.c) ---- */

/* Pieces of a picture take this part of what decode takes, where anything decodes, so that a gap
 * stays below twice that without pictures. Bound. */
#define PICTURE_BESIDE 0.75
/* Part of the longest step that they take where nothing decodes. Bound: arrivals wait. */
#define PICTURE_ALONE 0.5
#define PICTURE_LEARN 0.3 /* of the time that a piece took, into the mean */

/* ---- speculation (spec.c); figures: tokens/s over the recorded transcripts ---- */

#define SPEC_MAX 16u /* tokens of a draft. 8: -1.8 %; 32: +0.7 %, code edit at 16 streams -5 % */
/* Trials that the prior of a position is worth. Without: -4.3 %, tool loop at 16 streams -35 %. */
#define SPEC_PRIOR_TRIALS 8.0F
#define SPEC_FADE 0.998F /* weight of old trials at each new one */
#define SPEC_SURE 0.97F  /* no estimate is beyond it. Without: -1.3 %, code edit -18 % */
#define SPEC_START 2u    /* tokens of a first draft, and of one after a draft that was wrong */
/* Drafts rejected in a row after which a source rests, and for how many tokens. 1: -14 %. */
#define SPEC_REFUSED_MAX 8u
#define SPEC_REST_MIN 16u
#define SPEC_REST_MAX 128u
/* After a rest so many tokens are tried, in one step of so many, by one request of so many.
 * Without: -0.8 %, code edit at 16 streams -13 %. */
#define SPEC_PROBE 2u
#define SPEC_PROBE_TURNS 16
#define SPEC_PROBE_PART 16
/* Steps from one without drafts to the next, which tell what drafts gain; the longest where they
 * gain SPEC_CLEAR times. Without: -0.7 %, on a device code edit at 16 streams -15 %. */
#define SPEC_INTERVAL_MIN 16u
#define SPEC_INTERVAL_MAX 256u
#define SPEC_CLEAR 1.1
/* Drafts stop for so many steps when steps with them bring less than this. Bound: never a loss. */
#define SPEC_LOSS 0.98
#define SPEC_ENOUGH 16u /* steps with drafts before they are judged */
#define SPEC_PAUSE_MIN 64u
#define SPEC_PAUSE_MAX 1024u
#define SPEC_SLOW_MEMORY 0.9F /* weight of old values in the running means of step times */
#define SPEC_LEDGER_MEMORY 0.95

/* ---- the draft model (drafter.c) ---- */

/* Steps from one probe to the next, at most, while drafts do not pay. 16: a block that is never
 * right, on a processor, 8 streams -1 %, 32 -0.4 %; 64 and 1024: within 0.2 %. */
#define DRAFTER_PROBE_MAX 256
/* Steps before a probe from which on the block has keys again: what it reads most of is near. */
#define DRAFTER_KEYS_AHEAD 32
#define DRAFTER_GAIN 1.04       /* a draft must promise so many times the tokens for the time */
#define DRAFTER_ENOUGH 1.0F     /* tokens expected of another source: it is not asked */
#define DRAFTER_CATCH_UP 16u    /* rows of a step for those who have to catch up, */
#define DRAFTER_FEW 4u          /* and for each of them */
#define DRAFTER_CATCH_UP_PART 4 /* part of the target that catching up may take: 1/4 */
