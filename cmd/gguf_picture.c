/*
 * weft-gguf picture - describes a picture file, decoded in a separate process as the daemon does.
 */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/try.h"
#include "checkpoint/checkpoint.h"
#include "cmd/bench_clock.h"
#include "cmd/cli.h"
#include "cmd/gguf_cmd.h"
#include "engine/vision/encoder.h"
#include "vision/decoder.h"
#include "vision/resize.h"

static const char usage[] =
    "usage: weft-gguf picture [options] FILE...\n"
    "Decodes pictures (PNG, JPEG, WebP, the first frame of GIF) and prints type and size.\n"
    "  --size WxH      resize to W x H pixels\n"
    "  --pad           keep the aspect ratio and add black borders instead of stretching\n"
    "  --filter F      bicubic (default), bilinear or lanczos\n"
    "  -o OUT.ppm      write the pixels of the one picture, as a portable pixmap\n"
    "  --projector F   resize for this projector (mmproj) and compute the rows that a text model\n"
    "                  gets\n"
    "  --rows OUT      write these rows of the one picture, as floats\n"
    "  --min-rows N    fewest rows of a picture; default: the projector's\n"
    "  --max-rows N    most rows of a picture; default: the projector's\n"
    "  --threads N     default: one per core\n"
    "  --backend B     cpu (default) or reference\n";

struct options {
    const char *size, *filter, *out, *projector, *rows;
    bool pad;
    uint32_t min_rows;
    struct image_encoder_opts encoder;
};

/* Objects that all pictures share; without a projector the encoder is NULL. */
struct tools {
    struct decoder *decoder;
    struct gguf *file;
    struct image_encoder *encoder;
};

static void gguf_picture_tools_deinit(struct tools *t) {
    decoder_free(t->decoder);
    image_encoder_free(t->encoder);
    gguf_free(t->file);
}

static const char *const filters[] = {
    [FILTER_BILINEAR] = "bilinear", [FILTER_BICUBIC] = "bicubic", [FILTER_LANCZOS] = "lanczos"};

/* Replaces *p by the picture in the requested size, made with the requested filter. Returns 0 or
 * -errno with @err. */
static int gguf_picture_resize(struct picture *p, const struct options *o, struct err *err) {
    struct picture q = {0};
    uint32_t width, height, filter = 0;
    char end;

    if (sscanf(o->size, "%5ux%5u%c", &width, &height, &end) != 2)
        return err_set(err, 0, NULL, "--size %s is not WxH, such as 640x480", o->size);
    while (filter < ARRAY_SIZE(filters) && strcmp(filters[filter], o->filter) != 0)
        filter++;
    if (filter == ARRAY_SIZE(filters))
        return err_set(err, 0, NULL, "--filter %s is not known: use bicubic, bilinear or lanczos",
                       o->filter);
    int r = (o->pad ? picture_pad : picture_resize)(p, width, height, (enum picture_filter)filter,
                                                    &q, err);
    if (r == 0) {
        picture_deinit(p);
        *p = q;
    }
    return r;
}

static int write_pixmap(const struct picture *p, const char *path) {
    CLEANUP(buf_deinit) struct buf b = {0};
    size_t n = picture_bytes(p->width, p->height);

    buf_init(&b, n + 64);
    (void)buf_printf(&b, "P6\n%u %u\n255\n", p->width, p->height);
    TRY(buf_add(&b, p->rgb, n));
    return cli_write_file(path, 0666, b.data, b.len, false);
}

/* Resizes *p for the projector, encodes it and prints how long that took. Returns 0 or -errno with
 * @err. */
static int gguf_picture_encode(struct picture *p, const struct tools *t, const struct options *o,
                               struct err *err) {
    const struct projector *j = image_encoder_projector(t->encoder);
    struct picture_budget budget = {.least = o->min_rows, .most = o->encoder.max_rows};
    struct picture_layout l;
    struct picture q = {0};

    projector_layout(j, p->width, p->height, &budget, &l);
    TRY(projector_fit(j, p, &l, o->pad, &q, err));
    picture_deinit(p);
    *p = q;
    size_t n = (size_t)l.n_rows * image_encoder_width(t->encoder) * sizeof(float);
    CLEANUP(freep) float *rows = malloc(n);
    if (!rows)
        return -ENOMEM;
    int64_t began = bench_now_ns();
    TRY(image_encoder_run(t->encoder, p, &l, rows, err));
    printf(", for %s %u x %u: %u rows, %u positions, encoded in %.3f s", j->name, l.width, l.height,
           l.n_rows, l.n_positions, (double)(bench_now_ns() - began) / 1e9);
    if (!o->rows)
        return 0;
    return cli_write_file(o->rows, 0666, rows, n, false);
}

static int show_one(const struct tools *t, const char *path, const struct options *o) {
    CLEANUP(picture_deinit) struct picture p = {0};
    CLEANUP(freep) char *data = NULL;
    struct err err = {0};
    size_t len;
    int r = cli_read_file(path, PICTURE_FILE_MAX, &data, &len);

    if (r == -EMSGSIZE)
        return cli_fail("%s: has more than %u bytes", path, PICTURE_FILE_MAX);
    if (r < 0)
        return cli_fail_err(path, &err, r);
    r = decoder_run(t->decoder, data, len, NULL, &p, NULL, &err);
    if (r < 0)
        return cli_fail_err(path, &err, r);
    printf("%s: %s, %u x %u pixels", path, picture_type(data, len), p.width, p.height);
    if (o->size && (r = gguf_picture_resize(&p, o, &err)) < 0)
        return cli_fail_err(path, &err, r);
    if (o->size)
        printf(", resized to %u x %u", p.width, p.height);
    if (t->encoder && (r = gguf_picture_encode(&p, t, o, &err)) < 0) {
        putchar('\n');
        return cli_fail_err(path, &err, r);
    }
    putchar('\n');
    if (o->out && (r = write_pixmap(&p, o->out)) < 0)
        return cli_fail_err(o->out, &err, r);
    return CLI_OK;
}

int gguf_cmd_picture(int argc, char **argv) {
    struct options o = {.filter = "bicubic"};
    const struct cli_option options[] = {
        {"size", CLI_TEXT, &o.size, 0, 0},
        {"pad", CLI_TRUE, &o.pad, 0, 0},
        {"filter", CLI_TEXT, &o.filter, 0, 0},
        {"o", CLI_TEXT, &o.out, 0, 0},
        {"projector", CLI_TEXT, &o.projector, 0, 0},
        {"rows", CLI_TEXT, &o.rows, 0, 0},
        {"min-rows", CLI_U32, &o.min_rows, 1, 65536},
        {"max-rows", CLI_U32, &o.encoder.max_rows, 1, 65536},
        {"threads", CLI_U32, &o.encoder.n_threads, 1, 1024},
        {"backend", CLI_TEXT, &o.encoder.backend, 0, 0},
    };
    CLEANUP(gguf_picture_tools_deinit) struct tools t = {0};
    struct err err = {0};
    int n_args, code = cli_parse(argc, argv, options, ARRAY_SIZE(options), usage, &n_args);

    if (code >= 0)
        return code;
    if (n_args < 1 || ((o.out || o.rows) && n_args > 1))
        return cli_usage("picture needs %s FILE", o.out || o.rows ? "one" : "at least one");
    if (!o.projector && (o.rows || o.encoder.max_rows || o.encoder.backend))
        return cli_usage("--rows needs --projector FILE");
    int r = decoder_new(&t.decoder, "/proc/self/exe");
    if (r < 0)
        return cli_fail_err("the process that decodes", &err, r);
    if (o.projector && (r = checkpoint_open_projector(&t.file, o.projector, &err)) == 0)
        r = image_encoder_new(&t.encoder, t.file, &o.encoder, &err);
    if (r < 0)
        return cli_fail_err(o.projector, &err, r);
    code = CLI_OK;
    for (int i = 1; i <= n_args && code == CLI_OK; i++)
        code = show_one(&t, argv[i], &o);
    return cli_flush(code);
}
