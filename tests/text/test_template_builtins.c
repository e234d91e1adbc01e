/*
 * Filters, tests, methods and global functions. Every row is what the reference implementation
 * (Jinja2 3.1 in a sandbox that allows changes) renders for the same variables, but for UNKNOWN;
 * NULL: an error.
 */

#include <criterion/criterion.h>

#include "tests/text/template_support.h"

static const struct template_row TEXT_FILTERS[] = {
    {"s|upper", "HELLO WORLD"},
    {"s|lower", "hello world"},
    {"u|upper", "HÉLLO WÖRLD SS"},
    {"s|capitalize", "Hello world"},
    {"u|capitalize", "Héllo wörld ß"},
    {"sp|trim", "pad"},
    {"'xxaxx'|trim('x')", "a"},
    {"sp|trim|length", "3"},
    {"n|upper", "NONE"},
    {"x|upper", ""},
    {"5|upper", "5"},
    {"s|replace('l','L')", "HeLLo WorLd"},
    {"s|replace('l','L',1)", "HeLlo World"},
    {"s|replace('','-')", "-H-e-l-l-o- -W-o-r-l-d-"},
    {"s|replace('zz','-')", "Hello World"},
    {"5|replace(5,6)", "6"},
};

Test(template_builtins, text_filters_change_strings) {
    expect_rows("{{ %s }}", TEXT_FILTERS, ARRAY_SIZE(TEXT_FILTERS));
}

static const struct template_row SEQ_FILTERS[] = {
    {"s|first", "H"},
    {"s|last", "d"},
    {"l|first", "3"},
    {"l|last", "2"},
    {"[]|first", ""},
    {"[]|last", ""},
    {"d|first", "b"},
    {"l|sort", "[1, 2, 3]"},
    {"l|sort(reverse=true)", "[3, 2, 1]"},
    {"['b','A','c']|sort", "['A', 'b', 'c']"},
    {"['b','A','c']|sort(case_sensitive=true)", "['A', 'b', 'c']"},
    {"ms|sort(attribute='role')|map(attribute='content')|list", "['yo', 'hi', 'x']"},
    {"[1,'a']|sort", NULL},
    {"l|min", "1"},
    {"l|max", "3"},
    {"[]|min", ""},
    {"['b','A']|min", "A"},
    {"ms|map(attribute='role')|list", "['user', 'assistant', 'user']"},
    {"ms|map(attribute='k.z')|list", NULL},
    {"ms|map(attribute='zz', default='q')|list", "['q', 'q', 'q']"},
    {"ms|selectattr('role','equalto','user')|map(attribute='content')|join(',')", "hi,x"},
    {"ms|selectattr('k')|list|length", "2"},
    {"ms|rejectattr('k')|list|length", "1"},
    {"ms|rejectattr('role','eq','user')|list",
     "[{'role': 'assistant', 'content': 'yo', 'k': {'z': 2}}]"},
    {"l|select('odd')|list", "[3, 1]"},
    {"l|reject('odd')|list", "[2]"},
    {"l|select|list", "[3, 1, 2]"},
    {"l|select('>', 1)|list", "[3, 2]"},
    {"l|map('string')|join", "312"},
    {"['a','b']|map('upper')|join('-')", "A-B"},
    {"['a','b']|map('replace','a','z')|join('-')", "z-b"},
    {"l|join(', ')", "3, 1, 2"},
    {"l|join", "312"},
    {"ms|join(',', attribute='role')", "user,assistant,user"},
    {"n|join", NULL},
    {"x|join", ""},
    {"d|dictsort", R"([('a', [1, 2.5, None, True, "x'y"]), ('b', 1)])"},
    {"d|dictsort(reverse=true)", R"([('b', 1), ('a', [1, 2.5, None, True, "x'y"])])"},
    {"{'b':1,'A':2,'c':0}|dictsort", "[('A', 2), ('b', 1), ('c', 0)]"},
    {"{'b':1,'A':2,'c':0}|dictsort(case_sensitive=true)", "[('A', 2), ('b', 1), ('c', 0)]"},
    {"{'b':1,'A':2,'c':0}|dictsort(by='value')", "[('c', 0), ('b', 1), ('A', 2)]"},
};

Test(template_builtins, seq_filters_choose_and_order) {
    expect_rows("{{ %s }}", SEQ_FILTERS, ARRAY_SIZE(SEQ_FILTERS));
}

static const struct template_row JSON[] = {
    {"d|tojson", R"({"b": 1, "a": [1, 2.5, null, true, "x'y"]})"},
    {"ms|tojson", R"([{"role": "user", "content": "hi", "k": {"z": 1}}, {"role": "assistant", )"
                  R"("content": "yo", "k": {"z": 2}}, {"role": "user", "content": "x"}])"},
    {"ms|tojson(indent=2)",
     "[\n  {\n    \"role\": \"user\",\n    \"content\": \"hi\",\n    \"k\": {\n      \"z\": 1\n    "
     "}\n  },\n  {\n    \"role\": \"assistant\",\n    \"content\": \"yo\",\n    \"k\": {\n      "
     "\"z\": 2\n    }\n  },\n  {\n    \"role\": \"user\",\n    \"content\": \"x\"\n  }\n]"},
    {"ms|tojson(indent=0)", "[\n{\n\"role\": \"user\",\n\"content\": \"hi\",\n\"k\": {\n\"z\": "
                            "1\n}\n},\n{\n\"role\": \"assistant\",\n\"content\": \"yo\",\n\"k\": "
                            "{\n\"z\": 2\n}\n},\n{\n\"role\": \"user\",\n\"content\": \"x\"\n}\n]"},
    {"ms|tojson(indent='--')",
     "[\n--{\n----\"role\": \"user\",\n----\"content\": \"hi\",\n----\"k\": {\n------\"z\": "
     "1\n----}\n--},\n--{\n----\"role\": \"assistant\",\n----\"content\": \"yo\",\n----\"k\": "
     "{\n------\"z\": 2\n----}\n--},\n--{\n----\"role\": \"user\",\n----\"content\": "
     "\"x\"\n--}\n]"},
    {"[]|tojson(indent=2)", "[]"},
    {"{}|tojson(indent=2)", "{}"},
    {"{'a':[],'b':{}}|tojson(indent=4)", "{\n    \"a\": [],\n    \"b\": {}\n}"},
    {"u|tojson", R"("héllo wörld ß")"},
    {"u|tojson(ensure_ascii=true)", R"("h\u00e9llo w\u00f6rld \u00df")"},
    {"'\\U0001F600'|tojson(ensure_ascii=true)", R"("\ud83d\ude00")"},
    {"html|tojson", R"("<a href=\"x\">&'</a>")"},
    {R"('a\x01\x7f\n\t\r\b\f/\\"'|tojson)", R"("a\u0001)"
                                            "\177"
                                            R"(\n\t\r\b\f/\\\"")"},
    {"d|tojson(sort_keys=true)", R"({"a": [1, 2.5, null, true, "x'y"], "b": 1})"},
    {"d|tojson(separators=(',',':'))", R"({"b":1,"a":[1,2.5,null,true,"x'y"]})"},
    {"d|tojson(separators=[',',':'], indent=1)",
     "{\n \"b\":1,\n \"a\":[\n  1,\n  2.5,\n  null,\n  true,\n  \"x'y\"\n ]\n}"},
    {"{1:2,none:3,true:4,1.5:2}|tojson", R"({"1": 4, "null": 3, "1.5": 2})"},
    {"{(1,2):3}|tojson", NULL},
    {"x|tojson", NULL},
    {"1.0|tojson", "1.0"},
    {"1e100|tojson", "1e+100"},
    {"big|tojson", "18446744073709551615"},
    {"l|map('string')|tojson", R"(["3", "1", "2"])"},
    {"d.items()|tojson", NULL},
    {"range(3)|tojson", NULL},
    {"namespace(a=1)|tojson", NULL},
    {"(1,2)|tojson", "[1, 2]"},
};

Test(template_builtins, json_equals_json_dumps) {
    expect_rows("{{ %s }}", JSON, ARRAY_SIZE(JSON));
}

static const struct template_row RANGES_AND_STRINGS[] = {
    {"range(3)", "range(0, 3)"},
    {"range(0, 10, 3)", "range(0, 10, 3)"},
    {"range(5, 2)", "range(5, 2)"},
    {"range(9, -1, -4)", "range(9, -1, -4)"},
    {"range(18446744073709551615, 0)", "range(18446744073709551615, 0)"},
    {"range(0, 10, 3)[::2]", "range(0, 12, 6)"},
    {"range(10)[8:1:-3]", "range(8, 1, -3)"},
    {"range(4)[1:][5:]", "range(4, 4)"},
    {"range(1,10,3)|list", "[1, 4, 7]"},
    {"range(5,0,-2)|list", "[5, 3, 1]"},
    {"range(0)|list", "[]"},
    {"range(3)[1]", "1"},
    {"range(3)|length", "3"},
    {"range(1.5)", NULL},
    {"range(1,2,0)", NULL},
    {"l|string", "[3, 1, 2]"},
    {"s|string", "Hello World"},
    {"d|string", R"({'b': 1, 'a': [1, 2.5, None, True, "x'y"]})"},
    {"n|string", "None"},
    {"x|string", ""},
    {"l|list", "[3, 1, 2]"},
    {"s|list", "['H', 'e', 'l', 'l', 'o', ' ', 'W', 'o', 'r', 'l', 'd']"},
    {"u|list", "['h', 'é', 'l', 'l', 'o', ' ', 'w', 'ö', 'r', 'l', 'd', ' ', 'ß']"},
    {"x|list", "[]"},
};

Test(template_builtins, ranges_and_strings_convert) {
    expect_rows("{{ %s }}", RANGES_AND_STRINGS, ARRAY_SIZE(RANGES_AND_STRINGS));
}

static const struct template_row DEFAULTS[] = {
    {"x|default('a')", "a"},       {"n|default('a')", "None"}, {"n|default('a', true)", "a"},
    {"e|default('a', true)", "a"}, {"e|d('a')", ""},           {"x|d", ""},
};

Test(template_builtins, defaults_replace_what_is_missing) {
    expect_rows("{{ %s }}", DEFAULTS, ARRAY_SIZE(DEFAULTS));
}

static const struct template_row INDENTATION[] = {
    {"ml|indent", "a\n\n      b\n    c\n"},
    {"ml|indent(2)", "a\n\n    b\n  c\n"},
    {"ml|indent(2, true)", "  a\n\n    b\n  c\n"},
    {"ml|indent(2, true, true)", "  a\n  \n    b\n  c\n  "},
    {"ml|indent(width='> ', first=true)", "> a\n\n>   b\n> c\n"},
    {"'a\\nb'|indent(2)", "a\n  b"},
    {"'a\\n\\n'|indent(2)", "a\n\n"},
    {"''|indent(2,true)", "  "},
    {"'a\\r\\nb'|indent(1)", "a\n b"},
};

Test(template_builtins, indentation_follows_lines) {
    expect_rows("{{ %s }}", INDENTATION, ARRAY_SIZE(INDENTATION));
}

static const struct template_row NUMBER_FILTERS[] = {
    {"'0x1F'|int(0, 16)", "31"},
    {"'-0x1f'|int(0, 16)", "-31"},
    {"'0'|int(7, 16)", "0"},
    {"'0x'|int(7, 16)", "7"},
    {"'0X1f'|int(0, 16)", "31"},
    {"'0y1'|int(7, 16)", "7"},
    {"'1x1'|int(7, 16)", "7"},
    {"'0b'|int(0, 16)", "11"},
    {"'10'|int(0, 16)", "16"},
    {"'0x1'|int(7, 10)", "7"},
    {"'+0x1f'|int(0, 16)", "31"},
    {"'1_000'|int", "1000"},
    {"'1__0'|int(7)", "7"},
    {"'1_0_0'|int", "100"},
    {"'0x_1f'|int(0, 16)", "31"},
    {"'0x_'|int(7, 16)", "7"},
    {"'1_'|int(7)", "7"},
    {"'_1'|int(7)", "7"},
    {"'5'|int", "5"},
    {"'5.9'|int", "5"},
    {"'abc'|int", "0"},
    {"'abc'|int(7)", "7"},
    {"'0x1f'|int(0,16)", "31"},
    {"'ff'|int(base=16)", "255"},
    {"' 42 '|int", "42"},
    {"'1_000'|int", "1000"},
    {"5.9|int", "5"},
    {"-5.9|int", "-5"},
    {"true|int", "1"},
    {"n|int", "0"},
    {"n|int(3)", "3"},
    {"x|int", NULL},
};

Test(template_builtins, number_filters_convert) {
    expect_rows("{{ %s }}", NUMBER_FILTERS, ARRAY_SIZE(NUMBER_FILTERS));
}

static const struct template_row MARKUP[] = {
    {"html|safe", R"(<a href="x">&'</a>)"},         {"'<b>'|safe + '<i>'", "<b>&lt;i&gt;"},
    {"'<b>' + '<i>'|safe", "&lt;b&gt;<i>"},         {"('<b>'|safe) ~ '<i>'", "<b><i>"},
    {"('<b>'|safe)|upper + '<i>'", "<B>&lt;i&gt;"}, {"('<b>'|safe)[0:2] + '<'", "<b&lt;"},
    {"('<b>'|safe)|string + '<'", "<b>&lt;"},       {"('<b>'|safe)|trim + '<'", "<b>&lt;"},
};

Test(template_builtins, markup_escapes_what_is_added) {
    expect_rows("{{ %s }}", MARKUP, ARRAY_SIZE(MARKUP));
}

static const struct template_row MORE_FILTERS[] = {
    {"s|reverse", "dlroW olleH"},
    {"l|reverse|list", "[2, 1, 3]"},
};

Test(template_builtins, more_filters_work) {
    expect_rows("{{ %s }}", MORE_FILTERS, ARRAY_SIZE(MORE_FILTERS));
}

static const struct template_row BRACE_FORMAT[] = {
    {"'{} {}'.format('a', 1)", "a 1"},
    {"'{0} {1} {0}'.format('a', 1)", "a 1 a"},
    {"'{a} {b}'.format(a=1, b='x')", "1 x"},
    {"'{{}} {}'.format(1)", "{} 1"},
    {"'{}'.format()", NULL},
    {"'{1}'.format(1)", NULL},
    {"'{c}'.format(a=1)", NULL},
    {"'{:>5}'.format('a')", "    a"},
    {"'{a!r}'.format(a='x')", "'x'"},
    {"'{0[0]}'.format([7])", "7"},
    {"'{0.a}'.format({'a': 'x'})", "x"},
    {"'%s' % 'a'", "a"},
    {"'{}'.format(none)", "None"},
    {"'{}'.format([1,'a'])", "[1, 'a']"},
};

Test(template_builtins, brace_format_fills_in) {
    expect_rows("{{ %s }}", BRACE_FORMAT, ARRAY_SIZE(BRACE_FORMAT));
}

static const struct template_row STR_METHODS[] = {
    {"s.upper()", "HELLO WORLD"},
    {"s.lower()", "hello world"},
    {"s.split()", "['Hello', 'World']"},
    {"'a,b,,c'.split(',')", "['a', 'b', '', 'c']"},
    {"'a,b,,c'.split(',', 1)", "['a', 'b,,c']"},
    {"'a,b,,c'.split(',', maxsplit=1)", "['a', 'b,,c']"},
    {"'  a  b '.split()", "['a', 'b']"},
    {"'  a  b  c '.split(none, 1)", "['a', 'b  c ']"},
    {"''.split()", "[]"},
    {"''.split(',')", "['']"},
    {"'abc'.split('')", NULL},
    {"sp.strip()", "pad"},
    {"sp.lstrip()", "pad  "},
    {"sp.rstrip()", "  pad"},
    {"'xyaxy'.strip('xy')", "a"},
    {"'éaé'.strip('é')", "a"},
    {"'<think>a</think>b'.split('</think>')[-1]", "b"},
    {"'<think>a</think>b'.split('</think>')[0].split('<think>')[-1]", "a"},
    {"s.startswith('He')", "True"},
    {"s.startswith(('x','He'))", "True"},
    {"s.startswith('lo', 3)", "True"},
    {"s.endswith('ld')", "True"},
    {"s.endswith(('x','ld'))", "True"},
    {"s.endswith(1)", NULL},
    {"s.find('o')", "4"},
    {"s.find('zz')", "-1"},
    {"u.find('w')", "6"},
    {"s.replace('l','L')", "HeLLo WorLd"},
    {"s.replace('l','L',2)", "HeLLo World"},
    {"s.join(['a','b'])", "aHello Worldb"},
    {"','.join(['a',1])", NULL},
    {"'-'.join('abc')", "a-b-c"},
    {"s.isdigit()", "False"},
    {"'123'.isdigit()", "True"},
    {"'abc'.removeprefix('a')", "bc"},
    {"'abc'.removesuffix('c')", "ab"},
    {"s.zzz()", NULL},
    {"s.zzz", ""},
};

Test(template_builtins, str_methods_work) {
    expect_rows("{{ %s }}", STR_METHODS, ARRAY_SIZE(STR_METHODS));
}

static const struct template_row DICT_METHODS[] = {
    {"d.get('a')", R"([1, 2.5, None, True, "x'y"])"},
    {"d.get('zz')", "None"},
    {"d.get('zz', 5)", "5"},
    {"d.pop('a')", R"([1, 2.5, None, True, "x'y"])"},
    {"d.pop('zz')", NULL},
    {"d.pop('zz', 1)", "1"},
    {"d.update({'q': 1}) or d", R"({'b': 1, 'a': [1, 2.5, None, True, "x'y"], 'q': 1})"},
    {"d.update(q=1) or d", R"({'b': 1, 'a': [1, 2.5, None, True, "x'y"], 'q': 1})"},
};

Test(template_builtins, dict_methods_work) {
    expect_rows("{{ %s }}", DICT_METHODS, ARRAY_SIZE(DICT_METHODS));
}

static const struct template_row LIST_METHODS[] = {
    {"l.append(5) or l", "[3, 1, 2, 5]"},
    {"l.pop()", "2"},
    {"l.pop(0)", "3"},
    {"l.pop(99)", NULL},
    {"l.extend([1,2]) or l", "[3, 1, 2, 1, 2]"},
    {"many['7'], many.get('19'), many|length, '20' in many", "(7, 19, 20, False)"},
    {"many.pop('3') ~ many",
     "3{'0': 0, '1': 1, '2': 2, '4': 4, '5': 5, '6': 6, '7': 7, '8': 8, '9': 9, '10': 10, '11': "
     "11, '12': 12, '13': 13, '14': 14, '15': 15, '16': 16, '17': 17, '18': 18, '19': 19}"},
};

Test(template_builtins, list_methods_work) {
    expect_rows("{{ %s }}", LIST_METHODS, ARRAY_SIZE(LIST_METHODS));
}

static const struct template_row IS_TESTS[] = {
    {"s is string", "True"},
    {"1 is number", "True"},
    {"1.5 is number", "True"},
    {"true is number", "True"},
    {"true is boolean", "True"},
    {"1 is boolean", "False"},
    {"true is true", "True"},
    {"1 is true", "False"},
    {"false is false", "True"},
    {"n is none", "True"},
    {"x is none", "False"},
    {"d is mapping", "True"},
    {"l is mapping", "False"},
    {"l is sequence", "True"},
    {"s is sequence", "True"},
    {"d is sequence", "True"},
    {"n is sequence", "False"},
    {"l is iterable", "True"},
    {"n is iterable", "False"},
    {"1 is iterable", "False"},
    {"1 is integer", "True"},
    {"true is integer", "False"},
    {"1.0 is float", "True"},
    {"1 is odd", "True"},
    {"2 is even", "True"},
    {"6 is divisibleby 3", "True"},
    {"6 is divisibleby(4)", "False"},
    {"1 is eq 1", "True"},
    {"1 is ne 2", "True"},
    {"1 is lt 2", "True"},
    {"1 in [1] and 1 is in [1]", "True"},
    {"s is not string", "False"},
    {"not s is string", "False"},
    {"x is not defined and true", "True"},
    {"s is zzz", NULL},
    {"s|zzz", NULL},
    {"1 if true else s|zzz", "1"},
};

Test(template_builtins, is_tests_answer) {
    expect_rows("{{ %s }}", IS_TESTS, ARRAY_SIZE(IS_TESTS));
}

static const struct template_row GLOBALS[] = {
    {"raise_exception('boom ' ~ 1)", NULL},
    {"strftime_now('%d %b %Y %H:%M:%S %Y-%m-%d %-d')", "15 Jan 2026 09:26:53 2026-01-15 15"},
    {"dict(a=1, b=2)", "{'a': 1, 'b': 2}"},
    {"dict({'a':1}, b=2)", "{'a': 1, 'b': 2}"},
    {"dict([('a',1)])", "{'a': 1}"},
    {"namespace(a=1).a", "1"},
    {"namespace({'a':1}).a", "1"},
    {"namespace(a=1).b is defined", "False"},
};

Test(template_builtins, globals_work) {
    expect_rows("{{ %s }}", GLOBALS, ARRAY_SIZE(GLOBALS));
}
