#include "scheduler/queue.h"

struct queue_key queue_key(int64_t arrived_ns, int priority, uint64_t order) {
    int level = MAX(-QUEUE_LEVELS, MIN(priority, QUEUE_LEVELS));
    int64_t arrival;

    if (__builtin_add_overflow(arrived_ns, level * QUEUE_LEVEL_NS, &arrival))
        arrival = arrived_ns;
    return (struct queue_key){arrival, order};
}

bool queue_before(const struct queue_key *a, const struct queue_key *b) {
    if (a->arrival != b->arrival)
        return a->arrival < b->arrival;
    return a->order < b->order;
}

/* Searches from the back, since most requests come last. */
void queue_insert(struct list *l, struct queued *q) {
    struct list *at = l;

    while (at->prev != l && queue_before(&q->key, &LIST_ENTRY(at->prev, struct queued, link)->key))
        at = at->prev;
    list_insert_before(at, &q->link);
}

void estimate_init(struct estimate *e, struct sessions *sessions) {
    *e = (struct estimate){.all = ESTIMATE_START, .sessions = sessions};
}

void estimate_learn(struct estimate *e, uint64_t session, uint32_t n_out) {
    struct session *own = sessions_use(e->sessions, session);
    float *mean = &e->none, x = (float)MAX(n_out, 1);

    if (own)
        mean = &own->n_output;
    if (*mean > 0)
        *mean = *mean * ESTIMATE_MEMORY + x * (1 - ESTIMATE_MEMORY);
    else
        *mean = x;
    e->all += (x - e->all) / 32;
}

uint32_t estimate_output(const struct estimate *e, uint64_t session, uint32_t n_out,
                         uint32_t max_new) {
    const struct session *own = sessions_find(e->sessions, session);
    float mean = 0;

    if (own)
        mean = own->n_output;
    else if (session == 0)
        mean = e->none;
    if (mean <= 0)
        mean = e->all;
    uint64_t expected = (uint64_t)(mean * ESTIMATE_MARGIN);

    if (n_out >= expected)
        expected = (uint64_t)n_out + n_out / 4 + ESTIMATE_AHEAD;
    return (uint32_t)MIN(expected, max_new);
}
