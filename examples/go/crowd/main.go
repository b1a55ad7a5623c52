// Crowd lets characters share one scene: each forks the long prompt, and all speak in one batch a step, until each has said TOKENS.
//
//	crowd MODEL.gguf [-c CHARACTERS] [-n TOKENS] [-s SEED]
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"segno"
)

var cues = []string{"ROMEO:\n", "JULIET:\n", "KING RICHARD:\n", "MENENIUS:\n", "LADY ANNE:\n", "Nurse:\n", "First Citizen:\n", "GLOUCESTER:\n"}

const scene = "Messenger:\nMy lords, the gates are shut against the king,\nAnd every man doth ask his neighbour's mind.\n\n" +
	"First Lord:\nWho leads them? Speak, and tell us what they want.\n\n" +
	"Messenger:\nThey want for bread, my lord, and for a cause;\nThey say the crown hath eaten up the corn.\n\n" +
	"First Lord:\nThen let us hear them all, both friend and foe,\nAnd each shall say what lies upon his heart.\n\n"

type character struct {
	model  *segno.Model
	cue    string
	seq    *segno.Sequence
	text   *segno.Text
	line   string
	tokens int
}

// speak queues the name and with it the beginning of a speech. It fails when the context is full.
func (c *character) speak() error {
	tokens, err := c.model.Tokenize(c.cue, segno.TokenizeOptions{})
	if err != nil {
		return err
	}
	return c.seq.Append(tokens)
}

// hear takes the outcome of one step and tells whether the character goes on.
func (c *character) hear(step segno.Step, limit int) (bool, error) {
	paused := false
	if step.Token >= 0 {
		words, done, err := c.text.Push(step.Token)
		if err != nil {
			return false, err
		}
		c.print(words)
		paused = done
		c.tokens++
	}
	leaves := c.tokens == limit || step.Status == segno.Done || step.Err != nil
	if paused || leaves {
		words, _, err := c.text.Flush()
		if err != nil {
			return false, err
		}
		c.print(words + "\n")
	}
	return !leaves && (!paused || c.speak() == nil), nil
}

// print shows lines as they become whole.
func (c *character) print(words string) {
	lines := strings.Split(words, "\n")
	for i, part := range lines {
		c.line += part
		if i+1 < len(lines) && c.line != "" {
			fmt.Printf("%s %s\n", strings.TrimSuffix(c.cue, "\n"), c.line)
			c.line = ""
		}
	}
}

func (c *character) leave() {
	c.text.Close()
	c.seq.Close()
}

// play lets everyone speak until all have left, and returns how many tokens there were.
func play(ctx context.Context, session *segno.Session, cast []*character, limit int) (tokens int, err error) {
	for len(cast) > 0 {
		var seqs []*segno.Sequence
		for _, c := range cast {
			seqs = append(seqs, c.seq)
		}
		steps := make([]segno.Step, len(seqs))
		if err := session.DecodeBatch(ctx, seqs, steps); err != nil {
			return tokens, err
		}
		for i := len(cast) - 1; i >= 0; i-- {
			if steps[i].Token >= 0 {
				tokens++
			}
			stays, err := cast[i].hear(steps[i], limit)
			if err != nil {
				return tokens, err
			}
			if !stays {
				cast[i].leave()
				cast[i] = cast[len(cast)-1]
				cast = cast[:len(cast)-1]
			}
		}
	}
	return tokens, nil
}

func crowd(ctx context.Context, path string, characters, limit int, seed uint64) error {
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
	// The scene is held once, speeches and their cues by each.
	opts := &segno.SessionOptions{MaxSeqs: characters + 1, KVTokens: uint64(1024 + 8*characters*limit)}
	session, err := model.NewSession(opts)
	if err != nil {
		return err
	}
	defer session.Close()
	stage, err := session.Open(nil)
	if err != nil {
		return err
	}
	tokens, err := model.Tokenize(scene, segno.TokenizeOptions{AddSpecial: true})
	if err != nil {
		return err
	}
	if err := stage.Prefill(ctx, tokens); err != nil {
		return err
	}
	var cast []*character
	for i := range characters {
		sampler := segno.DefaultSampler()
		sampler.Seed = seed + uint64(i)
		c := &character{model: model, cue: cues[i]}
		if c.seq, err = stage.Fork(sampler); err != nil {
			return err
		}
		if c.text, err = model.NewText(&segno.TextOptions{Stop: []string{"\n\n"}}); err != nil {
			return err
		}
		if err := c.speak(); err != nil {
			return err
		}
		cast = append(cast, c)
	}
	start := time.Now()
	count, err := play(ctx, session, cast, limit)
	fmt.Printf("\n%d characters, %d tokens, %.1f tokens/s\n", characters, count, float64(count)/time.Since(start).Seconds())
	return err
}

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: crowd MODEL.gguf [-c CHARACTERS] [-n TOKENS] [-s SEED]")
	}
	flags := flag.NewFlagSet("crowd", flag.ExitOnError)
	characters := flags.Int("c", 4, "`characters`, 1 to 8")
	limit := flags.Int("n", 80, "`tokens` that each says")
	seed := flags.Uint64("s", 1, "`seed` of the first")
	flags.Parse(os.Args[2:])
	if *characters < 1 || *characters > len(cues) || *limit < 1 {
		log.Fatal("1 to 8 characters say at least 1 token each")
	}
	if err := crowd(context.Background(), os.Args[1], *characters, *limit, *seed); err != nil {
		log.Fatal(err)
	}
}
