#include "tiny.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/support/gguf_writer.h"

/* Byte-level vocabularies write a byte as a printable character: the byte itself, or the next free
 * one from U+0100 on. */
static void write_char(char out[4], int byte) {
    static int next;
    bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;

    if (byte == 0)
        next = 0;
    unsigned c = printable ? (unsigned)byte : 256u + (unsigned)next++;
    if (c < 128)
        sprintf(out, "%c", (char)c);
    else
        sprintf(out, "%c%c", (char)(0xC0 | c >> 6), (char)(0x80 | (c & 63)));
}

static const char *const fim_keys[TOKENIZER_FIM_N] = {"tokenizer.ggml.fim_pre_token_id",
                                                      "tokenizer.ggml.suffix_token_id", /* older */
                                                      "tokenizer.ggml.fim_mid_token_id"};

static struct tokenizer *make(const char *const special[3], const char *const late[3], int bos,
                              int32_t fim) {
    static const char *const merges[] = {"a b"};
    struct gguf_writer w;
    char text[256][4], path[64];
    const char *tokens[TINY_ALL];
    int32_t types[TINY_ALL];
    struct tokenizer *t = NULL;
    struct gguf *g = NULL;
    struct err err = {0};

    for (int i = 0; i < TINY_VOCAB; i++) {
        if (i < 256)
            write_char(text[i], i);
        tokens[i] = i < 256 ? text[i] : special[i - 256];
        types[i] = i < 256 ? 1 : 3;
    }
    tokens[TINY_VOCAB] = "ab"; /* the one merge */
    types[TINY_VOCAB] = 1;
    for (int i = TINY_CALL; i < TINY_ALL; i++) {
        tokens[i] = late[i - TINY_CALL];
        types[i] = 3;
    }
    gw_init(&w);
    gw_string(&w, "general.architecture", "llama");
    gw_string(&w, "tokenizer.ggml.model", "gpt2");
    gw_string(&w, "tokenizer.ggml.pre", "gpt-2");
    gw_strings(&w, "tokenizer.ggml.tokens", TINY_ALL, tokens);
    gw_array(&w, "tokenizer.ggml.token_type", GGUF_I32, TINY_ALL, types, sizeof(types));
    gw_strings(&w, "tokenizer.ggml.merges", 1, merges);
    gw_u32(&w, "tokenizer.ggml.eos_token_id", TINY_END);
    if (bos >= 0) {
        gw_u32(&w, "tokenizer.ggml.bos_token_id", (uint32_t)bos);
        gw_bool(&w, "tokenizer.ggml.add_bos_token", true);
    }
    for (int i = 0; fim >= 0 && i < TOKENIZER_FIM_N; i++)
        gw_u32(&w, fim_keys[i], (uint32_t)(fim + i));
    gw_finish(&w);
    snprintf(path, sizeof(path), "/tmp/weft-test-tiny-%d.gguf", getpid());
    gw_save(&w, path);
    gw_deinit(&w);
    cr_assert_eq(gguf_open(&g, path, &err), 0, "%s", err.message);
    unlink(path);
    cr_assert_eq(tokenizer_new(&t, g, &err), 0, "%s", err.message);
    gguf_free(g);
    return t;
}

struct tokenizer *tiny_tokenizer(void) {
    return make((const char *const[]){"<|im_start|>", "<|im_end|>", "<|endoftext|>"},
                (const char *const[]){"<tool_call>", "</tool_call>", "<|junk|>"}, -1, -1);
}

struct tokenizer *tiny_bos_tokenizer(void) {
    return make((const char *const[]){"<|im_start|>", "<|im_end|>", "<s>"},
                (const char *const[]){"<tool_call>", "</tool_call>", "<|junk|>"}, TINY_EOT, -1);
}

struct tokenizer *tiny_fim_tokenizer(void) {
    return make((const char *const[]){"<|im_start|>", "<|im_end|>", "<fim_pad>"},
                (const char *const[]){"<fim_prefix>", "<fim_suffix>", "<fim_middle>"}, -1, -1);
}

struct tokenizer *tiny_named_tokenizer(const char *const special[3], const char *const late[3],
                                       int bos) {
    return make(special, late, bos, -1);
}

struct tokenizer *tiny_fim_keys_tokenizer(void) {
    return make((const char *const[]){"<|im_start|>", "<|im_end|>", "<fim_pad>"},
                (const char *const[]){"<before>", "<after>", "<between>"}, -1, TINY_CALL);
}

struct tokenizer *tiny_turns_tokenizer(void) {
    return make((const char *const[]){"<|im_start|>", "<|endoftext|>", "<|im_end|>"},
                (const char *const[]){"<|endofturn|>", "<|stop|>", "<|junk|>"}, -1, -1);
}

struct tokenizer *tiny_observing_tokenizer(void) {
    return make((const char *const[]){"<|user|>", "<|assistant|>", "<|endoftext|>"},
                (const char *const[]){"<|observation|>", "<|system|>", "<|junk|>"}, -1, -1);
}

struct tokenizer *tiny_seeing_tokenizer(void) {
    return make((const char *const[]){"<|im_start|>", "<|im_end|>", "<|endoftext|>"},
                (const char *const[]){"<|vision_start|>", "<|image_pad|>", "<|vision_end|>"}, -1,
                -1);
}

struct tokenizer *tiny_media_tokenizer(void) {
    return make((const char *const[]){"<|im_start|>", "<|im_end|>", "<|media_start|>"},
                (const char *const[]){"<|media_content|>", "<|media_pad|>", "<|media_end|>"}, -1,
                -1);
}

struct template *tiny_template(void) {
    static const char source[] =
        "{%- for m in messages -%}{%- if m.role == 'function' -%}"
        "{{ raise_exception('no functions here') }}{%- endif -%}"
        "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor -%}"
        "{%- if tools -%}{{ '[' + (tools | length | string) + ']' }}{%- endif -%}"
        "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}";
    struct template *t = NULL;
    struct err err = {0};

    cr_assert_eq(template_new(&t, source, sizeof(source) - 1, &err), 0, "%s", err.message);
    return t;
}
