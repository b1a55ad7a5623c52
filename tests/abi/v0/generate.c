/* One text: tokens, a sampler with every option, a stream of whole characters with stop strings, chat templates, errors. */
#include "host.h"

/* Sampled tokens are shown as text until `most` of them, the end, or a stop string. Returns the bytes written to `story`. */
static size_t write_story(segno_session *session, int32_t seq, segno_text *text, int most, char *story, size_t room)
{
    size_t used = 0, len = 0;
    for (int i = 0; i < most; i++) {
        int32_t token = -1;
        segno_status status = segno_decode_step(session, seq, &token, NULL);
        REQUIRE((status == SEGNO_OK || status == SEGNO_DONE) && token >= 0);
        segno_status shown = segno_text_push(text, token, story + used, room - used, &len, NULL);
        REQUIRE(!SEGNO_FAILED(shown));
        used += len;
        if (status == SEGNO_DONE || shown == SEGNO_DONE)
            break;
    }
    segno_status end = segno_text_flush(text, story + used, room - used, &len, NULL);
    REQUIRE(end == SEGNO_OK || end == SEGNO_DONE);
    return used + len;
}

static void same_seed_same_story(segno_model *model)
{
    const segno_logit_bias bias[2] = {{5, 0.5f}, {6, -1.5f}};
    const segno_string stops[2] = {{"no such words anywhere", 22}, {"\n\n\n\n\n\n", 6}};
    const int32_t stop_tokens[1] = {3};
    segno_sampler_opts sampler;
    segno_session_opts room;
    segno_text_opts stream;
    segno_session *session;
    segno_text *text;
    int32_t seq, prompt[64];
    char stories[2][4096];
    size_t lengths[2], history = 0;

    segno_sampler_opts_init(&sampler, sizeof sampler);
    REQUIRE(sampler.struct_size == sizeof sampler && sampler.top_k == 40 && sampler.seed == SEGNO_SEED_RANDOM);
    sampler.temperature = 0.9f;
    sampler.top_k = 50;
    sampler.top_p = 0.9f;
    sampler.min_p = 0.02f;
    sampler.typical_p = 0.98f;
    sampler.repeat_penalty = 1.1f;
    sampler.frequency_penalty = 0.1f;
    sampler.presence_penalty = 0.1f;
    sampler.penalty_last_n = -1;
    sampler.flags = SEGNO_SAMPLER_IGNORE_EOG;
    sampler.seed = 7;
    sampler.bias = bias;
    sampler.bias_count = 2;
    sampler.stop_tokens = stop_tokens;
    sampler.stop_token_count = 1;
    segno_session_opts_init(&room, sizeof room);
    room.max_seqs = 1;
    room.kv_tokens = 256;
    room.max_prefill = 4;
    room.kv_type = SEGNO_KV_F32;
    OK(segno_session_create(model, &room, &session, &err));
    segno_text_opts_init(&stream, sizeof stream);
    stream.flags = SEGNO_TEXT_SPECIAL;
    stream.stops = stops;
    stream.stop_count = 2;
    OK(segno_text_create(model, &stream, &text, &err));
    size_t count = tokens_of(model, "ROMEO: what light", prompt, 64);
    for (int i = 0; i < 2; i++) {
        OK(segno_seq_open(session, &sampler, &seq, &err));
        OK(segno_seq_prefill(session, seq, prompt, count, &err));
        lengths[i] = write_story(session, seq, text, 60, stories[i], sizeof stories[i]);
        OK(segno_seq_length(session, seq, &history, &err));
        REQUIRE(history > count && history <= count + 60);
        OK(segno_seq_close(session, seq, &err));
    }
    REQUIRE(lengths[0] > 0 && lengths[0] == lengths[1] && memcmp(stories[0], stories[1], lengths[0]) == 0);
    segno_text_free(text);
    segno_session_free(session);
}

static void describe(const segno_model *model)
{
    segno_model_info info;
    char value[64];
    size_t len = 0;
    OK(segno_model_info_get(model, &info, sizeof info, &err));
    REQUIRE(info.struct_size == sizeof info && info.vocab > 100 && info.layers > 0 && info.hidden > 0 && info.context >= 256);
    REQUIRE(info.heads > 0 && info.kv_heads > 0 && info.head_dim > 0 && info.bos < (int32_t)info.vocab && info.eos < (int32_t)info.vocab);
    REQUIRE(info.parameters > 1000 && info.weight_bytes > 1000);
    OK(segno_model_meta(model, "general.architecture", value, sizeof value, &len, &err));
    REQUIRE(len == strlen(info.arch) && memcmp(value, info.arch, len) == 0);
}

static void plan_and_devices(const char *path)
{
    segno_ctx *ctx;
    segno_plan plan;
    segno_device_info device;
    int32_t devices = 0;
    OK(segno_device_count(SEGNO_DEVICE_CPU, &devices, &err));
    OK(segno_device_info_get(SEGNO_DEVICE_CPU, 0, &device, sizeof device, &err));
    REQUIRE(devices == 1 && device.kind == SEGNO_DEVICE_CPU && device.memory_total >= device.memory_free && device.name[0] != '\0');
    OK(segno_ctx_create(SEGNO_ABI_VERSION, NULL, &ctx, &err));
    OK(segno_plan_get(ctx, path, NULL, NULL, &plan, sizeof plan, &err));
    REQUIRE(plan.struct_size == sizeof plan && plan.host_weights + plan.device_weights > 0 && plan.host_kv + plan.device_kv > 0);
    segno_ctx_free(ctx);
}

static void texts_and_tokens(const segno_model *model)
{
    const char *text = "To be, or not to be";
    char back[64];
    int32_t tokens[64];
    size_t len = 0, count = 0;
    OK(segno_tokenize(model, text, strlen(text), 0, tokens, 64, &count, &err));
    OK(segno_detokenize(model, tokens, count, SEGNO_DETOKENIZE_SPECIAL, back, sizeof back, &len, &err));
    REQUIRE(len == strlen(text) && memcmp(back, text, len) == 0);
}

static void render_a_chat(const segno_model *model)
{
    const char *messages = "[{\"role\": \"user\", \"content\": \"Who is there?\"}]";
    const char *template_text = "{% for m in messages %}{{ m.role }}: {{ m.content }} {{ sign }}\n{% endfor %}"
                                "{% if add_generation_prompt %}assistant:{% endif %}";
    const char *expected = "user: Who is there? !\nassistant:";
    segno_chat_opts options;
    char text[256];
    size_t len = 0;
    segno_chat_opts_init(&options, sizeof options);
    options.flags = SEGNO_CHAT_ADD_GENERATION_PROMPT;
    options.template_text = template_text;
    options.template_len = strlen(template_text);
    options.vars_json = "{\"sign\": \"!\"}";
    options.vars_len = strlen(options.vars_json);
    options.tools_json = "[]";
    options.tools_len = 2;
    options.now = 1700000000;
    OK(segno_chat_render(model, messages, strlen(messages), &options, text, sizeof text, &len, &err));
    REQUIRE(len == strlen(expected) && memcmp(text, expected, len) == 0);
}

static void errors_tell_what_is_wrong(const segno_model *model)
{
    segno_error *err = NULL;
    segno_ctx *ctx;
    segno_session *session;
    const int32_t beyond[2] = {1, 1 << 30};
    int32_t seq, token;
    REQUIRE(segno_ctx_create(SEGNO_ABI_VERSION + 1000, NULL, &ctx, &err) == SEGNO_E_ABI && err != NULL && ctx == NULL);
    REQUIRE(segno_error_code(err) == SEGNO_E_ABI && strlen(segno_error_message(err)) > 0 && segno_error_item(err) == -1);
    segno_error_free(err);
    OK(segno_session_create(model, NULL, &session, &err));
    REQUIRE(segno_decode_step(session, 12345, &token, NULL) == SEGNO_E_NOT_FOUND);
    OK(segno_seq_open(session, NULL, &seq, &err));
    REQUIRE(segno_seq_append(session, seq, beyond, 2, &err) == SEGNO_E_INVALID_ARGUMENT && segno_error_item(err) == 1);
    segno_error_free(err);
    REQUIRE(strcmp(segno_status_str(SEGNO_E_KV_FULL), "SEGNO_E_KV_FULL") == 0);
    segno_session_free(session);
}

int main(int argc, char **argv)
{
    REQUIRE(argc == 2);
    REQUIRE(segno_abi_version() == SEGNO_ABI_VERSION && segno_version_number() >= SEGNO_VERSION_NUMBER);
    REQUIRE(strchr(segno_version_string(), '.') != NULL && segno_has_feature("no such feature") == 0);
    segno_model *model = load(argv[1]);
    describe(model);
    plan_and_devices(argv[1]);
    texts_and_tokens(model);
    same_seed_same_story(model);
    render_a_chat(model);
    errors_tell_what_is_wrong(model);
    segno_model_free(model);
    puts("generate: passed");
    return 0;
}
