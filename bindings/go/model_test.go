package segno

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"
)

func TestLibraryDescribesItself(t *testing.T) {
	if Version() != "0.1.0" || ABIVersion() != 0 || HasFeature("no such thing") {
		t.Fatal(Version(), ABIVersion())
	}
	if count := must(DeviceCount(DeviceCPU))(t); count != 1 {
		t.Fatal(count)
	}
	if info := must(Device(DeviceAuto, 0))(t); info.Name == "" || info.MemoryTotal == 0 {
		t.Fatal(info)
	}
	if _, err := Device(DeviceCPU, 9); !errors.Is(err, NotFound) {
		t.Fatal(err)
	}
}

func TestGoTypesHaveTheLayoutOfC(t *testing.T) {
	if unsafe.Sizeof(LogitBias{}) != 8 || unsafe.Offsetof(LogitBias{}.Bias) != 4 {
		t.Fatal("LogitBias differs from segno_logit_bias")
	}
}

func TestFloatsAreQuantizedWhileTheyAreLoaded(t *testing.T) {
	ctx := must(NewContext(nil))(t)
	defer ctx.Close()
	kept := must(load(t, nil).Info())(t)
	m := must(ctx.LoadModel(context.Background(), modelPath, &ModelOptions{Quantize: WeightQ4_0}))(t)
	defer m.Close()
	if info := must(m.Info())(t); info.Parameters != kept.Parameters || info.WeightBytes > kept.WeightBytes {
		t.Fatal(info, kept)
	}
	if _, err := ctx.LoadModel(context.Background(), modelPath, &ModelOptions{Quantize: 99}); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
}

func TestModelsAreSaved(t *testing.T) {
	ctx := must(NewContext(nil))(t)
	defer ctx.Close()
	path := filepath.Join(t.TempDir(), "saved.gguf")
	m := must(ctx.LoadModel(context.Background(), modelPath, &ModelOptions{Quantize: WeightQ4_0}))(t)
	defer m.Close()
	heard := float32(-1)
	if err := m.Save(context.Background(), path, &SaveOptions{Progress: func(done float32) bool { heard = done; return true }}); err != nil || heard != 1 {
		t.Fatal(err, heard)
	}
	saved := must(ctx.LoadModel(context.Background(), path, nil))(t)
	defer saved.Close()
	if before, after := must(m.Info())(t), must(saved.Info())(t); before != after {
		t.Fatal(before, after)
	}
	if err := m.Save(context.Background(), t.TempDir(), nil); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "cancelled.gguf")
	if err := m.Save(context.Background(), other, &SaveOptions{Progress: func(float32) bool { return false }}); !errors.Is(err, Cancelled) {
		t.Fatal(err)
	}
	if _, err := os.Stat(other); !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

func TestModelTellsItsSizesAndMetadata(t *testing.T) {
	m := load(t, nil)
	info := must(m.Info())(t)
	if info.Arch != "llama" || info.Context != 512 || info.Vocab != 1024 || info.Layers != 6 {
		t.Fatalf("%+v", info)
	}
	if arch := must(m.Meta("general.architecture"))(t); arch != info.Arch {
		t.Fatal(arch)
	}
	if _, err := m.Meta("no.such.key"); !errors.Is(err, NotFound) {
		t.Fatal(err)
	}
}

func TestTextGoesBothWays(t *testing.T) {
	m := load(t, nil)
	const text = "To be, or not to be — ✓"
	tokens := must(m.Tokenize(text, TokenizeOptions{}))(t)
	if back := must(m.Detokenize(tokens, false))(t); back != text {
		t.Fatal(back)
	}
	if none := must(m.Tokenize("", TokenizeOptions{}))(t); len(none) != 0 {
		t.Fatal(none)
	}
	special := must(m.Tokenize("<|endoftext|>", TokenizeOptions{ParseSpecial: true}))(t)
	if !reflect.DeepEqual(special, []int32{0}) || must(m.Detokenize(special, true))(t) != "<|endoftext|>" {
		t.Fatal(special)
	}
	if _, err := m.Tokenize("\xff", TokenizeOptions{}); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
}

func TestStopStringsAreHeldBack(t *testing.T) {
	m := load(t, nil)
	text := must(m.NewText(&TextOptions{Stop: []string{"", " or"}[1:]}))(t)
	defer text.Close()
	var shown string
	var stopped bool
	for _, token := range must(m.Tokenize("To be, or not", TokenizeOptions{}))(t) {
		words, done, err := text.Push(token)
		if err != nil {
			t.Fatal(err)
		}
		shown, stopped = shown+words, stopped || done
	}
	if shown != "To be," || !stopped {
		t.Fatal(shown, stopped)
	}
	if _, err := m.NewText(&TextOptions{Stop: []string{""}}); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
}

func TestRepliesAreToldAsEvents(t *testing.T) {
	m := load(t, nil)
	tools := `[{"type":"function","function":{"name":"stab","parameters":{"properties":{"times":{"type":"integer"}}}}}]`
	reply := must(m.NewReply(&ReplyOptions{Format: "qwen3-coder", Prompt: "<think>", Tools: tools, Stop: []string{"Exeunt"}}))(t)
	defer reply.Close()
	if must(reply.Format())(t) != "qwen3-coder" {
		t.Fatal("another format")
	}
	text := "Hm.</think>So be it.<tool_call><function=stab><parameter=times>\n23\n</parameter></function></tool_call>Exeunt all."
	shown := make(map[EventKind]string)
	var over bool
	for _, token := range must(m.Tokenize(text, TokenizeOptions{}))(t) {
		events, done, err := reply.Push(token)
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range events {
			shown[event.Kind] += event.Text + event.ID
		}
		over = over || done
	}
	if _, _, err := reply.Flush(); err != nil {
		t.Fatal(err)
	}
	if !over || shown[EventReasoning] != "Hm." || shown[EventContent] != "So be it." || shown[EventToolArguments] != `{"times":23}` ||
		shown[EventToolBegin] != "stabcall00000" || shown[EventToolEnd] != "call00000" {
		t.Fatal(over, shown)
	}
	if _, err := m.NewReply(&ReplyOptions{Tools: "{}"}); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
}

func TestChatIsRenderedByTheTemplateGiven(t *testing.T) {
	m := load(t, nil)
	opts := &ChatOptions{
		AddGenerationPrompt: true,
		Template:            "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}{{ mood }}{{ tools | length }}{% if add_generation_prompt %}!{% endif %}",
		Tools:               []any{map[string]any{"name": "dagger"}},
		Vars:                map[string]any{"mood": "grim"},
	}
	text := must(m.RenderChat([]Message{{"user", "Who's there?"}, {"assistant", "\"Nay\""}}, opts))(t)
	if text != "user=Who's there?;assistant=\"Nay\";grim1!" {
		t.Fatal(text)
	}
	typed := []Message{{"user", "Who <|endoftext|>?"}}
	tokens := must(m.TokenizeChat(typed, opts))(t)
	if must(m.Detokenize(tokens, false))(t) != must(m.RenderChat(typed, opts))(t) {
		t.Fatal(tokens)
	}
	if _, err := m.RenderChat([]Message{{"user", "x"}}, nil); !errors.Is(err, NotFound) {
		t.Fatal(err)
	}
	if _, err := m.RenderChatJSON([]byte("[{"), opts); !errors.Is(err, InvalidArgument) {
		t.Fatal(err)
	}
	if _, err := m.RenderChat(nil, &ChatOptions{Template: "{{ raise_exception('thou art') }}"}); !errors.Is(err, Template) {
		t.Fatal(err)
	}
}

func TestLoadsReportAndStop(t *testing.T) {
	ctx := must(NewContext(nil))(t)
	defer ctx.Close()
	var last float32
	watch := func(done float32) bool { last = done; return true }
	m := must(ctx.LoadModel(context.Background(), modelPath, &ModelOptions{Progress: watch, NoMmap: true}))(t)
	if m.Close(); last != 1 {
		t.Fatal(last)
	}
	stop := &ModelOptions{Progress: func(float32) bool { return false }}
	if _, err := ctx.LoadModel(context.Background(), modelPath, stop); !errors.Is(err, Cancelled) {
		t.Fatal(err)
	}
	request, cancel := context.WithCancel(context.Background())
	during := &ModelOptions{Progress: func(float32) bool { cancel(); return true }}
	for range 2 { // cancelled while it loads, and before it begins
		if _, err := ctx.LoadModel(request, modelPath, during); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	_, err := ctx.LoadModel(context.Background(), "/no/such/file", nil)
	var failed *Error
	if !errors.As(err, &failed) || failed.Status != IO || !strings.Contains(failed.Message, "/no/such/file") {
		t.Fatal(err)
	}
}

func TestAModelLoadsFromBytes(t *testing.T) {
	m := load(t, nil)
	_, want := run(t, start(t, open(t, m, nil), "ROMEO:", 1), 16)
	ctx := must(NewContext(nil))(t)
	defer ctx.Close()
	data := must(os.ReadFile(modelPath))(t)
	copied := must(ctx.LoadModelBytes(context.Background(), data, nil))(t)
	defer copied.Close()
	clear(data)
	if _, got := run(t, start(t, open(t, copied, nil), "ROMEO:", 1), 16); got != want {
		t.Fatal(got, want)
	}
	if _, err := ctx.LoadModelBytes(context.Background(), nil, nil); err == nil {
		t.Fatal("nothing was loaded as a model")
	}
}

func TestAPlanIsWhatASessionTakes(t *testing.T) {
	ctx := must(NewContext(nil))(t)
	defer ctx.Close()
	m := must(ctx.LoadModel(context.Background(), modelPath, nil))(t)
	defer m.Close()
	taken := map[KVType]uint64{}
	for _, kind := range []KVType{KVF16, KVF32, KVQ8} {
		opts := &SessionOptions{MaxSeqs: 3, KVTokens: 1000, KVType: kind}
		plan := must(ctx.Plan(modelPath, nil, opts))(t)
		memory := must(open(t, m, opts).Memory())(t)
		if !plan.Fits || plan.HostKV != memory.HostKV || plan.HostWeights != memory.HostWeights {
			t.Fatal(plan, memory)
		}
		taken[kind] = memory.HostKV
	}
	// The processor has no memory of its own to be short of.
	limited := &ModelOptions{DeviceMemory: 1}
	plan := must(ctx.Plan(modelPath, limited, nil))(t)
	if !plan.Fits || plan.HostLayers != 0 || plan.HostExpertLayers != 0 || plan.DeviceWeights != 0 {
		t.Fatal(plan)
	}
	must(ctx.LoadModel(context.Background(), modelPath, limited))(t).Close()
	// Bits of an element.
	if taken[KVF32] != 2*taken[KVF16] || 32*taken[KVQ8] != 17*taken[KVF16] {
		t.Fatal(taken)
	}
}
