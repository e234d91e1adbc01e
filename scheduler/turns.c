/*
 * turns - carries figures between the requests, share.c and the plan.
 *
 * With one tenant nothing here changes anything but the order of its sessions. With several, as many sequences as those
 * that have less were seen to need, and the last eighth of the pages, are kept for them, so that the first request
 * of one does not wait until a flood's requests end; and those of a tenant that holds more than its part of the pages
 * stand below all others: they give pages back first.
 */

#include "scheduler/turns.h"

#include <errno.h>
#include <math.h>
#include "scheduler/private.h"

#define RESERVE_PAGES 8 /* one of so many is kept */
#define ADD_PART 4      /* of the time between tokens: what some may add to a step */
#define DECODERS 16     /* an output row is priced as one of so many */

int turns_init(struct sched *s) {
    share_init(&s->turns.share);
    s->turns.victim = SHARE_TENANTS;
    s->turns.item = calloc(TURNS_ITEMS, sizeof(*s->turns.item));
    return s->turns.item ? 0 : -ENOMEM;
}

void turns_deinit(struct sched *s) {
    free(s->turns.item);
}

void turns_enter(struct sched *s, struct request *r, uint32_t tenant, uint32_t weight_milli,
                 uint8_t class) {
    r->turn =
        share_enter(&s->turns.share, tenant, weight_milli, class, r->session, clock_now(s->clock));
    r->entered = true;
    r->since_ns = clock_now(s->clock);
}

void turns_leave(struct sched *s, struct request *r) {
    if (r->entered)
        share_leave(&s->turns.share, r->turn, clock_now(s->clock));
    r->entered = false;
}

/* What is left of the prompt of @r, which runs, will take. */
static double prompt_ns(const struct sched *s, const struct request *r) {
    struct cost_shape shape = {0};

    if (r->n_computed + 1 >= r->n_tokens)
        return 0;
    cost_add(&shape, r->n_computed, r->n_tokens - r->n_computed);
    return 1e6 * cost_part_ms(&s->cost, &shape, &shape);
}

static void count_held(struct sched *s) {
    struct share *h = &s->turns.share;
    uint32_t n;

    for (uint32_t i = 0; i < h->n_tenants; i++) {
        h->tenant[i].n_running = h->tenant[i].n_pages = 0;
        h->tenant[i].coming_ns = 0;
    }
    LIST_FOREACH(node, &s->running) {
        const struct request *r = LIST_ENTRY(node, struct request, queued.link);
        struct share_tenant *t = &h->tenant[r->turn.tenant];

        kv_seq_pages(r->seq, &n);
        t->n_running++;
        t->n_pages += n;
        t->coming_ns = fmax(t->coming_ns, prompt_ns(s, r) / t->weight);
    }
}

void turns_begin(struct sched *s, int64_t now) {
    struct turns *t = &s->turns;
    struct plan *p = &s->plan;
    bool shared = share_is_shared(&t->share, now);

    count_held(s);
    share_note_slots(&t->share, p->max_seqs, now);
    t->n_groups = share_turns(&t->share, now, t->turn, t->weight, t->part);
    for (uint32_t i = 0; i < t->n_groups; i++)
        t->group[t->turn[i]] = (uint16_t)i;
    p->n_groups = t->n_groups;
    p->group_weight = t->weight;
    p->group_part = t->part;
    for (uint32_t i = 0; i < t->n_groups; i++)
        t->over[i] = share_is_over(&t->share, t->turn[i], t->share.tenant[t->turn[i]].n_running,
                                   p->max_seqs, true, now);
    p->group_over = t->over;
    p->add_ns = shared ? p->itl_ns / ADD_PART : 0;
    p->reserve_pages = shared ? s->info->n_pages / RESERVE_PAGES : 0;
}

bool turns_is_over(const struct sched *s, const struct request *r) {
    const struct share *h = &s->turns.share;
    uint32_t t = r->turn.tenant;

    return s->turns.n_groups > 1 &&
           share_is_over(h, t, h->tenant[t].n_pages, s->info->n_pages, false, 0);
}

/* Slots of tenant @t for its weight, with @more. */
static double slots_of(const struct sched *s, uint32_t t, uint32_t more) {
    const struct share_tenant *x = &s->turns.share.tenant[t];

    return (x->n_running + more) / x->weight;
}

/* The tenant that has most slots, and two requests that run at least: a tenant's last one is never preempted. */
static uint32_t richest(const struct sched *s, uint32_t but) {
    const struct share *h = &s->turns.share;
    uint32_t found = SHARE_TENANTS;

    for (uint32_t i = 0; i < h->n_tenants; i++)
        if (i != but && h->tenant[i].n_running > 1 &&
            (found == SHARE_TENANTS || slots_of(s, i, 0) > slots_of(s, found, 0)))
            found = i;
    return found;
}

/* Whether @r, which takes @n_pages, would have to leave the slot to yet others: then none is preempted for it. */
static bool leaves_it(struct sched *s, const struct request *r, uint32_t n_pages, int64_t now) {
    const struct share *h = &s->turns.share;
    uint32_t t = r->turn.tenant, slots = h->tenant[t].n_running + 1;

    return share_is_over(h, t, slots, s->plan.max_seqs, true, now) ||
           share_is_over(h, t, h->tenant[t].n_pages + n_pages, s->info->n_pages, true, now);
}

/* Pages that @r is expected to come to hold, as the plan will count them. */
static uint32_t pages_of(const struct sched *s, const struct request *r) {
    uint32_t n_out = request_n_out(r), max_new = r->max_tokens - r->n_prompt;
    uint32_t target = r->n_prompt + estimate_output(&s->estimate, r->session, n_out, max_new);

    return plan_pages(&s->plan, MAX(target, r->n_tokens));
}

bool turns_preempts(struct sched *s, int64_t now) {
    const struct share *h = &s->turns.share;
    bool asked[SHARE_TENANTS] = {false};

    s->turns.victim = SHARE_TENANTS;
    if (s->turns.n_groups < 2 || s->plan.n_running < s->plan.max_seqs)
        return false;
    for (const struct list *l = s->waiting.next; l != &s->waiting; l = l->next) {
        const struct request *r = LIST_ENTRY(l, const struct request, queued.link);
        uint32_t t = r->turn.tenant;

        if (asked[t])
            continue;
        asked[t] = true; /* its first one speaks for all */
        uint32_t victim = richest(s, t);
        if (victim < SHARE_TENANTS && share_is_behind(h, t, victim) &&
            slots_of(s, victim, 0) > slots_of(s, t, 1) && !leaves_it(s, r, pages_of(s, r), now)) {
            s->turns.victim = victim;
            s->plan.fair_preempt_begun = h->tenant[t].n_running == 0;
            return true;
        }
    }
    return false;
}

bool turns_is_victim(const struct sched *s, const struct request *r) {
    return r->turn.tenant == s->turns.victim;
}

/* What is left of it will take, roughly. */
static double price_ns(const struct sched *s, const struct request *r) {
    uint32_t hit = MIN(r->seen_hit, r->n_tokens - 1), max_new = r->max_tokens - r->n_prompt;
    uint32_t n_out = estimate_output(&s->estimate, r->session, request_n_out(r), max_new);
    struct cost_shape prompt = {0}, all = {0}, one = {0};

    cost_add(&prompt, hit, r->n_tokens - hit);
    cost_add(&one, r->n_tokens, 1);
    all =
        (struct cost_shape){.rows = DECODERS, .seqs = DECODERS, .context = one.context * DECODERS};
    double ms = cost_part_ms(&s->cost, &prompt, &prompt);
    return 1e6 * (ms + cost_part_ms(&s->cost, &all, &one) * (n_out - request_n_out(r)));
}

static uint32_t collect(struct sched *s, uint64_t room, int64_t now) {
    uint32_t n = 0;

    share_begin_pick(&s->turns.share);
    LIST_FOREACH(node, &s->waiting) {
        struct request *r = LIST_ENTRY(node, struct request, queued.link);

        r->plan_index = UINT32_MAX;
        if (n == TURNS_ITEMS)
            break;
        if (r->n_in_flight > 0 || pin_delays(s, r, room, now) ||
            !share_wants(&s->turns.share, r->turn))
            continue;
        s->turns.item[n++] = (struct share_item){
            .ref = r->turn,
            .n_left = s->opts.max_bypass - MIN(r->n_bypassed, s->opts.max_bypass),
            .key = r->queued.standing.key,
            .order = r->queued.standing.order,
            .n_hit = r->seen_hit,
            .n_tokens = r->n_tokens,
            .cost_ns = price_ns(s, r),
            .who = r,
        };
    }
    return n;
}

uint32_t turns_waiting(struct sched *s, uint64_t room, struct request **out,
                       struct turns_limits *limits, uint32_t max) {
    struct share *h = &s->turns.share;
    uint32_t index[SCHED_CANDIDATES], t = s->rules.page_tokens;
    int64_t now = clock_now(s->clock);
    uint32_t n =
        share_pick(h, s->turns.item, collect(s, room, now), index, MIN(max, SCHED_CANDIDATES), now);

    for (uint32_t i = 0; i < n; i++) {
        struct request *r = s->turns.item[index[i]].who;
        struct share_tenant *who = &h->tenant[r->turn.tenant];

        /* As if all of them were admitted, in this order. */
        who->n_running++;
        who->n_pages += r->n_tokens / t + 1;
        out[i] = r;
        r->plan_index = s->plan.n_running + i;
        limits[i].leave_seqs = share_leaves(h, r->turn.tenant, s->opts.max_seqs, now);
        limits[i].over =
            s->plan.reserve_pages > 0 &&
            (share_is_over(h, r->turn.tenant, who->n_running, s->opts.max_seqs, true, now) ||
             share_is_over(h, r->turn.tenant, who->n_pages, s->info->n_pages, true, now));
    }
    return n;
}

/* Who has been admitted overtakes those of his tenant that stand before him. The plan has counted it for those that
 * had their turn before him and did not fit. */
void turns_note_admissions(struct sched *s) {
    const struct plan *p = &s->plan;

    for (uint32_t i = p->n_running; i < p->n_running + p->n_waiting && p->n_admitted > 0; i++) {
        const struct request *r = s->planned[i];

        if (!p->req[i].admitted)
            continue;
        LIST_FOREACH(node, &s->waiting) {
            struct request *o = LIST_ENTRY(node, struct request, queued.link);

            if (!queue_before(&o->queued.standing, &r->queued.standing))
                break;
            o->n_bypassed +=
                o->turn.tenant == r->turn.tenant && o->plan_index > i && o->n_in_flight == 0;
        }
    }
}

void turns_charge(struct sched *s, const struct batch *t, int64_t ns, int64_t now) {
    double sum = 0, part[2];

    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < t->b.n_seqs; i++) {
            const struct batch_item *it = &t->item[i];
            struct cost_shape own = {0};

            cost_add(&own, it->pos0, it->n_rows);
            part[pass] = cost_part_ms(&s->cost, &t->shape, &own);
            if (pass == 0)
                sum += part[0];
            else if (sum > 0)
                share_charge(&s->turns.share, it->request->turn, (double)ns * part[1] / sum, now);
        }
}
