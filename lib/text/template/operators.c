/* operators - operators, subscripts and attributes, with Python's arithmetic and the language's
 * rules for looking up names. */

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/try.h"
#include "text/template/render.h"

/* Fails with Python's wording, which users search for. */
static int operator_unsupported(struct render *rd, uint8_t op, struct value a, struct value b) {
    static const char *const names[] = {"+", "-", "*", "/", "//", "%", "** or pow()"};

    assert(op < ARRAY_SIZE(names));
    if (op == OP_ADD && a.type == V_STR)
        return render_fail(rd, "can only concatenate str (not \"%s\") to str", value_type_name(b));
    return render_fail(rd, "unsupported operand type(s) for %s: '%s' and '%s'", names[op],
                       value_type_name(a), value_type_name(b));
}

static int64_t wrap_index(int64_t i, int64_t n) {
    if (i >= 0)
        return i;
    return i + n;
}

/* Repeats a string. The memory is reserved first, so that a huge factor fails before anything is
 * copied. */
static int operator_repeat(struct render *rd, struct value a, struct value times,
                           struct value *out) {
    wide n = MAX(value_wide(times), (wide)0);

    if (a.type == V_STR) {
        struct sink *k = sink_new(rd);
        wide bytes = n > 1 << 30 ? (wide)1 << 62 : n * (wide)a.s->len;

        if (!a.s->len)
            bytes = n = 0;
        if (!k || sink_reserve(rd, k, (size_t)MIN(bytes, (wide)1 << 62)))
            return -1;
        for (; n > 0; n--) {
            if (sink_add_str(rd, k, a.s) || render_charge(rd, 1))
                return -1;
        }
        const struct tstr *s = sink_string(rd, k);

        *out = value_str(s);
        if (!s)
            return -1;
        return 0;
    }
    assert(a.type == V_SEQ);
    if (a.seq->n && n > (wide)(UINT32_MAX / 4) / a.seq->n)
        return render_fail_limit(rd, "a list becomes too long");
    uint32_t total = a.seq->n ? (uint32_t)n * a.seq->n : 0;
    struct seq *s = seq_new(rd, a.seq->kind, total);

    if (!s || render_charge(rd, total))
        return -1;
    for (; s->n < total; s->n += a.seq->n)
        memcpy(s->v + s->n, a.seq->v, a.seq->n * sizeof(*s->v));
    *out = value_seq(s);
    return 0;
}

/* Implements `+` of lists, which makes a new list, as in Python. It counts as the user's if one of
 * the two does. If the array of @a has room, the new list takes it over with the elements of @b
 * behind those of @a: then a template that collects with `ns.all = ns.all + [x]` needs linear time
 * and memory. */
static int join_seqs(struct render *rd, struct seq *a, const struct seq *b, struct value *out) {
    assert(a->n <= UINT32_MAX / 4 && b->n <= UINT32_MAX / 4); /* so the limit of memory has it */
    uint32_t n = a->n + b->n;
    bool room = a->n && a->cap >= n;
    struct seq *s = seq_new(rd, a->kind, room ? 0 : n + n / 2);

    if (!s || render_charge(rd, (room ? b->n : n) / 4))
        return -1;
    if (room) {
        s->v = a->v;
        s->cap = a->cap;
        a->cap = a->n;
        s->shared = a->shared = true;
    } else if (a->n) {
        memcpy(s->v, a->v, a->n * sizeof(*s->v));
    }
    if (b->n)
        memmove(s->v + a->n, b->v, b->n * sizeof(*s->v));
    s->n = n;
    s->user = a->user || b->user;
    *out = value_seq(s);
    return 0;
}

/* Computes a ** b of integers. Each product must fit, so that few steps are taken. A negative
 * exponent gives a float. */
static int integer_power(struct render *rd, wide a, wide b, struct value *out) {
    wide result = 1;

    if (b < 0 && a == 0)
        return render_fail(rd, "0.0 cannot be raised to a negative power");
    if (b < 0) {
        *out = value_float(pow((double)a, (double)b));
        return 0;
    }
    if (a >= -1 && a <= 1 && b > 1)
        b = 2 - b % 2; /* the same power */
    for (; b > 0; b--) {
        if (__builtin_mul_overflow(result, a, &result) || result > (wide)UINT64_MAX ||
            result < INT64_MIN)
            return render_fail(rd, "an integer has more than 64 bits");
    }
    return value_from_wide(rd, result, out);
}

static int float_power(struct render *rd, double a, double b, struct value *out) {
    if (a == 0 && b < 0)
        return render_fail(rd, "0.0 cannot be raised to a negative power");
    if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b))
        return render_fail(rd, "a power is no real number");
    double f = pow(a, b);

    if (isinf(f) && isfinite(a) && isfinite(b))
        return render_fail(rd, "(34, 'Numerical result out of range')");
    *out = value_float(f);
    return 0;
}

/* Computes with integers. Operands have at most 64 bits, so results fit into 128. // and % round
 * down, and not toward zero as in C. */
static int integer_op(struct render *rd, uint8_t op, wide a, wide b, struct value *out) {
    wide q;

    switch (op) {
    case OP_ADD:
        return value_from_wide(rd, a + b, out);
    case OP_SUB:
        return value_from_wide(rd, a - b, out);
    case OP_MUL:
        if (__builtin_mul_overflow(a, b, &q))
            return render_fail(rd, "an integer has more than 64 bits");
        return value_from_wide(rd, q, out);
    case OP_POW:
        return integer_power(rd, a, b, out);
    default:
        break;
    }
    assert(op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD);
    if (b == 0)
        return render_fail(rd, "division by zero");
    if (op == OP_DIV) {
        *out = value_float((double)a / (double)b);
        return 0;
    }
    q = a / b;
    if (a % b && (a < 0) != (b < 0))
        q--;
    return value_from_wide(rd, op == OP_FLOORDIV ? q : a - q * b, out);
}

/* Computes with floats. fmod() has the sign of the dividend, Python's % that of the divisor. */
static int float_op(struct render *rd, uint8_t op, double a, double b, struct value *out) {
    double f, m;

    switch (op) {
    case OP_ADD:
        f = a + b;
        break;
    case OP_SUB:
        f = a - b;
        break;
    case OP_MUL:
        f = a * b;
        break;
    case OP_POW:
        return float_power(rd, a, b, out);
    default:
        if (b == 0)
            return render_fail(rd, "float division by zero");
        m = fmod(a, b);
        if (m != 0 && (m < 0) != (b < 0))
            m += b;
        if (op == OP_DIV)
            f = a / b;
        else if (op == OP_MOD)
            f = m == 0 ? copysign(0, b) : m;
        else if (a == m)
            f = copysign(0, a / b);
        else
            f = floor((a - m) / b + 0.5);
    }
    *out = value_float(f);
    return 0;
}

/* Computes with two operands. An error names an undefined operand rather than the types, as Jinja
 * does. */
int operator_binary(struct render *rd, uint8_t op, struct value a, struct value b,
                    struct value *out) {
    if (a.type == V_UNDEFINED || (b.type == V_UNDEFINED && a.type != V_STR))
        return value_fail_undefined(rd, a.type == V_UNDEFINED ? a : b);
    if (value_is_number(a) && value_is_number(b)) {
        if (a.type == V_FLOAT || b.type == V_FLOAT)
            return float_op(rd, op, value_double(a), value_double(b), out);
        return integer_op(rd, op, value_wide(a), value_wide(b), out);
    }
    bool list_a = a.type == V_SEQ && a.seq->kind <= SEQ_TUPLE;
    bool list_b = b.type == V_SEQ && b.seq->kind <= SEQ_TUPLE;

    if (op == OP_ADD && a.type == V_STR && b.type == V_STR) {
        const struct tstr *s = tstr_concat(rd, a.s, b.s);

        *out = value_str(s);
        if (!s)
            return -1;
        return 0;
    }
    if (op == OP_MOD && a.type == V_STR)
        return format_percent(rd, a.s, b, out);
    if (op == OP_ADD && list_a && list_b && a.seq->kind == b.seq->kind)
        return join_seqs(rd, a.seq, b.seq, out);
    if (op == OP_MUL && (list_a || a.type == V_STR) && value_is_int(b))
        return operator_repeat(rd, a, b, out);
    if (op == OP_MUL && (list_b || b.type == V_STR) && value_is_int(a))
        return operator_repeat(rd, b, a, out);
    if (b.type == V_UNDEFINED)
        return value_fail_undefined(rd, b);
    return operator_unsupported(rd, op, a, b);
}

int operator_compare(struct render *rd, uint8_t op, struct value a, struct value b, bool *out) {
    bool flip = false;
    int r;

    switch (op) {
    case CMP_EQ:
        return value_equal(rd, a, b, out);
    case CMP_NE:
        r = value_equal(rd, a, b, out);
        flip = true;
        break;
    case CMP_IN:
        return value_contains(rd, b, a, out);
    case CMP_NOT_IN:
        r = value_contains(rd, b, a, out);
        flip = true;
        break;
    case CMP_LT:
        return value_less(rd, a, b, "<", out);
    case CMP_GT:
        return value_less(rd, b, a, ">", out);
    default: /* <= and >= are not the contrary of > and <: with NaN all four are false */
        if (op == CMP_LE)
            r = value_less(rd, b, a, "<=", out);
        else
            r = value_less(rd, a, b, ">=", out);
        flip = true;
        if ((a.type == V_FLOAT && isnan(a.f)) || (b.type == V_FLOAT && isnan(b.f)))
            *out = true;
        break;
    }
    if (r == 0 && flip)
        *out = !*out;
    return r;
}

/* Makes an undefined value that records which name was missing in which value, for the error
 * message if the value is used. */
static int undefined_item(struct render *rd, struct value obj, struct value key,
                          struct value *out) {
    const struct tstr *name = NULL;

    if (key.type == V_STR)
        name = key.s;
    else if (value_is_number(key) && format_to_str(rd, key, &name))
        return -1;
    *out = value_undefined(name, obj.type);
    return 0;
}

/* Gets a character of a string, which is indexed by code points. */
static int str_item(struct render *rd, const struct tstr *s, int64_t i, struct value *out) {
    int64_t n = (int64_t)tstr_count(s);
    size_t w;

    i = wrap_index(i, n);
    TRY(render_charge_bytes(rd, s->len));
    if (i < 0 || i >= n) {
        *out = value_undefined(NULL, V_STR);
        return 0;
    }
    size_t at = tstr_offset(s, (size_t)i);

    tstr_decode(s->data, s->len, at, &w);
    const struct tstr *c = tstr_slice(rd, s, at, at + w);

    *out = value_str(c);
    if (!c)
        return -1;
    return 0;
}

static int bind_method(struct render *rd, const struct builtin *fn, struct value self,
                       struct value *out) {
    struct method_value *m = render_alloc(rd, 1, sizeof(*m));

    if (!m)
        return -1;
    if (self.type == V_LOOP)
        self.loop->taken = true;
    *m = (struct method_value){fn, self};
    *out = (struct value){.type = V_METHOD, .method = m};
    return 0;
}

/* Evaluates x[key]: an item first, then an attribute of that name. If neither exists the value is
 * undefined, which is no error. */
int operator_item(struct render *rd, struct value obj, struct value key, struct value *out) {
    if (obj.type == V_UNDEFINED)
        return value_fail_undefined(rd, obj);
    if (obj.type == V_DICT) {
        bool hashable = key.type != V_DICT && (key.type != V_SEQ || key.seq->kind == SEQ_TUPLE);
        int r = hashable ? dict_get(rd, obj.dict, key, out) : 0;

        if (r)
            return MIN(r, 0);
    } else if (obj.type == V_SEQ && obj.seq->kind <= SEQ_RANGE && value_is_int(key)) {
        int64_t i = key.type == V_UINT ? -1 : wrap_index((int64_t)value_wide(key), obj.seq->n);

        if (i >= 0 && i < obj.seq->n) {
            *out = seq_at(obj.seq, (uint32_t)i);
            return 0;
        }
    } else if (obj.type == V_STR && value_is_int(key) && key.type != V_UINT) {
        return str_item(rd, obj.s, (int64_t)value_wide(key), out);
    }
    if (key.type == V_STR) {
        const struct builtin *m = method_find(obj, key.s);

        if (m)
            return bind_method(rd, m, obj, out);
        if (obj.type == V_NAMESPACE || obj.type == V_LOOP || (obj.type == V_SEQ && obj.seq->group))
            return operator_attr(rd, obj, key.s, out);
    }
    return undefined_item(rd, obj, key, out);
}

static struct value loop_neighbour(const struct loop *l, const struct tstr *name, int64_t i) {
    if (i < 0 || i >= l->n)
        return value_undefined(name, V_LOOP);
    return loop_at(l, (uint32_t)i);
}

/* Gets an attribute of the variable `loop`. Returns 1 if there is such an attribute. Outside the
 * range of the loop (previtem of the first turn) its value is undefined. */
static int loop_attr(const struct loop *l, const struct tstr *name, struct value *out) {
    int64_t i = l->i, n = l->n;

    if (tstr_is(name, "index"))
        *out = value_int(i + 1);
    else if (tstr_is(name, "index0"))
        *out = value_int(i);
    else if (tstr_is(name, "first"))
        *out = value_bool(i == 0);
    else if (tstr_is(name, "last"))
        *out = value_bool(i + 1 == n);
    else if (tstr_is(name, "length"))
        *out = value_int(n);
    else if (tstr_is(name, "revindex"))
        *out = value_int(n - i);
    else if (tstr_is(name, "revindex0"))
        *out = value_int(n - i - 1);
    else if (tstr_is(name, "depth"))
        *out = value_int((int64_t)l->depth + 1);
    else if (tstr_is(name, "depth0"))
        *out = value_int(l->depth);
    else if (tstr_is(name, "previtem"))
        *out = loop_neighbour(l, name, i - 1);
    else if (tstr_is(name, "nextitem"))
        *out = loop_neighbour(l, name, i + 1);
    else
        return 0;
    return 1;
}

static int group_attr(const struct seq *s, const struct tstr *name, struct value *out) {
    assert(s->n == 2);
    if (tstr_is(name, "grouper"))
        *out = s->v[0];
    else if (tstr_is(name, "list"))
        *out = s->v[1];
    else
        return 0;
    return 1;
}

/* Evaluates x.name: a method first, then an item. `d.items` is the method even if d has a key
 * "items". */
int operator_attr(struct render *rd, struct value obj, const struct tstr *name, struct value *out) {
    const struct builtin *m = method_find(obj, name);
    int r = 0;

    if (obj.type == V_UNDEFINED)
        return value_fail_undefined(rd, obj);
    if (m)
        return bind_method(rd, m, obj, out);
    if (obj.type == V_DICT || obj.type == V_NAMESPACE)
        r = dict_get_str(rd, obj.dict, name, out);
    else if (obj.type == V_LOOP)
        r = loop_attr(obj.loop, name, out);
    else if (obj.type == V_SEQ && obj.seq->group)
        r = group_attr(obj.seq, name, out);
    else if (obj.type == V_MACRO && tstr_is(name, "name"))
        r = (*out = value_str(obj.macro->def->name), 1);
    if (r)
        return MIN(r, 0);
    *out = value_undefined(name, obj.type);
    return 0;
}

/* Elements of a slice: @count of them from index @start on, at intervals of @step. */
struct slice {
    int64_t start, stop, step, count;
};

/* Computes Python's slice bounds: clips start and stop, and counts the elements. */
static int slice_range(struct render *rd, const struct value *bound, int64_t n, struct slice *out) {
    int64_t v[3];

    for (int i = 0; i < 3; i++) {
        if (bound[i].type == V_NONE)
            continue;
        if (!value_is_int(bound[i]))
            return render_fail(rd, "slice indices must be integers or None");
        v[i] = bound[i].type == V_UINT ? INT64_MAX : (int64_t)value_wide(bound[i]);
        v[i] = MAX(MIN(v[i], INT64_MAX / 4), INT64_MIN / 4);
    }
    struct slice s = {.step = bound[2].type == V_NONE ? 1 : v[2]};

    if (s.step == 0)
        return render_fail(rd, "slice step cannot be zero");
    int64_t lowest = s.step > 0 ? 0 : -1, highest = s.step > 0 ? n : n - 1;

    if (bound[0].type == V_NONE)
        s.start = s.step > 0 ? lowest : highest;
    else
        s.start = MAX(MIN(wrap_index(v[0], n), highest), lowest);
    if (bound[1].type == V_NONE)
        s.stop = s.step > 0 ? highest : lowest;
    else
        s.stop = MAX(MIN(wrap_index(v[1], n), highest), lowest);
    if (s.step > 0)
        s.count = s.stop > s.start ? (s.stop - s.start - 1) / s.step + 1 : 0;
    else
        s.count = s.start > s.stop ? (s.start - s.stop - 1) / -s.step + 1 : 0;
    *out = s;
    return 0;
}

/* Makes a slice, which is a new list or range. With step 1 a list shares the elements of @from: the
 * array is copied by what would move them (list.pop()), and a list that grows does so behind them
 * or in a new array. */
static int slice_seq(struct render *rd, struct seq *from, const struct value *bound,
                     struct value *out) {
    bool is_range = from->kind == SEQ_RANGE, view = !is_range && bound[2].type == V_NONE;
    struct slice at;
    struct seq *s;

    TRY(slice_range(rd, bound, from->n, &at));
    if (is_range) {
        wide first = value_wide(from->v[0]), step = value_wide(from->v[2]);

        s = seq_range(rd, first + at.start * step, first + at.stop * step, at.step * step,
                      (uint32_t)at.count);
        *out = value_seq(s);
        if (!s)
            return -1;
        return 0;
    }
    s = seq_new(rd, from->kind, view ? 0 : (uint32_t)at.count);
    if (!s || render_charge(rd, view ? 0 : (uint64_t)at.count / 4))
        return -1;
    if (view) {
        s->v = at.count ? from->v + at.start : NULL;
        s->cap = (uint32_t)at.count;
        s->shared = from->shared = true;
    }
    for (int64_t i = 0; !view && i < at.count; i++)
        s->v[i] = from->v[at.start + i * at.step];
    s->n = (uint32_t)at.count;
    s->user = from->user;
    *out = value_seq(s);
    return 0;
}

/* Returns the byte offsets of every code point of @s, and of its end. */
static size_t *offsets(struct render *rd, const struct tstr *s, size_t n) {
    size_t *at = render_alloc(rd, n + 1, sizeof(*at)), w;

    for (size_t i = 0, pos = 0; at && i <= n; i++) {
        at[i] = pos;
        if (i < n) {
            tstr_decode(s->data, s->len, pos, &w);
            pos += w;
        }
    }
    return at;
}

/* Makes a slice of a string. With step 1 it shares the bytes; otherwise the characters are copied
 * one by one. */
static int slice_str(struct render *rd, const struct tstr *s, const struct value *bound,
                     struct value *out) {
    int64_t n = (int64_t)tstr_count(s);
    struct slice at;
    const struct tstr *r;

    if (slice_range(rd, bound, n, &at) || render_charge_bytes(rd, s->len))
        return -1;
    if (at.step == 1 || at.count == 0) {
        size_t begin = tstr_offset(s, (size_t)MAX(at.start, (int64_t)0));
        struct tstr rest = {.data = s->data + begin, .len = s->len - begin};

        r = tstr_slice(rd, s, begin, begin + tstr_offset(&rest, (size_t)at.count));
    } else {
        size_t *pos = offsets(rd, s, (size_t)n);
        struct sink *k = sink_new(rd);

        if (!pos || !k || sink_reserve(rd, k, (size_t)at.count))
            return -1;
        for (int64_t i = 0; i < at.count; i++) {
            int64_t c = at.start + i * at.step;

            if (sink_add_part(rd, k, s, pos[c], pos[c + 1]) || render_charge(rd, 1))
                return -1;
        }
        r = sink_string(rd, k);
    }
    *out = value_str(r);
    if (!r)
        return -1;
    return 0;
}

int operator_slice(struct render *rd, struct value obj, const struct value bound[3],
                   struct value *out) {
    if (obj.type == V_UNDEFINED)
        return value_fail_undefined(rd, obj);
    for (int i = 0; i < 3; i++) {
        if (bound[i].type == V_UNDEFINED)
            return value_fail_undefined(rd, bound[i]);
    }
    if (obj.type == V_STR)
        return slice_str(rd, obj.s, bound, out);
    if (obj.type == V_SEQ && obj.seq->kind <= SEQ_RANGE)
        return slice_seq(rd, obj.seq, bound, out);
    return render_fail(rd, "'%s' object is not subscriptable", value_type_name(obj));
}
