/*
 * A conversation with calls, which the client sends back in blocks, continues where it ended: each
 * prompt begins with the previous prompt and the model's output, byte for byte, so that nothing is
 * computed twice. The model's output is taken from the template itself.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#include "stream.h"
#include "tiny.h"

#define TEXT_MAX (1 << 20)

enum {
    /* holds also across a question of the user; otherwise the template drops the thoughts */
    QUESTIONS = 1,
    /* the model thinks */
    THINKS = 2,
};

/* The turns: output of the model, and the message after it. */
static const struct {
    /* output of the model */
    const char *thought, *text, *name, *args;
    /* result of the call; NULL: the user asks a question */
    const char *result;
} turns[] = {
    {"First \xC3\xA9.", "I look.", "find",
     R"({"x": "K)"
     "\xC3\xB6"
     R"(ln \"q\"", "n": 3})",
     "one\ntwo"},
    {"Again.", "", "find", R"({"x": "b", "n": 4})", R"({"three": 3})"},
    {"Enough.", "All is found.", NULL, NULL, NULL},
    {"Once more.", "", "find", R"({"x": "c", "n": 5})", "four"},
    {"The end.", "Bye.", NULL, NULL, NULL},
};

static const struct {
    /* @end: text that ends the model's turn */
    const char *file, *end;
    unsigned flags;
} rows[] = {
    {"ByteDance-Seed-OSS", "<seed:eos>", 0},
    {"GLM-4.6", "<|observation|>", 0},
    {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "<|im_end|>", QUESTIONS},
    {"Qwen-Qwen2.5-7B-Instruct", "<|im_end|>", QUESTIONS},
    {"Qwen-Qwen3-0.6B", "<|im_end|>", THINKS},
    {"Qwen3-Coder", "<|im_end|>", QUESTIONS},
    {"Qwen3.5-4B", "<|im_end|>", THINKS},
    {"ibm-granite-granite-4.0", "<|end_of_text|>", QUESTIONS},
    {"MiniMax-M2", "[e~[", THINKS},
    {"moonshotai-Kimi-K2", "<|im_end|>", QUESTIONS},
    {"deepseek-ai-DeepSeek-V3.1",
     "<\xEF\xBD\x9C"
     "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
     0},
};

#define TOOL_SCHEMA                                                                                \
    R"({"type":"object","properties":{"x":{"type":"string"},"n":{"type":)"                         \
    R"("integer"}}})"

struct talk {
    struct world w;
    /* the messages of both APIs, without the brackets */
    struct buf blocks, chat;
    struct buf prompt, output;
};

static void talk_init(struct talk *t, const char *source, size_t len) {
    memset(t, 0, sizeof(*t));
    buf_init(&t->blocks, TEXT_MAX);
    buf_init(&t->chat, TEXT_MAX);
    buf_init(&t->prompt, TEXT_MAX);
    buf_init(&t->output, TEXT_MAX);
    world_init(&t->w);
    world_use_template(&t->w, source, len);
    t->w.model.max_context = 65536;
    world_start(&t->w);
}

static void talk_deinit(struct talk *t) {
    world_stop(&t->w);
    buf_deinit(&t->blocks);
    buf_deinit(&t->chat);
    buf_deinit(&t->prompt);
    buf_deinit(&t->output);
}

static void add_json_string(struct buf *b, const char *s) {
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    char *text = yyjson_mut_val_write(yyjson_mut_strcpy(doc, s), 0, NULL);

    buf_add_str(b, text);
    free(text);
    yyjson_mut_doc_free(doc);
}

static void add_user(struct talk *t, const char *text) {
    for (int i = 0; i < 2; i++) {
        struct buf *b = i ? &t->chat : &t->blocks;

        buf_add_str(b, b->len ? R"(,{"role":"user","content":)" : R"({"role":"user","content":)");
        add_json_string(b, text);
        buf_add_char(b, '}');
    }
}

/* Adds turn @i of the assistant in the form of a chat. */
static void add_chat_turn(struct talk *t, size_t i, bool thinks) {
    buf_add_str(&t->chat, R"(,{"role":"assistant","content":)");
    add_json_string(&t->chat, turns[i].text);
    if (turns[i].thought && thinks) {
        buf_add_str(&t->chat, R"(,"reasoning_content":)");
        add_json_string(&t->chat, turns[i].thought);
    }
    if (turns[i].name) {
        buf_printf(&t->chat,
                   R"(,"tool_calls":[{"id":"c%zu","type":"function","function":{"name":)"
                   R"("%s","arguments":)",
                   i, turns[i].name);
        add_json_string(&t->chat, turns[i].args);
        buf_add_str(&t->chat, "}}]");
    }
    buf_add_char(&t->chat, '}');
}

#define KWARGS R"("chat_template_kwargs":{"enable_thinking":%s,"thinking":%s})"

/* Renders the chat so far as text. */
static char *render(struct talk *t, bool thinks, bool ask) {
    CLEANUP(buf_deinit) struct buf body = {.max = TEXT_MAX};
    struct reply r;
    const char *on = thinks ? "true" : "false";

    buf_printf(&body,
               R"({"messages":[%s],"add_generation_prompt":%s,)" KWARGS
               R"(,"tools":[{"type":"function","function":{"name":"find","description":)"
               R"("D","parameters":)" TOOL_SCHEMA "}}]}",
               t->chat.data, ask ? "true" : "false", on, on);
    world_ask(&t->w, CHAT "/render", body.data, &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    yyjson_doc *doc = yyjson_read(r.body.data, r.body.len, 0);
    char *text =
        strdup(yyjson_get_str(yyjson_ptr_get(yyjson_doc_get_root(doc), "/prompts/0/text")));
    yyjson_doc_free(doc);
    reply_deinit(&r);
    return text;
}

/* Finds the output of the model for turn @i. Returns false if the template writes it only together
 * with further messages. */
static bool find_output(struct talk *t, size_t i, const char *end, bool thinks) {
    CLEANUP(freep) char *before = render(t, thinks, true);

    add_chat_turn(t, i, thinks);
    CLEANUP(freep) char *after = render(t, thinks, false);
    size_t n = strlen(before);
    buf_clear(&t->output);
    if (strncmp(before, after, n) != 0)
        return false;
    const char *stop = strstr(after + n, end);
    buf_add(&t->output, after + n, stop ? (size_t)(stop - after) - n : strlen(after + n));
    return true;
}

/* Requests the next message: sets t->prompt and adds its blocks. */
static void ask(struct talk *t, bool thinks, char id[64]) {
    CLEANUP(buf_deinit) struct buf body = {.max = TEXT_MAX};
    uint32_t i = t->w.port.n;
    struct reply r;

    buf_printf(&body,
               R"({"model":"claude","max_tokens":2000,"messages":[%s],"thinking":{"type":)"
               R"("%s"},"tools":[{"name":"find","description":"D","input_schema":)" TOOL_SCHEMA
               "}]}",
               t->blocks.data, thinks ? "adaptive" : "disabled");
    int fd = world_connect(&t->w);
    world_post(&t->w, fd, "/v1/messages", body.data);
    for (int k = 0; k < 20000 && t->w.port.n == i; k++) {
        world_turn(&t->w);
        usleep(k > 100 ? 500 : 0); /* a thread of the pool may still work */
    }
    cr_assert_eq(t->w.port.n, i + 1);
    fake_accept(&t->w.port, i);
    fake_tokens(&t->w.port, i, t->output.data ? t->output.data : "");
    fake_finish(&t->w.port, i, FINISH_STOP);
    world_receive(&t->w, fd, &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    world_drop(&t->w, fd);
    buf_clear(&t->prompt);
    tokenizer_decode(t->w.model.tokenizer, t->w.port.r[i].m.tokens, t->w.port.r[i].m.n_prompt, true,
                     &t->prompt);
    yyjson_doc *doc = yyjson_read(r.body.data, r.body.len, 0);
    yyjson_val *content = yyjson_obj_get(yyjson_doc_get_root(doc), "content"), *last;
    char *text = yyjson_val_write(content, 0, NULL);
    buf_printf(&t->blocks, R"(,{"role":"assistant","content":%s})", text);
    last = yyjson_arr_get_last(content);
    const char *found = yyjson_get_str(yyjson_obj_get(last, "id"));
    snprintf(id, 64, "%s", found ? found : "");
    free(text);
    yyjson_doc_free(doc);
    reply_deinit(&r);
}

static void add_result(struct talk *t, size_t i, const char *id) {
    buf_printf(&t->blocks,
               R"(,{"role":"user","content":[{"type":"tool_result","tool_use_id":"%s",)"
               R"("content":)",
               id);
    add_json_string(&t->blocks, turns[i].result);
    buf_add_str(&t->blocks, "}]}");
    buf_printf(&t->chat, R"(,{"role":"tool","name":"find","tool_call_id":"c%zu","content":)", i);
    add_json_string(&t->chat, turns[i].result);
    buf_add_char(&t->chat, '}');
}

static void run(const char *name, const char *source, size_t len, const char *end, unsigned flags) {
    struct talk t;
    CLEANUP(buf_deinit) struct buf want = {.max = TEXT_MAX};
    bool thinks = flags & THINKS, asked = false;
    char id[64];

    talk_init(&t, source, len);
    add_user(&t, "Find it.");
    for (size_t i = 0; i < ARRAY_SIZE(turns); i++) {
        bool shown = find_output(&t, i, end, thinks);

        ask(&t, thinks, id);
        bool same = want.len <= t.prompt.len &&
                    memcmp(want.data ? want.data : "", t.prompt.data, want.len) == 0;
        if (want.len && (!asked || flags & QUESTIONS))
            cr_expect(same, "%s, turn %zu:\n%s\n--- does not begin with ---\n%s", name, i,
                      t.prompt.data, want.data);
        cr_expect(!shown || !turns[i].name == !*id, "%s, turn %zu: no call in %s", name, i,
                  t.output.data);
        buf_clear(&want);
        if (shown) {
            buf_add(&want, t.prompt.data, t.prompt.len);
            buf_add_str(&want, t.output.data ? t.output.data : "");
        }
        asked = !turns[i].result;
        /* the template does not show the call, so the client made it */
        if (turns[i].result && !*id) {
            snprintf(id, sizeof(id), "own%zu", i);
            buf_printf(&t.blocks,
                       R"(,{"role":"assistant","content":[{"type":"tool_use","id":)"
                       R"("%s","name":"find","input":{}}]})",
                       id);
        }
        if (turns[i].result)
            add_result(&t, i, id);
        else
            add_user(&t, "And now?");
    }
    talk_deinit(&t);
}

Test(anthropic_turns, a_conversation_goes_on_where_it_ended_in_hermes_form) {
    static const char source[] =
        "{%- if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif -%}"
        "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
        "{%- if m.reasoning_content %}{{ '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}"
        "{%- endif %}{{- m.content }}{% for c in m.tool_calls or [] %}"
        "{%- if m.content or not loop.first %}{{ '\n' }}{% endif %}"
        "{{- '<tool_call>\n"
        R"({"name": "' + c.function.name + '", "arguments": ' }})"
        "{{- (c.function.arguments | tojson) + '}\n</tool_call>' }}{% endfor %}"
        "{{- '<|im_end|>\n' }}{% endfor -%}"
        "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}";

    run("hermes", source, sizeof(source) - 1, "<|im_end|>", QUESTIONS | THINKS);
}

Test(anthropic_turns, a_conversation_goes_on_where_it_ended) {
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        size_t len;
        CLEANUP(freep) char *source = world_template(rows[i].file, &len);

        run(rows[i].file, source, len, rows[i].end, rows[i].flags);
    }
}
