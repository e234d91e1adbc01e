/* other - names the types of files that clients send as pictures and that are not decoded. */

#include <string.h>

#include "base/util.h"
#include "vision/picture.h"

/* Bytes at a place of the file. */
struct sign {
    const char *type;
    uint8_t at, n;
    const char *bytes;
};

static const struct sign signs[] = {
    {"a TIFF file", 0, 4, "II*\0"},
    {"a TIFF file", 0, 4, "MM\0*"},
    {"a TIFF file", 0, 4, "II+\0"},
    {"a TIFF file", 0, 4, "MM\0+"},
    {"a PDF file", 0, 5, "%PDF-"},
    {"a JPEG XL file", 0, 2, "\xFF\x0A"},
    {"a JPEG XL file", 4, 8, "JXL \r\n\x87\n"},
    {"a JPEG 2000 file", 4, 8, "jP  \r\n\x87\n"},
    {"a Windows icon", 0, 4, "\0\0\1\0"},
    {"a Photoshop file", 0, 4, "8BPS"},
};

/* Major and compatible brands of files of ISO's base media format, the first that is found. */
static const struct sign brands[] = {
    {"an AVIF file", 0, 4, "avif"}, {"an AVIF file", 0, 4, "avis"}, {"a HEIC file", 0, 4, "heic"},
    {"a HEIC file", 0, 4, "heix"},  {"a HEIC file", 0, 4, "hevc"},  {"a HEIC file", 0, 4, "heim"},
    {"a HEIC file", 0, 4, "heis"},  {"a HEIC file", 0, 4, "mif1"},  {"a HEIC file", 0, 4, "msf1"},
};

/* Beginnings of elements and declarations of texts, in lower case. */
static const struct sign texts[] = {
    {"an SVG file", 0, 4, "<svg"},
    {"an HTML page", 0, 5, "<html"},
    {"an HTML page", 0, 14, "<!doctype html"},
};

/* Returns true for a BMP file: after "BM" and its length four bytes are reserved and 0. */
static bool is_bitmap(const char *data, size_t len) {
    return len >= 14 && memcmp(data, "BM", 2) == 0 && memcmp(data + 6, "\0\0\0", 4) == 0;
}

#define TEXT_MAX 1024u /* bytes of a text in which its first element begins */

/* Finds the type of a file that begins with a box of brands ("ftyp"). */
static const char *find_brand(const char *data, size_t len) {
    size_t size = (size_t)(uint8_t)data[2] << 8 | (uint8_t)data[3];

    if (data[0] || data[1] || size > len)
        size = MIN(len, 256u);
    for (size_t i = 0; i < ARRAY_SIZE(brands); i++)
        for (size_t at = 8; at + 4 <= size; at += 4)
            if (memcmp(data + at, brands[i].bytes, 4) == 0)
                return brands[i].type;
    return "a video file";
}

/* Finds the type of a text with markup, whose first element may follow declarations and
 * comments. */
static const char *other_find_text(const char *data, size_t len) {
    static const char mark[] = "\xEF\xBB\xBF"; /* of UTF-8 */
    char text[TEXT_MAX];
    size_t n = MIN(len, sizeof(text)), at = n >= 3 && memcmp(data, mark, 3) == 0 ? 3 : 0;

    for (size_t i = 0; i < n; i++)
        text[i] = data[i] >= 'A' && data[i] <= 'Z' ? (char)(data[i] - 'A' + 'a') : data[i];
    while (at < n && strchr(" \t\r\n", text[at]) && text[at])
        at++;
    if (at == n || text[at] != '<')
        return NULL;
    for (; at < n; at++)
        for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
            if (texts[i].n <= n - at && memcmp(text + at, texts[i].bytes, texts[i].n) == 0)
                return texts[i].type;
    return NULL;
}

const char *picture_other_type(const void *data, size_t len) {
    const char *bytes = data;

    if (len >= 12 && memcmp(bytes + 4, "ftyp", 4) == 0)
        return find_brand(bytes, len);
    if (is_bitmap(bytes, len))
        return "a BMP file";
    for (size_t i = 0; i < ARRAY_SIZE(signs); i++) {
        const struct sign *s = &signs[i];

        if (s->at + (size_t)s->n <= len && memcmp(bytes + s->at, s->bytes, s->n) == 0)
            return s->type;
    }
    return other_find_text(bytes, len);
}
