/*
 * Tool calls and reasoning as a client gets them: a stream, assembled by the rules of the SDKs,
 * equals the plain answer, wherever the tokens are cut and whenever the worker dies.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "stream.h"
#include "tiny.h"

#define TOOL(name)                                                                                 \
    R"({"type":"function","function":{"name":")" name                                              \
    R"(","description":"D.","parameters":{"type":"object","properties":{"city":{)"                 \
    R"("type":"string"}}}}})"
#define TOOLS R"("tools":[)" TOOL("weather") "," TOOL("time") "]"
#define CALL(name, args)                                                                           \
    "<tool_call>\n"                                                                                \
    R"({"name": ")" name R"(", "arguments": )" args "}\n</tool_call>"

static const char hermes[] =
    "{%- if tools -%}<|im_start|>system\n{%- for t in tools -%}{{ t.function.name }} "
    "{%- endfor -%}<|im_end|>\n{%- endif -%}{%- for m in messages -%}"
    "{{ '<|im_start|>' + m.role + '\n' + m.content }}{%- for c in m.tool_calls or [] -%}"
    "<tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>"
    "{%- endfor -%}<|im_end|>\n{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% if thinking %}<think>\n{% endif %}"
    "{%- endif -%}{% if false %} </think> {% endif %}";

static uint32_t stream_buffer; /* 0: the default size */

static void use_template(struct world *w, const char *source, size_t len) {
    world_init(w);
    world_use_template(w, source, len);
    w->model.max_context = 16384;
    w->opts.stream_buffer_bytes = stream_buffer ? stream_buffer : w->opts.stream_buffer_bytes;
    world_start(w);
}

static void started(struct world *w) {
    use_template(w, hermes, sizeof(hermes) - 1);
}

/* ---- results as text: R<reasoning> C<content> name{arguments} finish ---- */

struct told {
    struct buf reasoning, content, line;
    struct buf args[8];
    char names[8][64], ids[8][64];
    size_t n_calls;
    char finish[16];
    uint64_t n_reasoning;
};

static void told_init(struct told *t) {
    memset(t, 0, sizeof(*t));
    buf_init(&t->reasoning, 1 << 20);
    buf_init(&t->content, 1 << 20);
    buf_init(&t->line, 1 << 20);
    for (size_t i = 0; i < ARRAY_SIZE(t->args); i++)
        buf_init(&t->args[i], 1 << 20);
}

static void told_deinit(struct told *t) {
    buf_deinit(&t->reasoning);
    buf_deinit(&t->content);
    buf_deinit(&t->line);
    for (size_t i = 0; i < ARRAY_SIZE(t->args); i++)
        buf_deinit(&t->args[i]);
}

static void add_string(struct buf *b, yyjson_val *v) {
    cr_assert(!v || yyjson_is_null(v) || yyjson_is_str(v));
    buf_add(b, yyjson_get_str(v), yyjson_get_len(v));
}

static void copy_text(char *out, size_t size, yyjson_val *v) {
    const char *s = yyjson_get_str(v);

    snprintf(out, size, "%s", s ? s : "");
}

static void take_call(struct told *t, yyjson_val *call, bool stream) {
    yyjson_val *f = yyjson_obj_get(call, "function"), *name = yyjson_obj_get(f, "name");
    yyjson_val *index = yyjson_obj_get(call, "index"), *args = yyjson_obj_get(f, "arguments");

    cr_assert_eq(yyjson_is_uint(index), stream);
    size_t i = stream ? yyjson_get_uint(index) : t->n_calls;
    cr_assert_lt(i, ARRAY_SIZE(t->args));
    cr_assert(yyjson_is_str(args));
    if (name) {
        cr_assert_eq(i, t->n_calls++, "a name twice, or out of order");
        cr_assert(yyjson_equals_str(yyjson_obj_get(call, "type"), "function"));
        copy_text(t->names[i], sizeof(t->names[i]), name);
        copy_text(t->ids[i], sizeof(t->ids[i]), yyjson_obj_get(call, "id"));
        cr_assert(t->ids[i][0]);
        cr_assert(!stream || yyjson_get_len(args) == 0, "the first delta has arguments");
    } else {
        cr_assert_eq(i + 1, t->n_calls);
        cr_assert(!yyjson_obj_get(call, "id") && !yyjson_obj_get(call, "type"));
    }
    add_string(&t->args[i], args);
}

static void take_message(struct told *t, yyjson_val *m, bool stream) {
    yyjson_val *calls = yyjson_obj_get(m, "tool_calls"), *call;
    yyjson_val *reasoning = yyjson_obj_get(m, "reasoning_content");
    size_t i, n;

    cr_assert(yyjson_equals(reasoning, yyjson_obj_get(m, "reasoning")) || !reasoning);
    add_string(&t->reasoning, reasoning);
    add_string(&t->content, yyjson_obj_get(m, "content"));
    yyjson_arr_foreach(calls, i, n, call) take_call(t, call, stream);
}

static void take_root(struct told *t, yyjson_val *root, size_t choice, bool stream) {
    yyjson_val *c, *finish, *usage = yyjson_obj_get(root, "usage");
    size_t i, n;

    yyjson_arr_foreach(yyjson_obj_get(root, "choices"), i, n, c) {
        if (yyjson_get_uint(yyjson_obj_get(c, "index")) != choice)
            continue;
        cr_assert_eq(t->finish[0], 0);
        take_message(t, yyjson_obj_get(c, stream ? "delta" : "message"), stream);
        finish = yyjson_obj_get(c, "finish_reason");
        copy_text(t->finish, sizeof(t->finish), finish);
    }
    if (yyjson_is_obj(usage))
        t->n_reasoning =
            yyjson_get_uint(yyjson_ptr_get(usage, "/completion_tokens_details/reasoning_tokens"));
}

static const char *text_of(const struct buf *b) {
    return b->data ? b->data : "";
}

static const char *tell(struct told *t, struct reply *r, size_t choice) {
    bool stream = strncmp(text_of(&r->body), "data: ", 6) == 0;
    char *save = NULL;

    told_init(t);
    cr_assert_eq(r->status, 200, "%s", text_of(&r->body));
    for (char *line = strtok_r(r->body.data, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        line += stream ? 6 : 0;
        if (strcmp(line, "[DONE]") == 0)
            break;
        yyjson_doc *doc = yyjson_read(line, strlen(line), 0);

        cr_assert(doc, "%s", line);
        take_root(t, yyjson_doc_get_root(doc), choice, stream);
        yyjson_doc_free(doc);
    }
    if (t->reasoning.len)
        buf_printf(&t->line, "R<%s> ", t->reasoning.data);
    if (t->content.len)
        buf_printf(&t->line, "C<%s> ", t->content.data);
    for (size_t i = 0; i < t->n_calls; i++)
        buf_printf(&t->line, "%s%s ", t->names[i], text_of(&t->args[i]));
    buf_add_str(&t->line, t->finish);
    return t->line.data;
}

static void expect_told(struct reply *r, const char *want, uint64_t n_reasoning) {
    struct told t;
    const char *line = tell(&t, r, 0);

    cr_expect_str_eq(line, want);
    cr_expect_eq(t.n_reasoning, n_reasoning, "%u reasoning tokens", (unsigned)t.n_reasoning);
    told_deinit(&t);
    reply_deinit(r);
}

static void ask(struct world *w, const char *fields, const char *output, struct reply *r) {
    char body[2000];

    snprintf(body, sizeof(body), "{" HI ",%s}", fields);
    w->port.script = output;
    world_ask(w, CHAT, body, r);
    w->port.script = NULL;
}

#define USAGE R"(,"stream":true,"stream_options":{"include_usage":true})"

/* Compares the answer, plain and streamed. */
static void expect(struct world *w, const char *fields, const char *output, const char *want,
                   uint64_t n_reasoning) {
    struct reply r;
    char with[1500];

    ask(w, fields, output, &r);
    expect_told(&r, want, n_reasoning);
    snprintf(with, sizeof(with), "%s" USAGE, fields);
    ask(w, with, output, &r);
    expect_told(&r, want, n_reasoning);
}

/* ---- forms ---- */

Test(tools, a_plain_call_is_exact) {
    struct world w;
    struct reply r;

    started(&w);
    ask(&w, TOOLS, CALL("weather", R"({"city": "Bonn"})"), &r);
    reply_normalise(&r.body);
    cr_expect(strstr(text_of(&r.body),
                     R"("message":{"role":"assistant","content":null,"tool_calls":[{"id":"X",)"
                     R"("type":"function","function":{"name":"weather","arguments":"{\"city)"
                     R"(\": \"Bonn\"}"}}],"refusal":null},"logprobs":null,"finish_reason":)"
                     R"("tool_calls"}])"),
              "%s", text_of(&r.body));
    reply_deinit(&r);
    world_stop(&w);
}

Test(tools, a_streamed_call_is_exact) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI "," TOOLS R"(,"stream":true})");
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0,
                "Hm.\n"
                R"(<tool_call>{"name":"time","arguments":{)");
    world_turns(&w, 4);
    fake_tokens(&w.port, 0, "}}</tool_call>");
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
#define CALLS(call)                                                                                \
    CHUNK(R"({"index":0,"delta":{"tool_calls":[)" call                                             \
          R"(]},"logprobs":null,"finish_reason":null})")
    reply_expect(
        &r, 200,
        ROLE DELTA("Hm.") CALLS(R"({"index":0,"id":"X","type":"function","function":{"name":)"
                                R"("time","arguments":""}})")
            CALLS(R"({"index":0,"function":{"arguments":"{"}})")
                CALLS(R"({"index":0,"function":{"arguments":"}"}})") FINISH("tool_calls") DONE);
    world_drop(&w, fd);
    world_stop(&w);
}

/* `functions`, the form before `tools`: calls are returned in the same form. */
Test(tools, functions_are_called_in_their_own_form) {
#define FUNCTIONS R"("functions":[{"name":"time","parameters":{"type":"object"}}])"
    struct world w;
    struct reply r;

    started(&w);
    ask(&w, FUNCTIONS, CALL("time", R"({"a": 1})"), &r);
    reply_normalise(&r.body);
    cr_expect(strstr(text_of(&r.body),
                     R"("content":null,"function_call":{"name":"time","arguments":"{)"
                     R"(\"a\": 1}"},"refusal":null},"logprobs":null,"finish_reason":)"
                     R"("function_call"}])"),
              "%s", text_of(&r.body));
    reply_deinit(&r);
    ask(&w, FUNCTIONS R"(,"stream":true)", CALL("time", "{}"), &r);
    cr_expect(
        strstr(text_of(&r.body), R"("delta":{"function_call":{"name":"time","arguments":""}})"),
        "%s", text_of(&r.body));
    cr_expect(strstr(text_of(&r.body), R"("delta":{"function_call":{"arguments":"{)"));
    cr_expect(strstr(text_of(&r.body), R"("finish_reason":"function_call")"));
    cr_expect(!strstr(text_of(&r.body), "tool_calls"));
    reply_deinit(&r);
    ask(&w, FUNCTIONS R"(,"function_call":"none")", CALL("time", "{}"), &r);
    cr_expect(!strstr(text_of(&r.body), "function_call"), "%s", text_of(&r.body));
    reply_deinit(&r);
    ask(&w, FUNCTIONS R"(,"function_call":{"name":"time"})", CALL("time", "{}"), &r);
    cr_expect(strstr(text_of(&r.body), R"("function_call":{"name":"time")"));
    reply_deinit(&r);
    world_stop(&w);
}

Test(tools, the_worker_is_told_how_a_turn_ended) {
    static const struct {
        const char *body, *output;
        enum finish_reason why;
        bool calls;
    } ends[] = {
        {"{" HI "," TOOLS "}", CALL("time", "{}"), FINISH_STOP, true},
        {"{" HI "," TOOLS "}", "Nothing to call.", FINISH_STOP, false},
        {"{" HI "," TOOLS "}", CALL("time", "{}") "<tool_call>", FINISH_LENGTH, false},
        {"{" HI R"(,"stream":true})", "Yes.", FINISH_STOP, false},
    };
    struct world w;
    struct reply r;

    started(&w);
    for (uint32_t i = 0; i < ARRAY_SIZE(ends); i++) {
        int fd = world_connect(&w);

        world_post(&w, fd, CHAT, ends[i].body);
        world_turns(&w, 4);
        fake_accept(&w.port, i);
        fake_tokens(&w.port, i, ends[i].output);
        cr_expect_eq(w.port.n_turns, i, "not before it has ended");
        fake_finish(&w.port, i, ends[i].why);
        cr_assert_eq(w.port.n_turns, i + 1);
        cr_expect_eq(w.port.last_turn.calls, ends[i].calls, "%u", i);
        cr_expect_eq(w.port.last_turn.id, w.port.r[i].id);
        cr_expect(w.port.last_turn.session && w.port.last_turn.session == w.port.r[i].m.session);
        world_receive(&w, fd, &r);
        reply_deinit(&r);
        world_drop(&w, fd);
    }
    int fd = world_connect(&w); /* a client that has left has no next turn */
    world_post(&w, fd, CHAT, ends[3].body);
    world_turns(&w, 4);
    fake_accept(&w.port, 4);
    fake_fail(&w.port, 4, 500, "broken");
    cr_expect_eq(w.port.n_turns, 4);
    world_receive(&w, fd, &r);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

/* ---- cuts and deaths ---- */

static const char story[] = "<think>\nSo \xC3\xA9?\n</think>\n\nI look: <tool\n" CALL(
    "weather", R"({"city": "K)"
               "\xC3\xB6"
               R"(ln \"x\""})") "\n" CALL("time", "{}");
static const char story_told[] = "R<So \xC3\xA9?> C<I look: <tool> weather{\"city\": \"K\xC3\xB6ln "
                                 R"(\"x\""} time{} tool_calls)";

/* Every token of a marker except its last one counts; here a byte is a token. */
#define STORY_REASONING (8 + 7)

/* Sends the story in two parts, with a death of the worker and repeated tokens between them. */
static void perform(struct world *w, uint32_t i, size_t cut, bool death) {
    char head[sizeof(story)];

    snprintf(head, sizeof(head), "%.*s", (int)cut, story);
    fake_accept(&w->port, i);
    fake_tokens(&w->port, i, head);
    world_turns(w, 2);
    if (death) {
        api_worker_down(api_first_model(w->api));
        world_turns(w, 1);
        api_worker_up(api_first_model(w->api), NULL);
        cr_assert_eq(w->port.r[i].n_submits, 2);
        cr_assert_eq(w->port.r[i].m.n_tokens - w->port.r[i].m.n_prompt, cut);
        fake_accept(&w->port, i);
    }
    size_t back = MIN(cut, 3u);
    fake_tokens_from(&w->port, i, (uint32_t)(cut - back), story + cut - back);
    fake_finish(&w->port, i, FINISH_STOP);
}

static void run_cuts(bool stream, bool death) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect_unix(&w);
    for (size_t cut = 0; cut <= sizeof(story) - 1; cut++) {
        w.port.n = 0;
        w.port.r[0].n_submits = 0;
        world_post(&w, fd, CHAT, stream ? "{" HI "," TOOLS USAGE "}" : "{" HI "," TOOLS "}");
        world_turns(&w, 3);
        cr_assert_eq(w.port.n, 1);
        perform(&w, 0, cut, death);
        world_receive(&w, fd, &r);
        expect_told(&r, story_told, STORY_REASONING);
    }
    world_drop(&w, fd);
    world_stop(&w);
}

Test(tools, calls_are_the_same_wherever_tokens_are_cut) {
    run_cuts(true, false);
    run_cuts(false, false);
}

Test(tools, a_death_anywhere_tells_everything_once) {
    run_cuts(true, true);
    run_cuts(false, true);
}

Test(tools, a_slow_reader_gets_the_same) {
    struct world w;
    struct reply r;
    CLEANUP(buf_deinit) struct buf out = {.max = 1 << 20}, want = {.max = 1 << 20};

    stream_buffer = 300;
    started(&w);
    for (int i = 0; i < 7; i++) {
        buf_add_str(&out, i ? "\n" : "Text. ");
        buf_add_str(&out, CALL("weather", R"({"city": "Bonn"})"));
    }
    buf_add_str(&want, "C<Text.> ");
    for (int i = 0; i < 7; i++)
        buf_add_str(&want, R"(weather{"city": "Bonn"} )");
    buf_add_str(&want, "tool_calls");
    int fd = world_connect_unix(&w);
    world_post(&w, fd, CHAT, "{" HI "," TOOLS R"(,"stream":true})");
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, out.data); /* all at once: more than one turn can send */
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
    expect_told(&r, want.data, 0);
    world_drop(&w, fd);
    world_stop(&w);
}

/* ---- texts that are calls, and texts that are not ---- */

Test(tools, what_is_no_call_is_content) {
    struct world w;

    started(&w);
    expect(&w, TOOLS, "<tool_call>\n{\"name\": 5}\n</tool_call> x",
           "C<<tool_call>\n{\"name\": 5}\n</tool_call> x> stop", 0);
    expect(&w, TOOLS, "<tool_call>oh", "C<<tool_call>oh> stop", 0);
    expect(&w, TOOLS, "a <tool_call", "C<a <tool_call> stop", 0);
    world_stop(&w);
}

Test(tools, a_call_that_breaks_off_is_not_a_reason) {
    struct world w;

    started(&w);
    expect(&w, TOOLS, R"(<tool_call>{"name": "time", "arguments": {"a": ["1)",
           R"(time{"a": ["1 stop)", 0);
    expect(&w, TOOLS, R"(<tool_call>{"name": "time", "arguments": {"a": [1)",
           R"(time{"a": [1]} tool_calls)", 0); /* just its end is missing */
    expect(&w, TOOLS R"(,"max_tokens":60)", CALL("time", R"({"a": 1, "bbbbbbbbbbbbbbbbbbbb": 2})"),
           R"(time{"a": 1, "bbbbbbbb length)", 0);
    world_stop(&w);
}

Test(tools, without_tools_nothing_is_a_call) {
    struct world w;
    struct reply r;

    started(&w);
    expect(&w, R"("n":1)", CALL("time", "{}"), "C<" CALL("time", "{}") "> stop", 0);
    expect(&w, TOOLS R"(,"tool_choice":"none")", CALL("time", "{}"),
           "C<" CALL("time", "{}") "> stop", 0);
    world_ask(&w, CHAT "/render", "{" HI "," TOOLS R"(,"tool_choice":"none"})", &r);
    cr_expect(!strstr(text_of(&r.body), "weather"), "%s", text_of(&r.body));
    reply_deinit(&r);
    world_ask(&w, CHAT "/render", "{" HI "," TOOLS R"(,"tool_choice":"auto"})", &r);
    cr_expect(strstr(text_of(&r.body), "weather"), "%s", text_of(&r.body));
    reply_deinit(&r);
    world_stop(&w);
}

Test(tools, without_parallel_calls_one_is_told) {
    struct world w;

    started(&w);
    expect(&w, TOOLS R"(,"parallel_tool_calls":false)",
           CALL("time", "{}") "\n" CALL("weather", "{}"),
           "C<" CALL("weather", "{}") "> time{} tool_calls", 0);
    expect(&w,
           TOOLS ","
                 R"("parallel_tool_calls":true)",
           CALL("time", "{}") "\n" CALL("weather", "{}"), "time{} weather{} tool_calls", 0);
    world_stop(&w);
}

Test(tools, a_stop_string_ends_calls_too) {
    struct world w;

    started(&w);
    expect(&w, TOOLS R"(,"stop":"</tool_call>")", CALL("time", "{}") "\n" CALL("weather", "{}"),
           "time{} tool_calls", 0);
    expect(&w, TOOLS R"(,"stop":"STOP")", "Hi STOP" CALL("weather", "{}"), "C<Hi > stop", 0);
    world_stop(&w);
}

Test(tools, choices_have_their_own_calls) {
    struct world w;
    struct reply r;
    struct told a, b;

    started(&w);
    ask(&w, TOOLS R"(,"n":2)", CALL("time", "{}"), &r);
    struct reply copy = r;
    copy.body = (struct buf){.max = 1 << 20};
    buf_add(&copy.body, r.body.data, r.body.len);
    cr_expect_str_eq(tell(&a, &r, 0), "time{} tool_calls");
    cr_expect_str_eq(tell(&b, &copy, 1), "time{} tool_calls");
    cr_expect_str_neq(a.ids[0], b.ids[0]);
    told_deinit(&a);
    told_deinit(&b);
    reply_deinit(&r);
    reply_deinit(&copy);
    world_stop(&w);
}

Test(tools, markers_may_be_special_tokens) {
    struct world w;
    struct reply r;
    static const int32_t begin[] = {TINY_JUNK, TINY_CALL}, end[] = {TINY_CALL_END, TINY_JUNK};

    started(&w);
    for (int i = 0; i < 4; i++) {
        bool tools = i < 2;

        int fd = world_connect(&w);
        world_post(&w, fd, CHAT,
                   i == 0   ? "{" HI "," TOOLS "}"
                   : i == 1 ? "{" HI "," TOOLS USAGE "}"
                   : i == 2 ? "{" HI "}"
                            : "{" HI USAGE "}");
        world_turns(&w, 4);
        fake_accept(&w.port, (uint32_t)i);
        fake_tokens(&w.port, (uint32_t)i, "Hm");
        fake_ids(&w.port, (uint32_t)i, begin, 2);
        fake_tokens(&w.port, (uint32_t)i, R"({"name": "time", "arguments": {}})");
        fake_ids(&w.port, (uint32_t)i, end, 2);
        fake_finish(&w.port, (uint32_t)i, FINISH_STOP);
        world_receive(&w, fd, &r);
        expect_told(&r,
                    tools ? "C<Hm> time{} tool_calls"
                          : R"(C<Hm{"name": "time", "arguments": {}}> stop)",
                    0);
        world_drop(&w, fd);
    }
    world_stop(&w);
}

/* ---- reasoning ---- */

Test(reasoning, is_told_apart_and_counted) {
    struct world w;

    started(&w);
    expect(&w, R"("n":1)", "<think>abc</think>\n\nYes", "R<abc> C<Yes> stop", 10);
    expect(&w, R"("n":1)", "Yes <think>abc</think>", "C<Yes <think>abc</think>> stop", 0);
    expect(&w, R"("chat_template_kwargs":{"thinking":true})", "abc</think>Yes",
           "R<abc> C<Yes> stop", 10);
    expect(&w, R"("chat_template_kwargs":{"thinking":true},"max_tokens":2)", "abc", "R<ab> length",
           2);
    world_stop(&w);
}

/* ---- the past ---- */

#define PAST                                                                                       \
    R"("messages":[{"role":"user","content":"hi"},{"role":"assistant","content":)"                 \
    R"(null,"tool_calls":[{"id":"abcdefghi","type":"function","function":{"name":)"                \
    R"("time","arguments":"{\"needle\": 1}"}}]},{"role":"tool","tool_call_id":)"                   \
    R"("abcdefghi","name":"time","content":"noon"}])"

static void expect_render(struct world *w, const char *body, const char *const *parts) {
    struct reply r;

    world_ask(w, CHAT "/render", body, &r);
    cr_expect_eq(r.status, 200, "%s", text_of(&r.body));
    yyjson_doc *doc = yyjson_read(text_of(&r.body), r.body.len, 0);
    yyjson_val *text = yyjson_ptr_get(yyjson_doc_get_root(doc), "/prompts/0/text");
    for (size_t i = 0; yyjson_is_str(text) && parts[i]; i++)
        cr_expect(strstr(yyjson_get_str(text), parts[i]), "no %s in %s", parts[i],
                  yyjson_get_str(text));
    yyjson_doc_free(doc);
    reply_deinit(&r);
}

Test(past, arguments_reach_the_template_as_it_wants_them) {
    static const char pasting[] =
        "{%- for m in messages -%}[{{ m.role }}]{{ m.content }}{%- for c in m.tool_calls or [] -%}"
        "{{ '(' + c.function.name + c.function.arguments + ')' }}{%- endfor -%}{%- endfor -%}"
        "{{ tools | length if tools else '' }}";
    struct world w;

    started(&w);
    expect_render(&w, "{" PAST "," TOOLS "}",
                  (const char *const[]){R"(<tool_call>time {"needle": 1}</tool_call>)",
                                        "<|im_start|>tool\nnoon", NULL});
    world_stop(&w);
    use_template(&w, pasting, sizeof(pasting) - 1);
    expect_render(&w, "{" PAST "," TOOLS "}",
                  (const char *const[]){R"([assistant](time{"needle": 1}))", "[tool]noon", NULL});
    world_stop(&w);
}

Test(past, a_template_without_tools_gets_them_as_text) {
    static const char plain[] = "{%- for m in messages -%}[{{ m.role }}]{{ m.content }}"
                                "{%- endfor -%}";
    static const char strict[] =
        "{%- if messages[0].role == 'system' -%}{{ raise_exception('no system') }}{%- endif -%}"
        "{%- for m in messages -%}{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}"
        "{{ raise_exception('order') }}{%- endif -%}[{{ m.role }}]{{ m.content }}{%- endfor -%}";
    struct world w;

    use_template(&w, plain, sizeof(plain) - 1);
    expect(&w, TOOLS, "Hm. " CALL("weather", R"({"city": "Bonn"})"),
           R"(C<Hm.> weather{"city": "Bonn"} tool_calls)", 0);
    expect_render(&w, "{" PAST "," TOOLS "}",
                  (const char *const[]){"[system]You may call", R"("weather")", "[user]hi",
                                        "[assistant]" CALL("time", R"({"needle": 1})"),
                                        "[user]<tool_response>\ntime: noon\n</tool_response>",
                                        NULL});
    expect_render(&w, R"({"messages":[{"role":"system","content":"Be brief."}],)" TOOLS "}",
                  (const char *const[]){"[system]Be brief.\n\nYou may call", NULL});
    world_stop(&w);
    use_template(&w, strict, sizeof(strict) - 1);
    expect_render(&w, "{" PAST "," TOOLS "}",
                  (const char *const[]){"[user]You may call", "\n\nhi[assistant]", NULL});
    world_stop(&w);
}

/* ---- templates as they are shipped ---- */

Test(real, templates_get_the_past_and_calls_are_read) {
    static const struct {
        const char *name, *past, *output, *want;
    } rows[] = {
        {"Qwen-Qwen3-0.6B", R"({"name": "time", "arguments": {"needle": 1}})",
         "<think>\nHm\n</think>\n\n" CALL("time", R"({"a": 1})"),
         R"(R<Hm> time{"a": )"
         "1} tool_calls"},
        {"Qwen3-Coder", "<parameter=needle>\n1\n</parameter>",
         "<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n</function>\n"
         "</tool_call>",
         R"(weather{"city": "Bonn"} tool_calls)"},
        {"meta-llama-Llama-3.1-8B-Instruct", R"({"name": "time", "parameters": {"needle": 1}})",
         R"({"name": "time", "parameters": {"a": 1}})", R"(time{"a": 1} tool_calls)"},
        {"Mistral-Small-3.2-24B-Instruct-2506", R"([ARGS]{"needle": 1})",
         R"([TOOL_CALLS]time[ARGS]{"a": 1})", R"(time{"a": 1} tool_calls)"},
        {"openai-gpt-oss-120b", R"({"needle": 1})",
         "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>commentary "
         R"(to=functions.time <|constrain|>json<|message|>{"a": 1})",
         R"(R<Hm> time{"a": 1} tool_calls)"},
        {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", R"("arguments": {"needle": 1}})",
         "Hm</think>\n\n" CALL("time", R"({"a": 1})"), R"(R<Hm> time{"a": 1} tool_calls)"},
        {"LFM2-8B-A1B",
         "<|im_start|>assistant\n<|tool_call_start|>[time(needle=1)]<|tool_call_end|><|im_end|>",
         "<|tool_call_start|>[time(a=1)]<|tool_call_end|>", R"(time{"a": 1} tool_calls)"},
        {"ibm-granite-granite-3.3-2B-Instruct",
         R"(<|end_of_role|><|tool_call|>[{"name": "time", "arguments": {"needle": )"
         "1}}]<|end_of_text|>",
         R"(<|tool_call|>[{"name": "time", "arguments": {"a": 1}}])", R"(time{"a": 1} tool_calls)"},
        {"THUDM-GLM-4-9B-0414", "<|assistant|>time \n{\"needle\": 1}<|observation|>\n",
         "time\n"
         R"({"a": 1})",
         R"(time{"a": 1} tool_calls)"},
        {"tiiuae-Falcon-H1-Tiny-Multilingual-100M-Instruct", R"("needle": 1)",
         "<tool_call>\n[\n  {\"name\": \"time\", \"arguments\": {\"a\": 1}}\n]\n</tool_call>",
         R"(time{"a": 1} tool_calls)"},
        {"google-gemma-2-2b-it", R"("arguments": {"needle": 1}})", CALL("time", "{}"),
         "time{} tool_calls"},
        {"Apertus-8B-Instruct", R"({"time": {"needle": 1}})",
         R"(<|tools_prefix|>[{"time": {}}])"
         "<|tools_suffix|>",
         "time{} tool_calls"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct world w;
        struct reply r;
        size_t len;
        char *source = world_template(rows[i].name, &len);

        use_template(&w, source, len);
        expect_render(&w, "{" PAST "," TOOLS "}",
                      (const char *const[]){rows[i].past, "noon", NULL});
        for (int stream = 0; stream < 2; stream++) {
            struct told t;

            ask(&w, stream ? TOOLS R"(,"stream":true)" : TOOLS, rows[i].output, &r);
            cr_expect_str_eq(tell(&t, &r, 0), rows[i].want, "%s: %s", rows[i].name, t.line.data);
            told_deinit(&t);
            reply_deinit(&r);
        }
        world_stop(&w);
        free(source);
    }
}

/* ---- histories ---- */

#define TALK(before, message, behind)                                                              \
    R"({"messages":[)" before message behind R"(,{"role":"user","content":"q"}],"max_tokens":4})"
#define ASKED                                                                                      \
    R"({"role":"assistant","tool_calls":[{"id":"c","function":{"name":"f",)"                       \
    R"("arguments":"{}"}}]},)"
#define CALLED "assistant:" CALL("f", "{}") "|"
#define RESULT(content) R"({"role":"tool","tool_call_id":"c")" content "}"

/* Contents of models and tools are never refused, and clear texts of clients are not. */
Test(tools, what_was_said_is_not_refused) {
    static const struct {
        const char *body, *prompt;
    } rows[] = {
        {TALK(ASKED,
              RESULT(R"(,"content":[{"type":"text","text":"a"},{"type":)"
                     R"("image_url","image_url":{"url":"data:"}}])"),
              ""),
         CALLED "tool:a\n(An image or file, which this model cannot see.)|"},
        {TALK(ASKED, RESULT(R"(,"content":null)"), ""), CALLED "tool:|"},
        {TALK(ASKED, RESULT(R"(,"content":{"t":[1,"a,b"],"n":null})"), ""),
         CALLED R"(tool:{"t": [1, "a,b"], "n": null}|)"},
        {TALK(ASKED, RESULT(R"(,"content":7.5)"), ""), CALLED "tool:7.5|"},
        {TALK(ASKED, RESULT(R"(,"content":["a","b"])"), ""), CALLED R"(tool:["a", "b"]|)"},
        {TALK(ASKED, RESULT(R"(,"content":[{"text":"a"}])"), ""),
         CALLED R"(tool:[{"text": "a"}]|)"},
        {TALK(ASKED,
              RESULT(R"(,"content":[{"type":"text","text":"a"},"b",1,)"
                     R"({"type":"text","text":{"c":1}},{"type":"text","text":null}])"),
              ""),
         CALLED R"(tool:ab1{"c": 1}|)"},
        {TALK(ASKED, RESULT(R"(,"content":{"type":"text","text":"a"})"), ""), CALLED "tool:a|"},
        /* what a tool of MCP returns */
        {TALK(ASKED,
              RESULT(R"(,"content":[{"type":"text","text":"a"},{"type":"image","data":"aaaa"},)"
                     R"({"type":"resource","resource":{"uri":"u","text":"b"}},{"type":"text",)"
                     R"("text":"c"},{"type":"resource","resource":{"uri":"u","blob":"aa"}}])"),
              ""),
         CALLED "tool:a\n(An image or file, which this model cannot see.)\n"
                R"({"type": "resource", "resource": {"uri": "u", "text": "b"}})"
                "\nc\n(An image or file, which this model cannot see.)|"},
        {TALK(ASKED, RESULT(R"(,"content":[{"type":"file","name":"a"},{"type":"file","file":{}}])"),
              ""),
         CALLED R"(tool:{"type": "file", "name": "a"})"
                "\n(An image or file, which this model cannot see.)|"},
        {TALK("", R"({"role":"assistant","content":"a","reasoning":["r"],"name":5})", ""),
         "assistant:a|"},
        {TALK("", R"({"role":"assistant","content":{"a":true}})", ""), R"(assistant:{"a": true}|)"},
        {TALK("", R"({"role":"assistant","content":["a",{"text":"b"}]})", ""), "assistant:a\nb|"},
        {TALK("",
              R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":[]}},)"
              R"({"function":{"name":"f","arguments":[1,"a"]}}]})",
              ""),
         "assistant:" CALL("f", "{}") "\n" CALL("f", R"([1, "a"])") "|"},
        {TALK(R"({"role":"assistant","tool_calls":[{"id":"c","type":"function","name":"f",)"
              R"("arguments":"{}"}]},)",
              RESULT(R"(,"content":"a")"), ""),
         CALLED "tool:a|"},
        {TALK("", R"({"role":"user","content":["a",{"text":"b"}]})", ""), "user:a\nb|"},
        {TALK("", R"({"role":"user","content":{"type":"text","text":"a"}})", ""), "user:a|"},
        {TALK("", R"({"role":"user","content":null})", ""), "user:|"},
        {TALK("", R"({"role":"system","content":[{"text":"a"}]})", ""), "system:a|"},
        {TALK(ASKED, RESULT(""), ""), CALLED "tool:|"},
        {TALK("",
              R"({"role":"assistant","content":[{"type":"thinking","thinking":"t"},)"
              R"({"type":"redacted_thinking","data":"x"},{"type":"text","text":)"
              R"("a"}]})",
              ""),
         "assistant:a<t>|"},
        {TALK("",
              R"({"role":"assistant","content":[{"type":"thinking","thinking":[{"type":"text",)"
              R"("text":"t"},{"type":"text","text":"u"}]},{"type":"text","text":"a"}]})",
              ""),
         "assistant:a<tu>|"},
        {TALK("",
              R"({"role":"assistant","content":[{"type":"thinking","thinking":"t"},)"
              R"({"type":"thinking","thinking":""},{"type":"thinking","thinking":"u"},)"
              R"({"type":"text","text":"a"}]})",
              ""),
         "assistant:a<t\nu>|"},
        {TALK("",
              R"({"role":"assistant","reasoning_content":"r","content":[{"type":)"
              R"("thinking","thinking":"t"},{"type":"text","text":"a"}]})",
              ""),
         "assistant:a<r>|"},
    };
    static const char dump[] =
        "{{ tools | tojson if tools }}{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}"
        "<tool_call>{{ c.function.name }}{% endfor %}{% if m.reasoning_content %}<{{ "
        "m.reasoning_content }}>{% endif %}|{% endfor %}{% if false %} </think> {% endif %}";
    struct world w;
    struct reply r;
    char want[400];

    use_template(&w, dump, sizeof(dump) - 1);
    w.port.script = "x";
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        CLEANUP(buf_deinit) struct buf prompt = {.max = 1 << 20};

        world_ask(&w, "/v1/chat/completions", rows[i].body, &r);
        cr_assert_eq(r.status, 200, "%s: %s", rows[i].body, r.body.data);
        reply_deinit(&r);
        tokenizer_decode(w.model.tokenizer, w.port.r[i].m.tokens, w.port.r[i].m.n_prompt, true,
                         &prompt);
        snprintf(want, sizeof(want), "%suser:q|", rows[i].prompt);
        cr_expect_str_eq(prompt.data, want);
    }
    world_stop(&w);
}

/* ---- forms of tools ---- */

#define SCHEMA R"({"type":"object","properties":{"a":{"type":"string"}},"required":["a"]})"
#define CHATS(members) R"({"type":"function","function":{"name":"f",)" members "}}"

/* Tools in the forms of the Responses and the Messages API are the same tools. */
Test(tools, have_the_form_of_any_api) {
    static const char *const flat[] = {
        R"({"type":"function","name":"f","description":"d","parameters":)" SCHEMA "}",
        R"({"name":"f","description":"d","parameters":)" SCHEMA "}",
        R"({"name":"f","description":"d","input_schema":)" SCHEMA "}",
        R"({"type":"custom","name":"f","description":"d","input_schema":)" SCHEMA "}",
    };
    static const char *const chosen[] = {
        R"("any")",
        R"({"type":"any"})",
        R"({"type":"required"})",
        R"({"type":"tool","name":"f"})",
        R"({"type":"function","name":"f"})",
        R"({"function":{"name":"f"}})",
        R"({"name":"f"})",
    };
    struct world w;
    struct reply r;
    char body[600];

    started(&w);
    w.port.script = "ok";
    for (size_t i = 0; i < ARRAY_SIZE(flat) + 1; i++) {
        snprintf(body, sizeof(body), R"({%s,"tools":[%s],"tool_choice":"required"})", HI,
                 i ? flat[i - 1] : CHATS(R"("description":"d","parameters":)" SCHEMA));
        world_ask(&w, CHAT, body, &r);
        cr_assert_eq(r.status, 200, "%s: %s", body, r.body.data);
        cr_expect(w.port.r[i].grammar && strstr(w.port.r[i].grammar, SCHEMA), "%s", body);
        cr_expect_str_eq(w.port.r[i].grammar, w.port.r[0].grammar, "%s", body);
        reply_deinit(&r);
    }
    for (size_t i = 0; i < ARRAY_SIZE(chosen); i++) {
        snprintf(body, sizeof(body), R"({%s,"tools":[%s],"tool_choice":%s})", HI, flat[0],
                 chosen[i]);
        world_ask(&w, CHAT, body, &r);
        cr_assert_eq(r.status, 200, "%s: %s", body, r.body.data);
        const char *grammar = w.port.r[ARRAY_SIZE(flat) + 1 + i].grammar;
        cr_expect(grammar && strstr(grammar, R"("f")") && strstr(grammar, SCHEMA), "%s", body);
        reply_deinit(&r);
    }
    snprintf(body, sizeof(body),
             R"({%s,"tools":[%s,{"type":"custom","name":"say"}],)"
             R"("tool_choice":"any"})",
             HI, CHATS(R"("parameters":)" SCHEMA));
    world_ask(&w, CHAT, body, &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    cr_expect(strstr(w.port.r[w.port.n - 1].grammar, R"("say")"), "a form beside another");
    reply_deinit(&r);
    world_stop(&w);
}
