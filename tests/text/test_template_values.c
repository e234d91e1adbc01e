/*
 * Values and operators. Every row is what the reference implementation (Jinja2 3.1 in
 * a sandbox that allows changes) renders for the same variables; NULL: it raises an error.
 */

#include <criterion/criterion.h>

#include "tests/text/template_support.h"

static const struct template_row NUMBERS[] = {
    {"5.684341886080802e-14", "5.684341886080802e-14"},
    {"1.7053025658242404e-13", "1.7053025658242404e-13"},
    {"1.0715086071862673e+301", "1.0715086071862673e+301"},
    {"2.2250738585072014e-308", "2.2250738585072014e-308"},
    {"5e-324", "5e-324"},
    {"9.223372036854776e+18", "9.223372036854776e+18"},
    {"8.881784197001252e-16", "8.881784197001252e-16"},
    {"9007199254740993.0", "9007199254740992.0"},
    {"4.35", "4.35"},
    {"0.1 * 3", "0.30000000000000004"},
    {"1e15 / 3", "333333333333333.3"},
    {"123456.789e3", "123456789.0"},
    {"1e15", "1000000000000000.0"},
    {"9999999999999998.0", "9999999999999998.0"},
    {"0.00012345", "0.00012345"},
    {"5e-5", "5e-05"},
    {"1 + 2", "3"},
    {"1 / 2", "0.5"},
    {"7 // 2", "3"},
    {"-7 // 2", "-4"},
    {"7.5 // 2", "3.0"},
    {"-7 % 3", "2"},
    {"7 % -3", "-2"},
    {"-7.5 % 2", "0.5"},
    {"1e3", "1000.0"},
    {"1.0", "1.0"},
    {"1e16", "1e+16"},
    {"123456789012345678.0", "1.2345678901234568e+17"},
    {"1e-5", "1e-05"},
    {"0.1 + 0.2", "0.30000000000000004"},
    {"1/3", "0.3333333333333333"},
    {"100 * 1.1", "110.00000000000001"},
    {"5e-324", "5e-324"},
    {"1.7976931348623157e308", "1.7976931348623157e+308"},
    {"big", "18446744073709551615"},
    {"big - 1", "18446744073709551614"},
    {"9223372036854775807", "9223372036854775807"},
    {"9223372036854775807 + 1", "9223372036854775808"},
    {"9223372036854775808 - 1", "9223372036854775807"},
    {"true + 1", "2"},
    {"true", "True"},
    {"none", "None"},
};

Test(template_values, numbers_compute_as_in_python) {
    expect_rows("{{ %s }}", NUMBERS, ARRAY_SIZE(NUMBERS));
}

static const struct template_row REPRS[] = {
    {R"([1, 2.0, 'a', "it's", none, true, (1,), (), {}, {'a': 1}])",
     R"([1, 2.0, 'a', "it's", None, True, (1,), (), {}, {'a': 1}])"},
    {"{'a': 1, 2: 'b', none: 3, true: 4}", "{'a': 1, 2: 'b', None: 3, True: 4}"},
    {R"('a"b\'c')", R"(a"b'c)"},
    {R"(['a"b\'c', 'a\'b', 'tab\t', 'nl\n', '\\', '\x00', 'é', '\u200b', '\U0001F600'])",
     R"(['a"b\'c', "a'b", 'tab\t', 'nl\n', '\\', '\x00', 'é', '\u200b', '😀'])"},
    {"l", "[3, 1, 2]"},
    {"d", R"({'b': 1, 'a': [1, 2.5, None, True, "x'y"]})"},
    {"ms", "[{'role': 'user', 'content': 'hi', 'k': {'z': 1}}, {'role': 'assistant', 'content': "
           "'yo', 'k': {'z': 2}}, {'role': 'user', 'content': 'x'}]"},
    {"s", "Hello World"},
};

Test(template_values, reprs_print_as_in_python) {
    expect_rows("{{ %s }}", REPRS, ARRAY_SIZE(REPRS));
}

static const struct template_row SUBSCRIPTS[] = {
    {"s[0]", "H"},
    {"s[-1]", "d"},
    {"s[100]", ""},
    {"s[1:3]", "el"},
    {"s[::-1]", "dlroW olleH"},
    {"s[::2]", "HloWrd"},
    {"s[-3:]", "rld"},
    {"s[:-3]", "Hello Wo"},
    {"s[5:2]", ""},
    {"s[10:0:-3]", "dooe"},
    {"u[::-1]", "ß dlröw olléh"},
    {"u[1]", "é"},
    {"u|length", "13"},
    {"l[::-1]", "[2, 1, 3]"},
    {"l[-2:]", "[1, 2]"},
    {"l[0], l[1]", "(3, 1)"},
    {"l[10]", ""},
    {"l['a']", ""},
    {"d['a']", R"([1, 2.5, None, True, "x'y"])"},
    {"d.a", R"([1, 2.5, None, True, "x'y"])"},
    {"d.zz", ""},
    {"d['zz'] is defined", "False"},
    {"{1:0,2:0,3:0,4:0,5:0,6:0,7:0,8:0,0:0,9223372036854775808:'x'}[9223372036854775808.0]", "x"},
    {"{1:0,2:0,3:0,4:0,5:0,6:0,7:0,8:0,9:0,0:'x'}[-0.0]", "x"},
    {"9007199254740993 == 9007199254740992.0", "False"},
    {"9007199254740993 == 9007199254740992", "False"},
    {"9223372036854775808.0 == 9223372036854775808", "True"},
    {"18446744073709551615 == 18446744073709551616.0", "False"},
    {"1e30 == 1", "False"},
    {"d.a[1]", "2.5"},
    {"d.a[-1]", "x'y"},
    {"d.items()", R"(dict_items([('b', 1), ('a', [1, 2.5, None, True, "x'y"])]))"},
    {"d.keys()", "dict_keys(['b', 'a'])"},
    {"d.values()", R"(dict_values([1, [1, 2.5, None, True, "x'y"]]))"},
    {"d.items()|list", R"([('b', 1), ('a', [1, 2.5, None, True, "x'y"])])"},
    {"d|items|list", R"([('b', 1), ('a', [1, 2.5, None, True, "x'y"])])"},
    {"d|list", "['b', 'a']"},
    {"d|length", "2"},
    {"s|length", "11"},
    {"n|length", NULL},
    {"x|length", "0"},
};

Test(template_values, subscripts_slice_and_find) {
    expect_rows("{{ %s }}", SUBSCRIPTS, ARRAY_SIZE(SUBSCRIPTS));
}

static const struct template_row UNDEFINED_VALUES[] = {
    {"x", ""},
    {"x.y", NULL},
    {"x['y']", NULL},
    {"x is defined", "False"},
    {"x is undefined", "True"},
    {"d.x is defined", "False"},
    {"d.x.y is defined", NULL},
};

Test(template_values, undefined_values_are_empty_until_used) {
    expect_rows("{{ %s }}", UNDEFINED_VALUES, ARRAY_SIZE(UNDEFINED_VALUES));
}

static const struct template_row COMPARISONS[] = {
    {"'a' in s", "False"},
    {"'H' in s", "True"},
    {"'a' in d", "True"},
    {"1 in l", "True"},
    {"5 in l", "False"},
    {"1 not in l", "False"},
    {"'x' in x", "False"},
    {"1 in n", NULL},
    {"1 in s", NULL},
    {"not x", "True"},
    {"not l", "False"},
    {"not not s", "True"},
    {"1 < 2 < 3", "True"},
    {"1 < 3 < 2", "False"},
    {"1 == 1.0", "True"},
    {"1 == true", "True"},
    {"'a' == 'a'", "True"},
    {"'a' < 'b'", "True"},
    {"[1,2] < [1,3]", "True"},
    {"'a' < 1", NULL},
    {"n < 1", NULL},
    {"[1] == [1]", "True"},
    {"{'a':1} == {'a':1.0}", "True"},
    {"(1,2) == [1,2]", "False"},
    {"x == y", "True"},
    {"x == none", "False"},
    {"-1 <= 5", "True"},
    {"5 >= -1", "True"},
    {"-5 >= -1", "False"},
    {"(1e308 * 10 - 1e308 * 10) <= 1", "False"},
    {"1 >= (1e308 * 10 - 1e308 * 10)", "False"},
    {"'a' < 'ab'", "True"},
    {"'ab' < 'a'", "False"},
    {"'ab' >= 'a'", "True"},
    {"'ab'|lower > 'ab'", "False"},
};

Test(template_values, comparisons_chain_and_order) {
    expect_rows("{{ %s }}", COMPARISONS, ARRAY_SIZE(COMPARISONS));
}

static const struct template_row CONDITIONS[] = {
    {"1 if t else 2", "1"},
    {"1 if x else 2", "2"},
    {"1 if x", ""},
    {"(1 if x) is defined", "False"},
};

Test(template_values, conditions_choose) {
    expect_rows("{{ %s }}", CONDITIONS, ARRAY_SIZE(CONDITIONS));
}

static const struct template_row SUMS[] = {
    {"'a' ~ 1 ~ none ~ x ~ 2.0", "a1None2.0"},
    {"'a' + 1", NULL},
    {"1 + 'a'", NULL},
    {"'a' + x", NULL},
    {"x + 'a'", NULL},
    {"'a' * 3", "aaa"},
    {"3 * 'ab'", "ababab"},
    {"[1] * 3", "[1, 1, 1]"},
    {"[1] + [2]", "[1, 2]"},
    {"[1] + (2,)", NULL},
    {"(1,) + (2,)", "(1, 2)"},
    {"s + s", "Hello WorldHello World"},
};

Test(template_values, sums_join_strings_and_lists) {
    expect_rows("{{ %s }}", SUMS, ARRAY_SIZE(SUMS));
}

static const struct template_row PRECEDENCE[] = {
    {"1 - 1 - 1", "-1"},    {"8 / 4 / 2", "1.0"}, {"2 + 3 * 4", "14"},
    {"(2 + 3) * 4", "20"},  {"1 ~ 2 + 3", NULL},  {"'a' ~ 'b' == 'ab'", "True"},
    {"not 1 == 2", "True"}, {"1 or x.y", "1"},    {"0 and x.y", "0"},
    {"0 or none", "None"},  {"'' or 'd'", "d"},   {"1 and 2", "2"},
};

Test(template_values, precedence_is_the_languages) {
    expect_rows("{{ %s }}", PRECEDENCE, ARRAY_SIZE(PRECEDENCE));
}

static const struct template_row LITERALS[] = {
    {"[1,2,]", "[1, 2]"},
    {"(1)", "1"},
    {"(1,)", "(1,)"},
    {"()", "()"},
    {"{'a':1,}", "{'a': 1}"},
    {"1,2", "(1, 2)"},
    {"'a' 'b'", "ab"},
    {R"("a\)"
     "\n"
     R"(b")",
     "ab"},
    {"'\\q\\n'", "\\q\n"},
    {"'\\101'", "A"},
};

Test(template_values, literals_parse) {
    expect_rows("{{ %s }}", LITERALS, ARRAY_SIZE(LITERALS));
}

static const struct template_row NESTED_ACCESS[] = {
    {"d.a.4", "x'y"},
    {"ms.0.role", "user"},
    {"ms[0].role", "user"},
    {"ms[0]['content'] + '!'", "hi!"},
    {"ms[-1]", "{'role': 'user', 'content': 'x'}"},
    {"ms[1:]|length", "2"},
    {"ms|length > 2", "True"},
    {"ms is iterable and ms is not mapping", "True"},
};

Test(template_values, nested_access_works) {
    expect_rows("{{ %s }}", NESTED_ACCESS, ARRAY_SIZE(NESTED_ACCESS));
}

static const struct template_row ODDS_AND_ENDS[] = {
    {"'ab'|map('upper')|list", "['A', 'B']"},
    {"none|items|list", NULL},
    {"x|items|list", "[]"},
    {"[[1,'b'],[0,'a']]|sort", "[[0, 'a'], [1, 'b']]"},
    {"[[1,'b'],[0,'a']]|map('first')|list", "[1, 0]"},
    {"[[1,'b'],[0,'a']]|map('last')|join", "ba"},
    {"[{'a':{'b':[5]}}]|map(attribute='a.b.0')|list", "[5]"},
    {R"("a" if false else "b" if false else "c")", "c"},
    {"1 if false else 2 if true else 3", "2"},
    {"u.upper()", "HÉLLO WÖRLD SS"},
    {"'日本語'[1:]", "本語"},
    {"'日本語'|length", "3"},
    {"'日本語'|reverse", "語本日"},
    {"'日本語'|tojson", R"("日本語")"},
    {"['日本語\\u3000\\xa0']", "['日本語\\u3000\\xa0']"},
    {"'\\xa0a\\u3000'|trim", "a"},
    {R"("{}".format("é"))", "é"},
    {"0 is defined", "True"},
    {"0x1F", "31"},
    {"0b11", "3"},
    {"0o17", "15"},
    {"1_000", "1000"},
    {"''[0] is defined", "False"},
    {"s['upper']()", "HELLO WORLD"},
    {"l[true]", "1"},
    {"l[1.0]", ""},
    {"s[1.0] is defined", "False"},
    {"d[l]", ""},
    {"l[none:2]", "[3, 1]"},
    {"l['a':]", NULL},
    {"l[::0]", NULL},
    {"x[1:]", NULL},
    {"n[0]", ""},
    {"n.a", ""},
    {"n.a.b", NULL},
    {"1.a", ""},
    {"s.a.b", NULL},
    {"-x", NULL},
    {"-s", NULL},
    {"-true", "-1"},
    {"+5", "5"},
    {"not none", "True"},
    {"loop", ""},
    {"loop.index", NULL},
    {"[] is sequence", "True"},
    {"1 is in(l)", "True"},
    {"'' in s", "True"},
    {"'' in ''", "True"},
    {"[1,[2,[3,{'a':(4,)}]]]|string", "[1, [2, [3, {'a': (4,)}]]]"},
    {"{'a':1}.a", "1"},
    {"{'items':1}['items']", "1"},
    {"'a' < 'B'", "False"},
    {"(1,2) < (1,3)", "True"},
    {"none == none", "True"},
    {"1 != 1.0", "False"},
    {"s != s", "False"},
    {"1 in {1:2}", "True"},
    {"1.0 in {1:2}", "True"},
    {"{1:'a',1.0:'b'}", "{1: 'b'}"},
    {"{'a':1,'a':2}", "{'a': 2}"},
    {"ms|map(attribute='content')|map('upper')|join(' ')", "HI YO X"},
    {"[1,2,3]|last", "3"},
    {"['x']|join(html)", "x"},
    {"'abc'|list|join('-')", "a-b-c"},
    {"'abc'|sort", "['a', 'b', 'c']"},
    {"'cab'|sort|join", "abc"},
    {"d|dictsort|map('first')|list", "['a', 'b']"},
    {"ms|selectattr('content','in',['hi','x'])|list|length", "2"},
    {"ms|selectattr('k.z','>',1)|list|length", NULL},
    {"ms|selectattr('k','defined')|list|length", "2"},
    {"n|selectattr('a')|list", "[]"},
    {"n|map('upper')|list", "[]"},
    {"'x' is in 'xyz'", "True"},
    {"''|default('q', boolean=true)", "q"},
    {"x|default(default_value='z')", "z"},
    {"d|length + 1", "3"},
    {"ms|last|length", "2"},
    {"(ms|last).role", "user"},
    {"(ms|last)['content']|upper", "X"},
    {"ms|first|items|list", "[('role', 'user'), ('content', 'hi'), ('k', {'z': 1})]"},
    {"1|string + 'a'", "1a"},
    {"[1]|string|length", "3"},
    {"'a\\nb'|replace('\\n','\\\\n')", "a\\nb"},
    {R"("\u00e9")", "é"},
    {"'\\x41'", "A"},
    {"1.0 == 1", "True"},
    {"0.1 + 0.7", "0.7999999999999999"},
    {"1e22", "1e+22"},
    {"1e21", "1e+21"},
    {"123456789.123456789", "123456789.12345679"},
    {"-0.0", "-0.0"},
    {"0.0", "0.0"},
    {"1e-4", "0.0001"},
    {"1.5e300 * 1e10", "inf"},
    {"1e308 * 10", "inf"},
    {"7 / 7", "1.0"},
    {"1 // 0", NULL},
    {"1 % 0", NULL},
    {"1 / 0", NULL},
    {"1.0 // 0", NULL},
    {"5.5 % 0", NULL},
    {"i|indent(2)", NULL},
    {"zz|indent(2)", NULL},
    {"html|safe|indent(2) + '<'", R"(<a href="x">&'</a>&lt;)"},
    {"'a' % 'b'", NULL},
    {"0.0 // -7", "-0.0"},
    {"-0.5 // 7", "-1.0"},
    {"['b','a']|sort(attribute='zz')", "['b', 'a']"},
    {"ms|sort(attribute='k.z')", NULL},
    {"ms|sort(attribute='content', reverse=true)|map(attribute='content')|list",
     "['yo', 'x', 'hi']"},
    {"namespace(a=1) in {}", "False"},
    {"l in {}", NULL},
    {"s|upper.lower()", NULL},
    {"[s, u]|map('length')|list", "[11, 13]"},
    {"d|items|map('first')|join", "ba"},
    {"many|length - 1", "19"},
    {"many.keys()|list|last", "19"},
    {"1 + 2 ~ 3 * 4 ~ s[0]", NULL},
    {"s[zz:]", NULL},
    {"(l|sort)[::-1]|join('>')", "3>2>1"},
    {"u.split('ö')", "['héllo w', 'rld ß']"},
    {"[1,[2]] == [1,[2.0]]", "True"},
    {"{'a':[1]} == {'a':[1]}", "True"},
    {"range(0, 9, 3)", "range(0, 9, 3)"},
    {"range(2, 4)", "range(2, 4)"},
    {"'{}'.format(d)", R"({'b': 1, 'a': [1, 2.5, None, True, "x'y"]})"},
};

Test(template_values, odds_and_ends_work) {
    expect_rows("{{ %s }}", ODDS_AND_ENDS, ARRAY_SIZE(ODDS_AND_ENDS));
}

/* Names stand where Python prints an address, which no template can want. */
Test(template_values, callables_print_their_names) {
    expect_text("{{ 'a'.upper }}", "{}", "<built-in method upper of str object>");
    expect_text("{{ [].append }}", "{}", "<built-in method append of list object>");
}
