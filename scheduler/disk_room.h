#pragma once

/*
 * disk_room - how much may be written to the file of the disk tier, and where: what is withheld
 * while a file system is full, and the bucket that bounds the wear
 * (docs/design/prefix-tiers.md, "The disk").
 * Where overwriting fails too (a disk that is broken, a file system that copies on writing) nothing
 * is written until it is tried again. Private to disk.c.
 */

#include "base/clock.h"
#include "kvpager/kvpager.h"

struct disk_room_opts {
    struct kv_pager *slots;
    struct clock *clock;
    uint32_t n_slots, n_states, page_tokens, max_seq_tokens;
    uint64_t slot_bytes;  /* size of the largest slot */
    uint64_t daily_bytes; /* 0: no limit */
};

struct disk_room {
    struct disk_room_opts opts;
    bool *written;          /* [n_slots + n_states]: it has its room in the file */
    struct kv_seq **held;   /* hold the pages that are withheld */
    uint32_t n_held, n_max; /* n_max: as many as all slots may need */
    uint32_t *state;        /* [n_states]: the snapshots that are withheld */
    uint32_t n_held_states;
    int64_t retry_ns; /* when it is tried again; 0: nothing is wrong */
    bool stopped;     /* writing is stopped until then */
    double bytes;     /* in the bucket */
    int64_t filled_ns;
};

/* Sequences of the pager of slots that it may take. */
uint32_t disk_room_seqs(uint32_t n_slots, uint32_t page_tokens, uint32_t max_seq_tokens);
int disk_room_init(struct disk_room *r, const struct disk_room_opts *o);
void disk_room_deinit(struct disk_room *r); /* zero: nothing to do */

/* Returns how many of @n slots of @bytes each may be written now. */
uint32_t disk_room_for(struct disk_room *r, uint32_t n, uint64_t bytes);
/* So many bytes are being written. */
void disk_room_spend(struct disk_room *r, uint64_t n_bytes);
/* @slot is written, or holds something since before. */
void disk_room_written(struct disk_room *r, uint32_t slot);
/* Writing @slot, which is free again, failed with @error. Whether others can be written. */
bool disk_room_failed(struct disk_room *r, uint32_t slot, int error);
uint32_t disk_room_withheld(const struct disk_room *r); /* pages */
