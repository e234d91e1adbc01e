/* Lines of the process that downloads a model. */

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "daemon/models/pull_lines.h"

/* Appends the line to the text at @ctx. */
static void note(void *ctx, const char *text, size_t len) {
    strncat(ctx, text, len);
    strcat(ctx, ";");
}

static const char lines[] = "{\"a\":1}\n\n[2]\n\"b\"\nnonsense\n{\"error\":\"no room\"}\n"
                            "{\"error\":3}\n{\"error\":\"a\\u0000b\"}\n{\"half\":";

Test(pull_lines, objects_are_passed_on_and_errors_are_kept) {
    for (size_t piece = 1; piece <= sizeof(lines); piece++) {
        char told[100] = "";
        struct pull_lines p = {.report = note, .ctx = told};

        for (size_t at = 0; at < strlen(lines); at += piece)
            cr_assert_eq(pull_lines_add(&p, lines + at, MIN(piece, strlen(lines) - at)), 0);
        cr_expect_str_eq(told, R"({"a":1};{"error":3};{"error":"a\u0000b"};)");
        cr_expect_str_eq(p.error, "no room");
        pull_lines_deinit(&p);
    }
}

Test(pull_lines, no_one_needs_to_listen) {
    struct pull_lines p = {0};
    char error[400] = R"({"error":")";

    memset(error + strlen(error), 'x', 350);
    strcpy(error + 360, R"("})"
                        "\n");
    cr_expect_eq(pull_lines_add(&p, lines, strlen(lines)), 0);
    cr_expect_eq(pull_lines_add(&p, "1}\n", 3), 0);
    cr_expect_str_eq(p.error, "no room");
    cr_expect_eq(pull_lines_add(&p, error, strlen(error)), 0);
    cr_expect_eq(strlen(p.error), sizeof(p.error) - 1, "the last one, cut");
    pull_lines_deinit(&p);
}

/* Adds the length of the line to the number at @ctx. */
static void measure(void *ctx, const char *text, size_t len) {
    *(size_t *)ctx += len;
}

Test(pull_lines, a_line_has_an_end) {
    static char blanks[PULL_LINE_MAX];
    size_t told = 0;
    struct pull_lines p = {.report = measure, .ctx = &told};

    memset(blanks, ' ', sizeof(blanks));
    for (int i = 0; i < 2; i++) { /* the longest line */
        cr_expect_eq(pull_lines_add(&p, blanks, PULL_LINE_MAX - 2), 0);
        cr_expect_eq(pull_lines_add(&p, "{}\n", 3), 0);
    }
    cr_expect_eq(told, 2 * PULL_LINE_MAX);
    cr_expect_eq(pull_lines_add(&p, blanks, PULL_LINE_MAX), 0);
    cr_expect_eq(pull_lines_add(&p, " \n", 2), -EMSGSIZE);
    cr_expect_eq(pull_lines_add(&p, "\n{}\n", 4), 0);
    cr_expect_eq(told, 2 * PULL_LINE_MAX, "nothing more is read");
    pull_lines_deinit(&p);
}
