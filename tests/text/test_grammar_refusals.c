/* The texts of grammars that are refused: each says what is wrong and where. The tables have a
 * grammar for each text that no other test compares. */

#include <stdio.h>
#include <string.h>
#include "tests/text/grammar_support.h"

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
        {GRAMMAR_EBNF, "root ::= root \"a\" | \"b\"", INVALID,
         "root: it refers to itself without reading anything (left recursion)"},
        {GRAMMAR_EBNF, "root ::= \"a\" %", INVALID,
         "line 1: expected a literal, a class, a group or the name of a rule"},
        {GRAMMAR_EBNF, "root ::= \"a\"\nb ::= <[2147483648]>", INVALID,
         "line 2: the vocabulary has no such token"},
        {GRAMMAR_EBNF, "root ::= \"a\"\nb ::= <[21474836480]>", INVALID,
         "line 2: the token number is malformed or too large"},
        {GRAMMAR_REGEX, "\\pL", INVALID,
         "\\p needs the name of a property in braces, as in \\p{L}"},
        {GRAMMAR_REGEX, "a\\", INVALID, "the expression ends with a backslash"},
        {GRAMMAR_CHOICE, "[]", INVALID, "choice must be a JSON array of at least one string"},
        {GRAMMAR_CHOICE, "{", INVALID, "choice must be a JSON array of at least one string"},
        {GRAMMAR_CHOICE, "[\"a\",5]", INVALID, "/1: must be a string"},
        {GRAMMAR_LARK, "start: \"\\q\"", INVALID, "line 1: unknown escape sequence"},
        {GRAMMAR_LARK, "start: \"\\xg1\"", INVALID, "line 1: "},
    };

    refuse_all(table, ARRAY_SIZE(table));
}

Test(grammar_refusals, of_schemas) {
    static const struct refusal table[] = {
        {GRAMMAR_JSON_SCHEMA, "{\"maximum\":\"5\"}", INVALID, "#/maximum: this must be a number"},
        {GRAMMAR_JSON_SCHEMA, "{\"enum\":[]}", INVALID,
         "#/enum: this must be an array of at least one value"},
        {GRAMMAR_JSON_SCHEMA, "{\"multipleOf\":0}", INVALID,
         "#/multipleOf: this must be a number greater than 0"},
        {GRAMMAR_JSON_SCHEMA, "{\"properties\":[]}", INVALID,
         "#/properties: this must be an object"},
        {GRAMMAR_JSON_SCHEMA, "{\"patternProperties\":5}", INVALID,
         "#/patternProperties: this must be an object"},
        {GRAMMAR_JSON_SCHEMA, "{\"properties\":{\"a\":{\"patternProperties\":[]}}}", INVALID,
         "#/properties/a/patternProperties: this must be an object"},
        {GRAMMAR_JSON_SCHEMA, "{\"prefixItems\":{}}", INVALID,
         "#/prefixItems: this must be an array of schemas"},
        {GRAMMAR_JSON_SCHEMA, "{\"anyOf\":[]}", INVALID,
         "#/anyOf: this must be an array of at least one schema"},
        {GRAMMAR_JSON_SCHEMA, "{\"$ref\":5}", INVALID, "#/$ref: a reference must be a string"},
        {GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/a~2\"}", INVALID,
         "#/$ref: the JSON pointer is malformed: \"~\" stands before 0 or 1, and % before two "
         "hexadecimal digits"},
        {GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"\\u00019\"}", UNSUPPORTED,
         "only references inside the schema (\"#/...\") are supported"},
        {GRAMMAR_JSON_SCHEMA,
         "{\"allOf\":[{\"contains\":{\"const\":1}},{\"contains\":{\"const\":2}},{\"contains\":{"
         "\"const\":3}},{\"contains\":{\"const\":4}},{\"contains\":{\"const\":5}}]}",
         UNSUPPORTED, "at most four contains are supported for one array"},
    };

    refuse_all(table, ARRAY_SIZE(table));
}

/* Schemas that are refused for their size. */
Test(grammar_refusals, of_large_schemas) {
    static char source[80000], digits[2000];
    size_t n = (size_t)sprintf(source, "{\"prefixItems\":[");

    for (int i = 0; i < 4097; i++)
        n += (size_t)sprintf(source + n, "%s{}", i ? "," : "");
    strcpy(source + n, "]}");
    test_refused(GRAMMAR_JSON_SCHEMA, source, COMPLEX, "more than 4096 prefixItems");
    test_refused(GRAMMAR_JSON_SCHEMA, "{\"multipleOf\":99999989}", COMPLEX,
                 "a multipleOf is too large");
    memset(digits, '1', sizeof(digits) - 1);
    sprintf(source, "{\"enum\":[%s],\"maximum\":5}", digits);
    test_refused(GRAMMAR_JSON_SCHEMA, source, UNSUPPORTED,
                 "#/enum/0: numbers with this many digits are not supported");
}
