#pragma once

/*
 * disk_room - limits of writing to the file of the disk tier: slots withheld while the file system
 * is full, and a token bucket that bounds wear (docs/design/prefix-tiers.md, "The disk"). Where
 * overwriting fails too, as on a broken disk or a file system that copies on write, writing stops
 * until a retry. Private to disk.c.
 */

#include "base/clock.h"
#include "kvpager/kvpager.h"

struct disk_room_opts {
    struct kv_pager *slots;
    struct clock *clock;
    uint32_t n_slots, n_states, page_tokens, max_seq_tokens;
    /* size of the largest slot */
    uint64_t slot_bytes;
    /* 0: no limit */
    uint64_t daily_bytes;
};

struct disk_room {
    struct disk_room_opts opts;
    /* [n_slots + n_states] the file has space for the slot */
    bool *written;
    /* sequences that hold the withheld pages */
    struct kv_seq **held;
    /* n_max: sequences that all slots may need */
    uint32_t n_held, n_max;
    /* [n_states] withheld snapshots */
    uint32_t *state;
    uint32_t n_held_states;
    /* time of the next try; 0: no fault */
    int64_t retry_ns;
    /* writing is off until retry_ns */
    bool stopped;
    /* level of the bucket */
    double bytes;
    int64_t filled_ns;
};

/* Returns the most sequences of the pager of slots that withheld pages may take. */
uint32_t disk_room_seqs(uint32_t n_slots, uint32_t page_tokens, uint32_t max_seq_tokens);
int disk_room_init(struct disk_room *r, const struct disk_room_opts *o);
void disk_room_deinit(struct disk_room *r); /* accepts a zeroed one */

/* Returns how many of @n slots of @bytes bytes each may be written now. */
uint32_t disk_room_for(struct disk_room *r, uint32_t n, uint64_t bytes);
/* Takes @n_bytes, which are being written, from the bucket. */
void disk_room_spend(struct disk_room *r, uint64_t n_bytes);
/* Notes that the file has space for @slot: it was written, now or before the start. */
void disk_room_written(struct disk_room *r, uint32_t slot);
/* Notes that writing @slot, which is free again, failed with @error. Returns whether other slots
 * can be written. */
bool disk_room_failed(struct disk_room *r, uint32_t slot, int error);
uint32_t disk_room_withheld(const struct disk_room *r); /* withheld pages */
