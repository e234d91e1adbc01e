/*
 * Limits, ids, detection by name, and the forms in which calls are written.
 */

#include <criterion/criterion.h>
#include <string.h>

#include "tests/api/toolcall_support.h"

#define OPEN R"(<tool_call>{"name": "write", "arguments": {"text": ")"
#define CLOSE R"("}}</tool_call>)"

static struct toolcall_run run_of(const char *format) {
    return (struct toolcall_run){.format = toolcall_find(format)};
}

/* Returns @head, @n times @part and @tail, malloc'd. */
static char *repeat(const char *head, const char *part, size_t n, const char *tail, size_t *len) {
    struct buf b;

    buf_init(&b, 1u << 30);
    buf_add_str(&b, head);
    for (size_t i = 0; i < n; i++)
        buf_add_str(&b, part);
    buf_add_str(&b, tail);
    *len = b.len;
    return b.data;
}

Test(toolcall_limits, long_arguments_are_streamed_in_little_memory) {
    static const struct {
        const char *format, *head, *part, *tail;
    } rows[] = {
        {"hermes", OPEN, "0123456789", CLOSE},
        {"qwen-coder", "<tool_call>\n<function=write>\n<parameter=text>\n", "line </par\n",
         "\n</parameter>\n</function>\n</tool_call>"},
        {"hermes", "", "just text <tool ", ""},
        {"gemma4", R"(<|tool_call>call:write{text:<|"|>)", "abc <|", R"(<|"|>}<tool_call|>)"},
        {"lfm2", "<|tool_call_start|>[write(text='", "abcdefgh", "')]<|tool_call_end|>"},
        {"hermes", "", "                ", ""},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct toolcall_run r = run_of(rows[i].format);
        size_t len;
        CLEANUP(freep) char *in = repeat(rows[i].head, rows[i].part, 200000, rows[i].tail, &len);
        CLEANUP(freep) char *got = toolcall_tell(&r, in, len);

        cr_expect_gt(strlen(got), 190000 * strlen(rows[i].part));
        cr_expect_lt(r.max_held, 128u << 10, "%s: %zu", rows[i].format, r.max_held);
        cr_expect(!strchr(got, '!'), "%.100s", got);
    }
}

Test(toolcall_limits, text_ends_behind_two_keys_that_are_too_long) {
    static const struct {
        const char *format, *head;
    } rows[] = {
        {"hermes", R"(<tool_call>{")"},
        {"hermes", R"(<tool_call>{"name": ")"},
        {"command-r7b", R"(<|START_ACTION|>[{")"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct toolcall_run r = run_of(rows[i].format);
        size_t n, len;
        CLEANUP(freep) char *one = repeat(rows[i].head, "x", 300, "", &n);
        CLEANUP(freep) char *in = repeat("", one, 2, "", &len);
        CLEANUP(freep) char *got = toolcall_tell(&r, in, len);

        cr_expect(strstr(got, "xxxx") && !strchr(got, '!'), "%s: %s", rows[i].format, got);
    }
}

Test(toolcall_limits, what_has_to_be_held_is_bounded) {
    static const struct {
        const char *format, *head, *part;
    } rows[] = {
        {"hermes", R"(<tool_call>{"arguments": {"a": ")", "\x01"},
        {"hermes", R"(<tool_call>{"arguments": ")", "abc"},
        {"hermes", "<tool_call>", "     "},
        {"hermes", R"(<tool_call>{"name": ")", "x"},
        {"hermes", R"(<tool_call>{"x": [)", "[],"},
        {"qwen-coder", "<function=f><parameter=any>", "[1, "},
        {"qwen-coder", "<function=", "f"},
        {"qwen-coder", "<function=f><parameter=", "f"},
        {"kimi-k2", "<|tool_call_begin|>", "f"},
        {"harmony", "<|channel|>final ", "x"},
        {"kimi-k3", R"(<|open|>tools<|sep|><|open|>call tool="f")", "x"},
        {"llama3", R"({"name": "ping", "parameters": )", "   "},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        for (int whole = 0; whole < 2; whole++) {
            struct toolcall_run r = run_of(rows[i].format);
            size_t len, max = 16u << 10;
            CLEANUP(freep) char *in = repeat(rows[i].head, rows[i].part, 200000, "", &len);

            r.opts.whole_calls = whole;
            r.opts.max_held = r.opts.max_whole = max;
            CLEANUP(freep) char *got = toolcall_tell(&r, in, len);

            cr_expect_lt(r.max_held, 24 * max, "%s: %zu", rows[i].head, r.max_held);
            cr_expect(strstr(got, "C<"), "%s", rows[i].head);
        }
}

Test(toolcall_limits, a_whole_call_past_the_limit_is_content) {
    struct toolcall_run r = run_of("hermes");
    size_t len;
    CLEANUP(freep) char *in = repeat(OPEN, "0123456789", 100, CLOSE, &len);

    r.opts.whole_calls = true;
    r.opts.max_whole = 1000;
    CLEANUP(freep) char *got = toolcall_tell(&r, in, len);

    cr_expect(strncmp(got, "C<<tool_call>", 13) == 0);
    cr_expect_eq(strlen(got), len + 3);
    r.opts.max_whole = 2000;
    CLEANUP(freep) char *call = toolcall_tell(&r, in, len);

    cr_expect(strncmp(call, "write{", 6) == 0, "%s", call);
}

Test(toolcall_limits, calls_past_their_number_are_content) {
    static const char call[] = R"(<tool_call>{"name": "ping"}</tool_call>)";
    struct toolcall_run r = run_of("hermes");
    size_t len;
    CLEANUP(freep) char *two = repeat("", call, 2, "", &len);

    r.opts.max_calls = 1;
    CLEANUP(freep) char *got = toolcall_tell(&r, two, len);

    cr_expect_str_eq(got, R"(ping{}; C<<tool_call>{"name": "ping"}</tool_call>>)");
    CLEANUP(freep) char *many = repeat("", call, TOOLCALL_CALLS_MAX + 1, "", &len);

    r.opts.max_calls = 0;
    CLEANUP(freep) char *most = toolcall_tell(&r, many, len);

    cr_expect(strstr(most, "ping{}; C<<tool_call>"));
    cr_expect_eq(strlen(most), TOOLCALL_CALLS_MAX * 8 + sizeof(call) - 1 + 3);
}

Test(toolcall_limits, depth_is_bounded) {
    struct toolcall_run r = run_of("hermes");
    size_t len;
    CLEANUP(freep)
    char *in = repeat(R"(<tool_call>{"name": "f", "arguments": {"a": )", "[", 100000, "", &len);
    CLEANUP(freep) char *got = toolcall_tell(&r, in, len);

    cr_expect(strncmp(got, R"(f{"a": [[[)", 10) == 0);
    cr_expect(strstr(got, "! C<[["), "it ends as incomplete");
}

Test(toolcall_limits, ids_depend_on_the_seed_and_the_index) {
    static const char in[] = R"(<tool_call>{"name": "ping"}</tool_call>)"
                             R"(<tool_call>{"name": "ping"}</tool_call>)";
    struct toolcall_run r = run_of("hermes");

    r.ids = true;
    r.opts.seed = 7;
    CLEANUP(freep) char *one = toolcall_tell(&r, in, strlen(in));
    CLEANUP(freep) char *again = toolcall_tell(&r, in, strlen(in));

    r.opts.seed = 8;
    CLEANUP(freep) char *other = toolcall_tell(&r, in, strlen(in));

    cr_expect_str_eq(one, again);
    cr_expect_str_neq(one, other);
    cr_expect_eq(strspn(one + 10, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"),
                 24);
    cr_expect(strncmp(one, "ping#call_", 10) == 0 && strncmp(one + 34, "{}; ping#call_", 14) == 0,
              "%s", one);
    cr_expect(strncmp(one, one + 38, 34) != 0, "two calls have two ids");
}

Test(toolcall_limits, ids_of_the_models_are_kept) {
    static const struct {
        const char *format, *in, *want;
    } rows[] = {
        {"kimi-k2", "<|tool_call_begin|>functions.ping:3<|tool_call_argument_begin|>{}",
         "ping#functions.ping:3{};"},
        {"mistral-args", "[TOOL_CALLS]ping[CALL_ID]abcdef123[ARGS]{}", "ping#abcdef123{};"},
        {"mistral-json", R"([TOOL_CALLS][{"name": "ping", "id": "abcdef123"}])",
         "ping#abcdef123{};"},
        {"solar", "<|tool_call:begin|>a1<|tool_call:name|>ping<|tool_call:args|>{}", "ping#a1{};"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct toolcall_run r = run_of(rows[i].format);

        r.ids = true;
        CLEANUP(freep) char *got = toolcall_tell(&r, rows[i].in, strlen(rows[i].in));

        cr_expect_str_eq(got, rows[i].want, "%s", got);
    }
    /* An id occurs twice, so the second call gets a new one. Mistral's ids have nine letters and
     * digits. */
    struct toolcall_run r = run_of("mistral-args");
    static const char twice[] = "[TOOL_CALLS]ping[CALL_ID]abcdef123[ARGS]{}"
                                "[TOOL_CALLS]ping[CALL_ID]abcdef123[ARGS]{}";

    r.ids = true;
    CLEANUP(freep) char *got = toolcall_tell(&r, twice, strlen(twice));

    cr_expect(strncmp(got, "ping#abcdef123{}; ping#", 23) == 0);
    cr_expect(strncmp(got + 23, "abcdef123", 9) != 0 && strcmp(got + 32, "{};") == 0, "%s", got);
}

static int stop(void *ctx, const struct toolcall_event *e) {
    ++*(int *)ctx;
    return e->kind == TOOLCALL_BEGIN ? -5 : 0;
}

Test(toolcall_limits, the_sink_can_stop) {
    CLEANUP(toolcall_parser_freep) struct toolcall_parser *p = NULL;
    struct toolcall_opts opts = {.format = toolcall_find("hermes"), .tools = toolcall_tools()};
    static const char in[] = R"(<tool_call>{"name": "ping"}</tool_call> more)";
    int n = 0;

    cr_assert_eq(toolcall_parser_new(&p, &opts), 0);
    cr_expect_eq(toolcall_feed(p, in, strlen(in), stop, &n), -5);
    cr_expect_eq(n, 1);
    cr_expect_eq(toolcall_finish(p, true, stop, &n), -5);
    cr_expect_eq(n, 1, "nothing is told after it");
}

Test(toolcall_limits, prompts_that_open_reasoning) {
    const struct toolcall_reasoning *think = toolcall_find_reasoning("think");

    cr_expect(toolcall_opens_reasoning(think, "assistant\n<think>\n", 18));
    cr_expect(toolcall_opens_reasoning(think, "<think>", 7));
    cr_expect(!toolcall_opens_reasoning(think, "<think>\n\n</think>\n\n", 19));
    cr_expect(!toolcall_opens_reasoning(think, "think>", 6));
    cr_expect(!toolcall_opens_reasoning(think, "", 0));
    cr_expect(!toolcall_opens_reasoning(NULL, "<think>", 7));
}
