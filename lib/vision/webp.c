/* Decodes WebP with libwebp. The first frame of an animation is decoded if it covers the canvas. */

#include <errno.h>
#include <string.h>
#include <webp/decode.h>

#include "base/try.h"
#include "vision/formats.h"

static uint32_t webp_u32_at(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* Finds chunk @name among those from @at on; NULL: there is none. */
static const uint8_t *find_chunk(const uint8_t *data, size_t at, size_t len, const char *name,
                                 size_t *n) {
    while (len - at >= 8) {
        size_t size = webp_u32_at(data + at + 4);

        if (size > len - at - 8)
            return NULL;
        if (memcmp(data + at, name, 4) == 0) {
            *n = size;
            return data + at + 8;
        }
        at += 8 + size + (size & 1);
        if (at > len)
            return NULL;
    }
    return NULL;
}

/* Describes why libwebp refused the file. */
static int webp_refuse(VP8StatusCode status, struct err *err) {
    if (status == VP8_STATUS_OUT_OF_MEMORY)
        return -ENOMEM;
    const char *what = "damaged";

    if (status == VP8_STATUS_NOT_ENOUGH_DATA)
        what = "cut off";
    else if (status == VP8_STATUS_UNSUPPORTED_FEATURE)
        what = "of an unknown form";
    return err_set(err, 0, NULL, "the WebP file is %s", what);
}

/* Decodes one frame, in a file or in a frame's chunk, whose chunks begin at @first. libwebp has no
 * rows before the whole picture is decoded. */
static int decode_frame(const uint8_t *data, size_t len, size_t first, int orientation,
                        struct fitter *out, struct err *err) {
    WebPDecoderConfig config;
    size_t n_data = 0;

    if (!find_chunk(data, first, len, "VP8 ", &n_data))
        find_chunk(data, first, len, "VP8L", &n_data);
    out->n_data = n_data;
    if (!WebPInitDecoderConfig(&config))
        return -EINVAL;
    VP8StatusCode status = WebPGetFeatures(data, len, &config.input);
    if (status != VP8_STATUS_OK)
        return webp_refuse(status, err);
    uint32_t width = (uint32_t)config.input.width, height = (uint32_t)config.input.height;
    bool has_alpha = config.input.has_alpha != 0;
    size_t n_row = (has_alpha ? 4ull : 3ull) * width, n = n_row * height;
    bool lossless = config.input.format == 2; /* four bytes a pixel more */
    TRY(fitter_begin(out, width, height, orientation, err));
    TRY(fitter_hold(out, n + (lossless ? 4ull * width * height : 0), err));
    CLEANUP(freep) uint8_t *pixels = malloc(n);
    if (!pixels)
        return -ENOMEM;
    config.output.colorspace = has_alpha ? MODE_RGBA : MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = pixels;
    config.output.u.RGBA.stride = (int)n_row;
    config.output.u.RGBA.size = n;
    status = WebPDecode(data, len, &config);
    if (status != VP8_STATUS_OK)
        return webp_refuse(status, err);
    for (uint32_t y = 0; y < height; y++) {
        if (has_alpha)
            fitter_add_rgba(out, pixels + y * n_row, width);
        else
            fitter_add(out, pixels + y * n_row);
    }
    return 0;
}

/* Bytes of a frame before its own chunks: place, size, duration and flags. */
#define FRAME_HEAD 16u

int decode_webp(const uint8_t *data, size_t len, struct fitter *out, struct err *err) {
    size_t n_exif, n_frame;
    const uint8_t *exif = find_chunk(data, 12, len, "EXIF", &n_exif);
    const uint8_t *frame = find_chunk(data, 12, len, "ANMF", &n_frame);
    int orientation = exif ? exif_orientation(exif, n_exif) : 1;

    if (!frame)
        return decode_frame(data, len, 12, orientation, out, err);
    if (n_frame <= FRAME_HEAD)
        return webp_refuse(VP8_STATUS_BITSTREAM_ERROR, err);
    return decode_frame(frame + FRAME_HEAD, n_frame - FRAME_HEAD, 0, orientation, out, err);
}
