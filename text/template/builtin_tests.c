/* builtin_tests - the tests of the language, the operands of `is`. An undefined value counts as
 * iterable: the class that Jinja has for it has __iter__(). */

#include "base/try.h"
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
    {"!=", "other", 1, test_compare, CMP_NE},
    {"<", "other", 1, test_compare, CMP_LT},
    {"<=", "other", 1, test_compare, CMP_LE},
    {"==", "other", 1, test_compare, CMP_EQ},
    {">", "other", 1, test_compare, CMP_GT},
    {">=", "other", 1, test_compare, CMP_GE},
    {"boolean", "", 0, test_boolean, 0},
    {"defined", "", 0, test_defined, 0},
    {"divisibleby", "num", 1, test_remainder, 0},
    {"eq", "other", 1, test_compare, CMP_EQ},
    {"equalto", "other", 1, test_compare, CMP_EQ},
    {"even", "", 0, test_remainder, 0},
    {"false", "", 0, test_false, 0},
    {"float", "", 0, test_float, 0},
    {"ge", "other", 1, test_compare, CMP_GE},
    {"greaterthan", "other", 1, test_compare, CMP_GT},
    {"gt", "other", 1, test_compare, CMP_GT},
    {"in", "seq", 1, test_compare, CMP_IN},
    {"integer", "", 0, test_integer, 0},
    {"iterable", "", 0, test_iterable, 0},
    {"le", "other", 1, test_compare, CMP_LE},
    {"lessthan", "other", 1, test_compare, CMP_LT},
    {"lt", "other", 1, test_compare, CMP_LT},
    {"mapping", "", 0, test_mapping, 0},
    {"ne", "other", 1, test_compare, CMP_NE},
    {"none", "", 0, test_none, 0},
    {"number", "", 0, test_number, 0},
    {"odd", "", 0, test_remainder, 1},
    {"sequence", "", 0, test_sequence, 0},
    {"string", "", 0, test_string, 0},
    {"true", "", 0, test_true, 0},
    {"undefined", "", 0, test_undefined, 0},
};

const struct builtin *test_find(const struct tstr *name) {
    return builtin_find(TESTS, ARRAY_SIZE(TESTS), name);
}
