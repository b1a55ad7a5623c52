/* What only Windows has: paths in UTF-8, what is no file, and a host that lets go of the library while it has threads.
 * <windows.h> comes first, with all its macros. */
#include <windows.h>

#include "../capi/check.h"

#include <wchar.h>

static void copy_model(const char *from, const wchar_t *to) {
    static char bytes[1 << 16];
    size_t read;
    FILE *in = fopen(from, "rb"), *out = _wfopen(to, L"wb");
    CHECK(in != NULL && out != NULL);
    while ((read = fread(bytes, 1, sizeof bytes, in)) > 0) CHECK(fwrite(bytes, 1, read, out) == read);
    CHECK(fclose(in) == 0 && fclose(out) == 0);
}

static void paths_are_utf8(segno_ctx *ctx, const char *path) {
    static const char name[] = "segno-\xc3\xb6-\xe6\x96\x87.gguf";
    static const wchar_t wide[] = L"segno-\u00f6-\u6587.gguf";
    copy_model(path, wide);
    for (uint32_t flags = 0; flags <= SEGNO_MODEL_NO_MMAP; flags += SEGNO_MODEL_NO_MMAP) {
        segno_model_opts opts;
        segno_model *model;
        segno_model_opts_init(&opts, sizeof opts);
        opts.flags = flags;
        EXPECT(SEGNO_OK, segno_model_load(ctx, name, &opts, &model, &err));
        segno_model_free(model);
    }
    /* Nothing holds the file any more. */
    CHECK(DeleteFileW(wide) && GetFileAttributesW(wide) == INVALID_FILE_ATTRIBUTES);
}

static void refuse(segno_ctx *ctx, const char *path, segno_status status, const char *text) {
    segno_model *model;
    segno_error *err = NULL;
    segno_status got = segno_model_load(ctx, path, NULL, &model, &err);
    if (got != status || strstr(segno_error_message(err), text) == NULL) {
        fprintf(stderr, "%s: %s: %s\n", path, segno_status_str(got), err == NULL ? "" : segno_error_message(err));
        exit(1);
    }
    segno_error_free(err);
}

static void what_is_no_file_is_refused(segno_ctx *ctx) {
    static const char pipe[] = "\\\\.\\pipe\\segno-test";
    HANDLE end = CreateNamedPipeA(pipe, PIPE_ACCESS_DUPLEX, PIPE_TYPE_BYTE | PIPE_WAIT, 1, 4096, 4096, 0, NULL);
    CHECK(end != INVALID_HANDLE_VALUE);
    refuse(ctx, pipe, SEGNO_E_IO, "pipe");
    CloseHandle(end);
    refuse(ctx, "missing.gguf", SEGNO_E_IO, "missing.gguf");
    refuse(ctx, "NUL", SEGNO_E_IO, "regular");
    refuse(ctx, "\xff.gguf", SEGNO_E_INVALID_ARGUMENT, "utf-8");
}

/* A library that has had threads stays where it is, however often it is let go. */
static void the_library_stays(void) {
    HMODULE module = GetModuleHandleA("segno.dll");
    CHECK(module != NULL);
    for (int i = 0; i < 3; i++) FreeLibrary(module);
    CHECK(GetModuleHandleA("segno.dll") == module && segno_abi_version() == SEGNO_ABI_VERSION);
}

int main(int argc, char **argv) {
    segno_ctx *ctx;
    segno_ctx_opts opts;
    CHECK(argc == 2);
    segno_ctx_opts_init(&opts, sizeof opts);
    opts.n_threads = 2;
    EXPECT(SEGNO_OK, segno_ctx_create(SEGNO_ABI_VERSION, &opts, &ctx, &err));
    paths_are_utf8(ctx, argv[1]);
    what_is_no_file_is_refused(ctx);
    segno_ctx_free(ctx);
    the_library_stays();
    puts("windows: paths, files and threads of a host pass");
    return 0;
}
