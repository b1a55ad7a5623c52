/*
 * Segno: language models inside other programs. Generated from the Rust source by `make header`; do not edit.
 *
 * Rules that hold everywhere
 *
 * - Every call answers a segno_status: SEGNO_OK, a positive outcome, or a negative error. SEGNO_FAILED(status) tests for errors.
 * - `err` may be NULL. Otherwise it is set to NULL on success and to an object on failure, which the caller frees with
 *   segno_error_free. What it held before is overwritten, never freed. Look at it after the call only: in `report(call(.., &err), err)`, C may
 *   read `err` before the call. SEGNO_TRY keeps the order, and so does a function that takes `&err`.
 * - Outputs are written only on success, except sizes needed, `*out = NULL` on a failed create or load, and the items of a batch.
 * - Results of unknown size go into the caller's buffer: `buf` with room for `cap` elements. `*len` always receives the size needed, no
 *   NUL is added, `buf` NULL with `cap` 0 asks for the size, and a buffer that is too small receives nothing.
 * - Text is a pointer and a length in bytes, UTF-8. Paths and keys are NUL-terminated UTF-8.
 * - Option structs are filled by their init function with `sizeof` the struct; NULL options are the defaults. No version of a struct that
 *   tells its size has more than 1024 bytes; a larger size is refused.
 * - Objects may be freed in any order: each keeps alive what it was made from. NULL may be freed. A pointer to an object of another kind, to a
 *   freed one, or to no object is INVALID_ARGUMENT as far as it can be told; freeing one does nothing.
 * - segno_ctx and segno_model take calls from any number of threads at once. segno_session and segno_text take one at a time: a second one
 *   gets SEGNO_E_BUSY, but for cancel and the calls that tell figures. Freeing an object while a call on it runs is a bug of the caller.
 */


#ifndef SEGNO_H
#define SEGNO_H

#include <stddef.h>
#include <stdint.h>

/** Whether a status is an error; positive outcomes are not. */
#define SEGNO_FAILED(status) ((status) < 0)

/**
 * Makes `call`, and when it failed, then executes `on_error`, a statement such as a `return` or a `goto`:
 *
 *     SEGNO_TRY(segno_model_load(ctx, path, NULL, &model, &err), goto failed);
 *
 * `err` is then what this call has left. A positive outcome, such as SEGNO_CANCELLED, goes on behind the macro. `break` and `continue` in
 * `on_error` end the macro alone.
 */
#define SEGNO_TRY(call, on_error) \
    do { \
        if (SEGNO_FAILED(call)) { \
            on_error; \
        } \
    } while (0)

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Library -------------------------------------------------------------------------------------------------------
 *
 * Every call answers a segno_status. The numbers of the library and of its ABI tell a host what it runs with:
 * segno_ctx_create compares the ABI.
 */

/** Success. */
#define SEGNO_OK 0
/** The sampled token ended generation, or a stop string is complete. */
#define SEGNO_DONE 1
/** The host cancelled the call; every sequence is at its length before it. */
#define SEGNO_CANCELLED 2
/** The sequence's prompt is not fully evaluated yet; call again. */
#define SEGNO_PENDING 3
/** The text of the sequence's grammar has ended and no token that ends generation may follow: no token was sampled, and the token is -1. */
#define SEGNO_GRAMMAR_END 4
/** A parameter has a value that the call does not accept. */
#define SEGNO_E_INVALID_ARGUMENT -1
/** A pointer that must not be NULL is NULL. */
#define SEGNO_E_NULL_POINTER -2
/** An output buffer is too small; the size needed has been written. */
#define SEGNO_E_BUFFER_TOO_SMALL -3
/** Another call on the same object is running, or a callback of its context on this thread. */
#define SEGNO_E_BUSY -4
/** An earlier call on this object answered `SEGNO_E_PANIC`; only freeing it is allowed. */
#define SEGNO_E_POISONED -5
/** A bug of the library was caught at its boundary; the process is unharmed. */
#define SEGNO_E_PANIC -6
/** This build, machine, or kind of file cannot do what was asked, or the process is a fork of one that uses the library. */
#define SEGNO_E_UNSUPPORTED -7
/** Host memory could not be allocated. */
#define SEGNO_E_OUT_OF_MEMORY -8
/** The device's memory does not suffice. */
#define SEGNO_E_DEVICE_MEMORY -9
/** The device failed. */
#define SEGNO_E_DEVICE -10
/** The operating system refused a file operation. */
#define SEGNO_E_IO -11
/** The model file breaks its format. */
#define SEGNO_E_FORMAT -12
/** The sequence has reached the model's context length. */
#define SEGNO_E_CONTEXT_FULL -13
/** The session's KV pool has no page left; close or truncate another sequence. */
#define SEGNO_E_KV_FULL -14
/** `max_seqs` sequences are open. */
#define SEGNO_E_SEQ_FULL -15
/** There is nothing of that name, id or index. */
#define SEGNO_E_NOT_FOUND -16
/** A chat template could not be compiled or rendered. */
#define SEGNO_E_TEMPLATE -17
/** The host was compiled against a header of another ABI number. */
#define SEGNO_E_ABI -18
/** A grammar could not be compiled, or takes more than its limits at some text. */
#define SEGNO_E_GRAMMAR -19
/** Version of the header, packed as MAJOR << 16 | MINOR << 8 | PATCH. */
#define SEGNO_VERSION_NUMBER 256
/** Number of the ABI that the header describes; pass it to `segno_ctx_create`. */
#define SEGNO_ABI_VERSION 0

/** Outcome of a call: `SEGNO_OK`, a positive outcome, or a negative error. Test errors with `SEGNO_FAILED(status)`. */
typedef int32_t segno_status;

/**
 * The name of a status code, for example "SEGNO_E_KV_FULL".
 *
 * Returns a static string, "unknown status" for a number that this library does not use; never NULL. Any thread. Since 0.1.
 */
const char *segno_status_str(segno_status code);

/**
 * Version of the library at run time, packed as `SEGNO_VERSION_NUMBER`.
 *
 * Any thread. Since 0.1.
 */
uint32_t segno_version_number(void);

/**
 * Version of the library at run time, for example "0.1.0"; a static string.
 *
 * Any thread. Since 0.1.
 */
const char *segno_version_string(void);

/**
 * Number of the ABI that the library has at run time.
 *
 * Any thread. Since 0.1.
 */
uint32_t segno_abi_version(void);

/**
 * Whether a capability is compiled in and usable on this machine now: 1 or 0.
 *
 * `name` is "cuda", "avx2", "avx512", "neon", "neondot" or "neoni8mm"; NULL and unknown names give 0. Any thread. Since 0.1.
 */
int32_t segno_has_feature(const char *name);

/* ---- Errors --------------------------------------------------------------------------------------------------------
 *
 * A segno_error is what a failed call leaves behind: the status, a message of one line for people, and the item of a list
 * that it concerns. The caller frees it.
 */

/** Detail of a failed call: code, message, and the item at fault. Owned by the host, immutable, any thread. */
typedef struct segno_error segno_error;

/**
 * The status code of an error; `SEGNO_OK` for NULL, INVALID_ARGUMENT for what is no error, or one that was freed.
 *
 * Any thread. Since 0.1.
 */
segno_status segno_error_code(const struct segno_error *error);

/**
 * One line that a user can act on, NUL-terminated UTF-8; "" for NULL and for what is no error, never NULL.
 *
 * Valid until the error is freed. Any thread. Since 0.1.
 */
const char *segno_error_message(const struct segno_error *error);

/**
 * Index of the item of a list (a token, a sequence of a batch) that the error concerns; -1 when it concerns none, or for NULL.
 *
 * Any thread. Since 0.1.
 */
int64_t segno_error_item(const struct segno_error *error);

/** Frees an error; NULL is allowed. Since 0.1. */
void segno_error_free(struct segno_error *error);

/* ---- Contexts ------------------------------------------------------------------------------------------------------
 *
 * A segno_ctx is one device in use: the threads that compute, or a GPU with its streams, and the log. A process has one for
 * each device that it uses. Models are loaded into it, and keep it alive.
 */

/** Quantized weights meet 8-bit activations. */
#define SEGNO_PRECISION_DEFAULT 0
/** f32 weights and activations: slow, for comparison. */
#define SEGNO_PRECISION_PRECISE 1
/** Do not use 512-bit instructions. */
#define SEGNO_CTX_NO_AVX512 1
/** Do not let a GPU choose tokens: greedy ones too are taken from the logits on the host, for exact comparison. No effect on the processor. */
#define SEGNO_CTX_HOST_ARGMAX 2
/**
 * Run every decode step on a GPU as single launches and measure each: when a session is freed, the log hears a table at level INFO, with bytes,
 * microseconds, GB/s and share of the memory's peak for every launch. Steps are slower meanwhile. No effect on the processor.
 */
#define SEGNO_CTX_TIMING 4
/**
 * Let products of prompts, and of batches of more than 4 rows, on a GPU multiply weights and activations as 16-bit floats, with sums in f32. They
 * are faster by far (README.md has figures), and mostly closer to the precise result than with 8-bit activations, but a sequence's tokens may depend
 * on whether it ran alone, in a batch, and in which. Without this flag they never do. Smaller batches stay as they are. No effect on the processor,
 * on GPUs of another compute capability than 9.0, on weights of other types than Q8_0, Q4_K, Q5_K and Q6_K, and on matrices whose columns
 * are no multiple of 128 or whose rows are none of 16; those of experts count in prompts alone, with rows of each a multiple of 128. The log says at
 * level INFO whether fast batches are in use.
 */
#define SEGNO_CTX_FAST_BATCHES 8
/**
 * Take memory although there is not as much. Without this flag loading a model and creating a session answer OUT_OF_MEMORY, before anything is
 * taken, where they need more host memory than the system, the limits of the process's cgroups and of its address space leave. Pages of files that
 * the system keeps count as memory that can be taken, and a mapped model as memory that is needed.
 */
#define SEGNO_CTX_OVERCOMMIT 16
/**
 * Let the threads that compute give way to all others of the machine: the workers, and the threads of sessions to which steps are submitted. For
 * games and desktops, whose own threads then run when they want to, though a model uses what is left of every core. A thread that calls keeps the
 * priority that it has. On Linux their nice value is 10, on Windows their priority is the lowest; elsewhere no effect.
 */
#define SEGNO_CTX_BACKGROUND 32
/** Something failed. */
#define SEGNO_LOG_ERROR 0
/** Something works worse than it could. */
#define SEGNO_LOG_WARN 1
/** What was chosen and loaded. */
#define SEGNO_LOG_INFO 2
/** Details for finding a fault. */
#define SEGNO_LOG_DEBUG 3

/** One device with its worker threads and its log. Owned by the host, shareable between threads. */
typedef struct segno_ctx segno_ctx;

/**
 * Receives diagnostics: `user` as given in the options, a level (`SEGNO_LOG_...`), a NUL-terminated UTF-8 line valid during the call. Called
 * from any thread, one call at a time. Must not unwind. Calls from inside it on the context or what was made from it answer BUSY, and so does
 * making a context while one is being made; freeing them inside it is not allowed.
 */
typedef void (*segno_log_fn)(void *user, int32_t level, const char *message);

/** Options of a context; fill with `segno_ctx_opts_init`. */
typedef struct segno_ctx_opts {
  /** `sizeof` this struct, set by the init function. */
  uint32_t struct_size;
  /**
   * `SEGNO_DEVICE_AUTO` (default), `SEGNO_DEVICE_CPU` or `SEGNO_DEVICE_CUDA`. By the first, a GPU where there is one that the library can use;
   * a model that it cannot run is run on the processor, and the log says why. The others never change.
   */
  int32_t device;
  /** Which device of that kind, 0 by default. */
  int32_t device_index;
  /**
   * Threads that compute, the calling thread included, at most 1024; 0 (default): the physical cores that the process may use. Never more than
   * the processors that it may use by its affinity and its cgroup's quota: the log says at level WARN that there are fewer. Beside a GPU they load
   * models, and compute what that has no memory for (`device_memory` of `segno_model_opts`).
   */
  uint32_t n_threads;
  /** `SEGNO_PRECISION_DEFAULT` or `SEGNO_PRECISION_PRECISE`. */
  int32_t precision;
  /** `SEGNO_CTX_...`, combined with `|`. */
  uint32_t flags;
  /** Receives diagnostics; NULL (default) for none. */
  segno_log_fn log;
  /** First argument of `log`; must stay valid until the context and all made from it are freed. */
  void *log_user;
  /**
   * A `CUcontext` of the host's own, in which all work on the GPU is then done; NULL (default): the device's primary context. It is never
   * destroyed here, and must stay until the context and all made from it are freed. Its device is used: `device_index` is 0 or that
   * device, and `device` not `SEGNO_DEVICE_CPU`.
   */
  void *cuda_context;
  /**
   * Priority of the work on a GPU beside that of other streams: 0 (default) to the lowest number that the device takes (-5 on many), which runs
   * first. No effect on the processor.
   */
  int32_t stream_priority;
  /** Must be 0. */
  uint32_t reserved;
} segno_ctx_opts;

/** Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1. */
void segno_ctx_opts_init(struct segno_ctx_opts *opts, size_t size);

/**
 * Makes a context: opens the device and starts its worker threads.
 *
 * `abi_version`: pass `SEGNO_ABI_VERSION`; checked first. `opts`: NULL for defaults. `out` receives the context, NULL on failure; free it with
 * `segno_ctx_free`. The thread's current CUDA context is as before. Codes: ABI, NULL_POINTER, INVALID_ARGUMENT, UNSUPPORTED (CUDA in a build
 * without it, a driver that is missing or too old, or the process is a fork), NOT_FOUND (no such device), DEVICE (a thread cannot be started, or
 * the driver failed), BUSY (from inside the log callback of a context in the making). Any thread.
 *
 * A process that was forked from one that had made a context cannot use the library: every call answers UNSUPPORTED, and frees do nothing. It may
 * call exec; or fork before the first context is made. Since 0.1.
 */
segno_status segno_ctx_create(uint32_t abi_version,
                              const struct segno_ctx_opts *opts,
                              struct segno_ctx **out,
                              struct segno_error **err);

/** Gives up a context; NULL is allowed. Models and sessions made from it keep working; its threads end with the last of them. Since 0.1. */
void segno_ctx_free(struct segno_ctx *ctx);

/* ---- Devices -------------------------------------------------------------------------------------------------------
 *
 * What this machine has, before a context is made on one: device 0 is the processor, those behind it are GPUs.
 */

/** The best device of this machine: a GPU where the library can use one, otherwise the processor. */
#define SEGNO_DEVICE_AUTO 0
/** The processor. */
#define SEGNO_DEVICE_CPU 1
/** An NVIDIA GPU. */
#define SEGNO_DEVICE_CUDA 2

/** One device. */
typedef struct segno_device_info {
  /** Bytes of this struct that the library knows. */
  uint32_t struct_size;
  /** `SEGNO_DEVICE_CPU` or `SEGNO_DEVICE_CUDA`. */
  int32_t kind;
  /** All memory of the device, in bytes. */
  uint64_t memory_total;
  /** Memory that can be taken now, in bytes. */
  uint64_t memory_free;
  /** What the maker calls it. */
  char name[128];
  /** Compute capability of a GPU, ten times the major number plus the minor one, as in 90 for 9.0; 0 for the processor. */
  uint32_t compute_capability;
  /** CUDA version that a GPU's driver knows, as in 13000 for 13.0; 0 for the processor. */
  uint32_t driver_version;
} segno_device_info;

/**
 * Number of devices of a kind (`SEGNO_DEVICE_...`); for `SEGNO_DEVICE_CUDA` those that the driver shows, 0 without a
 * usable driver. Whether the library can run models on them, `segno_has_feature("cuda")` tells.
 *
 * `out` receives the number. Codes: INVALID_ARGUMENT (unknown kind), NULL_POINTER. Any thread. Since 0.1.
 */
segno_status segno_device_count(int32_t kind, int32_t *out, struct segno_error **err);

/**
 * Describes device `index` of a kind; `SEGNO_DEVICE_AUTO` describes the one that a context would choose.
 *
 * `out` points to a struct of `size` bytes; pass `sizeof *out`. Codes: INVALID_ARGUMENT (unknown kind), NULL_POINTER, NOT_FOUND (no
 * such device), DEVICE (the driver failed). Asking for a GPU makes its primary context for the time of the call; the thread's current context
 * is as before. Any thread. Since 0.1.
 */
segno_status segno_device_info_get(int32_t kind,
                                   int32_t index,
                                   struct segno_device_info *out,
                                   size_t size,
                                   struct segno_error **err);

/* ---- Models --------------------------------------------------------------------------------------------------------
 *
 * A segno_model is what a file or folder holds, on the device of its context: weights, tokenizer, chat template, metadata. It
 * never changes once it is loaded, so any number of threads and sessions share it.
 */

/**
 * Read the file into memory instead of mapping it: for files that somebody may truncate while they are in use, which raises a
 * signal in a process that has them mapped.
 */
#define SEGNO_MODEL_NO_MMAP 1
/** Weights stay as they are stored. */
#define SEGNO_TYPE_KEEP 0
/** IEEE half precision. */
#define SEGNO_TYPE_F16 1
/** The upper half of a single. */
#define SEGNO_TYPE_BF16 2
/** 8 bits, a scale for 32 values. */
#define SEGNO_TYPE_Q8_0 3
/** 4 bits, a scale for 32 values. */
#define SEGNO_TYPE_Q4_0 4
/** 4 bits, a scale and a minimum for 32 values. */
#define SEGNO_TYPE_Q4_1 5
/** 5 bits, a scale for 32 values. */
#define SEGNO_TYPE_Q5_0 6
/** 5 bits, a scale and a minimum for 32 values. */
#define SEGNO_TYPE_Q5_1 7
/** 4 bits, 6-bit scales and minimums for 32 values each; columns must be a multiple of 256. */
#define SEGNO_TYPE_Q4_K 8
/** 5 bits, 6-bit scales and minimums for 32 values each; columns must be a multiple of 256. */
#define SEGNO_TYPE_Q5_K 9
/** 6 bits, 8-bit scales for 16 values each; columns must be a multiple of 256. */
#define SEGNO_TYPE_Q6_K 10

/** An immutable model on a device. Owned by the host, shareable between threads, keeps its context alive. */
typedef struct segno_model segno_model;

/**
 * Hears how far a load has come, from 0 to 1, which is heard once, at the end; a non-zero result cancels it. Called on the loading thread,
 * in every phase of the load: at least once for every 16 MiB of weights, 256 KiB of metadata and 16,384 tokens or merges. Must not unwind.
 * Calls from inside it on the context or what was made from it answer BUSY.
 */
typedef int32_t (*segno_progress_fn)(void *user, float done);

/** Options of a model; fill with `segno_model_opts_init`. */
typedef struct segno_model_opts {
  /** `sizeof` this struct, set by the init function. */
  uint32_t struct_size;
  /** `SEGNO_MODEL_...`, combined with `|`; 0 by default. */
  uint32_t flags;
  /** Hears of progress; NULL (default) for nobody. */
  segno_progress_fn progress;
  /** First argument of `progress`. */
  void *progress_user;
  /**
   * `SEGNO_TYPE_...`: what matrices of floats become while they are loaded; `SEGNO_TYPE_KEEP` by default. Those that are quantized already
   * stay as they are, vectors too. The blocks are those of ggml's reference quantization, bit for bit.
   */
  int32_t quantize;
  /** Must be 0. */
  uint32_t reserved;
  /**
   * Bytes of the GPU's memory that the model may take together with a session of default options; 0 (default) for what is free. What does not
   * fit stays in host memory and is computed there while the GPU computes the rest: the experts of the first layers, and where that
   * is not enough the first layers. `segno_plan_get` tells how many. Tokens are the same in any company and however prompts are cut; they may
   * differ from those of the model on the GPU alone as those of the CPU do. `UINT64_MAX` keeps all of a model on the GPU, or fails. What
   * does not fit however it is divided is DEVICE_MEMORY. Without effect on the CPU.
   */
  uint64_t device_memory;
} segno_model_opts;

/** Options of saving; fill with `segno_save_opts_init`. */
typedef struct segno_save_opts {
  /** `sizeof` this struct, set by the init function. */
  uint32_t struct_size;
  /** Must be 0. */
  uint32_t reserved;
  /** Hears how far it has come, at least once for every 16 MiB; NULL (default) for nobody. */
  segno_progress_fn progress;
  /** First argument of `progress`. */
  void *progress_user;
} segno_save_opts;

/** Sizes and names of a model. */
typedef struct segno_model_info {
  /** Bytes of this struct that the library knows. */
  uint32_t struct_size;
  /** Number of tokens, and of logits. */
  uint32_t vocab;
  /** Longest sequence, in tokens. */
  uint32_t context;
  /** Transformer layers. */
  uint32_t layers;
  /** Elements of a token's vector. */
  uint32_t hidden;
  /** Query heads of a layer; where layers differ, the most of any, as below. */
  uint32_t heads;
  /** Key-value heads of a layer. */
  uint32_t kv_heads;
  /** Elements of a head. */
  uint32_t head_dim;
  /** Token that begins a text, -1 when there is none. */
  int32_t bos;
  /** Token that ends a text, -1 when there is none. */
  int32_t eos;
  /** Number of weights. */
  uint64_t parameters;
  /** Bytes of the weights as they are stored. */
  uint64_t weight_bytes;
  /** Family, for example "llama". */
  char arch[32];
  /** Name that the file gives itself, "" when there is none. */
  char name[128];
} segno_model_info;

/** Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1. */
void segno_model_opts_init(struct segno_model_opts *opts, size_t size);

/**
 * Loads a GGUF file, or a Hugging Face folder: `config.json` and weights as safetensors (`model.safetensors`, or the shards of
 * `model.safetensors.index.json`) in F32, F16, BF16 or F8_E4M3 with scales by block, which become BF16, and experts of gpt-oss in MXFP4.
 * A folder is the model that its GGUF file would be, bit for bit. Weights are used in the mapped files, but for those that GGUF files hold
 * in another order or type: these are made, in memory of their own. `tokenizer.json`, `tokenizer_config.json`, `generation_config.json` and
 * `chat_template.jinja` are read
 * where they are there; of the tokenizers byte-pair models.
 *
 * What a file may declare has limits, beyond which it is FORMAT: 128 MiB of metadata and tensor directory, 65,536 metadata entries and as many
 * tensors, 2,097,152 tokens of at most 4,096 bytes (special ones: 1,024, UNSUPPORTED), 1,024 layers, 1,024 heads of at most 576 elements
 * (UNSUPPORTED), 131,072 elements of a token's vector, 1,048,576 of a feed-forward block, a context of 16,777,216 tokens; in a folder 4,096 files of
 * weights with headers of at most 16 MiB, 4 MiB of configuration and 64 MiB of
 * `tokenizer.json`.
 *
 * `path`: of the file or folder, NUL-terminated UTF-8. `opts`: NULL for defaults. `out` receives the model, NULL on failure; free it with
 * `segno_model_free`. A mapped file (the default) must not be truncated while the model lives. Codes: NULL_POINTER, INVALID_ARGUMENT, IO, FORMAT
 * (the message names the file, of a split model the part), UNSUPPORTED (an architecture, storage type or tokenizer that the library lacks, by name,
 * or a file that is no model: an adapter, an importance matrix, a projector, a vocabulary), OUT_OF_MEMORY, and the outcome
 * `SEGNO_CANCELLED`. Any thread. Since 0.1.
 */
segno_status segno_model_load(const struct segno_ctx *ctx,
                              const char *path,
                              const struct segno_model_opts *opts,
                              struct segno_model **out,
                              struct segno_error **err);

/**
 * Loads a GGUF file from memory. What the model needs is copied; `data` may be freed afterwards.
 *
 * `data`: `len` bytes, the whole file; a split model is loaded from its files. `opts`: NULL for defaults. `out` receives the model, NULL
 * on failure; free it with `segno_model_free`. Codes: those of `segno_model_load`. Any thread. Since 0.1.
 */
segno_status segno_model_load_buffer(const struct segno_ctx *ctx,
                                     const void *data,
                                     size_t len,
                                     const struct segno_model_opts *opts,
                                     struct segno_model **out,
                                     struct segno_error **err);

/**
 * One entry of a model's metadata as text: strings as they are, numbers in decimal, booleans as true and false, arrays as JSON.
 *
 * `key`: NUL-terminated, for example "general.architecture". `buf`: room for `cap` bytes; `len` receives how many there are. Codes:
 * NULL_POINTER, INVALID_ARGUMENT (the key is not UTF-8), NOT_FOUND, BUFFER_TOO_SMALL, OUT_OF_MEMORY. Any thread. Since 0.1.
 */
segno_status segno_model_meta(const struct segno_model *model,
                              const char *key,
                              char *buf,
                              size_t cap,
                              size_t *len,
                              struct segno_error **err);

/** Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1. */
void segno_save_opts_init(struct segno_save_opts *opts, size_t size);

/**
 * Writes a model as one GGUF file (version 3) that this library loads, with the keys and names that llama.cpp reads: of a GGUF file its metadata as
 * it is, of a folder what a converter would write, tokenizer included; the tensors as they were loaded, quantized if they were. Loading it gives the
 * same logits, bit for bit, and saving that again the same file; what a model of several parts was is one file then. Of the space that a folder's
 * tokenizer may put in front of text, files tell only whether there is one, and nothing of white space that added tokens swallow, as those of
 * llama.cpp's converter.
 *
 * `path`: of the file, NUL-terminated UTF-8, in a folder that exists. The bytes are written under another name beside it (`NAME.N.part`) and renamed
 * when all are on the disk: a file that is there is replaced then, and what fails or is cancelled leaves nothing behind. The file that the model is
 * loaded from may be named, on Windows only if it is not mapped: the system refuses to replace one that is (IO). `opts`: NULL for defaults. Needs
 * the files that the model is mapped from, and memory for the header alone. Codes: NULL_POINTER, INVALID_ARGUMENT (also where `path` is a folder),
 * IO (the disk is full, the folder cannot be written to), UNSUPPORTED (a tokenizer of a folder that GGUF files cannot tell), OUT_OF_MEMORY, and
 * the outcome `SEGNO_CANCELLED`. Any thread, several at once. Since 0.1.
 */
segno_status segno_model_save(const struct segno_model *model,
                              const char *path,
                              const struct segno_save_opts *opts,
                              struct segno_error **err);

/**
 * Describes a model.
 *
 * `out` points to a struct of `size` bytes; pass `sizeof *out`. Codes: NULL_POINTER, INVALID_ARGUMENT. Any thread. Since 0.1.
 */
segno_status segno_model_info_get(const struct segno_model *model,
                                  struct segno_model_info *out,
                                  size_t size,
                                  struct segno_error **err);

/** Gives up a model; NULL is allowed. Sessions and texts made from it keep working. Since 0.1. */
void segno_model_free(struct segno_model *model);

/* ---- Text ----------------------------------------------------------------------------------------------------------
 *
 * Tokens of a text and text of tokens. A segno_text turns a stream of tokens into text that may be shown: whole characters
 * only, and nothing that may be the beginning of a stop string.
 */

/** Add the begin and end tokens that the model asks for. */
#define SEGNO_TOKENIZE_ADD_SPECIAL 1
/** Names of special tokens in the text become those tokens; otherwise they are plain text. */
#define SEGNO_TOKENIZE_PARSE_SPECIAL 2
/** Write special tokens by their names. */
#define SEGNO_DETOKENIZE_SPECIAL 1
/** Show special tokens by their names. */
#define SEGNO_TEXT_SPECIAL 1

/**
 * A text stream: tokens in, whole UTF-8 characters out, stop strings held back. Owned by the host, one call at a time; keeps what it
 * needs of its model alive.
 */
typedef struct segno_text segno_text;

/** Bytes of a text, not NUL-terminated. */
typedef struct segno_string {
  /** `len` bytes of UTF-8. */
  const char *data;
  /** Number of bytes. */
  size_t len;
} segno_string;

/** Options of a text stream; fill with `segno_text_opts_init`. */
typedef struct segno_text_opts {
  /** `sizeof` this struct, set by the init function. */
  uint32_t struct_size;
  /** `SEGNO_TEXT_...`, combined with `|`; 0 by default. */
  uint32_t flags;
  /** `stop_count` texts that end the stream, copied; NULL when there are none. */
  const struct segno_string *stops;
  /** Number of texts at `stops`. */
  size_t stop_count;
} segno_text_opts;

/**
 * Turns text into tokens.
 *
 * `text`: `text_len` bytes of UTF-8, NULL when there are none. `flags`: `SEGNO_TOKENIZE_...`. `tokens`: room for `cap` ids; `count` receives
 * how many there are. Text is brought to Unicode's form C first where the model's own library does so (Qwen 2 and 3, GPT-NeoX, Command R and
 * their kin), and is not changed otherwise. The call can't be cancelled, so it is bounded: at most 64 MiB of text, and a time and memory in
 * proportion to its length, whatever it holds: about a second and at most 200 MiB a MiB of text, commonly a tenth. Codes: NULL_POINTER,
 * INVALID_ARGUMENT (not UTF-8, with the offset; more than 64 MiB; unknown flags), BUFFER_TOO_SMALL, UNSUPPORTED (the file has no
 * tokenizer), OUT_OF_MEMORY. Any thread. Since 0.1.
 */
segno_status segno_tokenize(const struct segno_model *model,
                            const char *text,
                            size_t text_len,
                            uint32_t flags,
                            int32_t *tokens,
                            size_t cap,
                            size_t *count,
                            struct segno_error **err);

/**
 * Turns tokens into text: UTF-8, bytes that are none replaced by U+FFFD; without the space that tokenizing put in front.
 *
 * `tokens`: `count` ids. `flags`: `SEGNO_DETOKENIZE_...`. `buf`: room for `cap` bytes; `len` receives how many there are. Codes:
 * NULL_POINTER, INVALID_ARGUMENT (a token outside the vocabulary, unknown flags), BUFFER_TOO_SMALL, UNSUPPORTED (the file has no
 * tokenizer), OUT_OF_MEMORY. Any thread. Since 0.1.
 */
segno_status segno_detokenize(const struct segno_model *model,
                              const int32_t *tokens,
                              size_t count,
                              uint32_t flags,
                              char *buf,
                              size_t cap,
                              size_t *len,
                              struct segno_error **err);

/** Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1. */
void segno_text_opts_init(struct segno_text_opts *opts, size_t size);

/**
 * Makes a text stream for the tokens of a model.
 *
 * `opts`: NULL for defaults; stop strings are copied. `out` receives the stream, NULL on failure; free it with `segno_text_free`. Codes:
 * NULL_POINTER, INVALID_ARGUMENT (an empty stop string, or one that is not UTF-8; unknown flags), UNSUPPORTED (the file has no
 * tokenizer), OUT_OF_MEMORY. Any thread. Since 0.1.
 */
segno_status segno_text_create(const struct segno_model *model,
                               const struct segno_text_opts *opts,
                               struct segno_text **out,
                               struct segno_error **err);

/**
 * Puts one token into a stream and receives the whole characters that it releases.
 *
 * `buf`: room for `cap` bytes; `len` receives how many there are, often 0. Text that may be the beginning of a stop string is held back
 * until that is decided. Answers `SEGNO_DONE` once a stop string is complete: the text before it has been given out, the stop string
 * never is, and further tokens give nothing. Codes: BUFFER_TOO_SMALL (the token is not consumed: push it again), INVALID_ARGUMENT (a
 * token outside the vocabulary), NULL_POINTER, OUT_OF_MEMORY, BUSY, POISONED. Since 0.1.
 */
segno_status segno_text_push(struct segno_text *text,
                             int32_t token,
                             char *buf,
                             size_t cap,
                             size_t *len,
                             struct segno_error **err);

/**
 * Ends a stream: receives the text that was held back, and readies the object for the next stream.
 *
 * `buf`: room for `cap` bytes; `len` receives how many there are. Answers `SEGNO_DONE` if a stop string had ended the stream. Codes:
 * BUFFER_TOO_SMALL (nothing is lost: call again), NULL_POINTER, BUSY, POISONED. Since 0.1.
 */
segno_status segno_text_flush(struct segno_text *text,
                              char *buf,
                              size_t cap,
                              size_t *len,
                              struct segno_error **err);

/** Frees a text stream; NULL is allowed. No call on it may be running. Since 0.1. */
void segno_text_free(struct segno_text *text);

/* ---- Chat ----------------------------------------------------------------------------------------------------------
 *
 * A conversation as JSON becomes the text that a model was trained on, by the model's template or another one.
 */

/** End the text with the beginning of the assistant's next turn. */
#define SEGNO_CHAT_ADD_GENERATION_PROMPT 1

/** Options of a rendered conversation; fill with `segno_chat_opts_init`. Texts are UTF-8, not NUL-terminated. */
typedef struct segno_chat_opts {
  /** `sizeof` this struct, set by the init function. */
  uint32_t struct_size;
  /** `SEGNO_CHAT_...`, combined with `|`; 0 by default. */
  uint32_t flags;
  /** The time that the template sees, in Unix seconds, UTC; 0 (default): the clock. */
  int64_t now;
  /** A template in place of the model's own, at most 128 KiB; NULL (default) for the model's. */
  const char *template_text;
  /** Bytes at `template_text`. */
  size_t template_len;
  /** A JSON array of tools, anything else is INVALID_ARGUMENT; NULL (default) for none. */
  const char *tools_json;
  /** Bytes at `tools_json`. */
  size_t tools_len;
  /** A JSON object whose entries become variables of the template and win over all others; NULL (default) for none. */
  const char *vars_json;
  /** Bytes at `vars_json`. */
  size_t vars_len;
} segno_chat_opts;

/** Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1. */
void segno_chat_opts_init(struct segno_chat_opts *opts, size_t size);

/**
 * Renders a conversation with the model's chat template, or with one of the caller's. Tokenize the result with
 * `SEGNO_TOKENIZE_PARSE_SPECIAL` alone: templates write the begin token themselves.
 *
 * `messages_json`: `json_len` bytes, the array of messages that chat services take: objects with "role", "content" (text or parts),
 * "tool_calls" and so on. `opts`: NULL for defaults. `buf`: room for `cap` bytes; `len` receives how many there are. A template runs on a
 * thread of the library and may use up to 128 KiB of source, 4,000,000 steps, 96 MiB for its values at one time, 4 MiB of output and
 * 2,000 levels of nesting. Every operation pays steps for the size of its operands, so that they end within about two seconds of a slow
 * processor; there is no way to cancel a rendering. Codes: NULL_POINTER, INVALID_ARGUMENT (JSON that is none),
 * NOT_FOUND (the model has no template), TEMPLATE (it does not compile or exceeds a limit, by name, with the line and, where an error is about
 * one message, that message's index; what the template raises itself is the message as it is),
 * BUFFER_TOO_SMALL, OUT_OF_MEMORY. Any thread. Since 0.1.
 */
segno_status segno_chat_render(const struct segno_model *model,
                               const char *messages_json,
                               size_t json_len,
                               const struct segno_chat_opts *opts,
                               char *buf,
                               size_t cap,
                               size_t *len,
                               struct segno_error **err);

/**
 * Renders a conversation, as `segno_chat_render` does, and gives its tokens. Texts of messages never become special tokens: a user who
 * types the name of one has typed text. What the template itself writes does, and so do roles, tools and variables, which are the host's.
 *
 * `messages_json`: `json_len` bytes, as for `segno_chat_render`; give an assistant's reasoning as a member of its own (`reasoning_content`),
 * because a template finds no marker in a text. `opts`: NULL for defaults. `tokens`: room for `cap` ids; `count` receives how many there
 * are. A text without names of special tokens gives the tokens that tokenizing the rendered text gives. Codes: those of
 * `segno_chat_render`, and UNSUPPORTED (the file has no tokenizer, or all private characters of Unicode are in use). Any thread. Since 0.1.
 */
segno_status segno_chat_tokenize(const struct segno_model *model,
                                 const char *messages_json,
                                 size_t json_len,
                                 const struct segno_chat_opts *opts,
                                 int32_t *tokens,
                                 size_t cap,
                                 size_t *count,
                                 struct segno_error **err);

/* ---- Replies -------------------------------------------------------------------------------------------------------
 *
 * A segno_reply tells what the tokens of an assistant mean, whatever way its family writes: reasoning, content, and calls of tools
 * with arguments as JSON.
 */

/** A stretch of reasoning. */
#define SEGNO_EVENT_REASONING 1
/** A stretch of content. */
#define SEGNO_EVENT_CONTENT 2
/** A call begins; the text is the name of the function. */
#define SEGNO_EVENT_TOOL_BEGIN 3
/** A stretch of the call's arguments; all of them together are one JSON object. */
#define SEGNO_EVENT_TOOL_ARGUMENTS 4
/** The call is whole. A call without this event was not: it ended early, or its arguments are not what the format allows. */
#define SEGNO_EVENT_TOOL_END 5
/** The reply is over. */
#define SEGNO_EVENT_END 6

/** A reader of replies: tokens in, events out. Owned by the host, one call at a time; keeps what it needs of its model alive. */
typedef struct segno_reply segno_reply;

/**
 * What happened in a reply. Texts are whole UTF-8 characters, not NUL-terminated, and valid until the next call on the object that gave
 * them.
 */
typedef struct segno_event {
  /** `SEGNO_EVENT_...`. */
  int32_t kind;
  /** Number of the call in its reply, from 0; 0 for other events. */
  int32_t index;
  /** `len` bytes: reasoning, content, the name of a function, or a part of its arguments. */
  const char *text;
  /** Bytes at `text`. */
  size_t len;
  /**
   * With TOOL_END the id that the answer of the tool refers to: the model's, or `call` and five digits. With TOOL_BEGIN the same, or
   * nothing where the model may still write one.
   */
  const char *id;
  /** Bytes at `id`. */
  size_t id_len;
} segno_event;

/** Options of a reader of replies; fill with `segno_reply_opts_init`. Texts are UTF-8. */
typedef struct segno_reply_opts {
  /** `sizeof` this struct, set by the init function. */
  uint32_t struct_size;
  /** 0: there are none yet. */
  uint32_t flags;
  /**
   * Name of the format, NUL-terminated; NULL (default): the template tells. One of harmony, gemma4, dsml, deepseek, kimi-k2, kimi-k3,
   * minimax-m2, hunyuan, glm4, qwen3-coder, minicpm5, lfm2, cohere, gigachat, functionary, mistral, nemotron, firefunction, hermes, llama3,
   * think, plain.
   */
  const char *format;
  /**
   * What the reply follows, the rendered conversation or its end: reasoning may have begun there. NULL (default): what the template makes of
   * a short message.
   */
  const char *prompt;
  /** Bytes at `prompt`. */
  size_t prompt_len;
  /** A template in place of the model's own; NULL (default) for the model's. */
  const char *template_text;
  /** Bytes at `template_text`. */
  size_t template_len;
  /** The tools of the conversation, a JSON array: they tell which values of arguments are text. NULL (default) for none. */
  const char *tools_json;
  /** Bytes at `tools_json`. */
  size_t tools_len;
  /** `stop_count` texts that end the content of a reply, copied; NULL when there are none. */
  const struct segno_string *stops;
  /** Number of texts at `stops`. */
  size_t stop_count;
} segno_reply_opts;

/** Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1. */
void segno_reply_opts_init(struct segno_reply_opts *opts, size_t size);

/**
 * Makes a reader of the replies of a model: what it reasons, says, and which tools it calls.
 *
 * `opts`: NULL for defaults; everything is copied. `out` receives the reader, NULL on failure; free it with `segno_reply_free`. A marker of the
 * format is recognised by the ids of the vocabulary's special tokens, and by its text only where there are none. Arguments of calls
 * arrive as JSON whatever the model writes; a value that it writes as plain text becomes what the tool's schema says, and without one a
 * number, boolean, null, list or object where it is one, else a string. White space beside markers is left out. Codes: NULL_POINTER,
 * INVALID_ARGUMENT (tools that are no JSON array, a bad stop string, unknown flags), NOT_FOUND (there is no such format: the message names
 * all), TEMPLATE (`prompt` is NULL and the template fails), UNSUPPORTED (the file has no tokenizer), OUT_OF_MEMORY. Any thread. Since 0.1.
 */
segno_status segno_reply_create(const struct segno_model *model,
                                const struct segno_reply_opts *opts,
                                struct segno_reply **out,
                                struct segno_error **err);

/**
 * Puts one token into a reader and receives the events that it brings, often one or none.
 *
 * `events`: room for `cap` of them; `count` receives how many there are, and is written for BUFFER_TOO_SMALL too: then nothing was given, and
 * the same call with more room gives them. Four are enough for most tokens. Answers `SEGNO_DONE` once the reply is over: a token ended
 * generation, or a stop string is complete; the event END has been given, and further tokens give nothing until a flush. Codes:
 * BUFFER_TOO_SMALL, INVALID_ARGUMENT (a token outside the vocabulary; events of another call wait), NULL_POINTER, OUT_OF_MEMORY (the reply
 * is over; flush it), BUSY, POISONED. Since 0.1.
 */
segno_status segno_reply_push(struct segno_reply *reply,
                              int32_t token,
                              struct segno_event *events,
                              size_t cap,
                              size_t *count,
                              struct segno_error **err);

/**
 * Ends a reply: receives what was held back and the event END, unless it has been given, and readies the object for the next reply to the
 * same kind of prompt. Ids of calls count on.
 *
 * `events`: room for `cap` of them; `count` receives how many there are. Answers `SEGNO_DONE` if the reply was over. Codes: BUFFER_TOO_SMALL
 * (nothing is lost: call again), INVALID_ARGUMENT (events of a push wait), NULL_POINTER, OUT_OF_MEMORY, BUSY, POISONED. Since 0.1.
 */
segno_status segno_reply_flush(struct segno_reply *reply,
                               struct segno_event *events,
                               size_t cap,
                               size_t *count,
                               struct segno_error **err);

/**
 * Gives the name of the format that replies are read in, as in `segno_reply_opts`.
 *
 * `buf`: room for `cap` bytes, NULL to ask; `len` receives how many there are. Codes: BUFFER_TOO_SMALL, NULL_POINTER, BUSY, POISONED. Since 0.1.
 */
segno_status segno_reply_format(struct segno_reply *reply,
                                char *buf,
                                size_t cap,
                                size_t *len,
                                struct segno_error **err);

/** Frees a reader; NULL is allowed. No call on it may be running. Since 0.1. */
void segno_reply_free(struct segno_reply *reply);

/* ---- Sessions ------------------------------------------------------------------------------------------------------
 *
 * A segno_session is everything that changes while a model runs: the cache of keys and values, and the buffers of a pass. All of
 * its memory is taken when it is created; steps take none.
 */

/** KV cache in 16-bit floats. */
#define SEGNO_KV_F16 0
/** KV cache in 32-bit floats. */
#define SEGNO_KV_F32 1
/**
 * KV cache in 8-bit integers, with a 16-bit scale for each 32: 53 % of the memory of `SEGNO_KV_F16`. Heads are rotated by Hadamard matrices as they
 * are stored, and results back, so that an outlier coarsens its block less.
 */
#define SEGNO_KV_Q8 2
/** No speculation. */
#define SEGNO_SPECULATION_OFF 0
/**
 * Drafts from all that is there: repetitions in a sequence's text, and the draft model if there is one, or else the model's own predictor (MTP), if
 * it has one that runs on its device.
 */
#define SEGNO_SPECULATION_AUTO 1
/** Drafts from repetitions in a sequence's own text, prompt included: for edits of code, summaries, quotes. */
#define SEGNO_SPECULATION_NGRAM 2
/** Drafts from the draft model. */
#define SEGNO_SPECULATION_DRAFT 3
/**
 * Drafts from the model's own predictor (multi-token prediction, MTP): the first block behind the layers of files whose metadata has
 * `nextn_predict_layers` (Qwen 3.5 and 3.6, GLM 4.5 and later, DeepSeek), and of folders whose `config.json` announces such blocks and whose
 * weights have them. It has a cache of its own, which counts as KV memory,
 * and reads what each pass leaves of all its tokens, prompts included. The first session of a model that uses it brings it to the device.
 */
#define SEGNO_SPECULATION_MTP 4
/** Added to one of the others: drafts are evaluated whether they are expected to pay or not. */
#define SEGNO_SPECULATION_ALWAYS 256
/**
 * Added to AUTO or NGRAM: repetitions are looked for in what all sequences of the session have said too, also those that were removed. For answers
 * that are alike: agents in loops, forms, many readers of one text. It takes 4 MiB, and keeps what about 250,000 tokens have said. How fast a
 * sequence advances then tells of what others say; what it says does not.
 */
#define SEGNO_SPECULATION_SHARED 512

/**
 * Everything that changes while a model runs: sequences, KV cache, buffers. Owned by the host; takes one call at a time, a second
 * one gets BUSY. Beside a call may run `segno_session_cancel`, `segno_session_stats_get`, `segno_seq_stats_get` and `segno_seq_length`.
 * From `segno_session_submit` until `segno_session_poll` has told what became of the step, a call is running. Keeps its model alive.
 */
typedef struct segno_session segno_session;

/** Options of a session; fill with `segno_session_opts_init`. */
typedef struct segno_session_opts {
  /** `sizeof` this struct, set by the init function. */
  uint32_t struct_size;
  /** Most sequences open at once, 1 to 256, 8 by default. */
  uint32_t max_seqs;
  /**
   * Tokens that the KV cache holds for all sequences together; 0 (default): the model's context, at most 8192. Models with two rotations
   * (LongRoPE) use the long one in all sequences where this is more than the context that they were first trained for. Layers that see a
   * window (Gemma, OLMo 3 and others) keep no more than it and `max_prompt` tokens of each sequence, where that is less.
   */
  uint64_t kv_tokens;
  /** Most prompt tokens of a pass in which streams run, 1 to 16384, 512 by default: what these may have to wait for. */
  uint32_t max_prefill;
  /** `SEGNO_KV_F16` (default), `SEGNO_KV_F32` or `SEGNO_KV_Q8`: how keys and values are kept. */
  int32_t kv_type;
  /**
   * Marks that all sequences together keep, 1 to 1024: snapshots of models whose layers have a state (LFM2), to which `segno_seq_truncate` goes
   * back. 0 (default): one for each sequence, and four. Each takes the memory of a sequence's states.
   */
  uint32_t max_marks;
  /** Zero. */
  uint32_t reserved;
  /**
   * `SEGNO_SPECULATION_...`: whether tokens to come are drafted, and evaluated together with the last one; those that are right cost no pass of
   * their own. **Tokens and outcomes are the same with and without**, greedy and sampled, but with `SEGNO_CTX_FAST_BATCHES`. A sequence drafts
   * as many tokens as let it advance the fastest, by what passes have taken here and how often its drafts were right: none where they lose.
   * Where layers have a state, it goes back to before drafts of which fewer were right than all but one, and the right ones are evaluated again
   * with the next; each sequence has one more state for that, which counts as KV memory. OFF by default.
   */
  int32_t speculation;
  /**
   * Most drafts of a sequence in a pass, 1 to 15; 0 (default): 7. Passes have room for as many for each sequence, up to 56 together; buffers
   * grow with that.
   */
  uint32_t max_drafts;
  /**
   * The model that drafts; NULL (default): none. The session keeps it alive. It has the same vocabulary, but for special tokens, whose numbers
   * may differ, and no layers with a state; it gets a cache of its own, and sees of each sequence the last 256 tokens when it begins, and what
   * follows. Or it is an assistant that was made for the model (`gemma4-assistant`), which reads that one's embeddings, keys and values in place
   * of a cache of its own; or a head that was made for it (`eagle3`), which reads vectors between that one's layers and has a cache of one
   * layer. Both run where the model does, which is not divided between a GPU and the host.
   */
  const struct segno_model *draft;
  /**
   * Ranks of adapters for which buffers are reserved from the start, at most 65536: the sum over those of one sequence, the most of any. 0
   * (default): none, and `segno_seq_adapters_set` makes room when it is needed. Each takes 12 bytes a row of a pass (`max_prompt` and drafts),
   * or 8 for each expert that a row has, where that is more; of a model that the host shares, on both sides.
   */
  uint32_t adapter_ranks;
  /** Zero. */
  uint32_t reserved2;
  /**
   * Most prompt tokens of a pass in which no stream runs, up to 16384; less than `max_prefill` counts as that. Models of 27B and mixtures of
   * experts read long prompts faster by a third and more with 2048 than with 512 (H100). Buffers grow with it, and what layers with a window keep
   * of each sequence. 0 (default): four times `max_prefill`, as far as sequences can be so long, where a GPU has all of a model without
   * windows and `device_memory` does not limit it, as long as that leaves as much memory free as it takes more; else `max_prefill`.
   */
  uint32_t max_prompt;
  /** Zero. */
  uint32_t reserved3;
} segno_session_opts;

/** Memory that a session takes, in bytes, the weights that it shares with others included. */
typedef struct segno_memory {
  /** Bytes of this struct that the library knows. */
  uint32_t struct_size;
  /** Zero. */
  uint32_t reserved;
  /** Weights in host memory, a mapped file included. */
  uint64_t host_weights;
  /** KV cache in host memory. */
  uint64_t host_kv;
  /** Buffers of the forward pass in host memory, logits included. */
  uint64_t host_arena;
  /** Weights in the GPU's memory. */
  uint64_t device_weights;
  /** KV cache in the GPU's memory. */
  uint64_t device_kv;
  /** Buffers of the forward pass in the GPU's memory. */
  uint64_t device_arena;
  /** Graphs in the GPU's memory. */
  uint64_t device_graphs;
} segno_memory;

/** Figures of a session. Of a running call they are those that its last finished pass has left; together they are of one moment. */
typedef struct segno_session_stats {
  /** Bytes of this struct that the library knows. */
  uint32_t struct_size;
  /** Tokens of a page of the KV cache. */
  uint32_t page_tokens;
  /** Most sequences open at once. */
  uint32_t max_seqs;
  /** Sequences that are open. */
  uint32_t seqs;
  /** Tokens of all open sequences: evaluated, queued and sampled. */
  uint64_t tokens;
  /** Pages of the KV cache that sequences hold; one that several share counts once. */
  uint64_t pages_used;
  /** Pages that nobody holds. A sequence takes one when its last is full, and a fork takes one at once. */
  uint64_t pages_free;
  /** Passes over the model that ended well. */
  uint64_t passes;
  /** Tokens that were evaluated as prompts: by prefill and logits calls, and by decode calls for a sequence that lacked more than one. */
  uint64_t prompt_tokens;
  /** Tokens that were sampled. */
  uint64_t decoded_tokens;
  /** Microseconds of passes for prompts. A pass that also served other sequences is divided by the number of tokens that it evaluated. */
  uint64_t prompt_us;
  /** Microseconds of passes for sampled tokens, divided likewise, of sampling and of drafting. */
  uint64_t decode_us;
  /** Drafts that were evaluated (`speculation` of the session's options). */
  uint64_t drafted;
  /** Those of them that were right: each a token without a pass of its own. */
  uint64_t accepted;
} segno_session_stats;

/** Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1. */
void segno_session_opts_init(struct segno_session_opts *opts, size_t size);

/**
 * Makes a session and reserves all its memory: no later call but opening, forking and appending to a sequence takes more.
 *
 * `opts`: NULL for defaults. `out` receives the session, NULL on failure; free it with `segno_session_free`. Codes: NULL_POINTER,
 * INVALID_ARGUMENT, OUT_OF_MEMORY, UNSUPPORTED (a draft model that cannot draft for this one, or `SEGNO_SPECULATION_MTP` for a model that has no
 * predictor, or none that its device runs). Any thread. Since 0.1.
 */
segno_status segno_session_create(const struct segno_model *model,
                                  const struct segno_session_opts *opts,
                                  struct segno_session **out,
                                  struct segno_error **err);

/**
 * Frees a session and its sequences; NULL is allowed. No call on it may be running; a step that was submitted is cancelled and waited for, which
 * takes a fraction of a pass. Conversations keep it alive for themselves. Since 0.1.
 */
void segno_session_free(struct segno_session *session);

/**
 * Tells the memory of a session.
 *
 * `out` points to a struct of `size` bytes; pass `sizeof *out`. Codes: NULL_POINTER, INVALID_ARGUMENT, BUSY, POISONED. Since 0.1.
 */
segno_status segno_session_memory(const struct segno_session *session,
                                  struct segno_memory *out,
                                  size_t size,
                                  struct segno_error **err);

/**
 * Tells the figures of a session: how full it is, and what it has done since it was created.
 *
 * `out` points to a struct of `size` bytes; pass `sizeof *out`. Codes: NULL_POINTER, INVALID_ARGUMENT, POISONED. Any thread, beside a running call
 * too, which it does not delay, and for which it does not wait. Since 0.1.
 */
segno_status segno_session_stats_get(const struct segno_session *session,
                                     struct segno_session_stats *out,
                                     size_t size,
                                     struct segno_error **err);

/**
 * Raises (`on` non-zero) or lowers (0) the session's cancel flag. While it is raised, prefill, logits and decode calls return
 * `SEGNO_CANCELLED`, the running one too, within a fraction of a pass; every sequence is at its length before the call. A wait for a GPU ends
 * too, though the GPU may be at work a little longer: the session's next call waits for that. A GPU that answers nobody for 60 seconds, and 50
 * milliseconds more for each token of the pass, fails the call with DEVICE, and every later one of the context.
 *
 * May run beside another call on the same session. Codes: NULL_POINTER, INVALID_ARGUMENT. Any thread. Since 0.1.
 */
segno_status segno_session_cancel(const struct segno_session *session,
                                  int32_t on);

/* ---- Sequences -----------------------------------------------------------------------------------------------------
 *
 * A sequence is one text of a session, named by a number: the tokens so far, what is cached of them, and how the next one is
 * chosen. It is opened, fed, forked, cut back and closed; forks share what they have in common.
 */

/** Tokens that end generation by the rules of the vocabulary do not end it; `stop_tokens` still do. */
#define SEGNO_SAMPLER_IGNORE_EOG 1
/** A seed taken at random. */
#define SEGNO_SEED_RANDOM 18446744073709551615ull

/** A number added to a token's logit. */
typedef struct segno_logit_bias {
  /** The token. */
  int32_t token;
  /** Added to its logit; negative infinity bans it. */
  float bias;
} segno_logit_bias;

/**
 * How tokens are drawn; fill with `segno_sampler_opts_init`. Applied in this order: bias, penalties over the last tokens of the history
 * (prompt included), top_k, typical_p, top_p, min_p, temperature. The draw depends on the seed, the position and the logits alone.
 */
typedef struct segno_sampler_opts {
  /** `sizeof` this struct, set by the init function. */
  uint32_t struct_size;
  /** `SEGNO_SAMPLER_...`, combined with `|`; 0 by default. */
  uint32_t flags;
  /** 0 to 100, 0.8 by default; 0 takes the highest logit after bias and penalties. */
  float temperature;
  /** Keeps the most probable tokens that sum to this, above 0 to 1, 0.95 by default; 1 is off. */
  float top_p;
  /** Keeps tokens at least this probable relative to the best, 0 to 1, 0.05 by default; 0 is off. */
  float min_p;
  /** Keeps the tokens whose information is closest to the expected, above 0 to 1; 1 (default) is off. */
  float typical_p;
  /** Divides positive and multiplies negative logits of repeated tokens, above 0 to 10; 1 (default) is off. */
  float repeat_penalty;
  /** Subtracted for every occurrence of a token, -10 to 10; 0 (default) is off. */
  float frequency_penalty;
  /** Subtracted once from tokens that have occurred, -10 to 10; 0 (default) is off. */
  float presence_penalty;
  /** Keeps this many of the highest logits, 40 by default; 0 is off. */
  int32_t top_k;
  /** Tokens of the history that penalties look at, 64 by default; 0 is none, -1 is all. */
  int32_t penalty_last_n;
  /** Zero. */
  uint32_t reserved;
  /** Seed of the draw, `SEGNO_SEED_RANDOM` by default. */
  uint64_t seed;
  /** `bias_count` entries, copied; NULL when there are none. */
  const struct segno_logit_bias *bias;
  /** Number of entries at `bias`. */
  size_t bias_count;
  /** `stop_token_count` tokens that end generation too, copied; NULL when there are none. */
  const int32_t *stop_tokens;
  /** Number of tokens at `stop_tokens`. */
  size_t stop_token_count;
} segno_sampler_opts;

/** Figures of a sequence. Of a running call they are those that its last finished pass has left; together they are of one moment. */
typedef struct segno_seq_stats {
  /** Bytes of this struct that the library knows. */
  uint32_t struct_size;
  /** Zero. */
  uint32_t reserved;
  /** Its tokens: evaluated, queued and sampled. */
  uint64_t tokens;
  /** Those whose keys and values are in the KV cache; the others are evaluated by the calls that need them. */
  uint64_t evaluated;
  /** Pages of the KV cache that it holds, those that it shares with others included; of the layers that see everything. */
  uint64_t pages;
  /** Tokens that were evaluated for it as prompts; a fork begins at 0. */
  uint64_t prompt_tokens;
  /** Tokens that it has sampled; a fork begins at 0. */
  uint64_t decoded_tokens;
  /** Seed of its draw; of a random one what it came to, so that the same words can be had again. */
  uint64_t seed;
  /** Drafts that were evaluated for it (`speculation` of the session's options). */
  uint64_t drafted;
  /** Those of them that were right. */
  uint64_t accepted;
} segno_seq_stats;

/** Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1. */
void segno_sampler_opts_init(struct segno_sampler_opts *opts, size_t size);

/**
 * Opens an empty sequence.
 *
 * `opts`: NULL for defaults; arrays are copied. `seq` receives the id, which the session never uses again. Codes: NULL_POINTER,
 * INVALID_ARGUMENT (an option out of range), SEQ_FULL, OUT_OF_MEMORY, BUSY, POISONED. Since 0.1.
 */
segno_status segno_seq_open(struct segno_session *session,
                            const struct segno_sampler_opts *opts,
                            int32_t *seq,
                            struct segno_error **err);

/**
 * Queues prompt tokens behind a sequence's history without evaluating them; the next decode or prefill calls do.
 *
 * `tokens`: `count` ids. Codes: NULL_POINTER, NOT_FOUND, INVALID_ARGUMENT (a token outside the vocabulary; `segno_error_item` is its
 * index), CONTEXT_FULL (nothing is queued), OUT_OF_MEMORY, BUSY, POISONED. Since 0.1.
 */
segno_status segno_seq_append(struct segno_session *session,
                              int32_t seq,
                              const int32_t *tokens,
                              size_t count,
                              struct segno_error **err);

/**
 * Queues prompt tokens and evaluates the whole queue, in as many passes as it takes. A failed or cancelled call leaves the sequence
 * at its length before it.
 *
 * `tokens`: `count` ids. Codes: those of `segno_seq_append`, KV_FULL, DEVICE, and the outcome `SEGNO_CANCELLED`. Since 0.1.
 */
segno_status segno_seq_prefill(struct segno_session *session,
                               int32_t seq,
                               const int32_t *tokens,
                               size_t count,
                               struct segno_error **err);

/**
 * Number of tokens of a sequence: evaluated, queued and sampled.
 *
 * `tokens` receives it; beside a running call, what the last finished pass has left. Codes: NULL_POINTER, NOT_FOUND, POISONED. Any thread, beside
 * a running call too, for which it does not wait. Since 0.1.
 */
segno_status segno_seq_length(const struct segno_session *session,
                              int32_t seq,
                              size_t *tokens,
                              struct segno_error **err);

/**
 * Tells the figures of a sequence.
 *
 * `out` points to a struct of `size` bytes; pass `sizeof *out`. Codes: NULL_POINTER, NOT_FOUND, INVALID_ARGUMENT, POISONED. Any thread, beside a
 * running call too, which it does not delay, and for which it does not wait. Since 0.1.
 */
segno_status segno_seq_stats_get(const struct segno_session *session,
                                 int32_t seq,
                                 struct segno_seq_stats *out,
                                 size_t size,
                                 struct segno_error **err);

/**
 * Raw logits after the last token of a sequence, evaluating its queue first.
 *
 * `buf`: room for `cap` floats; `count` receives the number of logits, the vocabulary's size. `buf` NULL with `cap` 0 asks for that number
 * and evaluates nothing. Codes: NULL_POINTER, NOT_FOUND, BUFFER_TOO_SMALL (before any evaluation), INVALID_ARGUMENT (an empty sequence),
 * KV_FULL, DEVICE, BUSY, POISONED, and the outcome `SEGNO_CANCELLED`. Since 0.1.
 */
segno_status segno_seq_logits(struct segno_session *session,
                              int32_t seq,
                              float *buf,
                              size_t cap,
                              size_t *count,
                              struct segno_error **err);

/**
 * Gives a sequence another sampler, from its next token on.
 *
 * `opts`: NULL for defaults; arrays are copied. Codes: NOT_FOUND, INVALID_ARGUMENT (an option out of range), NULL_POINTER, OUT_OF_MEMORY, BUSY,
 * POISONED; a failed call keeps the old sampler. Since 0.1.
 */
segno_status segno_seq_sampler_set(struct segno_session *session,
                                   int32_t seq,
                                   const struct segno_sampler_opts *opts,
                                   struct segno_error **err);

/**
 * Opens a sequence with the history of another, queue included; evaluated tokens are shared, not copied.
 *
 * `opts`: NULL keeps the parent's options, and its seed if one was given; the fork of a sequence with a random seed gets another one. `out` receives
 * the new id. Codes: NULL_POINTER, NOT_FOUND, INVALID_ARGUMENT, SEQ_FULL, KV_FULL, OUT_OF_MEMORY, BUSY, POISONED. Since 0.1.
 */
segno_status segno_seq_fork(struct segno_session *session,
                            int32_t seq,
                            const struct segno_sampler_opts *opts,
                            int32_t *out,
                            struct segno_error **err);

/**
 * Keeps the first `tokens` tokens of a sequence; 0 empties it.
 *
 * Of most models this costs one token, which the next call evaluates again where it needs logits. Layers that see a window keep the last
 * tokens alone: a model with such layers is cut by up to about `max_prompt` tokens at that price, further back it gives its pages up and evaluates
 * what is kept anew in the calls that follow, `segno_decode_step` with PENDING until it is done. Layers with a state (LFM2, Qwen 3.5) cannot be cut
 * anywhere: the sequence goes back to the last mark before, and evaluates what lies between likewise. Prompts set marks by themselves, at the end
 * of each pass and of the prompt, so that a cut back to the last turn costs a token; `segno_seq_mark` sets more.
 *
 * Codes: NOT_FOUND, INVALID_ARGUMENT (more than its length), BUSY, POISONED, NULL_POINTER. Since 0.1.
 */
segno_status segno_seq_truncate(struct segno_session *session,
                                int32_t seq,
                                size_t tokens,
                                struct segno_error **err);

/**
 * Takes `count` tokens out of a sequence, from the index `first` on: how a sequence whose context is full goes on, with its head kept and the oldest
 * of the rest forgotten. What follows is what would follow in a new sequence of the tokens that are left: those behind the gap are queued, and
 * evaluated again by the calls that need them, `segno_decode_step` with PENDING until it is done. Those before it stay evaluated as
 * `segno_seq_truncate` says.
 *
 * A grammar goes on where it is; tokens that it has followed cannot be taken out. `segno_chat_next` forgets whole turns by itself. Codes: NOT_FOUND,
 * INVALID_ARGUMENT (beyond its length, or tokens that its grammar has followed), OUT_OF_MEMORY (nothing has changed), BUSY, POISONED,
 * NULL_POINTER. Since 0.1.
 */
segno_status segno_seq_remove(struct segno_session *session,
                              int32_t seq,
                              size_t first,
                              size_t count,
                              struct segno_error **err);

/**
 * Sets a mark at the present length of a sequence: a snapshot of the states of its layers, to which `segno_seq_truncate` can go back. Tokens
 * that are queued are not evaluated for it, so call it behind `segno_seq_prefill` or a decode call. Marks of all sequences share `max_marks`
 * snapshots, of which the oldest is given up for a new one; forks share those of their parent.
 *
 * Models whose layers have no state need no marks, and the call does nothing. Codes: NOT_FOUND, BUSY, POISONED, NULL_POINTER. Since 0.1.
 */
segno_status segno_seq_mark(struct segno_session *session,
                            int32_t seq,
                            struct segno_error **err);

/**
 * Tells how many tokens of a sequence would stay evaluated if it were cut to its first `tokens`: what lies behind is evaluated again by the
 * calls that follow. Where layers have a state that is the place of the last mark before.
 *
 * `found` receives the number, `tokens` at most; the last token is evaluated again where its logits are wanted, which may ask for a mark
 * before it. Codes: NULL_POINTER, NOT_FOUND, INVALID_ARGUMENT (more than its length), BUSY, POISONED. Since 0.1.
 */
segno_status segno_seq_mark_nearest(struct segno_session *session,
                                    int32_t seq,
                                    size_t tokens,
                                    size_t *found,
                                    struct segno_error **err);

/**
 * Closes a sequence and gives its pages back to the pool.
 *
 * Codes: NOT_FOUND, BUSY, POISONED, NULL_POINTER. Since 0.1.
 */
segno_status segno_seq_close(struct segno_session *session, int32_t seq, struct segno_error **err);

/* ---- Decoding ------------------------------------------------------------------------------------------------------
 *
 * One token a call for one sequence, or for many in one pass. Queued prompts are evaluated on the way.
 */

/**
 * Advances one sequence: evaluates what it lacks, at most `max_prompt` tokens, then samples a token and appends it.
 *
 * `token` receives the sampled token; it is written with `SEGNO_OK` and `SEGNO_DONE` (the token ended generation; it is in the history, and a
 * further call goes on from it). Other outcomes: `SEGNO_PENDING` (the prompt is longer than one pass: call again), `SEGNO_CANCELLED`,
 * `SEGNO_GRAMMAR_END` (the sequence's grammar lets no token follow). A token that the grammar forces costs no pass: it is evaluated together with
 * the next one that is sampled. Codes: NULL_POINTER, NOT_FOUND, INVALID_ARGUMENT (an empty sequence), CONTEXT_FULL, KV_FULL, GRAMMAR, DEVICE,
 * BUSY, POISONED; the sequence is then as it was. Allocates nothing but for sequences with a grammar. Since 0.1.
 */
segno_status segno_decode_step(struct segno_session *session,
                               int32_t seq,
                               int32_t *token,
                               struct segno_error **err);

/**
 * Advances one sequence as `segno_decode_step`, and gives at once all tokens that the pass has settled, where the session drafts (`speculation` of
 * its options): what drafts gave beyond the first is otherwise handed out by the steps that follow, one each, without a pass. The tokens are the
 * same.
 *
 * `tokens`: room for `cap` tokens, at least one; what is left over comes with later calls. `count` receives how many there are, 0 where
 * `segno_decode_step` gives none. The outcome is that of the last step. Codes: those of `segno_decode_step`. Since 0.1.
 */
segno_status segno_decode_many(struct segno_session *session,
                               int32_t seq,
                               int32_t *tokens,
                               size_t cap,
                               size_t *count,
                               struct segno_error **err);

/**
 * Advances every listed sequence by one step, in one pass: running streams always, prompts within a budget of `max_prefill` tokens in
 * list order, or of `max_prompt` where all lack some of theirs.
 *
 * `seqs`: `count` ids, each once. `tokens` and `statuses`: room for `count` results, all written once the call has begun; `tokens[i]` is -1
 * unless `statuses[i]` is `SEGNO_OK` or `SEGNO_DONE`. `statuses[i]` is what `segno_decode_step` would answer for item i. Returns `SEGNO_OK`, or the
 * code of the first failed item (`segno_error_item` is its index): its sequence is as it was, the others have advanced; or
 * `SEGNO_CANCELLED`: no item has advanced. Also: NULL_POINTER, BUSY, POISONED. Allocates nothing but for sequences with a grammar. Since 0.1.
 */
segno_status segno_decode_batch(struct segno_session *session,
                                const int32_t *seqs,
                                size_t count,
                                int32_t *tokens,
                                segno_status *statuses,
                                struct segno_error **err);

/* ---- Embeddings ----------------------------------------------------------------------------------------------------
 *
 * Vectors of texts, to be compared with each other: by models that were made for that, and by any other.
 */

/** Vectors are as the model gives them, not divided by their length. */
#define SEGNO_EMBED_RAW 1
/** What the model was made for, as its file says; the mean where it says nothing. */
#define SEGNO_POOLING_MODEL 0
/** A vector for each token. */
#define SEGNO_POOLING_NONE 1
/** The mean of the vectors of all tokens. */
#define SEGNO_POOLING_MEAN 2
/** The vector of the first token, which encoders call CLS. */
#define SEGNO_POOLING_FIRST 3
/** The vector of the last token. */
#define SEGNO_POOLING_LAST 4
/**
 * No vector of the text, but scores, one a class: what a reranker says of a query and a text that a host has put together as the model wants them.
 * Those of BERT's kin are as its classifier gives them, and all tokens are of its first type; those of Qwen 3 add up to 1. Neither is divided by
 * its length.
 */
#define SEGNO_POOLING_RANK 5

/**
 * A low-rank change of a model (LoRA), kept beside its weights. Owned by the host, immutable; sequences that have it keep what they need of it.
 * Keeps its model alive.
 */
typedef struct segno_adapter segno_adapter;

/** How texts become vectors; fill with `segno_embed_opts_init`. */
typedef struct segno_embed_opts {
  /** `sizeof` this struct, set by the init function. */
  uint32_t struct_size;
  /** `SEGNO_EMBED_...`, combined with `|`; 0 by default, and each vector has the length 1. */
  uint32_t flags;
  /** `SEGNO_POOLING_...`: which vector stands for a text; `SEGNO_POOLING_MODEL` by default. */
  int32_t pooling;
  /** Must be 0. */
  uint32_t reserved;
  /**
   * Leading elements of a vector that are kept, for models that were trained for that (Matryoshka); 0 (default) for all. Vectors are cut before
   * they are divided by their length.
   */
  uint64_t dims;
  /** `adapter_count` adapters with which the texts are evaluated, at most 64, loaded for the session's model; NULL when there are none. */
  const struct segno_adapter *const *adapters;
  /** As many factors, finite ones; NULL for 1 each. */
  const float *scales;
  /** Number of adapters at `adapters`. */
  size_t adapter_count;
} segno_embed_opts;

/** Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1. */
void segno_embed_opts_init(struct segno_embed_opts *opts, size_t size);

/**
 * Makes vectors of texts: what the last norm of the model gives of their tokens, pooled, sent through the model's last projections where it has
 * such, cut to `dims` elements, and divided by its length. Texts are evaluated together, as many in a pass as `max_prompt` tokens, the free
 * places of `max_seqs` sequences and the free pages of the cache allow; a vector does not depend on the texts beside its own, but with fast
 * batches (`SEGNO_CTX_FAST_BATCHES`) on a GPU. With adapters in `opts` it is what weights into which they are merged would give; room for their
 * ranks is made as `segno_seq_adapters_set` makes it. A text takes the place of a sequence and its pages for as long as it is evaluated; open
 * sequences stay as they are.
 *
 * Models whose tokens see what follows them (`gemma-embedding`, `bert`, `nomic-bert`, `modern-bert`) evaluate a text in one pass, so none may have
 * more tokens than `max_prefill` and `max_prompt`; they make embeddings alone, and opening a sequence of theirs is UNSUPPORTED. Tokens are evaluated
 * as they are given: `segno_tokenize` with `SEGNO_TOKENIZE_ADD_SPECIAL` adds those that a model wants around a text.
 *
 * `tokens`: those of all texts, one text behind the other. `lengths`: for each of the `texts` texts how many are its own, at least one. `opts`:
 * NULL for defaults. `out`: room for `cap` floats; it receives `dims` of them for each text in order, with `SEGNO_POOLING_NONE` for each token, and
 * is written on success alone. `dims` receives the elements of a vector, also when there is too little room; `out` NULL with `cap` 0 asks for these
 * and evaluates nothing. The call allocates what its result and its list of adapters take, and nothing else.
 *
 * Codes: NULL_POINTER, INVALID_ARGUMENT (a text without tokens or with too many for one pass, a token outside the vocabulary, more `dims` than
 * there are, an adapter of another model; `segno_error_item` is the text, if one is at fault), BUFFER_TOO_SMALL (before any evaluation),
 * CONTEXT_FULL, SEQ_FULL, KV_FULL (a text that has no room by itself), UNSUPPORTED (scores of a model without a classifier), OUT_OF_MEMORY,
 * DEVICE, BUSY, POISONED, and the outcome `SEGNO_CANCELLED`. Since 0.1.
 */
segno_status segno_embed(struct segno_session *session,
                         const int32_t *tokens,
                         const size_t *lengths,
                         size_t texts,
                         const struct segno_embed_opts *opts,
                         float *out,
                         size_t cap,
                         size_t *dims,
                         struct segno_error **err);

/* ---- Frame loops ---------------------------------------------------------------------------------------------------
 *
 * Steps that a host does not wait for: it submits one, draws its frame, and polls. A budget in microseconds bounds the slices of long
 * prompts. One thread of the host is enough.
 */

/** Options of a step that is submitted; fill with `segno_submit_opts_init`. */
typedef struct segno_submit_opts {
  /** `sizeof` this struct, set by the init function. */
  uint32_t struct_size;
  /** Zero. */
  uint32_t reserved;
  /**
   * Microseconds that the step should take: prompts get as many tokens of it as passes have taken so long in this session, at least one, and at
   * most `max_prefill`, or `max_prompt` where no listed stream runs. 0 (default): as many. A session learns as it runs, so its first slices are
   * short. Listed sequences whose prompt is evaluated always take part: their step takes what it takes.
   */
  uint64_t budget_us;
} segno_submit_opts;

/** Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1. */
void segno_submit_opts_init(struct segno_submit_opts *opts, size_t size);

/**
 * Starts a step of every listed sequence, that of `segno_decode_batch`, and returns at once: for loops that draw frames or serve events and have no
 * thread to wait with. The tokens are the same. `segno_session_poll` tells what became of it.
 *
 * `seqs`: `count` ids, each once, at most `max_seqs`; they are copied. `opts`: NULL for defaults. A thread of the session's carries the step out,
 * parked while there is none, with the workers of the context: as many threads compute as in a call, `n_threads`. The first submit of a session
 * starts that thread (one with `count` 0 does nothing else); later ones allocate nothing, wait for nothing and cost some ten microseconds.
 *
 * Until the poll that answers other than `SEGNO_PENDING`, a call is running: all others on the session are BUSY, but for `segno_session_poll`,
 * cancel, the two stats calls and `segno_seq_length`. Errors of items come from the poll. Codes: NULL_POINTER, INVALID_ARGUMENT, OUT_OF_MEMORY,
 * DEVICE (the thread cannot be started), BUSY, POISONED; nothing was submitted then. Any thread. Since 0.1.
 */
segno_status segno_session_submit(struct segno_session *session,
                                  const int32_t *seqs,
                                  size_t count,
                                  const struct segno_submit_opts *opts,
                                  struct segno_error **err);

/**
 * Asks what became of the step that was submitted.
 *
 * `timeout_us`: microseconds to wait for its end at most: 0 asks and never waits, UINT64_MAX waits as long as it takes. Answers `SEGNO_PENDING`, and
 * writes nothing, while the step runs. Otherwise it is over, and the session can be used again: the answer, `tokens` and `statuses` are those of
 * `segno_decode_batch`, with room for as many results as sequences were submitted. So `SEGNO_OK` with `statuses[i]` `SEGNO_PENDING` says that the
 * slice is done and the prompt of item i is not: what is done stays done, submit again. `SEGNO_CANCELLED`: no item has advanced.
 *
 * Codes: those of `segno_decode_batch`; INVALID_ARGUMENT (nothing was submitted), NULL_POINTER, BUSY (another poll or submit is running) leave a
 * step as it is, to be polled again. PANIC: the step has failed inside the library, and the session is poisoned. Any thread; allocates
 * nothing. Since 0.1.
 */
segno_status segno_session_poll(struct segno_session *session,
                                uint64_t timeout_us,
                                int32_t *tokens,
                                segno_status *statuses,
                                struct segno_error **err);

/* ---- Saved sequences -----------------------------------------------------------------------------------------------
 *
 * A sequence outlives its session as bytes: what a host keeps of a game or a conversation goes on where it stopped, with the same
 * tokens, without its prompt being evaluated again.
 */

/**
 * Takes `len` bytes at `data`, which are gone when it returns; a non-zero result ends the call with IO. Called on the thread of the call, with a
 * page of the cache or a megabyte at a time. Must not unwind. Calls from inside it on the context or what was made from it answer BUSY.
 */
typedef int32_t (*segno_write_fn)(void *user, const void *data, size_t len);

/** Fills up to `len` bytes at `data` and returns how many; 0 is the end, or a failure of the host's. Else as `segno_write_fn`. */
typedef size_t (*segno_read_fn)(void *user, void *data, size_t len);

/**
 * Gives out a sequence: its tokens, its keys and values, and how it draws with its seed. The sequence stays as it is. What was given out goes on
 * by `segno_seq_restore` in any session of the same model and `kv_type`, in another process, on another machine or device, and gives the same
 * tokens as if it had never stopped, on the same kind of device. The form has a version, a hash of the model's tensors and a checksum of
 * everything; per token it takes what the KV cache does. Of a grammar that the sequence follows, what it was compiled of is saved, and how far the
 * sequence has come in it. Marks go along, each with its state. Of adapters what each is recognized by is saved, a hash of its file's tensors and
 * its alpha, and its scale, not its numbers.
 *
 * `write` gets the bytes, `user` is its first argument. Codes: NULL_POINTER, NOT_FOUND, IO (`write` refused), GRAMMAR (the sequence's cannot go on),
 * UNSUPPORTED (a text of its grammar, the chat template for example, of more than 1 MiB), OUT_OF_MEMORY, DEVICE, BUSY, POISONED, and the outcome
 * `SEGNO_CANCELLED`. Since 0.1.
 */
segno_status segno_seq_save(struct segno_session *session,
                            int32_t seq,
                            segno_write_fn write,
                            void *user,
                            struct segno_error **err);

/**
 * Opens a sequence as `segno_seq_save` has given it out. What belongs to another model or type of cache, or is damaged in a single bit, is refused,
 * and then there is no sequence. Reads no byte behind its end.
 *
 * `read` gives the bytes, `user` is its first argument. `opts`: how it draws from now on; NULL goes on as it was, with its seed. `seq` receives
 * the id. Layers that see a window keep what this session has room for; where the saved sequence has less than they need (`max_prompt` was
 * smaller there), the tokens are evaluated anew. Marks take the room that `max_marks` has left, the newest first. A grammar is compiled again,
 * within the limits of `segno_grammar_create`. The sequence has the adapters again that it had, found among those that are loaded for the model (not
 * freed, or still had by a sequence); room for their ranks is made as `segno_seq_adapters_set` makes it.
 *
 * Codes: NULL_POINTER, INVALID_ARGUMENT (another model or type of cache, an option out of range), NOT_FOUND (an adapter that is not loaded: the
 * message has its name and hash, and nothing behind them was read), FORMAT (damaged, ends early, or has a grammar that cannot be compiled),
 * UNSUPPORTED (of another form), IO (`read` tells more than it was asked for), SEQ_FULL, KV_FULL, OUT_OF_MEMORY, DEVICE_MEMORY, DEVICE, BUSY,
 * POISONED, and the outcome `SEGNO_CANCELLED`. Since 0.1.
 */
segno_status segno_seq_restore(struct segno_session *session,
                               segno_read_fn read,
                               void *user,
                               const struct segno_sampler_opts *opts,
                               int32_t *seq,
                               struct segno_error **err);

/**
 * As `segno_seq_save`, to a file.
 *
 * `path`: of the file, NUL-terminated UTF-8, in a folder that exists. It appears, or takes the place of another, when all is on the disk; what
 * fails or is cancelled leaves nothing behind. Codes: those of `segno_seq_save`, and INVALID_ARGUMENT where `path` is a folder. Since 0.1.
 */
segno_status segno_seq_save_file(struct segno_session *session,
                                 int32_t seq,
                                 const char *path,
                                 struct segno_error **err);

/**
 * As `segno_seq_restore`, from a file, which holds nothing else.
 *
 * `path`: of the file, NUL-terminated UTF-8. Codes: those of `segno_seq_restore`. Since 0.1.
 */
segno_status segno_seq_restore_file(struct segno_session *session,
                                    const char *path,
                                    const struct segno_sampler_opts *opts,
                                    int32_t *seq,
                                    struct segno_error **err);

/* ---- Grammars ------------------------------------------------------------------------------------------------------
 *
 * A segno_grammar says which tokens may follow, so that a text is JSON of a schema, or what an expression or rules describe. It is
 * compiled once for a model, and given to any number of sequences.
 */

/** JSON Schema, drafts 4 to 2020-12. */
#define SEGNO_GRAMMAR_JSON_SCHEMA 0
/** A regular expression that the whole text matches. */
#define SEGNO_GRAMMAR_REGEX 1
/** Lark, as llguidance has it. */
#define SEGNO_GRAMMAR_LARK 2
/** GBNF, the notation of llama.cpp; the text is what its rule `root` describes. */
#define SEGNO_GRAMMAR_GBNF 3
/** JSON of a schema has no white space outside of strings. */
#define SEGNO_GRAMMAR_COMPACT 1

/** A compiled grammar: which tokens of a model may follow which. Owned by the host, immutable; sequences that have it keep it alive. */
typedef struct segno_grammar segno_grammar;

/** What a grammar is compiled from; fill with `segno_grammar_opts_init`. */
typedef struct segno_grammar_opts {
  /** `sizeof` this struct, set by the init function. */
  uint32_t struct_size;
  /** One of `SEGNO_GRAMMAR_JSON_SCHEMA` (default), `_REGEX`, `_LARK` and `_GBNF`. */
  int32_t kind;
  /** `SEGNO_GRAMMAR_COMPACT` or 0 (default). */
  uint32_t flags;
  /** Zero. */
  uint32_t reserved;
  /** The grammar, UTF-8, at most 256 KiB; not NUL-terminated. NULL (default) is the schema of any JSON value. */
  const char *text;
  /** Bytes at `text`. */
  size_t text_len;
} segno_grammar_opts;

/** Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1. */
void segno_grammar_opts_init(struct segno_grammar_opts *opts, size_t size);

/**
 * Compiles a grammar for the tokens of a model. Any number of sequences, sessions and threads share it.
 *
 * `opts`: NULL for any JSON value. `out` receives the grammar, NULL on failure; free it with `segno_grammar_free`. The first grammar of a model
 * also brings its tokens in order, which takes about a second and 110 MB for 256,000 tokens, and stays with the model. Every text ends in a
 * grammar or an error within about two seconds and 256 MB. A schema's properties come in its order; what it says must hold, so that one with
 * keywords that cannot be watched while a text is written (`not`, `if`, `contains`, `uniqueItems`, `propertyNames`, `unevaluated...`,
 * `dependent...`) is refused by name, and one that refers to other documents or by `$id` and `$anchor` is too. A regular expression has Rust's
 * syntax, without look-around and word boundaries. Special tokens are let through only where a grammar in Lark names them: `<|name|>` or
 * `<[number]>`. Codes: NULL_POINTER, INVALID_ARGUMENT (not UTF-8, unknown kind or flags), GRAMMAR (line or place, and cause), UNSUPPORTED (the
 * file has no tokenizer), OUT_OF_MEMORY. Any thread. Since 0.1.
 */
segno_status segno_grammar_create(const struct segno_model *model,
                                  const struct segno_grammar_opts *opts,
                                  struct segno_grammar **out,
                                  struct segno_error **err);

/** Frees a grammar; NULL is allowed. Sequences that have it keep what they need of it. Since 0.1. */
void segno_grammar_free(struct segno_grammar *grammar);

/**
 * Lets the tokens that a sequence samples follow a grammar, or sets it free again.
 *
 * `grammar`: NULL for none. It begins with the next sampled token; with a `start_token` of 0 or more behind the next sampled token of that id, and
 * until then every token may come. -1: at once. Tokens that the host appends do not move it. Where the text may end, the tokens that end
 * generation may come too, and with one of them `SEGNO_DONE`; where nothing else may come, one of them does, and where the sampler ignores
 * them all, the step answers `SEGNO_GRAMMAR_END`, and so does every one behind the end, until another grammar or none is set. A fork walks on
 * from where its parent is, and `segno_seq_truncate` leads back to where the sequence was at that length. Codes: NULL_POINTER (the
 * session), NOT_FOUND, INVALID_ARGUMENT (a grammar of another model, a token outside the vocabulary), OUT_OF_MEMORY, BUSY, POISONED; a failed call
 * changes nothing. Since 0.1.
 */
segno_status segno_seq_grammar_set(struct segno_session *session,
                                   int32_t seq,
                                   const struct segno_grammar *grammar,
                                   int32_t start_token,
                                   struct segno_error **err);

/* ---- Adapters ------------------------------------------------------------------------------------------------------
 *
 * A segno_adapter changes what a model says (LoRA) and leaves its weights alone. Several are loaded beside one model, chosen and
 * scaled for each sequence, and mixed in one pass.
 */

/** How an adapter is loaded; fill with `segno_adapter_opts_init`. */
typedef struct segno_adapter_opts {
  /** `sizeof` this struct, set by the init function. */
  uint32_t struct_size;
  /** Zero: there are none yet. */
  uint32_t flags;
  /** Zero. */
  uint64_t reserved;
} segno_adapter_opts;

/** Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1. */
void segno_adapter_opts_init(struct segno_adapter_opts *opts, size_t size);

/**
 * Loads a LoRA adapter for a model from a GGUF file as llama.cpp's convert_lora_to_gguf.py writes it. Any number of adapters may be loaded beside
 * one model, and each given to any number of sequences; the model's weights stay as they are.
 *
 * The file has `general.type` "adapter", `adapter.type` "lora", the model's `general.architecture`, `adapter.lora.alpha`, and pairs of tensors
 * `NAME.lora_a` [inputs, rank] and `NAME.lora_b` [rank, outputs], where NAME is a tensor of the model that products read: projections of attention
 * and of dense feed-forward blocks, of layers with a state, of routers, and the output head. A pair adds `scale * alpha / rank * B (A x)` to the
 * product, `scale` that of `segno_seq_adapters_set`; without alpha, or with 0, `scale * B (A x)`. Matrices of experts have pairs with a matrix for
 * each, [inputs, rank, experts] and [rank, outputs, experts]. The embedding of tokens has [rank, vocabulary] and [rank, width], as llama.cpp has it:
 * the row of a token is what the second is multiplied by; where the embedding is the output head too, that changes with it, as if merged.
 * Ranks are at most 4096; tensors may be of any type that models have: F16 and BF16 stay that narrow where they can, all others are decoded to 32
 * bits. What it would change beside (other embeddings, matrices of single heads, norms, biases, matrices with a scale beside them) and activated
 * adapters are refused by name, and on a GPU so are those of the embedding of tokens. The file is read whole, copied, to the device's memory where
 * the model is on a GPU, and not needed any more; of a model that the host shares (`device_memory` of its options) each side has the pairs of what
 * it computes.
 *
 * `path`: NUL-terminated. `opts`: NULL for defaults. `out` receives the adapter, NULL on failure; free it with `segno_adapter_free`. Codes:
 * NULL_POINTER, INVALID_ARGUMENT, IO, FORMAT (a damaged file, tensors that the model does not have, or in other shapes), UNSUPPORTED (no adapter,
 * one for another family, or of a kind that is not supported), OUT_OF_MEMORY, DEVICE_MEMORY, DEVICE. Any thread. Since 0.1.
 */
segno_status segno_adapter_load(const struct segno_model *model,
                                const char *path,
                                const struct segno_adapter_opts *opts,
                                struct segno_adapter **out,
                                struct segno_error **err);

/**
 * Frees an adapter; NULL is allowed. Sequences that have it keep what they need of it; its memory comes back when the last of them is closed, or
 * has others. Since 0.1.
 */
void segno_adapter_free(struct segno_adapter *adapter);

/**
 * Gives a sequence adapters in place of those that it has. Sequences with none, one and several may share a pass; each gives the tokens that it
 * gives alone, and a sequence without adapters costs what it cost, to the bit.
 *
 * `adapters`: `count` of them, at most 64, loaded for the session's model; 0 takes all away. What several add is summed, in the order of the list;
 * one may be listed twice. `scales`: as many factors, finite ones; NULL for 1 each. One of 0 leaves its adapter out.
 *
 * **What the sequence has evaluated was made with the adapters that it had: it keeps its tokens, gives up their keys and values, and evaluates them
 * again with its next step.** So its tokens depend on its history and on the adapters that it has, and on nothing before. Set them before the
 * prompt; the same adapters and scales once more change nothing. Marks are given up too. A fork has its parent's adapters. A draft model drafts
 * without them, which changes no token; `segno_embed` has adapters of its own, in its options. A saved sequence has its adapters again where
 * they are loaded (`segno_seq_restore`).
 *
 * Sums of ranks need room in each row of a pass: `adapter_ranks` of the session's options reserves it when the session is made, and is counted by
 * `segno_plan_get`; a set with more of them, each adapter counted with its largest rank, makes it grow here, never in a step, and
 * `segno_session_memory` tells. Codes: NULL_POINTER, NOT_FOUND, INVALID_ARGUMENT (an adapter of another model, a scale that is no number;
 * `segno_error_item` is its index), OUT_OF_MEMORY, DEVICE_MEMORY, DEVICE, BUSY, POISONED; a failed call changes nothing. On a GPU adapters that
 * change other matrices than all before have the session's launches made anew here, which takes a part of the time that making it took. Since 0.1.
 */
segno_status segno_seq_adapters_set(struct segno_session *session,
                                    int32_t seq,
                                    const struct segno_adapter *const *adapters,
                                    const float *scales,
                                    size_t count,
                                    struct segno_error **err);

/* ---- Tools ---------------------------------------------------------------------------------------------------------
 *
 * A grammar of replies that call tools: what the model's family writes, with arguments that meet the schemas of the tools.
 */

/** Calls are not watched; for `segno_chat_tools_set` alone. */
#define SEGNO_TOOLS_FREE -1
/** Any tool may be called, or none. */
#define SEGNO_TOOLS_AUTO 0
/** A reply begins with a call, behind reasoning. */
#define SEGNO_TOOLS_REQUIRED 1
/** No tool is called. */
#define SEGNO_TOOLS_NONE 2
/** A reply begins with a call of the tool that `name` names. */
#define SEGNO_TOOLS_NAMED 3
/** A reply has one call at most. */
#define SEGNO_TOOLS_ONE_CALL 1

/** What a grammar of calls is made of; fill with `segno_tools_opts_init`. Texts are UTF-8. */
typedef struct segno_tools_opts {
  /** `sizeof` this struct, set by the init function. */
  uint32_t struct_size;
  /** `SEGNO_TOOLS_ONE_CALL` or 0 (default): several calls in a reply, where the family writes several. */
  uint32_t flags;
  /** One of `SEGNO_TOOLS_AUTO` (default), `_REQUIRED`, `_NONE` and `_NAMED`. */
  int32_t choice;
  /** Zero. */
  uint32_t reserved;
  /** The tools, a JSON array as in `segno_chat_opts`, at most 256 KiB; NULL (default) for none. */
  const char *tools_json;
  /** Bytes at `tools_json`. */
  size_t tools_len;
  /** The tool of `SEGNO_TOOLS_NAMED`, NUL-terminated; NULL (default). */
  const char *name;
  /** Name of the format, NUL-terminated, as in `segno_reply_opts`; NULL (default): the template tells. */
  const char *format;
  /**
   * What the reply follows, the rendered conversation or its end: reasoning may have begun there. NULL (default): what the template makes of
   * a short message.
   */
  const char *prompt;
  /** Bytes at `prompt`. */
  size_t prompt_len;
  /** A template in place of the model's own; NULL (default) for the model's. */
  const char *template_text;
  /** Bytes at `template_text`. */
  size_t template_len;
} segno_tools_opts;

/** Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1. */
void segno_tools_opts_init(struct segno_tools_opts *opts, size_t size);

/**
 * Compiles a grammar of replies that call tools: what the model's family writes, with names of the tools and arguments that meet their
 * schemas. Give both results to `segno_seq_grammar_set`, and the tokens to a `segno_reply` with the same tools, format and prompt.
 *
 * `opts`: NULL for defaults, that is no tools. `out` receives the grammar, NULL on failure; free it with `segno_grammar_free`.
 * `start_token` receives the special token that begins a call, behind which the grammar begins, or -1: at once. AUTO leaves the text before a
 * call as it is, at no cost where a token begins calls; families that begin them with characters (harmony, llama3, functionary, kimi-k3,
 * and any whose vocabulary lacks the token) are watched from the start, and write no special tokens but those of their format. Behind a
 * call the reply ends, goes on as text, or has another. REQUIRED and NAMED begin at once: reasoning where the family reasons, then calls,
 * then the end. NONE, too, watches the whole reply. Arguments come in the order of the schema; where it has `properties`, others
 * only if it says `additionalProperties`; no more white space than one space behind a separator. A family that does not write JSON is told by
 * name which keyword it cannot watch. Codes: NULL_POINTER, INVALID_ARGUMENT (tools that are none, unknown flags or choice), NOT_FOUND (no
 * such format or tool), GRAMMAR (which tool cannot be watched, and why), TEMPLATE (`prompt` is NULL and the template fails), UNSUPPORTED (the
 * file has no tokenizer), OUT_OF_MEMORY. Any thread. Since 0.1.
 */
segno_status segno_tools_grammar_create(const struct segno_model *model,
                                        const struct segno_tools_opts *opts,
                                        struct segno_grammar **out,
                                        int32_t *start_token,
                                        struct segno_error **err);

/* ---- Conversations -------------------------------------------------------------------------------------------------
 *
 * A segno_chat holds the messages of a conversation and answers them in a sequence of its own: a message, then steps until the
 * reply is over. What the cache has of earlier turns is kept.
 */

/**
 * When the context is full, the oldest turns are forgotten: a user's message with all that answers it, never the system's messages, never
 * the newest turn. Messages that are forgotten stay in the conversation, but the model no longer sees them.
 */
#define SEGNO_CHAT_FORGET 1
/** No reply has ended yet, or one is being written. */
#define SEGNO_CHAT_END_NONE 0
/** The model ended the reply. */
#define SEGNO_CHAT_END_TOKEN 1
/** A stop string was complete. */
#define SEGNO_CHAT_END_STOP 2
/** The reply had `max_tokens`. */
#define SEGNO_CHAT_END_LENGTH 3
/** The grammar let nothing follow. */
#define SEGNO_CHAT_END_GRAMMAR 4
/** A message was added before the reply was over. */
#define SEGNO_CHAT_END_INTERRUPTED 5

/**
 * A conversation: messages, the template that renders them, one sequence of a session, and the reader of its replies. Owned by the host, one
 * call at a time; from `segno_chat_submit` until `segno_chat_poll` has told what became of the step, a call is running. Keeps its session alive.
 */
typedef struct segno_chat segno_chat;

/** Options of a conversation; fill with `segno_chat_create_opts_init`. Texts are UTF-8; everything is copied. */
typedef struct segno_chat_create_opts {
  /** `sizeof` this struct, set by the init function. */
  uint32_t struct_size;
  /** `SEGNO_CHAT_FORGET` or 0 (default): then a full context is CONTEXT_FULL. */
  uint32_t flags;
  /** What the system says, the first message; NULL (default) for nothing. */
  const char *system_text;
  /** Bytes at `system_text`. */
  size_t system_len;
  /** A template in place of the model's own, at most 128 KiB; NULL (default) for the model's. */
  const char *template_text;
  /** Bytes at `template_text`. */
  size_t template_len;
  /** The tools that the model may call, a JSON array; NULL (default) for none. */
  const char *tools_json;
  /** Bytes at `tools_json`. */
  size_t tools_len;
  /** A JSON object whose entries become variables of the template, `enable_thinking` for example; NULL (default) for none. */
  const char *vars_json;
  /** Bytes at `vars_json`. */
  size_t vars_len;
  /** The time that the template sees in every turn, in Unix seconds, UTC; 0 (default): the clock as the conversation begins. */
  int64_t now;
  /** Name of the format of replies, NUL-terminated, as in `segno_reply_opts`; NULL (default): the template tells. */
  const char *format;
  /** `stop_count` texts that end the content of a reply; NULL when there are none. */
  const struct segno_string *stops;
  /** Number of texts at `stops`. */
  size_t stop_count;
  /** How tokens are drawn; NULL for defaults. A token that ends generation by the rules of the vocabulary ends a reply whatever it says. */
  const struct segno_sampler_opts *sampler;
  /** What the content of each reply follows, behind its reasoning if the prompt opens that; NULL (default) for none. */
  const struct segno_grammar *grammar;
  /** The sampled token behind which the grammar begins instead; -1 (default) for none. */
  int32_t grammar_start;
  /** Most tokens of a reply; 0 (default): as many as fit. */
  uint32_t max_tokens;
  /** Most tokens of a reply's reasoning: then the marker that ends it is put in for the model. -1 (default): no limit. */
  int64_t reasoning_tokens;
  /**
   * Most tokens of the conversation in the cache; 0 (default): the model's context or the session's `kv_tokens`, whichever is less. Several
   * conversations share `kv_tokens`.
   */
  uint64_t context_tokens;
} segno_chat_create_opts;

/** Figures of a conversation, and of its last turn. */
typedef struct segno_chat_stats {
  /** Bytes of this struct that the library knows. */
  uint32_t struct_size;
  /** `SEGNO_CHAT_END_...`: why the last reply ended. */
  int32_t end;
  /** Messages, forgotten ones included. */
  uint64_t messages;
  /** Messages that the model no longer sees: those that follow the system's. */
  uint64_t forgotten;
  /** Turns: a message of the user, or several, with all that answers it; what comes before the first of these is one too. */
  uint64_t turns;
  /** Index of the first message of the newest turn; `messages` if there is none. */
  uint64_t last_turn;
  /** Tokens of the conversation as the last reply found it. */
  uint64_t prompt_tokens;
  /** Those of them that were in the cache already. */
  uint64_t kept_tokens;
  /** Tokens that had to be evaluated before the first token of the reply: what is new, and the last token of what was kept, if nothing is. */
  uint64_t evaluated_tokens;
  /** Tokens of the reply. */
  uint64_t reply_tokens;
  /** Those of them that were reasoning. */
  uint64_t reasoning_tokens;
} segno_chat_stats;

/**
 * Starts a step of every listed conversation, that of `segno_chat_next_batch`, and returns at once: rendering, evaluating and reading are done by
 * the thread of the session's that also carries out the steps of `segno_session_submit`. Tokens, events and messages are the same.
 * `segno_chat_poll` tells what became of it.
 *
 * `chats`: `count` conversations of the session, each once, at most `max_seqs`; the list is copied. `opts`: NULL for defaults; `budget_us` bounds
 * the slices of prompts, and not the time that templates and grammars take. The first submit of a session starts the thread.
 *
 * Until the poll that answers other than `SEGNO_PENDING`, a call is running on the session and on each listed conversation: all other calls on
 * these are BUSY, but for `segno_chat_poll`, `segno_session_cancel`, the two stats calls and `segno_seq_length`. Other conversations take messages
 * meanwhile, and are read. A listed one may be freed, and the session too, which cancels the step.
 *
 * Codes: NULL_POINTER, INVALID_ARGUMENT (too many, one of another session), OUT_OF_MEMORY, DEVICE (the thread cannot be started), BUSY (the session,
 * or a conversation, which may be listed twice), POISONED; nothing was submitted then, and `segno_error_item` is the conversation at fault.
 * What goes wrong in a conversation's step comes from the poll. Any thread. Since 0.1.
 */
segno_status segno_chat_submit(struct segno_session *session,
                               struct segno_chat *const *chats,
                               size_t count,
                               const struct segno_submit_opts *opts,
                               struct segno_error **err);

/**
 * Asks what became of the step of conversations that was submitted.
 *
 * `timeout_us`: microseconds to wait for its end at most: 0 asks and never waits, UINT64_MAX waits as long as it takes. Answers `SEGNO_PENDING`, and
 * writes nothing, while the step runs. Otherwise it is over, and session and conversations can be used again: the answer, `events`, `counts` and
 * `statuses` are those of `segno_chat_next_batch`, with room for as many results as conversations were submitted, and for `cap` events of each:
 * those of conversation i begin at `events[i * cap]`. `statuses[i]` is `SEGNO_OK`, `SEGNO_PENDING` (its prompt needs more steps: submit again),
 * `SEGNO_DONE`, a code, or `SEGNO_CANCELLED`, where it was freed meanwhile. With BUFFER_TOO_SMALL, `counts[i]` says how much room is needed, and its
 * next step gives the events again, before it does anything else. Texts of events are valid until the next call on the conversation, a submit that
 * lists it among them. `SEGNO_CANCELLED`: no conversation has advanced.
 *
 * Codes: those of `segno_chat_next_batch`; INVALID_ARGUMENT (nothing was submitted, or sequences were), NULL_POINTER, BUSY (another poll or submit
 * is running) leave a step as it is, to be polled again. PANIC: the step has failed inside the library, session and conversations are poisoned.
 * Any thread; not beside the freeing of a listed conversation. Since 0.1.
 */
segno_status segno_chat_poll(struct segno_session *session,
                             uint64_t timeout_us,
                             struct segno_event *events,
                             size_t cap,
                             size_t *counts,
                             segno_status *statuses,
                             struct segno_error **err);

/** Fills `opts` with defaults. `size` is `sizeof *opts`; NULL, or a size under 4 or above 1024, does nothing. Since 0.1. */
void segno_chat_create_opts_init(struct segno_chat_create_opts *opts, size_t size);

/**
 * Begins a conversation: opens a sequence of the session for it.
 *
 * `opts`: NULL for defaults. `out` receives the conversation, NULL on failure; free it with `segno_chat_free`. Codes: NULL_POINTER,
 * INVALID_ARGUMENT (an option out of range, tools that are no JSON array, a bad stop string, a grammar of another model), NOT_FOUND (neither the
 * model nor `opts` has a template, or there is no such format), UNSUPPORTED (the file has no tokenizer), SEQ_FULL, OUT_OF_MEMORY, BUSY (the
 * session), POISONED. Since 0.1.
 */
segno_status segno_chat_create(struct segno_session *session,
                               const struct segno_chat_create_opts *opts,
                               struct segno_chat **out,
                               struct segno_error **err);

/**
 * Adds a message that is a text. A reply that is being written ends there: what there is of it becomes the assistant's message, and events
 * that have not been taken are lost.
 *
 * `role`: NUL-terminated, "user" for example. `text`: `len` bytes of UTF-8; no part of it ever becomes a special token. Nothing is rendered before
 * the next reply. Codes: NULL_POINTER, INVALID_ARGUMENT (not UTF-8), OUT_OF_MEMORY, BUSY, POISONED; a failed call adds nothing. May run beside a
 * call on the session for others. Since 0.1.
 */
segno_status segno_chat_say(struct segno_chat *chat,
                            const char *role,
                            const char *text,
                            size_t len,
                            struct segno_error **err);

/**
 * Adds a message, or an array of messages, as JSON: what a tool answers, a message with parts, or all that `segno_chat_messages` has given. A
 * reply that is being written ends there, as with `segno_chat_say`.
 *
 * `message_json`: `len` bytes, objects as for `segno_chat_render`, each with a text as its "role". Codes: NULL_POINTER, INVALID_ARGUMENT (JSON that
 * is none, a message without a role), OUT_OF_MEMORY, BUSY, POISONED; a failed call adds nothing. May run beside a call on the session for others.
 * Since 0.1.
 */
segno_status segno_chat_add(struct segno_chat *chat,
                            const char *message_json,
                            size_t len,
                            struct segno_error **err);

/**
 * Lets the replies that begin from now on call the conversation's tools as a grammar has it: names are those of tools, arguments meet their
 * schemas. It begins with the token that begins a call, behind reasoning, where the family has one; see `segno_tools_grammar_create`, whose flags
 * and choices these are. The calls are events and become a part of the assistant's message, and `segno_chat_add` takes what the tools answer.
 *
 * `choice`: `SEGNO_TOOLS_AUTO`, `_REQUIRED`, `_NONE`, `_NAMED`, or `_FREE` for replies that nothing watches, as at the beginning. `flags`:
 * `SEGNO_TOOLS_ONE_CALL` or 0. `name`: the tool of `SEGNO_TOOLS_NAMED`, NUL-terminated, else not looked at. A reply that is being written goes
 * on as it began. Codes: NULL_POINTER, INVALID_ARGUMENT (unknown flags or choice, tools that are none, a conversation with a grammar), NOT_FOUND
 * (no such tool), GRAMMAR (which tool cannot be watched, and why), TEMPLATE, OUT_OF_MEMORY, BUSY, POISONED; a failed call changes nothing. May
 * run beside a call on the session for others. Since 0.1.
 */
segno_status segno_chat_tools_set(struct segno_chat *chat,
                                  int32_t choice,
                                  uint32_t flags,
                                  const char *name,
                                  struct segno_error **err);

/**
 * Cuts a conversation back to its first `messages` messages, without the reply that is being written. `last_turn` of `segno_chat_stats` undoes the
 * newest turn, one more lets it be answered anew.
 *
 * What the cache has of it is kept until the next reply, which uses as much as it can. Codes: INVALID_ARGUMENT (more than there are), NULL_POINTER,
 * BUSY, POISONED. May run beside a call on the session for others. Since 0.1.
 */
segno_status segno_chat_truncate(struct segno_chat *chat,
                                 size_t messages,
                                 struct segno_error **err);

/**
 * Gives all messages as a JSON array, forgotten ones included, and without the reply that is being written. `segno_chat_add` takes it, so that a
 * conversation can be saved and begun again.
 *
 * Messages of the assistant have "role", "content", and where there are any "reasoning_content" and "tool_calls", whose arguments are objects.
 * `buf`: room for `cap` bytes, NULL to ask; `len` receives how many there are. Codes: BUFFER_TOO_SMALL, NULL_POINTER, OUT_OF_MEMORY, BUSY, POISONED.
 * May run beside a call on the session for others. Since 0.1.
 */
segno_status segno_chat_messages(const struct segno_chat *chat,
                                 char *buf,
                                 size_t cap,
                                 size_t *len,
                                 struct segno_error **err);

/**
 * Tells the sequence of a conversation, for its figures, its logits or another sampler. The conversation brings its tokens up to date with every
 * reply, and closes it.
 *
 * `seq` receives its id. Codes: NULL_POINTER, BUSY, POISONED. May run beside a call on the session for others. Since 0.1.
 */
segno_status segno_chat_seq(const struct segno_chat *chat,
                            int32_t *seq,
                            struct segno_error **err);

/**
 * Tells the figures of a conversation.
 *
 * `out` points to a struct of `size` bytes; pass `sizeof *out`. Codes: NULL_POINTER, INVALID_ARGUMENT, BUSY, POISONED. May run beside a call on the
 * session for others. Since 0.1.
 */
segno_status segno_chat_stats_get(const struct segno_chat *chat,
                                  struct segno_chat_stats *out,
                                  size_t size,
                                  struct segno_error **err);

/**
 * Begins a conversation with the messages of another, the reply that is being written included; what is evaluated is shared, not copied.
 *
 * `opts`: NULL keeps the options of the sampler, as `segno_seq_fork` does. `out` receives the conversation, NULL on failure; free it with
 * `segno_chat_free`. Codes: NULL_POINTER, INVALID_ARGUMENT, SEQ_FULL, KV_FULL, NOT_FOUND (the host has closed the sequence), OUT_OF_MEMORY, BUSY
 * (the conversation or its session), POISONED. Since 0.1.
 */
segno_status segno_chat_fork(const struct segno_chat *chat,
                             const struct segno_sampler_opts *opts,
                             struct segno_chat **out,
                             struct segno_error **err);

/**
 * Frees a conversation and its sequence; NULL is allowed. No call on it may be running; one on its session may, and then the sequence is closed
 * as the session's next call begins. A step that was submitted of it goes on, and what comes of it is nobody's: for this conversation
 * `segno_chat_poll` tells `SEGNO_CANCELLED`. Since 0.1.
 */
void segno_chat_free(struct segno_chat *chat);

/**
 * Advances a conversation by one step. The first step after a message begins a reply: it renders the conversation, keeps what the cache has of it,
 * and evaluates the rest.
 *
 * `events`: room for `cap` of them; `count` receives how many there are, and is written for BUFFER_TOO_SMALL too: then nothing was given, and the
 * next call with more room gives them, before it does anything else. Eight are enough for most tokens. Their texts are valid until the next call
 * on the conversation. Outcomes: `SEGNO_OK` (a token was read, which may bring no event), `SEGNO_PENDING` (the prompt is longer than one pass, or
 * turns were forgotten: call again), `SEGNO_DONE` (the reply is over and a message of the conversation; END is its last event), `SEGNO_CANCELLED`
 * (nothing has changed; a later call goes on).
 *
 * What a template writes of earlier replies is compared with the tokens that were sampled, as text: they stay as they were where it is the same.
 * Where a template changes what was said, as those do that drop reasoning of earlier turns, what follows is evaluated anew. Codes: NULL_POINTER,
 * INVALID_ARGUMENT (there is no message to answer), CONTEXT_FULL (nothing is left to forget, or nothing may be), KV_FULL (other sequences hold the
 * pages), TEMPLATE, GRAMMAR, DEVICE, OUT_OF_MEMORY, BUSY (the conversation or its session), POISONED; the conversation is then as it was. Since 0.1.
 */
segno_status segno_chat_next(struct segno_chat *chat,
                             struct segno_event *events,
                             size_t cap,
                             size_t *count,
                             struct segno_error **err);

/**
 * Advances conversations of one session by one step each, in one pass; each answers as it would alone.
 *
 * `chats`: `count` conversations, each once. `events`: room for `count` times `cap` of them; those of conversation i begin at `events[i * cap]`.
 * `counts` and `statuses`: room for `count` results; `statuses[i]` is what `segno_chat_next` would answer for conversation i, and `counts[i]` the
 * number of its events. Returns `SEGNO_OK`, or the code of the first that failed (`segno_error_item` is its index): the others have advanced; or
 * `SEGNO_CANCELLED`: none has. Codes: those of `segno_chat_next`; one that is listed twice is BUSY, one of another session INVALID_ARGUMENT.
 * Since 0.1.
 */
segno_status segno_chat_next_batch(struct segno_session *session,
                                   struct segno_chat *const *chats,
                                   size_t count,
                                   struct segno_event *events,
                                   size_t cap,
                                   size_t *counts,
                                   segno_status *statuses,
                                   struct segno_error **err);

/* ---- Plans ---------------------------------------------------------------------------------------------------------
 *
 * What a model and a session would take, from the header of a file or the configuration of a folder alone.
 */

/** Memory that a model and one session would take, in bytes, and whether there is as much. */
typedef struct segno_plan {
  /** Bytes of this struct that the library knows. */
  uint32_t struct_size;
  /** 1 when everything fits into the free memory, otherwise 0. */
  uint32_t fits;
  /** Weights in host memory, a mapped file included. */
  uint64_t host_weights;
  /** KV cache in host memory. */
  uint64_t host_kv;
  /** Buffers of the forward pass in host memory, logits included. */
  uint64_t host_arena;
  /** Host memory that can be taken now, within the limits of the process's cgroups and address space. */
  uint64_t host_free;
  /** Weights in the GPU's memory. */
  uint64_t device_weights;
  /** KV cache in the GPU's memory. */
  uint64_t device_kv;
  /** Buffers of the forward pass in the GPU's memory. */
  uint64_t device_arena;
  /** Memory of the GPU that can be taken now, at most `device_memory` of the model's options where that is not 0. */
  uint64_t device_free;
  /** Graphs in the GPU's memory. */
  uint64_t device_graphs;
  /** Layers that the host computes for a GPU, whose weights, keys and values are in host memory. */
  uint32_t host_layers;
  /** Further layers whose experts the host computes. */
  uint32_t host_expert_layers;
} segno_plan;

/**
 * Tells what loading a model and creating a session would take, from the file's header and the options alone: nothing is loaded. The file
 * is mapped meanwhile and must not be truncated; with `SEGNO_MODEL_NO_MMAP` all of it is read into memory instead, and given back. A draft
 * model of the session's options is loaded already: its cache and its buffers are counted, its weights are not.
 *
 * `path`: NUL-terminated UTF-8. `model_opts`, `session_opts`: NULL for defaults. `out` points to a struct of `size` bytes; pass `sizeof *out`.
 * Codes: those of `segno_model_load` and `segno_session_create`. Any thread. Since 0.1.
 */
segno_status segno_plan_get(const struct segno_ctx *ctx,
                            const char *path,
                            const struct segno_model_opts *model_opts,
                            const struct segno_session_opts *session_opts,
                            struct segno_plan *out,
                            size_t size,
                            struct segno_error **err);

#ifdef __cplusplus
}
#endif

#endif /* SEGNO_H */
