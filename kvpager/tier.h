#pragma once

/*
 * tier - prefixes behind the device's pager: in host memory, from which pages are copied back
 * instead of being computed again, and in a file that outlives the worker, from which they are read
 * into host memory. docs/design/prefix-tiers.md describes which ones, and when.
 *
 * The tier decides copies; its owner makes them, in their order, before the rows of the next step,
 * and tells what they cost. Files are read and written by a thread. Otherwise one thread owns the
 * tier and the device's pager.
 */

#include "base/clock.h"
#include "kvpager/kvpager.h"
#include "kvpager/media.h"
#include "kvpager/tier_parts.h"

struct kv_tier;

/* Name of a read from the file, chosen by the caller. */
typedef uint64_t kv_ticket;

struct kv_tier_opts {
    struct kv_pager *device;
    /* Options of the device's pager; n_states: slots of recurrent states; peer: that pager, of a
     * hybrid model, whose snapshots are in host memory. */
    struct kv_opts pager;
    /* 0: nothing is saved */
    uint32_t n_host_pages;
    struct kv_prices prices;
    struct kv_memory memory;
    /* numbers of pictures in tokens; NULL: the model takes none */
    struct kv_media *media;
    struct clock *clock;
    /* Reports a fault of the file; the tier goes on. May be NULL. */
    void (*note)(void *ctx, const char *what, int error);
    void *note_ctx;
};

/* Host and disk are 0 where there is no such tier. Counters are uint64_t and count since the start;
 * n_left_tokens: tokens in the file that were computed, since reading takes too long. */
struct kv_tier_stats {
    uint32_t n_host_pages, n_host_used, n_host_held;
    uint64_t n_saved_tokens, n_fetched_tokens, n_swapped, n_not_swapped;
    uint32_t n_disk_pages, n_disk_used, n_disk_snapshots;
    uint64_t n_bad, n_disk_saved_tokens, n_disk_loaded_tokens;
    uint64_t n_disk_saved_snapshots, n_disk_loaded_snapshots, n_left_tokens;
};

/* Makes a tier in host memory, without a file. Returns 0 or a negative errno. */
int kv_tier_new(struct kv_tier **out, const struct kv_tier_opts *opts);
/* Frees the tier, after the reads and writes in flight. Accepts NULL, returns NULL. */
struct kv_tier *kv_tier_free(struct kv_tier *t);
/* Opens @file, of which there is none yet, and reads its index. Returns 0, or a negative errno:
 * there is no file then. */
int kv_tier_open(struct kv_tier *t, const struct kv_tier_file *file);
/* Closes the file, if there is one; no ticket may be left. */
void kv_tier_close(struct kv_tier *t);
bool kv_tier_has_file(const struct kv_tier *t);

/* ---- the file ---- */

/* Reads the pages of @k from the file into host memory, if the file has more of them than the
 * device, which has @n_device tokens, and host memory, and if reading is faster than computing.
 * Returns true if it does; then kv_tier_poll() returns @ticket once. */
bool kv_tier_want(struct kv_tier *t, const struct kv_keys *k, uint32_t n_device, kv_ticket ticket);
/* Returns a ticket that need not wait any longer. @late: its pages were not read in time; otherwise
 * they are in host memory, as far as that was possible. Returns false if there is none. */
bool kv_tier_poll(struct kv_tier *t, kv_ticket *ticket, bool *late);
/* Queues the pages of @k, which the device has, to be saved when there is time. @returns: their
 * session is expected to return, so they are written to the file as well. If memory is short,
 * nothing is saved. */
void kv_tier_save(struct kv_tier *t, const struct kv_keys *k, bool returns);
/* Cancels the read for @ticket, which kv_tier_poll() has not returned. */
void kv_tier_cancel(struct kv_tier *t, kv_ticket ticket);

/* Counts what the file has of @k, and neither device nor host memory, as left there. */
void kv_tier_note_left(struct kv_tier *t, const struct kv_keys *k, uint32_t n_device);
/* Makes all tickets late. */
void kv_tier_end_reads(struct kv_tier *t);
/* Takes the results of finished reads and writes and begins further ones. Steps up to @launched
 * were launched, and those up to @waited have ended. */
void kv_tier_step(struct kv_tier *t, uint64_t launched, uint64_t waited);
/* Returns when a ticket becomes late, or INT64_MAX. */
int64_t kv_tier_wake_ns(const struct kv_tier *t);
/* Returns whether pages wait to be saved or copied, or to be written to the file. */
bool kv_tier_is_saving(const struct kv_tier *t);
/* Sleeps until kv_tier_step() has something to take from the file, for @ms at most. */
void kv_tier_sleep(const struct kv_tier *t, int ms);
/* Returns a descriptor that is readable when kv_tier_step() has something to take; -1: no file. */
int kv_tier_fd(const struct kv_tier *t);

/* ---- host memory ---- */

/* Returns the length in tokens, a multiple of the page size, of the longest usable prefix of @k in
 * host memory. */
uint32_t kv_tier_in_host(const struct kv_tier *t, const struct kv_keys *k);
/* Returns whether copying tokens [from, to) back is faster than computing them. */
bool kv_tier_pays(const struct kv_tier *t, uint32_t from, uint32_t to);
/* Copies back up to @max_pages pages of @k, and their snapshots, behind the end of @seq, which is
 * its committed length. Takes pages of the device that are free or idle, and leaves @reserve of
 * them. Returns the committed length after that. */
uint32_t kv_tier_fetch(struct kv_tier *t, struct kv_seq *seq, const struct kv_keys *k,
                       uint32_t max_pages, uint32_t reserve);
/* Returns the number of pages that may still be copied back in a step for which other requests
 * wait. */
uint32_t kv_tier_fetch_room(const struct kv_tier *t);
/* Returns the number of pages that are copied back before the next step, and lets as many again be
 * copied: no request waits for that step. */
uint32_t kv_tier_fetch_more(struct kv_tier *t);
/* Saves the pages of @seq, which is about to lose them and has the tokens of @k, if copying them
 * back is faster than computing them. */
void kv_tier_swap(struct kv_tier *t, const struct kv_seq *seq, const struct kv_keys *k);
/* Returns whether a page waits to be saved or copied. */
bool kv_tier_has_copies(const struct kv_tier *t);
/* Decides to save a few queued pages in step @step, the next one, more of them if it is @idle and
 * has no rows. */
void kv_tier_work(struct kv_tier *t, uint64_t step, bool idle);
/* Takes the decided copies of pages, which are to be made before the rows of the next step, and
 * their number. They are valid until the next copy is decided. */
const struct kv_copy *kv_tier_consume_pages(struct kv_tier *t, uint32_t *n);

/* ---- recurrent states ---- */

/* Loads @snapshot into slot @slot of the device. An earlier load of that slot is obsolete. */
void kv_tier_load_state(struct kv_tier *t, uint32_t snapshot, uint32_t slot);
/* Saves slot @slot to @snapshot, which is taken. Follows the loads of the step. */
void kv_tier_save_state(struct kv_tier *t, uint32_t slot, uint32_t snapshot);
/* Takes the copies of states, which are to be made behind those of pages. */
const struct kv_copy *kv_tier_consume_states(struct kv_tier *t, uint32_t *n);

/* ---- what there is ---- */

/* Return the pagers of host memory and of the file; NULL: there is none. */
struct kv_pager *kv_tier_host_pages(const struct kv_tier *t);
struct kv_pager *kv_tier_file_pages(const struct kv_tier *t);
void kv_tier_stats(const struct kv_tier *t, struct kv_tier_stats *out);
