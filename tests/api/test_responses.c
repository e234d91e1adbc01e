/*
 * Answers of /v1/responses are the same plain and streamed, wherever tokens are cut and whenever
 * the worker dies. responses_support.c asserts the order of every stream.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <yyjson.h>

#include "api/http/websocket.h"
#include "api/parts.h"
#include "base/rng.h"
#include "responses_support.h"

#define TOOLS                                                                                      \
    R"("tools":[{"type":"function","name":"weather","parameters":{"type":"object"}})"              \
    ","                                                                                            \
    R"({"type":"custom","name":"patch"},{"type":"web_search"},)"                                   \
    R"({"type":"namespace","name":"mcp__x","tools":[{"type":"function","name":)"                   \
    R"("get"}]}])"
#define HELLO R"("input":"hi",)" TOOLS
#define CALL(name, args)                                                                           \
    "<tool_call>\n"                                                                                \
    R"({"name": ")" name R"(", "arguments": )" args "}\n</tool_call>"

/* ---- forms ---- */

/* Replaces [at, at + n) by @c. */
static void squeeze(char *at, size_t n, char c) {
    memmove(at + 1, at + n, strlen(at + n) + 1);
    *at = c;
}

/* Replaces the id from which all ids are made, and times, which differ from run to run. */
static void normalise(struct buf *b) {
    static const char *const times[] = {R"("created_at":1)", R"("completed_at":1)"};
    char hex[25] = "", *at = strstr(b->data, "resp_");

    cr_assert(at);
    memcpy(hex, at + 5, 24);
    for (at = b->data; (at = strstr(at, hex));)
        squeeze(at, 24, 'X');
    for (size_t i = 0; i < ARRAY_SIZE(times); i++) {
        for (at = b->data; (at = strstr(at, times[i]));) {
            at += strlen(times[i]) - 1;
            squeeze(at, strspn(at, "0123456789"), '0');
        }
    }
    b->len = strlen(b->data);
}

#define REPEATED                                                                                   \
    R"("background":false,"conversation":null,"instructions":null,)"                               \
    R"("max_output_tokens":null,"max_tool_calls":)"                                                \
    R"(null,"metadata":{},"model":"tiny","parallel_tool_calls":true,)"                             \
    R"("previous_response_id":null,"prompt_cache_key":null,"reasoning":{"effort":null,)"           \
    R"("summary":null},"safety_identifier":null,"service_tier":"default","store":true,)"           \
    R"("temperature":1,"text":{"format":{"type":"text"}},"tool_choice":"auto",)"                   \
    R"("tools":[],"top_logprobs":0,"top_p":1,"truncation":"disabled","user":null})"
#define MESSAGE                                                                                    \
    R"({"id":"msg_X_0","type":"message","status":"completed","role":"assistant",)"                 \
    R"("content":[{"type":"output_text","text":"Hi","annotations":[],"logprobs":[]}]})"
#define HEAD R"({"id":"resp_X","object":"response","created_at":0,"status":)"
#define USAGE                                                                                      \
    R"("usage":{"input_tokens":19,"input_tokens_details":{"cached_tokens":9,)"                     \
    R"("cache_write_tokens":0},"output_tokens":2,"output_tokens_details":{)"                       \
    R"("reasoning_tokens":0},"total_tokens":21},)"
#define COMPLETED                                                                                  \
    HEAD R"("completed","access_programs":null,"completed_at":0,"error":null,"incomplete_)"        \
         R"(details":null,)"                                                                       \
         R"("output":[)" MESSAGE "]," USAGE REPEATED
#define IN_PROGRESS                                                                                \
    HEAD R"("in_progress","access_programs":null,"completed_at":null,"error":null,)"               \
         R"("incomplete_details":null,)"                                                           \
         ""                                                                                        \
         R"("output":[],"usage":null,)" REPEATED

Test(responses, a_whole_answer_is_exact) {
    struct world w;
    struct reply r;

    responses_start(&w);
    responses_ask(&w, R"("input":"hi")", "Hi", &r);
    normalise(&r.body);
    cr_expect_eq(r.status, 200);
    cr_expect_str_eq(r.body.data, COMPLETED);
    reply_deinit(&r);
    world_stop(&w);
}

#define EVENT(type, n, members)                                                                    \
    "event: response." type "\n"                                                                   \
    R"(data: {"type":)"                                                                            \
    R"("response.)" type R"(","sequence_number":)" n "," members "}\n\n"
#define PLACE R"("item_id":"msg_X_0","output_index":0,"content_index":0,)"
#define PART(text)                                                                                 \
    R"("part":{"type":"output_text","text":")" text R"(","annotations":[],"logprobs":[]})"

/* The answer repeats the request's tools, of which it refers to one copy: whole, as a stream, which
 * repeats them three times, and in the background. */
Test(responses, a_large_request_is_repeated) {
    static const char *const ways[] = {"", R"(,"stream":true)", R"(,"background":true)",
                                       R"(,"background":true,"stream":true)"};
    static const int n_times[] = {1, 3, 1, 4};
    CLEANUP(buf_deinit) struct buf body = {.max = 2 << 20};
    struct world w;
    struct reply r;

    responses_init(&w);
    w.port.script = "Hi";
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        int n = 0;

        buf_clear(&body);
        buf_printf(&body, R"({"input":"hi","tools":[{"type":"web_search","junk":"%0*d"}]%s})",
                   1000000, 7, ways[i]);
        world_ask(&w, "/v1/responses", body.data, &r);
        cr_assert_eq(r.status, 200, "%s", r.body.data);
        for (const char *at = r.body.data; (at = strstr(at, R"(000007")")); at++)
            n++;
        cr_expect_eq(n, n_times[i], "%s: %d", ways[i], n);
        cr_expect_leq(r.body.len, (size_t)n * 1000000 + 20000, "%s", ways[i]);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(responses, a_stream_is_exact) {
    static const char *const want[] = {
        EVENT("created", "0", R"("response":)" IN_PROGRESS),
        EVENT("in_progress", "1", R"("response":)" IN_PROGRESS),
        EVENT("output_item.added", "2",
              R"("output_index":0,"item":{"id":"msg_X_0","type":"message",)"
              R"("status":"in_progress","role":"assistant","content":[]})"),
        EVENT("content_part.added", "3", PLACE PART("")),
        EVENT("output_text.delta", "4", PLACE R"("delta":"H","logprobs":[])"),
        EVENT("output_text.delta", "5", PLACE R"("delta":"i","logprobs":[])"),
        EVENT("output_text.done", "6", PLACE R"("text":"Hi","logprobs":[])"),
        EVENT("content_part.done", "7", PLACE PART("Hi")),
        EVENT("output_item.done", "8", R"("output_index":0,"item":)" MESSAGE),
        EVENT("completed", "9", R"("response":)" COMPLETED),
    };
    struct world w;
    struct reply r;
    char v[64];

    responses_start(&w);
    responses_ask(&w, R"("input":"hi","stream":true)", "Hi", &r);
    cr_expect_eq(strncmp(reply_header(&r, "content-type", v, sizeof(v)), "text/event-stream", 17),
                 0);
    normalise(&r.body);
    const char *at = r.body.data;
    for (size_t i = 0; i < ARRAY_SIZE(want); at += strlen(want[i++]))
        cr_assert_eq(strncmp(at, want[i], strlen(want[i])), 0, "not %s but %s", want[i], at);
    cr_expect_str_eq(at, "");
    reply_deinit(&r);
    world_stop(&w);
}

Test(responses, items_are_told_in_their_order) {
    struct world w;

    responses_start(&w);
    responses_expect(&w, HELLO, "<think>a</think>Hm." CALL("weather", R"({"a": 1})"),
                     R"(R<a> M<Hm.> weather{"a": 1} completed)");
    responses_expect(&w, HELLO R"(,"reasoning":{"summary":"auto"})", "<think>a</think>Hm.",
                     "S<a> M<Hm.> completed");
    responses_expect(&w, HELLO, CALL("weather", "{}") "\n" CALL("mcp__x__get", R"({"b":[]})"),
                     R"(weather{} mcp__x.get{"b":[]} completed)");
    responses_expect(&w, HELLO R"(,"parallel_tool_calls":false)",
                     CALL("weather", "{}") "\n" CALL("mcp__x__get", "{}"),
                     "weather{} M<" CALL("mcp__x__get", "{}") "> completed");
    responses_expect(&w, HELLO R"(,"tool_choice":"none")", CALL("weather", "{}"),
                     "M<" CALL("weather", "{}") "> completed");
    world_stop(&w);
}

Test(responses, a_silent_answer_has_an_empty_message) {
    struct world w;

    responses_start(&w);
    responses_expect(&w, HELLO, "", "M<> completed");
    responses_expect(&w, HELLO, "<think>a</think>", "R<a> M<> completed");
    world_stop(&w);
}

Test(responses, what_is_cut_off_is_incomplete) {
    struct world w;

    responses_start(&w);
    responses_expect(&w, HELLO R"(,"max_output_tokens":2)", "Hello", "M<He>! incomplete");
    responses_expect(&w, HELLO R"(,"max_output_tokens":9)", "<think>abcdef", "R<ab>! incomplete");
    responses_expect(&w, HELLO R"(,"max_output_tokens":57)", "A" CALL("weather", R"({"abcdef":1})"),
                     R"(M<A> weather{"abcdef":1! incomplete)");
    responses_expect(&w, HELLO,
                     "A"
                     R"(<tool_call>{"name":"weather","arguments":{"a":[)",
                     R"(M<A> weather{"a":[! completed)");
    world_stop(&w);
}

/* ---- custom tools ---- */

Test(custom, input_is_the_text_that_was_meant) {
    struct world w;

    responses_start(&w);
    responses_expect(&w, HELLO, CALL("patch", R"({"input": "a\n\"b\"\t\u00e9\ud83d\ude00/"})"),
                     "patch<a\n\"b\"\t\xC3\xA9\xF0\x9F\x98\x80/> completed");
    responses_expect(&w, HELLO, CALL("patch", R"({ "input" : "" })"), "patch<> completed");
    responses_expect(&w, HELLO, CALL("patch", R"({"why": 1, "input": "x"})"), "patch<x> completed");
    responses_expect(&w, HELLO, CALL("patch", R"({"text": "x"})"),
                     R"(patch<{"text": "x"}> completed)");
    responses_expect(&w, HELLO, CALL("patch", R"({"input": 5})"),
                     R"(patch<{"input": )"
                     "5}> completed");
    responses_expect(&w, HELLO, CALL("patch", R"({"input": "x", "more": "y"})"),
                     "patch<x> completed");
    responses_expect(&w, HELLO R"(,"max_output_tokens":59)",
                     CALL("patch", R"({"input": "abcdefgh"})"), "patch<abcde>! incomplete");
    world_stop(&w);
}

Test(native, calls_are_items_of_their_own) {
    static const char tools[] =
        R"("input":"hi","tools":[{"type":"shell","environment":{"type":"local"}},)"
        R"({"type":"apply_patch"},{"type":"local_shell"}])";
    struct world w;

    responses_start(&w);
    responses_expect(&w, tools, CALL("shell", R"({"commands": ["ls", "a\nb"], "timeout_ms": 5})"),
                     R"(shell_call{"commands":["ls","a\nb"],"timeout_ms":5,)"
                     R"("max_output_length":null} completed)");
    responses_expect(&w, tools, CALL("shell", R"({"commands": ["ls"], "max_output_length": 9})"),
                     R"(shell_call{"commands":["ls"],"timeout_ms":null,"max_output_length":9})"
                     " completed");
    responses_expect(&w, tools,
                     CALL("shell", R"({"commands": [], "timeout_ms": 1e300, )"
                                   R"("max_output_length": 18446744073709551615})"),
                     R"(shell_call{"commands":[],"timeout_ms":null,)"
                     R"("max_output_length":null} completed)");
    responses_expect(&w, tools,
                     CALL("apply_patch", R"({"type": "create_file", "path": "p", "diff": "+x"})"),
                     R"(apply_patch_call{"type":"create_file","path":"p","diff":"+x"} completed)");
    responses_expect(&w, tools, CALL("apply_patch", R"({"type": "delete_file", "path": "p"})"),
                     R"(apply_patch_call{"type":"delete_file","path":"p"} completed)");
    responses_expect(&w, tools,
                     CALL("local_shell", R"({"command": ["ls", "-l"], "timeout_ms": 7, )"
                                         R"("working_directory": "/tmp"})"),
                     R"(local_shell_call{"type":"exec","command":["ls","-l"],"env":{},)"
                     R"("timeout_ms":7,"working_directory":"/tmp"} completed)");
    responses_expect(&w, tools, CALL("local_shell", R"({"command": []})"),
                     R"(local_shell_call{"type":"exec","command":[],"env":{},)"
                     R"("timeout_ms":null,"working_directory":null} completed)");
    responses_expect(&w, tools, R"(<tool_call>{"name": "shell", "arguments": {"commands": ["l)",
                     R"(shell_call{"commands":[],"timeout_ms":null,"max_output_length":null}! )"
                     "completed");
    world_stop(&w);
}

Test(native, a_search_and_what_it_finds_are_called) {
    static const char search[] =
        R"("input":"hi","tools":[{"type":"tool_search","execution":"client"}])";
    static const char found[] =
        R"("input":[{"role":"user","content":"hi"},{"type":"tool_search_call","call_)"
        R"(id":)"
        R"("c","execution":"client","arguments":{"query":"q"}},{"type":)"
        R"("tool_search_output","call_id":"c","tools":[{"type":"namespace","name":)"
        R"("mcp__loom","tools":[{"type":"function","name":"twist","defer_loading":true,)"
        R"("parameters":{"type":"object"}}]}]}],"tools":[{"type":"tool_search",)"
        R"("execution":"client"}])";
    struct world w;
    struct reply r;

    responses_start(&w);
    responses_expect(&w, search, CALL("tool_search", R"({"query": "q"})"),
                     R"(tool_search_call{"query":"q"} completed)");
    responses_ask(&w, search, CALL("tool_search", R"({"query": "q"})"), &r);
    cr_expect(strstr(r.body.data, R"("execution":"client")"), "%s", r.body.data);
    reply_deinit(&r);
    responses_expect(&w, found, CALL("mcp__loom__twist", R"({"word": "w"})"),
                     R"(mcp__loom.twist{"word": "w"} completed)");
    world_stop(&w);
}

/* ---- summaries ---- */

#define SEALED "weft1.Uw==" /* "S" */

Test(compaction, a_trigger_makes_the_answer_a_summary) {
    static const char asked[] = R"("input":[{"role":"user","content":"hi"},{"type":)"
                                R"("compaction_trigger"}],)" TOOLS;
    struct world w;
    struct reply r;

    responses_start(&w);
    responses_expect(&w, asked, "<think>\nhm\n</think>\n\nS", "K<" SEALED "> completed");
    cr_expect_eq(w.port.r[0].m.max_new, 8192, "a summary has a limit of its own");
    cr_expect(strstr(responses_prompt(&w), "user\nWrite a summary of this conversation"), "%s",
              responses_prompt(&w));
    cr_expect(strstr(responses_prompt(&w), "weather"),
              "the tools stay: the prefix is in the cache");
    responses_expect(&w, asked, "S" CALL("weather", "{}") "T", "K<" SEALED "> completed");
    responses_expect(&w, asked, CALL("weather", "{}"), "K<weft1.> completed");
    /* the summary replaces the conversation */
    responses_ask(&w,
                  R"("input":[{"type":"compaction","encrypted_content":")" SEALED
                  R"("},{"role":"user","content":"on"}])",
                  "x", &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(responses_prompt(&w), "until here:\n\nS<|im_end|>"), "%s",
              responses_prompt(&w));
    reply_deinit(&r);
    world_stop(&w);
}

Test(compaction, the_route_answers_items_and_keeps_nothing) {
    struct world w;
    struct reply r;

    responses_start(&w);
    w.port.script = "S";
    world_ask(&w, RESPONSES "/compact",
              R"({"model":"tiny","instructions":"I","input":[{"role":"user","content":)"
              R"("hi"}]})",
              &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body.data, R"("object":"response.compaction")"), "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("type":"compaction")"), "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("encrypted_content":")" SEALED R"("}],"usage":{)"), "%s",
              r.body.data);
    char *id = strstr(r.body.data, "resp_"), path[80];
    snprintf(path, sizeof(path), RESPONSES "/%.29s", id);
    struct reply kept;
    world_get(&w, path, &kept);
    cr_expect_eq(kept.status, 404);
    reply_deinit(&kept);
    reply_deinit(&r);
    world_stop(&w);
}

/* ---- cuts and deaths ---- */

static const char story[] = "<think>\nSo \xC3\xA9?\n</think>\n\nI look: <tool\n" CALL(
    "weather", R"({"c": "K)"
               "\xC3\xB6"
               R"(ln"})") "\n" CALL("patch", R"({"input": ")"
                                             "\xC3\xA9"
                                             R"(\u00e9\ud83d\ude00\n."})");
static const char story_told[] = "R<So \xC3\xA9?> M<I look: <tool> weather{\"c\": \"K\xC3\xB6ln\"} "
                                 "patch<\xC3\xA9\xC3\xA9\xF0\x9F\x98\x80\n.> completed";

/* Sends the story in two parts, with a death of the worker and repeated tokens between them. */
static void perform(struct world *w, size_t cut, bool death) {
    char head[sizeof(story)];

    snprintf(head, sizeof(head), "%.*s", (int)cut, story);
    fake_accept(&w->port, 0);
    fake_tokens(&w->port, 0, head);
    world_turns(w, 2);
    if (death) {
        api_worker_down(api_first_model(w->api));
        world_turns(w, 1);
        api_worker_up(api_first_model(w->api), NULL);
        fake_accept(&w->port, 0);
    }
    size_t back = MIN(cut, 3u);
    fake_tokens_from(&w->port, 0, (uint32_t)(cut - back), story + cut - back);
    fake_finish(&w->port, 0, FINISH_STOP);
}

static void run_cuts(bool stream, bool death) {
    struct world w;
    struct reply r;

    responses_start(&w);
    int fd = world_connect_unix(&w);
    for (size_t cut = 0; cut <= sizeof(story) - 1; cut++) {
        w.port.n = 0;
        w.port.r[0].n_submits = 0;
        world_post(&w, fd, RESPONSES, stream ? "{" HELLO R"(,"stream":true})" : "{" HELLO "}");
        world_turns(&w, 3);
        cr_assert_eq(w.port.n, 1);
        perform(&w, cut, death);
        world_receive(&w, fd, &r);
        cr_expect_str_eq(responses_told(&r), story_told);
    }
    world_drop(&w, fd);
    world_stop(&w);
}

Test(responses, items_are_the_same_wherever_tokens_are_cut) {
    run_cuts(true, false);
    run_cuts(false, false);
}

Test(responses, a_death_anywhere_tells_everything_once) {
    run_cuts(true, true);
    run_cuts(false, true);
}

Test(responses, a_slow_reader_gets_the_same) {
    struct world w;
    struct reply r;

    responses_init(&w);
    w.opts.stream_buffer_bytes = 300;
    world_start(&w);
    int fd = world_connect_unix(&w);
    world_post(&w, fd, RESPONSES, "{" HELLO R"(,"stream":true})");
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, story); /* all at once: more than one turn can send */
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
    cr_expect_str_eq(responses_told(&r), story_told);
    world_drop(&w, fd);
    world_stop(&w);
}

/* Returns the answer to @output, which the model writes in pieces of at most @most bytes. */
static const char *say(struct world *w, int fd, bool stream, const char *output, size_t most) {
    char piece[32];
    struct reply r;

    w->port.n = 0;
    world_post(w, fd, RESPONSES, stream ? "{" HELLO R"(,"stream":true})" : "{" HELLO "}");
    world_turns(w, 3);
    cr_assert_eq(w->port.n, 1);
    fake_accept(&w->port, 0);
    for (size_t len = strlen(output), at = 0; at < len; at += MIN(most, len - at)) {
        snprintf(piece, sizeof(piece), "%.*s", (int)most, output + at);
        fake_tokens(&w->port, 0, piece);
    }
    fake_finish(&w->port, 0, FINISH_STOP);
    world_receive(w, fd, &r);
    return responses_told(&r);
}

/* Any output of a model gives the same answer plain and streamed. */
Test(responses, any_output_is_told_the_same_twice) {
    static const char *const pieces[] = {"<think>",
                                         "</think>",
                                         "<tool_call>",
                                         "</tool_call>",
                                         "\n",
                                         " ",
                                         "text",
                                         "\xC3\xA9",
                                         "\xC3",
                                         R"({"name": "patch", "arguments": {"input": ")",
                                         R"({"name": "weather", )",
                                         R"("arguments": {)",
                                         "}}",
                                         R"("}})",
                                         "\\n",
                                         "\\u00e9",
                                         "\\ud83d",
                                         "\\ude00",
                                         R"(\")",
                                         R"(\)",
                                         R"("input":)",
                                         "[1,",
                                         R"({"input":"x)",
                                         R"(")",
                                         R"(ab"}})"
                                         "\n</tool_call>"};
    struct rng rng = {7};
    struct world w;
    char first[4000], output[400];

    responses_start(&w);
    int fd = world_connect_unix(&w);
    for (int round = 0; round < 1000; round++) {
        size_t n = rng_below(&rng, 24), len = 0;

        output[0] = 0;
        for (size_t i = 0; i < n; i++)
            len += (size_t)snprintf(output + len, sizeof(output) - len, "%s",
                                    pieces[rng_below(&rng, ARRAY_SIZE(pieces))]);
        snprintf(first, sizeof(first), "%s", say(&w, fd, false, output, 31));
        cr_assert_str_eq(say(&w, fd, true, output, 1 + rng_below(&rng, 20)), first, "of %s",
                         output);
    }
    world_drop(&w, fd);
    world_stop(&w);
}

/* ---- life ---- */

Test(responses, silence_is_broken_by_events) {
    struct world w;

    responses_init(&w);
    w.opts.keepalive_ms = 5;
    world_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, RESPONSES, "{" HELLO R"(,"stream":true})");
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "A");
    CLEANUP(buf_deinit) struct buf got = {.max = 1 << 20};
    cr_assert(world_read_until(&w, fd, &got, R"("sequence_number":6,)"));
    cr_expect(strstr(got.data, "event: response.in_progress\n"
                               R"(data: {"type":"response.in_)"
                               R"(progress","sequence_number":5,)"),
              "%s", got.data);
    cr_expect(!strstr(got.data, "\n:"), "a comment: %s", got.data);
    fake_finish(&w.port, 0, FINISH_STOP);
    cr_assert(world_read_until(&w, fd, &got, "event: response.completed"));
    world_drop(&w, fd);
    world_stop(&w);
}

Test(responses, a_failure_inside_a_stream_is_its_last_event) {
    struct world w;
    struct reply r;
    CLEANUP(buf_deinit) struct buf line = {.max = 1 << 20};

    responses_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, RESPONSES, "{" HELLO R"(,"stream":true})");
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "Oh");
    world_turns(&w, 3);
    fake_fail(&w.port, 0, 500, "It broke.");
    world_receive(&w, fd, &r);
    yyjson_doc *doc = responses_read(&r, &line);
    cr_expect_str_eq(line.data, "M<Oh>! failed");
    yyjson_val *e = yyjson_obj_get(yyjson_doc_get_root(doc), "error");
    cr_expect(yyjson_equals_str(yyjson_obj_get(e, "code"), "server_error"));
    cr_expect(yyjson_equals_str(yyjson_obj_get(e, "message"), "It broke."));
    yyjson_doc_free(doc);
    world_drop(&w, fd);
    fd = world_connect(&w);
    world_post(&w, fd, RESPONSES, "{" HELLO R"(,"stream":true})");
    world_turns(&w, 4);
    fake_reject(&w.port, 1, 429, "Full.");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 429);
    cr_expect(strstr(r.body.data, R"("error":{"message":"Full.")"), "%s", r.body.data);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

/* Codex compacts its context if the stream reports that it is full; a 400 would end its turn. */
Test(responses, codex_hears_of_a_full_context_in_the_stream) {
    static const char *const clients[] = {"other", "codex_exec", "Codex Desktop"};
    struct world w;
    struct reply r;
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20}, line = {.max = 1 << 20};

    responses_start(&w);
    buf_add_str(&body, R"({"stream":true,"input":")");
    for (int i = 0; i < 4000; i++)
        buf_add_str(&body, "words ");
    buf_add_str(&body, R"("})");
    for (size_t codex = 0; codex < ARRAY_SIZE(clients); codex++) {
        int fd = world_connect(&w);
        world_say(&w, fd,
                  "POST " RESPONSES " HTTP/1.1\r\nHost: localhost\r\nOriginator: %s\r\n"
                  "Content-Length: %zu\r\n\r\n%s",
                  clients[codex], body.len, body.data);
        world_receive(&w, fd, &r);
        world_drop(&w, fd);
        cr_expect_eq(r.status, codex ? 200 : 400);
        if (!codex) {
            reply_deinit(&r);
            continue;
        }
        cr_expect(strstr(r.body.data, "event: response.created\n"), "%s", r.body.data);
        yyjson_doc *doc = responses_read(&r, &line);
        cr_expect_str_eq(line.data, "failed");
        cr_expect(yyjson_equals_str(yyjson_ptr_get(yyjson_doc_get_root(doc), "/error/code"),
                                    "context_length_exceeded"));
        yyjson_doc_free(doc);
    }
    world_stop(&w);
}

Test(responses, a_client_that_leaves_frees_its_generation) {
    struct world w;

    responses_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, RESPONSES, "{" HELLO R"(,"stream":true})");
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "Oh");
    world_turns(&w, 3);
    world_drop(&w, fd);
    cr_expect(w.port.r[0].cancelled);
    world_stop(&w);
}

Test(responses, the_service_stops_in_the_middle) {
    struct world w;

    responses_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, RESPONSES, "{" HELLO R"(,"stream":true})");
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "Oh");
    world_turns(&w, 3);
    world_stop(&w);
    CLEANUP(buf_deinit) struct buf got = {.max = 1 << 20};
    char chunk[65536];
    ssize_t n;
    while ((n = recv(fd, chunk, sizeof(chunk), 0)) > 0)
        buf_add(&got, chunk, (size_t)n);
    cr_expect(got.data && strstr(got.data, "event: response.failed"), "%s", got.data);
    close(fd);
}

/* ---- log probabilities ---- */

#define LOGPROBS R"("include":["message.output_text.logprobs"],"input":"a")"

/* Each message has the log probabilities of its own tokens: not of reasoning, markers or calls, but
 * also of a `<` that the parser held back. */
Test(responses, log_probabilities_are_those_of_the_messages) {
    struct world w;

    responses_start(&w);
    responses_expect(&w, LOGPROBS, "Hello!", "M<Hello!> L<Hello!> completed");
    responses_expect(&w, LOGPROBS, "<think>why</think>a <tool b",
                     "R<why> M<a <tool b> L<a <tool b> completed");
    responses_expect(&w, LOGPROBS R"(,"tools":[{"type":"function","name":"f"}])",
                     R"(on<tool_call>{"name":"f","arguments":{}}</tool_call>off)",
                     "M<on> L<on> f{} M<off> L<off> completed");
    responses_expect(&w, LOGPROBS R"(,"max_output_tokens":3)", "abcdef",
                     "M<abc> L<abc>! incomplete");
    responses_expect(&w, R"("input":"a")", "Hello!", "M<Hello!> completed");
    world_stop(&w);
}

Test(responses, top_logprobs_brings_so_many) {
    CLEANUP(buf_deinit) struct buf line = {.max = 1 << 16};
    struct world w;
    struct reply r;

    responses_start(&w);
    responses_ask(&w, R"("input":"a","top_logprobs":2)", "xy", &r);
    yyjson_doc *doc = responses_read(&r, &line);
    yyjson_val *root = yyjson_doc_get_root(doc);
    yyjson_val *part = yyjson_ptr_get(root, "/output/0/content/0");
    cr_expect_eq(yyjson_arr_size(yyjson_obj_get(part, "logprobs")), 2);
    cr_expect_eq(w.port.r[0].m.n_top, 2);
    cr_expect_eq(yyjson_get_int(yyjson_obj_get(root, "top_logprobs")), 2);
    yyjson_val *entry = yyjson_arr_get_first(yyjson_obj_get(part, "logprobs"));
    cr_expect_str_eq(yyjson_get_str(yyjson_obj_get(entry, "token")), "x");
    cr_expect_eq(yyjson_arr_size(yyjson_obj_get(entry, "top_logprobs")), 2);
    yyjson_doc_free(doc);
    world_stop(&w);
}

/* ---- messages of a WebSocket ---- */

Test(websocket_messages, that_are_wrong_are_refused_and_the_connection_stays) {
    static const char *const cases[][2] = {
        {R"({"type":"response.cancel","input":"a"})", "response.cancel"},
        {R"({"input":"a"})", R"("message":"type must be )"},
        {R"({"type":"response.create","input":"a","stream_id":"1"})",
         "stream_id is not supported: the responses of a connection follow each other."},
        {R"({"type":"response.create","input":"a","background":true})",
         "background cannot be given over a WebSocket"},
        {R"({"type":"response.create","input":"a","generate":1})", "generate must be a boolean"},
        {R"({"type":"response.create"})",
         "One of input, previous_response_id and conversation must be given."},
    };
    CLEANUP(buf_deinit) struct buf last = {.max = 1 << 20};
    struct world w;

    responses_init(&w);
    w.opts.max_stored = 10;
    w.opts.stored_ttl_s = 60;
    w.opts.stored_bytes = 1 << 20;
    w.port.script = "ok";
    world_start(&w);
    int fd = world_websocket(&w, "/v1/responses");
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        CLEANUP(buf_deinit) struct buf seen = {.max = 1 << 20};

        world_message(&w, fd, cases[i][0]);
        cr_assert(world_read_until(&w, fd, &seen, R"({"type":"error","status":400,)"));
        cr_expect(world_read_until(&w, fd, &seen, cases[i][1]));
        cr_expect(world_read_until(&w, fd, &seen, "}}"));
    }
    cr_expect_eq(w.port.n, 0, "nothing of it reached the worker");
    buf_clear(&last);
    world_message(&w, fd, R"({"type":"response.processed","response_id":"a"})");
    world_message(&w, fd, R"({"type":"response.create","input":"a","generate":false})");
    cr_assert(world_read_until(&w, fd, &last, "response.completed"));
    cr_assert_eq(w.port.n, 1);
    cr_expect_eq(last.data[0] & 0x0f, WEBSOCKET_TEXT, "a receipt has no answer");
    cr_expect_eq(w.port.r[0].m.max_new, 1, "a response that only warms");
    buf_clear(&last);
    world_message(&w, fd, R"({"type":"response.create","input":"a","generate":true})");
    cr_assert(world_read_until(&w, fd, &last, "response.completed"));
    cr_assert_eq(w.port.n, 2);
    cr_expect_gt(w.port.r[1].m.max_new, 1);
    world_drop(&w, fd);
    world_stop(&w);
}
