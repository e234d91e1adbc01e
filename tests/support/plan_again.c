#include "tests/support/plan_again.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "scheduler/plan_tape.h"

/* What is read is not trusted. */
#define REQUESTS_MAX 8192u
#define GROUPS_MAX 4096u
#define DRAFT_TOKENS_MAX 1024u
#define HASHES_MAX (1u << 26) /* of all together */

/* What is left of a record. */
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

static void read_head(struct plan_again *t, const struct plan_tape_head *h) {
    t->step = h->step;
    t->at_ns = h->at_ns;
    memcpy(t->cost.a, h->cost_a, sizeof(h->cost_a));
    t->cost.error = h->cost_error;
    t->cost.n_seen = h->cost_n_seen;
    t->cost.max_rows = h->cost_max_rows;
    t->cost.has_copied = h->flags & TAPE_COPIED;
    t->plan = (struct plan){
        .n_running = h->n_running,
        .n_waiting = h->n_waiting,
        .page_tokens = h->page_tokens,
        .n_available = h->n_available,
        .max_rows = h->max_rows,
        .max_seqs = h->max_seqs,
        .max_bypass = h->max_bypass,
        .force_chunk = h->force_chunk,
        .force_draft = h->force_draft,
        .itl_ns = h->itl_ns,
        .max_step_ns = h->max_step_ns,
        .prewarm = h->flags & TAPE_PREWARM,
        .whole = h->flags & TAPE_WHOLE,
        .n_groups = h->n_groups,
        .add_ns = h->add_ns,
        .reserve_pages = h->reserve_pages,
        .fair_preempt = h->flags & TAPE_FAIR,
        .fair_preempt_begun = h->flags & TAPE_FAIR_BEGUN,
        .fair_preempted = h->flags & TAPE_FAIR_PREEMPTED,
        .draft_slower = h->draft_slower,
        .state_pages = h->state_pages,
        .cost = &t->cost,
        .turn = h->turn,
    };
    t->was = (struct plan){
        .n_running = h->n_running,
        .n_waiting = h->n_waiting,
        .n_rows = h->n_rows,
        .n_seqs = h->n_seqs,
        .n_drafts = h->n_drafts,
        .n_admitted = h->n_admitted,
        .n_preempted = h->n_preempted,
        .n_left = h->n_left,
        .alone = h->alone,
        .fair_preempted = h->fair_preempted,
        .expect_ns = h->expect_ns,
    };
}

static void read_item(struct plan_req *r, struct plan_req *was, const struct plan_tape_item *item) {
    *r = (struct plan_req){
        .n_tokens = item->n_tokens,
        .n_computed = item->n_computed,
        .n_stored = item->n_stored,
        .n_pages = item->n_pages,
        .n_exclusive = item->n_exclusive,
        .n_target = item->n_target,
        .n_hit = item->n_hit,
        .n_idle = item->n_idle,
        .n_share = item->n_share,
        .n_hashes = item->n_hashes,
        .unfit = item->flags & TAPE_UNFIT,
        .last = item->flags & TAPE_LAST,
        .alone = item->flags & TAPE_ALONE,
        .stalled = item->flags & TAPE_STALLED,
        .n_draft_max = item->n_draft_max,
        .try_draft = item->flags & TAPE_TRY,
        .group = item->group,
        .pace = item->pace,
        .over = item->flags & TAPE_OVER,
        .begun = item->flags & TAPE_BEGUN,
        .victim = item->flags & TAPE_VICTIM,
        .leave_seqs = item->leave_seqs,
        .n_bypassed = item->n_bypassed,
    };
    *was = *r;
    was->n_rows = item->n_rows;
    was->n_draft = item->n_draft;
    was->n_bypassed = item->n_bypassed_then;
    was->verdict = (enum plan_verdict)item->verdict;
    was->admitted = item->admitted;
}

/* Everything that has a length, in one piece. */
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

/* Hashes that are equal where the real ones were. */
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

/* The plan's own assertions hold for what a scheduler wrote, and must for anything else. */
static bool is_possible(const struct plan_tape_head *h, const struct plan_tape_item *item,
                        uint32_t i) {
    bool runs = i < h->n_running;

    if (item->n_target < item->n_tokens || item->n_hashes > HASHES_MAX ||
        item->n_draft_max > DRAFT_TOKENS_MAX || item->group >= MAX(h->n_groups, 1u) ||
        item->n_tokens > UINT32_MAX / 4 || item->n_target > UINT32_MAX / 4 || item->pace > 2 ||
        item->place > h->n_running + h->n_waiting || item->n_stored > item->n_computed ||
        item->n_hit > item->n_tokens ||
        item->n_computed > (uint64_t)item->n_pages * h->page_tokens ||
        item->n_hit / h->page_tokens < item->n_idle)
        return false;
    if (!runs && (item->n_computed > 0 || item->n_pages > 0 || item->n_hit >= item->n_tokens))
        return false;
    if (item->place == 0 && item->n_hashes > 0 &&
        (!runs || item->n_stored / h->page_tokens < item->n_hashes))
        return false;
    return item->flags & TAPE_LAST ? item->n_computed <= UINT32_MAX / 4
                                   : item->n_tokens > item->n_computed;
}

static int read_items(struct plan_again *t, const struct plan_tape_head *h, struct cursor *c) {
    uint32_t n = h->n_running + h->n_waiting, n_shared = 0;
    const struct plan_tape_item *item = (const void *)c->at;
    uint64_t n_hashes = 0, n_survivals = 0;
    struct memory m;

    if ((size_t)(c->end - c->at) < n * sizeof(*item))
        return -EINVAL;
    c->at += n * sizeof(*item);
    for (uint32_t i = 0; i < n; i++) {
        struct plan_tape_item one;

        memcpy(&one, item + i, sizeof(one));
        if (!is_possible(h, &one, i))
            return -EINVAL;
        n_hashes += one.place > 0 ? one.n_hashes : 0;
        n_survivals += one.n_draft_max;
        n_shared += one.place > 0;
    }
    if (n_hashes > HASHES_MAX)
        return -EINVAL;
    int e = allocate(t, &m, n, h->n_groups, n_hashes, n_survivals);
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
    if (e < 0 || !take(c, m.weight, h->n_groups * sizeof(float)) ||
        (h->flags & TAPE_PARTS && !take(c, m.part, h->n_groups * sizeof(float))) ||
        !take(c, m.survival, n_survivals * sizeof(float)) ||
        (h->flags & TAPE_OVERS && !take(c, m.over, h->n_groups)))
        return -EINVAL;
    for (uint32_t i = 0; i < n; i++) {
        m.req[i].survival = m.survival;
        m.survival += m.req[i].n_draft_max;
    }
    for (uint32_t i = 0; i < h->n_groups; i++) /* a bool is 0 or 1 */
        if (((const uint8_t *)m.over)[i] > 1)
            return -EINVAL;
    t->plan.req = m.req;
    t->was.req = m.was;
    t->id = m.id;
    t->plan.scratch = m.scratch;
    t->plan.group_weight = m.weight;
    t->plan.group_part = h->flags & TAPE_PARTS ? m.part : NULL;
    t->plan.group_over = h->flags & TAPE_OVERS ? m.over : NULL;
    return 0;
}

int plan_again_read(struct plan_again *out, const void *data, size_t len) {
    struct cursor c = {data, (const uint8_t *)data + len};
    struct plan_tape_head h;

    *out = (struct plan_again){0};
    if (!take(&c, &h, sizeof(h)) || h.version != PLAN_TAPE_VERSION || h.n_running > REQUESTS_MAX ||
        h.n_waiting > REQUESTS_MAX || h.n_groups > GROUPS_MAX || h.page_tokens == 0 ||
        h.max_rows == 0)
        return -EINVAL;
    read_head(out, &h);
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
