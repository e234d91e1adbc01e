/*
 * Presets that clients make: a file NAME.conf in the folder of presets, as an operator would write
 * it, with the template and the system message beside it. A first line distinguishes them from the
 * operator's own presets, which clients cannot change. A new preset is read as the next start will
 * read it before it gets its name, so the folder never holds an invalid one. Its template and
 * system message are written before it; the former ones are kept under another name until then, and
 * restored if the preset is refused. Changes wait for each other because changes of one preset use
 * the same names.
 *
 * Before the first text is written, there is NAME.conf.checked, until it gets the name NAME.conf.
 * So if a daemon was killed meanwhile, that file tells that the texts are not those of NAME.conf.
 */

#include "daemon/models/models_presets.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/files.h"
#include "base/text.h"
#include "base/try.h"
#include "daemon/models/models_find.h"
#include "text/template.h"

#define MADE "# made by a client\n"
#define NAME_LEN_MAX 100
#define PRESETS_MAX 1024 /* most presets in the folder */
#define PRESET_MAX (64u << 10)
#define TEXT_MAX (1u << 20)

/* Ends of the names of the texts, and of the former ones during a change. */
static const char *const texts[][2] = {{".jinja", ".jinja.kept"}, {".system", ".system.kept"}};

struct path {
    char s[1200];
};

static struct path path_of(const struct preset_change *p, const char *end) {
    struct path path;

    snprintf(path.s, sizeof(path.s), "%.1000s/%.120s%s", p->own.models, p->name, end);
    return path;
}

/* Checks that @name can name a file: not an option, a hidden file or a folder. */
static int check_name(const char *name, struct err *err) {
    size_t n = strlen(name);
    bool ok = n <= NAME_LEN_MAX && isalnum((unsigned char)*name);

    for (size_t i = 0; ok && i < n; i++)
        ok = isalnum((unsigned char)name[i]) || strchr("._-:", name[i]);
    if (!ok)
        return err_set_code(err, 400, "invalid_value", "model",
                            "'%.120s' is not a valid model name; use letters, digits, '.', '_', "
                            "'-' and ':', at most %u",
                            name, NAME_LEN_MAX);
    return 0;
}

/* Returns true if a client made the preset at @path. */
static bool is_made(const char *path) {
    char line[sizeof(MADE)] = "";
    FILE *f = files_open(path);

    if (!f)
        return false;
    bool made = fgets(line, sizeof(line), f) && strcmp(line, MADE) == 0;
    fclose(f);
    return made;
}

/* ---- files ---- */

/* Writes a file that appears complete or not at all. Returns 0 or -errno. */
static int preset_write_file(const char *path, const char *text, size_t len) {
    char part[1300];
    int r = 0;

    snprintf(part, sizeof(part), "%s.new", path);
    int fd = files_create(AT_FDCWD, part, 0644);
    if (fd < 0)
        return fd;
    for (size_t at = 0; at < len && r == 0;) {
        ssize_t n = write(fd, text + at, len - at);

        r = n < 0 ? -errno : 0;
        at += n < 0 ? 0 : (size_t)n;
    }
    if (r == 0 && fsync(fd) < 0)
        r = -errno;
    close(fd);
    if (r == 0 && rename(part, path) < 0)
        r = -errno;
    if (r < 0)
        unlink(part);
    return r;
}

/* Reports that a file cannot be written, by its name without the folder, which is the operator's.
 * Returns @r. */
static int cannot_write(const char *path, int r, struct err *err) {
    const char *slash = strrchr(path, '/');

    return err_set_code(err, 500, "not_written", "model",
                        "The service cannot write the file %.200s of the preset: %s.",
                        slash ? slash + 1 : path, strerror(-r));
}

/* Reads a text of the base. Another client may have removed the file since the base was looked
 * up. */
static int read_base(const struct preset_change *p, const char *path, struct buf *out,
                     struct err *err) {
    int r = files_read(path, out, NULL);

    if (r == -ENOENT)
        return err_set_code(err, 404, "model_not_found", "from",
                            "model '%.100s' was removed while the preset was being made from it",
                            p->from);
    if (r < 0)
        return err_set_code(err, 500, "not_read", "from",
                            "The service cannot read a file of model '%.100s': %s.", p->from,
                            strerror(-r));
    return 0;
}

/* Writes the text @own, or the base's text if a client has made it, to a file of the new preset,
 * which option @key names. An operator's file of the base is named directly. */
static int preset_write_text(const struct preset_change *p, struct config *c, const char *key,
                             const char *of_base, const char *own, struct path file,
                             struct err *err) {
    CLEANUP(buf_deinit) struct buf text = {.max = TEXT_MAX + 1};
    size_t n = strlen(p->own.models);
    bool made = strncmp(of_base, p->own.models, n) == 0 && of_base[n] == '/';

    if (!own && !made)
        return 0;
    if (own)
        TRY(buf_add_str(&text, own));
    else
        TRY(read_base(p, of_base, &text, err));
    int r = preset_write_file(file.s, text_or(text.data, ""), text.len);
    if (r < 0)
        return cannot_write(file.s, r, err);
    return config_set(c, key, file.s, err);
}

/* ---- making a preset ---- */

/* Writes the options of @c that differ from those with which a preset begins, as a file of keys. */
static int write_keys(const struct config *own, const struct config *c, struct buf *out) {
    static const char *const never[] = {"any-model-name", "models",  "models-dir", "models-memory",
                                        "kv-disk",        "prewarm", "aliases",    "tags",
                                        "model-name",     "pinned"};
    CLEANUP(config_deinit) struct config begin = {0};

    TRY(models_clone(&begin, own));
    TRY(buf_add_str(out, MADE));
    for (uint32_t i = 0; i < config_table_n; i++) {
        const struct option *o = &config_table[i];
        char was[CONFIG_VALUE_MAX], is[CONFIG_VALUE_MAX];
        bool of_model = strcmp(o->section, "model") == 0 || strcmp(o->section, "engine") == 0;

        for (size_t k = 0; k < ARRAY_SIZE(never); k++)
            of_model &= strcmp(o->key, never[k]) != 0;
        if (!of_model)
            continue;
        config_value(&begin, o, was, sizeof(was));
        config_value(c, o, is, sizeof(is));
        if (strcmp(was, is) != 0)
            TRY(buf_printf(out, "%s = %s\n", o->key, is));
    }
    return 0;
}

/* Makes the paths absolute, because the next start may be in another folder. Returns 0 or -errno
 * with @err. */
static int make_absolute(struct config *c, struct err *err) {
    const struct {
        const char *key;
        char *const *value;
        bool is_path;
    } rows[] = {
        {"model", &c->model, true},
        {"draft-model", &c->draft_model, true},
        {"mmproj", &c->mmproj, strcmp(c->mmproj, "none") != 0},
        {"chat-template", &c->chat_template, !template_named(c->chat_template)},
        {"system-prompt", &c->system_prompt, true},
    };
    CLEANUP(freep) char *here = getcwd(NULL, 0);

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        CLEANUP(freep) char *path = NULL;
        const char *value = *rows[i].value;

        if (!*value || *value == '/' || !rows[i].is_path)
            continue;
        if (!here || asprintf(&path, "%s/%s", here, value) < 0)
            return -ENOMEM;
        TRY(config_set(c, rows[i].key, path, err));
    }
    return 0;
}

/* Returns true if the list @sampling has a value for the parameter of @item, NAME=VALUE. */
static bool has_value(const char *sampling, const char *item) {
    size_t n = strcspn(item, "=");

    for (; *sampling; sampling += strcspn(sampling, ","), sampling += *sampling == ',')
        if (strcspn(sampling, "=") == n && memcmp(sampling, item, n) == 0)
            return true;
    return false;
}

/* Applies the client's changes to @c, which has the base's options. */
static int preset_apply(struct config *c, const struct preset_change *p, struct err *err) {
    char text[CONFIG_VALUE_MAX];
    int r = make_absolute(c, err);

    if (r < 0)
        return r;
    if (p->sampling) {
        size_t n = 0;

        text[0] = 0;
        for (char *const *s = c->sampling; *s && n < sizeof(text); s++)
            if (!has_value(p->sampling, *s))
                n += (size_t)snprintf(text + n, sizeof(text) - n, "%s,", *s);
        if (n + strlen(p->sampling) >= sizeof(text))
            return -E2BIG;
        snprintf(text + n, sizeof(text) - n, "%s", p->sampling);
        r = config_set(c, "sampling", text, err);
    }
    if (r == 0 && p->max_context) {
        snprintf(text, sizeof(text), "%u", p->max_context);
        r = config_set(c, "max-context", text, err);
    }
    return r;
}

/* Checks that the service can render the template. Returns 0 or -EINVAL with @err. */
static int check_template(const char *text, struct err *err) {
    struct template *t = NULL;
    struct err why = {0};
    int r = text ? template_new(&t, text, strlen(text), &why) : 0;

    template_free(t);
    if (r == -EINVAL)
        return err_set_code(err, 400, "invalid_value", "template",
                            "template: must be a Jinja chat template: %.200s", why.message);
    return r;
}

/* Checks that the preset may be made, or replaced. Files with the names of a new preset's texts are
 * the operator's, and other presets may name them; a folder is never overwritten. */
static int check_place(const struct preset_change *p, struct err *err) {
    const struct path at = path_of(p, ".conf");
    bool there = access(at.s, F_OK) == 0;
    struct dirent **list = NULL;
    struct stat st;

    if ((p->served || there) && !is_made(at.s))
        return err_set_code(err, 400, "not_made", "model",
                            "model '%.100s' belongs to the operator; a client cannot change it",
                            p->name);
    if (there)
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        if (lstat(path_of(p, texts[i][0]).s, &st) == 0 && !S_ISDIR(st.st_mode))
            return err_set_code(err, 400, "not_made", "model",
                                "the file %.100s%s in the folder of presets belongs to the "
                                "operator; choose another name",
                                p->name, texts[i][0]);
    int n = scandir(p->own.models, &list, models_is_preset, NULL);
    for (int i = 0; i < n; i++)
        free(list[i]);
    free(list);
    if (n >= PRESETS_MAX)
        return err_set_code(err, 400, "too_many", "model",
                            "there are %d presets, which is the limit; delete one first", n);
    return 0;
}

/* Reads the file @checked as a preset and renames it to @at. */
static int publish_checked(const struct preset_change *p, const char *checked, const char *at,
                           struct err *err) {
    CLEANUP(config_deinit) struct config check = {0};

    TRY(models_clone(&check, &p->own));
    TRY(config_read_preset(&check, checked, err));
    if (rename(checked, at) < 0)
        return cannot_write(at, -errno, err);
    return 0;
}

/* Writes the preset under a temporary name that is never searched, reads it as the next start will,
 * and renames it. Returns 0, or -errno with @err: the temporary file is left, which tells of the
 * new texts until the former ones are restored. */
static int preset_write(const struct preset_change *p, const struct buf *text, struct err *err) {
    struct path new = path_of(p, ".conf.checked"), at = path_of(p, ".conf");
    int r = preset_write_file(new.s, text->data, text->len);

    if (r < 0)
        return cannot_write(new.s, r, err);
    return publish_checked(p, new.s, at.s, err);
}

/* Writes the texts and the preset with the options @c. Returns 0 or -errno. */
static int preset_write_all(const struct preset_change *p, struct config *c, struct err *err) {
    CLEANUP(buf_deinit) struct buf text = {.max = PRESET_MAX};

    TRY(preset_write_text(p, c, "chat-template", p->base.chat_template, p->template,
                          path_of(p, ".jinja"), err));
    TRY(preset_write_text(p, c, "system-prompt", p->base.system_prompt, p->system,
                          path_of(p, ".system"), err));
    TRY(write_keys(&p->own, c, &text));
    return preset_write(p, &text, err);
}

/* Undoes what is left of a change that was not completed: restores the texts that were kept, and
 * removes those of a preset that was new or was being removed. */
static void preset_undo(const struct preset_change *p) {
    const struct path mark = path_of(p, ".conf.checked");
    static const char *const parts[] = {".conf.checked.new", ".jinja.new", ".system.new"};
    bool begun = is_made(mark.s), there = access(path_of(p, ".conf").s, F_OK) == 0;

    if (!begun)
        return;
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        const struct path text = path_of(p, texts[i][0]), kept = path_of(p, texts[i][1]);

        if (rename(kept.s, text.s) < 0 && errno == ENOENT && !there)
            unlink(text.s);
        unlink(kept.s); /* remains if both names were one file */
    }
    for (size_t i = 0; i < ARRAY_SIZE(parts); i++)
        unlink(path_of(p, parts[i]).s);
    unlink(mark.s);
}

/* Ends the change of the text @end. If the preset was not made, restores the former file, or
 * removes the new one if there was none; otherwise removes the former file. */
static void preset_settle(const struct preset_change *p, const char *end, const char *kept,
                          bool there, bool made) {
    if (!made && !there)
        unlink(path_of(p, end).s);
    else if (!made) /* fails if no file was kept, and does nothing if both names are one file */
        (void)!rename(path_of(p, kept).s, path_of(p, end).s);
    unlink(path_of(p, kept).s);
}

static int preset_make_file(const struct preset_change *p, struct err *err) {
    const struct path mark = path_of(p, ".conf.checked");
    CLEANUP(config_deinit) struct config c = {0};
    bool there[ARRAY_SIZE(texts)];

    preset_undo(p);
    TRY(check_place(p, err));
    TRY(check_template(p->template, err));
    TRY(config_clone(&c, &p->base));
    TRY(preset_apply(&c, p, err));
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        unlink(path_of(p, texts[i][1]).s); /* left by a daemon that was killed meanwhile */
        there[i] =
            link(path_of(p, texts[i][0]).s, path_of(p, texts[i][1]).s) == 0 || errno != ENOENT;
    }
    int r = preset_write_file(mark.s, MADE, strlen(MADE));
    if (r < 0)
        cannot_write(mark.s, r, err);
    else
        r = preset_write_all(p, &c, err);
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        preset_settle(p, texts[i][0], texts[i][1], there[i], r == 0);
    if (r < 0)
        unlink(mark.s);
    return r;
}

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;

/* Locks the folder against other daemons, tries @n times. Returns the descriptor that holds the
 * lock, if the file system has locks, or -errno: -EWOULDBLOCK if another one changes presets. */
static int preset_lock(const char *folder, int n) {
    const struct timespec pause = {.tv_nsec = 50000000};
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd < 0)
        return -errno;
    while (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK) {
        if (--n <= 0) {
            close(fd);
            return -EWOULDBLOCK;
        }
        nanosleep(&pause, NULL);
    }
    return fd;
}

/* Calls @change while no other thread and no other daemon changes presets. */
static int preset_alone(int (*change)(const struct preset_change *, struct err *),
                        const struct preset_change *p, struct err *err) {
    int r = 0;

    pthread_mutex_lock(&one_at_a_time);
    int fd = preset_lock(p->own.models, 40);
    if (fd == -EWOULDBLOCK)
        r = err_set_code(err, 503, "busy", "model", "Another daemon changes the presets.");
    else
        r = change(p, err);
    if (fd >= 0)
        close(fd);
    pthread_mutex_unlock(&one_at_a_time);
    return r;
}

static int preset_make_named(const struct preset_change *p, struct err *err) {
    TRY(check_name(p->name, err));
    return preset_alone(preset_make_file, p, err);
}

int preset_make(const struct preset_change *p, struct err *err) {
    int r = preset_make_named(p, err);

    if (*err->message && !err->status)
        err->status = 400; /* a value that the options refuse */
    return r;
}

static int remove_files(const struct preset_change *p, struct err *err) {
    struct path conf = path_of(p, ".conf");

    if (!*p->own.models || access(conf.s, F_OK) < 0)
        return PRESET_NONE;
    if (!is_made(conf.s))
        return err_set_code(err, 400, "not_made", "model",
                            "model '%.100s' belongs to the operator; a client cannot delete it",
                            p->name);
    preset_undo(p);
    for (size_t i = 0; i < ARRAY_SIZE(texts); i++)
        unlink(path_of(p, texts[i][1]).s);
    if (rename(conf.s, path_of(p, ".conf.checked").s) < 0)
        return cannot_write(conf.s, -errno, err);
    preset_undo(p);
    return 0;
}

int preset_remove(const struct preset_change *p, struct err *err) {
    return preset_alone(remove_files, p, err);
}

/* Implements the filter of scandir() for the files that tell of a change. */
static int preset_is_mark(const struct dirent *e) {
    size_t n = strlen(e->d_name), n_end = strlen(".conf.checked");

    return n > n_end && n <= n_end + NAME_LEN_MAX &&
           strcmp(e->d_name + n - n_end, ".conf.checked") == 0;
}

void presets_recover(const struct config *own) {
    struct preset_change p = {.own = *own};
    struct dirent **list = NULL;
    int fd = preset_lock(own->models, 1);
    int n = fd < 0 ? 0 : scandir(own->models, &list, preset_is_mark, NULL);

    for (int i = 0; i < n; i++) {
        p.name = list[i]->d_name;
        p.name[strlen(p.name) - strlen(".conf.checked")] = 0;
        preset_undo(&p);
        free(list[i]);
    }
    free(list);
    if (fd >= 0)
        close(fd);
}
