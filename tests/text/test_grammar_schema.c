/* JSON Schema, keyword by keyword: what fits, what does not, what is refused. */

#include <stdio.h>
#include <string.h>
#include "tests/text/grammar_support.h"

#define SCHEMA(source, yes, no) test_lists(GRAMMAR_JSON_SCHEMA, source, yes, no)
/* Without additionalProperties only declared properties. */
#define CLOSED(source, yes, no)                                                                    \
    test_lists_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_DECLARED_ONLY, source, yes, no)
#define REFUSED(source, code, part) test_refused(GRAMMAR_JSON_SCHEMA, source, "grammar_" code, part)

Test(grammar_schema, types) {
    SCHEMA("{\"type\": \"null\"}", YES("null"), YES("true", "0", ""));
    SCHEMA("{\"type\": \"boolean\"}", YES("true", "false"), YES("null", "tru"));
    SCHEMA("{\"type\": \"integer\"}", YES("0", "-1", "12345678901234567890", "-0"),
           YES("1.0", "01", "1e3", "-", "+1", ""));
    SCHEMA("{\"type\": \"number\"}", YES("0", "-1.5", "1e3", "2.5E-10", "0.0"),
           YES("1.", ".5", "1e", "01", "NaN"));
    SCHEMA("{\"type\": \"string\"}",
           YES("\"\"", "\"a\"", "\"\\n\\u00e9\\\"\"", "\"\xc3\xa9\"", "\"\\ud83d\\ude00\""),
           YES("a", "\"", "\"\n\"", "\"\\x\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\xff\"", "\"\xc3\"",
               "\"a\" "));
    SCHEMA("{\"type\": [\"string\", \"null\"]}", YES("null", "\"x\""), YES("1", "nul"));
    SCHEMA("{\"type\": \"array\"}", YES("[]", "[1, \"a\", {}]", "[\n  1,\n  2\n]"),
           YES("[1,]", "[,]", "{}", "[1 2]"));
    SCHEMA("{\"type\": \"object\"}",
           YES("{}", "{\"a\": 1}", "{\"a\":{\"b\":[]},\"c\":null}", "{\n  \"a\": 1\n}"),
           YES("{\"a\"}", "{a:1}", "[]", "{\"a\":1,}"));
    SCHEMA("{}", YES("1", "\"a\"", "[{}]", "null"), YES("", "x"));
    SCHEMA("true", YES("1", "{\"a\": [true]}"), YES(""));
}

Test(grammar_schema, properties_in_their_order) {
    static const char S[] =
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": "
        "\"boolean\"}, \"ab\": {\"type\": \"null\"}}, \"required\": [\"b\"]}";

    CLOSED(S,
           YES("{\"b\": true}", "{\"a\":1,\"b\":false}", "{\"a\": 1, \"b\": true, \"ab\": null}",
               "{ \"b\":true, \"ab\":null }"),
           YES("{}", "{\"a\":1}", "{\"b\":true,\"a\":1}", "{\"b\":1}", "{\"b\":true,\"c\":1}",
               "{\"b\":true,}", "{,\"b\":true}"));
    CLOSED("{\"properties\": {\"x\": {}}}", YES("{}", "{\"x\": [1]}"), YES("{\"y\": 1}", "1"));
    CLOSED("{\"properties\": {\"x\": false, \"y\": true}}", YES("{}", "{\"y\": 1}"),
           YES("{\"x\": 1}"));
    CLOSED("{\"properties\": {\"a\\\"\\n\\u00e9/\": {\"type\": \"null\"}}}",
           YES("{\"a\\\"\\n\xc3\xa9/\": null}"), YES("{\"a\": null}"));
    CLOSED("{\"type\": \"object\", \"required\": [\"z\", \"y\"]}",
           YES("{\"z\": 1, \"y\": 2}", "{\"z\": 1, \"y\": 2, \"x\": 3}"),
           YES("{}", "{\"z\": 1}", "{\"y\": 1}", "{\"z\": 1, \"y\": 2, \"z\": 3}"));
    REFUSED("{\"properties\": {\"x\": false}, \"required\": [\"x\"]}", "invalid",
            "no text satisfies");
}

Test(grammar_schema, additional_properties) {
    static const char S[] = "{\"properties\": {\"ab\": {\"type\": \"integer\"}, \"abc\": "
                            "{\"type\": \"integer\"}, \"\\\"\": {\"type\": \"null\"}}, "
                            "\"additionalProperties\": {\"type\": \"string\"}}";

    SCHEMA(S,
           YES("{}", "{\"ab\": 1, \"x\": \"y\"}", "{\"a\": \"\"}", "{\"abcd\": \"1\", \"\": \"2\"}",
               "{\"\\\"\": null, \"\\\"\\\"\": \"\"}"),
           YES("{\"ab\": \"x\"}", "{\"abc\": \"x\"}", "{\"x\": 1}", "{\"x\": \"y\", \"ab\": 1}",
               "{\"\\\"\": \"\"}", "{\"\\u0061b\": \"x\"}"));
    SCHEMA("{\"properties\": {\"a\": {}}, \"additionalProperties\": false}", YES("{}", "{\"a\":1}"),
           YES("{\"b\":1}"));
    SCHEMA("{\"properties\": {\"a\": {\"type\": \"null\"}}, \"additionalProperties\": true}",
           YES("{\"b\":1}", "{\"a\":null,\"b\":[]}"), YES("{\"a\":1}"));
    SCHEMA("{\"additionalProperties\": {\"type\": \"integer\"}}", YES("{}", "{\"k\": 1, \"l\": 2}"),
           YES("{\"k\": \"\"}"));
    SCHEMA("{\"type\": \"object\", \"additionalProperties\": false}", YES("{}", "{ }"),
           YES("{\"a\":1}"));
    SCHEMA("{\"type\": \"object\", \"unevaluatedProperties\": false, \"allOf\": [{\"properties\": "
           "{\"a\": {}}}]}",
           YES("{\"a\": 1}"), YES("{\"b\": 1}"));
}

/* What schemas around it say of properties it does not see, so they would not be allowed: too much
 * to work out. */
Test(grammar_schema, unevaluated_properties_only_outermost) {
    SCHEMA("{\"$ref\": \"#/$defs/a\", \"$defs\": {\"a\": {\"properties\": {\"x\": {}}, "
           "\"unevaluatedProperties\": false}}}",
           YES("{}", "{\"x\": 1}"), YES("{\"y\": 1}"));
    SCHEMA("{\"allOf\": [{\"properties\": {\"x\": {}}, \"unevaluatedProperties\": false}]}",
           YES("{}", "{\"x\": 1}"), YES("{\"y\": 1}"));
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
    SCHEMA("{\"type\": \"object\", \"properties\": {\"x\": {}}, \"dependentRequired\": {\"a\": "
           "[\"x\"]}, \"unevaluatedProperties\": false}",
           YES("{}", "{\"x\": 1}"), YES("{\"a\": 1}", "{\"x\": 1, \"a\": 1}"));
    SCHEMA("{\"type\": \"object\", \"unevaluatedProperties\": false, \"if\": {\"properties\": "
           "{\"f\": {\"const\": 1}}, \"required\": [\"f\"]}, \"then\": {\"properties\": {\"b\": "
           "{}}}, \"else\": {\"properties\": {\"z\": {}}}}",
           YES("{\"f\": 1}", "{\"f\": 1, \"b\": 2}", "{\"z\": 2}", "{}"),
           YES("{\"f\": 2}", "{\"z\": 2, \"f\": 2}", "{\"f\": 1, \"z\": 2}"));
    SCHEMA("{\"type\": \"object\", \"properties\": {\"x\": {}}, \"not\": {\"properties\": {\"a\": "
           "{\"const\": 1}}, \"required\": [\"a\"]}, \"unevaluatedProperties\": false}",
           YES("{}", "{\"x\": 1}"), YES("{\"a\": 2}", "{\"x\": 1, \"a\": 2}"));
    SCHEMA("{\"type\": \"object\", \"oneOf\": [{\"properties\": {\"a\": {\"const\": 1}}, "
           "\"required\": [\"a\"]}, {\"properties\": {\"b\": {\"const\": 1}}, \"required\": "
           "[\"b\"]}], \"unevaluatedProperties\": false}",
           YES("{\"a\": 1}", "{\"b\": 1}"), YES("{\"a\": 2, \"b\": 1}", "{\"a\": 1, \"b\": 2}"));
    SCHEMA(
        "{\"type\": \"object\", \"properties\": {\"x\": {}}, \"additionalProperties\": {\"type\": "
        "\"null\"}, \"unevaluatedProperties\": false}",
        YES("{\"x\": 1, \"y\": null}"), YES("{\"y\": 1}"));
    REFUSED("{\"properties\": {\"x\": {}}, \"not\": {\"not\": {\"properties\": {\"b\": {}}}}, "
            "\"unevaluatedProperties\": false}",
            "unsupported", "unevaluatedProperties");
}

Test(grammar_schema, property_names) {
    SCHEMA("{\"type\": \"object\", \"propertyNames\": {\"pattern\": \"^[a-z]{1,3}$\"}, "
           "\"additionalProperties\": {\"type\": \"integer\"}}",
           YES("{}", "{\"a\": 1, \"abc\": 2}"),
           YES("{\"abcd\": 1}", "{\"A\": 1}", "{\"a\": \"\"}"));
    SCHEMA("{\"type\": \"object\", \"propertyNames\": {\"enum\": [\"x\", \"y\"]}}",
           YES("{\"x\": 1}", "{\"y\": []}"), YES("{\"z\": 1}"));
    SCHEMA("{\"properties\": {\"a\": {}}, \"propertyNames\": {\"type\": \"string\"}, "
           "\"additionalProperties\": true}",
           YES("{\"a\": 1, \"b\": 2}"), YES("1"));
    SCHEMA("{\"type\": \"object\", \"propertyNames\": false}", YES("{}"), YES("{\"a\": 1}"));
    SCHEMA("{\"type\": \"object\", \"propertyNames\": {\"$ref\": \"#/$defs/k\"}, \"$defs\": "
           "{\"k\": {\"maxLength\": 2}}}",
           YES("{\"ab\": 1}"), YES("{\"abc\": 1}"));
    SCHEMA("{\"properties\": {\"abc\": {}, \"a\": {}}, \"propertyNames\": {\"maxLength\": 2}}",
           YES("{\"a\": 1, \"bc\": 2}"), YES("{\"abc\": 1}", "{\"bcd\": 1}"));
}

Test(grammar_schema, counts_of_properties) {
    SCHEMA("{\"type\": \"object\", \"minProperties\": 2, \"maxProperties\": 3}",
           YES("{\"a\":1,\"b\":2}", "{\"a\":1,\"b\":2,\"c\":3}"),
           YES("{}", "{\"a\":1}", "{\"a\":1,\"b\":2,\"c\":3,\"d\":4}"));
    CLOSED("{\"properties\": {\"a\": {}, \"b\": {}, \"c\": {}}, \"minProperties\": 1, "
           "\"maxProperties\": 2}",
           YES("{\"a\":1}", "{\"b\":1,\"c\":2}", "{\"a\":1,\"c\":1}"),
           YES("{}", "{\"a\":1,\"b\":2,\"c\":3}"));
    SCHEMA("{\"properties\": {\"a\": {}, \"b\": {}}, \"minProperties\": 2, \"required\": [\"b\"], "
           "\"additionalProperties\": true}",
           YES("{\"a\":1,\"b\":2}", "{\"b\":1,\"x\":2}", "{\"b\":1,\"x\":2,\"y\":3,\"z\":4}"),
           YES("{\"b\":1}", "{\"a\":1,\"x\":1}"));
    SCHEMA("{\"type\": \"object\", \"maxProperties\": 0}", YES("{}"), YES("{\"a\":1}"));
    REFUSED("{\"properties\": {\"a\": {}}, \"minProperties\": 2, \"additionalProperties\": false}",
            "invalid", "no text satisfies");
}

Test(grammar_schema, items) {
    SCHEMA("{\"type\": \"array\", \"items\": {\"type\": \"integer\"}}",
           YES("[]", "[1]", "[1, 2,3]"), YES("[\"a\"]", "[1,\"a\"]"));
    SCHEMA("{\"items\": {\"type\": \"integer\"}, \"minItems\": 2, \"maxItems\": 3}",
           YES("[1,2]", "[1,2,3]"), YES("[]", "[1]", "[1,2,3,4]"));
    SCHEMA("{\"items\": {\"type\": \"boolean\"}, \"maxItems\": 0}", YES("[]"), YES("[true]"));
    SCHEMA("{\"items\": false}", YES("[]"), YES("[1]"));
    SCHEMA("{\"prefixItems\": [{\"type\": \"integer\"}, {\"type\": \"string\"}], \"items\": "
           "{\"type\": \"null\"}}",
           YES("[]", "[1]", "[1,\"a\"]", "[1,\"a\",null,null]"),
           YES("[\"a\"]", "[1,2]", "[1,\"a\",1]"));
    SCHEMA("{\"prefixItems\": [{\"type\": \"integer\"}, {\"type\": \"string\"}], \"items\": false, "
           "\"minItems\": 2}",
           YES("[1,\"a\"]"), YES("[1]", "[1,\"a\",null]"));
    SCHEMA("{\"prefixItems\": [{\"const\": 1}, {\"const\": 2}, {\"const\": 3}], \"maxItems\": 2, "
           "\"minItems\": 1}",
           YES("[1]", "[1,2]"), YES("[]", "[1,2,3]"));
    SCHEMA("{\"items\": {\"type\": \"array\", \"items\": {\"type\": \"array\", \"items\": "
           "{\"type\": \"integer\"}}}}",
           YES("[[[1,2],[]],[]]"), YES("[[1]]"));
}

Test(grammar_schema, large_counts_of_items_are_exact) {
    CLEANUP(grammar_freep)
    struct grammar *g = test_compile(
        GRAMMAR_JSON_SCHEMA,
        "{\"items\": {\"enum\": [1, 2, \"three\"]}, \"minItems\": 500, \"maxItems\": 1000}");
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
    SCHEMA("{\"enum\": [\"a\", 1, null, {\"x\": [1, 2]}, \"\\u00e9\\n\"]}",
           YES("\"a\"", "1", "null", "{\"x\": [1, 2]}", "{\"x\":[1,2]}", "\"\xc3\xa9\\n\""),
           YES("\"b\"", "2", "{}", "{\"x\":[2,1]}"));
    SCHEMA("{\"const\": \"x\"}", YES("\"x\""), YES("\"y\"", "x"));
    SCHEMA("{\"type\": \"string\", \"enum\": [\"a\", 1]}", YES("\"a\""), YES("1"));
    SCHEMA("{\"enum\": [1, 5, 10], \"minimum\": 2, \"exclusiveMaximum\": 10}", YES("5"),
           YES("1", "10"));
    SCHEMA("{\"allOf\": [{\"enum\": [1, 2, 3]}, {\"enum\": [2.0, 3, 4]}, {\"const\": 2}]}",
           YES("2"), YES("1", "3"));
    SCHEMA("{\"enum\": [2.0, 1.5, 3e1, 0.0]}", YES("2.0", "2", "1.5", "30", "3e1", "0.0"),
           YES("3", "1", "20"));
    SCHEMA("{\"enum\": [\"a\", \"abc\"], \"minLength\": 2}", YES("\"abc\""), YES("\"a\""));
    REFUSED("{\"enum\": []}", "invalid", "#/enum");
    REFUSED("{\"type\": \"integer\", \"const\": \"x\"}", "invalid", "no text satisfies");
    SCHEMA("{\"enum\": [\"a\", \"b\", 1], \"pattern\": \"a\"}", YES("\"a\"", "1"), YES("\"b\""));
    SCHEMA("{\"enum\": [{}, {\"a\": 1}, {\"a\": null}, [2]], \"properties\": {\"a\": {\"type\": "
           "\"integer\"}}}",
           YES("{}", "{\"a\": 1}", "[2]"), YES("{\"a\": null}", "{\"b\": 1}"));
}

Test(grammar_schema, references_and_recursion) {
    static const char TREE[] = "{\"$ref\": \"#/$defs/node\", \"$defs\": {\"node\": {\"type\": "
                               "\"object\", \"properties\": {\"v\": {\"type\": \"integer\"}, "
                               "\"kids\": {\"type\": \"array\", \"items\": {\"$ref\": "
                               "\"#/$defs/node\"}}}, \"required\": [\"v\"]}}}";

    SCHEMA(TREE, YES("{\"v\":1}", "{\"v\":1,\"kids\":[{\"v\":2,\"kids\":[]},{\"v\":3}]}"),
           YES("{\"kids\":[]}", "{\"v\":1,\"kids\":[{}]}", "{\"v\":1,\"kids\":[{\"v\":2}}"));
    SCHEMA("{\"type\": \"object\", \"properties\": {\"next\": {\"anyOf\": [{\"$ref\": \"#\"}, "
           "{\"type\": \"null\"}]}}, \"required\": [\"next\"]}",
           YES("{\"next\":null}", "{\"next\":{\"next\":{\"next\":null}}}"),
           YES("{}", "{\"next\":{}}"));
    SCHEMA("{\"properties\": {\"a\": {\"$ref\": \"#/definitions/x~1y%25\", \"description\": \"d\", "
           "\"maximum\": 5}}, \"definitions\": {\"x/y%\": {\"type\": \"integer\"}}}",
           YES("{\"a\": 5}"), YES("{\"a\": 6}", "{\"a\": \"\"}"));
    SCHEMA("{\"properties\": {\"n\": {\"allOf\": [{\"$ref\": \"#\"}], \"default\": null}}}",
           YES("{}", "{\"n\":{\"n\":{}}}"), YES("{\"n\":1}"));
    SCHEMA("{\"prefixItems\": [{}, {\"type\": \"integer\"}], \"items\": {\"$ref\": "
           "\"#/prefixItems/1\"}, \"type\": \"array\"}",
           YES("[]", "[\"a\", 1, 2]"), YES("[\"a\", 1, \"b\"]", "[\"a\", \"b\"]"));
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
    SCHEMA("{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 120}",
           YES("3", "9", "10", "99", "100", "119", "120"),
           YES("2", "121", "0", "-5", "200", "1000"));
    SCHEMA("{\"type\": \"integer\", \"minimum\": -15, \"exclusiveMaximum\": 7}",
           YES("-15", "-9", "-1", "0", "6"), YES("-16", "7", "10", "-20"));
    SCHEMA("{\"type\": \"integer\", \"exclusiveMinimum\": 2.5}",
           YES("3", "100", "99999999999999999999"), YES("2", "0", "-3"));
    SCHEMA("{\"type\": \"integer\", \"maximum\": -10}", YES("-10", "-11", "-100"),
           YES("-9", "0", "10"));
    SCHEMA("{\"type\": \"integer\", \"exclusiveMinimum\": 0}", YES("1", "10"), YES("0", "-1"));
    SCHEMA("{\"type\": \"integer\", \"minimum\": 1e3, \"maximum\": 1.002E3}", YES("1000", "1002"),
           YES("999", "1003"));
    SCHEMA("{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 300, \"allOf\": [{\"format\": "
           "\"uint8\"}]}",
           YES("3", "255"), YES("2", "256"));
    SCHEMA("{\"type\": \"integer\", \"minimum\": -3, \"maximum\": 9, \"allOf\": [{\"format\": "
           "\"uint8\"}]}",
           YES("0", "9"), YES("-1", "10"));
    SCHEMA("{\"type\": \"integer\", \"minimum\": 1, \"maximum\": 5, \"allOf\": [{\"minimum\": 2, "
           "\"maximum\": 4}, {\"minimum\": 0, \"maximum\": 9}]}",
           YES("2", "4"), YES("1", "5", "0", "9"));
    SCHEMA("{\"type\": \"number\", \"multipleOf\": 1}", YES("5"), YES("5.5"));
    REFUSED("{\"type\": \"integer\", \"minimum\": 3, \"maximum\": 2}", "invalid",
            "no text satisfies");
    REFUSED("{\"type\": \"integer\", \"exclusiveMinimum\": 3, \"exclusiveMaximum\": 4}", "invalid",
            "no text satisfies");
    REFUSED("{\"type\": \"integer\", \"minimum\": \"3\"}", "invalid", "#/minimum");
    REFUSED("{\"type\": \"integer\", \"minimum\": 1e300}", "unsupported", "#/minimum");
    SCHEMA("{\"type\": \"integer\", \"multipleOf\": 5, \"minimum\": 7}", YES("10", "15", "1000"),
           YES("5", "12", "0", "-10"));
    SCHEMA("{\"multipleOf\": 0.25, \"maximum\": 2}", YES("0.5", "-1.25", "2", "0", "1.0"),
           YES("0.3", "2.25", "1.255"));
    SCHEMA("{\"type\": \"integer\", \"not\": {\"multipleOf\": 3}}", YES("1", "10", "-2"),
           YES("0", "9", "-3"));
    REFUSED("{\"multipleOf\": 0}", "invalid", "#/multipleOf");
}

Test(grammar_schema, ranges_of_numbers) {
    SCHEMA("{\"type\": \"number\", \"minimum\": 0, \"maximum\": 1}",
           YES("0", "1", "0.5", "0.0", "1.0", "1.000", "0.99999"),
           YES("1.1", "-0.1", "2", "1.0001", "1e0"));
    SCHEMA("{\"type\": \"number\", \"minimum\": -4200000000.5}",
           YES("-1.0000000000000001", "-4200000000.4999999999"), YES("-4200000000.50000000001"));
    SCHEMA("{\"type\": \"number\", \"exclusiveMinimum\": -4200000000}", YES("-4199999999.99999"),
           YES("-4199999999.9999999999", "-4200000000.0"));
    SCHEMA("{\"type\": \"number\", \"exclusiveMinimum\": 0, \"exclusiveMaximum\": 1}",
           YES("0.5", "0.001", "0.999"), YES("0", "1", "0.0", "0.000", "1.0"));
    SCHEMA("{\"type\": \"number\", \"minimum\": 1.25, \"maximum\": 3.5}",
           YES("1.25", "1.250", "1.3", "2", "2.0", "3", "3.5", "3.50", "3.4999"),
           YES("1.2", "1.24", "3.51", "3.6", "1", "4"));
    SCHEMA("{\"type\": \"number\", \"minimum\": -2.5, \"maximum\": 10.75}",
           YES("-2.5", "-2.49", "-1", "-0", "-0.5", "0", "10.75", "10.7", "9.99"),
           YES("-2.51", "-3", "10.76", "11"));
    SCHEMA("{\"type\": \"number\", \"exclusiveMaximum\": 0}", YES("-0.1", "-1", "-20.5"),
           YES("0", "-0", "-0.0", "1"));
    SCHEMA("{\"type\": \"number\", \"minimum\": 0.1, \"maximum\": 0.1}", YES("0.1", "0.10"),
           YES("0.11", "0.2", "0"));
    SCHEMA("{\"type\": \"number\", \"exclusiveMinimum\": 5}", YES("5.1", "6", "5.0001", "123456.5"),
           YES("5", "5.0", "4.9"));
}

Test(grammar_schema, lengths_of_strings) {
    SCHEMA("{\"type\": \"string\", \"minLength\": 2, \"maxLength\": 3}",
           YES("\"ab\"", "\"abc\"", "\"\\n\xc3\xa9\"", "\"\\ud83d\\ude00a\"",
               "\"\xf0\x9f\x98\x80\xe2\x82\xac\""),
           YES("\"a\"", "\"abcd\"", "\"\xc3\xa9\"", "\"\\u00e9\""));
    SCHEMA("{\"type\": \"string\", \"maxLength\": 0}", YES("\"\""), YES("\"a\""));
    SCHEMA("{\"type\": \"string\", \"minLength\": 1}", YES("\"a\"", "\"abcdefghijklmnop\""),
           YES("\"\""));
    REFUSED("{\"type\": \"string\", \"minLength\": -1}", "invalid", "#/minLength");
    REFUSED("{\"type\": \"string\", \"maxLength\": 1.5}", "invalid", "#/maxLength");
    REFUSED("{\"type\": \"string\", \"minLength\": 5, \"maxLength\": 4}", "invalid",
            "no text satisfies");
}

Test(grammar_schema, patterns) {
    SCHEMA("{\"type\": \"string\", \"pattern\": \"^[a-z]{2,4}$\"}", YES("\"ab\"", "\"abcd\""),
           YES("\"a\"", "\"abcde\"", "\"AB\""));
    SCHEMA("{\"type\": \"string\", \"pattern\": \"b+\"}",
           YES("\"b\"", "\"abba\"", "\"\\nb\\u0041\""), YES("\"\"", "\"a\""));
    SCHEMA("{\"type\": \"string\", \"pattern\": \"^a\"}", YES("\"a\"", "\"abc\""), YES("\"ba\""));
    SCHEMA("{\"type\": \"string\", \"pattern\": \"a$|^b\"}", YES("\"xa\"", "\"bx\""),
           YES("\"ax\"", "\"xb\""));
    SCHEMA("{\"type\": \"string\", \"pattern\": \"^[\\\"\\\\\\\\\\\\n]*$\"}",
           YES("\"\\\"\\\\\\n\"", "\"\""), YES("\"\"\"", "\"\n\""));
    /* A pattern that all strings match: lengths of any size are counted. */
    SCHEMA("{\"type\": \"string\", \"pattern\": \"([a-z]+)?\", \"minLength\": 2, \"maxLength\": 3}",
           YES("\"+1\"", "\"a\\\"\303\251\""), YES("\"a\"", "\"abcd\"", "\"a\\u0062\""));
    SCHEMA("{\"type\": \"string\", \"pattern\": \"[a-z]*\", \"maxLength\": 100000}", YES("\"+\""),
           YES("\"\\u0062\""));
    SCHEMA("{\"type\": \"string\", \"pattern\": \"^[a-z]+$\", \"maxLength\": 3}", YES("\"abc\""),
           YES("\"abcd\"", "\"\""));
    SCHEMA("{\"type\": \"string\", \"pattern\": \"^[a-z]{2}-[0-9]$\", \"minLength\": 1, "
           "\"maxLength\": 4}",
           YES("\"ab-1\""), YES("\"ab\""));
    /* Characters, not bytes: é and an emoji are one, an escape is one. */
    SCHEMA("{\"type\": \"string\", \"pattern\": \"^(x|[^y]+)$\", \"minLength\": 2, \"maxLength\": "
           "3}",
           YES("\"ab\"", "\"\xc3\xa9\xf0\x9f\x98\x80\"", "\"\\n\\u0001\\\"\""),
           YES("\"\"", "\"x\"", "\"\xc3\xa9\"", "\"\\n\"", "\"ab\xc3\xa9z\"", "\"ay\""));
    SCHEMA("{\"type\": \"string\", \"pattern\": \"^(x|[^y]+)$\", \"minLength\": 2}",
           YES("\"ab\"", "\"abcdef\""), YES("\"x\"", "\"\xc3\xa9\"", "\"\""));
    SCHEMA("{\"type\": \"string\", \"pattern\": \"a\", \"maxLength\": 3}", YES("\"xa\"", "\"axx\""),
           YES("\"xx\"", "\"axxx\""));
    SCHEMA(
        "{\"type\": \"string\", \"allOf\": [{\"pattern\": \"a\"}, {\"pattern\": \"b\"}], \"not\": "
        "{\"pattern\": \"c\"}}",
        YES("\"ab\"", "\"xbxa\"", "\"a\\nb\""), YES("\"a\"", "\"abc\"", "\"\""));
    SCHEMA("{\"type\": \"string\", \"pattern\": \"^(?!foo|bar$)[a-z]+(?=z)[x-z]*$\"}",
           YES("\"az\"", "\"barz\"", "\"abczx\""),
           YES("\"fooz\"", "\"bar\"", "\"abc\"", "\"az1\""));
    SCHEMA("{\"type\": \"string\", \"pattern\": \"a(?!b)\"}", YES("\"a\"", "\"abac\""),
           YES("\"ab\"", "\"\\u0061\""));
    SCHEMA("{\"type\": \"string\", \"pattern\": \"(^a|b$)\"}", YES("\"ax\"", "\"xb\""),
           YES("\"xa\""));
    REFUSED("{\"type\": \"string\", \"pattern\": \"(a(?=b))+\"}", "unsupported", "#/pattern");
    REFUSED("{\"type\": \"string\", \"pattern\": \"(?<=a)b\"}", "unsupported", "#/pattern");
    REFUSED("{\"type\": \"string\", \"pattern\": \"(a\"}", "invalid", "#/pattern");
    SCHEMA("{\"type\": \"string\", \"pattern\": \"^2024\", \"format\": \"date\"}",
           YES("\"2024-02-29\""), YES("\"2023-02-28\"", "\"2024-02-30\""));
}

#define FORMAT(name, yes, no) SCHEMA("{\"type\": \"string\", \"format\": \"" name "\"}", yes, no)

Test(grammar_schema, formats) {
    FORMAT("date", YES("\"2024-02-29\"", "\"1999-12-31\"", "\"2000-02-29\""),
           YES("\"2023-02-29\"", "\"1900-02-29\"", "\"2024-04-31\"", "\"2024-13-01\"",
               "\"24-01-01\""));
    FORMAT("time", YES("\"23:59:59Z\"", "\"00:00:00.123+02:00\""),
           YES("\"24:00:00Z\"", "\"12:00:00\"", "\"12:60:00Z\""));
    FORMAT("date-time", YES("\"2024-02-29T12:00:00Z\"", "\"2024-01-01T00:00:00.5-11:30\""),
           YES("\"2024-02-29\"", "\"2024-02-30T12:00:00Z\"", "\"2024-02-29 12:00:00Z\""));
    FORMAT("uuid", YES("\"123e4567-e89b-12d3-a456-426614174000\""),
           YES("\"123e4567e89b12d3a456426614174000\"", "\"123e4567-e89b-12d3-a456-42661417400g\""));
    FORMAT("email", YES("\"a@b.co\"", "\"first.last+tag@mail.example.org\""),
           YES("\"a@b\"", "\"@b.co\"", "\"a b@c.de\"", "\"a@b..co\""));
    FORMAT("ipv4", YES("\"127.0.0.1\"", "\"255.255.255.255\""),
           YES("\"256.0.0.1\"", "\"1.2.3\"", "\"01.2.3.4\""));
    FORMAT("ipv6",
           YES("\"::\"", "\"::1\"", "\"fe80::1:2\"", "\"1:2:3:4:5:6:7:8\"", "\"1:2:3:4:5:6:7::\""),
           YES("\":::\"", "\"1:2:3\"", "\"1::2::3\"", "\"12345::\"", "\"1:2:3:4:5:6:7:8:9\""));
    FORMAT("uri",
           YES("\"https://example.com/a/b?c=d&e#f\"", "\"mailto:a@b.co\"",
               "\"http://localhost:8080\"", "\"file:///c:/a\"", "\"urn:isbn:1\"", "\"did-2:a\"",
               "\"ftp://u:p@my-long-host-name.x--y.org/\""),
           YES("\"example.com\"", "\"http://a b\"", "\"/a\"", "\"http://x/%zz\"", "\"http://\"",
               "\"1a:b\"", "\"http://-a\"", "\"http://a:b@c@d\"", "\"a:\"", "\"http://a:x\""));
    FORMAT("hostname", YES("\"localhost\"", "\"www.example-site.com\""),
           YES("\"-a.com\"", "\"a..b\"", "\"a_b\""));
    FORMAT("regex", YES("\"^[a-z]+$\"", "\"a|(b|c)*\"", "\"\\\\d{2}\"", "\"[a-z']{3,16}\\\\n?\""),
           YES("\"*\"", "\"(a\"", "\"[\"", "\"\\\\\"", "\"a{3,1}\"", "\"[b-a]\""));
    FORMAT("duration", YES("\"P1Y\"", "\"PT5M\"", "\"P3W\"", "\"P1Y2M3DT4H5M6S\""),
           YES("\"P\"", "\"1Y\"", "\"PT\"", "\"P1Y2D\"", "\"PT1H2S\""));
    FORMAT("uri-reference", YES("\"//h/p\"", "\"/a//b\"", "\"./t:a\"", "\"?q\"", "\"\""),
           YES("\"//a:b/p\"", "\"//a@b@c/\"", "\"1:b\""));
    FORMAT("ipv6", YES("\"::ffff:1.2.3.4\"", "\"1:2:3:4:5:6:1.2.3.4\"", "\"1::2:1.2.3.4\""),
           YES("\"1:2:3:4:5:6:7:1.2.3.4\"", "\"::1.2.3\""));
    FORMAT("email", YES("\"te~st@a.org\""), YES("\"a b@c.org\""));
    FORMAT("json-pointer", YES("\"\"", "\"/a~0b/1\""), YES("\"a\"", "\"/~2\""));
    REFUSED("{\"type\": \"string\", \"format\": \"topic\"}", "unsupported",
            "#/format: format 'topic'");
    /* An annotation says nothing of the type. */
    test_lists_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_ANY_FORMAT, "{\"format\": \"positive\"}",
                    YES("1", "\"\"", "[]"), NONE);
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_ANY_FORMAT,
                          "{\"type\": \"string\", \"format\": \"path\", \"maxLength\": 3}");

    cr_expect(test_fits(g, "\"abc\"", 5) && !test_fits(g, "\"abcd\"", 6));
}

Test(grammar_schema, words_that_allow_everything_imply_no_type) {
    SCHEMA("{\"type\": \"array\", \"items\": {\"properties\": {}, \"required\": []}}",
           YES("[1, \"a\", {}]"), NONE);
    SCHEMA("{\"properties\": {\"a\": {}}}", YES("{}", "{\"a\":1}"), YES("1", "[]"));
}

Test(grammar_schema, compact_has_no_white_space) {
    CLEANUP(grammar_freep)
    struct grammar *g =
        test_compile_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_COMPACT,
                          "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"array\"}}}");

    cr_expect(test_fits(g, "{\"a\":[1,{\"b\":2}]}", 17));
    cr_expect(!test_fits(g, "{\"a\": [1]}", 10) && !test_fits(g, "{\"a\":[1, 2]}", 12) &&
              !test_fits(g, "{ }", 3));
}

Test(grammar_schema, white_space_is_bounded) {
    CLEANUP(grammar_freep)
    struct grammar *g = test_compile(GRAMMAR_JSON_SCHEMA, "{\"type\": \"array\"}");
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
    SCHEMA("{\"$schema\": \"https://json-schema.org/draft/2020-12/schema\", \"$id\": "
           "\"https://x/y\", \"title\": \"t\", \"description\": \"d\", \"default\": 1, "
           "\"examples\": [1], \"deprecated\": true, \"$comment\": \"c\", \"x-order\": 1, "
           "\"type\": \"integer\"}",
           YES("5"), YES("\"\""));
}

/* Generators of schemas write null for keywords that the author left out. */
Test(grammar_schema, null_keywords_are_absent) {
    SCHEMA(
        "{\"type\": \"string\", \"minLength\": null, \"maxLength\": 2, \"pattern\": null, "
        "\"format\": null, \"enum\": null, \"items\": null, \"properties\": null, \"anyOf\": null, "
        "\"$ref\": null, \"not\": null, \"if\": null, \"then\": {}, \"multipleOf\": null}",
        YES("\"\"", "\"ab\""), YES("\"abc\"", "null", "1"));
    SCHEMA(
        "{\"type\": \"object\", \"properties\": {\"minimum\": {\"type\": \"integer\", "
        "\"minimum\": null, \"maximum\": 3}, \"enum\": {\"enum\": [{\"minimum\": null}, null]}}, "
        "\"required\": [\"minimum\", \"enum\"], \"additionalProperties\": false, "
        "\"minProperties\": null}",
        YES("{\"minimum\":-7,\"enum\":null}", "{\"minimum\":3,\"enum\":{\"minimum\":null}}"),
        YES("{\"minimum\":4,\"enum\":null}", "{\"minimum\":3,\"enum\":{}}", "{\"minimum\":3}"));
    SCHEMA("{\"anyOf\": [{\"type\": null, \"const\": null}, {\"$ref\": \"#/$defs/minLength\"}], "
           "\"$defs\": {\"minLength\": {\"type\": \"boolean\", \"minLength\": null}}}",
           YES("null", "true"), YES("1", "\"\""));
    SCHEMA("{\"type\": \"integer\", \"not\": {\"minimum\": 3, \"maximum\": null}}", YES("2", "-5"),
           YES("3"));
    test_refused(GRAMMAR_JSON_SCHEMA, "{\"properties\": {\"a\": null}}", "grammar_invalid",
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
    SCHEMA("{\"not\": {\"type\": \"integer\"}, \"enum\": [\"a\", 1, 1.5]}", YES("\"a\"", "1.5"),
           YES("1"));
    SCHEMA("{\"type\": \"array\", \"uniqueItems\": true, \"maxItems\": 1}", YES("[]", "[1]"),
           YES("[1,2]"));
    SCHEMA("{\"type\": \"array\", \"uniqueItems\": false}", YES("[1,1]"), YES("1"));
}

Test(grammar_schema, any_order) {
    static const char S[] =
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\"}, \"ab\": "
        "{\"type\": "
        "\"object\", \"properties\": {\"x\": {}, \"y\": {}}, \"required\": [\"y\"]}, \"c\": {}}, "
        "\"required\": [\"c\", \"a\"], \"additionalProperties\": {\"type\": \"null\"}}";

    test_lists_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_ANY_ORDER, S,
                    YES("{\"a\":1,\"c\":2}", "{\"c\":2, \"a\":1}",
                        "{\"z\":null,\"c\":[],\"ab\":{\"y\":1,\"x\":2},\"a\":5}",
                        "{\"c\":{\"c\":1},\n  \"a\":0, \"q\": null }"),
                    YES("{}", "{\"a\":1}", "{\"a\":1,\"a\":1,\"c\":2}", "{\"c\":1,\"a\":1,\"c\":1}",
                        "{\"c\":1,\"ab\":{\"x\":1},\"a\":1}", "{\"c\":1,\"a\":1,\"z\":1}",
                        "{\"c\":1,\"a\":1,}"));
    test_lists_with(GRAMMAR_JSON_SCHEMA, GRAMMAR_ANY_ORDER | GRAMMAR_COMPACT,
                    "{\"properties\": {\"a\": {}, \"b\": {}}, \"additionalProperties\": false}",
                    YES("{}", "{\"b\":1,\"a\":2}", "{\"a\":{}}"),
                    YES("{\"b\":1,\"b\":1}", "{\"c\":1}"));
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
    static const char S[] =
        "{\"type\": \"object\", \"properties\": {\"ab\": {\"maximum\": 5}}, \"patternProperties\": "
        "{\"^a\": {\"type\": \"integer\"}, \"b$\": {\"minimum\": 2}}, \"additionalProperties\": "
        "{\"type\": \"null\"}}";

    SCHEMA(S, YES("{}", "{\"ab\":3}", "{\"ac\":1}", "{\"xb\":2.5}", "{\"aab\":2}", "{\"x\":null}"),
           YES("{\"ab\":1}", "{\"ab\":6}", "{\"ac\":null}", "{\"xb\":1}", "{\"aab\":2.5}",
               "{\"x\":1}"));
    SCHEMA("{\"type\": \"object\", \"patternProperties\": {\"^x-\": {}}, \"additionalProperties\": "
           "false}",
           YES("{}", "{\"x-\":1,\"x-y\":2}"), YES("{\"y\":1}"));
    SCHEMA("{\"type\": \"object\", \"patternProperties\": {\"secret\": false}}", YES("{\"a\":1}"),
           YES("{\"my_secret\":1}"));
    REFUSED("{\"patternProperties\": {\"(\": {}}}", "invalid", "#/patternProperties/(");
}

Test(grammar_schema, few_values_are_unique_in_any_order) {
    SCHEMA("{\"type\": \"array\", \"uniqueItems\": true, \"items\": {\"enum\": [\"a\", \"b\", 1, "
           "1.0, null]}}",
           YES("[]", "[\"b\",\"a\"]", "[null,1,\"a\",\"b\"]", "[1, \"b\" ]"),
           YES("[\"a\",\"a\"]", "[1,\"b\",1]", "[1,1.0]", "[\"c\"]", "[null,\"a\",\"b\",1,null]",
               "[,]"));
    SCHEMA("{\"type\": \"array\", \"uniqueItems\": true, \"items\": {\"type\": \"boolean\"}, "
           "\"minItems\": 1}",
           YES("[true]", "[false,true]"), YES("[]", "[true,true]", "[true,false,true]"));
    SCHEMA("{\"type\": \"array\", \"uniqueItems\": true, \"items\": {\"enum\": [1, 2, 3, 4]}, "
           "\"minItems\": 2, "
           "\"maxItems\": 3}",
           YES("[4,1]", "[3,1,2]"), YES("[]", "[1]", "[1,1]", "[1,2,1]", "[1,2,3,4]"));
    SCHEMA("{\"type\": \"array\", \"uniqueItems\": true, \"items\": {\"enum\": [1, 2, 3]}, "
           "\"minItems\": 3}",
           YES("[3,1,2]"), YES("[3,1]", "[1,2,2]", "[1,2,3,3]"));
    REFUSED("{\"uniqueItems\": true, \"items\": {\"enum\": [1, [2]]}}", "unsupported",
            "#/uniqueItems");
    REFUSED("{\"uniqueItems\": true, \"minItems\": 3, \"items\": {\"enum\": [1, 2, 3, 4, 5, 6, 7, "
            "8, 9]}}",
            "unsupported", "#/uniqueItems");
}

Test(grammar_schema, references_by_name_and_by_the_own_uri) {
    SCHEMA("{\"$id\": \"https://x.org/a\", \"items\": {\"$ref\": \"#n\"}, \"$defs\": {\"m\": "
           "{\"$anchor\": \"n\", \"type\": \"integer\"}}}",
           YES("[1]"), YES("[\"\"]"));
    SCHEMA("{\"id\": \"https://x.org/a#\", \"properties\": {\"a\": {\"$ref\": "
           "\"https://x.org/a#\"}, \"b\": {\"$ref\": \"https://x.org/a#/$defs/m\"}, \"c\": "
           "{\"$ref\": \"#m\"}}, \"$defs\": {\"m\": {\"id\": \"#m\", \"type\": \"null\"}}}",
           YES("{}", "{\"a\":{\"b\":null}}", "{\"c\":null}"),
           YES("{\"a\":{\"b\":1}}", "{\"c\":1}"));
    /* An $id inside matters only to the references beside it. */
    SCHEMA("{\"properties\": {\"a\": {\"$id\": \"/x\", \"type\": \"null\"}, \"b\": {\"$ref\": "
           "\"#/properties/a\"}}}",
           YES("{\"a\":null,\"b\":null}"), YES("{\"b\":1}"));
    REFUSED("{\"properties\": {\"a\": {\"$id\": \"/x\", \"items\": {\"$ref\": \"#\"}}}}",
            "unsupported", "#/properties/a/$id");
    REFUSED("{\"$ref\": \"#n\"}", "invalid", "#/$ref: '#n' does not exist");
    REFUSED("{\"$ref\": \"https://x.org/b\"}", "unsupported", "#/$ref: only references inside");
    REFUSED("{\"items\": {\"$ref\": \"#n\"}, \"$defs\": {\"a\": {\"$anchor\": \"n\"}, \"b\": "
            "{\"$anchor\": \"n\"}}}",
            "unsupported", "#/items/$ref: '#n' is defined twice");
}

Test(grammar_schema, old_drafts) {
    SCHEMA("{\"items\": [{\"type\": \"integer\"}, {}], \"additionalItems\": false}",
           YES("[]", "[1]", "[1,\"\"]"), YES("[\"\"]", "[1,1,1]"));
    SCHEMA("{\"type\": \"integer\", \"minimum\": 3, \"exclusiveMinimum\": true}", YES("4"),
           YES("3"));
    SCHEMA("{\"$schema\": \"http://json-schema.org/draft-07/schema#\", \"definitions\": {\"x\": "
           "{\"type\": \"integer\"}}, \"items\": {\"$ref\": \"#/definitions/x\", \"maximum\": 3}}",
           YES("[4]"), YES("[\"\"]"));
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
