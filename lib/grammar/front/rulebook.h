#pragma once

/*
 * rulebook - the names of a grammar's rules while it is read. A name is known from its first
 * mention on, even before its definition is read.
 */

#include "grammar/expr/expr.h"

struct rulebook_entry {
    /* in the source */
    const char *s;
    size_t len;
    uint32_t rule;
    bool defined;
};

struct rulebook {
    /* malloc'd */
    struct rulebook_entry *entry;
    uint32_t n, cap;
    /* of entries */
    struct hash_index names;
};

/* Finds the entry of a name; a new name gets a rule. Returns 0 or -EINVAL. */
int rulebook_add(struct rulebook *book, struct build *b, const char *s, size_t len, uint32_t *out);
/* Returns the entry of a name; NULL: it was never mentioned. */
const struct rulebook_entry *rulebook_find(const struct rulebook *book, const char *s, size_t len);
/* Refuses names that were never defined. Returns 0 or -EINVAL. */
int rulebook_check(const struct rulebook *book, struct build *b);
void rulebook_deinit(struct rulebook *book);
