#include "tests/front_sim/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/front_sim/sim.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/telltale.h"

#define OUT_MAX 512

static struct tokenizer *tokenizer;

/* Byte-level vocabularies write a byte as a printable character: itself, or the next from U+0100
 * on. */
static void write_char(char out[4], int byte, unsigned *next) {
    bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    unsigned c = printable ? (unsigned)byte : 256u + (*next)++;

    if (c < 128)
        sprintf(out, "%c", (char)c);
    else
        sprintf(out, "%c%c", (char)(0xC0 | c >> 6), (char)(0x80 | (c & 63)));
}

static const char template[] = "{%- for m in messages -%}"
                               "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
                               "{%- endfor -%}"
                               "{%- if add_generation_prompt -%}"
                               "{{ '<|im_start|>assistant\\n' }}{%- endif -%}";

void model_chat_prompt(const char *message, struct buf *out) {
    buf_printf(out, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n", message);
}

void model_write(uint32_t number, const char *path) {
    static const char *const special[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"};
    static const char *const merges[] = {"a b"};
    static const uint64_t ne[] = {32, MODEL_VOCAB};
    const char *tokens[MODEL_VOCAB];
    int32_t types[MODEL_VOCAB];
    char text[256][4], name[16];
    unsigned next = 0;
    struct gguf_writer w;

    for (int i = 0; i < MODEL_VOCAB; i++) {
        if (i < 256)
            write_char(text[i], i, &next);
        tokens[i] = i < 256 ? text[i] : i < 259 ? special[i - 256] : "ab";
        types[i] = i < 256 || i == 259 ? 1 : 3;
    }
    snprintf(name, sizeof(name), "sim%u", number);
    gw_init(&w);
    gw_string(&w, "general.architecture", "llama");
    gw_string(&w, "general.name", name);
    gw_string(&w, "tokenizer.ggml.model", "gpt2");
    gw_string(&w, "tokenizer.ggml.pre", "gpt-2");
    gw_strings(&w, "tokenizer.ggml.tokens", MODEL_VOCAB, tokens);
    gw_array(&w, "tokenizer.ggml.token_type", GGUF_I32, MODEL_VOCAB, types, sizeof(types));
    gw_strings(&w, "tokenizer.ggml.merges", 1, merges);
    gw_u32(&w, "tokenizer.ggml.eos_token_id", MODEL_END);
    gw_u32(&w, "llama.context_length", MODEL_CONTEXT);
    gw_string(&w, "tokenizer.chat_template", template);
    gw_tensor(&w, "token_embd.weight", TENSOR_F32, 2, ne, NULL);
    gw_save(&w, path);
    gw_deinit(&w);
    if (tokenizer)
        return;
    struct gguf *g = NULL;
    struct err err = {0};
    if (gguf_open(&g, path, &err) < 0 || tokenizer_new(&tokenizer, g, &err) < 0) {
        fprintf(stderr, "%s: %s\n", path, err.message);
        exit(2);
    }
    gguf_free(g);
}

uint32_t model_of_file(const struct gguf *file) {
    struct gguf_str s = {0};

    gguf_string(file, "general.name", &s);
    return s.len == 4 ? (uint32_t)(s.data[3] - '0') : 0;
}

void model_use(uint32_t i) {
    static const char letters[MODELS_MAX][2] = {{'a', 'm'}, {'n', 'z'}, {'A', 'Z'}};
    struct telltale t = {
        .n_vocab = MODEL_VOCAB,
        .n_embd = 8,
        .max_context = MODEL_CONTEXT,
        .depth = 2,
        .first = letters[i][0],
        .last = letters[i][1],
        .end = MODEL_END,
        .end_per_1024 = 20,
        .strict = true,
        .poison = 99,
    };

    telltale_set(&t);
}

void model_expect(uint32_t i, const char *prompt, uint32_t max, struct expected *out) {
    struct tokens ids = {0};
    int32_t tokens[OUT_MAX];

    *out = (struct expected){.text = {.max = 1 << 20}};
    tokenizer_encode(tokenizer, prompt, strlen(prompt), TOKENIZE_BOS | TOKENIZE_SPECIAL, NULL, 0,
                     &ids);
    model_use(i);
    struct telltale_ask ask = {
        .prompt = ids.id,
        .n_prompt = (uint32_t)ids.n,
        .n_out = MIN(max, (uint32_t)OUT_MAX),
        .param = {.top_p = 1, .repetition = 1},
    };
    out->n_prompt = ask.n_prompt;
    out->n_out = telltale_expect(&ask, tokens, NULL, NULL);
    out->ended = out->n_out > 0 && tokens[out->n_out - 1] == MODEL_END;
    tokenizer_decode(tokenizer, tokens, out->n_out - out->ended, false, &out->text);
    buf_add(&out->text, "", 0);
    tokens_deinit(&ids);
}
