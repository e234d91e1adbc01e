/*
 * bench_texts VOCABULARY.gguf < cases: reads one JSON object a line, {"node": ..., "texts": [...]}:
 * a node as grammar/constraint.h describes it, and texts. Compiles the node, reads each text token
 * by token and writes a line {"error": "", "code": "", "fits": [true, ...]}, where error is why the
 * node is refused, or "". suites.py makes the cases and adds the answers up.
 *
 * Each token is looked for in the mask and accepted; that both say the same is checked.
 */

#include <stdio.h>
#include <stdlib.h>
#include <yyjson.h>

#include "grammar/constraint.h"
#include "text/tokenizer.h"

struct bench {
    const struct tokenizer *tokens;
    const struct grammar_vocab *vocab;
    uint32_t *bits;
};

static bool allows(struct bench *b, struct constraint_state *s, uint32_t id, bool *ambiguous) {
    int64_t n = constraint_mask(s, b->bits);
    bool allowed = constraint_is_free(s) || (n > 0 && (b->bits[id / 32] >> (id % 32) & 1));
    bool accepted = constraint_accept(s, (int32_t)id) == 0;

    *ambiguous |= n < 0;
    if (n >= 0 && allowed != accepted) {
        fprintf(stderr, "a mask and its acceptance differ: token %u (%d)\n", id, allowed);
        exit(1);
    }
    return accepted;
}

static bool fits(struct bench *b, struct constraint_state *s, const char *text, size_t len,
                 bool *ambiguous) {
    struct tokens ids = {0};
    bool ok = tokenizer_encode(b->tokens, text, len, TOKENIZE_SPECIAL, NULL, 0, &ids) == 0;

    constraint_state_reset(s);
    for (size_t i = 0; ok && i < ids.n; i++)
        ok = allows(b, s, (uint32_t)ids.id[i], ambiguous);
    tokens_deinit(&ids);
    return ok && constraint_can_end(s);
}

static void run_case(struct bench *b, yyjson_val *root) {
    CLEANUP(constraint_freep) struct constraint *c = NULL;
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;
    yyjson_mut_doc *out = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *o = yyjson_mut_obj(out), *all = yyjson_mut_arr(out);
    struct err err = {0};
    yyjson_val *text;
    size_t len = 0, i, n;
    char *node = yyjson_val_write(yyjson_obj_get(root, "node"), 0, &len);
    int r = constraint_new(&c, b->vocab, node, len, NULL, 0, NULL, &err);
    bool ambiguous = false;

    if (r == 0 && constraint_state_new(&s, c) == 0)
        yyjson_arr_foreach(yyjson_obj_get(root, "texts"), i, n, text) yyjson_mut_arr_add_bool(
            out, all, fits(b, s, yyjson_get_str(text), yyjson_get_len(text), &ambiguous));
    yyjson_mut_doc_set_root(out, o);
    yyjson_mut_obj_add_str(out, o, "error", r == 0 ? "" : err.message);
    yyjson_mut_obj_add_str(out, o, "code", r < 0 ? err.code : "");
    yyjson_mut_obj_add_bool(out, o, "too_ambiguous", ambiguous);
    yyjson_mut_obj_add_val(out, o, "fits", all);
    char *json = yyjson_mut_write(out, YYJSON_WRITE_ALLOW_INVALID_UNICODE, NULL);

    puts(json ? json : "{}");
    free(json);
    free(node);
    yyjson_mut_doc_free(out);
}

int main(int argc, char **argv) {
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    CLEANUP(grammar_vocab_freep) struct grammar_vocab *v = NULL;
    struct err err = {0};
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    if (argc < 2 || gguf_open(&file, argv[1], &err) < 0 || tokenizer_new(&t, file, &err) < 0 ||
        grammar_vocab_of(&v, t) < 0) {
        fprintf(stderr, "usage: bench_texts VOCABULARY.gguf < cases %s\n", err.message);
        return 1;
    }
    struct bench b = {t, v, calloc(grammar_vocab_n_words(v), sizeof(uint32_t))};

    while (b.bits && (n = getline(&line, &cap, stdin)) > 0) {
        yyjson_doc *doc = yyjson_read(line, (size_t)n, 0);

        if (!doc) {
            fprintf(stderr, "a case is not JSON\n");
            return 1;
        }
        run_case(&b, yyjson_doc_get_root(doc));
        yyjson_doc_free(doc);
    }
    free(b.bits);
    free(line);
    return 0;
}
