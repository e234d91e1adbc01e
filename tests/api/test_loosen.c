/*
 * Parts that are left out of schemas: what a place takes out, and that it ends for every schema
 * with one that a grammar holds.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "api/generation/loosen.h"
#include "api/toolcall/toolcall.h"
#include "base/rng.h"
#include "grammar/constraint.h"

#define DROPS_MAX 200

struct test {
    struct loosener l;
    struct loosened_list list;
    struct arena arena;
};

static void begin(struct test *t, const char *schema) {
    yyjson_doc *doc = yyjson_read(schema, strlen(schema), 0);

    cr_assert(doc, "%s", schema);
    *t = (struct test){0};
    arena_init(&t->arena, 1 << 20);
    t->l = (struct loosener){
        .doc = yyjson_mut_doc_new(NULL), .arena = &t->arena, .tool = "f", .list = &t->list};
    t->l.schema = yyjson_val_mut_copy(t->l.doc, yyjson_doc_get_root(doc));
    yyjson_doc_free(doc);
}

static void end(struct test *t) {
    yyjson_mut_doc_free(t->l.doc);
    arena_deinit(&t->arena);
}

Test(loosen, the_keyword_at_the_place_goes_and_the_rest_stays) {
    static const struct {
        const char *schema, *place, *left, *noted;
    } table[] = {
        {"{'properties':{'a':{'type':'string','pattern':'x'}},'required':['a']}",
         "/properties/a/pattern", "{'properties':{'a':{'type':'string'}},'required':['a']}",
         "/properties/a/pattern"},
        {"{'properties':{'a':{'enum':[1,2]}}}", "/properties/a/enum/1", "{'properties':{'a':{}}}",
         "/properties/a/enum"},
        {"{'properties':{'a':{'items':{'items':{'format':'x','type':'string'}}}}}",
         "/properties/a/items/items/format",
         "{'properties':{'a':{'items':{'items':{'type':'string'}}}}}",
         "/properties/a/items/items/format"},
        {"{'properties':{'a':{'not':{'pattern':'x'},'type':'string'}}}",
         "/properties/a/not/pattern", "{'properties':{'a':{'type':'string'}}}",
         "/properties/a/not"},
        {"{'properties':{'a':{'if':{'minimum':1},'then':{'maximum':2},'else':{}}}}",
         "/properties/a/then/maximum", "{'properties':{'a':{}}}", "/properties/a/then"},
        /* what the patterns allowed is not undeclared */
        {"{'properties':{'a':{'patternProperties':{'\\\\b':{}},'additionalProperties':false}}}",
         "/properties/a/patternProperties/\\b",
         "{'properties':{'a':{'patternProperties':{},'additionalProperties':true}}}",
         "/properties/a/patternProperties/\\b"},
        /* with one branch wider, exactly one could become none */
        {"{'properties':{'a':{'oneOf':[{'pattern':'x','type':'string'},{'type':'null'}]}}}",
         "/properties/a/oneOf/0/pattern",
         "{'properties':{'a':{'anyOf':[{'type':'string'},{'type':'null'}]}}}",
         "/properties/a/oneOf/0/pattern"},
        /* a place that is a schema: all but its type, then the property itself */
        {"{'properties':{'a':{'type':'object','properties':{'b':{}}},'c':{}},'required':['a','c']}",
         "/properties/a", "{'properties':{'a':{'type':'object'},'c':{}},'required':['a','c']}",
         "/properties/a"},
        {"{'properties':{'a:':{},'c':{}},'required':['a:','c']}",
         "/properties/a:", "{'properties':{'c':{}},'required':['c']}", "/properties/a:"},
        {"{'properties':{'a/~b':{'pattern':'x'}}}", "/properties/a~1~0b/pattern",
         "{'properties':{'a/~b':{}}}", "/properties/a~1~0b/pattern"},
        {"{'properties':{'a':{'$ref':'#/$defs/s'}},'$defs':{'s':{'pattern':'x'}}}",
         "/$defs/s/pattern", "{'properties':{'a':{'$ref':'#/$defs/s'}},'$defs':{'s':{}}}",
         "/$defs/s/pattern"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        char schema[300], left[300];
        struct test t;

        snprintf(schema, sizeof(schema), "%s", table[i].schema);
        snprintf(left, sizeof(left), "%s", table[i].left);
        for (char *c = schema; *c; c++)
            *c = *c == '\'' ? '"' : *c;
        for (char *c = left; *c; c++)
            *c = *c == '\'' ? '"' : *c;
        begin(&t, schema);
        cr_expect(loosen_schema(&t.l, table[i].place), "%s", schema);
        char *got = yyjson_mut_val_write(t.l.schema, 0, NULL);

        cr_expect_str_eq(got, left, "%s, not %s", got, left);
        cr_expect_eq(t.list.n, 1);
        cr_expect_str_eq(t.list.v[0].tool, "f");
        cr_expect_str_eq(t.list.v[0].place, table[i].noted, "%s", t.list.v[0].place);
        free(got);
        end(&t);
    }
}

Test(loosen, without_a_place_rules_go_before_names_and_types) {
    static const char schema[] =
        R"({"type":"object","properties":{"a":{"type":"string","pattern":"x"},"b":{)"
        R"("type":"array","items":{"enum":[1]},"maxItems":9}},"required":["a"]})";
    static const char *const steps[] = {
        R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":)"
        R"("array",)"
        R"("items":{"enum":[1]}}},"required":["a"]})",
        R"({"type":"object","properties":{"a":{"type":"string"},"b":{"type":)"
        R"("array"})"
        R"(},"required":["a"]})",
    };
    struct test t;

    begin(&t, schema);
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
        cr_assert(loosen_schema(&t.l, ""));
        char *got = yyjson_mut_val_write(t.l.schema, 0, NULL);

        cr_expect_str_eq(got, steps[i], "%s", got);
        free(got);
    }
    cr_expect(!loosen_schema(&t.l, ""));
    cr_expect_eq(t.list.n, 3);
    cr_expect_str_eq(t.list.v[2].place, "/properties/b");
    end(&t);
}

/* The list of what was left out names rules of the arguments as a whole, too. */
Test(loosen, rules_of_the_arguments_as_a_whole_are_noted) {
    static const char schema[] =
        R"({"title":"t","allOf":[{"required":["a"]}],"additionalProperties":false,)"
        R"("$defs":{"s":{}},"properties":{"a":{"type":"string"}}})";
    struct test t;

    begin(&t, schema);
    cr_assert(loosen_schema(&t.l, ""));
    char *got = yyjson_mut_val_write(t.l.schema, 0, NULL);

    cr_expect_str_eq(got, R"({"properties":{"a":{"type":"string"}}})", "%s", got);
    cr_assert_eq(t.list.n, 2);
    cr_expect_str_eq(t.list.v[0].place, "/allOf");
    cr_expect_str_eq(t.list.v[1].place, "/additionalProperties");
    free(got);
    end(&t);
}

/* Returns 0 or -EINVAL, with the place of the refusal. */
static int compile(const struct test *t, const char *format, char *place) {
    yyjson_doc *doc = yyjson_mut_val_imut_copy(t->l.schema, NULL);
    struct toolcall_tool tool = {.name = "f", .parameters = yyjson_doc_get_root(doc), .param = "x"};
    struct toolcall_force o = {
        .format = toolcall_find(format), .tools = &tool, .n_tools = 1, .place = place};
    struct grammar_limits limits = {.place = place};
    struct nodes n = {.doc = yyjson_mut_doc_new(NULL)};
    yyjson_mut_val *root = NULL;
    struct grammar *g = NULL;
    struct err err = {0};
    size_t len = 0;

    place[0] = 0;
    int r = toolcall_force(&root, &n, &o, &err);
    char *text = r == 0 ? yyjson_mut_val_write(root, 0, &len) : NULL;

    if (text)
        r = constraint_compile(&g, NULL, text, len, &limits, &err);
    grammar_free(g);
    free(text);
    yyjson_mut_doc_free(n.doc);
    yyjson_doc_free(doc);
    return r;
}

/* Schemas of keywords in random places, right and wrong: in a bounded number of steps there is one
 * that a grammar holds, or all of it is left out. Names and types then nearly always stay. */
Test(loosen, every_schema_ends_with_one_that_is_held) {
    static const char *const formats[] = {"hermes", "glm", "gemma4", "lfm2"};
    static const char *const values[] = {R"("\\b")",
                                         "7",
                                         "{}",
                                         "true",
                                         "[]",
                                         "{\"pattern\":\"(?i)\"}",
                                         "[1,1]",
                                         "null",
                                         R"("string")",
                                         R"("#")",
                                         "-1",
                                         R"("#/properties/a")",
                                         R"([{},{"type":"x"}])"};
    static const char *const keys[] = {"pattern",
                                       "minLength",
                                       "maxItems",
                                       "enum",
                                       "const",
                                       "items",
                                       "anyOf",
                                       "oneOf",
                                       "allOf",
                                       "not",
                                       "if",
                                       "then",
                                       "$ref",
                                       "format",
                                       "type",
                                       "uniqueItems",
                                       "contains",
                                       "prefixItems",
                                       "required",
                                       "propertyNames",
                                       "patternProperties",
                                       "additionalProperties",
                                       "dependentRequired",
                                       "unevaluatedItems"};
    struct rng r = {11};
    uint32_t n_kept = 0, n = 800;

    for (uint32_t i = 0; i < n; i++) {
        char schema[1000], place[GRAMMAR_PLACE_MAX];
        const char *format = formats[i % ARRAY_SIZE(formats)];
        int len = snprintf(schema, sizeof(schema),
                           R"({"type":"object","properties":{"a":{"type":"string")");
        struct test t;
        bool more = true;

        for (uint32_t k = rng_below(&r, 4); k < 5; k++)
            len += snprintf(schema + len, sizeof(schema) - (size_t)len, R"(,"%s":%s)",
                            keys[rng_below(&r, ARRAY_SIZE(keys))],
                            values[rng_below(&r, ARRAY_SIZE(values))]);
        snprintf(schema + len, sizeof(schema) - (size_t)len,
                 R"(},"n":{"type":"integer"}},"required":["a","n"]})");
        begin(&t, schema);
        int steps = 0, e = compile(&t, format, place);

        for (; e == -22 && more && steps < DROPS_MAX; steps++) {
            more = loosen_schema(&t.l, place);
            e = more ? compile(&t, format, place) : e;
        }
        cr_expect_lt(steps, DROPS_MAX, "%s: %s", format, schema);
        cr_expect(e == 0 || (e == -22 && !more), "%s: %d %s", format, e, schema);
        n_kept += e == 0;
        end(&t);
    }
    cr_expect_eq(n_kept, n);
}
