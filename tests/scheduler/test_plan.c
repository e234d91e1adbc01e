#include <criterion/criterion.h>
#include <string.h>

#include "base/rng.h"
#include "base/util.h"
#include "scheduler/plan.h"
#include "tests/support/few.h"

#define MAX_REQS 40
#define MAX_HASHES 64

/* A plan with room for all its arrays. */
struct fixture {
    struct plan p;
    struct plan_req req[MAX_REQS];
    uint32_t scratch[MAX_REQS];
    uint64_t hash[MAX_REQS][MAX_HASHES];
    float survival[MAX_REQS][16];
    float group_weight[4];
    struct cost cost;
};

/* Teaches @c a machine of @fixed_ms per step and @row_ms per row. */
static void teach(struct cost *c, double fixed_ms, double row_ms) {
    struct rng r = {1};

    cost_init(c);
    for (int i = 0; i < 300; i++) {
        struct cost_shape s = {0};
        for (uint32_t k = rng_below(&r, 20); k > 0; k--)
            cost_add(&s, rng_below(&r, 100), 1);
        /* drawn first, since the order of evaluation of arguments is not defined */
        uint32_t n_rows = 1 + rng_below(&r, 512);
        cost_add(&s, rng_below(&r, 100), n_rows);
        cost_learn(c, &s, (int64_t)((fixed_ms + row_ms * s.rows) * 1e6));
    }
}

static void setup(struct fixture *f, double fixed_ms, double row_ms) {
    memset(f, 0, sizeof(*f));
    teach(&f->cost, fixed_ms, row_ms);
    f->p = (struct plan){
        .req = f->req,
        .scratch = f->scratch,
        .page_tokens = 16,
        .n_available = 1000,
        .max_rows = 512,
        .max_seqs = 32,
        .max_bypass = 4,
        .itl_ns = 50000000,
        .max_step_ns = 200000000,
        .cost = &f->cost,
    };
}

static void finish_req(struct fixture *f, struct plan_req *r) {
    r->n_stored = MIN(r->n_stored ? r->n_stored : r->n_computed, r->n_computed);
    r->n_target = MAX(r->n_target, r->n_tokens);
    r->hash = f->hash[r - f->req];
}

static struct plan_req *add_running(struct fixture *f, uint32_t n_tokens, uint32_t n_computed) {
    struct plan_req *r = &f->req[f->p.n_running++];

    *r = (struct plan_req){.n_tokens = n_tokens, .n_computed = n_computed};
    r->n_pages = r->n_exclusive = plan_pages(&f->p, n_computed);
    finish_req(f, r);
    return r;
}

/* Adds a waiting request, after all running ones. */
static struct plan_req *add_waiting(struct fixture *f, uint32_t n_tokens, uint32_t n_target) {
    struct plan_req *r = &f->req[f->p.n_running + f->p.n_waiting++];

    *r = (struct plan_req){.n_tokens = n_tokens, .n_target = n_target};
    finish_req(f, r);
    return r;
}

static void share_prefix(struct fixture *f, struct plan_req *r, uint64_t family, uint32_t n) {
    r->n_hashes = n;
    r->n_share = n * f->p.page_tokens;
    for (uint32_t i = 0; i < n; i++)
        f->hash[r - f->req][i] = family + i;
}

static uint32_t taken(const struct plan *p, const struct plan_req *r) {
    uint32_t n = plan_pages(p, r->n_computed + r->n_rows);

    return r->n_rows > 0 && n > r->n_pages ? n - r->n_pages : 0;
}

/* Checks the properties that every plan has, whatever its input. */
static void check(const struct fixture *f) {
    const struct plan *p = &f->p;
    uint32_t rows = 0, drafts = 0, seqs = 0, last_row = 0, first_preempted = PLAN_NONE;
    int64_t pages = p->n_available;

    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        const struct plan_req *r = &p->req[i];

        cr_assert_eq(r->n_rows > 0, r->verdict == PLAN_RUN, "request %u", i);
        cr_assert_leq(r->n_rows - r->n_draft, r->n_tokens - r->n_computed, "request %u", i);
        cr_assert_leq(r->n_draft, r->n_draft_max, "request %u", i);
        cr_assert(r->n_draft == 0 || r->n_rows == 1 + r->n_draft, "request %u", i);
        cr_assert(!r->admitted || i >= p->n_running);
        cr_assert(r->n_rows == 0 || i < p->n_running || r->admitted);
        cr_assert(!r->alone || r->n_rows == 0 || p->alone == i);
        cr_assert(p->alone == PLAN_NONE || r->n_rows == 0 || p->alone == i);
        if (r->verdict == PLAN_PREEMPT) {
            first_preempted = MIN(first_preempted, i);
            pages += r->n_exclusive;
        }
        if (r->admitted)
            pages -= r->n_idle;
        pages -= taken(p, r);
        rows += r->n_rows;
        drafts += r->n_draft;
        seqs += r->n_rows > 0;
        last_row = r->n_rows > 0 ? i : last_row;
    }
    cr_assert_geq(pages, 0, "more pages than there are");
    cr_assert_leq(rows, p->max_rows);
    cr_assert_eq(rows, p->n_rows);
    cr_assert_eq(seqs, p->n_seqs);
    cr_assert_eq(drafts, p->n_drafts);
    cr_assert_eq(rows, p->shape.rows);
    cr_assert_leq(p->n_running + p->n_admitted, MAX(p->max_seqs, p->n_running));
    if (first_preempted != PLAN_NONE) {
        cr_assert_eq(p->n_admitted, 0, "none is admitted while others are preempted");
        cr_assert(rows == 0 || last_row != first_preempted);
    }
}

/* Returns the limit of a step whose decode rows, or one row, take @least_ns. */
static int64_t limit_beside(int64_t least_ns, int64_t target_ns) {
    if (least_ns >= 3 * target_ns)
        return 2 * (least_ns - target_ns);
    return MAX(target_ns, 4 * least_ns / 3);
}

/* Returns the limit of the step in which @decodes decode: longer if nothing decodes, and in a
 * probe. */
static int64_t limit_of(const struct plan *p, const struct cost_shape *decodes, bool alone,
                        int64_t target_ns) {
    struct cost_shape one = *decodes;
    int64_t limit;

    if (one.rows == 0)
        cost_add(&one, 0, 1);
    limit = limit_beside(cost_bound_ns(p->cost, &one), target_ns);
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        one = alone ? (struct cost_shape){0} : *decodes;
        if (p->req[i].n_tokens - p->req[i].n_computed > 1)
            cost_add(&one, p->req[i].n_computed, 1);
        int64_t one_ns = cost_bound_ns(p->cost, &one);
        limit = MAX(limit, alone ? PLAN_ALONE_TIMES * one_ns : limit_beside(one_ns, target_ns));
    }
    return limit;
}

/* Checks that the step ends in time, except for one small chunk of a single prefill. */
static void check_time(const struct fixture *f) {
    const struct plan *p = &f->p;
    uint32_t n_prefills = 0;
    int64_t limit = p->max_step_ns;
    static const double pace[] = {1, 0.5, 4};
    struct cost_shape decodes = {0};
    bool alone = true;

    for (uint32_t i = 0; i < p->n_running; i++)
        if (p->req[i].n_tokens - p->req[i].n_computed == 1 || p->req[i].last) {
            limit = MIN(limit, (int64_t)((double)p->itl_ns * pace[p->req[i].pace]));
            if (p->req[i].n_rows > 0 || p->req[i].verdict == PLAN_PREEMPT)
                cost_add(&decodes, p->req[i].n_computed, 1);
            alone &= p->req[i].alone && !p->req[i].last;
        }
    limit = limit_of(p, &decodes, alone, limit);
    bool in_time = p->force_chunk || p->force_draft || cost_bound_ns(p->cost, &p->shape) <= limit;
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        const struct plan_req *r = &p->req[i];
        struct cost_shape s = p->shape;

        if (r->n_rows == 0 || r->n_tokens - r->n_computed == 1)
            continue;
        n_prefills++;
        cost_remove(&s, r->n_computed, r->n_rows);
        in_time |= r->n_rows <= PLAN_MIN_CHUNK && cost_bound_ns(p->cost, &s) <= limit;
        in_time |= r->n_rows <= PLAN_MIN_CHUNK && s.pairs == 0;
    }
    cr_assert(in_time || n_prefills == 0);
}

static void draft_something(struct fixture *f, struct rng *r, uint32_t i) {
    float survival = 1;

    f->req[i].n_draft_max = rng_below(r, 17);
    f->req[i].survival = f->survival[i];
    f->req[i].try_draft = rng_below(r, 8) == 0;
    for (uint32_t k = 0; k < 16; k++)
        f->survival[i][k] = survival *= (float)rng_unit(r) * 0.5F + 0.5F;
}

/* Makes several tenants, some of which have more than their share. */
static void mix_tenants(struct fixture *f, struct rng *r) {
    f->p.n_groups = 1 + rng_below(r, 4);
    f->p.group_weight = f->group_weight;
    f->p.reserve_pages = rng_below(r, 30);
    for (uint32_t i = 0; i < 4; i++)
        f->group_weight[i] = 0.125F * (float)(1 << rng_below(r, 8));
    for (uint32_t i = 0; i < f->p.n_running + f->p.n_waiting; i++) {
        f->req[i].group = (uint16_t)rng_below(r, f->p.n_groups);
        f->req[i].pace = (uint8_t)rng_below(r, 3);
        f->req[i].over = rng_below(r, 2);
        f->req[i].begun = rng_below(r, 2);
        f->req[i].leave_seqs = rng_below(r, 4);
        f->req[i].n_beyond = f->req[i].over ? 0 : rng_below(r, 30);
        f->req[i].behind = f->req[i].group == 0;
        f->req[i].starts = f->req[i].behind && rng_below(r, 2);
    }
    f->p.add_ns = rng_below(r, 2) ? f->p.itl_ns / PLAN_ADD_PART : 0;
    f->p.head_start_ns = rng_below(r, (uint32_t)f->p.itl_ns);
}

static void randomize(struct fixture *f, struct rng *r) {
    static const uint32_t sizes[] = {1, 4, 16, 32};
    uint32_t n_running = rng_below(r, 14), n_waiting = rng_below(r, 14), most = 0;

    setup(f, 1 + rng_below(r, 30), 0.05 + rng_unit(r) * 3);
    f->p.page_tokens = sizes[rng_below(r, 4)];
    f->p.max_rows = 1 + rng_below(r, rng_below(r, 2) ? 600 : 20);
    f->p.max_seqs = MAX(n_running, 1 + rng_below(r, 20));
    f->p.force_chunk = rng_below(r, 4) ? 0 : 1 + rng_below(r, 40);
    f->p.turn = rng_next(r) >> 8;
    for (uint32_t i = 0; i < n_running; i++) {
        uint32_t n = 2 + rng_below(r, 300);
        struct plan_req *q = add_running(f, n, rng_below(r, 2) ? n - 1 : rng_below(r, n));
        q->n_target = n + rng_below(r, 100);
        q->alone = rng_below(r, 8) == 0;
        q->stalled = rng_below(r, 8) == 0;
        if (rng_below(r, 2))
            share_prefix(f, q, 1000 * (1 + rng_below(r, 2)),
                         MIN(MAX_HASHES, (n - 1) / f->p.page_tokens));
        most = MAX(most, n);
    }
    for (uint32_t i = 0; i < n_waiting; i++) {
        uint32_t n = 1 + rng_below(r, 300);
        struct plan_req *q = add_waiting(f, n, n + rng_below(r, 400));
        q->alone = rng_below(r, 8) == 0;
        q->n_bypassed = rng_below(r, 6);
        if (rng_below(r, 2))
            share_prefix(f, q, 1000 * (1 + rng_below(r, 2)),
                         MIN(MAX_HASHES, (n - 1) / f->p.page_tokens));
        q->n_hit = rng_below(r, q->n_share / f->p.page_tokens + 1) * f->p.page_tokens;
        q->n_idle = rng_below(r, q->n_hit / f->p.page_tokens + 1);
        most = MAX(most, n);
    }
    for (uint32_t i = 0; i < n_running && rng_below(r, 2); i++)
        draft_something(f, r, i);
    f->p.draft_slower = 1;
    f->p.force_draft = rng_below(r, 8) ? 0 : 1 + rng_below(r, 16);
    /* A pool in which the largest request fits alone, and in which the idle pages exist. */
    uint32_t held = 0;
    for (uint32_t i = 0; i < n_running; i++)
        held += f->req[i].n_pages;
    f->p.n_available = rng_below(r, 3) ? rng_below(r, 40) : 1000;
    if (held + f->p.n_available < plan_pages(&f->p, most))
        f->p.n_available = plan_pages(&f->p, most) - held;
    if (rng_below(r, 2))
        mix_tenants(f, r);
    for (uint32_t i = n_running; i < n_running + n_waiting; i++)
        f->req[i].n_idle = MIN(f->req[i].n_idle, f->p.n_available);
}

Test(plan, keeps_its_limits_and_always_moves) {
    static struct fixture f;

    for (uint64_t seed = 1; seed <= FEWER(20000, 4000); seed++) {
        struct rng r = {seed};
        bool under_way = false;
        uint32_t before[MAX_REQS];

        randomize(&f, &r);
        for (uint32_t i = 0; i < f.p.n_running; i++) {
            struct plan_req *q = &f.req[i];
            q->last = rng_below(&r, 12) == 0;
            if (rng_below(&r, 6) == 0)
                q->n_stored = rng_below(&r, q->n_computed + 1);
            under_way |= q->last || q->n_stored != q->n_computed;
        }
        for (uint32_t i = 0; i < MAX_REQS; i++)
            before[i] = f.req[i].n_bypassed;
        plan_step(&f.p);
        check(&f);
        check_time(&f);
        for (uint32_t i = 0; i < f.p.n_running + f.p.n_waiting; i++)
            cr_assert_leq(f.req[i].n_bypassed, MAX(before[i], f.p.max_bypass), "seed %lu", seed);
        if (!under_way && f.p.n_running + f.p.n_waiting > 0)
            cr_assert(f.p.n_rows + f.p.n_preempted + f.p.n_admitted > 0, "seed %lu: stuck", seed);
    }
}

/* A step that leaves requests out is the step without a head start, without their rows, and less
 * than half as long. */
Test(plan, a_head_start_leaves_out_all_others_or_none) {
    static struct fixture f;
    uint32_t rows[MAX_REQS], n_left_out = 0;

    for (uint64_t seed = 1; seed <= FEWER(20000, 4000); seed++) {
        struct rng r = {seed};
        struct cost_shape own = {0};
        bool starts = false;

        randomize(&f, &r);
        int64_t most_ns = f.p.head_start_ns;
        f.p.head_start_ns = 0;
        plan_step(&f.p);
        int64_t together_ns = cost_bound_ns(f.p.cost, &f.p.shape);
        for (uint32_t i = 0; i < f.p.n_running + f.p.n_waiting; i++) {
            rows[i] = f.req[i].n_rows;
            if (f.req[i].behind && rows[i] > 0)
                cost_add(&own, f.req[i].n_computed, rows[i]);
            starts |= f.req[i].starts && rows[i] > 0;
        }
        cr_assert(!f.p.leaves_out);
        randomize(&f, &(struct rng){seed});
        f.p.head_start_ns = most_ns;
        plan_step(&f.p);
        int64_t own_ns = cost_bound_ns(f.p.cost, &own);
        bool pays = f.p.alone == PLAN_NONE && starts && together_ns > 2 * own_ns;
        cr_assert_eq(f.p.leaves_out, pays && own_ns <= most_ns, "seed %lu", seed);
        n_left_out += f.p.leaves_out;
        for (uint32_t i = 0; i < f.p.n_running + f.p.n_waiting; i++)
            cr_assert_eq(f.req[i].n_rows, f.p.leaves_out && !f.req[i].behind ? 0 : rows[i],
                         "seed %lu, request %u", seed, i);
        check(&f);
    }
    cr_assert_gt(n_left_out, 20);
}

/* Prompts take no longer than is efficient where other tenants may arrive, and beside decode of the
 * same tenant they add a quarter of the target. */
Test(plan, steps_are_short_for_tenants_that_may_arrive) {
    for (int decodes = 0; decodes < 2; decodes++)
        for (int shared = 0; shared < 2; shared++) {
            static struct fixture f;
            struct cost_shape chunk = {0};

            setup(&f, 1, 0.1);
            f.p.max_rows = 4096;
            f.p.add_ns = shared ? f.p.itl_ns / PLAN_ADD_PART : 0;
            if (decodes)
                add_running(&f, 100, 99);
            struct plan_req *r = add_running(&f, 4000, 0);
            plan_step(&f.p);
            int64_t ns = cost_bound_ns(f.p.cost, &f.p.shape);
            cost_add(&chunk, 0, cost_efficient_rows(f.p.cost, 0, f.p.max_rows));
            int64_t efficient_ns = cost_bound_ns(f.p.cost, &chunk);
            cr_assert_gt(r->n_rows, 0);
            if (shared && decodes)
                cr_expect_leq(ns, f.p.itl_ns / 4 + 2000000);
            else if (shared)
                cr_expect_leq(ns, efficient_ns);
            else
                cr_expect_gt(ns, MAX(efficient_ns, f.p.itl_ns / 2));
        }
}

Test(plan, is_a_pure_function) {
    static struct fixture a, b;

    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct rng r = {seed}, q = {seed};

        randomize(&a, &r);
        randomize(&b, &q);
        plan_step(&a.p);
        plan_step(&b.p);
        for (uint32_t i = 0; i < a.p.n_running + a.p.n_waiting; i++) {
            cr_assert_eq(a.req[i].n_rows, b.req[i].n_rows);
            cr_assert_eq(a.req[i].verdict, b.req[i].verdict);
        }
    }
}

Test(plan, decode_is_never_put_off_and_prefill_fills_the_time) {
    static struct fixture f;

    setup(&f, 10, 0.25);
    for (int i = 0; i < 8; i++)
        add_running(&f, 101, 100);
    struct plan_req *longer = add_running(&f, 4000, 0);
    f.p.n_available = 500;
    plan_step(&f.p);
    check(&f);
    for (int i = 0; i < 8; i++)
        cr_assert_eq(f.req[i].n_rows, 1);
    /* 50 ms leave 40 ms for rows of 0.25 ms: 160 rows, minus the margin of the estimate. */
    cr_expect(longer->n_rows > 100 && longer->n_rows <= 152, "%u rows", longer->n_rows);
    cr_expect_eq(longer->n_rows % 16, 0);
}

/* Returns the time of the decode rows, and of one row of @prompt (if not NULL), according to the
 * plan's estimate. */
static int64_t decode_ns(const struct fixture *f, const struct plan_req *prompt) {
    struct cost_shape s = {0};

    if (prompt)
        cost_add(&s, prompt->n_computed, 1);
    for (uint32_t i = 0; i < f->p.n_running; i++)
        if (f->req[i].n_tokens - f->req[i].n_computed == 1)
            cost_add(&s, f->req[i].n_computed, 1);
    return cost_bound_ns(f->p.cost, &s);
}

/* Learns @n steps of a machine of 10 ms per step and 0.25 ms per row, as in setup(): steps of 8
 * decode rows, and steps with a chunk of @chunk rows. */
static void learn(struct fixture *f, int n, uint32_t chunk) {
    struct cost_shape s = {0};

    for (int k = 0; k < 8; k++)
        cost_add(&s, 100, 1);
    if (chunk)
        cost_add(&s, 0, chunk);
    for (int k = 0; k < n; k++)
        cost_learn(&f->cost, &s, (int64_t)((10 + 0.25 * s.rows) * 1e6));
}

Test(plan, the_first_prompt_behind_decode_has_half_of_the_time_that_is_left) {
    static struct fixture f;
    static const struct {
        int decodes, chunks;
        bool half;
    } cases[] = {{0, 0, false}, {3, 0, false}, {7, 0, true}, {7, 3, true}, {7, 4, false}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        setup(&f, 10, 0.25);
        learn(&f, cases[i].decodes, 0);
        learn(&f, cases[i].chunks, 128);
        for (int k = 0; k < 8; k++)
            add_running(&f, 101, 100);
        struct plan_req *prompt = add_running(&f, 4000, 0);
        plan_step(&f.p);
        check(&f);
        int64_t decode = decode_ns(&f, NULL), bound = cost_bound_ns(&f.cost, &f.p.shape);
        int64_t limit = cases[i].half ? (decode + f.p.itl_ns) / 2 : f.p.itl_ns;
        cr_expect_leq(bound, limit, "case %zu", i);
        cr_expect_geq(bound, limit / 10 * 8, "case %zu: %u rows", i, prompt->n_rows);
    }
}

Test(plan, alone_a_prompt_may_use_the_longest_step) {
    static struct fixture f;

    setup(&f, 10, 0.5);
    struct plan_req *r = add_running(&f, 4000, 0);
    plan_step(&f.p);
    cr_expect(r->n_rows > 300 && r->n_rows <= 380, "%u rows", r->n_rows);
}

Test(plan, prompts_have_a_quarter_of_a_step_whose_decode_misses_the_target) {
    static struct fixture f;

    setup(&f, 100, 1);
    for (int i = 0; i < 8; i++)
        add_running(&f, 101, 100);
    struct plan_req *first = add_running(&f, 4000, 0), *second = add_running(&f, 4000, 0);
    plan_step(&f.p);
    check(&f);
    int64_t bound = cost_bound_ns(&f.cost, &f.p.shape);
    cr_expect_leq(bound, decode_ns(&f, first) * 4 / 3);
    cr_expect_geq(bound, decode_ns(&f, first) * 4 / 30 * 9);
    cr_expect_geq(first->n_rows + second->n_rows, 24, "%u, %u", first->n_rows, second->n_rows);
}

Test(plan, prompts_have_almost_half_of_a_step_of_many_targets) {
    static struct fixture f;

    setup(&f, 1000, 10);
    add_running(&f, 101, 100);
    struct plan_req *prompt = add_running(&f, 4000, 0);
    plan_step(&f.p);
    check(&f);
    int64_t bound = cost_bound_ns(&f.cost, &f.p.shape), decode = decode_ns(&f, prompt);
    cr_expect_leq(bound, 2 * (decode - f.p.itl_ns));
    cr_expect_geq(bound, 2 * (decode - f.p.itl_ns) / 10 * 9);
}

Test(plan, prompts_have_a_quarter_of_a_step_however_much_decodes) {
    static struct fixture f;

    for (double fixed_ms = 5; fixed_ms < 120; fixed_ms += 5) {
        setup(&f, fixed_ms, 0.05);
        for (int i = 0; i < 8; i++)
            add_running(&f, 101, 100);
        struct plan_req *prompt = add_running(&f, 8000, 0);
        plan_step(&f.p);
        check(&f);
        int64_t bound = cost_bound_ns(&f.cost, &f.p.shape), decode = decode_ns(&f, NULL);
        cr_expect(f.p.n_rows + f.p.page_tokens > f.p.max_rows || bound - decode > bound / 5,
                  "%g ms", fixed_ms);
        cr_expect(decode > f.p.itl_ns / 4 * 3 || bound <= f.p.itl_ns, "%g ms", fixed_ms);
        cr_expect_leq(bound, MAX(f.p.itl_ns, decode_ns(&f, prompt) * 4 / 3), "%g ms", fixed_ms);
    }
}

Test(plan, a_prompt_alone_fills_the_step_though_one_row_takes_longer_than_it_may) {
    static struct fixture f;

    setup(&f, 300, 1);
    for (uint32_t i = 0; i < 200; i++) { /* learns the time of few rows */
        struct cost_shape s = {0};

        cost_add(&s, 100, 1 + i % 16);
        cost_learn(&f.cost, &s, (int64_t)((300 + s.rows) * 1e6));
    }
    struct plan_req *r = add_running(&f, 4000, 0);
    plan_step(&f.p);
    check(&f);
    cr_expect_geq(r->n_rows, 200);
}

Test(plan, a_tenant_above_its_part_adds_a_quarter_of_what_decode_takes) {
    static struct fixture f;
    static const bool over[] = {false, true};

    setup(&f, 100, 0.5);
    f.p.n_groups = 2;
    f.p.group_weight = f.group_weight;
    f.group_weight[0] = f.group_weight[1] = 1;
    f.p.group_over = over;
    f.p.add_ns = f.p.itl_ns / PLAN_ADD_PART;
    for (int i = 0; i < 16; i++)
        add_running(&f, 101, 100);
    struct plan_req *r = add_running(&f, 4000, 0);
    r->group = 1;
    plan_step(&f.p);
    check(&f);
    cr_expect_geq(r->n_rows, 32); /* rows of 0.5 ms; a quarter of the target is 25 */
    cr_expect_leq(cost_bound_ns(&f.cost, &f.p.shape), decode_ns(&f, NULL) / 4 * 5);
}

Test(plan, a_short_prompt_is_not_stuck_behind_a_long_one) {
    static struct fixture f;

    setup(&f, 10, 0.5);
    for (int i = 0; i < 2; i++)
        add_running(&f, 101, 100);
    struct plan_req *longer = add_running(&f, 60000, 1000), *shorter = add_running(&f, 30, 0);
    f.p.n_available = 4000;
    plan_step(&f.p);
    check(&f);
    cr_expect_eq(shorter->n_rows, 30);
    cr_expect_geq(longer->n_rows, 32);
}

Test(plan, the_last_row_of_a_step_is_for_the_first_prompt) {
    static struct fixture f;

    setup(&f, 5, 0.1);
    cost_init(&f.cost); /* 32 rows are trusted */
    memset(f.cost.a, 0, sizeof(f.cost.a));
    f.cost.a[0] = 30;  /* a step takes 30 ms, */
    f.cost.a[2] = 128; /* each row beyond 16 1 ms */
    f.cost.a[5] = 160; /* and each sequence 10 ms */
    f.cost.error = 0;
    add_running(&f, 2, 1);
    struct plan_req *first = add_running(&f, 100, 0), *second = add_running(&f, 31, 0);
    plan_step(&f.p);
    check(&f);
    cr_expect_gt(first->n_rows, 0, "%u rows of the second", second->n_rows);
    cr_expect_gt(second->n_rows, 0);
}

Test(plan, the_latest_is_preempted_for_the_earliest) {
    static struct fixture f;

    setup(&f, 1, 0.01);
    for (int i = 0; i < 3; i++)
        add_running(&f, 33, 32);
    f.p.n_available = 1;
    plan_step(&f.p);
    check(&f);
    cr_expect_eq(f.req[0].verdict, PLAN_RUN);
    cr_expect_eq(f.req[1].verdict, PLAN_RUN);
    cr_expect_eq(f.req[2].verdict, PLAN_PREEMPT);
    cr_expect_eq(f.p.n_preempted, 1);
}

/* The first prompt is computed in one step, for which it takes the pages of the second. */
Test(plan, a_prompt_that_was_preempted_has_no_rows) {
    static struct fixture f;

    setup(&f, 1, 0.01);
    f.p.page_tokens = 1;
    f.p.n_available = 1;
    add_running(&f, 17, 12)->whole = true;
    add_running(&f, 118, 115);
    plan_step(&f.p);
    check(&f);
    cr_expect_eq(f.req[0].n_rows, 5);
    cr_expect_eq(f.req[1].verdict, PLAN_PREEMPT);
}

/* Prompts of which some are computed in one step, with few pages. */
Test(plan, whole_prompts_take_no_page_twice) {
    struct rng rng = {12};
    uint32_t n_preempted = 0;

    for (int round = 0; round < 2000; round++) {
        struct fixture f;

        setup(&f, 1, rng_below(&rng, 2) ? 0.01 : 5);
        f.p.page_tokens = 1 + rng_below(&rng, 8);
        f.p.force_chunk = rng_below(&rng, 4) ? 0 : 7;
        f.p.n_available = rng_below(&rng, 20);
        for (uint32_t n = 1 + rng_below(&rng, 6); n > 0; n--) {
            uint32_t n_tokens = 2 + rng_below(&rng, 60);

            add_running(&f, n_tokens, rng_below(&rng, n_tokens))->whole = rng_below(&rng, 2);
        }
        plan_step(&f.p);
        check(&f);
        n_preempted += f.p.n_preempted > 0;
    }
    cr_expect_gt(n_preempted, 100);
}

Test(plan, the_lowest_waits_and_keeps_its_pages) {
    static struct fixture f;

    setup(&f, 1, 0.01);
    add_running(&f, 30, 29); /* needs no page */
    add_running(&f, 33, 32);
    f.p.n_available = 0;
    plan_step(&f.p);
    cr_expect_eq(f.req[0].verdict, PLAN_RUN);
    cr_expect_eq(f.req[1].verdict, PLAN_WAIT_PAGES);
}

Test(plan, those_who_share_everything_do_not_wait_for_each_other) {
    static struct fixture f;

    setup(&f, 1, 0.01);
    for (int i = 0; i < 2; i++)
        add_running(&f, 33, 32)->n_exclusive = 0;
    f.p.n_available = 0;
    plan_step(&f.p);
    cr_expect_eq(f.p.n_rows, 0);
    cr_expect_eq(f.req[1].verdict, PLAN_PREEMPT);
}

/* A step in flight may free a page, or end a request. */
Test(plan, those_in_flight_keep_what_they_share) {
    static struct fixture f;

    for (int last = 0; last < 2; last++) {
        setup(&f, 1, 0.01);
        for (int i = 0; i < 2; i++)
            add_running(&f, 33, 32)->n_exclusive = 0;
        f.req[0].last = last;
        f.req[0].n_stored -= !last;
        f.p.n_available = 0;
        plan_step(&f.p);
        cr_expect_eq(f.p.n_preempted, 0);
    }
}

Test(plan, the_last_pages_are_taken) {
    static struct fixture f;

    for (uint32_t n_computed = 0; n_computed <= 32; n_computed += 16) {
        setup(&f, 1, 0.01);
        add_running(&f, 48, n_computed);
        f.p.n_available = plan_pages(&f.p, 48 - n_computed);
        plan_step(&f.p);
        check(&f);
        cr_expect_eq(f.req[0].n_rows, 48 - n_computed);
    }
    setup(&f, 1, 0.01);
    f.p.whole = true;
    add_running(&f, 48, 0);
    f.p.n_available = 3;
    plan_step(&f.p);
    check(&f);
    cr_expect_eq(f.req[0].n_rows, 48);
}

Test(plan, admission_is_by_full_need) {
    static struct fixture f;

    setup(&f, 1, 0.01);
    f.p.n_available = 20;
    add_running(&f, 100, 99)->n_target = 164; /* holds 7 pages, needs 4 more */
    struct plan_req *big = add_waiting(&f, 100, 300), *small = add_waiting(&f, 100, 200);
    struct plan_req *late = add_waiting(&f, 16, 64);
    plan_step(&f.p);
    check(&f);
    cr_expect(!big->admitted && big->verdict == PLAN_WAIT_PAGES);
    cr_expect(small->admitted);
    cr_expect(!late->admitted);
    cr_expect_eq(big->n_bypassed, 1);
}

Test(plan, nobody_is_overtaken_more_than_max_bypass_times) {
    static struct fixture f;
    uint32_t n_overtaken = 0;

    for (int step = 0; step < 20; step++) {
        uint32_t bypassed = step == 0 ? 0 : f.req[1].n_bypassed;

        setup(&f, 1, 0.01);
        f.p.n_available = 40;
        add_running(&f, 100, 99)->n_target = 200;
        add_waiting(&f, 600, 800)->n_bypassed = bypassed;
        for (int i = 0; i < 3; i++)
            add_waiting(&f, 16, 32);
        plan_step(&f.p);
        n_overtaken += f.p.n_admitted;
    }
    cr_expect_eq(n_overtaken, f.p.max_bypass);
    cr_expect_eq(f.req[1].n_bypassed, f.p.max_bypass);
    cr_expect_eq(f.req[2].verdict, PLAN_WAIT_TURN);
}

Test(plan, alone_in_the_pool_the_estimate_does_not_count) {
    static struct fixture f;

    setup(&f, 1, 0.01);
    f.p.n_available = 10;
    struct plan_req *r = add_waiting(&f, 100, 5000);
    plan_step(&f.p);
    cr_expect(r->admitted);
    cr_expect_eq(r->n_rows, 100);
}

Test(plan, idle_pages_that_are_found_are_no_longer_free) {
    static struct fixture f;

    setup(&f, 1, 0.01);
    f.p.n_available = 5;
    struct plan_req *r = add_waiting(&f, 160, 160);
    r->n_share = 144;
    r->n_hit = 64;
    r->n_idle = 4;
    plan_step(&f.p);
    cr_expect(r->admitted);
    cr_expect_eq(r->n_rows, 16);
}

Test(plan, a_follower_waits_for_its_leader) {
    static struct fixture f;

    setup(&f, 1, 0.01);
    struct plan_req *a = add_running(&f, 100, 0), *b = add_running(&f, 100, 0);
    struct plan_req *c = add_running(&f, 100, 0);
    share_prefix(&f, a, 1000, 6);
    share_prefix(&f, b, 1000, 6);
    share_prefix(&f, c, 2000, 6);
    plan_step(&f.p);
    cr_expect_eq(a->n_rows, 96);
    cr_expect_eq(b->verdict, PLAN_FOLLOW);
    cr_expect_eq(c->n_rows, 100);
}

/* A leader's prompt ends in the same step as those of its followers, unless something decodes,
 * which makes steps short in any case, or the page that they need is still being computed. */
Test(plan, a_leader_stops_where_its_last_follower_leaves_it) {
    static const uint32_t expect[] = {80 - 32, 68, 68, 64 - 32};
    static struct fixture f;

    for (int i = 0; i < 4; i++) {
        setup(&f, 1, 0.01);
        struct plan_req *a = add_running(&f, 100, 32), *b = add_running(&f, 100, 32);
        struct plan_req *c = add_running(&f, 100, 32);
        if (i == 1)
            add_running(&f, 101, 100);
        if (i == 2)
            a->n_stored = 16;
        share_prefix(&f, a, 1000, 6);
        share_prefix(&f, b, 1000, 3);
        share_prefix(&f, c, 1000, i == 3 ? 6 : 5);
        if (i == 3)
            c->n_share = 64; /* computes the rest itself */
        plan_step(&f.p);
        cr_expect(b->verdict == PLAN_FOLLOW && c->verdict == PLAN_FOLLOW, "case %d", i);
        cr_expect_eq(a->n_rows, expect[i], "case %d: %u rows", i, a->n_rows);
    }
}

Test(plan, who_is_ahead_leads_and_who_is_stalled_does_not) {
    static struct fixture f;

    for (int stalled = 0; stalled < 2; stalled++) {
        setup(&f, 1, 0.01);
        struct plan_req *a = add_running(&f, 100, 16), *b = add_running(&f, 100, 32);
        b->n_stored = 16;
        b->stalled = stalled;
        share_prefix(&f, a, 1000, 6);
        share_prefix(&f, b, 1000, 6);
        plan_step(&f.p);
        cr_expect_eq(a->verdict, stalled ? PLAN_RUN : PLAN_FOLLOW);
        cr_expect_eq(b->n_rows, 68);
    }
}

Test(plan, a_quarantined_request_has_its_step_for_itself) {
    static struct fixture f;
    uint32_t n_alone = 0;

    for (uint64_t turn = 0; turn < 16; turn++) {
        setup(&f, 1, 0.01);
        add_running(&f, 101, 100);
        add_running(&f, 101, 100)->alone = true;
        f.p.turn = turn;
        plan_step(&f.p);
        check(&f);
        cr_assert_eq(f.p.n_seqs, 1);
        n_alone += f.p.alone == 1;
    }
    cr_expect_eq(n_alone, 4);
}

Test(plan, quarantined_requests_take_turns) {
    static struct fixture f;

    for (int others = 0; others < 2; others++) {
        uint32_t n[2] = {0};

        for (uint64_t turn = 0; turn < 24 * PLAN_ALONE_TURNS; turn++) {
            setup(&f, 1, 0.01);
            for (int i = 0; i < 2; i++)
                add_running(&f, 101, 100)->alone = true;
            if (others)
                add_running(&f, 101, 100);
            f.p.turn = turn;
            plan_step(&f.p);
            check(&f);
            if (f.p.alone != PLAN_NONE)
                n[f.p.alone]++;
        }
        for (int i = 0; i < 2; i++)
            cr_expect_eq(n[i], others ? 12 : 12 * PLAN_ALONE_TURNS, "%d: %u", i, n[i]);
    }
}

Test(plan, rows_go_round_when_not_all_fit) {
    static struct fixture f;
    uint32_t n[10] = {0};

    for (uint64_t turn = 0; turn < 40; turn++) {
        setup(&f, 1, 0.01);
        f.p.max_rows = 4;
        for (int i = 0; i < 10; i++)
            add_running(&f, 31, 30);
        f.p.turn = turn;
        plan_step(&f.p);
        cr_assert_eq(f.p.n_rows, 4);
        for (int i = 0; i < 10; i++)
            n[i] += f.req[i].n_rows;
    }
    for (int i = 0; i < 10; i++)
        cr_expect_eq(n[i], 16);
}

Test(plan, forced_chunks_are_exact) {
    static struct fixture f;

    setup(&f, 100, 10);
    f.p.force_chunk = 7;
    add_running(&f, 100, 3);
    add_running(&f, 8, 3);
    plan_step(&f.p);
    cr_expect_eq(f.req[0].n_rows, 7);
    cr_expect_eq(f.req[1].n_rows, 5);
}

/* ---- tenants ---- */

Test(plan, time_for_prefill_is_divided_by_weight) {
    static struct fixture f;
    uint32_t rows[2] = {0};

    setup(&f, 10, 0.25);
    f.p.n_available = 5000;
    f.p.n_groups = 2;
    f.p.group_weight = f.group_weight;
    f.group_weight[0] = 1, f.group_weight[1] = 3;
    add_running(&f, 101, 100);
    for (uint16_t i = 0; i < 8; i++) /* the first tenant has more prompts, which come first */
        add_running(&f, 4000, 0)->group = i < 7 ? 0 : 1;
    plan_step(&f.p);
    check(&f);
    for (uint32_t i = 1; i < 9; i++)
        rows[f.req[i].group] += f.req[i].n_rows;
    cr_expect_gt(rows[0], 16);
    cr_expect_gt(rows[1], 5 * rows[0] / 2, "%u and %u rows", rows[0], rows[1]);
    cr_expect_lt(rows[1], 4 * rows[0], "%u and %u rows", rows[0], rows[1]);
}

Test(plan, where_rows_are_few_the_first_tenant_has_them) {
    struct fixture f;

    setup(&f, 5, 0.1);
    f.p.max_rows = 1;
    f.p.n_groups = 3;
    f.p.group_weight = f.group_weight;
    for (uint16_t i = 0; i < 3; i++) {
        f.group_weight[i] = 1;
        add_running(&f, 400, 0)->group = (uint16_t)(2 - i); /* the first tenant is last in order */
    }
    plan_step(&f.p);
    cr_expect(f.req[2].n_rows == 1 && f.p.n_rows == 1);
}

Test(plan, what_a_tenant_does_not_need_goes_to_the_other) {
    static struct fixture f;

    setup(&f, 10, 0.25);
    f.p.n_available = 5000;
    f.p.n_groups = 2;
    f.p.group_weight = f.group_weight;
    f.group_weight[0] = 100, f.group_weight[1] = 1;
    add_running(&f, 101, 100);
    struct plan_req *small = add_running(&f, 20, 0), *large = add_running(&f, 4000, 0);
    large->group = 1;
    plan_step(&f.p);
    check(&f);
    cr_expect_eq(small->n_rows, 20);
    cr_expect_gt(large->n_rows, 100);
}

Test(plan, the_last_sequences_and_pages_are_for_those_below_their_part) {
    static struct fixture f;

    setup(&f, 10, 0.25);
    f.p.max_seqs = 8;
    for (int i = 0; i < 6; i++)
        add_running(&f, 101, 100);
    struct plan_req *flood = add_waiting(&f, 30, 30), *other = add_waiting(&f, 30, 30);
    flood->leave_seqs = 2;
    other->leave_seqs = 0;
    plan_step(&f.p);
    check(&f);
    cr_expect_eq(flood->verdict, PLAN_WAIT_SHARE);
    cr_expect(other->admitted);
    cr_expect_eq(flood->n_bypassed, 0, "it is not its turn");

    flood->leave_seqs = 0;
    flood->over = true;
    f.p.reserve_pages = 10;
    f.p.n_available = 11;
    plan_step(&f.p);
    check(&f);
    cr_expect_eq(flood->verdict, PLAN_WAIT_SHARE);
    cr_expect(other->admitted);
}

/* A tenant that was alone may have been promised all pages. */
Test(plan, pages_promised_beyond_a_share_may_be_taken) {
    struct fixture f;

    setup(&f, 5, 0.1);
    f.p.n_available = 20;
    for (int i = 0; i < 3; i++)
        add_running(&f, 101, 100)->n_target = 192; /* has 7 pages, and is promised 5 */
    struct plan_req *r = add_waiting(&f, 100, 160);
    plan_step(&f.p);
    check(&f);
    cr_expect_eq(r->verdict, PLAN_WAIT_PAGES);
    r->n_beyond = 4;
    plan_step(&f.p);
    cr_expect_eq(r->verdict, PLAN_WAIT_PAGES);
    r->n_beyond = 5;
    plan_step(&f.p);
    check(&f);
    cr_expect(r->admitted);
}

/* A request of the tenant that is expected waits for the end of the running step. */
Test(plan, while_a_tenant_is_expected_rows_take_turns) {
    static struct fixture f;
    uint32_t n_rows[25] = {0};
    struct cost_shape all;

    setup(&f, 1, 0.5);
    for (int i = 0; i < 24; i++)
        add_running(&f, 101, 100);
    add_running(&f, 101, 100)->behind = true;
    plan_step(&f.p);
    cr_assert_eq(f.p.n_rows, 25);
    all = f.p.shape;
    f.p.expects = true;
    for (int k = 0; k < 5; k++) {
        f.p.turn++;
        plan_step(&f.p);
        check(&f);
        cr_expect_lt(cost_expect_ns(f.p.cost, &f.p.shape), cost_expect_ns(f.p.cost, &all) / 2);
        cr_expect_gt(f.p.n_rows * cost_expect_ns(f.p.cost, &all) * 4,
                     3 * 25 * cost_expect_ns(f.p.cost, &f.p.shape), "their rate is kept");
        for (int i = 0; i < 25; i++)
            n_rows[i] += f.req[i].n_rows;
    }
    uint32_t least = UINT32_MAX, most = 0;
    for (int i = 0; i < 24; i++) {
        least = MIN(least, n_rows[i]);
        most = MAX(most, n_rows[i]);
    }
    cr_expect(least > 0 && most < 5, "%u to %u of 5", least, most);
    cr_expect_eq(n_rows[24], 5, "one that is behind waits for nobody");
}

/* In steps of two rows a prompt would take many times as long. */
Test(plan, while_a_tenant_is_expected_a_prompt_alone_has_its_smallest_chunk) {
    static struct fixture f;

    setup(&f, 1, 1);
    struct plan_req *first = add_running(&f, 26, 0);
    f.p.expects = true;
    plan_step(&f.p);
    check(&f);
    cr_expect_eq(first->n_rows, PLAN_MIN_CHUNK);
    add_running(&f, 101, 100);
    plan_step(&f.p);
    check(&f);
    cr_expect_lt(first->n_rows, PLAN_MIN_CHUNK, "beside decode it is cut");
}

/* Virtual time bounds how long a tenant waits that is ahead. */
Test(plan, a_tenant_that_is_behind_does_not_wait_for_who_is_due) {
    struct fixture f;

    setup(&f, 5, 0.1);
    f.p.n_available = 5;
    add_running(&f, 101, 100);
    struct plan_req *due = add_waiting(&f, 300, 300), *other = add_waiting(&f, 30, 30);
    due->n_bypassed = 4;
    plan_step(&f.p);
    cr_expect_eq(other->verdict, PLAN_WAIT_TURN);
    other->behind = true;
    plan_step(&f.p);
    cr_expect(other->admitted);
    cr_expect_eq(due->n_bypassed, 4);
    due->behind = true;
    plan_step(&f.p);
    cr_expect_eq(other->verdict, PLAN_WAIT_TURN);
}

Test(plan, the_strictest_pace_of_those_that_decode_counts) {
    static struct fixture f;
    static const uint8_t pace[3] = {PLAN_PACE_SLOW, PLAN_PACE_NORMAL, PLAN_PACE_QUICK};
    uint32_t rows[3];

    for (int k = 0; k < 3; k++) {
        setup(&f, 5, 0.25);
        f.p.n_available = 5000;
        for (int i = 0; i <= k; i++)
            add_running(&f, 101, 100)->pace = pace[i];
        struct plan_req *prompt = add_running(&f, 4000, 0);
        plan_step(&f.p);
        check_time(&f);
        rows[k] = prompt->n_rows;
    }
    cr_expect(rows[0] > 2 * rows[1] && rows[1] > 3 * rows[2] / 2, "%u, %u, %u rows", rows[0],
              rows[1], rows[2]);
}

/* Otherwise requests would be preempted and admitted in turn, while none gets rows. */
Test(plan, for_a_tenant_without_a_slot_one_gives_way_in_a_step) {
    struct fixture f;
    setup(&f, 5, 0.1);
    for (int i = 0; i < 3; i++)
        add_running(&f, 40, 0)->victim = true;
    f.p.fair_preempt = true;
    plan_step(&f.p);
    cr_expect_eq(f.p.n_preempted, 1);
    cr_expect(f.p.fair_preempted && f.req[2].verdict == PLAN_PREEMPT);
    cr_expect_eq(f.p.n_rows, 0, "the waiting one is admitted before the next step");
    f.p.n_running = 2;
    plan_step(&f.p);
    cr_expect_eq(f.p.n_preempted, 0);
    cr_expect_gt(f.p.n_rows, 0);
}

Test(plan, whose_client_has_tokens_gives_way_last_and_alone) {
    static struct fixture f;

    setup(&f, 5, 0.1);
    for (int i = 0; i < 6; i++) { /* the last two decode */
        struct plan_req *q = add_running(&f, 101, i < 4 ? 40 : 100);

        q->victim = true;
        q->begun = i >= 4;
    }
    f.p.fair_preempt = true;
    plan_step(&f.p);
    cr_expect_eq(f.p.n_preempted, 1);
    cr_expect_eq(f.req[3].verdict, PLAN_PREEMPT);
    for (int i = 0; i < 4; i++)
        f.req[i].begun = true;
    f.p.fair_preempted = false;
    plan_step(&f.p);
    cr_expect_eq(f.p.n_preempted, 0, "none is preempted for it");
    f.p.fair_preempt_begun = true;
    plan_step(&f.p);
    cr_expect_eq(f.p.n_preempted, 1);
    cr_expect_eq(f.req[5].verdict, PLAN_PREEMPT);
}

/* Prompts of a tenant that has had more than its share add at most add_ns to a step, since that
 * time delays a tenant that arrives now. */
Test(plan, prompts_of_those_with_more_add_only_so_much_to_a_step) {
    static struct fixture f;
    static float part[3] = {1, 0.5F, 1};
    static bool over[3] = {false, false, true};

    for (uint16_t group = 0; group < 3; group++) {
        setup(&f, 5, 0.1);
        f.p.n_available = 5000;
        f.p.n_groups = 3;
        f.p.group_weight = f.group_weight;
        f.p.group_part = part;
        f.p.group_over = over;
        f.group_weight[0] = f.group_weight[1] = f.group_weight[2] = 1;
        f.p.add_ns = 10000000;
        /* Beside its own decode alone, a tenant adds as little as one above its share. */
        add_running(&f, 101, 100)->group = group == 0 ? 2 : group;
        add_running(&f, 4000, 0)->group = group;
        plan_step(&f.p);
        check_time(&f);
        struct cost_shape decode = {0};
        cost_add(&decode, 100, 1);
        int64_t added = cost_bound_ns(&f.cost, &f.p.shape) - cost_bound_ns(&f.cost, &decode);
        cr_expect_gt(added, 7000000);
        cr_expect(group == 0 ? added > 30000000 : added <= 10000000);
    }
}

/* A tenant that is far ahead gets its share of a step in which a tenant decodes that has had no
 * more than its own. */
Test(plan, prompts_of_those_with_more_leave_time_to_those_who_decode) {
    static struct fixture f;
    static float part[2] = {0.5F};
    uint32_t rows[2];

    for (int even = 0; even < 2; even++) {
        setup(&f, 5, 0.1);
        f.p.n_available = 5000;
        f.p.n_groups = 2;
        f.p.group_weight = f.group_weight;
        f.p.group_part = part;
        part[1] = even ? 1 : 0.9F;
        f.group_weight[0] = f.group_weight[1] = 1;
        add_running(&f, 101, 100)->group = 1;
        add_running(&f, 4000, 0)->group = 0;
        plan_step(&f.p);
        check_time(&f);
        rows[even] = f.req[1].n_rows;
    }
    cr_expect_lt(rows[1], rows[0]);
}

/* Prompts that are computed whole have all rows or none, and the oldest one has its rows however
 * slow a step is and whatever waits. */
Test(plan, whole_prompts_are_never_cut) {
    struct rng rng = {11};

    for (int round = 0; round < 300; round++) {
        struct fixture f;
        uint32_t n = 1 + rng_below(&rng, 20), ahead = 0;

        setup(&f, 1, rng_below(&rng, 2) ? 0.01 : 5);
        f.p.whole = true;
        f.p.max_rows = 64 + rng_below(&rng, 449);
        f.p.force_chunk = rng_below(&rng, 4) ? 0 : 7;
        for (uint32_t i = 0; i < n; i++)
            finish_req(&f, add_running(&f, 2 + rng_below(&rng, f.p.max_rows - 1), 0));
        plan_step(&f.p);
        check(&f);
        for (uint32_t i = 0; i < n; i++) {
            cr_expect(f.req[i].n_rows == 0 || f.req[i].n_rows == f.req[i].n_tokens, "%d: %u of %u",
                      round, f.req[i].n_rows, f.req[i].n_tokens);
            ahead += f.req[i].n_rows;
        }
        cr_expect_eq(f.req[0].n_rows, f.req[0].n_tokens, "%d: the oldest waits", round);
        cr_expect_eq(ahead, f.p.n_rows);
    }
}
