/*
 * The tokens computed ahead of a chat's next turn must be the beginning of that turn's prompt,
 * whatever the template makes of the model's output. Here a byte is a token, and the next turn is
 * sent as a client sends it, with the message that it received.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "api/parts.h"
#include "stream.h"
#include "tiny.h"

#define FIND                                                                                       \
    R"("tools":[{"type":"function","function":{"name":"find","description":"D.",)"                 \
    R"("parameters":{"type":"object","properties":{"pattern":{"type":"string"}}}}}])"
#define ASKED R"({"role":"user","content":"How many are there?"})"
#define BEFORE(thought)                                                                            \
    R"({"role":"user","content":"First."},{"role":"assistant","content":"Ok.)"                     \
    R"(")" thought "},"

enum next { QUESTION, RESULT };

static void prepare(struct world *w, const char *source, size_t len) {
    world_init(w);
    if (source)
        world_use_template(w, source, len);
    w->model.n_vocab = TINY_ALL;
    w->model.max_context = 16384;
    w->opts.prewarm = true;
    w->opts.max_stored = 10;
    w->opts.stored_bytes = 1 << 20;
    w->opts.stored_ttl_s = 1000;
}

static void start(struct world *w, const char *source, size_t len) {
    prepare(w, source, len);
    world_start(w);
}

static void until_idle(struct world *w) {
    while (w->api->env.prewarm.n > 0)
        world_turn(w);
}

static int32_t written[4000]; /* the last turn's output */
static uint32_t n_written;

/* Runs one turn. Its answer is in @r; returns the number of the request in the port. */
static uint32_t turn(struct world *w, const char *path, const char *body, const char *output,
                     struct reply *r) {
    uint32_t i = w->port.n;
    int fd = world_connect(w);
    struct tokens t = {0};

    cr_assert_eq(
        tokenizer_encode(w->model.tokenizer, output, strlen(output), TOKENIZE_SPECIAL, NULL, 0, &t),
        0);
    n_written = (uint32_t)t.n;
    memcpy(written, t.id, t.n * sizeof(*t.id));
    tokens_deinit(&t);
    world_post(w, fd, path, body);
    while (w->port.n == i)
        world_turn(w);
    fake_accept(&w->port, i);
    fake_ids(&w->port, i, written, n_written);
    fake_finish(&w->port, i, FINISH_STOP);
    world_receive(w, fd, r);
    cr_assert_eq(r->status, 200, "%s", r->body.data);
    world_drop(w, fd);
    return i;
}

static const struct fake_request *prewarm_of(struct world *w, uint32_t i) {
    until_idle(w);
    if (w->port.n == i + 1)
        return NULL;
    cr_assert_eq(w->port.n, i + 2);
    const struct fake_request *f = &w->port.r[i + 1];
    cr_expect_eq(f->m.flags, SUBMIT_PREWARM);
    cr_expect_eq(f->m.group, w->port.r[i].id);
    cr_expect_eq(f->m.session, w->port.r[i].m.session);
    cr_expect_arr_eq(f->m.isolation_key, w->port.r[i].m.isolation_key, 16);
    return f;
}

/* Returns the body of the next request: the earlier messages, the received one, and the new one. */
static char *next_body(const char *before, const struct reply *r, bool thoughts, enum next next,
                       const char *text) {
    yyjson_doc *doc = yyjson_read(r->body.data, r->body.len, 0);
    yyjson_mut_doc *m = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *message =
        yyjson_val_mut_copy(m, yyjson_ptr_get(yyjson_doc_get_root(doc), "/choices/0/message"));
    const char *id = yyjson_get_str(
        yyjson_ptr_get(yyjson_doc_get_root(doc), "/choices/0/message/tool_calls/0/id"));
    char *out = malloc(20000);

    cr_assert(message && (next == QUESTION || id), "%s", r->body.data);
    if (!thoughts) {
        yyjson_mut_obj_remove_key(message, "reasoning_content");
        yyjson_mut_obj_remove_key(message, "reasoning");
    }
    char *said = yyjson_mut_val_write(message, 0, NULL);
    int n = snprintf(out, 20000, R"({"messages":[%s)" ASKED ",%s,", before, said);
    if (next == RESULT)
        snprintf(out + n, 20000 - (size_t)n,
                 R"({"role":"tool","tool_call_id":"%s","content":"%s"}],)" FIND "}", id, text);
    else
        snprintf(out + n, 20000 - (size_t)n, R"({"role":"user","content":"%s"}],)" FIND "}", text);
    free(said);
    yyjson_doc_free(doc);
    yyjson_mut_doc_free(m);
    return out;
}

static uint32_t common(const int32_t *a, uint32_t n_a, const int32_t *b, uint32_t n_b) {
    uint32_t i = 0;

    while (i < MIN(n_a, n_b) && a[i] == b[i])
        i++;
    return i;
}

/* Returns the number of tokens that the next turn does not compute because of the prewarm, beyond
 * those of the turn itself. */
static uint32_t gain(struct world *w, const char *before, const char *output, bool thoughts,
                     enum next next, const char *name) {
    static const char *const texts[] = {"Go on.", "\\n", "123", " x", "<tool_call>", ""};
    struct reply r;
    char body[4000];

    snprintf(body, sizeof(body), R"({"messages":[%s)" ASKED "]," FIND "}", before);
    uint32_t i = turn(w, CHAT, body, output, &r);
    const struct fake_request *f = prewarm_of(w, i);
    uint32_t at = i + 1 + (f != NULL), best = 0, n_held = w->port.r[i].m.n_prompt;
    CLEANUP(freep) int32_t *ids = malloc((n_held + n_written) * sizeof(*ids));
    memcpy(ids, w->port.r[i].tokens, n_held * sizeof(*ids));
    memcpy(ids + n_held, written, n_written * sizeof(*ids));
    n_held += n_written;
    for (size_t k = 0; k < ARRAY_SIZE(texts); k++) {
        struct reply other;
        CLEANUP(freep) char *more = next_body(before, &r, thoughts, next, texts[k]);

        w->api->env.opts.prewarm = false;
        uint32_t j = turn(w, CHAT, more, "x", &other);
        w->api->env.opts.prewarm = true;
        cr_assert_eq(j, at + k);
        reply_deinit(&other);
        const struct fake_request *n = &w->port.r[j];
        uint32_t held = common(n->tokens, n->m.n_prompt, ids, n_held);
        if (!f)
            continue;
        cr_expect_eq(common(n->tokens, n->m.n_prompt, f->tokens, f->m.n_prompt), f->m.n_prompt,
                     "%s, %s: %u of %u tokens are certain", name, texts[k],
                     common(n->tokens, n->m.n_prompt, f->tokens, f->m.n_prompt), f->m.n_prompt);
        cr_expect_gt(f->m.n_prompt / 16, held / 16, "%s: %u, %u held", name, f->m.n_prompt, held);
        best = MAX(best, f->m.n_prompt - held);
    }
    reply_deinit(&r);
    return best;
}

#define THOUGHT "Let me see, this is a question about how many of them there really are."

static const struct {
    const char *template, *output;
    enum next next;
    bool gains;
} rows[] = {
    {"Qwen-Qwen3-0.6B", "<think>\n" THOUGHT "\n</think>\n\nThere are three of them.", QUESTION,
     true},
    {"Qwen-Qwen3-0.6B",
     "<think>\n" THOUGHT "\n</think>\n\n<tool_call>\n{\"name\": \"find\", \"arguments\": "
     R"({"pattern":"three"}})"
     "\n</tool_call>",
     RESULT, true},
    {"Qwen-Qwen3-0.6B",
     "<think>\n" THOUGHT "\n</think>\n\n<tool_call>\n{\"name\": \"find\", \"arguments\": "
     "{\"pattern\":\"three\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"find\", "
     R"("arguments": {"pattern":"four"}})"
     "\n</tool_call>",
     RESULT, true},
    {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", THOUGHT "\n</think>\n\nThere are three of them.",
     QUESTION, true},
    {"llama-cpp-deepseek-r1", THOUGHT "\n</think>\n\nThere are three of them.", QUESTION, true},
    {"deepseek-ai-DeepSeek-V3.1", THOUGHT "</think>There are three of them.", QUESTION, true},
    {"meta-llama-Llama-3.1-8B-Instruct", R"({"name":"find","parameters":{"pattern":"three"}})",
     RESULT, true},
    {"meta-llama-Llama-3.3-70B-Instruct", "There are three of them.", QUESTION, false},
    {"Qwen3-Coder",
     "<tool_call>\n<function=find>\n<parameter=pattern>three</parameter>\n</function>\n</"
     "tool_call>",
     RESULT, true},
    {"GLM-4.6",
     "\n<think>" THOUGHT
     "</think>\n\n<tool_call>find\n<arg_key>pattern</arg_key>\n<arg_value>three</arg_value>\n"
     "</tool_call>",
     RESULT, true},
    {"mistralai-Mistral-Nemo-Instruct-2407",
     R"([TOOL_CALLS][{"name":"find","arguments":{"pattern":"three"},"id":"abcdefghi"}])", RESULT,
     true},
    {"mistralai-Mistral-Nemo-Instruct-2407", "There are three of them.", QUESTION, true},
    {"openai-gpt-oss-120b",
     "<|channel|>analysis<|message|>" THOUGHT
     "<|end|><|start|>assistant<|channel|>final<|message|>There are three of them.",
     QUESTION, true},
};

Test(prewarm, what_is_computed_ahead_begins_the_next_prompt) {
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct world w;
        size_t len;
        CLEANUP(freep) char *source = world_template(rows[i].template, &len);

        start(&w, source, len);
        uint32_t n = gain(&w, "", rows[i].output, false, rows[i].next, rows[i].template);
        cr_expect_eq(n > 0, rows[i].gains, "%zu %s: %u", i, rows[i].template, n);
        if (getenv("WEFT_TEST_LOG"))
            printf("# %s %u\n", rows[i].template, n);
        world_stop(&w);
    }
}

/* A loop of calls whose reasoning is in the prompts, and then an answer: the user's next question
 * removes all reasoning. */
#define SEEN                                                                                       \
    R"({"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/)"             \
    "png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+"                     \
    R"(M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="}},{"type":"text","text":"What is it?"}]})"

/* The worker finds the pages of a picture by its digest, so the expected turn names it. */
Test(prewarm, a_turn_with_a_picture_is_computed_ahead) {
    struct reply r, other;
    struct world w;
    size_t len;
    CLEANUP(freep) char *source = world_template("Qwen-Qwen3-0.6B", &len);

    prepare(&w, source, len);
    world_see(&w);
    world_start(&w);
    uint32_t i = turn(&w, CHAT, R"({"messages":[)" SEEN "]}",
                      "<think>\n" THOUGHT "\n</think>\n\nThere are three of them.", &r);
    const struct fake_request *f = prewarm_of(&w, i);
    cr_assert(f);
    w.api->env.opts.prewarm = false;
    uint32_t j = turn(&w, CHAT,
                      R"({"messages":[)" SEEN R"(,{"role":"assistant","content":"There are three )"
                      R"(of them."},{"role":"user","content":"Go on."}]})",
                      "x", &other);
    const struct fake_request *n = &w.port.r[j];
    f = &w.port.r[i + 1];
    cr_expect_eq(common(n->tokens, n->m.n_prompt, f->tokens, f->m.n_prompt), f->m.n_prompt);
    cr_expect_gt(f->m.n_prompt, w.port.r[i].m.n_prompt);
    cr_assert_eq(f->m.n_pictures, 1);
    cr_assert_eq(n->m.n_pictures, 1);
    cr_expect_eq(memcmp(&f->pictures[0], &n->pictures[0], sizeof(n->pictures[0])), 0);
    reply_deinit(&r);
    reply_deinit(&other);
    world_stop(&w);
}

Test(prewarm, who_sends_reasoning_back_is_seen_in_what_he_sent) {
    static const char call[] =
        "<think>\n" THOUGHT "\n</think>\n\n<tool_call>\n{\"name\": \"find\", "
        R"("arguments": {"pattern": "three"}})"
        "\n</tool_call>";
    size_t len;
    CLEANUP(freep) char *source = world_template("Qwen-Qwen3-0.6B", &len);

    for (int back = 0; back < 2; back++) {
        struct world w;

        start(&w, source, len);
        const char *before = back ? BEFORE(R"(,"reasoning_content":")" THOUGHT R"(")") : BEFORE("");
        uint32_t n = gain(&w, before, call, back, RESULT, "Qwen3");
        cr_expect_eq(n > 0, !back, "with its reasoning it is what the model wrote: %u", n);
        world_stop(&w);
    }
}

/* ---- other protocols ---- */

#define THINKS(text) "<think>\n" THOUGHT "\n</think>\n\n" text
#define CALLS                                                                                      \
    "I "                                                                                           \
    "look.\n<tool_call>\n{\"name\":\"find\",\"arguments\":{\"pattern\":\"three\"}}\n</tool_call>"

/* Asserts that @next, the body of the turn after request @i, begins with the tokens computed
 * ahead. */
static void expect_ahead(struct world *w, uint32_t i, const char *path, const char *next) {
    const struct fake_request *f = prewarm_of(w, i);
    struct reply r;

    cr_assert(f, "%s", next);
    w->api->env.opts.prewarm = false;
    const struct fake_request *n = &w->port.r[turn(w, path, next, "x", &r)];
    w->api->env.opts.prewarm = true;
    cr_expect_eq(common(n->tokens, n->m.n_prompt, f->tokens, f->m.n_prompt), f->m.n_prompt, "%s",
                 next);
    reply_deinit(&r);
}

Test(prewarm, messages_with_blocks_come_back_as_they_were_sent) {
    static const char *const outputs[] = {THINKS("There are three of them."), THINKS(CALLS)};
    static const char head[] = R"({"max_tokens":500,"model":"tiny","tools":[{"name":"find",)"
                               R"("input_schema":{"type":"object","properties":{"pattern":{)"
                               R"("type":"string"}}}}],"messages":[)" ASKED;
    size_t len;
    CLEANUP(freep) char *source = world_template("Qwen-Qwen3-0.6B", &len);

    for (size_t k = 0; k < ARRAY_SIZE(outputs); k++) {
        struct world w;
        struct reply r;
        char body[8000], result[300] = R"("Go on.")";

        start(&w, source, len);
        snprintf(body, sizeof(body), "%s]}", head);
        uint32_t i = turn(&w, "/v1/messages", body, outputs[k], &r);
        yyjson_doc *doc = yyjson_read(r.body.data, r.body.len, 0);
        char *said = yyjson_val_write(yyjson_obj_get(yyjson_doc_get_root(doc), "content"), 0, NULL);
        const char *id = yyjson_get_str(yyjson_ptr_get(yyjson_doc_get_root(doc), "/content/2/id"));
        if (k == 1)
            snprintf(result, sizeof(result),
                     R"([{"type":"tool_result","tool_use_id":"%s","content":"7 of them"}])", id);
        snprintf(body, sizeof(body),
                 R"(%s,{"role":"assistant","content":%s},{"role":"user","content":%s}]})", head,
                 said, result);
        expect_ahead(&w, i, "/v1/messages", body);
        free(said);
        yyjson_doc_free(doc);
        reply_deinit(&r);
        world_stop(&w);
    }
}

Test(prewarm, responses_are_continued_with_what_was_kept) {
    static const char *const outputs[] = {THINKS("There are three of them."), THINKS(CALLS)};
    static const char tools[] = R"("tools":[{"type":"function","name":"find","parameters":{)"
                                R"("type":"object","properties":{"pattern":{"type":)"
                                R"("string"}}}}])";
    size_t len;
    CLEANUP(freep) char *source = world_template("Qwen-Qwen3-0.6B", &len);

    for (size_t k = 0; k < ARRAY_SIZE(outputs); k++) {
        struct world w;
        struct reply r;
        char body[4000], input[300] = R"("Go on.")";

        start(&w, source, len);
        snprintf(body, sizeof(body), R"({"input":"How many?",%s})", tools);
        uint32_t i = turn(&w, "/v1/responses", body, outputs[k], &r);
        yyjson_doc *doc = yyjson_read(r.body.data, r.body.len, 0);
        yyjson_val *root = yyjson_doc_get_root(doc);
        const char *id = yyjson_get_str(yyjson_obj_get(root, "id"));
        const char *call = yyjson_get_str(yyjson_ptr_get(root, "/output/2/call_id"));
        cr_assert(id && (k == 0 || call), "%s", r.body.data);
        if (k == 1)
            snprintf(input, sizeof(input),
                     R"([{"type":"function_call_output","call_id":"%s","output":"7"}])", call);
        snprintf(body, sizeof(body), R"({"previous_response_id":"%s","input":%s,%s})", id, input,
                 tools);
        expect_ahead(&w, i, "/v1/responses", body);
        yyjson_doc_free(doc);
        reply_deinit(&r);
        world_stop(&w);
    }
}

/* ---- turns without a prewarm ---- */

static const char strips[] =
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\n' + "
    "m.content }}<|im_end|>\n{%- endfor -%}{%- if add_generation_prompt "
    "-%}<|im_start|>assistant\n{%- endif -%}{% if false %} <think> </think> {% endif %}";

Test(prewarm, a_turn_without_a_next_one_computes_nothing_ahead) {
    static const struct {
        const char *body;
        enum finish_reason why;
        bool off, gone, queued, down, ahead;
    } cases[] = {
        {"{" HI "}", FINISH_STOP, .ahead = true},
        {"{" HI R"(,"stream":true})", FINISH_STOP, .ahead = true},
        {"{" HI "}", FINISH_STOP, .off = true},
        {"{" HI "}", FINISH_LENGTH, .ahead = false},
        {"{" HI R"(,"n":2})", FINISH_STOP, .ahead = false},
        {"{" HI R"(,"stream":true})", FINISH_STOP, .gone = true},
        {"{" HI "}", FINISH_STOP, .queued = true},
        {"{" HI R"(,"add_generation_prompt":false})", FINISH_STOP, .ahead = false},
        {R"({"messages":[{"role":"system","content":"No session."}]})", FINISH_STOP,
         .ahead = false},
    };
    struct world w;
    struct reply r;

    for (size_t k = 0; k < ARRAY_SIZE(cases); k++) {
        start(&w, strips, sizeof(strips) - 1);
        w.api->env.opts.prewarm = !cases[k].off;
        int fd = world_connect(&w);
        world_post(&w, fd, CHAT, cases[k].body);
        while (w.port.n == 0)
            world_turn(&w);
        uint32_t n = w.port.n;
        if (cases[k].gone) {
            fake_accept(&w.port, 0);
            world_drop(&w, fd);
            while (w.port.n_cancels == 0)
                world_turn(&w);
        } else {
            w.api->env.admit.n_queued += cases[k].queued;
            for (uint32_t i = 0; i < n; i++) {
                fake_accept(&w.port, i);
                fake_tokens(&w.port, i, THINKS("There are three of them."));
                fake_finish(&w.port, i, cases[k].why);
            }
            w.api->env.admit.n_queued -= cases[k].queued;
            world_receive(&w, fd, &r);
            reply_deinit(&r);
            world_drop(&w, fd);
        }
        until_idle(&w);
        cr_expect_eq(w.port.n, n + cases[k].ahead, "%zu", k);
        cr_expect_eq(w.api->env.prewarm.kept_bytes, 0, "%zu", k);
        struct api_stats s;
        api_stats(w.api, &s);
        cr_expect_eq(s.n_requests, 1, "it is no request");
        world_stop(&w);
    }
}

Test(prewarm, nothing_waits_for_what_is_computed_ahead) {
    struct world w;
    struct reply r;

    start(&w, strips, sizeof(strips) - 1);
    /* The worker refuses it, dies of it, or reports an error at its end. */
    for (int k = 0; k < 3; k++) {
        uint32_t n = w.port.n;
        int fd = world_connect(&w);

        world_post(&w, fd, CHAT, "{" HI "}");
        while (w.port.n == n)
            world_turn(&w);
        fake_accept(&w.port, n);
        fake_tokens(&w.port, n, THINKS("There are three of them."));
        fake_finish(&w.port, n, FINISH_STOP);
        w.port.n_again = k == 0;
        world_receive(&w, fd, &r);
        cr_expect_eq(r.status, 200);
        reply_deinit(&r);
        world_drop(&w, fd);
        until_idle(&w);
        cr_expect_eq(w.port.n, n + 1 + (k > 0));
        if (k == 1) {
            api_worker_down(api_first_model(w.api));
            api_worker_up(api_first_model(w.api), NULL);
            cr_expect_eq(w.port.r[n + 1].n_submits, 1, "it is not resumed");
        }
        if (k == 2)
            fake_finish(&w.port, n + 1, FINISH_LENGTH);
        cr_expect(!api_busy(w.api));
    }
    world_stop(&w);
}

/* Concurrent requests keep at most 32 MB of bodies; further ones have no prewarm. */
Test(prewarm, bodies_are_kept_within_a_limit) {
    enum { N = 36, BODY = 1000000 };
    struct world w;
    int fd[N];
    CLEANUP(freep) char *body = malloc(BODY + 1);

    prepare(&w, strips, sizeof(strips) - 1);
    w.opts.max_running = N;
    world_start(&w);
    memset(body, ' ', BODY);
    body[BODY] = 0;
    memcpy(body, "{" HI, strlen("{" HI));
    body[BODY - 1] = '}';
    for (uint32_t i = 0; i < N; i++) {
        fd[i] = world_connect(&w);
        world_post(&w, fd[i], CHAT, body);
        while (w.port.n == i)
            world_turn(&w);
        cr_expect_leq(w.api->env.prewarm.kept_bytes, 32u << 20);
    }
    cr_expect_geq(w.api->env.prewarm.kept_bytes, 31u << 20);
    for (uint32_t i = 0; i < N; i++)
        world_drop(&w, fd[i]);
    while (api_busy(w.api))
        world_turn(&w);
    cr_expect_eq(w.api->env.prewarm.kept_bytes, 0);
    world_stop(&w);
}

Test(prewarm, the_service_can_stop_while_it_works) {
    struct world w;
    struct reply r;

    start(&w, strips, sizeof(strips) - 1);
    turn(&w, CHAT, "{" HI "}", THINKS("There are three of them."), &r);
    reply_deinit(&r);
    world_stop(&w);
}
