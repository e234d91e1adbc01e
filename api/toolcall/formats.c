/*
 * The table of formats, and how one is chosen: by the markers that a template's text contains.
 * The first row whose markers are all there wins, so a row comes before those whose markers it
 * contains.
 */

#include <assert.h>
#include <string.h>

#include "api/toolcall/parser.h"

static const struct toolcall_format *const formats[] = {
    &format_harmony,      &format_hyperclova,   &format_deepseek_v32,  &format_deepseek_dsml,
    &format_deepseek_v3,  &format_deepseek_v31, &format_kimi_k2,       &format_kimi_k3,
    &format_hunyuan,      &format_glm,          &format_atem,          &format_minimax_m2,
    &format_gemma,        &format_seed,         &format_qwen_coder,    &format_mistral_id,
    &format_mistral_args, &format_mistral_json, &format_command_r7b,   &format_command_r,
    &format_apertus,      &format_nemotron,     &format_hunyuan_dense, &format_hunyuan_a13b,
    &format_jamba,        &format_apriel,       &format_plamo,         &format_internlm,
    &format_minimax_m1,   &format_solar,        &format_gigachat,      &format_minicpm,
    &format_functionary,  &format_firefunction, &format_phi4,          &format_granite,
    &format_falcon,       &format_glm4,         &format_ernie,         &format_hermes,
    &format_llama,        &format_llama4,       &format_llama4_python, &format_lfm,
    &format_olmo,         &format_generic,
};

/* Markers of reasoning. Most are detected by the closing one, since some templates only remove
 * reasoning. The templates of two build their tags and contain only parts of them. */
static const struct toolcall_reasoning reasonings[] = {
    {"seed", "<seed:think>", "</seed:think>", {"</seed:think>"}, NULL},
    {"hunyuan", "<think:opensource>", "</think:opensource>", {"</think{}>", ":opensource"}, NULL},
    {"kimi-k3", "<|open|>think<|sep|>", "<|close|>think<|sep|>", {"<|open|>", "'think'"}, NULL},
    {"gemma4", "<|channel>thought", "<channel|>", {"<channel|>"}, NULL},
    {"command-r7b", "<|START_THINKING|>", "<|END_THINKING|>", {"<|END_THINKING|>"}, NULL},
    {"apertus", "<|inner_prefix|>", "<|inner_suffix|>", {"<|inner_suffix|>"}, NULL},
    {"solar", "<|think|>", "<|end|>", {"<|think|>", "<|end|>"}, "<|begin|>assistant"},
    {"plamo3",
     "<|plamo:begin_think:plamo|>",
     "<|plamo:end_think:plamo|>",
     {"<|plamo:end_think:plamo|>"},
     NULL},
    {"mistral", "[THINK]", "[/THINK]", {"[/THINK]"}, NULL},
    {"think", "<think>", "</think>", {"</think>"}, NULL},
    {"thinking", "<thinking>", "</thinking>", {"</thinking>"}, NULL},
};

const struct toolcall_format *toolcall_at(size_t i) {
    if (i >= ARRAY_SIZE(formats))
        return NULL;
    return formats[i];
}

static bool formats_contains(const char *text, size_t len, const char *part, size_t part_len) {
    return memmem(text, len, part, part_len);
}

/* Returns true if @call has the markers of a call of @f, and @text the one around it. */
static bool formats_mention(const struct toolcall_format *f, const char *call, size_t call_len,
                            const char *text, size_t len) {
    bool all = f->detect[0];

    for (size_t k = 0; k < ARRAY_SIZE(f->detect) && f->detect[k]; k++)
        all = all && formats_contains(call, call_len, f->detect[k], strlen(f->detect[k]));
    return all && (!f->around || formats_contains(text, len, f->around, strlen(f->around)));
}

bool toolcall_mentions(const struct toolcall_format *f, const char *text, size_t len) {
    return formats_mention(f, text, len, text, len);
}

const struct toolcall_format *toolcall_detect_call(const char *call, size_t call_len,
                                                   const char *text, size_t len) {
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
        if (formats_mention(formats[i], call, call_len, text, len))
            return formats[i];
    return NULL;
}

const struct toolcall_format *toolcall_detect(const char *text, size_t len) {
    return toolcall_detect_call(text, len, text, len);
}

const struct toolcall_format *toolcall_find(const char *name) {
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
        if (strcmp(formats[i]->name, name) == 0)
            return formats[i];
    return NULL;
}

const struct toolcall_reasoning *toolcall_detect_reasoning(const char *source, size_t len) {
    for (size_t i = 0; i < ARRAY_SIZE(reasonings); i++) {
        const struct toolcall_reasoning *r = &reasonings[i];

        if (formats_contains(source, len, r->detect[0], strlen(r->detect[0])) &&
            (!r->detect[1] || formats_contains(source, len, r->detect[1], strlen(r->detect[1]))))
            return r;
    }
    return NULL;
}

const struct toolcall_reasoning *toolcall_find_reasoning(const char *name) {
    for (size_t i = 0; i < ARRAY_SIZE(reasonings); i++)
        if (strcmp(reasonings[i].name, name) == 0)
            return &reasonings[i];
    return NULL;
}

const struct toolcall_reasoning *toolcall_reasoning_at(size_t i) {
    if (i >= ARRAY_SIZE(reasonings))
        return NULL;
    return &reasonings[i];
}

/* Returns true if @prompt ends with @marker, but for white space behind it. */
static bool prompt_ends_with(const char *prompt, size_t len, const char *marker) {
    size_t n = strlen(marker);

    while (len && strchr(" \n\t\r", prompt[len - 1]) && prompt[len - 1])
        len--;
    return n && len >= n && memcmp(prompt + len - n, marker, n) == 0;
}

bool toolcall_encloses(const struct toolcall_reasoning *r, const char *text, size_t len,
                       const char *needle) {
    const char *at = memmem(text, len, needle, strlen(needle)), *end = text + len;

    if (!at || !prompt_ends_with(text, (size_t)(at - text), r->open))
        return false;
    for (at += strlen(needle); at < end && strchr(" \n\t\r", *at) && *at;)
        at++;
    return (size_t)(end - at) >= strlen(r->close) && memcmp(at, r->close, strlen(r->close)) == 0;
}

bool toolcall_opens_reasoning(const struct toolcall_reasoning *r, const char *prompt, size_t len) {
    return r && prompt_ends_with(prompt, len, r->open);
}

bool toolcall_closes_reasoning(const struct toolcall_reasoning *r, const char *prompt, size_t len) {
    return r && prompt_ends_with(prompt, len, r->close);
}

bool toolcall_opens_own(const struct toolcall_format *f, const char *prompt, size_t len) {
    const char *open = f ? f->own.begin : NULL;
    size_t n = open ? strlen(open) : 0;

    return n && len >= n && memcmp(prompt + len - n, open, n) == 0;
}

/* Returns true if a literal of the state @s contains @text. */
static bool state_has(const struct tc_state *s, const char *text, size_t len) {
    for (size_t i = 0; i < s->n_edges; i++)
        if (formats_contains(s->edges[i].text, strlen(s->edges[i].text), text, len))
            return true;
    for (size_t i = 0; s->follow && s->follow[i]; i++)
        if (formats_contains(s->follow[i], strlen(s->follow[i]), text, len))
            return true;
    return false;
}

/* Adds @next to the states to be visited. */
static void formats_visit(uint8_t *list, size_t *n, uint8_t next) {
    if (next == TC_FAIL || memchr(list, next, *n))
        return;
    assert(*n < TC_FAIL); /* each state once */
    list[(*n)++] = next;
}

bool toolcall_has_marker(const struct toolcall_format *f, const struct toolcall_reasoning *r,
                         const char *text, size_t len) {
    uint8_t list[256] = {TC_CONTENT, TC_REASON};
    size_t n = 2;

    if (len == 0)
        return false;
    if (r && (formats_contains(r->open, strlen(r->open), text, len) ||
              formats_contains(r->close, strlen(r->close), text, len)))
        return true;
    if (f && f->shape.args == ARGS_GEMMA && len == 5 && memcmp(text, "<|\"|>", 5) == 0)
        return true;
    if (f)
        formats_visit(list, &n, f->start);
    for (size_t i = 0; f && i < n; i++) {
        const struct tc_state *s = &f->states[list[i]];

        if (state_has(s, text, len))
            return true;
        for (size_t k = 0; k < s->n_edges; k++)
            formats_visit(list, &n, s->edges[k].next);
        formats_visit(list, &n, s->next);
        formats_visit(list, &n, s->other);
    }
    return false;
}
