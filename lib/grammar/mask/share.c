/*
 * share - the token classes of equal rules, shared by all grammars of a vocabulary.
 *
 * Dates, identifiers and URLs are the same patterns in every schema, and their states are those
 * whose classes take longest to make. As long as a rule calls no other, its classes depend on
 * nothing but the vocabulary, the states of the rule and the bytes that may follow it. These,
 * written one behind the other, are the key of the rule (share_write_key()). A hash table leads
 * from the key to an array with one pointer for each state; all grammars with an equal rule use
 * that array. The hash only nominates a rule, the bytes of the key decide.
 *
 * Rules are never removed, since a grammar may be using them, and their memory is limited. A
 * grammar that is compiled when the memory is used up has classes of its own. So what one client
 * sends can cost others the time of making classes, but never give them a wrong class.
 *
 * Each bucket is a list that only grows at its head by compare-and-swap, so finding and adding take
 * no lock.
 */

#include "grammar/mask/share.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#include "base/buf.h"
#include "base/try.h"
#include "grammar/mask/class.h"

#define BUCKETS 4096u
#define KEY_MAX 65536u               /* bytes of a rule */
#define SHARE_MAX ((size_t)64 << 20) /* memory for rules and classes */

/* An entry in the list of its bucket. It never changes, except that each cls[] is set once. */
struct shared_rule {
    struct shared_rule *next;
    uint64_t hash;
    size_t n_key;
    uint8_t *key;
    uint32_t n_states;
    _Atomic(struct token_class *) cls[];
};

struct share {
    struct {
        /* by state of the loop's rule, from its start */
        struct token_class **cls;
        uint32_t n;
    } loop[SHARED_LOOPS];
    _Atomic(struct shared_rule *) bucket[BUCKETS];
    _Atomic size_t left;
};

int share_new(struct share **out) {
    struct share *s = calloc(1, sizeof(*s));

    if (!s)
        return -ENOMEM;
    s->left = SHARE_MAX;
    *out = s;
    return 0;
}

static void rule_free(struct shared_rule *r) {
    if (!r)
        return;
    for (uint32_t i = 0; i < r->n_states; i++) {
        struct token_class *c = r->cls[i];

        if (c && c->shared)
            class_free(c);
    }
    free(r->key);
    free(r);
}

struct share *share_free(struct share *s) {
    for (unsigned i = 0; s && i < BUCKETS; i++) {
        for (struct shared_rule *r = s->bucket[i], *next; r; r = next) {
            next = r->next;
            rule_free(r);
        }
    }
    for (int i = 0; s && i < SHARED_LOOPS; i++) {
        for (uint32_t q = 0; q < s->loop[i].n; q++)
            class_free(s->loop[i].cls[q]);
        free(s->loop[i].cls);
    }
    free(s);
    return NULL;
}

int share_add_loop(struct share *s, const struct grammar *g, uint32_t rule) {
    const struct auto_rule *r = &g->rule[rule];
    struct token_class **cls = calloc(r->n_states, sizeof(struct token_class *));

    if (!cls)
        return -ENOMEM;
    assert(r->shared != SHARED_NONE && !s->loop[r->shared].cls);
    s->loop[r->shared].cls = cls;
    s->loop[r->shared].n = r->n_states;
    for (uint32_t q = 0; q < r->n_states; q++) {
        uint64_t n_visited;
        int e = class_new(&cls[q], g, r->start + q, true, false, &n_visited);

        if (e < 0)
            return e;
        if (e == 0)
            cls[q]->shared = true;
    }
    return 0;
}

struct token_class *share_loop_class(const struct share *s, unsigned which, uint32_t state) {
    assert(which > SHARED_NONE && which < SHARED_LOOPS);
    if (state >= s->loop[which].n)
        return NULL;
    return s->loop[which].cls[state];
}

bool share_spend(struct share *s, size_t bytes) {
    size_t left = atomic_load(&s->left);

    while (left >= bytes) {
        if (atomic_compare_exchange_weak(&s->left, &left, left - bytes))
            return true;
    }
    return false;
}

size_t share_bytes(const struct share *s) {
    return SHARE_MAX - atomic_load(&s->left);
}

static int share_write_state(struct buf *key, const struct grammar *g, const struct auto_rule *r,
                             const struct state *s) {
    TRY(buf_add(key, &s->flags, sizeof(s->flags)));
    TRY(buf_add(key, &s->n_edges, sizeof(s->n_edges)));
    for (uint32_t i = s->edge; i < s->edge + s->n_edges; i++) {
        uint32_t edge[2] = {g->edge[i].lo | (uint32_t)g->edge[i].hi << 16,
                            g->edge[i].to - r->start};

        assert(edge[1] < r->n_states);
        TRY(buf_add(key, edge, sizeof(edge)));
    }
    return 0;
}

/* Writes the key of @rule: the bytes that may follow it, and the flags and edges of its states,
 * with targets counted from the rule's start. Returns false if the rule cannot be shared. */
static bool share_write_key(struct buf *key, const struct grammar *g, uint32_t rule, bool counted) {
    const struct auto_rule *r = &g->rule[rule];

    if (buf_add(key, &r->follow, sizeof(r->follow)) < 0)
        return false;
    if (buf_add(key, &counted, sizeof(counted)) < 0)
        return false;
    for (uint32_t q = r->start; q < r->start + r->n_states; q++) {
        const struct state *s = &g->state[q];

        if (s->n_calls || (s->flags & (STATE_TOKENS | STATE_MEMBERS)))
            return false;
        if (share_write_state(key, g, r, s) < 0)
            return false;
    }
    return true;
}

static struct shared_rule *share_find(struct shared_rule *r, const struct buf *key, uint64_t hash) {
    while (r && (r->hash != hash || r->n_key != key->len || memcmp(r->key, key->data, r->n_key)))
        r = r->next;
    return r;
}

static struct shared_rule *rule_new(struct share *s, const struct buf *key, uint64_t hash,
                                    uint32_t n_states) {
    size_t size = sizeof(struct shared_rule) + n_states * sizeof(_Atomic(struct token_class *));

    if (!share_spend(s, size + key->len))
        return NULL;
    struct shared_rule *r = calloc(1, size);

    if (!r)
        return NULL;
    *r = (struct shared_rule){.hash = hash, .n_key = key->len, .n_states = n_states};
    r->key = malloc(key->len);
    if (!r->key) {
        free(r);
        return NULL;
    }
    memcpy(r->key, key->data, key->len);
    return r;
}

_Atomic(struct token_class *) *share_places(struct share *s, const struct grammar *g, uint32_t rule,
                                            bool counted) {
    struct buf key;

    assert(rule < g->n_rules);
    buf_init(&key, KEY_MAX);
    if (!share_write_key(&key, g, rule, counted)) {
        buf_deinit(&key);
        return NULL;
    }
    uint64_t hash = bytes_hash(key.data, key.len);
    _Atomic(struct shared_rule *) *bucket = &s->bucket[hash % BUCKETS];
    struct shared_rule *first = atomic_load(bucket), *r = share_find(first, &key, hash),
                       *made = NULL;

    if (!r)
        r = made = rule_new(s, &key, hash, g->rule[rule].n_states);
    while (made && r == made) {
        made->next = first;
        if (atomic_compare_exchange_weak(bucket, &first, made))
            break;
        r = share_find(first, &key, hash); /* another thread may have been first */
        if (!r)
            r = made;
    }
    assert(!r || r->n_states == g->rule[rule].n_states);
    if (r != made)
        rule_free(made);
    buf_deinit(&key);
    if (!r)
        return NULL;
    return r->cls;
}
