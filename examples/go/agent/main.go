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
	rules    = "Call a tool by writing <tool_call>\n{\"name\": ..., \"arguments\": ...}\n</tool_call>. Tools: " + tools
	maxTurns = 4
	maxReply = 300
	// ChatML with calls, which the templates of small models leave out.
	template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls %}<tool_call>\n" +
		"{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\n</tool_call>" +
		"{% endfor %}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)

// call is what a reply calls, if it does.
type call struct {
	name, arguments string
	whole           bool
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
	opts := segno.DefaultChat()
	opts.System, opts.Template, opts.Tools, opts.Format, opts.MaxTokens = rules, template, tools, "hermes", maxReply
	opts.Sampler = segno.DefaultSampler()
	opts.Sampler.Seed = seed
	chat, err := session.NewChat(opts)
	if err != nil {
		return err
	}
	defer chat.Close()
	if err := chat.Say("user", question); err != nil {
		return err
	}
	// Small models would rather guess, so the first reply has to call a tool, and the last none.
	choices := [maxTurns]segno.ToolChoice{segno.ToolsRequired, segno.ToolsAuto, segno.ToolsAuto, segno.ToolsNone}
	for _, choice := range choices {
		if err := chat.SetTools(choice, true, ""); err != nil {
			return err
		}
		called, err := answer(ctx, chat)
		if err != nil || !called {
			return err
		}
	}
	return nil
}

// answer shows the text of one reply and answers the call in it, and says whether there was one.
func answer(ctx context.Context, chat *segno.Chat) (bool, error) {
	var made call
	err := chat.Reply(ctx, func(event segno.Event) {
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
	})
	fmt.Println()
	if err != nil || !made.whole {
		return false, err
	}
	result := use(made)
	fmt.Printf("[%s %s: %s]\n", made.name, made.arguments, result)
	return true, chat.Say("user", result)
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
