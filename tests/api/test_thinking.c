/*
 * Limits of thinking, their description in the prompt, and other settings of the output: a
 * prediction, stop strings between control tokens.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "api/generation/gen_request.h"
#include "stream.h"
#include "tiny.h"

static const char source[] =
    "{{ messages[0].content }}{% if false %} <tool_call> </think> {% endif %}|{{ reasoning_effort "
    "| default('-') }}|"
    "{{ enable_thinking | default('-') }}|{{ thinking_budget | default('-') }}|"
    "{%- for t in tools or [] -%}{{ '[' + t.function.description + ']' }}{%- endfor -%}"
    "{%- if thinking -%}<think>\n{%- endif -%}";

static void with_source(struct world *w, const char *text) {
    world_init(w);
    world_use_template(w, text, strlen(text));
    world_start(w);
}

static void started(struct world *w) {
    with_source(w, source);
}

static void expect_body(struct reply *r, const char *part) {
    cr_expect(r->body.data && strstr(r->body.data, part), "no %s in %s", part, r->body.data);
}

/* ---- budgets */

/* Compares the output tokens with which the request was resumed, as text. */
static void expect_resumed(struct world *w, uint32_t i, const char *text) {
    const struct fake_request *f = &w->port.r[i];
    uint32_t n = f->m.n_tokens - f->m.n_prompt;

    cr_assert_eq(n, strlen(text), "%u tokens", n);
    for (uint32_t k = 0; k < n; k++)
        cr_assert_eq(f->tokens[f->m.n_prompt + k], (unsigned char)text[k], "token %u", k);
}

/* @n tokens arrive at once; tokens after the cut never count, and the old generation is over. */
static void think_in_steps(struct world *w, const char *fields, size_t n, bool stream) {
    static const char thoughts[] = "abcdefghijkl";
    char body[400];
    struct reply r;
    int fd = world_connect(w);
    uint32_t first = w->port.n;

    snprintf(body, sizeof(body), "{" HI R"(,"chat_template_kwargs":{"thinking":true},%s%s})",
             fields, stream ? R"(,"stream":true)" : "");
    world_post(w, fd, CHAT, body);
    while (w->port.n == first)
        world_turn(w);
    fake_accept(&w->port, first);
    for (size_t at = 0; at < 5; at += n) {
        char part[16];

        snprintf(part, sizeof(part), "%.*s", (int)n, thoughts + at);
        fake_tokens(&w->port, first, part);
    }
    cr_assert_eq(w->port.n, first + 2, "%u submits", w->port.n);
    cr_expect(w->port.r[first].cancelled);
    expect_resumed(w, first + 1, "abcde</think>\n\n");
    fake_tokens_from(&w->port, first, (uint32_t)strlen("abcde</think>\n\n"), "stale");
    fake_accept(&w->port, first + 1);
    fake_tokens(&w->port, first + 1, "Yes");
    fake_finish(&w->port, first + 1, FINISH_STOP);
    world_receive(w, fd, &r);
    cr_assert_eq(r.status, 200);
    expect_body(&r,
                stream ? R"({"content":"Yes"})" : R"("content":"Yes","reasoning_content":"abcde")");
    reply_deinit(&r);
    world_drop(w, fd);
}

Test(thinking, ends_at_its_budget_however_tokens_come) {
    static const char *const names[] = {"thinking_budget", "thinking_token_budget",
                                        "max_thinking_tokens", "reasoning_budget"};
    struct world w;
    char fields[60];

    started(&w);
    for (size_t n = 1; n <= 7; n++) {
        snprintf(fields, sizeof(fields), R"("%s":5)", names[n % ARRAY_SIZE(names)]);
        think_in_steps(&w, fields, n, n % 2);
    }
    world_stop(&w);
}

/* A model that begins to reason again gets no further budget. */
Test(thinking, ends_again_when_the_budget_is_spent) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT,
               "{" HI R"(,"chat_template_kwargs":{"thinking":true},"thinking_budget":3})");
    while (w.port.n == 0)
        world_turn(&w);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "abc");
    cr_assert_eq(w.port.n, 2);
    fake_accept(&w.port, 1);
    fake_tokens(&w.port, 1, "A\n<think>\n");
    cr_assert_eq(w.port.n, 3);
    expect_resumed(&w, 2, "abc</think>\n\nA\n<think>\n</think>\n\n");
    fake_accept(&w.port, 2);
    fake_tokens(&w.port, 2, "Yes");
    fake_finish(&w.port, 2, FINISH_STOP);
    world_receive(&w, fd, &r);
    expect_body(&r, R"("content":"A\nYes","reasoning_content":"abc")");
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(thinking, is_left_out_where_it_is_not_wanted) {
    struct world w;
    struct reply r;

    started(&w);
    for (int stream = 0; stream < 2; stream++) {
        w.port.script = "Hm</think>\n\nYes";
        world_ask(&w, CHAT,
                  stream ? "{" HI R"(,"chat_template_kwargs":{"thinking":true},)"
                           R"("include_reasoning":false,"stream":true})"
                         : "{" HI R"(,"chat_template_kwargs":{"thinking":true},)"
                           R"("include_reasoning":false})",
                  &r);
        cr_assert_eq(r.status, 200);
        expect_body(&r, stream ? R"({"content":"Y"})" : R"("content":"Yes","refusal")");
        cr_expect(!strstr(r.body.data, "Hm"), "%s", r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(thinking, without_a_budget_is_never_begun) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "..........Yes";
    world_ask(&w, CHAT, "{" HI R"(,"chat_template_kwargs":{"thinking":true},"thinking_budget":0})",
              &r);
    expect_body(&r, R"("content":"Yes","refusal")");
    expect_resumed(&w, 0, "</think>\n\n");
    cr_expect_eq(w.port.n, 1);
    reply_deinit(&r);
    world_stop(&w);
}

Test(thinking, within_the_budget_is_left_alone) {
    static const char *const fields[] = {R"("thinking_budget":5)", R"("thinking_budget":-1)",
                                         R"("thinking_budget":0,"max_tokens":9)"};
    struct world w;

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        char body[300];
        struct reply r;

        /* all tokens of a marker except the last count, and the last case has no room for it */
        w.port.script = i == 1 ? "abcdefghijkl</think>Yes" : "</think>Y";
        snprintf(body, sizeof(body), "{" HI R"(,"chat_template_kwargs":{"thinking":true},%s})",
                 i == 0 ? R"("thinking_budget":8)" : fields[i]);
        world_ask(&w, CHAT, body, &r);
        cr_expect_eq(w.port.n, i + 1, "%s: %u", fields[i], w.port.n);
        expect_body(&r, i == 1 ? R"("content":"Yes")" : R"("content":"Y")");
        reply_deinit(&r);
    }
    world_stop(&w);
}

/* A death in the middle changes no output. */
Test(thinking, budgets_survive_the_worker) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT,
               "{" HI R"(,"chat_template_kwargs":{"thinking":true},"thinking_budget":5})");
    while (w.port.n == 0)
        world_turn(&w);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "abc");
    api_worker_down(api_first_model(w.api));
    api_worker_up(api_first_model(w.api), NULL);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "defgh");
    cr_assert_eq(w.port.n, 2);
    expect_resumed(&w, 1, "abcde</think>\n\n");
    api_worker_down(api_first_model(w.api));
    api_worker_up(api_first_model(w.api), NULL);
    expect_resumed(&w, 1, "abcde</think>\n\n");
    fake_accept(&w.port, 1);
    fake_tokens(&w.port, 1, "Yes");
    fake_finish(&w.port, 1, FINISH_STOP);
    world_receive(&w, fd, &r);
    expect_body(&r, R"("content":"Yes","reasoning_content":"abcde")");
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

/* ---- reasoning inside the content, and variables of the template that the server sets */

static void expect_answer(struct world *w, const char *fields, const char *part,
                          const char * not ) {
    char body[300];
    struct reply r;

    snprintf(body, sizeof(body), "{" HI "%s}", fields);
    world_ask(w, CHAT, body, &r);
    cr_expect_eq(r.status, 200);
    expect_body(&r, part);
    cr_expect_null(strstr(r.body.data, not ), "%s has %s", r.body.data, not );
    reply_deinit(&r);
}

Test(thinking, reasoning_stays_in_the_content_if_the_client_or_the_server_says_so) {
    static const char thinks[] = R"(,"chat_template_kwargs":{"thinking":true})";
    char fields[200];
    struct world w;
    struct reply r;

    for (int of_server = 0; of_server < 2; of_server++) {
        world_init(&w);
        world_use_template(&w, source, strlen(source));
        w.model.inline_reasoning = of_server;
        world_start(&w);
        w.port.script = "Sum</think>\n\nYes";
        expect_answer(&w, thinks, of_server ? "<think>" : R"("reasoning_content":"Sum")",
                      of_server ? "reasoning_content" : "<think>");
        snprintf(fields, sizeof(fields), R"(%s,"reasoning_format":"none")", thinks);
        expect_answer(&w, fields, R"("content":"<think>Sum</think>\n\nYes")", "reasoning_content");
        snprintf(fields, sizeof(fields), R"(%s,"separate_reasoning":false)", thinks);
        expect_answer(&w, fields, R"("content":"<think>Sum</think>\n\nYes")", "reasoning_content");
        snprintf(fields, sizeof(fields), R"(%s,"reasoning_format":"auto")", thinks);
        expect_answer(&w, fields, R"("content":"Yes")", "<think>");
        world_ask(&w, CHAT, "{" HI R"(,"reasoning_format":"raw"})", &r);
        cr_expect_eq(r.status, 400);
        reply_deinit(&r);
        world_stop(&w);
    }
}

/* Messages, Responses and Ollama's chats have a place for reasoning: the server's option for chat
 * completions leaves it there. */
Test(thinking, reasoning_stays_apart_in_other_apis) {
    const char *const cases[][3] = {
        {"/v1/messages",
         R"({"model":"tiny","max_tokens":52,"thinking":{"type":"adaptive"},)"
         R"("messages":[{"role":"user","content":"hi"}]})",
         R"("thinking":"Sum")"},
        {"/v1/responses", R"({"input":"hi"})", R"("type":"reasoning_text","text":"Sum")"},
        {"/api/chat",
         R"({"model":"tiny","stream":false,"messages":[{"role":"user","content":"hi"}]})",
         R"("thinking":"Sum")"},
    };
    struct yyjson_doc *doc = NULL;
    struct err err = {0};
    struct world w;

    cr_assert_eq(api_read_kwargs(R"({"thinking": true})", &doc, &err), 0);
    world_init(&w);
    world_use_template(&w, source, strlen(source));
    w.model.template_kwargs = yyjson_doc_get_root(doc);
    w.model.inline_reasoning = true;
    world_start(&w);
    w.port.script = "Sum</think>\n\nYes";
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct reply r;

        world_ask(&w, cases[i][0], cases[i][1], &r);
        cr_expect_eq(r.status, 200);
        expect_body(&r, cases[i][2]);
        cr_expect_null(strstr(r.body.data, "<think>"), "%s: %s", cases[i][0], r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
    yyjson_doc_free(doc);
}

Test(thinking, variables_of_the_server_count_where_the_request_sets_none) {
    struct yyjson_doc *doc = NULL;
    struct err err = {0};
    struct world w;

    cr_assert_eq(api_read_kwargs(R"({"thinking": true})", &doc, &err), 0);
    world_init(&w);
    world_use_template(&w, source, strlen(source));
    w.model.template_kwargs = yyjson_doc_get_root(doc);
    world_start(&w);
    w.port.script = "Sum</think>\n\nYes";
    expect_answer(&w, "", R"("reasoning_content":"Sum")", "<think>");
    expect_answer(&w, R"(,"chat_template_kwargs":{"other":1})", R"("reasoning_content":"Sum")",
                  "<think>");
    w.port.script = "Yes";
    expect_answer(&w, R"(,"chat_template_kwargs":{"thinking":false})", R"("content":"Yes")",
                  "reasoning_content");
    expect_answer(&w, R"(,"reasoning_effort":"none")", R"("content":"Yes")", "reasoning_content");
    expect_answer(&w, R"(,"enable_thinking":false)", R"("content":"Yes")", "reasoning_content");
    world_stop(&w);
    yyjson_doc_free(doc);
    cr_expect_lt(api_read_kwargs(R"({"messages": 1})", &doc, &err), 0);
    cr_expect_lt(api_read_kwargs(R"({"a": []})", &doc, &err), 0);
    cr_expect_lt(api_read_kwargs("a", &doc, &err), 0);
}

/* ---- loops */

static void started_with_breaker(struct world *w) {
    world_init(w);
    world_use_template(w, source, strlen(source));
    w->model.loop_tokens = 32; /* blocks of up to 8 tokens, checked at every second one */
    world_start(w);
}

/* the end of a choice that was a loop */
#define LOOP_ENDED R"("finish_reason":"length","loop_ended":true)"

static void expect_loops(struct world *w, unsigned n, unsigned n_repetitions) {
    char loops[100], ends[140];
    struct reply r;

    snprintf(loops, sizeof(loops),
             R"(weft_loops_ended_total{model_name="tiny",)"
             R"(engine="0"} %u)"
             "\n",
             n);
    snprintf(ends, sizeof(ends),
             R"(vllm:request_success_total{model_name="tiny",engine="0",finished_reason=)"
             R"("repetition"} %u)"
             "\n",
             n_repetitions);
    world_get(w, "/metrics", &r);
    expect_body(&r, loops);
    expect_body(&r, ends);
    reply_deinit(&r);
}

/* The 32nd token is the first position that is checked; what is new in the first eight does not
 * count. Later tokens of the same batch never count. */
Test(loops, an_output_that_repeats_ends_at_an_exact_token) {
    static const char output[] = "!!abcdeabcdeabcdeabcdeabcdeabcdeabcdeabcdeabcdeabcde";
    struct world w;

    started_with_breaker(&w);
    for (size_t n = 1; n <= 40; n += 13) {
        uint32_t first = w.port.n;
        int fd = world_connect(&w);
        struct reply r;

        world_post(&w, fd, CHAT, "{" HI "}");
        while (w.port.n == first)
            world_turn(&w);
        fake_accept(&w.port, first);
        for (size_t at = 0; at < 32; at += n) {
            char part[64];

            snprintf(part, sizeof(part), "%.*s", (int)n, output + at);
            fake_tokens(&w.port, first, part);
        }
        cr_expect(w.port.r[first].cut);
        world_receive(&w, fd, &r);
        expect_body(&r, R"("content":"!!abcdeabcdeabcdeabcdeabcdeabcde")");
        expect_body(&r, LOOP_ENDED);
        expect_body(&r, R"("completion_tokens":32)");
        reply_deinit(&r);
        world_drop(&w, fd);
    }
    expect_loops(&w, 4, 4);
    world_stop(&w);
}

Test(loops, other_outputs_and_those_of_models_without_the_option_go_on) {
    static const char *const outputs[] = {
        "abcdefghiabcdefghiabcdefghiabcdefghiabcdefghi", /* a block of nine tokens */
        "aaaXbbaaaYccaaaZddaaaXeeaaaYffaaaZggaaaXhhaaaYii",
        "abababababababababababababababababababababababababab",
    };
    struct world w;

    for (int on = 1; on >= 0; on--) {
        on ? started_with_breaker(&w) : started(&w);
        for (size_t i = 0; i < ARRAY_SIZE(outputs); i++) {
            bool ends = on && i == 2;
            struct reply r;

            w.port.script = outputs[i];
            world_ask(&w, CHAT, "{" HI "}", &r);
            expect_body(&r, ends ? LOOP_ENDED : R"("finish_reason":"stop")");
            cr_expect_eq(strstr(r.body.data, outputs[i]) == NULL, ends, "%s", r.body.data);
            reply_deinit(&r);
        }
        expect_loops(&w, (unsigned)on, (unsigned)on);
        world_stop(&w);
    }
}

/* A default is for chats, whose clients ask for no fixed number of tokens; each request may
 * turn the search off, or on. */
Test(loops, a_request_decides_and_a_default_is_for_chats) {
    static const struct {
        const char *path, *fields;
        bool ends;
    } cases[] = {
        {CHAT, "", true},
        {CHAT, R"(,"loop_breaker":0)", false},
        {CHAT, R"(,"loop_breaker":false)", false},
        {CHAT, R"(,"loop_breaker":40)", true},
        {CHAT, R"(,"loop_breaker":true)", false}, /* 256 tokens, more than the output has */
        {CHAT, R"(,"ignore_eos":true)", false},
        {CHAT, R"(,"response_format":{"type":"json_object"})", false},
        {CHAT, R"(,"response_format":{"type":"json_object"},"loop_breaker":32)", true},
        {"/v1/completions", "", false},
        {"/v1/completions", R"(,"loop_breaker":32)", true},
    };
    static const char output[] = "abababababababababababababababababababababababababab";
    struct world w;
    struct reply r;

    world_init(&w);
    world_use_template(&w, source, strlen(source));
    w.model.loop_tokens = 32;
    w.model.loops_of_chats = true;
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char body[200];

        w.port.script = output;
        bool is_chat = strcmp(cases[i].path, CHAT) == 0;

        snprintf(body, sizeof(body), R"({%s,"max_tokens":52%s})", is_chat ? HI : R"("prompt":"x")",
                 cases[i].fields);
        world_ask(&w, cases[i].path, body, &r);
        cr_expect_eq(r.status, 200);
        cr_expect_eq(strstr(r.body.data, LOOP_ENDED) != NULL, cases[i].ends, "%zu: %s", i,
                     r.body.data);
        reply_deinit(&r);
    }
    world_ask(&w, CHAT, "{" HI R"(,"loop_breaker":4097})", &r);
    cr_expect_eq(r.status, 400);
    reply_deinit(&r);
    world_stop(&w);
}

/* APIs whose clients know a closed set of reasons tell it in a member of its own. */
Test(loops, each_api_says_that_a_loop_was_ended) {
    const char *const cases[][2] = {
        {"/v1/messages", R"({"model":"tiny","max_tokens":52,"messages":[{"role":"user",)"
                         R"("content":"hi"}]})"},
        {"/api/chat", R"({"model":"tiny","stream":false,"messages":[{"role":"user",)"
                      R"("content":"hi"}]})"},
        {"/completion", R"({"prompt":"hi","n_predict":52})"},
        {"/v1/responses", R"({"input":"hi"})"},
        {"/api/v0/chat/completions", R"({"messages":[{"role":"user","content":"hi"}]})"},
    };
    struct world w;
    struct reply r;

    started_with_breaker(&w);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        for (int loops = 0; loops < 2; loops++) {
            w.port.script = loops ? "abababababababababababababababababababababababababab" : "abab";
            world_ask(&w, cases[i][0], cases[i][1], &r);
            cr_expect_eq(strstr(r.body.data, R"("loop_ended":true)") != NULL, loops, "%s: %s",
                         cases[i][0], r.body.data);
            cr_expect_not(strstr(r.body.data, "contextLengthReached"), "%s", r.body.data);
            reply_deinit(&r);
        }
    world_stop(&w);
}

Test(loops, a_tenant_has_an_option_of_its_own) {
    struct api_tenant row = {.name = "default", .weight = 1, .loop_tokens = 16};
    struct world w;

    started(&w);
    for (int own = 1; own >= 0; own--) {
        struct reply r;

        cr_assert_eq(api_set_tenants(w.api, &row, own), 0);
        w.port.script = "abababababababababababababababab";
        world_ask(&w, CHAT, "{" HI "}", &r);
        expect_body(&r, own ? LOOP_ENDED : R"("finish_reason":"stop")");
        reply_deinit(&r);
    }
    expect_loops(&w, 1, 1);
    world_stop(&w);
}

/* A loop in the thoughts does not end the answer, which may have its own. */
Test(loops, thoughts_that_repeat_are_closed_and_the_answer_follows) {
    static const char block[] = "so so so so so so so so so so so so ";
    char closed[64];
    struct world w;
    struct reply r;

    started_with_breaker(&w);
    for (int twice = 0; twice < 2; twice++) {
        int fd = world_connect(&w);
        uint32_t first = w.port.n;

        world_post(&w, fd, CHAT, "{" HI R"(,"chat_template_kwargs":{"thinking":true}})");
        while (w.port.n == first)
            world_turn(&w);
        fake_accept(&w.port, first);
        fake_tokens(&w.port, first, block);
        cr_assert_eq(w.port.n, first + 2, "%u submits", w.port.n);
        snprintf(closed, sizeof(closed), "%.32s</think>\n\n", block);
        expect_resumed(&w, first + 1, closed);
        fake_accept(&w.port, first + 1);
        fake_tokens(&w.port, first + 1, twice ? block : "Yes");
        if (!twice)
            fake_finish(&w.port, first + 1, FINISH_STOP);
        world_receive(&w, fd, &r);
        expect_body(&r, twice ? LOOP_ENDED : R"("content":"Yes","reasoning_content":"so so)");
        reply_deinit(&r);
        world_drop(&w, fd);
    }
    expect_loops(&w, 3, 1);
    world_stop(&w);
}

/* ---- values for the template */

static void expect_prompt(struct world *w, const char *fields, const char *want) {
    char body[500];
    struct reply r;

    snprintf(body, sizeof(body), "{" HI ",%s}", fields);
    world_ask(w, CHAT "/render", body, &r);
    cr_assert_eq(r.status, 200, "%s: %s", fields, r.body.data);
    expect_body(&r, want);
    reply_deinit(&r);
}

Test(thinking, efforts_reach_the_template) {
    struct world w;

    started(&w);
    expect_prompt(&w, R"("n":1)", R"(hi|-|True|-|")");
    expect_prompt(&w, R"("reasoning_effort":"high")", "hi|high|True|-|<think>");
    expect_prompt(&w, R"("reasoning_effort":"minimal")", "hi|low|True|-|<think>");
    expect_prompt(&w, R"("reasoning_effort":"xhigh")", "hi|high|True|-|<think>");
    expect_prompt(&w, R"("reasoning_effort":"none")", R"(hi|low|False|-|")");
    expect_prompt(&w, R"("thinking_budget":7)", "hi|-|True|7|");
    expect_prompt(&w, R"("thinking":{"type":"enabled","budget_tokens":7})", "hi|-|True|7|");
    expect_prompt(&w,
                  R"("reasoning_effort":"high","chat_template_kwargs":{"enable_thinking":false,)"
                  R"("reasoning_effort":"own"})",
                  "hi|own|False|-|");
    world_stop(&w);
    with_source(&w, R"({{ messages[0].content }}|{{ reasoning_effort }}{# 'no_think' "max" #})");
    expect_prompt(&w, R"("reasoning_effort":"none")", "hi|no_think");
    expect_prompt(&w, R"("reasoning_effort":"medium")", "hi|medium");
    expect_prompt(&w, R"("reasoning_effort":"xhigh")", "hi|max");
    expect_prompt(&w, R"("reasoning_effort":"max")", "hi|max");
    world_stop(&w);
    with_source(&w, "{{ messages[0].content }}|{{ reasoning_effort }}{# 'low' 'high' #}");
    expect_prompt(&w, R"("reasoning_effort":"medium")", "hi|high");
    world_stop(&w);

    with_source(&w, "{{ messages[0].content }}|{{ reasoning_strength }}{# 'xhigh' #}");
    expect_prompt(&w, R"("reasoning_effort":"xhigh")", "hi|xhigh");
    world_stop(&w);
}

/* Some templates describe the constraint to the model. */
Test(thinking, what_the_template_opens_is_closed_where_there_is_to_be_none) {
    static const struct {
        uint8_t option;
        const char *fields, *end;
    } cases[] = {
        {THINK_AUTO, "", R"(<think>\n"})"},
        {THINK_AUTO, R"(,"enable_thinking":false)", R"(<think>\n</think>"})"},
        {THINK_AUTO, R"(,"reasoning_effort":"none")", R"(<think>\n</think>"})"},
        {THINK_OFF, "", R"(<think>\n</think>"})"},
        {THINK_OFF, R"(,"enable_thinking":true)", R"(<think>\n"})"},
        {THINK_OFF, R"(,"chat_template_kwargs":{"thinking":true})", R"(<think>\n"})"},
    };
    static const char always[] =
        "{{ messages[0].content }}{% if false %} </think> {% endif %}<think>\n{{ '' }}";

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct world w;
        struct reply r;
        char body[200];

        world_init(&w);
        w.model.thinking = cases[i].option;
        world_use_template(&w, always, strlen(always));
        world_start(&w);
        snprintf(body, sizeof(body), "{" HI "%s}", cases[i].fields);
        world_ask(&w, "/apply-template", body, &r);
        expect_body(&r, cases[i].end);
        reply_deinit(&r);
        world_stop(&w);
    }
}

Test(thinking, what_is_asked_for_reaches_the_template) {
    struct world w;

    with_source(&w, "{{ messages[0].content }}|{{ response_format.type if response_format }}|"
                    "{{ tool_choice }}{% if false %} <tool_call> tools {% endif %}");
    expect_prompt(&w, R"("n":1)", R"(hi||")");
    expect_prompt(&w, R"("response_format":{"type":"text"})", R"(hi||")");
    expect_prompt(&w, R"("response_format":{"type":"json_object"})", R"(hi|json_object|")");
    expect_prompt(&w,
                  R"("tool_choice":"required","tools":[{"type":"function","function":{)"
                  R"("name":"f"}}])",
                  "||required");
    world_stop(&w);
}

/* Descriptions are added only for a template that fails without them. */
Test(thinking, a_tool_needs_no_description) {
#define TOOLS(more) R"("tools":[{"type":"function","function":{"name":"f")" more "}}]"
    struct world w;

    started(&w);
    expect_prompt(&w, TOOLS(""), "|[]");
    expect_prompt(&w, TOOLS(R"(,"description":null)"), "|[]");
    expect_prompt(&w, TOOLS(R"(,"description":"D")"), "|[D]");
    world_stop(&w);
    with_source(&w, "{{ tools | tojson }}{{ messages[0].content }}<tool_call>");
    expect_prompt(&w, TOOLS(""), R"(\"function\": {\"name\": \"f\"})");
    world_stop(&w);
}

/* ---- predictions */

Test(thinking, a_prediction_is_told_as_tokens) {
    static const struct {
        const char *prediction, *text;
    } table[] = {
        {R"({"type":"content","content":"ab<|im_end|>"})", "ab<|im_end|>"},
        {R"({"type":"content","content":[{"type":"text","text":"x"},{"type":"text",)"
         R"("text":"yz"}]})",
         "xyz"},
        {R"({"type":"content","content":""})", ""},
    };
    struct world w;

    started(&w);
    w.port.script = "ok";
    for (uint32_t i = 0; i < ARRAY_SIZE(table); i++) {
        char body[400];
        struct reply r;
        CLEANUP(buf_deinit) struct buf text = {.max = 1000};

        snprintf(body, sizeof(body), "{" HI R"(,"prediction":%s})", table[i].prediction);
        world_ask(&w, CHAT, body, &r);
        cr_assert_eq(r.status, 200, "%s", r.body.data);
        cr_expect_eq(strstr(r.body.data, R"(accepted_prediction_tokens":0,"rejected_prediction_)"
                                         R"(tokens":0)") != NULL,
                     *table[i].text != 0, "%s", r.body.data);
        for (uint32_t k = 0; k < w.port.r[i].n_prediction; k++) {
            cr_assert_lt(w.port.r[i].prediction[k], TINY_ALL);
            cr_assert(w.port.r[i].prediction[k] < 256 || w.port.r[i].prediction[k] == TINY_VOCAB,
                      "text is no special token");
            buf_add(&text,
                    w.port.r[i].prediction[k] < 256 ? (char *)&w.port.r[i].prediction[k] : "ab",
                    w.port.r[i].prediction[k] < 256 ? 1 : 2);
        }
        cr_expect_str_eq(text.len ? text.data : "", table[i].text);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(thinking, usage_counts_drafts_from_the_prediction_alone) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "ok";
    w.port.n_predicted = 7;
    w.port.n_predicted_accepted = 4;
    world_ask(&w, CHAT, "{" HI R"(,"prediction":{"type":"content","content":"ab"}})", &r);
    expect_body(&r, R"("accepted_prediction_tokens":4,"rejected_prediction_tokens":3)");
    reply_deinit(&r);
    world_ask(&w, CHAT, "{" HI "}", &r);
    cr_expect_null(strstr(r.body.data, "prediction_tokens"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(thinking, what_is_no_prediction_is_refused) {
    static const char *const bad[] = {"1",
                                      "{}",
                                      R"({"type":"content"})",
                                      R"({"type":"other","content":"a"})",
                                      R"({"type":"content","content":[1]})",
                                      R"({"type":"content","content":[{"type":"image"}]})"};
    struct world w;
    struct reply r;
    char body[300];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        snprintf(body, sizeof(body), "{" HI R"(,"prediction":%s})", bad[i]);
        world_ask(&w, CHAT, body, &r);
        cr_expect_eq(r.status, 400, "%s", bad[i]);
        expect_body(&r, R"("param":"prediction")");
        reply_deinit(&r);
    }
    world_stop(&w);
}

/* ---- stop strings and control tokens */

#define SHOWN R"(,"skip_special_tokens":false)"

Test(thinking, stop_strings_see_what_is_shown) {
    static const int32_t ids[] = {'a', TINY_CALL, 'b', TINY_JUNK, 'c'};
    static const struct {
        const char *more, *stop, *content;
        /* the worker searches the stop strings too */
        bool worker;
    } table[] = {
        {"", "ab", "", true}, /* the tag is hidden, so the match begins at once */
        {"," TOOLS(""), "ab", "a<tool_call>bc", false}, /* the tag is shown, and is no call */
        {"," TOOLS(""), "bc", "a<tool_call>", false},
        {"," TOOLS(""), "<tool_call>b", "a", false},
        {SHOWN, "ab", "a<tool_call>b<|junk|>c", false},
        {SHOWN, "b<|junk|>", "a<tool_call>", false},
        {SHOWN R"(,"include_stop_str_in_output":true)", "b<|junk|>", "a<tool_call>b<|junk|>",
         false},
    };
    struct world w;

    with_source(&w, "{{ messages[0].content }}{{ tools }}<tool_call>");
    for (uint32_t i = 0; i < ARRAY_SIZE(table); i++) {
        char body[400], want[100];
        struct reply r;
        int fd = world_connect(&w);

        snprintf(body, sizeof(body), "{" HI R"(,"stop":"%s"%s})", table[i].stop, table[i].more);
        world_post(&w, fd, CHAT, body);
        while (w.port.n == i)
            world_turn(&w);
        cr_expect_eq(w.port.r[i].m.n_stops, table[i].worker, "%u", i);
        fake_accept(&w.port, i);
        fake_ids(&w.port, i, ids, ARRAY_SIZE(ids));
        if (i == 1 || i == 4)
            fake_finish(&w.port, i, FINISH_STOP);
        world_receive(&w, fd, &r);
        snprintf(want, sizeof(want), R"("content":"%s")", table[i].content);
        expect_body(&r, want);
        reply_deinit(&r);
        world_drop(&w, fd);
    }
    world_stop(&w);
}
