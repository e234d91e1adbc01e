#pragma once

/* call_table - finds the past calls of a conversation by their ids in constant time, because a body
 * may have as many outputs as calls. */

#include <stddef.h>
#include <stdint.h>

#include "base/hash_index.h"

#define CALL_TABLE_MAX 100000u

struct call_entry;

struct call_table {
    /* [2], of the hash: clients choose ids */
    const uint64_t *key;
    struct call_entry *entry;
    uint32_t n, cap;
    struct hash_index ids;
};

/* Initialises an empty table; @key outlives it. */
void call_table_init(struct call_table *t, const uint64_t key[2]);
void call_table_deinit(struct call_table *t); /* accepts a zeroed one */
/* Remembers call @id of tool @name; both outlive the table. Among calls with the same id the last
 * one counts. Returns 0, -ENOMEM, or -ENOSPC: there are CALL_TABLE_MAX. */
int call_table_add(struct call_table *t, const char *id, const char *name);
/* Returns the tool of call @id; NULL: there is no such call. */
const char *call_table_find(const struct call_table *t, const char *id, size_t len);
