#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

#include "cmd/ctl_hub.h"

static struct hub_listing listing;
static struct hub_choice choice;
static struct err err;

static void deinit(void) {
    hub_listing_deinit(&listing);
}

TestSuite(ctl_hub, .fini = deinit);

/* A listing of these files, a byte each. */
static void list(const char *const *names) {
    CLEANUP(buf_deinit) struct buf b = {0};

    buf_init(&b, 65536);
    buf_printf(&b, R"({"sha": "%040d", "siblings": [{"rfilename": "README.md"})", 0);
    for (; *names; names++)
        buf_printf(&b, R"(, {"rfilename": "%s", "lfs": {"size": 1, "sha256": "%064d"}})", *names,
                   7);
    cr_assert_eq(buf_add_str(&b, "]}"), 0);
    hub_listing_deinit(&listing);
    cr_assert_eq(hub_listing_read(&listing, b.data, b.len, &err), 0, "%s", err.message);
}
#define LIST(...) list((const char *const[]){__VA_ARGS__, NULL})

/* The stem that is chosen for @memory bytes, or "". */
static const char *chosen_for(uint64_t memory, const char *text) {
    struct hub_spec spec;

    err = (struct err){0};
    cr_assert_eq(hub_spec_parse(&spec, text, &err), 0, "%s", err.message);
    return hub_choose(&listing, &spec, memory, &choice, &err) == 0 ? choice.stem : "";
}

static const char *chosen(const char *text) {
    return chosen_for(0, text);
}

static void set_size(const char *path, uint64_t size) {
    size_t i = 0;

    while (i < listing.n && strcmp(listing.file[i].path, path) != 0)
        i++;
    cr_assert_lt(i, listing.n, "%s", path);
    listing.file[i].size = size;
}

Test(ctl_hub, names_in_every_form_are_taken_apart) {
    static const char *const same[] = {
        "hf:a-b/c.d_e:Q4_K_M@main",        "a-b/c.d_e:Q4_K_M",
        "hf.co/a-b/c.d_e:Q4_K_M",          "https://huggingface.co/a-b/c.d_e:Q4_K_M",
        "huggingface.co/a-b/c.d_e:Q4_K_M",
    };
    static const char *const wrong[] = {
        "",           "a",    "hf:a",          "/b",          "a/",     "a/b/c",
        "../b",       "a/..", "a/b:",          "a/b@",        "a/b@/x", "a b/c",
        "a/b@x/../y", "-a/b", "a/b:../x.gguf", "a/b:.x.gguf", "a/b\n"};
    struct hub_spec s;

    for (size_t i = 0; i < ARRAY_SIZE(same); i++) {
        cr_assert_eq(hub_spec_parse(&s, same[i], &err), 0, "%s", same[i]);
        cr_assert_str_eq(s.repo, "a-b/c.d_e");
        cr_assert_str_eq(s.what, "Q4_K_M");
        cr_assert_str_eq(s.revision, "main");
        cr_assert(!s.is_file);
    }
    cr_assert_eq(hub_spec_parse(&s, "hf:a/b:x/y-Q8_0.gguf@refs/pr/1", &err), 0);
    cr_assert(s.is_file && strcmp(s.what, "x/y-Q8_0.gguf") == 0 &&
              strcmp(s.revision, "refs/pr/1") == 0);
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
        cr_assert_eq(hub_spec_parse(&s, wrong[i], &err), -EINVAL, "%s", wrong[i]);
    cr_assert_eq(hub_spec_parse(&s, "llama3.2:3b", &err), -EINVAL);
    cr_expect(strstr(err.message, "/models?library=gguf&search=llama3.2 and pull hf:OWNER/REPO"),
              "%s", err.message);
}

Test(ctl_hub, default_quant_is_the_first_of_the_order) {
    LIST("M-Q2_K.gguf", "M-Q8_0.gguf", "M-Q4_K_M.gguf", "M-UD-Q4_K_XL.gguf", "mmproj-Q4_K_M.gguf");
    cr_assert_str_eq(chosen("a/b"), "M-Q4_K_M");
    cr_assert_str_eq(chosen("a/b:latest"), "M-Q4_K_M");
    LIST("M-Q2_K.gguf", "M-Q8_0.gguf", "M-BF16.gguf");
    cr_assert_str_eq(chosen("a/b"), "M-Q8_0");
    LIST("M-Q2_K.gguf", "M-UD-Q4_K_XL.gguf", "M-Q8_0.gguf");
    cr_assert_str_eq(chosen("a/b"), "M-UD-Q4_K_XL");
    LIST("only.gguf");
    cr_assert_str_eq(chosen("a/b"), "only");
    LIST("one.gguf", "two.gguf");
    cr_assert_str_eq(chosen("a/b"), "");
    cr_assert(strstr(err.message, "one.gguf, two.gguf"), "%s", err.message);
    LIST("mmproj-F16.gguf");
    cr_assert_str_eq(chosen("a/b"), "");
}

Test(ctl_hub, default_quant_is_the_first_that_fits) {
    LIST("M-Q2_K.gguf", "M-Q8_0.gguf", "M-Q4_K_M.gguf", "M-Q3_K_M.gguf", "mmproj-F16.gguf");
    set_size("M-Q4_K_M.gguf", 4500);
    set_size("M-Q8_0.gguf", 8500);
    set_size("M-Q3_K_M.gguf", 3500);
    set_size("M-Q2_K.gguf", 2500);
    set_size("mmproj-F16.gguf", 500);
    cr_assert_str_eq(chosen_for(8000, "a/b"), "M-Q4_K_M");
    cr_assert(!choice.instead && !choice.too_large && choice.bytes == 5000);
    cr_assert_str_eq(chosen_for(5999, "a/b"), "M-Q3_K_M", "the projector needs memory, too");
    cr_assert(choice.instead && !choice.too_large);
    cr_assert_str_eq(chosen_for(3600, "a/b"), "M-Q2_K");
    cr_assert_str_eq(chosen_for(3400, "a/b"), "M-Q4_K_M", "nothing fits");
    cr_assert(!choice.instead && choice.too_large);
    cr_assert_str_eq(chosen_for(3400, "a/b:Q8_0"), "M-Q8_0", "a name is obeyed");
    cr_assert(choice.too_large);
    LIST("only.gguf");
    set_size("only.gguf", 4500);
    cr_assert_str_eq(chosen_for(4500, "a/b"), "only");
    cr_assert(choice.too_large);
}

Test(ctl_hub, a_folder_is_taken_where_no_usual_quant_fits) {
    LIST("M-Q4_K_M.gguf", "config.json", "tokenizer.json", "model.safetensors");
    set_size("M-Q4_K_M.gguf", 4500);
    set_size("model.safetensors", 4200);
    cr_assert_str_eq(chosen_for(8000, "a/b"), "M-Q4_K_M");
    cr_assert_str_eq(chosen_for(5052, "a/b"), "b");
    cr_assert(choice.folder && choice.instead && !choice.too_large && choice.n == 3);
    cr_assert_str_eq(chosen_for(4000, "a/b"), "M-Q4_K_M", "neither fits");
    cr_assert(!choice.folder && choice.too_large);
    LIST("M-Q9.gguf", "M-Q10.gguf", "config.json", "tokenizer.json", "model.safetensors");
    cr_assert_str_eq(chosen("a/b"), "b");
    cr_assert(choice.folder && choice.instead);
    LIST("M-Q9.gguf", "M-Q10.gguf", "model.safetensors");
    cr_assert_str_eq(chosen("a/b"), "", "a folder without config.json");
    cr_assert(strstr(err.message, "no usual quant; available: Q9, Q10"), "%s", err.message);
}

Test(ctl_hub, quants_and_files_are_found_in_any_case) {
    LIST("M-Q4_K_M.gguf", "M-UD-Q4_K_XL.gguf", "sub/M-IQ4_XS.gguf", "M-UD-Q2_K.gguf",
         "M-Q2_K.gguf");
    cr_assert_str_eq(chosen("a/b:q4_k_m"), "M-Q4_K_M");
    cr_assert_str_eq(chosen("a/b:Q4_K_XL"), "M-UD-Q4_K_XL");
    cr_assert_str_eq(chosen("a/b:Q2_K"), "M-Q2_K");
    cr_assert_str_eq(chosen("a/b:sub/M-IQ4_XS.gguf"), "M-IQ4_XS");
    cr_assert_str_eq(chosen("a/b:m-iq4_xs.gguf"), "M-IQ4_XS");
    cr_assert_str_eq(chosen("a/b:Q3_K_M"), "");
    LIST("A-Q4_K_M.gguf", "B-Q4_K_M.gguf");
    cr_assert_str_eq(chosen("a/b"), "");
    cr_assert(strstr(err.message, "A-Q4_K_M.gguf and B-Q4_K_M.gguf; name the file"), "%s",
              err.message);
}

Test(ctl_hub, shards_come_in_their_order) {
    LIST("x/M-Q4_K_M-00002-of-00002.gguf", "M-Q8_0.gguf", "x/M-Q4_K_M-00001-of-00002.gguf");
    cr_assert_str_eq(chosen("a/b"), "M-Q4_K_M");
    cr_assert(choice.n == 2 && choice.bytes == 2);
    cr_assert_str_eq(listing.file[choice.file[0]].path, "x/M-Q4_K_M-00001-of-00002.gguf");
    cr_assert_str_eq(listing.file[choice.file[1]].path, "x/M-Q4_K_M-00002-of-00002.gguf");
    LIST("M-Q4_K_M-00001-of-00002.gguf");
    cr_assert_str_eq(chosen("a/b"), "");
    cr_assert(strstr(err.message, "lacks M-Q4_K_M-00002-of-00002.gguf"), "%s", err.message);
}

Test(ctl_hub, paths_are_escaped) {
    struct hub_spec s;
    char path[600];

    cr_assert_eq(hub_spec_parse(&s, "a/b@refs/pr/1", &err), 0);
    cr_assert(hub_listing_path(&s, path, sizeof(path)));
    cr_assert_str_eq(path, "/api/models/a/b/revision/refs%2Fpr%2F1?blobs=true");
    cr_assert(hub_file_path(&s, "c0", "x/y z?#%.gguf", path, sizeof(path)));
    cr_assert_str_eq(path, "/a/b/resolve/c0/x/y%20z%3F%23%25.gguf");
    cr_assert(!hub_file_path(&s, "c0", "xxxxxxxxxxxxxxxx", path, 24));
}

Test(ctl_hub, waits_grow_and_are_bounded) {
    struct hub_reply r = {.retry_after_s = -1};

    cr_assert_eq(hub_wait_ms(&r, 1), 500);
    cr_assert_eq(hub_wait_ms(&r, 3), 2000);
    cr_assert_eq(hub_wait_ms(&r, 1000000), 60000);
    r.retry_after_s = 7;
    cr_assert_eq(hub_wait_ms(&r, 1), 7000);
    r.retry_after_s = 61;
    cr_assert_eq(hub_wait_ms(&r, 1), -1);
}
