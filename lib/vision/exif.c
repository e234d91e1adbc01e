#include <string.h>

#include "vision/formats.h"

#define TAG_ORIENTATION 0x0112u
#define TYPE_SHORT 3u

/* A TIFF file in memory; reads beyond its end give 0. */
struct tiff {
    const uint8_t *data;
    size_t len;
    bool big_endian;
};

static uint32_t u16_at(const struct tiff *t, size_t at) {
    if (at > t->len || t->len - at < 2)
        return 0;
    if (t->big_endian)
        return t->data[at] * 256u + t->data[at + 1];
    return t->data[at + 1] * 256u + t->data[at];
}

static uint32_t exif_u32_at(const struct tiff *t, size_t at) {
    uint32_t a = u16_at(t, at), b = u16_at(t, at + 2);

    if (t->big_endian)
        return a << 16 | b;
    return b << 16 | a;
}

int exif_orientation(const uint8_t *data, size_t len) {
    struct tiff t = {data, len, false};

    if (len >= 6 && memcmp(data, "Exif\0", 6) == 0) {
        t.data += 6;
        t.len -= 6;
    }
    if (t.len < 8 || (memcmp(t.data, "II*\0", 4) != 0 && memcmp(t.data, "MM\0*", 4) != 0))
        return 1;
    t.big_endian = t.data[0] == 'M';
    size_t at = exif_u32_at(&t, 4);
    uint32_t n = u16_at(&t, at);
    for (uint32_t i = 0; i < n; i++) {
        size_t entry = at + 2 + 12 * (size_t)i;

        if (u16_at(&t, entry) != TAG_ORIENTATION || u16_at(&t, entry + 2) != TYPE_SHORT)
            continue;
        uint32_t v = u16_at(&t, entry + 8);
        if (v < 1 || v > 8)
            return 1;
        return (int)v;
    }
    return 1;
}
