#include "tests/support/sim_gaps.h"

#include "base/util.h"
#include "tests/support/sched_sim.h"

/* Steps after which the cost model of a new worker must be right. */
#define LEARNT 100

/* Returns the ns that a step of shape @shape takes without noise and copies. */
static double nominal_ns(const struct sim *s, const struct cost_shape *shape) {
    const struct sim_opts *o = &s->opts;
    const struct telltale *t = &o->machine;
    double rows = (double)o->row_ns * shape->rows;

    return (double)o->step_ns + MAX((double)t->read_ns, rows) + (double)t->seq_ns * shape->seqs +
           ((double)o->key_ns + t->key_ns) * (double)shape->context +
           t->pair_ns * (double)shape->pairs;
}

/* Returns true if the machine is as even as the rule needs, and nothing but the time limits the
 * chunks. */
static bool is_even(const struct sim_opts *o) {
    const struct telltale *t = &o->machine;

    return !o->wrong && t->busy == 0 && t->noise <= 0.1 && o->sched.force_chunk == 0 &&
           !o->short_chunks;
}

/* Returns the ns of decode in plan @p, and in *one_ns that with one row of the prompt furthest
 * ahead. 0: the step has no chunk beside decode. */
static double decode_ns(const struct sim *s, const struct plan *p, double *one_ns) {
    struct cost_shape decode = {0};
    uint32_t furthest = 0, n_rows = 0;

    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        const struct plan_req *q = &p->req[i];

        if (q->whole) /* rows of a picture that see each other are not divided */
            return 0;
        if (q->n_rows == 0)
            continue;
        if (q->n_tokens - q->n_computed == 1) {
            cost_add(&decode, q->n_computed, 1);
            continue;
        }
        furthest = MAX(furthest, q->n_computed);
        n_rows += q->n_rows;
    }
    if (n_rows == 0 || decode.rows == 0)
        return 0;
    double ns = nominal_ns(s, &decode);
    cost_add(&decode, furthest, 1);
    *one_ns = nominal_ns(s, &decode);
    return ns;
}

void sim_gaps_after(struct sim *s, int64_t target_ns) {
    const struct plan *p = &s->sched->plan;
    double one_ns = 0, ns = nominal_ns(s, &p->shape), decode = decode_ns(s, p, &one_ns);

    if (!is_even(&s->opts) || decode == 0 || p->n_drafts > 0 || p->spent_ns > 0 ||
        s->was.cost.n_seen < LEARNT)
        return;
    double even_ns = MAX((double)target_ns, decode * 4 / 3);
    if (one_ns > even_ns * 1.15 || one_ns > 2 * (double)target_ns)
        return;
    s->gaps.n_steps++;
    s->gaps.n_long += ns > 1.25 * even_ns;
}

void sim_gaps_at_end(const struct sim *s) {
    HOLD(s, NULL, GAPS, s->gaps.n_long <= s->gaps.n_steps / 8 + 10);
}
