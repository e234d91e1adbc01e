/* Lines of the log, as text and as JSON. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/log_render.h"

static struct log_entry entry(const char *pairs) {
    return (struct log_entry){1763890098123, "info", "front", "request", pairs};
}

static const char *json(const char *pairs, size_t size) {
    static char line[4096];
    struct log_entry e = entry(pairs);
    size_t n = log_render(line, size, LOG_JSON, &e);

    cr_assert_eq(n, strlen(line));
    cr_assert(n < size && strcmp(line + n - 2, "}\n") == 0, "%s", line);
    return line;
}

#define HEAD                                                                                       \
    R"({"time":"2025-11-23T09:28:18.123Z","level":"info","process":"front",)"                      \
    R"("event":"request")"

Test(log_render, text_begins_with_the_time) {
    char line[256];
    struct log_entry e = entry("id=a status=200");

    cr_expect_eq(log_render(line, sizeof(line), LOG_TEXT, &e), strlen(line));
    cr_expect_str_eq(line, "2025-11-23T09:28:18.123Z info front request id=a status=200\n");
}

Test(log_render, values_have_their_types_in_json) {
    cr_expect_str_eq(json("id=7 n=12 rate=1.50 less=-3 none=- word=ok", 4096),
                     HEAD R"(,"id":"7","n":12,"rate":1.50,"less":-3,"none":null,)"
                          R"("word":"ok"})"
                          "\n");
    cr_expect_str_eq(json("a=007 b=1. c=- d=12345678901234567 e= f=1e5", 4096),
                     HEAD R"(,"a":"007","b":"1.","c":null,"d":"12345678901234567",)"
                          R"("e":"","f":"1e5"})"
                          "\n");
}

Test(log_render, texts_stay_texts_in_json) {
    static const struct {
        const char *pairs, *out;
    } table[] = {
        {R"(a="x y" b="")", R"(,"a":"x y","b":"")"},
        {R"(a="say \"hi\" \\ 1=2")", R"(,"a":"say \"hi\" \\ 1=2")"},
        {R"(a="\x1b\n\u202e")", R"(,"a":"\\x1b\n\u202e")"},
        {R"(a="cut \u20" b=c:\d)", R"(,"a":"cut \\u20","b":"c:\\d")"},
        {R"(a=x"y)", R"(,"a":"x\"y")"},
    };
    char want[400];

    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++) {
        snprintf(want, sizeof(want), "%s%s}\n", HEAD, table[i].out);
        cr_expect_str_eq(json(table[i].pairs, 4096), want, "%zu", i);
    }
}

Test(log_render, a_line_that_is_too_long_is_complete_without_some_pairs) {
    char pairs[2000], text[1001];

    memset(text, '\\', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    snprintf(pairs, sizeof(pairs), R"(a=1 long="%s" b=2)", text);
    for (size_t size = 256; size < 1400; size++)
        cr_expect(strstr(json(pairs, size), R"(,"a":1)"), "%zu", size);
    cr_expect_str_eq(json(pairs, 300), HEAD R"(,"a":1,"b":2})"
                                            "\n");
}
