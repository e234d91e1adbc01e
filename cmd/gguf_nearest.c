/* weft-gguf info --nearest - prints the known architectures that are nearest to a file's, with the
 * tensors and keys that differ. All text from the file is escaped. */

#include "cmd/gguf_nearest.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/printable.h"
#include "base/util.h"
#include "cmd/cli.h"
#include "engine/nearest.h"

#define SHOWN 24u /* most names of a list that are printed */

static void print_names(const char *title, const struct survey_names *s) {
    if (s->n == 0)
        return;
    printf("  %s:\n", title);
    for (uint32_t i = 0; i < MIN(s->n, SHOWN); i++)
        printf("    %s\n", printable(s->name[i]).s);
    if (s->n > SHOWN)
        printf("    and %u more\n", s->n - SHOWN);
}

static void print_row(const struct nearest *n) {
    printf("\n%s\n", n->name);
    if (n->accepts)
        puts("  has all tensors of the file, in these shapes");
    else
        printf("  first difference: %s\n", printable(n->why).s);
    print_names("tensors that it needs and the file lacks", &n->missing);
    print_names("tensors of the file that it does not have", &n->unknown);
    print_names("keys of the file that it does not read", &n->keys);
}

int gguf_nearest_print(const struct gguf *g, const char *path) {
    CLEANUP(freep) struct nearest *found = calloc(NEAREST, sizeof(*found));
    struct gguf_str name = {0};
    int n = found ? engine_nearest(g, found, NEAREST) : -1;

    if (n < 0)
        return cli_fail("%s: out of memory", path);
    if (n == 0 || gguf_string(g, "general.architecture", &name) < 0)
        return cli_fail("%s: the file names no architecture", path);
    printf("%s: architecture ", path);
    for (size_t i = 0; i < name.len; i++)
        putchar(name.data[i] > 0x20 && name.data[i] < 0x7F ? name.data[i] : '?');
    puts(". The known ones that are nearest by names and shapes; arithmetic may differ:");
    for (int i = 0; i < n; i++)
        print_row(&found[i]);
    return CLI_OK;
}
