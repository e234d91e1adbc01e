/*
 * Calls under a grammar: for every format, random tools and random texts that the grammar allows,
 * the format's own parser reads calls of these tools whose arguments fit, and nothing else.
 */

#include <criterion/criterion.h>
#include <ctype.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "api/http/json_build.h"
#include "base/text.h"
#include "tests/api/toolcall_random.h"
#include "tests/support/few.h"

struct counts {
    uint32_t made, texts, calls;
};

/* @after: the text begins with a trigger, except for the part that the grammar writes itself ("").
 * @loose: arguments need not fit. */
static struct counts check_format(const struct toolcall_format *f, struct schema_writer *w,
                                  uint32_t n, bool loose, const char *after) {
    struct grammar_vocab *v[2] = {random_vocab(false), random_vocab(true)};
    struct buf text = {.max = 1 << 20}, all = {.max = 1 << 20};
    struct counts sum = {0};

    for (uint32_t k = 0; k < n; k++) {
        yyjson_doc *doc = random_tools(w, 1 + rng_below(&w->r, 3));
        yyjson_val *tools = yyjson_doc_get_root(doc);
        struct constraint *c = random_constraint(f, tools, v[k % 2], loose, after != NULL, "");
        uint32_t n_tokens = random_n_tokens(k % 2);

        sum.made += c != NULL;
        for (int m = 0; c && m < 3; m++) {
            if (!random_text(c, f, &w->r, n_tokens, &text))
                continue;
            buf_clear(&all);
            buf_add_str(&all, after ? after : "");
            buf_add(&all, text.data, text.len);
            sum.texts++;
            sum.calls += random_calls_fit(f, tools, &all, (struct random_reading){.loose = loose});
        }
        constraint_free(c);
        yyjson_doc_free(doc);
    }
    buf_deinit(&text);
    buf_deinit(&all);
    grammar_vocab_free(v[0]);
    grammar_vocab_free(v[1]);
    return sum;
}

static void check_all(bool loose, bool after, uint32_t n) {
    struct schema_writer w = {.b = {.max = 1 << 20}, .r = {2026 + loose + 2u * after}};

    setlocale(LC_CTYPE, "C.UTF-8"); /* for regexec() */
    for (size_t i = 0; toolcall_at(i); i++) {
        const struct toolcall_format *f = toolcall_at(i);
        const char *trigger = NULL;

        for (size_t k = 0; k < (after ? 3 : 1) && (k == 0 || trigger); k++) {
            trigger = after ? toolcall_after(f, k) : NULL;
            cr_assert(!after || k || trigger, "%s has no trigger", f->name);
            if (after && !trigger)
                break;
            struct counts c = check_format(f, &w, n, loose, trigger);

            cr_expect_eq(c.made, n, "%s: %u of %u sets of tools", f->name, c.made, n);
            cr_expect_gt(c.texts, 2 * n, "%s: %u texts ended", f->name, c.texts);
            cr_expect(after || c.calls > c.texts, "%s: %u calls in %u texts", f->name, c.calls,
                      c.texts);
        }
    }
    buf_deinit(&w.b);
}

Test(toolcall_force, every_text_is_calls_that_fit) {
    check_all(false, false, FEWER(40, 10));
}

Test(toolcall_force, after_a_trigger_too) {
    check_all(false, true, 10);
}

/* Returns how a call of `f` begins in @format. */
static const char *start_of(const struct toolcall_format *format) {
    static const char *const rows[][2] = {
        {"harmony", " to=functions."},
        {"llama3", R"({"name": "f", "parameters":)"},
        {"llama4", R"({"name": "f", "parameters":)"},
        {"llama4-python", "[f("},
        {"glm4", "f\n"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if (strcmp(rows[i][0], format->name) == 0)
            return rows[i][1];
    return "a call that is marked";
}

/* Beginnings of a call at the beginning of a message: the rest of harmony's header, and the whole
 * of Llama's object or list and GLM-4's name, which the grammar then writes. */
Test(toolcall_force, after_the_start_of_a_message_too) {
    struct schema_writer w = {.b = {.max = 1 << 20}, .r = {31}};
    uint32_t n_formats = 0;

    setlocale(LC_CTYPE, "C.UTF-8"); /* for regexec() */
    for (size_t i = 0; toolcall_at(i); i++) {
        const struct toolcall_format *f = toolcall_at(i);
        char text[64];
        bool held;

        if (!toolcall_start(f, "f", text, sizeof(text), &held))
            continue;
        cr_expect_str_eq(text, start_of(f));
        struct counts c = check_format(f, &w, 20, false, held ? "" : text);

        cr_expect_eq(c.made, 20);
        cr_expect_gt(c.texts, 40, "%s: %u texts ended", f->name, c.texts);
        n_formats++;
    }
    cr_expect_eq(n_formats, 5);
    cr_expect(!toolcall_start(toolcall_find("llama3"), "f", (char[8]){0}, 8, &(bool){0}));
    cr_expect(!toolcall_start(toolcall_find("hermes"), "f", (char[8]){0}, 8, &(bool){0}));
    buf_deinit(&w.b);
}

Test(toolcall_force, any_arguments_are_still_an_object) {
    check_all(true, false, 10);
}

/* The text of a custom tool follows its grammar, in a JSON string or bare; the schema says the
 * same. */
Test(toolcall_force, texts_of_custom_tools) {
    const char *tools = R"([{"type":"function","function":{"name":"patch","parameters":{"type":")"
                        R"(object","properties":{"input":{"type":"string",)"
                        R"("pattern":"^(x|a\nb?|\")"
                        R"(|[b-d]!)*!$"}},"required":["input"],"additionalProperties":false}}}])";
    const char *const sources[] = {R"("start: item~1..4 \"!\"\nitem: \"x\" | \"a\" LF \"b\"? | )"
                                   R"(\"\\\"\" | /[b-d]!/\n%import common.LF")",
                                   R"("(x|a\nb?|\"|[b-d]!){1,4}!")"};
    struct rng r = {77};
    yyjson_doc *doc = yyjson_read(tools, strlen(tools), 0);
    struct grammar_vocab *v = random_vocab(true);
    struct buf text = {.max = 1 << 20};

    setlocale(LC_CTYPE, "C.UTF-8");
    for (size_t i = 0; toolcall_at(i) || i < 2; i++) {
        const struct toolcall_format *f = toolcall_at(i);
        yyjson_doc *source = yyjson_read(sources[i % 2], strlen(sources[i % 2]), 0);
        struct toolcall_tool tool = {.name = "patch",
                                     .param = "tools",
                                     .takes_text = true,
                                     .syntax = i % 2 ? "regex" : "lark",
                                     .text = yyjson_doc_get_root(source)};
        struct toolcall_force o = {.format = f, .tools = &tool, .n_tools = 1, .max_calls = 2};
        struct nodes n = {.doc = yyjson_mut_doc_new(NULL)};
        struct constraint *c = NULL;
        yyjson_mut_val *root = NULL;
        struct err err = {0};
        size_t len;

        cr_assert(source);
        cr_assert_eq(toolcall_force(&root, &n, &o, &err), 0, "%s: %s", f->name, err.message);
        char *node = yyjson_mut_val_write(root, 0, &len);
        cr_assert_eq(constraint_new(&c, v, node, len, NULL, 0, NULL, &err), 0, "%s: %s %s", f->name,
                     err.message, node);
        for (int k = 0; k < 6; k++)
            if (random_text(c, f, &r, random_n_tokens(true), &text))
                random_calls_fit(f, yyjson_doc_get_root(doc), &text, (struct random_reading){0});
        constraint_free(c);
        free(node);
        yyjson_mut_doc_free(n.doc);
        yyjson_doc_free(source);
    }
    buf_deinit(&text);
    grammar_vocab_free(v);
    yyjson_doc_free(doc);
}

/* @why NULL: the format can hold @parameters. */
static void check_refusal(const char *format, const char *parameters, const char *why) {
    yyjson_doc *doc = yyjson_read(parameters, strlen(parameters), 0);
    struct toolcall_tool tool = {
        .name = "f", .parameters = yyjson_doc_get_root(doc), .param = "tools[0].x"};
    struct toolcall_force o = {.format = toolcall_find(format), .tools = &tool, .n_tools = 1};
    struct nodes n = {.doc = yyjson_mut_doc_new(NULL)};
    yyjson_mut_val *root;
    struct err err = {0};
    struct grammar *g = NULL;
    size_t len = 0;
    int r = toolcall_force(&root, &n, &o, &err);
    char *text = r == 0 ? yyjson_mut_val_write(root, 0, &len) : NULL;

    cr_assert(doc, "%s", parameters);
    if (text)
        r = constraint_compile(&g, NULL, text, len, NULL, &err);
    cr_expect_eq(r, why ? -22 : 0, "%s %s: %d %s", format, parameters, r, err.message);
    cr_expect(!why || strstr(err.message, why), "%s %s: %s", format, parameters, err.message);
    cr_expect_str_eq(err.param, why ? "tools[0].x" : "");
    grammar_free(g);
    free(text);
    yyjson_mut_doc_free(n.doc);
    yyjson_doc_free(doc);
}

/* A refusal names the place of what a format cannot write. */
Test(toolcall_force, what_cannot_be_written_is_refused) {
    const struct {
        /* why NULL: the format can write it */
        const char *format, *parameters, *why;
    } table[] = {
        {"hermes", R"({"type":"string"})", "a type other than"},
        {"hermes", R"({"type":["string","null"]})", "a type other than"},
        {"hermes", R"({"type":["object","null"]})", NULL},
        {"glm", R"({"type":["object","null"]})", NULL},
        {"hermes", "7", "does not describe an object"},
        {"hermes", "true", NULL},
        {"glm", R"({"anyOf":[{}]})", "anyOf"},
        {"glm", R"({"type":"object","required":["a"]})", R"(the required property "a")"},
        {"glm", R"({"properties":{"a<":{}}})",
         "tools[0].x: #/properties/a<: a property name other than 1 to 256 characters without "
         R"(controls, '<', '>', '"' and a blank at either end)"},
        {"glm", R"({"properties":{"a":{"$ref":"#/properties/b"},"b":{}}})", NULL},
        {"glm", R"({"properties":{"a":{"type":"string","pattern":"<"}}})", NULL},
        {"glm", R"({"properties":{"a":{"type":"string","pattern":"^a|b$"}}})", NULL},
        {"glm", R"({"properties":{"a":{"type":"string","pattern":"^(a|b)$"}}})", NULL},
        {"glm", R"({"properties":{"a":{"type":"string","not":{}}}})", NULL},
        {"glm", R"({"properties":{"a":{"type":"string","format":"date"}}})", NULL},
        {"glm",
         R"({"properties":{"a":{"$ref":"#/$defs/)"
         R"(s","maxLength":3}},"$defs":{"s":{"type":"string"}}})",
         NULL},
        {"glm",
         R"({"properties":{"a":{"allOf":[{"$ref":"#/$defs/)"
         R"(s"}],"title":"A"}},"$defs":{"s":{"type":"string"}}})",
         NULL},
        {"glm", R"({"properties":{"a":{"enum":["x","yy"],"minLength":2}}})", NULL},
        {"glm", R"({"$ref":"#/$defs/s","$defs":{"s":{"type":"object"}}})", NULL},
        {"glm", R"({"$ref":"#/$defs/x","$defs":{"s":{"type":"object"}}})", "without a target"},
        {"lfm2", R"({"properties":{"a b":{}}})", NULL},
        {"gemma4", R"({"properties":{"a":{"type":"array","uniqueItems":true}}})", "uniqueItems"},
        {"gemma4", R"({"properties":{"a":{"type":"array","minItems":2,"maxItems":1}}})", NULL},
        {"gemma4", R"({"properties":{"a":{"type":"array","minItems":2,"maxItems":0}}})", NULL},
        {"gemma4", R"({"properties":{"a":{"type":"array","maxItems":2.5}}})",
         "#/properties/a/maxItems: this must be a whole number of at least 0"},
        {"gemma4", R"({"properties":{"a":{"type":"array","minItems":-1}}})",
         "#/properties/a/minItems: this must be a whole number of at least 0"},
        {"gemma4", R"({"properties":{"a":{"type":"array","minItems":2,"maxItems":2}}})", NULL},
        {"gemma4", R"({"properties":{"a":{"type":"array","maxItems":0}}})", NULL},
        {"gemma4", R"({"properties":{"a":{"oneOf":[{"type":"string"},{"type":"string"}]}}})", NULL},
        {"gemma4", R"({"type":"object","properties":{"a":{"$ref":"#"}}})", NULL},
        {"lfm2", R"({"properties":{"a":{"items":{"$ref":"#/properties/a"}}}})", NULL},
        {"lfm2", R"({"properties":{"a\u0000":{}}})", "#/properties/a: this name"},
        {"gemma4", R"({"properties":{"a":{"const":"x<|\"|>"}}})", NULL},
        {"gemma4", R"({"properties":{"a":{"const":"x\u0000"}}})", NULL},
        {"gemma4", R"({"properties":{"a":{"enum":[[1]]}}})", NULL},
        {"gemma4", R"({"properties":{"a":{"enum":[1],"type":"string"}}})", NULL},
        {"gemma4", R"({"properties":{"a":{"anyOf":[]}}})",
         "#/properties/a/anyOf: this must be an array of at least one schema"},
        {"gemma4", R"({"properties":{"a":{"type":"array","items":false}}})", NULL},
        {"gemma4", R"({"properties":{"a":{"allOf":[{}]}}})", NULL},
        {"gemma4",
         R"({"properties":{"a":{"type":"object","additionalProperties":{"type":"string"}}}})",
         NULL},
        {"gemma4", R"({"properties":{"a":{"type":"string\u0000"}}})",
         "#/properties/a/type: unknown type"},
        {"gemma4", R"({"properties":{"a":{"type":["string",7]}}})",
         "#/properties/a/type: unknown type"},
        {"gemma4", R"({"properties":{"a":{"minLength":3}}})", NULL},
        {"glm", R"({"properties":{"a":{"type":"string","pattern":"a","minLength":1}}})", NULL},
        {"glm", R"({"properties":{"a":{"type":"string","maxLength":100001}}})", NULL},
        {"glm", R"({"properties":{"a":{"type":"string","minLength":2,"maxLength":1}}})", NULL},
        {"glm", R"({"properties":{"a":{"type":"string","minLength":-1}}})",
         "#/properties/a/minLength: this must be a whole number of at least 0"},
        {"glm", R"({"properties":{"a":{"type":"string","pattern":7}}})",
         "#/properties/a/pattern: this must be a string"},
        {"glm", R"({"properties":{"a":{"type":"string","const":"a</arg_value>"}}})", NULL},
        {"glm", R"({"properties":{"a":{"type":"string","enum":[7]}}})", NULL},
        {"glm", R"({"properties":{"a":{"type":"string","enum":[]}}})",
         "#/properties/a/enum: this must be an array of at least one value"},
        {"glm", R"({"properties":{"a":{"type":"string","anyOf":[{}],"minLength":1}}})", NULL},
        {"glm", R"({"properties":{"a":{"type":"string","anyOf":[{}],"oneOf":[{}]}}})", NULL},
        {"glm", R"({"properties":{"a":{"type":"string","anyOf":[{"type":"null"}]}}})", NULL},
        {"glm", R"({"properties":{"a":{"type":"string","oneOf":[{"type":"string"}]}}})", NULL},
        {"glm", R"({"properties":{"a":{"type":"string","anyOf":[{"allOf":[{},{}]}]}}})", NULL},
        {"glm",
         R"({"properties":{"a":{"type":"string","anyOf":[{"$ref":"#/properties/a/anyOf/0"}]}}})",
         "#/properties/a/anyOf/0: the schema refers to itself without any progress"},
        {"glm",
         R"({"properties":{"a":{"type":"string","anyOf":[{"allOf":[{"$ref":"#/properties/)"
         R"(a"}]}]}}})",
         "#/properties/a: the schema refers to itself without any progress"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        check_refusal(table[i].format, table[i].parameters, table[i].why);
}

/* Clients with one kind of number write 3 as 3.0. */
Test(toolcall_force, bounds_may_have_a_point) {
    check_refusal(
        "glm", R"({"properties":{"a":{"type":"string","minLength":1.0,"maxLength":3.0}}})", NULL);
    check_refusal("gemma4",
                  R"({"properties":{"a":{"type":"array","items":{"type":"string"},"minItems":1.0,")"
                  R"(maxItems":3.0}}})",
                  NULL);
    check_refusal("gemma4", R"({"properties":{"a":{"type":"array","minItems":1.5}}})",
                  "#/properties/a/minItems: this must be a whole number");
}

/* Checks objects of @n_optional properties and, if @required, a required one behind them. */
static void check_object(const char *format, int n_optional, bool required, const char *why) {
    struct buf b = {.max = 1 << 16};

    buf_add_str(&b, R"({"properties":{"p":{})");
    for (int i = 0; i < n_optional - !required; i++)
        buf_printf(&b, R"(,"a%d":{})", i);
    buf_printf(&b, "}%s}", required ? R"(,"required":["p"])" : "");
    check_refusal(format, b.data, why);
    buf_deinit(&b);
}

/* Checks an object that requires its property @n times. */
static void check_required(int n, const char *why) {
    struct buf b = {.max = 1 << 16};

    buf_add_str(&b, R"({"properties":{"p":{}},"required":["p")");
    for (int i = 1; i < n; i++)
        buf_add_str(&b, R"(,"p")");
    buf_add_str(&b, "]}");
    check_refusal("glm", b.data, why);
    buf_deinit(&b);
}

Test(toolcall_force, objects_of_many_properties) {
    check_required(512, NULL);
    check_required(513, "an object of more than 512 properties");
    check_object("gemma4", 600, true, NULL); /* sorted: p is the last */
    check_object("gemma4", 600, false, NULL);
    check_object("lfm2", 600, true, NULL);
    check_object("glm", 512, false, NULL);
    check_object("glm", 513, false, "an object of more than 512 properties");
}

/* Keeps the name of the first call. */
static int note_name(void *ctx, const struct toolcall_event *e) {
    char *name = ctx;

    if (e->kind == TOOLCALL_BEGIN && !*name)
        snprintf(name, TOOLCALL_NAME_MAX + 1, "%s", e->name);
    return 0;
}

/* Returns true if the parser reads a call of @name in @text, a call of "xQy", once that is @name
 * as the format spells it. */
static bool reads_name(const struct toolcall_format *f, yyjson_val *tools, const char *name,
                       const struct buf *text) {
    CLEANUP(toolcall_parser_freep) struct toolcall_parser *p = NULL;
    CLEANUP(buf_deinit) struct buf other = {.max = 1 << 20};
    char read[TOOLCALL_NAME_MAX + 1] = "";

    for (const char *c = text->data; *c; c++) {
        if (strncmp(c, "xQy", 3) != 0) {
            buf_add_char(&other, *c);
            continue;
        }
        toolcall_spell_name(&f->shape, name, strlen(name), &other);
        c += 2;
    }
    cr_assert_eq(toolcall_parser_new(&p, &(struct toolcall_opts){.format = f, .tools = tools}), 0);
    cr_assert_eq(toolcall_feed(p, other.data, other.len, note_name, read), 0);
    cr_assert_eq(toolcall_finish(p, false, note_name, read), 0);
    return strcmp(read, name) == 0;
}

static yyjson_doc *tools_named(const char *name) {
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *tool =
        json_make(doc,
                  "[{type:'function', function:{name:%, parameters:{type:'object', properties:{"
                  "a:{type:'boolean'}}, required:['a'], additionalProperties:false}}}]",
                  yyjson_mut_strcpy(doc, name));
    yyjson_doc *out = yyjson_mut_val_imut_copy(tool, NULL);

    yyjson_mut_doc_free(doc);
    return out;
}

/* Writes a text with a call of the one of @tools. Returns false if its name cannot be forced. */
static bool write_call(const struct toolcall_format *f, yyjson_val *tools, struct buf *text) {
    struct grammar_vocab *v = random_vocab(false);
    struct constraint *c = random_constraint(f, tools, v, false, false, "");
    struct rng r = {7};

    for (int i = 0; c && i < 50 && !random_text(c, f, &r, random_n_tokens(false), text); i++)
        ;
    constraint_free(c);
    grammar_vocab_free(v);
    return c;
}

/* A name can be forced if and only if the parser reads it: with any characters where the format
 * writes it in JSON. */
Test(toolcall_force, names_have_what_their_format_carries) {
    for (size_t i = 0; toolcall_at(i); i++) {
        const struct toolcall_format *f = toolcall_at(i);
        CLEANUP(buf_deinit) struct buf text = {.max = 1 << 20}, own = {.max = 1 << 20};
        bool json = f->shape.args == ARGS_JSON && *text_or(f->shape.name_end, "") == '"';
        yyjson_doc *plain = tools_named("xQy");

        cr_assert(write_call(f, yyjson_doc_get_root(plain), &text));
        for (int c = 1; c < 0x80; c++) {
            char name[8];

            if (isalnum(c))
                continue;
            snprintf(name, sizeof(name), "x%s%cy", c == 0x7F ? "\xC3\xA9" : "", c);
            yyjson_doc *doc = tools_named(name);
            yyjson_val *tools = yyjson_doc_get_root(doc);
            bool carries = toolcall_can_carry(f, name);

            cr_expect(carries || !json, "%s refuses %d", f->name, c);
            if (carries || c >= ' ')
                cr_expect_eq(reads_name(f, tools, name, &text), carries, "%s: %d", f->name, c);
            cr_expect_eq(write_call(f, tools, &own), carries, "%s: %d", f->name, c);
            if (carries)
                cr_expect_gt(random_calls_fit(f, tools, &own, (struct random_reading){0}), 0);
            yyjson_doc_free(doc);
        }
        yyjson_doc_free(plain);
    }
}

Test(toolcall_force, names_without_what_ends_them) {
    static const char *const names[] = {"", "a b", R"(a")", "a\tb"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        struct toolcall_tool tool = {.name = names[i], .param = "tools[0].function.parameters"};
        struct toolcall_force o = {.format = toolcall_find("glm"), .tools = &tool, .n_tools = 1};
        struct nodes n = {.doc = yyjson_mut_doc_new(NULL)};
        yyjson_mut_val *root;
        struct err err = {0};

        cr_expect_eq(toolcall_force(&root, &n, &o, &err), -22, "'%s'", names[i]);
        cr_expect_str_eq(err.param, "tools[0].function.name");
        cr_expect(strstr(err.message, names[i]) && strstr(err.message, "a name needs 1 to 256"),
                  "%s", err.message);
        yyjson_mut_doc_free(n.doc);
    }
}

/* Models of Python's form write its words or JSON's, and unquoted names of properties. */
Test(toolcall_force, words_of_python) {
    static const char parameters[] = R"({"type":"object","properties":{"on":{"type":)"
                                     R"("boolean"},"user.name":{"type":)"
                                     R"(["string","null"]},"k":{"enum":[true,1]},"u":{)"
                                     R"("anyOf":[{"type":"null"},{"type":)"
                                     R"("integer"}]},"o":{"not":{"type":"null"}}}})";
    const struct {
        const char *arguments;
        bool fits;
    } table[] = {
        {"on=True, user.name=None", true},
        {R"(on=false, user.name="x")", true},
        {"on=None", false},
        {"user.name=True", false},
        {"k=True, u=None", true},
        {"k=False", false},
        {"k=1, u=null", true},
        {"o=None", false},
        {"o=true", true},
        {R"(o=[True, {"a": None}])", true},

        {"on=TRUE", false},
    };
    struct grammar_vocab *v = random_vocab(false);
    yyjson_doc *doc = yyjson_read(parameters, sizeof(parameters) - 1, 0);
    struct toolcall_tool tool = {
        .name = "f", .parameters = yyjson_doc_get_root(doc), .param = "tools[0].x"};
    struct toolcall_force o = {
        .format = toolcall_find("lfm2"), .tools = &tool, .n_tools = 1, .max_calls = 1};
    struct nodes n = {.doc = yyjson_mut_doc_new(NULL)};
    struct constraint *c = NULL;
    yyjson_mut_val *root = NULL;
    struct err err = {0};
    size_t len;

    cr_assert_eq(toolcall_force(&root, &n, &o, &err), 0, "%s", err.message);
    char *node = yyjson_mut_val_write(root, 0, &len);

    cr_assert_eq(constraint_new(&c, v, node, len, NULL, 0, NULL, &err), 0, "%s", err.message);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        struct constraint_state *s = NULL;
        char text[200];
        bool fits = true;

        snprintf(text, sizeof(text), "<|tool_call_start|>[f(%s)]<|tool_call_end|>",
                 table[i].arguments);
        cr_assert_eq(constraint_state_new(&s, c), 0);
        for (const char *p = text; *p && fits; p++)
            fits = constraint_accept(s, (uint8_t)*p) == 0;
        cr_expect_eq(fits && constraint_can_end(s), table[i].fits, "%s", table[i].arguments);
        constraint_state_free(s);
    }
    constraint_free(c);
    free(node);
    yyjson_mut_doc_free(n.doc);
    yyjson_doc_free(doc);
    grammar_vocab_free(v);
}

/* Unions of references to unions, and objects of optional objects: schemas that would grow without
 * end are refused or not followed. */
Test(toolcall_force, hostile_schemas_cost_little) {
    static const char *const formats[] = {"hermes", "glm", "gemma4", "lfm2", "kimi-k3"};
    struct buf b = {.max = 1 << 20};

    for (int kind = 0; kind < 2; kind++) {
        buf_clear(&b);
        buf_add_str(&b, R"({"type":"object","properties":{"p":{"$ref":"#/$defs/a0"}},"$defs":{)");
        for (int i = 0; i < 7; i++) {
            buf_printf(
                &b, kind ? R"("a%d":{"type":"object","properties":{)" : R"("a%d":{"anyOf":[)", i);
            for (int k = 0; k < 20; k++)
                buf_printf(&b,
                           kind ? R"(%s"k%d":{"$ref":"#/$defs/a%d"})"
                                : R"(%s{"x%d":0,"$ref":"#/$defs/a%d"})",
                           k ? "," : "", k, i + 1);
            buf_add_str(&b, kind ? "}}," : "]},");
        }
        buf_add_str(&b, R"("a7":{"type":"string"}}})");
        yyjson_doc *doc = yyjson_read(b.data, b.len, 0);

        cr_assert(doc, "%s", b.data);
        for (size_t i = 0; i < ARRAY_SIZE(formats); i++) {
            struct toolcall_tool tool = {
                .name = "f", .parameters = yyjson_doc_get_root(doc), .param = "x"};
            struct toolcall_force o = {
                .format = toolcall_find(formats[i]), .tools = &tool, .n_tools = 1};
            struct nodes n = {.doc = yyjson_mut_doc_new(NULL)};
            yyjson_mut_val *root;
            struct err err = {0};
            int r = toolcall_force(&root, &n, &o, &err);

            cr_expect(r == 0 || (r == -22 && err.status == 400), "%s: %d", formats[i], r);
            cr_expect_leq(n.n_made, NODES_MAX);
            cr_expect_eq(r, 0, "%s: %s", formats[i], err.message);
            yyjson_mut_doc_free(n.doc);
        }
        yyjson_doc_free(doc);
    }
    buf_deinit(&b);
}

/* Changes the schema at a random place. */
static void mutate(struct schema_writer *w, struct buf *b) {
    const char *const pieces[] = {"{}",
                                  "[]",
                                  "null",
                                  "true",
                                  "1",
                                  "-2",
                                  R"("")",
                                  R"("$ref":"#")",
                                  R"("$ref":"#/$defs/kind")",
                                  R"("anyOf":[{}])",

                                  R"("pattern":"^[^<-z]*(a|.)$")",
                                  R"("enum":[])",
                                  R"("const":null)",
                                  R"("minLength":9)",
                                  R"("maxLength":0)",
                                  R"("type":["string","array"])",
                                  R"("type":"string")",
                                  R"("items":false)",
                                  R"("allOf":[true])",
                                  R"("required":["z"])"};
    const char *piece = pieces[rng_below(&w->r, ARRAY_SIZE(pieces))];
    struct buf tail = {.max = 1 << 20};
    uint32_t at = rng_below(&w->r, (uint32_t)b->len);

    /* Inserts before a key, or in the place of a value, in more than half of the cases. */
    const char *found = strpbrk(b->data + at, *piece == '"' && strchr(piece, ':') ? "{" : ":[");

    at = found ? (uint32_t)(found - b->data) + 1 : at;
    buf_add(&tail, b->data + at, b->len - at);
    b->len = at;
    buf_add_str(b, piece);
    if (tail.len && (*tail.data == '"' || *tail.data == '{'))
        buf_add_char(b, ',');
    buf_add(b, tail.data, tail.len);
    buf_deinit(&tail);
}

/* Checks a text under the grammar of @n for @schema. Returns false if it did not compile or did not
 * end. */
static bool check_mutated(const struct toolcall_format *f, const struct buf *schema,
                          yyjson_mut_val *root, struct rng *r) {
    CLEANUP(constraint_freep) struct constraint *c = NULL;
    CLEANUP(freep) char *text = NULL, *tools = NULL;
    static struct grammar_vocab *vocab; /* one for all tests of a process */
    struct buf out = {.max = 1 << 20};
    struct err err = {0};
    size_t len = 0;

    vocab = vocab ? vocab : random_vocab(false);
    text = yyjson_mut_val_write(root, 0, &len);
    int e = constraint_new(&c, vocab, text, len, NULL, 0, NULL, &err);

    cr_assert(e == 0 || (e == -22 && err.status == 400), "%d: %s\n%s", e, schema->data, text);
    bool ended = e == 0 && random_text(c, f, r, 257, &out);

    if (ended) {
        cr_assert(asprintf(&tools, R"([{"function":{"name":"f","parameters":%s}}])", schema->data) >
                  0);
        yyjson_doc *doc = yyjson_read(tools, strlen(tools), 0);

        random_calls_fit(f, yyjson_doc_get_root(doc), &out, (struct random_reading){0});
        yyjson_doc_free(doc);
    }
    buf_deinit(&out);
    return ended;
}

/* Any schema gives calls that fit it, or a refusal that names the field. */
Test(toolcall_force, mutated_schemas_do_no_harm) {
    static const char *const formats[] = {"hermes", "glm", "gemma4", "lfm2", "kimi-k3", "minicpm"};
    struct schema_writer w = {.b = {.max = 1 << 20}, .r = {77}};
    uint32_t n_valid = 0, n_forced = 0, n_texts = 0;

    setlocale(LC_CTYPE, "C.UTF-8"); /* for regexec() */
    for (uint32_t k = 0; k < 4000; k++) {
        buf_clear(&w.b);
        random_object(&w, 3, random_defs);
        for (uint32_t m = rng_below(&w.r, 4); m < 4; m++)
            mutate(&w, &w.b);
        yyjson_doc *doc = yyjson_read(w.b.data, w.b.len, 0);
        struct toolcall_tool tool = {
            .name = "f", .parameters = yyjson_doc_get_root(doc), .param = "x"};
        struct toolcall_force o = {.format = toolcall_find(formats[k % ARRAY_SIZE(formats)]),
                                   .tools = &tool,
                                   .n_tools = 1,
                                   .max_calls = 2};
        struct nodes n = {.doc = yyjson_mut_doc_new(NULL)};
        yyjson_mut_val *root = NULL;
        struct err err = {0};
        int r = doc ? toolcall_force(&root, &n, &o, &err) : -1;

        n_valid += doc != NULL;
        cr_expect(!doc || r == 0 || (r == -22 && err.status == 400 && strcmp(err.param, "x") == 0),
                  "%d: %s", r, w.b.data);
        n_forced += r == 0;
        n_texts += r == 0 && check_mutated(o.format, &w.b, root, &w.r);
        yyjson_mut_doc_free(n.doc);
        yyjson_doc_free(doc);
    }
    cr_expect(n_valid > 1000 && n_forced > 500 && n_texts > 300, "%u valid, %u forced, %u texts",
              n_valid, n_forced, n_texts);
    buf_deinit(&w.b);
}

/* gpt-oss ends its turn with the marker that ends a call, which is the same token. */
Test(toolcall_force, a_marker_may_be_an_end_token) {
    static const char head[] =
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}";
    static const int32_t ends[] = {256, 257};
    static char bytes[256];
    struct grammar_token t[258] = {[257] = {"<|call|>", 8, true}};
    struct toolcall_tool tool = {.name = "f", .param = "x"};
    struct toolcall_force o = {.format = toolcall_find("harmony"), .tools = &tool, .n_tools = 1};
    struct nodes n = {.doc = yyjson_mut_doc_new(NULL)};
    struct grammar_vocab *v = NULL;
    struct constraint *c = NULL;
    struct constraint_state *s = NULL;
    yyjson_mut_val *root = NULL;
    struct err err = {0};
    uint32_t bits[9];
    size_t len;

    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        t[i] = (struct grammar_token){.bytes = &bytes[i], .len = 1};
    }
    cr_assert_eq(grammar_vocab_new(&v, t, 258, ends, 2), 0);
    cr_assert_eq(toolcall_force(&root, &n, &o, &err), 0);
    char *text = yyjson_mut_val_write(root, 0, &len);

    cr_assert_eq(constraint_new(&c, v, text, len, NULL, 0, NULL, &err), 0, "%s", err.message);
    cr_assert_eq(constraint_state_new(&s, c), 0);
    for (size_t i = 0; head[i]; i++)
        cr_assert_eq(constraint_accept(s, (unsigned char)head[i]), 0, "%s", head + i);
    cr_expect_eq(constraint_mask(s, bits), 1);
    cr_expect(bits[257 / 32] >> (257 % 32) & 1);
    cr_expect_eq(constraint_accept(s, 257), 0);
    cr_expect(constraint_can_end(s));
    free(text);
    constraint_state_free(s);
    constraint_free(c);
    grammar_vocab_free(v);
    yyjson_mut_doc_free(n.doc);
}
