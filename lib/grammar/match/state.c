/*
 * state - the matcher of one request: its position in its grammar, and the mask of the next token.
 *
 * History. Every accepted token leaves a checkpoint: the set of configurations after it. The sets
 * lie one after the other in the machine's config[]. Example, after two tokens:
 *
 *     config[]:      | set at the start | set after token 1 | set after token 2 | look-ahead ...
 *     checkpoint[]:    0                  1                   2
 *
 * So rejecting k draft tokens (grammar_rollback()) is truncating that array at an earlier
 * checkpoint. When the history is full its older half is dropped; a request therefore allocates at
 * the start and when its stack grows, and never per token. A look-ahead (a mask, forced bytes)
 * works above the stored sets and truncates what it added (rewind_machine()), also after an error:
 * a failed mask leaves the state as it was. A rollback leaves the frames of stacks; those that no
 * stored set needs are collected when their number has doubled.
 *
 * A mask. mask.c explains how a mask is made; grammar_mask_within() has the steps, which share a
 * struct making.
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/try.h"
#include "grammar/mask/class.h"
#include "grammar/mask/walk.h"
#include "grammar/match/finish.h"

#define MASK_FUEL 200000 /* steps of one mask: a few milliseconds */
#define QUICK_FUEL 10000 /* fuel of a quick mask: some 0.3 ms */
#define LONG_WALK 1000   /* trie nodes */
#define MANY_OTHERS 64   /* configurations: a node takes a microsecond */
#define LONG_WALK_OF_MANY 125
#define LONG_REST 2000     /* nodes behind the end of a rule: most of the vocabulary */
#define COLLECT_AT 512     /* frames */
#define STACKS_MAX 16384   /* frames of all readings: bounds a state's memory, 2.1 MiB */
#define STACK_RESERVE 256u /* frames that one token may add */

/* An entry of the history: one for the start and one for each accepted token, at most cap. The sets
 * lie in the machine's config[] in this order, one behind the other; nothing lies behind the last
 * one except while a mask or a step is made, and the text ends there, too. Between calls the
 * machine has no error and is not quick. */
struct checkpoint {
    struct set set;
    /* length of the machine's text */
    uint32_t n_text;
    bool done;
};

struct grammar_state {
    struct machine m;
    struct checkpoint *checkpoint;
    uint32_t n, cap, n_dropped;
    uint32_t collect_at;
    /* masks that take long are -EAGAIN */
    bool quick;
    /* NULL: not needed yet */
    struct closing *closing;
};

/* Asserts the invariants that hold between two calls. */
static void check_rest(const struct grammar_state *s) {
    const struct checkpoint *last = &s->checkpoint[s->n - 1];

    assert(s->n > 0 && s->n <= s->cap);
    assert(last->set.end == s->m.n_configs && last->n_text == s->m.n_text);
    assert(!s->m.error && !s->m.quick && !s->m.reads);
}

static struct checkpoint *latest(const struct grammar_state *s) {
    assert(s->n > 0 && s->n <= s->cap);
    return &s->checkpoint[s->n - 1];
}

int grammar_state_new(struct grammar_state **out, const struct grammar *g) {
    assert(g->vocab);
    CLEANUP(grammar_state_freep) struct grammar_state *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    s->cap = 2 * GRAMMAR_HISTORY + 2;
    s->checkpoint = malloc(s->cap * sizeof(*s->checkpoint));
    if (!s->checkpoint)
        return -ENOMEM;

    TRY(machine_init(&s->m, g));
    grammar_state_reset(s);
    if (s->m.error)
        return s->m.error;
    *out = STEAL(s);
    return 0;
}

struct grammar_state *grammar_state_free(struct grammar_state *s) {
    if (!s)
        return NULL;
    machine_deinit(&s->m);
    free(s->checkpoint);
    closing_free(s->closing);
    free(s);
    return NULL;
}

size_t grammar_state_bytes(const struct grammar_state *s) {
    const struct machine *m = &s->m;

    return sizeof(*s) + s->cap * sizeof(*s->checkpoint) + m->cap_frames * sizeof(*m->frame) +
           m->cap_configs * sizeof(*m->config) + m->n_buckets * sizeof(*m->bucket) + m->cap_text +
           (s->closing ? closing_memory(s->closing) : 0);
}

void grammar_state_reset(struct grammar_state *s) {
    s->m.n_configs = 0;
    machine_forget_frames(&s->m, 1);
    s->m.error = 0;
    s->m.fuel = MASK_FUEL;
    s->m.n_text = s->m.g->n_texts != NULL;
    s->checkpoint[0] = (struct checkpoint){.n_text = s->m.n_text};
    machine_start(&s->m, &s->checkpoint[0].set);
    s->n = 1;
    s->n_dropped = 0;
    s->collect_at = COLLECT_AT;
}

static int copy_array(void *to, uint32_t *cap, const void *from, uint32_t n, uint32_t from_cap,
                      size_t size) {
    void **array = to;

    if (*cap < from_cap) {
        if (!array_resize(to, from_cap, size))
            return -ENOMEM;
        *cap = from_cap;
    }
    if (n > 0)
        memcpy(*array, from, n * size);
    return 0;
}

static int copy_arrays(struct grammar_state *dst, const struct grammar_state *src) {
    struct machine *d = &dst->m;
    const struct machine *m = &src->m;

    TRY(copy_array(&d->bucket, &d->n_buckets, m->bucket, m->n_buckets, m->n_buckets,
                   sizeof(*m->bucket)));
    TRY(copy_array(&d->frame, &d->cap_frames, m->frame, m->n_frames, m->cap_frames,
                   sizeof(*m->frame)));
    TRY(copy_array(&d->config, &d->cap_configs, m->config, m->n_configs, m->cap_configs,
                   sizeof(*m->config)));
    TRY(copy_array(&dst->checkpoint, &dst->cap, src->checkpoint, src->n, src->cap,
                   sizeof(*src->checkpoint)));
    return copy_array(&d->text, &d->cap_text, m->text, m->text ? m->n_text : 0, m->cap_text, 1);
}

int grammar_state_copy(struct grammar_state *dst, const struct grammar_state *src) {
    struct machine *d = &dst->m;
    const struct machine *m = &src->m;

    assert(d->g == m->g);
    if (dst == src)
        return 0;
    machine_forget_frames(d, 1);
    int r = copy_arrays(dst, src);

    if (r < 0) {
        machine_rehash(d);
        grammar_state_reset(dst);
        return r;
    }
    d->n_frames = m->n_frames;
    d->n_configs = m->n_configs;
    d->n_text = m->n_text;
    d->error = m->error;
    dst->n = src->n;
    dst->n_dropped = src->n_dropped;
    dst->collect_at = src->collect_at;
    machine_rehash(d);
    check_rest(dst);
    return 0;
}

/* Checks for each token of a walk that the shortest completion behind it still fits. */
struct visitor {
    struct mask *mask;
    struct closing *closing;
    struct answer {
        /* the set, which lasts during the walk; end 0: empty entry */
        uint32_t begin, end;
        bool fits;
    } * known; /* a cache of KNOWN answers; NULL where sets do not last */
    /* some subtree cannot be taken as a whole */
    bool by_node;
};
#define KNOWN 512

static bool matcher_is_within(const struct visitor *v, const struct set *s) {
    struct answer *a = v->known ? &v->known[s->begin % KNOWN] : NULL;

    if (!a)
        return closing_fits(v->closing, s);
    if (a->end == 0 || a->begin != s->begin || a->end != s->end)
        *a = (struct answer){s->begin, s->end, closing_fits(v->closing, s)};
    return a->fits;
}

/* Takes a subtree as a whole if all its tokens leave time to end; else sets by_node. */
static void accept_within(struct walk *w, uint32_t first, uint32_t last, const struct set *s,
                          uint32_t depth) {
    struct visitor *v = w->arg;

    v->by_node = v->by_node || !closing_fits_inside(v->closing, s);
    for (uint32_t i = first; !v->by_node && i < last; i++)
        mask_set(v->mask, w->trie->item[i]);
}

static bool visit_within(struct walk *w, uint32_t node, const struct set *s, uint32_t depth) {
    const struct trie_node *n = &w->trie->node[node];
    const struct visitor *v = w->arg;

    if (n->n_items && !matcher_is_within(v, s))
        return true;
    for (uint32_t i = n->items; i < n->items + n->n_items; i++)
        mask_set(v->mask, w->trie->item[i]);
    return true;
}

/* Returns whether the text can end in time behind the special token @symbol. */
static bool special_fits(struct grammar_state *s, const struct set *set, unsigned symbol,
                         struct closing *closing) {
    struct set next;

    if (!closing)
        return true;
    bool fits = machine_step(&s->m, set, symbol, &next) && closing_fits(closing, &next);

    s->m.n_configs = next.begin;
    return fits;
}

/* Adds the special tokens that the configurations' edges name. */
static void mask_special(struct grammar_state *s, const struct set *set, struct closing *closing,
                         struct mask *mask) {
    const struct grammar *g = s->m.g;

    for (uint32_t i = set->begin; i < set->end; i++) {
        const struct state *q = &g->state[s->m.config[i].state];

        for (uint32_t e = q->edge; (q->flags & STATE_TOKENS) && e < q->edge + q->n_edges; e++) {
            for (unsigned k = g->edge[e].lo; k <= g->edge[e].hi; k++) {
                if (k >= TOKEN_SYMBOL && special_fits(s, set, k, closing))
                    mask_set(mask, (uint32_t)g->token[k - TOKEN_SYMBOL]);
            }
        }
    }
}

/* Returns the class of configuration @c, which it makes if it is missing. Returns NULL if the
 * configuration has no class, on an error, and near the limit of the stack, which a class does not
 * know. */
static const struct token_class *class_at(struct machine *m, const struct config *c) {
    uint32_t reserve = MIN(2 * m->g->vocab->trie.max_len, STACK_RESERVE);
    bool room = m->frame[c->frame].depth + reserve <= m->g->max_stack;
    const struct token_class *cls = NULL;
    int r = room && !m->error ? class_of(&cls, m->g, c->state, m->quick) : 0;

    if (r < 0)
        m->error = r;
    return cls;
}

/* Truncates what a look-ahead left in the machine. Returns its error, which it clears. */
static int rewind_machine(struct grammar_state *s, uint32_t n_configs, uint32_t n_frames) {
    int r = s->m.error;

    assert(n_configs <= s->m.n_configs && n_frames <= s->m.n_frames);
    s->m.n_configs = n_configs;
    machine_forget_frames(&s->m, n_frames);
    s->m.error = 0;
    s->m.quick = s->m.reads = false;
    s->m.n_text = latest(s)->n_text;
    check_rest(s);
    return r;
}

/* Sets *closing to the search that checks whether the text can end in time, or to NULL without a
 * limit. */
static int look_ahead(struct grammar_state *s, uint32_t left, struct closing **closing) {
    *closing = NULL;
    if (left == GRAMMAR_NO_MAX || !s->m.g->finish)
        return 0;
    if (!s->closing && closing_new(&s->closing) < 0)
        return -ENOMEM;
    if (closing_begin(s->closing, &s->m, &latest(s)->set, MAX(left, 1u) - 1))
        *closing = s->closing;
    return 0;
}

/* Adds the tokens of the configurations without a class. Returns the number of trie nodes that were
 * visited; if it exceeds @most, the walk may have stopped early. */
static uint64_t walk_others(struct machine *m, const struct set *others, uint32_t most,
                            struct mask *mask) {
    struct walk w = {.m = m,
                     .trie = &m->g->vocab->trie,
                     .bits = mask->bits,
                     .n_set = mask->n,
                     .kinds = ALL_KINDS,
                     .max_visited = most};

    walk_steps(&w, others);
    mask->n = w.n_set;
    return w.n_visited;
}

/* Walks from configurations without a class, however long it takes. */
static void walk_long(struct machine *m, const struct set *others, struct mask *mask) {
    struct walk w = {.m = m,
                     .trie = &m->g->vocab->trie,
                     .bits = mask->bits,
                     .n_set = mask->n,
                     .kinds = ALL_KINDS};

    if (!walk_need(&w, others, mask)) {
        if (m->quick)
            m->error = -EAGAIN;
        else
            walk_tables(&w, others);
    }
    mask->n = w.n_set;
}

/* Walks from the configurations without a class when the limit is near. @many: among them are
 * configurations whose class is not applied as a whole, so most tokens are checked one by one. */
static void walk_within(struct machine *m, const struct set *others, struct closing *closing,
                        bool many, struct mask *mask) {
    struct answer known[KNOWN] = {0};
    struct visitor v = {mask, closing, NULL, many};
    struct walk w = {.m = m,
                     .trie = &m->g->vocab->trie,
                     .visit = visit_within,
                     .accept = accept_within,
                     .kinds = many ? 0 : ALL_KINDS,
                     .arg = &v,
                     .max_visited = LONG_WALK};

    if (!many || m->quick)
        walk_steps(&w, others);
    if (m->quick && !m->error && (v.by_node || w.n_visited > w.max_visited))
        m->error = -EAGAIN;
    if (m->error || m->quick)
        return;
    v.known = known;
    if (!v.by_node && w.n_visited > w.max_visited)
        walk_tables(&w, others);
    if (v.by_node && !m->error) {
        memset(known, 0, sizeof(known));
        w.kinds = 0;
        walk_tables(&w, others);
    }
}

void grammar_state_set_quick(struct grammar_state *s, bool quick) {
    s->quick = quick;
}

int64_t grammar_mask(struct grammar_state *s, uint32_t *bits) {
    return grammar_mask_within(s, bits, GRAMMAR_NO_MAX);
}

/* A mask being made for the set @at. matcher_find_classes() sets at most one of undecided, deferred
 * and expensive for a configuration; its cls is NULL then. */
struct making {
    struct grammar_state *s;
    /* others: the configurations without a class */
    struct set at, others;
    struct mask mask;
    struct closing *closing;
    /* one per configuration, or NULL */
    const struct token_class *cls[SET_MAX];
    /* the class is in the mask */
    bool applied[SET_MAX];
    /* a short walk may show that it needs no class */
    bool undecided[SET_MAX];
    /* the class is neither made nor used for this mask */
    bool deferred[SET_MAX];
    /* a loop state whose class takes long to make */
    bool expensive[SET_MAX];
    uint32_t n_undecided, n_deferred;
    /* the tokens of a class have to be checked one by one */
    bool many;
};

/* Defers the classes that take long to make or to apply when another class already has most tokens:
 * their configurations walk towards the tokens that it lacks. */
static void defer_expensive(struct making *k) {
    struct machine *m = &k->s->m;
    uint32_t n = k->at.end - k->at.begin;
    bool most = false;

    for (uint32_t i = 0; i < n && !most && !k->closing; i++)
        most = k->cls[i] && class_has_most(m, k->cls[i], &m->config[k->at.begin + i]);
    for (uint32_t i = 0; i < n && !m->error; i++) {
        struct config c = m->config[k->at.begin + i];

        if (k->expensive[i] && !most)
            k->cls[i] = class_at(m, &c);
        if (most && (k->expensive[i] || (k->cls[i] && k->cls[i]->after.n > LONG_REST))) {
            k->cls[i] = NULL;
            k->deferred[i] = true;
            k->n_deferred++;
        }
    }
}

/* Finds the classes of the configurations. Makes at most one class that needs a long walk: the
 * remaining configurations without a class share one further walk, whatever their number. */
static void matcher_find_classes(struct making *k) {
    struct machine *m = &k->s->m;
    bool made = false;

    for (uint32_t i = 0; i < k->at.end - k->at.begin && !m->error; i++) {
        struct config c = m->config[k->at.begin + i];

        k->undecided[i] = !k->closing && class_is_open(m->g, c.state);
        k->n_undecided += k->undecided[i];
        k->deferred[i] = !k->closing && made && class_is_missing(m->g, c.state);
        k->n_deferred += k->deferred[i];
        made = made || class_is_missing(m->g, c.state);
        k->expensive[i] = !k->closing && class_is_long(m->g, c.state);
        assert(k->undecided[i] + k->deferred[i] + k->expensive[i] <= 1);
        if (!k->undecided[i] && !k->deferred[i] && !k->expensive[i])
            k->cls[i] = class_at(m, &c);
        if (k->cls[i] && k->closing && !closing_class_fits(k->closing, &c)) {
            k->cls[i] = NULL;
            k->many = true;
        }
    }
    defer_expensive(k);
}

static void list_others(struct making *k) {
    struct machine *m = &k->s->m;

    k->others = set_open(m);
    for (uint32_t i = k->at.begin; i < k->at.end && machine_reserve(m, 1) == 0; i++) {
        if (!k->cls[i - k->at.begin])
            m->config[m->n_configs++] = m->config[i];
    }
    k->others.end = m->n_configs;
}

/* Applies the class of configuration @i, together with the configurations that differ from it only
 * in the count of their register. */
static void apply_class(struct making *k, uint32_t i) {
    const struct machine *m = &k->s->m;
    struct config c = m->config[k->at.begin + i];
    uint32_t reg[SET_MAX], n = 0;

    if (!k->cls[i] || k->applied[i] || m->error)
        return;
    for (uint32_t j = i; j < k->at.end - k->at.begin; j++) {
        const struct config *d = &m->config[k->at.begin + j];

        if (j > i && (d->frame != c.frame || d->state != c.state || d->match != c.match ||
                      !k->cls[j] || k->applied[j] || register_at(m, d) != &REGISTER_COUNTED))
            continue;
        reg[n++] = d->reg;
        k->applied[j] = true;
    }
    class_apply(&k->s->m, k->cls[i], &c, reg, n, &k->mask, k->closing);
}

/* Walks from the configurations without a class. A short walk shows that their undecided states
 * need none; otherwise the classes are made. Returns true if the walk was short, and so the mask
 * of these configurations is complete. */
static bool settle_undecided(struct making *k) {
    struct machine *m = &k->s->m;
    uint64_t n = walk_others(m, &k->others, LONG_WALK, &k->mask);

    for (uint32_t i = 0; i < k->at.end - k->at.begin && !m->error; i++) {
        struct config c = m->config[k->at.begin + i];

        if (k->undecided[i] && n <= LONG_WALK)
            class_walked(m->g, c.state, n);
        if (!k->undecided[i] || n <= LONG_WALK)
            continue;
        k->cls[i] = class_at(m, &c);
        apply_class(k, i);
    }
    return n <= LONG_WALK;
}

/* Walks from the configurations without a class. Returns false if they have too many readings
 * together; then the deferred classes have been made and applied. */
static bool walk_deferred(struct making *k) {
    struct machine *m = &k->s->m;

    walk_long(m, &k->others, &k->mask);
    if (m->error != -E2BIG)
        return true;
    m->error = 0;
    m->fuel = MASK_FUEL;
    for (uint32_t i = 0; i < k->at.end - k->at.begin && !m->error; i++) {
        struct config c = m->config[k->at.begin + i];

        if (!k->deferred[i])
            continue;
        k->cls[i] = class_at(m, &c);
        apply_class(k, i);
    }
    m->n_configs = k->others.begin;
    list_others(k);
    return false;
}

/* Walks from the configurations without a class: with walk_steps() while the walk is short, then
 * with tables. Where the readings together are too many for tables, with walk_steps() again. */
static void walk_rest(struct making *k) {
    struct machine *m = &k->s->m;
    bool many = k->others.end - k->others.begin >= MANY_OTHERS;
    uint32_t most = many ? LONG_WALK_OF_MANY : LONG_WALK;

    if (walk_others(m, &k->others, most, &k->mask) <= most || m->error)
        return;
    walk_long(m, &k->others, &k->mask);
    if (!many || m->error != -E2BIG)
        return;
    m->error = 0;
    m->fuel = MASK_FUEL;
    if (walk_others(m, &k->others, LONG_WALK, &k->mask) > LONG_WALK && !m->error)
        m->error = -E2BIG;
}

static void mask_others(struct making *k) {
    struct machine *m = &k->s->m;

    if (k->n_deferred && (walk_deferred(k) || m->error))
        return;
    if (k->n_undecided) {
        if (settle_undecided(k) || m->error)
            return;
        m->n_configs = k->others.begin;
        list_others(k);
    }
    if (k->others.end == k->others.begin || m->error)
        return;
    if (k->closing)
        walk_within(m, &k->others, k->closing, k->many, &k->mask);
    else
        walk_rest(k);
}

int64_t grammar_mask_within(struct grammar_state *s, uint32_t *bits, uint32_t left) {
    struct machine *m = &s->m;
    const struct grammar_vocab *vocab = m->g->vocab;
    struct making k = {.s = s, .at = latest(s)->set};
    uint32_t n_configs = m->n_configs, n_frames = m->n_frames;

    k.mask = (struct mask){.bits = bits, .n_words = grammar_vocab_n_words(vocab), .counted = true};
    memset(bits, 0, k.mask.n_words * sizeof(*bits));
    if (latest(s)->done)
        return 0;
    m->quick = s->quick;
    m->fuel = m->quick ? QUICK_FUEL : MASK_FUEL;
    if (look_ahead(s, left, &k.closing) < 0) {
        m->quick = false;
        return -ENOMEM;
    }
    matcher_find_classes(&k);
    list_others(&k);
    for (uint32_t i = 0; i < k.at.end - k.at.begin; i++)
        apply_class(&k, i);
    if (!m->error)
        mask_others(&k);
    if (!m->error)
        mask_special(s, &k.at, k.closing, &k.mask);
    if (!m->error && k.closing && closing_add_plan(k.closing, bits))
        k.mask.counted = false;
    if (!m->error && m->g->n_texts)
        distinct_settle(m, &k.at, k.closing, &k.mask);
    for (size_t i = 0; k.at.can_end && i < vocab->n_ends; i++)
        mask_set(&k.mask, (uint32_t)vocab->ends[i]);
    TRY(rewind_machine(s, n_configs, n_frames));
    return mask_count(&k.mask);
}

uint32_t grammar_bytes_left(struct grammar_state *s) {
    uint32_t n_configs = s->m.n_configs, n_frames = s->m.n_frames, n = FINISH_NEVER;
    struct closing *closing;

    if (look_ahead(s, 1, &closing) == 0 && closing)
        n = closing_bytes(closing, &latest(s)->set);
    rewind_machine(s, n_configs, n_frames);
    if (latest(s)->done)
        return 0;
    return n;
}

uint32_t grammar_distance(struct grammar_state *s) {
    struct machine *m = &s->m;
    uint32_t n_configs = m->n_configs, n_frames = m->n_frames, n = GRAMMAR_NO_MAX;
    struct closing *closing;

    if (latest(s)->done || grammar_can_end(s))
        return 0;
    if (look_ahead(s, 1, &closing) == 0 && closing)
        n = closing_distance(closing, &latest(s)->set);
    rewind_machine(s, n_configs, n_frames);
    if (n < FINISH_NEVER)
        return n;
    return GRAMMAR_NO_MAX;
}

/* Drops the oldest half of the history and moves config[] down. */
static void shorten(struct grammar_state *s) {
    uint32_t keep = GRAMMAR_HISTORY + 1, drop = s->n - keep;
    uint32_t first = s->checkpoint[drop].set.begin;
    struct machine *m = &s->m;

    assert(s->n > keep);
    memmove(m->config, m->config + first, (m->n_configs - first) * sizeof(*m->config));
    memmove(s->checkpoint, s->checkpoint + drop, keep * sizeof(*s->checkpoint));
    m->n_configs -= first;
    for (uint32_t i = 0; i < keep; i++) {
        s->checkpoint[i].set.begin -= first;
        s->checkpoint[i].set.end -= first;
    }
    s->n = keep;
    s->n_dropped += drop;
}

/* Reads @bytes from the set *out, which becomes the set behind them, moved to config[@base, ...).
 * The sets in between are dropped. Returns false if a byte cannot be read. */
static bool step_bytes(struct machine *m, uint32_t base, const uint8_t *bytes, size_t len,
                       struct set *out) {
    bool ok = true;

    m->reads = true;
    for (size_t i = 0; ok && i < len; i++) {
        struct set from = *out;

        ok = machine_read(m, bytes[i]) && machine_step(m, &from, bytes[i], out) && !m->error;
        if (!ok)
            break;
        uint32_t n = out->end - out->begin;

        memmove(m->config + base, m->config + out->begin, n * sizeof(*m->config));
        out->begin = base;
        out->end = m->n_configs = base + n;
    }
    m->reads = false;
    return ok;
}

static bool step_text(struct grammar_state *s, int32_t token, struct set *out) {
    size_t len;
    const uint8_t *bytes = vocab_bytes(s->m.g->vocab, token, &len);

    *out = latest(s)->set;
    return len > 0 && len <= TRIE_MAX_LEN && step_bytes(&s->m, s->m.n_configs, bytes, len, out);
}

static bool step_special(struct grammar_state *s, int32_t token, struct set *out) {
    const struct grammar *g = s->m.g;
    struct set from = latest(s)->set;

    for (uint32_t i = 0; i < g->n_tokens; i++) {
        if (g->token[i] == token)
            return machine_step(&s->m, &from, TOKEN_SYMBOL + i, out);
    }
    return false;
}

/* Appends a checkpoint; @next lies at the end of config[]. */
static void add_checkpoint(struct grammar_state *s, struct set next, bool done) {
    struct machine *m = &s->m;

    if (s->n == s->cap) {
        uint32_t first = s->checkpoint[s->n - GRAMMAR_HISTORY - 1].set.begin;

        shorten(s);
        next.begin -= first;
        next.end -= first;
    }
    assert(next.begin == latest(s)->set.end && next.end == m->n_configs);
    s->checkpoint[s->n++] = (struct checkpoint){.set = next, .n_text = m->n_text, .done = done};
    if (m->n_frames > s->collect_at) {
        machine_collect(m);
        s->collect_at = MAX(COLLECT_AT, m->n_frames * 2);
    }
}

int grammar_accept(struct grammar_state *s, int32_t token) {
    struct machine *m = &s->m;
    uint32_t n_configs = m->n_configs, n_frames = m->n_frames;
    struct set next = set_open(m);

    check_rest(s);
    if (latest(s)->done || token < 0 || (uint32_t)token >= m->g->vocab->n)
        return -EINVAL;
    bool end = vocab_is_end(s->m.g->vocab, token) && latest(s)->set.can_end, ok = end;

    m->fuel = MASK_FUEL;
    if (!ok)
        ok = step_special(s, token, &next);
    if (!ok && !m->g->vocab->is_special[token] && !vocab_is_end(s->m.g->vocab, token) && !m->error)
        ok = step_text(s, token, &next);
    if (ok && machine_stacks(m, &next) > STACKS_MAX)
        m->error = -E2BIG;
    if (!ok || m->error) {
        TRY(rewind_machine(s, n_configs, n_frames));
        return -EINVAL;
    }
    add_checkpoint(s, next, end);
    return 0;
}

int grammar_restart(struct grammar_state *s, const void *bytes, size_t len) {
    struct machine *m = &s->m;
    uint32_t n_configs = m->n_configs, n_frames = m->n_frames;
    struct set next;

    m->fuel = MASK_FUEL;
    machine_start(m, &next);
    if (m->error || !step_bytes(m, n_configs, bytes, len, &next)) {
        TRY(rewind_machine(s, n_configs, n_frames));
        return -EINVAL;
    }
    add_checkpoint(s, next, false);
    return 0;
}

bool grammar_is_done(const struct grammar_state *s) {
    return latest(s)->done;
}

bool grammar_can_end(const struct grammar_state *s) {
    return latest(s)->set.can_end && !latest(s)->done;
}

bool grammar_must_end(const struct grammar_state *s) {
    return grammar_can_end(s) && latest(s)->set.begin == latest(s)->set.end;
}

uint32_t grammar_n_accepted(const struct grammar_state *s) {
    return s->n_dropped + s->n - 1;
}

int grammar_rollback(struct grammar_state *s, uint32_t n) {
    if (n >= s->n)
        return -EINVAL;
    s->n -= n;
    assert(latest(s)->set.end <= s->m.n_configs);
    s->m.n_configs = latest(s)->set.end;
    s->m.n_text = latest(s)->n_text;
    check_rest(s);
    return 0;
}

/* Returns the only symbol that can come next, or -1 when there are none or several. */
static int only_symbol(const struct grammar *g, const struct machine *m, const struct set *s) {
    int symbol = -1;

    for (uint32_t i = s->begin; i < s->end; i++) {
        const struct config *c = &m->config[i];
        const struct state *q = &g->state[c->state];

        for (uint32_t e = q->edge; e < q->edge + q->n_edges; e++) {
            if (g->edge[e].lo != g->edge[e].hi || (symbol >= 0 && symbol != g->edge[e].lo))
                return -1;
            symbol = g->edge[e].lo;
        }
    }
    return symbol;
}

size_t grammar_forced(struct grammar_state *s, uint8_t *out, size_t cap, int32_t *token) {
    struct machine *m = &s->m;
    uint32_t n_configs = m->n_configs, n_frames = m->n_frames;
    struct set at = latest(s)->set;
    size_t n = 0;

    *token = -1;
    m->fuel = MASK_FUEL;
    while (!latest(s)->done && !at.can_end && !m->error) {
        int symbol = only_symbol(m->g, m, &at);
        struct set next;

        if (symbol >= TOKEN_SYMBOL)
            *token = m->g->token[symbol - TOKEN_SYMBOL];
        if (symbol < 0 || symbol >= TOKEN_SYMBOL || n == cap ||
            !machine_step(m, &at, (unsigned)symbol, &next))
            break;
        out[n++] = (uint8_t)symbol;
        at = next;
    }
    if (rewind_machine(s, n_configs, n_frames) < 0) {
        *token = -1;
        return 0;
    }
    return n;
}
