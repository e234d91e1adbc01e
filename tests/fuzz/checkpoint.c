/* Folders of safetensors: config.json, the header of the weights and the begin of their data, which
 * the first two zero bytes separate; the tokenizer is fixed. config.json has the members of the
 * other small files, too. If it has "bias", the header of 2_Dense follows that of
 * the weights, and another zero byte. What is accepted lies inside the file. */

#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/try.h"
#include "tests/fuzz/fuzz.h"

#define DATA_BYTES 16384u /* size of the data behind the header */
#define POOLING "1_Pooling/"
#define DENSE "2_Dense/"
#define INDEX "model.safetensors.index.json"
#define PREPROCESSOR "preprocessor_config.json"
#define GENERATION "generation_config.json"

static const char tokenizer[] =
    "{'added_tokens':[],'normalizer':null,'pre_tokenizer':{'type':'ByteLevel',"
    "'add_prefix_space':false,'use_regex':true},'decoder':{'type':'ByteLevel'},"
    "'model':{'type':'BPE','vocab':{'a':0,'b':1},'merges':[]}}";

static char folder[64];

static void remove_folder(void) {
    char path[96];
    static const char *const names[] = {"config.json",
                                        "tokenizer.json",
                                        "model.safetensors",
                                        POOLING "config.json",
                                        POOLING,
                                        DENSE "config.json",
                                        DENSE "model.safetensors",
                                        DENSE,
                                        INDEX,
                                        PREPROCESSOR,
                                        GENERATION};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        remove(path);
    }
    rmdir(folder);
}

/* Opens the file @name of @size bytes, which are zeros. */
static int make_file(const char *name, size_t size) {
    char path[96];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_ASSERT(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    return fd;
}

static void write_file(const char *name, const void *bytes, size_t n) {
    int fd = make_file(name, n);

    FUZZ_ASSERT(write(fd, bytes, n) == (ssize_t)n);
    close(fd);
}

/* Part of an input. */
struct part {
    const uint8_t *at;
    size_t n;
};

/* Returns the part before the next zero byte of @rest, which then begins behind that. */
static struct part next_part(struct part *rest) {
    const uint8_t *zero = memchr(rest->at, 0, rest->n);
    struct part p = {rest->at, zero ? (size_t)(zero - rest->at) : rest->n};
    size_t used = p.n + (zero != NULL);

    *rest = (struct part){rest->at + used, rest->n - used};
    return p;
}

/* Writes the file @name with the members of config.json, or removes it if they lack @word. Returns
 * true if it was written. */
static bool write_if(const char *name, struct part config, const char *word) {
    char path[96];

    if (memmem(config.at, config.n, word, strlen(word))) {
        write_file(name, config.at, config.n);
        return true;
    }
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    unlink(path);
    return false;
}

/* Writes a weight file: the length of the header, the header, and DATA_BYTES of data, of which the
 * first are @data. */
static void write_weights(const char *name, struct part header, struct part data) {
    uint64_t n = header.n;
    int fd = make_file(name, sizeof(n) + n + DATA_BYTES);
    size_t used = MIN(data.n, DATA_BYTES);

    FUZZ_ASSERT(write(fd, &n, sizeof(n)) == (ssize_t)sizeof(n));
    FUZZ_ASSERT(write(fd, header.at, n) == (ssize_t)n);
    FUZZ_ASSERT(write(fd, data.at, used) == (ssize_t)used);
    close(fd);
}

static void write_parts(struct part rest) {
    struct part config = next_part(&rest), header = next_part(&rest);

    write_file("config.json", config.at, config.n);
    write_if(INDEX, config, "weight_map");
    write_if(PREPROCESSOR, config, "image_mean");
    write_if(GENERATION, config, "temperature");
    write_if(POOLING "config.json", config, "pooling_mode");
    if (write_if(DENSE "config.json", config, "\42bias\42")) {
        struct part dense = next_part(&rest);

        write_weights(DENSE "model.safetensors", dense, rest);
    }
    write_weights("model.safetensors", header, rest);
}

static void make_inner(const char *name) {
    char path[96];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FUZZ_ASSERT(mkdir(path, 0700) == 0);
}

static void make_folder(void) {
    CLEANUP(buf_deinit) struct buf text = {.max = 4096};

    if (*folder)
        return;
    strcpy(folder,
           access("/dev/shm", W_OK) == 0 ? "/dev/shm/weft-fuzz-XXXXXX" : "/tmp/weft-fuzz-XXXXXX");
    FUZZ_ASSERT(mkdtemp(folder));
    make_inner(POOLING);
    make_inner(DENSE);
    atexit(remove_folder);
    FUZZ_ASSERT(fuzz_add_json(&text, tokenizer) == 0);
    write_file("tokenizer.json", text.data, text.len);
}

/* Opens the folder's image encoder, if there is one. */
static void open_encoder(void) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct err err = {0};
    int r = checkpoint_open_projector(&g, folder, &err);

    FUZZ_ASSERT(r == 0 || (err.message[0] && !strchr(err.message, '\n')));
    (void)checkpoint_has_projector(folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct err err = {0};
    uint64_t sum = 0;

    if (!memchr(data, 0, len))
        return -1;
    make_folder();
    write_parts((struct part){data, len});
    open_encoder();
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

#define GPTQ "'quantization_config':{'quant_method':'gptq','bits':4,'group_size':32,"

/* A folder: config.json; tensors as "NAME TYPE DIMENSION ..."; the words with which their data
 * begins. The last tensor is that of 2_Dense if its name begins with that. */
struct seed {
    const char *config, *tensors[8];
    uint32_t words[4];
};

static const struct seed seeds[] = {
    {"{'model_type':'llama'," CONFIG "'rope_scaling':{'rope_type':'llama3',"
     "'factor':8,'low_freq_factor':1,'high_freq_factor':4,"
     "'original_max_position_embeddings':32}}",
     {"model.embed_tokens.weight BF16 2 8", "model.layers.0.self_attn.q_proj.weight F16 8 8",
      "model.layers.0.mlp.experts.0.up_proj.weight F32 8 8",
      "model.layers.0.mlp.experts.1.up_proj.weight F32 8 8", "model.norm.weight F32 8"},
     {0}},
    {"{'model_type':'llama'," CONFIG
     "'weight_map':{'model.norm.weight':'model.safetensors','lm_head.weight':'model.safetensors'},"
     "'temperature':0.5,'top_k':-1,'top_p':0.9}",
     {"model.norm.weight F32 8", "lm_head.weight BF16 2 8"},
     {0}},
    {"{'model_type':'gemma3_text'," CONFIG "'sliding_window':16,'layer_types':"
     "['full_attention'],'rope_parameters':{'full_attention':{'rope_theta':1e6,"
     "'rope_type':'linear','factor':8},'sliding_attention':{'rope_theta':1e4}}}",
     {"model.embed_tokens.weight BF16 2 8", "model.norm.weight BF16 8"},
     {0}},
    {"{'model_type':'gemma3','text_config':{'model_type':'gemma3_text'," CONFIG
     "'sliding_window':16},"
     "'mm_tokens_per_image':4,'vision_config':{'hidden_size':8,'intermediate_size':8,"
     "'num_hidden_layers':1,'num_attention_heads':2,'patch_size':2,'image_size':8}}",
     {"vision_tower.vision_model.embeddings.patch_embedding.weight BF16 8 3 2 2",
      "vision_tower.vision_model.encoder.layers.0.mlp.fc1.bias BF16 8",
      "multi_modal_projector.mm_soft_emb_norm.weight BF16 8"},
     {0}},
    {"{'model_type':'qwen3_vl','text_config':{'model_type':'qwen3_vl_text'," CONFIG "'x':0},"
     "'vision_config':{'hidden_size':8,'intermediate_size':8,'depth':1,'num_heads':2,"
     "'patch_size':2,'deepstack_visual_indexes':[0]},'image_mean':[0.5,0.5,0.5],"
     "'size':{'shortest_edge':64,'longest_edge':4096}}",
     {"model.visual.patch_embed.proj.weight BF16 8 3 2 2 2",
      "model.visual.deepstack_merger_list.0.norm.weight BF16 8"},
     {0}},
    {"{'model_type':'gemma4_text'," CONFIG "'global_head_dim':8,'sliding_window':16,"
     "'hidden_size_per_layer_input':0,'num_kv_shared_layers':0,'layer_types':['full_attention'],"
     "'rope_parameters':{'full_attention':{'rope_theta':1e6,'rope_type':'proportional',"
     "'partial_rotary_factor':0.5},'sliding_attention':{'rope_theta':1e4}}}",
     {"layers.0.layer_scalar BF16 1", "layers.0.experts.gate_up_proj BF16 2 16 8"},
     {0}},
    {"{'architectures':['DFlash2DraftModel'],'model_type':'qwen3'," CONFIG
     "'hidden_act':'silu','use_sliding_window':true,'sliding_window':16,"
     "'layer_types':['sliding_attention'],'dflash_config':{'block_size':4,'mask_token_id':1,"
     "'target_layer_ids':[0,2],'causal':false,'conv_kernel_size':2,'conv_group_size':4,"
     "'selector_rank':4,'selector_top_k':2}}",
     {"fc.weight BF16 8 16", "layers.0.attention_conv.base_kernel BF16 2 2 8",
      "candidate_selector.predecessor_codebook BF16 2 4"},
     {0}},
    {"{'architectures':['Gemma4AssistantForCausalLM'],'backbone_hidden_size':8,'text_config':"
     "{'model_type':'gemma4_text'," CONFIG "'global_head_dim':8,'sliding_window':16,"
     "'layer_types':['full_attention'],'rope_parameters':{'full_attention':{'rope_theta':1e6},"
     "'sliding_attention':{'rope_theta':1e4}}}}",
     {"pre_projection.weight BF16 8 16", "masked_embedding.token_ordering I64 2"},
     {0}},
    {"{'model_type':'nemotron_h'," CONFIG "'hybrid_override_pattern':'M','mamba_num_heads':2,"
     "'mamba_head_dim':4,'n_groups':2,'ssm_state_size':4,'conv_kernel':4,"
     "'moe_intermediate_size':8,'layer_norm_epsilon':1e-5,'time_step_limit':[0,Infinity]}",
     {"backbone.layers.0.mixer.norm.weight BF16 8", "backbone.layers.0.mixer.A_log F32 2",
      "mtp.layers.1.norm.weight BF16 8"},
     {0}},
    {"{'model_type':'phi3'," CONFIG "'original_max_position_embeddings':32,"
     "'rope_scaling':{'type':'longrope','long_factor':[1,2],'short_factor':[1,1]}}",
     {"model.layers.0.self_attn.qkv_proj.weight BF16 16 8"},
     {0}},
    {"{'model_type':'glm4v','text_config':{'model_type':'glm4v_text'," CONFIG
     "'partial_rotary_factor':0.5,'rope_scaling':{'rope_type':'default','mrope_section':[1,0,0]},"
     "'quantization_config':{'quant_method':'fp8','weight_block_size':[4,8]}}}",
     {"model.language_model.layers.0.self_attn.q_proj.weight F8_E4M3 8 8",
      "model.language_model.layers.0.self_attn.q_proj.weight_scale_inv F32 2 1",
      "model.language_model.layers.0.self_attn.k_proj.weight BF16 4 8",
      "model.language_model.layers.0.self_attn.q_proj.bias BF16 8"},
     {0x12345678}},
    {"{'model_type':'ernie4_5_moe'," CONFIG "'moe_num_experts':2,'moe_k':1,"
     "'moe_intermediate_size':8}",
     {"model.mtp_block.0.self_attn.q_proj.weight BF16 8 8", "model.mtp_emb_norm.0.weight BF16 8",
      "model.mtp_linear_proj.0.weight BF16 8 16"},
     {0}},
    {"{'model_type':'x','text_config':{'model_type':'qwen3_moe'," CONFIG
     "'num_experts':2,'num_experts_per_tok':1,'moe_intermediate_size':8,"
     "'norm_topk_prob':true}}",
     {"model.layers.0.mlp.experts.0.up_proj.weight BF16 8 8",
      "model.layers.0.mlp.experts.1.up_proj.weight BF16 8 8",
      "model.visual.patch_embed.proj.weight BF16 2 2"},
     {0}},
    {"{'model_type':'lfm2_moe'," CONFIG "'layer_types':['conv'],'conv_L_cache':3,"
     "'num_dense_layers':1,'rope_scaling':{'rope_type':'yarn','factor':2}}",
     {"model.layers.0.conv.conv.weight BF16 8 1 3"},
     {0}},
    {"{'model_type':'granitemoe'," CONFIG "'embedding_multiplier':1,'residual_multiplier':1,"
     "'logits_scaling':1,'attention_multiplier':1,'num_local_experts':2,'num_experts_per_tok':1}",
     {"model.layers.0.block_sparse_moe.input_linear.weight BF16 2 16 8",
      "model.layers.0.block_sparse_moe.output_linear.weight BF16 2 8 8",
      "model.layers.0.shared_mlp.input_linear.weight BF16 16 8"},
     {0}},
    {"{'model_type':'qwen3_next'," CONFIG "'linear_conv_kernel_dim':4,'linear_key_head_dim':4,"
     "'linear_num_key_heads':2,'linear_num_value_heads':4,'linear_value_head_dim':4}",
     {"model.layers.0.linear_attn.in_proj_qkvz.weight BF16 48 8",
      "model.layers.0.linear_attn.A_log F32 4", "mtp.fc.weight BF16 8 16",
      "mtp.layers.0.self_attn.q_proj.weight BF16 16 8", "mtp.pre_fc_norm_hidden.weight BF16 8"},
     {0}},
    {"{'model_type':'deepseek_v3'," CONFIG "'kv_lora_rank':8,'qk_nope_head_dim':4,"
     "'qk_rope_head_dim':4,'v_head_dim':6,'first_k_dense_replace':1}",
     {"model.layers.0.self_attn.kv_b_proj.weight BF16 20 8",
      "model.layers.1.eh_proj.weight BF16 8 16", "model.layers.1.shared_head.norm.weight BF16 8"},
     {0}},
    {"{'model_type':'mistral4'," CONFIG "'kv_lora_rank':8,'qk_nope_head_dim':4,"
     "'qk_rope_head_dim':4,'v_head_dim':6,'n_routed_experts':2,"
     "'quantization_config':{'quant_method':'fp8'}}",
     {"model.layers.0.self_attn.kv_b_proj.weight F8_E4M3 20 8",
      "model.layers.0.self_attn.kv_b_proj.weight_scale_inv F32",
      "model.layers.0.mlp.experts.gate_up_proj F8_E4M3 2 16 8",
      "model.layers.0.mlp.experts.gate_up_proj_scale_inv BF16 2 1 1",
      "model.layers.0.mlp.experts.down_proj F8_E4M3 2 8 8",
      "model.layers.0.mlp.experts.down_proj_scale_inv F32 2 8 1"},
     {0x12345678}},
    {"{'model_type':'qwen3_next'," CONFIG "'linear_conv_kernel_dim':4,'linear_key_head_dim':8,"
     "'linear_num_key_heads':2,'linear_num_value_heads':2,'linear_value_head_dim':8,"
     "'quantization_config':{'quant_method':'awq','bits':4,'group_size':32}}",
     {"model.layers.0.linear_attn.in_proj_qkvz.qweight I32 64 8",
      "model.layers.0.linear_attn.in_proj_qkvz.scales F16 2 64",
      "model.layers.0.linear_attn.in_proj_qkvz.qzeros I32 2 8"},
     {0x12345678}},
    {"{'model_type':'qwen3_vl','text_config':{'model_type':'qwen3_vl_text'," CONFIG
     "'quantization_config':{'quant_method':'compressed-tensors'}},"
     "'vision_config':{'hidden_size':8,'intermediate_size':8,'depth':1,'num_heads':2,"
     "'patch_size':2}}",
     {"model.visual.blocks.0.attn.proj.weight F8_E4M3 8 8",
      "model.visual.blocks.0.attn.proj.weight_scale BF16 8 1"},
     {0x12345678}},
    {"{'model_type':'bert'," CONFIG "'layer_norm_eps':1e-5,'pooling_mode_cls_token':true}",
     {"embeddings.position_embeddings.weight BF16 64 8",
      "embeddings.token_type_embeddings.weight BF16 2 8",
      "encoder.layer.0.attention.self.query.weight F32 8 8", "pooler.dense.weight BF16 8 8",
      "classifier.weight BF16 1 8"},
     {0}},
    {"{'model_type':'xlm-roberta'," CONFIG
     "'layer_norm_eps':1e-5,'pad_token_id':1,'pooling_mode':'mean'}",
     {"roberta.embeddings.position_embeddings.weight F32 66 8",
      "roberta.embeddings.token_type_embeddings.weight BF16 1 8",
      "classifier.out_proj.weight BF16 1 8"},
     {0}},
    {"{'model_type':'modernbert'," CONFIG
     "'norm_eps':1e-5,'local_attention':8,'global_attn_every_n_layers':3}",
     {"layers.0.attn.Wqkv.weight BF16 24 8", "final_norm.weight BF16 8"},
     {0}},
    {"{'model_type':'nomic_bert','n_layer':1,'n_embd':8,'n_head':2,'n_inner':16,'n_positions':64,"
     "'vocab_size':2,'layer_norm_epsilon':1e-5,'rotary_emb_base':1000}",
     {"encoder.layers.0.mlp.fc12.weight BF16 16 8", "emb_ln.bias BF16 8"},
     {0}},
    {"{'model_type':'gemma3_text'," CONFIG "'sliding_window':16,'pooling_mode_lasttoken':true,"
     "'use_bidirectional_attention':true}",
     {"layers.0.self_attn.q_norm.weight BF16 4", "norm.weight BF16 8"},
     {0}},
    {"{'model_type':'gemma3_text'," CONFIG "'sliding_window':16,'use_bidirectional_attention':true,"
     "'hidden_activation':'gelu_pytorch_tanh','bias':false,"
     "'activation_function':'torch.nn.modules.linear.Identity'}",
     {"layers.0.self_attn.q_norm.weight BF16 4", "norm.weight BF16 8",
      DENSE "linear.weight F32 512 8"},
     {0x3F800000}},
    {"{'model_type':'llama'," CONFIG GPTQ "'sym':false,'desc_act':true}}",
     {"model.layers.0.self_attn.q_proj.g_idx I32 64",
      "model.layers.0.self_attn.q_proj.qweight I32 8 8",
      "model.layers.0.self_attn.q_proj.scales F16 2 8",
      "model.layers.0.self_attn.q_proj.qzeros I32 2 1"},
     {1}},
    {"{'model_type':'llama'," CONFIG GPTQ "'sym':true,'desc_act':false}}",
     {"model.layers.0.mlp.up_proj.qweight I32 8 8", "model.layers.0.mlp.up_proj.scales F16 2 8",
      "model.layers.0.mlp.experts.0.up_proj.qweight I32 8 8",
      "model.layers.0.mlp.experts.0.up_proj.scales F16 2 8"},
     {0x12345678}},
    {"{'model_type':'llama'," CONFIG "'quantization_config':{'quant_method':'awq','bits':4,"
     "'group_size':32,'version':'gemm','zero_point':true}}",
     {"model.layers.0.mlp.up_proj.qweight I32 64 1", "model.layers.0.mlp.up_proj.scales F16 2 8",
      "model.layers.0.mlp.up_proj.qzeros I32 2 1"},
     {0x12345678}},
    {"{'model_type':'llama'," CONFIG "'quantization_config':{'quant_method':'fp8',"
     "'weight_block_size':[4,32]}}",
     {"model.layers.0.mlp.up_proj.weight F8_E4M3 8 64",
      "model.layers.0.mlp.up_proj.weight_scale_inv F32 2 2",
      "model.layers.0.mlp.up_proj.input_scale F32"},
     {0x12345678}},
    {"{'model_type':'llama'," CONFIG "'quantization_config':{'quant_method':'modelopt'}}",
     {"model.layers.0.mlp.up_proj.weight_scale_2 F32", "model.layers.0.mlp.up_proj.weight U8 8 32",
      "model.layers.0.mlp.up_proj.weight_scale F8_E4M3 8 4"},
     {0x3F800000}},
    {"{'model_type':'gpt_oss'," CONFIG "'sliding_window':16,'num_local_experts':2,"
     "'num_experts_per_tok':1,'layer_types':['full_attention'],"
     "'quantization_config':{'quant_method':'mxfp4'}}",
     {"model.layers.0.mlp.experts.gate_up_proj_blocks U8 2 8 1 16",
      "model.layers.0.mlp.experts.gate_up_proj_scales U8 2 8 1",
      "model.layers.0.mlp.experts.gate_up_proj_bias BF16 2 8",
      "model.layers.0.mlp.experts.down_proj_blocks U8 2 8 1 16",
      "model.layers.0.mlp.experts.down_proj_scales U8 2 8 1",
      "model.layers.0.mlp.experts.down_proj_bias BF16 2 8", "model.layers.0.self_attn.sinks F32 2"},
     {0}},
    {"{'model_type':'llama'," CONFIG "'quantization_config':{'quant_method':'compressed-tensors',"
     "'format':'mixed-precision'}}",
     {"model.layers.0.mlp.up_proj.weight_shape I64 2",
      "model.layers.0.mlp.up_proj.weight_packed I32 8 8",
      "model.layers.0.mlp.up_proj.weight_scale BF16 8 2",
      "model.layers.0.mlp.up_proj.weight_zero_point I32 1 2",
      "model.layers.0.mlp.gate_proj.weight_packed U8 8 32",
      "model.layers.0.mlp.gate_proj.weight_scale U8 8 2",
      "model.layers.0.mlp.down_proj.weight I8 8 64",
      "model.layers.0.mlp.down_proj.weight_scale F16 8 1"},
     {8, 0, 64, 0}},
};

/* Appends tensor @text, whose data begins at *@at, to the header @out. */
static int add_tensor(struct buf *out, const char *text, size_t *at) {
    static const struct {
        const char *name;
        size_t bytes;
    } types[] = {{"I64", 8},  {"F32", 4}, {"I32", 4},     {"F16", 2},
                 {"BF16", 2}, {"U8", 1},  {"F8_E4M3", 1}, {"I8", 1}};
    char name[128], type[16], line[256];
    int used = 0;
    size_t n = 1, first = *at;

    FUZZ_ASSERT(sscanf(text, "%127s %15s%n", name, type, &used) == 2);
    snprintf(line, sizeof(line), "'%s':{'dtype':'%s','shape':[", name, type);
    TRY(fuzz_add_json(out, line));
    for (size_t i = 0; i < ARRAY_SIZE(types); i++)
        if (strcmp(types[i].name, type) == 0)
            n = types[i].bytes;
    for (const char *p = text + used, *comma = ""; *p; comma = ",") {
        char *end;
        size_t dim = strtoul(p, &end, 10);

        TRY(buf_printf(out, "%s%zu", comma, dim));
        n *= dim;
        p = end;
    }
    *at += n;
    snprintf(line, sizeof(line), "],'data_offsets':[%zu,%zu]},", first, *at);
    return fuzz_add_json(out, line);
}

/* Appends the header of 2_Dense, which has tensor @text, and a zero byte. */
static int add_dense(struct buf *out, const char *text) {
    size_t at = 0;

    TRY(buf_add_char(out, '{'));
    TRY(add_tensor(out, text, &at));
    FUZZ_ASSERT(at == DATA_BYTES);
    out->len--; /* the comma */
    return buf_add(out, "}", 2);
}

static int add_seed(struct buf *out, const struct seed *s) {
    char line[160];
    const char *dense = NULL;
    size_t at = 0;

    TRY(fuzz_add_json(out, s->config));
    TRY(buf_add(out, "", 1));
    TRY(buf_add_char(out, '{'));
    for (size_t i = 0; i < ARRAY_SIZE(s->tensors) && s->tensors[i]; i++)
        if (strncmp(s->tensors[i], DENSE, strlen(DENSE)) == 0)
            dense = s->tensors[i] + strlen(DENSE);
        else
            TRY(add_tensor(out, s->tensors[i], &at));
    /* the rest of the data belongs to a model that is left out */
    snprintf(line, sizeof(line), "'vision.x':{'dtype':'U8','shape':[%zu],'data_offsets':[%zu,%u]}}",
             DATA_BYTES - at, at, DATA_BYTES);
    TRY(fuzz_add_json(out, line));
    TRY(buf_add(out, "", 1));
    if (dense)
        TRY(add_dense(out, dense));
    return buf_add(out, s->words, sizeof(s->words));
}

bool fuzz_seed(size_t i, struct buf *out) {
    return i < ARRAY_SIZE(seeds) && add_seed(out, &seeds[i]) == 0;
}
