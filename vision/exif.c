#include <assert.h>
#include <errno.h>
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
    return t->big_endian ? t->data[at] * 256u + t->data[at + 1]
                         : t->data[at + 1] * 256u + t->data[at];
}

static uint32_t u32_at(const struct tiff *t, size_t at) {
    uint32_t a = u16_at(t, at), b = u16_at(t, at + 2);

    return t->big_endian ? a << 16 | b : b << 16 | a;
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
    size_t at = u32_at(&t, 4);
    uint32_t n = u16_at(&t, at);
    for (uint32_t i = 0; i < n; i++) {
        size_t entry = at + 2 + 12 * (size_t)i;

        if (u16_at(&t, entry) != TAG_ORIENTATION || u16_at(&t, entry + 2) != TYPE_SHORT)
            continue;
        uint32_t v = u16_at(&t, entry + 8);
        return v >= 1 && v <= 8 ? (int)v : 1;
    }
    return 1;
}

int exif_turn(struct picture *p, int orientation) {
    /* Bit 0: columns are mirrored; bit 1: rows are; bit 2: rows become columns first. */
    static const uint8_t how[9] = {0, 0, 1, 3, 2, 4, 5, 7, 6};
    uint8_t h = how[orientation];

    assert(orientation >= 1 && orientation <= 8);
    if (h == 0)
        return 0;
    struct picture q = {h & 4 ? p->height : p->width, h & 4 ? p->width : p->height, NULL};
    q.rgb = malloc(picture_bytes(q.width, q.height));
    if (!q.rgb)
        return -ENOMEM;
    for (uint32_t y = 0; y < q.height; y++)
        for (uint32_t x = 0; x < q.width; x++) {
            uint32_t u = h & 1 ? q.width - 1 - x : x, v = h & 2 ? q.height - 1 - y : y;
            size_t from = h & 4 ? (size_t)u * p->width + v : (size_t)v * p->width + u;

            memcpy(q.rgb + ((size_t)y * q.width + x) * 3, p->rgb + from * 3, 3);
        }
    picture_deinit(p);
    *p = q;
    return 0;
}
