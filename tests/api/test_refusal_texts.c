/* The texts of refusals name the error, its place and the accepted input. The tables have one
 * request for each text that no other test compares. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tests/support/quotes.h"
#include "stream.h"
#include "tiny.h"

#define MESSAGES "/v1/messages"
#define RESPONSES "/v1/responses"
/* A whole request of Anthropic's dialect, and one more member. */
#define ASK "{\"model\":\"tiny\",\"max_tokens\":5," HI
#define INPUT(item) "{\"input\":[" item "]}"
#define USER "{\"role\":\"user\",\"content\":\"a\"}"
#define TOOL "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"

struct refusal {
    const char *path, *body;
    int status;
    const char *text; /* text in the JSON of the answer */
};

static void ask(struct world *w, const struct refusal *r) {
    struct reply got;

    world_ask(w, r->path, r->body, &got);
    cr_expect_eq(got.status, r->status, "%.200s: %d, not %d: %s", r->body, got.status, r->status,
                 got.body.data);
    cr_expect(got.body.data && strstr(got.body.data, r->text), "%.200s: %s has no %s", r->body,
              got.body.data, r->text);
    reply_deinit(&got);
}

static void ask_all(const struct refusal *table, size_t n) {
    struct world w;

    world_init(&w);
    w.port.script = "ok"; /* a request that is not refused is answered */
    world_start(&w);
    for (size_t i = 0; i < n; i++)
        ask(&w, &table[i]);
    cr_expect_eq(w.port.n, 0, "nothing of it reached the worker");
    world_stop(&w);
}

Test(refusal_texts, of_anthropics_dialect) {
    const struct refusal table[] = {
        {MESSAGES, J(ASK ",'stop_sequences':'a'}"), 400,
         "stop_sequences: must be an array of at most 16 strings."},
        {MESSAGES, J(ASK ",'stop_sequences':['']}"), 400,
         "stop_sequences: must hold strings of 1 to 256 bytes."},
        {MESSAGES, J(ASK ",'stop_sequences':[' ']}"), 400,
         "stop_sequences: must hold strings that are not only white space."},
        {MESSAGES, J(ASK ",'system':[{'type':'image'}]}"), 400,
         J("system.0.type: is not supported here: only \\'text\\' is.")},
        {MESSAGES, J(ASK ",'thinking':{'type':'enabled','budget_tokens':0}}"), 400,
         "thinking.budget_tokens: must be a whole number of at least 1."},
        {MESSAGES,
         J("{'model':'tiny','max_tokens':5,'messages':[{'role':'user','content':[{'type':'document'"
           ",'source':{'type':'base64'}}]}]}"),
         400,
         "messages.0.content.0.document.source.type is not supported: files and audio cannot be "
         "read."},
        {MESSAGES,
         J("{'model':'tiny','max_tokens':5,'messages':[" USER
           ",{'role':'assistant','content':[{'type':'tool_use','id':'1','name':'f','input':{}}]},{'"
           "role':'user','content':'b'}]}"),
         400, "has tool_use blocks without a tool_result block in the next message."},
        {MESSAGES, J(ASK ",'metadata':{'user_id':5}}"), 400,
         "metadata.user_id: must be a string of at most 4096 bytes."},
        {MESSAGES, J(ASK ",'output_config':{'format':{'type':'text'}}}"), 400,
         J("must be \\'json_schema\\'.")},
        {MESSAGES, J(ASK ",'thinking':{'type':'enabled'}}"), 400,
         "thinking.budget_tokens: must be given where thinking is enabled."},
        {MESSAGES, J("{'model':'tiny','max_tokens':5,'messages':[]}"), 400,
         "messages: must be an array of 1 to 100000 messages."},
        {MESSAGES,
         J(ASK ",'tools':[{'name':'a','input_schema':{},'defer_loading':true},{'type':'tool_search_"
               "tool_regex_20251119','name':'x'}]}"),
         400, "tools.1.name: must be the name that this type of tool has."},
        {MESSAGES, J(ASK ",'tools':[{'name':''}]}"), 400,
         "tools.0.name: must be a string of 1 to 256 bytes without NUL."},
        {MESSAGES, J(ASK ",'tools':[{'type':'bash_20250124'}]}"), 400,
         "tools.0.name: must be a string of 1 to 256 bytes without NUL."},
        {MESSAGES, J(ASK ",'tools':[{'type':'bash_20250124','name':''}]}"), 400,
         "tools.0.name: must be a string of 1 to 256 bytes without NUL."},
        {MESSAGES, J(ASK ",'tools':{}}"), 400, "tools: must be an array of at most 1024 tools."},
        {MESSAGES, J(ASK ",'tool_choice':{'type':'any'}}"), 400,
         "tool_choice.type: needs tools that can be called."},
        {MESSAGES,
         J("{'model':'tiny','max_tokens':5,'messages':[" USER
           ",{'role':'assistant','content':[{'type':'tool_use','id':'1','name':'f','input':{}}]},{'"
           "role':'user','content':[{'type':'tool_result','tool_use_id':'1','content':5}]}]}"),
         400, "content: must be a string or an array of content blocks."},
        {MESSAGES,
         J("{'model':'tiny','max_tokens':5,'messages':[{'role':'user','content':[{'type':'tool_"
           "result','tool_use_id':'1','content':'a'}]}]}"),
         400,
         "tool_use_id: must be the id of a tool_use block in the previous message that has no "
         "other result."},
    };

    ask_all(table, ARRAY_SIZE(table));
}

Test(refusal_texts, of_chats) {
    const struct refusal table[] = {
        {CHAT, J("{" HI ",'tools':[{'type':'custom','custom':{'name':''}}]}"), 400,
         "tools[0].custom.name must be a string of 1 to 256 bytes without NUL."},
        {CHAT,
         J("{" HI ",'tools':[{'type':'custom','custom':{'name':'c','format':{'type':'xml'}}}]}"),
         400, J("tools[0].custom.format.type must be \\'text\\' or \\'grammar\\'.")},
        {CHAT,
         J("{" HI ",'tools':[{'type':'custom','custom':{'name':'c','format':{'type':'grammar','"
           "grammar':{'syntax':'gbnf','definition':'a'}}}}]}"),
         400, J("tools[0].custom.format.syntax must be \\'lark\\' or \\'regex\\'.")},
        {CHAT,
         J("{" HI ",'tools':[{'type':'custom','custom':{'name':'c','format':{'type':'grammar','"
           "grammar':{'syntax':'lark','definition':''}}}}]}"),
         400, "tools[0].custom.format.definition must be a string that is not empty, without NUL."},
        {CHAT, J("{'messages':[{'role':'user','content':[5]}]}"), 400,
         "messages[0].content[0] must be a part with a type."},
        {CHAT, J("{'messages':[{'role':'user','content':5}]}"), 400,
         "messages[0].content must be a string or an array of parts."},
        {CHAT,
         J("{'messages':[" USER
           ",{'role':'assistant','tool_calls':[{'type':'custom','custom':{'name':'c'}}]}]}"),
         400, "messages[1].tool_calls[0] must be a custom call with name and input"},
        {CHAT,
         J("{'messages':[" USER
           ",{'role':'assistant','tool_calls':[{'type':'function','function':{'name':5}}]}]}"),
         400, "messages[1].tool_calls[0] must be a function call with name and arguments"},
        {CHAT,
         J("{'messages':[" USER ",{'role':'assistant','tool_calls':[{'type':'function','function':{"
           "'name':'a\\u0000b','arguments':'{}'}}]}]}"),
         400, "messages[1].tool_calls[0] must have a name without NUL"},
        {CHAT, J("{" HI ",'tools':[{'type':'function','function':{'name':5}}]}"), 400,
         "tools[0].function.name must be a string of 1 to 256 bytes without NUL."},
        {CHAT, J("{" HI ",'structured_outputs':{'structural_tag':'a'}}"), 400,
         "structured_outputs.structural_tag is not supported."},
        {CHAT, J("{" HI ",'structured_outputs':{'regex':''}}"), 400,
         "structured_outputs.regex must be a string that is not empty, without NUL."},
        {CHAT, J("{" HI ",'guided_regex':'a','guided_choice':['a']}"), 400,
         "guided_choice and guided_regex cannot be given together."},
        {CHAT, J("{" HI ",'allowed_token_ids':[0,-1]}"), 400, "entry 1 is not one."},
        {CHAT, J("{" HI ",'functions':[{'name':'f'}],'function_call':'x'}"), 400,
         "function_call must be auto, none or an object with a name"},
        {CHAT, "", 400, "The request body is empty: JSON is expected."},
        {CHAT, J("{'messages':"), 400, "The request body is not valid JSON: "},
        {CHAT, J("{" HI ",'guided_choice':[]}"), 400,
         "guided_choice must be an array of at least one string."},
        {CHAT, J("{" HI ",'response_format':{'type':'xml'}}"), 400,
         J("response_format.type must be \\'text\\', \\'json_object\\' or \\'json_schema\\'.")},
        {CHAT, J("{" HI ",'tools':[" TOOL "],'tool_choice':{'type':'allowed_tools','mode':'all'}}"),
         400, J("tool_choice.allowed_tools.mode must be \\'auto\\' or \\'required\\'.")},
        {CHAT, J("{" HI ",'tools':[" TOOL "],'tool_choice':{'type':'allowed_tools','tools':[]}}"),
         400, "tool_choice.allowed_tools.tools must be an array of 1 to 1024 tools."},
        {CHAT, J("{" HI ",'tools':[" TOOL "],'tool_choice':{'type':'allowed_tools','tools':[5]}}"),
         400, "tool_choice.allowed_tools.tools[0] must be a function with a name."},
        {CHAT, J("{" HI ",'tools':[" TOOL "],'tool_choice':{'type':'mcp'}}"), 400,
         "tool_choice can name only functions and custom tools."},
        {CHAT,
         J("{" HI ",'tools':[" TOOL "],'tool_choice':{'type':'function','function':{'name':'g'}}}"),
         400, "tool_choice names the function 'g', which is not in tools."},
        {CHAT, J("{" HI ",'tool_choice':'required'}"), 400,
         "tool_choice needs at least one function in tools."},
        {CHAT, J("{" HI ",'functions':{'a':1}}"), 400,
         "functions must be an array of at most 1024 functions"},
        {CHAT, J("{" HI ",'functions':[{'name':''}]}"), 400,
         "functions[0].name must be a string of 1 to 256 bytes without NUL"},
        {TEXT, J("{'prompt':'a','n':2,'best_of':1}"), 400, "best_of must be at least n."},
        {"/v1/embeddings", J("{'input':'a','dimensions':100000}"), 400,
         "dimensions must be at most 4, the size of this model's vectors."},
        {"/v1/embeddings", J("{'input':'a','dimensions':2,'pooling':'none'}"), 400,
         J("dimensions cannot be combined with the pooling \\'none\\'.")},
        {"/v1/embeddings", J("{'input':{}}"), 400,
         "input must be a string, an array of strings, an array of token ids or"},
        {"/v1/rerank", J("{'query':'a','documents':['b']}"), 400,
         "The model `tiny` is not a reranker. Use another model for this path."},
        {"/v1/rerank", J("{'query':'a','documents':['b'],'texts':['c']}"), 400,
         "documents and texts cannot be given together."},
        {CHAT, J("{" HI ",'reasoning':{'effort':5}}"), 400,
         J("reasoning.effort must be \\'none\\', \\'minimal\\', \\'low\\', \\'medium\\', "
           "\\'high\\', \\'xhigh\\' or \\'max\\'.")},
        {CHAT, J("{" HI ",'reasoning':{'effort':'low medium'}}"), 400,
         J("reasoning.effort must be \\'none\\', \\'minimal\\', \\'low\\', \\'medium\\', "
           "\\'high\\', \\'xhigh\\' or \\'max\\'.")},
        {CHAT, J("{" HI ",'reasoning_effort':'banana'}"), 400,
         J("reasoning_effort must be \\'none\\', \\'minimal\\', \\'low\\', \\'medium\\', "
           "\\'high\\', \\'xhigh\\' or \\'max\\'.")},
        {"/v1/responses", J("{'input':'a','reasoning':{'effort':'banana'}}"), 400,
         J("reasoning.effort must be \\'none\\', \\'minimal\\', \\'low\\', \\'medium\\', "
           "\\'high\\', \\'xhigh\\' or \\'max\\'.")},
        {CHAT, J("{" HI ",'reasoning_effort':5}"), 400,
         J("reasoning_effort must be \\'none\\', \\'minimal\\', \\'low\\', \\'medium\\', "
           "\\'high\\', \\'xhigh\\' or \\'max\\'.")},
        {CHAT, J("{" HI ",'thinking':5}"), 400,
         J("thinking must be an object with the type \\'enabled\\' or \\'disabled\\'.")},
        {CHAT, J("{" HI ",'seed':'a'}"), 400, "seed must be a 64-bit integer."},
        {CHAT, J("{" HI ",'logit_bias':[]}"), 400,
         "logit_bias must be an object of at most 1024 token ids with a number from -100 to 100 "
         "each."},
        {CHAT, J("{" HI ",'cache_salt':5}"), 400,
         "cache_salt must be a string of at most 1024 bytes."},
        {CHAT, J("{" HI ",'prediction':{'type':'content','content':5}}"), 400,
         J("prediction must be an object with the type \\'content\\' and as content a string, or "
           "parts of text, of at most 1 MiB.")},
        {CHAT, J("{" HI ",'chat_template_kwargs':{'messages':[]}}"), 400,
         "chat_template_kwargs must be an object of plain values that the service does not set "
         "itself."},
        {CHAT, J("{" HI ",'speculation':'on'}"), 400,
         J("speculation must be \\'auto\\' or \\'off\\'.")},
        {CHAT, J("{" HI ",'dry_sequence_breakers':[]}"), 400,
         "dry_sequence_breakers must be an array of 1 to 16 strings of 1 to 64 bytes."},
        {CHAT, J("{" HI ",'allowed_token_ids':5}"), 400,
         "allowed_token_ids must be an array of token ids, at most as many as the model has."},
        {CHAT, J("{" HI ",'stop_token_ids':[100000]}"), 400,
         "stop_token_ids must hold token ids from 0 to "},
        {CHAT, J("{'messages':[{'role':'user','content':'a'}],'continue_final_message':true}"), 400,
         "continue_final_message needs a last message of the assistant that is text alone."},
        {"/v1/embeddings", J("{'input':'a','encoding_format':'int'}"), 400,
         J("encoding_format must be \\'float\\' or \\'base64\\'.")},
        {"/v1/embeddings", J("{'input':'a','pooling':'max'}"), 400,
         J("pooling must be \\'last\\', \\'mean\\', \\'cls\\' or \\'none\\'.")},
        {"/v1/rerank", J("{'query':'a','documents':5}"), 400,
         "documents must be an array of 1 to 2048 documents."},
        {"/v1/rerank", J("{'query':'a','texts':[]}"), 400,
         "texts must be an array of 1 to 2048 texts."},
    };

    ask_all(table, ARRAY_SIZE(table));
}

Test(refusal_texts, of_responses) {
    const struct refusal table[] = {
        {RESPONSES,
         J("{'input':'a','context_management':[{'type':'compaction','compact_threshold':0}]}"), 400,
         "context_management.compact_threshold must be a positive whole number"},
        {RESPONSES, J(INPUT("{'role':'user','content':[{'type':'x'}]}")), 400,
         "input[0].content[0].type must be a text part"},
        {RESPONSES, J(INPUT("{'role':'user','content':[{'type':'input_image'}]}")), 400,
         "input[0].content[0].image_url is not supported: this model reads only text."},
        {RESPONSES, J(INPUT("{'role':'user','content':5}")), 400,
         "input[0].content must be a string or an array of parts"},
        {RESPONSES, J(INPUT("{'type':'function_call','call_id':'','name':'f'}")), 400,
         "input[0].call_id must be a string of at least one byte, without NUL"},
        {RESPONSES, J(INPUT("{'type':'function_call','call_id':'1','name':'f'}")), 400,
         "input[0].arguments must be a string of JSON"},
        {RESPONSES,
         J(INPUT("{'type':'shell_call','call_id':'1','action':{'commands':['ls']}},{'type':'shell_"
                 "call_output','call_id':'1','output':[{'outcome':{'type':'exit','exit_code':0},'"
                 "stdout':5}]}")),
         400, "input[1].output must have strings as stdout and stderr"},
        {RESPONSES, J(INPUT("{'type':'function_call_output','call_id':'9','output':'a'}")), 400,
         "input[0].call_id must be the id of an earlier call"},
        {RESPONSES, J("{'input':'a','tools':[{'type':'function','name':''}]}"), 400,
         "tools[0].name must be a string of 1 to 256 bytes without NUL"},
        {"/v1/conversations", J("{'metadata':[]}"), 400,
         "metadata must be an object of at most 16 strings."},
        {"/v1/conversations", J("{'items':5}"), 400, "items must be an array."},
        {"/v1/conversations", "{}", 400, "Nothing is kept here (stored-responses, stored-memory)."},
        {RESPONSES, J("{'input':'a','previous_response_id':'resp_x'}"), 404,
         "Previous response with id 'resp_x' not found."},
        {RESPONSES, J("{'input':'a','max_tokens':5}"), 400,
         "max_tokens is a field of chat completions: give max_output_tokens instead."},
        {RESPONSES, J("{'input':'a','include':[5]}"), 400, "include must be an array of strings"},
        {RESPONSES, J(INPUT("{'type':'item_reference','id':'x'}")), 404,
         "send the items themselves, as SDKs do with `store` set to false."},
        {RESPONSES, J(INPUT("{'type':'item_reference','id':5}")), 400,
         "input[0].id must be a string."},
        {RESPONSES, J("{'input':'a','tool_choice':5}"), 400,
         "tool_choice must be a string or an object"},
        {RESPONSES, J("{'input':'a','previous_response_id':5}"), 400,
         "previous_response_id must be the id of a response"},
        {RESPONSES, J("{'input':'a','truncation':'none'}"), 400,
         J("truncation must be \\'auto\\' or \\'disabled\\'")},
        {RESPONSES, J("{'input':'a','conversation':5}"), 400,
         "conversation must be the id of a conversation"},
        {RESPONSES, J("{'input':'a','context_management':5}"), 400,
         J("context_management must be an array of {\\'type\\': \\'compaction\\'}")},
        {RESPONSES, J("{'input':'a','prompt_cache_key':5}"), 400,
         "prompt_cache_key must be a string of at most 4096 bytes"},
    };

    ask_all(table, ARRAY_SIZE(table));
}

Test(refusal_texts, of_other_dialects) {
    const struct refusal table[] = {
        {"/completion", J("{'prompt':{'prompt_string':'a','multimodal_data':'b'}}"), 400,
         "multimodal_data must be an array of pictures in base64"},
        {"/completion", J("{'prompt':{}}"), 400,
         "prompt must be texts and arrays of tokens and texts"},
        {"/completion", J("{'prompt':'a','post_sampling_probs':true}"), 400,
         "post_sampling_probs is not supported: n_probs gives the probabilities before sampling."},
        {"/completion", J("{'prompt':'a','response_fields':'b'}"), 400,
         "response_fields must be an array of at most 64 paths"},
        {"/completion", J("{'prompt':'a','n_probs':21}"), 400,
         "n_probs must be an integer of at most 20"},
        {"/completion", J("{'prompt':'a','n_probs':18446744073709551615}"), 400,
         "n_probs must be an integer of at most 20"},
        {"/api/v0/chat/completions", J("{" HI ",'ttl':'1h'}"), 400,
         "ttl must be a number of seconds."},
        {"/api/v1/models/unload", J("{'instance_id':'tiny'}"), 400,
         "The model `tiny` is always loaded."},
        {"/api/embed", J("{'model':'tiny','input':'a','keep_alive':'x'}"), 400,
         J("keep_alive must be a number of seconds or a duration such as \\'5m\\'")},
        {"/api/embed", J("{'model':'tiny','input':'a','pooling':'none'}"), 400,
         "use /v1/embeddings or /embedding for vectors of each token"},
        {"/api/chat", J("{'model':'tiny'," HI ",'keep_alive':'x'}"), 400,
         J("keep_alive must be a number of seconds or a duration such as \\'5m\\'")},
        {"/infill", J("{'input_prefix':'a','input_suffix':'b','input_extra':[5]}"), 400,
         "input_extra must be an array of objects with filename and text"},
        {"/completion", J("{'prompt':'a','logit_bias':[[5]]}"), 400,
         "logit_bias must be pairs of a token or text and a number from -100 to 100 or false"},
        {"/detokenize", J("{'tokens':5}"), 400, "tokens must be an array of token ids."},
    };

    ask_all(table, ARRAY_SIZE(table));
}

/* Appends @n times @item, with commas between. */
static void repeat(struct buf *b, size_t n, const char *item) {
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(buf_printf(b, "%s%s", i ? "," : "", item), 0);
}

Test(refusal_texts, of_lists_that_are_too_long) {
    const struct {
        const char *path, *before, *item, *after;
        size_t n;
        const char *text;
    } cases[] = {
        {MESSAGES, J(ASK ",'tools':["), "5", "]}", 1025,
         "tools: must be an array of at most 1024 tools."},
        {CHAT, J("{" HI ",'functions':["), "5", "]}", 1025,
         "functions must be an array of at most 1024 functions"},
        {RESPONSES, J("{'input':'a','tools':["), J("{'type':'function','name':'f'}"), "]}", 1025,
         "tools must have at most 1024 tools"},
        {"/completion", J("{'prompt':'a','logit_bias':[['"), "aaaaaaaa", "\",1]]}", 200,
         "logit_bias must be a list of at most 1024 tokens"},
    };
    struct world w;

    world_init(&w);
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

        cr_assert_eq(buf_add_str(&b, cases[i].before), 0);
        repeat(&b, cases[i].n, cases[i].item);
        cr_assert_eq(buf_add_str(&b, cases[i].after), 0);
        ask(&w, &(struct refusal){cases[i].path, b.data, 400, cases[i].text});
    }
    world_stop(&w);
}

Test(refusal_texts, of_bodies) {
    struct world w;

    world_init(&w);
    w.opts.max_body_bytes = 1000;
    world_start(&w);
    ask(&w,
        &(struct refusal){CHAT, "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
                          400, "The JSON body is nested deeper than 64 levels."});
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    cr_assert_eq(buf_printf(&b,
                            "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
                            "chunked\r\n\r\n3e9\r\n%01001d",
                            0),
                 0);
    world_expect(&w, b.data, 413, "The request body is larger than 1000 bytes.");
    world_stop(&w);
}

/* Sends a body with @n times @item in it. */
static void ask_long(struct world *w, const char *path, const char *before, size_t n,
                     const char *item, const char *after, const char *text) {
    CLEANUP(buf_deinit) struct buf b = {.max = 2 << 20};

    cr_assert_eq(buf_add_str(&b, before), 0);
    repeat(&b, n, item);
    cr_assert_eq(buf_add_str(&b, after), 0);
    ask(w, &(struct refusal){path, b.data, 400, text});
}

Test(refusal_texts, of_inputs_that_are_too_long) {
    struct world w;

    world_init(&w);
    world_start(&w);
    ask_long(&w, "/v1/embeddings", J("{'input':[[1],["), 512, "1", "]]}",
             "This model's maximum context length is 512 tokens, so an input has up to 511. "
             "However, input[1] has 512.");
    ask_long(&w, "/detokenize", J("{'tokens':["), 66561, "1", "]}",
             "tokens must have at most 66560 entries.");
    ask_long(&w, TEXT, J("{'logprobs':20,'prompt_logprobs':20,'prompt':["), 512, "1", "]}",
             "This model's maximum context length is 512 tokens. However, your prompt resulted in "
             "512 tokens. Please reduce the length of the prompt.");
    ask_long(&w, CHAT, J("{'messages':[{'role':'user','content':'"), 512, "a", "\"}]}",
             "tokens. Please reduce the length of the messages.");
    ask_long(&w, CHAT,
             J("{'tools':[{'type':'function','function':{'name':'f'}}],'messages':[{'role':'user','"
               "content':'"),
             512, "a", "\"}]}", "tokens. Please reduce the length of the messages or tools.");
    world_stop(&w);
    world_init(&w);
    w.model.ranks = true;
    w.model.pair.before = w.model.pair.behind = "";
    w.model.pair.between = "<|im_end|>";
    world_start(&w);
    ask_long(&w, "/v1/rerank", J("{'query':'q','documents':['a','"), 512, "a", "\"]}",
             "This model's maximum context length is 512 tokens. However, documents[1] has more "
             "than 511 together with its query and the model's special tokens.");
    world_stop(&w);
    world_init(&w);
    w.model.max_context = 1 << 18;
    world_start(&w);
    ask_long(&w, TEXT, J("{'logprobs':1,'prompt_logprobs':20,'prompt':["), 60000, "1", "]}",
             "The request asks for more than 1048576 log probabilities of its prompt: shorten the "
             "prompt or ask for fewer.");
    world_stop(&w);
}

/* Models that write no text or have no template for messages. */
Test(refusal_texts, of_models_of_other_kinds) {
    const struct refusal of_reranker[] = {
        {"/v1/rerank", J("{'query':5,'documents':['b']}"), 400,
         "query must be a text that is not empty, or an object with one as text."},
        {"/v1/rerank", J("{'query':'a','documents':['b','']}"), 400,
         "documents[1] must be a text that is not empty, or an object with one as text."},
        {"/v1/rerank", J("{'query':['a'],'documents':['b']}"), 400, "query must be one text."},
        {"/v1/score", J("{'text_1':['a','b'],'text_2':['a']}"), 400,
         "text_1 must be one text, or as many as text_2 has."},
    };
    struct world w;

    world_init(&w);
    w.model.ranks = true;
    w.model.pair.before = w.model.pair.behind = "";
    w.model.pair.between = "<|im_end|>";
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(of_reranker); i++)
        ask(&w, &of_reranker[i]);
    world_stop(&w);
    world_init(&w);
    template_free((struct template *)(uintptr_t)w.model.template);
    w.model.template = NULL;
    w.opts.digests = false;
    world_start(&w);
    ask(&w, &(struct refusal){CHAT, "{" HI "}", 400,
                              "This model has no chat template. Use /v1/completions."});
    ask(&w, &(struct refusal){TEXT, J("{'prompt':'a','logits_digest':true}"), 400,
                              "logits_digest is not available: the server runs without the option "
                              "logits-digest."});
    world_stop(&w);
}

/* Tokenising stops far beyond the context, here at 66,560 tokens. */
Test(refusal_texts, of_prompts_that_are_far_too_long) {
#define FAR                                                                                        \
    "This model's maximum context length is 512 tokens. However, your %2$s resulted in more than " \
    "%1$s tokens. Please reduce the length of the %2$s"
    static const char openai[] = FAR ".", tools[] = FAR " or tools.";
    const struct {
        const char *path, *before, *after, *text, *place, *n;
    } cases[] = {
        {"/v1/completions", J("{'prompt':'"), "\"}", openai, "prompt", "66560"},
        {"/v1/completions", J("{'prompt':['a','"), "\"]}", openai, "prompt[1]", "66560"},
        {CHAT, J("{'messages':[{'role':'user','content':'"), "\"}]}", openai, "messages", "66560"},
        {CHAT,
         J("{'tools':[{'type':'function','function':{'name':'f'}}],'messages':[{'role':'user','"
           "content':'"),
         "\"}]}", tools, "messages", "66560"},
        {RESPONSES, J("{'input':'"), "\"}", openai, "input", "66560"},
        {MESSAGES, J("{'model':'tiny','max_tokens':5,'messages':[{'role':'user','content':'"),
         "\"}]}", "prompt is too long: 66560 tokens > 511 maximum", "", ""},
        {"/api/generate", J("{'model':'tiny','raw':true,'prompt':'"), "\"}", openai, "prompt",
         "66560"},
        {"/completion", J("{'prompt':[1,'"), "\"]}",
         "request (%1$s tokens) exceeds the available context size (512 tokens), shorten it", "",
         "65536"},
    };
    CLEANUP(freep) char *text = malloc(70001);
    struct world w;

    memset(text, 'x', 70000);
    text[70000] = 0;
    world_init(&w);
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
        char want[200];

        cr_assert_eq(buf_printf(&b, "%s%s%s", cases[i].before, text, cases[i].after), 0);
        snprintf(want, sizeof(want), cases[i].text, cases[i].n, cases[i].place);
        ask(&w, &(struct refusal){cases[i].path, b.data, 400, want});
    }
    world_stop(&w);
}

#define GET(path, headers) "GET " path " HTTP/1.1\r\nHost: localhost\r\n" headers "\r\n"

Test(refusal_texts, of_heads) {
    struct world w;

    world_init(&w);
    world_start(&w);
    world_expect(&w, "\x16\x03\x01\x02", 400,
                 "This is not an HTTP request. Is it TLS, sent to an address without TLS?");
    world_expect(&w, GET("/health", "Origin: https://evil.example\r\n"), 403,
                 "Pages of this origin may not use the server (option cors-origins).");
    world_expect(&w, "GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421,
                 "The Host of the request is not a name of this server (option allowed-hosts).");
    world_expect(&w, GET("/v1/responses/resp_x", ""), 404, "Response with id 'resp_x' not found.");
    world_expect(&w, GET(CHAT, "Connection: upgrade\r\nUpgrade: websocket\r\n"), 426,
                 "This path does not speak WebSocket. Send a POST request.");
    world_expect(&w,
                 "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: br\r\n"
                 "Content-Length: 2\r\n\r\n{}",
                 415, "The request body has a Content-Encoding that is not supported here.");
    world_expect(&w,
                 "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"
                 "Content-Length: 2\r\n\r\n{}",
                 400, "The request body cannot be decoded as its Content-Encoding says.");
    world_expect(&w,
                 "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"
                 "Content-Length: 2\r\n\r\n\x1f\x8b",
                 400, "The compressed request body is cut off.");
    world_expect(&w,
                 GET("/v1/responses", "Connection: upgrade\r\nUpgrade: websocket\r\n"
                                      "Sec-WebSocket-Version: 13\r\n"
                                      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"),
                 426, "A WebSocket needs responses that are kept (stored-responses).");
    world_stop(&w);
    world_init(&w);
    w.opts.max_stored = 10;
    w.opts.stored_ttl_s = 60;
    w.opts.stored_bytes = 1 << 20;
    world_start(&w);
    world_expect(&w,
                 GET("/v1/responses", "Connection: upgrade\r\nUpgrade: websocket\r\n"
                                      "Sec-WebSocket-Version: 8\r\n"
                                      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"),
                 426, "The only supported Sec-WebSocket-Version is 13.");
    world_stop(&w);
}

Test(refusal_texts, of_keys) {
    static const char *const wrong[][2] = {
        {"al\tice\x01:ka\n", "line 1: NAME must be text in UTF-8 without control characters"},
        {"alice:ka until=2030-01-01\n", "and perhaps expires=YYYY-MM-DD behind it"},
    };
    char path[] = "/tmp/weft-test-keys-XXXXXX";
    struct world w;
    struct err err;

    FILE *f = fdopen(mkstemp(path), "w");
    cr_assert(f && fputs("old:ko expires=2001-01-01\nalice:ka\n", f) >= 0 && fclose(f) == 0);
    world_init(&w);
    w.opts.api_keys_file = path;
    world_start(&w);
    world_expect(&w, GET("/v1/models", ""), 401,
                 J("No API key was given. Send \\'Authorization: Bearer KEY\\'."));
    world_expect(
        &w, GET("/v1/models", "x-api-key: ko\r\n"), 401,
        "The API key expired at the end of 2001-01-01 (UTC): ask the operator for another.");
    world_expect(&w, GET("/v1/models", "x-api-key: ka\r\nx-api-key: ka\r\n"), 401,
                 "More than one API key was given.");
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        f = fopen(path, "w");
        cr_assert(f && fputs(wrong[i][0], f) >= 0 && fclose(f) == 0);
        err = (struct err){0};
        cr_expect_eq(api_reload_keys(w.api, &err), -EINVAL);
        cr_expect(strstr(err.message, wrong[i][1]), "%s", err.message);
    }
    world_stop(&w);
    unlink(path);
}

/* The worker ends a request on its own. */
Test(refusal_texts, of_requests_that_the_worker_ends) {
    static const struct {
        enum finish_reason why;
        int status;
        const char *text;
    } cases[] = {
        {FINISH_CANCELLED, 503, "The server has cancelled the request. Send it again."},
        {FINISH_DEADLINE, 504, "The request took longer than its time limit"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct world w;
        struct reply r;

        world_init(&w);
        world_start(&w);
        int fd = world_connect(&w);
        world_post(&w, fd, CHAT, "{" HI "}");
        world_turns(&w, 5);
        cr_assert_eq(w.port.n, 1);
        fake_accept(&w.port, 0);
        fake_finish(&w.port, 0, cases[i].why);
        world_receive(&w, fd, &r);
        cr_expect_eq(r.status, cases[i].status, "%d: %s", r.status, r.body.data);
        cr_expect(strstr(r.body.data, cases[i].text), "%s", r.body.data);
        reply_deinit(&r);
        world_drop(&w, fd);
        world_stop(&w);
    }
}

/* The operator, or the end of the service, ends a running request. */
Test(refusal_texts, of_requests_that_the_service_ends) {
    static const char *const texts[] = {"The generation was cancelled by the operator.",
                                        "The server is stopping. Send the request again."};

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        struct api_request_info info[1];
        struct world w;
        struct reply r;

        world_init(&w);
        world_start(&w);
        int fd = world_connect(&w);
        world_post(&w, fd, CHAT, "{" HI "}");
        world_turns(&w, 5);
        cr_assert_eq(w.port.n, 1);
        fake_accept(&w.port, 0);
        cr_assert_eq(api_requests(w.api, info, 1), 1);
        if (i == 0)
            cr_expect(api_cancel(w.api, info[0].id));
        else
            api_close(w.api);
        world_receive(&w, fd, &r);
        cr_expect_eq(r.status, 503, "%d: %s", r.status, r.body.data);
        cr_expect(strstr(r.body.data, texts[i]), "%s", r.body.data);
        reply_deinit(&r);
        world_drop(&w, fd);
        world_stop(&w);
    }
}

/* Sends @body and copies the id in the answer that begins with @prefix. */
static void id_of(struct world *w, const char *path, const char *body, const char *prefix,
                  char id[80]) {
    struct reply r;

    world_ask(w, path, body, &r);
    const char *at = r.body.data ? strstr(r.body.data, prefix) : NULL;
    cr_assert(r.status == 200 && at, "%d: %s", r.status, r.body.data);
    snprintf(id, 80, "%.*s", (int)strcspn(at, "\""), at);
    reply_deinit(&r);
}

Test(refusal_texts, of_what_is_stored) {
    char id[80], path[160], request[300];
    struct world w;

    world_init(&w);
    w.port.script = "ok";
    w.opts.max_stored = 10;
    w.opts.stored_ttl_s = 60;
    w.opts.stored_bytes = 1 << 20;
    world_start(&w);
    id_of(&w, "/v1/conversations", "{}", "conv_", id);
    snprintf(path, sizeof(path), "/v1/conversations/%s/items", id);
    ask(&w, &(struct refusal){path, J("{'items':[]}"), 400, "items must not be empty."});
    ask(&w, &(struct refusal){path, "{}", 400, "items must be an array."});
    ask(&w, &(struct refusal){RESPONSES, J("{'input':'a','conversation':'conv_x'}"), 404,
                              "Conversation with id 'conv_x' not found."});
    id_of(&w, RESPONSES, J("{'input':'a'}"), "resp_", id);
    snprintf(request, sizeof(request), GET("/v1/responses/%s?stream=true&starting_after=-1", ""),
             id);
    world_expect(&w, request, 400, "starting_after must be the sequence_number of an event.");
    snprintf(request, sizeof(request), GET("/v1/responses/%s?stream=true", ""), id);
    world_expect(&w, request, 400,
                 "stream: only the events of a response with background are kept");
    snprintf(path, sizeof(path), "/v1/responses/%s/cancel", id);
    ask(&w, &(struct refusal){path, "{}", 400, "has already ended."});
    ask(&w,
        &(struct refusal){
            RESPONSES,
            J("{'input':'a','context_management':[{'type':'compaction','compact_threshold':1}]}"),
            400, "the compact_threshold is 1. Make it shorter with"});
    world_stop(&w);
}
