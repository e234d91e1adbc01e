/*
 * One row per field: its name, the endpoints that know it, how it is read, where it goes and its
 * range. Rows are looked up by name for each member of the body, so that the order of a body does
 * not matter. A field that is given twice is refused: a proxy may have checked the one and weft
 * would take the other.
 *
 * What is not supported is a row as well. Ignoring such a field would answer another question than
 * the one that was asked, and the client could not tell.
 */

#include "api/generation/read_request.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "api/generation/env.h"
#include "api/generation/fields.h"
#include "api/generation/messages.h"
#include "api/generation/models.h"
#include "api/generation/output_spec.h"
#include "api/generation/tool_forms.h"
#include "api/http/json.h"
#include "base/json_read.h"
#include "base/log.h"
#include "base/try.h"
#include "text/repeats.h"
#include "text/stops.h"

#define ARENA_MAX (256u << 20)
#define PARAMS_MAX 32u /* sampling parameters */

#define CHAT FIELDS_CHAT
#define TEXT FIELDS_COMPLETION
#define BOTH (FIELDS_CHAT | FIELDS_COMPLETION)
#define EMBED FIELDS_EMBEDDING
#define RERANK FIELDS_RERANK
#define SCORE FIELDS_SCORE
#define VECTOR (EMBED | RERANK | SCORE)
#define RENDERED (FIELDS_CHAT | FIELDS_TOKENIZE)
#define ANY 0xFF

#define PARSER(name) static READER(name)

PARSER(parse_n) {
    struct field limited = *f;

    limited.hi = m->env->opts.max_n;
    return field_uint(r, m, &limited, v, err);
}

PARSER(parse_priority) {
    int64_t i = 0;

    TRY(field_whole(f, v, &i, err));
    r->submit.priority = (int16_t)i;
    return 0;
}

/* Reads any 64-bit integer, exactly. -1 asks for a random seed, as in other servers. */
PARSER(parse_seed) {
    int64_t i = 0;

    field_number(v);
    if (!json_whole(v, &i) && !yyjson_is_uint(v))
        return field_refuse(f, err);
    r->input.seed = yyjson_is_uint(v) ? yyjson_get_uint(v) : (uint64_t)i;
    r->input.has_seed = i != -1;
    return 0;
}

/* The client's own metadata, of any value; one member may name the session. */
PARSER(parse_metadata) {
    yyjson_val *user = yyjson_obj_get(v, "user_id");

    if (!yyjson_is_str(user) || json_len(user) > f->hi)
        return 0;
    return field_string(r, m, f, user, err);
}

PARSER(parse_messages) {
    TRY(field_array(r, m, f, v, err));
    messages_spell_roles(v);
    return 0;
}

PARSER(parse_model) {
    if (!yyjson_is_str(v))
        return field_refuse(f, err);
    if (!models_is_answered(m->env, json_text(v), json_len(v)))
        return models_unknown(m->env, json_text(v), json_len(v), err);
    return 0;
}

PARSER(parse_sampling) {
    const struct param *p = params_find(f->name);
    bool flag = p->type == PARAM_BOOL;

    if (flag && !yyjson_is_bool(v))
        return json_refuse(err, f->name, "must be a boolean");
    if (!flag)
        field_number(v);
    if (!flag && !yyjson_is_num(v))
        return json_refuse(err, f->name, "must be a number");
    double value;

    if (flag)
        value = yyjson_get_bool(v);
    else
        value = yyjson_get_num(v);
    if (params_set(&r->submit.sampling, p, value, err) == 0)
        return 0;
    struct err e = *err;
    return err_set_code(err, 400, "invalid_value", f->name, "%s.", e.message);
}

static int add_stop(struct gen_request *r, const struct field *f, yyjson_val *v, struct err *err) {
    size_t len = json_len(v);

    if (!yyjson_is_str(v) || len == 0 || len > STOPS_LEN_MAX ||
        r->submit.n_stops == SUBMIT_STOPS_MAX)
        return field_refuse(f, err);
    return field_copy(r, v, &r->submit.stops[r->submit.n_stops++]);
}

/* Returns true for an entry that says nothing, which programs send for a field that was left
 * empty. */
static bool is_no_stop(yyjson_val *v) {
    return yyjson_is_null(v) || yyjson_equals_str(v, "");
}

PARSER(parse_stop) {
    if (is_no_stop(v))
        return 0;
    if (!yyjson_is_arr(v))
        return add_stop(r, f, v, err);
    JSON_EACH(item, v) {
        if (!is_no_stop(item))
            TRY(add_stop(r, f, item, err));
    }
    return 0;
}

/* Reads a token id, which some clients write as 5.0. */
static bool gen_request_read_id(const struct model *m, yyjson_val *v, int32_t *out) {
    int64_t id;

    if (!json_whole(v, &id) || id < 0 || id >= (int64_t)m->info->n_vocab)
        return false;
    *out = (int32_t)id;
    return true;
}

int gen_request_ids(struct gen_request *r, const struct model *m, yyjson_val *array,
                    const char *param, int32_t **out, uint32_t *n, struct err *err) {
    int32_t *ids = arena_alloc_array(&r->arena, yyjson_arr_size(array) + 1, sizeof(*ids));

    if (!ids)
        return -ENOMEM;
    JSON_EACH_AT(i, v, array) {
        if (!gen_request_read_id(m, v, &ids[i]))
            return err_set_code(err, 400, "invalid_value", param,
                                "%s must hold token ids from 0 to %u; entry %zu is not one.", param,
                                m->info->n_vocab - 1, i);
    }
    if (yyjson_arr_size(array) == 0)
        return json_refuse(err, param, "must not be empty");
    *out = ids;
    *n = (uint32_t)yyjson_arr_size(array);
    return 0;
}

PARSER(parse_stop_ids) {
    if (!yyjson_is_arr(v) || yyjson_arr_size(v) > REQUEST_STOP_IDS_MAX)
        return field_refuse(f, err);
    int32_t *ids;

    if (!yyjson_arr_size(v))
        return 0;
    TRY(gen_request_ids(r, m, v, f->name, &ids, &r->submit.n_stop_ids, err));
    r->submit.stop_ids = ids;
    return 0;
}

PARSER(parse_bias) {
    if (yyjson_is_arr(v) && json_is_empty(v)) /* an empty object of PHP */
        return 0;
    if (!yyjson_is_obj(v) || yyjson_obj_size(v) > REQUEST_BIAS_MAX)
        return field_refuse(f, err);
    struct submit_bias *bias = arena_alloc_array(&r->arena, yyjson_obj_size(v) + 1, sizeof(*bias));

    if (!bias)
        return -ENOMEM;
    r->submit.bias = bias;
    JSON_MEMBERS(key, value, v) {
        const char *text = json_cstr(key);
        char *end = NULL;
        unsigned long long id = text ? strtoull(text, &end, 10) : 0;
        double b = yyjson_get_num(value);

        if (!text || *text < '0' || *text > '9' || *end || id >= m->info->n_vocab ||
            !yyjson_is_num(value) || !(b >= -100 && b <= 100))
            return field_refuse(f, err);
        bias[r->submit.n_bias++] = (struct submit_bias){(int32_t)id, (float)b};
    }
    return 0;
}

/* Parses `logprobs` of completions, a number, which chats have in top_logprobs; false, as chats
 * have it, is none. */
PARSER(parse_n_logprobs) {
    if (yyjson_is_false(v))
        return 0;
    r->answer.logprobs = true;
    return field_uint(r, m, f, v, err);
}

PARSER(parse_stream_options) {
    static const struct field inner[] = {
        {"stream_options.include_usage", BOTH, field_bool,
         offsetof(struct gen_request, answer.include_usage), 0, 0, "a boolean"},
        {"stream_options.continuous_usage_stats", BOTH, field_bool,
         offsetof(struct gen_request, answer.continuous_usage), 0, 0, "a boolean"},
    };

    TRY(field_members(r, m, f, inner, ARRAY_SIZE(inner), v, err));
    if (yyjson_is_false(yyjson_obj_get(v, "include_usage")))
        r->answer.continuous_usage = false;
    return 0;
}

/* Reads OpenRouter's name of stream_options.include_usage. */
PARSER(parse_usage) {
    static const struct field include = {
        "usage.include", BOTH, field_bool, offsetof(struct gen_request, answer.include_usage), 0, 0,
        "a boolean"};

    return field_members(r, m, f, &include, 1, v, err);
}

PARSER(parse_digest) {
    TRY(field_bool(r, m, f, v, err));
    if (r->answer.digests && !m->env->opts.digests)
        return err_set_code(
            err, 400, "unsupported_parameter", f->name,
            "%s is not available: the server runs without the option logits-digest.", f->name);
    return 0;
}

PARSER(parse_encoding) {
    r->answer.base64 = yyjson_equals_str(v, "base64");
    if (!r->answer.base64 && !yyjson_equals_str(v, "float"))
        return field_refuse(f, err);
    return 0;
}

PARSER(parse_speculation) {
    r->input.no_speculation = yyjson_equals_str(v, "off");
    if (!r->input.no_speculation && !yyjson_equals_str(v, "auto"))
        return field_refuse(f, err);
    return 0;
}

PARSER(parse_complete) {
    if (!yyjson_is_bool(v))
        return field_refuse(f, err);
    r->input.complete = yyjson_get_bool(v) ? COMPLETE_ON : COMPLETE_OFF;
    return 0;
}

/* Reads how many tokens are searched for a loop; false and 0 turn the search off. */
PARSER(parse_loops) {
    int64_t n = yyjson_is_true(v) ? REPEATS_DEFAULT : 0;

    if (!yyjson_is_bool(v))
        TRY(field_whole(f, v, &n, err));
    r->input.sets_loops = true;
    r->input.loop_tokens = (uint32_t)n;
    return 0;
}

/* Fewer dimensions make sense only for a model that was trained for them. No model file records
 * that, so the client must know. */
PARSER(parse_dimensions) {
    int64_t n = 0;

    TRY(field_whole(f, v, &n, err));
    if (n > m->info->n_embd)
        return err_set_code(err, 400, "invalid_value", f->name,
                            "dimensions must be at most %u, the size of this model's vectors.",
                            m->info->n_embd);
    r->answer.dimensions = (uint32_t)n;
    return 0;
}

/* Reads to how many tokens an input is to be cut; -1, and 0, stand for the context. Nothing is cut,
 * but an input that is short enough needs no cut. */
PARSER(parse_most_tokens) {
    int64_t n = 0;

    TRY(field_whole(f, v, &n, err));
    r->input.most_tokens = (uint32_t)MAX(n, 0);
    r->input.most_name = f->name;
    return 0;
}

PARSER(parse_pooling) {
    static const struct {
        const char *name;
        uint16_t pool;
    } pools[] = {
        {"last", SUBMIT_POOL_LAST},
        {"mean", SUBMIT_POOL_MEAN},
        {"cls", SUBMIT_POOL_CLS},
        {"none", SUBMIT_POOL_NONE},
    };

    for (size_t i = 0; i < ARRAY_SIZE(pools); i++)
        if (yyjson_equals_str(v, pools[i].name)) {
            r->input.pool = pools[i].pool;
            return 0;
        }
    return field_refuse(f, err);
}

/* ---- unsupported fields ---- */

static int gen_request_unsupported(const char *name, struct err *err) {
    return err_set_code(err, 400, "unsupported_parameter", name, "%s is not supported.", name);
}

/* Refuses a value unless it changes nothing: false, empty, or the number @lo. */
PARSER(parse_unsupported) {
    if ((yyjson_is_bool(v) && !yyjson_get_bool(v)) ||
        ((yyjson_is_ctn(v) || yyjson_is_str(v)) && json_is_empty(v)) ||
        (yyjson_is_num(v) && yyjson_get_num(v) == f->lo))
        return 0;
    return gen_request_unsupported(f->name, err);
}

/* Reads the older name of tool_choice. Its default and "none" change nothing, because functions
 * under their older name are not taken here. */
PARSER(parse_function_call) {
    if (!json_is(v, "auto none"))
        return parse_unsupported(r, m, f, v, err);
    return 0;
}

/* Reads a limit of the output. -1 asks for all that the context leaves, as llama-server's and LM
 * Studio's clients do; 0, where it is allowed, looks at the prompt only. */
PARSER(parse_max_tokens) {
    int64_t i = 0;

    field_number(v);
    if (json_whole(v, &i) && i == -1) {
        r->input.max_new = GEN_REQUEST_NO_LIMIT;
        return 0;
    }
    if (json_whole(v, &i) && i < f->lo)
        return err_set_code(err, 400, "invalid_value", f->name,
                            "%s must be %.0f or more; leave it out, or send -1, for no limit.",
                            f->name, f->lo);
    TRY(field_uint(r, m, f, v, err));
    r->input.score_only = r->input.max_new == 0;
    r->input.max_new += r->input.score_only;
    return 0;
}

static int refuse_both(const char *one, const char *other, struct err *err) {
    return err_set_code(err, 400, "invalid_value", other, "%s and %s cannot be given together.",
                        one, other);
}

/* Reads the query, for which vLLM's score has three names. */
PARSER(parse_query) {
    if (r->input.query)
        return refuse_both(r->input.query_name, f->name, err);
    r->input.query_name = f->name;
    return field_value(r, m, f, v, err);
}

/* Reads the documents under Cohere's name for them, or under that of Hugging Face's
 * text-embeddings-inference; a score's (@hi is 0) may be one text. */
PARSER(parse_documents) {
    if (r->input.documents)
        return refuse_both(r->input.documents_name, f->name, err);
    r->input.documents_name = f->name;
    r->answer.reranks_texts = strcmp(f->name, "texts") == 0;
    if (f->hi == 0)
        return field_value(r, m, f, v, err);
    return field_array(r, m, f, v, err);
}

/* Reads `suffix`, with which editors ask for the text between two texts. */
PARSER(parse_suffix) {
    if (json_is_empty(v))
        return parse_unsupported(r, m, f, v, err);
    if (!yyjson_is_str(v))
        return field_refuse(f, err);
    if (m->fim.prefix < 0)
        return err_set_code(
            err, 400, "unsupported_parameter", f->name,
            "This model has no fill-in-the-middle tokens, so it cannot write what is missing "
            "before a suffix. Choose a model that has them, or send the request without a suffix.");
    return field_value(r, m, f, v, err);
}

PARSER(parse_prompt_logprobs) {
    r->answer.prompt_logprobs = true;
    return field_uint(r, m, f, v, err);
}

/* Checks a prediction; expected.c takes its text. */
PARSER(parse_prediction) {
    yyjson_val *content = yyjson_obj_get(v, "content");
    size_t size = yyjson_is_str(content) ? json_len(content) : 0;
    bool right =
        json_has(v, "type", "content") && (yyjson_is_str(content) || yyjson_is_arr(content));

    JSON_EACH(part, content) {
        yyjson_val *text = yyjson_obj_get(part, "text");

        right = right && json_has(part, "type", "text") && yyjson_is_str(text);
        size += json_len(text);
    }
    if (!right || size > REQUEST_PREDICTION_MAX)
        return field_refuse(f, err);
    r->input.expected = content;
    return 0;
}

/* ---- what other services call these ---- */

/* Reads llama.cpp's limit; a negative value means no limit. */
PARSER(parse_predict) {
    int64_t i = 0;

    field_number(v);
    if (json_whole(v, &i) && i < 0) {
        r->input.max_new = GEN_REQUEST_NO_LIMIT;
        return 0;
    }
    return parse_max_tokens(r, m, f, v, err);
}

PARSER(parse_content) {
    if (!yyjson_is_str(v))
        return field_refuse(f, err);
    r->input.no_bos = true; /* unless it is asked for */
    return field_value(r, m, f, v, err);
}

PARSER(parse_repeat_penalty) {
    struct field ours = *f;

    ours.name = "repetition_penalty";
    return parse_sampling(r, m, &ours, v, err);
}

PARSER(parse_modalities) {
    if (!yyjson_is_arr(v))
        return field_refuse(f, err);
    JSON_EACH(item, v) {
        if (!yyjson_equals_str(item, "text"))
            return gen_request_unsupported(f->name, err);
    }
    return 0;
}

/* Reads variables of the template: only scalars, and none that the service itself sets. */
PARSER(parse_kwargs) {
    if (!gen_request_allows_kwargs(v))
        return field_refuse(f, err);
    r->input.kwargs = v;
    return 0;
}

/* Reads llama-server's word for where reasoning goes: "none" leaves it in the content. */
PARSER(parse_reasoning_format) {
    if (!json_is(v, "auto none deepseek deepseek-legacy"))
        return field_refuse(f, err);
    r->answer.inline_reasoning = yyjson_equals_str(v, "none");
    return 0;
}

/* Checks an object whose members parse_fields() reads as if they were in the body: the argument of
 * OpenAI's Python library, which programs in other languages send as it is, and the sampling
 * parameters of Ollama's API. */
PARSER(parse_nested) {
    if (!yyjson_is_obj(v) && !(yyjson_is_arr(v) && json_is_empty(v)))
        return field_refuse(f, err);
    return 0;
}

#define AT(member) offsetof(struct gen_request, member)
#define FLAG(name, kinds, member)                                                                  \
    { name, kinds, field_bool, AT(member), 0, 0, "a boolean" }
#define UNSUPPORTED(name, neutral)                                                                 \
    { name, BOTH, parse_unsupported, 0, neutral, 0, NULL }

static const struct field fields[] = {
    /* the first row, as parse_fields() expects */
    {"model", ANY, parse_model, 0, 0, 0, "a string"},
    {"messages", RENDERED, parse_messages, AT(input.messages), 1, REQUEST_MESSAGES_MAX,
     "an array of at least one message"},
    {"prompt", TEXT | FIELDS_TOKENIZE, field_value, AT(input.prompt), 0, 0, NULL},
    {"content", FIELDS_TOKENIZE, parse_content, AT(input.prompt), 0, 0, "a string"},
    {"add_special", FIELDS_TOKENIZE, field_bool, AT(input.add_special), 0, 0, "a boolean"},
    {"parse_special", FIELDS_TOKENIZE, field_not, AT(input.no_special_names), 0, 0, "a boolean"},
    {"input", EMBED, field_value, AT(input.prompt), 0, 0, NULL},
    {"content", EMBED, field_value, AT(input.prompt), 0, 0, NULL},
    {"embd_normalize", EMBED, parse_unsupported, 0, 2, 0, NULL},
    {"encoding_format", EMBED, parse_encoding, 0, 0, 0, "\"float\" or \"base64\""},
    {"dimensions", EMBED, parse_dimensions, 0, 1, INT32_MAX, "an integer"},
    {"pooling", EMBED, parse_pooling, 0, 0, 0, "\"last\", \"mean\", \"cls\" or \"none\""},
    {"normalize", EMBED, field_not, AT(input.no_normalize), 0, 0, "a boolean"},
    {"query", RERANK, parse_query, AT(input.query), 0, 0, NULL},
    {"documents", RERANK, parse_documents, AT(input.documents), 1, REQUEST_INPUTS_MAX,
     "an array of 1 to 2048 documents"},
    {"texts", RERANK, parse_documents, AT(input.documents), 1, REQUEST_INPUTS_MAX,
     "an array of 1 to 2048 texts"},
    {"instruction", RERANK | SCORE, field_string, AT(input.instruction), 0, 4096,
     "a string of at most 4096 bytes"},
    {"return_text", RERANK, field_bool, AT(answer.return_documents), 0, 0, "a boolean"},
    {"top_n", RERANK, field_uint, AT(answer.top_n), 0, INT32_MAX, "an integer"},
    {"top_k", RERANK, field_uint, AT(answer.top_n), 0, INT32_MAX, "an integer"},
    {"return_documents", RERANK, field_bool, AT(answer.return_documents), 0, 0, "a boolean"},
    {"raw_scores", RERANK | SCORE, field_bool, AT(answer.raw_scores), 0, 0, "a boolean"},
    {"max_tokens_per_doc", RERANK, parse_most_tokens, 0, 1, INT32_MAX, "a whole number"},
    {"truncate_prompt_tokens", VECTOR, parse_most_tokens, 0, -1, INT32_MAX, "a whole number"},
    {"use_activation", RERANK | SCORE, field_not, AT(answer.raw_scores), 0, 0, "a boolean"},
    {"text_1", SCORE, parse_query, AT(input.query), 0, 0, NULL},
    {"text_2", SCORE, parse_documents, AT(input.documents), 0, 0, NULL},
    {"data_1", SCORE, parse_query, AT(input.query), 0, 0, NULL},
    {"data_2", SCORE, parse_documents, AT(input.documents), 0, 0, NULL},
    {"queries", SCORE, parse_query, AT(input.query), 0, 0, NULL},
    {"documents", SCORE, parse_documents, AT(input.documents), 0, 0, NULL},
    {"items", SCORE, parse_documents, AT(input.documents), 0, 0, NULL},
    {"tokens", FIELDS_DETOKENIZE, field_array, AT(input.tokens), 0, 1e9, "an array of token ids"},
    {"include_reasoning", CHAT, field_not, AT(answer.no_reasoning), 0, 0, "a boolean"},
    {"reasoning_format", CHAT, parse_reasoning_format, 0, 0, 0,
     "\"auto\", \"none\", \"deepseek\" or \"deepseek-legacy\""},
    {"separate_reasoning", CHAT, field_not, AT(answer.inline_reasoning), 0, 0, "a boolean"},
    FLAG("stream", BOTH, answer.stream),
    {"stream_options", BOTH, parse_stream_options, 0, 0, 0, "an object"},
    {"usage", BOTH, parse_usage, 0, 0, 0, "an object"},
    {"n", BOTH, parse_n, AT(input.n), 1, 0, "an integer"},
    {"max_tokens", CHAT, parse_max_tokens, AT(input.max_new), 1, INT32_MAX, "an integer"},
    {"max_tokens", TEXT, parse_max_tokens, AT(input.max_new), 0, INT32_MAX, "an integer"},
    {"max_completion_tokens", CHAT, parse_max_tokens, AT(input.max_new), 1, INT32_MAX,
     "an integer"},
    {"stop", BOTH, parse_stop, 0, 0, 0,
     "a string of at most 256 bytes or an array with at most 16 of them"},
    {"stop_token_ids", BOTH, parse_stop_ids, 0, 0, 0, "an array of at most 128 token ids"},
    {"logprobs", CHAT, field_bool, AT(answer.logprobs), 0, 0, "a boolean"},
    {"logprobs", TEXT, parse_n_logprobs, AT(answer.n_top), 0, SUBMIT_TOP_MAX, "an integer"},
    {"top_logprobs", CHAT, field_uint, AT(answer.n_top), 0, SUBMIT_TOP_MAX, "an integer"},
    {"logit_bias", BOTH, parse_bias, 0, 0, 0,
     "an object of at most 1024 token ids with a number from -100 to 100 each"},
    {"seed", BOTH, parse_seed, 0, 0, 0, "a 64-bit integer"},
    {"random_seed", BOTH, parse_seed, 0, 0, 0, "a 64-bit integer"},
    {"keep_alive", BOTH | VECTOR, field_keep_alive, 0, 0, 0,
     "a number of seconds or a duration such as \"5m\""},
    {"ttl", BOTH | VECTOR, field_ttl, 0, 0, INT32_MAX, "a number of seconds"},
    {"priority", BOTH | VECTOR, parse_priority, 0, INT16_MIN, INT16_MAX, "an integer"},
    {"cache_salt", BOTH | VECTOR, field_string, AT(input.cache_salt), 0, 1024,
     "a string of at most 1024 bytes"},
    {"prompt_cache_key", BOTH, field_string, AT(input.cache_key), 0, 4096,
     "a string of at most 4096 bytes"},
    {"safety_identifier", BOTH | VECTOR, field_string, AT(input.safety_id), 0, 4096,
     "a string of at most 4096 bytes"},
    {"user", BOTH | VECTOR, field_string, AT(input.user), 0, 4096,
     "a string of at most 4096 bytes"},
    {"metadata", BOTH | VECTOR, parse_metadata, AT(input.metadata_user), 0, 4096, NULL},
    {"tools", RENDERED, tool_forms_read, AT(input.tools), 0, REQUEST_TOOLS_MAX,
     "an array of at most 1024 tools"},
    {"tool_choice", CHAT, output_spec_tool_choice, 0, 0, 0, NULL},
    {"parallel_tool_calls", CHAT, field_not, AT(input.one_call), 0, 0, "a boolean"},
    {"response_format", BOTH, output_spec_response_format, 0, 0, 0, NULL},
    {"structured_outputs", BOTH, output_spec_structured, 0, 0, 0, NULL},
    {"guided_json", BOTH, output_spec_guided, 0, 0, 0, NULL},
    {"guided_json_object", BOTH, output_spec_guided, 0, 0, 0, NULL},
    {"guided_regex", BOTH, output_spec_guided, 0, 0, 0, NULL},
    {"guided_choice", BOTH, output_spec_guided, 0, 0, 0, NULL},
    {"guided_grammar", BOTH, output_spec_guided, 0, 0, 0, NULL},
    {"grammar", BOTH, output_spec_guided, 0, 0, 0, NULL},
    {"json_schema", BOTH, output_spec_guided, 0, 0, 0, NULL},
    {"complete_output", BOTH, parse_complete, 0, 0, 0, "a boolean"},
    {"loop_breaker", BOTH, parse_loops, 0, 0, REPEATS_MAX, "a boolean or a whole number to 4096"},
    {"modalities", CHAT, parse_modalities, 0, 0, 0, "an array"},
    {"prediction", BOTH, parse_prediction, 0, 0, 0,
     "an object with the type \"content\" and as content a string, or parts of text, of at most 1 "
     "MiB"},
    {"reasoning_effort", CHAT, field_effort, 0, 0, 0, EFFORTS_ARE},
    {"thinking_budget", CHAT, field_budget, 0, -1, INT32_MAX, "an integer"},
    {"thinking_token_budget", CHAT, field_budget, 0, -1, INT32_MAX, "an integer"},
    {"thinking_budget_tokens", CHAT, field_budget, 0, -1, INT32_MAX, "an integer"},
    {"max_thinking_tokens", CHAT, field_budget, 0, -1, INT32_MAX, "an integer"},
    {"reasoning_budget", CHAT, field_budget, 0, -1, INT32_MAX, "an integer"},
    {"enable_thinking", CHAT, field_switch, 0, 0, 0, "a boolean"},
    {"thinking", CHAT, field_thinking, 0, 0, 0,
     "a boolean, or an object with the type \"enabled\" or \"disabled\""},
    {"think", CHAT, field_think, 0, 0, 0, "a boolean, " EFFORTS_ARE},
    {"reasoning", CHAT, field_reasoning, 0, 0, 0, "a boolean or an object"},
    {"n_predict", CHAT, parse_predict, AT(input.max_new), 1, INT32_MAX, "an integer"},
    {"n_predict", TEXT, parse_predict, AT(input.max_new), 0, INT32_MAX, "an integer"},
    {"num_predict", CHAT, parse_predict, AT(input.max_new), 1, INT32_MAX, "an integer"},
    {"num_predict", TEXT, parse_predict, AT(input.max_new), 0, INT32_MAX, "an integer"},
    {"max_output_tokens", CHAT, parse_max_tokens, AT(input.max_new), 1, INT32_MAX, "an integer"},
    {"max_new_tokens", BOTH, parse_max_tokens, AT(input.max_new), 1, INT32_MAX, "an integer"},
    {"extra_body", ANY, parse_nested, 0, 0, 0, "an object"},
    {"options", BOTH, parse_nested, 0, 0, 0, "an object"},
    {"repeat_penalty", BOTH, parse_repeat_penalty, 0, 0, 0, NULL},
    {"regex", BOTH, output_spec_guided, 0, 0, 0, NULL},
    {"ebnf", BOTH, output_spec_guided, 0, 0, 0, NULL},
    UNSUPPORTED("stop_regex", 0),
    {"chat_template_kwargs", RENDERED, parse_kwargs, 0, 0, 0,
     "an object of plain values that the service does not set itself"},
    {"add_generation_prompt", RENDERED, field_not, AT(input.no_generation_prompt), 0, 0,
     "a boolean"},
    {"add_special_tokens", TEXT | EMBED | FIELDS_TOKENIZE, field_not, AT(input.no_special_tokens),
     0, 0, "a boolean"},
    {"skip_special_tokens", BOTH, field_not, AT(answer.keep_special), 0, 0, "a boolean"},
    FLAG("include_stop_str_in_output", BOTH, answer.include_stop),
    FLAG("return_token_ids", BOTH, answer.return_token_ids),
    FLAG("return_tokens_as_token_ids", BOTH, answer.tokens_as_ids),
    FLAG("return_progress", BOTH, answer.return_progress),
    FLAG("timings_per_token", BOTH, answer.timings_per_token),
    FLAG("verbose", BOTH, answer.verbose),
    FLAG("with_pieces", FIELDS_TOKENIZE, answer.with_pieces),
    FLAG("return_token_strs", FIELDS_TOKENIZE, answer.token_strings),
    {"logits_digest", BOTH, parse_digest, AT(answer.digests), 0, 0, "a boolean"},
    {"speculation", BOTH, parse_speculation, 0, 0, 0, "\"auto\" or \"off\""},
    {"dry_sequence_breakers", BOTH, field_breakers, AT(input.breakers), 1, 16,
     "an array of 1 to 16 strings of 1 to 64 bytes"},
    {"best_of", TEXT, parse_n, AT(input.best_of), 1, 0, "an integer"},
    {"echo", CHAT, parse_unsupported, 0, 0, 0, NULL},
    {"echo", TEXT, field_bool, AT(answer.echo), 0, 0, "a boolean"},
    {"suffix", CHAT, parse_unsupported, 0, 0, 0, NULL},
    {"suffix", TEXT, parse_suffix, AT(input.suffix), 0, 0, "a string"},
    UNSUPPORTED("functions", 0),
    {"function_call", BOTH, parse_function_call, 0, 0, 0, NULL},
    UNSUPPORTED("audio", 0),
    UNSUPPORTED("web_search_options", -1),
    UNSUPPORTED("documents", 0),
    UNSUPPORTED("chat_template", 0),
    {"prompt_logprobs", BOTH, parse_prompt_logprobs, AT(answer.n_prompt_top), 0, SUBMIT_TOP_MAX,
     "an integer"},
    {"truncate_prompt_tokens", BOTH, parse_unsupported, 0, -2, 0, NULL},
    UNSUPPORTED("use_beam_search", 0),
    {"bad_words", BOTH, field_bad_words, 0, 0, 128,
     "an array of at most 128 strings of 1 to 256 bytes"},
    {"allowed_token_ids", BOTH, field_allowed, 0, 0, 0,
     "an array of token ids, at most as many as the model has"},
    UNSUPPORTED("guided_whitespace_pattern", 0),
    UNSUPPORTED("mirostat", 0),
    UNSUPPORTED("dynatemp_range", 0),
    UNSUPPORTED("adaptive_target", -1),
    UNSUPPORTED("top_a", 0),
    UNSUPPORTED("tfs_z", 1),
    UNSUPPORTED("no_repeat_ngram_size", 0),
    UNSUPPORTED("logits_processors", 0),
    UNSUPPORTED("custom_logit_processor", 0),
    UNSUPPORTED("lora_path", 0),
    UNSUPPORTED("return_hidden_states", 0),
};

static int gen_request_require(yyjson_val *v, const char *name, struct err *err) {
    if (v)
        return 0;
    return err_set_code(err, 400, "missing_required_parameter", name,
                        "Missing required parameter: %s.", name);
}

/* Requires @v, field @name. Where the body has the field of another route instead, names that:
 * @other is the field and its route. */
static int gen_request_check_route(const struct gen_request *r, yyjson_val *v, const char *name,
                                   const char *const other[2], struct err *err) {
    if (v || !json_given(yyjson_doc_get_root(r->doc), other[0]))
        return 0;
    return err_set_code(err, 400, "missing_required_parameter", name,
                        "Missing required parameter: %s. A request with %s goes to %s.", name,
                        other[0], other[1]);
}

/* Checks that required fields are there. */
static int check_given(const struct gen_request *r, enum field_set known, struct err *err) {
    static const char *const input[] = {"input", "/v1/responses"};
    static const char *const prompt[] = {"prompt", "/v1/completions"};
    static const char *const messages[] = {"messages", "/v1/chat/completions"};

    switch (known) {
    case FIELDS_CHAT:
        TRY(gen_request_check_route(r, r->input.messages, "messages", input, err));
        TRY(gen_request_check_route(r, r->input.messages, "messages", prompt, err));
        return gen_request_require(r->input.messages, "messages", err);
    case FIELDS_COMPLETION:
        TRY(gen_request_check_route(r, r->input.prompt, "prompt", messages, err));
        return gen_request_require(r->input.prompt, "prompt", err);
    case FIELDS_EMBEDDING:
        return gen_request_require(r->input.prompt, "input", err);
    case FIELDS_RERANK:
    case FIELDS_SCORE:
        TRY(gen_request_require(r->input.query, known == FIELDS_RERANK ? "query" : "text_1", err));
        return gen_request_require(r->input.documents,
                                   known == FIELDS_RERANK ? "documents" : "text_2", err);
    case FIELDS_DETOKENIZE:
        return gen_request_require(r->input.tokens, "tokens", err);
    case FIELDS_TOKENIZE:
        break;
    }
    if (!r->input.messages == !r->input.prompt)
        return err_set_code(err, 400, "missing_required_parameter", "prompt",
                            "Either prompt or messages is needed.");
    return 0;
}

/* Checks rules between fields. */
static int gen_request_check(struct gen_request *r, struct err *err) {
    r->input.no_special_tokens |= r->input.no_bos && !r->input.add_special;
    if (r->answer.prompt_logprobs && r->answer.stream)
        return json_refuse(err, "prompt_logprobs", "cannot be streamed");
    if (r->input.best_of && r->input.best_of < r->input.n)
        return json_refuse(err, "best_of", "must be at least n");
    if (r->input.best_of > r->input.n && r->answer.stream)
        return json_refuse(err, "best_of", "above n cannot be streamed");
    if (r->input.suffix && (r->answer.echo || !yyjson_is_str(r->input.prompt)))
        return json_refuse(err, "suffix", "needs a prompt that is one string, without echo");
    if (r->answer.echo && r->answer.logprobs)
        r->answer.n_prompt_top = MAX(r->answer.n_prompt_top, r->answer.n_top);
    if (r->answer.n_top && !r->answer.logprobs)
        return json_refuse(err, "top_logprobs", "needs logprobs to be true");
    r->input.one_call |=
        r->input.choice.function != NULL; /* "call exactly one specific function" (OpenAI) */
    return output_spec_check(r, err);
}

/* Adds tokens that end this kind of text, which other texts may contain. */
static int add_ends(struct gen_request *r, const int32_t *ends, uint32_t n) {
    int32_t *ids = arena_alloc_array(&r->arena, r->submit.n_stop_ids + n + 1, sizeof(*ids));

    if (!ids)
        return -ENOMEM;
    if (r->submit.n_stop_ids)
        memcpy(ids, r->submit.stop_ids, r->submit.n_stop_ids * sizeof(*ids));
    for (uint32_t i = 0; i < n && r->submit.n_stop_ids < REQUEST_STOP_IDS_MAX; i++)
        ids[r->submit.n_stop_ids++] = ends[i];
    r->submit.stop_ids = ids;
    return 0;
}

/* Finds the field @key of @known: a row of the table, or behind them a sampling parameter. Sets
 * *@out to it and returns its number, or -1. */
static int gen_request_find(yyjson_val *key, enum field_set known, struct field *out) {
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        if (fields[i].kinds & known && yyjson_equals_str(key, fields[i].name)) {
            *out = fields[i];
            return (int)i;
        }
    const char *name = json_cstr(key);
    const struct param *p = known & BOTH && name ? params_find(name) : NULL;
    if (!p)
        return -1;
    *out = (struct field){.name = p->name, .parse = parse_sampling};
    return (int)(ARRAY_SIZE(fields) + (size_t)(p - params_table));
}

/* State of the reading of a body's members. */
struct reading {
    struct gen_request *r;
    const struct model *m;
    enum field_set known;
    /* for each row: the number of the object that has the field, from 1; 0: none so far */
    uint8_t seen[ARRAY_SIZE(fields) + PARAMS_MAX];
    /* max_completion_tokens; 0: not given */
    uint32_t max_completion;
    struct err *err;
};

/* Reads the members of @o, the @nth object. What an object before it has is not read again. */
static int reading_members(struct reading *in, yyjson_val *o, uint8_t nth) {
    JSON_MEMBERS(key, value, o) {
        struct field f;
        int at = gen_request_find(key, in->known, &f);

        if (at < 0 || (in->seen[at] && in->seen[at] < nth))
            continue;
        if (in->seen[at])
            return err_set_code(in->err, 400, "duplicate_key", f.name, "%s is given twice.",
                                f.name);
        in->seen[at] = nth;
        if (yyjson_is_null(value))
            continue;
        TRY(f.parse(in->r, in->m, &f, value, in->err));
        if (strcmp(f.name, "max_completion_tokens") == 0)
            in->max_completion = in->r->input.max_new;
    }
    return 0;
}

static int parse_fields(struct gen_request *r, const struct model *m, enum field_set known,
                        struct err *err) {
    struct reading in = {.r = r, .m = m, .known = known, .err = err};
    yyjson_val *root = yyjson_doc_get_root(r->doc);

    assert(params_count <= PARAMS_MAX);
    TRY(reading_members(&in, root, 1));
    /* The model was found by the body's own member, and no other can be named now. */
    in.seen[0] = 1;
    TRY(reading_members(&in, json_given(root, "extra_body"), 2));
    if (known & BOTH)
        TRY(reading_members(&in, json_given(root, "options"), 3));
    r->input.max_new = in.max_completion ? in.max_completion : r->input.max_new;
    if (r->input.suffix)
        TRY(add_ends(r, m->fim.ends, m->fim.n_ends));
    if (r->input.messages && !r->submit.sampling.ignore_eos)
        TRY(add_ends(r, m->family.ends, m->family.n_ends));
    TRY(check_given(r, known, err));
    return gen_request_check(r, err);
}

/* Refuses text for a model that writes none. */
static int refuse_text(const struct model *m, struct err *err) {
    return err_set_code(err, 400, "unsupported_model", "model",
                        "The model `%.100s` is an embedding model and generates no text. Send the "
                        "request to /v1/embeddings%s.",
                        m->info->id, m->info->ranks ? " or /v1/rerank" : "");
}

static int read_fields(struct gen_request *r, const struct model *m, enum field_set known,
                       struct err *err) {
    if (known & BOTH && m->info->encoder)
        return refuse_text(m, err);
    TRY(parse_fields(r, m, known, err));
    if (m->info->template_kwargs && known & RENDERED)
        return gen_request_default_kwargs(r, m->info->template_kwargs);
    return 0;
}

int gen_request_read(struct gen_request *r, const struct model *m, enum field_set known,
                     yyjson_doc *doc, struct err *err) {
    memset(r, 0, sizeof(*r));
    r->input.n = 1;
    if (m->info->sampling)
        r->submit.sampling = *m->info->sampling;
    else
        params_init(&r->submit.sampling);
    r->input.has_seed = m->info->seed != NULL;
    r->input.seed = m->info->seed ? *m->info->seed : 0;
    r->answer.inline_reasoning = m->info->inline_reasoning;
    r->input.is_chat = known == FIELDS_CHAT;
    r->answer.verbose = log_enabled(WLOG_DEBUG); /* as llama-server with --verbose */
    arena_init(&r->arena, ARENA_MAX);
    r->doc = doc;
    int result = read_fields(r, m, known, err);

    if (result < 0)
        gen_request_deinit(r);
    else if (!r->input.thinking && !r->input.reasoning_effort)
        r->input.thinking = m->info->thinking; /* chat_template_kwargs take precedence */
    return result;
}
