/* Texts of strangers never move a terminal's cursor, break a line or turn its direction. */

#include <criterion/criterion.h>
#include <string.h>

#include "base/printable.h"

Test(printable, what_can_be_seen_stays) {
    static const char *const texts[] = {
        "", "a b~", "caf\xc3\xa9", "\xe6\xa8\xa1\xe5\x9e\x8b", "\xf0\x9f\x99\x82", "\xc2\xa0"};

    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
        cr_expect(is_printable(texts[i]), "%s", texts[i]);
        cr_expect_str_eq(printable(texts[i]).s, texts[i]);
    }
}

Test(printable, the_rest_is_escaped) {
    static const struct {
        const char *in, *out;
    } table[] = {
        {"a\nb\r", "a\\nb\\x0d"},
        {"\x1b]0;x\x07\x7f", "\\x1b]0;x\\x07\\x7f"},
        {"\xc2\x9b"
         "31m",
         "\\u009b31m"},
        {"\xe2\x80\xae"
         "fdp\xe2\x81\xa6\xd8\x9c",
         "\\u202efdp\\u2066\\u061c"},
        {"\xe2\x80\xa8\xe2\x80\x8b\xef\xbb\xbf", "\\u2028\\u200b\\ufeff"},
        {"\xf3\xa0\x80\x81", "\\ue0001"},
        {"\xff\xc2", "\\xff\\xc2"},
        {"\xc0\xaf\xed\xa0\x80", "\\xc0\\xaf\\xed\\xa0\\x80"},
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},
    };

    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
        cr_expect_not(is_printable(table[i].in), "%zu", i);
        cr_expect_str_eq(printable(table[i].in).s, table[i].out);
    }
}

Test(printable, quotes_are_escaped_in_a_value) {
    cr_expect_str_eq(quoted(R"(a"b\c)"
                            "\n")
                         .s,
                     R"("a\"b\\c\n")");
    cr_expect_str_eq(quoted("").s, R"("")");
}

/* A text that has no room is cut before a character, whatever the room. */
Test(printable, a_long_text_is_cut_between_characters) {
    const char *in = R"(")"
                     "\xe6\xa8\xa1\n\xc2\x9b\xff";
    const char *all = R"(\")"
                      "\xe6\xa8\xa1"
                      R"(\n\u009b\xff)";
    static const size_t ends[] = {0, 2, 5, 7, 13, 17};
    char out[20], text[2000], *end;

    for (size_t size = 1; size <= sizeof(out); size++) {
        size_t n = printable_copy(out, size, in, strlen(in), true), wanted = 0;

        for (size_t k = 0; k < sizeof(ends) / sizeof(*ends); k++)
            wanted = ends[k] < size ? ends[k] : wanted;
        cr_expect_eq(n, wanted, "%zu", size);
        cr_expect(strlen(out) == n && memcmp(out, all, n) == 0);
    }
    memset(text, '"', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    struct printable p = quoted(text);
    end = p.s + strlen(p.s);
    cr_expect(end[-1] == '"' && end[-2] == '"' && end[-3] == '\\');
}

Test(printable, bytes_that_are_no_character_are_replaced) {
    char text[] = "a\xc3\xa9\xff\xe6\xa8z\xe6\xa8\x9e\n\xf0\x9f";

    utf8_repair(text, strlen(text));
    cr_expect_str_eq(text, "a\xc3\xa9???z\xe6\xa8\x9e\n??");
    strcpy(text, "\xc3\xa9");
    utf8_repair(text, 1);
    cr_expect_str_eq(text, "?\xa9", "only the bytes that it was given");
    utf8_repair(text, 0);
}
