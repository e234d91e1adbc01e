/*
 * plan_turns - steps while a tenant that is behind is expected back (plan.expects): its request
 * will wait for the end of the running step, so the rows of other tenants take turns in short
 * steps.
 *
 * A step is cut only where it stays efficient. One of rows that decode, the longest without a row
 * first, ends at PLAN_TURN_TIMES the time of one row, or later, when its rows come at
 * PLAN_TURN_RATE of the rate at which all would; where prompts wait, these have a quarter of what
 * is beyond the one row. So others lose a bounded part of their rate, and none waits for more than
 * a bounded number of steps.
 */

#include "base/util.h"
#include "scheduler/plan_private.h"
#include "scheduler/policy.h"

static bool plan_has_prompt(const struct plan *p) {
    for (uint32_t i = 0; i < p->n_running; i++)
        if (plan_is_prefill(&p->req[i]))
            return true;
    return false;
}

int64_t plan_turn_ns(const struct plan *p) {
    struct cost_shape one = {0};
    uint64_t context = 0;

    for (uint32_t i = 0; i < p->n_running; i++)
        context += p->req[i].n_computed;
    cost_add(&one, (uint32_t)(context / MAX(p->n_running, 1u)), 1);
    return PLAN_TURN_TIMES * cost_bound_ns(p->cost, &one);
}

/* Returns whether the rows of @w come at PLAN_TURN_RATE of the rate of those of @all. */
static bool keeps_rate(const struct plan_work *w, const struct cost_shape *all) {
    double ns = (double)cost_expect_ns(w->p->cost, &w->shape);
    double all_ns = (double)cost_expect_ns(w->p->cost, all);

    return w->rows * all_ns >= PLAN_TURN_RATE * all->rows * ns;
}

/* The decode of a step that would have the rows of @all. */
struct turns {
    struct cost_shape all;
    int64_t turn_ns;
    bool prompts;
};

/* Returns whether decode needs no more rows. */
static bool plan_is_cut(const struct plan_work *w, const struct turns *t) {
    int64_t now_ns = cost_bound_ns(w->p->cost, &w->shape);

    if (t->prompts)
        return now_ns >= t->turn_ns - (t->turn_ns - t->turn_ns / PLAN_TURN_TIMES) / PLAN_ADD_PART;
    return now_ns >= t->turn_ns && keeps_rate(w, &t->all);
}

void plan_cut_decodes(struct plan_work *w) {
    struct plan *p = w->p;
    struct turns t = {w->shape, 0, plan_has_prompt(p)};
    uint32_t longest = 0;

    if (!p->expects || w->short_of_pages)
        return;
    t.turn_ns = plan_turn_ns(p);
    if (!plan_is_cut(w, &t))
        return;
    for (uint32_t i = 0; i < p->n_running; i++) {
        struct plan_req *r = &p->req[i];

        if (r->behind || r->n_rows == 0)
            continue;
        plan_set_rows(w, r, 0);
        r->verdict = PLAN_WAIT_TIME;
        longest = MAX(longest, r->n_passed);
    }
    for (uint32_t passed = longest + 1; passed-- > 0;)
        for (uint32_t k = 0; k < p->n_running; k++) {
            struct plan_req *r = &p->req[(p->turn + k) % p->n_running];
            bool left = plan_is_decode(r) && r->verdict == PLAN_WAIT_TIME;

            if (!left || r->n_passed != passed)
                continue;
            plan_set_rows(w, r, 1);
            if (plan_is_cut(w, &t))
                return;
        }
}

void plan_note_turns(struct plan_work *w) {
    struct plan *p = w->p;

    for (uint32_t i = 0; i < p->n_running; i++) {
        struct plan_req *r = &p->req[i];

        if (!plan_is_decode(r))
            continue;
        if (r->n_rows > 0)
            r->n_passed = 0;
        else if (r->verdict == PLAN_WAIT_TIME)
            r->n_passed += r->n_passed < UINT8_MAX;
    }
}
