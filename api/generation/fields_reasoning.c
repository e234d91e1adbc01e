/* The fields that say whether and how much a model reasons: OpenAI's, and those of other
 * services. */

#include <stddef.h>
#include <string.h>

#include "api/generation/fields.h"
#include "base/json_read.h"
#include "base/try.h"

#define CHAT FIELDS_CHAT

READER(field_effort) {
    if (json_is(v, "auto default") || yyjson_equals_str(v, "")) /* the template decides */
        return 0;
    if (!json_is(v, EFFORTS))
        return field_refuse(f, err);
    r->input.reasoning_effort = v;
    return 0;
}

/* Reads a limit on reasoning tokens; a negative one means no limit. */
READER(field_budget) {
    int64_t n = 0;

    TRY(field_whole(f, v, &n, err));
    r->input.has_budget = n >= 0;
    r->input.thinking_budget = (uint32_t)MAX(n, 0);
    return 0;
}

READER(field_switch) {
    if (!yyjson_is_bool(v))
        return field_refuse(f, err);
    r->input.thinking = yyjson_get_bool(v) ? THINK_ON : THINK_OFF;
    return 0;
}

READER(field_think) {
    if (yyjson_is_bool(v))
        return field_switch(r, m, f, v, err);
    return field_effort(r, m, f, v, err);
}

/* Reads {"type": "enabled" or "disabled", "budget_tokens": n}, the form of several other services,
 * or a boolean. */
READER(field_thinking) {
    yyjson_val *type = yyjson_obj_get(v, "type"), *budget = json_given(v, "budget_tokens");
    static const struct field number = {
        "thinking.budget_tokens", CHAT, field_budget, 0, -1, INT32_MAX, "an integer"};

    if (yyjson_is_bool(v))
        return field_switch(r, m, f, v, err);
    if (json_is(type, "enabled"))
        r->input.thinking = THINK_ON;
    else if (json_is(type, "disabled"))
        r->input.thinking = THINK_OFF;
    else if (json_is(type, "adaptive auto"))
        r->input.thinking = THINK_AUTO;
    else
        return field_refuse(f, err);
    if (!budget)
        return 0;
    return field_budget(r, m, &number, budget, err);
}

/* Reads the object `reasoning` of OpenRouter's API, or a boolean. */
READER(field_reasoning) {
    static const struct field inner[] = {
        {"reasoning.effort", CHAT, field_effort, 0, 0, 0, EFFORTS_ARE},
        {"reasoning.max_tokens", CHAT, field_budget, 0, -1, INT32_MAX, "an integer"},
        {"reasoning.enabled", CHAT, field_switch, 0, 0, 0, "a boolean"},
        {"reasoning.exclude", CHAT, field_bool, offsetof(struct gen_request, answer.no_reasoning),
         0, 0, "a boolean"},
    };

    if (yyjson_is_bool(v))
        return field_switch(r, m, f, v, err);
    return field_members(r, m, f, inner, ARRAY_SIZE(inner), v, err);
}
