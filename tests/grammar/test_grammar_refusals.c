/* The texts of grammars that are refused: each says what is wrong and where. The tables have a
 * grammar for each text that no other test compares. */

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "tests/grammar/grammar_support.h"

struct refusal {
    enum grammar_kind kind;
    const char *source, *code, *text;
};

static void refuse_all(const struct refusal *table, size_t n) {
    for (size_t i = 0; i < n; i++)
        test_refused(table[i].kind, table[i].source, table[i].code, table[i].text);
}

#define INVALID "grammar_invalid"
#define UNSUPPORTED "grammar_unsupported"
#define COMPLEX "grammar_too_complex"

Test(grammar_refusals, of_texts) {
    static const struct refusal table[] = {
        {GRAMMAR_EBNF, R"(root ::= root "a" | "b")", INVALID,
         "root: it refers to itself without reading anything (left recursion)"},
        {GRAMMAR_EBNF, R"(root ::= "a" %)", INVALID,
         "line 1: expected a literal, a class, a group or the name of a rule"},
        {GRAMMAR_EBNF,
         R"(root ::= "a")"
         "\nb ::= <[2147483648]>",
         INVALID, "line 2: the vocabulary has no such token"},
        {GRAMMAR_EBNF,
         R"(root ::= "a")"
         "\nb ::= <[21474836480]>",
         INVALID, "line 2: the token number is malformed or too large"},
        {GRAMMAR_REGEX, "\\pL", INVALID,
         "\\p needs the name of a property in braces, as in \\p{L}"},
        {GRAMMAR_REGEX, R"(a\)", INVALID, "the expression ends with a backslash"},
        {GRAMMAR_CHOICE, "[]", INVALID, "choice must be a JSON array of at least one string"},
        {GRAMMAR_CHOICE, "{", INVALID, "choice must be a JSON array of at least one string"},
        {GRAMMAR_CHOICE, R"(["a",5])", INVALID, "/1: must be a string"},
        {GRAMMAR_LARK, R"(start: "\q")", INVALID, "line 1: unknown escape sequence"},
        {GRAMMAR_LARK, R"(start: "\xg1")", INVALID, "line 1: "},
        {GRAMMAR_EBNF, R"(root ::= ("a")", INVALID, "line 1: the closing ')' is missing"},
        {GRAMMAR_EBNF,
         R"(root ::= "a")"
         "\n"
         R"(root ::= "b")",
         INVALID, "line 2: this rule is defined twice"},
        {GRAMMAR_EBNF, R"(a ::= "b")", INVALID, "grammar: the rule 'root' is missing"},
        {GRAMMAR_LARK, R"(start: "a"..b)", INVALID, "line 1: a range needs a string on both sides"},
        {GRAMMAR_LARK, R"(start: "b".."a")", INVALID,
         "line 1: a range needs one character on both sides, in order"},
        {GRAMMAR_LARK, "start: /a", INVALID,
         "line 1: the closing '/' of a regular expression is missing"},
        {GRAMMAR_LARK, "start: /a/x", UNSUPPORTED,
         "line 1: the flag x of a regular expression is not supported"},
        {GRAMMAR_LARK, "start: /a/y", INVALID, "line 1: unknown flag of a regular expression"},
        {GRAMMAR_LARK, R"(start: ("a")", INVALID, "line 1: the closing ')' is missing"},
        {GRAMMAR_LARK, R"(start: ["a")", INVALID, "line 1: the closing ']' is missing"},
        {GRAMMAR_LARK, "start: A\nA: %json {}", UNSUPPORTED,
         "line 2: %json in a terminal or inside a string is not supported"},
        {GRAMMAR_LARK,
         "start: A\n"
         R"(A: "a" & "b")",
         UNSUPPORTED,
         "line 2: special tokens, %regex, %lark, & and ~ of terminals are not supported"},
        {GRAMMAR_LARK, R"(start: "a" =)", INVALID,
         "line 1: expected a string, a regular expression, a group or a name"},
        {GRAMMAR_LARK, R"(start: "a" -> b "c")", INVALID,
         "line 1: nothing may follow the name behind ->"},
        {GRAMMAR_LARK,
         R"(start: "a")"
         "\n"
         R"(5: "b")",
         INVALID, "line 2: expected a rule, a terminal or a directive"},
        {GRAMMAR_LARK, R"(start{x}: "a")", UNSUPPORTED,
         "line 1: templates and attributes of rules are not supported"},
        {GRAMMAR_LARK, R"(start: "a"))", INVALID, "line 1: a bracket has no counterpart"},
        {GRAMMAR_LARK,
         R"(start: "a")"
         "\n%import common.NOTHING",
         UNSUPPORTED, "line 2: this terminal of common is not supported"},
        {GRAMMAR_LARK,
         R"(start: "a")"
         "\n%import common.5",
         UNSUPPORTED, "line 2: such an import is not supported"},
        {GRAMMAR_LARK,
         R"(start: "a")"
         "\n%import python.NAME",
         UNSUPPORTED, "line 2: an import of anything but common is not supported"},
        {GRAMMAR_LARK,
         R"(start: "a")"
         "\n%import common INT",
         INVALID, "line 2: expected a terminal of common"},
        {GRAMMAR_LARK,
         R"(start: "a")"
         "\n%import common (INT",
         INVALID, "line 2: the closing ')' is missing"},
        {GRAMMAR_LARK,
         R"(start: "a")"
         "\n%declare B",
         UNSUPPORTED, "line 2: this directive is not supported"},
        {GRAMMAR_LARK, R"(a: "a")", INVALID, "grammar: the rule 'start' is missing"},
        {GRAMMAR_REGEX, "\\u{1100000}", INVALID, "the escape sequence is not a valid code point"},
        {GRAMMAR_REGEX, "\\ud800", INVALID, "the escape sequence is not a valid code point"},
        {GRAMMAR_REGEX, "(a", INVALID, "the closing ')' is missing"},
        {GRAMMAR_REGEX, "*a", INVALID, "the quantifier has nothing to repeat"},
    };

    refuse_all(table, ARRAY_SIZE(table));
}

Test(grammar_refusals, of_schemas) {
    static const struct refusal table[] = {
        {GRAMMAR_JSON_SCHEMA, R"({"maximum":"5"})", INVALID, "#/maximum: this must be a number"},
        {GRAMMAR_JSON_SCHEMA, R"({"$ref":"#/$defs/a"})", INVALID,
         "#/$ref: '#/$defs/a' does not exist in this schema"},
        {GRAMMAR_JSON_SCHEMA, R"({"$ref":"#a"})", INVALID,
         "#/$ref: '#a' does not exist in this schema"},
        {GRAMMAR_JSON_SCHEMA, R"({"type":)", INVALID, "the schema is not valid JSON: "},
        {GRAMMAR_JSON_SCHEMA, R"({"type":"string","maxLength":1,"minLength":2})", INVALID,
         "no text satisfies this grammar"},
        {GRAMMAR_JSON_SCHEMA, R"({"pattern":"^(?=a"})", INVALID, "the closing ')' is missing"},
        {GRAMMAR_JSON_SCHEMA, R"({"enum":[]})", INVALID,
         "#/enum: this must be an array of at least one value"},
        {GRAMMAR_JSON_SCHEMA, R"({"multipleOf":0})", INVALID,
         "#/multipleOf: this must be a number greater than 0"},
        {GRAMMAR_JSON_SCHEMA, R"({"properties":["a"]})", INVALID,
         "#/properties: this must be an object"},
        {GRAMMAR_JSON_SCHEMA, R"({"patternProperties":5})", INVALID,
         "#/patternProperties: this must be an object"},
        {GRAMMAR_JSON_SCHEMA, R"({"properties":{"a":{"patternProperties":[1]}}})", INVALID,
         "#/properties/a/patternProperties: this must be an object"},
        {GRAMMAR_JSON_SCHEMA, R"({"prefixItems":{}})", INVALID,
         "#/prefixItems: this must be an array of schemas"},
        {GRAMMAR_JSON_SCHEMA, R"({"anyOf":[]})", INVALID,
         "#/anyOf: this must be an array of at least one schema"},
        {GRAMMAR_JSON_SCHEMA, R"({"$ref":5})", INVALID, "#/$ref: a reference must be a string"},
        {GRAMMAR_JSON_SCHEMA, R"({"$ref":"#/a~2"})", INVALID,
         R"(#/$ref: the JSON pointer is malformed: "~" stands before 0 or 1, and % before two )"
         "hexadecimal digits"},
        {GRAMMAR_JSON_SCHEMA, R"({"$ref":"\u00019"})", UNSUPPORTED,
         R"(only references inside the schema ("#/...") are supported)"},
        {GRAMMAR_JSON_SCHEMA,
         R"({"allOf":[{"contains":{"const":1}},{"contains":{"const":2}},{"contains":{)"
         R"("const":3}},{"contains":{"const":4}},{"contains":{"const":5}}]})",
         UNSUPPORTED, "at most four contains are supported for one array"},
        {GRAMMAR_JSON_SCHEMA, R"({"properties":{"a":5}})", INVALID,
         "#/properties/a: a schema must be an object or a boolean"},
        {GRAMMAR_JSON_SCHEMA, R"({"not":5})", INVALID,
         "#/not: a schema must be an object or a boolean"},
        {GRAMMAR_JSON_SCHEMA, R"({"maxItems":-1})", INVALID,
         "#/maxItems: this must be a whole number of at least 0"},
        {GRAMMAR_JSON_SCHEMA, R"({"minLength":1.5})", INVALID,
         "#/minLength: this must be a whole number of at least 0"},
        {GRAMMAR_JSON_SCHEMA, R"({"minLength":1000000000})", COMPLEX,
         "a count of 10 digits is too large"},
        {GRAMMAR_JSON_SCHEMA, R"({"multipleOf":123456789})", COMPLEX,
         "a multipleOf has more than 8 digits"},
        {GRAMMAR_JSON_SCHEMA, R"({"not":{"contains":{},"minContains":2}})", UNSUPPORTED,
         "#/not: the negation of this keyword is not supported"},
        {GRAMMAR_JSON_SCHEMA,
         R"({"not":{"required":["a"]},"allOf":[{"not":{"required":["b"]}}],)"
         R"("unevaluatedProperties":false})",
         UNSUPPORTED,
         R"(#/unevaluatedProperties: false is supported together with at most one "not")"},
        {GRAMMAR_JSON_SCHEMA,
         R"({"properties":{"a":{}},"allOf":[{"unevaluatedProperties":false}]})", UNSUPPORTED,
         "#/allOf/0/unevaluatedProperties: false is supported only where no schema around it "
         "describes the same object"},
        {GRAMMAR_JSON_SCHEMA, R"({"contains":{"const":1},"minItems":65})", UNSUPPORTED,
         "#/contains: is not supported together with a large minItems or maxItems"},
        {GRAMMAR_JSON_SCHEMA, R"({"items":{"type":"string"},"uniqueItems":true,"minItems":2})",
         UNSUPPORTED,
         "#/uniqueItems: is not supported for these items together with minItems of 2 or more"},
    };

    refuse_all(table, ARRAY_SIZE(table));
}

/* Schemas that are refused for their size. */
Test(grammar_refusals, of_large_schemas) {
    static char source[80000], digits[2000];
    size_t n = (size_t)sprintf(source, R"({"prefixItems":[)");

    for (int i = 0; i < 4097; i++)
        n += (size_t)sprintf(source + n, "%s{}", i ? "," : "");
    strcpy(source + n, "]}");
    test_refused(GRAMMAR_JSON_SCHEMA, source, COMPLEX, "more than 4096 prefixItems");
    test_refused(GRAMMAR_JSON_SCHEMA, R"({"multipleOf":99999989})", COMPLEX,
                 "a multipleOf is too large");
    memset(digits, '1', sizeof(digits) - 1);
    sprintf(source, R"({"enum":[%s],"maximum":5})", digits);
    test_refused(GRAMMAR_JSON_SCHEMA, source, UNSUPPORTED,
                 "#/enum/0: numbers with this many digits are not supported");
}

/* Checks that @before, @n times @each (in which %d is the number) with commas between, and @after
 * are refused. */
static void refuse_many(const char *before, const char *each, int n, const char *after,
                        const char *code, const char *text) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

    buf_add_str(&b, before);
    for (int i = 0; i < n; i++) {
        const char *at = strstr(each, "%d");

        buf_printf(&b, "%s%.*s%d%s", i ? "," : "", (int)(at - each), each, i, at + 2);
    }
    buf_add_str(&b, after);
    test_refused(GRAMMAR_JSON_SCHEMA, b.data, code, text);
}

Test(grammar_refusals, of_schemas_with_many_parts) {
    refuse_many(R"({"allOf":[)", R"({"type":"string","pattern":"^a%d"})", 59, "]}", COMPLEX,
                "more than 58 patterns for one value");
    refuse_many(R"({"allOf":[)", R"({"type":"number","multipleOf":1%d})", 57, "]}", COMPLEX,
                "more than 56 multiples for one value");
    refuse_many(R"({"patternProperties":{)", R"("^a%d":{"type":"string"})", 60, "}}", COMPLEX,
                "more than 59 patterns for the names of one object");
    refuse_many(R"({"patternProperties":{)", R"("x%d":{"type":"string"})", 9, "}}", COMPLEX,
                "the patterns for the names of one object overlap in too many ways");
    refuse_many(R"({"allOf":[)", R"({"not":{"patternProperties":{"^a%d":{"type":"string"}}}})", 65,
                "]}", COMPLEX, "an object must satisfy too many conditions at once");
}

/* Writes @n times @open, then @inner, then @n times @close. */
static void refuse_nested(enum grammar_kind kind, const char *before, const char *open,
                          const char *inner, const char *close, const char *text) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 16};

    buf_add_str(&b, before);
    for (int i = 0; i < 65; i++)
        buf_add_str(&b, open);
    buf_add_str(&b, inner);
    for (int i = 0; i < 65; i++)
        buf_add_str(&b, close);
    test_refused(kind, b.data, COMPLEX, text);
}

Test(grammar_refusals, of_nested_groups) {
    refuse_nested(GRAMMAR_REGEX, "", "(", "a", ")",
                  "regular expression: groups are nested more than 64 deep");
    refuse_nested(GRAMMAR_EBNF, "root ::= ", "(", R"("a")", ")",
                  "grammar, line 1: groups are nested more than 64 deep");
    refuse_nested(GRAMMAR_LARK, "start: ", "(", R"("a")", ")",
                  "grammar, line 1: groups are nested more than 64 deep");
    refuse_nested(GRAMMAR_JSON_SCHEMA, "", R"({"allOf":[)", R"({"type":"string"})", "]}",
                  "the schema's references are nested more than 64 deep");
}
