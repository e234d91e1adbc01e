/*
 * Answers of /v1/messages: exact texts, plain and streamed, wherever the output is cut; a stream,
 * assembled by a client, equals the plain answer.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "stream.h"
#include "tiny.h"

#define MESSAGES "/v1/messages"
#define BODY(fields) R"({"model":"claude-haiku-4-5","max_tokens":400,)" HI fields "}"
#define TOOLS                                                                                      \
    R"(,"tools":[{"name":"weather","input_schema":{"type":"object","properties":{)"                \
    R"("city":{"type":"string"}}}},{"name":"time","input_schema":{"type":"object"}})"              \
    "]"
#define STREAM R"(,"stream":true)"
#define CALL(name, args)                                                                           \
    "<tool_call>\n"                                                                                \
    R"({"name": ")" name R"(", "arguments": )" args "}\n</tool_call>"

static const char hermes[] =
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{%- for c in m.tool_calls or [] -%}<tool_call>{{ c.function.arguments | tojson }}</tool_call>"
    "{%- endfor -%}<|im_end|>\n{%- endfor -%}{%- if tools %}{% if false %} <tool_call> {% endif "
    "%}{% endif -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% if enable_thinking %}<think>\n"
    "{% endif %}{%- endif -%}{% if false %} </think> {% endif %}";

static uint32_t stream_buffer; /* 0: the default size */

static void started(struct world *w) {
    world_init(w);
    world_use_template(w, hermes, sizeof(hermes) - 1);
    w->model.max_context = 16384;
    w->opts.stream_buffer_bytes = stream_buffer ? stream_buffer : w->opts.stream_buffer_bytes;
    world_start(w);
}

static const char *text_of(const struct buf *b) {
    return b->data ? b->data : "";
}

static void ask(struct world *w, const char *body, const char *output, struct reply *r) {
    w->port.script = output;
    world_ask(w, MESSAGES, body, r);
    w->port.script = NULL;
}

/* ---- exact ---- */

#define HEAD R"("id":"X","type":"message","role":"assistant","model":"tiny","content":)"
#define STOP(reason, stop)                                                                         \
    R"("stop_reason":)" reason R"(,"stop_sequence":)" stop R"(,"stop_details":null,)"              \
    R"("container":)"                                                                              \
    R"(null,"diagnostics":null)"
#define USAGE(in, cached, out, thinking)                                                           \
    R"(,"usage":{"input_tokens":)" in                                                              \
    R"(,"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":0})"           \
    R"(,"cache_creation_input_tokens":0,"cache_read_input_tokens":)" cached                        \
    R"(,"output_tokens":)" out R"(,"output_tokens_details":{"thinking_tokens":)" thinking          \
    R"(},"server_tool_use":null,"service_tier":"standard","inference_geo":null,"speed":)"          \
    "null}"
#define EVENT(type, rest)                                                                          \
    "event: " type "\n"                                                                            \
    R"(data: {"type":")" type R"(")" rest "}\n\n"
#define BEGIN(usage)                                                                               \
    EVENT("message_start", R"(,"message":{)" HEAD "[]," STOP("null", "null") usage "}")
#define START(i, block)                                                                            \
    EVENT("content_block_start", R"(,"index":)" i R"(,"content_block":{)" block "}")
#define DELTA_(i, type, key, value)                                                                \
    EVENT("content_block_delta",                                                                   \
          R"(,"index":)" i R"(,"delta":{"type":")" type R"(",")" key R"(":")" value R"("})")
#define END(i) EVENT("content_block_stop", R"(,"index":)" i)
#define FINAL(reason, stop, usage)                                                                 \
    EVENT("message_delta", R"(,"delta":{)" STOP(reason, stop) "}" usage) EVENT("message_stop", "")
#define TEXT_BLOCK R"("type":"text","text":"")"
#define CALL_BLOCK(name)                                                                           \
    R"("type":"tool_use","id":"X","name":")" name R"(","caller":{"type":"direct"},"input":{})"

Test(anthropic, a_plain_answer_is_exact) {
    struct world w;
    struct reply r;

    started(&w);
    ask(&w, BODY(""), "Hey", &r);
    reply_expect(&r, 200,
                 "{" HEAD R"([{"type":"text","text":"Hey"}],)" STOP(R"("end_turn")", "null")
                     USAGE("10", "10", "3", "0") "}");
    world_stop(&w);
}

Test(anthropic, max_tokens_0_computes_the_prompt) {
    struct world w;
    struct reply r;

    started(&w);
    ask(&w, R"({"model":"claude","max_tokens":0,)" HI "}", "Hey", &r);
    reply_expect(&r, 200,
                 "{" HEAD "[]," STOP(R"("max_tokens")", "null") USAGE("10", "10", "0", "0") "}");
    cr_expect_eq(w.port.r[0].m.max_new, 1);
    world_stop(&w);
}

/* The prompt consists of uncached input, tokens written to the cache and tokens read from it. */
Test(anthropic, cache_control_counts_what_is_written) {
    static const struct {
        const char *fields;
        int in, five, hour;
    } table[] = {
        {"", 10, 0, 0},
        {R"(,"cache_control":{"type":"ephemeral"})", 2, 8, 0},
        {R"(,"cache_control":{"type":"ephemeral","ttl":"1h"})", 2, 0, 8},
        {R"(,"system":[{"type":"text","text":"","cache_control":{"ttl":"1h"}}])", 2, 0, 8},
        {R"(,"tools":[{"type":"web_search","cache_control":{}}])", 2, 8, 0},
        {R"(,"cache_control":null)", 10, 0, 0},
    };
    struct world w;
    struct reply r;
    char body[400], want[200];

    world_init(&w);
    world_use_template(&w, hermes, sizeof(hermes) - 1);
    w.model.page_tokens = 4;
    world_start(&w);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        snprintf(body, sizeof(body), R"({"model":"claude","max_tokens":40,)" HI "%s}",
                 table[i].fields);
        ask(&w, body, "Hey", &r);
        snprintf(want, sizeof(want),
                 R"("usage":{"input_tokens":%d,"cache_creation":{"ephemeral_5m_input_tokens":)"
                 R"(%d,"ephemeral_1h_input_tokens":%d},"cache_creation_input_tokens":%d,)"
                 R"("cache_read_input_tokens":10,)",
                 table[i].in, table[i].five, table[i].hour, table[i].five + table[i].hour);
        cr_expect(strstr(r.body.data, want), "%s: %s", table[i].fields, r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(anthropic, a_stream_is_exact) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, MESSAGES, BODY(STREAM));
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "He\xC3");
    world_turns(&w, 2);
    fake_tokens(&w.port, 0, "\xA9.");
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
    reply_expect(&r, 200,
                 BEGIN(USAGE("10", "10", "0", "0")) START("0", TEXT_BLOCK)
                     DELTA_("0", "text_delta", "text", "He")
                         DELTA_("0", "text_delta", "text", "\xC3\xA9.") END("0")
                             FINAL(R"("end_turn")", "null", USAGE("10", "10", "5", "0")));
    world_drop(&w, fd);
    world_stop(&w);
}

Test(anthropic, thoughts_text_and_calls_are_blocks) {
    struct world w;
    struct reply r;
    static const char output[] =
        "Hm\n</think>\n\nSo.\n" CALL("time", R"({"z": 1})") "\n" CALL("time", "{}") "\n";

    started(&w);
    ask(&w, BODY(TOOLS R"(,"thinking":{"type":"enabled","budget_tokens":1024})"), output, &r);
    reply_expect(&r, 200,
                 "{" HEAD
                 R"([{"type":"thinking","thinking":"Hm","signature":"weft"},{"type":"text",)"
                 R"("text":"So."},{"type":"tool_use","id":"X","name":"time")"
                 R"(,"caller":{"type":"direct"},"input":{"z": 1}},{"type":"tool_use","id":)"
                 R"("X","name":"time","caller":{"type":"direct"},"input":{}}],)" STOP(
                     R"("tool_use")", "null") USAGE("14", "14", "141", "10") "}");
    int fd = world_connect(&w);
    world_post(&w, fd, MESSAGES, BODY(TOOLS STREAM R"(,"thinking":{"type":"adaptive"})"));
    world_turns(&w, 4);
    fake_accept(&w.port, 1);
    fake_tokens(&w.port, 1, output);
    fake_finish(&w.port, 1, FINISH_STOP);
    world_receive(&w, fd, &r);
    reply_expect(
        &r, 200,
        BEGIN(USAGE("14", "14", "0", "0"))
            START("0", R"("type":"thinking","thinking":"","signature":"")")
                DELTA_("0", "thinking_delta", "thinking", "Hm") DELTA_(
                    "0", "signature_delta", "signature", "weft") END("0") START("1", TEXT_BLOCK)
                    DELTA_("1", "text_delta", "text", "So.") END("1") START("2", CALL_BLOCK("time"))
                        DELTA_("2", "input_json_delta", "partial_json", R"({\"z\": 1})") END("2")
                            START("3", CALL_BLOCK("time"))
                                DELTA_("3", "input_json_delta", "partial_json", "{}") END("3")
                                    FINAL(R"("tool_use")", "null", USAGE("14", "14", "141", "10")));
    world_drop(&w, fd);
    world_stop(&w);
}

/* A client that does not show thoughts carries them in the signature. */
Test(anthropic, thoughts_that_are_omitted_are_in_the_signature) {
#define OMITTED R"(,"thinking":{"type":"adaptive","display":"omitted"})"
    struct world w;
    struct reply r;
    static const char output[] = "Hm\n</think>\n\nSo.";

    started(&w);
    ask(&w, BODY(OMITTED), output, &r);
    reply_expect(&r, 200,
                 "{" HEAD R"([{"type":"thinking","thinking":"","signature":"weft1.SG0="},)"
                 R"({"type":"text","text":"So."}],)" STOP(R"("end_turn")", "null")
                     USAGE("14", "14", "16", "10") "}");
    int fd = world_connect(&w);
    world_post(&w, fd, MESSAGES, BODY(STREAM OMITTED));
    world_turns(&w, 4);
    fake_accept(&w.port, 1);
    fake_tokens(&w.port, 1, "H");
    world_turns(&w, 4);
    fake_tokens(&w.port, 1, output + 1);
    fake_finish(&w.port, 1, FINISH_STOP);
    world_receive(&w, fd, &r);
    reply_expect(&r, 200,
                 BEGIN(USAGE("14", "14", "0", "0"))
                     START("0", R"("type":"thinking","thinking":"","signature":"")")
                         DELTA_("0", "signature_delta", "signature", "weft1.SG0=") END("0")
                             START("1", TEXT_BLOCK) DELTA_("1", "text_delta", "text", "So.")
                                 END("1")
                                     FINAL(R"("end_turn")", "null", USAGE("14", "14", "16", "10")));
    world_drop(&w, fd);
    world_stop(&w);
}

/* ---- streams assembled by a client ---- */

struct told {
    /* T<thinking> C<text> name<input> reason */
    struct buf line;
    size_t n_blocks;
    bool open, ended;
};

static void add_value(struct buf *b, yyjson_val *v) {
    cr_assert(yyjson_is_str(v));
    buf_add(b, yyjson_get_str(v), yyjson_get_len(v));
}

static void open_block(struct told *t, yyjson_val *block) {
    yyjson_val *type = yyjson_obj_get(block, "type");

    if (yyjson_equals_str(type, "thinking"))
        buf_add_str(&t->line, "T<");
    else if (yyjson_equals_str(type, "text"))
        buf_add_str(&t->line, "C<");
    else
        add_value(&t->line, yyjson_obj_get(block, "name")), buf_add_char(&t->line, '<');
    t->n_blocks++;
}

static void take_stop(struct told *t, yyjson_val *o) {
    yyjson_val *stop = yyjson_obj_get(o, "stop_sequence");

    add_value(&t->line, yyjson_obj_get(o, "stop_reason"));
    if (yyjson_is_str(stop)) {
        buf_add_char(&t->line, '(');
        add_value(&t->line, stop);
        buf_add_char(&t->line, ')');
    }
}

static void take_delta(struct told *t, yyjson_val *delta) {
    static const char *const keys[] = {"text", "thinking", "partial_json"};

    for (size_t i = 0; i < ARRAY_SIZE(keys); i++)
        if (yyjson_obj_get(delta, keys[i]))
            add_value(&t->line, yyjson_obj_get(delta, keys[i]));
}

/* Takes one event, which must be allowed at this place. */
static void take_event(struct told *t, const char *type, yyjson_val *root, size_t at) {
    yyjson_val *index = yyjson_obj_get(root, "index");

    cr_assert(yyjson_equals_str(yyjson_obj_get(root, "type"), type));
    cr_assert(!t->ended);
    if (index)
        cr_assert_eq(yyjson_get_uint(index), t->n_blocks - !!strcmp(type, "content_block_start"));
    if (strcmp(type, "message_start") == 0) {
        cr_assert_eq(at, 0);
    } else if (strcmp(type, "content_block_start") == 0) {
        cr_assert(!t->open);
        open_block(t, yyjson_obj_get(root, "content_block"));
        t->open = true;
    } else if (strcmp(type, "content_block_delta") == 0) {
        cr_assert(t->open);
        take_delta(t, yyjson_obj_get(root, "delta"));
    } else if (strcmp(type, "content_block_stop") == 0) {
        cr_assert(t->open);
        buf_add_str(&t->line, "> ");
        t->open = false;
    } else if (strcmp(type, "message_delta") == 0) {
        cr_assert(!t->open);
        take_stop(t, yyjson_obj_get(root, "delta"));
    } else {
        cr_assert_str_eq(type, "message_stop");
        t->ended = true;
    }
}

static void take_stream(struct told *t, char *text) {
    char *save = NULL, type[64];
    size_t at = 0;

    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        cr_assert_eq(sscanf(line, "event: %63s", type), 1, "%s", line);
        line = strtok_r(NULL, "\n", &save);
        cr_assert(line && strncmp(line, "data: ", 6) == 0);
        yyjson_doc *doc = yyjson_read(line + 6, strlen(line) - 6, 0);
        cr_assert(doc, "%s", line);
        take_event(t, type, yyjson_doc_get_root(doc), at++);
        yyjson_doc_free(doc);
    }
    cr_assert(t->ended);
}

static void take_whole(struct told *t, const struct buf *body) {
    yyjson_doc *doc = yyjson_read(body->data, body->len, 0);
    yyjson_val *root = yyjson_doc_get_root(doc), *block;
    size_t i, n;

    cr_assert(doc, "%s", body->data);
    yyjson_arr_foreach(yyjson_obj_get(root, "content"), i, n, block) {
        yyjson_val *input = yyjson_obj_get(block, "input");

        open_block(t, block);
        if (input) {
            char *text = yyjson_val_write(input, 0, NULL);

            buf_add_str(&t->line, text);
            free(text);
        } else {
            take_delta(t, block);
        }
        buf_add_str(&t->line, "> ");
    }
    take_stop(t, root);
    yyjson_doc_free(doc);
}

static void expect_told(struct reply *r, const char *want) {
    struct told t = {.line = {.max = 1 << 20}};

    cr_assert_eq(r->status, 200, "%s", text_of(&r->body));
    if (strncmp(text_of(&r->body), "event: ", 7) == 0)
        take_stream(&t, r->body.data);
    else
        take_whole(&t, &r->body);
    cr_expect_str_eq(text_of(&t.line), want);
    buf_deinit(&t.line);
    reply_deinit(r);
}

static const char story[] = "So \xC3\xA9?\n</think>\n\nI look: <tool\n" CALL(
    "weather", R"({"city":"K)"
               "\xC3\xB6"
               R"(ln \"x\""})") "\n" CALL("time", "{}") "\nBye";
static const char story_told[] =
    "T<So \xC3\xA9?> C<I look: <tool> weather<{\"city\":\"K\xC3\xB6ln \\\"x\\\"\"}> time<{}> "
    "C<Bye> tool_use";

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

static void run_cuts(const char *body, bool death) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect_unix(&w);
    for (size_t cut = 0; cut <= sizeof(story) - 1; cut++) {
        w.port.n = 0;
        world_post(&w, fd, MESSAGES, body);
        world_turns(&w, 3);
        cr_assert_eq(w.port.n, 1);
        perform(&w, cut, death);
        world_receive(&w, fd, &r);
        expect_told(&r, story_told);
    }
    world_drop(&w, fd);
    world_stop(&w);
}

#define THINKING R"(,"thinking":{"type":"enabled","budget_tokens":2000})"

Test(anthropic, blocks_are_the_same_wherever_tokens_are_cut) {
    run_cuts(BODY(TOOLS THINKING STREAM), false);
    run_cuts(BODY(TOOLS THINKING), false);
}

Test(anthropic, a_death_anywhere_tells_everything_once) {
    run_cuts(BODY(TOOLS THINKING STREAM), true);
}

Test(anthropic, a_slow_reader_gets_the_same) {
    struct world w;
    struct reply r;
    CLEANUP(buf_deinit) struct buf out = {.max = 1 << 20}, want = {.max = 1 << 20};

    stream_buffer = 300;
    started(&w);
    for (int i = 0; i < 4; i++) {
        buf_add_str(&out, i ? "\nMore. " : "Text. ");
        buf_add_str(&out, CALL("weather", R"({"city":"Bonn"})"));
        buf_add_str(&want, i ? "C<More.> " : "C<Text.> ");
        buf_add_str(&want, R"(weather<{"city":"Bonn"}> )");
    }
    buf_add_str(&want, "tool_use");
    int fd = world_connect_unix(&w);
    world_post(&w, fd, MESSAGES, BODY(TOOLS STREAM));
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, out.data); /* all at once: more than one turn can send */
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
    expect_told(&r, want.data);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(anthropic, reasons_are_anthropics) {
    static const struct {
        const char *body, *output, *told;
    } table[] = {
        {BODY(""), "Hi.", "C<Hi.> end_turn"},
        {BODY(""), "", "end_turn"},
        {BODY(R"(,"stop_sequences":["x","END"])"), "Hi END y", "C<Hi > stop_sequence(END)"},
        {R"({"model":"tiny","max_tokens":4,)" HI "}", "Hi there", "C<Hi t> max_tokens"},
        {BODY(TOOLS), CALL("time", "{}"), "time<{}> tool_use"},
        {BODY(""), CALL("time", "{}"), "C<" CALL("time", "{}") "> end_turn"},
        {BODY(TOOLS R"(,"tool_choice":{"type":"none"})"), CALL("time", "{}"),
         "C<" CALL("time", "{}") "> end_turn"},
        {BODY(TOOLS R"(,"tool_choice":{"type":"auto","disable_parallel_tool_use":true})"),
         CALL("time", "{}") "\n" CALL("weather", "{}"),
         "time<{}> C<" CALL("weather", "{}") "> tool_use"},
    };
    struct world w;
    struct reply r;
    char body[1000];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        ask(&w, table[i].body, table[i].output, &r);
        expect_told(&r, table[i].told);
        snprintf(body, sizeof(body), "%.*s" STREAM "}", (int)strlen(table[i].body) - 1,
                 table[i].body);
        ask(&w, body, table[i].output, &r);
        expect_told(&r, table[i].told);
    }
    world_stop(&w);
}

Test(anthropic, the_context_may_end_a_text) {
    static const int asked[] = {65, 4000};
    struct world w;
    struct reply r;
    char body[200];

    world_init(&w);
    w.model.max_context = 64;
    world_start(&w);
    w.port.script = "0123456789012345678901234567890123456789012345678901234567890123456789";
    for (size_t i = 0; i < ARRAY_SIZE(asked); i++) {
        snprintf(body, sizeof(body), R"({"model":"tiny","max_tokens":%d,)" HI "}", asked[i]);
        world_ask(&w, MESSAGES, body, &r);
        cr_expect(strstr(r.body.data, R"("stop_reason":"model_context_window_exceeded")"), "%s",
                  r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(anthropic, a_budget_ends_thoughts) {
    struct world w;
    struct reply r;

    started(&w);
    ask(&w, BODY(R"(,"thinking":{"type":"enabled","budget_tokens":5})"),
        "Hm hm hm hm hm hm hm hm end.", &r);
    expect_told(&r, "T<Hm hm> C<hm hm hm end.> end_turn");
    world_stop(&w);
}

/* The call has the form in which the SDK reads a stream that breaks off. */
Test(anthropic, a_call_that_breaks_off_has_its_whole_members) {
    static const struct {
        const char *args, *input;
    } table[] = {
        {R"({"a": 1, "b": [1, 2, "x)", R"({"a":1,"b":[1,2]})"},
        {R"({"a": 1, "b": [1, -)", R"({"a":1,"b":[1]})"},
        {R"({"a": "x", "b": "y)", R"({"a":"x"})"},
        {R"({"a": "x", "b")", R"({"a":"x"})"},
        {R"({"a": {"b": tru)", R"({"a":{}})"},
        {R"({"a": {"b": true, "c)", R"({"a":{"b":true}})"},
        {R"({"a": {"b": null, "\")", R"({"a":{"b":null}})"},
        {R"({"a": [{}, [)", R"({"a":[{},[]]})"},
        {R"({"a": "\\", )", R"({"a":"\\"})"},
        {R"({"a": -1.5e3, "t":)", R"({"a":-1500.0})"},
        {"{", "{}"},
    };
    struct world w;
    struct reply r;
    char output[200], want[200];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        snprintf(output, sizeof(output),
                 "<tool_call>\n"
                 R"({"name": "time", "arguments": %s)",
                 table[i].args);
        snprintf(want, sizeof(want), "time<%s> end_turn", table[i].input);
        ask(&w, BODY(TOOLS), output, &r);
        expect_told(&r, want);
    }
    world_stop(&w);
}

Test(anthropic, what_is_no_utf8_is_mended_in_input) {
    struct world w;
    struct reply r;

    started(&w);
    ask(&w, BODY(TOOLS),
        CALL("weather", R"({"city":"K)"
                        "\xFF"
                        R"(ln"})"),
        &r);
    expect_told(&r, R"(weather<{"city":"K)"
                    "\xEF\xBF\xBD"
                    R"(ln"}> tool_use)");
    world_stop(&w);
}

/* ---- silence and failure ---- */

Test(anthropic, silence_is_a_ping) {
    struct world w;
    CLEANUP(buf_deinit) struct buf raw = {.max = 1 << 20};

    world_init(&w);
    w.opts.keepalive_ms = 1;
    world_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, MESSAGES, BODY(STREAM));
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    cr_assert(world_read_until(&w, fd, &raw, "event: ping\ndata: {\"type\":\"ping\"}\n\n"));
    cr_expect(!strstr(raw.data, ": keep-alive"));
    world_drop(&w, fd);
    world_stop(&w);
}

Test(anthropic, a_failure_in_a_stream_is_an_error_event) {
    struct world w;
    struct reply r;

    started(&w);
    int fd = world_connect(&w);
    world_say(&w, fd,
              "POST " MESSAGES " HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: one\r\n"
              "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
              strlen(BODY(STREAM)), BODY(STREAM));
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "Hi");
    world_turns(&w, 2);
    fake_fail(&w.port, 0, 503, "No more.");
    world_receive(&w, fd, &r);
    const char *at = strstr(text_of(&r.body), "event: error\n");
    cr_assert(at, "%s", text_of(&r.body));
    cr_expect_str_eq(at, "event: error\n"
                         R"(data: {"type":"error","error":{"type":)"
                         R"("overloaded_error","message":"No more."},"request_id":"one"})"
                         "\n\n");
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

static void expect_error(struct reply *r, int status, const char *type) {
    char needle[100], id[100], value[80];

    snprintf(needle, sizeof(needle), R"({"type":"error","error":{"type":"%s",)", type);
    cr_expect_eq(r->status, status, "%d: %s", r->status, text_of(&r->body));
    cr_expect_eq(strncmp(text_of(&r->body), needle, strlen(needle)), 0, "%s is no %s",
                 text_of(&r->body), type);
    reply_header(r, "request-id", value, sizeof(value));
    snprintf(id, sizeof(id), R"("request_id":"%s"})", value);
    cr_expect(*value && strstr(text_of(&r->body), id), "%s", text_of(&r->body));
    if (status == 429 || status == 529)
        cr_expect(*reply_header(r, "retry-after", value, sizeof(value)));
    reply_deinit(r);
}

Test(anthropic, every_status_has_its_type) {
    struct world w;
    struct reply r;

    world_init(&w);
    w.opts.max_body_bytes = 4000;
    world_start(&w);
    char *large = calloc(1, 6000);
    memset(large, ' ', 5000);
    world_ask(&w, MESSAGES, large, &r);
    expect_error(&r, 413, "request_too_large");
    free(large);
    world_ask(&w, MESSAGES, "{", &r);
    expect_error(&r, 400, "invalid_request_error");
    world_ask(&w, MESSAGES, R"({"model":"gpt","max_tokens":1,)" HI "}", &r);
    expect_error(&r, 404, "not_found_error");
    world_get(&w, MESSAGES, &r);
    expect_error(&r, 405, "invalid_request_error");
    world_ask(&w, MESSAGES "/batches", "{}", &r);
    expect_error(&r, 404, "not_found_error");
    int fd = world_connect(&w);
    static const int told[][2] = {{500, 500}, {503, 529}, {429, 429}};
    static const char *const types[] = {"api_error", "overloaded_error", "rate_limit_error"};
    for (size_t i = 0; i < ARRAY_SIZE(told); i++) {
        world_post(&w, fd, MESSAGES, BODY(""));
        world_turns(&w, 4);
        fake_reject(&w.port, (uint32_t)i, told[i][0], "Why.");
        world_receive(&w, fd, &r);
        expect_error(&r, told[i][1], types[i]);
    }
    world_drop(&w, fd);
    api_set_health(w.api, API_STARTING);
    world_ask(&w, MESSAGES, BODY(""), &r);
    expect_error(&r, 529, "overloaded_error");
    world_stop(&w);
}

Test(anthropic, keys_come_in_either_header) {
    struct world w;
    struct reply r;
    char path[64];

    snprintf(path, sizeof(path), "/tmp/weft-test-keys-%d", getpid());
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs("me:sk-1\n", f) >= 0);
    fclose(f);
    world_init(&w);
    w.opts.api_keys_file = path;
    world_start(&w);
    unlink(path);
    world_ask(&w, MESSAGES, BODY(""), &r);
    expect_error(&r, 401, "authentication_error");
    static const char *const heads[] = {"x-api-key: sk-1", "Authorization: Bearer sk-1"};
    for (size_t i = 0; i < ARRAY_SIZE(heads); i++) {
        int fd = world_connect(&w);

        world_say(&w, fd,
                  "POST " MESSAGES "/count_tokens?beta=true HTTP/1.1\r\nHost: localhost\r\n%s\r\n"
                  "anthropic-version: 2023-06-01\r\nanthropic-beta: a-1,b-2\r\n"
                  "Content-Length: %zu\r\n\r\n%s",
                  heads[i], strlen(BODY("")), BODY(""));
        world_receive(&w, fd, &r);
        cr_expect_eq(r.status, 200);
        reply_deinit(&r);
        world_drop(&w, fd);
    }
    world_stop(&w);
}

Test(anthropic, a_prompt_that_is_too_long_says_so) {
    struct world w;
    struct reply r;
    char body[1000];

    world_init(&w);
    w.model.max_context = 100;
    world_start(&w);
    snprintf(body, sizeof(body),
             R"({"model":"claude","max_tokens":5,"messages":[{"role":"user","content":)"
             R"("%0200d"}]})",
             1);
    world_ask(&w, MESSAGES, body, &r);
    cr_expect(strstr(text_of(&r.body), R"("message":"prompt is too long: 219 tokens > 99 maximum)"),
              "%s", text_of(&r.body));
    expect_error(&r, 400, "invalid_request_error");
    world_stop(&w);
}

/* ---- models ---- */

static void get(struct world *w, const char *path, const char *head, struct reply *r) {
    int fd = world_connect(w);

    world_say(w, fd, "GET %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n", path, head);
    world_receive(w, fd, r);
    world_drop(w, fd);
}

#define VERSION "anthropic-version: 2023-06-01\r\n"
#define MODEL                                                                                      \
    R"({"type":"model","id":"X","display_name":"tiny","created_at":)"                              \
    R"("2023-11-14T22:13:20Z","lifecycle":"active","max_input_tokens":512,"max_tokens":)"          \
    R"(null,"capabilities":null,"line":null,"deprecated_at":null,"retires_at":null})"

Test(anthropic, shared_and_unknown_paths_have_anthropics_form_for_its_clients) {
    struct world w;
    struct reply r;

    world_init(&w);
    world_start(&w);
    get(&w, "/v1/models?limit=1000", VERSION, &r);
    reply_expect(&r, 200,
                 R"({"data":[)" MODEL R"(],"has_more":false,"first_id":"tiny","last_id":)"
                 R"("tiny"})");
    get(&w, "/v1/models/claude-sonnet-4-6", VERSION, &r);
    reply_expect(&r, 200, MODEL);
    get(&w, "/v1/models/gpt", VERSION, &r);
    expect_error(&r, 404, "not_found_error");
    get(&w, "/v1/files", VERSION, &r);
    expect_error(&r, 404, "not_found_error");
    get(&w, "/v1/files", "", &r);
    cr_expect(strstr(text_of(&r.body), R"("code":"not_found")"));
    reply_deinit(&r);
    get(&w, "/v1/models", "", &r);
    cr_expect(strstr(text_of(&r.body), R"("object":"list")"));
    reply_deinit(&r);
    world_stop(&w);
}
