#include "text/template/value.h"

#include <assert.h>
#include <string.h>

#include "base/try.h"
#include "text/template/budget.h"

wide value_wide(struct value v) {
    assert(value_is_int(v));
    if (v.type == V_UINT)
        return (wide)v.u;
    if (v.type == V_BOOL)
        return v.b;
    return v.i;
}

int value_from_wide(struct render *rd, wide w, struct value *out) {
    if (w > (wide)UINT64_MAX || w < INT64_MIN)
        return render_fail(rd, "an integer has more than 64 bits");
    if (w > INT64_MAX)
        *out = (struct value){.type = V_UINT, .u = (uint64_t)w};
    else
        *out = value_int((int64_t)w);
    return 0;
}

double value_double(struct value v) {
    assert(value_is_number(v));
    if (v.type == V_FLOAT)
        return v.f;
    return (double)value_wide(v);
}

const char *value_type_name(struct value v) {
    static const char *const seq[] = {"list",      "tuple",       "range",     "generator",
                                      "dict_keys", "dict_values", "dict_items"};
    static const char *const names[] = {
        [V_MISSING] = "nothing",
        [V_UNDEFINED] = "Undefined",
        [V_NONE] = "NoneType",
        [V_BOOL] = "bool",
        [V_INT] = "int",
        [V_UINT] = "int",
        [V_FLOAT] = "float",
        [V_STR] = "str",
        [V_SEQ] = "list",
        [V_DICT] = "dict",
        [V_NAMESPACE] = "Namespace",
        [V_LOOP] = "LoopContext",
        [V_MACRO] = "Macro",
        [V_FUNCTION] = "function",
        [V_METHOD] = "builtin_function_or_method",
    };

    if (v.type == V_SEQ)
        return seq[v.seq->kind];
    return names[v.type];
}

/* Returns the truth of a value. A generator is true even when it is empty, as in Python. */
bool value_truth(struct value v) {
    switch (v.type) {
    case V_MISSING:
    case V_UNDEFINED:
    case V_NONE:
        return false;
    case V_BOOL:
        return v.b;
    case V_INT:
        return v.i != 0;
    case V_FLOAT:
        return v.f != 0;
    case V_STR:
        return v.s->len > 0;
    case V_SEQ:
        return v.seq->kind == SEQ_GENERATOR || v.seq->n > 0;
    case V_DICT:
        return v.dict->n > 0;
    default:
        return true;
    }
}

int value_fail_undefined(struct render *rd, struct value v) {
    int len = v.s ? (int)MIN(v.s->len, (size_t)200) : 0;
    const char *name = v.s ? v.s->data : "";

    if (!v.s)
        return render_fail(rd, "the value is undefined");
    if (v.of == V_MISSING)
        return render_fail(rd, "'%.*s' is undefined", len, name);
    if (v.of == V_NONE)
        return render_fail(rd, "'None' has no attribute '%.*s'", len, name);
    const char *type = v.of == V_SEQ ? "list" : value_type_name((struct value){.type = v.of});

    return render_fail(rd, "'%s object' has no attribute '%.*s'", type, len, name);
}

static int equal_seqs(struct render *rd, const struct seq *a, const struct seq *b, bool *out) {
    *out = false;
    if (a == b) {
        *out = true;
        return 0;
    }
    if (a->kind != b->kind || a->n != b->n || a->kind == SEQ_GENERATOR || a->kind == SEQ_VALUES)
        return 0;
    for (uint32_t i = 0; i < a->n; i++) {
        TRY(value_equal(rd, seq_at(a, i), seq_at(b, i), out));
        if (!*out)
            return 0;
    }
    *out = true;
    return 0;
}

static int equal_dicts(struct render *rd, const struct dict *a, const struct dict *b, bool *out) {
    *out = a == b;
    if (a == b || a->n != b->n)
        return 0;
    for (uint32_t i = 0; i < a->n; i++) {
        struct value v;
        int r = dict_get(rd, b, a->e[i].key, &v);

        if (r <= 0)
            return r;
        TRY(value_equal(rd, a->e[i].value, v, out));
        if (!*out)
            return 0;
    }
    *out = true;
    return 0;
}

bool value_whole(struct value v, wide *out) {
    if (value_is_int(v))
        *out = value_wide(v);
    else if (v.f >= -0x1p63 && v.f < 0x1p64 && v.f == (double)(wide)v.f)
        *out = (wide)v.f;
    else
        return false;
    return true;
}

/* Compares numbers exactly: True == 1 == 1.0. */
static bool equal_numbers(struct value a, struct value b) {
    wide x, y;

    if (a.type == V_FLOAT && b.type == V_FLOAT)
        return a.f == b.f;
    return value_whole(a, &x) && value_whole(b, &y) && x == y;
}

/* Compares two values for equality. Values of different types are different, which is no error;
 * only depth and fuel can run out. */
int value_equal(struct render *rd, struct value a, struct value b, bool *out) {
    *out = false;
    TRY(render_charge(rd, 1));
    if (value_is_number(a) && value_is_number(b)) {
        *out = equal_numbers(a, b);
        return 0;
    }
    if (a.type != b.type)
        return 0;
    switch (a.type) {
    case V_UNDEFINED:
    case V_NONE:
        *out = true;
        return 0;
    case V_STR:
        *out = tstr_equal(a.s, b.s);
        return render_charge_bytes(rd, a.s->len == b.s->len ? a.s->len : 0);
    case V_SEQ:
    case V_DICT: {
        TRY(render_enter(rd));
        int r;

        if (a.type == V_SEQ)
            r = equal_seqs(rd, a.seq, b.seq, out);
        else
            r = equal_dicts(rd, a.dict, b.dict, out);

        render_exit(rd);
        return r;
    }
    default:
        *out = a.dict == b.dict;
        return 0;
    }
}

/* Orders two lists: the first elements that differ decide, then the length. */
static int less_seqs(struct render *rd, const struct seq *a, const struct seq *b, const char *op,
                     bool *out) {
    for (uint32_t i = 0; i < MIN(a->n, b->n); i++) {
        bool same;

        TRY(value_equal(rd, a->v[i], b->v[i], &same));
        if (!same)
            return value_less(rd, a->v[i], b->v[i], op, out);
    }
    *out = a->n < b->n;
    return 0;
}

/* Orders two values. @op is only for the error message. */
int value_less(struct render *rd, struct value a, struct value b, const char *op, bool *out) {
    TRY(render_charge(rd, 1));
    if (a.type == V_UNDEFINED || b.type == V_UNDEFINED)
        return value_fail_undefined(rd, a.type == V_UNDEFINED ? a : b);
    if (value_is_number(a) && value_is_number(b)) {
        if (a.type == V_FLOAT || b.type == V_FLOAT)
            *out = value_double(a) < value_double(b);
        else
            *out = value_wide(a) < value_wide(b);
        return 0;
    }
    if (a.type == V_STR && b.type == V_STR) {
        *out = tstr_compare(a.s, b.s) < 0;
        return render_charge_bytes(rd, MIN(a.s->len, b.s->len));
    }
    if (a.type == V_SEQ && b.type == V_SEQ && a.seq->kind == b.seq->kind &&
        a.seq->kind <= SEQ_TUPLE) {
        TRY(render_enter(rd));
        int r = less_seqs(rd, a.seq, b.seq, op, out);

        render_exit(rd);
        return r;
    }
    /* @op has been exchanged by the caller */
    bool swapped = strcmp(op, ">") == 0 || strcmp(op, "<=") == 0;
    return render_fail(rd, "'%s' not supported between instances of '%s' and '%s'", op,
                       value_type_name(swapped ? b : a), value_type_name(swapped ? a : b));
}

/* Implements `in`: a part of a string, a key of a dict, an element of any other value. */
int value_contains(struct render *rd, struct value in, struct value what, bool *out) {
    struct value *items;
    uint32_t n;

    *out = false;
    if (in.type == V_STR) {
        if (what.type != V_STR)
            return render_fail(rd, "'in <string>' requires string as left operand, not %s",
                               value_type_name(what));
        *out = tstr_find(in.s, what.s, 0, in.s->len) != SIZE_MAX;
        return render_charge_bytes(rd, in.s->len);
    }
    if (in.type == V_DICT) {
        int r = dict_get(rd, in.dict, what, NULL);

        *out = r > 0;
        return MIN(r, 0);
    }
    if (in.type != V_SEQ && in.type != V_UNDEFINED)
        return render_fail(rd, "argument of type '%s' is not iterable", value_type_name(in));
    if (value_is_seq(in, SEQ_RANGE)) {
        for (uint32_t i = 0; i < in.seq->n && !*out; i++) {
            TRY(value_equal(rd, seq_at(in.seq, i), what, out));
        }
        return 0;
    }
    TRY(value_items(rd, in, &items, &n));
    for (uint32_t i = 0; i < n && !*out; i++) {
        TRY(value_equal(rd, items[i], what, out));
    }
    return 0;
}

/* Makes one string for each code point. */
static int chars(struct render *rd, const struct tstr *s, struct value **items, uint32_t *n) {
    s = tstr_safe(rd, s, false); /* the characters of markup are none */
    if (!s)
        return -1;
    size_t count = tstr_count(s), w, k = 0;
    struct value *v = render_alloc(rd, count, sizeof(*v));

    if (!v || render_charge(rd, count))
        return -1;
    for (size_t i = 0; i < s->len; i += w) {
        tstr_decode(s->data, s->len, i, &w);
        const struct tstr *c = tstr_slice(rd, s, i, i + w);

        if (!c)
            return -1;
        v[k++] = value_str(c);
    }
    assert(k == count);
    *items = v;
    *n = (uint32_t)count;
    return 0;
}

/* Computes the elements of a range. */
static int range_items(struct render *rd, const struct seq *s, struct value **items) {
    struct value *v = render_alloc(rd, s->n, sizeof(*v));

    if (!v || render_charge(rd, s->n / 4))
        return -1;
    for (uint32_t i = 0; i < s->n; i++)
        v[i] = seq_at(s, i);
    *items = v;
    return 0;
}

/* Finds the elements of a value. An undefined value has none. None gives an error, the most
 * frequent error of templates. */
int value_items(struct render *rd, struct value v, struct value **items, uint32_t *n) {
    *items = NULL;
    *n = 0;
    switch (v.type) {
    case V_UNDEFINED:
        return 0;
    case V_STR:
        return chars(rd, v.s, items, n);
    case V_SEQ:
        *n = v.seq->n;
        if (v.seq->kind == SEQ_RANGE)
            return range_items(rd, v.seq, items);
        *items = v.seq->v;
        if (v.seq->kind == SEQ_GENERATOR) { /* the array is the caller's */
            v.seq->v = NULL;
            v.seq->n = v.seq->cap = 0;
        }
        return 0;
    case V_DICT: {
        struct value *keys = render_alloc(rd, v.dict->n, sizeof(*keys));

        if (!keys || render_charge(rd, v.dict->n))
            return -1;
        for (uint32_t i = 0; i < v.dict->n; i++)
            keys[i] = v.dict->e[i].key;
        *items = keys;
        *n = v.dict->n;
        return 0;
    }
    default:
        return render_fail(rd, "'%s' object is not iterable", value_type_name(v));
    }
}

int value_length(struct render *rd, struct value v, int64_t *out) {
    switch (v.type) {
    case V_UNDEFINED:
        *out = 0;
        return 0;
    case V_STR:
        *out = (int64_t)tstr_count(v.s);
        return render_charge_bytes(rd, v.s->len);
    case V_SEQ:
        if (v.seq->kind == SEQ_GENERATOR)
            break;
        *out = v.seq->n;
        return 0;
    case V_DICT:
        *out = v.dict->n;
        return 0;
    case V_LOOP:
        *out = v.loop->n;
        return 0;
    default:
        break;
    }
    return render_fail(rd, "object of type '%s' has no len()", value_type_name(v));
}

struct seq *seq_new(struct render *rd, uint8_t kind, uint32_t cap) {
    struct seq *s = render_alloc(rd, 1, sizeof(*s));

    if (!s)
        return NULL;
    s->kind = kind;
    s->cap = cap;
    if (cap && !(s->v = render_alloc(rd, cap, sizeof(*s->v))))
        return NULL;
    return s;
}

struct seq *seq_range(struct render *rd, wide start, wide stop, wide step, uint32_t n) {
    struct seq *s = seq_new(rd, SEQ_RANGE, 3);

    if (!s || value_from_wide(rd, start, &s->v[0]) || value_from_wide(rd, stop, &s->v[1]) ||
        value_from_wide(rd, step, &s->v[2]))
        return NULL;
    s->n = n;
    return s;
}

struct value seq_at(const struct seq *s, uint32_t i) {
    assert(i < s->n);
    if (s->kind != SEQ_RANGE)
        return s->v[i];
    /* The elements lie between two bounds, which have 64 bits each. */
    wide w = value_wide(s->v[0]) + (wide)i * value_wide(s->v[2]);

    return w > INT64_MAX ? (struct value){.type = V_UINT, .u = (uint64_t)w} : value_int((int64_t)w);
}

/* Keeps an array of @cap values for later; its first value is the link. */
static void array_end(struct render *rd, struct value *v, uint32_t cap) {
    if (cap < 4)
        return;
    int class = 31 - __builtin_clz(cap);

    *(struct value **)v = rd->free_arrays[class];
    rd->free_arrays[class] = v;
}

/* Returns an array of @cap values, a power of two. */
static struct value *array_new(struct render *rd, uint32_t cap) {
    struct value **head = &rd->free_arrays[__builtin_ctz(cap)], *v = *head;

    if (!v)
        return render_alloc(rd, cap, sizeof(*v));
    *head = *(struct value **)v;
    return v;
}

int seq_build(struct render *rd, struct seq *s, struct value v) {
    if (s->n == s->cap) {
        uint32_t cap = MAX(s->cap * 2, 4u);
        struct value *p = array_new(rd, cap);

        assert((cap & (cap - 1)) == 0 && !s->shared);
        if (!p || render_charge(rd, s->n / 4))
            return -1;
        if (s->n)
            memcpy(p, s->v, s->n * sizeof(*p));
        array_end(rd, s->v, s->cap);
        s->v = p;
        s->cap = cap;
    }
    s->v[s->n++] = v;
    return 0;
}

void seq_end(struct render *rd, struct seq *s) {
    assert(!s->shared);
    array_end(rd, s->v, s->cap);
    s->v = NULL;
    s->n = s->cap = 0;
}

/* Appends to a list. The list may be iterated over at the same time, so it grows into a new array
 * and the old one is not changed. */
int seq_add(struct render *rd, struct seq *s, struct value v) {
    assert(s->n <= s->cap);
    if (s->n == s->cap) {
        uint32_t cap = MAX(s->n * 2, 4u);
        struct value *p = render_alloc(rd, cap, sizeof(*p));

        if (!p || render_charge(rd, s->n))
            return -1;
        if (s->n)
            memcpy(p, s->v, s->n * sizeof(*p));
        s->v = p;
        s->cap = cap;
    }
    s->v[s->n++] = v;
    return 0;
}

int value_pair(struct render *rd, struct value a, struct value b, struct value *out) {
    struct seq *s = seq_new(rd, SEQ_TUPLE, 2);

    if (!s)
        return -1;
    s->v[0] = a;
    s->v[1] = b;
    s->n = 2;
    *out = value_seq(s);
    return 0;
}

struct pair {
    struct value v, key;
};

/* Sorts by merging: that is stable, and every comparison may fail and costs fuel. A reversed sort
 * keeps the order of equal elements, too. */
static int merge_sort(struct render *rd, struct pair *p, struct pair *tmp, uint32_t n,
                      bool reverse) {
    uint32_t half = n / 2, i = 0, j = half, k = 0;

    if (n < 2)
        return 0;
    TRY(merge_sort(rd, p, tmp, half, reverse));
    TRY(merge_sort(rd, p + half, tmp + half, n - half, reverse));
    while (i < half && j < n) {
        bool second;

        struct value first = reverse ? p[i].key : p[j].key, other = reverse ? p[j].key : p[i].key;

        /* Missing attributes count as equal to each other; all other comparisons with them fail. */
        if (first.type == V_UNDEFINED && other.type == V_UNDEFINED)
            second = false;
        else if (value_less(rd, first, other, "<", &second))
            return -1;
        tmp[k++] = second ? p[j++] : p[i++];
    }
    while (i < half)
        tmp[k++] = p[i++];
    while (j < n)
        tmp[k++] = p[j++];
    assert(k == n);
    memcpy(p, tmp, n * sizeof(*p));
    return 0;
}

int value_sort(struct render *rd, struct value *v, struct value *keys, uint32_t n, bool reverse) {
    struct pair *p = render_alloc(rd, n, sizeof(*p)), *tmp = render_alloc(rd, n, sizeof(*tmp));

    if (!p || !tmp || render_charge(rd, n))
        return -1;
    for (uint32_t i = 0; i < n; i++)
        p[i] = (struct pair){v[i], keys[i]};
    TRY(merge_sort(rd, p, tmp, n, reverse));
    for (uint32_t i = 0; i < n; i++)
        v[i] = p[i].v;
    return 0;
}
