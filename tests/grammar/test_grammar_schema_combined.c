/* JSON Schema: keywords that hold other schemas against a value: all, any, one, none, some. */

#include <stdio.h>
#include <string.h>

#include "tests/grammar/grammar_support.h"
#include "tests/support/quotes.h"

#define SCHEMA(source, yes, no) test_lists(GRAMMAR_JSON_SCHEMA, source, yes, no)
#define REFUSED(source, code, part) test_refused(GRAMMAR_JSON_SCHEMA, source, "grammar_" code, part)

Test(grammar_schema_combined, any_of_and_one_of) {
    SCHEMA(J("{'anyOf': [{'type': 'string'}, {'type': 'integer'}, {'type': 'null'}]}"),
           YES(J("'a'"), "1", "null"), YES("true"));
    SCHEMA(J("{'type': 'object', 'properties': {'a': {'type': 'integer'}, 'b': {'type': "
             "'integer'}}, 'anyOf': [{'required': ['a']}, {'required': ['b']}]}"),
           YES(J("{'a':1}"), J("{'b':1}"), J("{'a':1,'b':2}")), YES("{}"));
    SCHEMA(J("{'oneOf': [{'type': 'string'}, {'type': 'integer'}]}"), YES(J("'a'"), "1"),
           YES("1.5"));
    SCHEMA(J("{'oneOf': [{'properties': {'kind': {'const': 'a'}, 'x': {'type': 'integer'}}, "
             "'required': ['kind', 'x']}, {'properties': {'kind': {'const': 'b'}, 'y': {'type': "
             "'string'}}, 'required': ['kind']}]}"),
           YES(J("{'kind': 'a', 'x': 1}"), J("{'kind': 'b'}"), J("{'kind': 'b', 'y': ''}")),
           YES(J("{'kind': 'a'}"), J("{'kind': 'a', 'y': ''}"), "{}"));
    SCHEMA(J("{'oneOf': [{'type': 'integer', 'maximum': 3}, {'type': 'number', 'exclusiveMinimum': "
             "3}]}"),
           YES("3", "3.5"), YES("2.5"));
    SCHEMA(J("{'oneOf': [{'maxLength': 2, 'type': 'string'}, {'minLength': 4, 'type': 'string'}]}"),
           YES(J("'ab'"), J("'abcd'")), YES(J("'abc'")));
    SCHEMA(J("{'oneOf': [{'type': 'number'}, {'type': 'integer'}]}"), YES("1.5", "-0.25"),
           YES("1", "1.0", "0"));
    SCHEMA(J("{'properties': {'p': {'oneOf': [{'type': 'object'}, {'required': ['a']}]}}}"),
           YES(J("{'p': {}}"), J("{'p': {'b': 1}}")), YES(J("{'p': {'a': 1}}")));
    REFUSED("{\"anyOf\": []}", "invalid", "#/anyOf");
}

Test(grammar_schema_combined, all_of_is_merged) {
    SCHEMA(J("{'allOf': [{'properties': {'a': {'type': 'integer'}}, 'required': ['a']}, "
             "{'properties': {'b': {'type': 'string'}, 'a': {'minimum': 5}}}]}"),
           YES(J("{'a': 5}"), J("{'a': 7, 'b': ''}")), YES(J("{'a': 4}"), J("{'b': ''}")));
    SCHEMA(J("{'allOf': [{'type': ['string', 'integer']}, {'type': ['integer', 'null']}]}"),
           YES("1"), YES("null", J("''")));
    SCHEMA(J("{'allOf': [{'minLength': 2}, {'maxLength': 3}], 'type': 'string'}"),
           YES(J("'ab'"), J("'abc'")), YES(J("'a'"), J("'abcd'")));
    SCHEMA(J("{'allOf': [{'anyOf': [{'type': 'integer'}, {'type': 'string'}]}, {'anyOf': [{'type': "
             "'string'}, {'type': 'null'}]}]}"),
           YES(J("'x'")), YES("1", "null"));
    /* additionalProperties sees only the properties beside it. */
    SCHEMA(J("{'allOf': [{'properties': {'a': {}}, 'additionalProperties': false}, {'properties': "
             "{'b': {}}}]}"),
           YES("{}", J("{'a': 1}")), YES(J("{'b': 1}")));
    REFUSED("{\"allOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}", "invalid",
            "no text satisfies");
}

Test(grammar_schema_combined, not ) {
    /* An annotation whose name begins like a keyword. */
    SCHEMA(J("{'type': 'object', 'not': {'required': ['a'], 'dependsOn': {'a': ['b']}}}"),
           YES("{}", J("{'b':1}")), YES(J("{'a':1}")));
    SCHEMA(J("{'not': {'type': ['string', 'number']}}"), YES("null", "[1]", "{}"),
           YES("1", J("''")));
    SCHEMA(J("{'type': 'object', 'not': {'required': ['a', 'b']}}"),
           YES("{}", J("{'a':1}"), J("{'b':1}"), J("{'c':1}")), YES(J("{'a':1,'b':1}")));
    SCHEMA(J("{'type': 'string', 'not': {'enum': ['a', 'b\\n']}}"), YES(J("'ab'"), J("''")),
           YES(J("'a'"), J("'b\\n'")));
    SCHEMA(J("{'not': {'enum': [1, true, null, 'x']}}"), YES("1.5", "2", "false", J("'y'"), "[]"),
           YES("1", "1.0", "true", "null", J("'x'")));
    SCHEMA(J("{'type': 'object', 'properties': {'a': {'not': {}}, 'b': {}}}"),
           YES("{}", J("{'b':1}")), YES(J("{'a':1}")));
    SCHEMA(J("{'type': 'array', 'not': {'items': {'type': 'integer'}}}"),
           YES(J("[1,'']"), "[null]"), YES("[]", "[1,2]"));
    SCHEMA(J("{'type': 'object', 'not': {'properties': {'a': {'type': 'null'}}}}"),
           YES(J("{'a':1}"), J("{'a':[],'b':1}")), YES("{}", J("{'a':null}"), J("{'b':1}")));
    SCHEMA(J("{'type': 'object', 'properties': {'a': {}}, 'not': {'properties': {'a': {}}, "
             "'additionalProperties': false}}"),
           YES(J("{'b':1}"), J("{'a':1,'b':2}")), YES("{}", J("{'a':1}")));
    SCHEMA(J("{'type': 'integer', 'not': {'minimum': 3}}"), YES("2", "-5"), YES("3", "10"));
    SCHEMA(J("{'type': 'integer', 'not': {'not': {'not': {'const': 4}}}}"), YES("5"), YES("4"));
    SCHEMA(J("{'not': {'oneOf': [{'type': 'string'}, {'type': 'boolean'}]}}"), YES("1", "null"),
           YES(J("'a'"), "true"));
    SCHEMA(J("{'not': {'oneOf': [{'type': 'integer'}, {'minimum': 3}]}}"), YES("5", "2.5"),
           YES("1", "3.5", J("''")));
    SCHEMA(J("{'type': 'object', 'properties': {'a': {}, 'b': {}}, 'not': {'dependencies': {'a': "
             "'b'}}}"),
           YES(J("{'a':1}")), YES("{}", J("{'b':1}"), J("{'a':1,'b':1}")));
    SCHEMA(J("{'not': {'allOf': [{'type': 'integer'}, {'minimum': 3}]}}"), YES("1", "3.5", J("''")),
           YES("5"));
    SCHEMA(
        J("{'type': 'array', 'not': {'items': [{'type': 'integer'}], 'additionalItems': false}}"),
        YES(J("['a']")), YES("[]", "[1]"));
    REFUSED("{\"not\": {}}", "invalid", "no text satisfies");
}

Test(grammar_schema_combined, if_then_else) {
    const char *S = J("{'type': 'object', 'properties': {'k': {'enum': ['a', 'b']}, 'v': {}}, "
                      "'required': ['k'], 'if': {'properties': {'k': {'const': 'a'}}}, 'then': "
                      "{'properties': {'v': {'type': 'integer'}}}, 'else': {'required': ['v']}}");

    SCHEMA(S, YES(J("{'k':'a'}"), J("{'k':'a','v':1}"), J("{'k':'b','v':''}")),
           YES(J("{'k':'a','v':''}"), J("{'k':'b'}"), "{}"));
    SCHEMA(J("{'type': 'integer', 'if': {'minimum': 5}}"), YES("1", "9"), YES(J("''")));
}

Test(grammar_schema_combined, dependencies) {
    static const char S[] = "{\"type\": \"object\", \"properties\": {\"a\": {}, \"b\": {}, \"c\": "
                            "{\"type\": \"integer\"}}, \"%s\": {\"a\": %s}}";
    static const char NOT[] =
        "{\"type\": \"object\", \"properties\": {\"a\": {}, \"b\": {}, \"c\": "
        "{}}, \"not\": {\"%s\": {\"a\": %s}}}";
    static const char *const WORDS[] = {"dependencies", "dependentRequired", "dependencies",
                                        "dependentSchemas"};
    char source[300];

    for (size_t i = 0; i < ARRAY_SIZE(WORDS); i++) {
        snprintf(source, sizeof(source), S, WORDS[i],
                 i < 2 ? J("['b']") : J("{'required': ['b']}"));
        SCHEMA(source, YES("{}", J("{'b':1}"), J("{'a':1,'b':1}"), J("{'c':1}")),
               YES(J("{'a':1}"), J("{'a':1,'c':1}")));
        snprintf(source, sizeof(source), NOT, WORDS[i],
                 i < 2 ? J("['b', 'c']") : J("{'required': ['b', 'c']}"));
        SCHEMA(source, YES(J("{'a':1}"), J("{'a':1,'b':1}"), J("{'a':1,'c':1}")),
               YES("{}", J("{'b':1}"), J("{'b':1,'c':1}"), J("{'a':1,'b':1,'c':1}")));
    }
}

Test(grammar_schema_combined, one_of_that_overlaps) {
    SCHEMA(J("{'type': 'object', 'properties': {'a': {}, 'b': {}}, 'oneOf': [{'required': ['a']}, "
             "{'required': ['b']}]}"),
           YES(J("{'a':1}"), J("{'b':1}"), J("{'b':1,'c':1}")), YES("{}", J("{'a':1,'b':1}")));
    SCHEMA(J("{'oneOf': [{'type': 'integer', 'minimum': 3}, {'type': 'integer', 'maximum': 5}]}"),
           YES("2", "6", "-1"), YES("3", "4", "5"));
    SCHEMA(J("{'oneOf': [{'type': 'string', 'pattern': 'a'}, {'type': 'string', 'pattern': 'b'}, "
             "{'type': 'string', 'maxLength': 2}]}"),
           YES(J("'xxa'"), J("'c'"), J("'bbb'")), YES(J("'aab'"), J("'a'"), J("'xxx'"), J("'ab'")));
    /* the digits of a string are no number */
    SCHEMA(J("{'oneOf': [{'const': '3'}, {'type': ['string', 'integer'], 'minimum': 5}]}"),
           YES("5", J("'4'"), J("''")), YES("3", J("'3'")));
}

Test(grammar_schema_combined, contains) {
    SCHEMA(J("{'type': 'array', 'contains': {'const': 1}, 'maxItems': 3}"),
           YES("[1]", "[2,1]", "[1,1,1]", "[2,2,1]"), YES("[]", "[2]", "[2,2,2]", "[1,2,2,2]"));
    SCHEMA(J("{'items': {'type': 'integer'}, 'contains': {'minimum': 5}, 'minItems': 2}"),
           YES("[5,1]", "[1,9]", "[1,2,3,7]"), YES("[5]", "[1,2]", J("[5,'']")));
}

Test(grammar_schema_combined, contains_several_times) {
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile(GRAMMAR_JSON_SCHEMA,
                     J("{'items': {'type': 'integer'}, 'contains': {'enum': [1, 5]}, 'allOf': "
                       "[{'contains': {'enum': [5, 7]}}, {'contains': {'minimum': 7}}]}"));

    /* Tries every array of up to five of the numbers 1, 5, 7 and 9. */
    for (uint32_t len = 0; len <= 5; len++) {
        for (uint32_t k = 0; k < 1u << 2 * len; k++) {
            bool low = false, middle = false, high = false;
            char text[32] = "[";

            for (uint32_t i = 0; i < len; i++) {
                char c = "1579"[k >> 2 * i & 3];

                low |= c == '1' || c == '5';
                middle |= c == '5' || c == '7';
                high |= c >= '7';
                snprintf(text + 1 + 2 * i, 8, "%c%s", c, i + 1 < len ? "," : "");
            }
            strcat(text, "]");
            cr_expect_eq(test_fits(g, text, strlen(text)), low && middle && high, "%s", text);
        }
    }
    REFUSED("{\"contains\": {\"const\": 1}, \"allOf\": [{\"contains\": {\"const\": 2}}], "
            "\"maxItems\": 3}",
            "unsupported", "#/allOf/0/contains: two contains are not supported together");
    REFUSED("{\"contains\": {\"const\": 1}, \"prefixItems\": [{}]}", "unsupported",
            "#/contains: is not supported together with schemas by position");
}

/* Values that equal no listed object or array differ from each of them in some part. */
Test(grammar_schema_combined, contraries_of_constants) {
    SCHEMA(J("{'type': 'object', 'not': {'enum': [{'a': 1}, {}, 7]}}"),
           YES(J("{'a': 2}"), J("{'b': 1}"), J("{'b': 1, 'a': 1}")), YES("{}", J("{'a': 1}")));
    SCHEMA(J("{'type': ['array', 'string'], 'not': {'const': [1, [2]]}}"),
           YES("[]", "[1]", "[1,2]", "[1,[]]", "[1,[2],3]", "[2,[2]]", J("'x'")), YES("[1,[2]]"));
    SCHEMA(J("{'allOf': [{'enum': [{'a': 0}, {'a': false}]}, {'not': {'enum': [{'a': false}]}}]}"),
           YES(J("{'a': 0}")), YES(J("{'a': false}")));
}

Test(grammar_schema_combined, lengths_beside_look_ahead) {
    SCHEMA(J("{'type': 'string', 'pattern': '^(?=.*b).{1,2}$', 'maxLength': 1}"), YES(J("'b'")),
           YES(J("'ab'"), J("'a'"), J("''")));
}

/* One member is enough for two contraries that ask for the same. */
Test(grammar_schema_combined, contraries_that_are_equal) {
    SCHEMA(J("{'type': 'object', 'maxProperties': 1, 'allOf': [{'not': {'propertyNames': {'not': "
             "{'const': 'a'}}}}, {'not': {'propertyNames': {'not': {'const': 'a'}}}}]}"),
           YES(J("{'a': 1}")), YES("{}", J("{'b': 1}"), J("{'a': 1, 'b': 1}")));
}

/* Texts that a negated format admits: formats here are narrower than their standards. */
Test(grammar_schema_combined, contraries_of_formats) {
    SCHEMA(J("{'type': 'string', 'not': {'format': 'ipv4'}}"), YES(J("'a.b'"), J("'1.2 '")),
           YES(J("'1.2.3.4'"), J("'0.0.0.0'"), J("''")));
    SCHEMA(J("{'type': 'string', 'oneOf': [{'format': 'hostname'}, {'format': 'ipv4'}, {'format': "
             "'ipv6'}]}"),
           YES(J("'a.example'"), J("'::1'")), YES(J("'a b'"), J("'1.2.3.4'")));
    SCHEMA(J("{'type': 'string', 'oneOf': [{'format': 'uri'}, {'enum': ['.']}]}"),
           YES(J("'.'"), J("'http://a.example/'")), YES(J("'..'"), J("''")));
    SCHEMA(J("{'oneOf': [{'format': 'uuid'}, {'pattern': '^[$][A-Z]+$'}]}"),
           YES(J("'$AB'"), J("'00000000-0000-0000-0000-000000000000'")), YES(J("'AB'")));
    SCHEMA(J("{'type': 'string', 'format': 'regex'}"), YES(J("''"), J("'a+'")), YES(J("'('")));
}
