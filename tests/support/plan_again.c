#include "tests/support/plan_again.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/plan_tape.h"

/* The bytes of a record are not trusted. */
#define REQUESTS_MAX 8192u
#define GROUPS_MAX 4096u
#define DRAFT_TOKENS_MAX 1024u
#define HASHES_MAX (1u << 26) /* hashes of all requests together */

/* The remaining bytes of a record. */
struct cursor {
    const uint8_t *at, *end;
};

static bool take(struct cursor *c, void *out, size_t n) {
    if ((size_t)(c->end - c->at) < n)
        return false;
    memcpy(out, c->at, n);
    c->at += n;
    return true;
}

/* Returns true if the bytes of @of at @at[0, n) are 0 or 1, since other values of a bool are
 * undefined. */
static bool are_bools(const void *of, const size_t *at, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (((const uint8_t *)of)[at[i]] > 1)
            return false;
    return true;
}

static bool read_head(struct plan_again *t, const struct plan_tape_head *h) {
    static const size_t bools[] = {
        offsetof(struct plan, whole),
        offsetof(struct plan, prewarm),
        offsetof(struct plan, expects),
        offsetof(struct plan, fair_preempt),
        offsetof(struct plan, fair_preempt_begun),
        offsetof(struct plan, fair_preempted),
        offsetof(struct plan, leaves_out),
    };

    t->step = h->step;
    t->at_ns = h->at_ns;
    memcpy(t->cost.a, h->cost_a, sizeof(h->cost_a));
    t->cost.error = h->cost_error;
    t->cost.speed = h->cost_speed;
    t->cost.least_noise = h->cost_least_noise;
    t->cost.decodes = h->cost_decodes;
    t->cost.max_rows = h->cost_max_rows;
    memcpy(&t->plan, &h->plan, sizeof(t->plan));
    memcpy(&t->was, &h->plan, sizeof(t->was));
    memcpy((char *)&t->was + PLAN_DECIDED, h->decided, sizeof(h->decided));
    t->plan.cost = &t->cost;
    return are_bools(&t->plan, bools, ARRAY_SIZE(bools)) &&
           are_bools(&t->was, bools, ARRAY_SIZE(bools));
}

static bool read_item(struct plan_req *r, struct plan_req *was, const struct plan_tape_item *item) {
    static const size_t bools[] = {
        offsetof(struct plan_req, unfit),     offsetof(struct plan_req, last),
        offsetof(struct plan_req, waits),     offsetof(struct plan_req, whole),
        offsetof(struct plan_req, alone),     offsetof(struct plan_req, stalled),
        offsetof(struct plan_req, try_draft), offsetof(struct plan_req, over),
        offsetof(struct plan_req, begun),     offsetof(struct plan_req, victim),
        offsetof(struct plan_req, behind),    offsetof(struct plan_req, starts),
        offsetof(struct plan_req, admitted),
    };

    memcpy(r, &item->req, sizeof(*r));
    r->hash = NULL;
    r->survival = NULL;
    memcpy(was, r, sizeof(*was));
    memcpy((char *)was + PLAN_REQ_DECIDED, item->decided, sizeof(item->decided));
    return are_bools(r, bools, ARRAY_SIZE(bools)) && are_bools(was, bools, ARRAY_SIZE(bools));
}

/* Holds all arrays of a plan in one allocation. */
struct memory {
    struct plan_req *req, *was;
    uint64_t *id, *hash;
    float *weight, *part, *survival;
    uint32_t *scratch, *by_place, *n_common;
    bool *over;
};

static int allocate(struct plan_again *t, struct memory *m, uint32_t n, uint32_t n_groups,
                    uint64_t n_hashes, uint64_t n_survivals) {
    size_t size = 2 * n * sizeof(*m->req) + (n + n_hashes) * sizeof(*m->id);

    size += (2 * n_groups + n_survivals) * sizeof(float) + 3 * n * sizeof(uint32_t) + n_groups;
    t->memory = calloc(1, MAX(size, 1u));
    if (!t->memory)
        return -ENOMEM;
    m->req = t->memory;
    m->was = m->req + n;
    m->id = (uint64_t *)(m->was + n);
    m->hash = m->id + n;
    m->weight = (float *)(m->hash + n_hashes);
    m->part = m->weight + n_groups;
    m->survival = m->part + n_groups;
    m->scratch = (uint32_t *)(m->survival + n_survivals);
    m->by_place = m->scratch + n;
    m->n_common = m->by_place + n;
    m->over = (bool *)(m->n_common + n);
    return 0;
}

/* Makes hashes that are equal where the real ones were. */
static int make_hashes(const struct memory *m, uint32_t n_shared) {
    const struct plan_req *before = NULL;
    uint64_t *hash = m->hash, next = 1;

    for (uint32_t k = 0; k < n_shared; k++) {
        struct plan_req *r = &m->req[m->by_place[k]];
        uint32_t n = m->n_common[m->by_place[k]];

        if (n > MIN(r->n_hashes, before ? before->n_hashes : 0))
            return -EINVAL;
        for (uint32_t i = 0; i < r->n_hashes; i++)
            hash[i] = i < n ? before->hash[i] : next++;
        r->hash = hash;
        hash += r->n_hashes;
        before = r;
    }
    return 0;
}

/* Checks the properties that the plan asserts, which hold for a scheduler's record but not for any
 * bytes. */
static bool is_possible(const struct plan *p, const struct plan_tape_item *item, uint32_t i) {
    struct plan_req req, was;
    const struct plan_req *r = &req;
    bool runs = i < p->n_running;

    if (!read_item(&req, &was, item))
        return false;
    if (r->n_target < r->n_tokens || r->n_hashes > HASHES_MAX ||
        r->n_draft_max > DRAFT_TOKENS_MAX || r->group >= MAX(p->n_groups, 1u) ||
        r->n_tokens > UINT32_MAX / 4 || r->n_target > UINT32_MAX / 4 || r->pace > 2 ||
        item->place > p->n_running + p->n_waiting || r->n_stored > r->n_computed ||
        r->n_hit > r->n_tokens || r->n_computed > (uint64_t)r->n_pages * p->page_tokens ||
        r->n_hit / p->page_tokens < r->n_idle)
        return false;
    if (!runs && (r->n_computed > 0 || r->n_pages > 0 || (r->n_hit >= r->n_tokens && !r->waits)))
        return false;
    if (item->place == 0 && r->n_hashes > 0 &&
        (!runs || r->n_stored / p->page_tokens < r->n_hashes))
        return false;
    return r->last ? r->n_computed <= UINT32_MAX / 4 : r->n_tokens > r->n_computed;
}

static int read_items(struct plan_again *t, const struct plan_tape_head *h, struct cursor *c) {
    const struct plan *p = &t->plan;
    uint32_t n = p->n_running + p->n_waiting, n_shared = 0;
    const struct plan_tape_item *item = (const void *)c->at;
    uint64_t n_hashes = 0, n_survivals = 0;
    struct memory m;

    if ((size_t)(c->end - c->at) < n * sizeof(*item))
        return -EINVAL;
    c->at += n * sizeof(*item);
    for (uint32_t i = 0; i < n; i++) {
        struct plan_tape_item one;

        memcpy(&one, item + i, sizeof(one));
        if (!is_possible(p, &one, i))
            return -EINVAL;
        n_hashes += one.place > 0 ? one.req.n_hashes : 0;
        n_survivals += one.req.n_draft_max;
        n_shared += one.place > 0;
    }
    if (n_hashes > HASHES_MAX)
        return -EINVAL;
    int e = allocate(t, &m, n, p->n_groups, n_hashes, n_survivals);
    if (e < 0)
        return e;
    memset(m.by_place, 0xff, n * sizeof(*m.by_place));
    for (uint32_t i = 0; i < n; i++) {
        struct plan_tape_item one;

        memcpy(&one, item + i, sizeof(one));
        read_item(&m.req[i], &m.was[i], &one);
        m.id[i] = one.id;
        m.n_common[i] = one.n_common;
        if (one.place > n_shared || (one.place > 0 && m.by_place[one.place - 1] != UINT32_MAX))
            return -EINVAL;
        if (one.place > 0)
            m.by_place[one.place - 1] = i;
    }
    e = make_hashes(&m, n_shared);
    if (e < 0 || !take(c, m.weight, p->n_groups * sizeof(float)) ||
        (h->has_parts && !take(c, m.part, p->n_groups * sizeof(float))) ||
        !take(c, m.survival, n_survivals * sizeof(float)) ||
        (h->has_overs && !take(c, m.over, p->n_groups)))
        return -EINVAL;
    for (uint32_t i = 0; i < n; i++) {
        m.req[i].survival = m.survival;
        m.survival += m.req[i].n_draft_max;
    }
    for (uint32_t i = 0; i < p->n_groups; i++) /* checks that bools are 0 or 1 */
        if (((const uint8_t *)m.over)[i] > 1)
            return -EINVAL;
    t->plan.req = m.req;
    t->was.req = m.was;
    t->id = m.id;
    t->plan.scratch = m.scratch;
    t->plan.group_weight = m.weight;
    t->plan.group_part = h->has_parts ? m.part : NULL;
    t->plan.group_over = h->has_overs ? m.over : NULL;
    return 0;
}

int plan_again_read(struct plan_again *out, const void *data, size_t len) {
    struct cursor c = {data, (const uint8_t *)data + len};
    struct plan_tape_head h;

    *out = (struct plan_again){0};
    if (!take(&c, &h, sizeof(h)) || h.version != PLAN_TAPE_VERSION || !read_head(out, &h) ||
        out->plan.n_running > REQUESTS_MAX || out->plan.n_waiting > REQUESTS_MAX ||
        out->plan.n_groups > GROUPS_MAX || out->plan.page_tokens == 0 || out->plan.max_rows == 0)
        return -EINVAL;
    int e = read_items(out, &h, &c);
    if (e < 0)
        plan_again_deinit(out);
    return e;
}

void plan_again_deinit(struct plan_again *t) {
    free(t->memory);
    t->memory = NULL;
}

const char *plan_again(struct plan_again *t) {
    struct plan *p = &t->plan;
    const struct plan *was = &t->was;

    plan_step(p);
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        const struct plan_req *r = &p->req[i], *w = &was->req[i];

        if (r->verdict != w->verdict)
            return "verdict";
        if (r->n_rows != w->n_rows || r->n_draft != w->n_draft)
            return "rows";
        if (r->admitted != w->admitted)
            return "admission";
        if (r->n_bypassed != w->n_bypassed)
            return "overtaken";
        if (r->n_passed != w->n_passed)
            return "turn";
    }
    if (p->n_rows != was->n_rows || p->n_seqs != was->n_seqs || p->n_drafts != was->n_drafts)
        return "rows in all";
    if (p->n_admitted != was->n_admitted || p->n_preempted != was->n_preempted)
        return "places";
    if (p->n_left != was->n_left)
        return "pages left";
    if (p->alone != was->alone || p->fair_preempted != was->fair_preempted)
        return "who runs alone or is preempted for a share";
    return p->expect_ns != was->expect_ns ? "time" : NULL;
}
