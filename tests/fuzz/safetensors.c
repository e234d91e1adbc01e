/* Headers of safetensors files: what st_parse() accepts lies inside the file, without overlap. */

#include "checkpoint/safetensors.h"

#include <string.h>

#include "tests/fuzz/fuzz.h"

#define DATA_BYTES 4096u /* size of the data behind the header */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    uint64_t end = 8 + len + DATA_BYTES, sum = 0;
    struct err err = {0};
    struct st_list list;

    st_list_init(&list);
    int r = st_parse(&list, 0, (const char *)data, len, end, &err);
    FUZZ_ASSERT(r == 0 || (err.message[0] && !strchr(err.message, '\n')));
    for (uint32_t i = 0; r == 0 && i < list.n; i++) {
        const struct st_tensor *t = &list.tensor[i];

        FUZZ_ASSERT(st_find(&list, t->name) == t);
        FUZZ_ASSERT(t->offset >= 8 + len && t->offset + t->n_bytes <= end);
        sum += t->n_bytes;
    }
    FUZZ_ASSERT(r < 0 || sum == DATA_BYTES);
    st_list_deinit(&list);
    return 0;
}

bool fuzz_seed(size_t i, struct buf *out) {
    static const char *const seeds[] = {
        "{'a':{'dtype':'U8','shape':[4096],'data_offsets':[0,4096]}}",
        "{'__metadata__':{'format':'pt'},"
        "'b':{'dtype':'BF16','shape':[2,1000],'data_offsets':[96,4096]},"
        "'a':{'dtype':'F32','shape':[24],'data_offsets':[0,96]}}",
        "{'s':{'dtype':'I64','shape':[],'data_offsets':[0,8]},"
        "'e':{'dtype':'F16','shape':[0],'data_offsets':[8,8]},"
        "'f':{'dtype':'F8_E4M3','shape':[73,56],'data_offsets':[8,4096]}}",
    };

    return i < ARRAY_SIZE(seeds) && fuzz_add_json(out, seeds[i]) == 0;
}
