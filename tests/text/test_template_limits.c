/* Templates and variables that mean harm: each must end soon, with an error that says what and
 * where. */

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "base/buf.h"
#include "tests/support/test_data.h"
#include "tests/text/template_support.h"

/* @head, @n times @unit, @tail. To be freed. */
static char *repeat(const char *head, const char *unit, size_t n, const char *tail) {
    struct buf b;

    buf_init(&b, 1 << 24);
    cr_assert_eq(buf_add_str(&b, head), 0);
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(buf_add_str(&b, unit), 0);
    cr_assert_eq(buf_add_str(&b, tail), 0);
    return b.data;
}

static void expect_repeat_error(const char *head, const char *unit, size_t n, const char *tail,
                                const char *part) {
    CLEANUP(freep) char *source = repeat(head, unit, n, tail);
    struct err err;
    CLEANUP(freep) char *text = template_text(source, TEMPLATE_VARS, NULL, &err);

    cr_expect(!text && err.status == 400 && strstr(err.message, part), "%zu times %s: %s", n, unit,
              text ? "no error" : err.message);
}

Test(template_limits, deep_nesting_in_the_source_is_refused) {
    expect_repeat_error("{{ ", "(", 100000, "", "nested");
    expect_repeat_error("{{ ", "[", 100000, "", "nested");
    expect_repeat_error("{{ ", "{1:", 100000, "", "nested");
    expect_repeat_error("{{ ", "- ", 100000, "1 }}", "nested");
    expect_repeat_error("{{ ", "not ", 100000, "1 }}", "nested");
    expect_repeat_error("{{ ", "1 if 1 else ", 50000, "1 }}", "nested");
    expect_repeat_error("{{ ", "f(", 100000, "", "nested");
    expect_repeat_error("{{ ", "s[", 100000, "", "nested");
    expect_repeat_error("{{ s ", "is eq ", 50000, "1 }}", "");
    expect_repeat_error("", "{% if 1 %}", 50000, "", "nested");
    expect_repeat_error("", "{% for x in l %}", 50000, "", "nested");
    expect_repeat_error("", "{% macro m() %}", 50000, "", "nested");
    expect_repeat_error("", "{% set x %}", 50000, "", "nested");
}

/* Each pair of brackets is one level, and the expression inside another. */
Test(template_limits, nesting_may_be_as_deep_as_the_limit) {
    for (size_t n = TEMPLATE_DEPTH - 2; n <= TEMPLATE_DEPTH; n++) {
        CLEANUP(freep)
        char *open = repeat("{{ ", "(", n, "1"), *source = repeat(open, ")", n, " }}");

        if (n < TEMPLATE_DEPTH)
            expect_text(source, "{}", "1");
        else
            expect_error(source, "{}", "nested");
    }
}

Test(template_limits, long_chains_are_refused_before_they_are_deep) {
    expect_repeat_error("{{ 1", " + 1", 100000, " }}", "too long");
    expect_repeat_error("{{ 1", " and 1", 100000, " }}", "too long");
    expect_repeat_error("{{ s", "|trim", 100000, " }}", "too long");
    expect_repeat_error("{{ s", ".a", 100000, " }}", "too long");
    expect_repeat_error("{{ s", "()", 100000, " }}", "too long");
    expect_repeat_error("{{ 1", " if 1", 100000, " }}", "too long");
}

/* Behind the longest chain that is allowed there is no room for a test. */
Test(template_limits, a_test_counts_as_a_part_of_its_chain) {
    struct err err = {0};
    size_t n = 0;

    for (;; n++) {
        CLEANUP(freep) char *source = repeat("{{ s", "|trim", n + 1, " }}");
        CLEANUP(freep) char *text = template_text(source, TEMPLATE_VARS, NULL, &err);

        if (!text)
            break;
    }
    cr_assert(n > 1 && strstr(err.message, "too long"), "%zu: %s", n, err.message);
    expect_repeat_error("{{ s", "|trim", n, " is defined }}", "too long");
    CLEANUP(freep) char *source = repeat("{{ s", "|trim", n - 1, " is defined }}");
    expect_text(source, TEMPLATE_VARS, "True");
}

Test(template_limits, long_but_flat_templates_work) {
    struct err err;
    CLEANUP(freep)
    char *elifs = repeat("{% if 0 %}", "{% elif 0 %}", 20000, "{% else %}x{% endif %}");
    CLEANUP(freep) char *sum = repeat("{{ 1", " + 1", 300, " }}");
    CLEANUP(freep) char *joined = repeat("{{ 1", " ~ 1", 20000, " }}");
    CLEANUP(freep) char *text = template_text(elifs, "{}", NULL, &err);

    cr_expect_str_eq(text ? text : err.message, "x");
    expect_text(sum, "{}", "301");
    free(text);
    text = template_text(joined, "{}", NULL, &err);
    cr_expect(text && strlen(text) == 20001, "%s", err.message);
}

Test(template_limits, a_source_has_a_largest_size) {
    expect_repeat_error("", "x", (1 << 20) + 1, "", "larger");
}

Test(template_limits, endless_work_runs_out_of_steps) {
    static const char *const bombs[] = {
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% for c in r %}{% endfor %}{% "
        "endfor %}{% endfor %}",
        "{% set r = range(99999)|list %}{% for a in r %}{{ r == (r + []) }}{% endfor %}",
        "{% set x = ('a' * 2000) * 2000 %}{% for a in range(100000) %}{% if 'b' in x %}{% endif "
        "%}{% endfor %}",
        "{% set x = ('a' * 2000) * 2000 %}{% for a in range(100000) %}{% if x.endswith('b') and "
        "x.upper() %}{% endif %}{% if x|length %}{% endif %}{% endfor %}",
        "{% set r = range(99999)|list %}{% for a in r %}{{ 5.5 in r }}{% endfor %}",
        "{% macro m() %}{% for x in range(9999) %}{{ m() }}{% endfor %}{% endmacro %}{{ m() }}",
        "{% set r = range(50000)|list %}{% for a in r %}{% set _ = r.pop(0) %}{% endfor %}{% set r "
        "= range(50000)|list %}{% for a in r %}{% set _ = r.pop(0) %}{% endfor %}",
        "{{ (('a' * 2000) * 2000).strip(('b' * 2000) * 2000 + 'a') }}",
        "{{ (('a' * 2000) * 2000).rstrip(('b' * 2000) * 2000 + 'a') }}",
        "{% set x = ('a' * 2000) * 2000 %}{{ x.startswith((x ~ 'b',) * 10 + (x,) * 100000) }}",
        "{% set x = ('a' * 1000) * 999 %}{{ (x ~ 'b') in [x ~ 'c'] * 1000000 }}",
        "{% set x = ('a' * 1000) * 999 %}{% set d = {x ~ 'b': 1} %}{% for i in range(99999) %}{{ "
        "d[x ~ 'c'] }}{% endfor %}",
        "{% for a in range(100000) %}{{ (ms * 99)|tojson|length }}{% endfor %}",
        "{% set x = ('a ' * 1000) * 1000 %}{% for i in range(10000) %}{{ x.split()|length }}{% "
        "endfor %}",
    };

    for (size_t i = 0; i < ARRAY_SIZE(bombs); i++) {
        struct err err;
        CLEANUP(freep) char *text = template_text(bombs[i], TEMPLATE_VARS, NULL, &err);

        cr_expect(!text && err.status == 400 &&
                      (strstr(err.message, "too many steps") || strstr(err.message, "memory") ||
                       strstr(err.message, "nested")),
                  "%s: %s", bombs[i], text ? "rendered" : err.message);
    }
}

Test(template_limits, growing_text_ends_at_a_limit) {
    static const char *const bombs[] = {
        "{{ 'x' * 1000000000 }}",
        "{{ 'x' * 9000000000000000000 }}",
        "{{ [1] * 9000000000000000000 }}",
        "{{ [1] * 1000000000 }}",
        "{% set ns = namespace(x='a') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% "
        "endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% "
        "endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ns.x.replace('a', "
        "'aaaaaaaaaa') %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = "
        "ns.x|list|join(ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='\\n') %}{% for i in range(100) %}{% set ns.x = (ns.x + "
        "ns.x)|indent(60, true, true) %}{% endfor %}",
        "{{ 'x' * 17000000 }}",
        "{% set l = [] %}{% for i in range(100) %}{% set _ = l.append(l) %}{% endfor %}{{ l }}",
        "{% for i in range(100000) "
        "%}0123456789012345678901234567890123456789012345678901234567890123456789{{ 'y' * 1000 "
        "}}{% endfor %}",
        "{% set d = {} %}{% set ns = namespace(d=d) %}{% for i in range(1000) %}{% set ns.d = "
        "{'a': ns.d, 'b': ns.d} %}{% endfor %}{{ ns.d|tojson }}",
        "{% set d = {} %}{% set ns = namespace(d=d) %}{% for i in range(60) %}{% set ns.d = [ns.d, "
        "ns.d] %}{% endfor %}{{ ns.d }}",
    };

    for (size_t i = 0; i < ARRAY_SIZE(bombs); i++) {
        struct err err;
        CLEANUP(freep) char *text = template_text(bombs[i], TEMPLATE_VARS, NULL, &err);

        cr_expect(!text && err.status == 400, "%s: %s", bombs[i], text ? "rendered" : err.message);
    }
}

Test(template_limits, objects_that_hold_themselves_are_errors) {
    expect_error("{% set _ = l.append(l) %}{{ l|tojson }}", TEMPLATE_VARS, "nested");
    expect_error("{% set _ = l.append(l) %}{{ l }}", TEMPLATE_VARS, "nested");
    expect_error("{% set a = [] %}{% set b = [] %}{% set _ = a.append(b) %}{% set _ = b.append(a) "
                 "%}{{ a == b }}",
                 TEMPLATE_VARS, "nested");
    expect_error("{% set _ = d.update(x=d) %}{{ d|string }}", TEMPLATE_VARS, "nested");
    expect_error("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", TEMPLATE_VARS, "nested");
    /* The loop does not take the failure for a break. */
    expect_error("{% set ns = namespace() %}{% set ns.x = ns %}{% for i in range(2) %}{{ ns }}{% "
                 "endfor %}",
                 TEMPLATE_VARS, "nested");
}

Test(template_limits, macro_recursion_has_an_end) {
    expect_error("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", "{}",
                 "macro calls are nested too deep");
    expect_error(
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{}", "macro calls are nested too deep");
    expect_text("{% macro m(n) %}{% if n %}.{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
                "{}", "............................................................");
}

Test(template_limits, the_options_bound_output_and_steps) {
    struct err err;
    struct template_opts small = {.max_output = 10}, short_of = {.fuel = 50};
    CLEANUP(freep) char *fits = template_text("{{ 'x' * 10 }}", "{}", &small, &err);

    cr_expect_str_eq(fits ? fits : err.message, "xxxxxxxxxx");
    cr_expect_null(template_text("{{ 'x' * 11 }}", "{}", &small, &err));
    cr_expect(strstr(err.message, "too long"), "%s", err.message);
    cr_expect_null(template_text("{% for i in range(60) %}{% endfor %}", "{}", &short_of, &err));
    cr_expect(strstr(err.message, "too many steps"), "%s", err.message);
}

/* A caller tells its client that the conversation is too long, or that the template is wrong. */
Test(template_limits, passing_a_limit_is_no_fault_of_the_template) {
    static const struct {
        const char *source;
        int want;
    } rows[] = {
        {"{% for i in range(60) %}{% endfor %}", -E2BIG},
        {"{{ 'x' * 11 }}", -E2BIG},
        {"{{ [1] * 2000000000 }}", -E2BIG},
        {"{{ raise_exception('no') }}", -EINVAL},
        {"{{ none.a.b }}", -EINVAL},
        {"{{ 1 + 'a' }}", -EINVAL},
        {"{{ 'x' * 10 }}", 0},
    };
    const struct template_opts opts = {.fuel = 50, .max_output = 10};

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        CLEANUP(template_freep) struct template *t = NULL;
        struct rendered out = {0};
        struct err err = {0};

        cr_assert_eq(template_new(&t, rows[i].source, strlen(rows[i].source), &err), 0);
        cr_expect_eq(template_render(t, NULL, &opts, &out, &err), rows[i].want, "%s: %s",
                     rows[i].source, err.message);
        rendered_deinit(&out);
    }
}

Test(template_limits, steps_grow_with_the_request_up_to_a_limit) {
    struct buf b;
    uint64_t before = TEMPLATE_FUEL;

    buf_init(&b, 1 << 22);
    for (uint32_t n = 1; n < 20000; n *= 10) {
        buf_clear(&b);
        buf_add_str(&b, R"({"messages": [{"content": "text"})");
        for (uint32_t i = 1; i < n; i++)
            buf_add_str(&b, R"(, {"content": "text"})");
        buf_add_str(&b, "]}");
        yyjson_doc *doc = yyjson_read(b.data, b.len, 0);
        uint64_t fuel = template_fuel(yyjson_doc_get_root(doc));

        cr_expect(fuel > before && fuel <= TEMPLATE_FUEL_MAX, "%u: %llu", n,
                  (unsigned long long)fuel);
        before = fuel;
        yyjson_doc_free(doc);
    }
    cr_expect_eq(before, TEMPLATE_FUEL_MAX);
    cr_expect_eq(template_fuel(NULL), TEMPLATE_FUEL);
    buf_deinit(&b);
}

/* Making the list of keys is paid for, however few of them are looked at. */
Test(template_limits, the_keys_of_an_object_cost_steps) {
    static const char *const sources[] = {"{% for k in d %}{{ k }}{% break %}{% endfor %}",
                                          "{% set all = d.items() %}"};
    struct template_opts short_of = {.fuel = 50};
    struct buf b;
    struct err err;

    buf_init(&b, 1 << 16);
    for (size_t k = 0; k < 2 * ARRAY_SIZE(sources); k++) {
        bool n = k % 2 > 0;

        buf_clear(&b);
        buf_add_str(&b, R"({"d": {"key": 0)");
        for (int i = 0; n && i < 60; i++)
            buf_printf(&b, R"(, "key%d": %d)", i, i);
        buf_add_str(&b, "}}");
        CLEANUP(freep)
        char *text = template_text(sources[k / 2], b.data, &short_of, &err);
        cr_expect_eq(text != NULL, !n, "%s", text ? text : err.message);
    }
    buf_deinit(&b);
}

/* Wherever the steps end. */
Test(template_limits, a_text_is_whole_or_an_error) {
    struct err err;
    bool rendered = false;

    for (uint32_t fuel = 1; fuel < 100; fuel++) {
        struct template_opts o = {.fuel = fuel};
        CLEANUP(freep) char *text = template_text("{{ 1.5|tojson }}", "{}", &o, &err);

        cr_expect(text || !rendered);
        cr_expect(!text || strcmp(text, "1.5") == 0, "%u steps: %s", fuel, text);
        rendered |= text != NULL;
    }
    cr_expect(rendered);
}

Test(template_limits, variables_nest_only_so_deep) {
    CLEANUP(freep)
    char *open = repeat(R"({"x": )", "[", 150, ""), *shut = repeat("", "]", 150, "}");
    CLEANUP(freep)
    char *deep_open = repeat(R"({"x": )", "[", 5000, ""), *deep_shut = repeat("", "]", 5000, "}");
    CLEANUP(freep)
    char *vars = repeat(open, "", 0, shut), *deep = repeat(deep_open, "", 0, deep_shut);
    CLEANUP(freep) char *want = repeat("", "[", 150, ""), *close = repeat("", "]", 150, "");
    CLEANUP(freep) char *both = repeat(want, "", 0, close);

    expect_text("{{ x|tojson }}", vars, both);
    expect_error("{{ x|tojson }}", deep, "nested too deep");
    expect_error("{{ x is defined }}", deep, "nested too deep");
    expect_text("{{ y }}", deep, ""); /* what is not mentioned is not looked at */
}

Test(template_limits, large_objects_have_an_index) {
    struct buf b;

    buf_init(&b, 1 << 24);
    buf_add_str(&b, R"({"d": {)");
    for (int i = 0; i < 50000; i++)
        buf_printf(&b, R"(%s"key%d": %d)", i ? "," : "", i, i);
    buf_add_str(&b, R"(, "key7": "again"}})");
    expect_text("{{ d|length }} {{ d.key49999 }} {{ d.key7 }} {{ d.nothing is defined }}", b.data,
                "50000 49999 again False");
    buf_deinit(&b);
}

Test(template_limits, errors_name_the_line) {
    expect_error("a\nb\n{{ x.y }}", "{}", "chat template, line 3: 'x' is undefined");
    expect_error("{% if true %}\n\n{{ 1 + 'a' }}{% endif %}", "{}", "line 3: unsupported operand");
    expect_error("a\n{% if x %}\n\n", "{}", "not closed");
    expect_error("a\r\n\r\n{{ 1 + }}", "{}", "line 3: expected an expression");
    expect_error("{{ 'a'\n~ 'b\n' }}{{ zz() }}", "{}", "line 3: 'zz' is undefined");
    expect_error("{{ d.description.x }}", R"({"d": {}})",
                 "'dict object' has no attribute 'description'");
    expect_error("{{ s|nope }}", "{}", "no filter named 'nope'");
    expect_error("{% for a in none %}{% endfor %}", "{}", "'NoneType' object is not iterable");
    expect_error("{{ 'a' + none }}", "{}", R"(can only concatenate str (not "NoneType") to str)");
}

Test(template_limits, raised_messages_are_exact) {
    struct err err;
    CLEANUP(freep) char *source = repeat("{{ raise_exception('", "é", 300, "') }}");

    cr_expect_null(template_text("\n{{ raise_exception('Only user: ' ~ [1]) }}", "{}", NULL, &err));
    cr_expect_str_eq(err.message, "Only user: [1]");
    cr_expect_eq(err.status, 400);
    cr_expect_null(template_text(source, "{}", NULL, &err));
    cr_expect_eq(strlen(err.message), 398, "cut between two characters");
}

Test(template_limits, uses_knows_the_variables_that_are_read) {
    static const char source[] = "{% set own = 1 %}{% if tools %}{{ own }}{{ m.enable_thinking "
                                 "}}{{ 'documents' }}{% endif %}";
    CLEANUP(template_freep) struct template *t = NULL;

    cr_assert_eq(template_new(&t, source, sizeof(source) - 1, NULL), 0);
    cr_expect(template_uses(t, "tools"));
    cr_expect(template_uses(t, "m"));
    cr_expect_not(template_uses(t, "enable_thinking"));
    cr_expect_not(template_uses(t, "documents"));
    cr_expect_not(template_uses(t, "nothing"));
}

static uint32_t next(uint32_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static const char SEED[] = "{%- set ns = namespace(a=0, t='') -%}{% macro m(a, b=[1, 2]) %}{{ a "
                           "}}{% for x in b if x %}{{ loop.index }}{{ x|upper }}"
                           "{% else %}e{% endfor %}{% endmacro %}\n  {% for m2 in ms %}{%- if "
                           "m2.role == 'user' and loop.first or not m2.k is defined %}"
                           "{{ '<|' + m2['role'] ~ '|>' }}{{ m2.content[1:-1]|trim|replace('a', s) "
                           "}}{% elif s in ['a', 'b'] %}{% set ns.a = ns.a + 1 %}"
                           "{% else %}{{ m(m2.content, b=l) }}{% continue %}{% endif %}{% endfor "
                           "%}{# c #}{{ d|tojson(indent=2) }}{{ d.items()|list }}"
                           "{% set z %}{{ u[::-1] }}{% endset %}{% filter indent(2) %}{{ z.split(' "
                           "')|join('-') }}{% endfilter %}"
                           "{{ '{} {x}'.format(s, x=i) }}{{ "
                           "l|sort|map('string')|join }}{{ -f * 2 // 1 % 3 }}{{ big is number }}"
                           "{% generation %}{{ html|safe }}{% "
                           "endgeneration %}{{ l.pop() if l else n }}{{ many|dictsort|first }}"
                           "{{ ms|selectattr('role', 'equalto', "
                           "'user')|map(attribute='content')|list }}{{ strftime_now('%Y') }}";

static const char *const PIECES[] = {"{{",
                                     "}}",
                                     "{%",
                                     "%}",
                                     "-%}",
                                     "{%-",
                                     "{#",
                                     "#}",
                                     "'",
                                     R"(")",
                                     "(",
                                     ")",
                                     "[",
                                     "]",
                                     "{",
                                     "}",
                                     "|",
                                     ".",
                                     ",",
                                     ":",
                                     " if ",
                                     " else ",
                                     " for ",
                                     " in ",
                                     " not ",
                                     " is ",
                                     "~",
                                     "**",
                                     "//",
                                     R"(\)",
                                     "\n",
                                     "9999999999",
                                     "-1",
                                     "1e400",
                                     "{% endif %}",
                                     "{% endfor %}",
                                     "{% set x = x %}",
                                     "|list",
                                     "|tojson",
                                     "loop",
                                     "ns",
                                     "\xff",
                                     "\xc3",
                                     "\xf0\x9f\x98\x80",
                                     "{% break %}",
                                     "none",
                                     "*",
                                     "**d",
                                     "d",
                                     "l",
                                     "s",
                                     "|int",
                                     "|join",
                                     ".format(",
                                     "%1000d",
                                     "{0[",
                                     "|first"};

static size_t mutate(char *text, size_t len, size_t cap, uint32_t *rng) {
    for (uint32_t k = 1 + next(rng) % 4; k > 0 && len > 8; k--) {
        size_t at = next(rng) % len, n = next(rng) % 24 + 1;
        n = MIN(n, len - at);
        const char *piece = PIECES[next(rng) % ARRAY_SIZE(PIECES)];
        size_t m = strlen(piece), from = next(rng) % (len - n + 1);

        switch (next(rng) % 4) {
        case 0: /* remove */
            memmove(text + at, text + at + n, len - at - n);
            len -= n;
            break;
        case 1: /* insert */
            if (len + m > cap)
                break;
            memmove(text + at + m, text + at, len - at);
            memcpy(text + at, piece, m);
            len += m;
            break;
        case 2: /* copy a part over another */
            memmove(text + at, text + from, n);
            break;
        default:
            text[at] = (char)next(rng);
        }
    }
    return len;
}

static void render_mutated(const char *source, size_t len, yyjson_val *vars, int rounds,
                           uint32_t *rng, size_t *rendered) {
    size_t cap = len + 256;
    CLEANUP(freep) char *text = malloc(cap);
    struct template_opts opts = {.fuel = 20000, .max_output = 1 << 20};

    for (int i = 0; i < rounds; i++) {
        CLEANUP(template_freep) struct template *t = NULL;
        struct rendered r = {0};
        struct err err = {0};

        memcpy(text, source, len);
        size_t n = mutate(text, len, cap, rng);
        /* A copy of the exact size, so that the sanitizer sees every byte read beyond it. */
        char *exact = malloc(n ? n : 1);

        memcpy(exact, text, n);
        int failed = template_new(&t, exact, n, &err);

        free(exact);
        if (!failed && template_render(t, vars, &opts, &r, &err) == 0) {
            ++*rendered;
            rendered_deinit(&r);
        } else {
            cr_assert(err.message[0] && err.status == 400);
        }
    }
}

Test(template_limits, mutated_templates_never_crash) {
    yyjson_doc *doc = yyjson_read(TEMPLATE_VARS, strlen(TEMPLATE_VARS), 0);
    uint32_t rng = 2463534242u;
    size_t rendered = 0;
    struct err err;
    CLEANUP(freep) char *text = template_text(SEED, TEMPLATE_VARS, NULL, &err);

    cr_assert(text, "the seed itself must render: %s", err.message);
    render_mutated(SEED, sizeof(SEED) - 1, yyjson_doc_get_root(doc), 6000, &rng, &rendered);
    cr_expect_gt(rendered, 100);
    yyjson_doc_free(doc);
}

/* Real templates with variables of the wrong kinds. */
static void random_value(struct buf *b, uint32_t *rng, int depth) {
    static const char *const plain[] = {"null",
                                        "true",
                                        "0",
                                        "-7",
                                        "1.5",
                                        R"("")",
                                        R"("user")",
                                        R"("assistant")",
                                        R"("tool")",
                                        R"("system")",
                                        R"("<think>a</think>b")",
                                        R"("text")",
                                        "{}",
                                        "[]",
                                        "18446744073709551615",
                                        R"("\u00e9\n{")",
                                        R"("function")"};
    static const char *const keys[] = {
        "role", "content",    "tool_calls", "function", "name",     "arguments",  "type",
        "text", "parameters", "properties", "id",       "required", "description"};
    uint32_t kind = depth > 4 ? 9 : next(rng) % 10, n = next(rng) % 4;

    if (kind > 6) {
        buf_add_str(b, plain[next(rng) % ARRAY_SIZE(plain)]);
    } else if (kind > 3) {
        buf_add_str(b, "[");
        for (uint32_t i = 0; i < n; i++) {
            buf_add_str(b, i ? "," : "");
            random_value(b, rng, depth + 1);
        }
        buf_add_str(b, "]");
    } else {
        buf_add_str(b, "{");
        for (uint32_t i = 0; i < n; i++) {
            buf_printf(b, R"(%s"%s":)", i ? "," : "", keys[next(rng) % ARRAY_SIZE(keys)]);
            random_value(b, rng, depth + 1);
        }
        buf_add_str(b, "}");
    }
}

static yyjson_doc *random_vars(uint32_t *rng) {
    struct buf b;

    buf_init(&b, 1 << 20);
    buf_add_str(&b, R"({"add_generation_prompt": true, "bos_token": "<s>", "eos_token": )"
                    R"("</s>", "tools": [)");
    random_value(&b, rng, 1);
    buf_add_str(&b, R"(], "messages": [)");
    for (uint32_t i = 0, n = next(rng) % 4; i < n; i++) {
        buf_printf(&b, R"(%s{"role": "%s", "content": )", i ? "," : "",
                   i % 2 ? "assistant" : "user");
        random_value(&b, rng, 1);
        buf_add_str(&b, R"(, "tool_calls": [)");
        random_value(&b, rng, 1);
        buf_add_str(&b, "]}");
    }
    buf_add_str(&b, "]}");
    yyjson_doc *doc = yyjson_read(b.data, b.len, 0);

    buf_deinit(&b);
    return doc;
}

Test(template_limits, real_templates_survive_anything) {
    char path[TEST_DATA_PATH];
    uint32_t rng = 88172645u;
    size_t rendered = 0, files = 0;

    DIR *d = opendir(test_data_file(path, "templates", "", ""));

    cr_assert(d != NULL, "%s", path);
    for (struct dirent *e; (e = readdir(d));) {
        CLEANUP(freep) char *text = calloc(1, 1 << 16);

        if (!strstr(e->d_name, ".jinja"))
            continue;
        FILE *f = fopen(test_data_file(path, "templates", e->d_name, ""), "rb");
        size_t len = f ? fread(text, 1, 1 << 16, f) : 0;

        cr_assert(f && len);
        fclose(f);
        for (int i = 0; i < 40; i++) {
            yyjson_doc *vars = random_vars(&rng);

            cr_assert(vars);
            render_mutated(text, len, yyjson_doc_get_root(vars), 2, &rng, &rendered);
            yyjson_doc_free(vars);
        }
        files++;
    }
    closedir(d);
    cr_expect_gt(files, 10);
    cr_expect_gt(rendered, files);
}

struct job {
    const struct template *t;
    yyjson_val *vars;
    const char *want;
    int wrong;
};

static void *render_many(void *p) {
    struct job *job = p;

    for (int i = 0; i < 200; i++) {
        struct rendered r = {0};
        struct err err;

        if (template_render(job->t, job->vars, NULL, &r, &err) ||
            strcmp(r.text.data, job->want) != 0)
            job->wrong++;
        rendered_deinit(&r);
    }
    return NULL;
}

Test(template_limits, threads_render_the_same_template) {
    static const char source[] = "{% macro m(x) %}[{{ x }}]{% endmacro %}{% set _ = l.append(9) "
                                 "%}{% for x in l %}{{ m(x) }}{% endfor %}{{ d|tojson }}";
    CLEANUP(template_freep) struct template *t = NULL;
    yyjson_doc *doc = yyjson_read(TEMPLATE_VARS, strlen(TEMPLATE_VARS), 0);
    pthread_t threads[4];
    struct job jobs[4];

    cr_assert_eq(template_new(&t, source, sizeof(source) - 1, NULL), 0);
    for (int i = 0; i < 4; i++) {
        jobs[i] = (struct job){t, yyjson_doc_get_root(doc),
                               R"([3][1][2][9]{"b": 1, "a": [1, 2.5, null, true, "x'y"]})", 0};
        cr_assert_eq(pthread_create(&threads[i], NULL, render_many, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        cr_expect_eq(jobs[i].wrong, 0);
    }
    yyjson_doc_free(doc);
}
