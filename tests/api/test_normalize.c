/* Conversations with the orders of messages that agents send, for templates that accept fewer
 * orders. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "api/generation/normalize.h"
#include "responses_support.h"

/* ---- what becomes of messages ---- */

static void becomes(const char *messages, unsigned how, const char *want) {
    yyjson_doc *in = yyjson_read(messages, strlen(messages), 0), *out = NULL;

    cr_assert(in, "%s", messages);
    cr_assert_eq(normalize_messages(yyjson_doc_get_root(in), how, &out), 0);
    char *text = yyjson_write(out, 0, NULL);
    cr_expect_str_eq(text, want);
    free(text);
    yyjson_doc_free(in);
    yyjson_doc_free(out);
}

#define M(role, content) R"({"role":")" role R"(","content":")" content R"("})"
#define ALL                                                                                        \
    "[" M("system", "S") "," M("developer", "D") "," M("user", "a") "," M("user", "b") "," M(      \
        "assistant", "c") "," M("assistant", "d") "," M("system", "L") "]"
#define TURNS (NORMALIZE_SYSTEM | NORMALIZE_TURNS)

Test(bend, one_system_message_and_turns_that_alternate) {
    becomes(ALL, NORMALIZE_SYSTEM,
            "[" M("system", "S") "," M("user", "D") "," M("user", "a") "," M("user", "b") "," M(
                "assistant", "c") "," M("assistant", "d") "," M("user", "L") "]");
    becomes(ALL, TURNS,
            "[" M("system", "S") "," M("user", "D\\n\\na\\n\\nb") "," M(
                "assistant", "c\\n\\nd") "," M("user", "L") "]");
    becomes(ALL, TURNS | NORMALIZE_NO_SYSTEM,
            "[" M("user", "S\\n\\nD\\n\\na\\n\\nb") "," M("assistant", "c\\n\\nd") "," M("user",
                                                                                         "L") "]");
    becomes("[]", TURNS, "[]");
}

Test(bend, parts_stay_parts) {
    becomes("[" M("user", "a") R"(,{"role":"user","content":[{"type":"text","text":"b"},)"
                               R"({"type":"text","text":"c"}]},)" M("user", "d") "]",
            TURNS,
            R"([{"role":"user","content":[{"type":"text","text":"a"},)"
            R"({"type":"text","text":"b"},{"type")"
            R"(:"text","text":"c"},{"type":"text","text":"d"}]}])");
}

#define CALL(id) R"({"id":")" id R"(","function":{"name":"f"}})"
#define RESULT(id) R"({"role":"tool","tool_call_id":")" id R"(","content":"r)" id R"("})"
#define ASKS(content, calls)                                                                       \
    R"({"role":"assistant","content":")" content R"(","tool_calls":[)" calls "]}"

Test(bend, calls_come_one_by_one_with_their_results) {
    becomes("[" ASKS("c", CALL("1") "," CALL("2")) "," RESULT("2") "," RESULT("1") "," M("user",
                                                                                         "u") "]",
            TURNS,
            "[" ASKS("c", CALL("1")) "," RESULT("1") "," ASKS("", CALL("2")) "," RESULT("2") "," M(
                "user", "u") "]");
    becomes("[" ASKS("c", CALL("1") "," CALL("2")) "," RESULT("1") "]", TURNS,
            "[" ASKS("c", CALL("1") "," CALL("2")) "," RESULT("1") "]");
    becomes("[" ASKS("c", CALL("1")) "," ASKS("d", CALL("2")) "]", TURNS,
            "[" ASKS("c", CALL("1")) "," ASKS("d", CALL("2")) "]");
}

Test(bend, a_turn_that_is_missing_is_added) {
    becomes("[" ASKS("c", CALL("1")) "," RESULT("1") "," M("user", "u") "]",
            TURNS | NORMALIZE_MISSING,
            "[" M("user", "") "," ASKS("c", CALL("1")) "," RESULT("1") "," M(
                "assistant", "Done.") "," M("user", "u") "]");
    becomes("[" M("system", "s") "," M("assistant", "a") "," M("user", "u") "]",
            TURNS | NORMALIZE_MISSING,
            "[" M("system", "s") "," M("user", "") "," M("assistant", "a") "," M("user", "u") "]");
}

/* Each result would be taken for both calls, and one of the results would be lost. */
Test(bend, calls_that_share_an_id_stay_together) {
    static const char as_they_are[] =
        "[" ASKS("c", CALL("1") "," CALL("1")) "," RESULT("1") "," RESULT("2") "]";

    becomes(as_they_are, TURNS, as_they_are);
}

#define ASKED(id, args) "{" id R"("function":{"name":"f")" args "}}"
#define GAVE(id) R"({"role":"tool")" id R"(,"content":"r"})"

Test(bend, arguments_become_objects) {
    const char *const rows[][2] = {
        {R"(,"arguments":{"a":1})", NULL},
        {R"(,"arguments":"{\"a\":1}")", NULL},
        {"", R"(,"arguments":{})"},
        {R"(,"arguments":null)", R"(,"arguments":{})"},
        {R"(,"arguments":"")", R"(,"arguments":{})"},
        {R"(,"arguments":"null")", R"(,"arguments":{})"},
        {R"(,"arguments":"[1]")", R"(,"arguments":{"arguments":"[1]"})"},
        {R"(,"arguments":"{\"a\": ")", R"(,"arguments":{"arguments":"{\"a\": "})"},
    };
    char from[300], to[300];

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const char *want = rows[i][1] ? rows[i][1] : rows[i][0];

        snprintf(from, sizeof(from), "[" ASKS("", ASKED(R"("id":"abcdefgh1",)", "%s")) "]",
                 rows[i][0]);
        snprintf(to, sizeof(to),
                 "[" ASKS("", R"({"function":{"name":"f"%s},)"
                              R"("id":"abcdefgh1"})") "]",
                 want);
        becomes(from, NORMALIZE_CALLS, to);
    }
}

/* Copies the ids that calls and results have after NORMALIZE_CALLS. Returns their number. */
static size_t ids_of(const char *messages, char ids[8][40]) {
    yyjson_doc *in = yyjson_read(messages, strlen(messages), 0), *out = NULL;
    yyjson_val *m, *call;
    size_t i, n, k, n_calls, found = 0;

    cr_assert(in, "%s", messages);
    cr_assert_eq(normalize_messages(yyjson_doc_get_root(in), NORMALIZE_CALLS, &out), 0);
    yyjson_arr_foreach(yyjson_doc_get_root(out), i, n, m) {
        yyjson_arr_foreach(yyjson_obj_get(m, "tool_calls"), k, n_calls, call)
            snprintf(ids[found++], 40, "%s", yyjson_get_str(yyjson_obj_get(call, "id")));
        if (yyjson_obj_get(m, "tool_call_id"))
            snprintf(ids[found++], 40, "%s", yyjson_get_str(yyjson_obj_get(m, "tool_call_id")));
    }
    yyjson_doc_free(in);
    yyjson_doc_free(out);
    return found;
}

Test(bend, results_keep_their_calls_under_new_ids) {
    static const char *const rows[] = {
        /* results in another order; without ids; the second without */
        "[" ASKS("",
                 CALL("call_1") "," CALL("call_2")) "," RESULT("call_1") "," RESULT("call_2") "]",
        "[" ASKS("", ASKED("", "") "," ASKED("", "")) "," GAVE("") "," GAVE("") "]",
        "[" ASKS("", CALL("call_1") "," CALL("call_2")) "," RESULT("call_1") "," GAVE("") "]",
    };
    char ids[8][40], other[8][40];

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        cr_assert_eq(ids_of(rows[i], ids), 4, "%s", rows[i]);
        cr_expect_str_eq(ids[0], ids[2], "%s", rows[i]);
        cr_expect_str_eq(ids[1], ids[3], "%s", rows[i]);
        cr_expect_str_neq(ids[0], ids[1], "%s", rows[i]);
        cr_expect(strlen(ids[0]) == 9 &&
                  strspn(ids[0], "0123456789abcdefghijklmnopqrstuvwxyzABCDEFG"
                                 "HIJKLMNOPQRSTUVWXYZ") == 9);
    }
    /* Earlier messages keep their ids as the conversation continues. */
    cr_assert_eq(ids_of("[" ASKS("", ASKED("", "")) "," GAVE("") "]", ids), 2);
    cr_assert_eq(
        ids_of("[" ASKS("", ASKED("", "")) "," GAVE("") "," ASKS("", ASKED("", "")) "]", other), 3);
    cr_expect_str_eq(ids[0], other[0]);
    cr_expect_str_neq(other[0], other[2]);
}

/* ---- templates as they are shipped ---- */

/* A conversation as Codex sends it. */
#define AGENT                                                                                      \
    R"("instructions":"I","tools":[{"type":"function","name":"f","description":)"                  \
    R"("D",)"                                                                                      \
    R"("parameters":{"type":"object","properties":{}}}],"input":[{"role":"developer",)"            \
    R"("content":"dev-one"},{"role":"user","content":"env-two"},{"role":"user",)"                  \
    R"("content":"ask-three"},{"role":"assistant","content":"said-four"},{"type":)"                \
    R"("function_call","call_id":"abcdefgh1","name":"f","arguments":"{}"},{"type":)"               \
    R"("function_call","call_id":"abcdefgh2","name":"f","arguments":"{}"},{"type":)"               \
    R"("function_call_output","call_id":"abcdefgh1","output":"out-five"},{"type":)"                \
    R"("function_call_output","call_id":"abcdefgh2","output":"out-six"},{"role":)"                 \
    R"("assistant","content":"said-seven"},{"role":"developer","content":"dev-eight"})"            \
    ",{"                                                                                           \
    R"("role":"user","content":"ask-nine"}])"

static void use_template(struct world *w, const char *source, size_t len) {
    responses_init(w);
    world_use_template(w, source, len);
    world_start(w);
}

/* Returns the number of messages after one with @n calls was split; the results are in reverse
 * order, and the last is that of @first. */
static size_t messages_of(uint32_t n, uint32_t first) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    yyjson_doc *out = NULL;

    buf_add_str(&b, R"([{"role":"assistant","content":"","tool_calls":[)");
    for (uint32_t i = 0; i < n; i++)
        buf_printf(&b, R"(%s{"id":"%u"})", i ? "," : "", i);
    buf_add_str(&b, "]}");
    for (uint32_t i = n; i > 1; i--)
        buf_printf(&b, R"(,{"role":"tool","tool_call_id":"%u"})", i - 1);
    buf_printf(&b, R"(,{"role":"tool","tool_call_id":"%u"}])", first);
    yyjson_doc *in = yyjson_read(b.data, b.len, 0);
    cr_assert_eq(normalize_messages(yyjson_doc_get_root(in), TURNS, &out), 0);
    size_t n_out = yyjson_arr_size(yyjson_doc_get_root(out));
    yyjson_doc_free(in);
    yyjson_doc_free(out);
    return n_out;
}

/* Each call searches its result among all, so work that grows with the square of their number is
 * bounded. */
Test(bend, of_a_message_with_more_calls_than_agents_make_nothing_is_split) {
    cr_expect_eq(messages_of(256, 0), 512);
    cr_expect_eq(messages_of(257, 0), 258);
}

/* A template that shows one call at a time would show it without its result. */
Test(bend, a_message_with_a_call_without_a_result_stays_whole) {
    cr_expect_eq(messages_of(2, 0), 4);
    cr_expect_eq(messages_of(2, 1), 3, "two results of one call");
    cr_expect_eq(messages_of(2, 7), 3, "a result of no call");
}

Test(real, every_template_takes_what_agents_send) {
    static const char *const names[] = {
        "Qwen-Qwen3-0.6B",
        "Qwen3-Coder",
        "Qwen3.5-4B",
        "meta-llama-Llama-3.1-8B-Instruct",
        "meta-llama-Llama-3.3-70B-Instruct",
        "Mistral-Small-3.2-24B-Instruct-2506",
        "mistralai-Mistral-Nemo-Instruct-2407",
        "google-gemma-2-2b-it",
        "google-gemma-4-31B-it",
        "openai-gpt-oss-120b",
        "deepseek-ai-DeepSeek-V3.1",
        "GLM-4.6",
        "Kimi-K2-Instruct",
        "MiniMax-M2",
        "HuggingFaceTB-SmolLM3-3B",
        "ibm-granite-granite-4.0",
        "Apertus-8B-Instruct",
    };
    /* "said-four" is missing, because many templates leave out text beside a call. */
    static const char *const said[] = {"dev-one", "env-two",    "ask-three", "out-five",
                                       "out-six", "said-seven", "dev-eight", "ask-nine"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        struct world w;
        struct reply r;
        size_t len;
        char *source = world_template(names[i], &len);

        use_template(&w, source, len);
        responses_ask(&w, AGENT, "x", &r);
        cr_expect_eq(r.status, 200, "%s: %s", names[i], r.body.data);
        for (size_t k = 0; r.status == 200 && k < ARRAY_SIZE(said); k++)
            cr_expect(strstr(responses_prompt(&w), said[k]), "%s: no %s: %s", names[i], said[k],
                      responses_prompt(&w));
        reply_deinit(&r);
        world_stop(&w);
        free(source);
    }
}

/* Tools of MCP servers: one that a template refused would end every conversation. */
Test(real, no_template_refuses_a_tool) {
    static const char *const names[] = {
        "ByteDance-Seed-OSS",
        "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
        "GigaChat3-10B-A1.8B",
        "NousResearch-Hermes-3-Llama-3.1-8B-tool_use",
        "Qwen3-Coder",
        "CohereForAI-c4ai-command-r-plus-tool_use",
        "GLM-4.6",
        "Apertus-8B-Instruct",
        "openai-gpt-oss-120b",
    };
    const char *const parameters[] = {
        "",
        R"(,"parameters":null)",
        R"(,"parameters":{})",
        R"(,"parameters":{"type":"object","properties":null,"required":null})",
        R"(,"parameters":{"anyOf":[{"type":"object","properties":{"a":{}}}]})",
        R"(,"parameters":{"type":"object","properties":{"a":true,)"
        R"("b":{"type":"array","items":true},)"
        R"("c":{"type":"string","description":null},"d":{"type":["string",)"
        R"("null"],"default":null},")"
        R"(e":{"type":"array","items":[{"type":"string"}]}}})",
        R"(,"parameters":{"type":"object","properties":{"a":{"type":"null"},)"
        R"("b":{"type":"date"},"c")"
        R"(:{"type":""},"d":{"type":["null"]}}})",
        R"(,"parameters":{"type":"object","properties":{"a":{"anyOf":[{"type":"string"},{"type":")"
        R"(null"}],"default":null},"b":{"$ref":"#/$defs/B"}}})",
        R"(,"parameters":{"type":"object","properties":{"a":{"type":"object"},)"
        R"("b":{"type":"array"},)"
        R"("c":{"type":"object","additionalProperties":false}}})",
        R"(,"parameters":{"type":"object","properties":{"a":{"description":["x"]},"b":{"type":")"
        R"(string","enum":null},"c":{"not":{}}}})",
        R"(,"parameters":{"type":"object","properties":{"type":{"type":"string"},"items":{"type":")"
        R"(array","items":{"type":["string","null"]}}}})",
    };
    char body[900];

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        struct world w;
        struct reply r;
        size_t len;
        char *source = world_template(names[i], &len);

        use_template(&w, source, len);
        for (size_t k = 0; k < ARRAY_SIZE(parameters); k++) {
            snprintf(
                body, sizeof(body),
                R"({"messages":[)" M("user", "hi") R"(],"tools":[{"type":"function","function":{)"
                                                   R"("name":"needle"%s}}]})",
                parameters[k]);
            world_ask(&w, "/v1/chat/completions/render", body, &r);
            cr_expect_eq(r.status, 200, "%s, %s: %s", names[i], parameters[k], r.body.data);
            cr_expect(strstr(r.body.data, "needle"), "%s: %s", names[i], r.body.data);
            reply_deinit(&r);
        }
        world_stop(&w);
        free(source);
    }
}

/* A user who interrupts, a summary that is requested after results, and a greeting. */
Test(real, no_template_misses_a_turn) {
    static const char *const names[] = {
        "Mistral-Small-3.2-24B-Instruct-2506",
        "mistralai-Mistral-Nemo-Instruct-2407",
        "google-gemma-2-2b-it",
        "google-gemma-4-31B-it",
        "Qwen3.5-4B",
        "meta-llama-Llama-3.1-8B-Instruct",
    };
    static const char *const bodies[] = {
        R"({"messages":[)" M("user", "hi") "," ASKS(
            "", R"({"id":"abcdefgh1","type":"function",)"
                R"("function":{"name":"f","arguments":"{}"})"
                "}") "," RESULT("abcdefgh1") "," M("user", "needle") "]}",
        R"({"messages":[)" M("system", "S") "," M("assistant", "hello") "," M("user",
                                                                              "needle") "]}",
    };

    for (size_t i = 0; i < ARRAY_SIZE(names) * ARRAY_SIZE(bodies); i++) {
        const char *name = names[i % ARRAY_SIZE(names)];
        struct world w;
        struct reply r;
        size_t len;
        char *source = world_template(name, &len);

        use_template(&w, source, len);
        world_ask(&w, "/v1/chat/completions/render", bodies[i / ARRAY_SIZE(names)], &r);
        cr_expect_eq(r.status, 200, "%s: %s", name, r.body.data);
        cr_expect(strstr(r.body.data, "needle"), "%s: %s", name, r.body.data);
        reply_deinit(&r);
        world_stop(&w);
        free(source);
    }
}

/* An agent cannot take a call back: arguments that were cut off, ids of another service or none,
 * as Ollama's clients send them. */
Test(real, no_template_refuses_a_call_of_the_past) {
    static const char *const names[] = {
        "Qwen3-Coder",
        "Qwen3.5-4B",
        "GLM-4.6",
        "MiniMax-M2",
        "ByteDance-Seed-OSS",
        "deepseek-ai-DeepSeek-V3.1",
        "deepseek-ai-DeepSeek-V4",
        "tencent-Hy3",
        "openbmb-MiniCPM5-1B",
        "poolside-Laguna-XS.2",
        "inclusionai-ling-3.0-flash",
        "Mistral-Small-3.2-24B-Instruct-2506",
        "mistralai-Mistral-Nemo-Instruct-2407",
        "google-gemma-4-31B-it",
        "unsloth-Apriel-1.5",
        "upstage-Solar-Open-100B",
        "Kimi-K2-Instruct",
    };
    const char *const args[] = {R"({\"needle\": )", "", "null", "[1]", "{}"};
    const char *const ids[][2] = {
        {R"("id":"call_1",)", R"("tool_call_id":"call_1",)"},
        {R"("id":"call_1",)", ""},
        {"", ""},
    };

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        struct world w;
        struct reply r;
        size_t len;
        char *source = world_template(names[i], &len), body[900];

        use_template(&w, source, len);
        for (size_t k = 0; k < ARRAY_SIZE(args) * ARRAY_SIZE(ids); k++) {
            const char *a = args[k % ARRAY_SIZE(args)];
            const char *const *id = ids[k / ARRAY_SIZE(args)];

            snprintf(body, sizeof(body),
                     R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant",)"
                     R"("content":null,"tool_calls":[{%s"type":"function","function":{)"
                     R"("name":"f","arguments":"%s"}}]},{"role":"tool",%s"content":)"
                     R"("result-one"}],"tools":[{"type":"function","function":{"name":)"
                     R"("f","description":"D","parameters":{"type":"object",)"
                     R"("properties":{}}}}]})",
                     id[0], a, id[1]);
            world_ask(&w, "/v1/chat/completions/render", body, &r);
            cr_expect_eq(r.status, 200, "%s, %s, %s: %s", names[i], a, id[0], r.body.data);
            cr_expect(r.status != 200 ||
                          (strstr(r.body.data, "result-one") &&
                           (*a != '{' || a[1] == '}' || strstr(r.body.data, "needle"))),
                      "%s, %s: %s", names[i], a, r.body.data);
            reply_deinit(&r);
        }
        world_stop(&w);
        free(source);
    }
}

Test(real, reasoning_goes_back_by_the_name_that_the_template_has) {
    static const struct {
        const char *name, *want;
    } rows[] = {
        {"openai-gpt-oss-120b", "<|channel|>analysis<|message|>thought-one\n\nsaid-two<|end|>"},
        {"upstage-Solar-Open-100B", "<|think|>thought-one<|end|>"},
        {"Qwen-Qwen3-0.6B", "<think>\nthought-one\n</think>"},
    };
    const char *fields =
        R"("tools":[{"type":"function","name":"f","description":"D",)"
        R"("parameters":{"type":"object",")"
        R"(properties":{}}}],"input":[{"role":"user","content":"hi"},)"
        R"({"type":"reasoning","summary":[])"
        R"(,"content":[{"type":"reasoning_text","text":"thought-one"}]},)"
        R"({"role":"assistant","content")"
        R"(:"said-two"},{"type":"function_call","call_id":"abcdefgh1",)"
        R"("name":"f","arguments":"{}"},{")"
        R"(type":"function_call_output","call_id":"abcdefgh1","output":"out-three"}])";

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct world w;
        struct reply r;
        size_t len;
        char *source = world_template(rows[i].name, &len);

        use_template(&w, source, len);
        responses_ask(&w, fields, "x", &r);
        cr_assert_eq(r.status, 200, "%s: %s", rows[i].name, r.body.data);
        cr_expect(strstr(responses_prompt(&w), rows[i].want), "%s: %s", rows[i].name,
                  responses_prompt(&w));
        reply_deinit(&r);
        world_stop(&w);
        free(source);
    }
}

Test(real, tools_are_a_text_where_the_template_joins_them_to_one) {
    static const char call[] =
        R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":)"
        R"(null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f",)"
        R"("arguments":"{\"x\": 1}"}}]},{"role":"tool","tool_call_id":"a",)"
        R"("content":"r"}]%s})";
    const char *tools = R"(,"tools":[{"type":"function","function":{"name":"f","description":")"
                        R"(needle","parameters":{"type":"object","properties":{}}}}])";
    struct world w;
    size_t len;
    char *source = world_template("fireworks-ai-llama-3-firefunction-v2", &len), body[900];

    use_template(&w, source, len);
    for (int i = 0; i < 2; i++) {
        struct reply r;

        snprintf(body, sizeof(body), call, i ? tools : "");
        world_ask(&w, "/v1/chat/completions/render", body, &r);
        cr_expect_eq(r.status, 200, "%s", r.body.data);
        cr_expect(strstr(r.body.data, i ? R"(JSON spec:\n[{\"type\":\"function\")"
                                        : "JSON spec:\\n\\nToday is "),
                  "%s", r.body.data);
        cr_expect_eq(!strstr(r.body.data, "needle"), !i, "%s", r.body.data);
        cr_expect(!i || strstr(r.body.data,
                               R"( functools[{\"name\": \"f\", \"arguments\": {\"x\": 1}}])"),
                  "%s", r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
    free(source);
}

/* SmolLM3 reads the tools as a list in a variable of its own, and writes no calls. */
Test(real, tools_are_in_the_variable_that_the_template_reads) {
    const char *body =
        R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,)"
        R"("tool_calls":[{"id":"a","type":"function",)"
        R"("function":{"name":"f","arguments":"{}"}}]},)"
        R"({"role":"tool","tool_call_id":"a","content":"r"}],"tools":[{"type":"function",)"
        R"("function":{"name":"f","parameters":{"type":"object","properties":{}}}}]})";
    struct world w;
    struct reply r;
    size_t len;
    char *source = world_template("HuggingFaceTB-SmolLM3-3B-xml-tools", &len);

    use_template(&w, source, len);
    world_ask(&w, "/v1/chat/completions/render", body, &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    cr_expect(strstr(r.body.data, "<tools>\\n{'type': 'function', 'function': {'name': 'f', "),
              "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"(<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n)"), "%s",
              r.body.data);
    reply_deinit(&r);
    world_stop(&w);
    free(source);
}
