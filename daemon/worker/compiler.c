/*
 * compiler - the step thread owns the entries. Each has a task, a job of a pool in which one runs
 * at a time (base/jobs.h); while the pool has it ("away"), the step thread does not touch it.
 *
 * The key of an entry is the isolation key of its request and the text. A hash finds the entry,
 * then key and text are compared. Equal texts cost one compilation for each isolation key: if
 * tenants shared an entry, the time of a request would tell one which schemas another uses.
 */

#include "daemon/worker/compiler.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/jobs.h"
#include "base/list.h"
#include "base/quota.h"
#include "base/try.h"
#include "grammar/constraint.h"
#include "text/tokenizer.h"

#define SLOTS 1024u
#define AWAY_MAX 6    /* most grammars that may be half compiled; each takes memory and a thread */
#define AWAY_OF_ONE 2 /* most entries of one tenant: one is compiled, the next is ready to begin */
/* Twice the limit of the front, which compiles without a vocabulary: a grammar that the front has
 * accepted is not refused here because of the work for token classes. */
#define WORK_MAX 144000000
#define TENANTS 256u /* slots; tenants in the same slot share turns and memory */
/* Units beyond the limit for tenants below their shares: if one tenant holds the whole limit, other
 * tenants need not wait until it gives memory back. */
#define RESERVE (UINT64_MAX / 2)
#define NICE 5 /* so that threads that compute steps come first */

enum entry_state { ENTRY_QUEUED, ENTRY_AWAY, ENTRY_READY };

/* Requests that are blamed if the worker dies in a job. */
struct blame {
    uint64_t id[CRASH_PAGE_COMPILING_MAX];
    uint32_t n;
};

/* The part of an entry that the pool works on. While it is away, only a thread of the pool writes
 * it. */
struct task {
    struct job job;
    struct compiler *compiler;
    /* grammar, then triggers */
    const char *text;
    size_t n_grammar, n_triggers;
    /* requests that waited when the pool got the task */
    struct blame blame;
    struct constraint *constraint;
    struct err err;
    int64_t ns;
};

struct waiting {
    uint64_t id;
    /* slot of its tenant */
    uint32_t slot;
};

/*
 * A text under an isolation key, from its first request to its eviction. QUEUED: in
 * compiler.queued, n_waiting > 0. AWAY: the pool has its task; in no list and not dropped;
 * abandoned when no request waits. READY: in compiler.ready_entries, with a constraint. n_refs
 * requests use it, and others may wait for room in their tenants' shares; it may be dropped when
 * neither exist.
 */
struct entry {
    /* in compiler.queued or compiler.ready_entries */
    struct list link;
    struct entry *next;
    enum entry_state state;
    uint64_t hash;
    uint8_t isolation_key[16];
    char *text;
    /* quarantined: to be compiled alone */
    bool quarantined, abandoned;
    /* AWAY: slot of the tenant for which it is compiled; if n_refs > 0: slot of the tenant that is
     * charged. */
    uint32_t slot;
    uint32_t n_refs, n_waiting, cap_waiting;
    /* number of references by slot; users[slot] > 0 implies n_refs > 0 */
    uint32_t users[TENANTS];
    struct waiting *waiting;
    size_t bytes;
    /* READY: its masks are prepared, or being prepared */
    bool prepared;
    struct task task;
};

/* Entries that are READY and in use are prepared one at a time while the pool has nothing else to
 * do: the slow parts of their masks are then computed before a step needs them. */
struct preparation {
    struct job job;
    bool is_away;
    struct constraint *constraint;
    /* constraint whose entry was dropped meanwhile, or NULL */
    struct constraint *orphan;
    struct blame blame;
};

struct tenant_slot {
    struct quota_account account;
    /* charge for grammars in use and for the states of requests */
    struct quota_charge charge;
    /* value of compiler.turn when the pool last got a task of the tenant */
    uint64_t served;
    uint32_t n_away;
};

/*
 * The step thread owns everything except tasks that are away. n_queued and n_away count entries by
 * state, n_held the requests that wait for room although their grammars are ready; bytes is the
 * memory of all entries that are READY.
 */
struct compiler {
    struct sched_constraints source;
    struct grammar_vocab *vocab;
    struct crash_page *crash_page;
    struct jobs *jobs;
    /* set while results are delivered; NULL: results are dropped */
    compiler_ready_fn ready;
    void *ready_ctx;
    int fd;
    struct entry *slot[SLOTS];
    /* ready_entries: the most recently used first */
    struct list queued, ready_entries;
    uint32_t n_away, n_entries, n_queued, n_held;
    uint64_t turn;
    struct quota memory;
    struct tenant_slot tenant[TENANTS];
    struct preparation preparation;
    /* memory was given back since the last hand_out_held() */
    bool freed;
    /* bytes: memory of READY entries; max_bytes: limit of entries that are not in use */
    size_t bytes, max_bytes;
    /* memory of the matchers of requests */
    size_t state_bytes;
    uint64_t n_hits, n_compiled, n_prepared, n_refused, ns;
};

/* ---- functions on a thread ---- */

static struct task *task_of(struct job *j) {
    return CONTAINER_OF(j, struct task, job);
}

static struct preparation *preparation_of(struct job *j) {
    return CONTAINER_OF(j, struct preparation, job);
}

static void compile(struct job *j);
static void compiler_prepare(struct job *j);

/* Implements jobs_opts.turn. Notes in the crash page which requests to blame if the worker dies
 * now: those of the grammar that is compiled or prepared, or the one whose mask is computed;
 * Requests whose jobs are paused are not blamed. */
static void compiler_on_turn(void *ctx, struct job *j, bool has) {
    struct compiler *c = ctx;
    struct blame one = {.n = 1};
    const struct blame *blame = &one;

    if (!c->crash_page)
        return;
    if (j->run == compile)
        blame = &task_of(j)->blame;
    else if (j->run == compiler_prepare)
        blame = &preparation_of(j)->blame;
    else
        one.id[0] = CONTAINER_OF(j, struct constrain_job, job)->id;
    for (uint32_t i = 0; i < blame->n && has; i++)
        c->crash_page->compiling[i] = blame->id[i];
    __atomic_store_n(&c->crash_page->n_compiling, has ? blame->n : 0, __ATOMIC_RELEASE);
}

/* Compiles a task: sets t->constraint or t->err. */
static void compile(struct job *j) {
    struct task *t = task_of(j);
    int64_t begin = clock_now(clock_monotonic());
    struct grammar_limits limits = CONSTRAINT_LIMITS;

    limits.max_work = WORK_MAX;
    int r = constraint_new(&t->constraint, t->compiler->vocab, t->text, t->n_grammar,
                           t->text + t->n_grammar, t->n_triggers, &limits, &t->err);

    t->ns = clock_now(clock_monotonic()) - begin;
    if (r < 0 && t->err.status == 0)
        err_set_code(&t->err, 503, "out_of_memory", NULL, "out of memory for the grammar");
}

static void compiler_prepare(struct job *j) {
    constraint_prepare(preparation_of(j)->constraint);
}

static void compiler_wake(void *ctx) {
    const struct compiler *c = ctx;
    const uint64_t one = 1;
    ssize_t r = write(c->fd, &one, sizeof(one));

    (void)r; /* cannot fail: the counter cannot overflow */
}

/* ---- entries ---- */

static uint64_t compiler_hash(const struct submit *m) {
    const struct str key = {(const char *)m->isolation_key, sizeof(m->isolation_key)};
    const struct str part[] = {key, m->grammar, m->triggers};
    uint64_t h = hash_step(m->grammar.len, m->triggers.len), word;

    for (size_t k = 0; k < ARRAY_SIZE(part); k++) {
        uint32_t i = 0;

        for (; i + sizeof(word) <= part[k].len; i += (uint32_t)sizeof(word)) {
            memcpy(&word, part[k].data + i, sizeof(word));
            h = hash_step(h, word);
        }
        for (; i < part[k].len; i++)
            h = hash_step(h, (uint8_t)part[k].data[i]);
    }
    return h;
}

static bool is_entry_of(const struct entry *e, const struct submit *m) {
    return e->task.n_grammar == m->grammar.len &&
           memcmp(e->isolation_key, m->isolation_key, sizeof(e->isolation_key)) == 0 &&
           e->task.n_triggers == m->triggers.len &&
           memcmp(e->text, m->grammar.data, m->grammar.len) == 0 &&
           (m->triggers.len == 0 ||
            memcmp(e->text + m->grammar.len, m->triggers.data, m->triggers.len) == 0);
}

static struct entry *entry_free(struct entry *e) {
    if (e) {
        constraint_free(e->task.constraint);
        free(e->waiting);
        free(e->text);
        free(e);
    }
    return NULL;
}

/* Removes @e from all lists and frees it. */
static void compiler_drop(struct compiler *c, struct entry *e) {
    struct entry **at = &c->slot[e->hash % SLOTS];

    assert(e->state != ENTRY_AWAY && e->n_refs == 0);
    if (c->preparation.is_away && c->preparation.constraint == e->task.constraint) {
        c->preparation.orphan = STEAL(e->task.constraint);
        jobs_abandon(c->jobs, &c->preparation.job);
    }
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    list_remove(&e->link);
    assert(c->n_entries > 0 && c->bytes >= e->bytes);
    c->n_entries--;
    c->n_queued -= e->state == ENTRY_QUEUED;
    c->bytes -= e->bytes;
    entry_free(e);
}

/* Adds a queued entry for the isolation key and text of @m. Returns NULL if memory is short. */
static struct entry *compiler_add(struct compiler *c, uint64_t hash, const struct submit *m) {
    struct entry *e = calloc(1, sizeof(*e));

    if (!e)
        return NULL;
    *e = (struct entry){.hash = hash, .state = ENTRY_QUEUED};
    memcpy(e->isolation_key, m->isolation_key, sizeof(e->isolation_key));
    e->text = malloc((size_t)m->grammar.len + m->triggers.len + 1);
    if (!e->text)
        return entry_free(e);
    memcpy(e->text, m->grammar.data, m->grammar.len);
    if (m->triggers.len > 0)
        memcpy(e->text + m->grammar.len, m->triggers.data, m->triggers.len);
    e->task = (struct task){
        .compiler = c, .text = e->text, .n_grammar = m->grammar.len, .n_triggers = m->triggers.len};
    e->next = c->slot[hash % SLOTS];
    c->slot[hash % SLOTS] = e;
    list_push_back(&c->queued, &e->link);
    c->n_entries++;
    c->n_queued++;
    return e;
}

static int add_waiting(struct compiler *c, struct entry *e, struct waiting w) {
    if (!ARRAY_GROW(e->waiting, e->n_waiting, e->cap_waiting, 4))
        return -ENOMEM;
    e->waiting[e->n_waiting++] = w;
    c->n_held += e->state == ENTRY_READY;
    return 0;
}

static void remove_waiting(struct compiler *c, struct entry *e, uint32_t i) {
    assert(i < e->n_waiting);
    e->n_waiting--;
    memmove(&e->waiting[i], &e->waiting[i + 1], (e->n_waiting - i) * sizeof(*e->waiting));
    c->n_held -= e->state == ENTRY_READY;
}

/* ---- charges for memory ---- */

static struct tenant_slot *compiler_slot(struct compiler *c, const struct submit *m) {
    struct tenant_slot *t = &c->tenant[m->tenant % TENANTS];

    if (m->weight_milli > 0)
        t->account.weight = m->weight_milli / 1000.0;
    return t;
}

/* Returns whether the tenant of @slot may use more memory. */
static bool compiler_has_room(struct compiler *c, uint32_t slot) {
    return quota_make_room(&c->memory, &c->tenant[slot].charge, 1, NULL);
}

static void charge_slot(struct compiler *c, uint32_t slot, int64_t more) {
    struct quota_charge *q = &c->tenant[slot].charge;

    assert(more >= 0 || q->n >= (uint64_t)-more);
    quota_charge_set(q, q->n + (uint64_t)more);
    if (more < 0 && c->n_held > 0 && !c->freed) {
        c->freed = true;
        compiler_wake(c);
    }
}

/* Implements sched_constraints.charge. */
static void compiler_charge(void *ctx, uint32_t tenant, int64_t more) {
    struct compiler *c = ctx;

    assert(more >= 0 || c->state_bytes >= (uint64_t)-more);
    c->state_bytes += (uint64_t)more;
    charge_slot(c, tenant % TENANTS, more);
}

/* Counts one request more that uses @e; the tenant of @slot is charged if it is the first. */
static void entry_retain(struct compiler *c, struct entry *e, uint32_t slot) {
    assert(e->state == ENTRY_READY && e->task.constraint);
    e->users[slot]++;
    if (e->n_refs++ > 0)
        return;
    e->slot = slot;
    charge_slot(c, slot, (int64_t)e->bytes);
}

/* Counts one request less. If the charged tenant has no request left, charges the tenant with the
 * most requests. */
static void drop_ref(struct compiler *c, struct entry *e, uint32_t slot) {
    uint32_t most = 0;

    assert(e->n_refs > 0 && e->users[slot] > 0);
    e->n_refs--;
    if (--e->users[slot] > 0 || slot != e->slot)
        return;
    charge_slot(c, slot, -(int64_t)e->bytes);
    for (uint32_t i = 1; i < TENANTS; i++)
        most = e->users[i] > e->users[most] ? i : most;
    if (e->n_refs == 0)
        return;
    assert(e->users[most] > 0);
    e->slot = most;
    charge_slot(c, most, (int64_t)e->bytes);
}

/* Returns the tenant to compile @e for: of the tenants that wait for it, have room and may have one
 * more task away, the one served longest ago. NULL if there is none. */
static struct tenant_slot *payer_of(struct compiler *c, const struct entry *e) {
    struct tenant_slot *best = NULL;

    for (uint32_t i = 0; i < e->n_waiting; i++) {
        struct tenant_slot *t = &c->tenant[e->waiting[i].slot];

        if ((best && best->served <= t->served) || t->n_away >= AWAY_OF_ONE ||
            !compiler_has_room(c, e->waiting[i].slot))
            continue;
        best = t;
    }
    return best;
}

/* Returns the first entry of the tenant served longest ago among those that have room, or NULL. */
static struct entry *compiler_next_entry(struct compiler *c) {
    const struct tenant_slot *first = NULL;
    struct entry *best = NULL;

    LIST_FOREACH_ENTRY(e, &c->queued, struct entry, link) {
        const struct tenant_slot *t = e->quarantined ? NULL : payer_of(c, e);

        if (!t || (first && first->served <= t->served))
            continue;
        first = t;
        best = e;
        e->slot = (uint32_t)(t - c->tenant);
    }
    return best;
}

static void compiler_on_compiled(struct job *j);

/* Gives the task of @e to the pool. Returns 0, or -ENOMEM with nothing changed. */
static int compiler_dispatch(struct compiler *c, struct entry *e) {
    struct task *t = &e->task;

    assert(e->state == ENTRY_QUEUED && e->n_waiting > 0);
    t->blame.n = MIN(e->n_waiting, CRASH_PAGE_COMPILING_MAX);
    for (uint32_t i = 0; i < t->blame.n; i++)
        t->blame.id[i] = e->waiting[i].id;
    t->job =
        (struct job){.run = compile, .done = compiler_on_compiled, .tenant = e->slot, .weight = 1};

    TRY(jobs_submit(c->jobs, &t->job));
    list_remove(&e->link);
    c->tenant[e->slot].served = ++c->turn;
    c->tenant[e->slot].n_away++;
    e->state = ENTRY_AWAY;
    e->abandoned = false;
    c->n_queued--;
    c->n_away++;
    return 0;
}

static void compiler_on_prepared(struct job *j) {
    struct preparation *p = preparation_of(j);
    struct compiler *c = CONTAINER_OF(p, struct compiler, preparation);

    assert(p->is_away);
    p->is_away = false;
    p->orphan = constraint_free(p->orphan);
    c->n_prepared++;
}

static void prepare_next(struct compiler *c) {
    struct preparation *p = &c->preparation;

    LIST_FOREACH_ENTRY(e, &c->ready_entries, struct entry, link) {
        if (p->is_away || e->prepared || e->n_refs == 0)
            continue;
        *p = (struct preparation){.job = {.run = compiler_prepare,
                                          .done = compiler_on_prepared,
                                          .tenant = e->slot,
                                          .weight = 1,
                                          .background = true},
                                  .constraint = e->task.constraint,
                                  .blame = e->task.blame};
        p->is_away = e->prepared = jobs_submit(c->jobs, &p->job) == 0;
        return;
    }
}

/* Gives the pool as many tasks as it may have. If memory is short, the next call continues. */
static void dispatch_waiting(struct compiler *c) {
    struct entry *e;

    while (c->n_away < AWAY_MAX && (e = compiler_next_entry(c)) && compiler_dispatch(c, e) == 0)
        ;
    prepare_next(c);
}

static struct entry *first_quarantined(const struct compiler *c) {
    LIST_FOREACH_ENTRY(e, &c->queued, struct entry, link) {
        if (e->quarantined)
            return e;
    }
    return NULL;
}

/* ---- functions that the scheduler calls ---- */

/* Implements sched_constraints.ask: hands out a compiled entry at once if its tenant has room;
 * otherwise the request waits for the entry. */
static int compiler_ask(void *ctx, const struct submit *m, const struct constraint **out,
                        struct err *err) {
    struct compiler *c = ctx;
    uint64_t hash = compiler_hash(m);
    const struct waiting w = {m->id, (uint32_t)(compiler_slot(c, m) - c->tenant)};
    struct entry *e = c->slot[hash % SLOTS];

    while (e && !is_entry_of(e, m))
        e = e->next;
    c->n_hits += e != NULL;
    if (!e)
        e = compiler_add(c, hash, m);
    if (!e)
        return -ENOMEM;
    if (e->state == ENTRY_READY && compiler_has_room(c, w.slot)) {
        entry_retain(c, e, w.slot);
        list_remove(&e->link);
        list_push_front(&c->ready_entries, &e->link);
        *out = e->task.constraint;
        return 0;
    }
    e->quarantined |= m->n_faults > 0;
    if (add_waiting(c, e, w) < 0) {
        if (e->state == ENTRY_QUEUED && e->n_waiting == 0)
            compiler_drop(c, e);
        return -ENOMEM;
    }
    dispatch_waiting(c);
    return 1;
}

/* Implements sched_constraints.submit. */
static int compiler_submit(void *ctx, struct constrain_job *j) {
    struct compiler *c = ctx;

    j->job.tenant %= TENANTS;
    return jobs_submit(c->jobs, &j->job);
}

static bool forget_in(struct compiler *c, struct entry *e, uint64_t id) {
    for (uint32_t i = 0; i < e->n_waiting; i++) {
        if (e->waiting[i].id == id) {
            remove_waiting(c, e, i);
            return true;
        }
    }
    return false;
}

/* Implements sched_constraints.forget: ends a compilation for which no request waits any more. */
static void compiler_forget(void *ctx, uint64_t id) {
    struct compiler *c = ctx;

    for (uint32_t i = 0; i < SLOTS; i++) {
        for (struct entry *e = c->slot[i]; e; e = e->next) {
            if (!forget_in(c, e, id))
                continue;
            if (e->n_waiting > 0)
                return;
            if (e->state == ENTRY_QUEUED) {
                compiler_drop(c, e);
            } else if (e->state == ENTRY_AWAY) {
                e->abandoned = true;
                jobs_abandon(c->jobs, &e->task.job);
            }
            return;
        }
    }
}

/* Drops entries that are not in use, the least recently used first, down to max_bytes. */
static void evict(struct compiler *c) {
    struct list *node = c->ready_entries.prev;

    while (c->bytes > c->max_bytes && node != &c->ready_entries) {
        struct entry *e = LIST_ENTRY(node, struct entry, link);

        node = node->prev;
        if (e->n_refs == 0 && e->n_waiting == 0)
            compiler_drop(c, e);
    }
}

/* Implements sched_constraints.release. */
static void compiler_release(void *ctx, const struct constraint *constraint, uint32_t tenant) {
    struct compiler *c = ctx;

    LIST_FOREACH_ENTRY(e, &c->ready_entries, struct entry, link) {
        if (e->task.constraint == constraint) {
            drop_ref(c, e, tenant % TENANTS);
            break;
        }
    }
    if (c->ready)
        return; /* compiler_deliver_ready() is under way, and its caller completes the rest */
    evict(c);
    dispatch_waiting(c);
}

/* ---- results ---- */

/* Delivers the constraint to the waiting requests whose tenants have room. Each request is charged
 * before the next one is checked. */
static void hand_out(struct compiler *c, struct entry *e) {
    assert(e->state == ENTRY_READY && e->task.constraint);
    for (uint32_t i = 0; i < e->n_waiting;) {
        const struct waiting w = e->waiting[i];

        if (!compiler_has_room(c, w.slot)) {
            i++;
            continue;
        }
        remove_waiting(c, e, i);
        entry_retain(c, e, w.slot);
        if (!c->ready(c->ready_ctx, w.id, e->task.constraint, NULL))
            drop_ref(c, e, w.slot);
    }
}

/* Reports the error to all waiting requests. Drops the entry first, since a refused request may ask
 * again. */
static void compiler_refuse(struct compiler *c, struct entry *e) {
    CLEANUP(freep) struct waiting *w = STEAL(e->waiting);
    struct err err = e->task.err;
    uint32_t n = e->n_waiting;

    compiler_drop(c, e);
    c->n_refused++;
    for (uint32_t i = 0; i < n; i++)
        c->ready(c->ready_ctx, w[i].id, NULL, &err);
}

/* Ends an abandoned compilation: drops the entry, or queues it again if requests have asked for it
 * since. */
static void begin_again(struct compiler *c, struct entry *e) {
    e->task.constraint = constraint_free(e->task.constraint);
    memset(&e->task.err, 0, sizeof(e->task.err));
    assert(list_empty(&e->link) && e->n_refs == 0);
    e->state = ENTRY_QUEUED;
    list_push_front(&c->queued, &e->link);
    c->n_queued++;
    if (e->n_waiting == 0)
        compiler_drop(c, e);
}

/* Takes a task back from the pool. */
static void compiler_on_compiled(struct job *j) {
    struct task *t = task_of(j);
    struct entry *e = CONTAINER_OF(t, struct entry, task);
    struct compiler *c = t->compiler;

    assert(e->state == ENTRY_AWAY && c->n_away > 0 && c->tenant[e->slot].n_away > 0);
    c->n_away--;
    c->tenant[e->slot].n_away--;
    c->ns += (uint64_t)t->ns;
    if (e->abandoned || !c->ready) {
        begin_again(c, e);
        return;
    }
    e->state = ENTRY_READY;
    list_push_front(&c->ready_entries, &e->link);
    if (!t->constraint) {
        compiler_refuse(c, e);
        return;
    }
    c->n_compiled++;
    e->bytes = sizeof(*e) + t->n_grammar + t->n_triggers + constraint_bytes(t->constraint);
    c->bytes += e->bytes;
    c->n_held += e->n_waiting;
    hand_out(c, e);
}

/* Hands memory that was given back to the requests that wait for it, beginning with the least
 * recently used grammar. */
static void hand_out_held(struct compiler *c) {
    c->freed = false;
    for (struct list *node = c->ready_entries.prev; node != &c->ready_entries; node = node->prev)
        hand_out(c, LIST_ENTRY(node, struct entry, link));
}

/* Reads the counter first, so that a job that ends later wakes the loop again. */
static void compiler_deliver_ready(struct compiler *c, compiler_ready_fn ready, void *ctx) {
    uint64_t count;
    ssize_t r = read(c->fd, &count, sizeof(count));

    (void)r;
    c->ready = ready;
    c->ready_ctx = ctx;
    jobs_deliver(c->jobs, JOBS_WITHOUT_BUDGET);
    if (c->freed && ready)
        hand_out_held(c);
    c->ready = NULL;
}

bool compiler_deliver(struct compiler *c, compiler_ready_fn ready, void *ctx) {
    if (c->turn == 0)
        return false; /* the pool never got a task */
    uint32_t n_out = jobs_n(c->jobs);
    compiler_deliver_ready(c, ready, ctx);
    bool came_back = jobs_n(c->jobs) < n_out;
    evict(c);
    dispatch_waiting(c);
    return came_back;
}

bool compiler_has_quarantined(const struct compiler *c) {
    return first_quarantined(c) != NULL;
}

/* Waits until the pool has no job left, masks included. */
static void compiler_settle(struct compiler *c, compiler_ready_fn ready, void *ctx) {
    struct pollfd p = {c->fd, POLLIN, 0};

    while (jobs_n(c->jobs) > 0) {
        poll(&p, 1, -1);
        compiler_deliver_ready(c, ready, ctx);
    }
}

void compiler_run_quarantined(struct compiler *c, compiler_ready_fn ready, void *ctx) {
    compiler_settle(c, ready, ctx);
    struct entry *e = first_quarantined(c);

    if (e && compiler_dispatch(c, e) == 0)
        compiler_settle(c, ready, ctx);
    prepare_next(c);
    compiler_settle(c, ready, ctx);
    evict(c);
    dispatch_waiting(c);
}

/* ---- life ---- */

static int compiler_start(struct compiler *c, const struct tokenizer *t) {
    struct jobs_opts o = {.name = "weft-compile",
                          .n_running = 1,
                          .n_threads = AWAY_MAX + 1,
                          .nice = NICE,
                          .clock = clock_monotonic(),
                          .ctx = c,
                          .wake = compiler_wake,
                          .turn = compiler_on_turn};

    c->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (c->fd < 0)
        return -errno;
    TRY(grammar_vocab_of(&c->vocab, t));
    return jobs_new(&c->jobs, &o);
}

int compiler_new(struct compiler **out, const struct tokenizer *t, size_t max_bytes,
                 struct crash_page *crash_page) {
    struct compiler *c = calloc(1, sizeof(*c));

    if (!c)
        return -ENOMEM;
    c->source = (struct sched_constraints){
        c, compiler_ask, compiler_forget, compiler_charge, compiler_release, compiler_submit};
    c->crash_page = crash_page;
    c->max_bytes = max_bytes;
    quota_init(&c->memory, max_bytes * COMPILER_USED_FACTOR, RESERVE);
    for (uint32_t i = 0; i < TENANTS; i++) {
        quota_account_init(&c->tenant[i].account, &c->memory.root, 1);
        quota_charge_init(&c->tenant[i].charge, &c->tenant[i].account);
    }
    list_init(&c->queued);
    list_init(&c->ready_entries);
    int r = compiler_start(c, t);
    if (r < 0) {
        compiler_free(c);
        return r;
    }
    *out = c;
    return 0;
}

struct compiler *compiler_free(struct compiler *c) {
    if (!c)
        return NULL;
    if (c->jobs) {
        jobs_abandon_all(c->jobs);
        compiler_settle(c, NULL, NULL);
    }
    jobs_free(c->jobs);
    for (uint32_t i = 0; i < SLOTS; i++)
        for (struct entry *e = c->slot[i], *after; e; e = after) {
            after = e->next;
            entry_free(e);
        }
    grammar_vocab_free(c->vocab);
    if (c->fd >= 0)
        close(c->fd);
    free(c);
    return NULL;
}

const struct sched_constraints *compiler_source(struct compiler *c) {
    return &c->source;
}

int compiler_fd(const struct compiler *c) {
    return c->fd;
}

void compiler_stats(const struct compiler *c, struct compiler_stats *out) {
    *out = (struct compiler_stats){
        .n_entries = c->n_entries,
        .n_queued = c->n_queued,
        .n_away = c->n_away,
        .bytes = c->bytes,
        .used = c->memory.root.used,
        .state_bytes = c->state_bytes,
        .shared_bytes = grammar_vocab_shared_bytes(c->vocab),
        .n_held = c->n_held,
        .n_hits = c->n_hits,
        .n_compiled = c->n_compiled,
        .n_prepared = c->n_prepared,
        .n_refused = c->n_refused,
        .ns = c->ns,
    };
}
