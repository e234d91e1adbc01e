#pragma once

/*
 * kvpager - decides which KV-cache page holds which tokens.
 *
 * A page holds page_tokens consecutive tokens of a sequence. Sequences whose tokens (and isolation
 * key) are equal up to the end of a page share that page, also while both run. A page that no
 * sequence holds stays cached until its room is needed; eviction takes leaves before parents, least
 * recently used first. The pager moves page numbers around and never touches the bytes, so it is
 * tested without a model. It knows nothing of tenants or time; "recently" is the order of calls.
 * Not thread-safe: one thread owns a pager and its sequences.
 *
 * Asserts catch a caller's mistake (tokens that are not the sequence's, growth beyond
 * max_seq_tokens); running out of pages or of sequences is a return value.
 *
 * The invariants are at the top of pager.c and checked by kv_pager_check().
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/util.h"

/* Answer of kv_seq_grow(): no page is available, so the caller evicts, preempts or waits. */
#define KV_FULL 1

#define KV_NO_PAGE UINT32_MAX

typedef uint32_t kv_page;
struct kv_pager;
struct kv_seq;

/* Restricts sharing: two sequences share pages only when the bytes of these fields are equal. */
struct kv_isolation {
    /* only sequences of equal key share pages */
    uint8_t key[16];
};

/* Options of a pager, fixed for its life. */
struct kv_opts {
    /* page_tokens: a power of two, 1 to 256 */
    uint32_t n_pages, page_tokens, max_seqs;
    /* longest sequence: page tables are sized from it */
    uint32_t max_seq_tokens;
    /* Slots for recurrent states, or for the hidden states from which drafts continue; each
     * sequence holds one slot while it is computed. 0: the model needs no slots. */
    uint32_t n_states;
    /* snapshots of states, see kv_snapshot_acquire() */
    uint32_t n_snapshots;
    /* NULL, or a pager with the same number of snapshots, fingerprint, seed and hash_bits. The two
     * share their snapshots, and a snapshot may belong to a page of each pager. */
    struct kv_pager *peer;
    /* Layers with a window have n_windows pages of their own (window.c), in which a row reads at
     * most the last @window keys, including its own. 0: there are no such layers. Cannot be
     * combined with snapshots. */
    uint32_t n_windows, window;
    /* names the model; part of every key */
    uint8_t fingerprint[16];
    uint64_t hash_seed;
    /* bits of the hash in use, for tests that force collisions; 0: all */
    uint32_t hash_bits;
    /* kv_pager_next_change() will be called */
    bool watch;
};

/* A change of a published page: it has got keys, or has lost them. With `ends`: it has got, or has
 * lost, the state or the keys of windows that a sequence needs to continue behind it. */
struct kv_change {
    /* Names of the content of the page and of the page before it. A name follows from the model,
     * the isolation key and the tokens up to the end of the page. parent 0: the page is a first
     * page. */
    uint64_t block, parent;
    /* [page_tokens], until the pager is called again; NULL: the page has lost its keys */
    const int32_t *tokens;
    /* Set if tokens is. n_before: number of tokens right before the page that equal its first one,
     * if that is a row of a picture (media.h); else 0. */
    const struct kv_isolation *isolation;
    uint32_t n_before;
};

/* Statistics: uint64_t fields count since the start, all other fields are current values. */
struct kv_stats {
    /* n_pages is the sum of the four others */
    uint32_t n_pages, n_free, n_owned, n_shared, n_cached;
    uint32_t n_seqs;
    /* shared pages that only pinned sequences hold */
    uint32_t n_pinned;
    /* slots in use by sequences */
    uint32_t n_states;
    /* counted by kv_seq_attach() */
    uint64_t n_lookup_tokens, n_hit_tokens;
    uint64_t n_evicted, n_published, n_deduplicated;
    /* n_snapshots: snapshots of pages now; the others are counted since the start */
    uint32_t n_snapshots;
    uint64_t n_snapshots_made, n_snapshots_used, n_snapshots_evicted;
    /* window pages; all others are held by sequences */
    uint32_t n_windows_free, n_windows_idle;
    uint64_t n_windows_evicted;
    /* tokens by which hits were cut because a window page was gone */
    uint64_t n_missed_tokens;
};

/* Describes what kv_seq_attach() would give to a new sequence. */
struct kv_match {
    /* Tokens in existing full pages, as far as the window pages that the next token reads exist;
     * with snapshots, up to the last page that has one. A multiple of page_tokens. */
    uint32_t n_tokens;
    /* the number of these pages that are cached: attaching makes them unavailable */
    uint32_t n_idle;
    /* tokens of all existing full pages, including those behind n_tokens */
    uint32_t n_found;
};

/* Allocates everything at once; no other function does. Returns 0, -EINVAL or -ENOMEM. */
int kv_pager_new(struct kv_pager **out, const struct kv_opts *opts);
/* Frees the pager; every sequence must have been freed before. Accepts NULL, returns NULL. */
struct kv_pager *kv_pager_free(struct kv_pager *p);
DEFINE_FREEP(struct kv_pager, kv_pager)

/* Returns the pages that kv_seq_grow() can still take: the free and the cached ones. */
uint32_t kv_pager_available(const struct kv_pager *p);
/* Fills @out with current gauges and counters since the start. */
void kv_pager_stats(const struct kv_pager *p, struct kv_stats *out);
/* Returns the next change that has not been reported yet; false: there is none. A page that was
 * published and freed in between is not reported, so at most two changes wait for each page. Freed
 * pages are reported before published ones, and a page after its parent. With @ends returns changes
 * of snapshots and window pages, in which parents may be missing; read them after the others. Needs
 * opts.watch. */
bool kv_pager_next_change(struct kv_pager *p, bool ends, struct kv_change *out);
/* Verifies every invariant by recounting, in time proportional to the pages and page tables; aborts
 * with a message that names the broken invariant. */
void kv_pager_check(const struct kv_pager *p);
/* Checks the invariants like kv_pager_check(), but hashes only the keys of every @n_parts-th page
 * (those whose number leaves the remainder @part), because a hash is the expensive part. */
void kv_pager_check_part(const struct kv_pager *p, uint32_t part, uint32_t n_parts);
/* Evicts every cached page and every idle window page (admin, tests). */
void kv_pager_drop_cached(struct kv_pager *p);

/* Enters page @page, which is free, as cached: it holds @tokens behind page @parent (KV_NO_PAGE: it
 * is a first page) from before the pager was made. Parents are entered before their children, and
 * unrelated pages from the most to the least recently used, because each page counts as less
 * recently used than the pages entered before. Returns 0; -EEXIST: there is an equal page; -EINVAL:
 * @page is not free or @parent not published under the same isolation key. */
int kv_pager_restore(struct kv_pager *p, kv_page page, kv_page parent,
                     const struct kv_isolation *isolation, const int32_t *tokens);
/* Frees @page and all published pages that follow it. Returns 0, or -EBUSY without a change: a
 * sequence holds one of them. Costs time proportional to the number of pages. */
int kv_pager_forget(struct kv_pager *p, kv_page page);
/* Enters snapshot @snapshot, which is free, as that of published page @page, from before the pager
 * was made; the most recently used snapshot is entered last. Returns 0; -EEXIST: the page has one;
 * -EINVAL: @snapshot is not free, or @page not published. */
int kv_pager_restore_snapshot(struct kv_pager *p, uint32_t snapshot, kv_page page);
/* Removes @snapshot from its page and frees it. Returns 0, or -EBUSY without a change: it is taken
 * or held. */
int kv_pager_forget_snapshot(struct kv_pager *p, uint32_t snapshot);

/* Finds the longest published prefix of @tokens, in whole pages inside @n_tokens, behind which a
 * sequence can continue. Changes nothing. A caller that must compute at least one token passes
 * n_prompt - 1. */
struct kv_match kv_pager_match(const struct kv_pager *p, const struct kv_isolation *isolation,
                               const int32_t *tokens, uint32_t n_tokens);

/* Writes the pages [from, from + max) of the prefix that kv_pager_match() finds to @out, as far as
 * it has pages. Returns their number. */
uint32_t kv_pager_find(const struct kv_pager *p, const struct kv_isolation *isolation,
                       const int32_t *tokens, uint32_t n_tokens, uint32_t from, kv_page *out,
                       uint32_t max);

/*
 * Snapshots of recurrent states: copies that belong to a published page, and are of the state
 * behind its last token. A sequence with the tokens up to there begins with the pages and the
 * snapshot (kv_pager_match(), kv_seq_attach(), kv_seq_snapshot()). A snapshot is freed with its
 * page, or when its room is needed; the one with the least expected benefit goes first
 * (snapshot.c). Peer pagers share their snapshots: one is freed with the last of its two pages.
 */
#define KV_NO_SNAPSHOT UINT32_MAX

/* Returns a snapshot to be written, which belongs to the caller until kv_seq_attach_snapshot() or
 * kv_snapshot_free(). If none is free, it is the passing snapshot of @s, or else the snapshot with
 * the least expected benefit; @s may be NULL. KV_NO_SNAPSHOT: all are taken. */
uint32_t kv_snapshot_acquire(struct kv_pager *p, struct kv_seq *s);
/* Frees @snapshot, which kv_snapshot_acquire() returned and which was not written. */
void kv_snapshot_free(struct kv_pager *p, uint32_t snapshot);
/* Returns the number of snapshots that kv_snapshot_acquire() can still return. */
uint32_t kv_snapshot_untaken(const struct kv_pager *p);
/* Keeps @snapshot from being freed or replaced until it has been released as often as held. A
 * sequence must hold its page meanwhile. */
void kv_snapshot_hold(struct kv_pager *p, uint32_t snapshot);
void kv_snapshot_release(struct kv_pager *p, uint32_t snapshot);
/* Attaches @snapshot, the state behind the committed tokens of @s, to the page that ends there.
 * Frees it if that page has a snapshot already. With @passes the next snapshot of @s replaces it,
 * unless another sequence has begun with it or @s has ended by then. */
void kv_seq_attach_snapshot(struct kv_seq *s, uint32_t snapshot, bool passes);
/* Attaches @snapshot, the state behind published page @i of @s, to that page. Frees it if the page
 * has a snapshot already. */
void kv_seq_attach_snapshot_at(struct kv_seq *s, uint32_t snapshot, uint32_t i);
/* Returns the snapshot of published page @i of @s, or KV_NO_SNAPSHOT. */
uint32_t kv_seq_snapshot_at(const struct kv_seq *s, uint32_t i);
/* Attaches the snapshot of page @page of the peer also to page @i of @s, unless page @i has a
 * snapshot. @page holds the same prefix as the first @i + 1 pages of @s, which are all published.
 * Not for a passing snapshot. */
void kv_seq_share_snapshot(struct kv_seq *s, uint32_t i, kv_page page);
/* Returns the snapshot of the sequence's last published page and counts a use of it, or
 * KV_NO_SNAPSHOT. */
uint32_t kv_seq_snapshot(struct kv_seq *s);

/* Makes a sequence without pages, with a state slot if the pager has slots. Returns 0, or -ENOMEM:
 * there are max_seqs sequences, or no slot is free. */
int kv_seq_new(struct kv_seq **out, struct kv_pager *p, const struct kv_isolation *isolation);
/* Frees the sequence, its pages and its state slot; full committed pages stay cached. Accepts NULL,
 * returns NULL. */
struct kv_seq *kv_seq_free(struct kv_seq *s);

/* Pins the sequence's published pages until it is freed, and frees its other pages, its window
 * pages and its state slot. The sequence is not computed any more: only freeing and reading it is
 * allowed. Pages that only such sequences hold count as n_pinned. */
void kv_seq_pin(struct kv_seq *s);

/* Takes published pages that continue the sequence, whose tokens from position 0 on are @tokens (as
 * for match and commit). The sequence must end at its committed length, a multiple of page_tokens:
 * it has grown no further, or was truncated. The first call gives the prefix hit; later calls give
 * pages that other sequences have published meanwhile. Returns the number of tokens that the
 * sequence has committed now. */
uint32_t kv_seq_attach(struct kv_seq *s, const int32_t *tokens, uint32_t n_tokens);

/* Returns the number of pages that kv_seq_grow() would take for @n_tokens. */
uint32_t kv_seq_need(const struct kv_seq *s, uint32_t n_tokens);
/* Makes room for positions [0, n_tokens), at most max_seq_tokens, and evicts cached pages for it.
 * Returns 0, or KV_FULL without a change. The new pages are the sequence's own until they are
 * committed. Window pages are enough for any @n sequences that have committed all but @m positions
 * together if n_windows is at least n * (window / page_tokens + 3) + m / page_tokens. */
int kv_seq_grow(struct kv_seq *s, uint32_t n_tokens);

/* Declares tokens [0, n_tokens) final and their keys and values written: pages that became full are
 * published for sharing, and window pages that no row behind is going to read are given back.
 * @n_tokens is at least the committed length; only kv_seq_truncate() reduces that. When another
 * sequence has published an equal page meanwhile, this one takes that page and frees its own: a
 * step that was launched with the old page must be ordered before the next one that writes it. */
void kv_seq_commit(struct kv_seq *s, const int32_t *tokens, uint32_t n_tokens);

/* Drops the tokens from @n_tokens on: wrong drafts, or all tokens (0) for a preemption. Committed
 * full pages that are dropped stay cached. A committed full page cannot be cut, since it would be
 * written again: @n_tokens inside one is a mistake of the caller. Between the committed length and
 * the room that was grown, every @n_tokens is allowed. With windows, only 0 is allowed below the
 * committed length, because pages that the next row would read may be gone. */
void kv_seq_truncate(struct kv_seq *s, uint32_t n_tokens);

/* Returns the number of tokens that were committed and not truncated. */
uint32_t kv_seq_committed(const struct kv_seq *s);
/* Returns the number of the sequence's pages with reference count 1: truncating to 0 makes them
 * available. */
uint32_t kv_seq_exclusive(const struct kv_seq *s);
/* Returns the isolation under which the published pages of @s are found. */
const struct kv_isolation *kv_seq_isolation(const struct kv_seq *s);
/* Returns the state slot of the sequence, below n_states; 0 where the model has no states. Not
 * allowed for a pinned sequence. */
uint32_t kv_seq_state(const struct kv_seq *s);
/* Returns the page table, which is valid until the next call that changes the sequence. */
const kv_page *kv_seq_pages(const struct kv_seq *s, uint32_t *n_pages);
/* Hints that other sequences are likely to begin with the first @n_tokens of this one, or slightly
 * fewer: the window pages that they would read stay cached longer after this sequence has passed
 * them. */
void kv_seq_want(struct kv_seq *s, uint32_t n_tokens);
/* Writes the window pages of the sequence to @out, one for each page: a number below n_windows, or
 * KV_NO_PAGE where no row reads the page any more. */
void kv_seq_windows(const struct kv_seq *s, kv_page *out);
