#include "api/responses/call_table.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "api/http/siphash.h"

struct call_entry {
    const char *id, *name;
    uint64_t hash;
};

void call_table_init(struct call_table *t, const uint64_t key[2]) {
    *t = (struct call_table){.key = key};
}

void call_table_deinit(struct call_table *t) {
    free(t->entry);
    free(t->slot);
    *t = (struct call_table){.key = t->key};
}

/* The slot of @id, or the free one where it belongs. There is always a free one. */
static uint32_t *slot_of(const struct call_table *t, const char *id, size_t len, uint64_t hash) {
    assert(t->n_slots > t->n);
    for (size_t i = hash & (t->n_slots - 1);; i = (i + 1) & (t->n_slots - 1)) {
        const struct call_entry *e = t->slot[i] ? &t->entry[t->slot[i] - 1] : NULL;

        if (!e || (e->hash == hash && strlen(e->id) == len && memcmp(e->id, id, len) == 0))
            return &t->slot[i];
    }
}

/* Twice as many slots, and an entry for half of them. */
static int grow(struct call_table *t) {
    size_t n_slots = t->n_slots ? t->n_slots * 2 : 32;
    void *entry = reallocarray(t->entry, n_slots / 2, sizeof(*t->entry));
    uint32_t *slot = NULL;

    if (entry)
        t->entry = entry;
    if (!entry || !(slot = calloc(n_slots, sizeof(*slot))))
        return -ENOMEM;
    free(t->slot);
    t->slot = slot;
    t->n_slots = n_slots;
    for (size_t i = 0; i < t->n; i++)
        *slot_of(t, t->entry[i].id, strlen(t->entry[i].id), t->entry[i].hash) = (uint32_t)i + 1;
    return 0;
}

int call_table_add(struct call_table *t, const char *id, const char *name) {
    size_t len = strlen(id);

    if (t->n == CALL_TABLE_MAX)
        return -ENOSPC;
    if (2 * (t->n + 1) > t->n_slots && grow(t) < 0)
        return -ENOMEM;
    assert(t->n < CALL_TABLE_MAX && 2 * (t->n + 1) <= t->n_slots);
    t->entry[t->n] = (struct call_entry){id, name, siphash(t->key, id, len)};
    *slot_of(t, id, len, t->entry[t->n].hash) = (uint32_t)t->n + 1;
    t->n++;
    return 0;
}

const char *call_table_find(const struct call_table *t, const char *id, size_t len) {
    if (t->n == 0)
        return NULL;
    uint32_t at = *slot_of(t, id, len, siphash(t->key, id, len));

    return at ? t->entry[at - 1].name : NULL;
}
