#include "cmd/bench_json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>

#include "cmd/cli.h"

void bench_json_summary(yyjson_mut_doc *d, yyjson_mut_val *root, const char *key,
                        const struct summary *s, double scale) {
    yyjson_mut_val *v = yyjson_mut_obj_add_obj(d, root, key);

    yyjson_mut_obj_add_uint(d, v, "n", s->n);
    yyjson_mut_obj_add_real(d, v, "mean", s->mean * scale);
    yyjson_mut_obj_add_real(d, v, "sd", s->sd * scale);
    yyjson_mut_obj_add_real(d, v, "min", s->min * scale);
    yyjson_mut_obj_add_real(d, v, "p50", s->p50 * scale);
    yyjson_mut_obj_add_real(d, v, "p90", s->p90 * scale);
    yyjson_mut_obj_add_real(d, v, "p99", s->p99 * scale);
    yyjson_mut_obj_add_real(d, v, "max", s->max * scale);
}

int bench_json_write(yyjson_mut_doc *d, const char *path) {
    size_t len;
    CLEANUP(freep)
    char *text = yyjson_mut_write(d,
                                  YYJSON_WRITE_PRETTY_TWO_SPACES | YYJSON_WRITE_NEWLINE_AT_END |
                                      YYJSON_WRITE_INF_AND_NAN_AS_NULL,
                                  &len);
    int r = 0;

    yyjson_mut_doc_free(d);
    if (!text)
        return cli_fail("out of memory");
    if (strcmp(path, "-") != 0)
        r = cli_write_file(path, 0666, text, len, false);
    else if (fwrite(text, 1, len, stdout) < len)
        r = -errno;
    if (r < 0)
        return cli_fail("%s: %s", path, strerror(-r));
    return CLI_OK;
}
