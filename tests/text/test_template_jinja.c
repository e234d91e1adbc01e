/*
 * The parts of the language that few chat templates use. Every row is what the reference
 * implementation (Jinja2 3.1 in a sandbox that allows changes) renders for the same variables;
 * NULL: it raises an error.
 */

#include <criterion/criterion.h>

#include "tests/text/template_support.h"

static const struct template_row CALLS[] = {
    {R"({% macro f(p) %}[{{ caller() }}{{ p }}]{% endmacro %}{% call f("a") %}body{% endcall %})",
     "[bodya]"},
    {R"({% macro f(p) %}{{ caller(p) }}{% endmacro %}{% call(x) f("a") %}<{{ x }}>{% endcall %})",
     "<a>"},
    {"{% macro f() %}{{ caller(1, y=2) }}{% endmacro %}{% call(x, y=3, z=4) f() %}{{ x }}{{ y }}{{ "
     "z }}{% endcall %}",
     "124"},
    {"{% macro f() %}{{ caller is defined }}{% endmacro %}{{ f() }}{% call f() %}{% endcall %}",
     "FalseTrue"},
    {"{% macro f() %}x{% endmacro %}{% call f() %}b{% endcall %}", NULL},
    {"{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}", NULL},
    {"{% for x in l %}{% macro f() %}{{ caller() }}{{ x }}{% endmacro %}{% call f() %}{{ x }}{% "
     "endcall %}{% endfor %}",
     "331122"},
    {"{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ caller() }}{% "
     "endcall %}{% endmacro %}{% call g() %}in{% endcall %}",
     NULL},
    {"{% macro f(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, 3, b=4) }}{{ f(1) }}",
     "(2, 3){'b': 4}(){}"},
    {"{% macro f(a) %}{{ varargs|length }}{% endmacro %}{{ f(1, 2, b=4) }}", NULL},
    {"{% macro f(a, b=varargs) %}{{ b }}{% endmacro %}{{ f(1) }}", ""},
    {"{% call nothing() %}{% endcall %}", NULL},
};

Test(template_jinja, call_blocks_give_their_body_to_a_macro) {
    expect_rows("%s", CALLS, ARRAY_SIZE(CALLS));
}

static const struct template_row WITH[] = {
    {"{% with %}{% set a = 1 %}{{ a }}{% endwith %}{{ a }}", "1"},
    {"{% with a=1, b=2 %}{{ a }}{{ b }}{% endwith %}", "12"},
    {"{% set a = 5 %}{% with a=1, b=a %}{{ a }}{{ b }}{% endwith %}{{ a }}", "155"},
    {"{% with a = d.a, (b, c) = (1, 2) %}{{ a }}{{ b }}{{ c }}{% endwith %}",
     R"([1, 2.5, None, True, "x'y"]12)"},
    {"{% with a=1 %}{% for x in l %}{{ a }}{{ x }}{% endfor %}{% endwith %}", "131112"},
    {"{% with a %}{% endwith %}", NULL},
};

Test(template_jinja, with_binds_names) {
    expect_rows("%s", WITH, ARRAY_SIZE(WITH));
}

static const struct template_row RAW[] = {
    {"{% raw %}{{ x }}{% endraw %}", "{{ x }}"},
    {"a\n  {% raw %}\n {{ x }}\n  {% endraw %}\n b", "a\n\n {{ x }}\n b"},
    {"a {%- raw -%}  {% if %} {%- endraw -%}  b", "a{% if %}b"},
    {"{%raw%}{# #}{%endraw%}\n\nx", "{# #}\nx"},
    {"{% raw %}{% endraw %}", ""},
    {"{% raw %}{% raw %}{% endraw %}", "{% raw %}"},
    {"{% raw %}{{ x }}", NULL},
    {"{% raw x %}{% endraw %}", NULL},
    {"x{% raw %}\n  {%+ endraw %}y", "x\n  y"},
    {"{% raw %}{% endraw +%}\ny", "\ny"},
};

Test(template_jinja, raw_text_has_no_tags) {
    expect_rows("%s", RAW, ARRAY_SIZE(RAW));
}

static const struct template_row RECURSIVE[] = {
    {"{% for x in [1, [2, [3]]] recursive %}{% if x is number %}{{ x }}{{ loop.depth }}{{ "
     "loop.depth0 }}{% else %}<{{ loop(x) }}>{% endif %}{% endfor %}",
     "110<221<332>>"},
    {"{% for x in [1, [2]] recursive %}{{ loop.index }}{{ loop(x) if x is sequence else x }}{% "
     "else %}none{% endfor %}",
     "11212"},
    {"{% for x in [[], 1] recursive %}{% if x is number %}{{ x }}{% else %}({{ loop(x) }}){% endif "
     "%}{% else %}e{% endfor %}",
     "(e)1"},
    {"{% for x in [1, [2, 3], 4] if x != 3 recursive %}{% if x is number %}{{ x }}{% else %}({{ "
     "loop(x) }}){% endif %}{% endfor %}",
     "1(2)4"},
    {"{% for x in [1] %}{{ loop(x) }}{% endfor %}", NULL},
    {R"({% for x in l %}{{ loop.cycle("a", "b") }}{% endfor %})", "aba"},
    {"{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }}{% endfor %}", "TrueFalseTrueFalseTrue"},
    {"{% for x in l %}{{ loop.cycle() }}{% endfor %}", NULL},
    {"{% for x in [1, 1] %}{{ loop.changed(x, 2) }}{{ loop.changed() }}{% endfor %}",
     "TrueTrueTrueTrue"},
};

Test(template_jinja, loops_call_themselves) {
    expect_rows("%s", RECURSIVE, ARRAY_SIZE(RECURSIVE));
}

static const struct template_row TARGETS[] = {
    {"{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "123"},
    {"{% for (a, b), c in [([1, 2], 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "123"},
    {R"({% set a, (b, c) = 1, "xy" %}{{ a }}{{ b }}{{ c }})", "1xy"},
    {"{% set (a, (b,)), c = (1, [2]), 3 %}{{ a }}{{ b }}{{ c }}", "123"},
    {"{% for a, (b, c) in [(1, (2,))] %}{% endfor %}", NULL},
    {"{% for k, v in d|dictsort %}{{ k }}{{ v }}{% endfor %}", R"(a[1, 2.5, None, True, "x'y"]b1)"},
};

Test(template_jinja, targets_nest) {
    expect_rows("%s", TARGETS, ARRAY_SIZE(TARGETS));
}

static const struct template_row BLOCKS[] = {
    {"{% block a %}x{{ s }}{% endblock %}", "xHello World"},
    {"{% for x in l %}{% block a scoped %}{{ x }}{% endblock %}{% endfor %}", "312"},
    {"{% for x in l %}{% block a %}[{{ x }}]{% endblock %}{% endfor %}", "[][][]"},
    {"{% set y = 1 %}{% block a %}{{ y }}{% set y = 2 %}{{ y }}{% endblock a %}{{ y }}", "121"},
    {"{% block a %}{% endblock %}{% block a %}{% endblock %}", NULL},
    {"{% autoescape false %}{{ html }}{% endautoescape %}", R"(<a href="x">&'</a>)"},
};

Test(template_jinja, blocks_are_rendered_in_place) {
    expect_rows("%s", BLOCKS, ARRAY_SIZE(BLOCKS));
}

static const struct template_row UNKNOWN[] = {
    {"(1|nosuch) if not ms else 'x'", "x"},
    {"'x' if ms else 1|nosuch", "x"},
    {"1 if (1 is nosuch) else 2", NULL},
    {"(1 is nosuch) if f else 1", NULL},
    {"'abc'.replace('a', 'x'|nosuch if not ms else 'y')", "ybc"},
    {"{'k': (1|nosuch) if not ms else 2}.k", "2"},
    {"false and (1|nosuch)", "False"},
    {"true or (1 is nosuch)", "True"},
    {"((1|nosuch) if not ms else 'x')|upper", "X"},
    {"[1, (2|nosuch) if f == 1 else 3]", "[1, 3]"},
    {"1|nosuch", NULL},
    {"(1|nosuch) if ms else 'x'", NULL},
    {"1 is nosuch", NULL},
    {"[1|nosuch]", NULL},
    {"(1 if ms else 2)|nosuch", NULL},
    {"(s if ms else 1)|upper if (1 if ms else 2|nosuch) else (3|nosuch)", "HELLO WORLD"},
};

Test(template_jinja, unknown_names_count_where_they_are_reached) {
    expect_rows("{{ %s }}", UNKNOWN, ARRAY_SIZE(UNKNOWN));
}

static const struct template_row POWERS[] = {
    {"2 ** 3", "8"},       {"2 ** 3 ** 2", "64"},  {"-2 ** 2", "4"},
    {"2 ** -1", "0.5"},    {"2.0 ** 3", "8.0"},    {"2 * 3 ** 2", "18"},
    {"(-8) ** 3", "-512"}, {"0 ** 0", "1"},        {"2 ** 0.5", "1.4142135623730951"},
    {"'a' ** 2", NULL},    {"-i ** 2 ** 1", "49"}, {"2 ** 62", "4611686018427387904"},
    {"true ** 3", "1"},    {"4 ** f", "32.0"},
};

Test(template_jinja, powers_group_to_the_left) {
    expect_rows("{{ %s }}", POWERS, ARRAY_SIZE(POWERS));
}

static const struct template_row PERCENT[] = {
    {"'%s-%d' % ('a', 3)", "a-3"},
    {"'%5s|%-5s|' % ('a', 'b')", "    a|b    |"},
    {"'%05.1f|%+d|% d' % (2.25, 3, 4)", "002.2|+3| 4"},
    {"'%x %X %#x %o' % (255, 255, 255, 8)", "ff FF 0xff 10"},
    {"'%e %g %G' % (12345.678, 0.00001, 1e20)", "1.234568e+04 1e-05 1E+20"},
    {"'%(a)s%(b)d' % {'a': 1, 'b': 2}", "12"},
    {"'%%' % ()", "%"},
    {"'%s' % s", "Hello World"},
    {"'%s' % [1, 2]", "[1, 2]"},
    {"'%r' % 'x'", "'x'"},
    {"'%c%c' % ('a', 98)", "ab"},
    {"'%d' % 3.9", "3"},
    {"'%d' % 'a'", NULL},
    {"'%s %s' % 'a'", NULL},
    {"'%s' % (1, 2)", NULL},
    {"'a' % 1", NULL},
    {"'a' % d", "a"},
    {"'%.2s|%.3d' % ('abc', 7)", "ab|007"},
    {"'%*d' % (5, 42)", "   42"},
    {"'%z' % 1", NULL},
    {"'%' % 1", NULL},
    {"'%i%u' % (1, 2)", "12"},
    {"'%s' % n", "None"},
    {"'%s' % x", ""},
    {"'%(a)s' % 1", NULL},
    {"'%(q)s' % d", NULL},
    {"'%x' % 1.5", NULL},
    {"'%f' % 'a'", NULL},
    {"'%s'|format('a')", "a"},
    {"'%s %s'|format(1, 2)", "1 2"},
    {"'%(a)s'|format(a=1)", "1"},
    {"'%s'|format(1, a=2)", NULL},
    {"'%s'|format", NULL},
    {"5|format", "5"},
    {"'%08.3f|%-8d|%+.2e' % (3.14159, 42, 1234.5)", "0003.142|42      |+1.23e+03"},
};

Test(template_jinja, percent_formats) {
    expect_rows("{{ %s }}", PERCENT, ARRAY_SIZE(PERCENT));
}

static const struct template_row BRACES[] = {
    {"'{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd')", "    a|b    |  c  |***d***"},
    {"'{:5}|{:5}'.format('a', 1)", "a    |    1"},
    {"'{:05d}|{:+d}|{: d}'.format(42, 42, 42)", "00042|+42| 42"},
    {"'{:,}|{:_}|{:,.2f}'.format(1234567, 1234567, 1234567.891)",
     "1,234,567|1_234_567|1,234,567.89"},
    {"'{:.2f}|{:.0f}|{:10.3f}|{:e}'.format(2.675, 2.5, f, 12345.678)",
     "2.67|2|     2.500|1.234568e+04"},
    {"'{:x}|{:#x}|{:b}|{:#b}|{:o}|{:X}'.format(255, 255, 5, 5, 8, 255)", "ff|0xff|101|0b101|10|FF"},
    {"'{:g}|{:g}|{:.3g}|{:.3}'.format(0.00001, 1e20, 123456.0, 123.0)",
     "1e-05|1e+20|1.23e+05|1.23e+02"},
    {"'{:%}|{:.1%}'.format(0.25, 0.256)", "25.000000%|25.6%"},
    {"'{!r}|{!s:>4}'.format('a', 'b')", "'a'|   b"},
    {"'{0[0]}|{0[1]}'.format([7, 8])", "7|8"},
    {"'{0.a}|{a[b]}'.format({'a': 'x'}, a={'b': 5})", "x|5"},
    {"'{:{}}|'.format('a', 6)", "a     |"},
    {"'{:{w}.{p}f}|'.format(f, w=8, p=3)", "   2.500|"},
    {"'{0}{1}{0}'.format(1, 2)", "121"},
    {"'{}{0}'.format(1)", NULL},
    {"'{:d}'.format('a')", NULL},
    {"'{:s}'.format(1)", NULL},
    {"'{:>5}'.format(n)", NULL},
    {"'{:.2f}'.format('a')", NULL},
    {"'{:.3}'.format('abcdef')", "abc"},
    {"'{:c}'.format(97)", "a"},
    {"'{:5}'.format(true)", "    1"},
    {"'{}'.format(true)", "True"},
    {"'{{}}{}'.format(1)", "{}1"},
    {"'{!x}'.format(1)", NULL},
    {"'{:.}'.format(1.5)", NULL},
    {"'{:q}'.format(1)", NULL},
    {"'{:=5}'.format(-3)", "-   3"},
    {"'{:=5}'.format('a')", NULL},
    {"'{:+}'.format('a')", NULL},
    {"'{a.b.c}'.format(a={'b': {'c': 9}})", "9"},
    {"'{'.format(1)", NULL},
    {"'{:n}'.format(12)", "12"},
    {"'{:.1f}'.format(i)", "7.0"},
    {"'{:é>4}'.format(1)", "ééé1"},
};

Test(template_jinja, brace_formats_have_specs) {
    expect_rows("{{ %s }}", BRACES, ARRAY_SIZE(BRACES));
}

static const struct template_row WORDS[] = {
    {"'my_enum value'|title", "My_enum Value"},
    {"'a-b (c d) [e] {f} <g>é ÉA'|title", "A-B (C D) [E] {F} <G>é Éa"},
    {R"('x"y z'|title)", R"(X"y Z)"},
    {"5|title", "5"},
    {"s|center(15) ~ '|'", "  Hello World  |"},
    {"'ab'|center(5)", "  ab "},
    {"'ab'|center(1)", "ab"},
    {"'a b  c_d é-f'|wordcount", "5"},
    {"''|wordcount", "0"},
    {"'foo bar baz qux'|truncate(9)", "foo..."},
    {"'foo bar baz qux'|truncate(9, true)", "foo ba..."},
    {"'foo bar baz qux'|truncate(11)", "foo bar baz qux"},
    {"'foo bar baz qux'|truncate(11, false, '...', 0)", "foo bar..."},
    {"'foo bar baz qux'|truncate(5, end='..')", "foo.."},
    {"'foo'|truncate(2)", NULL},
    {"'héllo wörld'|truncate(6, true, '', 0)", "héllo "},
    {"html|e", "&lt;a href=&#34;x&#34;&gt;&amp;&#39;&lt;/a&gt;"},
    {"html|escape|e", "&lt;a href=&#34;x&#34;&gt;&amp;&#39;&lt;/a&gt;"},
    {"html|e|string|forceescape",
     "&amp;lt;a href=&amp;#34;x&amp;#34;&amp;gt;&amp;amp;&amp;#39;&amp;lt;/a&amp;gt;"},
    {"5|e", "5"},
    {"'a b/é?&'|urlencode", "a%20b/%C3%A9%3F%26"},
    {"{'a b': 'c/d', 'e': 1}|urlencode", "a+b=c%2Fd&e=1"},
    {"[('a', 'ü')]|urlencode", "a=%C3%BC"},
    {"7|urlencode", "7"},
    {"[1]|urlencode", NULL},
    {"s|e|upper", "HELLO WORLD"},
    {"[html|e]", "[Markup('&lt;a href=&#34;x&#34;&gt;&amp;&#39;&lt;/a&gt;')]"},
};

Test(template_jinja, filters_on_words) {
    expect_rows("{{ %s }}", WORDS, ARRAY_SIZE(WORDS));
}

static const struct template_row NUMBERS[] = {
    {"-3|abs", "3"},
    {"-2.5|abs", "2.5"},
    {"true|abs", "1"},
    {"'a'|abs", NULL},
    {"x|abs", NULL},
    {"'3'|float", "3.0"},
    {"' 2.5 '|float", "2.5"},
    {"'x'|float", "0.0"},
    {"'x'|float(1)", "1"},
    {"n|float", "0.0"},
    {"i|float", "7.0"},
    {"'1e3'|float", "1000.0"},
    {"x|float", NULL},
    {"3.7|round", "4.0"},
    {"2.5|round", "2.0"},
    {"3.5|round", "4.0"},
    {"-2.5|round", "-2.0"},
    {"2.675|round(2)", "2.67"},
    {"2.345|round(2)", "2.35"},
    {"1234.5|round(-2)", "1200.0"},
    {"1250|round(-2)", "1200"},
    {"1350|round(-2)", "1400"},
    {"42|round", "42"},
    {"42|round(2)", "42"},
    {"42.55|round(1, 'floor')", "42.5"},
    {"42.51|round(1, 'ceil')", "42.6"},
    {"42|round(0, 'ceil')", "42.0"},
    {"-1.5|round(0, 'floor')", "-2.0"},
    {"'a'|round", NULL},
    {"1.5|round(0, 'up')", NULL},
    {"0.5|round|int", "0"},
    {"1e300|round(2)", "1e+300"},
    {"l|sum", "6"},
    {"[1.5, 2]|sum", "3.5"},
    {"[]|sum", "0"},
    {"l|sum(start=10)", "16"},
    {"ms|sum('k.z')", NULL},
    {"['a']|sum", NULL},
    {"['a']|sum(start='')", NULL},
    {"[[1], [2]]|sum(start=[])", "[1, 2]"},
};

Test(template_jinja, filters_on_numbers) {
    expect_rows("{{ %s }}", NUMBERS, ARRAY_SIZE(NUMBERS));
}

static const struct template_row GROUPS[] = {
    {"[1, 1, 2, 1]|unique|list", "[1, 2]"},
    {"['a', 'A', 'b']|unique|list", "['a', 'b']"},
    {"['a', 'A', 'b']|unique(true)|list", "['a', 'A', 'b']"},
    {"ms|unique(attribute='role')|map(attribute='content')|list", "['hi', 'yo']"},
    {"[[1]]|unique|list", NULL},
    {"[1, 2, 3, 4, 5]|batch(2)|list", "[[1, 2], [3, 4], [5]]"},
    {"[1, 2, 3]|batch(2, 0)|list", "[[1, 2], [3, 0]]"},
    {"[]|batch(2)|list", "[]"},
    {"[1, 2, 3, 4, 5]|slice(3)|list", "[[1, 2], [3, 4], [5]]"},
    {"[1, 2, 3, 4, 5]|slice(3, 'x')|list", "[[1, 2], [3, 4], [5, 'x']]"},
    {"[1]|slice(3)|list", "[[1], [], []]"},
    {"l|slice(0)|list", NULL},
    {"ms|groupby('role')|map('first')|list", "['assistant', 'user']"},
    {"ms|groupby('role')|map(attribute='list')|map('length')|list", "[1, 2]"},
    {"(ms|groupby('role'))[0].grouper", "assistant"},
    {"(ms|groupby('role'))[1]['list']|length", "2"},
    {"['b', 'A', 'a']|groupby('0')|list|length", "2"},
    {"[{'a': 1}, {}]|groupby('a', default=0)", "[(0, [{}]), (1, [{'a': 1}])]"},
    {"[{'a': 'X'}, {'a': 'x'}]|groupby('a')", "[('X', [{'a': 'X'}, {'a': 'x'}])]"},
    {"[{'a': 'X'}, {'a': 'x'}]|groupby('a', case_sensitive=true)",
     "[('X', [{'a': 'X'}]), ('x', [{'a': 'x'}])]"},
    {"[{'a': 1}, {}]|groupby('a')", NULL},
    {"ms[0]|attr('role')", ""},
    {"ms[0]|attr('items') is callable", "True"},
    {"s|attr('upper') is callable", "True"},
    {"l|batch(2)|map('sum')|list", "[4, 2]"},
};

Test(template_jinja, filters_that_group) {
    expect_rows("{{ %s }}", GROUPS, ARRAY_SIZE(GROUPS));
}

static const struct template_row STRINGS[] = {
    {R"("they're bill's".title())", "They'Re Bill'S"},
    {"'hello WORLD 3abc'.title()", "Hello World 3Abc"},
    {"'aXbÉ'.swapcase()", "AxBé"},
    {"'Straße'.casefold()", "strasse"},
    {"'banana'.count('an')", "2"},
    {"'banana'.count('a', 2)", "2"},
    {"'banana'.count('a', 2, 4)", "1"},
    {"'héé'.count('')", "4"},
    {"'banana'.count('')", "7"},
    {"'banana'.index('n')", "2"},
    {"'banana'.index('x')", NULL},
    {"'banana'.rfind('an')", "3"},
    {"'banana'.rfind('x')", "-1"},
    {"'banana'.rfind('')", "6"},
    {"'banana'.rindex('a')", "5"},
    {"'banana'.rindex('x')", NULL},
    {"'banana'.rfind('an', 0, 4)", "1"},
    {"'a,b,c'.rsplit(',', 1)", "['a,b', 'c']"},
    {"'a,b,c'.rsplit(',')", "['a', 'b', 'c']"},
    {"'aaaa'.rsplit('aa')", "['', '', '']"},
    {"' a  b c '.rsplit()", "['a', 'b', 'c']"},
    {"' a  b c '.rsplit(none, 1)", "[' a  b', 'c']"},
    {"' a  b c '.rsplit(none, 0)", "[' a  b c']"},
    {"'a'.rsplit('')", NULL},
    {"' a  b c '.split(none, 1)", "['a', 'b c ']"},
    {"'a\\nb\\r\\nc\\n'.splitlines()", "['a', 'b', 'c']"},
    {"'a\\nb\\r\\nc\\n'.splitlines(true)", "['a\\n', 'b\\r\\n', 'c\\n']"},
    {"''.splitlines()", "[]"},
    {"'a=b=c'.partition('=')", "('a', '=', 'b=c')"},
    {"'a=b=c'.rpartition('=')", "('a=b', '=', 'c')"},
    {"'abc'.partition('=')", "('abc', '', '')"},
    {"'abc'.rpartition('=')", "('', '', 'abc')"},
    {"'a'.partition('')", NULL},
    {"'42'.zfill(5)", "00042"},
    {"'-42'.zfill(5)", "-0042"},
    {"'+4'.zfill(1)", "+4"},
    {"'a'.ljust(3, '.')", "a.."},
    {"'a'.rjust(3)", "  a"},
    {"'é'.center(4, '*')", "*é**"},
    {"'ab'.center(5)", "  ab "},
    {"'a'.ljust(3, '..')", NULL},
    {"'abc'.isalpha()", "True"},
    {"'ab1'.isalpha()", "False"},
    {"''.isalpha()", "False"},
    {"'é'.isalpha()", "True"},
    {"'a1'.isalnum()", "True"},
    {"'a '.isalnum()", "False"},
    {"' \\n'.isspace()", "True"},
    {"''.isspace()", "False"},
    {"'ABC1'.isupper()", "True"},
    {"'1'.isupper()", "False"},
    {"'abc'.islower()", "True"},
    {"'aB'.islower()", "False"},
    {"'Ab Cd'.istitle()", "True"},
    {"'AB'.istitle()", "False"},
    {"'²'.isdigit()", "True"},
    {"'²'.isdecimal()", "False"},
    {"'½'.isnumeric()", "True"},
    {"'½'.isdigit()", "False"},
    {"'é'.isascii()", "False"},
    {"''.isascii()", "True"},
    {"u.upper().islower()", "False"},
};

Test(template_jinja, methods_of_strings) {
    expect_rows("{{ %s }}", STRINGS, ARRAY_SIZE(STRINGS));
}

static const struct template_row LISTS[] = {
    {"[1, 2, 1].count(1)", "2"},
    {"(1, 2).count(3)", "0"},
    {"[1, 2].index(2)", "1"},
    {"[1].index(2)", NULL},
    {"('a',).index('a')", "0"},
    {"l.copy()", "[3, 1, 2]"},
    {"d.copy()", R"({'b': 1, 'a': [1, 2.5, None, True, "x'y"]})"},
    {"d.setdefault('b', 5)", "1"},
    {"d.setdefault('q', 5) ~ d.q", "55"},
    {"d.setdefault('q')", "None"},
};

Test(template_jinja, methods_of_lists_and_dicts) {
    expect_rows("{{ %s }}", LISTS, ARRAY_SIZE(LISTS));
}

static const struct template_row CHANGES[] = {
    {"a.insert(1, 9)", "[1, 9, 2, 3][1, 2, 3]"},
    {"a.insert(-1, 9)", "[1, 2, 9, 3][1, 2, 3]"},
    {"a.insert(99, 9)", "[1, 2, 3, 9][1, 2, 3]"},
    {"a.remove(2)", "[1, 3][1, 2, 3]"},
    {"a.remove(9)", NULL},
    {"a.reverse()", "[3, 2, 1][1, 2, 3]"},
    {"a.clear()", "[][1, 2, 3]"},
    {"b.insert(0, 9)", "[1, 2, 3][9, 1, 2, 3]"},
    {"b.reverse()", "[1, 2, 3][3, 2, 1]"},
    {"a.extend(a)", "[1, 2, 3, 1, 2, 3][1, 2, 3]"},
    {"a.clear() or a.append(4)", "[4][1, 2, 3]"},
};

Test(template_jinja, lists_change) {
    expect_rows("{%% set a = [1, 2, 3] %%}{%% set b = a[:] %%}{%% set _ = %s %%}{{ a }}{{ b }}",
                CHANGES, ARRAY_SIZE(CHANGES));
}

static const struct template_row TESTS[] = {
    {"range is callable", "True"},   {"1 is callable", "False"},
    {"s.upper is callable", "True"}, {"n is sameas none", "True"},
    {"{} is sameas none", "False"},  {"l is sameas l", "True"},
    {"[1] is sameas [1]", "False"},  {"true is sameas true", "True"},
    {"1 is sameas true", "False"},   {"'a' is sameas('a')", "True"},
    {"'upper' is filter", "True"},   {"'nosuch' is filter", "False"},
    {"'odd' is test", "True"},       {"5 is filter", "False"},
    {"[] is filter", NULL},          {"'abc' is lower", "True"},
    {"'aBc' is lower", "False"},     {"'ABC' is upper", "True"},
    {"5 is upper", "False"},         {"(s|e) is escaped", "True"},
    {"s is escaped", "False"},       {"x is callable", "True"},
};

Test(template_jinja, tests_of_kinds) {
    expect_rows("{{ %s }}", TESTS, ARRAY_SIZE(TESTS));
}

static const struct template_row JSON[] = {
    {"{'a': [1]}|tojson(indent=33)",
     "{\n                                 \"a\": [\n                                               "
     "                   1\n                                 ]\n}"},
    {"[1]|tojson(indent=64)",
     "[\n                                                                1\n]"},
};

Test(template_jinja, json_is_indented) {
    expect_rows("{{ %s }}", JSON, ARRAY_SIZE(JSON));
}

static const struct template_row JOINERS[] = {
    {"{% set j = joiner() %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}", "3, 1, 2"},
    {"{% set j = joiner('|') %}{{ j() }}{{ j() }}{% set k = joiner() %}{{ k() }}{{ j() }}", "||"},
};

Test(template_jinja, joiners_begin_with_nothing) {
    expect_rows("%s", JOINERS, ARRAY_SIZE(JOINERS));
}
