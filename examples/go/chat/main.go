// Chat is a conversation on the terminal: turns from standard input go through the model's chat template (or, without one, through plain
// "User:" and "Assistant:" lines), replies stream out. /reset forgets everything.
//
//	chat MODEL.gguf [-s SEED] [-n TOKENS OF A REPLY] [SYSTEM PROMPT]
//
// What the cache has of earlier turns is kept. When the context runs full, the oldest turns are forgotten.
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

const plain = "{{ bos_token }}{% for m in messages %}{% if m.role != 'system' %}{{ m.role | capitalize }}: {% endif %}" +
	"{{ m.content }}\n{% endfor %}Assistant:"

// answer streams a reply to what the user has said. It returns how many messages are forgotten; before, forgotten were.
func answer(ctx context.Context, chat *segno.Chat, forgotten int) (int, error) {
	err := chat.Reply(ctx, func(event segno.Event) {
		if event.Kind == segno.EventContent {
			fmt.Print(event.Text)
		}
	})
	if errors.Is(err, segno.ContextFull) || errors.Is(err, segno.KVFull) {
		// Nothing is left to forget. What there is of the reply becomes a message when the user goes on.
		fmt.Print(" [the context is full]")
	} else if err != nil {
		return forgotten, err
	}
	fmt.Println()
	stats, err := chat.Stats()
	if stats.Forgotten > forgotten {
		fmt.Printf("[the context is full: %d messages are forgotten]\n", stats.Forgotten-forgotten)
	}
	return stats.Forgotten, err
}

// talk reads turns until the input ends. The first messages, those of the system, are never forgotten.
func talk(ctx context.Context, chat *segno.Chat, system int) error {
	lines := bufio.NewScanner(os.Stdin)
	forgotten := 0
	for fmt.Print("> "); lines.Scan(); fmt.Print("> ") {
		if lines.Text() == "/reset" {
			if err := chat.Truncate(system); err != nil {
				return err
			}
			fmt.Println("[forgotten]")
			continue
		}
		if err := chat.Say("user", lines.Text()); err != nil {
			return err
		}
		var err error
		if forgotten, err = answer(ctx, chat, forgotten); err != nil {
			return err
		}
	}
	fmt.Println()
	return lines.Err()
}

func converse(ctx context.Context, path string, opts *segno.ChatCreateOptions) error {
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
	if _, err := model.Meta("tokenizer.chat_template"); err != nil {
		opts.Template, opts.Stop = plain, []string{"\nUser:", "\nAssistant:"}
	}
	session, err := model.NewSession(&segno.SessionOptions{MaxSeqs: 1, KVTokens: uint64(min(info.Context, 8192))})
	if err != nil {
		return err
	}
	defer session.Close()
	chat, err := session.NewChat(opts)
	if err != nil {
		return err
	}
	defer chat.Close()
	system := 0
	if opts.System != "" {
		system = 1
	}
	return talk(ctx, chat, system)
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: chat MODEL.gguf [-s SEED] [-n TOKENS OF A REPLY] [SYSTEM PROMPT]")
	}
	flags := flag.NewFlagSet("chat", flag.ExitOnError)
	seed := flags.Uint64("s", segno.SeedRandom, "`seed` of the draw")
	limit := flags.Uint("n", 0, "most `tokens` of a reply, 0 for no limit")
	flags.Parse(os.Args[2:])
	opts := segno.DefaultChat()
	opts.Forget, opts.System, opts.MaxTokens = true, strings.Join(flags.Args(), " "), uint32(*limit)
	opts.Sampler = segno.DefaultSampler()
	opts.Sampler.Seed = *seed
	if err := converse(context.Background(), os.Args[1], opts); err != nil {
		log.Fatal(err)
	}
}
