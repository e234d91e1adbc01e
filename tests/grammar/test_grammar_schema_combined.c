/* JSON Schema: keywords that hold other schemas against a value: all, any, one, none, some. */

#include <stdio.h>
#include <string.h>

#include "tests/grammar/grammar_support.h"

#define SCHEMA(source, yes, no) test_lists(GRAMMAR_JSON_SCHEMA, source, yes, no)
#define REFUSED(source, code, part) test_refused(GRAMMAR_JSON_SCHEMA, source, "grammar_" code, part)

Test(grammar_schema_combined, any_of_and_one_of) {
    SCHEMA(R"({"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]})",
           YES(R"("a")", "1", "null"), YES("true"));
    SCHEMA(R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": )"
           R"("integer"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
           YES(R"({"a":1})", R"({"b":1})", R"({"a":1,"b":2})"), YES("{}"));
    SCHEMA(R"({"oneOf": [{"type": "string"}, {"type": "integer"}]})", YES(R"("a")", "1"),
           YES("1.5"));
    SCHEMA(R"({"oneOf": [{"properties": {"kind": {"const": "a"}, "x": {"type": "integer"}}, )"
           R"("required": ["kind", "x"]}, {"properties": {"kind": {"const": "b"}, "y": {"type": )"
           R"("string"}}, "required": ["kind"]}]})",
           YES(R"({"kind": "a", "x": 1})", R"({"kind": "b"})", R"({"kind": "b", "y": ""})"),
           YES(R"({"kind": "a"})", R"({"kind": "a", "y": ""})", "{}"));
    SCHEMA(R"({"oneOf": [{"type": "integer", "maximum": 3},)"
           R"( {"type": "number", "exclusiveMinimum": )"
           "3}]}",
           YES("3", "3.5"), YES("2.5"));
    SCHEMA(R"({"oneOf": [{"maxLength": 2, "type": "string"}, {"minLength": 4, "type": "string"}]})",
           YES(R"("ab")", R"("abcd")"), YES(R"("abc")"));
    SCHEMA(R"({"oneOf": [{"type": "number"}, {"type": "integer"}]})", YES("1.5", "-0.25"),
           YES("1", "1.0", "0"));
    SCHEMA(R"({"properties": {"p": {"oneOf": [{"type": "object"}, {"required": ["a"]}]}}})",
           YES(R"({"p": {}})", R"({"p": {"b": 1}})"), YES(R"({"p": {"a": 1}})"));
    REFUSED(R"({"anyOf": []})", "invalid", "#/anyOf");
}

Test(grammar_schema_combined, all_of_is_merged) {
    SCHEMA(R"({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]}, )"
           R"({"properties": {"b": {"type": "string"}, "a": {"minimum": 5}}}]})",
           YES(R"({"a": 5})", R"({"a": 7, "b": ""})"), YES(R"({"a": 4})", R"({"b": ""})"));
    SCHEMA(R"({"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]})",
           YES("1"), YES("null", R"("")"));
    SCHEMA(R"({"allOf": [{"minLength": 2}, {"maxLength": 3}], "type": "string"})",
           YES(R"("ab")", R"("abc")"), YES(R"("a")", R"("abcd")"));
    SCHEMA(R"({"allOf": [{"anyOf": [{"type": "integer"},)"
           R"( {"type": "string"}]}, {"anyOf": [{"type": )"
           R"("string"}, {"type": "null"}]}]})",
           YES(R"("x")"), YES("1", "null"));
    /* additionalProperties sees only the properties beside it. */
    SCHEMA(R"({"allOf": [{"properties": {"a": {}}, "additionalProperties": false}, {"properties": )"
           R"({"b": {}}}]})",
           YES("{}", R"({"a": 1})"), YES(R"({"b": 1})"));
    REFUSED(R"({"allOf": [{"type": "string"}, {"type": "null"}]})", "invalid", "no text satisfies");
}

Test(grammar_schema_combined, not ) {
    /* An annotation whose name begins like a keyword. */
    SCHEMA(R"({"type": "object", "not": {"required": ["a"], "dependsOn": {"a": ["b"]}}})",
           YES("{}", R"({"b":1})"), YES(R"({"a":1})"));
    SCHEMA(R"({"not": {"type": ["string", "number"]}})", YES("null", "[1]", "{}"),
           YES("1", R"("")"));
    SCHEMA(R"({"type": "object", "not": {"required": ["a", "b"]}})",
           YES("{}", R"({"a":1})", R"({"b":1})", R"({"c":1})"), YES(R"({"a":1,"b":1})"));
    SCHEMA(R"({"type": "string", "not": {"enum": ["a", "b\n"]}})", YES(R"("ab")", R"("")"),
           YES(R"("a")", R"("b\n")"));
    SCHEMA(R"({"not": {"enum": [1, true, null, "x"]}})", YES("1.5", "2", "false", R"("y")", "[]"),
           YES("1", "1.0", "true", "null", R"("x")"));
    SCHEMA(R"({"type": "object", "properties": {"a": {"not": {}}, "b": {}}})",
           YES("{}", R"({"b":1})"), YES(R"({"a":1})"));
    SCHEMA(R"({"type": "array", "not": {"items": {"type": "integer"}}})",
           YES(R"([1,""])", "[null]"), YES("[]", "[1,2]"));
    SCHEMA(R"({"type": "object", "not": {"properties": {"a": {"type": "null"}}}})",
           YES(R"({"a":1})", R"({"a":[],"b":1})"), YES("{}", R"({"a":null})", R"({"b":1})"));
    SCHEMA(R"({"type": "object", "properties": {"a": {}}, "not": {"properties": {"a": {}}, )"
           R"("additionalProperties": false}})",
           YES(R"({"b":1})", R"({"a":1,"b":2})"), YES("{}", R"({"a":1})"));
    SCHEMA(R"({"type": "integer", "not": {"minimum": 3}})", YES("2", "-5"), YES("3", "10"));
    SCHEMA(R"({"type": "integer", "not": {"not": {"not": {"const": 4}}}})", YES("5"), YES("4"));
    SCHEMA(R"({"not": {"oneOf": [{"type": "string"}, {"type": "boolean"}]}})", YES("1", "null"),
           YES(R"("a")", "true"));
    SCHEMA(R"({"not": {"oneOf": [{"type": "integer"}, {"minimum": 3}]}})", YES("5", "2.5"),
           YES("1", "3.5", R"("")"));
    SCHEMA(R"({"type": "object", "properties": {"a": {}, "b": {}}, "not": {"dependencies": {"a": )"
           R"("b"}}})",
           YES(R"({"a":1})"), YES("{}", R"({"b":1})", R"({"a":1,"b":1})"));
    SCHEMA(R"({"not": {"allOf": [{"type": "integer"}, {"minimum": 3}]}})", YES("1", "3.5", R"("")"),
           YES("5"));
    SCHEMA(
        R"({"type": "array", "not": {"items": [{"type": "integer"}], "additionalItems": false}})",
        YES(R"(["a"])"), YES("[]", "[1]"));
    REFUSED(R"({"not": {}})", "invalid", "no text satisfies");
}

Test(grammar_schema_combined, if_then_else) {
    const char *S = R"({"type": "object", "properties": {"k": {"enum": ["a", "b"]}, "v": {}}, )"
                    R"("required": ["k"], "if": {"properties": {"k": {"const": "a"}}}, "then": )"
                    R"({"properties": {"v": {"type": "integer"}}}, "else": {"required": ["v"]}})";

    SCHEMA(S, YES(R"({"k":"a"})", R"({"k":"a","v":1})", R"({"k":"b","v":""})"),
           YES(R"({"k":"a","v":""})", R"({"k":"b"})", "{}"));
    SCHEMA(R"({"type": "integer", "if": {"minimum": 5}})", YES("1", "9"), YES(R"("")"));
}

Test(grammar_schema_combined, dependencies) {
    static const char S[] = R"({"type": "object", "properties": {"a": {}, "b": {}, "c": )"
                            R"({"type": "integer"}}, "%s": {"a": %s}})";
    static const char NOT[] = R"({"type": "object", "properties": {"a": {}, "b": {}, "c": )"
                              R"({}}, "not": {"%s": {"a": %s}}})";
    static const char *const WORDS[] = {"dependencies", "dependentRequired", "dependencies",
                                        "dependentSchemas"};
    char source[300];

    for (size_t i = 0; i < ARRAY_SIZE(WORDS); i++) {
        snprintf(source, sizeof(source), S, WORDS[i],
                 i < 2 ? R"(["b"])" : R"({"required": ["b"]})");
        SCHEMA(source, YES("{}", R"({"b":1})", R"({"a":1,"b":1})", R"({"c":1})"),
               YES(R"({"a":1})", R"({"a":1,"c":1})"));
        snprintf(source, sizeof(source), NOT, WORDS[i],
                 i < 2 ? R"(["b", "c"])" : R"({"required": ["b", "c"]})");
        SCHEMA(source, YES(R"({"a":1})", R"({"a":1,"b":1})", R"({"a":1,"c":1})"),
               YES("{}", R"({"b":1})", R"({"b":1,"c":1})", R"({"a":1,"b":1,"c":1})"));
    }
}

Test(grammar_schema_combined, one_of_that_overlaps) {
    SCHEMA(R"({"type": "object", "properties": {"a": {}, "b": {}}, "oneOf": [{"required": ["a"]}, )"
           R"({"required": ["b"]}]})",
           YES(R"({"a":1})", R"({"b":1})", R"({"b":1,"c":1})"), YES("{}", R"({"a":1,"b":1})"));
    SCHEMA(R"({"oneOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 5}]})",
           YES("2", "6", "-1"), YES("3", "4", "5"));
    SCHEMA(R"({"oneOf": [{"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}, )"
           R"({"type": "string", "maxLength": 2}]})",
           YES(R"("xxa")", R"("c")", R"("bbb")"), YES(R"("aab")", R"("a")", R"("xxx")", R"("ab")"));
    /* the digits of a string are no number */
    SCHEMA(R"({"oneOf": [{"const": "3"}, {"type": ["string", "integer"], "minimum": 5}]})",
           YES("5", R"("4")", R"("")"), YES("3", R"("3")"));
}

Test(grammar_schema_combined, contains) {
    SCHEMA(R"({"type": "array", "contains": {"const": 1}, "maxItems": 3})",
           YES("[1]", "[2,1]", "[1,1,1]", "[2,2,1]"), YES("[]", "[2]", "[2,2,2]", "[1,2,2,2]"));
    SCHEMA(R"({"items": {"type": "integer"}, "contains": {"minimum": 5}, "minItems": 2})",
           YES("[5,1]", "[1,9]", "[1,2,3,7]"), YES("[5]", "[1,2]", R"([5,""])"));
}

Test(grammar_schema_combined, contains_several_times) {
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile(GRAMMAR_JSON_SCHEMA,
                     R"({"items": {"type": "integer"}, "contains": {"enum": [1, 5]}, "allOf": )"
                     R"([{"contains": {"enum": [5, 7]}}, {"contains": {"minimum": 7}}]})");

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
    REFUSED(R"({"contains": {"const": 1}, "allOf": [{"contains": {"const": 2}}], )"
            R"("maxItems": 3})",
            "unsupported", "#/allOf/0/contains: two contains are not supported together");
    REFUSED(R"({"contains": {"const": 1}, "prefixItems": [{}]})", "unsupported",
            "#/contains: is not supported together with schemas by position");
}

/* Values that equal no listed object or array differ from each of them in some part. */
Test(grammar_schema_combined, contraries_of_constants) {
    SCHEMA(R"({"type": "object", "not": {"enum": [{"a": 1}, {}, 7]}})",
           YES(R"({"a": 2})", R"({"b": 1})", R"({"b": 1, "a": 1})"), YES("{}", R"({"a": 1})"));
    SCHEMA(R"({"type": ["array", "string"], "not": {"const": [1, [2]]}})",
           YES("[]", "[1]", "[1,2]", "[1,[]]", "[1,[2],3]", "[2,[2]]", R"("x")"), YES("[1,[2]]"));
    SCHEMA(R"({"allOf": [{"enum": [{"a": 0}, {"a": false}]}, {"not": {"enum": [{"a": false}]}}]})",
           YES(R"({"a": 0})"), YES(R"({"a": false})"));
}

Test(grammar_schema_combined, lengths_beside_look_ahead) {
    SCHEMA(R"({"type": "string", "pattern": "^(?=.*b).{1,2}$", "maxLength": 1})", YES(R"("b")"),
           YES(R"("ab")", R"("a")", R"("")"));
}

/* One member is enough for two contraries that ask for the same. */
Test(grammar_schema_combined, contraries_that_are_equal) {
    SCHEMA(R"({"type": "object", "maxProperties": 1, "allOf": [{"not": {"propertyNames": {"not": )"
           R"({"const": "a"}}}}, {"not": {"propertyNames": {"not": {"const": "a"}}}}]})",
           YES(R"({"a": 1})"), YES("{}", R"({"b": 1})", R"({"a": 1, "b": 1})"));
}

/* Texts that a negated format admits: formats here are narrower than their standards. */
Test(grammar_schema_combined, contraries_of_formats) {
    SCHEMA(R"({"type": "string", "not": {"format": "ipv4"}})", YES(R"("a.b")", R"("1.2 ")"),
           YES(R"("1.2.3.4")", R"("0.0.0.0")", R"("")"));
    SCHEMA(R"({"type": "string", "oneOf": [{"format": "hostname"}, {"format": "ipv4"}, {"format": )"
           R"("ipv6"}]})",
           YES(R"("a.example")", R"("::1")"), YES(R"("a b")", R"("1.2.3.4")"));
    SCHEMA(R"({"type": "string", "oneOf": [{"format": "uri"}, {"enum": ["."]}]})",
           YES(R"(".")", R"("http://a.example/")"), YES(R"("..")", R"("")"));
    SCHEMA(R"({"oneOf": [{"format": "uuid"}, {"pattern": "^[$][A-Z]+$"}]})",
           YES(R"("$AB")", R"("00000000-0000-0000-0000-000000000000")"), YES(R"("AB")"));
    SCHEMA(R"({"type": "string", "format": "regex"})", YES(R"("")", R"("a+")"), YES(R"("(")"));
}
