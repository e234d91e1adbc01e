#include "base/gguf.h"

/* Block sizes of the structs block_* of ggml-common.h, with which files are written. */
static const struct tensor_format formats[] = {
    {TENSOR_F32, "F32", 1, 4},         {TENSOR_F16, "F16", 1, 2},
    {TENSOR_BF16, "BF16", 1, 2},       {TENSOR_Q4_0, "Q4_0", 32, 18},
    {TENSOR_Q4_1, "Q4_1", 32, 20},     {TENSOR_Q5_0, "Q5_0", 32, 22},
    {TENSOR_Q5_1, "Q5_1", 32, 24},     {TENSOR_Q8_0, "Q8_0", 32, 34},
    {TENSOR_Q2_K, "Q2_K", 256, 84},    {TENSOR_Q3_K, "Q3_K", 256, 110},
    {TENSOR_Q4_K, "Q4_K", 256, 144},   {TENSOR_Q5_K, "Q5_K", 256, 176},
    {TENSOR_Q6_K, "Q6_K", 256, 210},   {TENSOR_IQ2_XXS, "IQ2_XXS", 256, 66},
    {TENSOR_IQ4_NL, "IQ4_NL", 32, 18}, {TENSOR_IQ4_XS, "IQ4_XS", 256, 136},
    {TENSOR_MXFP4, "MXFP4", 32, 17},   {TENSOR_IQ1_S, "IQ1_S", 256, 50},
    {TENSOR_IQ1_M, "IQ1_M", 256, 56},  {TENSOR_IQ2_XS, "IQ2_XS", 256, 74},
    {TENSOR_IQ2_S, "IQ2_S", 256, 82},  {TENSOR_IQ3_XXS, "IQ3_XXS", 256, 98},
    {TENSOR_IQ3_S, "IQ3_S", 256, 110}, {TENSOR_TQ1_0, "TQ1_0", 256, 54},
    {TENSOR_TQ2_0, "TQ2_0", 256, 66},  {TENSOR_NVFP4, "NVFP4", 64, 36},
    {TENSOR_I32, "I32", 1, 4},
};

const struct tensor_format *tensor_format(uint32_t type) {
    for (size_t i = 0; i < ARRAY_SIZE(formats); i++)
        if ((uint32_t)formats[i].type == type)
            return &formats[i];
    return NULL;
}
