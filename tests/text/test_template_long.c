/* Long conversations: what fits the context is rendered, by templates that look back through the
 * whole history for each message; and what the evaluation saves for that is not seen. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "base/buf.h"
#include "tests/support/test_data.h"
#include "tests/text/template_support.h"

/* A chat of @n pairs of turns, or one request with @n tool calls and their results. */
static yyjson_doc *long_chat(int n, bool calls) {
    struct buf b;

    buf_init(&b, 1u << 24);
    buf_add_str(&b, R"({"bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": )"
                    R"(true, "messages": [{"role": "user", "content": "u"})");
    for (int i = 0; i < n && calls; i++)
        buf_printf(&b,
                   R"(, {"role": "assistant", "content": "", "tool_calls": [{"id": )"
                   R"("c%08d", "type": "function", "function": {"name": "f", )"
                   R"("arguments": {"a": 1}}}]}, {"role": "tool", "name": "f", )"
                   R"("tool_call_id": "c%08d", "content": "r"})",
                   i, i);
    for (int i = 0; i < n && !calls; i++)
        buf_add_str(&b, R"(, {"role": "assistant", "content": "a"}, )"
                        R"({"role": "user", "content": "u"})");
    buf_add_str(&b, "]}");
    yyjson_doc *doc = b.data ? yyjson_read(b.data, b.len, 0) : NULL;

    cr_assert(doc);
    buf_deinit(&b);
    return doc;
}

/* Renders @source within the steps and the memory that a request has. */
static void expect_rendered(const char *name, const char *source, size_t len, int n, bool calls) {
    CLEANUP(template_freep) struct template *t = NULL;
    struct rendered out = {0};
    struct err err = {0};
    yyjson_doc *doc = long_chat(n, calls);

    cr_assert_eq(template_new(&t, source, len, &err), 0, "%s: %s", name, err.message);
    cr_expect_eq(template_render(t, yyjson_doc_get_root(doc), NULL, &out, &err), 0, "%s, %d %s: %s",
                 name, n, calls ? "calls" : "pairs", err.message);
    rendered_deinit(&out);
    yyjson_doc_free(doc);
}

Test(template_long, published_templates_render_thousands_of_turns) {
    static const struct {
        const char *name;
        int pairs, calls;
    } rows[] = {
        {"google-gemma-4-31B-it.jinja", 4000, 4000},
        {"openai-gpt-oss-120b.jinja", 4000, 2000},
        {"upstage-Solar-Open-100B.jinja", 2000, 1000},
        {"CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja", 2000, 1000},
        {"Kimi-K3.jinja", 2000, 2000},
        {"Qwen3.5-4B.jinja", 2000, 2000},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        CLEANUP(freep) char *source = calloc(1, 1 << 16);
        char path[TEST_DATA_PATH];
        FILE *f = fopen(test_data_file(path, "templates", rows[i].name, ""), "rb");

        cr_assert(f && source, "%s", path);
        size_t len = fread(source, 1, 1 << 16, f);

        fclose(f);
        expect_rendered(rows[i].name, source, len, rows[i].pairs, false);
        expect_rendered(rows[i].name, source, len, rows[i].calls, true);
    }
}

/* Each message costs some work on all messages before it, and leaves nothing behind. */
Test(template_long, looking_back_takes_no_memory) {
    static const char *const bodies[] = {
        "{% for k in range(loop.index0 - 1, -1, -1) %}{% endfor %}",
        "{% for k in messages[loop.index:] %}{% endfor %}",
        "{% for k in messages %}{% set x = k %}{% for c in k.tool_calls %}{% endfor %}{% endfor %}",
        "{{ messages[loop.index0:]|selectattr('role', 'equalto', 'tool')|list|length }}",
        "{{ (messages|rejectattr('role', 'equalto', 'tool')|first).role }}",
        "{{ (messages[:loop.index]|list|last).role }}",
        "{% set ns.all = ns.all + [m] %}{{ ns.all|length }}",
        "{% set ns.text = ns.text ~ m.content ~ m.role %}",
        "{{ loop.previtem.role if loop.previtem }}{{ (loop.nextitem or m).role }}",
    };
    char source[512];

    for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
        int len = snprintf(source, sizeof(source),
                           "{%% set ns = namespace(all=[], text='') %%}{%% for m in messages %%}%s"
                           "{%% endfor %%}",
                           bodies[i]);

        expect_rendered(bodies[i], source, (size_t)len, 1500, true);
    }
}

Test(template_long, slices_are_lists_of_their_own) {
    static const struct template_row rows[] = {
        {"{% set a = [1, 2, 3] %}{% set b = a[1:] %}{% set _ = a.pop(0) %}{{ a }}{{ b }}",
         "[2, 3][2, 3]"},
        {"{% set a = [1, 2, 3] %}{% set b = a[:] %}{% set _ = a.pop() %}{% set _ = a.append(9) %}"
         "{{ a }}{{ b }}",
         "[1, 2, 9][1, 2, 3]"},
        {"{% set a = [1, 2, 3] %}{% set b = a[:2] %}{% set _ = b.append(9) %}{{ a }}{{ b }}",
         "[1, 2, 3][1, 2, 9]"},
        {"{% set a = [1, 2, 3] %}{% set b = a[:2] %}{% set _ = b.pop() %}{% set _ = b.append(9) %}"
         "{{ a }}{{ b }}",
         "[1, 2, 3][1, 9]"},
        {"{% set a = [1, 2, 3] %}{% set b = a[1:][1:] %}{% set _ = b.extend(a) %}{{ a }}{{ b }}",
         "[1, 2, 3][3, 1, 2, 3]"},
        {"{% set a = [1] + [2] %}{% set b = a + [3] %}{% set c = a + [4] %}{% set _ = a.append(5) "
         "%}{{ a }}{{ b }}{{ c }}",
         "[1, 2, 5][1, 2, 3][1, 2, 4]"},
        {"{% set a = [1] + [2] %}{% set b = a + a %}{% set c = b + b[1:] %}{% set _ = b.pop() %}"
         "{{ a }}{{ b }}{{ c }}",
         "[1, 2][1, 2, 1][1, 2, 1, 2, 2, 1, 2]"},
        {"{% set a = [1, 2] + [3] %}{% set b = a + [4] %}{% set _ = b.pop() %}{% set _ = b.pop() %}"
         "{% set _ = b.append(9) %}{{ a }}{{ b }}",
         "[1, 2, 3][1, 2, 9]"},
        {"{{ [][:] }}{{ nothing|slice(2)|list }}{{ [1][1:] + [] }}", "[][[], []][]"},
        {"{% set g = l|select %}{% for x in g %}{% set _ = (g|list).append(9) %}{{ x }}{% endfor "
         "%}",
         "312"},
        {"{{ [1, 2, 3][::-1] }}{{ (1, 2, 3)[1:] }}{{ [1, 2, 3][0:9:2] }}", "[3, 2, 1](2, 3)[1, 3]"},
    };

    expect_rows("%s", rows, ARRAY_SIZE(rows));
}

Test(template_long, ranges_are_computed_as_they_are_read) {
    static const struct template_row rows[] = {
        {"{{ range(5)[1:4] }}{{ range(9)[::-2] }}{{ range(9)[::-2]|list }}",
         "range(1, 4)range(8, -1, -2)[8, 6, 4, 2, 0]"},
        {"{{ 3 in range(5) }}{{ 5 in range(5) }}{{ 2.0 in range(5) }}", "TrueFalseTrue"},
        {"{{ range(3) == range(0, 3) }}{{ range(0) == range(2, 1) }}{{ range(3) == range(4) }}",
         "TrueTrueFalse"},
        {"{{ range(4)[-1] }}{{ range(4)|last }}{{ range(4)|first }}{{ range(0)|first }}", "330"},
        {"{{ range(18446744073709551613, 18446744073709551615)|list }}",
         "[18446744073709551613, 18446744073709551614]"},
        {"{% for i in range(3) %}{{ loop.previtem }}{{ i }}{{ loop.nextitem }},{% endfor %}",
         "01,012,12,"},
        {"{% for i in range(6) if i is odd %}{{ i }}{{ loop.last }}{% endfor %}",
         "1False3False5True"},
        {"{{ range(3)|map('string')|join('-') }}{{ range(3)|sort(reverse=true) }}",
         "0-1-2[2, 1, 0]"},
    };

    expect_rows("%s", rows, ARRAY_SIZE(rows));
}

/* A loop whose turns can do nothing more ends early, which nothing shows. */
Test(template_long, turns_that_do_nothing_are_not_missed) {
    static const struct template_row rows[] = {
        {"{% set ns = namespace(f=false) %}{% for x in [1, 2, 3] %}{% if not ns.f %}{% if x == 2 "
         "%}{% set ns.f = true %}{% endif %}{{ x }}{% endif %}{% endfor %}",
         "12"},
        {"{% set ns = namespace(f=false) %}{% for x in [1, 2, 3, 4] %}{% if ns.f %}{% elif x < 3 "
         "%}{{ x }}{% else %}{% set ns.f = true %}{% endif %}{% endfor %}",
         "12"},
        {"{% set ns = namespace(n=0) %}{% for x in [1, 2, 3] %}{% if ns.n > 9 %}a{% else %}{% set "
         "ns.n = ns.n + x %}{% endif %}{% endfor %}{{ ns.n }}",
         "6"},
        {"{% for x in [1, 2, 3] %}{% if x == 2 %}{{ x }}{% endif %}{% endfor %}", "2"},
        {"{% for x in [1, 2, 3] %}{% if loop.last %}{{ x }}{% endif %}{% endfor %}", "3"},
        {"{% for x, y in [(1, 2), (3, 4)] %}{% if y == 4 %}{{ x }}{% endif %}{% endfor %}", "3"},
        {"{% set g = [1, 2, 3]|select %}{% for x in [1, 2] %}{% if 3 in g %}{{ x }}{% endif %}{% "
         "endfor %}",
         "1"},
        {"{% set l = [0, 0, 1] %}{% for x in [1, 2, 3] %}{% if l.pop() == 0 %}{{ x }}{% endif %}{% "
         "endfor %}",
         "23"},
        {"{% for x in [1, 2] %}{% if f.nothing.more %}{% endif %}{% endfor %}", NULL},
        {"{% for x in [] %}{% if f.nothing.more %}{% endif %}{% else %}e{% endfor %}", "e"},
    };

    expect_rows("%s", rows, ARRAY_SIZE(rows));
}

/* Scopes and loops are used again, unless a value still refers to them. */
Test(template_long, what_a_loop_leaves_stays) {
    static const struct template_row rows[] = {
        {"{% set ns = namespace() %}{% for x in [1, 2] %}{% set ns.l = loop %}{% endfor %}{% for y "
         "in [1, 2, 3] %}{{ ns.l.length }}{{ loop.length }}{% endfor %}",
         "232323"},
        {"{% set all = [] %}{% for x in [1, 2] %}{% for y in [3] %}{% set _ = all.append(loop) "
         "%}{% "
         "endfor %}{% endfor %}{% for z in [1, 2, 3, 4] %}{{ all[0].length }}{% endfor %}",
         "1111"},
        {"{% set ns = namespace() %}{% for x in ['a', 'b'] %}{% macro m() %}{{ x }}{{ loop.length "
         "}}{% endmacro %}{% if x == 'a' %}{% set ns.m = m %}{% endif %}{% endfor %}{% for y in "
         "['c', 'd', 'e'] %}{% set z = y %}{{ ns.m() }}{% endfor %}",
         "a2a2a2"},
        {"{% macro m(x) %}{% set y = x %}{% macro n() %}{{ y }}{% endmacro %}{{ n() }}{% endmacro "
         "%}{{ m(1) }}{{ m(2) }}{{ y }}",
         "12"},
        {"{% for x in [1, 2] %}{% set y = x %}{% endfor %}{% for x in [3] %}{{ y }}{% endfor %}",
         ""},
    };

    expect_rows("%s", rows, ARRAY_SIZE(rows));
}
