/* What a template cannot do says so. Beside each refusal stands what is nearest to it and works. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/text/template_support.h"

/* error: part of the message; or NULL, and then @text is what comes out. */
struct case_of {
    const char *source, *error, *text;
};

static void check(const struct case_of *c, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (c[i].error)
            expect_error(c[i].source, TEMPLATE_VARS, c[i].error);
        else
            expect_text(c[i].source, TEMPLATE_VARS, c[i].text);
}

Test(template_refusals, of_calls) {
    static const struct case_of all[] = {
        {"{{ s|indent(1, 2, 3, 4) }}", "filter indent() takes at most 3 arguments (4 given)", NULL},
        {"{{ s|indent(1, width=1) }}", "filter indent() got multiple values for argument 'width'",
         NULL},
        {"{{ s|indent(digits=1) }}", "filter indent() got an unexpected keyword argument 'digits'",
         NULL},
        {"{{ 's'|replace('s') }}", "filter replace() misses a required argument", NULL},
        {"{{ 's'|replace('s', 't') }}", NULL, "t"},
        {"{% if f %}{{ 1|nothing }}{% endif %}", "no filter named 'nothing'", NULL},
        {"{{ 1 is nothing }}", "no test named 'nothing'", NULL},
        {"{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
         "macro 'm' got multiple values for argument 'a'", NULL},
        {"{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}",
         "macro 'm' takes no keyword argument 'b'", NULL},
        {"{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "macro 'm' takes", NULL},
        {"{% macro m(a, b=3) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}{{ m(b=1, a=2) }}", NULL,
         "1321"},
        {"{{ dict({}, {}) }}", "dict expected at most 1 argument, got 2", NULL},
        {"{{ dict([[1, 2, 3]]) }}", "cannot convert dictionary update sequence to a dict", NULL},
        {"{{ dict([1]) }}", "cannot convert dictionary update sequence to a dict", NULL},
        {"{{ dict([[1, 2]], a=3) }}", NULL, "{1: 2, 'a': 3}"},
        {"{{ range(1, 2, 0) }}", "range() arg 3 must not be zero", NULL},
        {"{{ range(100001) }}", "Range too big. The sandbox blocks ranges larger than 100000",
         NULL},
        {"{{ range(100000)|length }}", NULL, "100000"},
        {"{{ range(0, -100001, -1) }}", "Range too big", NULL},
        {"{{ range(5, 0, -2)|list }}{{ range(0, 5, 2)|list }}{{ range(0, 4, 2)|list }}", NULL,
         "[5, 3, 1][0, 2, 4][0, 2]"},
        {"{{ range(2, 2)|list }}{{ range(2, 1)|list }}{{ range(2.0) }}",
         "'float' object cannot be interpreted as an integer", NULL},
        {"{{ strftime_now(1) }}", "strftime_now() wants a format string of at most 255", NULL},
        {"{{ strftime_now('x' * 256) }}", "strftime_now() wants a format string of at most 255",
         NULL},
        {"{{ strftime_now('x' * 255)|length }}{{ strftime_now('%Y') }}", NULL, "2552026"},
        {"{{ raise_exception('a' ~ 1) }}", "a1", NULL},
        {"{{ raise_exception('') }}", "The chat template refuses the messages.", NULL},
        {"{{ '{} {}'.format(1) }}", "Replacement index 1 out of range for positional args tuple",
         NULL},
        {"{{ none.a.b }}", "'None' has no attribute 'a'", NULL},
        {"{{ 1 in 5 }}", "argument of type 'int' is not iterable", NULL},
        {"{{ 1 in [1] }}", NULL, "True"},
        {"{% if %}a{% endif %}", "expected an expression, got the end of the tag", NULL},
    };

    check(all, ARRAY_SIZE(all));
}

Test(template_refusals, of_filters) {
    static const struct case_of all[] = {
        {"{{ [1]|items }}", "Can only get item pairs from a mapping.", NULL},
        {"{{ {1: 2}|items|list }}{{ nowhere|items|list }}", NULL, "[(1, 2)][]"},
        {"{{ [1]|dictsort }}", "dictsort wants a dict, not 'list'", NULL},
        {"{{ l|map(attr='a') }}", "map: unexpected keyword argument", NULL},
        {"{{ l|map }}", "map requires a filter argument", NULL},
        {"{{ l|map(1) }}", "map requires a filter argument", NULL},
        {"{{ l|map('string')|join }}", NULL, "312"},
        {"{{ [{'a': 1}, {}]|map(attribute='a', default=2)|list }}", NULL, "[1, 2]"},
        {"{{ l|selectattr }}", "Missing parameter for attribute name", NULL},
        {"{{ l|select(1) }}", "the name of a test must be a string", NULL},
        {"{{ l|select('odd')|list }}{{ l|reject('odd')|list }}", NULL, "[3, 1][2]"},
        {"{{ 1|indent }}", "indent wants a string, not 'int'", NULL},
        {"{{ '{'|from_json }}", "from_json: the text is not JSON", NULL},
        {"{{ 1|from_json }}", "the JSON object must be str, bytes or bytearray, not int", NULL},
        {R"({{ '{"a": 1}'|from_json }})", NULL, "{'a': 1}"},
        {"{{ '{} {}'.format(1) }}", "Replacement index 1 out of range", NULL},
        {"{{ '{a}'.format(b=1) }}", "format() lacks the argument 'a'", NULL},
        {R"({{ ('{' ~ ('"\\u0000"'|from_json) ~ '}').format() }})", "format() lacks the argument",
         NULL},
        {"{{ '}'.format() }}", "Single '}' encountered in format string", NULL},
        {"{{ '{'.format() }}", "Single '{' encountered in format string", NULL},
        {"{{ '{0:s}'.format(1) }}", "Unknown format code 's' for object of type 'int'", NULL},
        {"{{ '{:x}'.format(1.5) }}", "Unknown format code 'x' for object of type 'float'", NULL},
        {"{{ '{:.400f}'.format(1.5) }}", "a precision is larger than 300", NULL},
        {"{{ '{:08,}'.format(1) }}", "a format with '0' and ',' is not supported", NULL},
        {"{{ '{:{:{}}}'.format(1, 2, 3) }}", "Max string recursion exceeded", NULL},
        {"{{ '{0x}'.format(1) }}", "format() lacks the argument '0x'", NULL},
        {"{{ '{0[0]x}'.format([1]) }}", "Only '.' or '[' may follow ']'", NULL},
        {"{{ '{0[]}'.format([1]) }}", "Empty attribute in format string", NULL},
        {"{{ '{{{}}}{}{a}'.format(7, 8, a=9) }}", NULL, "{7}89"},
        {"{{ '%s %s' % ('a',) }}", "not enough arguments for format string", NULL},
        {"{{ '%s' % ('a', 1) }}", "not all arguments converted during string formatting", NULL},
        {"{{ '%.400d' % 1 }}", "a precision is larger than 300", NULL},
        {"{{ '%99999999999d' % 1 }}", "too much memory", NULL},
        {"{{ '{:99999999999}'.format(1) }}", "too much memory", NULL},
        {"{{ 'a'.ljust(99999999999) }}", "too much memory", NULL},
        {"{{ 'a'|center(99999999999) }}", "too much memory", NULL},
        {"{{ 'a'.zfill(99999999999) }}", "too much memory", NULL},
        {"{{ [1]|batch(4000000000, 0)|list }}", "a list becomes too long", NULL},
        {"{{ [1]|slice(99999999999)|list }}", "the template", NULL},
        {"{{ [macro]|tojson }}{{ namespace(a=1)|tojson }}", "is not JSON serializable", NULL},
        {"{{ {(1, 2): 3}|tojson }}", "keys must be str, int, float, bool or None, not tuple", NULL},
        {"{{ 1|tojson(indent=65) }}", "tojson: indent must be a small number", NULL},
        {"{{ 1|tojson(indent=1.0) }}", "tojson: indent must be a small number", NULL},
        {"{{ [1]|tojson(indent=32)|length }}{{ [1]|tojson(indent=-1)|length }}", NULL, "375"},
        {"{{ 1|tojson(separators=[',']) }}", "tojson: separators must be two strings", NULL},
        {"{{ 1|tojson(separators=[',', 1]) }}", "tojson: separators must be two strings", NULL},
        {"{{ {1: 2, 3: 4}|tojson(separators=[';', '=']) }}", NULL, R"({"1"=2;"3"=4})"},
        {"{{ [1, 'a']|join('-') }}", NULL, "1-a"},
        {"{{ '-'.join([1]) }}", "sequence item 0: expected str instance, int found", NULL},
        {"{{ '-'.join(['a', 'b', n]) }}", "sequence item 2: expected str instance", NULL},
        {"{{ 5|length }}", "object of type 'int' has no len()", NULL},
    };

    check(all, ARRAY_SIZE(all));
}

Test(template_refusals, of_methods) {
    static const struct case_of all[] = {
        {"{{ {}.pop('a') }}", "pop(): the key is missing", NULL},
        {"{{ {}.pop('a', 4) }}{{ {'a': 5}.pop('a') }}", NULL, "45"},
        {"{{ {}.update(1) }}", "update() wants a dict", NULL},
        {"{{ {}.update({}, {}) }}", "update() wants a dict", NULL},
        {"{% set a = {'x': 1} %}{{ a.update({'y': 2}, z=3) }}{{ a }}", NULL,
         "None{'x': 1, 'y': 2, 'z': 3}"},
        {"{{ [].pop() }}", "pop from empty list", NULL},
        {"{{ [1].pop(1) }}", "pop index out of range", NULL},
        {"{{ [1].pop(-2) }}", "pop index out of range", NULL},
        {"{% set a = [1, 2, 3] %}{{ a.pop() }}{{ a.pop(-2) }}{{ a.pop(0) }}{{ a }}", NULL, "312[]"},
        {"{{ 'a'.split('') }}", "empty separator", NULL},
        {"{{ 'a'.startswith(1) }}", "startswith first arg must be str or a tuple of str, not int",
         NULL},
        {"{{ 'a'.endswith(['a']) }}", "endswith first arg must be str or a tuple of str, not list",
         NULL},
        {"{{ 'ab'.startswith(('b', 'a')) }}{{ 'ab'.endswith('a') }}", NULL, "TrueFalse"},
        {"{{ 'a'.replace('a', none) }}", "replace() wants strings", NULL},
        {"{{ 'a'.replace(none, 'a') }}", "replace() wants strings", NULL},
        {"{{ 'a'.find(none) }}", "find() wants a string", NULL},
        {"{{ 'banana'.find('an', 2) }}{{ 'banana'.find('an', 0, 2) }}", NULL, "3-1"},
    };

    check(all, ARRAY_SIZE(all));
}

Test(template_refusals, of_values) {
    static const struct case_of all[] = {
        {"{{ {[1]: 2} }}", "unhashable type: 'list'", NULL},
        {"{{ {(1, 2): 2} }}", NULL, "{(1, 2): 2}"},
        {"{% set s.a = 1 %}", "cannot assign attribute on non-namespace object", NULL},
        {"{% set a, b = [1] %}", "not enough values to unpack (expected 2)", NULL},
        {"{% set a, b = [1, 2, 3] %}", "too many values to unpack (expected 2)", NULL},
        {"{% set a, b = [1, 2] %}{{ b }}", NULL, "2"},
        {"{{ -'a' }}", "bad operand type for unary -: 'str'", NULL},
        {"{{ +[] }}", "bad operand type for unary +: 'list'", NULL},
        {"{{ dict(**[1]) }}", "argument after ** must be a mapping, not list", NULL},
        {"{{ dict(**{1: 2}) }}", "keywords must be strings", NULL},
        {"{{ dict(**{'a': 2}) }}", NULL, "{'a': 2}"},
        {"{{ 1 // 0 }}", "division by zero", NULL},
        {"{{ 1 % 0 }}", "division by zero", NULL},
        {"{{ 1 / 0 }}", "division by zero", NULL},
        {"{{ 1.0 // 0 }}", "float division by zero", NULL},
        {"{{ 0 // 1 }}{{ 7 // 2 }}{{ -7 // 2 }}{{ -7 % 3 }}{{ 7 % -3 }}", NULL, "03-42-2"},
        {"{{ s['a':] }}", "slice indices must be integers or None", NULL},
        {"{{ s[::0] }}", "slice step cannot be zero", NULL},
        {"{{ s[:2] }}{{ s[-1:] }}{{ s[::-5] }}{{ l[1::2] }}", NULL, "Hedd H[1]"},
        {"{{ 1 in 'a1' }}", "'in <string>' requires string as left operand, not int", NULL},
        {"{{ '1' in 'a1' }}", NULL, "True"},
        {"{{ nowhere.a }}", "'nowhere' is undefined", NULL},
    };

    check(all, ARRAY_SIZE(all));
}

Test(template_refusals, of_syntax) {
    static const struct case_of all[] = {
        {"{{ ? }}", "unexpected character 0x3f", NULL},
        {"{{ ) }}", "unexpected ')'", NULL},
        {"{{ [1) }}", "unexpected ')'", NULL},
        {"{{ 'a }}", "a string is not closed", NULL},
        {"{{ '\\x4' }}", "a malformed escape in a string", NULL},
        {"{{ '\\xg0' }}", "a malformed escape in a string", NULL},
        {"{{ '\\ud800' }}", "a malformed escape in a string", NULL},
        {"{{ '\\U00110000' }}", "a malformed escape in a string", NULL},
        {"{{ '\\x41\\u00e9\\U0001F600\\101\\0\\18\\q\\'' }}", NULL, "A\u00e9\U0001F600A"},
        {"{{ '\\x41\\u00e9\\101\\q\\'\\\n!' }}", NULL, "A\u00e9A\\q'!"},
        {"{{ f(*a, *b) }}", "invalid syntax for a call", NULL},
        {"{{ f(**a, **b) }}", "invalid syntax for a call", NULL},
        {"{{ f(a=1, 2) }}", "a positional argument after a keyword", NULL},
        {"{{ f(*a, 2) }}", "a positional argument after a keyword", NULL},
        {"{{ dict([[1, 2]], ) }}{{ range(*[2])|list }}", NULL, "{1: 2}[0, 1]"},
        {"{{ 1 is odd is odd }}", "tests with 'is' cannot be chained", NULL},
        {"{{ 4 is divisibleby 2 }}{{ 4 is not divisibleby(3) }}", NULL, "TrueTrue"},
        {"{% set true = 1 %}", "cannot assign to 'true'", NULL},
        {"{% set is = 1 %}", "cannot assign to 'is'", NULL},
        {"{% set none_ = 1 %}{{ none_ }}", NULL, "1"},
        {"{% for not in l %}{% endfor %}", "cannot assign to 'not'", NULL},
        {"{% break %}", "'break' outside of a loop", NULL},
        {"{% continue %}", "'continue' outside of a loop", NULL},
        {"{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
         "'break' outside of a loop", NULL},
        {"{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}"
         "{% for x in l %}{% break %}{% endfor %}",
         NULL, "32"},
        {"{% for loop in l %}{% endfor %}", "cannot assign to 'loop' as the target of a loop",
         NULL},
        {"{% for x in l %}{{ loop([1]) }}{% endfor %}",
         "The loop must have the 'recursive' marker to be called recursively.", NULL},
        {"{% for x in l recursive %}{{ loop() }}{% endfor %}", "a loop is called with one argument",
         NULL},
        {"{% for x in l recursive %}{{ loop(l) }}{% endfor %}", "nested too deep", NULL},
        {"{% block x %}{% endblock y %}", "the block ends with another name", NULL},
        {"{% block x required %}{% endblock %}", "a required block has no body", NULL},
        {"{% include 'x' %}", "unknown tag 'include'", NULL},
        {"{% autoescape true %}{% endautoescape %}", "autoescape is not supported", NULL},
        {"{% call 1 %}{% endcall %}", "expected call", NULL},
        {"{% raw %}{{ x }}", "the block 'raw' is not closed", NULL},
        {"{% macro m() %}{% endmacro %}{% call m() %}{% endcall %}",
         "macro 'm' takes no keyword argument 'caller'", NULL},
        {"{% 1 %}", "the name of a tag", NULL},
    };

    check(all, ARRAY_SIZE(all));
}

Test(template_refusals, of_long_numbers_and_deep_brackets) {
    char source[400];
    struct err err;

    for (int n = 63; n < 65; n++) { /* "0." and zeros */
        snprintf(source, sizeof(source), "{{ 0.%0*d }}", n - 2, 0);
        if (n == 63)
            expect_text(source, TEMPLATE_VARS, "0.0");
        else
            expect_error(source, TEMPLATE_VARS, "a number has too many digits");
    }
    for (int n = 1; n < 70; n++) {
        strcpy(source, "{{ ");
        memset(source + 3, '[', (size_t)n);
        memset(source + 3 + n, ']', (size_t)n);
        strcpy(source + 3 + 2 * n, " }}");
        CLEANUP(freep) char *text = template_text(source, TEMPLATE_VARS, NULL, &err);
        cr_expect_eq(!text, n > (int)TEMPLATE_DEPTH, "%d: %s", n, err.message);
        if (text)
            cr_expect_eq(strlen(text), (size_t)2 * n);
    }
}

Test(template_refusals, of_tokens) {
    static const struct case_of all[] = {
        {"{{ (1 2) }}", "expected ')', got something else", NULL},
        {"{% if 1 %}", "the block that begins at line 1 is not closed", NULL},
        {"{% for 1 in l %}{% endfor %}", "expected a name, got something else", NULL},
        {"{% for a of l %}{% endfor %}", "expected 'in', got 'of'", NULL},
        {"{% for a = l %}{% endfor %}", "expected 'in', got '='", NULL},
        {"{% for a == l %}{% endfor %}", "expected 'in', got '=='", NULL},
        {"{{ 1 < 'a' }}", "'<' not supported between instances of 'int' and 'str'", NULL},
        {"{{ [1] > {} }}", "'>' not supported between instances of 'list' and 'dict'", NULL},
        {"{{ 1 <= 'a' }}", "'<=' not supported between instances of 'int' and 'str'", NULL},
        {"{{ 1 is le 'a' }}", "'<=' not supported between instances of 'int' and 'str'", NULL},
        {"{{ 1 >= 'a' }}", "'>=' not supported between instances of 'int' and 'str'", NULL},
        {"{{ [1, 'a']|max }}", "'>' not supported between instances of 'str' and 'int'", NULL},
        {"{{ [1, 'a']|min }}", "'<' not supported between instances of 'str' and 'int'", NULL},
        {"{{ [1, 2] < [1, 3] }}", NULL, "True"},
        {"{{ l * 1073741823 }}", "a list becomes too long", NULL},
        {"{{ [] * 1073741823 }}", NULL, "[]"},
    };

    check(all, ARRAY_SIZE(all));
}

/* The texts that no test above compares. */
Test(template_refusals, in_words) {
    static const struct case_of all[] = {
        {"{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
         "macro 'm' takes not more than 1 argument(s)", NULL},
        {"{{ 5() }}", "'int' object is not callable", NULL},
        {"{{ (l|map('string'))|last }}", "'generator' object is not reversible", NULL},
        {"{{ 'a'|indent(65) }}", "indent: the width must be at most 64", NULL},
        {"{{ 'a'|indent(64, true)|length }}", NULL, "65"},
        {"{{ 1e20|int }}", "an integer has more than 64 bits", NULL},
        {"{{ big * big }}", "an integer has more than 64 bits", NULL},
        {"{{ big + big }}", "an integer has more than 64 bits", NULL},
        {"{{ 99999999999999999999 }}", "an integer has more than 64 bits", NULL},
        {"{# a", "the comment is not closed", NULL},
        {"{{ 1", "the tag is not closed", NULL},
        {"{{ 1 - 'a' }}", "unsupported operand type(s) for -: 'int' and 'str'", NULL},
        {"{{ 10 ** 20 }}", "an integer has more than 64 bits", NULL},
        {"{{ (-2) ** 63 }}{{ 2 ** 63 }}", NULL, "-92233720368547758089223372036854775808"},
        {"{{ 1 ** 99999999999 }}{{ (-1) ** 99999999999 }}{{ 0 ** 0 }}", NULL, "1-11"},
        {"{{ 0 ** -1 }}", "0.0 cannot be raised to a negative power", NULL},
        {"{{ (-8) ** 0.5 }}", "a power is no real number", NULL},
        {"{{ 5[1:2] }}", "'int' object is not subscriptable", NULL},
        {"{% macro m(a=1, b) %}{% endmacro %}",
         "a parameter without a default follows one with a default", NULL},
        {"{{ 'a'.strip(5) }}", "a string is wanted, not 'int'", NULL},
    };
    char source[400] = "{{ ";
    size_t n = 3;

    check(all, ARRAY_SIZE(all));
    for (uint32_t i = 0; i <= TEMPLATE_DEPTH; i++)
        source[n++] = "[("[i % 2];
    expect_error(source, TEMPLATE_VARS, "too many nested brackets");
}

Test(template_refusals, of_a_time_that_no_calendar_has) {
    const struct template_opts opts = {.now_unix = INT64_MAX};
    struct err err = {0};

    cr_expect_null(template_text("{{ strftime_now('%Y') }}", "{}", &opts, &err));
    cr_expect(strstr(err.message, "strftime_now() has no time"), "%s", err.message);
}

/* Running out of steps is not running out of memory. */
Test(template_refusals, steps_and_memory_are_told_apart) {
    for (uint64_t fuel = 1; fuel < 20000; fuel += 100) {
        const struct template_opts opts = {.fuel = fuel};
        struct err err = {0};
        CLEANUP(freep)
        char *text = template_text("{{ ('1' * 60000)|from_json }}", "{}", &opts, &err);

        cr_expect(!text && !strstr(err.message, "memory"), "%s", err.message);
    }
}
