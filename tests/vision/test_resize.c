/* Sizes: the same bytes as Pillow's filters give. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tests/vision/pictures.h"
#include "vision/resize.h"

Test(resize, every_byte_is_that_of_pillow) {
    static const char *const names[] = {"bilinear", "bicubic", "lanczos"};
    static const uint32_t sizes[][2] = {{28, 28}, {7, 200}, {96, 64}, {224, 128}};
    CLEANUP(picture_deinit) struct picture source = picture_read("resize", "source-97x61.png");

    for (int f = 0; f < 3; f++)
        for (int i = 0; i < (f == FILTER_BICUBIC ? 4 : 3); i++) {
            CLEANUP(picture_deinit) struct picture p = {0};
            uint32_t w = sizes[i][0], h = sizes[i][1];
            char name[64];

            snprintf(name, sizeof(name), "%s-%ux%u.png", names[f], w, h);
            CLEANUP(picture_deinit) struct picture should = picture_read("resize", name);
            cr_assert(picture_resize(&source, w, h, (enum picture_filter)f, &p, NULL) == 0);
            cr_assert(p.width == should.width && p.height == should.height);
            cr_expect(memcmp(p.rgb, should.rgb, picture_bytes(w, h)) == 0, "%s differs", name);
        }
}

Test(resize, the_same_size_changes_nothing) {
    CLEANUP(picture_deinit) struct picture source = picture_read("resize", "source-97x61.png");

    for (int f = 0; f < 3; f++) {
        CLEANUP(picture_deinit) struct picture p = {0};

        cr_assert(picture_resize(&source, 97, 61, (enum picture_filter)f, &p, NULL) == 0);
        cr_expect(memcmp(p.rgb, source.rgb, picture_bytes(97, 61)) == 0);
    }
}

Test(resize, sizes_beyond_the_limits_are_refused) {
    CLEANUP(picture_deinit) struct picture source = picture_read("resize", "source-97x61.png");
    struct picture p = {0};
    struct err err = {0};

    cr_expect(picture_resize(&source, 0, 5, FILTER_BICUBIC, &p, &err) < 0 && *err.message);
    cr_expect(picture_resize(&source, 1u << 30, 5, FILTER_BICUBIC, &p, &err) < 0);
    cr_expect(p.rgb == NULL);
}

Test(resize, padding_keeps_the_aspect_in_the_middle_of_black) {
    CLEANUP(picture_deinit) struct picture source = picture_read("resize", "source-97x61.png");
    CLEANUP(picture_deinit) struct picture padded = {0};
    CLEANUP(picture_deinit) struct picture small = {0};

    cr_assert(picture_pad(&source, 96, 96, FILTER_BICUBIC, &padded, NULL) == 0);
    cr_assert(picture_resize(&source, 96, 61, FILTER_BICUBIC, &small, NULL) == 0);
    for (size_t i = 0; i < picture_bytes(96, 96); i++) {
        size_t y = i / (96 * 3);
        uint8_t should = y >= 17 && y < 78 ? small.rgb[i - 17 * 96 * 3] : 0;

        cr_assert(padded.rgb[i] == should, "byte %zu of row %zu", i % (96 * 3), y);
    }
}

/* Loops for AVX2 and for every processor. */
Test(resize, instructions_change_no_byte) {
    static const uint32_t sizes[][2] = {{1, 1}, {7, 200}, {96, 33}, {201, 61}, {97, 64}};
    CLEANUP(picture_deinit) struct picture source = picture_read("resize", "source-97x61.png");

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        for (int o = 1; o <= 8; o++) {
            struct picture p[2] = {0};

            for (int plain = 0; plain < 2; plain++) {
                CLEANUP(resizer_deinit) struct resizer r = {0};
                const struct picture_place all = {0, 0, sizes[i][0], sizes[i][1]};

                cr_assert(picture_new(&p[plain], all.width, all.height, NULL) == 0);
                cr_assert(resizer_init(&r, 97, 61, o, FILTER_LANCZOS, &p[plain], all) == 0);
                r.wide = r.wide && !plain;
                for (uint32_t y = 0; y < 61; y++)
                    resizer_add(&r, source.rgb + picture_bytes(97, y));
            }
            cr_expect(memcmp(p[0].rgb, p[1].rgb, picture_bytes(p[0].width, p[0].height)) == 0);
            picture_deinit(&p[0]);
            picture_deinit(&p[1]);
        }
}

/* -- memory ------------------------------------------------------------------------------------ */

static int fail_at; /* the next call of calloc() that fails is this one; 0: none fails */

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);

void *__wrap_calloc(size_t n, size_t size) {
    return fail_at > 0 && --fail_at == 0 ? NULL : __real_calloc(n, size);
}

Test(resize, memory_may_be_short_at_any_allocation) {
    struct picture in = {0}, out = {0};
    struct err err;
    int r = -ENOMEM;

    cr_assert_eq(picture_new(&in, 16, 12, &err), 0);
    for (int at = 1; r != 0; at++) {
        fail_at = at;
        r = picture_resize(&in, 5, 4, FILTER_BICUBIC, &out, &err);
        fail_at = 0;
        cr_assert(at < 30 && (r == 0 || r == -ENOMEM), "%d", r);
    }
    picture_deinit(&in);
    picture_deinit(&out);
}
