/* JSON Schema, keyword by keyword: what fits, what does not, what is refused. */

#include <stdio.h>
#include <string.h>

#include "tests/grammar/grammar_support.h"

#define SCHEMA(source, yes, no) test_lists(GRAMMAR_JSON_SCHEMA, source, yes, no)
/* Without additionalProperties only declared properties. */
#define CLOSED(source, yes, no)                                                                    \
    test_lists_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_DECLARED_ONLY, source, yes, no)
#define REFUSED(source, code, part) test_refused(GRAMMAR_JSON_SCHEMA, source, "grammar_" code, part)

Test(grammar_schema, types) {
    SCHEMA(R"({"type": "null"})", YES("null"), YES("true", "0", ""));
    SCHEMA(R"({"type": "boolean"})", YES("true", "false"), YES("null", "tru"));
    SCHEMA(R"({"type": "integer"})", YES("0", "-1", "12345678901234567890", "-0"),
           YES("1.0", "01", "1e3", "-", "+1", ""));
    SCHEMA(R"({"type": "number"})", YES("0", "-1.5", "1e3", "2.5E-10", "0.0"),
           YES("1.", ".5", "1e", "01", "NaN"));
    SCHEMA(R"({"type": "string"})",
           YES(R"("")", R"("a")", R"("\n\u00e9\"")",
               R"(")"
               "\xc3\xa9"
               R"(")",
               R"("\ud83d\ude00")"),
           YES("a", R"(")",
               R"(")"
               "\n"
               R"(")",
               R"("\x")", R"("\ud83d")", R"("\ude00")",
               R"(")"
               "\xff"
               R"(")",
               R"(")"
               "\xc3"
               R"(")",
               R"("a" )"));
    SCHEMA(R"({"type": ["string", "null"]})", YES("null", R"("x")"), YES("1", "nul"));
    SCHEMA(R"({"type": "array"})", YES("[]", R"([1, "a", {}])", "[\n  1,\n  2\n]"),
           YES("[1,]", "[,]", "{}", "[1 2]"));
    SCHEMA(R"({"type": "object"})",
           YES("{}", R"({"a": 1})", R"({"a":{"b":[]},"c":null})", "{\n  \"a\": 1\n}"),
           YES(R"({"a"})", "{a:1}", "[]", R"({"a":1,})"));
    SCHEMA("{}", YES("1", R"("a")", "[{}]", "null"), YES("", "x"));
    SCHEMA("true", YES("1", R"({"a": [true]})"), YES(""));
}

Test(grammar_schema, properties_in_their_order) {
    const char *S = R"({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": )"
                    R"("boolean"}, "ab": {"type": "null"}}, "required": ["b"]})";

    CLOSED(S,
           YES(R"({"b": true})", R"({"a":1,"b":false})", R"({"a": 1, "b": true, "ab": null})",
               R"({ "b":true, "ab":null })"),
           YES("{}", R"({"a":1})", R"({"b":true,"a":1})", R"({"b":1})", R"({"b":true,"c":1})",
               R"({"b":true,})", R"({,"b":true})"));
    CLOSED(R"({"properties": {"x": {}}})", YES("{}", R"({"x": [1]})"), YES(R"({"y": 1})", "1"));
    CLOSED(R"({"type": "object", "properties": [], "required": []})", YES("{}"), YES("1", "[]"));
    SCHEMA(R"({"type": "object", "properties": [], "additionalProperties": false})", YES("{}"),
           YES(R"({"y": 1})", "1"));
    CLOSED(R"({"properties": {"x": false, "y": true}})", YES("{}", R"({"y": 1})"),
           YES(R"({"x": 1})"));
    CLOSED(R"({"properties": {"a\"\n\u00e9/": {"type": "null"}}})",
           YES(R"({"a\"\n)"
               "\xc3\xa9"
               R"(/": null})"),
           YES(R"({"a": null})"));
    CLOSED(R"({"type": "object", "required": ["z", "y"]})",
           YES(R"({"z": 1, "y": 2})", R"({"z": 1, "y": 2, "x": 3})"),
           YES("{}", R"({"z": 1})", R"({"y": 1})", R"({"z": 1, "y": 2, "z": 3})"));
    REFUSED(R"({"properties": {"x": false}, "required": ["x"]})", "invalid", "no text satisfies");
}

Test(grammar_schema, additional_properties) {
    const char *S = R"({"properties": {"ab": {"type": "integer"}, "abc": {"type": "integer"}, )"
                    R"("\"": {"type": "null"}}, "additionalProperties": {"type": "string"}})";

    SCHEMA(S,
           YES("{}", R"({"ab": 1, "x": "y"})", R"({"a": ""})", R"({"abcd": "1", "": "2"})",
               R"({"\"": null, "\"\"": ""})"),
           YES(R"({"ab": "x"})", R"({"abc": "x"})", R"({"x": 1})", R"({"x": "y", "ab": 1})",
               R"({"\"": ""})", R"({"\u0061b": "x"})"));
    SCHEMA(R"({"properties": {"a": {}}, "additionalProperties": false})", YES("{}", R"({"a":1})"),
           YES(R"({"b":1})"));
    SCHEMA(R"({"properties": {"a": {"type": "null"}}, "additionalProperties": true})",
           YES(R"({"b":1})", R"({"a":null,"b":[]})"), YES(R"({"a":1})"));
    SCHEMA(R"({"additionalProperties": {"type": "integer"}})", YES("{}", R"({"k": 1, "l": 2})"),
           YES(R"({"k": ""})"));
    SCHEMA(R"({"type": "object", "additionalProperties": false})", YES("{}", "{ }"),
           YES(R"({"a":1})"));
    SCHEMA(R"({"type": "object", "unevaluatedProperties": false, "allOf": [{"properties": {"a": )"
           "{}}}]}",
           YES(R"({"a": 1})"), YES(R"({"b": 1})"));
}

/* Rules of the schemas around it for properties that it does not see, so they would not be
 * allowed: too much to work out. */
Test(grammar_schema, unevaluated_properties_only_outermost) {
    SCHEMA(R"({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": {}}, )"
           R"("unevaluatedProperties": false}}})",
           YES("{}", R"({"x": 1})"), YES(R"({"y": 1})"));
    SCHEMA(R"({"allOf": [{"properties": {"x": {}}, "unevaluatedProperties": false}]})",
           YES("{}", R"({"x": 1})"), YES(R"({"y": 1})"));
    REFUSED(R"({"allOf": [{"properties": {"x": {}}}, {"unevaluatedProperties": false}]})",
            "unsupported", "#/allOf/1/unevaluatedProperties");
    REFUSED(R"({"properties": {"x": {}}, "$ref": "#/$defs/a", "$defs": {"a": )"
            R"({"unevaluatedProperties": false}}})",
            "unsupported", "unevaluatedProperties");
    REFUSED(R"({"properties": {"p": {"properties": {"x": {}}, "unevaluatedProperties": )"
            R"(false}}, "allOf": [{"properties": {"p": {"properties": {"y": {}}}}}]})",
            "unsupported", "unevaluatedProperties");
}

/* A member is evaluated where a schema that holds names it: not where it is only required, and not
 * by what does not hold. */
Test(grammar_schema, unevaluated_properties_see_what_holds) {
    SCHEMA(R"({"type": "object", "properties": {"x": {}}, "dependentRequired": {"a": ["x"]}, )"
           R"("unevaluatedProperties": false})",
           YES("{}", R"({"x": 1})"), YES(R"({"a": 1})", R"({"x": 1, "a": 1})"));
    SCHEMA(R"({"type": "object", "unevaluatedProperties": false, "if": {"properties": {"f": )"
           R"({"const": 1}}, "required": ["f"]}, "then": {"properties": {"b": {}}}, "else": )"
           R"({"properties": {"z": {}}}})",
           YES(R"({"f": 1})", R"({"f": 1, "b": 2})", R"({"z": 2})", "{}"),
           YES(R"({"f": 2})", R"({"z": 2, "f": 2})", R"({"f": 1, "z": 2})"));
    SCHEMA(R"({"type": "object", "properties": {"x": {}}, "not": {"properties": {"a": {"const": )"
           R"(1}}, "required": ["a"]}, "unevaluatedProperties": false})",
           YES("{}", R"({"x": 1})"), YES(R"({"a": 2})", R"({"x": 1, "a": 2})"));
    SCHEMA(R"({"type": "object", "oneOf": [{"properties": {"a": {"const": 1}},)"
           R"( "required": ["a"]}, )"
           R"({"properties": {"b": {"const": 1}}, "required": ["b"]}], "unevaluatedProperties": )"
           "false}",
           YES(R"({"a": 1})", R"({"b": 1})"), YES(R"({"a": 2, "b": 1})", R"({"a": 1, "b": 2})"));
    SCHEMA(R"({"type": "object", "properties": {"x": {}}, "additionalProperties": {"type": )"
           R"("null"}, "unevaluatedProperties": false})",
           YES(R"({"x": 1, "y": null})"), YES(R"({"y": 1})"));
    REFUSED(R"({"properties": {"x": {}}, "not": {"not": {"properties": {"b": {}}}}, )"
            R"("unevaluatedProperties": false})",
            "unsupported", "unevaluatedProperties");
}

Test(grammar_schema, property_names) {
    SCHEMA(R"({"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, )"
           R"("additionalProperties": {"type": "integer"}})",
           YES("{}", R"({"a": 1, "abc": 2})"),
           YES(R"({"abcd": 1})", R"({"A": 1})", R"({"a": ""})"));
    SCHEMA(R"({"type": "object", "propertyNames": {"enum": ["x", "y"]}})",
           YES(R"({"x": 1})", R"({"y": []})"), YES(R"({"z": 1})"));
    SCHEMA(R"({"properties": {"a": {}}, "propertyNames": {"type": "string"}, )"
           R"("additionalProperties": true})",
           YES(R"({"a": 1, "b": 2})"), YES("1"));
    SCHEMA(R"({"type": "object", "propertyNames": false})", YES("{}"), YES(R"({"a": 1})"));
    SCHEMA(R"({"type": "object", "propertyNames": {"$ref": "#/$defs/k"}, "$defs": {"k": )"
           R"({"maxLength": 2}}})",
           YES(R"({"ab": 1})"), YES(R"({"abc": 1})"));
    SCHEMA(R"({"properties": {"abc": {}, "a": {}}, "propertyNames": {"maxLength": 2}})",
           YES(R"({"a": 1, "bc": 2})"), YES(R"({"abc": 1})", R"({"bcd": 1})"));
}

Test(grammar_schema, counts_of_properties) {
    SCHEMA(R"({"type": "object", "minProperties": 2, "maxProperties": 3})",
           YES(R"({"a":1,"b":2})", R"({"a":1,"b":2,"c":3})"),
           YES("{}", R"({"a":1})", R"({"a":1,"b":2,"c":3,"d":4})"));
    CLOSED(R"({"properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 1, "maxProperties": 2})",
           YES(R"({"a":1})", R"({"b":1,"c":2})", R"({"a":1,"c":1})"),
           YES("{}", R"({"a":1,"b":2,"c":3})"));
    SCHEMA(R"({"properties": {"a": {}, "b": {}}, "minProperties": 2, "required": ["b"], )"
           R"("additionalProperties": true})",
           YES(R"({"a":1,"b":2})", R"({"b":1,"x":2})", R"({"b":1,"x":2,"y":3,"z":4})"),
           YES(R"({"b":1})", R"({"a":1,"x":1})"));
    SCHEMA(R"({"type": "object", "maxProperties": 0})", YES("{}"), YES(R"({"a":1})"));
    REFUSED(R"({"properties": {"a": {}}, "minProperties": 2, "additionalProperties": false})",
            "invalid", "no text satisfies");
}

Test(grammar_schema, items) {
    SCHEMA(R"({"type": "array", "items": {"type": "integer"}})", YES("[]", "[1]", "[1, 2,3]"),
           YES(R"(["a"])", R"([1,"a"])"));
    SCHEMA(R"({"items": {"type": "integer"}, "minItems": 2, "maxItems": 3})",
           YES("[1,2]", "[1,2,3]"), YES("[]", "[1]", "[1,2,3,4]"));
    SCHEMA(R"({"items": {"type": "boolean"}, "maxItems": 0})", YES("[]"), YES("[true]"));
    SCHEMA(R"({"items": false})", YES("[]"), YES("[1]"));
    SCHEMA(
        R"({"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"type": "null"}})",
        YES("[]", "[1]", R"([1,"a"])", R"([1,"a",null,null])"),
        YES(R"(["a"])", "[1,2]", R"([1,"a",1])"));
    SCHEMA(R"({"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false, )"
           R"("minItems": 2})",
           YES(R"([1,"a"])"), YES("[1]", R"([1,"a",null])"));
    SCHEMA(R"({"prefixItems": [{"const": 1}, {"const": 2}, {"const": 3}], "maxItems": 2, )"
           R"("minItems": 1})",
           YES("[1]", "[1,2]"), YES("[]", "[1,2,3]"));
    SCHEMA(
        R"({"items": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}})",
        YES("[[[1,2],[]],[]]"), YES("[[1]]"));
}

Test(grammar_schema, large_counts_of_items_are_exact) {
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile(GRAMMAR_JSON_SCHEMA,
                     R"({"items": {"enum": [1, 2, "three"]}, "minItems": 500, "maxItems": 1000})");
    static char text[4000] = "[";

    for (size_t n = 1; n <= 1002; n++) {
        text[2 * n - 1] = '1';
        text[2 * n] = ']';
        if (n % 100 == 0 || (n > 498 && n < 502) || n > 998)
            cr_expect_eq(test_fits(g, text, 2 * n + 1), n >= 500 && n <= 1000, "%zu", n);
        text[2 * n] = ',';
    }
}

Test(grammar_schema, enum_and_const) {
    SCHEMA(R"({"enum": ["a", 1, null, {"x": [1, 2]}, "\u00e9\n"]})",
           YES(R"("a")", "1", "null", R"({"x": [1, 2]})", R"({"x":[1,2]})",
               R"(")"
               "\xc3\xa9"
               R"(\n")"),
           YES(R"("b")", "2", "{}", R"({"x":[2,1]})"));
    SCHEMA(R"({"const": "x"})", YES(R"("x")"), YES(R"("y")", "x"));
    SCHEMA(R"({"type": "string", "enum": ["a", 1]})", YES(R"("a")"), YES("1"));
    SCHEMA(R"({"enum": [1, 5, 10], "minimum": 2, "exclusiveMaximum": 10})", YES("5"),
           YES("1", "10"));
    SCHEMA(R"({"allOf": [{"enum": [1, 2, 3]}, {"enum": [2.0, 3, 4]}, {"const": 2}]})", YES("2"),
           YES("1", "3"));
    SCHEMA(R"({"enum": [2.0, 1.5, 3e1, 0.0]})", YES("2.0", "2", "1.5", "30", "3e1", "0.0"),
           YES("3", "1", "20"));
    SCHEMA(R"({"enum": ["a", "abc"], "minLength": 2})", YES(R"("abc")"), YES(R"("a")"));
    REFUSED(R"({"enum": []})", "invalid", "#/enum");
    REFUSED(R"({"type": "integer", "const": "x"})", "invalid", "no text satisfies");
    SCHEMA(R"({"enum": ["a", "b", 1], "pattern": "a"})", YES(R"("a")", "1"), YES(R"("b")"));
    SCHEMA(
        R"({"enum": [{}, {"a": 1}, {"a": null}, [2]], "properties": {"a": {"type": "integer"}}})",
        YES("{}", R"({"a": 1})", "[2]"), YES(R"({"a": null})", R"({"b": 1})"));
}

Test(grammar_schema, references_and_recursion) {
    const char *TREE = R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", )"
                       R"("properties": {"v": {"type": "integer"}, "kids": {"type": "array", )"
                       R"("items": {"$ref": "#/$defs/node"}}}, "required": ["v"]}}})";

    SCHEMA(TREE, YES(R"({"v":1})", R"({"v":1,"kids":[{"v":2,"kids":[]},{"v":3}]})"),
           YES(R"({"kids":[]})", R"({"v":1,"kids":[{}]})", R"({"v":1,"kids":[{"v":2}})"));
    SCHEMA(R"({"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": )"
           R"("null"}]}}, "required": ["next"]})",
           YES(R"({"next":null})", R"({"next":{"next":{"next":null}}})"),
           YES("{}", R"({"next":{}})"));
    SCHEMA(R"({"properties": {"a": {"$ref": "#/definitions/x~1y%25", "description": "d", )"
           R"("maximum": 5}}, "definitions": {"x/y%": {"type": "integer"}}})",
           YES(R"({"a": 5})"), YES(R"({"a": 6})", R"({"a": ""})"));
    SCHEMA(R"({"properties": {"n": {"allOf": [{"$ref": "#"}], "default": null}}})",
           YES("{}", R"({"n":{"n":{}}})"), YES(R"({"n":1})"));
    SCHEMA(R"({"prefixItems": [{}, {"type": "integer"}], "items": {"$ref": "#/prefixItems/1"}, )"
           R"("type": "array"})",
           YES("[]", R"(["a", 1, 2])"), YES(R"(["a", 1, "b"])", R"(["a", "b"])"));
    REFUSED(R"({"prefixItems": [{}], "items": {"$ref": "#/prefixItems/1"}})", "invalid",
            "#/prefixItems/1");
    REFUSED(R"({"$ref": "#"})", "invalid", "without any progress");
    REFUSED(R"({"allOf": [{"$ref": "#"}]})", "invalid", "without any progress");
    REFUSED(R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})", "invalid", "without any");
    REFUSED(R"({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": )"
            R"({"$ref": "#/$defs/a"}}})",
            "invalid", "without any progress");
    REFUSED(R"({"properties": {"a": {"$ref": "#/nowhere"}}})", "invalid", "#/properties/a/$ref");
    REFUSED(R"({"$ref": "https://example.com/s.json"})", "unsupported", "#/$ref");
    REFUSED(R"({"type": "object", "properties": {"n": {"$ref": "#"}}, "required": ["n"]})",
            "invalid", "no text satisfies");
}

Test(grammar_schema, formats_of_integers) {
    static const struct {
        const char *format, *min, *max, *below, *above;
    } SIZES[] = {
        {"int8", "-128", "127", "-129", "128"},
        {"int16", "-32768", "32767", "-32769", "32768"},
        {"int32", "-2147483648", "2147483647", "-2147483649", "2147483648"},
        {"int64", "-9223372036854775808", "9223372036854775807", "-9223372036854775809",
         "9223372036854775808"},
        {"int", "-9223372036854775808", "9223372036854775807", "-9223372036854775809",
         "9223372036854775808"},
        {"uint8", "0", "255", "-1", "256"},
        {"uint16", "0", "65535", "-1", "65536"},
        {"uint32", "0", "4294967295", "-1", "4294967296"},
        {"uint64", "0", "18446744073709551615", "-1", "18446744073709551616"},
        {"uint", "0", "18446744073709551615", "-1", "18446744073709551616"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(SIZES); i++) {
        char source[64];

        snprintf(source, sizeof(source), R"({"type": "integer", "format": "%s"})", SIZES[i].format);
        SCHEMA(source, YES(SIZES[i].min, SIZES[i].max), YES(SIZES[i].below, SIZES[i].above));
    }
}

Test(grammar_schema, ranges_of_integers) {
    SCHEMA(R"({"type": "integer", "minimum": 3, "maximum": 120})",
           YES("3", "9", "10", "99", "100", "119", "120"),
           YES("2", "121", "0", "-5", "200", "1000"));
    SCHEMA(R"({"type": "integer", "minimum": -15, "exclusiveMaximum": 7})",
           YES("-15", "-9", "-1", "0", "6"), YES("-16", "7", "10", "-20"));
    SCHEMA(R"({"type": "integer", "exclusiveMinimum": 2.5})",
           YES("3", "100", "99999999999999999999"), YES("2", "0", "-3"));
    SCHEMA(R"({"type": "integer", "maximum": -10})", YES("-10", "-11", "-100"),
           YES("-9", "0", "10"));
    SCHEMA(R"({"type": "integer", "exclusiveMinimum": 0})", YES("1", "10"), YES("0", "-1"));
    SCHEMA(R"({"type": "integer", "minimum": 1e3, "maximum": 1.002E3})", YES("1000", "1002"),
           YES("999", "1003"));
    SCHEMA(R"({"type": "integer", "minimum": 3, "maximum": 300, "allOf": [{"format": "uint8"}]})",
           YES("3", "255"), YES("2", "256"));
    SCHEMA(R"({"type": "integer", "minimum": -3, "maximum": 9, "allOf": [{"format": "uint8"}]})",
           YES("0", "9"), YES("-1", "10"));
    SCHEMA(R"({"type": "integer", "minimum": 1, "maximum": 5, "allOf": [{"minimum": 2, "maximum": )"
           R"(4}, {"minimum": 0, "maximum": 9}]})",
           YES("2", "4"), YES("1", "5", "0", "9"));
    SCHEMA(R"({"type": "number", "multipleOf": 1})", YES("5"), YES("5.5"));
    REFUSED(R"({"type": "integer", "minimum": 3, "maximum": 2})", "invalid", "no text satisfies");
    REFUSED(R"({"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 4})", "invalid",
            "no text satisfies");
    REFUSED(R"({"type": "integer", "minimum": "3"})", "invalid", "#/minimum");
    REFUSED(R"({"type": "integer", "minimum": 1e300})", "unsupported", "#/minimum");
    SCHEMA(R"({"type": "integer", "multipleOf": 5, "minimum": 7})", YES("10", "15", "1000"),
           YES("5", "12", "0", "-10"));
    SCHEMA(R"({"multipleOf": 0.25, "maximum": 2})", YES("0.5", "-1.25", "2", "0", "1.0"),
           YES("0.3", "2.25", "1.255"));
    SCHEMA(R"({"type": "integer", "not": {"multipleOf": 3}})", YES("1", "10", "-2"),
           YES("0", "9", "-3"));
    REFUSED(R"({"multipleOf": 0})", "invalid", "#/multipleOf");
}

Test(grammar_schema, ranges_of_numbers) {
    SCHEMA(R"({"type": "number", "minimum": 0, "maximum": 1})",
           YES("0", "1", "0.5", "0.0", "1.0", "1.000", "0.99999"),
           YES("1.1", "-0.1", "2", "1.0001", "1e0"));
    SCHEMA(R"({"type": "number", "minimum": -4200000000.5})",
           YES("-1.0000000000000001", "-4200000000.4999999999"), YES("-4200000000.50000000001"));
    SCHEMA(R"({"type": "number", "exclusiveMinimum": -4200000000})", YES("-4199999999.99999"),
           YES("-4199999999.9999999999", "-4200000000.0"));
    SCHEMA(R"({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1})",
           YES("0.5", "0.001", "0.999"), YES("0", "1", "0.0", "0.000", "1.0"));
    SCHEMA(R"({"type": "number", "minimum": 1.25, "maximum": 3.5})",
           YES("1.25", "1.250", "1.3", "2", "2.0", "3", "3.5", "3.50", "3.4999"),
           YES("1.2", "1.24", "3.51", "3.6", "1", "4"));
    SCHEMA(R"({"type": "number", "minimum": -2.5, "maximum": 10.75})",
           YES("-2.5", "-2.49", "-1", "-0", "-0.5", "0", "10.75", "10.7", "9.99"),
           YES("-2.51", "-3", "10.76", "11"));
    SCHEMA(R"({"type": "number", "exclusiveMaximum": 0})", YES("-0.1", "-1", "-20.5"),
           YES("0", "-0", "-0.0", "1"));
    SCHEMA(R"({"type": "number", "minimum": 0.1, "maximum": 0.1})", YES("0.1", "0.10"),
           YES("0.11", "0.2", "0"));
    SCHEMA(R"({"type": "number", "exclusiveMinimum": 5})", YES("5.1", "6", "5.0001", "123456.5"),
           YES("5", "5.0", "4.9"));
}

Test(grammar_schema, lengths_of_strings) {
    SCHEMA(R"({"type": "string", "minLength": 2, "maxLength": 3})",
           YES(R"("ab")", R"("abc")",
               R"("\n)"
               "\xc3\xa9"
               R"(")",
               R"("\ud83d\ude00a")",
               R"(")"
               "\xf0\x9f\x98\x80\xe2\x82\xac"
               R"(")"),
           YES(R"("a")", R"("abcd")",
               R"(")"
               "\xc3\xa9"
               R"(")",
               R"("\u00e9")"));
    SCHEMA(R"({"type": "string", "maxLength": 0})", YES(R"("")"), YES(R"("a")"));
    SCHEMA(R"({"type": "string", "minLength": 1})", YES(R"("a")", R"("abcdefghijklmnop")"),
           YES(R"("")"));
    REFUSED(R"({"type": "string", "minLength": -1})", "invalid", "#/minLength");
    REFUSED(R"({"type": "string", "maxLength": 1.5})", "invalid", "#/maxLength");
    REFUSED(R"({"type": "string", "minLength": 5, "maxLength": 4})", "invalid",
            "no text satisfies");
}

Test(grammar_schema, patterns) {
    SCHEMA(R"({"type": "string", "pattern": "^[a-z]{2,4}$"})", YES(R"("ab")", R"("abcd")"),
           YES(R"("a")", R"("abcde")", R"("AB")"));
    SCHEMA(R"({"type": "string", "pattern": "b+"})", YES(R"("b")", R"("abba")", R"("\nb\u0041")"),
           YES(R"("")", R"("a")"));
    SCHEMA(R"({"type": "string", "pattern": "^a"})", YES(R"("a")", R"("abc")"), YES(R"("ba")"));
    SCHEMA(R"({"type": "string", "pattern": "a$|^b"})", YES(R"("xa")", R"("bx")"),
           YES(R"("ax")", R"("xb")"));
    SCHEMA(R"({"type": "string", "pattern": "^[\"\\\\\\n]*$"})", YES(R"("\"\\\n")", R"("")"),
           YES(R"(""")", R"(")"
                         "\n"
                         R"(")"));
    /* A pattern that all strings match: lengths of any size are counted. */
    SCHEMA(R"({"type": "string", "pattern": "([a-z]+)?", "minLength": 2, "maxLength": 3})",
           YES(R"("+1")", R"("a\")"
                          "\303\251"
                          R"(")"),
           YES(R"("a")", R"("abcd")", R"("a\u0062")"));
    SCHEMA(R"({"type": "string", "pattern": "[a-z]*", "maxLength": 100000})", YES(R"("+")"),
           YES(R"("\u0062")"));
    SCHEMA(R"({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3})", YES(R"("abc")"),
           YES(R"("abcd")", R"("")"));
    SCHEMA(R"({"type": "string", "pattern": "^[a-z]{2}-[0-9]$", "minLength": 1, "maxLength": 4})",
           YES(R"("ab-1")"), YES(R"("ab")"));
    /* Characters, not bytes: é and an emoji are one, an escape is one. */
    SCHEMA(R"({"type": "string", "pattern": "^(x|[^y]+)$", "minLength": 2, "maxLength": 3})",
           YES(R"("ab")",
               R"(")"
               "\xc3\xa9\xf0\x9f\x98\x80"
               R"(")",
               R"("\n\u0001\"")"),
           YES(R"("")", R"("x")",
               R"(")"
               "\xc3\xa9"
               R"(")",
               R"("\n")",
               R"("ab)"
               "\xc3\xa9"
               R"(z")",
               R"("ay")"));
    SCHEMA(R"({"type": "string", "pattern": "^(x|[^y]+)$", "minLength": 2})",
           YES(R"("ab")", R"("abcdef")"),
           YES(R"("x")",
               R"(")"
               "\xc3\xa9"
               R"(")",
               R"("")"));
    SCHEMA(R"({"type": "string", "pattern": "a", "maxLength": 3})", YES(R"("xa")", R"("axx")"),
           YES(R"("xx")", R"("axxx")"));
    SCHEMA(R"({"type": "string", "allOf": [{"pattern": "a"},)"
           R"( {"pattern": "b"}], "not": {"pattern": )"
           R"("c"}})",
           YES(R"("ab")", R"("xbxa")", R"("a\nb")"), YES(R"("a")", R"("abc")", R"("")"));
    SCHEMA(R"({"type": "string", "pattern": "^(?!foo|bar$)[a-z]+(?=z)[x-z]*$"})",
           YES(R"("az")", R"("barz")", R"("abczx")"),
           YES(R"("fooz")", R"("bar")", R"("abc")", R"("az1")"));
    SCHEMA("{\"type\": \"string\", \"pattern\": \"a(?!b)\"}", YES(R"("a")", R"("abac")"),
           YES(R"("ab")", R"("\u0061")"));
    SCHEMA("{\"type\": \"string\", \"pattern\": \"(^a|b$)\"}", YES(R"("ax")", R"("xb")"),
           YES(R"("xa")"));
    REFUSED(R"({"type": "string", "pattern": "(a(?=b))+"})", "unsupported", "#/pattern");
    REFUSED(R"({"type": "string", "pattern": "(?<=a)b"})", "unsupported", "#/pattern");
    REFUSED(R"({"type": "string", "pattern": "(a"})", "invalid", "#/pattern");
    SCHEMA(R"({"type": "string", "pattern": "^2024", "format": "date"})", YES(R"("2024-02-29")"),
           YES(R"("2023-02-28")", R"("2024-02-30")"));
}

#define FORMAT(name, yes, no) SCHEMA(R"({"type": "string", "format": ")" name R"("})", yes, no)

Test(grammar_schema, formats) {
    FORMAT("date", YES(R"("2024-02-29")", R"("1999-12-31")", R"("2000-02-29")"),
           YES(R"("2023-02-29")", R"("1900-02-29")", R"("2024-04-31")", R"("2024-13-01")",
               R"("24-01-01")"));
    FORMAT("time", YES(R"("23:59:59Z")", R"("00:00:00.123+02:00")"),
           YES(R"("24:00:00Z")", R"("12:00:00")", R"("12:60:00Z")"));
    FORMAT("date-time", YES(R"("2024-02-29T12:00:00Z")", R"("2024-01-01T00:00:00.5-11:30")"),
           YES(R"("2024-02-29")", R"("2024-02-30T12:00:00Z")", R"("2024-02-29 12:00:00Z")"));
    FORMAT(
        "uuid", YES(R"("123e4567-e89b-12d3-a456-426614174000")"),
        YES(R"("123e4567e89b12d3a456426614174000")", R"("123e4567-e89b-12d3-a456-42661417400g")"));
    FORMAT("email", YES(R"("a@b.co")", R"("first.last+tag@mail.example.org")"),
           YES(R"("a@b")", R"("@b.co")", R"("a b@c.de")", R"("a@b..co")"));
    FORMAT("ipv4", YES(R"("127.0.0.1")", R"("255.255.255.255")"),
           YES(R"("256.0.0.1")", R"("1.2.3")", R"("01.2.3.4")"));
    FORMAT("ipv6",
           YES(R"("::")", R"("::1")", R"("fe80::1:2")", R"("1:2:3:4:5:6:7:8")",
               R"("1:2:3:4:5:6:7::")"),
           YES(R"(":::")", R"("1:2:3")", R"("1::2::3")", R"("12345::")", R"("1:2:3:4:5:6:7:8:9")"));
    FORMAT("uri",
           YES(R"("https://example.com/a/b?c=d&e#f")", R"("mailto:a@b.co")",
               R"("http://localhost:8080")", R"("file:///c:/a")", R"("urn:isbn:1")", R"("did-2:a")",
               R"("ftp://u:p@my-long-host-name.x--y.org/")"),
           YES(R"("example.com")", R"("http://a b")", R"("/a")", R"("http://x/%zz")",
               R"("http://")", R"("1a:b")", R"("http://-a")", R"("http://a:b@c@d")", R"("a:")",
               R"("http://a:x")"));
    FORMAT("hostname", YES(R"("localhost")", R"("www.example-site.com")"),
           YES(R"("-a.com")", R"("a..b")", R"("a_b")"));
    FORMAT("regex", YES(R"("^[a-z]+$")", R"("a|(b|c)*")", R"("\\d{2}")", R"("[a-z']{3,16}\\n?")"),
           YES(R"("*")", R"("(a")", R"("[")", R"("\\")", R"("a{3,1}")", R"("[b-a]")"));
    FORMAT("duration", YES(R"("P1Y")", R"("PT5M")", R"("P3W")", R"("P1Y2M3DT4H5M6S")"),
           YES(R"("P")", R"("1Y")", R"("PT")", R"("P1Y2D")", R"("PT1H2S")"));
    FORMAT("uri-reference", YES(R"("//h/p")", R"("/a//b")", R"("./t:a")", R"("?q")", R"("")"),
           YES(R"("//a:b/p")", R"("//a@b@c/")", R"("1:b")"));
    FORMAT("ipv6", YES(R"("::ffff:1.2.3.4")", R"("1:2:3:4:5:6:1.2.3.4")", R"("1::2:1.2.3.4")"),
           YES(R"("1:2:3:4:5:6:7:1.2.3.4")", R"("::1.2.3")"));
    FORMAT("email", YES(R"("te~st@a.org")"), YES(R"("a b@c.org")"));
    FORMAT("json-pointer", YES(R"("")", R"("/a~0b/1")"), YES(R"("a")", R"("/~2")"));
    REFUSED(R"({"type": "string", "format": "topic"})", "unsupported", "#/format: format 'topic'");
    /* An annotation says nothing of the type. */
    test_lists_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_ANY_FORMAT, R"({"format": "positive"})",
                    YES("1", R"("")", "[]"), NONE);
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_ANY_FORMAT,
                          R"({"type": "string", "format": "path", "maxLength": 3})");

    cr_expect(test_fits(g, R"("abc")", 5) && !test_fits(g, R"("abcd")", 6));
}

Test(grammar_schema, words_that_allow_everything_imply_no_type) {
    SCHEMA(R"({"type": "array", "items": {"properties": {}, "required": []}})",
           YES(R"([1, "a", {}])"), NONE);
    SCHEMA(R"({"properties": {"a": {}}})", YES("{}", R"({"a":1})"), YES("1", "[]"));
}

Test(grammar_schema, compact_has_no_white_space) {
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_COMPACT,
                          R"({"type": "object", "properties": {"a": {"type": "array"}}})");

    cr_expect(test_fits(g, R"({"a":[1,{"b":2}]})", 17));
    cr_expect(!test_fits(g, R"({"a": [1]})", 10) && !test_fits(g, R"({"a":[1, 2]})", 12) &&
              !test_fits(g, "{ }", 3));
}

Test(grammar_schema, white_space_is_bounded) {
    CLEANUP(grammar_freep)
    struct grammar *g = test_compile(GRAMMAR_JSON_SCHEMA, R"({"type": "array"})");
    char text[200] = "[\n";

    for (size_t n = 0; n < 60; n++) {
        memset(text + 2, ' ', n);
        text[2 + n] = ']';
        cr_expect_eq(test_fits(g, text, n + 3), n <= 40, "%zu", n);
    }
    cr_expect(test_fits(g, "[\n\n\t]", 5) && !test_fits(g, "[\n\n\n]", 5) &&
              !test_fits(g, "[  ]", 4));
}

Test(grammar_schema, annotations_are_ignored) {
    SCHEMA(R"({"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "https://x/y", )"
           R"("title": "t", "description": "d", "default": 1,)"
           R"( "examples": [1], "deprecated": true, )"
           R"("$comment": "c", "x-order": 1, "type": "integer"})",
           YES("5"), YES(R"("")"));
}

/* Generators of schemas write null for keywords that the author left out. */
Test(grammar_schema, null_keywords_are_absent) {
    SCHEMA(R"({"type": "string", "minLength": null, "maxLength": 2, "pattern": null, "format": )"
           R"(null, "enum": null, "items": null, "properties": null,)"
           R"( "anyOf": null, "$ref": null, )"
           R"("not": null, "if": null, "then": {}, "multipleOf": null})",
           YES(R"("")", R"("ab")"), YES(R"("abc")", "null", "1"));
    SCHEMA(R"({"type": "object", "properties": {"minimum": {"type": "integer", "minimum": null, )"
           R"("maximum": 3}, "enum": {"enum": [{"minimum": null},)"
           R"( null]}}, "required": ["minimum", )"
           R"("enum"], "additionalProperties": false, "minProperties": null})",
           YES(R"({"minimum":-7,"enum":null})", R"({"minimum":3,"enum":{"minimum":null}})"),
           YES(R"({"minimum":4,"enum":null})", R"({"minimum":3,"enum":{}})", R"({"minimum":3})"));
    SCHEMA(R"({"anyOf": [{"type": null, "const": null}, {"$ref": "#/$defs/minLength"}], "$defs": )"
           R"({"minLength": {"type": "boolean", "minLength": null}}})",
           YES("null", "true"), YES("1", R"("")"));
    SCHEMA(R"({"type": "integer", "not": {"minimum": 3, "maximum": null}})", YES("2", "-5"),
           YES("3"));
    test_refused(GRAMMAR_JSON_SCHEMA, R"({"properties": {"a": null}})", "grammar_invalid",
                 "a schema must be");
}

Test(grammar_schema, every_other_keyword_is_refused_with_its_path) {
    static const char *const WORDS[] = {
        "unevaluatedItems",
        "$dynamicRef",
        "$recursiveRef",
    };
    char source[200], path[100];

    for (size_t i = 0; i < ARRAY_SIZE(WORDS); i++) {
        snprintf(source, sizeof(source),
                 R"({"type": "object", "properties": {"p": {"items": {"%s": {}}}}})", WORDS[i]);
        snprintf(path, sizeof(path), "#/properties/p/items/%s", WORDS[i]);
        REFUSED(source, "unsupported", path);
    }
    REFUSED(R"({"items": {"uniqueItems": true}})", "unsupported", "#/items/uniqueItems");
    SCHEMA(R"({"not": {"type": "integer"}, "enum": ["a", 1, 1.5]})", YES(R"("a")", "1.5"),
           YES("1"));
    SCHEMA(R"({"type": "array", "uniqueItems": true, "maxItems": 1})", YES("[]", "[1]"),
           YES("[1,2]"));
    SCHEMA(R"({"type": "array", "uniqueItems": false})", YES("[1,1]"), YES("1"));
}

Test(grammar_schema, any_order) {
    const char *S = R"({"type": "object", "properties": {"a": {"type": "integer"}, "ab": {"type": )"
                    R"("object", "properties": {"x": {}, "y": {}},)"
                    R"( "required": ["y"]}, "c": {}}, )"
                    R"("required": ["c", "a"], "additionalProperties": {"type": "null"}})";

    test_lists_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_ANY_ORDER, S,
                    YES(R"({"a":1,"c":2})", R"({"c":2, "a":1})",
                        R"({"z":null,"c":[],"ab":{"y":1,"x":2},"a":5})",
                        R"({"c":{"c":1},)"
                        "\n"
                        R"(  "a":0, "q": null })"),
                    YES("{}", R"({"a":1})", R"({"a":1,"a":1,"c":2})", R"({"c":1,"a":1,"c":1})",
                        R"({"c":1,"ab":{"x":1},"a":1})", R"({"c":1,"a":1,"z":1})",
                        R"({"c":1,"a":1,})"));
    test_lists_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_ANY_ORDER | GRAMMAR_COMPACT,
                    R"({"properties": {"a": {}, "b": {}}, "additionalProperties": false})",
                    YES("{}", R"({"b":1,"a":2})", R"({"a":{}})"),
                    YES(R"({"b":1,"b":1})", R"({"c":1})"));
    CLEANUP(grammar_freep)
    struct grammar *g = test_compile_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_ANY_ORDER, S);
    CLEANUP(grammar_state_freep) struct grammar_state *s = NULL;
    struct rng r = {9};
    uint32_t bits[64];

    cr_assert_eq(grammar_state_new(&s, g), 0);
    for (int i = 0; i < 300; i++) {
        uint32_t n = test_mask_is_exact(s, g, bits), pick = rng_below(&r, MAX(n, 1u)), id = 0;

        while (n && !((bits[id / 32] >> (id % 32) & 1) && pick-- == 0))
            id++;
        if (n == 0 || grammar_accept(s, (int32_t)id) < 0)
            grammar_state_reset(s);
    }
}

Test(grammar_schema, pattern_properties) {
    const char *S =
        R"({"type": "object", "properties": {"ab": {"maximum": 5}}, "patternProperties": {"^a": )"
        R"({"type": "integer"}, "b$": {"minimum": 2}},)"
        R"( "additionalProperties": {"type": "null"}})";

    SCHEMA(
        S,
        YES("{}", R"({"ab":3})", R"({"ac":1})", R"({"xb":2.5})", R"({"aab":2})", R"({"x":null})"),
        YES(R"({"ab":1})", R"({"ab":6})", R"({"ac":null})", R"({"xb":1})", R"({"aab":2.5})",
            R"({"x":1})"));
    SCHEMA(R"({"type": "object", "patternProperties": {"^x-": {}}, "additionalProperties": false})",
           YES("{}", R"({"x-":1,"x-y":2})"), YES(R"({"y":1})"));
    SCHEMA(R"({"type": "object", "patternProperties": {"secret": false}})", YES(R"({"a":1})"),
           YES(R"({"my_secret":1})"));
    REFUSED(R"({"patternProperties": {"(": {}}})", "invalid", "#/patternProperties/(");
}

Test(grammar_schema, few_values_are_unique_in_any_order) {
    SCHEMA(R"({"type": "array", "uniqueItems": true, "items": {"enum": ["a", "b", 1, 1.0, null]}})",
           YES("[]", R"(["b","a"])", R"([null,1,"a","b"])", R"([1, "b" ])"),
           YES(R"(["a","a"])", R"([1,"b",1])", "[1,1.0]", R"(["c"])", R"([null,"a","b",1,null])",
               "[,]"));
    SCHEMA(R"({"type": "array", "uniqueItems": true, "items": {"type": "boolean"}, "minItems": 1})",
           YES("[true]", "[false,true]"), YES("[]", "[true,true]", "[true,false,true]"));
    SCHEMA(R"({"type": "array", "uniqueItems": true, "items": {"enum": [1, 2, 3, 4]}, "minItems": )"
           R"(2, "maxItems": 3})",
           YES("[4,1]", "[3,1,2]"), YES("[]", "[1]", "[1,1]", "[1,2,1]", "[1,2,3,4]"));
    SCHEMA(R"({"type": "array", "uniqueItems": true, "items": {"enum": [1, 2, 3]}, "minItems": 3})",
           YES("[3,1,2]"), YES("[3,1]", "[1,2,2]", "[1,2,3,3]"));
    REFUSED(R"({"uniqueItems": true, "items": {"enum": [1, [2]]}})", "unsupported",
            "#/uniqueItems");
    REFUSED(R"({"uniqueItems": true, "minItems": 3, "items": {"enum": [1, 2, 3, 4, 5, 6, 7, )"
            "8, 9]}}",
            "unsupported", "#/uniqueItems");
}

Test(grammar_schema, references_by_name_and_by_the_own_uri) {
    SCHEMA(R"({"$id": "https://x.org/a", "items": {"$ref": "#n"}, "$defs": {"m": {"$anchor": "n", )"
           R"("type": "integer"}}})",
           YES("[1]"), YES(R"([""])"));
    SCHEMA(R"({"id": "https://x.org/a#", "properties": {"a": {"$ref": "https://x.org/a#"}, "b": )"
           R"({"$ref": "https://x.org/a#/$defs/m"}, "c": {"$ref": "#m"}}, "$defs": {"m": {"id": )"
           R"("#m", "type": "null"}}})",
           YES("{}", R"({"a":{"b":null}})", R"({"c":null})"),
           YES(R"({"a":{"b":1}})", R"({"c":1})"));
    /* An $id inside matters only to the references beside it. */
    SCHEMA(
        R"({"properties": {"a": {"$id": "/x", "type": "null"}, "b": {"$ref": "#/properties/a"}}})",
        YES(R"({"a":null,"b":null})"), YES(R"({"b":1})"));
    REFUSED(R"({"properties": {"a": {"$id": "/x", "items": {"$ref": "#"}}}})", "unsupported",
            "#/properties/a/$id");
    REFUSED(R"({"$ref": "#n"})", "invalid", "#/$ref: '#n' does not exist");
    REFUSED(R"({"$ref": "https://x.org/b"})", "unsupported", "#/$ref: only references inside");
    REFUSED(R"({"items": {"$ref": "#n"}, "$defs": {"a": {"$anchor": "n"}, "b": )"
            R"({"$anchor": "n"}}})",
            "unsupported", "#/items/$ref: '#n' is defined twice");
}

Test(grammar_schema, old_drafts) {
    SCHEMA(R"({"items": [{"type": "integer"}, {}], "additionalItems": false})",
           YES("[]", "[1]", R"([1,""])"), YES(R"([""])", "[1,1,1]"));
    SCHEMA(R"({"type": "integer", "minimum": 3, "exclusiveMinimum": true})", YES("4"), YES("3"));
    SCHEMA(R"({"$schema": "http://json-schema.org/draft-07/schema#",)"
           R"( "definitions": {"x": {"type": )"
           R"("integer"}}, "items": {"$ref": "#/definitions/x", "maximum": 3}})",
           YES("[4]"), YES(R"([""])"));
}

Test(grammar_schema, mistakes_name_their_place) {
    REFUSED(R"({"type": "strin"})", "invalid", "#/type");
    REFUSED(R"({"type": 1})", "invalid", "#/type");
    REFUSED(R"({"properties": [1]})", "invalid", "#/properties");
    REFUSED(R"({"properties": {"a": 1}})", "invalid", "#/properties/a: a schema must be");
    REFUSED(R"({"required": [1]})", "invalid", "#/required");
    REFUSED(R"({"type": "string\u0000"})", "invalid", "unknown type");
    REFUSED(R"({"format": "date\u0000"})", "invalid", "#/format: this must be a string");
    REFUSED(R"({"prefixItems": {}})", "invalid", "#/prefixItems");
    REFUSED(R"({"contains": {}, "minContains": "1"})", "unsupported", "#/contains");
    REFUSED(R"({"$ref": "\u00010"})", "unsupported", "#/$ref");
    REFUSED(R"({"\u0001some": {}})", "invalid", "unknown keyword");
    REFUSED(R"({"allOf": {}})", "invalid", "#/allOf");
    REFUSED("[1]", "invalid", "#: a schema must be");
    REFUSED(R"({"type": )", "invalid", "not valid JSON");
    REFUSED("false", "invalid", "no text satisfies");
    REFUSED(R"({"contains": {}, "maxContains": 2})", "unsupported",
            "only with minContains 1 and without maxContains");
    REFUSED(R"({"unevaluatedProperties":)"
            " {}}",
            "unsupported", "is supported only as true or false");
    REFUSED(R"({"$ref": "#x/y"})", "invalid", "#/$ref: ");
    REFUSED(R"({"type": "array", "uniqueItems": true})", "unsupported",
            "is supported for strings, integers and few values only");
}
