#include "base/gguf.h"

/* Indexed by enum tensor_type; a type that weft does not read has no name. */
#define ROW(name, number, n, bytes, first, second)                                                 \
    [number] = {TENSOR_##name, #name, n, bytes, {first, second}},
static const struct tensor_format formats[] = {TENSOR_FORMATS(ROW)};

const struct tensor_format *tensor_format(uint32_t type) {
    if (type >= ARRAY_SIZE(formats) || !formats[type].name)
        return NULL;
    return &formats[type];
}
