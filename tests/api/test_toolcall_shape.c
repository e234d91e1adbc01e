/*
 * The parser reads what a grammar forces: calls are written from the grammar's shape, piece by
 * piece, for every format.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "api/toolcall/parser.h"
#include "tests/api/toolcall_support.h"

static const struct {
    const char *key, *json, *python, *gemma, *type;
    bool string;
} args[] = {
    {"pattern", "a|b", "'a|b'", R"(<|"|>a|b<|"|>)", "string", true},
    {"paths", R"(["src/", "d e"])", "['src/', 'd e']", R"([<|"|>src/<|"|>,<|"|>d e<|"|>])", "array",
     false},
    {"max_results", "5", "5", "5", "number", false},
};

/* Appends @piece with its places filled in. */
static void put(struct buf *out, const char *piece, uint32_t index, const char *type) {
    for (const char *c = piece ? piece : ""; *c;) {
        if (strncmp(c, "{id}", 4) == 0) {
            buf_printf(out, "abcdefg%02u", index);
            c += 4;
        } else if (strncmp(c, "{index}", 7) == 0) {
            buf_printf(out, "%u", index);
            c += 7;
        } else if (strncmp(c, "{type}", 6) == 0) {
            buf_add_str(out, type);
            c += 6;
        } else if (strncmp(c, "{name}", 6) == 0) {
            buf_add_str(out, "search_files");
            c += 6;
        } else if (strncmp(c, "{nl}", 4) == 0) {
            buf_add_str(out, index % 2 ? "" : "\n");
            c += 4;
        } else {
            buf_add_char(out, *c++);
        }
    }
}

static void put_tagged(struct buf *out, const struct toolcall_shape *s) {
    for (size_t i = 0; i < ARRAY_SIZE(args); i++) {
        bool other = !args[i].string && s->key_end_json;

        put(out, s->key_begin, 0, "");
        buf_add_str(out, args[i].key);
        put(out, other ? s->key_end_json : s->key_end, 0, args[i].type);
        buf_add_str(out, args[i].json);
        put(out, s->value_end, 0, "");
    }
}

static void put_args(struct buf *out, const struct toolcall_shape *s) {
    static const char *const opens[] = {[ARGS_JSON] = "{", [ARGS_PYTHON] = "", [ARGS_GEMMA] = "{"};
    static const char *const ends[] = {[ARGS_JSON] = "}", [ARGS_PYTHON] = "", [ARGS_GEMMA] = "}"};

    if (s->args == ARGS_TAGGED) {
        put_tagged(out, s);
        return;
    }
    buf_add_str(out, opens[s->args]);
    for (size_t i = 0; i < ARRAY_SIZE(args); i++) {
        const char *quote = args[i].string ? R"(")" : "";

        buf_add_str(out, i ? ", " : "");
        if (s->args == ARGS_PYTHON)
            buf_printf(out, "%s=%s", args[i].key, args[i].python);
        else if (s->args == ARGS_GEMMA)
            buf_printf(out, "%s:%s", args[i].key, args[i].gemma);
        else
            buf_printf(out, R"("%s": %s%s%s)", args[i].key, quote, args[i].json, quote);
    }
    buf_add_str(out, ends[s->args]);
}

static void put_call(struct buf *out, const struct toolcall_shape *s, uint32_t index) {
    put(out, s->call_begin, index, "");
    buf_add_str(out, "search_files");
    put(out, s->name_end, index, "");
    put_args(out, s);
    put(out, s->call_end, index, "");
}

/* The model chooses the white space between members; Gemma's form has none. */
static void expect_calls(const struct toolcall_format *f, const char *in, size_t len, uint32_t n) {
    struct toolcall_run r = {.format = f};
    static const char loose[] = R"(search_files{"pattern": "a|b", "paths": ["src/", "d e"], )"
                                R"("max_results": 5};)";
    static const char tight[] = R"(search_files{"pattern":"a|b", "paths":["src/","d e"], )"
                                R"("max_results":5};)";
    const char *one = f->shape.args == ARGS_GEMMA ? tight : loose;
    char want[512];

    for (int whole = 0; whole < 2; whole++) {
        r.opts.whole_calls = whole;
        CLEANUP(freep) char *got = toolcall_tell(&r, in, len);

        snprintf(want, sizeof(want), "%s%s%s", one, n == 2 ? " " : "", n == 2 ? one : "");
        cr_expect_str_eq(got, want, "%s: %s\n     got %s\n  wanted %s", f->name, in, got, want);
    }
}

Test(toolcall_shape, what_it_describes_is_read_back) {
    for (size_t i = 0; toolcall_at(i); i++) {
        const struct toolcall_format *f = toolcall_at(i);

        for (uint32_t n = 1; n <= 2; n++) {
            struct buf in;

            buf_init(&in, 1 << 20);
            put(&in, f->shape.section_begin, 0, "");
            for (uint32_t k = 0; k < n; k++) {
                if (k)
                    put(&in, f->shape.separator, k, "");
                put_call(&in, &f->shape, k);
            }
            put(&in, f->shape.section_end, 0, "");
            expect_calls(f, in.data, in.len, n);
            buf_deinit(&in);
        }
    }
}

/* A grammar waits for a trigger, with which every call begins, or every further one. */
Test(toolcall_shape, begins_with_a_trigger) {
    for (size_t i = 0; toolcall_at(i); i++) {
        const struct toolcall_format *f = toolcall_at(i);
        const char *begin = f->shape.section_begin ? f->shape.section_begin : f->shape.call_begin;
        const char *separator = f->bare && f->shape.separator ? f->shape.separator : "";
        bool any = false;

        for (size_t k = 0; k < ARRAY_SIZE(f->triggers) && f->triggers[k]; k++)
            any |= strstr(begin, f->triggers[k]) || strstr(f->shape.name_end, f->triggers[k]) ||
                   strstr(separator, f->triggers[k]);
        cr_expect(any, "%s: %s", f->name, begin);
        cr_expect_eq(toolcall_find(f->name), f);
    }
    cr_expect_null(toolcall_find("none"));
    cr_expect_null(toolcall_detect("{{ messages }}", 14));
}

Test(toolcall_shape, the_generic_form_is_read_back) {
    struct toolcall_run r = {.format = toolcall_find("generic")};
    struct buf b;

    buf_init(&b, 1 << 20);
    cr_assert_eq(toolcall_write_call(&b, "ping", "", 0), 0);
    cr_assert_eq(toolcall_write_call(&b, R"(f "x")", R"({"a": 1})", 8), 0);
    CLEANUP(freep) char *got = toolcall_tell(&r, b.data, b.len);

    cr_expect_str_eq(got, R"(ping{}; f "x"{"a": 1};)");
    buf_clear(&b);
    cr_assert_eq(toolcall_describe(&b, toolcall_tools()), 0);
    cr_expect(strstr(b.data, R"({"name":"get_weather","description":"Weather.")"));
    cr_expect(strstr(b.data, "\n"
                             R"({"name":"write","input_schema":)"),
              "flat tools, too");
    cr_expect(strstr(b.data, "<tool_call>\n"
                             R"({"name": "FUNCTION")"));
    buf_clear(&b);
    cr_assert_eq(toolcall_write_result(&b, "ping", "pong", 4), 0);
    cr_expect_str_eq(b.data, "<tool_response>\nping: pong\n</tool_response>\n");
    buf_deinit(&b);
}

/* Where a schema has several parts, they are not examined. */
Test(toolcall_shape, the_type_of_a_parameter_may_be_in_its_only_part) {
    const char *text = R"([{"name":"f",)"
                       R"("parameters":{"properties":{"a":{"allOf":[{"type":"string"}])"
                       R"(},"b":{"allOf":[{"type":"string"},{"minLength":1}]}}}}])";
    yyjson_doc *doc = yyjson_read(text, strlen(text), 0);
    yyjson_val *tools = yyjson_doc_get_root(doc);

    cr_expect_eq(value_types(tools, "f", "a"), VALUE_STRING);
    cr_expect_eq(value_types(tools, "f", "b"), 0);
    yyjson_doc_free(doc);
}
