#include <criterion/criterion.h>
#include <string.h>
#include "tests/api/toolcall_support.h"

static void expect(const struct toolcall_case *c, bool whole) {
    struct toolcall_run r = toolcall_run_of(c);
    const char *want = whole && c->whole ? c->whole : c->want;

    r.opts.whole_calls = whole;
    CLEANUP(freep) char *got = toolcall_tell(&r, c->in, strlen(c->in));

    cr_expect_str_eq(got, want, "%s%s: %s\n     got %s\n  wanted %s", c->format ? c->format : "-",
                     whole ? " (whole)" : "", c->in, got, want);
}

Test(toolcall_formats, every_case_means_what_it_says) {
    for (size_t i = 0; i < n_toolcall_cases; i++)
        expect(&toolcall_cases[i], false);
}

/* Complete calls give the same events; an incomplete call becomes content unchanged, so only
 * content may differ. */
Test(toolcall_formats, whole_calls_are_told_alike) {
    for (size_t i = 0; i < n_toolcall_cases; i++)
        if (toolcall_cases[i].whole || !strchr(toolcall_cases[i].want, '!'))
            expect(&toolcall_cases[i], true);
}
