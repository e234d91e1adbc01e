/* JSON Schema: keywords that hold other schemas against a value: all, any, one, none, some. */

#include <stdio.h>
#include <string.h>
#include "tests/text/grammar_support.h"

#define SCHEMA(source, yes, no) test_lists(GRAMMAR_JSON_SCHEMA, source, yes, no)
#define REFUSED(source, code, part) test_refused(GRAMMAR_JSON_SCHEMA, source, "grammar_" code, part)

Test(grammar_schema_combined, any_of_and_one_of) {
    SCHEMA("{\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"integer\"}, {\"type\": \"null\"}]}",
           YES("\"a\"", "1", "null"), YES("true"));
    SCHEMA(
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": "
        "\"integer\"}}, \"anyOf\": [{\"required\": [\"a\"]}, {\"required\": [\"b\"]}]}",
        YES("{\"a\":1}", "{\"b\":1}", "{\"a\":1,\"b\":2}"), YES("{}"));
    SCHEMA("{\"oneOf\": [{\"type\": \"string\"}, {\"type\": \"integer\"}]}", YES("\"a\"", "1"),
           YES("1.5"));
    SCHEMA(
        "{\"oneOf\": [{\"properties\": {\"kind\": {\"const\": \"a\"}, \"x\": {\"type\": "
        "\"integer\"}}, \"required\": [\"kind\", \"x\"]}, "
        "{\"properties\": {\"kind\": {\"const\": \"b\"}, \"y\": {\"type\": \"string\"}}, "
        "\"required\": [\"kind\"]}]}",
        YES("{\"kind\": \"a\", \"x\": 1}", "{\"kind\": \"b\"}", "{\"kind\": \"b\", \"y\": \"\"}"),
        YES("{\"kind\": \"a\"}", "{\"kind\": \"a\", \"y\": \"\"}", "{}"));
    SCHEMA("{\"oneOf\": [{\"type\": \"integer\", \"maximum\": 3}, {\"type\": \"number\", "
           "\"exclusiveMinimum\": 3}]}",
           YES("3", "3.5"), YES("2.5"));
    SCHEMA("{\"oneOf\": [{\"maxLength\": 2, \"type\": \"string\"}, {\"minLength\": 4, \"type\": "
           "\"string\"}]}",
           YES("\"ab\"", "\"abcd\""), YES("\"abc\""));
    SCHEMA("{\"oneOf\": [{\"type\": \"number\"}, {\"type\": \"integer\"}]}", YES("1.5", "-0.25"),
           YES("1", "1.0", "0"));
    SCHEMA(
        "{\"properties\": {\"p\": {\"oneOf\": [{\"type\": \"object\"}, {\"required\": [\"a\"]}]}}}",
        YES("{\"p\": {}}", "{\"p\": {\"b\": 1}}"), YES("{\"p\": {\"a\": 1}}"));
    REFUSED("{\"anyOf\": []}", "invalid", "#/anyOf");
}

Test(grammar_schema_combined, all_of_is_merged) {
    SCHEMA("{\"allOf\": [{\"properties\": {\"a\": {\"type\": \"integer\"}}, \"required\": "
           "[\"a\"]}, {\"properties\": {\"b\": {\"type\": \"string\"}, \"a\": {\"minimum\": 5}}}]}",
           YES("{\"a\": 5}", "{\"a\": 7, \"b\": \"\"}"), YES("{\"a\": 4}", "{\"b\": \"\"}"));
    SCHEMA(
        "{\"allOf\": [{\"type\": [\"string\", \"integer\"]}, {\"type\": [\"integer\", \"null\"]}]}",
        YES("1"), YES("null", "\"\""));
    SCHEMA("{\"allOf\": [{\"minLength\": 2}, {\"maxLength\": 3}], \"type\": \"string\"}",
           YES("\"ab\"", "\"abc\""), YES("\"a\"", "\"abcd\""));
    SCHEMA("{\"allOf\": [{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"string\"}]}, "
           "{\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}]}",
           YES("\"x\""), YES("1", "null"));
    /* additionalProperties sees only the properties beside it. */
    SCHEMA("{\"allOf\": [{\"properties\": {\"a\": {}}, \"additionalProperties\": false}, "
           "{\"properties\": {\"b\": {}}}]}",
           YES("{}", "{\"a\": 1}"), YES("{\"b\": 1}"));
    REFUSED("{\"allOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}", "invalid",
            "no text satisfies");
}

Test(grammar_schema_combined, not ) {
    /* An annotation whose name begins like a keyword. */
    SCHEMA("{\"type\": \"object\", \"not\": {\"required\": [\"a\"], \"dependsOn\": {\"a\": "
           "[\"b\"]}}}",
           YES("{}", "{\"b\":1}"), YES("{\"a\":1}"));
    SCHEMA("{\"not\": {\"type\": [\"string\", \"number\"]}}", YES("null", "[1]", "{}"),
           YES("1", "\"\""));
    SCHEMA("{\"type\": \"object\", \"not\": {\"required\": [\"a\", \"b\"]}}",
           YES("{}", "{\"a\":1}", "{\"b\":1}", "{\"c\":1}"), YES("{\"a\":1,\"b\":1}"));
    SCHEMA("{\"type\": \"string\", \"not\": {\"enum\": [\"a\", \"b\\n\"]}}", YES("\"ab\"", "\"\""),
           YES("\"a\"", "\"b\\n\""));
    SCHEMA("{\"not\": {\"enum\": [1, true, null, \"x\"]}}", YES("1.5", "2", "false", "\"y\"", "[]"),
           YES("1", "1.0", "true", "null", "\"x\""));
    SCHEMA("{\"type\": \"object\", \"properties\": {\"a\": {\"not\": {}}, \"b\": {}}}",
           YES("{}", "{\"b\":1}"), YES("{\"a\":1}"));
    SCHEMA("{\"type\": \"array\", \"not\": {\"items\": {\"type\": \"integer\"}}}",
           YES("[1,\"\"]", "[null]"), YES("[]", "[1,2]"));
    SCHEMA("{\"type\": \"object\", \"not\": {\"properties\": {\"a\": {\"type\": \"null\"}}}}",
           YES("{\"a\":1}", "{\"a\":[],\"b\":1}"), YES("{}", "{\"a\":null}", "{\"b\":1}"));
    SCHEMA("{\"type\": \"object\", \"properties\": {\"a\": {}}, \"not\": {\"properties\": {\"a\": "
           "{}}, "
           "\"additionalProperties\": false}}",
           YES("{\"b\":1}", "{\"a\":1,\"b\":2}"), YES("{}", "{\"a\":1}"));
    SCHEMA("{\"type\": \"integer\", \"not\": {\"minimum\": 3}}", YES("2", "-5"), YES("3", "10"));
    SCHEMA("{\"type\": \"integer\", \"not\": {\"not\": {\"not\": {\"const\": 4}}}}", YES("5"),
           YES("4"));
    SCHEMA("{\"not\": {\"oneOf\": [{\"type\": \"string\"}, {\"type\": \"boolean\"}]}}",
           YES("1", "null"), YES("\"a\"", "true"));
    SCHEMA("{\"not\": {\"oneOf\": [{\"type\": \"integer\"}, {\"minimum\": 3}]}}", YES("5", "2.5"),
           YES("1", "3.5", "\"\""));
    SCHEMA("{\"type\": \"object\", \"properties\": {\"a\": {}, \"b\": {}}, "
           "\"not\": {\"dependencies\": {\"a\": \"b\"}}}",
           YES("{\"a\":1}"), YES("{}", "{\"b\":1}", "{\"a\":1,\"b\":1}"));
    SCHEMA("{\"not\": {\"allOf\": [{\"type\": \"integer\"}, {\"minimum\": 3}]}}",
           YES("1", "3.5", "\"\""), YES("5"));
    SCHEMA("{\"type\": \"array\", \"not\": {\"items\": [{\"type\": \"integer\"}], "
           "\"additionalItems\": false}}",
           YES("[\"a\"]"), YES("[]", "[1]"));
    REFUSED("{\"not\": {}}", "invalid", "no text satisfies");
}

Test(grammar_schema_combined, if_then_else) {
    static const char S[] =
        "{\"type\": \"object\", \"properties\": {\"k\": {\"enum\": [\"a\", \"b\"]}, \"v\": {}}, "
        "\"required\": [\"k\"], \"if\": {\"properties\": {\"k\": {\"const\": \"a\"}}}, \"then\": "
        "{\"properties\": {\"v\": {\"type\": \"integer\"}}}, \"else\": {\"required\": [\"v\"]}}";

    SCHEMA(S, YES("{\"k\":\"a\"}", "{\"k\":\"a\",\"v\":1}", "{\"k\":\"b\",\"v\":\"\"}"),
           YES("{\"k\":\"a\",\"v\":\"\"}", "{\"k\":\"b\"}", "{}"));
    SCHEMA("{\"type\": \"integer\", \"if\": {\"minimum\": 5}}", YES("1", "9"), YES("\"\""));
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
                 i < 2 ? "[\"b\"]" : "{\"required\": [\"b\"]}");
        SCHEMA(source, YES("{}", "{\"b\":1}", "{\"a\":1,\"b\":1}", "{\"c\":1}"),
               YES("{\"a\":1}", "{\"a\":1,\"c\":1}"));
        snprintf(source, sizeof(source), NOT, WORDS[i],
                 i < 2 ? "[\"b\", \"c\"]" : "{\"required\": [\"b\", \"c\"]}");
        SCHEMA(source, YES("{\"a\":1}", "{\"a\":1,\"b\":1}", "{\"a\":1,\"c\":1}"),
               YES("{}", "{\"b\":1}", "{\"b\":1,\"c\":1}", "{\"a\":1,\"b\":1,\"c\":1}"));
    }
}

Test(grammar_schema_combined, one_of_that_overlaps) {
    SCHEMA(
        "{\"type\": \"object\", \"properties\": {\"a\": {}, \"b\": {}}, \"oneOf\": [{\"required\": "
        "[\"a\"]}, {\"required\": [\"b\"]}]}",
        YES("{\"a\":1}", "{\"b\":1}", "{\"b\":1,\"c\":1}"), YES("{}", "{\"a\":1,\"b\":1}"));
    SCHEMA("{\"oneOf\": [{\"type\": \"integer\", \"minimum\": 3}, {\"type\": \"integer\", "
           "\"maximum\": 5}]}",
           YES("2", "6", "-1"), YES("3", "4", "5"));
    SCHEMA("{\"oneOf\": [{\"type\": \"string\", \"pattern\": \"a\"}, {\"type\": \"string\", "
           "\"pattern\": \"b\"}, {\"type\": \"string\", \"maxLength\": 2}]}",
           YES("\"xxa\"", "\"c\"", "\"bbb\""), YES("\"aab\"", "\"a\"", "\"xxx\"", "\"ab\""));
}

Test(grammar_schema_combined, contains) {
    SCHEMA("{\"type\": \"array\", \"contains\": {\"const\": 1}, \"maxItems\": 3}",
           YES("[1]", "[2,1]", "[1,1,1]", "[2,2,1]"), YES("[]", "[2]", "[2,2,2]", "[1,2,2,2]"));
    SCHEMA("{\"items\": {\"type\": \"integer\"}, \"contains\": {\"minimum\": 5}, \"minItems\": 2}",
           YES("[5,1]", "[1,9]", "[1,2,3,7]"), YES("[5]", "[1,2]", "[5,\"\"]"));
}

Test(grammar_schema_combined, contains_several_times) {
    CLEANUP(grammar_freep)
    struct grammar *g = test_compile(
        GRAMMAR_JSON_SCHEMA,
        "{\"items\": {\"type\": \"integer\"}, \"contains\": {\"enum\": [1, 5]}, \"allOf\": "
        "[{\"contains\": {\"enum\": [5, 7]}}, {\"contains\": {\"minimum\": 7}}]}");

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
    SCHEMA("{\"type\": \"object\", \"not\": {\"enum\": [{\"a\": 1}, {}, 7]}}",
           YES("{\"a\": 2}", "{\"b\": 1}", "{\"b\": 1, \"a\": 1}"), YES("{}", "{\"a\": 1}"));
    SCHEMA("{\"type\": [\"array\", \"string\"], \"not\": {\"const\": [1, [2]]}}",
           YES("[]", "[1]", "[1,2]", "[1,[]]", "[1,[2],3]", "[2,[2]]", "\"x\""), YES("[1,[2]]"));
    SCHEMA("{\"allOf\": [{\"enum\": [{\"a\": 0}, {\"a\": false}]}, {\"not\": {\"enum\": [{\"a\": "
           "false}]}}]}",
           YES("{\"a\": 0}"), YES("{\"a\": false}"));
}

Test(grammar_schema_combined, lengths_beside_look_ahead) {
    SCHEMA("{\"type\": \"string\", \"pattern\": \"^(?=.*b).{1,2}$\", \"maxLength\": 1}",
           YES("\"b\""), YES("\"ab\"", "\"a\"", "\"\""));
}

/* One member is enough for two contraries that ask for the same. */
Test(grammar_schema_combined, contraries_that_are_equal) {
    SCHEMA("{\"type\": \"object\", \"maxProperties\": 1, \"allOf\": [{\"not\": {\"propertyNames\": "
           "{\"not\": {\"const\": \"a\"}}}}, {\"not\": {\"propertyNames\": {\"not\": {\"const\": "
           "\"a\"}}}}]}",
           YES("{\"a\": 1}"), YES("{}", "{\"b\": 1}", "{\"a\": 1, \"b\": 1}"));
}

/* Texts that a negated format admits: formats here are narrower than their standards. */
Test(grammar_schema_combined, contraries_of_formats) {
    SCHEMA("{\"type\": \"string\", \"not\": {\"format\": \"ipv4\"}}", YES("\"a.b\"", "\"1.2 \""),
           YES("\"1.2.3.4\"", "\"0.0.0.0\"", "\"\""));
    SCHEMA("{\"type\": \"string\", \"oneOf\": [{\"format\": \"hostname\"}, {\"format\": \"ipv4\"}, "
           "{\"format\": \"ipv6\"}]}",
           YES("\"a.example\"", "\"::1\""), YES("\"a b\"", "\"1.2.3.4\""));
    SCHEMA("{\"type\": \"string\", \"oneOf\": [{\"format\": \"uri\"}, {\"enum\": [\".\"]}]}",
           YES("\".\"", "\"http://a.example/\""), YES("\"..\"", "\"\""));
    SCHEMA("{\"oneOf\": [{\"format\": \"uuid\"}, {\"pattern\": \"^[$][A-Z]+$\"}]}",
           YES("\"$AB\"", "\"00000000-0000-0000-0000-000000000000\""), YES("\"AB\""));
    SCHEMA("{\"type\": \"string\", \"format\": \"regex\"}", YES("\"\"", "\"a+\""), YES("\"(\""));
}
