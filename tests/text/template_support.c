#include "tests/text/template_support.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

const char TEMPLATE_VARS[] =
    R"({"s": "Hello World", "u": "héllo wörld ß", "ml": "a\n\n  b\nc\n", )"
    R"("l": [3, 1, 2], "d": {"b": 1, "a": [1, 2.5, null, true, "x'y"]}, )"
    R"("n": null, "t": true, "f": 2.5, "i": 7, "ms": [{"role": "user", )"
    R"("content": "hi", "k": {"z": 1}}, {"role": "assistant", "content": "yo", )"
    R"("k": {"z": 2}}, {"role": "user", "content": "x"}], )"
    R"("big": 18446744073709551615, "e": "", "sp": "  pad  ", )"
    R"("html": "<a href=\"x\">&'</a>", "many": {"0": 0, "1": 1, "2": 2, )"
    R"("3": 3, "4": 4, "5": 5, "6": 6, "7": 7, "8": 8, "9": 9, "10": 10, )"
    R"("11": 11, "12": 12, "13": 13, "14": 14, "15": 15, "16": 16, "17": 17, )"
    R"("18": 18, "19": 19}})";

char *template_text(const char *source, const char *vars, const struct template_opts *opts,
                    struct err *err) {
    CLEANUP(template_freep) struct template *t = NULL;
    struct rendered out = {0};
    char *text = NULL;

    static const struct template_opts usual = {.now_unix = 1768469213}; /* 2026-01-15 09:26:53 */

    *err = (struct err){0};
    if (template_new(&t, source, strlen(source), err))
        return NULL;
    yyjson_doc *doc = yyjson_read(vars, strlen(vars), 0);

    cr_assert(doc, "variables are not JSON: %s", vars);
    if (template_render(t, yyjson_doc_get_root(doc), opts ? opts : &usual, &out, err) == 0) {
        text = strndup(out.text.data ? out.text.data : "", out.text.len);
        rendered_deinit(&out);
    }
    yyjson_doc_free(doc);
    return text;
}

void expect_text(const char *source, const char *vars, const char *want) {
    struct err err;
    CLEANUP(freep) char *text = template_text(source, vars, NULL, &err);

    if (!text)
        cr_expect(false, "%s: failed: %s", source, err.message);
    else
        cr_expect_str_eq(text, want, "%s: got <%s>, want <%s>", source, text, want);
}

void expect_error(const char *source, const char *vars, const char *part) {
    struct err err;
    CLEANUP(freep) char *text = template_text(source, vars, NULL, &err);

    if (text)
        cr_expect(false, "%s: no error but <%s>", source, text);
    else
        cr_expect(strstr(err.message, part), R"(%s: got "%s", want "%s")", source, err.message,
                  part);
}

void expect_rows(const char *wrap, const struct template_row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char source[1024];

        snprintf(source, sizeof(source), wrap, rows[i].source);
        if (rows[i].want)
            expect_text(source, TEMPLATE_VARS, rows[i].want);
        else
            expect_error(source, TEMPLATE_VARS, "");
    }
}
