#pragma once

/*
 * private - the structs of the pager and of sequences, for pager.c, check.c and tests.
 */

#include "kvpager/evict.h"
#include "kvpager/prefix.h"

/* Invariants: 3 and 7 in pager.c; n_published <= n_pages; n_published = n_committed / page_tokens
 * between calls; a pinned sequence has n_pages = n_published and no state slot. */
struct kv_seq {
    /* in kv_pager.unused_seqs or kv_pager.seqs */
    struct list link;
    struct kv_pager *pager;
    struct kv_isolation isolation;
    XXH128_hash_t root;
    /* [max_seq_pages]: the page table */
    kv_page *page;
    uint32_t n_pages, n_published, n_committed;
    /* slot of its state; NO_STATE: none */
    uint32_t state;
    /* snapshot that the sequence's next snapshot replaces; KV_NO_SNAPSHOT: none */
    uint32_t passing;
    bool pinned;
    /* n_behind: first page whose window page the sequence holds. n_found: number of tokens up to
     * which the last search found pages of other sequences. */
    uint32_t n_behind, n_found;
    /* set by kv_seq_want() */
    uint32_t n_wanted;
};

/* A page of the layers with a window: invariant 10. */
struct window_page {
    /* in windows.free, passed or ended; in no list while it is held */
    struct list link;
    /* page that it belongs to; NO_PAGE: free */
    kv_page page;
    /* number of sequences that hold it */
    uint32_t refs;
};

/* Invariant: n_free counts the pages of `free`, n_idle those of `passed` and `ended`; all remaining
 * pages are held. */
struct windows {
    /* [opts.n_windows] window pages */
    struct window_page *at;
    struct list free;
    /* Idle window pages, the oldest first. passed: pages that a sequence has moved past; ended:
     * pages at the end or the beginning of a sequence, which are kept longer. */
    struct list passed, ended;
    uint32_t n_free, n_idle;
    uint64_t n_evicted;
};

/* Counts of a page by kv_pager_check(); kv_pager_forget() uses only `seen`. */
struct kv_tally {
    uint32_t refs, pinned, windows, children, seen;
};

#define NO_STATE UINT32_MAX

/* Invariants are in pager.c. kv_pager_new() allocates everything. */
struct kv_pager {
    struct kv_opts opts;
    uint32_t max_seq_pages;
    struct pool pool;
    struct prefix prefix;
    struct evict evict;
    struct windows windows;
    /* changes of snapshots and window pages of published pages */
    struct watch ends;
    /* [max_seqs] */
    struct kv_seq *seq;
    /* [max_seqs][max_seq_pages] */
    kv_page *tables;
    /* pager with which this one shares its snapshots, by number; NULL: none */
    struct kv_pager *peer;
    /* kv_seq.link: sequences in use */
    struct list seqs;
    /* kv_seq.link */
    struct list unused_seqs;
    /* [opts.n_states] free slots; their number is opts.n_states - stats.n_states */
    uint32_t *free_state;
    struct kv_snapshot { /* [opts.n_snapshots] */
        /* page of this pager that it belongs to; NO_PAGE: it is free, taken, or only of the peer */
        kv_page page;
        bool taken;
        /* number of holds by kv_snapshot_hold() */
        uint32_t n_held;
        /* number of tokens before it */
        uint32_t n_tokens;
        /* number of tokens between it and the previous snapshot of its chain */
        uint32_t n_saves;
        /* id of the snapshot, and of the previous one of its chain; 0: none */
        uint64_t id, before;
        /* value of n_snapshot_uses at its last use */
        uint64_t used;
        /* sequence whose kv_seq.passing it is; NULL: none */
        struct kv_seq *passing;
    } * snapshot;
    uint64_t n_snapshot_uses, n_snapshot_ids;
    /* [n_pages]: scratch of check.c and restore.c */
    struct kv_tally *tally;
    /* number of changes of pages, tables and sequences, except of their lengths */
    uint64_t n_changes;
    /* holds only n_seqs and the counters since the start */
    struct kv_stats stats;
};

/* Returns the key above the first pages of @isolation. */
XXH128_hash_t pager_root_key(const struct kv_pager *p, const struct kv_isolation *isolation);

/* snapshot.c */

/* Takes its snapshot, if any, from @page, which is about to be freed. */
void snapshot_drop(struct kv_pager *p, struct page *page);
/* Ends the passing of the last snapshot of @s, so that it is kept when @s ends. */
void snapshot_stop_passing(struct kv_seq *s);

/* Functions of window.c, which do nothing for models without windows. */

/* Makes all window pages free. Returns 0 or -ENOMEM; windows_deinit() accepts a failed or zeroed
 * pager. */
int windows_init(struct kv_pager *p);
void windows_deinit(struct kv_pager *p);
/* Returns the number of window pages that can be taken: the free and the idle ones. */
uint32_t windows_available(const struct kv_pager *p);
/* Returns the first page that a row at position @n_tokens or behind reads. */
uint32_t windows_first(const struct kv_pager *p, uint32_t n_tokens);
/* Returns true if a sequence can continue behind its first @n pages when the last @run of them have
 * window pages. */
bool windows_suffice(const struct kv_pager *p, uint32_t n, uint32_t run);
/* Takes a window page for the last page of @s. */
void windows_acquire(struct kv_seq *s);
/* Lets @s hold the window page of its page @i, which has one. */
void windows_hold(struct kv_seq *s, uint32_t i);
/* Releases the window page of page @i of @s, if @s holds it. */
void windows_release(struct kv_seq *s, uint32_t i);
/* Releases the window pages among the first @n pages of @s that no row behind its committed tokens
 * reads. */
void windows_pass(struct kv_seq *s, uint32_t n);
/* Moves the window page of @own to @equal, unless that has one: @own is freed, since its sequence
 * takes the equal page instead. */
void windows_move(struct kv_pager *p, struct page *own, struct page *equal);
/* Releases the window page of @page, which is about to be freed. */
void windows_drop(struct kv_pager *p, struct page *page);
/* Frees all idle window pages; the pages that had one stay. */
void windows_drop_idle(struct kv_pager *p);
