#pragma once

/*
 * disk_load - a request of which the disk tier has more than device and host memory waits until
 * those pages have been read, where that is faster than computing them. It is not in the queue
 * meanwhile.
 */

#include "scheduler/request.h"

struct disk;
struct disk_opts;
struct kv_pager;
struct offload;

/* What it may see and call, all of it owned by others and outliving it. */
struct disk_load_opts {
    uint32_t page_tokens;
    struct clock *clock;
    struct kv_pager *pager;
    struct offload *offload;
    struct list *waiting;   /* where a request goes when its pages are there */
    struct list *compiling; /* where it is meanwhile */
    struct request *(*find)(void *ctx, uint64_t id);
    void (*note_pending)(void *ctx, struct request *r); /* the front has something to learn of @r */
    void *ctx;
};

struct disk_load {
    struct disk_load_opts opts;
    struct disk *disk;      /* NULL: there is no disk tier */
    uint64_t n_left_tokens; /* that the file has and that were faster computed */
};

/* Opens the file of @disk, whose `loaded` and `ctx` are set here. One that cannot be used is told
 * to disk->note, and there is no such tier then. */
void disk_load_init(struct disk_load *l, const struct disk_load_opts *opts, struct disk_opts *disk);
void disk_load_deinit(struct disk_load *l); /* accepts a zeroed one */
/* Uses the file no more; what waits for it goes on without. */
void disk_load_leave(struct disk_load *l);

/* Whether @r, which could be put into the queue, waits for the disk; it is put there later. */
bool disk_load_begin(struct disk_load *l, struct request *r);
/* @r, which waits for it, is over. */
void disk_load_cancel(struct disk_load *l, struct request *r);

/* Takes what has been read and written meanwhile. Steps up to @n_decided have all copies that were
 * decided, those up to @n_waited have ended. */
void disk_load_step(struct disk_load *l, uint64_t n_decided, uint64_t n_waited);

/* When a request has waited too long, or INT64_MAX. */
int64_t disk_load_wake_ns(const struct disk_load *l);
