/* Made-up trees below a folder that is removed at the end. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/model_dir.h"

static char top[] = "/tmp/weft_model_dir_XXXXXX";
static struct model_dirs dirs;
static struct model_list list;

static void make_top(void) {
    cr_assert(mkdtemp(top));
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
    return remove(path);
}

static void remove_top(void) {
    model_list_deinit(&list);
    model_dirs_deinit(&dirs);
    nftw(top, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

TestSuite(model_dir, .init = make_top, .fini = remove_top);

/* TOP/@path with the folders above it. */
static const char *full(const char *path) {
    static char out[2][1024];
    static int turn;
    char *p = out[turn ^= 1];

    snprintf(p, 1024, "%s/%s", top, path);
    for (char *slash = p + strlen(top) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(p, 0755);
        *slash = '/';
    }
    return p;
}

static void put(const char *path, const char *text) {
    FILE *f = fopen(full(path), "w");

    cr_assert(f, "%s", path);
    fputs(text, f);
    fclose(f);
}

static void put_link(const char *path, const char *to) {
    cr_assert_eq(symlink(to, full(path)), 0);
}

/* Reads the stores that lie below TOP: weft, hub, lmstudio, ollama. */
static void read_list(void) {
    for (int i = 0; i < MODEL_N_STORES; i++) {
        free(dirs.root[i]);
        dirs.root[i] = strdup(full(model_store_name((enum model_store)i)));
    }
    model_list_deinit(&list);
    cr_assert_eq(model_list_read(&list, &dirs), 0);
}

static const struct model_file *named(const char *name) {
    for (size_t i = 0; i < list.n; i++)
        if (strcmp(list.file[i].name, name) == 0)
            return &list.file[i];
    return NULL;
}

static const char *found(const char *text) {
    const struct model_file *f;

    return model_find(&list, text, &f, NULL) == 0 ? f->name : "";
}

Test(model_dir, names_are_taken_apart) {
    struct model_name m;

    cr_assert(model_name_parse("Qwen3-0.6B-Q8_0.gguf", &m));
    cr_assert_eq(m.stem_len, strlen("Qwen3-0.6B-Q8_0"));
    cr_assert_eq(m.n_shards, 1);
    cr_assert(model_name_parse("big-00002-of-00003.gguf", &m));
    cr_assert(m.stem_len == 3 && m.shard == 2 && m.n_shards == 3);
    cr_assert(model_name_parse("big-00004-of-00003.gguf", &m) && m.n_shards == 1);
    cr_assert(model_name_parse("-00001-of-00003.gguf", &m) && m.n_shards == 1);
    cr_assert(!model_name_parse("mmproj-F16.gguf", &m));
    cr_assert(!model_name_parse("x.mmproj-q8_0.gguf", &m));
    cr_assert(!model_name_parse("x-imatrix.gguf", &m));
    cr_assert(!model_name_parse("x.gguf.part", &m));
    cr_assert(!model_name_parse(".gguf", &m));
    cr_assert(!model_name_parse("._x.gguf", &m));
}

Test(model_dir, names_of_shards_have_a_stem) {
    static const struct {
        const char *name, *stem;
    } rows[] = {
        {"big-00002-of-00003.gguf", "big"},
        {"big-00002-of-00003", "big"},
        {"big.GGUF", "big"},
        {"big", "big"},
        {"big-00004-of-00003", "big-00004-of-00003"},
        {"-00001-of-00003", "-00001-of-00003"},
        {".gguf", ".gguf"},
        {"", ""},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++)
        cr_expect_eq(model_name_stem(rows[i].name, strlen(rows[i].name)), strlen(rows[i].stem),
                     "%s", rows[i].name);
}

Test(model_dir, quants_are_found_at_the_end) {
    static const struct {
        const char *stem, *quant;
    } rows[] = {
        {"Qwen3-0.6B-Q8_0", "Q8_0"},
        {"Qwen3-0.6B-UD-Q4_K_XL", "UD-Q4_K_XL"},
        {"model.IQ2_XXS", "IQ2_XXS"},
        {"gpt-oss-20b-mxfp4", "mxfp4"},
        {"x-TQ1_0", "TQ1_0"},
        {"x-bf16", "bf16"},
        {"Qwen3-0.6B", NULL},
        {"Qwen", NULL},
        {"llama3.2:3b", NULL},
        {"Q4_K_M", NULL},
        {"a-Quick", NULL},
    };

    for (size_t i = 0; i < ARRAY_SIZE(rows); i++) {
        const char *quant = model_quant(rows[i].stem);

        if (rows[i].quant)
            cr_assert_str_eq(quant ? quant : "none", rows[i].quant);
        else
            cr_assert_null(quant, "%s: %s", rows[i].stem, quant);
    }
}

Test(model_dir, every_store_is_read_in_its_layout) {
    char manifest[512], hex[65];

    put("weft/plain-Q4_0.gguf", "12345");
    put("weft/Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf", "123");
    put("weft/Qwen/Qwen3-0.6B-GGUF/mmproj-F16.gguf", "123");
    put("weft/Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q4_K_M.gguf.part", "1");
    put("hub/models--org--Repo-GGUF/blobs/aa", "1234567");
    put("hub/models--org--Repo-GGUF/blobs/bb", "1");
    put("hub/models--org--Repo-GGUF/refs/main", "c0ffee\n");
    put_link("hub/models--org--Repo-GGUF/snapshots/c0ffee/Hub-Q4_K_M.gguf", "../../blobs/aa");
    put_link("hub/models--org--Repo-GGUF/snapshots/abcdef/Old-Q4_K_M.gguf", "../../blobs/bb");
    put("lmstudio/lmstudio-community/Phi-GGUF/Phi-Q4_K_M.gguf", "12");
    memset(hex, 'a', 64);
    hex[64] = 0;
    snprintf(manifest, sizeof(manifest),
             R"({"schemaVersion": 2, "config": {"mediaType": "x", "digest": "sha256:00"},)"
             R"( "layers": [{"mediaType": "application/vnd.ollama.image.template", "digest":)"
             R"( "sha256:%s"}, {"digest": "sha256:%s", "size": 4, "mediaType":)"
             R"( "application/vnd.ollama.image.model"}]})",
             "b", hex);
    put("ollama/manifests/registry.ollama.ai/library/llama3.2/3b", manifest);
    put("ollama/manifests/registry.ollama.ai/library/coach/latest", manifest);
    snprintf(manifest, sizeof(manifest), "ollama/blobs/sha256-%s", hex);
    put(manifest, "1234");
    put("ollama/manifests/registry.ollama.ai/library/broken/latest", R"({"layers": [{"digest)");
    read_list();

    cr_assert_eq(list.n, 6);
    cr_assert_str_eq(named("plain-Q4_0")->repo, "");
    cr_assert_eq(named("plain-Q4_0")->bytes, 5);
    cr_assert_str_eq(named("Qwen3-0.6B-Q8_0")->repo, "Qwen/Qwen3-0.6B-GGUF");
    cr_assert_str_eq(named("Hub-Q4_K_M")->repo, "org/Repo-GGUF");
    cr_assert_eq(named("Hub-Q4_K_M")->bytes, 7);
    cr_assert(strstr(named("Hub-Q4_K_M")->path, "/snapshots/c0ffee/"));
    cr_assert_eq(named("Phi-Q4_K_M")->store, MODEL_LMSTUDIO);
    cr_assert_eq(named("llama3.2:3b")->bytes, 4);
    cr_assert_str_eq(named("llama3.2:3b")->path, full(manifest));
    cr_assert_str_eq(named("coach:latest")->path, full(manifest));
}

Test(model_dir, hub_without_a_branch_takes_the_newest_snapshot) {
    struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};

    put("hub/models--a--b/snapshots/old/Old-Q8_0.gguf", "1");
    put("hub/models--a--b/snapshots/new/New-Q8_0.gguf", "12");
    put("hub/models--a--b/refs/main", "gone");
    cr_assert_eq(utimensat(AT_FDCWD, full("hub/models--a--b/snapshots/old"), times, 0), 0);
    read_list();
    cr_assert(list.n == 1 && named("New-Q8_0"));
    put("hub/models--a--b/refs/main", "old\n");
    read_list();
    cr_assert(list.n == 1 && named("Old-Q8_0"));
}

Test(model_dir, six_levels_of_folders_are_read) {
    put("weft/2/3/4/5/6/Deep-Q8_0.gguf", "1");
    put("weft/2/3/4/5/6/7/Deeper-Q8_0.gguf", "1");
    read_list();
    cr_assert(list.n == 1 && named("Deep-Q8_0"));
}

Test(model_dir, a_projector_fits_by_its_name) {
    static const struct {
        const char *name;
        int fit;
    } cases[] = {
        {"mmproj-Qwen3-VL-4B-F16.gguf", 199},
        {"qwen3_vl_4b.mmproj-bf16.GGUF", 198},
        {"mmproj-Qwen3-VL-4B-Q8_0.gguf", 197},
        {"mmproj-Qwen3-VL-4B.gguf", 195},
        {"mmproj-model-f32.gguf", 96},
        {"mmproj-F16.gguf", 99},
        {"mmproj-Gemma.gguf", 0},
        {"Qwen3-VL-4B-F16.gguf", 0},
        {"mmproj-F16.bin", 0},
        {"mmproj", 0},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        cr_expect_eq(model_projector_fit(cases[i].name, "Qwen3-VL-4B-UD-Q4_K_XL.gguf"),
                     cases[i].fit, "%s", cases[i].name);
    cr_expect_eq(model_projector_fit("mmproj-F16.gguf", "model.bin"), 0);
    cr_expect_eq(model_projector_fit("mmproj-F16.gguf", "GLM-4.1V-9B"), 0);
    cr_expect_gt(model_projector_fit("mmproj-GLM-4.1V-9B-F16.gguf", "GLM-4.1V-9B"), 100);
}

Test(model_dir, shards_are_one_model) {
    const struct model_file *f;
    struct err err = {0};

    put("weft/o/r/Big-Q4_K_M-00001-of-00003.gguf", "123");
    put("weft/o/r/Big-Q4_K_M-00002-of-00003.gguf", "1234");
    read_list();
    cr_assert_eq(list.n, 1);
    cr_assert(list.file[0].n_files == 3 && list.file[0].n_missing == 1);
    cr_assert_eq(model_find(&list, "Big-Q4_K_M", &f, &err), -EINVAL);
    cr_assert(strstr(err.message, "1 of its 3 files"), "%s", err.message);

    put("weft/o/r/Big-Q4_K_M-00003-of-00003.gguf", "1");
    read_list();
    cr_assert_eq(model_find(&list, "Big-Q4_K_M", &f, &err), 0);
    cr_assert_eq(f->bytes, 8);
    cr_assert(strstr(f->path, "-00001-of-00003.gguf"));
}

Test(model_dir, a_folder_of_safetensors_is_one_model) {
    const struct model_file *f;
    struct err err = {0};

    put("weft/o/Two-3B/config.json", "{}");
    put("weft/o/Two-3B/model-00001-of-00002.safetensors", "123");
    put("weft/o/Two-3B/consolidated.safetensors", "1234567");
    put("hub/models--p--One-1B/snapshots/x/config.json", "{}");
    put("hub/models--p--One-1B/snapshots/x/model.safetensors", "12");
    put("hub/models--p--One-1B/snapshots/x/1_Pooling/config.json", "{}");
    put("hub/models--p--One-1B/snapshots/x/1_Pooling/model.safetensors", "12");
    put("weft/o/Weights/model.safetensors", "12");
    put("weft/o/Both/config.json", "{}");
    put("weft/o/Both/model.safetensors", "12");
    put("weft/o/Both/Both-Q8_0.gguf", "1");
    put("lmstudio/m/Unclear/config.json", "{}");
    put("lmstudio/m/Unclear/a.safetensors", "1");
    put("lmstudio/m/Unclear/b.safetensors", "1");
    read_list();
    cr_assert_eq(list.n, 3, "%zu", list.n);
    cr_assert(named("Both-Q8_0") && !named("Both-Q8_0")->folder);
    cr_assert(named("One-1B")->folder && named("One-1B")->bytes == 2);
    cr_assert_str_eq(named("One-1B")->repo, "p/One-1B");
    cr_assert_str_eq(found("hf:p/One-1B"), "One-1B");
    cr_assert_str_eq(named("Two-3B")->repo, "o/Two-3B");
    cr_assert_eq(model_find(&list, "two-3b", &f, &err), -EINVAL);
    cr_assert(strstr(err.message, "1 of its 2 files"), "%s", err.message);

    put("weft/o/Two-3B/model-00002-of-00002.safetensors", "1234");
    read_list();
    cr_assert_eq(model_find(&list, "o/two-3b", &f, &err), 0, "%s", err.message);
    cr_assert(f->bytes == 7 && f->n_files == 2);
    cr_assert_str_eq(f->path, full("weft/o/Two-3B"));
}

Test(model_dir, one_file_is_listed_once_and_names_are_unique) {
    put("weft/o/r/Same-Q8_0.gguf", "1");
    put_link("hub/models--o--r/snapshots/x/Same-Q8_0.gguf", full("weft/o/r/Same-Q8_0.gguf"));
    put("hub/models--p--r/snapshots/x/Same-Q8_0.gguf", "12");
    put("lmstudio/p/r/Same-Q8_0.gguf", "123");
    read_list();
    cr_assert_eq(list.n, 3);
    cr_assert_eq(named("Same-Q8_0")->store, MODEL_WEFT);
    cr_assert_eq(named("p/r/Same-Q8_0")->store, MODEL_HUB);
    cr_assert_eq(named("lmstudio/p/r/Same-Q8_0~1")->bytes, 3);
}

/* The order in which the folder is read differs between file systems, so there are many links. */
Test(model_dir, links_do_not_rename_a_file) {
    char name[64];

    put("weft/m.gguf", "GGUF");
    for (char c = 'a'; c <= 'z'; c++) {
        snprintf(name, sizeof(name), "weft/%c%c.gguf", c, c);
        put_link(name, "m.gguf");
    }
    read_list();
    cr_assert_eq(list.n, 1);
    cr_expect_str_eq(list.file[0].name, "m");
}

Test(model_dir, names_that_could_steer_a_terminal_are_left_out) {
    put("weft/evil\x1b[31m-Q8_0.gguf", "1");
    put("weft/bad\xff-Q8_0.gguf", "1");
    put("weft/gut-\xc3\xa4-Q8_0.gguf", "1");
    read_list();
    cr_assert_eq(list.n, 1);
    cr_assert(named("gut-\xc3\xa4-Q8_0"));
}

Test(model_dir, loops_of_links_end) {
    put("weft/o/r/Model-Q8_0.gguf", "1");
    put_link("weft/o/r/loop", "..");
    put_link("weft/o/r/Gone-Q8_0.gguf", "nothing");
    read_list();
    cr_assert_eq(list.n, 1);
}

Test(model_dir, a_name_means_one_model) {
    const struct model_file *f;
    struct err err = {0};

    put("weft/Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf", "1");
    put("weft/unsloth/Qwen3-4B-GGUF/Qwen3-4B-Q4_K_M.gguf", "1");
    put("weft/unsloth/Qwen3-4B-GGUF/Qwen3-4B-UD-Q4_K_XL.gguf", "1");
    read_list();
    cr_assert_str_eq(found("Qwen3-0.6B-Q8_0"), "Qwen3-0.6B-Q8_0");
    cr_assert_str_eq(found("qwen3-0.6b-q8_0"), "Qwen3-0.6B-Q8_0");
    cr_assert_str_eq(found("Qwen3-0.6B-Q8_0.gguf"), "Qwen3-0.6B-Q8_0");
    cr_assert_str_eq(found("Qwen3-0.6B-Q8_0:latest"), "Qwen3-0.6B-Q8_0");
    cr_assert_str_eq(found("qwen3-0.6b"), "Qwen3-0.6B-Q8_0");
    cr_assert_str_eq(found("hf:Qwen/Qwen3-0.6B-GGUF"), "Qwen3-0.6B-Q8_0");
    cr_assert_str_eq(found("qwen/qwen3-0.6b"), "Qwen3-0.6B-Q8_0");
    cr_assert_str_eq(found("unsloth/Qwen3-4B-GGUF:UD-Q4_K_XL"), "Qwen3-4B-UD-Q4_K_XL");
    cr_assert_str_eq(found("unsloth/Qwen3-4B-GGUF:Q4_K_M"), "Qwen3-4B-Q4_K_M");
    cr_assert_str_eq(found("Qwen3-0.6"), "");
    cr_assert_str_eq(found(""), "");
    cr_assert_eq(model_find(&list, "Qwen3-4B", &f, &err), -EINVAL);
    cr_assert(strstr(err.message, "Qwen3-4B-Q4_K_M, Qwen3-4B-UD-Q4_K_XL"), "%s", err.message);
    cr_assert_eq(model_find(&list, "llama", &f, &err), -ENOENT);
    cr_assert(strstr(err.message, "the models are: Qwen3-0.6B-Q8_0"), "%s", err.message);
}

static void unset_all(void) {
    static const char *const vars[] = {"WEFT_MODELS",   "STATE_DIRECTORY", "XDG_DATA_HOME",
                                       "HF_HUB_CACHE",  "HF_HOME",         "XDG_CACHE_HOME",
                                       "OLLAMA_MODELS", "LMSTUDIO_MODELS", "HOME"};

    for (size_t i = 0; i < ARRAY_SIZE(vars); i++)
        unsetenv(vars[i]);
}

static const char *root(enum model_store store, const char *option) {
    model_dirs_deinit(&dirs);
    cr_assert_eq(model_dirs_init(&dirs, option), 0);
    return dirs.root[store] ? dirs.root[store] : "none";
}

Test(model_dir, folders_come_from_the_environment) {
    unset_all();
    cr_assert_str_eq(root(MODEL_WEFT, NULL), "/var/lib/weft/models");
    cr_assert_str_eq(root(MODEL_HUB, NULL), "none");
    cr_assert_str_eq(root(MODEL_LMSTUDIO, NULL), "none");
    setenv("HOME", top, 1);
    cr_assert_str_eq(root(MODEL_WEFT, NULL) + strlen(top), "/.local/share/weft/models");
    cr_assert_str_eq(root(MODEL_HUB, NULL) + strlen(top), "/.cache/huggingface/hub");
    cr_assert_str_eq(root(MODEL_LMSTUDIO, NULL), "none");
    put(".lmstudio/models/x", "");
    cr_assert_str_eq(root(MODEL_LMSTUDIO, NULL) + strlen(top), "/.lmstudio/models");
    setenv("STATE_DIRECTORY", "/var/lib/weft", 1);
    cr_assert_str_eq(root(MODEL_WEFT, NULL), "/var/lib/weft/models");
    setenv("STATE_DIRECTORY", "/state/weft:/var/lib/other", 1); /* systemd's list */
    cr_assert_str_eq(root(MODEL_WEFT, NULL), "/state/weft/models");
    setenv("WEFT_MODELS", "/m/", 1);
    cr_assert_str_eq(root(MODEL_WEFT, NULL), "/m");
    cr_assert_str_eq(root(MODEL_WEFT, "/option"), "/option");
    setenv("HF_HOME", "/hf", 1);
    cr_assert_str_eq(root(MODEL_HUB, NULL), "/hf/hub");
    setenv("HF_HUB_CACHE", "/cache", 1);
    cr_assert_str_eq(root(MODEL_HUB, NULL), "/cache");
    setenv("OLLAMA_MODELS", "/o", 1);
    cr_assert_str_eq(root(MODEL_OLLAMA, NULL), "/o");
}
