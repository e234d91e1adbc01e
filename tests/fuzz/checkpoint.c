/* Folders of safetensors: config.json and the header of the weights, which the first zero byte
 * separates; the tokenizer is fixed. What is accepted lies inside the file. */

#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"

#define DATA_BYTES 16384u /* size of the data behind the header */

static const char tokenizer[] =
    "{'added_tokens':[],'normalizer':null,'pre_tokenizer':{'type':'ByteLevel',"
    "'add_prefix_space':false,'use_regex':true},'decoder':{'type':'ByteLevel'},"
    "'model':{'type':'BPE','vocab':{'a':0,'b':1},'merges':[]}}";

static char folder[64];

static void remove_folder(void) {
    char path[96];
    static const char *const names[] = {"config.json", "tokenizer.json", "model.safetensors"};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

/* Writes the file @name: @n_first bytes, then @n bytes, then @zeros. */
static void write_file(const char *name, const void *first, size_t n_first, const void *bytes,
                       size_t n, size_t zeros) {
    char path[96];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_ASSERT(fd >= 0 && write(fd, first, n_first) == (ssize_t)n_first);
    FUZZ_ASSERT(write(fd, bytes, n) == (ssize_t)n);
    FUZZ_ASSERT(ftruncate(fd, (off_t)(n_first + n + zeros)) == 0);
    close(fd);
}

static void make_folder(void) {
    CLEANUP(buf_deinit) struct buf text = {.max = 4096};

    if (*folder)
        return;
    strcpy(folder,
           access("/dev/shm", W_OK) == 0 ? "/dev/shm/weft-fuzz-XXXXXX" : "/tmp/weft-fuzz-XXXXXX");
    FUZZ_ASSERT(mkdtemp(folder));
    atexit(remove_folder);
    FUZZ_ASSERT(fuzz_add_json(&text, tokenizer) == 0);
    write_file("tokenizer.json", "", 0, text.data, text.len, 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    const uint8_t *zero = memchr(data, 0, len);
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct err err = {0};
    uint64_t sum = 0;

    if (!zero)
        return -1;
    uint64_t n = len - (size_t)(zero + 1 - data);
    make_folder();
    write_file("config.json", "", 0, data, (size_t)(zero - data), 0);
    write_file("model.safetensors", &n, sizeof(n), zero + 1, n, DATA_BYTES);
    if (checkpoint_open(&g, folder, &err) < 0) {
        FUZZ_ASSERT(err.message[0] && !strchr(err.message, '\n'));
        return 0;
    }
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i);
        CLEANUP(freep) uint8_t *row = malloc(t->row_bytes);

        FUZZ_ASSERT(row);
        for (uint64_t r = 0; r < t->n_bytes / t->row_bytes; r++) {
            tensor_copy_rows(t, r, 1, row);
            for (size_t k = 0; k < t->row_bytes; k++)
                sum += row[k];
        }
    }
    FUZZ_ASSERT(sum < UINT64_MAX);
    return 0;
}

/* config.json of each kind of layer, before the members that differ. */
#define CONFIG                                                                                     \
    "'num_hidden_layers':1,'hidden_size':8,'num_attention_heads':2,'head_dim':4,"                  \
    "'num_key_value_heads':1,'vocab_size':2,'max_position_embeddings':64,"                         \
    "'intermediate_size':16,'rms_norm_eps':1e-5,"

bool fuzz_seed(size_t i, struct buf *out) {
    static const char *const configs[] = {
        "{'model_type':'llama'," CONFIG "'rope_scaling':{'rope_type':'llama3',"
        "'factor':8,'low_freq_factor':1,'high_freq_factor':4,"
        "'original_max_position_embeddings':32}}",
        "{'model_type':'gemma3_text'," CONFIG "'sliding_window':16,'layer_types':"
        "['full_attention'],'rope_parameters':{'full_attention':{'rope_theta':1e6,"
        "'rope_type':'linear','factor':8},'sliding_attention':{'rope_theta':1e4}}}",
        "{'model_type':'phi3'," CONFIG "'original_max_position_embeddings':32,"
        "'rope_scaling':{'type':'longrope','long_factor':[1,2],'short_factor':[1,1]}}",
        "{'model_type':'x','text_config':{'model_type':'qwen3_moe'," CONFIG
        "'num_experts':2,'num_experts_per_tok':1,'moe_intermediate_size':8,"
        "'norm_topk_prob':true}}",
        "{'model_type':'lfm2_moe'," CONFIG "'layer_types':['conv'],'conv_L_cache':3,"
        "'num_dense_layers':1,'rope_scaling':{'rope_type':'yarn','factor':2}}",
    };
    static const char header[] =
        "{'model.embed_tokens.weight':{'dtype':'BF16','shape':[2,8],'data_offsets':"
        "[0,32]},'model.layers.0.self_attn.q_proj.weight':{'dtype':'F16','shape':[8,8],"
        "'data_offsets':[32,160]},'model.layers.0.mlp.experts.0.up_proj.weight':{'dtype':"
        "'F32','shape':[8,8],'data_offsets':[160,416]},"
        "'model.layers.0.mlp.experts.1.up_proj.weight':{'dtype':'F32','shape':[8,8],"
        "'data_offsets':[416,672]},'model.norm.weight':{'dtype':'F32','shape':[3928],"
        "'data_offsets':[672,16384]}}";

    return i < ARRAY_SIZE(configs) && fuzz_add_json(out, configs[i]) == 0 &&
           buf_add(out, "", 1) == 0 && fuzz_add_json(out, header) == 0;
}
