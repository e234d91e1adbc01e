/* Tests: the operands of `is`. An undefined value counts as iterable and callable, since the
 * reference's class has these methods, which fail only when they are used. */

#include <string.h>
#include <utf8proc.h>
#include "text/template/render.h"

#define TEST(name, condition)                                                                      \
    static int name(struct render *rd, const struct call *c, struct value *out) {                  \
        struct value v = c->self;                                                                  \
                                                                                                   \
        (void)v;                                                                                   \
        *out = value_bool(condition);                                                              \
        return 0;                                                                                  \
    }

TEST(test_boolean, v.type == V_BOOL)
TEST(test_callable,
     v.type == V_MACRO || v.type == V_FUNCTION || v.type == V_METHOD || v.type == V_UNDEFINED)
TEST(test_defined, v.type != V_UNDEFINED)
TEST(test_escaped, v.type == V_STR && v.s->safe)
TEST(test_false, v.type == V_BOOL && !v.b)
TEST(test_float, v.type == V_FLOAT)
TEST(test_integer, v.type == V_INT || v.type == V_UINT)
TEST(test_iterable, v.type == V_STR || v.type == V_SEQ || v.type == V_DICT ||
                        v.type == V_UNDEFINED || v.type == V_LOOP)
TEST(test_mapping, v.type == V_DICT)
TEST(test_none, v.type == V_NONE)
TEST(test_number, value_is_number(v))
TEST(test_sequence, v.type == V_STR || v.type == V_DICT || v.type == V_UNDEFINED ||
                        (v.type == V_SEQ && v.seq->kind <= SEQ_RANGE))
TEST(test_string, v.type == V_STR)
TEST(test_true, v.type == V_BOOL && v.b)
TEST(test_undefined, v.type == V_UNDEFINED)

/* Python's `is`. Small equal values are usually one object there; here they always are. */
static int same_object(struct value a, struct value b) {
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case V_NONE:
        return true;
    case V_BOOL:
        return a.b == b.b;
    case V_INT:
        return a.i == b.i;
    case V_STR:
        return tstr_equal(a.s, b.s);
    default:
        return a.dict == b.dict;
    }
}
TEST(test_sameas, same_object(v, c->a[0]))

static int compare_to(struct render *rd, const struct call *c, uint8_t op, struct value *out) {
    bool is;

    if (operator_compare(rd, op, c->self, c->a[0], &is))
        return -1;
    *out = value_bool(is);
    return 0;
}

#define COMPARISON(name, op)                                                                       \
    static int name(struct render *rd, const struct call *c, struct value *out) {                  \
        return compare_to(rd, c, op, out);                                                         \
    }

COMPARISON(test_eq, CMP_EQ)
COMPARISON(test_ne, CMP_NE)
COMPARISON(test_lt, CMP_LT)
COMPARISON(test_le, CMP_LE)
COMPARISON(test_gt, CMP_GT)
COMPARISON(test_ge, CMP_GE)
COMPARISON(test_in, CMP_IN)

/* even, odd, divisibleby: whatever % says about the type. */
static int remainder_is(struct render *rd, struct value v, struct value by, int64_t want,
                        struct value *out) {
    bool is;

    if (operator_binary(rd, OP_MOD, v, by, &v) || value_equal(rd, v, value_int(want), &is))
        return -1;
    *out = value_bool(is);
    return 0;
}

static int test_divisibleby(struct render *rd, const struct call *c, struct value *out) {
    return remainder_is(rd, c->self, c->a[0], 0, out);
}

static int test_even(struct render *rd, const struct call *c, struct value *out) {
    return remainder_is(rd, c->self, value_int(2), 0, out);
}

static int test_odd(struct render *rd, const struct call *c, struct value *out) {
    return remainder_is(rd, c->self, value_int(2), 1, out);
}

/* Tests that @v has a cased letter and that all its cased letters have the case. */
static int cased(struct render *rd, struct value v, bool upper, struct value *out) {
    const struct tstr *s;
    bool any = false, all = true;
    size_t w;

    if (format_to_str(rd, v, &s) || render_charge_bytes(rd, s->len))
        return -1;
    for (size_t i = 0; i < s->len; i += w) {
        uint32_t cp = tstr_decode(s->data, s->len, i, &w);
        utf8proc_category_t cat =
            cp < 0x110000 ? utf8proc_category((utf8proc_int32_t)cp) : UTF8PROC_CATEGORY_CN;
        bool is_upper = cat == UTF8PROC_CATEGORY_LU, is_lower = cat == UTF8PROC_CATEGORY_LL;

        any |= upper ? is_upper : is_lower;
        all &= !(upper ? is_lower : is_upper);
    }
    *out = value_bool(any && all);
    return 0;
}

static int test_lower(struct render *rd, const struct call *c, struct value *out) {
    return cased(rd, c->self, false, out);
}

static int test_upper(struct render *rd, const struct call *c, struct value *out) {
    return cased(rd, c->self, true, out);
}

/* Tests whether there is a filter of that name. */
static int test_filter(struct render *rd, const struct call *c, struct value *out) {
    *out = value_bool(c->self.type == V_STR && filter_find(c->self.s));
    return 0;
}

static int test_test(struct render *rd, const struct call *c, struct value *out) {
    *out = value_bool(c->self.type == V_STR && test_find(c->self.s));
    return 0;
}

/* Sorted by name. */
static const struct builtin TESTS[] = {
    {"!=", "other", 1, test_ne},
    {"<", "other", 1, test_lt},
    {"<=", "other", 1, test_le},
    {"==", "other", 1, test_eq},
    {">", "other", 1, test_gt},
    {">=", "other", 1, test_ge},
    {"boolean", "", 0, test_boolean},
    {"callable", "", 0, test_callable},
    {"defined", "", 0, test_defined},
    {"divisibleby", "num", 1, test_divisibleby},
    {"eq", "other", 1, test_eq},
    {"equalto", "other", 1, test_eq},
    {"escaped", "", 0, test_escaped},
    {"even", "", 0, test_even},
    {"false", "", 0, test_false},
    {"filter", "", 0, test_filter},
    {"float", "", 0, test_float},
    {"ge", "other", 1, test_ge},
    {"greaterthan", "other", 1, test_gt},
    {"gt", "other", 1, test_gt},
    {"in", "seq", 1, test_in},
    {"integer", "", 0, test_integer},
    {"iterable", "", 0, test_iterable},
    {"le", "other", 1, test_le},
    {"lessthan", "other", 1, test_lt},
    {"lower", "", 0, test_lower},
    {"lt", "other", 1, test_lt},
    {"mapping", "", 0, test_mapping},
    {"ne", "other", 1, test_ne},
    {"none", "", 0, test_none},
    {"number", "", 0, test_number},
    {"odd", "", 0, test_odd},
    {"sameas", "other", 1, test_sameas},
    {"sequence", "", 0, test_sequence},
    {"string", "", 0, test_string},
    {"test", "", 0, test_test},
    {"true", "", 0, test_true},
    {"undefined", "", 0, test_undefined},
    {"upper", "", 0, test_upper},
};

const struct builtin *test_find(const struct tstr *name) {
    return builtin_find(TESTS, ARRAY_SIZE(TESTS), name);
}
