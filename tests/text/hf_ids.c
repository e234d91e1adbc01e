/*
 * hf_ids TOKENIZER.json TEXTS.json [--around | --decode]: prints the ids of each text, of an array
 * of strings, as a line; with --around the ids that begin and end every text too, with --decode the
 * text that decoding the ids gives, in hexadecimal.
 */

#include <stdio.h>
#include <string.h>

#include "base/files.h"
#include "base/json_read.h"
#include "base/try.h"
#include "tests/text/hf_folder.h"

static int load(struct tokenizer **out, const char *path, struct err *err) {
    CLEANUP(buf_deinit) struct buf file = {.max = HF_TOKENIZER_FILE_MAX};
    struct hf_tokenizer_files in = {0};

    TRY(files_read(path, &file, NULL));
    in.tokenizer = (struct gguf_str){file.data ? file.data : "", file.len};
    return hf_folder_load(out, &in, err);
}

static void print_decoded(const struct tokenizer *t, const struct tokens *ids) {
    CLEANUP(buf_deinit) struct buf text = {.max = 1u << 26};

    if (tokenizer_decode(t, ids->id, ids->n, true, &text) < 0)
        return;
    for (size_t i = 0; i < text.len; i++)
        printf("%02x", (unsigned)(uint8_t)text.data[i]);
    putchar('\n');
}

int main(int argc, char **argv) {
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    CLEANUP(buf_deinit) struct buf texts = {.max = 1u << 28};
    CLEANUP(json_doc_freep) yyjson_doc *doc = NULL;
    struct err err = {0};
    bool around = argc > 3 && strcmp(argv[3], "--around") == 0;
    bool decode = argc > 3 && strcmp(argv[3], "--decode") == 0;

    if (argc < 3)
        return 2;
    if (load(&t, argv[1], &err) < 0) {
        fprintf(stderr, "%s: %s\n", argv[1], err.message);
        return 1;
    }
    if (files_read(argv[2], &texts, NULL) < 0 || json_parse(&doc, texts.data, texts.len, 0) < 0)
        return 2;
    JSON_EACH(item, yyjson_doc_get_root(doc)) {
        CLEANUP(tokens_deinit) struct tokens ids = {0};
        unsigned flags = TOKENIZE_SPECIAL | (around ? TOKENIZE_BOS : 0);

        if (tokenizer_encode(t, json_text(item), json_len(item), flags, NULL, 0, &ids) < 0)
            return 1;
        for (size_t k = 0; k < ids.n && !decode; k++)
            printf("%d ", ids.id[k]);
        if (decode)
            print_decoded(t, &ids);
        else
            putchar('\n');
    }
    return 0;
}
