/*
 * Cutting the text into pieces has no effect, and a text may end anywhere.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "tests/api/toolcall_support.h"

static void expect_same(struct toolcall_run *r, const char *in, size_t len, const char *want,
                        const char *how) {
    CLEANUP(freep) char *got = toolcall_tell(r, in, len);

    cr_expect_str_eq(got, want, "%s, %s:\n%.*s\n     got %s\n  wanted %s",
                     r->format ? r->format->name : "-", how, (int)len, in, got, want);
}

static void check_cuts(const struct toolcall_case *c, bool whole, size_t max_held) {
    struct toolcall_run r = toolcall_run_of(c);
    size_t len = strlen(c->in);
    CLEANUP(freep) size_t *cuts = calloc(len + 1, sizeof(*cuts));

    cr_assert(cuts);
    r.opts.whole_calls = whole;
    r.opts.max_held = r.opts.max_whole = max_held;
    CLEANUP(freep) char *want = toolcall_tell(&r, c->in, len);

    r.cuts = cuts;
    for (r.n_cuts = 1, cuts[0] = 0; cuts[0] <= len; cuts[0]++)
        expect_same(&r, c->in, len, want, "cut once");
    for (r.n_cuts = 0; r.n_cuts < len; r.n_cuts++)
        cuts[r.n_cuts] = r.n_cuts;
    expect_same(&r, c->in, len, want, "byte by byte");
}

Test(toolcall_split, a_cut_anywhere_changes_nothing) {
    for (size_t i = 0; i < n_toolcall_cases; i++) {
        check_cuts(&toolcall_cases[i], false, 0);
        check_cuts(&toolcall_cases[i], true, 0);
    }
}

/* Limits apply at the same byte, too. */
Test(toolcall_split, a_cut_anywhere_changes_nothing_at_the_limits) {
    for (size_t i = 0; i < n_toolcall_cases; i++)
        for (size_t max = 7; max < 200; max = max * 2 + 1) {
            check_cuts(&toolcall_cases[i], false, max);
            check_cuts(&toolcall_cases[i], true, max);
        }
}

Test(toolcall_split, random_pieces_change_nothing) {
    uint64_t x = 20261120;

    for (size_t i = 0; i < n_toolcall_cases; i++) {
        const struct toolcall_case *c = &toolcall_cases[i];
        struct toolcall_run r = toolcall_run_of(c);
        size_t len = strlen(c->in), cuts[64];

        r.cuts = cuts;
        for (int round = 0; round < 20; round++) {
            r.n_cuts = 0;
            for (size_t at = 0; r.n_cuts < 64; cuts[r.n_cuts++] = at) {
                x = x * 6364136223846793005u + 1442695040888963407u;
                at += x >> 33 & 15;
                if (at > len)
                    break;
            }
            expect_same(&r, c->in, len, c->want, "random pieces");
        }
    }
}

/* Checks texts that are cut off anywhere: with whole calls the events are complete calls that begin
 * like those of the full text. */
static void check_truncated(const struct toolcall_case *c) {
    size_t len = strlen(c->in);

    for (size_t n = 0; n < len; n++) {
        struct toolcall_run r = toolcall_run_of(c);
        CLEANUP(freep) char *told = toolcall_tell(&r, c->in, n);

        r.opts.whole_calls = true;
        CLEANUP(freep) char *whole = toolcall_tell(&r, c->in, n);

        cr_expect(!strstr(whole, "! "), "half a call: %s", whole);
        (void)told;
    }
}

Test(toolcall_split, a_text_may_end_anywhere) {
    for (size_t i = 0; i < n_toolcall_cases; i++)
        check_truncated(&toolcall_cases[i]);
}

/* A text without markers is content, and so is a broken call, unchanged: whole calls lose
 * nothing. */
Test(toolcall_split, what_is_no_call_comes_back_unchanged) {
    for (size_t i = 0; toolcall_at(i); i++) {
        const struct toolcall_format *f = toolcall_at(i);
        char in[600], want[640];

        if (strcmp(f->name, "harmony") == 0)
            continue; /* has markers besides those of calls */
        for (size_t k = 0; k < ARRAY_SIZE(f->triggers) && f->triggers[k]; k++) {
            struct toolcall_run r = {.format = f, .opts = {.whole_calls = true}};

            snprintf(in, sizeof(in), "One %s two %s %s %c", f->triggers[k], f->triggers[k],
                     f->triggers[k], f->triggers[k][0]);
            snprintf(want, sizeof(want), "C<%s>", in);
            expect_same(&r, in, strlen(in), want, "no call");
        }
    }
}

Test(toolcall_split, nothing_is_looked_for_without_tools) {
    yyjson_doc *doc = yyjson_read("[]", 2, 0);

    for (size_t i = 0; i < n_toolcall_cases; i++) {
        const struct toolcall_case *c = &toolcall_cases[i];
        struct toolcall_run r = toolcall_run_of(c);

        r.opts.tools = yyjson_doc_get_root(doc);
        CLEANUP(freep) char *got = toolcall_tell(&r, c->in, strlen(c->in));

        cr_expect_eq(r.n_calls, 0, "%s: %s", c->in, got);
    }
    yyjson_doc_free(doc);
}
