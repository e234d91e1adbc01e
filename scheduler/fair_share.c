/*
 * fair_share - weighted fair queueing in virtual time, and its input to the plan.
 * docs/design/fairness.md describes the rules; policy.h has their constants.
 *
 * A tenant's virtual time is the device time charged to it divided by its weight, and the tenant
 * with the least is served next. This is deficit round robin written as virtual time: the deficit
 * is the distance behind the others, so nothing is refilled in rounds. A class is a factor of the
 * weight and not an order, so batch work gets an eighth and not nothing. Use of other workers of
 * the device (fair_charge_elsewhere()) advances the virtual time as the tenant is served here.
 *
 * Inside a tenant, requests are in order of virtual arrival (queue.h). A request that does not fit,
 * or whose session is paused, may be overtaken by others of its tenant a bounded number of times;
 * then it is due and comes first.
 *
 * Invariants: a tenant with live requests keeps its index; virtual times never decrease; at most as
 * many requests run as are live.
 */

#include "scheduler/fair_share.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/util.h"
#include "proto/messages.h"
#include "scheduler/batch.h"
#include "scheduler/plan.h"
#include "scheduler/policy.h"
#include "scheduler/request.h"
#include "scheduler/view.h"

#define NONE UINT32_MAX

int fair_init(struct fair_share *f, const struct sched_view *view) {
    memset(f, 0, sizeof(*f));
    f->view = view;
    f->victim = FAIR_TENANTS;
    f->item = calloc(FAIR_ITEMS, sizeof(*f->item));
    if (!f->item)
        return -ENOMEM;
    return 0;
}

void fair_deinit(struct fair_share *f) {
    free(f->item);
}

/* ---- tenants ---- */

static double factor_of(uint8_t class) {
    static const double factor[FAIR_CLASSES] = {1, 8, 0.125};

    return factor[MIN(class, FAIR_CLASSES - 1)];
}

/* Returns the entry of tenant @id, a new one if need be; when all are taken, that of the tenant
 * idle for longest. */
static uint32_t fair_slot(struct fair_share *f, uint32_t id) {
    uint32_t idle = NONE;

    for (uint32_t i = 0; i < f->n_tenants; i++) {
        const struct fair_tenant *t = &f->tenant[i];

        if (t->id == id)
            return i;
        if (t->n_live == 0 && (idle == NONE || t->seen_ns < f->tenant[idle].seen_ns))
            idle = i;
    }
    if (f->n_tenants < FAIR_TENANTS)
        idle = f->n_tenants++;
    if (idle == NONE)
        return FAIR_TENANTS - 1;
    f->tenant[idle] = (struct fair_tenant){.id = id};
    return idle;
}

/* Finds the least and the greatest virtual time of the live tenants. Returns false if there is
 * none. */
static bool clocks(const struct fair_share *f, double *least, double *most) {
    bool any = false;

    for (uint32_t i = 0; i < f->n_tenants; i++) {
        const struct fair_tenant *t = &f->tenant[i];

        if (t->n_live == 0)
            continue;
        if (!any)
            *least = *most = t->served_ns;
        *least = fmin(*least, t->served_ns);
        *most = fmax(*most, t->served_ns);
        any = true;
    }
    return any;
}

/* Advances the common virtual time to that of the last live tenant before it leaves. Later tenants
 * are compared with it, so no tenant pays for device time that no other one wanted. */
static void fair_advance(struct fair_share *f) {
    double least, most;

    if (clocks(f, &least, &most))
        f->clock_ns = fmax(f->clock_ns, least);
}

static bool counts(const struct fair_tenant *t, bool lately, int64_t now) {
    return t->n_live > 0 || (lately && now - t->seen_ns < FAIR_LATELY_NS);
}

/* Returns the sum of the weights of tenants that count, and of @t (NULL: none). */
static double add_weights(const struct fair_share *f, const struct fair_tenant *t, bool lately,
                          int64_t now) {
    double sum = 0;

    for (uint32_t i = 0; i < f->n_tenants; i++)
        if (&f->tenant[i] == t || counts(&f->tenant[i], lately, now))
            sum += f->tenant[i].weight;
    return sum;
}

/* Returns the same sum. A step asks for it for each tenant and each request, mostly at one time, so
 * it is added up once for all of them. */
static double fair_weights(struct fair_share *f, const struct fair_tenant *t, bool lately,
                           int64_t now) {
    struct fair_sum *known = &f->sum[lately];
    int64_t at = lately ? now : 0;

    if (t && !counts(t, lately, now))
        return add_weights(f, t, lately, now);
    if (!known->valid || known->at != at)
        *known = (struct fair_sum){true, at, add_weights(f, NULL, lately, now)};
    return known->weights;
}

/* Notes that a tenant came, left, or has another weight. */
static void forget_weights(struct fair_share *f) {
    f->sum[false].valid = f->sum[true].valid = false;
}

/* Advances the fair virtual time: each live tenant gets its part of the time since the last call,
 * even if it has not used it. */
static void tick(struct fair_share *f, int64_t now) {
    double sum = fair_weights(f, NULL, false, now);

    if (sum > 0 && f->fair_at > 0)
        f->fair_ns += (double)MAX(now - f->fair_at, 0) / sum;
    f->fair_at = now;
}

/* Limits the credit of a tenant that arrives to FAIR_BURST_NS. Use elsewhere that is not counted
 * yet is a part of its virtual time, too. */
static void lift(struct fair_share *f, struct fair_tenant *t) {
    fair_advance(f);
    double behind_ns = fmax(f->clock_ns - FAIR_BURST_NS / t->weight - t->served_ns, 0);

    t->served_ns += behind_ns;
    t->elsewhere_ns = fmax(t->elsewhere_ns - behind_ns * t->weight, 0);
}

/* ---- arrival, end and charges ---- */

static double decayed(double ns, int64_t from, int64_t now) {
    return ns * exp2(-(double)MAX(now - from, 0) / FAIR_HALF_LIFE_NS);
}

/* Takes the pause of a tenant that comes back into the part of its pauses that are short. */
static void note_pause(struct fair_tenant *t, int64_t now) {
    double is_short = now - t->seen_ns <= FAIR_SOON_NS;

    if (t->seen_ns > 0)
        t->soon = t->soon * FAIR_SOON_MEMORY + is_short * (1 - FAIR_SOON_MEMORY);
}

uint16_t fair_enter(struct fair_share *f, uint32_t tenant, uint32_t weight_milli, uint8_t class,
                    int64_t now) {
    uint16_t index = (uint16_t)fair_slot(f, tenant);
    struct fair_tenant *t = &f->tenant[index];

    tick(f, now);
    if (weight_milli == 0)
        weight_milli = 1000;
    t->class = class;
    t->weight = weight_milli / 1000.0 * factor_of(class);
    if (t->n_live == 0) {
        note_pause(t, now);
        lift(f, t);
    }
    t->n_live++;
    t->seen_ns = now;
    forget_weights(f);
    return index;
}

void fair_exit(struct fair_share *f, uint16_t tenant, int64_t now) {
    struct fair_tenant *t = &f->tenant[tenant];

    assert(t->n_live > 0);
    tick(f, now);
    if (t->n_live == 1)
        fair_advance(f);
    t->n_live--;
    t->seen_ns = now;
    forget_weights(f);
}

/* Returns the part of elsewhere_ns that is counted when the tenant is charged @ns. */
static double counted(const struct fair_tenant *t, double ns) {
    return fmin(t->elsewhere_ns, FAIR_ELSEWHERE * ns);
}

static void add_recent(struct fair_tenant *t, double ns, int64_t now) {
    t->recent_ns = decayed(t->recent_ns, t->recent_at, now) + ns;
    t->recent_at = now;
}

void fair_charge(struct fair_share *f, uint16_t tenant, double ns, int64_t now) {
    struct fair_tenant *t = &f->tenant[tenant];
    double more = counted(t, ns);

    assert(t->weight > 0 && ns >= 0);
    t->own_ns += ns;
    t->elsewhere_ns -= more;
    t->counted_ns += more;
    t->served_ns += (ns + more) / t->weight;
    add_recent(t, ns, now);
}

void fair_charge_elsewhere(struct fair_share *f, uint32_t tenant, uint64_t ns, int64_t now) {
    for (uint32_t i = 0; i < f->n_tenants; i++) {
        struct fair_tenant *t = &f->tenant[i];

        if (t->id != tenant || t->n_live == 0)
            continue;
        t->elsewhere_ns = fmin(t->elsewhere_ns + (double)ns, FAIR_ELSEWHERE_NS);
        add_recent(t, (double)ns, now);
    }
}

uint32_t fair_served(struct fair_share *f, struct msg_served *out, uint32_t max) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->n_tenants && n < max; i++) {
        struct fair_tenant *t = &f->tenant[i];
        uint64_t ns = (uint64_t)(t->own_ns - t->told_ns);

        if (ns == 0)
            continue;
        out[n++] = (struct msg_served){.tenant = t->id, .ns = ns};
        t->told_ns += (double)ns;
    }
    return n;
}

/* ---- order of waiting requests ---- */

static bool fair_is_due(const struct fair_item *x) {
    return x->n_left == 0;
}

static bool stands_before(const struct fair_item *a, const struct fair_item *b) {
    if (a->key != b->key)
        return a->key < b->key;
    return a->order < b->order;
}

static bool before(const struct fair_item *a, const struct fair_item *b) {
    if (fair_is_due(a) != fair_is_due(b))
        return fair_is_due(a);
    return stands_before(a, b);
}

/* Makes a list of each tenant's items, the first to be admitted first, from fair_tenant.head
 * through fair_item.next. */
static void make_lists(struct fair_share *f, struct fair_item *item, uint32_t n) {
    for (uint32_t i = 0; i < f->n_tenants; i++) {
        f->tenant[i].head = NONE;
        f->tenant[i].next_ns = f->tenant[i].served_ns;
    }
    for (uint32_t i = n; i-- > 0;) {
        struct fair_item *x = &item[i];
        uint32_t *at = &f->tenant[x->tenant].head;

        while (*at != NONE && before(&item[*at], x))
            at = &item[*at].next;
        x->next = *at;
        *at = i;
    }
}

/* Returns whether the first item of @a is admitted before that of @b. */
static bool is_next(const struct fair_tenant *a, const struct fair_tenant *b,
                    const struct fair_item *item) {
    const struct fair_item *x = &item[a->head], *y = &item[b->head];

    if (fair_is_due(x) != fair_is_due(y))
        return fair_is_due(x);
    if (!fair_is_due(x) && fabs(a->next_ns - b->next_ns) >= FAIR_QUANTUM_NS)
        return a->next_ns < b->next_ns;
    return before(x, y);
}

/* Takes the first item of @t's list and returns it. The item overtakes items of earlier arrival;
 * the earliest of these that must not be overtaken again becomes first in the list. */
static uint32_t fair_pop_first(struct fair_tenant *t, struct fair_item *item) {
    uint32_t taken = t->head, *due = NULL;

    assert(taken != NONE);
    t->head = item[taken].next;
    for (uint32_t *at = &t->head; *at != NONE; at = &item[*at].next) {
        struct fair_item *y = &item[*at];

        y->n_left -= !fair_is_due(y) && stands_before(y, &item[taken]);
        if (fair_is_due(y) && (!due || stands_before(y, &item[*due])))
            due = at;
    }
    if (due) {
        uint32_t first = *due;

        *due = item[first].next;
        item[first].next = t->head;
        t->head = first;
    }
    return taken;
}

uint32_t fair_pick(struct fair_share *f, struct fair_item *item, uint32_t n, uint32_t *out,
                   uint32_t max) {
    uint32_t n_out = 0;

    assert(n <= FAIR_ITEMS);
    make_lists(f, item, n);
    while (n_out < max) {
        struct fair_tenant *best = NULL;

        for (uint32_t i = 0; i < f->n_tenants; i++) {
            struct fair_tenant *t = &f->tenant[i];

            if (t->head != NONE && (!best || is_next(t, best, item)))
                best = t;
        }
        if (!best)
            break;
        out[n_out] = fair_pop_first(best, item);
        double ns = item[out[n_out++]].cost_ns;
        best->next_ns += (ns + counted(best, ns)) / best->weight;
    }
    return n_out;
}

/* ---- shares ---- */

bool fair_is_over(struct fair_share *f, uint32_t t, uint32_t held, uint32_t total, bool lately,
                  int64_t now) {
    return held * fair_weights(f, &f->tenant[t], lately, now) > total * f->tenant[t].weight;
}

/* Returns the share of @t in @total sequences. */
static double fair_part(struct fair_share *f, const struct fair_tenant *t, uint32_t total,
                        int64_t now) {
    double sum = fair_weights(f, NULL, true, now);

    if (sum <= 0)
        return total;
    return total * t->weight / sum;
}

uint32_t fair_beyond(struct fair_share *f, uint32_t t, uint32_t held, uint32_t more, int64_t now) {
    double share = fair_part(f, &f->tenant[t], f->view->n_pages, now);
    uint32_t within = (uint32_t)fmax(share - held, 0);

    return more - MIN(more, within);
}

void fair_note_slots(struct fair_share *f, uint32_t total, int64_t now) {
    double gain = -expm1(-(double)MAX(now - f->slots_at, 0) / FAIR_SLOTS_NS);

    f->slots_at = now;
    for (uint32_t i = 0; i < f->n_tenants; i++) {
        struct fair_tenant *t = &f->tenant[i];
        double wants = fmin(t->n_live, fair_part(f, t, total, now));

        t->slots += gain * (wants - t->slots);
    }
}

uint32_t fair_yields(struct fair_share *f, uint32_t t, uint32_t total, int64_t now) {
    const struct fair_tenant *me = &f->tenant[t];
    double need = 0, parts = 0, have = 0;
    bool others = false;

    if (me->n_running <= fair_part(f, me, total, now))
        return 0;

    for (uint32_t i = 0; i < f->n_tenants; i++) {
        const struct fair_tenant *o = &f->tenant[i];

        if (i == t || !counts(o, true, now) || o->served_ns > me->served_ns + FAIR_QUANTUM_NS ||
            o->n_running * me->weight >= me->n_running * o->weight)
            continue;
        others = true;
        need += o->slots;
        parts += fair_part(f, o, total, now);
        have += o->n_running;
    }
    if (!others)
        return 0;
    need = fmin(need + FAIR_SURGE * sqrt(need), parts) - have;
    return (uint32_t)fmax(ceil(need), total >= FAIR_LEAST_TOTAL);
}

bool fair_is_shared(const struct fair_share *f, int64_t now) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->n_tenants && n < 2; i++)
        n += counts(&f->tenant[i], true, now);
    return n > 1;
}

/* Returns whether @t has no request behind the running step and will have one soon. */
static bool fair_comes_soon(const struct fair_tenant *t, int64_t now) {
    if (t->soon < FAIR_SOON_PART || t->n_last < t->n_live)
        return false;
    return t->n_live > 0 || now - t->seen_ns <= FAIR_SOON_NS;
}

bool fair_expects(const struct fair_share *f, int64_t now) {
    double least = 0, most = 0;

    if (!clocks(f, &least, &most))
        return false;
    for (uint32_t i = 0; i < f->n_tenants; i++) {
        const struct fair_tenant *t = &f->tenant[i];
        double served = fmax(t->served_ns, least - FAIR_BURST_NS / t->weight);

        if (fair_comes_soon(t, now) && most - served > FAIR_BEHIND_NS / t->weight)
            return true;
    }
    return false;
}

uint32_t fair_order(struct fair_share *f, int64_t now) {
    double least = 0, most = 0, sum = 0;
    uint32_t n = 0;

    tick(f, now);
    clocks(f, &least, &most);
    least = fmax(least, f->fair_ns);
    for (uint32_t i = 0; i < f->n_tenants; i++) {
        const struct fair_tenant *t = &f->tenant[i];
        uint32_t k = n;

        if (t->n_live == 0)
            continue;
        for (; k > 0 && t->served_ns < f->tenant[f->order[k - 1]].served_ns; k--)
            f->order[k] = f->order[k - 1];
        f->order[k] = (uint16_t)i;
        sum += t->weight;
        n++;
    }
    for (uint32_t k = 0; k < n; k++) {
        const struct fair_tenant *t = &f->tenant[f->order[k]];

        f->group[f->order[k]] = (uint16_t)k;
        f->behind[k] = most - t->served_ns > FAIR_BEHIND_NS / t->weight;
        f->weight[k] = (float)t->weight;
        if (f->behind[k])
            f->weight[k] *= FAIR_BEHIND_FACTOR;
        f->part[k] = 1;
        if (t->served_ns + t->coming_ns - least > FAIR_AHEAD_NS / t->weight)
            f->part[k] = (float)(t->weight / sum);
    }
    assert(n <= f->n_tenants && f->n_tenants <= FAIR_TENANTS);
    return f->n_groups = n;
}

double fair_jain(const struct fair_share *f, int64_t now, uint32_t *n_live) {
    double sum = 0, squares = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->n_tenants; i++) {
        const struct fair_tenant *t = &f->tenant[i];

        if (t->n_live == 0)
            continue;
        double x = decayed(t->recent_ns, t->recent_at, now) / t->weight;
        sum += x;
        squares += x * x;
        n++;
    }
    *n_live = n;
    if (n < 2 || squares <= 0)
        return 1;
    return sum * sum / (n * squares);
}

/* ---- requests and the plan ---- */

void fair_enter_request(struct fair_share *f, struct request *r, uint32_t tenant,
                        uint32_t weight_milli, uint8_t class) {
    assert(!r->entered);
    r->since_ns = clock_now(f->view->clock);
    r->tenant = fair_enter(f, tenant, weight_milli, class, r->since_ns);
    r->entered = true;
}

void fair_exit_request(struct fair_share *f, struct request *r) {
    if (r->entered)
        fair_exit(f, r->tenant, clock_now(f->view->clock));
    r->entered = false;
}

/* Returns the expected time, in ns, of the rest of the prompt of running request @r. */
static double prompt_ns(const struct fair_share *f, const struct request *r) {
    struct cost_shape shape = {0};

    if (r->n_computed + 1 >= r->n_tokens)
        return 0;
    cost_add(&shape, r->n_computed, r->n_tokens - r->n_computed);
    return 1e6 * cost_part_ms(f->view->cost, &shape, &shape);
}

static void count_held(struct fair_share *f) {
    for (uint32_t i = 0; i < f->n_tenants; i++) {
        f->tenant[i].n_running = f->tenant[i].n_last = f->tenant[i].n_pages = 0;
        f->tenant[i].coming_ns = 0;
    }
    LIST_FOREACH_ENTRY(r, f->view->running, const struct request, queued.link) {
        struct fair_tenant *t = &f->tenant[r->tenant];

        assert(r->entered && t->n_running < t->n_live);
        t->n_running++;
        t->n_last += request_is_last(r);
        t->n_pages += request_n_pages(r);
        t->coming_ns = fmax(t->coming_ns, prompt_ns(f, r) / t->weight);
    }
}

void fair_begin_step(struct fair_share *f, int64_t now) {
    struct plan *p = f->view->plan;
    bool shared = fair_is_shared(f, now);

    count_held(f);
    fair_note_slots(f, p->max_seqs, now);
    p->n_groups = fair_order(f, now);
    p->group_weight = f->weight;
    p->group_part = f->part;
    for (uint32_t i = 0; i < f->n_groups; i++)
        f->over[i] =
            fair_is_over(f, f->order[i], f->tenant[f->order[i]].n_running, p->max_seqs, true, now);
    p->group_over = f->over;
    p->expects = shared && fair_expects(f, now);
    p->add_ns = p->reserve_pages = 0;
    if (shared) {
        p->add_ns = p->itl_ns / PLAN_ADD_PART;
        p->reserve_pages = f->view->n_pages / FAIR_RESERVE_PAGES;
    }
}

void fair_note_promises(struct fair_share *f, int64_t now) {
    const struct plan *p = f->view->plan;
    uint32_t held[FAIR_TENANTS] = {0}, promised[FAIR_TENANTS] = {0};

    f->n_beyond = 0;
    for (uint32_t i = 0; i < f->n_tenants; i++)
        f->tenant[i].n_beyond = 0;
    for (uint32_t i = 0; i < p->n_running && p->reserve_pages > 0; i++) {
        held[p->req[i].group] += p->req[i].n_pages;
        promised[p->req[i].group] += plan_promised_to(p, &p->req[i]);
    }
    for (uint32_t k = 0; k < f->n_groups; k++) {
        struct fair_tenant *t = &f->tenant[f->order[k]];

        t->n_beyond = fair_beyond(f, f->order[k], held[k], promised[k], now);
        f->n_beyond += t->n_beyond;
    }
}

bool fair_ranks_low(struct fair_share *f, const struct request *r) {
    uint32_t t = r->tenant;

    return f->n_groups > 1 && fair_is_over(f, t, f->tenant[t].n_pages, f->view->n_pages, false, 0);
}

bool fair_is_behind(const struct fair_share *f, const struct request *r) {
    return f->n_groups > 1 && f->behind[f->group[r->tenant]];
}

/* Returns the slots of tenant @t, and @more, divided by its weight. */
static double fair_slots(const struct fair_share *f, uint32_t t, uint32_t more) {
    const struct fair_tenant *x = &f->tenant[t];

    return (x->n_running + more) / x->weight;
}

/* Returns the tenant, other than @but, with most slots for its weight and at least two running
 * requests, since a tenant's last one is never preempted; FAIR_TENANTS: none. */
static uint32_t richest(const struct fair_share *f, uint32_t but) {
    uint32_t found = FAIR_TENANTS;

    for (uint32_t i = 0; i < f->n_tenants; i++)
        if (i != but && f->tenant[i].n_running > 1 &&
            (found == FAIR_TENANTS || fair_slots(f, i, 0) > fair_slots(f, found, 0)))
            found = i;
    return found;
}

/* Returns whether @r would have to leave the slot or its pages to third tenants; nothing is
 * preempted for it then. */
static bool fair_would_lose_it(struct fair_share *f, const struct request *r, int64_t now) {
    const struct plan *p = f->view->plan;
    const struct fair_tenant *t = &f->tenant[r->tenant];
    uint32_t n_pages = plan_pages(p, request_target(r, f->view->estimate));

    return fair_is_over(f, r->tenant, t->n_running + 1, p->max_seqs, true, now) ||
           fair_is_over(f, r->tenant, t->n_pages + n_pages, f->view->n_pages, true, now);
}

bool fair_preempts(struct fair_share *f, int64_t now) {
    bool asked[FAIR_TENANTS] = {false};

    f->victim = FAIR_TENANTS;
    if (f->n_groups < 2 || f->view->plan->n_running < f->view->plan->max_seqs)
        return false;
    for (const struct list *l = f->view->waiting->next; l != f->view->waiting; l = l->next) {
        const struct request *r = LIST_ENTRY(l, const struct request, queued.link);
        uint32_t t = r->tenant;

        if (asked[t])
            continue;
        asked[t] = true; /* the first waiting request of a tenant decides */
        uint32_t victim = richest(f, t);
        if (victim < FAIR_TENANTS && f->tenant[t].served_ns < f->tenant[victim].served_ns &&
            fair_slots(f, victim, 0) > fair_slots(f, t, 1) && !fair_would_lose_it(f, r, now)) {
            f->victim = victim;
            f->view->plan->fair_preempt_begun = f->tenant[t].n_running == 0;
            return true;
        }
    }
    return false;
}

bool fair_is_victim(const struct fair_share *f, const struct request *r) {
    return r->tenant == f->victim;
}

/* Returns the estimated device time of the rest of @r, in ns. */
static double price_ns(const struct fair_share *f, const struct request *r) {
    uint32_t hit = MIN(r->seen_hit, r->n_tokens - 1);
    uint32_t n_more = request_target(r, f->view->estimate) - r->n_tokens;
    struct cost_shape prompt = {0}, all = {0}, one = {0};

    cost_add(&prompt, hit, r->n_tokens - hit);
    cost_add(&one, r->n_tokens, 1);
    all = (struct cost_shape){
        .rows = FAIR_DECODERS, .seqs = FAIR_DECODERS, .context = one.context * FAIR_DECODERS};
    double ms = cost_part_ms(f->view->cost, &prompt, &prompt);
    return 1e6 * (ms + cost_part_ms(f->view->cost, &all, &one) * n_more);
}

static uint32_t fair_collect(struct fair_share *f) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < f->n_tenants; i++)
        f->tenant[i].n_window = f->tenant[i].leaves = 0;
    LIST_FOREACH_ENTRY(r, f->view->waiting, struct request, queued.link) {
        r->plan_index = UINT32_MAX;
        if (n == FAIR_ITEMS)
            break;
        if (r->n_in_flight > 0 || r->paused || f->tenant[r->tenant].n_window++ >= FAIR_WINDOW)
            continue;
        f->item[n++] = (struct fair_item){
            .tenant = r->tenant,
            .n_left = f->view->max_bypass - MIN(r->n_bypassed, f->view->max_bypass),
            .key = r->queued.key.arrival,
            .order = r->queued.key.order,
            .cost_ns = price_ns(f, r),
            .who = r,
        };
    }
    return n;
}

uint32_t fair_waiting(struct fair_share *f, struct request **out, struct fair_limits *limits,
                      uint32_t max) {
    uint32_t index[FAIR_CANDIDATES], t = f->view->page_tokens;
    int64_t now = clock_now(f->view->clock);
    uint32_t n = fair_collect(f);

    n = fair_pick(f, f->item, n, index, MIN(max, FAIR_CANDIDATES));
    for (uint32_t i = 0; i < n; i++) {
        struct request *r = f->item[index[i]].who;
        struct fair_tenant *who = &f->tenant[r->tenant];

        /* Counts the requests as if all were admitted in this order. Later requests of a tenant
         * leave as much room as an earlier one that has to wait, so they do not overtake it. */
        who->n_running++;
        who->n_pages += r->n_tokens / t + 1;
        out[i] = r;
        r->plan_index = f->view->plan->n_running + i;
        who->leaves = MAX(who->leaves, fair_yields(f, r->tenant, f->view->max_seqs, now));
        limits[i].leave_seqs = who->leaves;
        limits[i].over =
            f->view->plan->reserve_pages > 0 &&
            (fair_is_over(f, r->tenant, who->n_running, f->view->max_seqs, true, now) ||
             fair_is_over(f, r->tenant, who->n_pages, f->view->n_pages, true, now));
        limits[i].n_beyond = 0;
        if (!limits[i].over)
            limits[i].n_beyond = f->n_beyond - who->n_beyond;
    }
    return n;
}

/* Counts, for each admission of the plan, the earlier requests of its tenant that it overtakes. The
 * plan itself has counted it for earlier requests that it considered and that did not fit. */
void fair_note_admissions(struct fair_share *f, struct request *const *planned) {
    const struct plan *p = f->view->plan;

    for (uint32_t i = p->n_running; i < p->n_running + p->n_waiting && p->n_admitted > 0; i++) {
        const struct request *r = planned[i];

        if (!p->req[i].admitted)
            continue;
        LIST_FOREACH_ENTRY(o, f->view->waiting, struct request, queued.link) {
            if (!queue_before(&o->queued.key, &r->queued.key))
                break;
            o->n_bypassed += o->tenant == r->tenant && o->plan_index > i && o->n_in_flight == 0;
        }
    }
}

void fair_charge_step(struct fair_share *f, const struct batch *t, int64_t ns, int64_t now) {
    double sum = 0, part[2];

    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < t->b.n_seqs; i++) {
            const struct batch_item *it = &t->item[i];
            struct cost_shape own = {0};

            cost_add(&own, it->pos0, it->n_rows);
            part[pass] = cost_part_ms(f->view->cost, &t->shape, &own);
            if (pass == 0)
                sum += part[0];
            else if (sum > 0)
                fair_charge(f, it->request->tenant, (double)ns * part[1] / sum, now);
        }
}
