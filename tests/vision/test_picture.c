/* What becomes of picture files: the pixels that Pillow gives, and reasons for refusals. */

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/vision/pictures.h"
#include "vision/formats.h"

enum { FILES = 64 };

/* Returns true for the files that test_alpha.c is about. */
static bool is_transparent(const char *name) {
    return strcmp(name, "rgba8.png") == 0 || strcmp(name, "alpha.webp") == 0;
}

Test(picture, pixels_are_those_that_pillow_gives) {
    struct expected e[FILES];
    size_t n = expected_read(e, FILES), n_same = 0, n_refused = 0;

    for (size_t i = 0; i < n; i++) {
        CLEANUP(file_deinit) struct file f = file_read("decode", e[i].name);
        CLEANUP(picture_deinit) struct picture p = {0};
        struct err err = {0};
        char digest[65];
        int r = picture_decode(f.data, f.len, &p, &err);

        if (!*e[i].sha256) {
            cr_expect(r == -22 && *err.message && !p.rgb, "%s: %d", e[i].name, r);
            n_refused++;
            continue;
        }
        cr_assert(r == 0, "%s: %s", e[i].name, err.message);
        cr_expect(p.width == e[i].width && p.height == e[i].height, "%s: %u x %u", e[i].name,
                  p.width, p.height);
        picture_sha256(&p, digest);
        if (is_transparent(e[i].name)) { /* Pillow's pixels are those without alpha */
            cr_expect(strcmp(digest, e[i].sha256) != 0, "%s", e[i].name);
            continue;
        }
        cr_expect(strcmp(digest, e[i].sha256) == 0, "%s has other pixels", e[i].name);
        n_same++;
    }
    cr_expect(n_same == 18 && n_refused == 10, "%zu, %zu", n_same, n_refused);
}

static void expect_refusal(const char *name, const char *part) {
    CLEANUP(file_deinit) struct file f = file_read("decode", name);
    struct picture p = {0};
    struct err err = {0};

    cr_expect(picture_decode(f.data, f.len, &p, &err) < 0 && strstr(err.message, part),
              "%s: expected '%s' in '%s'", name, part, err.message);
}

Test(picture, refusals_say_why) {
    expect_refusal("bomb-30000x30000-1bit.png", "30000 x 30000 pixels; at most 16384 a side");
    expect_refusal("claims-65500x65500.jpg", "65500 x 65500 pixels");
    expect_refusal("cut.png", "the PNG file is damaged: it is cut off");
    expect_refusal("cut.jpg", "the JPEG file is damaged: Premature end of JPEG file");
    expect_refusal("bad-crc.png", "the PNG file is damaged: IDA");
    expect_refusal("text.png", "no PNG, JPEG, WebP or GIF file");
    expect_refusal("empty.png", "no PNG, JPEG, WebP or GIF file");
}

Test(picture, refusals_name_what_was_sent) {
    static const struct {
        const char *data;
        size_t n;
        const char *type;
    } rows[] = {
#define ROW(s, type) {s, sizeof(s) - 1, type}
        ROW("BM\x36\x30\0\0\0\0\0\0\x36\0\0\0\x28", "a BMP file"),
        ROW("\0\0\0\x18"
            "ftypheic\0\0\0\0mif1heic",
            "a HEIC file"),
        ROW("\0\0\0\x18"
            "ftypmif1\0\0\0\0mif1avif",
            "an AVIF file"),
        ROW("\0\0\0\x14"
            "ftypisom\0\0\0\0avif",
            "an AVIF file"),
        ROW("\0\0\0\x10"
            "ftypisom\0\0\0\0avif",
            "a video file"),
        ROW("II*\0\x08\0\0\0", "a TIFF file"),
        ROW("MM\0*\0\0\0\x08", "a TIFF file"),
        ROW("%PDF-1.7\n", "a PDF file"),
        ROW("<svg xmlns='http://www.w3.org/2000/svg'/>", "an SVG file"),
        ROW("\xEF\xBB\xBF\n<?xml version='1.0'?><!-- x --><SVG/>", "an SVG file"),
        ROW("<!DOCTYPE html><svg></svg>", "an HTML page"),
        ROW("\xFF\x0A\0\0", "a JPEG XL file"),
#undef ROW
    };
    struct picture p = {0};

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        struct err err = {0};

        cr_expect(picture_decode(rows[i].data, rows[i].n, &p, &err) == -22);
        cr_expect(strstr(err.message, rows[i].type) && strstr(err.message, "only PNG, JPEG"),
                  "%s: %s", rows[i].type, err.message);
    }
    static const char *const unknown[] = {"BMW has built cars", R"({"error": "<svg"})", "<", " "};

    for (size_t i = 0; i < ARRAY_SIZE(unknown); i++)
        cr_expect_null(picture_other_type(unknown[i], strlen(unknown[i])), "%s", unknown[i]);
}

Test(picture, the_bytes_decide_the_type) {
    static const char *const names[][2] = {
        {"rgb8.png", "PNG"}, {"q90-420.jpg", "JPEG"}, {"lossy.webp", "WebP"}, {"plain.gif", "GIF"}};

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        CLEANUP(file_deinit) struct file f = file_read("decode", names[i][0]);

        cr_expect_str_eq(picture_type(f.data, f.len), names[i][1]);
        cr_expect(picture_type(f.data, 3) == NULL);
    }
    cr_expect(picture_type("RIFF\x24\0\0\0WAVE", 12) == NULL);
}

/* Of 3 x 2 pixels with the values 0 to 5, by the description of the tag. */
Test(picture, orientations_turn_and_mirror) {
    static const struct {
        uint32_t width;
        uint8_t pixel[6];
    } should[9] = {
        [1] = {3, {0, 1, 2, 3, 4, 5}}, [2] = {3, {2, 1, 0, 5, 4, 3}}, [3] = {3, {5, 4, 3, 2, 1, 0}},
        [4] = {3, {3, 4, 5, 0, 1, 2}}, [5] = {2, {0, 3, 1, 4, 2, 5}}, [6] = {2, {3, 0, 4, 1, 5, 2}},
        [7] = {2, {5, 2, 4, 1, 3, 0}}, [8] = {2, {2, 5, 1, 4, 0, 3}}};

    for (int o = 1; o <= 8; o++) {
        CLEANUP(fitter_deinit) struct fitter f = {0};
        const struct picture *p = &f.out;

        cr_assert(fitter_begin(&f, 3, 2, o, NULL) == 0);
        for (uint8_t y = 0; y < 2; y++) {
            const uint8_t v = y * 3, row[] = {v, v, v, v + 1, v + 1, v + 1, v + 2, v + 2, v + 2};

            fitter_add(&f, row);
        }
        cr_expect(p->width == should[o].width && p->width * p->height == 6);
        for (int i = 0; i < 6; i++)
            cr_expect(p->rgb[3 * i] == should[o].pixel[i], "orientation %d, pixel %d", o, i);
    }
}

Test(picture, orientation_is_found_in_both_byte_orders) {
    static const char little[] = "Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
    static const char big[] = "MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x08\0\0";
    static const char unknown[] = "MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x09\0\0";

    cr_expect(exif_orientation((const uint8_t *)little, sizeof(little) - 1) == 6);
    cr_expect(exif_orientation((const uint8_t *)big, sizeof(big) - 1) == 8);
    cr_expect(exif_orientation((const uint8_t *)unknown, sizeof(unknown) - 1) == 1);
    for (size_t n = 0; n < sizeof(big) - 4; n++)
        cr_expect(exif_orientation((const uint8_t *)big, n) == 1, "%zu bytes", n);
}

/* At the limits and one beyond them: of a side, of all pixels, of the file. */
Test(picture, sizes_are_bounded) {
    static const struct {
        uint64_t width, height;
        bool fits;
    } sizes[] = {{16384, 4096, true}, {16384, 4097, false},          {16385, 1, false},
                 {1, 16385, false},   {UINT64_C(1) << 32, 1, false}, {0, 1, false}};
    CLEANUP(freep) uint8_t *large = calloc(1, PICTURE_FILE_MAX + 1);
    struct picture p = {0};
    struct err err = {0};

    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++) {
        CLEANUP(picture_deinit) struct picture q = {0};

        cr_expect((picture_new(&q, sizes[i].width, sizes[i].height, &err) == 0) == sizes[i].fits,
                  "%zu", i);
    }
    cr_expect(picture_decode(large, PICTURE_FILE_MAX + 1, &p, &err) < 0 &&
                  strstr(err.message, "bytes; at most"),
              "%s", err.message);
}

static size_t put(uint8_t *out, size_t at, const char *bytes, size_t n) {
    memcpy(out + at, bytes, n);
    return at + n;
}

/* Writes a JPEG of 8 x 8 gray pixels in three components, with @n scans of the first one. */
static size_t make_scans(uint8_t *out, int n) {
#define PUT(s) at = put(out, at, s, sizeof(s) - 1)
    static const char head[] = "\xFF\xC0\0\x11\x08\0\x08\0\x08\x03\x01\x11\0\x02\x11\0\x03\x11\0"
                               "\xFF\xC4\0\x14\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
                               "\xFF\xC4\0\x14\x10\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    size_t at = 0;

    PUT("\xFF\xD8\xFF\xDB\0\x43\0");
    memset(out + at, 1, 64);
    at += 64;
    PUT(head);
    for (int i = 0; i < n + 2; i++) {
        int c = i < n ? 1 : i - n + 2;

        PUT("\xFF\xDA\0\x08\x01");
        out[at++] = (uint8_t)c;
        PUT("\0\0\x3F\0\x3F");
    }
    PUT("\xFF\xD9");
#undef PUT
    return at;
}

/* Each scan of a file may cost as much as the whole picture. */
Test(picture, a_jpeg_of_many_scans_is_refused) {
    static uint8_t file[8192];
    struct err err = {0};

    for (int n = 1; n < 500; n += 249) {
        CLEANUP(picture_deinit) struct picture p = {0};
        int r = picture_decode(file, make_scans(file, n), &p, &err);

        cr_expect((r == 0) == (n == 1), "%d scans: %s", n, err.message);
    }
    cr_expect(strstr(err.message, "more than 200 scans"), "%s", err.message);
}

/* A GIF of two colours and 3 x 3 pixels, of which the frame has one, or none. */
static void make_gif(uint8_t out[35], uint8_t width, uint8_t height) {
    static const char gif[35] = "GIF89a\x03\0\x03\0\x80\0\0\x0A\x14\x1E\x28\x32\x3C"
                                ",\x01\0\x01\0\x01\0\x01\0\0\x02\x02\x4C\x01\0;";

    memcpy(out, gif, sizeof(gif));
    out[24] = width;
    out[26] = height;
}

Test(picture, what_a_frame_leaves_out_is_background) {
    CLEANUP(picture_deinit) struct picture p = {0};
    struct err err = {0};
    uint8_t gif[35];

    make_gif(gif, 1, 1);
    cr_assert(picture_decode(gif, sizeof(gif), &p, &err) == 0, "%s", err.message);
    cr_assert(p.width == 3 && p.height == 3);
    for (int i = 0; i < 9; i++)
        cr_expect_eq(p.rgb[3 * i], i == 4 ? 0x28 : 0x0A, "pixel %d", i);
}

static void expect_damage(const uint8_t *data, size_t n, const char *part) {
    CLEANUP(picture_deinit) struct picture p = {0};
    struct err err = {.status = 7};

    cr_expect(picture_decode(data, n, &p, &err) < 0 && strstr(err.message, part),
              "expected '%s' in '%s'", part, err.message);
    cr_expect_eq(err.status, 0);
}

Test(picture, damaged_gif_and_webp_files_are_named) {
    CLEANUP(file_deinit) struct file webp = file_read("decode", "lossy.webp");
    uint8_t gif[35];

    make_gif(gif, 1, 1);
    expect_damage(gif, 20, "the GIF file is damaged");
    expect_damage(gif, 31, "the GIF file is damaged");
    make_gif(gif, 0, 1);
    expect_damage(gif, sizeof(gif), "the GIF file is damaged");
    make_gif(gif, 1, 0);
    expect_damage(gif, sizeof(gif), "the GIF file is damaged");
    expect_damage(webp.data, 25, "the WebP file is cut off");
    memset(webp.data + 20, 0xFF, 10);
    expect_damage(webp.data, webp.len, "the WebP file is damaged");
}

/* A file whose last chunk says that its picture lies on its side. */
Test(picture, orientation_of_webp_is_applied) {
    static const char exif[] = "EXIF\x1A\0\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06"
                               "\0\0\0\0\0\0";
    CLEANUP(file_deinit) struct file f = file_read("decode", "lossy.webp");
    CLEANUP(picture_deinit) struct picture plain = {0}, turned = {0};
    struct err err = {0};
    size_t n = 30 + f.len - 12 + sizeof(exif) - 1;
    CLEANUP(freep) uint8_t *data = calloc(1, n);

    cr_assert(picture_decode(f.data, f.len, &plain, &err) == 0);
    memcpy(data, "RIFF\0\0\0\0WEBPVP8X\x0A\0\0\0\x08\0\0\0", 24);
    for (int i = 0; i < 4; i++)
        data[4 + i] = (uint8_t)((n - 8) >> 8 * i);
    for (int i = 0; i < 3; i++) {
        data[24 + i] = (uint8_t)((plain.width - 1) >> 8 * i);
        data[27 + i] = (uint8_t)((plain.height - 1) >> 8 * i);
    }
    memcpy(data + 30, f.data + 12, f.len - 12);
    memcpy(data + 30 + f.len - 12, exif, sizeof(exif) - 1);
    cr_assert(picture_decode(data, n, &turned, &err) == 0, "%s", err.message);
    cr_assert(plain.width != plain.height);
    cr_expect(turned.width == plain.height && turned.height == plain.width);
}

/* Libjpeg holds all three components of a file with several scans: here 2.3 MiB. */
Test(picture, every_component_counts_as_held) {
    static uint8_t file[4096];
    size_t n = make_scans(file, 0);
    struct picture_fit fit = {
        .projector = {.kind = PROJECTOR_QWEN3VL, .patch = 16, .merge = 2, .least = 1, .most = 16},
        .max_megapixels = 1};
    CLEANUP(picture_deinit) struct picture p = {0};
    struct picture_layout l;
    struct err err = {0};
    uint8_t *size = memmem(file, n, "\x08\0\x08\0\x08\x03", 6);

    cr_assert(size);
    memcpy(size + 1, "\x02\x80\x02\x80", 4);
    cr_expect(picture_decode_fit(file, n, &fit, &p, &l, &err) < 0 &&
                  strstr(err.message, "as a whole, which takes 2 MiB for 640 x 640"),
              "%s", err.message);
}
