#include "api/generation/ids.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define WAIT_MIN_NS INT64_C(1000000)

void gen_ids_note(struct gen_ids *ids, uint32_t tenant, const char *request_id, uint64_t id,
                  const struct gen_times *times, const char *left_out) {
    struct gen_id *r = &ids->list[share_ring_add(&ids->ring, GEN_IDS, tenant)];

    snprintf(r->request_id, sizeof(r->request_id), "%s", request_id);
    snprintf(r->left_out, sizeof(r->left_out), "%s", left_out);
    r->tenant = tenant;
    r->id = id;
    r->order = ids->n++;
    r->times = *times;
}

/* Returns what is noted about generation @id, or NULL. */
static const struct gen_id *ids_of(const struct gen_ids *ids, uint64_t id) {
    const struct gen_id *last = NULL;

    for (uint32_t i = 0; i < ids->ring.n_used; i++) {
        const struct gen_id *r = &ids->list[i];

        if (r->id == id && (!last || r->order > last->order))
            last = r;
    }
    return last;
}

const char *gen_ids_left_out(const struct gen_ids *ids, uint64_t id) {
    const struct gen_id *g = ids_of(ids, id);

    if (g)
        return g->left_out;
    return "";
}

void gen_ids_start(struct gen_ids *ids, uint64_t id, int64_t now) {
    struct gen_id *g = (struct gen_id *)ids_of(ids, id);

    if (g)
        g->times.started_ns = now;
}

void gen_ids_end(struct gen_ids *ids, uint64_t id, int64_t now) {
    struct gen_id *g = (struct gen_id *)ids_of(ids, id);

    if (g)
        g->times.ended_ns = now;
}

/* A story that is being written, for which @left records of the worker are still to come. */
struct ids_story {
    struct flight_record *out;
    uint32_t n, max, left;
};

/* Adds a wait of the front if it was long enough to be told, and room is left for the worker's
 * records. */
static void ids_add_wait(struct ids_story *s, uint64_t id, enum why why, int64_t from,
                         int64_t until) {
    if (until - from < WAIT_MIN_NS || s->n + s->left >= s->max)
        return;
    s->out[s->n++] = (struct flight_record){
        .id = id,
        .from_ns = from,
        .until_ns = until,
        .n_steps = 1,
        .why = (uint8_t)why,
    };
}

/* Adds the waits before the first of the worker's records, @first; NULL: there is none. */
static void ids_add_front(struct ids_story *s, uint64_t id, const struct gen_times *t,
                          const struct flight_record *first) {
    ids_add_wait(s, id, WHY_READ, t->received_ns, t->load_from_ns);
    ids_add_wait(s, id, WHY_LOAD, t->load_from_ns, t->load_until_ns);
    ids_add_wait(s, id, WHY_READ, t->load_until_ns, t->entered_ns);
    if (!t->started_ns)
        return;
    ids_add_wait(s, id, WHY_PLACE, t->entered_ns, t->started_ns);
    /* The ring has lost the beginning of a story that begins with another record. */
    if (first && first->why == WHY_QUEUED)
        ids_add_wait(s, id, WHY_WORKER, t->started_ns, first->from_ns);
}

uint32_t gen_ids_story(const struct gen_ids *ids, uint64_t id, const struct flight_record *r,
                       uint32_t n, struct flight_record *out, uint32_t max, int64_t *begin_ns) {
    const struct gen_id *g = ids_of(ids, id);
    struct ids_story s = {.out = out, .max = max, .left = n};

    assert(n <= max);
    *begin_ns = n > 0 ? r[0].from_ns : 0;
    if (g) {
        ids_add_front(&s, id, &g->times, n > 0 ? r : NULL);
        *begin_ns = g->times.received_ns;
    }
    for (uint32_t i = 0; i < n; i++) {
        /* A worker's records follow each other without a gap: another worker got it anew. */
        if (i > 0 && r[i].why == WHY_QUEUED)
            ids_add_wait(&s, id, WHY_WORKER, r[i - 1].until_ns, r[i].from_ns);
        s.out[s.n++] = r[i];
        s.left--;
    }
    if (g && g->times.ended_ns && n > 0 && r[n - 1].why == WHY_ENDED)
        ids_add_wait(&s, id, WHY_FRONT, r[n - 1].until_ns, g->times.ended_ns);
    return s.n;
}

int gen_ids_find(const struct gen_ids *ids, const char *request_id, uint64_t *id) {
    const struct gen_id *latest = NULL;

    for (uint32_t i = 0; i < ids->ring.n_used; i++) {
        const struct gen_id *r = &ids->list[i];

        if (strcmp(r->request_id, request_id) != 0)
            continue;
        if (latest && latest->tenant != r->tenant)
            return -ENOTUNIQ;
        if (!latest || r->order > latest->order)
            latest = r;
    }
    if (!latest)
        return -ENOENT;
    *id = latest->id;
    return 0;
}
