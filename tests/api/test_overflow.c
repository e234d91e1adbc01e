/*
 * What does not fit into the context is told in words by which clients know that they have to
 * shorten the conversation, whatever the reason and wherever it was found.
 */

#include <criterion/criterion.h>
#include <regex.h>
#include <stdio.h>
#include <string.h>

#include "stream.h"

#define N_CONTEXT 512

/* Patterns that coding agents look for in an error, without regard to case: of each agent the one
 * that is to find ours (pi 0.73, opencode 1.18, Cline 3.0, Codex 0.171, Claude Code 2.1). Agents
 * that use several APIs look for the same words in all of them. */
static const struct {
    const char *agent, *path, *pattern;
} seen[] = {
    {"pi", "/v1/chat/completions", "maximum context length is [0-9]+ tokens"},
    {"pi", "/v1/responses", "maximum context length is [0-9]+ tokens"},
    {"pi", "/v1/messages", "prompt is too long"},
    {"pi", "/completion", "exceeds the available context size"},
    {"pi", "/api/chat", "maximum context length is [0-9]+ tokens"},
    {"opencode", "/v1/chat/completions", "reduce the length of the messages"},
    {"opencode", "/v1/responses", "context[_ ]length[_ ]exceeded"},
    {"opencode", "/v1/messages", "prompt is too long"},
    {"Cline", "/v1/chat/completions", R"("code":"context_length_exceeded")"},
    {"Cline", "/v1/responses", R"("code":"context_length_exceeded")"},
    {"Cline", "/v1/messages", R"("message":"prompt[ ]+is[ ]+too[ ]+long)"},
    {"Cline", "/api/chat", "maximum[ ]*context"},
    {"Codex", "/v1/responses", R"("code":"context_length_exceeded")"},
    {"Claude Code", "/v1/messages", "prompt is too long[^0-9]*[0-9]+[ ]*tokens?[ ]*>[ ]*[0-9]+"},
    {"Claude Code", "/v1/messages/count_tokens",
     "prompt is too long[^0-9]*[0-9]+[ ]*tokens?[ ]*>[ ]*[0-9]+"},
    {"llama-server's", "/chat/completions", "exceed_context_size_error.*n_prompt_tokens.*n_ctx"},
    {"llama-server's", "/completion", "exceed_context_size_error.*n_prompt_tokens.*n_ctx"},
};

/* Pattern by which pi, opencode and Cline recognise a rate limit; they look for it first. */
#define RATE_LIMIT "rate[ _-]?limit|per[ _-]?minute|too many requests|throttling error|unavailable:"

/* Writes a body for @path whose text is @n times "word ". */
static void make_body(struct buf *b, const char *path, size_t n) {
    static const char messages[] = R"({"max_tokens":1,"model":"tiny","messages":[{"role":)"
                                   R"("user","content":")";
    bool prompt = strcmp(path, "/completion") == 0, input = strcmp(path, "/v1/responses") == 0;

    buf_clear(b);
    buf_add_str(b, prompt ? R"({"prompt":")" : input ? R"({"input":")" : messages);
    for (size_t i = 0; i < n; i++)
        buf_add_str(b, "word ");
    buf_add_str(b, prompt || input ? R"("})" : R"("}]})");
}

static bool finds(const char *pattern, const char *text) {
    regex_t re;

    cr_assert_eq(regcomp(&re, pattern, REG_EXTENDED | REG_NOSUB | REG_ICASE), 0);
    bool found = regexec(&re, text, 0, NULL, 0) == 0;
    regfree(&re);
    return found;
}

static void expect_seen(struct world *w, size_t i, size_t n_words, const char *stage) {
    CLEANUP(buf_deinit) struct buf b = {.max = 32u << 20};
    struct reply r;

    make_body(&b, seen[i].path, n_words);
    world_ask(w, seen[i].path, b.data, &r);
    cr_expect_eq(r.status, 400, "%s, %s: %s", seen[i].agent, stage, r.body.data);
    cr_expect(finds(seen[i].pattern, r.body.data), "%s, %s: %s", seen[i].agent, stage, r.body.data);
    cr_expect(!finds(RATE_LIMIT, r.body.data), "%s: %s", stage, r.body.data);
    cr_expect(strstr(r.body.data, "511") || strstr(r.body.data, "512"), "the context: %s",
              r.body.data);
    reply_deinit(&r);
}

static void begin(struct world *w, const char *source) {
    world_init(w);
    w->model.max_context = N_CONTEXT;
    if (source)
        world_use_template(w, source, strlen(source));
    world_start(w);
}

static bool counts(const char *path) {
    return strstr(path, "count_tokens");
}

Test(overflow, a_prompt_that_is_too_long_is_recognised) {
    struct world w;

    begin(&w, NULL);
    for (size_t i = 0; i < ARRAY_SIZE(seen); i++) {
        if (!counts(seen[i].path)) /* a count is answered, as far as the prompt is counted */
            expect_seen(&w, i, 120, "a little too long");
        expect_seen(&w, i, 30000, "too long to be counted");
    }
    world_stop(&w);
}

Test(overflow, what_cannot_be_rendered_is_recognised) {
    static const struct {
        const char *stage, *source;
    } cases[] = {
        {"text", "{%- for i in range(2000) -%}{{ messages[0].content }}{%- endfor -%}"},
        {"steps", "{%- for i in range(100000) -%}{%- for k in range(100000) -%}{%- set x = i -%}"
                  "{%- endfor -%}{%- endfor -%}"},
    };

    for (size_t k = 0; k < ARRAY_SIZE(cases); k++) {
        struct world w;

        begin(&w, cases[k].source);
        for (size_t i = 0; i < ARRAY_SIZE(seen); i++)
            if (strcmp(seen[i].path, "/completion") != 0)
                expect_seen(&w, i, 2000, cases[k].stage);
        world_stop(&w);
    }
}

/* Its client would shorten the conversation in vain. */
Test(overflow, a_template_without_end_is_wrong_for_a_short_request) {
    struct world w;
    struct reply r;

    begin(&w, "{%- for i in range(100000) -%}{%- for k in range(100000) -%}{%- set x = i -%}"
              "{%- endfor -%}{%- endfor -%}");
    world_ask(&w, CHAT, "{" HI "}", &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, "template_error") && strstr(r.body.data, "too many steps"), "%s",
              r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}
