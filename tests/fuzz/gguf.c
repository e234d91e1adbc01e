/* Model files: a file that gguf_open() accepts can be read in full, and its tokenizer is made or
 * refused with a reason. */

#include "base/gguf.h"

#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/vocab.h"
#include "text/tokenizer.h"

static uint64_t sum; /* sum of all values read, so that the compiler leaves out no read */

/* Reads element @i as every type: what is read is the value of the file, rounded. */
static void read_number(const struct gguf_array *a, uint64_t i) {
    double value = gguf_array_num(a, i), real;
    uint64_t bits;
    float single;
    int64_t whole;

    for (enum gguf_type as = GGUF_U8; as <= GGUF_F64; as++)
        if (as != GGUF_STRING && as != GGUF_ARRAY)
            sum += gguf_array_read(a, as, i, 1, &bits);
    if (gguf_array_read(a, GGUF_F64, i, 1, &real))
        FUZZ_ASSERT(real == value);
    if (gguf_array_read(a, GGUF_F32, i, 1, &single))
        FUZZ_ASSERT(single == (float)value);
    if (gguf_array_read(a, GGUF_I64, i, 1, &whole))
        FUZZ_ASSERT((double)whole == value);
}

static void read_metadata(const struct gguf *g) {
    for (uint64_t i = 0; i < gguf_n_kv(g); i++) {
        struct gguf_str key = gguf_key(g, i, NULL), s;
        CLEANUP(freep) char *name = fuzz_text(key.data, key.len);
        const struct gguf_array *a = gguf_array(g, name);
        float f = 0;
        uint32_t u = 0;

        if (gguf_string(g, name, &s) == 0)
            for (size_t k = 0; k < s.len; k++)
                sum += (uint8_t)s.data[k];
        sum += gguf_f32(g, name, &f) == 0 && f > 0;
        sum += gguf_u32(g, name, &u) == 0 ? u : 0;
        for (uint64_t k = 0; a && k < gguf_array_n(a); k++)
            if (gguf_array_type(a) == GGUF_STRING)
                sum += gguf_array_str(a, k).len;
            else
                read_number(a, k);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct err err = {0};
    uint8_t print[16];

    if (gguf_open(&g, fuzz_file(data, len), &err) < 0) {
        FUZZ_ASSERT(err.message[0] && !strchr(err.message, '\n'));
        return 0;
    }
    read_metadata(g);
    gguf_fingerprint(g, print);
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i);

        FUZZ_ASSERT(gguf_find(g, t->name));
        for (size_t k = 0; k < t->n_bytes; k++)
            sum += t->data[k];
    }
    vocab_use(g, (const uint8_t *)"a user's <|im_end|> \xc3\xa9\xff", 24);
    return 0;
}

bool fuzz_seed(size_t i, struct buf *out) {
    return vocab_seed(i, out);
}
