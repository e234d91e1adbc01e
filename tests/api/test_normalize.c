/* Conversations in the orders that agents send, for templates that take fewer. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
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

#define M(role, content) "{\"role\":\"" role "\",\"content\":\"" content "\"}"
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
    becomes(
        "[" M("user", "a") ",{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"},"
                           "{\"type\":\"text\",\"text\":\"c\"}]}," M("user", "d") "]",
        TURNS,
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\","
        "\"text\":\"b\"},{\"type\":\"text\",\"text\":\"c\"},{\"type\":\"text\",\"text\":\"d\"}]}]");
}

#define CALL(id) "{\"id\":\"" id "\",\"function\":{\"name\":\"f\"}}"
#define RESULT(id) "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"r" id "\"}"
#define ASKS(content, calls)                                                                       \
    "{\"role\":\"assistant\",\"content\":\"" content "\",\"tool_calls\":[" calls "]}"

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

/* Each result would be taken for both, and one of them be lost. */
Test(bend, calls_that_share_an_id_stay_together) {
    static const char as_they_are[] =
        "[" ASKS("c", CALL("1") "," CALL("1")) "," RESULT("1") "," RESULT("2") "]";

    becomes(as_they_are, TURNS, as_they_are);
}

/* ---- templates as they are shipped ---- */

/* As Codex sends it. */
#define AGENT                                                                                      \
    "\"instructions\":\"I\",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":"     \
    "\"D\","                                                                                       \
    "\"parameters\":{\"type\":\"object\",\"properties\":{}}}],\"input\":[{\"role\":\"developer\"," \
    "\"content\":\"dev-one\"},{\"role\":\"user\",\"content\":\"env-two\"},{\"role\":\"user\","     \
    "\"content\":\"ask-three\"},{\"role\":\"assistant\",\"content\":\"said-four\"},{\"type\":"     \
    "\"function_call\",\"call_id\":\"abcdefgh1\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":"  \
    "\"function_call\",\"call_id\":\"abcdefgh2\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":"  \
    "\"function_call_output\",\"call_id\":\"abcdefgh1\",\"output\":\"out-five\"},{\"type\":"       \
    "\"function_call_output\",\"call_id\":\"abcdefgh2\",\"output\":\"out-six\"},{\"role\":"        \
    "\"assistant\",\"content\":\"said-seven\"},{\"role\":\"developer\",\"content\":\"dev-eight\"}" \
    ",{"                                                                                           \
    "\"role\":\"user\",\"content\":\"ask-nine\"}]"

static void use_template(struct world *w, const char *source, size_t len) {
    responses_init(w);
    world_use_template(w, source, len);
    world_start(w);
}

/* Messages that there are when one has @n calls, with their results in the reverse order. */
static size_t messages_of(uint32_t n) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    yyjson_doc *out = NULL;

    buf_add_str(&b, "[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[");
    for (uint32_t i = 0; i < n; i++)
        buf_printf(&b, "%s{\"id\":\"%u\"}", i ? "," : "", i);
    buf_add_str(&b, "]}");
    for (uint32_t i = n; i > 0; i--)
        buf_printf(&b, ",{\"role\":\"tool\",\"tool_call_id\":\"%u\"}", i - 1);
    buf_add_str(&b, "]");
    yyjson_doc *in = yyjson_read(b.data, b.len, 0);
    cr_assert_eq(normalize_messages(yyjson_doc_get_root(in), TURNS, &out), 0);
    size_t n_out = yyjson_arr_size(yyjson_doc_get_root(out));
    yyjson_doc_free(in);
    yyjson_doc_free(out);
    return n_out;
}

/* Each call looks for its result among all: what takes the square of their number is bounded. */
Test(bend, of_a_message_with_more_calls_than_agents_make_nothing_is_split) {
    cr_expect_eq(messages_of(256), 512);
    cr_expect_eq(messages_of(257), 258);
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
    /* Not said-four: what is said beside a call is left out by many. */
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

Test(real, reasoning_goes_back_by_the_name_that_the_template_has) {
    static const struct {
        const char *name, *want;
    } rows[] = {
        {"openai-gpt-oss-120b", "<|channel|>analysis<|message|>thought-one\n\nsaid-two<|end|>"},
        {"upstage-Solar-Open-100B", "<|think|>thought-one<|end|>"},
        {"Qwen-Qwen3-0.6B", "<think>\nthought-one\n</think>"},
    };
    static const char fields[] =
        "\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":\"D\",\"parameters\":{"
        "\"type\":\"object\",\"properties\":{}}}],\"input\":[{\"role\":\"user\",\"content\":"
        "\"hi\"},{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\","
        "\"text\":\"thought-one\"}]},{\"role\":\"assistant\",\"content\":\"said-two\"},{\"type\":"
        "\"function_call\",\"call_id\":\"abcdefgh1\",\"name\":\"f\",\"arguments\":\"{}\"},{"
        "\"type\":\"function_call_output\",\"call_id\":\"abcdefgh1\",\"output\":\"out-three\"}]";

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
