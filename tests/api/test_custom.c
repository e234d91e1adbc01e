/*
 * Custom tools in chats: their description in the prompt, the constraint of their text, and the
 * form of their calls in answers.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "stream.h"
#include "tiny.h"

#define FORMAT(syntax, text)                                                                       \
    R"(,"format":{"type":"grammar","grammar":{"syntax":")" syntax R"(","definition":")" text       \
    R"("}})"
#define TOOL(name, more) R"({"type":"custom","custom":{"name":")" name R"(")" more "}}"
#define TOOLS                                                                                      \
    R"("tools":[)" TOOL("patch", R"(,"description":"D.")" FORMAT(                                  \
                                     "lark", R"(start: \"a\")")) "," TOOL("say", "") "]"

static const char hermes[] =
    "{%- if tools -%}{%- for t in tools -%}{{ t | tojson }}{%- endfor -%}\n{%- endif -%}"
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{%- for c in m.tool_calls or [] -%}"
    "<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>"
    "{%- endfor -%}<|im_end|>\n{%- endfor -%}<|im_start|>assistant\n";

static void started(struct world *w) {
    world_init(w);
    world_use_template(w, hermes, sizeof(hermes) - 1);
    w->model.max_context = 16384;
    world_start(w);
}

static void expect_part(const char *text, const char *part) {
    cr_expect(text && strstr(text, part), "%s\nhas no %s", text, part);
}

Test(custom, the_model_is_told_a_function) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "ok";
    world_ask(&w, CHAT,
              "{" TOOLS R"(,"messages":[{"role":"user","content":"hi"},{"role":)"
              R"("assistant","content":"","tool_calls":[{"id":"c","type":"custom",)"
              R"("custom":{"name":"patch","input":"a\n\""}}]},{"role":"tool",)"
              R"("tool_call_id":"c","content":"done"}]})",
              &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    const char *prompt = fake_prompt(&w.port.r[0]);
    expect_part(prompt, R"({"type": "function", "function": {"name": "patch", )"
                        R"("description": "D.\n\nThe input must follow this grammar (lark):\n)"
                        R"(start: \"a\"", "parameters": {"type": "object", "properties": )"
                        R"({"input": {"type": "string"}}, "required": ["input"], )"
                        R"("additionalProperties": false}}})");
    expect_part(prompt, R"(patch {"input": "a\n\""})");
    expect_part(w.port.r[0].grammar, R"({"lark":"start: \"a\"","param":"tools[0].custom.)"
                                     R"(format","quoted":true})");
    expect_part(w.port.r[0].grammar, R"({"regex":"[\\s\\S]*","param":)");
    reply_deinit(&r);
    world_stop(&w);
}

Test(custom, a_plain_call_has_its_text) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = R"(<tool_call>{"name": "say", "arguments": {"input": )"
                    R"("x \"y\"\n\u00e9"}}</tool_call>)";
    world_ask(&w, CHAT, "{" HI "," TOOLS "}", &r);
    reply_normalise(&r.body);
    expect_part(r.body.data, R"("content":null,"tool_calls":[{"id":"X","type":"custom",)"
                             R"("custom":{"name":"say","input":"x \"y\"\n)"
                             "\xC3\xA9"
                             R"("}}],)"
                             R"("refusal":null},"logprobs":null,"finish_reason":"tool_calls")");
    reply_deinit(&r);
    world_stop(&w);
}

Test(custom, a_streamed_call_has_it_in_pieces) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI "," TOOLS R"(,"stream":true})");
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, R"(<tool_call>{"name": "say", "arguments": {"input": "a\)");
    world_turns(&w, 4);
    fake_tokens(&w.port, 0, R"(nb"}}</tool_call>)");
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
#define CALLS(call)                                                                                \
    CHUNK(R"({"index":0,"delta":{"tool_calls":[)" call                                             \
          R"(]},"logprobs":null,"finish_reason":null})")
    reply_normalise(&r.body);
    expect_part(r.body.data, CALLS(R"({"index":0,"id":"X","type":"custom","custom":{)"
                                   R"("name":"say","input":""}})"));
    expect_part(r.body.data, CALLS(R"({"index":0,"custom":{"input":"a"}})"));
    expect_part(r.body.data, CALLS(R"({"index":0,"custom":{"input":"\nb"}})"));
    expect_part(r.body.data, FINISH("tool_calls") DONE);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(custom, one_can_be_chosen) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "ok";
    world_ask(&w, CHAT,
              "{" HI "," TOOLS R"(,"tool_choice":{"type":"custom","custom":{"name":)"
              R"("patch"}}})",
              &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    expect_part(w.port.r[0].grammar, R"("patch")");
    cr_expect_not(strstr(w.port.r[0].grammar, R"("say")"));
    reply_deinit(&r);
    world_stop(&w);
}

Test(custom, what_is_wrong_is_named) {
    static const struct {
        const char *tool, *param, *code, *part;
    } table[] = {
        {TOOL("", ""), "tools[0].custom.name", "invalid_value", "1 to 256"},
        {TOOL("a", R"(,"format":{"type":"x"})"), "tools[0].custom.format.type", "invalid_value",
         "grammar"},
        {TOOL("a", FORMAT("bnf", "x")), "tools[0].custom.format.syntax", "invalid_value", "lark"},
        {TOOL("a", FORMAT("lark", "")), "tools[0].custom.format.definition", "invalid_value", ""},
        {TOOL("a", FORMAT("lark", "start: x")), "tools[0].custom.format", "grammar_invalid",
         "'x' is not defined"},
        {TOOL("a", FORMAT("lark", "start: a{1}\\na{x}: x")), "tools[0].custom.format",
         "grammar_unsupported", "templates"},
        {TOOL("a", FORMAT("regex", "(?=a)")), "tools[0].custom.format", "grammar_unsupported",
         "look-around"},
    };
    struct world w;
    struct reply r;
    char body[600], code[200];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        snprintf(body, sizeof(body), "{" HI R"(,"tools":[%s]})", table[i].tool);
        world_ask(&w, CHAT, body, &r);
        cr_expect_eq(r.status, 400, "%s: %d", body, r.status);
        snprintf(code, sizeof(code), R"("param":"%s","code":"%s")", table[i].param, table[i].code);
        expect_part(r.body.data, code);
        expect_part(r.body.data, table[i].part);
        reply_deinit(&r);
    }
    world_stop(&w);
}
