/*
 * values - enum and const: which of their values the other keywords admit, and how a value is
 * written.
 *
 * It also finds whether two schemas can share a value, for oneOf (facets_disjoint()). Where no
 * value fits two branches, "exactly one" is the same as "any". The proof looks at listed values,
 * types, ranges, lengths, and members that one of the two requires. Where it finds nothing, the
 * branches get each other's negation (exclude_others() in schema.c).
 */

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/json_read.h"
#include "base/try.h"
#include "grammar/automaton/lang.h"
#include "grammar/front/schema/schema.h"

#define DISJOINT_DEPTH 3

unsigned value_type(yyjson_val *v) {
    struct decimal d;

    switch (yyjson_get_type(v)) {
    case YYJSON_TYPE_NULL:
        return T_NULL;
    case YYJSON_TYPE_BOOL:
        return T_BOOL;
    case YYJSON_TYPE_RAW:
        if (decimal_read(&d, json_digits(v), json_n_digits(v)) < 0)
            return T_REAL;
        if (d.n_frac)
            return T_REAL;
        return T_INT;
    case YYJSON_TYPE_STR:
        return T_STRING;
    case YYJSON_TYPE_ARR:
        return T_ARRAY;
    default:
        return T_OBJECT;
    }
}

bool same_value(yyjson_val *x, yyjson_val *y) {
    struct decimal a, b;

    if (yyjson_is_raw(x) && yyjson_is_raw(y) &&
        decimal_read(&a, json_digits(x), json_n_digits(x)) == 0 &&
        decimal_read(&b, json_digits(y), json_n_digits(y)) == 0)
        return decimal_compare(&a, &b) == 0;
    return yyjson_equals(x, y);
}

static int number_in(const struct facets *f, yyjson_val *v) {
    struct decimal d;

    if (!f->lower.set && !f->upper.set)
        return 1;
    if (decimal_read(&d, json_digits(v), json_n_digits(v)) < 0)
        return -ERANGE;
    int low = f->lower.set ? decimal_compare(&d, &f->lower.x) : 1;
    int high = f->upper.set ? decimal_compare(&d, &f->upper.x) : -1;

    return (low > 0 || (low == 0 && !f->lower.strict)) &&
           (high < 0 || (high == 0 && !f->upper.strict));
}

static uint32_t values_count_chars(yyjson_val *v) {
    const char *s = json_text(v);
    uint32_t n = 0;

    for (size_t i = 0; i < json_len(v); i++)
        n += (s[i] & 0xc0) != 0x80;
    return n;
}

static bool values_listed(const struct facets *f, uint32_t i, yyjson_val *v) {
    if (f->value_is_const[i])
        return same_value(f->value[i].v, v);
    JSON_EACH(item, f->value[i].v) {
        if (same_value(item, v))
            return true;
    }
    return false;
}

static int admits_text(struct schema *s, const struct facets *f, yyjson_val *v) {
    uint8_t *text;
    size_t n;

    if (json_spell(s->b, json_text(v), json_len(v), &text, &n) < 0)
        return s->b->failed;
    for (uint32_t i = 0; i < f->n_text; i++) {
        const struct text_rule *t = &f->text[i];
        const struct lang *l = text_lang(s, t);

        if (!l)
            return s->b->failed;
        if (lang_matches(l, text, n) == text_is_negated(t))
            return 0;
    }
    return 1;
}

static int admits_shape(struct schema *s, const struct facets *f, struct place value) {
    unsigned type = value_type(value.v);

    if (!(f->types & type))
        return 0;
    if (type & (T_INT | T_REAL)) {
        int r = number_in(f, value.v);

        if (r == -ERANGE)
            return schema_unsupported(s, value.path,
                                      "numbers with this many digits are not supported");
        if (r != 1 || !f->n_multiples)
            return r;
        return multiples_admit(s, f, value.v);
    }
    if (type == T_STRING) {
        uint32_t n = values_count_chars(value.v);

        if (n < f->min_length || n > f->max_length)
            return 0;
        if (!f->n_text)
            return 1;
        return admits_text(s, f, value.v);
    }
    return 1;
}

int facets_admit(struct schema *s, const struct facets *f, struct place value) {
    int r = admits_shape(s, f, value);

    assert(value.v && r <= 1);
    for (uint32_t i = 0; r == 1 && i < f->n_values; i++) {
        size_t n = f->value_is_const[i] ? 1 : yyjson_arr_size(f->value[i].v);

        /* The value comes from list 0, which therefore needs no search. */
        if (i == 0)
            continue;
        r = build_work(s->b, n) < 0 ? -EINVAL : values_listed(f, i, value.v);
    }
    return r;
}

static void values_add_item(struct schema *s, yyjson_val *key, yyjson_val *item,
                            struct expr_vec *e) {
    if (s->b->failed)
        return;
    if (e->n > 1)
        expr_vec_add(s->b, e, json_comma(s->b));
    else
        expr_vec_add(s->b, e, json_space(s->b));
    if (key) {
        expr_vec_add(s->b, e, json_key(s->b, json_text(key), json_len(key)));
        expr_vec_add(s->b, e, json_colon_space(s->b));
    }
    expr_vec_add(s->b, e, value_expr(s, item));
}

static struct expr *collection_expr(struct schema *s, yyjson_val *v) {
    bool object = yyjson_is_obj(v);
    struct expr_vec e = {0};

    if (++s->depth > s->b->limits.max_depth)
        return failed(build_too_complex(s->b, "the schema is nested more than %u deep",
                                        s->b->limits.max_depth));
    expr_vec_add(s->b, &e, expr_str(s->b, object ? "{" : "["));
    JSON_MEMBERS(key, item, v) values_add_item(s, key, item, &e);
    JSON_EACH(item, v) values_add_item(s, NULL, item, &e);
    expr_vec_add(s->b, &e, json_space(s->b));
    expr_vec_add(s->b, &e, expr_str(s->b, object ? "}" : "]"));
    s->depth--;
    return expr_seq_of(s->b, &e);
}

/* Returns an expression for a number in the spelling of the schema. A whole number that the schema
 * writes with a point or an exponent may also be spelled by its digits. */
static struct expr *number_expr(struct schema *s, yyjson_val *v) {
    struct expr *raw = expr_bytes(s->b, json_digits(v), json_n_digits(v));
    char text[DECIMAL_DIGITS + 1];
    struct decimal d;
    size_t n = 0;

    if (!strpbrk(json_digits(v), ".eE") || decimal_read(&d, json_digits(v), json_n_digits(v)) < 0 ||
        d.n_frac || !d.n_int)
        return raw;
    text[0] = '-';
    n = d.negative;
    assert(n + d.n_int <= sizeof(text));
    memcpy(text + n, d.digit_int, d.n_int);
    return expr_alt2(s->b, raw, expr_bytes(s->b, text, n + d.n_int));
}

struct expr *value_expr(struct schema *s, yyjson_val *v) {
    switch (yyjson_get_type(v)) {
    case YYJSON_TYPE_NULL:
        return json_word(s->b, "null");
    case YYJSON_TYPE_BOOL:
        return json_word(s->b, yyjson_get_bool(v) ? "true" : "false");
    case YYJSON_TYPE_RAW:
        return number_expr(s, v);
    case YYJSON_TYPE_STR:
        return json_literal(s->b, json_text(v), json_len(v));
    default:
        return collection_expr(s, v);
    }
}

/* Returns 1 if @y refuses every value of the first list of @x, 0 if that is not known, or an
 * error. */
static int values_disjoint(struct schema *s, const struct facets *x, const struct facets *y) {
    assert(x->n_values > 0);
    struct place at = x->value[0];
    size_t n = x->value_is_const[0] ? 1 : yyjson_arr_size(at.v);

    for (size_t i = 0; i < n; i++) {
        struct place v = {x->value_is_const[0] ? at.v : yyjson_arr_get(at.v, i), at.path};
        unsigned type = value_type(v.v);
        bool out = !(y->types & type);

        if (build_work(s->b, 1 + i) < 0)
            return -EINVAL;
        if (!out && (type & (T_INT | T_REAL)))
            out = number_in(y, v.v) == 0;
        if (!out && type == T_STRING)
            out =
                values_count_chars(v.v) < y->min_length || values_count_chars(v.v) > y->max_length;
        for (uint32_t k = 0; !out && k < y->n_values; k++) {
            size_t m = y->value_is_const[k] ? 1 : yyjson_arr_size(y->value[k].v);

            if (build_work(s->b, m) < 0)
                return -EINVAL;
            out = !values_listed(y, k, v.v);
        }
        if (!out)
            return 0;
    }
    return 1;
}

/* Returns 1 if no value of the member @name, which one of the objects requires, fits both.
 * Otherwise returns what facets_disjoint() does. */
static int member_disjoint(struct schema *s, const struct facets *x, const struct facets *y,
                           const char *name, size_t len, uint32_t depth) {
    const struct facets *of[2] = {x, y};
    struct facets f[2];
    struct parts parts[2] = {{0}};

    for (int i = 0; i < 2; i++) {
        struct place *v;
        uint32_t n;

        TRY(member_places(s, of[i]->parts, name, len, &v, &n));
        for (uint32_t k = 0; k < n; k++)
            TRY(parts_expand(s, &parts[i], v[k]));
        TRY(facets_gather(s, &parts[i], &f[i]));
    }
    return facets_disjoint(s, &f[0], &f[1], depth + 1);
}

static int objects_disjoint(struct schema *s, const struct facets *x, const struct facets *y,
                            uint32_t depth) {
    const struct facets *of[2] = {x, y};

    if (depth >= DISJOINT_DEPTH)
        return 0;
    for (int i = 0; i < 2; i++) {
        for (uint32_t k = 0; k < of[i]->parts->n; k++) {
            yyjson_val *list = yyjson_obj_get(of[i]->parts->v[k].v, "required");

            JSON_EACH(v, list) {
                TRY(build_work(s->b, 8));
                if (!yyjson_is_str(v))
                    continue;
                int r = member_disjoint(s, x, y, json_text(v), json_len(v), depth);
                if (r)
                    return r;
            }
        }
    }
    return 0;
}

static bool bounds_disjoint(const struct bound *low, const struct bound *high) {
    if (!low->set || !high->set)
        return false;
    int c = decimal_compare(&low->x, &high->x);

    return c > 0 || (c == 0 && (low->strict || high->strict));
}

int facets_disjoint(struct schema *s, const struct facets *x, const struct facets *y,
                    uint32_t depth) {
    unsigned both = x->types & y->types;
    int r = 0;

    if (x->n_values)
        r = values_disjoint(s, x, y);
    if (r)
        return r;
    if (y->n_values)
        r = values_disjoint(s, y, x);
    if (r)
        return r;
    if (both & (T_NULL | T_BOOL | T_ARRAY))
        return 0;
    if ((both & (T_INT | T_REAL)) && !bounds_disjoint(&x->lower, &y->upper) &&
        !bounds_disjoint(&y->lower, &x->upper))
        return 0;
    if ((both & T_STRING) && x->min_length <= y->max_length && y->min_length <= x->max_length)
        return 0;
    if (!(both & T_OBJECT))
        return 1;
    return objects_disjoint(s, x, y, depth);
}
