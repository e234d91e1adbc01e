/*
 * Tags, scopes and white space. Every row is what the reference implementation (Jinja2 3.1 in
 * a sandbox that allows changes) renders for the same variables; NULL: it raises an error.
 */

#include <criterion/criterion.h>

#include "tests/text/template_support.h"

static const struct template_row WHITE_SPACE[] = {
    {"{% if t %}\n  a\n{% endif %}\nb", "  a\nb"},
    {"  {% if t %}  x  {% endif %}  y\n", "  x    y"},
    {"a\n  {%- if t %} x {%- endif %}\n b", "a x b"},
    {"a {{- 1 -}} b", "a1b"},
    {"a {{ 1 -}}\n\n  b", "a 1b"},
    {"a\n  {#- c -#}\n  b", "ab"},
    {"a\n  {# c #}\n  b", "a\n  b"},
    {"a {# c #} b\n{# d #}\n{# e #}x", "a  b\nx"},
    {"{% for i in l %}\n{{ i }}\n{% endfor %}\n", "3\n1\n2\n"},
    {"{% for i in l -%}\n{{ i }}\n{%- endfor %}\n", "312"},
    {"  {%+ if t %}x{% endif %}\n", "  x"},
    {"{% if t +%}\nx{% endif %}", "\nx"},
    {"a\r\nb\rc\n\n", "a\nb\nc\n"},
    {"x\n", "x"},
    {"x\n\n", "x\n"},
    {"", ""},
    {"\n", ""},
    {"{{ 'a\r\nb'|tojson }}", R"("a\nb")"},
};

Test(template_statements, white_space_is_cut_as_the_reference_does) {
    expect_rows("%s", WHITE_SPACE, ARRAY_SIZE(WHITE_SPACE));
}

static const struct template_row ASSIGNMENTS[] = {
    {"{% set x = 1 %}{{ x }}", "1"},
    {"{% for i in l %}{% set x = i %}{% endfor %}{{ x }}", ""},
    {"{% set ns = namespace(x=0) %}{% for i in l %}{% set ns.x = ns.x + i %}{% endfor %}{{ ns.x }}",
     "6"},
    {"{% set x = 1 %}{% for i in l %}{{ x }}{% set x = i %}{{ x }};{% endfor %}{{ x }}",
     "13;11;12;1"},
    {"{% if t %}{% set x = 5 %}{% endif %}{{ x }}", "5"},
    {"{% set a, b = 1, 2 %}{{ a }}{{ b }}", "12"},
    {"{% set (a, b) = [1, 2] %}{{ a }}{{ b }}", "12"},
    {"{% set a, b = [1] %}", NULL},
    {"{% set a, b = [1,2,3] %}", NULL},
    {"{% set a, = [1] %}{{ a }}", NULL},
};

Test(template_statements, assignments_keep_to_their_scope) {
    expect_rows("%s", ASSIGNMENTS, ARRAY_SIZE(ASSIGNMENTS));
}

static const struct template_row LOOPS[] = {
    {"{% for a, b in d.items() %}{{ a }}={{ b }};{% endfor %}",
     R"(b=1;a=[1, 2.5, None, True, "x'y"];)"},
    {"{% for a, b in d|items %}{{ a }}={{ b }};{% endfor %}",
     R"(b=1;a=[1, 2.5, None, True, "x'y"];)"},
    {"{% for a in d %}{{ a }}{% endfor %}", "ba"},
    {"{% for c in u %}{{ c }}-{% endfor %}", "h-é-l-l-o- -w-ö-r-l-d- -ß-"},
    {"{% for a in n %}{% endfor %}", NULL},
    {"{% for a in zz %}x{% else %}empty{% endfor %}", "empty"},
    {"{% for a in [] %}x{% else %}empty{% endfor %}", "empty"},
    {"{% for a in 5 %}{% endfor %}", NULL},
    {"{% for i in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ "
     "loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem "
     "}}{{ loop.depth }}|{% endfor %}",
     "10TrueFalse33211|21FalseFalse321321|32FalseTrue31011|"},
    {"{% for i in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{{ loop.zz is "
     "defined }}{% endfor %}",
     "FalseTrueFalseTrueTrueFalseTrueFalseFalse"},
    {"{% for i in l %}{{ loop.previtem.x }}{% endfor %}", NULL},
    {"{% for i in l if i > 1 %}{{ i }}{{ loop.index }}{{ loop.length }}{% else %}none{% endfor %}",
     "312222"},
    {"{% for i in l if i > 9 %}{{ i }}{% else %}none{% endfor %}", "none"},
    {"{% for m in ms if m.role == 'user' %}{{ m.content }}{% if not loop.last %}, {% endif %}{% "
     "endfor %}",
     "hi, x"},
    {"{% for i in l %}{% for j in l %}{{ loop.index }}{{ loop.depth }}{% endfor %}{{ loop.index "
     "}};{% endfor %}",
     "1121311;1121312;1121313;"},
    {"{% for i in l %}{% set outer = loop %}{% for j in l %}{{ outer.index }}{{ loop.index }}{% "
     "endfor %}{% endfor %}",
     "111213212223313233"},
    {"{% for i in l %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "32"},
    {"{% for i in l %}{% if i == 1 %}{% break %}{% endif %}{{ i }}{% endfor %}", "3"},
    {"{% break %}", NULL},
    {"{% for i in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", NULL},
};

Test(template_statements, loops_iterate) {
    expect_rows("%s", LOOPS, ARRAY_SIZE(LOOPS));
}

static const struct template_row MACROS[] = {
    {"{% macro f(a, b) %}<{{ a }}{{ b }}>{% endmacro %}{{ f(*[1, 2]) }}{{ f(1, *[2]) }}{{ f(*'xy') "
     "}}",
     "<12><12><xy>"},
    {"{% macro f(a) %}{{ a }}{% endmacro %}{{ f(*5) }}", NULL},
    {"{% macro f(a) %}{{ a }}{% endmacro %}{{ f(*nothing.at.all) }}", NULL},
    {"{% macro m(a, b=2, c='x') %}[{{ a }}{{ b }}{{ c }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ "
     "m(1, c=5) }}{{ m(a=9) }}{{ m() }}",
     "[12x][13x][125][92x][2x]"},
    {"{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", NULL},
    {"{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}", NULL},
    {"{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}", NULL},
    {"{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, z=3) }}", "(1, 2){'z': 3}"},
    {"{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(7) }}", "7"},
    {"{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
     "54321"},
    {"{% macro m() %}{{ q }}{% endmacro %}{% set q = 1 %}{{ m() }}", "1"},
    {"{% set q = 1 %}{% macro m() %}{{ q }}{% set q = 2 %}{{ q }}{% endmacro %}{{ m() }}{{ q }}",
     "121"},
    {"{% macro m() %}  x  {% endmacro %}{{ m()|trim|length }}{{ m() is string }}", "1True"},
    {"{{ m() }}{% macro m() %}x{% endmacro %}", NULL},
    {"{% macro m() %}{% endmacro %}{{ m.name }}", "m"},
    {"{% macro m(a, b) %}{% endmacro %}{{ m(1,2) == '' }}", "True"},
    {"{% for i in l %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "312"},
    {"{% macro m() %}x{% endmacro %}{% call m() %}body{% endcall %}", NULL},
};

Test(template_statements, macros_bind_arguments) {
    expect_rows("%s", MACROS, ARRAY_SIZE(MACROS));
}

static const struct template_row BLOCKS[] = {
    {"{% set x %}  a {{ 1 }}\n{% endset %}[{{ x }}]", "[  a 1\n]"},
    {"{% set x | upper %}abc{% endset %}{{ x }}", "ABC"},
    {"{% set x | replace('a','b') | upper %}abc{% endset %}{{ x }}", "BBC"},
    {"{% set ns = namespace() %}{% set ns.x %}abc{% endset %}{{ ns.x }}", "abc"},
    {"{% filter upper %}abc {{ s }}{% endfilter %}", "ABC HELLO WORLD"},
    {"{% filter upper | replace('B', '-') %}abc{% endfilter %}", "A-C"},
    {"{% filter indent(2) %}a\nb\n{% endfilter %}", "a\n  b\n"},
    {"{% with a = 1 %}{{ a }}{% endwith %}", "1"},
    {"{% generation %}a{% set z = 1 %}{{ z }}{% endgeneration %}{{ z }}", "a1"},
    {"{% set x = 1 %}{% set x.y = 2 %}", NULL},
    {"{% set zz.y = 2 %}", NULL},
    {"{% if x %}a{% elif t %}b{% else %}c{% endif %}", "b"},
    {"{% if x %}a{% elif n %}b{% else %}c{% endif %}", "c"},
    {"{% if x is defined and x.y %}a{% endif %}", ""},
    {"{% if 1 in l, %}a{% endif %}", "a"},
};

Test(template_statements, blocks_capture_and_filter) {
    expect_rows("%s", BLOCKS, ARRAY_SIZE(BLOCKS));
}

static const struct template_row MALFORMED_TEMPLATES[] = {
    {"{% if t %}", NULL},
    {"{% endif %}", NULL},
    {"{{ 1", NULL},
    {"{% if %}{% endif %}", NULL},
    {"{{ }}", NULL},
    {"{% foo %}", NULL},
    {"{{ 1 + }}", NULL},
    {"{{ (1 }}", NULL},
    {"{{ [1 }}", NULL},
    {"{{ 1) }}", NULL},
    {"{# x", NULL},
    {"{{ 'abc }}", NULL},
    {"{{ a b }}", NULL},
    {"{% for x in %}{% endfor %}", NULL},
    {"{% for 1 in l %}{% endfor %}", NULL},
    {"{% set 1 = 2 %}", NULL},
    {"{% set none = 2 %}", NULL},
    {"{{ x is }}", NULL},
    {"{{ x| }}", NULL},
    {"{{ x. }}", NULL},
    {"{{ x[] }}", NULL},
    {"{{ f(a=1, 2) }}", NULL},
    {"{% macro %}{% endmacro %}", NULL},
    {"{% macro m(a=1, b) %}{% endmacro %}", NULL},
    {"{{ 1 if }}", NULL},
    {"{{ $ }}", NULL},
    {"{{ {'a' 1} }}", NULL},
    {"{% include 'x' %}", NULL},
    {"{{ x is string is none }}", NULL},
    {"{% if t %}{% else %}{% elif t %}{% endif %}", NULL},
    {"{% else %}", NULL},
};

Test(template_statements, malformed_templates_are_refused) {
    expect_rows("%s", MALFORMED_TEMPLATES, ARRAY_SIZE(MALFORMED_TEMPLATES));
}

static const struct template_row TAGS[] = {
    {"{{ {'a': {'b': {}}} }}", "{'a': {'b': {}}}"},
    {"{{ {'a': {}}}}", "{'a': {}}"},
    {"{{-1}}", "1"},
    {"{{+1}}", "1"},
    {"{{ -1 }}", "-1"},
    {"{{ 1}}{{2 }}", "12"},
    {R"({{ '}}' }}{{ "%}" }})", "}}%}"},
    {"{% if '%}' %}x{% endif %}", "x"},
    {"{ { } } {x} {", "{ { } } {x} {"},
    {"{", "{"},
    {"}}", "}}"},
    {"%}", "%}"},
    {"{% if true %}{{ 'a' }}{% endif %}\n{% if true %}b{% endif %}\n\n{{ 'c' }}\n", "ab\nc"},
    {"{{ 'a' }}\n{{ 'b' }}\n", "a\nb"},
    {"    {% set x = 1 %}\n    {{ x }}\n    {% if x %}\n    y\n    {% endif %}\n",
     "    1\n    y\n"},
    {"\t {% if t %}tab{% endif %}", "tab"},
    {"x {% if t %}\ny{% endif %}", "x y"},
    {"x{% if t %}   \ny{% endif %}", "x   \ny"},
    {"{% if t -%}   \n\ny{%- endif %}", "y"},
};

Test(template_statements, tags_are_found) {
    expect_rows("%s", TAGS, ARRAY_SIZE(TAGS));
}

static const struct template_row CHANGES[] = {
    {"{{ l.append(4) }}{{ l }}", "None[3, 1, 2, 4]"},
    {"{% set _ = l.append(4) %}{{ l }}", "[3, 1, 2, 4]"},
    {"{% set m2 = ms %}{% set _ = m2.pop(0) %}{{ ms|length }}", "2"},
    {"{% set x = ms[1:] %}{% set _ = x.pop() %}{{ ms|length }}{{ x|length }}", "31"},
    {"{% set g = l|map('string') %}{{ g|list }}{{ g|list }}", "['3', '1', '2'][]"},
    {"{% set g = l|map('string') %}{{ g|first }}{{ g|list }}", "3['1', '2']"},
    {"{% for x in l|select('odd') %}{{ x }}{{ loop.last }}{% endfor %}", "3False1True"},
    {"{% set a = l|sort %}{{ a }}{{ l }}", "[1, 2, 3][3, 1, 2]"},
    {"{{ ns }}{% set ns = namespace(a=1) %}{{ ns }}", "<Namespace {'a': 1}>"},
    {"{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.a = ns.a + 1 %}{{ ns.a }}{{ ns['a'] }}",
     "22"},
};

Test(template_statements, changes_are_seen) {
    expect_rows("%s", CHANGES, ARRAY_SIZE(CHANGES));
}

static const struct template_row MIXTURES[] = {
    {"{{ ms|selectattr('role', 'in', ('user',))|list|length }}", "2"},
    {"{{ raise_exception('x') }}", NULL},
    {"{% if x is defined %}{{ raise_exception('x') }}{% endif %}ok", "ok"},
    {"{% set loop = 5 %}{{ loop }}", "5"},
    {"{% for loop in l %}{{ loop }}{% endfor %}", NULL},
    {"{% for i in l %}{{ i if not loop.last else i ~ '!' }}{% endfor %}", "312!"},
    {"{% for i in [1,2] + l %}{{ i }}{% endfor %}", "12312"},
    {"{% for i in (1, 2) %}{{ i }}{% endfor %}", "12"},
    {"{% for i in 1, 2 %}{{ i }}{% endfor %}", "12"},
    {"{% for i in l if true else [] %}{{ i }}{% endfor %}", NULL},
    {"{% for i in (l if t else []) %}{{ i }}{% endfor %}", "312"},
    {"{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "B"},
    {"{% for i in range(3) %}{% if i == 1 %}{% set x = 1 %}{% endif %}{{ x is defined }}{% endfor "
     "%}",
     "FalseTrueFalse"},
    {"{% set x = 0 %}{% for i in range(3) %}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}", "1110"},
    {"{{ '<' }}{{ html }}", R"(<<a href="x">&'</a>)"},
    {"{% set x %}<{{ html }}>{% endset %}{{ x ~ '<' }}{{ x + '<' }}",
     R"(<<a href="x">&'</a>><<<a href="x">&'</a>><)"},
    {R"({{ "\u00e9\n\t" }})", "é\n\t"},
    {"{{ 'a' if x is defined else 'b' ~ 'c' }}", "bc"},
    {"{{ f('x', **{}) }}", NULL},
    {"{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 1, 'b': 2}) }}{{ "
     "m(1, *[2]) }}",
     "121212"},
    {"{{ dict(**{'a': 1}) }}", "{'a': 1}"},
    {"{%- for message in ms %}\n    {{- '<|im_start|>' + message.role + '\\n' + message['content'] "
     "+ '<|im_end|>' + '\\n' }}\n{%- endfor %}\n{%- if t %}\n    {{- '<|im_start|>assistant\\n' "
     "}}\n{%- endif %}\n",
     "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n<|im_start|>user\nx<|im_"
     "end|>\n<|im_start|>assistant\n"},
    {"{% for i in l %}{% filter upper %}{% if loop.index == 2 %}{% break %}{% endif %}a{{ i }}{% "
     "endfilter %}{% endfor %}z",
     "A3z"},
    {"{% for i in l %}{% set q %}{% if loop.index == 2 %}{% continue %}{% endif %}a{% endset %}{{ "
     "q }}{{ i }}{% endfor %}z",
     "a3a2z"},
    {"{{ s\n | upper\n }}", "HELLO WORLD"},
    {"{{ {1: 2}[1] }}{{ {1: 2}['1'] is defined }}{{ (1,2)[0] }}{{ 'abc'[1] }}{{ [1,2][-1] }}",
     "2False1b2"},
    {"{{ not x is defined }}{{ x is not defined or y }}", "TrueTrue"},
    {"{{ 1 if t }}{{ 2 if n }}", "1"},
    {"{{ l if l else 'e' }}", "[3, 1, 2]"},
    {"{{ 'a' in ['a'] and 'b' not in ['a'] }}", "True"},
    {"{%if t%}x{%endif%}", "x"},
    {"{%-if t-%} x {%-endif-%} y", "xy"},
    {"{{ zz.a.b }}", NULL},
    {"{{ d.zz.b }}", NULL},
    {"{{ zz() }}", NULL},
    {"{{ s() }}", NULL},
    {"{{ d.zz() }}", NULL},
    {"{{ 'a'|map('zz')|list }}", NULL},
    {"{{ l|select('zz')|list }}", NULL},
    {"{{ [l|length, 'x'] | join(':') }}", "3:x"},
    {"{{ (l|length) > 2 and l|length < 9 }}", "True"},
    {"{{ l | length == 3 }}", "True"},
    {"{{ -l|length }}", NULL},
    {"{{ 5 - l|length }}", "2"},
    {"{{ 'x' * l|length }}", "xxx"},
    {"{{ s|length + 1 ~ 'a' }}", NULL},
    {"{{ s.split(' ')|last|upper }}", "WORLD"},
    {"{{ (s ~ '!').upper() }}", "HELLO WORLD!"},
    {"{{ s|upper.lower() }}", NULL},
    {"{{ ms|map(attribute='role')|join(', ')|upper }}", "USER, ASSISTANT, USER"},
    {"{{ ms[0]['role'].upper() ~ ms[-1].content }}", "USERx"},
    {"{{ ms|map('items')|map('list')|list }}",
     "[[('role', 'user'), ('content', 'hi'), ('k', {'z': 1})], [('role', 'assistant'), ('content', "
     "'yo'), ('k', {'z': 2})], [('role', 'user'), ('content', 'x')]]"},
};

Test(template_statements, mixtures_work) {
    expect_rows("%s", MIXTURES, ARRAY_SIZE(MIXTURES));
}
