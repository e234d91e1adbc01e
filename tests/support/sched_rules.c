#include "tests/support/sched_rules.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kvpager/private.h"
#include "kvpager/tier_private.h"
#include "scheduler/draft/draft.h"
#include "scheduler/policy.h"
#include "tests/support/sched_sim.h"
#include "tests/support/sim_flight.h"

#define ALWAYS_ROWS 4 /* rows of the first prefill that are always allowed */
#define PREWARM_NS INT64_C(10000000)
#define ROWS_TURNS 64 /* most successive plans without a row for a decoding request */
#define LATELY_NS INT64_C(300000000000)
#define SOON_NS INT64_C(250000000)
#define PIN_TURNS 32   /* most successive plans in which a request waits for pins beyond a share */
#define CHECK_PARTS 8  /* keys and copies are checked in one step in this many */
#define TABLE_STEPS 64 /* the whole table of ids is checked in one step in this many */

const struct sim_rule_text sim_rules[RULES] = {
#define X(name, text) {#name, text},
    SIM_RULES(X)
#undef X
};

void rule_broken(const struct sim *s, const struct sim_client *c, enum sim_rule rule,
                 const char *what, const char *file, int line) {
    fprintf(stderr, "invariant %d %s broken: %s\n  must be: %s (%s:%d)\n", rule + 1,
            sim_rules[rule].name, sim_rules[rule].text, what, file, line);
    if (s)
        fprintf(stderr,
                "  step %llu, %u pages of %u, running %u, waiting %u, under way %u, drafts %d, "
                "restarts %u\n",
                (unsigned long long)s->n_steps, s->opts.n_pages, s->opts.page_tokens,
                s->stats.n_running, s->stats.n_waiting, s->sched ? sched_n_in_flight(s->sched) : 0,
                s->opts.drafts, (unsigned)s->n_restarts);
    if (c)
        fprintf(stderr, "  request %llu: prompt %u, got %u of %u, ends %u, finish %d (%d due)\n",
                (unsigned long long)c->m.id, c->m.n_prompt, c->n_got, c->n_expect, c->n_ends,
                c->finish, c->expect);
    if (s && s->flight)
        sim_write_flight(s);
    abort();
}

static struct sim_client *client_of(struct sim *s, const struct request *r) {
    HOLD(s, NULL, NO_STRANGER, r->id >= 1 && r->id <= s->n_clients);
    return &s->client[r->id - 1];
}

/* Notes which tenants are 0.2 s of virtual time behind another one with requests. A picture that is
 * computed before the launch and requests that end there change it. */
static void note_behind(struct sim *s) {
    const struct fair_share *f = &s->sched->fair;
    double most = 0;

    for (uint32_t i = 0; i < f->n_tenants; i++)
        if (f->tenant[i].n_live > 0)
            most = MAX(most, f->tenant[i].served_ns);
    for (uint32_t i = 0; i < f->n_tenants; i++) {
        const struct fair_tenant *t = &f->tenant[i];

        s->was.behind[t->id % SIM_TENANTS] = most - t->served_ns > 200e6 / t->weight;
    }
}

void rules_before(struct sim *s) {
    struct sched *d = s->sched;

    s->was.begin_ns = s->clock.ns;
    s->was.n_launched = d->n_launched;
    s->was.cost = d->cost;
}

/* Notes the shares in the pages of tenants that have requests, or had some in the last five
 * minutes. */
static void note_shares(struct sim *s) {
    const struct fair_share *f = &s->sched->fair;
    double sum = 0;

    for (uint32_t i = 0; i < f->n_tenants; i++)
        if (f->tenant[i].n_live > 0 || s->clock.ns - f->tenant[i].seen_ns < LATELY_NS)
            sum += f->tenant[i].weight;
    for (uint32_t i = 0; i < f->n_tenants; i++)
        s->was.share[f->tenant[i].id % SIM_TENANTS] =
            s->opts.n_pages * f->tenant[i].weight / MAX(sum, f->tenant[i].weight);
}

/* Returns whether all requests of @tenant get their last token from the running step. */
static bool all_are_last(const struct sim *s, uint32_t tenant) {
    uint32_t n = 0;

    LIST_FOREACH_ENTRY(r, &s->sched->running, const struct request, queued.link) {
        n += r->tenant == tenant && request_is_last(r);
    }
    return n > 0 && n == s->sched->fair.tenant[tenant].n_live;
}

/* Notes whether a tenant may be expected back. */
static void note_expected(struct sim *s) {
    const struct fair_share *f = &s->sched->fair;
    double most = 0;

    for (uint32_t i = 0; i < f->n_tenants; i++)
        if (f->tenant[i].n_live > 0)
            most = MAX(most, f->tenant[i].served_ns);
    s->was.expects = false;
    for (uint32_t i = 0; i < f->n_tenants; i++) {
        const struct fair_tenant *t = &f->tenant[i];
        bool left = t->n_live == 0 && s->clock.ns - t->seen_ns <= SOON_NS;

        s->was.expects |= t->served_ns < most && (left || all_are_last(s, i));
    }
}

/* Notes the pages that only pins hold. */
static void note_pins(struct sim *s) {
    memset(s->was.pinned, 0, sizeof(s->was.pinned));
    LIST_FOREACH_ENTRY(k, &s->sched->pins.pinned, const struct pin, link) {
        s->was.pinned[s->sched->fair.tenant[k->tenant].id % SIM_TENANTS] += k->n_exclusive;
    }
}

void rules_launched(void *of) {
    note_behind(of);
    note_shares(of);
    note_pins(of);
    note_expected(of);
}

/* Returns true if the next row of @r is one of a picture that is not computed yet. */
static bool lacks_picture(const struct request *r) {
    for (uint32_t i = 0; i < r->picture.n; i++) {
        const struct request_picture *q = &r->picture.list[i];

        if (r->n_computed - q->in.at < q->in.n_rows) /* unsigned: a later picture is far away */
            return !q->held || q->held->state != PICTURE_READY;
    }
    return false;
}

void rules_drew(void *of, int64_t ns) {
    const struct sim *s = of;
    const struct sched *d = s->sched;
    int64_t piece_ns = s->opts.pixel_ns * (s->opts.piece ? s->opts.piece : 8);
    struct cost_shape decodes = {0};
    double most_ns = 0.5 * (double)d->plan.max_step_ns;

    LIST_FOREACH_ENTRY(r, &d->running, const struct request, queued.link) {
        if (r->n_computed + 1 >= r->n_tokens && !lacks_picture(r))
            cost_add(&decodes, r->n_computed, 1);
    }
    if (decodes.rows > 0)
        most_ns = 0.75 * (double)cost_bound_ns(&d->cost, &decodes);
    HOLD(s, NULL, PIECES, ns <= (int64_t)most_ns + piece_ns + 1);
}

void rules_cancelled(struct sim *s, const struct sim_client *c) {
    const struct request *r = *sched_slot(s->sched, c->m.id);

    HOLD(s, c, CANCEL, c->n_ends > 0 || (r && r->state == REQUEST_DONE && !r->seq));
}

/* ---- steps under way ---- */

static void check_drafts(const struct sim *s, const struct sim_client *c,
                         const struct batch_item *it) {
    const struct sched_opts *o = &s->opts.sched;
    uint32_t most = o->max_draft ? MIN(o->max_draft, DRAFT_MAX) : 16;

    HOLD(s, c, DRAFTS, it->n_draft < it->n_rows && it->n_draft <= most);
    HOLD(s, c, DRAFTS,
         it->n_draft == 0 || !(o->no_speculation || c->m.flags & SUBMIT_NO_SPECULATION));
}

/* @n drafted tokens of the draft model for the tokens of @c from @at on: right, but where it is
 * wrong on purpose. What follows a wrong one is anything; so is what a draft model says that does
 * not see the pictures. */
static void check_draft_tokens(const struct sim *s, const struct sim_client *c,
                               const int32_t *token, uint32_t n, uint32_t at) {
    if (s->draft_engine && c->m.n_pictures > 0)
        return;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t out = at + i - c->m.n_prompt;

        if (out >= c->n_expect)
            return;
        bool right = token[i] == c->tokens[at + i];
        HOLD(s, c, DRAFT_TOKENS, right || telltale_errs(s->opts.draft_wrong, c->digest[out]));
        if (!right)
            return;
    }
}

/* Returns true if the lookup of its id finds @r. */
static bool is_found(struct sim *s, const struct sim_client *c, const struct request *r) {
    return c->n_ends > 0 ? *sched_slot(s->sched, r->id) == r : c->request == r;
}

static void check_batch(struct sim *s, const struct batch *t) {
    const struct crash_page *page = &s->crash_page;

    HOLD(s, NULL, LIMITS, t->b.n_rows <= s->opts.sched.max_rows);
    HOLD(s, NULL, LIMITS, t->b.n_seqs <= s->opts.sched.max_seqs);
    for (uint32_t i = 0; i < t->b.n_seqs; i++) {
        const struct request *r = t->item[i].request;
        struct sim_client *c = client_of(s, r);
        bool on_page = false;

        c->n_in_flight++;
        c->n_drafts_out += t->item[i].n_draft;
        check_drafts(s, c, &t->item[i]);
        const struct draft_source *by =
            t->item[i].n_draft > 0 ? s->sched->spec.source[r->draft.spec->source] : NULL;
        if (by == &draft_model || by == &draft_mtp)
            check_draft_tokens(
                s, c, t->token + t->seq[i].row0 + t->item[i].n_rows - t->item[i].n_draft,
                t->item[i].n_draft, t->item[i].pos0 + t->item[i].n_rows - t->item[i].n_draft);
        HOLD(s, c, IN_FLIGHT, r->n_in_flight > 0 && is_found(s, c, r));
        for (uint32_t k = 0; k < page->n && !on_page; k++)
            on_page = page->ids[k] == r->id;
        HOLD(s, c, CRASH_PAGE, on_page);
    }
}

static void check_in_flight(struct sim *s) {
    const struct sched *d = s->sched;
    uint32_t n = 0;

    HOLD(s, NULL, IN_FLIGHT, sched_n_in_flight(d) <= d->opts.depth);
    for (uint64_t step = d->n_waited + 1; step <= d->n_launched; step++) {
        check_batch(s, &d->batch[step % SCHED_DEPTH_MAX]);
        n += d->batch[step % SCHED_DEPTH_MAX].b.n_seqs;
    }
    HOLD(s, NULL, CRASH_PAGE, s->crash_page.n == n && (s->crash_page.started_ns != 0) == (n > 0));
}

/* ---- requests ---- */

static void check_pending(const struct sim *s, const struct sim_client *c,
                          const struct request *r) {
    bool end = r->state == REQUEST_DONE && !r->acked.end;
    bool pending =
        (!r->acked.accepted && !r->grammar.compiling) || r->acked.n_out < request_n_out(r) || end;

    HOLD(s, c, PENDING, !(sim_is_prewarm(c) ? end : pending) || !list_empty(&r->pending));
}

/* Compares tokens in a loop, since most pages of the simulation are short. */
static bool are_equal(const int32_t *a, const int32_t *b, uint32_t n) {
    if (n > 8)
        return memcmp(a, b, n * sizeof(*a)) == 0;
    while (n > 0 && a[n - 1] == b[n - 1])
        n--;
    return n == 0;
}

static void check_running(struct sim *s, const struct sim_client *c, const struct request *r) {
    const struct kv_pager *p = s->sched->pager;
    uint32_t t = s->opts.page_tokens, n;

    HOLD(s, c, PAGES, r->seq != NULL);
    const kv_page *page = kv_seq_pages(r->seq, &n);
    /* Pages of a hybrid model that come from host memory count when all have arrived. */
    bool comes = s->sched->states.on && r->n_host > 0;
    uint32_t at = comes ? kv_seq_committed(r->seq) : r->n_computed;
    HOLD(s, c, PAGES, !comes || (at >= r->n_computed && at < r->n_host));
    HOLD(s, c, PAGES, n == (at + t - 1) / t);
    HOLD(s, c, CHASE, r->n_pending <= c->n_in_flight);
    HOLD(s, c, CHASE, r->n_computed < r->n_tokens + r->n_pending + c->n_drafts_out);
    HOLD(s, c, CHASE, kv_seq_committed(r->seq) <= at);
    HOLD(s, c, CHASE, c->n_in_flight > 0 || kv_seq_committed(r->seq) == at);
    HOLD(s, c, PAGES, r->seq->n_published == r->seq->n_committed / t);
    for (uint32_t i = 0; i < r->seq->n_published; i++)
        HOLD(s, c, CONTENT,
             are_equal(p->pool.tokens + (size_t)page[i] * t, request_keys(r) + (size_t)i * t, t));
}

/* Checks the state of @r in the drafter. */
static void check_drafter(struct sim *s, const struct sim_client *c, const struct request *r) {
    const struct drafter_seq *q = r->draft.drafter;
    uint32_t t = s->opts.draft_page_tokens, n;

    if (!q)
        return;
    HOLD(s, c, DRAFT_PAGES, r->state == REQUEST_RUNNING || (!q->kv && q->drafted.n == 0));
    HOLD(s, c, DRAFT_TOKENS, q->drafted.n <= DRAFT_MAX && q->drafted.at <= r->n_tokens);
    check_draft_tokens(s, c, q->drafted.token, q->drafted.n, q->drafted.at);
    if (!q->kv)
        return;
    const kv_page *page = kv_seq_pages(q->kv, &n);
    HOLD(s, c, DRAFT_PAGES, q->n_computed <= n * t && q->kv->n_committed <= q->n_computed);
    HOLD(s, c, DRAFT_PAGES, q->n_computed <= q->drafted.at + q->drafted.n);
    HOLD(s, c, DRAFT_PAGES, q->kv->n_published == q->kv->n_committed / t);
    for (uint32_t i = 0; i < q->kv->n_published; i++)
        HOLD(s, c, DRAFT_PAGES,
             are_equal(q->kv->pager->pool.tokens + (size_t)page[i] * t, r->tokens + (size_t)i * t,
                       t));
    s->was.n_draft_seqs++;
}

static void check_request(struct sim *s, struct sim_client *c, const struct request *r) {
    HOLD(s, c, IN_FLIGHT, r->n_in_flight == c->n_in_flight);
    HOLD(s, c, KNOWN, r->end.refused || r->n_tokens <= c->m.n_prompt + c->n_expect);
    HOLD(s, c, KNOWN,
         r->end.refused || memcmp(r->tokens, c->tokens, r->n_tokens * sizeof(*r->tokens)) == 0);
    check_pending(s, c, r);
    check_drafter(s, c, r);
    if (r->state == REQUEST_RUNNING) {
        check_running(s, c, r);
    } else {
        HOLD(s, c, PAGES, r->seq == NULL);
        HOLD(s, c, CHASE, r->state == REQUEST_DONE || r->n_computed == 0);
        HOLD(s, c, ONE_PLACE, r->state == REQUEST_WAITING || list_empty(&r->queued.link));
    }
    if (r->state != REQUEST_DONE && c->m.deadline_ns > 0) {
        HOLD(s, c, DEADLINE, c->m.deadline_ns > s->was.begin_ns);
        HOLD(s, c, WAKE, sched_wake_ns(s->sched) <= c->m.deadline_ns);
    }
}

static void check_list(struct sim *s, const struct list *l, enum request_state state,
                       uint32_t n_in_state) {
    const struct queue_key *before = NULL;
    uint32_t n = 0;

    for (const struct list *node = l->next; node != l; node = node->next, n++) {
        const struct request *r = LIST_ENTRY(node, const struct request, queued.link);

        const struct sim_client *c = client_of(s, r);

        HOLD(s, c, ONE_PLACE, r->state == state && n < n_in_state);
        HOLD(s, c, ONE_PLACE, r->grammar.compiling == (l == &s->sched->compiling));
        HOLD(s, c, QUEUE_ORDER,
             r->grammar.compiling || !before || queue_before(before, &r->queued.key));
        before = &r->queued.key;
        HOLD(s, c, QUEUE_ORDER,
             before->arrival == c->m.arrived_ns + c->m.priority * QUEUE_LEVEL_NS);
    }
    HOLD(s, NULL, ONE_PLACE, n == n_in_state);
}

/* Checks that each request in the table of ids belongs to a client or to a step in flight. */
static void check_table(struct sim *s) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < SCHED_ID_SLOTS; i++)
        for (const struct request *r = s->sched->by_id[i]; r; r = r->next_id) {
            HOLD(s, client_of(s, r), NO_STRANGER, !r->acked.end || r->n_in_flight > 0);
            n += !r->acked.end;
        }
    HOLD(s, NULL, NO_STRANGER, n == s->n_live);
}

/* Compares sums over the worker's life, up to rounding. */
static void check_elsewhere(const struct sim *s, const struct fair_tenant *t) {
    double told_ns = s->elsewhere_ns[t->id % SIM_TENANTS] + 1;

    HOLD(s, NULL, ELSEWHERE, t->elsewhere_ns >= 0 && t->elsewhere_ns <= FAIR_ELSEWHERE_NS);
    HOLD(s, NULL, ELSEWHERE, t->counted_ns + t->elsewhere_ns <= told_ns);
    HOLD(s, NULL, ELSEWHERE, t->counted_ns <= FAIR_ELSEWHERE * t->own_ns + 1);
    HOLD(s, NULL, ELSEWHERE, t->told_ns <= t->own_ns);
}

static void check_requests(struct sim *s) {
    uint32_t n_in[3] = {0}, n_compiling = 0;
    uint64_t n_out = s->was.n_outputs, n_finished = s->was.n_finished;

    for (uint32_t i = 0; i < s->n_live; i++) {
        struct sim_client *c = &s->client[s->live[i]];
        const struct request *r = c->request;

        HOLD(s, c, ONE_PLACE, r && r->state <= REQUEST_DONE);
        check_request(s, c, r);
        if (sim_is_prewarm(c)) { /* in no list before its time, and in no counter */
            n_in[r->state] += r == s->sched->prewarm.now;
            continue;
        }
        n_compiling += r->grammar.compiling;
        n_in[r->state] += !r->grammar.compiling;
        n_finished += r->state == REQUEST_DONE && !r->end.refused;
        n_out += request_n_out(r) - (r->end.refused ? request_n_out(r) : c->n_given);
    }
    check_list(s, &s->sched->waiting, REQUEST_WAITING, n_in[REQUEST_WAITING]);
    check_list(s, &s->sched->compiling, REQUEST_WAITING, n_compiling);
    check_list(s, &s->sched->running, REQUEST_RUNNING, n_in[REQUEST_RUNNING]);
    HOLD(s, NULL, LIMITS, n_in[REQUEST_RUNNING] <= s->opts.sched.max_seqs);
    bool warm = s->sched->prewarm.now != NULL;
    HOLD(s, NULL, COUNTERS,
         s->stats.n_running + s->stats.n_waiting + warm ==
             n_in[REQUEST_RUNNING] + n_in[REQUEST_WAITING] + n_compiling);
    HOLD(s, NULL, COUNTERS, warm || s->stats.n_running == n_in[REQUEST_RUNNING]);
    HOLD(s, NULL, COUNTERS, s->stats.n_output_tokens == n_out);
    HOLD(s, NULL, COUNTERS, s->stats.n_finished == n_finished);
    const struct fair_share *h = &s->sched->fair;
    uint32_t n_live = 0;
    for (uint32_t i = 0; i < h->n_tenants; i++)
        n_live += h->tenant[i].n_live;
    for (uint32_t i = 0; i < h->n_tenants; i++)
        check_elsewhere(s, &h->tenant[i]);
    HOLD(s, NULL, COUNTERS, n_live == s->stats.n_running + s->stats.n_waiting + warm);
    HOLD(s, NULL, COUNTERS,
         s->stats.n_used + s->stats.n_free + s->stats.n_cached == s->stats.n_pages);
}

/* ---- pagers ---- */

/* Checks a pager. One without a change since the last check is skipped; otherwise it is checked
 * @more times, at least once. Returns false if there was nothing to check. */
static bool check_pager(struct sim_watch *w, const struct kv_pager *p, uint32_t more) {
    if (w->n_changes != p->n_changes)
        w->left = more;
    w->n_changes = p->n_changes;
    if (w->left == 0)
        return false;
    w->left--;
    w->part = (w->part + 1) % CHECK_PARTS;
    kv_pager_check_part(p, w->part, CHECK_PARTS);
    return true;
}

static void check_draft_pages(struct sim *s) {
    const struct kv_pager *p = s->sched->drafter ? drafter_pager(s->sched->drafter) : NULL;

    if (!p)
        return;
    check_pager(&s->was.draft, p, CHECK_PARTS);
    HOLD(s, NULL, DRAFT_PAGES, p->stats.n_seqs == s->was.n_draft_seqs);
}

/* Checks that copied bytes are in the page, and that the copy came after the steps that it
 * needs. */
static void check_host_page(const struct sim *s, uint32_t i) {
    const struct pool *pool = &s->sched->tier->offload.host->pool;
    const struct page *page = &pool->page[i];
    int64_t parent = page->parent == NO_PAGE ? -1 : (int64_t)page->parent;

    if (page->state == PAGE_SHARED || page->state == PAGE_CACHED)
        HOLD(s, NULL, HOST,
             telltale_holds(s->engine, true, i, parent,
                            pool->tokens + (size_t)i * pool->page_tokens));
}

/* Returns the number of snapshots that are taken or held. */
static uint32_t count_kept(const struct kv_pager *p) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < p->opts.n_snapshots; i++)
        n += p->snapshot[i].taken + p->snapshot[i].n_held;
    return n;
}

/* Checks the held snapshots. A state that is written or read has one snapshot in host memory and
 * one in the file, which withholds none: where the file cannot grow, pages are withheld first,
 * since there are at least as many. */
static void check_held_snapshots(const struct sim *s, const struct disk *d) {
    HOLD(s, NULL, HELD, count_kept(s->sched->tier->offload.host) == disk_held(d, true));
    HOLD(s, NULL, HELD, count_kept(disk_pages(d)) == disk_held(d, true));
}

static void check_host(struct sim *s) {
    const struct offload *p = &s->sched->tier->offload;
    uint32_t n = 0;

    if (!p->host)
        return;
    bool changed = check_pager(&s->was.host, p->host, 2 * CHECK_PARTS);
    for (uint32_t i = 0; i < p->n_jobs; i++)
        n += p->job[i].saved != NULL;
    if (s->sched->tier->offload.disk) {
        n += disk_held(s->sched->tier->offload.disk, false);
        check_pager(&s->was.disk, disk_pages(s->sched->tier->offload.disk), CHECK_PARTS);
        check_held_snapshots(s, s->sched->tier->offload.disk);
    }
    HOLD(s, NULL, HOST, p->host->stats.n_seqs == n);
    if (!changed || sched_n_in_flight(s->sched) > 0 ||
        p->n_copies > 0) /* copies are still to be made */
        return;
    for (uint32_t i = s->was.host.part; i < p->host->pool.n_pages; i += CHECK_PARTS)
        check_host_page(s, i);
}

/* ---- states ---- */

/* Checks that a snapshot that is not being written belongs to a page and is the state behind it. */
static void check_snapshots(struct sim *s) {
    const struct sched *d = s->sched;
    const struct kv_pager *p = d->pager;
    uint32_t n_written = 0;

    for (uint64_t step = d->n_waited + 1; step <= d->n_launched; step++) {
        const struct batch *t = &d->batch[step % SCHED_DEPTH_MAX];

        for (uint32_t i = 0; i < t->b.n_seqs; i++) {
            uint32_t snapshot = t->item[i].snapshot;

            uint32_t pos0 = t->item[i].pos0, end = pos0 + t->item[i].n_rows;

            uint32_t cut = states_next_cut(&d->states, t->item[i].request, pos0);

            HOLD(s, NULL, CUTS, cut >= end);
            HOLD(s, NULL, CUTS,
                 cut > end || snapshot != KV_NO_SNAPSHOT ||
                     p->opts.n_snapshots <= 2 * s->opts.sched.max_seqs);
            uint32_t backup = t->item[i].backup;

            n_written += snapshot != KV_NO_SNAPSHOT;
            n_written += backup != KV_NO_SNAPSHOT;
            HOLD(s, NULL, KEPT,
                 (backup != KV_NO_SNAPSHOT) == (d->states.on && t->item[i].n_draft > 0));
            HOLD(s, NULL, KEPT, snapshot == KV_NO_SNAPSHOT || p->snapshot[snapshot].taken);
        }
    }
    /* Pages of host memory, and pages that come from there, have their bytes once the copies are
     * made. */
    const struct kv_pager *host = d->tier->offload.host;
    bool copied = !host || (sched_n_in_flight(d) == 0 && d->tier->offload.n_copies == 0);
    for (uint32_t i = 0; i < p->opts.n_snapshots; i++) {
        n_written -= p->snapshot[i].taken;
        if (copied && p->snapshot[i].page != KV_NO_PAGE)
            HOLD(s, NULL, KEPT, telltale_is_state(s->engine, i, false, p->snapshot[i].page));
        if (copied && host && host->snapshot[i].page != KV_NO_PAGE)
            HOLD(s, NULL, KEPT, telltale_is_state(s->engine, i, true, host->snapshot[i].page));
    }
    HOLD(s, NULL, KEPT, n_written == 0);
}

/* ---- decisions ---- */

/* Returns true if a request in @l may be the reason for the preemption of @h: it has an earlier
 * virtual arrival, or its tenant has less. */
static bool somebody_goes_on(struct sim *s, const struct list *l, const struct request *h) {
    uint32_t tenant = client_of(s, h)->m.tenant;

    for (const struct list *node = l->next; node != l; node = node->next) {
        const struct request *r = LIST_ENTRY(node, const struct request, queued.link);

        if (client_of(s, r)->m.tenant != tenant ||
            (l == &s->sched->running && queue_before(&r->queued.key, &h->queued.key)))
            return true;
    }
    return false;
}

static void check_preemptions(struct sim *s, bool ends) {
    for (uint32_t i = 0; i < s->n_live; i++) {
        struct sim_client *c = &s->client[s->live[i]];
        const struct request *r = c->request;

        if (r->n_preempted > c->n_preempted && !sim_is_prewarm(c))
            HOLD(s, c, PREEMPTION,
                 ends || somebody_goes_on(s, &s->sched->running, r) ||
                     somebody_goes_on(s, &s->sched->waiting, r));
        c->n_preempted = r->n_preempted;
    }
}

/* Checks the last plan: a request that was admitted before an earlier one overtakes it. */
static void check_admissions(struct sim *s) {
    const struct plan *p = &s->sched->plan;
    uint32_t n_after = 0, n_passing = 0;

    HOLD(s, NULL, PREEMPTION, p->n_running == 0 || p->req[0].verdict != PLAN_PREEMPT);
    for (uint32_t i = 0; i + 1 < p->n_running; i++)
        HOLD(s, client_of(s, s->sched->planned[i]), PREEMPTION,
             p->req[i].verdict != PLAN_PREEMPT || p->req[i + 1].verdict == PLAN_PREEMPT ||
                 p->req[i + 1].n_exclusive == 0 || (p->fair_preempt && p->req[i].victim));
    for (uint32_t i = 0; i < p->n_running && p->alone == PLAN_NONE; i++) {
        struct sim_client *c = client_of(s, s->sched->planned[i]);
        const struct plan_req *q = &p->req[i];
        bool waits = q->verdict == PLAN_WAIT_ROWS && q->n_tokens - q->n_computed == 1;

        c->n_rowless = waits ? c->n_rowless + 1 : 0;
        HOLD(s, c, ROWS, c->n_rowless <= ROWS_TURNS);
    }
    for (uint32_t i = p->n_running + p->n_waiting; i-- > p->n_running;) {
        const struct plan_req *q = &p->req[i];
        struct sim_client *c = client_of(s, s->sched->planned[i]);

        n_after += q->admitted;
        n_passing += q->admitted && q->behind;
        if (q->admitted || q->over || q->leave_seqs > 0)
            continue; /* the remaining pages may be reserved for tenants that have less */
        uint32_t n_counted = q->behind ? n_after : n_after - n_passing;
        HOLD(s, c, BYPASS, q->n_bypassed >= n_counted);
        HOLD(s, c, BYPASS, n_counted == 0 || q->n_bypassed <= p->max_bypass);
    }
}

/* Returns the pages that a request of tenant @tenant finds promised in the last plan: all promises
 * to its tenant, and those to others, only within their shares if the request is not @over its own.
 */
static double promised_for(struct sim *s, uint32_t tenant, bool over) {
    const struct plan *p = &s->sched->plan;
    bool shared = p->reserve_pages > 0 && !over;
    double held[SIM_TENANTS] = {0}, promised[SIM_TENANTS] = {0}, sum = 0;

    for (uint32_t i = 0; i < p->n_running; i++) {
        uint32_t of = client_of(s, s->sched->planned[i])->m.tenant % SIM_TENANTS;
        uint32_t target = plan_pages(p, p->req[i].n_target);

        held[of] += p->req[i].n_pages;
        promised[of] += target > p->req[i].n_pages ? target - p->req[i].n_pages : 0;
    }
    for (uint32_t t = 0; t < SIM_TENANTS; t++) {
        if (shared && t != tenant % SIM_TENANTS && promised[t] > s->was.share[t] - held[t])
            promised[t] = MAX(floor(s->was.share[t] - held[t]), 0);
        sum += promised[t];
    }
    return sum;
}

/* Checks the first request that the last plan admits, and if there is none, those that wait for
 * pages: only what is promised to others beyond their shares may be taken, by tenants within
 * theirs. */
static void check_promises(struct sim *s) {
    const struct plan *p = &s->sched->plan;

    for (uint32_t i = p->n_running; i < p->n_running + p->n_waiting && p->n_running > 0; i++) {
        const struct plan_req *q = &p->req[i];
        struct sim_client *c = client_of(s, s->sched->planned[i]);
        double need = plan_pages(p, q->n_target) - q->n_hit / p->page_tokens + q->n_idle;
        bool fits = need + promised_for(s, c->m.tenant, q->over) <= p->n_available;

        if (q->verdict == PLAN_WAIT_PAGES && p->n_admitted == 0 && q->n_idle <= p->n_left)
            HOLD(s, c, PROMISES, !fits);
        if (!q->admitted)
            continue;
        HOLD(s, c, PROMISES, fits);
        return;
    }
}

/* Returns how many of the pinned pages tenants hold beyond their shares in the last plan. */
static double pinned_beyond(struct sim *s) {
    const struct plan *p = &s->sched->plan;
    double held[SIM_TENANTS] = {0}, sum = 0;

    for (uint32_t i = 0; i < p->n_running; i++)
        held[client_of(s, s->sched->planned[i])->m.tenant % SIM_TENANTS] += p->req[i].n_pages;
    for (uint32_t t = 0; t < SIM_TENANTS; t++) {
        double left = floor(MAX(s->was.share[t] - held[t], 0));

        sum += MAX(s->was.pinned[t] - left, 0);
        s->was.held[t] = held[t] + s->was.pinned[t];
    }
    return sum;
}

/* Returns whether the tenant of waiting request @r has its share of the pages, or less, with @r. */
static bool is_within(struct sim *s, const struct request *r) {
    uint32_t t = client_of(s, r)->m.tenant % SIM_TENANTS;
    double need = plan_pages(&s->sched->plan, r->n_tokens) - r->seen_hit / s->opts.page_tokens;

    return s->was.held[t] + need <= s->was.share[t];
}

/* Returns the request for which pins beyond a share are dropped, if it got no pages in the last
 * plan: the first candidate whose tenant is within its share. */
static const struct request *first_without_pages(struct sim *s) {
    const struct plan *p = &s->sched->plan;

    for (uint32_t i = p->n_running; i < p->n_running + p->n_waiting && p->n_admitted == 0; i++) {
        const struct plan_req *q = &p->req[i];
        const struct request *r = s->sched->planned[i];

        if (!is_within(s, r))
            continue;
        return q->verdict == PLAN_WAIT_PAGES && q->n_idle <= p->n_left ? r : NULL;
    }
    return NULL;
}

/* Checks the requests that wait, paused or as candidates, while there are pins beyond the shares of
 * other tenants. That these are dropped shows in a later plan, like what is looked up again. */
static void check_pins(struct sim *s) {
    const struct plan *p = &s->sched->plan;
    const struct request *first = NULL;
    double beyond = pinned_beyond(s), promised = (double)plan_promised(p);
    double room = MAX(p->n_available - promised, 0) - (double)s->sched->pins.growth_pages;

    if (p->n_running == 0 || p->n_running == p->max_seqs)
        return;
    if (beyond > 0)
        first = first_without_pages(s);
    LIST_FOREACH_ENTRY(r, &s->sched->waiting, const struct request, queued.link) {
        struct sim_client *c = client_of(s, r);
        double need = plan_pages(p, r->n_tokens) - r->seen_hit / p->page_tokens;
        bool fits = is_within(s, r) && need <= room + beyond;
        bool waits = r == first || (r->paused && fits);

        c->n_behind_pins = waits ? c->n_behind_pins + 1 : 0;
        HOLD(s, c, PINS, c->n_behind_pins <= PIN_TURNS);
    }
}

/* Checks the pages of the last plan: those available and those freed by preemptions, minus the idle
 * pages that were found and the pages for rows. */
static void check_plan_pages(struct sim *s) {
    const struct plan *p = &s->sched->plan;
    int64_t left = p->n_available;

    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        const struct plan_req *q = &p->req[i];
        int64_t have = q->n_pages, all = plan_pages(p, q->n_computed + q->n_rows);

        left += q->verdict == PLAN_PREEMPT ? q->n_exclusive : 0;
        left -= q->admitted ? q->n_idle : 0;
        left -= q->n_rows > 0 ? MAX(all - have, 0) : 0;
    }
    HOLD(s, NULL, PREEMPTION,
         p->n_rows == 0 || left == p->n_left); /* 0: a step of copies, without a plan */
}

static int64_t pace_ns(const struct plan *p, const struct plan_req *q) {
    return q->pace == PLAN_PACE_NORMAL ? p->itl_ns
           : q->pace == PLAN_PACE_SLOW ? 4 * p->itl_ns
                                       : p->itl_ns / 2;
}

/* Returns true if such a step may be planned: it is in time, or in time without the few rows that
 * the first prefill always has, or without the picture that is computed whole. */
static bool is_in_time(const struct sim *s, const struct plan *p, const struct cost_shape *shape,
                       int64_t limit_ns) {
    const struct cost *c = &s->was.cost;
    bool ok = cost_bound_ns(c, shape) <= limit_ns;

    for (uint32_t i = 0; i < p->n_running + p->n_waiting && !ok; i++) {
        const struct plan_req *q = &p->req[i];
        struct cost_shape less = *shape;

        if (q->n_rows == 0 || (q->n_rows > ALWAYS_ROWS && !q->whole) ||
            q->n_tokens - q->n_computed == 1)
            continue;
        cost_remove(&less, q->n_computed, q->n_rows);
        ok = cost_bound_ns(c, &less) <= limit_ns;
    }
    return ok;
}

/* Returns the limit of a step in which decode takes @decode_ns. */
static int64_t limit_beside(int64_t decode_ns, int64_t target_ns) {
    if (decode_ns >= 3 * target_ns)
        return 2 * (decode_ns - target_ns);
    return MAX(target_ns, 4 * decode_ns / 3);
}

/* Limits of the rows of prompts in a step: before @low_ns no prompt waits for time, beyond @high_ns
 * none has more. */
struct limits {
    int64_t low_ns, high_ns;
};

/* Returns true if @q is a prompt of which plan @p may have a chunk. */
static bool is_prompt(const struct plan_req *q) {
    return q->n_tokens - q->n_computed > 1 && !q->last;
}

/* Returns true if plan @p may be a probe; @alone: nothing decodes. Beside decode, one plan in
 * sixteen is one while steps take less than 8 % longer than expected, else one in four. */
static bool is_probe(const struct sim *s, const struct plan *p, bool alone) {
    uint64_t turns = 8;

    if (!alone)
        turns = s->was.cost.error < 0.08 ? 16 : 4;
    return (p->turn + 1) % turns == 0;
}

/* Returns true if the limit of plan @p is raised whatever prompts it has; @before: rows of running
 * requests that decode. */
static bool is_raised(const struct sim *s, const struct plan *p, struct cost_shape before,
                      int64_t target_ns) {
    if (before.rows == 0)
        cost_add(&before, 0, 1);
    return !p->prewarm && p->alone == PLAN_NONE &&
           limit_beside(cost_bound_ns(&s->was.cost, &before), target_ns) > target_ns;
}

/* Returns the limits of plan @p if it is a probe, and @no if it is not; it surely is one if
 * @raised: no row or one row of prompts, or, if @alone, twice as many and at least eight. */
static struct limits probe_of(const struct sim *s, const struct plan *p, struct cost_shape decodes,
                              struct limits no, bool alone, bool raised) {
    bool more = alone && (p->turn + 1) % 16 == 8;
    struct limits l = {more && raised ? no.low_ns : 0, 0};
    struct cost_shape few = decodes;
    uint32_t furthest = 0;

    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++)
        if (is_prompt(&p->req[i]))
            furthest = MAX(furthest, p->req[i].n_computed);
    cost_add(&few, furthest, more || !raised ? 8 : 1);
    if (more || !raised)
        l.high_ns = no.high_ns;
    else if (!alone)
        few = decodes;
    l.high_ns = MAX(l.high_ns, cost_bound_ns(&s->was.cost, &few));
    return l;
}

/* Returns the limits of plan @p with these rows of decode; @alone: nothing decodes; @raised: as for
 * is_raised(). */
static struct limits limits_of(const struct sim *s, const struct plan *p, struct cost_shape decodes,
                               int64_t target_ns, bool alone, bool raised) {
    const struct cost *c = &s->was.cost;
    struct cost_shape one = decodes;

    if (one.rows == 0)
        cost_add(&one, 0, 1);
    int64_t least = cost_bound_ns(c, &one), beside = limit_beside(least, target_ns);
    struct limits l = {beside, beside};
    if (p->prewarm)
        return (struct limits){MAX(target_ns, least), MAX(target_ns, least)};
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        if (!is_prompt(&p->req[i]) && !p->req[i].alone)
            continue;
        one = alone ? (struct cost_shape){0} : decodes;
        cost_add(&one, p->req[i].n_computed, 1);
        int64_t one_ns = cost_bound_ns(c, &one);
        l.high_ns = MAX(l.high_ns, alone ? 10 * one_ns : limit_beside(one_ns, target_ns));
    }
    return is_probe(s, p, alone) && l.high_ns > target_ns
               ? probe_of(s, p, decodes, l, alone, raised)
               : l;
}

/* Returns the limits @l of a plan with these rows of decode if the speed is that of steps that only
 * decode: half of the time that decode leaves, unless the limit is raised. The plan chooses the
 * prompt that raises it. */
static struct limits behind_decode(const struct sim *s, struct cost_shape decodes, struct limits l,
                                   int64_t target_ns) {
    int64_t decode_ns = cost_bound_ns(&s->was.cost, &decodes);

    if (!cost_is_of_decode(&s->was.cost) || l.low_ns > target_ns)
        return l;
    l.low_ns = decode_ns + MAX(l.low_ns - decode_ns, 0) / 2;
    if (l.high_ns <= target_ns)
        l.high_ns = MAX(l.low_ns, decode_ns);
    return l;
}

/* Returns true if no tenant but that of @q has anything to compute in plan @p, or nothing
 * decodes. */
static bool is_cut(const struct plan *p, const struct plan_req *q) {
    bool lone = true, alone = true;

    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        const struct plan_req *o = &p->req[i];

        if (i < p->n_running ? !o->last : o->admitted)
            lone &= o->group == q->group;
        if (i < p->n_running && !o->waits && (o->last || o->n_tokens - o->n_computed == 1))
            alone = false;
    }
    return lone || alone;
}

/* Returns true if plan @p may leave time to others that prompt @q could use. */
static bool leaves_time(const struct plan *p, const struct plan_req *q) {
    return p->add_ns > 0 &&
           (p->expects || is_cut(p, q) || (p->group_part && p->group_part[q->group] < 1) ||
            (p->group_over && p->group_over[q->group]));
}

/* Checks that no prompt waits for time while the step has room for a chunk that ends at a page. */
static void check_used(const struct sim *s, const struct plan *p, const struct cost_shape *shape,
                       int64_t limit_ns) {
    const struct cost *c = &s->was.cost;
    uint32_t max_rows = MIN(p->max_rows, cost_trusted_rows(c));

    if (p->alone != PLAN_NONE || p->force_chunk || s->opts.short_chunks || p->n_preempted > 0 ||
        p->leaves_out)
        return;
    for (uint32_t i = 0; i < p->n_running; i++) {
        const struct plan_req *q = &p->req[i];
        struct cost_shape more = *shape;
        uint32_t lag = q->n_tokens - q->n_computed;
        uint32_t n = q->whole ? lag : MIN(PLAN_MIN_CHUNK + p->page_tokens, lag);
        uint32_t n_pages = plan_pages(p, q->n_computed + n);

        if (q->verdict != PLAN_WAIT_TIME || leaves_time(p, q) || p->n_rows + n > max_rows ||
            n_pages > q->n_pages + p->n_left)
            continue;
        cost_add(&more, q->n_computed, n);
        HOLD(s, NULL, BUDGET, cost_bound_ns(c, &more) > limit_ns / 32 * 31);
    }
}

static double rate_of(const struct cost *c, uint32_t pos0, uint32_t n) {
    struct cost_shape s = {0};

    cost_add(&s, pos0, n);
    return n / (double)MAX(cost_expect_ns(c, &s), 1);
}

/* Checks a step in which nothing decodes and a prompt waits for time or has a part of its rows: it
 * uses its whole limit or is efficient, that is, by the estimate its rows have four fifths of the
 * best rate, or it takes almost ten times as long as one row. Pages round chunks down. A step after
 * a piece of a picture has less time. */
static void check_efficient(const struct sim *s, const struct plan *p,
                            const struct cost_shape *shape, int64_t target_ns) {
    const struct cost *c = &s->was.cost;
    const struct plan_req *first = NULL;
    uint32_t max_rows = MIN(p->max_rows, cost_trusted_rows(c)), n_prompts = 0;
    double best = 0;

    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++)
        if (p->req[i].n_rows > 0)
            first = &p->req[i], n_prompts++;
    if (p->force_chunk || p->prewarm || s->opts.short_chunks || n_prompts != 1 || p->spent_ns > 0 ||
        first->verdict != PLAN_RUN || first->n_led > 0 || p->n_groups > 1 ||
        leaves_time(p, first) || p->n_left * p->page_tokens < p->page_tokens + PLAN_MIN_CHUNK ||
        first->n_rows == first->n_tokens - first->n_computed || is_probe(s, p, true) ||
        first->n_rows + p->page_tokens + PLAN_MIN_CHUNK > max_rows)
        return;
    struct cost_shape more = *shape, one = {0};
    cost_add(&one, first->n_computed, 1);
    for (uint32_t n = 1; n <= max_rows; n++)
        best = MAX(best, rate_of(c, first->n_computed, n));
    cost_remove(&more, first->n_computed, first->n_rows);
    cost_add(&more, first->n_computed, first->n_rows + p->page_tokens + PLAN_MIN_CHUNK);
    bool efficient =
        rate_of(c, first->n_computed, first->n_rows + p->page_tokens + PLAN_MIN_CHUNK) > 0.8 * best;
    HOLD(s, NULL, RATE,
         efficient || cost_bound_ns(c, &more) > MAX(target_ns, 10 * cost_bound_ns(c, &one)));
}

/* Returns the target of the step of plan @p in ns; *alone: nothing decodes. */
static int64_t target_of(const struct plan *p, bool *alone) {
    int64_t target = p->prewarm ? MIN(p->max_step_ns, PREWARM_NS) : p->max_step_ns;

    *alone = true;
    for (uint32_t i = 0; i < p->n_running; i++) {
        const struct plan_req *q = &p->req[i];

        if ((q->n_tokens - q->n_computed == 1 || q->last) && !q->waits) {
            target = MIN(target, pace_ns(p, q));
            *alone = false;
        }
    }
    return target;
}

/* Compares the plan of the step just launched with the estimates that it was made with. Returns
 * true if decode, or one row, takes so long that the limit is above the target. */
static bool check_budget(struct sim *s) {
    const struct plan *p = &s->sched->plan;
    struct cost_shape shape = {0}, decodes = {0}, before = {0}, drafted = {0};
    uint32_t n_drafts = 0;
    bool alone, whole = p->whole;
    int64_t limit = target_of(p, &alone);

    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        const struct plan_req *q = &p->req[i];
        bool one = q->n_tokens - q->n_computed == 1;
        bool left_out = p->leaves_out && i < p->n_running && q->verdict == PLAN_WAIT_TIME;

        /* A request preempted for a prefill, or left out of the step, had its row when the limits
         * were set. */
        if (one && (q->n_rows > 0 || q->verdict == PLAN_PREEMPT || left_out)) {
            cost_add(&decodes, q->n_computed, 1);
            cost_add(&drafted, q->n_computed, 1 + q->n_draft);
            if (i < p->n_running)
                cost_add(&before, q->n_computed, 1);
        }
        if (q->n_rows > 0)
            cost_add(&shape, q->n_computed, q->n_rows);
        n_drafts += q->n_draft;
        whole |= q->whole;
    }
    uint32_t n_least = drafted.rows + PLAN_MIN_CHUNK;
    HOLD(s, NULL, BUDGET, shape.rows == p->n_rows);
    HOLD(s, NULL, LIMITS, whole || shape.rows <= MAX(MAX(32, 2 * s->was.cost.max_rows), n_least));
    /* The rows of a picture are added to the row that the first prompt has. */
    bool raised = !whole && is_raised(s, p, before, limit);
    struct limits low = limits_of(s, p, before, limit, alone, raised);
    if (!alone && p->alone == PLAN_NONE)
        low = behind_decode(s, before, low, limit);
    check_used(s, p, &shape, low.low_ns - p->spent_ns);
    if (alone && n_drafts == 0)
        check_efficient(s, p, &shape, limit);
    bool misses = low.low_ns > limit;
    struct limits high = limits_of(s, p, decodes, limit, alone, raised);
    if (!alone && p->alone == PLAN_NONE)
        high = behind_decode(s, decodes, high, limit);
    limit = high.high_ns;
    if (n_drafts > 0)
        limit = MAX(limit, p->max_step_ns);
    if (n_drafts > 0 && is_probe(s, p, alone))
        limit =
            MAX(limit, probe_of(s, p, drafted, (struct limits){0, limit}, alone, false).high_ns);
    HOLD(s, NULL, BUDGET, is_in_time(s, p, &shape, limit + 1));
    return misses;
}

/* Checks that the shortest prompt of a tenant has rows after it was passed over in 8 turns of the
 * tenant, or in one turn in which decode, or one row, @misses the target. */
static void check_short(struct sim *s, bool misses) {
    const struct plan *p = &s->sched->plan;
    const struct plan_req *best = NULL;

    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        const struct plan_req *q = &p->req[i];

        if (is_prompt(q) && !q->alone && (q->verdict == PLAN_RUN || q->verdict == PLAN_WAIT_TIME) &&
            (!best || q->group < best->group ||
             (q->group == best->group &&
              q->n_tokens - q->n_computed < best->n_tokens - best->n_computed)))
            best = q;
    }
    for (uint32_t i = 0; i < p->n_running + p->n_waiting && p->n_rows > 0; i++) {
        struct sim_client *c = client_of(s, s->sched->planned[i]);
        bool waits = &p->req[i] == best && best->verdict == PLAN_WAIT_TIME &&
                     p->n_rows < p->max_rows && /* decode may have all rows */
                     p->alone == PLAN_NONE && !p->leaves_out && !leaves_time(p, best);

        if (p->req[i].admitted || p->req[i].n_rows > 0) /* a new worker knows no earlier step */
            c->n_passed = 0;
        c->n_passed += waits;
        HOLD(s, c, SHORT,
             c->n_passed <= (waits && misses ? 1 : 8) || s->opts.sched.force_chunk > 0);
    }
}

/* Returns true if the last plan left out a request that could have had a row. */
static bool leaves_out(const struct plan *p) {
    bool any = p->leaves_out;

    for (uint32_t i = 0; i < p->n_running && p->alone == PLAN_NONE && !p->expects; i++)
        any |=
            p->req[i].verdict == PLAN_WAIT_TIME && p->req[i].n_tokens - p->req[i].n_computed == 1;
    return any;
}

/* Returns the time after which decode of the last plan has no further row while a tenant is
 * expected: twice the time of one row of a mean context, less a quarter of the second half where
 * @prompts wait. */
static int64_t turn_most_ns(const struct sim *s, bool prompts) {
    const struct plan *p = &s->sched->plan;
    struct cost_shape one = {0};
    uint64_t context = 0;

    for (uint32_t i = 0; i < p->n_running; i++)
        context += p->req[i].n_computed;
    cost_add(&one, (uint32_t)(context / MAX(p->n_running, 1u)), 1);
    int64_t one_ns = cost_bound_ns(&s->was.cost, &one);
    if (prompts)
        return 2 * one_ns - one_ns / 4;
    return 2 * one_ns;
}

/* The decode rows of a plan: of all requests, and of those that have one. */
struct decode_rows {
    struct cost_shape all, had;
    /* prompts wait; some have no row because a tenant is expected; pages or rows are short */
    bool prompts, cut, short_of;
};

/* Returns true if the rows of @s come at three quarters of the rate of those of @all. */
static bool keeps_three_quarters(const struct cost *c, const struct cost_shape *s,
                                 const struct cost_shape *all) {
    double ns = (double)cost_expect_ns(c, s), all_ns = (double)cost_expect_ns(c, all);

    return s->rows * all_ns >= 0.75 * all->rows * ns;
}

/* Checks that the decode rows of the last plan are not too many while a tenant is expected: one of
 * others, or without some row of theirs the step would be too short or too slow. */
static void check_turn_ends(struct sim *s, const struct decode_rows *d) {
    const struct plan *p = &s->sched->plan;
    int64_t most_ns = turn_most_ns(s, d->prompts);
    uint32_t n = 0;
    bool needed = false;

    for (uint32_t i = 0; i < p->n_running; i++) {
        const struct plan_req *q = &p->req[i];
        struct cost_shape less = d->had;

        if (q->behind || q->n_rows == 0 || q->last || q->n_tokens - q->n_computed != 1)
            continue;
        cost_remove(&less, q->n_computed, 1);
        bool slow = !d->prompts && !keeps_three_quarters(&s->was.cost, &less, &d->all);
        needed |= slow || cost_bound_ns(&s->was.cost, &less) < most_ns;
        n++;
    }
    HOLD(s, NULL, TURNS, n < 2 || needed);
}

/* Checks the requests that decode and have no row, since another tenant is expected: that it may
 * be, that each has its turn, that decode alone keeps most of its rate, and that the step is
 * short. */
static void check_turns(struct sim *s) {
    const struct plan *p = &s->sched->plan;
    struct decode_rows d = {.short_of = p->n_preempted > 0};

    if (p->alone != PLAN_NONE || p->leaves_out)
        return;
    for (uint32_t i = 0; i < p->n_running; i++) {
        struct sim_client *c = client_of(s, s->sched->planned[i]);
        const struct plan_req *q = &p->req[i];
        bool decodes = !q->last && !q->alone && q->n_tokens - q->n_computed == 1;
        bool cut = decodes && q->verdict == PLAN_WAIT_TIME;

        c->n_cut = cut ? c->n_cut + 1 : 0;
        HOLD(s, c, TURNS, c->n_cut <= ROWS_TURNS);
        HOLD(s, c, TURNS, !cut || (p->expects && !q->behind));
        if (cut || (decodes && q->n_rows > 0))
            cost_add(&d.all, q->n_computed, 1);
        if (decodes && q->n_rows > 0)
            cost_add(&d.had, q->n_computed, 1);
        d.prompts |= is_prompt(q) && !q->alone;
        d.cut |= cut;
        d.short_of |= q->verdict == PLAN_WAIT_PAGES;
    }
    if (p->expects && !d.short_of)
        check_turn_ends(s, &d);
    if (!d.cut)
        return;
    bool expected = s->was.expects;
    note_expected(s); /* a plan that follows the end of the step may have no step of its own */
    HOLD(s, NULL, TURNS, expected || s->was.expects);
    HOLD(s, NULL, TURNS, d.prompts || keeps_three_quarters(&s->was.cost, &d.had, &d.all));
}

/* Checks a step that leaves requests out: what it computes, and for how long others were left
 * out. */
static void check_head_start(struct sim *s) {
    const struct plan *p = &s->sched->plan;
    struct cost_shape shape = {0};
    bool starts = false;

    if (!leaves_out(p)) {
        s->was.left_out_ns = p->n_rows > 0 ? 0 : s->was.left_out_ns;
        return;
    }
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++)
        if (p->req[i].n_rows > 0)
            cost_add(&shape, p->req[i].n_computed, p->req[i].n_rows);
    int64_t ns = cost_expect_ns(&s->was.cost, &shape);
    s->was.left_out_ns += ns;
    HOLD(s, NULL, HEAD_START, s->was.left_out_ns <= p->itl_ns / 4);
    for (uint32_t i = 0; i < p->n_running + p->n_waiting; i++) {
        struct sim_client *c = client_of(s, s->sched->planned[i]);

        if (p->req[i].n_rows == 0)
            continue;
        HOLD(s, c, HEAD_START, s->was.behind[c->m.tenant % SIM_TENANTS]);
        starts |= c->head_start_ns < p->itl_ns / 4;
        c->head_start_ns += ns;
    }
    HOLD(s, NULL, HEAD_START, starts);
}

/* Checks that the speed follows the machine, and that one slow step has no effect: half of the last
 * steps are at least as fast, and half at least as slow. */
static void check_estimate(struct sim *s) {
    const struct cost *c = &s->sched->cost;
    uint32_t n = (uint32_t)MIN(c->n_speeds, (uint64_t)COST_SPEEDS), n_low = 0, n_high = 0;

    for (uint32_t i = 0; i < n; i++) {
        n_low += c->recent[i] <= c->speed;
        n_high += c->recent[i] >= c->speed;
    }
    HOLD(s, NULL, ESTIMATE, c->speed > 0 && 2 * n_low >= n && 2 * n_high >= n);
}

static void check_progress(struct sim *s, int r) {
    uint64_t n = s->stats.n_output_tokens + s->stats.n_finished + s->stats.n_rejected;
    uint32_t busy = s->stats.n_running + s->stats.n_waiting;

    LIST_FOREACH(node, &s->sched->compiling) busy--;
    /* There may be no other request while a mask is being made. */
    HOLD(s, NULL, PROGRESS,
         r != SCHED_NO_STEP || busy == 0 || s->n_jobs > 0 || sim_pictures_pending(s));
    if (n != s->was.n_progress || busy == 0) {
        s->was.n_progress = n;
        s->was.at_step = s->n_steps;
    }
    HOLD(s, NULL, PROGRESS, s->n_steps - s->was.at_step <= 4 * s->opts.max_context + 256);
}

void rules_after(struct sim *s, int r) {
    const struct sched_opts *o = &s->opts.sched;
    uint64_t n_finished = s->was.n_ended;

    s->was.n_ended = s->stats.n_finished;
    s->was.n_draft_seqs = 0;
    for (uint32_t i = 0; i < s->n_live; i++) {
        struct sim_client *c = &s->client[s->live[i]];

        c->n_in_flight = c->n_drafts_out = 0;
        c->request = *sched_slot(s->sched, c->m.id);
    }
    check_in_flight(s);
    sim_check_pictures(s);
    check_requests(s);
    check_pager(&s->was.device, s->sched->pager, 1);
    check_draft_pages(s);
    check_host(s);
    check_snapshots(s);
    check_preemptions(s, s->stats.n_finished > n_finished);
    if (s->sched->n_launched > s->was.n_launched) {
        check_admissions(s);
        check_promises(s);
        check_pins(s);
        check_plan_pages(s);
        bool known = o->force_chunk == 0 && o->force_draft == 0;

        check_short(s, known && check_budget(s));
        check_head_start(s);
        check_turns(s);
    }
    check_estimate(s);
    if (s->opts.recorder)
        sim_flight_after(s);
    check_progress(s, r);
    if (s->n_steps % TABLE_STEPS == 0)
        check_table(s);
}

void rules_at_end(struct sim *s) {
    const struct kv_pager *p = s->sched->drafter ? drafter_pager(s->sched->drafter) : NULL;
    struct kv_stats kv;

    kv_pager_check(s->sched->pager);
    if (!p)
        return;
    kv_pager_check(p);
    kv_pager_stats(p, &kv);
    HOLD(s, NULL, DRAFT_PAGES, kv.n_seqs == 0 && kv.n_free + kv.n_cached == kv.n_pages);
}
