/*
 * state - one request's place in its grammar.
 *
 * Every accepted token leaves a moment: the set of configurations after it. The sets lie one after
 * the other in the machine's config[], so taking tokens back is cutting that array. When the
 * history is full its older half is dropped; a request therefore allocates at the start and when
 * its stack grows, and never per token.
 *
 * A mask and grammar_forced() look ahead above the kept sets and cut back what they added.
 */

#include "grammar/mask/class.h"
#include "grammar/match/finish.h"
#include "grammar/mask/walk.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define MASK_FUEL 200000 /* steps of one mask: a few milliseconds */
#define QUICK_FUEL 10000 /* of one that others wait for: some 0.3 ms */
#define LONG_WALK 1000   /* trie nodes */
#define MANY_OTHERS 64   /* configurations: a node takes a microsecond */
#define LONG_WALK_OF_MANY 125
#define LONG_REST 2000     /* nodes behind the end of a rule: most of the vocabulary */
#define COLLECT_AT 512     /* frames */
#define STACKS_MAX 16384   /* frames of all readings: bounds a state's memory, 2.1 MiB */
#define STACK_RESERVE 256u /* frames that one token may add */

/* History: one entry per accepted token and one for the start, at most cap; the sets lie in the
 * machine's config[] in this order, one behind the other, and nothing lies behind the last but
 * while a mask or a step is made; so it is with the text. Between these the machine has no error
 * and is not quick. */
struct moment {
    struct set set;
    uint32_t n_text; /* as the machine's */
    bool done;
};

struct grammar_state {
    struct machine m;
    struct moment *moment;
    uint32_t n, cap, n_dropped;
    uint32_t collect_at;
    bool quick;       /* masks that take long are -EAGAIN */
    uint8_t *scratch; /* mask.c */
    uint32_t n_scratch;
    struct closing *closing; /* NULL: not needed yet */
};

/* Between two calls. */
static void check_rest(const struct grammar_state *s) {
    const struct moment *last = &s->moment[s->n - 1];

    assert(s->n > 0 && s->n <= s->cap);
    assert(last->set.end == s->m.n_configs && last->n_text == s->m.n_text);
    assert(!s->m.error && !s->m.quick && !s->m.reads);
}

static struct moment *now(const struct grammar_state *s) {
    assert(s->n > 0 && s->n <= s->cap);
    return &s->moment[s->n - 1];
}

int grammar_state_new(struct grammar_state **out, const struct grammar *g) {
    assert(g->vocab);
    CLEANUP(grammar_state_freep) struct grammar_state *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    s->cap = 2 * GRAMMAR_HISTORY + 2;
    s->moment = malloc(s->cap * sizeof(*s->moment));
    if (!s->moment)
        return -ENOMEM;
    int r = machine_init(&s->m, g);

    if (r < 0)
        return r;
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
    free(s->moment);
    free(s->scratch);
    closing_free(s->closing);
    free(s);
    return NULL;
}

size_t grammar_state_bytes(const struct grammar_state *s) {
    const struct machine *m = &s->m;

    return sizeof(*s) + s->cap * sizeof(*s->moment) + m->cap_frames * sizeof(*m->frame) +
           m->cap_configs * sizeof(*m->config) + m->n_buckets * sizeof(*m->bucket) + s->n_scratch +
           m->cap_text + (s->closing ? closing_memory(s->closing) : 0);
}

void grammar_state_reset(struct grammar_state *s) {
    s->m.n_configs = 0;
    machine_forget_frames(&s->m, 1);
    s->m.error = 0;
    s->m.fuel = MASK_FUEL;
    s->m.n_text = s->m.g->variety != NULL;
    s->moment[0] = (struct moment){.n_text = s->m.n_text};
    machine_start(&s->m, &s->moment[0].set);
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

int grammar_state_copy(struct grammar_state *dst, const struct grammar_state *src) {
    struct machine *d = &dst->m;
    const struct machine *m = &src->m;

    assert(d->g == m->g);
    if (dst == src)
        return 0;
    machine_forget_frames(d, 1);
    int r = copy_array(&d->bucket, &d->n_buckets, m->bucket, m->n_buckets, m->n_buckets,
                       sizeof(*m->bucket));

    if (r == 0)
        r = copy_array(&d->frame, &d->cap_frames, m->frame, m->n_frames, m->cap_frames,
                       sizeof(*m->frame));
    if (r == 0)
        r = copy_array(&d->config, &d->cap_configs, m->config, m->n_configs, m->cap_configs,
                       sizeof(*m->config));
    if (r == 0)
        r = copy_array(&dst->moment, &dst->cap, src->moment, src->n, src->cap,
                       sizeof(*src->moment));
    if (r == 0)
        r = copy_array(&d->text, &d->cap_text, m->text, m->text ? m->n_text : 0, m->cap_text, 1);
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

/* Asks the shortest completion about each token, where the text must be able to end in time. */
struct visitor {
    struct mask *mask;
    struct closing *near;
    struct answer {
        uint32_t begin, end; /* of a set that stays; end 0: none yet */
        bool fits;
    } * known;  /* KNOWN of them; or NULL: sets do not stay */
    bool apart; /* some subtree cannot be taken whole */
};
#define KNOWN 512

static bool fits_near(const struct visitor *v, const struct set *s) {
    struct answer *a = v->known ? &v->known[s->begin % KNOWN] : NULL;

    if (!a)
        return closing_fits(v->near, s);
    if (a->end == 0 || a->begin != s->begin || a->end != s->end)
        *a = (struct answer){s->begin, s->end, closing_fits(v->near, s)};
    return a->fits;
}

/* Subtrees that are taken whole when all of them is in time; else the walk begins anew. */
static void take_near(struct walk *w, uint32_t first, uint32_t last, const struct set *s,
                      uint32_t depth) {
    struct visitor *v = w->arg;

    v->apart = v->apart || !closing_fits_inside(v->near, s);
    for (uint32_t i = first; !v->apart && i < last; i++)
        mask_set(v->mask, w->trie->item[i]);
}

static bool visit_near(struct walk *w, uint32_t node, const struct set *s, uint32_t depth) {
    const struct trie_node *n = &w->trie->node[node];
    const struct visitor *v = w->arg;

    if (n->n_items && !fits_near(v, s))
        return true;
    for (uint32_t i = n->items; i < n->items + n->n_items; i++)
        mask_set(v->mask, w->trie->item[i]);
    return true;
}

/* Returns whether the text can end in time behind the special token @symbol. */
static bool special_fits(struct grammar_state *s, const struct set *set, unsigned symbol,
                         struct closing *near) {
    struct set next;

    if (!near)
        return true;
    bool fits = machine_step(&s->m, set, symbol, &next) && closing_fits(near, &next);

    s->m.n_configs = next.begin;
    return fits;
}

/* Special tokens that the configurations' edges name. */
static void mask_special(struct grammar_state *s, const struct set *set, struct closing *near,
                         struct mask *mask) {
    const struct grammar *g = s->m.g;

    for (uint32_t i = set->begin; i < set->end; i++) {
        const struct state *q = &g->state[s->m.config[i].state];

        for (uint32_t e = q->edge; (q->flags & STATE_TOKENS) && e < q->edge + q->n_edges; e++) {
            for (unsigned k = g->edge[e].lo; k <= g->edge[e].hi; k++) {
                if (k >= TOKEN_SYMBOL && special_fits(s, set, k, near))
                    mask_set(mask, (uint32_t)g->token[k - TOKEN_SYMBOL]);
            }
        }
    }
}

/* Near the limit of the stack a class is not exact: it does not know that limit. */
static const struct token_class *class_at(struct machine *m, const struct config *c) {
    uint32_t reserve = MIN(2 * vocab_trie(m->g->vocab)->max_len, STACK_RESERVE);
    bool room = m->frame[c->frame].depth + reserve <= m->g->max_stack;
    const struct token_class *cls = NULL;
    int r = room && !m->error ? class_of(&cls, m->g, c->state, m->quick) : 0;

    if (r < 0)
        m->error = r;
    return cls;
}

static bool reserve_scratch(struct grammar_state *s, uint32_t n) {
    if (n <= s->n_scratch)
        return true;
    if (!array_resize(&s->scratch, n, 1)) {
        s->m.error = -ENOMEM;
        return false;
    }
    s->n_scratch = n;
    return true;
}

/* Undoes what a look-ahead left in the machine; its error, which does not last. */
static int leave_no_trace(struct grammar_state *s, uint32_t n_configs, uint32_t n_frames) {
    int r = s->m.error;

    assert(n_configs <= s->m.n_configs && n_frames <= s->m.n_frames);
    s->m.n_configs = n_configs;
    machine_forget_frames(&s->m, n_frames);
    s->m.error = 0;
    s->m.quick = s->m.reads = false;
    s->m.n_text = now(s)->n_text;
    check_rest(s);
    return r;
}

/* Prepares the check that the text can end in time: *near, or NULL where there is no limit. */
static int look_ahead(struct grammar_state *s, uint32_t left, struct closing **near) {
    *near = NULL;
    if (left == GRAMMAR_NO_MAX || !s->m.g->finish)
        return 0;
    if (!s->closing && closing_new(&s->closing) < 0)
        return -ENOMEM;
    if (closing_begin(s->closing, &s->m, &now(s)->set, MAX(left, 1u) - 1))
        *near = s->closing;
    return 0;
}

/* The tokens of configurations without a class. How many nodes of the trie it took: with
 * more than @most it may be done in part. */
static uint64_t walk_others(struct machine *m, const struct set *others, uint32_t most,
                            struct mask *mask) {
    struct walk w = {.m = m,
                     .trie = vocab_trie(m->g->vocab),
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
                     .trie = vocab_trie(m->g->vocab),
                     .bits = mask->bits,
                     .n_set = mask->n,
                     .kinds = ALL_KINDS,
                     .whole = UINT64_MAX};

    if (!walk_need(&w, others, mask)) {
        if (m->quick)
            m->error = -EAGAIN;
        else
            walk_tables(&w, others);
    }
    mask->n = w.n_set;
}

/* Walks from configurations without a class near the limit; @many: tokens of a class are among
 * them. */
static void walk_near(struct machine *m, const struct set *others, struct closing *near, bool many,
                      struct mask *mask) {
    struct answer known[KNOWN] = {0};
    struct visitor v = {mask, near, NULL, many};
    struct walk w = {.m = m,
                     .trie = vocab_trie(m->g->vocab),
                     .visit = visit_near,
                     .take = take_near,
                     .kinds = many ? 0 : ALL_KINDS,
                     .arg = &v,
                     .max_visited = LONG_WALK};

    if (!many || m->quick)
        walk_steps(&w, others);
    if (m->quick && !m->error && (v.apart || w.n_visited > w.max_visited))
        m->error = -EAGAIN;
    if (m->error || m->quick)
        return;
    v.known = known;
    if (!v.apart && w.n_visited > w.max_visited)
        walk_tables(&w, others);
    if (v.apart && !m->error) {
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

/* A mask being made for the set @at. Of each configuration at most one of open, put_off and is_long
 * holds, and as long as one does it has no class here; applied only with one. */
struct making {
    struct grammar_state *s;
    struct set at, others; /* others: the configurations without a class */
    struct mask mask;
    struct closing *near;
    const struct token_class *cls[SET_MAX]; /* of each configuration, or NULL */
    bool applied[SET_MAX];                  /* its class is in the mask */
    bool open[SET_MAX];                     /* whether it has one is not known yet */
    bool put_off[SET_MAX];                  /* it has one that is not used for this mask */
    bool is_long[SET_MAX];                  /* it has one that is long to make, of a loop */
    uint32_t n_open, n_put_off;
    bool many; /* a class has to be looked at token by token */
};

/* Beside a class that has most tokens those that are long to make or to apply are put off: their
 * configurations walk towards what it lacks. */
static void put_long_off(struct making *k) {
    struct machine *m = &k->s->m;
    uint32_t n = k->at.end - k->at.begin;
    bool most = false;

    for (uint32_t i = 0; i < n && !most && !k->near; i++)
        most = k->cls[i] && class_has_most(m->g->vocab, k->cls[i]);
    for (uint32_t i = 0; i < n && !m->error; i++) {
        struct config c = m->config[k->at.begin + i];

        if (k->is_long[i] && !most)
            k->cls[i] = class_at(m, &c);
        if (most && (k->is_long[i] || (k->cls[i] && k->cls[i]->after.n > LONG_REST))) {
            k->cls[i] = NULL;
            k->put_off[i] = true;
            k->n_put_off++;
        }
    }
}

/* Finds the classes of the configurations. Of those that need a long walk only one is made: the
 * configurations that lack others walk together, which is one more walk however many they are. */
static void find_classes(struct making *k) {
    struct machine *m = &k->s->m;
    bool made = false;

    for (uint32_t i = 0; i < k->at.end - k->at.begin && !m->error; i++) {
        struct config c = m->config[k->at.begin + i];

        k->open[i] = !k->near && class_is_open(m->g, c.state);
        k->n_open += k->open[i];
        k->put_off[i] = !k->near && made && class_is_missing(m->g, c.state);
        k->n_put_off += k->put_off[i];
        made = made || class_is_missing(m->g, c.state);
        k->is_long[i] = !k->near && class_is_long(m->g, c.state);
        assert(k->open[i] + k->put_off[i] + k->is_long[i] <= 1);
        if (!k->open[i] && !k->put_off[i] && !k->is_long[i])
            k->cls[i] = class_at(m, &c);
        if (k->cls[i] && k->near && !closing_class_fits(k->near, &c)) {
            k->cls[i] = NULL;
            k->many = true;
        }
    }
    put_long_off(k);
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

/* Applies the class of configuration @i, and of those that differ by what they count alone. */
static void apply_class(struct making *k, uint32_t i) {
    const struct machine *m = &k->s->m;
    struct config c = m->config[k->at.begin + i];
    uint32_t reg[SET_MAX], n = 0;

    if (!k->cls[i] || k->applied[i] || m->error || !reserve_scratch(k->s, k->cls[i]->n_longest))
        return;
    for (uint32_t j = i; j < k->at.end - k->at.begin; j++) {
        const struct config *d = &m->config[k->at.begin + j];

        if (j > i && (d->frame != c.frame || d->state != c.state || d->mark != c.mark ||
                      !k->cls[j] || k->applied[j] || register_at(m, d) != &REGISTER_COUNTED))
            continue;
        reg[n++] = d->reg;
        k->applied[j] = true;
    }
    class_apply(&k->s->m, k->cls[i], &c, reg, n, &k->mask, k->s->scratch, k->near);
}

/* Most states need no class: a walk shows it and is their part of the mask. Where it would be long
 * their classes are made. */
static bool settle_open(struct making *k) {
    struct machine *m = &k->s->m;
    uint64_t n = walk_others(m, &k->others, LONG_WALK, &k->mask);

    for (uint32_t i = 0; i < k->at.end - k->at.begin && !m->error; i++) {
        struct config c = m->config[k->at.begin + i];

        if (k->open[i] && n <= LONG_WALK)
            class_walked(m->g, c.state, n);
        if (!k->open[i] || n <= LONG_WALK)
            continue;
        k->cls[i] = class_at(m, &c);
        apply_class(k, i);
    }
    return n <= LONG_WALK;
}

/* False: their readings together are too many; their classes are there now. */
static bool walk_put_off(struct making *k) {
    struct machine *m = &k->s->m;

    walk_long(m, &k->others, &k->mask);
    if (m->error != -E2BIG)
        return true;
    m->error = 0;
    m->fuel = MASK_FUEL;
    for (uint32_t i = 0; i < k->at.end - k->at.begin && !m->error; i++) {
        struct config c = m->config[k->at.begin + i];

        if (!k->put_off[i])
            continue;
        k->cls[i] = class_at(m, &c);
        apply_class(k, i);
    }
    m->n_configs = k->others.begin;
    list_others(k);
    return false;
}

/* Walks from the others: by steps as long as these are few, then by tables; where their readings
 * together are too many for these, by steps. */
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

    if (k->n_put_off && (walk_put_off(k) || m->error))
        return;
    if (k->n_open) {
        if (settle_open(k) || m->error)
            return;
        m->n_configs = k->others.begin;
        list_others(k);
    }
    if (k->others.end == k->others.begin || m->error)
        return;
    if (k->near)
        walk_near(m, &k->others, k->near, k->many, &k->mask);
    else
        walk_rest(k);
}

int64_t grammar_mask_within(struct grammar_state *s, uint32_t *bits, uint32_t left) {
    struct machine *m = &s->m;
    const struct grammar_vocab *vocab = m->g->vocab;
    struct making k = {.s = s, .at = now(s)->set};
    uint32_t n_configs = m->n_configs, n_frames = m->n_frames;
    size_t n_ends;
    const int32_t *ends = vocab_ends(vocab, &n_ends);

    k.mask = (struct mask){.bits = bits, .n_words = grammar_vocab_n_words(vocab), .counted = true};
    memset(bits, 0, k.mask.n_words * sizeof(*bits));
    if (now(s)->done)
        return 0;
    m->quick = s->quick;
    m->fuel = m->quick ? QUICK_FUEL : MASK_FUEL;
    if (look_ahead(s, left, &k.near) < 0) {
        m->quick = false;
        return -ENOMEM;
    }
    find_classes(&k);
    list_others(&k);
    for (uint32_t i = 0; i < k.at.end - k.at.begin; i++)
        apply_class(&k, i);
    if (!m->error)
        mask_others(&k);
    if (!m->error)
        mask_special(s, &k.at, k.near, &k.mask);
    if (!m->error && k.near && closing_add_plan(k.near, bits))
        k.mask.counted = false;
    if (!m->error && m->g->variety)
        distinct_settle(m, &k.at, k.near, &k.mask);
    for (size_t i = 0; k.at.can_end && i < n_ends; i++)
        mask_set(&k.mask, (uint32_t)ends[i]);
    int r = leave_no_trace(s, n_configs, n_frames);

    return r < 0 ? r : mask_count(&k.mask);
}

uint32_t grammar_bytes_left(struct grammar_state *s) {
    uint32_t n_configs = s->m.n_configs, n_frames = s->m.n_frames, n = FINISH_NEVER;
    struct closing *near;

    if (look_ahead(s, 1, &near) == 0 && near)
        n = closing_bytes(near, &now(s)->set);
    leave_no_trace(s, n_configs, n_frames);
    return now(s)->done ? 0 : n;
}

uint32_t grammar_distance(struct grammar_state *s) {
    struct machine *m = &s->m;
    uint32_t n_configs = m->n_configs, n_frames = m->n_frames, n = GRAMMAR_NO_MAX;
    struct closing *near;

    if (now(s)->done || grammar_can_end(s))
        return 0;
    if (look_ahead(s, 1, &near) == 0 && near)
        n = closing_distance(near, &now(s)->set);
    leave_no_trace(s, n_configs, n_frames);
    return n < FINISH_NEVER ? n : GRAMMAR_NO_MAX;
}

/* Forgets the oldest half of the history; config[] moves down. */
static void shorten(struct grammar_state *s) {
    uint32_t keep = GRAMMAR_HISTORY + 1, drop = s->n - keep;
    uint32_t first = s->moment[drop].set.begin;
    struct machine *m = &s->m;

    assert(s->n > keep);
    memmove(m->config, m->config + first, (m->n_configs - first) * sizeof(*m->config));
    memmove(s->moment, s->moment + drop, keep * sizeof(*s->moment));
    m->n_configs -= first;
    for (uint32_t i = 0; i < keep; i++) {
        s->moment[i].set.begin -= first;
        s->moment[i].set.end -= first;
    }
    s->n = keep;
    s->n_dropped += drop;
}

/* The set after @bytes are read from *out; it takes the place of config[@base, ...), the sets
 * between are dropped. */
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

    *out = now(s)->set;
    return len > 0 && len <= TRIE_MAX_LEN && step_bytes(&s->m, s->m.n_configs, bytes, len, out);
}

static bool step_special(struct grammar_state *s, int32_t token, struct set *out) {
    const struct grammar *g = s->m.g;
    struct set from = now(s)->set;

    for (uint32_t i = 0; i < g->n_tokens; i++) {
        if (g->token[i] == token)
            return machine_step(&s->m, &from, TOKEN_SYMBOL + i, out);
    }
    return false;
}

/* One more moment; @next lies at the end of config[]. */
static void add_moment(struct grammar_state *s, struct set next, bool done) {
    struct machine *m = &s->m;

    if (s->n == s->cap) {
        uint32_t first = s->moment[s->n - GRAMMAR_HISTORY - 1].set.begin;

        shorten(s);
        next.begin -= first;
        next.end -= first;
    }
    assert(next.begin == now(s)->set.end && next.end == m->n_configs);
    s->moment[s->n++] = (struct moment){.set = next, .n_text = m->n_text, .done = done};
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
    if (now(s)->done || token < 0 || (uint32_t)token >= vocab_n_tokens(m->g->vocab))
        return -EINVAL;
    bool end = vocab_is_end(s->m.g->vocab, token) && now(s)->set.can_end, ok = end;

    m->fuel = MASK_FUEL;
    if (!ok)
        ok = step_special(s, token, &next);
    if (!ok && !vocab_is_special(m->g->vocab, token) && !vocab_is_end(s->m.g->vocab, token) &&
        !m->error)
        ok = step_text(s, token, &next);
    if (ok && machine_stacks(m, &next) > STACKS_MAX)
        m->error = -E2BIG;
    if (!ok || m->error) {
        int r = leave_no_trace(s, n_configs, n_frames);

        return r < 0 ? r : -EINVAL;
    }
    add_moment(s, next, end);
    return 0;
}

int grammar_restart(struct grammar_state *s, const void *bytes, size_t len) {
    struct machine *m = &s->m;
    uint32_t n_configs = m->n_configs, n_frames = m->n_frames;
    struct set next;

    m->fuel = MASK_FUEL;
    machine_start(m, &next);
    if (m->error || !step_bytes(m, n_configs, bytes, len, &next)) {
        int r = leave_no_trace(s, n_configs, n_frames);

        return r < 0 ? r : -EINVAL;
    }
    add_moment(s, next, false);
    return 0;
}

bool grammar_is_done(const struct grammar_state *s) {
    return now(s)->done;
}

bool grammar_can_end(const struct grammar_state *s) {
    return now(s)->set.can_end && !now(s)->done;
}

bool grammar_must_end(const struct grammar_state *s) {
    return grammar_can_end(s) && now(s)->set.begin == now(s)->set.end;
}

uint32_t grammar_n_accepted(const struct grammar_state *s) {
    return s->n_dropped + s->n - 1;
}

int grammar_rollback(struct grammar_state *s, uint32_t n) {
    if (n >= s->n)
        return -EINVAL;
    s->n -= n;
    assert(now(s)->set.end <= s->m.n_configs);
    s->m.n_configs = now(s)->set.end;
    s->m.n_text = now(s)->n_text;
    check_rest(s);
    return 0;
}

/* The one symbol that can come next: -1 when there are none or several. */
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
    struct set at = now(s)->set;
    size_t n = 0;

    *token = -1;
    m->fuel = MASK_FUEL;
    while (!now(s)->done && !at.can_end && !m->error) {
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
    if (leave_no_trace(s, n_configs, n_frames) < 0) {
        *token = -1;
        return 0;
    }
    return n;
}
