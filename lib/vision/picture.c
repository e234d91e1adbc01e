#include "vision/picture.h"

#include <errno.h>

#include "base/try.h"

int picture_check(uint64_t width, uint64_t height, uint32_t max_megapixels, struct err *err) {
    if (width == 0 || height == 0)
        return err_set(err, 0, NULL, "the picture has no pixels");
    if (width <= PICTURE_SIDE_MAX && height <= PICTURE_SIDE_MAX &&
        width * height <= (uint64_t)max_megapixels << 20)
        return 0;
    return err_set(err, 0, NULL,
                   "the picture has %llu x %llu pixels; at most %u a side and %u megapixels "
                   "are allowed",
                   (unsigned long long)width, (unsigned long long)height, PICTURE_SIDE_MAX,
                   max_megapixels);
}

int picture_new(struct picture *out, uint64_t width, uint64_t height, struct err *err) {
    TRY(picture_check(width, height, PICTURE_MEGAPIXELS_MAX, err));
    uint8_t *rgb = calloc(picture_bytes((uint32_t)width, (uint32_t)height), 1);
    if (!rgb)
        return -ENOMEM;
    *out = (struct picture){(uint32_t)width, (uint32_t)height, rgb};
    return 0;
}

void picture_deinit(struct picture *p) {
    free(p->rgb);
    *p = (struct picture){0};
}
