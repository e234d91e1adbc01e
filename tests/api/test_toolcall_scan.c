#include <criterion/criterion.h>
#include <string.h>
#include <yyjson.h>

#include "api/toolcall/scan.h"

static int scan(enum scan_mode mode, const char *in, struct buf *out, size_t *used) {
    struct scan s;

    buf_clear(out);
    buf_add_str(out, "");
    scan_begin(&s, mode);
    int r = scan_feed(&s, in, strlen(in), used, out);

    return r == SCAN_MORE ? scan_end(&s, out) : r;
}

static void expect(enum scan_mode mode, const char *in, const char *want) {
    struct buf out;
    size_t used = 0;

    buf_init(&out, 1 << 16);
    int r = scan(mode, in, &out, &used);

    if (want) {
        cr_expect_eq(r, SCAN_DONE, "%s: %d", in, r);
        cr_expect_str_eq(out.data, want, "%s: %s", in, out.data);
    } else {
        cr_expect_eq(r, SCAN_BAD, "%s is taken as %s", in, out.data);
    }
    buf_deinit(&out);
}

Test(toolcall_scan, json_comes_out_as_it_went_in) {
    static const char *const good[] = {
        "{}",
        "[]",
        "0",
        "-0",
        "12",
        "-1.5e+10",
        "1E5",
        "0.25",
        "true",
        "false",
        "null",
        R"("")",
        R"({"a": [1, 2, {"b": null}], "c": "\"\\\/\b\f\n\r\t\u00e9"})",
        "[\n  1 ,\n  \"\\ud83d\\ude00 \xf0\x9f\x98\x80\"\n]",
    };

    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        expect(SCAN_JSON, good[i], good[i]);
}

Test(toolcall_scan, what_can_only_be_meant_one_way_is_mended) {
    expect(SCAN_JSON, "[1, 2, ]", "[1, 2]");
    expect(SCAN_JSON,
           R"({"a": 1,)"
           "\n}",
           R"({"a": 1})");
    expect(SCAN_JSON, "\"a\nb\tc\x01\"", R"("a\nb\tc\u0001")");
    expect(SCAN_JSON, R"("\d \. \'")", R"("\\d \\. '")");
    expect(SCAN_JSON, R"("\ud83d")", R"("\ufffd")");
    expect(SCAN_JSON, R"("\ud83dx\ude00")", R"("\ufffdx\ufffd")");
    expect(SCAN_JSON, R"("\ud83d\ud83d\ude00")", R"("\ufffd\ud83d\ude00")");
    expect(SCAN_JSON, R"("\ud83d\n")", R"("\ufffd\n")");
}

Test(toolcall_scan, what_is_not_json_is_refused) {
    static const char *const bad[] = {
        "",       "]",           "}",   "{1: 2}",      R"({"a" 1})", R"({"a": })", "{, }", "[,]",
        "[1,,2]", "[1 2]",       "[1}", R"({"a": 1])", "tru",        "truee",      "True", "nullx",
        "01",     "1.",          ".5",  "-",           "1e",         "+1",         "1e+",  "'a'",
        R"("a)",  R"("\u12g4")", "[",   R"({"a")",     R"({"a": 1)", "undefined",
    };

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct buf out;
        size_t used = 0;

        buf_init(&out, 1 << 16);
        int r = scan(SCAN_JSON, bad[i], &out, &used);

        /* "01" is a 0 followed by other text. */
        cr_expect(r == SCAN_BAD || used < strlen(bad[i]), "%s is taken as %s", bad[i], out.data);
        buf_deinit(&out);
    }
}

/* Compares all texts of up to LENGTH characters of numbers with what a JSON parser takes. */
Test(toolcall_scan, numbers_are_those_of_json) {
    enum { LENGTH = 5 };
    static const char chars[] = "-+.eE01";
    const unsigned n_chars = sizeof(chars) - 1;
    struct buf out;

    buf_init(&out, 1 << 16);
    for (unsigned n = 1, all = n_chars; n <= LENGTH; n++, all *= n_chars) {
        for (unsigned code = 0; code < all; code++) {
            char text[LENGTH + 1] = "";
            size_t used;

            for (unsigned i = 0, rest = code; i < n; i++, rest /= n_chars)
                text[i] = chars[rest % n_chars];
            yyjson_doc *doc = yyjson_read(text, n, 0);
            bool taken = scan(SCAN_JSON, text, &out, &used) == SCAN_DONE && used == n;
            if (taken != (doc != NULL))
                cr_expect(false, "%s", text);
            yyjson_doc_free(doc);
        }
    }
    buf_deinit(&out);
}

Test(toolcall_scan, a_word_ends_before_no_letter) {
    static const char *const bad[] = {"nulla", "nullz", "nullA", "nullZ"};

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        struct buf out;
        size_t used = 0;

        buf_init(&out, 1 << 16);
        cr_expect_eq(scan(SCAN_JSON, bad[i], &out, &used), SCAN_BAD, "%s", bad[i]);
        buf_deinit(&out);
    }
}

Test(toolcall_scan, python_literals_become_json) {
    expect(SCAN_PYTHON, R"({'a': True, "b": [None, False, 1.5]})",
           R"({"a": true, "b": [null, false, 1.5]})");
    expect(SCAN_PYTHON,
           R"('say "hi" \'x\' \x41 \u00e9\)"
           "\n'",
           R"("say \"hi\" 'x' \u0041 \u00e9")");
    expect(SCAN_PYTHON, "['a', ]", R"(["a"])");
    expect(SCAN_PYTHON, "f(x)", NULL);
    expect(SCAN_PYTHON, "'a", NULL);
}

Test(toolcall_scan, gemmas_form_becomes_json) {
    expect(SCAN_GEMMA,
           R"({a:<|"|>x "y" \n)"
           "\n"
           R"(<|"<|"|>,b_1:[1,None,true],c:{d:-1}})",
           R"({"a":"x \"y\" \\n\n<|\"","b_1":[1,null,true],"c":{"d":-1}})");
    expect(SCAN_GEMMA, R"({<|"|>k y<|"|>:1})", R"({"k y":1})");
    expect(SCAN_GEMMA, R"({a:"x"})", NULL);
    expect(SCAN_GEMMA, "{a}", NULL);
    expect(SCAN_GEMMA, "{\x01:1}", NULL);
    expect(SCAN_GEMMA, "{a\x01:1}", NULL);
    expect(SCAN_GEMMA, "{a:<|x|>}", NULL);
}

Test(toolcall_scan, a_value_ends_where_it_ends) {
    struct buf out;
    size_t used;

    buf_init(&out, 1 << 16);
    cr_expect_eq(scan(SCAN_JSON, R"({"a": 1} x)", &out, &used), SCAN_DONE);
    cr_expect_eq(used, 8);
    cr_expect_eq(scan(SCAN_JSON, "12, 3", &out, &used), SCAN_DONE);
    cr_expect_eq(used, 2);
    cr_expect_eq(scan(SCAN_JSON, "null)", &out, &used), SCAN_DONE);
    cr_expect_eq(used, 4);
    buf_deinit(&out);
}

Test(toolcall_scan, depth_is_bounded) {
    char in[2 * SCAN_DEPTH + 3] = "";

    for (unsigned n = SCAN_DEPTH; n <= SCAN_DEPTH + 1; n++) {
        memset(in, '[', n);
        memset(in + n, ']', n);
        in[2 * n] = 0;
        expect(SCAN_JSON, in, n == SCAN_DEPTH ? in : NULL);
    }
}

Test(toolcall_scan, a_full_buffer_is_told) {
    struct buf out;
    size_t used;

    buf_init(&out, 4);
    cr_expect_lt(scan(SCAN_JSON, R"("abcdefgh")", &out, &used), 0);
    buf_deinit(&out);
}
