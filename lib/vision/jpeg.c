/*
 * Decodes JPEG with libjpeg-turbo, with the accurate integer transform and its smooth upsampling,
 * as Pillow does. Warnings (data that is cut off, wrong markers between scans) are errors, since
 * the rest of the picture would not come from the file.
 */

#include <errno.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

/* Needs size_t and FILE. */
#include <jpeglib.h>

#include "base/try.h"
#include "vision/formats.h"

/* Scans of a progressive file, of which real files have about ten. A scan of 54 bytes can visit all
 * coefficients, which takes about an eighth of the time of decoding as many counted bytes. So
 * SCANS_FREE scans are free, and further ones count. */
#define SCANS_MAX 200u
#define SCANS_FREE 16u
#define SCAN_PART 8u

struct reader {
    /* first member, because libjpeg passes its address */
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf out;
    struct err *err;
    unsigned scans_max;
};

static void decode_jpeg_on_error(j_common_ptr jpeg) {
    struct reader *r = (struct reader *)jpeg->err;
    char message[JMSG_LENGTH_MAX];

    jpeg->err->format_message(jpeg, message);
    err_set(r->err, 0, NULL, "the JPEG file is damaged: %s", message);
    longjmp(r->out, 1);
}

static void decode_jpeg_on_message(j_common_ptr jpeg, int level) {
    if (level < 0)
        decode_jpeg_on_error(jpeg);
}

/* Ends the decoding of a file with too many scans. */
static void decode_jpeg_on_progress(j_common_ptr jpeg) {
    struct reader *r = (struct reader *)jpeg->err;

    if ((unsigned)((j_decompress_ptr)jpeg)->input_scan_number <= r->scans_max)
        return;
    err_set(r->err, 0, NULL, "the JPEG file has more than %u scans, too many for its size",
            r->scans_max);
    longjmp(r->out, 1);
}

static int read_orientation(const struct jpeg_decompress_struct *jpeg) {
    int out = 1;

    for (jpeg_saved_marker_ptr m = jpeg->marker_list; m; m = m->next)
        if (m->marker == JPEG_APP0 + 1 && m->data_length >= 6 && memcmp(m->data, "Exif\0", 6) == 0)
            out = exif_orientation(m->data, m->data_length);
    return out;
}

/* Returns the bytes of all scans, without the segments before, between and after them. */
static uint64_t scan_bytes(const uint8_t *data, size_t len) {
    uint64_t n = 0;
    bool scan = false;

    for (size_t at = 2; at + 1 < len;) {
        uint8_t kind = data[at + 1];

        if (data[at] != 0xFF || kind == 0 || (kind >= 0xD0 && kind <= 0xD7)) {
            n += scan; /* an escaped 0xFF and a restart marker belong to the scan */
            at++;
        } else if (kind == 0xFF) {
            at++; /* a fill byte */
        } else if (kind == 0xD9 || len - at < 4) {
            break;
        } else {
            scan = kind == 0xDA;
            at += 2 + ((size_t)data[at + 2] << 8 | data[at + 3]);
        }
    }
    return n;
}

/* Returns the bytes of coefficients that libjpeg holds of a file with several scans. */
static uint64_t held_bytes(const struct jpeg_decompress_struct *jpeg) {
    uint64_t n = 0;

    for (int i = 0; i < jpeg->num_components; i++) {
        const jpeg_component_info *c = &jpeg->comp_info[i];

        n += (uint64_t)c->width_in_blocks * c->height_in_blocks * sizeof(JBLOCK);
    }
    return n;
}

/* Converts CMYK to RGB as Pillow does: files have the inks inverted, as Adobe writes them. */
static void from_cmyk(const uint8_t *in, uint8_t *out, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < 3; c++) {
            unsigned light = in[4 * i + 3], t = (255u - in[4 * i + c]) * light + 128u;

            out[3 * i + c] = (uint8_t)(light - ((t + (t >> 8)) >> 8));
        }
}

/* Reads the file; most errors leave the function by longjmp(). */
static int decode_jpeg_read_file(struct jpeg_decompress_struct *jpeg, const uint8_t *data,
                                 size_t len, struct fitter *out, struct err *err) {
    jpeg_mem_src(jpeg, data, len);
    jpeg_save_markers(jpeg, JPEG_APP0 + 1, 0xFFFF);
    jpeg_read_header(jpeg, TRUE);
    out->n_data = scan_bytes(data, len);
    TRY(fitter_begin(out, jpeg->image_width, jpeg->image_height, read_orientation(jpeg), err));
    if (jpeg_has_multiple_scans(jpeg)) {
        uint64_t held = held_bytes(jpeg);

        TRY(fitter_hold(out, held, err));
        TRY(fitter_count(out, held, err));
        uint64_t left = fitter_count_max(out) - out->n_counted;
        ((struct reader *)jpeg->err)->scans_max =
            (unsigned)MIN(SCANS_MAX, SCANS_FREE + left / MAX(held / SCAN_PART, 1u));
    }
    bool cmyk = jpeg->num_components == 4;
    jpeg->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(jpeg);
    /* libjpeg frees the rows */
    JSAMPARRAY rows = jpeg->mem->alloc_sarray((j_common_ptr)jpeg, JPOOL_IMAGE,
                                              jpeg->output_width * (cmyk ? 4u : 3u), cmyk ? 2 : 1);
    while (jpeg->output_scanline < jpeg->output_height) {
        jpeg_read_scanlines(jpeg, rows, 1);
        if (cmyk)
            from_cmyk(rows[0], rows[1], jpeg->output_width);
        fitter_add(out, rows[cmyk]);
    }
    jpeg_finish_decompress(jpeg);
    return 0;
}

int decode_jpeg(const uint8_t *data, size_t len, struct fitter *out, struct err *err) {
    struct reader reader = {.err = err,
                            .progress = {.progress_monitor = decode_jpeg_on_progress},
                            .scans_max = SCANS_MAX};
    struct jpeg_decompress_struct jpeg = {.err = jpeg_std_error(&reader.errors)};
    volatile int r = -EINVAL;

    reader.errors.error_exit = decode_jpeg_on_error;
    reader.errors.emit_message = decode_jpeg_on_message;
    if (setjmp(reader.out) == 0) {
        jpeg_create_decompress(&jpeg);
        jpeg.progress = &reader.progress;
        r = decode_jpeg_read_file(&jpeg, data, len, out, err);
    }
    jpeg_destroy_decompress(&jpeg);
    return r;
}
