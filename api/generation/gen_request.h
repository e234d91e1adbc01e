#pragma once

/*
 * gen_request - the body of a request as values: the fields that an endpoint knows, their types and
 * ranges. Unknown fields are ignored, because agents send extensions of their providers. A known
 * field with a bad value, and an unsupported field that would change the output, get a 400 that
 * names the field. null is treated as absent.
 */

#include <stdbool.h>
#include <stdint.h>

#include "api/generation/loosen.h"
#include "base/arena.h"
#include "base/err.h"
#include "base/lib_types.h"
#include "proto/messages.h"

struct model;
struct picture_seen;

#define REQUEST_BIAS_MAX 1024u
#define REQUEST_STOP_IDS_MAX 128u
#define REQUEST_PROMPTS_MAX 128u
#define REQUEST_INPUTS_MAX 2048u      /* inputs of an embedding request */
#define REQUEST_QUERY_MAX (64u << 10) /* bytes: it stands before each document */
#define REQUEST_MESSAGES_MAX 100000u
#define REQUEST_TOOLS_MAX 1024u
#define REQUEST_NAME_MAX 256u             /* bytes of a tool's name */
#define GEN_REQUEST_NO_LIMIT INT32_MAX    /* max_new: all that the context leaves */
#define REQUEST_PREDICTION_MAX (1u << 20) /* bytes */

/* Levels of reasoning_effort, as json_is() takes them, and in words. */
#define EFFORTS "none minimal low medium high xhigh max"
#define EFFORTS_ARE "\"none\", \"minimal\", \"low\", \"medium\", \"high\", \"xhigh\" or \"max\""

/* Sets of fields that a body may have. */
enum field_set {
    FIELDS_CHAT = 1,
    FIELDS_COMPLETION = 2,
    FIELDS_TOKENIZE = 4,
    FIELDS_DETOKENIZE = 8,
    FIELDS_EMBEDDING = 16,
    FIELDS_RERANK = 32,
    FIELDS_SCORE = 64,
};

/* Tools may, must not, or must be called. */
enum gen_request_tools { TOOLS_AUTO, TOOLS_NONE, TOOLS_REQUIRED };

/* tool_choice. Values are in the body. */
struct gen_request_choice {
    /* enum gen_request_tools */
    uint8_t mode;
    /* the name of the only one that may be called, or NULL */
    yyjson_val *function;
    /* names that may be called, or NULL: all */
    yyjson_val *allowed;
};

/* Form that the text must have: response_format and similar fields. */
struct gen_request_form {
    /* key of a node of grammar/constraint.h; NULL: any text */
    const char *kind;
    /* the field that requires it */
    const char *param;
    /* in the body or in `doc` */
    yyjson_val *value;
    /* the parsed schema, if it came as text */
    yyjson_doc *doc;
    bool compact;
    /* the properties of a schema may come in any order */
    bool any_order;
};

/* A picture of the body. */
struct request_picture {
    /* address until the file is fetched; NULL: the body has the file */
    char *address;
    /* until the file was examined */
    uint8_t *file;
    size_t n_file;
    /* detail is "low": few rows */
    bool low;
    /* clients send it with every request: a note may stand for it */
    bool repeated;
    /* it cannot be used, and a note stands for it */
    bool unread;
    /* a reference; NULL: not examined yet */
    struct picture_seen *seen;
    /* in the body, for errors */
    char place[96];
};

/* Request of the client, in the terms of OpenAI's API. */
struct gen_input {
    /* there are messages */
    bool is_chat;
    bool no_generation_prompt, no_special_tokens, no_normalize, no_tools, one_call, no_speculation;
    /* /tokenize in llama-server's form */
    bool no_bos, add_special;
    /* text is data: the names of special tokens are characters */
    bool no_special_names;
    /* the model is only loaded; nothing is generated */
    bool load_only;
    /* the output is not sent, although one token is generated */
    bool score_only;
    /* Turns reasoning on or off. THINK_AUTO: not given, or on where the model can think;
     * THINK_TEMPLATE: as the template has it when it is told nothing. */
    enum thinking_switch { THINK_AUTO, THINK_OFF, THINK_ON, THINK_TEMPLATE } thinking;
    bool has_budget;
    /* tokens of reasoning, with has_budget */
    uint32_t thinking_budget;
    /* when cut */
    enum complete_switch { COMPLETE_UNSET, COMPLETE_OFF, COMPLETE_ON } complete;
    /* max_new 0: not given; or GEN_REQUEST_NO_LIMIT. best_of 0: n */
    uint32_t n, best_of, max_new;
    bool has_seed;
    uint64_t seed;
    /* loop_tokens is given: */
    bool sets_loops;
    /* tokens that are searched for a loop; 0: none */
    uint32_t loop_tokens;
    /* Ollama's keep_alive is given: */
    bool has_keep_alive;
    /* seconds for which the model stays loaded after this request; negative: for ever */
    int64_t keep_alive_s;
    /* longest input that need not be cut, and the field that says so; 0: any */
    uint32_t most_tokens;
    const char *most_name;
    /* SUBMIT_POOL_*: the result is a vector; or 0 */
    uint16_t pool;
    struct str instruction, cache_salt, cache_key, safety_id, user, metadata_user;
    struct gen_request_choice choice;
    struct gen_request_form form;
    /* `tools`, if some were not in a chat's form; or NULL */
    yyjson_doc *tools_doc;
    /* In the body; NULL once gen_request_drop_body() was called. A rerank's prompts are pairs of
     * the query and one of the documents. */
    yyjson_val *query, *documents;
    /* their names in the body, or NULL */
    const char *query_name, *documents_name;
    yyjson_val *messages, *tools, *kwargs, *prompt, *suffix, *tokens, *reasoning_effort, *expected,
        *response_format, *breakers;
};

/* The form of the answer, most of which only one dialect has. */
struct gen_answer {
    bool stream, include_usage, continuous_usage, logprobs, return_token_ids, tokens_as_ids,
        digests;
    uint32_t n_top;
    bool echo, prompt_logprobs;
    uint32_t n_prompt_top;
    bool include_stop, keep_special;
    /* tools came as `functions`; calls are returned in the same form */
    bool functions_form;
    /* the answer omits reasoning, although the model writes it */
    bool no_reasoning;
    /* the answer has it in the content, between the model's marks */
    bool inline_reasoning;
    /* the answer is the prompt's tokens only */
    bool tokens_only;
    /* /tokenize: each token with its text */
    bool with_pieces, token_strings;
    /* llama-server: report the progress of the prompt until the first token */
    bool return_progress;
    /* llama-server: each event of a stream has the times */
    bool timings_per_token;
    /* llama-server: the answer has the raw output */
    bool verbose;
    /* vectors */
    bool base64;
    /* a list without inputs gets an answer without vectors */
    bool takes_none;
    /* length to which a vector is cut; 0: not cut */
    uint32_t dimensions;
    /* options of a rerank */
    bool return_documents, raw_scores;
    /* number of results of a rerank; 0: all */
    uint32_t top_n;
    /* /v1/score: texts have other names */
    bool scores_texts;
    /* TEI's form: documents are "texts", the answer is a list */
    bool reranks_texts;
};

/* Results of the steps from the input to the prompt. */
struct gen_made {
    /* hash of the conversation's beginning; 0: none */
    uint64_t conversation;
    /* tools that the model may call; NULL: none */
    yyjson_doc *functions;
    /* tools that the template shows; NULL: all */
    yyjson_doc *shown;
    /* names of the custom tools among them; in the arena */
    const char **customs;
    uint32_t n_customs;
    /* parts of tools' schemas that the grammar leaves out */
    struct loosened_list loosened;
    /* picture_parts.h */
    struct request_picture *pictures;
    uint32_t n_pictures;
    /* [n_shown] numbers of pictures as the prompt shows them; NULL: as they are */
    uint32_t *order;
    uint32_t n_shown;
    /* `kwargs`, if the server's defaults are among them; or NULL */
    yyjson_doc *merged_kwargs;
    /* `messages` with the numbers of pictures; NULL: there are none */
    yyjson_doc *seen_messages;
    /* Texts that replace `marker`, which the rendered chat has once; each text gives a prompt. */
    const char *marker;
    struct str *variants;
    uint32_t n_variants;
    /* the end of the prompt, which the answer continues */
    struct str prefill;
};

/* The canonical request. Dialects other than OpenAI's translate their body to OpenAI's form, which
 * is then read. */
struct gen_request {
    /* the body */
    yyjson_doc *doc;
    /* outlives the body */
    struct arena arena;
    struct gen_input input;
    struct gen_answer answer;
    struct gen_made made;
    /* Members that its generations have in common, as the worker gets them: sampling, priority,
     * stops, bias, grammar, allowed tokens, prediction. gen_new() adds the rest. */
    struct submit submit;
};

/* Returns the boolean among the request's own variables that turns reasoning on or off, under
 * either of its names; NULL: there is none. */
yyjson_val *gen_request_switch(const struct gen_request *r);
/* Returns true if @kwargs is an object of plain values that may be variables of a template. */
bool gen_request_allows_kwargs(yyjson_val *kwargs);
/* Adds to the request's own variables those of @defaults that it does not set, by a variable or a
 * field. Returns 0 or -ENOMEM. */
int gen_request_default_kwargs(struct gen_request *r, yyjson_val *defaults);
/* Returns true if the request turns reasoning off, by any of the names for it. */
bool gen_request_thinks_not(const struct gen_request *r);
/* Returns the number of generations for each prompt; n of them are the answer. */
static inline uint32_t gen_request_made(const struct gen_request *r) {
    if (r->input.best_of > r->input.n)
        return r->input.best_of;
    return r->input.n;
}
/* Makes the answer continue @text, which is copied. Returns 0 or -ENOMEM. */
int gen_request_set_prefill(struct gen_request *r, const char *text, size_t len);
void gen_request_deinit(struct gen_request *r); /* accepts a zeroed one */
/* Frees the functions, which a new rendering makes again. */
void gen_request_drop_functions(struct gen_request *r);
/* Frees the parsed body, which can be large, once its prompts are tokens. */
void gen_request_drop_body(struct gen_request *r);
