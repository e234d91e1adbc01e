/*
 * dict - dictionaries, which keep the order of insertion. Small ones are searched from the front;
 * larger ones have an index of entry numbers, a hash table with open addressing. Keys come from
 * clients, so the hash is seeded for each rendering and every probe costs fuel.
 */

#include <assert.h>
#include <string.h>

#include "base/try.h"
#include "text/template/budget.h"
#include "text/template/value.h"

#define INDEX_FROM 8u

static uint64_t dict_mix(uint64_t h) {
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93ull;
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93ull;
    return h ^ h >> 32;
}

static uint64_t dict_hash_bytes(const char *p, size_t len, uint64_t seed) {
    uint64_t h = dict_mix(seed ^ len), w;

    for (; len >= 8; p += 8, len -= 8) {
        memcpy(&w, p, 8);
        h = dict_mix(h ^ w);
    }
    w = 0;
    if (len)
        memcpy(&w, p, len);
    return dict_mix(h ^ w);
}

/* Hashes a number. Equal numbers must have equal hashes: 1, 1.0 and True are the same key. */
static uint64_t hash_number(struct value v, uint64_t seed) {
    uint64_t bits;
    wide w;

    if (value_whole(v, &w))
        return dict_mix(seed ^ (uint64_t)w);
    memcpy(&bits, &v.f, 8);
    return dict_mix(seed ^ bits);
}

/* Hashes a key: equal values have equal hashes within a rendering. Lists and dicts can change, so
 * they cannot be keys, as in Python, and give an error. */
static int hash_value(struct render *rd, struct value v, uint64_t *out) {
    uint64_t h = rd->hash_seed;

    TRY(render_charge(rd, 1));
    switch (v.type) {
    case V_STR:
        *out = dict_hash_bytes(v.s->data, v.s->len, h);
        return render_charge_bytes(rd, v.s->len);
    case V_BOOL:
    case V_INT:
    case V_UINT:
    case V_FLOAT:
        *out = hash_number(v, h);
        return 0;
    case V_SEQ:
        if (v.seq->kind != SEQ_TUPLE)
            break;
        TRY(render_enter(rd));
        for (uint32_t i = 0; i < v.seq->n; i++) {
            uint64_t part;

            TRY(hash_value(rd, v.seq->v[i], &part));
            h = dict_mix(h ^ part);
        }
        render_exit(rd);
        *out = h;
        return 0;
    case V_DICT:
        break;
    case V_UNDEFINED:
    case V_NONE:
        *out = dict_mix(h ^ v.type);
        return 0;
    default:
        *out = dict_mix(h ^ (uintptr_t)v.dict);
        return 0;
    }
    return render_fail(rd, "unhashable type: '%s'", value_type_name(v));
}

struct dict *dict_new(struct render *rd, uint32_t cap) {
    struct dict *d = render_alloc(rd, 1, sizeof(*d));

    if (!d)
        return NULL;
    d->cap = cap;
    if (cap && !(d->e = render_alloc(rd, cap, sizeof(*d->e))))
        return NULL;
    return d;
}

static int dict_same_key(struct render *rd, struct value a, struct value b, bool *out) {
    if (a.type == V_STR && b.type == V_STR) {
        size_t n = a.s->len;

        /* Most keys differ in their length or first byte. */
        *out = n == b.s->len &&
               (!n || (a.s->data[0] == b.s->data[0] && memcmp(a.s->data, b.s->data, n) == 0));
        if (n != b.s->len)
            return 0;
        return render_charge_bytes(rd, n);
    }
    return value_equal(rd, a, b, out);
}

/* Finds the entry of a key. Returns 1 with its number, 0 if there is none, or a negative error. */
static int locate(struct render *rd, const struct dict *d, struct value key, uint64_t hash,
                  uint32_t *at) {
    bool same;

    assert(d->n <= d->cap);
    if (!d->index) {
        for (uint32_t i = 0; i < d->n; i++) {
            TRY(dict_same_key(rd, d->e[i].key, key, &same));
            if (same) {
                *at = i;
                return 1;
            }
        }
        return 0;
    }
    for (uint32_t slot = (uint32_t)hash & (d->n_index - 1); d->index[slot];
         slot = (slot + 1) & (d->n_index - 1)) {
        uint32_t i = d->index[slot] - 1;

        TRY(render_charge(rd, 1));
        if (d->e[i].hash != hash)
            continue;
        TRY(dict_same_key(rd, d->e[i].key, key, &same));
        if (same) {
            *at = i;
            return 1;
        }
    }
    return 0;
}

static void insert_index(struct dict *d, uint32_t i) {
    assert(i < d->n_index && (d->n_index & (d->n_index - 1)) == 0); /* a free slot ends the loop */
    uint32_t slot = (uint32_t)d->e[i].hash & (d->n_index - 1);

    while (d->index[slot])
        slot = (slot + 1) & (d->n_index - 1);
    d->index[slot] = i + 1;
}

/* Makes the index anew, with twice as many slots as there is room for entries: that keeps probing
 * short. */
static int build_index(struct render *rd, struct dict *d) {
    uint32_t n = 32;

    while (n < d->cap * 2)
        n *= 2;
    bool had_hashes = d->index != NULL;

    assert(d->n <= d->cap && d->cap <= n / 2);

    d->index = render_alloc(rd, n, sizeof(*d->index));
    d->n_index = n;
    if (!d->index || render_charge(rd, d->n))
        return -1;
    for (uint32_t i = 0; i < d->n; i++) {
        if (!had_hashes && hash_value(rd, d->e[i].key, &d->e[i].hash))
            return -1;
        insert_index(d, i);
    }
    return 0;
}

static int dict_grow(struct render *rd, struct dict *d) {
    uint32_t cap = MAX(d->cap * 2, 4u);
    struct dict_entry *e;

    assert(d->cap <= UINT32_MAX / 8); /* the memory limit of a rendering is lower */
    e = render_alloc(rd, cap, sizeof(*e));
    if (!e || render_charge(rd, d->n))
        return -1;
    if (d->n)
        memcpy(e, d->e, d->n * sizeof(*e));
    d->e = e;
    d->cap = cap;
    if (!d->index)
        return 0;
    return build_index(rd, d);
}

/* Adds or replaces an entry. A string needs no hash while there is no index; other keys are hashed
 * anyway, to check that they can be keys. */
int dict_set(struct render *rd, struct dict *d, struct value key, struct value v) {
    uint64_t hash = 0;
    uint32_t at;

    if ((key.type != V_STR || d->index) && hash_value(rd, key, &hash))
        return -1;
    int r = locate(rd, d, key, hash, &at);

    if (r < 0)
        return r;
    if (r > 0) {
        d->e[at].value = v;
        return 0;
    }
    if (d->n >= d->cap && dict_grow(rd, d))
        return -1;
    assert(d->n < d->cap && (d->index || d->n <= INDEX_FROM));
    d->e[d->n++] = (struct dict_entry){key, v, hash};
    if (d->index)
        insert_index(d, d->n - 1);
    else if (d->n > INDEX_FROM)
        return build_index(rd, d);
    return 0;
}

int dict_get(struct render *rd, const struct dict *d, struct value key, struct value *out) {
    uint64_t hash = 0;
    uint32_t at;

    if ((key.type != V_STR || d->index) && hash_value(rd, key, &hash))
        return -1;
    int r = locate(rd, d, key, hash, &at);

    if (r > 0 && out)
        *out = d->e[at].value;
    return r;
}

/* Searches a small dict without the calls of dict_get(): it is what templates do most. */
int dict_get_str(struct render *rd, const struct dict *d, const struct tstr *key,
                 struct value *out) {
    if (!d->index && d->n && key->len && key->len < 64) {
        for (uint32_t i = 0; i < d->n; i++) {
            const struct value k = d->e[i].key;

            if (k.type == V_STR && k.s->len == key->len && k.s->data[0] == key->data[0] &&
                memcmp(k.s->data, key->data, key->len) == 0) {
                *out = d->e[i].value;
                return 1;
            }
        }
        return 0;
    }
    return dict_get(rd, d, value_str(key), out);
}

/* Removes an entry and moves the later ones up. That is rare, and its work is charged. */
int dict_remove(struct render *rd, struct dict *d, struct value key, struct value *out) {
    uint64_t hash = 0;
    uint32_t at;

    TRY(hash_value(rd, key, &hash));
    int r = locate(rd, d, key, hash, &at);

    if (r <= 0)
        return r;
    assert(at < d->n);
    if (out)
        *out = d->e[at].value;
    memmove(d->e + at, d->e + at + 1, (d->n - at - 1) * sizeof(*d->e));
    d->n--;
    TRY(render_charge(rd, d->n / 4));
    if (d->index) {
        memset(d->index, 0, d->n_index * sizeof(*d->index));
        for (uint32_t i = 0; i < d->n; i++)
            insert_index(d, i);
    }
    return 1;
}

struct dict_entry *dict_sorted(struct render *rd, const struct dict *d) {
    struct dict_entry *e = render_alloc(rd, d->n, sizeof(*e));
    struct value *keys = render_alloc(rd, d->n, sizeof(*keys));
    struct value *order = render_alloc(rd, d->n, sizeof(*order));

    if (!e || !keys || !order)
        return NULL;
    for (uint32_t i = 0; i < d->n; i++) {
        keys[i] = d->e[i].key;
        order[i] = value_int(i);
    }
    if (value_sort(rd, order, keys, d->n, false))
        return NULL;
    for (uint32_t i = 0; i < d->n; i++)
        e[i] = d->e[order[i].i];
    return e;
}
