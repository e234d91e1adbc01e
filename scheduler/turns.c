/*
 * turns - carries figures between the requests, share.c and the plan.
 *
 * With one tenant nothing here changes anything but the order of its sessions. With several, as
 * many sequences as those that have less were seen to need, and the last eighth of the pages, are
 * kept for them, so that the first request of one does not wait until a flood's requests end; and
 * those of a tenant that holds more than its part of the pages stand below all others: they give
 * pages back first.
 */

#include "scheduler/turns.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include "base/clock.h"
#include "scheduler/batch.h"
#include "scheduler/pin.h"
#include "scheduler/plan.h"
#include "scheduler/request.h"

#define RESERVE_PAGES 8 /* one of so many is kept */
#define DECODERS 16     /* an output row is priced as one of so many */

int turns_init(struct turns *f, const struct turns_opts *opts) {
    f->opts = *opts;
    share_init(&f->share, opts->sessions);
    f->victim = SHARE_TENANTS;
    f->item = calloc(TURNS_ITEMS, sizeof(*f->item));
    return f->item ? 0 : -ENOMEM;
}

void turns_deinit(struct turns *f) {
    free(f->item);
}

void turns_enter(struct turns *f, struct request *r, uint32_t tenant, uint32_t weight_milli,
                 uint8_t class) {
    r->turn =
        share_enter(&f->share, tenant, weight_milli, class, r->session, clock_now(f->opts.clock));
    r->entered = true;
    r->since_ns = clock_now(f->opts.clock);
}

void turns_leave(struct turns *f, struct request *r) {
    if (r->entered)
        share_leave(&f->share, r->turn, clock_now(f->opts.clock));
    r->entered = false;
}

/* What is left of the prompt of t->r, which runs, will take. */
static double prompt_ns(const struct turns *f, const struct request *r) {
    struct cost_shape shape = {0};

    if (r->n_computed + 1 >= r->n_tokens)
        return 0;
    cost_add(&shape, r->n_computed, r->n_tokens - r->n_computed);
    return 1e6 * cost_part_ms(f->opts.cost, &shape, &shape);
}

static void count_held(struct turns *f) {
    struct share *h = &f->share;
    uint32_t n;

    for (uint32_t i = 0; i < h->n_tenants; i++) {
        h->tenant[i].n_running = h->tenant[i].n_pages = 0;
        h->tenant[i].coming_ns = 0;
    }
    LIST_FOREACH(node, f->opts.running) {
        const struct request *r = LIST_ENTRY(node, struct request, queued.link);
        struct share_tenant *t = &h->tenant[r->turn.tenant];

        kv_seq_pages(r->seq, &n);
        t->n_running++;
        t->n_pages += n;
        t->coming_ns = fmax(t->coming_ns, prompt_ns(f, r) / t->weight);
    }
}

void turns_begin(struct turns *f, int64_t now) {
    struct plan *p = f->opts.plan;
    bool shared = share_is_shared(&f->share, now);

    count_held(f);
    share_note_slots(&f->share, p->max_seqs, now);
    f->n_groups = share_turns(&f->share, now, f->turn, f->weight, f->part);
    for (uint32_t i = 0; i < f->n_groups; i++)
        f->group[f->turn[i]] = (uint16_t)i;
    p->n_groups = f->n_groups;
    p->group_weight = f->weight;
    p->group_part = f->part;
    for (uint32_t i = 0; i < f->n_groups; i++)
        f->over[i] = share_is_over(&f->share, f->turn[i], f->share.tenant[f->turn[i]].n_running,
                                   p->max_seqs, true, now);
    p->group_over = f->over;
    p->add_ns = shared ? p->itl_ns / PLAN_ADD_PART : 0;
    p->reserve_pages = shared ? f->opts.n_pages / RESERVE_PAGES : 0;
}

bool turns_is_over(const struct turns *f, const struct request *r) {
    const struct share *h = &f->share;
    uint32_t t = r->turn.tenant;

    return f->n_groups > 1 && share_is_over(h, t, h->tenant[t].n_pages, f->opts.n_pages, false, 0);
}

/* Slots of tenant t->t for its weight, with t->more. */
static double slots_of(const struct turns *f, uint32_t t, uint32_t more) {
    const struct share_tenant *x = &f->share.tenant[t];

    return (x->n_running + more) / x->weight;
}

/* The tenant that has most slots, and two requests that run at least: a tenant's last one is never
 * preempted. */
static uint32_t richest(const struct turns *f, uint32_t but) {
    const struct share *h = &f->share;
    uint32_t found = SHARE_TENANTS;

    for (uint32_t i = 0; i < h->n_tenants; i++)
        if (i != but && h->tenant[i].n_running > 1 &&
            (found == SHARE_TENANTS || slots_of(f, i, 0) > slots_of(f, found, 0)))
            found = i;
    return found;
}

/* Whether t->r, which takes t->n_pages, would have to leave the slot to yet others: then none is
 * preempted for it. */
static bool leaves_it(struct turns *f, const struct request *r, uint32_t n_pages, int64_t now) {
    const struct share *h = &f->share;
    uint32_t t = r->turn.tenant, slots = h->tenant[t].n_running + 1;

    return share_is_over(h, t, slots, f->opts.plan->max_seqs, true, now) ||
           share_is_over(h, t, h->tenant[t].n_pages + n_pages, f->opts.n_pages, true, now);
}

/* Pages that t->r is expected to come to hold, as the plan will count them. */
static uint32_t pages_of(const struct turns *f, const struct request *r) {
    uint32_t n_out = request_n_out(r), max_new = r->max_tokens - r->n_prompt;
    uint32_t target = r->n_prompt + estimate_output(f->opts.estimate, r->session, n_out, max_new);

    return plan_pages(f->opts.plan, MAX(target, r->n_tokens));
}

bool turns_preempts(struct turns *f, int64_t now) {
    const struct share *h = &f->share;
    bool asked[SHARE_TENANTS] = {false};

    f->victim = SHARE_TENANTS;
    if (f->n_groups < 2 || f->opts.plan->n_running < f->opts.plan->max_seqs)
        return false;
    for (const struct list *l = f->opts.waiting->next; l != f->opts.waiting; l = l->next) {
        const struct request *r = LIST_ENTRY(l, const struct request, queued.link);
        uint32_t t = r->turn.tenant;

        if (asked[t])
            continue;
        asked[t] = true; /* its first one speaks for all */
        uint32_t victim = richest(f, t);
        if (victim < SHARE_TENANTS && share_is_behind(h, t, victim) &&
            slots_of(f, victim, 0) > slots_of(f, t, 1) && !leaves_it(f, r, pages_of(f, r), now)) {
            f->victim = victim;
            f->opts.plan->fair_preempt_begun = h->tenant[t].n_running == 0;
            return true;
        }
    }
    return false;
}

bool turns_is_victim(const struct turns *f, const struct request *r) {
    return r->turn.tenant == f->victim;
}

/* What is left of it will take, roughly. */
static double price_ns(const struct turns *f, const struct request *r) {
    uint32_t hit = MIN(r->seen_hit, r->n_tokens - 1), max_new = r->max_tokens - r->n_prompt;
    uint32_t n_out = estimate_output(f->opts.estimate, r->session, request_n_out(r), max_new);
    struct cost_shape prompt = {0}, all = {0}, one = {0};

    cost_add(&prompt, hit, r->n_tokens - hit);
    cost_add(&one, r->n_tokens, 1);
    all =
        (struct cost_shape){.rows = DECODERS, .seqs = DECODERS, .context = one.context * DECODERS};
    double ms = cost_part_ms(f->opts.cost, &prompt, &prompt);
    return 1e6 * (ms + cost_part_ms(f->opts.cost, &all, &one) * (n_out - request_n_out(r)));
}

static uint32_t collect(struct turns *f, uint64_t room, int64_t now) {
    uint32_t n = 0;

    share_begin_pick(&f->share);
    LIST_FOREACH(node, f->opts.waiting) {
        struct request *r = LIST_ENTRY(node, struct request, queued.link);

        r->plan_index = UINT32_MAX;
        if (n == TURNS_ITEMS)
            break;
        if (r->n_in_flight > 0 || pin_delays(f->opts.pins, r, room, now) ||
            !share_wants(&f->share, r->turn))
            continue;
        f->item[n++] = (struct share_item){
            .ref = r->turn,
            .n_left = f->opts.max_bypass - MIN(r->n_bypassed, f->opts.max_bypass),
            .key = r->queued.key.arrival,
            .order = r->queued.key.order,
            .n_hit = r->seen_hit,
            .n_tokens = r->n_tokens,
            .cost_ns = price_ns(f, r),
            .who = r,
        };
    }
    return n;
}

uint32_t turns_waiting(struct turns *f, uint64_t room, struct request **out,
                       struct turns_limits *limits, uint32_t max) {
    struct share *h = &f->share;
    uint32_t index[TURNS_CANDIDATES], t = f->opts.page_tokens;
    int64_t now = clock_now(f->opts.clock);
    uint32_t n =
        share_pick(h, f->item, collect(f, room, now), index, MIN(max, TURNS_CANDIDATES), now);

    for (uint32_t i = 0; i < n; i++) {
        struct request *r = f->item[index[i]].who;
        struct share_tenant *who = &h->tenant[r->turn.tenant];

        /* As if all of them were admitted, in this order. */
        who->n_running++;
        who->n_pages += r->n_tokens / t + 1;
        out[i] = r;
        r->plan_index = f->opts.plan->n_running + i;
        limits[i].leave_seqs = share_leaves(h, r->turn.tenant, f->opts.max_seqs, now);
        limits[i].over =
            f->opts.plan->reserve_pages > 0 &&
            (share_is_over(h, r->turn.tenant, who->n_running, f->opts.max_seqs, true, now) ||
             share_is_over(h, r->turn.tenant, who->n_pages, f->opts.n_pages, true, now));
    }
    return n;
}

/* An admitted request overtakes those of its tenant that stand before it. The plan has counted
 * it for those that had their turn before it and did not fit. */
void turns_note_admissions(struct turns *f, struct request *const *planned) {
    const struct plan *p = f->opts.plan;

    for (uint32_t i = p->n_running; i < p->n_running + p->n_waiting && p->n_admitted > 0; i++) {
        const struct request *r = planned[i];

        if (!p->req[i].admitted)
            continue;
        LIST_FOREACH(node, f->opts.waiting) {
            struct request *o = LIST_ENTRY(node, struct request, queued.link);

            if (!queue_before(&o->queued.key, &r->queued.key))
                break;
            o->n_bypassed +=
                o->turn.tenant == r->turn.tenant && o->plan_index > i && o->n_in_flight == 0;
        }
    }
}

void turns_charge(struct turns *f, const struct batch *t, int64_t ns, int64_t now) {
    double sum = 0, part[2];

    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < t->b.n_seqs; i++) {
            const struct batch_item *it = &t->item[i];
            struct cost_shape own = {0};

            cost_add(&own, it->pos0, it->n_rows);
            part[pass] = cost_part_ms(f->opts.cost, &t->shape, &own);
            if (pass == 0)
                sum += part[0];
            else if (sum > 0)
                share_charge(&f->share, it->request->turn, (double)ns * part[1] / sum, now);
        }
}
