/* Ollama's API: the requests that it makes, its lines, and its description of the model. */

#include <criterion/criterion.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "api/generation/model.h"
#include "api/parts.h"
#include "stream.h"
#include "tiny.h"

#define OCHAT "/api/chat"
#define OGEN "/api/generate"
#define ME R"("model":"tiny")"

static const char source[] =
    "{%- if tools -%}{%- for t in tools -%}{{ t.function.name }}{%- endfor -%}{%- endif -%}"
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{%- for c in m.tool_calls or [] -%}"
    "<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>"
    "{%- endfor -%}<|im_end|>\n{%- endfor -%}<|im_start|>assistant\n"
    "{%- if enable_thinking is defined and not enable_thinking -%}<think></think>{%- endif -%}";

static void started(struct world *w) {
    world_init(w);
    world_use_template(w, source, sizeof(source) - 1);
    w->model.max_context = 16384;
    w->model.n_params = 25829888;
    w->model.file = "tiny-q8_0.gguf";
    world_start(w);
}

/* Replaces times by X, except those that the worker measures. */
static void normalise(struct buf *b) {
    static const char *const keys[] = {R"("created_at":")", R"("total_duration":)",
                                       R"("load_duration":)", R"("id":")"};
    struct buf out = {.max = 1 << 20};

    for (size_t i = 0; i < b->len;) {
        size_t n = 0;

        for (size_t k = 0; k < ARRAY_SIZE(keys) && !n; k++)
            if (strncmp(b->data + i, keys[k], strlen(keys[k])) == 0)
                n = strlen(keys[k]);
        buf_add(&out, b->data + i, n ? n : 1);
        i += n ? n : 1;
        if (n) {
            buf_add_char(&out, 'X');
            while (i < b->len && (isalnum((unsigned char)b->data[i]) || strchr("-:._", b->data[i])))
                i++;
        }
    }
    buf_deinit(b);
    *b = out;
}

static void expect_body(struct reply *r, int status, const char *want) {
    normalise(&r->body);
    cr_expect_eq(r->status, status, "%d %s", r->status, r->body.data);
    cr_expect_str_eq(r->body.data ? r->body.data : "", want, "%s\nwanted\n%s", r->body.data, want);
    reply_deinit(r);
}

#define LINE(more) R"({"model":"tiny","created_at":"X",)" more "}\n"
#define SAID(text) LINE(R"("message":{"role":"assistant","content":")" text R"("},"done":false)")
#define FIGURES(why, n_prompt, n)                                                                  \
    R"("done":true,"done_reason":")" why                                                           \
    R"(","total_duration":X,"load_duration":X,"prompt_eval_count":)" n_prompt                      \
    R"(,"prompt_eval_duration":4000000,"eval_count":)" n R"(,"eval_duration":)" n "000000"

Test(ollama, a_chat_is_lines) {
    struct world w;
    struct reply r;
    char type[80];

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, OCHAT, "{" ME "," HI "}");
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "<think>a</think>Hi.");
    world_turns(&w, 4);
    fake_finish(&w.port, 0, FINISH_LENGTH);
    world_receive(&w, fd, &r);
    cr_expect_str_eq(reply_header(&r, "Content-Type", type, sizeof(type)), "application/x-ndjson");
    expect_body(
        &r, 200,
        LINE(R"("message":{"role":"assistant","content":"","thinking":"a"},)"
             R"("done":false)") SAID("Hi.")
            LINE(R"("message":{"role":"assistant","content":""},)" FIGURES("length", "19", "19")));
    world_drop(&w, fd);
    world_stop(&w);
}

#define TOOLS                                                                                      \
    R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":)"                  \
    R"("object","properties":{"a":{"type":"integer"}}}}}])"
#define CALL R"(<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>)"
#define TOLD                                                                                       \
    R"("tool_calls":[{"id":"X","function":{"index":0,"name":"f","arguments":{"a":)"                \
    " 1}}}]"

#define TOKEN(c, code)                                                                             \
    R"({"token":")" c R"(","logprob":-0.5,"bytes":[)" code R"(],"top_logprobs":[]})"

static size_t n_of(const char *text, const char *what) {
    size_t n = 0;

    while ((text = strstr(text, what)))
        text += strlen(what), n++;
    return n;
}

/* Each token's log probability is in one line; those of markers and calls are in the next line. */
Test(ollama, log_probabilities_are_told_once) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "ab";
    world_ask(&w, OCHAT, "{" ME R"(,"stream":false,"logprobs":true,)" HI "}", &r);
    expect_body(&r, 200,
                R"({"model":"tiny","created_at":"X","message":{"role":"assistant",)"
                R"("content":"ab"},"logprobs":[)" TOKEN("a", "97") "," TOKEN(
                    "b", "98") "]," FIGURES("stop", "19", "2") "}");
    w.port.script = "<think>a</think>Hi." CALL;
    world_ask(&w, OCHAT, "{" ME R"(,"logprobs":true,)" HI "," TOOLS "}", &r);
    cr_expect_eq(n_of(r.body.data, R"("token":)"), 19 + strlen(CALL), "%s", r.body.data);
    reply_deinit(&r);
    w.port.script = "ab";
    world_ask(&w, OGEN,
              "{" ME R"(,"stream":false,"raw":true,"prompt":"hi","logprobs":true,)"
              R"("top_logprobs":2})",
              &r);
    cr_expect(strstr(r.body.data, R"("logprobs":[{"token":"a","logprob":-0.5)"), "%s", r.body.data);
    reply_deinit(&r);
    world_ask(&w, OCHAT, "{" ME R"(,"stream":false,"top_logprobs":21,)" HI "}", &r);
    expect_body(&r, 400, R"({"error":"top_logprobs must be an integer between 0 and 20"})");
    world_stop(&w);
}

/* A long answer is written on the pool, and its client may leave meanwhile. */
Test(ollama, who_leaves_while_the_pool_writes_leaves_nothing) {
    char text[4001];
    struct world w;

    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = 0;
    started(&w);
    for (uint32_t i = 0; i < 5; i++) {
        int fd = world_connect(&w);

        world_post(&w, fd, OCHAT,
                   "{" ME R"(,"stream":false,"logprobs":true,"options":{"num_predict":)"
                   "8000}," HI "}");
        while (w.port.n == i)
            world_turn(&w);
        fake_accept(&w.port, i);
        fake_tokens(&w.port, i, text);
        fake_finish(&w.port, i, FINISH_STOP);
        while (jobs_n(w.api->env.pool.jobs) == 0)
            world_turn(&w);
        world_drop(&w, fd);
        while (jobs_n(w.api->env.pool.jobs) > 0 || w.api->http.n_exchanges > 0)
            world_turn(&w);
    }
    world_stop(&w); /* asserts that nothing is left */
}

/* The worker names the fields of a chat. */
Test(ollama, a_refusal_of_the_worker_names_the_clients_fields) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, OCHAT, "{" ME "," HI R"(,"format":"json","complete_output":false})");
    while (w.port.n == 0)
        world_turn(&w);
    cr_expect_eq(w.port.r[0].m.flags & SUBMIT_COMPLETE, 0);
    fake_reject(&w.port, 0, 400, "Raise max_tokens.");
    world_receive(&w, fd, &r);
    expect_body(&r, 400, R"({"error":"Raise num_predict."})");
    world_drop(&w, fd);
    world_stop(&w);
}

/* Clients split a stream at its line breaks. */
Test(ollama, a_call_of_several_lines_is_one_line) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "<tool_call>{\"name\": \"f\", \"arguments\": {\n\"a\":\r\n1}}</tool_call>";
    world_ask(&w, OCHAT, "{" ME "," HI "," TOOLS "}", &r);
    cr_expect(strstr(r.body.data, R"("arguments":{ "a":  1}}}]},"done":false})"
                                  "\n"),
              "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(ollama, calls_have_objects) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "So" CALL;
    world_ask(&w, OCHAT, "{" ME R"(,"stream":false,)" HI "," TOOLS "}", &r);
    cr_expect(strstr(r.body.data, R"("content":"So","tool_calls":[{)"), "%s", r.body.data);
    normalise(&r.body);
    cr_expect(strstr(r.body.data, TOLD), "%s", r.body.data);
    reply_deinit(&r);
    world_ask(&w, OCHAT, "{" ME "," HI "," TOOLS "}", &r);
    normalise(&r.body);
    cr_expect(strstr(r.body.data, LINE(R"("message":{"role":"assistant","content":"",)" TOLD
                                       R"(},"done":false)")),
              "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(ollama, a_conversation_with_calls_is_rendered) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "ok";
    world_ask(&w, OCHAT,
              "{" ME R"(,"think":false,"messages":[{"role":"system","content":"S"},)"
              R"({"role":"user","content":"hi"},{"role":"assistant","tool_calls":[{)"
              R"("function":{"name":"f","arguments":{"a":1}}}]},{"role":"tool",)"
              R"("tool_name":"f","content":"2"},{"role":"tool","tool_name":"f","content":)"
              R"({"b":[2]}}],)" TOOLS "}",
              &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    cr_expect_str_eq(fake_prompt(&w.port.r[0]), "f|system\nS||user\nhi||assistant\n|f "
                                                R"({"a": 1}|||tool)"
                                                "\n2||tool\n"
                                                R"({"b": [2]}||assistant<think></think>)");
    reply_deinit(&r);
    world_stop(&w);
}

/* Fields of a chat that Ollama does not know mean here what they mean there. */
Test(ollama, fields_of_a_chat_hold) {
#define SAYS "|user\nhi||assistant"
    static const struct {
        const char *fields, *prompt, *answer, *grammar;
    } rows[] = {
        {R"("reasoning_effort":"none")", SAYS "<think></think>", "", ""},
        {R"("chat_template_kwargs":{"enable_thinking":false})", SAYS "<think></think>", "", ""},
        {R"("response_format":{"type":"json_object"})", SAYS, "", "json_object"},
        {R"("response_format":{"type":"json_object"},"format":"")", SAYS, "", "json_object"},
        {R"("options":{"num_predict":"2","temperature":"0.5"})", SAYS, R"("done_reason":"length")",
         ""},
        {R"("tool_choice":"none",)" TOOLS, SAYS, "", ""},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        CLEANUP(buf_deinit) struct buf body = {.max = 1 << 10};
        struct world w;
        struct reply r;

        started(&w);
        w.port.script = "{}xx";
        cr_assert_eq(buf_printf(&body, "{" ME "," HI R"(,"stream":false,%s})", rows[i].fields), 0);
        world_ask(&w, OCHAT, body.data, &r);
        cr_assert_eq(r.status, 200, "%s: %s", rows[i].fields, r.body.data);
        cr_expect(strstr(r.body.data, rows[i].answer), "%s: %s", rows[i].fields, r.body.data);
        cr_expect_str_eq(fake_prompt(&w.port.r[0]), rows[i].prompt);
        cr_expect(strstr(w.port.r[0].grammar, rows[i].grammar), "%s: %s", rows[i].fields,
                  w.port.r[0].grammar);
        reply_deinit(&r);
        world_stop(&w);
    }
}

Test(ollama, a_last_message_of_the_assistant_is_continued) {
    static const char *const rows[][2] = {
        {R"("content":"Once")", "|user\nhi||assistantOnce"},
        {R"("content":"")", "|user\nhi||assistant"},
        {R"("tool_calls":[{"function":{"name":"f","arguments":{}}}],"content":"")",
         "|user\nhi||assistant\n|f {}|||assistant"},
        {R"("tool_calls":[{"function":{"name":"f","arguments":null}}])",
         "|user\nhi||assistant\n|f {}|||assistant"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        CLEANUP(buf_deinit) struct buf body = {.max = 1 << 10};
        struct world w;
        struct reply r;

        started(&w);
        w.port.script = "ok";
        buf_printf(&body,
                   "{" ME R"(,"messages":[{"role":"user","content":"hi"},)"
                   R"({"role":"assistant",%s}]})",
                   rows[i][0]);
        world_ask(&w, OCHAT, body.data, &r);
        cr_assert_eq(r.status, 200, "%s", r.body.data);
        cr_expect_str_eq(fake_prompt(&w.port.r[0]), rows[i][1]);
        reply_deinit(&r);
        world_stop(&w);
    }
}

Test(ollama, options_are_parameters) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "ok";
    world_ask(&w, OGEN,
              "{" ME R"(,"prompt":"hi","system":"S","keep_alive":"5m","format":"json",)"
              R"("options":{"num_predict":7,"temperature":0,"top_k":3,"seed":5,"stop":[)"
              R"("x"],"repeat_penalty":1.5,"num_ctx":4096}})",
              &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    const struct submit *m = &w.port.r[0].m;
    cr_expect_eq(m->max_new, 7);
    cr_expect_eq(m->sampling.temperature, 0);
    cr_expect_eq(m->sampling.top_k, 3);
    cr_expect_eq(m->sampling.top_p, 1); /* the model's default, as in every dialect */
    cr_expect_float_eq(m->sampling.repetition_penalty, 1.5, 1e-6);
    cr_expect_eq(m->seed, 5);
    cr_expect(strstr(w.port.r[0].grammar, "json_object"), "%s", w.port.r[0].grammar);
    cr_expect_str_eq(fake_prompt(&w.port.r[0]), "|system\nS||user\nhi||assistant");
    reply_deinit(&r);
    world_ask(&w, OCHAT, "{" ME "," HI R"(,"options":{"num_predict":8.0}})", &r);
    cr_expect_eq(w.port.r[1].m.max_new, 8);
    reply_deinit(&r);
    world_ask(&w, OCHAT, "{" ME "," HI R"(,"options":{"num_predict":-1}})", &r);
    m = &w.port.r[2].m;
    cr_expect_gt(m->max_new, 1000);
    cr_expect_eq(m->sampling.temperature, 1);
    cr_expect_eq(m->sampling.top_k, 0);
    reply_deinit(&r);
    world_stop(&w);
}

Test(ollama, keep_alive_is_seconds_or_a_duration) {
    static const struct {
        const char *text;
        int64_t seconds;
    } row[] = {
        {"0", 0},
        {"300", 300},
        {"-1", -1},
        {"1.5", 2},
        {R"("0")", 0},
        {R"("300")", 300},
        {R"("5m")", 300},
        {R"("+5m")", 300},
        {R"("-5m")", -1},
        {R"("1h30m")", 5400},
        {R"("1.5h")", 5400},
        {R"("90s")", 90},
        {R"("500ms")", 1},
        {R"("5000us")", 1},
        {R"("3000000000ns")", 3},
        {"1e12", 1000000000},
    };
    static const char *const bad[] = {
        R"("")",    R"("-")",   R"("+")",   R"("m")", R"("5x")",
        R"("5 m")", R"("5m ")", R"("--5")", "true",   "[]",
    };
    struct world w;
    struct reply r;
    char body[100];

    started(&w);
    w.port.script = "ok";
    for (size_t i = 0; i < ARRAY_SIZE(row); i++) {
        snprintf(body, sizeof(body), "{" ME R"(,"prompt":"a","keep_alive":%s})", row[i].text);
        w.port.model->keep_alive_s = 77;
        world_ask(&w, OGEN, body, &r);
        cr_expect_eq(r.status, 200, "%s: %s", body, r.body.data);
        cr_expect_eq(w.port.model->keep_alive_s, row[i].seconds, "%s: %lld", row[i].text,
                     (long long)w.port.model->keep_alive_s);
        reply_deinit(&r);
    }
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        snprintf(body, sizeof(body), "{" ME R"(,"prompt":"a","keep_alive":%s})", bad[i]);
        world_ask(&w, OGEN, body, &r);
        cr_expect_eq(r.status, 400, "%s", body);
        cr_expect(strstr(r.body.data, R"({"error":"keep_alive must be a number of seconds or)"),
                  "%s", r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(ollama, generate_without_a_template) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.script = "ok";
    world_ask(&w, OGEN, "{" ME R"(,"prompt":"hi","raw":true,"stream":false})", &r);
    cr_expect_str_eq(fake_prompt(&w.port.r[0]), "hi");
    cr_expect_gt(w.port.r[0].m.max_new, 1000);
    expect_body(
        &r, 200,
        R"({"model":"tiny","created_at":"X","response":"ok",)" FIGURES("stop", "2", "2") "}");
    world_stop(&w);
}

Test(ollama, nothing_to_say_is_a_load) {
    struct world w;
    struct reply r;

    started(&w);
    world_ask(&w, OGEN, R"({"model":"tiny:latest"})", &r);
    expect_body(&r, 200,
                R"({"model":"tiny","created_at":"X","response":"","done_reason":"load",)"
                R"("done":true})");
    world_ask(&w, OCHAT, "{" ME R"(,"messages":[]})", &r);
    expect_body(&r, 200,
                R"({"model":"tiny","created_at":"X","message":{"role":"assistant",)"
                R"("content":""},"done_reason":"load","done":true})");
    cr_expect_eq(w.port.n, 0);
    world_stop(&w);
}

/* ---- a pull that fails ---- */

static struct api_task *pulled;

static int pull(void *ctx, const char *name, struct api_task *t, struct err *err) {
    pulled = t;
    return 0;
}

Test(ollama, a_pull_from_an_unreachable_registry_is_a_502) {
    static const struct api_manage manage = {.pull = pull};
    static const char *const managers[] = {"*", NULL};
    struct err err = {0};
    struct world w;
    struct reply r;

    world_init(&w);
    w.opts.manage = &manage;
    w.opts.managers = managers;
    world_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, "/api/pull", R"({"model":"x","stream":false})");
    world_turns(&w, 5);
    cr_assert(pulled);
    err_set(&err, 502, "model", "registry.example cannot be reached");
    pulled->over(pulled, &err);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 502, "%d: %s", r.status, r.body.data);
    cr_expect(strstr(r.body.data, "registry.example cannot be reached"), "%s", r.body.data);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(ollama, errors_are_a_string) {
    static const struct {
        const char *path, *body, *error;
        int status;
    } table[] = {
        {OCHAT, R"({"model":"x","messages":[]})", "model 'x' not found", 404},
        {OCHAT, R"({"messages":[]})", "model is required; GET /api/tags lists the names", 400},
        {OCHAT, R"({"model":7,"messages":[]})", "model must be a string without NUL", 400},
        {OCHAT, "{" ME R"(,"messages":[1]})", "messages must be an array of objects", 400},
        {OCHAT, "{" ME R"(,"messages":7})", "messages must be an array", 400},
        {OCHAT, "{" ME R"(,"messages":[{"role":"user","content":7,"images":["aGk="]}]})",
         "content must be a string", 400},
        {OCHAT, "{" ME "," HI R"(,"logprobs":1})", "logprobs must be a boolean", 400},
        {OCHAT, "{" ME "," HI R"(,"logprobs":true,"top_logprobs":21})",
         "top_logprobs must be an integer between 0 and 20", 400},
        {OCHAT, "{" ME "," HI R"(,"options":{"num_predict":"x"}})", "num_predict must be a number",
         400},
        {OGEN, "{" ME R"(,"prompt":7})", "prompt must be a string", 400},
        {OGEN, "{" ME R"(,"prompt":"a","suffix":7})", "suffix must be a string", 400},
        {OGEN, "{" ME R"(,"prompt":"a","system":7})", "system must be a string", 400},
        {OCHAT, "{" ME R"(,"messages":[{"role":"user","content":"a","images":"b"}]})",
         "images must be an array of pictures in base64", 400},
        {OCHAT, "{" ME R"(,"messages":[{"role":"user","content":"a"}],"tools":{}})",
         "tools must be an array", 400},
        {OCHAT, "{" ME R"(,"messages":[{"role":"user","content":"a","images":["b"]}]})",
         "messages[0].images[0] is not supported: this model reads only text.", 400},
        {OCHAT, "{" ME "," HI R"(,"options":{"repeat_penalty":0}})",
         "repeat_penalty must be between 0.01 and 10.", 400},
        {OCHAT,
         "{" ME "," HI ","
         R"("complete_output":7})",
         "complete_output must be a boolean.", 400},
        {OCHAT, "{" ME "," HI R"(,"format":7})", R"(format must be \"json\" or a JSON schema)",
         400},
        {OCHAT, "{" ME "," HI R"(,"think":7})",
         R"(think must be a boolean, \"none\", \"minimal\", \"low\", \"medium\", )"
         R"(\"high\", )"
         R"(\"xhigh\" or \"max\".)",
         400},
        {OCHAT, "{" ME "," HI R"(,"think":"banana"})",
         R"(think must be a boolean, \"none\", \"minimal\", \"low\", \"medium\", )"
         R"(\"high\", )"
         R"(\"xhigh\" or \"max\".)",
         400},
        {OCHAT, "{" ME "," HI R"(,"stream":1})", "stream must be a boolean", 400},
        {OCHAT, "{" ME "," HI R"(,"options":[]})", "options must be an object", 400},
        {OGEN, "{" ME R"(,"prompt":"a","template":"b"})", "template is not supported here", 400},
        {OGEN, "{" ME R"(,"prompt":"a","suffix":"b"})",
         "This model has no fill-in-the-middle tokens, so it cannot write what is missing before a "
         "suffix. Choose a model that has them, or send the request without a suffix.",
         400},
        {"/api/show", R"({"model":"x"})", "model 'x' not found", 404},
        {"/api/pull", R"({"model":"x"})",
         "This server does not let this client change models (option allow-pull).", 403},
        {"/api/create", R"({"model":"x"})",
         "This server does not let this client change models (option allow-pull).", 403},
        {"/api/copy", "{}",
         "This server does not let this client change models (option allow-pull).", 403},
        {"/api/what", "{}", "This path does not exist. Did you mean /api/chat?", 404},
    };
    struct world w;
    struct reply r;
    char want[200];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        world_ask(&w, table[i].path, table[i].body, &r);
        snprintf(want, sizeof(want), R"({"error":"%s"})", table[i].error);
        expect_body(&r, table[i].status, want);
    }
    world_stop(&w);
}

Test(ollama, a_failure_in_a_stream_is_a_line) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, OCHAT, "{" ME "," HI "}");
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "Hi");
    world_turns(&w, 4);
    fake_fail(&w.port, 0, 500, "broken");
    world_receive(&w, fd, &r);
    expect_body(&r, 200,
                SAID("Hi") R"({"error":"broken"})"
                           "\n");
    world_drop(&w, fd);
    world_stop(&w);
}

#define MODEL                                                                                      \
    R"("details":{"parent_model":"","format":"gguf","family":"","families":[],)"                   \
    R"("parameter_size":"25.83M","quantization_level":"Q8_0"})"

Test(ollama, the_model_is_told) {
    struct world w;
    struct reply r;

    started(&w);
    world_get(&w, "/api/version", &r);
    cr_expect(strstr(r.body.data, R"({"version":"0.)"), "%s", r.body.data);
    reply_deinit(&r);
    world_get(&w, "/api/tags", &r);
    cr_expect(strstr(r.body.data, R"({"models":[{"name":"tiny","model":"tiny","size":)"));
    cr_expect(strstr(r.body.data, MODEL), "%s", r.body.data);
    const char *digest = strstr(r.body.data, R"("digest":")");
    cr_expect(digest && strspn(digest + 10, "0123456789abcdef") == 64, "%s", r.body.data);
    reply_deinit(&r);
    world_get(&w, "/api/ps", &r);
    cr_expect(strstr(r.body.data, R"("context_length":16384)"), "%s", r.body.data);
    reply_deinit(&r);
    world_ask(&w, "/api/show", R"({"name":"tiny:latest"})", &r);
    cr_expect(strstr(r.body.data, R"("unknown.context_length":16384)"), "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("general.parameter_count":25829888,)"), "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("capabilities":["completion","tools","thinking"])"), "%s",
              r.body.data);
    reply_deinit(&r);
    world_ask(&w, "/api/pull", "{" ME "}", &r);
    expect_body(&r, 200,
                R"({"status":"success"})"
                "\n");
    world_stop(&w);
}

/* A request as in its documentation; requests that a browser sends for a page are still refused. */
Test(ollama, curl_needs_no_content_type) {
    static const char body[] = "{" ME "}";
    struct world w;
    struct reply r;

    started(&w);
    for (int page = 0; page < 2; page++) {
        int fd = world_connect(&w);

        world_say(&w, fd,
                  "POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
                  "application/x-www-form-urlencoded\r\nContent-Length: %zu\r\n%s\r\n%s",
                  sizeof(body) - 1, page ? "Origin: http://localhost\r\n" : "", body);
        world_receive(&w, fd, &r);
        cr_expect_eq(r.status, page ? 415 : 200, "%d", r.status);
        reply_deinit(&r);
        world_drop(&w, fd);
    }
    world_stop(&w);
}

/* Every list tells what a model can do: generate text, embed, rank. */
Test(ollama, a_model_of_another_kind_is_told_in_all_lists) {
    static const struct {
        bool encoder, ranks;
        const char *path, *body, *want;
    } cases[] = {
        {true, false, "/v1/models", NULL, R"("capabilities":["embedding"])"},
        {true, true, "/v1/models", NULL, R"("capabilities":["embedding","rerank"])"},
        {false, false, "/v1/models", NULL, R"("capabilities":["completion","embedding"])"},
        {true, false, "/api/show", "{" ME "}", R"("capabilities":["embedding"])"},
        {true, false, "/api/v0/models", NULL, R"("type":"embeddings")"},
        {false, false, "/api/v0/models", NULL, R"("type":"llm")"},
    };
    struct world w;
    struct reply r;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        world_init(&w);
        w.model.encoder = cases[i].encoder;
        w.model.ranks = cases[i].ranks;
        w.model.pair.before = w.model.pair.between = w.model.pair.behind = "";
        world_start(&w);
        if (cases[i].body)
            world_ask(&w, cases[i].path, cases[i].body, &r);
        else
            world_get(&w, cases[i].path, &r);
        cr_expect_eq(r.status, 200);
        cr_expect(strstr(r.body.data, cases[i].want), "%s has no %s", r.body.data, cases[i].want);
        reply_deinit(&r);
        world_stop(&w);
    }
}

Test(ollama, sizes_have_units) {
    static const struct {
        uint64_t n;
        const char *size;
    } cases[] = {
        {0, ""},
        {1, "0K"},
        {999499, "999K"},
        {1000000, "1.00M"},
        {25829888, "25.83M"},
        {1000000000, "1.0B"},
        {30532122624, "30.5B"},
    };
    char want[80];
    struct world w;
    struct reply r;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        world_init(&w);
        w.model.arch = "qwen3";
        w.model.n_params = cases[i].n;
        w.model.system = "Be brief.";
        world_start(&w);
        world_ask(&w, "/api/show", "{" ME "}", &r);
        snprintf(want, sizeof(want),
                 R"("family":"qwen3","families":["qwen3"],"parameter_size":"%s")", cases[i].size);
        cr_expect(strstr(r.body.data, want), "%s has no %s", r.body.data, want);
        cr_expect(strstr(r.body.data, R"("system":"Be brief.")"), "%s", r.body.data);
        cr_expect(strstr(r.body.data, R"("general.architecture":"qwen3")"), "%s", r.body.data);
        cr_expect(strstr(r.body.data, R"("qwen3.context_length":512)"), "%s", r.body.data);
        snprintf(want, sizeof(want), R"("general.parameter_count":%llu,)",
                 (unsigned long long)cases[i].n);
        cr_expect_eq(strstr(r.body.data, want) != NULL, cases[i].n > 0, "%s", r.body.data);
        reply_deinit(&r);
        world_stop(&w);
    }
}
