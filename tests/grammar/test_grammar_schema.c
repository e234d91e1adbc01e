/* JSON Schema, keyword by keyword: what fits, what does not, what is refused. */

#include <stdio.h>
#include <string.h>

#include "tests/grammar/grammar_support.h"
#include "tests/support/quotes.h"

#define SCHEMA(source, yes, no) test_lists(GRAMMAR_JSON_SCHEMA, source, yes, no)
/* Without additionalProperties only declared properties. */
#define CLOSED(source, yes, no)                                                                    \
    test_lists_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_DECLARED_ONLY, source, yes, no)
#define REFUSED(source, code, part) test_refused(GRAMMAR_JSON_SCHEMA, source, "grammar_" code, part)

Test(grammar_schema, types) {
    SCHEMA(J("{'type': 'null'}"), YES("null"), YES("true", "0", ""));
    SCHEMA(J("{'type': 'boolean'}"), YES("true", "false"), YES("null", "tru"));
    SCHEMA(J("{'type': 'integer'}"), YES("0", "-1", "12345678901234567890", "-0"),
           YES("1.0", "01", "1e3", "-", "+1", ""));
    SCHEMA(J("{'type': 'number'}"), YES("0", "-1.5", "1e3", "2.5E-10", "0.0"),
           YES("1.", ".5", "1e", "01", "NaN"));
    SCHEMA(J("{'type': 'string'}"),
           YES(J("''"), J("'a'"), J("'\\n\\u00e9\\''"), J("'\xc3\xa9'"), J("'\\ud83d\\ude00'")),
           YES("a", "\"", J("'\n'"), J("'\\x'"), J("'\\ud83d'"), J("'\\ude00'"), J("'\xff'"),
               J("'\xc3'"), J("'a' ")));
    SCHEMA(J("{'type': ['string', 'null']}"), YES("null", J("'x'")), YES("1", "nul"));
    SCHEMA(J("{'type': 'array'}"), YES("[]", J("[1, 'a', {}]"), "[\n  1,\n  2\n]"),
           YES("[1,]", "[,]", "{}", "[1 2]"));
    SCHEMA(J("{'type': 'object'}"),
           YES("{}", J("{'a': 1}"), J("{'a':{'b':[]},'c':null}"), J("{\n  'a': 1\n}")),
           YES(J("{'a'}"), "{a:1}", "[]", J("{'a':1,}")));
    SCHEMA("{}", YES("1", J("'a'"), "[{}]", "null"), YES("", "x"));
    SCHEMA("true", YES("1", J("{'a': [true]}")), YES(""));
}

Test(grammar_schema, properties_in_their_order) {
    const char *S = J("{'type': 'object', 'properties': {'a': {'type': 'integer'}, 'b': {'type': "
                      "'boolean'}, 'ab': {'type': 'null'}}, 'required': ['b']}");

    CLOSED(S,
           YES(J("{'b': true}"), J("{'a':1,'b':false}"), J("{'a': 1, 'b': true, 'ab': null}"),
               J("{ 'b':true, 'ab':null }")),
           YES("{}", J("{'a':1}"), J("{'b':true,'a':1}"), J("{'b':1}"), J("{'b':true,'c':1}"),
               J("{'b':true,}"), J("{,'b':true}")));
    CLOSED(J("{'properties': {'x': {}}}"), YES("{}", J("{'x': [1]}")), YES(J("{'y': 1}"), "1"));
    CLOSED(J("{'properties': {'x': false, 'y': true}}"), YES("{}", J("{'y': 1}")),
           YES(J("{'x': 1}")));
    CLOSED(J("{'properties': {'a\\'\\n\\u00e9/': {'type': 'null'}}}"),
           YES(J("{'a\\'\\n\xc3\xa9/': null}")), YES(J("{'a': null}")));
    CLOSED(J("{'type': 'object', 'required': ['z', 'y']}"),
           YES(J("{'z': 1, 'y': 2}"), J("{'z': 1, 'y': 2, 'x': 3}")),
           YES("{}", J("{'z': 1}"), J("{'y': 1}"), J("{'z': 1, 'y': 2, 'z': 3}")));
    REFUSED("{\"properties\": {\"x\": false}, \"required\": [\"x\"]}", "invalid",
            "no text satisfies");
}

Test(grammar_schema, additional_properties) {
    const char *S = J("{'properties': {'ab': {'type': 'integer'}, 'abc': {'type': 'integer'}, "
                      "'\\'': {'type': 'null'}}, 'additionalProperties': {'type': 'string'}}");

    SCHEMA(S,
           YES("{}", J("{'ab': 1, 'x': 'y'}"), J("{'a': ''}"), J("{'abcd': '1', '': '2'}"),
               J("{'\\'': null, '\\'\\'': ''}")),
           YES(J("{'ab': 'x'}"), J("{'abc': 'x'}"), J("{'x': 1}"), J("{'x': 'y', 'ab': 1}"),
               J("{'\\'': ''}"), J("{'\\u0061b': 'x'}")));
    SCHEMA(J("{'properties': {'a': {}}, 'additionalProperties': false}"), YES("{}", J("{'a':1}")),
           YES(J("{'b':1}")));
    SCHEMA(J("{'properties': {'a': {'type': 'null'}}, 'additionalProperties': true}"),
           YES(J("{'b':1}"), J("{'a':null,'b':[]}")), YES(J("{'a':1}")));
    SCHEMA(J("{'additionalProperties': {'type': 'integer'}}"), YES("{}", J("{'k': 1, 'l': 2}")),
           YES(J("{'k': ''}")));
    SCHEMA(J("{'type': 'object', 'additionalProperties': false}"), YES("{}", "{ }"),
           YES(J("{'a':1}")));
    SCHEMA(J("{'type': 'object', 'unevaluatedProperties': false, 'allOf': [{'properties': {'a': "
             "{}}}]}"),
           YES(J("{'a': 1}")), YES(J("{'b': 1}")));
}

/* Rules of the schemas around it for properties that it does not see, so they would not be
 * allowed: too much to work out. */
Test(grammar_schema, unevaluated_properties_only_outermost) {
    SCHEMA(J("{'$ref': '#/$defs/a', '$defs': {'a': {'properties': {'x': {}}, "
             "'unevaluatedProperties': false}}}"),
           YES("{}", J("{'x': 1}")), YES(J("{'y': 1}")));
    SCHEMA(J("{'allOf': [{'properties': {'x': {}}, 'unevaluatedProperties': false}]}"),
           YES("{}", J("{'x': 1}")), YES(J("{'y': 1}")));
    REFUSED("{\"allOf\": [{\"properties\": {\"x\": {}}}, {\"unevaluatedProperties\": false}]}",
            "unsupported", "#/allOf/1/unevaluatedProperties");
    REFUSED("{\"properties\": {\"x\": {}}, \"$ref\": \"#/$defs/a\", \"$defs\": {\"a\": "
            "{\"unevaluatedProperties\": false}}}",
            "unsupported", "unevaluatedProperties");
    REFUSED("{\"properties\": {\"p\": {\"properties\": {\"x\": {}}, \"unevaluatedProperties\": "
            "false}}, \"allOf\": [{\"properties\": {\"p\": {\"properties\": {\"y\": {}}}}}]}",
            "unsupported", "unevaluatedProperties");
}

/* A member is evaluated where a schema that holds names it: not where it is only required, and not
 * by what does not hold. */
Test(grammar_schema, unevaluated_properties_see_what_holds) {
    SCHEMA(J("{'type': 'object', 'properties': {'x': {}}, 'dependentRequired': {'a': ['x']}, "
             "'unevaluatedProperties': false}"),
           YES("{}", J("{'x': 1}")), YES(J("{'a': 1}"), J("{'x': 1, 'a': 1}")));
    SCHEMA(J("{'type': 'object', 'unevaluatedProperties': false, 'if': {'properties': {'f': "
             "{'const': 1}}, 'required': ['f']}, 'then': {'properties': {'b': {}}}, 'else': "
             "{'properties': {'z': {}}}}"),
           YES(J("{'f': 1}"), J("{'f': 1, 'b': 2}"), J("{'z': 2}"), "{}"),
           YES(J("{'f': 2}"), J("{'z': 2, 'f': 2}"), J("{'f': 1, 'z': 2}")));
    SCHEMA(J("{'type': 'object', 'properties': {'x': {}}, 'not': {'properties': {'a': {'const': "
             "1}}, 'required': ['a']}, 'unevaluatedProperties': false}"),
           YES("{}", J("{'x': 1}")), YES(J("{'a': 2}"), J("{'x': 1, 'a': 2}")));
    SCHEMA(J("{'type': 'object', 'oneOf': [{'properties': {'a': {'const': 1}}, 'required': ['a']}, "
             "{'properties': {'b': {'const': 1}}, 'required': ['b']}], 'unevaluatedProperties': "
             "false}"),
           YES(J("{'a': 1}"), J("{'b': 1}")), YES(J("{'a': 2, 'b': 1}"), J("{'a': 1, 'b': 2}")));
    SCHEMA(J("{'type': 'object', 'properties': {'x': {}}, 'additionalProperties': {'type': "
             "'null'}, 'unevaluatedProperties': false}"),
           YES(J("{'x': 1, 'y': null}")), YES(J("{'y': 1}")));
    REFUSED("{\"properties\": {\"x\": {}}, \"not\": {\"not\": {\"properties\": {\"b\": {}}}}, "
            "\"unevaluatedProperties\": false}",
            "unsupported", "unevaluatedProperties");
}

Test(grammar_schema, property_names) {
    SCHEMA(J("{'type': 'object', 'propertyNames': {'pattern': '^[a-z]{1,3}$'}, "
             "'additionalProperties': {'type': 'integer'}}"),
           YES("{}", J("{'a': 1, 'abc': 2}")),
           YES(J("{'abcd': 1}"), J("{'A': 1}"), J("{'a': ''}")));
    SCHEMA(J("{'type': 'object', 'propertyNames': {'enum': ['x', 'y']}}"),
           YES(J("{'x': 1}"), J("{'y': []}")), YES(J("{'z': 1}")));
    SCHEMA(J("{'properties': {'a': {}}, 'propertyNames': {'type': 'string'}, "
             "'additionalProperties': true}"),
           YES(J("{'a': 1, 'b': 2}")), YES("1"));
    SCHEMA(J("{'type': 'object', 'propertyNames': false}"), YES("{}"), YES(J("{'a': 1}")));
    SCHEMA(J("{'type': 'object', 'propertyNames': {'$ref': '#/$defs/k'}, '$defs': {'k': "
             "{'maxLength': 2}}}"),
           YES(J("{'ab': 1}")), YES(J("{'abc': 1}")));
    SCHEMA(J("{'properties': {'abc': {}, 'a': {}}, 'propertyNames': {'maxLength': 2}}"),
           YES(J("{'a': 1, 'bc': 2}")), YES(J("{'abc': 1}"), J("{'bcd': 1}")));
}

Test(grammar_schema, counts_of_properties) {
    SCHEMA(J("{'type': 'object', 'minProperties': 2, 'maxProperties': 3}"),
           YES(J("{'a':1,'b':2}"), J("{'a':1,'b':2,'c':3}")),
           YES("{}", J("{'a':1}"), J("{'a':1,'b':2,'c':3,'d':4}")));
    CLOSED(J("{'properties': {'a': {}, 'b': {}, 'c': {}}, 'minProperties': 1, 'maxProperties': 2}"),
           YES(J("{'a':1}"), J("{'b':1,'c':2}"), J("{'a':1,'c':1}")),
           YES("{}", J("{'a':1,'b':2,'c':3}")));
    SCHEMA(J("{'properties': {'a': {}, 'b': {}}, 'minProperties': 2, 'required': ['b'], "
             "'additionalProperties': true}"),
           YES(J("{'a':1,'b':2}"), J("{'b':1,'x':2}"), J("{'b':1,'x':2,'y':3,'z':4}")),
           YES(J("{'b':1}"), J("{'a':1,'x':1}")));
    SCHEMA(J("{'type': 'object', 'maxProperties': 0}"), YES("{}"), YES(J("{'a':1}")));
    REFUSED("{\"properties\": {\"a\": {}}, \"minProperties\": 2, \"additionalProperties\": false}",
            "invalid", "no text satisfies");
}

Test(grammar_schema, items) {
    SCHEMA(J("{'type': 'array', 'items': {'type': 'integer'}}"), YES("[]", "[1]", "[1, 2,3]"),
           YES(J("['a']"), J("[1,'a']")));
    SCHEMA(J("{'items': {'type': 'integer'}, 'minItems': 2, 'maxItems': 3}"),
           YES("[1,2]", "[1,2,3]"), YES("[]", "[1]", "[1,2,3,4]"));
    SCHEMA(J("{'items': {'type': 'boolean'}, 'maxItems': 0}"), YES("[]"), YES("[true]"));
    SCHEMA(J("{'items': false}"), YES("[]"), YES("[1]"));
    SCHEMA(
        J("{'prefixItems': [{'type': 'integer'}, {'type': 'string'}], 'items': {'type': 'null'}}"),
        YES("[]", "[1]", J("[1,'a']"), J("[1,'a',null,null]")),
        YES(J("['a']"), "[1,2]", J("[1,'a',1]")));
    SCHEMA(J("{'prefixItems': [{'type': 'integer'}, {'type': 'string'}], 'items': false, "
             "'minItems': 2}"),
           YES(J("[1,'a']")), YES("[1]", J("[1,'a',null]")));
    SCHEMA(J("{'prefixItems': [{'const': 1}, {'const': 2}, {'const': 3}], 'maxItems': 2, "
             "'minItems': 1}"),
           YES("[1]", "[1,2]"), YES("[]", "[1,2,3]"));
    SCHEMA(
        J("{'items': {'type': 'array', 'items': {'type': 'array', 'items': {'type': 'integer'}}}}"),
        YES("[[[1,2],[]],[]]"), YES("[[1]]"));
}

Test(grammar_schema, large_counts_of_items_are_exact) {
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile(GRAMMAR_JSON_SCHEMA,
                     J("{'items': {'enum': [1, 2, 'three']}, 'minItems': 500, 'maxItems': 1000}"));
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
    SCHEMA(J("{'enum': ['a', 1, null, {'x': [1, 2]}, '\\u00e9\\n']}"),
           YES(J("'a'"), "1", "null", J("{'x': [1, 2]}"), J("{'x':[1,2]}"), J("'\xc3\xa9\\n'")),
           YES(J("'b'"), "2", "{}", J("{'x':[2,1]}")));
    SCHEMA(J("{'const': 'x'}"), YES(J("'x'")), YES(J("'y'"), "x"));
    SCHEMA(J("{'type': 'string', 'enum': ['a', 1]}"), YES(J("'a'")), YES("1"));
    SCHEMA(J("{'enum': [1, 5, 10], 'minimum': 2, 'exclusiveMaximum': 10}"), YES("5"),
           YES("1", "10"));
    SCHEMA(J("{'allOf': [{'enum': [1, 2, 3]}, {'enum': [2.0, 3, 4]}, {'const': 2}]}"), YES("2"),
           YES("1", "3"));
    SCHEMA(J("{'enum': [2.0, 1.5, 3e1, 0.0]}"), YES("2.0", "2", "1.5", "30", "3e1", "0.0"),
           YES("3", "1", "20"));
    SCHEMA(J("{'enum': ['a', 'abc'], 'minLength': 2}"), YES(J("'abc'")), YES(J("'a'")));
    REFUSED("{\"enum\": []}", "invalid", "#/enum");
    REFUSED("{\"type\": \"integer\", \"const\": \"x\"}", "invalid", "no text satisfies");
    SCHEMA(J("{'enum': ['a', 'b', 1], 'pattern': 'a'}"), YES(J("'a'"), "1"), YES(J("'b'")));
    SCHEMA(
        J("{'enum': [{}, {'a': 1}, {'a': null}, [2]], 'properties': {'a': {'type': 'integer'}}}"),
        YES("{}", J("{'a': 1}"), "[2]"), YES(J("{'a': null}"), J("{'b': 1}")));
}

Test(grammar_schema, references_and_recursion) {
    const char *TREE = J("{'$ref': '#/$defs/node', '$defs': {'node': {'type': 'object', "
                         "'properties': {'v': {'type': 'integer'}, 'kids': {'type': 'array', "
                         "'items': {'$ref': '#/$defs/node'}}}, 'required': ['v']}}}");

    SCHEMA(TREE, YES(J("{'v':1}"), J("{'v':1,'kids':[{'v':2,'kids':[]},{'v':3}]}")),
           YES(J("{'kids':[]}"), J("{'v':1,'kids':[{}]}"), J("{'v':1,'kids':[{'v':2}}")));
    SCHEMA(J("{'type': 'object', 'properties': {'next': {'anyOf': [{'$ref': '#'}, {'type': "
             "'null'}]}}, 'required': ['next']}"),
           YES(J("{'next':null}"), J("{'next':{'next':{'next':null}}}")),
           YES("{}", J("{'next':{}}")));
    SCHEMA("{\"properties\": {\"a\": {\"$ref\": \"#/definitions/x~1y%25\", \"description\": \"d\", "
           "\"maximum\": 5}}, \"definitions\": {\"x/y%\": {\"type\": \"integer\"}}}",
           YES(J("{'a': 5}")), YES(J("{'a': 6}"), J("{'a': ''}")));
    SCHEMA(J("{'properties': {'n': {'allOf': [{'$ref': '#'}], 'default': null}}}"),
           YES("{}", J("{'n':{'n':{}}}")), YES(J("{'n':1}")));
    SCHEMA(J("{'prefixItems': [{}, {'type': 'integer'}], 'items': {'$ref': '#/prefixItems/1'}, "
             "'type': 'array'}"),
           YES("[]", J("['a', 1, 2]")), YES(J("['a', 1, 'b']"), J("['a', 'b']")));
    REFUSED("{\"prefixItems\": [{}], \"items\": {\"$ref\": \"#/prefixItems/1\"}}", "invalid",
            "#/prefixItems/1");
    REFUSED("{\"$ref\": \"#\"}", "invalid", "without any progress");
    REFUSED("{\"allOf\": [{\"$ref\": \"#\"}]}", "invalid", "without any progress");
    REFUSED("{\"anyOf\": [{\"type\": \"null\"}, {\"$ref\": \"#\"}]}", "invalid", "without any");
    REFUSED("{\"$ref\": \"#/$defs/a\", \"$defs\": {\"a\": {\"$ref\": \"#/$defs/b\"}, \"b\": "
            "{\"$ref\": \"#/$defs/a\"}}}",
            "invalid", "without any progress");
    REFUSED("{\"properties\": {\"a\": {\"$ref\": \"#/nowhere\"}}}", "invalid",
            "#/properties/a/$ref");
    REFUSED("{\"$ref\": \"https://example.com/s.json\"}", "unsupported", "#/$ref");
    REFUSED(
        "{\"type\": \"object\", \"properties\": {\"n\": {\"$ref\": \"#\"}}, \"required\": [\"n\"]}",
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

        snprintf(source, sizeof(source), "{\"type\": \"integer\", \"format\": \"%s\"}",
                 SIZES[i].format);
        SCHEMA(source, YES(SIZES[i].min, SIZES[i].max), YES(SIZES[i].below, SIZES[i].above));
    }
}

Test(grammar_schema, ranges_of_integers) {
    SCHEMA(J("{'type': 'integer', 'minimum': 3, 'maximum': 120}"),
           YES("3", "9", "10", "99", "100", "119", "120"),
           YES("2", "121", "0", "-5", "200", "1000"));
    SCHEMA(J("{'type': 'integer', 'minimum': -15, 'exclusiveMaximum': 7}"),
           YES("-15", "-9", "-1", "0", "6"), YES("-16", "7", "10", "-20"));
    SCHEMA(J("{'type': 'integer', 'exclusiveMinimum': 2.5}"),
           YES("3", "100", "99999999999999999999"), YES("2", "0", "-3"));
    SCHEMA(J("{'type': 'integer', 'maximum': -10}"), YES("-10", "-11", "-100"),
           YES("-9", "0", "10"));
    SCHEMA(J("{'type': 'integer', 'exclusiveMinimum': 0}"), YES("1", "10"), YES("0", "-1"));
    SCHEMA(J("{'type': 'integer', 'minimum': 1e3, 'maximum': 1.002E3}"), YES("1000", "1002"),
           YES("999", "1003"));
    SCHEMA(J("{'type': 'integer', 'minimum': 3, 'maximum': 300, 'allOf': [{'format': 'uint8'}]}"),
           YES("3", "255"), YES("2", "256"));
    SCHEMA(J("{'type': 'integer', 'minimum': -3, 'maximum': 9, 'allOf': [{'format': 'uint8'}]}"),
           YES("0", "9"), YES("-1", "10"));
    SCHEMA(J("{'type': 'integer', 'minimum': 1, 'maximum': 5, 'allOf': [{'minimum': 2, 'maximum': "
             "4}, {'minimum': 0, 'maximum': 9}]}"),
           YES("2", "4"), YES("1", "5", "0", "9"));
    SCHEMA(J("{'type': 'number', 'multipleOf': 1}"), YES("5"), YES("5.5"));
    REFUSED("{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 2}", "invalid",
            "no text satisfies");
    REFUSED("{\"type\": \"integer\", \"exclusiveMinimum\": 3, \"exclusiveMaximum\": 4}", "invalid",
            "no text satisfies");
    REFUSED("{\"type\": \"integer\", \"minimum\": \"3\"}", "invalid", "#/minimum");
    REFUSED("{\"type\": \"integer\", \"minimum\": 1e300}", "unsupported", "#/minimum");
    SCHEMA(J("{'type': 'integer', 'multipleOf': 5, 'minimum': 7}"), YES("10", "15", "1000"),
           YES("5", "12", "0", "-10"));
    SCHEMA(J("{'multipleOf': 0.25, 'maximum': 2}"), YES("0.5", "-1.25", "2", "0", "1.0"),
           YES("0.3", "2.25", "1.255"));
    SCHEMA(J("{'type': 'integer', 'not': {'multipleOf': 3}}"), YES("1", "10", "-2"),
           YES("0", "9", "-3"));
    REFUSED("{\"multipleOf\": 0}", "invalid", "#/multipleOf");
}

Test(grammar_schema, ranges_of_numbers) {
    SCHEMA(J("{'type': 'number', 'minimum': 0, 'maximum': 1}"),
           YES("0", "1", "0.5", "0.0", "1.0", "1.000", "0.99999"),
           YES("1.1", "-0.1", "2", "1.0001", "1e0"));
    SCHEMA(J("{'type': 'number', 'minimum': -4200000000.5}"),
           YES("-1.0000000000000001", "-4200000000.4999999999"), YES("-4200000000.50000000001"));
    SCHEMA(J("{'type': 'number', 'exclusiveMinimum': -4200000000}"), YES("-4199999999.99999"),
           YES("-4199999999.9999999999", "-4200000000.0"));
    SCHEMA(J("{'type': 'number', 'exclusiveMinimum': 0, 'exclusiveMaximum': 1}"),
           YES("0.5", "0.001", "0.999"), YES("0", "1", "0.0", "0.000", "1.0"));
    SCHEMA(J("{'type': 'number', 'minimum': 1.25, 'maximum': 3.5}"),
           YES("1.25", "1.250", "1.3", "2", "2.0", "3", "3.5", "3.50", "3.4999"),
           YES("1.2", "1.24", "3.51", "3.6", "1", "4"));
    SCHEMA(J("{'type': 'number', 'minimum': -2.5, 'maximum': 10.75}"),
           YES("-2.5", "-2.49", "-1", "-0", "-0.5", "0", "10.75", "10.7", "9.99"),
           YES("-2.51", "-3", "10.76", "11"));
    SCHEMA(J("{'type': 'number', 'exclusiveMaximum': 0}"), YES("-0.1", "-1", "-20.5"),
           YES("0", "-0", "-0.0", "1"));
    SCHEMA(J("{'type': 'number', 'minimum': 0.1, 'maximum': 0.1}"), YES("0.1", "0.10"),
           YES("0.11", "0.2", "0"));
    SCHEMA(J("{'type': 'number', 'exclusiveMinimum': 5}"), YES("5.1", "6", "5.0001", "123456.5"),
           YES("5", "5.0", "4.9"));
}

Test(grammar_schema, lengths_of_strings) {
    SCHEMA(J("{'type': 'string', 'minLength': 2, 'maxLength': 3}"),
           YES(J("'ab'"), J("'abc'"), J("'\\n\xc3\xa9'"), J("'\\ud83d\\ude00a'"),
               J("'\xf0\x9f\x98\x80\xe2\x82\xac'")),
           YES(J("'a'"), J("'abcd'"), J("'\xc3\xa9'"), J("'\\u00e9'")));
    SCHEMA(J("{'type': 'string', 'maxLength': 0}"), YES(J("''")), YES(J("'a'")));
    SCHEMA(J("{'type': 'string', 'minLength': 1}"), YES(J("'a'"), J("'abcdefghijklmnop'")),
           YES(J("''")));
    REFUSED("{\"type\": \"string\", \"minLength\": -1}", "invalid", "#/minLength");
    REFUSED("{\"type\": \"string\", \"maxLength\": 1.5}", "invalid", "#/maxLength");
    REFUSED("{\"type\": \"string\", \"minLength\": 5, \"maxLength\": 4}", "invalid",
            "no text satisfies");
}

Test(grammar_schema, patterns) {
    SCHEMA(J("{'type': 'string', 'pattern': '^[a-z]{2,4}$'}"), YES(J("'ab'"), J("'abcd'")),
           YES(J("'a'"), J("'abcde'"), J("'AB'")));
    SCHEMA(J("{'type': 'string', 'pattern': 'b+'}"), YES(J("'b'"), J("'abba'"), J("'\\nb\\u0041'")),
           YES(J("''"), J("'a'")));
    SCHEMA(J("{'type': 'string', 'pattern': '^a'}"), YES(J("'a'"), J("'abc'")), YES(J("'ba'")));
    SCHEMA(J("{'type': 'string', 'pattern': 'a$|^b'}"), YES(J("'xa'"), J("'bx'")),
           YES(J("'ax'"), J("'xb'")));
    SCHEMA(J("{'type': 'string', 'pattern': '^[\\'\\\\\\\\\\\\n]*$'}"),
           YES(J("'\\'\\\\\\n'"), J("''")), YES(J("'''"), J("'\n'")));
    /* A pattern that all strings match: lengths of any size are counted. */
    SCHEMA(J("{'type': 'string', 'pattern': '([a-z]+)?', 'minLength': 2, 'maxLength': 3}"),
           YES(J("'+1'"), J("'a\\'\303\251'")), YES(J("'a'"), J("'abcd'"), J("'a\\u0062'")));
    SCHEMA(J("{'type': 'string', 'pattern': '[a-z]*', 'maxLength': 100000}"), YES(J("'+'")),
           YES(J("'\\u0062'")));
    SCHEMA(J("{'type': 'string', 'pattern': '^[a-z]+$', 'maxLength': 3}"), YES(J("'abc'")),
           YES(J("'abcd'"), J("''")));
    SCHEMA(J("{'type': 'string', 'pattern': '^[a-z]{2}-[0-9]$', 'minLength': 1, 'maxLength': 4}"),
           YES(J("'ab-1'")), YES(J("'ab'")));
    /* Characters, not bytes: é and an emoji are one, an escape is one. */
    SCHEMA(J("{'type': 'string', 'pattern': '^(x|[^y]+)$', 'minLength': 2, 'maxLength': 3}"),
           YES(J("'ab'"), J("'\xc3\xa9\xf0\x9f\x98\x80'"), J("'\\n\\u0001\\''")),
           YES(J("''"), J("'x'"), J("'\xc3\xa9'"), J("'\\n'"), J("'ab\xc3\xa9z'"), J("'ay'")));
    SCHEMA(J("{'type': 'string', 'pattern': '^(x|[^y]+)$', 'minLength': 2}"),
           YES(J("'ab'"), J("'abcdef'")), YES(J("'x'"), J("'\xc3\xa9'"), J("''")));
    SCHEMA(J("{'type': 'string', 'pattern': 'a', 'maxLength': 3}"), YES(J("'xa'"), J("'axx'")),
           YES(J("'xx'"), J("'axxx'")));
    SCHEMA(J("{'type': 'string', 'allOf': [{'pattern': 'a'}, {'pattern': 'b'}], 'not': {'pattern': "
             "'c'}}"),
           YES(J("'ab'"), J("'xbxa'"), J("'a\\nb'")), YES(J("'a'"), J("'abc'"), J("''")));
    SCHEMA(J("{'type': 'string', 'pattern': '^(?!foo|bar$)[a-z]+(?=z)[x-z]*$'}"),
           YES(J("'az'"), J("'barz'"), J("'abczx'")),
           YES(J("'fooz'"), J("'bar'"), J("'abc'"), J("'az1'")));
    SCHEMA(J("{'type': 'string', 'pattern': 'a(?!b)'}"), YES(J("'a'"), J("'abac'")),
           YES(J("'ab'"), J("'\\u0061'")));
    SCHEMA(J("{'type': 'string', 'pattern': '(^a|b$)'}"), YES(J("'ax'"), J("'xb'")),
           YES(J("'xa'")));
    REFUSED("{\"type\": \"string\", \"pattern\": \"(a(?=b))+\"}", "unsupported", "#/pattern");
    REFUSED("{\"type\": \"string\", \"pattern\": \"(?<=a)b\"}", "unsupported", "#/pattern");
    REFUSED("{\"type\": \"string\", \"pattern\": \"(a\"}", "invalid", "#/pattern");
    SCHEMA(J("{'type': 'string', 'pattern': '^2024', 'format': 'date'}"), YES(J("'2024-02-29'")),
           YES(J("'2023-02-28'"), J("'2024-02-30'")));
}

#define FORMAT(name, yes, no) SCHEMA("{\"type\": \"string\", \"format\": \"" name "\"}", yes, no)

Test(grammar_schema, formats) {
    FORMAT("date", YES(J("'2024-02-29'"), J("'1999-12-31'"), J("'2000-02-29'")),
           YES(J("'2023-02-29'"), J("'1900-02-29'"), J("'2024-04-31'"), J("'2024-13-01'"),
               J("'24-01-01'")));
    FORMAT("time", YES(J("'23:59:59Z'"), J("'00:00:00.123+02:00'")),
           YES(J("'24:00:00Z'"), J("'12:00:00'"), J("'12:60:00Z'")));
    FORMAT("date-time", YES(J("'2024-02-29T12:00:00Z'"), J("'2024-01-01T00:00:00.5-11:30'")),
           YES(J("'2024-02-29'"), J("'2024-02-30T12:00:00Z'"), J("'2024-02-29 12:00:00Z'")));
    FORMAT(
        "uuid", YES(J("'123e4567-e89b-12d3-a456-426614174000'")),
        YES(J("'123e4567e89b12d3a456426614174000'"), J("'123e4567-e89b-12d3-a456-42661417400g'")));
    FORMAT("email", YES(J("'a@b.co'"), J("'first.last+tag@mail.example.org'")),
           YES(J("'a@b'"), J("'@b.co'"), J("'a b@c.de'"), J("'a@b..co'")));
    FORMAT("ipv4", YES(J("'127.0.0.1'"), J("'255.255.255.255'")),
           YES(J("'256.0.0.1'"), J("'1.2.3'"), J("'01.2.3.4'")));
    FORMAT("ipv6",
           YES(J("'::'"), J("'::1'"), J("'fe80::1:2'"), J("'1:2:3:4:5:6:7:8'"),
               J("'1:2:3:4:5:6:7::'")),
           YES(J("':::'"), J("'1:2:3'"), J("'1::2::3'"), J("'12345::'"), J("'1:2:3:4:5:6:7:8:9'")));
    FORMAT("uri",
           YES(J("'https://example.com/a/b?c=d&e#f'"), J("'mailto:a@b.co'"),
               J("'http://localhost:8080'"), J("'file:///c:/a'"), J("'urn:isbn:1'"), J("'did-2:a'"),
               J("'ftp://u:p@my-long-host-name.x--y.org/'")),
           YES(J("'example.com'"), J("'http://a b'"), J("'/a'"), "\"http://x/%zz\"", J("'http://'"),
               J("'1a:b'"), J("'http://-a'"), J("'http://a:b@c@d'"), J("'a:'"), J("'http://a:x'")));
    FORMAT("hostname", YES(J("'localhost'"), J("'www.example-site.com'")),
           YES(J("'-a.com'"), J("'a..b'"), J("'a_b'")));
    FORMAT("regex",
           YES(J("'^[a-z]+$'"), J("'a|(b|c)*'"), J("'\\\\d{2}'"), "\"[a-z']{3,16}\\\\n?\""),
           YES(J("'*'"), J("'(a'"), J("'['"), J("'\\\\'"), J("'a{3,1}'"), J("'[b-a]'")));
    FORMAT("duration", YES(J("'P1Y'"), J("'PT5M'"), J("'P3W'"), J("'P1Y2M3DT4H5M6S'")),
           YES(J("'P'"), J("'1Y'"), J("'PT'"), J("'P1Y2D'"), J("'PT1H2S'")));
    FORMAT("uri-reference", YES(J("'//h/p'"), J("'/a//b'"), J("'./t:a'"), J("'?q'"), J("''")),
           YES(J("'//a:b/p'"), J("'//a@b@c/'"), J("'1:b'")));
    FORMAT("ipv6", YES(J("'::ffff:1.2.3.4'"), J("'1:2:3:4:5:6:1.2.3.4'"), J("'1::2:1.2.3.4'")),
           YES(J("'1:2:3:4:5:6:7:1.2.3.4'"), J("'::1.2.3'")));
    FORMAT("email", YES(J("'te~st@a.org'")), YES(J("'a b@c.org'")));
    FORMAT("json-pointer", YES(J("''"), J("'/a~0b/1'")), YES(J("'a'"), J("'/~2'")));
    REFUSED("{\"type\": \"string\", \"format\": \"topic\"}", "unsupported",
            "#/format: format 'topic'");
    /* An annotation says nothing of the type. */
    test_lists_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_ANY_FORMAT, J("{'format': 'positive'}"),
                    YES("1", J("''"), "[]"), NONE);
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_ANY_FORMAT,
                          J("{'type': 'string', 'format': 'path', 'maxLength': 3}"));

    cr_expect(test_fits(g, J("'abc'"), 5) && !test_fits(g, J("'abcd'"), 6));
}

Test(grammar_schema, words_that_allow_everything_imply_no_type) {
    SCHEMA(J("{'type': 'array', 'items': {'properties': {}, 'required': []}}"),
           YES(J("[1, 'a', {}]")), NONE);
    SCHEMA(J("{'properties': {'a': {}}}"), YES("{}", J("{'a':1}")), YES("1", "[]"));
}

Test(grammar_schema, compact_has_no_white_space) {
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_COMPACT,
                          J("{'type': 'object', 'properties': {'a': {'type': 'array'}}}"));

    cr_expect(test_fits(g, J("{'a':[1,{'b':2}]}"), 17));
    cr_expect(!test_fits(g, J("{'a': [1]}"), 10) && !test_fits(g, J("{'a':[1, 2]}"), 12) &&
              !test_fits(g, "{ }", 3));
}

Test(grammar_schema, white_space_is_bounded) {
    CLEANUP(grammar_freep)
    struct grammar *g = test_compile(GRAMMAR_JSON_SCHEMA, J("{'type': 'array'}"));
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
    SCHEMA(J("{'$schema': 'https://json-schema.org/draft/2020-12/schema', '$id': 'https://x/y', "
             "'title': 't', 'description': 'd', 'default': 1, 'examples': [1], 'deprecated': true, "
             "'$comment': 'c', 'x-order': 1, 'type': 'integer'}"),
           YES("5"), YES(J("''")));
}

/* Generators of schemas write null for keywords that the author left out. */
Test(grammar_schema, null_keywords_are_absent) {
    SCHEMA(J("{'type': 'string', 'minLength': null, 'maxLength': 2, 'pattern': null, 'format': "
             "null, 'enum': null, 'items': null, 'properties': null, 'anyOf': null, '$ref': null, "
             "'not': null, 'if': null, 'then': {}, 'multipleOf': null}"),
           YES(J("''"), J("'ab'")), YES(J("'abc'"), "null", "1"));
    SCHEMA(J("{'type': 'object', 'properties': {'minimum': {'type': 'integer', 'minimum': null, "
             "'maximum': 3}, 'enum': {'enum': [{'minimum': null}, null]}}, 'required': ['minimum', "
             "'enum'], 'additionalProperties': false, 'minProperties': null}"),
           YES(J("{'minimum':-7,'enum':null}"), J("{'minimum':3,'enum':{'minimum':null}}")),
           YES(J("{'minimum':4,'enum':null}"), J("{'minimum':3,'enum':{}}"), J("{'minimum':3}")));
    SCHEMA(J("{'anyOf': [{'type': null, 'const': null}, {'$ref': '#/$defs/minLength'}], '$defs': "
             "{'minLength': {'type': 'boolean', 'minLength': null}}}"),
           YES("null", "true"), YES("1", J("''")));
    SCHEMA(J("{'type': 'integer', 'not': {'minimum': 3, 'maximum': null}}"), YES("2", "-5"),
           YES("3"));
    test_refused(GRAMMAR_JSON_SCHEMA, J("{'properties': {'a': null}}"), "grammar_invalid",
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
                 "{\"type\": \"object\", \"properties\": {\"p\": {\"items\": {\"%s\": {}}}}}",
                 WORDS[i]);
        snprintf(path, sizeof(path), "#/properties/p/items/%s", WORDS[i]);
        REFUSED(source, "unsupported", path);
    }
    REFUSED("{\"items\": {\"uniqueItems\": true}}", "unsupported", "#/items/uniqueItems");
    SCHEMA(J("{'not': {'type': 'integer'}, 'enum': ['a', 1, 1.5]}"), YES(J("'a'"), "1.5"),
           YES("1"));
    SCHEMA(J("{'type': 'array', 'uniqueItems': true, 'maxItems': 1}"), YES("[]", "[1]"),
           YES("[1,2]"));
    SCHEMA(J("{'type': 'array', 'uniqueItems': false}"), YES("[1,1]"), YES("1"));
}

Test(grammar_schema, any_order) {
    const char *S = J("{'type': 'object', 'properties': {'a': {'type': 'integer'}, 'ab': {'type': "
                      "'object', 'properties': {'x': {}, 'y': {}}, 'required': ['y']}, 'c': {}}, "
                      "'required': ['c', 'a'], 'additionalProperties': {'type': 'null'}}");

    test_lists_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_ANY_ORDER, S,
                    YES(J("{'a':1,'c':2}"), J("{'c':2, 'a':1}"),
                        J("{'z':null,'c':[],'ab':{'y':1,'x':2},'a':5}"),
                        J("{'c':{'c':1},\n  'a':0, 'q': null }")),
                    YES("{}", J("{'a':1}"), J("{'a':1,'a':1,'c':2}"), J("{'c':1,'a':1,'c':1}"),
                        J("{'c':1,'ab':{'x':1},'a':1}"), J("{'c':1,'a':1,'z':1}"),
                        J("{'c':1,'a':1,}")));
    test_lists_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_ANY_ORDER | GRAMMAR_COMPACT,
                    J("{'properties': {'a': {}, 'b': {}}, 'additionalProperties': false}"),
                    YES("{}", J("{'b':1,'a':2}"), J("{'a':{}}")),
                    YES(J("{'b':1,'b':1}"), J("{'c':1}")));
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
        J("{'type': 'object', 'properties': {'ab': {'maximum': 5}}, 'patternProperties': {'^a': "
          "{'type': 'integer'}, 'b$': {'minimum': 2}}, 'additionalProperties': {'type': 'null'}}");

    SCHEMA(
        S,
        YES("{}", J("{'ab':3}"), J("{'ac':1}"), J("{'xb':2.5}"), J("{'aab':2}"), J("{'x':null}")),
        YES(J("{'ab':1}"), J("{'ab':6}"), J("{'ac':null}"), J("{'xb':1}"), J("{'aab':2.5}"),
            J("{'x':1}")));
    SCHEMA(J("{'type': 'object', 'patternProperties': {'^x-': {}}, 'additionalProperties': false}"),
           YES("{}", J("{'x-':1,'x-y':2}")), YES(J("{'y':1}")));
    SCHEMA(J("{'type': 'object', 'patternProperties': {'secret': false}}"), YES(J("{'a':1}")),
           YES(J("{'my_secret':1}")));
    REFUSED("{\"patternProperties\": {\"(\": {}}}", "invalid", "#/patternProperties/(");
}

Test(grammar_schema, few_values_are_unique_in_any_order) {
    SCHEMA(J("{'type': 'array', 'uniqueItems': true, 'items': {'enum': ['a', 'b', 1, 1.0, null]}}"),
           YES("[]", J("['b','a']"), J("[null,1,'a','b']"), J("[1, 'b' ]")),
           YES(J("['a','a']"), J("[1,'b',1]"), "[1,1.0]", J("['c']"), J("[null,'a','b',1,null]"),
               "[,]"));
    SCHEMA(J("{'type': 'array', 'uniqueItems': true, 'items': {'type': 'boolean'}, 'minItems': 1}"),
           YES("[true]", "[false,true]"), YES("[]", "[true,true]", "[true,false,true]"));
    SCHEMA(J("{'type': 'array', 'uniqueItems': true, 'items': {'enum': [1, 2, 3, 4]}, 'minItems': "
             "2, 'maxItems': 3}"),
           YES("[4,1]", "[3,1,2]"), YES("[]", "[1]", "[1,1]", "[1,2,1]", "[1,2,3,4]"));
    SCHEMA(J("{'type': 'array', 'uniqueItems': true, 'items': {'enum': [1, 2, 3]}, 'minItems': 3}"),
           YES("[3,1,2]"), YES("[3,1]", "[1,2,2]", "[1,2,3,3]"));
    REFUSED("{\"uniqueItems\": true, \"items\": {\"enum\": [1, [2]]}}", "unsupported",
            "#/uniqueItems");
    REFUSED("{\"uniqueItems\": true, \"minItems\": 3, \"items\": {\"enum\": [1, 2, 3, 4, 5, 6, 7, "
            "8, 9]}}",
            "unsupported", "#/uniqueItems");
}

Test(grammar_schema, references_by_name_and_by_the_own_uri) {
    SCHEMA(J("{'$id': 'https://x.org/a', 'items': {'$ref': '#n'}, '$defs': {'m': {'$anchor': 'n', "
             "'type': 'integer'}}}"),
           YES("[1]"), YES(J("['']")));
    SCHEMA(J("{'id': 'https://x.org/a#', 'properties': {'a': {'$ref': 'https://x.org/a#'}, 'b': "
             "{'$ref': 'https://x.org/a#/$defs/m'}, 'c': {'$ref': '#m'}}, '$defs': {'m': {'id': "
             "'#m', 'type': 'null'}}}"),
           YES("{}", J("{'a':{'b':null}}"), J("{'c':null}")),
           YES(J("{'a':{'b':1}}"), J("{'c':1}")));
    /* An $id inside matters only to the references beside it. */
    SCHEMA(
        J("{'properties': {'a': {'$id': '/x', 'type': 'null'}, 'b': {'$ref': '#/properties/a'}}}"),
        YES(J("{'a':null,'b':null}")), YES(J("{'b':1}")));
    REFUSED("{\"properties\": {\"a\": {\"$id\": \"/x\", \"items\": {\"$ref\": \"#\"}}}}",
            "unsupported", "#/properties/a/$id");
    REFUSED("{\"$ref\": \"#n\"}", "invalid", "#/$ref: '#n' does not exist");
    REFUSED("{\"$ref\": \"https://x.org/b\"}", "unsupported", "#/$ref: only references inside");
    REFUSED("{\"items\": {\"$ref\": \"#n\"}, \"$defs\": {\"a\": {\"$anchor\": \"n\"}, \"b\": "
            "{\"$anchor\": \"n\"}}}",
            "unsupported", "#/items/$ref: '#n' is defined twice");
}

Test(grammar_schema, old_drafts) {
    SCHEMA(J("{'items': [{'type': 'integer'}, {}], 'additionalItems': false}"),
           YES("[]", "[1]", J("[1,'']")), YES(J("['']"), "[1,1,1]"));
    SCHEMA(J("{'type': 'integer', 'minimum': 3, 'exclusiveMinimum': true}"), YES("4"), YES("3"));
    SCHEMA(J("{'$schema': 'http://json-schema.org/draft-07/schema#', 'definitions': {'x': {'type': "
             "'integer'}}, 'items': {'$ref': '#/definitions/x', 'maximum': 3}}"),
           YES("[4]"), YES(J("['']")));
}

Test(grammar_schema, mistakes_name_their_place) {
    REFUSED("{\"type\": \"strin\"}", "invalid", "#/type");
    REFUSED("{\"type\": 1}", "invalid", "#/type");
    REFUSED("{\"properties\": []}", "invalid", "#/properties");
    REFUSED("{\"properties\": {\"a\": 1}}", "invalid", "#/properties/a: a schema must be");
    REFUSED("{\"required\": [1]}", "invalid", "#/required");
    REFUSED("{\"type\": \"string\\u0000\"}", "invalid", "unknown type");
    REFUSED("{\"format\": \"date\\u0000\"}", "invalid", "#/format: this must be a string");
    REFUSED("{\"prefixItems\": {}}", "invalid", "#/prefixItems");
    REFUSED("{\"contains\": {}, \"minContains\": \"1\"}", "unsupported", "#/contains");
    REFUSED("{\"$ref\": \"\\u00010\"}", "unsupported", "#/$ref");
    REFUSED("{\"\\u0001some\": {}}", "invalid", "unknown keyword");
    REFUSED("{\"allOf\": {}}", "invalid", "#/allOf");
    REFUSED("[1]", "invalid", "#: a schema must be");
    REFUSED("{\"type\": ", "invalid", "not valid JSON");
    REFUSED("false", "invalid", "no text satisfies");
    REFUSED("{\"contains\": {}, \"maxContains\": 2}", "unsupported",
            "only with minContains 1 and without maxContains");
    REFUSED("{\"unevaluatedProperties\": {}}", "unsupported", "is supported only as true or false");
    REFUSED("{\"$ref\": \"#x/y\"}", "invalid", "#/$ref: ");
    REFUSED("{\"type\": \"array\", \"uniqueItems\": true}", "unsupported",
            "is supported for strings, integers and few values only");
}
