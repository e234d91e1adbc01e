/*
 * Forms of requests that other services accept or that their clients send: each is answered here as
 * well, or refused with a reason that docs/reference/refused.md gives.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "responses_support.h"

#define CHATS "/v1/chat/completions"
#define TEXTS "/v1/completions"
#define MESSAGES "/v1/messages"
#define ASK R"("messages":[{"role":"user","content":"hi"}])"
#define CLAUDE R"({"model":"claude-x","max_tokens":4,)"
#define FN R"({"type":"function","name":"f","parameters":{"type":"object"}})"

struct shape {
    const char *path, *body;
    /* param of the 400; NULL: the request is answered */
    const char *refused;
};

static const struct shape shapes[] = {
    /* chat completions */
    {CHATS, "{" ASK R"(,"max_tokens":-1})", NULL},
    {CHATS "/", "{" ASK "}", NULL},
    {RESPONSES "/", R"({"input":"hi"})", NULL},
    {CHATS, "\xEF\xBB\xBF{" ASK "}", NULL},
    {CHATS, "{" ASK R"(,"max_tokens":0})", "max_tokens"},
    {CHATS, "{" ASK R"(,"temperature":"warm"})", "temperature"},
    {CHATS, "{" ASK R"(,"temperature":"0.5 "})", "temperature"},
    {CHATS, "{" ASK R"(,"max_tokens":""})", "max_tokens"},
    {CHATS, "{" ASK R"(,"stream":"true"})", "stream"},
    {CHATS, "{" ASK R"(,"function_call":"auto"})", NULL},
    {CHATS, "{" ASK R"(,"function_call":{"name":"f"}})", "function_call"},
    {CHATS, "{" ASK R"(,"functions":[{"name":"f"}]})", NULL},
    {CHATS, "{" ASK R"(,"functions":[{"name":5}]})", "functions"},
    {CHATS, "{" ASK R"(,"functions":[]})", NULL},
    {CHATS, "{" ASK R"(,"response_format":{"type":"json_schema","json_schema":{"name":"n"}}})",
     NULL},
    {CHATS, "{" ASK R"(,"response_format":{"type":"json_schema"}})",
     "response_format.json_schema.schema"},
    {CHATS,
     R"({"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"c",)"
     R"("type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":)"
     R"("tool","tool_call_id":"c","content":[{"type":"image_url","image_url":{"url":)"
     R"("data:"}}]},{"role":"user","content":"hi"}]})",
     NULL},
    {CHATS, "{" ASK R"(,"web_search_options":{"search_context_size":"low"}})",
     "web_search_options"},
    {CHATS, "{" ASK R"(,"audio":{"voice":"v","format":"wav"}})", "audio"},
    /* completions */
    {TEXTS, R"({"prompt":"a","logprobs":1})", NULL},
    {TEXTS, R"({"prompt":"a","truncate_prompt_tokens":3})", "truncate_prompt_tokens"},
    {TEXTS, R"({"prompt":"a","use_beam_search":true})", "use_beam_search"},
    {"/v1/completions/render", R"({"prompt":["a","b"]})", NULL},
    {"/tokenize", "{" ASK R"(,"add_generation_prompt":true})", NULL},
    /* Responses */
    {RESPONSES, R"({"input":"hi","tools":[{"type":"web_search_preview"}]})", NULL},
    {RESPONSES, R"({"input":"hi","tool_choice":{"type":"web_search_preview"}})", NULL},
    {RESPONSES,
     R"({"input":"hi","tools":[)" FN R"(],"tool_choice":{"type":"mcp","server_label":)"
     R"("s"}})",
     NULL},
    {RESPONSES,
     R"({"input":"hi","tools":[)" FN
     R"(],"tool_choice":{"type":"allowed_tools","mode":"auto","tools":[{"type":)"
     R"("function","name":"f"},{"type":"image_generation"},{"type":"mcp",)"
     R"("server_label":"s"}]}})",
     NULL},
    {RESPONSES,
     R"({"input":"hi","tools":[)" FN
     R"(],"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":)"
     R"("web_search"}]}})",
     NULL},
    {RESPONSES, R"({"input":"hi","text":{"verbosity":"low"},"max_tool_calls":3})", NULL},
    {RESPONSES,
     R"({"input":"hi","reasoning":{"effort":"low","context":"all_turns"},"include":[)"
     R"("reasoning.encrypted_content"],"client_metadata":{"a":"b"}})",
     NULL},
    {RESPONSES,
     R"({"input":[{"type":"additional_tools","role":"developer","tools":[)" FN
     R"(]},{"role":"user","content":"hi"}]})",
     NULL},
    {RESPONSES,
     R"({"input":"hi","tools":[{"type":"tool_search","execution":"client",)"
     R"("description":"d","parameters":{"type":"object"}}]})",
     NULL},
    {RESPONSES,
     R"({"input":[{"role":"user","content":"hi"},{"type":)"
     R"("compaction_trigger"}]})",
     NULL},
    {RESPONSES "/compact", R"({"input":"hi"})", NULL},
    {RESPONSES, R"({"input":[{"type":"agent_message","content":[]}]})", NULL},
    {RESPONSES, R"({"input":"hi","background":true,"store":false})", "background"},
    {RESPONSES, R"({"input":"hi","background":false})", NULL},
    {RESPONSES, R"({"input":"hi","conversation":"c","previous_response_id":"r"})", "conversation"},
    {RESPONSES, R"({"input":"hi","prompt":{"id":"p"}})", "prompt"},
    {RESPONSES, R"({"input":"hi","top_logprobs":2})", NULL},
    {RESPONSES, R"({"input":"hi","include":["message.output_text.logprobs"]})", NULL},
    /* Messages */
    {MESSAGES,
     CLAUDE ASK R"(,"tools":[{"type":"web_search_20250305","name":"web_search"},)"
                R"({"name":"f","input_schema":{"type":"object"}}]})",
     NULL},
    {MESSAGES, CLAUDE ASK R"(,"tools":[{"type":"web_search_20250305","name":"web_search"}]})",
     "tools"},
    {MESSAGES,
     CLAUDE ASK R"(,"tools":[{"type":"tool_search_tool_regex_20251119","name":)"
                R"("tool_search_tool_regex"},{"name":"f","defer_loading":true,)"
                R"("input_schema":{"type":"object"}}]})",
     NULL},
    {MESSAGES,
     CLAUDE R"("messages":[{"role":"user","content":"hi"},{"role":"assistant",)"
            R"("content":[{"type":"server_tool_use","id":"s","name":"web_search",)"
            R"("input":{}},{"type":"web_search_tool_result","tool_use_id":"s","content":)"
            R"([]}]},{"role":"user","content":"hi"}]})",
     NULL},
    {MESSAGES, CLAUDE ASK R"(,"context_management":{"edits":[]},"speed":"fast"})", NULL},
    {MESSAGES, CLAUDE ASK R"(,"thread":{}})", "thread"},
};

Test(shapes, each_is_answered_or_refused_by_name) {
    struct world w;
    struct reply r;
    char param[80];

    responses_init(&w);
    w.model.max_context = 4096;
    world_start(&w);
    w.port.script = "ab";
    for (size_t i = 0; i < ARRAY_SIZE(shapes); i++) {
        const struct shape *s = &shapes[i];

        world_ask(&w, s->path, s->body, &r);
        cr_expect_eq(r.status, s->refused ? 400 : 200, "%s %s: %d %s", s->path, s->body, r.status,
                     r.body.data);
        snprintf(param, sizeof(param), R"("param":"%s")", s->refused ? s->refused : "");
        cr_expect(!s->refused || strstr(r.body.data, param) || strstr(r.body.data, s->refused),
                  "%s %s", s->body, r.body.data);
        reply_deinit(&r);
        w.port.n = 0;
    }
    world_stop(&w);
}

Test(shapes, usage_that_is_not_wanted_is_not_told) {
    struct world w;
    struct reply r;

    responses_init(&w);
    world_start(&w);
    w.port.script = "o";
    for (int wanted = 0; wanted < 2; wanted++) {
        char body[300];

        snprintf(body, sizeof(body),
                 R"({"prompt":"a","stream":true,"max_tokens":1,"stream_options":{)"
                 R"("include_usage":%s,"continuous_usage_stats":true}})",
                 wanted ? "true" : "false");
        world_ask(&w, TEXTS, body, &r);
        cr_expect_eq(r.status, 200);
        cr_expect_eq(strstr(r.body.data, R"("usage":{)") != NULL, wanted, "%s", r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(shapes, the_chosen_token_is_among_the_likely_ones) {
    struct world w;
    struct reply r;

    responses_init(&w);
    world_start(&w);
    w.port.script = "o";
    world_ask(&w, TEXTS, R"({"prompt":[120,121],"echo":true,"logprobs":1,"max_tokens":1})", &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body.data, R"("top_logprobs":[null,{"t":-0.125,"y":)"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

/* ---- forms that mean the same ---- */

struct pair {
    const char *path, *body, *same;
};

#define TOOL_CALL                                                                                  \
    R"("content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f",)"          \
    R"("arguments":"{}"}}]})"

#define BEGUN R"("messages":[{"role":"user","content":"a"},{"role":"assistant","content":"The")"

#define USUAL_BEGUN                                                                                \
    R"({"role":"system","content":"s"},{"role":"user","content":"a"},)"                            \
    R"({"role":"assistant","content":"b"})"
#define USUAL USUAL_BEGUN R"(,{"role":"user","content":"c"})"
#define SPELT_BEGUN                                                                                \
    R"({"role":"System","content":"s"},{"role":"User","content":"a"},)"                            \
    R"({"role":"model","content":"b"})"
#define SPELT SPELT_BEGUN R"(,{"role":"USER","content":"c"})"

static const struct pair pairs[] = {
    /* fields that were left empty */
    {CHATS, "{" ASK R"(,"stop":""})", "{" ASK "}"},
    {CHATS, "{" ASK R"(,"stop":[""]})", "{" ASK "}"},
    {CHATS, "{" ASK R"(,"stop":[null,"b",""]})", "{" ASK R"(,"stop":"b"})"},
    {TEXTS, R"({"prompt":"a","stop":["",null]})", R"({"prompt":"a"})"},
    /* numbers of programs that keep their settings as text */
    {CHATS, "{" ASK R"(,"temperature":"0.25","top_k":"7","top_p":"1e-1"})",
     "{" ASK R"(,"temperature":0.25,"top_k":7,"top_p":0.1})"},
    {CHATS, "{" ASK R"(,"max_tokens":"5","seed":"42"})", "{" ASK R"(,"max_tokens":5,"seed":42})"},
    {CHATS, "{" ASK R"(,"max_tokens":"-1"})", "{" ASK R"(,"max_tokens":-1})"},
    {TEXTS, R"({"prompt":"a","n_predict":"3"})", R"({"prompt":"a","n_predict":3})"},
    {CHATS, "{" ASK R"(,"logit_bias":[]})", "{" ASK "}"},
    /* an answer that begins with the last message */
    {CHATS, "{" BEGUN R"(,"prefix":true}]})", "{" BEGUN R"(}],"continue_final_message":true})"},
    {CHATS, "{" BEGUN R"(,"partial":true}]})", "{" BEGUN R"(}],"continue_final_message":true})"},
    {CHATS, "{" BEGUN R"(,"prefix":false}]})", "{" BEGUN "}]}"},
    {CHATS, "{" BEGUN R"(,"prefix":true}],"continue_final_message":false})", "{" BEGUN "}]}"},
    /* no effort */
    {CHATS, "{" ASK R"(,"reasoning_effort":""})", "{" ASK "}"},
    {CHATS, "{" ASK R"(,"reasoning_effort":"auto"})", "{" ASK "}"},
    {CHATS, "{" ASK R"(,"reasoning_effort":"default"})", "{" ASK "}"},
    {RESPONSES, R"({"input":"a","reasoning":{"effort":"auto"}})", R"({"input":"a"})"},
    /* names of roles */
    {CHATS, R"({"messages":[)" SPELT "]}", R"({"messages":[)" USUAL "]}"},
    {CHATS,
     R"({"messages":[{"role":"user","content":"a"},{"role":"Assistant",)" TOOL_CALL
     R"(,{"role":"ipython","tool_call_id":"c","content":{"n":1}}]})",
     R"({"messages":[{"role":"user","content":"a"},{"role":"assistant",)" TOOL_CALL
     R"(,{"role":"tool","tool_call_id":"c","content":{"n":1}}]})"},
    {MESSAGES, R"({"model":"tiny","max_tokens":4,"messages":[)" SPELT "]}",
     R"({"model":"tiny","max_tokens":4,"messages":[)" USUAL "]}"},
    {RESPONSES, R"({"input":[)" SPELT "]}", R"({"input":[)" USUAL "]}"},
    {"/api/chat", R"({"model":"tiny","messages":[)" SPELT "]}",
     R"({"model":"tiny","messages":[)" USUAL "]}"},
    {"/api/chat", R"({"model":"tiny","messages":[)" SPELT_BEGUN "]}",
     R"({"model":"tiny","messages":[)" USUAL_BEGUN "]}"},
};

/* Sends @body, and compares the request that the worker gets with its first one. */
static void expect_same(struct world *w, const char *path, const char *body) {
    const struct fake_request *first = &w->port.r[0], *got = &w->port.r[w->port.n];
    struct reply r;

    world_ask(w, path, body, &r);
    cr_assert_eq(r.status, 200, "%s: %s", body, r.body.data);
    reply_deinit(&r);
    cr_assert_eq(got->m.n_prompt, first->m.n_prompt, "%s", body);
    cr_expect_arr_eq(got->tokens, first->tokens, got->m.n_prompt * sizeof(*got->tokens), "%s",
                     body);
    cr_expect_arr_eq(&got->m.sampling, &first->m.sampling, sizeof(got->m.sampling), "%s", body);
    cr_expect_eq(got->m.max_new, first->m.max_new, "%s", body);
    cr_assert_eq(got->m.n_stops, first->m.n_stops, "%s", body);
    for (uint32_t i = 0; i < got->m.n_stops; i++)
        cr_expect_str_eq(got->stops[i], first->stops[i], "%s", body);
}

Test(shapes, forms_that_mean_the_same_are_the_same_request) {
    struct world w;

    responses_init(&w);
    w.model.max_context = 4096;
    world_start(&w);
    w.port.script = "o";
    for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
        w.port.n = 0;
        expect_same(&w, pairs[i].path, pairs[i].same);
        expect_same(&w, pairs[i].path, pairs[i].body);
        cr_expect_eq(w.port.n, 2);
    }
    world_stop(&w);
}
