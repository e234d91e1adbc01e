/*
 * Prompts of templates that tell by a variable what they need to know. Each template here is a
 * construct of a published family, written anew; the expected text is what users of GGUF files get
 * from other servers, or what the model's maker asks for.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/generation/gen_request.h"
#include "stream.h"
#include "tiny.h"

#define TOOLS                                                                                      \
    R"(,"tools":[{"type":"function","function":{"name":"f","parameters":{)"                        \
    R"("type":"object","properties":{}}}}])"
#define KWARGS(s) R"(,"chat_template_kwargs":{)" s "}"
#define USER(s) R"({"role":"user","content":")" s R"("})"

static void begin(struct world *w, const char *source, uint8_t option) {
    world_init(w);
    w->model.thinking = option;
    world_use_template(w, source, strlen(source));
    world_start(w);
}

/* Asks for the prompt of @body, and compares it with @want. */
static void expect_prompt(struct world *w, const char *body, const char *want) {
    char whole[600];
    struct reply r;

    snprintf(whole, sizeof(whole), R"({"prompt":"%s"})", want);
    world_ask(w, "/apply-template", body, &r);
    cr_expect_eq(r.status, 200, "%s: %s", body, r.body.data);
    cr_expect_str_eq(r.body.data, whole, "%s", body);
    reply_deinit(&r);
}

/* ---- thinking */

/* Marks say how the model writes thoughts, as the text of past messages does in real templates. */
#define THINKS "{{ messages[0].content }}|{%- if false -%}<think></think>{%- endif -%}"
/* Gemma 4, MiniCPM5, Reka: nothing or a closed block, unless the switch is true. */
#define SWITCH THINKS "{{ 'on' if enable_thinking | default(false) else 'off' }}"
/* DeepSeek V3.1. */
#define CLOSES THINKS "{{ '<think>' }}{%- if not thinking -%}{{ '</think>' }}{%- endif -%}"
/* Granite 3.3: a word of its system message. */
#define WORD THINKS "{{ 'on' if thinking else 'off' }}"
/* SmolLM3, Qwen3: on, unless the switch is false. */
#define UNLESS THINKS "{{ 'off' if enable_thinking is defined and not enable_thinking else 'on' }}"
/* Apertus, whose maker leaves it off. */
#define APERTUS                                                                                    \
    "{{ messages[0].content }}|{%- if false -%}<|inner_prefix|><|inner_suffix|>{%- endif -%}"      \
    "{{ 'on' if enable_thinking else 'off' }}"
/* No thoughts, but the variable. */
#define NONE "{{ messages[0].content }}|{{ 'on' if enable_thinking else 'off' }}"

Test(prompts, models_think_unless_they_are_told_not_to) {
    static const struct {
        const char *source;
        uint8_t option;
        const char *fields, *want;
    } cases[] = {
        {SWITCH, THINK_AUTO, "", "on"},
        {SWITCH, THINK_ON, "", "on"},
        {SWITCH, THINK_OFF, "", "off"},
        {SWITCH, THINK_TEMPLATE, "", "off"},
        {SWITCH, THINK_AUTO, R"(,"reasoning_effort":"none")", "off"},
        {SWITCH, THINK_AUTO, R"(,"enable_thinking":false)", "off"},
        {SWITCH, THINK_AUTO, KWARGS(R"("enable_thinking":false)"), "off"},
        {SWITCH, THINK_AUTO, KWARGS(R"("thinking":false)"), "off"},
        {SWITCH, THINK_AUTO, R"(,"think":false)", "off"},
        {SWITCH, THINK_TEMPLATE, R"(,"think":true)", "on"},
        {SWITCH, THINK_TEMPLATE, R"(,"think":"low")", "on"},
        {SWITCH, THINK_AUTO, R"(,"extra_body":{"chat_template_kwargs":{"thinking":false}})", "off"},
        {SWITCH, THINK_AUTO, R"(,"thinking":false)", "off"},
        {SWITCH, THINK_AUTO, R"(,"reasoning":false)", "off"},
        {SWITCH, THINK_TEMPLATE, R"(,"reasoning":true)", "on"},
        {SWITCH, THINK_AUTO, R"(,"thinking":{"type":"disabled"})", "off"},
        {SWITCH, THINK_AUTO, R"(,"thinking":{"type":"auto"})", "on"},
        {SWITCH, THINK_TEMPLATE, R"(,"reasoning_effort":"low")", "on"},
        {SWITCH, THINK_TEMPLATE, KWARGS(R"("enable_thinking":true)"), "on"},
        {SWITCH, THINK_OFF, KWARGS(R"("thinking":true)"), "on"},
        {CLOSES, THINK_AUTO, "", "<think>"},
        {CLOSES, THINK_OFF, "", "<think></think>"},
        {CLOSES, THINK_TEMPLATE, "", "<think></think>"},
        {CLOSES, THINK_AUTO, KWARGS(R"("enable_thinking":false)"), "<think></think>"},
        {CLOSES, THINK_TEMPLATE, KWARGS(R"("enable_thinking":true)"), "<think>"},
        {WORD, THINK_AUTO, "", "off"},
        {WORD, THINK_ON, "", "on"},
        {WORD, THINK_AUTO, R"(,"reasoning_effort":"high")", "on"},
        {UNLESS, THINK_AUTO, "", "on"},
        {UNLESS, THINK_TEMPLATE, "", "on"},
        {UNLESS, THINK_OFF, "", "off"},
        {APERTUS, THINK_AUTO, "", "off"},
        {APERTUS, THINK_ON, "", "on"},
        {NONE, THINK_AUTO, "", "off"},
        {NONE, THINK_AUTO, R"(,"enable_thinking":true)", "on"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct world w;
        char body[300], want[100];

        begin(&w, cases[i].source, cases[i].option);
        snprintf(body, sizeof(body), "{" HI "%s}", cases[i].fields);
        snprintf(want, sizeof(want), "hi|%s", cases[i].want);
        expect_prompt(&w, body, want);
        world_stop(&w);
    }
}

/* ---- thoughts of earlier turns */

#define PAST                                                                                       \
    R"({"messages":[)" USER("a") R"(,{"role":"assistant","content":"b",)"                          \
                                 R"("reasoning_content":"T"},)" USER("c") "]"

Test(prompts, agents_keep_the_thoughts_of_earlier_turns) {
    /* GLM 4.7; Nemotron 3; Qwen3.6, LFM2.5 and Laguna; DeepSeek V4. */
    static const char *const keeps[] = {
        "clear_thinking is defined and not clear_thinking",
        "truncate_history_thinking is defined and not truncate_history_thinking",
        "preserve_thinking",
        "drop_thinking is defined and not drop_thinking",
    };
    static const char *const names[] = {"clear_thinking", "truncate_history_thinking",
                                        "preserve_thinking", "drop_thinking"};

    for (size_t i = 0; i < ARRAY_SIZE(keeps); i++) {
        struct world w;
        char source[300], body[500];

        snprintf(source, sizeof(source),
                 "{%%- for m in messages -%%}{%%- if %s -%%}{{ m.reasoning_content }}{%%- endif "
                 "-%%}{{ m.content }}{%%- endfor -%%}{# tools <think> </think> #}"
                 "{%%- if tools -%%}!{%%- endif -%%}",
                 keeps[i]);
        begin(&w, source, THINK_AUTO);
        expect_prompt(&w, PAST "}", "abc");
        expect_prompt(&w, PAST TOOLS "}", "aTbc!");
        expect_prompt(&w, PAST KWARGS(R"("preserve_reasoning":true)") "}", "aTbc");
        expect_prompt(&w, PAST TOOLS KWARGS(R"("preserve_reasoning":false)") "}", "abc!");
        snprintf(body, sizeof(body), PAST TOOLS KWARGS(R"("%s":%s)") "}", names[i],
                 i == 2 ? "false" : "true");
        expect_prompt(&w, body, "abc!");
        world_stop(&w);
    }
}

/* Ministral. */
Test(prompts, thoughts_are_parts_where_the_template_reads_parts) {
    static const char source[] =
        "{%- for m in messages -%}{%- if m.content is string -%}{{ m.content }}{%- else -%}"
        "{%- for p in m.content -%}{%- if p.type == 'text' -%}{{ p.text }}{%- elif p.type == "
        "'thinking' -%}{{ '[THINK]' + p.thinking + '[/THINK]' }}{%- endif -%}{%- endfor -%}"
        "{%- endif -%}{%- endfor -%}";
    struct world w;

    begin(&w, source, THINK_AUTO);
    expect_prompt(&w, PAST "}", "a[THINK]T[/THINK]bc");
    expect_prompt(&w,
                  R"({"messages":[)" USER("a") R"(,{"role":"assistant","content":[{"type":)"
                                               R"("thinking","thinking":"T"},{"type":"text",)"
                                               R"("text":"b"}]},)" USER("c") "]}",
                  "a[THINK]T[/THINK]bc");
    world_stop(&w);
    /* A template that prints the list of parts is given a text. */
    begin(&w,
          "{%- for m in messages -%}{{ m.content }}{%- endfor -%}{%- if false "
          "-%}[THINK][/THINK]{%- endif -%}",
          THINK_AUTO);
    expect_prompt(&w, PAST "}", "abc");
    world_stop(&w);
}

/* ---- results of calls */

/* An early template of Gemma 4. */
Test(prompts, results_are_members_of_the_call_where_the_template_reads_them_there) {
    static const char source[] =
        "{%- for m in messages -%}{{ m.role[0] }}:{%- for c in m.tool_calls or [] -%}"
        "{{ c.function.name }};{%- endfor -%}{%- for r in m.tool_responses or [] -%}"
        "{{ '<|tool_response>' + (r.name or '?') + '=' + r.response }};{%- endfor -%}"
        "{{ m.content }}/{%- endfor -%}{%- if tools -%}{%- endif -%}";
    static const char body[] =
        R"({"messages":[)" USER("a") R"(,{"role":"assistant","tool_calls":[)"
                                     R"({"id":"1","type":"function","function":{"name":)"
                                     R"("f","arguments":"{}"}},)"
                                     R"({"id":"2","type":"function","function":{"name":)"
                                     R"("g","arguments":"{}"}}]},)"
                                     R"({"role":"tool","tool_call_id":"2","content":"G"},)"
                                     R"({"role":"tool","tool_call_id":"1","content":"F"},)"
                                     R"({"role":"assistant","content":"b"},)" USER("c") "]}";
    struct world w;

    begin(&w, source, THINK_AUTO);
    expect_prompt(&w, body, "u:a/a:f;g;<|tool_response>g=G;<|tool_response>f=F;/a:b/u:c/");
    world_stop(&w);
}

/* ---- contents */

/* SmolVLM's template iterates over parts. */
Test(prompts, contents_are_parts_where_the_template_shows_no_strings) {
    static const char source[] =
        "{%- for m in messages -%}{{ m.role[0] }}:{%- for c in m.content -%}{%- if c.type == "
        "'text' "
        "-%}{{ c.text }}{%- elif c.type == 'image' -%}<image>{%- endif -%}{%- endfor -%}/"
        "{%- endfor -%}";
    struct world w;

    begin(&w, source, THINK_AUTO);
    expect_prompt(&w, "{" HI "}", "u:hi/");
    expect_prompt(&w, PAST "}", "u:a/a:b/u:c/");
    world_stop(&w);
    /* Most templates print a list as they would any value, but a text as it is. */
    begin(&w, "{{ messages[0].content }}", THINK_AUTO);
    expect_prompt(&w, "{" HI "}", "hi");
    world_stop(&w);
}

/* ---- tools and dates */

/* Command R+ and Hermes 2 Pro loop over the tools without a question. */
Test(prompts, no_tools_are_not_none_where_the_template_fails_on_it) {
    struct world w;

    begin(&w, "{{ messages[0].content }}{%- for t in tools -%}{{ t.function.name }}{%- endfor -%}",
          THINK_AUTO);
    expect_prompt(&w, "{" HI "}", "hi");
    expect_prompt(&w, "{" HI TOOLS "}", "hif");
    world_stop(&w);
    /* Others ask for none, as Transformers has it. */
    begin(&w, "{{ messages[0].content }}{{ '-' if tools is none else '+' }}", THINK_AUTO);
    expect_prompt(&w, "{" HI "}", "hi-");
    world_stop(&w);
}

Test(prompts, templates_know_the_day) {
    time_t now = time(NULL);
    struct tm tm;
    char want[60];
    struct world w;

    begin(&w, "{{ date_string }}|{{ datetime }}", THINK_AUTO);
    cr_assert(gmtime_r(&now, &tm));
    strftime(want, sizeof(want), "%d %b %Y|%b %d %Y", &tm);
    expect_prompt(&w, "{" HI "}", want);
    expect_prompt(&w, "{" HI KWARGS(R"("date_string":"x","datetime":"y")") "}", "x|y");
    world_stop(&w);
}

/* ---- what clients are told */

Test(prompts, clients_are_told_whether_a_model_thinks) {
    static const struct {
        const char *source;
        uint8_t option;
        /* NULL: the model never reasons */
        const char *word;
    } cases[] = {
        {SWITCH, THINK_AUTO, "on"}, {SWITCH, THINK_TEMPLATE, "template"},
        {SWITCH, THINK_OFF, "off"}, {WORD, THINK_AUTO, "template"},
        {APERTUS, THINK_ON, "on"},  {NONE, THINK_ON, NULL},
    };
    static const char *const paths[] = {"/v1/models", "/props"};

    for (size_t i = 0; i < ARRAY_SIZE(cases) * ARRAY_SIZE(paths); i++) {
        const char *word = cases[i / 2].word;
        struct world w;
        struct reply r;
        char part[60];

        begin(&w, cases[i / 2].source, cases[i / 2].option);
        snprintf(part, sizeof(part), R"("reasoning":"%s")", word ? word : "");
        world_get(&w, paths[i % 2], &r);
        cr_expect_eq(r.status, 200, "%s", r.body.data);
        cr_expect_eq(!strstr(r.body.data, word ? part : R"("reasoning":)"), !word, "%zu: %s", i,
                     r.body.data);
        reply_deinit(&r);
        world_stop(&w);
    }
}

/* ---- BOS */

/* Asks @path and compares the ids of its prompt. */
static void expect_ids(struct world *w, const char *path, const char *body, const char *ids) {
    char part[100];
    struct reply r;

    snprintf(part, sizeof(part), R"("token_ids":[%s])", ids);
    world_ask(w, path, body, &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    cr_expect(strstr(r.body.data, part), "%s: %s, not %s", body, r.body.data, ids);
    reply_deinit(&r);
}

static void begin_bos(struct world *w, const char *source) {
    world_init(w);
    tokenizer_free((struct tokenizer *)(uintptr_t)w->model.tokenizer);
    w->model.tokenizer = tiny_bos_tokenizer();
    world_use_template(w, source, strlen(source));
    world_start(w);
}

/* TINY_EOT, 258, is BOS here; 104 and 105 are the letters of "hi". */
Test(prompts, begin_with_one_bos_where_the_file_says_so) {
    struct world w;

    begin_bos(&w, "{{ messages[0].content }}");
    expect_ids(&w, CHAT "/render", "{" HI "}", "258,104,105");
    /* What a user writes is no BOS. */
    expect_ids(&w, CHAT "/render", R"({"messages":[)" USER("<s>") "]}", "258,60,115,62");
    expect_prompt(&w, "{" HI "}", "hi");
    expect_ids(&w, TEXT "/render", R"({"prompt":"hi"})", "258,104,105");
    expect_ids(&w, TEXT "/render", R"({"prompt":"<s>hi"})", "258,104,105");
    expect_ids(&w, TEXT "/render", R"({"prompt":"<s>hi","add_special_tokens":false})",
               "258,104,105");
    expect_ids(&w, TEXT "/render", R"({"prompt":"hi","add_special_tokens":false})", "104,105");
    world_stop(&w);
    begin_bos(&w, "{{ bos_token + messages[0].content }}");
    expect_ids(&w, CHAT "/render", "{" HI "}", "258,104,105");
    expect_prompt(&w, "{" HI "}", "hi");
    world_stop(&w);
    /* A tokenizer that adds none. */
    begin(&w, "{{ messages[0].content }}", THINK_AUTO);
    expect_ids(&w, CHAT "/render", "{" HI "}", "104,105");
    world_stop(&w);
}

Test(prompts, an_echo_has_the_bos_that_the_client_wrote) {
    static const char *const cases[][2] = {{"hi", R"("text":"hix")"},
                                           {"<s>hi", R"("text":"<s>hix")"}};
    struct world w;

    world_init(&w);
    tokenizer_free((struct tokenizer *)(uintptr_t)w.model.tokenizer);
    w.model.tokenizer = tiny_bos_tokenizer();
    w.port.script = "x";
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct reply r;
        char body[100];

        snprintf(body, sizeof(body), R"({"prompt":"%s","echo":true})", cases[i][0]);
        world_ask(&w, TEXT, body, &r);
        cr_expect(strstr(r.body.data, cases[i][1]), "%s: %s", cases[i][0], r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
}
