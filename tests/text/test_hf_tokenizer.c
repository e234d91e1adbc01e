/*
 * tokenizer.json: the small tokenizers of tests/text/hf give the ids that Hugging Face's library
 * gave (make.py there), whatever is not supported is refused by its name, and the files beside it
 * name special tokens and templates.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/gguf_private.h"
#include "base/json_read.h"
#include "tests/text/expect.h"
#include "tests/text/hf_folder.h"

#define BPE_HEAD                                                                                   \
    R"("model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2,")"                                       \
    "\xE2\x96\x81"                                                                                 \
    R"(":3},)"
#define BPE BPE_HEAD R"("merges":["a b"]})"
#define MARKED                                                                                     \
    R"("normalizer":{"type":"Replace",)"                                                           \
    R"("pattern":{"String":" )"                                                                    \
    R"("},"content":")"                                                                            \
    "\xE2\x96\x81"                                                                                 \
    R"("})"

/* Contents of a file. */
static struct gguf_str text(const char *s) {
    return (struct gguf_str){s, strlen(s)};
}

/* Text of a file of tests/text/hf; to be freed. */
static char *read_test(const char *name, size_t *len) {
    char path[4096];

    snprintf(path, sizeof(path), "%s/tests/text/hf/%s.json", getenv("WEFT_SOURCE"), name);
    return expect_read(path, len);
}

static struct tokenizer *load(const struct hf_tokenizer_files *in) {
    struct tokenizer *t = NULL;
    struct err err = {0};

    cr_assert_eq(hf_folder_load(&t, in, &err), 0, "%s", err.message);
    return t;
}

static struct tokenizer *load_text(const char *json) {
    return load(&(struct hf_tokenizer_files){.tokenizer = text(json)});
}

/* The refusal of @in, which must be one. */
static const char *refusal(const struct hf_tokenizer_files *in) {
    static struct err err;
    struct tokenizer *t = NULL;

    err = (struct err){0};
    cr_assert_lt(hf_folder_load(&t, in, &err), 0);
    return err.message;
}

static void check_golden(const char *name, yyjson_val *cases) {
    size_t len;
    CLEANUP(freep) char *json = read_test(name, &len);
    CLEANUP(tokenizer_freep)
    struct tokenizer *t = load(&(struct hf_tokenizer_files){.tokenizer = {json, len}});

    cr_assert_geq(yyjson_arr_size(cases), 50, "%s", name);
    JSON_EACH(item, cases) {
        yyjson_val *s = yyjson_arr_get_first(item);
        struct tokens got =
            expect_encode(t, json_text(s), json_len(s), TOKENIZE_SPECIAL | TOKENIZE_BOS);
        size_t n = 0;

        JSON_EACH(id, yyjson_arr_get_last(item)) {
            cr_assert(n < got.n && got.id[n] == yyjson_get_int(id), "%s: id %zu of %s", name, n,
                      json_text(s));
            n++;
        }
        cr_assert_eq(n, got.n, "%s: %zu ids of %s", name, got.n, json_text(s));
        tokens_deinit(&got);
    }
}

Test(hf_tokenizer, small_vocabularies_have_the_ids_of_the_library) {
    static const char *const names[] = {"bytes", "chars", "pieces", "unigram"};
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;
    size_t len;
    CLEANUP(freep) char *json = read_test("golden", &len);

    cr_assert_eq(json_parse(&doc, json, len, 0), 0);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++)
        check_golden(names[i], yyjson_obj_get(yyjson_doc_get_root(doc), names[i]));
}

Test(hf_tokenizer, a_user_writes_no_added_token) {
    CLEANUP(tokenizer_freep)
    struct tokenizer *t = load_text("{" BPE R"(,"added_tokens":[{"id":4,)"
                                    R"("content":"ab)"
                                    "\xE2\x96\x81"
                                    R"(a","special":true}]})");
    struct tokens got = {0};
    struct text_range user = {0, 6};

    cr_assert_eq(tokenizer_encode(t,
                                  "ab\xE2\x96\x81"
                                  "a",
                                  6, TOKENIZE_SPECIAL, NULL, 0, &got),
                 0);
    expect_ids(&got, (int32_t[]){4}, 1, "trusted");
    got.n = 0;
    cr_assert_eq(tokenizer_encode(t,
                                  "ab\xE2\x96\x81"
                                  "a",
                                  6, TOKENIZE_SPECIAL, &user, 1, &got),
                 0);
    expect_ids(&got, (int32_t[]){2, 3, 0}, 3, "of a user");
    tokens_deinit(&got);
}

Test(hf_tokenizer, merges_are_strings_or_pairs) {
    static const char *const merges[] = {R"("merges":["a b"])", R"("merges":[["a","b"]])"};

    for (size_t i = 0; i < ARRAY_SIZE(merges); i++) {
        char json[512];

        snprintf(json, sizeof(json), "{" BPE_HEAD "%s}," MARKED "}", merges[i]);
        CLEANUP(tokenizer_freep) struct tokenizer *t = load_text(json);
        struct tokens got = expect_encode(t, "ab a", 4, 0);

        expect_ids(&got, (int32_t[]){2, 3, 0}, 3, merges[i]);
        tokens_deinit(&got);
    }
}

/* Texts of a token may have 1,024 bytes, and so may both parts of a merge. */
Test(hf_tokenizer, parts_of_merges_have_a_limit) {
    static const struct {
        int left, right;
        const char *message;
    } cases[] = {{1024, 1, NULL},
                 {1, 1024, NULL},
                 {1025, 1, "model.merges[0] has a part of more than 1024 bytes"},
                 {1, 1025, "model.merges[0] has a part of more than 1024 bytes"}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char json[4096];

        snprintf(json, sizeof(json),
                 "{" BPE_HEAD R"("merges":[["%0*d",)"
                 R"("%0*d"]]}})",
                 cases[i].left, 0, cases[i].right, 0);
        struct hf_tokenizer_files in = {.tokenizer = text(json)};

        if (cases[i].message)
            cr_assert_not_null(strstr(refusal(&in), cases[i].message), "%s", refusal(&in));
        else
            tokenizer_free(load(&in));
    }
}

/* Early files of the library name no type. */
Test(hf_tokenizer, a_model_with_merges_is_bpe) {
    CLEANUP(tokenizer_freep)
    struct tokenizer *t = load_text(R"({"model":{"vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]}})");
    struct tokens got = expect_encode(t, "aba", 3, 0);

    expect_ids(&got, (int32_t[]){2, 0}, 2, "aba");
    tokens_deinit(&got);
}

static const struct {
    const char *json, *message;
} refused[] = {
    {"[]", "tokenizer.json is not a JSON object"},
    {"{", "tokenizer.json is not a JSON object"},
    {"{}", "model.type is missing; supported are BPE, Unigram and WordPiece"},
    {R"({"model":{"type":"WordLevel"}})", "model.type is WordLevel; supported"},
    {R"({"model":{"type":"WordLevel","merges":["a b"]}})", "model.type is WordLevel; supported"},
    {R"({"model":{"type":7}})", "model.type is uint; supported"},
    {R"({"model":{"type":"BPE","vocab":[]}})", "model.vocab is not an object"},
    {R"({"model":{"type":"BPE","vocab":{}}})", "model.vocab is empty"},
    {R"({"model":{"type":"BPE","vocab":{"a\"\n":-1}}})",
     R"(model.vocab: the id of "a\"\n" is not a number)"},
    {R"({"model":{"type":"BPE",)"
     R"("vocab":{"a":0,"b":0}}})",
     "model.vocab gives the id 0 to two texts"},
    {R"({"model":{"type":"BPE",)"
     R"("vocab":{"a":4000000000}}})",
     "id 4000000000 is larger than 2097151"},
    {"{" BPE_HEAD R"("merges":{}}})", "model.merges is not an array"},
    {"{" BPE_HEAD R"("merges":["ab"]}})", "model.merges[0] has not one space"},
    {"{" BPE_HEAD R"("merges":["a b",["a"]]}})", "model.merges[1] is neither a string nor a pair"},
    {"{" BPE_HEAD R"("merges":[["a b","c"]]}})", "model.merges[0] has a space inside"},
    {"{" BPE_HEAD R"("merges":[["","b"]]}})", "model.merges[0] is neither a string nor a pair"},
    {"{" BPE_HEAD R"("merges":[["a",)"
     R"("b","c"]]}})",
     "model.merges[0] is neither a string nor a pair"},
    {"{" BPE_HEAD R"("merges":[["a",1]]}})", "model.merges[0] is neither a string nor a pair"},
    {"{" BPE_HEAD R"("merges":[[1,"b"]]}})", "model.merges[0] is neither a string nor a pair"},
    {"{" BPE_HEAD R"("dropout":0.1}})", "model.dropout is not supported"},
    {"{" BPE_HEAD R"("end_of_word_suffix":"</w>"}})", "model.end_of_word_suffix is not supported"},
    {"{" BPE_HEAD R"("byte_fallback":1}})", "model.byte_fallback is not a bool"},
    {"{" BPE_HEAD R"("unk_token":"?","merges":[]}})", "model.unk_token is no token"},
    {"{" BPE R"(,"added_tokens":{}})", "added_tokens is not an array"},
    {"{" BPE R"(,"added_tokens":[{"id":9}]})", "added_tokens[0] has no id or no content"},
    {"{" BPE R"(,"added_tokens":[{"id":0,"content":"x"}]})",
     "added_tokens[0] has the id 0 of another token"},
    {"{" BPE R"(,"added_tokens":[{"id":9,"content":"x","lstrip":"yes"}]})",
     "added_tokens[0].lstrip is not a bool"},
    {"{" BPE R"(,"added_tokens":[{"id":2,"content":"ab","single_word":true}]})",
     "added_tokens[0]: single_word is not supported for white space and for tokens of"},
    {"{" BPE R"(,"added_tokens":[{"id":9,"content":" ","single_word":true}]})",
     "added_tokens[0]: single_word is not supported"},
    {"{" BPE R"(,"normalizer":{"type":"Nmt"}})", "normalizer.type Nmt is not supported"},
    {"{" BPE R"(,"normalizer":{"type":"Replace","pattern":{"Regex":"a+"},"content":""}})",
     "normalizer: Replace of the regular expression a+ is not supported"},
    {"{" BPE R"(,"normalizer":{"type":"BertNormalizer"}})",
     "BertNormalizer is supported for WordPiece"},
    {"{" BPE R"(,"normalizer":{"type":"Precompiled","precompiled_charsmap":"a*=="}})",
     "normalizer.precompiled_charsmap is not base64"},
    {"{" BPE R"(,"pre_tokenizer":{"type":"UnicodeScripts"}})",
     "pre_tokenizer.type UnicodeScripts is not supported"},
    {"{" BPE
     ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x(?>y)\"},\"behavior\":"
     R"("Isolated"}})",
     "pre_tokenizer.pattern: a group of an unknown kind at byte 2"},
    {"{" BPE R"(,"pre_tokenizer":{"type":"Split","pattern":{},"behavior":"Isolated"}})",
     "pre_tokenizer.pattern is neither a String nor a Regex"},
    {"{" BPE R"(,"pre_tokenizer":{"type":"Split","pattern":{"Regex":"\\p{N}"},)"
     R"("behavior":"Merged"}})",
     "pre_tokenizer.behavior Merged is not supported"},
    {"{" BPE R"(,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},)"
     R"({"type":"Digits"}]}})",
     "pre_tokenizer: a cut behind ByteLevel is not supported"},
    {"{" BPE R"(,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Digits"},)"
     R"({"type":"Digits"},{"type":"Digits"},{"type":"Digits"},{"type":"Digits"},{"type":"Digits"},)"
     R"({"type":"Digits"}]}})",
     "pre_tokenizer has more than 6 cuts"},
    {"{" BPE R"(,"pre_tokenizer":{"type":"CharDelimiterSplit","delimiter":""}})",
     "pre_tokenizer.delimiter is not a character"},
    {"{" BPE R"(,"pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},)"
     R"({"type":"Metaspace","replacement":")"
     "\xE2\x96\x81"
     R"(","prepend_scheme":"first"}]}})",
     "pre_tokenizer: Metaspace behind WhitespaceSplit must have the scheme never, or always"},
    {"{" BPE R"(,"normalizer":{"type":"Replace","pattern":{"String":"ab"},"content":"b"},)"
     R"("pre_tokenizer":{"type":"Metaspace",)"
     R"("replacement":")"
     "\xE2\x96\x81"
     R"(","prepend_scheme":"first"}})",
     "pre_tokenizer: Metaspace with the scheme first is not supported behind a normalizer"},
    {"{" BPE R"(,"normalizer":{"type":"Strip"},"pre_tokenizer":{"type":"Metaspace","replacement":)"
     R"(")"
     "\xE2\x96\x81"
     R"(","prepend_scheme":"first"}})",
     "pre_tokenizer: Metaspace with the scheme first is not supported behind a normalizer"},
    {"{" BPE R"(,"decoder":{"type":"CTC"}})", "decoder.type CTC is not supported"},
    {"{" BPE R"(,"decoder":{"type":"ByteLevel"}})", "decoder.type ByteLevel is not supported"},
    {"{" BPE R"(,"decoder":{"type":"Replace","pattern":{"String":"a"},"content":" "}})",
     "decoder.type Replace is not supported for this vocabulary"},
    {"{" BPE R"(,"decoder":{"type":"Strip","content":" ","start":1,"stop":0}})",
     "decoder: Strip is supported for one space at the begin, behind Fuse"},
    {"{" BPE R"(,"decoder":{"type":"Sequence","decoders":[{"type":"Fuse"},)"
     R"({"type":"ByteFallback"}]}})",
     "decoder.type ByteFallback is not supported for this vocabulary"},
    {"{" BPE ","
     R"("post_processor":{"type":"Other"}})",
     "post_processor.type Other is not supported"},
    {"{" BPE R"(,"post_processor":{"type":"BertProcessing","cls":["a",77],"sep":["b",1]}})",
     "post_processor: the id of a special token is not below 4"},
    {R"({"model":{"type":"Unigram","vocab":[["a"]]}})", "model.vocab[0] is not a text and a score"},
    {R"({"model":{"type":"Unigram","unk_id":3,"vocab":[["a",0]]}})",
     "model.unk_id is not the number of an entry"},
    {R"({"model":{"type":"WordPiece","unk_token":"a","vocab":{"a":0}}})",
     "WordPiece is supported with BertNormalizer and BertPreTokenizer only"},
};

Test(hf_tokenizer, refusals_name_file_and_key) {
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        const char *message =
            refusal(&(struct hf_tokenizer_files){.tokenizer = text(refused[i].json)});

        cr_assert_not_null(strstr(message, "tokenizer.json"), "%s", message);
        cr_assert_not_null(strstr(message, refused[i].message), "%s: %s", refused[i].json, message);
    }
    cr_assert_str_eq(refusal(&(struct hf_tokenizer_files){0}),
                     "tokenizer.json is missing, and so is tokenizer.model");
}

Test(hf_tokenizer, refusals_of_the_other_files) {
    struct hf_tokenizer_files in = {.tokenizer = text("{" BPE "}")};

    in.generation_config = text(R"({"eos_token_id":[0,99]})");
    cr_assert_not_null(strstr(refusal(&in), "generation_config.json: eos_token_id has an entry"));
    in.generation_config = text("[");
    cr_assert_str_eq(refusal(&in),
                     "generation_config.json is not a JSON object (line 1: unexpected "
                     "end of data)");
    in.generation_config = (struct gguf_str){0};
    in.config = text(R"({"eos_token_id":0,"text_config":{"eos_token_id":-1}})");
    cr_assert_not_null(strstr(refusal(&in), "config.json: eos_token_id is no id"));
    in.config = (struct gguf_str){0};
    in.tokenizer_config = text(R"({"add_bos_token":1})");
    cr_assert_str_eq(refusal(&in), "tokenizer_config.json: add_bos_token is not a bool");
    in.tokenizer_config = text(R"({"chat_template":[{"name":"a b","template":""}]})");
    cr_assert_not_null(strstr(refusal(&in), "chat_template[0] has no name and template"));
}

Test(hf_tokenizer, special_tokens_of_the_files_beside_it) {
    struct hf_tokenizer_files in = {
        .tokenizer = text("{" BPE R"(,"added_tokens":[{"id":4,"content":"<s>","special":true},)"
                          R"({"id":5,"content":"<e>","special":true},)"
                          R"({"id":6,"content":"<t>","special":true}]})"),
        .tokenizer_config = text(R"({"bos_token":{"content":"<s>"},"add_bos_token":true})"),
        .special_tokens_map = text(R"({"bos_token":"<t>","eos_token":"<e>"})"),
        .generation_config = text(R"({"eos_token_id":[6]})"),
        .config = text(R"({"eos_token_id":3,"text_config":{"eos_token_id":[2]},"limit":Infinity})"),
    };
    CLEANUP(tokenizer_freep) struct tokenizer *t = load(&in);
    struct tokens got = expect_encode(t, "a", 1, TOKENIZE_BOS);

    expect_ids(&got, (int32_t[]){4, 0}, 2, "a");
    cr_assert_eq(tokenizer_eos(t), 5);
    cr_assert(tokenizer_is_end(t, 5) && tokenizer_is_end(t, 6) && tokenizer_is_end(t, 3));
    cr_assert(tokenizer_is_end(t, 2) && !tokenizer_is_end(t, 4));
    tokens_deinit(&got);
}

Test(hf_tokenizer, ends_of_all_files_have_one_limit) {
    struct hf_tokenizer_files in = {.tokenizer = text("{" BPE "}")};
    char many[256] = R"({"eos_token_id":[0)";

    for (int i = 1; i < 64; i++)
        strcat(many, ",0");
    strcat(many, "]}");
    in.generation_config = text(many);
    CLEANUP(tokenizer_freep) struct tokenizer *t = load(&in);
    cr_assert(tokenizer_is_end(t, 0));
    in.config = text(R"({"text_config":{"eos_token_id":1}})");
    cr_assert_not_null(strstr(refusal(&in), "config.json: eos_token_id has too many entries"));
}

/* Each kind of vocabulary has the ends that the files list. */
Test(hf_tokenizer, ends_of_every_kind_of_vocabulary) {
    static const char *const kinds[] = {
        BPE_HEAD R"("merges":[]})",
        R"("model":{"type":"Unigram","unk_id":0,"vocab":[["a",0],["b",-1],["ab",-1]]})",
        R"("model":{"type":"WordPiece","unk_token":"a","vocab":{"a":0,"b":1,"ab":2}},)"
        R"("normalizer":{"type":"BertNormalizer"},"pre_tokenizer":{"type":"BertPreTokenizer"},)"
        R"("post_processor":{"type":"BertProcessing","cls":["a",0],"sep":["b",1]})",
    };

    for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
        char json[512];

        snprintf(json, sizeof(json), "{%s}", kinds[i]);
        struct hf_tokenizer_files in = {
            .tokenizer = text(json),
            .generation_config = text(R"({"eos_token_id":[2]})"),
        };
        CLEANUP(tokenizer_freep) struct tokenizer *t = load(&in);

        cr_assert(tokenizer_is_end(t, 2), "%s", kinds[i]);
    }
}

/* Cuts by expressions that no other tokenizer of the tests has. */
Test(hf_tokenizer, cuts_by_any_expression) {
    static const struct {
        const char *cut, *s;
        int32_t want[8];
        size_t n;
    } cases[] = {
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"x|a+(?!b)\"},\"behavior\":\"Isolated\"}",
         "abaab",
         {2, 0, 2},
         3},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a(?=b)\"},\"behavior\":\"Isolated\"}",
         "abab",
         {0, 1, 0, 1},
         4},
        {R"({"type":"Split","pattern":{"Regex":"ab"},"behavior":"Removed"})", "aabb", {0, 1}, 2},
        {R"({"type":"Split","pattern":{"Regex":"ab"},"behavior":"Removed","invert":true})",
         "aabb",
         {2},
         1},
        {R"({"type":"Split","pattern":{"String":"a"},"behavior":"Isolated"})", "ab", {0, 1}, 2},
        {R"({"type":"Split","pattern":{"Regex":"[ab]"},)"
         R"("behavior":"Contiguous"})",
         "abab",
         {2, 2},
         2},
        {R"({"type":"Split","pattern":{"String":"b"},"behavior":"MergedWithPrevious"})",
         "abb",
         {2, 1},
         2},
        {R"({"type":"Split","pattern":{"String":"a"},)"
         R"("behavior":"MergedWithNext"})",
         "aab",
         {0, 2},
         2},
        {R"({"type":"Split","pattern":{"String":"b"},"behavior":"MergedWithNext","invert":true})",
         "abab",
         {2, 2},
         2},
        {R"({"type":"WhitespaceSplit"})", " ab a\n", {2, 0}, 2},
        {R"({"type":"CharDelimiterSplit","delimiter":"b"})", "abab", {0, 0}, 2},
        {R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})", "abab", {2, 2}, 2},
        {R"({"type":"Sequence","pretokenizers":[{"type":"Metaspace",)"
         R"("replacement":")"
         "\xE2\x96\x81"
         R"(",)"
         R"("prepend_scheme":"never"},{"type":"Split","pattern":{"Regex":"b)"
         "\xE2\x96\x81"
         R"(a"},"behavior":"Isolated"}]})",
         "ab ab",
         {2, 3, 2},
         3},
        {R"({"type":"Sequence","pretokenizers":[{"type":"Split",)"
         R"("pattern":{"Regex":".b"},"behavior":)"
         R"("Isolated"},{"type":"Split","pattern":{"Regex":"^a"},"behavior":"Isolated"}]})",
         "abab",
         {0, 1, 0, 1},
         4},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char json[1024];

        snprintf(json, sizeof(json), "{" BPE R"(,"pre_tokenizer":%s})", cases[i].cut);
        CLEANUP(tokenizer_freep) struct tokenizer *t = load_text(json);
        struct tokens got = expect_encode(t, cases[i].s, strlen(cases[i].s), 0);

        expect_ids(&got, cases[i].want, cases[i].n, cases[i].cut);
        tokens_deinit(&got);
    }
}

/* Of an added token that must stand alone, and of one that absorbs white space, the library tries
 * no other in its place. */
#define LOWER                                                                                      \
    R"("normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"},)"                            \
    R"({"type":"Lowercase"},{"type":"Strip"}]},)"

/* A token that is normalized is found in normalised text, behind those that are not, and never in a
 * user's text; nor does that change one beside it. */
Test(hf_tokenizer, normalized_tokens_are_found_in_normalised_text) {
    static const struct {
        const char *s;
        struct text_range user;
        int32_t want[8];
        size_t n;
    } cases[] = {
        {"A<q>aB<Q>", {0}, {0, 4, 2, 4}, 4},
        {"<q>Aab", {0}, {5, 2}, 2},
        {"<q>aab", {0}, {4, 0, 2}, 3},
        {"a<Q>b", {1, 4}, {0, 1}, 2},
        {"a<Q>b", {1, 2}, {0, 1}, 2},
        {"a<Q>b", {0, 1}, {0, 4, 1}, 3},
        {" a <Q>b", {4, 6}, {0, 1}, 2},
        {"ab<Q>\xCC\xB8"
         "b",
         {5, 8},
         {2, 4, 1},
         3},
        {"ab<Q>\xCC\xB8"
         "b",
         {0},
         {2, 1},
         2},
    };
    CLEANUP(tokenizer_freep)
    struct tokenizer *t =
        load_text("{" LOWER BPE R"(,"added_tokens":[{"id":4,"content":"<Q>","normalized":true},)"
                  R"({"id":5,"content":"q>A","normalized":false}]})");

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct tokens got = {0};

        cr_assert_eq(tokenizer_encode(t, cases[i].s, strlen(cases[i].s), TOKENIZE_SPECIAL,
                                      &cases[i].user, cases[i].user.end > 0, &got),
                     0);
        expect_ids(&got, cases[i].want, cases[i].n, cases[i].s);
        tokens_deinit(&got);
    }
}

#define PIECES                                                                                     \
    R"("model":{"type":"WordPiece","unk_token":"?",)"                                              \
    R"("vocab":{"?":0,"a":1,"b":2,"##b":3,"[C]":4,"[S]":5}},"normalizer":)"                        \
    R"({"type":"BertNormalizer"},"pre_tokenizer":{"type":"BertPreTokenizer"},"post_processor":)"   \
    R"({"type":"BertProcessing","cls":["[C]",4],"sep":["[S]",5]})"

/* So it is in WordPiece, whose normalizer puts spaces around CJK characters. */
Test(hf_tokenizer, normalized_tokens_of_wordpiece) {
    static const struct {
        const char *s;
        struct text_range user;
        int32_t want[8];
        size_t n;
    } cases[] = {
        {"A<q>B<Q>", {0}, {1, 6, 2, 6}, 4},
        {"aXb axb", {0}, {1, 7, 2, 0}, 4},
        {"ab<Q>\xCC\xB8"
         "b",
         {0},
         {1, 3, 6, 2},
         4},
        {"a<Q>b", {1, 4}, {1, 0, 0, 0, 2}, 5},
        {"a<Q>b", {0, 1}, {1, 6, 2}, 3},
        {"a\xE4\xB8\xAD\xE4\xB8\xAD", {0}, {1, 8, 8}, 3},
        {"", {0}, {0}, 0},
    };
    CLEANUP(tokenizer_freep)
    struct tokenizer *t =
        load_text("{" PIECES R"(,"added_tokens":[{"id":6,"content":"<Q>","normalized":true},)"
                  R"({"id":7,"content":"X","normalized":false},{"id":8,"content":")"
                  "\xE4\xB8\xAD"
                  R"("}]})");

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct tokens got = {0};

        cr_assert_eq(tokenizer_encode(t, cases[i].s, strlen(cases[i].s), TOKENIZE_SPECIAL,
                                      &cases[i].user, cases[i].user.end > 0, &got),
                     0);
        expect_ids(&got, cases[i].want, cases[i].n, cases[i].s);
        tokens_deinit(&got);
    }
}

Test(hf_tokenizer, normalized_tokens_have_different_texts) {
    static const char *const cases[][2] = {
        {R"({"id":4,"content":"<Q>"},{"id":5,"content":"<q>"})", "two of added_tokens have one"},
        {R"({"id":4,"content":"<Q>"},{"id":5,"content":"  "})", "added token 5 is empty"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct tokenizer *t = NULL;
        struct err err = {0};
        char json[1024];

        snprintf(json, sizeof(json), "{" LOWER BPE R"(,"added_tokens":[%s]})", cases[i][0]);
        struct hf_tokenizer_files in = {.tokenizer = text(json)};
        cr_assert_eq(hf_folder_load(&t, &in, &err), -EINVAL);
        cr_assert_not_null(strstr(err.message, cases[i][1]), "%s", err.message);
    }
}

Test(hf_tokenizer, flags_of_added_tokens) {
    static const struct {
        const char *tokens, *s;
        int32_t want[8];
        size_t n;
    } cases[] = {
        {R"({"id":4,"content":"<x>","single_word":true},{"id":5,"content":"x>"})",
         "a<x>,<x>",
         {0, 4},
         2},
        {R"({"id":4,"content":"<x>","single_word":true})", "\xE2\x80\x8D<x>", {0}, 0},
        {R"({"id":4,"content":"<x>","rstrip":true},{"id":5,"content":"\n"})",
         "<x> \n\nab",
         {4, 5, 5, 2},
         4},
        {R"({"id":4,"content":"<x>","rstrip":true},{"id":5,"content":"\n\n","lstrip":true})",
         "<x>\n\nab",
         {4, 2},
         2},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char json[1024];

        snprintf(json, sizeof(json), "{" BPE R"(,"added_tokens":[%s]})", cases[i].tokens);
        CLEANUP(tokenizer_freep) struct tokenizer *t = load_text(json);
        struct tokens got = expect_encode(t, cases[i].s, strlen(cases[i].s), TOKENIZE_SPECIAL);

        expect_ids(&got, cases[i].want, cases[i].n, cases[i].s);
        tokens_deinit(&got);
    }
}

/* The library looks at the id of an added token only if model.vocab lacks its text. */
Test(hf_tokenizer, an_added_token_has_the_id_of_the_vocabulary) {
    CLEANUP(tokenizer_freep)
    struct tokenizer *t = load_text("{" BPE R"(,"added_tokens":[{"id":0,"content":"ab"},)"
                                    R"({"id":9,"content":"b","special":true}]})");
    struct tokens got = expect_encode(t, "aab", 3, TOKENIZE_SPECIAL);

    expect_ids(&got, (int32_t[]){0, 2}, 2, "aab");
    tokens_deinit(&got);
    cr_expect_eq(tokenizer_n_vocab(t), 4);
    cr_expect(tokenizer_is_special(t, 1));
}

/* </s> is ordinary text in files that do not add it. */
Test(hf_tokenizer, a_token_is_no_end_because_of_its_text) {
    CLEANUP(tokenizer_freep)
    struct tokenizer *t = load_text(R"({"model":{"type":"BPE","vocab":{"<":0,"/)"
                                    R"(":1,"s":2,">":3,"</":4,"s>":5,"</s>":6},)"
                                    R"("merges":["< /","s >","</ s>"]}})");
    struct tokens got = expect_encode(t, "</s>", 4, 0);

    expect_ids(&got, (int32_t[]){6}, 1, "</s>");
    cr_assert_not(tokenizer_is_end(t, 6));
    tokens_deinit(&got);
}

Test(hf_tokenizer, the_vocabulary_has_the_size_of_the_model) {
    struct hf_tokenizer_files in = {
        .tokenizer = text("{" BPE R"(,"added_tokens":[{"id":9,"content":"<x>","special":true}]})"),
    };
    static const uint32_t sizes[][2] = {{0, 10}, {9, 9}, {20, 20}, {5, 5}};

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        in.n_vocab = sizes[i][0];
        CLEANUP(tokenizer_freep) struct tokenizer *t = load(&in);

        cr_assert_eq(tokenizer_n_vocab(t), sizes[i][1]);
        cr_assert_eq(tokenizer_find(t, "<x>", 3), sizes[i][1] > 9 ? 9 : -1);
        cr_assert_eq(tokenizer_text(t, 7).len, 0);
    }
}

Test(hf_tokenizer, chat_templates) {
    CLEANUP(gguf_keys_deinit) struct gguf_keys keys = {0};
    struct hf_tokenizer_files in = {
        .tokenizer = text("{" BPE "}"),
        .tokenizer_config = text(R"({"chat_template":[{"name":"default","template":"D"},)"
                                 R"({"name":"tool_use","template":"T"}]})"),
        .chat_template = text("F"),
    };
    struct gguf_meta meta = {0};
    struct err err = {0};

    gguf_keys_init(&keys);
    cr_assert_eq(hf_tokenizer_keys(&in, &keys, &err), 0, "%s", err.message);
    struct gguf_shard file = {
        .map = (uint8_t *)keys.kv.data, .size = keys.kv.len, .copied = keys.kv.len};
    struct gguf_cursor c = {.file = &file, .end = keys.kv.len, .n_shards = 1, .err = &err};

    cr_assert_eq(gguf_meta_parse(&meta, &c, keys.n), 0, "%s", err.message);
    cr_assert_eq(c.at, c.end);
    cr_assert_eq(*gguf_meta_find(&meta, "tokenizer.chat_template")->str.data, 'F');
    cr_assert_eq(*gguf_meta_find(&meta, "tokenizer.chat_template.tool_use")->str.data, 'T');
    gguf_meta_deinit(&meta);
}
