/* Reads one JSON schema a line; writes {"schema": ..., "texts": [...]} with random texts under its
 * mask. For check_ajv.py. */

#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "tests/grammar/grammar_support.h"

#define TEXTS 40

int main(void) {
    static char line[65536], text[16384];
    struct rng r = {5};

    while (fgets(line, sizeof(line), stdin)) {
        struct grammar_source src = {
            .kind = GRAMMAR_JSON_SCHEMA, .text = line, .len = strcspn(line, "\n")};
        CLEANUP(grammar_freep) struct grammar *g = NULL;
        struct err err = {0};
        yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
        yyjson_mut_val *list = yyjson_mut_arr(doc);

        if (grammar_compile(&g, test_vocab(), &src, NULL, &err) < 0) {
            fprintf(stderr, "%s: %s\n", line, err.message);
            return 1;
        }
        for (int i = 0; i < TEXTS; i++) {
            int n = test_random_text(g, &r, 2, text, sizeof(text));

            if (n >= 0)
                yyjson_mut_arr_add_strncpy(doc, list, text, (size_t)n);
        }
        yyjson_mut_doc_set_root(doc, list);
        char *json = yyjson_mut_write(doc, 0, NULL);

        printf(R"({"schema": %.*s, "texts": %s})"
               "\n",
               (int)src.len, line, json);
        free(json);
        yyjson_mut_doc_free(doc);
    }
    return 0;
}
