#pragma once

/*
 * disk_index - what the file of the disk tier has when a worker begins: the heads of all slots are
 * read, and what hangs together is entered into the slots' pager, parents first. Private to disk.c.
 */

#include "kvpager/kvpager.h"
#include "kvpager/store.h"
#include "scheduler/disk_room.h"

struct disk_index {
    const struct store *store;
    struct kv_pager *slots; /* empty */
    struct disk_room *room;
    struct store_id *id; /* [store_n_slots() + store_n_states()]: filled in of what is entered */
    uint32_t page_tokens;
};

/* *stamp becomes the greatest there is, if that is greater; *n_bad counts damaged heads. 0 or
 * -ENOMEM. */
int disk_index_read(const struct disk_index *d, uint64_t *stamp, uint64_t *n_bad);
