#pragma once

/*
 * rulebook - the names of a grammar's rules while it is read: a name is known from its first
 * mention on, whether its definition has been read or not.
 */

#include "grammar/expr/expr.h"

struct rulebook_entry {
    const char *s; /* in the source */
    size_t len;
    uint32_t rule;
    bool defined;
};

struct rulebook {
    struct rulebook_entry *entry; /* malloc'd */
    uint32_t n, cap;
    struct hash_index names; /* of entries */
};

/* The entry of a name, with a rule made for it when it is new: 0, -EINVAL. */
int rulebook_take(struct rulebook *book, struct build *b, const char *s, size_t len, uint32_t *out);
/* NULL: it was never mentioned. */
const struct rulebook_entry *rulebook_find(const struct rulebook *book, const char *s, size_t len);
/* Refuses names that were never defined: 0, -EINVAL. */
int rulebook_check(const struct rulebook *book, struct build *b);
void rulebook_deinit(struct rulebook *book);
