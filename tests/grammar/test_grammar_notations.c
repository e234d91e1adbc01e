/* Schemas in the notations of tool calls: which texts they allow. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "grammar/constraint.h"

static struct grammar_vocab *vocab_of_bytes(void) {
    static char bytes[256];
    struct grammar_token t[257] = {0};
    static const int32_t ends[] = {256};
    struct grammar_vocab *v = NULL;

    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        t[i] = (struct grammar_token){.bytes = &bytes[i], .len = 1};
    }
    cr_assert_eq(grammar_vocab_new(&v, t, 257, ends, 1), 0);
    return v;
}

/* Checks whether @text is a whole text of the node {"json_schema": @schema, @flags}; in both '
 * stands for ". */
static void expect(const char *flags, const char *schema, const char *text, bool fits) {
    struct grammar_vocab *v = vocab_of_bytes();
    struct constraint_state *s = NULL;
    struct constraint *c = NULL;
    struct err err = {0};
    char node[600];
    bool good = true;

    snprintf(node, sizeof(node), "{'json_schema':%s,%s}", schema, flags);
    for (char *p = node; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    cr_assert_eq(constraint_new(&c, v, node, strlen(node), NULL, 0, NULL, &err), 0, "%s: %s", node,
                 err.message);
    cr_assert_eq(constraint_state_new(&s, c), 0);
    for (const char *p = text; *p && good; p++)
        good = constraint_accept(s, (uint8_t)*p) == 0;
    cr_expect_eq(good && constraint_can_end(s), fits, "%s: %s", node, text);
    constraint_state_free(s);
    constraint_free(c);
    grammar_vocab_free(v);
}

struct row {
    const char *schema, *text;
    bool fits;
};

static void expect_all(const char *flags, const struct row *row, size_t n) {
    for (size_t i = 0; i < n; i++)
        expect(flags, row[i].schema, row[i].text, row[i].fits);
}

Test(grammar_notations, gemmas_keys_and_strings_have_no_quotes) {
    static const struct row rows[] = {
        {"{'properties':{'a':{'type':'string'}}}",
         R"({a:<|"|>x "y" \ )"
         "\n"
         R"(<|"|>})",
         true},
        {"{'properties':{'a':{'type':'string'}}}", R"({"a":"x"})", false},
        {"{'properties':{'a':{'type':'string'}}}", R"({a:<|"|>x<|"|><|"|>})", false},
        {"{'properties':{'a':{'type':'string'}}}", R"({ a:<|"|>x<|"|>})", false},
        {"{'properties':{'a':{'type':'string','maxLength':2}}}", R"({a:<|"|><|<|"|>})", true},
        {"{'properties':{'a':{'type':'string','maxLength':2}}}", R"({a:<|"|>abc<|"|>})", false},
        {"{'properties':{'a':{'pattern':'^.$','type':'string'}}}", R"({a:<|"|><<|"|>})", true},
        {"{'const':{'k':['x',1,null]}}", R"({k:[<|"|>x<|"|>,1,null]})", true},
        /* the order of Jinja2's dictsort, whatever that of the schema is */
        {"{'properties':{'b':{'const':1},'A':{'const':2},'a_':{'const':3}}}", "{A:2,a_:3,b:1}",
         true},
        {"{'properties':{'b':{'const':1},'A':{'const':2},'a_':{'const':3}}}", "{b:1,A:2,a_:3}",
         false},
        {"{'properties':{'a':{'const':1},'ab':{'const':2}}}", "{ab:2}", true},
        {"{'type':'object','propertyNames':{'pattern':'^x'},'additionalProperties':{'const':1}}",
         "{x y:1,x:1}", true},
        {"{'type':'object','propertyNames':{'pattern':'^x'},'additionalProperties':{'const':1}}",
         "{y:1}", false},
        {"{'type':'object','properties':{'a':{'const':1}},'additionalProperties':{'const':2}}",
         "{a:1,ab:2,b:2}", true},
        {"{'type':'object','properties':{'a':{'const':1}},'additionalProperties':{'const':2}}",
         "{a:2}", false},
        {"{'type':'object','additionalProperties':{'const':2}}", "{a,b:2}", false},
        {"{'type':'object','additionalProperties':{'const':2}}", "{<:2}", false},
    };

    expect_all("'gemma':true", rows, ARRAY_SIZE(rows));
}

Test(grammar_notations, a_bare_string_does_not_contain_its_end) {
    static const struct row rows[] = {
        {"{}",
         "a < b </ c\n"
         R"(")",
         true},
        {"{}", "a</v>b", false},
        {"{'type':'string','pattern':'^[^x]*$','maxLength':4}", "</v", true},
        {"{'type':'string','pattern':'^[^x]*$','maxLength':4}", "</v>", false},
        {"{'type':'string','pattern':'^[^x]*$','maxLength':4}", "ab\n\xc3\xa9", true},
        {"{'type':'string','pattern':'^[^x]*$','maxLength':4}", "abcde", false},
        {"{'enum':['a','</v>',7]}", "a", true},
        {"{'enum':['a','</v>',7]}", "7", false},
        {"{'type':['string','null']}", "null", true},
        {"{'type':'string','not':{'const':'x'}}", "x", false},
        {"{'type':'string','not':{'const':'x'}}", "xx", true},
        {"{'type':'string','maxLength':5000,'pattern':'^a'}", "ab</ v>", true},
    };

    expect_all("'stop':'</v>'", rows, ARRAY_SIZE(rows));
}

Test(grammar_notations, arguments_of_a_call_are_those_of_an_object) {
    static const struct row rows[] = {
        {"{'properties':{'a':{'type':'string'},'$b c':{'type':'object'}},'required':['$b c']}",
         R"(a="x", $b c={"k": [1]})", true},
        {"{'properties':{'a':{'type':'string'},'$b c':{'type':'object'}},'required':['$b c']}",
         R"(a="x")", false},
        {"{'properties':{'a':{'const':1}}}", "", true},
        {"{'properties':{'a':{'const':1}}}", "{}", false},
        /* one pattern for a name and, spelled as JSON, for a value */
        {"{'type':'object','patternProperties':{'^x.$':{'type':'string','allOf':[{'pattern':'^x.$'}"
         ","
         "{'pattern':'.'}]}}}",
         R"(xy="x\"")", true},
        {"{'type':'object','patternProperties':{'^x.$':{'type':'string','allOf':[{'pattern':'^x.$'}"
         ","
         "{'pattern':'.'}]}}}",
         R"(xy="x"")", false},
        {"{'anyOf':[{'required':['a']},{'required':['b']}],'properties':{'a':{},'b':{}}}", "b=1",
         true},
        {"{'anyOf':[{'required':['a']},{'required':['b']}],'properties':{'a':{},'b':{}}}", "",
         false},
        {"{'properties':{'a':{'$ref':'#'}},'additionalProperties':false}", R"(a={"a": {}})", true},
        {"{'properties':{'a':{'$ref':'#'}},'additionalProperties':false}", "a=a={}", false},
    };

    expect_all("'call':true", rows, ARRAY_SIZE(rows));
}

/* A name that could not be told from the notation around it. */
Test(grammar_notations, names_that_cannot_be_written_are_refused) {
    static const char *const names[] = {",a", "a,", "a:b", ":", "{a", "\\ta", "a ", " a", "<a", ""};
    struct grammar_vocab *v = vocab_of_bytes();

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        struct constraint *c = NULL;
        struct err err = {0};
        char node[200];

        snprintf(node, sizeof(node), R"({"json_schema":{"properties":{"%s":{}}},"gemma":true})",
                 names[i]);
        cr_expect_eq(constraint_new(&c, v, node, strlen(node), NULL, 0, NULL, &err), -EINVAL, "%s",
                     node);
        cr_expect(strstr(err.message, "this name is not supported"), "%s: %s", node, err.message);
        constraint_free(c);
    }
    grammar_vocab_free(v);
}

Test(grammar_notations, a_property_is_read_with_the_whole_schema) {
    static const struct row rows[] = {
        {"{'properties':{'a':{'$ref':'#/properties/b/items'},'b':{'items':{'const':3}}}}", "3",
         true},
        {"{'properties':{'a':{'$ref':'#/properties/b/items'},'b':{'items':{'const':3}}}}", "4",
         false},
    };

    expect_all("'property':'a'", rows, ARRAY_SIZE(rows));
}
