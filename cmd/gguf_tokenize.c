/*
 * weft-gguf tokenize, detokenize - convert between text and token ids with a model file's
 * vocabulary.
 */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "base/buf.h"
#include "base/json_read.h"
#include "base/try.h"
#include "checkpoint/checkpoint.h"
#include "cmd/cli.h"
#include "cmd/gguf_cmd.h"
#include "text/tokenizer.h"

#define INPUT_MAX ((size_t)1 << 30)

static const char tokenize_usage[] = "usage: weft-gguf tokenize MODEL [--special] [--bos] < TEXT\n"
                                     "Prints the token ids of the text as a JSON array.\n"
                                     "  --special   recognise special tokens in the text\n"
                                     "  --bos       add BOS and EOS as the vocabulary requires\n";

static const char detokenize_usage[] = "usage: weft-gguf detokenize MODEL [--special] < IDS.json\n"
                                       "Prints the text of a JSON array of token ids.\n"
                                       "  --special   print the text of special tokens, too\n";

/* Opens the file and its tokenizer. Returns CLI_OK or an exit code. */
static int open_tokenizer(const char *path, struct gguf **g, struct tokenizer **t) {
    struct err err = {0};
    int r = checkpoint_open_model(g, path, &err);

    if (r < 0)
        return cli_fail_err(path, &err, r);
    r = tokenizer_new(t, *g, &err);
    if (r < 0)
        return cli_fail_err(path, &err, r);
    return CLI_OK;
}

static void print_ids(const struct tokens *ids) {
    putchar('[');
    for (size_t i = 0; i < ids->n; i++)
        printf("%s%" PRId32, i ? ", " : "", ids->id[i]);
    puts("]");
}

int gguf_cmd_tokenize(int argc, char **argv) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    CLEANUP(freep) char *text = NULL;
    CLEANUP(tokens_deinit) struct tokens ids = {0};
    bool special = false, bos = false;
    const struct cli_option options[] = {
        {"special", CLI_TRUE, &special, 0, 0},
        {"bos", CLI_TRUE, &bos, 0, 0},
    };
    size_t len;
    int n_args;
    int code = cli_parse(argc, argv, options, ARRAY_SIZE(options), tokenize_usage, &n_args);

    if (code >= 0)
        return code;
    if (n_args != 1)
        return cli_usage("tokenize needs one MODEL, and the text on stdin");
    code = open_tokenizer(argv[1], &g, &t);
    if (code != CLI_OK)
        return code;
    int r = cli_read_file("-", INPUT_MAX, &text, &len);
    if (r < 0)
        return cli_fail("stdin: %s", strerror(-r));
    unsigned flags = (special ? TOKENIZE_SPECIAL : 0) | (bos ? TOKENIZE_BOS : 0);
    r = tokenizer_encode(t, text, len, flags, NULL, 0, &ids);
    if (r < 0)
        return cli_fail("the text cannot be tokenised: %s", strerror(-r));
    print_ids(&ids);
    return cli_flush(CLI_OK);
}

/* Parses the ids of a JSON array. Returns 0, -ENOMEM, or -EINVAL with @err. */
static int parse_ids(char *text, size_t len, uint32_t n_vocab, struct tokens *ids,
                     struct err *err) {
    CLEANUP(json_doc_freep) yyjson_doc *doc = yyjson_read(text, len, 0);
    yyjson_val *list = yyjson_doc_get_root(doc);

    if (!yyjson_is_arr(list))
        return err_set(err, 0, NULL, "not a JSON array of token ids");
    JSON_EACH_AT(i, v, list) {
        if (!yyjson_is_uint(v) || yyjson_get_uint(v) >= n_vocab)
            return err_set(err, 0, NULL, "item %zu is not a token id below %u", i, n_vocab);
        TRY(tokens_add(ids, (int32_t)yyjson_get_uint(v)));
    }
    return 0;
}

/* Appends the text of the ids on stdin, a JSON array, to @out. */
static int decode_input(const struct tokenizer *t, bool special, struct buf *out, struct err *err) {
    CLEANUP(freep) char *json = NULL;
    CLEANUP(tokens_deinit) struct tokens ids = {0};
    size_t len;

    TRY(cli_read_file("-", INPUT_MAX, &json, &len));
    TRY(parse_ids(json, len, tokenizer_n_vocab(t), &ids, err));
    return tokenizer_decode(t, ids.id, ids.n, special, out);
}

int gguf_cmd_detokenize(int argc, char **argv) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    CLEANUP(buf_deinit) struct buf text = {.max = INPUT_MAX};
    bool special = false;
    const struct cli_option options[] = {{"special", CLI_TRUE, &special, 0, 0}};
    struct err err = {0};
    int n_args;
    int code = cli_parse(argc, argv, options, ARRAY_SIZE(options), detokenize_usage, &n_args);

    if (code >= 0)
        return code;
    if (n_args != 1)
        return cli_usage("detokenize needs one MODEL, and a JSON array on stdin");
    code = open_tokenizer(argv[1], &g, &t);
    if (code != CLI_OK)
        return code;
    int r = decode_input(t, special, &text, &err);
    if (r < 0)
        return cli_fail_err("stdin", &err, r);
    if (text.len)
        fwrite(text.data, 1, text.len, stdout);
    return cli_flush(CLI_OK);
}
