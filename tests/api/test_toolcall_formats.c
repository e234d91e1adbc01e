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

static void expect_of(const struct toolcall_opts *opts, const char *in, const char *want) {
    struct toolcall_run r = {.format = toolcall_find("hermes"),
                             .reasoning = toolcall_find_reasoning("think"),
                             .opts = *opts};
    CLEANUP(freep) char *got = toolcall_tell(&r, in, strlen(in));

    cr_expect_str_eq(got, want, "%s\n     got %s\n  wanted %s", in, got, want);
}

Test(toolcall_formats, pieces_of_one_text_stay_apart) {
    static const struct toolcall_opts joined = {.joined = true};

    expect_of(&joined, "<think>a</think>B\n\n<think>c</think>D\n<think>",
              "R<a> C<B> R<\nc> C<\n\nD>");
    expect_of(&joined,
              "B\n"
              R"(<think>c</think><tool_call>{"name": "ping"}</tool_call>D)",
              "C<B> R<c> ping{}; C<D>");
    expect_of(&joined, "B\n<think>c</think>\n<tool_call>{no", "C<B> R<c> C<\n<tool_call>{no>");
}

Test(toolcall_formats, content_of_a_grammar_is_not_interrupted) {
    static const struct toolcall_opts unbroken = {.unbroken = true};

    expect_of(&unbroken, "<think>a</think>B\n<think>\nc</think>", "R<a> C<B\n<think>\nc</think>>");
}

/* Runs a parser over pieces of which those that begin with '!' are special tokens. */
static void expect_tokens(enum toolcall_mark mark, const char *const *pieces, const char *want) {
    struct toolcall_run r = {.reasoning = toolcall_find_reasoning("think"), .opts.mark = mark};
    char in[256] = "";
    size_t at[16], special[16];

    for (size_t i = 0; pieces[i]; i++) {
        if (*pieces[i] == '!')
            special[r.n_special++] = strlen(in);
        at[r.n_cuts++] = strlen(in);
        strcat(in, pieces[i] + (*pieces[i] == '!'));
    }
    r.cuts = at;
    r.special = special;
    CLEANUP(freep) char *got = toolcall_tell(&r, in, strlen(in));

    cr_expect_str_eq(got, want, "%s\n     got %s\n  wanted %s", in, got, want);
}

Test(toolcall_formats, a_token_decides_what_is_reasoning) {
    static const char *const spelled[] = {"Hi\n", "<th", "ink>\nx", NULL};
    static const char *const token[] = {"Hi\n", "!<think>", "\nx", NULL};
    static const char *const inside[] = {"Hi ", "!<think>", "x", "!</think>", "y", NULL};
    static const char *const both[] = {"A\n<", "think>\n", "!<think>", "\n!x", NULL};

    expect_tokens(MARK_TEXT, spelled, "C<Hi> R<x>");
    expect_tokens(MARK_TOKEN, spelled, "C<Hi\n<think>\nx>");
    expect_tokens(MARK_CONTROL, spelled, "C<Hi\n<think>\nx>");
    expect_tokens(MARK_TOKEN, token, "C<Hi> R<x>");
    expect_tokens(MARK_TOKEN, inside, "C<Hi <think>x</think>y>");
    expect_tokens(MARK_CONTROL, inside, "C<Hi> R<x> C<y>");
    expect_tokens(MARK_TOKEN, both, "C<A\n<think>> R<!x>");
}
