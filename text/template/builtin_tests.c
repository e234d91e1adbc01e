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

static int test_compare(struct render *rd, const struct call *c, struct value *out) {
    bool is;

    if (operator_compare(rd, (uint8_t)c->how, c->self, c->a[0], &is))
        return -1;
    *out = value_bool(is);
    return 0;
}

/* even, odd, divisibleby: whatever % says about the type. */
static int test_remainder(struct render *rd, const struct call *c, struct value *out) {
    struct value by = c->a[0].type == V_MISSING ? value_int(2) : c->a[0], v;
    bool is;

    if (operator_binary(rd, OP_MOD, c->self, by, &v) || value_equal(rd, v, value_int(c->how), &is))
        return -1;
    *out = value_bool(is);
    return 0;
}

/* Tests that there is a cased letter and that all cased letters have the case. */
static int test_case(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s;
    bool upper = c->how, any = false, all = true;
    size_t w;

    if (format_to_str(rd, c->self, &s) || render_charge_bytes(rd, s->len))
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
    {"!=", "other", 1, test_compare, CMP_NE},
    {"<", "other", 1, test_compare, CMP_LT},
    {"<=", "other", 1, test_compare, CMP_LE},
    {"==", "other", 1, test_compare, CMP_EQ},
    {">", "other", 1, test_compare, CMP_GT},
    {">=", "other", 1, test_compare, CMP_GE},
    {"boolean", "", 0, test_boolean, 0},
    {"callable", "", 0, test_callable, 0},
    {"defined", "", 0, test_defined, 0},
    {"divisibleby", "num", 1, test_remainder, 0},
    {"eq", "other", 1, test_compare, CMP_EQ},
    {"equalto", "other", 1, test_compare, CMP_EQ},
    {"escaped", "", 0, test_escaped, 0},
    {"even", "", 0, test_remainder, 0},
    {"false", "", 0, test_false, 0},
    {"filter", "", 0, test_filter, 0},
    {"float", "", 0, test_float, 0},
    {"ge", "other", 1, test_compare, CMP_GE},
    {"greaterthan", "other", 1, test_compare, CMP_GT},
    {"gt", "other", 1, test_compare, CMP_GT},
    {"in", "seq", 1, test_compare, CMP_IN},
    {"integer", "", 0, test_integer, 0},
    {"iterable", "", 0, test_iterable, 0},
    {"le", "other", 1, test_compare, CMP_LE},
    {"lessthan", "other", 1, test_compare, CMP_LT},
    {"lower", "", 0, test_case, 0},
    {"lt", "other", 1, test_compare, CMP_LT},
    {"mapping", "", 0, test_mapping, 0},
    {"ne", "other", 1, test_compare, CMP_NE},
    {"none", "", 0, test_none, 0},
    {"number", "", 0, test_number, 0},
    {"odd", "", 0, test_remainder, 1},
    {"sameas", "other", 1, test_sameas, 0},
    {"sequence", "", 0, test_sequence, 0},
    {"string", "", 0, test_string, 0},
    {"test", "", 0, test_test, 0},
    {"true", "", 0, test_true, 0},
    {"undefined", "", 0, test_undefined, 0},
    {"upper", "", 0, test_case, true},
};

const struct builtin *test_find(const struct tstr *name) {
    return builtin_find(TESTS, ARRAY_SIZE(TESTS), name);
}
