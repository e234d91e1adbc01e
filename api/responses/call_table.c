#include "api/responses/call_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/siphash.h"
#include "base/util.h"

struct call_entry {
    const char *id, *name;
};

void call_table_init(struct call_table *t, const uint64_t key[2]) {
    *t = (struct call_table){.key = key};
}

void call_table_deinit(struct call_table *t) {
    free(t->entry);
    hash_index_deinit(&t->ids);
    *t = (struct call_table){.key = t->key};
}

/* Returns the entry of @id, NULL if there is none. */
static struct call_entry *call_table_look_up(const struct call_table *t, const char *id, size_t len,
                                             uint32_t hash) {
    HASH_INDEX_EACH(t->ids, hash, i) {
        if (strlen(t->entry[i].id) == len && memcmp(t->entry[i].id, id, len) == 0)
            return &t->entry[i];
    }
    return NULL;
}

int call_table_add(struct call_table *t, const char *id, const char *name) {
    size_t len = strlen(id);

    uint32_t hash = (uint32_t)siphash(t->key, id, len);
    struct call_entry *known = call_table_look_up(t, id, len, hash);

    if (known) {
        known->name = name;
        return 0;
    }
    if (t->n == CALL_TABLE_MAX)
        return -ENOSPC;
    if (!ARRAY_GROW(t->entry, t->n, t->cap, 16))
        return -ENOMEM;
    t->entry[t->n] = (struct call_entry){id, name};
    return hash_index_add(&t->ids, hash, t->n++);
}

const char *call_table_find(const struct call_table *t, const char *id, size_t len) {
    const struct call_entry *e =
        t->n ? call_table_look_up(t, id, len, (uint32_t)siphash(t->key, id, len)) : NULL;

    if (!e)
        return NULL;
    return e->name;
}
