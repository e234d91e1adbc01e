#include "api/generation/template_variables.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/generation/normalize.h"
#include "base/json_read.h"
#include "base/json_value.h"

struct variables {
    yyjson_mut_doc *doc;
    yyjson_mut_val *root;
    const struct gen_request *r;
    const struct api_model *model;
    const struct family *family;
};

/* Sets a variable unless the client has set it itself. */
static void variable_set(struct variables *v, const char *key, yyjson_mut_val *value) {
    if (value && !yyjson_obj_get(v->r->input.kwargs, key))
        yyjson_mut_obj_add_val(v->doc, v->root, key, value);
}

static void variable_set_bool(struct variables *v, const char *key, bool on) {
    variable_set(v, key, yyjson_mut_bool(v->doc, on));
}

/* ---- thinking ---- */

/* Returns true if the template compares something with @word. */
static bool template_knows(const struct api_model *model, const char *word) {
    char quoted[2][32];

    snprintf(quoted[0], sizeof(quoted[0]), "'%.28s'", word);
    snprintf(quoted[1], sizeof(quoted[1]), "\"%.28s\"", word);
    for (size_t i = 0; model->template_source && i < ARRAY_SIZE(quoted); i++)
        if (memmem(model->template_source, model->template_len, quoted[i], strlen(quoted[i])))
            return true;
    return false;
}

/* Returns the effort that the template knows and that is nearest to @effort. */
static const char *nearest_effort(const struct api_model *model, const char *effort) {
    static const char *const nearest[][3] = {{"none", "no_think", "low"},
                                             {"minimal", "low", "low"},
                                             {"xhigh", "max", "high"},
                                             {"max", "high", "high"}};

    for (size_t i = 0; i < ARRAY_SIZE(nearest); i++)
        if (strcmp(effort, nearest[i][0]) == 0 && !template_knows(model, effort))
            return nearest[i][template_knows(model, nearest[i][1]) ? 1 : 2];
    /* Coding agents send "medium" by default; Hy3's template, which knows only its neighbours,
     * fails on it. */
    if (strcmp(effort, "medium") == 0 && !template_knows(model, effort) &&
        template_knows(model, "low") && template_knows(model, "high"))
        return "high";
    return effort;
}

/* Sets the switch of thinking under both names that templates read. A request that sets one of them
 * as a variable means both. Without a word from request or operator, models that can think do, as
 * in llama-server and Ollama: with `enable_thinking`, and with `thinking` where the template closes
 * the thoughts without it (DeepSeek V3.1). */
static void template_set_switches(struct variables *v) {
    const struct gen_request *r = v->r;
    yyjson_val *own = gen_request_switch(r);
    bool on;

    if (own)
        on = yyjson_is_true(own);
    else if (r->input.thinking == THINK_ON || r->input.thinking == THINK_OFF)
        on = r->input.thinking == THINK_ON;
    else if (r->input.reasoning_effort)
        on = !yyjson_equals_str(r->input.reasoning_effort, "none");
    else if (r->input.thinking == THINK_AUTO) {
        if (v->family->thinks)
            variable_set_bool(v, "enable_thinking", true);
        if (v->family->closes_thoughts)
            variable_set_bool(v, "thinking", true);
        return;
    } else
        return;
    variable_set_bool(v, "enable_thinking", on);
    variable_set_bool(v, "thinking", on);
}

/* Sets the strength of thinking, for which templates have two names. */
static void set_effort(struct variables *v) {
    static const char *const names[] = {"reasoning_effort", "reasoning_strength"};
    const char *effort = json_cstr(v->r->input.reasoning_effort);

    for (size_t i = 0; i < ARRAY_SIZE(names) && effort; i++)
        variable_set(v, names[i], yyjson_mut_strcpy(v->doc, nearest_effort(v->model, effort)));
}

/* Returns true if the conversation has tools or past calls: an agent's. */
static bool is_agents(const struct gen_request *r) {
    return r->made.functions || normalize_has_calls(r->input.messages);
}

/* Keeps the thoughts of earlier turns, which templates drop by default, in the conversations of
 * agents: makers ask for it there (GLM, Qwen, DeepSeek), and the prompt then begins with the
 * previous one, so the prefix cache has it. A chat keeps its maker's default. llama-server's name
 * for all of them is `preserve_reasoning`. */
static void set_kept_thoughts(struct variables *v) {
    static const struct {
        const char *name;
        bool keeps;
    } rows[] = {{"preserve_thinking", true},
                {"clear_thinking", false},
                {"truncate_history_thinking", false},
                {"drop_thinking", false}};
    yyjson_val *own = yyjson_obj_get(v->r->input.kwargs, "preserve_reasoning");

    if (!yyjson_is_bool(own) && !is_agents(v->r))
        return;
    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        variable_set_bool(v, rows[i].name, yyjson_is_false(own) != rows[i].keeps);
}

/* ---- the others ---- */

/* Sets the day, in UTC, under the names and in the forms of llama-server. It is the day alone: a
 * time would change the prompt with each request. */
static void set_dates(struct variables *v) {
    static const char *const rows[][2] = {{"date_string", "%d %b %Y"}, {"datetime", "%b %d %Y"}};
    time_t now = time(NULL);
    struct tm tm;
    char day[32];

    for (size_t i = 0; i < ARRAY_SIZE(rows) && gmtime_r(&now, &tm); i++)
        if (strftime(day, sizeof(day), rows[i][1], &tm))
            variable_set(v, rows[i][0], yyjson_mut_strcpy(v->doc, day));
}

void template_variables_put(yyjson_mut_doc *doc, yyjson_mut_val *root, const struct gen_request *r,
                            const struct api_model *model, const struct family *family) {
    struct variables v = {doc, root, r, model, family};

    set_effort(&v);
    template_set_switches(&v);
    set_kept_thoughts(&v);
    set_dates(&v);
    if (r->input.has_budget)
        variable_set(&v, "thinking_budget", yyjson_mut_uint(doc, r->input.thinking_budget));
    /* Some templates show the model the format that its answer must have. */
    variable_set(&v, "response_format", yyjson_val_mut_copy(doc, r->input.response_format));
    if (r->input.choice.mode == TOOLS_REQUIRED)
        variable_set(&v, "tool_choice", yyjson_mut_str(doc, "required"));
    JSON_MEMBERS(key, value, r->input.kwargs) {
        yyjson_mut_obj_add(root, yyjson_mut_strncpy(doc, json_text(key), json_len(key)),
                           yyjson_val_mut_copy(doc, value));
    }
}
