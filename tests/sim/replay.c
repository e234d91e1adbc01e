/*
 * replay - runs agents in a closed loop: the next turn begins when the last one has ended and the
 * tool has run, so an agent that is served slowly also sends fewer requests. An agent is a job: it
 * ends with its last turn.
 *
 * Device time is divided among the sequences of a step by the time that each adds to it; the fixed
 * time is divided evenly. A tenant that always has a request without its first token could use more
 * than it gets: in each second with at least two such tenants, Jain's index of (device time /
 * weight) is computed over them.
 */

#include "tests/sim/replay.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENANTS 64u
#define AGENTS 65536u
#define WINDOW_NS INT64_C(1000000000)
#define BEGIN_NS INT64_C(1000000000) /* sim_init() starts the clock here */

struct samples {
    float *v;
    uint32_t n, cap;
};

struct tenant {
    const char *name;
    bool here;
    double weight;
    uint32_t n_requests, n_jobs, n_jobs_all;
    /* number of requests without a first token */
    uint32_t n_hungry;
    uint64_t n_prompt, n_cached, n_out;
    struct samples ttft, itl, worst, job;
    /* device time: in all, and in this window */
    double had_ns, window_ns;
    /* it had no waiting request at some time in this window */
    bool was_content;
};

/* An agent, or a sub-agent of one. */
struct agent {
    const struct trace_group *g;
    struct agent *parent;
    uint64_t session;
    /* n_subs: number of sub-agents for which it waits */
    uint32_t n_turns, turn, n_subs;
    /* time of its next turn, and that at which it leaves this turn; INT64_MAX: none */
    int64_t begin_ns, due_ns, leave_ns;
    /* time at which it sent this turn, before the step that was running then had ended */
    int64_t asked_ns;
    /* client of its last turn */
    const struct sim_client *client;
    /* its own generator, so that all policies serve the same turns */
    struct rng rng;
};

struct replay {
    struct trace t;
    struct sim sim;
    struct tenant tenant[TENANTS];
    /* [AGENTS] */
    struct agent *agent;
    uint32_t n_agents, n_jobs_left;
    /* [max_clients] agent of each client */
    struct agent **of;
    struct rng rng;
    bool fcfs;
    int64_t window_end_ns;
    struct samples jain;
    uint64_t n_launched, n_needed;
};

static struct replay replay;

const char replay_policies[] = "weft, fcfs, rows, no-sharing, no-speculation, no-pins";

/* ---- numbers ---- */

static void sample(struct samples *s, double v) {
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 256;
        s->v = realloc(s->v, s->cap * sizeof(*s->v));
        if (!s->v)
            abort();
    }
    s->v[s->n++] = (float)v;
}

static int by_value(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;

    return x < y ? -1 : x > y;
}

static double percentile(struct samples *s, double p) {
    if (s->n == 0)
        return NAN;
    qsort(s->v, s->n, sizeof(*s->v), by_value);
    return (double)s->v[(uint32_t)(p / 100 * (s->n - 1) + 0.5)];
}

static double mean(const struct samples *s) {
    double sum = 0;

    for (uint32_t i = 0; i < s->n; i++)
        sum += (double)s->v[i];
    return s->n > 0 ? sum / s->n : NAN;
}

static uint32_t draw(struct rng *rng, struct range r) {
    return r.low + rng_below(rng, r.high - r.low + 1);
}

static struct tenant *tenant_of(struct replay *p, const struct trace_group *g) {
    return &p->tenant[g->tenant.low % TENANTS];
}

/* ---- agents ---- */

static struct agent *new_agent(struct replay *p, const struct trace_group *g, struct rng rng,
                               int64_t begin_ns) {
    if (p->n_agents == AGENTS) {
        fprintf(stderr, "weft-sim: more than %u agents\n", AGENTS);
        exit(2);
    }
    struct agent *a = &p->agent[p->n_agents++];

    *a = (struct agent){
        .g = g, .session = p->n_agents, .begin_ns = begin_ns, .due_ns = begin_ns, .rng = rng};
    a->leave_ns = INT64_MAX;
    a->n_turns = draw(&a->rng, g->turns);
    return a;
}

static void begin_agents(struct replay *p, int64_t without) {
    for (uint32_t i = 0; i < p->t.n_groups; i++) {
        const struct trace_group *g = &p->t.group[i];
        struct tenant *t = tenant_of(p, g);

        if (g->tenant.low == without)
            continue;
        if (!t->here)
            t->name = g->name;
        t->here = true;
        t->weight = g->weight.low / 1000.0;
        for (uint32_t n = draw(&p->rng, g->count); n > 0; n--) {
            struct rng own = {rng_next(&p->rng)};

            new_agent(p, g, own, BEGIN_NS + draw(&p->rng, g->start) * INT64_C(1000000));
            p->n_jobs_left++;
            t->n_jobs_all++;
        }
    }
}

static struct sim_client *make_turn(struct replay *p, struct agent *a) {
    const struct trace_group *g = a->g;
    uint32_t n_system = draw(&a->rng, g->system), n_out = draw(&a->rng, g->output);

    if (a->client)
        return sim_client_after(&p->sim, a->client, MAX(draw(&a->rng, g->more), 1), n_out);
    return sim_client(&p->sim, n_system + draw(&a->rng, g->first), (uint32_t)(g - p->t.group),
                      n_system, n_out);
}

static void submit_turn(struct replay *p, struct agent *a) {
    const struct trace_group *g = a->g;
    struct sim_client *c = make_turn(p, a);
    struct tenant *t = tenant_of(p, g);

    c->m.flags = 0;
    c->m.isolation_key[0] = (uint8_t)g->tenant.low;
    if (!p->fcfs) {
        c->m.tenant = g->tenant.low;
        c->m.session = a->session;
        c->m.weight_milli = g->weight.low;
        c->m.class = (uint8_t)g->class.low;
        c->m.priority = (int16_t)g->priority.low;
    }
    a->asked_ns = a->due_ns;
    a->due_ns = INT64_MAX;
    if (g->leave.high > 0)
        a->leave_ns = a->asked_ns + draw(&a->rng, g->leave) * INT64_C(1000000);
    a->client = c;
    a->turn++;
    p->of[c - p->sim.client] = a;
    t->n_hungry++;
    t->n_requests++;
    t->n_prompt += c->m.n_prompt;
    sim_submit(&p->sim, c, 0);
}

static void plan_next(struct replay *p, struct agent *a) {
    const struct trace_group *g = a->g;
    bool thinks = g->think_every.low > 0 && rng_below(&a->rng, g->think_every.low) == 0;

    a->due_ns = p->sim.clock.ns + draw(&a->rng, thinks ? g->think : g->pause) * INT64_C(1000000);
}

/* Begins sub-agents like the agents of the group: they share the system prompt. */
static bool begin_subs(struct replay *p, struct agent *a) {
    const struct trace_group *g = a->g;

    if (a->parent || g->subs_every.low == 0 || rng_below(&a->rng, g->subs_every.low) > 0)
        return false;
    for (uint32_t n = draw(&a->rng, g->subs); n > 0; n--) {
        struct rng own = {rng_next(&a->rng)};
        struct agent *sub = new_agent(p, g, own, p->sim.clock.ns);

        sub->parent = a;
        sub->n_turns = MAX(draw(&sub->rng, g->sub_turns), 1);
        a->n_subs++;
    }
    return a->n_subs > 0;
}

static void end_agent(struct replay *p, struct agent *a) {
    struct tenant *t = tenant_of(p, a->g);

    if (a->parent) {
        if (--a->parent->n_subs == 0)
            plan_next(p, a->parent);
        return;
    }
    p->n_jobs_left--;
    t->n_jobs++;
    sample(&t->job, (double)(p->sim.clock.ns - a->begin_ns) / 1e6);
}

/* Reports the end as the front does: all turns except the last one called a tool. */
static void tell_end(struct sim *s, const struct sim_client *c, const struct agent *a) {
    struct turn_end end = {.id = c->m.id, .session = c->m.session, .calls = a->turn < a->n_turns};

    sched_turn_end(s->sched, &end);
}

static void turn_ended(struct sim *s, struct sim_client *c) {
    struct replay *p = &replay;
    struct agent *a = p->of[c - s->client];
    struct tenant *t = tenant_of(p, a->g);

    t->n_hungry -= c->n_got == 0;
    t->n_cached += c->n_cached;
    t->n_out += c->n_got;
    if (c->finish != FINISH_LENGTH)
        return;
    a->leave_ns = INT64_MAX;
    tell_end(s, c, a);
    p->n_needed += c->m.n_prompt - c->n_cached + c->n_got - 1;
    sample(&t->ttft, (double)(c->first_ns - a->asked_ns) / 1e6);
    if (c->worst_ns > 0)
        sample(&t->worst, (double)c->worst_ns / 1e6);
    if (a->turn == a->n_turns)
        end_agent(p, a);
    else if (!begin_subs(p, a))
        plan_next(p, a);
}

static void token_heard(struct sim *s, struct sim_client *c, int64_t since_ns) {
    struct tenant *t = tenant_of(&replay, replay.of[c - s->client]->g);

    if (since_ns > 0)
        sample(&t->itl, (double)since_ns / 1e6);
    else
        t->n_hungry--;
}

/* ---- the device ---- */

static void charge(struct replay *p, const struct batch *b) {
    const struct sim_opts *o = &p->t.sim;
    double rows = b->b.n_rows,
           row = (double)MAX(o->machine.read_ns, o->row_ns * b->b.n_rows) / rows;

    for (uint32_t i = 0; i < b->b.n_seqs; i++) {
        const struct batch_item *it = &b->item[i];
        double n = it->n_rows, pairs = n < 2 ? 0 : n * it->pos0 + n * (n + 1) / 2;
        double ns = (double)o->step_ns / b->b.n_seqs + (double)o->machine.seq_ns + row * n +
                    (double)o->key_ns * (it->pos0 + n) + o->machine.pair_ns * pairs;
        struct tenant *t = tenant_of(p, p->of[it->request->id - 1]->g);

        t->had_ns += ns;
        t->window_ns += ns;
    }
}

static void end_window(struct replay *p) {
    double sum = 0, squares = 0;
    uint32_t n = 0;

    for (uint32_t i = 0; i < TENANTS; i++) {
        struct tenant *t = &p->tenant[i];
        double x = t->window_ns / t->weight;

        if (t->here && !t->was_content) {
            sum += x;
            squares += x * x;
            n++;
        }
        t->window_ns = 0;
        t->was_content = t->n_hungry == 0;
    }
    if (n > 1 && squares > 0)
        sample(&p->jain, sum * sum / (n * squares));
}

/* Called after each step, while its requests still exist. */
static void stepped(struct sim *s) {
    struct replay *p = &replay;
    const struct sched *d = s->sched;

    if (d->n_launched > p->n_launched)
        charge(p, &d->batch[d->n_launched % SCHED_DEPTH_MAX]);
    p->n_launched = d->n_launched;
    for (uint32_t i = 0; i < TENANTS; i++)
        p->tenant[i].was_content |= p->tenant[i].n_hungry == 0;
    for (; s->clock.ns >= p->window_end_ns; p->window_end_ns += WINDOW_NS)
        end_window(p);
}

/* ---- the run ---- */

/* Cancels the turn of an agent that leaves. Its next turn is due after a pause and begins anew. */
static void leave_turn(struct replay *p, struct agent *a) {
    sim_cancel(&p->sim, &p->sim.client[a->client - p->sim.client]);
    a->client = NULL;
    a->leave_ns = INT64_MAX;
    if (a->turn == a->n_turns)
        end_agent(p, a);
    else
        plan_next(p, a);
}

/* Submits the turns that are due and cancels those whose client leaves. Returns the time of the
 * next one. */
static int64_t submit_due(struct replay *p) {
    int64_t next = INT64_MAX;

    for (uint32_t i = 0; i < p->n_agents; i++) {
        struct agent *a = &p->agent[i];

        if (a->leave_ns <= p->sim.clock.ns)
            leave_turn(p, a);
        if (a->due_ns <= p->sim.clock.ns)
            submit_turn(p, a);
        next = MIN(next, MIN(a->due_ns, a->leave_ns));
    }
    return next;
}

static void stop(struct replay *p) {
    for (uint32_t i = 0; i < p->n_agents; i++)
        p->agent[i].due_ns = INT64_MAX;
    for (uint32_t i = 0; i < p->sim.n_live; i++)
        sim_cancel(&p->sim, &p->sim.client[p->sim.live[i]]);
    sim_run(&p->sim, 8);
}

static void run(struct replay *p) {
    int64_t end = p->t.until_ms ? BEGIN_NS + p->t.until_ms * INT64_C(1000000) : INT64_MAX;
    int64_t next = 0;

    while (p->n_jobs_left > 0 && p->sim.clock.ns < end) {
        if (next <= p->sim.clock.ns || p->sim.n_live == 0)
            next = submit_due(p);
        uint32_t n_live = p->sim.n_live;
        if (sim_step(&p->sim) == SCHED_NO_STEP)
            p->sim.clock.ns = MAX(p->sim.clock.ns, MIN(next, end));
        if (p->sim.n_live < n_live)
            next = 0; /* agents whose turn has ended have a new due time */
    }
    if (p->n_jobs_left > 0)
        stop(p);
}

/* ---- the report ---- */

static void report_tenant(struct tenant *t, double all_ns) {
    printf("%-12s %5u %5u/%-5u %9llu %5.1f%% %8llu | %7.0f %7.0f %7.0f | %6.1f %6.1f %6.1f %7.0f | "
           "%7.1f %7.1f "
           "| %5.1f%%\n",
           t->name, t->n_requests, t->n_jobs, t->n_jobs_all, (unsigned long long)t->n_prompt,
           100.0 * (double)t->n_cached / (double)MAX(t->n_prompt, 1), (unsigned long long)t->n_out,
           percentile(&t->ttft, 50), percentile(&t->ttft, 90), percentile(&t->ttft, 99),
           percentile(&t->itl, 50), percentile(&t->itl, 90), percentile(&t->itl, 99),
           percentile(&t->worst, 100), percentile(&t->job, 50) / 1e3, percentile(&t->job, 90) / 1e3,
           100 * t->had_ns / all_ns);
}

static void report(struct replay *p, const char *policy) {
    const struct sim *s = &p->sim;
    double seconds = (double)(s->clock.ns - BEGIN_NS) / 1e9, had_ns = 0;
    uint64_t n_out = 0, n_drafted = s->stats.n_drafted, n_accepted = s->stats.n_accepted;

    for (uint32_t i = 0; i < TENANTS; i++) {
        n_out += p->tenant[i].n_out;
        had_ns += p->tenant[i].had_ns;
    }
    printf("policy %s: %.1f s, %llu steps, %.0f tokens/s, device %.0f%% busy, %llu preemptions\n",
           policy, seconds, (unsigned long long)s->n_steps, (double)n_out / seconds,
           had_ns / 1e7 / seconds, (unsigned long long)s->stats.n_preemptions);
    if (p->t.until_ms == 0) /* otherwise some tokens were computed for turns that did not end */
        printf("%llu tokens computed again after a preemption\n",
               (unsigned long long)(s->seen.n_rows - p->n_needed - (n_drafted - n_accepted)));
    if (s->stats.n_recomputed_tokens + s->stats.n_pins_dropped > 0)
        printf("%llu tokens of earlier turns computed again, %llu pinned turns dropped\n",
               (unsigned long long)s->stats.n_recomputed_tokens,
               (unsigned long long)s->stats.n_pins_dropped);
    if (s->opts.n_states > 0)
        printf("%u state slots, %u of %u snapshots; %llu made, %llu used, %llu evicted\n",
               s->opts.n_states, s->stats.n_snapshots, s->opts.n_snapshots,
               (unsigned long long)s->stats.n_snapshots_made,
               (unsigned long long)s->stats.n_snapshots_used,
               (unsigned long long)s->stats.n_snapshots_evicted);
    if (n_drafted > 0)
        printf("drafts: %llu of %llu accepted\n", (unsigned long long)n_accepted,
               (unsigned long long)n_drafted);
    if (p->jain.n > 0)
        printf("Jain's index: mean %.3f, least %.3f, of %u seconds in which two tenants or more "
               "could use more\n",
               mean(&p->jain), percentile(&p->jain, 0), p->jain.n);
    printf(
        "%-12s %5s %11s %9s %6s %8s | %23s | %28s | %15s | %6s\n%-12s %5s %11s %9s %6s %8s | %7s "
        "%7s %7s | %6s "
        "%6s %6s %7s | %7s %7s | %6s\n",
        "", "", "", "prompt", "", "output", "first token, ms", "between tokens, ms", "job, s",
        "device", "tenant", "turns", "jobs", "tokens", "cached", "tokens", "p50", "p90", "p99",
        "p50", "p90", "p99", "longest", "p50", "p90", "");
    for (uint32_t i = 0; i < TENANTS; i++)
        if (p->tenant[i].here)
            report_tenant(&p->tenant[i], had_ns);
}

/* Switches parts of the scheduler off, or hides input from it. Returns false for an unknown
 * policy. */
static bool apply_policy(struct replay *p, const char *name) {
    struct sched_opts *o = &p->t.sim.sched;

    if (strcmp(name, "fcfs") == 0) { /* all requests belong to one tenant, without sessions */
        p->fcfs = true;
    } else if (strcmp(name, "rows") == 0) { /* rows, not time, limit a step */
        o->itl_target_ms = o->max_step_ms = 3600000;
    } else if (strcmp(name, "no-sharing") == 0) {
        o->no_prefix_sharing = true;
    } else if (strcmp(name, "no-speculation") == 0) {
        o->no_speculation = true;
    } else if (strcmp(name, "no-pins") == 0) {
        o->no_pins = true;
    } else {
        return strcmp(name, "weft") == 0;
    }
    return true;
}

int replay_run(const struct replay_opts *o) {
    struct replay *p = &replay;
    const char *policy = o->policy ? o->policy : "weft";

    *p = (struct replay){.window_end_ns = BEGIN_NS + WINDOW_NS};
    if (trace_read(&p->t, o->trace) < 0)
        return 2;
    if (!apply_policy(p, policy) || (o->machine && !trace_machine(&p->t.sim, o->machine))) {
        fprintf(stderr, "weft-sim: no such policy or machine\n");
        return 2;
    }
    p->rng.state = p->t.seed;
    p->t.sim.unwatched = true;
    p->t.sim.max_clients = 1u << 20;
    p->agent = calloc(AGENTS, sizeof(*p->agent));
    p->of = calloc(p->t.sim.max_clients, sizeof(struct agent *));
    if (!p->agent || !p->of)
        return 2;
    sim_init(&p->sim, &p->t.sim);
    p->sim.ended = turn_ended;
    p->sim.heard = token_heard;
    p->sim.stepped = stepped;
    begin_agents(p, o->without);
    run(p);
    report(p, policy);
    sim_deinit(&p->sim);
    free(p->agent);
    free(p->of);
    for (uint32_t i = 0; i < TENANTS; i++) {
        struct tenant *t = &p->tenant[i];

        free(t->ttft.v);
        free(t->itl.v);
        free(t->worst.v);
        free(t->job.v);
    }
    free(p->jain.v);
    return 0;
}
