/* builtin_tests - the tests of the language, the operands of `is`. An undefined value counts as
 * iterable: the class that Jinja has for it has __iter__(). */

#include "base/try.h"
#include "text/template/builtin.h"

#define TEST(name, condition)                                                                      \
    static int name(struct render *rd, const struct call *c, struct value *out) {                  \
        struct value v = c->self;                                                                  \
                                                                                                   \
        (void)v;                                                                                   \
        *out = value_bool(condition);                                                              \
        return 0;                                                                                  \
    }

TEST(test_boolean, v.type == V_BOOL)
TEST(test_callable, v.type >= V_LOOP || v.type == V_UNDEFINED)
TEST(test_escaped, v.type == V_STR && v.s->safe)
TEST(test_defined, v.type != V_UNDEFINED)
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

/* Implements sameas: the same object. Equal texts and numbers count as the same, as those of a
 * template's source are. */
static int test_same(struct render *rd, const struct call *c, struct value *out) {
    struct value a = c->self, b = c->a[0];
    bool same = a.type == b.type;

    if (same && (a.type == V_SEQ || a.type == V_DICT || a.type == V_NAMESPACE))
        same = a.type == V_SEQ ? a.seq == b.seq : a.dict == b.dict;
    else if (same)
        TRY(value_equal(rd, a, b, &same));
    *out = value_bool(same);
    return 0;
}

/* Implements filter and test: whether there is one of that name. */
static int test_name(struct render *rd, const struct call *c, struct value *out) {
    struct value v = c->self;

    if (v.type == V_DICT || (v.type == V_SEQ && v.seq->kind != SEQ_TUPLE))
        return render_fail(rd, "unhashable type: '%s'", value_type_name(v));
    if (v.type != V_STR)
        *out = value_bool(false);
    else if (c->how)
        *out = value_bool(filter_find(v.s));
    else
        *out = value_bool(test_find(v.s));
    return 0;
}

static int test_case(struct render *rd, const struct call *c, struct value *out) {
    const struct tstr *s;

    if (format_to_str(rd, c->self, &s) || render_charge_bytes(rd, s->len * 4))
        return -1;
    *out = value_bool(text_is_cased(s, (enum text_kind)c->how));
    return 0;
}

static int test_compare(struct render *rd, const struct call *c, struct value *out) {
    bool is;

    TRY(operator_compare(rd, (uint8_t)c->how, c->self, c->a[0], &is));
    *out = value_bool(is);
    return 0;
}

/* Implements even, odd and divisibleby with %, which also refuses operands of other types. */
static int test_remainder(struct render *rd, const struct call *c, struct value *out) {
    struct value by = c->a[0].type == V_MISSING ? value_int(2) : c->a[0], v;
    bool is;

    if (operator_binary(rd, OP_MOD, c->self, by, &v) || value_equal(rd, v, value_int(c->how), &is))
        return -1;
    *out = value_bool(is);
    return 0;
}

/* Sorted by name. */
static const struct builtin TESTS[] = {
    {"!=", "other", 1, test_compare, CMP_NE, 0},
    {"<", "other", 1, test_compare, CMP_LT, 0},
    {"<=", "other", 1, test_compare, CMP_LE, 0},
    {"==", "other", 1, test_compare, CMP_EQ, 0},
    {">", "other", 1, test_compare, CMP_GT, 0},
    {">=", "other", 1, test_compare, CMP_GE, 0},
    {"boolean", "", 0, test_boolean, 0, 0},
    {"callable", "", 0, test_callable, 0, 0},
    {"defined", "", 0, test_defined, 0, 0},
    {"divisibleby", "num", 1, test_remainder, 0, 0},
    {"eq", "other", 1, test_compare, CMP_EQ, 0},
    {"equalto", "other", 1, test_compare, CMP_EQ, 0},
    {"escaped", "", 0, test_escaped, 0, 0},
    {"even", "", 0, test_remainder, 0, 0},
    {"false", "", 0, test_false, 0, 0},
    {"filter", "", 0, test_name, 1, 0},
    {"float", "", 0, test_float, 0, 0},
    {"ge", "other", 1, test_compare, CMP_GE, 0},
    {"greaterthan", "other", 1, test_compare, CMP_GT, 0},
    {"gt", "other", 1, test_compare, CMP_GT, 0},
    {"in", "seq", 1, test_compare, CMP_IN, 0},
    {"integer", "", 0, test_integer, 0, 0},
    {"iterable", "", 0, test_iterable, 0, 0},
    {"le", "other", 1, test_compare, CMP_LE, 0},
    {"lessthan", "other", 1, test_compare, CMP_LT, 0},
    {"lower", "", 0, test_case, KIND_LOWER, 0},
    {"lt", "other", 1, test_compare, CMP_LT, 0},
    {"mapping", "", 0, test_mapping, 0, 0},
    {"ne", "other", 1, test_compare, CMP_NE, 0},
    {"none", "", 0, test_none, 0, 0},
    {"number", "", 0, test_number, 0, 0},
    {"odd", "", 0, test_remainder, 1, 0},
    {"sameas", "other", 1, test_same, 0, 0},
    {"sequence", "", 0, test_sequence, 0, 0},
    {"string", "", 0, test_string, 0, 0},
    {"test", "", 0, test_name, 0, 0},
    {"true", "", 0, test_true, 0, 0},
    {"undefined", "", 0, test_undefined, 0, 0},
    {"upper", "", 0, test_case, KIND_UPPER, 0},
};

const struct builtin *test_find(const struct tstr *name) {
    return builtin_find(TESTS, ARRAY_SIZE(TESTS), name);
}
