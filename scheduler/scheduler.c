/*
 * scheduler - the object: takes requests, runs steps, gives events. plan.c decides a step, step.c
 * runs it.
 *
 * A request is in the table of ids from its submission until the front has acknowledged its end and
 * no step in flight has it. It is in `waiting` while it waits, in `running` while it has pages, and
 * in `pending` while the front lacks events of it.
 */

#include "scheduler/scheduler.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buggify.h"
#include "base/try.h"
#include "scheduler/constrain.h"
#include "scheduler/events.h"
#include "scheduler/late.h"
#include "scheduler/policy.h"
#include "scheduler/scheduler_private.h"
#include "text/tokenizer.h"

#define MEDIA_MAX 16384u              /* contents of pictures that have a number at the same time */
#define CHECK_NS INT64_C(10000000000) /* time between two checks of the pager when idle */
#define CHECK_PARTS 8u                /* parts of the pager's check; one part per step */

/* ---- ids ---- */

struct request **sched_slot(struct sched *s, uint64_t id) {
    struct request **at = &s->by_id[(id * 0x9E3779B97F4A7C15u) >> 52];

    while (*at && (*at)->id != id)
        at = &(*at)->next_id;
    return at;
}

static void sched_free_request(struct request *r) {
    r->draft.spec = spec_request_free(r->draft.spec);
    drafter_forget(r);
    late_release(r);
    request_free(r);
}

/* ---- life ---- */

/* Adapts options to recurrent layers. A page is useless without the state after it, and a state
 * cannot go back. So prefixes are shared where snapshots exist, drafts need room for the state
 * before them, nothing is pinned, and each running request needs a state slot. */
static void adapt_to_states(struct sched *s) {
    /* Keys of an encoder depend on the tokens after them, so prefixes cannot be shared. */
    if (s->info->encoder) {
        s->opts.no_prefix_sharing = true;
        s->opts.no_pins = true;
        s->opts.no_speculation = true;
    }
    if (s->info->n_states == 0)
        return;
    s->opts.no_prefix_sharing |= s->info->n_snapshots == 0;
    s->opts.no_pins = true;
    s->opts.no_speculation |= s->info->n_snapshots == 0;
    s->opts.max_seqs = MIN(s->opts.max_seqs, s->info->n_states);
}

/* Allows as many sequences as the engine has window pages for, so that a sequence never lacks one
 * and plans count only pages of full attention. */
static void adapt_to_windows(struct sched *s) {
    if (s->info->n_windows > 0)
        s->opts.max_seqs = MIN(s->opts.max_seqs, s->info->window_seqs);
}

static void init_view(struct sched *s) {
    uint64_t slots = (uint64_t)s->info->n_pages * s->info->page_tokens;

    s->view = (struct sched_view){
        .no_pins = s->opts.no_pins,
        .no_sharing = s->opts.no_prefix_sharing,
        .n_pages = s->info->n_pages,
        .n_slots = (uint32_t)MIN(slots, UINT32_MAX / 2),
        .max_rows = s->opts.max_rows,
        .page_tokens = s->info->page_tokens,
        .max_seqs = s->opts.max_seqs,
        .max_bypass = s->opts.max_bypass,
        .info = s->info,
        .tokenizer = s->opts.tokenizer,
        .constraints = s->opts.constraints,
        .clock = s->clock,
        .cost = &s->cost,
        .estimate = &s->estimate,
        .sessions = &s->sessions,
        .plan = &s->plan,
        .waiting = &s->waiting,
        .running = &s->running,
        .compiling = &s->compiling,
        .pending = &s->pending,
        .fair = &s->fair,
        .pins = &s->pins,
        .media = &s->media,
        .pictures = &s->pictures,
        .stats = &s->stats,
    };
}

static int init_pager(struct sched *s) {
    const struct engine_info *i = s->info;
    uint64_t slots = (uint64_t)i->n_pages * i->page_tokens;
    struct kv_opts o = {
        .n_pages = i->n_pages,
        .page_tokens = i->page_tokens,
        .max_seqs = s->opts.max_seqs,
        .max_seq_tokens = (uint32_t)MIN(slots, i->max_context),
        .hash_seed = s->opts.hash_seed,
        .hash_bits = s->opts.hash_bits,
    };

    if (!s->opts.no_pins)
        o.max_seqs += PIN_MAX;
    memcpy(o.fingerprint, i->fingerprint, sizeof(o.fingerprint));
    o.watch = s->opts.tells_blocks;
    o.n_states = i->n_states;
    /* A slot for the hidden state that drafts begin with counts as a slot for a recurrent state. */
    if (i->n_states == 0)
        o.n_states = i->n_slots;
    o.n_snapshots = i->n_snapshots;
    o.n_windows = i->n_windows;
    o.window = i->window;
    TRY(kv_pager_new(&s->pager, &o));
    o.n_states = i->n_states;
    s->view.pager = s->pager;
    TRY(states_init(&s->states, &s->view));
    if (i->n_states > 0)
        o.peer = s->pager;
    return tier_init(s, &o);
}

static int init_plan(struct sched *s) {
    uint32_t n = s->opts.max_seqs + SCHED_CANDIDATES;

    s->plan_req = calloc(n, sizeof(*s->plan_req));
    s->planned = calloc(n, sizeof(*s->planned));
    s->plan = (struct plan){
        .req = s->plan_req,
        .scratch = calloc(n, sizeof(*s->plan.scratch)),
        .page_tokens = s->info->page_tokens,
        .max_rows = s->opts.max_rows,
        .max_seqs = s->opts.max_seqs,
        .max_bypass = s->opts.max_bypass,
        .force_chunk = s->opts.force_chunk,
        .whole = s->info->encoder,
        .force_draft = s->opts.force_draft,
        .itl_ns = (int64_t)s->opts.itl_target_ms * 1000000,
        /* An arrival waits for the steps in flight. */
        .max_step_ns = (int64_t)s->opts.max_step_ms * 1000000 / s->opts.depth,
        .cost = &s->cost,
    };
    if (s->states.on)
        s->plan.state_pages = s->states.pages;
    if (!s->plan_req || !s->planned || !s->plan.scratch)
        return -ENOMEM;
    return 0;
}

static uint32_t n_mask_tokens(const struct sched *s) {
    if (!s->opts.tokenizer)
        return s->info->n_vocab;
    return MAX(s->info->n_vocab, tokenizer_n_vocab(s->opts.tokenizer));
}

/* Opens the draft model, or else the model's own block. Returns 0 or a negative errno. */
static int init_drafter(struct sched *s) {
    bool own = !s->opts.draft_engine;

    if ((own && !s->info->n_slots) || s->opts.no_speculation)
        return 0;
    uint64_t bytes = s->info->draft_bytes;
    if (!own)
        bytes = engine_info(s->opts.draft_engine)->weight_bytes;
    struct drafter_opts o = {
        .engine = s->opts.draft_engine,
        .step = &s->step,
        .clock = s->clock,
        .max_seqs = s->opts.max_seqs,
        .max_rows = s->opts.max_rows,
        .n_vocab = n_mask_tokens(s),
        .catch_up_ns = (int64_t)s->opts.itl_target_ms * 1000000 / DRAFTER_CATCH_UP_PART,
        .size = (float)bytes / (float)MAX(s->info->weight_bytes, 1),
        .force = s->opts.force_draft,
    };

    if (own) {
        o.engine = s->engine;
        o.block = s->pager;
    }
    return drafter_new(&s->drafter, &o);
}

static int sched_init(struct sched *s) {
    uint32_t t = s->info->page_tokens;
    uint32_t max_seq_pages = MIN(s->info->n_pages, (s->info->max_context + t - 1) / t);
    struct spec_opts spec = {
        .off = s->opts.no_speculation,
        .max_draft = s->opts.max_draft,
        .no_sources = s->opts.no_sources,
        .source = s->opts.drafts,
    };

    init_view(s);
    TRY(init_pager(s));
    pin_init(&s->pins, &s->view);
    pictures_init(&s->pictures, &s->view, s->engine, s->opts.picture_bytes);
    if (s->info->picture_width > 0)
        TRY(kv_media_init(&s->media, MEDIA_MAX));
    recorder_init(&s->recorder, &s->view, s->opts.flight, s->opts.tape, s->opts.tape_bytes);
    TRY(init_plan(s));
    prewarm_init(&s->prewarm, &s->view);
    TRY(spec_init(&s->spec, &spec));
    TRY(init_drafter(s));
    TRY(fair_init(&s->fair, &s->view));
    s->leave_disk_ns = INT64_MAX;
    if (!s->opts.disk.waits)
        tier_open(s);
    for (uint32_t i = 0; i < SCHED_DEPTH_MAX; i++) {
        TRY(batch_init(&s->batch[i], s->opts.max_rows, s->opts.max_seqs, max_seq_pages,
                       n_mask_tokens(s), s->info->n_windows > 0));
        s->batch[i].picture_width = s->info->picture_width;
    }
    return 0;
}

int sched_new(struct sched **out, const struct sched_opts *opts, struct engine *engine,
              struct clock *clock) {
    const struct engine_info *info = engine_info(engine);

    if (opts->max_seqs == 0 || opts->max_rows == 0 || opts->max_step_ms == 0 ||
        opts->depth > MIN(info->depth, SCHED_DEPTH_MAX))
        return -EINVAL;
    CLEANUP(sched_freep) struct sched *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->opts = *opts;
    s->opts.depth = MAX(opts->depth, 1);
    if (opts->itl_target_ms == 0)
        s->opts.itl_target_ms = opts->max_step_ms;
    s->engine = engine;
    s->info = info;
    s->clock = clock;
    s->next_deadline_ns = INT64_MAX;
    list_init(&s->waiting);
    list_init(&s->running);
    list_init(&s->compiling);
    list_init(&s->pending);
    adapt_to_states(s);
    adapt_to_windows(s);
    if (s->info->n_slots > 0)
        s->opts.max_seqs = MIN(s->opts.max_seqs, s->info->n_slots);
    cost_init_for(&s->cost, &(struct cost_model){
                                .weight_bytes = (double)info->weight_bytes,
                                .n_params = (double)info->n_params,
                                .key_bytes = (double)info->page_bytes / info->page_tokens,
                                .pair_ops = 2.0 * info->n_embd * info->n_layer,
                                .own_processor = info->n_devices > 0 && info->n_host_experts == 0 &&
                                                 info->n_host_ffn == 0,
                            });
    sessions_init(&s->sessions);
    estimate_init(&s->estimate, &s->sessions);
    TRY(sched_init(s));
    *out = STEAL(s);
    return 0;
}

struct sched *sched_free(struct sched *s) {
    struct engine_result res;

    if (!s)
        return NULL;
    /* Steps in flight read the batches and the tokens of requests. */
    while (!s->lost && sched_n_in_flight(s) > 0)
        if (engine_wait(s->engine, s->batch[++s->n_waited % SCHED_DEPTH_MAX].b.step, &res) < 0)
            s->lost = true;
    for (uint32_t i = 0; i < SCHED_ID_SLOTS; i++)
        for (struct request *r = s->by_id[i], *next; r; r = next) {
            next = r->next_id;
            request_free_pages(r);
            r->n_in_flight = 0;
            pictures_release(&s->pictures, r);
            sched_free_request(r);
        }
    for (uint32_t i = 0; i < SCHED_DEPTH_MAX; i++)
        batch_deinit(&s->batch[i]);
    pictures_deinit(&s->pictures);
    kv_media_deinit(&s->media);
    spec_deinit(&s->spec);
    drafter_free(s->drafter);
    tier_deinit(s);
    states_deinit(&s->states);
    fair_deinit(&s->fair);
    pin_deinit(&s->pins);
    sessions_deinit(&s->sessions);
    recorder_deinit(&s->recorder);
    kv_pager_free(s->pager);
    free(s->plan.scratch);
    free(s->plan_req);
    free(s->planned);
    free(s);
    return NULL;
}

/* ---- requests ---- */

void sched_maybe_free(struct sched *s, struct request *r) {
    if (r->state != REQUEST_DONE || !r->acked.end || r->n_in_flight > 0)
        return;
    struct request **at = sched_slot(s, r->id);
    assert(*at == r && !r->seq);
    *at = r->next_id;
    sched_free_request(r);
}

static void sched_count_end(struct sched *s, const struct request *r) {
    s->stats.n_rejected += r->end.refused;
    s->stats.n_finished += !r->end.refused;
    s->stats.n_cancelled += r->end.finish == FINISH_CANCELLED;
}

void sched_finish(struct sched *s, struct request *r, enum finish_reason why) {
    assert(r->state != REQUEST_DONE && why != FINISH_NONE);
    if (request_is_prewarm(r)) {
        prewarm_finish(&s->prewarm, r, why);
        return;
    }
    features_finish(s, r, why);
    list_remove(&r->queued.link);
    request_finish(r, why);
    sched_count_end(s, r);
    request_note_pending(r, &s->pending);
}

/* Queues @r, which can run now unless its pages must be read from the disk. */
static void enqueue(struct sched *s, struct request *r) {
    assert(r->state == REQUEST_WAITING && !r->grammar.compiling && list_empty(&r->queued.link));
    if (!tier_begin_load(s, r))
        queue_insert(&s->waiting, &r->queued);
}

/* Refuses @r, whose ACCEPTED event the front does not have yet. */
static void sched_refuse(struct sched *s, struct request *r, const struct err *why) {
    r->end.why = *why;
    r->end.refused = true;
    sched_finish(s, r, FINISH_ERROR);
}

/* Gives @r its constraint. A resumed request may turn out to be complete. Returns 0 or a negative
 * errno. */
static int sched_constrain(struct sched *s, struct request *r, const struct constraint *c) {
    int why = request_constrain(r, c), cut = 0;

    if (why == FINISH_NONE)
        cut = constrain_check(r);
    if (why < 0 || cut < 0)
        return MIN(why, cut);
    r->grammar.compiling = false;
    request_note_pending(r, &s->pending);
    if (cut)
        sched_refuse(s, r, &r->end.why);
    else if (why != FINISH_NONE)
        sched_finish(s, r, (enum finish_reason)why);
    else
        enqueue(s, r);
    return 0;
}

static const struct err no_memory = {
    .status = 503, .code = "out_of_memory", .message = "Out of memory for the grammar."};

static int ask_grammar(struct sched *s, struct request *r, const struct submit *m,
                       struct err *err) {
    const struct constraint *c;
    int e = s->opts.constraints->ask(s->opts.constraints->ctx, m, &c, err);

    if (e < 0)
        return e;
    if (e == 0)
        return sched_constrain(s, r, c);
    r->grammar.compiling = true;
    list_push_back(&s->compiling, &r->queued.link);
    return 0;
}

/* Asks for the constraint of @r, which waits for it, gets it at once or is refused. */
static void sched_ask(struct sched *s, struct request *r, const struct submit *m) {
    struct err err = {0};
    int e = ask_grammar(s, r, m, &err);

    if (e < 0 && !*err.message)
        err = no_memory;
    if (e < 0)
        sched_refuse(s, r, &err);
}

bool sched_constraint_ready(struct sched *s, uint64_t id, const struct constraint *c,
                            const struct err *why) {
    struct request *r = *sched_slot(s, id);

    if (!r || !r->grammar.compiling || r->loading)
        return false;
    list_remove(&r->queued.link);
    if (c && sched_constrain(s, r, c) == 0)
        return true;
    r->grammar.compiling = false;
    if (c)
        why = &no_memory;
    sched_refuse(s, r, why);
    return true;
}

int sched_submit(struct sched *s, const struct submit *m) {
    struct request *r, **at = sched_slot(s, m->id);

    if (*at)
        return -EPROTO;
    TRY(request_new(&r, m, &s->view, s->n_submitted++));
    *at = r;
    if (r->state != REQUEST_DONE && request_is_prewarm(r)) {
        prewarm_submit(&s->prewarm, r);
        return 0;
    }
    request_note_pending(r, &s->pending);
    if (r->state == REQUEST_DONE) {
        if (!request_is_prewarm(r))
            sched_count_end(s, r);
        return 0;
    }
    features_submit(s, r, m);
    if (m->grammar.len > 0)
        sched_ask(s, r, m);
    else
        enqueue(s, r);
    return 0;
}

void sched_cancel(struct sched *s, uint64_t id) {
    struct request *r = *sched_slot(s, id);

    if (r && r->state != REQUEST_DONE)
        sched_finish(s, r, FINISH_CANCELLED);
}

void sched_fail_picture(struct sched *s, const struct sched_picture *x, const struct err *why) {
    struct request *r;

    /* the last request that releases @x frees it */
    while ((r = pictures_waiter(&s->pictures, x))) {
        r->end.why = *why;
        sched_finish(s, r, FINISH_ERROR);
    }
}

bool sched_need_picture(struct sched *s, struct msg_need_picture *out) {
    return pictures_need(&s->pictures, out);
}

void sched_asked(struct sched *s, const struct msg_need_picture *m) {
    pictures_asked(&s->pictures, m);
}

void sched_picture(struct sched *s, const struct msg_picture *m) {
    const struct sched_picture *x = pictures_receive(&s->pictures, m);
    struct err why = {0};

    if (!x)
        return;
    if (m->total == 0)
        err_set_code(&why, m->status, "invalid_image", "messages", "%.*s",
                     (int)MIN(m->why.len, 300u), m->why.data);
    else
        err_set_code(&why, 503, "out_of_memory", "messages", "Out of memory for a picture.");
    if (m->code.len > 0)
        snprintf(why.code, sizeof(why.code), "%.*s", (int)MIN(m->code.len, 60u), m->code.data);
    sched_fail_picture(s, x, &why);
}

void sched_turn_end(struct sched *s, const struct turn_end *m) {
    struct request *r = *sched_slot(s, m->id);

    if (r && r->state != REQUEST_DONE)
        sched_finish(s, r, FINISH_STOP);
    pin_turn_end(&s->pins, m);
}

int64_t sched_wake_ns(const struct sched *s) {
    if (s->unsent)
        return 0;
    return MIN(s->next_deadline_ns, tier_wake_ns(s));
}

/* ---- a step ---- */

static int check_when_idle(struct sched *s) {
    int64_t now = clock_now(s->clock);

    if (now - s->checked_ns >= CHECK_NS) {
        kv_pager_check(s->pager);
        s->checked_ns = now;
    }
    return SCHED_NO_STEP;
}

/* Fills the pipeline, then waits for the oldest step. Returns after each launch while it fills, so
 * that the next step includes requests that have arrived meanwhile. */
static int sched_run(struct sched *s) {
    bool pictures = pictures_has_work(&s->pictures);
    int launched = 1;

    if (pictures && sched_n_in_flight(s) > 0)
        return step_wait(s);
    s->plan.spent_ns = 0;
    if (pictures)
        TRY(step_pictures(s));
    if (sched_n_in_flight(s) < s->opts.depth)
        launched = step_launch(s);
    if (launched < 0)
        return launched;
    if (launched == 0 && sched_n_in_flight(s) < s->opts.depth && !step_is_long(s))
        return 0;
    if (sched_n_in_flight(s) > 0)
        return step_wait(s);
    if (pictures || pictures_has_work(&s->pictures)) /* the plan may have made room for one */
        return 0;
    return check_when_idle(s);
}

int sched_step(struct sched *s) {
    if (s->lost)
        return -EIO;
    features_step(s);
    int r = sched_run(s);
    s->lost |= r < 0;
    if (s->opts.check)
        kv_pager_check_part(s->pager, s->n_waited % CHECK_PARTS, CHECK_PARTS);
    return r;
}

int sched_settle(struct sched *s) {
    int r = 0;

    if (s->lost)
        return -EIO;
    while (r == 0 && sched_n_in_flight(s) > 0)
        r = step_wait(s);
    s->lost |= r < 0;
    return r;
}

/* ---- events ---- */

int sched_events(struct sched *s, struct buf *out) {
    size_t before = out->len;
    int e = 0;

    s->unsent = false;
    LIST_FOREACH_ENTRY(r, &s->pending, struct request, pending) {
        r->sent = r->acked;
        if (e != 0)
            continue;
        if (out->len > before && BUGGIFY(events_short))
            e = -EMSGSIZE;
        else
            e = events_pack(out, r);
    }
    if (e == 0)
        return out->len == before;
    /* Events that did not fit are sent with the next call, unless not even one fits. */
    s->unsent = e == -EMSGSIZE && out->len > before;
    if (s->unsent)
        return 0;
    return e;
}

void sched_delivered(struct sched *s) {
    LIST_FOREACH_ENTRY(r, &s->pending, struct request, pending) {
        if (!events_delivered(r)) {
            s->unsent = true;
            continue;
        }
        list_remove(&r->pending);
        sched_maybe_free(s, r);
    }
}

/* ---- statistics ---- */

static uint32_t length(const struct list *l) {
    uint32_t n = 0;

    LIST_FOREACH(node, l) n++;
    return n;
}

static void state_stats(const struct sched *s, const struct kv_stats *kv, struct msg_stats *out) {
    out->n_states = s->info->n_states;
    out->n_states_used = kv->n_states;
    out->n_snapshots = kv->n_snapshots;
    out->snapshot_bytes = kv->n_snapshots * s->info->state_bytes;
    out->n_snapshots_made = kv->n_snapshots_made;
    out->n_snapshots_used = kv->n_snapshots_used;
    out->n_snapshots_evicted = kv->n_snapshots_evicted;
}

static void window_stats(const struct sched *s, const struct kv_stats *kv, struct msg_stats *out) {
    out->n_windows = s->info->n_windows;
    out->n_windows_used = s->info->n_windows - kv->n_windows_free - kv->n_windows_idle;
    out->n_windows_evicted = kv->n_windows_evicted;
    out->n_window_missed_tokens = kv->n_missed_tokens;
}

enum { MOST = 64, MOST_PICTURES = 256 };

/* Holds the arrays of a BLOCKS payload: few changes, because a step waits meanwhile. */
struct changes {
    uint64_t gone[MOST];
    struct msg_block came[MOST];
    int32_t tokens[MOST * BLOCKS_MAX_PAGE];
    struct msg_block_picture pictures[MOST_PICTURES];
};

/* Replaces the rows of pictures in the tokens of the last block of @m, of which @n_before of the
 * first picture are in earlier blocks, and enters the pictures. */
static void name_pictures(const struct sched *s, struct changes *x, struct msg_blocks *m,
                          uint32_t n_before) {
    int32_t *tokens = x->tokens + (size_t)(m->n_came - 1) * m->page_tokens;

    for (uint32_t i = 0, n = 1; i < m->page_tokens; i += n, n = 1) {
        if (tokens[i] >= 0)
            continue;
        const struct kv_medium *of = kv_media_find(&s->media, tokens[i]);
        while (i + n < m->page_tokens && tokens[i + n] == tokens[i])
            n++;
        if (!of || m->n_pictures == MOST_PICTURES)
            continue;
        struct msg_block_picture *p = &x->pictures[m->n_pictures++];
        p->block = m->n_came - 1;
        p->at = (int32_t)i;
        if (i == 0)
            p->at = -(int32_t)n_before;
        memcpy(p->digest, of->digest, sizeof(p->digest));
        for (uint32_t k = 0; k < n; k++)
            tokens[i + k] = of->token;
    }
}

/* Collects changes of @p in @m, whose arrays are in @x. Returns false if there are none. */
static bool collect_changes(const struct sched *s, struct kv_pager *p, bool ends, struct changes *x,
                            struct msg_blocks *m) {
    struct kv_change c;

    while (p && m->n_gone + m->n_came < MOST && kv_pager_next_change(p, ends, &c)) {
        if (!c.tokens) {
            x->gone[m->n_gone++] = c.block;
            continue;
        }
        memcpy(x->tokens + (size_t)m->n_came * m->page_tokens, c.tokens,
               m->page_tokens * sizeof(*x->tokens));
        struct msg_block *b = &x->came[m->n_came++];
        b->id = c.block;
        b->parent = c.parent;
        memcpy(b->isolation_key, c.isolation->key, sizeof(b->isolation_key));
        name_pictures(s, x, m, c.n_before);
    }
    return m->n_gone + m->n_came > 0;
}

int sched_blocks(struct sched *s, struct buf *out) {
    struct kv_pager *tier[] = {s->pager, kv_tier_host_pages(s->tier), kv_tier_file_pages(s->tier)};
    struct changes x;
    struct msg_blocks m = {
        .page_tokens = s->info->page_tokens,
        .gone = x.gone,
        .came = x.came,
        .tokens = x.tokens,
        .pictures = x.pictures,
    };

    for (m.tier = 0; m.tier < BLOCK_TIERS; m.tier++) {
        m.kind = BLOCKS_FULL;
        if (s->info->latent)
            m.kind = BLOCKS_LATENT;
        m.window = 0;
        if (collect_changes(s, tier[m.tier], false, &x, &m))
            return msg_blocks_pack(out, &m);
        m.kind = BLOCKS_STATE;
        if (s->info->n_windows > 0) {
            m.kind = BLOCKS_WINDOW;
            m.window = s->info->window;
        }
        if (collect_changes(s, tier[m.tier], true, &x, &m))
            return msg_blocks_pack(out, &m);
    }
    return 1;
}

int sched_served(struct sched *s, struct buf *out) {
    struct msg_served all[SERVED_MAX];
    uint32_t n = fair_served(&s->fair, all, SERVED_MAX);

    if (n == 0)
        return 1;
    return buf_add(out, all, n * sizeof(*all));
}

void sched_served_elsewhere(struct sched *s, const struct msg_served *m, uint32_t n) {
    int64_t now = clock_now(s->clock);

    for (uint32_t i = 0; i < n; i++)
        fair_charge_elsewhere(&s->fair, m[i].tenant, m[i].ns, now);
}

void sched_forget_requests(struct sched *s) {
    for (uint32_t i = 0; i < s->fair.n_tenants; i++)
        assert(s->fair.tenant[i].n_live == 0);
    s->fair.n_tenants = 0;
    s->stats.n_finished = 0;
    s->stats.n_prompt_tokens = 0;
    s->stats.n_output_tokens = 0;
}

void sched_stats(const struct sched *s, struct msg_stats *out) {
    struct kv_stats kv;

    kv_pager_stats(s->pager, &kv);
    *out = s->stats;
    out->at_ns = clock_now(s->clock);
    out->n_evicted = kv.n_evicted;
    out->n_lookup_tokens = kv.n_lookup_tokens - s->prewarm.n_lookup_tokens;
    out->n_hit_tokens = kv.n_hit_tokens - s->prewarm.n_hit_tokens;
    tier_stats(s, out);
    window_stats(s, &kv, out);
    state_stats(s, &kv, out);
    out->picture_bytes = s->pictures.n_bytes;
    out->n_host_layers = s->info->n_host_layers;
    out->host_expert_bytes = s->info->host_expert_bytes;
    out->n_host_experts = s->info->n_host_experts;
    out->n_picks = s->info->n_picks;
    out->n_host_picks = s->info->n_host_picks;
    bool prewarm = s->prewarm.now && s->prewarm.now->state == REQUEST_RUNNING;
    out->n_running = length(&s->running) - prewarm;
    out->n_waiting =
        length(&s->waiting) + length(&s->compiling) - (s->prewarm.now != NULL && !prewarm);
    out->n_pages = kv.n_pages;
    out->n_free = kv.n_free;
    /* pinned pages count as cached, since requests that need them get them */
    out->n_cached = kv.n_cached + kv.n_pinned;
    out->n_used = kv.n_owned + kv.n_shared - kv.n_pinned;
    out->n_pinned = kv.n_pinned;
    out->jain = fair_jain(&s->fair, out->at_ns, &out->n_tenants);
}
