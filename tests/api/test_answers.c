/*
 * What an answer becomes in the four dialects that have tools and reasoning, streamed and whole:
 * reasoning that interrupts it, calls without their end, and the tokens that end a turn.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "api/generation/family.h"
#include "stream.h"
#include "tiny.h"
#include "world.h"

static const char source[] =
    "{%- for m in messages -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{%- endfor -%}"
    "{%- if tools -%}<tool_call>{json}</tool_call>{%- endif -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
    "{%- if false -%}<think></think>{%- endif -%}";

/* ---- answers as one line: R<reasoning> C<content> name{arguments}, in their order */

struct told {
    struct buf line;
    /* all reasoning, all content */
    struct buf joined[2];
    struct buf calls;
    /* of the open text; 0: none */
    char kind;
};

static void close_told(struct told *t) {
    if (t->kind)
        buf_add_str(&t->line, "> ");
    t->kind = 0;
}

static void notify_text(struct told *t, char kind, yyjson_val *text, bool begins) {
    if (!yyjson_get_len(text))
        return;
    if (t->kind != kind || begins) {
        close_told(t);
        buf_printf(&t->line, "%c<", kind);
    }
    t->kind = kind;
    buf_add(&t->line, yyjson_get_str(text), yyjson_get_len(text));
    buf_add(&t->joined[kind == 'C'], yyjson_get_str(text), yyjson_get_len(text));
}

static void tell_call(struct told *t, yyjson_val *name, const char *args, size_t len) {
    yyjson_doc *doc = yyjson_read(args, len, 0);
    char *text = yyjson_val_write(yyjson_doc_get_root(doc), 0, NULL);

    const char *who = yyjson_is_str(name) ? yyjson_get_str(name) : "no name";

    close_told(t);
    buf_printf(&t->line, "%s%s ", who, text ? text : "no JSON");
    buf_printf(&t->calls, "%s%s ", who, text ? text : "no JSON");
    free(text);
    yyjson_doc_free(doc);
}

static void tell_object(struct told *t, yyjson_val *name, yyjson_val *args) {
    char *text = yyjson_val_write(args, 0, NULL);

    tell_call(t, name, text, strlen(text));
    free(text);
}

/* Arguments of a chat's calls arrive in pieces; a call's name comes with the first one. */
struct pieces {
    char name[64];
    struct buf args;
};

static void flush_pieces(struct told *t, struct pieces *p) {
    yyjson_doc *doc = yyjson_read(R"("f")", 3, 0);

    if (*p->name)
        tell_call(t, yyjson_doc_get_root(doc), p->args.data, p->args.len);
    *p->name = 0;
    buf_clear(&p->args);
    yyjson_doc_free(doc);
}

static void tell_message(struct told *t, yyjson_val *m, struct pieces *p) {
    size_t i, n;
    yyjson_val *call;

    notify_text(t, 'R', yyjson_obj_get(m, "reasoning_content"), false);
    notify_text(t, 'R', yyjson_obj_get(m, "thinking"), false);
    notify_text(t, 'C', yyjson_obj_get(m, "content"), false);
    yyjson_arr_foreach(yyjson_obj_get(m, "tool_calls"), i, n, call) {
        yyjson_val *f = yyjson_obj_get(call, "function"), *args = yyjson_obj_get(f, "arguments");

        if (yyjson_is_obj(args)) {
            tell_object(t, yyjson_obj_get(f, "name"), args);
            continue;
        }
        if (yyjson_obj_get(f, "name")) {
            flush_pieces(t, p);
            snprintf(p->name, sizeof(p->name), "%s", yyjson_get_str(yyjson_obj_get(f, "name")));
        }
        buf_add(&p->args, yyjson_get_str(args), yyjson_get_len(args));
    }
}

static void tell_block(struct told *t, yyjson_val *b) {
    notify_text(t, 'R', yyjson_obj_get(b, "thinking"), true);
    notify_text(t, 'C', yyjson_obj_get(b, "text"), true);
    if (yyjson_equals_str(yyjson_obj_get(b, "type"), "tool_use"))
        tell_object(t, yyjson_obj_get(b, "name"), yyjson_obj_get(b, "input"));
}

static void tell_item(struct told *t, yyjson_val *item) {
    yyjson_val *args = yyjson_obj_get(item, "arguments"), *part;
    bool reasoning = yyjson_equals_str(yyjson_obj_get(item, "type"), "reasoning");
    size_t i, n;

    yyjson_arr_foreach(yyjson_obj_get(item, "content"), i, n, part)
        notify_text(t, reasoning ? 'R' : 'C', yyjson_obj_get(part, "text"), true);
    if (args)
        tell_call(t, yyjson_obj_get(item, "name"), yyjson_get_str(args), yyjson_get_len(args));
}

/* Reads a whole answer, or one event of a stream. */
static void tell_root(struct told *t, yyjson_val *root, struct pieces *p) {
    yyjson_val *choice = yyjson_arr_get_first(yyjson_obj_get(root, "choices")), *v, *delta;
    size_t i, n;

    tell_message(t, yyjson_obj_get(choice, "message"), p);
    tell_message(t, yyjson_obj_get(choice, "delta"), p);
    if (yyjson_obj_get(root, "done"))
        tell_message(t, yyjson_obj_get(root, "message"), p);
    yyjson_arr_foreach(yyjson_obj_get(root, "content"), i, n, v) tell_block(t, v);
    if (yyjson_equals_str(yyjson_obj_get(root, "type"), "response.completed"))
        root = yyjson_obj_get(root, "response");
    yyjson_arr_foreach(yyjson_obj_get(root, "output"), i, n, v) tell_item(t, v);
    delta = yyjson_obj_get(root, "delta");
    if (yyjson_equals_str(yyjson_obj_get(root, "type"), "content_block_start")) {
        flush_pieces(t, p);
        close_told(t);
        v = yyjson_ptr_get(root, "/content_block/name");
        snprintf(p->name, sizeof(p->name), "%s", v ? yyjson_get_str(v) : "");
    }
    notify_text(t, 'R', yyjson_obj_get(delta, "thinking"), false);
    notify_text(t, 'C', yyjson_obj_get(delta, "text"), false);
    v = yyjson_obj_get(delta, "partial_json");
    buf_add(&p->args, yyjson_get_str(v), yyjson_get_len(v));
}

static void tell(struct told *t, struct reply *r) {
    struct pieces p = {.args.max = 1 << 20};
    char *save = NULL;

    *t = (struct told){
        .line.max = 1 << 20, .joined = {{.max = 1 << 20}, {.max = 1 << 20}}, .calls.max = 1 << 20};
    cr_assert_eq(r->status, 200, "%s", r->body.data);
    for (char *line = strtok_r(r->body.data, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save)) {
        line += strncmp(line, "data: ", 6) == 0 ? 6 : 0;
        yyjson_doc *doc = *line == '{' ? yyjson_read(line, strlen(line), 0) : NULL;

        if (doc)
            tell_root(t, yyjson_doc_get_root(doc), &p);
        yyjson_doc_free(doc);
    }
    flush_pieces(t, &p);
    close_told(t);
    buf_deinit(&p.args);
    reply_deinit(r);
}

static const char *text_of(const struct buf *b) {
    return b->len ? b->data : "";
}

/* Compares an answer: with @joined its texts, else its blocks in their order. */
static void expect_told(struct reply *r, bool joined, const char *want, const char *how) {
    struct told t;
    struct buf got = {.max = 1 << 20};

    tell(&t, r);
    buf_add_str(&got, "");
    if (joined) {
        buf_printf(&got, t.joined[0].len ? "R<%s> " : "%s", text_of(&t.joined[0]));
        buf_printf(&got, t.joined[1].len ? "C<%s> " : "%s", text_of(&t.joined[1]));
        buf_add_str(&got, text_of(&t.calls));
    } else {
        buf_add_str(&got, text_of(&t.line));
    }
    cr_expect_str_eq(text_of(&got), want, "%s\n     got %s\n  wanted %s", how, text_of(&got), want);
    buf_deinit(&got);
    buf_deinit(&t.line);
    buf_deinit(&t.calls);
    buf_deinit(&t.joined[0]);
    buf_deinit(&t.joined[1]);
}

#define PARAMETERS R"({"type":"object","properties":{"p":{}}})"
#define NESTED                                                                                     \
    R"(,"tools":[{"type":"function","function":{"name":"f","parameters":)" PARAMETERS "}}]"

static const struct {
    const char *path, *body;
    /* the answer has one text, instead of blocks */
    bool joined;
} dialects[] = {
    {CHAT, HI NESTED, true},
    {"/api/chat", R"("model":"tiny",)" HI NESTED, true},
    {"/v1/messages",
     R"("model":"tiny","max_tokens":4000,"thinking":{"type":"adaptive"},)" HI
     R"(,"tools":[{"name":"f","input_schema":)" PARAMETERS "}]",
     false},
    {"/v1/responses",
     R"("input":"hi","tools":[{"type":"function","name":"f","parameters":)" PARAMETERS "}]", false},
};

/* Asks for an answer in each dialect, streamed and whole. */
static void expect(struct world *w, const char *output, const char *joined, const char *blocks) {
    for (size_t i = 0; i < 2 * ARRAY_SIZE(dialects); i++) {
        bool one = dialects[i / 2].joined;
        char body[1000], how[100];
        struct reply r;

        snprintf(body, sizeof(body), R"({%s,"stream":%s})", dialects[i / 2].body,
                 i % 2 ? "true" : "false");
        snprintf(how, sizeof(how), "%s%s", dialects[i / 2].path, i % 2 ? ", stream" : "");
        w->port.script = output;
        world_ask(w, dialects[i / 2].path, body, &r);
        expect_told(&r, one, one ? joined : blocks, how);
    }
}

static const struct {
    /* blocks NULL: as joined */
    const char *output, *joined, *blocks;
} rows[] = {
    {"<think>a</think>\n\nOne.\n<think>\nb</think>\nTwo.\n<think>", "R<a\nb> C<One.\nTwo.> ",
     "R<a> C<One.> R<b> C<Two.> "},
    {"One.\n<think>", "C<One.> ", NULL},
    {"One.\n<think>\n</think>\n", "C<One.> ", NULL},
    {"So:\n```\n<think>\n```\n`<think>`", "C<So:\n```\n<think>\n```\n`<think>`> ", NULL},
    {"One.\n<think>b</think>\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
     "R<b> C<One.> f{} ", "C<One.> R<b> f{} "},
    /* calls that lack their end, or a bracket */
    {R"(<tool_call>{"name": "f", "arguments": {"p": [1, }})"
     "\n</tool_call>",
     R"(f{"p":[1]} )", NULL},
    {R"(<tool_call>{"name": "f", "arguments": {"p": {"q": [1)", R"(f{"p":{"q":[1]}} )", NULL},
    /* no call */
    {R"(<tool_call>{"name": "f", nonsense</tool_call>)",
     R"(C<<tool_call>{"name": "f", nonsense</tool_call>> )", NULL},
};

Test(answers, are_alike_in_all_dialects) {
    struct world w;

    world_init(&w);
    world_use_template(&w, source, sizeof(source) - 1);
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        expect(&w, rows[i].output, rows[i].joined,
               rows[i].blocks ? rows[i].blocks : rows[i].joined);
    world_stop(&w);
}

/* ---- ends of turns */

static const char turns[] =
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}"
    "{% if m.tool_calls %} -> tool/function_call\n[{{ m.tool_calls[0].function | tojson }}]"
    "<|im_end|><|stop|>{% else %}\n{{ m.content }}<|im_end|>"
    "{% if m.role == 'assistant' %}<|endofturn|>{% endif %}{% endif %}\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}";

static void init_family(struct family *f, const char *text, struct tokenizer *tokenizer) {
    CLEANUP(template_freep) struct template *t = NULL;
    struct err err = {0};

    cr_assert_eq(template_new(&t, text, strlen(text), &err), 0, "%s", err.message);
    struct api_model m = {.template = t,
                          .template_source = text,
                          .template_len = strlen(text),
                          .tokenizer = tokenizer};
    family_init(f, &m);
}

Test(answers, end_where_a_template_ends_a_turn) {
    struct tokenizer *t = tiny_turns_tokenizer();
    struct family f;

    cr_expect(!tokenizer_is_end(t, tokenizer_find(t, "<|im_end|>", 10)), "ends a message only");
    init_family(&f, turns, t);
    cr_expect_str_eq(f.format ? f.format->name : "-", "hyperclova");
    cr_expect(f.reasons);
    cr_assert_eq(f.n_ends, 2);
    cr_expect_eq(f.ends[0], tokenizer_find(t, "<|endofturn|>", 13));
    cr_expect_eq(f.ends[1], tokenizer_find(t, "<|stop|>", 8));
    family_deinit(&f);
    tokenizer_free(t);
}

/* GLM-4's templates write nothing behind a call, the models ask for its result. */
Test(answers, end_where_a_format_asks_for_results) {
    static const char source[] = "{% if tools %}{{ tools }}请使用 Json 格式表示调用的参数。{% "
                                 "endif %}{% for m in messages %}"
                                 "<|{{ m.role }}|>{{ m.metadata }}\n{{ m.content }}{% endfor %}";
    struct tokenizer *t = tiny_observing_tokenizer();
    struct family f;

    init_family(&f, source, t);
    cr_expect_str_eq(f.format ? f.format->name : "-", "glm4");
    cr_expect(f.names_calls);
    cr_assert_eq(f.n_ends, 1);
    cr_expect_eq(f.ends[0], tokenizer_find(t, "<|observation|>", 15));
    family_deinit(&f);
    tokenizer_free(t);
}

/* A token that begins a turn, belongs to a call, or is an end anyway adds nothing. */
Test(answers, end_at_no_other_tokens) {
    static const char *const sources[] = {
        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}<|im_start|>x",
        "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>\n{% endfor %}",
        "{{ tools }}{% for m in messages %}{{ m.content }}{% if m.tool_calls %}<tool_call>{}"
        "</tool_call>{% endif %}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{% endfor %}<|junk|>",
        "{{ raise_exception('no') }}<|junk|>",
        "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}{{ raise_exception('no') }}"
        "{% endif %}{% endfor %}",
        "{% for m in messages %}{{ m.content }}{% endfor %}",
    };
    struct tokenizer *t = tiny_tokenizer();

    for (size_t i = 0; i < ARRAY_SIZE(sources); i++) {
        struct family f;

        init_family(&f, sources[i], t);
        cr_expect_eq(f.n_ends, 0, "%s", sources[i]);
        family_deinit(&f);
    }
    tokenizer_free(t);
}

Test(answers, of_a_chat_end_there) {
    static const char junk[] = "{% for m in messages %}<|im_start|>{{ m.content }}<|junk|>\n"
                               "{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}";
    struct world w;
    struct reply r;

    world_init(&w);
    world_use_template(&w, junk, sizeof(junk) - 1);
    world_start(&w);
    for (int ignore = 0; ignore < 2; ignore++) {
        w.port.script = "Yes";
        world_ask(&w, CHAT, ignore ? "{" HI R"(,"ignore_eos":true,"max_tokens":3})" : "{" HI "}",
                  &r);
        cr_assert_eq(r.status, 200, "%s", r.body.data);
        reply_deinit(&r);
        cr_expect_eq(w.port.r[ignore].m.n_stop_ids, ignore ? 0 : 1);
    }
    world_stop(&w);
}

/* ---- formats that a request chooses */

static const char two_forms[] =
    "{%- if tools -%}{%- if form == 'json' -%}<tool_call>{json}</tool_call>{%- else -%}"
    "<tool_call><function=f><parameter=p>1</parameter></function></tool_call>{%- endif -%}"
    "{%- endif -%}{%- for m in messages -%}{{ m.content }}{%- endfor -%}";

/* The first request with new variables is read on the pool, where the template is tried. */
Test(answers, have_the_form_that_the_request_chooses) {
    static const struct {
        const char *kwargs, *part, *not ;
    } table[] = {
        {"", "<function=", R"({\"name\")"},
        {R"(,"chat_template_kwargs":{"form":"json"})", R"({\"name\")", "<function="},
        {R"(,"chat_template_kwargs":{"form":"xml"})", "<function=", R"({\"name\")"},
        {R"(,"chat_template_kwargs":{"other":"json"})", "<function=", R"({\"name\")"},
    };
    struct world w;
    struct reply r;

    world_init(&w);
    world_use_template(&w, two_forms, sizeof(two_forms) - 1);
    world_start(&w);
    for (uint32_t i = 0; i < 2 * ARRAY_SIZE(table); i++) {
        const char *grammar;
        char body[1000];

        snprintf(body, sizeof(body), "{" HI NESTED R"(,"tool_choice":"required"%s})",
                 table[i / 2].kwargs);
        w.port.script = "ok";
        world_ask(&w, CHAT, body, &r);
        cr_assert_eq(r.status, 200, "%s", r.body.data);
        reply_deinit(&r);
        grammar = w.port.r[i].grammar;
        cr_expect(strstr(grammar, table[i / 2].part) && !strstr(grammar, table[i / 2].not ),
                  "%s: %s", table[i / 2].kwargs, grammar);
    }
    world_stop(&w);
}
