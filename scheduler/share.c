/*
 * share - turns in virtual time.
 *
 * Between tenants: every tenant has a clock, the device time that its requests have taken divided
 * by its weight. The one whose clock is furthest behind has the next turn. That is deficit round
 * robin written as virtual time (the deficit is how far a clock is behind), so nothing has to be
 * refilled in rounds: tenants whose clocks are less than QUANTUM_NS apart are equal, and then the
 * older request goes first. What is charged is device time, so prompts found in the cache cost
 * nothing and a row of decode costs its part of the weights' reading. A tenant that comes back
 * after a pause does not keep the credit of its absence: its clock is put at most BURST_NS behind
 * the slowest live one. That much it keeps, because an agent that asks now and then should not
 * stand behind a flood.
 *
 * Inside a tenant: requests stand in the order of a virtual arrival. A session (an agent's session)
 * that had much device time lately counts as having come later, in steps (least attained service,
 * in levels, so that sessions of like use are equal); a request of which much is cached counts as
 * having come a little earlier (longest prefix first, among equals). Both are bounded offsets of a
 * time of arrival: what comes more than MAX_LEVEL * LEVEL_NS + HIT_NS after it stands behind it.
 * And whatever the reason, a request is overtaken by others of its tenant only so many times; then
 * it is due, and first of all.
 *
 * A class is a factor of weight and not an order: batch work gets an eighth, not nothing.
 */

#include "scheduler/share.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include "base/util.h"

#define QUANTUM_NS 50e6
#define BURST_NS 1e9
#define BEHIND_NS                                                                                  \
    200e6 /* clock behind the furthest one: the step's prefill time goes mostly to it */
#define BEHIND_FACTOR 16.0F
#define AHEAD_NS 5e8 /* clock ahead of the last one: it is held to its part of each step */
#define HALF_LIFE_NS 30e9
#define LATELY_NS INT64_C(300000000000)
#define LEVEL_NS INT64_C(2000000000) /* of delay for each level */
#define LEVEL0_NS 250e6 /* device time lately up to which the level is 0; then each 4 times more */
#define MAX_LEVEL 6
#define HIT_NS INT64_C(1000000000) /* earlier, when all of it is cached */
#define SLOTS_NS 10e9              /* over which the slots that a tenant needs are averaged */
#define SURGE                                                                                      \
    2.0 /* standard deviations of what others need beyond their mean: as if they came by chance */
#define LEAST_TOTAL 4 /* sequences from which on one is left in any case */
#define NONE UINT32_MAX

void share_init(struct share *s, struct sessions *sessions) {
    memset(s, 0, sizeof(*s));
    s->sessions = sessions;
}

/* ---- tenants ---- */

static double factor_of(uint8_t class) {
    static const double factor[SHARE_CLASSES] = {1, 8, 0.125};

    return factor[MIN(class, SHARE_CLASSES - 1)];
}

/* The slot of tenant @id; that of the one idle for longest when all are taken. */
static uint32_t slot_of(struct share *s, uint32_t id) {
    uint32_t idle = NONE;

    for (uint32_t i = 0; i < s->n_tenants; i++) {
        const struct share_tenant *t = &s->tenant[i];

        if (t->id == id)
            return i;
        if (t->n_live == 0 && (idle == NONE || t->seen_ns < s->tenant[idle].seen_ns))
            idle = i;
    }
    if (s->n_tenants < SHARE_TENANTS)
        idle = s->n_tenants++;
    if (idle == NONE)
        return SHARE_TENANTS - 1;
    s->tenant[idle] = (struct share_tenant){.id = id};
    return idle;
}

/* The least and the greatest clock of those that are live. */
static bool clocks(const struct share *s, double *least, double *most) {
    bool any = false;

    for (uint32_t i = 0; i < s->n_tenants; i++) {
        const struct share_tenant *t = &s->tenant[i];

        if (t->n_live == 0)
            continue;
        *least = any ? fmin(*least, t->served_ns) : t->served_ns;
        *most = any ? fmax(*most, t->served_ns) : t->served_ns;
        any = true;
    }
    return any;
}

/* The virtual time of all tenants. When the last live tenant leaves it is as late as that tenant's:
 * the next to come is compared with it, so that device time taken while no other tenant wanted it
 * is not held against a tenant. */
static void advance(struct share *s) {
    double least, most;

    if (clocks(s, &least, &most))
        s->clock_ns = fmax(s->clock_ns, least);
}

/* While n are there each has a part of the time, whether it uses it or not. */
static void tick(struct share *s, int64_t now) {
    double sum = 0;

    for (uint32_t i = 0; i < s->n_tenants; i++)
        sum += s->tenant[i].n_live > 0 ? s->tenant[i].weight : 0;
    if (sum > 0 && s->fair_at > 0)
        s->fair_ns += (double)MAX(now - s->fair_at, 0) / sum;
    s->fair_at = now;
}

/* A tenant comes, or comes back: no more credit than BURST_NS. */
static void lift(struct share *s, struct share_tenant *t) {
    advance(s);
    t->served_ns = fmax(t->served_ns, s->clock_ns - BURST_NS / t->weight);
}

/* ---- coming, going and being served ---- */

static double decayed(double ns, int64_t from, int64_t now) {
    return ns * exp2(-(double)MAX(now - from, 0) / HALF_LIFE_NS);
}

struct share_ref share_enter(struct share *s, uint32_t tenant, uint32_t weight_milli, uint8_t class,
                             uint64_t session, int64_t now) {
    struct share_ref ref = {session, (uint16_t)slot_of(s, tenant)};
    struct share_tenant *t = &s->tenant[ref.tenant];

    tick(s, now);
    t->class = class;
    t->weight = (weight_milli ? weight_milli : 1000) / 1000.0 * factor_of(class);
    if (t->n_live == 0)
        lift(s, t);
    t->n_live++;
    t->seen_ns = now;
    sessions_use(s->sessions, session);
    return ref;
}

void share_leave(struct share *s, struct share_ref ref, int64_t now) {
    struct share_tenant *t = &s->tenant[ref.tenant];

    assert(t->n_live > 0);
    tick(s, now);
    if (t->n_live == 1)
        advance(s);
    t->n_live--;
    t->seen_ns = now;
}

void share_charge(struct share *s, struct share_ref ref, double ns, int64_t now) {
    struct share_tenant *t = &s->tenant[ref.tenant];

    t->served_ns += ns / t->weight;
    t->recent_ns = decayed(t->recent_ns, t->recent_at, now) + ns;
    t->recent_at = now;
    struct session *own = sessions_use(s->sessions, ref.session);
    if (!own)
        return;
    own->recent_ns = decayed(own->recent_ns, own->recent_at, now) + ns;
    own->recent_at = now;
}

int64_t share_delay_ns(const struct share *s, struct share_ref ref, int64_t now) {
    const struct session *own = sessions_find(s->sessions, ref.session);
    double had = own ? decayed(own->recent_ns, own->recent_at, now) : 0;
    int64_t level = 0;

    for (double limit = LEVEL0_NS; had > limit && level < MAX_LEVEL; limit *= 4)
        level++;
    return level * LEVEL_NS;
}

/* ---- the order of those that wait ---- */

void share_begin_pick(struct share *s) {
    for (uint32_t i = 0; i < s->n_tenants; i++)
        s->tenant[i].n_window = 0;
}

bool share_wants(struct share *s, struct share_ref ref) {
    return s->tenant[ref.tenant].n_window++ < SHARE_WINDOW;
}

static bool is_due(const struct share_item *x) {
    return x->n_left == 0;
}

static bool stands_before(const struct share_item *a, const struct share_item *b) {
    return a->key != b->key ? a->key < b->key : a->order < b->order;
}

static bool before(const struct share_item *a, const struct share_item *b) {
    if (is_due(a) != is_due(b))
        return is_due(a);
    return a->turn != b->turn && !is_due(a) ? a->turn < b->turn : stands_before(a, b);
}

/* A list of each tenant's items, the best first, from share_tenant.head over share_item.next. */
static void make_lists(struct share *s, struct share_item *item, uint32_t n, int64_t now) {
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        s->tenant[i].head = NONE;
        s->tenant[i].next_ns = s->tenant[i].served_ns;
    }
    for (uint32_t i = n; i-- > 0;) {
        struct share_item *x = &item[i];
        uint32_t *at = &s->tenant[x->ref.tenant].head;

        x->turn = x->key + share_delay_ns(s, x->ref, now);
        if (x->n_tokens > 0)
            x->turn -= (int64_t)((double)x->n_hit / x->n_tokens * HIT_NS);
        while (*at != NONE && before(&item[*at], x))
            at = &item[*at].next;
        x->next = *at;
        *at = i;
    }
}

/* Whether @a has its turn before @b. */
static bool is_next(const struct share_tenant *a, const struct share_tenant *b,
                    const struct share_item *item) {
    const struct share_item *x = &item[a->head], *y = &item[b->head];

    if (is_due(x) != is_due(y))
        return is_due(x);
    if (!is_due(x) && fabs(a->next_ns - b->next_ns) >= QUANTUM_NS)
        return a->next_ns < b->next_ns;
    return before(x, y);
}

/* Takes the first of @t's list. Those that stand before it are overtaken by it, and those that may
 * not be overtaken again come first of the rest. */
static uint32_t take_first(struct share_tenant *t, struct share_item *item) {
    uint32_t taken = t->head, *due = NULL;

    t->head = item[taken].next;
    for (uint32_t *at = &t->head; *at != NONE; at = &item[*at].next) {
        struct share_item *y = &item[*at];

        y->n_left -= !is_due(y) && stands_before(y, &item[taken]);
        if (is_due(y) && (!due || stands_before(y, &item[*due])))
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

uint32_t share_pick(struct share *s, struct share_item *item, uint32_t n, uint32_t *out,
                    uint32_t max, int64_t now) {
    uint32_t n_out = 0;

    make_lists(s, item, n, now);
    while (n_out < max) {
        struct share_tenant *best = NULL;

        for (uint32_t i = 0; i < s->n_tenants; i++) {
            struct share_tenant *t = &s->tenant[i];

            if (t->head != NONE && (!best || is_next(t, best, item)))
                best = t;
        }
        if (!best)
            break;
        out[n_out] = take_first(best, item);
        best->next_ns += item[out[n_out++]].cost_ns / best->weight;
    }
    return n_out;
}

/* ---- shares ---- */

static bool counts(const struct share_tenant *t, bool lately, int64_t now) {
    return t->n_live > 0 || (lately && now - t->seen_ns < LATELY_NS);
}

bool share_is_over(const struct share *s, uint32_t t, uint32_t held, uint32_t total, bool lately,
                   int64_t now) {
    double sum = 0;

    for (uint32_t i = 0; i < s->n_tenants; i++)
        if (i == t || counts(&s->tenant[i], lately, now))
            sum += s->tenant[i].weight;
    return held * sum > total * s->tenant[t].weight;
}

/* Likewise in sequences. */
static double part_of(const struct share *s, const struct share_tenant *t, uint32_t total,
                      int64_t now) {
    double sum = 0;

    for (uint32_t i = 0; i < s->n_tenants; i++)
        sum += counts(&s->tenant[i], true, now) ? s->tenant[i].weight : 0;
    return sum > 0 ? total * t->weight / sum : total;
}

void share_note_slots(struct share *s, uint32_t total, int64_t now) {
    double gain = -expm1(-(double)MAX(now - s->slots_at, 0) / SLOTS_NS);

    s->slots_at = now;
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        struct share_tenant *t = &s->tenant[i];
        double wants = fmin(t->n_live, part_of(s, t, total, now));

        t->slots += gain * (wants - t->slots);
    }
}

uint32_t share_leaves(const struct share *s, uint32_t t, uint32_t total, int64_t now) {
    const struct share_tenant *me = &s->tenant[t];
    double need = 0, parts = 0, have = 0;
    bool others = false;

    if (me->n_running <= part_of(s, me, total, now))
        return 0;

    for (uint32_t i = 0; i < s->n_tenants; i++) {
        const struct share_tenant *o = &s->tenant[i];

        if (i == t || !counts(o, true, now) || o->served_ns > me->served_ns + QUANTUM_NS ||
            o->n_running * me->weight >= me->n_running * o->weight)
            continue;
        others = true;
        need += o->slots;
        parts += part_of(s, o, total, now);
        have += o->n_running;
    }
    need = fmin(need + SURGE * sqrt(need), parts) - have;
    return others ? (uint32_t)fmax(ceil(need), total >= LEAST_TOTAL) : 0;
}

bool share_is_behind(const struct share *s, uint32_t t, uint32_t other) {
    return s->tenant[t].served_ns < s->tenant[other].served_ns;
}

bool share_is_shared(const struct share *s, int64_t now) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_tenants && n < 2; i++)
        n += counts(&s->tenant[i], true, now);
    return n > 1;
}

uint32_t share_turns(struct share *s, int64_t now, uint16_t out[SHARE_TENANTS],
                     float weight[SHARE_TENANTS], float part[SHARE_TENANTS]) {
    double least = 0, most = 0, sum = 0;
    uint32_t n = 0;

    tick(s, now);
    clocks(s, &least, &most);
    least = fmax(least, s->fair_ns);
    for (uint32_t i = 0; i < s->n_tenants; i++) {
        const struct share_tenant *t = &s->tenant[i];
        uint32_t k = n;

        if (t->n_live == 0)
            continue;
        for (; k > 0 && t->served_ns < s->tenant[out[k - 1]].served_ns; k--)
            out[k] = out[k - 1];
        out[k] = (uint16_t)i;
        sum += t->weight;
        n++;
    }
    for (uint32_t k = 0; k < n; k++) {
        const struct share_tenant *t = &s->tenant[out[k]];

        weight[k] =
            (float)t->weight * (most - t->served_ns > BEHIND_NS / t->weight ? BEHIND_FACTOR : 1);
        part[k] = t->served_ns + t->coming_ns - least > AHEAD_NS / t->weight
                      ? (float)(t->weight / sum)
                      : 1;
    }
    return n;
}

double share_jain(const struct share *s, int64_t now, uint32_t *n_live) {
    double sum = 0, squares = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->n_tenants; i++) {
        const struct share_tenant *t = &s->tenant[i];

        if (t->n_live == 0)
            continue;
        double x = decayed(t->recent_ns, t->recent_at, now) / t->weight;
        sum += x;
        squares += x * x;
        n++;
    }
    *n_live = n;
    return n > 1 && squares > 0 ? sum * sum / (n * squares) : 1;
}
