#pragma once

/*
 * disk - prefixes that outlive the worker: pages of host memory, with their snapshots of recurrent
 * states, are written to a file in the background and read back when a request needs them. disk.c
 * and docs/design/prefix-tiers.md describe it. Private.
 */

#include "kvpager/tier_parts.h"

#define DISK_SAVES 32u /* prefixes that wait to be written; further ones are dropped */
/* requests whose pages are read at the same time; further requests wait */
#define DISK_LOADS 8u

struct disk;

/* Counters since the start. */
struct disk_counts {
    uint64_t n_bad, n_saved_tokens, n_loaded_tokens, n_saved_snapshots, n_loaded_snapshots;
};

struct disk_opts {
    struct kv_tier_file file;
    struct clock *clock;
    /* of the slots, but for their numbers */
    struct kv_opts pager;
    struct kv_pager *host;
    /* numbers of pictures in tokens; NULL: the model takes none */
    struct kv_media *media;
    struct kv_memory memory;
    void *ctx, *note_ctx;
    struct disk_counts *counts;
    /* Reports a fault of the file; the worker goes on. */
    void (*note)(void *ctx, const char *what, int error);
    /* Reports that the pages for which request @id waits were read into host memory, as far as that
     * was possible. */
    void (*loaded)(void *ctx, uint64_t id);
};

/* Opens the tier and reads the index of the file. Returns 0, or a negative errno: there is no disk
 * tier. */
int disk_new(struct disk **out, const struct disk_opts *o);
struct disk *disk_free(struct disk *d); /* waits for reads and writes in flight */
/* Returns the pager whose pages are the file's slots; NULL for NULL. */
struct kv_pager *disk_pages(const struct disk *d);

/* Takes over @host, a sequence of the host's pager, and its @tokens[0, n_tokens): the pages that
 * the file lacks are written when step @after has ended. */
void disk_save(struct disk *d, struct kv_seq *host, int32_t *tokens, uint32_t n_tokens,
               uint64_t after);

/* Returns the length in tokens, a multiple of the page size, of the longest usable prefix of
 * @tokens[0, n_tokens) in the file. */
uint32_t disk_has(const struct disk *d, const struct kv_isolation *share, const int32_t *tokens,
                  uint32_t n_tokens);
/* Returns the expected time, in ns, of reading @n_pages and the state behind them after the reads
 * already queued. */
double disk_read_ns(const struct disk *d, uint32_t n_pages);
/* Notes that a prefix was left in the file because reading it takes too long. Nothing is measured
 * then, so an expected time above the first estimate moves towards it, until reading is tried
 * again. */
void disk_left(struct disk *d);
/* Reads pages of @tokens[0, n_tokens) into host memory for request @id; opts.loaded() reports the
 * end. Returns 0 or -ENOMEM. */
int disk_load(struct disk *d, uint64_t id, const struct kv_isolation *share, const int32_t *tokens,
              uint32_t n_tokens);
/* Cancels the read for request @id. */
void disk_cancel(struct disk *d, uint64_t id);

/* Takes the results of finished reads and writes, and gives the thread further ones. All copies
 * decided so far are in steps up to @decided; steps up to @waited have ended. */
void disk_step(struct disk *d, uint64_t decided, uint64_t waited);

/* Returns whether pages given to disk_save() are not written yet. */
bool disk_is_saving(const struct disk *d);
/* Sleeps until disk_step() has something to take, for @ms at most. */
void disk_sleep(const struct disk *d, int ms);
/* Returns a descriptor that is readable when disk_step() has something to take. */
int disk_fd(const struct disk *d);
/* Returns the number of pages that the file has room for now. */
uint32_t disk_n_pages(const struct disk *d);
/* For checks: returns the number of held sequences of the host's pager or, with @states, the number
 * of its held or taken snapshots. */
uint32_t disk_held(const struct disk *d, bool states);
