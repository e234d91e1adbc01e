/* json_print(): the text of each conversion, alone and among the other functions of the writer. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/json.h"
#include "api/http/json_build.h"
#include "base/json_read.h"
#include "base/util.h"

static struct buf out = {.max = 4096};
static struct json j;

static void begin(void) {
    buf_clear(&out);
    j = (struct json){.out = &out};
}

static void expect(const char *text) {
    cr_expect_eq(j.error, 0);
    cr_expect_str_eq(out.data, text);
    buf_deinit(&out);
}

/* Checks all texts of five of these bytes, which include bytes that are not UTF-8. */
Test(json_print, characters_begin_where_they_are_written) {
    static const char bytes[] = "A\x80\xBF\xC3\xE0\xA0\xED\xF0\x90\xF4\xFF";
    size_t n = sizeof(bytes) - 1, all = n * n * n * n * n;

    for (size_t k = 0; k < all; k++) {
        char text[5];
        size_t begun = 0, written = 0, rest = k;

        for (size_t i = 0; i < sizeof(text); i++, rest /= n)
            text[i] = bytes[rest % n];
        begin();
        json_string(&j, text, sizeof(text));
        for (size_t i = 0; i < sizeof(text); i++)
            begun += json_begins(text, i);
        for (size_t i = 1; i + 1 < out.len; i++)
            written += ((unsigned char)out.data[i] & 0xC0) != 0x80;
        cr_assert_eq(begun, written, "%zu: %zu, not %zu", k, begun, written);
    }
    buf_deinit(&out);
}

Test(json_print, constants_and_brackets_are_written_as_they_stand) {
    begin();
    json_print(&j, "{object:'list', data:[{}, [], 'a b', 'x:y', ''], first:null, n:-1.5, ok:true}");
    expect(R"({"object":"list","data":[{},[],"a b","x:y",""],"first":null,"n":-1.5,)"
           R"("ok":true})");
}

Test(json_print, each_conversion_takes_its_whole_argument) {
    const char *volatile none = NULL; /* keeps the compiler from refusing a plain NULL */

    begin();
    json_print(&j, "[%s, %s, %d, %u, %ld, %lu, %zu, %g, %u]",
               R"(")"
               "\n",
               none, INT32_MIN, UINT32_MAX, INT64_MIN, UINT64_MAX, SIZE_MAX, 0.1, 7u);
    expect(R"(["\"\n",null,-2147483648,4294967295,-9223372036854775808,18446744073709551615,)"
           "18446744073709551615,0.1,7]");
}

Test(json_print, a_text_with_a_length_ends_there_or_is_empty) {
    const char *volatile none = NULL;

    begin();
    json_print(&j, "{a:%.*s, b:%.*s, c:%.*s, d:%u}", 2, "xyz", 0, "xyz", 3, none, 7u);
    expect(R"({"a":"xy","b":"","c":"","d":7})");
}

Test(json_print, shapes_go_on_where_other_calls_stopped) {
    begin();
    json_print(&j, "{a.b-c:%u, list:[", 1u);
    json_string(&j, "x", 1);
    json_print(&j, "%s], text:", "y");
    json_string(&j, "z", 1);
    json_print(&j, "%s:%i", "done", true);
    json_print(&j, "last:0}");
    expect(R"({"a.b-c":1,"list":["x","y"],"text":"z","done":true,"last":0})");
}

Test(json_print, a_full_buffer_is_an_error_that_stays) {
    struct buf small = {.max = 8};

    j = (struct json){.out = &small};
    json_print(&j, "{object:'much too long'}");
    cr_expect_eq(j.error, -EMSGSIZE);
    json_print(&j, "[]");
    cr_expect_eq(j.error, -EMSGSIZE);
    buf_deinit(&small);
}

Test(json_value, whole_numbers_may_be_written_as_reals) {
    static const struct {
        const char *text;
        bool whole;
        int64_t n;
    } cases[] = {
        {"5", true, 5},
        {"5.0", true, 5},
        {"-3e2", true, -300},
        {"9223372036854775807", true, INT64_MAX},
        {"9223372036854775808", false, 7},
        {"-9223372036854775808", true, INT64_MIN},
        {"-9223372036854775808.0", false, 7},
        {"9223372036854775808.0", false, 7},
        {"1e300", false, 7},
        {"5.5", false, 7},
        {R"("5")", false, 7},
        {"null", false, 7},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        yyjson_doc *doc = yyjson_read(cases[i].text, strlen(cases[i].text), 0);
        int64_t n = 7;

        cr_expect_eq(json_whole(yyjson_doc_get_root(doc), &n), cases[i].whole, "%s", cases[i].text);
        cr_expect_eq(n, cases[i].n, "%s", cases[i].text);
        yyjson_doc_free(doc);
    }
    int64_t n = 7;
    cr_expect_not(json_whole(NULL, &n));
}

/* json_make(): values from shapes, in a document that notes a shortage of memory. */

static void expect_made(yyjson_mut_val *v, const char *text) {
    char *made = yyjson_mut_val_write(v, 0, NULL);

    cr_expect_str_eq(made, text);
    free(made);
}

Test(json_make, shapes_become_values_with_the_arguments_in_their_places) {
    bool failed = false;
    yyjson_mut_doc *doc = json_doc_new(&failed);
    struct buf text = {.data = (char[]){"t"}, .len = 1};

    expect_made(json_constant(doc, "{a:'b, c:{}', d:[], e:{f:[1, 20, true, false]}, g:''}"),
                R"({"a":"b, c:{}","d":[],"e":{"f":[1,20,true,false]},"g":""})");
    expect_made(json_make(doc, "[{x:%, y:[%]}, %]", yyjson_mut_true(doc), json_text_of(doc, &text),
                          json_text_of(doc, &(struct buf){0})),
                R"([{"x":true,"y":["t"]},""])");
    cr_expect(!failed);
    yyjson_mut_doc_free(doc);
}

Test(json_make, members_without_a_value_are_left_out) {
    static const char body[] = R"({"a":{"b":1}})";
    bool failed = false;
    yyjson_doc *from = yyjson_read(body, sizeof(body) - 1, 0);
    yyjson_mut_doc *doc = json_doc_copy(from, &failed);
    yyjson_mut_val *root = yyjson_mut_doc_get_root(doc);
    yyjson_val *own = yyjson_doc_get_root(from);

    json_put_copy(doc, root, "c", yyjson_obj_get(own, "a"));
    json_put_copy(doc, root, "d", NULL);
    expect_made(json_make(doc, "{x:%, y:%, z:[%]}", json_copy_of(doc, own, "none"), root, NULL),
                R"({"y":{"a":{"b":1},"c":{"b":1}},"z":[]})");
    yyjson_mut_doc_free(doc);
    yyjson_doc_free(from);
}

Test(json_make, a_document_that_lacked_memory_is_not_sealed) {
    bool failed = false;
    yyjson_mut_doc *doc = json_doc_new(&failed);
    yyjson_doc *out = NULL;

    cr_expect_eq(json_doc_seal(doc, NULL, &out), -ENOMEM);
    cr_expect_eq(json_doc_seal(doc, json_constant(doc, "{a:1}"), &out), 0);
    cr_expect_eq(yyjson_get_int(yyjson_obj_get(yyjson_doc_get_root(out), "a")), 1);
    yyjson_doc_free(out);
    out = NULL;
    failed = true;
    cr_expect_eq(json_doc_seal(doc, json_constant(doc, "{a:1}"), &out), -ENOMEM);
    cr_expect(!out);
    yyjson_mut_doc_free(doc);
}

/* ---- json_read.h ---- */

Test(json_read, loops_run_for_the_entries_of_their_kind_of_value_alone) {
    static const char body[] = R"({"list":[1,[2,3],{"x":4},"y"],"object":{"a":[5],"b":6},)"
                               R"("empty":[[],{}],"text":"list"})";
    static const char *const none[] = {"object", "text", "missing"}, *const bare[] = {"list",
                                                                                      "text"};
    CLEANUP(json_doc_freep) yyjson_doc *doc = yyjson_read(body, sizeof(body) - 1, 0);
    yyjson_val *root = yyjson_doc_get_root(doc);
    size_t n = 0, n_members = 0;

    JSON_EACH_AT(i, item, yyjson_obj_get(root, "list")) {
        cr_expect_eq(i, n++);
        cr_expect_eq(item, yyjson_arr_get(yyjson_obj_get(root, "list"), i));
    }
    cr_expect_eq(n, 4);
    JSON_MEMBERS(key, value, yyjson_obj_get(root, "object")) {
        cr_expect_eq(value, yyjson_obj_get(yyjson_obj_get(root, "object"), json_cstr(key)));
        n_members++;
    }
    cr_expect_eq(n_members, 2);
    for (size_t k = 0; k < ARRAY_SIZE(none); k++) {
        JSON_EACH(item, yyjson_obj_get(root, none[k])) {
            cr_expect(!item, "%s", none[k]);
        }
    }
    for (size_t k = 0; k < ARRAY_SIZE(bare); k++) {
        JSON_MEMBERS(key, value, yyjson_obj_get(root, bare[k])) {
            cr_expect(!key && !value, "%s", bare[k]);
        }
    }
    JSON_EACH(item, yyjson_obj_get(root, "empty")) {
        JSON_EACH(inner, item) {
            cr_expect(!inner);
        }
    }
}

Test(json_read, a_value_is_compared_with_whole_words) {
    static const char body[] = R"({"type":"text","none":null,"two":"input text","bare":"","n":1})";
    CLEANUP(json_doc_freep) yyjson_doc *doc = yyjson_read(body, sizeof(body) - 1, 0);
    yyjson_val *root = yyjson_doc_get_root(doc);

    cr_expect(json_has(root, "type", "text"));
    cr_expect(json_has(root, "type", "image input text"));
    cr_expect(!json_has(root, "type", "texts input_text tex"));
    cr_expect(!json_has(root, "two", "input text"));
    cr_expect(!json_has(root, "bare", "input text"));
    cr_expect(!json_has(root, "n", "1"));
    cr_expect(!json_has(root, "missing", "text"));
    cr_expect(!json_given(root, "none") && !json_given(root, "missing"));
    cr_expect(json_given(root, "n"));
}
