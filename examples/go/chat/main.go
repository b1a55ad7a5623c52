// Chat is a conversation on the terminal: turns from standard input go through the model's chat template (or, without one, through plain
// "User:" and "Assistant:" lines), replies stream out. /reset forgets everything.
//
//	chat MODEL.gguf [-s SEED] [-n TOKENS OF A REPLY] [SYSTEM PROMPT]
//
// The conversation is rendered anew for every turn; what the sequence already holds of it is kept. When the context runs full, the oldest
// turns are forgotten: the sequence is cut at the end of the system turn, and the newest turns are appended again.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"

	"segno"
)

const roomForReply = 128

type conversation struct {
	model     *segno.Model
	seq       *segno.Sequence
	templated bool
	capacity  int
	limit     int // tokens of a reply; 0: no limit
	turns     []segno.Message
	system    int     // 1 when the first turn is the system's
	forgotten int     // turns after it that are left out
	held      []int32 // tokens of the sequence
}

// render is the kept turns as the template says, or as plain lines.
func (c *conversation) render() (string, error) {
	kept := append(append([]segno.Message{}, c.turns[:c.system]...), c.turns[c.system+c.forgotten:]...)
	if c.templated {
		return c.model.RenderChat(kept, &segno.ChatOptions{AddGenerationPrompt: true})
	}
	var text strings.Builder
	labels := map[string]string{"user": "User: ", "assistant": "Assistant: "}
	for _, turn := range kept {
		text.WriteString(labels[turn.Role] + turn.Content + "\n")
	}
	return text.String() + "Assistant:", nil
}

// evaluate brings the sequence to the rendered conversation, forgetting the oldest turns while it does not fit.
func (c *conversation) evaluate() error {
	var tokens []int32
	before := c.forgotten
	for {
		text, err := c.render()
		if err != nil {
			return err
		}
		tokens, err = c.model.Tokenize(text, segno.TokenizeOptions{AddSpecial: !c.templated, ParseSpecial: c.templated})
		if err != nil {
			return err
		}
		if len(tokens)+roomForReply <= c.capacity || c.system+c.forgotten+1 >= len(c.turns) {
			break
		}
		c.forgotten++
	}
	same := 0
	for same < len(c.held) && same < len(tokens) && c.held[same] == tokens[same] {
		same++
	}
	if c.forgotten > before {
		fmt.Printf("[the context is full: %d turns are forgotten, %d tokens kept]\n", c.forgotten-before, same)
	}
	if err := c.seq.Truncate(same); err != nil {
		return err
	}
	c.held = tokens
	return c.seq.Append(tokens[same:])
}

// reply streams one answer and keeps it as a turn.
func (c *conversation) reply(ctx context.Context) error {
	opts := segno.GenerateOptions{MaxTokens: c.limit}
	if !c.templated {
		opts.Stop = []string{"\nUser:", "\nAssistant:"}
	}
	var text strings.Builder
	for piece, err := range c.seq.Generate(ctx, opts) {
		if errors.Is(err, segno.ContextFull) || errors.Is(err, segno.KVFull) {
			fmt.Print(" [the context is full]")
			break
		}
		if err != nil {
			return err
		}
		if piece.Token >= 0 {
			c.held = append(c.held, piece.Token)
		}
		fmt.Print(piece.Text)
		text.WriteString(piece.Text)
	}
	fmt.Println()
	c.turns = append(c.turns, segno.Message{Role: "assistant", Content: text.String()})
	return nil
}

// talk reads turns until the input ends.
func (c *conversation) talk(ctx context.Context) error {
	lines := bufio.NewScanner(os.Stdin)
	for fmt.Print("> "); lines.Scan(); fmt.Print("> ") {
		if lines.Text() == "/reset" {
			c.turns, c.forgotten = c.turns[:c.system], 0
			fmt.Println("[forgotten]")
			continue
		}
		c.turns = append(c.turns, segno.Message{Role: "user", Content: lines.Text()})
		if err := c.evaluate(); err != nil {
			return err
		}
		if err := c.reply(ctx); err != nil {
			return err
		}
	}
	fmt.Println()
	return lines.Err()
}

func chat(ctx context.Context, path, system string, seed uint64, limit int) error {
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
	info, err := model.Info()
	if err != nil {
		return err
	}
	c := &conversation{model: model, capacity: min(info.Context, 8192), limit: limit}
	_, err = model.Meta("tokenizer.chat_template")
	c.templated = err == nil
	session, err := model.NewSession(&segno.SessionOptions{MaxSeqs: 1, KVTokens: uint64(c.capacity)})
	if err != nil {
		return err
	}
	defer session.Close()
	sampler := segno.DefaultSampler()
	sampler.Seed = seed
	if c.seq, err = session.Open(sampler); err != nil {
		return err
	}
	if system != "" {
		c.turns, c.system = []segno.Message{{Role: "system", Content: system}}, 1
	}
	return c.talk(ctx)
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: chat MODEL.gguf [-s SEED] [-n TOKENS OF A REPLY] [SYSTEM PROMPT]")
	}
	flags := flag.NewFlagSet("chat", flag.ExitOnError)
	seed := flags.Uint64("s", segno.SeedRandom, "`seed` of the draw")
	limit := flags.Int("n", 0, "most `tokens` of a reply, 0 for no limit")
	flags.Parse(os.Args[2:])
	if err := chat(context.Background(), os.Args[1], strings.Join(flags.Args(), " "), *seed, *limit); err != nil {
		log.Fatal(err)
	}
}
