#pragma once

/*
 * disk - prefixes that outlive the worker: pages of host memory, and the snapshots of recurrent
 * states that they have, are written to a file in the background, and read back when a request
 * needs them. disk.c and docs/design/prefix-tiers.md describe it. Private.
 */

#include "engine/engine.h"
#include "kvpager/kvpager.h"
#include "kvpager/store.h"

#define DISK_SAVES 32u     /* prefixes that wait to be written; more are not */
#define DISK_LOADS 8u      /* requests whose pages are being read at once; others wait */
#define DISK_IDENTITY 256u /* bytes, at most */

struct disk;
struct msg_stats;

struct disk_opts {
    int fd;
    uint64_t n_bytes;
    uint64_t daily_bytes; /* bytes written per day at most; 0: no limit */
    struct clock *clock;
    uint8_t
        identity[DISK_IDENTITY]; /* covers all that a page's bytes depend on besides its tokens */
    size_t n_identity;
    struct kv_opts pager; /* options of the device's pager */
    struct kv_pager *host;
    struct engine *engine; /* owner of the host pages */
    bool in_step;          /* tests: no thread, files are read and written at once */
    void *ctx, *note_ctx;
    struct msg_stats *stats;
    /* Tells of a fault of the file, with which the worker goes on. */
    void (*note)(void *ctx, const char *what, int error);
    /* The pages that request @id waits for are in host memory, as far as they could be read. */
    void (*loaded)(void *ctx, uint64_t id);
};

/* Reads what is in the file. 0, or a negative errno: there is no such tier. */
int disk_new(struct disk **out, const struct disk_opts *o);
struct disk *disk_free(struct disk *d); /* waits for what is under way */

/* @host, a sequence of the host's pager, holds @tokens[0, n_tokens): what the file lacks of it is
 * written when step @after has ended. Takes @host and @tokens over. */
void disk_save(struct disk *d, struct kv_seq *host, int32_t *tokens, uint32_t n_tokens,
               uint64_t after);

/* Tokens of @tokens[0, n_tokens) that the file has, and can be gone on from; whole pages. */
uint32_t disk_has(const struct disk *d, const struct kv_isolation *share, const int32_t *tokens,
                  uint32_t n_tokens);
/* Returns how long reading @n_pages and the state behind them is expected to take, behind what is
 * being read already. */
double disk_read_ns(const struct disk *d, uint32_t n_pages);
/* Brings pages of @tokens[0, n_tokens) to host memory for request @id, which is told by
 * opts.loaded. 0 or -ENOMEM. */
int disk_load(struct disk *d, uint64_t id, const struct kv_isolation *share, const int32_t *tokens,
              uint32_t n_tokens);
/* No request waits for them any more. */
void disk_cancel(struct disk *d, uint64_t id);

/* Takes what has been read and written and gives more to the thread. Steps up to @decided have
 * all copies that were decided so far; those up to @waited have ended. */
void disk_step(struct disk *d, uint64_t decided, uint64_t waited);

/* Returns whether a job of disk_save() has pages that are not written yet. */
bool disk_is_saving(const struct disk *d);
/* Until there is something to take, for @ms at most. */
void disk_sleep(const struct disk *d, int ms);
/* Readable when disk_step() has something to take. */
int disk_fd(const struct disk *d);
/* Sets the gauges of the file. */
void disk_stats(const struct disk *d, struct msg_stats *out);
/* For checks: how many sequences of the host's pager are held, or (@states) how many of its
 * snapshots held or taken; and the pager of the slots. */
uint32_t disk_held(const struct disk *d, bool states);
const struct kv_pager *disk_pager(const struct disk *d);
