/* unigram_ids VOCAB.gguf TEXTS: the ids of each text, which ends with a NUL, as a line. */

#include <stdio.h>
#include <string.h>

#include "tests/text/expect.h"

int main(int argc, char **argv) {
    size_t len;

    if (argc != 3)
        return 2;
    CLEANUP(tokenizer_freep) struct tokenizer *t = expect_tokenizer(argv[1]);
    char *texts = expect_read(argv[2], &len);
    for (size_t i = 0; i < len; i += strlen(texts + i) + 1) {
        struct tokens got = expect_encode(t, texts + i, strlen(texts + i), 0);

        for (size_t k = 0; k < got.n; k++)
            printf("%d ", got.id[k]);
        putchar('\n');
        tokens_deinit(&got);
    }
    free(texts);
    return 0;
}
