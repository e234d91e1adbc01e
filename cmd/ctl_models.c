/* ---- contents of a file ---- */

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yyjson.h>

#include "base/gguf.h"
#include "base/model_dir.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "cmd/cli.h"
#include "cmd/ctl.h"
#include "cmd/ctl_fetch.h"
#include "cmd/ctl_local.h"
#include "cmd/model_fit.h"

/* Properties of a model file. arch is "" for a file that cannot be read; if fit.fits is false,
 * `problem` has the reason. */
struct facts {
    char arch[64], format[16], title[100];
    uint64_t n_params;
    /* reason; "": the model can be served here */
    char problem[400];
    struct model_fit fit;
};

/* Returns the name of the format that holds most of the bytes. */
static const char *main_format(const struct gguf *g) {
    const struct tensor_format *best = NULL;
    uint64_t best_bytes = 0;

    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor_format *format = gguf_tensor(g, i)->format;
        uint64_t bytes = 0;

        if (format == best)
            continue;
        for (uint64_t k = i; k < gguf_n_tensors(g); k++)
            if (gguf_tensor(g, k)->format == format)
                bytes += gguf_tensor(g, k)->n_bytes;
        if (bytes > best_bytes) {
            best_bytes = bytes;
            best = format;
        }
    }
    if (best)
        return best->name;
    return "";
}

static void copy_text(char *out, size_t size, const struct gguf *g, const char *key) {
    struct gguf_str s;
    size_t n = 0;

    if (gguf_string(g, key, &s) == 0)
        for (; n < s.len && n + 1 < size; n++) {
            out[n] = '?';
            if (s.data[n] >= 0x20 && s.data[n] < 0x7f)
                out[n] = s.data[n];
        }
    out[n] = 0;
}

static void read_facts(struct facts *f, const struct model_file *m, struct machine *machine) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct err err = {0};
    int r;

    *f = (struct facts){0};
    if (m->folder)
        r = checkpoint_open(&g, m->path, &err);
    else
        r = gguf_open(&g, m->path, &err);
    if (r < 0) {
        snprintf(f->problem, sizeof(f->problem), "%s", text_filled_or(err.message, strerror(-r)));
        return;
    }
    copy_text(f->arch, sizeof(f->arch), g, "general.architecture");
    copy_text(f->title, sizeof(f->title), g, "general.name");
    snprintf(f->format, sizeof(f->format), "%s", main_format(g));
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct tensor *t = gguf_tensor(g, i);

        f->n_params += t->ne[0] * t->ne[1] * t->ne[2] * t->ne[3];
    }
    model_fit(&f->fit, g, machine, 0);
    if (!f->fit.fits)
        snprintf(f->problem, sizeof(f->problem), "%s", f->fit.why.message);
}

/* ---- models ---- */

static const char models_usage[] =
    "usage: weftctl models [--models DIR] [--json] [NAME]\n"
    "       weftctl models --path NAME\n"
    "Lists the model files on this machine: those in weft's own folder, and those that the\n"
    "hub's tools, LM Studio and Ollama have downloaded, which weftd can serve, too. Context:\n"
    "the longest that fits into memory now; tok/s: the most that memory bandwidth allows.\n"
    "  --path         print only the path of the file of NAME\n"
    "  --models DIR   weft's own folder; else $WEFT_MODELS, or ~/.local/share/weft/models\n";

/* Renders the number of parameters, which is 0 if it is not known: "7.6B". */
static struct ctl_cell params_text(uint64_t n) {
    struct ctl_cell c;

    if (n >= 1000000000)
        snprintf(c.s, sizeof(c.s), "%.1fB", (double)n / 1e9);
    else if (n > 0)
        snprintf(c.s, sizeof(c.s), "%.0fM", (double)n / 1e6);
    else
        snprintf(c.s, sizeof(c.s), "-");
    return c;
}

/* Renders a number, which is 0 if it is not known. */
static struct ctl_cell number_text(double v) {
    struct ctl_cell c;

    if (v <= 0)
        snprintf(c.s, sizeof(c.s), "-");
    else if (v < 10)
        snprintf(c.s, sizeof(c.s), "%.1f", v);
    else
        snprintf(c.s, sizeof(c.s), "%.0f", v);
    return c;
}

static const struct ctl_column models_columns[] = {
    {"arch", 2, -10, 4}, {"params", 1, 7, 3},  {"size", 1, 9, 0},  {"format", 2, -8, 2},
    {"from", 1, -8, 6},  {"context", 1, 8, 1}, {"tok/s", 1, 7, 5},
};

#define MODELS_COLUMNS ARRAY_SIZE(models_columns)

/* The list's layout on a terminal of some columns. */
struct models_layout {
    int name_width;
    bool shown[MODELS_COLUMNS];
    /* of a line, and the most that it may be */
    size_t length, longest;
};

/* Chooses the columns whose line is no longer than the terminal. */
static void models_fit(struct models_layout *l, int name_width) {
    *l = (struct models_layout){.name_width = name_width, .longest = ctl_columns()};
    l->length =
        ctl_fit_columns(l->shown, models_columns, MODELS_COLUMNS, (size_t)name_width, l->longest);
}

static void models_print_line(const struct models_layout *l, const char *name,
                              const char *const cell[MODELS_COLUMNS]) {
    printf("%-*s", l->name_width, name);
    for (size_t i = 0; i < MODELS_COLUMNS; i++)
        if (l->shown[i])
            printf("%*s%*s", models_columns[i].gap, "", models_columns[i].width, cell[i]);
}

static void models_print_titles(const struct models_layout *l) {
    const char *cell[MODELS_COLUMNS];

    for (size_t i = 0; i < MODELS_COLUMNS; i++)
        cell[i] = models_columns[i].title;
    models_print_line(l, "name", cell);
    putchar('\n');
}

/* Prints a model; a problem for which the line has no room gets its own. */
static void ctl_models_print_row(const struct model_file *m, const struct facts *f,
                                 const struct models_layout *l) {
    const char *problem = f->problem, *mark = "  ";
    double context = 0;

    if (f->fit.fits)
        context = f->fit.engine.context;
    if (m->n_missing)
        problem = "files are missing";
    struct ctl_cell params = params_text(f->n_params), longest = number_text(context);
    struct ctl_cell speed = number_text(f->fit.tokens_per_s);
    struct size_text size = size_text(m->bytes);

    models_print_line(l, m->name,
                      (const char *[]){text_filled_or(f->arch, "-"), params.s, size.s,
                                       text_filled_or(f->format, "-"), model_store_name(m->store),
                                       longest.s, speed.s});
    if (*problem && l->length + strlen(problem) + 2 > l->longest)
        mark = "\n    ";
    printf("%s%s\n", mark, problem);
}

static void print_one(const struct model_file *m, const struct facts *f,
                      const struct machine *machine) {
    CLEANUP(buf_deinit) struct buf fit = {.max = 4096};

    printf("name          %s\npath          %s\n", m->name, m->path);
    if (m->n_files > 1)
        printf("files         %u, %u missing\n", m->n_files, m->n_missing);
    if (*m->repo)
        printf("repository    %s\n", m->repo);
    printf("size          %s\n", size_text(m->bytes).s);
    if (*f->arch)
        printf("model         %s\narchitecture  %s\nparameters    %s\nformat        %s\n", f->title,
               f->arch, params_text(f->n_params).s, f->format);
    if (f->fit.fits && model_fit_show(&fit, &f->fit, machine) == 0)
        fputs(fit.data, stdout);
    else
        puts(f->problem);
}

static void add_json(yyjson_mut_doc *d, yyjson_mut_val *list, const struct model_file *m,
                     const struct facts *f, const struct machine *machine) {
    yyjson_mut_val *v = yyjson_mut_arr_add_obj(d, list);

    yyjson_mut_obj_add_strcpy(d, v, "name", m->name);
    yyjson_mut_obj_add_strcpy(d, v, "path", m->path);
    yyjson_mut_obj_add_strcpy(d, v, "repository", m->repo);
    yyjson_mut_obj_add_str(d, v, "store", model_store_name(m->store));
    yyjson_mut_obj_add_uint(d, v, "files", m->n_files);
    yyjson_mut_obj_add_uint(d, v, "files_missing", m->n_missing);
    yyjson_mut_obj_add_uint(d, v, "bytes", m->bytes);
    if (*f->problem)
        yyjson_mut_obj_add_strcpy(d, v, "problem", f->problem);
    if (!*f->arch)
        return;
    yyjson_mut_obj_add_strcpy(d, v, "architecture", f->arch);
    yyjson_mut_obj_add_strcpy(d, v, "title", f->title);
    yyjson_mut_obj_add_strcpy(d, v, "format", f->format);
    yyjson_mut_obj_add_uint(d, v, "parameters", f->n_params);
    yyjson_mut_obj_add_val(d, v, "fit", model_fit_json(d, &f->fit, machine));
}

/* Shows the model @only, or with NULL all models. Returns an exit code. */
static int show(const struct model_list *l, const struct model_file *only, bool json,
                const struct model_dirs *dirs) {
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *list = yyjson_mut_arr(d);
    struct machine machine = {0};
    struct models_layout layout;
    int width = 4;

    yyjson_mut_doc_set_root(d, list);
    for (size_t i = 0; i < l->n; i++)
        width = MAX(width, (int)strlen(l->file[i].name));
    models_fit(&layout, width);
    if (!json && !only && l->n > 0)
        models_print_titles(&layout);
    for (size_t i = 0; i < l->n; i++) {
        const struct model_file *m = &l->file[i];
        struct facts f = {0};

        if (only && m != only)
            continue;
        if (m->n_missing == 0)
            read_facts(&f, m, &machine);
        if (json)
            add_json(d, list, m, &f, &machine);
        else if (only)
            print_one(m, &f, &machine);
        else
            ctl_models_print_row(m, &f, &layout);
    }
    CLEANUP(freep) char *text = NULL;
    if (json)
        text = yyjson_mut_write(d, YYJSON_WRITE_PRETTY, NULL);
    yyjson_mut_doc_free(d);
    if (text)
        puts(text);
    else if (l->n == 0)
        printf("There are no models yet, below %s or elsewhere. To download one:\n"
               "  weftctl pull hf:Qwen/Qwen3-0.6B-GGUF\n",
               dirs->root[MODEL_WEFT]);
    return cli_flush(CLI_OK);
}

/* Reads the folders and their models. The caller frees both, also after a failure. Returns an exit
 * code. */
static int ctl_models_read_all(const char *models, struct model_dirs *dirs,
                               struct model_list *list) {
    if (model_dirs_init(dirs, models) < 0 || model_list_read(list, dirs) < 0)
        return cli_fail("out of memory");
    return CLI_OK;
}

int ctl_models(int argc, char **argv, bool json) {
    CLEANUP(model_list_deinit) struct model_list list = {0};
    CLEANUP(model_dirs_deinit) struct model_dirs dirs = {0};
    const struct model_file *m = NULL;
    const char *models = NULL;
    bool path = false;
    const struct cli_option options[] = {{"json", CLI_TRUE, &json, 0, 0},
                                         {"models", CLI_TEXT, &models, 0, 0},
                                         {"path", CLI_TRUE, &path, 0, 0}};
    struct err err = {0};
    int n, code = cli_parse(argc, argv, options, ARRAY_SIZE(options), models_usage, &n);

    if (code >= 0)
        return code;
    if (path && n != 1)
        return cli_usage("models takes one NAME with --path");
    if (n > 1)
        return cli_usage("models takes one NAME at most");
    code = ctl_models_read_all(models, &dirs, &list);
    if (code != CLI_OK)
        return code;
    if (n == 1 && model_find(&list, argv[1], &m, &err) < 0)
        return cli_fail_as(CLI_FAILED, "%s", err.message);
    if (!path)
        return show(&list, m, json, &dirs);
    puts(m->path);
    return cli_flush(CLI_OK);
}

/* ---- rm ---- */

static const char rm_usage[] =
    "usage: weftctl rm [--models DIR] NAME...\n"
    "       weftctl rm [--models DIR] --partial\n"
    "Removes models from weft's own folder. A daemon that serves a "
    "removed model keeps serving it.\n"
    "  --partial      remove the files that interrupted pulls have left\n";

/* Removes the folders above @path, below @root, that have become empty. */
static void remove_empty(const char *path, const char *root) {
    char dir[4096];
    size_t len = strlen(root);

    snprintf(dir, sizeof(dir), "%s", path);
    for (char *slash; strlen(dir) > len && (slash = strrchr(dir, '/'));) {
        *slash = 0;
        if (strlen(dir) <= len || rmdir(dir) < 0)
            return;
    }
}

/* Writes the path of shard @k (from 1) of @m to @out. Returns false if it is too long. */
static bool shard_path(const struct model_file *m, uint32_t k, char *out, size_t size) {
    assert(k > 0 && k <= m->n_files);
    size_t len = strlen(m->path);
    int n;

    if (m->n_files > 1) {
        len -= strlen("-00001-of-00001.gguf");
        n = snprintf(out, size, "%.*s-%05u-of-%05u.gguf", (int)len, m->path, k, m->n_files);
    } else {
        n = snprintf(out, size, "%s", m->path);
    }
    return n > 0 && (size_t)n < size;
}

/* Removes the projectors of @m, unless its folder contains another model. */
static void remove_projectors(const struct model_file *m) {
    char dir[4096], path[4400], sum[4400];
    const char *base = strrchr(m->path, '/') + 1;
    struct model_name name;
    struct dirent *e;
    bool used = false;

    snprintf(dir, sizeof(dir), "%.*s", (int)(base - m->path), m->path);
    DIR *d = opendir(dir);
    if (!d)
        return;
    while ((e = readdir(d)))
        used |= model_name_parse(e->d_name, &name);
    rewinddir(d);
    while (!used && (e = readdir(d))) {
        snprintf(path, sizeof(path), "%s%s", dir, e->d_name);
        if (model_projector_fit(e->d_name, base) > 0 && unlink(path) == 0 &&
            fetch_sum_path(path, sum, sizeof(sum)))
            unlink(sum);
    }
    closedir(d);
}

/* Removes what a pull has put into the folder @path: the files that weftd reads and their
 * checksums. Returns an exit code. */
static int models_remove_files(const char *path) {
    static const char *const ends[] = {".safetensors", ".json", ".jinja", ".model", ".sha256"};
    DIR *d = opendir(path);
    struct dirent *e;
    int code = CLI_OK;

    while (d && code == CLI_OK && (e = readdir(d))) {
        const char *end = strrchr(e->d_name, '.');
        bool ours = false;

        for (size_t i = 0; end && i < ARRAY_SIZE(ends); i++)
            ours |= strcmp(end, ends[i]) == 0;
        if (ours && unlinkat(dirfd(d), e->d_name, 0) < 0 && errno != ENOENT)
            code = cli_fail("%s/%s: %s", path, e->d_name, strerror(errno));
    }
    if (d)
        closedir(d);
    return code;
}

/* Removes a pulled folder and its parts. Other files stay, and then their folder, too. Returns an
 * exit code. */
static int models_remove_folder(const struct model_file *m) {
    char path[4096];
    struct stat st;

    for (uint32_t i = 0; model_dir_part(i); i++) {
        int n = snprintf(path, sizeof(path), "%s/%s", m->path, model_dir_part(i));

        if (n < 0 || (size_t)n >= sizeof(path))
            return cli_fail("%s: the path is too long", m->name);
        if (lstat(path, &st) < 0 || !S_ISDIR(st.st_mode)) /* a link may lead elsewhere */
            continue;
        int code = models_remove_files(path);
        if (code != CLI_OK)
            return code;
        rmdir(path);
    }
    return models_remove_files(m->path);
}

/* Removes the shards of @m with their checksums. Returns an exit code. */
static int models_remove_shards(const struct model_file *m) {
    char path[4096], sum[4096];

    for (uint32_t k = 1; k <= m->n_files; k++) {
        if (!shard_path(m, k, path, sizeof(path)))
            return cli_fail("%s: the path is too long", m->name);
        if (unlink(path) < 0 && errno != ENOENT)
            return cli_fail("%s: %s", path, strerror(errno));
        if (fetch_sum_path(path, sum, sizeof(sum)))
            unlink(sum);
    }
    remove_projectors(m);
    return CLI_OK;
}

static int ctl_models_remove(const struct model_file *m, const char *root, bool json) {
    static const char *const theirs[] = {
        [MODEL_HUB] = "the hub's cache (hf cache delete)",
        [MODEL_LMSTUDIO] = "LM Studio",
        [MODEL_OLLAMA] = "Ollama (ollama rm)",
    };
    int code;

    assert(m->store < ARRAY_SIZE(theirs));
    if (m->store != MODEL_WEFT)
        return cli_fail("%s belongs to %s; weftctl removes nothing there", m->name,
                        theirs[m->store]);
    if (m->folder)
        code = models_remove_folder(m);
    else
        code = models_remove_shards(m);
    if (code != CLI_OK)
        return code;
    if (m->folder)
        rmdir(m->path);
    remove_empty(m->path, root);
    if (json)
        ctl_print_result("removed", m->name, "bytes", NULL, m->bytes);
    else
        printf("removed %s, %s\n", m->name, size_text(m->bytes).s);
    return CLI_OK;
}

/* Removes the file @e if it is a part that no process is downloading. Returns the bytes of it. */
static uint64_t models_remove_partial(const FTSENT *e) {
    const char *end = e->fts_name + e->fts_namelen;
    uint64_t removed = 0;

    if (e->fts_info != FTS_F || e->fts_name[0] != '.' || e->fts_namelen < 6 ||
        strcmp(end - strlen(".part"), ".part") != 0)
        return 0;
    int fd = open(e->fts_path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && unlink(e->fts_path) == 0)
        removed = (uint64_t)e->fts_statp->st_size;
    close(fd);
    return removed;
}

/* Removes the parts below the folder @root. Returns the bytes of them. */
static uint64_t models_remove_partials(char *root) {
    FTS *walk = fts_open((char *[]){root, NULL}, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    uint64_t removed = 0;

    if (!walk)
        return 0;
    for (FTSENT *e; (e = fts_read(walk));)
        removed += models_remove_partial(e);
    fts_close(walk);
    return removed;
}

int ctl_rm(int argc, char **argv, bool json) {
    CLEANUP(model_list_deinit) struct model_list list = {0};
    CLEANUP(model_dirs_deinit) struct model_dirs dirs = {0};
    const char *models = NULL;
    bool partial = false;
    const struct cli_option options[] = {{"models", CLI_TEXT, &models, 0, 0},
                                         {"partial", CLI_TRUE, &partial, 0, 0}};
    int n, code = cli_parse(argc, argv, options, ARRAY_SIZE(options), rm_usage, &n);

    if (code >= 0)
        return code;
    if ((n == 0) != partial)
        return cli_usage("rm takes the NAMEs of models, or --partial");
    code = ctl_models_read_all(models, &dirs, &list);
    for (int i = 1; code == CLI_OK && i <= n; i++) {
        const struct model_file *m = NULL;
        struct err err = {0};

        if (model_find(&list, argv[i], &m, &err) < 0)
            code = cli_fail("%s", err.message);
        else
            code = ctl_models_remove(m, dirs.root[MODEL_WEFT], json);
    }
    if (partial && code == CLI_OK) {
        uint64_t bytes = models_remove_partials(dirs.root[MODEL_WEFT]);

        if (json)
            ctl_print_result("removed", "partial", "bytes", NULL, bytes);
        else
            printf("removed %s of interrupted pulls\n", size_text(bytes).s);
    }
    return cli_flush(code);
}
