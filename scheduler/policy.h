#pragma once

/*
 * policy - the constants of the scheduler's rules, each with its unit, its meaning and its gain.
 * "Without" names the change of the published scenarios when the rule is switched off alone
 * (docs/measurements/scheduler-rules.md); p50, p90 and p99 are percentiles of the time to first
 * token. "Bound" marks a constant that no scenario shows: it limits resources that clients control,
 * or a test needs it. Sizes of tables are beside their tables; constants of the fitted models of
 * step, copy and disk times are in cost.c, and in kvpager/offload.c and kvpager/disk.c.
 */

#include <stdint.h>

/* ---- order of waiting requests (queue.c) ---- */

/* Shift of the virtual arrival for each level of priority. Bound: a request that comes later than
 * the sum of all shifts is served later, whatever its priority. */
#define QUEUE_LEVEL_NS INT64_C(5000000000)
#define QUEUE_LEVELS 100 /* levels; higher and lower priorities are clamped to them */

/* ---- expected output (queue.c) ---- without it is reserved: tools p90 12 times ---- */

#define ESTIMATE_START 256    /* tokens expected before any request has ended */
#define ESTIMATE_MEMORY 0.75f /* weight of the old value in a session's mean */
#define ESTIMATE_MARGIN 1.25f /* reserved part of the mean */
/* tokens reserved beyond 5/4 of the output, once that exceeds the expectation */
#define ESTIMATE_AHEAD 32

/* ---- fair share of tenants (fair_share.c) ---- */

/* Virtual times that differ by less are equal, and the older request is first. Without the order by
 * virtual time: flood, quiet tenant's p90 50 ms to 45 s. */
#define FAIR_QUANTUM_NS 50e6
/* Most virtual time by which a returning tenant is behind the others. Without: flood, quiet p99 36
 * times. */
#define FAIR_BURST_NS 1e9
/* A tenant this far behind the furthest one has FAIR_BEHIND_FACTOR times its weight in the division
 * of a step among prompts. Without: priorities, agents p90 +10 to +108 %. */
#define FAIR_BEHIND_NS 200e6
#define FAIR_BEHIND_FACTOR 16.0F
/* A tenant this far ahead of the fair virtual time, prompts under way counted, prefills only its
 * share of each step. Without: long_prompt, others between tokens p99 +98 %. */
#define FAIR_AHEAD_NS 5e8
/* Time for which a tenant without requests still counts in shares. Bound. */
#define FAIR_LATELY_NS INT64_C(300000000000)
/* A tenant is expected back for this time, if a quarter of its last pauses were no longer. Twice
 * the mean pause instead: chatty, quiet p99 2.4 to 3 times. */
#define FAIR_SOON_NS INT64_C(250000000)
#define FAIR_SOON_PART 0.25
#define FAIR_SOON_MEMORY 0.75 /* weight of the earlier pauses */
/* Time over which the slots that a tenant needs are averaged, and the standard deviations left free
 * beyond the mean. Without: flood, quiet p99 3 times; without the surge priorities p90 +15 %. */
#define FAIR_SLOTS_NS 10e9
#define FAIR_SURGE 2.0
#define FAIR_LEAST_TOTAL 4 /* from this many slots on at least one is left free. Bound */
/* One page in this many is reserved for tenants below their share. Without: pins, the quiet
 * tenant's p90 36 ms to 2.5 s and more. */
#define FAIR_RESERVE_PAGES 8
/* Use of a tenant at other workers of the device advances its virtual time by at most this many
 * times its use here, so that it keeps an eighth of its share, as a batch class does. Without: a
 * tenant that asks two models, beside one that asks one, has 75 % of the device, not 56 %. */
#define FAIR_ELSEWHERE 7.0
/* Most use elsewhere that is remembered until it is counted. Bound: old use is forgotten. */
#define FAIR_ELSEWHERE_NS 10e9
/* Half-life of the device time in Jain's index, a statistic. */
#define FAIR_HALF_LIFE_NS 30e9
#define FAIR_DECODERS 16 /* an output row is priced as one of this many in its step */

/* ---- a step (plan.c, plan_time.c, step.c) ---- */

#define PLAN_MIN_CHUNK 16u /* rows: the smallest chunk of a prefill. Bound: every prompt ends */
/* A step in which nothing decodes may take as long as an efficient chunk (cost_efficient_rows()),
 * and at most this many times as long as one row. Bound: arrivals wait for its end. */
#define PLAN_ALONE_TIMES 10
/* Probes among steps whose limit is raised: one step in PLAN_PROBE_TURNS, beside decode one in
 * PLAN_PROBE_BESIDE, or in PLAN_PROBE_SURE where the cost model is sure (cost_is_sure()). Where
 * nothing decodes, one step in PLAN_PROBE_MORE has twice as many rows; the other probes have one
 * row of prompts. Bound: the cost of a wrong model. Beside decode, always 4: slow_device, desktop,
 * time +6 %; always 16: slow_chats, busy, gaps p99 2.7 times. */
#define PLAN_PROBE_TURNS 8
#define PLAN_PROBE_BESIDE 4
#define PLAN_PROBE_SURE 16
#define PLAN_PROBE_MORE 16
/* Steps that may pass over the shortest prompt of a tenant before it has rows. Bound: it begins. 1:
 * priorities, agents p90 +46 %; 4: +35 % (24 draws, within 16 %); 8: +6 % (30, within 6 %). */
#define PLAN_PASSED_MOST 8
/* A step is full when 31/32 of its time are given out. 32/32: tools, no host memory, p90 +37 to
 * +127 %, -6 to -10 % tokens/s (three draws). */
#define PLAN_FULL_NUM 31
#define PLAN_FULL_DEN 32
/* Prefill of tenants above their share, or of the only one that has anything to compute, adds this
 * fraction (1/4) of the target, or of decode's time. Without: priorities, editor p90 2.9 times;
 * flood between tokens p99 +73 %; leave, quiet p90 4 times. */
#define PLAN_ADD_PART 4u
/* A step that would take more than PLAN_HEAD_TIMES times as long with the rows of other tenants as
 * with those of tenants FAIR_BEHIND_NS behind has only the latter, for add_ns of each request:
 * until its first token, or if its output is expected to have at most PLAN_HEAD_TOKENS tokens,
 * until its end. 5/4 instead: long_prompt, the book +5 %; leave, leave_new, beside: same. */
#define PLAN_HEAD_TIMES 2
#define PLAN_HEAD_TOKENS 16u
/* While a tenant that is behind is expected back, a step of others takes at most as long as
 * PLAN_TURN_TIMES one row, if its rows come at PLAN_TURN_RATE of the rate of a step of all. */
#define PLAN_TURN_TIMES 2
#define PLAN_TURN_RATE 0.75
#define PLAN_ALONE_TURNS 4   /* one step in this many is for quarantined requests. Bound */
#define PLAN_DRAFT_ROWS 128u /* drafted rows of a step. Bound */
#define PLAN_PREWARM_NS INT64_C(10000000) /* longest step of a prewarm. Bound: arrivals wait */
/* No step is launched behind one that takes longer. With several tenants, without it: priorities,
 * editor p50 +57 %. With one tenant, 4 ms: tools without host memory -4 to -8 % tokens/s. */
#define STEP_AHEAD_SHARED_NS 4000000
#define STEP_AHEAD_NS 12000000
/* The same while a tenant is expected back. */
#define STEP_AHEAD_EXPECTED_NS 1000000
/* Steps after which the prefix of a waiting request is looked up again. 1: within the draws. Bound:
 * planning hashes each page of each waiting request. */
#define STEP_LOOK_AGAIN 16

/* ---- pins (pin.c) ---- */

/* 90th percentile of a session's pauses, ms: before one was seen, and its bounds. */
#define PIN_LONG_START_MS 15000.0
#define PIN_LONG_MIN_MS 500.0
#define PIN_LONG_MAX_MS 60000.0
#define PIN_QUANTILE 0.9
/* Relative step by which the percentile is learnt, larger at the first pauses of a session and of
 * all sessions. Without the latter: pauses, quick tools' first token p90 +10 to +108 %. */
#define PIN_LEARN 0.35
#define PIN_LEARN_FIRST 1.4
#define PIN_FIRST 8 /* pauses of a session, up to which those of all sessions count, too. */
#define PIN_FIRST_ANY 24
#define PIN_SLACK 1.25 /* a pin lasts this many times the percentile */
/* Least part of its turns after which a session, or a tenant, returns if its pages are pinned, and
 * the turns seen before it counts. Without: priorities, agents p90 7 to 10 times. */
#define PIN_RETURNS_MIN 0.1
#define PIN_TURNS_MIN 4
#define PIN_TENANT_TURNS 64 /* turns of a tenant after which older ones count half */
/* At most 3/4 of the pages are pinned. Bound: small requests are not affected. */
#define PIN_MOST_NUM 3
#define PIN_MOST_DEN 4
/* Pins of answers after which pauses are longer than this are dropped first. Without: tools (H200,
 * no host memory) 66,000 tokens more computed again. */
#define PIN_SPARE_MS 5000.0
/* Part of a turn's growth for which each active session keeps room. Without: tools, no host memory,
 * p90 3 times. */
#define PIN_GROWTH_TURNS (1.0 / 3)
#define PIN_LEARN_GROWTH 0.1F
/* a session that lost less than 1 in this many of its tokens has its pages */
#define PIN_LOST_MOST 8
/* Time for which a turn whose pages are gone waits until pins are dropped for it. Without the
 * wait: tools, no host memory, 886,000 tokens more computed again. Without the drop: tools p90 7
 * times. */
#define PIN_FORCE_NS INT64_C(30000000000)
#define PIN_FORCE_PLAIN_NS                                                                         \
    INT64_C(250000000) /* PIN_FORCE_NS for requests without a session, or with most pages there */

/* ---- snapshots of recurrent states (state.c) ---- */

/* Most tokens that a template puts behind the last message. 0: first token p99 +11 to +256 %, jobs
 * p90 +4 to +20 % (hybrid, three draws); 64: same. */
#define STATE_TAIL 16u
/* First messages, which hold instructions and tools. 0: jobs p90 +11 to +20 %. */
#define STATE_FIRST 2u
/* Least distance in tokens between snapshots: STATE_NEAR at the ends of the first messages,
 * STATE_FAR at other messages, twice that anywhere. STATE_NEAR 32: first token p90 +12 to +25 %,
 * jobs p50 +12 to +30 %; 256, and STATE_FAR 512 or 8192: within the draws. */
#define STATE_NEAR 64u
#define STATE_FAR 2048u
#define STATE_PICTURES 12u /* pictures of a prompt behind which a snapshot is made. Bound */
/* Part of decode's time that copies of states along answers may take. 0, no copies: first token p50
 * 7 times, between tokens p99 2.4 times (answers of 800 to 3000 tokens); hybrid, with answers of 60
 * to 300: within the draws, as 0.1. */
#define STATE_PART 0.02

/* ---- pictures (pictures.c, step.c) ---- */

/* Part of decode's time that pieces of a picture take beside decode, so that a gap stays below
 * twice that without pictures. Bound. */
#define PICTURE_BESIDE 0.75
/* Part of the longest step that they take while nothing decodes. Bound: arrivals wait. */
#define PICTURE_ALONE 0.5
#define PICTURE_LEARN 0.3 /* weight of a piece's time in the running mean */

/* ---- speculation (spec.c); figures: tokens/s over the recorded transcripts ---- */

#define SPEC_MAX 16u /* tokens of a draft. 8: -1.8 %; 32: +0.7 %, code edit at 16 streams -5 % */
/* Trials that the prior of a position counts as. Without: -4.3 %, tool loop at 16 streams -35 %. */
#define SPEC_PRIOR_TRIALS 8.0F
#define SPEC_FADE 0.998F /* weight of old trials at each new one */
#define SPEC_SURE 0.97F  /* no estimate is beyond it. Without: -1.3 %, code edit -18 % */
#define SPEC_START 2u    /* tokens of a first draft, and of the next one after a wrong draft */
/* Drafts rejected in a row before a source rests, and the length of rests in tokens. 1: -14 %. */
#define SPEC_REFUSED_MAX 8u
#define SPEC_REST_MIN 16u
#define SPEC_REST_MAX 128u
/* A probe after a rest: tokens drafted, steps from one probe to the next, and the part of the
 * requests that probe in such a step. Without: -0.8 %, code edit at 16 streams -13 %. */
#define SPEC_PROBE 2u
#define SPEC_PROBE_TURNS 16
#define SPEC_PROBE_PART 16
/* Steps from one step without drafts to the next, which measure the gain of drafts; the longest
 * interval where they gain SPEC_CLEAR times. Without: -0.7 %, on a device code edit at 16 streams
 * -15 %. */
#define SPEC_INTERVAL_MIN 16u
#define SPEC_INTERVAL_MAX 256u
#define SPEC_CLEAR 1.1
/* Gain below which drafts pause, the steps before they are judged, and the length of a pause in
 * steps. Bound: never a loss. */
#define SPEC_LOSS 0.98
#define SPEC_ENOUGH 16u
#define SPEC_PAUSE_MIN 64u
#define SPEC_PAUSE_MAX 1024u
#define SPEC_SLOW_MEMORY 0.9F /* weight of old values in the running means of step times */
#define SPEC_LEDGER_MEMORY 0.95

/* ---- the draft model (drafter.c) ---- */

/* Most steps between two probes while drafts do not pay. 16: a block that is never right, on a
 * processor, 8 streams -1 %, 32 -0.4 %; 64 and 1024: within 0.2 %. */
#define DRAFTER_PROBE_MAX 256
/* Steps before a probe from which on the keys of the block are computed again; most of its
 * attention is near. */
#define DRAFTER_KEYS_AHEAD 32
#define DRAFTER_GAIN 1.04 /* least gain in tokens per time that a draft must promise */
/* the draft model is not asked where another source is expected to give this many tokens */
#define DRAFTER_ENOUGH 1.0F
#define DRAFTER_CATCH_UP 16u    /* rows of a step for requests that must catch up, */
#define DRAFTER_FEW 4u          /* and rows for each of them */
#define DRAFTER_CATCH_UP_PART 4 /* part of the target that catching up may take: 1/4 */
