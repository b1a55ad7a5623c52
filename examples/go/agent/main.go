// Agent answers with the help of two tools, a calculator and a list of files. A grammar of calls keeps every call to the schema of its
// tool, so the arguments always fit the structs that they are read into.
//
//	agent MODEL.gguf [QUESTION] [SEED]
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	"segno"
)

const tools = `[{"name": "calculate", "parameters": {"type": "object", "properties": {
	"left": {"type": "integer", "minimum": -9999, "maximum": 9999}, "operator": {"enum": ["+", "-", "*"]},
	"right": {"type": "integer", "minimum": -9999, "maximum": 9999}}, "required": ["left", "operator", "right"]}},
	{"name": "list_files", "parameters": {"type": "object", "properties": {
	"folder": {"type": "string", "pattern": "^[a-z]{0,20}$"}}, "required": ["folder"]}}]`

const (
	promptEnd = "assistant\n"
	maxTurns  = 4
	maxReply  = 300
	// For models without a template of their own.
	plainTemplate = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)

// call is what a reply calls, if it does.
type call struct {
	name, arguments string
	whole           bool
}

type agent struct {
	model    *segno.Model
	seq      *segno.Sequence
	reply    *segno.Reply
	chat     segno.ChatOptions
	messages []segno.Message
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: agent MODEL.gguf [QUESTION] [SEED]")
	}
	question, seed := "What is 6 times 7?", uint64(1)
	if len(os.Args) > 2 {
		question = os.Args[2]
	}
	if len(os.Args) > 3 {
		seed, _ = strconv.ParseUint(os.Args[3], 10, 64)
	}
	if err := help(context.Background(), os.Args[1], question, seed); err != nil {
		log.Fatal(err)
	}
}

func help(ctx context.Context, path, question string, seed uint64) error {
	device, err := segno.NewContext(nil)
	if err != nil {
		return err
	}
	defer device.Close()
	model, err := device.LoadModel(ctx, path, nil)
	if err != nil {
		return err
	}
	defer model.Close()
	session, err := model.NewSession(nil)
	if err != nil {
		return err
	}
	defer session.Close()
	sampler := segno.DefaultSampler()
	sampler.Seed = seed
	seq, err := session.Open(sampler)
	if err != nil {
		return err
	}
	defer seq.Close()
	reply, err := model.NewReply(&segno.ReplyOptions{Format: "hermes", Prompt: promptEnd, Tools: tools})
	if err != nil {
		return err
	}
	defer reply.Close()
	a := &agent{model: model, seq: seq, reply: reply, chat: segno.ChatOptions{AddGenerationPrompt: true}}
	if _, err := model.Meta("tokenizer.chat_template"); err != nil {
		a.chat.Template = plainTemplate
	}
	a.say("system", "Call a tool by writing <tool_call>\n{\"name\": ..., \"arguments\": ...}\n</tool_call>. Tools: "+tools)
	a.say("user", question)
	// Small models would rather guess, so the first reply has to call a tool, and the last none.
	choices := [maxTurns]segno.ToolChoice{segno.ToolsRequired, segno.ToolsAuto, segno.ToolsAuto, segno.ToolsNone}
	for _, choice := range choices {
		called, err := a.answer(ctx, choice)
		if err != nil || !called {
			return err
		}
	}
	return nil
}

func (a *agent) say(role, text string) {
	a.messages = append(a.messages, segno.Message{Role: role, Content: text})
}

// answer shows the text of one reply and uses the tool that it calls, and says whether it called one.
func (a *agent) answer(ctx context.Context, choice segno.ToolChoice) (bool, error) {
	ids, err := a.model.TokenizeChat(a.messages, &a.chat)
	if err != nil {
		return false, err
	}
	if err := a.seq.Truncate(0); err != nil {
		return false, err
	}
	if err := a.seq.Append(ids); err != nil {
		return false, err
	}
	grammar, err := a.model.NewToolGrammar(&segno.ToolOptions{
		Tools: tools, Choice: choice, OneCall: true, Format: "hermes", Prompt: promptEnd})
	if err != nil {
		return false, err
	}
	defer grammar.Close()
	if err := a.seq.SetGrammar(grammar); err != nil {
		return false, err
	}
	made, err := a.read(ctx)
	if err != nil || !made.whole {
		return false, err
	}
	result := use(made)
	fmt.Printf("[%s %s: %s]\n", made.name, made.arguments, result)
	a.say("assistant", fmt.Sprintf("<tool_call>\n{\"name\": %q, \"arguments\": %s}\n</tool_call>", made.name, made.arguments))
	a.say("user", "<tool_response>\n"+result+"\n</tool_response>")
	return true, nil
}

func (a *agent) read(ctx context.Context) (made call, err error) {
	take := func(events []segno.Event) {
		for _, event := range events {
			switch event.Kind {
			case segno.EventContent:
				fmt.Print(event.Text)
			case segno.EventToolBegin:
				made.name = event.Text
			case segno.EventToolArguments:
				made.arguments += event.Text
			case segno.EventToolEnd:
				made.whole = true
			}
		}
	}
	for piece, err := range a.seq.Generate(ctx, segno.GenerateOptions{MaxTokens: maxReply}) {
		if err != nil {
			return made, err
		}
		if piece.Token < 0 {
			continue
		}
		events, _, err := a.reply.Push(piece.Token)
		if err != nil {
			return made, err
		}
		take(events)
	}
	events, _, err := a.reply.Flush()
	take(events)
	fmt.Println()
	return made, err
}

// use runs a tool. What it is given meets its schema, so reading it does not fail.
func use(made call) string {
	var given struct {
		Left, Right      int
		Operator, Folder string
	}
	if err := json.Unmarshal([]byte(made.arguments), &given); err != nil {
		return err.Error()
	}
	switch given.Operator {
	case "+":
		return strconv.Itoa(given.Left + given.Right)
	case "-":
		return strconv.Itoa(given.Left - given.Right)
	case "*":
		return strconv.Itoa(given.Left * given.Right)
	}
	files, err := os.ReadDir("./" + given.Folder)
	if err != nil {
		return "there is no such folder"
	}
	var names []string
	for _, file := range files {
		names = append(names, file.Name())
	}
	return strings.Join(names, " ")
}
