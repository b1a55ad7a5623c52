/* Several sequences in one session, from a model in memory: queued prompts, batches, forks, truncation, logits, cancelling, memory. */
#include "host.h"

#define CROWD 3
#define STEPS 12

static segno_model *load_from_memory(const char *path)
{
    FILE *file = fopen(path, "rb");
    REQUIRE(file != NULL && fseek(file, 0, SEEK_END) == 0);
    long size = ftell(file);
    REQUIRE(size > 0 && fseek(file, 0, SEEK_SET) == 0);
    void *data = malloc((size_t)size);
    REQUIRE(data != NULL && fread(data, 1, (size_t)size, file) == (size_t)size && fclose(file) == 0);
    segno_ctx *ctx;
    segno_ctx_opts options;
    segno_model *model;
    segno_ctx_opts_init(&options, sizeof options);
    options.device = SEGNO_DEVICE_CPU;
    options.precision = SEGNO_PRECISION_PRECISE;
    options.flags = SEGNO_CTX_NO_AVX512;
    OK(segno_ctx_create(SEGNO_ABI_VERSION, &options, &ctx, &err));
    OK(segno_model_load_buffer(ctx, data, (size_t)size, NULL, &model, &err));
    free(data);
    segno_ctx_free(ctx);
    return model;
}

/* Queues another prompt for each of a crowd, and steps all until each has `STEPS` tokens, which go to `out`. */
static void run_together(const segno_model *model, segno_session *session, const char *const *prompts, int count, int32_t (*out)[STEPS])
{
    segno_sampler_opts sampler;
    int32_t seqs[CROWD], tokens[CROWD], prompt[64];
    segno_status statuses[CROWD];
    int written[CROWD] = {0, 0, 0};
    segno_sampler_opts_init(&sampler, sizeof sampler);
    sampler.flags = SEGNO_SAMPLER_IGNORE_EOG;
    sampler.seed = 11;
    for (int i = 0; i < count; i++) {
        size_t length = tokens_of(model, prompts[i], prompt, 64);
        OK(segno_seq_open(session, &sampler, &seqs[i], &err));
        OK(segno_seq_append(session, seqs[i], prompt, length, &err));
    }
    for (int pass = 0; pass < STEPS + 20; pass++) {
        OK(segno_decode_batch(session, seqs, (size_t)count, tokens, statuses, &err));
        for (int i = 0; i < count; i++) {
            REQUIRE((statuses[i] == SEGNO_PENDING) == (tokens[i] == -1));
            if (statuses[i] != SEGNO_PENDING && written[i] < STEPS)
                out[i][written[i]++] = tokens[i];
        }
    }
    for (int i = 0; i < count; i++) {
        REQUIRE(written[i] == STEPS);
        OK(segno_seq_close(session, seqs[i], &err));
    }
}

static void a_crowd_says_what_each_says_alone(const segno_model *model, segno_session *session)
{
    const char *const prompts[CROWD] = {"ROMEO: what light through yonder window", "First Citizen: we are", "The duke speaks of"};
    int32_t together[CROWD][STEPS], alone[1][STEPS];
    run_together(model, session, prompts, CROWD, together);
    for (int i = 0; i < CROWD; i++) {
        run_together(model, session, &prompts[i], 1, alone);
        REQUIRE(memcmp(together[i], alone[0], sizeof alone[0]) == 0);
    }
}

static void fork_and_truncate(const segno_model *model, segno_session *session)
{
    segno_sampler_opts greedy;
    int32_t seq, fork, prompt[64], token = -1, again = -2, best = 0;
    size_t length = 0, count = 0;
    segno_sampler_opts_init(&greedy, sizeof greedy);
    greedy.temperature = 0;
    size_t queued = tokens_of(model, "First Citizen: before we", prompt, 64);
    OK(segno_seq_open(session, NULL, &seq, &err));
    OK(segno_seq_sampler_set(session, seq, &greedy, &err));
    OK(segno_seq_prefill(session, seq, prompt, queued, &err));
    OK(segno_seq_logits(session, seq, NULL, 0, &count, &err));
    float *logits = (float *)malloc(count * sizeof(float));
    REQUIRE(logits != NULL);
    OK(segno_seq_logits(session, seq, logits, count, &count, &err));
    for (size_t i = 1; i < count; i++)
        best = logits[i] > logits[best] ? (int32_t)i : best;
    free(logits);
    OK(segno_seq_fork(session, seq, NULL, &fork, &err));
    REQUIRE(segno_decode_step(session, seq, &token, NULL) >= 0 && segno_decode_step(session, fork, &again, NULL) >= 0);
    REQUIRE(token == best && again == best);
    OK(segno_seq_truncate(session, seq, queued, &err));
    OK(segno_seq_length(session, seq, &length, &err));
    REQUIRE(length == queued && segno_decode_step(session, seq, &again, NULL) >= 0 && again == token);

    REQUIRE(segno_session_cancel(session, 1) == SEGNO_OK);
    REQUIRE(segno_decode_step(session, seq, &again, NULL) == SEGNO_CANCELLED);
    REQUIRE(segno_session_cancel(session, 0) == SEGNO_OK);
    OK(segno_seq_close(session, fork, &err));
    OK(segno_seq_close(session, seq, &err));
}

int main(int argc, char **argv)
{
    segno_session_opts room;
    segno_session *session;
    segno_memory memory;
    REQUIRE(argc == 2);
    segno_model *model = load_from_memory(argv[1]);
    segno_session_opts_init(&room, sizeof room);
    room.max_seqs = CROWD;
    room.max_prefill = 4;
    room.kv_tokens = 256;
    OK(segno_session_create(model, &room, &session, &err));
    segno_model_free(model);
    OK(segno_session_memory(session, &memory, sizeof memory, &err));
    REQUIRE(memory.struct_size == sizeof memory && memory.host_weights > 1000 && memory.host_kv > 0 && memory.host_arena > 0);
    model = load(argv[1]);
    a_crowd_says_what_each_says_alone(model, session);
    fork_and_truncate(model, session);
    segno_model_free(model);
    segno_session_free(session);
    puts("crowd: passed");
    return 0;
}
