#pragma once

/*
 * item_list - index of the items in the JSON of a stored response, so that one of them can be read
 * without the others: a response may be as large as a body, an item is mostly small.
 */

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"

/* Index entry of an item, complete when the item is written. */
struct item_entry {
    /* bytes of its JSON object in the text of the list */
    size_t at, len;
    /* offset of its id in ids; ITEM_NO_ID: no id */
    uint32_t id;
    /* a message */
    bool message;
    /* trace of a tool that ran elsewhere: left out of prompts */
    bool silent;
};

#define ITEM_NO_ID UINT32_MAX

/* Invariants: entries are in the order of the text and do not overlap there; ids[e.id] is a whole
 * id. */
struct item_list {
    /* struct item_entry[], in the order of the text */
    struct buf entries;
    /* each ends with a NUL */
    struct buf ids;
    /* bytes of the items that are not silent */
    size_t n_said;
};

void item_list_init(struct item_list *l);   /* empty */
void item_list_deinit(struct item_list *l); /* makes it empty, for further use */
/* Adds @e; @id, of @id_len bytes, replaces e->id; NULL: it has none. Returns 0, -ENOMEM, or
 * -EMSGSIZE. */
int item_list_add(struct item_list *l, struct item_entry e, const char *id, size_t id_len);

/* Returns the number of items. */
static inline size_t item_list_n(const struct item_list *l) {
    return l->entries.len / sizeof(struct item_entry);
}

/* Returns item @i < item_list_n(). */
const struct item_entry *item_list_get(const struct item_list *l, size_t i);
/* Returns the item's own id; NULL: it has none. */
const char *item_list_id(const struct item_list *l, const struct item_entry *e);
/* Returns the memory of the list in bytes. */
size_t item_list_bytes(const struct item_list *l);
