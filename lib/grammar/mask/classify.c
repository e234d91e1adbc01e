/*
 * classify - token classes: what one state of the automaton says about all tokens of the
 * vocabulary, computed once instead of at every mask.
 *
 * The trie of all tokens is walked from one state, with nothing known about the stack below it
 * (frame 0 stands for the unknown caller). Example: the state between the characters of a JSON
 * string. Its rule reads characters; the quote at the end belongs to the caller.
 *
 *     token       what the walk finds                          what the class keeps
 *     the         stays inside the rule: allowed wherever      a bit in `bits`, or its id in `ids`
 *                 the state occurs                             if the allowed tokens are few
 *     s",         the rule may end behind `s`, and whether     `",` in the trie `after`, which
 *                 `",` may follow depends on the caller        class_apply() walks with the stack
 *     (newline)   leads nowhere                                nothing: the token is refused
 *
 * Calls of other rules do not matter: what they read lies above the state on the stack, so it is
 * known. Of the tokens that end the rule, only those are kept that go on with a byte which can
 * follow the rule somewhere in this grammar (analyse.c). That keeps the trie small: behind the
 * characters of a JSON string comes a quote and nothing else.
 *
 * Making a class takes up to a millisecond or more, so there are several ways, the cheap ones
 * first:
 *
 *  - No class (is_cheap()). Most states allow few tokens, and a walk from them is as fast as a
 *    class. A walk of some 200 nodes, without a bit map to clear, finds out.
 *  - A shared class. Equal rules of all grammars have one class (share.c), and the loops of JSON
 *    strings have theirs from the vocabulary.
 *  - A walk (class_collect()): short with walk_steps(), or long with walk_tables().
 *
 * Threads. A compiled grammar is shared by all requests, and any thread may make a class. The array
 * g->cls has atomic pointers: two threads may make the same class at the same time, then the first
 * one to store it wins and the other frees its own. The memory of a grammar's classes is limited
 * (class_room); without room a state is walked from at every mask.
 */

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/jobs.h"
#include "base/try.h"
#include "grammar/automaton/nfa.h"
#include "grammar/mask/class.h"
#include "grammar/mask/share.h"
#include "grammar/mask/walk.h"
#include "grammar/vocab/kinds.h"

#define CLASS_FUEL 1000000  /* steps of making one: some 10 ms */
#define SHORT_WALK 1500     /* nodes; beyond, tables are faster */
#define PREPARE_WORK 900000 /* some 10 ms of making classes, for each row of WHICH */
#define FIRST_STATES 8      /* first states of each rule, whose classes are prepared first */
#define SMALL_WORK 500      /* cost of a small class besides its walk */
#define WIDE_WORK 8000      /* cost of a class with most of the vocabulary, besides its walk */
#define MANY_BYTES 64
#define CLASS_WORK 10000           /* cost of a class after a long walk, besides the walk */
#define QUICK_REST 2000            /* tokens behind the end of the rule, of a class made quickly */
#define REST_MAX 60000             /* tokens that end the rule and go on */
#define REST_WORK 4                /* cost of each such token, in nodes: the tokens are sorted */
#define NEW_WORK 25                /* cost of any class, in nodes: its allocations */
#define WORDS_WORK 32              /* words of its bit map that cost as much as a node */
#define SPARSE_SHARE 64            /* fewer than n_vocab / this: listed */
#define ROOM_MAX ((size_t)8 << 20) /* memory for the classes of one grammar */

/* Invariant: rest[] and c->rest[] have n_rest entries. */
struct collector {
    struct walk walk;
    const struct grammar *g;
    struct token_class *c;
    const struct byte_set *follow;
    /* the state that is classified */
    uint32_t state;
    /* in a loop rule, a count may forbid what the state reads */
    bool counts;
    bool quick;
    /* item: index into c->rest */
    struct trie_string *rest;
    uint32_t n_rest, cap_rest;
    /* nodes visited by walks that were given up */
    uint64_t work;
    int error;
    bool too_large;
};

/* Adds token @id, of which the rule reads the first @depth bytes. */
static void class_add_rest(struct collector *k, uint32_t id, uint32_t depth, uint32_t n_chars) {
    uint32_t cap = k->cap_rest;
    size_t len;
    const uint8_t *bytes = vocab_bytes(k->g->vocab, (int32_t)id, &len);

    if (k->n_rest == REST_MAX) {
        k->too_large = true;
        return;
    }
    if (k->quick && k->n_rest == QUICK_REST) {
        k->error = -EAGAIN;
        return;
    }
    if (!ARRAY_GROW(k->rest, k->n_rest, k->cap_rest, 256) ||
        !ARRAY_GROW(k->c->rest, k->n_rest, cap, 256)) {
        k->error = -ENOMEM;
        return;
    }
    assert(depth > 0 && depth < len);
    k->rest[k->n_rest] = (struct trie_string){bytes + depth, (uint32_t)len - depth, k->n_rest};
    k->c->rest[k->n_rest++] = (struct rest_token){id, n_chars, (uint16_t)depth, bytes[0]};
}

/* Collects all tokens at and below @node: the rule ends at @depth bytes of them. */
static void collect_rest(struct collector *k, uint32_t node, uint32_t depth, uint32_t n_chars) {
    const struct trie *t = k->walk.trie;
    const struct trie_node *n = &t->node[node];

    for (uint32_t i = n->items; i < n->items + n->n_items && !k->too_large && !k->error; i++)
        class_add_rest(k, t->item[i], depth, n_chars);
    for (uint32_t i = n->child; i < n->child + n->n_children && !k->too_large && !k->error; i++)
        collect_rest(k, i, depth, n_chars);
}

static bool is_border(const struct grammar *g, uint32_t q) {
    return g->state[q].flags & STATE_BORDER;
}

/* Returns how many characters of the loop begin in the first @depth bytes of @node's tokens. */
static uint32_t chars_of(const struct collector *k, uint32_t node, uint32_t depth) {
    const struct trie *t = k->walk.trie;
    uint32_t q = k->state, n = 0;
    size_t len;
    const uint8_t *bytes = vocab_bytes(k->g->vocab, (int32_t)t->item[t->node[node].items], &len);

    for (uint32_t i = 0; i < depth; i++) {
        n += is_border(k->g, q);
        q = state_next(k->g, &k->g->state[q], bytes[i]);
        assert(q != NO_STATE || i + 1 == depth);
    }
    return n;
}

static bool class_visit(struct walk *w, uint32_t node, const struct set *s, uint32_t depth) {
    struct collector *k = w->arg;
    const struct trie_node *n = &w->trie->node[node];
    bool loop = k->g->state[k->state].flags & STATE_LOOP;

    for (uint32_t i = n->child; s->can_end && i < n->child + n->n_children; i++) {
        if (byte_set_has(k->follow, w->trie->node[i].byte))
            collect_rest(k, i, depth, loop ? chars_of(k, node, depth) : 0);
    }
    return !k->error && !k->too_large;
}

/* Turns the bit map into a list if few tokens are allowed. */
static int make_sparse(struct collector *k) {
    struct token_class *c = k->c;
    uint32_t n_words = grammar_vocab_n_words(k->g->vocab);

    c->n_allowed = (uint32_t)k->walk.n_set;
    c->bytes += n_words * sizeof(uint32_t);
    if (c->n_allowed > k->g->vocab->n / SPARSE_SHARE)
        return 0;
    c->ids = malloc(MAX(c->n_allowed, 1u) * sizeof(*c->ids));
    if (!c->ids)
        return -ENOMEM;
    for (uint32_t w = 0; w < n_words && c->n_ids < c->n_allowed; w++) {
        uint64_t next[4];

        if (w + 8 <= n_words) {
            memcpy(next, c->bits + w, sizeof(next));
            if (!(next[0] | next[1] | next[2] | next[3])) {
                w += 7;
                continue;
            }
        }
        for (uint32_t left = c->bits[w]; left; left &= left - 1)
            c->ids[c->n_ids++] = w * 32 + (uint32_t)__builtin_ctz(left);
    }
    assert(c->n_ids == c->n_allowed);
    free(c->bits);
    c->bits = NULL;
    c->bytes += c->n_ids * sizeof(*c->ids) - n_words * sizeof(uint32_t);
    return 0;
}

/* Makes the trie of the tokens that go on behind the rule. Leaves out those that are allowed anyway
 * because another reading stays inside the rule, unless a count may forbid that reading. */
static int build_rest(struct collector *k) {
    struct token_class *c = k->c;
    uint32_t n = 0;

    for (uint32_t i = 0; i < k->n_rest; i++) {
        uint32_t id = c->rest[k->rest[i].item].id;

        if (k->counts || !(c->bits[id / 32] >> (id % 32) & 1))
            k->rest[n++] = k->rest[i];
    }
    c->n_rest = k->n_rest;
    c->bytes += k->n_rest * sizeof(*c->rest);
    int r = trie_init(&c->after, k->rest, n);

    if (r == 0)
        c->bytes += trie_bytes(&c->after);
    return r;
}

/* Resets @k for another walk. */
static void begin_walk(struct collector *k) {
    if (k->walk.bits)
        memset(k->walk.bits, 0, grammar_vocab_n_words(k->g->vocab) * sizeof(uint32_t));
    k->n_rest = 0;
    k->walk.n_visited = 0;
    k->walk.n_set = 0;
    k->walk.m->error = k->error = 0;
    k->walk.m->fuel = CLASS_FUEL;
    k->too_large = false;
}

/* Reads all tokens from @from. A short walk suffices for most states; with @wide it is known that
 * it does not, and left out. */
static int class_collect(struct collector *k, const struct set *from, bool wide) {
    struct machine *m = k->walk.m;
    struct walk *w = &k->walk;

    w->max_visited = SHORT_WALK;
    if (!wide || k->quick)
        walk_steps(w, from);
    if (w->n_visited > w->max_visited && k->quick)
        return -EAGAIN;
    if ((wide && !k->quick) || (w->n_visited > w->max_visited && !m->error)) {
        if (w->n_visited)
            begin_walk(k);
        w->empty = true;
        walk_tables(w, from);
    }
    int r = k->error ? k->error : m->error;

    if (r == 0 && k->too_large)
        return -E2BIG;
    return r;
}

/* Returns the bits text_bit() of all bytes of @s. */
static uint64_t text_bits(const struct byte_set *s) {
    uint64_t bits = 0;

    for (unsigned c = 0; c < 256; c++)
        bits |= byte_set_has(s, (uint8_t)c) ? text_bit(c) : 0;
    return bits;
}

/* Returns the number of bytes that can come next at @q. */
static uint32_t n_bytes(const struct grammar *g, uint32_t q) {
    const struct state *s = &g->state[q];
    uint32_t n = 0;

    for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++)
        n += g->edge[i].hi - g->edge[i].lo + 1u;
    return n;
}

/* Returns whether @q reads all texts of some kind, or much besides ASCII: its class is large. */
static bool class_is_wide(const struct grammar *g, uint32_t q) {
    const struct state *s = &g->state[q];

    for (unsigned k = 1; k < TEXT_KINDS; k++) { /* not of digits: there are few such tokens */
        if (g->free_chars[q][k])
            return true;
    }
    return s->n_edges && g->edge[s->edge + s->n_edges - 1].hi >= 0x80;
}

/* Returns the number of nodes up to which a walk is so short that its state needs no class. */
static uint64_t cheap_visits(const struct collector *k) {
    return MIN(CHEAP_VISITS, k->walk.trie->n / 8);
}

/* Returns whether a short walk without a bit map shows that the state needs no class. Most states
 * of a grammar are such ones, and a bit map costs more than their walk. */
static bool is_cheap(struct collector *k, const struct set *from) {
    struct walk *w = &k->walk;

    w->max_visited = cheap_visits(k);
    walk_steps(w, from);
    if (!k->error && !w->m->error && !k->too_large && w->n_visited <= w->max_visited)
        return true;
    k->work += w->n_visited;
    begin_walk(k);
    return false;
}

/* Makes the class of a state; @wide: class_is_wide() holds for it. Returns what class_new()
 * returns. */
static int class_make(struct collector *k, const struct set *from, bool wide) {
    k->c->bits = k->walk.bits = calloc(grammar_vocab_n_words(k->g->vocab), sizeof(uint32_t));
    if (!k->c->bits)
        return -ENOMEM;
    TRY(class_collect(k, from, wide));
    TRY(build_rest(k));
    return make_sparse(k);
}

/* Returns the cost of making the class, in nodes of a walk. */
static uint64_t work_done(const struct collector *k) {
    uint32_t n_words = k->walk.bits ? grammar_vocab_n_words(k->g->vocab) : 0;

    return k->work + k->walk.n_visited + NEW_WORK + n_words / WORDS_WORK +
           k->n_rest * (uint64_t)REST_WORK;
}

int class_new(struct token_class **out, const struct grammar *g, uint32_t state, bool counted,
              bool quick, uint64_t *work) {
    const struct auto_rule *rule = &g->rule[g->state[state].rule];
    struct machine m;
    struct collector k = {.g = g,
                          .follow = &rule->follow,
                          .state = state,
                          .counts = counted && rule->loop,
                          .quick = quick,
                          .c = calloc(1, sizeof(*k.c))};
    int r = k.c ? machine_init(&m, g) : -ENOMEM;

    if (r < 0) {
        free(k.c);
        return r;
    }
    struct set s = set_open(&m);

    m.fuel = CLASS_FUEL;
    m.config[m.n_configs++] = (struct config){.state = state};
    s.end = m.n_configs;
    uint64_t follow = text_bits(k.follow);

    k.walk = (struct walk){.m = &m,
                           .trie = &g->vocab->trie,
                           .kinds = k.counts ? kinds_without(k.follow) : ALL_KINDS,
                           .visit = follow ? class_visit : NULL,
                           .ends = follow,
                           .arg = &k};
    bool wide = class_is_wide(g, state);

    r = !wide && is_cheap(&k, &s) ? 1 : class_make(&k, &s, wide);
    *work = work_done(&k);
    machine_deinit(&m);
    free(k.rest);
    if (r != 0) {
        class_free(k.c);
        return r;
    }
    k.c->bytes += sizeof(*k.c);
    assert((k.c->bits != NULL) != (k.c->ids != NULL));
    *out = k.c;
    return 0;
}

void class_free(struct token_class *c) {
    if (!c)
        return;
    free(c->bits);
    free(c->ids);
    free(c->rest);
    trie_deinit(&c->after);
    free(c);
}

/* Returns whether @s has a single edge with a single byte, as inside a literal. */
static bool is_literal(const struct grammar *g, const struct state *s) {
    return s->n_edges == 1 && g->edge[s->edge].lo == g->edge[s->edge].hi;
}

static bool only_quote(const struct byte_set *s) {
    struct byte_set quote = {{0}};

    byte_set_add(&quote, '"');
    return memcmp(s, &quote, sizeof(quote)) == 0;
}

/* Markers in g->cls. no_class: this state needs no class. once_walked: it has none yet, but a mask
 * has walked from it and found that it needs one. */
static struct token_class no_class, once_walked;

/* Returns whether a class may be worth the walk at @q. */
static bool may_have_class(const struct grammar *g, uint32_t q) {
    return g->state[q].n_edges && !is_literal(g, &g->state[q]) &&
           !(g->state[q].flags & STATE_MEMBERS);
}

/* Returns the place of the class of @q that all grammars with its rule share, or NULL. */
static _Atomic(struct token_class *) *class_place(const struct grammar *g, uint32_t q) {
    uint32_t rule = g->state[q].rule;

    if (!g->places[rule])
        return NULL;
    return &g->places[rule][q - g->rule[rule].start];
}

static bool class_acquire_room(const struct grammar *g, size_t bytes) {
    _Atomic size_t *room = (_Atomic size_t *)(uintptr_t)&g->class_room;
    size_t left = atomic_load(room);

    while (left >= bytes) {
        if (atomic_compare_exchange_weak(room, &left, left - bytes))
            return true;
    }
    return false;
}

/* Stores @c (NULL: the state needs no class) at @place, where all grammars find it, and takes it
 * over. Returns what is there then, which may be the class that another thread stored first; NULL,
 * with @c as it was, if the memory for shared classes is used up. */
static struct token_class *class_publish(const struct grammar *g,
                                         _Atomic(struct token_class *) *place,
                                         struct token_class *c) {
    struct token_class *there = NULL;

    assert(!c || (!c->shared && c->bytes > 0));
    if (c && !share_spend(g->vocab->share, c->bytes))
        return NULL;
    if (c)
        c->shared = true;
    if (atomic_compare_exchange_strong(place, &there, c ? c : &no_class)) {
        if (c)
            return c;
        return &no_class;
    }
    class_free(c);
    return there;
}

/* Stores the class of @q. Returns false if another thread was first. */
static bool class_set(const struct grammar *g, uint32_t q, struct token_class *c) {
    struct token_class *there = NULL;

    return atomic_compare_exchange_strong(&g->cls[q], &there, c) ||
           (there == &once_walked && atomic_compare_exchange_strong(&g->cls[q], &there, c));
}

/* Makes the class of @q and stores it; if another thread does the same meanwhile, the first one
 * counts. Returns 0; -E2BIG or -ENOMEM if the state has no class for that reason; -EAGAIN, only
 * with @quick, if making it would take long. */
static int make_class(const struct grammar *g, uint32_t q, bool quick, uint64_t *work) {
    _Atomic(struct token_class *) *place = class_place(g, q);
    struct token_class *c = NULL, *known = place ? atomic_load(place) : NULL;
    int r = known ? 0 : 1;

    if (!known && may_have_class(g, q))
        r = class_new(&c, g, q, g->counted[g->state[q].rule], quick, work);
    if (r == -EAGAIN)
        return r;
    if (!known && place && r != -ENOMEM) {
        known = class_publish(g, place, c);
        c = known ? NULL : c; /* class_publish() took @c over, or freed it */
    }
    if (!known && c && !class_acquire_room(g, c->bytes)) {
        class_free(c);
        c = NULL;
    }
    if (!known)
        known = c ? c : &no_class;
    if (!class_set(g, q, known) && c) {
        atomic_fetch_add((_Atomic size_t *)(uintptr_t)&g->class_room, c->bytes);
        class_free(c);
    }
    return MIN(r, 0);
}

bool class_is_open(const struct grammar *g, uint32_t q) {
    return !atomic_load_explicit(&g->cls[q], memory_order_acquire) && may_have_class(g, q) &&
           !(g->state[q].flags & STATE_LOOP) && !class_is_wide(g, q);
}

bool class_is_missing(const struct grammar *g, uint32_t q) {
    _Atomic(struct token_class *) *place = class_place(g, q);

    return !atomic_load_explicit(&g->cls[q], memory_order_acquire) && may_have_class(g, q) &&
           !(g->state[q].flags & STATE_LOOP) && class_is_wide(g, q) &&
           !(place && atomic_load(place));
}

bool class_is_long(const struct grammar *g, uint32_t q) {
    const struct byte_set *follow = &g->rule[g->state[q].rule].follow;
    int n = 0;

    for (unsigned w = 0; w < ARRAY_SIZE(follow->w); w++)
        n += __builtin_popcountll(follow->w[w]);
    return (g->state[q].flags & STATE_LOOP) && n >= MANY_BYTES &&
           !atomic_load_explicit(&g->cls[q], memory_order_acquire);
}

void class_walked(const struct grammar *g, uint32_t q, uint64_t n_visited) {
    assert(may_have_class(g, q) && !class_is_wide(g, q));
    bool none = n_visited <= CHEAP_VISITS;
    _Atomic(struct token_class *) *place = none ? class_place(g, q) : NULL;
    struct token_class *expected = NULL, *c = none ? &no_class : &once_walked;

    if (place)
        c = class_publish(g, place, NULL);
    atomic_compare_exchange_strong(&g->cls[q], &expected, c);
}

int class_of(const struct token_class **out, const struct grammar *g, uint32_t state, bool quick) {
    assert(state < g->n_states);
    const struct token_class *c = atomic_load_explicit(&g->cls[state], memory_order_acquire);
    uint64_t work = 0;

    if (c && c != &once_walked) {
        *out = c == &no_class ? NULL : c;
        return 0;
    }
    if (make_class(g, state, quick, &work) == -EAGAIN)
        return -EAGAIN;
    c = atomic_load_explicit(&g->cls[state], memory_order_acquire);
    assert(c && c != &once_walked);
    *out = c == &no_class ? NULL : c;
    return 0;
}

void classes_free(struct grammar *g) {
    for (uint32_t q = 0; g->cls && q < g->n_states; q++) {
        struct token_class *c = g->cls[q];

        if (c && c != &no_class && c != &once_walked && !c->shared)
            class_free(c);
    }
    free(g->cls);
    free(g->counted);
    free(g->places);
}

static bool class_has_wide(const struct grammar *g, const struct auto_rule *r) {
    for (uint32_t q = r->start; q < r->start + r->n_states; q++) {
        if (!g->cls[q] && class_is_wide(g, q))
            return true;
    }
    return false;
}

/* Returns whether a class of @q needs a walk of most of the vocabulary, node by node. */
static bool is_slow(const struct grammar *g, uint32_t q) {
    return n_bytes(g, q) >= MANY_BYTES && g->free_chars[q][KIND_TEXT] < FREE_CHARS_MAX;
}

/* Returns the steps of the compilation (build_work()) for @work nodes of a walk. */
static uint64_t steps_of(uint64_t work) {
    return 1 + work * 4 + (work > SHORT_WALK ? CLASS_WORK : 0);
}

/* Classifies all states of a grammar that is not a schema. Such a grammar may be so ambiguous that
 * no mask could be made in time; its author learns that now instead of in the middle of a text. */
static int make_all(struct build *b, struct grammar *g) {
    for (uint32_t q = 0; q < g->n_states; q++) {
        uint64_t work = 0;
        int r = 0;

        if (!g->cls[q])
            r = make_class(g, q, false, &work);
        if (r == -E2BIG)
            return build_too_complex(b, "the grammar is too ambiguous: many texts can be split "
                                        "into its parts in many ways");
        TRY(r);
        TRY(build_work(b, steps_of(work)));
    }
    return 0;
}

/* Returns whether @q is in a loop or before white space: its class is small, but making it takes
 * longer than a mask should. */
static bool class_is_small(const struct grammar *g, uint32_t q) {
    return (g->state[q].flags & (STATE_BORDER | STATE_LOOP)) == (STATE_BORDER | STATE_LOOP) ||
           state_next(g, &g->state[q], '\n') != NO_STATE;
}

/* Makes the class of @q if @g has room. Returns false if there is no room for further classes. */
static bool class_prepare(const struct grammar *g, uint32_t q, size_t least, uint64_t *work) {
    *work = 0;
    return atomic_load(&g->class_room) >= least && job_pause() == 0 &&
           make_class(g, q, false, work) != -ENOMEM;
}

void grammar_prepare(const struct grammar *g) {
    static const struct {
        bool (*has)(const struct grammar *, uint32_t);
        /* work of a node of its walk, and besides */
        uint32_t node, more;
    } WHICH[] = {
        {is_slow, 1, WIDE_WORK}, {class_is_wide, 1, WIDE_WORK}, {class_is_small, 4, SMALL_WORK}};
    size_t least = atomic_load(&g->class_room) / 2;

    for (unsigned i = 0; i < ARRAY_SIZE(WHICH); i++) {
        uint64_t work = 0, of_class;

        for (uint32_t k = 0; k < 2 * g->n_states && work < PREPARE_WORK; k++) {
            uint32_t q = k % g->n_states;
            const struct token_class *c = atomic_load(&g->cls[q]);
            bool first = q - g->rule[g->state[q].rule].start < FIRST_STATES;

            if (first != (k < g->n_states) || (c && c != &once_walked) || !WHICH[i].has(g, q))
                continue;
            if (!class_prepare(g, q, least, &of_class))
                return;
            work += of_class * WHICH[i].node + WHICH[i].more;
        }
    }
}

/* Takes the classes that the vocabulary has ready and allocates room for the rest. */
int automaton_classify(struct build *b, struct grammar *g) {
    uint32_t n_words = grammar_vocab_n_words(g->vocab);
    size_t room = 0;

    g->cls = calloc(MAX(g->n_states, 1u), sizeof(*g->cls));
    g->counted = calloc(MAX(g->n_rules, 1u), sizeof(*g->counted));
    g->places = calloc(MAX(g->n_rules, 1u), sizeof(*g->places));
    if (!g->cls || !g->counted || !g->places)
        return -ENOMEM;
    for (uint32_t i = 0; i < g->n_descs; i++) {
        if (g->desc[i].kind == CALL_COUNTED && g->desc[i].max != NO_MAX)
            g->counted[g->desc[i].rule] = true;
    }
    for (uint32_t q = 0; q < g->n_states; q++) {
        const struct auto_rule *rule = &g->rule[g->state[q].rule];

        if (rule->shared && only_quote(&rule->follow))
            g->cls[q] = share_loop_class(g->vocab->share, rule->shared, q - rule->start);
        else if (may_have_class(g, q))
            room += n_words * sizeof(uint32_t) / 4 + sizeof(struct token_class);
    }
    g->bytes += g->n_states * sizeof(*g->cls);
    room = MIN(MIN(room, ROOM_MAX), b->limits.max_bytes - MIN(b->limits.max_bytes, g->bytes));
    g->class_room = room;
    g->bytes += room;
    for (uint32_t i = 0; i < g->n_rules; i++) {
        if (class_has_wide(g, &g->rule[i]))
            g->places[i] = share_places(g->vocab->share, g, i, g->counted[i]);
    }
    if (b->is_schema)
        return build_work(b, g->n_states);
    return make_all(b, g);
}
