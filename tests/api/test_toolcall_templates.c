/*
 * Every template of the data set: the format and reasoning that are detected, and that the calls it
 * writes for an assistant message are read back unchanged. The model's output is the rendering of a
 * conversation that ends with the assistant's message, without the rendering of the earlier
 * messages with its generation prompt.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yyjson.h>

#include "api/generation/family_format.h"
#include "grammar/constraint.h"
#include "tests/api/toolcall_support.h"
#include "tests/support/test_data.h"
#include "text/template.h"

#define NOW 1768469213

enum {
    /* the template writes calls */
    CALLS = 1,
    /* only one call */
    ONE = 2,
    /* with content it leaves calls out, or writes them otherwise */
    SILENT = 4,
    /* it writes the reasoning, too */
    THINKS = 8,
    /* it writes lists as Python does */
    REPR = 16,
    /* its ids are longer than weft's */
    IDS = 32,
    /* only its source shows the markers of reasoning */
    HIDES = 64,
    /* it writes no blank or line break where the grammar wants one */
    TIGHT = 128,
};

static const struct {
    const char *file, *format, *reasoning;
    unsigned flags;
} rows[] = {
    {"Apertus-8B-Instruct", "apertus", "apertus", CALLS | HIDES},
    {"ByteDance-Seed-OSS", "seed", "seed", CALLS | THINKS | REPR},
    {"CohereForAI-c4ai-command-r-plus-tool_use", "command-r", NULL, CALLS},
    {"CohereForAI-c4ai-command-r7b-12-2024-tool_use", "command-r7b", "command-r7b", CALLS | THINKS},
    {"GLM-4.6", "glm", "think", CALLS | THINKS},
    {"GigaChat3-10B-A1.8B", "gigachat", NULL, CALLS | ONE},
    {"HuggingFaceTB-SmolLM3-3B", NULL, "think", 0},
    {"HuggingFaceTB-SmolLM3-3B-xml-tools", "hermes", "think", 0},
    {"Kimi-K2-Instruct", "kimi-k2", NULL, CALLS},
    {"Kimi-K3", "kimi-k3", "kimi-k3", CALLS | THINKS},
    {"LFM2-8B-A1B", "lfm2", NULL, 0},
    {"LGAI-EXAONE-EXAONE-4.0-32B", "hermes", "think", CALLS | TIGHT},
    {"LFM2.5-Instruct", "lfm2", "think", HIDES},
    {"MiniMax-M1", "minimax-m1", NULL, CALLS},
    {"MiniMax-M2", "minimax-m2", "think", CALLS | THINKS},
    {"MiniMind2-Small", "hermes", "think", CALLS},
    {"Mistral-Small-3.2-24B-Instruct-2506", "mistral-id", NULL, CALLS},
    {"NVIDIA-Nemotron-Nano-v2", "nemotron", "think", CALLS | SILENT},
    {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes", NULL, CALLS},
    {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "hermes", NULL, CALLS},
    {"Qwen-Qwen2.5-7B-Instruct", "hermes", NULL, CALLS},
    {"Qwen-Qwen3-0.6B", "hermes", "think", CALLS | THINKS},
    {"Qwen3-Coder", "qwen-coder", NULL, CALLS},
    {"Qwen3.5-4B", "qwen-coder", "think", CALLS | THINKS},
    {"Reka-Edge", "hermes", "think", CALLS | THINKS},
    {"THUDM-GLM-4-9B-0414", "glm4", NULL, 0},
    {"THUDM-GLM-Z1-9B-0414", "glm4", "think", 0},
    {"TinyLlama-1.1B-Chat", NULL, NULL, 0},
    {"ai21labs-AI21-Jamba-1.5-Mini", "jamba", NULL, CALLS},
    {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "deepseek-v3", "think", 0},
    {"deepseek-ai-DeepSeek-V3.1", "deepseek-v3.1", "think", CALLS},
    {"deepseek-ai-DeepSeek-V4-Flash-0731", "deepseek-dsml", "think", CALLS | THINKS},
    {"deepseek-ai-DeepSeek-V4", "deepseek-dsml", "think", CALLS | THINKS},
    {"fireworks-ai-llama-3-firefunction-v2", "firefunction", NULL, 0},
    {"google-gemma-2-2b-it", NULL, NULL, 0},
    {"google-gemma-4-31B-it", "gemma4", "gemma4", CALLS},
    {"ibm-granite-granite-3.3-2B-Instruct", "granite", "think", HIDES},
    {"ibm-granite-granite-4.0", "hermes", NULL, CALLS},
    {"inclusionai-ling-3.0-flash", "glm", "think", CALLS | THINKS},
    {"internlm2_5-tools", "internlm", NULL, CALLS},
    {"llama-cpp-deepseek-r1", "deepseek-v3", "think", CALLS | SILENT},
    {"llama-cpp-rwkv-world", NULL, "think", 0},
    {"meetkai-functionary-medium-v3.1", "functionary", NULL, CALLS},
    {"meta-llama-Llama-3.1-8B-Instruct", "llama3", NULL, CALLS | ONE},
    {"meta-llama-Llama-3.3-70B-Instruct", "llama3", NULL, CALLS | ONE},
    {"meta-llama-Llama-4-Scout-17B-16E-Instruct", "llama4", NULL, CALLS},
    {"microsoft-Phi-3.5-mini-instruct", NULL, NULL, 0},
    {"mistralai-Mistral-Nemo-Instruct-2407", "mistral-json", NULL, CALLS},
    {"moonshotai-Kimi-K2", "kimi-k2", NULL, CALLS},
    {"openai-gpt-oss-120b", "harmony", NULL, CALLS | ONE},
    {"openbmb-MiniCPM5-1B", "minicpm", "think", CALLS | THINKS | REPR},
    {"poolside-Laguna-S-2.1", "glm", "think", CALLS | THINKS},
    {"poolside-Laguna-XS.2", "glm", "think", CALLS | THINKS},
    {"tencent-Hy3", "hunyuan", "hunyuan", CALLS | THINKS},
    {"tencent-Hunyuan-7B-Instruct", "hunyuan-dense", "think", CALLS},
    {"tiiuae-Falcon-H1-Tiny-Multilingual-100M-Instruct", "falcon", NULL, CALLS | IDS},
    {"tiiuae-Falcon-H1R-7B", "hermes", "think", CALLS | THINKS | TIGHT},
    {"unsloth-Apriel-1.5", "apriel", "thinking", CALLS | HIDES},
    {"unsloth-mistral-Devstral-Small-2507", "mistral-args", NULL, CALLS},
    {"upstage-Solar-Open-100B", "solar", "solar", CALLS | IDS},
};

static char *read_source(const char *name, size_t *len) {
    char path[TEST_DATA_PATH];
    char *text = calloc(1, 1 << 18);
    FILE *f = fopen(test_data_file(path, "templates", name, ".jinja"), "rb");

    cr_assert(f && text, "%s cannot be read", path);
    *len = fread(text, 1, 1 << 18, f);
    fclose(f);
    return text;
}

Test(toolcall_templates, every_template_is_known) {
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        size_t len;
        CLEANUP(freep) char *source = read_source(rows[i].file, &len);
        CLEANUP(template_freep) struct template *t = NULL;
        CLEANUP(buf_deinit) struct buf own = family_source(source, len);
        struct err err = {0};

        cr_assert_eq(template_new(&t, source, len, &err), 0, "%s", err.message);
        const struct toolcall_format *f = family_find_format(t, &own, NULL);
        const struct toolcall_reasoning *r = family_find_reasoning(t, &own);
        const struct toolcall_reasoning *written = family_find_reasoning(t, &(struct buf){0});

        cr_expect_str_eq(f ? f->name : "-", rows[i].format ? rows[i].format : "-", "%s: %s",
                         rows[i].file, f ? f->name : "-");
        cr_expect_str_eq(r ? r->name : "-", rows[i].reasoning ? rows[i].reasoning : "-", "%s: %s",
                         rows[i].file, r ? r->name : "-");
        cr_expect_eq(written, rows[i].flags & HIDES ? NULL : r, "%s: %s", rows[i].file,
                     written ? written->name : "-");
    }
}

/* ---- templates that mention several formats ---- */

#define TURNS                                                                                      \
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
#define HERMES R"(<tool_call>{"name": "f"}</tool_call>)"
#define CODER "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>"

#define PLAMO(tag) "<|plamo:" tag ":plamo|>"

static const struct {
    const char *source, *kwargs, *format;
} shown[] = {
    {"{# unlike [TOOL_CALLS] of Mistral #}{{ tools }}" HERMES TURNS, NULL, "hermes"},
    {"{#- GLM has <arg_key> -#}{{ tools }}" HERMES TURNS, NULL, "hermes"},
    {"{{ tools }}" HERMES TURNS "{# not <TOOLCALL> {{ #}", NULL, "hermes"},
    {"{{ '{#' }}{{ tools }}" HERMES TURNS "#}", NULL, "hermes"},
    {"{{ tools }}" TURNS "{# <tool_call> ", NULL, NULL},
    {"{{ '\\'{#' }}{{ tools }}" HERMES TURNS R"({{ "}}{#\"" }})", NULL, "hermes"},
    {"{% if false %}<minimax:tool_call>{% endif %}{{ tools }}" HERMES TURNS, NULL, "hermes"},
    {"{% if false %}" CODER "{% endif %}{{ tools }}" HERMES TURNS, NULL, "hermes"},
    /* what a call looks like decides before what the instructions mention */
    {"{{ tools }} unlike [TOOL_CALLS] " TURNS "{% for m in messages if m.tool_calls %}" HERMES
     "{% endfor %}",
     NULL, "hermes"},
    /* a template that shows no marker, or that refuses the conversation */
    {"{{ tools }}" TURNS "{% if false %}" CODER "{% endif %}", NULL, "qwen-coder"},
    {"{{ raise_exception('no') }}{% if tools %}" CODER "{% endif %}", NULL, "qwen-coder"},
    {"{% if messages | length > 1 %}{{ raise_exception('no') }}{% endif %}{% if tools %}" HERMES
     "{% endif %}{% if false %}<arg_key>{% endif %}",
     NULL, "hermes"},
    /* Hunyuan A13B, unlike Apriel */
    {"{{ tools }}{% for m in messages %}{{ m.content }}{% if m.tool_calls "
     R"(%}<tool_calls>[{"name": )"
     R"("f"}]</tool_calls>{% endif %}<|eos|>{% endfor %})",
     NULL, "hunyuan-a13b"},
    /* PLaMo 3 */
    {"{{ tools }}" TURNS "{% for m in messages if m.tool_calls %}" PLAMO("begin_tool_requests")
         PLAMO("begin_tool_request") PLAMO("begin_tool_name") "f" PLAMO("end_tool_name")
             PLAMO("begin_tool_arguments") "<|plamo:msg|>{}{% endfor %}",
     NULL, "plamo3"},
    /* Falcon-H1 Instruct, which shows content alone */
    {"{% if tools %}{{ tools }}return a json object with function name and arguments within "
     "<tool_call> </tool_call> tags with the following schema:\n<tool_call>\n"
     "{'arguments': <args-dict>, 'name': <function-name>}\n</tool_call>\n{% endif %}" TURNS,
     NULL, "hermes"},
    /* Olmo 3 */
    {"{{ tools }}" TURNS "{% for m in messages if m.tool_calls %}<function_calls>\nf(a=1)\n"
     "</function_calls>{% endfor %}",
     NULL, "olmo3"},
    /* Llama 4 with a template that asks for lists */
    {"{{ tools }}{% for m in messages %}<|header_start|>{{ m.role }}<|header_end|>\n\n"
     "{% if m.tool_calls %}[{% for c in m.tool_calls %}{{ c.function.name }}("
     "{% for k in c.function.arguments %}{{ k }}='{{ c.function.arguments[k] }}'{% endfor %})"
     "{% endfor %}]{% else %}{{ m.content }}{% endif %}<|eot|>{% endfor %}",
     NULL, "llama4-python"},
    /* what is around the call: ERNIE 4.5 Thinking */
    {"<global_setting>\nthink_mode=True\n</global_setting>{{ tools }}" TURNS
     "{% for m in messages if m.tool_calls %}" HERMES "{% endfor %}<think>\n",
     NULL, "ernie"},
    /* variables of the request */
    {"{% if form == 'json' %}" HERMES "{% else %}" CODER "{% endif %}{{ tools }}" TURNS,
     R"({"form": "json"})", "hermes"},
    {"{% if form == 'json' %}" HERMES "{% else %}" CODER "{% endif %}{{ tools }}" TURNS,
     R"({"form": "xml"})", "qwen-coder"},
};

Test(toolcall_templates, what_a_template_shows_decides) {
    for (size_t i = 0; i < ARRAY_SIZE(shown); i++) {
        const char *text = shown[i].source, *kwargs = shown[i].kwargs ? shown[i].kwargs : "{}";
        CLEANUP(template_freep) struct template *t = NULL;
        CLEANUP(buf_deinit) struct buf own = family_source(text, strlen(text));
        yyjson_doc *doc = yyjson_read(kwargs, strlen(kwargs), 0);
        struct err err = {0};

        if (template_new(&t, text, strlen(text), &err) < 0) /* a comment without an end */
            cr_assert_eq(template_new(&t, "{{ tools }}", 11, &err), 0, "%s", err.message);
        const struct toolcall_format *f = family_find_format(t, &own, yyjson_doc_get_root(doc));

        cr_expect_str_eq(f ? f->name : "-", shown[i].format ? shown[i].format : "-", "%s", text);
        yyjson_doc_free(doc);
    }
}

/* Markers in branches that are not taken decide nothing, if the template shows others. */
Test(toolcall_templates, what_a_template_shows_is_its_reasoning) {
#define NOT_TAKEN "{% if false %}<seed:think></seed:think>{% endif %}"
#define ASSISTANT R"({% for m in messages if m.role == "assistant" %})"
    static const struct {
        const char *source, *reasoning;
    } table[] = {
        {NOT_TAKEN TURNS "{% if add_generation_prompt %}<think>\n{% endif %}", "think"},
        {NOT_TAKEN TURNS "{% if add_generation_prompt and enable_thinking is false %}<think>\n\n"
                         "</think>\n\n{% endif %}",
         "think"},
        {NOT_TAKEN "{{ messages[0].content }}" ASSISTANT
                   "{% if m.reasoning %}[THINK]{{ m.reasoning }}[/THINK]{% endif %}{{ m.content }}"
                   "{% endfor %}",
         "mistral"},
        {NOT_TAKEN ASSISTANT "{{ m.content.split('</think>')[-1] }}{% endfor %}x", "think"},
        {NOT_TAKEN TURNS, "seed"}, /* it shows none */
        /* EXAONE 4, without and with the variable; Hunyuan A13B, which only closes */
        {"[|assistant|]\n{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n"
         "{% endif %}",
         "think"},
        {TURNS "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n"
               "{% endif %}",
         "think"},
        {"{# </think> #}" TURNS, NULL},
        {"{# a #}{# </think> #}" TURNS, NULL},
        {"{{ '\\'#}' }}{#}</think>#}" TURNS, NULL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        const char *text = table[i].source;
        CLEANUP(template_freep) struct template *t = NULL;
        CLEANUP(buf_deinit) struct buf own = family_source(text, strlen(text));
        struct err err = {0};

        cr_assert_eq(template_new(&t, text, strlen(text), &err), 0, "%s", err.message);
        const struct toolcall_reasoning *r = family_find_reasoning(t, &own);
        cr_expect_str_eq(r ? r->name : "-", table[i].reasoning ? table[i].reasoning : "-", "%s",
                         text);
    }
}

Test(toolcall_templates, formats_of_few_sets_of_variables_are_kept) {
    const struct toolcall_format *hermes = toolcall_find("hermes"), *got = NULL;
    struct family_formats f;
    char key[2 * FAMILY_KWARGS_MAX];

    family_formats_init(&f);
    for (int i = 0; i < 1000; i++) {
        snprintf(key, sizeof(key), R"({"i":%d})", i);
        cr_expect(!family_formats_get(&f, key, &got));
        family_formats_insert(&f, key, i % 2 ? hermes : NULL);
        cr_expect(family_formats_get(&f, key, &got));
        cr_expect_eq(got, i % 2 ? hermes : NULL);
        cr_expect_leq(f.n, FAMILY_KWARGS_KEPT);
    }
    cr_expect(!family_formats_get(&f, R"({"i":1})", &got), "the oldest ones leave");
    cr_expect(family_formats_get(&f, R"({"i":990})", &got));
    memset(key, 'x', sizeof(key) - 1);
    key[sizeof(key) - 1] = 0;
    family_formats_insert(&f, key, hermes);
    cr_expect(!family_formats_get(&f, key, &got), "large ones are not kept");
    family_formats_deinit(&f);
}

/* ---- round trips ---- */

#define PARIS R"({"city": "Paris", "unit": "celsius"})"
#define FIND                                                                                       \
    R"({"pattern": "TODO|FIXME \"é\" <b>\n\\d", )"                                                \
    R"("paths": ["src/", "docs/a b.md"], )"                                                        \
    R"("max_results": 5, "options": {"ignore_case": true, "context": null}})"
#define CALL(id, name, args)                                                                       \
    R"({"id": ")" id R"(", "type": "function", "function": {"name": ")" name                       \
    R"(", "arguments": )" args "}}"

static const char vars_format[] =
    R"({"bos_token": "", "eos_token": "", "tools": %s, "enable_thinking": true, )"
    R"("thinking": true, "functions": "", "datetime": "", "messages": [{"role": )"
    R"("user", )"
    R"("content": "Go"}%s], "add_generation_prompt": %s})";

static char *render(const struct template *t, const char *message, bool prompt, size_t *len) {
    struct template_opts opts = {.now_unix = NOW};
    struct rendered out = {0};
    struct err err = {0};
    char *tools = yyjson_val_write(toolcall_tools(), 0, NULL), *vars = NULL;
    char *flat = strstr(tools, R"(,{"name":"write")");

    cr_assert(flat);
    strcpy(flat, "]"); /* the further tools have a form that templates do not accept */
    cr_assert(asprintf(&vars, vars_format, tools, message, prompt ? "true" : "false") > 0);
    yyjson_doc *doc = yyjson_read(vars, strlen(vars), 0);

    cr_assert(doc, "%s", vars);
    int r = template_render(t, yyjson_doc_get_root(doc), &opts, &out, &err);
    char *text = r ? NULL : strndup(out.text.data, out.text.len);

    cr_expect_eq(r, 0, "%s", err.message);
    *len = r ? 0 : out.text.len;
    rendered_deinit(&out);
    yyjson_doc_free(doc);
    free(tools);
    free(vars);
    return text;
}

/* Returns the position where prompt and full text differ, but not inside a tag, which may begin
 * alike. */
static size_t begin_of(const char *prompt, size_t n, const char *full, size_t len) {
    size_t i = 0;

    while (i < n && i < len && prompt[i] == full[i])
        i++;
    size_t tag = i;

    while (tag && full[tag - 1] != '<' && full[tag - 1] != '>')
        tag--;
    return tag && i < n && full[tag - 1] == '<' ? tag - 1 : i;
}

struct seen {
    /* "name{..};": arguments as canonical JSON */
    struct buf calls;
    struct buf content, reasoning, args;
};

static int by_key(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Writes the members of the top level, sorted; those below are compared unchanged. */
static void put_sorted(struct buf *out, const char *json, size_t len) {
    yyjson_doc *doc = yyjson_read(json, len, 0);
    yyjson_val *key, *val;
    const char *keys[32];
    size_t i, n, n_keys = 0;

    cr_assert(yyjson_is_obj(yyjson_doc_get_root(doc)), "%.*s", (int)len, json);
    yyjson_obj_foreach(yyjson_doc_get_root(doc), i, n, key, val) keys[n_keys++] =
        yyjson_get_str(key);
    qsort(keys, n_keys, sizeof(*keys), by_key);
    for (i = 0; i < n_keys; i++) {
        yyjson_val *v = yyjson_obj_get(yyjson_doc_get_root(doc), keys[i]);
        char *text = NULL;

        if (yyjson_is_obj(v)) {
            struct buf inner;
            char *whole = yyjson_val_write(v, 0, NULL);

            buf_init(&inner, 1 << 20);
            put_sorted(&inner, whole, strlen(whole));
            free(whole);
            text = inner.data;
        } else {
            text = yyjson_val_write(v, 0, NULL);
        }
        buf_printf(out, "%s=%s,", keys[i], text);
        free(text);
    }
    yyjson_doc_free(doc);
}

static int on_event(void *ctx, const struct toolcall_event *e) {
    struct seen *s = ctx;

    switch (e->kind) {
    case TOOLCALL_CONTENT:
        return buf_add(&s->content, e->data, e->len);
    case TOOLCALL_REASONING:
        return buf_add(&s->reasoning, e->data, e->len);
    case TOOLCALL_BEGIN:
        return buf_printf(&s->calls, "%s ", e->name);
    case TOOLCALL_ARGS:
        return buf_add(&s->args, e->data, e->len);
    case TOOLCALL_END:
        cr_expect(e->complete);
        put_sorted(&s->calls, s->args.data, s->args.len);
        buf_clear(&s->args);
        return buf_add_str(&s->calls, "; ");
    }
    return 0;
}

static void expect_back(size_t row, bool two) {
    CLEANUP(template_freep) struct template *t = NULL;
    CLEANUP(toolcall_parser_freep) struct toolcall_parser *p = NULL;
    static const char one_call[] = R"(, {"role": "assistant", "content": "I look.", )"
                                   R"("reasoning_content": "Hm, so.", "tool_calls": [)" CALL(
                                       "call0a001", "search_files", FIND) "]}";
    static const char two_calls[] =
        R"(, {"role": "assistant", "content": "", "tool_calls": [)" CALL(
            "call0a001", "get_weather", PARIS) ", " CALL("call0a002", "search_files", FIND) "]}";
    struct err err = {0};
    struct seen s = {0}, want = {0};
    size_t len, n_prompt, n_full;
    CLEANUP(freep) char *source = read_source(rows[row].file, &len);

    cr_assert_eq(template_new(&t, source, len, &err), 0, "%s", err.message);
    CLEANUP(freep) char *prompt = render(t, "", true, &n_prompt);
    CLEANUP(freep) char *full = render(t, two ? two_calls : one_call, false, &n_full);

    if (!prompt || !full)
        return;
    size_t begin = begin_of(prompt, n_prompt, full, n_full);
    struct toolcall_opts opts = {
        .format = toolcall_find(rows[row].format),
        .reasoning = rows[row].reasoning ? toolcall_find_reasoning(rows[row].reasoning) : NULL,
        .tools = toolcall_tools()};

    opts.in_reasoning = toolcall_opens_reasoning(opts.reasoning, full, begin);
    buf_init(&s.calls, 1 << 20);
    buf_init(&s.content, 1 << 20);
    buf_init(&s.reasoning, 1 << 20);
    buf_init(&s.args, 1 << 20);
    buf_init(&want.calls, 1 << 20);
    if (two) {
        buf_add_str(&want.calls, "get_weather ");
        put_sorted(&want.calls, PARIS, strlen(PARIS));
        buf_add_str(&want.calls, "; ");
    }
    buf_add_str(&want.calls, "search_files ");
    put_sorted(&want.calls, FIND, strlen(FIND));
    buf_add_str(&want.calls, "; ");
    cr_assert_eq(toolcall_parser_new(&p, &opts), 0);
    cr_expect_eq(toolcall_feed(p, full + begin, n_full - begin, on_event, &s), 0);
    cr_expect_eq(toolcall_finish(p, true, on_event, &s), 0);
    cr_expect_str_eq(s.calls.data ? s.calls.data : "", want.calls.data,
                     "%s:\n%s\n  got %s\nwanted %s", rows[row].file, full + begin,
                     s.calls.data ? s.calls.data : "", want.calls.data);
    /* Some templates write no content before calls; harmony's makes it analysis. */
    if (strstr(full + begin, "I look.") && strcmp(rows[row].format, "harmony") != 0)
        cr_expect(s.content.data && strstr(s.content.data, "I look."), "%s:\n%s\n%s",
                  rows[row].file, full + begin, s.content.data ? s.content.data : "");
    if (rows[row].flags & THINKS && !two)
        cr_expect_str_eq(s.reasoning.data ? s.reasoning.data : "", "Hm, so.", "%s:\n%s\n%s",
                         rows[row].file, full + begin, s.reasoning.data ? s.reasoning.data : "");
    buf_deinit(&s.calls);
    buf_deinit(&s.content);
    buf_deinit(&s.reasoning);
    buf_deinit(&s.args);
    buf_deinit(&want.calls);
}

Test(toolcall_templates, what_a_template_writes_is_read_back) {
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        if ((rows[i].flags & (CALLS | SILENT)) == CALLS)
            expect_back(i, false);
        if ((rows[i].flags & (CALLS | ONE)) == CALLS)
            expect_back(i, true);
    }
}

/* Calls written for a template that leaves them out are read back, and only their markers are
 * weft's own. */
Test(toolcall_templates, what_is_written_is_read_back) {
    static const char calls[] =
        "[" CALL("a", "search_files", FIND) "," CALL("b", "get_weather", PARIS) "]";
    static const char user[] = "search_files";
    size_t n_formats = 0;

    for (size_t i = 0; toolcall_at(i); i++) {
        CLEANUP(toolcall_parser_freep) struct toolcall_parser *p = NULL;
        struct toolcall_opts opts = {.format = toolcall_at(i), .tools = toolcall_tools()};
        struct seen s = {.calls = {.max = 1 << 20}, .args = {.max = 1 << 20}};
        struct buf text = {.max = 1 << 20}, want = {.max = 1 << 20};
        struct toolcall_marks own = {0};

        if (!toolcall_can_write(opts.format))
            continue;
        yyjson_doc *doc = yyjson_read(calls, strlen(calls), 0);
        yyjson_mut_doc *mut = yyjson_doc_mut_copy(doc, NULL);

        cr_assert_eq(toolcall_write_calls(opts.format, yyjson_mut_doc_get_root(mut), &text, &own),
                     0);
        cr_assert_eq(toolcall_parser_new(&p, &opts), 0);
        cr_expect_eq(toolcall_feed(p, text.data, text.len, on_event, &s), 0);
        cr_expect_eq(toolcall_finish(p, true, on_event, &s), 0);
        buf_add_str(&want, "search_files ");
        put_sorted(&want, FIND, strlen(FIND));
        buf_add_str(&want, "; get_weather ");
        put_sorted(&want, PARIS, strlen(PARIS));
        buf_add_str(&want, "; ");
        cr_expect_str_eq(s.calls.data, want.data, "%s: %s", opts.format->name, text.data);
        const char *at = strstr(text.data, user);

        cr_expect(at && own.n > 0);
        for (size_t k = 0; k < own.n; k++) {
            cr_expect(own.v[k].begin < own.v[k].end && own.v[k].end <= text.len);
            cr_expect(own.v[k].end <= (size_t)(at - text.data) ||
                      own.v[k].begin >= (size_t)(at - text.data) + strlen(user));
        }
        n_formats++;
        free(own.v);
        buf_deinit(&text);
        buf_deinit(&want);
        buf_deinit(&s.calls);
        buf_deinit(&s.args);
        yyjson_doc_free(doc);
        yyjson_mut_doc_free(mut);
    }
    cr_expect_geq(n_formats, 12);
}

/* ---- forced calls have the form that the template shows */

/* Compiles the grammar of the first two tools, over single bytes. */
static struct constraint *grammar_of(const struct toolcall_format *f) {
    static struct grammar_vocab *vocab; /* one for all tests of a process */
    static const int32_t ends[] = {256};
    static char bytes[256];
    struct grammar_token token[257] = {0};
    struct toolcall_tool tools[2];
    struct toolcall_force o = {.format = f, .tools = tools, .n_tools = 2};
    struct nodes n = {.doc = yyjson_mut_doc_new(NULL)};
    yyjson_mut_val *root = NULL;
    struct constraint *c = NULL;
    struct err err = {0};
    size_t len;

    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        token[i] = (struct grammar_token){.bytes = &bytes[i], .len = 1};
    }
    if (!vocab)
        cr_assert_eq(grammar_vocab_new(&vocab, token, 257, ends, 1), 0);
    for (size_t i = 0; i < 2; i++) {
        yyjson_val *one = yyjson_obj_get(yyjson_arr_get(toolcall_tools(), i), "function");

        tools[i] = (struct toolcall_tool){.name = yyjson_get_str(yyjson_obj_get(one, "name")),
                                          .parameters = yyjson_obj_get(one, "parameters"),
                                          .param = "tools"};
    }
    cr_assert_eq(toolcall_force(&root, &n, &o, &err), 0, "%s: %s", f->name, err.message);
    char *text = yyjson_mut_val_write(root, 0, &len);

    cr_assert_eq(constraint_new(&c, vocab, text, len, NULL, 0, NULL, &err), 0, "%s", err.message);
    free(text);
    yyjson_mut_doc_free(n.doc);
    return c;
}

/* Returns the bytes of @text that the grammar accepts; *complete: these are complete calls. */
static size_t taken(const struct constraint *c, const char *text, size_t len, bool *complete) {
    struct constraint_state *s = NULL;
    size_t i = 0;

    *complete = false;
    cr_assert_eq(constraint_state_new(&s, c), 0);
    while (i < len && !*complete && constraint_accept(s, (unsigned char)text[i]) == 0) {
        i++;
        *complete = constraint_can_end(s);
    }
    constraint_state_free(s);
    return i;
}

#define ASKS(more)                                                                                 \
    R"(, {"role": "assistant", "content": "", "tool_calls": [)" CALL(                              \
        "call0a001", "search_files", R"({"pattern": "TODO x", "max_results": 5)" more "}") "]}"

static void expect_forced(size_t row) {
    const char *call = rows[row].flags & REPR ? ASKS("") : ASKS(R"(, "paths": ["a b", "c"])");
    const struct toolcall_format *f = toolcall_find(rows[row].format);
    const char *first = f->shape.section_begin ? f->shape.section_begin : f->shape.call_begin;
    CLEANUP(template_freep) struct template *t = NULL;
    struct err err = {0};
    size_t len, n_prompt, n_full, n = strcspn(first, "{\n");
    CLEANUP(freep) char *source = read_source(rows[row].file, &len);

    cr_assert_eq(template_new(&t, source, len, &err), 0, "%s", err.message);
    CLEANUP(freep) char *prompt = render(t, "", true, &n_prompt);
    CLEANUP(freep) char *full = render(t, call, false, &n_full);

    if (!prompt || !full)
        return;
    size_t begin = begin_of(prompt, n_prompt, full, n_full);
    const char *also = f->shape.call_begin_also;
    const char *at = memmem(full + begin, n_full - begin, first, MAX(n, (size_t)1));

    at = !at && also ? strstr(full + begin, also) : at;

    if (!at) {
        cr_expect_fail("%s: no %s in %s", rows[row].file, first, full + begin);
        return;
    }
    struct constraint *c = grammar_of(f);
    bool complete = false;
    size_t end = taken(c, at, (size_t)(full + n_full - at), &complete);

    cr_expect(complete, "%s: after %.*s<<<HERE>>>%s", rows[row].file, (int)end, at, at + end);
    constraint_free(c);
}

Test(toolcall_templates, what_is_forced_is_what_they_show) {
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        if ((rows[i].flags & (CALLS | SILENT | IDS | TIGHT)) == CALLS)
            expect_forced(i);
}
