package segno

// #include <segno.h>
import "C"

import (
	"runtime"
	"unsafe"
)

// SeedRandom asks for a seed taken at random.
const SeedRandom uint64 = C.SEGNO_SEED_RANDOM

// LogitBias is a number added to a token's logit; negative infinity bans it.
type LogitBias struct {
	Token int32
	Bias  float32
}

// SamplerOptions say how tokens are drawn. Begin with DefaultSampler: zero is a setting, not the default.
type SamplerOptions struct {
	IgnoreEOG        bool // tokens that end generation by the vocabulary's rules do not end it
	Temperature      float32
	TopP             float32
	MinP             float32
	TypicalP         float32
	RepeatPenalty    float32
	FrequencyPenalty float32
	PresencePenalty  float32
	TopK             int
	PenaltyLastN     int
	Seed             uint64
	Bias             []LogitBias
	StopTokens       []int32
}

// DefaultSampler returns the library's defaults.
func DefaultSampler() *SamplerOptions {
	var c C.segno_sampler_opts
	C.segno_sampler_opts_init(&c, C.sizeof_segno_sampler_opts)
	return &SamplerOptions{
		Temperature: float32(c.temperature), TopP: float32(c.top_p), MinP: float32(c.min_p), TypicalP: float32(c.typical_p),
		RepeatPenalty: float32(c.repeat_penalty), FrequencyPenalty: float32(c.frequency_penalty),
		PresencePenalty: float32(c.presence_penalty), TopK: int(c.top_k), PenaltyLastN: int(c.penalty_last_n), Seed: uint64(c.seed),
	}
}

// c returns the options as C sees them, valid until the pinner lets go; nil stays nil.
func (o *SamplerOptions) c(pinner *runtime.Pinner) *C.segno_sampler_opts {
	if o == nil {
		return nil
	}
	c := new(C.segno_sampler_opts)
	C.segno_sampler_opts_init(c, C.sizeof_segno_sampler_opts)
	if o.IgnoreEOG {
		c.flags = C.SEGNO_SAMPLER_IGNORE_EOG
	}
	c.temperature, c.top_p, c.min_p, c.typical_p = C.float(o.Temperature), C.float(o.TopP), C.float(o.MinP), C.float(o.TypicalP)
	c.repeat_penalty, c.frequency_penalty = C.float(o.RepeatPenalty), C.float(o.FrequencyPenalty)
	c.presence_penalty = C.float(o.PresencePenalty)
	c.top_k, c.penalty_last_n, c.seed = C.int32_t(o.TopK), C.int32_t(o.PenaltyLastN), C.uint64_t(o.Seed)
	if len(o.Bias) > 0 {
		pinner.Pin(&o.Bias[0])
		c.bias, c.bias_count = (*C.segno_logit_bias)(unsafe.Pointer(&o.Bias[0])), C.size_t(len(o.Bias))
	}
	if len(o.StopTokens) > 0 {
		pinner.Pin(&o.StopTokens[0])
		c.stop_tokens, c.stop_token_count = ids(o.StopTokens), C.size_t(len(o.StopTokens))
	}
	return c
}
