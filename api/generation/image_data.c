#include "api/generation/image_data.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/try.h"
#include "base/util.h"
#include "vision/picture.h"

#define BASE64 ";base64"
#define TYPE_MAX 256u /* bytes of a data URI before its comma */

static int image_data_refuse(struct err *err, const char *code, const char *place,
                             const char *must) {
    return err_set_code(err, 400, code, place, "%s: %s.", place, must);
}

/* Returns the value of a base64 digit (also of the URL alphabet), 64 for white space, 65 for any
 * other byte. */
static unsigned image_data_value(unsigned char c) {
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26u;
    if (c >= '0' && c <= '9')
        return c - '0' + 52u;
    if (c == '+' || c == '-')
        return 62;
    if (c == '/' || c == '_')
        return 63;
    if (isspace(c))
        return 64;
    return 65;
}

/* Decodes base64 into @out, which has room for len / 4 * 3 + 3 bytes. Returns false if @s is not
 * base64. */
static bool image_data_decode(const char *s, size_t len, uint8_t *out, size_t *n) {
    uint8_t table[256];
    uint32_t bits = 0;
    size_t n_digits = 0, at = 0;

    for (unsigned c = 0; c < 256; c++)
        table[c] = (uint8_t)image_data_value((unsigned char)c);
    while (len && (s[len - 1] == '=' || table[(unsigned char)s[len - 1]] == 64))
        len--;
    for (size_t i = 0; i < len; i++) {
        unsigned v = table[(unsigned char)s[i]];

        if (v == 64)
            continue;
        if (v > 64)
            return false;
        bits = bits << 6 | v;
        if (++n_digits % 4 == 0) {
            out[at++] = (uint8_t)(bits >> 16);
            out[at++] = (uint8_t)(bits >> 8);
            out[at++] = (uint8_t)bits;
        }
    }
    if (n_digits % 4 == 2) {
        out[at++] = (uint8_t)(bits >> 4);
    } else if (n_digits % 4 == 3) {
        out[at++] = (uint8_t)(bits >> 10);
        out[at++] = (uint8_t)(bits >> 2);
    }
    *n = at;
    return n_digits % 4 != 1 && at > 0;
}

/* Advances *@s past the head of a data URI. */
static int skip_head(const char **s, size_t *len, const char *place, struct err *err) {
    const char *comma = memchr(*s, ',', MIN(*len, TYPE_MAX));
    size_t head = comma ? (size_t)(comma - *s) : 0, tail = sizeof(BASE64) - 1;

    if (!comma || head < tail || strncasecmp(comma - tail, BASE64, tail) != 0)
        return image_data_refuse(err, "invalid_image_url", place,
                                 "it must be a data URI with base64 (data:image/png;base64,...)");
    *len -= head + 1;
    *s = comma + 1;
    return 0;
}

static bool image_data_begins(const char *s, size_t len, const char *with) {
    return len >= strlen(with) && strncasecmp(s, with, strlen(with)) == 0;
}

int image_data_read(const char *s, size_t len, const char *place, uint8_t **out, size_t *n,
                    struct err *err) {
    if (image_data_begins(s, len, "http:") || image_data_begins(s, len, "https:"))
        return image_data_refuse(
            err, "invalid_image_url", place,
            "it is an address, and this service fetches none (option picture-hosts): send the "
            "picture itself as a data URI with base64");
    if (image_data_begins(s, len, "file:"))
        return image_data_refuse(
            err, "invalid_image_url", place,
            "it names a file, and this service opens none: send the picture itself as a "
            "data URI with base64");
    if (image_data_begins(s, len, "data:"))
        TRY(skip_head(&s, &len, place, err));
    if (len / 4 > PICTURE_FILE_MAX / 3 + 2)
        return err_set_code(err, 413, "image_too_large", place, "%s: it has more than %u MiB.",
                            place, PICTURE_FILE_MAX >> 20);
    uint8_t *data = malloc(len / 4 * 3 + 3);
    if (!data)
        return -ENOMEM;
    if (!image_data_decode(s, len, data, n)) {
        free(data);
        return image_data_refuse(err, "invalid_base64", place, "it must be a picture in base64");
    }
    *out = data;
    return 0;
}
