#include "scheduler/sessions.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(SESSIONS_MAX % SESSIONS_WAYS == 0, "sets are whole");

void sessions_init(struct sessions *s) {
    memset(s, 0, sizeof(*s));
}

void sessions_deinit(struct sessions *s) {
    for (uint32_t i = 0; i < SESSIONS_MAX; i++)
        free(s->at[i].done.hash);
}

/* Returns the first place of session @id. */
static uint32_t sessions_first(uint64_t id) {
    return (uint32_t)((id * 0x9E3779B97F4A7C15u >> 32) % (SESSIONS_MAX / SESSIONS_WAYS)) *
           SESSIONS_WAYS;
}

struct session *sessions_find(const struct sessions *s, uint64_t id) {
    uint32_t first = sessions_first(id);

    for (uint32_t i = first; i < first + SESSIONS_WAYS && id != 0; i++)
        if (s->id[i] == id)
            return (struct session *)&s->at[i];
    return NULL;
}

struct session *sessions_use(struct sessions *s, uint64_t id) {
    const struct session *known = sessions_find(s, id);
    uint32_t i = known ? (uint32_t)(known - s->at) : sessions_first(id);

    if (id == 0)
        return NULL;
    for (uint32_t k = i + 1; !known && k < sessions_first(id) + SESSIONS_WAYS; k++)
        i = s->used[k] < s->used[i] ? k : i;
    if (!known) {
        free(s->at[i].done.hash);
        s->at[i] = (struct session){0};
        s->id[i] = id;
    }
    s->used[i] = ++s->n_uses;
    assert(s->id[i] == id && s->n_uses > 0);
    return &s->at[i];
}
