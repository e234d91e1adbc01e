#pragma once

/* tier - the scheduler's side of the tiers behind the pager (kvpager/tier.h). Private. */

#include "kvpager/tier.h"

struct batch;
struct msg_stats;
struct request;
struct sched;
struct sched_view;

/* Makes the tiers behind the pager, which has the options @device, without a file. Returns 0 or a
 * negative errno. */
int tier_init(struct sched *s, const struct kv_opts *device);
void tier_deinit(struct sched *s);
/* Opens the disk tier if the model can use it. A fault of the file goes to opts.disk.note, and there
 * is no disk tier then. */
void tier_open(struct sched *s);
/* Starts to read pages of @r from the disk if that pays. Returns true if it did; @r is then queued
 * when they have been read. */
bool tier_begin_load(struct sched *s, struct request *r);
/* Cancels the read for @r, which has ended. */
void tier_cancel_load(struct sched *s, struct request *r);
/* Saves the pages of @n_tokens of @r, also in the file if its session is expected to return. */
void tier_save(const struct sched_view *v, const struct request *r, uint32_t n_tokens);
/* Saves the pages of @r, which is about to lose them, if that is faster than computing. */
void tier_swap(struct sched *s, const struct request *r);
/* Sets n_host of @r, which was admitted with @n_hit tokens, if host memory has a longer prefix and
 * copying it is faster than computing. Returns whether it is set. */
bool tier_look(struct sched *s, struct request *r, uint32_t n_hit);
/* Returns whether pages wait to be saved or copied. */
bool tier_has_copies(const struct sched *s);
/* Returns the number of pages that are copied back before the next step, and lets as many again be
 * copied: no request waits for that step. */
uint32_t tier_fetch_more(struct sched *s);
/* Decides to save a few queued pages with the next step, more of them where it is @idle, without
 * rows. */
void tier_work(struct sched *s, bool idle);
/* Adds the decided copies to @t: first those of pages, then of states. Returns 0 or -ENOMEM. */
int tier_build(struct sched *s, struct batch *t);
/* Takes finished reads and writes before a step. Leaves the file, if that was asked for and
 * everything is written. */
void tier_step(struct sched *s);
/* Returns when tier_step() must be called again, or INT64_MAX. */
int64_t tier_wake_ns(const struct sched *s);
/* Sets the counters of host memory, and counters and gauges of the file. */
void tier_stats(const struct sched *s, struct msg_stats *out);
