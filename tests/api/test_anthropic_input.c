/*
 * Requests of /v1/messages: the prompts and submits that they become, and refusals with their
 * fields. The chat template in this file writes all its input.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "stream.h"
#include "tiny.h"

#define MESSAGES "/v1/messages"
#define COUNT "/v1/messages/count_tokens"
#define SAY(messages) R"("messages":[)" messages "]"
#define USER(content) R"({"role":"user","content":)" content "}"
#define ASSISTANT(content) R"({"role":"assistant","content":)" content "}"
#define TEXT_BLOCK(text) R"({"type":"text","text":")" text R"("})"
#define Q USER(R"("q")")

static const char dump[] =
    "{% for m in messages %}{{ m | tojson }}\n{% endfor %}{% if tools %}{{ tools | tojson }}"
    "{% endif %}{{ enable_thinking }}{{ thinking }}{{ reasoning_effort | default('') }}"
    "{% if add_generation_prompt %}>{% if think_first %}<think>\n{% endif %}{% endif %}"
    "{% if false %} </think> <tool_call> {% endif %}";

static void started(struct world *w) {
    world_init(w);
    world_use_template(w, dump, sizeof(dump) - 1);
    w->model.max_context = 16384;
    world_start(w);
}

static const char *text_of(const struct buf *b) {
    return b->data ? b->data : "";
}

/* Serves the request and returns the prompt that the worker got. */
static struct fake_request *serve(struct world *w, const char *fields, struct buf *prompt) {
    char body[6000];
    struct reply r;
    uint32_t i = w->port.n;

    snprintf(body, sizeof(body), R"({"model":"claude-x","max_tokens":20,%s})", fields);
    w->port.script = "ok";
    world_ask(w, MESSAGES, body, &r);
    cr_assert_eq(r.status, 200, "%s: %s", body, text_of(&r.body));
    cr_assert_eq(w->port.n, i + 1);
    reply_deinit(&r);
    buf_clear(prompt);
    tokenizer_decode(w->model.tokenizer, w->port.r[i].m.tokens, w->port.r[i].m.n_prompt, true,
                     prompt);
    return &w->port.r[i];
}

static void expect_prompt(struct world *w, const char *fields, const char *want) {
    CLEANUP(buf_deinit) struct buf prompt = {.max = 1 << 20};

    serve(w, fields, &prompt);
    cr_expect_str_eq(text_of(&prompt), want, "%s\n     gives %s\n    wanted %s", fields,
                     text_of(&prompt), want);
}

/* ---- prompts ---- */

#define OFF "FalseFalselow>" /* thinking is off, with the lowest effort */
#define SYSTEM_(text)                                                                              \
    R"({"role": "system", "content": ")" text R"("})"                                              \
    "\n"
#define USER_(text)                                                                                \
    R"({"role": "user", "content": ")" text R"("})"                                                \
    "\n"
#define CALLED(text)                                                                               \
    R"({"role": "assistant", "content": ")" text                                                   \
    R"(", "tool_calls": [{"id": "t1", "type": "function", "function": {"name": )"                  \
    R"("f", "arguments": {"x": [1]}}}]})"                                                          \
    "\n"
#define RESULT_OF(content)                                                                         \
    R"({"role": "tool", "content": )" content R"(, "name": "f", "tool_call_id": "t1"})"            \
    "\n"
#define RESULT(text) RESULT_OF(R"(")" text R"(")")
#define USE R"({"type":"tool_use","id":"t1","name":"f","input":{"x":[1]}})"
#define PDF R"({"type":"document","source":{"type":"base64","data":"JVBERg=="}})"
#define GIVE(more) R"({"type":"tool_result","tool_use_id":"t1")" more "}"

Test(anthropic_input, turns_become_messages) {
    const struct {
        const char *fields, *prompt;
    } table[] = {
        {SAY(Q), USER_("q") OFF},
        {SAY(USER("[" TEXT_BLOCK("a") "," TEXT_BLOCK("b") "]")), USER_("a\\nb") OFF},
        {SAY(Q) R"(,"system":"s")", SYSTEM_("s") USER_("q") OFF},
        {SAY(Q) R"(,"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}})"
                "," TEXT_BLOCK("t") "]",
         SYSTEM_("s\\nt") USER_("q") OFF},
        {SAY(Q) R"(,"system":[])", USER_("q") OFF},
        {SAY(Q "," ASSISTANT(R"("a")") "," Q), USER_("q") R"({"role": "assistant", "content": "a"})"
                                                          "\n" USER_("q") OFF},
        /* adjacent turns of one side are merged */
        {SAY(Q "," Q "," ASSISTANT(R"("a")") "," ASSISTANT("[" TEXT_BLOCK("b") "]") "," Q),
         USER_("q\\nq") R"({"role": "assistant", "content": "a\nb"})"
                        "\n" USER_("q") OFF},
        {SAY(Q R"(,{"role":"system","content":"now"})"), USER_("q\\nnow") OFF},
        /* forms that are not Anthropic's, but have one meaning */
        {SAY(USER(R"(["a",{"text":"b"}])")) R"(,"system":["s",{"text":"t"}])",
         SYSTEM_("s\\nt") USER_("a\\nb") OFF},
        {SAY(USER(TEXT_BLOCK("a"))) R"(,"system":)" TEXT_BLOCK("s"), SYSTEM_("s") USER_("a") OFF},
        {SAY(R"({"role":"developer","content":"s"},)" Q "," ASSISTANT("null") "," USER("null")),
         USER_("s\\nq") R"({"role": "assistant", "content": ""})"
                        "\n" USER_("") OFF},
        {SAY(Q "," ASSISTANT(R"(["a",{"type":"thinking"},{"type":"text","text":null}])") "," Q),
         USER_("q") R"({"role": "assistant", "content": "a\n"})"
                    "\n" USER_("q") OFF},
        {SAY(Q "," ASSISTANT(R"([{"type":"tool_use","id":"t1","name":"f","input":"{}"}])") "," USER(
             "[" GIVE(R"(,"content":"r")") "]")),
         USER_("q") R"({"role": "assistant", "content": "", "tool_calls": [{"id": "t1", "type": )"
                    R"("function", "function": {"name": "f", "arguments": {}}}]})"
                    "\n" RESULT("r") OFF},
        /* calls and results */
        {SAY(Q "," ASSISTANT("[" TEXT_BLOCK("a") "," USE "]") "," USER(
             "[" GIVE(R"(,"content":"r")") "," TEXT_BLOCK("well") "]")),
         USER_("q") CALLED("a") RESULT("r") USER_("well") OFF},
        {SAY(Q "," ASSISTANT("[" USE "]") "," USER(
             "[" GIVE(R"(,"content":[)" TEXT_BLOCK("r") "," TEXT_BLOCK("s") "]") "]")),
         USER_("q") CALLED("") RESULT("rs") OFF},
        {SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE(
             R"(,"content":[)" TEXT_BLOCK("r") R"(,{"type":"video"},)" TEXT_BLOCK("s") "]") "]")),
         USER_("q") CALLED("") RESULT("r\\n[video: left out, this model reads only text]\\ns") OFF},
        {SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE("") "]")),
         USER_("q") CALLED("") RESULT("") OFF},
        {SAY(Q "," ASSISTANT("[" USE "]") "," USER(
             "[" GIVE(R"(,"is_error":true,"content":"no file")") "]")),
         USER_("q") CALLED("") RESULT("Error: no file") OFF},
        {SAY(Q "," ASSISTANT("[" USE "]") "," USER(
             "[" GIVE(R"(,"is_error":true,"content":"An ERROR.")") "]")),
         USER_("q") CALLED("") RESULT("An ERROR.") OFF},
        {SAY(Q "," ASSISTANT("[" USE "]") "," USER(
             "[" GIVE(R"(,"content":[{"type":"image","source":{"type":"base64"}}])") "]")),
         USER_("q") CALLED("") RESULT("(An image or file, which this model cannot see.)") OFF},
        {SAY(USER("[" PDF "]") "," ASSISTANT(R"("a")") "," Q),
         USER_("(An image or file, which this model cannot see.)") R"({"role": "assistant", )"
                                                                   R"("content": "a"})"
                                                                   "\n" USER_("q") OFF},
        {SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE(R"(,"content":"r")") "," PDF "]")),
         USER_("q") CALLED("") RESULT("r") USER_("(An image or file, which this model cannot see.)")
             OFF},
        /* results are in the order of the calls, in whatever order the client sends them */
        {SAY(Q "," ASSISTANT("[" USE R"(,{"type":"tool_use","id":"t2","name":"g","input":{}})"
                             "]") "," USER("[" TEXT_BLOCK("x") R"(,{"type":"tool_result",)"
                                                               R"("tool_use_)"
                                                               R"(id":"t2","content":"2"})"
                                                               "," GIVE(R"(,"content":"1")") "]")),
         USER_("q") R"({"role": "assistant", "content": "", "tool_calls": [{"id": )"
                    R"("t1", "type": "function", "function": {"name": "f", )"
                    R"("arguments": {"x": [1]}}}, {"id": "t2", "type": "function", )"
                    R"("function": {"name": "g", "arguments": {}}}]})"
                    "\n" RESULT("1") R"({"role": "tool", "content": "2", "name": "g", )"
                                     R"("tool_call_id": )"
                                     R"("t2"})"
                                     "\n" USER_("x") OFF},
        /* text beside a result is no question of the user */
        {SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE(R"(,"content":"r")") "," TEXT_BLOCK(
             "<system-reminder>be</system-reminder>") "]")),
         USER_("q") CALLED("") RESULT("r\\n<system-reminder>be</system-reminder>") OFF},
        {SAY(Q "," ASSISTANT("[" USE "]") "," USER(
             "[" GIVE(R"(,"content":"r")") "]") R"(,{"role":"system","content":"be"},)" Q),
         USER_("q") CALLED("") RESULT("r\\n<system-reminder>\\nbe\\n</system-reminder>") USER_("q")
             OFF},
        /* thoughts */
        {SAY(Q "," ASSISTANT(R"([{"type":"thinking","thinking":"h","signature":"s"},{"type":")"
                             R"(redacted_thinking","data":"x"},)" TEXT_BLOCK("a") "]") "," Q),
         USER_("q") R"({"role": "assistant", "content": "a", "reasoning_content": )"
                    R"("h"})"
                    "\n" USER_("q") OFF},
        {SAY(Q "," ASSISTANT(
             R"([{"type":"thinking","thinking":"","signature":"weft1.SG0="},)" TEXT_BLOCK(
                 "a") "]") "," Q),
         USER_("q") R"({"role": "assistant", "content": "a", "reasoning_content": )"
                    R"("Hm"})"
                    "\n" USER_("q") OFF},
        /* documents */
        {SAY(USER(R"([{"type":"document","title":"T","context":"C","source":{"type":"text",")"
                  R"(media_type":"text/plain","data":"d"}}])")),
         USER_("<document>\\n<title>T</title>\\n<context>C</context>\\nd\\n</document>") OFF},
        {SAY(USER(R"([{"type":"document","source":{"type":"content",)"
                  R"("content":[)" TEXT_BLOCK("d") "]}}]")),
         USER_("<document>\\nd\\n</document>") OFF},
        {SAY(USER(R"([{"type":"search_result","source":"u","title":"T","content":[)" TEXT_BLOCK(
             "d") "]}]")),
         USER_("<search_result>\\n<title>T</title>\\n<source>u</source>\\nd\\n</search_result>")
             OFF},
    };
    struct world w;

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_prompt(&w, table[i].fields, table[i].prompt);
    world_stop(&w);
}

Test(anthropic_input, thinking_is_what_the_client_asks_for) {
    const struct {
        const char *fields, *prompt;
    } table[] = {
        {SAY(Q) R"(,"thinking":null)", USER_("q") OFF},
        {SAY(Q) R"(,"thinking":{"type":"disabled"})", USER_("q") OFF},
        {SAY(Q) R"(,"thinking":{"type":"adaptive"})", USER_("q") "TrueTrue>"},
        {SAY(Q) R"(,"thinking":{"type":"enabled","budget_tokens":1024})", USER_("q") "TrueTrue>"},
        {SAY(Q) R"(,"chat_template_kwargs":{"thinking":true,"reasoning_effort":"odd"})",
         USER_("q") "FalseTrueodd>"},
        {SAY(Q) R"(,"output_config":{"effort":"xhigh"})", USER_("q") "FalseFalsehigh>"},
        {SAY(Q) R"(,"output_config":{"effort":"low"})", USER_("q") "FalseFalselow>"},
    };
    struct world w;

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_prompt(&w, table[i].fields, table[i].prompt);
    world_stop(&w);
}

#define TOOL R"({"name":"f","description":"D","input_schema":{"type":"object"}})"
#define TOOL_                                                                                      \
    R"({"type": "function", "function": {"name": "f", "description": "D", )"                       \
    R"("parameters": {"type": "object"}}})"

Test(anthropic_input, tools_that_can_be_called_are_offered) {
    const struct {
        const char *fields, *prompt;
    } table[] = {
        {SAY(Q) R"(,"tools":[)" TOOL "]", USER_("q") "[" TOOL_ "]" OFF},
        {SAY(Q) R"(,"tools":[{"type":"custom","cache_control":{},)"
                R"("name":"g","input_schema":{"a":1}})"
                "]",
         USER_("q") R"([{"type": "function", "function": {"name": "g", "parameters": )"
                    R"({"a": 1}}}])" OFF},
        {SAY(Q) R"(,"tools":[{"type":"web_search_20250305","name":"web_search"},)" TOOL "]",
         USER_("q") "[" TOOL_ "]" OFF},
        {SAY(Q) R"(,"tools":[{"type":"code_execution_20250825","name":"code_execution"}])",
         USER_("q") OFF},
        {SAY(Q) R"(,"tools":[)" TOOL R"(],"tool_choice":{"type":"none"})", USER_("q") OFF},
    };
    struct world w;
    CLEANUP(buf_deinit) struct buf prompt = {.max = 1 << 20};

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_prompt(&w, table[i].fields, table[i].prompt);
    serve(&w,
          SAY(Q) R"(,"tools":[{"type":"bash_20250124","name":"bash"},)"
                 R"({"type":"text_editor_20250728")"
                 R"(,"name":"str_replace_based_edit_tool"},{"type":"memory_20250818","name":")"
                 R"(memory"},{"type":"computer_20251124","name":"computer",)"
                 R"("display_width_px":1024,)"
                 R"("display_height_px":768}])",
          &prompt);
    cr_expect(strstr(prompt.data, R"("name": "bash")") && strstr(prompt.data, R"("restart")"));
    cr_expect(strstr(prompt.data, R"("str_replace_based_edit_tool")") &&
              strstr(prompt.data, R"("view_range")"));
    cr_expect(strstr(prompt.data, R"("memory")") && strstr(prompt.data, R"("new_path")"));
    cr_expect(strstr(prompt.data, R"("computer")") && strstr(prompt.data, R"("left_click_drag")") &&
              strstr(prompt.data, "The display has 1024 x 768 pixels."));
    world_stop(&w);
}

/* Tools that a client adds later do not change the beginning of the prompt. */
Test(anthropic_input, tools_may_be_told_of_later) {
#define LATER(name)                                                                                \
    R"({"name":")" name R"(","description":"D","input_schema":{"type":"object"},)"                 \
    R"("defer_loading":true})"
#define SHOWN(name)                                                                                \
    R"(<functions>\n<function>{\"description\":\"D\",\"name\":\")" name                            \
    R"(\",\"parameters\":{\"type\":\"object\"}}</function>\n</functions>)"
#define NOW(blocks) R"({"role":"system","content":[)" blocks "]}"
    const struct {
        const char *fields, *prompt;
    } table[] = {
        {SAY(Q) R"(,"tools":[)" LATER("g") "," TOOL "," LATER("h") "]",
         USER_("q") "[" TOOL_ "]" OFF},
        {SAY(Q) R"(,"tools":[)" LATER("g") "]", USER_("q") OFF},
        /* a search without tools to find */
        {SAY(Q) R"(,"tools":[{"type":"tool_search_tool_bm25_20251119","name":"tool_search_tool_)"
                R"(bm25"},)" TOOL "]",
         USER_("q") "[" TOOL_ "]" OFF},
        {SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE(
             R"(,"content":[{"type":"tool_reference","tool_name":"g"},)"
             R"({"type":"tool_reference","tool_)"
             R"(name":"gone"},{"type":"tool_reference","tool_name":"f"},{"type":"tool_reference",")"
             R"(tool_name":"g"}])") "]")) R"(,"tools":[)" TOOL "," LATER("g") "]",
         USER_("q") CALLED("") RESULT(SHOWN("g") "\\ngone\\nf\\ng") "[" TOOL_ "]" OFF},
        {SAY(Q "," NOW(
             R"({"type":"tool_addition","tool":{"type":"tool_definition","definition":)" LATER(
                 "g") R"(}},{"type":"tool_removal","tool":{"type":"tool_reference","name":"f"})"
                      "}")) R"(,"tools":[)" TOOL "]",
         USER_("q\\nThis function can now be called as well:\\n" SHOWN(
             "g") "\\nThe function f can no longer be called.") "[" TOOL_ "]" OFF},
        {SAY(Q R"(,{"role":"system","content":"a","clear_at":"next_user_message"},)" Q
               R"(,{"role":"system","content":"b","clear_at":"next_user_message"},)"
               R"({"role":"system",)"
               R"("output_config":{"effort":"low"}})"),
         USER_("q\\nq\\nb") OFF},
    };
    struct world w;

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_prompt(&w, table[i].fields, table[i].prompt);
    world_stop(&w);
}

Test(anthropic_input, the_billing_line_never_reaches_the_model) {
#define BILL(nonce) "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch=" nonce ";"
    const char *const fields[] = {
        SAY(Q) R"(,"system":[)" TEXT_BLOCK(BILL("a1")) "," TEXT_BLOCK("You are.") "]",
        SAY(Q) R"(,"system":[)" TEXT_BLOCK(BILL("b2") "\\nYou are.") "]",
        SAY(Q) R"(,"system":")" BILL("c3") R"(\nYou are.")",
        SAY(Q) R"(,"system":"You are.")",
    };
    struct world w;

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        expect_prompt(&w, fields[i], SYSTEM_("You are.") USER_("q") OFF);
    expect_prompt(&w, SAY(Q) R"(,"system":")" BILL("d") R"(")", USER_("q") OFF);
    /* in other places it is text */
    expect_prompt(&w, SAY(Q) R"(,"system":"A )" BILL("e") R"(")",
                  SYSTEM_("A " BILL("e")) USER_("q") OFF);
    world_stop(&w);
}

/* ---- continued texts ---- */

static uint32_t count_id(const struct fake_request *r, int32_t id) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < r->m.n_prompt; i++)
        n += r->m.tokens[i] == id;
    return n;
}

Test(anthropic_input, the_answer_continues_the_last_message) {
    struct world w;
    CLEANUP(buf_deinit) struct buf prompt = {.max = 1 << 20};

    started(&w);
    expect_prompt(&w, SAY(Q "," ASSISTANT(R"("It is")")), USER_("q") OFF "It is");
    expect_prompt(&w, SAY(Q "," ASSISTANT("[" TEXT_BLOCK("a") "," TEXT_BLOCK("b") "]")),
                  USER_("q") OFF "a\nb");
    expect_prompt(&w, SAY(Q "," ASSISTANT(R"("")")), USER_("q") OFF);
    /* text of the client stays text */
    struct fake_request *r = serve(&w, SAY(Q "," ASSISTANT(R"("<|im_end|> x")")), &prompt);
    cr_expect_eq(count_id(r, TINY_END), 0);
    /* the text is no reasoning */
    serve(&w, SAY(Q "," ASSISTANT(R"("It is")")) R"(,"chat_template_kwargs":{"think_first":true})",
          &prompt);
    cr_expect_str_eq(prompt.data, USER_("q") OFF "<think>\n</think>\n\nIt is");
    world_stop(&w);
}

/* ---- submits ---- */

Test(anthropic_input, parameters_reach_the_worker) {
    struct world w;
    CLEANUP(buf_deinit) struct buf prompt = {.max = 1 << 20};

    started(&w);
    struct fake_request *r =
        serve(&w,
              SAY(Q) R"(,"temperature":0.5,"top_p":0.25,"top_k":7,"stop_sequences":["ab","c"],")"
                     R"(seed":9,"min_p":0.125,"metadata":{"user_id":"u"},"service_tier":"auto",")"
                     R"(container":"c","mcp_servers":[],)"
                     R"("context_management":{"edits":[]},"n":99)",
              &prompt);
    cr_expect_eq(r->m.sampling.temperature, 0.5f);
    cr_expect_eq(r->m.sampling.top_p, 0.25f);
    cr_expect_eq(r->m.sampling.top_k, 7);
    cr_expect_eq(r->m.sampling.min_p, 0.125f);
    cr_expect_eq(r->m.seed, 9);
    cr_expect_eq(r->m.max_new, 20);
    uint64_t session = r->m.session;
    cr_expect_neq(session, 0);
    r = serve(&w, SAY(USER(R"("other")")) R"(,"metadata":{"user_id":"u"})", &prompt);
    cr_expect_eq(r->m.session, session);
    r = serve(&w, SAY(USER(R"("other")")) R"(,"metadata":{"user_id":"v"})", &prompt);
    cr_expect_neq(r->m.session, session);
    world_stop(&w);
}

/* Asserts that the worker gets the same constraint as for the chat, or that both requests are
 * refused. */
static void expect_forced(struct world *w, const char *fields, const char *chat) {
    struct reply r, theirs;
    char body[2000];
    uint32_t i = w->port.n;

    snprintf(body, sizeof(body), R"({"model":"claude-x","max_tokens":20,%s})", fields);
    w->port.script = "ok";
    world_ask(w, MESSAGES, body, &r);
    world_ask(w, CHAT, chat, &theirs);
    cr_expect_eq(r.status, theirs.status, "%s: %s", body, text_of(&r.body));
    reply_deinit(&r);
    reply_deinit(&theirs);
    if (w->port.n == i)
        return;
    const struct fake_request *a = &w->port.r[i], *b = &w->port.r[i + 1];
    cr_expect(*a->grammar || *a->triggers, "%s forces nothing", fields);
    cr_expect_str_eq(a->grammar, b->grammar);
    cr_expect_str_eq(a->triggers, b->triggers);
}

Test(anthropic_input, choices_and_schemas_are_forced) {
#define CHAT_TOOLS                                                                                 \
    R"("tools":[{"type":"function","function":{"name":"f","description":"D",)"                     \
    R"("parameters":{"type":"object"}}}])"
#define SCHEMA R"({"type":"object","properties":{"a":{"type":"integer"}}})"
    struct world w;

    started(&w);
    expect_forced(&w, SAY(Q) R"(,"tools":[)" TOOL R"(],"tool_choice":{"type":"any"})",
                  "{" SAY(Q) "," CHAT_TOOLS R"(,"tool_choice":"required"})");
    expect_forced(&w, SAY(Q) R"(,"tools":[)" TOOL R"(],"tool_choice":{"type":"tool","name":"f"})",
                  "{" SAY(Q) "," CHAT_TOOLS
                             R"(,"tool_choice":{"type":"function","function":{"name":"f"}}})");
    /* in the forms of the other APIs */
    expect_forced(&w,
                  SAY(Q) R"(,"tool_choice":"any","tools":[{"type":"function","name":"f",)"
                         R"("description":"D","parameters":{"type":"object"}}])",
                  "{" SAY(Q) "," CHAT_TOOLS R"(,"tool_choice":"required"})");
    expect_forced(&w,
                  SAY(Q) "," CHAT_TOOLS R"(,"tool_choice":{"type":"function","function":{)"
                         R"("name":"f"}})",
                  "{" SAY(Q) "," CHAT_TOOLS
                             R"(,"tool_choice":{"type":"function","function":{"name":"f"}}})");
    expect_forced(&w,
                  SAY(Q) R"(,"tools":[{"name":"f","description":"D","parameters":{)"
                         R"("type":"object"}}],"tool_choice":{"type":"required"})",
                  "{" SAY(Q) "," CHAT_TOOLS R"(,"tool_choice":"required"})");
    expect_forced(
        &w, SAY(Q) R"(,"output_config":{"format":{"type":"json_schema","schema":)" SCHEMA "}}",
        "{" SAY(Q) R"(,"response_format":{"type":"json_schema",)"
                   R"("json_schema":{"name":"x","schema":)" SCHEMA "}}}");
#define STRICT R"("parameters":{"type":"object"},"strict":true)"
    expect_forced(
        &w, SAY(Q) R"(,"tools":[{"name":"f","strict":true,"input_schema":{"type":"object"}}])",
        "{" SAY(Q) R"(,"tools":[{"type":"function","function":{"name":"f",)" STRICT "}}]}");
    world_stop(&w);
}

Test(anthropic_input, a_count_is_the_usage) {
    const char *const bodies[] = {
        SAY(Q),
        SAY(Q) R"(,"system":"s","tools":[)" TOOL "]",
        SAY(Q "," ASSISTANT(R"("It is")")),
        SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE(R"(,"content":"r")") "]")),
    };
    struct world w;
    struct reply r;
    char body[1000], want[80];
    CLEANUP(buf_deinit) struct buf prompt = {.max = 1 << 20};

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
        uint32_t n = serve(&w, bodies[i], &prompt)->m.n_prompt;

        snprintf(body, sizeof(body), R"({"model":"claude",%s})", bodies[i]);
        world_ask(&w, COUNT, body, &r);
        snprintf(want, sizeof(want), R"({"input_tokens":%u})", n);
        cr_expect_eq(r.status, 200);
        cr_expect_str_eq(text_of(&r.body), want);
        reply_deinit(&r);
    }
    world_stop(&w);
}

/* ---- refusals ---- */

#define WITH(fields) R"({"model":"claude","max_tokens":9,)" fields "}"

struct bad_field {
    const char *body, *message;
};

static void refuse_all(const struct bad_field *table, size_t n) {
    struct world w;
    struct reply r;
    char needle[300];

    started(&w);
    for (size_t i = 0; i < n; i++) {
        world_ask(&w, MESSAGES, table[i].body, &r);
        snprintf(needle, sizeof(needle),
                 R"({"type":"error","error":{"type":"invalid_request_error","message":"%s)",
                 table[i].message);
        cr_expect_eq(r.status, 400, "%s: %d", table[i].body, r.status);
        cr_expect_eq(strncmp(text_of(&r.body), needle, strlen(needle)), 0, "%s: %s is not about %s",
                     table[i].body, text_of(&r.body), table[i].message);
        reply_deinit(&r);
    }
    cr_expect_eq(w.port.n, 0);
    world_stop(&w);
}

/* ---- histories of other services ---- */

#define SERVER_CALL(name, args)                                                                    \
    R"({"role": "assistant", "content": "", "tool_calls": [{"id": "s1", "type": )"                 \
    R"("function", "function": {"name": ")" name R"(", "arguments": )" args "}}]}\n"
#define SERVER_RESULT(name, text)                                                                  \
    R"({"role": "tool", "content": ")" text R"(", "name": ")" name R"(", "tool_call_id": "s1"})"   \
    "\n"
#define ASSISTANT_(text)                                                                           \
    R"({"role": "assistant", "content": ")" text R"("})"                                           \
    "\n"
#define GAVE(type, content) R"({"type":")" type R"(","tool_use_id":"s1","content":)" content "}"

/* A call has one result, in the next message of the user. */
Test(anthropic_input, calls_and_results_belong_together) {
    const struct bad_field table[] = {
        {WITH(SAY(USER("[" GIVE("") "]"))),
         "messages.0.content.0.tool_result.tool_use_id: must be the id"},
        {WITH(SAY(Q "," ASSISTANT("[" USE "]") "," Q)), "messages.1: has tool_use blocks without"},
        {WITH(SAY(Q "," ASSISTANT("[" USE "]") "," Q
                                               "," ASSISTANT(R"("a")") "," USER("[" GIVE("") "]"))),
         "messages.1: has tool_use blocks without"},
        {WITH(SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE("") "," GIVE("") "]"))),
         "messages.2.content.1.tool_result.tool_use_id: must be the id"},
        {WITH(SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE("") "]") "," ASSISTANT(
             R"("a")") "," USER("[" GIVE("") "]"))),
         "messages.4.content.0.tool_result.tool_use_id: must be the id"},
    };
    const char *const right[] = {
        SAY(Q "," ASSISTANT("[" USE "]") "," ASSISTANT(R"("a")") "," USER("[" GIVE("") "]")),
        SAY(Q "," ASSISTANT("[" USE "]") "," USER(R"("a")") "," USER("[" GIVE("") "]")),
        SAY(Q "," ASSISTANT("[" USE R"(,{"type":"compaction","content":"s"}])") "," Q),
    };
    CLEANUP(buf_deinit) struct buf prompt = {.max = 1 << 20};
    struct world w;

    refuse_all(table, ARRAY_SIZE(table));
    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(right); i++)
        serve(&w, right[i], &prompt);
    world_stop(&w);
}

Test(anthropic_input, blocks_of_other_services_are_read) {
    const struct {
        const char *name, *blocks, *result;
    } tools[] = {
        {"web_search",
         GAVE("web_search_tool_result",
              R"([{"type":"web_search_result","title":"t","url":"u","encrypted_content":"x"}])"),
         "t\\nu"},
        {"web_search",
         GAVE("web_search_tool_result",
              R"({"type":"web_search_tool_result_error","error_code":"unavailable"})"),
         "unavailable"},
        {"web_fetch",
         GAVE("web_fetch_tool_result", R"({"type":"web_fetch_result","url":"u","content":{"type":")"
                                       R"(document","source":{"type":"text","data":"d"}}})"),
         "u\\nd"},
        {"code_execution",
         GAVE("code_execution_tool_result", R"({"type":"code_execution_result","stdout":"o",")"
                                            R"(stderr":"e","return_code":0,"content":[]})"),
         "o\\ne"},
        {"bash_code_execution",
         GAVE("bash_code_execution_tool_result",
              R"({"type":"bash_code_execution_result","stdout":"o"})"),
         "o"},
        {"text_editor_code_execution",
         GAVE("text_editor_code_execution_tool_result",
              R"({"type":"text_editor_code_execution_view_result","content":"v"})"),
         "v"},
        {"advisor", GAVE("advisor_tool_result", R"({"type":"advisor_result","text":"a"})"), "a"},
        {"tool_search_tool_bm25",
         GAVE("tool_search_tool_result",
              R"({"type":"tool_search_tool_search_result","tool_references":[{"type":"tool_)"
              R"(reference","tool_name":"n"}]})"),
         "n"},
    };
    struct world w;
    char fields[1200], want[1200];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(tools); i++) {
        snprintf(fields, sizeof(fields),
                 R"("messages":[)" Q R"(,{"role":"assistant","content":[{"type":)"
                 R"("server_tool_use","id":"s1","name":"%s","input":{"q":1}},%s,)" TEXT_BLOCK(
                     "so") "]}," Q "]",
                 tools[i].name, tools[i].blocks);
        snprintf(want, sizeof(want),
                 USER_("q") SERVER_CALL("%s", R"({"q": 1})") SERVER_RESULT("%s", "%s")
                     ASSISTANT_("so") USER_("q") OFF,
                 tools[i].name, tools[i].result, tools[i].name);
        expect_prompt(&w, fields, want);
    }
    world_stop(&w);
}

Test(anthropic_input, a_block_of_any_type_is_read) {
    const struct {
        const char *fields, *prompt;
    } table[] = {
        {SAY(Q "," ASSISTANT(
             R"([{"type":"mcp_tool_use","id":"s1","server_name":"loom","name":"twist","input":{}})"
             "," GAVE("mcp_tool_result", "[" TEXT_BLOCK("r") "]") "]")),
         USER_("q") SERVER_CALL("loom__twist", "{}") SERVER_RESULT("loom__twist", "r") OFF},
        /* a turn that a service paused */
        {SAY(Q "," ASSISTANT(
             R"([{"type":"server_tool_use","id":"s1","name":"web_search","input":{}}])")),
         USER_("q") SERVER_CALL("web_search", "{}")
             SERVER_RESULT("web_search", "This tool cannot be run here.") OFF},
        {SAY(Q "," ASSISTANT(
             R"([{"type":"server_tool_use","id":"s1","name":"web_search","input":7}])")),
         USER_("q") SERVER_CALL("web_search", "{}")
             SERVER_RESULT("web_search", "This tool cannot be run here.") OFF},
        {SAY(USER(R"([{"type":"document","source":{"type":"content","content":"c"}}])")),
         USER_("<document>\\nc\\n</document>") OFF},
        {SAY(USER(R"([{"type":"document","source":{"type":"content","content":[)" TEXT_BLOCK(
             "a") "," TEXT_BLOCK("b\\n") "," TEXT_BLOCK("c") "]}}]")),
         USER_("<document>\\na\\nb\\nc\\n</document>") OFF},
        /* a summary replaces the messages before it */
        {SAY(Q "," ASSISTANT(R"("old")") "," Q "," ASSISTANT(
             R"([{"type":"compaction",)"
             R"("content":"S"},)" TEXT_BLOCK("new") "]") "," Q) R"(,"system":"s")",
         SYSTEM_("s") USER_("Summary of the conversation until here:\\n\\nS") ASSISTANT_("new")
             USER_("q") OFF},
        {SAY(Q "," ASSISTANT(R"([{"type":"compaction",)"
                             R"("content":null},)" TEXT_BLOCK("a") "]") "," Q),
         USER_("q") ASSISTANT_("a") USER_("q") OFF},
        {SAY(Q "," ASSISTANT(R"([{"type":"fallback",)"
                             R"("from":{},"to":{}},)" TEXT_BLOCK("a") "]") "," Q),
         USER_("q") ASSISTANT_("a") USER_("q") OFF},
        {SAY(Q "," ASSISTANT(R"([{"type":"of_next_year","content":"c"}])") "," Q),
         USER_("q") ASSISTANT_("c") USER_("q") OFF},
        {SAY(Q "," ASSISTANT(R"([{"type":"of_next_year"}])") "," Q),
         USER_("q") ASSISTANT_("[of_next_year: left out, this model cannot see it]") USER_("q")
             OFF},
        {SAY(USER(R"([{"type":"container_upload","file_id":"f"}])")),
         USER_("[container_upload: left out, this model reads only text]") OFF},
        {SAY(Q
             "," ASSISTANT("[" USE "]") "," USER("[" GIVE(","
                                                          R"("content":[{"type":"video"}])") "]")),
         USER_("q") CALLED("") RESULT("[video: left out, this model reads only text]") OFF},
    };
    struct world w;

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++)
        expect_prompt(&w, table[i].fields, table[i].prompt);
    world_stop(&w);
}

/* An agent cannot take back what its tool has said, in whatever form. */
Test(anthropic_input, no_result_is_refused) {
    static const char *const rows[][2] = {
        {R"({"t":[1,"a,b"]})", R"({"t": [1, "a,b"]})"},
        {"7", "7"},
        {R"(["a","b"])", R"(["a", "b"])"},
        {R"([{"text":"a"}])", R"([{"text": "a"}])"},
        {R"([{"type":"text","text":"a"},"b",{"type":"text"},5])", "ab5"},
        {R"({"type":"text","text":"a"})", "a"},
        {R"([{"type":"text","text":"a"},{"type":"row","n":1}])", "a\n"
                                                                 R"({"type": "row", "n": 1})"},
        {R"([{"type":"document"}])", "[document: left out, this model reads only text]"},
        {"null", ""},
    };
    struct world w;
    char fields[600], want[600];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        snprintf(fields, sizeof(fields),
                 SAY(Q "," ASSISTANT("[" USE "]") "," USER("[" GIVE(R"(,"content":%s)") "]")),
                 rows[i][0]);
        yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
        char *text = yyjson_mut_val_write(yyjson_mut_str(doc, rows[i][1]), 0, NULL);
        snprintf(want, sizeof(want), USER_("q") CALLED("") RESULT_OF("%s") OFF, text);
        expect_prompt(&w, fields, want);
        free(text);
        yyjson_mut_doc_free(doc);
    }
    world_stop(&w);
}

Test(anthropic_input, what_is_wrong_with_messages_is_named) {
    const struct bad_field table[] = {
        {"{}", "model: Field required."},
        {R"({"model":7})", "model: must be a string without NUL."},
        {R"({"model":"claude"})", "max_tokens: Field required."},
        {R"({"model":"claude","max_tokens":0})", "messages: Field required."},
        {R"({"model":"claude","max_tokens":-1})", "max_tokens: must be a whole number, 0 or more."},
        {R"({"model":"claude","max_tokens":1.5})", "max_tokens: must be"},
        {R"({"model":"claude","max_tokens":1})", "messages: Field required."},
        {WITH(R"("messages":[])"), "messages: must be an array"},
        {WITH(R"("messages":"x")"), "messages: must be an array"},
        {WITH(R"("messages":[1])"), "messages.0: must be an object."},
        {WITH(SAY(Q R"(,{"role":"tool","content":""})")), "messages.1.role: must be user"},
        {WITH(SAY(R"({"role":"user"})")), "messages.0.content: must be"},
        {WITH(SAY(USER("[1]"))), "messages.0.content.0: must be a content block."},
        {WITH(SAY(USER("[{}]"))), "messages.0.content.0.type: must be a string."},
        {WITH(SAY(USER(R"([{"type":"text"}])"))), "messages.0.content.0.text: must be a string."},
        {WITH(SAY(USER("[" TEXT_BLOCK("a") R"(,{"type":"image","source":{"type":"base64"}}])"))),
         "messages.0.content.1.image.source.data is not supported: this model reads only text."},
        {WITH(SAY(USER(R"([{"type":"document","source":{"type":"base64"}}])"))),
         "messages.0.content.0.document.source.type is not supported"},
        {WITH(SAY(USER(R"([{"type":"document"}])"))),
         "messages.0.content.0.document.source: must be"},
        {WITH(SAY(USER(R"([{"type":"document","source":{"type":"text"}}])"))),
         "messages.0.content.0.document.source.data: must be a string."},
        {WITH(SAY(USER(
             R"([{"type":"document","source":{"type":"content","content":[{"type":"image"}]}}])"))),
         "messages.0.content.0.document.source.content.0.type: is not supported"},
        {WITH(SAY(USER(R"([{"type":"hologram"}])"))), "messages.0.content.0.type: is not"},
        {WITH(SAY(USER(R"([{"type":"tool_result"}])"))),
         "messages.0.content.0.tool_result.tool_use_id: must be a string."},
        {WITH(SAY(USER("[" GIVE(R"(,"content":[{"type":"tool_reference"}])") "]"))),
         "messages.0.content.0.tool_result.content.0.tool_name: must be"},
        {WITH(SAY(Q "," ASSISTANT(R"([{"type":"server_tool_use"}])"))),
         "messages.1.content.0.id: must be a string."},
        {WITH(SAY(Q "," ASSISTANT(R"([{"type":"mcp_tool_result"}])"))),
         "messages.1.content.0.tool_use_id: must be a string."},
        {WITH(SAY(Q "," ASSISTANT(R"([{"type":"tool_use"}])"))), "messages.1.content.0.id: must"},
        {WITH(SAY(Q "," ASSISTANT(R"([{"type":"tool_use","id":"a"}])"))),
         "messages.1.content.0.name: must"},
        {WITH(SAY(Q "," ASSISTANT("[" USE "]"))),
         "messages.1: must not be the last one: its calls have no results."},
        {WITH(SAY(Q "," ASSISTANT(R"([{"type":"thinking","thinking":7}])"))),
         "messages.1.content.0.thinking: must be a string."},
        {WITH(SAY(Q "," ASSISTANT(R"([{"type":"thinking","thinking":"","signature":"weft1.*"}])"))),
         "messages.1.content.0.signature: was not written by this server; send it back as it "
         "was received."},
        {WITH(SAY(Q "," ASSISTANT(R"([{"type":"text","text":7}])"))),
         "messages.1.content.0.text: must be a string."},
        {WITH(SAY(Q R"(,{"role":"system","content":7})")),
         "messages.1.content: must be a string or an array of content blocks."},
        {WITH(SAY(USER(R"([{"type":"image","source":{"type":"file","file_id":"f"}}])"))),
         "messages.0.content.0.image.source.type: must be base64: send the picture itself."},
        {WITH(SAY(USER(R"([{"type":"document","source":{"type":"content","content":7}}])"))),
         "messages.0.content.0.document.source.content: must be a string or an array of text "
         "blocks."},
        {WITH(SAY(ASSISTANT(R"("a")"))), "messages: must contain a message with the role user."},
    };

    refuse_all(table, ARRAY_SIZE(table));
}

Test(anthropic_input, every_bad_field_is_named) {
    const struct bad_field table[] = {
        {WITH(SAY(Q) R"(,"system":7)"), "system: must be a string or an array of text blocks."},
        {WITH(SAY(Q) R"(,"system":[{"type":"image"}])"), "system.0.type: is not supported"},
        {WITH(SAY(Q) R"(,"system":[{"type":"text"}])"), "system.0.text: must be a string."},
        {WITH(SAY(Q) R"(,"stop_sequences":"x")"), "stop_sequences: must be an array"},
        {WITH(SAY(Q) R"(,"stop_sequences":[""])"), "stop_sequences: must hold strings of 1 to"},
        {WITH(SAY(Q) R"(,"temperature":"x")"), "temperature: must be a number"},
        {WITH(SAY(Q) R"(,"temperature":-0.5)"), "temperature: must be a number from 0 to 1."},
        {WITH(SAY(Q) R"(,"temperature":1.5)"), "temperature: must be a number from 0 to 1."},
        {WITH(SAY(Q) R"(,"stop_sequences":["a"," \n"])"), "stop_sequences: must hold strings"},
        {WITH(SAY(Q) R"(,"thinking":{"type":"enabled"})"), "thinking.budget_tokens: must be given"},
        {WITH(SAY(Q) R"(,"stream":1)"), "stream must be a boolean."},
        {WITH(SAY(Q) R"(,"metadata":1)"), "metadata: must be an object."},
        {WITH(SAY(Q) R"(,"metadata":{"user_id":1})"), "metadata.user_id: must be a string"},
        {WITH(SAY(Q) R"(,"thinking":true)"), "thinking: must be an object with a type."},
        {WITH(SAY(Q) R"(,"thinking":{"type":"on"})"),
         "thinking.type: must be enabled, adaptive or disabled."},
        {WITH(SAY(Q) R"(,"thinking":{"type":"enabled","budget_tokens":0})"),
         "thinking.budget_tokens: must be a whole number"},
        {WITH(SAY(Q) R"(,"chat_template_kwargs":1)"), "chat_template_kwargs: must be an object."},
        {WITH(SAY(Q) R"(,"output_config":1)"), "output_config: must be an object."},
        {WITH(SAY(Q) R"(,"output_config":{"effort":"x"})"), "output_config.effort: must be"},
        {WITH(SAY(Q) R"(,"output_config":{"format":{"type":"text"}})"),
         "output_config.format.type: must be"},
        {WITH(SAY(Q) R"(,"output_config":{"format":{"type":"json_schema"}})"),
         "output_config.format.schema: must be an object."},
        {WITH(SAY(Q) R"(,"tools":{})"), "tools: must be an array"},
        {WITH(SAY(Q) R"(,"tools":[1])"), "tools.0: must be an object."},
        {WITH(SAY(Q) R"(,"tools":[{"name":"f","input_schema":{}},{"name":"f","input_schema":{}}])"),
         "tools.1.name: is the name of an earlier tool."},
        {WITH(SAY(Q) R"(,"tools":[{"type":"bash_20250124","name":"bash"},)"
                     R"({"type":"bash_20250124","name":"bash"}])"),
         "tools.1.name: is the name of an earlier tool."},
        {WITH(SAY(Q) R"(,"tools":[{"type":1}])"), "tools.0.type: must be a string."},
        {WITH(SAY(Q) R"(,"tools":[{"name":"g","input_schema":{},"strict":"true"}])"),
         "tools.0.strict: must be a boolean."},
        {WITH(SAY(Q) R"(,"tools":[)" TOOL ",{}]"), "tools.1.name: must be a string"},
        {WITH(SAY(Q) R"(,"tools":[{"name":"g"}])"), "tools.0.input_schema: must be an object."},
        {WITH(SAY(Q) R"(,"tools":[{"name":"g","description":1,"input_schema":{}}])"),
         "tools.0.description: must be a string."},
        {WITH(SAY(Q) R"(,"tools":[{"type":"function","name":"f","parameters":[{}]}])"),
         "tools.0.input_schema: must be an object."},
        {WITH(SAY(Q) R"(,"tool_choice":"some")"), "tool_choice.type: must be"},
        {WITH(SAY(Q) R"(,"tool_choice":{"type":"any"})"), "tool_choice.type: needs tools"},
        {WITH(SAY(Q) R"(,"tools":[)" TOOL R"(],"tool_choice":{"type":"tool"})"),
         "tool_choice.name: must be a string."},
        {WITH(SAY(Q) R"(,"tools":[)" TOOL R"(],"tool_choice":{"type":"tool","name":"g"})"),
         "tool_choice.name: is not a tool of this request"},
        {WITH(SAY(Q) R"(,"tools":[{"type":"web_search_20250305",)"
                     R"("name":"web_search"}],"tool_choice")"
                     R"(:{"type":"tool","name":"web_search"})"),
         "tools: hold a web search alone, which is not available here."},
        {WITH(SAY(Q) R"(,"tool_choice":{"type":"auto","disable_parallel_tool_use":1})"),
         "tool_choice.disable_parallel_tool_use: must be a boolean."},
        {WITH(SAY(Q "," NOW(R"({"type":"image"})"))), "messages.1.content.0.type: is not"},
        {WITH(SAY(Q "," NOW(R"({"type":"tool_addition"})"))),
         "messages.1.content.0.tool: must be a reference"},
        {WITH(SAY(Q "," NOW(R"({"type":"tool_addition","tool":{"definition":{"name":"g"}}})"))),
         "messages.1.content.0.tool.definition.input_schema: must be an object."},
        {WITH(SAY(Q) R"(,"thread":{"type":"create"})"),
         "thread: this server stores no conversations; send all "
         R"(messages.","details":{"error_code":"thread_unsupported_request",)"
         R"("unsupported":["thread")"
         "]}}"},
        {WITH(SAY(Q) R"(,"max_tokens":8)"), "max_tokens: is given twice."},
        {WITH(SAY(Q) R"(,"tools":[],"tools":[])"), "tools: is given twice."},
        {WITH(SAY(Q) R"(,"seed":1,"seed":1)"), "seed: is given twice."},
        {"[]", "The request body must be a JSON object."},
    };

    refuse_all(table, ARRAY_SIZE(table));
}

/* ---- limits ---- */

/* Asserts that a request with @n elements is served, and one with one more is refused. In @element
 * %u is its number. */
static void expect_most(struct world *w, const char *begin, const char *element, uint32_t n,
                        const char *end, const char *message) {
    for (uint32_t more = 0; more <= 1; more++) {
        CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
        struct reply r;

        buf_printf(&body, R"({"model":"claude","max_tokens":9,%s)", begin);
        for (uint32_t i = 0; i < n + more; i++) {
            buf_add_str(&body, i ? "," : "");
            buf_printf(&body, element, i);
        }
        buf_printf(&body, "%s}", end);
        world_ask(w, MESSAGES, body.data, &r);
        cr_expect_eq(r.status, more ? 400 : 200, "%u of %s: %s", n + more, element,
                     text_of(&r.body));
        cr_expect(!more || strstr(text_of(&r.body), message), "%s", text_of(&r.body));
        reply_deinit(&r);
    }
}

Test(anthropic_input, lists_have_limits) {
    struct world w;

    started(&w);
    w.model.max_context = 1 << 20;
    w.port.script = "ok";
    expect_most(&w, SAY(Q) R"(,"tools":[)", R"({"name":"f%u","input_schema":{}})", 1024, "]",
                R"("tools: must be an array of at most 1024 tools.")");
    expect_most(&w, SAY(Q) R"(,"stop_sequences":[)", R"("s%u")", 16, "]",
                R"("stop_sequences: must be an array of at most 16 strings.")");
    expect_most(&w, R"("tools":[)" TOOL R"(],"messages":[)" Q R"(,{"role":"system","content":[)",
                R"({"type":"tool_addition","tool":{"definition":)"
                R"({"name":"g%u","input_schema":{}}}})",
                1023, "]}]", "tool: exceeds the 1024 tools that a request may have.");
    world_stop(&w);
}

/* Asserts that the field is served with a string of @n bytes, and refused with one more. */
static void expect_longest(struct world *w, const char *begin, uint32_t n, const char *end,
                           const char *message) {
    for (uint32_t more = 0; more <= 1; more++) {
        CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
        struct reply r;

        buf_printf(&body, R"({"model":"claude","max_tokens":9,%s")", begin);
        for (uint32_t i = 0; i < n + more; i++)
            buf_add_char(&body, 'n');
        buf_printf(&body, R"("%s})", end);
        world_ask(w, MESSAGES, body.data, &r);
        cr_expect_eq(r.status, more ? 400 : 200, "%s: %s", begin, text_of(&r.body));
        cr_expect(!more || strstr(text_of(&r.body), message), "%s", text_of(&r.body));
        reply_deinit(&r);
    }
}

Test(anthropic_input, strings_have_limits) {
    struct world w;

    started(&w);
    w.port.script = "ok";
    expect_longest(&w, SAY(Q) R"(,"stop_sequences":[)", 256, "]",
                   R"("stop_sequences: must hold strings of 1 to 256 bytes.")");
    expect_longest(&w, SAY(Q) R"(,"metadata":{"user_id":)", 4096, "}",
                   R"("metadata.user_id: must be a string of at most 4096 bytes.")");
    expect_longest(&w, SAY(Q) R"(,"tools":[{"input_schema":{},"name":)", 256, "}]",
                   R"("tools.0.name: must be a string of 1 to 256 bytes without NUL.")");
    world_stop(&w);
}

Test(anthropic_input, numbers_have_limits) {
    static const struct {
        const char *body;
        int status;
    } row[] = {
        {R"({"model":"claude","max_tokens":2147483647,)" SAY(Q) "}", 200},
        {R"({"model":"claude","max_tokens":2147483648,)" SAY(Q) "}", 400},
        {WITH(SAY(Q) R"(,"temperature":1)"), 200},
        {WITH(SAY(Q) R"(,"temperature":0)"), 200},
        {WITH(SAY(Q) R"(,"metadata":{})"), 200},
        {WITH(SAY(Q) R"(,"thinking":{"type":"enabled","budget_tokens":1})"), 200},
        {WITH(SAY(Q) R"(,"thinking":{"type":"enabled","budget_tokens":2147483647})"), 200},
        {WITH(SAY(Q) R"(,"thinking":{"type":"enabled","budget_tokens":2147483648})"), 400},
    };
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "ok";
    for (size_t i = 0; i < ARRAY_SIZE(row); i++) {
        world_ask(&w, MESSAGES, row[i].body, &r);
        cr_expect_eq(r.status, row[i].status, "%s: %s", row[i].body, text_of(&r.body));
        reply_deinit(&r);
    }
    world_stop(&w);
}

/* Results are matched with the first 128 calls of a turn; behind more calls any result is taken. */
Test(anthropic_input, results_of_many_calls_are_matched) {
    struct world w;

    started(&w);
    w.model.max_context = 1 << 20;
    w.port.script = "ok";
    for (uint32_t n = 128; n <= 129; n++) {
        CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
        struct reply r;

        buf_printf(&body, R"({"model":"claude","max_tokens":9,"messages":[)" Q
                          R"(,{"role":"assistant","content":[)");
        for (uint32_t i = 0; i < n; i++)
            buf_printf(&body, R"(%s{"type":"tool_use","id":"t%u","name":"f","input":{}})",
                       i ? "," : "", i);
        buf_printf(&body, R"(]},{"role":"user","content":[)");
        for (uint32_t i = 0; i < n; i++)
            buf_printf(&body, R"({"type":"tool_result","tool_use_id":"t%u"},)", i);
        buf_printf(&body, R"({"type":"tool_result","tool_use_id":"other"}]}]})");
        world_ask(&w, MESSAGES, body.data, &r);
        cr_expect_eq(r.status, n > 128 ? 200 : 400, "%u: %s", n, text_of(&r.body));
        cr_expect(n > 128 ||
                      strstr(text_of(&r.body), "messages.2.content.128.tool_result.tool_use_id"),
                  "%s", text_of(&r.body));
        reply_deinit(&r);
    }
    world_stop(&w);
}
